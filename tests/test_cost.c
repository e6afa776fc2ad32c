/*
 * test_cost.c: the choice of depth, on machines and texts that are made up. A machine says what
 * each part of a step takes; a text, how often each level of a draft is kept.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/cost.h"
#include "tests/analyzer.h"

/* Milliseconds: a pass of n rows takes pass + (n - 1) * row; a level, level; the upkeep, upkeep. */
typedef struct {
    double pass, row, level, upkeep;
    int stall_every; /* steps; then the pass takes 50 times as long. 0: never */
} Machine;

/* A little model: weights of 100 MB, a head of 10. */
static CostBytes some_bytes(void)
{
    CostBytes b = {.state = 1e6, .key = 1e3, .head_key = 1e2, .head = 1e7, .scored = 1e7};
    for (int n = 1; n <= COST_ROWS; n++)
        b.pass[n] = 1e8;
    return b;
}

typedef struct {
    Cost cost;
    Machine machine;
    double
        kept[COST_ROWS]; /* the chance of each level of a sequence's drafts, given the one before */
    DraftRates rates[COST_ROWS];
    int n, most, prompt_rows;
    uint64_t random;
    long n_steps;
    double tokens, ms;        /* of all steps */
    double levels[COST_ROWS]; /* sums over the steps of the last run */
} World;

static void open_world(World *w, int n, Machine machine, double kept)
{
    CostBytes b = some_bytes();
    memset(w, 0, sizeof *w);
    cost_init(&w->cost, &b);
    w->machine = machine;
    w->n = n;
    w->most = COST_ROWS / n - 1 < MAX_LEVELS ? COST_ROWS / n - 1 : MAX_LEVELS;
    for (int i = 0; i < n; i++) {
        w->kept[i] = kept;
        w->rates[i] = w->cost.all;
    }
}

static double lot(World *w)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(w->random >> 11) / 9007199254740992.0;
}

static void step(World *w)
{
    int levels[COST_ROWS];
    double keys = 500.0 * w->n;
    CostQuery q = {.n = w->n, .keys = keys, .head_keys = keys, .prompt_rows = w->prompt_rows};
    CostStep s = {.n = w->n, .keys = keys, .head_keys = keys, .prompt_rows = w->prompt_rows};
    const Machine *m = &w->machine;
    for (int i = 0; i < w->n; i++) {
        q.rates[i] = &w->rates[i];
        q.most[i] = w->most;
    }
    cost_choose(&w->cost, &q, levels);
    for (int i = 0; i < w->n; i++) {
        int kept = 0;
        assert_in_range(levels[i], 0, w->most);
        while (kept < levels[i] && lot(w) < w->kept[i])
            kept++;
        for (int d = 1; d <= levels[i]; d++)
            if (!s.level_rows[d]++) s.draft_ms += m->level;
        s.n_rows += levels[i] + 1;
        s.n_kept += kept + 1;
        w->levels[i] += levels[i];
        cost_kept(&w->cost, &w->rates[i], levels[i], kept);
    }
    s.pass_ms = m->pass + (s.n_rows + s.prompt_rows - 1) * m->row;
    if (m->stall_every && w->n_steps % m->stall_every == 0) s.pass_ms *= 50;
    s.upkeep_ms = m->upkeep;
    w->n_steps++;
    w->tokens += s.n_kept;
    w->ms += s.draft_ms + s.pass_ms + s.upkeep_ms;
    cost_learn(&w->cost, &s);
}

/* Mean levels a step and sequence. */
static double run(World *w, int n_steps)
{
    double sum = 0;
    memset(w->levels, 0, sizeof w->levels);
    w->tokens = w->ms = 0;
    for (int i = 0; i < n_steps; i++)
        step(w);
    for (int i = 0; i < w->n; i++)
        sum += w->levels[i];
    return sum / n_steps / w->n;
}

/* Tokens a millisecond of a world that always drafts so deep. */
static double fixed_rate(const World *w, int depth)
{
    const Machine *m = &w->machine;
    double tokens = 1, chance = 1;
    for (int d = 0; d < depth; d++)
        tokens += chance *= w->kept[0];
    return w->n * tokens /
           (depth * m->level + m->pass + (w->n * (depth + 1) - 1) * m->row + m->upkeep);
}

static double best_rate(const World *w)
{
    double best = 0;
    for (int d = 0; d <= w->most; d++)
        if (fixed_rate(w, d) > best) best = fixed_rate(w, d);
    return best;
}

static const Machine CHEAP_ROWS = {.pass = 80, .row = 1, .level = 2, .upkeep = 2};
static const Machine DEAR_ROWS = {.pass = 10, .row = 10, .level = 3, .upkeep = 1};

static void test_cheap_rows_go_deep(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, CHEAP_ROWS, 0.95);
    run(&w, 100);
    assert_true(run(&w, 1000) > MAX_LEVELS - 0.5);
}

static void test_dear_rows_go_without(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, DEAR_ROWS, 0.4);
    run(&w, 100);
    double mean = run(&w, 1024);
    assert_true(mean < 0.1);
    assert_true(mean > 0); /* it looks now and then */
}

/*
 * In every world the choice comes near the best of all depths, with one sequence and with many. It
 * cannot be the best: it looks at other shapes, and chances are learnt from throws of dice.
 */
static void test_near_the_best(void **state)
{
    (void)state;
    static const int sizes[] = {1, 3, 8, 20, 64};
    static const double kept[] = {0.1, 0.5, 0.8, 0.95};
    static const Machine machines[] = {{.pass = 80, .row = 1, .level = 2, .upkeep = 2},
                                       {.pass = 10, .row = 10, .level = 3, .upkeep = 1},
                                       {.pass = 1, .row = 0.25, .level = 0.4, .upkeep = 0.2},
                                       {.pass = 20, .row = 0.1, .level = 20, .upkeep = 0.1},
                                       {.pass = 20, .row = 2, .level = 1, .upkeep = 20}};
    for (size_t k = 0; k < 5 * 4 * 5; k++) {
        World w;
        open_world(&w, sizes[k % 5], machines[k / 20], kept[k / 5 % 4]);
        run(&w, 200);
        run(&w, 2000);
        double share = w.tokens / w.ms / best_rate(&w);
        if (share < 0.93)
            fail_msg("%d sequences, machine %zu, kept %.2f: %.3f of the best", w.n, k / 20,
                     w.kept[0], share);
    }
}

/* The text turns: hard to guess, easy, hard; the engine follows within some hundred steps. */
static void test_follows_the_text(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, (Machine){.pass = 10, .row = 4, .level = 1, .upkeep = 1}, 0.05);
    run(&w, 500);
    assert_true(run(&w, 320) < 0.2);
    w.kept[0] = 0.95;
    run(&w, 6 * PROBE_STEPS);
    assert_true(run(&w, 320) > 2);
    w.kept[0] = 0.05;
    run(&w, 4 * PROBE_STEPS);
    assert_true(run(&w, 320) < 0.2);
}

/* The machine turns: what was dear for a while is tried again. */
static void test_follows_the_machine(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, DEAR_ROWS, 0.8);
    run(&w, 500);
    assert_true(run(&w, 320) < 0.5);
    w.machine = CHEAP_ROWS;
    run(&w, 16 * PROBE_STEPS);
    assert_true(run(&w, 320) > 2.5);

    open_world(&w, 1, (Machine){.pass = 10, .row = 2000, .level = 3, .upkeep = 1}, 0.8);
    run(&w, 500);
    w.machine = CHEAP_ROWS; /* so dear it was that hardly ever is it worth a look */
    run(&w, 32 * PROBE_STEPS);
    assert_true(run(&w, 320) > 2.5);
}

/* Whatever the first pass took, and each tenth: files that are not in memory, other programs. */
static void test_stalls(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, CHEAP_ROWS, 0.9);
    w.machine.stall_every = 10;
    run(&w, 200);
    assert_true(run(&w, 1000) > 4);
    open_world(&w, 1, DEAR_ROWS, 0.4);
    w.machine.stall_every = 10;
    run(&w, 200);
    assert_true(run(&w, 1024) < 0.2);
}

/* One stall says nothing of the shape that it befell. */
static void test_one_stall(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, CHEAP_ROWS, 0.97);
    run(&w, 500);
    w.machine.stall_every = 1;
    step(&w);
    w.machine.stall_every = 0;
    assert_true(run(&w, 16) > 6);
}

/* Rows go to the sequences whose drafts are kept. */
static void test_shares_rows(void **state)
{
    (void)state;
    World w;
    open_world(&w, 2, (Machine){.pass = 20, .row = 5, .level = 1, .upkeep = 1}, 0.1);
    w.kept[1] = 0.95;
    run(&w, 300);
    run(&w, 1000);
    assert_true(w.levels[0] / 1000 < 0.5);
    assert_true(w.levels[1] / 1000 > 2);
}

/* A sequence that can use none gets none, also when it is time to look. */
static void test_limits(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, CHEAP_ROWS, 0.9);
    w.most = 2;
    assert_true(run(&w, 300) > 1.5); /* step checks the limit */
    w.most = 0;
    assert_true(run(&w, 300) == 0);
}

/*
 * A prompt's rows fill the pass: each row of a draft then costs what a row of the prompt does,
 * though alone it would cost next to nothing.
 */
static void test_beside_a_prompt(void **state)
{
    (void)state;
    World w;
    Machine m = {.pass = 10, .row = 0.1, .level = 0.2, .upkeep = 0.2};
    open_world(&w, 1, m, 0.7);
    run(&w, 300);
    assert_true(run(&w, 320) > 3);
    w.prompt_rows = 256;
    w.machine.row = 8; /* nearly the price of a token */
    run(&w, 50);
    assert_true(run(&w, 320) < 0.5);
    w.machine.row = 0.5;
    run(&w, 200);
    assert_true(run(&w, 320) > 2.5);
    w.prompt_rows = 0;
    w.machine.row = 0.1;
    assert_true(run(&w, 320) > 2.5);
}

/* A prompt of n rows that takes row ms each, and shown ms for each row that the drafter sees. */
static void prompt(Cost *c, int n, double row, double shown)
{
    int n_shown = cost_shown_rows(c, n);
    assert_in_range(n_shown, 1, n);
    cost_learn(c, &(CostStep){.prompt_rows = n,
                              .n_shown = n_shown,
                              .pass_ms = n * row,
                              .upkeep_ms = n_shown * shown});
}

/* Seeing a prompt takes a sixteenth of its time at most, but for the rows that are always seen. */
static void test_shown_rows(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, CHEAP_ROWS, 0.5);
    assert_int_equal(cost_shown_rows(&w.cost, 5000), 5000); /* nothing is known yet */
    prompt(&w.cost, 300, 1, 0.05);
    assert_int_equal(cost_shown_rows(&w.cost, 5000), 5000);
    for (int i = 0; i < 100; i++)
        prompt(&w.cost, 300, 1, 0.25);
    assert_in_range(cost_shown_rows(&w.cost, 4000), 990, 1010);
    assert_int_equal(cost_shown_rows(&w.cost, 200), 64);
    assert_int_equal(cost_shown_rows(&w.cost, 50), 50);
    assert_int_equal(cost_shown_rows(&w.cost, 0), 0);
    for (int i = 0; i < 100; i++)
        prompt(&w.cost, 300, 1, 0.05);
    assert_int_equal(cost_shown_rows(&w.cost, 5000), 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cheap_rows_go_deep),
        cmocka_unit_test(test_dear_rows_go_without),
        cmocka_unit_test(test_near_the_best),
        cmocka_unit_test(test_follows_the_text),
        cmocka_unit_test(test_follows_the_machine),
        cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_one_stall),
        cmocka_unit_test(test_shares_rows),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_beside_a_prompt),
        cmocka_unit_test(test_shown_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
