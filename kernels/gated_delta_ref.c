/*
 * gated_delta_ref.c: the two recurrences of a gated DeltaNet layer, by definition, row after row.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>

static float *slot_at(const SlotLayer *s, int slot, size_t offset)
{
    return (float *)(void *)(s->base + (size_t)slot * s->slot_bytes + offset);
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Channel c of row i: its output, and the inputs that the row leaves in dst. */
static float convolve(const ConvGates *a, int i, int c, int n_channels)
{
    float p[MAX_CONV_WIDTH];
    const float *old = slot_at(&a->slots, a->src[i], a->slots.conv_offset);
    float *new = slot_at(&a->slots, a->dst[i], a->slots.conv_offset);
    assert(a->width <= MAX_CONV_WIDTH);
    for (int m = 0; m < a->width - 1; m++)
        p[m] = old[(int64_t)m * n_channels + c];
    p[a->width - 1] = a->qkv[(int64_t)i * n_channels + c];

    double sum = 0;
    for (int m = 0; m < a->width; m++)
        sum += (double)a->conv_w[(int64_t)c * a->width + m] * (double)p[m];
    for (int m = 1; m < a->width; m++)
        new[(int64_t)(m - 1) * n_channels + c] = p[m];
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

/* Column c of value head h for row i. S[:,c] needs only P[:,c]. */
static void delta_column(const GatedDelta *a, int i, int h, int c)
{
    int key_head = h / (a->n_v_heads / a->n_k_heads);
    int64_t of_key = ((int64_t)i * a->n_k_heads + key_head) * a->d_k;
    const float *q = a->q + of_key, *k = a->k + of_key;
    int64_t of_head = (int64_t)i * a->n_v_heads + h;
    int64_t of_state = (int64_t)h * a->d_k * a->d_v + c;
    const float *p = slot_at(&a->slots, a->src[i], a->slots.state_offset) + of_state;
    float *s = slot_at(&a->slots, a->dst[i], a->slots.state_offset) + of_state;
    float decay = a->decay[of_head];

    double seen = 0, out = 0;
    for (int r = 0; r < a->d_k; r++)
        seen += (double)p[r * a->d_v] * (double)k[r];
    float u = a->beta[of_head] * (a->v[of_head * a->d_v + c] - decay * (float)seen);
    for (int r = 0; r < a->d_k; r++) {
        s[r * a->d_v] = decay * p[r * a->d_v] + k[r] * u;
        out += (double)s[r * a->d_v] * (double)q[r];
    }
    a->out[of_head * a->d_v + c] = (float)out;
}

void gated_delta_ref(const GatedDelta *a)
{
    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < a->n_v_heads; h++)
            for (int c = 0; c < a->d_v; c++)
                delta_column(a, i, h, c);
}
