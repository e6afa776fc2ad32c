/*
 * textdata.h: test data of text/: JSON lines, scratch files, templates, tokenizers and their
 * tokens.
 */
#ifndef OFFSHOOT_TESTS_TEXTDATA_H
#define OFFSHOOT_TESTS_TEXTDATA_H

#include <jansson.h>

#include "text/chat.h"
#include "text/tokenizer.h"

/* All lines of a file as one array; ends the test when one is not JSON. */
json_t *read_json_lines(const char *path);

/* Makes " of each ' of a text, in place, for JSON that is written in C. Returns it. */
char *with_quotes(char *text);

/* build/tests/NAME-PID, to be removed and freed by the caller; makes the folders. */
char *temp_path(const char *name);

void write_file(const char *path, const void *data, size_t len);

/* The large tokenizer, which is kept compressed; NULL and a line on stderr: it does not open. */
Tokenizer *open_big_tokenizer(void);

/* The templates that we know, as tests/data/chat names them. */
typedef struct {
    const char *name;
    ChatTemplate t;
    int preserve_thinking; /* to render with where nothing else is said: 1, or -1 */
} NamedTemplate;

enum { N_TEMPLATES = 9 };
extern const NamedTemplate named_templates[N_TEMPLATES];

/* Id of the token that is this one byte. */
int32_t byte_token(const Tokenizer *tok, unsigned char byte);

/* The demo model's tokenizer, and its byte_token of each byte; NULL: as above. */
Tokenizer *open_demo_tokenizer(int32_t token_of[256]);

/* xorshift64*: the same numbers everywhere. Never seed with 0. */
uint64_t random_next(uint64_t *state);

#endif
