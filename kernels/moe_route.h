/*
 * moe_route.h: which experts a row goes to, by one warp; for moe.cu.
 *
 * The row's logits are in registers, as unsigned numbers of the same order; a choice is two
 * reductions over the warp, the best and the lowest of those who have it: some 150 cycles of 256
 * experts, by reckoning. Floor: the logits once.
 */
#ifndef OFFSHOOT_KERNELS_MOE_ROUTE_H
#define OFFSHOOT_KERNELS_MOE_ROUTE_H

#include "kernels/simt.h"

/* A lane's choice of its row: lanes below n_top have one each. */
typedef struct {
    uint32_t id;
    float weight;
    int rank; /* of the id, in the row's ascending ones */
} Route;

/* In the order of logits; NaN is the least, as -INFINITY, and 0 is below all. */
static __device__ __forceinline__ uint32_t logit_key(float x)
{
    uint32_t bits = philox_bits(x == x ? x + 0.0f : -INFINITY); /* + 0: there is one zero */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float key_logit(uint32_t key)
{
    return philox_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Up to 32 SLOTS experts. Lane j keeps the j-th choice. */
template <int SLOTS>
static __device__ __forceinline__ Route route_slots(const float *logit, int n_experts, int n_top,
                                                    int normalise)
{
    int lane = warp_lane();
    float x[SLOTS], max = 0, value = 0, total = 0, kept = 0;
    uint32_t key[SLOTS];
    Route mine = {0xffffffffu, 0, 0};
    UNROLL
    for (int i = 0; i < SLOTS; i++) {
        int e = i * WARP + lane;
        x[i] = e < n_experts ? logit[e] : 0;
        key[i] = e < n_experts ? logit_key(x[i]) : 0;
    }
    for (int j = 0; j < n_top; j++) {
        uint32_t best = 0, id = 0xffffffffu;
        UNROLL
        for (int i = 0; i < SLOTS; i++)
            best = key[i] > best ? key[i] : best;
        best = warp_largest(best);
        UNROLL
        for (int i = SLOTS - 1; i >= 0; i--)
            id = key[i] == best ? (uint32_t)(i * WARP + lane) : id;
        id = warp_smallest(id);
        UNROLL
        for (int i = 0; i < SLOTS; i++)
            key[i] = id == (uint32_t)(i * WARP + lane) ? 0 : key[i];
        if (j == 0) max = key_logit(best);
        if (j == lane) mine.id = id, value = key_logit(best);
    }
    UNROLL
    for (int i = 0; i < SLOTS; i++)
        if (i * WARP + lane < n_experts) total += expf(x[i] - max);
    total = warp_sum(total, WARP);
    if (lane < n_top) mine.weight = expf(value - max) / total;
    for (int j = 0; j < n_top; j++)
        kept += warp_shuffle(mine.weight, j);
    if (normalise) mine.weight /= kept;
    for (int j = 0; j < n_top; j++)
        mine.rank += warp_shuffle(mine.id, j) < mine.id;
    return mine;
}

static __device__ Route route_row(const MoeFfn &a, int64_t row)
{
    const float *logit = a.logits + row * a.n_experts;
    enum { SLOTS = MOE_MAX_EXPERTS / WARP };
    if (a.n_experts <= WARP * SLOTS / 4)
        return route_slots<SLOTS / 4>(logit, a.n_experts, a.n_top, a.normalise);
    if (a.n_experts <= WARP * SLOTS / 2)
        return route_slots<SLOTS / 2>(logit, a.n_experts, a.n_top, a.normalise);
    return route_slots<SLOTS>(logit, a.n_experts, a.n_top, a.normalise);
}

/* Writes the row's, in ascending id. */
static __device__ __forceinline__ void put_route(const MoeFfn &a, int64_t row, const Route &route)
{
    if (warp_lane() >= a.n_top) return;
    a.id[row * a.n_top + route.rank] = (int32_t)route.id;
    a.weight[row * a.n_top + route.rank] = route.weight;
}

enum { ROUTE_WARPS = 8 }; /* rows, a block */

static __global__ void route_kernel(MoeFfn a)
{
    grid_wait();
    int64_t row = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP;
    if (row < a.n) put_route(a, row, route_row(a, row));
}

#endif
