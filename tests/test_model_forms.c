/*
 * test_model_forms.c: checkpoints whose matrices are halves, and whose experts are stacked in FP8.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model.h"
#include "kernels/fp16.h"
#include "kernels/fp8.h"
#include "kernels/host_memory.h"
#include "tests/checkpoint.h"
#include "tests/whole_model.h"

#define GOLDEN "tests/data/golden/"
#define L(n)   "model.language_model.layers." #n "."

static Backend backend; /* memory, and no operation */

/* ---- halves ---- */

/* All matrices get random halves: as F16, or widened here. */
static void put_halves(Checkpoint *c, int widened)
{
    unsigned seed = 3;
    for (int i = 0; i < c->n; i++) {
        CheckpointTensor *t = &c->tensor[i];
        if (t->n_dims < 2) continue;
        size_t n = t->bytes / 2;
        assert_string_equal(t->dtype, "BF16");
        snprintf(t->dtype, sizeof t->dtype, "%s", widened ? "F32" : "F16");
        t->bytes = n * (widened ? 4 : 2);
        t->data = mem_realloc(t->data, t->bytes, 1);
        for (size_t k = 0; k < n; k++) {
            uint16_t half = (uint16_t)(rand_r(&seed) % 0x4000 | (rand_r(&seed) % 2) << 15);
            float wide = fp16_to_float(half);
            if (widened)
                memcpy(t->data + 4 * k, &wide, 4);
            else
                memcpy(t->data + 2 * k, &half, 2);
        }
    }
}

static void same_matrix(const Weight *a, const Weight *b, WeightType type)
{
    is_matrix(a, type, b->rows, b->cols);
    is_matrix(b, type, a->rows, a->cols);
    assert_memory_equal(a->data, b->data, (size_t)(a->rows * weight_row_bytes(a)));
    if (a->scale)
        assert_memory_equal(a->scale, b->scale, (size_t)weight_n_scales(a) * sizeof(float));
}

static void same_models(const Model *a, const Model *b, WeightType type)
{
    const ModelConfig *c = &a->config;
    same_matrix(&a->embed, &b->embed, WEIGHT_F32);
    same_matrix(&a->lm_head, &b->lm_head, WEIGHT_F32);
    for (int i = 0; i < c->n_layers; i++) {
        const LayerWeights *x = &a->layer[i], *y = &b->layer[i];
        if (c->full_attention[i]) {
            same_matrix(&x->attention.q, &y->attention.q, type);
            same_matrix(&x->attention.o, &y->attention.o, type);
        } else {
            same_matrix(&x->delta.qkv, &y->delta.qkv, type);
            same_matrix(&x->delta.z, &y->delta.z, type);
            same_matrix(&x->delta.a, &y->delta.a, WEIGHT_F32);
            assert_memory_equal(x->delta.conv_w, y->delta.conv_w,
                                (size_t)(c->n_channels * c->conv_width) * sizeof(float));
        }
        for (int e = 0; c->moe[i] && e < 3 * c->n_experts; e++)
            same_matrix(&x->ffn.expert_gate[e], &y->ffn.expert_gate[e], type);
    }
}

/* F16 matrices, plain, stacked and fused ones, are what they would be as F32. */
static void test_halves(void **state)
{
    static const char *const models[] = {"qwen35-dense", "qwen35-moe", "qwen3-next"};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int fp8 = 0; fp8 < 2; fp8++)
            for (int shift = 0; shift < 2; shift++) {
                ModelOptions options = {.quant = fp8 ? QUANT_FP8 : QUANT_NONE};
                char path[256];
                Model *m[2];
                snprintf(path, sizeof path, GOLDEN "%s", models[i]);
                for (int widened = 0; widened < 2; widened++) {
                    Checkpoint c;
                    Error err = {0};
                    checkpoint_read(&c, path);
                    put_halves(&c, widened);
                    char config[256];
                    snprintf(config, sizeof config, GOLDEN "%s/config.json", models[i]);
                    m[widened] = model_open(checkpoint_model(&c, config, NULL, NULL, shift),
                                            &options, &backend, &err);
                    if (!m[widened]) fail_msg("%s", err.msg);
                    checkpoint_free(&c);
                }
                same_models(m[0], m[1], fp8 ? WEIGHT_FP8 : WEIGHT_F32);
                model_close(m[0]);
                model_close(m[1]);
            }
}

/* ---- experts stacked in FP8 ---- */

enum { STACK_EXPERTS = 8, STACK_DIM = 96 };

/* [8][rows][cols] codes, and others for each block of 128 x 128, or each expert, as scales. */
static void put_fp8_stack(Checkpoint *c, const char *name, int rows, int cols, int one)
{
    char scale[128];
    static unsigned seed = 5;
    CheckpointTensor *t = checkpoint_put(c, name, "F8_E4M3", STACK_EXPERTS, rows, cols);
    for (size_t i = 0; i < t->bytes; i++)
        t->data[i] = (unsigned char)(rand_r(&seed) % 127 | (rand_r(&seed) % 2) << 7); /* no NaN */
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    t = checkpoint_put(c, scale, "F32", STACK_EXPERTS, one ? 1 : (rows + 127) / 128,
                       one ? 1 : (cols + 127) / 128);
    for (size_t i = 0; i < t->bytes / 4; i++) {
        float s = 1 + (float)i / 8;
        memcpy(t->data + 4 * i, &s, 4);
    }
}

/* Rows first, first + 1, ... of each expert in that stack are w[expert], of that type. */
static void is_part(const Checkpoint *c, const char *name, int first, const Weight *w,
                    WeightType type)
{
    char scale[128];
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    const CheckpointTensor *t = checkpoint_get(c, name), *s = checkpoint_get(c, scale);
    for (int64_t e = 0; e < STACK_EXPERTS; e++) {
        assert_int_equal(w[e].type, type);
        for (int r = 0; r < w[e].rows; r++)
            for (int k = 0; k < w[e].cols; k++) {
                int64_t row = e * t->dim[1] + first + r,
                        block = (e * s->dim[1] + (first + r) / 128) * s->dim[2] + k / 128;
                if (s->dim[1] * s->dim[2] == 1) block = e;
                float times;
                memcpy(&times, s->data + 4 * block, 4);
                assert_true(weight_value(&w[e], r, k) ==
                            fp8_to_float(t->data[row * t->dim[2] + k]) * times);
            }
    }
}

/* As they lie in the file, or dequantised where gate and up share a block of scales. */
static void check_fp8_stacks(int width, int one)
{
    static const char *const scopes[] = {L(0), L(1), L(2), L(3), "mtp.layers.0."};
    enum { SCOPES = sizeof scopes / sizeof *scopes };
    Checkpoint c;
    char gate_up[128], down[128], text[16];
    WeightType type = width % 128 ? WEIGHT_F32 : WEIGHT_FP8;
    checkpoint_read(&c, GOLDEN "qwen35-moe");
    for (int i = 0; i < SCOPES; i++) {
        snprintf(gate_up, sizeof gate_up, "%smlp.experts.gate_up_proj", scopes[i]);
        snprintf(down, sizeof down, "%smlp.experts.down_proj", scopes[i]);
        put_fp8_stack(&c, gate_up, 2 * width, STACK_DIM, one);
        put_fp8_stack(&c, down, STACK_DIM, width, one);
    }
    snprintf(text, sizeof text, "%d", width);
    Error err = {0};
    const char *dir = checkpoint_model(&c, GOLDEN "qwen35-moe/config.json",
                                       "text_config.moe_intermediate_size", text, 0);
    Model *m = model_open(dir, NULL, &backend, &err);
    if (!m) fail_msg("%s", err.msg);
    const FfnWeights *f = &m->head.ffn; /* the last that was put */
    is_part(&c, gate_up, 0, f->expert_gate, type);
    is_part(&c, gate_up, width, f->expert_up, type);
    is_part(&c, down, 0, f->expert_down, type);
    is_part(&c, L(1) "mlp.experts.gate_up_proj", width, m->layer[1].ffn.expert_up, type);
    model_close(m);
    checkpoint_free(&c);
}

static void test_fp8_stacks(void **state)
{
    (void)state;
    for (int width = 128; width <= 320; width += 64)
        for (int one = 0; one < 2; one++)
            check_fp8_stacks(width, one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_fp8_stacks),
    };
    host_memory_fill(&backend);
    return cmocka_run_group_tests_name("model_forms", tests, NULL, NULL);
}
