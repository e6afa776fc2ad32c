/*
 * moe_few_plan.h: the plan of up to 16 rows, of which an expert's are one unit; for moe.cu.
 *
 * One block routes the rows and makes the plan of what they chose. What comes after needs of a unit
 * where its weights are and which rows have chosen it: it finds both in one place, so that its
 * first weights are one trip to memory away, not three. The logits may be made in the same launch
 * (moe_few_router.h), or were made before it.
 */
#ifndef OFFSHOOT_KERNELS_MOE_FEW_PLAN_H
#define OFFSHOOT_KERNELS_MOE_FEW_PLAN_H

#include "kernels/moe_plan.h"
#include "kernels/moe_route.h"

enum { ROW_BITS = 4 }; /* of a row's number: MOE_FEW_ROWS are 16 */

enum { MATRIX_GATE, MATRIX_UP, MATRIX_DOWN, N_MATRICES };

/* What a walk needs of a matrix, as it lies in a Weight. */
typedef struct {
    const unsigned char *data;
    const float *scale;
} FewMatrix;
static_assert(sizeof(FewMatrix) == 16 && sizeof(Weight) % 16 == 0 &&
                  offsetof(Weight, data) % 16 == 0 &&
                  offsetof(Weight, scale) == offsetof(Weight, data) + sizeof(void *),
              "one copy of 16 bytes");

/* What another launch made, read by load_fresh. */
static __device__ __forceinline__ FewMatrix fresh_matrix(const FewMatrix *m)
{
    const uint64_t *word = (const uint64_t *)(const void *)m;
    uint64_t data = load_fresh(word), scale = load_fresh(word + 1);
    return FewMatrix{(const unsigned char *)(uintptr_t)data, (const float *)(uintptr_t)scale};
}

/* An expert and its rows, n pairs from `first` on. */
typedef struct {
    FewMatrix matrix[N_MATRICES];
    uint64_t rows; /* ROW_BITS each, ascending, the first lowest */
    int32_t first, n;
} FewUnit;

/* One choice of one row, for the sum over its experts. */
typedef struct {
    int32_t pair;
    float weight;
} Choice;

/*
 * What the kernels of few rows share. Pairs (row, choice) are ascending in expert, then row; after
 * them one for each row and the shared expert, where it is a unit: the first.
 */
typedef struct {
    MoeFfn a;
    int n_shared;     /* units of the shared expert: 1, or 0 where its output is given */
    FewUnit *unit;    /* [*n_units] of [few_units()] */
    int32_t *n_units; /* [1] */
    Choice *choice;   /* [n * n_top] */
    Terms x;          /* of rows */
    float *h;         /* [pairs][width] */
} FewPlan;

SHARED_INLINE int few_pairs(const FewPlan &p)
{
    return p.a.n * (p.a.n_top + p.n_shared);
}

/* At most. */
SHARED_INLINE int few_units(const FewPlan &p)
{
    int n_pairs = p.a.n * p.a.n_top;
    return (n_pairs < p.a.n_experts ? n_pairs : p.a.n_experts) + p.n_shared;
}

static __device__ __forceinline__ FewMatrix few_matrix(const Weight &w)
{
    return FewMatrix{(const unsigned char *)w.data, w.scale};
}

/* The numbers of the rows whose bits are set. */
static __device__ uint64_t pack_rows(uint32_t chosen)
{
    uint64_t rows = 0;
    for (int i = 0; chosen; i++, chosen &= chosen - 1)
        rows |= (uint64_t)(__ffs((int)chosen) - 1) << i * ROW_BITS;
    return rows;
}

static __device__ void put_shared_unit(const FewPlan &p)
{
    const MoeExpert &e = p.a.shared_expert;
    *p.unit = FewUnit{{few_matrix(e.gate), few_matrix(e.up), few_matrix(e.down)},
                      pack_rows((1u << p.a.n) - 1),
                      p.a.n * p.a.n_top,
                      p.a.n};
}

/* A row's choice in shared memory. */
typedef struct {
    int32_t expert;
    float weight;
} Picked;

/* What the block that makes the plan has in shared memory. */
typedef struct {
    FewMatrix (*matrix)[N_MATRICES]; /* [n_experts] */
    Picked *picked;                  /* [n * n_top] */
    uint32_t *chosen, *start;        /* [n_experts] each: a bit per row; where its pairs begin */
} FewShared;

static __device__ __forceinline__ FewShared few_shared(const MoeFfn &a, uint4 *memory)
{
    FewMatrix(*matrix)[N_MATRICES] = (FewMatrix(*)[N_MATRICES])(void *)memory;
    Picked *picked = (Picked *)(void *)(matrix + a.n_experts);
    uint32_t *chosen = (uint32_t *)(void *)(picked + a.n * a.n_top);
    return FewShared{matrix, picked, chosen, chosen + a.n_experts};
}

static size_t few_shared_bytes(const MoeFfn *a)
{
    size_t each = N_MATRICES * sizeof(FewMatrix) + 2 * sizeof(uint32_t);
    return (size_t)a->n_experts * each + (size_t)(a->n * a->n_top) * sizeof(Picked);
}

/* What can be done before the logits are there: begins to copy where experts' matrices are. */
static __device__ __forceinline__ void begin_few_plan(const MoeFfn &a, const FewShared &s)
{
    for (int e = (int)threadIdx.x; e < a.n_experts; e += TILE_THREADS) {
        s.chosen[e] = 0;
        copy_16(&s.matrix[e][MATRIX_GATE], &a.gate[e].data);
        copy_16(&s.matrix[e][MATRIX_UP], &a.up[e].data);
        copy_16(&s.matrix[e][MATRIX_DOWN], &a.down[e].data);
    }
    copies_commit();
}

/* Routes the rows, a warp each. */
static __device__ __forceinline__ void route_few(const MoeFfn &a, const FewShared &s)
{
    for (int row = (int)threadIdx.x / WARP; row < a.n; row += TILE_WARPS) {
        Route route = route_row(a, row);
        put_route(a, row, route);
        if (warp_lane() >= a.n_top) continue;
        s.picked[row * a.n_top + route.rank] = Picked{(int32_t)route.id, route.weight};
        atomicOr(&s.chosen[route.id], 1u << row);
    }
}

/* One block's work, a thread every TILE_THREADS-th expert. begin_few_plan's copies have come to
 * those who made them, and a barrier has been passed since. */
static __device__ __forceinline__ void make_few_plan(const FewPlan &p, const FewShared &s)
{
    int i = (int)threadIdx.x, n_pairs = p.a.n * p.a.n_top, n_experts = p.a.n_experts;
    route_few(p.a, s);
    __syncthreads();

    int pairs = 0, units = p.n_shared; /* of lower experts */
    for (int e0 = 0; e0 < n_experts; e0 += TILE_THREADS) {
        int e = e0 + i, all;
        uint32_t chosen = e < n_experts ? s.chosen[e] : 0;
        int n = __popc(chosen);
        /* both counts in one number */
        int below = block_sum_below<TILE_THREADS>((n > 0) << 16 | n, &all),
            first = pairs + (below & 0xffff);
        if (e < n_experts) s.start[e] = (uint32_t)first;
        if (n) {
            const FewMatrix *m = s.matrix[e];
            p.unit[units + (below >> 16)] = FewUnit{
                {m[MATRIX_GATE], m[MATRIX_UP], m[MATRIX_DOWN]}, pack_rows(chosen), first, n};
        }
        pairs += all & 0xffff, units += all >> 16;
    }
    if (i == 0) *p.n_units = units;
    if (i == 0 && p.n_shared) put_shared_unit(p);
    __syncthreads();

    for (int c = i; c < n_pairs; c += TILE_THREADS) {
        uint32_t lower = (1u << c / p.a.n_top) - 1; /* rows */
        int e = s.picked[c].expert;
        p.choice[c] = Choice{(int)s.start[e] + __popc(s.chosen[e] & lower), s.picked[c].weight};
    }
}

/* Routing and the plan of logits that are there, beside the terms of x: neither needs the other. */
template <WeightType TYPE> static __global__ void begin_few_kernel(FewPlan p, Split x)
{
    DYNAMIC_SHARED(uint4, memory);
    if (blockIdx.x > 0) {
        grid_wait();
        split_part<TYPE>(x, blockIdx.x - 1);
        return;
    }
    FewShared s = few_shared(p.a, memory);
    begin_few_plan(p.a, s);
    grid_wait();
    copies_wait<0>();
    __syncthreads();
    make_few_plan(p, s);
}

/* This lane's columns of a unit's tiles, as rows of x; past the last: as the last. */
template <int T>
static __device__ __forceinline__ void few_rows(const Terms &x, uint64_t rows, int n,
                                                uint32_t (&at)[T])
{
    UNROLL
    for (int j = 0; j < T; j++) {
        int i = j * TILE_COLUMN_ROWS + warp_lane() / 8;
        i = i < n ? i : n - 1;
        at[j] = term_offset(x, (int)(rows >> i * ROW_BITS) & (MOE_FEW_ROWS - 1));
    }
}

#endif
