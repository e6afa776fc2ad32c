/*
 * grammar_near.h: states that no short token tells apart; for grammar_mask.c.
 *
 * A bound that is further away than a token is long makes no difference to it: of a string of up to
 * 200 characters the first hundred states have the same near tokens, those of up to NEAR_BYTES
 * bytes. One of such states stands for all of them, and so does its mask.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_NEAR_H
#define OFFSHOOT_TEXT_GRAMMAR_NEAR_H

#include "text/grammar_walk.h"

/*
 * s becomes the state that stands for it; 1: another one. Where it has many threads, or two would
 * be one, it stands for itself.
 */
int grammar_near(const Grammar *g, GrammarState *s);

/*
 * [n_states]: of the states that nothing of up to NEAR_BYTES bytes tells apart the first, for each
 * state. left: as in GrammarAutomaton. To be freed with mem_free.
 */
uint16_t *grammar_near_states(const Dfa *d, const uint16_t *left);

#endif
