/*
 * simt.h: what a kernel source (*.cu) is written in: CUDA for nvcc, the same names for a C++
 * compiler on the host, where tests/simt_host.c runs a block's threads as fibers.
 *
 * Pieces that need PTX are small functions here, each with a plain twin. Rules for kernel sources:
 * one-dimensional blocks of whole warps; warp functions are called by all 32 lanes; blocks of up to
 * 1,024 threads. Contraction is off in both worlds: where a fused multiply-add is wanted, fmaf says
 * so.
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
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
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

/* ---- 16 bytes at an address that is a multiple of 16 ---- */

#ifdef __CUDACC__
static __device__ __forceinline__ uint4 load_16(const void *p)
{
    return *(const uint4 *)p;
}
/* Of weights, read once: leaves the L1 cache to others. What kernels write must not be read so: a
 * line that came before grid_wait may be an old one. */
static __device__ __forceinline__ uint4 load_16_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
#else
static inline uint4 load_16(const void *p)
{
    uint4 v;
    assert((uintptr_t)p % sizeof v == 0); /* a GPU would fault */
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint4 load_16_once(const void *p)
{
    return load_16(p);
}
#endif

/*
 * Has n bytes at p, both multiples of 16, brought to the L2 cache while the thread goes on: a hint.
 * Before grid_wait, too, and of what others write: L2 is where all SMs meet. Hopper and later.
 * Source: PTX ISA, cp.async.bulk.prefetch.L2.
 */
#ifdef __CUDACC__
static __device__ __forceinline__ void prefetch_l2(const void *p, uint32_t n)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(n) : "memory");
#endif
}
#else
static inline void prefetch_l2(const void *p, uint32_t n)
{
    const volatile unsigned char *byte = (const volatile unsigned char *)p;
    assert((uintptr_t)p % 16 == 0 && n % 16 == 0);
    if (n) (void)byte[0], (void)byte[n - 1]; /* as far as a hint may reach */
}
#endif

/* ---- 16 or 4 bytes from global to shared memory, copied beside the thread's work ---- */

/*
 * Both addresses are multiples of the number of bytes. copies_commit closes a group of copies;
 * copies_wait<N> waits for all of the thread's groups but the last N. Who waited and passed a
 * barrier may read what the block's threads copied.
 */
#ifdef __CUDACC__
static __device__ __forceinline__ void copy_16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}
static __device__ __forceinline__ void copy_4(void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}
/* The same where `is` is not 0, without a branch. */
static __device__ __forceinline__ void copy_16_if(int is, void *shared, const void *global)
{
    asm volatile("{.reg .pred %%is; setp.ne.s32 %%is, %2, 0;"
                 " @%%is cp.async.cg.shared.global [%0], [%1], 16;}"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(is)
                 : "memory");
}
static __device__ __forceinline__ void copy_4_if(int is, void *shared, const void *global)
{
    asm volatile("{.reg .pred %%is; setp.ne.s32 %%is, %2, 0;"
                 " @%%is cp.async.ca.shared.global [%0], [%1], 4;}"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(is)
                 : "memory");
}
/* Where `is` is 0, zeros; nothing is read. */
static __device__ __forceinline__ void copy_16_or_zeros(int is, void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(is ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int N> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}
#else
static inline void copy_16(void *shared, const void *global)
{
    simt_begin_copy(shared, global, 16);
}
static inline void copy_4(void *shared, const void *global)
{
    simt_begin_copy(shared, global, 4);
}
static inline void copy_16_if(int is, void *shared, const void *global)
{
    if (is) copy_16(shared, global);
}
static inline void copy_4_if(int is, void *shared, const void *global)
{
    if (is) copy_4(shared, global);
}
static inline void copy_16_or_zeros(int is, void *shared, const void *global)
{
    static const uint4 zeros = {};
    copy_16(shared, is ? global : &zeros);
}
static inline void copies_commit()
{
    simt_copies_commit();
}
template <int N> static inline void copies_wait()
{
    simt_copies_wait(N);
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
    simt_exchange(&x, 1, EXCHANGE_SHUFFLE, file, line);
    return simt_lane_words(lane % WARP)[0];
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
    simt_exchange(&bit, 1, EXCHANGE_BALLOT, file, line);
    for (int lane = 0; lane < WARP; lane++)
        all |= simt_lane_words(lane)[0] << lane;
    return all;
}
static inline uint32_t warp_largest(uint32_t x, const char *file = __builtin_FILE(),
                                    int line = __builtin_LINE())
{
    simt_exchange(&x, 1, EXCHANGE_REDUCE, file, line);
    for (int lane = 0; lane < WARP; lane++)
        x = simt_lane_words(lane)[0] > x ? simt_lane_words(lane)[0] : x;
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
    simt_exchange(half, 2, EXCHANGE_SHUFFLE, file, line);
    const uint32_t *word = simt_lane_words(lane % WARP);
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

/* ---- 16-bit pairs: two values in a register, the first in the low half, as mma wants them ---- */

#ifdef __CUDACC__
static __device__ __forceinline__ uint32_t bf16_pair(float first, float second)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
static __device__ __forceinline__ uint32_t fp16_pair(float first, float second)
{
    __half2 pair = __floats2half2_rn(first, second);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
static __device__ __forceinline__ float fp16_value(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}
/* Two e4m3 codes as two fp16, exactly. */
static __device__ __forceinline__ uint32_t fp8_to_fp16_pair(uint16_t codes)
{
    __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    return (uint32_t)pair.x | (uint32_t)pair.y << 16;
}
/* Four, the first two in *low. On sm_89 and later an instruction reads either half of a register,
 * which the compiler does not find by itself. */
static __device__ __forceinline__ void fp8_to_fp16_pairs(uint32_t codes, uint32_t *low,
                                                         uint32_t *high)
{
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 %%low, %%high; mov.b32 {%%low, %%high}, %2;"
        " cvt.rn.f16x2.e4m3x2 %0, %%low; cvt.rn.f16x2.e4m3x2 %1, %%high;}"
        : "=r"(*low), "=r"(*high)
        : "r"(codes));
#else
    *low = fp8_to_fp16_pair((uint16_t)codes);
    *high = fp8_to_fp16_pair((uint16_t)(codes >> 16));
#endif
}
/* Two values as e4m3 codes; what is beyond 448 becomes that. */
static __device__ __forceinline__ uint16_t fp8_codes(float first, float second)
{
    return __nv_cvt_float2_to_fp8x2(float2{first, second}, __NV_SATFINITE, __NV_E4M3);
}
#else
static inline uint32_t bf16_pair(float first, float second)
{
    return (uint32_t)bf16_from_float(first) | (uint32_t)bf16_from_float(second) << 16;
}
static inline uint32_t fp16_pair(float first, float second)
{
    return (uint32_t)fp16_from_float(first) | (uint32_t)fp16_from_float(second) << 16;
}
static inline float fp16_value(uint16_t bits)
{
    return fp16_to_float(bits);
}
static inline uint16_t fp8_codes(float first, float second)
{
    return (uint16_t)(fp8_from_float(first) | fp8_from_float(second) << 8);
}
static inline uint32_t fp8_to_fp16_pair(uint16_t codes)
{
    return fp16_pair(fp8_to_float((uint8_t)codes), fp8_to_float((uint8_t)(codes >> 8)));
}
static inline void fp8_to_fp16_pairs(uint32_t codes, uint32_t *low, uint32_t *high)
{
    *low = fp8_to_fp16_pair((uint16_t)codes);
    *high = fp8_to_fp16_pair((uint16_t)(codes >> 16));
}
#endif

/* The two values of a bf16 pair. */
static __device__ __forceinline__ float bf16_low(uint32_t pair)
{
    return philox_float(pair << 16);
}
static __device__ __forceinline__ float bf16_high(uint32_t pair)
{
    return philox_float(pair & 0xffff0000u);
}

/* ---- mma.m16n8k16, f32 accumulators ---- */

/*
 * d += A B by one warp. With g = lane / 4 and l = lane % 4, a lane holds of A [16][16] the pairs
 * (g, 2l), (g + 8, 2l), (g, 2l + 8), (g + 8, 2l + 8), along k; of B [16][8] the pairs (2l, g),
 * (2l + 8, g), along k; of D [16][8]  (g, 2l), (g, 2l + 1), (g + 8, 2l), (g + 8, 2l + 1).
 * Source: PTX ISA, matrix fragments for mma.m16n8k16. A column of D depends on the same column of B
 * alone.
 */
#ifdef __CUDACC__
static __device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_fp16(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
/* The 16 values along k whose pairs four lanes from `first` hold in words `word` and word + step.
 */
template <float (*VALUE)(uint16_t)>
static inline void mma_vector(int first, int word, int step, float out[16])
{
    for (int k = 0; k < 16; k++) {
        const uint32_t *of = simt_lane_words(first + k % 8 / 2);
        out[k] = VALUE((uint16_t)(of[word + k / 8 * step] >> k % 2 * 16));
    }
}
/* Products of two 16-bit values are exact in f32, so each step rounds once. */
template <float (*VALUE)(uint16_t)>
static inline void mma_twin(float d[4], const uint32_t a[4], const uint32_t b[2], const char *file,
                            int line)
{
    uint32_t word[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    float row[2][16], column[2][16];
    simt_exchange(word, 6, EXCHANGE_MMA, file, line);
    int g = simt_lane() / 4, l = simt_lane() % 4;
    for (int i = 0; i < 2; i++) {
        mma_vector<VALUE>(g * 4, i, 2, row[i]);
        mma_vector<VALUE>((2 * l + i) * 4, 4, 1, column[i]);
    }
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 4; i++)
            d[i] += row[i / 2][k] * column[i % 2][k];
}
static inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                            const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    mma_twin<bf16_to_float>(d, a, b, file, line);
}
static inline void mma_fp16(float d[4], const uint32_t a[4], const uint32_t b[2],
                            const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    mma_twin<fp16_to_float>(d, a, b, file, line);
}
#endif

#endif
