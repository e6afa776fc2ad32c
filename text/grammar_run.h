/*
 * grammar_run.h: how far answers are in their grammars, and which tokens may come next.
 *
 * A GrammarPool has room for the states of all sequences that run at once, one for each node of
 * their draft trees, and belongs to one thread. It takes its memory when it is opened.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_RUN_H
#define OFFSHOOT_TEXT_GRAMMAR_RUN_H

#include "base/constraint.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

/* The tokens that have bytes, in the order of these. Constant once made. */
typedef struct GrammarVocab GrammarVocab;

/* n_vocab: ids that the model has. end[n_end]: tokens that end an answer. */
GrammarVocab *grammar_vocab_open(const Tokenizer *tok, int n_vocab, const int32_t *end, int n_end);
void grammar_vocab_close(GrammarVocab *v);

typedef struct GrammarPool GrammarPool;

/* n_nodes states for each of n_seqs sequences. vocab must outlive it. */
GrammarPool *grammar_pool_open(const GrammarVocab *vocab, int n_seqs, int n_nodes, Error *err);
void grammar_pool_close(GrammarPool *p);

/* One answer's way through a grammar; to be kept as long as the engine has the answer. */
typedef struct {
    const Grammar *grammar;
    GrammarPool *pool;
    int seq;
} GrammarAnswer;

Constraint grammar_constraint(GrammarAnswer *a);

#endif
