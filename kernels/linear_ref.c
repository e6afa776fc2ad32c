/*
 * linear_ref.c: y = x W', by definition.
 */
#include "kernels/ops_ref.h"

#include <assert.h>

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
        return weight_int8_at(w, row, col);
    case WEIGHT_NONE:
    case N_WEIGHT_TYPES:
        break;
    }
    assert(!"a weight without data");
    return 0;
}

float linear_factor(const Weight *w, float x)
{
    return w->type == WEIGHT_BF16_BOTH ? bf16_to_float(bf16_from_float(x)) : x;
}

static void product(const Linear *a, const LinearProduct *p)
{
    const Weight *w = p->w;
    for (int r = 0; r < w->rows; r++)
        for (int i = 0; i < a->n; i++) {
            const float *x = a->x + (int64_t)i * a->x_stride;
            double sum = 0;
            for (int k = 0; k < w->cols; k++)
                sum += (double)linear_factor(w, x[k]) * (double)weight_at(w, r, k);
            p->y[(int64_t)i * p->y_stride + r] = (float)sum;
        }
}

void linear_ref(const Linear *a)
{
    for (int i = 0; i < a->n_products; i++)
        product(a, &a->product[i]);
}
