/*
 * schema_merge.c: one schema that asks for what two ask for.
 */
#include <string.h>

#include "text/schema_parts.h"

enum { MAX_PAIRS = 64 };

int schema_has_type(const json_t *value, const char *type)
{
    if (!type) return 0;
    if (!strcmp(type, "object")) return json_is_object(value);
    if (!strcmp(type, "array")) return json_is_array(value);
    if (!strcmp(type, "string")) return json_is_string(value);
    if (!strcmp(type, "number")) return json_is_number(value);
    if (!strcmp(type, "boolean")) return json_is_boolean(value);
    if (!strcmp(type, "null")) return json_is_null(value);
    if (strcmp(type, "integer") != 0) return 0;
    double x = json_is_real(value) ? json_real_value(value) : 0.5;
    return json_is_integer(value) ||
           (x <= 1e15 && x >= -1e15 && x <= (double)(long long)x && x >= (double)(long long)x);
}

int schema_same_value(const json_t *a, const json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b) || json_equal(a, b)) return json_equal(a, b);
    double x = json_number_value(a), y = json_number_value(b);
    return !(x < y || x > y);
}

static int is_in(const json_t *list, const json_t *value)
{
    json_t *one;
    size_t i;
    json_array_foreach((json_t *)list, i, one)
    {
        if (schema_same_value(one, value)) return 1;
    }
    return 0;
}

static json_t *as_list(const json_t *v)
{
    return json_is_array(v) ? json_incref((json_t *)v) : json_pack("[O]", v);
}

/* What is in both lists, of types or of values; NULL when nothing is. */
static json_t *common(const json_t *a, const json_t *b, int are_types)
{
    json_t *x = as_list(a), *y = as_list(b), *out = json_array(), *one;
    size_t i;
    json_array_foreach(x, i, one)
    {
        if (is_in(y, one)) json_array_append(out, one);
    }
    if (are_types) { /* an integer is a number, too */
        json_t *integer = json_string("integer"), *number = json_string("number");
        if ((is_in(x, integer) && is_in(y, number)) || (is_in(y, integer) && is_in(x, number)))
            if (!is_in(out, integer)) json_array_append(out, integer);
        json_decref(integer);
        json_decref(number);
    }
    json_decref(x);
    json_decref(y);
    if (json_array_size(out)) return out;
    json_decref(out);
    return NULL;
}

static json_t *all_names(const json_t *a, const json_t *b)
{
    json_t *out = json_array(), *seen = json_object(), *one;
    size_t i, n = json_array_size(a);
    for (i = 0; i < n + json_array_size(b); i++) {
        one = i < n ? json_array_get(a, i) : json_array_get(b, i - n);
        const char *name = json_string_value(one);
        if (!name || json_object_get(seen, name)) continue;
        json_object_set_new(seen, name, json_true());
        json_array_append(out, one);
    }
    json_decref(seen);
    return out;
}

/* A schema of what is of both. */
static json_t *both_schemas(const json_t *a, const json_t *b)
{
    if (json_is_false(a) || json_is_true(b) || json_equal(a, b)) return json_incref((json_t *)a);
    if (json_is_false(b) || json_is_true(a)) return json_incref((json_t *)b);
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

static json_t *merge_properties(const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)a), *value;
    const char *name;
    json_object_foreach((json_t *)b, name, value)
    {
        json_t *ours = json_object_get(out, name);
        if (!ours)
            json_object_set(out, name, value);
        else
            json_object_set_new(out, name, both_schemas(ours, value));
    }
    return out;
}

static json_t *stricter(const json_t *a, const json_t *b, int largest)
{
    int a_is_larger = json_number_value(a) > json_number_value(b);
    return json_incref((json_t *)(a_is_larger == largest ? a : b));
}

/* Each of one list with each of the other; NULL: they are too many. */
static json_t *all_pairs(const json_t *a, const json_t *b)
{
    size_t n = json_array_size(a), m = json_array_size(b);
    if (n * m > MAX_PAIRS) return NULL;
    json_t *out = json_array();
    for (size_t i = 0; i < n * m; i++)
        json_array_append_new(out,
                              both_schemas(json_array_get(a, i / m), json_array_get(b, i % m)));
    return out;
}

static json_t *both_lists(const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)a);
    json_array_extend(out, (json_t *)b);
    return out;
}

/* What a schema says of item i of a list. */
static const json_t *item_schema(const json_t *schema, size_t i)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    if (i < json_array_size(first)) return json_array_get(first, i);
    return items ? items : json_true();
}

/* The first items of both: what is behind those of the one may be among those of the other. */
static json_t *both_firsts(const json_t *a, const json_t *b)
{
    size_t n = json_array_size(json_object_get(a, "prefixItems"));
    size_t m = json_array_size(json_object_get(b, "prefixItems"));
    json_t *out = json_array();
    for (size_t i = 0; i < n || i < m; i++)
        json_array_append_new(out, both_schemas(item_schema(a, i), item_schema(b, i)));
    return out;
}

static int is_one_of(const char *key, const char *const *list)
{
    while (*list && strcmp(*list, key) != 0)
        list++;
    return *list != NULL;
}

/* 1: it says what values are, and where the two have none in common there are none. */
static int says_values(const char *key)
{
    return !strcmp(key, "type") || !strcmp(key, "enum") || !strcmp(key, "const");
}

/* The one that is followed; NULL where both are. */
static json_t *both_formats(const json_t *a, const json_t *b)
{
    int is_a = schema_is_constraint("format", a), is_b = schema_is_constraint("format", b);
    return is_a && is_b ? NULL : json_incref((json_t *)(is_b ? b : a));
}

/* What a keyword says in both, a new reference; NULL: no value is so, or it is not to be had. */
static json_t *merge_keyword(const char *key, const json_t *a, const json_t *b)
{
    static const char *const lower[] = {"minimum",  "exclusiveMinimum", "minLength",
                                        "minItems", "minProperties",    NULL};
    static const char *const upper[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                        "maxItems", "maxProperties",    NULL};
    static const char *const schemas[] = {"items", "additionalProperties", "propertyNames", NULL};
    static const char *const alone[] = {"const", "pattern", "$ref", NULL};
    if (schema_same_value(a, b)) return json_incref((json_t *)a);
    if (!strcmp(key, "type")) return common(a, b, 1);
    if (!strcmp(key, "enum")) return common(a, b, 0);
    if (!strcmp(key, "required")) return all_names(a, b);
    if (!strcmp(key, "allOf")) return both_lists(a, b);
    if (!strcmp(key, "properties")) return merge_properties(a, b);
    if (is_one_of(key, lower)) return stricter(a, b, 1);
    if (is_one_of(key, upper)) return stricter(a, b, 0);
    if (!strcmp(key, "multipleOf")) return schema_common_multiple(a, b);
    if (!strcmp(key, "anyOf") || !strcmp(key, "oneOf")) return all_pairs(a, b);
    if (is_one_of(key, schemas)) return both_schemas(a, b);
    if (!strcmp(key, "format")) return both_formats(a, b);
    if (is_one_of(key, alone)) return NULL;
    return json_incref((json_t *)a); /* it says nothing that we follow */
}

json_t *schema_merge(const json_t *a, const json_t *b, const char **lost)
{
    json_t *out = json_copy((json_t *)a), *value;
    const char *key;
    json_object_foreach((json_t *)b, key, value)
    {
        json_t *ours = json_object_get(out, key);
        json_t *merged = ours ? merge_keyword(key, ours, value) : json_incref(value);
        if (merged) {
            json_object_set_new(out, key, merged);
        } else if (says_values(key)) {
            json_decref(out);
            return NULL;
        } else {
            *lost = key;
        }
    }
    if (json_object_get(out, "prefixItems"))
        json_object_set_new(out, "prefixItems", both_firsts(a, b));
    return out;
}
