/*
 * linear_int8.h: what products with INT8 weights share, in vectors (linear_vec_int8.h) or tiles
 * (linear_amx_int8.h): x as integers.
 *
 * 256 neighbours of a row of x become integers q, x = scale * q, |q| <= 32,512, in one of two ways
 * that depend on these 256 alone:
 *
 *     coarse  8 bits: q is 256 times an integer, half the work where bytes are multiplied
 *     fine    16 bits: where one number is over INT8_SPREAD times as large as their root mean
 *             square, so that 8 bits would say too little of the others
 *
 * A sum of 256 products is exact in 32 bits, so that the order within it is nobody's concern:
 * vectors and tiles, any shape of them, high and low bytes on their own give the same bits. Blocks
 * are added ascending, fused:
 *
 *     y = sum over blocks of 256 k's of (q w) * (scale of x * scale of w)
 *
 * Against the definition: |x - scale * q| <= 2^-7.9 of the block's largest |x|, fine 2^-16, and
 * some (cols / 256 + 3) * 2^-24 * sum |x w|. Blocks whose |x| stay below 2^-110 count as zero; one
 * with a NaN or an infinity gives NaN.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_INT8_H

#include <math.h>

#include "kernels/linear_cpu.h"
#include "kernels/vec_int.h"

enum { INT8_LARGEST = 127 * 256 /* |q| */, INT8_SPREAD = 8 };

/* What the terms of 256 numbers of a row take beside their bytes: scale and two words. */
enum { INT8_TERM_WORDS = INT8_BLOCK / 2 + 3 };

/* Bytes of the terms of n rows; of tiles', whole groups. */
INLINE int64_t int8_terms_bytes(int n, int cols)
{
    return (int64_t)n * int8_blocks(cols) * INT8_TERM_WORDS * 4;
}

/* Numbers from column k on, zeros past the last. */
INLINE void int8_load_x(const float *x, int cols, int k, float v[INT8_BLOCK])
{
    for (int i = 0; i < INT8_BLOCK; i += VEC_N) {
        int left = cols - k - i;
        v_store(v + i, left > 0 ? v_load_some(x + k + i, left) : v_set(0));
    }
}

/* q = the integers next to v * factor, ties to even. */
INLINE void int8_integers(const float v[INT8_BLOCK], float factor, int16_t q[INT8_BLOCK])
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    for (int i = 0; i < INT8_BLOCK; i++) {
        float rounded = v[i] * factor + magic;
        int32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        q[i] = (int16_t)bits;
    }
}

/* The scale of 256 numbers of x; they become q. */
INLINE float int8_round(const float v[INT8_BLOCK], int16_t q[INT8_BLOCK], int *is_fine)
{
    int32_t most = 0, squares = 0;
    float largest;
    for (int i = 0; i < INT8_BLOCK; i++) { /* magnitudes are in the order of their bits */
        int32_t size;
        memcpy(&size, v + i, sizeof size);
        size &= 0x7fffffff;
        most = size > most ? size : most;
    }
    memcpy(&largest, &most, sizeof largest);
    *is_fine = 0;
    if (most >= 0x7f800000 || largest < INT8_TINY) {
        memset(q, 0, INT8_BLOCK * sizeof *q);
        return most >= 0x7f800000 ? NAN : 0;
    }
    int8_integers(v, 127 / largest, q);
    for (int i = 0; i < INT8_BLOCK; i++)
        squares += q[i] * q[i];
    *is_fine = squares < INT8_BLOCK * 127 * 127 / (INT8_SPREAD * INT8_SPREAD);
    if (*is_fine)
        int8_integers(v, INT8_LARGEST / largest, q);
    else
        for (int i = 0; i < INT8_BLOCK; i++)
            q[i] = (int16_t)(q[i] * 256);
    return largest / INT8_LARGEST;
}

#if INT8_BYTES
/* 64 of q as their high and their low bytes, in the order of W's columns. */
INLINE void int8_bytes(const int16_t *q, __m512i *high, __m512i *low)
{
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 32);
    __m512i h =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(_mm512_srai_epi16(a, 8))),
                           _mm512_cvtepi16_epi8(_mm512_srai_epi16(b, 8)), 1);
    __m512i l = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                                   _mm512_cvtepi16_epi8(b), 1);
    *high = _mm512_shuffle_epi8(h, order);
    *low = _mm512_shuffle_epi8(l, order);
}
#endif

/* What one call computes: outputs up to row `end` of w for n rows whose terms these are. */
typedef struct {
    const Weight *w;
    int end, n;
    const uint32_t *terms;
    float *const *y;
} Int8Product;

/* From a block to the next one that is read: after the last, the first of the next outputs. */
INLINE int64_t int8_ahead(const Weight *w, int n_panels, int64_t block)
{
    if (block + 1 < int8_blocks(w->cols)) return INT8_BLOCK_BYTES;
    return n_panels * INT8_ROWS * weight_row_bytes(w) - block * INT8_BLOCK_BYTES;
}

#endif
