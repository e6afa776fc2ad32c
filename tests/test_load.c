/*
 * test_load.c: bench load finds nothing wrong with our server, and does find what a wrong one does.
 *
 * The wrong server is a few lines here: it gives every request the same answer, alone and in the
 * phases, until it is told to make a certain mistake.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/load_answer.h"
#include "bench/load_phase.h"
#include "tests/analyzer.h"
#include "tests/run_binary.h"
#include "tests/stub_server.h"

/* ---- forms of answers ---- */

#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7,"                   \
    "\"prompt_tokens_details\":{\"cached_tokens\":0}}"

static const char whole_chat[] =
    "{\"id\":\"a\",\"created\":5,\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
    "\"content\":\"Hi there\",\"refusal\":null,\"tool_calls\":[{\"id\":\"x1\",\"type\":"
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},"
    "\"logprobs\":{\"content\":[{\"token\":\"Hi\",\"logprob\":-0.5},{\"token\":\" there\","
    "\"logprob\":-0.25}],\"refusal\":null},\"finish_reason\":\"stop\",\"stop_reason\":null},"
    "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
    "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}]," USAGE "}";

static const char streamed_chat[] =
    "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
    "\"\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
    "data: {\"id\":\"b\",\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\"},"
    "\"finish_reason\":null}]}\n\n"
    "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi th\"},"
    "\"logprobs\":{\"content\":[{\"token\":\"Hi\",\"logprob\":-0.5}],\"refusal\":null}}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ere\",\"tool_calls\":[{\"index\":0,"
    "\"id\":\"y\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\"\"}}"
    "]},\"logprobs\":{\"content\":[{\"token\":\" there\",\"logprob\":-0.25}]}}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":"
    "{\"arguments\":\":1}\"}}]}}]}\n\n"
    "data: {\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":{\"content\":[]},"
    "\"finish_reason\":\"stop\",\"stop_reason\":null}]}\n\n"
    "data: {\"choices\":[]," USAGE "}\n\n"
    "data: [DONE]\n\n";

static int read_text(LoadAnswer *a, const char *text, int streamed)
{
    Error err = {0};
    return load_answer_read(a, text, strlen(text), streamed, &err);
}

static void test_stream_has_the_form_of_the_whole(void **state)
{
    (void)state;
    LoadAnswer whole, streamed;
    Error why = {0};
    assert_int_equal(read_text(&whole, whole_chat, 0), 0);
    assert_int_equal(read_text(&streamed, streamed_chat, 1), 0);
    if (load_answer_differs(&whole, &streamed, &why)) fail_msg("%s", why.msg);
    assert_int_equal(whole.n_prompt, 3);
    assert_int_equal(streamed.n_tokens, 4);
    assert_null(strstr(whole.form, "cached"));
    load_answer_free(&whole);
    load_answer_free(&streamed);
}

/* What the server says of its work is read, and no part of the form. */
static void test_work_is_not_compared(void **state)
{
    (void)state;
    static const char with_work[] =
        "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10,"
        "\"prompt_tokens_details\":{\"cached_tokens\":8}},"
        "\"timings\":{\"cache_n\":8,\"draft_n\":3,\"draft_n_accepted\":2,\"prompt_ms\":4.5}}";
    static const char without[] =
        "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}";
    LoadAnswer a, b;
    Error why = {0};
    assert_int_equal(read_text(&a, with_work, 0), 0);
    assert_int_equal(read_text(&b, without, 0), 0);
    assert_int_equal(a.work.n_cached, 8);
    assert_int_equal(a.work.n_drafted, 3);
    assert_int_equal(a.work.n_accepted, 2);
    assert_int_equal(b.work.n_cached + b.work.n_drafted + b.work.n_accepted, 0);
    if (load_answer_differs(&a, &b, &why)) fail_msg("%s", why.msg);
    load_answer_free(&a);
    load_answer_free(&b);
}

/* text with the first from replaced by to; to be freed with mem_free. */
static char *changed(const char *text, const char *from, const char *to)
{
    StrBuf sb = {0};
    const char *at = strstr(text, from);
    assert_non_null(at);
    strbuf_add(&sb, text, (size_t)(at - text));
    strbuf_puts(&sb, to);
    strbuf_puts(&sb, at + strlen(from));
    char *copy = mem_strdup(strbuf_str(&sb));
    strbuf_free(&sb);
    return copy;
}

/* Every part of an answer counts. */
static void test_each_difference_is_seen(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"\"Hi th\"", "\"Hi  th\""},
        {"\"ere\"", "\"ere\\u0000\""},
        {"-0.25", "-0.250000001"},
        {"\"token\":\"Hi\"", "\"token\":\"hi\""},
        {"\"finish_reason\":\"length\"", "\"finish_reason\":\"stop\""},
        {"\"stop_reason\":null}]}\n\ndata: {\"choices\":[],", "\"stop_reason\":7}]}\n\ndata: "
                                                              "{\"choices\":[],"},
        {"\"name\":\"f\"", "\"name\":\"g\""},
        {":1}\"", ":2}\""},
        {"\"completion_tokens\":4", "\"completion_tokens\":5"},
        {"\"delta\":{\"content\":\"ere\"", "\"delta\":{\"reasoning_content\":\"ere\""},
        {"{\"index\":0,\"delta\":{\"content\":\"Hi", "{\"index\":1,\"delta\":{\"content\":\"Hi"},
    };
    LoadAnswer alone, got;
    assert_int_equal(read_text(&alone, whole_chat, 0), 0);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        Error why = {0};
        char *text = changed(streamed_chat, changes[i][0], changes[i][1]);
        assert_int_equal(read_text(&got, text, 1), 0);
        if (!load_answer_differs(&alone, &got, &why)) fail_msg("not seen: %s", changes[i][1]);
        assert_non_null(strstr(why.msg, "alone"));
        load_answer_free(&got);
        mem_free(text);
    }
    load_answer_free(&alone);
}

static void test_what_is_no_answer(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } changes[] = {
        {"data: [DONE]\n\n", ""},
        {"data: [DONE]\n\n", "data: [DONE]\n\n\n"},
        {"\n\ndata: [DONE]", "\ndata: [DONE]"},
        {"data: {\"id\":\"b\"", "event: x\ndata: {\"id\":\"b\""},
        {"\"finish_reason\":\"length\"", "\"finish_reason\":null"},
        {"\"usage\":{", "\"use\":{"},
        {"\"delta\":{}", "\"delta\":{"},
        {"\"choices\":[],", "\"error\":{\"message\":\"broken\"},"},
        {"\"index\":1", "\"index\":-1"},
    };
    LoadAnswer a;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char *text = changed(streamed_chat, changes[i].from, changes[i].to);
        if (!read_text(&a, text, 1)) fail_msg("taken for an answer: %s", changes[i].to);
        assert_null(a.form);
        mem_free(text);
    }
    assert_int_equal(read_text(&a, "{}", 0), -1);
    assert_int_equal(read_text(&a, "", 0), -1);
    assert_int_equal(read_text(&a, "", 1), -1);
}

/* What a server says in one form and then in another is read to its end all the same. */
static void test_forms_change(void **state)
{
    (void)state;
    LoadAnswer a;
    char *text = changed(streamed_chat, "\"content\":\"Hi th\"", "\"tool_calls\":5");
    assert_int_equal(read_text(&a, text, 1), 0);
    assert_non_null(strstr(a.form, "\"tool_calls\":[{"));
    load_answer_free(&a);
    mem_free(text);
}

/* ---- against servers ---- */

/* The pool of two whole contexts has 16 MiB; what is resident beside it is not half as much. */
static void test_our_server(void **state)
{
    (void)state;
    const double pool_mib = 16;
    RunResult r = RUN("bench", "load", "--model", "tests/data/golden/qwen35-dense", "--threads",
                      "1", "--connections", "1,8", "--requests", "12", "--limit", "1", "--max-seqs",
                      "2", "--json");
    assert_run(&r, 0, "\"server_thread_us\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(report, "phases")), 4);
    const json_t *fill = json_object_get(report, "filling");
    double resident = json_real_value(json_object_get(fill, "memory_mib"));
    double heap = json_real_value(json_object_get(fill, "heap_mib"));
    assert_int_equal(json_integer_value(json_object_get(fill, "answered")), 2);
    if (resident - heap < pool_mib) fail_msg("%g MiB resident, %g on the heap", resident, heap);
    json_decref(report);
    run_result_free(&r);
}

typedef enum {
    NO_MISTAKE,
    OTHER_TEXT,
    NO_TOKENS,
    CUT_SHORT,
    STATUS_500,
    NO_LENGTH,
    BUSY_ONCE,
    BUSY_FOR_EVER,
    ENDLESS_LINE,
    ENDLESS_BODY,
} Mistake;

/* The same answer for all; the mistake from the from-th request on. */
typedef struct {
    StubServer server;
    int from, n_requests;
    Mistake mistake;
} Stub;

static void send_reply(int fd, const char *text, int streamed, Mistake mistake)
{
    StrBuf reply = {0};
    char *other = mistake == OTHER_TEXT ? changed(text, "ere", "ERE")
                  : mistake == NO_TOKENS
                      ? changed(text, "\"completion_tokens\":4", "\"completion_tokens\":0")
                      : NULL;
    if (other) text = other;
    strbuf_puts(&reply, mistake == STATUS_500 ? "HTTP/1.1 500 no\r\n" : "HTTP/1.1 200 OK\r\n");
    if (streamed) {
        size_t half = strlen(text) / 2;
        strbuf_puts(&reply, "Content-Type: text/event-stream\r\n");
        if (mistake != NO_LENGTH) strbuf_puts(&reply, "Transfer-Encoding: chunked\r\n");
        strbuf_printf(&reply, "\r\n%zx\r\n%.*s\r\n%zx\r\n%s\r\n0\r\n\r\n", half, (int)half, text,
                      strlen(text) - half, text + half);
    } else {
        if (mistake != NO_LENGTH) strbuf_printf(&reply, "Content-Length: %zu\r\n", strlen(text));
        strbuf_printf(&reply, "\r\n%s", text);
    }
    if (mistake == CUT_SHORT) reply.data[reply.len - 9] = 0;
    stub_server_send(fd, reply.data);
    strbuf_free(&reply);
    mem_free(other);
}

/* More than the client takes. */
static void send_endless(int fd, const char *head)
{
    enum { PIECE = 1 << 20, N_PIECES = 65 };
    char *piece = mem_alloc(PIECE + 1, 1);
    memset(piece, 'x', PIECE);
    stub_server_send(fd, head);
    for (int i = 0; i < N_PIECES; i++)
        stub_server_send(fd, piece);
    mem_free(piece);
}

static void serve_connection(void *ctx, int fd)
{
    Stub *s = ctx;
    StrBuf in = {0};
    while (stub_server_read(fd, &in)) {
        int streamed = strstr(strstr(in.data, "\r\n\r\n"), "\"stream\":true") != NULL;
        Mistake mistake = s->n_requests++ >= s->from ? s->mistake : NO_MISTAKE;
        if (mistake == BUSY_ONCE) {
            s->mistake = NO_MISTAKE;
            stub_server_send(fd,
                             "HTTP/1.1 429 busy\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}");
            continue;
        }
        if (mistake == BUSY_FOR_EVER) { /* for as long as anybody waits, at least */
            stub_server_send(
                fd, "HTTP/1.1 429 busy\r\nRetry-After: 9999\r\nContent-Length: 2\r\n\r\n{}");
            continue;
        }
        if (mistake == ENDLESS_LINE || mistake == ENDLESS_BODY) {
            s->mistake = NO_MISTAKE;
            send_endless(fd, mistake == ENDLESS_LINE
                                 ? "HTTP/1.1 200 OK\r\nX: "
                                 : "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n");
            break;
        }
        send_reply(fd, streamed ? streamed_chat : whole_chat, streamed, mistake);
        if (mistake == CUT_SHORT) break;
    }
    strbuf_free(&in);
}

/* form: one more word, or NULL. */
static RunResult run_against(Mistake mistake, int from, const char *form)
{
    Stub stub = {.mistake = mistake, .from = from};
    char url[80];
    stub_server_start(&stub.server, serve_connection, &stub);
    snprintf(url, sizeof url, "%s/", stub.server.url);
    RunResult r = RUN("bench", "load", "--url", url, "--connections", "1", "--requests", "20",
                      "--limit", "1", form);
    stub_server_stop(&stub.server);
    return r;
}

static void test_mistakes_are_found(void **state)
{
    (void)state;
    enum { AFTER_THE_LONE_ANSWERS = 85, AMONG_THEM = 5 };
    static const struct {
        Mistake mistake;
        int from, status;
        const char *says;
    } runs[] = {
        {NO_MISTAKE, 0, 0, "answers as they are alone"},
        {BUSY_ONCE, AFTER_THE_LONE_ANSWERS, 0, "answers as they are alone"},
        {BUSY_FOR_EVER, AFTER_THE_LONE_ANSWERS, 6, "why='429 {}'"},
        {BUSY_FOR_EVER, 0, 6, "sent alone"},
        {OTHER_TEXT, AFTER_THE_LONE_ANSWERS, 6, "load_wrong"},
        {OTHER_TEXT, AFTER_THE_LONE_ANSWERS, 6, " lost, 0 refused"},
        {CUT_SHORT, AFTER_THE_LONE_ANSWERS, 6, "the server closed the connection"},
        {STATUS_500, AFTER_THE_LONE_ANSWERS, 6, "load_refused"},
        {NO_LENGTH, AFTER_THE_LONE_ANSWERS, 6, "the reply needs a length or chunks"},
        {ENDLESS_LINE, AFTER_THE_LONE_ANSWERS, 6, "a line of the reply has no end"},
        {ENDLESS_BODY, AFTER_THE_LONE_ANSWERS, 6, "the reply has more than 64 MiB"},
        {OTHER_TEXT, AMONG_THEM, 6, "sent alone"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        expect_run(run_against(runs[i].mistake, runs[i].from, NULL), runs[i].status, runs[i].says);
}

/* Each is the middle of its bucket, the first that so many times are not beyond. */
static void test_times(void **state)
{
    (void)state;
    static Times t;
    assert_true(times_quantile(&t, 0.5) == 0);
    t.n = 100, t.count[0] = 49, t.count[349] = 1, t.count[348] = 49, t.count[1099] = 1;
    assert_true(fabs(times_quantile(&t, 0.49) - 0.00101) < 1e-6);
    assert_true(fabs(times_quantile(&t, 0.5) - 0.9935) < 0.001); /* 1.02^348.5 us */
    assert_true(fabs(times_quantile(&t, 0.98) / times_quantile(&t, 0.5) - 1) < 1e-9);
    assert_true(fabs(times_quantile(&t, 0.99) / times_quantile(&t, 0.5) - 1.02) < 1e-9);
    assert_true(times_quantile(&t, 1) > 2.8e6); /* 47 minutes */
}

/* Answers without tokens have no first one, so there is no time to it. */
static void test_first_tokens(void **state)
{
    (void)state;
    for (int empty = 0; empty < 2; empty++) {
        RunResult r = run_against(empty ? NO_TOKENS : NO_MISTAKE, 0, "--json");
        assert_run(&r, 0, "\"phases\"");
        json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
        const json_t *row = json_array_get(json_object_get(report, "phases"), 0);
        double ms = json_real_value(json_object_get(row, "first_token_ms_p50"));
        double p99 = json_real_value(json_object_get(row, "first_token_ms_p99"));
        double seconds = json_real_value(json_object_get(row, "seconds"));
        assert_int_equal(ms > 0, !empty);
        assert_true(empty || (ms > 0.01 && ms <= p99 && p99 < 1.02e3 * seconds));
        assert_true(json_integer_value(json_object_get(row, "answered")) > 0);
        json_decref(report);
        run_result_free(&r);
    }
}

static void test_wrong_options(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value, *says;
        int status;
    } runs[] = {
        {"--connections", "1,,8", "--connections is '1,,8'", 2},
        {"--connections", "0", "numbers of 1 to", 2},
        {"--connections", "8x", "'8x'", 2},
        {"--prompts", "/nowhere", "/nowhere", 5},
        {"--url", "https://127.0.0.1:1", "http://HOST:PORT", 2},
        {"--url", "http://127.0.0.1", "http://HOST:PORT", 2},
        {"--url", "http://127.0.0.1:1/v1", "http://HOST:PORT", 2},
        {"--limit", "1", "sent alone", 6}, /* nobody listens */
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        expect_run(
            RUN("bench", "load", "--url", "http://127.0.0.1:1", runs[i].option, runs[i].value),
            runs[i].status, runs[i].says);
    expect_run(RUN_ON("{\"turns\":[\"Hi\"],\"tools\":{}}", "bench", "load", "--url",
                      "http://127.0.0.1:1", "--prompts", "/dev/stdin"),
               2, "line 1: 'tools' is no array");
    expect_run(RUN("bench", "accept", "--url", "http://127.0.0.1:1"), 2,
               "'--url' is an option of another command");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_has_the_form_of_the_whole),
        cmocka_unit_test(test_work_is_not_compared),
        cmocka_unit_test(test_each_difference_is_seen),
        cmocka_unit_test(test_what_is_no_answer),
        cmocka_unit_test(test_forms_change),
        cmocka_unit_test(test_our_server),
        cmocka_unit_test(test_mistakes_are_found),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_first_tokens),
        cmocka_unit_test(test_wrong_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
