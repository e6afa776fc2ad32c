/*
 * split.h: cutting text into the pieces that are merged on their own.
 *
 * One or more regular expressions, each applied to the pieces of the one before. A match is a
 * piece, and so is the text between two matches ("Isolated"). PCRE2 keeps its backtracking on the
 * heap (or in 32 KiB when it compiled the expression), under a limit of steps that grows with the
 * text and no faster: no expression and no text can blow the stack or take for ever.
 */
#ifndef OFFSHOOT_TEXT_SPLIT_H
#define OFFSHOOT_TEXT_SPLIT_H

#include <stddef.h>

#include "base/error.h"

enum { MAX_SPLITS = 4 };

typedef struct Splitter Splitter;

/* n patterns, 1..MAX_SPLITS, as a tokenizer.json has them (Oniguruma's syntax). */
Splitter *splitter_open(const char *const *patterns, int n, Error *err);
void splitter_close(Splitter *s);

/* The cutting of one text, piece by piece; to be used for one text after the other. */
typedef struct SplitRun SplitRun;

SplitRun *split_open(const Splitter *s);
void split_close(SplitRun *run);

/* Begins with valid UTF-8, which must stay until its last piece. */
void split_begin(SplitRun *run, const char *text, size_t len);

typedef enum {
    SPLIT_FAILED = -1, /* ERR_LIMIT: an expression takes too many steps or too much memory */
    SPLIT_END,
    SPLIT_PIECE,
    SPLIT_MORE, /* the budget is spent */
} SplitResult;

/* Takes n off *budget, down to 0. */
static inline void budget_spend(size_t *budget, size_t n)
{
    *budget -= n < *budget ? n : *budget;
}

/* The next piece, none of them empty. Takes the bytes it looked at off *budget, down to 0. */
SplitResult split_next(SplitRun *run, size_t *budget, const char **piece, size_t *len, Error *err);

#endif
