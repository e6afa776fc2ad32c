/*
 * test_moe.c: routing and the routed experts on every backend, against the definition and against
 * themselves: a row gives the same bits alone and in company, and with the router's product in the
 * same operation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/simt_host.h"
#include "tests/backends.h"

/* ---- routing: what moe_ffn finds out first, here with one small matrix as all experts' ---- */

typedef struct {
    int n, n_experts, n_top, normalise;
    const float *logits;
    int32_t *id;
    float *weight;
} Routing;

static void route(Backend *be, WeightType type, const Routing *a)
{
    enum { SIDE = 16 };
    static Weight expert[MOE_MAX_EXPERTS];
    Rng r = rng_new(599);
    Weight w = random_weight(&r, type, SIDE, SIDE);
    size_t all = (size_t)a->n * SIDE;
    float *x = random_floats(&r, all, 1), *shared_gate = random_floats(&r, (size_t)a->n, 1);
    float *out = floats(all), *scratch = floats((size_t)moe_scratch_floats(a->n, SIDE, SIDE));
    for (int e = 0; e < a->n_experts; e++)
        expert[e] = w;
    be->moe_ffn(be, &(MoeFfn){.n = a->n,
                              .dim = SIDE,
                              .width = SIDE,
                              .n_experts = a->n_experts,
                              .n_top = a->n_top,
                              .normalise = a->normalise,
                              .x = x,
                              .logits = a->logits,
                              .id = a->id,
                              .weight = a->weight,
                              .type = type,
                              .gate = expert,
                              .up = expert,
                              .down = expert,
                              .shared = x,
                              .shared_gate = shared_gate,
                              .scratch = scratch,
                              .out = out});
    free_weight(&w);
    free(x), free(shared_gate), free(out), free(scratch);
}

/* A row alone is routed by another kernel than many, or by the same. */
static void check_route_alone(int b, const Routing *a, uint64_t seed)
{
    size_t top = (size_t)a->n_top;
    int32_t *id = ints(top);
    float *weight = floats(top);
    for (int k = 0; k < a->n; k = next_alone(k, a->n, is_gpu(b))) {
        size_t i = (size_t)k;
        const float *logits = a->logits + i * (size_t)a->n_experts;
        Routing one = {1, a->n_experts, a->n_top, a->normalise, logits, id, weight};
        route(backend[b], WEIGHT_BF16, &one);
        assert_memory_equal(id, a->id + i * top, top * sizeof *id);
        assert_true(same_bits(about("route, one row", b), weight, a->weight + i * top, top, seed));
    }
    free(id), free(weight);
}

static const int route_shapes[][3] = {{600, 37, 5}, {9, 1024, 32}, {16, 300, 8}, {2, 1, 1}};

static void test_moe_route(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof route_shapes / sizeof *route_shapes; s++) {
        int n = route_shapes[s][0], experts = route_shapes[s][1], top = route_shapes[s][2];
        size_t all = (size_t)(n * top), n_logits = (size_t)(n * experts);
        Rng r = rng_new(600 + s);
        float *logits = random_floats(&r, n_logits, 5), *weight = floats(all);
        float *want = floats(all), *first = floats(all);
        int32_t *id = ints(all), *want_id = ints(all);
        for (size_t i = 0; i < n_logits; i += 3)
            logits[i] = roundf(logits[i]); /* many ties, of both zeros too */
        logits[0] = 300;                   /* its exp is beyond f32's range */
        for (int normalise = 0; normalise < 2; normalise++) {
            route(ref, WEIGHT_F32, &(Routing){n, experts, top, normalise, logits, want_id, want});
            for (int b = 0; b < n_backends; b++) {
                float *w = b == leader(b) ? first : weight;
                Routing a = {n, experts, top, normalise, logits, id, w};
                route(backend[b], WEIGHT_BF16, &a);
                assert_memory_equal(id, want_id, all * sizeof *id);
                assert_true(near_all(about("route", b), w, want, all, 24 * 0x1p-24, 1e-30, r.seed));
                assert_true(same_bits(about("route", b), w, first, all, r.seed));
                check_route_alone(b, &a, r.seed);
            }
        }
        for (int j = 1; j < top; j++)
            assert_true(id[j] > id[j - 1]);
        free(logits), free(weight), free(want), free(first), free(id), free(want_id);
    }
}

/* Logits that order nothing: any distinct experts, which later kernels can read. */
static void test_moe_route_of_nan(void **state)
{
    (void)state;
    enum { N = 3, EXPERTS = 70, TOP = 9 };
    float logits[N * EXPERTS], weight[N * TOP];
    int32_t id[N * TOP];
    for (int e = 0; e < EXPERTS; e++)
        logits[e] = NAN, logits[EXPERTS + e] = -INFINITY, logits[2 * EXPERTS + e] = e % 9 ? NAN : 1;
    for (int b = 0; b < n_backends; b++)
        for (int t = 0; t < 2; t++) {
            route(backend[b], t ? WEIGHT_BF16 : WEIGHT_F32,
                  &(Routing){N, EXPERTS, TOP, 1, logits, id, weight});
            for (int i = 0; i < N * TOP; i++) {
                assert_true(id[i] >= 0 && id[i] < EXPERTS && isnan(weight[i]));
                assert_true(i % TOP == 0 || id[i] > id[i - 1]);
            }
        }
}

/* ---- all of it ---- */

typedef struct {
    WeightType type;
    int n, dim, width, n_experts, n_top;
} MoeShape;

enum { MOST_EXPERTS = 300 };

static const MoeShape moe_shapes[] = {
    {WEIGHT_F32, 1, 24, 40, 1, 1},
    {WEIGHT_BF16, 70, 48, 200, 3, 2},
    {WEIGHT_BF16, 9, 24, 104, 13, 11}, /* more pairs than the scratch holds at once */
    {WEIGHT_FP8, 17, 136, 140, 6, 3},
    {WEIGHT_FP8, 50, 136, 140, 40, 3}, /* a batch: groups of few rows */
    {WEIGHT_BF16, 64, 40, 136, 60, 2},
    {WEIGHT_BF16, 3, 40, 24, MOST_EXPERTS, 10}, /* all but a few experts unused */
    {WEIGHT_BF16, 150, 24, 32, 2, 2},           /* more rows of an expert than go together */
    {WEIGHT_BF16, 160, 16, 16, 40, 1}, /* past 48 KiB of shared memory by the kernel's own, */
    {WEIGHT_FP8, 255, 16, 16, 40, 1},  /* before more rows raise the limit */
    {WEIGHT_FP8, 130, 16, 32, 17, 16}, /* more rows than the GPU's scratch holds */
    {WEIGHT_BF16, 530, 16, 16, 5, 1},  /* or than its kernels keep in shared memory: three parts */
    {WEIGHT_FP8, 300, 16, 16, 30, 3}, /* a prompt whose plan has two parts; with the scratch of a */
    {WEIGHT_BF16, 520, 16, 16, 300, 8}, /* GPU three, and more experts than a block has threads */
    {WEIGHT_FP8, 90, 200, 140, 3, 2},   /* a prompt: whole units, some, odd sizes */
    {WEIGHT_BF16, 66, 133, 65, 4, 3},
    {WEIGHT_FP8, 70, 144, 1040, 9, 2},   /* more tiles of up than blocks, of two k-blocks; */
    {WEIGHT_FP8, 70, 1040, 32, 17, 2},   /* of down, of one */
    {WEIGHT_FP8, 1, 16, 16, 1, 1},       /* one unit of one tile and one slice */
    {WEIGHT_FP8, 4, 144, 512, 40, 8},    /* few rows: four slices, many experts of one row */
    {WEIGHT_FP8, 7, 133, 650, 12, 5},    /* rows that are not whole pieces, idle warps */
    {WEIGHT_FP8, 16, 40, 1184, 100, 12}, /* more steps than a warp knows at once */
    {WEIGHT_BF16, 5, 1160, 260, 9, 4},   /* slices of one k-block and of two */
    {WEIGHT_BF16, 16, 24, 1040, 40, 32}, /* few rows, but more products than a block holds */
    {WEIGHT_F32, 30, 40, 48, 7, 3},
    {WEIGHT_INT8, 19, 136, 140, 6, 3},
    {WEIGHT_INT8, 90, 200, 256, 2, 2},
    {WEIGHT_INT4, 19, 136, 140, 6, 3},
    {WEIGHT_INT4, 90, 200, 256, 2, 2},
    {WEIGHT_BF16_BOTH, 19, 136, 140, 6, 3},
    {WEIGHT_BF16_BOTH, 90, 200, 256, 2, 2},
    {WEIGHT_FP8, 70, 144, 272, 60, 2}, /* units of two rows by warpgroups; a batch's */
    {WEIGHT_FP8, 17, 144, 144, 20, 3},
    {WEIGHT_FP8, 50, 160, 1040, 60, 4},
};

/* A GPU whose blocks have less shared memory gives the same bits. */
static void check_moe_small_blocks(Backend *be, const MoeFfn *a, const float *want, uint64_t seed)
{
    size_t all = (size_t)a->n * (size_t)a->dim;
    MoeFfn small = *a;
    small.out = floats(all);
    simt_limit_shared(SIMT_SHARED_ADA);
    be->moe_ffn(be, &small);
    simt_limit_shared(SIMT_SHARED_HOPPER);
    assert_true(same_bits("moe in small blocks", small.out, want, all, seed));
    free(small.out);
}

/* What linear, swiglu and linear give on a backend with a's shared expert; to be freed. */
static float *shared_output(Backend *be, const MoeFfn *a)
{
    const MoeExpert *e = &a->shared_expert;
    float *gate = outputs((size_t)a->n, (size_t)a->width);
    float *up = outputs((size_t)a->n, (size_t)a->width);
    float *out = outputs((size_t)a->n, (size_t)a->dim);
    be->linear(be, &(Linear){.n = a->n,
                             .x = a->x,
                             .x_stride = a->dim,
                             .n_products = 2,
                             .product = {{&e->gate, gate, a->width}, {&e->up, up, a->width}}});
    be->swiglu(be, &(SwiGlu){a->n, a->width, gate, up});
    be->linear(be, &(Linear){.n = a->n,
                             .x = gate,
                             .x_stride = a->width,
                             .n_products = 1,
                             .product = {{&e->down, out, a->dim}}});
    free(gate), free(up);
    return out;
}

/* The shared expert's output given and made: the same bits, of all rows and of each alone. */
static void check_moe_shared(int b, const MoeFfn *of, uint64_t seed)
{
    Backend *be = backend[b];
    size_t dim = (size_t)of->dim, all = (size_t)of->n * dim;
    MoeFfn given = *of, made = *of;
    float *shared = shared_output(be, of), *want = floats(all), *got = floats(all);
    given.shared = shared, given.out = want;
    be->moe_ffn(be, &given);
    made.shared = NULL, made.out = got;
    be->moe_ffn(be, &made);
    assert_true(same_bits(about("moe, the shared expert inside", b), got, want, all, seed));
    for (int k = 0; k < of->n; k = next_alone(k, of->n, 1)) {
        size_t i = (size_t)k;
        made.n = 1, made.x = of->x + i * dim, made.shared_gate = of->shared_gate + i;
        made.logits = of->logits + i * (size_t)of->n_experts;
        be->moe_ffn(be, &made);
        assert_true(same_bits(about("moe, one row of it", b), got, want + i * dim, dim, seed));
    }
    free(shared), free(want), free(got);
}

static void check_moe(const MoeShape *m, int prefill, uint64_t seed)
{
    Rng r = rng_new(seed);
    size_t n = (size_t)m->n, dim = (size_t)m->dim, top = (size_t)m->n_top, all = n * dim;
    static Weight gate[MOST_EXPERTS], up[MOST_EXPERTS], down[MOST_EXPERTS];
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
    MoeFfn a = {.n = m->n,
                .dim = m->dim,
                .width = m->width,
                .n_experts = m->n_experts,
                .n_top = m->n_top,
                .normalise = 1,
                .x = x,
                .logits = logits,
                .id = id,
                .weight = weight,
                .type = m->type,
                .gate = gate,
                .up = up,
                .down = down,
                .shared = shared,
                .shared_gate = shared_gate,
                .scratch = scratch,
                .out = want,
                .prefill = prefill};
    a.shared_expert = (MoeExpert){random_weight(&r, m->type, m->width, m->dim),
                                  random_weight(&r, m->type, m->width, m->dim),
                                  random_weight(&r, m->type, m->dim, m->width)};
    ref->moe_ffn(ref, &a);
    /*
     * Products of three sums over up to 1,200 terms: take the largest output. Two bf16 terms
     * are off by up to 2^-17 of each product, in all three; INT8's by 2^-8 of a block's largest
     * x; where SwiGLU's last bits round to another bf16, by 2^-8 of that, to another e4m3, by
     * 2^-4.
     */
    double size = 0;
    for (size_t i = 0; i < all; i++)
        size = fmax(size, fabs((double)want[i]));
    for (int b = 0; b < n_backends; b++) {
        if (!has_type(b, m->type) || (prefill && !is_gpu(b))) continue;
        a.out = b == leader(b) ? first : got;
        backend[b]->moe_ffn(backend[b], &a);
        int bf16_terms =
            sums_of(b) == SUMS_AMX ? m->type != WEIGHT_F32 : is_gpu(b) && m->type == WEIGHT_BF16;
        int is_rounded = weight_is_int(m->type) || m->type == WEIGHT_BF16_BOTH;
        double relative = prefill ? 0x1p-5 : is_rounded ? 0x1p-6 : bf16_terms ? 0x1p-15 : 4e-6;
        assert_true(near_all(about("moe", b), a.out, want, all, 0, relative * size, r.seed));
        assert_true(same_bits(about("moe", b), a.out, first, all, r.seed));
        if (is_gpu(b)) check_moe_small_blocks(backend[b], &a, first, r.seed);
        if (is_gpu(b) && !prefill) check_moe_shared(b, &a, r.seed);
        for (int k = 0; k < m->n; k = next_alone(k, m->n, is_gpu(b))) {
            size_t i = (size_t)k;
            MoeFfn one = a;
            one.n = 1, one.x = x + i * dim, one.logits = logits + i * (size_t)m->n_experts;
            one.shared = shared + i * dim, one.shared_gate = shared_gate + i, one.out = alone;
            backend[b]->moe_ffn(backend[b], &one);
            assert_true(same_bits(about("moe, one row", b), alone, first + i * dim, dim, r.seed));
        }
    }
    for (int e = 0; e < m->n_experts; e++)
        free_weight(&gate[e]), free_weight(&up[e]), free_weight(&down[e]);
    free_weight(&a.shared_expert.gate), free_weight(&a.shared_expert.up);
    free_weight(&a.shared_expert.down);
    free(logits), free(weight), free(x), free(shared), free(shared_gate), free(want);
    free(got), free(first), free(alone), free(scratch), free(id);
}

static void test_moe_ffn(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof moe_shapes / sizeof *moe_shapes; s++) {
        check_moe(&moe_shapes[s], 0, 700 + s);
        if (moe_shapes[s].type == WEIGHT_FP8) check_moe(&moe_shapes[s], PREFILL_FP8, 700 + s);
    }
}

/*
 * One expert of weight 1 and a shared one of zeros: what linear, SwiGLU and linear give, in the
 * GPU's kernels to the bit: their one order of sums, whoever shares the work how. A row of NaN
 * beside the others is its own affair.
 */
static void test_moe_is_linear(void **state)
{
    (void)state;
    enum { N = 5, DIM = 144, WIDTH = 1184, BROKEN = 2 };
    static const int32_t chosen[N] = {1, 1, 1, 0, 1};
    static const float logits[N * 2] = {0, 1, 0, 1, 0, 1, 1, 0, 0, 1}, zero[N * DIM];
    int32_t id[N];
    float one[N];
    Backend *be = backend[n_backends - 1];
    if (!is_gpu(n_backends - 1)) skip(); /* FP8 by FP8 is a GPU's */
    static const struct {
        WeightType type;
        int prefill;
    } way[] = {{WEIGHT_BF16, 0}, {WEIGHT_FP8, 0}, {WEIGHT_FP8, PREFILL_FP8}};
    for (int k0 = 0; k0 < 3; k0++) {
        const WeightType type = way[k0].type;
        const int prefill = way[k0].prefill;
        Rng r = rng_new(800 + (uint64_t)k0);
        Weight gate[2], up[2], down[2];
        for (int e = 0; e < 2; e++) {
            gate[e] = random_weight(&r, type, WIDTH, DIM);
            up[e] = random_weight(&r, type, WIDTH, DIM);
            down[e] = random_weight(&r, type, DIM, WIDTH);
        }
        float *x = random_floats(&r, N * DIM, 1), *out = floats(N * DIM), *want = outputs(1, DIM);
        float *g = outputs(1, WIDTH), *u = outputs(1, WIDTH);
        for (int i = 0; i < N; i++)
            for (int k = 0; k < DIM; k++)
                x[i * DIM + k] *= powf(10, (float)(i - 2));
        x[BROKEN * DIM + 3] = NAN;
        be->moe_ffn(be, &(MoeFfn){.n = N,
                                  .dim = DIM,
                                  .width = WIDTH,
                                  .n_experts = 2,
                                  .n_top = 1,
                                  .normalise = 1,
                                  .x = x,
                                  .logits = logits,
                                  .id = id,
                                  .weight = one,
                                  .type = type,
                                  .gate = gate,
                                  .up = up,
                                  .down = down,
                                  .shared = zero,
                                  .shared_gate = zero,
                                  .out = out,
                                  .prefill = prefill});
        assert_true(isnan(out[BROKEN * DIM]));
        assert_memory_equal(id, chosen, sizeof id);
        for (int i = 0; i < N; i++) {
            const float *xi = x + i * DIM;
            be->linear(be, &(Linear){1, xi, DIM, 1, {{&gate[id[i]], g, WIDTH}}, prefill});
            be->linear(be, &(Linear){1, xi, DIM, 1, {{&up[id[i]], u, WIDTH}}, prefill});
            be->swiglu(be, &(SwiGlu){1, WIDTH, g, u});
            be->linear(be, &(Linear){1, g, WIDTH, 1, {{&down[id[i]], want, DIM}}, prefill});
            if (i == BROKEN) continue;
            assert_true(same_bits("moe of one expert", out + i * DIM, want, DIM, r.seed));
        }
        for (int e = 0; e < 2; e++)
            free_weight(&gate[e]), free_weight(&up[e]), free_weight(&down[e]);
        free(x), free(out), free(want), free(g), free(u);
    }
}

/* ---- with the router's product ---- */

typedef struct {
    MoeShape m;
    WeightType router;
} RoutedShape;

static const RoutedShape routed_shapes[] = {
    {{WEIGHT_FP8, 1, 2048, 16, 33, 3}, WEIGHT_BF16},           /* slices of two k-blocks */
    {{WEIGHT_FP8, 4, 136, 40, MOST_EXPERTS, 10}, WEIGHT_BF16}, /* most slices are empty */
    {{WEIGHT_BF16, 7, 1160, 24, 40, 8}, WEIGHT_BF16}, /* of one and of two, the last is cut */
    {{WEIGHT_FP8, 16, 3208, 16, 20, 4}, WEIGHT_BF16}, /* of three and of four */
    {{WEIGHT_FP8, 24, 1160, 24, 40, 8}, WEIGHT_BF16}, /* many rows: linear makes the logits, */
    {{WEIGHT_FP8, 24, 1152, 32, 40, 8}, WEIGHT_BF16}, /* also beside warpgroups, */
    {{WEIGHT_BF16, 16, 24, 1040, 40, 32},
     WEIGHT_BF16},                                  /* and for more products than a block holds, */
    {{WEIGHT_BF16, 5, 133, 24, 9, 4}, WEIGHT_BF16}, /* for rows that are not whole pieces, */
    {{WEIGHT_BF16, 3, 136, 24, 9, 4}, WEIGHT_F32},  /* and of other types */
    {{WEIGHT_FP8, 3, 136, 24, 9, 4}, WEIGHT_FP8},
    {{WEIGHT_F32, 2, 48, 24, 9, 4}, WEIGHT_BF16},
    {{WEIGHT_BF16, 13, 1160, 24, 20, 4}, WEIGHT_BF16}, /* most rows of few */
};

/* What it writes. */
typedef struct {
    float *logits, *shared_gate, *weight, *out;
    int32_t *id;
} RoutedRows;

static RoutedRows routed_rows(const MoeShape *m)
{
    size_t n = (size_t)m->n, top = (size_t)m->n_top;
    return (RoutedRows){floats(n * (size_t)m->n_experts), floats(n), floats(n * top),
                        floats(n * (size_t)m->dim), ints(n * top)};
}

static void free_routed_rows(const RoutedRows *r)
{
    free(r->logits), free(r->shared_gate), free(r->weight), free(r->out), free(r->id);
}

/* a of n rows from `first` on, which go to `to`. */
static RoutedFfn routed_part(const RoutedFfn *a, int first, int n, const RoutedRows *to)
{
    RoutedFfn part = *a;
    size_t at = (size_t)first * (size_t)a->ffn.dim;
    part.n = part.router.n = part.ffn.n = n;
    part.router.x = part.ffn.x = a->ffn.x + at;
    if (a->ffn.shared) part.ffn.shared = a->ffn.shared + at;
    part.ffn.logits = part.router.product[0].y = to->logits;
    part.ffn.shared_gate = part.router.product[1].y = to->shared_gate;
    part.ffn.id = to->id, part.ffn.weight = to->weight, part.ffn.out = to->out;
    return part;
}

/* The n rows of got are those of want from `first` on. */
static void check_routed_rows(const char *what, const MoeFfn *a, const RoutedRows *got,
                              const RoutedRows *want, int first, int n, uint64_t seed)
{
    size_t at = (size_t)first, rows = (size_t)n, dim = (size_t)a->dim, top = (size_t)a->n_top;
    size_t experts = (size_t)a->n_experts;
    assert_true(same_bits(what, got->logits, want->logits + at * experts, rows * experts, seed));
    assert_true(same_bits(what, got->shared_gate, want->shared_gate + at, rows, seed));
    assert_true(same_bits(what, got->weight, want->weight + at * top, rows * top, seed));
    assert_true(same_bits(what, got->out, want->out + at * dim, rows * dim, seed));
    assert_memory_equal(got->id, want->id + at * top, rows * top * sizeof *got->id);
}

/* On backend b: as the two operations, and each row alone as in company. */
static void check_routed(int b, const MoeShape *m, const RoutedFfn *a, uint64_t seed)
{
    Backend *be = backend[b];
    RoutedRows want = routed_rows(m), got = routed_rows(m);
    RoutedFfn all = routed_part(a, 0, m->n, &want);
    backend_route_in_turn(be, &all);
    all = routed_part(a, 0, m->n, &got);
    be->routed_ffn(be, &all);
    check_routed_rows(about("routed_ffn", b), &a->ffn, &got, &want, 0, m->n, seed);
    for (int i = 0; i < m->n; i = next_alone(i, m->n, is_gpu(b))) {
        RoutedFfn one = routed_part(a, i, 1, &got);
        be->routed_ffn(be, &one);
        check_routed_rows(about("routed_ffn, one row", b), &a->ffn, &got, &want, i, 1, seed);
    }
    free_routed_rows(&want), free_routed_rows(&got);
}

static void check_routed_shape(const RoutedShape *s, uint64_t seed)
{
    const MoeShape *m = &s->m;
    Rng r = rng_new(seed);
    static Weight gate[MOST_EXPERTS], up[MOST_EXPERTS], down[MOST_EXPERTS];
    for (int e = 0; e < m->n_experts; e++) {
        gate[e] = random_weight(&r, m->type, m->width, m->dim);
        up[e] = random_weight(&r, m->type, m->width, m->dim);
        down[e] = random_weight(&r, m->type, m->dim, m->width);
    }
    Weight router = random_weight(&r, s->router, m->n_experts, m->dim);
    Weight shared_gate = random_weight(&r, s->router, 1, m->dim);
    MoeExpert shared_expert = {gate[0], up[0], down[0]};
    size_t all = (size_t)m->n * (size_t)m->dim;
    float *x = random_floats(&r, all, 1), *shared = random_floats(&r, all, 1);
    float *scratch = floats((size_t)moe_scratch_floats(m->n, m->dim, m->width));
    RoutedFfn a = {.router = {.x_stride = m->dim,
                              .n_products = 2,
                              .product = {{&router, NULL, m->n_experts}, {&shared_gate, NULL, 1}}},
                   .ffn = {.dim = m->dim,
                           .width = m->width,
                           .n_experts = m->n_experts,
                           .n_top = m->n_top,
                           .normalise = 1,
                           .x = x,
                           .type = m->type,
                           .gate = gate,
                           .up = up,
                           .down = down,
                           .shared = shared,
                           .scratch = scratch,
                           .shared_expert = shared_expert}};
    for (int b = 0; b < n_backends; b++) {
        a.ffn.shared = shared;
        check_routed(b, m, &a, r.seed);
        a.ffn.shared = NULL;
        if (is_gpu(b)) check_routed(b, m, &a, r.seed);
    }
    for (int e = 0; e < m->n_experts; e++)
        free_weight(&gate[e]), free_weight(&up[e]), free_weight(&down[e]);
    free_weight(&router), free_weight(&shared_gate);
    free(x), free(shared), free(scratch);
}

static void test_routed_ffn(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof routed_shapes / sizeof *routed_shapes; s++)
        check_routed_shape(&routed_shapes[s], 900 + s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_route),        cmocka_unit_test(test_moe_ffn),
        cmocka_unit_test(test_moe_route_of_nan), cmocka_unit_test(test_moe_is_linear),
        cmocka_unit_test(test_routed_ffn),
    };
    return cmocka_run_group_tests_name("moe", tests, open_backends, close_backends);
}
