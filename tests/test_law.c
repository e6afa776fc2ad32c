/*
 * test_law.c: speculation changes nothing but speed, shown without a language model.
 *
 * The target is a table: logits after two tokens are pseudo-random numbers over 8 ids. So the law
 * of the first 3 tokens is known exactly, by enumeration, for every setting of the sampler. Real
 * code draws from it: the backend's sampler, Tree, accept_path, and drafters that share the
 * target's noise, lie, know all or propose what cannot happen.
 *
 * Checked for each draw: the tokens with a tree are the tokens without. Checked over all draws: the
 * law (chi-square, p >= 1e-6), and that the first token of a step knows nothing of why the step
 * before it ended. At the end wrong rules and a biased sampler go through the same machine, which
 * must reject them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "kernels/backend.h"
#include "spec/accept.h"
#include "tests/chi_square.h"
#include "tests/near.h"

enum {
    V = 8,
    PROMPT = 2,
    LAW = 3,  /* tokens whose joint law is tested */
    EMIT = 4, /* tokens a run emits */
    LENGTH = PROMPT + EMIT,
    CELLS = V * V * V,
    PREFIXES = 1 + V + V * V + V * V * V,
    DRAWS = 60000, /* without a tree; drafters take part in some of them */
};

static const uint64_t SEED = 5, SEED_STEP = 0x9E3779B97F4A7C15u;
static const double REJECT = 1e-6;

static Backend *backend;
static float target_table[V][V][V], draft_table[V][V][V];
static const int32_t prompt[PROMPT] = {3, 5};

/* What a request asks of the sampler. */
typedef struct {
    const char *name;
    SampleParams params;
    int n_bias, n_ban, min_tokens;
    int32_t bias_id[2], ban[2];
    float bias[2];
} Rules;

/* The tokens of one draw and what has been counted of them. */
typedef struct {
    const Rules *rules;
    uint64_t seed;
    int32_t token[LENGTH];
    int n;
    uint32_t counts[V];
    int n_steps, n_accepted;
    int step_end[LENGTH]; /* n after each step */
} Run;

static int penalised(const Rules *r)
{
    return r->params.presence != 0 || r->params.frequency != 0 || r->params.repetition != 1;
}

/* ---- the exact law, in double and without any code of the sampler ---- */

typedef struct {
    double x, p;
    int id;
} Option;

static int by_x(const void *pa, const void *pb)
{
    const Option *a = pa, *b = pb;
    return a->x != b->x ? (a->x > b->x ? -1 : 1) : a->id - b->id;
}

/* Logits after the n tokens of seq, bias, ban and penalties applied. */
static void exact_logits(const Rules *r, const int32_t *seq, int n, Option *o)
{
    const SampleParams *s = &r->params;
    for (int v = 0; v < V; v++) {
        int seen = 0, made = 0;
        for (int i = 0; i < n; i++) {
            seen |= seq[i] == v;
            made += i >= PROMPT && seq[i] == v;
        }
        double x = (double)target_table[seq[n - 2]][seq[n - 1]][v];
        for (int j = 0; j < r->n_bias; j++)
            x += r->bias_id[j] == v ? (double)r->bias[j] : 0;
        for (int j = 0; j < r->n_ban; j++)
            if (r->ban[j] == v && n - PROMPT < r->min_tokens) x = -(double)INFINITY;
        if (seen) x = x > 0 ? x / (double)s->repetition : x * (double)s->repetition;
        if (made) x -= made * (double)s->frequency + (double)s->presence;
        o[v] = (Option){.x = x, .id = v};
    }
}

/* p[v]: the chance that v follows the n tokens of seq. */
static void exact_law(const Rules *r, const int32_t *seq, int n, double *p)
{
    const SampleParams *s = &r->params;
    Option o[V];
    double total = 0, sum = 0, kept = 0;
    int n_kept = s->top_k > 0 && s->top_k < V ? s->top_k : V, greedy = s->temperature == 0;
    exact_logits(r, seq, n, o);
    qsort(o, V, sizeof *o, by_x);
    if (greedy) n_kept = 1;
    for (int j = 0; j < n_kept; j++)
        total += o[j].p = greedy ? 1 : exp((o[j].x - o[0].x) / (double)s->temperature);
    for (int v = 0; v < V; v++)
        p[v] = 0;
    for (int j = 0; j < n_kept && (s->top_p == 1 || sum < (double)s->top_p * total); j++) {
        sum += o[j].p;
        if (o[j].p < (double)s->min_p) continue;
        p[o[j].id] = o[j].p;
        kept += o[j].p;
    }
    for (int v = 0; v < V; v++)
        p[v] /= kept;
}

/* Number of seq[PROMPT..n) as a cell, and of all prefixes of up to EMIT - 1 tokens. */
static int cell_of(const int32_t *seq, int n)
{
    int cell = 0;
    for (int i = PROMPT; i < n; i++)
        cell = cell * V + seq[i];
    return cell;
}

static int prefix_of(const int32_t *seq, int n)
{
    int first = 0;
    for (int i = PROMPT, size = 1; i < n; i++, size *= V)
        first += size;
    return first + cell_of(seq, n);
}

/* The joint law of the next tokens up to `end`, given the n of seq with chance p. */
static void exact_joint(const Rules *r, int32_t *seq, int n, int end, double p, double *joint)
{
    double next[V];
    if (n == end) {
        joint[cell_of(seq, n)] = p;
        return;
    }
    exact_law(r, seq, n, next);
    for (int v = 0; v < V; v++) {
        seq[n] = v;
        exact_joint(r, seq, n + 1, end, p * next[v], joint);
    }
}

/* ---- chi-square ---- */

typedef struct {
    double chi2;
    int dof;
    int impossible; /* draws in cells of chance 0 */
} Chi;

static void chi_add(Chi *c, double observed, double expected)
{
    c->chi2 += (observed - expected) * (observed - expected) / expected;
    c->dof++;
}

/*
 * Adds n cells of chance p, drawn observed[] times. Cells of expectation < 5 count as one; where
 * even that one is too small, the last of the others takes it in.
 */
static void chi_group(Chi *c, const double *p, const int *observed, int n)
{
    double draws = 0, few = 0, few_observed = 0, last = 0, last_observed = 0;
    for (int i = 0; i < n; i++)
        draws += observed[i];
    for (int i = 0; i < n; i++) {
        double expected = p[i] * draws;
        if (p[i] == 0) c->impossible += observed[i];
        if (expected < 5) {
            few += expected;
            few_observed += observed[i];
            continue;
        }
        if (last > 0) chi_add(c, last_observed, last);
        last = expected;
        last_observed = observed[i];
    }
    if (last > 0 && few >= 5)
        chi_add(c, few_observed, few); /* one cell follows from the others: it is not counted */
    else
        last += few, last_observed += few_observed;
    if (last > 0) c->chi2 += (last_observed - last) * (last_observed - last) / last;
}

/* Chance of a chi-square at least this large. */
static double chi_p(const Chi *c)
{
    if (c->impossible) return 0;
    return c->chi2 > 0 && c->dof > 0 ? chi_square_tail(c->chi2, c->dof) : 1;
}

/* ---- the step: what engine/step.c does, on the table ---- */

/* How the target samples after node of t; path takes its tokens. */
static SampleRow sample_row(const Run *run, const Tree *t, int node, int32_t *path)
{
    const Rules *r = run->rules;
    int depth = t->depth[node], generated = run->n - PROMPT + depth;
    for (int i = node; i > 0; i = t->parent[i])
        path[t->depth[i] - 1] = t->token[i];
    SampleRow row = {.params = r->params,
                     .pos = run->n + depth,
                     .counts = penalised(r) ? run->counts : NULL,
                     .path = path,
                     .n_path = penalised(r) ? depth : 0,
                     .n_bias = r->n_bias,
                     .bias_id = r->bias_id,
                     .bias = r->bias,
                     .n_ban = generated < r->min_tokens ? r->n_ban : 0,
                     .ban = r->ban};
    row.params.seed = run->seed;
    return row;
}

/* Logits of a table after node: its own token and the one before. */
static const float *logits_after(float table[V][V][V], const Run *run, const Tree *t, int node)
{
    int32_t before = node ? t->token[t->parent[node]] : run->token[run->n - 2];
    return table[before][t->token[node]];
}

/* The n_top best after each node in [from, t->n) by this table, with the target's noise. */
static void sample_nodes(const Run *run, const Tree *t, int from, float table[V][V][V], int n_top,
                         int32_t *id, float *logp)
{
    static float logits[MAX_TREE_NODES * V];
    static int32_t path[MAX_TREE_NODES][MAX_TREE_NODES];
    SampleRow row[MAX_TREE_NODES];
    uint8_t bad[MAX_TREE_NODES];
    for (int i = from; i < t->n; i++) {
        memcpy(logits + (i - from) * V, logits_after(table, run, t, i), V * sizeof *logits);
        row[i - from] = sample_row(run, t, i, path[i]);
    }
    backend->sample(backend, &(Sample){.n = t->n - from,
                                       .n_vocab = V,
                                       .n_top = n_top,
                                       .logits = logits,
                                       .row = row,
                                       .id = id,
                                       .logp = logp,
                                       .bad = bad});
    for (int i = 0; i < t->n - from; i++)
        assert_int_equal(bad[i], 0);
}

static int stopped(void *ctx, int32_t token)
{
    int *left = ctx;
    (void)token;
    return --*left == 0;
}

typedef void Draft(const Run *run, Tree *t);

static void step(Run *run, Draft *draft)
{
    Tree t;
    int32_t next[MAX_TREE_NODES];
    AcceptedPath kept;
    int left = LENGTH - run->n;
    tree_init(&t, run->token[run->n - 1]);
    if (draft) draft(run, &t);
    assert_true(tree_valid(&t, V));
    sample_nodes(run, &t, 0, target_table, 1, next, NULL);
    accept_path(&t, next, stopped, &left, &kept);
    for (int d = 0; d <= kept.m; d++) {
        run->token[run->n++] = kept.emitted[d];
        run->counts[kept.emitted[d]]++;
    }
    run->n_accepted += kept.m;
    run->step_end[run->n_steps++] = run->n;
}

static void draw(Run *run, const Rules *rules, uint64_t seed, Draft *draft)
{
    *run = (Run){.rules = rules, .seed = seed};
    for (int i = 0; i < PROMPT; i++) {
        run->token[run->n++] = prompt[i];
        run->counts[prompt[i]] |= 0x80000000u;
    }
    while (run->n < LENGTH)
        step(run, draft);
}

/* ---- drafters ---- */

/* Adds the n_top best of a table after each node from first on. */
static void add_level(const Run *run, Tree *t, int first, float table[V][V][V], int n_top)
{
    int32_t id[MAX_TREE_NODES * V];
    float logp[MAX_TREE_NODES * V];
    int end = t->n;
    sample_nodes(run, t, first, table, n_top, id, logp);
    for (int i = 0; i < (end - first) * n_top && t->n < MAX_TREE_NODES; i++)
        if (id[i] >= 0)
            tree_add(t, first + i / n_top, id[i], t->value[first + i / n_top] * expf(logp[i]));
}

/* A model that is not quite the target: two children each on two levels, sharing the noise. */
static void draft_top2(const Run *run, Tree *t)
{
    add_level(run, t, 0, draft_table, 2);
    add_level(run, t, 1, draft_table, 2);
    tree_order(t, MAX_TREE_NODES);
}

/* The 6 best of 13 nodes by value: which nodes there are depends on noise of later positions. */
static void draft_pruned(const Run *run, Tree *t)
{
    add_level(run, t, 0, draft_table, 3);
    add_level(run, t, 1, draft_table, 3);
    tree_order(t, 6);
}

/* The target itself: a chain that is always right. */
static void draft_perfect(const Run *run, Tree *t)
{
    for (int d = 0; d < EMIT - 1; d++)
        add_level(run, t, d, target_table, 1);
}

/* Random tokens under random nodes, some of them twice, in no order. */
static void draft_liar(const Run *run, Tree *t)
{
    Rng rng = rng_new(run->seed + (uint64_t)run->n * 1000003);
    int tries = rng_int(&rng, 12);
    for (int i = 0; i < tries; i++) {
        int parent = rng_int(&rng, t->n);
        int32_t token = rng_int(&rng, V);
        tree_add(t, parent, token, t->value[parent] * (float)rng_int(&rng, 100) / 100);
        tree_add(t, parent, token, 0);
    }
    if (rng_int(&rng, 2)) tree_order(t, 1 + rng_int(&rng, 16));
}

/* Sure of what has no chance at all; nothing where everything has one. */
static void draft_impossible(const Run *run, Tree *t)
{
    double p[V];
    exact_law(run->rules, run->token, run->n, p);
    for (int v = 0; v < V; v++)
        if (p[v] == 0) tree_add(t, tree_add(t, 0, v, 1), v, 1);
}

static const struct {
    const char *name;
    Draft *draft;
    int every;       /* takes part in one draw of so many */
    int fixed_shape; /* its tree's shape depends on no noise of later positions */
} drafters[] = {{"top-2 tree", draft_top2, 5, 1},
                {"pruned tree", draft_pruned, 15, 0},
                {"perfect chain", draft_perfect, 15, 1},
                {"liar", draft_liar, 15, 1},
                {"impossible", draft_impossible, 15, 1}};

enum { DRAFTERS = sizeof drafters / sizeof *drafters };

/* ---- what is counted and asked ---- */

typedef struct {
    int cell[CELLS];
    int after[PREFIXES][V]; /* first tokens of a step, by all that came before */
    long n_tokens, n_steps, n_accepted;
} Tally;

static void tally(Tally *t, const Run *run)
{
    t->cell[cell_of(run->token, PROMPT + LAW)]++;
    for (int i = 0; i + 1 < run->n_steps; i++) {
        int n = run->step_end[i];
        t->after[prefix_of(run->token, n)][run->token[n]]++;
    }
    t->n_tokens += EMIT;
    t->n_steps += run->n_steps;
    t->n_accepted += run->n_accepted;
}

static double law_p(const Rules *r, const Tally *t)
{
    double joint[CELLS];
    int32_t seq[LENGTH];
    Chi chi = {0};
    memcpy(seq, prompt, sizeof prompt);
    exact_joint(r, seq, PROMPT, PROMPT + LAW, 1, joint);
    chi_group(&chi, joint, t->cell, CELLS);
    return chi_p(&chi);
}

/*
 * The first token of a step, given all before it, follows the target's law: one group of cells for
 * each prefix. Only where the tree's shape is settled before the noise of that token is used: a
 * drafter that prunes by later noise ends its steps at chosen places, and what follows there is
 * rightly not typical, though the law of the whole is.
 */
static double independence_p(const Rules *r, const Tally *t)
{
    Chi chi = {0};
    for (int n = PROMPT + 1; n < LENGTH; n++) {
        int size = 1;
        for (int i = PROMPT; i < n; i++)
            size *= V;
        for (int cell = 0; cell < size; cell++) {
            int32_t seq[LENGTH];
            double p[V];
            memcpy(seq, prompt, sizeof prompt);
            for (int i = n - 1, rest = cell; i >= PROMPT; i--, rest /= V)
                seq[i] = rest % V;
            exact_law(r, seq, n, p);
            chi_group(&chi, p, t->after[prefix_of(seq, n)], V);
        }
    }
    return chi_p(&chi);
}

static void assert_law(const Rules *r, const char *drafter, const Tally *t, int fixed_shape)
{
    double p = law_p(r, t);
    printf("%-22s %-14s acceptance length %.2f, law p %.3f", r->name, drafter,
           1 + (double)t->n_accepted / (double)t->n_steps, p);
    if (fixed_shape) printf(", next step p %.3f", independence_p(r, t));
    printf("\n");
    assert_true(p >= REJECT);
    if (fixed_shape) assert_true(independence_p(r, t) >= REJECT);
}

static void check_rules(const Rules *r, int draws)
{
    static Tally without, t[DRAFTERS];
    memset(&without, 0, sizeof without);
    memset(t, 0, sizeof t);
    for (int i = 0; i < draws; i++) {
        Run plain, run;
        uint64_t seed = SEED + (uint64_t)i * SEED_STEP;
        draw(&plain, r, seed, NULL);
        assert_int_equal(plain.n_steps, EMIT);
        tally(&without, &plain);
        for (int d = 0; d < DRAFTERS; d++) {
            if (i % drafters[d].every) continue;
            draw(&run, r, seed, drafters[d].draft);
            assert_memory_equal(run.token, plain.token, sizeof plain.token);
            assert_memory_equal(run.counts, plain.counts, sizeof plain.counts);
            tally(&t[d], &run);
        }
    }
    assert_law(r, "no tree", &without, 1);
    for (int d = 0; d < DRAFTERS; d++)
        assert_law(r, drafters[d].name, &t[d], drafters[d].fixed_shape);
    assert_int_equal(t[2].n_accepted, (EMIT - 1) * t[2].n_steps); /* perfect: all in one step */
    assert_true(t[0].n_accepted > t[0].n_steps / 5);              /* the trees are worth drawing */
    assert_int_equal(t[4].n_accepted, 0); /* what is impossible is never accepted */
}

#define PLAIN .top_p = 1, .repetition = 1

static const Rules rules[] = {
    {.name = "temperature 0.5", .params = {PLAIN, .temperature = 0.5f}},
    {.name = "temperature 1", .params = {PLAIN, .temperature = 1}},
    {.name = "temperature 1.5", .params = {PLAIN, .temperature = 1.5f}},
    {.name = "top-k 3", .params = {PLAIN, .temperature = 1, .top_k = 3}},
    {.name = "top-p 0.8", .params = {.repetition = 1, .temperature = 1, .top_p = 0.8f}},
    {.name = "min-p 0.2", .params = {PLAIN, .temperature = 1, .min_p = 0.2f}},
    {.name = "penalties",
     .params =
         {.top_p = 1, .temperature = 1, .presence = 0.4f, .frequency = 0.6f, .repetition = 1.3f}},
    {.name = "bias and min tokens",
     .params = {PLAIN, .temperature = 1},
     .n_bias = 2,
     .bias_id = {1, 6},
     .bias = {1.5f, -1},
     .n_ban = 2,
     .ban = {0, 4},
     .min_tokens = 2},
    {.name = "all together",
     .params = {.temperature = 1.2f,
                .top_k = 6,
                .top_p = 0.9f,
                .min_p = 0.03f,
                .presence = -0.3f,
                .frequency = 0.2f,
                .repetition = 0.8f},
     .n_bias = 1,
     .bias_id = {2},
     .bias = {0.7f},
     .n_ban = 1,
     .ban = {7},
     .min_tokens = 3},
};

static void test_sampled(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        check_rules(&rules[i], DRAWS);
}

/* Greedy has one answer; with penalties too. */
static void test_greedy(void **state)
{
    (void)state;
    const Rules greedy[] = {
        {.name = "greedy", .params = {PLAIN}},
        {.name = "greedy, penalties",
         .params = {.top_p = 1, .frequency = 0.9f, .repetition = 1.5f}},
    };
    for (int i = 0; i < 2; i++) {
        double p[V];
        Run run;
        check_rules(&greedy[i], 150);
        draw(&run, &greedy[i], 1, draft_top2);
        for (int n = PROMPT; n < LENGTH; n++) {
            exact_law(&greedy[i], run.token, n, p);
            assert_true(p[run.token[n]] == 1);
        }
    }
}

/* ---- the machine must be able to say no ---- */

static void test_chi_square_tail(void **state)
{
    (void)state;
    /* two degrees of freedom: exp(-x / 2); the others from printed tables */
    for (int i = 1; i < 20000; i += i / 2 + 1) {
        double x = 0.01 * i, p = chi_p(&(Chi){.chi2 = x, .dof = 2});
        assert_true(fabs(p - exp(-x / 2)) <= 1e-12 * exp(-x / 2) + 1e-15);
    }
    const struct {
        int dof;
        double chi2, p;
    } table[] = {{1, 3.8415, 0.05},     {10, 18.3070, 0.05},   {10, 3.2470, 0.975},
                 {100, 124.3421, 0.05}, {100, 61.9179, 0.999}, {30, 59.7031, 0.001}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double p = chi_p(&(Chi){.chi2 = table[i].chi2, .dof = table[i].dof});
        assert_true(fabs(p - table[i].p) < 1e-5);
    }
}

static void tally_draws(Tally *t, Draft *draft)
{
    memset(t, 0, sizeof *t);
    for (int i = 0; i < DRAWS / 2; i++) {
        Run run;
        draw(&run, &rules[1], SEED + (uint64_t)i * SEED_STEP, draft);
        tally(t, &run);
    }
}

/* Tokens of one temperature against the law of a slightly different one. */
static void test_a_biased_sampler_is_rejected(void **state)
{
    (void)state;
    static Tally t;
    Rules claimed = rules[1];
    claimed.params.temperature = 1.1f;
    tally_draws(&t, NULL);
    assert_true(law_p(&rules[1], &t) >= REJECT);
    assert_true(law_p(&claimed, &t) < REJECT);
    assert_true(independence_p(&claimed, &t) < REJECT);
}

/* Knows the next two tokens and lets the step end after the first when the second is even. */
static void draft_peeking(const Run *run, Tree *t)
{
    add_level(run, t, 0, target_table, 1);
    add_level(run, t, 1, target_table, 1);
    if (t->token[2] % 2 == 0) t->n = 1;
}

/* Where steps end may depend on what follows; the tokens still have their law, as they must. */
static void test_a_dependence_between_steps_is_seen(void **state)
{
    (void)state;
    static Tally t;
    tally_draws(&t, draft_peeking);
    assert_true(law_p(&rules[1], &t) >= REJECT);
    assert_true(independence_p(&rules[1], &t) < REJECT);
}

static double uniform(Rng *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

/* A draw from weights w, which need not add up to 1. */
static int pick(Rng *rng, const double *w)
{
    double total = 0;
    for (int v = 0; v < V; v++)
        total += w[v];
    double u = uniform(rng) * total;
    int v = 0;
    while (v < V - 1 && u >= w[v])
        u -= w[v++];
    return v;
}

static void draft_law(const int32_t *seq, int n, double *q)
{
    double total = 0;
    for (int v = 0; v < V; v++)
        total += q[v] = exp((double)draft_table[seq[n - 2]][seq[n - 1]][v]);
    for (int v = 0; v < V; v++)
        q[v] /= total;
}

/*
 * One token by chain rejection sampling (arXiv 2211.17192): the draft is kept with chance p / q,
 * else the token comes from (p - q)+. Right for drafts that were drawn from q (top1 0); wrong for
 * q's best id (top1 1), which was not drawn.
 */
static int32_t rejection_token(Rng *rng, const double *p, const double *q, int top1)
{
    double rest[V];
    int x = top1 ? 0 : pick(rng, q);
    for (int v = 0; v < V; v++) {
        if (top1 && q[v] > q[x]) x = v;
        rest[v] = p[v] > q[v] ? p[v] - q[v] : 0;
    }
    return uniform(rng) * q[x] < p[x] ? x : pick(rng, rest);
}

static double rejection_law_p(int top1)
{
    static Tally t;
    Rng rng = rng_new(SEED);
    memset(&t, 0, sizeof t);
    for (int i = 0; i < DRAWS; i++) {
        Run run = {.token = {prompt[0], prompt[1]}};
        for (int n = PROMPT; n < LENGTH; n++) {
            double p[V], q[V];
            exact_law(&rules[1], run.token, n, p);
            draft_law(run.token, n, q);
            run.token[n] = rejection_token(&rng, p, q, top1);
        }
        tally(&t, &run);
    }
    return law_p(&rules[1], &t);
}

/* The classic mistake: the ratio test on a draft that was chosen, not drawn. */
static void test_a_wrong_rule_is_rejected(void **state)
{
    (void)state;
    assert_true(rejection_law_p(0) >= REJECT);
    assert_true(rejection_law_p(1) < REJECT);
}

/* Tables: the target is random, the draft is the target seen through noise. */
static int open_tables(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED);
    for (int i = 0; i < CELLS; i++) {
        float x = 2.5f * rng_float(&rng);
        (&target_table[0][0][0])[i] = x;
        (&draft_table[0][0][0])[i] = x + 4 * rng_float(&rng);
    }
    backend = backend_cpu_open(1, NULL, V, NULL);
    return backend ? 0 : -1;
}

static int close_tables(void **state)
{
    (void)state;
    backend->close(backend);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chi_square_tail),
        cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_a_biased_sampler_is_rejected),
        cmocka_unit_test(test_a_dependence_between_steps_is_seen),
        cmocka_unit_test(test_a_wrong_rule_is_rejected),
    };
    printf("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
