/*
 * attention_ref.c: gated attention over a token tree, by definition.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/bf16.h"

/* K or V (by offset) of one row and KV head. */
static unsigned char *kv_at(const KvLayer *kv, size_t offset, int seq, int row, int kv_head)
{
    int32_t page = kv->table[(int64_t)seq * kv->table_stride + row / kv->page_tokens];
    int64_t head = (int64_t)(row % kv->page_tokens) * kv->n_kv_heads + kv_head;
    return kv->pages + (size_t)page * kv->page_bytes + offset +
           (size_t)(head * kv->head_dim) * kv_type_bytes(kv->type);
}

static float kv_value(const KvLayer *kv, const unsigned char *head, int d)
{
    float x;
    uint16_t half;
    if (kv->type == KV_BF16) {
        memcpy(&half, head + (size_t)d * sizeof half, sizeof half);
        return bf16_to_float(half);
    }
    memcpy(&x, head + (size_t)d * sizeof x, sizeof x);
    return x;
}

static void kv_store(const KvLayer *kv, unsigned char *head, const float *x)
{
    for (int d = 0; d < kv->head_dim; d++) {
        uint16_t half = bf16_from_float(x[d]);
        if (kv->type == KV_BF16)
            memcpy(head + (size_t)d * sizeof half, &half, sizeof half);
        else
            memcpy(head + (size_t)d * sizeof *x, &x[d], sizeof *x);
    }
}

/* out = rope(norm(x) * w) for one head. */
static void norm_rope(const AttentionPrepare *a, const float *x, const float *w, int rope_pos,
                      float *out)
{
    int dim = a->kv.head_dim, half = a->n_rot / 2;
    double sum = 0;
    for (int k = 0; k < dim; k++)
        sum += (double)x[k] * (double)x[k];
    float scale = (float)(1 / sqrt(sum / dim + (double)a->eps));
    for (int k = 0; k < dim; k++)
        out[k] = x[k] * scale * w[k];
    for (int f = 0; f < half; f++) {
        float angle = (float)rope_pos * a->inv_freq[f];
        float c = cosf(angle) * a->rope_scale, s = sinf(angle) * a->rope_scale;
        float x0 = out[f], x1 = out[f + half];
        out[f] = x0 * c - x1 * s;
        out[f + half] = x1 * c + x0 * s;
    }
}

void attention_prepare_ref(const AttentionPrepare *a)
{
    int dim = a->kv.head_dim, n_kv = a->kv.n_kv_heads;
    assert(dim <= MAX_HEAD_DIM);
    for (int i = 0; i < a->n; i++) {
        for (int h = 0; h < a->n_heads; h++) {
            int64_t head = (int64_t)i * a->n_heads + h;
            norm_rope(a, a->qg + head * 2 * dim, a->q_norm, a->rope_pos[i], a->q + head * dim);
        }
        for (int h = 0; h < n_kv; h++) {
            int64_t from = ((int64_t)i * n_kv + h) * dim;
            float k[MAX_HEAD_DIM] = {0};
            norm_rope(a, a->k + from, a->k_norm, a->rope_pos[i], k);
            kv_store(&a->kv, kv_at(&a->kv, a->kv.k_offset, a->seq[i], a->kv_row[i], h), k);
            kv_store(&a->kv, kv_at(&a->kv, a->kv.v_offset, a->seq[i], a->kv_row[i], h),
                     a->v + from);
        }
    }
}

/* The row of the KV pages where the key of position t lies, for row j of the tables. */
static int row_of(const TreeAttention *a, int j, int t)
{
    if (t < a->base[j]) return t;
    while (a->pos[j] > t)
        j = a->parent[j];
    assert(a->pos[j] == t);
    return a->kv_row[j];
}

/* One head of one row. */
static void attend(const TreeAttention *a, int i, int h)
{
    int dim = a->kv.head_dim, kv_head = h / (a->n_heads / a->kv.n_kv_heads);
    int row = a->row0 + i, seq = a->seq[row];
    int64_t head = (int64_t)i * a->n_heads + h;
    const float *q = a->q + head * dim, *gate = a->qg + (head * 2 + 1) * dim;
    double acc[MAX_HEAD_DIM] = {0}, total = 0, score[ATTENTION_TILE] = {0};
    double max = (double)-INFINITY;
    assert(dim <= MAX_HEAD_DIM);

    int begin = attention_first(a, row);
    while (begin <= a->pos[row]) {
        int end = begin - begin % ATTENTION_TILE + ATTENTION_TILE;
        if (end > a->pos[row] + 1) end = a->pos[row] + 1;
        double old_max = max;
        for (int t = begin; t < end; t++) {
            const unsigned char *k = kv_at(&a->kv, a->kv.k_offset, seq, row_of(a, row, t), kv_head);
            double dot = 0;
            for (int d = 0; d < dim; d++)
                dot += (double)q[d] * (double)kv_value(&a->kv, k, d);
            score[t - begin] = dot * (double)a->scale;
            if (score[t - begin] > max) max = score[t - begin];
        }
        double rescale = exp(old_max - max);
        total *= rescale;
        for (int d = 0; d < dim; d++)
            acc[d] *= rescale;
        for (int t = begin; t < end; t++) {
            const unsigned char *v = kv_at(&a->kv, a->kv.v_offset, seq, row_of(a, row, t), kv_head);
            double p = exp(score[t - begin] - max);
            total += p;
            for (int d = 0; d < dim; d++)
                acc[d] += p * (double)kv_value(&a->kv, v, d);
        }
        begin = end;
    }
    for (int d = 0; d < dim; d++)
        a->out[head * dim + d] = (float)(acc[d] / total / (1 + exp(-(double)gate[d])));
}

void tree_attention_ref(const TreeAttention *a)
{
    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < a->n_heads; h++)
            attend(a, i, h);
}
