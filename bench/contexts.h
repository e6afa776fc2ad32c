/*
 * contexts.h: prompts of random tokens, as long as --contexts says.
 */
#ifndef OFFSHOOT_BENCH_CONTEXTS_H
#define OFFSHOOT_BENCH_CONTEXTS_H

#include <stdint.h>

#include "base/error.h"
#include "text/tokenizer.h"

enum { MAX_CONTEXTS = 16 };

typedef struct {
    int list[MAX_CONTEXTS], n;
} Contexts;

/*
 * From text, numbers with commas; NULL: usual, or `most` if that is less. n_after tokens follow
 * each, which is why `most` is not more.
 */
int contexts_read(Contexts *c, const char *text, int usual, int most, int n_after, Error *err);

/* n ids below n_vocab that the tokenizer has; always the same ones for the same number. */
void contexts_fill(const Tokenizer *tok, int n_vocab, uint32_t number, int32_t *id, int n);

#endif
