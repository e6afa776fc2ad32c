/*
 * random_tree.h: random draft trees for tests: bushy and deep ones, with many equal values.
 */
#ifndef OFFSHOOT_TESTS_RANDOM_TREE_H
#define OFFSHOOT_TESTS_RANDOM_TREE_H

#include "spec/tree.h"
#include "tests/near.h"

/* 0..1 in steps of 1/4 for every other tree, so that ties are common. */
static inline float random_value(Rng *rng, int coarse)
{
    return coarse ? (float)rng_int(rng, 5) / 4 : (float)rng_int(rng, 1 << 20) * 0x1p-20f;
}

/* About n nodes over tokens [0, n_vocab); fewer where random children were there already. */
static inline void random_tree(Rng *rng, int n, int n_vocab, Tree *t)
{
    int coarse = rng_int(rng, 2), chains = rng_int(rng, 4);
    tree_init(t, rng_int(rng, n_vocab));
    for (int tries = 0; tries < 4 * n && t->n < n; tries++) {
        int parent = rng_int(rng, 4) < chains ? t->n - 1 : rng_int(rng, t->n);
        tree_add(t, parent, rng_int(rng, n_vocab), t->value[parent] * random_value(rng, coarse));
    }
}

#endif
