/* test_model_errors.c: checkpoints that are no model: one clear line each. */
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
#include "kernels/host_memory.h"
#include "tests/checkpoint.h"

#define GOLDEN  "tests/data/golden/"
#define L(n)    "model.language_model.layers." #n "."
#define NEXT(n) "model.layers." #n "."

static Backend backend; /* memory, and no operation */

static void expect_error(const char *dir, const char *says)
{
    Error err = {0};
    Model *m = model_open(dir, NULL, &backend, &err);
    if (m) fail_msg("loaded, expected: %s", says);
    if (!strstr(err.msg, says)) fail_msg("'%s' should say \"%s\"", err.msg, says);
}

/* One tensor each: dropped (dtype NULL), or replaced by zeros of another type or shape. */
static const struct {
    const char *model, *name, *dtype;
    int d0, d1, d2;
    const char *says;
} lies[] = {
    {"qwen35-dense", "model.language_model.embed_tokens.weight", NULL, 0, 0, 0,
     "tensor 'embed_tokens.weight' is missing"},
    {"qwen35-dense", "model.language_model.embed_tokens.weight", "BF16", 319, 128, -1,
     "tensor 'model.language_model.embed_tokens.weight' is 319 x 128, expected 320 x 128"},
    {"qwen35-dense", "model.language_model.embed_tokens.weight", "I16", 320, 128, -1,
     "is of type I16, expected BF16, F16, F32 or F8_E4M3"},
    {"qwen35-dense", "lm_head.weight", "BF16", 320, 127, -1,
     "tensor 'lm_head.weight' is 320 x 127, expected 320 x 128"},
    {"qwen35-dense", "model.language_model.norm.weight", "BF16", 127, -1, -1,
     "tensor 'model.language_model.norm.weight' is 127, expected 128"},
    {"qwen35-dense", "model.language_model.norm.weight", "BF16", -1, -1, -1,
     "tensor 'model.language_model.norm.weight' is a scalar, expected 128"},
    {"qwen35-dense", "model.language_model.norm.weight", "F8_E4M3", 128, -1, -1,
     "is of type F8_E4M3, expected F32, BF16 or F16"},
    {"qwen35-dense", L(2) "input_layernorm.weight", NULL, 0, 0, 0,
     "tensor '" L(2) "input_layernorm.weight' is missing, expected 128"},
    {"qwen35-dense", L(3) "self_attn.q_proj.weight", "BF16", 256, 128, -1,
     "tensor '" L(3) "self_attn.q_proj.weight' is 256 x 128, expected 512 x 128"},
    {"qwen35-dense", L(3) "self_attn.o_proj.weight", NULL, 0, 0, 0, "expected 128 x 256"},
    {"qwen35-dense", L(0) "linear_attn.in_proj_qkv.weight", NULL, 0, 0, 0,
     "tensor '" L(0) "linear_attn.in_proj_qkv.weight' is missing, expected 256 x 128"},
    {"qwen35-dense", L(0) "linear_attn.conv1d.weight", "BF16", 256, 4, 2,
     "tensor '" L(0) "linear_attn.conv1d.weight' is 256 x 4 x 2, expected 256 x 4"},
    {"qwen35-dense", L(0) "linear_attn.conv1d.weight", "BF16", 256, 4, 1,
     "tensor '" L(0) "linear_attn.conv1d.weight' has MLX's layout"},
    {"qwen35-dense", L(0) "linear_attn.A_log", "BF16", 5, -1, -1, "is 5, expected 4"},
    {"qwen35-dense", L(0) "mlp.up_proj.weight", NULL, 0, 0, 0, "mlp.up_proj.weight' is missing"},
    /* As other programs lay 8 and 4 bits out, whose config does not say so. */
    {"qwen35-dense", L(0) "mlp.up_proj.weight", "I8", 256, 128, -1,
     "is of type I8, expected BF16, F16, F32 or F8_E4M3"},
    {"qwen35-dense", L(0) "mlp.up_proj.weight", "U8", 256, 64, -1,
     "is 256 x 64, expected 256 x 128"},
    {"qwen35-dense", "mtp.fc.weight", "BF16", 128, 128, -1,
     "tensor 'mtp.fc.weight' is 128 x 128, expected 128 x 256"},
    {"qwen35-dense", "mtp.fc.weight", NULL, 0, 0, 0, "tensor 'mtp.fc.weight' is missing"},
    {"qwen35-dense", "mtp.norm.weight", NULL, 0, 0, 0, "tensor 'mtp.norm.weight' is missing"},
    {"qwen35-dense", "mtp.layers.0.mlp.down_proj.weight", NULL, 0, 0, 0,
     "tensor 'mtp.layers.0.mlp.down_proj.weight' is missing"},
    {"qwen35-moe", "lm_head.weight", NULL, 0, 0, 0, "tensor 'lm_head.weight' is missing"},
    {"qwen35-moe", L(1) "mlp.gate.weight", NULL, 0, 0, 0, "mlp.gate.weight' is missing"},
    {"qwen35-moe", L(1) "mlp.shared_expert_gate.weight", "BF16", 2, 96, -1,
     "is 2 x 96, expected 1 x 96"},
    {"qwen35-moe", L(1) "mlp.experts.gate_up_proj", "BF16", 8, 96, 64,
     "gate_up_proj' is 8 x 96 x 64, expected 8 x 64 x 96"},
    {"qwen35-moe", L(1) "mlp.experts.gate_up_proj", "F8_E4M3", 8, 64, 96,
     "tensor '" L(1) "mlp.experts.gate_up_proj_scale_inv' is missing, expected 8 x 1 x 1"},
    {"qwen35-moe", L(1) "mlp.experts.gate_up_proj", "F8_E8M0", 8, 64, 96,
     "is of type F8_E8M0, expected BF16, F16, F32 or F8_E4M3"},
    {"qwen35-moe", L(1) "mlp.experts.gate_up_proj", NULL, 0, 0, 0,
     "tensor '" L(1) "mlp.experts.0.gate_proj.weight' is missing"},
    {"qwen35-moe", L(1) "mlp.experts.down_proj", NULL, 0, 0, 0, "experts.down_proj' is missing"},
    {"qwen35-moe", "mtp.layers.0.mlp.gate.weight", NULL, 0, 0, 0, "'mtp.layers.0.mlp.gate.weight'"},
    {"qwen3-next", NEXT(2) "mlp.experts.7.down_proj.weight", NULL, 0, 0, 0,
     "tensor '" NEXT(2) "mlp.experts.7.down_proj.weight' is missing, expected 96 x 32"},
    {"qwen3-next", NEXT(0) "linear_attn.in_proj_qkvz.weight", "BF16", 256, 96, -1,
     "in_proj_qkvz.weight' is 256 x 96, expected 384 x 96"},
    {"qwen3-next", NEXT(0) "linear_attn.in_proj_ba.weight", NULL, 0, 0, 0,
     "in_proj_ba.weight' is missing, expected 8 x 96"},
    {"qwen3-next", NEXT(0) "linear_attn.in_proj_qkvz.weight", "F8_E4M3", 384, 96, -1,
     "in_proj_qkvz.weight_scale_inv' is missing, expected 3 x 1"},
    {"qwen35-dense-fp8", L(1) "mlp.gate_proj.weight_scale_inv", NULL, 0, 0, 0,
     "tensor '" L(1) "mlp.gate_proj.weight_scale_inv' is missing, expected 3 x 2"},
    {"qwen35-dense-fp8", L(1) "mlp.gate_proj.weight_scale_inv", "F32", 2, 3, -1,
     "mlp.gate_proj.weight_scale_inv' is 2 x 3, expected 3 x 2"},
    {"qwen35-dense-fp8", L(1) "mlp.gate_proj.weight_scale_inv", "F8_E4M3", 3, 2, -1,
     "mlp.gate_proj.weight_scale_inv' is of type F8_E4M3"},
};

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char path[256];
        Checkpoint c;
        snprintf(path, sizeof path, GOLDEN "%s", lies[i].model);
        checkpoint_read(&c, path);
        if (!lies[i].dtype)
            checkpoint_drop(&c, lies[i].name);
        else
            checkpoint_put(&c, lies[i].name, lies[i].dtype, lies[i].d0, lies[i].d1, lies[i].d2);
        snprintf(path, sizeof path, GOLDEN "%s/config.json", lies[i].model);
        expect_error(checkpoint_model(&c, path, NULL, NULL, 0), lies[i].says);
        checkpoint_free(&c);
    }
}

static void test_other_errors(void **state)
{
    (void)state;
    Checkpoint c;
    checkpoint_read(&c, GOLDEN "qwen35-dense");
    const char *config = GOLDEN "qwen35-dense/config.json";
    expect_error(checkpoint_model(&c, config, "text_config.hidden_size", "0", 0),
                 "'hidden_size' is 0");
    expect_error(checkpoint_model(&c, config, "text_config.hidden_size", "256", 0),
                 "is 320 x 128, expected 320 x 256");
    Checkpoint untied;
    checkpoint_read(&untied, GOLDEN "qwen35-moe");
    checkpoint_drop(&untied, "lm_head.weight");
    expect_error(checkpoint_model(&untied, GOLDEN "qwen35-moe/config.json", NULL, NULL, 0),
                 "tensor 'lm_head.weight' is missing");
    checkpoint_free(&untied);
    expect_error(checkpoint_model(&c, config, "text_config.num_hidden_layers", "3", 0),
                 "'layer_types'");
    checkpoint_put(&c, "model.language_model.layers.0.mlp.up_proj.lora_A.weight", "F32", 2, 2, -1);
    expect_error(checkpoint_model(&c, config, NULL, NULL, 0), "lora_A.weight' is an adapter's");
    checkpoint_drop(&c, "model.language_model.layers.0.mlp.up_proj.lora_A.weight");
    checkpoint_rename(&c, "model.language_model.embed_tokens.", "transformer.wte.");
    expect_error(checkpoint_model(&c, config, NULL, NULL, 0),
                 "embed_tokens.weight' is missing, under any");
    checkpoint_free(&c);

    const char *dir = scratch_dir("model-errors");
    expect_error(dir, "config.json");
    config_write(dir, "config.json", config, (const char *[]){NULL});
    expect_error(dir, "neither model.safetensors nor model.safetensors.index.json");
    expect_error("build/tests/no such folder", "cannot open");

    /* An FP8 embedding has its scales and is still refused: no kernel looks up such rows. */
    checkpoint_read(&c, GOLDEN "qwen35-dense");
    checkpoint_put(&c, "model.language_model.embed_tokens.weight", "F8_E4M3", 320, 128, -1);
    checkpoint_put(&c, "model.language_model.embed_tokens.weight_scale_inv", "F32", 3, 1, -1);
    expect_error(checkpoint_model(&c, config, NULL, NULL, 0),
                 "embed_tokens.weight' is of type F8_E4M3, expected BF16, F16 or F32");
    checkpoint_free(&c);
}

/* A backend that cannot take such long heads says so before anything is loaded. */
static void test_long_heads(void **state)
{
    (void)state;
    Error err = {0};
    Backend *be = backend_ref_open(512);
    be->max_head_dim = 64;
    Model *m = model_open(GOLDEN "qwen35-dense", NULL, be, &err);
    assert_non_null(m);
    be->max_head_dim = m->config.head_dim - 1;
    model_close(m);
    assert_null(model_open(GOLDEN "qwen35-dense", NULL, be, &err));
    assert_string_equal(err.msg, "the model's 'head_dim' is 64, this GPU has shared memory for 63: "
                                 "use --device cpu");
    be->close(be);
}

/* Flipped bits anywhere in the header of a whole model: an error or a model, never a crash. */
static void test_flipped(void **state)
{
    (void)state;
    enum { ROUNDS = 300, MAX_BYTES = 4 << 20 };
    unsigned seed = 3;
    int n_loaded = 0;
    size_t size = 0;
    const char *dir = scratch_dir("model-errors"), *path = scratch_path(dir, "model.safetensors");
    config_write(dir, "config.json", GOLDEN "qwen3-next/config.json", (const char *[]){NULL});
    char *own_path = mem_strdup(path);
    FILE *f = fopen(GOLDEN "qwen3-next/model.safetensors", "rb");
    assert_non_null(f);
    unsigned char *bytes = mem_alloc(MAX_BYTES, 1);
    size = fread(bytes, 1, MAX_BYTES, f);
    fclose(f);
    size_t header = bytes[0] + 256u * bytes[1] + 65536u * bytes[2] + 8;
    assert_true(header < size);
    scratch_write(own_path, bytes, size);
    f = fopen(own_path, "r+b");
    assert_non_null(f);
    for (int round = 0; round < ROUNDS; round++) {
        long place = (long)((size_t)rand_r(&seed) % header);
        int bit = 1 << rand_r(&seed) % 8;
        Error err = {0};
        fseek(f, place, SEEK_SET);
        fputc(bytes[place] ^ bit, f);
        fflush(f);
        Model *m = model_open(dir, NULL, &backend, &err);
        if (!m && !*err.msg) fail_msg("round %d failed without a message", round);
        n_loaded += m != NULL;
        model_close(m);
        fseek(f, place, SEEK_SET);
        fputc(bytes[place], f);
    }
    fclose(f);
    assert_true(n_loaded < ROUNDS);
    mem_free(bytes);
    mem_free(own_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_other_errors),
        cmocka_unit_test(test_long_heads),
        cmocka_unit_test(test_flipped),
    };
    host_memory_fill(&backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
