/*
 * delta_trees.h: rows of a layer as trees of many sequences, for the tests of its recurrences.
 */
#ifndef OFFSHOOT_TESTS_DELTA_TREES_H
#define OFFSHOOT_TESTS_DELTA_TREES_H

#include "tests/delta_layer.h"

/* For rows of many sequences: real head sizes, odd ones, more rows than a look-up takes in. */
enum { N_BATCH_SHAPES = 11 };
extern const DeltaShape batch_shapes[N_BATCH_SHAPES];

/* ---- rows that leave states ---- */

/* Rows of n_seqs sequences, side by side or in any mix; each starts from its main slot. */
void plant_batch(Rng *r, Layer *l, int n_seqs, int mixed);

/* 1 if each slot from which a tree of these rows starts is written by rows of that tree alone. */
int is_allowed(const int32_t *src, const int32_t *dst, int n);

/* ---- rows that leave none ---- */

enum { MAX_PATHS = N_MAIN };

/* The same rows twice: trees that leave a state in a slot for each row, and none. */
typedef struct {
    Layer slots, drafts;
    int n_paths;
    int32_t path[MAX_PATHS][MAX_DRAFT_ROWS + 3], length[MAX_PATHS];
    int32_t from[MAX_PATHS], slot[MAX_PATHS]; /* the tree's own, where the fold leaves the state */
    int32_t last[MAX_PATHS];                  /* row at the end of a path */
} Twins;

/* Trees of up to MAX_DRAFT_ROWS rows side by side, some prompts in place between them. */
void plant_twins(Rng *r, Twins *t);

/* All rows of drafts are one tree, and none leaves a state. */
void plant_one_tree(Rng *r, Layer *drafts);

#endif
