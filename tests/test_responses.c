/*
 * test_responses.c: /v1/responses and input_tokens over real sockets, on the demonstration model:
 * replies, the order and the numbers of events, tools of all kinds, what clients get wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "tests/analyzer.h"
#include "tests/served.h"

#define RESPONSES "/v1/responses"
#define COUNT     "/v1/responses/input_tokens"
#define CHAT      "/v1/chat/completions"

#define HELLO "\"input\": \"Hello, who are you?\", \"temperature\": 0"
#define OFF   "\"reasoning\": {\"effort\": \"none\"}"

static json_t *tools; /* of the demonstration model, as this API declares them */

static json_t *load_tools(void)
{
    json_t *list = json_load_file("models/demo/tools.json", 0, NULL), *tool, *out = json_array();
    size_t i;
    assert_non_null(list);
    json_array_foreach(list, i, tool)
    {
        json_t *flat = json_copy(json_object_get(tool, "function"));
        json_object_set_new(flat, "type", json_string("function"));
        json_array_append_new(out, flat);
    }
    json_decref(list);
    return out;
}

static int setup(void **state)
{
    tools = load_tools();
    return served_open(state);
}

static int teardown(void **state)
{
    json_decref(tools);
    return served_close(state);
}

/* A greedy question that the model answers by a call; tools: the reference is taken. */
static char *question(json_t *with_tools, const char *fields)
{
    return served_body(json_pack("{s:s, s:i, s:o, s:{s:s}}", "input",
                                 "I want to find an Italian restaurant in San Jose", "temperature",
                                 0, "tools", with_tools, "reasoning", "effort", "none"),
                       fields);
}

static json_t *ask(json_t *with_tools, const char *fields)
{
    char *body = question(with_tools, fields);
    json_t *reply = served_post(served, RESPONSES, body, 200);
    free(body);
    return reply;
}

static void check_numbers(const json_t *events)
{
    json_t *event;
    size_t i;
    json_array_foreach(events, i, event)
    {
        assert_int_equal(served_int_at(event, "sequence_number"), i);
    }
}

static json_t *ask_stream(json_t *with_tools, const char *fields)
{
    char with_stream[400];
    snprintf(with_stream, sizeof with_stream, "\"stream\": true, %s", fields);
    char *body = question(with_tools, with_stream);
    json_t *events = served_named_events(served, RESPONSES, body);
    free(body);
    check_numbers(events);
    return events;
}

static const char *type_at(const json_t *events, size_t i)
{
    return served_text_at(json_array_get(events, i), "type");
}

/* Values that differ from one request to the next. */
static void forget(json_t *response)
{
    static const char *const keys[] = {"id",    "created_at", "completed_at", "metrics",
                                       "usage", "timings",    "output",       "request_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_del(response, keys[i]);
}

/* ---- texts ---- */

static void test_text(void **state)
{
    (void)state;
    json_t *reply = served_post(served, RESPONSES, "{" HELLO ", " OFF "}", 200);
    json_t *chat = served_post(served, CHAT,
                               "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello, who "
                               "are you?\"}], \"temperature\": 0, \"enable_thinking\": false}",
                               200);
    json_t *count = served_post(served, COUNT, "{" HELLO ", " OFF "}", 200);
    assert_memory_equal(served_text_at(reply, "id"), "resp_", 5);
    assert_int_equal(json_array_size(json_object_get(reply, "output")), 1);
    const json_t *item = served_at(reply, "output.0");
    assert_memory_equal(served_text_at(item, "id"), "msg_", 4);
    assert_string_equal(served_text_at(item, "type"), "message");
    assert_string_equal(served_text_at(item, "status"), "completed");
    assert_string_equal(served_text_at(item, "role"), "assistant");
    assert_string_equal(served_text_at(item, "content.0.type"), "output_text");
    assert_string_equal(served_text_at(item, "content.0.text"),
                        served_text_at(chat, "choices.0.message.content"));
    assert_int_equal(served_int_at(reply, "usage.input_tokens"),
                     served_int_at(chat, "usage.prompt_tokens"));
    assert_int_equal(served_int_at(reply, "usage.output_tokens"),
                     served_int_at(chat, "usage.completion_tokens"));
    assert_int_equal(served_int_at(reply, "usage.total_tokens"),
                     served_int_at(chat, "usage.total_tokens"));
    assert_int_equal(served_int_at(reply, "usage.input_tokens_details.cached_tokens"), 0);
    assert_int_equal(served_int_at(reply, "usage.output_tokens_details.reasoning_tokens"), 0);
    assert_int_equal(served_int_at(count, "input_tokens"),
                     served_int_at(reply, "usage.input_tokens"));
    assert_int_equal(served_int_at(reply, "usage.input_tokens_details.cache_write_tokens"), 0);
    assert_true(served_int_at(reply, "completed_at") >= served_int_at(reply, "created_at"));
    assert_string_equal(served_text_at(count, "object"), "response.input_tokens");
    json_decref(count);
    json_decref(chat);
    json_decref(reply);
}

/* The fields that a response has, and what of the request they repeat. */
static void test_response_object(void **state)
{
    (void)state;
    json_t *reply =
        served_post(served, "/responses",
                    "{" HELLO ", " OFF
                    ", \"metadata\": {\"a\": \"b\", \"c\": 123456.7891234}, \"instructions\": \"Be "
                    "short.\", \"max_output_tokens\": 1, \"top_p\": 0.9, \"model\": \"m\"}",
                    200);
    json_t *want = json_loads(
        "{\"object\": \"response\", \"status\": \"incomplete\", \"background\": false, \"error\": "
        "null, \"incomplete_details\": {\"reason\": \"max_output_tokens\"}, \"instructions\": "
        "\"Be short.\", \"max_output_tokens\": 1, \"model\": \"m\", \"parallel_tool_calls\": true, "
        "\"previous_response_id\": null, \"reasoning\": {\"effort\": \"none\", \"summary\": null}, "
        "\"store\": false, \"temperature\": 0.0, \"text\": {\"format\": {\"type\": \"text\"}}, "
        "\"tool_choice\": \"auto\", \"tools\": [], \"top_logprobs\": 0, \"top_p\": 0.9, "
        "\"truncation\": \"disabled\", \"metadata\": {\"a\": \"b\", \"c\": 123456.7891234}}",
        0, NULL);
    assert_non_null(want);
    assert_int_equal(served_int_at(reply, "usage.output_tokens"), 1);
    assert_string_equal(served_text_at(reply, "output.0.status"), "incomplete");
    assert_null(json_object_get(reply, "completed_at"));
    forget(reply);
    json_object_set_new(reply, "temperature",
                        json_real(json_number_value(served_at(reply, "temperature"))));
    if (!json_equal(reply, want)) fail_msg("%s", json_dumps(reply, 0));
    json_decref(want);
    json_decref(reply);
}

/* Every event of a text, in order; the last one holds what a whole reply would. */
static void test_text_stream(void **state)
{
    (void)state;
    json_t *whole = served_post(served, RESPONSES, "{" HELLO ", " OFF "}", 200);
    json_t *events =
        served_named_events(served, RESPONSES, "{" HELLO ", " OFF ", \"stream\": true}");
    static const char *const head[] = {"response.created", "response.in_progress",
                                       "response.output_item.added", "response.content_part.added"};
    static const char *const tail[] = {"response.output_text.done", "response.content_part.done",
                                       "response.output_item.done", "response.completed"};
    size_t n = json_array_size(events);
    StrBuf text = {0};
    check_numbers(events);
    for (size_t i = 0; i < n; i++) {
        const json_t *event = json_array_get(events, i);
        const char *want = i < 4        ? head[i]
                           : i + 4 >= n ? tail[i + 4 - n]
                                        : "response.output_text.delta";
        assert_string_equal(type_at(events, i), want);
        if (i >= 4 && i + 4 < n) strbuf_puts(&text, served_text_at(event, "delta"));
        if (i < 3 || i + 2 >= n) continue;
        assert_string_equal(served_text_at(event, "item_id"), served_text_at(events, "2.item.id"));
        assert_int_equal(served_int_at(event, "output_index"), 0);
        assert_int_equal(served_int_at(event, "content_index"), 0);
        assert_int_equal(json_is_array(json_object_get(event, "logprobs")), i > 3 && i + 3 < n);
        assert_null(json_object_get(event, "name"));
    }
    const char *said = served_text_at(whole, "output.0.content.0.text");
    assert_string_equal(strbuf_str(&text), said);
    assert_string_equal(served_text_at(json_array_get(events, n - 4), "text"), said);
    assert_string_equal(served_text_at(json_array_get(events, n - 3), "part.text"), said);
    json_t *last = json_object_get(json_array_get(events, n - 1), "response");
    const json_t *done = served_at(json_array_get(events, n - 2), "item");
    assert_true(json_equal((json_t *)served_at(last, "output.0"), (json_t *)done));
    assert_string_equal(served_text_at(done, "content.0.text"), said);
    assert_string_equal(served_text_at(last, "id"), served_text_at(events, "0.response.id"));
    assert_int_equal(served_int_at(last, "usage.output_tokens"),
                     served_int_at(whole, "usage.output_tokens"));
    assert_true(json_is_null(served_at(events, "0.response.usage")));
    forget(last);
    forget(whole);
    assert_true(json_equal(last, whole));
    strbuf_free(&text);
    json_decref(events);
    json_decref(whole);
}

/* A greedy text's tokens, each the likeliest of two, join to it. */
static void check_scored(const json_t *part)
{
    json_t *one;
    size_t i;
    StrBuf text = {0};
    json_array_foreach(json_object_get(part, "logprobs"), i, one)
    {
        const json_t *best = served_at(one, "top_logprobs.0");
        strbuf_puts(&text, served_text_at(one, "token"));
        assert_string_equal(served_text_at(best, "token"), served_text_at(one, "token"));
        assert_int_equal(json_array_size(served_at(one, "top_logprobs")), 2);
    }
    assert_string_equal(strbuf_str(&text), served_text_at(part, "text"));
    strbuf_free(&text);
}

/* What the events of a stream's only text say of its tokens, in the end and bit by bit. */
static void check_scored_stream(const char *body, const json_t *want)
{
    json_t *events = served_named_events(served, RESPONSES, body), *event, *told = json_array();
    size_t i;
    json_array_foreach(events, i, event)
    {
        const char *type = served_text_at(event, "type");
        json_t *some = json_object_get(event, "logprobs");
        if (!strcmp(type, "response.output_text.delta")) json_array_extend(told, some);
        if (!strcmp(type, "response.output_text.done")) assert_true(json_equal(some, want));
    }
    const json_t *output = served_at(json_array_get(events, i - 1), "response.output");
    const json_t *last = json_array_get(output, json_array_size(output) - 1);
    assert_true(json_equal(told, want));
    assert_true(json_equal(served_at(last, "content.0.logprobs"), want));
    json_decref(told);
    json_decref(events);
}

static void test_logprobs(void **state)
{
    (void)state;
#define SCORED HELLO ", \"include\": [\"message.output_text.logprobs\"], \"top_logprobs\": 2, "
#define BRIEF  "\"reasoning\": {\"effort\": \"low\"}, \"thinking_budget\": 7"
    json_t *plain = served_post(served, RESPONSES, "{" SCORED OFF "}", 200);
    json_t *thinks = served_post(served, RESPONSES, "{" SCORED BRIEF "}", 200);
    json_t *held = served_post(served, RESPONSES, "{" SCORED OFF ", \"stop\": [\"day.x\"]}", 200);
    json_t *calls = ask(json_incref(tools), "\"top_logprobs\": 2, ");
    json_t *chat = served_post(served, CHAT,
                               "{\"messages\": [{\"role\": \"user\", \"content\": "
                               "\"Hello, who are you?\"}], \"temperature\": 0, \"logprobs\": "
                               "true, \"top_logprobs\": 2, \"enable_thinking\": false}",
                               200);
    check_scored(served_at(plain, "output.0.content.0"));
    check_scored(served_at(thinks, "output.1.content.0"));
    assert_true(json_equal(served_at(plain, "output.0.content.0.logprobs"),
                           served_at(chat, "choices.0.logprobs.content")));
    assert_null(json_object_get(served_at(calls, "output.0"), "logprobs"));
    assert_true(json_equal(served_at(held, "output.0.content.0.logprobs"),
                           served_at(plain, "output.0.content.0.logprobs")));
    check_scored_stream("{" SCORED OFF ", \"stream\": true}",
                        served_at(plain, "output.0.content.0.logprobs"));
    check_scored_stream("{" SCORED BRIEF ", \"stream\": true}",
                        served_at(thinks, "output.1.content.0.logprobs"));
    json_decref(plain);
    json_decref(thinks);
    json_decref(held);
    json_decref(calls);
    json_decref(chat);
}

/* A stream keeps them to its end: fewer than a whole reply may have. */
static void test_too_many_logprobs(void **state)
{
    (void)state;
#define MANY(n) "{" HELLO ", " OFF ", \"top_logprobs\": 20, \"max_output_tokens\": " #n
    json_t *reply = served_post(served, RESPONSES, MANY(3121) ", \"stream\": true}", 400);
    const char *message = served_text_at(reply, "error.message");
    assert_non_null(strstr(message, "65541 log-probabilities of answers are more than 65536"));
    assert_null(strstr(message, "for a stream"));
    json_decref(reply);
    json_decref(served_named_events(served, RESPONSES, MANY(3120) ", \"stream\": true}"));
    json_decref(served_post(served, RESPONSES, MANY(3121) "}", 200));
#undef MANY
}

static void test_reasoning(void **state)
{
    (void)state;
#define THINKS "{" HELLO ", \"reasoning\": {\"effort\": \"low\"}, \"thinking_budget\": 7"
    json_t *whole = served_post(served, RESPONSES, THINKS ", \"include\": [\"x\"]}", 200);
    json_t *events = served_named_events(served, RESPONSES, THINKS ", \"stream\": true}"), *event;
    const json_t *item = served_at(whole, "output.0");
    StrBuf text = {0}, said = {0};
    size_t i;
    check_numbers(events);
    assert_memory_equal(served_text_at(item, "id"), "rs_", 3);
    assert_string_equal(served_text_at(item, "type"), "reasoning");
    assert_int_equal(json_array_size(json_object_get(item, "summary")), 0);
    assert_true(json_is_null(json_object_get(item, "encrypted_content")));
    assert_string_equal(served_text_at(item, "content.0.type"), "reasoning_text");
    assert_string_equal(served_text_at(item, "status"), "completed");
    assert_string_equal(served_text_at(whole, "output.1.type"), "message");
    assert_int_equal(served_int_at(whole, "usage.output_tokens_details.reasoning_tokens"), 9);
    json_array_foreach(events, i, event)
    {
        const char *type = served_text_at(event, "type");
        if (!strcmp(type, "response.reasoning_text.delta")) {
            assert_int_equal(served_int_at(event, "content_index"), 0);
            assert_int_equal(served_int_at(event, "output_index"), 0);
            assert_null(json_object_get(event, "logprobs"));
            strbuf_puts(&text, served_text_at(event, "delta"));
        } else if (!strcmp(type, "response.output_text.delta")) {
            assert_int_equal(served_int_at(event, "output_index"), 1);
            strbuf_puts(&said, served_text_at(event, "delta"));
        }
    }
    assert_string_equal(strbuf_str(&text), served_text_at(item, "content.0.text"));
    assert_string_equal(strbuf_str(&said), served_text_at(whole, "output.1.content.0.text"));
    strbuf_free(&text);
    strbuf_free(&said);
    json_decref(events);
    json_decref(whole);
}

static long count_input(const json_t *body)
{
    char *text = json_dumps(body, 0);
    json_t *count = served_post(served, COUNT, text, 200);
    long n = served_int_at(count, "input_tokens");
    free(text);
    json_decref(count);
    return n;
}

/* What a client that stores no texts sends back leads to the same prompt as the text does. */
static void test_encrypted_reasoning(void **state)
{
    (void)state;
#define ASKS THINKS ", \"include\": [\"x\", \"reasoning.encrypted_content\"]"
    json_t *whole = served_post(served, RESPONSES, ASKS "}", 200);
    json_t *events = served_named_events(served, RESPONSES, ASKS ", \"stream\": true}");
    HttpReply again = http_exchange(served->port, "POST", RESPONSES, "", ASKS "}");
    const char *sealed = served_text_at(whole, "output.0.encrypted_content");
    const json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(served_text_at(last, "response.output.0.encrypted_content"), sealed);
    assert_true(json_is_null(served_at(events, "2.item.encrypted_content")));
    assert_string_equal(http_header(&again, "X-Reasoning-Included"), "true");

    json_t *item = json_pack("{s:s, s:s}", "type", "reasoning", "encrypted_content", sealed);
    json_t *body = json_pack("{s:[{s:s, s:s}, O, {s:s, s:s}]}", "input", "role", "user", "content",
                             "a", item, "role", "assistant", "content", "b");
    long with = count_input(body);
    json_object_del(item, "encrypted_content");
    long without = count_input(body);
    json_object_set(item, "content", json_object_get(served_at(whole, "output.0"), "content"));
    assert_int_equal(with, count_input(body));
    assert_true(with > without);
    http_reply_free(&again);
    json_decref(item);
    json_decref(body);
    json_decref(events);
    json_decref(whole);
}

/* ---- tools ---- */

static void assert_arguments(const char *text)
{
    json_t *arguments = json_loads(text, 0, NULL);
    assert_string_equal(served_text_at(arguments, "city"), "San Jose");
    assert_string_equal(served_text_at(arguments, "cuisine"), "Italian");
    assert_int_equal(json_object_size(arguments), 2);
    json_decref(arguments);
}

static void test_call(void **state)
{
    (void)state;
    json_t *whole = ask(json_incref(tools), ""), *events = ask_stream(json_incref(tools), "");
    const json_t *item = served_at(whole, "output.0");
    size_t n = json_array_size(events);
    StrBuf text = {0};
    assert_int_equal(json_array_size(json_object_get(whole, "output")), 1);
    assert_string_equal(served_text_at(whole, "status"), "completed");
    assert_memory_equal(served_text_at(item, "id"), "fc_", 3);
    assert_memory_equal(served_text_at(item, "call_id"), "call_", 5);
    assert_string_equal(served_text_at(item, "type"), "function_call");
    assert_string_equal(served_text_at(item, "name"), "FindRestaurants");
    assert_null(json_object_get(item, "namespace"));
    assert_arguments(served_text_at(item, "arguments"));

    assert_string_equal(type_at(events, 2), "response.output_item.added");
    assert_string_equal(served_text_at(events, "2.item.arguments"), "");
    assert_string_equal(served_text_at(events, "2.item.status"), "in_progress");
    for (size_t i = 3; i + 3 < n; i++) {
        assert_string_equal(type_at(events, i), "response.function_call_arguments.delta");
        assert_null(json_object_get(json_array_get(events, i), "logprobs"));
        strbuf_puts(&text, served_text_at(json_array_get(events, i), "delta"));
    }
    assert_true(n > 3 + 3 + 2); /* as they come */
    const json_t *done = json_array_get(events, n - 3);
    assert_string_equal(served_text_at(done, "type"), "response.function_call_arguments.done");
    assert_string_equal(served_text_at(done, "name"), "FindRestaurants");
    assert_string_equal(served_text_at(done, "arguments"), strbuf_str(&text));
    assert_arguments(strbuf_str(&text));
    assert_string_equal(served_text_at(json_array_get(events, n - 2), "item.call_id"),
                        served_text_at(events, "2.item.call_id"));
    strbuf_free(&text);
    json_decref(events);
    json_decref(whole);

    json_t *of_space =
        json_pack("[{s:s, s:s, s:O}]", "type", "namespace", "name", "space", "tools", tools);
    whole = ask(of_space, "\"tool_choice\": \"required\", ");
    assert_string_equal(served_text_at(whole, "output.0.namespace"), "space");
    assert_string_equal(served_text_at(whole, "output.0.name"), "FindRestaurants");
    json_decref(whole);
}

static void test_cut_call(void **state)
{
    (void)state;
    json_t *events = ask_stream(json_incref(tools), "\"max_output_tokens\": 14, ");
    size_t n = json_array_size(events);
    assert_string_equal(type_at(events, n - 1), "response.incomplete");
    assert_string_equal(served_text_at(json_array_get(events, n - 2), "item.status"), "incomplete");
    json_decref(events);
}

/* The same tool as one that takes a text; beside it what runs elsewhere. */
static json_t *custom_tools(const char *name)
{
    json_t *tool = json_copy(json_array_get(tools, 0));
    json_object_set_new(tool, "name", json_string(name));
    json_object_set_new(tool, "type", json_string("custom"));
    json_object_del(tool, "parameters");
    return json_pack("[{s:s}, o]", "type", "web_search", tool);
}

/*
 * A custom tool's call as the client gets it; the number of pieces in which its input came. By
 * itself the model calls it as the function that it was taught: whatever it wrote is the input,
 * which holds that text. Forced, it keeps to the one parameter.
 */
static int check_custom_tool(const char *name, const char *fields, const char *holds)
{
    json_t *whole = ask(custom_tools(name), fields);
    json_t *events = ask_stream(custom_tools(name), fields), *event;
    const json_t *item = served_at(whole, "output.0");
    StrBuf text = {0};
    size_t i;
    int n_pieces = 0;
    assert_string_equal(served_text_at(item, "type"), "custom_tool_call");
    assert_memory_equal(served_text_at(item, "id"), "ctc_", 4);
    assert_string_equal(served_text_at(item, "name"), name);
    assert_int_equal(served_text_at(item, "input")[0] == '{', holds != NULL);
    if (holds) assert_non_null(strstr(served_text_at(item, "input"), holds));
    json_array_foreach(events, i, event)
    {
        const char *type = served_text_at(event, "type");
        assert_null(strstr(type, "arguments"));
        if (!strcmp(type, "response.custom_tool_call_input.delta")) {
            strbuf_puts(&text, served_text_at(event, "delta"));
            n_pieces++;
            assert_null(json_object_get(event, "logprobs"));
        }
        if (!strcmp(type, "response.custom_tool_call_input.done"))
            assert_string_equal(served_text_at(event, "input"), strbuf_str(&text));
    }
    assert_string_equal(strbuf_str(&text), served_text_at(item, "input"));
    strbuf_free(&text);
    json_decref(events);
    json_decref(whole);
    return n_pieces;
}

static void test_custom_tool(void **state)
{
    (void)state;
    assert_int_equal(check_custom_tool("FindRestaurants", "", "Italian"), 1);
    /* An input comes as it is known to be one: hot answers say, sooner or later, more than what one
     * step gives or a busy machine sends at once. */
    int n_pieces = 0;
    for (int seed = 1; seed <= 20 && n_pieces < 2; seed++) {
        char fields[200];
        snprintf(fields, sizeof fields,
                 "\"tool_choice\": {\"type\": \"custom\", \"name\": \"Notes\"}, "
                 "\"temperature\": 1.6, \"top_p\": 1, \"top_k\": 0, \"seed\": %d, ",
                 seed);
        n_pieces = check_custom_tool("Notes", fields, NULL);
    }
    assert_in_range(n_pieces, 2, 1000);
    static const int cuts[] = {12, 17}; /* before the input, within it */
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char fields[200];
        snprintf(fields, sizeof fields,
                 "\"tool_choice\": {\"type\": \"custom\", \"name\": \"Notes\"}, "
                 "\"temperature\": 1.6, \"seed\": 3, \"max_output_tokens\": %d, ",
                 cuts[i]);
        assert_int_equal(check_custom_tool("Notes", fields, NULL), i);
    }
}

static void test_format(void **state)
{
    (void)state;
    json_t *reply = served_post(served, RESPONSES,
                                "{" HELLO ", " OFF ", \"text\": {\"format\": {\"type\": "
                                "\"json_schema\", \"name\": \"n\", \"strict\": true, \"schema\": "
                                "{\"type\": \"object\", \"properties\": {\"n\": {\"type\": "
                                "\"integer\"}}, \"required\": [\"n\"], \"additionalProperties\": "
                                "false}}}}",
                                200);
    json_t *answer = json_loads(served_text_at(reply, "output.0.content.0.text"), 0, NULL);
    assert_true(json_is_integer(json_object_get(answer, "n")));
    assert_string_equal(served_text_at(reply, "text.format.name"), "n");
    json_decref(answer);
    json_decref(reply);
}

/* Items of a first reply go back as they came, with what the tool found. */
static void test_history(void **state)
{
    (void)state;
    json_t *reply = ask(json_incref(tools), "");
    json_t *input =
        json_pack("[{s:s, s:s}, O, {s:s, s:O, s:s}]", "role", "user", "content",
                  "I want to find an Italian restaurant in San Jose", served_at(reply, "output.0"),
                  "type", "function_call_output", "call_id", served_at(reply, "output.0.call_id"),
                  "output", "[{\"city\": \"San Jose\", \"restaurant_name\": \"Bella Roma\"}]");
    json_t *body = json_pack("{s:o, s:O, s:i, s:i}", "input", input, "tools", tools,
                             "max_output_tokens", 60, "temperature", 0);
    char *text = json_dumps(body, 0);
    json_t *next = served_post(served, RESPONSES, text, 200);
    assert_true(json_array_size(json_object_get(next, "output")) > 0);
    json_decref(next);
    free(text);
    json_decref(body);
    json_decref(reply);
}

/* ---- what goes wrong ---- */

#define ENDLESS "{" HELLO ", \"ignore_eos\": true, \"stream\": %s}"

static void test_vanished(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char body[300];
        snprintf(body, sizeof body, ENDLESS, i ? "false" : "true");
        served_leave(served, RESPONSES, body, !i);
    }
}

static void test_broken_model(void **state)
{
    (void)state;
    served_break_model(1);
    Served *s = served_start(NULL);
    json_t *events = served_named_events(s, RESPONSES, "{" HELLO ", \"stream\": true}");
    size_t n = json_array_size(events);
    const json_t *last = json_array_get(events, n - 1);
    check_numbers(events);
    assert_string_equal(served_text_at(last, "type"), "response.failed");
    assert_string_equal(served_text_at(last, "response.status"), "failed");
    assert_string_equal(served_text_at(last, "response.error.code"), "server_error");
    json_decref(events);
    json_decref(served_post(s, RESPONSES, "{" HELLO "}", 500));
    assert_int_equal(served_stop(s), 0);
    served_break_model(0);
}

/* What would be said again with each response, or be walked through at each call, has bounds. */
static void test_bounds(void **state)
{
    (void)state;
    static const char *const fields[] = {"\"metadata\": {\"a\": [", /* 3 MiB of it */
                                         "\"tools\": [{\"type\": \"namespace\", \"tools\": ["};
    static const char *const params[] = {"", "tools"}, *const ends[] = {"1]}}", "1]}]}"};
    static const int n_values[] = {3 << 19, 4 * 512};
    for (int k = 0; k < 2; k++) {
        StrBuf body = {0};
        strbuf_printf(&body, "{" HELLO ", \"stream\": true, %s", fields[k]);
        for (int i = 0; i < n_values[k]; i++)
            strbuf_puts(&body, "1,");
        strbuf_puts(&body, ends[k]);
        json_t *reply = served_post(served, RESPONSES, body.data, 400);
        assert_non_null(strstr(served_text_at(reply, "error.message"), k ? "2048" : "2097152"));
        const json_t *param = served_at(reply, "error.param");
        assert_string_equal(json_is_string(param) ? json_string_value(param) : "", params[k]);
        json_decref(reply);
        strbuf_free(&body);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{}", "input"},
        {"{" HELLO ", \"previous_response_id\": \"resp_1\"}", "previous_response_id"},
        {"{" HELLO ", \"max_output_tokens\": 0}", "max_output_tokens"},
        {"{" HELLO ", \"top_p\": 7}", "top_p"},
        {"{" HELLO ", \"text\": \"x\"}", "text"},
        {"{" HELLO ", \"text\": {\"format\": \"json\"}}", "text.format"},
        {"{" HELLO ", \"text\": {\"format\": {\"type\": \"foo\"}}}", "text.format"},
        {"{" HELLO
         ", \"text\": {\"format\": {\"type\": \"json_schema\", \"strict\": true, \"schema\": "
         "{\"not\": {}}}}}",
         "text.format"},
        {"{\"input\": [{\"type\": \"reasoning\", \"summary\": []}]}", "input"},
        {"{\"input\": [{\"role\": \"system\", \"content\": \"a\"}]}", "input"},
        {"{" HELLO ", \"tool_choice\": {\"type\": \"function\", \"name\": \"f\"}}", "tool_choice"},
        {"{" HELLO ", \"tool_choice\": {}}", "tool_choice"},
        {"{" HELLO ", \"tool_choice\": {\"type\": \"x\"}}", "tool_choice"},
        {"{" HELLO ", \"tool_choice\": {\"type\": \"web_search\"}}", "tool_choice"},
        {"{" HELLO ", \"truncation\": \"left\"}", "truncation"},
        {"{" HELLO ", \"top_logprobs\": 10000}", "top_logprobs"},
        {"{" HELLO ", \"stream\": true, \"max_output_tokens\": 4000, \"top_logprobs\": 20}",
         "top_logprobs"},
        {"{" HELLO ", \"tools\": [{\"type\": \"function\"}]}", "tools[0].name"},
        {"{" HELLO ", \"tools\": [{\"type\": \"function\", \"name\": \"f\", \"parameters\": 1}]}",
         "tools[0].parameters"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *reply = served_post(served, RESPONSES, rows[i][0], 400);
        assert_string_equal(served_text_at(reply, "error.type"), "invalid_request_error");
        assert_string_equal(served_text_at(reply, "error.param"), rows[i][1]);
        assert_null(strstr(served_text_at(reply, "error.message"), "response_format"));
        json_decref(reply);
    }
    HttpReply r = http_exchange(served->port, "GET", RESPONSES "/resp_1", "", "");
    assert_int_equal(r.status, 404);
    http_reply_free(&r);
    StrBuf body = {0};
    strbuf_puts(&body, "{\"stream\": true, \"input\": \"");
    for (int i = 0; i < 40000; i++)
        strbuf_puts(&body, "a b ");
    strbuf_puts(&body, "\"}");
    json_t *reply = served_post(served, RESPONSES, body.data, 400);
    assert_string_equal(served_text_at(reply, "error.code"), "context_length_exceeded");
    assert_string_equal(served_text_at(reply, "error.param"), "input");
    json_decref(reply);
    strbuf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_response_object),
        cmocka_unit_test(test_text_stream),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_too_many_logprobs),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_encrypted_reasoning),
        cmocka_unit_test(test_call),
        cmocka_unit_test(test_cut_call),
        cmocka_unit_test(test_custom_tool),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_vanished),
        cmocka_unit_test(test_broken_model),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
