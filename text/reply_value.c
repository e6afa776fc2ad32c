/* reply_value.c: see reply_value.h. */
#include "text/reply_value.h"

#include <string.h>
#include <strings.h>

#include "text/pyjson.h"
#include "text/pyliteral.h"
#include "text/reply_tools.h"

static int text_is(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && !memcmp(text, word, len);
}

/* Values of other types than string; a schema that says nothing takes a string. */
static int takes_string(unsigned types)
{
    return !types || types & TYPE_STRING;
}

/* ---- a whole value ---- */

static int put_word(const char *text, size_t len, unsigned types, StrBuf *out)
{
    if (types & TYPE_NULL && (text_is(text, len, "null") || text_is(text, len, "None"))) {
        strbuf_puts(out, "null");
        return 0;
    }
    int yes = len == 4 && !strncasecmp(text, "true", 4);
    int no = len == 5 && !strncasecmp(text, "false", 5);
    if (!(types & TYPE_BOOLEAN) || (!yes && !no)) return -1;
    strbuf_puts(out, yes ? "true" : "false");
    return 0;
}

/* Digits as they are, however many; 2.0 is an integer too. */
static int put_number(const char *text, size_t len, unsigned types, StrBuf *out)
{
    if (!(types & (TYPE_NUMBER | TYPE_INTEGER))) return -1;
    if (!len || json_number_len(text, len) != len) return -1;
    if (!(types & TYPE_NUMBER)) {
        size_t digits = *text == '-';
        while (digits < len && text[digits] >= '0' && text[digits] <= '9')
            digits++;
        for (size_t i = digits; i < len; i++)
            if (text[i] != (i == digits ? '.' : '0')) return -1;
        len = digits;
    }
    strbuf_add(out, text, len);
    return 0;
}

static int put_container(const char *text, size_t len, unsigned types, StrBuf *out)
{
    int wanted = len && (*text == '{' ? types & TYPE_OBJECT : types & TYPE_ARRAY);
    return wanted ? pyliteral_to_json(text, len, takes_string(types), out) : -1;
}

static void trim(const char **text, size_t *len)
{
    static const char blanks[] = " \t\r\n";
    while (*len && memchr(blanks, **text, 4))
        ++*text, --*len;
    while (*len && memchr(blanks, (*text)[*len - 1], 4))
        --*len;
}

static int put_as_other(const char *text, size_t len, unsigned types, StrBuf *out)
{
    if (!types) return -1;
    if (types & TYPE_STRING) {
        if (types & TYPE_NULL && text_is(text, len, "null")) {
            strbuf_puts(out, "null");
            return 0;
        }
        return put_container(text, len, types, out);
    }
    trim(&text, &len);
    if (!put_word(text, len, types, out) || !put_number(text, len, types, out)) return 0;
    return put_container(text, len, types, out);
}

void reply_value_json(const char *text, size_t len, unsigned types, StrBuf *out)
{
    if (len <= MAX_WAITING_VALUE && !put_as_other(text, len, types, out)) return;
    strbuf_puts(out, "\"");
    pyjson_escape(text, len, out);
    strbuf_puts(out, "\"");
}

/* ---- while it arrives ---- */

void reply_value_begin(ReplyValue *v, unsigned types)
{
    v->types = types;
    v->streams = 0;
    strbuf_clear(&v->waiting);
}

/* It may still become something else than a string. */
static int must_wait(const ReplyValue *v)
{
    size_t len = v->waiting.len;
    const char *text = strbuf_str(&v->waiting);
    if (len > MAX_WAITING_VALUE) return 0;
    if (!takes_string(v->types) || !len) return 1;
    if (v->types & TYPE_NULL && len <= 4 && !memcmp(text, "null", len)) return 1;
    return (v->types & TYPE_OBJECT && *text == '{') || (v->types & TYPE_ARRAY && *text == '[');
}

void reply_value_text(ReplyValue *v, const char *text, size_t len, StrBuf *out)
{
    if (v->streams) {
        pyjson_escape(text, len, out);
        return;
    }
    strbuf_add(&v->waiting, text, len);
    if (must_wait(v)) return;
    v->streams = 1;
    strbuf_puts(out, "\"");
    pyjson_escape(strbuf_str(&v->waiting), v->waiting.len, out);
}

void reply_value_end(ReplyValue *v, StrBuf *out)
{
    if (v->streams)
        strbuf_puts(out, "\"");
    else
        reply_value_json(strbuf_str(&v->waiting), v->waiting.len, v->types, out);
}

void reply_value_free(ReplyValue *v)
{
    strbuf_free(&v->waiting);
}
