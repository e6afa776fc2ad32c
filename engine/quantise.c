/* quantise.c: see quantise.h. */
#include "engine/quantise.h"

#include <assert.h>
#include <string.h>

#include "base/thread.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"

enum { INFINITE = 0x7f800000 /* the bits of infinity; those of a NaN are larger */ };

WeightType quantise_to(QuantType quant, const char *leaf)
{
    static const WeightType types[N_QUANT_TYPES] = {WEIGHT_NONE, WEIGHT_FP8, WEIGHT_INT8,
                                                    WEIGHT_INT4};
    static const struct {
        const char *leaf;
        WeightType types[N_QUANT_TYPES];
    } others[] = {
        {"mlp.gate", {WEIGHT_NONE}},
        {"mlp.shared_expert_gate", {WEIGHT_NONE}},
        {"linear_attn.in_proj_a", {WEIGHT_NONE}},
        {"linear_attn.in_proj_b", {WEIGHT_NONE}},
        {"linear_attn.in_proj_ba", {WEIGHT_NONE}},
        {"linear_attn.conv1d", {WEIGHT_NONE}},
        {"embed_tokens", {[QUANT_Q8] = WEIGHT_INT8, [QUANT_Q4] = WEIGHT_INT8}},
        {"lm_head", {[QUANT_Q8] = WEIGHT_INT8, [QUANT_Q4] = WEIGHT_INT8}},
        {"self_attn.v_proj",
         {[QUANT_FP8] = WEIGHT_FP8, [QUANT_Q8] = WEIGHT_INT8, [QUANT_Q4] = WEIGHT_INT8}},
        {"linear_attn.out_proj",
         {[QUANT_FP8] = WEIGHT_FP8, [QUANT_Q8] = WEIGHT_INT8, [QUANT_Q4] = WEIGHT_INT8}},
        {"fc", {[QUANT_Q8] = WEIGHT_INT8, [QUANT_Q4] = WEIGHT_INT4}},
    };
    if (quant == QUANT_INT) quant = QUANT_Q8;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(leaf, others[i].leaf)) return others[i].types[quant];
    return types[quant];
}

typedef struct {
    const unsigned char *data;
    uint8_t *code;
    float *scale;
    WeightType type;
    int rows, cols;
    int failed[THREAD_PARTS]; /* of a part of the blocks' rows */
} Matrix;

static int least(int a, int b)
{
    return a < b ? a : b;
}

/*
 * n elements of row r from column c on, and zeros up to the block's end: loops over all columns of
 * a block become vectors.
 */
static void widen(const Matrix *p, int r, int c, int n, float x[FP8_BLOCK])
{
    size_t at = (size_t)r * (size_t)p->cols + (size_t)c;
    if (p->type == WEIGHT_F32) {
        memset(x + n, 0, (size_t)(FP8_BLOCK - n) * sizeof *x);
        memcpy(x, p->data + 4 * at, (size_t)n * sizeof *x);
        return;
    }
    uint16_t half[FP8_BLOCK] = {0};
    memcpy(half, p->data + 2 * at, (size_t)n * sizeof *half);
    for (int i = 0; i < FP8_BLOCK; i++)
        x[i] = bf16_to_float(half[i]);
}

/* Rows [r, r_end), n columns from c on: one block, one scale. */
static int quantise_block(const Matrix *p, int r, int r_end, int c, int n, float *scale)
{
    float x[FP8_BLOCK], largest;
    int32_t bits[FP8_BLOCK], most = 0;
    for (int i = r; i < r_end; i++) {
        widen(p, i, c, n, x);
        memcpy(bits, x, sizeof bits);
        for (int k = 0; k < FP8_BLOCK; k++) { /* magnitudes are in the order of their bits */
            int32_t size = bits[k] & 0x7fffffff;
            most = size > most ? size : most;
        }
    }
    if (most >= INFINITE) return -1;
    memcpy(&largest, &most, sizeof largest);
    float s = largest / FP8_LARGEST;
    if (!(s > 0)) s = 1; /* zeros, or so small that they become zeros */
    *scale = s;
    for (int i = r; i < r_end; i++) {
        uint8_t code[FP8_BLOCK];
        widen(p, i, c, n, x);
        for (int k = 0; k < FP8_BLOCK; k++)
            code[k] = fp8_from_float(x[k] / s);
        memcpy(p->code + (size_t)i * (size_t)p->cols + (size_t)c, code, (size_t)n);
    }
    return 0;
}

static void quantise_part(void *arg, int part, int n_parts)
{
    Matrix *p = arg;
    int n_rows = weight_blocks(p->rows), n_cols = weight_blocks(p->cols), failed = 0;
    for (int b = n_rows * part / n_parts; b < n_rows * (part + 1) / n_parts; b++)
        for (int k = 0; k < n_cols && !failed; k++) {
            int r = b * FP8_BLOCK, c = k * FP8_BLOCK;
            failed = quantise_block(p, r, r + least(FP8_BLOCK, p->rows - r), c,
                                    least(FP8_BLOCK, p->cols - c),
                                    p->scale + (size_t)b * (size_t)n_cols + k);
        }
    p->failed[part] = failed;
}

int quantise_fp8(const unsigned char *data, WeightType type, int rows, int cols, uint8_t *code,
                 float *scale)
{
    assert(type == WEIGHT_F32 || type == WEIGHT_BF16);
    Matrix all = {
        .data = data, .code = code, .scale = scale, .type = type, .rows = rows, .cols = cols};
    thread_each(least(thread_parts((int64_t)rows * cols), weight_blocks(rows)), quantise_part, &all,
                "quantise");
    for (int i = 0; i < THREAD_PARTS; i++)
        if (all.failed[i]) return -1;
    return 0;
}
