/*
 * test_terms.c: on a GPU's kernels, the terms that an operation leaves for the products behind it
 * (kernels/terms.h): they are found, they give the bits that splitting gives, and they are not
 * taken where the rows have changed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda_backend.h"
#include "tests/backend_simt.h"
#include "tests/backends.h"

/* Most operations are tried with rows of at most MAX_COLS, some with longer ones. */
enum { MAX_COLS = 512, LONG_COLS = 2304, MAX_N = MEMO_ROWS + 1, N_MATRICES = 3 };

static const WeightType types[N_MATRICES] = {WEIGHT_FP8, WEIGHT_BF16, WEIGHT_FP8};
/* Of the last; MANY are an odd number of tiles, and more of them than a GPU gives blocks. */
enum { FEW = 130, MANY = 4314 };
enum { Y_FLOATS = MAX_N * (35 + 17 + FEW), MANY_N = 8 };
_Static_assert(MANY_N *(35 + 17 + MANY) <= 3 * Y_FLOATS, "y has room for three times the usual");

/* Memory of a backend, and matrices of `cols` columns. */
typedef struct {
    Backend *be;
    int cols, rows[N_MATRICES];
    Weight w[N_MATRICES];
    float *x, *z, *h, *same, *norm, *y;
    float *gates, *page;         /* of attention: one page of K and V */
    int32_t *pos, *base, *zeros; /* of rows at POS, none of them a draft */
    float *mixed;                /* what a delta layer reads and hands on */
    int32_t *none;               /* of rows that leave no state */
} Case;

enum { POS = 40, PAGE_ROWS = 64 };

/* Of a delta layer: two key heads, four value heads; its channels and a slot's floats. */
enum {
    D = 128,
    KEYS = 2 * D,
    VALUES = 4 * D,
    CHANNELS = 2 * KEYS + VALUES,
    STATE = VALUES * D,
    MIXED = STATE + 3 * CHANNELS + MAX_N * (CHANNELS + 2 * KEYS + VALUES + 4 * 4) + 4 * CHANNELS,
};

static void *room(Backend *be, const void *content, size_t bytes)
{
    Error err = {0};
    void *mem = be->alloc(be, bytes, &err);
    if (!mem) fail_msg("%s", err.msg);
    if (content) be->upload(be, mem, content, bytes);
    return mem;
}

static float *random_room(Backend *be, uint64_t seed, size_t n)
{
    Rng r = rng_new(seed);
    float *host = random_floats(&r, n, 1), *mem = room(be, host, n * sizeof *host);
    free(host);
    return mem;
}

static int32_t *filled_room(Backend *be, int32_t value)
{
    int32_t host[MAX_N];
    for (int i = 0; i < MAX_N; i++)
        host[i] = value;
    return room(be, host, sizeof host);
}

static Weight random_matrix(Backend *be, uint64_t seed, WeightType type, int rows, int cols)
{
    Rng r = rng_new(seed);
    Weight host = random_weight(&r, type, rows, cols), w = host;
    w.data = room(be, host.data, (size_t)weight_data_bytes(&host));
    if (host.scale)
        w.scale = room(be, host.scale, (size_t)weight_n_scales(&host) * sizeof *host.scale);
    free_weight(&host);
    return w;
}

static void free_matrix(Backend *be, const Weight *w)
{
    be->free(be, (void *)(uintptr_t)w->data);
    if (w->scale) be->free(be, (void *)(uintptr_t)w->scale);
}

static Case open_case_of(Backend *be, int cols, int last_rows)
{
    Case c = {.be = be, .cols = cols, .rows = {35, 17, last_rows}};
    size_t n = (size_t)MAX_N * LONG_COLS;
    for (int i = 0; i < N_MATRICES; i++)
        c.w[i] = random_matrix(be, 10 + (uint64_t)i, types[i], c.rows[i], cols);
    c.x = random_room(be, 1, n), c.z = random_room(be, 2, n), c.norm = random_room(be, 3, n);
    c.h = room(be, NULL, n * sizeof(float)), c.same = room(be, NULL, n * sizeof(float));
    c.y = room(be, NULL, 3 * Y_FLOATS * sizeof(float));
    c.gates = random_room(be, 4, 2 * n), c.page = random_room(be, 5, 2 * PAGE_ROWS * MAX_COLS);
    c.pos = filled_room(be, POS), c.base = filled_room(be, POS + 1), c.zeros = filled_room(be, 0);
    c.mixed = random_room(be, 6, MIXED), c.none = filled_room(be, -1);
    return c;
}

static Case open_case(Backend *be, int cols)
{
    return open_case_of(be, cols, FEW);
}

static void close_case(Case *c)
{
    for (int i = 0; i < N_MATRICES; i++)
        free_matrix(c->be, &c->w[i]);
    void *all[] = {c->x,    c->z,   c->norm, c->h,     c->same,  c->y,   c->gates,
                   c->page, c->pos, c->base, c->zeros, c->mixed, c->none};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        c->be->free(c->be, all[i]);
}

/* All matrices times n rows of x; the products to host memory, which the caller frees. */
static float *multiply(const Case *c, const float *x, int n)
{
    float *host = floats(3 * Y_FLOATS), *y = c->y;
    Linear a = {.n = n, .x = x, .x_stride = c->cols, .n_products = N_MATRICES};
    for (int i = 0; i < N_MATRICES; i++) {
        a.product[i] = (LinearProduct){&c->w[i], y, c->rows[i]};
        y += n * c->rows[i];
    }
    c->be->linear(c->be, &a);
    c->be->download(c->be, host, c->y, (size_t)(y - c->y) * sizeof(float));
    return host;
}

/* 1 where terms of h wait for a product. */
static int has_terms(const Case *c, const float *h)
{
    const TermsMemo *m = &((CudaBackend *)c->be)->memo;
    for (int i = 0; i < MEMO_ENTRIES; i++)
        if (m->entry[i].x == h) return 1;
    return 0;
}

/* h times the matrices: the bits of the same values from elsewhere, which nobody has split. */
static void check_products(const Case *c, int n, const char *what)
{
    size_t bytes = (size_t)n * (size_t)c->cols * sizeof(float);
    float *got = multiply(c, c->h, n);
    c->be->copy(c->be, c->same, c->h, bytes);
    assert_false(has_terms(c, c->h));
    float *want = multiply(c, c->same, n);
    size_t all = (size_t)n * (size_t)(c->rows[0] + c->rows[1] + c->rows[2]);
    assert_true(same_bits(what, got, want, all, (uint64_t)n));
    free(got), free(want);
}

/* ---- the operations that leave terms ---- */

static void norm(const Case *c, int n)
{
    c->be->add_norm(c->be, &(AddNorm){.n = n,
                                      .dim = c->cols,
                                      .eps = 1e-6f,
                                      .x = c->x,
                                      .w = c->norm,
                                      .out = c->h,
                                      .out_stride = c->cols});
}

/* Of rows of x, taken as a table. */
static void norm_both(const Case *c, int n)
{
    int dim = c->cols / 2;
    Weight table = {WEIGHT_F32, MAX_N, dim, c->x, NULL};
    c->be->head_input(c->be, &(HeadInput){.n = n,
                                          .eps = 1e-6f,
                                          .table = &table,
                                          .token = c->pos,
                                          .hidden = c->z,
                                          .embed_norm = c->norm,
                                          .hidden_norm = c->norm + dim,
                                          .embedding = c->same,
                                          .out = c->h});
}

/* Heads of 128, or of 256 where those are whole. */
static void norm_heads(const Case *c, int n)
{
    int dim = c->cols % 256 ? 128 : 256;
    c->be->gated_norm(c->be, &(GatedNorm){.n = n,
                                          .n_heads = c->cols / dim,
                                          .dim = dim,
                                          .eps = 1e-6f,
                                          .x = c->x,
                                          .z = c->z,
                                          .w = c->norm,
                                          .out = c->h});
}

static void gate(const Case *c, int n)
{
    size_t bytes = (size_t)n * (size_t)c->cols * sizeof(float);
    c->be->copy(c->be, c->h, c->x, bytes);
    c->be->swiglu(c->be, &(SwiGlu){.n = n, .dim = c->cols, .gate = c->h, .up = c->z});
}

/* Rows that each start from slot 0. */
static void mix(const Case *c, int n)
{
    SlotLayer slots = {(unsigned char *)c->mixed, MIXED * sizeof(float), 0, STATE * sizeof(float)};
    float *qkv = c->mixed + STATE + 3 * CHANNELS, *q = qkv + MAX_N * CHANNELS,
          *k = q + MAX_N * KEYS;
    float *v = k + MAX_N * KEYS, *a = v + MAX_N * VALUES, *b = a + MAX_N * 4;
    float *decay = b + MAX_N * 4, *beta = decay + MAX_N * 4, *w = beta + MAX_N * 4;
    c->be->delta_mixer(c->be,
                       &(DeltaMixer){.n = n,
                                     .conv = {n,     2, 4, D,       D,           4,        qkv,
                                              a,     b, w, c->norm, c->norm + 4, c->zeros, c->none,
                                              slots, q, k, v,       decay,       beta,     c->none},
                                     .delta = {n, 2, 4, D, D, q, k, v, decay, beta, c->zeros,
                                               c->none, slots, c->h, 0, c->none},
                                     .norm = {n, 4, D, 1e-6f, c->h, c->z, c->norm, c->h}});
}

/* One KV head; heads as norm_heads has them. */
static void attend(const Case *c, int n)
{
    int dim = c->cols % 256 ? 128 : 256;
    size_t part = (size_t)PAGE_ROWS * (size_t)dim * sizeof(float);
    KvLayer kv = {.type = KV_F32,
                  .pages = (unsigned char *)c->page,
                  .page_bytes = 2 * part,
                  .v_offset = part,
                  .page_tokens = PAGE_ROWS,
                  .n_kv_heads = 1,
                  .head_dim = dim,
                  .table = c->zeros,
                  .table_stride = 1};
    c->be->tree_attention(c->be, &(TreeAttention){.n = n,
                                                  .n_heads = c->cols / dim,
                                                  .n_keys = POS + 1,
                                                  .scale = 0.1f,
                                                  .q = c->x,
                                                  .qg = c->gates,
                                                  .seq = c->zeros,
                                                  .pos = c->pos,
                                                  .base = c->base,
                                                  .parent = c->zeros,
                                                  .kv_row = c->zeros,
                                                  .kv = kv,
                                                  .out = c->h});
}

typedef struct {
    const char *name;
    void (*make)(const Case *c, int n);
    int cols;
} Maker;

static const Maker makers[] = {{"add_norm", norm, MAX_COLS},
                               {"add_norm, odd", norm, 333},
                               {"add_norm, long", norm, 2300},
                               {"head_input", norm_both, MAX_COLS},
                               {"head_input, long", norm_both, LONG_COLS},
                               {"gated_norm", norm_heads, MAX_COLS},
                               {"gated_norm, small heads", norm_heads, 384},
                               {"delta_mixer", mix, MAX_COLS},
                               {"attention", attend, MAX_COLS},
                               {"attention, small heads", attend, 384},
                               {"swiglu", gate, MAX_COLS},
                               {"swiglu, odd", gate, 131}};
enum { N_MAKERS = sizeof makers / sizeof *makers };

/* Kinds that are left, as bits. */
enum { BF16 = 1 << KIND_BF16, FP8 = 1 << KIND_FP8, BY_ROW = 1 << KIND_FP8_BY_ROW };
static const unsigned wanted[] = {BF16 | FP8 | BY_ROW, BF16 | FP8, BF16 | BY_ROW, FP8, BF16};

static void test_same_products(void **state)
{
    (void)state;
    static const int counts[] = {1, 3, 5, 8, 9, 17, 33, MEMO_ROWS, MAX_N};
    Backend *gpu[MAX_GPU_BACKENDS];
    int n_gpu = open_gpu_backends(gpu);
    for (int b = 0; b < n_gpu; b++) {
        for (int m = 0; m < N_MAKERS; m++) {
            Case c = open_case(gpu[b], makers[m].cols);
            CudaBackend *cuda = (CudaBackend *)gpu[b];
            TermsMemo *memo = &cuda->memo;
            int by_row = cuda->context.wgmma && c.cols % 16 == 0;
            memset(memo->wanted, 0, sizeof memo->wanted);
            free(multiply(&c, c.x, MAX_N)); /* nobody could leave so many */
            assert_int_equal(memo->wanted[0] | memo->wanted[1], 0);
            free(multiply(&c, c.x, WG_MIN_ROWS - 1)), free(multiply(&c, c.x, WG_MIN_ROWS));
            assert_int_equal(memo->wanted[0], BF16 | FP8);
            assert_int_equal(memo->wanted[1], BF16 | (by_row ? BY_ROW : FP8));
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
                    if (counts[i] * c.cols > MAX_N * MAX_COLS) continue; /* takes long */
                    memo->wanted[0] = memo->wanted[1] = wanted[k];
                    makers[m].make(&c, counts[i]);
                    assert_int_equal(has_terms(&c, c.h), counts[i] <= MEMO_ROWS);
                    check_products(&c, counts[i], makers[m].name);
                }
            close_case(&c);
        }
        gpu[b]->close(gpu[b]);
    }
}

/* Rows whose terms are more than there is memory for leave none. */
static void test_no_room(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n_gpu = open_gpu_backends(gpu);
    for (int b = 0; b < n_gpu; b++) {
        Case c = open_case(gpu[b], MAX_COLS);
        TermsMemo *memo = &((CudaBackend *)gpu[b])->memo;
        free(multiply(&c, c.x, 1));
        norm(&c, 1);
        assert_true(has_terms(&c, c.h));
        memo->part_bytes = 1024;
        norm(&c, 1);
        check_products(&c, 1, "no room");
        norm(&c, 1);
        assert_false(has_terms(&c, c.h));
        close_case(&c);
        gpu[b]->close(gpu[b]);
    }
}

/* Halves of rows that end within a block of 128. */
static void test_odd_halves(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n_gpu = open_gpu_backends(gpu);
    for (int b = 0; b < n_gpu; b++) {
        Case c = open_case(gpu[b], 2 * 131);
        free(multiply(&c, c.x, 1));
        norm_both(&c, 4);
        check_products(&c, 4, "head_input, odd");
        close_case(&c);
        gpu[b]->close(gpu[b]);
    }
}

/* Blocks of a GPU walk through tiles of both types. */
static void test_many_tiles(void **state)
{
    (void)state;
    static const int counts[] = {3, MANY_N};
    Backend *gpu[MAX_GPU_BACKENDS];
    int n_gpu = open_gpu_backends(gpu);
    for (int b = 0; b < n_gpu; b++) {
        Case c = open_case_of(gpu[b], MAX_COLS, MANY);
        free(multiply(&c, c.x, 1));
        for (int i = 0; i < 2; i++) {
            norm(&c, counts[i]);
            check_products(&c, counts[i], "many tiles");
        }
        close_case(&c);
        gpu[b]->close(gpu[b]);
    }
}

/* ---- what changes rows whose terms wait ---- */

static void upload_over(const Case *c, int n)
{
    float *host = floats((size_t)(n * c->cols));
    for (int i = 0; i < n * c->cols; i++)
        host[i] = (float)(i % 7) - 3;
    c->be->upload(c->be, c->h, host, (size_t)(n * c->cols) * sizeof *host);
    free(host);
}

static void copy_over(const Case *c, int n)
{
    c->be->copy(c->be, c->h, c->z, (size_t)(n * c->cols) * sizeof(float));
}

static void zero(const Case *c, int n)
{
    c->be->zero(c->be, c->h + 5, (size_t)(n * c->cols - 5) * sizeof(float));
}

/* A product whose rows begin within h, of another number of columns than h has. */
static void multiply_over(const Case *c, int n)
{
    Linear a = {.n = n,
                .x = c->x,
                .x_stride = c->cols,
                .n_products = 1,
                .product = {{&c->w[1], c->h + 100, c->rows[1]}}};
    c->be->linear(c->be, &a);
}

static void gate_again(const Case *c, int n)
{
    c->be->swiglu(c->be, &(SwiGlu){.n = n, .dim = c->cols, .gate = c->h, .up = c->z});
}

/* Of fewer columns, so that the rows do not lie where they did. */
static void gate_part(const Case *c, int n)
{
    c->be->swiglu(c->be, &(SwiGlu){.n = n, .dim = 100, .gate = c->h, .up = c->z});
}

static void (*const changes[])(const Case *, int) = {upload_over,   copy_over,  zero,
                                                     multiply_over, gate_again, gate_part};

static void test_changed_rows(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n_gpu = open_gpu_backends(gpu);
    for (int b = 0; b < n_gpu; b++) {
        Case c = open_case(gpu[b], MAX_COLS);
        free(multiply(&c, c.x, 1));
        for (int m = 0; m < N_MAKERS; m++)
            for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
                if (makers[m].cols != MAX_COLS) continue;
                makers[m].make(&c, 4);
                assert_true(has_terms(&c, c.h));
                changes[i](&c, 4);
                check_products(&c, 4, makers[m].name);
            }
        close_case(&c);
        gpu[b]->close(gpu[b]);
    }
}

/* Two arrays' terms wait at a time: those of a third take the place of the first's. */
static void test_two_arrays(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n_gpu = open_gpu_backends(gpu);
    for (int b = 0; b < n_gpu; b++) {
        Case c = open_case(gpu[b], MAX_COLS);
        free(multiply(&c, c.x, 1));
        norm(&c, 2);
        c.be->swiglu(c.be, &(SwiGlu){.n = 2, .dim = c.cols, .gate = c.x, .up = c.z});
        assert_true(has_terms(&c, c.h) && has_terms(&c, c.x));
        free(multiply(&c, c.x, 2)); /* and are still there behind a product */
        assert_true(has_terms(&c, c.h) && has_terms(&c, c.x));
        check_products(&c, 2, "add_norm before swiglu");
        norm(&c, 2);
        for (int i = 0; i < 2; i++)
            c.be->swiglu(c.be, &(SwiGlu){.n = 1, .dim = 7 + i, .gate = c.x + 9 * i, .up = c.z});
        assert_false(has_terms(&c, c.h));
        check_products(&c, 2, "add_norm before two");
        close_case(&c);
        gpu[b]->close(gpu[b]);
    }
}

/* ---- a router and experts, of which both types' terms are taken ---- */

/* Experts that are all the same: w[0] as gate and up, and this as down; the router is w[1]. */
typedef struct {
    Weight down, *of; /* gate, up, down of each, on the device */
    float *rows;      /* what routed_ffn needs and writes */
} Experts;

enum { TOP = 3, ROUTED_ROWS = 17, EXPERTS_ROWS = 35, N_EXPERTS = 17, PER_ROW = 4 * MAX_COLS };

static Experts open_experts(const Case *c)
{
    Experts e = {.down = random_matrix(c->be, 20, WEIGHT_FP8, c->cols, EXPERTS_ROWS)};
    Weight host[3 * N_EXPERTS];
    for (int i = 0; i < N_EXPERTS; i++)
        host[i] = host[N_EXPERTS + i] = c->w[0], host[2 * N_EXPERTS + i] = e.down;
    e.of = room(c->be, host, sizeof host);
    e.rows = room(c->be, NULL, ROUTED_ROWS * PER_ROW * sizeof(float));
    return e;
}

/* n rows of x; what comes out to host memory, which the caller frees. */
static float *route(const Case *c, const Experts *e, const float *x, int n)
{
    size_t all = (size_t)(n * c->cols);
    float *logits = e->rows, *gate = logits + n * N_EXPERTS, *weight = gate + n, *out, *host;
    int32_t *id = (int32_t *)(void *)(weight + n * TOP);
    out = weight + 2 * n * TOP;
    Weight one = c->w[1];
    one.rows = 1;
    RoutedFfn a = {.n = n,
                   .router = {.n = n,
                              .x = x,
                              .x_stride = c->cols,
                              .n_products = 2,
                              .product = {{&c->w[1], logits, N_EXPERTS}, {&one, gate, 1}}},
                   .ffn = {.n = n,
                           .dim = c->cols,
                           .width = EXPERTS_ROWS,
                           .n_experts = N_EXPERTS,
                           .n_top = TOP,
                           .x = x,
                           .logits = logits,
                           .id = id,
                           .weight = weight,
                           .type = WEIGHT_FP8,
                           .gate = e->of,
                           .up = e->of + N_EXPERTS,
                           .down = e->of + 2 * N_EXPERTS,
                           .shared_gate = gate,
                           .scratch = out + all,
                           .out = out,
                           .shared_expert = {c->w[0], c->w[0], e->down}}};
    c->be->routed_ffn(c->be, &a);
    host = floats(all);
    c->be->download(c->be, host, out, all * sizeof *host);
    return host;
}

static void test_routed_ffn(void **state)
{
    (void)state;
    static const int counts[] = {1, 4, 7, 16, ROUTED_ROWS};
    Backend *gpu[MAX_GPU_BACKENDS];
    int n_gpu = open_gpu_backends(gpu);
    for (int b = 0; b < n_gpu; b++) {
        Case c = open_case(gpu[b], MAX_COLS);
        Experts e = open_experts(&c);
        CudaBackend *cuda = (CudaBackend *)gpu[b];
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
                /* beyond the experts' kernels of few rows the shared one's products are linear's */
                int by_row = cuda->context.wgmma && counts[i] > MOE_FEW_ROWS;
                size_t all = (size_t)(counts[i] * c.cols);
                unsigned *of_rows = &cuda->memo.wanted[counts[i] >= WG_MIN_ROWS];
                *of_rows = wanted[k];
                norm(&c, counts[i]);
                float *got = route(&c, &e, c.h, counts[i]);
                assert_true(has_terms(&c, c.h));
                assert_int_equal(*of_rows, wanted[k] | BF16 | FP8 | (by_row ? BY_ROW : 0));
                c.be->copy(c.be, c.same, c.h, all * sizeof(float));
                float *want = route(&c, &e, c.same, counts[i]);
                assert_true(same_bits("routed_ffn", got, want, all, (uint64_t)counts[i]));
                free(got), free(want);
            }
        free_matrix(c.be, &e.down);
        c.be->free(c.be, e.of), c.be->free(c.be, e.rows);
        close_case(&c);
        gpu[b]->close(gpu[b]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_products), cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_odd_halves),    cmocka_unit_test(test_many_tiles),
        cmocka_unit_test(test_changed_rows),  cmocka_unit_test(test_two_arrays),
        cmocka_unit_test(test_routed_ffn),
    };
    return cmocka_run_group_tests_name("terms", tests, NULL, NULL);
}
