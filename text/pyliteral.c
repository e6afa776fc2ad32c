/* pyliteral.c: see pyliteral.h. */
#include "text/pyliteral.h"

#include <stdint.h>
#include <string.h>

#include "text/pyjson.h"
#include "text/utf8.h"

typedef struct {
    const char *at, *end;
    int json_only, depth;
    StrBuf *out;
    StrBuf text; /* scratch: a string without its quotes */
} Reader;

static int read_value(Reader *r);

static int peek(const Reader *r)
{
    return r->at < r->end ? (unsigned char)*r->at : -1;
}

static void skip_blanks(Reader *r)
{
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at)
        r->at++;
}

/* Skips blanks; moves past c if it is next. */
static int take(Reader *r, char c)
{
    skip_blanks(r);
    if (peek(r) != (unsigned char)c) return 0;
    r->at++;
    return 1;
}

/* ---- numbers and words ---- */

static size_t count_digits(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] >= '0' && text[n] <= '9')
        n++;
    return n;
}

size_t json_number_len(const char *text, size_t len)
{
    size_t at = len && *text == '-', n = count_digits(text + at, len - at);
    if (!n) return 0;
    at += text[at] == '0' ? 1 : n;
    if (at < len && text[at] == '.') {
        n = count_digits(text + at + 1, len - at - 1);
        if (n) at += 1 + n;
    }
    if (at < len && (text[at] == 'e' || text[at] == 'E')) {
        size_t sign = at + 1 < len && (text[at + 1] == '+' || text[at + 1] == '-');
        n = count_digits(text + at + 1 + sign, len - at - 1 - sign);
        if (n) at += 1 + sign + n;
    }
    return at;
}

static int is_name_byte(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c >= 0x80;
}

static int read_number(Reader *r)
{
    size_t n = json_number_len(r->at, (size_t)(r->end - r->at));
    if (!n || (r->at + n < r->end && is_name_byte((unsigned char)r->at[n]))) return -1;
    strbuf_add(r->out, r->at, n);
    r->at += n;
    return 0;
}

static int read_word(Reader *r)
{
    static const struct {
        const char *word, *json;
    } rows[] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                {"True", "true"}, {"False", "false"}, {"None", "null"}};
    size_t n = 0, n_rows = r->json_only ? 3 : 6;
    while (r->at + n < r->end && is_name_byte((unsigned char)r->at[n]))
        n++;
    for (size_t i = 0; i < n_rows; i++) {
        if (n != strlen(rows[i].word) || memcmp(r->at, rows[i].word, n) != 0) continue;
        r->at += n;
        strbuf_puts(r->out, rows[i].json);
        return 0;
    }
    return -1;
}

/* ---- strings ---- */

/* n digits of the base; -1 when there are fewer. */
static int32_t read_code(Reader *r, int n, uint32_t base)
{
    uint32_t code = 0;
    for (int i = 0; i < n; i++, r->at++) {
        int c = peek(r), lower = c | 0x20;
        uint32_t digit = 16;
        if (c >= '0' && c <= '9') digit = (uint32_t)(c - '0');
        if (lower >= 'a' && lower <= 'f' && c > 0) digit = (uint32_t)(lower - 'a') + 10;
        if (digit >= base) return -1;
        code = code * base + digit;
        if (code > 0x10FFFF) return -1;
    }
    return (int32_t)code;
}

static int is_surrogate(int32_t code, int32_t half)
{
    return code >= half && code < half + 0x400;
}

/* A code point after its letter; two surrogates are one, a lone one is none. */
static int read_escaped_code(Reader *r, int n_digits)
{
    char text[4];
    int32_t code = read_code(r, n_digits, 16), low;
    if (code < 0) return -1;
    if (is_surrogate(code, 0xD800) && r->end - r->at >= 6 && !memcmp(r->at, "\\u", 2)) {
        const char *before = r->at;
        r->at += 2;
        low = read_code(r, 4, 16);
        if (low >= 0 && is_surrogate(low, 0xDC00))
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        else
            r->at = before;
    }
    if (is_surrogate(code, 0xD800) || is_surrogate(code, 0xDC00)) code = 0xFFFD;
    strbuf_add(&r->text, text, (size_t)utf8_put((uint32_t)code, text));
    return 0;
}

/* Up to three octal digits, of which there is one. */
static void read_octal(Reader *r)
{
    char text[4];
    uint32_t code = 0;
    for (int i = 0; i < 3 && peek(r) >= '0' && peek(r) <= '7'; i++)
        code = code * 8 + (uint32_t)(*r->at++ - '0');
    strbuf_add(&r->text, text, (size_t)utf8_put(code, text));
}

/*
 * What follows a backslash. Python keeps the backslash of an escape that it does not know, and \/
 * is JSON's, whose quotes are double ones.
 */
static int read_escape(Reader *r, char quote)
{
    static const char letters[] = "\"\\/bfnrt'av", meant[] = "\"\\/\b\f\n\r\t'\a\v";
    int c = peek(r);
    const char *known = c > 0 ? strchr(letters, c) : NULL;
    if (c < 0) return -1;
    if (r->json_only && known && known - letters > 7) return -1;
    if (c == '/' && quote == '\'') known = NULL;
    r->at++;
    if (known) {
        strbuf_add(&r->text, &meant[known - letters], 1);
        return 0;
    }
    if (c == 'u') return read_escaped_code(r, 4);
    if (r->json_only) return -1;
    if (c == 'x') return read_escaped_code(r, 2);
    if (c == 'U') return read_escaped_code(r, 8);
    if (c == '\n') return 0;
    r->at--;
    if (c >= '0' && c <= '7')
        read_octal(r);
    else
        strbuf_puts(&r->text, "\\");
    return 0;
}

static int read_string(Reader *r)
{
    char quote = *r->at++;
    strbuf_clear(&r->text);
    for (;;) {
        int c = peek(r);
        if (c < 0 || (c < 0x20 && r->json_only)) return -1;
        r->at++;
        if (c == quote) break;
        if (c != '\\')
            strbuf_add(&r->text, r->at - 1, 1);
        else if (read_escape(r, quote))
            return -1;
    }
    strbuf_puts(r->out, "\"");
    pyjson_escape(strbuf_str(&r->text), r->text.len, r->out);
    strbuf_puts(r->out, "\"");
    return 0;
}

static int is_quote(const Reader *r)
{
    return peek(r) == '"' || (peek(r) == '\'' && !r->json_only);
}

/* ---- objects, lists, tuples ---- */

/* A key; numbers and words become strings, as json.dumps makes of them. */
static int read_key(Reader *r)
{
    skip_blanks(r);
    if (is_quote(r)) return read_string(r);
    if (r->json_only) return -1;
    strbuf_puts(r->out, "\"");
    if (read_number(r) && read_word(r)) return -1;
    strbuf_puts(r->out, "\"");
    return 0;
}

static int read_item(Reader *r, int is_object)
{
    if (!is_object) return read_value(r);
    if (read_key(r) || !take(r, ':')) return -1;
    strbuf_puts(r->out, ": ");
    return read_value(r);
}

static int read_items(Reader *r, char close)
{
    int n = 0, comma = 1;
    while (!take(r, close)) {
        if (!comma) return -1;
        if (n++) strbuf_puts(r->out, ", ");
        if (read_item(r, close == '}')) return -1;
        comma = take(r, ',');
    }
    if (close == ')' && n == 1 && !comma) return -1; /* (1) is a number in brackets */
    return comma && n && r->json_only ? -1 : 0;
}

static int read_container(Reader *r, char open)
{
    char close = ')';
    if (open != '(') close = open == '{' ? '}' : ']';
    if (r->depth == MAX_LITERAL_DEPTH) return -1;
    r->depth++;
    r->at++;
    strbuf_puts(r->out, open == '{' ? "{" : "[");
    if (read_items(r, close)) return -1;
    strbuf_puts(r->out, open == '{' ? "}" : "]");
    r->depth--;
    return 0;
}

/* Recurses MAX_LITERAL_DEPTH deep at most. */
static int read_value(Reader *r)
{
    skip_blanks(r);
    int c = peek(r);
    if (c == '{' || c == '[' || (c == '(' && !r->json_only)) return read_container(r, (char)c);
    if (is_quote(r)) return read_string(r);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    return read_word(r);
}

int pyliteral_to_json(const char *text, size_t len, int json_only, StrBuf *out)
{
    Reader r = {text, text + len, json_only, 0, out, {0}};
    size_t before = out->len;
    skip_blanks(&r);
    int c = peek(&r), bad = (c != '{' && c != '[' && c != '(') || read_value(&r);
    skip_blanks(&r);
    bad = bad || r.at < r.end;
    strbuf_free(&r.text);
    if (!bad) return 0;
    out->len = before;
    if (out->data) out->data[before] = 0;
    return -1;
}
