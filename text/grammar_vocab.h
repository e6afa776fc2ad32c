/*
 * grammar_vocab.h: a tokenizer's tokens in the order of their bytes, so that those that begin alike
 * are tried together; for grammar_mask.c.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_VOCAB_H
#define OFFSHOOT_TEXT_GRAMMAR_VOCAB_H

#include "text/grammar_run.h"

enum {
    MAX_GRAMMAR_TOKEN = 255, /* bytes; a longer token never comes in an answer with a grammar */
    NEAR_BYTES = 32,         /* a token of up to so many is near (grammar_near.h); few have more */
};

typedef struct {
    int32_t id;
    int32_t after;  /* the next of its list that has less in common with the one before it */
    uint32_t first; /* of its bytes */
    uint8_t len;
    uint8_t shared;  /* bytes that it has in common with the one before, in its list */
    uint8_t unplain; /* bytes up to and with the last that is not plain text of a JSON string */
    uint8_t bracket; /* bytes up to and with the last '<' */
} GrammarVocabToken;

/* In the order of their bytes. */
typedef struct {
    GrammarVocabToken *token;
    int n;
} GrammarTokens;

/* Near tokens by what is known of them all: where the known may follow, the others are left. */
typedef enum {
    KNOWN_NONE,
    KNOWN_PLAIN,      /* plain text of a JSON string */
    KNOWN_PLAIN_16,   /* the same of up to 16 bytes */
    KNOWN_PLAIN_8,    /* of up to 8 */
    KNOWN_PLAIN_TEXT, /* plain, without '<' */
    KNOWN_TEXT,       /* without '<' */
    N_KNOWN,
} GrammarKnown;

struct GrammarVocab {
    const Tokenizer *tok;
    int n_vocab;
    char *bytes;                  /* of all tokens, in their order: read so, few of them are far */
    uint64_t *known[N_KNOWN];     /* [n_words] ids */
    GrammarTokens other[N_KNOWN]; /* near ones that are not among the known */
    GrammarTokens far;            /* of more than NEAR_BYTES */
    uint64_t *text;               /* [n_words] ids of all these */
    uint64_t *all;                /* all that the tokenizer knows, but for the ends */
    size_t n_words;
    int32_t *end;
    int n_end;
};

/* 1 for a token whose bytes are text; others are known by their ids alone. */
int grammar_vocab_is_text(const GrammarVocab *v, int32_t id);

#endif
