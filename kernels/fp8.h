/*
 * fp8.h: FP8 e4m3 (sign, 4 bits of exponent with bias 7, 3 of fraction, no infinity) to f32.
 *
 * The two NaN codes read as +-480, the value their bits would have: a checkpoint holds none, and
 * testing for them in the inner loop of linear would cost a tenth of it.
 */
#ifndef OFFSHOOT_KERNELS_FP8_H
#define OFFSHOOT_KERNELS_FP8_H

#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

/* Exponent and fraction land in those of an f32 whose bias is 120 larger: denormals come right. */
SHARED_INLINE float fp8_to_float(uint8_t b)
{
    uint32_t bits = (uint32_t)(b & 0x7f) << 20 | (uint32_t)(b & 0x80) << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x * 0x1p120f;
}

#endif
