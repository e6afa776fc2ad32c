/*
 * api_structure.c: what a request says that its answer must look like; see api_request.h.
 *
 * OpenAI's response_format, vLLM's structured_outputs, llama.cpp's json_schema and SGLang's regex,
 * one of them at a time. What is not followed is refused: silence would give an answer of any form.
 */
#include "server/api_request.h"

#include <string.h>

static int refuse(const char *param, const char *what, ApiError *err)
{
    return api_error(err, ERR_INPUT, param, "%s %s", param, what);
}

static int is_schema(const json_t *v)
{
    return json_is_object(v) || json_is_boolean(v);
}

/* {"type": "json_schema", "json_schema": {"name", "schema", "strict"}} */
static int read_schema_format(ApiStructure *s, const json_t *format, ApiError *err)
{
    const json_t *inner = json_field(format, "json_schema");
    const json_t *schema = json_field(inner, "schema"), *strict = json_field(inner, "strict");
    if (!json_is_object(inner)) return refuse("response_format", "needs json_schema", err);
    if (strict && !json_is_boolean(strict))
        return refuse("response_format", "has a strict that is neither true nor false", err);
    s->strict = json_is_true(strict);
    s->kind = STRUCTURE_SCHEMA;
    s->value = schema;
    s->field = "response_format.json_schema.schema";
    if (!schema) { /* a name alone asks for no more than JSON */
        s->kind = STRUCTURE_OBJECT;
        return 0;
    }
    return is_schema(schema) ? 0 : refuse("response_format", "has a schema that is no object", err);
}

/*
 * {"type": "json_object"}, with llama.cpp's schema or TGI's value, which huggingface_hub sends. One
 * that is empty or true says no more than that it is an object.
 */
static int read_object_format(ApiStructure *s, const json_t *format, ApiError *err)
{
    const json_t *value = json_field(format, "value"), *schema = json_field(format, "schema");
    s->kind = STRUCTURE_OBJECT;
    if (value) schema = value;
    if (!schema || json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema)))
        return 0;
    s->kind = STRUCTURE_SCHEMA;
    s->value = schema;
    s->field = value ? "response_format.value" : "response_format.schema";
    return is_schema(schema) ? 0 : refuse(s->param, "has a schema that is no object", err);
}

static int read_response_format(ApiStructure *s, const json_t *body, ApiError *err)
{
    const json_t *format = json_field(body, "response_format");
    const char *type = api_word(json_object_get(format, "type"));
    if (!format) return 0;
    s->param = "response_format";
    if (!json_is_object(format) || !type)
        return refuse(s->param, "must be an object with a type", err);
    if (!strcmp(type, "text")) return 0;
    if (!strcmp(type, "json_schema")) return read_schema_format(s, format, err);
    if (!strcmp(type, "json_object")) return read_object_format(s, format, err);
    return refuse(s->param, "must be of type text, json_object or json_schema", err);
}

static int is_list_of_texts(const json_t *v)
{
    size_t n = json_array_size(v);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(v, i))) return 0;
    return n > 0;
}

/* What vLLM would have of a form beside the form itself: which blanks, which properties. */
static int refuse_options(const json_t *outputs, ApiError *err)
{
    static const char *const options[] = {"whitespace_pattern", "disable_any_whitespace",
                                          "disable_additional_properties"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const json_t *v = json_field(outputs, options[i]);
        if (json_is_string(v) || api_asks(v)) /* no blank at all is a pattern, too */
            return api_error(err, ERR_INPUT, "structured_outputs",
                             "structured_outputs.%s is not supported", options[i]);
    }
    return 0;
}

static int read_structured_outputs(ApiStructure *s, const json_t *body, ApiError *err)
{
    const json_t *v = json_field(body, "structured_outputs");
    const json_t *json = json_field(v, "json"), *regex = json_field(v, "regex");
    const json_t *choice = json_field(v, "choice"), *any = json_field(v, "json_object");
    int n = (json != NULL) + (regex != NULL) + (choice != NULL);
    if (!v) return 0;
    s->param = "structured_outputs";
    if (!json_is_object(v)) return refuse(s->param, "must be an object", err);
    if (json_field(v, "grammar") || json_field(v, "structural_tag"))
        return refuse(s->param, "takes json, regex, choice or json_object", err);
    if (any && !json_is_boolean(any))
        return refuse(s->param, "has a json_object that is neither true nor false", err);
    if (refuse_options(v, err)) return -1;
    n += json_is_true(any);
    if (n > 1) return refuse(s->param, "asks for several forms at once", err);
    s->value = json ? json : regex ? regex : choice;
    s->field = json    ? "structured_outputs.json"
               : regex ? "structured_outputs.regex"
                       : "structured_outputs.choice";
    s->kind = !n       ? STRUCTURE_FREE
              : json   ? STRUCTURE_SCHEMA
              : regex  ? STRUCTURE_PATTERN
              : choice ? STRUCTURE_CHOICE
                       : STRUCTURE_OBJECT;
    if (json && !is_schema(json) && !json_is_string(json))
        return refuse(s->param, "has json that is no schema", err);
    if (regex && !json_is_string(regex))
        return refuse(s->param, "has a regex that is no text", err);
    if (choice && !is_list_of_texts(choice))
        return refuse(s->param, "has a choice that is no list of texts", err);
    return 0;
}

/* llama.cpp's: the schema alone. An empty one is its way to ask for nothing. */
static int read_bare_schema(ApiStructure *s, const json_t *body, ApiError *err)
{
    const json_t *v = json_field(body, "json_schema");
    if (!v || (json_is_object(v) && !json_object_size(v))) return 0;
    *s = (ApiStructure){STRUCTURE_SCHEMA, v, 0, "json_schema", "json_schema"};
    return is_schema(v) ? 0 : refuse("json_schema", "must be a schema", err);
}

/* SGLang's: the pattern alone. */
static int read_bare_pattern(ApiStructure *s, const json_t *body, ApiError *err)
{
    const json_t *v = json_field(body, "regex");
    if (!api_asks(v)) return 0;
    *s = (ApiStructure){STRUCTURE_PATTERN, v, 0, "regex", "regex"};
    return json_is_string(v) ? 0 : refuse("regex", "must be a string", err);
}

static int refuse_others(const json_t *body, ApiError *err)
{
    static const char *const guided[] = {"guided_json", "guided_regex", "guided_choice",
                                         "guided_grammar", "guided_json_object"};
    static const char *const grammars[] = {"grammar", "ebnf", "structural_tag"};
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++)
        if (api_asks(json_field(body, grammars[i])))
            return refuse(grammars[i], "is not supported; use json_schema", err);
    for (size_t i = 0; i < sizeof guided / sizeof *guided; i++)
        if (api_asks(json_field(body, guided[i])))
            return refuse(guided[i], "is not supported; use structured_outputs", err);
    return 0;
}

/* vLLM takes a schema as a text, too. No prompt shows it. */
static int parse_schema(ApiRequest *r, ApiError *err)
{
    ApiError ignored = {0};
    ApiStructure *s = &r->structure;
    if (s->kind != STRUCTURE_SCHEMA) return 0;
    json_t *parsed = NULL;
    if (json_is_string(s->value))
        parsed = api_parse_one(&r->texts, json_string_value(s->value), json_string_length(s->value),
                               &ignored);
    r->schema = json_rounded(json_is_string(s->value) ? parsed : s->value);
    json_decref(parsed);
    s->value = r->schema;
    return r->schema ? 0 : refuse(s->param, "has json that is no schema", err);
}

/*
 * Where tool_choice asks for a call no text comes. Agents say all the same what form their last
 * answer is to have, with each request.
 */
static int is_of_no_text(const ApiRequest *r, const ApiStructure *s)
{
    return r->forced && !strcmp(s->param, "response_format");
}

int api_read_structure(ApiRequest *r, const json_t *body, ApiError *err)
{
    static int (*const read[])(ApiStructure *, const json_t *, ApiError *) = {
        read_response_format, read_structured_outputs, read_bare_schema, read_bare_pattern};
    if (refuse_others(body, err)) return -1;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        ApiStructure one = {0};
        if (read[i](&one, body, err)) return -1;
        if (one.kind == STRUCTURE_FREE || is_of_no_text(r, &one)) continue;
        if (r->structure.kind != STRUCTURE_FREE)
            return api_error(err, ERR_INPUT, one.param,
                             "%s and %s cannot both say what the answer is", r->structure.param,
                             one.param);
        r->structure = one;
    }
    if (r->structure.kind != STRUCTURE_FREE && r->forced)
        return api_error(err, ERR_INPUT, "tool_choice",
                         "%s asks for text where tool_choice asks for a call", r->structure.param);
    return parse_schema(r, err);
}

int api_has_grammar(const ApiRequest *r)
{
    return r->structure.kind != STRUCTURE_FREE || r->forced ||
           (r->parse_calls && (r->strict_tools || r->allowed_tools));
}
