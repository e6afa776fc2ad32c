/*
 * fp8.h: FP8 e4m3 (sign, 4 bits of exponent with bias 7, 3 of fraction, no infinity) to and from
 * f32.
 *
 * The two NaN codes read as +-480, the value their bits would have: a checkpoint holds none, and
 * testing for them in the inner loop of linear would cost a tenth of it.
 */
#ifndef OFFSHOOT_KERNELS_FP8_H
#define OFFSHOOT_KERNELS_FP8_H

#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

enum { FP8_LARGEST = 448 };

/* Exponent and fraction land in those of an f32 whose bias is 120 larger: denormals come right. */
SHARED_INLINE float fp8_to_float(uint8_t b)
{
    uint32_t bits = (uint32_t)(b & 0x7f) << 20 | (uint32_t)(b & 0x80) << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x * 0x1p120f;
}

/* Rounds to nearest, ties to even; what is beyond +-448 becomes that, a NaN too: never a NaN code.
 */
SHARED_INLINE uint8_t fp8_from_float(float x)
{
    uint32_t bits, code;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size >= 0x43e00000) { /* 448 */
        code = 0x7e;
    } else if (size < 0x3c800000) { /* 2^-6: steps of 2^-9, rounded where f32 has steps of 1 */
        float magnitude;
        memcpy(&magnitude, &size, sizeof magnitude);
        magnitude = magnitude * 0x1p9f + 0x1p23f;
        memcpy(&code, &magnitude, sizeof code);
        code &= 15;
    } else {
        code = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    }
    return (uint8_t)(sign | code);
}

/*
 * What x is divided by, as x * (1 / scale), before it is rounded: the largest |x| of those that
 * share it becomes 448. NaN for a NaN. So small that they would all become zeros: 1.
 */
SHARED_INLINE float fp8_scale(float largest)
{
    return largest < 0x1p-100f ? 1.0f : largest / FP8_LARGEST;
}

#endif
