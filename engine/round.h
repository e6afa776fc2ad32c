/*
 * round.h: a step of decoding sequences as one run of operations on a device.
 *
 *     drafts, level by level -> trees -> the target's pass -> its choices -> accepted paths, KV
 *     moves -> the head sees what was accepted, where that is of use
 *
 * Nothing of it is read by the host before its end, so a backend with graphs launches it at once,
 * and the next round can be queued before the host has read this one: engine/step.c does the same
 * step with the host in between, for prompts, log-probabilities, drafters that live on the host,
 * and backends whose memory is the host's, where there is nobody to wait for. Same tokens.
 *
 * A round that was queued and not read is *in flight*; at most two are. Every node, the root too,
 * has a slot of its own there, held until the host has read the round, so that what a round leaves
 * lives until then, and the state of a path that ends an answer can be kept. Where slots are few,
 * it is done without. A sequence that the host ends meanwhile is forgotten: what the round after it
 * computed for it is dropped.
 */
#ifndef OFFSHOOT_ENGINE_ROUND_H
#define OFFSHOOT_ENGINE_ROUND_H

#include "engine/cost.h"
#include "kernels/backend.h"
#include "spec/tree.h"

/* What a round is, for those who queue its operations; arrays are backend memory. */
typedef struct Round {
    int n, n_nodes; /* trees; nodes of each, pads included; n * n_nodes <= MAX_TREE_NODES */
    int depth;      /* levels of drafts, 0: none */
    int topk, n_keys;
    int uncut;          /* Sample.uncut of all that is sampled */
    int32_t *seq;       /* [n] */
    RoundSeq *seqs;     /* [max_seqs] */
    int32_t *slot;      /* [n * n_nodes] */
    DraftPool *pool;    /* [n]: where drafts grow */
    RoundTree *tree;    /* [n] */
    int32_t *hidden;    /* [n * (depth + 1)]: rows of final that the head sees */
    int32_t *last;      /* [n]: of them, each tree's last that stays */
    const float *final; /* [n * n_nodes][dim]: the target's rows after the final norm */
} Round;

/* Rows of a draft's level after the first: nodes that are expanded. */
static inline int round_width(const Round *r)
{
    return r->topk < r->n_nodes - 1 ? r->topk : r->n_nodes - 1;
}

/* A round in flight. */
typedef struct {
    int n, n_nodes, depth;
    CostCompany who;
    int is_shown;              /* the drafter sees its rows */
    int is_ahead, is_settled;  /* queued behind another; as Backend.replay says */
    int index[MAX_TREE_NODES]; /* sequences; -1: forgotten */
    /*
     * Nodes own_from, ... of each tree have slots of their own, n_own of them: all, or all but the
     * root, which then writes the main slot. Where nodes leave records the first one's is where the
     * kept path's state goes, or that goes to the main slot.
     */
    int own_from, n_own;
    int32_t slot[MAX_TREE_NODES];
    /* host memory that the device reads and writes */
    int32_t *seq_sent, *slot_sent; /* [MAX_TREE_NODES] */
    RoundTree *tree;               /* [most trees] */
    float *final; /* backend memory, [MAX_TREE_NODES][dim]: what the pass left of Round.final, for
                     the prefix cache; NULL without one */
} Flight;

/* An engine's rounds; nothing is taken where there will be none. */
typedef struct {
    int open;
    uint64_t owner;
    int n_flying, first; /* of flight[] */
    double read_at;      /* when the last one was read, ms */
    Flight flight[BACKEND_MARKS];
    Round arrays; /* its pointers alone */
} Rounds;

#endif
