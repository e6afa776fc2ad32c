/* flops.c: see flops.h. */
#include "engine/flops.h"

/* The projections q, k, v, z, b, a and out; the convolution; decay, read, write and output of S. */
static double delta_flops(const ModelConfig *c)
{
    double dim = c->dim, k = (double)c->n_k_heads * c->d_k, v = (double)c->n_v_heads * c->d_v;
    double project = 2 * dim * (2 * k + 2 * v + 2 * c->n_v_heads) + 2 * v * dim;
    return project + 2.0 * c->conv_width * c->n_channels + 8 * v * c->d_k;
}

/* The projections q (with its gate), k, v and out. */
static double attention_flops(const ModelConfig *c)
{
    double dim = c->dim, q = (double)c->n_heads * c->head_dim;
    double kv = (double)c->n_kv_heads * c->head_dim;
    return 2 * dim * (2 * q + 2 * kv) + 2 * q * dim;
}

/* Gate, up and down; of a mixture the router and the experts that a token meets. */
static double ffn_flops(const ModelConfig *c, int moe)
{
    double width = c->ffn_dim, dim = c->dim;
    if (!moe) return 6 * dim * width;
    width = (double)c->n_experts_used * c->expert_dim + c->shared_dim;
    return 6 * dim * width + 2 * dim * c->n_experts;
}

FlopCost model_flops(const ModelConfig *c)
{
    FlopCost cost = {0};
    for (int i = 0; i < c->n_layers; i++) {
        cost.per_token += c->full_attention[i] ? attention_flops(c) : delta_flops(c);
        cost.per_token += ffn_flops(c, c->moe[i]);
    }
    /* Scores and values, over all earlier tokens. */
    cost.per_pair = 4.0 * c->n_heads * c->head_dim * c->n_full;
    return cost;
}

double flops_between(const FlopCost *cost, double from, double to)
{
    return (to - from) * cost->per_token + (to * to - from * from) / 2 * cost->per_pair;
}
