/*
 * check.h: `offshoot check`: the promise, proved on the user's own machine and model.
 *
 * The same questions are answered plainly and alone, then again in every way that must not matter:
 * repeated, in company, in other prompt chunks, with one state slot, with chains and trees of the
 * MTP head, of all ids and of few, with copies of what was said before and without, of a drafter
 * that lies, of one that is perfect, of random trees; greedy and seeded; some must be answered in
 * JSON. Tokens are compared as equal, not as close. A last line says how far a prompt's arithmetic
 * is from decoding's: on a GPU they may differ in last bits, on a CPU not at all.
 */
#ifndef OFFSHOOT_BENCH_CHECK_H
#define OFFSHOOT_BENCH_CHECK_H

#include <stdio.h>

#include "engine/engine.h"
#include "engine/model.h"
#include "text/tokenizer.h"

typedef struct {
    const Model *model;
    const Tokenizer *tok;
    const uint64_t *allowed;
    DraftVocab draft_vocab;
    int max_tokens; /* of each answer; -1: the default of 48 */
    int limit;      /* questions at most; 0: all */
    int64_t memory; /* this and the next two as EngineOptions */
    int ctx_size;
    KvType kv_type;
    int json;
} CheckSetup;

/* Prints a table to out. 0 when all is equal; -1 and an Error that names the first difference. */
int check_run(const CheckSetup *setup, FILE *out, Error *err);

#endif
