/*
 * keep_plan.h: where on its way a request is to leave states in the prefix cache.
 */
#ifndef OFFSHOOT_ENGINE_KEEP_PLAN_H
#define OFFSHOOT_ENGINE_KEEP_PLAN_H

#include "engine/cache.h"

typedef struct {
    int keep_answers; /* as CacheOptions */
    int keep_prompts; /* 1: the prompt's end beside the answer's; 0: as Marconi */
    int block;        /* prompts' states lie at whole multiples of it; 0: anywhere */
} KeepRules;

typedef struct {
    int branch, system, prompt; /* tokens before the state, 0: none there */
    int answer;                 /* 1: at the answer's end */
} KeepPlan;

/* The last place up to n where a prompt may leave a state. */
int keep_whole_blocks(const KeepRules *rules, int n);

/*
 * For a prompt of n_prompt tokens behind its hit, of which other conversations begin with the first
 * n_system and later prompts with the first n_stable (0: not known to). answer_changes: it will not
 * come back as it was generated. At a branch, at the prompt's end, and at the answer's where it may
 * come back. And at n_system, where no prompt before had all these tokens: the next one would be
 * computed as a whole to learn of the branch. At most four that are new.
 */
KeepPlan keep_plan(const KeepRules *rules, const CacheHit *hit, int n_prompt, int n_system,
                   int n_stable, int answer_changes);

#endif
