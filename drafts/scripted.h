/*
 * scripted.h: a drafter that knows the answers, for `offshoot check` and the tests.
 *
 * It is given whole sequences (prompt and answer). Where a running sequence agrees with one of them
 * so far, it proposes what the script says: a perfect draft, a lie, or a random tree that hides a
 * part of the truth somewhere. Tokens must come out the same in every case.
 */
#ifndef OFFSHOOT_DRAFTS_SCRIPTED_H
#define OFFSHOOT_DRAFTS_SCRIPTED_H

#include "engine/model.h"
#include "spec/drafter.h"

typedef enum {
    SCRIPT_PERFECT, /* a chain of the right tokens */
    SCRIPT_LIE,     /* random trees of wrong tokens */
    SCRIPT_MIXED,   /* random trees: the right path to a random depth, at a random rank */
} ScriptMode;

typedef struct {
    const int32_t *token; /* borrowed until close */
    int n;
} Script;

/* scripts is copied, what its entries point to is not. seed decides every random choice. */
int scripted_drafter_open(const Model *model, ScriptMode mode, const Script *scripts, int n,
                          uint64_t seed, Drafter *out, Error *err);

#endif
