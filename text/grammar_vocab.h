/*
 * grammar_vocab.h: a tokenizer's tokens in the order of their bytes, so that those that begin alike
 * are tried together; for grammar_mask.c.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_VOCAB_H
#define OFFSHOOT_TEXT_GRAMMAR_VOCAB_H

#include "text/grammar_run.h"

enum {
    MAX_GRAMMAR_TOKEN = 255
}; /* bytes; a longer token never comes in an answer with a grammar */

typedef struct {
    int32_t id;
    uint32_t first; /* of its bytes */
    uint8_t len;
    uint8_t shared;  /* bytes that it has in common with the one before */
    uint8_t unplain; /* bytes up to and with the last that is not plain text of a JSON string */
    uint8_t bracket; /* bytes up to and with the last '<' */
} GrammarVocabToken;

struct GrammarVocab {
    const Tokenizer *tok;
    int n_vocab, n;
    GrammarVocabToken *token; /* [n] */
    char *bytes;              /* theirs, in the same order: read so, few of them are far */
    uint64_t *text;           /* [n_words] ids of these */
    uint64_t *all;            /* all that the tokenizer knows, but for the ends */
    size_t n_words;
    int32_t *end;
    int n_end;
};

/* 1 for a token whose bytes are text; others are known by their ids alone. */
int grammar_vocab_is_text(const GrammarVocab *v, int32_t id);

#endif
