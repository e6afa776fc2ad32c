/*
 * tokenizer_parts.h: what a Tokenizer is made of; shared by tokenizer.c and encoder.c, which use
 * it, and tokenizer_file.c and tokenizer_tables.c, which fill it. Nobody else includes this.
 */
#ifndef OFFSHOOT_TEXT_TOKENIZER_PARTS_H
#define OFFSHOOT_TEXT_TOKENIZER_PARTS_H

#include "base/strbuf.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

typedef struct {
    int32_t id;
    uint32_t start, len; /* of the text that it is matched by, in AddedTokens.text */
} AddedToken;

/* Tokens that are looked for in a text before it is split. */
typedef struct {
    AddedToken *token; /* [n], sorted by their texts */
    int n;
    StrBuf text;
    unsigned char starts[256]; /* 1: some token starts with this byte */
} AddedTokens;

struct Tokenizer {
    Vocab vocab; /* added tokens included, whose bytes may be those of another token */
    Bpe bpe;
    Splitter *splitter;
    int nfc;           /* 1: pieces are normalised to form C */
    int32_t *added_id; /* of all added tokens, sorted by their bytes */
    int n_added;
    AddedTokens literal;    /* found in the text as it is */
    AddedTokens normalised; /* by their form C, in what is between those, normalised */
};

/* Fills *tok, which is zero, from the file; on failure what was filled so far stays in it. */
int tokenizer_read(Tokenizer *tok, const char *path, Error *err);

/*
 * Length of the longest of these tokens at the start of text, 0 if none; *id is the token. They are
 * sorted, so those that agree with the text so far are a range, narrowed byte by byte.
 */
size_t tokenizer_match_added(const AddedTokens *added, const char *text, size_t len, int32_t *id);

#endif
