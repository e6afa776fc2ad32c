/*
 * test_bench_replay.c: sums over the turns of servers that were asked the same (bench/replay.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "bench/quantiles.h"
#include "bench/replay.h"

static void test_sums(void **state)
{
    (void)state;
    LoadTurn turn[] = {
        {.answered = 1, .n_prompt = 10, .n_tokens = 11, .work = {0, 9, 5}, .first_ms = 4, .ms = 54},
        {.answered = 0, .n_prompt = 99, .first_ms = 99},
        {.answered = 1, .n_prompt = 20, .n_tokens = 1, .work = {16, 0, 0}, .first_ms = 2, .ms = 2},
        {.answered = 1,
         .differs = 1,
         .n_prompt = 30,
         .n_tokens = 6,
         .work = {8, 3, 0},
         .first_ms = 9,
         .ms = 59},
    };
    Replay r = {.n_rows = 1, .n_turns = 4, .row = {{.turn = turn}}};
    ReplaySum s = replay_sum(&r, 0, NULL);
    assert_int_equal(s.n_turns, 3);
    assert_int_equal(s.n_differ, 1);
    assert_int_equal(s.n_prompt, 60);
    assert_int_equal(s.n_cached, 24);
    assert_int_equal(s.n_tokens, 18);
    assert_int_equal(s.n_drafted, 12);
    assert_int_equal(s.n_accepted, 5);
    assert_true(s.tokens_per_second == 150); /* 15 tokens after the first ones in 100 ms */
    assert_true(s.accepted_length == 1.5);   /* 15 of 10 steps */
    Error err = {0};
    assert_int_equal(replay_check(&r, &err), -1);
    assert_string_equal(err.msg, "1 answers of row 1 differ from those of the first");
    r.row[0].may_differ = 1;
    assert_int_equal(replay_check(&r, NULL), 0);
    assert_true(s.first_ms_p[0] == 4 && s.first_ms_p[1] == 9 && s.first_ms_p[2] == 9);
    json_t *one = replay_turn_json(&turn[0]);
    assert_true(json_real_value(json_object_get(one, "tokens_per_second")) == 200);
    assert_true(json_real_value(json_object_get(one, "acceptance_length")) == 2);
    json_decref(one);
    s = replay_sum(&r, 0, (const char[]){0, 1, 1, 0});
    assert_int_equal(s.n_turns, 1);
    assert_true(s.n_prompt == 20 && s.tokens_per_second == 0 && s.accepted_length == 1);
    assert_true(s.first_ms_p[0] == 2);
}

/* An answer without a token has no first one either. */
static void test_empty_answers(void **state)
{
    (void)state;
    LoadTurn turn[] = {{.answered = 1, .first_ms = 1, .ms = 11},
                       {.answered = 1, .n_tokens = 12, .first_ms = 2, .ms = 102}};
    Replay r = {.n_rows = 1, .n_turns = 2, .row = {{.turn = turn}}};
    ReplaySum s = replay_sum(&r, 0, NULL);
    assert_true(s.tokens_per_second == 100); /* 11 in 110 ms */
    assert_int_equal(s.n_turns, 2);
    assert_true(s.first_ms_p[0] == 2);
    s = replay_sum(&r, 0, (const char[]){1, 0});
    assert_true(s.n_turns == 1 && s.first_ms_p[0] == 0);
    json_t *empty = replay_turn_json(&turn[0]);
    assert_true(json_real_value(json_object_get(empty, "tokens_per_second")) == 0);
    json_decref(empty);
}

/* Each is a time that was measured, the first that so many do not exceed. */
static void test_percentiles(void **state)
{
    (void)state;
    enum { N = 100 };
    LoadTurn turn[N];
    Replay r = {.n_rows = 1, .n_turns = N, .row = {{.turn = turn}}};
    for (int i = 0; i < N; i++)
        turn[i] = (LoadTurn){.answered = 1, .n_tokens = 1, .first_ms = N - i, .ms = N - i};
    ReplaySum s = replay_sum(&r, 0, NULL);
    assert_true(s.first_ms_p[0] == 50 && s.first_ms_p[1] == 95 && s.first_ms_p[2] == 99);
    json_t *row = replay_row_json(&r, 0); /* of our own server, which would tell of drafts */
    assert_true(json_is_false(json_object_get(row, "prefix_cache")));
    assert_true(json_real_value(json_object_get(row, "acceptance_length")) == 1);
    assert_true(json_real_value(json_object_get(row, "first_token_ms_p50")) == 50);
    assert_true(json_real_value(json_object_get(row, "first_token_ms_p95")) == 95);
    assert_true(json_real_value(json_object_get(row, "first_token_ms_p99")) == 99);
    json_decref(row);
    r.n_turns = 2;
    assert_true(replay_sum(&r, 0, NULL).first_ms_p[0] == 99);
    double ms[] = {4, 1, 3, 2};
    assert_true(median(ms, 4) == 2.5 && median(ms, 3) == 2 && median(ms, 1) == 1);
    assert_true(median(ms, 0) == 0 && quantile(ms, 0, 0.5) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_empty_answers),
        cmocka_unit_test(test_percentiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
