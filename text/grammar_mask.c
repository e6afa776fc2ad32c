/*
 * grammar_mask.c: see grammar_mask.h.
 */
#include "text/grammar_mask.h"

#include <stddef.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum {
    MASK_SETS = 64, /* of MASK_WAYS masks each */
    MASK_WAYS = 4,
};

typedef struct {
    Hash key;
    uint64_t used; /* when, last; 0: free */
} MaskEntry;

/* All that tells a thread from another one. */
typedef struct {
    uint32_t node, at, count, sub;
    uint64_t frame; /* its hash */
} ThreadKey;

/* The grammar is part of it, not the hash's seed: short keys under different seeds may well have
 * the same hash. */
typedef struct {
    uint64_t grammar;
    ThreadKey thread[MAX_GRAMMAR_THREADS];
} StateKey;

/* Where the trie is: the state behind a token's first d bytes, and the frames it needs. */
typedef struct {
    GrammarState state;
    uint32_t n_frames;
    int plain_room; /* as grammar_plain_room */
    int text_room;  /* the same of texts */
    int is_free;    /* as grammar_is_free_text */
} Depth;

struct GrammarMasks {
    const GrammarVocab *vocab;
    MaskEntry entry[MASK_SETS][MASK_WAYS];
    uint64_t n_used;
    uint64_t *mask; /* [MASK_SETS * MASK_WAYS][n_words] */
    Depth *depth;   /* [MAX_GRAMMAR_TOKEN + 1] */
    StateKey key;
    GrammarReturn end;
};

GrammarMasks *grammar_masks_open(const GrammarVocab *v, Error *err)
{
    GrammarMasks *m = mem_alloc(1, sizeof *m);
    m->vocab = v;
    m->depth = mem_map((MAX_GRAMMAR_TOKEN + 1) * sizeof *m->depth);
    m->mask = mem_map((size_t)MASK_SETS * MASK_WAYS * v->n_words * sizeof *m->mask);
    if (m->mask && m->depth) return m;
    error_set(err, ERR_LIMIT, "no memory for the masks of grammars");
    grammar_masks_close(m);
    return NULL;
}

void grammar_masks_close(GrammarMasks *m)
{
    if (!m) return;
    mem_unmap(m->mask);
    mem_unmap(m->depth);
    mem_free(m);
}

/* ---- masks that are kept ---- */

static Hash state_key(GrammarMasks *m, const GrammarWalk *w, const GrammarState *s)
{
    StateKey *key = &m->key;
    key->grammar = w->g->id;
    for (int i = 0; i < s->n; i++) {
        const GrammarThread *t = &s->thread[i];
        key->thread[i] = (ThreadKey){t->node, t->at, t->count, t->sub, w->frame[t->frame].hash};
    }
    return hash_key(key, offsetof(StateKey, thread) + (size_t)s->n * sizeof *key->thread, 0);
}

static uint64_t *mask_of(GrammarMasks *m, size_t set, size_t way)
{
    return m->mask + (set * MASK_WAYS + way) * m->vocab->n_words;
}

static const uint64_t *find_mask(GrammarMasks *m, Hash key)
{
    size_t set = key.low % MASK_SETS;
    for (size_t way = 0; way < MASK_WAYS; way++) {
        MaskEntry *e = &m->entry[set][way];
        if (!e->used || !hash_equal(e->key, key)) continue;
        e->used = ++m->n_used;
        return mask_of(m, set, way);
    }
    return NULL;
}

static void keep_mask(GrammarMasks *m, Hash key, const uint64_t *mask)
{
    size_t set = key.low % MASK_SETS, oldest = 0;
    for (size_t way = 1; way < MASK_WAYS; way++)
        if (m->entry[set][way].used < m->entry[set][oldest].used) oldest = way;
    m->entry[set][oldest] = (MaskEntry){key, ++m->n_used};
    memcpy(mask_of(m, set, oldest), mask, m->vocab->n_words * sizeof *mask);
}

/* ---- masks that are made ---- */

static void describe(const Grammar *g, Depth *d, uint32_t n_frames)
{
    d->n_frames = n_frames;
    d->plain_room = grammar_plain_room(g, &d->state, 0);
    d->text_room = grammar_plain_room(g, &d->state, 1);
    d->is_free = grammar_is_free_text(g, &d->state);
}

/* 1 when t may follow for all that is known of its bytes from d on. */
static int is_known(const Depth *d, const GrammarVocabToken *t, int at)
{
    if (d->state.is_cut) return 1; /* a step there says so */
    int is_plain = t->unplain <= at, has_bracket = t->bracket > at, n = t->len - at;
    if (is_plain && d->plain_room && (d->plain_room < 0 || n <= d->plain_room)) return 1;
    if (is_plain && !has_bracket && d->text_room && (d->text_room < 0 || n <= d->text_room))
        return 1;
    return d->is_free && !has_bracket;
}

/*
 * From the state behind t's first *at bytes as far as t goes: 1 if it may follow. *at is then where
 * it was known, or how many bytes could follow.
 */
static int try_token(GrammarMasks *m, GrammarWalk *w, const GrammarVocabToken *t, int *at)
{
    if (is_known(&m->depth[*at], t, *at)) return 1;
    const char *bytes = m->vocab->bytes + t->first;
    for (; *at < t->len; (*at)++) {
        Depth *here = &m->depth[*at], *next = here + 1;
        if (is_known(here, t, *at)) return 1;
        w->n_frames = here->n_frames;
        grammar_byte(w, &here->state, (uint8_t)bytes[*at], &next->state);
        if (!next->state.n && !next->state.is_cut) return 0;
        describe(w->g, next, w->n_frames);
    }
    return 1;
}

static int try_vocabulary(GrammarMasks *m, GrammarWalk *w, uint64_t *mask)
{
    const GrammarVocab *v = m->vocab;
    int at = 0; /* the states up to there are those of the last token tried */
    for (int i = 0; i < v->n && w->n_steps <= w->most_steps; i++) {
        const GrammarVocabToken *t = &v->token[i];
        if (t->shared < at) at = t->shared;
        if (try_token(m, w, t, &at)) {
            mask[t->id / 64] |= UINT64_C(1) << (t->id % 64);
            continue;
        }
        while (i + 1 < v->n && v->token[i + 1].shared > at) /* the same byte ends them */
            i++;
    }
    return w->n_steps <= w->most_steps ? 0 : -1;
}

/* Sets tokens that are known by their ids. 1: that is all that may follow, or everything may. */
static int allow_ids(const GrammarVocab *v, const GrammarWalk *w, const GrammarState *s,
                     uint64_t *mask)
{
    int has_text = 0;
    for (int i = 0; i < s->n; i++) {
        const GrammarNode *n = &w->g->node[s->thread[i].node];
        if (n->kind == NODE_FREE) {
            memcpy(mask, v->all, v->n_words * sizeof *mask);
            return 1;
        }
        if (n->kind == NODE_TOKEN)
            mask[n->lo / 64] |= UINT64_C(1) << (n->lo % 64);
        else if (n->kind != NODE_RETURN)
            has_text = 1;
    }
    return !has_text;
}

int grammar_mask(GrammarMasks *m, GrammarWalk *w, const GrammarState *s, uint64_t *mask)
{
    const GrammarVocab *v = m->vocab;
    uint32_t n_frames = w->n_frames;
    int is_kept = w->most - n_frames == MAX_TOKEN_FRAMES;
    memset(mask, 0, v->n_words * sizeof *mask);
    if (s->is_cut) return -1;
    if (allow_ids(v, w, s, mask)) return 0;
    Hash key = state_key(m, w, s);
    const uint64_t *known = is_kept ? find_mask(m, key) : NULL;
    if (known) {
        memcpy(mask, known, v->n_words * sizeof *mask);
        return 0;
    }
    grammar_copy(&m->depth[0].state, s);
    describe(w->g, &m->depth[0], n_frames);
    m->end.frame = 0;
    w->end = w->most + MAX_TOKEN_FRAMES <= MAX_GRAMMAR_FRAMES ? &m->end : NULL;
    w->n_kept = n_frames;
    int rc = try_vocabulary(m, w, mask);
    w->n_frames = n_frames;
    if (is_kept && !rc) keep_mask(m, key, mask);
    return rc;
}
