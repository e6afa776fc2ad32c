/* whole_model.c: see whole_model.h. */
#include "tests/whole_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/forward.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"

static void add(Matrices *all, const Weight *w, int fp8)
{
    assert_true(all->n < MAX_MATRICES);
    all->list[all->n++] = (Matrix){w, fp8};
}

static void add_attention(Matrices *all, const AttentionWeights *a)
{
    const Weight *const w[] = {&a->q, &a->k, &a->v, &a->o};
    for (int i = 0; i < 4; i++)
        add(all, w[i], 1);
}

static void add_ffn(Matrices *all, const ModelConfig *c, const FfnWeights *f)
{
    const Weight *const w[] = {&f->gate, &f->up, &f->down};
    for (int i = 0; i < 3; i++)
        add(all, w[i], 1);
    if (!f->moe) return;
    add(all, &f->router, 0);
    add(all, &f->shared_gate, 0);
    for (int e = 0; e < c->n_experts; e++) {
        add(all, &f->expert_gate[e], 1);
        add(all, &f->expert_up[e], 1);
        add(all, &f->expert_down[e], 1);
    }
}

void list_matrices(const Model *m, Matrices *all)
{
    const ModelConfig *c = &m->config;
    *all = (Matrices){0};
    add(all, &m->embed, 0);
    add(all, &m->lm_head, 0);
    for (int i = 0; i < c->n_layers; i++) {
        const DeltaWeights *d = &m->layer[i].delta;
        if (c->full_attention[i]) {
            add_attention(all, &m->layer[i].attention);
        } else {
            add(all, &d->qkv, 1);
            add(all, &d->z, 1);
            add(all, &d->out, 1);
            add(all, &d->a, 0);
            add(all, &d->b, 0);
        }
        add_ffn(all, c, &m->layer[i].ffn);
    }
    if (!m->has_mtp) return;
    add(all, &m->head.fc, 0);
    add_attention(all, &m->head.attention);
    add_ffn(all, c, &m->head.ffn);
}

static void look_at(void *ctx, int layer, const float *x, int n)
{
    Pass *p = ctx;
    size_t count = (size_t)n * (size_t)p->dim;
    double squares = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(x[i]));
        squares += (double)x[i] * (double)x[i];
    }
    double rms = sqrt(squares / (double)count);
    if (rms > p->largest_rms) p->largest_rms = rms;
    if (layer > p->n_layers_seen) p->n_layers_seen = layer;
}

void run_pass(Pass *p, Model *m)
{
    Memory mem;
    Forward f;
    Batch batch;
    Error err = {0};
    size_t n = (size_t)PASS_TOKENS * (size_t)m->config.n_vocab;
    *p = (Pass){.dim = m->config.dim, .logits = mem_alloc(n, sizeof(float))};
    int pages = pages_for(PASS_TOKENS + 1);
    assert_int_equal(memory_open_plain(&mem, m, KV_F32, 1, pages, 1, PASS_TOKENS + 1, &err), 0);
    assert_int_equal(forward_open(&f, m, &mem, PASS_TOKENS, PASS_TOKENS, &err), 0);
    batch_open(&batch, PASS_TOKENS);
    assert_int_equal(memory_reserve(&mem, 0, PASS_TOKENS + 1), 0);
    memory_clear_slot(&mem, 0);
    for (int i = 0; i < PASS_TOKENS; i++) {
        batch_add(&batch, i * 7 % m->config.n_vocab, i, 0, i - 1, 0, 0, i, i + 1);
        batch.logit_row[batch.n_logits++] = i;
    }
    f.tap = look_at;
    f.tap_ctx = p;
    forward_pass(&f, &batch);
    m->backend->download(m->backend, p->logits, f.logits, n * sizeof(float));
    batch_close(&batch);
    forward_close(&f);
    memory_close(&mem);
}

float weight_value(const Weight *w, int r, int c)
{
    size_t i = (size_t)r * (size_t)w->cols + (size_t)c;
    const unsigned char *p = w->data;
    float f;
    uint16_t h;
    assert_true(r < w->rows && c < w->cols);
    switch (w->type) {
    case WEIGHT_F32:
        memcpy(&f, p + 4 * i, 4);
        return f;
    case WEIGHT_BF16:
        memcpy(&h, p + 2 * i, 2);
        return bf16_to_float(h);
    default:
        assert_int_equal(w->type, WEIGHT_FP8);
        assert_non_null(w->scale);
        return w->scale ? fp8_to_float(p[i]) * w->scale[r / 128 * ((w->cols + 127) / 128) + c / 128]
                        : 0;
    }
}

void is_matrix(const Weight *w, WeightType type, int rows, int cols)
{
    assert_int_equal(w->type, type);
    assert_int_equal(w->rows, rows);
    assert_int_equal(w->cols, cols);
    assert_true((w->scale != NULL) == (type == WEIGHT_FP8));
    assert_int_equal((uintptr_t)w->data % (type == WEIGHT_F32    ? 4
                                           : type == WEIGHT_BF16 ? 2
                                                                 : 1),
                     0);
}
