/* json_cursor.c: see json_cursor.h. */
#include "text/json_cursor.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "text/utf8.h"

char json_cursor_peek(JsonCursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
    return (char)(c->at < c->end ? *c->at : 0);
}

int json_cursor_take(JsonCursor *c, char what)
{
    if (json_cursor_peek(c) != what) return 0;
    c->at++;
    return 1;
}

int json_cursor_next(JsonCursor *c, char close, size_t n)
{
    if (json_cursor_take(c, close)) return 0;
    return !n || json_cursor_take(c, ',') ? 1 : -1;
}

/* ---- strings ---- */

/* Four hexadecimal digits, or -1. */
static int32_t read_hex(JsonCursor *c)
{
    int32_t code = 0;
    for (int i = 0; i < 4; i++, c->at++) {
        if (c->at == c->end) return -1;
        char x = *c->at;
        int digit = x >= '0' && x <= '9'   ? x - '0'
                    : x >= 'a' && x <= 'f' ? x - 'a' + 10
                    : x >= 'A' && x <= 'F' ? x - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* The character of \uXXXX, behind its u, or of two that are a surrogate pair; -1: none. */
static int32_t read_unicode(JsonCursor *c)
{
    int32_t code = read_hex(c);
    if (code < 0xD800 || code > 0xDFFF) return code ? code : -1;
    if (code > 0xDBFF || c->end - c->at < 2 || c->at[0] != '\\' || c->at[1] != 'u') return -1;
    c->at += 2;
    int32_t low = read_hex(c);
    if (low < 0xDC00 || low > 0xDFFF) return -1;
    return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
}

/* The cursor is behind a backslash. */
static int read_escape(JsonCursor *c, StrBuf *out)
{
    static const char name[] = "\"\\/bfnrt", byte[] = "\"\\/\b\f\n\r\t";
    char text[4];
    if (c->at == c->end) return -1;
    char kind = *c->at++;
    const char *known = kind ? strchr(name, kind) : NULL;
    if (known) {
        strbuf_add(out, &byte[known - name], 1);
        return 0;
    }
    int32_t code = kind == 'u' ? read_unicode(c) : -1;
    if (code < 0) return -1;
    strbuf_add(out, text, (size_t)utf8_put((uint32_t)code, text));
    return 0;
}

/* To what ends a run of plain bytes: a quote, a backslash, a control character, the text's end. */
static void pass_plain(JsonCursor *c)
{
    const char *at = c->at;
    while (at < c->end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
        at++;
    c->at = at;
}

int json_cursor_string(JsonCursor *c, StrBuf *unescaped, JsonText *out)
{
    if (!json_cursor_take(c, '"')) return -1;
    const char *from = c->at;
    pass_plain(c);
    if (c->at < c->end && *c->at == '"') {
        *out = (JsonText){from, (size_t)(c->at++ - from)};
        return 0;
    }
    strbuf_clear(unescaped);
    while (c->at < c->end && *c->at == '\\') {
        strbuf_add(unescaped, from, (size_t)(c->at++ - from));
        if (read_escape(c, unescaped)) return -1;
        from = c->at;
        pass_plain(c);
    }
    if (c->at == c->end || *c->at != '"') return -1;
    strbuf_add(unescaped, from, (size_t)(c->at++ - from));
    *out = (JsonText){strbuf_str(unescaped), unescaped->len};
    return 0;
}

int json_cursor_key(JsonCursor *c, StrBuf *unescaped, JsonText *out)
{
    return json_cursor_string(c, unescaped, out) || !json_cursor_take(c, ':') ? -1 : 0;
}

/* ---- other values ---- */

static int is_digit(const JsonCursor *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

int json_cursor_integer(JsonCursor *c, long long *out)
{
    int negative = json_cursor_take(c, '-');
    long long n = 0;
    if (!is_digit(c)) return -1;
    if (*c->at == '0')
        c->at++; /* no digit may follow */
    else
        for (; is_digit(c); c->at++)
            if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *c->at - '0', &n))
                n = LLONG_MAX;
    *out = negative ? -n : n;
    return c->at < c->end && (*c->at == '.' || *c->at == 'e' || *c->at == 'E') ? -1 : 0;
}

static int skip_string(JsonCursor *c)
{
    for (c->at++; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && c->at + 1 < c->end) c->at++;
    if (c->at == c->end) return -1;
    c->at++;
    return 0;
}

/* From the bracket that opens it to the one that closes it. */
static int skip_container(JsonCursor *c)
{
    int depth = 0;
    while (c->at < c->end) {
        char x = *c->at;
        if (x == '"') {
            if (skip_string(c)) return -1;
            continue;
        }
        c->at++;
        if (x == '{' || x == '[') depth++;
        if ((x == '}' || x == ']') && !--depth) return 0;
    }
    return -1;
}

int json_cursor_skip(JsonCursor *c)
{
    static const char ends[] = ",:[]{}\" \t\n\r";
    char x = json_cursor_peek(c);
    if (x == '"') return skip_string(c);
    if (x == '{' || x == '[') return skip_container(c);
    const char *from = c->at; /* of a number, true, false, null, or what stands in their place */
    while (c->at < c->end && !memchr(ends, *c->at, sizeof ends - 1))
        c->at++;
    return c->at > from ? 0 : -1;
}
