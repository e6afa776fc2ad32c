/*
 * wgmma.h: products by a warpgroup (four warps), A from registers, B from shared memory.
 *
 * One wgmma takes 64 x 16 of A, of which warp w of the warpgroup has rows [16 w, 16 w + 16), held
 * as by mma_fp16 of simt.h, and N columns of B. In 8 columns and one warp's rows it is that mma:
 * the same lanes have the same elements of A and of D; d[4 j + i] is what mma_fp16 on columns
 * [8 j, 8 j + 8) has in d[i].
 *
 * B lies column by column, each 64 k's of 16 bits in a row of 128 bytes, rows one after another
 * from a multiple of 1,024 bytes on. Piece p of 16 bytes of row n is at piece p ^ n % 8, so that
 * eight rows share no banks (the 128-byte swizzle, K-major).
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

/* The 16 values along k of row n; a GPU, too, swizzles addresses. */
static inline void wgmma_column(WgmmaRows b, int n, float out[16])
{
    for (int k = 0; k < 16; k++) {
        size_t at = (size_t)(b - simt_shared) + (size_t)(n * WGMMA_ROW + k * 2);
        uint16_t bits;
        memcpy(&bits, simt_shared + (at ^ (at / WGMMA_ROW % 8 * 16)), sizeof bits);
        out[k] = fp16_to_float(bits);
    }
}

/* As mma_twin adds: k ascending. */
template <int N>
static inline void wgmma_fp16(float (&d)[N], const uint32_t (&a)[4], WgmmaRows b, int adds,
                              const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    float row[2][16], column[16];
    simt_exchange(a, 4, EXCHANGE_MMA, file, line);
    int g = simt_lane() / 4, l = simt_lane() % 4;
    for (int i = 0; i < 2; i++)
        mma_vector<fp16_to_float>(g * 4, i, 2, row[i]);
    for (int i = 0; i < N / 2; i++) {
        float *out = &d[i / 2 * 4 + i % 2];
        wgmma_column(b, i / 2 * 8 + 2 * l + i % 2, column);
        for (int r = 0; r < 2; r++) {
            float sum = adds ? out[2 * r] : 0;
            for (int k = 0; k < 16; k++)
                sum += row[r][k] * column[k];
            out[2 * r] = sum;
        }
    }
}

#endif

#endif
