/*
 * route.cu: which experts a row goes to.
 *
 * Floor: the logits once.
 */
#include "kernels/simt.h"

#include <assert.h>

enum { ROUTE_WARPS = 8 }; /* rows, a block */

/* The larger value, ties to the lower id, over the warp. */
static __device__ __forceinline__ void warp_best(float *value, uint32_t *id)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        float v = warp_xor(*value, mask);
        uint32_t i = warp_xor(*id, mask);
        if (v > *value || (v == *value && i < *id)) *value = v, *id = i;
    }
}

/* This lane's best logit of those not in `taken`, bit i being expert lane + 32 i; NaN is least. */
static __device__ __forceinline__ void lane_best(const float *logit, int n, uint32_t taken,
                                                 float *value, uint32_t *id)
{
    *value = -INFINITY, *id = 0xffffffffu;
    for (int i = 0, e = warp_lane(); e < n; i++, e += WARP) {
        float x = logit[e] == logit[e] ? logit[e] : -INFINITY;
        if (taken >> i & 1 || (*id != 0xffffffffu && !(x > *value))) continue;
        *value = x, *id = (uint32_t)e;
    }
}

/* A warp per row: lane j keeps the j-th choice, then writes it at the rank of its id. */
static __global__ void route_kernel(MoeRoute a)
{
    grid_wait();
    int64_t row = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP;
    if (row >= a.n) return;
    const float *logit = a.logits + row * a.n_experts;
    int lane = warp_lane();
    uint32_t taken = 0, mine = 0xffffffffu;
    float max = 0, total = 0, kept = 0, weight = 0;
    for (int j = 0; j < a.n_top; j++) {
        float value;
        uint32_t id;
        lane_best(logit, a.n_experts, taken, &value, &id);
        warp_best(&value, &id);
        if (j == 0) max = value;
        if ((int)(id % WARP) == lane) taken |= 1u << id / WARP;
        if (j == lane) mine = id;
    }
    for (int e = lane; e < a.n_experts; e += WARP)
        total += expf(logit[e] - max);
    total = warp_sum(total, WARP);
    if (lane < a.n_top) weight = expf(logit[mine] - max) / total;
    for (int j = 0; j < a.n_top; j++)
        kept += warp_shuffle(weight, j);
    if (a.normalise) weight /= kept;

    int rank = 0;
    for (int j = 0; j < a.n_top; j++)
        rank += warp_shuffle(mine, j) < mine;
    if (lane >= a.n_top) return;
    a.id[row * a.n_top + rank] = (int32_t)mine;
    a.weight[row * a.n_top + rank] = weight;
}

extern "C" void CUDA_NAME(moe_route)(const CudaContext *c, const MoeRoute *a)
{
    assert(a->n_experts <= MOE_MAX_EXPERTS && a->n_top <= MOE_MAX_TOP);
    assert(a->n_top <= a->n_experts);
    launch(c, dim3((unsigned)(a->n + ROUTE_WARPS - 1) / ROUTE_WARPS), ROUTE_WARPS * WARP, 0,
           route_kernel, *a);
}
