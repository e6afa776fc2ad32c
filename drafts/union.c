/* union.c: see union.h. */
#include "drafts/union.h"

#include <assert.h>

#include "base/mem.h"
#include "drafts/mtp.h"
#include "drafts/suffix.h"

typedef struct {
    Drafter copies, head;
    /* of a step, in a fixed shape */
    DraftRequest request[MAX_TREE_NODES];
    Tree tree[MAX_TREE_NODES];
} Union;

static int union_bind(void *self, struct Engine *engine, Error *err)
{
    Union *u = self;
    if (u->copies.bind(u->copies.self, engine, err)) return -1;
    return u->head.bind(u->head.self, engine, err);
}

static void union_begin(void *self, int seq, const int32_t *token, int n)
{
    Union *u = self;
    u->copies.begin(u->copies.self, seq, token, n); /* the head need not know */
}

static void union_observe(void *self, const DraftObserved *rows)
{
    Union *u = self;
    u->head.observe(u->head.self, rows);
}

/* Each makes a tree of its own. */
static void propose_fixed(Union *u, const DraftRequest *request, int n)
{
    for (int i = 0; i < n; i++) {
        u->request[i] = request[i];
        u->request[i].tree = &u->tree[i];
        tree_init(&u->tree[i], request[i].tree->token[0]);
    }
    u->copies.propose(u->copies.self, u->request, n, NULL);
    u->head.propose(u->head.self, request, n, NULL);
    for (int i = 0; i < n; i++) {
        tree_merge(request[i].tree, &u->tree[i]);
        tree_order(request[i].tree, request[i].max_nodes);
    }
}

static void union_propose(void *self, const DraftRequest *request, int n, const DraftGuide *guide)
{
    Union *u = self;
    assert(n <= MAX_TREE_NODES);
    if (!guide) {
        propose_fixed(u, request, n);
        return;
    }
    u->copies.propose(u->copies.self, request, n, NULL);
    u->head.propose(u->head.self, request, n, guide);
}

static void union_close(void *self)
{
    Union *u = self;
    if (u->copies.self) u->copies.close(u->copies.self);
    if (u->head.self) u->head.close(u->head.self);
    mem_free(u);
}

int union_drafter_open(const Model *model, Drafter *out, Error *err)
{
    Drafter head;
    if (mtp_drafter_open(model, &head, err)) return -1;
    Union *u = mem_alloc(1, sizeof *u);
    u->head = head;
    suffix_drafter_open(&u->copies);
    *out = (Drafter){.name = "union",
                     .self = u,
                     .uses_head = 1,
                     .is_free = 1,
                     .bind = union_bind,
                     .begin = union_begin,
                     .observe = union_observe,
                     .propose = union_propose,
                     .close = union_close};
    return 0;
}
