/*
 * wgmma.h: products by a warpgroup (four warps), A from registers or shared memory, B from shared
 * memory.
 *
 * One wgmma takes 64 x 16 of A, of which warp w of the warpgroup has rows [16 w, 16 w + 16), held
 * as by mma_fp16 of simt.h, and N columns of B. In 8 columns and one warp's rows it is that mma:
 * the same lanes have the same elements of A and of D; d[4 j + i] is what mma_fp16 on columns
 * [8 j, 8 j + 8) has in d[i].
 *
 * B lies column by column, each 64 k's of 16 bits in a row of 128 bytes, rows one after another
 * from a multiple of 1,024 bytes on. Piece p of 16 bytes of row n is at piece p ^ n % 8, so that
 * eight rows share no banks (the 128-byte swizzle, K-major). So does A in shared memory, row by
 * row. Or B lies k by k, its 64 columns of each in such a row (MN-major): "by k" below.
 *
 * What was copied or stored must be shown to wgmma (wgmma_show_shared) before a barrier behind
 * which it is read. Products run beside the thread's work: between wgmma_fp16 and the wgmma_wait
 * that ends its group neither d nor a nor what it reads of B may change, and who has touched d or
 * a calls wgmma_begin before the next product with them. All 128 threads call everything here.
 * Hopper alone has it (sm_90a); code for other GPUs does nothing at all.
 * Source: PTX ISA, asynchronous warpgroup level matrix instructions; matrix descriptor.
 */
#ifndef OFFSHOOT_KERNELS_WGMMA_H
#define OFFSHOOT_KERNELS_WGMMA_H

#include "kernels/simt.h"

#if !defined __CUDACC__ || defined __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

enum {
    WGMMA_ROW = 128,        /* bytes */
    WGMMA_SHARED_AT = 1024, /* shared memory with B begins at a multiple */
    WGMMA_STEP = 16 * 2,    /* bytes of a row that one product takes */
};

/* Where piece `piece` of row n lies. */
SHARED_INLINE uint32_t wgmma_piece_at(int n, int piece)
{
    return (uint32_t)(n * WGMMA_ROW + (piece ^ n % 8) * 16);
}

#ifdef __CUDACC__

#define WGMMA_SHARED(T, name)                                                                      \
    extern __shared__ __align__(WGMMA_SHARED_AT)                                                   \
    unsigned char wgmma_shared_bytes[];                                                            \
    T *name = (T *)(void *)wgmma_shared_bytes

/* Rows of B: a matrix descriptor. */
typedef uint64_t WgmmaRows;

/* Rows that begin at p; strides in units of 16 bytes, the first of no meaning where k's lie in
 * rows of 128 bytes, the second from 8 rows to the next 8. */
static __device__ __forceinline__ WgmmaRows wgmma_rows(const void *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    uint64_t swizzle = 1, stride = 8 * WGMMA_ROW / 16;
    return swizzle << 62 | stride << 32 | (uint64_t)1 << 16 | (at & 0x3ffff) >> 4;
}

/* `bytes` further on, a multiple of 16: whole groups of 8 rows, and steps within them. */
static __device__ __forceinline__ WgmmaRows wgmma_at(WgmmaRows rows, int bytes)
{
    return rows + (uint64_t)(bytes / 16);
}

static __device__ __forceinline__ void wgmma_show_shared()
{
#if HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}
static __device__ __forceinline__ void wgmma_begin()
{
#if HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#endif
}
static __device__ __forceinline__ void wgmma_commit()
{
#if HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#endif
}
/* Waits for all of the thread's groups but the last N. */
template <int N> static __device__ __forceinline__ void wgmma_wait()
{
#if HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
#endif
}

/* d was written by products: no use of it may move before what stands before this. */
template <int N> static __device__ __forceinline__ void wgmma_take(float (&d)[N])
{
    UNROLL
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i]) : : "memory");
}
template <int N> static __device__ __forceinline__ void wgmma_take(float (&d)[N][4])
{
    UNROLL
    for (int i = 0; i < N; i++)
        wgmma_take(d[i]);
}

#define WGMMA_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

/* d = A B + (adds ? d : 0); of 32 columns, of 64. */
static __device__ __forceinline__ void wgmma_fp16(float (&d)[16], const uint32_t (&a)[4],
                                                  WgmmaRows b, int adds)
{
#if HAS_WGMMA
    asm volatile("{.reg .pred %%adds; setp.ne.s32 %%adds, %21, 0;"
                 " wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16"
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
                 " {%16, %17, %18, %19}, %20, %%adds, 1, 1, 0;}"
                 : WGMMA_F4(d, 0), WGMMA_F4(d, 4), WGMMA_F4(d, 8), WGMMA_F4(d, 12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
#endif
}
static __device__ __forceinline__ void wgmma_fp16(float (&d)[32], const uint32_t (&a)[4],
                                                  WgmmaRows b, int adds)
{
#if HAS_WGMMA
    asm volatile("{.reg .pred %%adds; setp.ne.s32 %%adds, %37, 0;"
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30,"
                 " %31}, {%32, %33, %34, %35}, %36, %%adds, 1, 1, 0;}"
                 : WGMMA_F4(d, 0), WGMMA_F4(d, 4), WGMMA_F4(d, 8), WGMMA_F4(d, 12), WGMMA_F4(d, 16),
                   WGMMA_F4(d, 20), WGMMA_F4(d, 24), WGMMA_F4(d, 28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
#endif
}

#define WGMMA_TILES(d)                                                                             \
    WGMMA_F4(d[0], 0), WGMMA_F4(d[1], 0), WGMMA_F4(d[2], 0), WGMMA_F4(d[3], 0), WGMMA_F4(d[4], 0), \
        WGMMA_F4(d[5], 0), WGMMA_F4(d[6], 0), WGMMA_F4(d[7], 0)

/* d = A B + (adds ? d : 0) of 64 columns: d[j] of columns [8 j, 8 j + 8). A in shared memory. */
static __device__ __forceinline__ void wgmma_bf16(float (*d)[4], WgmmaRows a, WgmmaRows b, int adds)
{
#if HAS_WGMMA
    asm volatile("{.reg .pred %%adds; setp.ne.s32 %%adds, %34, 0;"
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30,"
                 " %31}, %32, %33, %%adds, 1, 1, 0, 0;}"
                 : WGMMA_TILES(d)
                 : "l"(a), "l"(b), "r"(adds));
#endif
}
/* d += A B, likewise; A in registers, B by k. */
static __device__ __forceinline__ void wgmma_bf16_by_k(float (*d)[4], const uint32_t (&a)[4],
                                                       WgmmaRows b)
{
#if HAS_WGMMA
    asm volatile("{.reg .pred %%adds; setp.ne.s32 %%adds, 1, 0;"
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30,"
                 " %31}, {%32, %33, %34, %35}, %36, %%adds, 1, 1, 1;}"
                 : WGMMA_TILES(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

#else

#define WGMMA_SHARED(T, name) DYNAMIC_SHARED(T, name)

typedef const unsigned char *WgmmaRows;

static inline WgmmaRows wgmma_rows(const void *p)
{
    assert(((const unsigned char *)p - simt_shared) % WGMMA_SHARED_AT == 0);
    return (const unsigned char *)p;
}
static inline WgmmaRows wgmma_at(WgmmaRows rows, int bytes)
{
    return rows + bytes;
}
static inline void wgmma_show_shared()
{
}
static inline void wgmma_begin()
{
}
static inline void wgmma_commit()
{
}
template <int N> static inline void wgmma_wait()
{
}
template <int N> static inline void wgmma_take(float (&)[N])
{
}
template <int N> static inline void wgmma_take(float (&)[N][4])
{
}

/* Value i of row n of 16-bit values; a GPU, too, swizzles addresses. */
template <float (*VALUE)(uint16_t)> static inline float wgmma_value(WgmmaRows rows, int n, int i)
{
    size_t at = (size_t)(rows - simt_shared) + (size_t)(n * WGMMA_ROW + i * 2);
    uint16_t bits;
    memcpy(&bits, simt_shared + (at ^ (at / WGMMA_ROW % 8 * 16)), sizeof bits);
    return VALUE(bits);
}

/* The lane's rows of A in registers, along k. */
template <float (*VALUE)(uint16_t)>
static inline void wgmma_lane_rows(const uint32_t (&a)[4], float row[2][16], const char *file,
                                   int line)
{
    const SimtWords *of = mma_exchange<VALUE>(a, 4, file, line);
    for (int i = 0; i < 2; i++)
        mma_vector(of + simt_lane() / 4 * 4, i, 2, row[i]);
}

/* The lane's part of d = A B + (adds ? d : 0) of `columns`; as mma_twin adds: k ascending. */
template <float (*VALUE)(uint16_t)>
static inline void wgmma_twin(float *d, int columns, const float row[2][16], WgmmaRows b, int by_k,
                              int adds)
{
    for (int i = 0; i < columns / 4; i++) {
        float *out = &d[i / 2 * 4 + i % 2], column[16];
        int n = i / 2 * 8 + simt_lane() % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++)
            column[k] = by_k ? wgmma_value<VALUE>(b, k, n) : wgmma_value<VALUE>(b, n, k);
        for (int r = 0; r < 2; r++) {
            float sum = adds ? out[2 * r] : 0;
            for (int k = 0; k < 16; k++)
                sum += row[r][k] * column[k];
            out[2 * r] = sum;
        }
    }
}

template <int N>
static inline void wgmma_fp16(float (&d)[N], const uint32_t (&a)[4], WgmmaRows b, int adds,
                              const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    float row[2][16];
    wgmma_lane_rows<fp16_to_float>(a, row, file, line);
    wgmma_twin<fp16_to_float>(d, 2 * N, row, b, 0, adds);
}
static inline void wgmma_bf16(float (*d)[4], WgmmaRows a, WgmmaRows b, int adds)
{
    float row[2][16];
    for (int i = 0; i < 32; i++)
        row[i / 16][i % 16] = wgmma_value<bf16_to_float>(
            a, (int)threadIdx.x / WARP % 4 * 16 + simt_lane() / 4 + i / 16 * 8, i % 16);
    wgmma_twin<bf16_to_float>(d[0], 64, row, b, 0, adds);
}
static inline void wgmma_bf16_by_k(float (*d)[4], const uint32_t (&a)[4], WgmmaRows b,
                                   const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    float row[2][16];
    wgmma_lane_rows<bf16_to_float>(a, row, file, line);
    wgmma_twin<bf16_to_float>(d[0], 64, row, b, 1, 1);
}

#endif

#endif
