/*
 * test_linear.c: products with weights of every type on every backend, against the definition and
 * against themselves.
 *
 * Near: each instruction set against "ref", within the error that its source argues for.
 * Same bits, within one instruction set: any number of threads; rows together or one at a time;
 * alone or beside other rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "kernels/ops_ref.h"
#include "kernels/simt_host.h"
#include "tests/backends.h"

typedef struct {
    WeightType type;
    int rows, cols, n;
} LinearShape;

static const LinearShape linear_shapes[] = {
    {WEIGHT_F32, 1, 1, 1},
    {WEIGHT_F32, 24, 40, 7},
    {WEIGHT_F32, 301, 48, 3},
    {WEIGHT_F32, 9, 1030, 18},
    {WEIGHT_BF16, 5, 24, 2},
    {WEIGHT_BF16, 48, 200, 13},
    {WEIGHT_BF16, 301, 1040, 5},
    {WEIGHT_BF16, 96, 2056, 51},
    {WEIGHT_BF16, 200, 256, 100},
    {WEIGHT_BF16, 17, 1031, 21},
    {WEIGHT_BF16, 18, 2056, 131},
    {WEIGHT_BF16, 5, 17408, 2}, /* a published width, whose rows are larger than a group */
    {WEIGHT_FP8, 3, 24, 2},
    {WEIGHT_FP8, 130, 300, 9},
    {WEIGHT_FP8, 301, 1030, 6},
    {WEIGHT_FP8, 160, 2048, 49},
    {WEIGHT_FP8, 145, 1040, 27},
    {WEIGHT_FP8, 1, 1, 1},
    {WEIGHT_BF16, 64, 544, 16},
    {WEIGHT_BF16, 80, 96, 17},
    {WEIGHT_BF16, 33, 1056, 33},
    {WEIGHT_FP8, 48, 672, 33},
    {WEIGHT_INT8, 1, 1, 1},
    {WEIGHT_INT8, 5, 24, 2},
    {WEIGHT_INT8, 130, 300, 9},
    {WEIGHT_INT8, 301, 1030, 6},
    {WEIGHT_INT8, 64, 512, 16},
    {WEIGHT_INT8, 77, 768, 8},
    {WEIGHT_INT8, 95, 1040, 12},
    {WEIGHT_INT8, 3, 40000, 13}, /* fewer than 16 fit into scratch */
    {WEIGHT_INT8, 96, 640, 17},
    {WEIGHT_INT8, 47, 1152, 33},
    {WEIGHT_INT8, 18, 2056, 150},
    {WEIGHT_INT4, 1, 1, 1},
    {WEIGHT_INT4, 5, 24, 2},
    {WEIGHT_INT4, 130, 300, 9},
    {WEIGHT_INT4, 301, 1030, 6},
    {WEIGHT_INT4, 64, 512, 16},
    {WEIGHT_INT4, 77, 768, 8},
    {WEIGHT_INT4, 95, 1056, 3},
    {WEIGHT_INT4, 3, 40000, 13},
    {WEIGHT_INT4, 47, 1152, 33},
    {WEIGHT_INT4, 18, 2056, 150},
    {WEIGHT_BF16, 1213, 1040, 16},
    {WEIGHT_FP8, 1440, 1030, 3},
    /* whole k-blocks, which a GPU's kernel of few rows asks for: one tile of 16 rows at a time */
    {WEIGHT_FP8, 301, 1152, 4},
    {WEIGHT_FP8, 130, 2048, 8},
    {WEIGHT_FP8, 3, 128, 2},
    {WEIGHT_BF16, 301, 1152, 3},
    {WEIGHT_BF16, 130, 2304, 7},
    /* two; more of them than blocks that a GPU gives them, two and three for a block */
    {WEIGHT_FP8, 8700, 128, 3},
    {WEIGHT_FP8, 4400, 1280, 4},
    {WEIGHT_FP8, 4300, 2048, 6},
    {WEIGHT_FP8, 17000, 256, 1},
    {WEIGHT_BF16, 8700, 128, 2},
    {WEIGHT_BF16, 12900, 256, 5},
    {WEIGHT_FP8, 4400, 1296, 4},
    /* by warpgroups, a block for each slice of two or three k-blocks */
    {WEIGHT_FP8, 130, 2576, 9},
    {WEIGHT_FP8, 301, 2688, 33},
    {WEIGHT_FP8, 20, 2064, 64},
    /* a batch of 8 rows at a time, in one launch or several (FP8: where there is no wgmma) */
    {WEIGHT_BF16, 290, 1152, 21},
    {WEIGHT_BF16, 4400, 128, 20},
    {WEIGHT_FP8, 4400, 256, 12},
    {WEIGHT_BF16, 4250, 1100, 5},
    {WEIGHT_BF16_BOTH, 1, 1, 1},
    {WEIGHT_BF16_BOTH, 5, 24, 2},
    {WEIGHT_BF16_BOTH, 48, 201, 13},
    {WEIGHT_BF16_BOTH, 301, 1040, 5},
    {WEIGHT_BF16_BOTH, 96, 2056, 51},
    {WEIGHT_BF16_BOTH, 200, 256, 100},
    {WEIGHT_BF16_BOTH, 17, 1031, 21},
    {WEIGHT_BF16_BOTH, 64, 544, 16},
    {WEIGHT_BF16_BOTH, 18, 2056, 131},
};

/*
 * Roundings of size 2^-24 |x w| that an output may have: as linear_cpu.c counts them for 4 lanes;
 * for two 16-bit terms as linear_amx.h, linear_int8.h and linear_tile.h do.
 */
static double roundings(const Weight *w, Sums sums)
{
    if (sums == SUMS_FP8_TENSOR) return 1 << 12;
    if (sums != SUMS_REF && weight_is_int(w->type)) return 2 * int8_blocks(w->cols) + 8;
    if (sums == SUMS_AMX && w->type == WEIGHT_BF16_BOTH) return 16 + w->cols / 16.0 + 8;
    if (sums == SUMS_AMX && w->type != WEIGHT_F32) return 128 + 16 + w->cols / 16.0 + 8;
    if (sums != SUMS_GPU || w->type == WEIGHT_F32)
        return (w->cols < 1024 ? w->cols : 1024) / 4.0 + w->cols / 1024.0 + 5;
    return (w->type == WEIGHT_BF16 ? 128 : 2) + (w->cols < 128 ? w->cols : 128) + w->cols / 128.0 +
           8;
}

/* Some rows have numbers that are far larger than their neighbours, where INT8 takes 16 bits. */
static void put_outliers(Rng *r, float *x, int x_stride, int n, int cols)
{
    for (int i = 1; i < n; i += 3)
        for (int k0 = i / 3 % 2 * INT8_BLOCK; k0 < cols; k0 += 2 * INT8_BLOCK) {
            int left = cols - k0 < INT8_BLOCK ? cols - k0 : INT8_BLOCK;
            x[i * x_stride + k0 + rng_int(r, left)] = rng_int(r, 2) ? 100 : -100;
        }
}

/*
 * What is lost of small x: fp16 beside a large one of the row, INT8's 8 bits beside a large one of
 * the block, 16 bits where that is over 8 times the root mean square of all 256 (the squares' sum,
 * in units of the largest, under 256 / 64), and what these, AMX and pairs of bf16 take for zero.
 */
static double lost(const Weight *w, const float *x, const float *row, Sums sums)
{
    double max = 0, all = 0, sum = 0;
    for (int k0 = 0; k0 < w->cols; k0 += INT8_BLOCK) {
        double largest = 0, weights = 0, squares = 0;
        for (int k = k0; k < w->cols && k < k0 + INT8_BLOCK; k++) {
            largest = fmax(largest, fabs((double)x[k]));
            squares += (double)x[k] * (double)x[k];
            weights += fabs((double)row[k]);
        }
        int is_fine = squares < 3.8 * largest * largest; /* 4, but for roundings */
        max = fmax(max, largest), all += weights;
        sum += largest * weights * (is_fine ? 0x1p-16 : 0x1.04p-8);
    }
    if (sums == SUMS_GPU && w->type == WEIGHT_FP8) return 0x1p-38 * max * all;
    if (sums != SUMS_REF && weight_is_int(w->type)) return sum + 0x1p-110 * all;
    int pairs = sums == SUMS_AMX || (sums != SUMS_REF && w->type == WEIGHT_BF16_BOTH);
    return pairs ? 0x1p-126 * (all + w->cols) : 0;
}

/* |error| <= roundings * 2^-24 * sum |x w| and what is lost of small x. */
static void check_prompt(const Weight *w, int prefill, const float *x, int x_stride, int n,
                         const float *got, int y_stride, Sums sums, const char *what, uint64_t seed)
{
    const size_t cols = (size_t)w->cols;
    float *row = floats(cols), *factor = floats((size_t)n * cols);
    for (int i = 0; i < n; i++)
        linear_factors(w, prefill, x + i * x_stride, factor + (size_t)i * cols);
    for (int r = 0; r < w->rows; r++) {
        for (int k = 0; k < w->cols; k++)
            row[k] = weight_at(w, r, k);
        for (int i = 0; i < n; i++) {
            double sum = 0, size = 0;
            const float *xi = factor + (size_t)i * cols;
            for (int k = 0; k < w->cols; k++) {
                double p = (double)xi[k] * (double)row[k];
                sum += p, size += fabs(p);
            }
            float want = (float)sum;
            double limit = roundings(w, sums) * 0x1p-24 * size + lost(w, xi, row, sums) + 1e-40;
            assert_true(near_all(what, &got[i * y_stride + r], &want, 1, 0, limit, seed));
        }
    }
    free(row), free(factor);
}

static void check_linear(const Weight *w, const float *x, int x_stride, int n, const float *got,
                         int y_stride, Sums sums, const char *what, uint64_t seed)
{
    check_prompt(w, 0, x, x_stride, n, got, y_stride, sums, what, seed);
}

/* A GPU whose blocks have less shared memory than wgmma's kernel takes gives the same bits. */
static void check_small_blocks(Backend *be, const Linear *of, size_t n, uint64_t seed)
{
    Linear a = *of;
    const float *want = a.product->y;
    float *got = a.product->y = outputs((size_t)a.n, (size_t)a.product->y_stride);
    simt_limit_shared(SIMT_SHARED_ADA);
    be->linear(be, &a);
    simt_limit_shared(SIMT_SHARED_HOPPER);
    assert_true(same_bits("linear in small blocks", got, want, n, seed));
    free(got);
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
        put_outliers(&r, x, x_stride, n, shape->cols);
        float *y = floats((size_t)(n * y_stride)), *first = floats((size_t)(n * y_stride));
        float *alone = floats((size_t)shape->rows);
        Linear a = {n, x, x_stride, 1, {{&w, y, y_stride}}, 0};
        ref->linear(ref, &a);
        check_linear(&w, x, x_stride, n, y, y_stride, SUMS_REF, "linear on ref", r.seed);
        for (int b = 0; b < n_backends; b++) {
            if (!has_type(b, shape->type)) continue;
            a.product->y = b == leader(b) ? first : y;
            backend[b]->linear(backend[b], &a);
            if (b == leader(b))
                check_linear(&w, x, x_stride, n, first, y_stride, sums_of(b), about("linear", b),
                             r.seed);
            if (!strcmp(backend[b]->name, "simt"))
                check_small_blocks(backend[b], &a, (size_t)(n * y_stride), r.seed);
            assert_true(
                same_bits(about("linear", b), a.product->y, first, (size_t)(n * y_stride), r.seed));
            for (int i = 0; i < n; i = next_alone(i, n, is_gpu(b))) {
                Linear one = {1, x + i * x_stride, x_stride, 1, {{&w, alone, y_stride}}, 0};
                backend[b]->linear(backend[b], &one);
                assert_true(same_bits(about("linear, one row", b), alone, first + i * y_stride,
                                      (size_t)shape->rows, r.seed));
            }
        }
        free_weight(&w);
        free(x), free(y), free(first), free(alone);
    }
}

/* A matrix one element off in memory, and x one float off: the same bits. */
static void test_linear_alignment(void **state)
{
    (void)state;
    enum { ROWS = 35, COLS = 288, N = 6 };
    for (int type = WEIGHT_F32; type < N_WEIGHT_TYPES; type++) {
        Rng r = rng_new(40 + (uint64_t)type);
        Weight w = random_weight(&r, (WeightType)type, ROWS, COLS), off = w;
        size_t bytes = (size_t)weight_data_bytes(&w),
               size = (size_t)weight_element_bytes((WeightType)type);
        char *data = malloc(bytes + size);
        float *x = random_floats(&r, N * COLS + 1, 2), *want = floats(N * ROWS);
        float *got = floats(N * ROWS);
        assert_non_null(data);
        memcpy(data + size, w.data, bytes);
        off.data = data + size;
        for (int b = 0; b < n_backends; b++) {
            if (!has_type(b, w.type)) continue;
            memmove(x, x + 1, N * COLS * sizeof *x);
            backend[b]->linear(backend[b], &(Linear){N, x, COLS, 1, {{&w, want, ROWS}}, 0});
            memmove(x + 1, x, N * COLS * sizeof *x);
            backend[b]->linear(backend[b], &(Linear){N, x + 1, COLS, 1, {{&off, got, ROWS}}, 0});
            assert_true(same_bits(about("linear, off by one", b), got, want, N * ROWS, r.seed));
        }
        free_weight(&w);
        free(data), free(x), free(want), free(got);
    }
}

/* n bytes that end where a page begins that nobody may read; *all and *size are to be unmapped. */
static void *before_the_end(const void *data, size_t n, void **all, size_t *size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (n + page - 1) / page * page;
    *size = pages + page;
    *all = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(*all != MAP_FAILED);
    assert_int_equal(mprotect((char *)*all + pages, page, PROT_NONE), 0);
    return memcpy((char *)*all + pages - n, data, n);
}

/* A checkpoint's last matrix ends with the file: nothing is read past it, nor past x. */
static void test_linear_ends(void **state)
{
    (void)state;
    static const int rows[] = {5, 35, 64}, cols[] = {40, 200, 256}, n[] = {1, 20};
    for (int c = 0; c < (N_WEIGHT_TYPES - WEIGHT_F32) * 18; c++) {
        Rng r = rng_new(90 + (uint64_t)c);
        WeightType type = (WeightType)(WEIGHT_F32 + c / 18);
        int N = n[c % 2], ROWS = rows[c / 2 % 3], COLS = cols[c / 6 % 3];
        size_t w_size, x_size, n_y = (size_t)(N * ROWS);
        void *w_all, *x_all;
        Weight w = random_weight(&r, type, ROWS, COLS), at_end = w;
        float *x = random_floats(&r, (size_t)(N * COLS), 1), *want = floats(n_y), *y = floats(n_y);
        at_end.data = before_the_end(w.data, (size_t)weight_data_bytes(&w), &w_all, &w_size);
        float *x_end = before_the_end(x, (size_t)(N * COLS) * sizeof *x, &x_all, &x_size);
        for (int b = 0; b < n_backends; b++) {
            if (is_gpu(b)) continue;
            backend[b]->linear(backend[b], &(Linear){N, x, COLS, 1, {{&w, want, ROWS}}, 0});
            backend[b]->linear(backend[b], &(Linear){N, x_end, COLS, 1, {{&at_end, y, ROWS}}, 0});
            assert_true(same_bits(about("linear at the end", b), y, want, n_y, r.seed));
        }
        munmap(w_all, w_size), munmap(x_all, x_size);
        free_weight(&w);
        free(x), free(want), free(y);
    }
}

/* INT8's sums are exact: one result for all sets that multiply and add in one rounding, also where
 * the product of two scales is subnormal; zero where x counts as zero. */
static void test_int8_everywhere(void **state)
{
    (void)state;
    enum { ROWS = 70, COLS = 1300, N = 21 };
    static const float times[] = {1, 0x1p-108f, 0x1p-118f};
    for (int tiny = 0; tiny < 3; tiny++) {
        Rng r = rng_new(80);
        Weight w = random_weight(&r, WEIGHT_INT8, ROWS, COLS);
        float *x = random_floats(&r, N * COLS, 1), *want = floats(N * ROWS), *y = floats(N * ROWS);
        int n_sets = 0;
        put_outliers(&r, x, COLS, N, COLS);
        for (int i = 0; i < N * COLS; i++)
            x[i] *= times[tiny];
        for (int b = 0; b < n_backends; b++) {
            if (b != leader(b) || is_gpu(b) || !strcmp(backend[b]->isa, "plain")) continue;
            Linear a = {N, x, COLS, 1, {{&w, n_sets++ ? y : want, ROWS}}, 0};
            backend[b]->linear(backend[b], &a);
            assert_true(
                same_bits(about("linear, other sets", b), a.product->y, want, N * ROWS, r.seed));
        }
        for (int i = 0; i < N * ROWS && n_sets; i++)
            assert_int_equal(want[i] != 0, tiny < 2);
        free_weight(&w);
        free(x), free(want), free(y);
    }
}

/* INT4 is INT8 in fewer bits: the same products, of few rows and many, fine ones and all coarse. */
static void test_int4_is_int8(void **state)
{
    (void)state;
    enum { ROWS = 53, COLS = 840, N = 49 };
    static const int rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, N};
    Rng r = rng_new(81);
    Weight w = random_weight(&r, WEIGHT_INT4, ROWS, COLS), same = w;
    same.type = WEIGHT_INT8;
    int8_t *code = calloc((size_t)weight_data_bytes(&same), 1);
    float *x = random_floats(&r, N * COLS, 1), *want = floats(N * ROWS), *y = floats(N * ROWS);
    assert_non_null(code);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < COLS; k++)
            code[weight_int8_code(&same, i, k)] = (int8_t)weight_int_code(&w, i, k);
    same.data = code;
    for (int outliers = 0; outliers < 2; outliers++) {
        if (outliers) put_outliers(&r, x, COLS, N, COLS);
        for (int b = 0; b < n_backends; b++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows && !is_gpu(b); i++) {
                int n = rows[i];
                backend[b]->linear(backend[b], &(Linear){n, x, COLS, 1, {{&same, want, ROWS}}, 0});
                backend[b]->linear(backend[b], &(Linear){n, x, COLS, 1, {{&w, y, ROWS}}, 0});
                assert_true(same_bits(about("INT4", b), y, want, (size_t)(n * ROWS), r.seed));
            }
    }
    free_weight(&w);
    free(code), free(x), free(want), free(y);
}

/* A file may hold any steps and offsets: what they make is the same for any number of rows. */
static void test_int4_of_any_bytes(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 600, N = 49 };
    static const int rows[] = {1, 3, 9, N};
    Rng r = rng_new(82);
    Weight w = random_weight(&r, WEIGHT_INT4, ROWS, COLS);
    unsigned char *data = (unsigned char *)(uintptr_t)w.data;
    float *x = random_floats(&r, N * COLS, 1), *want = floats(ROWS), *y = floats(N * ROWS);
    for (int64_t i = 0; i < weight_data_bytes(&w); i++)
        data[i] = (unsigned char)rng_int(&r, 256);
    put_outliers(&r, x, COLS, N, COLS);
    for (int b = 0; b < n_backends; b++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows && !is_gpu(b); i++) {
            float *to = i ? y : want;
            backend[b]->linear(backend[b], &(Linear){rows[i], x, COLS, 1, {{&w, to, ROWS}}, 0});
            assert_true(same_bits(about("INT4", b), to, want, ROWS, r.seed));
        }
    free_weight(&w);
    free(x), free(want), free(y);
}

/* NaN, infinity and the largest numbers in other rows, and all ranges of numbers in its own. */
static void test_linear_company(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 272, N = 7 };
    static const float scale[N] = {1, 1e-36f, 1e30f, 0, 1, 1, 1e-3f};
    for (int type = WEIGHT_F32; type < N_WEIGHT_TYPES; type++) {
        Rng r = rng_new(50 + (uint64_t)type);
        Weight w = random_weight(&r, (WeightType)type, ROWS, COLS);
        float *x = random_floats(&r, N * COLS, 1), *y = floats(N * ROWS), *alone = floats(ROWS);
        for (int i = 0; i < N * COLS; i++)
            x[i] *= scale[i / COLS];
        for (int k = 0; k < COLS; k++)
            x[6 * COLS + k] *= powf(2, (float)(k % 30)); /* small beside large */
        x[4 * COLS + 9] = NAN, x[5 * COLS + 10] = INFINITY;
        for (int b = 0; b < n_backends; b++) {
            if (!has_type(b, w.type)) continue;
            backend[b]->linear(backend[b], &(Linear){N, x, COLS, 1, {{&w, y, ROWS}}, 0});
            assert_true(isnan(y[4 * ROWS]) && !isfinite(y[5 * ROWS]));
            for (int i = 0; i < N; i++) {
                backend[b]->linear(backend[b],
                                   &(Linear){1, x + i * COLS, COLS, 1, {{&w, alone, ROWS}}, 0});
                if (i == 4 || i == 5) continue;
                check_linear(&w, x + i * COLS, COLS, 1, alone, ROWS, sums_of(b),
                             about("linear, ranges", b), r.seed);
                assert_true(
                    same_bits(about("linear, company", b), alone, y + i * ROWS, ROWS, r.seed));
            }
        }
        free_weight(&w);
        free(x), free(y), free(alone);
    }
}

/* So many rows of W that the GPU's kernel takes 9 rows of x by another schedule than one. */
static void test_linear_many_outputs(void **state)
{
    (void)state;
    enum { ROWS = 16269, COLS = 136, N = 9, SOME = N - 1 };
    for (int type = WEIGHT_BF16; type <= WEIGHT_FP8; type++) {
        Rng r = rng_new(60 + (uint64_t)type);
        Weight w = random_weight(&r, (WeightType)type, ROWS, COLS);
        float *x = random_floats(&r, N * COLS, 1), *y = floats(N * ROWS), *alone = floats(ROWS);
        Backend *be = backend[n_backends - 1];
        be->linear(be, &(Linear){N, x, COLS, 1, {{&w, y, ROWS}}, 0});
        be->linear(be, &(Linear){1, x + SOME * COLS, COLS, 1, {{&w, alone, ROWS}}, 0});
        assert_true(same_bits("linear, many outputs", alone, y + SOME * ROWS, ROWS, r.seed));
        free_weight(&w);
        free(x), free(y), free(alone);
    }
}

/* Matrices that multiply the same n rows of cols floats at once. */
typedef struct {
    int n, cols, n_products;
    struct {
        WeightType type;
        int rows;
    } matrix[MAX_PRODUCTS];
} Together;

/*
 * Those of 8,200 are wide blocks on a GPU, which their matrices alone are not. Of 131 and more the
 * rows of x do not fit the GPU's scratch in tests, and those that the CPU takes at a time.
 */
static const Together togethers[] = {
    {1, 40, 4, {{WEIGHT_BF16, 65}, {WEIGHT_BF16, 33}, {WEIGHT_BF16, 3}, {WEIGHT_BF16, 3}}},
    {3, 1030, 3, {{WEIGHT_FP8, 130}, {WEIGHT_FP8, 1}, {WEIGHT_BF16, 17}}},
    {5, 264, 4, {{WEIGHT_F32, 9}, {WEIGHT_BF16, 48}, {WEIGHT_F32, 1}, {WEIGHT_FP8, 145}}},
    {7, 2056, 4, {{WEIGHT_INT8, 35}, {WEIGHT_BF16, 35}, {WEIGHT_INT8, 16}, {WEIGHT_INT8, 47}}},
    {9, 136, 3, {{WEIGHT_BF16, 8200}, {WEIGHT_FP8, 20}, {WEIGHT_BF16, 8183}}},
    {20, 72, 4, {{WEIGHT_BF16, 8200}, {WEIGHT_FP8, 8200}, {WEIGHT_BF16, 8183}, {WEIGHT_FP8, 8183}}},
    {40, 40, 4, {{WEIGHT_BF16, 8200}, {WEIGHT_FP8, 8200}, {WEIGHT_BF16, 8183}, {WEIGHT_FP8, 8183}}},
    {9, 520, 4, {{WEIGHT_INT4, 35}, {WEIGHT_INT4, 17}, {WEIGHT_INT8, 16}, {WEIGHT_BF16, 47}}},
    {17, 288, 4, {{WEIGHT_INT8, 35}, {WEIGHT_INT8, 17}, {WEIGHT_FP8, 16}, {WEIGHT_F32, 47}}},
    {33, 200, 3, {{WEIGHT_FP8, 40}, {WEIGHT_BF16, 20}, {WEIGHT_FP8, 19}}},
    {12, 2064, 4, {{WEIGHT_FP8, 300}, {WEIGHT_FP8, 20}, {WEIGHT_BF16, 17}, {WEIGHT_FP8, 129}}},
    {40, 1024, 3, {{WEIGHT_FP8, 150}, {WEIGHT_BF16, 5}, {WEIGHT_FP8, 1}}},
    {64, 1031, 4, {{WEIGHT_BF16, 31}, {WEIGHT_FP8, 5}, {WEIGHT_BF16, 16}, {WEIGHT_BF16, 1}}},
    {70, 130, 4, {{WEIGHT_BF16, 50}, {WEIGHT_BF16, 20}, {WEIGHT_FP8, 64}, {WEIGHT_F32, 5}}},
    {131, 2056, 3, {{WEIGHT_BF16, 24}, {WEIGHT_FP8, 5}, {WEIGHT_BF16, 50}}},
    {70, 2064, 3, {{WEIGHT_FP8, 140}, {WEIGHT_FP8, 9}, {WEIGHT_BF16, 50}}},
    {131, 272, 2, {{WEIGHT_FP8, 140}, {WEIGHT_FP8, 9}}},
    {521, 776, 3, {{WEIGHT_INT8, 24}, {WEIGHT_INT8, 17}, {WEIGHT_BF16, 8}}},
    {8,
     300,
     4,
     {{WEIGHT_BF16_BOTH, 35}, {WEIGHT_BF16, 20}, {WEIGHT_BF16_BOTH, 16}, {WEIGHT_INT8, 7}}},
    {520, 776, 3, {{WEIGHT_BF16_BOTH, 24}, {WEIGHT_BF16_BOTH, 17}, {WEIGHT_BF16, 8}}},
};

/* At once, then each alone: the same bits, and what lies between the rows of y is left alone. */
static void check_together(int b, Linear a, uint64_t seed)
{
    LinearProduct all[MAX_PRODUCTS];
    int n_all = a.n_products;
    memcpy(all, a.product, sizeof all);
    a.n_products = 0;
    for (int i = 0; i < n_all; i++) {
        size_t n_y = (size_t)(a.n * all[i].y_stride);
        if (!has_type(b, all[i].w->type)) continue;
        a.product[a.n_products] = all[i];
        a.product[a.n_products++].y = memset(floats(n_y), 1, n_y * sizeof(float));
    }
    backend[b]->linear(backend[b], &a);
    for (int i = 0; i < a.n_products; i++) {
        Linear one = {a.n, a.x, a.x_stride, 1, {a.product[i]}, a.prefill};
        size_t n_y = (size_t)(a.n * one.product->y_stride);
        one.product->y = memset(floats(n_y), 1, n_y * sizeof(float));
        backend[b]->linear(backend[b], &one);
        assert_true(
            same_bits(about("linear, together", b), a.product[i].y, one.product->y, n_y, seed));
        free(a.product[i].y), free(one.product->y);
    }
}

static void test_linear_together(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof togethers / sizeof *togethers; s++) {
        const Together *t = &togethers[s];
        Rng r = rng_new(150 + s);
        Weight w[MAX_PRODUCTS];
        Linear a = {.n = t->n, .x_stride = t->cols + 3, .n_products = t->n_products};
        a.prefill = t->n > 64;
        float *x = random_floats(&r, (size_t)(t->n * a.x_stride), 2);
        put_outliers(&r, x, a.x_stride, t->n, t->cols);
        a.x = x;
        for (int i = 0; i < t->n_products; i++) {
            int rows = t->matrix[i].rows;
            w[i] = random_weight(&r, t->matrix[i].type, rows, t->cols);
            a.product[i] = (LinearProduct){&w[i], NULL, rows + i % 2};
        }
        for (int b = 0; b < n_backends; b++)
            check_together(b, a, r.seed);
        for (int i = 0; i < t->n_products; i++)
            free_weight(&w[i]);
        free(x);
    }
}

/*
 * Matrices of published models, so that a library has many algorithms to choose from: a row of a
 * prompt is the same in any number of rows. Only where there is a GPU. Tensor cores add products of
 * e4m3 up with some 13 bits of fraction.
 */
static void test_linear_by_library(void **state)
{
    (void)state;
    static const int shape[][2] = {{4096, 2048}, {1024, 3072}, {2048, 6144}},
                     few[] = {1, 7, 64, 65, 500};
    enum { N = 700, CHECKED = 2, N_SHAPES = sizeof shape / sizeof *shape };
    Backend *be = backend[n_backends - 1];
    if (strcmp(be->name, "cuda") != 0) skip();
    for (int s = 0; s < 2 * N_SHAPES; s++) {
        Rng r = rng_new(80 + (uint64_t)s);
        const int is_fp8 = s >= N_SHAPES, prefill = is_fp8 ? PREFILL_FP8 : PREFILL_EXACT;
        int rows = shape[s % N_SHAPES][0], cols = shape[s % N_SHAPES][1];
        Weight w = random_weight(&r, is_fp8 ? WEIGHT_FP8 : WEIGHT_BF16, rows, cols);
        float *x = random_floats(&r, (size_t)N * (size_t)cols, 1), *y = outputs(N, (size_t)rows),
              *got = outputs(N, (size_t)rows);
        Linear a = {N, x, cols, 1, {{&w, y, rows}}, .prefill = prefill};
        be->linear(be, &a);
        check_prompt(&w, prefill, x, cols, CHECKED, y, rows, is_fp8 ? SUMS_FP8_TENSOR : SUMS_GPU,
                     "linear by library", r.seed);
        a.product->y = got;
        for (size_t k = 0; k < sizeof few / sizeof *few; k++) {
            a.n = few[k];
            be->linear(be, &a);
            assert_true(same_bits("linear by library, fewer rows", got, y,
                                  (size_t)a.n * (size_t)rows, r.seed));
        }
        free_weight(&w);
        free(x), free(y), free(got);
    }
}

/* A GPU that has wgmma uses it: it was asked, and gave the same bits as by mma (wgmma_check.h). */
static void test_wgmma_is_used(void **state)
{
    (void)state;
    const Backend *be = backend[n_backends - 1];
    if (strcmp(be->name, "cuda") != 0 || strcmp(be->isa, "sm_90") != 0) skip();
    if (getenv("OFFSHOOT_TEST_NO_WGMMA")) skip();
    assert_string_equal(be->wgmma, "used");
}

typedef struct {
    int type, rows, cols, prefill;
} ManyShape;

/* Prompts' matrices: odd, unaligned, more than a k-block in a slice, and whole tiles of 128. */
static const ManyShape many_shapes[] = {
    {WEIGHT_BF16, 131, 200, PREFILL_EXACT},     {WEIGHT_BF16, 64, 133, PREFILL_EXACT},
    {WEIGHT_BF16, 49, 1160, PREFILL_EXACT},     {WEIGHT_BF16, 5600, 8, PREFILL_EXACT},
    {WEIGHT_BF16, 136, 264, PREFILL_EXACT},     {WEIGHT_FP8, 200, 144, PREFILL_EXACT},
    {WEIGHT_FP8, 70, 137, PREFILL_EXACT},       {WEIGHT_FP8, 50, 1168, PREFILL_EXACT},
    {WEIGHT_FP8, 5505, 16, PREFILL_EXACT},      {WEIGHT_F32, 65, 30, PREFILL_EXACT},
    {WEIGHT_INT8, 70, 137, PREFILL_EXACT},      {WEIGHT_INT8, 50, 1168, PREFILL_EXACT},
    {WEIGHT_INT4, 70, 137, PREFILL_EXACT},      {WEIGHT_INT4, 50, 1168, PREFILL_EXACT},
    {WEIGHT_BF16_BOTH, 70, 137, PREFILL_EXACT}, {WEIGHT_BF16_BOTH, 131, 1160, PREFILL_EXACT},
    {WEIGHT_FP8, 200, 144, PREFILL_FP8},        {WEIGHT_FP8, 70, 137, PREFILL_FP8},
    {WEIGHT_FP8, 50, 1168, PREFILL_FP8},        {WEIGHT_FP8, 5505, 16, PREFILL_FP8},
    {WEIGHT_FP8, 31, 130, PREFILL_FP8},         {WEIGHT_FP8, 144, 1024, PREFILL_FP8},
    {WEIGHT_FP8, 140, 2192, PREFILL_EXACT},     {WEIGHT_FP8, 140, 2192, PREFILL_FP8},
    {WEIGHT_BF16, 64, 133, PREFILL_FP8}, /* as without */
};

/* A GPU's library may have taken a prompt's products of e4m3 (gemm_library.c: what it asks for). */
static Sums sums_of_prompt(int b, const Weight *w, int prefill)
{
    int fits = w->cols % (4 * FP8_BLOCK) == 0 && w->rows % 16 == 0;
    int by_library = !strcmp(backend[b]->name, "cuda") && prefill == PREFILL_FP8 && fits;
    return by_library && w->type == WEIGHT_FP8 ? SUMS_FP8_TENSOR : sums_of(b);
}

/*
 * A prompt's rows are what they are alone or in another order, cut anywhere: of the GPU's own
 * kernels even those of decoding. Beside a row of NaN too.
 */
static void test_linear_of_prompts(void **state)
{
    (void)state;
    static const int cut[] = {200, 64, 7, 1, 65};
    enum { N = 199, BROKEN = 120, SOME = 97, CUTS = sizeof cut / sizeof *cut };
    for (size_t s = 0; s < sizeof many_shapes / sizeof *many_shapes; s++) {
        const ManyShape *shape = &many_shapes[s];
        Rng r = rng_new(70 + s);
        size_t rows = (size_t)shape->rows, cols = (size_t)shape->cols;
        Weight w = random_weight(&r, (WeightType)shape->type, shape->rows, shape->cols);
        float *x = random_floats(&r, N * cols, 1), *y = outputs(N, rows), *got = outputs(N, rows);
        float *turned = floats(N * cols);
        const int prefill = shape->prefill;
        x[BROKEN * cols + 5] = NAN;
        for (size_t i = 0; i < N; i++)
            memcpy(turned + i * cols, x + (N - 1 - i) * cols, cols * sizeof *x);
        for (int b = 0; b < n_backends; b++) {
            Backend *be = backend[b];
            if (b != leader(b) || !has_type(b, w.type)) continue;
            if (prefill == PREFILL_FP8 && !is_gpu(b)) continue;
            Linear a = {N, x, shape->cols, 1, {{&w, y, shape->rows}}, .prefill = prefill};
            be->linear(be, &a);
            check_prompt(&w, prefill, x + SOME * cols, shape->cols, 2, y + SOME * rows, shape->rows,
                         sums_of_prompt(b, &w, prefill), about("linear of a prompt", b), r.seed);
            assert_true(isnan(y[BROKEN * rows]) && isfinite(y[(BROKEN + 1) * rows]));
            if (!strcmp(be->name, "simt")) check_small_blocks(be, &a, BROKEN * rows, r.seed);
            for (int k = 0; k < CUTS; k++) {
                size_t from = SOME, n = (size_t)cut[k] < N - from ? (size_t)cut[k] : N - from;
                a.n = (int)n, a.x = x + from * cols, a.product->y = got;
                be->linear(be, &a);
                assert_true(same_bits(about("linear, other cuts", b), got, y + from * rows,
                                      (BROKEN - SOME < n ? BROKEN - SOME : n) * rows, r.seed));
            }
            for (int n = 1; n < N && !strcmp(be->name, "cuda"); n++) { /* a library's, too */
                a.n = n, a.x = x, a.product->y = got;
                be->linear(be, &a);
                size_t sound = n < BROKEN ? (size_t)n : BROKEN;
                assert_true(same_bits("linear, all numbers", got, y, sound * rows, r.seed));
            }
            a.n = N, a.x = turned;
            be->linear(be, &a);
            for (size_t i = 0; i < N; i++)
                if (i != BROKEN)
                    assert_true(same_bits(about("linear, rows turned", b), got + (N - 1 - i) * rows,
                                          y + i * rows, rows, r.seed));
            a.n = 1, a.x = x + SOME * cols, a.prefill = 0;
            be->linear(be, &a);
            if (!strcmp(be->name, "simt") && (prefill == PREFILL_EXACT || w.type != WEIGHT_FP8))
                assert_true(
                    same_bits("linear of a prompt, decoded", got, y + SOME * rows, rows, r.seed));
        }
        free_weight(&w);
        free(x), free(y), free(got), free(turned);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_alignment),
        cmocka_unit_test(test_linear_ends),
        cmocka_unit_test(test_int8_everywhere),
        cmocka_unit_test(test_int4_is_int8),
        cmocka_unit_test(test_int4_of_any_bytes),
        cmocka_unit_test(test_linear_company),
        cmocka_unit_test(test_linear_many_outputs),
        cmocka_unit_test(test_linear_together),
        cmocka_unit_test(test_wgmma_is_used),
        cmocka_unit_test(test_linear_of_prompts),
        cmocka_unit_test(test_linear_by_library),
    };
    return cmocka_run_group_tests_name("linear", tests, open_backends, close_backends);
}
