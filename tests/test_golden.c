/*
 * test_golden.c: the whole model against an independent implementation.
 *
 * Five random checkpoints in the layouts we load, with the reference's residual stream after every
 * layer, final rows, logits and the MTP head's logits over three teacher-forced steps. Every tensor
 * must be within 1e-3 of its largest magnitude (f32 against f32: sums in another order), with K and
 * V in bf16 within 5e-3 (8 bits of each), and what we compute must be the same bits however the
 * tokens are cut into chunks. One of them also with a rope that is stretched.
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
#include <unistd.h>

#include "base/mem.h"
#include "engine/forward.h"
#include "engine/head.h"
#include "engine/safetensors.h"
#include "tests/backend_simt.h"
#include "tests/checkpoint.h"
#include "tests/golden.h"
#include "tests/isas.h"

enum { MAX_T = 512, MAX_ROWS = PROMPT_ROW + MAX_T, HEAD_STEPS = 3 };
static const double TOLERANCE[] = {[KV_F32] = 1e-3, [KV_BF16] = 5e-3};

typedef struct {
    Backend *be;
    Model *model;
    Memory mem;
    Forward f;
    Head head;
    Batch batch;
    Safetensors *golden;
    int n_tokens;
    int32_t token[MAX_T];
    float *hidden[MAX_LAYERS + 1]; /* what the tap saw, [T][dim] */
    float *final, *logits;
    int done; /* rows of earlier chunks */
} Case;

static void keep_hidden(void *ctx, int layer, const float *x, int n)
{
    Case *c = ctx;
    size_t dim = (size_t)c->model->config.dim;
    c->be->download(c->be, c->hidden[layer] + c->done * dim, x, (size_t)n * dim * sizeof(float));
}

/* name: of the golden outputs; dir: of the model, NULL where it is beside them. */
static void case_open(Case *c, const char *name, const char *dir, Backend *be, KvType type)
{
    Error err = {0};
    char path[256];
    memset(c, 0, sizeof *c);
    c->be = be;
    snprintf(path, sizeof path, "tests/data/golden/%s", name);
    c->model = model_open(dir ? dir : path, NULL, be, &err);
    if (!c->model) fail_msg("%s", err.msg);
    c->golden = golden_open(path, c->token, MAX_T, &c->n_tokens);
    int seqs = 1 + HEAD_STEPS, pages = seqs * pages_for(MAX_T + 1);
    assert_int_equal(memory_open_plain(&c->mem, c->model, type, 1, pages, seqs, MAX_T + 1, &err),
                     0);
    assert_int_equal(forward_open(&c->f, c->model, &c->mem, MAX_ROWS, MAX_ROWS, &err), 0);
    assert_int_equal(head_open(&c->head, &c->f, MAX_T, &(DraftVocab){0}, &err), 0);
    batch_open(&c->batch, MAX_ROWS);
    for (int s = 0; s < seqs; s++)
        assert_int_equal(memory_reserve(&c->mem, s, MAX_T + 1), 0);
    size_t rows = (size_t)c->n_tokens;
    for (int i = 0; i <= c->model->config.n_layers; i++)
        c->hidden[i] = mem_alloc(rows * c->model->config.dim, sizeof(float));
    c->final = mem_alloc(rows * c->model->config.dim, sizeof(float));
    c->logits = mem_alloc(rows * c->model->config.n_vocab, sizeof(float));
    c->f.tap = keep_hidden;
    c->f.tap_ctx = c;
}

static void case_close(Case *c)
{
    for (int i = 0; i <= c->model->config.n_layers; i++)
        mem_free(c->hidden[i]);
    mem_free(c->final);
    mem_free(c->logits);
    batch_close(&c->batch);
    head_close(&c->head);
    forward_close(&c->f);
    memory_close(&c->mem);
    safetensors_close(c->golden);
    model_close(c->model);
}

/* The prompt in chunks of up to chunk rows, state in place in slot 0; prefill: as a prompt. */
static void run_trunk(Case *c, int chunk, int prefill)
{
    const ModelConfig *m = &c->model->config;
    memory_clear_slot(&c->mem, 0);
    for (c->done = 0; c->done < c->n_tokens;) {
        int n = c->n_tokens - c->done < chunk ? c->n_tokens - c->done : chunk;
        batch_clear(&c->batch);
        if (prefill) batch_begin_prompt(&c->batch);
        int row0 = c->batch.n;
        for (int i = 0; i < n; i++) {
            int pos = c->done + i, parent = i ? row0 + i - 1 : -1;
            batch_add(&c->batch, c->token[pos], pos, 0, parent, 0, 0, pos, pos + 1);
            c->batch.logit_row[c->batch.n_logits++] = row0 + i;
        }
        forward_pass(&c->f, &c->batch);
        c->be->download(c->be, c->final + (size_t)c->done * m->dim,
                        c->f.final + (size_t)row0 * m->dim, (size_t)n * m->dim * sizeof(float));
        c->be->download(c->be, c->logits + (size_t)c->done * m->n_vocab,
                        c->f.logits + (size_t)row0 * m->n_vocab,
                        (size_t)n * m->n_vocab * sizeof(float));
        c->done += n;
    }
}

/*
 * Rows that may lie elsewhere: bf16 lets a router's near tie fall the other way, and the row of
 * another expert is another row. One of 137 rows is seen, in one of the models with experts; its
 * router's logits are 9e-4 apart.
 */
static size_t rows_astray(const Case *c, size_t rows)
{
    return c->mem.kv_type == KV_BF16 && c->model->config.n_experts ? rows / 100 : 0;
}

static void expect_near(const Case *c, const char *name, const float *got, size_t rows,
                        size_t width)
{
    const Tensor *t = safetensors_find(c->golden, name);
    if (!t) fail_msg("golden file lacks %s", name);
    assert_int_equal(t->type, TENSOR_F32);
    assert_int_equal(t->bytes, rows * width * sizeof(float));
    double largest = 0, tolerance = TOLERANCE[c->mem.kv_type];
    size_t n_astray = 0;
    for (size_t i = 0; i < rows * width; i++) {
        float want;
        memcpy(&want, t->data + 4 * i, 4);
        if (fabs(want) > largest) largest = fabs(want);
    }
    for (size_t row = 0; row < rows; row++) {
        double worst = 0;
        for (size_t i = row * width; i < (row + 1) * width; i++) {
            float want;
            memcpy(&want, t->data + 4 * i, 4);
            double d = fabs((double)got[i] - want);
            if (!(d <= worst)) worst = d;
        }
        if (!(worst <= tolerance * largest) && ++n_astray > rows_astray(c, rows))
            fail_msg("%s, row %zu: off by %g, largest magnitude %g", name, row, worst, largest);
    }
}

/* Head steps 1..3, each in its own sequence, in chunks of up to chunk rows. */
static void run_head(Case *c, int chunk, float *logits[HEAD_STEPS])
{
    const ModelConfig *m = &c->model->config;
    size_t dim = (size_t)m->dim;
    float *in = mem_alloc((size_t)c->n_tokens * dim, sizeof(float));
    float *out = c->f.logits; /* the trunk's are not needed any more */
    Backend *be = c->be;
    memcpy(in, c->final, (size_t)c->n_tokens * dim * sizeof(float));
    for (int s = 1; s <= HEAD_STEPS; s++) {
        int total = c->n_tokens - s;
        for (int done = 0, n; done < total; done += n) {
            n = total - done < chunk ? total - done : chunk;
            batch_clear(&c->batch);
            for (int i = 0; i < n; i++) {
                int t = done + i;
                head_add(&c->batch, c->token[t + s], t + 1, s, i - 1, t + 1, t + 2);
            }
            be->upload(be, c->head.hidden, in + (size_t)done * dim,
                       (size_t)n * dim * sizeof(float));
            head_pass(&c->head, &c->batch, 0);
            be->download(be, in + (size_t)done * dim, c->head.out, (size_t)n * dim * sizeof(float));
            scored_logits(&c->head.scored, n, c->head.out, out);
            be->download(be, logits[s - 1] + (size_t)done * m->n_vocab, out,
                         (size_t)n * m->n_vocab * sizeof(float));
        }
    }
    mem_free(in);
}

/* Run as a prompt the tokens give the golden logits too, in any chunks the same. */
static void check_prompt(Case *c, const char *name, float *whole)
{
    size_t vocab = (size_t)c->model->config.n_vocab, n = (size_t)c->n_tokens * vocab;
    run_trunk(c, c->n_tokens, 1);
    expect_near(c, "logits", c->logits, (size_t)c->n_tokens, vocab);
    memcpy(whole, c->logits, n * sizeof(float));
    for (int chunk = PREFILL_BLOCK; chunk < c->n_tokens; chunk *= 2) {
        run_trunk(c, chunk, 1);
        if (memcmp(whole, c->logits, n * sizeof(float)))
            fail_msg("%s: logits of a prompt differ in chunks of %d", name, chunk);
    }
}

/* Code without vectors is slow: it runs the first of these cuts alone. */
static const int chunks[] = {7, 1, 2, 3, 63, 64, 65};

static void check_golden(const char *name, Backend *be, KvType type, size_t n_chunks)
{
    Case c;
    case_open(&c, name, NULL, be, type);
    const ModelConfig *m = &c.model->config;
    size_t rows = (size_t)c.n_tokens, dim = (size_t)m->dim, vocab = (size_t)m->n_vocab;
    char label[32];

    assert_true(c.model->has_mtp);
    run_trunk(&c, c.n_tokens, 0);
    for (int i = 0; i <= m->n_layers; i++) {
        snprintf(label, sizeof label, "hidden.%d", i);
        expect_near(&c, label, c.hidden[i], rows, dim);
    }
    expect_near(&c, "final", c.final, rows, dim);
    expect_near(&c, "logits", c.logits, rows, vocab);

    float *head[HEAD_STEPS], *head_again[HEAD_STEPS];
    for (int s = 0; s < HEAD_STEPS; s++) {
        head[s] = mem_alloc(rows * vocab, sizeof(float));
        head_again[s] = mem_alloc(rows * vocab, sizeof(float));
    }
    run_head(&c, c.n_tokens, head);
    for (int s = 1; s <= HEAD_STEPS; s++) {
        snprintf(label, sizeof label, "mtp_logits.%d", s);
        expect_near(&c, label, head[s - 1], rows - (size_t)s, vocab);
    }

    float *whole = mem_alloc(rows * vocab, sizeof(float));
    memcpy(whole, c.logits, rows * vocab * sizeof(float));
    for (size_t k = 0; k < n_chunks; k++) {
        run_trunk(&c, chunks[k], 0);
        if (memcmp(whole, c.logits, rows * vocab * sizeof(float)))
            fail_msg("%s: logits differ in chunks of %d", name, chunks[k]);
        run_head(&c, chunks[k], head_again);
        for (int s = 0; s < HEAD_STEPS; s++)
            if (memcmp(head[s], head_again[s], (rows - (size_t)s - 1) * vocab * sizeof(float)))
                fail_msg("%s: mtp_logits.%d differ in chunks of %d", name, s + 1, chunks[k]);
    }
    check_prompt(&c, name, whole);
    mem_free(whole);
    for (int s = 0; s < HEAD_STEPS; s++) {
        mem_free(head[s]);
        mem_free(head_again[s]);
    }
    case_close(&c);
}

/* The dense model with a rope that is stretched (YaRN): its logits, in one pass and as a prompt. */
static void check_stretched(Backend *be)
{
    static const char weights[] = "tests/data/golden/qwen35-dense/model.safetensors";
    const char *dir = scratch_dir("yarn"), *link = scratch_path(dir, "model.safetensors");
    char *from = realpath(weights, NULL);
    Case c;
    config_write(dir, "config.json", "tests/data/golden/qwen35-dense/config.json",
                 (const char *[]){"text_config.rope_parameters.rope_type", "\"yarn\"",
                                  "text_config.rope_parameters.factor", "8.0",
                                  "text_config.rope_parameters.original_max_position_embeddings",
                                  "64", NULL});
    assert_non_null(from);
    assert_int_equal(symlink(from, link), 0);
    free(from);
    case_open(&c, "qwen35-dense-yarn", dir, be, KV_F32);
    size_t rows = (size_t)c.n_tokens, vocab = (size_t)c.model->config.n_vocab;
    run_trunk(&c, c.n_tokens, 0);
    expect_near(&c, "logits", c.logits, rows, vocab);
    run_trunk(&c, c.n_tokens, 1);
    expect_near(&c, "logits", c.logits, rows, vocab);
    case_close(&c);
}

static const char *const models[] = {"qwen35-dense", "qwen35-dense-odd", "qwen35-dense-fp8",
                                     "qwen35-moe", "qwen3-next"};
enum { N_MODELS = sizeof models / sizeof *models, N_CHUNKS = sizeof chunks / sizeof *chunks };

static void test_golden_ref(void **state)
{
    (void)state;
    Backend *be = backend_ref_open(1024);
    for (size_t i = 0; i < N_MODELS; i++) {
        check_golden(models[i], be, KV_F32, 1);
        check_golden(models[i], be, KV_BF16, 0);
    }
    check_stretched(be);
    be->close(be);
}

static void test_golden_cpu(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CPU_ISAS; k++) {
        Error err;
        Backend *be = backend_cpu_open(2, cpu_isas[k], 1024, &err);
        if (!be) continue; /* this machine lacks it */
        for (size_t i = 0; i < N_MODELS; i++) {
            check_golden(models[i], be, KV_F32, k ? N_CHUNKS : 1);
            check_golden(models[i], be, KV_BF16, 1);
        }
        check_stretched(be);
        be->close(be);
    }
}

/* On the host a pass takes long: one model in bf16, of odd sizes. */
static void test_golden_gpu(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        int simt = is_simt(gpu[b]);
        for (size_t i = 0; i < N_MODELS; i++) {
            check_golden(models[i], gpu[b], KV_F32, simt ? !i : N_CHUNKS);
            if (i == 1 || !simt) check_golden(models[i], gpu[b], KV_BF16, simt ? 0 : N_CHUNKS);
        }
        check_stretched(gpu[b]);
        gpu[b]->close(gpu[b]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_ref),
        cmocka_unit_test(test_golden_cpu),
        cmocka_unit_test(test_golden_gpu),
    };
    const struct CMUnitTest gpu[] = {cmocka_unit_test(test_golden_gpu)};
    return gpu_only() ? cmocka_run_group_tests(gpu, NULL, NULL)
                      : cmocka_run_group_tests(tests, NULL, NULL);
}
