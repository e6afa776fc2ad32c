/*
 * schema_value.c: values that are no lists and no objects, and values that are fixed.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_parts.h"

enum { MAX_LENGTH_BOUND = 4096 };

/* ---- what is not followed ---- */

void schema_not_followed(SchemaCompiler *c, const char *keyword, ErrorCode code, const char *fmt,
                         ...)
{
    char what[256];
    va_list args;
    if (!c->strict) return;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    size_t before = schema_enter(c, keyword, NULL);
    schema_fail(c, code, "%s", what);
    schema_leave(c, before);
}

/* ---- strings ---- */

int schema_bound(SchemaCompiler *c, const json_t *schema, const char *key, int max, int dflt)
{
    const json_t *v = json_object_get(schema, key);
    double x = json_is_number(v) ? json_number_value(v) : -1;
    if (x >= 0 && x <= max && x <= (int)x) return (int)x;
    if (v) schema_not_followed(c, key, ERR_INPUT, "it must be a whole number of 0 to %d", max);
    return dflt;
}

/* Control characters without an escape of one letter may not come in a string with a pattern. */
static void forbid_controls(Dfa *d)
{
    uint8_t may_come[256] = {0};
    for (int byte = 0; byte < 256; byte++)
        may_come[d->class_of[byte]] |= byte >= 0x20 || (byte && strchr("\b\f\n\r\t", byte));
    for (size_t i = 0; i < (size_t)d->n_states * (size_t)d->n_classes; i++)
        if (!may_come[i % (size_t)d->n_classes]) d->next[i] = DFA_DEAD;
}

int schema_shortest(const SchemaCompiler *c, int automaton)
{
    return c->b->g->automaton[automaton].left[0];
}

/*
 * Leaves of the texts those of the format (NULL: none). Where none has it the pattern alone stands:
 * libraries call a time of day without a zone a time, too.
 */
static void keep_format(SchemaCompiler *c, Dfa *dfa, const char *format)
{
    Error err = {0};
    const char *pattern = format ? format_pattern(format) : NULL;
    const Dfa *known = pattern ? schema_kept_pattern(c, pattern) : NULL;
    if (known && dfa_both(dfa, known, &err) && err.code != ERR_INPUT)
        schema_not_followed(c, "format", err.code, "%s", err.msg);
}

static int pattern_automaton(SchemaCompiler *c, const char *pattern, size_t len, const char *format,
                             int least)
{
    Dfa dfa;
    Error err = {0};
    if (pattern_compile(&dfa, pattern, len, &err)) {
        schema_not_followed(c, "pattern", err.code, "%s", err.msg);
        return -1;
    }
    keep_format(c, &dfa, format);
    if (c->texts.as && schema_text_leave_out(c, &dfa, &err)) {
        schema_not_followed(c, "pattern", err.code, "%s", err.msg);
        dfa_free(&dfa);
        return -1;
    }
    if (!c->texts.as) forbid_controls(&dfa);
    if (least && dfa_at_least(&dfa, least, &err)) {
        if (err.code == ERR_INPUT)
            schema_empty(c, "no text of minLength characters matches its pattern");
        else
            schema_not_followed(c, "minLength", err.code, "%s", err.msg);
        err = (Error){0};
    }
    int index = grammar_automaton(c->b, &dfa, &err);
    if (index < 0) schema_fail(c, err.code, "%s", err.msg);
    return index;
}

int schema_pattern(SchemaCompiler *c, const char *pattern, size_t len, int least)
{
    return pattern_automaton(c, pattern, len, NULL, least);
}

static int format_automaton(SchemaCompiler *c, const char *format, int least)
{
    const char *pattern = format ? format_pattern(format) : NULL;
    int index = -1;
    if (!pattern) return -1;
    if (c->texts.as) return schema_pattern(c, pattern, strlen(pattern), least);
    for (int i = 0; i < c->n_formats; i++)
        if (c->format[i].pattern == pattern) index = c->format[i].automaton;
    if (index < 0) {
        index = schema_pattern(c, pattern, strlen(pattern), 0);
        if (index < 0) return -1;
        assert(c->n_formats < N_FORMATS);
        c->format[c->n_formats].pattern = pattern;
        c->format[c->n_formats++].automaton = index;
    }
    if (schema_shortest(c, index) >= least) return index;
    return schema_pattern(c, pattern, strlen(pattern), least);
}

int schema_characters(SchemaCompiler *c, const json_t *schema, int *lo, int *hi)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    const char *format = json_string_value(json_object_get(schema, "format"));
    int automaton = -1, longest = format ? format_longest(format) : -1;
    *lo = schema_bound(c, schema, "minLength", MAX_LENGTH_BOUND, 0);
    *hi = schema_bound(c, schema, "maxLength", MAX_LENGTH_BOUND, longest);
    if (longest >= 0 && *hi > longest) *hi = longest;
    if (*hi >= 0 && *lo > *hi) schema_empty(c, "minLength is over maxLength");
    if (c->failed) return -1;
    if (json_is_string(pattern))
        automaton = pattern_automaton(c, json_string_value(pattern), json_string_length(pattern),
                                      format, *lo);
    if (automaton < 0 && !c->failed) automaton = format_automaton(c, format, *lo);
    if (automaton >= 0) *lo = 0; /* its own automaton knows */
    if (automaton >= 0 && schema_shortest(c, automaton) > (*hi < 0 ? UINT16_MAX - 1 : *hi))
        schema_empty(c, "no text within maxLength matches its pattern");
    return automaton;
}

uint32_t schema_string(SchemaCompiler *c, const json_t *schema)
{
    int lo, hi, automaton = schema_characters(c, schema, &lo, &hi);
    int is_plain = automaton < 0 && !lo && hi < 0;
    if (is_plain && c->text) return c->text;
    uint32_t part = grammar_range(c->b, '"', '"', grammar_string(c->b, automaton, lo, hi, 0));
    if (is_plain) c->text = part;
    return part;
}

/* ---- fixed values ---- */

uint32_t schema_word(SchemaCompiler *c, const char *word)
{
    return grammar_literal(c->b, word, strlen(word), 0);
}

void schema_escape(const char *text, size_t len, StrBuf *out)
{
    static const char from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\";
    for (size_t i = 0; i < len; i++) {
        const char *at = text[i] ? strchr(from, text[i]) : NULL;
        if (at)
            strbuf_printf(out, "\\%c", to[at - from]);
        else if ((unsigned char)text[i] < 0x20)
            strbuf_printf(out, "\\u%04x", (unsigned)text[i]);
        else
            strbuf_add(out, text + i, 1);
    }
}

static void write_scalar(const json_t *value, StrBuf *out)
{
    if (json_is_string(value)) {
        strbuf_puts(out, "\"");
        schema_escape(json_string_value(value), json_string_length(value), out);
        strbuf_puts(out, "\"");
        return;
    }
    char *text = schema_number_text(value);
    strbuf_puts(out, text);
    free(text);
}

static uint32_t const_list(SchemaCompiler *c, const json_t *value)
{
    size_t n = json_array_size(value);
    uint32_t next = schema_blank(c, grammar_range(c->b, ']', ']', 0));
    for (size_t i = n; i-- > 0;) {
        uint32_t one = schema_const(c, json_array_get(value, i));
        next = schema_blank(c, grammar_call(c->b, one, next));
        if (i) next = grammar_range(c->b, ',', ',', next);
    }
    return grammar_range(c->b, '[', '[', next);
}

static uint32_t const_member(SchemaCompiler *c, const char *name, const json_t *value,
                             uint32_t next)
{
    StrBuf text = {0};
    strbuf_puts(&text, "\"");
    schema_escape(name, strlen(name), &text);
    strbuf_puts(&text, "\":");
    next = schema_blank(c, grammar_call(c->b, schema_const(c, value), next));
    next = grammar_literal(c->b, text.data, text.len, next);
    strbuf_free(&text);
    return next;
}

static uint32_t const_object(SchemaCompiler *c, const json_t *value)
{
    size_t n = json_object_size(value), i = 0;
    const char **name = mem_alloc(n + 1, sizeof *name);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member)
    {
        name[i++] = key;
    }
    uint32_t next = schema_blank(c, grammar_range(c->b, '}', '}', 0));
    while (i-- > 0) {
        next = schema_blank(c, const_member(c, name[i], json_object_get(value, name[i]), next));
        if (i) next = grammar_range(c->b, ',', ',', next);
    }
    mem_free(name);
    return grammar_range(c->b, '{', '{', next);
}

uint32_t schema_const(SchemaCompiler *c, const json_t *value)
{
    StrBuf text = {0};
    uint32_t part = 0;
    if (++c->depth > MAX_SCHEMA_DEPTH)
        schema_fail(c, ERR_LIMIT, "the schema is nested deeper than %d", MAX_SCHEMA_DEPTH);
    else if (json_is_array(value))
        part = const_list(c, value);
    else if (json_is_object(value))
        part = const_object(c, value);
    else {
        write_scalar(value, &text);
        part = grammar_literal(c->b, text.data, text.len, 0);
        strbuf_free(&text);
    }
    c->depth--;
    return part;
}

static int is_scalar(const json_t *v)
{
    return !json_is_array(v) && !json_is_object(v);
}

/* Scalars are a tree of their texts, others ways of their own. */
uint32_t schema_enum(SchemaCompiler *c, const json_t *values)
{
    size_t n = json_array_size(values), i;
    StrBuf *text = mem_alloc(n, sizeof *text);
    GrammarWord *word = mem_alloc(n, sizeof *word);
    uint32_t *way = mem_alloc(n + 1, sizeof *way);
    int n_words = 0, n_ways = 0;
    json_t *value;
    json_array_foreach((json_t *)values, i, value)
    {
        if (!is_scalar(value)) {
            way[n_ways++] = schema_const(c, value);
            continue;
        }
        write_scalar(value, &text[i]);
        word[n_words++] = (GrammarWord){.text = text[i].data, .len = text[i].len};
    }
    if (n_words) way[n_ways++] = grammar_words(c->b, word, n_words);
    uint32_t part = schema_ways(c, way, n_ways);
    for (i = 0; i < n; i++)
        strbuf_free(&text[i]);
    mem_free(text);
    mem_free(word);
    mem_free(way);
    return part;
}
