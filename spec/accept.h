/*
 * accept.h: which nodes of a verified tree are kept, and what is emitted.
 *
 * The target has said for every node which token follows it. The walk starts at the root: while a
 * child carries the target's token, move there; the first token without a child is the bonus. What
 * is emitted depends on the target alone; the tree only decides how much of it is known already.
 * Stops come before promotion: the walk ends at the first token that ends the answer.
 */
#ifndef OFFSHOOT_SPEC_ACCEPT_H
#define OFFSHOOT_SPEC_ACCEPT_H

#include <stdint.h>

#include "spec/tree.h"

typedef struct {
    int m;                           /* draft nodes accepted and kept */
    int path[MAX_TREE_NODES];        /* [m + 1] node indices, path[0] = 0; path[m] is promoted */
    int32_t emitted[MAX_TREE_NODES]; /* [m + 1] tokens; emitted[d] follows path[d] */
    int stop;                        /* what stopped said of emitted[m]; 0: the answer goes on */
} AcceptedPath;

/*
 * next[i] is the target's token after node i (or -1: the row is bad; the walk stops before emitting
 * it and stop is -1, with m + 1 nodes but only m emitted tokens). stopped is asked once for each
 * token in order, before it counts as emitted; non-zero ends the walk with that token.
 */
void accept_path(const Tree *t, const int32_t *next, int (*stopped)(void *ctx, int32_t token),
                 void *ctx, AcceptedPath *out);

/*
 * The chance a of each first child that gives, on trees whose first children reach this depth,
 * acceptance length `length` (the target's own token included): a + a^2 + ... + a^depth = length -
 * 1, cut to [0, 1].
 */
double synthetic_rate(double length, int depth);

#endif
