/*
 * pattern_product.c: what two automata accept both, of which one may be a rule; see dfa.h.
 *
 * A state of the product is one of either. Of those only what is reached is made.
 */
#include "text/pattern_parts.h"

#include <string.h>

#include "base/mem.h"

enum {
    MAX_PAIRS = 2 * DFA_MAX_STATES, /* some of them turn out to be alike */
    MAX_CELLS = 1 << 20,            /* of the table of transitions */
    MAX_INDEX = 1 << 22,
};

typedef struct {
    uint16_t state, rule;
} Pair;

typedef struct {
    const Dfa *of;
    const DfaRule *rule;
    int room;        /* for so many states */
    uint16_t *index; /* [of->n_states][rule->n_states], DFA_DEAD: not made */
    Pair *pair;      /* [room] */
    Dfa out;
} Product;

static uint16_t pair_index(Product *p, uint16_t state, uint16_t rule)
{
    uint16_t *at = &p->index[(size_t)state * (size_t)p->rule->n_states + rule];
    if (*at == DFA_DEAD && p->out.n_states < p->room) {
        p->pair[p->out.n_states] = (Pair){state, rule};
        *at = (uint16_t)p->out.n_states++;
    }
    return *at;
}

/* All that is reached from the start. -1: there is no room for it. */
static int make_pairs(Product *p)
{
    const Dfa *d = p->of;
    const DfaRule *r = p->rule;
    size_t n_classes = (size_t)d->n_classes;
    pair_index(p, 0, r->start);
    for (int i = 0; i < p->out.n_states; i++) {
        Pair from = p->pair[i];
        uint16_t *next = p->out.next + (size_t)i * n_classes;
        p->out.accepts[i] = d->accepts[from.state] && r->ends(r, from.rule);
        for (size_t c = 0; c < n_classes; c++) {
            uint16_t to = d->next[from.state * n_classes + c];
            uint16_t rule = to == DFA_DEAD ? DFA_DEAD : r->step(r, from.rule, (int)c);
            next[c] = rule == DFA_DEAD ? DFA_DEAD : pair_index(p, to, rule);
            if (rule != DFA_DEAD && next[c] == DFA_DEAD) return -1;
        }
    }
    return 0;
}

int dfa_keep(Dfa *d, const DfaRule *rule, const char *too_many, Error *err)
{
    size_t n_classes = (size_t)d->n_classes;
    size_t n_index = (size_t)d->n_states * (size_t)rule->n_states;
    Product p = {.of = d, .rule = rule, .out = {.n_classes = d->n_classes}};
    if (n_index > MAX_INDEX) return error_set(err, ERR_LIMIT, "%s", too_many);
    p.room = MAX_CELLS / n_classes < MAX_PAIRS ? (int)(MAX_CELLS / n_classes) : MAX_PAIRS;
    p.index = mem_alloc(n_index, sizeof *p.index);
    memset(p.index, 0xff, n_index * sizeof *p.index);
    p.pair = mem_alloc((size_t)p.room, sizeof *p.pair);
    p.out.next = mem_realloc(NULL, (size_t)p.room * n_classes, sizeof *p.out.next);
    p.out.accepts = mem_alloc((size_t)p.room, 1);
    memcpy(p.out.class_of, d->class_of, sizeof d->class_of);
    int rc = make_pairs(&p);
    if (rc)
        error_set(err, ERR_LIMIT, "%s", too_many);
    else
        rc = dfa_minimise(&p.out, err);
    mem_free(p.index);
    mem_free(p.pair);
    dfa_free(rc ? &p.out : d);
    if (!rc) *d = p.out;
    return rc;
}

void dfa_tell_apart(Dfa *d, const uint8_t kind[256])
{
    uint8_t old[256], of[256]; /* of each new class: the old one, and the kind */
    int n = 0;
    for (int byte = 0; byte < 256; byte++) {
        int c = 0;
        while (c < n && (old[c] != d->class_of[byte] || of[c] != kind[byte]))
            c++;
        old[c] = d->class_of[byte];
        of[c] = kind[byte];
        n += c == n;
        d->class_of[byte] = (uint8_t)c;
    }
    uint16_t *next = mem_realloc(NULL, (size_t)(d->n_states * n), sizeof *next);
    for (int s = 0; s < d->n_states; s++)
        for (int c = 0; c < n; c++)
            next[s * n + c] = d->next[s * d->n_classes + old[c]];
    mem_free(d->next);
    d->next = next;
    d->n_classes = n;
}

typedef struct {
    DfaRule rule; /* first: it is handed on */
    const Dfa *other;
    uint8_t byte[256]; /* one of each class */
} Both;

static uint16_t step(const DfaRule *r, uint16_t state, int class)
{
    const Both *b = (const Both *)r;
    return dfa_step(b->other, state, b->byte[class]);
}

static int ends(const DfaRule *r, uint16_t state)
{
    return ((const Both *)r)->other->accepts[state];
}

int dfa_both(Dfa *d, const Dfa *other, Error *err)
{
    Both b = {.rule = {.n_states = other->n_states, .step = step, .ends = ends}, .other = other};
    dfa_tell_apart(d, other->class_of);
    for (int byte = 0; byte < 256; byte++)
        b.byte[d->class_of[byte]] = (uint8_t)byte;
    return dfa_keep(d, &b.rule, "both at once take too many states", err);
}
