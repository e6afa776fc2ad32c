/*
 * pattern_length.c: an automaton's strings of so many characters or more; see dfa.h.
 *
 * A state of the product is one of the automaton's and how many characters there have been, up to
 * the least that there must be: more make no difference. Of those only what is reached is made.
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
    uint16_t state, count;
} Pair;

typedef struct {
    const Dfa *of;
    int least, room; /* room: for so many states */
    uint16_t *index; /* [of->n_states][least + 1], DFA_DEAD: not made */
    Pair *pair;      /* [room] */
    Dfa out;
} Product;

static uint16_t pair_index(Product *p, uint16_t state, uint16_t count)
{
    uint16_t *at = &p->index[(size_t)state * (size_t)(p->least + 1) + count];
    if (*at == DFA_DEAD && p->out.n_states < p->room) {
        p->pair[p->out.n_states] = (Pair){state, count};
        *at = (uint16_t)p->out.n_states++;
    }
    return *at;
}

/* Per class, whether its bytes begin a character. Bytes of one class that any state takes are alike
 * in that: strings are UTF-8, so where a character may begin none can go on. */
static void find_begins(const Dfa *d, uint8_t begins[256])
{
    for (int byte = 0; byte < 256; byte++)
        begins[d->class_of[byte]] = (byte & 0xc0) != 0x80;
}

/* All that is reached from (0, 0). -1: there is no room for it. */
static int make_pairs(Product *p)
{
    const Dfa *d = p->of;
    size_t n_classes = (size_t)d->n_classes;
    uint8_t begins[256] = {0};
    find_begins(d, begins);
    pair_index(p, 0, 0);
    for (int i = 0; i < p->out.n_states; i++) {
        Pair from = p->pair[i];
        uint16_t *next = p->out.next + (size_t)i * n_classes;
        p->out.accepts[i] = d->accepts[from.state] && from.count == p->least;
        for (size_t c = 0; c < n_classes; c++) {
            uint16_t to = d->next[from.state * n_classes + c];
            int count = from.count + (begins[c] && from.count < p->least);
            next[c] = to == DFA_DEAD ? DFA_DEAD : pair_index(p, to, (uint16_t)count);
            if (to != DFA_DEAD && next[c] == DFA_DEAD) return -1;
        }
    }
    return 0;
}

int dfa_at_least(Dfa *d, int least, Error *err)
{
    size_t n_classes = (size_t)d->n_classes, n_index = (size_t)d->n_states * (size_t)(least + 1);
    Product p = {.of = d, .least = least, .out = {.n_classes = d->n_classes}};
    if (n_index > MAX_INDEX)
        return error_set(err, ERR_LIMIT, "%d characters of it are too many to count", least);
    p.room = MAX_CELLS / n_classes < MAX_PAIRS ? (int)(MAX_CELLS / n_classes) : MAX_PAIRS;
    p.index = mem_alloc(n_index, sizeof *p.index);
    memset(p.index, 0xff, n_index * sizeof *p.index);
    p.pair = mem_alloc((size_t)p.room, sizeof *p.pair);
    p.out.next = mem_realloc(NULL, (size_t)p.room * n_classes, sizeof *p.out.next);
    p.out.accepts = mem_alloc((size_t)p.room, 1);
    memcpy(p.out.class_of, d->class_of, sizeof d->class_of);
    int rc = make_pairs(&p);
    if (rc)
        error_set(err, ERR_LIMIT, "%d characters of it are too many to count", least);
    else
        rc = dfa_minimise(&p.out, err);
    mem_free(p.index);
    mem_free(p.pair);
    dfa_free(rc ? &p.out : d);
    if (!rc) *d = p.out;
    return rc;
}
