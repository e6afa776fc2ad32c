/*
 * call_grammar.c: see call_grammar.h.
 */
#include "text/call_grammar.h"

#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "text/schema_parts.h"

typedef struct {
    SchemaCompiler *c;
    GrammarBuilder *b;
    const CallGrammar *o;
    Error *err;
    int failed;
} Calls;

static uint32_t literal(const Calls *s, const char *text, uint32_t next)
{
    return grammar_literal(s->b, text, strlen(text), next);
}

/* An added token by its text; where the tokenizer has none, the text. */
static uint32_t marker(const Calls *s, const char *text, uint32_t next)
{
    int32_t id = tokenizer_added_id(s->o->tok, text);
    if (id < 0) return literal(s, text, next);
    return grammar_node(s->b, (GrammarNode){.kind = NODE_TOKEN, .lo = id, .next = next});
}

/* ---- the XML form ---- */

static const char value_end[] = "\n</parameter>\n";

/*
 * A value as it stands: it ends where who reads the call sees its end, with a newline before it or
 * without, and no line of it begins another parameter.
 */
static uint32_t free_text(const Calls *s, uint32_t next)
{
    return grammar_until(s->b, "</parameter>", "\n<parameter=", literal(s, "\n", next));
}

/* 1 for a schema whose values are texts as they stand in the XML form. */
static int is_text(const json_t *schema, const char **type)
{
    const json_t *t = json_object_get(schema, "type");
    *type = json_string_value(t);
    if (json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf") ||
        json_object_get(schema, "allOf"))
        return 1; /* which of them it is, the text alone says */
    return !*type || !strcmp(*type, "string") || json_is_true(json_object_get(schema, "nullable"));
}

/* One of the strings of an enum; 0 where it has others. */
static uint32_t fixed_text(const Calls *s, const json_t *values, uint32_t next)
{
    size_t n = json_array_size(values), i;
    GrammarWord *word = mem_alloc(n + 1, sizeof *word);
    json_t *value;
    int n_words = 0, all = n > 0 && n <= MAX_SCHEMA_ENUM;
    json_array_foreach((json_t *)values, i, value)
    {
        const char *text = json_string_value(value);
        all &= text != NULL;
        if (text) word[n_words++] = (GrammarWord){.text = text, .len = strlen(text)};
    }
    uint32_t end = all ? literal(s, value_end, next) : 0;
    for (int k = 0; k < n_words; k++)
        word[k].next = end;
    uint32_t part = all ? grammar_words(s->b, word, n_words) : 0;
    mem_free(word);
    return part;
}

static uint32_t parameter_value(Calls *s, const json_t *root, const json_t *schema, int strict,
                                const char *where, uint32_t next)
{
    const char *type;
    schema = schema_resolve(root, schema);
    const json_t *one = json_object_get(schema, "const"), *values = json_object_get(schema, "enum");
    json_t *list = one ? json_pack("[O]", one) : NULL;
    uint32_t fixed = one || values ? fixed_text(s, one ? list : values, next) : 0;
    json_decref(list);
    if (fixed) return fixed;
    if (!schema || is_text(schema, &type)) return free_text(s, next);
    next = literal(s, value_end, next);
    if (!strcmp(type, "boolean") && !values && !one) {
        GrammarWord word[] = {{"true", 4, next, 0},
                              {"false", 5, next, 0},
                              {"True", 4, next, 0},
                              {"False", 5, next, 0}};
        return grammar_words(s->b, word, 4);
    }
    uint32_t part = schema_value(s->c, root, schema, strict, where, s->err);
    if (!part) s->failed = 1;
    return grammar_call(s->b, part, next);
}

typedef struct {
    const char *name;
    const json_t *schema;
    uint8_t required;
} Parameter;

/* Parameters in the schema's order, then those that are required and not described. */
static Parameter *read_parameters(const json_t *schema, int *n)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    size_t most = json_object_size(properties) + json_array_size(required), i;
    Parameter *p = mem_alloc(most + 1, sizeof *p);
    json_t *value, *known = json_object();
    const char *name;
    *n = 0;
    json_object_foreach((json_t *)properties, name, value)
    {
        json_object_set_new(known, name, json_integer(*n));
        p[(*n)++] = (Parameter){name, value, 0};
    }
    json_array_foreach((json_t *)required, i, value)
    {
        name = json_string_value(value);
        const json_t *at = name ? json_object_get(known, name) : NULL;
        if (at) p[json_integer_value(at)].required = 1;
        if (!name || at) continue;
        json_object_set_new(known, name, json_integer(*n));
        p[(*n)++] = (Parameter){name, NULL, 1};
    }
    json_decref(known);
    return p;
}

static int names_are_fit(Calls *s, const Parameter *p, int n, const char *where)
{
    if (n > MAX_SCHEMA_NODES) {
        error_set(s->err, ERR_LIMIT, "%s: there are more than %d", where, MAX_SCHEMA_NODES);
        s->failed = 1;
    }
    for (int i = 0; i < n; i++) {
        if (p[i].name[0] && strlen(p[i].name) <= MAX_SCHEMA_NAME && !strpbrk(p[i].name, "<>\n"))
            continue;
        error_set(s->err, ERR_INPUT, "%s: \"%.80s\" cannot be the name of a parameter", where,
                  p[i].name);
        s->failed = 1;
    }
    return !s->failed;
}

/* All that stands between a function's name and what comes behind the call. */
static uint32_t xml_parameters(Calls *s, const json_t *schema, int strict, const char *where,
                               uint32_t next)
{
    int n;
    Parameter *p = read_parameters(schema, &n);
    GrammarWord *word = mem_alloc((size_t)n + 1, sizeof *word);
    StrBuf *text = mem_alloc((size_t)n + 1, sizeof *text), place = {0};
    uint32_t *after = mem_alloc((size_t)n + 1, sizeof *after);
    uint8_t *required = mem_alloc((size_t)n + 1, 1);
    int ok = names_are_fit(s, p, n, where), may_end = 1;
    for (int k = 0; k <= n; k++)
        after[k] = schema_forward(s->c);
    for (int i = 0; i < n && ok; i++) {
        strbuf_clear(&place);
        strbuf_printf(&place, "%s.properties.%.80s", where, p[i].name);
        strbuf_printf(&text[i], "%s>\n", p[i].name);
        required[i] = p[i].required;
        uint32_t value = parameter_value(s, schema, p[i].schema, strict, place.data, after[i + 1]);
        word[i] = (GrammarWord){text[i].data, text[i].len, value, i};
    }
    ok &= !s->failed;
    uint32_t names = ok ? grammar_names(s->b, word, n, required, 0) : 0;
    uint32_t end = literal(s, "</function>\n", next);
    for (int k = n; k >= 0 && ok; k--) {
        uint32_t way[2];
        int n_ways = 0;
        if (k < n) may_end &= !required[k];
        if (may_end) way[n_ways++] = end;
        if (k < n) way[n_ways++] = literal(s, "<parameter=", grammar_name_from(s->b, names, k));
        schema_set_forward(s->c, after[k], schema_ways(s->c, way, n_ways));
    }
    uint32_t first = after[0];
    for (int i = 0; i < n; i++)
        strbuf_free(&text[i]);
    strbuf_free(&place);
    mem_free(p);
    mem_free(word);
    mem_free(text);
    mem_free(after);
    mem_free(required);
    return first;
}

/* ---- either form ---- */

/* What stands behind a function's name, to the end of the call. */
static uint32_t call_rest(Calls *s, const json_t *function, uint32_t next)
{
    const json_t *schema = json_object_get(function, "parameters");
    int strict = json_is_true(json_object_get(function, "strict"));
    int is_xml = chat_calls_are_xml(s->o->family), is_followed = strict || s->o->follow;
    char where[192];
    snprintf(where, sizeof where, "the parameters of tool %s",
             json_string_value(json_object_get(function, "name")));
    if (is_xml && !is_followed) return grammar_until(s->b, "</function>\n", NULL, next);
    if (is_xml) return xml_parameters(s, schema, strict, where, next);
    next = literal(s, "}\n", next);
    if (!is_followed) return grammar_call(s->b, schema_any_object(s->c), next);
    uint32_t part = schema_value(s->c, schema, schema, strict, where, s->err);
    if (!part) s->failed = 1;
    return grammar_call(s->b, part, next);
}

/* From a function's name on. */
static uint32_t any_function(Calls *s, uint32_t next)
{
    const json_t *tools = s->o->tools;
    size_t n = json_array_size(tools), i;
    GrammarWord *word = mem_alloc(n + 1, sizeof *word);
    StrBuf *text = mem_alloc(n + 1, sizeof *text);
    const char *name_end = chat_calls_are_xml(s->o->family) ? ">\n" : "\", \"arguments\": ";
    int n_words = 0;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (s->failed) break;
        strbuf_printf(&text[i], "%s%s", name, name_end);
        word[n_words++] = (GrammarWord){text[i].data, text[i].len, call_rest(s, f, next), 0};
    }
    uint32_t part = s->failed || !n_words ? 0 : grammar_words(s->b, word, n_words);
    for (i = 0; i < n; i++)
        strbuf_free(&text[i]);
    mem_free(text);
    mem_free(word);
    return part;
}

uint32_t call_grammar(SchemaCompiler *c, GrammarBuilder *b, const CallGrammar *o, Error *err)
{
    Calls s = {.c = c, .b = b, .o = o, .err = err};
    uint32_t behind = schema_forward(c), again = schema_forward(c);
    const char *name = chat_calls_are_xml(o->family) ? "\n<function=" : "\n{\"name\": \"";
    uint32_t call = literal(&s, name, any_function(&s, marker(&s, "</tool_call>", behind)));
    if (s.failed) return 0;
    if (!o->forced) {
        int32_t id = tokenizer_added_id(o->tok, "<tool_call>");
        if (id < 0) {
            error_set(err, ERR_INPUT, "tools: strict needs a model whose calls begin with a token");
            return 0;
        }
        uint32_t text =
            grammar_node(b, (GrammarNode){.kind = NODE_FREE, .lo = id, .hi = 1, .next = call});
        schema_set_forward(c, behind, text);
        return text;
    }
    uint32_t first = marker(&s, "<tool_call>", call);
    schema_set_forward(c, again, literal(&s, "\n", first));
    uint32_t way[] = {0, again};
    schema_set_forward(c, behind, grammar_any_of(b, way, o->parallel ? 2 : 1));
    return first;
}

uint32_t grammar_behind_thinking(GrammarBuilder *b, const Tokenizer *tok, uint32_t part)
{
    int32_t id = tokenizer_added_id(tok, "</think>");
    uint32_t second = grammar_any_of(b, (uint32_t[]){part, grammar_range(b, '\n', '\n', part)}, 2);
    uint32_t first = grammar_any_of(b, (uint32_t[]){part, grammar_range(b, '\n', '\n', second)}, 2);
    if (id < 0) return first;
    return grammar_node(b, (GrammarNode){.kind = NODE_FREE, .lo = id, .next = first});
}
