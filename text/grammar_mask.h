/*
 * grammar_mask.h: which tokens may follow a state of a grammar; for grammar_run.c.
 *
 * All of the vocabulary is tried, those that begin alike together; text of a string, which most of
 * it may follow, by what is known of each token. Where a byte leads from a state is found once a
 * mask (grammar_steps.h). Masks are kept, by the state that they are of or by the one that stands
 * for it (grammar_near.h).
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_MASK_H
#define OFFSHOOT_TEXT_GRAMMAR_MASK_H

#include "text/grammar_vocab.h"
#include "text/grammar_walk.h"

typedef struct GrammarMasks GrammarMasks;

GrammarMasks *grammar_masks_open(const GrammarVocab *v, Error *err);
void grammar_masks_close(GrammarMasks *m);

/*
 * Sets mask, [n_vocab] bits, to what may follow s without the ends of an answer; -1: that takes
 * more steps than w has. A token that goes where no state can be followed is in it.
 */
int grammar_mask(GrammarMasks *m, GrammarWalk *w, const GrammarState *s, uint64_t *mask);

#endif
