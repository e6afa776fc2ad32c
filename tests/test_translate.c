/*
 * test_translate.c: requests of other APIs as chat requests: the messages that come out, and what
 * is refused. JSON is written with single quotes here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "server/translate.h"
#include "tests/analyzer.h"

typedef json_t *(*Translate)(const json_t *body, ApiError *err);

static json_t *parse(const char *text)
{
    char *quoted = strdup(text);
    json_error_t je;
    assert_non_null(quoted);
    for (char *c = quoted; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *value = json_loads(quoted, JSON_DECODE_ANY, &je);
    if (!value) fail_msg("%s: %s", je.text, text);
    free(quoted);
    return value;
}

/* A field of what a body becomes is what is wanted; "null" stands for none. */
typedef struct {
    const char *body, *field, *want;
} Row;

static void check_rows(Translate translate, const Row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ApiError err = {0};
        json_t *body = parse(rows[i].body), *want = parse(rows[i].want);
        json_t *chat = translate(body, &err);
        if (!chat) fail_msg("%s: %s", rows[i].body, err.error.msg);
        json_t *got = json_object_get(chat, rows[i].field);
        if (got ? !json_equal(got, want) : !json_is_null(want)) {
            char *text = json_dumps(got, JSON_ENCODE_ANY);
            fail_msg("%s\n  %s: %s\n  want %s", rows[i].body, rows[i].field, text ? text : "none",
                     rows[i].want);
        }
        json_decref(chat);
        json_decref(want);
        json_decref(body);
    }
}

/* A body that is refused: the field that is named, and a part of what is said. */
static void check_refused(Translate translate, const Row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ApiError err = {0};
        json_t *body = parse(rows[i].body), *chat = translate(body, &err);
        if (chat) fail_msg("not refused: %s", rows[i].body);
        if (strcmp(err.param, rows[i].field) != 0 || !strstr(err.error.msg, rows[i].want))
            fail_msg("%s\n  %s: %s", rows[i].body, err.param, err.error.msg);
        json_decref(body);
    }
}

#define CHECK(translate, rows)   check_rows(translate, rows, sizeof(rows) / sizeof *(rows))
#define REFUSED(translate, rows) check_refused(translate, rows, sizeof(rows) / sizeof *(rows))

/* ---- /v1/messages ---- */

#define USER(content) "{'messages': [{'role': 'user', 'content': " content "}]}"
#define HI            "'messages': [{'role': 'user', 'content': 'hi'}]"
#define TURN(content)                                                                              \
    "{'messages': [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': " content   \
    "}, {'role': 'user', 'content': 'go on'}]}"
#define IN_TURN(fields)                                                                            \
    "[{'role': 'user', 'content': 'hi'}, {'role': 'assistant', " fields                            \
    "}, {'role': 'user', 'content': 'go on'}]"
#define PART(text) "{'type': 'text', 'text': '" text "'}"

static void test_anthropic_messages(void **state)
{
    (void)state;
    static const Row rows[] = {
        {USER("'hi'"), "messages", "[{'role': 'user', 'content': 'hi'}]"},
        {USER("[" PART("a") ", {'type': 'text', 'text': 'b', 'cache_control': {}}]"), "messages",
         "[{'role': 'user', 'content': [" PART("a") ", " PART("b") "]}]"},
        {USER("[]"), "messages", "[{'role': 'user', 'content': []}]"},
        {USER("[{'type': 'strange'}, " PART("a") "]"), "messages",
         "[{'role': 'user', 'content': [" PART("a") "]}]"},
        {USER("[{'type': 'document', 'source': {'type': 'text', 'data': 'a'}}]"), "messages",
         "[{'role': 'user', 'content': [" PART("a") "]}]"},
        /* A result comes before what is said beside it, whatever their order. */
        {USER("[" PART("b") ", {'type': 'tool_result', 'tool_use_id': 't', 'content': 'a'}]"),
         "messages",
         "[{'role': 'tool', 'content': 'a', 'tool_call_id': 't'}, {'role': 'user', 'content': "
         "[" PART("b") "]}]"},
        {USER("[{'type': 'tool_result'}]"), "messages", "[{'role': 'tool', 'content': ''}]"},
        {USER("[{'type': 'tool_result', 'is_error': true, 'content': [" PART(
             "a") ", {'type': 'image'}, {'type': 'strange'}, {'type': 'tool_reference', "
                  "'tool_name': 'x'}, {'type': 'document', 'source': {'type': 'text', 'data': "
                  "'b'}}]}]"),
         "messages", "[{'role': 'tool', 'content': 'Error: a\\n[image omitted]\\nx\\nb'}]"},
        {TURN("[{'type': 'thinking', 'thinking': 'hm', 'signature': 's'}, {'type': "
              "'redacted_thinking', 'data': 'd'}, " PART("a") ", {'type': 'tool_use', 'id': 't', "
                                                              "'name': 'f', 'input': {'x': 1}}]"),
         "messages",
         IN_TURN("'content': [" PART("a") "], 'reasoning_content': 'hm', 'tool_calls': [{'type': "
                                          "'function', 'function': {'name': 'f', 'arguments': "
                                          "{'x': 1}}}]")},
        {TURN("'a'"), "continue_final_message", "null"},
        {"{'messages': [{'role': 'assistant', 'content': 'a'}]}", "continue_final_message", "true"},
        {"{'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'name': 'f', "
         "'input': null}]}]}",
         "continue_final_message", "null"},
        /* Blocks of a system text are as messages: the chat's reader joins them. */
        {"{'system': 's', " HI "}", "messages",
         "[{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'hi'}]"},
        {"{'system': [" PART("s") ", " PART("t") "], " HI "}", "messages",
         "[{'role': 'system', 'content': 's'}, {'role': 'system', 'content': 't'}, {'role': "
         "'user', 'content': 'hi'}]"},
        {"{'system': 's', " HI "}", "system", "null"},
    };
    CHECK(anthropic_to_chat, rows);
}

static void test_anthropic_fields(void **state)
{
    (void)state;
#define FIELD(text) "{" HI ", " text "}"
    static const Row rows[] = {
        {FIELD("'max_tokens': 7"), "max_tokens", "7"},
        {FIELD("'stop_sequences': ['a']"), "stop", "['a']"},
        {FIELD("'stop': ['a']"), "stop", "null"},
        {FIELD("'n': 3"), "n", "null"},
        {FIELD("'top_k': 5"), "top_k", "5"},
        {FIELD("'stream': true"), "stream", "true"},
        {FIELD("'thinking': {'type': 'enabled', 'budget_tokens': 99}"), "thinking_budget", "99"},
        {FIELD("'thinking': {'type': 'adaptive', 'budget_tokens': 'x'}"), "thinking_budget",
         "null"},
        {FIELD("'output_config': {'format': {'type': 'json_schema', 'schema': {'a': 1}}, "
               "'effort': 'low'}"),
         "response_format",
         "{'type': 'json_schema', 'json_schema': {'name': 'output', 'schema': {'a': 1}, 'strict': "
         "true}}"},
        {FIELD("'output_config': {'effort': 'low'}"), "response_format", "null"},
        {FIELD("'tool_choice': {'type': 'auto'}"), "tool_choice", "'auto'"},
        {FIELD("'tool_choice': {'type': 'any'}"), "tool_choice", "'required'"},
        {FIELD("'tool_choice': {'type': 'none'}"), "tool_choice", "'none'"},
        {FIELD("'tool_choice': {'type': 'tool', 'name': 'f'}"), "tool_choice",
         "{'type': 'function', 'function': {'name': 'f'}}"},
        {FIELD("'tool_choice': {'type': 'auto', 'disable_parallel_tool_use': true}"),
         "parallel_tool_calls", "false"},
        /* What has no schema of its own runs elsewhere, and is left for the chat to skip. */
        {FIELD("'tools': [{'name': 'f', 'description': 'd', 'input_schema': {'type': 'object'}, "
               "'cache_control': {}}, {'type': 'custom', 'name': 'g'}, {'type': "
               "'web_search_20250305', 'name': 'web_search'}]"),
         "tools",
         "[{'type': 'function', 'function': {'name': 'f', 'description': 'd', 'parameters': "
         "{'type': 'object'}}}, {'type': 'function', 'function': {'name': 'g'}}, {'type': "
         "'web_search_20250305', 'name': 'web_search'}]"},
    };
    CHECK(anthropic_to_chat, rows);
}

static void test_anthropic_refused(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"{}", "messages", "at least one message"},
        {"{'messages': {}}", "messages", "at least one message"},
        {"{'messages': [{}]}", "messages[0].role", "must be user or assistant"},
        {"{" HI ", 'system': 1}", "system", "must be a string"},
        {"{" HI ", 'system': [{'type': 'image'}]}", "system[0]", "must be a text block"},
        {USER("null"), "messages[0].content", "must be a string or a list"},
        {USER("[1]"), "messages[0].content", "not an object"},
        {USER("[{'type': 'text'}]"), "messages[0].content", "without text"},
        {USER("[{'type': 'image'}]"), "messages[0].content", "text only"},
        {USER("[{'type': 'document', 'source': {'type': 'base64'}}]"), "messages[0].content",
         "text only"},
        {TURN("[{'type': 'tool_use'}]"), "messages[1].content", "without a name"},
        {FIELD("'tools': 1"), "tools", "must be a list"},
        {FIELD("'tool_choice': {'type': 'some'}"), "tool_choice", "auto, any, tool or none"},
        {FIELD("'tool_choice': 'auto'"), "tool_choice", "auto, any, tool or none"},
        {FIELD("'thinking': true"), "thinking", "an object with a type"},
        {FIELD("'thinking': {'type': 'enabled', 'budget_tokens': 0}"), "budget_tokens", "0"},
        {FIELD("'max_tokens': 1.5"), "max_tokens", "an integer"},
        {FIELD("'stop_sequences': 'a'"), "stop_sequences", "must be a list"},
    };
    REFUSED(anthropic_to_chat, rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_anthropic_messages),
        cmocka_unit_test(test_anthropic_fields),
        cmocka_unit_test(test_anthropic_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
