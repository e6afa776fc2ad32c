/*
 * pattern_length.c: an automaton's strings of so many characters or more; see dfa.h.
 *
 * The rule's state is how many characters there have been, up to the least that there must be: more
 * make no difference.
 */
#include "text/pattern_parts.h"

#include <stdio.h>

#include "text/utf8.h"

typedef struct {
    DfaRule rule; /* first: it is handed on */
    uint8_t begins[256];
} Length;

static uint16_t step(const DfaRule *r, uint16_t count, int class)
{
    const Length *l = (const Length *)r;
    return (uint16_t)(count + (l->begins[class] && count + 1 < r->n_states));
}

static int ends(const DfaRule *r, uint16_t count)
{
    return count + 1 == r->n_states;
}

int dfa_at_least(Dfa *d, int least, Error *err)
{
    char too_many[64];
    Length l = {.rule = {.n_states = least + 1, .step = step, .ends = ends}};
    /* Whether the bytes of a class begin a character. Those of one class that any state takes are
     * alike in that: strings are UTF-8, so where a character may begin none can go on. */
    for (int byte = 0; byte < 256; byte++)
        l.begins[d->class_of[byte]] = !utf8_is_tail((unsigned char)byte);
    snprintf(too_many, sizeof too_many, "%d characters of it are too many to count", least);
    return dfa_keep(d, &l.rule, too_many, err);
}
