/*
 * quant_config.c: see quant_config.h. Sources: compressed-tensors 0.17 (config/base.py,
 * quantization/quant_args.py), GPTQModel 7.7, AutoAWQ 0.2.9, AutoRound 0.16 (inference/backend.py),
 * ModelOpt 0.47 (export/quant_utils.py), transformers 5.19's FP8 and FBGEMM.
 */
#include "engine/quant_config.h"

#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "kernels/weight.h"

typedef struct {
    QuantConfig *q;
    const json_t *of;
    const char *where;
    Error *err;
} Reader;

static const struct {
    const char *name, *method;
} quants[N_QUANT_TYPES] = {
    {"none", NULL}, {"fp8", "fp8"}, {"q8", "offshoot_q8"}, {"q4", "offshoot_q4"}, {"int", NULL}};

const char *quant_name(QuantType type)
{
    return quants[type].name;
}

const char *quant_method(QuantType type)
{
    return quants[type].method;
}

static int bad(const Reader *r, const char *key, const char *what)
{
    return error_set(r->err, ERR_INPUT, "%s: '%s' %s", r->where, key, what);
}

static int unsupported(const Reader *r, const char *key, const char *is)
{
    return error_set(r->err, ERR_INPUT, "%s: '%s' is '%.40s', which is not supported", r->where,
                     key, is);
}

/* The text at a key, `fallback` where there is none; NULL and an Error if it is something else. */
static const char *get_text(const Reader *r, const json_t *of, const char *key,
                            const char *fallback)
{
    const json_t *v = json_field(of, key);
    if (!v) return fallback;
    if (!json_is_string(v)) bad(r, key, "must be a string");
    return json_string_value(v);
}

/* Which of the n words the text at a key is, in letters of any case; -1 and an Error: none. */
static int which(const Reader *r, const json_t *of, const char *key, const char *fallback,
                 const char *const *word, int n)
{
    const char *s = get_text(r, of, key, fallback);
    if (!s) return -1;
    for (int i = 0; i < n; i++)
        if (!strcasecmp(s, word[i])) return i;
    return unsupported(r, key, s);
}

#define WHICH(r, of, key, fallback, ...)                                                           \
    which(r, of, key, fallback, (const char *const[]){__VA_ARGS__},                                \
          (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

static int is_128(const json_t *v)
{
    json_int_t i;
    return json_whole(v, &i) && i == FP8_BLOCK;
}

/* A block of FP8, which must be ours. */
static int need_block(const Reader *r, const json_t *of, const char *key)
{
    const json_t *block = json_field(of, key);
    if (json_array_size(block) == 2 && is_128(json_array_get(block, 0)) &&
        is_128(json_array_get(block, 1)))
        return 0;
    return bad(r, key, "is not [128, 128], the only supported FP8 block");
}

static int read_ours(const Reader *r)
{
    const char *method = json_string_value(json_field(r->of, "quant_method"));
    r->q->is = !strcmp(method, quant_method(QUANT_Q8)) ? QUANT_Q8 : QUANT_Q4;
    return 0;
}

/* Scales of blocks, or, without a block, one of a matrix. */
static int read_fp8(const Reader *r)
{
    static const char block[] = "weight_block_size";
    if (WHICH(r, r->of, "fmt", "e4m3", "e4m3") < 0) return -1;
    r->q->is = QUANT_FP8;
    return json_field(r->of, block) ? need_block(r, r->of, block) : 0;
}

/* FP8 with a scale for each row. */
static int read_rows_fp8(const Reader *r)
{
    (void)r;
    return 0;
}

/* 2, 4 or 8: whole numbers of codes are a word. Single matrices may have others. */
static int read_bits(const Reader *r, int fallback)
{
    int bits;
    if (json_get_int(r->of, r->where, "bits", 2, 8, fallback, &bits, r->err)) return -1;
    if (32 % bits) return bad(r, "bits", "is not 2, 4 or 8");
    r->q->is_packed = 1;
    return 0;
}

static int read_gptq(const Reader *r)
{
    int format = WHICH(r, r->of, "checkpoint_format", "gptq", "gptq", "gptq_v2");
    if (format < 0) return -1;
    r->q->zeros = format == 0 ? ZEROS_LOWER : ZEROS_AS_THEY_ARE;
    return read_bits(r, 0);
}

static int read_awq(const Reader *r)
{
    if (WHICH(r, r->of, "version", "gemm", "gemm") < 0) return -1;
    return read_bits(r, 4);
}

/*
 * Of integers, as GPTQ or AWQ have them, or of small floats, as others do. The format may name a
 * kernel, too: "auto_round:auto_gptq:exllamav2".
 */
static int read_auto_round(const Reader *r)
{
    static const char key[] = "packing_format";
    const char *format = get_text(r, r->of, key, "auto_round:auto_gptq");
    if (!format) return -1;
    if (strncmp(format, "auto_round", 10) != 0 || strstr(format, "fake"))
        return unsupported(r, key, format);
    if (strstr(format, "fp8") || strstr(format, "llm_compressor")) return 0;
    int is_first = strstr(format, "auto_gptq") || strstr(format, ":gptq");
    if (strstr(format, "gptqmodel")) is_first = 0;
    r->q->zeros = is_first ? ZEROS_LOWER : ZEROS_AS_THEY_ARE;
    return WHICH(r, r->of, "data_type", "int", "int") < 0 ? -1 : read_bits(r, 0);
}

static int read_modelopt(const Reader *r)
{
    enum { FP4 = 2, FP8 = 5 }; /* algorithms before this one */
    int algo = WHICH(r, r->of, "quant_algo", "", "NVFP4", "W4A16_NVFP4", "FP8", "FP8_PB_WO",
                     "FP8_BLOCK_SCALES", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "MIXED_PRECISION");
    if (algo < 0) return -1;
    if (algo < FP4)
        r->q->is_packed = 1;
    else if (algo < FP8)
        r->q->is = QUANT_FP8;
    return 0;
}

/* What weights of a group of compressed-tensors are. */
static int read_group(const Reader *r, const json_t *weights, QuantConfig *q)
{
    int bits;
    int type = WHICH(r, weights, "type", "int", "int", "float");
    int strategy = WHICH(r, weights, "strategy", "tensor", "tensor", "block", "channel", "group",
                         "tensor_group");
    if (type < 0 || strategy < 0 ||
        json_get_int(weights, r->where, "num_bits", 1, 8, 8, &bits, r->err))
        return -1;
    if (type == 0 && bits == 7) return bad(r, "num_bits", "is 7, which is not supported");
    if (strategy == 1 && need_block(r, weights, "block_structure")) return -1;
    if (type == 1 && bits == 8 && strategy < 2) q->is = QUANT_FP8;
    q->is_packed = type == 0 || bits < 8;
    return 0;
}

/* FP8 if all groups are. */
static int read_compressed_tensors(const Reader *r)
{
    const json_t *groups = json_field(r->of, "config_groups");
    QuantConfig *q = r->q;
    int all_fp8 = 1;
    if (WHICH(r, r->of, "format", "dense", "dense", "pack-quantized", "int-quantized",
              "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
              "mxfp8-quantized", "mixed-precision") < 0)
        return -1;
    if (WHICH(r, json_field(r->of, "sparsity_config"), "format", "dense", "dense") < 0) return -1;
    if (json_object_size(json_field(json_field(r->of, "transform_config"), "config_groups")))
        return bad(r, "transform_config", "is not supported: activations would be rotated, too");
    if (!groups) return 0;
    if (!json_is_object(groups)) return bad(r, "config_groups", "must be an object");
    for (void *i = json_object_iter((json_t *)groups); i;
         i = json_object_iter_next((json_t *)groups, i)) {
        QuantConfig of = {.is = QUANT_NONE};
        const json_t *weights = json_field(json_object_iter_value(i), "weights");
        if (!weights) continue; /* activations alone */
        if (read_group(r, weights, &of)) return -1;
        all_fp8 = all_fp8 && of.is == QUANT_FP8;
        q->is_packed |= of.is_packed;
        q->is = QUANT_FP8;
    }
    if (!all_fp8) q->is = QUANT_NONE;
    return 0;
}

int quant_config_read(QuantConfig *q, const json_t *value, const char *where, Error *err)
{
    static const struct {
        const char *name;
        int (*read)(const Reader *r);
    } methods[] = {
        {"fp8", read_fp8},
        {"compressed-tensors", read_compressed_tensors},
        {"gptq", read_gptq},
        {"awq", read_awq},
        {"auto-round", read_auto_round},
        {"intel/auto-round", read_auto_round},
        {"modelopt", read_modelopt},
        {"fbgemm_fp8", read_rows_fp8},
        {"offshoot_q8", read_ours},
        {"offshoot_q4", read_ours},
    };
    static const char key[] = "quant_method";
    const Reader r = {q, value, where, err};
    if (!json_is_object(value)) return bad(&r, "quantization_config", "must be an object");
    if (!json_field(value, key)) return bad(&r, "quantization_config", "has no 'quant_method'");
    const char *method = get_text(&r, value, key, NULL);
    if (!method) return -1;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (!strcmp(method, methods[i].name)) return methods[i].read(&r);
    return error_set(err, ERR_INPUT,
                     "%s: 'quant_method' is '%.40s', supported are fp8, compressed-tensors, gptq, "
                     "awq, auto-round, modelopt and fbgemm_fp8",
                     where, method);
}
