/*
 * test_bench_turn.c: `bench turn` finds each prefix where it says; its figures are not judged.
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

#include "tests/checkpoint.h"
#include "tests/run_binary.h"

#define MODEL "tests/data/golden/qwen35-dense"

typedef struct {
    const char *way;
    int context, new_tokens, cached;
    double ms, min, max;
} Line;

static Line line_of(const json_t *rows, size_t i)
{
    Line l;
    assert_int_equal(json_unpack(json_array_get(rows, i), "{s:s, s:i, s:i, s:i, s:F, s:F, s:F}",
                                 "way", &l.way, "context", &l.context, "new_tokens", &l.new_tokens,
                                 "cached_tokens", &l.cached, "first_token_ms", &l.ms, "min_ms",
                                 &l.min, "max_ms", &l.max),
                     0);
    return l;
}

/* Prefixes that end inside a page and on one; the whole prefix is found, in memory and on disk. */
static void test_prefixes_are_found(void **state)
{
    (void)state;
    static const char *const way[] = {"computed", "in memory", "cached", "restored"};
    RunResult r = RUN("bench", "turn", "--model", MODEL, "--threads", "1", "--contexts", "90,128",
                      "--question-tokens", "24", "--requests", "2", "--ctx-size", "256", "--memory",
                      "64M", "--cache-dir", scratch_dir("bench_turn"), "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    const json_t *rows = json_object_get(report, "rows");
    assert_int_equal(json_array_size(rows), 8);
    for (size_t i = 0; i < 8; i++) {
        Line l = line_of(rows, i);
        assert_string_equal(l.way, way[i % 4]);
        assert_int_equal(l.context, i < 4 ? 90 : 128);
        assert_int_equal(l.new_tokens, 24);
        assert_int_equal(l.cached, i % 4 < 2 ? 0 : l.context);
        assert_true(l.min > 0 && l.min <= l.ms && l.ms <= l.max);
    }
    assert_true(line_of(rows, 1).max < line_of(rows, 0).max); /* it is a part of that */
    json_decref(report);
    run_result_free(&r);
}

/* Without a folder nothing is restored; the table has the ratio to the second row. */
static void test_table(void **state)
{
    (void)state;
    static const char *const heads[] = {"    118      9  computed        0 ",
                                        "    118      9  in memory       0 ",
                                        "    118      9  cached        118 "};
    double ms, min, max, ratio, behind = 0;
    RunResult r = RUN("bench", "turn", "--model", MODEL, "--threads", "1", "--question-tokens", "9",
                      "--requests", "2", "--ctx-size", "128");
    for (size_t i = 3; i-- > 0;) {
        assert_run(&r, 0, heads[i]); /* what the context leaves of 4096 */
        const char *figures = strstr(strbuf_str(&r.out), heads[i]) + strlen(heads[i]);
        assert_int_equal(sscanf(figures, "%lf [%lf..%lf] %lf", &ms, &min, &max, &ratio), 4);
        assert_true(min <= max && fabs(ms - (min + max) / 2) <= 0.011);
        assert_true(i != 1 || ratio == 1);
        if (i == 1) behind = ms;
    }
    assert_true(fabs(ratio - ms / behind) < 0.1 * ratio);
    assert_null(strstr(strbuf_str(&r.out), "restored"));
    run_result_free(&r);
}

/* A context that is named twice is computed twice. */
static void test_equal_contexts(void **state)
{
    (void)state;
    RunResult r = RUN("bench", "turn", "--model", MODEL, "--threads", "1", "--contexts", "40,40,40",
                      "--question-tokens", "8", "--requests", "1", "--ctx-size", "64", "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(line_of(json_object_get(report, "rows"), i).cached, i % 3 < 2 ? 0 : 40);
    json_decref(report);
    run_result_free(&r);
}

static void test_refused(void **state)
{
    (void)state;
    expect_run(RUN("bench", "turn", "--model", MODEL, "--contexts", "0"), 2, "--contexts");
    expect_run(RUN("bench", "turn", "--model", MODEL, "--contexts", "250", "--ctx-size", "256"), 3,
               "leaves no room");
    expect_run(RUN("bench", "turn", "--model", MODEL, "--contexts", "200", "--ctx-size", "256",
                   "--question-tokens", "64"),
               3, "at most 191 tokens");
    expect_run(RUN("bench", "turn", "--model", MODEL, "--contexts", "16", "--ctx-size", "64",
                   "--question-tokens", "8", "--cache-dir", "/proc/no"),
               5, "not saved");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes_are_found),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_equal_contexts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
