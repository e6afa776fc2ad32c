/*
 * block_scan.h: sums over the lower threads of a block, which selecting (select.h) and sorting by
 * counting (moe_plan.h) are made of: CUB's on a GPU, and a plain twin for the host, where CUB
 * cannot be. Of integers alone: they add up to the same in any order.
 */
#ifndef OFFSHOOT_KERNELS_BLOCK_SCAN_H
#define OFFSHOOT_KERNELS_BLOCK_SCAN_H

#include "kernels/simt.h"

#ifdef __CUDACC__
#include <cub/block/block_scan.cuh>
#endif

#include <type_traits>

/* All THREADS of the block call it. Returns the sum of x over those below this one; *all: over all
 * of them. */
template <int THREADS, typename T> static __device__ T block_sum_below(T x, T *all)
{
    static_assert(std::is_integral<T>::value, "no sum depends on its order");
    static_assert(THREADS % WARP == 0, "whole warps");
    T below;
#ifdef __CUDACC__
    typedef cub::BlockScan<T, THREADS, cub::BLOCK_SCAN_WARP_SCANS> Scan;
    __shared__ typename Scan::TempStorage room;
    Scan(room).ExclusiveSum(x, below, *all);
#else
    __shared__ T value[THREADS];
    value[threadIdx.x] = x;
    __syncthreads();
    below = *all = 0;
    for (unsigned t = 0; t < THREADS; t++) {
        if (t < threadIdx.x) below += value[t];
        *all += value[t];
    }
#endif
    __syncthreads(); /* what it lies in is free again */
    return below;
}
template <int THREADS, typename T> static __device__ __forceinline__ T block_sum_below(T x)
{
    T all;
    return block_sum_below<THREADS>(x, &all);
}

#endif
