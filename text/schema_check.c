/*
 * schema_check.c: whether a fixed value is of a schema: of what we follow of it, and as JSON Schema
 * has it: a keyword says nothing of values of other types. Formats are followed; oneOf is anyOf.
 */
#include <string.h>

#include "text/schema_parts.h"
#include "text/utf8.h"

/* ---- strings ---- */

const Dfa *schema_kept_pattern(SchemaCompiler *c, const char *pattern)
{
    Error err = {0};
    for (int i = 0; i < N_CHECKED; i++)
        if (c->checked[i].pattern == pattern) return &c->checked[i].dfa;
    SchemaPattern *oldest = &c->checked[c->n_checked++ % N_CHECKED];
    dfa_free(&oldest->dfa);
    oldest->pattern = NULL;
    if (pattern_compile(&oldest->dfa, pattern, strlen(pattern), &err)) {
        schema_not_followed(c, "pattern", err.code, "%s", err.msg);
        return NULL;
    }
    oldest->pattern = pattern;
    return &oldest->dfa;
}

static int matches(SchemaCompiler *c, const char *pattern, const char *text, size_t len)
{
    const Dfa *d = pattern ? schema_kept_pattern(c, pattern) : NULL;
    uint16_t state = 0;
    if (!d) return 1;
    for (size_t i = 0; i < len && state != DFA_DEAD; i++)
        state = dfa_step(d, state, (uint8_t)text[i]);
    return state != DFA_DEAD && d->accepts[state];
}

/* 1 if so many are within the bounds of these keywords. */
static int is_count(const json_t *schema, size_t n, const char *least, const char *most)
{
    const json_t *lo = json_object_get(schema, least), *hi = json_object_get(schema, most);
    return (!json_is_number(lo) || (double)n >= json_number_value(lo)) &&
           (!json_is_number(hi) || (double)n <= json_number_value(hi));
}

static int is_string_of(SchemaCompiler *c, const json_t *schema, const json_t *value)
{
    const char *text = json_string_value(value);
    const char *format = json_string_value(json_object_get(schema, "format"));
    const char *pattern = json_string_value(json_object_get(schema, "pattern"));
    int longest = format ? format_longest(format) : -1;
    size_t len = json_string_length(value), n = 0;
    for (size_t i = 0; i < len; i++)
        n += !utf8_is_tail((unsigned char)text[i]);
    if (longest >= 0 && n > (size_t)longest) return 0;
    return is_count(schema, n, "minLength", "maxLength") && matches(c, pattern, text, len) &&
           matches(c, format ? format_pattern(format) : NULL, text, len);
}

/* ---- numbers ---- */

/* As memcmp; integers beyond a double's 53 bits are told apart. */
static int compare(const json_t *a, const json_t *b)
{
    double x = json_number_value(a), y = json_number_value(b);
    json_int_t p = json_integer_value(a), q = json_integer_value(b);
    if (json_is_integer(a) && json_is_integer(b)) return (p > q) - (p < q);
    return (x > y) - (x < y);
}

/* 1 if a bound is none, or value compares to it as it should: side, or equal unless it is open. */
static int is_within(const json_t *value, const json_t *bound, int side, int is_open)
{
    if (!json_is_number(bound)) return 1;
    int order = compare(value, bound);
    return order == side || (!order && !is_open);
}

static int is_number_of(SchemaCompiler *c, const json_t *schema, const json_t *value)
{
    const json_t *multiple = json_object_get(schema, "multipleOf");
    int is_multiple = multiple ? schema_is_multiple(value, multiple) : 1;
    if (is_multiple < 0)
        schema_not_followed(c, "multipleOf", ERR_INPUT, "it takes too many remainders to tell");
    return is_multiple && is_within(value, json_object_get(schema, "minimum"), 1, 0) &&
           is_within(value, json_object_get(schema, "maximum"), -1, 0) &&
           is_within(value, json_object_get(schema, "exclusiveMinimum"), 1, 1) &&
           is_within(value, json_object_get(schema, "exclusiveMaximum"), -1, 1);
}

/* ---- lists and objects ---- */

static int is_array_of(SchemaCompiler *c, const json_t *schema, const json_t *value)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items"), *one;
    if (json_is_array(items)) { /* as prefixItems was written before 2020-12 */
        first = items;
        items = json_object_get(schema, "additionalItems");
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        one = i < json_array_size(first) ? json_array_get(first, i) : items;
        if (one && !schema_has(c, one, json_array_get(value, i))) return 0;
    }
    return is_count(schema, json_array_size(value), "minItems", "maxItems");
}

static int is_member_of(SchemaCompiler *c, const json_t *schema, const char *name,
                        const json_t *member)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    const json_t *own = json_object_get(json_object_get(schema, "properties"), name);
    json_t *one;
    const char *pattern;
    int is_known = own != NULL;
    if (own && !schema_has(c, own, member)) return 0;
    json_object_foreach(json_object_get(schema, "patternProperties"), pattern, one)
    {
        if (!matches(c, pattern, name, strlen(name))) continue;
        is_known = 1;
        if (!schema_has(c, one, member)) return 0;
    }
    return is_known || !others || schema_has(c, others, member);
}

static int is_name_of(SchemaCompiler *c, const json_t *names, const char *name)
{
    json_t *text = json_string(name);
    int is_fit = !names || schema_has(c, names, text);
    json_decref(text);
    return is_fit;
}

static int is_object_of(SchemaCompiler *c, const json_t *schema, const json_t *value)
{
    const json_t *names = json_object_get(schema, "propertyNames");
    json_t *required = json_object_get(schema, "required"), *one;
    const char *name;
    size_t i;
    json_array_foreach(required, i, one)
    {
        if (json_is_string(one) && !json_object_get(value, json_string_value(one))) return 0;
    }
    json_object_foreach((json_t *)value, name, one)
    {
        if (!is_name_of(c, names, name) || !is_member_of(c, schema, name, one)) return 0;
    }
    return is_count(schema, json_object_size(value), "minProperties", "maxProperties");
}

/* ---- a schema ---- */

static int is_type_of(const json_t *schema, const json_t *value)
{
    const json_t *type = json_object_get(schema, "type");
    if (!type || (json_is_null(value) && json_is_true(json_object_get(schema, "nullable"))))
        return 1;
    for (size_t i = 0; i < json_array_size(type); i++)
        if (schema_has_type(value, json_string_value(json_array_get(type, i)))) return 1;
    return schema_has_type(value, json_string_value(type));
}

/* 1 if value is in the list, or there is none. */
static int is_listed(const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (schema_same_value(json_array_get(list, i), value)) return 1;
    return !json_is_array(list);
}

static int is_any_of(SchemaCompiler *c, const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++)
        if (schema_has(c, json_array_get(list, i), value)) return 1;
    return !json_is_array(list);
}

static int is_all_of(SchemaCompiler *c, const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!schema_has(c, json_array_get(list, i), value)) return 0;
    return 1;
}

static int is_target_of(SchemaCompiler *c, const json_t *ref, const json_t *value)
{
    const json_t *to = schema_target(c->root, json_string_value(ref));
    return to ? schema_has(c, to, value) : !schema_ref_nowhere(c, json_string_value(ref));
}

static int is_of(SchemaCompiler *c, const json_t *schema, const json_t *value)
{
    const json_t *one = json_object_get(schema, "const"), *ref = json_object_get(schema, "$ref");
    if (schema_check_keywords(c, schema) || (one && !schema_same_value(one, value))) return 0;
    if (!is_type_of(schema, value)) return 0;
    if (!is_listed(json_object_get(schema, "enum"), value)) return 0;
    if (json_is_string(value) && !is_string_of(c, schema, value)) return 0;
    if (json_is_number(value) && !is_number_of(c, schema, value)) return 0;
    if (json_is_array(value) && !is_array_of(c, schema, value)) return 0;
    if (json_is_object(value) && !is_object_of(c, schema, value)) return 0;
    if (json_is_string(ref) && !is_target_of(c, ref, value)) return 0;
    return is_all_of(c, json_object_get(schema, "allOf"), value) &&
           is_any_of(c, json_object_get(schema, "anyOf"), value) &&
           is_any_of(c, json_object_get(schema, "oneOf"), value);
}

int schema_has(SchemaCompiler *c, const json_t *schema, const json_t *value)
{
    int is_so = json_is_true(schema);
    if (c->failed || schema_is_late(c)) return 0;
    if (++c->depth > MAX_SCHEMA_DEPTH)
        schema_fail(c, ERR_LIMIT, "the schema is nested deeper than %d", MAX_SCHEMA_DEPTH);
    else if (json_is_object(schema))
        is_so = is_of(c, schema, value);
    else if (!json_is_boolean(schema))
        schema_fail(c, ERR_INPUT, "a schema must be an object");
    c->depth--;
    return is_so && !c->failed;
}

void schema_check_end(SchemaCompiler *c)
{
    for (int i = 0; i < N_CHECKED; i++)
        dfa_free(&c->checked[i].dfa);
}
