/*
 * cache_replay.h: what a request does to the prefix cache, without a model.
 *
 * The same calls in the same order as for a request that is served: looked up, memory claimed,
 * states kept at the places that the engine keeps them, memory let go. One request at a time: it is
 * over before the next begins. A simulation is made of these, and so is the tuning of alpha.
 */
#ifndef OFFSHOOT_ENGINE_CACHE_REPLAY_H
#define OFFSHOOT_ENGINE_CACHE_REPLAY_H

#include <stdint.h>

#include "engine/cache.h"
#include "engine/keep_plan.h"

typedef struct {
    const int32_t *token; /* [n_prompt + n_answer] */
    int n_prompt, n_answer;
    int n_stable; /* tokens of the prompt that later ones begin with; 0: none */
    int n_system; /* tokens that other conversations begin with; 0: not known */
    int answer_changes;
    uint64_t salt;
    double now, end; /* when it was looked up, and when it was over (before that: at once) */
} CachedRequest;

/*
 * Serves r; page[pages_for(n_prompt + n_answer)] is scratch. Returns how many tokens of the prompt
 * were cached. *fits becomes 0, and nothing is kept, when memory is too small for r alone.
 */
int cache_replay(Cache *c, Frames *f, const KeepRules *rules, const CachedRequest *r, int32_t *page,
                 int *fits);

#endif
