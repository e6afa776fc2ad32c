/*
 * gated_delta_ref.c: the two recurrences of a gated DeltaNet layer, by definition, row after row.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static float *slot_at(const SlotLayer *s, int slot, size_t offset)
{
    return (float *)(void *)(s->base + (size_t)slot * s->slot_bytes + offset);
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/*
 * Channel c of row i: its output. The inputs before it are those of its ancestors in the call, as
 * far as these left no state, and then what the slot holds.
 */
static float convolve(const ConvGates *a, int i, int c, int n_channels)
{
    float p[MAX_CONV_WIDTH];
    const float *old = slot_at(&a->slots, a->src[i], a->slots.conv_offset);
    int at = a->width - 1;
    assert(a->width <= MAX_CONV_WIDTH);
    p[at] = a->qkv[(int64_t)i * n_channels + c];
    for (int row = i; at > 0 && a->dst[i] < 0 && a->parent[row] >= 0;) {
        row = a->parent[row];
        p[--at] = a->qkv[(int64_t)row * n_channels + c];
    }
    for (int m = a->width - 2; at > 0; m--)
        p[--at] = old[(int64_t)m * n_channels + c];

    double sum = 0;
    for (int m = 0; m < a->width; m++)
        sum += (double)a->conv_w[(int64_t)c * a->width + m] * (double)p[m];
    for (int m = 1; m < a->width && a->dst[i] >= 0; m++)
        slot_at(&a->slots, a->dst[i], a->slots.conv_offset)[(int64_t)(m - 1) * n_channels + c] =
            p[m];
    return (float)sum / (1 + expf(-(float)sum));
}

/* x = x / sqrt(sum x^2 + 1e-6) * scale */
static void l2_norm(float *x, int dim, double scale)
{
    double sum = 1e-6;
    for (int k = 0; k < dim; k++)
        sum += (double)x[k] * (double)x[k];
    for (int k = 0; k < dim; k++)
        x[k] = (float)((double)x[k] / sqrt(sum) * scale);
}

void conv_gates_ref(const ConvGates *a)
{
    int d_qk = a->n_k_heads * a->d_k, d_vs = a->n_v_heads * a->d_v;
    int n_channels = 2 * d_qk + d_vs;
    for (int i = 0; i < a->n; i++) {
        float *q = a->q + (int64_t)i * d_qk, *k = a->k + (int64_t)i * d_qk;
        float *v = a->v + (int64_t)i * d_vs;
        for (int c = 0; c < d_qk; c++)
            q[c] = convolve(a, i, c, n_channels);
        for (int c = 0; c < d_qk; c++)
            k[c] = convolve(a, i, d_qk + c, n_channels);
        for (int c = 0; c < d_vs; c++)
            v[c] = convolve(a, i, 2 * d_qk + c, n_channels);
        for (int h = 0; h < a->n_k_heads; h++) {
            l2_norm(q + h * a->d_k, a->d_k, 1 / sqrt(a->d_k));
            l2_norm(k + h * a->d_k, a->d_k, 1);
        }
        for (int h = 0; h < a->n_v_heads; h++) {
            int64_t g = (int64_t)i * a->n_v_heads + h;
            float u = a->a[g] + a->dt_bias[h];
            a->beta[g] = sigmoid(a->b[g]);
            a->decay[g] = expf(a->a_coef[h] * (u > 20 ? u : log1pf(expf(u))));
        }
    }
}

/* What a row brings to a column of the state. */
typedef struct {
    const float *k, *q;
    float v, decay, beta;
} Record;

static Record record_of(const GatedDelta *a, int i, int h, int c)
{
    int key_head = h / (a->n_v_heads / a->n_k_heads);
    int64_t of_key = ((int64_t)i * a->n_k_heads + key_head) * a->d_k;
    int64_t of_head = (int64_t)i * a->n_v_heads + h;
    return (Record){.k = a->k + of_key,
                    .q = a->q + of_key,
                    .v = a->v[of_head * a->d_v + c],
                    .decay = a->decay[of_head],
                    .beta = a->beta[of_head]};
}

/* Takes a column one row on: s[0], s[stride], ... */
static void step_column(const Record *r, int d_k, float *s, int stride)
{
    double seen = 0;
    for (int k = 0; k < d_k; k++)
        seen += (double)s[k * stride] * (double)r->k[k];
    float u = r->beta * (r->v - r->decay * (float)seen);
    for (int k = 0; k < d_k; k++)
        s[k * stride] = r->decay * s[k * stride] + r->k[k] * u;
}

/* Column c of head h after row i, whose tree left no states: from its root's slot on. */
static void draft_column(const GatedDelta *a, int i, int h, int c, float s[MAX_D_K])
{
    int64_t of_state = (int64_t)h * a->d_k * a->d_v + c;
    const float *p = slot_at(&a->slots, a->src[i], a->slots.state_offset) + of_state;
    if (a->parent[i] >= 0)
        draft_column(a, a->parent[i], h, c, s);
    else
        for (int k = 0; k < a->d_k; k++)
            s[k] = p[(int64_t)k * a->d_v];
    Record r = record_of(a, i, h, c);
    step_column(&r, a->d_k, s, 1);
}

/* Column c of value head h for row i. S[:,c] needs only P[:,c]. */
static void delta_column(const GatedDelta *a, int i, int h, int c)
{
    Record r = record_of(a, i, h, c);
    int64_t of_state = (int64_t)h * a->d_k * a->d_v + c;
    const float *p = slot_at(&a->slots, a->src[i], a->slots.state_offset) + of_state;
    float s[MAX_D_K];
    double out = 0;
    if (a->dst[i] < 0) {
        draft_column(a, i, h, c, s);
    } else {
        float *to = slot_at(&a->slots, a->dst[i], a->slots.state_offset) + of_state;
        for (int k = 0; k < a->d_k; k++)
            s[k] = p[(int64_t)k * a->d_v];
        step_column(&r, a->d_k, s, 1);
        for (int k = 0; k < a->d_k; k++)
            to[(int64_t)k * a->d_v] = s[k];
    }
    for (int k = 0; k < a->d_k; k++)
        out += (double)s[k] * (double)r.q[k];
    a->out[((int64_t)i * a->n_v_heads + h) * a->d_v + c] = (float)out;
}

void gated_delta_ref(const GatedDelta *a)
{
    assert(a->d_k <= MAX_D_K);
    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < a->n_v_heads; h++)
            for (int c = 0; c < a->d_v; c++)
                delta_column(a, i, h, c);
}

/* Shifts the convolution's window of one layer past the rows of a path. */
static void fold_inputs(const DeltaFold *a, int layer, const int32_t *path, int length, float *old)
{
    int n_channels = 2 * a->n_k_heads * a->d_k + a->n_v_heads * a->d_v, older = a->width - 1;
    const float *qkv = a->qkv + (int64_t)layer * a->layer_rows * n_channels;
    for (int m = 0; m < older; m++) {
        int from = m + length;
        const float *x = from < older ? old + (int64_t)from * n_channels
                                      : qkv + (int64_t)path[from - older] * n_channels;
        for (int c = 0; c < n_channels; c++)
            old[(int64_t)m * n_channels + c] = x[c];
    }
}

/* What the path begins with, where the path is to leave what it ends with: n floats. */
static float *begin_fold(const DeltaFold *a, int p, size_t offset, size_t n)
{
    float *to = slot_at(&a->slots, a->slot[p], offset);
    memmove(to, slot_at(&a->slots, a->from[p], offset), n * sizeof *to);
    return to;
}

static void fold_layer(const DeltaFold *a, int layer, int p)
{
    int64_t row = (int64_t)layer * a->layer_rows;
    const int32_t *path = a->path + (int64_t)p * a->stride;
    size_t at = (size_t)layer * a->layer_bytes, d_k = (size_t)a->d_k;
    size_t values = (size_t)a->n_v_heads * (size_t)a->d_v, channels = values;
    channels += 2 * (size_t)a->n_k_heads * d_k;
    float *state = begin_fold(a, p, a->slots.state_offset + at, values * d_k);
    float *old = begin_fold(a, p, a->slots.conv_offset + at, (size_t)(a->width - 1) * channels);
    GatedDelta d = {.n_k_heads = a->n_k_heads,
                    .n_v_heads = a->n_v_heads,
                    .d_k = a->d_k,
                    .d_v = a->d_v,
                    .q = a->k + row * a->n_k_heads * a->d_k, /* it is not looked at */
                    .k = a->k + row * a->n_k_heads * a->d_k,
                    .v = a->v + row * a->n_v_heads * a->d_v,
                    .decay = a->decay + row * a->n_v_heads,
                    .beta = a->beta + row * a->n_v_heads};
    for (int i = 0; i < a->length[p]; i++)
        for (int h = 0; h < a->n_v_heads; h++)
            for (int c = 0; c < a->d_v; c++) {
                Record r = record_of(&d, path[i], h, c);
                step_column(&r, a->d_k, state + (int64_t)h * a->d_k * a->d_v + c, a->d_v);
            }
    fold_inputs(a, layer, path, a->length[p], old);
}

void delta_fold_ref(const DeltaFold *a)
{
    for (int p = 0; p < a->n; p++)
        for (int layer = 0; layer < a->n_layers && a->length[p]; layer++)
            fold_layer(a, layer, p);
}
