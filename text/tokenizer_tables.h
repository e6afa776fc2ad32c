/*
 * tokenizer_tables.h: the two tables of a tokenizer.json, vocabulary and merges.
 *
 * They are nearly all of the file: a quarter of a million entries each. So they are read where they
 * lie in the file, and only the rest of it becomes a tree.
 */
#ifndef OFFSHOOT_TEXT_TOKENIZER_TABLES_H
#define OFFSHOOT_TEXT_TOKENIZER_TABLES_H

#include "text/json_cursor.h"
#include "text/tokenizer_parts.h"

/* A tokenizer.json that is read. Zero but for path and err before the tables are found. */
typedef struct {
    const char *path;
    Error *err;
    const char *text;                  /* the file's first byte */
    JsonText vocab, merges;            /* with their braces, in it; NULL: none of that kind */
    StrBuf symbol, other;              /* symbols without escapes */
    int16_t byte_of[324];              /* that a symbol's code point stands for, or -1 */
    int32_t last_merged;               /* what the last merge makes */
    char *left, *right;                /* decoded symbols; as large as the longest and a pair */
    size_t n_tokens, n_bytes, longest; /* of the vocabulary, as it is written */
    int max_id;                        /* -1: there is none */
} TokenizerFile;

/* An Error of the form: cannot load 'PATH': ... Returns -1. */
__attribute__((format(printf, 2, 3))) int tokenizer_bad(const TokenizerFile *f, const char *fmt,
                                                        ...);

typedef struct {
    char text[48];
} ShownSymbol;

/* A symbol fit for an error message: one line, short, cut between characters. */
ShownSymbol shown_symbol(const char *text, size_t len);

/* Finds both tables in text, which stays where it is; *rest is text with empty ones instead. */
void tokenizer_tables_find(TokenizerFile *f, const char *text, size_t len, StrBuf *rest);

/* Checks the form of the vocabulary and its ids, and measures it. */
int tokenizer_tables_measure(TokenizerFile *f);

/* -1 and an Error when that is no id; else f->max_id is at least as large. */
int tokenizer_check_id(TokenizerFile *f, long long id, const char *where, JsonText symbol);

/* Fills tok->vocab, which has room for what was measured, and then tok->bpe. */
int tokenizer_tables_read(TokenizerFile *f, Tokenizer *tok);

void tokenizer_tables_free(TokenizerFile *f);

#endif
