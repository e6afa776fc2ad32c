/*
 * schema.c: see schema.h.
 */
#include "text/schema_parts.h"

#include <stdarg.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/utf8.h"

SchemaCompiler *schema_begin(GrammarBuilder *b)
{
    SchemaCompiler *c = mem_alloc(1, sizeof *c);
    c->b = b;
    c->began_ms = clock_thread_ms();
    c->made = json_array();
    return c;
}

void schema_end(SchemaCompiler *c)
{
    if (!c) return;
    schema_check_end(c);
    json_decref(c->made);
    strbuf_free(&c->path);
    mem_free(c->ref);
    mem_free(c);
}

/* The path and what is wrong there, which has room always: of a long path the middle is left out.
 */
static void say_where(const SchemaCompiler *c, ErrorCode code, const char *what)
{
    const char *path = strbuf_str(&c->path);
    size_t room = sizeof c->err->msg - sizeof ": " - strlen(what);
    if (c->path.len <= room) {
        error_set(c->err, code, "%s: %s", path, what);
        return;
    }
    size_t head = (room - strlen("...")) / 2, tail = c->path.len - head;
    while (utf8_is_tail((unsigned char)path[head]))
        head--;
    while (utf8_is_tail((unsigned char)path[tail]))
        tail++;
    error_set(c->err, code, "%.*s...%s: %s", (int)head, path, path + tail, what);
}

/* Once: what failed first is told. */
__attribute__((format(printf, 4, 0))) static void
fail(SchemaCompiler *c, ErrorCode code, int empty_level, const char *fmt, va_list args)
{
    enum { MAX_WHAT = 160 };
    char what[MAX_WHAT];
    if (c->failed) return;
    c->failed = 1;
    c->empty_level = empty_level;
    vsnprintf(what, sizeof what, fmt, args);
    say_where(c, code, what);
}

uint32_t schema_fail(SchemaCompiler *c, ErrorCode code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail(c, code, -1, fmt, args);
    va_end(args);
    return 0;
}

uint32_t schema_empty(SchemaCompiler *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail(c, ERR_INPUT, c->level, fmt, args);
    va_end(args);
    return 0;
}

/* 1, and it failed, when the grammar has no room for more. */
static int is_full(SchemaCompiler *c)
{
    if (c->b->is_full) schema_fail(c, ERR_LIMIT, "it takes more than %d nodes", MAX_GRAMMAR_NODES);
    return c->b->is_full;
}

size_t schema_enter(SchemaCompiler *c, const char *step, const char *name)
{
    size_t before = c->path.len;
    strbuf_printf(&c->path, ".%s", step);
    if (name) strbuf_printf(&c->path, ".%.80s", name);
    return before;
}

void schema_leave(SchemaCompiler *c, size_t before)
{
    c->path.len = before;
    c->path.data[before] = 0;
}

uint32_t schema_part_at(SchemaCompiler *c, const json_t *schema, const char *step, int index)
{
    size_t before = schema_enter(c, step, NULL);
    if (index >= 0) strbuf_printf(&c->path, "[%d]", index);
    uint32_t part = schema_part(c, schema);
    schema_leave(c, before);
    return part;
}

/* ---- nodes that all need ---- */

uint32_t schema_forward(SchemaCompiler *c)
{
    uint32_t nowhere = 0;
    return grammar_any_of(c->b, &nowhere, 1);
}

void schema_set_forward(SchemaCompiler *c, uint32_t node, uint32_t to)
{
    Grammar *g = c->b->g;
    if (node) g->edge[g->node[node].first_edge].to = to;
}

uint32_t schema_ways(SchemaCompiler *c, const uint32_t *way, int n)
{
    if (n > MAX_GRAMMAR_WAYS)
        return schema_fail(c, ERR_LIMIT, "there are more than %d alternatives", MAX_GRAMMAR_WAYS);
    return n == 1 ? way[0] : grammar_any_of(c->b, way, n);
}

/* The ways of one value, without those that nothing can be of. */
typedef struct {
    uint32_t *way;
    int n;
} Ways;

static void add_way(SchemaCompiler *c, Ways *w, uint32_t part)
{
    if (c->failed && c->empty_level == c->level)
        c->failed = 0; /* its error stays for the end */
    else
        w->way[w->n++] = part;
}

/* Where there is none, why the last one is none is what is wrong. */
static uint32_t join_ways(SchemaCompiler *c, const Ways *w)
{
    if (!w->n) c->failed = 1;
    if (c->failed) return 0;
    *c->err = (Error){0};
    return schema_ways(c, w->way, w->n);
}

/* A blank, or a newline with its indentation, or nothing. */
static uint32_t make_blank(SchemaCompiler *c)
{
    enum { INDENTATION = 32 };
    uint32_t indented = 0;
    for (int i = 0; i < INDENTATION; i++) {
        GrammarEdge more[] = {{'\t', '\t', indented}, {' ', ' ', indented}};
        indented = grammar_any_of(c->b, (uint32_t[]){0, grammar_bytes(c->b, more, 2)}, 2);
    }
    GrammarEdge first[] = {{'\n', '\n', indented}, {' ', ' ', 0}};
    return grammar_any_of(c->b, (uint32_t[]){0, grammar_bytes(c->b, first, 2)}, 2);
}

uint32_t schema_blank(SchemaCompiler *c, uint32_t next)
{
    if (!c->blank) c->blank = make_blank(c);
    return grammar_call(c->b, c->blank, next);
}

uint32_t schema_no_way(SchemaCompiler *c)
{
    return grammar_bytes(c->b, &(GrammarEdge){.to = 0}, 0);
}

uint32_t schema_nested(SchemaCompiler *c, uint32_t body)
{
    return grammar_node(c->b, (GrammarNode){.kind = NODE_CALL, .nests = 1, .body = body});
}

uint32_t schema_any_object(SchemaCompiler *c)
{
    schema_any(c);
    return c->any_object;
}

uint32_t schema_any(SchemaCompiler *c)
{
    if (c->texts.as) return schema_text_any(c);
    if (c->any) return c->any;
    c->any = schema_forward(c);
    json_t *none = json_object();
    c->any_object = schema_object(c, none);
    uint32_t way[] = {c->any_object,         schema_array(c, none),  schema_string(c, none),
                      schema_any_number(c),  schema_word(c, "true"), schema_word(c, "false"),
                      schema_word(c, "null")};
    json_decref(none);
    schema_set_forward(c, c->any, grammar_any_of(c->b, way, 7));
    return c->any;
}

/* ---- references ---- */

static const char *const no_constraint[] = {
    "title",      "description", "default",   "examples", "$schema",     "$id",    "$comment",
    "deprecated", "readOnly",    "writeOnly", "$defs",    "definitions", "$anchor"};

static int is_followed_format(const json_t *format)
{
    return json_is_string(format) && format_pattern(json_string_value(format));
}

int schema_is_constraint(const char *key, const json_t *value)
{
    if (!strcmp(key, "format")) return is_followed_format(value);
    for (size_t i = 0; i < sizeof no_constraint / sizeof *no_constraint; i++)
        if (!strcmp(key, no_constraint[i])) return 0;
    return 1;
}

/* The schema without one keyword; NULL if nothing is left that says more. */
static json_t *rest_of(SchemaCompiler *c, const json_t *schema, const char *without)
{
    json_t *rest = json_object(), *value;
    const char *key;
    int n = 0;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (!strcmp(key, without) || !strcmp(key, "$defs") || !strcmp(key, "definitions")) continue;
        json_object_set(rest, key, value);
        n += schema_is_constraint(key, value);
    }
    if (!n) json_decref(rest);
    if (n) json_array_append_new(c->made, rest);
    return n ? rest : NULL;
}

/* Each value of one list is looked for in the other. */
static int lists_are_fit(SchemaCompiler *c, const json_t *schema)
{
    static const char *const keys[] = {"enum", "type"};
    for (int i = 0; i < 2; i++)
        if (json_array_size(json_object_get(schema, keys[i])) > MAX_SCHEMA_ENUM) {
            schema_fail(c, ERR_INPUT, "%s must be a list of 1 to %d", keys[i], MAX_SCHEMA_ENUM);
            return 0;
        }
    return 1;
}

/* Both at once, kept until the end; NULL and an error. */
static const json_t *both(SchemaCompiler *c, const json_t *a, const json_t *b)
{
    const char *lost = NULL;
    if (!lists_are_fit(c, a) || !lists_are_fit(c, b)) return NULL;
    if (json_is_true(a) || !json_is_object(b)) return json_is_true(b) ? a : b;
    if (!json_is_object(a)) return a;
    json_t *merged = schema_merge(a, b, &lost);
    if (!merged) {
        schema_empty(c, "its parts contradict each other");
        return NULL;
    }
    json_array_append_new(c->made, merged);
    if (!lost || !c->strict) return merged;
    schema_fail(c, ERR_INPUT, "\"%s\" of several parts is not supported in strict mode", lost);
    return NULL;
}

/*
 * The part of `of`, with what `rest` (NULL: nothing) says beside it, where that was met before: 1.
 * Else 0, *part is a node that is to be set, and it is known from now on, so that schemas may hold
 * themselves. Where texts are their own union's, they are none that are not there anyway.
 */
static int met_before(SchemaCompiler *c, const json_t *of, const json_t *rest, uint32_t *part)
{
    int form = c->texts.as ? c->texts.form : 0;
    for (int i = 0; i < c->n_refs; i++) {
        const SchemaRef *r = &c->ref[i];
        if (r->of != of || r->form != form || !r->rest != !rest ||
            (rest && !json_equal(r->rest, rest)))
            continue;
        int is_open = !c->b->g->edge[c->b->g->node[r->part].first_edge].to;
        *part = form && is_open ? schema_no_way(c) : r->part;
        return 1;
    }
    *part = schema_forward(c);
    c->ref = mem_realloc(c->ref, (size_t)c->n_refs + 1, sizeof *c->ref);
    c->ref[c->n_refs++] = (SchemaRef){of, rest, form, *part};
    return 0;
}

/* Sets what met_before gave. Where it failed it leads nowhere: others may refer to it, too. */
static uint32_t set_part(SchemaCompiler *c, uint32_t part, uint32_t to)
{
    schema_set_forward(c, part, c->failed ? schema_no_way(c) : to);
    return c->failed ? 0 : part;
}

int schema_ref_nowhere(SchemaCompiler *c, const char *ref)
{
    if (!c->strict) return 0;
    schema_fail(c, ERR_INPUT, "$ref \"%.80s\" leads nowhere in this schema", ref);
    return -1;
}

static uint32_t ref_part(SchemaCompiler *c, const json_t *schema, const char *ref)
{
    const json_t *to = schema_target(c->root, ref), *rest = rest_of(c, schema, "$ref");
    uint32_t part;
    if (!to) return schema_ref_nowhere(c, ref) ? 0 : schema_any(c);
    if (met_before(c, to, rest, &part)) return part;
    if (rest) to = both(c, to, rest);
    return set_part(c, part, to ? schema_part(c, to) : 0);
}

/* ---- several schemas in one ---- */

static uint32_t any_of_part(SchemaCompiler *c, const json_t *schema, const char *keyword)
{
    const json_t *list = json_object_get(schema, keyword), *rest = rest_of(c, schema, keyword);
    size_t n = json_array_size(list);
    if (!n || n > MAX_SCHEMA_ENUM)
        return schema_fail(c, ERR_INPUT, "%s must be a list of 1 to %d", keyword, MAX_SCHEMA_ENUM);
    Ways w = {mem_alloc(n, sizeof *w.way), 0};
    for (size_t i = 0; i < n && !c->failed; i++) {
        const json_t *one = json_array_get(list, i);
        if (rest) one = both(c, rest, one);
        add_way(c, &w, one ? schema_part_at(c, one, keyword, (int)i) : 0);
    }
    uint32_t part = join_ways(c, &w);
    mem_free(w.way);
    return part;
}

/* A part of allOf with what it refers to in it; NULL and an error. */
static const json_t *without_ref(SchemaCompiler *c, const json_t *one)
{
    const char *ref = json_string_value(json_object_get(one, "$ref"));
    for (int i = 0; i < MAX_SCHEMA_DEPTH && one && ref; i++) {
        const json_t *to = schema_target(c->root, ref), *rest = rest_of(c, one, "$ref");
        if (!to) to = schema_ref_nowhere(c, ref) ? json_false() : json_true();
        one = rest ? both(c, to, rest) : to;
        ref = json_string_value(json_object_get(one, "$ref"));
    }
    if (ref) schema_fail(c, ERR_INPUT, "$ref \"%.80s\" leads to itself", ref);
    return c->failed ? NULL : one;
}

static uint32_t all_of_part(SchemaCompiler *c, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "allOf"), *all = rest_of(c, schema, "allOf");
    uint32_t part;
    if (!json_array_size(list)) return schema_fail(c, ERR_INPUT, "allOf must be a list");
    if (met_before(c, list, all, &part)) return part;
    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++) {
        const json_t *one = without_ref(c, json_array_get(list, i));
        all = all && one ? both(c, all, one) : one;
    }
    return set_part(c, part, all ? schema_part(c, all) : 0);
}

/* ---- one schema ---- */

static const char *const not_followed[] = {"not",
                                           "if",
                                           "then",
                                           "else",
                                           "dependencies",
                                           "dependentRequired",
                                           "dependentSchemas",
                                           "unevaluatedProperties",
                                           "unevaluatedItems",
                                           "contains",
                                           "minContains",
                                           "maxContains",
                                           "$dynamicRef",
                                           "$recursiveRef"};

const char *schema_not_followed_keyword(const json_t *schema)
{
    for (size_t i = 0; i < sizeof not_followed / sizeof *not_followed; i++)
        if (json_object_get(schema, not_followed[i])) return not_followed[i];
    return NULL;
}

enum {
    A_STRING = 1 << JSON_STRING,
    A_LIST = 1 << JSON_ARRAY,
    AN_OBJECT = 1 << JSON_OBJECT,
    A_NUMBER = 1 << JSON_INTEGER | 1 << JSON_REAL,
    A_BOOLEAN = 1 << JSON_TRUE | 1 << JSON_FALSE,
};

/* What these must be: they would say nothing else. Some libraries write null for what is absent. */
static const struct {
    const char *keyword;
    int types;
    const char *words;
} must_be[] = {
    {"$ref", A_STRING, "a string"},
    {"pattern", A_STRING, "a string"},
    {"format", A_STRING, "a string"},
    {"minimum", A_NUMBER, "a number"},
    {"maximum", A_NUMBER, "a number"},
    {"exclusiveMinimum", A_NUMBER | A_BOOLEAN, "a number"},
    {"exclusiveMaximum", A_NUMBER | A_BOOLEAN, "a number"},
    {"properties", AN_OBJECT, "an object"},
    {"patternProperties", AN_OBJECT, "an object"},
    {"prefixItems", A_LIST, "a list"},
    {"items", AN_OBJECT | A_BOOLEAN | A_LIST, "a schema"},
    {"additionalItems", AN_OBJECT | A_BOOLEAN, "a schema"},
    {"additionalProperties", AN_OBJECT | A_BOOLEAN, "a schema"},
    {"propertyNames", AN_OBJECT | A_BOOLEAN, "a schema"},
};

/* 1 for a list of strings and nothing else. */
static int are_names(const json_t *list)
{
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(list, i))) return 0;
    return json_is_array(list);
}

const char *schema_malformed_keyword(const json_t *schema, const char **must_be_what)
{
    for (size_t i = 0; i < sizeof must_be / sizeof *must_be; i++) {
        const json_t *v = json_object_get(schema, must_be[i].keyword);
        if (!v || json_is_null(v) || 1 << json_typeof(v) & must_be[i].types) continue;
        *must_be_what = must_be[i].words;
        return must_be[i].keyword;
    }
    const json_t *required = json_field(schema, "required");
    *must_be_what = "a list of strings";
    return required && !are_names(required) ? "required" : NULL;
}

int schema_check_keywords(SchemaCompiler *c, const json_t *schema)
{
    if (!c->strict) return 0;
    const char *keyword = schema_not_followed_keyword(schema), *words;
    const char *malformed = schema_malformed_keyword(schema, &words);
    if (keyword)
        schema_fail(c, ERR_INPUT, "keyword \"%s\" is not supported in strict mode", keyword);
    else if (malformed)
        schema_fail(c, ERR_INPUT, "%s must be %s", malformed, words);
    return keyword || malformed ? -1 : 0;
}

uint32_t schema_type(SchemaCompiler *c, const json_t *schema, const char *type)
{
    if (!strcmp(type, "object")) return schema_object(c, schema);
    if (!strcmp(type, "array")) return schema_array(c, schema);
    if (!strcmp(type, "string")) return schema_string(c, schema);
    if (!strcmp(type, "integer")) return schema_integer(c, schema);
    if (!strcmp(type, "number")) return schema_number(c, schema);
    if (!strcmp(type, "null")) return schema_word(c, "null");
    if (strcmp(type, "boolean") != 0)
        return schema_fail(c, ERR_INPUT, "type \"%.40s\" is none of JSON's", type);
    uint32_t way[] = {schema_word(c, "true"), schema_word(c, "false")};
    return grammar_any_of(c->b, way, 2);
}

const char *schema_implied_type(const json_t *schema)
{
    static const char *const sign[][2] = {{"properties", "object"},
                                          {"required", "object"},
                                          {"additionalProperties", "object"},
                                          {"minProperties", "object"},
                                          {"maxProperties", "object"},
                                          {"propertyNames", "object"},
                                          {"patternProperties", "object"},
                                          {"items", "array"},
                                          {"prefixItems", "array"},
                                          {"minItems", "array"},
                                          {"maxItems", "array"},
                                          {"pattern", "string"},
                                          {"minLength", "string"},
                                          {"maxLength", "string"},
                                          {"minimum", "number"},
                                          {"maximum", "number"},
                                          {"exclusiveMinimum", "number"},
                                          {"exclusiveMaximum", "number"},
                                          {"multipleOf", "number"}};
    for (size_t i = 0; i < sizeof sign / sizeof *sign; i++)
        if (json_object_get(schema, sign[i][0])) return sign[i][1];
    return is_followed_format(json_object_get(schema, "format")) ? "string" : NULL;
}

static uint32_t type_part(SchemaCompiler *c, const json_t *schema, const char *type)
{
    return c->texts.as ? schema_text_type(c, schema, type) : schema_type(c, schema, type);
}

/* The values that a keyword lists and that are of what stands beside it. */
static uint32_t values_part(SchemaCompiler *c, const json_t *schema, const char *keyword,
                            const json_t *values)
{
    const json_t *rest = rest_of(c, schema, keyword), *value;
    json_t *fit = json_array();
    size_t i;
    uint32_t part = 0;
    json_array_foreach((json_t *)values, i, value)
    {
        if (!rest || schema_has(c, rest, value)) json_array_append(fit, (json_t *)value);
    }
    if (!json_array_size(fit))
        schema_empty(c, "what stands beside its values allows none of them");
    else if (!c->failed)
        part = c->texts.as ? schema_text_values(c, fit) : schema_enum(c, fit);
    json_decref(fit);
    return part;
}

static uint32_t types_part(SchemaCompiler *c, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    uint32_t way[16];
    Ways w = {way, 0};
    if (type && !json_is_string(type) && !(json_array_size(type) && are_names(type)))
        return schema_fail(c, ERR_INPUT, "type must be a string or a list of them");
    if (json_array_size(type) > 8) return schema_fail(c, ERR_INPUT, "type names more than 8");
    for (size_t i = 0; i < json_array_size(type) && !c->failed; i++) {
        const char *name = json_string_value(json_array_get(type, i));
        add_way(c, &w, type_part(c, schema, name));
    }
    const char *one = type ? json_string_value(type) : schema_implied_type(schema);
    if (one) add_way(c, &w, type_part(c, schema, one));
    if (!type && !one) return schema_any(c);
    if (json_is_true(json_object_get(schema, "nullable")) && !c->failed)
        add_way(c, &w, c->texts.as ? schema_text_null(c) : schema_word(c, "null"));
    return join_ways(c, &w);
}

static uint32_t object_part(SchemaCompiler *c, const json_t *schema)
{
    const json_t *ref = json_object_get(schema, "$ref"), *one = json_object_get(schema, "const");
    if (schema_check_keywords(c, schema)) return 0;
    if (json_is_string(ref)) return ref_part(c, schema, json_string_value(ref));
    if (json_object_get(schema, "allOf")) return all_of_part(c, schema);
    if (json_object_get(schema, "anyOf")) return any_of_part(c, schema, "anyOf");
    if (json_object_get(schema, "oneOf")) return any_of_part(c, schema, "oneOf");
    if (one) {
        json_t *list = json_pack("[O]", one);
        uint32_t part = values_part(c, schema, "const", list);
        json_decref(list);
        return part;
    }
    const json_t *values = json_object_get(schema, "enum");
    if (values && (!json_array_size(values) || json_array_size(values) > MAX_SCHEMA_ENUM))
        return schema_fail(c, ERR_INPUT, "enum must be a list of 1 to %d", MAX_SCHEMA_ENUM);
    return values ? values_part(c, schema, "enum", values) : types_part(c, schema);
}

int schema_is_late(SchemaCompiler *c)
{
    if (clock_thread_ms() - c->began_ms <= MAX_SCHEMA_MS) return 0;
    schema_fail(c, ERR_LIMIT, "compiling the schema takes more than %d ms", MAX_SCHEMA_MS);
    return 1;
}

uint32_t schema_part(SchemaCompiler *c, const json_t *schema)
{
    uint32_t part = 0;
    if (c->failed || is_full(c)) return 0;
    if (++c->n_nodes > MAX_SCHEMA_NODES)
        return schema_fail(c, ERR_LIMIT, "the schema has more than %d parts", MAX_SCHEMA_NODES);
    if (schema_is_late(c)) return 0;
    if (++c->depth > MAX_SCHEMA_DEPTH)
        schema_fail(c, ERR_LIMIT, "the schema is nested deeper than %d", MAX_SCHEMA_DEPTH);
    else if (json_is_true(schema))
        part = schema_any(c);
    else if (json_is_object(schema))
        part = object_part(c, schema);
    else if (json_is_false(schema))
        schema_empty(c, "nothing can be of schema false");
    else
        schema_fail(c, ERR_INPUT, "a schema must be an object");
    c->depth--;
    return c->failed ? 0 : part;
}

uint32_t schema_value(SchemaCompiler *c, const json_t *root, const json_t *schema, int strict,
                      const char *where, Error *err)
{
    c->root = root;
    c->strict = strict;
    c->err = err;
    c->failed = 0;
    strbuf_clear(&c->path);
    strbuf_puts(&c->path, where);
    uint32_t part = schema_part(c, schema);
    return c->failed || is_full(c) ? 0 : part;
}

uint32_t schema_object_value(SchemaCompiler *c, const json_t *root, int strict, const char *where,
                             Error *err)
{
    json_t *object = json_pack("{s:[O, {s:s}]}", "allOf", root, "type", "object");
    json_array_append_new(c->made, object);
    return schema_value(c, root, object, strict, where, err);
}
