/*
 * test_serve.c: the server between its first and its last second: loading, silence, a stalled
 * engine, stopping; and who may ask: keys, origins. And JSON that was made to hurt.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/served.h"

#define COMPLETIONS "/v1/completions"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0}"
#define STREAMED    "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0, \"stream\": true}"

static void assert_alive(const Served *s)
{
    json_decref(served_post(s, COMPLETIONS, SHORT, 200));
}

static const char *text_at(const json_t *value, const char *path)
{
    const char *text = json_string_value(served_at(value, path));
    return text ? text : "";
}

/* The reply's status and, of an error, its code. */
static void assert_answer(const HttpReply *r, int status, const char *code)
{
    assert_int_equal(r->status, status);
    if (!code) return;
    json_t *json = json_loadb(strbuf_str(&r->body), r->body.len, 0, NULL);
    if (!json) fail_msg("no JSON: %s", strbuf_str(&r->body));
    assert_string_equal(text_at(json, "error.code"), code);
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

static pid_t start_program(const char *model, FILE **log, int *port)
{
    const char *words[] = {OFFSHOOT_BINARY,   "serve", "--model", model, "--port",   "0",
                           "--dummy-weights", "bf16",  "--quant", "q4",  "--memory", "64M",
                           "--device",        "cpu",   NULL};
    int fd[2];
    char line[2000];
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (!pid) {
        /* Who ends while it loads joins no thread: ThreadSanitizer calls that a leak. */
        setenv("TSAN_OPTIONS", "report_thread_leaks=0", 0);
        dup2(fd[1], STDERR_FILENO);
        execv(words[0], (char *const *)(size_t)words);
        _exit(127);
    }
    close(fd[1]);
    *log = fdopen(fd[0], "r");
    *port = 0;
    while (!*port && fgets(line, sizeof line, *log)) {
        const char *at = strstr(line, "listening address=127.0.0.1:");
        if (at) *port = atoi(strchr(at, ':') + 1);
    }
    return pid;
}

/* A folder for random weights of so large a shape that they take many seconds. */
static void link_large_shape(const char *dir, int is_there)
{
    static const char *const files[][2] = {
        {"tests/data/configs/qwen3.5-4b/config.json", "config.json"},
        {"models/demo/tokenizer.json", "tokenizer.json"},
    };
    for (int i = 0; i < 2; i++) {
        char target[PATH_MAX], path[64];
        snprintf(path, sizeof path, "%s/%s", dir, files[i][1]);
        assert_non_null(realpath(files[i][0], target));
        assert_int_equal(is_there ? symlink(target, path) : unlink(path), 0);
    }
}

/* The program itself, ended while it makes its weights. */
static void test_program_ends_while_loading(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_serve_XXXXXX";
    int port, status = -1;
    FILE *log;
    assert_non_null(mkdtemp(dir));
    link_large_shape(dir, 1);
    pid_t pid = start_program(dir, &log, &port);
    assert_true(port > 0);
    HttpReply r = http_exchange(port, "GET", "/health", "", "");
    assert_answer(&r, 503, "loading");
    http_reply_free(&r);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    fclose(log);
    link_large_shape(dir, 0);

    /* And over none at all: the error's exit status, as for the other commands. */
    pid = start_program(dir, &log, &port);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    fclose(log);
    rmdir(dir);
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

/* Asked twice, it ends although answers run and there would be time. */
static void test_second_stop(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.drain_s = 1000;
    Served *s = served_start(&o);
    int fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "",
              "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true}");
    while (server_n_live(s->server) < 1)
        usleep(1000);
    server_stop(s->server);
    ask(s, "GET", "/health", "", "", 503, "draining");
    assert_int_equal(served_stop(s), 0);
    close(fd);
}

/* ---- who may ask ---- */

static void test_several_keys(void **state)
{
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } rows[] = {
        {"", 401},
        {"x-api-key: one\r\n", 200},
        {"x-api-key: two\r\n", 200},
        {"Authorization: Bearer three\r\n", 200},
        {"Authorization:   BEARER   two\r\n", 200},
        {"Authorization: Bearer wrong\r\nx-api-key: one\r\n", 200},
        {"Authorization: Bearer\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: Bearer onetwo\r\n", 401},
        {"Authorization: Bearer one,two\r\n", 401},
        {"Authorization: Bearerone\r\n", 401},
        {"Authorization: one\r\n", 401},
        {"x-api-key: \r\n", 401},
        {"x-api-key: ,\r\n", 401},
    };
    ServedOptions o = served_defaults();
    o.api_key = "one, two ,,three,";
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        HttpReply r = http_exchange(s->port, "GET", "/v1/models", rows[i].headers, "");
        if (r.status != rows[i].status) fail_msg("%s: %d", rows[i].headers, r.status);
        http_reply_free(&r);
    }
    assert_int_equal(served_stop(s), 0);
}

/* The value, or "" when the header is absent. */
static void assert_header(const HttpReply *r, const char *name, const char *value)
{
    const char *is = http_header(r, name);
    if (strcmp(is ? is : "", value) != 0) fail_msg("%s: %s, not %s", name, is ? is : "", value);
}

static void test_cors(void **state)
{
    (void)state;
    char large[2000]; /* more than it takes */
    memset(large, ' ', sizeof large);
    large[sizeof large - 1] = 0;
    static const struct {
        const char *origins, *origin, *allowed, *vary;
    } rows[] = {
        {NULL, "https://a.example", "", ""},
        {"*", "https://a.example", "*", "Origin"},
        {"*", NULL, "", "Origin"},
        {"https://a.example, http://b:80", "http://b:80", "http://b:80", "Origin"},
        {"https://a.example, http://b:80", "https://a.example", "https://a.example", "Origin"},
        {"https://a.example, http://b:80", "https://a.example.org", "", "Origin"},
        {"https://a.example, http://b:80", "http://b", "", "Origin"},
        {"https://a.example, http://b:80", "null", "", "Origin"},
    };
    const char *const asked[][3] = {
        {"OPTIONS", COMPLETIONS, ""}, {"OPTIONS", "/nowhere", ""},     {"GET", "/health", ""},
        {"POST", COMPLETIONS, SHORT}, {"POST", COMPLETIONS, STREAMED}, {"POST", COMPLETIONS, "{"},
        {"POST", COMPLETIONS, large},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char headers[200] = "";
        ServedOptions o = served_defaults();
        o.cors = rows[i].origins;
        o.limits.http.body_bytes = sizeof large - 2;
        Served *s = served_start(&o);
        if (rows[i].origin)
            snprintf(headers, sizeof headers,
                     "Origin: %s\r\nAccess-Control-Request-Headers: x-a, x-b\r\n", rows[i].origin);
        for (size_t j = 0; j < sizeof asked / sizeof *asked; j++) {
            HttpReply r = http_exchange(s->port, asked[j][0], asked[j][1], headers, asked[j][2]);
            int preflight = j < 2, given = *rows[i].allowed != 0;
            if (preflight) assert_int_equal(r.status, 204);
            if (preflight) assert_non_null(http_header(&r, "Allow"));
            assert_header(&r, "Access-Control-Allow-Origin", rows[i].allowed);
            assert_header(&r, "Vary", rows[i].vary);
            assert_header(&r, "Access-Control-Expose-Headers",
                          given ? "x-request-id, request-id, retry-after, x-should-retry" : "");
            assert_header(&r, "Access-Control-Allow-Methods",
                          given && preflight ? "GET, POST, OPTIONS" : "");
            assert_header(&r, "Access-Control-Allow-Headers", given && preflight ? "x-a, x-b" : "");
            assert_header(&r, "Access-Control-Max-Age", given && preflight ? "86400" : "");
            http_reply_free(&r);
        }
        assert_int_equal(served_stop(s), 0);
    }
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
        assert_string_equal(text_at(json, "type"), "error");
        assert_string_equal(text_at(json, "error.type"), rows[i].type);
        assert_true(strlen(text_at(json, "error.message")) > 0);
        assert_header(&r, "request-id", text_at(json, "request_id"));
        assert_header(&r, "X-Request-Id", text_at(json, "request_id"));
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
    assert_alive(s);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_loading_fails),
        cmocka_unit_test(test_stop_while_loading),
        cmocka_unit_test(test_program_ends_while_loading),
        cmocka_unit_test(test_keep_alive_comments),
        cmocka_unit_test(test_no_keep_alive_comments),
        cmocka_unit_test(test_stalled_engine),
        cmocka_unit_test(test_second_stop),
        cmocka_unit_test(test_several_keys),
        cmocka_unit_test(test_cors),
        cmocka_unit_test(test_anthropic_errors),
        cmocka_unit_test(test_hostile_json),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
