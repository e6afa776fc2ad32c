/*
 * moe_few.h: the experts of up to 16 rows, so that an expert's are one unit; for moe.cu.
 *
 * What a warp multiplies is a walk: the k-blocks of one slice in tile after tile of 16 rows. Its
 * ring always has RING_BYTES of weights on their way, also while the block waits at a barrier or
 * the walk goes on to another expert. Where a k-block lies takes a chain of loads (unit, scale), so
 * lane i finds that of the i-th of 32 steps; between these the ring runs empty. The shared expert
 * is the first unit: its weights are on their way before the plan is there. (In registers, a
 * k-block or two ahead, as tile_sum has them, the loads would start anew after each unit and
 * barrier, and T = 4 would leave no registers for them.)
 */
#ifndef OFFSHOOT_KERNELS_MOE_FEW_H
#define OFFSHOOT_KERNELS_MOE_FEW_H

#include "kernels/moe_few_router.h"

enum {
    UP_BLOCKS = 264,    /* of a walk: two for each of a Hopper's SMs; how many shows in no bit */
    DOWN_THREADS = 512, /* of a walk, where their rings fit, else half */
};

/* ---- k-blocks on their way through shared memory ---- */

/*
 * A warp's ring of k-blocks. A lane copies the pieces that it multiplies and reads no other's, so
 * a block has come when its group of copies has: nobody waits for the rest of the warp.
 */
enum { RING_BYTES = 8192 };

template <WeightType TYPE> struct WeightRing {
    enum {
        BLOCK_PIECES = 2 * WeightBlock<TYPE>::PIECES * WARP,
        BLOCKS = RING_BYTES / (BLOCK_PIECES * 16),
    };
};

/* A piece of which n bytes are there, for rows that are not whole pieces or end within the block.
 * Its loop's length is known at run time alone: unrolled it would cost registers. */
static __device__ __forceinline__ void copy_bytes(const unsigned char *row, int n, uint4 *to)
{
    *to = uint4{0, 0, 0, 0};
    for (int i = 0; i < n && i < 16; i++)
        ((unsigned char *)(void *)to)[i] = row[i];
}

/* The lane's pieces from `at` on, and those of the row 8 below; `to`: see copy_block. */
template <WeightType TYPE>
static __device__ __forceinline__ void copy_whole(const unsigned char *at, int64_t row_8, uint4 *to)
{
    enum { PIECES = WeightBlock<TYPE>::PIECES };
    UNROLL
    for (int i = 0; i < PIECES; i++) {
        copy_16(to + i * WARP, at + i * 64);
        copy_16(to + (PIECES + i) * WARP, at + row_8 + i * 64);
    }
}

/* `to`: of a block's pieces in the ring, the lane's first. */
template <WeightType TYPE>
static __device__ __forceinline__ void copy_block(const TileWeight &w, int block, uint4 *to)
{
    enum { BYTES = TYPE == WEIGHT_FP8 ? 1 : 2, PIECES = WeightBlock<TYPE>::PIECES };
    int first = block * K_BLOCK * BYTES + warp_lane() % 4 * 16, row_bytes = w.cols * BYTES;
    if (w.aligned && (block + 1) * K_BLOCK <= w.cols) {
        copy_whole<TYPE>(w.first + first, w.second - w.first, to);
        return;
    }
    for (int i = 0; i < PIECES; i++) {
        int at = first + i * 64;
        copy_bytes(w.first + at, row_bytes - at, to + i * WARP);
        copy_bytes(w.second + at, row_bytes - at, to + (PIECES + i) * WARP);
    }
}

/* Of a block that has come. A copy to the same place may begin right after. */
template <WeightType TYPE>
static __device__ __forceinline__ void read_block(const uint4 *from, WeightBlock<TYPE> *out)
{
    typedef WeightBlock<TYPE> B;
    UNROLL
    for (int i = 0; i < B::PIECES; i++) {
        out->first[i] = from[i * WARP];
        out->second[i] = from[(B::PIECES + i) * WARP];
    }
}

/* ---- walks ---- */

/* A k-block of a tile of 16 rows of a matrix. */
typedef struct {
    const unsigned char *from; /* its first byte; NULL: past the walk's end */
    float scale;
    int32_t first_row, block; /* where in the matrix */
    int32_t first, n;         /* pairs of the unit */
} Step;

/* Tiles are numbered through all units: unit * n_row_tiles + its tile. */
typedef struct {
    const FewUnit *unit;
    int matrix, n_matrices;                   /* of a tile one after the other */
    int rows, cols;                           /* of each */
    unsigned n_units, max_units, n_row_tiles; /* unsigned ones divide faster */
    unsigned tile, stride;                    /* tiles from `tile` on, stride apart */
    int begin, end;                           /* k-blocks, of one slice; none: no steps */
    int is_whole; /* all tiles and k-blocks are: a lane's bytes begin lane_at behind `from` */
    int lane_at;
    uint4 *ring;       /* this lane's first piece */
    Step mine;         /* of the 32 steps before `base` */
    unsigned base, at; /* of those 32, the next */
} Walk;

/* Slices that are not empty; of fewer than 8 k-blocks each is a slice. */
SHARED_INLINE int used_slices(int n_blocks)
{
    return n_blocks < K_SLICES ? n_blocks : K_SLICES;
}

/* Where in a matrix a row's k-block begins. */
template <WeightType TYPE>
static __device__ __forceinline__ int64_t block_offset(const Walk &w, int row, int block)
{
    return ((int64_t)row * w.cols + block * K_BLOCK) * (TYPE == WEIGHT_FP8 ? 1 : 2);
}

template <WeightType TYPE> static __device__ __forceinline__ Step step_at(const Walk &w, unsigned i)
{
    Step s = {NULL, 1, 0, 0, 0, 0};
    unsigned n_k = (unsigned)(w.end - w.begin), per_tile = (unsigned)w.n_matrices * n_k;
    if (!n_k) return s;
    unsigned tile = w.tile + i / per_tile * w.stride, unit = tile / w.n_row_tiles;
    const FewUnit &u = w.unit[unit < w.max_units ? unit : 0]; /* beside n_units, not after it */
    FewMatrix m = u.matrix[w.matrix + (int)(i % per_tile / n_k)];
    int first = u.first, n = u.n;
    if (unit >= w.n_units) return s;
    s.first_row = (int)(tile % w.n_row_tiles) * TILE_ROWS;
    s.block = w.begin + (int)(i % n_k);
    s.from = m.data + block_offset<TYPE>(w, s.first_row, s.block);
    s.first = first, s.n = n;
    if (TYPE == WEIGHT_FP8)
        s.scale = m.scale[s.first_row / FP8_BLOCK * weight_blocks(w.cols) + s.block];
    return s;
}

static __device__ __forceinline__ int of_step(int32_t mine, unsigned i)
{
    return (int)warp_shuffle((uint32_t)mine, (int)i);
}

/* Begins the copies of step i of the 32: a group, empty past the last. */
template <WeightType TYPE>
static __device__ __forceinline__ void copy_step(const Walk &w, unsigned i)
{
    typedef WeightRing<TYPE> Ring;
    if (i < WARP) {
        uint64_t address = warp_shuffle((uint64_t)(uintptr_t)w.mine.from, (int)i);
        const unsigned char *from = (const unsigned char *)(uintptr_t)address;
        uint4 *to = w.ring + i % Ring::BLOCKS * Ring::BLOCK_PIECES;
        if (from && w.is_whole && address % 16 == 0) {
            copy_whole<TYPE>(from + w.lane_at, block_offset<TYPE>(w, 8, 0), to);
        } else if (from) {
            int first_row = of_step(w.mine.first_row, i), block = of_step(w.mine.block, i);
            const void *data = from - block_offset<TYPE>(w, first_row, block);
            Weight m = {TYPE, w.rows, w.cols, data, NULL};
            copy_block<TYPE>(tile_weight(m, first_row), block, to);
        }
    }
    copies_commit();
}

/* The next 32 steps, when nothing of the last is on its way, but the first n_begun of these. */
template <WeightType TYPE>
static __device__ __forceinline__ void next_steps(Walk *w, unsigned n_begun = 0)
{
    w->mine = step_at<TYPE>(*w, w->base + (unsigned)warp_lane());
    w->base += WARP;
    w->at = 0;
    for (unsigned i = 0; i < WeightRing<TYPE>::BLOCKS; i++) {
        if (i >= n_begun)
            copy_step<TYPE>(*w, i);
        else
            copies_commit(); /* the first has all that were begun */
    }
}

/* Begins the walk's first copies where its first tile is of the shared expert; how many. */
template <WeightType TYPE>
static __device__ __forceinline__ unsigned begin_shared(const Walk &w, const FewPlan &p)
{
    typedef WeightRing<TYPE> Ring;
    if (!p.n_shared || w.tile >= w.n_row_tiles) return 0;
    unsigned n_k = (unsigned)(w.end - w.begin), n = 0, all = (unsigned)w.n_matrices * n_k;
    for (; n < all && n < Ring::BLOCKS; n++) {
        int m = w.matrix + (int)(n / n_k);
        const MoeExpert &e = p.a.shared_expert;
        const Weight &of = m == MATRIX_GATE ? e.gate : m == MATRIX_UP ? e.up : e.down;
        copy_block<TYPE>(tile_weight(of, (int)w.tile * TILE_ROWS), w.begin + (int)(n % n_k),
                         w.ring + n * Ring::BLOCK_PIECES);
    }
    return n;
}

/* The A fragments of the walk's next k-block, when it has come; its scale. */
template <WeightType TYPE>
static __device__ __forceinline__ float take_block(const Walk &w, uint32_t (&a)[K_STEPS][4])
{
    typedef WeightRing<TYPE> Ring;
    WeightBlock<TYPE> block;
    copies_wait<Ring::BLOCKS - 1>();
    read_block<TYPE>(w.ring + w.at % Ring::BLOCKS * Ring::BLOCK_PIECES, &block);
    fragments<TYPE>(block, a);
    copy_step<TYPE>(w, w.at + Ring::BLOCKS);
    return warp_shuffle(w.mine.scale, (int)w.at);
}

/*
 * The walk's next tile and matrix: sum[j] as tile_sum gives it for the slice. Tiles of x from
 * n_tiles on are left out, but the first, whose terms are asked for before the weights are there.
 */
template <WeightType TYPE, int T>
static __device__ __forceinline__ void walk_slice(Walk *w, const Terms &x, const uint32_t (&at)[T],
                                                  int n_tiles, float (&sum)[T][2])
{
    float acc[T][4] = {};
    for (int b = w->begin; b < w->end; b++) {
        const unsigned char *terms = x.data + (size_t)b * TERM_BLOCK_BYTES;
        TermBlock first = load_terms(terms + (size_t)at[0] * 16);
        float unit = block_unit<TYPE>(x, at[0], b);
        uint32_t a[K_STEPS][4];
        float scale = take_block<TYPE>(*w, a);
        block_product<TYPE>(a, first, scale * unit, acc[0]);
        UNROLL
        for (int j = 1; j < T; j++) {
            if (j >= n_tiles) continue;
            unit = block_unit<TYPE>(x, at[j], b);
            block_product<TYPE>(a, load_terms(terms + (size_t)at[j] * 16), scale * unit, acc[j]);
        }
        if (++w->at == WARP) next_steps<TYPE>(w);
    }
    add_terms<T>(acc, sum);
}

/*
 * Sets out on slice `slice` of those used, with tiles from `tile` on. It is here that the kernel
 * calls grid_wait.
 */
template <WeightType TYPE>
static __device__ __forceinline__ void begin_walk(Walk *w, const FewPlan &p, int n_blocks,
                                                  int slice, unsigned tile, unsigned stride,
                                                  uint4 *rings)
{
    int n = used_slices(n_blocks);
    w->unit = p.unit;
    w->max_units = (unsigned)few_units(p);
    w->n_row_tiles = (unsigned)row_tiles(w->rows);
    w->tile = tile, w->stride = stride;
    w->begin = slice < n ? n_blocks * slice / n : 0;
    w->end = slice < n ? n_blocks * (slice + 1) / n : 0;
    w->is_whole = w->rows % TILE_ROWS == 0 && w->cols % K_BLOCK == 0;
    w->lane_at = (int)block_offset<TYPE>(*w, warp_lane() / 4, 0) + warp_lane() % 4 * 16;
    w->ring = rings + (int)threadIdx.x / WARP * (RING_BYTES / 16) + warp_lane();
    unsigned n_begun = begin_shared<TYPE>(*w, p);
    grid_wait();
    w->n_units = (unsigned)*p.n_units;
    next_steps<TYPE>(w, n_begun);
}

/*
 * A block walks through tiles of gate and up, a warp along its slice of k. Two blocks share an SM,
 * each with 64 KiB of weights on their way; 4.3 TB/s over 132 SMs and a microsecond of latency are
 * 33 KiB an SM. Shared: the rings; both matrices' partial sums of each slice, twice, for the next
 * tile's are written while these are added.
 */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, 2) up_few_kernel(FewPlan p)
{
    enum { TILE_FLOATS = T * TILE_COLUMN_ROWS * TILE_ROWS, MATRIX_FLOATS = K_SLICES * TILE_FLOATS };
    DYNAMIC_SHARED(uint4, rings);
    float *parts = (float *)(void *)(rings + TILE_WARPS * (RING_BYTES / 16));
    int i = (int)threadIdx.x, slice = i / WARP, n_slices = used_slices(p.x.n_blocks);
    Walk w = {};
    w.matrix = MATRIX_GATE, w.n_matrices = 2;
    w.rows = p.a.width, w.cols = p.a.dim;
    begin_walk<TYPE>(&w, p, p.x.n_blocks, slice, blockIdx.x, gridDim.x, rings);

    for (unsigned tile = w.tile, odd = 0;; tile += w.stride, odd ^= 1) {
        unsigned unit = tile / w.n_row_tiles;
        if (unit >= w.n_units) break;
        float *part = parts + odd * 2 * MATRIX_FLOATS;
        int first = p.unit[unit].first, n = p.unit[unit].n;
        uint32_t at[T];
        few_rows<T>(p.x, p.unit[unit].rows, n, at);
        int is_mine = i < n * TILE_ROWS, pair = first + i / TILE_ROWS;
        for (int m = 0; m < 2; m++) {
            float sum[T][2];
            walk_slice<TYPE, T>(&w, p.x, at, column_tiles(n), sum);
            store_tile<T>(sum, column_tiles(n), part + m * MATRIX_FLOATS + slice * TILE_FLOATS);
        }
        __syncthreads();
        if (is_mine) {
            float gate = sum_slices(part + i, TILE_FLOATS, n_slices);
            float up = sum_slices(part + MATRIX_FLOATS + i, TILE_FLOATS, n_slices);
            int row = (int)(tile % w.n_row_tiles) * TILE_ROWS + i % TILE_ROWS;
            if (row < p.a.width) p.h[(int64_t)pair * p.a.width + row] = silu(gate) * up;
        }
    }
}

/* ---- down ---- */

/* A warp's values of a k-block of h of 4 pairs, and what it makes of them in shared memory. */
typedef struct {
    float v[TILE_COLUMN_ROWS][2][2]; /* as load_block has them */
} HTile;
enum { H_TERMS_BYTES = TILE_COLUMN_ROWS * (TERM_BLOCK_BYTES + (int)sizeof(float)) };

/* Of n pairs from `first` on. */
static __device__ __forceinline__ void load_h(const FewPlan &p, int first, int n, int block,
                                              HTile *t)
{
    UNROLL
    for (int i = 0; i < TILE_COLUMN_ROWS; i++)
        if (i < n) load_block(t->v[i], p.h + (int64_t)(first + i) * p.a.width, block, p.a.width);
}

/* The terms of the n first pairs of t. */
template <WeightType TYPE>
static __device__ __forceinline__ void put_h_terms(const HTile &t, int n, const Terms &out)
{
    warp_sync(); /* all have read what was there */
    UNROLL
    for (int i = 0; i < TILE_COLUMN_ROWS; i++) {
        if (i >= n) continue;
        put_terms<TYPE>(out, i, 0, t.v[i]);
    }
    warp_sync();
}

/* acc += the k-block of fragments a times the pairs whose terms are there. */
template <WeightType TYPE>
static __device__ __forceinline__ void h_product(const uint32_t (&a)[K_STEPS][4], float scale,
                                                 const Terms &terms, float (&acc)[4])
{
    float unit = TYPE == WEIGHT_FP8 ? terms.unit[warp_lane() % 4] : 1;
    uint32_t at = term_offset(terms, warp_lane() / 8);
    block_product<TYPE>(a, load_terms(terms.data + at * 16), scale * unit, acc);
}

/* Asks for the values of the first pairs of the step after this one, unless it is not known yet. */
static __device__ __forceinline__ void load_next_h(const Walk &w, const FewPlan &p, HTile *next)
{
    if (w.at + 1 < WARP)
        load_h(p, of_step(w.mine.first, w.at + 1), of_step(w.mine.n, w.at + 1),
               of_step(w.mine.block, w.at + 1), next);
}

/*
 * The walk's next tile, for the n pairs from `first` on. h: the values of the step's first pairs,
 * but for the first of 32 steps; those of the next step come while this one is multiplied.
 */
template <WeightType TYPE, int T>
static __device__ __forceinline__ void down_slice(Walk *w, const FewPlan &p, int first, int n,
                                                  const Terms &terms, HTile *h, float (&sum)[T][2])
{
    float acc[T][4] = {};
    int is_one = T == 1 || n <= TILE_COLUMN_ROWS; /* tile of pairs, as most units are */
    for (int b = w->begin; b < w->end; b++) {
        if (w->at == 0) load_h(p, first, n, b, h);
        put_h_terms<TYPE>(*h, n, terms);
        if (is_one) load_next_h(*w, p, h);
        uint32_t a[K_STEPS][4];
        float scale = take_block<TYPE>(*w, a);
        h_product<TYPE>(a, scale, terms, acc[0]);
        UNROLL
        for (int j = 1; j < T; j++) {
            int left = n - j * TILE_COLUMN_ROWS;
            if (left <= 0) continue;
            load_h(p, first + j * TILE_COLUMN_ROWS, left, b, h);
            put_h_terms<TYPE>(*h, left, terms);
            h_product<TYPE>(a, scale, terms, acc[j]);
        }
        if (!is_one) load_next_h(*w, p, h);
        if (++w->at == WARP) next_steps<TYPE>(w);
    }
    add_terms<T>(acc, sum);
}

/* p(s) of each slice and pair; [used slices][n_pairs][16]. */
template <int T>
static __device__ __forceinline__ void park(const float (&sum)[T][2], int n, float *out)
{
    int g = warp_lane() / 4, l = warp_lane() % 4;
    UNROLL
    for (int j = 0; j < T; j++) {
        int column = j * TILE_COLUMN_ROWS + l;
        if (column >= n) continue;
        out[column * TILE_ROWS + g] = sum[j][0];
        out[column * TILE_ROWS + g + 8] = sum[j][1];
    }
}

/*
 * A block per 16 outputs. A warp takes one slice of each of its units, so that few units keep all
 * warps busy, and parks what it gets, without a barrier up to its last; then threads add up the
 * products of pairs and the outputs of rows. An SM has one block, with 128 KiB of weights on their
 * way. h comes as up left it, in f32, and a warp makes the terms of what it multiplies, some 120
 * instructions a pair and k-block beside 180 for its weights. Each block does that anew: below the
 * time of the weights up to 8 rows and about that at 16, by reckoning (not measured), and a launch
 * less.
 * Shared: the rings; a tile of terms a warp; products [used slices][n_pairs][16]; choices [n *
 * n_top].
 */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(DOWN_THREADS, 1) down_few_kernel(FewPlan p)
{
    DYNAMIC_SHARED(uint4, rings);
    int i = (int)threadIdx.x, warp = i / WARP, n_threads = (int)blockDim.x;
    int n_blocks = term_blocks(p.a.width);
    int n_slices = used_slices(n_blocks), n_at_once = n_threads / WARP / n_slices;
    int slice = warp / n_slices < n_at_once ? warp % n_slices : n_slices; /* or idle */
    int first_row = (int)blockIdx.x * TILE_ROWS, n_pairs = few_pairs(p);
    unsigned char *tiles = (unsigned char *)(rings + n_threads / WARP * (RING_BYTES / 16));
    float *product = (float *)(void *)(tiles + n_threads / WARP * H_TERMS_BYTES);
    Choice *choice = (Choice *)(void *)(product + n_slices * n_pairs * TILE_ROWS);
    Walk w = {};
    w.matrix = MATRIX_DOWN, w.n_matrices = 1;
    w.rows = p.a.dim, w.cols = p.a.width;
    begin_walk<TYPE>(&w, p, n_blocks, slice, (unsigned)(warp / n_slices) * gridDim.x + blockIdx.x,
                     (unsigned)n_at_once * gridDim.x, rings);

    /* the last warps, which have no unit more than the others */
    for (int c = n_threads - 1 - i; c < p.a.n * p.a.n_top; c += n_threads)
        choice[c] = p.choice[c];
    unsigned char *tile = tiles + warp * H_TERMS_BYTES;
    Terms terms = {tile, (float *)(void *)(tile + TILE_COLUMN_ROWS * TERM_BLOCK_BYTES), 1};
    HTile h = {};
    int n_units = slice < n_slices ? (int)w.n_units : 0;
    for (int unit = warp / n_slices; unit < n_units; unit += n_at_once) {
        int first = of_step(w.mine.first, w.at), n = of_step(w.mine.n, w.at);
        float sum[T][2];
        down_slice<TYPE, T>(&w, p, first, n, terms, &h, sum);
        park<T>(sum, n, product + (slice * n_pairs + first) * TILE_ROWS);
    }
    int row = i / TILE_ROWS, d = first_row + i % TILE_ROWS;
    int is_mine = row < p.a.n && d < p.a.dim;
    float shared = 0; /* while others come */
    if (is_mine && !p.n_shared) shared = p.a.shared[(int64_t)row * p.a.dim + d];
    float gate = is_mine ? p.a.shared_gate[row] : 0;
    __syncthreads();
    for (int k = i; k < n_pairs * TILE_ROWS; k += n_threads)
        product[k] = sum_slices(product + k, n_pairs * TILE_ROWS, n_slices);
    __syncthreads();
    if (!is_mine) return;
    float sum = 0;
    for (int c = row * p.a.n_top; c < (row + 1) * p.a.n_top; c++) {
        Choice of = choice[c];
        sum = fmaf(of.weight, product[of.pair * TILE_ROWS + i % TILE_ROWS], sum);
    }
    if (p.n_shared) shared = product[(p.a.n * p.a.n_top) * TILE_ROWS + i]; /* row's pair */
    p.a.out[(int64_t)row * p.a.dim + d] = fmaf(sigmoid(gate), shared, sum);
}

#endif
