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

/* Bytes of literals get classes of their own. */
static void part_classes(Dfa *d, const DfaNever *never)
{
    uint8_t own[256] = {0};
    for (int i = 0; i < never->n; i++)
        for (const char *at = never->literal[i]; *at; at++)
            own[(uint8_t)*at] = (uint8_t)*at;
    dfa_tell_apart(d, own);
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
