/*
 * dfa_shape.h: what must hold of the shape of every automaton that was compiled, found the slow
 * way.
 */
#ifndef OFFSHOOT_TESTS_DFA_SHAPE_H
#define OFFSHOOT_TESTS_DFA_SHAPE_H

#include <string.h>

#include "base/mem.h"
#include "text/dfa.h"

static inline int dfa_next(const Dfa *d, int state, int class)
{
    return d->next[state * d->n_classes + class];
}

/* 1 if all numbers are in range. */
static inline int dfa_in_range(const Dfa *d)
{
    int ok = d->n_states >= 1 && d->n_states <= DFA_MAX_STATES && d->n_classes >= 1;
    for (int byte = 0; byte < 256; byte++)
        ok &= d->class_of[byte] < d->n_classes;
    for (int i = 0; ok && i < d->n_states * d->n_classes; i++)
        ok &= d->next[i] < d->n_states || d->next[i] == DFA_DEAD;
    for (int s = 0; ok && s < d->n_states; s++)
        ok &= d->accepts[s] <= 1;
    return ok;
}

/* 1 if every state is reached from the first one, and reaches an accepting one. */
static inline int dfa_is_trim(const Dfa *d)
{
    uint8_t *reached = mem_alloc((size_t)d->n_states, 1),
            *reaches = mem_alloc((size_t)d->n_states, 1);
    int ok = 1;
    reached[0] = 1;
    memcpy(reaches, d->accepts, (size_t)d->n_states);
    /* Upwards and then downwards, as states are numbered by their distance: few rounds do. */
    for (int changed = 1, n = d->n_states * d->n_classes; changed;) {
        changed = 0;
        for (int i = 0; i < n; i++)
            if (d->next[i] != DFA_DEAD && reached[i / d->n_classes] && !reached[d->next[i]])
                changed = reached[d->next[i]] = 1;
        for (int i = n - 1; i >= 0; i--)
            if (d->next[i] != DFA_DEAD && reaches[d->next[i]] && !reaches[i / d->n_classes])
                changed = reaches[i / d->n_classes] = 1;
    }
    for (int s = 0; s < d->n_states; s++)
        ok &= reached[s] && reaches[s];
    mem_free(reached);
    mem_free(reaches);
    return ok;
}

/* 1 if a and b, not the same state, are told apart by what is known so far: differ[a * n + b]. */
static inline int dfa_pair_differs(const Dfa *d, const uint8_t *differ, int a, int b)
{
    if (d->accepts[a] != d->accepts[b]) return 1;
    for (int c = 0; c < d->n_classes; c++) {
        int x = dfa_next(d, a, c), y = dfa_next(d, b, c);
        if (x == y) continue;
        if (x == DFA_DEAD || y == DFA_DEAD || differ[x * d->n_states + y]) return 1;
    }
    return 0;
}

/* 1 if some string tells any two states apart, and some state any two classes. Takes n^3 or so. */
static inline int dfa_is_minimal(const Dfa *d)
{
    int n = d->n_states, ok = 1;
    uint8_t *differ = mem_alloc((size_t)n * (size_t)n, 1);
    for (int changed = 1; changed;) {
        changed = 0;
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                if (a != b && !differ[a * n + b] && dfa_pair_differs(d, differ, a, b))
                    changed = differ[a * n + b] = 1;
    }
    for (int i = 0; i < n * n; i++)
        ok &= differ[i] || i / n == i % n;
    for (int a = 0; a < d->n_classes; a++) {
        for (int b = 0; b < a; b++) {
            int same = 1;
            for (int s = 0; s < n; s++)
                same &= dfa_next(d, s, a) == dfa_next(d, s, b);
            ok &= !same;
        }
    }
    mem_free(differ);
    return ok;
}

/* What is wrong with an automaton, NULL when nothing is. Up to n_small states all is looked at. */
static inline const char *dfa_fault(const Dfa *d, int n_small)
{
    if (!dfa_in_range(d)) return "a number is out of range";
    if (!dfa_is_trim(d)) return "a state is not reached or reaches nothing";
    if (d->n_states <= n_small && !dfa_is_minimal(d)) return "two states or classes are alike";
    return NULL;
}

/* 1 if both are the same automaton, number by number. */
static inline int dfa_equal(const Dfa *a, const Dfa *b)
{
    size_t n = (size_t)a->n_states;
    return a->n_states == b->n_states && a->n_classes == b->n_classes &&
           !memcmp(a->class_of, b->class_of, sizeof a->class_of) &&
           !memcmp(a->accepts, b->accepts, n) &&
           !memcmp(a->next, b->next, n * (size_t)a->n_classes * sizeof *a->next);
}

/* The state after a text, from the first one. */
static inline uint16_t dfa_run(const Dfa *d, const char *text, size_t len)
{
    uint16_t state = 0;
    for (size_t i = 0; i < len; i++)
        state = dfa_step(d, state, (uint8_t)text[i]);
    return state;
}

static inline int dfa_matches(const Dfa *d, const char *text, size_t len)
{
    uint16_t state = dfa_run(d, text, len);
    return state != DFA_DEAD && d->accepts[state];
}

#endif
