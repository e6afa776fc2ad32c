/*
 * vec_int.h: exact sums of products of small integers, in as many lanes as vec.h has floats.
 *
 * IntVec holds VEC_N words of 32 bits: sums, or four bytes of W each.
 */
#ifndef OFFSHOOT_KERNELS_VEC_INT_H
#define OFFSHOOT_KERNELS_VEC_INT_H

#include "kernels/vec.h"

/* Where a product takes four pairs of bytes, not two of 16 bits: an unsigned one and a signed one,
 * or two signed ones. */
#ifdef __AVX512VNNI__
#define INT8_BYTES 1
#else
#define INT8_BYTES 0
#endif
#ifdef __ARM_FEATURE_DOTPROD
#define INT8_SIGNED 1
#else
#define INT8_SIGNED 0
#endif

#if VEC_ISA == 512
typedef __m512i IntVec;

INLINE IntVec iv_load(const int8_t *p)
{
    return _mm512_loadu_si512(p);
}
/* The even bytes, as 16 bits each. */
INLINE IntVec iv_even(IntVec w)
{
    return _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
}
INLINE IntVec iv_odd(IntVec w)
{
    return _mm512_srai_epi16(w, 8);
}
/* sum + the products of pairs of 16 bits, the same pair of x for all. */
INLINE IntVec iv_dot(IntVec sum, IntVec w, uint32_t pair)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, _mm512_set1_epi32((int)pair)));
}
#if INT8_BYTES
/*
 * sums + u s, four products of an unsigned and a signed byte a word. Where the intrinsic is used
 * gcc 12 copies each sum before and after: 1.6 times the time.
 */
INLINE IntVec iv_dot_bytes(IntVec sum, IntVec u, IntVec s)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
    return sum;
}
#endif
INLINE Vec iv_float(IntVec a)
{
    return _mm512_cvtepi32_ps(a);
}
#elif VEC_ISA == 2
typedef __m256i IntVec;

INLINE IntVec iv_load(const int8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE IntVec iv_even(IntVec w)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
}
INLINE IntVec iv_odd(IntVec w)
{
    return _mm256_srai_epi16(w, 8);
}
INLINE IntVec iv_dot(IntVec sum, IntVec w, uint32_t pair)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(w, _mm256_set1_epi32((int)pair)));
}
INLINE Vec iv_float(IntVec a)
{
    return _mm256_cvtepi32_ps(a);
}
#else
typedef int32_t IntVec __attribute__((vector_size(16)));
typedef int16_t ShortVec __attribute__((vector_size(16)));

INLINE IntVec iv_load(const int8_t *p)
{
    IntVec w;
    memcpy(&w, p, sizeof w);
    return w;
}
INLINE IntVec iv_even(IntVec w)
{
    return (IntVec)((ShortVec)((ShortVec)w << 8) >> 8);
}
INLINE IntVec iv_odd(IntVec w)
{
    return (IntVec)((ShortVec)w >> 8);
}
INLINE IntVec iv_dot(IntVec sum, IntVec w, uint32_t pair)
{
    int16_t x[2];
    memcpy(x, &pair, sizeof x);
    return sum + (w << 16 >> 16) * x[0] + (w >> 16) * x[1];
}
#if INT8_SIGNED
/* sum + four products of bytes a word, those of x one of its four words; a constant. */
INLINE IntVec iv_dot_signed(IntVec sum, IntVec w, int8x16_t x, int word)
{
    const int8x16_t bytes = vreinterpretq_s8_s32(w);
    return word == 0   ? vdotq_laneq_s32(sum, bytes, x, 0)
           : word == 1 ? vdotq_laneq_s32(sum, bytes, x, 1)
           : word == 2 ? vdotq_laneq_s32(sum, bytes, x, 2)
                       : vdotq_laneq_s32(sum, bytes, x, 3);
}
#endif
INLINE Vec iv_float(IntVec a)
{
    return __builtin_convertvector(a, Vec);
}
#endif

#endif
