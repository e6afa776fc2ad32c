/*
 * suffix.h: the drafter that knows what followed the ends of the sequence before, and how often.
 *
 * Each sequence has an automaton of its tokens, prompt and answer; nothing is shared with others. A
 * draft begins at the longest end of the sequence that occurred before. What followed there, what
 * followed shorter ends, and how often, say how likely a token comes next; the tree takes the
 * likeliest nodes first. It needs no draft head.
 * Source: the trees are those of SuffixDecoding (arXiv 2411.04975), the mean over ends of different
 * length is that of prediction by partial matching (Cleary and Witten, 1984).
 */
#ifndef OFFSHOOT_DRAFTS_SUFFIX_H
#define OFFSHOOT_DRAFTS_SUFFIX_H

#include "spec/drafter.h"

enum { SUFFIX_WINDOW = 32768 }; /* tokens of a sequence that are known: the last ones */

/* Memory, 110 bytes a token, is touched as sequences grow. What a request predicts is in it, too.
 */
void suffix_drafter_open(Drafter *out);

#endif
