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

/* Other than 0: no more, splitter_run gives this back. */
typedef int (*PieceFn)(void *arg, const char *piece, size_t len);

/*
 * Calls piece(arg, ...) for each piece of valid UTF-8, in order, none of them empty. ERR_LIMIT when
 * an expression takes too many steps or too much memory.
 */
int splitter_run(const Splitter *s, const char *text, size_t len, PieceFn piece, void *arg,
                 Error *err);

#endif
