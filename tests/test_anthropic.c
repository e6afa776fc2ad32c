/*
 * test_anthropic.c: /v1/messages and count_tokens over real sockets, on the demonstration model:
 * replies, streams, tools, thinking, what clients get wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "tests/analyzer.h"
#include "tests/served.h"

#define MESSAGES "/v1/messages"
#define COUNT    "/v1/messages/count_tokens"
#define CHAT     "/v1/chat/completions"

#define HELLO "\"messages\": [{\"role\": \"user\", \"content\": \"Hello, who are you?\"}]"

static json_t *tools; /* of the demonstration model, as this API declares them */

static json_t *load_tools(void)
{
    json_t *list = json_load_file("models/demo/tools.json", 0, NULL), *tool, *out = json_array();
    size_t i;
    assert_non_null(list);
    json_array_foreach(list, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        json_array_append_new(out, json_pack("{s:O, s:O, s:O}", "name", json_object_get(f, "name"),
                                             "description", json_object_get(f, "description"),
                                             "input_schema", json_object_get(f, "parameters")));
    }
    json_decref(list);
    return out;
}

static int setup(void **state)
{
    ServedOptions o = served_defaults();
    (void)state;
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_FLOP, .alpha = -1, .keep_answers = 1};
    tools = load_tools();
    return served_open_with(&o);
}

static int teardown(void **state)
{
    json_decref(tools);
    return served_close(state);
}

/* A greedy question that the model answers by a call, with more fields (JSON without braces). */
static char *question(const char *fields)
{
    return served_body(json_pack("{s:[{s:s, s:s}], s:i, s:i, s:O}", "messages", "role", "user",
                                 "content", "I want to find an Italian restaurant in San Jose",
                                 "temperature", 0, "max_tokens", 200, "tools", tools),
                       fields);
}

static json_t *ask(const char *fields)
{
    char *body = question(fields);
    json_t *reply = served_post(served, MESSAGES, body, 200);
    free(body);
    return reply;
}

static json_t *ask_stream(const char *fields)
{
    char with_stream[400];
    snprintf(with_stream, sizeof with_stream, "\"stream\": true, %s", fields);
    char *body = question(with_stream);
    json_t *events = served_named_events(served, MESSAGES, body);
    free(body);
    return events;
}

static long n_prompt(const json_t *usage)
{
    assert_int_equal(served_int_at(usage, "cache_creation_input_tokens"), 0);
    return served_int_at(usage, "input_tokens") + served_int_at(usage, "cache_read_input_tokens");
}

/* ---- whole replies ---- */

/* What the chat route says, in this API's words; and count_tokens counts what usage does. */
static void test_text(void **state)
{
    (void)state;
    json_t *reply = served_post(served, MESSAGES,
                                "{" HELLO ", \"max_tokens\": 40, \"temperature\": 0, \"model\": "
                                "\"claude-x\"}",
                                200);
    json_t *chat = served_post(served, CHAT,
                               "{" HELLO ", \"max_tokens\": 40, \"temperature\": 0, "
                               "\"enable_thinking\": false}",
                               200);
    json_t *count = served_post(served, COUNT, "{" HELLO "}", 200);
    assert_int_equal(json_object_size(reply), 8);
    assert_memory_equal(served_text_at(reply, "id"), "msg_", 4);
    assert_string_equal(served_text_at(reply, "type"), "message");
    assert_string_equal(served_text_at(reply, "role"), "assistant");
    assert_string_equal(served_text_at(reply, "model"), "claude-x");
    assert_int_equal(json_array_size(json_object_get(reply, "content")), 1);
    assert_string_equal(served_text_at(reply, "content.0.type"), "text");
    assert_string_equal(served_text_at(reply, "content.0.text"),
                        served_text_at(chat, "choices.0.message.content"));
    assert_string_equal(served_text_at(reply, "stop_reason"), "end_turn");
    assert_true(json_is_null(json_object_get(reply, "stop_sequence")));
    const json_t *usage = json_object_get(reply, "usage");
    assert_int_equal(n_prompt(usage), served_int_at(chat, "usage.prompt_tokens"));
    assert_int_equal(n_prompt(usage), served_int_at(count, "input_tokens"));
    assert_int_equal(json_object_size(count), 1);
    assert_int_equal(served_int_at(usage, "output_tokens"),
                     served_int_at(chat, "usage.completion_tokens"));
    assert_string_equal(served_text_at(usage, "service_tier"), "standard");
    json_decref(count);
    json_decref(chat);
    json_decref(reply);
}

static void assert_arguments(const json_t *input)
{
    assert_string_equal(served_text_at(input, "city"), "San Jose");
    assert_string_equal(served_text_at(input, "cuisine"), "Italian");
    assert_int_equal(json_object_size(input), 2);
}

static void test_call(void **state)
{
    (void)state;
    json_t *reply = ask("\"tool_choice\": {\"type\": \"auto\", "
                        "\"disable_parallel_tool_use\": true}, ");
    assert_int_equal(json_array_size(json_object_get(reply, "content")), 1);
    assert_string_equal(served_text_at(reply, "content.0.type"), "tool_use");
    assert_memory_equal(served_text_at(reply, "content.0.id"), "toolu_", 6);
    assert_int_equal(strlen(served_text_at(reply, "content.0.id")), 6 + 24);
    assert_string_equal(served_text_at(reply, "content.0.name"), "FindRestaurants");
    assert_arguments(served_at(reply, "content.0.input"));
    assert_string_equal(served_text_at(reply, "stop_reason"), "tool_use");
    json_decref(reply);
    reply = ask("\"tool_choice\": {\"type\": \"none\"}, ");
    assert_non_null(strstr(served_text_at(reply, "content.0.text"), "<tool_call>"));
    assert_string_equal(served_text_at(reply, "stop_reason"), "end_turn");
    json_decref(reply);
}

static void test_forced_call(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{\"type\": \"any\"}", NULL},
        {"{\"type\": \"tool\", \"name\": \"ReserveRestaurant\"}", "ReserveRestaurant"},
    };
    for (int i = 0; i < 2; i++) {
        char fields[200];
        snprintf(fields, sizeof fields, "\"tool_choice\": %s, ", rows[i][0]);
        json_t *reply = ask(fields);
        size_t n = json_array_size(json_object_get(reply, "content"));
        const json_t *block = json_array_get(json_object_get(reply, "content"), n - 1);
        assert_string_equal(served_text_at(block, "type"), "tool_use");
        if (rows[i][1]) assert_string_equal(served_text_at(block, "name"), rows[i][1]);
        assert_string_equal(served_text_at(reply, "stop_reason"), "tool_use");
        json_decref(reply);
    }
}

/* Numbers keep the digits that the model wrote: here more than a reply's own figures have. */
static void test_call_number(void **state)
{
    (void)state;
    json_t *reply = ask("\"tool_choice\": {\"type\": \"tool\", \"name\": \"at\"}, \"tools\": "
                        "[{\"name\": \"at\", \"input_schema\": {\"type\": \"object\", "
                        "\"properties\": {\"t\": {\"type\": \"number\", \"enum\": "
                        "[1795472845.123456]}}, \"required\": [\"t\"]}}], ");
    const json_t *t = served_at(reply, "content.0.input.t");
    assert_true(json_real_value(t) == 1795472845.123456);
    json_decref(reply);
}

static void test_format(void **state)
{
    (void)state;
    json_t *reply = ask("\"tools\": null, \"output_config\": {\"format\": {\"type\": "
                        "\"json_schema\", \"schema\": {\"type\": \"object\", \"properties\": "
                        "{\"n\": {\"type\": \"integer\"}}, \"required\": [\"n\"], "
                        "\"additionalProperties\": false}}, \"effort\": \"low\"}, ");
    json_t *answer = json_loads(served_text_at(reply, "content.0.text"), 0, NULL);
    assert_true(json_is_integer(json_object_get(answer, "n")));
    json_decref(answer);
    json_decref(reply);
}

/* Cut within its arguments a call is none to run. */
static void test_cut_call(void **state)
{
    (void)state;
    json_t *reply = ask("\"max_tokens\": 14, ");
    assert_string_equal(served_text_at(reply, "stop_reason"), "max_tokens");
    assert_string_equal(served_text_at(reply, "content.0.type"), "tool_use");
    assert_int_equal(json_object_size(served_at(reply, "content.0.input")), 0);
    json_decref(reply);
    json_t *events = ask_stream("\"max_tokens\": 14, ");
    size_t n = json_array_size(events);
    assert_string_equal(served_text_at(json_array_get(events, n - 2), "delta.stop_reason"),
                        "max_tokens");
    assert_string_equal(served_text_at(json_array_get(events, n - 3), "type"),
                        "content_block_stop");
    json_decref(events);
}

static void test_stops(void **state)
{
    (void)state;
    static const char *const form = "{" HELLO ", \"temperature\": 0, %s}";
    static const struct {
        const char *fields, *reason, *sequence;
        int n_tokens; /* -1: not told */
    } rows[] = {
        {"\"max_tokens\": 40, \"stop_sequences\": [\"zzzz\", \".\"]", "stop_sequence", ".", -1},
        {"\"max_tokens\": 2.0", "max_tokens", NULL, 2},
        {"\"max_tokens\": 0", "max_tokens", NULL, 0},
        {"\"max_tokens\": 1000000000, \"ignore_eos\": true", "model_context_window_exceeded", NULL,
         -1},
    };
    ServedOptions o = served_defaults();
    o.ctx_size = 128;
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[300];
        snprintf(body, sizeof body, form, rows[i].fields);
        json_t *reply = served_post(s, MESSAGES, body, 200);
        assert_string_equal(served_text_at(reply, "stop_reason"), rows[i].reason);
        const json_t *sequence = json_object_get(reply, "stop_sequence");
        if (rows[i].sequence)
            assert_string_equal(json_string_value(sequence), rows[i].sequence);
        else
            assert_true(json_is_null(sequence));
        if (rows[i].n_tokens >= 0)
            assert_int_equal(served_int_at(reply, "usage.output_tokens"), rows[i].n_tokens);
        if (!rows[i].n_tokens)
            assert_int_equal(json_array_size(json_object_get(reply, "content")), 0);
        json_decref(reply);
    }
    assert_int_equal(served_stop(s), 0);
}

/* The assistant's last turn is gone on with. */
static void test_prefill(void **state)
{
    (void)state;
#define PREFILL                                                                                    \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello, who are you?\"}, "                 \
    "{\"role\": \"assistant\", \"content\": \"I am\"}], \"temperature\": 0, \"max_tokens\": 12"
    json_t *reply = served_post(served, MESSAGES, PREFILL "}", 200);
    json_t *chat =
        served_post(served, CHAT,
                    PREFILL ", \"continue_final_message\": true, \"enable_thinking\": false}", 200);
    assert_string_equal(served_text_at(reply, "content.0.text"),
                        served_text_at(chat, "choices.0.message.content"));
    json_decref(chat);
    json_decref(reply);
}

/* ---- thinking ---- */

#define BUDGET "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 7%s}, "

static long count_history(const json_t *reply)
{
    json_t *body = json_pack("{s:[{s:s, s:s}, {s:s, s:[O, {s:s, s:s, s:{}}]}, {s:s, s:[{s:s}]}]}",
                             "messages", "role", "user", "content", "Hello", "role", "assistant",
                             "content", served_at(reply, "content.0"), "type", "tool_use", "name",
                             "f", "input", "role", "user", "content", "type", "tool_result");
    char *text = json_dumps(body, 0);
    json_t *count = served_post(served, COUNT, text, 200);
    long n = served_int_at(count, "input_tokens");
    json_decref(count);
    free(text);
    json_decref(body);
    return n;
}

/* Shown or not, the thoughts are in the next prompt, where a tool's result follows them. */
static void assert_same_history(json_t *shown, json_t *silent)
{
    json_t *block = json_array_get(json_object_get(silent, "content"), 0);
    assert_int_equal(count_history(silent), count_history(shown));
    json_object_set_new(block, "signature", json_string("b2Zmc2hvb3Q="));
    long n = count_history(silent);
    assert_true(n < count_history(shown));
}

static void test_thinking(void **state)
{
    (void)state;
    char fields[200];
    snprintf(fields, sizeof fields, BUDGET "\"tools\": null, ", "");
    json_t *reply = ask(fields), *events = ask_stream(fields);
    assert_string_equal(served_text_at(reply, "content.0.type"), "thinking");
    assert_true(strlen(served_text_at(reply, "content.0.thinking")) > 0);
    assert_true(strlen(served_text_at(reply, "content.0.signature")) > 0);
    assert_string_equal(served_text_at(reply, "content.1.type"), "text");
    assert_int_equal(served_int_at(reply, "usage.output_tokens_details.thinking_tokens"), 9);
    /* Of the stream: the thoughts, then their signature as a delta, then the end of the block. */
    StrBuf thoughts = {0};
    size_t i = 2;
    assert_string_equal(served_text_at(json_array_get(events, i), "content_block.type"),
                        "thinking");
    assert_string_equal(served_text_at(json_array_get(events, i++), "content_block.signature"), "");
    for (;; i++) {
        const json_t *delta = json_object_get(json_array_get(events, i), "delta");
        if (strcmp(served_text_at(delta, "type"), "thinking_delta") != 0) break;
        strbuf_puts(&thoughts, served_text_at(delta, "thinking"));
    }
    assert_string_equal(strbuf_str(&thoughts), served_text_at(reply, "content.0.thinking"));
    const json_t *event = json_array_get(events, i++);
    assert_string_equal(served_text_at(event, "delta.type"), "signature_delta");
    assert_string_equal(served_text_at(event, "delta.signature"),
                        served_text_at(reply, "content.0.signature"));
    assert_string_equal(served_text_at(json_array_get(events, i), "type"), "content_block_stop");
    strbuf_free(&thoughts);
    json_decref(events);

    snprintf(fields, sizeof fields, BUDGET "\"tools\": null, ", ", \"display\": \"omitted\"");
    json_t *silent = ask(fields);
    assert_string_equal(served_text_at(silent, "content.0.thinking"), "");
    assert_string_equal(served_text_at(silent, "content.1.text"),
                        served_text_at(reply, "content.1.text"));
    events = ask_stream(fields);
    assert_string_equal(served_text_at(events, "3.delta.type"), "signature_delta");
    assert_string_equal(served_text_at(events, "3.delta.signature"),
                        served_text_at(silent, "content.0.signature"));
    assert_same_history(reply, silent);
    json_decref(events);
    json_decref(silent);
    json_decref(reply);
}

/* Unless asked there is none; with --messages-thinking there is. */
static void test_thinking_default(void **state)
{
    (void)state;
    static const char *const form = "{" HELLO "%s}";
    static const char *const fields[] = {"", ", \"thinking\": {\"type\": \"adaptive\"}",
                                         ", \"thinking\": {\"type\": \"disabled\"}"};
    long n[2][3];
    for (int on = 0; on < 2; on++) {
        ServedOptions o = served_defaults();
        o.messages_thinking = on ? ON : AUTO;
        Served *s = served_start(&o);
        for (int i = 0; i < 3; i++) {
            char body[200];
            snprintf(body, sizeof body, form, fields[i]);
            json_t *count = served_post(s, COUNT, body, 200);
            n[on][i] = served_int_at(count, "input_tokens");
            json_decref(count);
        }
        assert_int_equal(served_stop(s), 0);
    }
    assert_int_equal(n[0][0], n[0][2]); /* an empty think block is longer than one that begins */
    assert_true(n[0][0] > n[0][1]);
    assert_int_equal(n[1][0], n[1][1]);
    assert_int_equal(n[1][1], n[0][1]);
    assert_int_equal(n[1][2], n[0][2]);
}

/* ---- streams ---- */

static const char *type_at(const json_t *events, size_t i)
{
    return served_text_at(json_array_get(events, i), "type");
}

/* The frame of every stream, and blocks that neither mix nor leave a number out. */
static void check_order(const json_t *events)
{
    size_t n = json_array_size(events);
    long index = -1;
    int is_open = 0;
    assert_true(n >= 4);
    assert_string_equal(type_at(events, 0), "message_start");
    assert_string_equal(type_at(events, 1), "ping");
    assert_string_equal(type_at(events, n - 2), "message_delta");
    assert_string_equal(type_at(events, n - 1), "message_stop");
    for (size_t i = 2; i + 2 < n; i++) {
        const json_t *event = json_array_get(events, i);
        const char *type = served_text_at(event, "type");
        if (!strcmp(type, "ping")) continue;
        int starts = !strcmp(type, "content_block_start");
        assert_int_equal(is_open, !starts);
        if (starts) index++;
        assert_int_equal(served_int_at(event, "index"), index);
        is_open = strcmp(type, "content_block_stop") != 0;
        if (is_open && !starts) assert_string_equal(type, "content_block_delta");
    }
    assert_false(is_open);
}

static void test_call_stream(void **state)
{
    (void)state;
    json_t *events = ask_stream(""), *event, *whole = ask("");
    StrBuf input = {0};
    size_t i, n = json_array_size(events);
    int n_pieces = 0;
    check_order(events);
    const json_t *message = served_at(events, "0.message");
    assert_int_equal(json_object_size(message), 8);
    assert_int_equal(json_array_size(json_object_get(message, "content")), 0);
    assert_true(json_is_null(json_object_get(message, "stop_reason")));
    assert_int_equal(served_int_at(message, "usage.output_tokens"), 0);
    const json_t *block = served_at(events, "2.content_block");
    assert_string_equal(served_text_at(block, "type"), "tool_use");
    assert_string_equal(served_text_at(block, "name"), "FindRestaurants");
    assert_memory_equal(served_text_at(block, "id"), "toolu_", 6);
    assert_int_equal(json_object_size(json_object_get(block, "input")), 0);
    json_array_foreach(events, i, event)
    {
        if (strcmp(served_text_at(event, "type"), "content_block_delta") != 0) continue;
        assert_string_equal(served_text_at(event, "delta.type"), "input_json_delta");
        strbuf_puts(&input, served_text_at(event, "delta.partial_json"));
        n_pieces++;
    }
    assert_true(n_pieces > 1); /* as they come */
    json_t *parsed = json_loads(strbuf_str(&input), 0, NULL);
    assert_arguments(parsed);
    const json_t *last = json_array_get(events, n - 2);
    assert_string_equal(served_text_at(last, "delta.stop_reason"), "tool_use");
    assert_true(json_is_null(served_at(last, "delta.stop_sequence")));
    const json_t *usage = json_object_get(last, "usage");
    assert_int_equal(n_prompt(usage), n_prompt(json_object_get(whole, "usage")));
    assert_int_equal(n_prompt(usage), served_int_at(message, "usage.input_tokens"));
    assert_int_equal(served_int_at(usage, "output_tokens"),
                     served_int_at(whole, "usage.output_tokens"));
    json_decref(parsed);
    strbuf_free(&input);
    json_decref(whole);
    json_decref(events);
}

static void test_text_stream(void **state)
{
    (void)state;
    json_t *whole = ask("\"tools\": null, "), *events = ask_stream("\"tools\": null, "), *event;
    StrBuf text = {0};
    size_t i;
    check_order(events);
    assert_string_equal(served_text_at(events, "2.content_block.type"), "text");
    assert_string_equal(served_text_at(events, "2.content_block.text"), "");
    json_array_foreach(events, i, event)
    {
        if (strcmp(served_text_at(event, "type"), "content_block_delta") != 0) continue;
        assert_string_equal(served_text_at(event, "delta.type"), "text_delta");
        strbuf_puts(&text, served_text_at(event, "delta.text"));
    }
    assert_string_equal(strbuf_str(&text), served_text_at(whole, "content.0.text"));
    strbuf_free(&text);
    json_decref(events);
    json_decref(whole);
}

#define ENDLESS                                                                                    \
    "{" HELLO ", \"max_tokens\": 100000, \"ignore_eos\": true, \"temperature\": 0, "               \
    "\"stream\": %s}"

/* Who waits for a place hears at once that he is served, and then a ping in each silence. */
static void test_pings(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.max_seqs = 1;
    o.limits.keepalive_s = 1;
    Served *s = served_start(&o);
    char body[300], got[4096];
    int fd[5];
    snprintf(body, sizeof body, ENDLESS, "false");
    for (int i = 0; i < 4; i++) { /* as many as run, and as wait beside them in the engine */
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", MESSAGES, "", body);
    }
    while (server_n_live(s->server) < 4)
        usleep(1000);
    snprintf(body, sizeof body, ENDLESS, "true");
    fd[4] = http_connect(s->port);
    http_send(fd[4], "POST", MESSAGES, "", body);
    size_t n = 0;
    int n_pings = 0;
    while (n_pings < 3) {
        ssize_t more = recv(fd[4], got + n, sizeof got - 1 - n, 0);
        assert_true(more > 0);
        got[n += (size_t)more] = 0;
        n_pings = 0;
        for (const char *at = got; (at = strstr(at, "event: ping\ndata: {\"type\":\"ping\"}\n\n"));)
            at++, n_pings++;
        const char *first = strstr(got, "event: message_start\n");
        if (n_pings) assert_true(first && first < strstr(got, "event: ping"));
        assert_null(strstr(got, "keep-alive"));
        assert_null(strstr(got, "content_block"));
    }
    for (int i = 0; i < 5; i++)
        close(fd[i]);
    served_wait_idle(s);
    assert_int_equal(served_stop(s), 0);
}

/* A client that leaves takes its answer with it, streamed or not. */
static void test_vanished(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char body[300];
        snprintf(body, sizeof body, ENDLESS, i ? "false" : "true");
        served_leave(served, MESSAGES, body, !i);
    }
}

/* An answer that cannot go on ends its stream with an event, as it has begun already. */
static void test_broken_model(void **state)
{
    (void)state;
    served_break_model(1);
    Served *s = served_start(NULL);
    json_t *events =
        served_named_events(s, MESSAGES, "{" HELLO ", \"max_tokens\": 9, \"stream\": true}");
    size_t n = json_array_size(events);
    assert_string_equal(type_at(events, 0), "message_start");
    assert_string_equal(type_at(events, n - 1), "error");
    assert_string_equal(served_text_at(json_array_get(events, n - 1), "error.type"), "api_error");
    json_decref(events);
    json_decref(served_post(s, MESSAGES, "{" HELLO ", \"max_tokens\": 9}", 500));
    assert_int_equal(served_stop(s), 0);
    served_break_model(0);
}

/* ---- conversations, errors ---- */

/* The line that changes with every request is no part of the prompt. */
static void test_billing_line(void **state)
{
    (void)state;
    static const char *const form =
        "{\"max_tokens\": 1, \"system\": [{\"type\": \"text\", \"text\": "
        "\"x-anthropic-billing-header: cc_version=2.1; cch=%s;\"}, {\"type\": \"text\", \"text\": "
        "\"You help people who look for a place to eat, a seat in a bus or a house to live in.\", "
        "\"cache_control\": {\"type\": \"ephemeral\"}}], " HELLO "}";
    static const char *const cch[] = {"36ee5", "1"};
    long n[2];
    for (int i = 0; i < 2; i++) {
        char body[600];
        snprintf(body, sizeof body, form, cch[i]);
        json_t *reply = served_post(served, MESSAGES, body, 200);
        json_t *count = served_post(served, COUNT, body, 200);
        n[i] = served_int_at(count, "input_tokens");
        assert_int_equal(n_prompt(json_object_get(reply, "usage")), n[i]);
        if (i) assert_true(served_int_at(reply, "usage.cache_read_input_tokens") > 16);
        json_decref(count);
        json_decref(reply);
    }
    assert_int_equal(n[0], n[1]);
}

/* A call goes back with its result, as agents do. */
static void test_tool_result(void **state)
{
    (void)state;
    json_t *reply = ask("");
    json_t *messages =
        json_pack("[{s:s, s:s}, {s:s, s:O}, {s:s, s:[{s:s, s:O, s:s}]}]", "role", "user", "content",
                  "I want to find an Italian restaurant in San Jose", "role", "assistant",
                  "content", json_object_get(reply, "content"), "role", "user", "content", "type",
                  "tool_result", "tool_use_id", served_at(reply, "content.0.id"), "content",
                  "[{\"city\": \"San Jose\", \"restaurant_name\": \"Bella Roma\"}]");
    json_t *body = json_pack("{s:o, s:O, s:i, s:i}", "messages", messages, "tools", tools,
                             "max_tokens", 60, "temperature", 0);
    char *text = json_dumps(body, 0);
    json_t *next = served_post(served, MESSAGES "?beta=true", text, 200);
    json_t *count = served_post(served, COUNT "?beta=true", text, 200);
    assert_true(json_array_size(json_object_get(next, "content")) > 0);
    assert_true(served_int_at(next, "usage.cache_read_input_tokens") > 100);
    assert_int_equal(n_prompt(json_object_get(next, "usage")),
                     served_int_at(count, "input_tokens"));
    json_decref(count);
    json_decref(next);
    free(text);
    json_decref(body);
    json_decref(reply);
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{" HELLO "}", "max_tokens: field required"},
        {"{" HELLO ", \"max_tokens\": -1}", "max_tokens must be at least 0"},
        {"{\"max_tokens\": 5}", "messages: at least one message is required"},
        {"{\"max_tokens\": 5, \"messages\": []}", "messages: at least one message is required"},
        {"{\"max_tokens\": 5, \"messages\": [7]}", "messages[0].role must be user or assistant"},
        {"{" HELLO ", \"max_tokens\": 5, \"top_p\": 7}", "top_p"},
        {"{" HELLO ", \"max_tokens\": 5, \"thinking\": {\"type\": \"none\"}}",
         "thinking.type must be"},
        {"{" HELLO ", \"max_tokens\": 5, \"reasoning\": {\"max_tokens\": -5}}",
         "reasoning.max_tokens must be an integer, at least 0"},
        {"{" HELLO ", \"max_tokens\": 5, \"output_config\": {\"format\": {\"type\": \"foo\"}}}",
         "output_config.format must be of type"},
        {"{" HELLO ", \"max_tokens\": 5, \"output_config\": {\"format\": {\"type\": "
         "\"json_schema\", \"schema\": {\"not\": {}}}}}",
         "output_config.format.schema"},
        {"{" HELLO ", \"max_tokens\": 5, \"output_format\": {\"type\": \"foo\"}}",
         "output_format must be of type"},
        {"{" HELLO ", \"max_tokens\": 5, \"output_format\": {\"type\": \"json_schema\", "
         "\"schema\": {\"not\": {}}}}",
         "output_format.schema"},
        {"{" HELLO ", \"max_tokens\": 5, \"tools\": [{\"input_schema\": {}}]}",
         "tools[0].name must"},
        {"{" HELLO ", \"max_tokens\": 5, \"tools\": [{\"name\": \"f\", \"input_schema\": 5}]}",
         "tools[0].input_schema must be an object"},
        {"{" HELLO ", \"max_tokens\": 5, \"stop_sequences\": [7]}", "stop_sequences must be"},
        {"[", "the body is not"},
        {"{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"image\", \"source\": {}}]}]}",
         "messages[0].content has a block that is not text: this server takes text only"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *reply = served_post(served, MESSAGES, rows[i][0], 400);
        assert_string_equal(served_text_at(reply, "type"), "error");
        assert_string_equal(served_text_at(reply, "error.type"), "invalid_request_error");
        if (!strstr(served_text_at(reply, "error.message"), rows[i][1]))
            fail_msg("%s, not %s", served_text_at(reply, "error.message"), rows[i][1]);
        assert_true(strlen(served_text_at(reply, "request_id")) > 0);
        json_decref(reply);
    }
    json_decref(served_post(served, COUNT, "{\"messages\": 1}", 400));
    /* Anthropic's SDK goes on without a thread where it finds this code. */
    json_t *reply =
        served_post(served, MESSAGES,
                    "{" HELLO ", \"max_tokens\": 5, \"thread\": {\"type\": \"create\"}}", 400);
    assert_string_equal(served_text_at(reply, "error.details.error_code"),
                        "thread_unsupported_request");
    json_decref(reply);
    json_t *none = served_post(served, "/api/event_logging/batch", "{\"events\": []}", 200);
    assert_int_equal(json_object_size(none), 0);
    json_decref(none);
    HttpReply hello = http_exchange(served->port, "HEAD", "/api/hello", "", "");
    assert_int_equal(hello.status, 200);
    http_reply_free(&hello);
}

/* In the words that make Claude Code shorten its conversation. */
static void test_too_long(void **state)
{
    (void)state;
    StrBuf body = {0};
    strbuf_puts(&body, "{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": \"");
    for (int i = 0; i < 40000; i++)
        strbuf_puts(&body, "a b ");
    strbuf_puts(&body, "\"}]}");
    json_t *reply = served_post(served, MESSAGES, body.data, 400);
    long n = 0, most = 0;
    assert_int_equal(sscanf(served_text_at(reply, "error.message"),
                            "prompt is too long: %ld tokens > %ld maximum", &n, &most),
                     2);
    assert_true(n > most && most > 1000);
    json_decref(reply);
    json_t *count = served_post(served, COUNT, body.data, 200); /* needs no room */
    assert_int_equal(served_int_at(count, "input_tokens"), n);
    json_decref(count);
    strbuf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),         cmocka_unit_test(test_call),
        cmocka_unit_test(test_forced_call),  cmocka_unit_test(test_call_number),
        cmocka_unit_test(test_format),       cmocka_unit_test(test_cut_call),
        cmocka_unit_test(test_stops),        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_thinking),     cmocka_unit_test(test_thinking_default),
        cmocka_unit_test(test_call_stream),  cmocka_unit_test(test_text_stream),
        cmocka_unit_test(test_pings),        cmocka_unit_test(test_vanished),
        cmocka_unit_test(test_broken_model), cmocka_unit_test(test_billing_line),
        cmocka_unit_test(test_tool_result),  cmocka_unit_test(test_errors),
        cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
