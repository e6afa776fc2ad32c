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

/* Column c of the state of value head h: s[0], s[stride], ... */
typedef struct {
    int h, c, key_head, stride;
    float *s;
} Column;

static Column column_of(const GatedDelta *a, int h, int c, float *s, int stride)
{
    return (Column){h, c, h / (a->n_v_heads / a->n_k_heads), stride, s};
}

static float *value_at(const GatedDelta *a, const Column *x, int i)
{
    return a->v + ((int64_t)i * a->n_v_heads + x->h) * a->d_v + x->c;
}

/* Row i's q or k of the column's head. */
static const float *key_row(const GatedDelta *a, const Column *x, const float *of, int i)
{
    return of + ((int64_t)i * a->n_k_heads + x->key_head) * a->d_k;
}

/* The column of slot `slot`, in a slot's layout. */
static Column column_in(const GatedDelta *a, int h, int c, int slot)
{
    int64_t of_state = (int64_t)h * a->d_k * a->d_v + c;
    return column_of(a, h, c, slot_at(&a->slots, slot, a->slots.state_offset) + of_state, a->d_v);
}

/* S = decay S + k u of row i. */
static void update_column(const GatedDelta *a, int i, const Column *x, float u)
{
    float decay = a->decay[(int64_t)i * a->n_v_heads + x->h];
    const float *k = key_row(a, x, a->k, i);
    for (int j = 0; j < a->d_k; j++)
        x->s[j * x->stride] = decay * x->s[j * x->stride] + k[j] * u;
}

/* u of row i, from the state before it. */
static float delta_of(const GatedDelta *a, int i, const Column *x)
{
    int64_t gate = (int64_t)i * a->n_v_heads + x->h;
    const float *k = key_row(a, x, a->k, i);
    double seen = 0;
    for (int j = 0; j < a->d_k; j++)
        seen += (double)x->s[j * x->stride] * (double)k[j];
    return a->beta[gate] * (*value_at(a, x, i) - a->decay[gate] * (float)seen);
}

/* The state that draft i starts from: its ancestors have left their u. */
static void before_draft(const GatedDelta *a, int i, const Column *x)
{
    int parent = a->parent[i];
    if (parent < 0) return;
    before_draft(a, parent, x);
    update_column(a, parent, x, *value_at(a, x, parent));
}

/* Column c of value head h for row i. S[:,c] needs only P[:,c]. */
static void delta_column(const GatedDelta *a, int i, int h, int c)
{
    float s[MAX_D_K];
    double out = 0;
    Column x = column_of(a, h, c, s, 1), from = column_in(a, h, c, a->src[i]);
    const float *q = key_row(a, &x, a->q, i);
    for (int j = 0; j < a->d_k; j++)
        s[j] = from.s[j * from.stride];
    if (a->dst[i] < 0) before_draft(a, i, &x);
    float u = delta_of(a, i, &x);
    update_column(a, i, &x, u);
    for (int j = 0; j < a->d_k; j++)
        out += (double)s[j] * (double)q[j];
    a->out[((int64_t)i * a->n_v_heads + h) * a->d_v + c] = (float)out;
    if (a->dst[i] < 0) {
        *value_at(a, &x, i) = u;
        return;
    }
    Column to = column_in(a, h, c, a->dst[i]);
    for (int j = 0; j < a->d_k; j++)
        to.s[j * to.stride] = s[j];
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
    const float *u = a->u + row * a->n_v_heads * a->d_v;
    GatedDelta d = {.n_k_heads = a->n_k_heads,
                    .n_v_heads = a->n_v_heads,
                    .d_k = a->d_k,
                    .d_v = a->d_v,
                    .k = a->k + row * a->n_k_heads * a->d_k,
                    .decay = a->decay + row * a->n_v_heads};
    for (int i = 0; i < a->length[p]; i++)
        for (int h = 0; h < a->n_v_heads; h++)
            for (int c = 0; c < a->d_v; c++) {
                float *s = state + (int64_t)h * a->d_k * a->d_v + c;
                Column x = column_of(&d, h, c, s, a->d_v);
                update_column(&d, path[i], &x,
                              u[((int64_t)path[i] * a->n_v_heads + h) * a->d_v + c]);
            }
    fold_inputs(a, layer, path, a->length[p], old);
}

void delta_fold_ref(const DeltaFold *a)
{
    for (int p = 0; p < a->n; p++)
        for (int layer = 0; layer < a->n_layers && a->length[p]; layer++)
            fold_layer(a, layer, p);
}
