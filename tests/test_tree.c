/*
 * test_tree.c: draft trees against what tree.h promises, by random trees and by enumeration.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tests/random_tree.h"

enum { TREES = 20000, VOCAB = 12 };

static const uint64_t SEED = 20;

/* Everything of a node, for comparing trees that share no code with tree.c. */
static void assert_node(const Tree *t, int i, int32_t token, int parent, int depth, float value)
{
    assert_int_equal(t->token[i], token);
    assert_int_equal(t->parent[i], parent);
    assert_int_equal(t->depth[i], depth);
    assert_true(t->value[i] == value);
}

static void test_add_keeps_the_invariants(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED);
    for (int round = 0; round < TREES; round++) {
        Tree t;
        int32_t root = rng_int(&rng, VOCAB);
        tree_init(&t, root);
        assert_node(&t, 0, root, -1, 0, 1);
        for (int tries = 0; tries < 40; tries++) {
            int parent = rng_int(&rng, t.n), n = t.n;
            int32_t token = rng_int(&rng, VOCAB);
            float value = random_value(&rng, round % 2) * 1.5f, most = t.value[parent];
            int old = tree_child(&t, parent, token), i = tree_add(&t, parent, token, value);
            assert_int_equal(i, old < 0 ? n : old);
            assert_int_equal(t.n, n + (old < 0));
            assert_int_equal(tree_child(&t, parent, token), i);
            if (old < 0)
                assert_node(&t, i, token, parent, t.depth[parent] + 1, value < most ? value : most);
        }
        assert_true(tree_valid(&t, VOCAB));
    }
}

/* A tree made of random joins, against one node at a time: value, who guessed it, and its share. */
static void test_join(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED + 7);
    for (int round = 0; round < TREES / 4; round++) {
        Tree t, before;
        tree_init(&t, 0);
        for (int tries = 0; tries < 60; tries++) {
            int parent = rng_int(&rng, t.n), old;
            int32_t token = rng_int(&rng, VOCAB / 2);
            float value = t.value[parent] * random_value(&rng, 0);
            uint8_t from = rng_int(&rng, 2) ? GUESS_HEAD : GUESS_COPY;
            before = t;
            old = tree_child(&t, parent, token);
            int i = tree_join(&t, parent, token, value, from);
            if (old < 0) {
                assert_int_equal(i, t.n - 1);
                assert_node(&t, i, token, parent, t.depth[parent] + 1, value);
                assert_int_equal(t.from[i], from);
                assert_memory_equal(t.value, before.value, (size_t)i * sizeof *t.value);
                continue;
            }
            assert_int_equal(i, old);
            assert_int_equal(t.n, before.n);
            assert_int_equal(t.from[i], before.from[i] | from);
            assert_true(t.value[i] == (value > before.value[i] ? value : before.value[i]));
            for (int k = 1; k < t.n; k++) {
                int p = t.parent[k], in_it = k;
                while (in_it > i)
                    in_it = t.parent[in_it];
                if (in_it != i) assert_true(t.value[k] == before.value[k]);
                if (in_it != i || k == i || !(before.value[p] > 0)) continue;
                float share = before.value[k] / before.value[p];
                assert_true(fabsf(t.value[k] - t.value[p] * share) <= 1e-6F * t.value[p]);
            }
        }
        assert_true(tree_valid(&t, VOCAB));
        before = t;
        tree_order(&t, 20);
        for (int k = 1; k < t.n; k++) { /* it stays known who guessed a node */
            int at = 0, path[MAX_TREE_NODES], n = 0;
            for (int i = k; i; i = t.parent[i])
                path[n++] = t.token[i];
            while (n)
                at = tree_child(&before, at, path[--n]);
            assert_int_equal(t.from[k], before.from[at]);
        }
    }
}

/* All paths of both, each node at least as good as in either, and of the better parent its share.
 */
static void test_merge(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED + 8);
    for (int round = 0; round < TREES / 4; round++) {
        Tree a, b, t, again;
        random_tree(&rng, 1 + rng_int(&rng, 31), VOCAB / 2, &a);
        random_tree(&rng, 1 + rng_int(&rng, 31), VOCAB / 2, &b);
        for (int i = 1; i < b.n; i++)
            b.from[i] = GUESS_COPY;
        t = a;
        tree_merge(&t, &b);
        assert_true(tree_valid(&t, VOCAB));
        int n_both = 0, at[MAX_TREE_NODES] = {0};
        for (int i = 1; i < b.n; i++) {
            int p = at[b.parent[i]], k = at[i] = tree_child(&t, p, b.token[i]);
            assert_true(k > 0);
            float above = b.value[b.parent[i]], share = above > 0 ? b.value[i] / above : 0;
            if (k < a.n) {
                n_both++;
                assert_int_equal(t.from[k], GUESS_BOTH);
            } else {
                assert_int_equal(t.from[k], GUESS_COPY);
                assert_true(fabsf(t.value[k] - t.value[p] * share) <= 1e-5F);
            }
        }
        assert_int_equal(t.n, a.n + b.n - 1 - n_both);
        tree_init(&again, a.token[0]);
        tree_merge(&again, &a);
        for (int i = 1; i < a.n; i++)
            assert_true(fabsf(again.value[i] - a.value[i]) <= 1e-5F);
    }
    Tree full, more;
    tree_init(&full, 0);
    tree_init(&more, 0);
    for (int i = 1; i < MAX_TREE_NODES - 2; i++)
        tree_add(&full, 0, i, 0.01F);
    for (int i = 1; i < 8; i++)
        tree_add(&more, i - 1, i < 4 ? 100 + i : i, 0.5F);
    tree_merge(&full, &more);
    assert_int_equal(full.n, MAX_TREE_NODES); /* a path's beginning; the rest finds no room */
    for (int i = 1; i < MAX_TREE_NODES - 2; i++)
        assert_true(full.value[i] == 0.01F); /* nor a place elsewhere */
    assert_true(tree_valid(&full, 200));
}

static void test_child_finds_only_children(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED + 1);
    for (int round = 0; round < TREES / 20; round++) {
        Tree t;
        random_tree(&rng, 1 + rng_int(&rng, 24), VOCAB, &t);
        for (int node = 0; node < t.n; node++)
            for (int32_t token = 0; token < VOCAB; token++) {
                int want = -1;
                for (int i = 0; i < t.n; i++)
                    if (t.parent[i] == node && t.token[i] == token) want = i;
                assert_int_equal(tree_child(&t, node, token), want);
            }
    }
}

static void test_a_full_tree_takes_no_more(void **state)
{
    (void)state;
    Tree t, before;
    tree_init(&t, 0);
    for (int i = 1; i < MAX_TREE_NODES; i++)
        assert_int_equal(tree_add(&t, i - 1, i, 0.5f), i);
    before = t;
    assert_int_equal(tree_add(&t, 0, 99, 0.5f), -1);
    assert_int_equal(tree_add(&t, MAX_TREE_NODES - 1, 99, 0.5f), -1);
    assert_int_equal(tree_add(&t, 0, 1, 0.9f), 1); /* that child is there already */
    assert_memory_equal(&t, &before, sizeof t);
    assert_int_equal(tree_depth(&t), MAX_TREE_NODES - 1);
    assert_true(tree_valid(&t, MAX_TREE_NODES));
    tree_order(&t, MAX_TREE_NODES);
    assert_memory_equal(&t, &before, sizeof t);
}

/* A drafter's arithmetic may end in NaN; the tree must not carry it on. */
static void test_a_value_that_is_no_number_is_cut(void **state)
{
    (void)state;
    Tree t;
    tree_init(&t, 0);
    assert_int_equal(tree_add(&t, 0, 1, 0.5f), 1);
    assert_int_equal(tree_add(&t, 1, 2, NAN), 2);
    assert_true(t.value[2] == 0.5f);
    assert_true(tree_valid(&t, VOCAB));
}

static const Tree *sorted; /* for qsort */

static int by_value(const void *pa, const void *pb)
{
    int a = *(const int *)pa, b = *(const int *)pb;
    if (sorted->value[a] != sorted->value[b]) return sorted->value[a] > sorted->value[b] ? -1 : 1;
    return a - b;
}

static int by_value_then_token(const void *pa, const void *pb)
{
    int a = *(const int *)pa, b = *(const int *)pb;
    if (sorted->value[a] != sorted->value[b]) return sorted->value[a] > sorted->value[b] ? -1 : 1;
    return sorted->token[a] - sorted->token[b];
}

/* Lists node i of t and, best first, its kept children; at[k] is the k-th listed node. */
static int list_depth_first(const Tree *t, const unsigned char *keep, int i, int *at, int n)
{
    int child[MAX_TREE_NODES], n_child = 0;
    at[n++] = i;
    for (int j = 0; j < t->n; j++)
        if (t->parent[j] == i && keep[j]) child[n_child++] = j;
    qsort(child, (size_t)n_child, sizeof *child, by_value_then_token);
    for (int j = 0; j < n_child; j++)
        n = list_depth_first(t, keep, child[j], at, n);
    return n;
}

/* tree_order by sorting all nodes and by recursion. */
static int expected_order(const Tree *t, int max_nodes, int *at)
{
    int rank[MAX_TREE_NODES];
    unsigned char keep[MAX_TREE_NODES] = {0};
    sorted = t;
    for (int i = 0; i < t->n; i++)
        rank[i] = i;
    qsort(rank + 1, (size_t)t->n - 1, sizeof *rank, by_value); /* the root is always kept */
    for (int k = 0; k < t->n && k < max_nodes; k++)
        keep[rank[k]] = 1;
    return list_depth_first(t, keep, 0, at, 0);
}

static void assert_ordered(const Tree *from, int max_nodes)
{
    int at[MAX_TREE_NODES], to[MAX_TREE_NODES], n = expected_order(from, max_nodes, at);
    Tree t = *from;
    tree_order(&t, max_nodes);
    assert_int_equal(t.n, n);
    assert_int_equal(n, from->n < max_nodes ? from->n : max_nodes);
    assert_true(tree_valid(&t, VOCAB));
    for (int k = 0; k < n; k++)
        to[at[k]] = k;
    for (int k = 0; k < n; k++) {
        int i = at[k];
        assert_node(&t, k, from->token[i], i ? to[from->parent[i]] : -1, from->depth[i],
                    from->value[i]);
    }
    Tree again = t;
    tree_order(&again, max_nodes);
    assert_memory_equal(&again, &t, sizeof t);
}

static void test_order_is_the_best_nodes_depth_first(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED + 2);
    for (int round = 0; round < TREES; round++) {
        Tree t;
        random_tree(&rng, 1 + rng_int(&rng, MAX_TREE_NODES), VOCAB, &t);
        assert_ordered(&t, 1 + rng_int(&rng, MAX_TREE_NODES));
    }
}

static void test_ties(void **state)
{
    (void)state;
    Tree t;
    tree_init(&t, 0);
    tree_add(&t, 0, 9, 0.5f);
    tree_add(&t, 0, 3, 0.5f);
    tree_add(&t, 0, 6, 0.5f);
    tree_add(&t, 2, 1, 0.5f);
    assert_ordered(&t, 5);
    tree_order(&t, 3); /* 9 and 3 came first; 3 is the smaller token */
    assert_int_equal(t.n, 3);
    assert_node(&t, 1, 3, 0, 1, 0.5f);
    assert_node(&t, 2, 9, 0, 1, 0.5f);
}

/* 1 if the nodes of mask, a bit each, are a tree: every one's parent is in it too. */
static int is_tree(const Tree *t, unsigned mask)
{
    if (!(mask & 1)) return 0;
    for (int i = 1; i < t->n; i++)
        if (mask >> i & 1 && !(mask >> t->parent[i] & 1)) return 0;
    return 1;
}

static double sum_of_values(const Tree *t, unsigned mask)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++)
        if (mask >> i & 1) sum += (double)t->value[i];
    return sum;
}

/* Of all subtrees of a size, none has more expected accepted nodes than what tree_order keeps. */
static void test_no_subtree_is_worth_more(void **state)
{
    (void)state;
    Rng rng = rng_new(SEED + 3);
    for (int round = 0; round < 300; round++) {
        Tree t;
        double best[11] = {0};
        random_tree(&rng, 1 + rng_int(&rng, 10), VOCAB, &t);
        for (unsigned mask = 1; mask < 1u << t.n; mask++) {
            int size = __builtin_popcount(mask);
            if (!is_tree(&t, mask)) continue;
            if (sum_of_values(&t, mask) > best[size]) best[size] = sum_of_values(&t, mask);
        }
        for (int size = 1; size <= t.n; size++) {
            Tree kept = t;
            tree_order(&kept, size);
            double worth = sum_of_values(&kept, (1u << kept.n) - 1);
            assert_true(fabs(worth - best[size]) < 1e-9);
        }
    }
}

/* Every promise broken once: each is seen. */
static void test_valid_sees_each_fault(void **state)
{
    (void)state;
    Tree good;
    tree_init(&good, 5);
    tree_add(&good, 0, 1, 0.75f);
    tree_add(&good, 0, 2, 0.5f);
    tree_add(&good, 1, 1, 0.5f);
    assert_true(tree_valid(&good, 6));
    assert_false(tree_valid(&good, 5)); /* the root's token */
    Tree bad[13];
    for (int i = 0; i < 13; i++)
        bad[i] = good;
    bad[0].n = 0;
    bad[1].n = MAX_TREE_NODES + 1;
    bad[2].parent[0] = 0;
    bad[3].depth[0] = 1;
    bad[4].token[3] = -1;
    bad[5].token[3] = 6;
    bad[6].parent[3] = -1;
    bad[7].parent[3] = 3;
    bad[8].depth[3] = 1;
    bad[9].value[3] = 0.8f;
    bad[10].value[3] = NAN;
    bad[11].token[2] = 1; /* siblings alike */
    bad[12].parent[1] = 2;
    for (int i = 0; i < 13; i++)
        if (tree_valid(&bad[i], 6)) fail_msg("fault %d is not seen", i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_keeps_the_invariants),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_child_finds_only_children),
        cmocka_unit_test(test_a_full_tree_takes_no_more),
        cmocka_unit_test(test_a_value_that_is_no_number_is_cut),
        cmocka_unit_test(test_order_is_the_best_nodes_depth_first),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_no_subtree_is_worth_more),
        cmocka_unit_test(test_valid_sees_each_fault),
    };
    printf("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
