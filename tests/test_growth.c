/*
 * test_growth.c: which drafts are made and verified, on machines and texts that are made up. A
 * machine says what each part of a step takes; a text, how often guesses are right, and a drafter,
 * what it thinks of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/growth.h"
#include "tests/analyzer.h"
#include "tests/cost_case.h"

/* Milliseconds: a pass of n rows takes pass + (n - 1) * row; a level, level; the upkeep, upkeep. */
typedef struct {
    double pass, row, level, upkeep;
    int stall_every; /* steps; then the pass takes 50 times as long. 0: never */
} Machine;

/*
 * The best guess at a token is right with chance kept + spread or kept - spread, as likely, and the
 * drafter knows which if it is wise, else it says kept of all; a second guess has `second` of what
 * is left.
 */
typedef struct {
    Growth growth;
    Machine machine;
    double kept[COST_ROWS], spread, second;
    int is_wise;
    DraftRates rates[COST_ROWS];
    int n, most, prompt_rows;
    int n_lost;          /* drafts' nodes that were not verified */
    int n_copies;        /* levels of copies that every draft begins with, in a chain */
    double copied, said; /* the chance that one is right, and what is said of it */
    int n_good;          /* levels of which that is true; 0: all. Below them it is 0.3, and said */
    int agrees;          /* the head says what the copy says, of one level */
    double copies, headed; /* of them verified, steps that asked the head; of the last run */
    uint64_t random;
    long n_steps;
    double tokens, ms;        /* of all steps of the last run */
    double levels[COST_ROWS]; /* verified, sums over the steps of the last run */
    double nodes;
} World;

static void open_world_of(World *w, int n, Machine machine, double kept, int n_copies)
{
    CostBytes b = cost_case_bytes();
    memset(w, 0, sizeof *w);
    w->n_copies = n_copies;
    growth_init(&w->growth, &b, 0, n_copies > 0);
    w->machine = machine;
    w->n = n;
    w->most = COST_ROWS / n - 1 < MAX_LEVELS ? COST_ROWS / n - 1 : MAX_LEVELS;
    for (int i = 0; i < n; i++) {
        w->kept[i] = kept;
        w->rates[i] = w->growth.all;
    }
}

static void open_world(World *w, int n, Machine machine, double kept)
{
    open_world_of(w, n, machine, kept, 0);
}

/* A draft as the text's author sees it. */
typedef struct {
    Tree tree;
    int32_t right[MAX_TREE_NODES]; /* what the target chooses after each node */
} Draft;

enum { COPY = 500, NO_GUESS = 1000 };

/* What a copying drafter does: a chain, of which each node is right by lot. */
static void add_copies(World *w, Draft *d, int most)
{
    for (int k = 0; k < w->n_copies && k < most; k++) {
        int is_good = !w->n_good || k < w->n_good;
        if (cost_case_lot(&w->random) < (is_good ? w->copied : 0.3)) d->right[k] = COPY;
        float said = is_good ? (float)w->said : 0.3F;
        tree_join(&d->tree, k, COPY, d->tree.value[k] * said, GUESS_COPY);
        d->right[k + 1] = NO_GUESS;
    }
}

/* The guesses after a node, n of them; what comes is thrown by lot. */
static void add_guesses(World *w, int i, Draft *d, int node, int n)
{
    double chance = w->kept[i] + (cost_case_lot(&w->random) < 0.5 ? w->spread : -w->spread),
           dice = cost_case_lot(&w->random);
    double said = w->is_wise ? chance : w->kept[i], second = (1 - chance) * w->second;
    if (d->right[node] != COPY)
        d->right[node] = dice < chance ? 0 : dice < chance + second ? 1 : NO_GUESS;
    for (int k = 0; k < n; k++) {
        double p = k == 0 ? said : k == 1 ? (1 - said) * w->second : 0;
        int32_t token = k == 0 && w->agrees && tree_child(&d->tree, node, COPY) > 0 ? COPY : k;
        int at = tree_join(&d->tree, node, token, d->tree.value[node] * (float)p, GUESS_HEAD);
        if (at >= 0) d->right[at] = NO_GUESS;
    }
}

/* What a drafter does: a chain, or as the guide says. */
static void propose(World *w, const DraftRequest *r, const int *owner, Draft *draft, int n,
                    const DraftGuide *guide)
{
    uint64_t nodes[COST_ROWS];
    for (int i = 0; i < n; i++) {
        draft[i].right[0] = NO_GUESS;
        if (guide) add_copies(w, &draft[i], r[i].max_nodes - 1);
    }
    if (guide && !guide->expand(guide->self, 0, nodes)) memset(nodes, 0, sizeof nodes);
    for (int i = 0; i < n; i++) {
        if (guide && !(nodes[i] & 1)) continue;
        add_guesses(w, owner[i], &draft[i], 0, r[i].topk);
        w->headed++;
    }
    for (int level = 1; guide ? guide->expand(guide->self, level, nodes) : level < MAX_LEVELS;
         level++) {
        for (int i = 0; i < n; i++) {
            Tree *t = &draft[i].tree;
            int last = t->n;
            for (int k = 1; k < last; k++) {
                if (t->depth[k] != level) continue;
                assert_true(!guide || !(nodes[i] >> k & 1) || t->from[k] != GUESS_COPY);
                if (t->from[k] == GUESS_COPY) continue;
                if (guide ? !(nodes[i] >> k & 1) : level >= r[i].max_depth) continue;
                assert_true(level < r[i].max_depth);
                assert_true(t->n + r[i].topk <= MAX_TREE_NODES);
                add_guesses(w, owner[i], &draft[i], k, r[i].topk);
            }
        }
    }
}

/* What was kept is worth what the rates say. */
static void check_values(const World *w, int i, const Tree *grown, const Tree *kept)
{
    float chance[MAX_TREE_NODES];
    int at[MAX_TREE_NODES] = {0};
    rates_value(&w->rates[i], grown, chance);
    for (int k = 1; k < kept->n; k++) {
        at[k] = tree_child(grown, at[kept->parent[k]], kept->token[k]);
        assert_true(at[k] > 0);
        if (!w->growth.is_fixed) assert_true(kept->value[k] == chance[at[k]]);
    }
}

/* Walks what came of a draft of which `kept` was verified; returns the nodes accepted. */
static int walk(Draft *d, const Tree *kept, int32_t *token, int *n_tokens)
{
    int node = 0, at = 0, m = 0;
    for (*n_tokens = 0;;) {
        token[(*n_tokens)++] = d->right[node];
        at = tree_child(kept, at, d->right[node]);
        if (at < 0) return m;
        m++;
        node = tree_child(&d->tree, node, d->right[node]);
        assert_true(node > 0);
    }
}

static int most_nodes(const World *w)
{
    int share = COST_ROWS / w->n;
    return share < GROWTH_NODES ? share : GROWTH_NODES;
}

static void step(World *w)
{
    int levels[COST_ROWS], owner[COST_ROWS], n = 0;
    CostCompany who = {w->n, 500.0 * w->n, 500.0 * w->n, w->prompt_rows};
    GrowthQuery q = {.who = who};
    CostStep s = {.who = who, .n_rows = w->n, .n_kept = w->n, .upkeep_ms = w->machine.upkeep};
    const Machine *m = &w->machine;
    static Draft draft[COST_ROWS];
    static Tree before[COST_ROWS];
    DraftRequest r[COST_ROWS];
    DraftRates *rates[COST_ROWS];
    for (int i = 0; i < w->n; i++) {
        q.rates[i] = &w->rates[i];
        q.most[i] = w->most;
    }
    growth_choose(&w->growth, &q, levels);
    for (int i = 0; i < w->n; i++) {
        assert_in_range(levels[i], 0, w->most);
        int fixed = w->growth.is_fixed;
        if (!levels[i] && (fixed || !w->n_copies)) continue;
        tree_init(&draft[n].tree, 0);
        rates[n] = &w->rates[i];
        r[n] = (DraftRequest){.max_depth = fixed         ? levels[i]
                                           : w->n_copies ? most_nodes(w) - 1
                                                         : w->most,
                              .max_nodes = fixed ? levels[i] + 1 : most_nodes(w),
                              .topk = fixed ? 1 : GROWTH_TOPK,
                              .tree = &draft[n].tree};
        owner[n++] = i;
    }
    if (n) {
        const DraftGuide *guide = growth_begin(&w->growth, r, rates, n);
        propose(w, r, owner, draft, n, guide);
        for (int i = 0; i < n; i++)
            before[i] = draft[i].tree;
        growth_cut(&w->growth);
    }
    growth_level_rows(&w->growth, s.level_rows);
    for (int d = 1; d <= MAX_LEVELS && s.level_rows[d]; d++)
        s.draft_ms += m->level;
    for (int i = 0; i < n; i++) {
        Tree kept = draft[i].tree;
        int32_t token[MAX_TREE_NODES];
        int n_tokens, depth = tree_depth(&kept);
        assert_true(tree_valid(&kept, NO_GUESS) && kept.n <= r[i].max_nodes);
        assert_true(depth <= r[i].max_depth);
        check_values(w, owner[i], &before[i], &kept);
        w->n_lost += before[i].n - kept.n;
        draft[i].tree = before[i];
        s.n_rows += kept.n - 1;
        s.n_kept += walk(&draft[i], &kept, token, &n_tokens);
        w->levels[owner[i]] += depth;
        w->nodes += kept.n - 1;
        for (int k = 1; k < kept.n; k++)
            w->copies += kept.from[k] == GUESS_COPY;
        growth_learn_kept(&w->growth, i, token, n_tokens);
    }
    s.pass_ms = m->pass + (s.n_rows + s.who.prompt_rows - 1) * m->row;
    if (m->stall_every && w->n_steps % m->stall_every == 0) s.pass_ms *= 50;
    w->n_steps++;
    w->tokens += s.n_kept;
    w->ms += s.draft_ms + s.pass_ms + s.upkeep_ms;
    cost_learn(&w->growth.cost, &s);
    growth_learn_step(&w->growth, s.draft_ms + s.pass_ms + s.upkeep_ms, s.n_kept);
}

/* Mean levels a step and sequence. */
static double run(World *w, int n_steps)
{
    double sum = 0;
    memset(w->levels, 0, sizeof w->levels);
    w->tokens = w->ms = w->nodes = w->copies = w->headed = 0;
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

/*
 * Every second guess is nearly sure, every other is not. Who knows which gains on the best of all
 * chains; who does not loses nothing by being asked.
 */
static void test_sure_and_unsure(void **state)
{
    (void)state;
    static const Machine machines[] = {{.pass = 53, .row = 1.5, .level = 3, .upkeep = 1.5},
                                       {.pass = 1, .row = 0.25, .level = 0.1, .upkeep = 0.05},
                                       {.pass = 53, .row = 6, .level = 3, .upkeep = 1.5}};
    for (int k = 0; k < 3; k++) {
        double share[2];
        for (int wise = 0; wise < 2; wise++) {
            World w;
            open_world(&w, 1, machines[k], 0.7);
            w.spread = 0.29;
            w.is_wise = wise;
            run(&w, 500);
            run(&w, 4000);
            share[wise] = w.tokens / w.ms / best_rate(&w);
        }
        if (share[0] < 0.95 || share[1] < 1.04)
            fail_msg("machine %d: %.3f of the best chain, %.3f when it knows", k, share[0],
                     share[1]);
    }
}

/* Second guesses are verified where rows cost little, and where they cost much are not. */
static void test_siblings(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, (Machine){.pass = 50, .row = 0.2, .level = 5, .upkeep = 1}, 0.5);
    w.second = 0.8;
    w.is_wise = 1;
    run(&w, 500);
    double depth = run(&w, 3000);
    assert_true(w.nodes / 3000 > 2 * depth);
    assert_true(w.tokens / w.ms > 1.15 * best_rate(&w));
    open_world(&w, 1, (Machine){.pass = 10, .row = 3, .level = 0.1, .upkeep = 1}, 0.8);
    w.second = 0.8;
    w.is_wise = 1;
    run(&w, 500);
    depth = run(&w, 3000);
    assert_true(depth > 1);
    assert_true(w.nodes / 3000 < 1.05 * depth);
    assert_true(w.n_lost > 0); /* though they were guessed */
}

/* Where acceptance is by lot what is said of guesses means nothing: chains. */
static void test_by_lot(void **state)
{
    (void)state;
    World w;
    CostBytes b = cost_case_bytes();
    open_world(&w, 1, CHEAP_ROWS, 0.9);
    growth_init(&w.growth, &b, 1, 0);
    run(&w, 300);
    double depth = run(&w, 1000);
    assert_true(depth > 4);
    assert_true(w.nodes == w.levels[0] && w.n_lost == 0);
}

/* step looks at them. Many sequences with a row or two each, trees that could be larger. */
static void test_limits_of_trees(void **state)
{
    (void)state;
    static const int sizes[] = {1, 5, 21, 32, 33, 64};
    for (size_t k = 0; k < 6; k++) {
        World w;
        open_world(&w, sizes[k], (Machine){.pass = 80, .level = 0.01, .upkeep = 1}, 0.6);
        w.second = 0.9;
        w.is_wise = 1;
        run(&w, 300);
        run(&w, 300);
        double rows = w.nodes / 300 + w.n;
        assert_true(rows <= COST_ROWS);
        if (w.n <= 32) assert_true(rows > 0.8 * w.n * most_nodes(&w));
    }
}

/*
 * What many rows take is learnt from below: no step has more than twice the rows of one before it,
 * though drafts are sure and, as far as is known, cost nothing.
 */
static void test_grows_slowly(void **state)
{
    (void)state;
    World w;
    int most = 1;
    open_world(&w, 1, (Machine){.pass = 80, .level = 0.01, .upkeep = 1}, 0.99);
    w.is_wise = 1;
    for (int i = 0; i < 200; i++) {
        run(&w, 1);
        int n_rows = (int)w.nodes + 1;
        assert_true(n_rows <= 2 * most);
        if (n_rows > most) most = n_rows;
        if (i == 0) assert_int_equal(n_rows, 1);
    }
    assert_true(most > MAX_LEVELS);
}

/* A tree that is nearly full gets children only where there is room for all of them. */
static void test_room(void **state)
{
    (void)state;
    static const struct {
        int n, most;
    } rooms[] = {{63, 0}, {61, 0}, {60, 1}, {57, 1}, {56, 2}, {20, GROWTH_TOPK}};
    for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++) {
        World w;
        Tree t;
        int levels[COST_ROWS], n = 0;
        uint64_t nodes;
        open_world(&w, 1, (Machine){.pass = 800, .row = 1, .level = 2, .upkeep = 2}, 0.9);
        run(&w, 500);
        DraftRequest r = {.max_nodes = MAX_TREE_NODES, .max_depth = 4, .tree = &t};
        GrowthQuery q = {.who = {1, 500, 500, 0}, .rates = {&w.rates[0]}, .most = {4}};
        do
            growth_choose(&w.growth, &q, levels);
        while (w.growth.is_fixed);
        w.growth.most_rows = COST_ROWS;
        tree_init(&t, 0);
        while (t.n < rooms[k].n)
            tree_add(&t, t.n <= GROWTH_TOPK + 1 ? 0 : t.n - 1, t.n, 0.19F);
        const DraftGuide *guide = growth_begin(&w.growth, &r, (DraftRates *[]){&w.rates[0]}, 1);
        guide->expand(guide->self, 1, &nodes);
        for (int i = 0; i < 64; i++)
            n += (int)(nodes >> i & 1);
        if (n != rooms[k].most) fail_msg("%d nodes, of which %d get children", t.n, n);
    }
}

/* What is thought to lose far too much is tried some time all the same: it may be all wrong. */
static void test_tries_what_was_dear(void **state)
{
    (void)state;
    World w;
    open_world(&w, 1, CHEAP_ROWS, 0.95);
    w.machine.level = 50000;
    run(&w, 300);
    assert_true(run(&w, 320) < 0.2);
    w.machine.level = CHEAP_ROWS.level;
    run(&w, 40 * PROBE_STEPS);
    assert_true(run(&w, 320) > 4);
}

/* What a level costs is by the nodes after which a head guessed it, not by its guesses. */
static void test_level_rows(void **state)
{
    (void)state;
    World w;
    Tree t;
    int n_rows[MAX_LEVELS + 1];
    open_world(&w, 1, CHEAP_ROWS, 0.9);
    tree_init(&t, 0);
    for (int k = 1; k <= 3; k++)
        tree_join(&t, 0, k, 0.3F, GUESS_HEAD);
    tree_join(&t, 1, 4, 0.2F, GUESS_HEAD);
    tree_join(&t, 1, 5, 0.1F, GUESS_HEAD);
    tree_join(&t, 2, 6, 0.1F, GUESS_HEAD);
    tree_join(&t, 3, 7, 0.1F, GUESS_COPY);
    w.growth.is_fixed = 1;
    DraftRequest r = {.max_nodes = MAX_TREE_NODES, .max_depth = 4, .tree = &t};
    growth_begin(&w.growth, &r, (DraftRates *[]){&w.rates[0]}, 1);
    growth_cut(&w.growth);
    growth_level_rows(&w.growth, n_rows);
    assert_int_equal(n_rows[1], 1);
    assert_int_equal(n_rows[2], 2);
    assert_int_equal(n_rows[3], 0);
}

/* Copies that are right: deeper than any head drafts, which is asked no more, good or bad. */
static void test_good_copies(void **state)
{
    (void)state;
    static const double kept[] = {0.05, 0.8};
    for (int k = 0; k < 2; k++) {
        World w;
        open_world_of(&w, 1, CHEAP_ROWS, kept[k], GROWTH_NODES - 1);
        w.copied = 0.98;
        w.said = 0.85; /* what is said is not what is true */
        run(&w, 600);
        run(&w, 2000);
        assert_true(w.copies / 2000 > MAX_LEVELS + 4);
        assert_true(w.headed / 2000 < 0.05);
        double tokens = 0, chance = 1;
        for (int d = 0; d < GROWTH_NODES; d++, chance *= w.copied)
            tokens += chance;
        const Machine *m = &w.machine;
        double best = tokens / (m->pass + (GROWTH_NODES - 1) * m->row + m->upkeep);
        assert_true(w.tokens / w.ms > 0.93 * best);
    }
}

/* Copies as deep as the head would go and better: it is not asked, though there is room for more.
 */
static void test_better_copies(void **state)
{
    (void)state;
    World w;
    open_world_of(&w, 1, CHEAP_ROWS, 0.8, MAX_LEVELS);
    w.copied = 0.98;
    w.said = 0.85;
    run(&w, 600);
    run(&w, 2000);
    assert_true(w.copies / 2000 > MAX_LEVELS - 0.5 && w.headed / 2000 < 0.1);
}

/*
 * One copy that is nearly as good as the head's guess: that adds little at the first level, but
 * what is behind it is worth asking for.
 */
static void test_short_copies(void **state)
{
    (void)state;
    World w;
    open_world_of(&w, 1, (Machine){.pass = 80, .row = 3, .level = 1, .upkeep = 2}, 0.9, 1);
    w.copied = 0.85;
    w.said = 0.85;
    w.agrees = 1;
    run(&w, 600);
    run(&w, 2000);
    assert_true(w.headed / 2000 > 0.9);
}

/* Copies that are wrong: as if there were none. */
static void test_bad_copies(void **state)
{
    (void)state;
    for (int n = 1; n < 4; n += 2) {
        World w;
        open_world_of(&w, n, CHEAP_ROWS, 0.8, 6);
        w.copied = 0;
        w.said = 0.85;
        w.is_wise = 1;
        run(&w, 600);
        run(&w, 2000);
        assert_true(w.copies / 2000 < 0.2);
        assert_true(w.headed / 2000 > 0.95 * n);
        assert_true(w.tokens / w.ms > 0.9 * best_rate(&w));
    }
}

/* What a token is worth is what tokens take with copies: rows are not spent on doubtful ones. */
static void test_dear_copies(void **state)
{
    (void)state;
    World w;
    open_world_of(&w, 1, (Machine){.pass = 20, .row = 4, .level = 2, .upkeep = 1}, 0.05, 8);
    w.n_good = 4;
    w.copied = 0.98;
    w.said = 0.85;
    run(&w, 600);
    run(&w, 2000);
    assert_true(w.copies / 2000 > 3.7 && w.copies / 2000 < 4.3);
}

/* The head is asked where what it adds pays: beside copies that are right now and then. */
static void test_fair_copies(void **state)
{
    (void)state;
    World w;
    open_world_of(&w, 1, CHEAP_ROWS, 0.9, 6);
    w.copied = 0.3;
    w.said = 0.3;
    run(&w, 600);
    run(&w, 2000);
    assert_true(w.copies / 2000 > 0.5 && w.headed / 2000 > 0.9);
    assert_true(w.nodes / 2000 > w.copies / 2000 + 3);
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
        cmocka_unit_test(test_sure_and_unsure),
        cmocka_unit_test(test_siblings),
        cmocka_unit_test(test_by_lot),
        cmocka_unit_test(test_limits_of_trees),
        cmocka_unit_test(test_grows_slowly),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_tries_what_was_dear),
        cmocka_unit_test(test_level_rows),
        cmocka_unit_test(test_good_copies),
        cmocka_unit_test(test_better_copies),
        cmocka_unit_test(test_short_copies),
        cmocka_unit_test(test_bad_copies),
        cmocka_unit_test(test_dear_copies),
        cmocka_unit_test(test_fair_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
