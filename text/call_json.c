/* call_json.c: see call_json.h. */
#include "text/call_json.h"

#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

void call_json_init(CallJson *c, int name_known)
{
    memset(c, 0, sizeof *c);
    c->has_name = name_known;
    json_scan_init(&c->outer);
    json_scan_init(&c->inner);
}

/* ---- strings as they are written ---- */

static uint32_t hex_value(const char *s)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char d = s[i];
        uint32_t digit = d <= '9' ? (uint32_t)(d - '0') : ((uint32_t)d | 0x20) - 'a' + 10;
        v = v << 4 | digit;
    }
    return v;
}

/* \uXXXX: half of a pair waits for the other one; one that stays alone is no character. */
static int unquote_hex(CallJson *c, char out[8])
{
    uint32_t code = hex_value(c->escape + 2), high = c->high_half;
    int n = 0;
    c->high_half = 0;
    if (high && code >= 0xDC00 && code < 0xE000)
        return utf8_put(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00), out);
    if (high) n = utf8_put(0xFFFD, out);
    if (code >= 0xD800 && code < 0xDC00)
        c->high_half = code;
    else
        n += utf8_put(code >= 0xDC00 && code < 0xE000 ? 0xFFFD : code, out + n);
    return n;
}

/* Takes a byte of a string (checked by the scan); writes the text it completes to out. */
static int unquote(CallJson *c, char byte, char out[8])
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    int n = 0;
    if (!c->n_escape && byte != '\\') {
        if (c->high_half) n = utf8_put(0xFFFD, out);
        c->high_half = 0;
        out[n] = byte;
        return n + 1;
    }
    c->escape[c->n_escape++] = byte;
    if (c->n_escape < 2 || (c->escape[1] == 'u' && c->n_escape < 6)) return 0;
    c->n_escape = 0;
    if (c->escape[1] == 'u') return unquote_hex(c, out);
    if (c->high_half) n = utf8_put(0xFFFD, out);
    c->high_half = 0;
    out[n] = meant[strchr(letters, byte) - letters];
    return n + 1;
}

static void word_add(CallJson *c, char byte)
{
    if (c->word_len < sizeof c->word) c->word[c->word_len] = byte;
    if (c->word_len <= sizeof c->word) c->word_len++;
}

/* The name out of its quotes. Returns -1 when it is empty or too long. */
static int take_name(CallJson *c)
{
    if (c->word_len > sizeof c->word) return -1;
    c->n_escape = 0;
    c->high_half = 0;
    c->name_len = 0;
    for (size_t i = 0; i < c->word_len; i++) {
        char text[8];
        int n = unquote(c, c->word[i], text);
        if (c->name_len + (size_t)n > sizeof c->name) return -1;
        memcpy(c->name + c->name_len, text, (size_t)n);
        c->name_len += (size_t)n;
    }
    c->has_name = c->name_len > 0;
    return c->has_name ? 0 : -1;
}

/* ---- the fields of the call ---- */

static int word_is(const CallJson *c, const char *key)
{
    return c->word_len == strlen(key) && !memcmp(c->word, key, c->word_len);
}

/* The value of a key begins with this byte. Returns -1 when it is of no use. */
static int begin_field(CallJson *c, char byte)
{
    int name = word_is(c, "name") && !c->has_name;
    int arguments = word_is(c, "arguments") && !c->has_arguments;
    c->word_len = 0;
    c->field = FIELD_OTHER;
    if (name) {
        c->field = FIELD_NAME;
        return byte == '"' ? 0 : -1;
    }
    if (!arguments || byte == 'n') return 0; /* null: as if there were none */
    c->has_arguments = c->quoted_empty = 1;
    c->n_escape = 0;
    c->high_half = 0;
    c->field = byte == '"' ? FIELD_ARGUMENTS_STRING : FIELD_ARGUMENTS;
    return byte == '"' || byte == '{' ? 0 : -1;
}

/*
 * A byte as JSON has it: models write line feeds and the like into strings as they are, where they
 * must be escaped. Returns its length.
 */
static int as_json(const JsonScan *scan, char byte, char out[8])
{
    if (scan->state == JS_STRING && (unsigned char)byte < 0x20)
        return snprintf(out, 8, "\\u%04x", (unsigned)byte);
    *out = byte;
    return 1;
}

static int push_unquoted_byte(CallJson *c, char byte, char *out, size_t *n_out)
{
    int blank = byte && strchr(" \t\r\n", byte);
    if (c->inner.state == JS_DONE && blank) return 0;
    JsonState state = json_scan_push(&c->inner, byte);
    if (state == JS_BAD) return -1;
    if (state == JS_START) return 0;
    c->quoted_empty = 0;
    out[(*n_out)++] = byte;
    return 0;
}

/* Text of arguments out of their quotes: the object alone, blanks around it are dropped. */
static int push_unquoted(CallJson *c, const char *text, int n, char *out, size_t *n_out)
{
    for (int i = 0; i < n; i++) {
        char json[8];
        int n_json = as_json(&c->inner, text[i], json);
        for (int k = 0; k < n_json; k++)
            if (push_unquoted_byte(c, json[k], out, n_out)) return -1;
    }
    return 0;
}

static int end_string_field(CallJson *c, char *out, size_t *n_out)
{
    if (c->field == FIELD_NAME) return take_name(c);
    if (c->field != FIELD_ARGUMENTS_STRING) return 0;
    if (c->quoted_empty) {
        memcpy(out + *n_out, "{}", 2);
        *n_out += 2;
        return 0;
    }
    return c->inner.state == JS_DONE && !c->high_half ? 0 : -1;
}

/* A byte of the string value or key at the call's own level. */
static int push_string(CallJson *c, char byte, JsonState now, char *out, size_t *n_out)
{
    char text[8];
    if (now == JS_NEXT) return end_string_field(c, out, n_out);
    if (now == JS_COLON) return 0;
    if (c->outer.in_key || c->field == FIELD_NAME) word_add(c, byte);
    if (c->outer.in_key || c->field != FIELD_ARGUMENTS_STRING) return 0;
    return push_unquoted(c, text, unquote(c, byte, text), out, n_out);
}

static int push_byte(CallJson *c, char byte, char *out, size_t *n_out)
{
    JsonState before = c->outer.state;
    int depth = c->outer.depth, was_string = json_scan_in_string(&c->outer);
    JsonState now = json_scan_push(&c->outer, byte);
    if (now == JS_BAD) return -1;
    if (depth == 1 && was_string) return push_string(c, byte, now, out, n_out);
    if (depth == 1 && now == JS_STRING && c->outer.in_key) c->word_len = 0;
    if (depth == 1 && before == JS_VALUE && now != JS_VALUE && begin_field(c, byte)) return -1;

    int inside = depth > 1 || c->outer.depth > 1; /* the closing brace too */
    if (c->field == FIELD_ARGUMENTS && inside) out[(*n_out)++] = byte;
    if (now != JS_DONE) return 0;
    if (!c->has_name) return -1;
    if (!c->has_arguments) {
        memcpy(out + *n_out, "{}", 2);
        *n_out += 2;
    }
    return 0;
}

JsonState call_json_push(CallJson *c, const char *text, size_t len, char out[16], size_t *n_out)
{
    *n_out = 0;
    for (size_t i = 0; i < len; i++) {
        char json[8];
        int n = as_json(&c->outer, text[i], json);
        for (int k = 0; k < n; k++)
            if (push_byte(c, json[k], out, n_out)) return JS_BAD;
    }
    return c->outer.state;
}
