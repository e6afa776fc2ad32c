/*
 * simt.h: what a kernel source (*.cu) is written in: CUDA for nvcc, the same names for a C++
 * compiler on the host, where tests/simt_host.c runs a block's threads as fibers.
 *
 * Pieces that need PTX are small functions, here, in simt_copy.h (memory), simt_mma.h (products)
 * and wgmma.h, each with a plain twin. Rules for kernel sources: one-dimensional blocks of whole
 * warps; warp functions are called by all 32 lanes; blocks of up to 1,024 threads. Contraction is
 * off in both worlds: where a fused multiply-add is wanted, fmaf says so.
 */
#ifndef OFFSHOOT_KERNELS_SIMT_H
#define OFFSHOOT_KERNELS_SIMT_H

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/fp16.h"
#include "kernels/fp8.h"
#include "kernels/ops_cuda.h"
#include "kernels/philox.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define CUDA_NAME(op) op##_cuda
#define UNROLL        _Pragma("unroll")
#define DYNAMIC_SHARED(T, name)                                                                    \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];                          \
    T *name = (T *)(void *)dynamic_shared_bytes

#else
#include "kernels/simt_host.h"

#define CUDA_NAME(op)           op##_simt
#define UNROLL                  _Pragma("GCC unroll 16")
#define DYNAMIC_SHARED(T, name) T *name = (T *)(void *)simt_shared

#define __global__
#define __device__
#define __shared__      static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx       simt_thread_idx
#define blockIdx        simt_block_idx
#define blockDim        simt_block_dim
#define gridDim         simt_grid_dim
#define __syncthreads() simt_sync_block(__FILE__, __LINE__)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

static inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}
/* One-based index of the lowest bit, 0 when there is none. */
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
/* Fibers of one host thread: nobody comes between. */
static inline unsigned atomicOr(unsigned *word, unsigned bits)
{
    unsigned old = *word;
    *word = old | bits;
    return old;
}

/* Kinds of simt_exchange. */
enum { EXCHANGE_SYNC, EXCHANGE_SHUFFLE, EXCHANGE_BALLOT, EXCHANGE_REDUCE, EXCHANGE_MMA };
#endif

/* ---- launching ---- */

#ifndef __CUDACC__
template <typename Body> static void simt_body(void *arg)
{
    (*(Body *)arg)();
}
#else
/*
 * Lets blocks of a kernel have so many bytes of dynamic shared memory. Unasked a GPU gives 48 KiB,
 * the kernel's own (static) included. Never takes back what a captured graph was allowed.
 */
template <typename... Param> static cudaError_t allow_shared(void (*kernel)(Param...), size_t bytes)
{
    cudaFuncAttributes now;
    cudaError_t failed = cudaFuncGetAttributes(&now, kernel);
    if (failed || bytes + now.sharedSizeBytes <= 48 << 10) return failed;
    int most = now.maxDynamicSharedSizeBytes;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)bytes > most ? (int)bytes : most);
}

/* The first launch that fails is named. It may tell of one before it. */
static inline void launch_failed(const CudaContext *c, const void *kernel,
                                 const cudaLaunchConfig_t *config, cudaError_t failed)
{
    const char *name = NULL;
    dim3 g = config->gridDim;
    if (*c->failed) return;
    *c->failed = (int)failed;
    cudaFuncGetName(&name, kernel);
    snprintf(c->place, CUDA_PLACE_BYTES,
             "%s, %u x %u x %u blocks of %u threads, %zu bytes of shared memory",
             name ? name : "a kernel", g.x, g.y, g.z, config->blockDim.x, config->dynamicSmemBytes);
}
#endif

/* Queues kernel(args...) over grid blocks of n_threads, with shared_bytes of dynamic memory. */
template <typename... Param, typename... Arg>
static void launch(const CudaContext *c, dim3 grid, int n_threads, size_t shared_bytes,
                   void (*kernel)(Param...), Arg... arg)
{
#ifdef __CUDACC__
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)n_threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)c->stream;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = c->overlap ? 1 : 0;
    cudaError_t failed = cudaSuccess;
    if (shared_bytes) failed = allow_shared(kernel, shared_bytes);
    if (!failed) failed = cudaLaunchKernelEx(&config, kernel, Param(arg)...);
    if (failed) launch_failed(c, (const void *)kernel, &config, failed);
#else
    (void)c;
    auto body = [=]() { kernel(Param(arg)...); };
    simt_launch(SimtDim{grid.x, grid.y, grid.z}, (unsigned)n_threads, shared_bytes,
                simt_body<decltype(body)>, &body, sizeof body);
#endif
}

/* ---- launches that overlap ---- */

/*
 * A launch may begin while those before it in the stream still run (programmatic dependent launch;
 * see CudaContext.overlap). grid_wait lets the next one begin when every block of this one has come
 * here or ended, and returns when the launch before has ended and all that it wrote can be seen.
 * Every thread of every kernel calls it once, also where there is nothing to do: so what was queued
 * before that has ended, too. Until then a kernel touches its arguments, weights and registers
 * alone: weights are what nobody writes while launches are queued.
 * Source: PTX ISA, griddepcontrol.
 */
#ifdef __CUDACC__
static __device__ __forceinline__ void grid_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" : : : "memory");
#endif
}
#else
static inline void grid_wait()
{
    simt_grid_next();
    simt_grid_wait();
}
#endif

/*
 * grid_wait, but the next launch begins no sooner than the launch before this one has ended. So the
 * next may read what that wrote before it waits itself: by load_fresh, for its SM's L1 cache may
 * hold what was there before, and behind grid_trusts, with which a run on the host checks this.
 */
#ifdef __CUDACC__
static __device__ __forceinline__ void grid_wait_first()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" : : : "memory");
#endif
}
static __device__ __forceinline__ void grid_trusts()
{
}
static __device__ __forceinline__ int32_t load_fresh(const int32_t *p)
{
    int32_t v;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
static __device__ __forceinline__ uint64_t load_fresh(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
#else
static inline void grid_wait_first()
{
    simt_grid_wait();
    simt_grid_next();
}
static inline void grid_trusts()
{
    simt_grid_trusts();
}
static inline int32_t load_fresh(const int32_t *p)
{
    return *p;
}
static inline uint64_t load_fresh(const uint64_t *p)
{
    return *p;
}
#endif

/* ---- warps ---- */

enum { WARP = 32 };

#ifdef __CUDACC__
static __device__ __forceinline__ int warp_lane()
{
    return (int)(threadIdx.x % WARP);
}
static __device__ __forceinline__ void warp_sync()
{
    __syncwarp();
}
static __device__ __forceinline__ float warp_shuffle(float x, int lane)
{
    return __shfl_sync(0xffffffffu, x, lane);
}
static __device__ __forceinline__ uint32_t warp_shuffle(uint32_t x, int lane)
{
    return __shfl_sync(0xffffffffu, x, lane);
}
static __device__ __forceinline__ uint32_t warp_ballot(int predicate)
{
    return __ballot_sync(0xffffffffu, predicate);
}
/* Over all lanes, in every lane, by one instruction. */
static __device__ __forceinline__ uint32_t warp_largest(uint32_t x)
{
    return __reduce_max_sync(0xffffffffu, x);
}
static __device__ __forceinline__ uint32_t warp_smallest(uint32_t x)
{
    return __reduce_min_sync(0xffffffffu, x);
}
#else
static inline int warp_lane()
{
    return simt_lane();
}
static inline void warp_sync(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    simt_exchange(NULL, 0, EXCHANGE_SYNC, file, line);
}
static inline uint32_t warp_shuffle(uint32_t x, int lane, const char *file = __builtin_FILE(),
                                    int line = __builtin_LINE())
{
    return simt_exchange(&x, 1, EXCHANGE_SHUFFLE, file, line)[lane % WARP].word[0];
}
static inline float warp_shuffle(float x, int lane, const char *file = __builtin_FILE(),
                                 int line = __builtin_LINE())
{
    return philox_float(warp_shuffle(philox_bits(x), lane, file, line));
}
static inline uint32_t warp_ballot(int predicate, const char *file = __builtin_FILE(),
                                   int line = __builtin_LINE())
{
    uint32_t bit = predicate != 0, all = 0;
    const SimtWords *of = simt_exchange(&bit, 1, EXCHANGE_BALLOT, file, line);
    for (int lane = 0; lane < WARP; lane++)
        all |= of[lane].word[0] << lane;
    return all;
}
static inline uint32_t warp_largest(uint32_t x, const char *file = __builtin_FILE(),
                                    int line = __builtin_LINE())
{
    const SimtWords *of = simt_exchange(&x, 1, EXCHANGE_REDUCE, file, line);
    for (int lane = 0; lane < WARP; lane++)
        x = of[lane].word[0] > x ? of[lane].word[0] : x;
    return x;
}
static inline uint32_t warp_smallest(uint32_t x, const char *file = __builtin_FILE(),
                                     int line = __builtin_LINE())
{
    return ~warp_largest(~x, file, line);
}
#endif

#ifdef __CUDACC__
static __device__ __forceinline__ uint64_t warp_shuffle(uint64_t x, int lane)
{
    return __shfl_sync(0xffffffffu, (unsigned long long)x, lane);
}
#else
static inline uint64_t warp_shuffle(uint64_t x, int lane, const char *file = __builtin_FILE(),
                                    int line = __builtin_LINE())
{
    uint32_t half[2] = {(uint32_t)x, (uint32_t)(x >> 32)};
    const SimtWords *of = simt_exchange(half, 2, EXCHANGE_SHUFFLE, file, line);
    const uint32_t *word = of[lane % WARP].word;
    return (uint64_t)word[1] << 32 | word[0];
}
#endif
static __device__ __forceinline__ double warp_shuffle(double x, int lane)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = warp_shuffle(bits, lane);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* In every lane: x of the lane whose number differs in the bits of mask. */
template <typename T> static __device__ __forceinline__ T warp_xor(T x, int mask)
{
    return warp_shuffle(x, warp_lane() ^ mask);
}

/* Sum over groups of `width` lanes (a power of two), in every lane, by one fixed tree. */
static __device__ __forceinline__ float warp_sum(float x, int width)
{
    for (int mask = width / 2; mask > 0; mask /= 2)
        x += warp_xor(x, mask);
    return x;
}

static __device__ __forceinline__ float warp_max(float x, int width)
{
    for (int mask = width / 2; mask > 0; mask /= 2)
        x = fmaxf(x, warp_xor(x, mask));
    return x;
}

/* ---- atomics: integers only, so that no sum depends on the order of threads ---- */

/* Adds to shared or global memory; returns what was there. */
#ifdef __CUDACC__
static __device__ __forceinline__ uint32_t atomic_add(uint32_t *at, uint32_t x)
{
    return atomicAdd(at, x);
}
static __device__ __forceinline__ void atomic_add(uint64_t *at, uint64_t x)
{
    atomicAdd((unsigned long long *)at, (unsigned long long)x);
}
#else
static inline uint32_t atomic_add(uint32_t *at, uint32_t x)
{
    uint32_t was = *at;
    *at += x;
    return was;
}
static inline void atomic_add(uint64_t *at, uint64_t x)
{
    *at += x;
}
#endif

/* ---- tickets: which of a launch's blocks comes last ---- */

/*
 * A ticket lies at 0 between launches, and n blocks draw it once each: one thread does, between two
 * barriers of its block. 1 for the last block. It sees what the others have written before they
 * drew, and leaves the ticket at 0. Which block is the last differs from run to run: what it does
 * must not.
 */
static __device__ __forceinline__ int draw_ticket(uint32_t *ticket, int n)
{
#ifdef __CUDACC__
    uint32_t drawn;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(drawn)
                 : "l"(ticket)
                 : "memory");
#else
    uint32_t drawn = (*ticket)++;
#endif
    if (drawn + 1 < (uint32_t)n) return 0;
    *ticket = 0;
    return 1;
}

/* ---- activations, one form in all kernels ---- */

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x));
}

#endif
