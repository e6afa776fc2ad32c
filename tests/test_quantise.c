/*
 * test_quantise.c: narrow weights made at load: the rounding of every value, and whole models.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/quantise.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"
#include "tests/backend_simt.h"
#include "tests/checkpoint.h"
#include "tests/isas.h"
#include "tests/near.h"
#include "tests/whole_model.h"

#define GOLDEN "tests/data/golden/"

static int blocks(int n)
{
    return (n + 127) / 128;
}

static double element(const unsigned char *data, WeightType type, size_t i)
{
    float f;
    uint16_t half;
    if (type == WEIGHT_F32) {
        memcpy(&f, data + 4 * i, 4);
        return (double)f;
    }
    memcpy(&half, data + 2 * i, 2);
    return (double)bf16_to_float(half);
}

/* Half a step of the codes where x lies: 2^-10 below 2^-6, else a sixteenth of the power below. */
static double half_step(double x)
{
    int exponent = 0;
    frexp(x, &exponent); /* x = m 2^exponent, m in [0.5, 1) */
    return x < 0x1p-6 ? 0x1p-10 : ldexp(1, exponent - 1 - 4);
}

/* Every value is the nearest, and the largest of a block is the largest code. */
static void check_codes(const unsigned char *data, WeightType type, int rows, int cols,
                        const uint8_t *code, const float *scale)
{
    float *largest = mem_alloc((size_t)blocks(rows) * (size_t)blocks(cols), sizeof(float));
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            size_t i = (size_t)r * (size_t)cols + (size_t)c;
            int b = r / 128 * blocks(cols) + c / 128;
            double x = element(data, type, i), s = (double)scale[b];
            double got = (double)fp8_to_float(code[i]);
            if (fabs(x) > (double)largest[b]) largest[b] = (float)fabs(x);
            assert_true((code[i] & 0x7f) != 0x7f);
            if (fabs(got - x / s) > half_step(fabs(x / s)) * (1 + 1e-6))
                fail_msg("[%d][%d] = %g is %g * %g", r, c, x, got, s);
        }
    for (int b = 0; b < blocks(rows) * blocks(cols); b++)
        assert_true(scale[b] == (largest[b] > 0 ? largest[b] / 448 : 1));
    mem_free(largest);
}

/* Blocks of very different sizes, one of zeros, at an odd address. */
static unsigned char *random_matrix(Rng *rng, WeightType type, int rows, int cols)
{
    size_t element_bytes = type == WEIGHT_F32 ? 4 : 2;
    unsigned char *data = mem_alloc((size_t)rows * (size_t)cols * element_bytes + 1, 1);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            size_t i = (size_t)r * (size_t)cols + (size_t)c;
            int b = r / 128 * blocks(cols) + c / 128;
            float x = b == 1 ? 0 : ldexpf(rng_float(rng), b * 7 % 40 - 20);
            uint16_t half = bf16_from_float(x);
            memcpy(data + 1 + element_bytes * i,
                   type == WEIGHT_F32 ? (const void *)&x : (const void *)&half, element_bytes);
        }
    return data;
}

static void test_values(void **state)
{
    (void)state;
    static const int size[][2] = {{1, 1},     {128, 128},  {129, 127},
                                  {200, 300}, {1000, 900}, {1536, 1024}};
    Rng rng = rng_new(11);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (WeightType type = WEIGHT_F32; type <= WEIGHT_BF16; type++) {
            int rows = size[i][0], cols = size[i][1], n_cols = blocks(cols);
            size_t n = (size_t)rows * (size_t)cols, bytes = type == WEIGHT_F32 ? 4 : 2;
            size_t n_scales = (size_t)blocks(rows) * (size_t)n_cols;
            unsigned char *data = random_matrix(&rng, type, rows, cols);
            uint8_t *code = mem_alloc(n, 1), *alone = mem_alloc(n, 1);
            float *scale = mem_alloc(n_scales, sizeof *scale);
            float *scale_alone = mem_alloc(n_scales, sizeof *scale);
            assert_int_equal(quantise_fp8(data + 1, type, rows, cols, code, scale), 0);
            check_codes(data + 1, type, rows, cols, code, scale);

            /* In pieces too small for threads: the same. */
            for (int r = 0; r < rows; r += 128) {
                size_t at = (size_t)r * (size_t)cols;
                assert_int_equal(quantise_fp8(data + 1 + bytes * at, type,
                                              rows - r < 128 ? rows - r : 128, cols, alone + at,
                                              scale_alone + r / 128 * n_cols),
                                 0);
            }
            assert_memory_equal(code, alone, n);
            assert_memory_equal(scale, scale_alone, n_scales * sizeof *scale);
            mem_free(data);
            mem_free(code);
            mem_free(alone);
            mem_free(scale);
            mem_free(scale_alone);
        }
}

/* The smallest and largest floats make no NaN; what FP8 lacks is refused, wherever it stands. */
static void test_extremes(void **state)
{
    (void)state;
    enum { ROWS = 1100, COLS = 1000 };
    static const float tiny[] = {0x1p-149f, -0x1p-149f, 0x1p-140f, -0x1p-130f, 0, -0.0f};
    static const float huge[] = {3.4028235e38f, -3.4028235e38f, 1, 0x1p-149f};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    uint8_t code[6], *codes = mem_alloc((size_t)ROWS * COLS, 1);
    float scale, *x = mem_alloc((size_t)ROWS * COLS, sizeof *x);
    float *scales = mem_alloc((size_t)blocks(ROWS) * blocks(COLS), sizeof *scales);
    const unsigned char *bytes = (const unsigned char *)x;
    assert_int_equal(quantise_fp8((const unsigned char *)tiny, WEIGHT_F32, 1, 6, code, &scale), 0);
    for (int i = 0; i < 6; i++)
        assert_true((code[i] & 0x7f) != 0x7f);
    assert_int_equal(quantise_fp8((const unsigned char *)huge, WEIGHT_F32, 1, 4, code, &scale), 0);
    assert_true(code[0] == 0x7e && code[1] == 0xfe && code[2] == 0 && isfinite(scale));
    for (int i = 0; i < 3; i++) {
        size_t place[] = {0, 1099999, 640500};
        x[place[i]] = bad[i];
        assert_int_equal(quantise_fp8(bytes, WEIGHT_F32, ROWS, COLS, codes, scales), -1);
        x[place[i]] = 0;
    }
    assert_int_equal(quantise_fp8(bytes, WEIGHT_F32, ROWS, COLS, codes, scales), 0);
    mem_free(x);
    mem_free(codes);
    mem_free(scales);
}

/* ---- whole models ---- */

static Model *open_way(const char *dir, const ModelOptions *way, Backend *be)
{
    Error err = {0};
    Model *m = model_open(dir, way, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

static Model *open_model(const char *dir, QuantType quant, Backend *be)
{
    return open_way(dir, &(ModelOptions){.quant = quant}, be);
}

static size_t matrix_bytes(const Weight *w)
{
    return (size_t)weight_data_bytes(w);
}

/* Every q8 value is the nearest of its 256 neighbours' scale, whose largest is code 127. */
static void check_q8(const unsigned char *data, WeightType type, int rows, int cols,
                     const int8_t *code, const float *scale)
{
    int padded = (rows + 15) / 16 * 16, stored = (cols + 63) / 64 * 64,
        n_blocks = (cols + 255) / 256;
    for (int r = 0; r < padded; r++)
        for (int c0 = 0; c0 < cols; c0 += 256) {
            size_t b = (size_t)(r / 16 * n_blocks + c0 / 256);
            double s = (double)scale[b * 16 + (size_t)(r % 16)], largest = 0;
            for (int c = c0; c < c0 + 256 && c < stored; c++) {
                static const size_t in_four[] = {0, 2, 1, 3};
                size_t i =
                    (size_t)(r / 16 * 16 * stored + c / 4 * 64 + r % 16 * 4) + in_four[c % 4];
                double y = (double)code[i];
                if (r >= rows || c >= cols) {
                    assert_true(y == 0);
                    continue;
                }
                double x = element(data, type, (size_t)r * (size_t)cols + (size_t)c);
                assert_true(fabs(y) <= 127 && fabs(x - y * s) <= s / 2 * (1 + 1e-5));
                largest = fmax(largest, fabs(x));
            }
            assert_true(largest >= 0x1p-110 ? fabs(s - largest / 127) <= 1e-6 * s
                                            : s == (r < rows));
        }
}

/* How far v is off the nearest of 16 codes from least on, step apart. */
static double off_by(double v, int step, int least)
{
    double k = fmin(fmax(nearbyint((v - least) / step), 0), 15);
    return fabs(v - (least + k * step));
}

/* The sum of squares of what 32 are off, each by its nearest. */
static double all_off(const double v[32], int step, int least)
{
    double sum = 0;
    for (int i = 0; i < 32; i++)
        sum += pow(off_by(v[i], step, least), 2);
    return sum;
}

/* Of 32 neighbours v the spread decides how wide a step may be; returns the widest. */
static int check_step(int step, int offset, const double v[32])
{
    double lo = v[0], hi = v[0];
    for (int i = 1; i < 32; i++)
        lo = fmin(lo, v[i]), hi = fmax(hi, v[i]);
    int least = (int)ceil((hi - lo) / 15 - 0.02), most = (int)ceil((hi - lo) / 15 + 0.02);
    assert_true(step >= 1 && step <= 16 && offset >= 1 && offset <= 255 - 15 * step);
    most = most < 1 ? 1 : most > 16 ? 16 : most;
    assert_true(step >= (least > 16 ? 16 : least) - 1 && step <= most);
    return most;
}

/*
 * Every q4 value, in eighths of INT8's codes, is the nearest that the step and the offset of its 32
 * neighbours say; scales are INT8's. In all these are better than the widest steps, centred.
 */
static void check_q4(const unsigned char *data, WeightType type, int rows, int cols,
                     const uint8_t *code, const float *scale)
{
    static const int in_four[] = {0, 2, 1, 3};
    int padded = (rows + 15) / 16 * 16, n_steps = (cols + 63) / 64, n_blocks = (cols + 255) / 256;
    double chosen = 0, widest = 0;
    for (int r = 0; r < padded; r++)
        for (int c0 = 0; c0 < n_steps * 64; c0 += 32) {
            const uint8_t *step = code + (r / 16 * n_steps + c0 / 64) * 9 * 64,
                          *run = step + c0 % 64 / 32 * 32 + r % 16 * 2;
            double s = (double)scale[(r / 16 * n_blocks + c0 / 256) * 16 + r % 16], v[32] = {0};
            for (int c = c0; c < c0 + 32 && c < cols && r < rows; c++)
                v[c - c0] = element(data, type, (size_t)r * (size_t)cols + (size_t)c) / s;
            int most = check_step(run[0], run[1], v);
            double lo = v[0], hi = v[0];
            for (int i = 1; i < 32; i++)
                lo = fmin(lo, v[i]), hi = fmax(hi, v[i]);
            widest += all_off(v, most, (int)nearbyint((lo + hi - 15 * most) / 2));
            chosen += all_off(v, run[0], run[1] - 128);
            for (int c = c0; c < c0 + 32; c++) {
                uint8_t both = step[64 + c % 64 / 8 * 64 + r % 16 * 4 + in_four[c % 4]];
                int bits = c % 8 < 4 ? both & 15 : both >> 4, least = run[1] - 128;
                double off = fabs(v[c - c0] - (run[0] * bits + least));
                if (off > off_by(v[c - c0], run[0], least) + 0.126)
                    fail_msg("[%d][%d] = %g is %d * %d + %d", r, c, v[c - c0], run[0], bits, least);
            }
        }
    if (chosen > 0.97 * widest) fail_msg("off by %g, centred by %g", chosen, widest);
}

/* The definition, and the same bits from every instruction set. */
static void check_values(WeightType to)
{
    enum { ROWS = 150, COLS = 300, CODES = 160 * 320, SCALES = 160 * 2 };
    Backend *ref = backend_ref_open(512);
    for (WeightType type = WEIGHT_F32; type <= WEIGHT_BF16; type++) {
        Rng r = rng_new((uint64_t)type);
        size_t bytes = type == WEIGHT_F32 ? 4 : 2;
        unsigned char *data = mem_alloc(ROWS * COLS + 1, bytes);
        int8_t code[CODES] = {0}, got[CODES];
        float scale[SCALES], got_scale[SCALES];
        QuantiseInt a = {data + 1, type, to, ROWS, COLS, code, scale}, b = a;
        const size_t n_codes =
            (size_t)weight_data_bytes(&(Weight){.type = to, .rows = ROWS, .cols = COLS});
        b.code = got, b.scale = got_scale;
        for (int i = 0; i < ROWS * COLS; i++) {
            float x = i / COLS == 5 ? 0 : rng_float(&r) * ldexpf(1, i / COLS % 40 - 20);
            if (i / COLS == 6) x = ldexpf(x, -120); /* counts as zero */
            if (i / COLS % 3 == 1) x = x * x * x;   /* runs of other ranges than their block */
            if (i / COLS % 7 == 2) x = fabsf(x);
            memcpy(data + 1 + bytes * (size_t)i, (char *)&x + 4 - bytes, bytes);
        }
        assert_int_equal(ref->quantise_int(ref, &a), 0);
        if (to == WEIGHT_INT8)
            check_q8(data + 1, type, ROWS, COLS, code, scale);
        else
            check_q4(data + 1, type, ROWS, COLS, (const uint8_t *)code, scale);
        for (int i = 0; i < 2 * N_CPU_ISAS; i++) {
            Backend *be = backend_cpu_open(1 + i % 2 * 2, cpu_isas[i / 2], 512, NULL);
            if (!be) continue;
            memset(got, 99, sizeof got), memset(got_scale, 99, sizeof got_scale);
            assert_int_equal(be->quantise_int(be, &b), 0);
            assert_memory_equal(got, code, n_codes);
            assert_memory_equal(got_scale, scale, sizeof scale);
            be->close(be);
        }
        const float nan = NAN;
        memcpy(data + 1 + bytes * 5000, (const char *)&nan + 4 - bytes, bytes);
        assert_int_equal(ref->quantise_int(ref, &a), -1);
        for (int i = 0; i < N_CPU_ISAS; i++) {
            Backend *be = backend_cpu_open(2, cpu_isas[i], 512, NULL);
            if (!be) continue;
            assert_int_equal(be->quantise_int(be, &b), -1);
            be->close(be);
        }
        mem_free(data);
    }
    ref->close(ref);
}

static void test_q8_values(void **state)
{
    (void)state;
    check_values(WEIGHT_INT8);
}

static void test_q4_values(void **state)
{
    (void)state;
    check_values(WEIGHT_INT4);
}

static const char *const golden[] = {"qwen35-dense", "qwen35-dense-odd", "qwen35-dense-fp8",
                                     "qwen35-moe", "qwen3-next"};
enum { N_GOLDEN = sizeof golden / sizeof *golden };

/* What FP8 checkpoints hold in FP8 is quantised once; the rest, and FP8 itself, stays as it was. */
static void test_models(void **state)
{
    (void)state;
    static Matrices a, b;
    Backend *be = backend_ref_open(512);
    for (int i = 0; i < N_GOLDEN; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, GOLDEN "%s", golden[i]);
        Model *wide = open_model(dir, QUANT_NONE, be), *m = open_model(dir, QUANT_FP8, be);
        list_matrices(wide, &a);
        list_matrices(m, &b);
        assert_int_equal(m->config.quant, QUANT_FP8);
        assert_int_equal(a.n, b.n);
        size_t spared = 0;
        for (int k = 0; k < a.n; k++) {
            const Weight *x = a.list[k].w, *y = b.list[k].w;
            assert_true(x->rows == y->rows && x->cols == y->cols);
            if (x->type == WEIGHT_FP8 || !b.list[k].fp8) {
                assert_int_equal(x->type, y->type);
                assert_memory_equal(x->data, y->data, matrix_bytes(x));
                continue;
            }
            assert_int_equal(y->type, WEIGHT_FP8);
            check_codes(x->data, x->type, x->rows, x->cols, y->data, y->scale);
            spared += matrix_bytes(x) - matrix_bytes(y);
        }
        if (wide->config.quant == QUANT_FP8)
            assert_true(spared == 0 && m->weight_bytes == wide->weight_bytes);
        else
            assert_true(m->weight_bytes < wide->weight_bytes && spared > 0);
        assert_true(m->n_params == wide->n_params && m->file_bytes == wide->file_bytes);
        model_close(wide);
        model_close(m);
    }
    be->close(be);
}

/* Attention's v, the delta rule's output. */
static int is_value_or_out(const Model *m, const Weight *w)
{
    for (int i = 0; i < m->config.n_layers; i++)
        if (w == &m->layer[i].attention.v || w == &m->layer[i].delta.out) return 1;
    return w == &m->head.attention.v;
}

/* What q8 and q4 make of a matrix: routers, gates and what feeds these stay, and FP8 does. */
static WeightType type_made(const Model *m, const Matrix *a, WeightType was, QuantType quant)
{
    int is_vocab = a->w == &m->embed || a->w == &m->lm_head;
    if (was == WEIGHT_FP8 || !(a->fp8 || is_vocab || a->w == &m->head.fc)) return was;
    int is_wider = is_vocab || is_value_or_out(m, a->w);
    return quant == QUANT_Q4 && !is_wider ? WEIGHT_INT4 : WEIGHT_INT8;
}

static void check_int_model(const char *dir, const ModelOptions *way, Backend *be)
{
    static Matrices a, b;
    int n_wide = 0, n_of[N_WEIGHT_TYPES] = {0};
    Model *wide = open_way(dir, &(ModelOptions){.dummy = way->dummy}, be);
    Model *m = open_way(dir, way, be);
    list_matrices(wide, &a);
    list_matrices(m, &b);
    assert_int_equal(a.n, b.n);
    assert_int_equal(m->config.quant, way->quant);
    for (int k = 0; k < a.n; k++) {
        const Weight *x = a.list[k].w, *y = b.list[k].w;
        assert_int_equal(y->type, type_made(m, &b.list[k], x->type, way->quant));
        n_of[y->type]++;
        if (y->type == WEIGHT_INT8) {
            check_q8(x->data, x->type, x->rows, x->cols, y->data, y->scale);
        } else if (y->type == WEIGHT_INT4) {
            check_q4(x->data, x->type, x->rows, x->cols, y->data, y->scale);
        } else {
            assert_memory_equal(x->data, y->data, matrix_bytes(x));
            n_wide += x->type != WEIGHT_FP8;
        }
    }
    int n_made = n_of[WEIGHT_INT8] + n_of[WEIGHT_INT4];
    assert_true(n_wide > 0 && n_made > 1 && n_of[WEIGHT_INT8] > 0);
    assert_true(wide->config.quant == QUANT_FP8 || n_wide < n_made);
    assert_true(m->config.tied == (m->lm_head.data == m->embed.data));
    assert_true(m->weight_bytes < wide->weight_bytes);
    model_close(wide);
    model_close(m);
}

/* The head's matrices are those of a model of which all was quantised, the others as in the file.
 */
static void check_draft_quant(const char *dir, QuantType quant, DummyType dummy, Backend *be)
{
    static Matrices a, b, c;
    int is_head = 0, n_made = 0;
    Model *wide = open_way(dir, &(ModelOptions){.dummy = dummy}, be);
    Model *all = open_way(dir, &(ModelOptions){.quant = quant, .dummy = dummy}, be);
    Model *m = open_way(dir, &(ModelOptions){.draft_quant = quant, .dummy = dummy}, be);
    list_matrices(wide, &a);
    list_matrices(all, &b);
    list_matrices(m, &c);
    assert_true(m->has_mtp && a.n == c.n);
    for (int k = 0; k < a.n; k++) {
        is_head |= c.list[k].w == &m->head.fc;
        const Weight *want = (is_head ? &b : &a)->list[k].w, *got = c.list[k].w;
        assert_int_equal(got->type, want->type);
        assert_memory_equal(got->data, want->data, matrix_bytes(want));
        n_made += is_head && got->type != a.list[k].w->type;
    }
    assert_true(is_head && (n_made > 1 || wide->config.quant == QUANT_FP8));
    assert_true(m->config.quant == wide->config.quant && m->weight_bytes == wide->weight_bytes);
    assert_true(m->head_weight_bytes == all->head_weight_bytes);
    model_close(wide);
    model_close(all);
    model_close(m);
}

static void test_draft_quant(void **state)
{
    (void)state;
    Backend *be = backend_ref_open(512);
    for (int i = 0; i < N_GOLDEN; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, GOLDEN "%s", golden[i]);
        for (QuantType quant = QUANT_FP8; quant < N_QUANT_TYPES; quant++)
            for (DummyType dummy = DUMMY_NONE; dummy <= DUMMY_FP8; dummy++)
                if (quant != QUANT_FP8 || dummy == DUMMY_NONE)
                    check_draft_quant(dir, quant, dummy, be);
    }
    be->close(be);
}

/* Matrices of bf16 that q8 would quantise are multiplied by bf16, as they lie in the file. */
static void check_rounded_model(const char *dir, const ModelOptions *way, Backend *be)
{
    static Matrices a, b, c;
    int n_rounded = 0;
    Model *as_is = open_way(dir, &(ModelOptions){.dummy = way->dummy}, be);
    Model *q8 = open_way(dir, &(ModelOptions){.quant = QUANT_Q8, .dummy = way->dummy}, be);
    Model *m = open_way(dir, way, be);
    list_matrices(as_is, &a);
    list_matrices(q8, &b);
    list_matrices(m, &c);
    for (int k = 0; k < a.n; k++) {
        const Weight *x = a.list[k].w, *y = c.list[k].w;
        int is_rounded = x->type == WEIGHT_BF16 && b.list[k].w->type == WEIGHT_INT8;
        assert_int_equal(y->type, is_rounded ? WEIGHT_BF16_BOTH : x->type);
        assert_memory_equal(x->data, y->data, matrix_bytes(x));
        n_rounded += is_rounded;
    }
    assert_true(m->lm_head.type == WEIGHT_BF16_BOTH && n_rounded > 1);
    assert_true(m->weight_bytes == as_is->weight_bytes);
    model_close(as_is);
    model_close(q8);
    model_close(m);
}

/* A way that is the CPU's alone, of checkpoints and of dummy weights; a GPU refuses. */
static void check_on_cpu(void (*check)(const char *dir, const ModelOptions *way, Backend *be),
                         ModelOptions way, const char *refused)
{
    Backend *be = backend_ref_open(512), *simt = backend_simt_open();
    Error err = {0};
    assert_null(model_open(GOLDEN "qwen35-dense", &way, simt, &err));
    assert_string_equal(err.msg, refused);
    for (int i = 0; i < N_GOLDEN; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, GOLDEN "%s", golden[i]);
        for (way.dummy = DUMMY_NONE; way.dummy <= DUMMY_FP8; way.dummy++)
            check(dir, &way, be);
    }
    simt->close(simt);
    be->close(be);
}

static void test_int_models(void **state)
{
    (void)state;
    Backend *simt = backend_simt_open();
    Error err = {0};
    assert_null(
        model_open(GOLDEN "qwen35-dense", &(ModelOptions){.draft_quant = QUANT_Q8}, simt, &err));
    assert_string_equal(err.msg, "q8 is for the CPU: on a GPU quantise to fp8");
    simt->close(simt);
    check_on_cpu(check_int_model, (ModelOptions){.quant = QUANT_Q8},
                 "q8 is for the CPU: on a GPU quantise to fp8");
    check_on_cpu(check_int_model, (ModelOptions){.quant = QUANT_Q4},
                 "q4 is for the CPU: on a GPU quantise to fp8");
}

static void test_rounded_models(void **state)
{
    (void)state;
    check_on_cpu(check_rounded_model, (ModelOptions){.act = ACT_BF16},
                 "act-dtype bf16 is for the CPU");
}

/* x in e4m3 is for a GPU's FP8 weights. */
static void test_fp8_prompts(void **state)
{
    (void)state;
    static const char *const fp8 = GOLDEN "qwen35-dense-fp8", *const bf16 = GOLDEN "qwen35-dense";
    ModelOptions way = {.act = ACT_FP8};
    Backend *be = backend_cpu_open(1, NULL, 512, NULL), *simt = backend_simt_open();
    Error err = {0};
    assert_null(model_open(fp8, &way, be, &err));
    assert_string_equal(err.msg, "act-dtype fp8 is for a GPU");
    assert_null(model_open(bf16, &way, simt, &err));
    assert_string_equal(err.msg,
                        "act-dtype fp8 is for FP8 weights, this model's are wider: --quant fp8");
    for (int i = 0; i < 3; i++) {
        way.quant = i == 1 ? QUANT_FP8 : QUANT_NONE;
        way.act = i < 2 ? ACT_FP8 : ACT_F32;
        Model *m = model_open(i == 1 ? bf16 : fp8, &way, simt, &err);
        if (!m) fail_msg("%s", err.msg);
        assert_int_equal(m->prefill, i < 2 ? PREFILL_FP8 : PREFILL_EXACT);
        model_close(m);
    }
    simt->close(simt);
    be->close(be);
}

/* weight_bytes, which the table at start prints: a byte an element and the scales. */
static void test_bytes(void **state)
{
    (void)state;
    static Matrices all;
    Backend *be = backend_ref_open(512);
    Model *m = open_model(GOLDEN "qwen3-next", QUANT_FP8, be);
    m->has_mtp = 0; /* not the head's */
    list_matrices(m, &all);
    size_t want = 0;
    for (int k = 0; k < all.n; k++) {
        const Weight *w = all.list[k].w;
        if (w == &m->embed) continue;
        want += matrix_bytes(w);
        if (w->scale) want += (size_t)blocks(w->rows) * (size_t)blocks(w->cols) * sizeof(float);
    }
    assert_true(m->weight_bytes == want);
    model_close(m);
    be->close(be);
}

/* The same bits on a backend that is loaded like a device, quantised or not. */
static void test_device(void **state)
{
    (void)state;
    static Matrices a, b;
    Backend *host = backend_ref_open(512), *simt = backend_simt_open();
    for (int i = 0; i < 2 * N_GOLDEN; i++) {
        char dir[128];
        QuantType quant = i % 2 ? QUANT_FP8 : QUANT_NONE;
        snprintf(dir, sizeof dir, GOLDEN "%s", golden[i / 2]);
        Model *one = open_model(dir, quant, host), *two = open_model(dir, quant, simt);
        assert_true(one->weight_bytes == two->weight_bytes);
        list_matrices(one, &a);
        list_matrices(two, &b);
        for (int k = 0; k < a.n; k++) {
            const Weight *x = a.list[k].w, *y = b.list[k].w;
            assert_int_equal(x->type, y->type);
            assert_memory_equal(x->data, y->data, matrix_bytes(x));
            if (x->scale)
                assert_memory_equal(x->scale, y->scale,
                                    (size_t)blocks(x->rows) * (size_t)blocks(x->cols) * 4);
        }
        model_close(one);
        model_close(two);
    }
    simt->close(simt);
    host->close(host);
}

/*
 * A code is off by 1/16 of its value at most, by 1/40 in the mean square. The layers of a random
 * model make ten times as much of that, those of a trained one a few times; logits that have
 * nothing to do with each other differ by 1.4 of their size.
 */
static void test_logits(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *what;
        ModelOptions options;
        double bound;
    } cases[] = {{GOLDEN "qwen35-dense", "fp8", {.quant = QUANT_FP8}, 0.35},
                 {"models/demo", "fp8", {.quant = QUANT_FP8}, 0.08},
                 {GOLDEN "qwen35-dense", "q8", {.quant = QUANT_Q8}, 0.12},
                 {"models/demo", "q8", {.quant = QUANT_Q8}, 0.04},
                 {GOLDEN "qwen35-dense", "q4", {.quant = QUANT_Q4}, 0.55},
                 {"models/demo", "q4", {.quant = QUANT_Q4}, 0.1},
                 {GOLDEN "qwen35-dense", "x in bf16", {.act = ACT_BF16}, 0.045},
                 {"models/demo", "x in bf16", {.act = ACT_BF16}, 0.01}};
    Backend *be = backend_cpu_open(2, NULL, 1 << 16, NULL);
    assert_non_null(be);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Pass wide, narrow;
        Model *a = open_model(cases[i].dir, QUANT_NONE, be);
        Model *b = open_way(cases[i].dir, &cases[i].options, be);
        run_pass(&wide, a);
        run_pass(&narrow, b);
        size_t n = (size_t)PASS_TOKENS * (size_t)a->config.n_vocab;
        double squares = 0, error = 0;
        for (size_t k = 0; k < n; k++) {
            double x = (double)wide.logits[k], off = x - (double)narrow.logits[k];
            squares += x * x;
            error += off * off;
        }
        printf("%s %s: logits off by %.4f of their size\n", cases[i].dir, cases[i].what,
               sqrt(error / squares));
        assert_true(error > 0 && sqrt(error / squares) < cases[i].bound);
        mem_free(wide.logits);
        mem_free(narrow.logits);
        model_close(a);
        model_close(b);
    }
    be->close(be);
}

static void expect_error(const char *dir, const ModelOptions *options, const char *says)
{
    Error err = {0};
    Backend *be = backend_ref_open(512);
    Model *m = model_open(dir, options, be, &err);
    if (m) fail_msg("loaded, expected: %s", says);
    if (!strstr(err.msg, says)) fail_msg("'%s' should say \"%s\"", err.msg, says);
    be->close(be);
}

/* A NaN in a file is named; in a matrix of its own, in a stack, and in fused rows. */
static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *model, *name;
    } cases[] = {
        {"qwen35-dense", "model.language_model.layers.1.mlp.up_proj.weight"},
        {"qwen35-moe", "model.language_model.layers.2.mlp.experts.gate_up_proj"},
        {"qwen3-next", "model.layers.1.linear_attn.in_proj_qkvz.weight"},
    };
    const ModelOptions fp8 = {.quant = QUANT_FP8};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[128];
        Checkpoint c;
        snprintf(path, sizeof path, GOLDEN "%s", cases[i].model);
        checkpoint_read(&c, path);
        CheckpointTensor *t = checkpoint_get(&c, cases[i].name);
        assert_non_null(t);
        const uint16_t nan = 0x7fc0;
        memcpy(t->data + t->bytes / 2, &nan, sizeof nan);
        const char *dir = scratch_dir("quantise");
        checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
        snprintf(path, sizeof path, GOLDEN "%s/config.json", cases[i].model);
        config_write(dir, "config.json", path, (const char *[]){NULL});
        expect_error(dir, &fp8, cases[i].name);
        expect_error(dir, &fp8, "holds a NaN or an infinity");
        checkpoint_free(&c);
    }
    expect_error(GOLDEN "qwen35-dense", &(ModelOptions){.quant = QUANT_FP8, .dummy = DUMMY_BF16},
                 "dummy weights are not quantised");
    expect_error(GOLDEN "qwen35-dense",
                 &(ModelOptions){.draft_quant = QUANT_FP8, .dummy = DUMMY_BF16},
                 "dummy weights are not quantised");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_models),      cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_q8_values),   cmocka_unit_test(test_q4_values),
        cmocka_unit_test(test_int_models),  cmocka_unit_test(test_rounded_models),
        cmocka_unit_test(test_fp8_prompts), cmocka_unit_test(test_device),
        cmocka_unit_test(test_logits),      cmocka_unit_test(test_errors),
        cmocka_unit_test(test_draft_quant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
