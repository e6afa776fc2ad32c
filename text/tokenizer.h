/*
 * tokenizer.h: bytes to tokens and back, for the tokenizer.json of the Qwen families.
 *
 * Byte-level BPE over PCRE2 (the split regex, taken from the file) and utf8proc (NFC): added tokens
 * are cut out first (longest match, literal), each remaining piece is NFC-normalised, added tokens
 * that are to be found in what is normalised are cut out of it, and the rest is split, its bytes
 * mapped to the 256 byte symbols, and merged by rank. encoder.h does that in slices.
 * Immutable once open: any number of threads may use one at a time each with its own TokenList.
 */
#ifndef OFFSHOOT_TEXT_TOKENIZER_H
#define OFFSHOOT_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Tokenizer Tokenizer;

typedef struct {
    int32_t *id; /* owned; free with token_list_free */
    int n, cap;
    int limit; /* 0, or encoding fails with ERR_LIMIT once there are more */
} TokenList;

void token_list_add(TokenList *list, int32_t id);
void token_list_free(TokenList *list);

/*
 * Reads a tokenizer.json (BPE, ByteLevel), and what its folder's tokenizer_config.json adds to
 * that. Every part that is not understood is an error that names it.
 */
Tokenizer *tokenizer_open(const char *path, Error *err);
void tokenizer_close(Tokenizer *tok);

/*
 * Appends the tokens of text[0..len) to *out. Added tokens written in the text become their ids.
 * Text must be UTF-8: else ERR_INPUT that names the byte offset. On an error *out may hold some
 * tokens.
 */
int tokenizer_encode(const Tokenizer *tok, const char *text, size_t len, TokenList *out,
                     Error *err);

/* A part of a text. */
typedef struct {
    size_t from, len;
} TextSpan;

/*
 * The same, but no byte of the n parts plain[] (in order, apart) is taken for a
 * part of an added token: what a client wrote, in a prompt that a template made.
 */
int tokenizer_encode_prompt(const Tokenizer *tok, const char *text, size_t len,
                            const TextSpan *plain, int n_plain, TokenList *out, Error *err);

/* The tokenizer knows no id from here on. */
int tokenizer_size(const Tokenizer *tok);

/* Bytes of a token (not always whole characters); *len = 0 for an id it lacks. Lives as long as
 * tok. */
const char *tokenizer_bytes(const Tokenizer *tok, int32_t id, size_t *len);

/*
 * 1 if both lists, neither of them empty, spell the same text as far as the shorter text goes: it
 * was cut into tokens in another way, or they are the same.
 */
int tokenizer_same_text(const Tokenizer *tok, const int32_t *a, int n_a, const int32_t *b, int n_b);

/* 1 if the tokenizer has this id (ids of a padded vocabulary are not its own). */
int tokenizer_has(const Tokenizer *tok, int32_t id);

/* 1 for an added token with "special": true; skipped when an answer is turned into text. */
int tokenizer_is_special(const Tokenizer *tok, int32_t id);

/* Ids of all added tokens, in no order that says anything; *n of them. Lives as long as tok. */
const int32_t *tokenizer_added(const Tokenizer *tok, int *n);

/* Id of an added token by its exact text, or -1. */
int32_t tokenizer_added_id(const Tokenizer *tok, const char *content);

#endif
