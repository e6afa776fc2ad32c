/*
 * test_server.c: the server's routes as seen from a socket: which there are, what they refuse and
 * in which form, JSON that was made to hurt, a full queue, a model gone wrong; which options say
 * how long an answer is. What the answers say is in test_answers.c, connections are in
 * test_server_connections.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/served.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define MESSAGES    "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0}"
#define ENDLESS     "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true}"
#define TEMPLATE                                                                                   \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"chat_template\": \"x\"}"
#define STREAMED                                                                                   \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"

/* ---- routes ---- */

static void test_open_routes(void **state)
{
    (void)state;
    static const char *const paths[] = {
        "/health",  "/v1/health", "/ping",   "/health/",        "/",
        "/version", "/v1/models", "/models", "/v1/models/demo", "/v1/models?x=1"};
    Served *s = served_start(NULL);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        HttpReply get = http_exchange(s->port, "GET", paths[i], "", "");
        HttpReply head = http_exchange(s->port, "HEAD", paths[i], "", "");
        if (get.status != 200 || head.status != 200) fail_msg("%s: %d", paths[i], get.status);
        assert_string_equal(http_header(&get, "Content-Type"), "application/json");
        assert_true(strtoul(http_header(&head, "Content-Length"), NULL, 10) == get.body.len);
        http_reply_free(&get);
        http_reply_free(&head);
    }
    HttpReply r = http_exchange(s->port, "GET", "/v1/models", "", "");
    json_t *json = json_loads(r.body.data, 0, NULL);
    served_expect_text(json, "data.0.id", "demo");
    served_expect_text(json, "data.0.root", "demo");
    served_expect_text(json, "data.0.object", "model");
    assert_int_equal(json_integer_value(served_at(json, "data.0.max_model_len")), 8192);
    assert_int_equal(json_integer_value(served_at(json, "data.0.max_input_tokens")), 8192);
    assert_int_equal(json_integer_value(served_at(json, "data.0.max_tokens")), 8192);
    json_decref(json);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *headers, *body;
        int status;
        const char *type, *allow;
    } rows[] = {
        {"POST", "/nowhere", "", "{}", 404, "not_found_error", NULL},
        {"GET", "/page", "", "", 404, "not_found_error", NULL},
        {"GET", "/page/none.js", "", "", 404, "not_found_error", NULL},
        {"POST", "/v1/v1/completions", "", "{}", 404, "not_found_error", NULL},
        {"GET", "/v1/models/other", "", "", 404, "not_found_error", NULL},
        {"GET", CHAT, "", "", 405, "invalid_request_error", "POST, OPTIONS"},
        {"PUT", COMPLETIONS, "", SHORT, 405, "invalid_request_error", "POST, OPTIONS"},
        {"DELETE", "/v1/models", "", "", 405, "invalid_request_error", "GET, HEAD, OPTIONS"},
        {"POST", "/health", "", "{}", 405, "invalid_request_error", "GET, HEAD, OPTIONS"},
        {"POST", COMPLETIONS, "", "", 400, "invalid_request_error", NULL},
        {"POST", COMPLETIONS, "", "{", 400, "invalid_request_error", NULL},
        {"POST", COMPLETIONS, "", "[1]", 400, "invalid_request_error", NULL},
        {"POST", CHAT, "", "{\"messages\": [\"\xff\"]}", 400, "invalid_request_error", NULL},
        {"POST", CHAT, "", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}", 400,
         "invalid_request_error", NULL},
        {"POST", "/tokenize", "", "{}", 400, "invalid_request_error", NULL},
        {"POST", "/tokenize", "", "{\"content\": [{}]}", 400, "invalid_request_error", NULL},
        {"POST", "/detokenize", "", "{\"tokens\": [4096]}", 400, "invalid_request_error", NULL},
        {"POST", "/detokenize", "", "{\"tokens\": 5}", 400, "invalid_request_error", NULL},
        {"POST", "/apply-template", "", "{}", 400, "invalid_request_error", NULL},
        {"POST", "/apply-template", "", TEMPLATE, 400, "invalid_request_error", NULL},
        {"POST", "/tokenize", "", TEMPLATE, 400, "invalid_request_error", NULL},
        {"POST", CHAT, "Content-Type: multipart/form-data\r\n", SHORT, 415, "invalid_request_error",
         NULL},
        {"POST", CHAT, "Content-Encoding: gzip\r\n", SHORT, 415, "invalid_request_error", NULL},
    };
    Served *s = served_start(NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        HttpReply r =
            http_exchange(s->port, rows[i].method, rows[i].path, rows[i].headers, rows[i].body);
        if (r.status != rows[i].status)
            fail_msg("%s %s %s: %d", rows[i].method, rows[i].path, rows[i].body, r.status);
        served_expect_error(&r, rows[i].type);
        if (rows[i].allow) assert_string_equal(http_header(&r, "Allow"), rows[i].allow);
        http_reply_free(&r);
    }
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* The prompt alone may not fill the context; a longer answer than fits is cut, not refused. */
static void test_context_length(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    StrBuf body = {0};
    strbuf_puts(&body, "{\"max_tokens\": 1000000000, \"stop\": \"o\", \"prompt\": [5");
    for (int i = 0; i < 8191; i++)
        strbuf_puts(&body, ",5");
    strbuf_puts(&body, "]}");
    json_t *json = served_post(s, COMPLETIONS, body.data, 400);
    served_expect_text(json, "error.code", "context_length_exceeded");
    served_expect_text(json, "error.param", "prompt");
    served_expect_text(
        json, "error.message",
        "This model's maximum context length is 8192 tokens. However, your prompt has 8192 "
        "tokens.");
    json_decref(json);
    json = served_post(s, COMPLETIONS,
                       "{\"max_tokens\": 1000000000, \"stop\": \"e\", \"prompt\": \"Hello\"}", 200);
    assert_true(json_integer_value(served_at(json, "usage.completion_tokens")) > 0);
    json_decref(json);
    strbuf_free(&body);
    assert_int_equal(served_stop(s), 0);
}

static void test_request_ids(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    HttpReply r = http_exchange(s->port, "POST", COMPLETIONS, "X-Request-Id: abc.7\r\n", SHORT);
    assert_string_equal(http_header(&r, "X-Request-Id"), "abc.7");
    json_t *json = json_loads(r.body.data, 0, NULL);
    served_expect_text(json, "id", "cmpl-abc.7");
    json_decref(json);
    http_reply_free(&r);
    r = http_exchange(s->port, "GET", "/health", "X-Request-Id: a b\r\n", "");
    assert_int_equal(strlen(http_header(&r, "X-Request-Id")), 32);
    http_reply_free(&r);
#define A32  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define A128 A32 A32 A32 A32 /* MAX_REQUEST_ID */
    static const struct {
        const char *header, *fields, *id; /* NULL: ours */
    } given[] = {
        {"", "\"request_id\": \"of-vllm\"", "of-vllm"},
        {"", "\"rid\": \"of-sglang\"", "of-sglang"},
        {"X-Request-Id: a b\r\n", "\"rid\": \"c\"", "c"},
        {"X-Request-Id: a\r\n", "\"request_id\": \"b\", \"rid\": \"c\"", "a"},
        {"", "\"request_id\": \"a b\"", NULL},
        {"", "\"rid\": \"" A128 "\"", A128},
        {"", "\"rid\": \"" A128 "a\"", NULL},
        {"X-Request-Id: " A128 "a\r\n", "\"rid\": \"c\"", "c"},
        {"", "\"rid\": \"\"", NULL},
        {"", "\"rid\": [\"a\"]", NULL},
        {"", "\"rid\": \"a\\u0000b\"", NULL},
        {"", "\"rid\": \"a\\r\\nX-B: c\"", NULL},
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        char body[300];
        snprintf(body, sizeof body, "{\"prompt\": \"Hello\", \"max_tokens\": 1, %s}",
                 given[i].fields);
        r = http_exchange(s->port, "POST", COMPLETIONS, given[i].header, body);
        const char *id = http_header(&r, "X-Request-Id");
        json = json_loads(r.body.data, 0, NULL);
        if (given[i].id)
            assert_string_equal(id, given[i].id);
        else
            assert_int_equal(strlen(id), 32);
        assert_string_equal(served_text_at(json, "id") + strlen("cmpl-"), id);
        json_decref(json);
        http_reply_free(&r);
    }
    r = http_exchange(s->port, "POST", "/v1/messages", "",
                      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
                      "\"max_tokens\": 1, \"rid\": \"mine\"}");
    assert_string_equal(http_header(&r, "request-id"), "mine");
    json = json_loads(r.body.data, 0, NULL);
    served_expect_text(json, "id", "msg_mine");
    json_decref(json);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

/* Below /v1/messages an error has Anthropic's form, its statuses, and both names of the id. */
static void test_anthropic_errors(void **state)
{
    (void)state;
    static const struct {
        const char *head, *type;
        int status;
    } rows[] = {
        {"GET /v1/messages/nowhere HTTP/1.1\r\n\r\n", "not_found_error", 404},
        {"POST /v1/messages HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "request_too_large",
         413},
        {"POST /v1/messages?beta=true HTTP/1.1\r\nContent-Length: 9\r\n\r\n", "timeout_error", 408},
    };
    ServedOptions o = served_defaults();
    o.limits.http.request_timeout_s = 1;
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int fd = http_connect(s->port);
        StrBuf rest = {0};
        HttpReply r;
        http_write(fd, rows[i].head, strlen(rows[i].head));
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, rows[i].status);
        json_t *json = json_loadb(r.body.data, r.body.len, 0, NULL);
        served_expect_text(json, "type", "error");
        served_expect_text(json, "error.type", rows[i].type);
        assert_true(strlen(served_text_at(json, "error.message")) > 0);
        assert_string_equal(http_header(&r, "request-id"), served_text_at(json, "request_id"));
        assert_string_equal(http_header(&r, "X-Request-Id"), served_text_at(json, "request_id"));
        json_decref(json);
        http_reply_free(&r);
        strbuf_free(&rest);
        close(fd);
    }
    assert_int_equal(served_stop(s), 0);
}

/* ---- JSON that was made to hurt ---- */

static void add_times(StrBuf *sb, const char *text, int n)
{
    while (n--)
        strbuf_puts(sb, text);
}

static void test_hostile_json(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len; /* 0: to its NUL */
    } rows[] = {
        {"\xff\xfe{}", 0},
        {"{\"prompt\": \"\xc3\"}", 0},
        {"{\"prompt\": \"\xed\xa0\x80\"}", 0},
        {"{\"prompt\": \"\xf4\x90\x80\x80\"}", 0},
        {"{\"prompt\": \"\xc0\xaf\"}", 0},
        {"{\"prompt\": \"\\ud800\"}", 0},
        {"{\"prompt\": \"\\udc00\\ud800\"}", 0},
        {"{\"prompt\": \"\\u12\"}", 0},
        {"{\"prompt\": \"a\0b\"}", 17},
        {"{\"prompt\": \"Hello\"}\0", 20},
        {"{\"prompt\": \"Hello\", \"n\": 99999999999999999999}", 0},
        {"{\"prompt\": \"Hello\", \"max_tokens\": -99999999999999999999}", 0},
        {"{\"prompt\": \"Hello\", \"seed\": 18446744073709551616}", 0},
        {"{\"prompt\": \"Hello\", \"temperature\": 1e999}", 0},
        {"{\"prompt\": \"Hello\", \"temperature\": NaN}", 0},
        {"{\"prompt\": [9223372036854775807]}", 0},
        {"{\"prompt\": [-1]}", 0},
        {"{\"prompt\": \"Hello\"} {}", 0},
        {"{'prompt': 'Hello'}", 0},
        {"{\"prompt\": \"Hello\",}", 0},
    };
    static const char *const deep[][2] = {{"[", "]"}, {"{\"a\":", "}"}};
    Served *s = served_start(NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t len = rows[i].len ? rows[i].len : strlen(rows[i].text);
        char head[100];
        int fd = http_connect(s->port);
        StrBuf rest = {0};
        HttpReply r;
        snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nContent-Length: %zu\r\n\r\n", COMPLETIONS,
                 len);
        http_write(fd, head, strlen(head));
        http_write(fd, rows[i].text, len);
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        if (r.status != 400) fail_msg("%s: %d", rows[i].text, r.status);
        assert_non_null(strstr(r.body.data, "\"invalid_request_error\""));
        http_reply_free(&r);
        strbuf_free(&rest);
        close(fd);
    }
    for (int i = 0; i < 4; i++) {
        StrBuf body = {0};
        add_times(&body, deep[i / 2][0], 60000);
        if (i % 2) add_times(&body, deep[i / 2][1], 60000);
        json_decref(served_post(s, COMPLETIONS, body.data, 400));
        strbuf_free(&body);
    }
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* ---- a model gone wrong ---- */

/* A row of NaN ends its request with 500, or with an event once the stream has begun. */
static void test_model_without_numbers(void **state)
{
    (void)state;
    served_break_model(1);
    Served *s = served_start(NULL);
    HttpReply r = http_exchange(s->port, "POST", COMPLETIONS, "", SHORT);
    assert_int_equal(r.status, 500);
    served_expect_error(&r, "server_error");
    assert_string_equal(http_header(&r, "x-should-retry"), "false");
    http_reply_free(&r);
    r = http_exchange(s->port, "POST", COMPLETIONS, "", STREAMED);
    assert_int_equal(r.status, 500);
    http_reply_free(&r);
    r = http_exchange(s->port, "GET", "/health", "", "");
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
    served_break_model(0);
}

/* ---- full ---- */

static void test_full_queue(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.max_seqs = o.max_waiting = 1;
    Served *s = served_start(&o);
    int fd[2];
    for (int i = 0; i < 2; i++) {
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", COMPLETIONS, "", ENDLESS);
    }
    while (server_n_live(s->server) < 2)
        usleep(1000);
    HttpReply r = http_exchange(s->port, "POST", COMPLETIONS, "", SHORT);
    assert_int_equal(r.status, 429);
    assert_non_null(strstr(r.head.data, " 429 Too Many Requests\r\n"));
    served_expect_error(&r, "rate_limit_error");
    assert_string_equal(http_header(&r, "Retry-After"), "1");
    http_reply_free(&r);
    close(fd[0]);
    close(fd[1]);
    served_wait_idle(s);
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* ---- model names and lengths of answers ---- */

static void test_model_names_and_lengths(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.strict_model = 1;
    o.default_max_tokens = 2;
    Served *s = served_start(&o);
    json_t *r = served_post(s, COMPLETIONS, "{\"prompt\": \"Hello\", \"model\": \"gpt-9\"}", 404);
    assert_string_equal(json_string_value(served_at(r, "error.code")), "model_not_found");
    assert_string_equal(json_string_value(served_at(r, "error.type")), "not_found_error");
    json_decref(r);
    static const char *const others[][2] = {
        {"/v1/messages", "{\"model\": \"x\", \"max_tokens\": 1, " MESSAGES "}"},
        {"/v1/messages/count_tokens", "{\"model\": \"x\", " MESSAGES "}"},
        {"/v1/responses", "{\"model\": \"x\", \"input\": \"Hi\"}"},
        {"/v1/responses/input_tokens", "{\"model\": \"x\", \"input\": \"Hi\"}"}};
    for (int i = 0; i < 4; i++)
        json_decref(served_post(s, others[i][0], others[i][1], 404));
    json_decref(served_post(s, others[1][0], "{\"model\": \"demo\", " MESSAGES "}", 200));
    static const char *const taken[] = {"{\"prompt\": \"Hello\", \"ignore_eos\": true}",
                                        "{\"prompt\": \"Hello\", \"ignore_eos\": true, "
                                        "\"model\": \"demo\"}"};
    for (int i = 0; i < 2; i++) {
        r = served_post(s, COMPLETIONS, taken[i], 200);
        assert_int_equal(json_integer_value(served_at(r, "usage.completion_tokens")), 2);
        json_decref(r);
    }
    assert_int_equal(served_stop(s), 0);
}

/* The model's file says how long a chat's answer is where nobody else does, as with vLLM. */
static void test_length_of_the_model(void **state)
{
    static const struct {
        const char *path, *body, *tokens;
        int n;
    } cases[] = {
        {CHAT, "{" MESSAGES ", \"ignore_eos\": true}", "usage.completion_tokens", 5},
        {CHAT, "{" MESSAGES ", \"ignore_eos\": true, \"max_tokens\": 7}", "usage.completion_tokens",
         7},
        {CHAT, "{" MESSAGES ", \"ignore_eos\": true, \"max_completion_tokens\": null}",
         "usage.completion_tokens", 5},
        {"/v1/responses", "{\"input\": \"Hi\", \"ignore_eos\": true}", "usage.output_tokens", 5},
        {COMPLETIONS, "{\"prompt\": \"Hello\", \"ignore_eos\": true}", "usage.completion_tokens",
         16},
    };
    (void)state;
    ServedOptions o = served_defaults();
    o.model_max_tokens = 5;
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *r = served_post(s, cases[i].path, cases[i].body, 200);
        assert_int_equal(json_integer_value(served_at(r, cases[i].tokens)), cases[i].n);
        json_decref(r);
    }
    assert_int_equal(served_stop(s), 0);
    o.default_max_tokens = 3;
    s = served_start(&o);
    json_t *r = served_post(s, cases[0].path, cases[0].body, 200);
    assert_int_equal(json_integer_value(served_at(r, "usage.completion_tokens")), 3);
    json_decref(r);
    assert_int_equal(served_stop(s), 0);

    /* What would be refused if a client asked for it is made shorter where none did. */
    static const char many[] = "{" MESSAGES ", \"n\": 8, \"logprobs\": true, \"top_logprobs\": 20, "
                               "\"temperature\": 0%s}";
    char body[256];
    o.default_max_tokens = 0;
    o.model_max_tokens = 100000;
    o.ctx_size = 8192;
    s = served_start(&o);
    snprintf(body, sizeof body, many, "");
    json_decref(served_post(s, cases[0].path, body, 200));
    snprintf(body, sizeof body, many, ", \"max_tokens\": 100000");
    r = served_post(s, cases[0].path, body, 400);
    assert_non_null(strstr(served_text_at(r, "error.message"), "log-probabilities of answers"));
    json_decref(r);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_routes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_context_length),
        cmocka_unit_test(test_request_ids),
        cmocka_unit_test(test_anthropic_errors),
        cmocka_unit_test(test_hostile_json),
        cmocka_unit_test(test_model_without_numbers),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_model_names_and_lengths),
        cmocka_unit_test(test_length_of_the_model),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
