/*
 * test_answers.c: what the server's answers say: the same as the reference, as each other in every
 * way of asking, and as the wire formats promise. Log-probabilities are in
 * test_answer_logprobs.c, how the server behaves in test_server.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/served.h"
#include "tests/textdata.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

/* ---- asking ---- */

static void assert_text(const json_t *value, const char *path, const char *text)
{
    assert_string_equal(served_text_at(value, path), text);
}

/* A copy of obj with the fields of a JSON text added, as text. */
static char *with(const json_t *obj, const char *fields)
{
    json_t *copy = json_deep_copy(obj), *more = json_loads(fields, 0, NULL);
    assert_non_null(more);
    json_object_update(copy, more);
    char *text = json_dumps(copy, JSON_COMPACT);
    json_decref(more);
    json_decref(copy);
    return text;
}

/* The content or text of a stream, put together; *finish is its finish_reason. */
static void join(const json_t *events, int index, StrBuf *text, const char **finish)
{
    size_t i;
    json_t *event;
    *finish = NULL;
    json_array_foreach(events, i, event)
    {
        const json_t *c = served_at(event, "choices.0");
        if (!c || served_int_at(c, "index") != index) continue;
        if (*finish) fail_msg("a chunk after the last one");
        const json_t *piece = served_at(c, "delta.content");
        if (!piece) piece = served_at(c, "text");
        strbuf_puts(text, piece ? json_string_value(piece) : "");
        *finish = json_string_value(served_at(c, "finish_reason"));
    }
    if (!*finish) fail_msg("no chunk says why it ended");
}

/* Concatenates the logprobs lists at path over the chunks of a stream. */
static json_t *join_lists(const json_t *events, const char *path)
{
    json_t *all = json_array(), *event;
    size_t i;
    json_array_foreach(events, i, event)
    {
        const json_t *list = served_at(event, path);
        if (json_is_array(list)) json_array_extend(all, (json_t *)list);
    }
    return all;
}

/* ---- chat ---- */

static json_t *chat_body(const json_t *reference)
{
    json_t *body =
        json_pack("{s:O, s:i, s:{s:b}}", "messages", json_object_get(reference, "messages"),
                  "temperature", 0, "chat_template_kwargs", "enable_thinking", 0);
    if (json_array_size(json_object_get(reference, "tools")))
        json_object_set(body, "tools", json_object_get(reference, "tools"));
    json_object_set_new(body, "tool_choice", json_string("none")); /* its markup stays text */
    return body;
}

/* The reference's words, less the end token's. */
static char *expected_text(const json_t *reference)
{
    char *text = strdup(served_text_at(reference, "text"));
    char *end = strstr(text, "<|im_end|>");
    if (end) *end = 0;
    return text;
}

static double smallest(const json_t *numbers)
{
    double least = INFINITY;
    size_t i;
    json_t *v;
    json_array_foreach(numbers, i, v)
    {
        if (json_number_value(v) < least) least = json_number_value(v);
    }
    return least;
}

/*
 * The greedy answers are those of an independent implementation, and drafting does not change them.
 * A conversation that a rounding may decide is only compared with itself.
 */
static void test_chat_is_the_reference(void **state)
{
    (void)state;
    enum {
        N = 3
    }; /* the others are as long; their prompts are checked by the tokenizer's routes */
    json_t *lines = read_json_lines("models/demo/reference.jsonl");
    for (size_t i = 0; i < N; i++) {
        const json_t *reference = json_array_get(lines, i);
        json_t *body = chat_body(reference);
        char *plain_body = with(body, "{\"speculative.n_max\": 0}"), *text = with(body, "{}");
        char *expected = expected_text(reference);
        json_t *reply = served_post(served, CHAT, text, 200);
        json_t *plain = served_post(served, CHAT, plain_body, 200);
        const char *content = served_text_at(reply, "choices.0.message.content");
        if (smallest(json_object_get(reference, "margins")) > 0.01)
            assert_string_equal(content, expected);
        assert_text(plain, "choices.0.message.content", content);
        assert_text(reply, "choices.0.finish_reason", "stop");
        assert_text(reply, "choices.0.message.role", "assistant");
        assert_text(reply, "object", "chat.completion");
        assert_text(reply, "model", "demo");

        long n_prompt = (long)json_array_size(json_object_get(reference, "prompt_ids"));
        assert_int_equal(served_int_at(reply, "usage.prompt_tokens"), n_prompt);
        assert_int_equal(served_int_at(reply, "usage.completion_tokens"),
                         served_int_at(plain, "usage.completion_tokens"));
        assert_int_equal(served_int_at(reply, "usage.total_tokens"),
                         n_prompt + served_int_at(reply, "usage.completion_tokens"));
        assert_null(served_at(plain, "timings.draft_n"));
        assert_true(served_int_at(reply, "timings.draft_n") >=
                    served_int_at(reply, "timings.draft_n_accepted"));
        json_decref(plain);
        json_decref(reply);
        free(expected);
        free(text);
        free(plain_body);
        json_decref(body);
    }
    json_decref(lines);
}

static void test_timings(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "cache_n",           "prompt_n",    "prompt_ms",
        "prompt_per_second", "predicted_n", "prompt_per_token_ms",
        "predicted_ms",      "draft_n",     "predicted_per_token_ms",
        "draft_n_accepted",  "cache_n",     "predicted_per_second",
    };
    json_t *r = served_complete(
        served, "{\"prompt\": \"I want to find\", \"max_tokens\": 30, \"temperature\": 0, "
                "\"ignore_eos\": true}");
    const json_t *timings = served_at(r, "timings");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_is_number(json_object_get(timings, keys[i]))) fail_msg("no %s", keys[i]);
    assert_int_equal(json_object_size(timings), 11);
    assert_int_equal(served_int_at(timings, "predicted_n"), 30);
    assert_int_equal(served_int_at(timings, "prompt_n"), served_int_at(r, "usage.prompt_tokens"));
    json_decref(r);
}

/* ---- streams ---- */

static const char *const streamed[][2] = {
    {COMPLETIONS, "{\"prompt\": \"I want to find\", \"max_tokens\": 40, \"temperature\": 0}"},
    {COMPLETIONS, "{\"prompt\": \"I want to find\", \"max_tokens\": 40, \"seed\": 5, \"n\": 3}"},
    {COMPLETIONS, "{\"prompt\": [\"I want\", \"you\"], \"max_tokens\": 9, \"echo\": true, "
                  "\"logprobs\": 2, \"seed\": 5, \"n\": 2}"},
    {COMPLETIONS, "{\"prompt\": \"I want to find\", \"max_tokens\": 60, \"temperature\": 0, "
                  "\"stop\": [\"the restaurant\", \" a \"], \"logprobs\": 0}"},
    {COMPLETIONS, "{\"prompt\": \"I want to find\", \"max_tokens\": 0, \"echo\": true}"},
    {CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello, who are you?\"}], "
           "\"temperature\": 0, \"logprobs\": true, \"top_logprobs\": 3}"},
    {CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"Find a cheap place to eat\"}], "
           "\"n\": 2, \"seed\": 9, \"max_tokens\": 50}"},
};

static void compare_stream(const json_t *reply, const json_t *events, int index, int is_chat)
{
    char path[64];
    const char *finish;
    StrBuf text = {0};
    join(events, index, &text, &finish);
    snprintf(path, sizeof path, "choices.%d.%s", index, is_chat ? "message.content" : "text");
    assert_string_equal(strbuf_str(&text), served_text_at(reply, path));
    snprintf(path, sizeof path, "choices.%d.finish_reason", index);
    assert_string_equal(finish, served_text_at(reply, path));
    strbuf_free(&text);
}

static void compare_logprobs(const json_t *reply, const json_t *events, const char *path)
{
    char whole[64];
    snprintf(whole, sizeof whole, "choices.0.logprobs.%s", path);
    json_t *joined = join_lists(events, whole);
    assert_true(json_equal(joined, (json_t *)served_at(reply, whole)));
    json_decref(joined);
}

static void test_stream_equals_reply(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof streamed / sizeof *streamed; i++) {
        const char *path = streamed[i][0];
        int is_chat = !strcmp(path, CHAT);
        json_t *body = json_loads(streamed[i][1], 0, NULL);
        char *stream_body = with(body, "{\"stream\": true}");
        json_t *reply = served_post(served, path, streamed[i][1], 200);
        json_t *events = served_events(served, path, stream_body);
        const json_t *choices = json_object_get(reply, "choices");
        for (int k = 0; k < (int)json_array_size(choices); k++)
            compare_stream(reply, events, k, is_chat);
        if (json_array_size(choices) == 1 && json_is_object(served_at(choices, "0.logprobs"))) {
            static const char *const lists[] = {"tokens", "token_logprobs", "text_offset",
                                                "top_logprobs"};
            for (int k = 0; k < 4 && !is_chat; k++)
                compare_logprobs(reply, events, lists[k]);
            if (is_chat) compare_logprobs(reply, events, "content");
        }
        /* Without include_usage: no usage anywhere, timings on the last chunk alone. */
        size_t n = json_array_size(events);
        for (size_t k = 0; k < n; k++) {
            const json_t *event = json_array_get(events, k);
            assert_int_equal(json_object_get(event, "timings") != NULL, k + 1 == n);
            assert_null(json_object_get(event, "usage"));
        }
        json_decref(events);
        json_decref(reply);
        free(stream_body);
        json_decref(body);
    }
}

static void test_chat_stream_form(void **state)
{
    (void)state;
    json_t *events = served_events(
        served, CHAT,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello, who are you?\"}], "
        "\"temperature\": 0, \"stream\": true, \"model\": \"x\", "
        "\"stream_options\": {\"include_usage\": true, \"continuous_usage_stats\": true}}");
    size_t n = json_array_size(events), i;
    json_t *event;
    long n_before = 0;
    assert_true(n > 4);
    assert_text(events, "0.choices.0.delta.role", "assistant");
    assert_text(events, "0.choices.0.delta.content", "");
    json_array_foreach(events, i, event)
    {
        assert_text(event, "id", served_text_at(events, "0.id"));
        assert_text(event, "model", "x");
        assert_text(event, "object", "chat.completion.chunk");
        assert_true(served_int_at(event, "usage.completion_tokens") >= n_before);
        n_before = served_int_at(event, "usage.completion_tokens");
        if (i && i + 2 < n)
            assert_true(strlen(served_text_at(event, "choices.0.delta.content")) > 0);
        if (i + 2 < n) assert_true(json_is_null(served_at(event, "choices.0.finish_reason")));
    }
    const json_t *finish = json_array_get(events, n - 2), *usage = json_array_get(events, n - 1);
    assert_null(served_at(finish, "timings"));
    assert_int_equal(json_object_size(served_at(finish, "choices.0.delta")), 0);
    assert_text(finish, "choices.0.finish_reason", "stop");
    assert_int_equal(json_array_size(served_at(usage, "choices")), 0);
    /* A step is one chunk, however many drafts it accepted. */
    assert_true((long)n - 3 <= served_int_at(usage, "usage.completion_tokens") -
                                   served_int_at(usage, "timings.draft_n_accepted"));
    assert_non_null(served_at(usage, "timings.predicted_ms"));
    json_decref(events);
}

/* Asked for, usage is in the last chunk, and no other has its key. */
static void test_usage_comes_once(void **state)
{
    (void)state;
    static const char *const paths[] = {CHAT, COMPLETIONS};
    for (int i = 0; i < 2; i++) {
        json_t *events =
            served_events(served, paths[i],
                          i ? "{\"prompt\": \"Hello\", \"max_tokens\": 8, \"stream\": true, "
                              "\"stream_options\": {\"include_usage\": true}}"
                            : "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], "
                              "\"max_tokens\": 8, \"stream\": true, "
                              "\"stream_options\": {\"include_usage\": true}}");
        size_t n = json_array_size(events), k;
        json_t *event;
        assert_true(n > 2);
        json_array_foreach(events, k, event)
        {
            assert_int_equal(json_object_get(event, "usage") != NULL, k + 1 == n);
            assert_int_equal(json_array_size(json_object_get(event, "choices")), k + 1 < n);
        }
        json_decref(events);
    }
}

/* ---- company ---- */

/* The same requests one by one and all at once, more of them than the engine runs at a time. */
static void test_together_is_alone(void **state)
{
    (void)state;
    enum { N = 10 };
    static const char *const prompts[] = {"I want to find a", "Hello", "What is the weather in",
                                          "Book a table", "<|im_start|>user\\nHi<|im_end|>\\n"};
    char body[N][300];
    char *alone[N];
    int fd[N];
    for (int i = 0; i < N; i++) {
        snprintf(body[i], sizeof body[i],
                 "{\"prompt\": \"%s\", \"max_tokens\": %d, \"seed\": %d, \"temperature\": %s, "
                 "\"ignore_eos\": true}",
                 prompts[i % 5], 20 + 3 * i, i, i % 2 ? "0" : "0.9");
        json_t *r = served_post(served, COMPLETIONS, body[i], 200);
        alone[i] = strdup(served_text_at(r, "choices.0.text"));
        json_decref(r);
    }
    for (int i = 0; i < N; i++) {
        fd[i] = http_connect(served->port);
        http_send(fd[i], "POST", COMPLETIONS, "", body[i]);
    }
    for (int i = 0; i < N; i++) {
        StrBuf rest = {0};
        HttpReply r;
        assert_int_equal(http_read(fd[i], &rest, 0, &r), 0);
        json_t *json = json_loads(strbuf_str(&r.body), 0, NULL);
        assert_text(json, "choices.0.text", alone[i]);
        json_decref(json);
        http_reply_free(&r);
        strbuf_free(&rest);
        free(alone[i]);
        close(fd[i]);
    }
}

/* One request with more prompts than there are places; each answer as if it were alone. */
static void test_batch(void **state)
{
    (void)state;
    enum { N = 40, CHOICES = 2 };
    StrBuf body = {0};
    strbuf_puts(&body, "{\"max_tokens\": 4, \"seed\": 3, \"n\": 2, \"prompt\": [");
    for (int i = 0; i < N; i++)
        strbuf_printf(&body, "%s[%d, %d]", i ? ", " : "", 300 + i, 400 + 2 * i);
    strbuf_puts(&body, "]}");
    json_t *all = served_post(served, COMPLETIONS, body.data, 200);
    assert_int_equal(json_array_size(served_at(all, "choices")), N * CHOICES);
    assert_int_equal(served_int_at(all, "usage.prompt_tokens"), 2 * N);
    for (int i = 0; i < N; i += 7) {
        json_t *one = served_complete(
            served, "{\"max_tokens\": 4, \"seed\": 3, \"n\": 2, \"prompt\": [%d, %d]}", 300 + i,
            400 + 2 * i);
        for (int j = 0; j < CHOICES; j++) {
            char path[40];
            snprintf(path, sizeof path, "choices.%d.text", j);
            const char *expected = served_text_at(one, path);
            snprintf(path, sizeof path, "choices.%d.text", i * CHOICES + j);
            assert_text(all, path, expected);
            snprintf(path, sizeof path, "choices.%d.index", i * CHOICES + j);
            assert_int_equal(served_int_at(all, path), i * CHOICES + j);
        }
        json_decref(one);
    }
    json_decref(all);
    strbuf_free(&body);
}

static void test_seeds(void **state)
{
    (void)state;
    static const char fmt[] = "{\"prompt\": \"I want\", \"max_tokens\": 30, \"temperature\": 1.5, "
                              "\"top_k\": 0, \"top_p\": 1, \"n\": 2%s}";
    json_t *a = served_complete(served, fmt, ", \"seed\": 11"),
           *b = served_complete(served, fmt, ", \"seed\": 11");
    json_t *c = served_complete(served, fmt, ", \"seed\": 12"),
           *d = served_complete(served, fmt, ""), *e = served_complete(served, fmt, "");
    json_t *f = served_complete(served, fmt, ", \"seed\": 11, \"speculative.n_max\": 0");
    const char *text = served_text_at(a, "choices.0.text");
    assert_text(b, "choices.0.text", text);
    assert_text(b, "choices.1.text", served_text_at(a, "choices.1.text"));
    assert_text(f, "choices.0.text", text);
    assert_text(f, "choices.1.text", served_text_at(a, "choices.1.text"));
    assert_string_not_equal(served_text_at(a, "choices.1.text"), text);
    assert_string_not_equal(served_text_at(c, "choices.0.text"), text);
    assert_string_not_equal(served_text_at(d, "choices.0.text"),
                            served_text_at(e, "choices.0.text"));
    json_decref(a), json_decref(b), json_decref(c), json_decref(d), json_decref(e), json_decref(f);
}

/* ---- ends ---- */

/* A stop string is met wherever tokens end, and neither it nor what follows is sent. */
static void test_stop_strings(void **state)
{
    (void)state;
    static const char ask[] = "{\"prompt\": \"I want to find\", \"max_tokens\": 60, "
                              "\"temperature\": 0, \"ignore_eos\": true%s}";
    json_t *whole = served_complete(served, ask, "");
    const char *text = served_text_at(whole, "choices.0.text");
    size_t len = strlen(text);
    assert_true(len > 40);
    for (size_t from = 3; from + 9 < len; from += 11) {
        char stop[10], more[400];
        snprintf(stop, sizeof stop, "%.7s", text + from);
        const char *met = strstr(text, stop);
        json_t *quoted = json_string(stop);
        char *escaped = json_dumps(quoted, JSON_ENCODE_ANY);
        snprintf(more, sizeof more, ", \"stop\": [\"never to be seen\", %s]", escaped);
        json_t *r = served_complete(served, ask, more);
        size_t n = (size_t)(met - text);
        const char *cut = served_text_at(r, "choices.0.text");
        if (strlen(cut) != n || memcmp(cut, text, n) != 0) fail_msg("'%s': '%s'", stop, cut);
        assert_text(r, "choices.0.finish_reason", "stop");
        assert_text(r, "choices.0.stop_reason", stop);
        json_decref(r);

        snprintf(more, sizeof more, ", \"stop\": %s, \"include_stop_str_in_output\": true",
                 escaped);
        r = served_complete(served, ask, more);
        cut = served_text_at(r, "choices.0.text");
        if (strlen(cut) != n + 7 || memcmp(cut, text, n + 7) != 0) fail_msg("'%s': %s", stop, cut);
        assert_text(r, "choices.0.stop_reason", stop);
        json_decref(r);
        free(escaped);
        json_decref(quoted);
    }
    json_decref(whole);
}

/* Within min_tokens nothing stops the answer. */
static void test_min_tokens(void **state)
{
    (void)state;
    json_t *r = served_complete(
        served, "{\"prompt\": \"I want to find\", \"max_tokens\": 40, \"temperature\": 0, "
                "\"stop\": [\"e\", \"a\"], \"min_tokens\": 12}");
    assert_true(served_int_at(r, "usage.completion_tokens") > 12);
    assert_non_null(strpbrk(served_text_at(r, "choices.0.text"), "ea"));
    json_decref(r);
    r = served_complete(served,
                        "{\"prompt\": \"I want to find\", \"max_tokens\": 40, \"temperature\": 0, "
                        "\"stop\": [\"e\", \"a\"]}");
    assert_null(strpbrk(served_text_at(r, "choices.0.text"), "ea"));
    json_decref(r);
}

/* Stop ids and end tokens count as tokens and have no text. */
static void test_stop_ids(void **state)
{
    (void)state;
    json_t *whole =
        served_complete(served, "{\"prompt\": \"I want to find\", \"max_tokens\": 20, "
                                "\"temperature\": 0, \"logprobs\": 0, \"ignore_eos\": true}");
    json_t *pieces = json_object_get((json_t *)served_at(whole, "choices.0.logprobs"), "tokens");
    const char *tenth = json_string_value(json_array_get(pieces, 9));
    json_t *ask = json_pack("{s:s}", "content", tenth);
    char *body = json_dumps(ask, 0);
    json_t *tokens = served_post(served, "/tokenize", body, 200);
    assert_int_equal(served_int_at(tokens, "count"), 1);
    long id = served_int_at(tokens, "tokens.0");

    json_t *r =
        served_complete(served,
                        "{\"prompt\": \"I want to find\", \"max_tokens\": 20, \"temperature\": 0, "
                        "\"logprobs\": 0, \"ignore_eos\": true, \"stop_token_ids\": [%ld]}",
                        id);
    assert_text(r, "choices.0.finish_reason", "stop");
    assert_int_equal(served_int_at(r, "choices.0.stop_reason"), id);
    size_t n = json_array_size(served_at(r, "choices.0.logprobs.tokens"));
    assert_int_equal(served_int_at(r, "usage.completion_tokens"), n);
    StrBuf text = {0};
    for (size_t i = 0; i + 1 < n; i++) {
        const char *piece = json_string_value(json_array_get(pieces, i));
        if (strncmp(piece, "<|", 2) != 0) strbuf_puts(&text, piece);
    }
    assert_text(r, "choices.0.text", strbuf_str(&text));
    json_decref(r);

    /* Asked for, its text stays as that of a stop string would. */
    strbuf_puts(&text, tenth);
    r = served_complete(served,
                        "{\"prompt\": \"I want to find\", \"max_tokens\": 20, \"temperature\": 0, "
                        "\"ignore_eos\": true, \"stop_token_ids\": [%ld], "
                        "\"include_stop_str_in_output\": true}",
                        id);
    assert_text(r, "choices.0.text", strbuf_str(&text));
    assert_int_equal(served_int_at(r, "choices.0.stop_reason"), id);
    strbuf_free(&text);
    json_decref(r), json_decref(tokens), json_decref(ask), json_decref(whole);
    free(body);
}

/* An end token is a special one: its text stays where both are asked for. */
static void test_end_token_text(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "", ", \"include_stop_str_in_output\": true", ", \"skip_special_tokens\": false",
        ", \"include_stop_str_in_output\": true, \"skip_special_tokens\": false"};
    for (int i = 0; i < 4; i++) {
        json_t *r = served_complete(served,
                                    "{\"prompt\": \"I want to find\", \"max_tokens\": 60, "
                                    "\"temperature\": 0%s}",
                                    fields[i]);
        const char *text = served_text_at(r, "choices.0.text");
        assert_text(r, "choices.0.finish_reason", "stop");
        assert_int_equal(strstr(text, "<|im_end|>") != NULL, i == 3);
        json_decref(r);
    }
}

static int holds(const json_t *list, json_int_t id)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        if (json_integer_value(one) == id) return 1;
    }
    return 0;
}

/* The ids of an answer to a prompt, all of allowed. */
static json_t *ids_of(const json_t *allowed, const char *fields, long *n_accepted)
{
    char *list = json_dumps(allowed, 0);
    StrBuf body = {0};
    strbuf_printf(
        &body,
        "{\"prompt\": \"I want to find\", \"max_tokens\": 60, \"return_token_ids\": true, "
        "\"allowed_token_ids\": %s%s}",
        list, fields);
    json_t *r = served_post(served, COMPLETIONS, body.data, 200);
    json_t *ids = json_incref((json_t *)served_at(r, "choices.0.token_ids")), *id;
    size_t i;
    json_array_foreach(ids, i, id)
    {
        if (!holds(allowed, json_integer_value(id)))
            fail_msg("%s: %lld", fields, (long long)json_integer_value(id));
    }
    if (n_accepted) *n_accepted += served_int_at(r, "timings.draft_n_accepted");
    json_decref(r);
    strbuf_free(&body);
    free(list);
    return ids;
}

/* Nothing but these ids comes, and it is the same with drafts and without. */
static void test_allowed_ids(void **state)
{
    (void)state;
    static const char *const ways[] = {", \"temperature\": 0", ", \"temperature\": 1, \"seed\": 4",
                                       ", \"temperature\": 2, \"top_k\": 0, \"seed\": 5",
                                       ", \"temperature\": 0, \"logit_bias\": {\"64\": 100}"};
    json_t *free_one =
        served_complete(served, "{\"prompt\": \"I want to find\", \"max_tokens\": 60, "
                                "\"temperature\": 0, \"return_token_ids\": true, \"ignore_eos\": "
                                "true}");
    const json_t *came = served_at(free_one, "choices.0.token_ids");
    json_t *even = json_array(), *one = json_pack("[i]", 300);
    for (int id = 100; id < 4000; id += 2)
        json_array_append_new(even, json_integer(id));
    long n_accepted = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char plain[200];
        snprintf(plain, sizeof plain, "%s, \"speculative.n_max\": 0", ways[i]);
        json_t *a = ids_of(even, ways[i], &n_accepted), *b = ids_of(even, plain, NULL);
        assert_int_equal(json_array_size(a), 60); /* its end is not among them */
        assert_true(json_equal(a, b));
        json_decref(a), json_decref(b);
    }
    assert_true(n_accepted > 0);
    json_t *same = ids_of(came, ", \"temperature\": 0, \"ignore_eos\": true", NULL);
    assert_true(json_equal(same, (json_t *)came));
    json_t *single = ids_of(one, ", \"temperature\": 1, \"min_tokens\": 3", NULL);
    assert_int_equal(json_array_size(single), 60);
    json_decref(single), json_decref(same), json_decref(one), json_decref(even);
    json_decref(free_one);
}

static void test_lengths(void **state)
{
    (void)state;
    json_t *r = served_complete(
        served, "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": 40}");
    assert_int_equal(served_int_at(r, "usage.completion_tokens"), 40);
    assert_text(r, "choices.0.finish_reason", "length");
    json_decref(r);
    r = served_complete(served, "{\"prompt\": \"Hello\"}");
    assert_true(served_int_at(r, "usage.completion_tokens") <= 16);
    json_decref(r);
    r = served_complete(served, "{\"prompt\": \"Hello\", \"max_tokens\": 0}");
    assert_text(r, "choices.0.text", "");
    assert_text(r, "choices.0.finish_reason", "length");
    json_decref(r);
    r = served_complete(
        served, "{\"prompt\": \"Hello\", \"max_tokens\": 1, \"logit_bias\": {\"777\": 100}, "
                "\"logprobs\": 0}");
    json_t *d = served_post(served, "/detokenize", "{\"tokens\": [777]}", 200);
    assert_text(r, "choices.0.text", served_text_at(d, "content"));
    json_decref(d);
    json_decref(r);
}

/* ---- text and tokens ---- */

static void test_tokenizer_routes(void **state)
{
    (void)state;
    static const char *const texts[] = {"Hello world", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 a\\n",
                                        "<|im_start|>user\\nHi<|im_end|>", " "};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char body[300];
        snprintf(body, sizeof body, "{\"prompt\": \"%s\"}", texts[i]);
        json_t *a = served_post(served, "/tokenize", body, 200);
        json_t *given = json_loads(body, 0, NULL);
        snprintf(body, sizeof body, "{\"content\": \"%s\", \"with_pieces\": true}", texts[i]);
        json_t *b = served_post(served, "/tokenize", body, 200);
        json_t *tokens = json_object_get(a, "tokens");
        assert_int_equal(json_array_size(tokens), served_int_at(a, "count"));
        for (size_t k = 0; k < json_array_size(tokens); k++)
            assert_true(
                json_equal(json_array_get(tokens, k),
                           json_object_get(json_array_get(json_object_get(b, "tokens"), k), "id")));
        json_t *back = json_pack("{s:O}", "tokens", tokens);
        char *back_body = json_dumps(back, 0);
        json_t *text = served_post(served, "/detokenize", back_body, 200);
        assert_text(text, "content", served_text_at(given, "prompt"));
        assert_text(text, "prompt", served_text_at(given, "prompt"));
        free(back_body);
        json_decref(text), json_decref(back), json_decref(b), json_decref(given), json_decref(a);
    }
}

/* A body can name more text than any body may have; that is an error, and a little less is not. */
static void test_detokenize_bound(void **state)
{
    (void)state;
    enum { MOST = 20000 };
    ServedOptions o = served_defaults();
    o.limits.http.body_bytes = MOST;
    Served *s = served_start(&o);
    json_t *long_text = json_pack("{s:s}", "prompt", "international");
    char *body = json_dumps(long_text, 0);
    json_t *ids = served_post(s, "/tokenize", body, 200);
    int n_ids = (int)served_int_at(ids, "count");
    free(body);
    for (int is_more = 0; is_more < 2; is_more++) {
        json_t *list = json_array();
        int bytes = is_more ? MOST + 13 : MOST;
        for (int i = 0; i < bytes / 13; i++)
            for (int k = 0; k < n_ids; k++)
                json_array_append(list, json_array_get(json_object_get(ids, "tokens"), (size_t)k));
        json_t *ask = json_pack("{s:o}", "tokens", list);
        body = json_dumps(ask, JSON_COMPACT);
        assert_true(strlen(body) < MOST);
        json_t *reply = served_post(s, "/detokenize", body, is_more ? 400 : 200);
        if (!is_more) assert_int_equal(strlen(served_text_at(reply, "content")), MOST / 13 * 13);
        json_decref(reply), json_decref(ask);
        free(body);
    }
    json_decref(ids), json_decref(long_text);
    assert_int_equal(served_stop(s), 0);
}

/* The template's text tokenises to the reference's prompt, by every route that says so. */
static void test_template_routes(void **state)
{
    (void)state;
    json_t *lines = read_json_lines("models/demo/reference.jsonl"), *reference;
    size_t i;
    json_array_foreach(lines, i, reference)
    {
        json_t *ask = chat_body(reference);
        char *body = with(ask, "{}");
        json_t *rendered = served_post(served, "/apply-template", body, 200);
        json_t *tokens = served_post(served, "/tokenize", body, 200);
        char *prompt_body = with(rendered, "{}");
        json_t *again = served_post(served, "/tokenize", prompt_body, 200);
        const json_t *expected = json_object_get(reference, "prompt_ids");
        assert_true(json_equal(json_object_get(tokens, "tokens"), (json_t *)expected));
        assert_true(json_equal(json_object_get(again, "tokens"), (json_t *)expected));
        free(prompt_body);
        free(body);
        json_decref(again), json_decref(tokens), json_decref(rendered), json_decref(ask);
    }
    json_decref(lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_is_the_reference),
        cmocka_unit_test(test_timings),
        cmocka_unit_test(test_stream_equals_reply),
        cmocka_unit_test(test_chat_stream_form),
        cmocka_unit_test(test_usage_comes_once),
        cmocka_unit_test(test_together_is_alone),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_end_token_text),
        cmocka_unit_test(test_allowed_ids),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_tokenizer_routes),
        cmocka_unit_test(test_detokenize_bound),
        cmocka_unit_test(test_template_routes),
    };
    return cmocka_run_group_tests(tests, served_open, served_close);
}
