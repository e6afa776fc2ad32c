/*
 * linear_wgmma.h: y = x W' in FP8 by warpgroups, on Hopper, for more rows of x than decoding has;
 * for linear.cu.
 *
 * A block has a tile, 128 rows of a matrix and 64 of x, by gemm_wgmma.h; the tiles of all matrices
 * are one grid. An SM has one block at a time, so tiles come in rounds of 132, the last of which
 * may be almost empty. Where that takes less, a block has one slice of k of a tile, and a second
 * kernel adds the slices up in their order, as the sum is defined.
 *
 * Bytes: W once for each 64 rows of x, and x, four bytes a value, once for each tile, from L2.
 * Reckoned by gemm_wgmma.h's 1.2 us a k-block and round, 64 rows on an H200: 34816 x 5120 150 us,
 * 5120 x 17408 77 in slices and 165 without; not measured.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_WGMMA_H
#define OFFSHOOT_KERNELS_LINEAR_WGMMA_H

#include "kernels/gemm_wgmma.h"
#include "kernels/linear_launch.h"

enum {
    SUM_ROWS = TILE_THREADS * 4 / WG_W_ROWS, /* of x, a block that adds slices up */
    /* What decides about slices, in the time that an SM takes for a k-block, a microsecond: */
    WG_START = 2,            /* a block's first k-block; a launch */
    WG_PART_LOG_FLOATS = 19, /* of slices, written and read by all SMs */
};

/*
 * How the terms of x lie for n rows of it: by row where all matrices of the type are multiplied
 * here.
 */
static TermOrder order_of(const CudaContext *c, WeightType type, const LinearTerms &a, int n)
{
    if (type != WEIGHT_FP8 || n < WG_MIN_ROWS || !can_wgmma(c)) return TERMS_BY_LANE;
    for (int i = 0; i < a.n_matrices; i++)
        if (a.matrix[i].w.type == type && !weight_is_aligned(a.matrix[i].w)) return TERMS_BY_LANE;
    return TERMS_BY_ROW;
}

/* Where tile `tile` of a launch is. */
typedef struct {
    const Matrix &of;
    int first_row, first, n_x; /* of W, and rows [first, first + n_x) of x */
} LinearTile;

static __device__ __forceinline__ LinearTile linear_tile(const LinearTerms &a, int tile)
{
    unsigned own, n_groups = (unsigned)a.n_groups;
    const Matrix &of = matrix_of(a, (unsigned)tile, &own);
    int first = (int)(own % n_groups) * GEMM_X, left = a.n - first;
    return LinearTile{of, (int)(own / n_groups) * WG_W_ROWS, first, left < GEMM_X ? left : GEMM_X};
}

/* Rows of x that a tile has at most. */
SHARED_INLINE int most_x(const LinearTerms &a)
{
    return a.n < GEMM_X ? a.n : GEMM_X;
}

/* Slices of a tile lie as [K_SLICES][most_x][WG_W_ROWS]: the floats of one. */
SHARED_INLINE int64_t slice_floats(const LinearTerms &a)
{
    return (int64_t)most_x(a) * WG_W_ROWS;
}

/* For wgmma_one_tile: all of a tile, or slice number `slice` of it. */
template <int TERMS> struct LinearTiles {
    const LinearTerms &a;
    int slice;
    __device__ WgmmaTile open(int id, WgmmaSource *of) const
    {
        const LinearTile at = linear_tile(a, id);
        WgmmaTile tile = wgmma_open(at.of.w, at.first_row, at.first, at.n_x, of);
        tile.own = id;
        return tile;
    }
    __device__ void finish(const WgmmaTile &tile, const float (&sum)[WG_OWN][2]) const
    {
        if (a.part) {
            float *to = a.part + ((int64_t)tile.own * K_SLICES + slice) * slice_floats(a);
            wgmma_store<TERMS>(tile, sum, to - tile.first[0], WG_W_ROWS);
        } else {
            const LinearTile at = linear_tile(a, tile.own);
            wgmma_store<TERMS>(tile, sum, at.of.y + at.first * at.of.y_stride, at.of.y_stride);
        }
    }
};

/* A block a tile, or a slice of one. */
template <int TERMS>
static __global__ void __launch_bounds__(TILE_THREADS, 1) linear_wgmma_kernel(LinearTerms a)
{
    WGMMA_SHARED(unsigned char, stages);
    int n_slices = a.part ? +K_SLICES : 1, id = (int)blockIdx.x, slice = id % n_slices;
    int of_slice = K_SLICES / n_slices * slice;
    int begin = slice_begin(a.x.n_blocks, of_slice);
    int end = slice_begin(a.x.n_blocks, of_slice + K_SLICES / n_slices);
    wgmma_one_tile<TERMS>(LinearTiles<TERMS>{a, slice}, id / n_slices, begin, end, a.x, stages);
}

/* A block per tile and SUM_ROWS of its rows of x, four neighbours of W a thread. */
static __global__ void add_slices_kernel(LinearTerms a, int n_parts)
{
    grid_wait();
    int tile = (int)blockIdx.x / n_parts, i = (int)threadIdx.x * 4;
    int m = (int)blockIdx.x % n_parts * SUM_ROWS + i / WG_W_ROWS;
    const LinearTile at = linear_tile(a, tile);
    if (m >= at.n_x) return;
    const int64_t stride = slice_floats(a);
    const float *part = a.part + tile * K_SLICES * stride + m * WG_W_ROWS + i % WG_W_ROWS;
    float sum[4] = {};
    UNROLL
    for (int s = 0; s < K_SLICES; s++) {
        float4 four = *(const float4 *)(const void *)(part + s * stride);
        sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
    }
    int row = at.first_row + i % WG_W_ROWS;
    float *y = at.of.y + (at.first + m) * at.of.y_stride + row;
    UNROLL
    for (int k = 0; k < 4; k++)
        if (row + k < at.of.w.rows) y[k] = sum[k];
}

/* What blocks of k_blocks each take, a round of one for each SM after the other. */
static int rounds_take(int n_blocks, int k_blocks)
{
    return (n_blocks + WG_BLOCKS - 1) / WG_BLOCKS * (WG_START + k_blocks);
}

/* 1 where a launch of slices, with one that adds them up, takes less than one of whole tiles. */
static int slices_pay(int n_tiles, int n_blocks, int64_t floats)
{
    if (n_blocks < K_SLICES) return 0; /* some would be empty */
    int sums = WG_START + (int)(floats >> WG_PART_LOG_FLOATS);
    int slices = rounds_take(n_tiles * K_SLICES, (n_blocks + K_SLICES - 1) / K_SLICES);
    return slices + sums < rounds_take(n_tiles, n_blocks);
}

/* Behind what terms of x take of the scratch: room for the slices of n_tiles, where they are to be
 * cut; else NULL. */
static float *room_for_slices(const CudaContext *c, const LinearTerms &a, int n_tiles)
{
    size_t of_x = terms_bytes(a.n, a.matrix[0].w.cols);
    size_t floats = (size_t)n_tiles * K_SLICES * (size_t)slice_floats(a);
    if (!slices_pay(n_tiles, a.x.n_blocks, (int64_t)floats)) return NULL;
    if (of_x + floats * sizeof(float) > c->scratch_bytes) return NULL;
    return (float *)(void *)(c->scratch + of_x);
}

/* Matrices in FP8, whose x lies by row. */
static void launch_wgmma(const CudaContext *c, LinearTerms a)
{
    a.n_groups = (a.n + GEMM_X - 1) / GEMM_X;
    int n_tiles = (int)place_tiles(&a, WG_W_ROWS);
    a.part = room_for_slices(c, a, n_tiles);
    unsigned blocks = (unsigned)n_tiles * (a.part ? +K_SLICES : 1);
    if (a.prefill == PREFILL_FP8)
        launch(c, dim3(blocks), TILE_THREADS, WgmmaStage<1>::ALL_BYTES, linear_wgmma_kernel<1>, a);
    else
        launch(c, dim3(blocks), TILE_THREADS, WgmmaStage<2>::ALL_BYTES, linear_wgmma_kernel<2>, a);
    if (!a.part) return;
    int n_parts = (most_x(a) + SUM_ROWS - 1) / SUM_ROWS;
    launch(c, dim3((unsigned)(n_tiles * n_parts)), TILE_THREADS, 0, add_slices_kernel, a, n_parts);
}

#endif
