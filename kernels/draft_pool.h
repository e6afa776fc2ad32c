/*
 * draft_pool.h: how a draft grows, from one source for host and GPU: its nodes, which of them stay,
 * and which are expanded next.
 *
 * LANES threads work on a draft together: 32 lanes of a warp, or one where this is plain C. Who
 * includes this file for a GPU says how: ROUND_INLINE, LANE, LANES, LANES_SYNC(), and
 * LANES_BEST(value, index), the index (-1: none) of the largest value over all lanes, ties to the
 * lowest index. What one lane writes, others read after LANES_SYNC.
 */
#ifndef OFFSHOOT_KERNELS_DRAFT_POOL_H
#define OFFSHOOT_KERNELS_DRAFT_POOL_H

#include "kernels/round.h"

#ifndef LANES
#define ROUND_INLINE             static inline
#define LANE                     0
#define LANES                    1
#define LANES_SYNC()             ((void)0)
#define LANES_BEST(value, index) (index)
#endif

/* Tokens from the root's child down to node (-1: the root), depth of them. */
ROUND_INLINE void pool_path(const DraftPool *p, int node, int32_t *path)
{
    for (; node >= 0; node = p->node[node].parent)
        path[p->node[node].depth - 1] = p->node[node].token;
}

/* Sets c to a child of parent, whose path has the log value `above` (the root's: 0). */
ROUND_INLINE void pool_child(DraftNode *c, int parent, float above, int depth, int32_t token,
                             float logp)
{
    c->logp = above + (logp < 0 ? logp : 0);
    c->token = token;
    c->parent = parent;
    c->depth = depth;
    c->out = c->meta = -1;
}

/*
 * The log value of a node's guess number `rank`, from 0: what the head said of it. Where drafts are
 * kept by lot (synthetic_choice) that says nothing, and the first guess is sure: only first guesses
 * have a lot, so that a tree is to have them down to its depth.
 */
ROUND_INLINE float pool_guess_logp(int by_lot, int rank, float logp)
{
    return by_lot ? -(float)rank : logp;
}

/* The best node of those that `at` does not mark and, unless depth is 0, have this depth; or -1. */
ROUND_INLINE int pool_best(const DraftPool *p, int depth)
{
    int best = -1;
    for (int c = LANE; c < p->n; c += LANES)
        if (p->at[c] < 0 && (!depth || p->node[c].depth == depth) &&
            (best < 0 || p->node[c].logp > p->node[best].logp))
            best = c;
    return LANES_BEST(best < 0 ? 0 : p->node[best].logp, best);
}

ROUND_INLINE void pool_clear_marks(DraftPool *p)
{
    for (int c = LANE; c < p->n; c += LANES)
        p->at[c] = -1;
    LANES_SYNC();
}

ROUND_INLINE void pool_mark(DraftPool *p, int node)
{
    if (LANE == 0) p->at[node] = 0;
    LANES_SYNC();
}

/*
 * Keeps the most best nodes (ties: the earlier) in their order. No value rises along a path, so
 * paths stay whole. Places in the frontier do not hold any more.
 */
ROUND_INLINE void pool_keep_best(DraftPool *p, int most)
{
    int n = 0;
    if (p->n <= most) return;
    pool_clear_marks(p);
    for (int kept = 0; kept < most; kept++)
        pool_mark(p, pool_best(p, 0));
    for (int c = 0; LANE == 0 && c < p->n; c++) {
        if (p->at[c] < 0) continue;
        DraftNode node = p->node[c];
        if (node.parent >= 0) node.parent = p->at[node.parent];
        p->at[c] = n;
        p->node[n++] = node;
    }
    if (LANE == 0) p->n = n;
    LANES_SYNC();
}

/* The frontier: the width best nodes of this depth. */
ROUND_INLINE void pool_choose_frontier(DraftPool *p, int depth, int width)
{
    int n = 0;
    pool_clear_marks(p);
    while (n < width) {
        int best = pool_best(p, depth);
        if (best < 0) break;
        if (LANE == 0) p->frontier[n] = best;
        pool_mark(p, best);
        n++;
    }
    if (LANE == 0) p->n_frontier = n;
    LANES_SYNC();
}

#endif
