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

#include "base/mem.h"
#include "server/responses_tools.h"
#include "server/translate.h"
#include "tests/analyzer.h"
#include "tests/textdata.h"

typedef json_t *(*Translate)(const json_t *body, ApiError *err);

static json_t *parse(const char *text)
{
    char *quoted = with_quotes(mem_strdup(text));
    json_error_t je;
    json_t *value = json_loads(quoted, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!value) fail_msg("%s: %s", je.text, text);
    mem_free(quoted);
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

#define FOUND                                                                                      \
    "{'type': 'search_result', 'title': 't', 'source': 'u', 'content': [" PART("a") ", " PART(     \
        "b") "]}"

#define BILLING "x-anthropic-billing-header: cc_version=2.1; cch=36ee5;"

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
        {USER("[{'type': 'document', 'source': {'type': 'content', 'content': 'a'}}]"), "messages",
         "[{'role': 'user', 'content': [" PART("a") "]}]"},
        {USER("[{'type': 'document', 'source': {'type': 'content', 'content': [" PART(
             "a") ", " PART("b") "]}}]"),
         "messages", "[{'role': 'user', 'content': [" PART("a\\nb") "]}]"},
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
        {USER("[" FOUND ", {'type': 'tool_result', 'content': [" FOUND "]}]"), "messages",
         "[{'role': 'tool', 'content': 't\\nu\\na\\nb'}, {'role': 'user', 'content': [" PART(
             "t\\nu\\na\\nb") "]}]"},
        {TURN("[{'type': 'thinking', 'thinking': 'hm', 'signature': 's'}, {'type': "
              "'redacted_thinking', 'data': 'd'}, " PART("a") ", {'type': 'tool_use', 'id': 't', "
                                                              "'name': 'f', 'input': {'x': 1}}]"),
         "messages",
         IN_TURN("'content': [" PART("a") "], 'reasoning_content': 'hm', 'tool_calls': [{'type': "
                                          "'function', 'function': {'name': 'f', 'arguments': "
                                          "{'x': 1}}, 'id': 't'}]")},
        /* Thoughts that were not shown come back within their signature. */
        {TURN("[{'type': 'thinking', 'thinking': '', 'signature': 'b2Zmc2hvb3Q6aG0='}]"),
         "messages", IN_TURN("'content': [], 'reasoning_content': 'hm'")},
        {TURN("[{'type': 'thinking', 'thinking': 'a', 'signature': 'b2Zmc2hvb3Q6aG0='}]"),
         "messages", IN_TURN("'content': [], 'reasoning_content': 'a'")},
        {TURN("[{'type': 'thinking', 'signature': 'b2Zmc2hvb3Q='}, {'type': 'thinking', "
              "'signature': 'b2Zmc2hvb3Q6/w=='}, {'type': 'thinking', 'signature': 'x'}]"),
         "messages", IN_TURN("'content': []")},
        {TURN("'a'"), "continue_final_message", "null"},
        {"{'messages': [{'role': 'assistant', 'content': 'a'}]}", "continue_final_message", "true"},
        {"{'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'name': 'f', "
         "'input': null}]}]}",
         "continue_final_message", "null"},
        /* Blocks of a system text are the paragraphs of one, without the line that changes. */
        {"{'system': 's', " HI "}", "messages",
         "[{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'hi'}]"},
        {"{'system': [" PART("s") ", " PART("t") "], " HI "}", "messages",
         "[{'role': 'system', 'content': 's\\n\\nt'}, {'role': 'user', 'content': 'hi'}]"},
        {"{'system': [" PART(BILLING) ", " PART(BILLING "\\n\\ns") ", " PART("") "], " HI "}",
         "messages",
         "[{'role': 'system', 'content': 's\\n\\n'}, {'role': 'user', 'content': 'hi'}]"},
        {"{'system': [" PART(BILLING) "], " HI "}", "messages",
         "[{'role': 'user', 'content': 'hi'}]"},
        {"{'system': 's', " HI "}", "system", "null"},
        /* One behind the user's words goes before them, but after a tool's result. */
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'system', 'content': 's'}]}",
         "messages", "[{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'a'}]"},
        {"{'messages': [{'role': 'user', 'content': [{'type': 'tool_result'}]}, {'role': "
         "'system', 'content': [" PART("s") "]}]}",
         "messages",
         "[{'role': 'tool', 'content': ''}, {'role': 'system', 'content': [" PART("s") "]}]"},
    };
    CHECK(anthropic_to_chat, rows);
}

static void test_anthropic_fields(void **state)
{
    (void)state;
#define FIELD(text) "{" HI ", " text "}"
    static const Row rows[] = {
        {FIELD("'max_tokens': 7"), "max_tokens", "7"},
        {FIELD("'max_tokens': 1e30"), "max_tokens", "2147483647"},
        {FIELD("'stop_sequences': ['a']"), "stop", "['a']"},
        {FIELD("'stop': ['a']"), "stop", "null"},
        {FIELD("'n': 3"), "n", "null"},
        {FIELD("'top_k': 5"), "top_k", "5"},
        {FIELD("'stream': true"), "stream", "true"},
        {FIELD("'thinking': {'type': 'enabled', 'budget_tokens': 99}"), "thinking",
         "{'type': 'enabled', 'budget_tokens': 99}"},
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
        {"{'messages': [{'role': 'user\\u0000', 'content': 'a'}]}", "messages[0].role",
         "must be user or assistant"},
        {"{" HI ", 'system': 1}", "system", "must be a string"},
        {"{" HI ", 'system': [{'type': 'image'}]}", "system[0]", "must be a text block"},
        {USER("null"), "messages[0].content", "must be a string or a list"},
        {USER("[1]"), "messages[0].content", "not an object"},
        {USER("[{'type': 'text'}]"), "messages[0].content", "without text"},
        {USER("[{'type': 'image'}]"), "messages[0].content", "text only"},
        {USER("[{'type': 'document', 'source': {'type': 'base64'}}]"), "messages[0].content",
         "text only"},
        {USER("[{'type': 'document', 'source': {'type': 'content', 'content': [" PART(
             "a") ", {'type': 'image'}]}}]"),
         "messages[0].content", "text only"},
        {USER("[{'type': 'tool_result', 'content': {'a': 1}}]"), "messages[0].content",
         "no string and no list"},
        {TURN("[{'type': 'tool_use'}]"), "messages[1].content", "without a name"},
        {FIELD("'tools': 1"), "tools", "must be a list"},
        {FIELD("'tool_choice': {'type': 'some'}"), "tool_choice", "auto, any, tool or none"},
        {FIELD("'tool_choice': 'auto'"), "tool_choice", "auto, any, tool or none"},
        {FIELD("'max_tokens': 1.5"), "max_tokens", "an integer"},
        {FIELD("'stop_sequences': 'a'"), "stop_sequences", "must be a list"},
        {FIELD("'thread': {'type': 'create'}"), "thread", "not stored"},
        {FIELD("'thread': {'type': 'continue', 'previous_message_id': 'm'}"), "thread",
         "send all messages"},
        {FIELD("'output_config': 'json'"), "output_config", "must be an object"},
    };
    REFUSED(anthropic_to_chat, rows);
}

/* ---- /v1/responses ---- */

#define INPUT(items) "{'input': [" items "]}"
#define SAYS(text)   "{'role': 'user', 'content': '" text "'}"
#define CALLS(name)  "{'type': 'function', 'function': {'name': '" name "', 'arguments': '{}'}}"

static void test_responses_input(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"{'input': 'hi'}", "messages", "[" SAYS("hi") "]"},
        {"{'input': 'hi', 'instructions': 's'}", "messages",
         "[{'role': 'system', 'content': 's'}, " SAYS("hi") "]"},
        {INPUT("{'type': 'message', 'role': 'developer', 'content': [{'type': 'input_text', "
               "'text': 'a'}, 'b', {'type': 'strange'}]}"),
         "messages",
         "[{'role': 'developer', 'content': [{'type': 'input_text', 'text': 'a'}, 'b']}]"},
        /* Reasoning, a message and the calls after it are one turn. */
        {INPUT("{'type': 'reasoning', 'summary': [{'text': 'no'}], 'content': [{'type': "
               "'reasoning_text', 'text': 'hm'}]}, {'type': 'message', 'role': 'assistant', "
               "'content': 'a'}, {'type': 'function_call', 'name': 'f', 'call_id': 'c', "
               "'arguments': '{}'}, {'type': 'function_call', 'name': 'g', 'namespace': 'n', "
               "'arguments': '{}'}, {'type': 'function_call_output', 'call_id': 'c', 'output': "
               "'x'}"),
         "messages",
         "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'hm', 'tool_calls': "
         "[{'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}, 'id': 'c'}, " CALLS(
             "n__g") "]}, {'role': 'tool', 'content': 'x', 'tool_call_id': 'c'}]"},
        /* Who stored no texts sends reasoning's encrypted_content alone; texts beside it win. */
        {INPUT("{'type': 'reasoning', 'summary': [], 'encrypted_content': 'b2Zmc2hvb3Q6aG0='}, "
               "{'role': 'assistant', 'content': 'a'}, {'type': 'reasoning', 'content': [{'text': "
               "'b'}], 'encrypted_content': 'b2Zmc2hvb3Q6aG0='}, {'role': 'assistant', 'content': "
               "'c'}"),
         "messages",
         "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'hm'}, {'role': "
         "'assistant', 'content': 'c', 'reasoning_content': 'b'}]"},
        /* After a tool's output a call is a turn of its own. */
        {INPUT("{'type': 'function_call', 'name': 'f', 'arguments': '{}'}, {'type': "
               "'function_call_output', 'output': 'x'}, {'type': 'reasoning', "
               "'encrypted_content': 'e'}, {'type': 'function_call', 'name': 'g', 'arguments': "
               "'{}'}"),
         "messages",
         "[{'role': 'assistant', 'tool_calls': [" CALLS(
             "f") "]}, {'role': 'tool', 'content': "
                  "'x'}, {'role': 'assistant', 'tool_calls': [" CALLS("g") "]}]"},
        {INPUT("{'type': 'custom_tool_call', 'name': 'p', 'input': 'a b'}, {'type': "
               "'custom_tool_call_output', 'output': [{'type': 'input_text', 'text': 'x'}, "
               "{'type': 'input_image'}]}"),
         "messages",
         "[{'role': 'assistant', 'tool_calls': [{'type': 'function', 'function': {'name': 'p', "
         "'arguments': {'input': 'a b'}}}]}, {'role': 'tool', 'content': 'x[image omitted]'}]"},
        /* Arguments may come as what they stand for, or not at all. */
        {INPUT("{'type': 'function_call', 'name': 'f', 'arguments': {'a': 1}}, {'type': "
               "'function_call', 'name': 'g', 'arguments': null}, {'type': "
               "'function_call_output', 'output': null}"),
         "messages",
         "[{'role': 'assistant', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', "
         "'arguments': {'a': 1}}}, {'type': 'function', 'function': {'name': 'g', 'arguments': "
         "''}}]}, {'role': 'tool', 'content': ''}]"},
        /* Reasoning that nothing of the assistant's follows is dropped. */
        {INPUT("{'type': 'reasoning', 'content': [{'text': 'hm'}]}, " SAYS(
             "a") ", {'role': "
                  "'assistant', 'content': 'b'}"),
         "messages", "[" SAYS("a") ", {'role': 'assistant', 'content': 'b'}]"},
        {INPUT(SAYS("a") ", {'type': 'web_search_call'}, "
                         "{'type': 'ghost_snapshot'}, {'type': 'local_shell_call'}"),
         "messages", "[" SAYS("a") "]"},
    };
    CHECK(responses_to_chat, rows);
}

static void test_responses_fields(void **state)
{
    (void)state;
#define ASKS(text) "{'input': 'hi', " text "}"
    static const Row rows[] = {
        {ASKS("'max_output_tokens': 7"), "max_tokens", "7"},
        {ASKS("'max_output_tokens': 1e30"), "max_tokens", "2147483647"},
        {ASKS("'text': {'format': {'type': 'text'}, 'verbosity': 'low'}"), "response_format",
         "{'type': 'text'}"},
        {ASKS("'text': {'format': {'type': 'json_schema', 'name': 'n', 'schema': {}}}"),
         "response_format",
         "{'type': 'json_schema', 'json_schema': {'type': 'json_schema', 'name': 'n', 'schema': "
         "{}}}"},
        {ASKS("'stop': ['a']"), "stop", "['a']"},
        {ASKS("'n': 2"), "n", "null"},
        {ASKS("'n_predict': 2"), "n_predict", "null"},
        {ASKS("'n_cmpl': 2"), "n_cmpl", "null"},
        {ASKS("'return_progress': true"), "return_progress", "null"},
        {ASKS("'include': ['x', 'message.output_text.logprobs']"), "logprobs", "true"},
        {ASKS("'include': ['message.output_text.logprobs']"), "top_logprobs", "0"},
        {ASKS("'top_logprobs': 2"), "logprobs", "true"},
        {ASKS("'top_logprobs': 2"), "top_logprobs", "2"},
        {ASKS("'top_logprobs': 0, 'include': ['x']"), "logprobs", "null"},
        {ASKS("'logprobs': true"), "logprobs", "null"},
        {ASKS("'reasoning': {'effort': 'none'}"), "reasoning", "{'effort': 'none'}"},
        {ASKS("'tool_choice': 'required'"), "tool_choice", "'required'"},
        {ASKS("'tool_choice': {'type': 'custom', 'name': 'p'}"), "tool_choice",
         "{'type': 'function', 'function': {'name': 'p'}}"},
        {ASKS("'tool_choice': {'type': 'web_search', 'name': 'f'}"), "tool_choice", "{}"},
        {ASKS("'tool_choice': {'type': 'allowed_tools', 'mode': 'auto', 'tools': []}"),
         "tool_choice",
         "{'type': 'allowed_tools', 'allowed_tools': {'type': 'allowed_tools', 'mode': 'auto', "
         "'tools': []}}"},
        {ASKS("'tools': [{'type': 'web_search'}, {'type': 'function', 'name': 'f', 'parameters': "
              "{'type': 'object'}, 'strict': false}, {'type': 'namespace', 'name': 'n', 'tools': "
              "[{'type': 'function', 'name': 'f', 'strict': true}, {'type': 'file_search'}]}, "
              "{'type': 'function', 'name': 'n__f'}]"),
         "tools",
         "[{'type': 'web_search'}, {'type': 'function', 'function': {'name': 'f', 'parameters': "
         "{'type': 'object'}}}, {'type': 'function', 'function': {'name': 'n__f', 'strict': "
         "true}}]"},
        {ASKS("'tools': [{'type': 'custom', 'name': 'p', 'description': 'd', 'format': {'type': "
              "'grammar', 'syntax': 'lark', 'definition': 'start: x'}}]"),
         "tools",
         "[{'type': 'function', 'function': {'name': 'p', 'description': 'd', 'parameters': "
         "{'type': 'object', 'properties': {'input': {'type': 'string', 'description': 'The tool"
         "\\u0027s input, as it is. It has the form of this grammar (lark):\\nstart: x'}}, "
         "'required': ['input']}}}]"},
    };
    CHECK(responses_to_chat, rows);
}

static void test_responses_refused(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"{}", "input", "a string or a list"},
        {"{'input': []}", "input", "a string or a list"},
        {ASKS("'instructions': []"), "instructions", "must be a string"},
        {ASKS("'previous_response_id': 'x'"), "previous_response_id", "not stored"},
        {ASKS("'conversation': 'x'"), "conversation", "not stored"},
        {ASKS("'prompt': {'id': 'x'}"), "prompt", "not stored"},
        {ASKS("'background': true"), "background", "not stored"},
        {ASKS("'top_logprobs': 10000"), "top_logprobs", "must be"},
        {ASKS("'max_output_tokens': 0"), "max_output_tokens", "at least 1"},
        {ASKS("'tools': 7"), "tools", "must be a list"},
        {INPUT("7"), "input[0]", "an object"},
        {INPUT("{'role': 'tool', 'content': 'a'}"), "input[0].role", "must be user"},
        {INPUT("{'role': 'user\\u0000x', 'content': 'a'}"), "input[0].role", "must be user"},
        {INPUT(SAYS("a") ", {'role': 'user'}"), "input[1].content", "a string or a list"},
        {INPUT("{'role': 'user', 'content': [{'type': 'input_image'}]}"), "input[0].content",
         "text only"},
        {INPUT("{'role': 'user', 'content': [{'type': 'input_text'}]}"), "input[0].content",
         "a part without text"},
        {INPUT("{'role': 'assistant', 'content': [{'type': 'refusal', 'text': 'a'}]}"),
         "input[0].content", "a part without text"},
        {INPUT("{'type': 'reasoning', 'content': [{'text': 'hm'}]}"), "input",
         "must hold a message"},
        {ASKS("'text': 'x'"), "text", "must be an object"},
        {INPUT(SAYS("a") ", {'type': 'item_reference', 'id': 'x'}"), "input[1]", "not stored"},
        {INPUT("{'id': 'x'}, " SAYS("a")), "input[0]", "not stored"},
        {INPUT("{'type': 'function_call'}"), "input[0].name", "must be a string"},
        {INPUT("{'type': 'function_call', 'name': 'f', 'arguments': [1]}"), "input[0].arguments",
         "must be a string"},
        {INPUT("{'type': 'custom_tool_call', 'name': 'f', 'input': {}}"), "input[0].input",
         "must be a string"},
        {INPUT(SAYS("a") ", {'type': 'function_call_output', 'output': {'a': 1}}"),
         "input[1].output", "a string or a list"},
        {INPUT("{'type': 'custom_tool_call', 'input': 'a'}"), "input[0].name", "a string"},
    };
    REFUSED(responses_to_chat, rows);
}

/* What the chat's reader does not like is told by the names that the client knows. */
static void test_renamed(void **state)
{
    (void)state;
    static const ApiFieldName names[] = {
        {"a.b", "x"},    {"a", "thing"}, {"stop", "stop_sequences"},
        {".in.q", ".p"}, {".in", ""},    {NULL, NULL}};
    static const struct {
        const char *param, *text, *new_param, *new_text;
    } rows[] = {
        {"a", "a is wrong", "thing", "thing is wrong"},
        {"a[3].b", "a[3].b is wrong", "thing[3].b", "thing[3].b is wrong"},
        {"a.b", "a.b.c: wrong", "x", "x.c: wrong"},
        {"ab", "this a is wrong", "ab", "this a is wrong"},
        {"t[1].in.q", "t[1].in.q.x: wrong", "t[1].p", "t[1].p.x: wrong"},
        {"t[1].in.r", "t[1].in.r is wrong", "t[1].r", "t[1].r is wrong"},
        {"t[1].inner", "it is not t.in", "t[1].inner", "it is not t.in"},
        {"stop_token_ids", "stop takes", "stop_token_ids", "stop_sequences takes"},
        {"", "", "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ApiError err = {0};
        api_error(&err, ERR_INPUT, rows[i].param, "%s", rows[i].text);
        api_rename(&err, names);
        assert_string_equal(err.param, rows[i].new_param);
        assert_string_equal(err.error.msg, rows[i].new_text);
    }
}

/* A call's name leads back to what was declared; of two tools with one name to the first. */
static void test_responses_find_tool(void **state)
{
    (void)state;
    json_t *body = parse("{'tools': [{'type': 'namespace', 'name': 'mcp__x__', 'tools': [{'type': "
                         "'function', 'name': 'f'}]}, {'type': 'web_search', 'name': 'w'}, "
                         "{'type': 'custom', 'name': 'p'}, {'type': 'function', 'name': 'p'}]}");
    ResponsesTool tool;
    assert_true(responses_find_tool(body, "mcp__x__f", &tool));
    assert_string_equal(tool.name, "f");
    assert_string_equal(tool.ns, "mcp__x__");
    assert_false(tool.is_custom);
    assert_true(responses_find_tool(body, "p", &tool));
    assert_true(tool.is_custom && !tool.ns);
    assert_false(responses_find_tool(body, "w", &tool));
    assert_false(responses_find_tool(body, "f", &tool));
    json_decref(body);
}

/* However the arguments are cut, the same input comes out: that of JSON as it is meant. */
static void test_custom_input(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{\"input\": \"a b\"}", "a b"},
        {" {  \"input\" :\n\"\"} ", ""},
        {"{\"input\": \"*** Begin\\n+\\t\\\"x\\\"\\\\n \\/ \\u00e9\\u20AC\\ud83d\\ude00 "
         "\303\251\"}",
         "*** Begin\n+\t\"x\"\\n / \303\251\342\202\254\360\237\230\200 \303\251"},
        {"{\"input\": \"\\ud83d \\ude00\\ud83d\\n\"}", "\357\277\275 \357\277\275\357\277\275\n"},
        {"{\"input\": \"a\", \"x\": \"b\"}", "a"},
        {"{\"x\": 1, \"input\": \"a\"}", "a"}, /* not first: known at the end */
        {"{\"inputs\": \"a\"}", "{\"inputs\": \"a\"}"},
        {"{}", "{}"},
        {"{\"input\": \"cut o", "cut o"},
        {"{\"input\": ", ""}, /* cut before it begins */
        {"{\"input\": 7}", "{\"input\": 7}"},
    };
    CustomInput c = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t len = strlen(rows[i][0]);
        for (size_t cut = 0; cut <= len; cut++) {
            StrBuf all = {0};
            strbuf_puts(&all, rows[i][0]);
            custom_input_begin(&c);
            custom_input_add(&c, rows[i][0], cut);
            custom_input_add(&c, rows[i][0] + cut, len - cut);
            custom_input_end(&c, &all);
            assert_string_equal(strbuf_str(&c.text), rows[i][1]);
            strbuf_free(&all);
        }
    }
    custom_input_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_anthropic_messages),
        cmocka_unit_test(test_anthropic_fields),
        cmocka_unit_test(test_anthropic_refused),
        cmocka_unit_test(test_responses_input),
        cmocka_unit_test(test_responses_fields),
        cmocka_unit_test(test_responses_refused),
        cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_responses_find_tool),
        cmocka_unit_test(test_custom_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
