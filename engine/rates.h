/*
 * rates.h: how often drafts turn out to be right, learnt from what the target chose.
 *
 * A drafter says how likely it thinks each of its guesses is; rates say what to make of that. Each
 * sequence has its own, which begin with what all of them have taught.
 */
#ifndef OFFSHOOT_ENGINE_RATES_H
#define OFFSHOOT_ENGINE_RATES_H

#include <stdint.h>

#include "spec/tree.h"

enum { MAX_LEVELS = 7 }; /* of a tree whose shape the engine chooses */
enum { SAID_BINS = 16, RATE_BINS = GUESS_BOTH * 2 * SAID_BINS };

/* Guesses that their drafter thinks about as likely. */
typedef struct {
    double chance;
    int n_seen; /* up to some number */
} RateBin;

/* level[d]: the chance of the head's best guess at level d, before one knows it; [0] is not used.
 */
typedef struct {
    double level[MAX_LEVELS + 1];
    long seen_at[MAX_LEVELS + 1]; /* the step */
    RateBin bin[RATE_BINS]; /* by who guessed, a node's best child or another, what was said */
} DraftRates;

/* A drafter's word is believed, the levels are those of a fair one. */
void rates_init(DraftRates *r);

/*
 * The chance of t's nodes, each as its value / its parent's says, times its parent's chance:
 * chance[i] of node i, the root's 1. Those of a node's children add up to its own at most.
 */
void rates_value(const DraftRates *r, const Tree *t, float *chance);

/*
 * What the target chose after the root of t, and along it: n >= 0 tokens. Learns from every child
 * of a node on the way, also from those that were not verified. r is one sequence's, `all` of all;
 * step numbers the engine's steps.
 */
void rates_learn(DraftRates *r, DraftRates *all, const Tree *t, const int32_t *token, int n,
                 long step);

#endif
