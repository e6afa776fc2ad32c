/*
 * test_prefix_real.c: bench prefix --real finds what can be worked out by hand, sends the model's
 * own answers back, and leaves out what does not fit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "bench/trace_live.h"
#include "tests/checkpoint.h"
#include "tests/run_binary.h"
#include "tests/served.h"
#include "tests/trace_file.h"

static void test_limits(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "0x10", "20x5");
    trace_file_ask(&f, 1, "0x30", "");
    trace_file_ask(&f, 0, "0x10 20x5 30x5", "40x5");
    trace_file_ask(&f, 2, "0x7", "20x1");
    Trace t = trace_file_read(&f, "prefix_real");
    assert_int_equal(t.n_sessions, 3);
    assert_true(t.new_tokens == 15 + 30 + 10 + 8);
    assert_int_equal(trace_leave_out(&t, 31), 0);
    assert_int_equal(trace_leave_out(&t, 30), 1); /* an answer has a token */
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.longest, 25);
    assert_true(t.prompt_tokens == 10 + 20 + 7);
    assert_true(t.answer_tokens == 5 + 5 + 1);
    trace_limit(&t, 2);
    assert_int_equal(t.n_sessions, 1);
    assert_true(t.new_tokens == 15 + 10);
    trace_limit(&t, 5);
    assert_int_equal(t.n, 2);
    trace_close(&t);
}

/* ---- the model's own answers ---- */

static Tokenizer *open_tokenizer(void)
{
    Error err = {0};
    Tokenizer *tok = tokenizer_open("models/demo/tokenizer.json", &err);
    if (!tok) fail_msg("%s", err.msg);
    return tok;
}

static void open_live(LiveTrace *l, const Trace *t)
{
    Error err = {0};
    Tokenizer *tok = open_tokenizer();
    if (live_open(l, t, tok, &err)) fail_msg("%s", err.msg);
    tokenizer_close(tok);
}

/* Plain ids stay; all others become plain ones, equal ones the same. */
static void test_ids(void **state)
{
    (void)state;
    Tokenizer *tok = open_tokenizer();
    int n_added;
    const int32_t *added = tokenizer_added(tok, &n_added);
    TraceFile f = {0};
    trace_file_ask(&f, 0, "0x6000 2147480000x2000", "70000x9");
    trace_file_ask(&f, 1, "0x6000 2147480000x2000", "70000x9");
    Trace t = trace_file_read(&f, "prefix_real");
    LiveTrace l;
    open_live(&l, &t);
    const int32_t *a = l.request[0].token, *b = l.request[1].token;
    assert_true(n_added > 0);
    for (int i = 0; i < 8009; i++) {
        int plain = tokenizer_has(tok, a[i]);
        for (int k = 0; k < n_added; k++)
            plain &= a[i] != added[k];
        if (!plain) fail_msg("id %d of place %d is not plain", a[i], i);
        assert_int_equal(a[i], b[i]);
    }
    for (int i = 0; i < 4000; i++)
        assert_int_equal(a[i], i);
    live_close(&l);
    trace_close(&t);
    tokenizer_close(tok);
}

static void test_answers_come_back(void **state)
{
    (void)state;
    static const int32_t said[] = {7, 8, 9}, said_then[] = {5, 6};
    Error err = {0};
    TraceFile f = {0};
    trace_file_ask(&f, 0, "100x4", "200x3");
    trace_file_ask(&f, 1, "100x4 200x3", "400x1"); /* another's */
    trace_file_ask(&f, 0, "100x4 200x3 300x2", "400x2");
    trace_file_ask(&f, 0, "100x4 500x2", ""); /* as if nothing had been answered */
    trace_file_ask(&f, 0, "100x4 200x3 300x2 400x2 500x1", "1x1"); /* goes on from the third */
    Trace t = trace_file_read(&f, "prefix_real");
    LiveTrace l;
    open_live(&l, &t);
    static const int previous[] = {-1, -1, 0, 2, 3}, goes_on[] = {-1, -1, 0, -1, 2};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(l.request[i].previous, previous[i]);
        assert_int_equal(l.request[i].goes_on, goes_on[i]);
    }
    assert_int_equal(live_answered(&l, 0, said, 3, &err), 0);
    assert_int_equal(live_answered(&l, 2, said, 3, &err), -1);
    assert_string_equal(err.msg, "request 3: 2 tokens asked for, 3 came");
    live_follow(&l, 1);
    live_follow(&l, 2);
    assert_int_equal(live_answered(&l, 2, said_then, 2, &err), 0);
    assert_int_equal(live_max_tokens(&l.request[3]), 1);
    assert_int_equal(live_answered(&l, 3, said, 1, &err), 0);
    live_follow(&l, 4);

    Trace asked;
    int32_t token[16];
    static const int32_t other[] = {100, 101, 102, 103, 200, 201, 202, 400},
                         third[] = {100, 101, 102, 103, 7, 8, 9, 300, 301, 5, 6},
                         fourth[] = {100, 101, 102, 103, 500, 501},
                         last[] = {100, 101, 102, 103, 7, 8, 9, 300, 301, 5, 6, 500, 1};
    live_to_trace(&l, &t, &asked);
    assert_int_equal(asked.n, 5);
    assert_int_equal(asked.n_sessions, 2);
    assert_int_equal(asked.longest, 13);
    assert_true(asked.new_tokens == 7 + 8 + 4 + 2 + 9);
    trace_tokens(&asked, 1, token);
    assert_memory_equal(token, other, sizeof other);
    trace_tokens(&asked, 2, token);
    assert_memory_equal(token, third, sizeof third);
    trace_tokens(&asked, 3, token);
    assert_memory_equal(token, fourth, sizeof fourth);
    trace_tokens(&asked, 4, token);
    assert_memory_equal(token, last, sizeof last);
    assert_int_equal(asked.request[4].n_prompt, 12);
    trace_close(&asked);
    live_close(&l);
    trace_close(&t);
}

/* ---- the command ---- */

#define REAL "bench", "prefix", "--real", "--model", "models/demo"

static json_t *report_of(RunResult r)
{
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_non_null(report);
    assert_true(json_is_false(json_object_get(report, "simulated")));
    assert_int_equal(served_int_at(report, "different"), 0);
    run_result_free(&r);
    return report;
}

static void check_row(const json_t *row, const char *policy, long hits, long simulated)
{
    assert_string_equal(served_text_at(row, "policy"), policy);
    assert_int_equal(served_int_at(row, "hit_tokens"), hits);
    assert_int_equal(served_int_at(row, "simulated_hit_tokens"), simulated);
    assert_int_equal(served_int_at(row, "different"), 0);
    assert_true(json_real_value(served_at(row, "ttft_ms.p5")) > 0);
    assert_true(json_real_value(served_at(row, "ttft_ms.p95")) >=
                json_real_value(served_at(row, "ttft_ms.p50")));
    assert_true(json_real_value(served_at(row, "ttft_ms.p95")) <
                json_real_value(served_at(row, "seconds")) * 1e3);
}

/* Of a plot. */
static int count_lines(const char *path)
{
    MappedFile file;
    int lines = 0;
    assert_int_equal(mapped_file_open(&file, path, NULL), 0);
    const char *at = (const char *)file.data, *end = at + file.size;
    while ((at = memmem(at, (size_t)(end - at), "<polyline", 9))) {
        at++;
        lines++;
    }
    mapped_file_close(&file);
    return lines;
}

/*
 * The second prompt begins with the first and its answer, of which the last token was never
 * computed: 320 + 16 - 1 are found, where the simulation finds one more. The third finds the whole
 * second prompt, the fifth the first one. The fourth is longer than the context.
 */
static void test_hits(void **state)
{
    (void)state;
    enum { PROMPTS = 320 + 384 + 384 + 336, FOUND = 335 + 384 + 320, SIMULATED = FOUND + 1 };
    TraceFile f = {0};
    trace_file_ask(&f, 0, "300x320", "900x16");
    trace_file_ask(&f, 0, "300x320 900x16 2000x48", "1000x8");
    trace_file_ask(&f, 0, "300x320 900x16 2000x48", "1100x8"); /* asked again */
    trace_file_ask(&f, 2, "50000x1000", "1x8");
    trace_file_ask(&f, 1, "300x320 3000x16", "1200x4");
    const char *path = trace_file_write(&f, "prefix_real"),
               *svg = scratch_path("build/tests/prefix_real", "plot.svg");
    json_t *report = report_of(RUN(REAL, "--trace", path, "--ctx-size", "1000", "--capacity",
                                   "64M,32M", "--svg", svg, "--json"));
    static const char *const policies[] = {"none", "lru",    "flop 1",    "flop tuned",
                                           "lru",  "flop 1", "flop tuned"};
    const json_t *rows = json_object_get(report, "rows"), *row;
    size_t i;
    assert_int_equal(json_array_size(rows), 7);
    json_array_foreach(rows, i, row) check_row(row, policies[i], i ? FOUND : 0, i ? SIMULATED : 0);
    assert_true(json_number_value(served_at(report, "rows.1.capacity_bytes")) == 64 << 20);
    assert_true(json_number_value(served_at(report, "rows.4.capacity_bytes")) == 32 << 20);
    double rate = json_number_value(served_at(report, "rows.1.token_hit_rate"));
    assert_true(fabs(rate - (double)FOUND / PROMPTS) < 1e-9);
    assert_true(json_number_value(served_at(report, "rows.1.request_hit_rate")) == 0.75);
    rate = json_number_value(served_at(report, "rows.1.flops_saved_rate"));
    assert_true(rate > 0.7 && rate < 0.75);
    assert_true(json_number_value(served_at(report, "rows.2.alpha")) == 1);
    assert_int_equal(served_int_at(report, "requests"), 4);
    assert_int_equal(served_int_at(report, "left_out"), 1);
    assert_int_equal(served_int_at(report, "connections"), 1);
    json_decref(report);
    assert_int_equal(count_lines(svg), 4);
    RunResult limited = RUN("bench", "prefix", "--real", "--model", "models/demo", "--trace", path,
                            "--limit", "2", "--policy", "lru", "--capacity", "32M");
    assert_run(&limited, 0, "trace.jsonl: 2 requests of 1 sessions");
    assert_run(&limited, 0, "lru ");
    run_result_free(&limited);
}

/* Each row is as fresh as if it were the only one, also where all keep what they have on disk. */
static void test_rows_share_nothing(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "300x320", "900x16");
    trace_file_ask(&f, 0, "300x320 900x16 2000x48", "1000x8");
    scratch_dir("prefix_real_tier"); /* empty, also after an earlier run */
    const char *path = trace_file_write(&f, "prefix_real");
    for (int run = 0; run < 2; run++) {
        json_t *report =
            report_of(RUN(REAL, "--trace", path, "--capacity", "32M", "--policy", "lru,lru",
                          "--cache-dir", "build/tests/prefix_real_tier", "--json"));
        for (size_t i = 0; i < 2; i++)
            check_row(json_array_get(json_object_get(report, "rows"), i), "lru", 335, 336);
        json_decref(report);
    }
}

/* Several at a time, but of a session one after the other, as its client would ask. */
static void test_sessions_keep_their_order(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "300x64", "900x8");
    trace_file_ask(&f, 0, "300x64 900x8 1900x8", "900x8");
    trace_file_ask(&f, 0, "300x64 900x8 1900x8 900x8 1400x8", "900x8");
    trace_file_ask(&f, 1, "500x64", "900x8");
    trace_file_ask(&f, 1, "500x64 900x8 1900x8", "900x8");
    trace_file_ask(&f, 1, "500x64 900x8 1900x8 900x8 1400x8", "900x8");
    json_t *report =
        report_of(RUN(REAL, "--trace", trace_file_write(&f, "prefix_real"), "--connections", "4",
                      "--capacity", "32M", "--policy", "lru", "--json"));
    assert_int_equal(json_array_size(json_object_get(report, "rows")), 1);
    check_row(served_at(report, "rows.0"), "lru", 2 * (71 + 87), 2 * (72 + 88));
    assert_int_equal(served_int_at(report, "connections"), 4);
    json_decref(report);
}

static void test_refused(void **state)
{
    (void)state;
    expect_run(RUN(REAL, "--policy", "lru,block32"), 2, "'block32', which exists only simulated");
    expect_run(RUN(REAL, "--policy", "fifo"), 2, "--policy has 'fifo'");
    expect_run(RUN(REAL, "--alpha", "x"), 2, "--alpha has 'x'");
    expect_run(RUN(REAL, "--shape", "7b-hybrid"), 2, "--shape is simulated");
    expect_run(RUN(REAL, "--connections", "0"), 2, "--connections is '0'");
    expect_run(RUN(REAL, "--trace", "no-such-file"), 5, "no-such-file");
    expect_run(RUN(REAL, "--capacity", "1M"), 3, "holds no sequence");
    expect_run(RUN(REAL, "--ctx-size", "16"), 3, "no request of chat fits a context of 16 tokens");
    expect_run(RUN(REAL, "--url", "http://127.0.0.1:1"), 2, "'--url' is an option of");
    expect_run(RUN("bench", "prefix", "--real"), 2, "which model?");
    expect_run(RUN("bench", "agent", "--real", "--model", "models/demo"), 2,
               "'--real' is an option of another command");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_answers_come_back),
        cmocka_unit_test(test_hits),
        cmocka_unit_test(test_rows_share_nothing),
        cmocka_unit_test(test_sessions_keep_their_order),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
