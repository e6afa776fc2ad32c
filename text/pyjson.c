/* pyjson.c: see pyjson.h. */
#include "text/pyjson.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/json.h"
#include "text/utf8.h"

/* json.dumps escapes the quote, the backslash and control characters; DEL and the rest go as is. */
void pyjson_escape(const char *text, size_t len, StrBuf *out)
{
    static const char letters[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                   ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    size_t done = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        char letter = 0;
        if (c < sizeof letters) letter = letters[c];
        if (c >= 0x20 && !letter) continue;
        strbuf_add(out, text + done, i - done);
        done = i + 1;
        if (letter)
            strbuf_printf(out, "\\%c", letter);
        else
            strbuf_printf(out, "\\u%04x", c);
    }
    strbuf_add(out, text + done, len - done);
}

static void dump_string(const char *s, size_t len, StrBuf *out)
{
    strbuf_puts(out, "\"");
    pyjson_escape(s, len, out);
    strbuf_puts(out, "\"");
}

static int reads_as(const char *text, double d)
{
    double back = strtod(text, NULL);
    return !(back < d) && !(back > d);
}

/*
 * Writes the fewest digits that read back as d, in the form d.ddde+XX. Next to a power of two the
 * doubles above are twice as far apart as those below, so the decimal one further from zero may do
 * where the nearest does not.
 */
static void shortest_digits(double d, char text[40])
{
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, 40, "%.*e", precision, d);
        if (reads_as(text, d)) return;
        char *last = text + strcspn(text, "e") - 1;
        if (*last == '9') continue; /* the carry gives fewer digits: tried already */
        ++*last;
        if (reads_as(text, d)) return;
    }
}

/*
 * float.__repr__: the fewest digits that read back as the same number; an exponent of at least two
 * digits below 1e-4 and from 1e16; otherwise a point and at least one digit after it.
 */
static void dump_real(double d, StrBuf *out)
{
    char text[40], digits[24];
    int n_digits = 0;
    assert(isfinite(d)); /* jansson holds nothing else */
    shortest_digits(d, text);
    const char *p = text, *e = text + strcspn(text, "e");
    int exponent = atoi(e + 1);
    if (*p == '-') strbuf_add(out, p++, 1);
    for (; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n_digits++] = *p;

    if (exponent < -4 || exponent >= 16) {
        strbuf_add(out, digits, 1);
        if (n_digits > 1) strbuf_printf(out, ".%.*s", n_digits - 1, digits + 1);
        strbuf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        strbuf_printf(out, "0.%.*s%.*s", -exponent - 1, "000", n_digits, digits);
    } else {
        for (int i = 0; i <= exponent || i <= n_digits - 1 || i <= exponent + 1; i++) {
            if (i == exponent + 1) strbuf_puts(out, ".");
            strbuf_add(out, i < n_digits ? &digits[i] : "0", 1);
        }
    }
}

/*
 * str.isprintable, for one character: not control, format, unassigned and private ones, nor white
 * space but the space itself (categories Other and Separator).
 */
static int is_printable(int c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return c == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

/* A string as repr writes it: in single quotes, or in double ones if only that saves escapes. */
static void repr_string(const char *s, size_t len, StrBuf *out)
{
    char quote = memchr(s, '\'', len) && !memchr(s, '"', len) ? '"' : '\'';
    strbuf_add(out, &quote, 1);
    for (size_t i = 0; i < len;) {
        static const char letters[] = {['\t'] = 't', ['\n'] = 'n', ['\r'] = 'r'};
        int n, c = utf8_decode(s + i, &n);
        if (c == quote || c == '\\')
            strbuf_printf(out, "\\%c", c);
        else if (c < (int)sizeof letters && letters[c])
            strbuf_printf(out, "\\%c", letters[c]);
        else if (is_printable(c))
            strbuf_add(out, s + i, (size_t)n);
        else
            strbuf_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        i += (size_t)n;
    }
    strbuf_add(out, &quote, 1);
}

/* How a language writes what JSON has. */
typedef struct {
    void (*string)(const char *s, size_t len, StrBuf *out);
    const char *yes, *no, *none;
} Style;

static const Style json = {dump_string, "true", "false", "null"},
                   python = {repr_string, "True", "False", "None"};

static void write_value(const json_t *value, const Style *style, StrBuf *out);

static void write_object(const json_t *value, const Style *style, StrBuf *out)
{
    const char *key, *separator = "";
    json_t *item;
    strbuf_puts(out, "{");
    json_object_foreach((json_t *)value, key, item)
    {
        strbuf_puts(out, separator);
        separator = ", ";
        style->string(key, strlen(key), out);
        strbuf_puts(out, ": ");
        write_value(item, style, out);
    }
    strbuf_puts(out, "}");
}

static void write_array(const json_t *value, const Style *style, StrBuf *out)
{
    size_t i;
    json_t *item;
    strbuf_puts(out, "[");
    json_array_foreach(value, i, item)
    {
        if (i) strbuf_puts(out, ", ");
        write_value(item, style, out);
    }
    strbuf_puts(out, "]");
}

/* Recurses as deep as the value nests; jansson's parser stops at 2,048. */
static void write_value(const json_t *value, const Style *style, StrBuf *out)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(value, style, out);
        break;
    case JSON_ARRAY:
        write_array(value, style, out);
        break;
    case JSON_STRING:
        if (json_digits(value))
            strbuf_puts(out, json_digits(value));
        else
            style->string(json_string_value(value), json_string_length(value), out);
        break;
    case JSON_INTEGER:
        strbuf_printf(out, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        dump_real(json_real_value(value), out);
        break;
    case JSON_TRUE:
        strbuf_puts(out, style->yes);
        break;
    case JSON_FALSE:
        strbuf_puts(out, style->no);
        break;
    case JSON_NULL:
        strbuf_puts(out, style->none);
        break;
    }
}

void pyjson_dump(const json_t *value, StrBuf *out)
{
    write_value(value, &json, out);
}

void pyjson_str(const json_t *value, StrBuf *out)
{
    if (json_is_string(value) && !json_digits(value))
        strbuf_add(out, json_string_value(value), json_string_length(value));
    else
        write_value(value, &python, out);
}
