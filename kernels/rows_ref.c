/*
 * rows_ref.c: the small row operations, by definition.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void embed_ref(const Embed *a)
{
    for (int i = 0; i < a->n; i++) {
        assert(a->token[i] >= 0 && a->token[i] < a->table->rows);
        for (int k = 0; k < a->table->cols; k++)
            a->out[(int64_t)i * a->out_stride + k] = weight_at(a->table, a->token[i], k);
    }
}

void gather_rows_ref(const GatherRows *a)
{
    for (int i = 0; i < a->n; i++)
        memcpy(a->out + (int64_t)(a->to ? a->to[i] : i) * a->dim,
               a->x + (int64_t)a->index[i] * a->dim, (size_t)a->dim * sizeof(float));
}

/* 1 / sqrt(mean(x^2) + eps) */
static float inverse_rms(const float *x, int dim, float eps)
{
    double sum = 0;
    for (int k = 0; k < dim; k++)
        sum += (double)x[k] * (double)x[k];
    return (float)(1 / sqrt(sum / dim + (double)eps));
}

void add_norm_ref(const AddNorm *a)
{
    for (int i = 0; i < a->n; i++) {
        float *x = a->x + (int64_t)i * a->dim;
        for (int k = 0; a->delta && k < a->dim; k++)
            x[k] += a->delta[(int64_t)i * a->dim + k];
        float scale = inverse_rms(x, a->dim, a->eps);
        for (int k = 0; k < a->dim; k++)
            a->out[(int64_t)i * a->out_stride + k] = x[k] * scale * a->w[k];
    }
}

static float silu(float x)
{
    return x / (1 + expf(-x));
}

void gated_norm_ref(const GatedNorm *a)
{
    for (int64_t i = 0; i < (int64_t)a->n * a->n_heads; i++) {
        const float *x = a->x + i * a->dim, *z = a->z + i * a->dim;
        float scale = inverse_rms(x, a->dim, a->eps);
        for (int k = 0; k < a->dim; k++)
            a->out[i * a->dim + k] = x[k] * scale * a->w[k] * silu(z[k]);
    }
}

void swiglu_ref(const SwiGlu *a)
{
    for (int64_t i = 0; i < (int64_t)a->n * a->dim; i++)
        a->gate[i] = silu(a->gate[i]) * a->up[i];
}

static unsigned char *kv_row(const MoveRows *a, int layer, int which, int seq, int row)
{
    int32_t page = a->table[(int64_t)seq * a->table_stride + row / a->page_tokens];
    size_t rows_before = (size_t)(2 * layer + which) * (size_t)a->page_tokens;
    return a->pages + (size_t)page * a->page_bytes +
           (rows_before + (size_t)(row % a->page_tokens)) * a->row_bytes;
}

void move_rows_ref(const MoveRows *a)
{
    for (int i = 0; i < a->n; i++) {
        if (a->from[i] == a->to[i]) continue;
        for (int layer = 0; layer < a->n_layers; layer++)
            for (int which = 0; which < 2; which++)
                memcpy(kv_row(a, layer, which, a->seq[i], a->to[i]),
                       kv_row(a, layer, which, a->seq[i], a->from[i]), a->row_bytes);
    }
}
