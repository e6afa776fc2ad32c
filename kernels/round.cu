/*
 * round.cu: drafts, trees and acceptance on the device: one warp a sequence.
 *
 * Block: 32 threads. What a lane owns: every 32nd node; lane 0 does what is a chain of decisions.
 * Bytes: some KB a sequence, from L2; what counts is the launch, and that no value goes to the
 * host. A chain of 3 drafts takes a handful of dependent loads per operation, a tree of n nodes n
 * rounds of a warp's maximum.
 */
#include "kernels/simt.h"

/* The index of the largest value over the warp (ties: the lowest index), -1 when none has one. */
static __device__ int warp_best(float value, int index)
{
    for (int step = WARP / 2; step; step /= 2) {
        int other = (warp_lane() + step) % WARP;
        float v = warp_shuffle(value, other);
        int at = (int)warp_shuffle((uint32_t)index, other);
        if (at >= 0 && (index < 0 || v > value || (v == value && at < index))) {
            value = v;
            index = at;
        }
    }
    return index;
}

#define ROUND_INLINE             static __device__ inline
#define LANE                     warp_lane()
#define LANES                    WARP
#define LANES_SYNC()             warp_sync()
#define LANES_BEST(value, index) warp_best(value, index)
#include "kernels/round_steps.h"

static __global__ void grow_kernel(GrowDrafts a)
{
    grid_wait();
    grow_draft(&a, (int)blockIdx.x);
}

extern "C" void CUDA_NAME(grow_drafts)(const CudaContext *c, const GrowDrafts *a)
{
    launch(c, dim3((unsigned)a->n), WARP, 0, grow_kernel, *a);
}

static __global__ void plant_kernel(PlantTrees a)
{
    grid_wait();
    plant_tree(&a, (int)blockIdx.x);
}

extern "C" void CUDA_NAME(plant_trees)(const CudaContext *c, const PlantTrees *a)
{
    launch(c, dim3((unsigned)a->n), WARP, 0, plant_kernel, *a);
}

static __global__ void accept_kernel(AcceptTrees a)
{
    grid_wait();
    accept_tree(&a, (int)blockIdx.x);
}

extern "C" void CUDA_NAME(accept_trees)(const CudaContext *c, const AcceptTrees *a)
{
    launch(c, dim3((unsigned)a->n), WARP, 0, accept_kernel, *a);
}
