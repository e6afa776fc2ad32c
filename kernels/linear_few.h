/*
 * linear_few.h: y = x W' for up to 8 rows of x at a time, what decoding does; for linear.cu.
 *
 * Two blocks for each SM walk through the matrices, a unit of M tiles of 16 rows of W after the
 * other, each of 8 warps along its own slice of k. W comes through a ring in shared memory, 8 KB a
 * warp, of which a lane reads what it has copied itself: nobody waits for another warp but once a
 * unit, when the slices' sums meet. Its first steps are on their way before the launch before this
 * one has ended.
 *
 * Bytes: W once. On an H200 (2026-11-26, bench/reports/2026-11-26-h200-speed.md; a plain loop reads
 * 4.5 TB/s) 34816 x 5120 in FP8 takes 48 us behind a small launch, of which 39 are its bytes, 5120
 * x 17408 27 us (20), 12352 x 2048 8.6 us (5.6); 4 rows 0.3 to 1 us more. What bounds it:
 * - x: the terms of 4 rows are as many bytes as a tile of FP8 weights, 16 for each k, and L1 has no
 *   room for all of them beside shared memory. So two tiles share what is loaded of x where there
 *   are enough of them; where there are not, x is loaded a k-block ahead.
 * - The queue: who asks for memory waits behind all that is on its way. 4.5 TB/s and a microsecond
 *   are 4.5 MB; the rings have 17. Asking L2 for what comes after them made all launches slower.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_FEW_H
#define OFFSHOOT_KERNELS_LINEAR_FEW_H

#include "kernels/linear_launch.h"

enum {
    FEW_ROWS = 8, /* of x */
    FEW_SMS = 132,
    FEW_PAIRED = 2 * FEW_SMS, /* tiles, beyond which two make a unit */
    FEW_RING_BYTES = 8192,    /* of weights, a warp */
};

/* A ring of steps; a step is a k-block of each of M tiles and, of FP8, its scale for each lane. */
template <WeightType TYPE, int M> struct FewRing {
    enum {
        BYTES_OF = TYPE == WEIGHT_FP8 ? 1 : 2, /* a weight */
        PIECES = WeightBlock<TYPE>::PIECES,    /* of a lane's row */
        BLOCK = 2 * PIECES * WARP * 16,
        TILE = BLOCK + (TYPE == WEIGHT_FP8 ? WARP * 4 : 0),
        STEP = M * TILE,
        STEPS = FEW_RING_BYTES / (M * BLOCK),
        BYTES = STEPS * STEP,
    };
};

/* The tiles of one type, and which of the blocks that share them this one is. */
typedef struct {
    unsigned first, n;
    unsigned block, n_blocks;
} FewShare;

/* What a lane copies next: a step of a unit. */
template <int M> struct FewAhead {
    const unsigned char *from[M]; /* its bytes in the first of its two rows, */
    int second[M];                /* and how far behind them those in the second lie */
    const float *scale[M];
    int left; /* k-blocks of the unit */
    unsigned unit;
};

/* Of unit w->unit, k-blocks [begin, end). A tile past the last is the last once more. */
template <WeightType TYPE, int M>
static __device__ __forceinline__ void few_aim(const LinearTerms &a, const FewShare &share,
                                               int begin, int end, FewAhead<M> *w)
{
    enum { BYTES_OF = FewRing<TYPE, M>::BYTES_OF };
    w->left = end - begin;
    UNROLL
    for (int m = 0; m < M; m++) {
        unsigned tile = w->unit * M + (unsigned)m, own;
        tile = tile < share.n ? tile : share.n - 1;
        const Weight &of = matrix_of(a, share.first + tile, &own).w;
        TileWeight t = tile_weight(of, (int)own * TILE_ROWS);
        w->from[m] = t.first + begin * K_BLOCK * BYTES_OF + warp_lane() % 4 * 16;
        w->second[m] = (int)(t.second - t.first);
        if (TYPE == WEIGHT_FP8) w->scale[m] = t.scale + begin;
    }
}

/* Begins to copy tile m's part of the step to its place in the ring, if `is`. */
template <WeightType TYPE, int M>
static __device__ __forceinline__ void few_copy(FewAhead<M> *w, int m, int is, unsigned char *to)
{
    typedef FewRing<TYPE, M> Ring;
    const unsigned char *from = w->from[m], *second = from + w->second[m];
    UNROLL
    for (int i = 0; i < Ring::PIECES; i++) {
        copy_16_if(is, to + (i * WARP + warp_lane()) * 16, from + i * 64);
        copy_16_if(is, to + ((Ring::PIECES + i) * WARP + warp_lane()) * 16, second + i * 64);
    }
    w->from[m] = from + K_BLOCK * Ring::BYTES_OF;
    if (TYPE == WEIGHT_FP8) copy_4_if(is, to + Ring::BLOCK + warp_lane() * 4, w->scale[m]++);
}

/* The step is on its way: a group. */
template <WeightType TYPE, int M>
static __device__ __forceinline__ void few_advance(const LinearTerms &a, const FewShare &share,
                                                   int begin, int end, unsigned n_units,
                                                   FewAhead<M> *w)
{
    copies_commit();
    if (--w->left) return;
    w->unit += share.n_blocks;
    if (w->unit < n_units) few_aim<TYPE, M>(a, share, begin, end, w);
}

/* A lane's part of a tile's step that has come; its scale. */
template <WeightType TYPE, int M>
static __device__ __forceinline__ float few_take(const unsigned char *tile,
                                                 uint32_t (&weights)[K_STEPS][4])
{
    typedef FewRing<TYPE, M> Ring;
    WeightBlock<TYPE> block;
    read_block<TYPE>((const uint4 *)(const void *)tile + warp_lane(), &block);
    fragments<TYPE>(block, weights);
    if (TYPE != WEIGHT_FP8) return 1;
    return ((const float *)(const void *)(tile + Ring::BLOCK))[warp_lane()];
}

/* A k-block of a lane's columns of x. */
template <int T> struct FewX {
    TermBlock terms[T];
    float unit[T];
};

/* Where the slice begins in them. */
template <int T> struct FewColumns {
    const unsigned char *terms[T];
    const float *unit[T];
};

template <int T>
static __device__ __forceinline__ FewColumns<T> few_columns(const Terms &x, int n, int begin)
{
    FewColumns<T> c;
    UNROLL
    for (int j = 0; j < T; j++) {
        int of_terms = j * TILE_COLUMN_ROWS + warp_lane() / 8;
        int of_sums = j * TILE_COLUMN_ROWS + warp_lane() % 4;
        of_terms = of_terms < n ? of_terms : n - 1, of_sums = of_sums < n ? of_sums : n - 1;
        c.terms[j] =
            x.data + (size_t)term_offset(x, of_terms) * 16 + (size_t)begin * TERM_BLOCK_BYTES;
        c.unit[j] = x.unit + of_sums * x.n_blocks + begin;
    }
    return c;
}

template <WeightType TYPE, int T>
static __device__ __forceinline__ void few_load_x(const FewColumns<T> &c, int block, FewX<T> *x)
{
    UNROLL
    for (int j = 0; j < T; j++) {
        x->terms[j] = load_terms(c.terms[j] + (size_t)block * TERM_BLOCK_BYTES);
        x->unit[j] = TYPE == WEIGHT_FP8 ? c.unit[j][block] : 1;
    }
}

/* y of a unit, from the sums of all slices. */
template <int T, int M>
static __device__ __forceinline__ void few_finish(const LinearTerms &a, const FewShare &share,
                                                  unsigned unit, const float *part)
{
    enum { TILE = T * TILE_COLUMN_ROWS * TILE_ROWS };
    int of_tile = a.n * TILE_ROWS;
    for (int i = (int)threadIdx.x; i < M * of_tile; i += TILE_THREADS) {
        int m = i / of_tile, at = i % of_tile;
        unsigned tile = unit * M + (unsigned)m, own;
        if (tile >= share.n) continue;
        const Matrix &mat = matrix_of(a, share.first + tile, &own);
        int row = (int)own * TILE_ROWS + at % TILE_ROWS;
        if (row < mat.w.rows)
            mat.y[at / TILE_ROWS * mat.y_stride + row] = sum_slices(part + m * TILE + at, M * TILE);
    }
}

/*
 * All units of this block, the sums of linear_tile.h. AHEAD: x comes a k-block ahead. parts: of a
 * unit's slices, twice, for the next unit's are stored while these are added.
 */
template <WeightType TYPE, int T, int M, int AHEAD>
static __device__ __forceinline__ void few_tiles(const LinearTerms &a, const Terms &x,
                                                 const FewShare &share, unsigned char *rings,
                                                 float *parts)
{
    enum { TILE = T * TILE_COLUMN_ROWS * TILE_ROWS, SET = K_SLICES * M * TILE };
    typedef FewRing<TYPE, M> Ring;
    int slice = (int)threadIdx.x / WARP;
    int begin = slice_begin(x.n_blocks, slice), end = slice_begin(x.n_blocks, slice + 1);
    unsigned n_units = (share.n + M - 1) / M;
    unsigned char *ring = rings + slice * Ring::BYTES;
    FewAhead<M> w = {};
    w.unit = begin < end ? share.block : n_units;
    if (w.unit < n_units) few_aim<TYPE, M>(a, share, begin, end, &w);
    UNROLL
    for (int i = 0; i < Ring::STEPS; i++) {
        UNROLL
        for (int m = 0; m < M; m++)
            few_copy<TYPE, M>(&w, m, w.unit < n_units, ring + i * Ring::STEP + m * Ring::TILE);
        few_advance<TYPE, M>(a, share, begin, end, n_units, &w);
    }
    grid_wait();

    FewColumns<T> columns = few_columns<T>(x, a.n, begin);
    FewX<T> now = {}, next = {};
    if (AHEAD && begin < end) few_load_x<TYPE, T>(columns, 0, &next);
    int at = 0, set = 0;
    for (unsigned unit = share.block; unit < n_units; unit += share.n_blocks) {
        float acc[M][T][4] = {};
        for (int b = 0; b < end - begin; b++) {
            if (AHEAD) {
                now = next;
                few_load_x<TYPE, T>(columns, b + 1 < end - begin ? b + 1 : 0, &next);
            } else {
                few_load_x<TYPE, T>(columns, b, &now);
            }
            copies_wait<Ring::STEPS - 1>();
            UNROLL
            for (int m = 0; m < M; m++) {
                unsigned char *tile = ring + at + m * Ring::TILE;
                uint32_t weights[K_STEPS][4];
                float scale = few_take<TYPE, M>(tile, weights);
                few_copy<TYPE, M>(&w, m, w.unit < n_units, tile);
                UNROLL
                for (int j = 0; j < T; j++)
                    block_product<TYPE>(weights, now.terms[j], scale * now.unit[j], acc[m][j]);
            }
            few_advance<TYPE, M>(a, share, begin, end, n_units, &w);
            at = at + Ring::STEP == Ring::BYTES ? 0 : at + Ring::STEP;
        }
        UNROLL
        for (int m = 0; m < M; m++) {
            float sum[T][2];
            add_terms<T>(acc[m], sum);
            store_tile<T>(sum, T, parts + set + (slice * M + m) * TILE);
        }
        __syncthreads();
        few_finish<T, M>(a, share, unit, parts + set);
        set = SET - set;
    }
}

/* One kind of kernel for each type, and for both (WEIGHT_NONE: FP8 in units of M tiles, bf16 in
 * others), 1 to 4 or up to 8 rows. */
template <WeightType TYPE, int T, int M> struct FewKernel {
    enum {
        AHEAD = T == 1 && M == 1,
        FP8_RINGS = TYPE == WEIGHT_BF16 ? 0 : K_SLICES * FewRing<WEIGHT_FP8, M>::BYTES,
        BF16_RINGS = TYPE == WEIGHT_FP8 ? 0 : K_SLICES * FewRing<WEIGHT_BF16, 1>::BYTES,
        RINGS = +FP8_RINGS > +BF16_RINGS ? +FP8_RINGS : +BF16_RINGS,
        PARTS = 2 * K_SLICES * M * T * TILE_COLUMN_ROWS * TILE_ROWS, /* floats */
        BLOCKS = TYPE == WEIGHT_BF16 && T == 1 ? 3 : 2,              /* of an SM */
    };
};

/* The first n_bf16 blocks share the bf16 tiles out, the others those in FP8. */
template <WeightType TYPE, int T, int M>
static __global__ void __launch_bounds__(TILE_THREADS, FewKernel<TYPE, T, M>::BLOCKS)
    linear_few_kernel(LinearTerms a, unsigned n_bf16)
{
    typedef FewKernel<TYPE, T, M> Kernel;
    DYNAMIC_SHARED(unsigned char, rings);
    __shared__ float parts[Kernel::PARTS];
    if constexpr (TYPE != WEIGHT_FP8) {
        FewShare bf16 = {a.end_fp8, a.end - a.end_fp8, blockIdx.x, n_bf16};
        if (blockIdx.x < n_bf16) few_tiles<WEIGHT_BF16, T, 1, T == 1>(a, a.x, bf16, rings, parts);
    }
    if constexpr (TYPE != WEIGHT_BF16) {
        FewShare fp8 = {0, a.end_fp8, blockIdx.x - n_bf16, gridDim.x - n_bf16};
        if (blockIdx.x >= n_bf16)
            few_tiles<WEIGHT_FP8, T, M, Kernel::AHEAD>(a, TYPE == WEIGHT_NONE ? a.x_fp8 : a.x, fp8,
                                                       rings, parts);
    }
}

template <WeightType TYPE, int T, int M>
static void launch_few_of(const CudaContext *c, const LinearTerms &a)
{
    typedef FewKernel<TYPE, T, M> Kernel;
    int most = Kernel::BLOCKS * FEW_SMS, fp8 = (int)a.end_fp8, bf16 = (int)a.end - fp8, n_bf16 = 0;
    if (bf16) n_bf16 = most * (2 * bf16) / (2 * bf16 + fp8); /* by their bytes */
    if (bf16) n_bf16 = even_part(bf16, n_bf16 ? n_bf16 : 1);
    int n_fp8 = even_part((fp8 + M - 1) / M, most - n_bf16 ? most - n_bf16 : 1);
    launch(c, dim3((unsigned)(n_bf16 + n_fp8)), TILE_THREADS, Kernel::RINGS,
           linear_few_kernel<TYPE, T, M>, a, (unsigned)n_bf16);
}

template <WeightType TYPE, int T> static void launch_few_rows(const CudaContext *c, LinearTerms a)
{
    a.n_groups = 1;
    place_tiles(&a);
    if constexpr (TYPE != WEIGHT_BF16) {
        if (a.end_fp8 > FEW_PAIRED) {
            launch_few_of<TYPE, T, 2>(c, a);
            return;
        }
    }
    launch_few_of<TYPE, T, 1>(c, a);
}

/* Whether rows of all matrices are whole k-blocks that can be copied. */
static int can_few(const LinearTerms &a)
{
    for (int i = 0; i < a.n_matrices; i++)
        if (!weight_is_aligned(a.matrix[i].w) || a.matrix[i].w.cols % K_BLOCK) return 0;
    return 1;
}

template <WeightType TYPE> static void launch_few(const CudaContext *c, const LinearTerms &a)
{
    if (a.n <= TILE_COLUMN_ROWS)
        launch_few_rows<TYPE, 1>(c, a);
    else
        launch_few_rows<TYPE, 2>(c, a);
}

/* The same for rows [first, first + n) of x. */
static LinearTerms rows_from(LinearTerms a, int first, int n)
{
    a.n = n;
    a.x = terms_from(a.x, first);
    if (a.x_fp8.data) a.x_fp8 = terms_from(a.x_fp8, first);
    for (int i = 0; i < a.n_matrices; i++)
        a.matrix[i].y += first * a.matrix[i].y_stride;
    return a;
}

/* Any rows, FEW_ROWS at most at a time, as even as they get. */
template <WeightType TYPE> static void launch_few_groups(const CudaContext *c, const LinearTerms &a)
{
    int each = even_part(a.n, FEW_ROWS);
    for (int i = 0; i < a.n; i += each)
        launch_few<TYPE>(c, rows_from(a, i, a.n - i < each ? a.n - i : each));
}

#endif
