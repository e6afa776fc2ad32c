/*
 * reply_value.h: the text of a parameter's value, as the JSON that its schema asks for.
 *
 * A value that fits none of the allowed types becomes a string: the tool's own checks answer the
 * model better than we could. Strings are written while their text arrives; the other types, and
 * strings that may still turn out to be null, an object or a list, wait for the value's end.
 */
#ifndef OFFSHOOT_TEXT_REPLY_VALUE_H
#define OFFSHOOT_TEXT_REPLY_VALUE_H

#include <stddef.h>

#include "base/strbuf.h"

/* A value that waits and grows past this goes out as a string. */
enum { MAX_WAITING_VALUE = 1 << 20 };

/* Appends the whole value as JSON. types: a mask of reply_tools.h. */
void reply_value_json(const char *text, size_t len, unsigned types, StrBuf *out);

/* The same, while the text arrives. */
typedef struct {
    unsigned types;
    int streams;    /* the opening quote is out, all text follows at once */
    StrBuf waiting; /* text that is not out */
} ReplyValue;

void reply_value_begin(ReplyValue *v, unsigned types);
void reply_value_text(ReplyValue *v, const char *text, size_t len, StrBuf *out);
void reply_value_end(ReplyValue *v, StrBuf *out);
void reply_value_free(ReplyValue *v);

#endif
