/*
 * near.h: random inputs from a printed seed, and comparisons that say where arrays differ.
 */
#ifndef OFFSHOOT_TESTS_NEAR_H
#define OFFSHOOT_TESTS_NEAR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/splitmix.h"

/* By SplitMix64. */
typedef struct {
    uint64_t seed, state;
} Rng;

static inline Rng rng_new(uint64_t seed)
{
    return (Rng){seed, seed};
}

static inline uint64_t rng_next(Rng *r)
{
    return splitmix_next(&r->state);
}

/* 0 .. n - 1 */
static inline int rng_int(Rng *r, int n)
{
    return (int)(rng_next(r) % (uint64_t)n);
}

/* Uniform in [-1, 1). */
static inline float rng_float(Rng *r)
{
    return (float)(int32_t)(rng_next(r) >> 32) * 0x1p-31f;
}

static inline void rng_fill(Rng *r, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(r) * scale;
}

/* 1 if |got - want| <= relative * |want| + absolute everywhere; else says where not. */
static inline int near_all(const char *what, const float *got, const float *want, size_t n,
                           double relative, double absolute, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double limit = relative * fabs((double)want[i]) + absolute;
        if (fabs((double)got[i] - (double)want[i]) <= limit) continue;
        fprintf(stderr, "%s: element %zu of %zu is %.9g, expected %.9g (seed %llu)\n", what, i, n,
                (double)got[i], (double)want[i], (unsigned long long)seed);
        return 0;
    }
    return 1;
}

/* 1 if the bits agree; else says where the first difference is. */
static inline int same_bits(const char *what, const float *got, const float *want, size_t n,
                            uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        if (!memcmp(&got[i], &want[i], sizeof *got)) continue;
        fprintf(stderr, "%s: element %zu of %zu is %a, expected the bits of %a (seed %llu)\n", what,
                i, n, (double)got[i], (double)want[i], (unsigned long long)seed);
        return 0;
    }
    return 1;
}

#endif
