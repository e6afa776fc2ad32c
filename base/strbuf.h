/*
 * strbuf.h: a growing run of bytes, always followed by a NUL.
 *
 * Used off the engine thread only (templates, JSON, HTTP). Zero-initialised is empty and valid.
 * Running out of memory ends the process: callers bound what they append.
 */
#ifndef OFFSHOOT_BASE_STRBUF_H
#define OFFSHOOT_BASE_STRBUF_H

#include <stddef.h>

typedef struct {
    char *data; /* NULL while empty; otherwise data[len] == 0 */
    size_t len, cap;
} StrBuf;

void strbuf_add(StrBuf *sb, const char *data, size_t len);
void strbuf_puts(StrBuf *sb, const char *text);
void strbuf_printf(StrBuf *sb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The content as a C string, "" when empty; valid until the next change. */
const char *strbuf_str(const StrBuf *sb);

/* Empties sb but keeps its memory. */
void strbuf_clear(StrBuf *sb);
void strbuf_free(StrBuf *sb);

/* Of C strings: 1 if the last of text is end. */
int text_ends_with(const char *text, const char *end);

#endif
