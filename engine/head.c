/* head.c: see head.h. Source of the composition: the MTP layer of Qwen3-Next and Qwen3.5. */
#include "engine/head.h"

#include <assert.h>

#include "engine/arrays.h"

enum { N_ARRAYS = 3 };

static void list_arrays(Head *h, const Model *m, int max_rows, int max_meta,
                        BackendArray array[N_ARRAYS])
{
    size_t rows = (size_t)max_rows * m->config.dim * sizeof(float);
    array[0] = (BackendArray){&h->meta_block, (size_t)max_meta * ROW_FIELDS * sizeof(int32_t)};
    array[1] = (BackendArray){&h->hidden, rows};
    array[2] = (BackendArray){&h->out, rows};
}

size_t head_bytes(const Model *model, int max_rows, int max_meta, const DraftVocab *v)
{
    Head h = {0};
    BackendArray array[N_ARRAYS];
    scored_open(&h.scored, model, v);
    list_arrays(&h, model, max_rows, max_meta, array);
    return scored_copy_bytes(&h.scored) + arrays_bytes(array, N_ARRAYS);
}

int head_open(Head *h, Forward *f, int max_meta, const DraftVocab *v, Error *err)
{
    Backend *be = f->model->backend;
    BackendArray array[N_ARRAYS];
    *h = (Head){.f = f, .max_meta = max_meta, .owner = backend_new_owner(be)};
    scored_open(&h->scored, f->model, v);
    list_arrays(h, f->model, f->max_rows, max_meta, array);
    if (arrays_take(be, array, N_ARRAYS, err) || scored_copy(&h->scored, err)) {
        head_close(h);
        return -1;
    }
    row_meta_init(&h->meta, h->meta_block, max_meta);
    return 0;
}

void head_close(Head *h)
{
    BackendArray array[N_ARRAYS];
    if (!h->f) return;
    list_arrays(h, h->f->model, h->f->max_rows, h->max_meta, array);
    arrays_give_back(h->f->model->backend, array, N_ARRAYS);
    scored_close(&h->scored);
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
