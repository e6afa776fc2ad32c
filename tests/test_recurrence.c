/*
 * test_recurrence.c: convolution and delta rule on every backend, against the definition and
 * against itself.
 *
 * Near: each instruction set against "ref", within the error that its source argues for.
 * Same bits, within one instruction set: any number of threads; rows together or one at a time;
 * a tree or each of its paths as a chain; many sequences in any mix and any split into calls; trees
 * that leave states or records, and what a fold makes of these; the operations of a layer or the
 * one that is all of them. A GPU's kernels: whatever order their blocks and lanes run in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/ops_ref.h"
#include "kernels/simt_host.h"
#include "tests/backends.h"

/* ---- the recurrences ---- */

typedef struct {
    int n_k_heads, n_v_heads, d_k, d_v, width, n; /* 2 n rows */
    int odd; /* floats between states and conv rows, so that slots are not aligned */
} DeltaShape;

static const DeltaShape delta_shapes[] = {
    {1, 1, 1, 1, 1, 3, 1},     {1, 1, 24, 40, 4, 6, 1},   {2, 2, 40, 24, 4, 9, 0},
    {2, 6, 48, 48, 4, 7, 1},   {1, 4, 128, 128, 4, 8, 0}, {2, 4, 64, 200, 3, 5, 0},
    {1, 2, 200, 33, 2, 12, 1}, {1, 2, 256, 36, 4, 4, 0},  {1, 4, 64, 33, 4, 2, 0},
};

/* For rows of many sequences: real head sizes, odd ones, more rows than a look-up takes in. */
static const DeltaShape batch_shapes[] = {
    {1, 2, 128, 128, 4, 32, 0}, {2, 4, 128, 36, 4, 4, 0}, {2, 2, 64, 24, 4, 12, 0},
    {1, 1, 128, 20, 4, 8, 1},   {1, 1, 256, 8, 4, 8, 0},  {1, 3, 100, 17, 3, 9, 1},
    {2, 2, 20, 12, 8, 12, 0},   {1, 1, 8, 8, 4, 60, 0},   {1, 1, 4, 140, 2, 10, 0},
    {1, 70, 4, 4, 4, 5, 0},     {1, 1, 12, 4, 1, 10, 1},
};

enum { N_MAIN = 8 };

/* A layer's arrays for 2 n rows; slots below N_MAIN are main slots, N_MAIN + i is row i's own. */
typedef struct {
    DeltaShape s;
    int rows, n_slots, n_channels;
    size_t qk_row, v_row, slot_floats, conv_at;
    float *qkv, *a, *b, *conv_w, *a_coef, *dt_bias, *slots;
    int32_t *src, *dst, *parent; /* parent is NULL without drafts */
    /* results */
    float *q, *k, *v, *decay, *beta, *out;
} Layer;

static Layer layer_new(Rng *r, const DeltaShape *s)
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
    l.slots = random_floats(r, (size_t)l.n_slots * l.slot_floats, 1);
    l.src = ints(rows), l.dst = ints(rows);
    l.q = floats(rows * l.qk_row), l.k = floats(rows * l.qk_row), l.v = floats(rows * l.v_row);
    l.decay = floats(rows * heads), l.beta = floats(rows * heads);
    l.out = floats(rows * l.v_row);
    return l;
}

/* A copy with the same inputs and its own slots and results. */
static Layer layer_copy(const Layer *from)
{
    Layer l = *from;
    size_t rows = (size_t)l.rows, heads = (size_t)l.s.n_v_heads;
    l.slots = floats((size_t)l.n_slots * l.slot_floats);
    memcpy(l.slots, from->slots, (size_t)l.n_slots * l.slot_floats * sizeof(float));
    l.q = floats(rows * l.qk_row), l.k = floats(rows * l.qk_row), l.v = floats(rows * l.v_row);
    l.decay = floats(rows * heads), l.beta = floats(rows * heads);
    l.out = floats(rows * l.v_row);
    return l;
}

static void layer_free_results(Layer *l)
{
    free(l->slots), free(l->q), free(l->k), free(l->v);
    free(l->decay), free(l->beta), free(l->out);
}

static void layer_free(Layer *l)
{
    layer_free_results(l);
    free(l->qkv), free(l->a), free(l->b), free(l->conv_w), free(l->a_coef), free(l->dt_bias);
    free(l->src), free(l->dst), free(l->parent);
}

/* What conv_gates and gated_delta do with rows first .. first + n of the layer, from slots src[] to
 * dst[]; no norm. */
static DeltaMixer rows_of(Layer *l, int first, int n, const int32_t *src, const int32_t *dst)
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

static void run_rows(Backend *be, Layer *l, int first, int n, const int32_t *src,
                     const int32_t *dst)
{
    DeltaMixer a = rows_of(l, first, n, src, dst);
    be->conv_gates(be, &a.conv);
    be->gated_delta(be, &a.delta);
}

/* The same; a GPU's kernels run in the reverse order in every other call. */
static void run_layer(Backend *be, Layer *l, int first, int n, const int32_t *src,
                      const int32_t *dst)
{
    static int n_calls;
    simt_reverse(n_calls++ % 2);
    run_rows(be, l, first, n, src, dst);
    simt_reverse(0);
}

/* Makes each head's state, n_rows x n_cols, n_cols x n_rows. */
static void transpose_states(Layer *l, int n_rows, int n_cols)
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

/* The definition's slots as backend b keeps them, and back. */
static void slots_of_backend(Layer *l, int b)
{
    if (is_gpu(b)) transpose_states(l, l->s.d_k, l->s.d_v);
}

static void slots_of_definition(Layer *l, int b)
{
    if (is_gpu(b)) transpose_states(l, l->s.d_v, l->s.d_k);
}

/* Random trees: row i of a sequence hangs on its main slot or on an earlier row of its own. */
static void plant_trees(Rng *r, Layer *l)
{
    for (int i = 0; i < l->rows; i++) {
        int seq = i / l->s.n, first = seq * l->s.n;
        l->dst[i] = N_MAIN + i;
        l->src[i] = i == first ? seq : l->dst[first + rng_int(r, i - first)];
    }
}

/* Row i's path run alone as a chain in place, row by row or at once, in a slot of its own. */
static void check_path(Backend *be, const Layer *tree, const Layer *start, int i, int at_once,
                       const char *what, uint64_t seed)
{
    int path[64], n = 0;
    int32_t slot[64];
    for (int j = i; j >= 0; j = tree->src[j] < N_MAIN ? -1 : tree->src[j] - N_MAIN)
        path[n++] = j;
    int32_t root = tree->src[path[n - 1]];
    Layer chain = layer_copy(start);
    Layer rows = layer_copy(start); /* the path's rows side by side */
    size_t width = (size_t)start->n_channels, heads = (size_t)start->s.n_v_heads;
    rows.qkv = floats((size_t)n * width);
    rows.a = floats((size_t)n * heads), rows.b = floats((size_t)n * heads);
    for (int m = 0; m < n; m++) {
        size_t from = (size_t)path[n - 1 - m], to = (size_t)m;
        memcpy(rows.qkv + to * width, start->qkv + from * width, width * sizeof(float));
        memcpy(rows.a + to * heads, start->a + from * heads, heads * sizeof(float));
        memcpy(rows.b + to * heads, start->b + from * heads, heads * sizeof(float));
        slot[m] = root;
    }
    for (int m = 0; m < n; m += at_once ? n : 1)
        run_layer(be, &rows, m, at_once ? n : 1, slot, slot);
    assert_true(same_bits(what, rows.out + (size_t)(n - 1) * rows.v_row,
                          tree->out + (size_t)i * tree->v_row, tree->v_row, seed));
    size_t state = (size_t)tree->dst[i] * tree->slot_floats;
    assert_true(same_bits(what, rows.slots + (size_t)root * rows.slot_floats, tree->slots + state,
                          tree->conv_at - (size_t)tree->s.odd, seed));
    assert_true(same_bits(what, rows.slots + (size_t)root * rows.slot_floats + rows.conv_at,
                          tree->slots + state + tree->conv_at, tree->slot_floats - tree->conv_at,
                          seed));
    free(rows.qkv), free(rows.a), free(rows.b);
    layer_free_results(&rows);
    layer_free_results(&chain);
}

static void check_same_layer(const Layer *got, const Layer *want, const char *what, uint64_t seed)
{
    size_t rows = (size_t)want->rows;
    assert_true(same_bits(what, got->decay, want->decay, rows * (size_t)want->s.n_v_heads, seed));
    assert_true(same_bits(what, got->out, want->out, rows * want->v_row, seed));
    assert_true(
        same_bits(what, got->slots, want->slots, (size_t)want->n_slots * want->slot_floats, seed));
}

/* All rows; a GPU's kernels once more, blocks and lanes in the other order, to the same bits. */
static void run_whole(int b, const Layer *own, Layer *got)
{
    run_rows(backend[b], got, 0, got->rows, got->src, got->dst);
    if (!is_gpu(b)) return;
    Layer twin = layer_copy(own);
    simt_reverse(1);
    run_rows(backend[b], &twin, 0, twin.rows, twin.src, twin.dst);
    simt_reverse(0);
    check_same_layer(&twin, got, "in reverse order", 0);
    layer_free_results(&twin);
}

/*
 * A decay is the exp of a product with log1p(exp(u)): a library's last bits of that, some 4 eps,
 * become as many times |log decay| of the decay.
 */
static int near_decays(const char *what, const float *got, const float *want, size_t n,
                       uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double limit = 4 * 0x1p-24 * (1 - log((double)want[i]));
        if (!near_all(what, &got[i], &want[i], 1, limit, 0, seed)) return 0;
    }
    return 1;
}

/*
 * Against ref: f32 sums of d_k terms, at most n rows deep; inputs and states are of order 1. A row
 * passes its parent's error on by decay (I - beta k k'), which is no larger than 1. The GPU's
 * kernel takes S'q apart into decay P'q + (k q) u, two sums of the same size.
 */
static void check_near_layer(const Layer *got, const Layer *want, const char *what, uint64_t seed)
{
    size_t rows = (size_t)want->rows, heads = (size_t)want->s.n_v_heads;
    double eps = 0x1p-24, unit = (want->s.d_k + 16) * eps;
    double deep = (want->s.n > 12 ? want->s.n : 12) * unit;
    assert_true(near_all(what, got->q, want->q, rows * want->qk_row, 32 * eps, 16 * eps, seed));
    assert_true(near_all(what, got->k, want->k, rows * want->qk_row, 32 * eps, 16 * eps, seed));
    assert_true(near_all(what, got->v, want->v, rows * want->v_row, 8 * eps, 16 * eps, seed));
    assert_true(near_decays(what, got->decay, want->decay, rows * heads, seed));
    assert_true(near_all(what, got->beta, want->beta, rows * heads, 6 * eps, 0, seed));
    assert_true(near_all(what, got->out, want->out, rows * want->v_row, unit, deep, seed));
    assert_true(near_all(what, got->slots, want->slots, (size_t)want->n_slots * want->slot_floats,
                         unit, deep, seed));
}

static void test_recurrence(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof delta_shapes / sizeof *delta_shapes; s++) {
        Rng r = rng_new(400 + s);
        Layer start = layer_new(&r, &delta_shapes[s]);
        plant_trees(&r, &start);
        Layer want = layer_copy(&start), first = {.rows = 0};
        run_layer(ref, &want, 0, want.rows, start.src, start.dst);
        for (int i = 0; i < want.rows; i++)
            check_path(ref, &want, &start, i, 1, "path on ref", r.seed);
        for (int b = 0; b < n_backends; b++) {
            Layer own = layer_copy(&start);
            slots_of_backend(&own, b);
            Layer got = layer_copy(&own);
            run_whole(b, &own, &got);
            if (b == leader(b)) {
                if (first.rows) layer_free_results(&first);
                first = layer_copy(&got);
                run_layer(backend[b], &first, 0, 0, start.src, start.dst); /* no rows: no change */
                memcpy(first.decay, got.decay,
                       (size_t)(got.rows * got.s.n_v_heads) * sizeof(float));
                memcpy(first.out, got.out, (size_t)got.rows * got.v_row * sizeof(float));
            }
            check_same_layer(&got, &first, about("recurrence", b), r.seed);
            for (int i = is_gpu(b) ? 2 : 0; i < got.rows; i += is_gpu(b) ? 3 : 1)
                check_path(backend[b], &got, &own, i, i % 2, about("path", b), r.seed);
            slots_of_definition(&got, b);
            check_near_layer(&got, &want, about("recurrence", b), r.seed);
            layer_free_results(&got);
            layer_free_results(&own);
        }
        layer_free_results(&first);
        layer_free_results(&want);
        layer_free(&start);
    }
}

/* ---- many sequences in a call ---- */

/* How a sequence of a mixed batch uses its slots. */
typedef enum {
    CHAIN_IN_PLACE,   /* a prompt */
    ROOT_IN_PLACE,    /* the engine's tree */
    OWN_SLOTS,        /* a tree that leaves its main slot alone */
    ANY_OF_ITS_SLOTS, /* rows overwrite whatever slot their sequence has */
    N_SLOT_USES,
} SlotUse;

/* Rows of n_seqs sequences, side by side or in any mix; each starts from its main slot. */
static void plant_batch(Rng *r, Layer *l, int n_seqs, int mixed)
{
    int n_rows[N_MAIN] = {0}, first_use = rng_int(r, N_SLOT_USES);
    int32_t *of = ints((size_t)l->rows * N_MAIN); /* the slots that each sequence has */
    for (int i = 0; i < l->rows; i++) {
        int seq = mixed ? rng_int(r, n_seqs) : i * n_seqs / l->rows, n = n_rows[seq]++;
        SlotUse use = (SlotUse)((first_use + seq) % N_SLOT_USES);
        int32_t *has = of + (size_t)seq * (size_t)l->rows, own = N_MAIN + i;
        int is_next = rng_int(r, 2);
        if (n == 0) has[0] = seq;
        l->src[i] = n == 0 ? seq : has[is_next ? n - 1 : rng_int(r, n)];
        l->dst[i] = own;
        if (use == CHAIN_IN_PLACE) l->src[i] = l->dst[i] = seq;
        if (use == ROOT_IN_PLACE && n == 0) l->dst[i] = seq;
        if (use == ANY_OF_ITS_SLOTS && rng_int(r, 2))
            l->dst[i] = rng_int(r, 2) ? l->src[i] : has[rng_int(r, n ? n : 1)];
        has[n] = l->dst[i];
    }
    free(of);
}

/* The row of a call that leaves what row i finds in its slot, or -1. */
static int parent_row(const int32_t *src, const int32_t *dst, int i)
{
    for (int j = i - 1; j >= 0; j--)
        if (dst[j] == src[i]) return j;
    return -1;
}

/* 1 if each slot from which a tree of these rows starts is written by rows of that tree alone. */
static int is_allowed(const int32_t *src, const int32_t *dst, int n)
{
    for (int i = 0; i < n; i++) {
        int root = i;
        for (int p = i; p >= 0; p = parent_row(src, dst, p))
            root = p;
        for (int k = 0; k < n; k++) /* another slot, and row k starts from it */
            if (src[k] == dst[i] && src[k] != src[root] && parent_row(src, dst, k) < 0) return 0;
    }
    return 1;
}

/* All rows in calls of 1 .. max_rows, fewer where the header does not allow them in one. */
static void run_split(Rng *r, Backend *be, Layer *l, int max_rows)
{
    for (int at = 0, n; at < l->rows; at += n) {
        n = 1 + rng_int(r, max_rows);
        if (n > l->rows - at) n = l->rows - at;
        while (!is_allowed(l->src + at, l->dst + at, n))
            n--;
        run_layer(be, l, at, n, l->src + at, l->dst + at);
    }
}

static void check_batch(Rng *r, const Layer *start)
{
    Layer want = layer_copy(start);
    assert_true(is_allowed(start->src, start->dst, start->rows));
    run_layer(ref, &want, 0, want.rows, start->src, start->dst);
    for (int b = 0; b < n_backends; b++) {
        if (b != leader(b)) continue;
        Layer own = layer_copy(start);
        slots_of_backend(&own, b);
        Layer got = layer_copy(&own);
        run_whole(b, &own, &got);
        for (int max_rows = 1; max_rows < 10; max_rows += 8) {
            Layer split = layer_copy(&own);
            run_split(r, backend[b], &split, max_rows);
            check_same_layer(&split, &got, about("split batch", b), r->seed);
            layer_free_results(&split);
        }
        slots_of_definition(&got, b);
        check_near_layer(&got, &want, about("batch", b), r->seed);
        layer_free_results(&got);
        layer_free_results(&own);
    }
    layer_free_results(&want);
}

static void test_batches(void **state)
{
    (void)state;
    static const int n_seqs[] = {1, 2, 5, N_MAIN};
    for (size_t s = 0; s < sizeof batch_shapes / sizeof *batch_shapes; s++)
        for (int c = 0; c < 4; c++) {
            const DeltaShape *shape = &batch_shapes[s];
            int is_large = shape->n * shape->n_v_heads * shape->d_k * shape->d_v > 1 << 18;
            if (is_large && c < 3) continue;
            Rng r = rng_new(500 + 10 * s + (uint64_t)c);
            Layer start = layer_new(&r, shape);
            plant_batch(&r, &start, n_seqs[c], c % 2);
            check_batch(&r, &start);
            layer_free(&start);
        }
}

/* ---- rows that leave no state, and folds ---- */

/* A tree's shape, and beside it: a random one, a chain, and the one with most open branches. */
typedef enum { DRAFT_RANDOM, DRAFT_CHAIN, DRAFT_COMB, N_DRAFT_SHAPES } DraftShape;

/* Row i's parent in a tree of n rows, depth first; parent[] of the rows before it is known. */
static int draft_parent(Rng *r, DraftShape shape, const int32_t *parent, int i, int n)
{
    int p = i - 1;
    if (shape == DRAFT_COMB) return i < n / 2 + 1 ? i - 1 : n - 1 - i;
    while (shape == DRAFT_RANDOM && p > 0 && rng_int(r, 3) == 0)
        p = parent[p];
    return p;
}

enum { MAX_PATHS = N_MAIN };

/* The same rows twice: trees that leave a state in a slot for each row, and none. */
typedef struct {
    Layer slots, drafts;
    int n_paths;
    int32_t path[MAX_PATHS][MAX_DRAFT_ROWS + 3], length[MAX_PATHS];
    int32_t from[MAX_PATHS], slot[MAX_PATHS]; /* the tree's own, where the fold leaves the state */
    int32_t last[MAX_PATHS];                  /* row at the end of a path */
} Twins;

/* Trees of up to MAX_DRAFT_ROWS rows side by side, some prompts in place between them. */
static void plant_twins(Rng *r, Twins *t)
{
    Layer *a = &t->slots, *b = &t->drafts;
    int rows = a->rows;
    b->parent = ints((size_t)rows);
    for (int at = 0, seq = 0, n; at < rows; at += n, seq++) {
        int left = rows - at, is_prompt = seq % 3 == 1;
        DraftShape shape = (DraftShape)rng_int(r, N_DRAFT_SHAPES);
        n = seq == N_MAIN - 1 ? left : 1 + rng_int(r, left);
        if (n > MAX_DRAFT_ROWS) n = MAX_DRAFT_ROWS;
        assert_true(seq < N_MAIN);
        for (int i = 0; i < n; i++) {
            int p = i ? draft_parent(r, shape, b->parent + at, i, n) : -1;
            b->parent[at + i] = p; /* for now in the tree; a prompt's is not looked at */
            a->src[at + i] = is_prompt || p < 0 ? seq : N_MAIN + at + p;
            a->dst[at + i] = is_prompt ? seq : N_MAIN + at + i;
            b->src[at + i] = seq;
            b->dst[at + i] = is_prompt ? seq : -1;
        }
        for (int i = 1; i < n; i++)
            b->parent[at + i] += at;
        if (is_prompt) continue;
        int k = t->n_paths++, row = at + rng_int(r, n), length = 0;
        if (rng_int(r, 4) == 0) row = at + n - 1;
        for (int i = row; i >= 0; i = b->parent[i])
            length++;
        for (int i = row, m = length; i >= 0; i = b->parent[i])
            t->path[k][--m] = i;
        t->last[k] = row;
        t->length[k] = rng_int(r, 6) ? length : 0; /* 0: nothing of this tree is kept */
        t->from[k] = seq;
        t->slot[k] = rng_int(r, 2) ? seq : N_MAIN + row; /* in place, or in a row's that has none */
    }
}

/* Rows of `from` and, `gap` rows after its last, those of `more`. */
static float *two_layers(const float *from, const float *more, size_t rows, size_t gap, size_t row)
{
    float *x = floats((2 * rows + gap) * row);
    memcpy(x, from, rows * row * sizeof *x);
    memcpy(x + (rows + gap) * row, more, rows * row * sizeof *x);
    return x;
}

/* The paths of both layers folded in one call; the layers' slots are the two halves of a slot. */
static void fold_both(Backend *be, const Twins *t, Layer *one, Layer *two)
{
    enum { GAP = 3 };
    const DeltaShape *s = &one->s;
    size_t rows = (size_t)one->rows, heads = (size_t)s->n_v_heads, n = one->slot_floats;
    size_t bytes = n * sizeof(float);
    float *qkv = two_layers(one->qkv, two->qkv, rows, GAP, (size_t)one->n_channels);
    float *k = two_layers(one->k, two->k, rows, GAP, one->qk_row);
    float *u = two_layers(one->v, two->v, rows, GAP, one->v_row);
    float *decay = two_layers(one->decay, two->decay, rows, GAP, heads);
    float *slots = floats(2 * n * (size_t)one->n_slots);
    for (size_t i = 0; i < (size_t)one->n_slots; i++) {
        memcpy(slots + 2 * i * n, one->slots + i * n, bytes);
        memcpy(slots + (2 * i + 1) * n, two->slots + i * n, bytes);
    }
    be->delta_fold(be, &(DeltaFold){.n = t->n_paths,
                                    .n_layers = 2,
                                    .n_k_heads = s->n_k_heads,
                                    .n_v_heads = s->n_v_heads,
                                    .d_k = s->d_k,
                                    .d_v = s->d_v,
                                    .width = s->width,
                                    .stride = MAX_DRAFT_ROWS + 3,
                                    .path = t->path[0],
                                    .length = t->length,
                                    .from = t->from,
                                    .slot = t->slot,
                                    .layer_rows = one->rows + GAP,
                                    .qkv = qkv,
                                    .k = k,
                                    .u = u,
                                    .decay = decay,
                                    .slots = {(unsigned char *)slots, 2 * bytes, 0,
                                              one->conv_at * sizeof(float)},
                                    .layer_bytes = bytes});
    for (size_t i = 0; i < (size_t)one->n_slots; i++) {
        memcpy(one->slots + i * n, slots + 2 * i * n, bytes);
        memcpy(two->slots + i * n, slots + (2 * i + 1) * n, bytes);
    }
    free(slots), free(qkv), free(k), free(u), free(decay);
}

/* Takes what folds should leave to `want`: the slot of each path's last row as its main slot. */
static void promote(const Twins *t, Layer *want)
{
    size_t n = want->slot_floats;
    for (int p = 0; p < t->n_paths; p++)
        if (t->length[p] && t->slot[p] < N_MAIN)
            memcpy(want->slots + (size_t)t->slot[p] * n,
                   want->slots + (size_t)(N_MAIN + t->last[p]) * n, n * sizeof(float));
}

/* Runs both twins of a layer; the drafts' slots are then what they were, but for the prompts'. */
static void run_twins(Rng *r, Backend *be, const Twins *t, Layer *slots, Layer *drafts,
                      const char *what)
{
    size_t rows = (size_t)slots->rows;
    simt_reverse(rng_int(r, 2));
    run_rows(be, slots, 0, slots->rows, t->slots.src, t->slots.dst);
    simt_reverse(rng_int(r, 2));
    run_rows(be, drafts, 0, drafts->rows, t->drafts.src, t->drafts.dst);
    simt_reverse(0);
    assert_true(same_bits(what, drafts->q, slots->q, rows * slots->qk_row, r->seed));
    assert_true(same_bits(what, drafts->k, slots->k, rows * slots->qk_row, r->seed));
    for (size_t i = 0; i < rows; i++) { /* a draft has u there, of which its state is made */
        if (t->drafts.dst[i] < 0) continue;
        size_t at = i * slots->v_row;
        assert_true(same_bits(what, drafts->v + at, slots->v + at, slots->v_row, r->seed));
    }
    assert_true(same_bits(what, drafts->out, slots->out, rows * slots->v_row, r->seed));
}

/* The state and the convolution's inputs; what lies between them is nobody's. */
static void check_slot(Rng *r, const Layer *got, const Layer *want, size_t slot, const char *what)
{
    size_t row = want->slot_floats, conv = want->conv_at, gap = (size_t)want->s.odd;
    const float *x = got->slots + slot * row, *y = want->slots + slot * row;
    assert_true(same_bits(what, x, y, conv - gap, r->seed));
    assert_true(same_bits(what, x + conv, y + conv, row - conv, r->seed));
}

static void check_twins(Rng *r, Backend *be, const Twins *t, const Layer start[2], int transposed,
                        const char *what)
{
    Layer slots[2], drafts[2];
    for (int l = 0; l < 2; l++) {
        slots[l] = layer_copy(&start[l]);
        if (transposed) transpose_states(&slots[l], start[l].s.d_k, start[l].s.d_v);
        drafts[l] = layer_copy(&slots[l]);
        drafts[l].parent = t->drafts.parent;
        Layer before = layer_copy(&slots[l]);
        run_twins(r, be, t, &slots[l], &drafts[l], what);
        for (int p = 0; p < t->n_paths; p++) { /* a tree's own slot stays */
            size_t at = (size_t)t->from[p] * before.slot_floats;
            assert_true(same_bits(what, drafts[l].slots + at, before.slots + at, before.slot_floats,
                                  r->seed));
        }
        layer_free_results(&before);
        promote(t, &slots[l]);
    }
    fold_both(be, t, &drafts[0], &drafts[1]);
    for (int l = 0; l < 2; l++) {
        size_t row = slots[l].slot_floats, own = N_MAIN * row; /* nobody's slots */
        const float *was = start[l].slots + own;
        for (size_t i = 0; i < N_MAIN; i++)
            check_slot(r, &drafts[l], &slots[l], i, what);
        for (int p = 0; p < t->n_paths; p++) {
            size_t i = (size_t)t->slot[p];
            if (i < N_MAIN || !t->length[p]) continue;
            check_slot(r, &drafts[l], &slots[l], i, what);
            memcpy(drafts[l].slots + i * row, start[l].slots + i * row, row * sizeof(float));
        }
        if (!transposed)
            assert_true(
                same_bits(what, drafts[l].slots + own, was, (size_t)start[l].rows * row, r->seed));
        layer_free_results(&slots[l]);
        layer_free_results(&drafts[l]);
    }
}

static void test_drafts(void **state)
{
    (void)state;
    size_t n_shapes = sizeof batch_shapes / sizeof *batch_shapes;
    for (size_t k = 0; k < 2 * n_shapes; k++) {
        const DeltaShape *shape = &batch_shapes[k % n_shapes];
        Rng r = rng_new(700 + k);
        Layer start[2] = {layer_new(&r, shape), layer_new(&r, shape)};
        Twins t = {.slots = layer_new(&r, shape), .drafts = layer_new(&r, shape)};
        plant_twins(&r, &t);
        check_twins(&r, ref, &t, start, 0, "drafts on ref");
        for (int b = 0; b < n_backends; b++)
            check_twins(&r, backend[b], &t, start, is_gpu(b), about("drafts", b));
        layer_free(&t.slots), layer_free(&t.drafts);
        layer_free(&start[0]), layer_free(&start[1]);
    }
}

/* ---- the three operations between a layer's matrices, one after the other and as one ---- */

/* Up to 16 rows of heads of 128 are one launch on a GPU; then what is not. */
static const DeltaShape mixer_shapes[] = {
    {1, 2, 128, 128, 4, 8, 0}, {2, 6, 128, 128, 4, 5, 0}, {3, 3, 128, 128, 4, 3, 0},
    {1, 1, 128, 128, 4, 9, 0}, {1, 1, 128, 128, 4, 4, 1}, {1, 1, 128, 128, 3, 4, 0},
    {1, 2, 128, 64, 4, 4, 0},  {1, 2, 64, 128, 4, 4, 0},  {2, 4, 64, 200, 4, 3, 0},
};

/* What a layer's norm takes beside the rows. */
typedef struct {
    float *z, *w;
} MixerNorm;

static DeltaMixer mixer_of(Layer *l, const MixerNorm *norm, int first, int n)
{
    DeltaMixer a = rows_of(l, first, n, l->src + first, l->dst + first);
    float *out = a.delta.out;
    a.norm = (GatedNorm){
        n, l->s.n_v_heads, l->s.d_v, 1e-6f, out, norm->z + (size_t)first * l->v_row, norm->w, out};
    return a;
}

static void check_same_mix(const Layer *got, const Layer *want, const char *what, uint64_t seed)
{
    size_t heads = (size_t)want->s.n_v_heads, rows = (size_t)want->rows;
    assert_true(same_bits(what, got->out, want->out, rows * want->v_row, seed));
    assert_true(
        same_bits(what, got->slots, want->slots, (size_t)want->n_slots * want->slot_floats, seed));
    for (size_t i = 0; i < rows; i++) { /* records */
        size_t qk = i * want->qk_row, v = i * want->v_row, gate = i * heads;
        if (want->dst[i] >= 0) continue;
        assert_true(same_bits(what, got->k + qk, want->k + qk, want->qk_row, seed));
        assert_true(same_bits(what, got->v + v, want->v + v, want->v_row, seed));
        assert_true(same_bits(what, got->decay + gate, want->decay + gate, heads, seed));
    }
}

/* All rows at once, blocks in both orders; where no tree is cut in two, in several calls, too. */
static void check_mixer(Rng *r, int b, const Layer *start, const MixerNorm *norm)
{
    const char *what = about("mixer", b);
    Backend *be = backend[b];
    Layer want = layer_copy(start);
    DeltaMixer a = mixer_of(&want, norm, 0, want.rows);
    backend_mix_in_turn(be, &a);
    for (int reverse = 0; reverse < 2; reverse++) {
        Layer got = layer_copy(start);
        a = mixer_of(&got, norm, 0, got.rows);
        simt_reverse(reverse);
        be->delta_mixer(be, &a);
        simt_reverse(0);
        check_same_mix(&got, &want, what, r->seed);
        layer_free_results(&got);
    }
    Layer split = layer_copy(start);
    for (int at = 0, n; at < split.rows && !split.parent; at += n) {
        n = 1 + rng_int(r, split.rows - at);
        while (!is_allowed(split.src + at, split.dst + at, n))
            n--;
        a = mixer_of(&split, norm, at, n);
        be->delta_mixer(be, &a);
    }
    if (!split.parent) check_same_mix(&split, &want, what, r->seed);
    layer_free_results(&split);
    layer_free_results(&want);
}

/* All rows are one tree, and none leaves a state. */
static void plant_one_tree(Rng *r, Layer *l)
{
    for (int i = 0; i < l->rows; i++) {
        l->parent[i] = i ? draft_parent(r, DRAFT_RANDOM, l->parent, i, l->rows) : -1;
        l->src[i] = 0;
        l->dst[i] = -1;
    }
}

static void test_mixer(void **state)
{
    (void)state;
    enum { TRIES = 4 };
    for (size_t s = 0; s < sizeof mixer_shapes / sizeof *mixer_shapes; s++)
        for (int try = 0; try < TRIES; try++) {
            Rng r = rng_new(900 + TRIES * s + (uint64_t)try);
            const DeltaShape *shape = &mixer_shapes[s];
            Layer states = layer_new(&r, shape);
            Twins t = {.slots = layer_new(&r, shape), .drafts = layer_new(&r, shape)};
            size_t all = (size_t)states.rows * states.v_row;
            MixerNorm norm = {random_floats(&r, all, 4), random_floats(&r, (size_t)shape->d_v, 1)};
            plant_batch(&r, &states, 1 + rng_int(&r, N_MAIN), try % 2);
            plant_twins(&r, &t);
            for (int b = 0; b < n_backends; b++) {
                if (b != leader(b)) continue;
                check_mixer(&r, b, &states, &norm);
                check_mixer(&r, b, &t.drafts, &norm);
            }
            plant_one_tree(&r, &t.drafts);
            for (int b = 0; b < n_backends; b++)
                if (b == leader(b)) check_mixer(&r, b, &t.drafts, &norm);
            layer_free(&states), layer_free(&t.slots), layer_free(&t.drafts);
            free(norm.z), free(norm.w);
        }
}

/* Worked out by hand in double precision: one head, d_k = d_v = 2, three tokens. */
static void test_golden(void **state)
{
    (void)state;
    static const float a[] = {-1, 0, 1}, b[] = {0, 1, -1}, dt_bias[] = {0.25f};
    static const float a_coef[] = {-1.6487212707f}; /* -exp(0.5) */
    static const float q[] = {0.31622773f, 0.63245547f, -0.63245528f,
                              0.31622764f, 0.4999995f,  0.4999995f};
    static const float k[] = {0.44721342f, -0.89442683f, 0.7071066f,
                              0.7071066f,  -0.12403472f, 0.99227775f};
    static const float v[] = {1, -1, 0.5f, 2, -1.5f, 0.25f};
    static const float want_decay[] = {0.52843131f, 0.25621358f, 0.08405681f};
    static const float want_beta[] = {0.5f, 0.73105858f, 0.26894142f};
    static const float want_out[] = {-0.21213193f, 0.21213193f,  -0.16082517f,
                                     -0.24784874f, -0.15524655f, 0.10692323f};
    static const float want_state[] = {0.07868061f, 0.07479328f, -0.38917402f, 0.13905339f};
    static const float norm_w[] = {1.5f, 0.5f}, z[] = {0.5f, -1};
    static const float want_norm[] = {-0.54371901f, -0.10786488f};
    static const int32_t slot[] = {0, 0, 0};
    for (int i = -1; i < n_backends; i++) {
        Backend *be = i < 0 ? ref : backend[i];
        float slots[16] = {0}, decay[3], beta[3], out[6], norm[2], own_v[6];
        float qkv[18] = {0}, conv_w[6] = {0}, cq[6], ck[6], cv[6];
        SlotLayer layer = {(unsigned char *)slots, sizeof slots, 0, 4 * sizeof(float)};
        be->conv_gates(be, &(ConvGates){3,     1,  1,      2,      2,       1,    qkv,
                                        a,     b,  conv_w, a_coef, dt_bias, slot, slot,
                                        layer, cq, ck,     cv,     decay,   beta, NULL});
        assert_true(near_all("decay", decay, want_decay, 3, 0, 1e-7, 0));
        assert_true(near_all("beta", beta, want_beta, 3, 0, 1e-7, 0));
        memcpy(own_v, v, sizeof v);
        be->gated_delta(be, &(GatedDelta){3, 1, 1, 2, 2, q, k, own_v, decay, beta, slot, slot,
                                          layer, out, 0, NULL});
        assert_true(near_all("out", out, want_out, 6, 0, 2e-7, 0));
        Layer l = {.s = {.n_v_heads = 1, .d_k = 2, .d_v = 2}, .n_slots = 1, .slots = slots};
        if (i >= 0) slots_of_definition(&l, i);
        assert_true(near_all("state", slots, want_state, 4, 0, 2e-7, 0));
        be->gated_norm(be, &(GatedNorm){1, 1, 2, 1e-6f, out + 4, z, norm_w, norm});
        assert_true(near_all("norm", norm, want_norm, 2, 0, 1e-5, 0));
    }
}

/* The convolution on ones and powers of two, by hand: width 3, one channel of each kind. */
static void test_convolution_by_hand(void **state)
{
    (void)state;
    static const float qkv[] = {1, 1, 4, 1, 1, 8}, conv_w[] = {0, 0, 1, 0, 0, 1, 1, 10, 100};
    static const float a[] = {0, 0}, a_coef[] = {-1}, dt_bias[] = {0};
    static const int32_t src[] = {0, 1}, dst[] = {1, 2};
    for (int i = -1; i < n_backends; i++) {
        Backend *be = i < 0 ? ref : backend[i];
        float slots[3][8] = {
            {0, 0, 0, 1, 0, 0, 2}}; /* state, then oldest and newer of 3 channels */
        float q[2], k[2], v[2], decay[2], beta[2];
        SlotLayer layer = {(unsigned char *)slots, sizeof slots[0], 0, sizeof(float)};
        be->conv_gates(be, &(ConvGates){2,     1, 1,      1,      1,       3,    qkv,
                                        a,     a, conv_w, a_coef, dt_bias, src,  dst,
                                        layer, q, k,      v,      decay,   beta, NULL});
        /* v: 1 + 2 * 10 + 4 * 100, then 2 + 4 * 10 + 8 * 100; silu changes neither */
        assert_true(v[0] == 421 && v[1] == 842);
        assert_true(slots[2][3] == 4 && slots[2][6] == 8 && slots[0][3] == 1);
        /* log(2) = softplus(0) */
        assert_true(fabsf(decay[0] - 0.5f) < 1e-6f && beta[1] == 0.5f);
    }
}

static void test_no_allocation(void **state)
{
    (void)state;
    Rng r = rng_new(1);
    Layer l = layer_new(&r, &delta_shapes[3]);
    plant_trees(&r, &l);
    unsigned long before = mem_count();
    for (int b = 0; b < n_backends; b++)
        run_layer(backend[b], &l, 0, l.rows, l.src, l.dst);
    assert_int_equal(mem_count(), before);
    layer_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recurrence),    cmocka_unit_test(test_batches),
        cmocka_unit_test(test_drafts),        cmocka_unit_test(test_mixer),
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_convolution_by_hand),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests_name("recurrence", tests, open_backends, close_backends);
}
