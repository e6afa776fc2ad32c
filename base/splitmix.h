/*
 * splitmix.h: SplitMix64 (Steele et al., Fast splittable pseudorandom number generators, 2014):
 * numbers that a seed determines, the same on every machine. Any seed is good, 0 too.
 */
#ifndef OFFSHOOT_BASE_SPLITMIX_H
#define OFFSHOOT_BASE_SPLITMIX_H

#include <stdint.h>

#define SPLITMIX_STEP UINT64_C(0x9E3779B97F4A7C15) /* between two states */

/* A bijection of 64-bit words that leaves no pattern. */
static inline uint64_t splitmix_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* The next number; a seed is the first state. */
static inline uint64_t splitmix_next(uint64_t *state)
{
    return splitmix_mix(*state += SPLITMIX_STEP);
}

#endif
