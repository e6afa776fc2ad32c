/*
 * tokenizer_parts.h: what a Tokenizer is made of; shared by tokenizer.c and encoder.c, which use
 * it, and tokenizer_file.c and tokenizer_tables.c, which fill it. Nobody else includes this.
 */
#ifndef OFFSHOOT_TEXT_TOKENIZER_PARTS_H
#define OFFSHOOT_TEXT_TOKENIZER_PARTS_H

#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct Tokenizer {
    Vocab vocab; /* added tokens included */
    Bpe bpe;
    Splitter *splitter;
    int nfc;        /* 1: pieces are normalised to form C */
    int32_t *added; /* ids of the added tokens, sorted by their bytes */
    int n_added;
    unsigned char starts_added[256]; /* 1: some added token starts with this byte */
};

/* Fills *tok, which is zero, from the file; on failure what was filled so far stays in it. */
int tokenizer_read(Tokenizer *tok, const char *path, Error *err);

/*
 * Length of the longest added token at the start of text, 0 if none; *id is the token. Added tokens
 * are sorted, so those that agree with the text so far are a range, narrowed byte by byte.
 */
size_t tokenizer_match_added(const Tokenizer *tok, const char *text, size_t len, int32_t *id);

#endif
