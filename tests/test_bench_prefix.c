/*
 * test_bench_prefix.c: hit rates of every policy on traces small enough to work out by hand, and
 * the command around them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "bench/policy.h"
#include "bench/prefix.h"
#include "tests/checkpoint.h"
#include "tests/run_binary.h"
#include "tests/trace_file.h"

/* A page of 16 tokens takes 64 bytes, a state as many: a frame is a page. */
static const Shape shape = {
    .name = "test", .cost = {.per_token = 1, .per_pair = 2}, .state_bytes = 64, .kv_bytes = 4};
enum { PAGE_BYTES = 64 };

/* ---- policies ---- */

static const KeepRules engine_rules = {.keep_answers = 1, .keep_prompts = 1};

static PolicyResult run(const Trace *t, KeepRules rules, Policy policy, int n_pages)
{
    PolicyResult result;
    Error err = {0};
    PolicyRun all = {.trace = t, .shape = &shape, .rules = rules, .flops_per_second = 10};
    if (policy_run(&all, &policy, (double)n_pages * PAGE_BYTES, &result, &err))
        fail_msg("%s", err.msg);
    return result;
}

static int hits(const Trace *t, KeepRules rules, PolicyKind kind, int block, int n_pages)
{
    Policy p = {.kind = kind, .block_tokens = block};
    return (int)run(t, rules, p, n_pages).hit_tokens;
}

static void test_conversation(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "a32", "b16");
    trace_file_ask(&f, 0, "a32 b16 c16", "d16");
    trace_file_ask(&f, 0, "a32 b16 c16", "e16"); /* asked again */
    Trace t = trace_file_read(&f, "bench_prefix");
    assert_int_equal(hits(&t, engine_rules, CACHE_NONE, 0, 100), 0);
    assert_int_equal(hits(&t, engine_rules, CACHE_LRU, 0, 100), 48 + 64);
    assert_int_equal(hits(&t, engine_rules, CACHE_FLOP, 0, 100), 48 + 64);
    assert_int_equal(hits(&t, engine_rules, CACHE_TUNED, 0, 100), 48 + 64);
    assert_int_equal(hits(&t, engine_rules, CACHE_BLOCKS, 16, 100), 48 + 48);
    assert_int_equal(hits(&t, engine_rules, CACHE_BLOCKS, 32, 100), 32 + 32);
    /* without the states of prompts' ends the third finds the end of the first answer */
    KeepRules paper = {.keep_answers = 1};
    assert_int_equal(hits(&t, paper, CACHE_LRU, 0, 100), 48 + 48);
    KeepRules prompts = {.keep_prompts = 1};
    assert_int_equal(hits(&t, prompts, CACHE_LRU, 0, 100), 32 + 64);

    PolicyResult r = run(&t, engine_rules, (Policy){.kind = CACHE_LRU}, 100);
    assert_int_equal(r.hit_requests, 2);
    assert_true(r.prompt_tokens == 32 + 64 + 64);
    PolicyRun all = {.trace = &t, .shape = &shape};
    assert_true(policy_all_bytes(&all) == (48 + 32 + 16) * 4 + 3 * 64);
    assert_true(r.flops_saved == 48 + 48 * 48 + 64 + 64 * 64);
    assert_true(r.flops == 32 + 32 * 32 + 2 * (64 + 64 * 64));
    double second = 16 + 64 * 64 - 48 * 48; /* FLOPs left, at 10 a second */
    assert_true(r.ttft_p5 == 0);
    assert_true(fabs(r.ttft_p50 - (32 + 32 * 32) / 10.0) < 1e-9);
    assert_true(fabs(r.ttft_p95 - second / 10) < 1e-9);
    trace_close(&t);
}

/* What many prompts begin with is found by the third. */
static void test_branch(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "s40 a20", "b5");
    trace_file_ask(&f, 1, "s40 c20", "d5");
    trace_file_ask(&f, 2, "s40 e20", "f5");
    Trace t = trace_file_read(&f, "bench_prefix");
    assert_int_equal(hits(&t, engine_rules, CACHE_LRU, 0, 100), 40);
    assert_int_equal(hits(&t, engine_rules, CACHE_BLOCKS, 16, 100), 32 + 32);
    trace_close(&t);
}

/* What has been used longest ago goes: with 12 pages the first conversation is not there again. */
static void test_memory(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "a32", "b16"); /* three pages and two states each */
    trace_file_ask(&f, 1, "c32", "d16");
    trace_file_ask(&f, 2, "e32", "f16");
    trace_file_ask(&f, 0, "a32 b16 g16", "h16");
    trace_file_ask(&f, 2, "e32 f16 i16", "j16");
    Trace t = trace_file_read(&f, "bench_prefix");
    assert_int_equal(hits(&t, engine_rules, CACHE_LRU, 0, 30), 48 + 48);
    assert_int_equal(hits(&t, engine_rules, CACHE_LRU, 0, 12), 48);
    assert_int_equal(hits(&t, engine_rules, CACHE_BLOCKS, 16, 2 * 9), 48 + 48);
    assert_int_equal(hits(&t, engine_rules, CACHE_BLOCKS, 16, 2 * 8), 32 + 48);
    assert_int_equal(run(&t, engine_rules, (Policy){.kind = CACHE_LRU}, 12).too_large, 0);
    assert_int_equal(run(&t, engine_rules, (Policy){.kind = CACHE_LRU}, 5).too_large, 2);

    PolicyResult r;
    Error err = {0};
    PolicyRun all = {.trace = &t, .shape = &shape, .rules = engine_rules, .flops_per_second = 1};
    assert_int_equal(policy_run(&all, &(Policy){.kind = CACHE_LRU}, 64, &r, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    Policy blocks = {.kind = CACHE_BLOCKS, .block_tokens = 32};
    assert_int_equal(policy_run(&all, &blocks, 64, &r, &err), -1);
    trace_close(&t);
}

/* A state takes whole pages, that is a frame, and the least memory is three of these. */
static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        double state_bytes;
        int least_pages, is_too_small;
    } cases[] = {{0, 3, 1}, {10, 3, 1}, {64, 3, 1}, {100, 6, 1}, {128, 6, 1}, {129, 9, 0}};
    TraceFile f = {0};
    trace_file_ask(&f, 0, "a80", "b16"); /* six pages and a state, in three frames */
    Trace t = trace_file_read(&f, "bench_prefix");
    Policy none = {.kind = CACHE_NONE}, lru = {.kind = CACHE_LRU},
           blocks = {.kind = CACHE_BLOCKS, .block_tokens = 32};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Shape s = shape;
        PolicyResult r;
        Error err = {0};
        s.state_bytes = cases[i].state_bytes;
        PolicyRun all = {.trace = &t, .shape = &s, .rules = engine_rules, .flops_per_second = 1};
        double least = cases[i].least_pages * PAGE_BYTES, block = s.state_bytes + 32 * s.kv_bytes;
        assert_true(policy_least_bytes(&s, &none) == 0);
        assert_true(policy_least_bytes(&s, &blocks) == block);
        assert_true(policy_least_bytes(&s, &lru) == least);
        assert_int_equal(policy_run(&all, &lru, least - 1, &r, &err), -1);
        assert_int_equal(policy_run(&all, &lru, least, &r, &err), 0);
        assert_int_equal(r.too_large, cases[i].is_too_small);
        assert_int_equal(policy_run(&all, &blocks, block - 1, &r, &err), -1);
        assert_int_equal(policy_run(&all, &blocks, block, &r, &err), 0);
        assert_int_equal(policy_run(&all, &lru, 1e13, &r, &err), -1);
        assert_non_null(strstr(err.msg, "pages"));
        assert_int_equal(policy_run(&all, &blocks, 1e13, &r, &err), -1);
        assert_non_null(strstr(err.msg, "blocks"));
    }
    trace_close(&t);
}

/* Memory may be states for the most part: forty conversations of a page have eighty. */
static void test_many_states(void **state)
{
    (void)state;
    enum { PAGES = 124 };
    TraceFile f = {0};
    for (int i = 0; i < 40; i++) {
        char prompt[16], answer[16];
        snprintf(prompt, sizeof prompt, "%dx8", 1000 + 10 * i);
        snprintf(answer, sizeof answer, "%dx8", 2000 + 10 * i);
        trace_file_ask(&f, i, prompt, answer);
    }
    trace_file_ask(&f, 0, "1000x8 2000x8 3000x8", "a8");
    Trace t = trace_file_read(&f, "bench_prefix");
    assert_int_equal(hits(&t, engine_rules, CACHE_LRU, 0, PAGES), 16);
    trace_close(&t);
}

/* Where alpha is small what is old goes, though it is longer. */
static void test_age(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "a48", "b16");
    trace_file_ask(&f, 1, "c32", "d16");
    trace_file_ask(&f, 2, "e32", "f16");
    trace_file_ask(&f, 0, "a48 b16 g16", "h16");
    trace_file_ask(&f, 2, "e32 f16 i16", "j16");
    Trace t = trace_file_read(&f, "bench_prefix");
    Policy young = {.kind = CACHE_FLOP, .alpha = 0.01}, large = {.kind = CACHE_FLOP, .alpha = 100};
    assert_int_equal(hits(&t, engine_rules, CACHE_LRU, 0, 13), 48);
    assert_true(run(&t, engine_rules, young, 13).hit_tokens == 48);
    assert_true(run(&t, engine_rules, large, 13).hit_tokens == 64 + 32);
    trace_close(&t);
}

static void test_percentiles(void **state)
{
    (void)state;
    enum { N = 200 };
    double ttft[N];
    PolicyResult r = {0};
    for (int i = 0; i < N; i++)
        ttft[i] = (i * 77) % N + 1; /* each of 1..200 once */
    policy_set_ttft(&r, ttft, N);
    assert_true(r.ttft_p5 == 10);
    assert_true(r.ttft_p50 == 100);
    assert_true(r.ttft_p95 == 190);
}

/* An answer that changes is not waited for; the prompt before it is found. */
static void test_changed_answer(void **state)
{
    (void)state;
    Trace t;
    Error err = {0};
    if (trace_open(&t, "agent", "sessions=1,turns=60,reasoning=200,most=60000", NULL, &err))
        fail_msg("%s", err.msg);
    double want = 0;
    for (int i = 0; i + 1 < t.n; i++)
        want += t.request[i].n_prompt;
    assert_true(t.n > 3);
    assert_true(run(&t, engine_rules, (Policy){.kind = CACHE_LRU}, 1 << 16).hit_tokens == want);
    KeepRules paper = {.keep_answers = 1}; /* where there is no answer to find, the prompt's end */
    assert_true(run(&t, paper, (Policy){.kind = CACHE_LRU}, 1 << 16).hit_tokens == want);
    trace_close(&t);
}

/* The same numbers every time, whatever ran before. */
static void test_repeats(void **state)
{
    (void)state;
    Trace t;
    Error err = {0};
    if (trace_open(&t, "chat", "sessions=60", NULL, &err)) fail_msg("%s", err.msg);
    for (int kind = CACHE_NONE; kind <= CACHE_TUNED; kind++) {
        Policy p = {.kind = (PolicyKind)kind, .block_tokens = 32, .alpha = 0.5};
        PolicyResult a = run(&t, engine_rules, p, 700), b = run(&t, engine_rules, p, 700);
        assert_true(a.hit_tokens == b.hit_tokens);
        assert_true(a.ttft_p50 == b.ttft_p50);
        assert_true((a.hit_tokens > 0) == (kind != CACHE_NONE));
    }
    trace_close(&t);
}

/* What weighs in each policy: age alone, what it saves too, and how much is found out or given. */
static void test_weights(void **state)
{
    (void)state;
    enum { PAGES = 700 };
    Trace t;
    Error err = {0};
    if (trace_open(&t, "chat", "sessions=60", NULL, &err)) fail_msg("%s", err.msg);
    PolicyResult lru = run(&t, engine_rules, (Policy){.kind = CACHE_LRU, .alpha = 2}, PAGES);
    PolicyResult old = run(&t, engine_rules, (Policy){.kind = CACHE_FLOP}, PAGES),
                 flop = run(&t, engine_rules, (Policy){.kind = CACHE_FLOP, .alpha = 2}, PAGES),
                 tuned = run(&t, engine_rules, (Policy){.kind = CACHE_TUNED}, PAGES);
    assert_int_equal(lru.requests, t.n);
    assert_true(lru.capacity == PAGES * PAGE_BYTES);
    assert_true(lru.seconds > 0);
    assert_true(lru.hit_tokens == old.hit_tokens);
    assert_true(lru.hit_tokens != flop.hit_tokens);
    assert_true(lru.tune.alpha == 0);
    assert_true(flop.tune.alpha == 2);
    assert_true(tuned.tune.windows > 0);
    trace_close(&t);
}

/* ---- the command ---- */

static json_t *row_of(const json_t *report, const char *policy, double capacity)
{
    const json_t *rows = json_object_get(report, "rows");
    json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (!strcmp(json_string_value(json_object_get(row, "policy")), policy) &&
            json_number_value(json_object_get(row, "capacity_bytes")) == capacity)
            return row;
    }
    fail_msg("no row of %s at %.0f", policy, capacity);
    return NULL;
}

/* To be freed with mem_free. */
static char *read_plot(const char *path)
{
    MappedFile file;
    assert_int_equal(mapped_file_open(&file, path, NULL), 0);
    char *plot = mem_alloc(file.size + 1, 1);
    memcpy(plot, file.data, file.size);
    mapped_file_close(&file);
    return plot;
}

static void test_command(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "a320", "b160");
    trace_file_ask(&f, 0, "a320 b160 c160", "d160");
    const char *path = trace_file_write(&f, "bench_prefix"),
               *svg = scratch_path("build/tests/bench_prefix", "plot.svg");
    RunResult r = RUN("bench", "prefix", "--trace", path, "--capacity", "2G,512M", "--policy",
                      "none,block32,lru,flop", "--alpha", "0.5,tune", "--svg", svg, "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_non_null(report);
    assert_int_equal(json_array_size(json_object_get(report, "rows")), 10);
    json_t *row = row_of(report, "flop tuned", 2147483648.0);
    assert_true(fabs(json_number_value(json_object_get(row, "token_hit_rate")) - 0.5) < 1e-6);
    assert_true(json_number_value(json_object_get(row, "request_hit_rate")) == 0.5);
    row = row_of(report, "none", 536870912.0);
    assert_true(json_number_value(json_object_get(row, "token_hit_rate")) == 0);
    assert_true(json_number_value(
                    json_object_get(row_of(report, "flop 0.5", 536870912.0), "alpha")) == 0.5);
    json_decref(report);
    run_result_free(&r);

    char *plot = read_plot(svg);
    int lines = 0;
    for (const char *at = plot; (at = strstr(at, "<polyline")); at++)
        lines++;
    assert_int_equal(lines, 5);
    assert_non_null(strstr(plot, "</svg>"));
    mem_free(plot);

    r = RUN("bench", "prefix", "--trace", path, "--shape", "models/demo", "--policy", "lru");
    assert_run(&r, 0, "lru ");
    run_result_free(&r);
    r = RUN("bench", "prefix", "--trace", path, "--shape", "models/demo/config.json", "--policy",
            "lru", "--model", "models/demo");
    assert_run(&r, 0, "lru ");
    run_result_free(&r);
}

static void check_row(const PrefixBench *b, const char *line, const char *json)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    prefix_print_row(b, 0, 0, out);
    fclose(out);
    assert_string_equal(text, line);
    free(text);
    json_t *row = prefix_row_json(b, 0, 0), *want = json_loads(json, 0, NULL);
    if (!json_equal(row, want)) fail_msg("%s", json_dumps(row, 0));
    json_decref(row);
    json_decref(want);
}

/* Shares in percent or as they are, times in milliseconds; gigabytes, of a real run megabytes. */
static void test_rows(void **state)
{
    (void)state;
    static PrefixBench b;
    static PrefixReal real;
    b.policy[0] = (Policy){.kind = CACHE_FLOP, .name = "flop 2.5"};
    b.result[0][0] = (PolicyResult){.capacity = 2e9,
                                    .requests = 5,
                                    .hit_requests = 2,
                                    .prompt_tokens = 400,
                                    .hit_tokens = 100,
                                    .flops = 8,
                                    .flops_saved = 1,
                                    .ttft_p5 = 0.5,
                                    .ttft_p50 = 0.75,
                                    .ttft_p95 = 2,
                                    .tune = {.alpha = 2.5}};
#define ROW(name, seconds)                                                                         \
    "\"policy\": \"" name "\", \"capacity_bytes\": 2e9, \"hit_tokens\": 100, "                     \
    "\"token_hit_rate\": 0.25, \"request_hit_rate\": 0.4, \"flops\": 8.0, \"flops_saved\": 1.0, "  \
    "\"flops_saved_rate\": 0.125, \"ttft_ms\": {\"p5\": 500.0, \"p50\": 750.0, \"p95\": 2000.0}, " \
    "\"seconds\": " seconds
    check_row(&b,
              "       2  flop 2.5      25.0      40.0   12.5     500      750     2000    2.5\n",
              "{" ROW("flop 2.5", "0.0") ", \"alpha\": 2.5}");

    b.policy[0] = (Policy){.kind = CACHE_LRU, .name = "lru"};
    b.result[0][0].too_large = 3;
    check_row(
        &b,
        "       2  lru           25.0      40.0   12.5     500      750     2000  3 too large\n",
        "{" ROW("lru", "0.0") ", \"too_large\": 3}");

    b.policy[0] = (Policy){.kind = CACHE_TUNED, .name = "tuned"};
    b.result[0][0].too_large = 0;
    b.result[0][0].tune = (TuneStats){.alpha = 1, .windows = 7, .searches = 6, .fallbacks = 5};
    check_row(&b,
              "       2  tuned         25.0      40.0   12.5     500      750     2000    1.0\n",
              "{" ROW("tuned", "0.0") ", \"alpha\": 1.0, \"windows\": 7, \"searches\": 6, "
                                      "\"fallbacks\": 5}");

    b.policy[0] = (Policy){.kind = CACHE_LRU, .name = "lru"};
    b.real = &real;
    b.result[0][0].seconds = 4.5;
    real.simulated_hits[0][0] = 200;
    real.n_differ[0][0] = 9;
    check_row(&b,
              "    2000  lru           25.0       50.0      40.0   12.5     500      750     2000"
              "     4.50       9\n",
              "{" ROW("lru", "4.5") ", \"simulated_hit_tokens\": 200, "
                                    "\"simulated_token_hit_rate\": 0.5, \"different\": 9}");
#undef ROW
}

/* Sizes that nobody named are large enough: here a block of 528 tokens is more than the trace. */
static void test_short_trace(void **state)
{
    (void)state;
    TraceFile f = {0};
    trace_file_ask(&f, 0, "a3", "b2");
    const char *path = trace_file_write(&f, "bench_prefix");
    expect_run(RUN("bench", "prefix", "--trace", path, "--shape", "models/demo"), 0, "block 528");
}

/* The trace's name is not UTF-8, and what fits of the shape's ends within a character. */
static void test_names(void **state)
{
    (void)state;
    static const char dir[] = "build/tests/bench_prefix";
    TraceFile f = {0};
    trace_file_ask(&f, 0, "a3", "b2");
    const char *written = trace_file_write(&f, "bench_prefix");
    const char *trace = scratch_path(dir, "trace\xff");
#define E8 "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"
    const char *folder = scratch_path(dir, "x" E8 E8 E8 E8);
#undef E8
    assert_int_equal(rename(written, trace), 0);
    assert_int_equal(symlink("../../../models/demo", folder), 0);
    RunResult r = RUN("bench", "prefix", "--trace", trace, "--shape", folder, "--json");
    assert_run(&r, 0, "");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_non_null(report);
    assert_string_equal(json_string_value(json_object_get(report, "trace")), "trace");
    const char *name = json_string_value(json_object_get(report, "shape"));
    assert_memory_equal(name, folder, strlen(name));
    json_decref(report);
    run_result_free(&r);

    const char *marks = scratch_path(dir, "]]><&"), *svg = scratch_path(dir, "plot.svg");
    assert_int_equal(rename(trace, marks), 0);
    expect_run(RUN("bench", "prefix", "--trace", marks, "--policy", "lru", "--svg", svg), 0, "lru");
    char *plot = read_plot(svg);
    assert_non_null(strstr(plot, "]]&gt;&lt;&amp;, 1 requests"));
    mem_free(plot);
}

static void test_refused(void **state)
{
    (void)state;
    expect_run(RUN("bench", "prefix", "--trace", "no-such-file"), 5, "no-such-file");
    expect_run(RUN("bench", "prefix", "--load", "sessions=0"), 2, "sessions");
    expect_run(RUN("bench", "prefix", "--capacity", "1G,x"), 2, "--capacity has 'x'");
    expect_run(RUN("bench", "prefix", "--capacity", "1G,"), 2, "no list");
    expect_run(RUN("bench", "prefix", "--capacity", "1M"), 3, "--capacity: 1.05 MB hold nothing");
    expect_run(RUN("bench", "prefix", "--policy", "fifo"), 2, "--policy has 'fifo'");
    expect_run(RUN("bench", "prefix", "--policy", "block0"), 2, "block0");
    expect_run(RUN("bench", "prefix", "--alpha", "1,-1"), 2, "--alpha has '-1'");
    expect_run(RUN("bench", "prefix", "--shape", "no-such-shape"), 5, "no-such-shape");
    expect_run(RUN("bench", "prefix", "--load", "sessions=3", "--svg", "no/such/dir/x.svg"), 5,
               "cannot write");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation), cmocka_unit_test(test_branch),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_changed_answer),
        cmocka_unit_test(test_many_states),  cmocka_unit_test(test_age),
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_weights),      cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_command),      cmocka_unit_test(test_rows),
        cmocka_unit_test(test_short_trace),  cmocka_unit_test(test_names),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
