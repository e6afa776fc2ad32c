/*
 * linear_tile.h: 16 rows of a matrix times some rows of x, by one warp; for linear.cu and moe.cu.
 *
 * One mma.m16n8k16 takes 16 rows of W as they lie in memory and 8 columns, two for each of 4 rows
 * of x: its high and its low 16-bit term (terms.h).
 *
 * The sum of one output, whatever else a warp computes and however warps share the work:
 *     t(b)  = the products of k in [128 b, 128 b + 128), by 8 mma, each over 16 k's
 *     p(s)  = high + low of  sum_b scale(b) unit(b) t(b), b ascending in slice s; 8 slices cut by
 *             cols alone (bf16: without scale and unit)
 *     y     = sum_s p(s), s ascending
 * A column of an mma depends on the same column of B alone, so neither T nor the rows in other
 * columns show in it. Which k's meet in an mma is fixed too: a lane takes 16 bytes of a row of W
 * and what lies beside them in x, so W needs no packing.
 *
 * Against the definition, with |x - high - low| <= 2^-17 |x| (bf16) or 2^-23 |x| + 2^-38 times the
 * largest |x| of the block (fp16): |error| <= (2^-17 + (128 + blocks + 8) 2^-24) sum |x w|, as if
 * each product were rounded on its own; a tensor core rounds once per mma.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_TILE_H
#define OFFSHOOT_KERNELS_LINEAR_TILE_H

#include "kernels/simt_copy.h"
#include "kernels/terms.h"

enum {
    TILE_ROWS = 16,       /* of W */
    TILE_COLUMN_ROWS = 4, /* of x, in 8 columns */
    K_STEPS = K_BLOCK / 16,
    K_SLICES = 8,
    TILE_THREADS = 256,
    TILE_WARPS = TILE_THREADS / WARP,
};

/* Two blocks share an SM, so that one loads while the other adds up, where registers allow. */
template <int T> static constexpr int TILE_BLOCKS = T <= 2 ? 2 : 1;

/* Of n things in parts of up to `most`, as even as they get, how many the largest part has; of n
 * things among up to `most`, how many of these have any where all have about as many. */
static int even_part(int n, int most)
{
    int parts = (n + most - 1) / most;
    return parts ? (n + parts - 1) / parts : 0;
}

/* ---- splitting x ---- */

typedef struct {
    const float
        *x; /* rows of cols floats, x_stride apart; may be out.data, blocks in their places */
    int64_t x_stride;
    int n, cols;
    Terms out;
    int prefill; /* backend.h */
    TermOrder order;
} Split;

/* Block `block` of those that split x: a warp per 128 of a row. */
template <WeightType TYPE, TermOrder ORDER>
static __device__ void split_part_in(const Split &a, unsigned block)
{
    int64_t unit = (int64_t)block * TILE_WARPS + threadIdx.x / WARP, row = unit / a.out.n_blocks;
    int b = (int)(unit % a.out.n_blocks);
    if (row >= a.n) return;
    if (TYPE == WEIGHT_FP8 && a.prefill == PREFILL_FP8)
        split_block<TYPE, ORDER, PREFILL_FP8>(a.out, row, b, a.x + row * a.x_stride, a.cols);
    else
        split_block<TYPE, ORDER>(a.out, row, b, a.x + row * a.x_stride, a.cols);
}

template <WeightType TYPE> static __device__ void split_part(const Split &a, unsigned block)
{
    if (TYPE == WEIGHT_FP8 && a.order == TERMS_BY_ROW)
        split_part_in<WEIGHT_FP8, TERMS_BY_ROW>(a, block);
    else
        split_part_in<TYPE, TERMS_BY_LANE>(a, block);
}

template <WeightType TYPE> static __global__ void split_kernel(Split a)
{
    grid_wait();
    split_part<TYPE>(a, blockIdx.x);
}

static unsigned split_parts(const Split &a)
{
    return (unsigned)(((int64_t)a.n * a.out.n_blocks + TILE_WARPS - 1) / TILE_WARPS);
}

static void split_rows(const CudaContext *c, WeightType type, const Split &a)
{
    launch(c, dim3(split_parts(a)), TILE_THREADS, 0,
           type == WEIGHT_FP8 ? split_kernel<WEIGHT_FP8> : split_kernel<WEIGHT_BF16>, a);
}

/* ---- the tile ---- */

/* A lane's two of the 16 rows; a row past the last reads as the last, and is not stored. */
typedef struct {
    const unsigned char *first, *second; /* rows g and g + 8, g = lane / 4 */
    const float *scale;                  /* FP8: of k-blocks 0, 1, ... */
    int cols;
    int aligned; /* 16 bytes of a row can be loaded at once */
} TileWeight;

SHARED_INLINE int weight_is_aligned(const Weight &w)
{
    return ((uintptr_t)w.data | (uintptr_t)weight_row_bytes(&w)) % 16 == 0;
}

static __device__ __forceinline__ TileWeight tile_weight(const Weight &w, int first_row)
{
    int g = warp_lane() / 4, last = w.rows - 1;
    int first = first_row + g < last ? first_row + g : last;
    int second = first_row + g + 8 < last ? first_row + g + 8 : last;
    int64_t row_bytes = weight_row_bytes(&w);
    const unsigned char *data = (const unsigned char *)w.data;
    TileWeight t = {data + first * row_bytes, data + second * row_bytes, NULL, w.cols, 0};
    t.aligned = weight_is_aligned(w);
    if (w.type == WEIGHT_FP8 && w.scale)
        t.scale =
            w.scale + (int64_t)(first_row / FP8_BLOCK) * ((w.cols + FP8_BLOCK - 1) / FP8_BLOCK);
    return t;
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A lane's part of a k-block: pieces of 16 bytes of both rows. */
template <WeightType TYPE> struct WeightBlock {
    enum { PIECES = TYPE == WEIGHT_FP8 ? 2 : 4, PIECE_K = TYPE == WEIGHT_FP8 ? 16 : 8 };
    uint4 first[PIECES], second[PIECES];
};

/* 16 bytes from k on, element by element; 0 past the last. */
template <WeightType TYPE>
static __device__ uint4 gather_16(const unsigned char *row, int k, int cols)
{
    uint32_t word[4] = {0, 0, 0, 0};
    UNROLL
    for (int i = 0; i < WeightBlock<TYPE>::PIECE_K; i++) {
        if (k + i >= cols) continue;
        if (TYPE == WEIGHT_FP8)
            word[i / 4] |= (uint32_t)row[k + i] << i % 4 * 8;
        else
            word[i / 2] |= (uint32_t)((const uint16_t *)(const void *)row)[k + i] << i % 2 * 16;
    }
    return uint4{word[0], word[1], word[2], word[3]};
}

template <WeightType TYPE, int ALIGNED>
static __device__ __forceinline__ uint4 load_piece(const unsigned char *row, int k, int cols)
{
    if (!ALIGNED) return gather_16<TYPE>(row, k, cols);
    if (k >= cols) return uint4{0, 0, 0, 0}; /* aligned rows are whole pieces */
    return load_16_once(row + (TYPE == WEIGHT_FP8 ? k : k * 2));
}

template <WeightType TYPE, int ALIGNED>
static __device__ __forceinline__ void load_block(const TileWeight &w, int block,
                                                  WeightBlock<TYPE> *out)
{
    typedef WeightBlock<TYPE> B;
    UNROLL
    for (int i = 0; i < B::PIECES; i++) {
        int k = block * K_BLOCK + (i * 4 + warp_lane() % 4) * B::PIECE_K;
        out->first[i] = load_piece<TYPE, ALIGNED>(w.first, k, w.cols);
        out->second[i] = load_piece<TYPE, ALIGNED>(w.second, k, w.cols);
    }
}

/* Of a block that the lane has copied to shared memory, piece by piece, WARP pieces apart: those of
 * its first row, then of its second. A copy to the same place may begin right after. */
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

/* The A fragments of the block's 8 steps. */
template <WeightType TYPE>
static __device__ __forceinline__ void fragments(const WeightBlock<TYPE> &b,
                                                 uint32_t (&a)[K_STEPS][4])
{
    UNROLL
    for (int s = 0; s < K_STEPS; s++) {
        if (TYPE == WEIGHT_FP8) {
            fp8_to_fp16_pairs(word_of(b.first[s / 4], s % 4), &a[s][0], &a[s][2]);
            fp8_to_fp16_pairs(word_of(b.second[s / 4], s % 4), &a[s][1], &a[s][3]);
        } else {
            a[s][0] = word_of(b.first[s / 2], s % 2 * 2);
            a[s][1] = word_of(b.second[s / 2], s % 2 * 2);
            a[s][2] = word_of(b.first[s / 2], s % 2 * 2 + 1);
            a[s][3] = word_of(b.second[s / 2], s % 2 * 2 + 1);
        }
    }
}

/* The B fragments of the block's 8 steps, two in a piece. */
typedef struct {
    uint4 piece[K_STEPS / 2];
} TermBlock;

/* Of the tile of x whose terms of this lane's column begin at x. */
static __device__ __forceinline__ TermBlock load_terms(const unsigned char *x)
{
    TermBlock b;
    UNROLL
    for (int i = 0; i < K_STEPS / 2; i++)
        b.piece[i] = load_16(x + i * 128);
    return b;
}

/* acc += scale * (the block times one tile of x). */
template <WeightType TYPE>
static __device__ __forceinline__ void
block_product(const uint32_t (&a)[K_STEPS][4], const TermBlock &x, float scale, float (&acc)[4])
{
    float t[4] = {0, 0, 0, 0};
    UNROLL
    for (int s = 0; s < K_STEPS; s++) {
        const uint4 &b = x.piece[s / 2];
        uint32_t bs[2] = {word_of(b, s % 2 * 2), word_of(b, s % 2 * 2 + 1)};
        if (TYPE == WEIGHT_FP8)
            mma_fp16(t, a[s], bs);
        else
            mma_bf16(t, a[s], bs);
    }
    UNROLL
    for (int i = 0; i < 4; i++)
        acc[i] = TYPE == WEIGHT_FP8 ? fmaf(scale, t[i], acc[i]) : acc[i] + t[i];
}

/* High and low terms' sums together. */
template <int T>
static __device__ __forceinline__ void add_terms(const float (&acc)[T][4], float (&sum)[T][2])
{
    UNROLL
    for (int j = 0; j < T; j++) {
        sum[j][0] = acc[j][0] + acc[j][1];
        sum[j][1] = acc[j][2] + acc[j][3];
    }
}

/* Where a lane's column of tile j begins in the terms: row `row` of x, in pieces of 16 bytes. */
static __device__ __forceinline__ uint32_t term_offset(const Terms &x, int row)
{
    int g = warp_lane() / 4, l = warp_lane() % 4;
    return (uint32_t)row * (uint32_t)(x.n_blocks * (TERM_BLOCK_BYTES / 16)) +
           (uint32_t)(g % 2 * 4 + l);
}

/* Beside FP8 weights the unit of a block of x's row 4j + lane % 4, in which this lane's sums are;
 * at: term_offset of row 4j + lane / 8. All lanes call it. */
template <WeightType TYPE>
static __device__ __forceinline__ float block_unit(const Terms &x, uint32_t at, int block)
{
    if (TYPE != WEIGHT_FP8) return 1;
    uint32_t first = warp_shuffle(at, warp_lane() % 4 * 8); /* whose own part is 0 */
    return x.unit[first / (TERM_BLOCK_BYTES / 16) + (uint32_t)block];
}

/* The first k-block of a slice. */
static __device__ __forceinline__ int slice_begin(int n_blocks, int slice)
{
    return n_blocks * slice / K_SLICES;
}

/*
 * sum += p(s) for s in [slice, slice_end): with g = lane / 4 and l = lane % 4, sum[j][0] is row g
 * of W and sum[j][1] row g + 8, for row 4j + l of x. at[j]: term_offset of x's row 4j + g / 2 for
 * this lane; tiles from n_tiles on are left out. Weights are loaded a block ahead. WAIT: it is here
 * that the kernel calls grid_wait, so that its first weights come while the launch before it still
 * runs.
 */
template <WeightType TYPE, int T, int ALIGNED, int WAIT>
static __device__ __forceinline__ void tile_sum_as(const TileWeight &w, const Terms &x,
                                                   const uint32_t (&at)[T], int n_tiles, int slice,
                                                   int slice_end, float (&sum)[T][2])
{
    int b = slice_begin(x.n_blocks, slice), end = slice_begin(x.n_blocks, slice_end);
    if (b == end) {
        if (WAIT) grid_wait();
        return;
    }
    float acc[T][4] = {}, next_scale = TYPE == WEIGHT_FP8 ? w.scale[b] : 1;
    uint32_t a[K_STEPS][4];
    WeightBlock<TYPE> next;
    load_block<TYPE, ALIGNED>(w, b, &next);
    if (WAIT) grid_wait();
    for (; b < end; b++) {
        float scale = next_scale;
        fragments<TYPE>(next, a);
        if (b + 1 < end) {
            load_block<TYPE, ALIGNED>(w, b + 1, &next);
            if (TYPE == WEIGHT_FP8) next_scale = w.scale[b + 1];
        }
        UNROLL
        for (int j = 0; j < T; j++) {
            if (j >= n_tiles) continue;
            float unit = block_unit<TYPE>(x, at[j], b);
            const unsigned char *terms = x.data + (size_t)at[j] * 16 + (size_t)b * TERM_BLOCK_BYTES;
            block_product<TYPE>(a, load_terms(terms), scale * unit, acc[j]);
        }
        while (slice_begin(x.n_blocks, slice + 1) <= b)
            slice++;
        if (slice_begin(x.n_blocks, slice + 1) > b + 1) continue;
        UNROLL
        for (int j = 0; j < T; j++) {
            sum[j][0] += acc[j][0] + acc[j][1];
            sum[j][1] += acc[j][2] + acc[j][3];
            acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
        }
    }
}

template <WeightType TYPE, int T, int WAIT = 0>
static __device__ __forceinline__ void tile_sum(const TileWeight &w, const Terms &x,
                                                const uint32_t (&at)[T], int n_tiles, int slice,
                                                int slice_end, float (&sum)[T][2])
{
    if (w.aligned)
        tile_sum_as<TYPE, T, 1, WAIT>(w, x, at, n_tiles, slice, slice_end, sum);
    else
        tile_sum_as<TYPE, T, 0, WAIT>(w, x, at, n_tiles, slice, slice_end, sum);
}

/* ---- partial sums in shared memory: [4 T rows of x][16 rows of W] floats ---- */

template <int T>
static __device__ __forceinline__ void store_tile(const float (&sum)[T][2], int n_tiles, float *out)
{
    int g = warp_lane() / 4, l = warp_lane() % 4;
    UNROLL
    for (int j = 0; j < T; j++) {
        if (j >= n_tiles) continue;
        out[(j * TILE_COLUMN_ROWS + l) * TILE_ROWS + g] = sum[j][0];
        out[(j * TILE_COLUMN_ROWS + l) * TILE_ROWS + g + 8] = sum[j][1];
    }
}

/* Partial sums of slices, `stride` floats apart, as tile_sum adds them. */
static __device__ __forceinline__ float sum_slices(const float *part, int stride,
                                                   int n_slices = K_SLICES)
{
    float sum = 0;
    for (int s = 0; s < n_slices; s++)
        sum += part[s * stride];
    return sum;
}

#endif
