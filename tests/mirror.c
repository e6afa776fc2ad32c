/*
 * mirror.c: see mirror.h.
 *
 * Each operation has a function that names its arrays. Then: lay them out, in the order of their
 * host addresses; replace the pointers, also those inside arrays of structs; send one image of all,
 * run, fetch one image. What differs between the two must lie in an output.
 */
#include "tests/mirror.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/host_memory.h"
#include "kernels/ops_cuda.h"

enum {
    ARENA_BYTES = 64 << 20,
    STRUCT_BYTES = 1 << 20,
    LINE = 256, /* what addresses are kept modulo; also the smallest red zone */
    POISON = 0xff,
    MAX_ARRAYS = 8192,
};

/* One array of an operation; `where` is the pointer to it, in a struct of ours. */
typedef struct {
    const unsigned char *host;
    size_t bytes, at;   /* at: in the arena */
    size_t row, stride; /* bytes of its rows; what lies between them is not written */
    int is_out;
    void *where;
} Array;

typedef struct {
    Backend be;
    Backend *device;
    void *memory;                  /* of the device */
    unsigned char *arena;          /* in it, on LINE */
    unsigned char *sent, *fetched; /* [ARENA_BYTES], images of the arena */
    unsigned char *structs;        /* [STRUCT_BYTES], copies of arrays of structs */
    size_t used, structs_used;
    int n_arrays;
    Array array[MAX_ARRAYS];
    Weight weight[MAX_PRODUCTS]; /* an operation's matrices: structs on the host */
} Mirror;

static void die(const char *what)
{
    fprintf(stderr, "mirror: %s\n", what);
    abort();
}

/* ---- arrays ---- */

/*
 * Names the array that the pointer at `where` points to, n rows `stride` bytes apart, with nothing
 * after the last one. NULL is fine; without bytes it gets so.
 */
static void add_rows(Mirror *m, void *where, int n, size_t stride, size_t row, int is_out)
{
    const unsigned char *host = NULL;
    size_t bytes = n > 0 ? (size_t)(n - 1) * stride + row : 0;
    memcpy(&host, where, sizeof host);
    if (!host) return;
    if (m->n_arrays == MAX_ARRAYS) die("too many arrays in one operation");
    m->array[m->n_arrays++] = (Array){host, bytes, 0, row, stride, is_out, where};
}

static void add(Mirror *m, void *where, size_t bytes, int is_out)
{
    add_rows(m, where, 1, bytes, bytes, is_out);
}

#define IN(pointer, n)  add(m, &(pointer), (n) * sizeof *(pointer), 0)
#define OUT(pointer, n) add(m, &(pointer), (n) * sizeof *(pointer), 1)

/* Rows of dim elements, stride apart. */
#define IN_ROWS(pointer, n, stride, dim)                                                           \
    add_rows(m, &(pointer), n, (size_t)(stride) * sizeof *(pointer),                               \
             (size_t)(dim) * sizeof *(pointer), 0)
#define OUT_ROWS(pointer, n, stride, dim)                                                          \
    add_rows(m, &(pointer), n, (size_t)(stride) * sizeof *(pointer),                               \
             (size_t)(dim) * sizeof *(pointer), 1)

/* A copy of an array of structs, whose pointers can be named and replaced. */
static void *copy_structs(Mirror *m, const void *host, size_t bytes)
{
    unsigned char *copy = m->structs + m->structs_used;
    if (bytes > STRUCT_BYTES - m->structs_used) die("no room for this many structs");
    memcpy(copy, host, bytes);
    m->structs_used += (bytes + LINE - 1) / LINE * LINE;
    return copy;
}

/* By address, the longer first. */
static int by_host(const void *pa, const void *pb)
{
    const Array *a = pa, *b = pb;
    if (a->host != b->host) return a->host < b->host ? -1 : 1;
    return a->bytes > b->bytes ? -1 : a->bytes < b->bytes;
}

/* Poison from the end of what is used to here. */
static void poison_to(Mirror *m, size_t to)
{
    if (to > ARENA_BYTES) die("the arrays of one operation need more than the arena has");
    memset(m->sent + m->used, POISON, to - m->used);
    m->used = to;
}

/* Gives each array its place: arrays that overlap on the host share theirs. */
static void lay_out(Mirror *m)
{
    const unsigned char *end = NULL; /* of the arrays so far, on the host */
    qsort(m->array, (size_t)m->n_arrays, sizeof *m->array, by_host);
    for (int i = 0; i < m->n_arrays; i++) {
        Array *a = &m->array[i];
        if (i == 0 || a->host >= end) {
            poison_to(m, (m->used + 2 * LINE - 1) / LINE * LINE + (uintptr_t)a->host % LINE);
            end = a->host;
        }
        a->at = m->used - (size_t)(end - a->host);
        if (a->host + a->bytes <= end) continue;
        m->used = a->at + a->bytes;
        end = a->host + a->bytes;
        if (m->used > ARENA_BYTES) die("the arrays of one operation need more than the arena has");
    }
    poison_to(m, m->used + LINE);
}

static void send(Mirror *m)
{
    lay_out(m);
    for (int i = 0; i < m->n_arrays; i++) {
        void *there = m->array[i].bytes ? m->arena + m->array[i].at : NULL;
        memcpy(m->array[i].where, &there, sizeof there);
    }
    for (int i = 0; i < m->n_arrays; i++) /* only now: structs hold their new pointers */
        memcpy(m->sent + m->array[i].at, m->array[i].host, m->array[i].bytes);
    m->device->upload(m->device, m->arena, m->sent, m->used);
}

/* The image beyond all outputs is as it was sent, or the program ends. */
static void check_untouched(const Mirror *m, const char *op)
{
    size_t at = 0;
    const Array *near = NULL;
    if (!memcmp(m->sent, m->fetched, m->used)) return;
    while (m->sent[at] == m->fetched[at])
        at++;
    for (const Array *a = m->array; a < m->array + m->n_arrays; a++)
        if (a->bytes && a->at <= at && (!near || a->at + a->bytes >= near->at + near->bytes))
            near = a;
    if (!near)
        fprintf(stderr, "mirror: %s writes before all of its arrays\n", op);
    else
        fprintf(stderr, "mirror: %s writes byte %zu of an %s of %zu bytes\n", op, at - near->at,
                near->is_out ? "output" : "input", near->bytes);
    abort();
}

static void fetch(Mirror *m, const char *op)
{
    Error err;
    if (m->device->sync(m->device, &err)) {
        fprintf(stderr, "mirror: %s: %s\n", op, err.msg);
        abort();
    }
    m->device->download(m->device, m->fetched, m->arena, m->used);
    for (int i = 0; i < m->n_arrays; i++) {
        const Array *a = &m->array[i];
        for (size_t r = 0; a->is_out && r < a->bytes; r += a->stride) {
            memcpy((void *)(uintptr_t)(a->host + r), m->fetched + a->at + r, a->row);
            memcpy(m->sent + a->at + r, m->fetched + a->at + r, a->row);
        }
    }
    check_untouched(m, op);
}

/* ---- sizes ---- */

static size_t times(int a, int b, int c)
{
    return (size_t)a * (size_t)b * (size_t)c;
}

/* One more than the largest of n indices; 0 when none counts, that is when all are negative. */
static size_t beyond_largest(const int32_t *index, int n)
{
    size_t end = 0;
    for (int i = 0; i < n; i++)
        if (index[i] >= 0 && (size_t)index[i] >= end) end = (size_t)index[i] + 1;
    return end;
}

/* Elements of a pool of which `last` is the end inside the last of `n` parts. */
static size_t pool_bytes(size_t n, size_t part_bytes, size_t last)
{
    return n ? (n - 1) * part_bytes + last : 0;
}

static void add_weight(Mirror *m, Weight *w)
{
    add(m, &w->data, (size_t)w->rows * (size_t)weight_row_bytes(w), 0);
    IN(w->scale,
       times((w->rows + FP8_BLOCK - 1) / FP8_BLOCK, (w->cols + FP8_BLOCK - 1) / FP8_BLOCK, 1));
}

static void add_expert(Mirror *m, MoeExpert *e)
{
    add_weight(m, &e->gate);
    add_weight(m, &e->up);
    add_weight(m, &e->down);
}

static const Weight *add_weights(Mirror *m, const Weight *host, int n)
{
    Weight *w = copy_structs(m, host, (size_t)n * sizeof *w);
    for (int i = 0; i < n; i++)
        add_weight(m, &w[i]);
    return w;
}

/* ---- paged rows ---- */

/* What some rows need of a table and of the pages. */
typedef struct {
    const int32_t *table;
    int stride, page_tokens;
    size_t entries, pages;
} Paging;

static void use_row(Paging *p, int seq, int row)
{
    size_t entry = times(seq, p->stride, 1) + (size_t)(row / p->page_tokens);
    if (entry >= p->entries) p->entries = entry + 1;
    if ((size_t)p->table[entry] >= p->pages) p->pages = (size_t)p->table[entry] + 1;
}

static Paging kv_paging(const KvLayer *kv)
{
    return (Paging){kv->table, kv->table_stride, kv->page_tokens, 0, 0};
}

static void add_kv(Mirror *m, KvLayer *kv, const Paging *used, int is_out)
{
    size_t plane = times(kv->page_tokens, kv->n_kv_heads, kv->head_dim) * kv_type_bytes(kv->type);
    size_t last = (kv->k_offset > kv->v_offset ? kv->k_offset : kv->v_offset) + plane;
    add(m, &kv->pages, pool_bytes(used->pages, kv->page_bytes, last), is_out);
    IN(kv->table, used->entries);
}

/* ---- the operations' arrays ---- */

static void arrays_of_embed(Mirror *m, Embed *a)
{
    *m->weight = *a->table;
    a->table = m->weight;
    add_weight(m, m->weight);
    IN(a->token, (size_t)a->n);
    OUT_ROWS(a->out, a->n, a->out_stride, m->weight->cols);
}

static void arrays_of_gather_rows(Mirror *m, GatherRows *a)
{
    IN(a->x, beyond_largest(a->index, a->n) * (size_t)a->dim);
    IN(a->index, (size_t)a->n);
    size_t n = a->to ? beyond_largest(a->to, a->n) : (size_t)a->n;
    IN(a->to, (size_t)a->n);
    OUT(a->out, n * (size_t)a->dim);
}

static void arrays_of_add_norm(Mirror *m, AddNorm *a)
{
    size_t all = times(a->n, a->dim, 1);
    add(m, &a->x, all * sizeof *a->x, a->delta != NULL);
    IN(a->delta, all);
    IN(a->w, (size_t)a->dim);
    OUT_ROWS(a->out, a->n, a->out_stride, a->dim);
}

static void arrays_of_head_input(Mirror *m, HeadInput *a)
{
    *m->weight = *a->table;
    a->table = m->weight;
    add_weight(m, m->weight);
    size_t dim = (size_t)m->weight->cols, all = (size_t)a->n * dim;
    IN(a->token, (size_t)a->n);
    IN(a->hidden, all);
    IN(a->embed_norm, dim);
    IN(a->hidden_norm, dim);
    OUT(a->embedding, all);
    OUT(a->out, 2 * all);
}

static void arrays_of_gated_norm(Mirror *m, GatedNorm *a)
{
    size_t all = times(a->n, a->n_heads, a->dim);
    IN(a->x, all);
    IN(a->z, all);
    IN(a->w, (size_t)a->dim);
    OUT(a->out, all);
}

static void arrays_of_linear(Mirror *m, Linear *a)
{
    int step = a->prefill == PREFILL_FP8 ? PREFILL_FP8_ROWS : 1; /* linear.h */
    int n_written = (a->n + step - 1) / step * step;
    IN_ROWS(a->x, a->n, a->x_stride, a->product->w->cols);
    for (int i = 0; i < a->n_products; i++) {
        LinearProduct *p = &a->product[i];
        m->weight[i] = *p->w;
        p->w = &m->weight[i];
        add_weight(m, &m->weight[i]);
        OUT_ROWS(p->y, n_written, p->y_stride, p->w->rows);
    }
}

/* Slots up to the last one used, of it what lies below `last`. */
static void add_slots(Mirror *m, SlotLayer *slots, const int32_t *src, const int32_t *dst, int n,
                      size_t last)
{
    size_t read = beyond_largest(src, n), written = beyond_largest(dst, n);
    add(m, &slots->base, pool_bytes(read > written ? read : written, slots->slot_bytes, last), 1);
}

static void arrays_of_conv_gates(Mirror *m, ConvGates *a)
{
    int n_channels = 2 * a->n_k_heads * a->d_k + a->n_v_heads * a->d_v;
    size_t gates = times(a->n, a->n_v_heads, 1), keys = times(a->n, a->n_k_heads, a->d_k);
    add_slots(m, &a->slots, a->src, a->dst, a->n,
              a->slots.conv_offset + times(a->width - 1, n_channels, 1) * sizeof(float));
    IN(a->src, (size_t)a->n);
    IN(a->dst, (size_t)a->n);
    IN(a->qkv, times(a->n, n_channels, 1));
    IN(a->a, gates);
    IN(a->b, gates);
    IN(a->conv_w, times(n_channels, a->width, 1));
    IN(a->a_coef, (size_t)a->n_v_heads);
    IN(a->dt_bias, (size_t)a->n_v_heads);
    OUT(a->q, keys);
    OUT(a->k, keys);
    OUT(a->v, times(a->n, a->n_v_heads, a->d_v));
    OUT(a->decay, gates);
    OUT(a->beta, gates);
    IN(a->parent, (size_t)a->n);
}

static void arrays_of_gated_delta(Mirror *m, GatedDelta *a)
{
    size_t gates = times(a->n, a->n_v_heads, 1), keys = times(a->n, a->n_k_heads, a->d_k);
    add_slots(m, &a->slots, a->src, a->dst, a->n,
              a->slots.state_offset + times(a->n_v_heads, a->d_k, a->d_v) * sizeof(float));
    IN(a->src, (size_t)a->n);
    IN(a->dst, (size_t)a->n);
    IN(a->q, keys);
    IN(a->k, keys);
    OUT(a->v, times(a->n, a->n_v_heads, a->d_v));
    IN(a->decay, gates);
    IN(a->beta, gates);
    OUT(a->out, times(a->n, a->n_v_heads, a->d_v));
    IN(a->parent, (size_t)a->n);
}

static void arrays_of_delta_mixer(Mirror *m, DeltaMixer *a)
{
    arrays_of_conv_gates(m, &a->conv);
    arrays_of_gated_delta(m, &a->delta);
    arrays_of_gated_norm(m, &a->norm);
}

static void arrays_of_delta_fold(Mirror *m, DeltaFold *a)
{
    int n_channels = 2 * a->n_k_heads * a->d_k + a->n_v_heads * a->d_v;
    size_t rows = 0, paths = (size_t)a->n, last_layer = (size_t)(a->n_layers - 1);
    size_t state_end = a->slots.state_offset + times(a->n_v_heads, a->d_k, a->d_v) * sizeof(float);
    size_t conv_end = a->slots.conv_offset + times(a->width - 1, n_channels, 1) * sizeof(float);
    size_t end = state_end > conv_end ? state_end : conv_end;
    for (int p = 0; p < a->n; p++) {
        size_t used = beyond_largest(a->path + times(p, a->stride, 1), a->length[p]);
        if (used > rows) rows = used;
    }
    rows += last_layer * (size_t)a->layer_rows;
    size_t slots = beyond_largest(a->slot, a->n), from = beyond_largest(a->from, a->n);
    add(m, &a->slots.base,
        pool_bytes(slots > from ? slots : from, a->slots.slot_bytes,
                   last_layer * a->layer_bytes + end),
        1);
    IN(a->path, paths * (size_t)a->stride);
    IN(a->length, paths);
    IN(a->from, paths);
    IN(a->slot, paths);
    IN(a->qkv, rows * (size_t)n_channels);
    IN(a->k, rows * times(a->n_k_heads, a->d_k, 1));
    IN(a->u, rows * times(a->n_v_heads, a->d_v, 1));
    IN(a->decay, rows * (size_t)a->n_v_heads);
}

static void arrays_of_attention_prepare(Mirror *m, AttentionPrepare *a)
{
    Paging used = kv_paging(&a->kv);
    size_t dim = (size_t)a->kv.head_dim, n = (size_t)a->n;
    for (int i = 0; i < a->n; i++)
        use_row(&used, a->seq[i], a->kv_row[i]);
    add_kv(m, &a->kv, &used, 1);
    IN(a->qg, 2 * n * (size_t)a->n_heads * dim);
    IN(a->k, n * (size_t)a->kv.n_kv_heads * dim);
    IN(a->v, n * (size_t)a->kv.n_kv_heads * dim);
    IN(a->q_norm, dim);
    IN(a->k_norm, dim);
    IN(a->inv_freq, (size_t)a->n_rot / 2);
    IN(a->rope_pos, n);
    IN(a->seq, n);
    IN(a->kv_row, n);
    OUT(a->q, n * (size_t)a->n_heads * dim);
}

/* The rows that row i's keys lie in. */
static void use_keys(Paging *used, const TreeAttention *a, int i)
{
    int own = a->base[i] > a->first ? a->base[i] : a->first; /* the first that is an ancestor's */
    for (int t = a->pos[i], j = i; t >= own; t--) {
        use_row(used, a->seq[i], a->kv_row[j]);
        j = a->parent[j];
    }
    for (int t = a->first; t < a->base[i] && t <= a->pos[i]; t++)
        if (t == a->first || t % used->page_tokens == 0) use_row(used, a->seq[i], t);
}

static void arrays_of_tree_attention(Mirror *m, TreeAttention *a)
{
    Paging used = kv_paging(&a->kv);
    size_t rows = (size_t)(a->row0 + a->n), q = times(a->n, a->n_heads, a->kv.head_dim);
    for (int i = a->row0; i < a->row0 + a->n; i++)
        use_keys(&used, a, i);
    add_kv(m, &a->kv, &used, 0);
    IN(a->q, q);
    IN(a->qg, 2 * q);
    IN(a->seq, rows);
    IN(a->pos, rows);
    IN(a->base, rows);
    IN(a->parent, rows);
    IN(a->kv_row, rows);
    OUT(a->out, q);
}

static void arrays_of_swiglu(Mirror *m, SwiGlu *a)
{
    OUT(a->gate, times(a->n, a->dim, 1));
    IN(a->up, times(a->n, a->dim, 1));
}

static void arrays_of_moe_ffn(Mirror *m, MoeFfn *a)
{
    size_t all = times(a->n, a->dim, 1), experts = (size_t)a->n_experts;
    a->gate = add_weights(m, a->gate, a->n_experts);
    a->up = add_weights(m, a->up, a->n_experts);
    a->down = add_weights(m, a->down, a->n_experts);
    IN(a->gate, experts);
    IN(a->up, experts);
    IN(a->down, experts);
    IN(a->x, all);
    IN(a->logits, times(a->n, a->n_experts, 1));
    OUT(a->id, times(a->n, a->n_top, 1));
    OUT(a->weight, times(a->n, a->n_top, 1));
    IN(a->shared, all);
    add_expert(m, &a->shared_expert);
    IN(a->shared_gate, (size_t)a->n);
    OUT(a->scratch, (size_t)moe_scratch_floats(a->n, a->dim, a->width));
    OUT(a->out, all);
}

static void arrays_of_routed_ffn(Mirror *m, RoutedFfn *a)
{
    arrays_of_linear(m, &a->router);
    arrays_of_moe_ffn(m, &a->ffn);
}

/* logits are left as they were: an input, whatever the type says. */
static void arrays_of_sample(Mirror *m, Sample *a)
{
    size_t n = (size_t)a->n;
    SampleRow *row = copy_structs(m, a->row, n * sizeof *row);
    for (size_t i = 0; i < n; i++) {
        IN(row[i].counts, (size_t)a->n_vocab);
        IN(row[i].path, (size_t)row[i].n_path);
        IN(row[i].bias_id, (size_t)row[i].n_bias);
        IN(row[i].bias, (size_t)row[i].n_bias);
        IN(row[i].allowed, (size_t)(a->n_vocab + 63) / 64);
        IN(row[i].ban, (size_t)row[i].n_ban);
    }
    a->row = row;
    IN(a->row, n);
    IN(a->logits, times(a->n, a->n_vocab, 1));
    IN(a->allowed, (size_t)(a->n_vocab + 63) / 64);
    OUT(a->id, times(a->n, a->n_top, 1));
    OUT(a->logp, times(a->n, a->n_top, 1));
    OUT(a->bad, n);
}

static void arrays_of_token_logprobs(Mirror *m, TokenLogprobs *a)
{
    IN(a->logits, times(a->n, a->n_vocab, 1));
    IN(a->token, (size_t)a->n);
    OUT(a->chosen, (size_t)a->n);
    OUT(a->rank, (size_t)a->n);
    OUT(a->top_id, times(a->n, a->n_top, 1));
    OUT(a->top_logp, times(a->n, a->n_top, 1));
}

static void arrays_of_move_rows(Mirror *m, MoveRows *a)
{
    Paging used = {a->table, a->table_stride, a->page_tokens, 0, 0};
    for (int i = 0; i < a->n; i++) {
        use_row(&used, a->seq[i], a->from[i]);
        use_row(&used, a->seq[i], a->to[i]);
    }
    OUT(a->pages, pool_bytes(used.pages, a->page_bytes,
                             2 * times(a->n_layers, a->page_tokens, 1) * a->row_bytes));
    IN(a->table, used.entries);
    IN(a->seq, (size_t)a->n);
    IN(a->from, (size_t)a->n);
    IN(a->to, (size_t)a->n);
}

/* ---- the backend ---- */

#define MIRRORED(op, Args)                                                                         \
    static void op(Backend *be, const Args *a)                                                     \
    {                                                                                              \
        Mirror *m = (Mirror *)be;                                                                  \
        Args there = *a;                                                                           \
        m->used = m->structs_used = 0;                                                             \
        m->n_arrays = 0;                                                                           \
        arrays_of_##op(m, &there);                                                                 \
        send(m);                                                                                   \
        m->device->op(m->device, &there);                                                          \
        fetch(m, #op);                                                                             \
    }
MODEL_OPERATIONS(MIRRORED)

#define MIRRORED_SET(op, Args) be->op = op;

static void mirror_close(Backend *be)
{
    Mirror *m = (Mirror *)be;
    m->device->free(m->device, m->memory);
    m->device->close(m->device);
    mem_unmap(m->sent), mem_unmap(m->fetched), mem_unmap(m->structs);
    mem_free(m);
}

Backend *mirror_open(Backend *device)
{
    Mirror *m = mem_alloc(1, sizeof *m);
    Backend *be = &m->be;
    Error err;
    host_memory_fill(be);
    be->name = device->name;
    memcpy(be->isa, device->isa, sizeof be->isa);
    memcpy(be->wgmma, device->wgmma, sizeof be->wgmma);
    be->n_threads = device->n_threads;
    be->close = mirror_close;
    MODEL_OPERATIONS(MIRRORED_SET)
    m->device = device;
    m->memory = device->alloc(device, ARENA_BYTES + LINE, &err);
    if (!m->memory) die(err.msg);
    m->arena = (unsigned char *)m->memory + (LINE - (uintptr_t)m->memory % LINE) % LINE;
    m->sent = mem_map(ARENA_BYTES);
    m->fetched = mem_map(ARENA_BYTES);
    m->structs = mem_map(STRUCT_BYTES);
    if (!m->sent || !m->fetched || !m->structs) die("no host memory for its images");
    return be;
}

int mirror_open_gpus(Backend *gpu[MAX_GPU_BACKENDS])
{
    int n = open_gpu_backends(gpu);
    for (int i = 0; i < n; i++)
        gpu[i] = mirror_open(gpu[i]);
    return n;
}
