/*
 * instance.c: see instance.h.
 */
#include "tests/instance.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/textdata.h"

json_t *schema_json(const char *text)
{
    char *copy = with_quotes(mem_strdup(text));
    json_t *json = json_loads(copy, JSON_DECODE_ANY, NULL);
    mem_free(copy);
    if (!json) abort();
    return json;
}

static int is_type(const json_t *v, const char *type)
{
    return !strcmp(type, "object")    ? json_is_object(v)
           : !strcmp(type, "array")   ? json_is_array(v)
           : !strcmp(type, "string")  ? json_is_string(v)
           : !strcmp(type, "number")  ? json_is_number(v)
           : !strcmp(type, "integer") ? json_is_integer(v)
           : !strcmp(type, "boolean") ? json_is_boolean(v)
                                      : json_is_null(v);
}

static int has_type(const json_t *type, const json_t *v)
{
    if (json_is_string(type)) return is_type(v, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        if (is_type(v, json_string_value(json_array_get(type, i)))) return 1;
    return 0;
}

static size_t characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static int matches(const char *pattern, const char *text)
{
    int code;
    size_t at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
    if (!re) abort();
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
    int rc = pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, m, NULL);
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return rc > 0;
}

static const char *format_pattern_of(const char *format)
{
    if (!strcmp(format, "uuid")) return "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";
    if (!strcmp(format, "date-time"))
        return "^\\d{4}-\\d\\d-\\d\\d[Tt ]\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?([Zz]|[+-]\\d\\d:\\d\\d)$";
    return "";
}

static const char *string_error(const json_t *schema, const char *text)
{
    const json_t *lo = json_object_get(schema, "minLength");
    const json_t *hi = json_object_get(schema, "maxLength");
    const char *pattern = json_string_value(json_object_get(schema, "pattern"));
    const char *format = json_string_value(json_object_get(schema, "format"));
    if (lo && characters(text) < (size_t)json_integer_value(lo)) return "minLength";
    if (hi && characters(text) > (size_t)json_integer_value(hi)) return "maxLength";
    if (pattern && !matches(pattern, text)) return "pattern";
    return format && !matches(format_pattern_of(format), text) ? "format" : NULL;
}

static const char *number_error(const json_t *schema, double x)
{
    const json_t *lo = json_object_get(schema, "minimum");
    const json_t *hi = json_object_get(schema, "maximum");
    const json_t *over = json_object_get(schema, "exclusiveMinimum");
    const json_t *under = json_object_get(schema, "exclusiveMaximum");
    if (lo && x < json_number_value(lo)) return "minimum";
    if (over && x <= json_number_value(over)) return "exclusiveMinimum";
    if (under && x >= json_number_value(under)) return "exclusiveMaximum";
    return hi && x > json_number_value(hi) ? "maximum" : NULL;
}

static const char *array_error(const json_t *root, const json_t *schema, const json_t *value)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items"), *bound;
    size_t n = json_array_size(value);
    bound = json_object_get(schema, "minItems");
    if (bound && n < (size_t)json_integer_value(bound)) return "minItems";
    bound = json_object_get(schema, "maxItems");
    if (bound && n > (size_t)json_integer_value(bound)) return "maxItems";
    for (size_t i = 0; i < n; i++) {
        const json_t *one = i < json_array_size(first) ? json_array_get(first, i) : items;
        const char *error = one ? instance_error(root, one, json_array_get(value, i)) : NULL;
        if (error) return error;
    }
    return NULL;
}

static const char *object_error(const json_t *root, const json_t *schema, const json_t *value)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    const json_t *required = json_object_get(schema, "required");
    const char *name;
    json_t *member;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i))))
            return "required";
    json_object_foreach((json_t *)value, name, member)
    {
        const json_t *one = json_object_get(properties, name);
        if (!one && json_is_false(others)) return "additionalProperties";
        if (!one) one = others;
        const char *error = one ? instance_error(root, one, member) : NULL;
        if (error) return error;
    }
    return NULL;
}

static const char *any_of_error(const json_t *root, const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!instance_error(root, json_array_get(list, i), value)) return NULL;
    return "anyOf";
}

static const char *enum_error(const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), value)) return NULL;
    return "enum";
}

const char *instance_error(const json_t *root, const json_t *schema, const json_t *value)
{
    const char *error = NULL;
    if (!json_is_object(schema)) return json_is_false(schema) ? "false" : NULL;
    if (json_object_get(schema, "$ref")) return instance_error(root, root, value); /* "#" */
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
    const json_t *one = json_object_get(schema, "const"), *any = json_object_get(schema, "anyOf");
    if (type && !has_type(type, value)) return "type";
    if (one && !json_equal(one, value)) return "const";
    if (list) error = enum_error(list, value);
    if (!error && any) error = any_of_error(root, any, value);
    if (!error && json_is_string(value)) error = string_error(schema, json_string_value(value));
    if (!error && json_is_number(value)) error = number_error(schema, json_number_value(value));
    if (!error && json_is_array(value)) error = array_error(root, schema, value);
    if (!error && json_is_object(value)) error = object_error(root, schema, value);
    return error;
}
