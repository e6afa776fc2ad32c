/*
 * drafter.h: what proposes token trees.
 *
 * A Drafter may lie, be empty or be perfect: tokens never depend on it, only speed does. The engine
 * calls it from one thread. It must not allocate after bind, and keep to a request's limits.
 */
#ifndef OFFSHOOT_SPEC_DRAFTER_H
#define OFFSHOOT_SPEC_DRAFTER_H

#include <stdint.h>

#include "base/error.h"
#include "spec/tree.h"

struct Engine;
struct Round;     /* engine/round.h */
struct SampleRow; /* kernels/sample.h */

/* Rows that were just committed, in order of position within a sequence. */
typedef struct {
    int n;
    const int32_t *seq;    /* [n], < max_seqs */
    const int32_t *pos;    /* [n] position of token, >= 1 */
    const int32_t *token;  /* [n] the token at pos: a prompt token or an emitted one */
    const int32_t *hidden; /* [n] row in final: the target's normed hidden row at pos - 1 */
    const float *final;    /* backend memory, rows of the model's dim */
} DraftObserved;

typedef struct {
    int seq;
    int32_t root_pos; /* position of the root = tokens committed; it has observed those up to it, of
                         a prompt perhaps the last ones alone */
    int max_nodes;    /* root included, >= 2 */
    int max_depth, topk;
    const int32_t *token;     /* [root_pos + 1] the sequence so far, the root last; borrowed */
    const int32_t *predicted; /* [n_predicted] what the client thinks is to come; borrowed */
    int n_predicted;
    /* How the target samples the token at root_pos + 1 when it follows the root; for deeper nodes
     * pos and path go on from there. */
    const struct SampleRow *row;
    Tree *tree; /* in: the root; out: the draft, at most max_nodes, in tree_order's order */
} DraftRequest;

/*
 * Who weighs what drafts cost, where their shape is not fixed. A drafter that heeds it adds to each
 * request's tree what it finds, at most topk children of a node, best first, and asks which nodes
 * get children next: expand sets bit k of nodes[i] for node k of request i's tree, one of the
 * level's (the root has 0, its children 1; none that was copied alone), and returns 0 when no tree
 * grows any more. Trees may grow to MAX_TREE_NODES: what is verified of them is the guide's affair.
 */
typedef struct {
    void *self;
    int (*expand)(void *self, int level, uint64_t *nodes);
} DraftGuide;

typedef struct {
    const char *name;
    void *self;
    int uses_head; /* 1: the model's draft head; else the engine leaves that out */
    int is_free;   /* 1: guesses cost nothing, as much as making trees; it is always asked */
    /* Called by engine_open, when the engine's memory exists; once: a drafter serves one engine. */
    int (*bind)(void *self, struct Engine *engine, Error *err);
    /*
     * A new sequence takes this index. Its first n >= 1 tokens are known: observe goes on after
     * them. What is in the engine's memory of the rows before is there. NULL: it need not know.
     */
    void (*begin)(void *self, int seq, const int32_t *token, int n);
    /* NULL: it need not see them. Rows of a sequence that gets no drafts may be left out. */
    void (*observe)(void *self, const DraftObserved *rows);
    /* guide NULL: shapes are as requested. Who does not ask it keeps to them as well. */
    void (*propose)(void *self, const DraftRequest *request, int n_requests,
                    const DraftGuide *guide);
    /*
     * Both or neither: for a drafter that lives in backend memory. They queue what a round does
     * for its drafts, into the round's pools, and for what was accepted, and read nothing.
     */
    void (*queue_drafts)(void *self, const struct Round *round);
    void (*queue_observe)(void *self, const struct Round *round);
    void (*close)(void *self);
} Drafter;

#endif
