/*
 * moe_plan.h: which rows go to which expert, as the kernels of moe.cu see it.
 */
#ifndef OFFSHOOT_KERNELS_MOE_PLAN_H
#define OFFSHOOT_KERNELS_MOE_PLAN_H

#include "kernels/block_scan.h"
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

/* Rows of a part of a plan that several blocks make. */
enum { PLAN_ROWS = 256 };

/* What the kernels of a group share. */
typedef struct {
    MoeFfn a;
    int unit_rows;     /* a unit has at most */
    Pair *pair;        /* [n * n_top], ascending in expert, then row */
    Unit *unit;        /* [*n_units] of [n * n_top] */
    int32_t *n_units;  /* [1] */
    uint32_t *tickets; /* [2], of `up` and `down` */
    Terms x, h;        /* of rows; of pairs, in their order */
    int32_t *place;    /* [n * n_top]: of each choice, its pair */
    int n_parts;       /* blocks that make the plan: one, or one for each PLAN_ROWS rows */
    int32_t *counts;   /* [n_parts][n_experts] where they are several: a part's pairs of each */
    float *y;          /* [n * n_top][dim]: down h of each pair, in their order; prompts only */
} Plan;

/* Bits of n words, `stride` words apart. */
static __device__ int count_bits(const uint32_t *word, int stride, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += __popc(word[i * stride]);
    return count;
}

/* A block's rows, and a bit for each and each expert: [words of rows][n_experts], so that threads
 * that count the bits of neighbours meet no bank twice. */
typedef struct {
    int part, first, n;
    uint32_t *chosen;
} PlanPart;

SHARED_INLINE int bit_words(int n_rows)
{
    return (n_rows + 31) / 32;
}

/* The part with its bits; shared: those, and a word per expert. */
static __device__ PlanPart open_part(const Plan &p, int part, uint32_t *shared)
{
    int first = part * PLAN_ROWS, n = p.a.n - first, n_top = p.a.n_top;
    if (p.n_parts > 1 && n > PLAN_ROWS) n = PLAN_ROWS;
    for (int i = (int)threadIdx.x; i < p.a.n_experts * bit_words(n); i += TILE_THREADS)
        shared[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n * n_top; i += TILE_THREADS) {
        int row = i / n_top, id = p.a.id[first * n_top + i];
        atomicOr(&shared[row / 32 * p.a.n_experts + id], 1u << row % 32);
    }
    __syncthreads();
    return PlanPart{part, first, n, shared};
}

static __device__ __forceinline__ int part_count(const Plan &p, const PlanPart &own, int expert)
{
    return count_bits(own.chosen + expert, p.a.n_experts, bit_words(own.n));
}

/* An expert's pairs in all parts; *before: in those before this one. */
static __device__ int all_count(const Plan &p, const PlanPart &own, int expert, int *before)
{
    int all = 0;
    *before = 0;
    if (p.n_parts == 1) return part_count(p, own, expert);
    for (int part = 0; part < p.n_parts; part++) {
        int n = p.counts[part * p.a.n_experts + expert];
        if (part < own.part) *before += n;
        all += n;
    }
    return all;
}

/* Where each expert's first pair of this part goes, in the shared words behind the bits; the first
 * part also cuts all pairs into units. */
static __device__ void find_starts(const Plan &p, const PlanPart &own, int32_t *start)
{
    int pairs = 0, units = 0; /* of lower experts */
    for (int e0 = 0; e0 < p.a.n_experts; e0 += TILE_THREADS) {
        int e = e0 + (int)threadIdx.x, n = 0, before = 0, n_pairs, n_units;
        if (e < p.a.n_experts) n = all_count(p, own, e, &before);
        int first = pairs + block_sum_below<TILE_THREADS>(n, &n_pairs);
        int unit =
            units + block_sum_below<TILE_THREADS>((n + p.unit_rows - 1) / p.unit_rows, &n_units);
        if (e < p.a.n_experts) start[e] = first + before;
        for (int i = 0; i < n && own.part == 0; i += p.unit_rows)
            p.unit[unit++] = Unit{e, first + i, n - i < p.unit_rows ? n - i : p.unit_rows};
        pairs += n_pairs, units += n_units;
    }
    if (own.part == 0 && threadIdx.x == 0) *p.n_units = units, p.tickets[0] = p.tickets[1] = 0;
    __syncthreads();
}

/* Puts this part's pairs into their order. */
static __device__ void place_part(const Plan &p, const PlanPart &own)
{
    int n_experts = p.a.n_experts, n_top = p.a.n_top;
    int32_t *start = (int32_t *)(own.chosen + n_experts * bit_words(own.n));
    find_starts(p, own, start);
    for (int i = (int)threadIdx.x; i < own.n * n_top; i += TILE_THREADS) {
        int row = i / n_top, choice = own.first * n_top + i, id = p.a.id[choice];
        const uint32_t *word = own.chosen + id;
        uint32_t lower = word[row / 32 * n_experts] & ((1u << row % 32) - 1);
        int at = start[id] + count_bits(word, n_experts, row / 32) + __popc(lower);
        p.pair[at] = Pair{own.first + row, p.a.weight[choice]};
        p.place[choice] = at;
    }
}

/* The first half of a part's work, or all of it where there is no other part. */
static __device__ void begin_part(const Plan &p, int part, uint32_t *shared)
{
    PlanPart own = open_part(p, part, shared);
    if (p.n_parts == 1) {
        place_part(p, own);
        return;
    }
    for (int e = (int)threadIdx.x; e < p.a.n_experts; e += TILE_THREADS)
        p.counts[part * p.a.n_experts + e] = part_count(p, own, e);
}

/* The plan, or what its parts count, beside the terms of x: neither needs the other. */
template <WeightType TYPE> static __global__ void begin_kernel(Plan p, Split x)
{
    grid_wait();
    DYNAMIC_SHARED(uint32_t, shared);
    if ((int)blockIdx.x < p.n_parts)
        begin_part(p, (int)blockIdx.x, shared);
    else
        split_part<TYPE>(x, blockIdx.x - (unsigned)p.n_parts);
}

/* A block per part, where there are several. */
static __global__ void place_kernel(Plan p)
{
    grid_wait();
    DYNAMIC_SHARED(uint32_t, shared);
    place_part(p, open_part(p, (int)blockIdx.x, shared));
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
