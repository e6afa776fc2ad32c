/*
 * grammar_mask.c: see grammar_mask.h.
 */
#include "text/grammar_mask.h"

#include <stddef.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "text/grammar_near.h"
#include "text/grammar_steps.h"

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
    uint64_t is_near; /* of near tokens alone */
    ThreadKey thread[MAX_GRAMMAR_THREADS];
} StateKey;

/* What is known of a state without a step. */
typedef struct {
    int is_cut;
    int plain_room; /* as grammar_plain_room */
    int text_room;  /* the same of texts */
    int is_free;    /* as grammar_is_free_text */
} Prospect;

/*
 * Where the trie is: the state behind a token's first d bytes, and the frames it needs. `met` is
 * its number in steps, or -1; what was only met there is no state yet.
 */
typedef struct {
    GrammarState state;
    int met, is_made;
    uint32_t n_frames;
    Prospect prospect;
} Depth;

struct GrammarMasks {
    const GrammarVocab *vocab;
    MaskEntry entry[MASK_SETS][MASK_WAYS];
    uint64_t n_used;
    uint64_t *mask; /* [MASK_SETS * MASK_WAYS][n_words] */
    Depth *depth;   /* [MAX_GRAMMAR_TOKEN + 1] */
    GrammarSteps *steps;
    Prospect *prospect; /* [MAX_STEP_STATES] of the states in steps */
    StateKey key;
    GrammarReturn end;
};

GrammarMasks *grammar_masks_open(const GrammarVocab *v, Error *err)
{
    GrammarMasks *m = mem_alloc(1, sizeof *m);
    m->vocab = v;
    m->depth = mem_map((MAX_GRAMMAR_TOKEN + 1) * sizeof *m->depth);
    m->mask = mem_map((size_t)MASK_SETS * MASK_WAYS * v->n_words * sizeof *m->mask);
    m->steps = grammar_steps_open();
    m->prospect = mem_alloc(MAX_STEP_STATES, sizeof *m->prospect);
    if (m->mask && m->depth && m->steps) return m;
    error_set(err, ERR_LIMIT, "no memory for the masks of grammars");
    grammar_masks_close(m);
    return NULL;
}

void grammar_masks_close(GrammarMasks *m)
{
    if (!m) return;
    mem_unmap(m->mask);
    mem_unmap(m->depth);
    grammar_steps_close(m->steps);
    mem_free(m->prospect);
    mem_free(m);
}

/* ---- masks that are kept ---- */

static Hash state_key(GrammarMasks *m, const GrammarWalk *w, const GrammarState *s, int is_near)
{
    StateKey *key = &m->key;
    key->grammar = w->g->id;
    key->is_near = (uint64_t)is_near;
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

static Prospect prospect_of(const Grammar *g, const GrammarState *s)
{
    return (Prospect){s->is_cut, grammar_plain_room(g, s, 0), grammar_plain_room(g, s, 1),
                      grammar_is_free_text(g, s)};
}

static int has_room(int room, int n)
{
    return room < 0 || n <= room;
}

/* 1 when t may follow for all that is known of its bytes from d on. */
static int is_known(const Prospect *p, const GrammarVocabToken *t, int at)
{
    if (p->is_cut) return 1; /* a step there says so */
    int is_plain = t->unplain <= at, has_bracket = t->bracket > at, n = t->len - at;
    if (is_plain && has_room(p->plain_room, n)) return 1;
    if (is_plain && !has_bracket && has_room(p->text_room, n)) return 1;
    return p->is_free && !has_bracket;
}

/* 1: the state needs no frames but those that were there before the mask. */
static int is_lasting(const GrammarWalk *w, const GrammarState *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->thread[i].frame >= w->n_kept) return 0;
    return !s->is_cut;
}

/* The number of a state that lasts, once it is in steps; else -1. */
static int meet(GrammarMasks *m, const GrammarWalk *w, const Depth *d)
{
    int number = is_lasting(w, &d->state) ? grammar_steps_add(m->steps, &d->state) : -1;
    if (number < 0) return -1;
    m->prospect[number] = d->prospect;
    return number;
}

/* From depth d by a byte to the next; 0: it may not come. */
static int descend(GrammarMasks *m, GrammarWalk *w, Depth *d, uint8_t byte)
{
    Depth *next = d + 1;
    int to = d->met < 0 ? STEP_NOT_KNOWN : grammar_steps_next(m->steps, d->met, byte);
    if (to == STEP_DEAD) return 0;
    if (to >= 0) {
        next->met = to;
        next->is_made = 0;
        next->n_frames = d->n_frames;
        next->prospect = m->prospect[to];
        return 1;
    }
    if (!d->is_made) grammar_steps_get(m->steps, d->met, &d->state);
    d->is_made = 1;
    w->n_frames = d->n_frames;
    grammar_byte(w, &d->state, byte, &next->state);
    int is_dead = !next->state.n && !next->state.is_cut;
    next->is_made = 1;
    next->n_frames = w->n_frames;
    next->prospect = prospect_of(w->g, &next->state);
    next->met = d->met < 0 || is_dead ? -1 : meet(m, w, next);
    if (d->met >= 0 && is_dead) grammar_steps_set(m->steps, d->met, byte, STEP_DEAD);
    if (next->met >= 0) grammar_steps_set(m->steps, d->met, byte, next->met);
    return !is_dead;
}

/*
 * From the state behind t's first *at bytes as far as t goes: 1 if it may follow. *at is then where
 * it was known, or how many bytes could follow.
 */
static int try_token(GrammarMasks *m, GrammarWalk *w, const GrammarVocabToken *t, int *at)
{
    const char *bytes = m->vocab->bytes + t->first;
    for (; *at < t->len; (*at)++) {
        if (is_known(&m->depth[*at].prospect, t, *at)) return 1;
        if (!descend(m, w, &m->depth[*at], (uint8_t)bytes[*at])) return 0;
    }
    return 1;
}

/* Sets those of the tokens that may follow the state at depth 0; -1: too many steps. */
static int try_tokens(GrammarMasks *m, GrammarWalk *w, const GrammarTokens *list, uint64_t *mask)
{
    int at = 0; /* the states up to there are those of the last token tried */
    for (int i = 0; i < list->n && w->n_steps <= w->most_steps;) {
        const GrammarVocabToken *t = &list->token[i++];
        if (t->shared < at) at = t->shared;
        if (try_token(m, w, t, &at)) {
            mask[t->id / 64] |= UINT64_C(1) << (t->id % 64);
            continue;
        }
        while (i < list->n && list->token[i].shared > at) /* the same byte ends them */
            i = list->token[i].after;
    }
    return w->n_steps <= w->most_steps ? 0 : -1;
}

/*
 * The state at depth 0 is where a list begins, with nothing known of it: steps that another list
 * has found are not spared, for that one's mask may have been kept.
 */
static void begin(GrammarMasks *m, GrammarWalk *w)
{
    Depth *d = &m->depth[0];
    d->is_made = 1;
    d->n_frames = w->n_frames = w->n_kept;
    d->prospect = prospect_of(w->g, &d->state);
    grammar_steps_clear(m->steps);
    d->met = meet(m, w, d);
    m->end.frame = 0;
    w->n_steps = 0;
}

/* What is known of near tokens; the others are to be tried. */
static GrammarKnown known_near(const Prospect *p)
{
    if (p->is_cut) return KNOWN_NONE;
    if (p->is_free) return KNOWN_TEXT;
    if (has_room(p->plain_room, NEAR_BYTES)) return KNOWN_PLAIN;
    if (has_room(p->text_room, NEAR_BYTES)) return KNOWN_PLAIN_TEXT;
    if (has_room(p->plain_room, 16)) return KNOWN_PLAIN_16;
    return has_room(p->plain_room, 8) ? KNOWN_PLAIN_8 : KNOWN_NONE;
}

static int try_near(GrammarMasks *m, GrammarWalk *w, uint64_t *mask)
{
    const GrammarVocab *v = m->vocab;
    begin(m, w);
    GrammarKnown known = known_near(&m->depth[0].prospect);
    for (size_t i = 0; i < v->n_words; i++)
        mask[i] |= v->known[known][i];
    return try_tokens(m, w, &v->other[known], mask);
}

/*
 * What is kept is the mask of a state that stands for itself, or of near tokens alone, by the state
 * that stands for others; far ones are then tried for each of these.
 */
static int try_all(GrammarMasks *m, GrammarWalk *w, const GrammarState *s, uint64_t *mask)
{
    const GrammarVocab *v = m->vocab;
    GrammarState *here = &m->depth[0].state;
    grammar_copy(here, s);
    int is_near = grammar_near(w->g, here);
    int is_kept = w->end != NULL; /* with less room a mask may take more steps, or be cut */
    Hash key = state_key(m, w, here, is_near);
    const uint64_t *kept = is_kept ? find_mask(m, key) : NULL;
    if (kept) {
        memcpy(mask, kept, v->n_words * sizeof *mask);
        if (!is_near) return 0;
    } else {
        if (try_near(m, w, mask)) return -1;
        if (is_kept && is_near) keep_mask(m, key, mask);
    }
    uint64_t n_steps = w->n_steps;
    grammar_copy(here, s);
    begin(m, w);
    if (try_tokens(m, w, &v->far, mask)) return -1;
    w->n_steps += n_steps;
    if (is_kept && !is_near) keep_mask(m, key, mask);
    return 0;
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
    memset(mask, 0, m->vocab->n_words * sizeof *mask);
    if (s->is_cut) return -1;
    if (allow_ids(m->vocab, w, s, mask)) return 0;
    w->n_kept = w->n_frames;
    w->end = w->most + MAX_TOKEN_FRAMES <= MAX_GRAMMAR_FRAMES ? &m->end : NULL;
    int rc = try_all(m, w, s, mask);
    w->n_frames = w->n_kept;
    return rc;
}
