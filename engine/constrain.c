/*
 * constrain.c: the grammars of answers along their trees (base/constraint.h).
 *
 * A draft that its parent's state does not let through could never be kept: it leaves the tree
 * before this is verified, and so does one whose own mask takes too long. Each row that is sampled
 * has the mask of its own node. Where the root has none, the answer ends.
 */
#include <assert.h>

#include "engine/state.h"

static uint64_t *mask_at(const Engine *e, int at)
{
    assert(at < MAX_SAMPLED);
    return e->host.mask + (size_t)at * mask_words(e);
}

/* 1 if node `to` of the answer's tree may be a draft: that token behind node `from`. */
static int may_draft(Engine *e, const Constraint *c, int from, int32_t token, int to)
{
    return !c->step(c->self, from, token, to) && !c->allowed(c->self, to, mask_at(e, 0));
}

void constrain_drafts(Engine *e, Work *w)
{
    const Constraint *c = &w->seq->req.constraint;
    Tree *t = &w->tree;
    int at[MAX_TREE_NODES] = {0}; /* of each node that was drafted: where it is now, or -1 */
    if (!c->self) return;
    const Tree drafted = *t;
    t->n = 1;
    for (int i = 1; i < drafted.n; i++) {
        int parent = at[drafted.parent[i]];
        int is_kept = parent >= 0 && may_draft(e, c, parent, drafted.token[i], t->n);
        at[i] = is_kept ? tree_append(t, &drafted, i, parent) : -1;
    }
}

/* Takes n ids out of mask; 0, and mask as it was, where nothing would be left. */
static int take_out(uint64_t *mask, size_t n_words, const int32_t *id, int n)
{
    uint64_t left = 0, bit[MAX_BAN];
    for (int i = 0; i < n; i++) {
        uint64_t *word = &mask[id[i] / 64];
        bit[i] = *word & UINT64_C(1) << (id[i] % 64);
        *word &= ~bit[i];
    }
    for (size_t i = 0; i < n_words && !left; i++)
        left |= mask[i];
    for (int i = 0; i < n && !left; i++)
        mask[id[i] / 64] |= bit[i];
    return left != 0;
}

/* That mask is filled: the backend's. */
static const uint64_t *send_mask(const Engine *e, int at)
{
    uint64_t *to = e->dev.mask + (size_t)at * mask_words(e);
    e->be->upload(e->be, to, mask_at(e, at), mask_words(e) * sizeof *to);
    return to;
}

const uint64_t *engine_draft_mask(Engine *e, int seq, const int32_t *path, int n, int at)
{
    enum { SCRATCH = 1 }; /* any node's: the tree has none yet */
    const Constraint *c = &e->seq[seq].req.constraint;
    if (!c->self) return NULL;
    for (int i = 0; i < n; i++)
        if (c->step(c->self, i ? SCRATCH : 0, path[i], SCRATCH)) return NULL;
    if (c->allowed(c->self, n ? SCRATCH : 0, mask_at(e, at))) return NULL;
    return send_mask(e, at);
}

void constrain_row(Engine *e, const Work *w, int node, int at)
{
    Seq *s = w->seq;
    const Constraint *c = &s->req.constraint;
    SampleRow *row = &e->host.row[at];
    uint64_t *mask = mask_at(e, at);
    if (!c->self) return;
    if (c->allowed(c->self, node, mask)) {
        s->is_form_lost = 1;
        return;
    }
    /* an answer that can only end does so, min_tokens or not */
    if (row->n_ban && !take_out(mask, mask_words(e), s->ban_host, row->n_ban)) row->n_ban = 0;
    row->allowed = send_mask(e, at);
}

void constrain_kept(const Work *w)
{
    const Constraint *c = &w->seq->req.constraint;
    const AcceptedPath *kept = &w->kept;
    if (!c->self || !w->n_sampled || kept->stop < 0) return;
    c->step(c->self, kept->path[kept->m], kept->emitted[kept->m], 0);
}
