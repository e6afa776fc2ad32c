/*
 * grammar_run.c: see grammar_run.h.
 */
#include "text/grammar_run.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_mask.h"

/* That a draft may leave: then a token's own have room, and those of a GrammarReturn above them. */
enum { MAX_DRAFT_FRAMES = MAX_GRAMMAR_FRAMES - 2 * MAX_TOKEN_FRAMES };

/*
 * A sequence's states. The frames of the root's come first; a step makes more, and the next drops
 * them. What a state is, and how many steps its mask takes, may not depend on how many others have
 * made: each token has the same room, and a draft that would leave less to the next is none.
 */
typedef struct {
    GrammarState *state; /* [n_nodes] */
    GrammarFrame *frame; /* [MAX_GRAMMAR_FRAMES] */
    uint32_t n_frames, n_root;
    uint64_t n_steps;  /* that masks of drafts have taken since the root's was made */
    uint64_t has_mask; /* nodes whose mask was made, a bit each */
} SeqStates;

struct GrammarPool {
    const GrammarVocab *vocab;
    GrammarMasks *masks;
    SeqStates *seq;
    int n_seqs, n_nodes;
    GrammarState from, to; /* of the bytes of one token */
    GrammarFrame *frame;   /* [MAX_GRAMMAR_FRAMES] the root's, as they are moved to the front */
    uint32_t *moved;       /* [MAX_GRAMMAR_FRAMES] where a frame is now; 0: it was not moved */
    uint32_t *left;        /* [MAX_GRAMMAR_FRAMES] that are to be moved */
    GrammarFinder *finder;
    GrammarState *all_state; /* that the sequences share out */
    GrammarFrame *all_frames;
};

GrammarPool *grammar_pool_open(const GrammarVocab *vocab, int n_seqs, int n_nodes, Error *err)
{
    GrammarPool *p = mem_alloc(1, sizeof *p);
    size_t n_states = (size_t)n_seqs * (size_t)n_nodes;
    assert(n_nodes <= 64); /* has_mask */
    *p = (GrammarPool){.vocab = vocab, .n_seqs = n_seqs, .n_nodes = n_nodes};
    p->seq = mem_alloc((size_t)n_seqs, sizeof *p->seq);
    p->frame = mem_alloc(MAX_GRAMMAR_FRAMES, sizeof *p->frame);
    p->moved = mem_alloc(MAX_GRAMMAR_FRAMES, sizeof *p->moved);
    p->left = mem_alloc(MAX_GRAMMAR_FRAMES, sizeof *p->left);
    p->finder = grammar_finder_open();
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
        p->seq[i] = (SeqStates){.state = p->all_state + (size_t)i * (size_t)n_nodes,
                                .frame = p->all_frames + (size_t)i * MAX_GRAMMAR_FRAMES,
                                .n_frames = 1,
                                .n_root = 1};
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
    mem_free(p->left);
    grammar_finder_close(p->finder);
    mem_free(p);
}

/* ---- the constraint ---- */

static GrammarWalk walk_of(const GrammarAnswer *a)
{
    const SeqStates *s = &a->pool->seq[a->seq];
    uint32_t most = s->n_frames + MAX_TOKEN_FRAMES;
    if (most > MAX_GRAMMAR_FRAMES) most = MAX_GRAMMAR_FRAMES; /* the root's alone are so many */
    return (GrammarWalk){.g = a->grammar,
                         .frame = s->frame,
                         .n_frames = s->n_frames,
                         .most = most,
                         .finder = a->pool->finder,
                         .most_steps = MAX_GRAMMAR_STEPS};
}

/* The frame in the front part, behind all that called it. */
static uint32_t move_frame(GrammarPool *p, const GrammarFrame *old, uint32_t f, uint32_t *n)
{
    uint32_t *left = p->left;
    int n_left = 0;
    left[n_left++] = f;
    while (n_left) {
        uint32_t from = left[n_left - 1], parent = old[from].parent, other = old[from].other;
        if (parent && !p->moved[parent]) {
            left[n_left++] = parent;
        } else if (other && !p->moved[other]) {
            left[n_left++] = other;
        } else {
            n_left--;
            if (!from || p->moved[from]) continue;
            p->frame[*n] = old[from];
            p->frame[*n].parent = p->moved[parent];
            p->frame[*n].other = p->moved[other];
            p->moved[from] = (*n)++;
        }
    }
    return p->moved[f];
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
    s->n_steps = s->has_mask = 0;
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
    grammar_begin(&w, a->grammar->start, &s->state[0]);
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
    for (size_t i = 0; i < len && p->from.n && !p->from.is_cut; i++) {
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
    s->has_mask &= ~(UINT64_C(1) << to);
    GrammarWalk w = walk_of(a);
    grammar_copy(&p->from, &s->state[from]);
    take_token(p, &w, token);
    int is_full = p->to.is_cut || (to && w.n_frames > MAX_DRAFT_FRAMES);
    if (to && (is_full || !p->to.n)) {
        s->state[to].n = 0;
        return is_full ? CONSTRAINT_FULL : -1;
    }
    s->n_frames = w.n_frames;
    grammar_copy(&s->state[to], &p->to);
    if (to == 0) drop_frames(p, s);
    return is_full ? CONSTRAINT_FULL : p->to.n ? 0 : -1;
}

/*
 * The masks of all drafts together may take as many steps as the root's; one that was made may be
 * made again, should it not have been kept. So a draft costs its place, never the answer.
 */
static int find_mask(GrammarAnswer *a, int state, uint64_t *mask)
{
    SeqStates *s = &a->pool->seq[a->seq];
    GrammarWalk w = walk_of(a);
    int is_counted = state && !(s->has_mask >> state & 1);
    if (is_counted) w.most_steps -= s->n_steps;
    int rc = grammar_mask(a->pool->masks, &w, &s->state[state], mask);
    if (is_counted) s->n_steps += w.n_steps < w.most_steps ? w.n_steps : w.most_steps;
    if (!rc) s->has_mask |= UINT64_C(1) << state;
    return rc;
}

static int allowed(void *self, int state, uint64_t *mask)
{
    GrammarAnswer *a = self;
    const GrammarVocab *v = a->pool->vocab;
    const GrammarState *s = &a->pool->seq[a->seq].state[state];
    uint64_t any = 0;
    if (find_mask(a, state, mask)) return -1;
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
