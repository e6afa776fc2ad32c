/*
 * bf16.h: bfloat16 to and from f32, one value at a time.
 */
#ifndef OFFSHOOT_KERNELS_BF16_H
#define OFFSHOOT_KERNELS_BF16_H

#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

SHARED_INLINE float bf16_to_float(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to nearest, ties to even; a NaN stays one. */
SHARED_INLINE uint16_t bf16_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
