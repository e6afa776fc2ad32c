/*
 * grammar_mask.c: see grammar_mask.h.
 */
#include "text/grammar_mask.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum {
    MASK_SETS = 64, /* of MASK_WAYS masks each */
    MASK_WAYS = 4,
    MAX_KEY_WORDS = 2048,
};

typedef struct {
    Hash key;
    uint64_t used; /* when, last; 0: free */
} MaskEntry;

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
    uint32_t key[MAX_KEY_WORDS];
};

GrammarMasks *grammar_masks_open(const GrammarVocab *v, Error *err)
{
    GrammarMasks *m = mem_alloc(1, sizeof *m);
    m->vocab = v;
    m->depth = mem_alloc(MAX_GRAMMAR_TOKEN + 1, sizeof *m->depth);
    m->mask = mem_map((size_t)MASK_SETS * MASK_WAYS * v->n_words * sizeof *m->mask);
    if (m->mask) return m;
    error_set(err, ERR_LIMIT, "no memory for the masks of grammars");
    grammar_masks_close(m);
    return NULL;
}

void grammar_masks_close(GrammarMasks *m)
{
    if (!m) return;
    mem_unmap(m->mask);
    mem_free(m->depth);
    mem_free(m);
}

/* ---- masks that are kept ---- */

/*
 * All that tells s from another state: 0 when it is too much to be worth keeping. The grammar is
 * part of it, not the hash's seed: short keys under different seeds may well have the same hash.
 */
static int state_key(GrammarMasks *m, const GrammarWalk *w, const GrammarState *s, Hash *key)
{
    size_t n = 0;
    m->key[n++] = (uint32_t)w->g->id;
    m->key[n++] = (uint32_t)(w->g->id >> 32);
    for (int i = 0; i < s->n; i++) {
        const GrammarThread *t = &s->thread[i];
        if (n + 5 > MAX_KEY_WORDS) return 0;
        m->key[n++] = t->node;
        m->key[n++] = (uint32_t)t->at << 16 | t->count;
        m->key[n++] = t->sub;
        for (uint32_t f = t->frame; f; f = w->frame[f].parent) {
            if (n + 5 > MAX_KEY_WORDS) return 0;
            m->key[n++] = w->frame[f].node;
            m->key[n++] = w->frame[f].count;
        }
        m->key[n++] = UINT32_MAX;
    }
    *key = hash_key(m->key, n * sizeof *m->key, 0);
    return 1;
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
        if (!next->state.n) return 0;
        describe(w->g, next, w->n_frames);
    }
    return 1;
}

static void try_vocabulary(GrammarMasks *m, GrammarWalk *w, uint64_t *mask)
{
    const GrammarVocab *v = m->vocab;
    int at = 0; /* the states up to there are those of the last token tried */
    for (int i = 0; i < v->n; i++) {
        const GrammarVocabToken *t = &v->token[i];
        if (t->shared < at) at = t->shared;
        if (try_token(m, w, t, &at)) {
            mask[t->id / 64] |= UINT64_C(1) << (t->id % 64);
            continue;
        }
        while (i + 1 < v->n && v->token[i + 1].shared > at) /* the same byte ends them */
            i++;
    }
}

/* Tokens that are known by their ids; 1 if that is all that may follow, or everything may. */
static void allow_ids(const GrammarVocab *v, const GrammarWalk *w, const GrammarState *s,
                      uint64_t *mask, int *has_text)
{
    *has_text = 0;
    for (int i = 0; i < s->n; i++) {
        const GrammarNode *n = &w->g->node[s->thread[i].node];
        if (n->kind == NODE_FREE) {
            memcpy(mask, v->all, v->n_words * sizeof *mask);
            *has_text = 0;
            return;
        }
        if (n->kind == NODE_TOKEN)
            mask[n->lo / 64] |= UINT64_C(1) << (n->lo % 64);
        else if (n->kind != NODE_RETURN)
            *has_text = 1;
    }
}

void grammar_mask(GrammarMasks *m, GrammarWalk *w, const GrammarState *s, uint64_t *mask)
{
    const GrammarVocab *v = m->vocab;
    uint32_t n_frames = w->n_frames;
    int has_text;
    Hash key;
    memset(mask, 0, v->n_words * sizeof *mask);
    allow_ids(v, w, s, mask, &has_text);
    if (!has_text) return;
    int is_kept = w->most - n_frames == MAX_TOKEN_FRAMES && state_key(m, w, s, &key);
    const uint64_t *known = is_kept ? find_mask(m, key) : NULL;
    if (known) {
        memcpy(mask, known, v->n_words * sizeof *mask);
        return;
    }
    grammar_copy(&m->depth[0].state, s);
    describe(w->g, &m->depth[0], n_frames);
    try_vocabulary(m, w, mask);
    w->n_frames = n_frames;
    if (is_kept) keep_mask(m, key, mask);
}
