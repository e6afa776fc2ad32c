/*
 * schema_text.c: values that stand as texts and are read back by types, as those of calls in the
 * XML form are (reply_value.h).
 *
 * A text that may be a string is one, unless it is a null, a list or an object that may come, too.
 * What is taken here is read back as a value of the schema, always; values that no text is read
 * back as are left out.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/reply_tools.h"
#include "text/reply_value.h"
#include "text/schema_parts.h"

static int takes_strings(const SchemaCompiler *c)
{
    unsigned types = c->texts.as->types;
    return !types || types & TYPE_STRING;
}

static uint32_t found(SchemaCompiler *c, uint32_t part)
{
    c->texts.n_found++;
    return part;
}

uint32_t schema_text_any(SchemaCompiler *c)
{
    c->texts.is_any = c->texts.has_null = 1;
    return schema_no_way(c);
}

/* ---- fixed values ---- */

static int is_read_as(const SchemaCompiler *c, const StrBuf *text, const json_t *value)
{
    ReplyValue v = {0};
    StrBuf out = {0};
    reply_value_begin(&v, c->texts.as->types);
    reply_value_text(&v, strbuf_str(text), text->len, &out);
    reply_value_end(&v, &out);
    json_t *back = json_loadb(strbuf_str(&out), out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    int is_same = back && schema_same_value(back, value);
    json_decref(back);
    strbuf_free(&out);
    reply_value_free(&v);
    return is_same;
}

/* 1 if the text can stand where values do, and is this value. */
static int is_fit(const SchemaCompiler *c, const StrBuf *text, const json_t *value)
{
    StrBuf line = {0};
    int is_whole = strlen(strbuf_str(text)) == text->len;
    strbuf_printf(&line, "\n%s", strbuf_str(text));
    for (int i = 0; i < c->texts.as->n_never; i++)
        is_whole &= !strstr(line.data, c->texts.as->never[i]);
    strbuf_free(&line);
    return is_whole && is_read_as(c, text, value);
}

/* As Python prints it; NULL: as JSON does. */
static const char *python_word(const json_t *value)
{
    if (json_is_null(value)) return "None";
    if (json_is_boolean(value)) return json_is_true(value) ? "True" : "False";
    return NULL;
}

static void write_value(const json_t *value, StrBuf *out)
{
    if (json_is_string(value)) {
        strbuf_add(out, json_string_value(value), json_string_length(value));
        return;
    }
    char *text = json_is_number(value) ? schema_number_text(value)
                                       : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    strbuf_puts(out, text);
    free(text);
}

uint32_t schema_text_values(SchemaCompiler *c, const json_t *values)
{
    size_t n = json_array_size(values), i;
    StrBuf *text = mem_alloc(2 * n + 1, sizeof *text); /* each value in up to two ways */
    GrammarWord *word = mem_alloc(2 * n + 1, sizeof *word);
    uint32_t *way = mem_alloc(n + 2, sizeof *way);
    int n_words = 0, n_ways = 0;
    json_t *value;
    json_array_foreach((json_t *)values, i, value)
    {
        StrBuf *both = &text[2 * i];
        const char *python = python_word(value);
        c->texts.has_null |= json_is_null(value);
        write_value(value, &both[0]);
        if (python) strbuf_puts(&both[1], python);
        for (int k = 0; k < (python ? 2 : 1); k++) {
            if (!is_fit(c, &both[k], value)) continue;
            if (json_is_array(value) || json_is_object(value))
                way[n_ways++] = schema_const(c, value);
            else
                word[n_words++] = (GrammarWord){.text = strbuf_str(&both[k]), .len = both[k].len};
        }
    }
    if (n_words) way[n_ways++] = grammar_words(c->b, word, n_words);
    uint32_t part = n_ways ? schema_ways(c, way, n_ways) : schema_no_way(c);
    /* A node of its own, for that of the empty text alone is 0, which is no part. */
    if (n_ways) part = found(c, grammar_any_of(c->b, &part, 1));
    for (i = 0; i < 2 * n; i++)
        strbuf_free(&text[i]);
    mem_free(text);
    mem_free(word);
    mem_free(way);
    return part;
}

uint32_t schema_text_null(SchemaCompiler *c)
{
    json_t *list = json_pack("[n]");
    uint32_t part = schema_text_values(c, list);
    json_decref(list);
    return part;
}

/* ---- strings ---- */

int schema_text_leave_out(const SchemaCompiler *c, Dfa *d, Error *err)
{
    enum { MOST = 4 };
    const SchemaText *as = c->texts.as;
    const char *literal[MOST];
    DfaNever never = {"\xff\n", literal, 0};
    for (int i = 0; i < as->n_never && i < MOST - 2; i++)
        literal[never.n++] = as->never[i];
    /* what begins so may be read as another value */
    if (as->types & TYPE_OBJECT) literal[never.n++] = "\xff\n{";
    if (as->types & TYPE_ARRAY) literal[never.n++] = "\xff\n[";
    return dfa_without(d, &never, err);
}

/* The automaton of any text that is a string. */
static int any_text(SchemaCompiler *c)
{
    unsigned types = c->texts.as->types;
    int *known = &c->texts.any[!!(types & TYPE_OBJECT)][!!(types & TYPE_ARRAY)];
    if (!*known) *known = schema_pattern(c, "", 0, 0) + 1;
    return *known - 1;
}

static uint32_t text_string(SchemaCompiler *c, const json_t *schema)
{
    int lo, hi, automaton, is_open;
    if (!takes_strings(c)) return schema_no_way(c);
    automaton = schema_characters(c, schema, &lo, &hi);
    if (c->failed) return 0;
    c->texts.has_string = 1;
    is_open = automaton < 0;
    if (is_open && !lo && hi < 0 && !(c->texts.as->types & (TYPE_OBJECT | TYPE_ARRAY))) {
        c->texts.is_any = 1;
        return schema_no_way(c);
    }
    if (is_open) automaton = any_text(c);
    if (automaton < 0) return 0;
    return found(c, grammar_text(c->b, automaton, lo, hi, is_open, 0));
}

/* ---- of a type ---- */

/* 1 if a text can be read back as a value of this type, which is none of the above. */
static int is_readable(const SchemaCompiler *c, const char *type)
{
    unsigned types = c->texts.as->types;
    if (!strcmp(type, "object")) return (types & TYPE_OBJECT) != 0;
    if (!strcmp(type, "array")) return (types & TYPE_ARRAY) != 0;
    if (!strcmp(type, "number")) return !takes_strings(c) && types & TYPE_NUMBER;
    if (!strcmp(type, "integer")) return !takes_strings(c) && types & (TYPE_NUMBER | TYPE_INTEGER);
    return 1;
}

uint32_t schema_text_type(SchemaCompiler *c, const json_t *schema, const char *type)
{
    const SchemaText *as = c->texts.as;
    if (!strcmp(type, "string")) return text_string(c, schema);
    if (!strcmp(type, "null")) return schema_text_null(c);
    if (!strcmp(type, "boolean")) {
        json_t *list = json_pack("[b,b]", 1, 0);
        uint32_t part = schema_text_values(c, list);
        json_decref(list);
        return part;
    }
    if (!is_readable(c, type)) return schema_no_way(c);
    c->texts.as = NULL; /* what is inside stands as JSON */
    uint32_t part = schema_type(c, schema, type);
    c->texts.as = as;
    return c->failed ? 0 : found(c, part);
}

/* ---- of a schema ---- */

uint32_t schema_text(SchemaCompiler *c, const json_t *root, const json_t *schema, int strict,
                     const SchemaText *as, const char *where, Error *err)
{
    int n_nodes = c->n_nodes;
    c->texts.as = as;
    c->texts.form++;
    c->texts.n_found = c->texts.is_any = c->texts.has_null = c->texts.has_string = 0;
    uint32_t part = schema_value(c, root, schema, strict, where, err);
    int is_null_lost = as->types & TYPE_NULL && c->texts.has_string && !c->texts.has_null;
    if (part && !c->texts.n_found && !c->texts.is_any)
        part = schema_fail(c, ERR_INPUT, "no text is read as a value of it");
    if (part && is_null_lost)
        part = schema_fail(c, ERR_INPUT, "the text null is not read as a string");
    c->texts.as = NULL;
    if (!part) c->n_nodes = n_nodes;
    return part && c->texts.is_any ? SCHEMA_ANY_TEXT : part;
}
