/*
 * rows_cpu.c: the small row operations, vectors over a row, rows or heads over threads.
 *
 * Against the definition: sums of squares in f32 lanes (relative error below dim / VEC_N * 2^-24,
 * all terms positive), exp to 2 ulp, some four roundings after that.
 */
#include "kernels/isa_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static void embed_part(const void *arg, int part, int n_parts)
{
    const Embed *a = arg;
    const Weight *w = a->table;
    int64_t begin, end;
    cpu_split(a->n, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        assert(a->token[i] >= 0 && a->token[i] < w->rows);
        const char *row = (const char *)w->data + a->token[i] * weight_row_bytes(w);
        float *out = a->out + i * a->out_stride;
        if (w->type == WEIGHT_F32)
            memcpy(out, row, (size_t)w->cols * sizeof *out);
        else if (weight_is_bf16(w->type))
            for (int k = 0; k < w->cols; k++)
                out[k] = bf16_to_float(((const uint16_t *)(const void *)row)[k]);
        else
            for (int k = 0; k < w->cols; k++)
                out[k] = weight_int_at(w, a->token[i], k);
    }
}

void ISA_NAME(embed)(Threads *t, const Embed *a)
{
    assert(a->table->type != WEIGHT_NONE && a->table->type != WEIGHT_FP8);
    cpu_run(t, (int64_t)a->n * a->table->cols, embed_part, a);
}

static void gather_part(const void *arg, int part, int n_parts)
{
    const GatherRows *a = arg;
    int64_t begin, end;
    cpu_split(a->n, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        memcpy(a->out + (a->to ? a->to[i] : i) * a->dim, a->x + (int64_t)a->index[i] * a->dim,
               (size_t)a->dim * sizeof *a->out);
}

void ISA_NAME(gather_rows)(Threads *t, const GatherRows *a)
{
    cpu_run(t, (int64_t)a->n * a->dim, gather_part, a);
}

/* 1 / sqrt(mean(x^2) + eps) */
static float inverse_rms(const float *x, int dim, float eps)
{
    Vec sum = v_set(0);
    for (int k = 0; k < dim; k += VEC_N) {
        Vec xk = v_load_some(x + k, dim - k);
        sum = v_fma(xk, xk, sum);
    }
    return 1 / sqrtf(v_sum(sum) / (float)dim + eps);
}

static void add_norm_part(const void *arg, int part, int n_parts)
{
    const AddNorm *a = arg;
    int64_t begin, end;
    cpu_split(a->n, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *x = a->x + i * a->dim;
        const float *delta = a->delta ? a->delta + i * a->dim : NULL;
        for (int k = 0; delta && k < a->dim; k += VEC_N) {
            int n = a->dim - k;
            v_store_some(x + k, v_add(v_load_some(x + k, n), v_load_some(delta + k, n)), n);
        }
        Vec scale = v_set(inverse_rms(x, a->dim, a->eps));
        float *out = a->out + i * a->out_stride;
        for (int k = 0; k < a->dim; k += VEC_N) {
            int n = a->dim - k;
            Vec y = v_mul(v_mul(v_load_some(x + k, n), scale), v_load_some(a->w + k, n));
            v_store_some(out + k, y, n);
        }
    }
}

void ISA_NAME(add_norm)(Threads *t, const AddNorm *a)
{
    cpu_run(t, (int64_t)a->n * a->dim, add_norm_part, a);
}

static void gated_norm_part(const void *arg, int part, int n_parts)
{
    const GatedNorm *a = arg;
    int64_t begin, end;
    cpu_split((int64_t)a->n * a->n_heads, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->dim, *z = a->z + i * a->dim;
        Vec scale = v_set(inverse_rms(x, a->dim, a->eps));
        for (int k = 0; k < a->dim; k += VEC_N) {
            int n = a->dim - k;
            Vec y = v_mul(v_mul(v_load_some(x + k, n), scale), v_load_some(a->w + k, n));
            v_store_some(a->out + i * a->dim + k, v_mul(y, v_silu(v_load_some(z + k, n))), n);
        }
    }
}

void ISA_NAME(gated_norm)(Threads *t, const GatedNorm *a)
{
    cpu_run(t, (int64_t)a->n * a->n_heads * a->dim * 4, gated_norm_part, a);
}

/* A flat array: where a vector begins does not show, lanes never meet. */
static void swiglu_part(const void *arg, int part, int n_parts)
{
    const SwiGlu *a = arg;
    int64_t begin, end;
    cpu_split((int64_t)a->n * a->dim, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i += VEC_N) {
        int n = end - i < VEC_N ? (int)(end - i) : VEC_N;
        Vec y = v_mul(v_silu(v_load_some(a->gate + i, n)), v_load_some(a->up + i, n));
        v_store_some(a->gate + i, y, n);
    }
}

void ISA_NAME(swiglu)(Threads *t, const SwiGlu *a)
{
    cpu_run(t, (int64_t)a->n * a->dim * 4, swiglu_part, a);
}

static void move_part(const void *arg, int part, int n_parts)
{
    const MoveRows *a = arg;
    int64_t begin, end;
    cpu_split(2 * (int64_t)a->n_layers, part, n_parts, &begin, &end);
    for (int64_t plane = begin; plane < end; plane++)
        for (int i = 0; i < a->n; i++) {
            const int32_t *table = a->table + (int64_t)a->seq[i] * a->table_stride;
            int to = a->to[i], from = a->from[i];
            unsigned char *rows = a->pages + (size_t)plane * a->page_tokens * a->row_bytes;
            if (to == from) continue;
            memcpy(rows + (size_t)table[to / a->page_tokens] * a->page_bytes +
                       (size_t)(to % a->page_tokens) * a->row_bytes,
                   rows + (size_t)table[from / a->page_tokens] * a->page_bytes +
                       (size_t)(from % a->page_tokens) * a->row_bytes,
                   a->row_bytes);
        }
}

/* K and V of each layer are planes of their own; in a plane rows move in order. */
void ISA_NAME(move_rows)(Threads *t, const MoveRows *a)
{
    cpu_run(t, (int64_t)a->n * a->n_layers * (int64_t)a->row_bytes / 2, move_part, a);
}
