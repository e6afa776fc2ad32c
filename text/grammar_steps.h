/*
 * grammar_steps.h: an automaton made on the way, of states of a grammar that were met and the bytes
 * that were taken from them; for grammar_mask.c, which tries many tokens from the same few states.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_STEPS_H
#define OFFSHOOT_TEXT_GRAMMAR_STEPS_H

#include "text/grammar_walk.h"

enum {
    MAX_STEP_STATES = 1024,
    STEP_DEAD = -1, /* where a byte leads instead of to a state */
    STEP_NOT_KNOWN = -2,
};

typedef struct GrammarSteps GrammarSteps;

/* NULL: no memory. */
GrammarSteps *grammar_steps_open(void);
void grammar_steps_close(GrammarSteps *s);

/* Forgets all states. */
void grammar_steps_clear(GrammarSteps *s);

/* The number of a state, which is kept where it is new. STEP_NOT_KNOWN: there is no room. */
int grammar_steps_add(GrammarSteps *s, const GrammarState *state);

void grammar_steps_get(const GrammarSteps *s, int number, GrammarState *out);

/* Where byte leads from a state: to a state, STEP_DEAD, or STEP_NOT_KNOWN, as at first. */
int grammar_steps_next(const GrammarSteps *s, int from, uint8_t byte);
void grammar_steps_set(GrammarSteps *s, int from, uint8_t byte, int to);

#endif
