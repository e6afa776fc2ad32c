/*
 * moe_ref.c: routing and the routed experts, by definition.
 */
#include "kernels/ops_ref.h"

#include <math.h>

/* The best expert after (logit, id) in the order "larger logit first, then lower id". */
static int next_best(const float *logit, int n, int after)
{
    int best = -1;
    for (int e = 0; e < n; e++) {
        int later = after < 0 || logit[e] < logit[after] || (logit[e] == logit[after] && e > after);
        if (later && (best < 0 || logit[e] > logit[best])) best = e;
    }
    return best;
}

static void sort_by_id(int32_t *id, float *weight, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && id[j] < id[j - 1]; j--) {
            int32_t e = id[j];
            float w = weight[j];
            id[j] = id[j - 1], weight[j] = weight[j - 1];
            id[j - 1] = e, weight[j - 1] = w;
        }
}

static void route(const MoeFfn *a)
{
    for (int i = 0; i < a->n; i++) {
        const float *logit = a->logits + (int64_t)i * a->n_experts;
        int32_t *id = a->id + (int64_t)i * a->n_top;
        float *weight = a->weight + (int64_t)i * a->n_top;
        double total = 0, kept = 0;
        int best = next_best(logit, a->n_experts, -1);
        double max = (double)logit[best < 0 ? 0 : best];
        for (int e = 0; e < a->n_experts; e++)
            total += exp((double)logit[e] - max);
        for (int j = 0; j < a->n_top; j++) {
            /* NaN logits order nothing: any distinct experts will do, the weights are NaN */
            id[j] = best < 0 ? j : best;
            weight[j] = (float)(exp((double)logit[id[j]] - max) / total);
            kept += (double)weight[j];
            if (best >= 0) best = next_best(logit, a->n_experts, best);
        }
        for (int j = 0; a->normalise && j < a->n_top; j++)
            weight[j] = (float)((double)weight[j] / kept);
        sort_by_id(id, weight, a->n_top);
    }
}

/* scratch: 2 * width + dim floats. */
static void run_expert(const MoeFfn *a, int i, const MoeExpert *e, float weight, float *scratch)
{
    float *gate = scratch, *up = scratch + a->width, *y = scratch + 2 * a->width;
    const float *x = a->x + (int64_t)i * a->dim;
    linear_ref(&(Linear){.n = 1,
                         .x = x,
                         .x_stride = a->dim,
                         .n_products = 2,
                         .product = {{&e->gate, gate, a->width}, {&e->up, up, a->width}},
                         .prefill = a->prefill});
    swiglu_ref(&(SwiGlu){.n = 1, .dim = a->width, .gate = gate, .up = up});
    linear_ref(&(Linear){.n = 1,
                         .x = gate,
                         .x_stride = a->width,
                         .n_products = 1,
                         .product = {{&e->down, y, a->dim}},
                         .prefill = a->prefill});
    for (int d = 0; d < a->dim; d++)
        a->out[(int64_t)i * a->dim + d] += weight * y[d];
}

void moe_ffn_ref(const MoeFfn *a)
{
    route(a);
    for (int i = 0; i < a->n; i++) {
        float *out = a->out + (int64_t)i * a->dim;
        for (int d = 0; d < a->dim; d++)
            out[d] = 0;
        for (int j = 0; j < a->n_top; j++) {
            int64_t at = (int64_t)i * a->n_top + j;
            MoeExpert e = {a->gate[a->id[at]], a->up[a->id[at]], a->down[a->id[at]]};
            run_expert(a, i, &e, a->weight[at], a->scratch);
        }
        float share = 1 / (1 + expf(-a->shared_gate[i]));
        if (!a->shared) run_expert(a, i, &a->shared_expert, share, a->scratch);
        for (int d = 0; a->shared && d < a->dim; d++)
            out[d] += share * a->shared[(int64_t)i * a->dim + d];
    }
}
