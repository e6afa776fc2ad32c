/*
 * moe_plan.h: which rows go to which expert, as the kernels of moe.cu see it.
 */
#ifndef OFFSHOOT_KERNELS_MOE_PLAN_H
#define OFFSHOOT_KERNELS_MOE_PLAN_H

#include "kernels/linear_tile.h"

/* An expert and n of its pairs, from `first` on in the order of pairs. */
typedef struct {
    int32_t expert, first, n;
} Unit;

/* One choice of one row. */
typedef struct {
    int32_t row;
    float weight;
} Pair;

/* What the kernels of a group share. */
typedef struct {
    MoeFfn a;
    int unit_rows;    /* a unit has at most */
    Pair *pair;       /* [n * n_top], ascending in expert, then row */
    Unit *unit;       /* [*n_units] of [n * n_top] */
    int32_t *n_units; /* [1] */
    Terms x, h;       /* of rows; of pairs, in their order */
    int32_t *place;   /* [n * n_top]: of each choice, its pair */
    float *y;         /* [n * n_top][dim]: down h of each pair, in their order; prompts only */
} Plan;

/* The sum of x over lower threads of the block; *total over all. */
static __device__ int block_prefix(int x, int *total)
{
    __shared__ int part[TILE_WARPS];
    int lane = warp_lane(), warp = (int)threadIdx.x / WARP, sum = x;
    for (int d = 1; d < WARP; d *= 2) {
        int below = (int)warp_shuffle((uint32_t)sum, (lane - d) & (WARP - 1));
        if (lane >= d) sum += below;
    }
    if (lane == WARP - 1) part[warp] = sum;
    __syncthreads();
    int before = 0;
    *total = 0;
    for (int w = 0; w < TILE_WARPS; w++) {
        if (w < warp) before += part[w];
        *total += part[w];
    }
    __syncthreads();
    return before + sum - x;
}

/* Bits of n words, `stride` words apart. */
static __device__ int count_bits(const uint32_t *word, int stride, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += __popc(word[i * stride]);
    return count;
}

/*
 * One block's work. Shared: a bit per row and expert, [words of rows][n_experts], so that threads
 * that count the bits of neighbours meet no bank twice; then the place of each expert's first pair.
 */
static __device__ void make_plan(const Plan &p, uint32_t *chosen)
{
    int n_words = (p.a.n + 31) / 32, n_pairs = p.a.n * p.a.n_top;
    uint32_t *start = chosen + p.a.n_experts * n_words;
    for (int i = (int)threadIdx.x; i < p.a.n_experts * n_words; i += TILE_THREADS)
        chosen[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_pairs; i += TILE_THREADS) {
        int row = i / p.a.n_top;
        atomicOr(&chosen[row / 32 * p.a.n_experts + p.a.id[i]], 1u << row % 32);
    }
    __syncthreads();

    int pairs = 0, units = 0; /* of lower experts */
    for (int e0 = 0; e0 < p.a.n_experts; e0 += TILE_THREADS) {
        int e = e0 + (int)threadIdx.x, n = 0, all;
        if (e < p.a.n_experts) n = count_bits(chosen + e, p.a.n_experts, n_words);
        /* both counts in one number: neither reaches 2^15 */
        int below = block_prefix((n + p.unit_rows - 1) / p.unit_rows << 16 | n, &all);
        int first = pairs + (below & 0xffff), unit = units + (below >> 16);
        if (e < p.a.n_experts) start[e] = (uint32_t)first;
        for (int i = 0; i < n; i += p.unit_rows)
            p.unit[unit++] = Unit{e, first + i, n - i < p.unit_rows ? n - i : p.unit_rows};
        pairs += all & 0xffff, units += all >> 16;
    }
    if (threadIdx.x == 0) *p.n_units = units;
    __syncthreads();

    for (int i = (int)threadIdx.x; i < n_pairs; i += TILE_THREADS) {
        int row = i / p.a.n_top;
        const uint32_t *word = chosen + p.a.id[i], own = word[row / 32 * p.a.n_experts];
        int rank = count_bits(word, p.a.n_experts, row / 32) + __popc(own & ((1u << row % 32) - 1));
        int at = (int)start[p.a.id[i]] + rank;
        p.pair[at] = Pair{row, p.a.weight[i]};
        p.place[i] = at;
    }
}

/* The plan beside the terms of x: neither needs the other. */
template <WeightType TYPE> static __global__ void begin_kernel(Plan p, Split x)
{
    grid_wait();
    DYNAMIC_SHARED(uint32_t, chosen);
    if (blockIdx.x == 0)
        make_plan(p, chosen);
    else
        split_part<TYPE>(x, blockIdx.x - 1);
}

SHARED_INLINE int row_tiles(int rows)
{
    return (rows + TILE_ROWS - 1) / TILE_ROWS;
}

SHARED_INLINE int column_tiles(int n)
{
    return (n + TILE_COLUMN_ROWS - 1) / TILE_COLUMN_ROWS;
}

/* This lane's columns of a unit's tiles, the rows of x; past the last pair: as the last. */
template <int T>
static __device__ __forceinline__ void unit_offsets(const Plan &p, const Unit &u, int of_rows,
                                                    uint32_t (&at)[T])
{
    UNROLL
    for (int j = 0; j < T; j++) {
        int i = j * TILE_COLUMN_ROWS + warp_lane() / 8;
        i = u.first + (i < u.n ? i : u.n - 1);
        at[j] = of_rows ? term_offset(p.x, p.pair[i].row) : term_offset(p.h, i);
    }
}

#endif
