/*
 * test_routers.c: the routes that routers ask of the servers behind them, and what they make the
 * engine's thread do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/engine_thread.h"
#include "tests/analyzer.h"
#include "tests/metrics_page.h"

#define COMPLETIONS "/v1/completions"
#define ENDLESS     "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true}"
#define STREAMED                                                                                   \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"
#define NAMED                                                                                      \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"rid\": \"three\"}"
#define CHAT                                                                                       \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Is there a good restaurant in town, "     \
    "with "                                                                                        \
    "room for two of us tonight?\"}], \"max_tokens\": 24, \"temperature\": 0}"

static json_t *ask(const Served *s, const char *method, const char *path, const char *headers,
                   const char *body, int status)
{
    HttpReply r = http_exchange(s->port, method, path, headers, body);
    if (r.status != status) fail_msg("%s: %d %s", path, r.status, strbuf_str(&r.body));
    json_t *json = json_loadb(r.body.data, r.body.len, 0, NULL);
    assert_non_null(json);
    http_reply_free(&r);
    return json;
}

static json_t *get(const Served *s, const char *path)
{
    return ask(s, "GET", path, "", "", 200);
}

static void wait_live(const Served *s, int n)
{
    while (server_n_live(s->server) < n)
        usleep(1000);
}

/* ---- what it is and has to do ---- */

static void assert_text(const json_t *json, const char *path, const char *text)
{
    assert_string_equal(served_text_at(json, path), text);
}

static const char length_path[] = "internal_states.0.avg_spec_accept_length";

/* Both names of each; the acceptance length is that of the metrics. */
static void test_info(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.model_name = "org/a \"model\"";
    Served *s = served_start(&o);
    json_t *info = get(s, "/server_info"), *model = get(s, "/model_info");
    assert_text(info, "version", "0.1.0");
    assert_text(info, "model_path", o.model_name);
    assert_text(info, "served_model_name", o.model_name);
    assert_text(info, "disaggregation_mode", "null");
    assert_int_equal(served_int_at(info, "tp_size"), 1);
    assert_int_equal(served_int_at(info, "dp_size"), 1);
    assert_int_equal(served_int_at(info, "context_length"), 8192);
    assert_int_equal(served_int_at(info, "max_running_requests"), 4);
    assert_int_equal(served_int_at(info, "internal_states.0.effective_max_running_requests_per_dp"),
                     4);
    assert_true(served_int_at(info, "max_total_num_tokens") >= 8192);
    assert_true(json_real_value(served_at(info, length_path)) == 0);
    assert_text(model, "model_path", o.model_name);
    assert_text(model, "tokenizer_path", o.model_name);
    assert_text(model, "served_model_name", o.model_name);
    assert_text(model, "weight_version", "default");
    assert_text(model, "model_type", "qwen3_5");
    assert_true(json_is_true(served_at(model, "is_generation")));
    assert_int_equal(served_int_at(model, "context_length"), 8192);
    json_decref(info);
    json_decref(model);

    json_decref(served_post(s, "/v1/chat/completions", CHAT, 200));
    Page p = page_scrape(s);
    info = get(s, "/get_server_info");
    model = get(s, "/get_model_info");
    double sum = page_get(&p, "offshoot:acceptance_length_sum{drafter=mtp}");
    double n = page_get(&p, "offshoot:acceptance_length_count{drafter=mtp}");
    assert_true(n > 0 && sum > n);
    assert_true(json_real_value(served_at(info, length_path)) - sum / n < 1e-6);
    assert_true(sum / n - json_real_value(served_at(info, length_path)) < 1e-6);
    assert_text(model, "model_type", "qwen3_5");
    page_close(&p);
    json_decref(info);
    json_decref(model);
    assert_int_equal(served_stop(s), 0);

    o.plain = 1;
    s = served_start(&o);
    info = get(s, "/server_info");
    assert_null(served_at(info, length_path));
    json_decref(info);
    assert_int_equal(served_stop(s), 0);
}

static void expect_load(const Served *s, const char *path, int n, int n_waiting, long least)
{
    json_t *load = get(s, path);
    assert_int_equal(json_array_size(load), 1);
    assert_int_equal(served_int_at(load, "0.dp_rank"), 0);
    assert_int_equal(served_int_at(load, "0.num_reqs"), n);
    assert_int_equal(served_int_at(load, "0.num_waiting_reqs"), n_waiting);
    long tokens = served_int_at(load, "0.num_tokens");
    if (tokens < least || (!n && tokens)) fail_msg("%ld tokens", tokens);
    json_decref(load);
}

/* The newer object: tokens of what runs and of all, and the sums over its one rank. */
static void expect_loads(const Served *s, int n, int n_waiting, long least_used, long least)
{
    static const char *const same[][2] = {
        {"num_running_reqs", "total_running_reqs"}, {"num_waiting_reqs", "total_waiting_reqs"},
        {"num_total_reqs", "total_reqs"},           {"num_used_tokens", "total_used_tokens"},
        {"num_total_tokens", "total_tokens"},       {"token_usage", "avg_token_usage"},
        {"utilization", "avg_utilization"}};
    json_t *body = get(s, "/v1/loads");
    const json_t *rank = served_at(body, "loads.0"), *sums = served_at(body, "aggregate");
    assert_int_equal(json_array_size(served_at(body, "loads")), 1);
    assert_int_equal(served_int_at(body, "dp_rank_count"), 1);
    assert_int_equal(strlen(served_text_at(body, "timestamp")), 25);
    assert_text(body, "version", "0.1.0");
    assert_int_equal(served_int_at(rank, "dp_rank"), 0);
    assert_int_equal(served_int_at(rank, "num_running_reqs"), n - n_waiting);
    assert_int_equal(served_int_at(rank, "num_waiting_reqs"), n_waiting);
    assert_int_equal(served_int_at(rank, "max_running_requests"), 1);
    long used = served_int_at(rank, "num_used_tokens");
    long all = served_int_at(rank, "num_total_tokens");
    if (used < least_used || all < least || all - used > least - least_used || (!n && all))
        fail_msg("%ld of %ld tokens", used, all);
    double usage = (double)used / (double)served_int_at(rank, "max_total_num_tokens");
    assert_true(json_real_value(served_at(rank, "token_usage")) - usage < 1e-6);
    assert_true(usage - json_real_value(served_at(rank, "token_usage")) < 1e-6);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_true(
            json_equal(json_object_get(rank, same[i][0]), json_object_get(sums, same[i][1])));
    json_decref(body);
}

static void test_load(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.max_seqs = 1;
    Served *s = served_start(&o);
    HttpReply r = http_exchange(s->port, "POST", "/tokenize", "", "{\"prompt\": \"Hello\"}");
    json_t *counted = json_loadb(r.body.data, r.body.len, 0, NULL);
    long n_prompt = served_int_at(counted, "count");
    json_decref(counted);
    http_reply_free(&r);
    expect_load(s, "/get_load", 0, 0, 0);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", COMPLETIONS, "", ENDLESS);
    }
    wait_live(s, 3);
    Page p = page_scrape(s);
    while (page_get(&p, "vllm:generation_tokens_total") < 20) {
        page_close(&p);
        p = page_scrape(s);
    }
    page_close(&p);
    expect_load(s, "/get_load", 3, 2, 3 * n_prompt + 20);
    expect_load(s, "/get_loads", 3, 2, 3 * n_prompt + 20);
    expect_loads(s, 3, 2, n_prompt + 20, 3 * n_prompt + 20);
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    served_wait_idle(s);
    expect_loads(s, 0, 0, 0, 0);
    assert_int_equal(served_stop(s), 0);
}

/* What tells is open to all; what changes something asks for the key, and for the right method. */
static void test_access(void **state)
{
    (void)state;
    static const struct {
        const char *path, *method;
        int status; /* without a key */
    } rows[] = {
        {"/server_info", "GET", 200},
        {"/get_server_info", "HEAD", 200},
        {"/model_info", "GET", 200},
        {"/get_model_info/", "GET", 200},
        {"/get_load", "GET", 200},
        {"/get_loads", "GET", 200},
        {"/v1/loads", "GET", 200},
        {"/health_generate", "GET", 200},
        {"/flush_cache", "GET", 401},
        {"/flush_cache", "POST", 401},
        {"/reset_prefix_cache", "POST", 401},
        {"/abort_request", "POST", 401},
        {"/server_info", "POST", 405},
        {"/reset_prefix_cache", "GET", 405},
        {"/abort_request", "GET", 405},
        {"/flush_cache", "PUT", 405},
    };
    ServedOptions o = served_defaults();
    o.api_key = "k";
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int fd = http_connect(s->port);
        StrBuf rest = {0};
        HttpReply r;
        http_send(fd, rows[i].method, rows[i].path, "", "");
        assert_int_equal(http_read(fd, &rest, !strcmp(rows[i].method, "HEAD"), &r), 0);
        if (r.status != rows[i].status) fail_msg("%s: %d", rows[i].path, r.status);
        if (r.status == 405 && !strcmp(rows[i].path, "/flush_cache"))
            assert_string_equal(http_header(&r, "Allow"), "GET, HEAD, POST, OPTIONS");
        http_reply_free(&r);
        strbuf_free(&rest);
        close(fd);
    }
    json_decref(ask(s, "POST", "/flush_cache", "x-api-key: k\r\n", "", 200));
    assert_int_equal(served_stop(s), 0);
}

/* ---- what the engine's thread is asked to do ---- */

static long n_cached(const json_t *reply)
{
    return served_int_at(reply, "usage.prompt_tokens_details.cached_tokens");
}

static void test_flush(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path;
    } ways[] = {{"POST", "/flush_cache"}, {"GET", "/flush_cache"}, {"POST", "/reset_prefix_cache"}};
    ServedOptions o = served_defaults();
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
    Served *s = served_start(&o);
    json_t *first = served_post(s, "/v1/chat/completions", CHAT, 200), *ok;
    for (int i = 0; i < 3; i++) {
        json_t *again = served_post(s, "/v1/chat/completions", CHAT, 200);
        assert_true(n_cached(again) > 0);
        json_decref(again);
        ok = ask(s, ways[i].method, ways[i].path, "", "", 200);
        assert_text(ok, "status", "ok");
        json_decref(ok);
        again = served_post(s, "/v1/chat/completions", CHAT, 200);
        assert_int_equal(n_cached(again), 0);
        assert_text(again, "choices.0.message.content",
                    served_text_at(first, "choices.0.message.content"));
        json_decref(again);
    }

    /* While one runs that has begun behind what is flushed. */
    static const char stream[] = "{\"prompt\": \"Is there a good restaurant in town, with room for "
                                 "two of us?\", \"max_tokens\": 600, \"ignore_eos\": true, "
                                 "\"temperature\": 0%s}";
    char body[256];
    snprintf(body, sizeof body, stream, "");
    json_t *whole = served_post(s, COMPLETIONS, body, 200), *same;
    int fd = http_connect(s->port);
    StrBuf rest = {0};
    HttpReply r;
    http_send(fd, "POST", COMPLETIONS, "", body);
    wait_live(s, 1);
    for (int i = 0; i < 5; i++)
        json_decref(ask(s, "POST", "/flush_cache", "", "", 200));
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    same = json_loadb(r.body.data, r.body.len, 0, NULL);
    assert_text(same, "choices.0.text", served_text_at(whole, "choices.0.text"));
    json_decref(same);
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    json_decref(whole);
    json_decref(first);
    assert_int_equal(served_stop(s), 0);
}

/* A drafter that holds the engine's thread up. */
static atomic_int held, stands_still;

static int held_bind(void *self, struct Engine *engine, Error *err)
{
    (void)self;
    (void)engine;
    (void)err;
    return 0;
}

static void held_begin(void *self, int seq, const int32_t *token, int n)
{
    (void)self;
    (void)seq;
    (void)token;
    (void)n;
}

static void held_observe(void *self, const DraftObserved *rows)
{
    (void)self;
    (void)rows;
}

static void held_propose(void *self, const DraftRequest *request, int n_requests,
                         const DraftGuide *guide)
{
    (void)guide;
    (void)self;
    (void)request;
    (void)n_requests;
    while (atomic_load(&held)) {
        atomic_store(&stands_still, 1);
        usleep(1000);
    }
}

static void held_close(void *self)
{
    (void)self;
}

/* Status of the reply that comes on fd, which is closed. */
static int status_of(int fd)
{
    StrBuf rest = {0};
    HttpReply r;
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    int status = r.status;
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    return status;
}

static int send_get(const Served *s, const char *path)
{
    int fd = http_connect(s->port);
    http_send(fd, "GET", path, "", "");
    return fd;
}

/* A server whose engine answers *stream and stands still in a step until held is 0. */
static Served *start_held(const ServedOptions *options, int *stream)
{
    static int self;
    static const Drafter drafter = {.name = "held",
                                    .self = &self,
                                    .bind = held_bind,
                                    .begin = held_begin,
                                    .observe = held_observe,
                                    .propose = held_propose,
                                    .close = held_close};
    ServedOptions o = *options;
    o.drafter = &drafter;
    Served *s = served_start(&o);
    atomic_store(&stands_still, 0);
    atomic_store(&held, 1);
    *stream = http_connect(s->port);
    http_send(*stream, "POST", COMPLETIONS, "", STREAMED);
    for (int i = 0; i < 10000 && !atomic_load(&stands_still); i++)
        usleep(1000);
    assert_true(atomic_load(&stands_still));
    return s;
}

/* An engine that stands still: a probe hears of it in time, others wait, and no more than a few. */
static void test_engine_stands_still(void **state)
{
    (void)state;
    int stream, fd[MAX_ORDERS];
    ServedOptions o = served_defaults();
    o.limits.order_s = 1;
    Served *s = start_held(&o, &stream);
    fd[0] = send_get(s, "/health_generate");
    for (int i = 1; i < MAX_ORDERS; i++)
        fd[i] = send_get(s, "/flush_cache");
    /* connections are read in the order in which they came: when this is answered, they all are */
    assert_int_equal(status_of(send_get(s, "/health")), 200);
    assert_int_equal(status_of(send_get(s, "/flush_cache")), 429);
    assert_int_equal(status_of(fd[0]), 503);
    close(fd[1]);
    assert_false(http_readable(fd[2], 100));
    atomic_store(&held, 0);
    for (int i = 2; i < MAX_ORDERS; i++)
        assert_int_equal(status_of(fd[i]), 200);
    assert_int_equal(status_of(send_get(s, "/health_generate")), 200);
    close(stream);
    served_wait_idle(s);
    assert_int_equal(served_stop(s), 0);
}

/* ---- ending requests ---- */

static long aborted(const Served *s, const char *body)
{
    json_t *reply = served_post(s, "/abort_request", body, 200);
    long n = served_int_at(reply, "aborted");
    json_decref(reply);
    return n;
}

static void test_abort(void **state)
{
    (void)state;
    static const struct {
        const char *headers, *body;
    } asked[] = {{"X-Request-Id: one\r\n", ENDLESS},
                 {"X-Request-Id: two\r\n", STREAMED},
                 {"", NAMED},
                 {"", STREAMED}};
    ServedOptions o = served_defaults();
    o.max_seqs = 2;
    Served *s = served_start(&o);
    int fd[4];
    for (int i = 0; i < 4; i++) {
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", COMPLETIONS, asked[i].headers, asked[i].body);
        wait_live(s, i + 1);
    }
    assert_true(http_readable(fd[1], 10000));
    assert_int_equal(aborted(s, "{\"rid\": \"four\"}"), 0);
    assert_int_equal(aborted(s, "{\"rid\": \"\"}"), 0);
    assert_int_equal(aborted(s, "{\"rid\": \"one\"}"), 1);
    assert_int_equal(status_of(fd[0]), 400);
    assert_int_equal(aborted(s, "{\"rid\": \"cmpl-three\", \"abort_all\": false}"), 1);
    assert_int_equal(status_of(fd[2]), 400);
    assert_int_equal(server_n_live(s->server) > 0, 1);
    assert_int_equal(aborted(s, "{\"rid\": \"two\"}"), 1);
    StrBuf rest = {0};
    HttpReply r;
    assert_int_equal(http_read(fd[1], &rest, 0, &r), 0); /* to its end: [DONE] and the last chunk */
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(strbuf_str(&r.body), "\"code\":\"aborted\""));
    json_decref(http_events(&r));
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd[1]);
    assert_int_equal(aborted(s, "{\"abort_all\": true}"), 1);
    close(fd[3]);
    served_wait_idle(s);
    static const char *const wrong[] = {"", "[]", "{}", "{\"rid\": 7}", "{\"abort_all\": \"x\"}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        json_decref(served_post(s, "/abort_request", wrong[i], 400));
    StrBuf large = {0};
    strbuf_printf(&large, "{\"rid\": \"%070000d\"}", 0);
    json_decref(served_post(s, "/abort_request", strbuf_str(&large), 413));
    strbuf_free(&large);
    assert_int_equal(served_stop(s), 0);
}

/* A lost device is no reason to wait: a probe that the engine has not answered hears of it. */
static void test_lost(void **state)
{
    (void)state;
    int stream;
    ServedOptions o = served_defaults();
    served_lose_device(0);
    Served *s = start_held(&o, &stream);
    int probe = send_get(s, "/health_generate");
    /* connections are read in the order in which they came: when this is answered, it is read */
    assert_int_equal(status_of(send_get(s, "/health")), 200);
    assert_false(http_readable(probe, 100));
    served_lose_device(1);
    atomic_store(&held, 0);
    assert_int_equal(status_of(probe), 500);
    assert_int_equal(status_of(stream), 200);
    served_join(s);
    assert_int_equal(s->err.code, ERR_DEVICE);
    assert_int_equal(served_stop(s), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_access),
        cmocka_unit_test(test_flush),
        cmocka_unit_test(test_engine_stands_still),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_lost), /* the last one: there is no device any more */
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
