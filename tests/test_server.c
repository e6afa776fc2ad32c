/*
 * test_server.c: the server as seen from a socket: routes, refusals, half requests, clients that
 * vanish or do not read, full queues, stopping. What the answers say is in test_answers.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/served.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0}"
#define ENDLESS     "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true}"
#define TEMPLATE                                                                                   \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"chat_template\": \"x\"}"
#define STREAMED                                                                                   \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void assert_text(const json_t *value, const char *path, const char *text)
{
    const char *s = json_string_value(served_at(value, path));
    if (!s || strcmp(s, text) != 0) fail_msg("%s is %s, not %s", path, s ? s : "absent", text);
}

/* An error object has its four keys, whatever the error. */
static void assert_error(const HttpReply *r, const char *type)
{
    json_t *json = json_loadb(strbuf_str(&r->body), r->body.len, 0, NULL);
    if (!json) fail_msg("no JSON: %s", strbuf_str(&r->body));
    assert_text(json, "error.type", type);
    assert_true(json_string_length(served_at(json, "error.message")) > 0);
    assert_non_null(served_at(json, "error.param"));
    assert_non_null(served_at(json, "error.code"));
    json_decref(json);
}

/* A plain request works: whatever came before has broken nothing. */
static void assert_alive(const Served *s)
{
    json_t *json = served_post(s, COMPLETIONS, SHORT, 200);
    assert_text(json, "object", "text_completion");
    json_decref(json);
}

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
    assert_text(json, "data.0.id", "demo");
    assert_text(json, "data.0.root", "demo");
    assert_text(json, "data.0.object", "model");
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
        assert_error(&r, rows[i].type);
        if (rows[i].allow) assert_string_equal(http_header(&r, "Allow"), rows[i].allow);
        http_reply_free(&r);
    }
    assert_alive(s);
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
    assert_text(json, "error.code", "context_length_exceeded");
    assert_text(json, "error.param", "prompt");
    assert_text(json, "error.message",
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
    assert_text(json, "id", "cmpl-abc.7");
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
    assert_text(json, "id", "msg_mine");
    json_decref(json);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

static void test_api_key(void **state)
{
    (void)state;
    static const struct {
        const char *path, *headers;
        int status;
    } rows[] = {
        {"/health", "", 200},
        {"/v1/models", "", 401},
        {"/v1/models", "Authorization: Bearer\r\n", 401},
        {"/v1/models", "Authorization: Bearer \r\n", 401},
        {"/v1/models", "Authorization: Bearer secre\r\n", 401},
        {"/v1/models", "Authorization: Bearer secrett\r\n", 401},
        {"/v1/models", "Authorization: Bearer secretsecret\r\n", 401},
        {"/v1/models", "Authorization: Basic secret\r\n", 401},
        {"/v1/models", "x-api-key: Secret\r\n", 401},
        {"/v1/models", "Authorization: Bearer secret\r\n", 200},
        {"/v1/models", "authorization: bearer secret\r\n", 200},
        {"/v1/models", "x-api-key: secret\r\n", 200},
    };
    ServedOptions o = served_defaults();
    o.api_key = "secret";
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        HttpReply r = http_exchange(s->port, "GET", rows[i].path, rows[i].headers, "");
        if (r.status != rows[i].status) fail_msg("%s: %d", rows[i].headers, r.status);
        if (r.status == 401) assert_error(&r, "authentication_error");
        if (r.status == 401) assert_string_equal(http_header(&r, "WWW-Authenticate"), "Bearer");
        http_reply_free(&r);
    }
    HttpReply r = http_exchange(s->port, "OPTIONS", CHAT, "", "");
    assert_int_equal(r.status, 204);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

/* ---- connections ---- */

/* One connection, several requests: one after another, after a stream, and all at once. */
static void test_keep_alive_and_pipelining(void **state)
{
    (void)state;
    static const char stream[] = "{\"prompt\": \"Hello\", \"max_tokens\": 5, \"stream\": true}";
    Served *s = served_start(NULL);
    int fd = http_connect(s->port);
    StrBuf rest = {0};
    HttpReply r;
    for (int i = 0; i < 6; i++) {
        http_send(fd, "POST", COMPLETIONS, "", i % 2 ? SHORT : stream);
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.chunked, i % 2 == 0);
        http_reply_free(&r);
    }
    for (int i = 0; i < 6; i++)
        http_send(fd, i % 3 ? "POST" : "GET", i % 3 ? COMPLETIONS : "/health", "",
                  i % 3 == 1 ? SHORT
                  : i % 3    ? stream
                             : "");
    for (int i = 0; i < 6; i++) {
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.chunked, i % 3 == 2);
        http_reply_free(&r);
    }
    assert_int_equal(rest.len, 0);
    strbuf_free(&rest);
    close(fd);

    /* The next request comes while the answer is being made. */
    fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "",
              "{\"prompt\": \"Hello\", \"max_tokens\": 100, \"ignore_eos\": true}");
    while (server_n_live(s->server) < 1)
        usleep(1000);
    http_send(fd, "POST", COMPLETIONS, "", SHORT);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
    }
    strbuf_free(&rest);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

static void test_chunked_and_expected_bodies(void **state)
{
    (void)state;
    static const char chunked[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n"
                                  "10\r\n{\"prompt\": \"Hell\r\n"
                                  "13\r\no\", \"max_tokens\": 2\r\n1\r\n}\r\n0\r\n\r\n";
    Served *s = served_start(NULL);
    int fd = http_connect(s->port);
    StrBuf rest = {0};
    HttpReply r;
    http_write(fd, chunked, strlen(chunked));
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);

    char head[200];
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
             "Content-Length: %zu\r\n\r\n",
             strlen(SHORT));
    http_write(fd, head, strlen(head));
    assert_int_equal(http_read(fd, &rest, 1, &r), 0);
    assert_int_equal(r.status, 100);
    http_reply_free(&r);
    http_write(fd, SHORT, strlen(SHORT));
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

/* Sends bytes as they are and reads the status of the reply; 0 when there is none. */
static int status_of(const Served *s, const char *data, size_t len)
{
    int fd = http_connect(s->port);
    StrBuf rest = {0};
    HttpReply r = {0};
    http_write(fd, data, len);
    int status = http_read(fd, &rest, 0, &r) ? 0 : r.status;
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    return status;
}

static void test_too_large_or_unclear(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        int status;
    } rows[] = {
        {"POST /tokenize HTTP/1.1\r\nContent-Length: 100001\r\n\r\n", 413},
        {"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413},
        {"POST /tokenize HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400},
        {"GET /health HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
         "2\r\n{}\r\n0\r\n\r\n",
         400},
        {"GET /health\r\n\r\n", 400},
        {"what is this\r\n\r\n", 400},
    };
    ServedOptions o = served_defaults();
    o.limits.http.body_bytes = 100000;
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status = status_of(s, rows[i].data, strlen(rows[i].data));
        if (status != rows[i].status) fail_msg("%s: %d", rows[i].data, status);
    }
    StrBuf big = {0};
    strbuf_puts(&big, "GET /health HTTP/1.1\r\nX-Big: ");
    for (int i = 0; i < 40000; i++)
        strbuf_puts(&big, "a");
    strbuf_puts(&big, "\r\n\r\n");
    assert_int_equal(status_of(s, big.data, big.len), 431);
    strbuf_free(&big);
    assert_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Every beginning of a request, then silence or the end of the connection. */
static void test_half_requests(void **state)
{
    (void)state;
    static const char whole[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                "Content-Length: 60\r\n\r\n{\"prompt\": \"Hello\"";
    ServedOptions o = served_defaults();
    o.limits.http.idle_timeout_s = o.limits.http.request_timeout_s = 1;
    Served *s = served_start(&o);
    for (size_t n = 0; n < strlen(whole); n += 3) {
        int fd = http_connect(s->port);
        http_write(fd, whole, n);
        close(fd);
    }
    int fds[4];
    for (size_t i = 0; i < 3; i++) {
        fds[i] = http_connect(s->port);
        http_write(fds[i], whole, i * strlen(whole) / 2);
    }
    /* The fourth is idle after a whole one. */
    StrBuf rest = {0};
    HttpReply r;
    fds[3] = http_connect(s->port);
    http_send(fds[3], "POST", COMPLETIONS, "", SHORT);
    assert_int_equal(http_read(fds[3], &rest, 0, &r), 0);
    http_reply_free(&r);
    /* Nothing is to be said to those that have asked for nothing. */
    for (int i = 0; i < 4; i++) {
        if (i == 1 || i == 2) {
            assert_int_equal(http_read(fds[i], &rest, 0, &r), 0);
            assert_int_equal(r.status, 408);
            assert_error(&r, "invalid_request_error");
            assert_string_equal(http_header(&r, "Connection"), "close");
            http_reply_free(&r);
        }
        assert_true(http_closed(fds[i], 10000));
        close(fds[i]);
    }
    strbuf_free(&rest);
    assert_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Time-outs are for requests: an answer may take longer than that. */
static void test_long_answers_outlive_the_timeouts(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.http.idle_timeout_s = o.limits.http.request_timeout_s = 1;
    Served *s = served_start(&o);
    double took = 0;
    /* Long enough on any machine, and no longer than it takes on this one. */
    for (int n = 60; took < 1.5 && n <= 8000; n *= 2) {
        char body[200];
        snprintf(body, sizeof body,
                 "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": %d, \"n\": 4}", n);
        double start = now_s();
        json_decref(served_post(s, COMPLETIONS, body, 200));
        took = now_s() - start;
    }
    assert_int_equal(served_stop(s), 0);
}

/* ---- clients that vanish ---- */

/* Reads a bit of a reply. */
static void read_some(int fd)
{
    char buf[512];
    assert_true(recv(fd, buf, sizeof buf, 0) > 0);
}

static void test_vanished_clients(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.max_seqs = 1;
    Served *s = served_start(&o);
    for (int round = 0; round < 3; round++) {
        /* One in the middle of its stream, one that gets a whole reply, some that still wait. */
        int fd[5];
        for (int i = 0; i < 5; i++) {
            fd[i] = http_connect(s->port);
            http_send(fd[i], "POST", COMPLETIONS, "", i % 2 ? ENDLESS : STREAMED);
            if (!i) read_some(fd[0]);
        }
        while (server_n_live(s->server) < 5)
            usleep(1000);
        /* Who only says no more cannot be told from who is gone. */
        for (int i = 0; i < 5 && round == 2; i++)
            shutdown(fd[i], SHUT_WR);
        if (round == 2) served_wait_idle(s);
        for (int i = 0; i < 5; i++)
            close(fd[round ? i : 4 - i]);
        served_wait_idle(s);
    }
    assert_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Resets instead of ends, in the middle of a step or wherever it happens to be. */
static void test_resets(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    struct linger reset = {.l_onoff = 1};
    for (int i = 0; i < 30; i++) {
        int fd = http_connect(s->port);
        http_send(fd, "POST", COMPLETIONS, "", i % 3 ? STREAMED : ENDLESS);
        usleep((useconds_t)i * 300);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
    }
    served_wait_idle(s);
    assert_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Somebody who asks for much and reads nothing is dropped; the others do not notice. */
static void test_slow_reader_is_dropped(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.http.unsent_bytes = 1000;
    o.limits.http.write_timeout_s = 1;
    Served *s = served_start(&o);
    static const char body[] =
        "{\"logprobs\": 20, \"stream\": true, \"max_tokens\": 8000, \"ignore_eos\": true, "
        "\"n\": 4, \"prompt\": \"Hello\"}";
    int fd = http_connect(s->port), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    http_send(fd, "POST", COMPLETIONS, "", body);
    read_some(fd);
    served_wait_idle(s);
    assert_alive(s);
    close(fd);
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
    assert_error(&r, "server_error");
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

/* ---- full and stopping ---- */

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
    assert_error(&r, "rate_limit_error");
    assert_string_equal(http_header(&r, "Retry-After"), "1");
    http_reply_free(&r);
    close(fd[0]);
    close(fd[1]);
    served_wait_idle(s);
    assert_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Running answers finish, new ones are refused by who still listens, and the process exits with 0.
 */
static void test_stop_lets_answers_finish(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.drain_s = 60;
    Served *s = served_start(&o);
    /* Its reader takes nothing of it until we have looked: it cannot end before. */
    static const char body[] = "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": 300, "
                               "\"stream\": true, \"logprobs\": 20}";
    int fd = http_connect(s->port), port = s->port, small = 4096;
    StrBuf rest = {0};
    HttpReply r;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    http_send(fd, "POST", COMPLETIONS, "", body);
    while (server_n_live(s->server) < 1)
        usleep(1000);
    server_stop(s->server);
    static const char *const paths[] = {"/health", COMPLETIONS};
    for (int i = 0; i < 2; i++) {
        r = http_exchange(port, i ? "POST" : "GET", paths[i], "", i ? SHORT : "");
        assert_int_equal(r.status, 503);
        assert_error(&r, "overloaded_error");
        assert_non_null(strstr(r.body.data, "\"draining\""));
        assert_string_equal(http_header(&r, "Retry-After"), "5");
        http_reply_free(&r);
    }
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    json_t *events = http_events(&r);
    assert_true(json_array_size(events) > 5);
    json_decref(events);
    http_reply_free(&r);
    served_join(s);
    close(fd);
    strbuf_free(&rest);
    assert_int_equal(served_stop(s), 0);
    assert_int_equal(http_connect(port), -1);
}

/* Answers that take too long are cut; nothing is left behind. */
static void test_stop_is_bounded(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.drain_s = 1;
    o.max_seqs = 2;
    Served *s = served_start(&o);
    int fd[6];
    for (int i = 0; i < 6; i++) {
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", COMPLETIONS, "", i % 2 ? ENDLESS : STREAMED);
    }
    while (server_n_live(s->server) < 6)
        usleep(1000);
    assert_int_equal(served_stop(s), 0);
    for (int i = 0; i < 6; i++)
        close(fd[i]);
}

/*
 * The program itself, once it is ready. shown: host in its log. hangs_up: 0 as nohup starts it.
 * rest, unless NULL: what it logs from then on.
 */
static pid_t start_program_at(const char *host, const char *shown, int hangs_up, int *port,
                              FILE **rest)
{
    const char *const words[] = {OFFSHOOT_BINARY, "serve", "--model", "models/demo", "--port", "0",
                                 "--memory",      "64M",   "--host",  host,          NULL};
    int fd[2], ready = 0;
    char line[2000], listening[100];
    snprintf(listening, sizeof listening, "listening address=%s:", shown);
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (!pid) {
        dup2(fd[1], STDERR_FILENO);
        if (!hangs_up) signal(SIGHUP, SIG_IGN);
        execv(words[0], (char *const *)(size_t)words);
        _exit(127);
    }
    close(fd[1]);
    FILE *log = fdopen(fd[0], "r");
    *port = 0;
    while (!ready && fgets(line, sizeof line, log)) {
        const char *at = strstr(line, listening);
        if (at) *port = atoi(at + strlen(listening));
        ready = strstr(line, "ready seconds=") != NULL;
    }
    assert_true(*port > 0 && ready);
    if (rest)
        *rest = log;
    else
        fclose(log);
    return pid;
}

static pid_t start_program(int hangs_up, int *port)
{
    return start_program_at("127.0.0.1", "127.0.0.1", hangs_up, port, NULL);
}

static double number_behind(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

static void assert_ends(pid_t pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_program_ends_on_sigterm(void **state)
{
    (void)state;
    int port;
    pid_t pid = start_program(1, &port);
    int client = http_connect(port);
    http_send(client, "POST", COMPLETIONS, "", "{\"prompt\": \"Hello\", \"stream\": true}");
    read_some(client);
    kill(pid, SIGTERM);
    assert_ends(pid);
    close(client);
}

/* The first token comes before the time that the rate is of: one alone has none. */
static void test_program_logs_a_rate(void **state)
{
    (void)state;
    static const int n_tokens[] = {1, 20};
    int port;
    FILE *log;
    char line[2000];
    pid_t pid = start_program_at("127.0.0.1", "127.0.0.1", 1, &port, &log);
    for (int i = 0; i < 2; i++) {
        char body[100];
        double rate, decode_ms;
        snprintf(body, sizeof body,
                 "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": %d}", n_tokens[i]);
        HttpReply r = http_exchange(port, "POST", COMPLETIONS, "", body);
        assert_int_equal(r.status, 200);
        decode_ms = number_behind(strbuf_str(&r.body), "\"predicted_ms\":");
        http_reply_free(&r);
        assert_non_null(fgets(line, sizeof line, log));
        rate = number_behind(line, " tokens_per_s=");
        assert_true(fabs(rate - (n_tokens[i] - 1) * 1e3 / decode_ms) <= 0.06);
    }
    kill(pid, SIGTERM);
    assert_ends(pid);
    fclose(log);
}

/* A terminal that closes says so more than once, and lets answers finish all the same. */
static void test_program_and_other_signals(void **state)
{
    (void)state;
    static const int sent[] = {SIGUSR1, SIGUSR2, SIGXFSZ, SIGHUP, SIGHUP};
    int port;
    pid_t pid = start_program(1, &port);
    int client = http_connect(port);
    StrBuf rest = {0};
    HttpReply r;
    http_send(
        client, "POST", COMPLETIONS, "",
        "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": 500, \"stream\": true}");
    assert_true(http_readable(client, 10000));
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        kill(pid, sent[i]);
        usleep(10000);
    }
    assert_int_equal(http_read(client, &rest, 0, &r), 0);
    json_decref(http_events(&r)); /* to its [DONE] */
    http_reply_free(&r);
    strbuf_free(&rest);
    close(client);
    assert_ends(pid);

    pid = start_program(0, &port);
    kill(pid, SIGHUP);
    usleep(10000);
    r = http_exchange(port, "GET", "/health", "", "");
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    kill(pid, SIGTERM);
    assert_ends(pid);
}

/* The log has the address as a URL has it. */
static void test_program_on_ipv6(void **state)
{
    (void)state;
    struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int port, fd = socket(AF_INET6, SOCK_STREAM, 0);
    int has_ipv6 = fd >= 0 && !bind(fd, (struct sockaddr *)&here, sizeof here);
    if (fd >= 0) close(fd);
    if (!has_ipv6) skip();
    pid_t pid = start_program_at("::1", "[::1]", 1, &port, NULL);
    kill(pid, SIGTERM);
    assert_ends(pid);
}

static void test_port_in_use(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    Settings settings = s->settings;
    ServiceLoader loader = {NULL, NULL}; /* is not asked */
    Error err = {0};
    settings.port = s->port;
    assert_null(server_open(&settings, &loader, &err));
    assert_int_equal(err.code, ERR_BUSY);
    assert_non_null(strstr(err.msg, "in use"));
    settings.port = 0;
    settings.host = "192.0.2.1"; /* of no machine (RFC 5737) */
    assert_null(server_open(&settings, &loader, &err));
    assert_int_equal(err.code, ERR_BUSY);
    settings.host = "no.such.host.invalid";
    assert_null(server_open(&settings, &loader, &err));
    assert_alive(s);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_routes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_context_length),
        cmocka_unit_test(test_request_ids),
        cmocka_unit_test(test_api_key),
        cmocka_unit_test(test_keep_alive_and_pipelining),
        cmocka_unit_test(test_chunked_and_expected_bodies),
        cmocka_unit_test(test_too_large_or_unclear),
        cmocka_unit_test(test_half_requests),
        cmocka_unit_test(test_long_answers_outlive_the_timeouts),
        cmocka_unit_test(test_vanished_clients),
        cmocka_unit_test(test_resets),
        cmocka_unit_test(test_slow_reader_is_dropped),
        cmocka_unit_test(test_model_without_numbers),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_stop_lets_answers_finish),
        cmocka_unit_test(test_stop_is_bounded),
        cmocka_unit_test(test_program_ends_on_sigterm),
        cmocka_unit_test(test_program_logs_a_rate),
        cmocka_unit_test(test_program_and_other_signals),
        cmocka_unit_test(test_program_on_ipv6),
        cmocka_unit_test(test_port_in_use),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
