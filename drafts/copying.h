/*
 * copying.h: what the drafters share that guess by what the sequence has said before, or what its
 * client predicts.
 */
#ifndef OFFSHOOT_DRAFTS_COPYING_H
#define OFFSHOOT_DRAFTS_COPYING_H

#include <stdint.h>

/*
 * The chance that what followed the last n >= 1 tokens before follows them again, as far as one can
 * tell by n. A guess to begin with: where the engine chooses shapes, it learns what such words are
 * worth (engine/rates.h).
 */
static inline float copying_chance(int n)
{
    return (float)n / ((float)n + 1.5F);
}

/* Whether it is an id, and the set has it; NULL: all are in it. */
static inline int copying_allowed(const uint64_t *allowed, int32_t token)
{
    if (token < 0) return 0;
    return !allowed || (allowed[token / 64] >> (token % 64) & 1);
}

#endif
