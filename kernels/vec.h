/*
 * vec.h: a thin layer over the vector unit, one meaning in four instruction sets.
 *
 * Included by the sources that are compiled once per instruction set with -DISA=plain, avx2,
 * avx512, vnni, which is AVX-512 and sums of integer products, amx, which has a tile unit too, or
 * on 64-bit Arm dotprod, which has sums of integer products. There plain is NEON.
 * Vec holds VEC_N floats. The _n forms touch only the first n < VEC_N elements of memory and read
 * zeros for the others, so a tail runs the same operations as a full vector.
 *
 * v_sum adds lanes in one fixed order: halves down to four lanes, then (0 + 1) + (2 + 3); v_sum4
 * gives the same bits for four vectors at once.
 */
#ifndef OFFSHOOT_KERNELS_VEC_H
#define OFFSHOOT_KERNELS_VEC_H

#include <stdint.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/fp8.h"

#define VEC_CAT2(a, b) a##b
#define VEC_CAT(a, b)  VEC_CAT2(a, b)
#define VEC_IS_plain   0
#define VEC_IS_dotprod 0
#define VEC_IS_avx2    2
#define VEC_IS_avx512  512
#define VEC_IS_vnni    512
#define VEC_IS_amx     512
#define VEC_ISA        VEC_CAT(VEC_IS_, ISA)

/* 1 where products have tiles, in linear_amx.h. */
#define VEC_TILES_plain   0
#define VEC_TILES_dotprod 0
#define VEC_TILES_avx2    0
#define VEC_TILES_avx512  0
#define VEC_TILES_vnni    0
#define VEC_TILES_amx     1
#define VEC_TILES         VEC_CAT(VEC_TILES_, ISA)

/* The name of a function in this instruction set: linear_avx2. */
#define ISA_NAME(name) VEC_CAT(VEC_CAT(name, _), ISA)

#define INLINE static inline __attribute__((always_inline))
/* For loops of a few rounds over arrays that are to live in registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* v_fp8 gives value / FP8_UNIT: what e4m3 reads as in the exponent of a half. */
#define FP8_UNIT 256.0f

#if VEC_ISA == 512
#include <immintrin.h>

#define VEC_REGISTERS 32
enum { VEC_N = 16 };
typedef __m512 Vec;

/* n <= 16 */
INLINE __mmask16 v_mask(int n)
{
    return (__mmask16)((1u << n) - 1);
}
INLINE Vec v_set(float x)
{
    return _mm512_set1_ps(x);
}
INLINE Vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE Vec v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}
/* a[m] = every fourth element from p + m on. */
INLINE void v_load4(const float *p, Vec a[4])
{
    const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29),
                  high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
    Vec x0 = v_load(p), x1 = v_load(p + 16), x2 = v_load(p + 32), x3 = v_load(p + 48);
    Vec low01 = _mm512_permutex2var_ps(x0, low, x1), low23 = _mm512_permutex2var_ps(x2, low, x3);
    Vec high01 = _mm512_permutex2var_ps(x0, high, x1),
        high23 = _mm512_permutex2var_ps(x2, high, x3);
    a[0] = _mm512_shuffle_f32x4(low01, low23, 0x44);
    a[1] = _mm512_shuffle_f32x4(low01, low23, 0xee);
    a[2] = _mm512_shuffle_f32x4(high01, high23, 0x44);
    a[3] = _mm512_shuffle_f32x4(high01, high23, 0xee);
}
INLINE void v_store(float *p, Vec a)
{
    _mm512_storeu_ps(p, a);
}
/* v_store past the caches, aligned; other threads see it after v_stream_end. */
INLINE void v_stream(float *p, Vec a)
{
    _mm512_stream_ps(p, a);
}
INLINE void v_stream_end(void)
{
    _mm_sfence();
}
INLINE void v_store_n(float *p, Vec a, int n)
{
    _mm512_mask_storeu_ps(p, v_mask(n), a);
}
INLINE Vec v_add(Vec a, Vec b)
{
    return _mm512_add_ps(a, b);
}
INLINE Vec v_sub(Vec a, Vec b)
{
    return _mm512_sub_ps(a, b);
}
INLINE Vec v_mul(Vec a, Vec b)
{
    return _mm512_mul_ps(a, b);
}
INLINE Vec v_div(Vec a, Vec b)
{
    return _mm512_div_ps(a, b);
}
/* a * b + c */
INLINE Vec v_fma(Vec a, Vec b, Vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* The second operand where either is NaN, in v_min too. */
INLINE Vec v_max(Vec a, Vec b)
{
    return _mm512_max_ps(a, b);
}
INLINE Vec v_min(Vec a, Vec b)
{
    return _mm512_min_ps(a, b);
}
/* a where not x < limit, else 0. */
INLINE Vec v_zero_below(Vec x, float limit, Vec a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, v_set(limit), _CMP_NLT_UQ), a);
}
/* 2^(n - 1) from 1.5 * 2^23 + n, -125 <= n <= 128 */
INLINE Vec v_half_pow2(Vec biased)
{
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(biased), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(126 << 23)));
}
INLINE Vec v_widen_bf16(__m256i b)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}
INLINE Vec v_bf16(const uint16_t *p)
{
    return v_widen_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE Vec v_bf16_n(const uint16_t *p, int n)
{
    return v_widen_bf16(_mm256_maskz_loadu_epi16(v_mask(n), p));
}
/*
 * Pairs of bf16, 2 VEC_N of them; n <= 2 VEC_N. v_dot_pairs: sum + the products of both of a pair.
 * It and v_narrow, to nearest, take subnormals as zero, and want AVX-512 BF16, which is asked for
 * where they are used.
 */
INLINE Vec v_pairs(const uint16_t *p)
{
    return v_load((const float *)(const void *)p);
}
INLINE Vec v_pairs_n(const uint16_t *p, int n)
{
    __mmask32 there = (__mmask32)((UINT64_C(1) << n) - 1);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, p));
}
INLINE Vec v_dot_pairs(Vec sum, Vec x, Vec w)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
}
INLINE __m256i v_narrow(Vec x)
{
    __m256i b;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(b) : "v"(x));
    return b;
}
/* The first ones of all pairs, the second ones. */
INLINE Vec v_pairs_first(Vec pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
INLINE Vec v_pairs_second(Vec pairs)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), high));
}
/* The even and the odd ones of 2 VEC_N values in a row, low and high. */
INLINE void v_part_pairs(Vec low, Vec high, Vec *even, Vec *odd)
{
    const __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(low, at, high);
    *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(at, _mm512_set1_epi32(1)), high);
}
/* To the nearest bf16, as bf16_from_float does. */
INLINE Vec v_round_bf16(Vec x)
{
    const __m512i bits = _mm512_castps_si512(x), high = _mm512_set1_epi32((int)0xffff0000u);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    near = _mm512_mask_or_epi32(near, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(_mm512_and_si512(near, high));
}
/* a, in a register: else gcc makes memory the operand of each of its uses, one load for each. */
INLINE Vec v_in_register(Vec a)
{
    __asm__("" : "+v"(a));
    return a;
}
/* Sign to bits 15 and 14, the rest below; without bit 14 that is a half with the same fields. */
INLINE Vec v_widen_fp8(__m128i b)
{
    __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16((short)0xbfff)));
}
INLINE Vec v_fp8(const uint8_t *p)
{
    return v_widen_fp8(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE Vec v_fp8_n(const uint8_t *p, int n)
{
    return v_widen_fp8(_mm_maskz_loadu_epi8(v_mask(n), p));
}
INLINE __m128 v_fold(Vec a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
}
/* v_fold of four vectors, side by side. */
INLINE Vec v_fold4(Vec a, Vec b, Vec c, Vec d)
{
    const __mmask16 high = 0xff00;
    Vec ab = v_add(_mm512_mask_blend_ps(high, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
    Vec cd = v_add(_mm512_mask_blend_ps(high, c, d), _mm512_shuffle_f32x4(c, d, 0x4e));
    return v_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
/* The sums of four vectors of each of four rows: _MM_TRANSPOSE4_PS in all quarters at once. */
INLINE void v_sum4x4(const Vec *a, const Vec *b, const Vec *c, const Vec *d, __m128 sum[4])
{
    Vec o0 = v_fold4(a[0], b[0], c[0], d[0]), o1 = v_fold4(a[1], b[1], c[1], d[1]);
    Vec o2 = v_fold4(a[2], b[2], c[2], d[2]), o3 = v_fold4(a[3], b[3], c[3], d[3]);
    __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(o0, o1)),
            hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(o0, o1)),
            lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(o2, o3)),
            hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(o2, o3));
    Vec low = v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23)));
    Vec high = v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23)),
                     _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23)));
    Vec all = v_add(low, high);
    sum[0] = _mm512_castps512_ps128(all);
    sum[1] = _mm512_extractf32x4_ps(all, 1);
    sum[2] = _mm512_extractf32x4_ps(all, 2);
    sum[3] = _mm512_extractf32x4_ps(all, 3);
}

#elif VEC_ISA == 2
#include <immintrin.h>

#define VEC_REGISTERS 16
enum { VEC_N = 8 };
typedef __m256 Vec;

INLINE Vec v_set(float x)
{
    return _mm256_set1_ps(x);
}
INLINE __m256i v_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE Vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE Vec v_load_n(const float *p, int n)
{
    return _mm256_maskload_ps(p, v_mask(n));
}
INLINE void v_load4(const float *p, Vec a[4])
{
    Vec x0 = _mm256_loadu2_m128(p + 16, p), x1 = _mm256_loadu2_m128(p + 20, p + 4);
    Vec x2 = _mm256_loadu2_m128(p + 24, p + 8), x3 = _mm256_loadu2_m128(p + 28, p + 12);
    Vec low01 = _mm256_unpacklo_ps(x0, x1), high01 = _mm256_unpackhi_ps(x0, x1);
    Vec low23 = _mm256_unpacklo_ps(x2, x3), high23 = _mm256_unpackhi_ps(x2, x3);
    a[0] = _mm256_shuffle_ps(low01, low23, 0x44);
    a[1] = _mm256_shuffle_ps(low01, low23, 0xee);
    a[2] = _mm256_shuffle_ps(high01, high23, 0x44);
    a[3] = _mm256_shuffle_ps(high01, high23, 0xee);
}
INLINE void v_store(float *p, Vec a)
{
    _mm256_storeu_ps(p, a);
}
INLINE void v_stream(float *p, Vec a)
{
    _mm256_stream_ps(p, a);
}
INLINE void v_stream_end(void)
{
    _mm_sfence();
}
INLINE void v_store_n(float *p, Vec a, int n)
{
    _mm256_maskstore_ps(p, v_mask(n), a);
}
INLINE Vec v_add(Vec a, Vec b)
{
    return _mm256_add_ps(a, b);
}
INLINE Vec v_sub(Vec a, Vec b)
{
    return _mm256_sub_ps(a, b);
}
INLINE Vec v_mul(Vec a, Vec b)
{
    return _mm256_mul_ps(a, b);
}
INLINE Vec v_div(Vec a, Vec b)
{
    return _mm256_div_ps(a, b);
}
INLINE Vec v_fma(Vec a, Vec b, Vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE Vec v_max(Vec a, Vec b)
{
    return _mm256_max_ps(a, b);
}
INLINE Vec v_min(Vec a, Vec b)
{
    return _mm256_min_ps(a, b);
}
INLINE Vec v_zero_below(Vec x, float limit, Vec a)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, v_set(limit), _CMP_NLT_UQ), a);
}
INLINE Vec v_half_pow2(Vec biased)
{
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(biased), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(126 << 23)));
}
INLINE Vec v_bf16(const uint16_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
}
INLINE Vec v_bf16_n(const uint16_t *p, int n)
{
    uint16_t b[VEC_N] = {0};
    memcpy(b, p, (size_t)n * sizeof *b);
    return v_bf16(b);
}
INLINE Vec v_fp8(const uint8_t *p)
{
    __m128i half = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    half = _mm_and_si128(_mm_slli_epi16(half, 7), _mm_set1_epi16((short)0xbfff));
    return _mm256_cvtph_ps(half);
}
INLINE Vec v_fp8_n(const uint8_t *p, int n)
{
    uint8_t b[VEC_N] = {0};
    memcpy(b, p, (size_t)n);
    return v_fp8(b);
}
INLINE __m128 v_fold(Vec a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

#else

/* Four lanes, which the compiler maps to SSE2 or NEON, but what it makes many instructions of. */
#ifdef __aarch64__
#include <arm_neon.h>
#define VEC_REGISTERS 32
#else
#define VEC_REGISTERS 16
#endif
enum { VEC_N = 4 };
typedef float Vec __attribute__((vector_size(16)));
typedef int32_t VecInt __attribute__((vector_size(16)));

INLINE Vec v_set(float x)
{
    return (Vec){x, x, x, x};
}
INLINE Vec v_load(const float *p)
{
    Vec a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE Vec v_load_n(const float *p, int n)
{
    Vec a = v_set(0);
    for (int i = 0; i < n; i++)
        a[i] = p[i];
    return a;
}
INLINE void v_store(float *p, Vec a)
{
    memcpy(p, &a, sizeof a);
}
INLINE void v_stream(float *p, Vec a)
{
    v_store(p, a);
}
INLINE void v_stream_end(void)
{
}
INLINE void v_store_n(float *p, Vec a, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = a[i];
}
INLINE Vec v_add(Vec a, Vec b)
{
    return a + b;
}
INLINE Vec v_sub(Vec a, Vec b)
{
    return a - b;
}
INLINE Vec v_mul(Vec a, Vec b)
{
    return a * b;
}
INLINE Vec v_div(Vec a, Vec b)
{
    return a / b;
}
INLINE Vec v_pick(VecInt mask, Vec yes, Vec no)
{
    return (Vec)((mask & (VecInt)yes) | (~mask & (VecInt)no));
}
INLINE Vec v_max(Vec a, Vec b)
{
    return v_pick(a > b, a, b);
}
INLINE Vec v_min(Vec a, Vec b)
{
    return v_pick(a < b, a, b);
}
INLINE Vec v_zero_below(Vec x, float limit, Vec a)
{
    return v_pick(x < v_set(limit), v_set(0), a);
}
INLINE Vec v_half_pow2(Vec biased)
{
    typedef uint32_t Bits __attribute__((vector_size(16)));
    return (Vec)(((Bits)biased << 23) + (126u << 23));
}
#ifdef __aarch64__
INLINE void v_load4(const float *p, Vec a[4])
{
    float32x4x4_t parts = vld4q_f32(p);
    for (int m = 0; m < 4; m++)
        a[m] = parts.val[m];
}
INLINE Vec v_fma(Vec a, Vec b, Vec c)
{
    return vfmaq_f32(c, a, b);
}
INLINE Vec v_bf16(const uint16_t *p)
{
    return (Vec)vshll_n_u16(vld1_u16(p), 16);
}
/* By way of a half, as with AVX-512. */
INLINE Vec v_fp8(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    int16x8_t half = vshll_n_s8(vcreate_s8(four), 7);
    half = vandq_s16(half, vdupq_n_s16((short)0xbfff));
    return vcvt_f32_f16(vreinterpret_f16_s16(vget_low_s16(half)));
}
INLINE float v_sum(Vec a)
{
    return vaddvq_f32(a); /* pairs, then both */
}
INLINE void v_sum4(Vec a, Vec b, Vec c, Vec d, float sum[4])
{
    vst1q_f32(sum, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}
#else
INLINE void v_load4(const float *p, Vec a[4])
{
    for (int m = 0; m < 4; m++)
        a[m] = (Vec){p[m], p[4 + m], p[8 + m], p[12 + m]};
}
INLINE Vec v_fma(Vec a, Vec b, Vec c)
{
    return a * b + c;
}
INLINE Vec v_bf16(const uint16_t *p)
{
    uint16_t b[VEC_N];
    memcpy(b, p, sizeof b); /* aligned or not */
    return (Vec){bf16_to_float(b[0]), bf16_to_float(b[1]), bf16_to_float(b[2]),
                 bf16_to_float(b[3])};
}
INLINE Vec v_fp8(const uint8_t *p)
{
    Vec a = {fp8_to_float(p[0]), fp8_to_float(p[1]), fp8_to_float(p[2]), fp8_to_float(p[3])};
    return a * (1 / FP8_UNIT);
}
INLINE float v_sum(Vec a)
{
    return (a[0] + a[1]) + (a[2] + a[3]);
}
INLINE void v_sum4(Vec a, Vec b, Vec c, Vec d, float sum[4])
{
    sum[0] = v_sum(a), sum[1] = v_sum(b), sum[2] = v_sum(c), sum[3] = v_sum(d);
}
#endif
INLINE Vec v_bf16_n(const uint16_t *p, int n)
{
    uint16_t b[VEC_N] = {0};
    memcpy(b, p, (size_t)n * sizeof *b);
    return v_bf16(b);
}
INLINE Vec v_fp8_n(const uint8_t *p, int n)
{
    uint8_t b[VEC_N] = {0};
    memcpy(b, p, (size_t)n);
    return v_fp8(b);
}
#endif

#if VEC_ISA != 0
INLINE void v_sum4(Vec a, Vec b, Vec c, Vec d, float sum[4])
{
    __m128 r0 = v_fold(a), r1 = v_fold(b), r2 = v_fold(c), r3 = v_fold(d);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(sum, _mm_add_ps(_mm_add_ps(r0, r1), _mm_add_ps(r2, r3)));
}
INLINE float v_sum(Vec a)
{
    __m128 r = v_fold(a);
    __m128 pairs = _mm_add_ps(r, _mm_movehdup_ps(r));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
}
#endif

/* Sets out[i][0..4), or adds to it, from v_sum4 of a[i]; 1 to 4 of them. */
INLINE void v_sum4_rows(int n, Vec (*a)[4], float *const *out, int at, int adds)
{
#if VEC_ISA == 512
    if (n > 1) {
        /* four rows at a time, the last one again where there are fewer */
        Vec *c = a[n > 2 ? 2 : 1], *d = a[n - 1];
        __m128 row[4];
        v_sum4x4(a[0], a[1], c, d, row);
        UNROLL
        for (int i = 0; i < n; i++) {
            float *to = out[i] + at;
            _mm_storeu_ps(to, adds ? _mm_add_ps(_mm_loadu_ps(to), row[i]) : row[i]);
        }
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < n; i++) {
        float sum[4], *to = out[i] + at;
        v_sum4(a[i][0], a[i][1], a[i][2], a[i][3], sum);
        UNROLL
        for (int o = 0; o < 4; o++)
            to[o] = adds ? to[o] + sum[o] : sum[o];
    }
}

/* The largest lane; which NaN wins is open. */
INLINE float v_largest(Vec a)
{
#if VEC_ISA == 512
    return _mm512_reduce_max_ps(a);
#else
    float lane[VEC_N], best;
    v_store(lane, a);
    best = lane[0];
    UNROLL
    for (int i = 1; i < VEC_N; i++)
        best = lane[i] > best ? lane[i] : best;
    return best;
#endif
}

/*
 * exp to 2 ulp; results under 2^-125 are 0, over the largest float infinity; NaN stays NaN.
 * exp(x) = 2^n exp(r), r = x - n ln 2; the polynomial is that of Cephes expf.
 */
INLINE Vec v_exp(Vec x)
{
    Vec top = v_min(v_set(89.0f), x);
    Vec magic = v_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    Vec biased = v_add(v_mul(top, v_set(1.44269504f)), magic);
    Vec n = v_sub(biased, magic);
    Vec r = v_fma(n, v_set(-0.693359375f), top);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    Vec p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1));
    Vec half = v_half_pow2(biased);
    return v_zero_below(x, -86.6f, v_mul(v_mul(p, half), v_set(2)));
}

/* 1 / (1 + exp(-x)) */
INLINE Vec v_sigmoid(Vec x)
{
    return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_set(0), x))));
}

/* x / (1 + exp(-x)) */
INLINE Vec v_silu(Vec x)
{
    return v_div(x, v_add(v_set(1), v_exp(v_sub(v_set(0), x))));
}

/* Asks for the lines of n floats that are to be read or written soon. */
INLINE void prefetch_floats(const float *at, int n)
{
    for (int i = 0; i < n; i += 16)
        __builtin_prefetch(at + i);
}

/* A step of up to VEC_N elements at p: all of them, or the n that are left. */
INLINE Vec v_load_some(const float *p, int n)
{
    return n >= VEC_N ? v_load(p) : v_load_n(p, n);
}
INLINE Vec v_bf16_some(const uint16_t *p, int n)
{
    return n >= VEC_N ? v_bf16(p) : v_bf16_n(p, n);
}
INLINE void v_store_some(float *p, Vec a, int n)
{
    if (n >= VEC_N)
        v_store(p, a);
    else
        v_store_n(p, a, n);
}

#endif
