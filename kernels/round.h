/*
 * round.h: what a round of speculation does beside the model's passes, in backend memory.
 *
 *     grow_drafts, once a level  ->  plant_trees  ->  [pass, sample]  ->  accept_trees
 *
 * A round over n sequences is queued as a whole: the host reads nothing of it before its end, so
 * that it can be one graph and the next round can be queued behind it. Numbers of rows are
 * therefore fixed: n_nodes rows a tree, with rows that stand for no node (pads) where a tree has
 * fewer. A pad is a child of the root with a slot and a KV row of its own; nobody reads it.
 *
 * The same rules on plain arrays, for trees that the host makes: spec/tree.h, spec/accept.h.
 */
#ifndef OFFSHOOT_KERNELS_ROUND_H
#define OFFSHOOT_KERNELS_ROUND_H

#include <stdint.h>

#include "kernels/inline.h"
#include "kernels/philox.h"
#include "kernels/sample.h"

enum {
    MAX_ROUND_NODES = 64, /* of a tree, and rows of a level of all drafts */
    MAX_POOL = MAX_ROUND_NODES + MAX_ROUND_NODES * MAX_TOP,
};

/* What the kernels must know of each row; one array per field, so that it travels in one piece. */
typedef struct {
    int32_t *token;
    int32_t *pos;      /* position = index of the row's own key */
    int32_t *rope_pos; /* pos for the trunk, pos - 1 for the head */
    int32_t *seq;
    int32_t *parent;    /* row of the parent, -1: none in this batch */
    int32_t *src, *dst; /* state slots; dst -1: the row leaves a record */
    int32_t *kv_row;    /* where the row's K and V go */
    int32_t *base;      /* keys of positions below this lie in their own rows */
} RowMeta;

/* A sequence between two rounds. */
typedef struct {
    SampleRow row;       /* how the token after the root is chosen; its path is not used */
    uint32_t *counts;    /* row.counts, or NULL; accept_trees adds what was accepted */
    int32_t root;        /* the last token, not yet processed */
    int32_t pos;         /* of the root; row.pos is pos + 1 */
    int32_t slot;        /* the state after the token before the root */
    int32_t n_generated; /* the root included */
    int32_t min_tokens;  /* row.n_ban ids must not be chosen before this many are there */
    int32_t max_tokens;  /* it ends with so many, or with one of these ids: */
    int32_t n_end;
    const int32_t *end;
} RoundSeq;

/* A proposed node. Children come after their parents, and no child has more value. */
typedef struct {
    float logp; /* of the whole path: log value */
    int32_t token;
    int32_t parent; /* in the pool, -1: the root */
    int32_t depth;  /* the root's children have 1 */
    int32_t out;    /* its row of the last head pass, -1: none */
    int32_t meta;   /* its row in the tables of the head's passes, -1: not expanded */
} DraftNode;

/* A draft while it grows. */
typedef struct {
    int32_t n;
    int32_t n_frontier;
    int32_t frontier[MAX_ROUND_NODES]; /* nodes whose children come next, best first */
    DraftNode node[MAX_POOL];
    int32_t at[MAX_POOL]; /* where a node is in the tree, or after pruning; scratch */
} DraftPool;

/* A tree and what became of it; node 0 is the root. Depth-first order, best child first. */
typedef struct {
    int32_t n;
    int32_t m;                     /* drafts accepted */
    int32_t path[MAX_ROUND_NODES]; /* nodes accepted: path[0] is 0, path[m] the last */
    int32_t token[MAX_ROUND_NODES], parent[MAX_ROUND_NODES], depth[MAX_ROUND_NODES];
    int32_t next[MAX_ROUND_NODES]; /* what the target chose after each node; -1: a row held NaN */
    float value[MAX_ROUND_NODES];  /* estimated chance that the node is accepted; root 1 */
} RoundTree;

/* Rows to sample: row[i].path points to path + i * MAX_ROUND_NODES. */
typedef struct {
    SampleRow *row;
    int32_t *path;
} SampleRows;

/*
 * One level of n drafts. Level 0 empties the pools and asks for the roots' children: n rows.
 * Level l >= 1 takes those children (n_parents rows a draft, the frontier's of the level before),
 * keeps the most best nodes of each pool (ties: the earlier) and, unless width is 0, chooses the
 * width best of depth l to be expanded: width rows a draft for the head's pass, at rows row0.. of
 * meta, and for the sampling of their children. Rows beyond a draft's frontier are pads.
 *     head: token at pos root + l, parent an earlier row of meta, K and V at row root + 1 + kv0 +
 *     k, keys of positions up to the root in their own rows
 *     hidden[i]: the row of the head's last output that belongs to the node's parent; at level 1
 *     the sequence
 * Source of the tree: EAGLE-2, arXiv 2406.16858.
 */
typedef struct {
    int n, level, n_parents, width, n_top, most;
    int kv0;              /* KV rows that the levels before took of each draft */
    int by_lot;           /* 1: drafts are kept by lot, pool_guess_logp */
    const int32_t *seq;   /* [n] */
    const RoundSeq *seqs; /* [n_seqs] */
    DraftPool *pool;      /* [n] */
    const int32_t *id;    /* [n * n_parents][n_top], best first, -1 after the last */
    const float *logp;    /* the same */
    const uint8_t *bad;   /* [n * n_parents] */
    RowMeta meta;         /* the head's */
    int row0;
    int32_t *hidden;   /* [n * width] */
    SampleRows sample; /* [n * width], at level 0 [n] */
} GrowDrafts;

/*
 * Drafts become trees, trees rows of the target's pass: rows i * n_nodes.. of meta belong to tree
 * i. Node j writes slot[i * n_nodes + j], or without slots leaves a record of itself; its K and V
 * go to row root + j.
 */
typedef struct {
    int n, n_nodes;
    const int32_t *seq; /* [n] */
    const RoundSeq *seqs;
    DraftPool *pool;     /* [n], each of at most n_nodes - 1 nodes; NULL: trees of the root */
    const int32_t *slot; /* [n * n_nodes], or NULL */
    RoundTree *tree;     /* [n] */
    RowMeta meta;
    SampleRows sample; /* [n * n_nodes] */
} PlantTrees;

/*
 * Walks each tree along what the target chose and moves its sequence on: the last accepted node's
 * slot is the state, the token chosen after it the root; counts get the chosen tokens. A walk ends
 * at the first choice that is no child or ends the sequence, so that its state is the one that is
 * kept then. Where else a sequence must end, the host sees later; what it does not keep, it drops.
 * Leaves moves of KV rows, depth a tree: row to[] = row from[], and the rows that the head is to
 * see, depth + 1 a tree: the token at its position, the target's row whose hidden it goes with. Of
 * them last[i] is the last that stays; those behind it write rows that a later round writes first.
 */
typedef struct {
    int n, n_nodes, depth; /* no node is deeper */
    int n_vocab;
    float synthetic;    /* rate of synthetic_choice */
    const int32_t *seq; /* [n] */
    RoundSeq *seqs;
    const int32_t *slot; /* as planted; before a fold the first of a tree's is where it leaves the
                            state */
    int32_t *fold_path, *fold_length, *fold_from, *fold_slot; /* what DeltaFold takes, or NULL */
    int fold_stride;
    RoundTree *tree;                         /* [n] */
    const int32_t *next;                     /* [n * n_nodes] */
    const uint8_t *bad;                      /* [n * n_nodes] */
    int32_t *move_seq, *move_from, *move_to; /* [n * depth] */
    RowMeta meta;    /* the head's, [n * (depth + 1)]; its arrays NULL: there is no head */
    int32_t *hidden; /* [n * (depth + 1)] */
    int32_t *last;   /* [n] */
} AcceptTrees;

/*
 * Synthetic acceptance, to measure speed without weights: in place of what the target chose after
 * `node`, its first child with probability rate, else what is no child of it. A function of the
 * position that is chosen for; rate 0 is off.
 */
SHARED_INLINE int32_t synthetic_choice(const int32_t *parent, const int32_t *token, int n, int node,
                                       int32_t chosen, float rate, int32_t pos, int n_vocab)
{
    if (rate <= 0 || chosen < 0 || node + 1 >= n || parent[node + 1] != node) return chosen;
    if (philox_uniform(philox_word(0x5eed, (uint32_t)pos, 0, 0)) < rate) return token[node + 1];
    for (int j = node + 1; j < n; j++) {
        if (parent[j] != node || token[j] != chosen) continue;
        chosen = (chosen + 1) % n_vocab;
        j = node; /* look at all of them again */
    }
    return chosen;
}

#endif
