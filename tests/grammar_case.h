/*
 * grammar_case.h: grammars of schemas that are written down, walked with a small vocabulary.
 */
#ifndef OFFSHOOT_TESTS_GRAMMAR_CASE_H
#define OFFSHOOT_TESTS_GRAMMAR_CASE_H

#include <jansson.h>

#include "base/strbuf.h"
#include "text/grammar_run.h"
#include "text/schema.h"

enum { CASE_NODES = 64 };

/* A tokenizer, its vocabulary in order, and room for two sequences; opened once a test program. */
typedef struct {
    Tokenizer *tok;
    GrammarVocab *vocab;
    GrammarPool *pool;
    int n_vocab;
    int32_t end, byte[256];
    uint64_t *mask, *allowed; /* [n_words] */
    size_t n_words;
} GrammarCase;

/* Of models/demo, with some more tokens; while a test program's group runs. */
extern GrammarCase *grammar_case;

/* For cmocka's group set-up and tear-down; -1 and a line on stderr. */
int grammar_case_open(void **state);
int grammar_case_close(void **state);

/* The grammar of a schema; NULL and *err. */
Grammar *grammar_of_json(const json_t *schema, int strict, Error *err);

/* The same of a schema's text, with ' for ". */
Grammar *grammar_of(const char *schema, int strict, Error *err);

/*
 * Adds anyOf of n strings, ' for ", each with more: for each letter those in which it comes an even
 * number of times, so that hardly two tokens lead to the same state, and then those without one
 * character, another in each. Masks of some hundred take too many steps.
 */
void add_strings_told_apart(StrBuf *out, int n, const char *more);

/* The answer begins, as sequence seq. */
GrammarAnswer answer_of(const GrammarCase *k, const Grammar *g, int seq);

/* 1 if text, byte by byte, is a whole answer; 0 if it is not; -1 if it is the beginning of one. */
int grammar_takes(const GrammarCase *k, const Grammar *g, const char *text);

int mask_has(const uint64_t *mask, int32_t id);

#endif
