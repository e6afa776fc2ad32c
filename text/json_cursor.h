/*
 * json_cursor.h: reading a JSON text from front to back, for tables too large to become a tree.
 *
 * What is read is checked as RFC 8259 has it, what is skipped only balanced: somebody else reads
 * that. The text stays in place, and need not be UTF-8. After a -1 `at` is near what is wrong.
 */
#ifndef OFFSHOOT_TEXT_JSON_CURSOR_H
#define OFFSHOOT_TEXT_JSON_CURSOR_H

#include "base/strbuf.h"

typedef struct {
    const char *at, *end;
} JsonCursor;

typedef struct {
    const char *text; /* no NUL follows */
    size_t len;
} JsonText;

/* The next byte that is no blank, which stays; 0 at the end. */
char json_cursor_peek(JsonCursor *c);

/* 1: that was the next byte that is no blank, and is behind now. */
int json_cursor_take(JsonCursor *c, char what);

/*
 * In a container of which n entries are behind: 1 when there is another, 0 when `close` has been
 * taken, -1 for anything else.
 */
int json_cursor_next(JsonCursor *c, char close, size_t n);

/*
 * A string: *out is a part of the text, or of *unescaped, which is cleared before. -1 also for
 * \u0000 and half a surrogate pair.
 */
int json_cursor_string(JsonCursor *c, StrBuf *unescaped, JsonText *out);

/* Such a string and the colon behind it. */
int json_cursor_key(JsonCursor *c, StrBuf *unescaped, JsonText *out);

/* An integer, or the one nearest to it that *out holds. -1 for a fraction and all else. */
int json_cursor_integer(JsonCursor *c, long long *out);

/* A value of any kind. */
int json_cursor_skip(JsonCursor *c);

#endif
