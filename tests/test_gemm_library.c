/*
 * test_gemm_library.c: which products a library does, with a library made up here; the real one
 * needs a GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"
#include "kernels/gemm_library.h"
#include "kernels/ops_ref.h"
#include "tests/backends.h"

/* It multiplies on the host, and says what it was asked. */
typedef struct {
    int chosen, accepted, multiplied; /* calls */
    int refuses;                      /* this many rows */
    int no_choice, fails_after;       /* fails_after: products that go well, -1: all */
    int largest;                      /* number of rows in a product */
} Fake;

static uint64_t name_of(WeightType type, int rows, int cols)
{
    return (uint64_t)type << 60 | (uint64_t)rows << 32 | (uint64_t)cols;
}

static int fake_choose(void *self, WeightType type, int rows, int cols, int n, GemmAlgorithm *out)
{
    Fake *f = self;
    f->chosen++;
    assert_int_equal(n, LIBRARY_ROWS);
    out->data[0] = name_of(type, rows, cols);
    return f->no_choice ? -1 : 0;
}

static int fake_accepts(void *self, WeightType type, int rows, int cols, int n,
                        const GemmAlgorithm *algorithm)
{
    Fake *f = self;
    f->accepted++;
    assert_int_equal(algorithm->data[0], name_of(type, rows, cols));
    assert_true(n >= 1 && n <= LIBRARY_ROWS);
    assert_true(type == WEIGHT_BF16 || n % PREFILL_FP8_ROWS == 0);
    return n == f->refuses ? -1 : 0;
}

/* Element [i][k] of x, [r][k] of w; with it what it is multiplied by. */
static float element(const GemmProduct *p, const void *data, int row, int k)
{
    int64_t at = (int64_t)row * p->cols + k;
    return p->type == WEIGHT_FP8 ? fp8_to_float(((const uint8_t *)data)[at])
                                 : bf16_to_float(((const uint16_t *)data)[at]);
}

static float scales(const GemmProduct *p, int i, int r, int k)
{
    if (p->type != WEIGHT_FP8) return 1;
    return p->x_scale[k / 128 * p->n + i] * p->w_scale[r / 128 * (p->cols / 128) + k / 128];
}

static int fake_multiply(void *self, const GemmProduct *p, const GemmAlgorithm *algorithm)
{
    Fake *f = self;
    assert_int_equal(algorithm->data[0], name_of(p->type, p->rows, p->cols));
    assert_true(p->type == WEIGHT_BF16 || (p->n % PREFILL_FP8_ROWS == 0 && !p->add));
    if (f->multiplied++ == f->fails_after) return -1;
    if (p->n > f->largest) f->largest = p->n;
    for (int i = 0; i < p->n; i++)
        for (int r = 0; r < p->rows; r++) {
            float *y = &p->y[i * p->y_stride + r], sum = p->add ? *y : 0;
            for (int k = 0; k < p->cols; k++)
                sum += element(p, p->w, r, k) * element(p, p->x, i, k) * scales(p, i, r, k);
            *y = sum;
        }
    return 0;
}

enum { ROWS = 24, COLS = 40, N = 70, STRIDE = COLS + 3, SCRATCH_ROWS = 33 };

typedef struct {
    Fake fake;
    GemmChoice choice;
    CudaContext context;
    int failed;
    Weight w;
    float *x, *y;
    Linear a; /* a prompt's product, fit for the library */
} Case;

static void set_scratch(Case *c, size_t bytes)
{
    mem_free(c->context.scratch);
    c->context.scratch_bytes = bytes;
    c->context.scratch = mem_alloc(1, bytes);
}

static void case_open(Case *c)
{
    Rng r = rng_new(5);
    *c = (Case){.fake = {.fails_after = -1, .refuses = -1}};
    c->choice.library = (GemmLibrary){&c->fake, fake_choose, fake_accepts, fake_multiply, NULL};
    c->choice.split = split_bf16_simt;
    c->choice.round = round_fp8_simt;
    c->context.failed = &c->failed;
    set_scratch(c, SCRATCH_ROWS * COLS * 4);
    c->w = random_weight(&r, WEIGHT_BF16, ROWS, COLS);
    c->x = random_floats(&r, N * STRIDE, 2);
    c->y = mem_alloc(N * ROWS, sizeof(float));
    c->a = (Linear){N, c->x, STRIDE, 1, {{&c->w, c->y, ROWS}}, 1};
}

static void case_close(Case *c)
{
    free_weight(&c->w);
    free(c->x);
    mem_free(c->y);
    mem_free(c->context.scratch);
}

static int run(Case *c)
{
    return (int)gemm_library_linear(&c->choice, &c->context, &c->a);
}

/* In pieces that fit the scratch, near the definition; one choice, all numbers of rows asked for.
 */
static void test_product(void **state)
{
    (void)state;
    Case c;
    case_open(&c);
    assert_int_equal(run(&c), 1);
    for (int i = 0; i < N; i++)
        for (int r = 0; r < ROWS; r++) {
            double sum = 0, size = 0;
            for (int k = 0; k < COLS; k++) {
                double p = (double)c.x[i * STRIDE + k] *
                           (double)bf16_to_float(((const uint16_t *)c.w.data)[r * COLS + k]);
                sum += p, size += fabs(p);
            }
            /* 2^-17 of each product by two terms, and 80 additions in f32 */
            assert_true(fabs((double)c.y[i * ROWS + r] - sum) <= (0x1p-17 + 80 * 0x1p-24) * size);
        }
    assert_int_equal(c.fake.largest, SCRATCH_ROWS);
    assert_int_equal(c.fake.multiplied, 2 * 3);
    assert_int_equal(c.fake.chosen, 1);
    assert_int_equal(c.fake.accepted, LIBRARY_ROWS);
    c.a.n = 1;
    assert_int_equal(run(&c), 1);
    assert_int_equal(c.fake.chosen, 1);
    assert_int_equal(c.fake.accepted, LIBRARY_ROWS);
    case_close(&c);
}

/*
 * x in e4m3, rows by 16, in pieces that fit the scratch: near the definition with x so rounded.
 * What comes after the rows that were asked for, up to 16, may be written, nothing else.
 */
static void test_fp8_product(void **state)
{
    (void)state;
    enum { FP8_ROWS = 144, FP8_COLS = 512, PIECE = 33, STEP = PREFILL_FP8_ROWS };
    enum { ALL = (N + STEP - 1) / STEP * STEP };
    Case c;
    case_open(&c);
    Rng r = rng_new(6);
    Weight w = random_weight(&r, WEIGHT_FP8, FP8_ROWS, FP8_COLS);
    float *x = random_floats(&r, N * FP8_COLS, 3), factor[FP8_COLS];
    float *y = floats(ALL * FP8_ROWS);
    for (int k = 128; k < 256; k++)
        x[5 * FP8_COLS + k] = 0; /* a block of zeros, one of tiny values */
    for (int k = 256; k < 384; k++)
        x[6 * FP8_COLS + k] *= 1e-35f;
    set_scratch(&c, PIECE * (FP8_COLS + FP8_COLS / 128 * 4) + 256);
    c.a = (Linear){N, x, FP8_COLS, 1, {{&w, y, FP8_ROWS}}, PREFILL_FP8};
    for (int n = N; n > N - STEP; n--) {
        memset(y, 0xff, ALL * FP8_ROWS * sizeof *y);
        c.a.n = n;
        assert_int_equal(run(&c), 1);
        for (int i = 0; i < n; i++) {
            linear_factors(&w, PREFILL_FP8, x + i * FP8_COLS, factor);
            for (int o = 0; o < FP8_ROWS; o++) {
                double sum = 0, size = 0;
                for (int k = 0; k < FP8_COLS; k++) {
                    double p = (double)factor[k] * (double)weight_at(&w, o, k);
                    sum += p, size += fabs(p);
                }
                assert_true(fabs((double)y[i * FP8_ROWS + o] - sum) <= 600 * 0x1p-24 * size);
            }
        }
        for (int i = (n + STEP - 1) / STEP * STEP; i < ALL; i++)
            assert_true(isnan(y[i * FP8_ROWS]));
    }
    assert_int_equal(c.fake.largest, PIECE / STEP * STEP);
    assert_int_equal(c.fake.chosen, 1);
    assert_int_equal(c.fake.accepted, LIBRARY_ROWS / STEP);
    free_weight(&w);
    free(x), free(y);
    case_close(&c);
}

static int n_splits, n_rounds;

static void count_split(const CudaContext *c, int n, int cols, const float *x, int x_stride,
                        uint16_t *high, uint16_t *low)
{
    n_splits++;
    split_bf16_simt(c, n, cols, x, x_stride, high, low);
}

static void count_round(const CudaContext *c, int n, int n_all, int cols, const float *x,
                        int x_stride, uint8_t *code, float *scale)
{
    n_rounds++;
    round_fp8_simt(c, n, n_all, cols, x, x_stride, code, scale);
}

/* Matrices that share x: it is made ready once for each type, and each y is what it is alone. */
static void test_together(void **state)
{
    (void)state;
    enum { WIDE = 512, SOME = 70, ROOM = 80, MOST_ROWS = 48, BITS_OF_BF16 = 4, ALL_BITS = 13 };
    static const WeightType type[MAX_PRODUCTS] = {WEIGHT_FP8, WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8};
    Case c;
    case_open(&c);
    Rng r = rng_new(8);
    Weight w[MAX_PRODUCTS];
    float *x = random_floats(&r, SOME * WIDE, 1), *y[MAX_PRODUCTS];
    float *alone = floats(ROOM * MOST_ROWS);
    c.choice.split = count_split, c.choice.round = count_round;
    set_scratch(&c, 20 * WIDE * 4); /* of rows in bf16, or 64 in e4m3 */
    c.a = (Linear){SOME, x, WIDE, MAX_PRODUCTS, {{0}}, PREFILL_FP8};
    for (int i = 0; i < MAX_PRODUCTS; i++) {
        int rows = 16 + 16 * (i % 3); /* so both FP8 ones are of one shape */
        w[i] = random_weight(&r, type[i], rows, WIDE);
        y[i] = floats(ROOM * MOST_ROWS);
        c.a.product[i] = (LinearProduct){&w[i], y[i], rows};
    }
    const Linear all = c.a;
    assert_int_equal(run(&c), ALL_BITS);
    assert_int_equal(c.fake.multiplied, 2 * 4 + 2 * 2);
    assert_int_equal(n_splits, 4);
    assert_int_equal(n_rounds, 2);
    for (int i = 0; i < MAX_PRODUCTS; i++) {
        c.a.n_products = 1, c.a.product[0] = (LinearProduct){&w[i], alone, w[i].rows};
        assert_int_equal(run(&c), type[i] != WEIGHT_F32);
        if (type[i] != WEIGHT_F32)
            assert_memory_equal(y[i], alone, SOME * (size_t)w[i].rows * sizeof(float));
        c.a = all;
    }
    c.fake.multiplied = 0, c.fake.fails_after = 2 * 4 + 2; /* FP8's first of the second piece */
    assert_int_equal(run(&c), BITS_OF_BF16);
    c.fake.fails_after = -1;
    assert_int_equal(run(&c), BITS_OF_BF16);
    for (int i = 0; i < MAX_PRODUCTS; i++)
        free_weight(&w[i]), free(y[i]);
    free(x), free(alone);
    case_close(&c);
}

/* FP8 weights are the library's only where x may be rounded, and for shapes that it knows. */
static void test_fp8_not_for_it(void **state)
{
    (void)state;
    static const int shape[][3] = {/* rows, cols, ours */
                                   {16, 512, 0},
                                   {16, 384, 1},
                                   {24, 512, 1},
                                   {16, 520, 1}};
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
        Case c;
        case_open(&c);
        Rng r = rng_new(7 + s);
        int rows = shape[s][0], cols = shape[s][1];
        Weight w = random_weight(&r, WEIGHT_FP8, rows, cols);
        float *x = random_floats(&r, (size_t)cols, 1), *y = floats(PREFILL_FP8_ROWS * (size_t)rows);
        set_scratch(&c, 16384);
        c.a = (Linear){1, x, cols, 1, {{&w, y, rows}}, PREFILL_EXACT};
        assert_int_equal(run(&c), 0);
        c.a.prefill = 0;
        assert_int_equal(run(&c), 0);
        assert_int_equal(c.fake.chosen, 0);
        c.a.prefill = PREFILL_FP8;
        assert_int_equal(run(&c), !shape[s][2]);
        assert_int_equal(c.fake.multiplied, !shape[s][2]);
        free_weight(&w);
        free(x), free(y);
        case_close(&c);
    }
}

/* What never goes to the library, and is not asked about. */
static void test_not_for_it(void **state)
{
    (void)state;
    Case c;
    case_open(&c);
    Linear prompt = c.a;
    Weight other = c.w;
    c.a.prefill = 0;
    assert_int_equal(run(&c), 0);
    c.a = prompt, c.a.product->w = &other;
    other.type = WEIGHT_FP8;
    assert_int_equal(run(&c), 0);
    other = c.w, other.cols = COLS - 1;
    assert_int_equal(run(&c), 0);
    other = c.w, other.rows = c.a.product->y_stride = ROWS - 1;
    assert_int_equal(run(&c), 0);
    c.a.product->y_stride = ROWS;
    other = c.w, other.data = (const char *)c.w.data + 2;
    assert_int_equal(run(&c), 0);
    c.a = prompt, c.a.product->y = c.y + 1;
    assert_int_equal(run(&c), 0);
    c.a = prompt, c.a.product->y_stride = ROWS + 8;
    assert_int_equal(run(&c), 0);
    c.a = prompt, c.choice.library.self = NULL;
    assert_int_equal(run(&c), 0);
    assert_int_equal(c.fake.chosen + c.fake.multiplied, 0);
    case_close(&c);
}

/* No algorithm, one number of rows that it refuses, a product that fails: ours for ever. */
static void test_ours_for_ever(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        Case c;
        case_open(&c);
        if (k == 0) c.fake.no_choice = 1;
        if (k == 1) c.fake.refuses = 37;
        if (k == 2) c.fake.refuses = LIBRARY_ROWS;
        if (k == 3) c.fake.fails_after = 1; /* the second term of the first piece */
        assert_int_equal(run(&c), 0);
        assert_int_equal(c.fake.multiplied, k == 3 ? 2 : 0);
        assert_int_equal(c.fake.accepted, k == 0 ? 0 : k == 1 ? 37 : LIBRARY_ROWS);
        c.fake = (Fake){.fails_after = -1, .refuses = -1};
        for (c.a.n = 1; c.a.n < N; c.a.n++)
            assert_int_equal(run(&c), 0);
        assert_int_equal(c.fake.chosen + c.fake.accepted + c.fake.multiplied, 0);
        Weight other = c.w; /* another shape is another question */
        other.rows = c.a.product->y_stride = ROWS - 8;
        c.a.product->w = &other, c.a.n = N;
        assert_int_equal(run(&c), 1);
        case_close(&c);
    }
}

/* Shapes that find no place stay ours, those that have one the library's. */
static void test_many_shapes(void **state)
{
    (void)state;
    Case c;
    case_open(&c);
    Linear prompt = c.a;
    Weight other = c.w;
    assert_int_equal(run(&c), 1);
    c.a.product->w = &other;
    c.a.n = 0; /* the weights are not that large */
    for (int i = 0; i < LIBRARY_SHAPES + 8; i++) {
        other.rows = c.a.product->y_stride = ROWS + 8 + 8 * i;
        assert_int_equal(run(&c), i < LIBRARY_SHAPES - 1);
    }
    assert_int_equal(c.fake.chosen, LIBRARY_SHAPES);
    c.a = prompt;
    assert_int_equal(run(&c), 1);
    case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),     cmocka_unit_test(test_fp8_product),
        cmocka_unit_test(test_together),    cmocka_unit_test(test_fp8_not_for_it),
        cmocka_unit_test(test_not_for_it),  cmocka_unit_test(test_ours_for_ever),
        cmocka_unit_test(test_many_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
