/* test_cost.c: what the parts of a step take, learnt from steps that are made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/cost_case.h"

static void open_cost(Cost *c)
{
    CostBytes b = cost_case_bytes();
    cost_init(c, &b);
}

/*
 * A step of one sequence: n_rows rows in a pass of pass ms, n_levels levels of draft_ms in all. The
 * upkeep takes longer where there are drafts.
 */
static void one_step(Cost *c, int n_rows, double pass, int n_levels, double draft)
{
    CostStep s = {.who = {.n = 1, .keys = 500, .head_keys = 500},
                  .n_rows = n_rows,
                  .n_kept = 1,
                  .draft_ms = draft,
                  .pass_ms = pass,
                  .upkeep_ms = n_rows > 1 ? 3 : 2};
    for (int d = 1; d <= n_levels; d++)
        s.level_rows[d] = 1;
    cost_learn(c, &s);
}

static void assert_near(double x, double want)
{
    if (x < want * 0.9 || x > want * 1.1) fail_msg("%g ms in place of %g", x, want);
}

/*
 * What was seen is known, what lies between is, and beyond it grows on as it grew last: of 1, 4 and
 * 8 rows 16 follow. Of a part that was never seen its bytes tell.
 */
static void test_learns_times(void **state)
{
    (void)state;
    CostCompany who = {.n = 1, .keys = 500, .head_keys = 500};
    Cost c;
    open_cost(&c);
    for (int i = 0; i < 200; i++) {
        one_step(&c, 1, 10, 0, 0);
        one_step(&c, 4, 10, 1, 2);
        one_step(&c, 8, 30, 3, 2 + 2 * 5);
    }
    assert_near(cost_pass_ms(&c, &who, 1), 10);
    assert_near(cost_pass_ms(&c, &who, 2), 10);
    assert_near(cost_pass_ms(&c, &who, 8), 30);
    assert_near(cost_pass_ms(&c, &who, 16), 70);
    assert_near(cost_pass_ms(&c, &who, 12), 50);
    assert_near(cost_upkeep_ms(&c, &who, 1, 0), 2);
    assert_near(cost_upkeep_ms(&c, &who, 1, 1), 3);
    assert_near(cost_level_ms(&c, &who, 1, 1), 2);
    assert_near(cost_level_ms(&c, &who, 2, 1), 5);
    assert_near(cost_level_ms(&c, &who, 7, 4), 5);
    open_cost(&c);
    for (int i = 0; i < 200; i++)
        one_step(&c, 1, 10, 0, 0);
    assert_near(cost_level_ms(&c, &who, 1, 1), 1);
}

/* Drafts that were made take their time, also when none was worth a row of the pass. */
static void test_unverified_drafts(void **state)
{
    (void)state;
    CostCompany who = {.n = 1, .keys = 500, .head_keys = 500};
    Cost c;
    open_cost(&c);
    for (int i = 0; i < 100; i++)
        one_step(&c, 1, 10, 1, 3);
    assert_near(cost_level_ms(&c, &who, 1, 1), 3);
}

/*
 * A stall in the first step with drafts says nothing of them: they stay as cheap as their bytes
 * say, and are tried again. Where the second step is as long they are dear.
 */
static void test_first_step_stalled(void **state)
{
    (void)state;
    CostCompany who = {.n = 1, .keys = 500, .head_keys = 500};
    Cost c;
    for (int n_levels = 1; n_levels <= 3; n_levels++) {
        open_cost(&c);
        one_step(&c, 1, 10, 0, 0);
        one_step(&c, 4, 10, n_levels, 100);
        assert_near(cost_level_ms(&c, &who, 1, 1), 1);
        assert_near(cost_level_ms(&c, &who, 2, 1), 2);
        one_step(&c, 4, 10, n_levels, 100);
        assert_true(cost_level_ms(&c, &who, 1, 1) > 10);
    }
}

/* A prompt of n rows that takes row ms each, and shown ms for each row that the drafter sees. */
static void prompt(Cost *c, int n, double row, double shown)
{
    int n_shown = cost_shown_rows(c, n);
    assert_in_range(n_shown, 1, n);
    cost_learn(c, &(CostStep){.who.prompt_rows = n,
                              .n_shown = n_shown,
                              .pass_ms = n * row,
                              .upkeep_ms = n_shown * shown});
}

/* Seeing a prompt takes a sixteenth of its time at most, but for the rows that are always seen. */
static void test_shown_rows(void **state)
{
    (void)state;
    Cost c;
    open_cost(&c);
    assert_int_equal(cost_shown_rows(&c, 5000), 5000); /* nothing is known yet */
    prompt(&c, 300, 1, 0.05);
    assert_int_equal(cost_shown_rows(&c, 5000), 5000);
    for (int i = 0; i < 100; i++)
        prompt(&c, 300, 1, 0.25);
    assert_in_range(cost_shown_rows(&c, 4000), 990, 1010);
    assert_int_equal(cost_shown_rows(&c, 200), 64);
    assert_int_equal(cost_shown_rows(&c, 50), 50);
    assert_int_equal(cost_shown_rows(&c, 0), 0);
    for (int i = 0; i < 100; i++)
        prompt(&c, 300, 1, 0.05);
    assert_int_equal(cost_shown_rows(&c, 5000), 5000);
}

/*
 * Beside many rows of a prompt a row takes what the prompt's take, and the upkeep nothing more. A
 * pass beside some says nothing of one without.
 */
static void test_beside_a_prompt(void **state)
{
    (void)state;
    const CostCompany who = {.n = 2, .keys = 500, .head_keys = 500, .prompt_rows = 40},
                      few = {.n = 1, .keys = 500, .head_keys = 500, .prompt_rows = 8},
                      alone = {.n = 1, .keys = 500, .head_keys = 500};
    Cost c;
    open_cost(&c);
    for (int i = 0; i < 100; i++) {
        one_step(&c, 1, 10, 0, 0);
        cost_learn(&c, &(CostStep){.who = few, .n_rows = 1, .n_kept = 1, .pass_ms = 90});
    }
    assert_near(cost_pass_ms(&c, &alone, 1), 10);
    prompt(&c, 300, 2, 0.5);
    assert_true(cost_pass_ms(&c, &who, 8) == 48 * 2);
    assert_true(cost_upkeep_ms(&c, &who, 8, 0) == 0 && cost_upkeep_ms(&c, &who, 8, 1) == 0);
}

static void assert_times(double ms, double unit, double bytes)
{
    double off = ms / unit / bytes - 1;
    if (off < -1e-6 || off > 1e-6) fail_msg("%.12g bytes in place of %.12g", ms / unit, bytes);
}

/* Nothing is known but bytes: each part takes what it moves, whoever is in the step. */
static void test_bytes(void **state)
{
    (void)state;
    CostBytes b = {.state = 1e5, .key = 2e4, .head_key = 3e3, .head = 4e7, .scored = 5e6};
    const CostCompany who = {.n = 3, .keys = 700, .head_keys = 500},
                      beside = {.n = 3, .keys = 700, .head_keys = 500, .prompt_rows = 8};
    double head = b.head + 500 * b.head_key, moved = 2 * 3 * b.state + 700 * b.key;
    Cost c;
    b.fold = 6e6;
    for (int n = 1; n <= COST_ROWS; n++)
        b.pass[n] = n * 1e8;
    cost_init(&c, &b);
    double unit = cost_pass_ms(&c, &(CostCompany){0}, 10) / 1e9;
    assert_times(cost_pass_ms(&c, &who, 5), unit, 5e8 + moved);
    assert_times(cost_pass_ms(&c, &beside, 5), unit, 13e8 + moved);
    assert_times(cost_level_ms(&c, &who, 1, 4), unit, b.scored);
    assert_times(cost_level_ms(&c, &who, 2, 4), unit, b.scored + head);
    assert_times(cost_upkeep_ms(&c, &who, 4, 0), unit, head);
    assert_times(cost_upkeep_ms(&c, &who, 4, 1), unit, head + 3 * b.fold);
    assert_times(cost_round_ms(&c, &who, 0), unit, 3e8 + moved + head);
    assert_times(cost_round_ms(&c, &who, 2), unit,
                 9e8 + moved + head + 2 * b.scored + head + 3 * b.fold);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns_times),       cmocka_unit_test(test_unverified_drafts),
        cmocka_unit_test(test_first_step_stalled), cmocka_unit_test(test_shown_rows),
        cmocka_unit_test(test_beside_a_prompt),    cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
