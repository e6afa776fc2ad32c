/*
 * detokenizer.h: tokens to text, as they come, never half a UTF-8 character.
 *
 * Bytes of an unfinished character are held until it is whole. A byte that can no longer become
 * part of a valid character is replaced by U+FFFD, as Python's "replace" does (one per maximal
 * subpart).
 */
#ifndef OFFSHOOT_TEXT_DETOKENIZER_H
#define OFFSHOOT_TEXT_DETOKENIZER_H

#include "base/strbuf.h"
#include "text/tokenizer.h"

typedef struct {
    const Tokenizer *tok;
    int keep_special; /* 1: special tokens appear as their text */
    unsigned char held[4];
    int n_held;
} Detokenizer;

void detokenizer_init(Detokenizer *d, const Tokenizer *tok, int keep_special);

/* Appends the text that token completes to *out (maybe nothing). */
void detokenizer_push(Detokenizer *d, int32_t token, StrBuf *out);

/* End of the answer: what is still held becomes U+FFFD. */
void detokenizer_finish(Detokenizer *d, StrBuf *out);

#endif
