/*
 * linear_ref.c: y = x W', by definition.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"

float weight_at(const Weight *w, int row, int col)
{
    int64_t i = (int64_t)row * w->cols + col;
    switch (w->type) {
    case WEIGHT_F32:
        return ((const float *)w->data)[i];
    case WEIGHT_BF16:
    case WEIGHT_BF16_BOTH:
        return bf16_to_float(((const uint16_t *)w->data)[i]);
    case WEIGHT_FP8:
        return fp8_to_float(((const uint8_t *)w->data)[i]) * weight_scales(w, row)[col / FP8_BLOCK];
    case WEIGHT_INT8:
    case WEIGHT_INT4:
        return weight_int_at(w, row, col);
    case WEIGHT_NONE:
    case N_WEIGHT_TYPES:
        break;
    }
    assert(!"a weight without data");
    return 0;
}

/* 128 values as e4m3 times their scale. */
static void round_fp8(const float *x, int n, float *out)
{
    float largest = 0;
    for (int k = 0; k < n; k++)
        if (!(fabsf(x[k]) <= largest)) largest = fabsf(x[k]); /* a NaN stays */
    float scale = fp8_scale(largest), inverse = 1 / scale;
    for (int k = 0; k < n; k++)
        out[k] = fp8_to_float(fp8_from_float(x[k] * inverse)) * scale;
}

void linear_factors(const Weight *w, int prefill, const float *x, float *out)
{
    for (int k = 0; k < w->cols; k += FP8_BLOCK) {
        int n = w->cols - k < FP8_BLOCK ? w->cols - k : FP8_BLOCK;
        if (w->type == WEIGHT_FP8 && prefill == PREFILL_FP8)
            round_fp8(x + k, n, out + k);
        else if (w->type == WEIGHT_BF16_BOTH)
            for (int i = k; i < k + n; i++)
                out[i] = bf16_to_float(bf16_from_float(x[i]));
        else
            memcpy(out + k, x + k, (size_t)n * sizeof *x);
    }
}

static void product(const Linear *a, const LinearProduct *p)
{
    const Weight *w = p->w;
    float *x = mem_alloc((size_t)a->n * (size_t)w->cols, sizeof *x);
    float *weight = mem_alloc((size_t)w->cols, sizeof *weight); /* a row of W */
    for (int i = 0; i < a->n; i++)
        linear_factors(w, a->prefill, a->x + (int64_t)i * a->x_stride, x + (int64_t)i * w->cols);
    for (int r = 0; r < w->rows; r++) {
        for (int k = 0; k < w->cols; k++)
            weight[k] = weight_at(w, r, k);
        for (int i = 0; i < a->n; i++) {
            double sum = 0;
            for (int k = 0; k < w->cols; k++)
                sum += (double)x[(int64_t)i * w->cols + k] * (double)weight[k];
            p->y[(int64_t)i * p->y_stride + r] = (float)sum;
        }
    }
    mem_free(weight);
    mem_free(x);
}

void linear_ref(const Linear *a)
{
    for (int i = 0; i < a->n_products; i++)
        product(a, &a->product[i]);
}
