/*
 * test_config.c: config.json and generation_config.json, true and false ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "engine/config.h"
#include "tests/checkpoint.h"

#define GOLDEN(name) "tests/data/golden/" name
static const char dense[] = GOLDEN("qwen35-dense/config.json");
static const char moe[] = GOLDEN("qwen35-moe/config.json");
static const char next[] = GOLDEN("qwen3-next/config.json");
static const char fp8[] = GOLDEN("qwen35-dense-fp8/config.json");

static void load_ok(ModelConfig *c, GenerationDefaults *g, const char *dir)
{
    Error err = {0};
    if (config_load(c, g, dir, &err)) fail_msg("%s: %s", dir, err.msg);
}

/* Loads `from` with up to four changes. */
static void load_changed(ModelConfig *c, const char *from, const char *const *changes)
{
    GenerationDefaults g;
    const char *dir = scratch_dir("config");
    config_write(dir, "config.json", from, changes);
    load_ok(c, &g, dir);
}

static void test_golden(void **state)
{
    (void)state;
    ModelConfig c;
    GenerationDefaults g;
    load_ok(&c, &g, GOLDEN("qwen35-dense"));
    assert_int_equal(c.family, MODEL_QWEN35);
    assert_string_equal(c.model_type, "qwen3_5");
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(c.n_full, 1);
    assert_int_equal(c.n_recurrent, 3);
    assert_int_equal(c.full_attention[3], 1);
    assert_int_equal(c.rope.n_rot, 16);
    assert_true(c.rope.theta == 1e6);
    assert_true(c.norm_eps == 1e-6f);
    assert_int_equal(c.n_channels, 256);
    assert_int_equal(c.tied, 1);
    assert_int_equal(c.n_mtp, 1);
    assert_int_equal(c.n_experts, 0);
    assert_int_equal(c.ctx_limit, 4096);
    assert_true(isnan(g.temperature) && isnan(g.top_p) && isnan(g.min_p) && isnan(g.repetition));
    assert_int_equal(g.top_k, -1);
    assert_int_equal(g.do_sample, -1);

    load_ok(&c, &g, GOLDEN("qwen35-dense-odd"));
    assert_int_equal(c.n_layers, 5);
    assert_int_equal(c.full_attention[2], 1);
    assert_int_equal(c.n_full, 1);
    assert_int_equal(c.rope.n_rot, 12);
    assert_int_equal(c.n_channels, 504);

    load_ok(&c, &g, GOLDEN("qwen35-dense-fp8"));
    assert_int_equal(c.quant, QUANT_FP8);
    assert_int_equal(c.tied, 0);

    load_ok(&c, &g, GOLDEN("qwen35-moe"));
    assert_string_equal(c.model_type, "qwen3_5_moe");
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.n_experts_used, 3);
    assert_int_equal(c.expert_dim, 32);
    assert_int_equal(c.shared_dim, 48);
    assert_int_equal(c.norm_topk, 1);
    assert_int_equal(c.moe[0] + c.moe[1] + c.moe[2] + c.moe[3] + c.head_moe, 5);
    assert_int_equal(c.ffn_dim, 0);

    load_ok(&c, &g, GOLDEN("qwen3-next"));
    assert_int_equal(c.family, MODEL_QWEN3_NEXT);
    assert_true(c.rope.theta == 1e7);
    assert_int_equal(c.full_attention[3], 1);
    assert_int_equal(c.n_full, 1);
    assert_int_equal(c.ffn_dim, 0); /* the file's 256 is used by no layer */
}

static void test_generation(void **state)
{
    (void)state;
    ModelConfig c;
    GenerationDefaults g;
    load_ok(&c, &g, "models/demo");
    assert_true(g.temperature == 0.7f && g.top_p == 0.8f);
    assert_int_equal(g.top_k, 20);
    assert_int_equal(g.do_sample, 1);
    assert_int_equal(g.max_tokens, -1);
    assert_true(isnan(g.min_p) && isnan(g.repetition));
    assert_int_equal(c.n_eos, 2); /* 4089 stands in both files */
    assert_int_equal(c.eos[0], 4089);
    assert_int_equal(c.eos[1], 4087);

    const char *dir = scratch_dir("config");
    config_write(dir, "config.json", dense, (const char *[]){"eos_token_id", "[7, 256, 8]", NULL});
    config_write(dir, "generation_config.json", NULL,
                 (const char *[]){"eos_token_id", "9", "min_p", "0.5", "repetition_penalty", "1.25",
                                  "do_sample", "false", "max_new_tokens", "2048", NULL});
    load_ok(&c, &g, dir);
    assert_int_equal(g.max_tokens, 2048);
    assert_int_equal(c.n_eos, 4);
    static const int eos[] = {256, 7, 8, 9};
    assert_memory_equal(c.eos, eos, sizeof eos);
    assert_true(g.min_p == 0.5f && g.repetition == 1.25f);
    assert_int_equal(g.do_sample, 0);
    assert_int_equal(c.n_eos_outside, 0);

    /* ids of the model that this one was made smaller from */
    config_write(dir, "config.json", dense,
                 (const char *[]){"eos_token_id", "[7, 320, -1]", "text_config.eos_token_id",
                                  "248044", NULL});
    config_write(dir, "generation_config.json", NULL,
                 (const char *[]){"eos_token_id", "[248046, 319]", NULL});
    load_ok(&c, &g, dir);
    static const int inside[] = {7, 319};
    assert_int_equal(c.n_eos, 2);
    assert_memory_equal(c.eos, inside, sizeof inside);
    assert_int_equal(c.n_eos_outside, 4);
}

/* All names of a family, flat and nested, and the keys' defaults. */
static void test_forms(void **state)
{
    (void)state;
    ModelConfig c;
    static const struct {
        const char *type;
        const char *family;
    } types[] = {{"\"qwen3_5_text\"", "qwen3_5"}, {"\"qwen3_5\"", "qwen3_5"}, {"null", "qwen3_5"}};
    for (size_t i = 0; i < 3; i++) {
        load_changed(&c, next,
                     (const char *[]){"model_type", types[i].type, "intermediate_size", "64",
                                      "architectures", "[\"Qwen3_5ForCausalLM\"]", NULL});
        assert_string_equal(c.model_type, types[i].family);
        assert_int_equal(c.ffn_dim, 64);
        assert_int_equal(c.n_full, 1);
    }
    load_changed(&c, next, (const char *[]){"model_type", "\"qwen3_5_moe_text\"", NULL});
    assert_string_equal(c.model_type, "qwen3_5_moe");

    load_changed(&c, dense, (const char *[]){"model_type", "", "architectures", "", NULL});
    assert_string_equal(c.model_type, "qwen3_5"); /* from text_config */

    load_changed(&c, next,
                 (const char *[]){"vocab_size",
                                  "",
                                  "head_dim",
                                  "",
                                  "linear_num_key_heads",
                                  "",
                                  "linear_num_value_heads",
                                  "",
                                  "linear_key_head_dim",
                                  "",
                                  "linear_value_head_dim",
                                  "",
                                  "linear_conv_kernel_dim",
                                  "",
                                  "rms_norm_eps",
                                  "",
                                  "full_attention_interval",
                                  "",
                                  "rope_theta",
                                  "",
                                  "partial_rotary_factor",
                                  "",
                                  "norm_topk_prob",
                                  "",
                                  "decoder_sparse_step",
                                  "",
                                  "mlp_only_layers",
                                  "",
                                  "hidden_act",
                                  "",
                                  "attention_bias",
                                  "",
                                  "max_position_embeddings",
                                  "",
                                  "tie_word_embeddings",
                                  "",
                                  NULL});
    assert_int_equal(c.n_vocab, 151936);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.n_k_heads, 16);
    assert_int_equal(c.n_v_heads, 32);
    assert_int_equal(c.d_k, 128);
    assert_int_equal(c.d_v, 128);
    assert_int_equal(c.n_channels, 8192);
    assert_int_equal(c.conv_width, 4);
    assert_true(c.norm_eps == 1e-6f);
    assert_int_equal(c.rope.n_rot, 64);
    assert_true(c.rope.theta == 1e4);
    assert_true(c.n_full == 1 && c.full_attention[3]);
    assert_int_equal(c.norm_topk, 1);
    assert_int_equal(c.ctx_limit, 32768);
    assert_int_equal(c.tied, 0);
}

static void test_choices(void **state)
{
    (void)state;
    ModelConfig c;
    /* The list wins over the interval; without it the interval counts. */
    load_changed(&c, dense, (const char *[]){"text_config.full_attention_interval", "2", NULL});
    assert_int_equal(c.n_full, 1);
    load_changed(&c, dense,
                 (const char *[]){"text_config.full_attention_interval", "2",
                                  "text_config.layer_types", "", NULL});
    assert_int_equal(c.n_full, 2);
    assert_int_equal(c.full_attention[1], 1);

    /* One tie flag is enough. */
    load_changed(&c, dense, (const char *[]){"text_config.tie_word_embeddings", "false", NULL});
    assert_int_equal(c.tied, 1);
    load_changed(&c, dense, (const char *[]){"tie_word_embeddings", "false", NULL});
    assert_int_equal(c.tied, 1);
    load_changed(&c, dense,
                 (const char *[]){"text_config.tie_word_embeddings", "false", "tie_word_embeddings",
                                  "false", NULL});
    assert_int_equal(c.tied, 0);

    load_changed(&c, next,
                 (const char *[]){"decoder_sparse_step", "2", "mlp_only_layers", "[3]", NULL});
    static const unsigned char mixtures[] = {0, 1, 0, 0};
    assert_memory_equal(c.moe, mixtures, 4);
    assert_int_equal(c.ffn_dim, 256);
    assert_int_equal(c.head_moe, 1);
    load_changed(&c, next,
                 (const char *[]){"decoder_sparse_step", "2.0", "mlp_only_layers", "[3.0]",
                                  "eos_token_id", "[7.0]", "linear_num_key_heads", "4.0", NULL});
    assert_memory_equal(c.moe, mixtures, 4);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.n_k_heads, 4);
    load_changed(
        &c, fp8,
        (const char *[]){"quantization_config.weight_block_size", "[128.0, 1.28e2]", NULL});
    assert_int_equal(c.quant, QUANT_FP8);
    static const char *const methods[] = {
        [QUANT_Q8] = "\"offshoot_q8\"", [QUANT_Q4] = "\"offshoot_q4\""};
    for (QuantType quant = QUANT_Q8; quant <= QUANT_Q4; quant++) {
        load_changed(&c, dense,
                     (const char *[]){"quantization_config.quant_method", methods[quant], NULL});
        assert_int_equal(c.quant, quant);
    }
    load_changed(&c, next,
                 (const char *[]){"norm_topk_prob", "false", "per_layer_config", "{}", NULL});
    assert_int_equal(c.norm_topk, 0);

    load_changed(&c, next,
                 (const char *[]){"hidden_act", "\"swish\"", /* another name of silu */
                                  "rope_scaling", "{\"type\": \"default\"}", "rope_theta", "5e6",
                                  "partial_rotary_factor", "0.5", NULL});
    assert_true(c.rope.theta == 5e6);
    assert_int_equal(c.rope.n_rot, 32);

    /* rope_scaling stands in the place of rope_parameters, unless it is empty. */
    static const char *const scaling[] = {
        "{}", "{\"rope_type\": \"default\", \"rope_theta\": 500}",
        "{\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}"};
    static const double theta[] = {1e6, 500, 1e4};
    load_changed(&c, dense, (const char *[]){NULL});
    int n_rot = c.rope.n_rot;
    for (int i = 0; i < 3; i++) {
        load_changed(&c, dense, (const char *[]){"text_config.rope_scaling", scaling[i], NULL});
        assert_true(c.rope.theta == theta[i]);
        assert_int_equal(c.rope.n_rot, i == 2 ? c.head_dim / 2 : i == 1 ? c.head_dim / 4 : n_rot);
    }
}

typedef struct {
    const char *from, *key, *value, *says;
} Lie;

static const Lie lies[] = {
    {dense, "model_type", "\"llama\"", "'model_type' is 'llama'"},
    {dense, "model_type", "7", "'model_type' must be a string"},
    {dense, "architectures", "[\"Qwen3_5TextForSequenceClassification\"]",
     "'architectures' is 'Qwen3_5TextForSequenceClassification', which writes no text"},
    {next, "architectures", "[\"Qwen3NextForQuestionAnswering\"]", "which writes no text"},
    {dense, "architectures", "[\"Qwen3_5ForRewardModel\"]", "which writes no text"},
    {dense, "text_config", "[]", "'text_config' must be an object"},
    {dense, "text_config.vocab_size", "0", "'vocab_size' is 0"},
    {dense, "text_config.vocab_size", "99999999999", "'vocab_size' is 99999999999"},
    {dense, "text_config.hidden_size", "\"128\"", "'hidden_size' must be an integer"},
    {dense, "text_config.hidden_size", "128.5", "'hidden_size' must be an integer"},
    {dense, "text_config.hidden_size", "-128", "'hidden_size' is -128"},
    {dense, "text_config.hidden_size", "", "'hidden_size' is missing"},
    {dense, "text_config.hidden_size", "1000000", "'hidden_size' is 1000000"},
    {dense, "text_config.num_hidden_layers", "0", "'num_hidden_layers' is 0"},
    {dense, "text_config.num_hidden_layers", "5", "'layer_types' has 4 entries, expected 5"},
    {dense, "text_config.num_hidden_layers", "100000", "'num_hidden_layers' is 100000"},
    {dense, "text_config.max_position_embeddings", "0", "'max_position_embeddings' is 0"},
    {dense, "text_config.mtp_num_hidden_layers", "-1", "'mtp_num_hidden_layers' is -1"},
    {dense, "text_config.rms_norm_eps", "0", "'rms_norm_eps' is 0"},
    {dense, "text_config.rms_norm_eps", "\"x\"", "'rms_norm_eps' must be a number"},
    {dense, "text_config.layer_types", "[]", "'layer_types' has 0 entries"},
    {dense, "text_config.layer_types", "{}", "'layer_types' must be a list"},
    {dense, "text_config.layer_types", "[\"linear_attention\", \"mamba\", \"a\", \"b\"]",
     "'layer_types' entry 1 is 'mamba'"},
    {dense, "text_config.layer_types", "[1, 2, 3, 4]", "'layer_types' entry 0 is 'not a string'"},
    {next, "full_attention_interval", "0", "'full_attention_interval' is 0"},
    {dense, "text_config.num_attention_heads", "3", "'num_attention_heads' (3) is no multiple"},
    {dense, "text_config.num_key_value_heads", "0", "'num_key_value_heads' is 0"},
    {dense, "text_config.head_dim", "0", "'head_dim' is 0"},
    {dense, "text_config.head_dim", "516", "'head_dim' is 516, must be 2 to 512"},
    {dense, "text_config.num_attention_heads", "512", "'num_attention_heads' x 'head_dim'"},
    {dense, "text_config.attention_bias", "true", "'attention_bias' is true"},
    {dense, "text_config.attention_bias", "0", "'attention_bias' must be true or false"},
    {dense, "text_config.qkv_bias", "true", "'qkv_bias' is true"},
    {dense, "text_config.attn_output_gate", "false", "'attn_output_gate' is false"},
    {dense, "text_config.is_causal", "false", "'is_causal' is false"},
    {next, "dual_chunk_attention_config", "{\"chunk_size\": 64}",
     "'dual_chunk_attention_config' is not supported"},
    {next, "layer_scale", "true", "'layer_scale' is true"},
    {moe, "text_config.per_layer_config", "{\"0\": {\"num_experts_per_tok\": 1}}",
     "'per_layer_config' is not supported"},
    {moe, "text_config.per_layer_config", "[]", "'per_layer_config' is not supported"},
    {dense, "text_config.hidden_act", "\"gelu\"", "'hidden_act' is 'gelu'"},
    {dense, "text_config.hidden_act", "{}", "'hidden_act' must be a string"},
    {dense, "text_config.output_gate_type", "\"sigmoid\"", "'output_gate_type' is 'sigmoid'"},
    {dense, "text_config.mtp_use_dedicated_embeddings", "true", "'mtp_use_dedicated_embeddings'"},
    {dense, "text_config.rope_parameters", "3", "'rope_parameters' must be an object"},
    {dense, "text_config.rope_parameters.rope_type", "\"dynamic\"", "'rope_type' is 'dynamic'"},
    {dense, "text_config.rope_parameters.rope_theta", "-1", "'rope_theta' is -1"},
    {dense, "text_config.rope_parameters.rope_theta", "1e300", "'rope_theta' is 1e+300"},
    {dense, "text_config.rope_parameters.partial_rotary_factor", "0.3", "gives 19 rotary dims"},
    {dense, "text_config.rope_parameters.partial_rotary_factor", "0", "gives 0 rotary dims"},
    {dense, "text_config.rope_parameters.partial_rotary_factor", "2", "'partial_rotary_factor'"},
    {next, "rope_scaling", "{\"type\": \"longrope\", \"factor\": 4}", "'type' is 'longrope'"},
    {next, "rope_scaling", "{\"rope_type\": \"linear\"}", "'factor' is missing"},
    {next, "rope_scaling", "4", "'rope_scaling' must be an object"},
    {dense, "text_config.rope_parameters", "{\"full_attention\": {\"rope_theta\": 300}}",
     "'rope_parameters' by type of layer is not supported"},
    {dense, "text_config.linear_num_value_heads", "3", "'linear_num_value_heads' (3)"},
    {dense, "text_config.linear_num_key_heads", "0", "'linear_num_key_heads' is 0"},
    {dense, "text_config.linear_key_head_dim", "-5", "'linear_key_head_dim' is -5"},
    {dense, "text_config.linear_num_value_heads", "1024", "'linear_num_value_heads' x"},
    {dense, "text_config.linear_num_value_heads", "256", "(256) is more than 64 times"},
    {dense, "text_config.linear_conv_kernel_dim", "1", "'linear_conv_kernel_dim' is 1"},
    {dense, "text_config.linear_conv_kernel_dim", "9", "'linear_conv_kernel_dim' is 9"},
    {dense, "text_config.linear_key_head_dim", "257", "'linear_key_head_dim' is 257"},
    {dense, "text_config.intermediate_size", "", "'intermediate_size' is missing"},
    {dense, "text_config.intermediate_size", "1e9", "'intermediate_size' is 1000000000"},
    {moe, "text_config.num_experts", "", "'num_experts' is missing"},
    {moe, "text_config.num_experts", "1025", "'num_experts' is 1025"},
    {moe, "text_config.num_experts_per_tok", "9", "'num_experts_per_tok' is 9, must be 1 to 8"},
    {moe, "text_config.moe_intermediate_size", "0", "'moe_intermediate_size' is 0"},
    {moe, "text_config.shared_expert_intermediate_size", "0", "'shared_expert_intermediate_size'"},
    {next, "decoder_sparse_step", "0", "'decoder_sparse_step' is 0"},
    {next, "mlp_only_layers", "[4]", "'mlp_only_layers' must hold indices"},
    {next, "mlp_only_layers", "[-1]", "'mlp_only_layers' must hold indices"},
    {next, "mlp_only_layers", "5", "'mlp_only_layers' must be a list"},
    {next, "norm_topk_prob", "1", "'norm_topk_prob' must be true or false"},
    {dense, "text_config.eos_token_id", "\"x\"", "'eos_token_id' must be an integer"},
    {dense, "text_config.eos_token_id", "[[1]]", "'eos_token_id' must be an integer"},
    {dense, "eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8]", "more than 8 different ids"},
    {dense, "tie_word_embeddings", "\"yes\"", "'tie_word_embeddings' must be true or false"},
    {fp8, "quantization_config", "[]", "'quantization_config' must be an object"},
    {fp8, "quantization_config.quant_method", "\"gptq\"", "'bits' is missing"},
    {fp8, "quantization_config.quant_method", "4", "'quant_method' must be a string"},
    {fp8, "quantization_config.quant_method", "", "has no 'quant_method'"},
    {fp8, "quantization_config.fmt", "\"e5m2\"", "'fmt' is 'e5m2'"},
    {fp8, "quantization_config.weight_block_size", "[64, 128]", "'weight_block_size'"},
    {fp8, "quantization_config.weight_block_size", "[128, 64]", "'weight_block_size'"},
    {fp8, "quantization_config.weight_block_size", "[128, 128, 1]", "'weight_block_size'"},
};

static void expect_error(const char *dir, const char *file, const char *says)
{
    ModelConfig c;
    GenerationDefaults g;
    Error err = {0};
    if (!config_load(&c, &g, dir, &err)) fail_msg("loaded, expected: %s", says);
    if (!strstr(err.msg, says) || !strstr(err.msg, file))
        fail_msg("'%s' should say \"%s\" and name %s", err.msg, says, file);
}

static void test_lies(void **state)
{
    (void)state;
    const char *dir = scratch_dir("config");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        config_write(dir, "config.json", lies[i].from,
                     (const char *[]){lies[i].key, lies[i].value, NULL});
        expect_error(dir, "config.json", lies[i].says);
    }
    config_write(dir, "config.json", dense,
                 (const char *[]){"text_config.vocab_size", "131072", "text_config.hidden_size",
                                  "16384", NULL});
    expect_error(dir, "config.json", "'vocab_size' x 'hidden_size'");
    config_write(dir, "config.json", dense,
                 (const char *[]){"text_config.linear_num_key_heads", "64",
                                  "text_config.linear_num_value_heads", "64",
                                  "text_config.linear_key_head_dim", "256", NULL});
    expect_error(dir, "config.json", "'linear_num_key_heads' x 'linear_key_head_dim'");
    config_write(dir, "config.json", dense,
                 (const char *[]){"model_type", "", "text_config.model_type", "", "architectures",
                                  "[]", NULL});
    expect_error(dir, "config.json", "'model_type' is missing");
    config_write(dir, "config.json", dense,
                 (const char *[]){"model_type", "", "text_config.model_type", "", "architectures",
                                  "[\"GPT2LMHeadModel\"]", NULL});
    expect_error(dir, "config.json", "'architectures' is 'GPT2LMHeadModel'");
}

static void test_generation_lies(void **state)
{
    (void)state;
    static const Lie wrong[] = {
        {NULL, "temperature", "-1", "'temperature' is -1"},
        {NULL, "temperature", "[]", "'temperature' must be a number"},
        {NULL, "top_p", "1.5", "'top_p' is 1.5"},
        {NULL, "min_p", "-0.5", "'min_p' is -0.5"},
        {NULL, "top_k", "-2", "'top_k' is -2"},
        {NULL, "repetition_penalty", "0", "'repetition_penalty' is 0"},
        {NULL, "max_new_tokens", "0", "'max_new_tokens' is 0"},
        {NULL, "max_new_tokens", "\"all\"", "'max_new_tokens' must be an integer"},
        {NULL, "do_sample", "1", "'do_sample' must be true or false"},
        {NULL, "eos_token_id", "[1, null]", "'eos_token_id' must be an integer"},
    };
    const char *dir = scratch_dir("config");
    config_write(dir, "config.json", dense, (const char *[]){NULL});
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        config_write(dir, "generation_config.json", NULL,
                     (const char *[]){wrong[i].key, wrong[i].value, NULL});
        expect_error(dir, "generation_config.json", wrong[i].says);
    }
    scratch_write(scratch_path(dir, "generation_config.json"), "7x", 2);
    expect_error(dir, "generation_config.json", "");
    unlink(scratch_path(dir, "generation_config.json"));
    assert_int_equal(symlink("/nowhere", scratch_path(dir, "generation_config.json")), 0);
    expect_error(dir, "generation_config.json", "cannot open");
}

/* Writes config.json: that of dense with more in front of its first key and behind its last. */
static const char *write_around(const char *before, const char *after)
{
    const char *dir = scratch_dir("config");
    json_t *root = json_load_file(dense, 0, NULL);
    char *text = json_dumps(root, 0);
    StrBuf all = {0};
    strbuf_printf(&all, "{%s, %.*s%s}", before, (int)strlen(text) - 2, text + 1, after);
    scratch_write(scratch_path(dir, "config.json"), all.data, all.len);
    strbuf_free(&all);
    free(text);
    json_decref(root);
    return dir;
}

/* What Python's json writes and reads, though the standard has none of it. */
static void test_python_json(void **state)
{
    (void)state;
    static const char *const more[] = {
        "\"x\": NaN",
        "\"x\": [0.0, Infinity, -Infinity]",
        "\"model_max_length\": 1000000000000000019884624838656",
        "\"x\": [9223372036854775808, -9223372036854775809, 9223372036854775807]",
        "\"say \\\"NaN\": \"Infinity \\\\\", \"y\": NaN",
        "\"\": NaN, \"x\": [\"\", NaN]"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        ModelConfig c;
        GenerationDefaults g;
        load_ok(&c, &g, write_around(more[i], ""));
        StrBuf behind = {0};
        strbuf_printf(&behind, ", %s", more[i]);
        load_ok(&c, &g, write_around("\"a\": 1", behind.data));
        strbuf_free(&behind);
    }

    /* The last of two values counts. */
    ModelConfig c;
    GenerationDefaults g;
    load_ok(&c, &g,
            write_around("\"eos_token_id\": 7",
                         ", \"eos_token_id\": [8], \"eos_token_id\": 9, \"x\": NaN"));
    assert_int_equal(c.eos[c.n_eos - 1], 9);
    for (int i = 0; i < c.n_eos; i++)
        assert_true(c.eos[i] != 7 && c.eos[i] != 8);

    /* A number that nothing holds is named where it is asked for. */
    expect_error(write_around("\"a\": 1", ", \"eos_token_id\": 1000000000000000019884624838656"),
                 "config.json", "'eos_token_id'");
    expect_error(write_around("\"a\": 1", ", \"text_config\": {\"vocab_size\": -1e30}"),
                 "config.json", "'vocab_size' is -1e+30, must be 1 to");

    Error err = {0};
    static const char text[] =
        "{\"a\": [NaN, \"a NaN\", 9223372036854775808, -9223372036854775808, "
        "9223372036854775807, -Infinity, 1.5]}";
    json_t *root = json_read_text(text, sizeof text - 1, 0, "x", &err);
    if (!root) fail_msg("%s", err.msg);
    const json_t *a = json_object_get(root, "a");
    assert_true(json_is_null(json_array_get(a, 0)));
    assert_string_equal(json_string_value(json_array_get(a, 1)), "a NaN");
    assert_true(json_real_value(json_array_get(a, 2)) == 0x1p63);
    assert_true(json_integer_value(json_array_get(a, 3)) == INT64_MIN);
    assert_true(json_integer_value(json_array_get(a, 4)) == INT64_MAX);
    assert_true(json_is_null(json_array_get(a, 5)));
    assert_true(json_real_value(json_array_get(a, 6)) == 1.5);
    json_decref(root);
}

static json_t *load_digits(const char *text, json_error_t *je)
{
    return json_load_digits(text, strlen(text), JSON_ALLOW_NUL, je);
}

static void expect_digits(const json_t *v, const char *want)
{
    if (want && json_digits(v))
        assert_string_equal(json_digits(v), want);
    else
        assert_ptr_equal(json_digits(v), want);
}

/* An integer of more digits than any real has is the largest of its sign. */
static void test_largest_reals(void **state)
{
    (void)state;
    Error err = {0};
    StrBuf text = {0};
    for (int sign = 1; sign >= -1; sign -= 2) {
        text.len = 0;
        strbuf_printf(&text, "[%s", sign < 0 ? "-" : "");
        for (int i = 0; i < 309; i++)
            strbuf_puts(&text, "9");
        strbuf_puts(&text, "]");
        json_t *root = json_read_text(text.data, text.len, 0, "x", &err);
        if (!root) fail_msg("%s", err.msg);
        assert_true(json_real_value(json_array_get(root, 0)) == sign * DBL_MAX);
        json_decref(root);
    }
    strbuf_free(&text);
}

/* Integers beyond 64 bits can keep their digits; nothing else does. */
static void test_digits(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": [9223372036854775808, -9223372036854775809, "
                               "9223372036854775807, -9223372036854775808, "
                               "\"9223372036854775808\", 9223372036854775808.0, 1E20, "
                               "[1, 9223372036854775808]], \"b\": 1, "
                               "\"b\": {\"c\": 18446744073709551615}, \"d\": \"\\u0000\"}";
    json_error_t je;
    json_t *root = load_digits(text, &je);
    if (!root) fail_msg("%s", je.text);
    const json_t *a = json_object_get(root, "a"), *b = json_object_get(root, "b");
    json_t *rounded = json_rounded(root), *same = json_rounded(rounded), *list = json_rounded(a),
           *object = json_rounded(b);
    expect_digits(json_array_get(a, 0), "9223372036854775808");
    expect_digits(json_array_get(a, 1), "-9223372036854775809");
    for (size_t i = 2; i < 7; i++)
        expect_digits(json_array_get(a, i), NULL);
    expect_digits(json_object_get(b, "c"), "18446744073709551615");

    a = json_object_get(rounded, "a");
    assert_true(json_real_value(json_array_get(a, 0)) == 0x1p63);
    assert_true(json_real_value(json_array_get(a, 1)) == -0x1p63);
    assert_true(json_is_string(json_array_get(a, 4)));
    assert_true(json_is_real(json_array_get(json_array_get(a, 7), 1)));
    assert_true(json_is_real(json_object_get(json_object_get(rounded, "b"), "c")));
    assert_true(json_is_real(json_array_get(list, 0)));
    assert_true(json_is_real(json_object_get(object, "c")));
    assert_ptr_equal(same, rounded);
    json_decref(object);
    json_decref(list);
    json_decref(same);
    json_decref(rounded);
    json_decref(root);
}

/* As Python has it; and what is wrong stays so where such an integer is read again. */
static void test_long_integers(void **state)
{
    (void)state;
    enum { MOST = 4300 };
    static const char *const wrong[] = {"[1E400]",
                                        "[18446744073709551615, 1E400]",
                                        "[18446744073709551615x]",
                                        "[18446744073709551615, 018446744073709551615]",
                                        "{18446744073709551615: 1}",
                                        "[NaN]",
                                        "[18446744073709551615, NaN]"};
    char text[MOST + 8] = "[-";
    json_error_t je;
    memset(text + 2, '9', MOST);
    memcpy(text + 2 + MOST, "]", 2);
    json_t *root = load_digits(text, &je);
    assert_int_equal(strlen(json_digits(json_array_get(root, 0))), 1 + MOST);
    json_round(root, NULL);
    assert_true(json_real_value(json_array_get(root, 0)) == -DBL_MAX);
    json_decref(root);
    memcpy(text + 2 + MOST, "9]", 3);
    assert_null(load_digits(text, &je));
    for (int n = 308; n <= 309; n++) { /* the last that a real holds, the first beyond */
        memcpy(text + 2 + n, "]", 2);
        root = load_digits(text, &je);
        assert_non_null(root);
        json_round(root, NULL);
        assert_true(json_real_value(json_array_get(root, 0)) == (n == 308 ? -1e308 : -DBL_MAX));
        json_decref(root);
        text[2 + n] = '9';
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_null(load_digits(wrong[i], &je));
}

/* Files that are no JSON object at all. */
static void test_broken_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "config.json"}, {"[]", "must hold a JSON object"},
        {"{", "line 1"},     {"{\"a\": NaN,\n\"b\": nan}", "line 2"},
        {"{}x", "line 1"},   {"{\"a\": \"NaN", "line 1"},
    };
    const char *dir = scratch_dir("config");
    expect_error(dir, "config.json", "cannot open");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scratch_write(scratch_path(dir, "config.json"), wrong[i].text, strlen(wrong[i].text));
        expect_error(dir, "config.json", wrong[i].says);
    }
    enum { DEEP = 100000 };
    char *deep = mem_alloc(DEEP, 1);
    memset(deep, '[', DEEP);
    scratch_write(scratch_path(dir, "config.json"), deep, DEEP);
    expect_error(dir, "config.json", "");
    mem_free(deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_forms),         cmocka_unit_test(test_choices),
        cmocka_unit_test(test_lies),          cmocka_unit_test(test_generation_lies),
        cmocka_unit_test(test_python_json),   cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_digits),        cmocka_unit_test(test_long_integers),
        cmocka_unit_test(test_largest_reals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
