/*
 * linear_int8.h: what products with INT8 weights share, in vectors (linear_vec_int8.h) or tiles
 * (linear_amx_int8.h): x as integers.
 *
 * 256 neighbours of a row of x become integers q of 16 bits, x = scale * q, |q| <= 32,512. A sum of
 * 256 products is exact in 32 bits, so that the order within it is nobody's concern: vectors and
 * tiles, any shape of them, give the same bits. Blocks are added ascending, fused:
 *
 *     y = sum over blocks of 256 k's of (q w) * (scale of x * scale of w)
 *
 * Against the definition: |x - scale * q| <= 2^-16 of the block's largest |x|, and some
 * (cols / 256 + 3) * 2^-24 * sum |x w|. Blocks whose |x| stay below 2^-110 count as zero; one with
 * a NaN or an infinity gives NaN.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_INT8_H

#include <math.h>

#include "kernels/linear_cpu.h"

enum { INT8_LARGEST = 127 * 256 /* |q| */ };

/* Bytes of n rows of q, the columns up to a block, and of their scales; of tiles', whole groups. */
INLINE int64_t int8_terms_bytes(int n, int cols)
{
    return (int64_t)n * int8_blocks(cols) * (INT8_BLOCK * 2 + 4);
}

/* Numbers from column k on, zeros past the last. */
INLINE void int8_load_x(const float *x, int cols, int k, float v[INT8_BLOCK])
{
    for (int i = 0; i < INT8_BLOCK; i += VEC_N) {
        int left = cols - k - i;
        v_store(v + i, left > 0 ? v_load_some(x + k + i, left) : v_set(0));
    }
}

/* The scale of 256 numbers of x; they become q. */
INLINE float int8_round(float v[INT8_BLOCK], int16_t q[INT8_BLOCK])
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    int32_t bits[INT8_BLOCK], most = 0;
    float largest, inverse = 0, scale = 0;
    memcpy(bits, v, sizeof bits);
    for (int i = 0; i < INT8_BLOCK; i++) { /* magnitudes are in the order of their bits */
        int32_t size = bits[i] & 0x7fffffff;
        most = size > most ? size : most;
    }
    memcpy(&largest, &most, sizeof largest);
    if (most >= 0x7f800000) {
        scale = NAN;
        memset(v, 0, INT8_BLOCK * sizeof *v);
    } else if (largest >= INT8_TINY) {
        scale = largest / INT8_LARGEST;
        inverse = INT8_LARGEST / largest;
    }
    for (int i = 0; i < INT8_BLOCK; i++)
        v[i] = v[i] * inverse + magic;
    memcpy(bits, v, sizeof bits);
    for (int i = 0; i < INT8_BLOCK; i++)
        q[i] = (int16_t)bits[i];
    return scale;
}

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
