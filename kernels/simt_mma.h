/*
 * simt_mma.h: values of 16 and 8 bits as tensor cores take them, and their products; with simt.h.
 */
#ifndef OFFSHOOT_KERNELS_SIMT_MMA_H
#define OFFSHOOT_KERNELS_SIMT_MMA_H

#include "kernels/simt.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

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
/* Brings n pairs, each as its two values: the bits of all lanes' floats. */
template <float (*VALUE)(uint16_t)>
static inline const SimtWords *mma_exchange(const uint32_t *pair, int n, const char *file, int line)
{
    uint32_t word[SIMT_WORDS];
    for (int i = 0; i < n; i++) {
        word[2 * i] = philox_bits(VALUE((uint16_t)pair[i]));
        word[2 * i + 1] = philox_bits(VALUE((uint16_t)(pair[i] >> 16)));
    }
    return simt_exchange(word, 2 * n, EXCHANGE_MMA, file, line);
}
/* The 16 values along k of which four lanes, from `first` on, have pairs number i and i + step. */
static inline void mma_vector(const SimtWords *first, int i, int step, float out[16])
{
    for (int lane = 0; lane < 4; lane++)
        for (int half = 0; half < 2; half++)
            memcpy(&out[half * 8 + lane * 2], &first[lane].word[2 * (i + half * step)],
                   2 * sizeof *out);
}
/* Products of two 16-bit values are exact in f32, so each step rounds once. */
template <float (*VALUE)(uint16_t)>
static inline void mma_twin(float d[4], const uint32_t a[4], const uint32_t b[2], const char *file,
                            int line)
{
    uint32_t pair[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    float row[2][16], column[2][16];
    const SimtWords *of = mma_exchange<VALUE>(pair, 6, file, line);
    int g = simt_lane() / 4, l = simt_lane() % 4;
    for (int i = 0; i < 2; i++) {
        mma_vector(of + g * 4, i, 2, row[i]);
        mma_vector(of + (2 * l + i) * 4, 4, 1, column[i]);
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
