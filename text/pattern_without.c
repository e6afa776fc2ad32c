/*
 * pattern_without.c: an automaton's strings in which some literals do not occur; see dfa.h.
 *
 * The rule's state is the longest end of what has come that one of the literals begins with (Aho
 * and Corasick, 1975). There are few and short ones, so it is found by trying.
 */
#include "text/pattern_parts.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_PREFIXES = 96, MAX_LITERAL = 32 };

typedef struct {
    const char *text;
    size_t len;
} Prefix;

typedef struct {
    DfaRule rule; /* first: it is handed on */
    const DfaNever *never;
    Prefix prefix[MAX_PREFIXES]; /* of the literals; the first is empty */
    int n;
    uint16_t (*next)[256]; /* [n][classes of bytes] */
} Without;

static int ends_with(const char *text, size_t len, const char *end, size_t n)
{
    return n <= len && !memcmp(text + len - n, end, n);
}

/* The state behind a text, DFA_DEAD if a literal ends there. */
static uint16_t state_of(const Without *w, const char *text, size_t len)
{
    int best = 0;
    for (int i = 0; i < w->never->n; i++)
        if (ends_with(text, len, w->never->literal[i], strlen(w->never->literal[i])))
            return DFA_DEAD;
    for (int i = 1; i < w->n; i++)
        if (w->prefix[i].len > w->prefix[best].len &&
            ends_with(text, len, w->prefix[i].text, w->prefix[i].len))
            best = i;
    return (uint16_t)best;
}

static void find_prefixes(Without *w)
{
    w->prefix[w->n++] = (Prefix){"", 0};
    for (int i = 0; i < w->never->n; i++) {
        size_t len = strlen(w->never->literal[i]);
        assert(len < MAX_LITERAL);
        for (size_t k = 1; k < len; k++) {
            assert(w->n < MAX_PREFIXES);
            w->prefix[w->n++] = (Prefix){w->never->literal[i], k};
        }
    }
}

/* Bytes of literals get classes of their own. What the automaton accepts stays the same. */
static void part_classes(Dfa *d, const DfaNever *never)
{
    int own[256] = {0}, class_of[256][2], n = 0; /* a new class by the old one, and by its byte */
    uint8_t old[256];
    for (int i = 0; i < never->n; i++)
        for (const char *at = never->literal[i]; *at; at++)
            own[(uint8_t)*at] = (uint8_t)*at;
    memset(class_of, -1, sizeof class_of);
    for (int byte = 0; byte < 256; byte++) {
        int class = d->class_of[byte], *known = &class_of[class][0], fresh = -1;
        int *at = own[byte] ? &fresh : known;
        if (*at < 0) {
            old[n] = (uint8_t) class;
            *at = n++;
        }
        d->class_of[byte] = (uint8_t)*at;
    }
    uint16_t *next = mem_realloc(NULL, (size_t)(d->n_states * n), sizeof *next);
    for (int s = 0; s < d->n_states; s++)
        for (int c = 0; c < n; c++)
            next[s * n + c] = d->next[s * d->n_classes + old[c]];
    mem_free(d->next);
    d->next = next;
    d->n_classes = n;
}

static void make_table(Without *w, const Dfa *d)
{
    char text[MAX_LITERAL + 1];
    w->next = mem_alloc((size_t)w->n, sizeof *w->next);
    for (int s = 0; s < w->n; s++)
        for (int byte = 0; byte < 256; byte++) {
            memcpy(text, w->prefix[s].text, w->prefix[s].len);
            text[w->prefix[s].len] = (char)byte;
            w->next[s][d->class_of[byte]] = state_of(w, text, w->prefix[s].len + 1);
        }
}

static uint16_t step(const DfaRule *r, uint16_t state, int class)
{
    return ((const Without *)r)->next[state][class];
}

static int ends(const DfaRule *r, uint16_t state)
{
    (void)r, (void)state;
    return 1;
}

int dfa_without(Dfa *d, const DfaNever *never, Error *err)
{
    Without w = {.rule = {.step = step, .ends = ends}, .never = never};
    find_prefixes(&w);
    part_classes(d, never);
    make_table(&w, d);
    w.rule.n_states = w.n;
    w.rule.start = state_of(&w, never->before, strlen(never->before));
    int rc = dfa_keep(d, &w.rule, "it takes too many states", err);
    mem_free(w.next);
    return rc;
}
