/*
 * check_variants.h: the ways in which `offshoot check` asks its questions again.
 */
#ifndef OFFSHOOT_BENCH_CHECK_VARIANTS_H
#define OFFSHOOT_BENCH_CHECK_VARIANTS_H

#include "engine/engine.h"

/* Nobody; the drafters of --draft; those that know the answers (drafts/scripted.h). */
typedef enum {
    BY_NOBODY,
    BY_HEAD,
    BY_NGRAM,
    BY_SUFFIX,
    BY_UNION,
    BY_PERFECT,
    BY_LIAR,
    BY_MIXED,
} CheckDraft;

/* One way to run all questions; everything that is 0 means "as always". */
typedef struct {
    const char *name;
    CheckDraft draft;
    int nodes, depth, topk;
    int chosen;   /* depth is, step by step */
    int together; /* all at once, in one batch */
    int rounds;   /* how often the questions are asked, in the same engine */
    int chunk, slots;
    StateMode states;
    int scarce;    /* pages for one context only: sequences give theirs up to each other */
    int few_ids;   /* the head scores a quarter of the vocabulary */
    int draft_max; /* of every request, as EngineRequest */
    enum { CACHE_OFF, CACHE_PROMPTS, CACHE_ANSWERS } cache;
} CheckVariant;

/* In the order in which they run, after plain decoding; draft_max is 0 (as always) or -2 (none). */
extern const CheckVariant check_variants[];
extern const int n_check_variants;

#endif
