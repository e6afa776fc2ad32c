/*
 * test_api_structure.c: what requests say of their answers' form, and of the tools that must be
 * called: what is read, what is refused, by which name and in which words.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api_request.h"
#include "tests/analyzer.h"
#include "tests/textdata.h"

#define TOOLS                                                                                      \
    "'tools': [{'type': 'function', 'function': {'name': 'a'}}, {'function': {'name': 'b', "       \
    "'strict': true}}], "
#define FORMAT(inner)  "'response_format': {'type': 'json_schema', 'json_schema': " inner "}"
#define OUTPUTS(inner) "'structured_outputs': {" inner "}"

/* The fields of a request, with ' for "; 0 or -1, as api_request_read. *r is to be freed. */
static int read_fields(ApiRequest *r, ApiKind kind, const char *fields, ApiError *err)
{
    static const ApiDefaults defaults = {
        .max_tokens = 16,
        .chat = {.add_generation_prompt = 1, .enable_thinking = -1},
        .n_vocab = 100};
    char text[1024];
    snprintf(text, sizeof text, "{%s, %s}",
             kind == API_CHAT ? "'messages': [{'role': 'user', 'content': 'x'}]" : "'prompt': 'x'",
             fields);
    with_quotes(text);
    *err = (ApiError){0};
    *r = (ApiRequest){0};
    json_t *body = api_parse_body(text, strlen(text), NULL, err);
    if (!body) fail_msg("%s: %s", text, err->error.msg);
    return api_request_read(r, kind, body, &defaults, err);
}

/* ---- refused ---- */

typedef struct {
    const char *fields, *param, *error;
} Refused;

static const Refused refused[] = {
    {"'response_format': 'text'", "response_format", "must be an object with a type"},
    {"'response_format': {}", "response_format", "must be an object with a type"},
    {"'response_format': {'type': 5}", "response_format", "must be an object with a type"},
    {"'response_format': {'type': 'xml'}", "response_format", "text, json_object or json_schema"},
    {"'response_format': {'type': 'json_schema'}", "response_format", "needs json_schema"},
    {FORMAT("[]"), "response_format", "needs json_schema"},
    {FORMAT("{'schema': 5}"), "response_format", "has a schema that is no object"},
    {FORMAT("{'schema': '{}'}"), "response_format", "has a schema that is no object"},
    {"'response_format': {'type': 'json_object', 'schema': []}", "response_format",
     "has a schema that is no object"},
    {"'response_format': {'type': 'json_object', 'value': '{}'}", "response_format",
     "has a schema that is no object"},
    {"'json_schema': '{}'", "json_schema", "must be a schema"},
    {"'json_schema': []", "json_schema", "must be a schema"},
    {"'structured_outputs': 'json'", "structured_outputs", "must be an object"},
    {OUTPUTS("'json': 5"), "structured_outputs", "has json that is no schema"},
    {OUTPUTS("'json': ''"), "structured_outputs", "has json that is no schema"},
    {OUTPUTS("'json': '{'"), "structured_outputs", "has json that is no schema"},
    {OUTPUTS("'json': '[]'"), "structured_outputs", "has json that is no schema"},
    {OUTPUTS("'regex': {}"), "structured_outputs", "has a regex that is no text"},
    {OUTPUTS("'choice': 'a'"), "structured_outputs", "has a choice that is no list of texts"},
    {OUTPUTS("'choice': []"), "structured_outputs", "has a choice that is no list of texts"},
    {OUTPUTS("'choice': ['a', 5]"), "structured_outputs", "has a choice that is no list of texts"},
    {OUTPUTS("'grammar': 'root ::= x'"), "structured_outputs", "takes json, regex, choice"},
    {OUTPUTS("'structural_tag': 'x'"), "structured_outputs", "takes json, regex, choice"},
    {OUTPUTS("'json': {}, 'whitespace_pattern': ''"), "structured_outputs",
     "structured_outputs.whitespace_pattern is not supported"},
    {OUTPUTS("'json': {}, 'disable_any_whitespace': true"), "structured_outputs",
     "structured_outputs.disable_any_whitespace is not supported"},
    {OUTPUTS("'json': {}, 'disable_additional_properties': true"), "structured_outputs",
     "structured_outputs.disable_additional_properties is not supported"},
    {OUTPUTS("'json_object': 1"), "structured_outputs", "neither true nor false"},
    {FORMAT("{'schema': {}, 'strict': 'yes'}"), "response_format", "neither true nor false"},
    {OUTPUTS("'json': {}, 'regex': 'a'"), "structured_outputs", "several forms at once"},
    {OUTPUTS("'choice': ['a'], 'json_object': true"), "structured_outputs",
     "several forms at once"},
    {"'grammar': 'root ::= x'", "grammar", "grammar is not supported; use json_schema"},
    {"'ebnf': 'root ::= x'", "ebnf", "ebnf is not supported; use json_schema"},
    {"'structural_tag': {'format': {}}", "structural_tag", "is not supported; use json_schema"},
    {"'regex': 5", "regex", "must be a string"},
    {"'guided_json': {'type': 'object'}", "guided_json",
     "guided_json is not supported; use structured_outputs"},
    {"'guided_regex': 'a'", "guided_regex", "use structured_outputs"},
    {"'guided_choice': ['a']", "guided_choice", "use structured_outputs"},
    {"'guided_grammar': 'root ::= x'", "guided_grammar", "use structured_outputs"},
    {"'guided_json_object': true", "guided_json_object", "use structured_outputs"},
    /* two forms at once */
    {"'json_schema': true, " OUTPUTS("'regex': 'a'"), "json_schema",
     "structured_outputs and json_schema cannot both say what the answer is"},
    {"'regex': 'a', 'json_schema': true", "regex",
     "json_schema and regex cannot both say what the answer is"},
    {OUTPUTS("'json_object': true") ", " FORMAT("{'name': 'n'}"), "structured_outputs",
     "response_format and structured_outputs cannot both say what the answer is"},
};

static void expect_refused(ApiKind kind, const Refused *x)
{
    ApiRequest r;
    ApiError err;
    if (!read_fields(&r, kind, x->fields, &err)) fail_msg("was taken: %s", x->fields);
    if (strcmp(err.param, x->param) != 0 || !strstr(err.error.msg, x->error))
        fail_msg("%s: '%s' '%s'", x->fields, err.param, err.error.msg);
    assert_int_equal(err.error.code, ERR_INPUT);
    api_request_free(&r);
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        expect_refused(API_COMPLETION, &refused[i]);
        expect_refused(API_CHAT, &refused[i]);
    }
}

static const Refused refused_choices[] = {
    {"'tool_choice': 'required'", "tool_choice", "tool_choice needs tools"},
    {"'tools': [], 'tool_choice': 'any'", "tool_choice", "tool_choice needs tools"},
    {"'tool_choice': {'type': 'function', 'function': {'name': 'a'}}", "tool_choice",
     "names no function that is there"},
    {TOOLS "'tool_choice': {'function': {'name': 'c'}}", "tool_choice",
     "names no function that is there"},
    {TOOLS "'tool_choice': {'type': 'function'}", "tool_choice", "names no function that is there"},
    {TOOLS "'tool_choice': 'sometimes'", "tool_choice", "must be auto, none, required or name"},
    {TOOLS "'tool_choice': 5", "tool_choice", "must be a string or an object"},
    {TOOLS "'tool_choice': {'type': 'allowed_tools'}", "tool_choice", "must be auto, none"},
    {TOOLS "'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'required'}}",
     "tool_choice", "names no function that is there"},
    {TOOLS "'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'required', "
           "'tools': [{'function': {'name': 'c'}}, 5]}}",
     "tool_choice", "names no function that is there"},
    {TOOLS "'function_call': {'name': 'c'}", "function_call",
     "function_call names no function that is there"},
    {TOOLS "'tool_choice': 'required', 'regex': 'a'", "tool_choice",
     "regex asks for text where tool_choice asks for a call"},
    {TOOLS "'tool_choice': 'required', 'response_format': {'type': 'xml'}", "response_format",
     "must be of type text, json_object or json_schema"},
};

static void test_refused_choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused_choices / sizeof *refused_choices; i++)
        expect_refused(API_CHAT, &refused_choices[i]);
}

/* ---- read ---- */

static ApiRequest read_ok(ApiKind kind, const char *fields)
{
    ApiRequest r;
    ApiError err;
    if (read_fields(&r, kind, fields, &err)) fail_msg("%s: %s", fields, err.error.msg);
    return r;
}

typedef struct {
    const char *fields, *field;
    StructureKind kind;
    int strict;
} Read;

static const Read taken[] = {
    {"'response_format': {'type': 'text'}", NULL, STRUCTURE_FREE, 0},
    {"'response_format': {'type': 'json_object'}", NULL, STRUCTURE_OBJECT, 0},
    {"'response_format': {'type': 'json_object', 'schema': {}}", NULL, STRUCTURE_OBJECT, 0},
    {"'response_format': {'type': 'json_object', 'schema': true}", NULL, STRUCTURE_OBJECT, 0},
    {"'response_format': {'type': 'json_object', 'schema': {'type': 'null'}}",
     "response_format.schema", STRUCTURE_SCHEMA, 0},
    {"'response_format': {'type': 'json_object', 'value': {'type': 'null'}}",
     "response_format.value", STRUCTURE_SCHEMA, 0},
    {FORMAT("{'name': 'n'}"), NULL, STRUCTURE_OBJECT, 0},
    {FORMAT("{'schema': null}"), NULL, STRUCTURE_OBJECT, 0},
    {FORMAT("{'schema': true}"), "response_format.json_schema.schema", STRUCTURE_SCHEMA, 0},
    {FORMAT("{'schema': {}, 'strict': true}"), "response_format.json_schema.schema",
     STRUCTURE_SCHEMA, 1},
    {FORMAT("{'schema': {}, 'strict': null}"), "response_format.json_schema.schema",
     STRUCTURE_SCHEMA, 0},
    {"'json_schema': {'type': 'null'}", "json_schema", STRUCTURE_SCHEMA, 0},
    {"'json_schema': {}", NULL, STRUCTURE_FREE, 0},
    {OUTPUTS(""), NULL, STRUCTURE_FREE, 0},
    {OUTPUTS("'json_object': false, 'json': null"), NULL, STRUCTURE_FREE, 0},
    {OUTPUTS("'json_object': true"), NULL, STRUCTURE_OBJECT, 0},
    {OUTPUTS("'json': {}"), "structured_outputs.json", STRUCTURE_SCHEMA, 0},
    {OUTPUTS("'json': '{\\\"type\\\": \\\"null\\\"}'"), "structured_outputs.json", STRUCTURE_SCHEMA,
     0}, /* vLLM takes the schema as a text, too */
    {OUTPUTS("'regex': 'a+'"), "structured_outputs.regex", STRUCTURE_PATTERN, 0},
    {OUTPUTS("'regex': 'a+', 'whitespace_pattern': null, 'disable_any_whitespace': false, "
             "'disable_additional_properties': false, 'disable_fallback': true"),
     "structured_outputs.regex", STRUCTURE_PATTERN, 0},
    {"'regex': 'a+'", "regex", STRUCTURE_PATTERN, 0},
    {OUTPUTS("'choice': ['a', 'b']"), "structured_outputs.choice", STRUCTURE_CHOICE, 0},
    {OUTPUTS("'choice': ['', 'b']"), "structured_outputs.choice", STRUCTURE_CHOICE, 0},
    /* what asks for nothing, as clients send it */
    {"'grammar': '', 'guided_json': {}, 'guided_regex': '', 'guided_choice': [], "
     "'guided_grammar': null, 'guided_json_object': false, 'regex': '', 'ebnf': null, "
     "'structural_tag': ''",
     NULL, STRUCTURE_FREE, 0},
    {"'response_format': {'type': 'text'}, 'json_schema': {}, " OUTPUTS("'json_object': true"),
     NULL, STRUCTURE_OBJECT, 0},
};

static void test_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        const Read *x = &taken[i];
        ApiRequest r = read_ok(API_CHAT, x->fields);
        if (r.structure.kind != x->kind || r.structure.strict != x->strict)
            fail_msg("%s: %d %d", x->fields, (int)r.structure.kind, r.structure.strict);
        if (x->field) assert_string_equal(r.structure.field, x->field);
        if (x->field) assert_non_null(r.structure.value);
        if (x->kind == STRUCTURE_SCHEMA) assert_false(json_is_string(r.structure.value));
        assert_int_equal(api_has_grammar(&r), x->kind != STRUCTURE_FREE);
        api_request_free(&r);
    }
}

static void test_format_beside_forced_call(void **state)
{
    (void)state;
    ApiRequest r = read_ok(API_CHAT, TOOLS "'tool_choice': 'required', 'response_format': {'type': "
                                           "'json_object'}");
    assert_int_equal(r.structure.kind, STRUCTURE_FREE);
    assert_int_equal(json_array_size(r.forced), 2);
    assert_true(api_has_grammar(&r));
    api_request_free(&r);
}

/* Which calls are asked for: names of the tools, NULL: none must be called. */
static const struct {
    const char *choice, *forced;
    int names_tool, has_grammar;
    const char *allowed; /* NULL: all */
} choices[] = {
    {"'x': 0", NULL, 0, 1, NULL}, /* b is strict */
    {"'tool_choice': 'auto'", NULL, 0, 1, NULL},
    {"'tool_choice': 'none'", NULL, 0, 0, NULL},
    {"'tool_choice': 'required'", "ab", 0, 1, NULL},
    {"'tool_choice': 'any'", "ab", 0, 1, NULL},
    {"'tool_choice': {'type': 'function', 'function': {'name': 'b'}}", "b", 1, 1, NULL},
    {"'tool_choice': {'type': 'function', 'name': 'a'}", "a", 1, 1, NULL},
    {"'function_call': {'name': 'a'}", "a", 1, 1, NULL},
    {"'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto', 'tools': []}}",
     NULL, 0, 0, ""},
    {"'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto', 'tools': "
     "[{'type': 'function', 'function': {'name': 'a'}}]}}",
     NULL, 0, 1, "a"},
    {"'tool_choice': {'type': 'allowed_tools', 'mode': 'auto', 'tools': [{'name': 'b'}]}", NULL, 0,
     1, "b"},
    {"'tool_choice': {'type': 'allowed_tools', 'mode': 'auto', 'tools': [{'name': 'b'}, {'name': "
     "'a'}]}",
     NULL, 0, 1, NULL},
    {"'tool_choice': {'type': 'allowed_tools', 'mode': 'auto', 'tools': [{'name': 'b'}, {'name': "
     "'b'}]}",
     NULL, 0, 1, "b"},
    {"'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': 'required', 'tools': "
     "[{'type': 'function', 'function': {'name': 'b'}}, {'name': 'c'}]}}",
     "b", 0, 1, NULL},
};

static void join_names(const json_t *tools, char *out, size_t size)
{
    size_t n = 0, i;
    json_t *tool;
    *out = 0;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        n += (size_t)snprintf(out + n, size - n, "%s",
                              json_string_value(json_object_get(f, "name")));
    }
}

static void test_choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        char fields[512], names[8], allowed[8];
        snprintf(fields, sizeof fields, TOOLS "%s", choices[i].choice);
        ApiRequest r = read_ok(API_CHAT, fields);
        join_names(r.forced, names, sizeof names);
        join_names(r.allowed_tools, allowed, sizeof allowed);
        if (!r.forced != !choices[i].forced || r.names_tool != choices[i].names_tool ||
            api_has_grammar(&r) != choices[i].has_grammar)
            fail_msg("%s: '%s' %d", choices[i].choice, names, r.names_tool);
        if (choices[i].forced) assert_string_equal(names, choices[i].forced);
        assert_int_equal(!r.allowed_tools, !choices[i].allowed);
        if (choices[i].allowed) assert_string_equal(allowed, choices[i].allowed);
        api_request_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused), cmocka_unit_test(test_refused_choices),
        cmocka_unit_test(test_read),    cmocka_unit_test(test_format_beside_forced_call),
        cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
