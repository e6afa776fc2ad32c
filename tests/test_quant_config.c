/*
 * test_quant_config.c: what is read of a quantization_config, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "engine/quant_config.h"

/* In single quotes, as all texts here: JSON's double ones. */
static int read_text(const char *text, QuantConfig *q, Error *err)
{
    char json[512];
    snprintf(json, sizeof json, "%s", text);
    for (char *c = json; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    if (!v) fail_msg("no JSON: %s", json);
    *q = (QuantConfig){.is = QUANT_NONE};
    int failed = quant_config_read(q, v, "config.json", err);
    json_decref(v);
    return failed;
}

#define CT_WITH(what) "{'quant_method': 'compressed-tensors', " what "}"
#define CT_WEIGHTS(w) CT_WITH("'config_groups': {'a': {'weights': {" w "}}}")
#define CT(groups)                                                                                 \
    "{'quant_method': 'compressed-tensors', 'format': 'mixed-precision', 'config_groups': "        \
    "{" groups "}}"
#define INT4     "'a': {'weights': {'type': 'int', 'num_bits': 4, 'strategy': 'group'}}"
#define INT8     "'b': {'weights': {'type': 'int', 'num_bits': 8, 'strategy': 'channel'}}"
#define FP4      "'c': {'weights': {'type': 'float', 'num_bits': 4, 'strategy': 'tensor_group'}}"
#define FP8_ROWS "'d': {'weights': {'type': 'float', 'num_bits': 8, 'strategy': 'channel'}}"
#define FP8_ONE  "'e': {'weights': {'type': 'float', 'num_bits': 8, 'strategy': 'tensor'}}"
#define FP8_BLOCKS                                                                                 \
    "'f': {'weights': {'type': 'float', 'num_bits': 8, 'strategy': 'block',"                       \
    " 'block_structure': [128, 128]}}"
#define FP4_ONE    "'h': {'weights': {'type': 'float', 'num_bits': 4, 'strategy': 'tensor'}}"
#define INT1       "'i': {'weights': {'type': 'int', 'num_bits': 1, 'strategy': 'group'}}"
#define NO_WEIGHTS "'g': {'weights': null, 'output_activations': {}}"
#define ROUND      "{'quant_method': 'auto-round', 'bits': 4, 'packing_format': 'auto_round"

static void test_methods(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        QuantConfig is;
    } cases[] = {
        {"{'quant_method': 'fp8', 'fmt': 'e4m3', 'weight_block_size': [128, 128]}",
         {QUANT_FP8, 0, 0}},
        {"{'quant_method': 'fp8', 'weight_block_size': null}", {QUANT_FP8, 0, 0}},
        {"{'quant_method': 'fbgemm_fp8'}", {QUANT_NONE, 0, 0}},
        {"{'quant_method': 'offshoot_q8'}", {QUANT_Q8, 0, 0}},
        {"{'quant_method': 'offshoot_q4'}", {QUANT_Q4, 0, 0}},
        {"{'quant_method': 'gptq', 'bits': 4}", {QUANT_NONE, 1, ZEROS_LOWER}},
        {"{'quant_method': 'gptq', 'bits': 2, 'checkpoint_format': 'gptq'}",
         {QUANT_NONE, 1, ZEROS_LOWER}},
        {"{'quant_method': 'gptq', 'bits': 8, 'checkpoint_format': 'gptq_v2'}",
         {QUANT_NONE, 1, ZEROS_AS_THEY_ARE}},
        {"{'quant_method': 'awq', 'version': 'gemm'}", {QUANT_NONE, 1, 0}},
        {"{'quant_method': 'awq'}", {QUANT_NONE, 1, 0}},
        {"{'quant_method': 'auto-round', 'bits': 8}", {QUANT_NONE, 1, ZEROS_LOWER}},
        {"{'quant_method': 'intel/auto-round', 'bits': 8}", {QUANT_NONE, 1, ZEROS_LOWER}},
        {ROUND ":auto_gptq'}", {QUANT_NONE, 1, ZEROS_LOWER}},
        {ROUND ":auto_gptq:exllamav2'}", {QUANT_NONE, 1, ZEROS_LOWER}},
        {ROUND ":gptq:exllamav2'}", {QUANT_NONE, 1, ZEROS_LOWER}},
        {ROUND ":exllamav2'}", {QUANT_NONE, 1, ZEROS_AS_THEY_ARE}},
        {ROUND ":gptqmodel'}", {QUANT_NONE, 1, ZEROS_AS_THEY_ARE}},
        {ROUND "'}", {QUANT_NONE, 1, ZEROS_AS_THEY_ARE}},
        {ROUND ":auto_awq'}", {QUANT_NONE, 1, ZEROS_AS_THEY_ARE}},
        {ROUND ":llm_compressor', 'data_type': 'nv_fp'}", {QUANT_NONE, 0, 0}},
        {ROUND ":fp8_static', 'data_type': 'fp'}", {QUANT_NONE, 0, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'NVFP4'}", {QUANT_NONE, 1, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'W4A16_NVFP4'}", {QUANT_NONE, 1, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'FP8'}", {QUANT_FP8, 0, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'fp8_pb_wo'}", {QUANT_FP8, 0, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'FP8_BLOCK_SCALES'}", {QUANT_FP8, 0, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'FP8_PER_CHANNEL_PER_TOKEN'}",
         {QUANT_NONE, 0, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'MXFP8'}", {QUANT_NONE, 0, 0}},
        {"{'quant_method': 'modelopt', 'quant_algo': 'MIXED_PRECISION'}", {QUANT_NONE, 0, 0}},
        {CT(INT4), {QUANT_NONE, 1, 0}},
        {CT(INT4 "," INT8), {QUANT_NONE, 1, 0}},
        {CT(FP4), {QUANT_NONE, 1, 0}},
        {CT(INT4 "," FP8_ROWS), {QUANT_NONE, 1, 0}},
        {CT(INT4 "," FP8_ONE), {QUANT_NONE, 1, 0}},
        {CT(FP8_ROWS), {QUANT_NONE, 0, 0}},
        {CT(FP8_ONE "," NO_WEIGHTS), {QUANT_FP8, 0, 0}},
        {CT(FP8_ONE "," FP8_BLOCKS), {QUANT_FP8, 0, 0}},
        {CT(FP8_BLOCKS "," FP8_ROWS), {QUANT_NONE, 0, 0}},
        {CT(FP8_BLOCKS "," INT8), {QUANT_NONE, 1, 0}},
        {CT(NO_WEIGHTS), {QUANT_NONE, 0, 0}},
        {CT(INT1), {QUANT_NONE, 1, 0}},
        {CT(FP4_ONE), {QUANT_NONE, 1, 0}},
        {CT("'a': {'weights': {}}"), {QUANT_NONE, 1, 0}}, /* integers of 8 bits, a scale for all */
        {CT("'a': {'weights': {'type': 'float'}}"), {QUANT_FP8, 0, 0}},
        {CT_WITH("'sparsity_config': {}, 'transform_config': {'config_groups': {}}"),
         {QUANT_NONE, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        QuantConfig q;
        Error err = {0};
        const QuantConfig *is = &cases[i].is;
        if (read_text(cases[i].text, &q, &err)) fail_msg("%s: %s", cases[i].text, err.msg);
        if (q.is != is->is || q.is_packed != is->is_packed || q.zeros != is->zeros)
            fail_msg("%s: is %d packed %d zeros %d", cases[i].text, q.is, q.is_packed, q.zeros);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"4", "'quantization_config' must be an object"},
        {"{}", "has no 'quant_method'"},
        {"{'quant_method': 4}", "'quant_method' must be a string"},
        {"{'quant_method': 'bitsandbytes'}", "'quant_method' is 'bitsandbytes', supported are fp8"},
        {"{'quant_method': 'fp8', 'fmt': 'e5m2'}", "'fmt' is 'e5m2'"},
        {"{'quant_method': 'fp8', 'weight_block_size': [128]}",
         "'weight_block_size' is not [128, 128]"},
        {"{'quant_method': 'fp8', 'weight_block_size': [64, 128]}", "is not [128, 128]"},
        {"{'quant_method': 'fp8', 'weight_block_size': [128, 64]}", "is not [128, 128]"},
        {"{'quant_method': 'fp8', 'weight_block_size': [128, 128, 128]}", "is not [128, 128]"},
        {"{'quant_method': 'fp8', 'weight_block_size': 128}", "is not [128, 128]"},
        {"{'quant_method': 'gptq'}", "'bits' is missing"},
        {"{'quant_method': 'gptq', 'bits': 3}", "'bits' is not 2, 4 or 8"},
        {"{'quant_method': 'gptq', 'bits': 16}", "'bits' is 16"},
        {"{'quant_method': 'gptq', 'bits': 1}", "'bits' is 1"},
        {"{'quant_method': 'gptq', 'bits': 4, 'checkpoint_format': 'marlin'}", "is 'marlin'"},
        {"{'quant_method': 'gptq', 'bits': 4, 'checkpoint_format': 2}", "must be a string"},
        {"{'quant_method': 'awq', 'version': 'gemv'}", "'version' is 'gemv'"},
        {"{'quant_method': 'auto-round', 'bits': 4, 'packing_format': 'gguf'}", "is 'gguf'"},
        {"{'quant_method': 'auto-round', 'bits': 4, 'packing_format': 'auto_gptq'}",
         "'packing_format' is 'auto_gptq'"},
        {"{'quant_method': 'auto-round', 'bits': 4, 'packing_format': 4}", "must be a string"},
        {"{'quant_method': 'auto-round'}", "'bits' is missing"},
        {ROUND ":fake'}", "'packing_format' is 'auto_round:fake'"},
        {ROUND "', 'data_type': 'fp'}", "'data_type' is 'fp'"},
        {"{'quant_method': 'modelopt'}", "'quant_algo' is ''"},
        {"{'quant_method': 'modelopt', 'quant_algo': 'W4A8_AWQ'}", "'quant_algo' is 'W4A8_AWQ'"},
        {CT_WITH("'format': 'marlin-24'"), "'format' is 'marlin-24'"},
        {CT_WITH("'sparsity_config': {'format': 'sparse-24'}"), "'format' is 'sparse-24'"},
        {CT_WITH("'transform_config': {'config_groups': {'u': {}}}"), "'transform_config' is not"},
        {CT_WITH("'config_groups': []"), "'config_groups' must be an object"},
        {CT_WEIGHTS("'num_bits': 7"), "'num_bits' is 7"},
        {CT_WEIGHTS("'num_bits': 0"), "'num_bits' is 0"},
        {CT_WEIGHTS("'num_bits': 9"), "'num_bits' is 9"},
        {CT_WEIGHTS("'type': 'complex'"), "'type' is 'complex'"},
        {CT_WEIGHTS("'strategy': 'token'"), "'strategy' is 'token'"},
        {CT_WEIGHTS("'strategy': 'block', 'block_structure': [64, 64]"),
         "'block_structure' is not"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        QuantConfig q;
        Error err = {0};
        if (!read_text(cases[i].text, &q, &err)) fail_msg("read: %s", cases[i].text);
        if (err.code != ERR_INPUT || !strstr(err.msg, cases[i].says) ||
            !strstr(err.msg, "config.json"))
            fail_msg("'%s' should say \"%s\"", err.msg, cases[i].says);
    }
}

/* All formats whose tensors are looked for; what they are is seen by the groups. */
static void test_formats(void **state)
{
    (void)state;
    static const char *const name[] = {
        "dense",           "pack-quantized",       "int-quantized",        "float-quantized",
        "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
        "mixed-precision"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char text[128];
        QuantConfig q;
        Error err = {0};
        snprintf(text, sizeof text, CT_WITH("'format': '%s'"), name[i]);
        if (read_text(text, &q, &err)) fail_msg("%s", err.msg);
        assert_int_equal(q.is, QUANT_NONE);
        assert_int_equal(q.is_packed, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("quant_config", tests, NULL, NULL);
}
