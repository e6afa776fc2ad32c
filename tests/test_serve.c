/*
 * test_serve.c: the server between its first and its last second: a port that is taken, loading,
 * silence, a stalled engine, stopping.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/served.h"

#define COMPLETIONS "/v1/completions"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0}"
#define STREAMED    "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0, \"stream\": true}"
#define ENDLESS     "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true}"
#define ENDLESS_STREAM                                                                             \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"

/* The reply's status and, of an error, its code. */
static void assert_answer(const HttpReply *r, int status, const char *code)
{
    assert_int_equal(r->status, status);
    if (!code) return;
    json_t *json = json_loadb(strbuf_str(&r->body), r->body.len, 0, NULL);
    if (!json) fail_msg("no JSON: %s", strbuf_str(&r->body));
    served_expect_text(json, "error.code", code);
    json_decref(json);
}

static void ask(const Served *s, const char *method, const char *path, const char *headers,
                const char *body, int status, const char *code)
{
    HttpReply r = http_exchange(s->port, method, path, headers, body);
    assert_answer(&r, status, code);
    http_reply_free(&r);
}

/* ---- a drafter that holds the engine ---- */

/* The engine stands still in its first step with a new sequence until the gate is opened. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    int is_open, n_held;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

static void set_gate(int is_open)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_open = is_open;
    gate.n_held = 0;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
}

static void gate_begin(void *self, int seq, const int32_t *token, int n)
{
    (void)self;
    (void)seq;
    (void)token;
    (void)n;
    pthread_mutex_lock(&gate.lock);
    gate.n_held++;
    while (!gate.is_open)
        pthread_cond_wait(&gate.opened, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static int gate_bind(void *self, struct Engine *engine, Error *err)
{
    (void)self;
    (void)engine;
    (void)err;
    return 0;
}

static void gate_observe(void *self, const DraftObserved *rows)
{
    (void)self;
    (void)rows;
}

static void gate_propose(void *self, const DraftRequest *request, int n_requests,
                         const DraftGuide *guide)
{
    (void)guide;
    (void)self;
    (void)request;
    (void)n_requests;
}

static const Drafter gatekeeper = {.name = "gate",
                                   .self = &gate,
                                   .bind = gate_bind,
                                   .begin = gate_begin,
                                   .observe = gate_observe,
                                   .propose = gate_propose};

static Served *start_held(ServedOptions *o)
{
    set_gate(0);
    o->drafter = &gatekeeper;
    return served_start(o);
}

static void wait_until_held(void)
{
    for (int held = 0; !held; usleep(1000)) {
        pthread_mutex_lock(&gate.lock);
        held = gate.n_held;
        pthread_mutex_unlock(&gate.lock);
    }
}

/* ---- loading ---- */

static void test_loading(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.not_loaded = 1;
    o.api_key = "secret";
    Served *s = served_start(&o);
    static const char *const paths[] = {"/health", "/v1/health", "/ping", "/v1/models"};
    static const char key[] = "x-api-key: secret\r\n";
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        HttpReply r = http_exchange(s->port, "GET", paths[i], key, "");
        assert_answer(&r, 503, "loading");
        assert_string_equal(http_header(&r, "Retry-After"), "5");
        assert_non_null(strstr(r.body.data, "\"Loading model\""));
        assert_non_null(strstr(r.body.data, "\"overloaded_error\""));
        http_reply_free(&r);
    }
    ask(s, "POST", COMPLETIONS, key, SHORT, 503, "loading");
    ask(s, "POST", COMPLETIONS, "", SHORT, 401, "invalid_api_key");
    ask(s, "HEAD", "/health", "", "", 503, NULL);
    ask(s, "GET", "/version", "", "", 200, NULL);
    ask(s, "OPTIONS", COMPLETIONS, "", "", 204, NULL);
    ask(s, "GET", "/nowhere", "", "", 404, NULL);
    ask(s, "GET", COMPLETIONS, "", "", 405, NULL);
    assert_false(server_is_ready(s->server));
    served_load(s, 1);
    while (!server_is_ready(s->server))
        usleep(1000);
    ask(s, "GET", "/health", "", "", 200, NULL);
    ask(s, "POST", COMPLETIONS, key, SHORT, 200, NULL);
    assert_int_equal(served_stop(s), 0);
}

static void test_loading_fails(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.not_loaded = 1;
    Served *s = served_start(&o);
    ask(s, "GET", "/health", "", "", 503, "loading");
    served_load(s, 0);
    served_join(s);
    assert_int_equal(s->err.code, ERR_FILE);
    assert_string_equal(s->err.msg, "the file is broken");
    assert_int_equal(served_stop(s), -1);
}

static void test_stop_while_loading(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.not_loaded = 1;
    o.limits.drain_s = 1000;
    Served *s = served_start(&o);
    server_stop(s->server);
    served_join(s); /* although the loader is still at it */
    served_load(s, 1);
    assert_int_equal(served_stop(s), 0);
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
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* ---- silence ---- */

/* Takes the comments out of a stream: each must be a whole message. Their number. */
static int drop_comments(HttpReply *r)
{
    static const char comment[] = ": keep-alive\n\n";
    size_t n = strlen(comment);
    int n_comments = 0;
    for (char *at = r->body.data; *at; at = strstr(at, "\n\n") + 2) {
        for (; !strncmp(at, comment, n); n_comments++) {
            memmove(at, at + n, strlen(at + n) + 1);
            r->body.len -= n;
        }
        if (!strstr(at, "\n\n")) break;
    }
    return n_comments;
}

/* Comments come while nothing else does, before the first token too. */
static void test_keep_alive_comments(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.keepalive_s = 1;
    Served *s = start_held(&o);
    int fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "", STREAMED);
    wait_until_held();
    assert_true(http_readable(fd, 10000));
    set_gate(1);
    StrBuf rest = {0};
    HttpReply r;
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_header(&r, "Content-Type"), "text/event-stream");
    assert_true(drop_comments(&r) > 0);
    json_t *events = http_events(&r);
    assert_true(json_array_size(events) > 0);
    json_decref(events);
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

/* Off: a failure before the first token still has its status, however late. */
static void test_no_keep_alive_comments(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.keepalive_s = 0;
    Served *s = start_held(&o);
    int fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "", STREAMED);
    wait_until_held();
    assert_false(http_readable(fd, 2500));
    set_gate(1);
    assert_true(http_readable(fd, 10000));
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

/* ---- a stalled engine ---- */

static void test_stalled_engine(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.stall_s = 1;
    Served *s = start_held(&o);
    usleep(1500000); /* idle is not stalled */
    ask(s, "GET", "/health", "", "", 200, NULL);
    int fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "", SHORT);
    wait_until_held();
    HttpReply r = {0};
    for (int ms = 0; r.status != 503; ms += 50) {
        if (ms > 20000) fail_msg("never");
        http_reply_free(&r);
        usleep(50000);
        r = http_exchange(s->port, "GET", "/health", "", "");
    }
    assert_answer(&r, 503, "stalled");
    http_reply_free(&r);
    set_gate(1);
    StrBuf rest = {0};
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    ask(s, "GET", "/health", "", "", 200, NULL);
    assert_int_equal(served_stop(s), 0);
}

/* ---- stopping ---- */

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
        served_expect_error(&r, "overloaded_error");
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
        http_send(fd[i], "POST", COMPLETIONS, "", i % 2 ? ENDLESS : ENDLESS_STREAM);
    }
    while (server_n_live(s->server) < 6)
        usleep(1000);
    assert_int_equal(served_stop(s), 0);
    for (int i = 0; i < 6; i++)
        close(fd[i]);
}

/* Asked twice, it ends although answers run and there would be time. */
static void test_second_stop(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.drain_s = 1000;
    Served *s = served_start(&o);
    int fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "", ENDLESS);
    while (server_n_live(s->server) < 1)
        usleep(1000);
    server_stop(s->server);
    ask(s, "GET", "/health", "", "", 503, "draining");
    assert_int_equal(served_stop(s), 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_loading_fails),
        cmocka_unit_test(test_stop_while_loading),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_keep_alive_comments),
        cmocka_unit_test(test_no_keep_alive_comments),
        cmocka_unit_test(test_stalled_engine),
        cmocka_unit_test(test_stop_lets_answers_finish),
        cmocka_unit_test(test_stop_is_bounded),
        cmocka_unit_test(test_second_stop),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
