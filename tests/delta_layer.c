/* delta_layer.c: see delta_layer.h. */
#include "tests/delta_layer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/simt_host.h"

/* As memory has them: on a cache line, unless a layer's sizes are odd. */
static float *slots_new(const Layer *l)
{
    enum { CACHE_LINE = 64 };
    size_t bytes = (size_t)l->n_slots * l->slot_floats * sizeof(float);
    float *slots = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    assert_non_null(slots);
    return slots;
}

Layer layer_new(Rng *r, const DeltaShape *s)
{
    Layer l = {.s = *s, .rows = 2 * s->n};
    size_t rows = (size_t)l.rows, heads = (size_t)s->n_v_heads;
    l.n_slots = l.rows + N_MAIN;
    l.qk_row = (size_t)(s->n_k_heads * s->d_k);
    l.v_row = heads * (size_t)s->d_v;
    l.n_channels = (int)(2 * l.qk_row + l.v_row);
    l.conv_at = l.v_row * (size_t)s->d_k + (size_t)s->odd;
    l.slot_floats = l.conv_at + (size_t)(s->width - 1) * (size_t)l.n_channels;
    l.qkv = random_floats(r, rows * (size_t)l.n_channels, 2);
    l.a = random_floats(r, rows * heads, 30);
    l.b = random_floats(r, rows * heads, 4);
    l.conv_w = random_floats(r, (size_t)(l.n_channels * s->width), 1);
    l.a_coef = random_floats(r, heads, 0.5f);
    l.dt_bias = random_floats(r, heads, 1);
    for (size_t h = 0; h < heads; h++)
        l.a_coef[h] = -0.01f - fabsf(l.a_coef[h]);
    l.slots = slots_new(&l);
    rng_fill(r, l.slots, (size_t)l.n_slots * l.slot_floats, 1);
    l.src = ints(rows), l.dst = ints(rows);
    l.q = floats(rows * l.qk_row), l.k = floats(rows * l.qk_row), l.v = floats(rows * l.v_row);
    l.decay = floats(rows * heads), l.beta = floats(rows * heads);
    l.out = floats(rows * l.v_row);
    return l;
}

Layer layer_copy(const Layer *from)
{
    Layer l = *from;
    size_t rows = (size_t)l.rows, heads = (size_t)l.s.n_v_heads;
    l.slots = slots_new(&l);
    memcpy(l.slots, from->slots, (size_t)l.n_slots * l.slot_floats * sizeof(float));
    l.q = floats(rows * l.qk_row), l.k = floats(rows * l.qk_row), l.v = floats(rows * l.v_row);
    l.decay = floats(rows * heads), l.beta = floats(rows * heads);
    l.out = floats(rows * l.v_row);
    return l;
}

void layer_free_results(Layer *l)
{
    free(l->slots), free(l->q), free(l->k), free(l->v);
    free(l->decay), free(l->beta), free(l->out);
}

void layer_free(Layer *l)
{
    layer_free_results(l);
    free(l->qkv), free(l->a), free(l->b), free(l->conv_w), free(l->a_coef), free(l->dt_bias);
    free(l->src), free(l->dst), free(l->parent);
}

DeltaMixer rows_of(Layer *l, int first, int n, const int32_t *src, const int32_t *dst)
{
    const DeltaShape *s = &l->s;
    size_t at = (size_t)first, heads = (size_t)s->n_v_heads;
    SlotLayer slots = {(unsigned char *)l->slots, l->slot_floats * sizeof(float), 0,
                       l->conv_at * sizeof(float)};
    float *q = l->q + at * l->qk_row, *k = l->k + at * l->qk_row, *v = l->v + at * l->v_row;
    float *decay = l->decay + at * heads, *beta = l->beta + at * heads;
    return (DeltaMixer){.n = n,
                        .conv = {n,
                                 s->n_k_heads,
                                 s->n_v_heads,
                                 s->d_k,
                                 s->d_v,
                                 s->width,
                                 l->qkv + at * (size_t)l->n_channels,
                                 l->a + at * heads,
                                 l->b + at * heads,
                                 l->conv_w,
                                 l->a_coef,
                                 l->dt_bias,
                                 src,
                                 dst,
                                 slots,
                                 q,
                                 k,
                                 v,
                                 decay,
                                 beta,
                                 l->parent},
                        .delta = {n, s->n_k_heads, s->n_v_heads, s->d_k, s->d_v, q, k, v, decay,
                                  beta, src, dst, slots, l->out + at * l->v_row, 0, l->parent}};
}

void run_rows(Backend *be, Layer *l, int first, int n, const int32_t *src, const int32_t *dst)
{
    DeltaMixer a = rows_of(l, first, n, src, dst);
    be->conv_gates(be, &a.conv);
    be->gated_delta(be, &a.delta);
}

void run_layer(Backend *be, Layer *l, int first, int n, const int32_t *src, const int32_t *dst)
{
    static int n_calls;
    simt_reverse(n_calls++ % 2);
    run_rows(be, l, first, n, src, dst);
    simt_reverse(0);
}

void transpose_states(Layer *l, int n_rows, int n_cols)
{
    size_t n = (size_t)n_rows * (size_t)n_cols;
    float *old = floats(n);
    for (int slot = 0; slot < l->n_slots; slot++)
        for (int h = 0; h < l->s.n_v_heads; h++) {
            float *state = l->slots + (size_t)slot * l->slot_floats + (size_t)h * n;
            memcpy(old, state, n * sizeof *old);
            for (int r = 0; r < n_rows; r++)
                for (int c = 0; c < n_cols; c++)
                    state[c * n_rows + r] = old[r * n_cols + c];
        }
    free(old);
}

void slots_of_backend(Layer *l, int b)
{
    if (is_gpu(b)) transpose_states(l, l->s.d_k, l->s.d_v);
}

void slots_of_definition(Layer *l, int b)
{
    if (is_gpu(b)) transpose_states(l, l->s.d_v, l->s.d_k);
}
