/*
 * test_flops.c: what tokens cost, against figures worked out by hand from the models' shapes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/flops.h"

/* Qwen3.5-27B: 48 recurrent and 16 attention layers, dense. */
static ModelConfig dense_27b(void)
{
    ModelConfig c = {.dim = 5120,
                     .n_layers = 64,
                     .n_full = 16,
                     .n_recurrent = 48,
                     .n_heads = 24,
                     .n_kv_heads = 4,
                     .head_dim = 256,
                     .n_k_heads = 16,
                     .n_v_heads = 48,
                     .d_k = 128,
                     .d_v = 128,
                     .conv_width = 4,
                     .n_channels = 10240,
                     .ffn_dim = 17408};
    for (int i = 3; i < c.n_layers; i += 4)
        c.full_attention[i] = 1;
    return c;
}

static void test_dense(void **state)
{
    (void)state;
    ModelConfig c = dense_27b();
    FlopCost cost = model_flops(&c);
    assert_true(cost.per_token == 48 * 238043136.0 + 16 * 209715200.0 + 64 * 534773760.0);
    assert_true(cost.per_pair == 16 * 4 * 6144.0);
}

/* A layer that is a mixture costs the experts that a token meets, and the router. */
static void test_mixture(void **state)
{
    (void)state;
    ModelConfig c = dense_27b();
    double before = model_flops(&c).per_token;
    c.n_experts = 16;
    c.n_experts_used = 2;
    c.expert_dim = 40;
    c.shared_dim = 30;
    c.moe[5] = 1;
    double want = before - 534773760.0 + 6 * 5120.0 * 110 + 2 * 5120.0 * 16;
    assert_true(model_flops(&c).per_token == want);
}

static void test_between(void **state)
{
    (void)state;
    FlopCost cost = {.per_token = 10, .per_pair = 2};
    assert_true(flops_between(&cost, 0, 0) == 0);
    assert_true(flops_between(&cost, 0, 3) == 30 + 9);
    assert_true(flops_between(&cost, 3, 5) == 20 + 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
