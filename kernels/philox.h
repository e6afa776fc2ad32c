/*
 * philox.h: the noise of sampling, a function of (seed, choice, position, token) alone.
 *
 * Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011; Random123):
 * key = seed, counter = (position, token, choice, 0), the first word is used.
 *
 * The exponential is a fixed polynomial with no library call and no fused multiply-add, so it has
 * the same bits on every machine and in every vector width the compiler picks.
 */
#ifndef OFFSHOOT_KERNELS_PHILOX_H
#define OFFSHOOT_KERNELS_PHILOX_H

#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

#define PHILOX_KEY0 0x9E3779B9u /* added to the keys after each round */
#define PHILOX_KEY1 0xBB67AE85u

SHARED_INLINE void philox_round(uint32_t ctr[4], uint32_t key0, uint32_t key1)
{
    uint64_t a = (uint64_t)0xD2511F53u * ctr[0];
    uint64_t b = (uint64_t)0xCD9E8D57u * ctr[2];
    ctr[0] = (uint32_t)(b >> 32) ^ ctr[1] ^ key0;
    ctr[1] = (uint32_t)b;
    ctr[2] = (uint32_t)(a >> 32) ^ ctr[3] ^ key1;
    ctr[3] = (uint32_t)a;
}

/* ctr[] becomes the four random words. */
SHARED_INLINE void philox4x32(uint32_t ctr[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        philox_round(ctr, key0, key1);
        key0 += PHILOX_KEY0;
        key1 += PHILOX_KEY1;
    }
}

SHARED_INLINE uint32_t philox_word(uint64_t seed, uint32_t pos, uint32_t token, uint32_t choice)
{
    uint32_t ctr[4] = {pos, token, choice, 0};
    philox4x32(ctr, (uint32_t)seed, (uint32_t)(seed >> 32));
    return ctr[0];
}

SHARED_INLINE uint32_t philox_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

SHARED_INLINE float philox_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* u = (h + 0.5) / 2^32 in f32, kept below 1: larger h than the limit would round up to 1. */
SHARED_INLINE float philox_uniform(uint32_t h)
{
    h = h < 0xffffff7fu ? h : 0xffffff7fu;
    /* through a signed conversion, which every vector unit has; exact up to the last step */
    return (float)((double)(int32_t)(h ^ 0x80000000u) + 2147483648.5) * 0x1p-32f;
}

/*
 * E = -log1p(-u), exponential with mean 1, to 2 ulp. 1 - u = m * 2^e with m in [0.707, 1.414);
 * log(m) = f - f^2 / 2 + f^3 P(f), f = m - 1 (P: Cephes logf). Where e = 0, what the rounding of
 * 1 - u took is put back, so f = -u exactly and the small E, the ones that win, keep full relative
 * precision. No branches: loops over this become vectors.
 */
SHARED_INLINE float philox_exponential(float u)
{
    float t = 1.0f - u;
    uint32_t bits = philox_bits(t);
    int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23; /* 0x3f3504f3 = sqrt(1/2) */
    float lost = philox_float(philox_bits(u - (1.0f - t)) & (uint32_t) - (int32_t)(e == 0));
    float f = philox_float(bits - ((uint32_t)e << 23)) - 1.0f - lost;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float z = f * f;
    float y = p * f * z + (float)e * -2.12194440e-4f - 0.5f * z;
    return -(f + y + (float)e * 0.693359375f);
}

#endif
