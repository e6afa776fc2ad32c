/*
 * tokenized.h: texts as tokens, and a small tokenizer.json to be changed or broken.
 */
#ifndef OFFSHOOT_TESTS_TOKENIZED_H
#define OFFSHOOT_TESTS_TOKENIZED_H

#include <jansson.h>

#include "base/error.h"
#include "text/tokenizer.h"

/* Tokens of a text; the test fails when it has none. */
TokenList encode_text(const Tokenizer *tok, const char *text, size_t len);

/* The text has these n tokens. */
void expect_ids(const Tokenizer *tok, const char *text, size_t len, const int32_t *id, int n);

/*
 * A file to break: the 256 byte symbols of the golden model, "ab" and "abc" with their merges,
 * "12", and the three added tokens.
 */
json_t *small_json(void);

/* Sets the part at path ("model/merges/0") to the JSON text value, or removes it when NULL. */
void small_set(json_t *root, const char *path, const char *value);

/* NULL when it does not open: the Error names the file, on one line. */
Tokenizer *small_open(const json_t *root, Error *err);

#endif
