/*
 * forward.c: the model, written once.
 *
 *     x = embed(token)
 *     each layer:  x += mixer(norm(x));  x += ffn(norm(x))
 *     final = norm(x);  logits = lm_head(final)
 *
 * mixer is gated DeltaNet (a recurrent state per slot) or gated attention (K and V rows in pages).
 * The additions are fused with the norm that follows, so x is complete after the next forward_norm.
 * Everything is f32 but the weights, and K and V where kv_type is bf16.
 */
#include "engine/forward.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/arrays.h"

enum { MIN_KEYS = 1024 };

void row_meta_init(RowMeta *row, int32_t *block, int max_rows)
{
    int32_t **field[ROW_FIELDS] = {&row->token, &row->pos, &row->rope_pos, &row->seq, &row->parent,
                                   &row->src,   &row->dst, &row->kv_row,   &row->base};
    for (int i = 0; i < ROW_FIELDS; i++)
        *field[i] = block + (size_t)i * max_rows;
}

void batch_open(Batch *b, int max_rows)
{
    *b = (Batch){.max_rows = max_rows};
    b->block = mem_alloc((size_t)max_rows * ROW_FIELDS, sizeof(int32_t));
    b->logit_row = mem_alloc((size_t)max_rows, sizeof(int32_t));
    row_meta_init(&b->row, b->block, max_rows);
}

void batch_close(Batch *b)
{
    mem_free(b->block);
    mem_free(b->logit_row);
    *b = (Batch){0};
}

void batch_clear(Batch *b)
{
    b->n = b->n_before = 0;
    b->n_logits = b->n_logits_before = 0;
    b->has_prompt = 0;
}

void batch_begin_prompt(Batch *b)
{
    assert(!b->has_prompt && b->n <= PROMPT_ROW && b->n_logits <= PROMPT_ROW);
    b->has_prompt = 1;
    b->n_before = b->n;
    b->n_logits_before = b->n_logits;
    b->n = b->n_logits = PROMPT_ROW;
}

int batch_last_pos(const Batch *b, int row0, int end)
{
    int last = 0;
    for (int i = row0; i < end; i++)
        if (b->row.pos[i] > last) last = b->row.pos[i];
    return last;
}

int batch_add(Batch *b, int32_t token, int pos, int seq, int parent, int32_t src, int32_t dst,
              int kv_row, int base)
{
    assert(b->n < b->max_rows);
    int i = b->n++;
    b->row.token[i] = token;
    b->row.pos[i] = pos;
    b->row.rope_pos[i] = pos;
    b->row.seq[i] = seq;
    b->row.parent[i] = parent;
    b->row.src[i] = src;
    b->row.dst[i] = dst;
    b->row.kv_row[i] = kv_row;
    b->row.base[i] = base;
    return i;
}

int forward_n_keys(const Memory *mem, int last)
{
    int keys = MIN_KEYS, most = mem->table_stride * PAGE_TOKENS;
    while (keys <= last && keys < most / 4)
        keys *= 4;
    return keys > last ? keys : most;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Floats a row needs in wide[i]; the comment gives its uses: delta, attention, FFN. */
static size_t wide_width(const ModelConfig *c, int i)
{
    size_t q_all = (size_t)c->n_heads * c->head_dim, kv_all = (size_t)c->n_kv_heads * c->head_dim;
    size_t dk_all = (size_t)c->n_k_heads * c->d_k, dv_all = (size_t)c->n_v_heads * c->d_v;
    size_t ffn = max_size((size_t)c->ffn_dim, (size_t)c->shared_dim);
    switch (i) {
    case 0:
        return max_size(max_size((size_t)c->n_channels, 2 * q_all), ffn); /* qkv, qg, gate */
    case 1:
        return max_size(max_size(dv_all, kv_all), ffn); /* z, k, up */
    case 2:
        return max_size(max_size(dk_all, kv_all), (size_t)c->n_experts); /* q, v, router */
    case 3:
        return max_size(max_size(dk_all, q_all), 2 * (size_t)c->dim); /* k, q, shared; head */
    case 4:
        return max_size(max_size(dv_all, q_all), 1); /* v, out, shared gate */
    default:
        return max_size(dv_all, 1); /* out */
    }
}

enum { N_WIDE = sizeof((Forward *)0)->wide / sizeof(float *) };

enum { N_ARRAYS = 5, MAX_WORK = 6 + N_WIDE, BLOCK_ALIGN = 256, MIN_BYTES = 64 };

/* Those that are of no use once a pass's layers have run. */
static int work_list(Forward *f, const Model *m, size_t rows, BackendArray array[MAX_WORK])
{
    const ModelConfig *c = &m->config;
    size_t row = rows * sizeof(float), dim = (size_t)c->dim, top = (size_t)c->n_experts_used;
    int n = 0;
    array[n++] = (BackendArray){&f->x, row * dim};
    array[n++] = (BackendArray){&f->y, row * dim};
    array[n++] = (BackendArray){&f->gates, row * 4 * (size_t)c->n_v_heads};
    for (int i = 0; i < N_WIDE; i++)
        array[n++] = (BackendArray){&f->wide[i], row * wide_width(c, i)};
    if (c->n_experts) {
        int64_t floats = moe_scratch_floats((int)rows, c->dim, c->expert_dim);
        array[n++] = (BackendArray){&f->moe_scratch, (size_t)floats * sizeof(float)};
        array[n++] = (BackendArray){&f->moe_weight, row * top};
        array[n++] = (BackendArray){&f->moe_id, rows * top * sizeof(int32_t)};
    }
    return n;
}

/*
 * Bytes of f's block, and where in it things are: the layers' scratch from 0 on, and the logits.
 * They lie over each other but where a prompt's layers run while the trees' logits wait.
 */
static size_t place_work(Forward *f, const Model *m, size_t rows, size_t logits, size_t *logits_at,
                         unsigned char *block)
{
    BackendArray array[MAX_WORK];
    int n = work_list(f, m, rows, array);
    size_t at = 0, logit_bytes = logits * (size_t)m->config.n_vocab * sizeof(float);
    for (int i = 0; i < n; i++) {
        void *p = block ? block + at : NULL;
        if (p) memcpy(array[i].where, &p, sizeof p);
        at += (array[i].bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    }
    *logits_at = m->backend->prefill_differs ? at : 0;
    return max_size(at, *logits_at + logit_bytes);
}

/* What logits are made of and what is read after them, and the block. */
static void list_arrays(Forward *f, const Model *m, size_t rows, size_t logits,
                        BackendArray array[N_ARRAYS])
{
    size_t row = max_size(rows * (size_t)m->config.dim * sizeof(float), MIN_BYTES), logits_at;
    size_t meta = max_size(rows * ROW_FIELDS * sizeof(int32_t), MIN_BYTES);
    array[0] = (BackendArray){&f->meta_block, meta};
    array[1] = (BackendArray){&f->logit_row, max_size(logits * sizeof(int32_t), MIN_BYTES)};
    array[2] = (BackendArray){&f->final, row};
    array[3] = (BackendArray){&f->h, row};
    array[4] = (BackendArray){&f->work, place_work(f, m, rows, logits, &logits_at, NULL)};
}

int forward_open(Forward *f, const Model *model, Memory *mem, int max_rows, int max_logits,
                 Error *err)
{
    BackendArray array[N_ARRAYS];
    size_t rows = (size_t)max_rows, logits = (size_t)max_logits, logits_at;
    *f = (Forward){.model = model, .mem = mem, .max_rows = max_rows, .max_logits = max_logits};
    f->owner = backend_new_owner(model->backend);
    list_arrays(f, model, rows, logits, array);
    if (arrays_take(model->backend, array, N_ARRAYS, err)) {
        forward_close(f);
        return -1;
    }
    place_work(f, model, rows, logits, &logits_at, f->work);
    f->logits = (float *)(void *)(f->work + logits_at);
    row_meta_init(&f->meta, f->meta_block, max_rows);
    return 0;
}

void forward_close(Forward *f)
{
    BackendArray array[N_ARRAYS];
    if (!f->model) return;
    list_arrays(f, f->model, (size_t)f->max_rows, (size_t)f->max_logits, array);
    arrays_give_back(f->model->backend, array, N_ARRAYS);
    *f = (Forward){0};
}

size_t forward_bytes(const Model *model, int max_rows, int max_logits)
{
    Forward f = {0};
    BackendArray array[N_ARRAYS];
    list_arrays(&f, model, (size_t)max_rows, (size_t)max_logits, array);
    return arrays_bytes(array, N_ARRAYS);
}

static Linear products_of(const Forward *f, int n, const float *x, int n_products,
                          const LinearProduct *product)
{
    Linear a = {.n = n,
                .x = x,
                .x_stride = product->w->cols,
                .n_products = n_products,
                .prefill = f->prefill};
    memcpy(a.product, product, (size_t)n_products * sizeof *product);
    return a;
}

void forward_products(Forward *f, int n, const float *x, int n_products,
                      const LinearProduct *product)
{
    Backend *be = f->model->backend;
    Linear a = products_of(f, n, x, n_products, product);
    be->linear(be, &a);
}

void forward_linear(Forward *f, const Weight *w, int n, const float *x, float *y)
{
    forward_products(f, n, x, 1, &(LinearProduct){w, y, w->rows});
}

void forward_norm(Forward *f, int n, float *x, const float *delta, const float *w, float *out)
{
    const ModelConfig *c = &f->model->config;
    Backend *be = f->model->backend;
    be->add_norm(be, &(AddNorm){.n = n,
                                .dim = c->dim,
                                .eps = c->norm_eps,
                                .x = x,
                                .delta = delta,
                                .w = w,
                                .out = out,
                                .out_stride = c->dim});
}

/* h to y through a gated DeltaNet layer, the i-th recurrent one, for rows row0 and after. */
static void delta_layer(Forward *f, const DeltaWeights *w, int i, int row0, int n)
{
    const ModelConfig *c = &f->model->config;
    Backend *be = f->model->backend;
    SlotLayer slots = memory_slot_layer(f->mem, i);
    float *qkv = f->wide[0], *z = f->wide[1], *q = f->wide[2], *k = f->wide[3], *v = f->wide[4];
    float *out = f->wide[5];
    size_t per_gate = (size_t)f->max_rows * c->n_v_heads;
    float *a = f->gates, *b = a + per_gate, *decay = b + per_gate, *beta = decay + per_gate;
    if (f->records && !f->prefill) { /* rows of trees are here; a prompt has a pass of its own */
        RecordLayer r = records_layer(f->records, i);
        qkv = r.qkv, k = r.k, v = r.v, decay = r.decay;
    }

    forward_products(f, n, f->h, 4,
                     (LinearProduct[]){{&w->qkv, qkv, w->qkv.rows},
                                       {&w->z, z, w->z.rows},
                                       {&w->b, b, w->b.rows},
                                       {&w->a, a, w->a.rows}});
    be->delta_mixer(be, &(DeltaMixer){.n = n,
                                      .conv = {.n = n,
                                               .n_k_heads = c->n_k_heads,
                                               .n_v_heads = c->n_v_heads,
                                               .d_k = c->d_k,
                                               .d_v = c->d_v,
                                               .width = c->conv_width,
                                               .qkv = qkv,
                                               .a = a,
                                               .b = b,
                                               .conv_w = w->conv_w,
                                               .a_coef = w->a_coef,
                                               .dt_bias = w->dt_bias,
                                               .src = f->meta.src + row0,
                                               .dst = f->meta.dst + row0,
                                               .slots = slots,
                                               .q = q,
                                               .k = k,
                                               .v = v,
                                               .decay = decay,
                                               .beta = beta,
                                               .parent = f->meta.parent + row0},
                                      .delta = {.n = n,
                                                .n_k_heads = c->n_k_heads,
                                                .n_v_heads = c->n_v_heads,
                                                .d_k = c->d_k,
                                                .d_v = c->d_v,
                                                .q = q,
                                                .k = k,
                                                .v = v,
                                                .decay = decay,
                                                .beta = beta,
                                                .src = f->meta.src + row0,
                                                .dst = f->meta.dst + row0,
                                                .slots = slots,
                                                .out = out,
                                                .parent = f->meta.parent + row0,
                                                .prefill = f->prefill},
                                      .norm = {.n = n,
                                               .n_heads = c->n_v_heads,
                                               .dim = c->d_v,
                                               .eps = c->norm_eps,
                                               .x = out,
                                               .z = z,
                                               .w = w->out_norm,
                                               .out = out}});
    forward_linear(f, &w->out, n, out, f->y);
}

void forward_attention(Forward *f, const AttentionWeights *w, int kv_layer, int n, int first,
                       const int32_t *from, int row0, int n_keys, const RowMeta *meta)
{
    const Model *m = f->model;
    const ModelConfig *c = &m->config;
    Backend *be = m->backend;
    KvLayer kv = memory_kv_layer(f->mem, kv_layer);
    float *qg = f->wide[0], *k = f->wide[1], *v = f->wide[2], *q = f->wide[3], *out = f->wide[4];

    forward_products(
        f, n, f->h, 3,
        (LinearProduct[]){{&w->q, qg, w->q.rows}, {&w->k, k, w->k.rows}, {&w->v, v, w->v.rows}});
    be->attention_prepare(be, &(AttentionPrepare){.n = n,
                                                  .n_heads = c->n_heads,
                                                  .n_rot = c->rope.n_rot,
                                                  .eps = c->norm_eps,
                                                  .rope_scale = (float)c->rope.scale,
                                                  .qg = qg,
                                                  .k = k,
                                                  .v = v,
                                                  .q_norm = w->q_norm,
                                                  .k_norm = w->k_norm,
                                                  .inv_freq = m->inv_freq,
                                                  .rope_pos = meta->rope_pos + row0,
                                                  .seq = meta->seq + row0,
                                                  .kv_row = meta->kv_row + row0,
                                                  .kv = kv,
                                                  .q = q});
    be->tree_attention(be, &(TreeAttention){.n = n,
                                            .n_heads = c->n_heads,
                                            .first = first,
                                            .from = from,
                                            .row0 = row0,
                                            .n_keys = n_keys,
                                            .scale = 1.0f / sqrtf((float)c->head_dim),
                                            .q = q,
                                            .qg = qg,
                                            .seq = meta->seq,
                                            .pos = meta->pos,
                                            .base = meta->base,
                                            .parent = meta->parent,
                                            .kv_row = meta->kv_row,
                                            .kv = kv,
                                            .out = out,
                                            .prefill = f->prefill});
    forward_linear(f, &w->o, n, out, f->y);
}

/* silu(gate) * up of the dense FFN or the shared expert, into gate, then down to out. */
static void ffn_down(Forward *f, const FfnWeights *w, int n, float *gate, const float *up,
                     float *out)
{
    Backend *be = f->model->backend;
    be->swiglu(be, &(SwiGlu){.n = n, .dim = w->gate.rows, .gate = gate, .up = up});
    forward_linear(f, &w->down, n, gate, out);
}

/* 1 where moe_ffn wants the shared expert as one more of the others, and it is like them. */
static int is_shared_inside(const Forward *f, const FfnWeights *w, int n)
{
    return !f->prefill && n <= f->model->backend->moe_shared_rows &&
           w->gate.rows == f->model->config.expert_dim && w->gate.type == w->expert_type &&
           w->up.type == w->expert_type && w->down.type == w->expert_type;
}

static void moe_ffn(Forward *f, const FfnWeights *w, int n)
{
    const ModelConfig *c = &f->model->config;
    Backend *be = f->model->backend;
    float *gate = f->wide[0], *up = f->wide[1];
    float *router = f->wide[2], *shared = f->wide[3], *shared_gate = f->wide[4];
    int inside = is_shared_inside(f, w, n);
    Linear first = products_of(f, n, f->h, inside ? 2 : 4,
                               (LinearProduct[]){{&w->router, router, w->router.rows},
                                                 {&w->shared_gate, shared_gate, 1},
                                                 {&w->gate, gate, w->gate.rows},
                                                 {&w->up, up, w->up.rows}});
    MoeFfn ffn = {.n = n,
                  .dim = c->dim,
                  .width = c->expert_dim,
                  .n_experts = c->n_experts,
                  .n_top = c->n_experts_used,
                  .normalise = c->norm_topk,
                  .x = f->h,
                  .logits = router,
                  .id = f->moe_id,
                  .weight = f->moe_weight,
                  .type = w->expert_type,
                  .gate = w->expert_gate,
                  .up = w->expert_up,
                  .down = w->expert_down,
                  .shared = inside ? NULL : shared,
                  .shared_gate = shared_gate,
                  .scratch = f->moe_scratch,
                  .out = f->y,
                  .prefill = f->prefill,
                  .shared_expert = {w->gate, w->up, w->down}};
    if (inside) {
        be->routed_ffn(be, &(RoutedFfn){.n = n, .router = first, .ffn = ffn});
        return;
    }
    be->linear(be, &first);
    ffn_down(f, w, n, gate, up, shared);
    be->moe_ffn(be, &ffn);
}

void forward_ffn(Forward *f, const FfnWeights *w, int n)
{
    float *gate = f->wide[0], *up = f->wide[1];
    if (w->moe) {
        moe_ffn(f, w, n);
        return;
    }
    forward_products(f, n, f->h, 2,
                     (LinearProduct[]){{&w->gate, gate, w->gate.rows}, {&w->up, up, w->up.rows}});
    ffn_down(f, w, n, gate, up, f->y);
}

static void upload_rows(Forward *f, const Batch *b)
{
    Backend *be = f->model->backend;
    for (int i = 0; i < ROW_FIELDS; i++)
        be->upload(be, f->meta_block + (size_t)i * f->max_rows, b->block + (size_t)i * b->max_rows,
                   (size_t)b->n * sizeof(int32_t));
    if (b->n_logits <= f->max_logits)
        be->upload(be, f->logit_row, b->logit_row, (size_t)b->n_logits * sizeof(int32_t));
}

static void tap(Forward *f, int layer, int n)
{
    if (f->tap) f->tap(f->tap_ctx, layer, f->x, n);
}

/* What a pass is, but for the content of its arrays. */
typedef struct {
    Forward *f;
    int row0, n, logit0, n_logits, n_keys, prefill;
    int all; /* the logits are of all rows, in their order */
} Pass;

static void run_layers(Forward *f, const Pass *p)
{
    const Model *m = f->model;
    const ModelConfig *c = &m->config;
    Backend *be = m->backend;
    int n = p->n, recurrent = 0, full = 0;
    float *final = f->final + (size_t)p->row0 * c->dim;
    f->prefill = p->prefill;
    be->embed(be, &(Embed){.n = n,
                           .table = &m->embed,
                           .token = f->meta.token + p->row0,
                           .out = f->x,
                           .out_stride = c->dim});
    for (int i = 0; i < c->n_layers; i++) {
        const LayerWeights *w = &m->layer[i];
        const float *norm = c->full_attention[i] ? w->attention.norm : w->delta.norm;
        forward_norm(f, n, f->x, i ? f->y : NULL, norm, f->h);
        tap(f, i, n);
        if (c->full_attention[i])
            forward_attention(f, &w->attention, full++, n, 0, NULL, p->row0, p->n_keys, &f->meta);
        else
            delta_layer(f, &w->delta, recurrent++, p->row0, n);
        forward_norm(f, n, f->x, f->y, w->ffn.norm, f->h);
        forward_ffn(f, &w->ffn, n);
    }
    forward_norm(f, n, f->x, f->y, m->final_norm, final);
    tap(f, c->n_layers, n);
    f->prefill = 0; /* how many logits are wanted is no property of the prompt */
}

static void run_logits(Forward *f, const Pass *p)
{
    const Model *m = f->model;
    const ModelConfig *c = &m->config;
    Backend *be = m->backend;
    if (!p->all)
        be->gather_rows(be, &(GatherRows){.n = p->n_logits,
                                          .dim = c->dim,
                                          .index = f->logit_row + p->logit0,
                                          .x = f->final,
                                          .out = f->h});
    forward_linear(f, &m->lm_head, p->n_logits, p->all ? f->final : f->h,
                   f->logits + (size_t)p->logit0 * (size_t)c->n_vocab);
}

static void run_pass(void *ctx)
{
    const Pass *p = ctx;
    if (p->n) run_layers(p->f, p);
    if (p->n_logits) run_logits(p->f, p);
}

static void queue_pass(Forward *f, Pass p)
{
    Backend *be = f->model->backend;
    assert(p.n >= 0 && p.row0 + p.n <= f->max_rows);
    assert(p.logit0 + p.n_logits <= f->max_logits);
    if (f->tap) { /* who looks inside sees every pass, not a recording */
        run_pass(&p);
        return;
    }
    be->replay(be,
               &(ReplayKey){.owner = f->owner,
                            .n = p.n,
                            .m = p.n_logits,
                            .first = p.row0,
                            .n_keys = p.n_keys,
                            .prefill = p.prefill},
               run_pass, &p);
}

void forward_queue(Forward *f, int n, int n_keys)
{
    run_pass(&(Pass){.f = f, .n = n, .n_logits = n, .n_keys = n_keys, .all = 1});
}

void forward_logits(Forward *f, const int32_t *row, int n)
{
    Backend *be = f->model->backend;
    be->upload(be, f->logit_row, row, (size_t)n * sizeof *row);
    queue_pass(f, (Pass){.f = f, .n_logits = n});
}

void forward_pass(Forward *f, const Batch *b)
{
    int before = b->has_prompt ? b->n_before : b->n;
    int logits_before = b->has_prompt ? b->n_logits_before : b->n_logits;
    assert(!b->has_prompt || b->n_logits <= f->max_logits);
    if (logits_before > f->max_logits) logits_before = 0;
    upload_rows(f, b);
    if (before || logits_before)
        queue_pass(f, (Pass){.f = f,
                             .n = before,
                             .n_logits = logits_before,
                             .n_keys = forward_n_keys(f->mem, batch_last_pos(b, 0, before))});
    if (b->has_prompt)
        queue_pass(f, (Pass){.f = f,
                             .row0 = PROMPT_ROW,
                             .n = b->n - PROMPT_ROW,
                             .logit0 = PROMPT_ROW,
                             .n_logits = b->n_logits - PROMPT_ROW,
                             .n_keys = forward_n_keys(f->mem, batch_last_pos(b, PROMPT_ROW, b->n)),
                             .prefill = f->model->prefill});
}
