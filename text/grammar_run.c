/*
 * grammar_run.c: see grammar_run.h.
 */
#include "text/grammar_run.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_mask.h"

/*
 * A sequence's states. The frames of the root's come first; a step makes more, and the next drops
 * them. What a state is may not depend on how many others have made: each token has the same room,
 * and a draft that would leave less to the next is none.
 */
typedef struct {
    GrammarState *state; /* [n_nodes] */
    GrammarFrame *frame; /* [MAX_GRAMMAR_FRAMES] */
    uint32_t n_frames, n_root;
} SeqStates;

struct GrammarPool {
    const GrammarVocab *vocab;
    GrammarMasks *masks;
    SeqStates *seq;
    int n_seqs, n_nodes;
    GrammarState from, to;   /* of the bytes of one token */
    GrammarFrame *frame;     /* [MAX_GRAMMAR_FRAMES] the root's, as they are moved to the front */
    uint32_t *moved;         /* [MAX_GRAMMAR_FRAMES] where a frame is now; 0: it was not moved */
    GrammarState *all_state; /* that the sequences share out */
    GrammarFrame *all_frames;
};

GrammarPool *grammar_pool_open(const GrammarVocab *vocab, int n_seqs, int n_nodes, Error *err)
{
    GrammarPool *p = mem_alloc(1, sizeof *p);
    size_t n_states = (size_t)n_seqs * (size_t)n_nodes;
    *p = (GrammarPool){.vocab = vocab, .n_seqs = n_seqs, .n_nodes = n_nodes};
    p->seq = mem_alloc((size_t)n_seqs, sizeof *p->seq);
    p->frame = mem_alloc(MAX_GRAMMAR_FRAMES, sizeof *p->frame);
    p->moved = mem_alloc(MAX_GRAMMAR_FRAMES, sizeof *p->moved);
    p->masks = grammar_masks_open(vocab, err);
    p->all_state = mem_map(n_states * sizeof *p->all_state);
    p->all_frames = mem_map((size_t)n_seqs * MAX_GRAMMAR_FRAMES * sizeof *p->all_frames);
    if (p->masks && (!p->all_state || !p->all_frames))
        error_set(err, ERR_LIMIT, "no memory for the states of grammars");
    if (!p->masks || !p->all_state || !p->all_frames) {
        grammar_pool_close(p);
        return NULL;
    }
    for (int i = 0; i < n_seqs; i++)
        p->seq[i] = (SeqStates){p->all_state + (size_t)i * (size_t)n_nodes,
                                p->all_frames + (size_t)i * MAX_GRAMMAR_FRAMES, 1, 1};
    return p;
}

void grammar_pool_close(GrammarPool *p)
{
    if (!p) return;
    grammar_masks_close(p->masks);
    mem_unmap(p->all_state);
    mem_unmap(p->all_frames);
    mem_free(p->seq);
    mem_free(p->frame);
    mem_free(p->moved);
    mem_free(p);
}

/* ---- the constraint ---- */

static GrammarWalk walk_of(const GrammarAnswer *a)
{
    const SeqStates *s = &a->pool->seq[a->seq];
    uint32_t most = s->n_frames + MAX_TOKEN_FRAMES;
    if (most > MAX_GRAMMAR_FRAMES) most = MAX_GRAMMAR_FRAMES; /* the root's alone are so many */
    return (GrammarWalk){a->grammar, s->frame, s->n_frames, most};
}

/* The frame in the front part, with all that called it. */
static uint32_t move_frame(GrammarPool *p, const GrammarFrame *old, uint32_t f, uint32_t *n)
{
    uint32_t chain[MAX_GRAMMAR_FRAMES];
    int depth = 0;
    for (; f && !p->moved[f]; f = old[f].parent)
        chain[depth++] = f;
    uint32_t parent = f ? p->moved[f] : 0;
    while (depth--) {
        uint32_t from = chain[depth];
        p->frame[*n] = old[from];
        p->frame[*n].parent = parent;
        parent = p->moved[from] = (*n)++;
    }
    return parent;
}

/* Only what state 0 needs is left of the frames. */
static void drop_frames(GrammarPool *p, SeqStates *s)
{
    GrammarState *root = &s->state[0];
    uint32_t n = 1;
    memset(p->moved, 0, s->n_frames * sizeof *p->moved);
    for (int i = 0; i < root->n; i++)
        root->thread[i].frame = move_frame(p, s->frame, root->thread[i].frame, &n);
    memcpy(s->frame + 1, p->frame + 1, (n - 1) * sizeof *s->frame);
    s->n_frames = s->n_root = n;
}

static void begin(void *self, int seq)
{
    GrammarAnswer *a = self;
    assert(seq < a->pool->n_seqs);
    SeqStates *s = &a->pool->seq[seq];
    a->seq = seq;
    s->frame[0] = (GrammarFrame){0};
    s->n_frames = 1;
    GrammarWalk w = walk_of(a);
    s->state[0].n = 0;
    grammar_enter(&w, a->grammar->start, 0, &s->state[0]);
    s->n_frames = w.n_frames;
    drop_frames(a->pool, s);
}

static int is_end(const GrammarVocab *v, int32_t token)
{
    for (int i = 0; i < v->n_end; i++)
        if (v->end[i] == token) return 1;
    return 0;
}

/* p->to: where p->from gets by token. */
static void take_token(GrammarPool *p, GrammarWalk *w, int32_t token)
{
    size_t len;
    const char *bytes = tokenizer_bytes(p->vocab->tok, token, &len);
    if (is_end(p->vocab, token)) { /* behind it, where it does not end the answer, comes nothing */
        grammar_copy(&p->to, &p->from);
        if (!grammar_may_end(w->g, &p->from)) p->to.n = 0;
        return;
    }
    if (!grammar_vocab_is_text(p->vocab, token)) {
        grammar_token(w, &p->from, token, &p->to);
        return;
    }
    for (size_t i = 0; i < len && p->from.n; i++) {
        grammar_byte(w, &p->from, (uint8_t)bytes[i], &p->to);
        grammar_copy(&p->from, &p->to);
    }
    grammar_copy(&p->to, &p->from);
}

static int step(void *self, int from, int32_t token, int to)
{
    GrammarAnswer *a = self;
    GrammarPool *p = a->pool;
    SeqStates *s = &p->seq[a->seq];
    assert(from >= 0 && from < p->n_nodes && to >= 0 && to < p->n_nodes);
    if (!from && to == 1) s->n_frames = s->n_root;
    GrammarWalk w = walk_of(a);
    grammar_copy(&p->from, &s->state[from]);
    take_token(p, &w, token);
    if (to && (!p->to.n || w.n_frames > MAX_GRAMMAR_FRAMES - MAX_TOKEN_FRAMES)) {
        s->state[to].n = 0;
        return -1;
    }
    s->n_frames = w.n_frames;
    grammar_copy(&s->state[to], &p->to);
    if (to == 0) drop_frames(p, s);
    return p->to.n ? 0 : -1;
}

static int allowed(void *self, int state, uint64_t *mask)
{
    GrammarAnswer *a = self;
    const GrammarVocab *v = a->pool->vocab;
    GrammarWalk w = walk_of(a);
    const GrammarState *s = &a->pool->seq[a->seq].state[state];
    uint64_t any = 0;
    grammar_mask(a->pool->masks, &w, s, mask);
    for (size_t i = 0; i < v->n_words && !any; i++)
        any |= mask[i];
    /* where nothing else may come, or nothing that the vocabulary can say, the answer ends */
    if (any && !grammar_may_end(a->grammar, s)) return 0;
    for (int i = 0; i < v->n_end; i++)
        if (v->end[i] < v->n_vocab) mask[v->end[i] / 64] |= UINT64_C(1) << (v->end[i] % 64);
    return 0;
}

Constraint grammar_constraint(GrammarAnswer *a)
{
    return (Constraint){a, begin, step, allowed};
}
