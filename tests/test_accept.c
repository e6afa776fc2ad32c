/*
 * test_accept.c: the walk over a verified tree against a search of all its paths; stops and bad
 * rows at each place of an accepted run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "kernels/round.h"
#include "spec/accept.h"
#include "tests/random_tree.h"

enum { TREES = 50000, VOCAB = 3 }; /* few tokens: long runs are accepted by chance */

static const uint64_t SEED = 21;

/* Says stop at the stop_at-th token (counted from 0), and remembers what it was asked. */
typedef struct {
    int n, stop_at;
    int32_t token[MAX_TREE_NODES];
} Asker;

enum { VERDICT = 7 };

static int asked(void *ctx, int32_t token)
{
    Asker *a = ctx;
    assert_true(a->n < MAX_TREE_NODES);
    a->token[a->n++] = token;
    return a->n - 1 == a->stop_at ? VERDICT : 0;
}

/* Nodes from the root to i, root first; [depth of i + 1]. */
static void path_to(const Tree *t, int i, int *path)
{
    for (int d = t->depth[i]; d >= 0; d--, i = t->parent[i])
        path[d] = i;
}

/* 1 if every node on i's path carries what the target says after its parent. */
static int agreed(const Tree *t, const int32_t *next, int i)
{
    for (; i > 0; i = t->parent[i])
        if (next[t->parent[i]] != t->token[i]) return 0;
    return 1;
}

/* The deepest node whose path the target agrees with: at most one a depth, as siblings differ. */
static int deepest_agreed(const Tree *t, const int32_t *next)
{
    int best = 0;
    for (int i = 0; i < t->n; i++)
        if (agreed(t, next, i) && t->depth[i] > t->depth[best]) best = i;
    return best;
}

/* Checks a walk of t that should stop at token stop_at (-1: nowhere). */
static void check_walk(const Tree *t, const int32_t *next, int stop_at)
{
    Asker asker = {.stop_at = stop_at};
    AcceptedPath got;
    int last = deepest_agreed(t, next), m = t->depth[last], path[MAX_TREE_NODES];
    int stop = next[last] < 0 ? -1 : 0;
    path_to(t, last, path);
    if (stop_at >= 0 && stop_at < m + (stop == 0)) {
        m = stop_at;
        stop = VERDICT;
    }
    accept_path(t, next, asked, &asker, &got);
    assert_int_equal(got.m, m);
    assert_int_equal(got.stop, stop);
    assert_memory_equal(got.path, path, (size_t)(m + 1) * sizeof *path);
    int n_emitted = stop < 0 ? m : m + 1;
    for (int d = 0; d < n_emitted; d++)
        assert_int_equal(got.emitted[d], next[path[d]]);
    assert_int_equal(asker.n, n_emitted);
    assert_memory_equal(asker.token, got.emitted, (size_t)n_emitted * sizeof *asker.token);
}

static void test_random_walks(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED);
    int longest = 0, n_bad = 0;
    for (int round = 0; round < TREES; round++) {
        Tree t;
        int32_t next[MAX_TREE_NODES] = {0};
        int bad = rng_int(&rng, 2);
        random_tree(&rng, 1 + rng_int(&rng, MAX_TREE_NODES), VOCAB, &t);
        for (int i = 0; i < t.n; i++)
            next[i] = bad && !rng_int(&rng, 8) ? -1 : rng_int(&rng, VOCAB);
        int last = deepest_agreed(&t, next), m = t.depth[last];
        longest = m > longest ? m : longest;
        n_bad += next[last] < 0;
        for (int stop_at = -1; stop_at <= m + 1; stop_at++)
            check_walk(&t, next, stop_at);
    }
    /* the oracle met what it is for */
    assert_true(longest >= 6);
    assert_true(n_bad > TREES / 100);
}

/* A chain that the target agrees with to its end: stops at the first, a middle, the last, the bonus
 * token; bad rows at each place. */
static void test_each_place_of_a_run(void **state)
{
    (void)state;
    enum { DEPTH = 6 };
    Tree t;
    int32_t next[DEPTH + 1];
    tree_init(&t, 100);
    for (int d = 0; d < DEPTH; d++) {
        tree_add(&t, d, 101 + d, 0.9f);
        next[d] = 101 + d;
    }
    next[DEPTH] = 200;
    for (int stop_at = -1; stop_at <= DEPTH + 1; stop_at++)
        check_walk(&t, next, stop_at);
    for (int bad = 0; bad <= DEPTH; bad++) {
        int32_t good = next[bad];
        AcceptedPath got;
        next[bad] = -1;
        accept_path(&t, next, asked, &(Asker){.stop_at = -1}, &got);
        assert_int_equal(got.m, bad);
        assert_int_equal(got.stop, -1);
        assert_int_equal(got.path[bad], bad);
        for (int stop_at = 0; stop_at <= bad + 1; stop_at++)
            check_walk(&t, next, stop_at);
        next[bad] = good;
    }
}

/* Plain decoding, and a chain of all nodes: the arrays' ends. */
static void test_shortest_and_longest(void **state)
{
    (void)state;
    Tree t;
    int32_t next[MAX_TREE_NODES] = {0};
    tree_init(&t, 0);
    next[0] = 1;
    check_walk(&t, next, -1);
    check_walk(&t, next, 0);
    for (int i = 1; i < MAX_TREE_NODES; i++) {
        tree_add(&t, i - 1, i, 1);
        next[i] = i + 1;
    }
    check_walk(&t, next, -1);
    check_walk(&t, next, MAX_TREE_NODES - 1);
    AcceptedPath got;
    accept_path(&t, next, asked, &(Asker){.stop_at = -1}, &got);
    assert_int_equal(got.m, MAX_TREE_NODES - 1);
    assert_int_equal(got.emitted[MAX_TREE_NODES - 1], MAX_TREE_NODES);
}

/* A bad row or a lie beside the path changes nothing. */
static void test_other_branches_do_not_count(void **state)
{
    (void)state;
    Tree t;
    AcceptedPath got;
    tree_init(&t, 0);
    tree_add(&t, 0, 1, 0.9f); /* 1 */
    tree_add(&t, 0, 2, 0.8f); /* 2 */
    tree_add(&t, 2, 3, 0.7f); /* 3 */
    tree_add(&t, 1, 3, 0.7f); /* 4 */
    const int32_t next[] = {2, -1, 3, 4, -1};
    accept_path(&t, next, asked, &(Asker){.stop_at = -1}, &got);
    assert_int_equal(got.m, 2);
    assert_int_equal(got.stop, 0);
    assert_int_equal(got.path[1], 2);
    assert_int_equal(got.path[2], 3);
    assert_int_equal(got.emitted[2], 4);
}

/* Accepted by lot: the length that was asked for, on chains and along a tree's first children. */
static void test_synthetic_acceptance(void **state)
{
    (void)state;
    static const double lengths[] = {1.5, 2, 3, 3.9};
    enum { STEPS = 20000, IDS = 50 };
    for (int depth = 1; depth <= 6; depth++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            double length = lengths[l], rate = synthetic_rate(length, depth), sum = 1;
            for (int d = 1; d <= depth; d++)
                sum += pow(rate, d);
            assert_true(fabs(sum - fmin(length, depth + 1)) < 1e-9);
            Tree t;
            tree_init(&t, 1);
            for (int d = 0, at = 0; d < depth; d++) {
                int child = tree_add(&t, at, 10 + d, 0.5f);
                tree_add(&t, at, 20 + d, 0.4f);
                at = child;
            }
            tree_order(&t, MAX_TREE_NODES);
            long accepted = 0;
            for (int step = 0, pos = 0; step < STEPS; step++) {
                int32_t next[MAX_TREE_NODES];
                AcceptedPath path;
                Asker none = {.stop_at = -1};
                for (int i = 0; i < t.n; i++)
                    next[i] = synthetic_choice(t.parent, t.token, t.n, i, step % IDS, (float)rate,
                                               pos + t.depth[i] + 1, IDS);
                accept_path(&t, next, asked, &none, &path);
                for (int d = 1; d <= path.m; d++)
                    assert_int_equal(path.path[d], path.path[d - 1] + 1);
                accepted += path.m;
                pos += path.m + 1;
            }
            assert_true(fabs(1 + (double)accepted / STEPS - fmin(length, depth + 1)) < 0.05);
        }
    int32_t parent[] = {-1, 0, 0}, token[] = {1, 4, 5};
    assert_int_equal(synthetic_choice(parent, token, 3, 0, 5, 0, 9, 6), 5);   /* off */
    assert_int_equal(synthetic_choice(parent, token, 3, 0, -1, 1, 9, 6), -1); /* a bad row */
    assert_int_equal(synthetic_choice(parent, token, 3, 2, 5, 1, 9, 6), 5);   /* a leaf */
    assert_int_equal(synthetic_choice(parent, token, 3, 0, 4, 1e-9f, 9, 6), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_walks),
        cmocka_unit_test(test_each_place_of_a_run),
        cmocka_unit_test(test_shortest_and_longest),
        cmocka_unit_test(test_other_branches_do_not_count),
        cmocka_unit_test(test_synthetic_acceptance),
    };
    printf("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
