/*
 * test_dummy.c: random weights in place of a checkpoint: what is FP8, which values, the same in
 * every run and on every backend, and a forward pass that makes sense in size.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"
#include "tests/backend_simt.h"
#include "tests/checkpoint.h"
#include "tests/whole_model.h"

#define GOLDEN "tests/data/golden/"

static const char *const golden[] = {"qwen35-dense", "qwen35-dense-odd", "qwen35-dense-fp8",
                                     "qwen35-moe", "qwen3-next"};
enum { N_GOLDEN = sizeof golden / sizeof *golden };

/* A folder with a golden model's config, changed, and nothing else. */
static const char *config_folder(const char *name, const char *const *changes)
{
    char from[128];
    const char *dir = scratch_dir("dummy");
    snprintf(from, sizeof from, GOLDEN "%s/config.json", name);
    config_write(dir, "config.json", from, changes);
    return dir;
}

static Model *open_changed(const char *name, const char *const *changes, DummyType type,
                           Backend *be)
{
    Error err = {0};
    ModelOptions options = {.dummy = type};
    Model *m = model_open(config_folder(name, changes), &options, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

static Model *open_dummy(const char *name, DummyType type, Backend *be)
{
    return open_changed(name, (const char *[]){NULL}, type, be);
}

static double element(const Weight *w, size_t i)
{
    uint16_t half;
    if (w->type == WEIGHT_FP8) return (double)fp8_to_float(((const uint8_t *)w->data)[i]);
    memcpy(&half, (const unsigned char *)w->data + 2 * i, 2);
    return (double)bf16_to_float(half);
}

/* Mean near 0 and a standard deviation near 1 / sqrt(cols), no NaN, no two equal rows. */
static void check_values(const Weight *w)
{
    size_t n = (size_t)w->rows * (size_t)w->cols, row = (size_t)weight_row_bytes(w);
    int n_blocks = (w->cols + 127) / 128;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        int r = (int)(i / (size_t)w->cols), c = (int)(i % (size_t)w->cols);
        if (w->type == WEIGHT_FP8) assert_true((((const uint8_t *)w->data)[i] & 0x7f) != 0x7f);
        double x = element(w, i);
        if (w->scale) x *= (double)w->scale[r / 128 * n_blocks + c / 128];
        sum += x;
        squares += x * x;
    }
    double want = 1 / sqrt(w->cols), slack = 4 / sqrt((double)n);
    assert_true(fabs(sum / (double)n) < slack * want);
    assert_true(fabs(sqrt(squares / (double)n) / want - 1) < slack);
    const unsigned char *data = w->data;
    for (int r = 1; r < w->rows; r++)
        assert_memory_not_equal(data, data + (size_t)r * row, row);
}

static void test_matrices(void **state)
{
    (void)state;
    static Matrices all;
    Backend *be = backend_ref_open(512);
    for (int i = 0; i < N_GOLDEN; i++)
        for (DummyType type = DUMMY_BF16; type <= DUMMY_FP8; type++) {
            Model *m = open_dummy(golden[i], type, be);
            assert_int_equal(m->config.quant, type == DUMMY_FP8 ? QUANT_FP8 : QUANT_NONE);
            list_matrices(m, &all);
            for (int k = 0; k < all.n; k++) {
                int fp8 = type == DUMMY_FP8 && all.list[k].fp8;
                assert_int_equal(all.list[k].w->type, fp8 ? WEIGHT_FP8 : WEIGHT_BF16);
                assert_true((all.list[k].w->scale != NULL) == fp8);
                check_values(all.list[k].w);
            }
            assert_true((m->lm_head.data == m->embed.data) == m->config.tied);
            model_close(m);
        }
    be->close(be);
}

/* As many parameters and bytes as the checkpoint of that config. */
static void test_sizes(void **state)
{
    (void)state;
    Backend *be = backend_ref_open(512);
    for (int i = 0; i < N_GOLDEN; i++) {
        char path[128];
        Error err = {0};
        snprintf(path, sizeof path, GOLDEN "%s", golden[i]);
        Model *real = model_open(path, NULL, be, &err);
        assert_non_null(real);
        Model *m =
            open_dummy(golden[i], real->config.quant == QUANT_FP8 ? DUMMY_FP8 : DUMMY_BF16, be);
        assert_true(m->n_params == real->n_params);
        assert_int_equal(m->has_mtp, real->has_mtp);
        assert_true(m->weight_bytes == real->weight_bytes);
        model_close(m);
        model_close(real);
    }
    be->close(be);
}

static void is_all(const float *v, int n, float x)
{
    for (int i = 0; i < n; i++)
        assert_true(v[i] == x);
}

/* Norms change nothing; states forget at many different speeds, and never grow. */
static void test_vectors(void **state)
{
    (void)state;
    Backend *be = backend_ref_open(512);
    Model *m = open_dummy("qwen35-moe", DUMMY_BF16, be);
    const ModelConfig *c = &m->config;
    is_all(m->final_norm, c->dim, 1);
    is_all(m->head.embed_norm, c->dim, 1);
    is_all(m->head.attention.q_norm, c->head_dim, 1);
    for (int i = 0; i < c->n_layers; i++) {
        const DeltaWeights *d = &m->layer[i].delta;
        is_all(m->layer[i].ffn.norm, c->dim, 1);
        if (c->full_attention[i]) continue;
        is_all(d->norm, c->dim, 1);
        is_all(d->out_norm, c->d_v, 1);
        for (int h = 0; h < c->n_v_heads; h++) {
            assert_true(d->a_coef[h] >= -16 && d->a_coef[h] < -0.01f);
            assert_true(d->dt_bias[h] >= -3 && d->dt_bias[h] <= 1);
            assert_true(h == 0 || d->a_coef[h] != d->a_coef[0]);
        }
        double squares = 0;
        int n = c->n_channels * c->conv_width;
        for (int k = 0; k < n; k++)
            squares += (double)d->conv_w[k] * (double)d->conv_w[k];
        assert_true(fabs(sqrt(squares / n * c->conv_width) - 1) < 0.2);
    }
    model_close(m);
    be->close(be);
}

/* The same bits again, and on a backend that is loaded like a device. */
static void test_same_everywhere(void **state)
{
    (void)state;
    static Matrices a, b;
    Backend *host = backend_ref_open(512), *simt = backend_simt_open(), *other[] = {host, simt};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "qwen3-next" : "qwen35-dense";
        for (int k = 0; k < 2; k++) {
            Model *one = open_dummy(name, DUMMY_FP8, host);
            Model *two = open_dummy(name, DUMMY_FP8, other[k]);
            list_matrices(one, &a);
            list_matrices(two, &b);
            assert_int_equal(a.n, b.n);
            for (int w = 0; w < a.n; w++) {
                const Weight *x = a.list[w].w, *y = b.list[w].w;
                assert_memory_equal(x->data, y->data, (size_t)(x->rows * weight_row_bytes(x)));
                if (x->scale) assert_true(x->scale[0] == y->scale[0]);
            }
            const ModelConfig *c = &one->config;
            assert_memory_equal(one->layer[0].delta.a_coef, two->layer[0].delta.a_coef,
                                (size_t)c->n_v_heads * sizeof(float));
            model_close(one);
            model_close(two);
        }
    }
    simt->close(simt);
    host->close(host);
}

/* A matrix longer than the pool: all of it is filled, and a row that comes again is far away. */
static void test_long_matrix(void **state)
{
    (void)state;
    Backend *be = backend_ref_open(512);
    Error err = {0};
    Dummy *d = dummy_open(DUMMY_BF16, be);
    enum { ROWS = 9001, COLS = 4096 }; /* 70 MiB; 16 MiB is a multiple of the row */
    const Tensor *t =
        dummy_tensor(d, "", "embed_tokens", ".weight", 2, (const int64_t[]){ROWS, COLS});
    unsigned char *data = be->alloc(be, t->bytes, &err);
    size_t row = 2 * (size_t)COLS;
    assert_non_null(data);
    assert_true(t->bytes == ROWS * row);
    assert_int_equal(dummy_matrix(d, t, data, &err), 0);
    assert_memory_not_equal(data + (ROWS - 1) * row, data + row, row);
    for (size_t r = 1; r < ROWS; r++) {
        assert_memory_not_equal(data + r * row, data, row);
        uint64_t last;
        memcpy(&last, data + (r + 1) * row - 8, 8);
        assert_true(last != 0);
    }
    be->free(be, data);
    dummy_close(d);
    be->close(be);
}

/* ---- forward ---- */

/* Spread of one row around its mean. */
static double spread(const float *row, int n)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        assert_true(isfinite(row[i]));
        sum += (double)row[i];
        squares += (double)row[i] * (double)row[i];
    }
    return sqrt(squares / n - sum / n * (sum / n));
}

static void check_pass(Model *m)
{
    Pass a, b;
    int n = m->config.n_vocab;
    run_pass(&a, m);
    run_pass(&b, m);
    assert_int_equal(a.n_layers_seen, m->config.n_layers);
    assert_true(a.largest_rms < 2 * sqrt(m->config.n_layers)); /* each adds a row of size about 1 */
    for (int i = 0; i < PASS_TOKENS; i++) {
        double s = spread(a.logits + (size_t)i * (size_t)n, n);
        if (s < 0.5 || s > 2) fail_msg("row %d: logits spread %.3f", i, s);
    }
    assert_memory_equal(a.logits, b.logits, (size_t)PASS_TOKENS * (size_t)n * sizeof(float));
    assert_memory_not_equal(a.logits, a.logits + n, (size_t)n * sizeof(float));
    mem_free(a.logits);
    mem_free(b.logits);
}

static void test_forward(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(2, NULL, 512, NULL);
    assert_non_null(be);
    for (int i = 0; i < N_GOLDEN; i++)
        for (DummyType type = DUMMY_BF16; type <= DUMMY_FP8; type++) {
            Model *m = open_dummy(golden[i], type, be);
            check_pass(m);
            model_close(m);
        }
    be->close(be);
}

/* As deep as the largest model: what the layers hand on stays in proportion. */
static void test_deep(void **state)
{
    (void)state;
    char types[2048] = "[";
    for (int i = 0; i < 64; i++)
        snprintf(types + strlen(types), sizeof types - strlen(types), "%s\"%s_attention\"",
                 i ? "," : "", i % 4 == 3 ? "full" : "linear");
    snprintf(types + strlen(types), sizeof types - strlen(types), "]");
    Backend *be = backend_cpu_open(2, NULL, 512, NULL);
    assert_non_null(be);
    Model *m = open_changed("qwen35-dense",
                            (const char *[]){"text_config.num_hidden_layers", "64",
                                             "text_config.layer_types", types, NULL},
                            DUMMY_FP8, be);
    assert_int_equal(m->config.n_layers, 64);
    check_pass(m);
    model_close(m);
    be->close(be);
}

/* The config decides on a head; a backend without memory is an Error. */
static void *no_memory(Backend *be, size_t bytes, Error *err)
{
    (void)be, (void)bytes;
    error_set(err, ERR_DEVICE, "no memory");
    return NULL;
}

static void test_others(void **state)
{
    (void)state;
    Error err = {0};
    ModelOptions options = {.dummy = DUMMY_BF16};
    Backend *be = backend_ref_open(512);
    Model *m = open_changed("qwen35-dense",
                            (const char *[]){"text_config.mtp_num_hidden_layers", "0", NULL},
                            DUMMY_BF16, be);
    assert_int_equal(m->has_mtp, 0);
    model_close(m);
    void *(*alloc)(Backend *, size_t, Error *) = be->alloc;
    be->alloc = no_memory;
    const char *dir = config_folder("qwen35-dense", (const char *[]){NULL});
    assert_null(model_open(dir, &options, be, &err));
    assert_string_equal(err.msg, "no memory");
    be->alloc = alloc;
    be->close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices),    cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_vectors),     cmocka_unit_test(test_same_everywhere),
        cmocka_unit_test(test_long_matrix), cmocka_unit_test(test_forward),
        cmocka_unit_test(test_deep),        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
