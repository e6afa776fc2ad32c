/*
 * grammar_near.c: see grammar_near.h.
 */
#include "text/grammar_near.h"

#include <limits.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "text/grammar_vocab.h"

enum { MOST_THREADS = 64 }; /* of states that others stand for */

/* ---- states of an automaton ---- */

/*
 * Which states nothing of up to so many bytes tells apart: for 0 bytes those that are the same in
 * accepts; for one more those that are in the same class and get to the same ones by each byte
 * (Moore 1956). A class is called by its first state.
 */
typedef struct {
    const Dfa *d;
    const uint16_t *left;
    uint16_t *class, *next; /* [n_states] for so many bytes, for one more */
    uint16_t *row;          /* [n_classes + 1] what tells a state from another */
    uint16_t *slot;         /* [n_slots] states by their rows; DFA_DEAD: free */
    uint64_t n_slots;
} Classes;

static uint16_t class_of(const Classes *c, uint16_t state)
{
    return state == DFA_DEAD || c->left[state] == UINT16_MAX ? DFA_DEAD : c->class[state];
}

static uint16_t class_behind(const Classes *c, int state, int i)
{
    return class_of(c, c->d->next[state * c->d->n_classes + i]);
}

static uint64_t row_hash(const Classes *c, int state)
{
    int n = c->d->n_classes;
    for (int i = 0; i < n; i++)
        c->row[i] = class_behind(c, state, i);
    c->row[n] = c->class[state];
    return hash_sum(c->row, (size_t)(n + 1) * sizeof *c->row);
}

static int are_rows_alike(const Classes *c, int a, int b)
{
    int i = 0, n = c->d->n_classes;
    while (i < n && class_behind(c, a, i) == class_behind(c, b, i))
        i++;
    return i == n && c->class[a] == c->class[b];
}

/* The first state with this one's row. */
static uint16_t first_alike(const Classes *c, int state)
{
    uint64_t at = row_hash(c, state) % c->n_slots;
    for (; c->slot[at] != DFA_DEAD; at = (at + 1) % c->n_slots)
        if (are_rows_alike(c, c->slot[at], state)) return c->slot[at];
    c->slot[at] = (uint16_t)state;
    return (uint16_t)state;
}

/* One byte more; 0: it tells no more apart. */
static int refine(Classes *c)
{
    int n_states = c->d->n_states, has_changed = 0;
    memset(c->slot, 0xff, c->n_slots * sizeof *c->slot);
    for (int s = 0; s < n_states; s++) {
        c->next[s] = first_alike(c, s);
        has_changed |= c->next[s] != c->class[s];
    }
    memcpy(c->class, c->next, (size_t)n_states * sizeof *c->class);
    return has_changed;
}

uint16_t *grammar_near_states(const Dfa *d, const uint16_t *left)
{
    size_t n = (size_t)d->n_states;
    Classes c = {.d = d, .left = left, .n_slots = 2 * n};
    uint16_t first[2] = {DFA_DEAD, DFA_DEAD};
    c.class = mem_alloc(n, sizeof *c.class);
    c.next = mem_alloc(n, sizeof *c.next);
    c.row = mem_alloc((size_t)d->n_classes + 1, sizeof *c.row);
    c.slot = mem_alloc(c.n_slots, sizeof *c.slot);
    for (size_t s = 0; s < n; s++) {
        uint16_t *class = &first[d->accepts[s] != 0];
        if (*class == DFA_DEAD) *class = (uint16_t)s;
        c.class[s] = *class;
    }
    for (int i = 0; i < NEAR_BYTES && refine(&c); i++) {
    }
    mem_free(c.next);
    mem_free(c.row);
    mem_free(c.slot);
    return c.class;
}

/* ---- states of an answer ---- */

/*
 * Of a string of n->lo to n->hi characters with count of them behind it: a count from which near
 * tokens find both bounds as they do from this one. A character has a byte at least. most_left: the
 * most characters that a state of its automaton needs to its end.
 */
static int near_count(const GrammarNode *n, int most_left, int count)
{
    int far = NEAR_BYTES + 1, below_lo = n->lo - far;
    int below_hi = n->hi < 0 ? INT_MAX : n->hi - far - most_left;
    if (count > below_hi) return count;
    if (count <= below_lo) return below_lo < below_hi ? below_lo : below_hi;
    return count < n->lo || n->hi < 0 ? count : below_hi;
}

static int is_hi_far(const GrammarNode *n, int most_left, int count)
{
    return n->hi < 0 || count <= n->hi - NEAR_BYTES - 1 - most_left;
}

/* The string that a thread is in, NULL: none. */
static const GrammarNode *string_of(const Grammar *g, const GrammarThread *t)
{
    const GrammarNode *n = &g->node[t->node];
    if (n->kind == NODE_STRING || n->kind == NODE_TEXT) return n;
    if (n->kind != NODE_NAME) return NULL;
    uint32_t other = g->names[n->index].other;
    return other ? &g->node[g->node[other].body] : NULL;
}

static GrammarThread near_thread(const Grammar *g, GrammarThread t)
{
    const GrammarNode *n = string_of(g, &t);
    if (!n) return t;
    const GrammarAutomaton *a = n->index >= 0 ? &g->automaton[n->index] : NULL;
    int most_left = a ? a->most_left : 0, is_in_it = g->node[t.node].kind != NODE_NAME;
    if (a && is_in_it && is_hi_far(n, most_left, t.count)) t.at = a->near[t.at];
    t.count = (uint16_t)near_count(n, most_left, t.count);
    return t;
}

static int are_alike(const GrammarThread *a, const GrammarThread *b)
{
    return a->node == b->node && a->at == b->at && a->count == b->count && a->sub == b->sub;
}

int grammar_near(const Grammar *g, GrammarState *s)
{
    GrammarThread near[MOST_THREADS];
    int is_other = 0;
    if (s->n > MOST_THREADS) return 0;
    for (int i = 0; i < s->n; i++) {
        near[i] = near_thread(g, s->thread[i]);
        is_other |= !are_alike(&near[i], &s->thread[i]);
        for (int k = 0; k < i; k++)
            if (are_alike(&near[i], &near[k])) return 0;
    }
    memcpy(s->thread, near, (size_t)s->n * sizeof *near);
    return is_other;
}
