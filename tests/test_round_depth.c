/*
 * test_round_depth.c: how deep the drafts of a device's rounds are, on machines and texts that are
 * made up. A machine says what a round takes; a text, how often guesses are right.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/growth.h"
#include "tests/cost_case.h"

/* Milliseconds of a round: what all have, each row of the pass, each level of drafts. */
typedef struct {
    double pass, row, level;
} Machine;

typedef struct {
    Growth growth;
    Machine machine;
    double kept; /* a guess is right so often, if those before it are */
    DraftRates rates[COST_ROWS];
    int n, most, stall_every; /* rounds; then one takes 20 times as long. 0: never */
    uint64_t random;
    long n_rounds;
    double tokens, ms;         /* of all rounds of the last run */
    long n_of[MAX_LEVELS + 1]; /* rounds of each depth in it */
} World;

static void open_world(World *w, int n, Machine machine, double kept)
{
    CostBytes b = cost_case_bytes();
    memset(w, 0, sizeof *w);
    growth_init(&w->growth, &b, 0, 0);
    w->machine = machine;
    w->kept = kept;
    w->n = n;
    w->most = COST_ROWS / n - 1 < MAX_LEVELS ? COST_ROWS / n - 1 : MAX_LEVELS;
    for (int i = 0; i < n; i++)
        w->rates[i] = w->growth.all;
}

/* A chain of that depth, of tokens 1, 2, ..., of which the target keeps some: their number. */
static int verify(World *w, int i, int depth)
{
    enum { OTHER = 1000 };
    Tree t;
    int32_t token[MAX_LEVELS + 1];
    int m = 0;
    tree_init(&t, 0);
    for (int d = 1; d <= depth; d++)
        tree_add(&t, d - 1, d, t.value[d - 1] * 0.5f);
    while (m < depth && cost_case_lot(&w->random) < w->kept)
        m++;
    for (int d = 0; d <= m; d++)
        token[d] = d < m ? d + 1 : OTHER;
    rates_learn(&w->rates[i], &w->growth.all, &t, token, m + 1, w->growth.n_steps);
    return m;
}

static double round_ms(const World *w, int depth)
{
    const Machine *m = &w->machine;
    return m->pass + w->n * (depth + 1) * m->row + depth * m->level;
}

static int one_round(World *w)
{
    GrowthQuery q = {.who = {.n = w->n, .keys = 500.0 * w->n, .head_keys = 500.0 * w->n}};
    int levels[COST_ROWS];
    for (int i = 0; i < w->n; i++) {
        q.rates[i] = &w->rates[i];
        q.most[i] = w->most;
    }
    int depth = growth_choose_round(&w->growth, &q, levels);
    double ms = round_ms(w, depth);
    assert_true(depth >= 0 && depth <= w->most);
    for (int i = 0; i < w->n; i++) {
        assert_int_equal(levels[i], depth);
        w->tokens += 1 + verify(w, i, depth);
    }
    if (w->stall_every && ++w->n_rounds % w->stall_every == 0) ms *= 20;
    cost_learn_round(&w->growth.cost, &q.who, depth, ms);
    w->ms += round_ms(w, depth);
    w->n_of[depth]++;
    return depth;
}

/* Mean depth. */
static double run(World *w, int n_rounds)
{
    double sum = 0;
    w->tokens = w->ms = 0;
    memset(w->n_of, 0, sizeof w->n_of);
    for (int i = 0; i < n_rounds; i++)
        sum += one_round(w);
    return sum / n_rounds;
}

/* Tokens a millisecond of the best of all depths. */
static double best_rate(const World *w)
{
    double best = 0, tokens = 1, chance = 1;
    for (int d = 0; d <= w->most; d++) {
        double rate = w->n * tokens / round_ms(w, d);
        if (rate > best) best = rate;
        tokens += chance *= w->kept;
    }
    return best;
}

/* Alone and many, whatever is dear: near the best. It looks at other depths now and then. */
static void test_near_the_best(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 8, 20, 64};
    static const double kept[] = {0.1, 0.5, 0.8, 0.95};
    static const Machine machines[] = {{.pass = 5, .row = 0.1, .level = 0.3},
                                       {.pass = 1.3, .row = 0.2, .level = 0.2},
                                       {.pass = 0.3, .row = 0.01, .level = 0.05},
                                       {.pass = 1, .row = 0.01, .level = 1},
                                       {.pass = 1, .row = 1, .level = 0.1}};
    for (int k = 0; k < 5 * 4 * 5; k++) {
        World w;
        open_world(&w, sizes[k % 5], machines[k / 20], kept[k / 5 % 4]);
        run(&w, 400);
        run(&w, 2000);
        double share = w.tokens / w.ms / best_rate(&w);
        if (share < 0.94)
            fail_msg("%d sequences, machine %d, kept %.2f: %.3f of the best", w.n, k / 20, w.kept,
                     share);
    }
}

/* Nobody has seen a round yet: a chain of three at most, and never twice as many rows as known. */
static void test_begins_small(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, (Machine){.pass = 5, .row = 0.01, .level = 0.01}, 0.98);
    int depth = one_round(&w), deepest = depth;
    assert_in_range(depth, 0, ROUND_LEVELS);
    for (int i = 0; i < 200; i++) {
        depth = one_round(&w);
        assert_true(depth + 1 <= 2 * (deepest + 1));
        if (depth > deepest) deepest = depth;
    }
    assert_int_equal(deepest, MAX_LEVELS);
}

/* Hard to guess, easy, hard; and what a row takes changes, too. */
static void test_follows(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, (Machine){.pass = 1, .row = 0.3, .level = 0.2}, 0.05);
    run(&w, 500);
    assert_true(run(&w, 320) < 0.2);
    w.kept = 0.95;
    run(&w, 6 * PROBE_STEPS);
    assert_true(run(&w, 320) > 2);
    w.machine = (Machine){.pass = 1, .row = 3, .level = 3};
    run(&w, 16 * PROBE_STEPS);
    assert_true(run(&w, 320) < 0.2);
    w.machine = (Machine){.pass = 1, .row = 0.1, .level = 0.1};
    run(&w, 32 * PROBE_STEPS); /* it climbs by a level a look */
    assert_true(run(&w, 320) > 2.5);
    w.kept = 0.05;
    run(&w, 4 * PROBE_STEPS);
    assert_true(run(&w, 320) < 0.2);
}

/* Each eighth round is held up by something else. */
static void test_stalls(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, (Machine){.pass = 2, .row = 0.1, .level = 0.2}, 0.8);
    w.stall_every = 8;
    run(&w, 400);
    run(&w, 2000);
    assert_true(w.tokens / w.ms > 0.93 * best_rate(&w));
}

/* Another depth than the best is seldom tried, and what it loses is a small share. */
static void test_looks_seldom(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, (Machine){.pass = 1, .row = 0.05, .level = 0.3}, 0.8);
    run(&w, 1000);
    run(&w, 100 * PROBE_STEPS);
    long others = 0, most = 0;
    for (int d = 0; d <= MAX_LEVELS; d++) {
        others += w.n_of[d];
        if (w.n_of[d] > most) most = w.n_of[d];
    }
    others -= most;
    assert_true(others > 0);
    assert_true(w.n_of[0] > 0);
    assert_true(w.tokens / w.ms > 0.97 * best_rate(&w));
}

/* What a sequence cannot use it does not get: an answer's end, a request's limit. */
static void test_limits(void **state)
{
    (void)state;
    World w;
    int levels[3];
    open_world(&w, 3, (Machine){.pass = 5, .row = 0.01, .level = 0.01}, 0.95);
    run(&w, 300);
    GrowthQuery q = {.who = {.n = 3, .keys = 100, .head_keys = 100},
                     .rates = {&w.rates[0], &w.rates[1], &w.rates[2]},
                     .most = {2, 0, 5}};
    for (int i = 0; i < 2 * PROBE_STEPS; i++) {
        int depth = growth_choose_round(&w.growth, &q, levels);
        assert_true(depth <= 5);
        for (int k = 0; k < 3; k++)
            assert_int_equal(levels[k], depth < q.most[k] ? depth : q.most[k]);
    }
    q.most[0] = q.most[2] = 0;
    for (int i = 0; i < 2 * PROBE_STEPS; i++)
        assert_int_equal(growth_choose_round(&w.growth, &q, levels), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_near_the_best), cmocka_unit_test(test_begins_small),
        cmocka_unit_test(test_follows),       cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_looks_seldom),  cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
