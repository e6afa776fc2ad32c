/*
 * linear_int8.h: what products with INT8 weights, and INT4, which become INT8, share, in vectors
 * (linear_vec_int8.h) or tiles (linear_amx_int8.h): x as integers.
 *
 * 256 neighbours of a row of x become integers q, x = scale * q, in one of two ways that depend on
 * these 256 alone:
 *
 *     coarse  8 bits, |q| <= 127: half the work where bytes are multiplied
 *     fine    16 bits, |q| <= 32,512: where one number is over INT8_SPREAD times as large as their
 *             root mean square, so that 8 bits would say too little of the others
 *
 * A sum of 256 products is exact in 32 bits, so that the order within it is nobody's concern:
 * vectors and tiles, any shape of them, high and low bytes on their own give the same bits. Blocks
 * are added ascending, fused:
 *
 *     y = sum over blocks of 256 k's of (q w) * (scale of x * scale of w)
 *
 * Against the definition: |x - scale * q| <= 2^-7.9 of the block's largest |x|, fine 2^-15.9, and
 * some (cols / 256 + 3) * 2^-24 * sum |x w|. Blocks whose |x| stay below 2^-110 count as zero; one
 * with a NaN or an infinity gives NaN.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_INT8_H

#include <math.h>

#include "kernels/linear_cpu.h"
#include "kernels/unpack_int4.h"
#include "kernels/vec_int.h"

enum { INT8_COARSER = 256, INT8_LARGEST = 127 * INT8_COARSER /* fine |q| */, INT8_SPREAD = 8 };

/* What the terms of 256 numbers of a row take beside their bytes: scale and two words. */
enum { INT8_TERM_WORDS = INT8_BLOCK / 2 + 3 };

/* Bytes of the terms of n rows; of tiles', whole groups. */
INLINE int64_t int8_terms_bytes(int n, int cols)
{
    return (int64_t)n * int8_blocks(cols) * INT8_TERM_WORDS * 4;
}

/* The largest of 256 |x| by its bits, and the scale of fine q; 0 where all q are zeros. */
INLINE float int8_largest(int32_t bits, float *scale)
{
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    *scale = bits >= 0x7f800000 ? NAN : largest < INT8_TINY ? 0 : largest / INT8_LARGEST;
    return *scale > 0 ? largest : 0;
}

/* Of 256 numbers whose largest is 127, by the sum of the squares of what is next to them. */
INLINE int int8_is_fine(int32_t squares)
{
    return squares < INT8_BLOCK * 127 * 127 / (INT8_SPREAD * INT8_SPREAD);
}

#if INT8_BYTES
/* 64 words of -128 .. 255 as bytes, in the order of W's columns. */
INLINE __m512i int8_bytes(const __m512i word[4], int is_signed)
{
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    __m512i a = _mm512_packs_epi32(word[0], word[1]), b = _mm512_packs_epi32(word[2], word[3]);
    a = is_signed ? _mm512_packs_epi16(a, b) : _mm512_packus_epi16(a, b);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, a), order);
}

/* 256 neighbours of a row of x: the bytes of q, of fine ones the high and the low ones, in the
 * order of W's columns. */
typedef struct {
    __m512i high[INT8_BLOCK / 64], low[INT8_BLOCK / 64];
    float scale;
    int is_fine;
} Int8Bytes;

/* The integers next to v * factor, 64 of them. */
INLINE void int8_integers(const Vec v[4], float factor, __m512i q[4])
{
    for (int i = 0; i < 4; i++)
        q[i] = _mm512_cvtps_epi32(v_mul(v[i], v_set(factor)));
}

/* Columns k to k + 256 of x, zeros past the last. */
INLINE Int8Bytes int8_round(const float *x, int cols, int k)
{
    Int8Bytes to = {0};
    Vec v[INT8_BLOCK / VEC_N];
    __m512i most = _mm512_setzero_si512(), squares = most, q[4];
    for (int i = 0; i < INT8_BLOCK / VEC_N; i++) { /* magnitudes are in the order of their bits */
        int left = cols - k - i * VEC_N;
        v[i] = left > 0 ? v_load_some(x + k + i * VEC_N, left) : v_set(0);
        most = _mm512_max_epi32(
            most, _mm512_and_si512(_mm512_castps_si512(v[i]), _mm512_set1_epi32(0x7fffffff)));
    }
    float largest = int8_largest(_mm512_reduce_max_epi32(most), &to.scale);
    if (!largest) return to;
    for (int s = 0; s < INT8_BLOCK / 64; s++) {
        int8_integers(v + 4 * s, 127 / largest, q);
        to.high[s] = int8_bytes(q, 1);
        __m512i size = _mm512_abs_epi8(to.high[s]);
        squares = _mm512_dpbusd_epi32(squares, size, size);
    }
    to.is_fine = int8_is_fine(_mm512_reduce_add_epi32(squares));
    if (!to.is_fine) to.scale *= INT8_COARSER;
    for (int s = 0; s < INT8_BLOCK / 64 && to.is_fine; s++) {
        __m512i high[4], low[4];
        int8_integers(v + 4 * s, INT8_LARGEST / largest, q);
        for (int i = 0; i < 4; i++) {
            high[i] = _mm512_srai_epi32(q[i], 8);
            low[i] = _mm512_and_si512(q[i], _mm512_set1_epi32(255));
        }
        to.high[s] = int8_bytes(high, 1);
        to.low[s] = int8_bytes(low, 0);
    }
    return to;
}
#else
/* 256 neighbours of a row of x; coarse q are bytes. */
typedef struct {
    int16_t q[INT8_BLOCK];
    float scale;
    int is_fine;
} Int8Words;

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

/* Columns k to k + 256 of x, zeros past the last. */
INLINE void int8_round(const float *x, int cols, int k, Int8Words *to)
{
    float v[INT8_BLOCK];
    int32_t most = 0, squares = 0;
    for (int i = 0; i < INT8_BLOCK; i += VEC_N) {
        int left = cols - k - i;
        v_store(v + i, left > 0 ? v_load_some(x + k + i, left) : v_set(0));
    }
    for (int i = 0; i < INT8_BLOCK; i++) { /* magnitudes are in the order of their bits */
        int32_t size;
        memcpy(&size, v + i, sizeof size);
        size &= 0x7fffffff;
        most = size > most ? size : most;
    }
    float largest = int8_largest(most, &to->scale);
    to->is_fine = 0;
    if (!largest) {
        memset(to->q, 0, sizeof to->q);
        return;
    }
    int8_integers(v, 127 / largest, to->q);
    for (int i = 0; i < INT8_BLOCK; i++)
        squares += to->q[i] * to->q[i];
    to->is_fine = int8_is_fine(squares);
    if (to->is_fine)
        int8_integers(v, INT8_LARGEST / largest, to->q);
    else
        to->scale *= INT8_COARSER;
}
#endif

/* What one call computes: outputs up to row `end` of w for n rows whose terms these are. */
typedef struct {
    const Weight *w;
    int end, n;
    const uint32_t *terms;
    float *const *y;
} Int8Product;

/* Bytes of a whole block of a panel. */
INLINE int64_t int8_block_bytes(const Weight *w)
{
    return w->type == WEIGHT_INT4 ? INT4_BLOCK_BYTES : INT8_BLOCK_BYTES;
}

/* From a block to the next one that is read: after the last, the first of the next outputs. */
INLINE int64_t int8_ahead(const Weight *w, int n_panels, int64_t block)
{
    if (block + 1 < int8_blocks(w->cols)) return int8_block_bytes(w);
    return n_panels * INT8_ROWS * weight_row_bytes(w) - block * int8_block_bytes(w);
}

/* Codes of some panels, from a column on. */
typedef struct {
    const int8_t *at;
    int64_t panel_bytes; /* from a panel's codes to the next one's */
} Int8Codes;

/* Those of the panels from row r on in block b, as they lie in memory. */
INLINE Int8Codes int8_codes_at(const Weight *w, int r, int b)
{
    return (Int8Codes){int8_panel(w, r) + b * int8_block_bytes(w), INT8_ROWS * weight_row_bytes(w)};
}

/* n_steps of 64 columns, a block at most, of INT4's panels as INT8's, in room for a block each. */
INLINE Int8Codes int4_codes(Int8Codes w, int n_panels, int n_steps, int8_t *room)
{
    for (int i = 0; i < n_panels; i++)
        int4_unpack((const uint8_t *)w.at + i * w.panel_bytes, n_steps,
                    room + i * INT8_BLOCK_BYTES);
    return (Int8Codes){room, INT8_BLOCK_BYTES};
}

#endif
