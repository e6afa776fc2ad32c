/*
 * test_kernels.c: every backend against the definitions, and every backend against itself.
 *
 * Near: each instruction set against "ref", within the error that its source argues for.
 * Same bits, within one instruction set: any number of threads; rows together or one at a time;
 * a tree or each of its paths as a chain; alone or beside other sequences.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/backend.h"
#include "kernels/ops_ref.h"
#include "tests/near.h"

enum { MAX_BACKENDS = 9, MAX_VOCAB = 512 };

/* [0, n_backends): for each instruction set 1, 2 and 3 threads. */
static Backend *ref, *backend[MAX_BACKENDS];
static int n_backends;
static char label[80];

static const char *about(const char *op, int b)
{
    snprintf(label, sizeof label, "%s on %s with %d threads", op, backend[b]->isa,
             backend[b]->n_threads);
    return label;
}

static int open_backends(void **state)
{
    (void)state;
    static const char *const isa[] = {"plain", "avx2", "avx512"};
    ref = backend_ref_open(MAX_VOCAB);
    for (int i = 0; i < 3; i++)
        for (int threads = 1; threads <= 3; threads++) {
            Backend *be = backend_cpu_open(threads, isa[i], MAX_VOCAB, NULL);
            if (be) backend[n_backends++] = be;
        }
    printf("%d backends, best %s\n", n_backends, backend[n_backends - 1]->isa);
    return 0;
}

static int close_backends(void **state)
{
    (void)state;
    ref->close(ref);
    for (int b = 0; b < n_backends; b++)
        backend[b]->close(backend[b]);
    return 0;
}

/* The first backend of b's instruction set: what the bits of b are compared with. */
static int leader(int b)
{
    return b / 3 * 3;
}

/* Arrays of exactly their size, so that a sanitizer sees a step over the end. */
static float *floats(size_t n)
{
    float *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static float *random_floats(Rng *r, size_t n, float scale)
{
    float *x = floats(n);
    rng_fill(r, x, n, scale);
    return x;
}

static int32_t *ints(size_t n)
{
    int32_t *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

/* A matrix with random content. */
static Weight random_weight(Rng *r, WeightType type, int rows, int cols)
{
    size_t n = (size_t)rows * (size_t)cols;
    size_t n_scales = (size_t)((rows + 127) / 128) * (size_t)((cols + 127) / 128);
    unsigned char *data = malloc(n * (type == WEIGHT_F32 ? 4 : type == WEIGHT_BF16 ? 2 : 1));
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) {
        float x = rng_float(r);
        uint16_t half;
        memcpy(&half, (char *)&x + 2, sizeof half);
        if (type == WEIGHT_F32) memcpy(data + 4 * i, &x, 4);
        if (type == WEIGHT_BF16) memcpy(data + 2 * i, &half, 2);
        if (type == WEIGHT_FP8) data[i] = (unsigned char)(rng_next(r) & 0xf7); /* no NaN */
    }
    Weight w = {.type = type, .rows = rows, .cols = cols, .data = data};
    if (type == WEIGHT_FP8) {
        float *scale = random_floats(r, n_scales, 0.01f);
        w.scale = scale;
    }
    return w;
}

static void free_weight(const Weight *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scale);
}

/* ---- linear ---- */

typedef struct {
    WeightType type;
    int rows, cols, n;
} LinearShape;

static const LinearShape linear_shapes[] = {
    {WEIGHT_F32, 1, 1, 1},       {WEIGHT_F32, 24, 40, 7},      {WEIGHT_F32, 301, 48, 3},
    {WEIGHT_BF16, 5, 24, 2},     {WEIGHT_BF16, 48, 200, 13},   {WEIGHT_BF16, 301, 1040, 5},
    {WEIGHT_BF16, 96, 2056, 51}, {WEIGHT_BF16, 200, 256, 100}, {WEIGHT_FP8, 3, 24, 2},
    {WEIGHT_FP8, 130, 300, 9},   {WEIGHT_FP8, 301, 1030, 6},   {WEIGHT_FP8, 256, 2048, 49},
};

/* |error| <= roundings * 2^-24 * sum |x w|, roundings as linear_cpu.c counts them for 4 lanes. */
static void check_linear(const Weight *w, const float *x, int x_stride, int n, const float *got,
                         int y_stride, const char *what, uint64_t seed)
{
    double roundings = (w->cols < 1024 ? w->cols : 1024) / 4.0 + w->cols / 1024.0 + 5;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < w->rows; r++) {
            double sum = 0, size = 0;
            for (int k = 0; k < w->cols; k++) {
                double p = (double)x[i * x_stride + k] * (double)weight_at(w, r, k);
                sum += p, size += fabs(p);
            }
            float want = (float)sum;
            assert_true(near_all(what, &got[i * y_stride + r], &want, 1, 0,
                                 roundings * 0x1p-24 * size + 1e-30, seed));
        }
}

static void test_linear(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof linear_shapes / sizeof *linear_shapes; s++) {
        const LinearShape *shape = &linear_shapes[s];
        Rng r = rng_new(100 + s);
        int n = shape->n, x_stride = shape->cols + 3, y_stride = shape->rows + 1;
        Weight w = random_weight(&r, shape->type, shape->rows, shape->cols);
        float *x = random_floats(&r, (size_t)(n * x_stride), 2);
        float *y = floats((size_t)(n * y_stride)), *first = floats((size_t)(n * y_stride));
        float *alone = floats((size_t)shape->rows);
        Linear a = {&w, n, x, x_stride, y, y_stride};
        ref->linear(ref, &a);
        check_linear(&w, x, x_stride, n, y, y_stride, "linear on ref", r.seed);
        for (int b = 0; b < n_backends; b++) {
            a.y = b == leader(b) ? first : y;
            backend[b]->linear(backend[b], &a);
            if (b == leader(b))
                check_linear(&w, x, x_stride, n, first, y_stride, about("linear", b), r.seed);
            assert_true(same_bits(about("linear", b), a.y, first, (size_t)(n * y_stride), r.seed));
            for (int i = 0; i < n; i++) {
                Linear one = {&w, 1, x + i * x_stride, x_stride, alone, y_stride};
                backend[b]->linear(backend[b], &one);
                assert_true(same_bits(about("linear, one row", b), alone, first + i * y_stride,
                                      (size_t)shape->rows, r.seed));
            }
        }
        free_weight(&w);
        free(x), free(y), free(first), free(alone);
    }
}

/* ---- rows ---- */

static void test_embed_and_gather(void **state)
{
    (void)state;
    enum { N = 300, DIM = 203, VOCAB = 301 };
    for (int type = WEIGHT_F32; type <= WEIGHT_BF16; type++) {
        Rng r = rng_new((uint64_t)type);
        Weight w = random_weight(&r, (WeightType)type, VOCAB, DIM);
        int32_t *token = ints(N), *index = ints(N);
        float *out = floats(N * (DIM + 2)), *want = floats(N * (DIM + 2));
        float *rows = floats(N * DIM), *want_rows = floats(N * DIM),
              *x = random_floats(&r, N * DIM, 1);
        for (int i = 0; i < N; i++)
            token[i] = rng_int(&r, VOCAB), index[i] = rng_int(&r, N);
        ref->embed(ref, &(Embed){N, &w, token, want, DIM + 2});
        ref->gather_rows(ref, &(GatherRows){N, DIM, index, x, want_rows});
        assert_memory_equal(want_rows, x + index[0] * DIM, DIM * sizeof *x);
        for (int b = 0; b < n_backends; b++) {
            backend[b]->embed(backend[b], &(Embed){N, &w, token, out, DIM + 2});
            assert_true(same_bits(about("embed", b), out, want, N * (DIM + 2), r.seed));
            backend[b]->gather_rows(backend[b], &(GatherRows){N, DIM, index, x, rows});
            assert_true(same_bits(about("gather", b), rows, want_rows, N * DIM, r.seed));
        }
        free_weight(&w);
        free(token), free(index), free(out), free(want), free(rows), free(want_rows), free(x);
    }
}

/* Norms: sum of squares in lanes of up to dim / 4 terms, all positive, halved by the root. */
static double norm_error(int dim)
{
    return (dim / 4.0 / 2 + 8) * 0x1p-24;
}

static void test_add_norm(void **state)
{
    (void)state;
    static const int dims[] = {1, 24, 48, 200, 1030};
    enum { N = 37 };
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        Rng r = rng_new(200 + s);
        size_t dim = (size_t)dims[s], all = N * dim;
        float *x = random_floats(&r, all, 3), *delta = random_floats(&r, all, 1);
        float *w = random_floats(&r, dim, 2), *sum = floats(all), *want = floats(all);
        float *got_sum = floats(all), *got = floats(all), *first = floats(all);
        AddNorm a = {N, (int)dim, 1e-6f, sum, delta, w, want, (int)dim};
        memcpy(sum, x, all * sizeof *x);
        ref->add_norm(ref, &a);
        for (int b = 0; b < n_backends; b++) {
            float *out = b == leader(b) ? first : got;
            AddNorm c = a;
            c.x = got_sum, c.out = out;
            memcpy(got_sum, x, all * sizeof *x);
            backend[b]->add_norm(backend[b], &c);
            assert_true(same_bits(about("add", b), got_sum, sum, all, r.seed));
            assert_true(near_all(about("add_norm", b), out, want, all, norm_error((int)dim), 1e-30,
                                 r.seed));
            assert_true(same_bits(about("add_norm", b), out, first, all, r.seed));
            /* one row at a time, out over delta, then the norm alone */
            memcpy(got_sum, x, all * sizeof *x);
            memcpy(got, delta, all * sizeof *x);
            for (size_t i = 0; i < N; i++) {
                AddNorm one = c;
                one.n = 1, one.x = got_sum + i * dim, one.delta = one.out = got + i * dim;
                backend[b]->add_norm(backend[b], &one);
            }
            assert_true(same_bits(about("add_norm, one row", b), got, first, all, r.seed));
            c.delta = NULL, c.out = got;
            backend[b]->add_norm(backend[b], &c);
            assert_true(same_bits(about("norm", b), got, first, all, r.seed));
            assert_true(same_bits(about("norm leaves x", b), got_sum, sum, all, r.seed));
        }
        free(x), free(delta), free(w), free(sum), free(want);
        free(got_sum), free(got), free(first);
    }
}

static void test_gated_norm_and_swiglu(void **state)
{
    (void)state;
    static const int dims[] = {1, 24, 48, 128, 200};
    enum { N = 19, HEADS = 3 };
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        Rng r = rng_new(300 + s);
        size_t dim = (size_t)dims[s], row = HEADS * dim, all = N * row;
        float *x = random_floats(&r, all, 3), *z = random_floats(&r, all, 100);
        float *w = random_floats(&r, dim, 2), *want = floats(all), *got = floats(all);
        float *first = floats(all), *glu = floats(all), *glu_first = floats(all);
        float *glu_want = floats(all);
        ref->gated_norm(ref, &(GatedNorm){N, HEADS, (int)dim, 1e-6f, x, z, w, want});
        memcpy(glu_want, z, all * sizeof *z);
        ref->swiglu(ref, &(SwiGlu){N, (int)row, glu_want, x});
        for (int b = 0; b < n_backends; b++) {
            Backend *be = backend[b];
            float *out = b == leader(b) ? first : got, *g = b == leader(b) ? glu_first : glu;
            be->gated_norm(be, &(GatedNorm){N, HEADS, (int)dim, 1e-6f, x, z, w, out});
            assert_true(near_all(about("gated_norm", b), out, want, all,
                                 norm_error((int)dim) + 6 * 0x1p-24, 1e-30, r.seed));
            assert_true(same_bits(about("gated_norm", b), out, first, all, r.seed));
            memcpy(g, z, all * sizeof *z);
            be->swiglu(be, &(SwiGlu){N, (int)row, g, x});
            assert_true(near_all(about("swiglu", b), g, glu_want, all, 8 * 0x1p-24, 1e-30, r.seed));
            assert_true(same_bits(about("swiglu", b), g, glu_first, all, r.seed));
            /* one row at a time; the norm in place */
            memcpy(got, x, all * sizeof *x);
            memcpy(glu, z, all * sizeof *z);
            for (size_t i = 0; i < N; i++) {
                float *xi = got + i * row;
                be->gated_norm(be, &(GatedNorm){1, HEADS, (int)dim, 1e-6f, xi, z + i * row, w, xi});
                be->swiglu(be, &(SwiGlu){1, (int)row, glu + i * row, x + i * row});
            }
            assert_true(same_bits(about("gated_norm, one row", b), got, first, all, r.seed));
            assert_true(same_bits(about("swiglu, one row", b), glu, glu_first, all, r.seed));
        }
        free(x), free(z), free(w), free(want), free(got), free(first);
        free(glu), free(glu_first), free(glu_want);
    }
}

static void test_move_rows(void **state)
{
    (void)state;
    enum { PAGES = 9, PAGE_TOKENS = 5, LAYERS = 3, ROW = 28, EXTRA = 16, STRIDE = 4 };
    enum { PAGE = LAYERS * 2 * PAGE_TOKENS * ROW + EXTRA };
    static const int32_t table[2 * STRIDE] = {3, 1, 7, 0, 2, 8, 4, 5};
    static const int32_t seq[] = {0, 0, 0, 1, 1}, from[] = {4, 7, 9, 12, 19};
    static const int32_t to[] = {4, 5, 6, 11, 12};
    Rng r = rng_new(1);
    unsigned char start[PAGES * PAGE], want[PAGES * PAGE], got[PAGES * PAGE];
    for (size_t i = 0; i < sizeof start; i++)
        start[i] = (unsigned char)rng_next(&r);
    memcpy(want, start, sizeof start);
    MoveRows a = {5, LAYERS, PAGE_TOKENS, ROW, PAGE, want, table, STRIDE, seq, from, to};
    ref->move_rows(ref, &a);
    /* V of layer 1, sequence 1: row 12 of page 4 (third of its table) came from row 19 of page 5 */
    size_t plane = (size_t)(2 * 1 + 1) * PAGE_TOKENS * ROW;
    assert_memory_equal(want + 4 * PAGE + plane + 2 * ROW, start + 5 * PAGE + plane + 4 * ROW, ROW);
    for (int b = 0; b < n_backends; b++) {
        a.pages = got;
        memcpy(got, start, sizeof start);
        backend[b]->move_rows(backend[b], &a);
        assert_memory_equal(got, want, sizeof want);
    }
}

/* ---- the recurrences ---- */

typedef struct {
    int n_k_heads, n_v_heads, d_k, d_v, width, n; /* n rows a sequence, two sequences */
} DeltaShape;

static const DeltaShape delta_shapes[] = {
    {1, 1, 1, 1, 1, 3},     {1, 1, 24, 40, 4, 6},  {2, 2, 40, 24, 4, 9},   {2, 6, 48, 48, 4, 7},
    {1, 4, 128, 128, 4, 8}, {2, 4, 64, 200, 3, 5}, {1, 2, 200, 33, 2, 12},
};

/* A layer's arrays for 2 n rows over two trees; slots 0 and 1 are the sequences' main slots. */
typedef struct {
    DeltaShape s;
    int rows, n_slots, n_channels;
    size_t qk_row, v_row, slot_floats, conv_at;
    float *qkv, *a, *b, *conv_w, *a_coef, *dt_bias, *slots;
    int32_t *src, *dst;
    /* results */
    float *q, *k, *v, *decay, *beta, *out;
} Layer;

static Layer layer_new(Rng *r, const DeltaShape *s)
{
    Layer l = {.s = *s, .rows = 2 * s->n};
    size_t rows = (size_t)l.rows, heads = (size_t)s->n_v_heads;
    l.n_slots = l.rows + 2;
    l.qk_row = (size_t)(s->n_k_heads * s->d_k);
    l.v_row = heads * (size_t)s->d_v;
    l.n_channels = (int)(2 * l.qk_row + l.v_row);
    l.conv_at = l.v_row * (size_t)s->d_k + 1;
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
    free(l->src), free(l->dst);
}

/* Rows first .. first + n of the layer, from slots src[] to dst[]. */
static void run_layer(Backend *be, Layer *l, int first, int n, const int32_t *src,
                      const int32_t *dst)
{
    const DeltaShape *s = &l->s;
    size_t at = (size_t)first, heads = (size_t)s->n_v_heads;
    SlotLayer slots = {(unsigned char *)l->slots, l->slot_floats * sizeof(float), 0,
                       l->conv_at * sizeof(float)};
    float *q = l->q + at * l->qk_row, *k = l->k + at * l->qk_row, *v = l->v + at * l->v_row;
    float *decay = l->decay + at * heads, *beta = l->beta + at * heads;
    be->conv_gates(be, &(ConvGates){n,
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
                                    beta});
    be->gated_delta(be, &(GatedDelta){n, s->n_k_heads, s->n_v_heads, s->d_k, s->d_v, q, k, v, decay,
                                      beta, src, dst, slots, l->out + at * l->v_row});
}

/* Random trees: row i of a sequence hangs on its main slot or on an earlier row of its own. */
static void plant_trees(Rng *r, Layer *l)
{
    for (int i = 0; i < l->rows; i++) {
        int seq = i / l->s.n, first = seq * l->s.n;
        l->dst[i] = 2 + i;
        l->src[i] = i == first ? seq : l->dst[first + rng_int(r, i - first)];
    }
}

/* Row i's path run alone as a chain in place, row by row or at once, in a slot of its own. */
static void check_path(Backend *be, const Layer *tree, const Layer *start, int i, int at_once,
                       const char *what, uint64_t seed)
{
    int path[64], n = 0;
    int32_t slot[64];
    for (int j = i; j >= 0; j = tree->src[j] < 2 ? -1 : tree->src[j] - 2)
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
                          tree->conv_at - 1, seed));
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

/* Against ref: f32 sums of d_k terms, at most n rows deep; inputs and states are of order 1. */
static void check_near_layer(const Layer *got, const Layer *want, const char *what, uint64_t seed)
{
    size_t rows = (size_t)want->rows, heads = (size_t)want->s.n_v_heads;
    double eps = 0x1p-24, unit = (want->s.d_k + 16) * eps;
    assert_true(near_all(what, got->q, want->q, rows * want->qk_row, 32 * eps, 16 * eps, seed));
    assert_true(near_all(what, got->k, want->k, rows * want->qk_row, 32 * eps, 16 * eps, seed));
    assert_true(near_all(what, got->v, want->v, rows * want->v_row, 8 * eps, 16 * eps, seed));
    assert_true(near_all(what, got->decay, want->decay, rows * heads, 4 * eps, 0, seed));
    assert_true(near_all(what, got->beta, want->beta, rows * heads, 4 * eps, 0, seed));
    assert_true(near_all(what, got->out, want->out, rows * want->v_row, unit, 12 * unit, seed));
    assert_true(near_all(what, got->slots, want->slots, (size_t)want->n_slots * want->slot_floats,
                         unit, 12 * unit, seed));
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
            Layer got = layer_copy(&start);
            run_layer(backend[b], &got, 0, got.rows, start.src, start.dst);
            check_near_layer(&got, &want, about("recurrence", b), r.seed);
            if (b == leader(b)) {
                if (first.rows) layer_free_results(&first);
                first = layer_copy(&got);
                run_layer(backend[b], &first, 0, 0, start.src, start.dst); /* no rows: no change */
                memcpy(first.decay, got.decay,
                       (size_t)(got.rows * got.s.n_v_heads) * sizeof(float));
                memcpy(first.out, got.out, (size_t)got.rows * got.v_row * sizeof(float));
            }
            check_same_layer(&got, &first, about("recurrence", b), r.seed);
            for (int i = 0; i < got.rows; i++)
                check_path(backend[b], &got, &start, i, i % 2, about("path", b), r.seed);
            layer_free_results(&got);
        }
        layer_free_results(&first);
        layer_free_results(&want);
        layer_free(&start);
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
        float slots[16] = {0}, decay[3], beta[3], out[6], norm[2];
        float qkv[18] = {0}, conv_w[6] = {0}, cq[6], ck[6], cv[6];
        SlotLayer layer = {(unsigned char *)slots, sizeof slots, 0, 4 * sizeof(float)};
        be->conv_gates(be,
                       &(ConvGates){3,      1,       1,    2,    2,     1,  qkv, a,  b,     conv_w,
                                    a_coef, dt_bias, slot, slot, layer, cq, ck,  cv, decay, beta});
        assert_true(near_all("decay", decay, want_decay, 3, 0, 1e-7, 0));
        assert_true(near_all("beta", beta, want_beta, 3, 0, 1e-7, 0));
        be->gated_delta(be,
                        &(GatedDelta){3, 1, 1, 2, 2, q, k, v, decay, beta, slot, slot, layer, out});
        assert_true(near_all("out", out, want_out, 6, 0, 2e-7, 0));
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
        be->conv_gates(be, &(ConvGates){2,      1,       1,   1,   1,     3, qkv, a, a,     conv_w,
                                        a_coef, dt_bias, src, dst, layer, q, k,   v, decay, beta});
        /* v: 1 + 2 * 10 + 4 * 100, then 2 + 4 * 10 + 8 * 100; silu changes neither */
        assert_true(v[0] == 421 && v[1] == 842);
        assert_true(slots[2][3] == 4 && slots[2][6] == 8 && slots[0][3] == 1);
        /* log(2) = softplus(0) */
        assert_true(fabsf(decay[0] - 0.5f) < 1e-6f && beta[1] == 0.5f);
    }
}

/* ---- attention ---- */

typedef struct {
    int n_heads, n_kv_heads, head_dim, n_rot, page_tokens;
    int n, base, first; /* rows a sequence; committed positions of the first; 1 for draft heads */
} AttentionShape;

static const AttentionShape attention_shapes[] = {
    {1, 1, 4, 2, 16, 1, 0, 0},    {2, 1, 24, 8, 5, 5, 9, 0},      {4, 4, 40, 16, 7, 6, 63, 1},
    {6, 2, 48, 12, 16, 9, 60, 0}, {8, 1, 64, 64, 32, 11, 130, 1}, {5, 1, 256, 64, 3, 10, 201, 0},
};

/* Two sequences of n rows each; pages in random order. */
typedef struct {
    AttentionShape s;
    int rows, table_stride, n_pages;
    size_t page_floats;
    float *qg, *k, *v, *q_norm, *k_norm, *inv_freq, *pages;
    int32_t *table, *rope_pos, *seq, *pos, *base, *parent, *kv_row;
    float *q, *out; /* results */
} Paged;

static KvLayer kv_layer(const Paged *p)
{
    size_t offset = (size_t)(p->s.page_tokens * p->s.n_kv_heads * p->s.head_dim);
    return (KvLayer){(unsigned char *)p->pages,
                     p->page_floats * sizeof(float),
                     sizeof(float),
                     (1 + offset) * sizeof(float),
                     p->s.page_tokens,
                     p->s.n_kv_heads,
                     p->s.head_dim,
                     p->table,
                     p->table_stride};
}

static Paged paged_new(Rng *r, const AttentionShape *s)
{
    Paged p = {.s = *s, .rows = 2 * s->n};
    size_t rows = (size_t)p.rows, dim = (size_t)s->head_dim;
    p.table_stride = (s->base + 40 + s->n) / s->page_tokens + 1;
    p.n_pages = 2 * p.table_stride;
    p.page_floats = 1 + 2 * (size_t)(s->page_tokens * s->n_kv_heads) * dim;
    p.qg = random_floats(r, rows * (size_t)s->n_heads * 2 * dim, 3);
    p.k = random_floats(r, rows * (size_t)s->n_kv_heads * dim, 1);
    p.v = random_floats(r, rows * (size_t)s->n_kv_heads * dim, 1);
    p.q_norm = random_floats(r, dim, 2), p.k_norm = random_floats(r, dim, 2);
    p.inv_freq = floats((size_t)s->n_rot / 2);
    for (int f = 0; f < s->n_rot / 2; f++)
        p.inv_freq[f] = powf(10000, -2.0f * (float)f / (float)s->n_rot);
    p.pages = random_floats(r, (size_t)p.n_pages * p.page_floats, 2);
    p.table = ints((size_t)p.n_pages);
    for (int i = 0; i < p.n_pages; i++) {
        int j = rng_int(r, i + 1);
        p.table[i] = p.table[j], p.table[j] = i;
    }
    p.rope_pos = ints(rows), p.seq = ints(rows), p.pos = ints(rows), p.base = ints(rows);
    p.parent = ints(rows), p.kv_row = ints(rows);
    p.q = floats(rows * (size_t)s->n_heads * dim);
    p.out = floats(rows * (size_t)s->n_heads * dim);
    return p;
}

static Paged paged_copy(const Paged *from)
{
    Paged p = *from;
    size_t all = (size_t)(p.rows * p.s.n_heads * p.s.head_dim);
    p.pages = floats((size_t)p.n_pages * p.page_floats);
    memcpy(p.pages, from->pages, (size_t)p.n_pages * p.page_floats * sizeof(float));
    p.q = floats(all), p.out = floats(all);
    return p;
}

static void paged_free_results(Paged *p)
{
    free(p->pages), free(p->q), free(p->out);
}

static void paged_free(Paged *p)
{
    paged_free_results(p);
    free(p->qg), free(p->k), free(p->v), free(p->q_norm), free(p->k_norm), free(p->inv_freq);
    free(p->table), free(p->rope_pos), free(p->seq), free(p->pos), free(p->base);
    free(p->parent), free(p->kv_row);
}

static void grow_trees(Rng *r, Paged *p)
{
    for (int i = 0; i < p->rows; i++) {
        int seq = i / p->s.n, first = seq * p->s.n;
        p->seq[i] = seq;
        p->base[i] = p->s.base + 37 * seq + (p->s.base < p->s.first);
        p->parent[i] = i == first ? -1 : first + rng_int(r, i - first);
        p->pos[i] = i == first ? p->base[i] : p->pos[p->parent[i]] + 1;
        p->kv_row[i] = p->base[i] + (i - first);
        p->rope_pos[i] = p->pos[i] + 3;
    }
}

static TreeAttention tree_args(const Paged *p, int first, int n)
{
    size_t head = (size_t)first * (size_t)p->s.n_heads * (size_t)p->s.head_dim;
    return (TreeAttention){
        n,           p->s.n_heads,     p->s.first,  first,        1 / sqrtf((float)p->s.head_dim),
        p->q + head, p->qg + 2 * head, p->seq,      p->pos,       p->base,
        p->parent,   p->kv_row,        kv_layer(p), p->out + head};
}

static void run_attention(Backend *be, Paged *p, int first, int n)
{
    size_t dim = (size_t)p->s.head_dim, heads = (size_t)p->s.n_heads;
    size_t kv_at = (size_t)first * (size_t)p->s.n_kv_heads * dim, at = (size_t)first * heads * dim;
    be->attention_prepare(be,
                          &(AttentionPrepare){n, p->s.n_heads, p->s.n_rot, 1e-6f, p->qg + 2 * at,
                                              p->k + kv_at, p->v + kv_at, p->q_norm, p->k_norm,
                                              p->inv_freq, p->rope_pos + first, p->seq + first,
                                              p->kv_row + first, kv_layer(p), p->q + at});
    TreeAttention a = tree_args(p, first, n);
    be->tree_attention(be, &a);
}

/*
 * Row i's path as a chain whose rows lie in place, in one call or one call a row (row0 > 0);
 * committed: base after the row itself.
 */
static void check_attention_path(Backend *be, const Paged *tree, const Paged *start, int i,
                                 int committed, int at_once, const char *what, uint64_t seed)
{
    int path[64], n = 0;
    size_t dim = (size_t)start->s.head_dim, heads = (size_t)start->s.n_heads;
    size_t q_row = 2 * heads * dim, kv_row = (size_t)start->s.n_kv_heads * dim;
    for (int j = i; j >= 0; j = tree->parent[j])
        path[n++] = j;
    Paged one = paged_copy(start);
    one.qg = floats((size_t)n * q_row);
    one.k = floats((size_t)n * kv_row), one.v = floats((size_t)n * kv_row);
    int32_t rope[64], seq[64], pos[64], base[64], parent[64], kv[64];
    for (int m = 0; m < n; m++) {
        size_t from = (size_t)path[n - 1 - m], to = (size_t)m;
        memcpy(one.qg + to * q_row, start->qg + from * q_row, q_row * sizeof(float));
        memcpy(one.k + to * kv_row, start->k + from * kv_row, kv_row * sizeof(float));
        memcpy(one.v + to * kv_row, start->v + from * kv_row, kv_row * sizeof(float));
        rope[m] = start->rope_pos[from], seq[m] = start->seq[from], pos[m] = start->pos[from];
        kv[m] = pos[m], parent[m] = m - 1;
        base[m] = committed ? pos[m] + 1 : start->base[from];
    }
    one.rope_pos = rope, one.seq = seq, one.pos = pos, one.base = base;
    one.parent = parent, one.kv_row = kv;
    for (int m = 0; m < n; m += at_once ? n : 1)
        run_attention(be, &one, m, at_once ? n : 1);
    assert_true(same_bits(what, one.out + (size_t)(n - 1) * heads * dim,
                          tree->out + (size_t)i * heads * dim, heads * dim, seed));
    free(one.qg), free(one.k), free(one.v);
    paged_free_results(&one);
}

static void check_near_attention(const Paged *got, const Paged *want, const char *what,
                                 uint64_t seed)
{
    size_t all = (size_t)(want->rows * want->s.n_heads * want->s.head_dim);
    /* norm, then sine and cosine of one angle: a few roundings of numbers below 8 */
    assert_true(near_all(what, got->q, want->q, all, 16 * 0x1p-24, 64 * 0x1p-24, seed));
    assert_true(near_all(what, got->pages, want->pages, (size_t)want->n_pages * want->page_floats,
                         16 * 0x1p-24, 64 * 0x1p-24, seed));
    /* scores of size up to 4 sqrt(dim), off by some 1e-5, move p by as much; |v| < 2 */
    assert_true(near_all(what, got->out, want->out, all, 0, 1e-4, seed));
}

static void test_attention(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof attention_shapes / sizeof *attention_shapes; s++) {
        Rng r = rng_new(500 + s);
        Paged start = paged_new(&r, &attention_shapes[s]);
        grow_trees(&r, &start);
        size_t all = (size_t)(start.rows * start.s.n_heads * start.s.head_dim);
        Paged want = paged_copy(&start), first = paged_copy(&start);
        run_attention(ref, &want, 0, want.rows);
        for (int i = 0; i < want.rows; i++)
            check_attention_path(ref, &want, &start, i, i % 2, i / 2 % 2, "attention path on ref",
                                 r.seed);
        for (int b = 0; b < n_backends; b++) {
            Paged got = paged_copy(&start);
            run_attention(backend[b], &got, 0, got.rows);
            check_near_attention(&got, &want, about("attention", b), r.seed);
            if (b == leader(b)) memcpy(first.out, got.out, all * sizeof(float));
            assert_true(same_bits(about("attention", b), got.out, first.out, all, r.seed));
            for (int i = 0; i < got.rows; i++)
                check_attention_path(backend[b], &got, &start, i, i % 2, i / 2 % 2,
                                     about("attention path", b), r.seed);
            paged_free_results(&got);
        }
        paged_free_results(&first);
        paged_free_results(&want);
        paged_free(&start);
    }
}

/* ---- experts ---- */

static void test_moe_route(void **state)
{
    (void)state;
    enum { N = 600, EXPERTS = 37, TOP = 5 };
    Rng r = rng_new(600);
    float *logits = random_floats(&r, N * EXPERTS, 5), *weight = floats(N * TOP);
    float *want = floats(N * TOP), *first = floats(N * TOP);
    int32_t *id = ints(N * TOP), *want_id = ints(N * TOP);
    for (int i = 0; i < N * EXPERTS; i += 3)
        logits[i] = roundf(logits[i]); /* many ties */
    for (int normalise = 0; normalise < 2; normalise++) {
        ref->moe_route(ref, &(MoeRoute){N, EXPERTS, TOP, normalise, logits, want_id, want});
        for (int b = 0; b < n_backends; b++) {
            float *w = b == leader(b) ? first : weight;
            backend[b]->moe_route(backend[b],
                                  &(MoeRoute){N, EXPERTS, TOP, normalise, logits, id, w});
            assert_memory_equal(id, want_id, N * TOP * sizeof *id);
            assert_true(near_all(about("route", b), w, want, N * TOP, 24 * 0x1p-24, 1e-30, r.seed));
            assert_true(same_bits(about("route", b), w, first, N * TOP, r.seed));
        }
    }
    for (int j = 1; j < TOP; j++)
        assert_true(id[j] > id[j - 1]);
    free(logits), free(weight), free(want), free(first), free(id), free(want_id);
}

typedef struct {
    WeightType type;
    int n, dim, width, n_experts, n_top;
} MoeShape;

static const MoeShape moe_shapes[] = {
    {WEIGHT_F32, 1, 24, 40, 1, 1},
    {WEIGHT_BF16, 70, 48, 200, 3, 2},
    {WEIGHT_BF16, 9, 24, 104, 13, 11}, /* more pairs than the scratch holds at once */
    {WEIGHT_FP8, 17, 136, 140, 6, 3},
};

static void test_moe_ffn(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof moe_shapes / sizeof *moe_shapes; s++) {
        const MoeShape *m = &moe_shapes[s];
        Rng r = rng_new(700 + s);
        size_t n = (size_t)m->n, dim = (size_t)m->dim, top = (size_t)m->n_top, all = n * dim;
        Weight gate[16], up[16], down[16];
        for (int e = 0; e < m->n_experts; e++) {
            gate[e] = random_weight(&r, m->type, m->width, m->dim);
            up[e] = random_weight(&r, m->type, m->width, m->dim);
            down[e] = random_weight(&r, m->type, m->dim, m->width);
        }
        float *logits = random_floats(&r, n * (size_t)m->n_experts, 3), *weight = floats(n * top);
        float *x = random_floats(&r, all, 1), *shared = random_floats(&r, all, 1);
        float *shared_gate = random_floats(&r, n, 3), *want = floats(all), *got = floats(all);
        float *first = floats(all), *alone = floats(dim);
        float *scratch = floats((size_t)moe_scratch_floats(m->n, m->dim, m->width));
        int32_t *id = ints(n * top);
        ref->moe_route(ref, &(MoeRoute){m->n, m->n_experts, m->n_top, 1, logits, id, weight});
        MoeFfn a = {m->n, m->dim, m->width, m->n_experts, m->n_top,    x,       id,  weight,
                    gate, up,     down,     shared,       shared_gate, scratch, want};
        ref->moe_ffn(ref, &a);
        double size = 0; /* products of three sums over up to 200 terms: take the largest output */
        for (size_t i = 0; i < all; i++)
            size = fmax(size, fabs((double)want[i]));
        for (int b = 0; b < n_backends; b++) {
            a.out = b == leader(b) ? first : got;
            backend[b]->moe_ffn(backend[b], &a);
            assert_true(near_all(about("moe", b), a.out, want, all, 0, 4e-6 * size, r.seed));
            assert_true(same_bits(about("moe", b), a.out, first, all, r.seed));
            for (size_t i = 0; i < n; i++) {
                MoeFfn one = a;
                one.n = 1, one.x = x + i * dim, one.id = id + i * top,
                one.weight = weight + i * top;
                one.shared = shared + i * dim, one.shared_gate = shared_gate + i, one.out = alone;
                backend[b]->moe_ffn(backend[b], &one);
                assert_true(
                    same_bits(about("moe, one row", b), alone, first + i * dim, dim, r.seed));
            }
        }
        for (int e = 0; e < m->n_experts; e++)
            free_weight(&gate[e]), free_weight(&up[e]), free_weight(&down[e]);
        free(logits), free(weight), free(x), free(shared), free(shared_gate), free(want);
        free(got), free(first), free(alone), free(scratch), free(id);
    }
}

/* ---- promises ---- */

static void test_no_allocation(void **state)
{
    (void)state;
    Rng r = rng_new(1);
    Layer l = layer_new(&r, &delta_shapes[3]);
    Paged p = paged_new(&r, &attention_shapes[3]);
    plant_trees(&r, &l);
    grow_trees(&r, &p);
    unsigned long before = mem_count();
    for (int b = 0; b < n_backends; b++) {
        run_layer(backend[b], &l, 0, l.rows, l.src, l.dst);
        run_attention(backend[b], &p, 0, p.rows);
    }
    assert_int_equal(mem_count(), before);
    paged_free(&p);
    layer_free(&l);
}

static void test_open_refuses_unknown_isa(void **state)
{
    (void)state;
    Error err;
    assert_null(backend_cpu_open(1, "mmx", MAX_VOCAB, &err));
    assert_int_equal(err.code, ERR_INPUT);
    assert_string_equal(err.msg, "this machine has no instruction set 'mmx'");
}

static void test_memory(void **state)
{
    (void)state;
    Backend *be = backend[0];
    char *mem = be->alloc(be, 100, NULL), back[100];
    for (int i = 0; i < 100; i++)
        assert_int_equal(mem[i], 0);
    be->upload(be, mem, "abcdef", 7);
    be->copy(be, mem + 2, mem, 7); /* overlapping */
    be->download(be, back, mem, 100);
    assert_string_equal(back, "ababcdef");
    be->zero(be, mem, 3);
    assert_int_equal(mem[2], 0);
    assert_int_equal(mem[3], 'b');
    assert_int_equal(be->sync(be, NULL), 0);
    be->free(be, mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_embed_and_gather),
        cmocka_unit_test(test_add_norm),
        cmocka_unit_test(test_gated_norm_and_swiglu),
        cmocka_unit_test(test_move_rows),
        cmocka_unit_test(test_recurrence),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_convolution_by_hand),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_moe_route),
        cmocka_unit_test(test_moe_ffn),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_open_refuses_unknown_isa),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("kernels", tests, open_backends, close_backends);
}
