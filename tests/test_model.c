/*
 * test_model.c: whole checkpoints become weights. Halves and FP8 stacks are in test_model_forms.c,
 * checkpoints that become none in test_model_errors.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/loader.h"
#include "engine/model.h"
#include "engine/safetensors.h"
#include "engine/unpack.h"
#include "kernels/fp8.h"
#include "kernels/host_memory.h"
#include "tests/checkpoint.h"
#include "tests/whole_model.h"

#define GOLDEN  "tests/data/golden/"
#define L(n)    "model.language_model.layers." #n "."
#define NEXT(n) "model.layers." #n "."

static Backend backend; /* memory, and no operation */

static Model *open_ok(const char *dir)
{
    Error err = {0};
    Model *m = model_open(dir, NULL, &backend, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

/* One element of a tensor in a file, without the loader; scale: of FP8, else NULL. */
static float tensor_at(const Tensor *t, const Tensor *scale, int cols, int r, int c)
{
    Weight w = {t->type == TENSOR_F32    ? WEIGHT_F32
                : t->type == TENSOR_BF16 ? WEIGHT_BF16
                                         : WEIGHT_FP8,
                INT32_MAX, cols, t->data, scale ? (const float *)(const void *)scale->data : NULL};
    return weight_value(&w, r, c);
}

static void check_attention(const ModelConfig *c, const AttentionWeights *a, WeightType type)
{
    is_matrix(&a->q, type, 2 * c->n_heads * c->head_dim, c->dim);
    is_matrix(&a->k, type, c->n_kv_heads * c->head_dim, c->dim);
    is_matrix(&a->v, type, c->n_kv_heads * c->head_dim, c->dim);
    is_matrix(&a->o, type, c->dim, c->n_heads * c->head_dim);
    assert_non_null(a->norm);
    assert_non_null(a->q_norm);
    assert_non_null(a->k_norm);
}

static void check_delta(const ModelConfig *c, const DeltaWeights *d, WeightType type)
{
    is_matrix(&d->qkv, type, c->n_channels, c->dim);
    is_matrix(&d->z, type, c->n_v_heads * c->d_v, c->dim);
    is_matrix(&d->b, WEIGHT_BF16, c->n_v_heads, c->dim);
    is_matrix(&d->a, WEIGHT_BF16, c->n_v_heads, c->dim);
    is_matrix(&d->out, type, c->dim, c->n_v_heads * c->d_v);
    for (int h = 0; h < c->n_v_heads; h++)
        assert_true(d->a_coef[h] < 0);
    assert_non_null(d->norm);
    assert_non_null(d->conv_w);
    assert_non_null(d->dt_bias);
    assert_non_null(d->out_norm);
}

static void check_ffn(const ModelConfig *c, const FfnWeights *f, int moe, WeightType type)
{
    int width = moe ? c->shared_dim : c->ffn_dim;
    assert_int_equal(f->moe, moe);
    assert_non_null(f->norm);
    is_matrix(&f->gate, type, width, c->dim);
    is_matrix(&f->up, type, width, c->dim);
    is_matrix(&f->down, type, c->dim, width);
    if (!moe) return;
    is_matrix(&f->router, WEIGHT_BF16, c->n_experts, c->dim);
    is_matrix(&f->shared_gate, WEIGHT_BF16, 1, c->dim);
    for (int e = 0; e < c->n_experts; e++) {
        is_matrix(&f->expert_gate[e], type, c->expert_dim, c->dim);
        is_matrix(&f->expert_up[e], type, c->expert_dim, c->dim);
        is_matrix(&f->expert_down[e], type, c->dim, c->expert_dim);
    }
}

/* Every shape against the config; type: of the matrices that an FP8 file quantises. */
static void check_shapes(const Model *m, WeightType type)
{
    const ModelConfig *c = &m->config;
    is_matrix(&m->embed, WEIGHT_BF16, c->n_vocab, c->dim);
    is_matrix(&m->lm_head, WEIGHT_BF16, c->n_vocab, c->dim);
    assert_true((m->lm_head.data == m->embed.data) == c->tied);
    for (int i = 0; i < c->n_layers; i++) {
        if (c->full_attention[i])
            check_attention(c, &m->layer[i].attention, type);
        else
            check_delta(c, &m->layer[i].delta, type);
        check_ffn(c, &m->layer[i].ffn, c->moe[i], type);
    }
    assert_int_equal(m->has_mtp, 1);
    is_matrix(&m->head.fc, WEIGHT_BF16, c->dim, 2 * c->dim);
    check_attention(c, &m->head.attention, type);
    check_ffn(c, &m->head.ffn, c->head_moe, type);
}

/*
 * Bytes of all matrices in the file that one pass over the trunk reads: not the embedding (unless
 * tied), not the head's, and no vector. Counts scales as f32, as they are kept.
 */
static size_t trunk_bytes(const char *dir, int tied)
{
    Safetensors *st = safetensors_open(dir, NULL);
    size_t n = 0;
    assert_non_null(st);
    for (int i = 0; i < safetensors_count(st); i++) {
        const Tensor *t = safetensors_at(st, i);
        int embed = strstr(t->name, "embed_tokens") != NULL;
        if (t->n_dims < 2 || strstr(t->name, "conv1d") || !strncmp(t->name, "mtp.", 4)) continue;
        if (!embed || tied) n += t->bytes;
    }
    safetensors_close(st);
    return n;
}

/* The golden files hold nothing that we do not use. Scales are bytes, but no parameters. */
static void check_sizes(const Model *m, const char *dir)
{
    Safetensors *st = safetensors_open(dir, NULL);
    int64_t n_params = 0, bytes = 0;
    assert_non_null(st);
    for (int i = 0; i < safetensors_count(st); i++) {
        const Tensor *t = safetensors_at(st, i);
        int64_t n = 1;
        for (int d = 0; d < t->n_dims; d++)
            n *= t->dim[d];
        bytes += (int64_t)t->bytes;
        if (!strstr(t->name, "scale_inv")) n_params += n;
    }
    assert_true(m->n_params == n_params);
    assert_true(m->file_bytes == bytes);
    safetensors_close(st);
}

static void test_golden(void **state)
{
    (void)state;
    static const char *const dirs[] = {GOLDEN "qwen35-dense",     GOLDEN "qwen35-dense-odd",
                                       GOLDEN "qwen35-dense-fp8", GOLDEN "qwen35-moe",
                                       GOLDEN "qwen3-next",       "models/demo"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        Model *m = open_ok(dirs[i]);
        check_shapes(m, m->config.quant == QUANT_FP8 ? WEIGHT_FP8 : WEIGHT_BF16);
        assert_int_equal(m->weight_bytes, trunk_bytes(dirs[i], m->config.tied));
        check_sizes(m, dirs[i]);
        assert_ptr_equal(m->backend, &backend);
        model_close(m);
    }
    model_close(NULL);
}

static float value(const Safetensors *st, const char *name, int i)
{
    const Tensor *t = safetensors_find(st, name);
    assert_non_null(t);
    return tensor_at(t, NULL, 1, i, 0);
}

/* Matrices are the file's bytes; vectors its numbers, with the "1 +" exactly where it belongs. */
static void test_values(void **state)
{
    (void)state;
    Model *m = open_ok(GOLDEN "qwen35-moe");
    Safetensors *st = safetensors_open(GOLDEN "qwen35-moe", NULL);
    const DeltaWeights *d = &m->layer[1].delta;
    const FfnWeights *f = &m->layer[3].ffn;
    const Tensor *gate_up = safetensors_find(st, L(3) "mlp.experts.gate_up_proj");
    const Tensor *down = safetensors_find(st, L(3) "mlp.experts.down_proj");
    const Tensor *qkv = safetensors_find(st, L(1) "linear_attn.in_proj_qkv.weight");
    size_t half = (size_t)32 * 96 * 2; /* bytes of one expert's gate, up or down */
    assert_memory_equal(d->qkv.data, qkv->data, qkv->bytes);
    for (size_t e = 0; e < 8; e++) {
        const unsigned char *expert = gate_up->data + e * 2 * half;
        assert_memory_equal(f->expert_gate[e].data, expert, half);
        assert_memory_equal(f->expert_up[e].data, expert + half, half);
        assert_memory_equal(f->expert_down[e].data, down->data + e * half, half);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(d->norm[i] == 1 + value(st, L(1) "input_layernorm.weight", i));
        assert_true(f->norm[i] == 1 + value(st, L(3) "post_attention_layernorm.weight", i));
        assert_true(m->final_norm[i] == 1 + value(st, "model.language_model.norm.weight", i));
        assert_true(m->layer[3].attention.q_norm[i] ==
                    1 + value(st, L(3) "self_attn.q_norm.weight", i));
        assert_true(m->layer[3].attention.k_norm[i] ==
                    1 + value(st, L(3) "self_attn.k_norm.weight", i));
        assert_true(m->head.embed_norm[i] == 1 + value(st, "mtp.pre_fc_norm_embedding.weight", i));
        assert_true(m->head.hidden_norm[i] == 1 + value(st, "mtp.pre_fc_norm_hidden.weight", i));
        assert_true(m->head.final_norm[i] == 1 + value(st, "mtp.norm.weight", i));
        assert_true(d->out_norm[i] == value(st, L(1) "linear_attn.norm.weight", i));
        assert_true(d->dt_bias[i] == value(st, L(1) "linear_attn.dt_bias", i));
        assert_true(d->a_coef[i] == -expf(value(st, L(1) "linear_attn.A_log", i)));
    }
    for (int i = 0; i < 256 * 4; i++)
        assert_true(d->conv_w[i] == value(st, L(1) "linear_attn.conv1d.weight", i));
    for (int i = 0; i < 8; i++)
        assert_true(fabs(m->inv_freq[i] - pow(1e6, -i / 8.0)) < 1e-6 * m->inv_freq[i]);
    safetensors_close(st);
    model_close(m);
}

static void test_fp8_values(void **state)
{
    (void)state;
    Model *m = open_ok(GOLDEN "qwen35-dense-fp8");
    Safetensors *st = safetensors_open(GOLDEN "qwen35-dense-fp8", NULL);
    const Weight *w = &m->layer[2].ffn.down;
    const Tensor *t = safetensors_find(st, L(2) "mlp.down_proj.weight");
    const Tensor *s = safetensors_find(st, L(2) "mlp.down_proj.weight_scale_inv");
    for (int r = 0; r < 256; r += 5)
        for (int c = 0; c < 384; c += 7)
            assert_true(weight_value(w, r, c) == tensor_at(t, s, 384, r, c));
    safetensors_close(st);
    model_close(m);
}

/* Every row of the four projections against the formula of the interleaved layout. */
static void check_next_rows(const Model *m, const char *dir, int layer)
{
    const ModelConfig *c = &m->config;
    const DeltaWeights *w = &m->layer[layer].delta;
    Safetensors *st = safetensors_open(dir, NULL);
    const Tensor *t[2], *s[2];
    static const char *const leaf[] = {"in_proj_qkvz", "in_proj_ba"};
    for (int i = 0; i < 2; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.linear_attn.%s.weight", layer, leaf[i]);
        t[i] = safetensors_find(st, name);
        snprintf(name, sizeof name, "model.layers.%d.linear_attn.%s.weight_scale_inv", layer,
                 leaf[i]);
        s[i] = safetensors_find(st, name);
    }
#define SAME(part, row, fused, source_row)                                                         \
    for (int col = 0; col < c->dim; col += 5)                                                      \
    assert_true(weight_value(&w->part, row, col) ==                                                \
                tensor_at(t[fused], s[fused], c->dim, source_row, col))
    int dk = c->d_k, dv = c->d_v, r = c->n_v_heads / c->n_k_heads, block = 2 * dk + 2 * r * dv;
    for (int h = 0; h < c->n_k_heads; h++) {
        for (int j = 0; j < dk; j++) {
            SAME(qkv, h * dk + j, 0, h * block + j);
            SAME(qkv, (c->n_k_heads + h) * dk + j, 0, h * block + dk + j);
        }
        for (int i = 0; i < r; i++) {
            int head = h * r + i;
            for (int j = 0; j < dv; j++) {
                SAME(qkv, 2 * c->n_k_heads * dk + head * dv + j, 0,
                     h * block + 2 * dk + i * dv + j);
                SAME(z, head * dv + j, 0, h * block + 2 * dk + r * dv + i * dv + j);
            }
            SAME(b, head, 1, h * 2 * r + i);
            SAME(a, head, 1, h * 2 * r + r + i);
        }
    }
#undef SAME
    safetensors_close(st);
}

static void put_random(Checkpoint *c, const char *name, const char *dtype, int d0, int d1)
{
    static unsigned seed = 7;
    CheckpointTensor *t = checkpoint_put(c, name, dtype, d0, d1, -1);
    for (size_t i = 0; i < t->bytes; i++)
        t->data[i] = (unsigned char)(rand_r(&seed) % 120);
    if (strcmp(dtype, "F32") != 0) return;
    for (size_t i = 0; i < t->bytes; i += 4) {
        float f = (float)(1 + rand_r(&seed) % 1000) / 1024;
        memcpy(t->data + i, &f, sizeof f);
    }
}

/* Qwen3-Next in FP8, with heads of d: 128 keeps blocks of 128 rows whole, 32 tears them. */
static void check_next_fp8(int d, WeightType expected)
{
    Checkpoint c;
    char text[16];
    const char *dir = scratch_dir("model");
    checkpoint_read(&c, GOLDEN "qwen3-next");
    for (int i = 0; i < 3; i++) {
        char name[128];
#define NAME(leaf)                                                                                 \
    (snprintf(name, sizeof name, "model.layers.%d.linear_attn.%s", i, leaf), (const char *)name)
        put_random(&c, NAME("in_proj_qkvz.weight"), "F8_E4M3", 12 * d, 96);
        put_random(&c, NAME("in_proj_qkvz.weight_scale_inv"), "F32", (12 * d + 127) / 128, 1);
        put_random(&c, NAME("in_proj_ba.weight"), "F8_E4M3", 8, 96);
        put_random(&c, NAME("in_proj_ba.weight_scale_inv"), "F32", 1, 1);
        put_random(&c, NAME("conv1d.weight"), "BF16", 8 * d, 4);
        put_random(&c, NAME("norm.weight"), "BF16", d, 1);
        put_random(&c, NAME("out_proj.weight"), "BF16", 96, 4 * d);
#undef NAME
    }
    checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
    snprintf(text, sizeof text, "%d", d);
    config_write(
        dir, "config.json", GOLDEN "qwen3-next/config.json",
        (const char *[]){"linear_key_head_dim", text, "linear_value_head_dim", text, NULL});
    Model *m = open_ok(dir);
    is_matrix(&m->layer[1].delta.qkv, expected, 8 * d, 96);
    is_matrix(&m->layer[1].delta.z, expected, 4 * d, 96);
    is_matrix(&m->layer[1].delta.a, WEIGHT_FP8, 4, 96); /* one block: nothing to tear */
    check_next_rows(m, dir, 1);
    model_close(m);
    checkpoint_free(&c);
}

static void test_next_rows(void **state)
{
    (void)state;
    Model *m = open_ok(GOLDEN "qwen3-next");
    for (int i = 0; i < 3; i++)
        check_next_rows(m, GOLDEN "qwen3-next", i);
    model_close(m);
    check_next_fp8(128, WEIGHT_FP8);
    check_next_fp8(32, WEIGHT_F32);
}

/*
 * Two matrices out of one in FP8 whose rows have several blocks: each keeps its scale, or is
 * multiplied by it where the rows come torn.
 */
static void check_split(const char *dir, int torn)
{
    enum { COLS = 300, ROWS = 512, FIRST = 384 };
    int map[ROWS];
    Error err = {0};
    Weight w[2];
    for (int i = 0; i < ROWS; i++)
        map[i] = ((int[]){2, 0, 3, 1}[i / 128] * 128 + i % 128 + torn) % ROWS;
    Owned own = {.backend = &backend};
    Loader l = {.own = &own, .dir = dir, .err = &err};
    const SplitPart part[2] = {{"y", map, FIRST, &w[0]}, {"z", map + FIRST, ROWS - FIRST, &w[1]}};
    if (loader_open(&l) || loader_split(&l, "x", COLS, part)) fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++)
        is_matrix(&w[i], torn ? WEIGHT_F32 : WEIGHT_FP8, part[i].n, COLS);
    const Tensor *t = safetensors_find(own.st, "x.weight"),
                 *s = safetensors_find(own.st, "x.weight_scale_inv");
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            assert_true(weight_value(&w[r >= FIRST], r % FIRST, c) ==
                        tensor_at(t, s, COLS, map[r], c));
    assert_int_equal(l.bytes, torn ? 4 * t->bytes : t->bytes + s->bytes);
    transfers_free(&l.transfers);
    owned_close(&own);
}

static void test_split_blocks(void **state)
{
    (void)state;
    Checkpoint c = {0};
    const char *dir = scratch_dir("model");
    put_random(&c, "x.weight", "F8_E4M3", 512, 300);
    put_random(&c, "x.weight_scale_inv", "F32", 4, 3);
    checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
    for (int torn = 0; torn < 2; torn++)
        check_split(dir, torn);
    checkpoint_free(&c);
}

/* Scales that are powers of two, in four bytes each or in the one of their exponent. */
static void test_power_of_two_scales(void **state)
{
    (void)state;
    static const char name[] = L(2) "mlp.down_proj.weight_scale_inv";
    static const unsigned char exponent[] = {127, 120, 1, 0, 254, 133}, nan = 255;
    float want[6], read;
    for (int i = 0; i < 2; i++) {
        Checkpoint c;
        checkpoint_read(&c, GOLDEN "qwen35-dense-fp8");
        CheckpointTensor *t = checkpoint_put(&c, name, i ? "F8_E8M0" : "F32", 2, 3, -1);
        for (int k = 0; k < 6; k++)
            want[k] = ldexpf(1, exponent[k] - 127);
        memcpy(t->data, i ? (const void *)exponent : want, t->bytes);
        Model *m =
            open_ok(checkpoint_model(&c, GOLDEN "qwen35-dense-fp8/config.json", NULL, NULL, 0));
        assert_memory_equal(m->layer[2].ffn.down.scale, want, sizeof want);
        model_close(m);
        checkpoint_free(&c);
    }
    unpack_floats(&(Tensor){.type = TENSOR_FP8_E8M0, .data = &nan, .bytes = 1}, &read);
    assert_true(isnan(read));
}

/* The checkpoint loads under these prefixes, with the shapes of the config. */
static void check_prefixes(const char *model, const char *const *renames)
{
    char path[256];
    Checkpoint c;
    snprintf(path, sizeof path, "%s/config.json", model);
    checkpoint_read(&c, model);
    for (; *renames; renames += 2)
        checkpoint_rename(&c, renames[0], renames[1]);
    Model *m = open_ok(checkpoint_model(&c, path, NULL, NULL, 0));
    check_shapes(m, WEIGHT_BF16);
    model_close(m);
    checkpoint_free(&c);
}

static void test_prefixes(void **state)
{
    (void)state;
    check_prefixes(GOLDEN "qwen35-dense",
                   (const char *[]){"model.language_model.", "model.", NULL});
    check_prefixes(GOLDEN "qwen35-moe",
                   (const char *[]){"model.language_model.", "language_model.model.", "lm_head.",
                                    "language_model.lm_head.", "mtp.", "language_model.mtp.",
                                    NULL});
    check_prefixes(GOLDEN "qwen3-next", (const char *[]){"mtp.", "model.mtp.", NULL});
    /* As transformers 5.4 saved it, and as other programs leave their own names before all. */
    check_prefixes(GOLDEN "qwen35-dense",
                   (const char *[]){"model.language_model.",
                                    "model.language_model.language_model.language_model.", NULL});
    check_prefixes(GOLDEN "qwen35-moe",
                   (const char *[]){"model.language_model.", "base_model.model.model.", "lm_head.",
                                    "base_model.model.lm_head.", "mtp.", "base_model.model.mtp.",
                                    NULL});
    check_prefixes(GOLDEN "qwen35-dense", (const char *[]){"model.language_model.", "", NULL});

    /* Other towers have such tensors, too: before the model's and behind them. */
    Checkpoint c;
    checkpoint_read(&c, GOLDEN "qwen35-moe");
    checkpoint_put(&c, "audio.embed_tokens.weight", "BF16", 8, 4, -1);
    checkpoint_put(&c, "audio.lm_head.weight", "BF16", 8, 4, -1);
    checkpoint_put(&c, "talker.embed_tokens.weight", "BF16", 8, 4, -1);
    checkpoint_put(&c, "talker.lm_head.weight", "BF16", 8, 4, -1);
    Model *m = open_ok(checkpoint_model(&c, GOLDEN "qwen35-moe/config.json", NULL, NULL, 0));
    check_shapes(m, WEIGHT_BF16);
    model_close(m);
    checkpoint_free(&c);
}

/* Forms that differ from the golden files but mean the same. */
static void test_forms(void **state)
{
    (void)state;
    Checkpoint c;
    checkpoint_read(&c, GOLDEN "qwen35-moe");
    CheckpointTensor *conv = checkpoint_get(&c, L(0) "linear_attn.conv1d.weight");
    conv->n_dims = 2;
    conv->dim[1] = 4;
    CheckpointTensor *gate = checkpoint_get(&c, L(0) "mlp.shared_expert_gate.weight");
    gate->n_dims = 1;
    gate->dim[0] = 96;
    CheckpointTensor *norm = checkpoint_get(&c, L(0) "input_layernorm.weight");
    norm->n_dims = 3;
    norm->dim[0] = norm->dim[2] = 1;
    norm->dim[1] = 96;
    CheckpointTensor *half = checkpoint_put(&c, L(0) "linear_attn.dt_bias", "F16", 4, -1, -1);
    static const uint16_t bits[] = {0x3c00, 0xc001, 0x0001, 0x7bff};
    memcpy(half->data, bits, sizeof bits);
    put_random(&c, L(0) "mlp.shared_expert.up_proj.weight", "F32", 48, 96);
    checkpoint_put(&c, "model.visual.merger.weight", "F16", 3, 5, -1);

    Model *m = open_ok(checkpoint_model(&c, GOLDEN "qwen35-moe/config.json", NULL, NULL, 0));
    const float *dt = m->layer[0].delta.dt_bias;
    assert_true(dt[0] == 1 && dt[1] == -2 - 1 / 512.0f && dt[2] == 0x1p-24f && dt[3] == 65504);
    assert_int_equal(m->layer[0].ffn.up.type, WEIGHT_F32);
    model_close(m);
    checkpoint_free(&c);
}

/* Every element of a misaligned file reads the same as in the aligned one. */
static void test_misaligned(void **state)
{
    (void)state;
    static const char *const models[] = {GOLDEN "qwen35-moe", GOLDEN "qwen3-next",
                                         GOLDEN "qwen35-dense-fp8"};
    for (int i = 0; i < 3; i++)
        for (int shift = 1; shift < 4; shift++) {
            char path[256];
            Checkpoint c;
            snprintf(path, sizeof path, "%s/config.json", models[i]);
            checkpoint_read(&c, models[i]);
            Model *a = open_ok(models[i]),
                  *b = open_ok(checkpoint_model(&c, path, NULL, NULL, shift));
            check_shapes(b, a->config.quant == QUANT_FP8 ? WEIGHT_FP8 : WEIGHT_BF16);
            assert_memory_equal(a->embed.data, b->embed.data,
                                (size_t)(a->embed.rows * weight_row_bytes(&a->embed)));
            const DeltaWeights *x = &a->layer[0].delta, *y = &b->layer[0].delta;
            assert_memory_equal(x->conv_w, y->conv_w, 256 * 4 * sizeof(float));
            assert_memory_equal(x->out_norm, y->out_norm, 32 * sizeof(float));
            for (int r = 0; r < x->qkv.rows; r += 3)
                assert_true(weight_value(&x->qkv, r, r % 96) == weight_value(&y->qkv, r, r % 96));
            model_close(a);
            model_close(b);
            checkpoint_free(&c);
        }
}

/* Of a golden model the MTP head's tensors, or all others. */
static void read_part(Checkpoint *c, const char *dir, int of_head)
{
    checkpoint_read(c, dir);
    for (int i = c->n - 1; i >= 0; i--)
        if ((strncmp(c->tensor[i].name, "mtp.", 4) == 0) != of_head)
            checkpoint_drop(c, c->tensor[i].name);
}

static void test_no_head(void **state)
{
    (void)state;
    Checkpoint c;
    read_part(&c, GOLDEN "qwen35-dense", 0);
    const char *dir = checkpoint_model(&c, GOLDEN "qwen35-dense/config.json", NULL, NULL, 0);
    Model *m = open_ok(dir);
    assert_int_equal(m->has_mtp, 0);
    assert_ptr_equal(m->lm_head.data, m->embed.data);
    model_close(m);
    checkpoint_free(&c);

    /* In a file of its own, which no index names. */
    read_part(&c, GOLDEN "qwen35-dense", 1);
    checkpoint_write(&c, scratch_path(dir, "model_mtp.safetensors"), 0, 1, 0);
    m = open_ok(dir);
    check_shapes(m, WEIGHT_BF16);
    model_close(m);
    checkpoint_free(&c);
}

/* All that was taken from a checkpoint, and where it lies, is the same. */
static void has_taken_alike(const Model *a, const Model *b)
{
    const Owned *x = a->owned, *y = b->owned;
    assert_int_equal(a->head_weight_bytes, b->head_weight_bytes);
    assert_int_equal(a->weight_bytes, b->weight_bytes);
    assert_int_equal(a->n_params, b->n_params);
    assert_int_equal(a->file_bytes, b->file_bytes);
    assert_int_equal(x->n_blocks, y->n_blocks);
    assert_int_equal(x->n_placed, y->n_placed);
    assert_int_equal(x->chunk.left, y->chunk.left);
    assert_int_equal(x->floats.left, y->floats.left);
}

/*
 * A head in a file of its own that lacks the last tensor: the model is what it is without that
 * file. Quantising makes copies on a host; a device has them all in a chunk of its memory.
 */
static void check_foreign_head(const ModelOptions *options, int is_host)
{
    Checkpoint c;
    Error err = {0};
    Backend be = backend;
    be.is_host = is_host;
    read_part(&c, GOLDEN "qwen35-dense", 0);
    const char *dir = checkpoint_model(&c, GOLDEN "qwen35-dense/config.json", NULL, NULL, 0);
    Model *without = model_open(dir, options, &be, &err);
    checkpoint_free(&c);
    read_part(&c, GOLDEN "qwen35-dense", 1);
    checkpoint_rename(&c, "mtp.layers.0.mlp.down_proj.weight",
                      "mtp.layers.0.mlp.down_proj.qweight");
    checkpoint_write(&c, scratch_path(dir, "mtp.safetensors"), 0, 1, 0);
    checkpoint_free(&c);
    Model *m = model_open(dir, options, &be, &err);
    if (!m || !without) fail_msg("%s", err.msg);
    assert_int_equal(m->has_mtp, 0);
    has_taken_alike(m, without);
    model_close(without);
    model_close(m);
}

static void test_foreign_head(void **state)
{
    (void)state;
    for (int is_host = 0; is_host < 2; is_host++) {
        check_foreign_head(NULL, is_host);
        check_foreign_head(&(ModelOptions){.quant = QUANT_FP8}, is_host);
    }
}

/* What the file has counts: a copy of the embedding is it, another matrix is used. */
static void test_tied_file_with_lm_head(void **state)
{
    (void)state;
    Checkpoint c;
    const char *config = GOLDEN "qwen35-dense/config.json";
    checkpoint_read(&c, GOLDEN "qwen35-dense");
    const CheckpointTensor *embed = checkpoint_get(&c, "model.language_model.embed_tokens.weight");
    int64_t rows = embed->dim[0], cols = embed->dim[1];
    CheckpointTensor *own = checkpoint_put(&c, "lm_head.weight", "BF16", rows, cols, -1);
    embed = checkpoint_get(&c, "model.language_model.embed_tokens.weight");
    memcpy(own->data, embed->data, embed->bytes);
    Model *m = open_ok(checkpoint_model(&c, config, NULL, NULL, 0));
    assert_ptr_equal(m->lm_head.data, m->embed.data);
    model_close(m);
    own->data[own->bytes - 2] ^= 1;
    m = open_ok(checkpoint_model(&c, config, NULL, NULL, 0));
    assert_ptr_not_equal(m->lm_head.data, m->embed.data);
    assert_memory_equal(m->lm_head.data, own->data, own->bytes);
    model_close(m);
    checkpoint_free(&c);
}

/* Vectors, and a device's copies, of all sizes: each has aligned memory of its own. */
static void test_memory(void **state)
{
    (void)state;
    enum { N_VECTORS = 200, MOST_FLOATS = 20000, N_COPIES = 24, MOST_BYTES = 9 << 20 };
    static unsigned char bytes[MOST_BYTES];
    const unsigned char *copy[N_COPIES];
    float *vector[N_VECTORS];
    Backend device = backend;
    Owned own = {.backend = &device};
    Loader l = {.own = &own};
    device.is_host = 0;
    for (int i = 0; i < N_VECTORS; i++) {
        int n = 1 + i * 1931 % MOST_FLOATS;
        vector[i] = loader_floats(&l, (size_t)n);
        assert_int_equal((uintptr_t)vector[i] % 64, 0);
        for (int k = 0; k < n; k++)
            vector[i][k] = (float)i;
    }
    for (int i = 0; i < N_COPIES; i++) {
        size_t n = 1 + (size_t)i * 1234567 % MOST_BYTES;
        memset(bytes, i, n);
        copy[i] = loader_place(&l, bytes, n);
        assert_int_equal((uintptr_t)copy[i] % 64, 0);
    }
    for (int i = 0; i < N_VECTORS; i++)
        for (int k = 0; k < 1 + i * 1931 % MOST_FLOATS; k++)
            assert_true(vector[i][k] == (float)i);
    for (int i = 0; i < N_COPIES; i++) {
        size_t n = 1 + (size_t)i * 1234567 % MOST_BYTES;
        assert_true(copy[i][0] == i && copy[i][n / 2] == i && copy[i][n - 1] == i);
    }
    owned_close(&own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_split_blocks),
        cmocka_unit_test(test_fp8_values),
        cmocka_unit_test(test_power_of_two_scales),
        cmocka_unit_test(test_next_rows),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_no_head),
        cmocka_unit_test(test_foreign_head),
        cmocka_unit_test(test_tied_file_with_lm_head),
        cmocka_unit_test(test_memory),
    };
    host_memory_fill(&backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
