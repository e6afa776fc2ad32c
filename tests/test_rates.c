/* test_rates.c: what is made of a drafter's word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/rates.h"

static void assert_close(double x, double want, double error)
{
    if (fabs(x - want) > error) fail_msg("%g in place of %g", x, want);
}

/* The root's children 0 and 1, of which 0 has a child 5. */
static void some_tree(Tree *t, float best, float sibling, float child)
{
    tree_init(t, 9);
    assert_int_equal(tree_add(t, 0, 0, best), 1);
    assert_int_equal(tree_add(t, 0, 1, sibling), 2);
    assert_int_equal(tree_add(t, 1, 5, best * child), 3);
}

/* At first chances are what was said, within a bin's width; along a path they multiply. */
static void test_believes_at_first(void **state)
{
    (void)state;
    DraftRates r;
    Tree t;
    float chance[MAX_TREE_NODES];
    rates_init(&r);
    some_tree(&t, 0.62F, 0.17F, 0.91F);
    rates_value(&r, &t, chance);
    assert_close(chance[0], 1, 0);
    assert_close(chance[1], 0.62, 0.05);
    assert_close(chance[2], 0.17, 0.025);
    assert_close(chance[3], chance[1] * 0.91, 0.025);
}

/* Guesses of one kind come true more often than was said, those of another never do. */
static void test_learns_from_all_children(void **state)
{
    (void)state;
    DraftRates r, all;
    Tree t;
    float chance[MAX_TREE_NODES];
    rates_init(&r);
    rates_init(&all);
    some_tree(&t, 0.55F, 0.35F, 0.75F);
    for (int i = 0; i < 1000; i++)
        rates_learn(&r, &all, &t, (const int32_t[]){i % 10 ? 0 : 7, 8}, 2, i);
    rates_value(&all, &t, chance);
    assert_close(chance[1], 0.9, 0.05);
    assert_close(chance[2], 0, 0.01);
    assert_close(chance[3], 0, 0.01); /* what followed 0 was 8, not 5 */
    rates_value(&r, &t, chance);
    assert_close(chance[1], 0.9, 0.15);
    assert_close(r.level[1], 0.9, 0.15);
    assert_close(r.level[2], 0, 0.01);
    assert_close(r.level[3], 0.7, 0);   /* never seen */
    some_tree(&t, 0.35F, 0.35F, 0.95F); /* other bins are as they were */
    rates_value(&all, &t, chance);
    assert_close(chance[1], 0.35, 0.05);
    assert_close(chance[3] / chance[1], 0.95, 0.04);
}

/* The way goes through a sibling too, and its children are the level's best. */
static void test_follows_siblings(void **state)
{
    (void)state;
    DraftRates r, all;
    Tree t;
    rates_init(&r);
    rates_init(&all);
    tree_init(&t, 9);
    tree_add(&t, 0, 0, 0.5F);
    tree_add(&t, 0, 1, 0.3F);
    tree_add(&t, 2, 5, 0.2F);
    for (int i = 0; i < 300; i++)
        rates_learn(&r, &all, &t, (const int32_t[]){1, 5, 3}, 3, i);
    assert_close(r.level[1], 0, 0.01);
    assert_close(r.level[2], 1, 0.01);
    /* no token, and nothing is learnt */
    DraftRates before = r;
    rates_learn(&r, &all, &t, NULL, 0, 300);
    assert_memory_equal(&r, &before, sizeof r);
}

/* One that thinks nothing of its guesses is learnt about like any other. */
static void test_no_value(void **state)
{
    (void)state;
    DraftRates r, all;
    Tree t;
    float chance[MAX_TREE_NODES];
    rates_init(&r);
    rates_init(&all);
    some_tree(&t, 0, 0, 0);
    for (int i = 0; i < 1000; i++)
        rates_learn(&r, &all, &t, (const int32_t[]){0, 5}, 2, i);
    rates_value(&r, &t, chance);
    assert_close(chance[3], 1, 0.02);
}

/* Who guessed matters: copies are never right, what both say always, heads half of the time. */
static void test_guessers(void **state)
{
    (void)state;
    DraftRates r, all;
    Tree t;
    float chance[MAX_TREE_NODES];
    rates_init(&r);
    rates_init(&all);
    tree_init(&t, 9);
    tree_join(&t, 0, 0, 0.45F, GUESS_COPY);
    tree_join(&t, 0, 1, 0.45F, GUESS_HEAD);
    tree_join(&t, 1, 2, 0.2F, GUESS_COPY);
    tree_join(&t, 2, 2, 0.2F, GUESS_COPY);
    tree_join(&t, 2, 2, 0.2F, GUESS_HEAD);
    for (int i = 0; i < 4000; i++)
        rates_learn(&r, &all, &t, (const int32_t[]){i % 2 ? 1 : 7, 2}, 2, i);
    rates_value(&all, &t, chance);
    assert_close(chance[1], 0, 0.01);
    assert_close(chance[2], 0.5, 0.1);
    assert_close(chance[3], 0, 0.01);
    assert_close(chance[4] / chance[2], 1, 0.02);
    assert_close(all.level[1], 0.5, 0.1); /* of the head: not of copies */
    assert_close(all.level[2], 1, 0.01);
}

/* Children that are all thought likely share what chance their parent has, and no more. */
static void test_shares(void **state)
{
    (void)state;
    DraftRates r;
    Tree t;
    float chance[MAX_TREE_NODES];
    rates_init(&r);
    tree_init(&t, 9);
    tree_join(&t, 0, 0, 0.9F, GUESS_HEAD);
    tree_join(&t, 0, 1, 0.9F, GUESS_COPY);
    tree_join(&t, 1, 2, 0.495F, GUESS_COPY);
    rates_value(&r, &t, chance);
    assert_close(chance[1], 0.5, 1e-6);
    assert_close(chance[2], 0.5, 1e-6);
    assert_close(chance[3] / chance[1], 0.55, 1e-6);
}

/* The best child is the one of the most value, wherever it stands: what was copied came first. */
static void test_best_by_value(void **state)
{
    (void)state;
    DraftRates r, all;
    Tree t;
    rates_init(&r);
    rates_init(&all);
    tree_init(&t, 9);
    tree_join(&t, 0, 0, 0.1F, GUESS_COPY);
    tree_join(&t, 0, 0, 0.1F, GUESS_HEAD); /* the head's second guess */
    tree_join(&t, 0, 1, 0.8F, GUESS_HEAD);
    for (int i = 0; i < 300; i++)
        rates_learn(&r, &all, &t, (const int32_t[]){1}, 1, i);
    assert_close(r.level[1], 1, 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_believes_at_first), cmocka_unit_test(test_learns_from_all_children),
        cmocka_unit_test(test_follows_siblings),  cmocka_unit_test(test_no_value),
        cmocka_unit_test(test_guessers),          cmocka_unit_test(test_shares),
        cmocka_unit_test(test_best_by_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
