/* strbuf.c: see strbuf.h. */
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static void reserve(StrBuf *sb, size_t extra)
{
    size_t need = sb->len + extra + 1;
    if (need <= sb->cap) return;
    size_t cap = sb->cap ? sb->cap : 64;
    while (cap < need)
        cap *= 2;
    sb->data = mem_realloc(sb->data, cap, 1);
    sb->cap = cap;
}

void strbuf_add(StrBuf *sb, const char *data, size_t len)
{
    reserve(sb, len);
    if (len) memcpy(sb->data + sb->len, data, len);
    sb->len += len;
    sb->data[sb->len] = 0;
}

void strbuf_puts(StrBuf *sb, const char *text)
{
    strbuf_add(sb, text, strlen(text));
}

void strbuf_printf(StrBuf *sb, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        reserve(sb, (size_t)n);
        vsnprintf(sb->data + sb->len, (size_t)n + 1, fmt, again);
        sb->len += (size_t)n;
    }
    va_end(again);
}

const char *strbuf_str(const StrBuf *sb)
{
    return sb->data ? sb->data : "";
}

void strbuf_clear(StrBuf *sb)
{
    sb->len = 0;
    if (sb->data) sb->data[0] = 0;
}

void strbuf_free(StrBuf *sb)
{
    mem_free(sb->data);
    *sb = (StrBuf){0};
}

int text_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}
