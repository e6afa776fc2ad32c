/* head.c: see head.h. Source of the composition: the MTP layer of Qwen3-Next and Qwen3.5. */
#include "engine/head.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

size_t head_bytes(const Model *model, int max_rows, int max_meta)
{
    return (size_t)max_meta * ROW_FIELDS * sizeof(int32_t) +
           2 * (size_t)max_rows * model->config.dim * sizeof(float);
}

int head_open(Head *h, Forward *f, int max_meta, Error *err)
{
    Backend *be = f->model->backend;
    size_t rows = (size_t)f->max_rows * f->model->config.dim * sizeof(float);
    *h = (Head){.f = f, .max_meta = max_meta, .owner = backend_new_owner(be)};
    head_set_vocab(h, &(DraftVocab){0});
    h->meta_block = be->alloc(be, (size_t)max_meta * ROW_FIELDS * sizeof(int32_t), err);
    h->hidden = h->meta_block ? be->alloc(be, rows, err) : NULL;
    h->out = h->hidden ? be->alloc(be, rows, err) : NULL;
    if (!h->out) {
        head_close(h);
        return -1;
    }
    row_meta_init(&h->meta, h->meta_block, max_meta);
    return 0;
}

void head_close(Head *h)
{
    if (!h->f) return;
    Backend *be = h->f->model->backend;
    if (h->meta_block) be->free(be, h->meta_block);
    if (h->hidden) be->free(be, h->hidden);
    if (h->out) be->free(be, h->out);
    *h = (Head){0};
}

int head_add(Batch *b, int32_t token, int pos, int seq, int parent, int kv_row, int base)
{
    assert(pos >= 1);
    int i = batch_add(b, token, pos, seq, parent, -1, -1, kv_row, base);
    b->row.rope_pos[i] = pos - 1;
    return i;
}

/* What a head's pass is, but for the content of its arrays. */
typedef struct {
    Head *h;
    int n, row0, n_keys;
} HeadRun;

static void run_head(void *ctx)
{
    const HeadRun *p = ctx;
    Head *h = p->h;
    Forward *f = h->f;
    const Model *m = f->model;
    const HeadWeights *w = &m->head;
    Backend *be = m->backend;
    int n = p->n, row0 = p->row0;
    float *both = f->wide[3]; /* [n][2 dim]: embedding first */
    be->head_input(be, &(HeadInput){.n = n,
                                    .eps = m->config.norm_eps,
                                    .table = &m->embed,
                                    .token = h->meta.token + row0,
                                    .hidden = h->hidden,
                                    .embed_norm = w->embed_norm,
                                    .hidden_norm = w->hidden_norm,
                                    .embedding = f->h,
                                    .out = both});
    forward_linear(f, &w->fc, n, both, f->x);
    forward_norm(f, n, f->x, NULL, w->attention.norm, f->h);
    forward_attention(f, &w->attention, f->mem->n_kv_layers - 1, n, 1, h->from, row0, p->n_keys,
                      &h->meta);
    forward_norm(f, n, f->x, f->y, w->ffn.norm, f->h);
    forward_ffn(f, &w->ffn, n);
    forward_norm(f, n, f->x, f->y, w->final_norm, h->out);
}

void head_pass(Head *h, const Batch *b, int row0)
{
    Backend *be = h->f->model->backend;
    HeadRun p = {h, b->n - row0, row0, forward_n_keys(h->f->mem, batch_last_pos(b, row0, b->n))};
    assert(p.n > 0 && p.n <= h->f->max_rows);
    assert(b->n <= h->max_meta);
    for (int i = 0; i < ROW_FIELDS; i++)
        be->upload(be, h->meta_block + (size_t)i * h->max_meta + row0,
                   b->block + (size_t)i * b->max_rows + row0, (size_t)p.n * sizeof(int32_t));
    be->replay(be, &(ReplayKey){.owner = h->owner, .n = p.n, .first = row0, .n_keys = p.n_keys},
               run_head, &p);
}

void head_queue(Head *h, int n, int row0, int n_keys)
{
    run_head(&(HeadRun){h, n, row0, n_keys});
}

/* ---- the ids that are scored ---- */

static void join_nearest(Head *h)
{
    int best = 0;
    IdRange *r = h->range;
    for (int i = 1; i + 1 < h->n_ranges; i++)
        if (r[i + 1].first - r[i].end < r[best + 1].first - r[best].end) best = i;
    r[best].end = r[best + 1].end;
    h->n_ranges--;
    memmove(r + best + 1, r + best + 2, (size_t)(h->n_ranges - best - 1) * sizeof *r);
}

/* Ids come ascending. A range starts where rows of the LM head can be taken apart. */
static void add_scored(Head *h, int id)
{
    int first = id - id % weight_row_step(h->f->model->lm_head.type);
    if (h->n_ranges && first <= h->range[h->n_ranges - 1].end) {
        h->range[h->n_ranges - 1].end = id + 1;
        return;
    }
    h->range[h->n_ranges++] = (IdRange){first, id + 1};
    if (h->n_ranges > MAX_HEAD_RANGES) join_nearest(h);
}

void head_set_vocab(Head *h, const DraftVocab *v)
{
    const ModelConfig *c = &h->f->model->config;
    unsigned char *always = mem_alloc((size_t)c->n_vocab, 1);
    for (int i = 0; i < v->n_always; i++)
        if (v->always[i] >= 0 && v->always[i] < c->n_vocab) always[v->always[i]] = 1;
    for (int i = 0; i < c->n_eos; i++)
        always[c->eos[i]] = 1;
    h->n_ranges = h->n_scored = 0;
    for (int id = 0; id < c->n_vocab; id++)
        if (!v->n_first || id < v->n_first || always[id]) add_scored(h, id);
    for (int i = 0; i < h->n_ranges; i++)
        h->n_scored += h->range[i].end - h->range[i].first;
    mem_free(always);
}

/* A view of some rows of w. */
static Weight rows_of(const Weight *w, IdRange r)
{
    Weight part = *w;
    part.rows = r.end - r.first;
    part.data = (const char *)w->data + r.first * weight_row_bytes(w);
    if (w->scale) part.scale = weight_scales(w, r.first);
    return part;
}

void head_logits(Head *h, int n, const float *out, float *logits)
{
    const Weight *w = &h->f->model->lm_head;
    Backend *be = h->f->model->backend;
    for (int i = 0; i < h->n_ranges; i += MAX_PRODUCTS) {
        Weight rows[MAX_PRODUCTS];
        Linear a = {.n = n, .x = out, .x_stride = w->cols};
        for (int r = i; r < h->n_ranges && a.n_products < MAX_PRODUCTS; r++) {
            Weight *part = &rows[a.n_products];
            *part = rows_of(w, h->range[r]);
            a.product[a.n_products++] = (LinearProduct){part, logits + h->range[r].first, w->rows};
        }
        be->linear(be, &a);
    }
}

void head_init_logits(Head *h, int n, float *logits)
{
    int n_vocab = h->f->model->config.n_vocab;
    Backend *be = h->f->model->backend;
    if (h->n_scored == n_vocab) return;
    float *row = mem_alloc((size_t)n_vocab, sizeof *row);
    for (int id = 0; id < n_vocab; id++)
        row[id] = -INFINITY;
    for (int i = 0; i < n; i++)
        be->upload(be, logits + (size_t)i * (size_t)n_vocab, row, (size_t)n_vocab * sizeof *row);
    mem_free(row);
}
