/*
 * fp16.h: IEEE half precision to and from f32, one value at a time.
 */
#ifndef OFFSHOOT_KERNELS_FP16_H
#define OFFSHOOT_KERNELS_FP16_H

#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

SHARED_INLINE float fp16_to_float(uint16_t h)
{
    uint32_t magnitude = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t bits = magnitude << 13;
    float x;
    if (magnitude >= 0x7c00u) { /* infinity and NaN */
        bits |= 0x7f800000u;
        memcpy(&x, &bits, sizeof x);
    } else { /* denormals come right: the exponent's bias is put right by a multiplication */
        memcpy(&x, &bits, sizeof x);
        x *= 0x1p112f;
    }
    memcpy(&bits, &x, sizeof bits);
    bits |= sign;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to nearest, ties to even; too large becomes infinity; a NaN stays one. */
SHARED_INLINE uint16_t fp16_from_float(float x)
{
    uint32_t bits, sign;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (bits < 0x38800000u) { /* below 2^-14: f32's own adder rounds to a multiple of 2^-24 */
        float y;
        memcpy(&y, &bits, sizeof y);
        y += 0.5f;
        memcpy(&bits, &y, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - 0x38000000u) >> 13);
}

#endif
