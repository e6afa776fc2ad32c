/*
 * test_packed_models.c: whole models of matrices that other tools have quantised: what their BF16
 * would be; each kept as narrow as it is; and files that are wrong.
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
#include "kernels/bf16.h"
#include "kernels/host_memory.h"
#include "tests/checkpoint.h"
#include "tests/run_binary.h"
#include "tests/whole_model.h"

#define GOLDEN "tests/data/golden/"

static unsigned seed;

/* How a test packs. */
typedef enum { WORDS, COLUMNS, AWQ, BYTES, FP4, N_WAYS } Way;

static int group = 16;       /* columns; no multiple of INT4's runs */
static const char *in_bytes; /* NULL, or matrices with that in their names are packed as BYTES */

static uint16_t random_scale(void)
{
    return bf16_from_float(ldexpf(1 + (float)(rand_r(&seed) % 64) / 64, -8));
}

static void put_bits(unsigned char *data, size_t word, int shift, unsigned code)
{
    uint32_t bits;
    memcpy(&bits, data + 4 * word, sizeof bits);
    bits |= (uint32_t)code << shift;
    memcpy(data + 4 * word, &bits, sizeof bits);
}

static unsigned char *put(Checkpoint *c, const char *stem, const char *suffix, const char *dtype,
                          int64_t d0, int64_t d1)
{
    char name[192];
    snprintf(name, sizeof name, "%s%s", stem, suffix);
    return checkpoint_put(c, name, dtype, d0, d1, -1)->data;
}

/* Of what code (r, c) is a part, in the tensor of the way's codes. */
static void put_code(Way way, unsigned char *data, int rows, int cols, int r, int c, unsigned code)
{
    static const int in_awq[] = {0, 4, 1, 5, 2, 6, 3, 7};
    size_t row = (size_t)r, col = (size_t)c, n_rows = (size_t)rows, n_cols = (size_t)cols;
    switch (way) {
    case WORDS:
        put_bits(data, (row * n_cols + col) / 8, c % 8 * 4, code);
        break;
    case COLUMNS:
        put_bits(data, col / 8 * n_rows + row, c % 8 * 4, code);
        break;
    case AWQ:
        put_bits(data, (col * n_rows + row) / 8, in_awq[r % 8] * 4, code);
        break;
    case BYTES:
        data[row * n_cols + col] = (unsigned char)((int)code - 8);
        break;
    default:
        data[(row * n_cols + col) / 2] |= (unsigned char)(code << c % 2 * 4);
        break;
    }
}

/*
 * stem.weight, random codes of four bits as that way has them, and as the BF16 that they stand for
 * in the other checkpoint.
 */
static void put_packed(Checkpoint *packed, Checkpoint *wide, Way way, const char *stem, int rows,
                       int cols)
{
    static const float fp4[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    if (in_bytes && strstr(stem, in_bytes)) way = BYTES;
    int n_groups = way == BYTES ? 1 : cols / group, by_cols = way == COLUMNS || way == AWQ;
    unsigned char *code = way == WORDS ? put(packed, stem, ".weight_packed", "I32", rows, cols / 8)
                          : way == COLUMNS ? put(packed, stem, ".qweight", "I32", cols / 8, rows)
                          : way == AWQ     ? put(packed, stem, ".qweight", "I32", cols, rows / 8)
                          : way == BYTES
                              ? put(packed, stem, ".weight", "I8", rows, cols)
                              : put(packed, stem, ".weight_packed", "U8", rows, cols / 2);
    unsigned char *scale = by_cols ? put(packed, stem, ".scales", "BF16", n_groups, rows)
                                   : put(packed, stem, ".weight_scale", "BF16", rows, n_groups);
    unsigned char *zero = by_cols ? put(packed, stem, ".qzeros", "I32", n_groups, rows / 8) : NULL;
    unsigned char *order =
        way == WORDS ? put(packed, stem, ".weight_g_idx", "I32", cols, -1) : NULL;
    unsigned char *out = put(wide, stem, ".weight", "BF16", rows, cols);
    if (order) memset(order, 0xff, 4 * (size_t)cols); /* -1: as nobody has set them */
    for (size_t i = 0; zero && i < (size_t)(n_groups * rows / 8); i++)
        put_bits(zero, i, 0, 0x88888888);
    for (int r = 0; r < rows; r++)
        for (int c = 0, g = -1; c < cols; c++) {
            static uint16_t s;
            unsigned v = (unsigned)rand_r(&seed) % 16;
            size_t at = (size_t)r * (size_t)cols + (size_t)c;
            if (c * n_groups / cols != g) {
                g = c * n_groups / cols, s = random_scale();
                memcpy(scale + 2 * (size_t)(by_cols ? g * rows + r : r * n_groups + g), &s, 2);
            }
            float x = way == FP4 ? (v & 8 ? -fp4[v & 7] : fp4[v]) : (float)((int)v - 8);
            uint16_t bits = bf16_from_float(x * bf16_to_float(s));
            memcpy(out + 2 * at, &bits, sizeof bits);
            put_code(way, code, rows, cols, r, c, v);
        }
}

static int ends(const char *name, const char *with)
{
    size_t n = strlen(name), m = strlen(with);
    return n >= m && !strcmp(name + n - m, with);
}

/* Experts in one tensor become matrices of their own: those that tools quantise. */
static void split_experts(Checkpoint *packed, Checkpoint *wide, Way way, const char *name)
{
    static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
    const CheckpointTensor *t = checkpoint_get(packed, name);
    int is_down = ends(name, "down_proj"), n = (int)t->dim[0], cols = (int)t->dim[2];
    int rows = (int)t->dim[1] / (is_down ? 1 : 2);
    char scope[160], stem[192];
    snprintf(scope, sizeof scope, "%.*s", (int)(strstr(name, "experts.") - name) + 8, name);
    checkpoint_drop(wide, name);
    checkpoint_drop(packed, name);
    for (int e = 0; e < n; e++)
        for (int i = is_down ? 2 : 0; i < (is_down ? 3 : 2); i++) {
            snprintf(stem, sizeof stem, "%s%d.%s", scope, e, part[i]);
            put_packed(packed, wide, way, stem, rows, cols);
        }
}

/* All matrices but embedding and LM head, and those whose sizes are no multiples. */
static void pack_all(Checkpoint *packed, Checkpoint *wide, Way way)
{
    int n = packed->n;
    char(*name)[192] = mem_alloc((size_t)n, sizeof *name);
    for (int i = 0; i < n; i++)
        snprintf(name[i], sizeof *name, "%s", packed->tensor[i].name);
    for (int i = 0; i < n; i++) {
        const CheckpointTensor *t = checkpoint_get(packed, name[i]);
        if (t->n_dims == 3 && strstr(name[i], "mlp.experts.")) {
            split_experts(packed, wide, way, name[i]);
            continue;
        }
        if (t->n_dims != 2 || !ends(name[i], ".weight") || ends(name[i], "embed_tokens.weight") ||
            ends(name[i], "lm_head.weight") || t->dim[0] % 8 || t->dim[1] % group)
            continue;
        int rows = (int)t->dim[0], cols = (int)t->dim[1];
        char stem[192];
        snprintf(stem, sizeof stem, "%.*s", (int)strlen(name[i]) - 7, name[i]);
        checkpoint_drop(packed, name[i]);
        put_packed(packed, wide, way, stem, rows, cols);
    }
    mem_free(name);
}

/* A golden model twice: with matrices that are packed, and with the BF16 that they stand for. */
typedef struct {
    Checkpoint packed, wide;
    char config[96]; /* its path */
} Pair;

static void pair_open(Pair *p, const char *model, Way way)
{
    char dir[64];
    snprintf(dir, sizeof dir, GOLDEN "%s", model);
    snprintf(p->config, sizeof p->config, "%s/config.json", dir);
    checkpoint_read(&p->packed, dir);
    checkpoint_read(&p->wide, dir);
    pack_all(&p->packed, &p->wide, way);
}

static void pair_close(Pair *p)
{
    checkpoint_free(&p->packed);
    checkpoint_free(&p->wide);
}

/* As models' folders; GPTQ's zero points are of its second format. */
static const char *packed_folder(const Checkpoint *packed, const char *config, Way way)
{
    static const char gptq[] =
        "{\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"gptq_v2\"}";
    return checkpoint_model(packed, config, way == COLUMNS ? "quantization_config" : NULL, gptq, 0);
}

static const char *wide_folder(const Pair *p)
{
    return checkpoint_model(&p->wide, p->config, NULL, NULL, 0);
}

static Model *open_ok(const char *dir, QuantType quant, Backend *be)
{
    Error err = {0};
    Model *m = model_open(dir, &(ModelOptions){.quant = quant}, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

/* The same matrices, of which n_of[] are of a type; closes both. */
static void same_models(Model *a, Model *b, int n_of[N_WEIGHT_TYPES])
{
    static Matrices x, y;
    list_matrices(a, &x);
    list_matrices(b, &y);
    assert_int_equal(x.n, y.n);
    memset(n_of, 0, N_WEIGHT_TYPES * sizeof *n_of);
    for (int i = 0; i < x.n; i++) {
        const Weight *v = x.list[i].w, *w = y.list[i].w;
        assert_true(v->type == w->type && v->rows == w->rows && v->cols == w->cols);
        assert_memory_equal(v->data, w->data, (size_t)weight_data_bytes(v));
        if (v->scale)
            assert_memory_equal(v->scale, w->scale, (size_t)weight_n_scales(v) * sizeof(float));
        n_of[v->type]++;
    }
    assert_true(a->n_params == b->n_params && a->has_mtp == b->has_mtp);
    assert_true(a->weight_bytes == b->weight_bytes);
    model_close(a);
    model_close(b);
}

/* A golden model, packed and as BF16; be opens both. */
static void check_model(const char *model, Way way, QuantType quant, Backend *be,
                        int n_of[N_WEIGHT_TYPES])
{
    Pair pair;
    seed = (unsigned)way + 1;
    pair_open(&pair, model, way);
    Model *a = open_ok(packed_folder(&pair.packed, pair.config, way), quant, be);
    Model *b = open_ok(wide_folder(&pair), quant, be);
    same_models(a, b, n_of);
    pair_close(&pair);
}

/* Each way in each kind of model: fused projections, an expert each; as it is, or quantised. */
static void test_models(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen35-dense", "qwen35-moe", "qwen3-next"};
    static const WeightType types[] = {WEIGHT_BF16, WEIGHT_FP8, WEIGHT_INT8, WEIGHT_INT4};
    Backend *cpu = backend_cpu_open(2, NULL, 4096, NULL);
    Backend device = {0};
    int n_of[N_WEIGHT_TYPES];
    host_memory_fill(&device);
    device.is_host = 0;
    for (int i = 0; i < 3; i++)
        for (Way way = WORDS; way < N_WAYS; way++) {
            for (QuantType quant = QUANT_NONE; quant <= QUANT_Q4; quant++) {
                check_model(models[i], way, quant, cpu, n_of);
                assert_true(n_of[types[quant]] > 9);
            }
            check_model(models[i], way, QUANT_NONE, &device, n_of);
            check_model(models[i], way, QUANT_FP8, &device, n_of);
        }
    cpu->close(cpu);
}

/* Dimensions of 1, which count nowhere: in front of codes, or behind them. */
static void add_ones(Checkpoint *c, int in_front)
{
    static const char *const codes[] = {".weight_packed", ".qweight", ".qzeros"};
    for (int i = 0; i < c->n; i++) {
        CheckpointTensor *t = &c->tensor[i];
        int is_code = !strcmp(t->dtype, "I8");
        for (int k = 0; k < 3; k++)
            is_code = is_code || ends(t->name, codes[k]);
        if (!is_code) continue;
        if (in_front) memmove(t->dim + 1, t->dim, (size_t)t->n_dims * sizeof *t->dim);
        t->dim[in_front ? 0 : t->n_dims] = 1;
        t->n_dims++;
    }
}

static void test_ones(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    int n_of[N_WEIGHT_TYPES];
    for (Way way = WORDS; way < N_WAYS; way++)
        for (int in_front = 0; in_front < 2; in_front++) {
            Pair pair;
            pair_open(&pair, "qwen35-dense", way);
            if (way != AWQ || !in_front) add_ones(&pair.packed, in_front); /* known by its first */
            Model *a = open_ok(packed_folder(&pair.packed, pair.config, way), QUANT_NONE, be);
            Model *b = open_ok(wide_folder(&pair), QUANT_NONE, be);
            same_models(a, b, n_of);
            pair_close(&pair);
        }
    be->close(be);
}

/* An LM head that is packed, where the config says that it is the embedding, or under a prefix. */
static void test_lm_head(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen35-dense", "qwen3-next"}; /* the first is tied */
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    int n_of[N_WEIGHT_TYPES];
    for (int i = 0; i < 4; i++)
        for (Way way = WORDS; way < N_WAYS; way++) {
            Pair pair;
            pair_open(&pair, models[i / 2], way);
            const char *embed = "model.language_model.embed_tokens.weight";
            if (i / 2) embed = "model.embed_tokens.weight";
            const CheckpointTensor *t = checkpoint_get(&pair.packed, embed);
            int rows = (int)t->dim[0], cols = (int)t->dim[1];
            if (i / 2) checkpoint_drop(&pair.packed, "lm_head.weight");
            if (i / 2) checkpoint_drop(&pair.wide, "lm_head.weight");
            put_packed(&pair.packed, &pair.wide, way, i % 2 ? "language_model.lm_head" : "lm_head",
                       rows, cols);
            Model *a = open_ok(packed_folder(&pair.packed, pair.config, way), QUANT_NONE, be);
            Model *b = open_ok(wide_folder(&pair), QUANT_NONE, be);
            assert_ptr_not_equal(a->lm_head.data, a->embed.data);
            same_models(a, b, n_of);
            pair_close(&pair);
        }
    be->close(be);
}

/* Groups of whole runs: q4 keeps the codes, so that a weight is what BF16 has, nearly. */
static void check_kept(const char *model, Way way, Backend *be)
{
    static Matrices x, y;
    Pair pair;
    int n = 0;
    pair_open(&pair, model, way);
    Model *a = open_ok(packed_folder(&pair.packed, pair.config, way), QUANT_Q4, be);
    Model *b = open_ok(wide_folder(&pair), QUANT_NONE, be);
    list_matrices(a, &x);
    list_matrices(b, &y);
    for (int i = 0; i < x.n; i++) {
        const Weight *v = x.list[i].w, *w = y.list[i].w;
        const uint16_t *half = w->data;
        if (v->type != WEIGHT_INT4 || w->cols % group) continue;
        n++;
        for (int r = 0; r < w->rows; r++)
            for (int c = 0; c < w->cols; c++) {
                float is = weight_int_at(v, r, c), was = bf16_to_float(half[r * w->cols + c]);
                if ((is == 0) != (was == 0) || fabsf(is - was) > 0.2f * fabsf(was))
                    fail_msg("[%d][%d] is %g, was %g", r, c, (double)is, (double)was);
            }
    }
    assert_true(n > 9);
    model_close(a);
    model_close(b);
    pair_close(&pair);
}

static void test_kept(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(2, NULL, 4096, NULL);
    group = 32;
    for (Way way = WORDS; way <= AWQ; way++) {
        check_kept("qwen35-moe", way, be);
        check_kept("qwen3-next", way, be);
    }
    group = 16;
    be->close(be);
}

/* A golden model of which some matrices have four bits and others, `bytes`, eight. */
static Model *open_mixed(const char *model, const char *bytes, QuantType quant, Backend *be)
{
    Pair pair;
    seed = 1, in_bytes = bytes;
    pair_open(&pair, model, WORDS);
    in_bytes = NULL;
    Model *m = open_ok(packed_folder(&pair.packed, pair.config, WORDS), quant, be);
    pair_close(&pair);
    return m;
}

/* Each matrix is what q4 makes of it, or q8. */
static void q4_or_q8(const char *model, const char *bytes, Model *m, Backend *be)
{
    static Matrices is, q4, q8;
    Model *a = open_mixed(model, bytes, QUANT_Q4, be), *b = open_mixed(model, bytes, QUANT_Q8, be);
    list_matrices(m, &is);
    list_matrices(a, &q4);
    list_matrices(b, &q8);
    for (int i = 0; i < is.n; i++) {
        const Weight *v = is.list[i].w, *w = v->type == WEIGHT_INT4 ? q4.list[i].w : q8.list[i].w;
        assert_int_equal(v->type, w->type);
        assert_memory_equal(v->data, w->data, (size_t)weight_data_bytes(v));
    }
    model_close(a);
    model_close(b);
    model_close(m);
}

/* Integers stay as narrow as they are, each matrix for itself, the experts of a layer together. */
static void test_by_bits(void **state)
{
    (void)state;
    static const char up[] = "layers.1.mlp.experts.7.up_proj", layer[] = "layers.1.";
    Backend *be = backend_cpu_open(2, NULL, 4096, NULL);
    Model *m = open_mixed("qwen35-moe", up, QUANT_INT, be);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(m->layer[i].ffn.expert_type, i == 1 ? WEIGHT_INT8 : WEIGHT_INT4);
        assert_int_equal(m->layer[i].ffn.gate.type, WEIGHT_INT4);
    }
    assert_int_equal(m->embed.type, WEIGHT_INT8); /* it is not packed */
    q4_or_q8("qwen35-moe", up, m, be);
    m = open_mixed("qwen35-dense", layer, QUANT_INT, be);
    for (int i = 0; i < 4; i++)
        assert_int_equal(m->layer[i].ffn.down.type, i == 1 ? WEIGHT_INT8 : WEIGHT_INT4);
    q4_or_q8("qwen35-dense", layer, m, be);
    for (int all = 0; all < 2; all++) { /* the draft head is as narrow as any of the model */
        m = open_mixed("qwen35-dense", all ? "" : "mtp.fc", QUANT_INT, be);
        assert_int_equal(m->head.fc.type, all ? WEIGHT_INT8 : WEIGHT_INT4);
        model_close(m);
    }
    be->close(be);
}

/* A folder that `offshoot quantize` makes of packed weights: what stays wide is BF16 there. */
static void test_saved(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(2, NULL, 4096, NULL);
    Pair pair;
    Error err = {0};
    int64_t bytes;
    int n_of[N_WEIGHT_TYPES];
    static const char to[] = "build/tests/of-packed";
    pair_open(&pair, "qwen3-next", COLUMNS);
    scratch_dir("of-packed");
    if (model_save_quantised(packed_folder(&pair.packed, pair.config, COLUMNS), to, QUANT_Q4, be,
                             &bytes, &err))
        fail_msg("%s", err.msg);
    Model *saved = open_ok(to, QUANT_NONE, be);
    Model *made = open_ok(wide_folder(&pair), QUANT_Q4, be);
    same_models(saved, made, n_of);
    assert_true(n_of[WEIGHT_INT4] > 9 && n_of[WEIGHT_BF16] > 1);
    pair_close(&pair);
    be->close(be);
}

/* ---- FP8 that stays as it is ---- */

/* Scales of blocks under compressed-tensors' name; one scale for all of a matrix. */
static void test_fp8_scales(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    int n_of[N_WEIGHT_TYPES];
    static const char dir[] = GOLDEN "qwen35-dense-fp8",
                      config[] = GOLDEN "qwen35-dense-fp8/config.json";
    for (int one = 0; one < 2; one++) {
        Checkpoint theirs, ours;
        checkpoint_read(&theirs, dir);
        checkpoint_read(&ours, dir);
        for (int i = 0; i < ours.n; i++) {
            CheckpointTensor *t = &theirs.tensor[i], *u = &ours.tensor[i];
            if (!ends(t->name, "_scale_inv")) continue;
            t->name[strlen(t->name) - strlen("_inv")] = 0;
            size_t each = t->bytes / (size_t)(t->dim[0] * t->dim[1]);
            for (size_t k = 0; one && k < u->bytes; k += each)
                memcpy(u->data + k, u->data, each);
            if (one) t->n_dims = i % 2, t->dim[0] = 1, t->bytes = each;
        }
        Model *a = open_ok(checkpoint_model(&theirs, config, NULL, NULL, 0), QUANT_NONE, be);
        Model *b = open_ok(checkpoint_model(&ours, config, NULL, NULL, 0), QUANT_NONE, be);
        same_models(a, b, n_of);
        assert_true(n_of[WEIGHT_FP8] > 9);
        checkpoint_free(&theirs);
        checkpoint_free(&ours);
    }
    be->close(be);
}

/* ---- files that are wrong ---- */

#define STEM "model.language_model.layers.0.mlp.down_proj"

static int64_t rows, cols; /* of STEM */

typedef struct {
    const char *suffix, *dtype; /* NULL: the tensor is dropped */
    int64_t d0, d1;
    const char *says;
    int32_t first; /* its first element, if that is of four bytes */
} Lie;

static void check_lies(Way way, const Lie *lie, int n)
{
    for (int i = 0; i < n; i++) {
        Checkpoint c, wide;
        Error err = {0};
        Backend be = {0};
        char name[128];
        host_memory_fill(&be);
        checkpoint_read(&c, GOLDEN "qwen35-dense");
        checkpoint_read(&wide, GOLDEN "qwen35-dense");
        checkpoint_drop(&c, STEM ".weight");
        put_packed(&c, &wide, way, STEM, (int)rows, (int)cols);
        snprintf(name, sizeof name, STEM "%s", lie[i].suffix);
        if (lie[i].dtype) {
            const CheckpointTensor *t =
                checkpoint_put(&c, name, lie[i].dtype, lie[i].d0, lie[i].d1, -1);
            if (t->bytes > 3) memcpy(t->data, &lie[i].first, 4);
        } else
            checkpoint_drop(&c, name);
        const char *dir = packed_folder(&c, GOLDEN "qwen35-dense/config.json", way);
        if (model_open(dir, NULL, &be, &err)) fail_msg("loaded, expected: %s", lie[i].says);
        if (err.code != ERR_FILE || !strstr(err.msg, lie[i].says) || !strstr(err.msg, "down_proj"))
            fail_msg("'%s' should say \"%s\"", err.msg, lie[i].says);
        checkpoint_free(&c);
        checkpoint_free(&wide);
    }
}

#define LIE(suffix, dtype, d0, d1, says)                                                           \
    {                                                                                              \
        suffix, dtype, d0, d1, says, 0                                                             \
    }
#define OF(suffix, dtype, d0, d1, says, first)                                                     \
    {                                                                                              \
        suffix, dtype, d0, d1, says, first                                                         \
    }
#define CHECK_LIES(way, ...)                                                                       \
    check_lies(way, (const Lie[]){__VA_ARGS__},                                                    \
               (int)(sizeof((const Lie[]){__VA_ARGS__}) / sizeof(Lie)))

static void test_lies(void **state)
{
    (void)state;
    Checkpoint c;
    checkpoint_read(&c, GOLDEN "qwen35-dense");
    rows = checkpoint_get(&c, STEM ".weight")->dim[0];
    cols = checkpoint_get(&c, STEM ".weight")->dim[1];
    checkpoint_free(&c);
    CHECK_LIES(WORDS, LIE(".weight_packed", "I32", rows, cols / 8 + 1, "expected"),
               LIE(".weight_packed", "I32", rows - 1, cols / 8, "expected"),
               LIE(".weight_packed", "I32", -1, -1, "is a scalar, expected"),
               LIE(".weight_packed", "I32", rows, (cols * 3 + 31) / 32, "lie in two words"),
               LIE(".weight_packed", "I32", rows, (cols * 6 + 31) / 32, "lie in two words"),
               LIE(".weight_packed", "F32", rows, cols / 8, "is of type F32, expected I32"),
               LIE(".weight_scale", NULL, 0, 0, "down_proj.weight_scale' is missing"),
               LIE(".weight_scale", "BF16", rows - 1, cols / group, "expected"),
               LIE(".weight_scale", "BF16", rows, 0, "or none"),
               LIE(".weight_scale", "BF16", rows, cols + 1, "more groups than columns"),
               LIE(".weight_scale", "BF16", rows, 7, "in 7 groups"),
               LIE(".weight_scale", "I32", rows, cols / group, "is of type I32"),
               LIE(".weight_zero_point", "I32", rows, cols / group, "expected"),
               LIE(".weight_zero_point", "F32", rows / 8, cols / group, "is of type F32"),
               OF(".weight_g_idx", "I32", cols, -1, "names a group that is not there", -2),
               OF(".weight_g_idx", "I32", cols, -1, "names a group", (int32_t)cols / group),
               LIE(".pre_quant_scale", "F32", cols, -1, "is a factor of activations"),
               LIE(".weight_g_idx", "I32", cols - 1, -1, "expected"),
               LIE(".weight_g_idx", "I64", cols, -1, "is of type I64"),
               LIE(".weight_global_scale", "F32", 2, -1, "is not one number"),
               LIE(".weight_global_scale", "F16", 1, -1, "is of type F16"));
    CHECK_LIES(COLUMNS, LIE(".qweight", "I32", cols / 8, rows - 1, "expected"),
               LIE(".qweight", "I32", cols / 7, rows, "expected"),
               LIE(".qweight", "I32", (cols + 9) / 10, rows, "lie in two words"),
               LIE(".qweight", "I32", (cols * 3 + 31) / 32, rows, "lie in two words"),
               LIE(".qzeros", NULL, 0, 0, "down_proj.qzeros' is missing"),
               LIE(".qzeros", "I32", cols / group, rows / 8 - 1, "expected"),
               LIE(".scales", "BF16", cols / group, rows - 1, "expected"),
               OF(".g_idx", "I32", cols, -1, "names a group that is not there", -2));
    CHECK_LIES(AWQ, LIE(".qweight", "I32", cols, rows / 8 - 1, "expected"));
    CHECK_LIES(BYTES, LIE(".weight", "I8", rows, cols - 1, "expected"),
               LIE(".weight_scale", NULL, 0, 0, "is of type I8, expected"));
    CHECK_LIES(FP4, LIE(".weight_packed", "U8", rows, cols / 2 - 1, "expected"));
}

/* Zero points of two formats look alike: where nobody says which it is, nothing is guessed. */
static void test_unsaid_format(void **state)
{
    (void)state;
    Pair pair;
    Error err = {0};
    Backend be = {0};
    host_memory_fill(&be);
    pair_open(&pair, "qwen35-dense", COLUMNS);
    const char *dir = checkpoint_model(&pair.packed, pair.config, NULL, NULL, 0);
    assert_null(model_open(dir, NULL, &be, &err));
    if (err.code != ERR_FILE || !strstr(err.msg, ".qzeros' is GPTQ's, of which format"))
        fail_msg("%s", err.msg);
    pair_close(&pair);
}

/* Unless something else is said, a CPU has integers of as many bits; half as many are the head's.
 */
static void test_auto(void **state)
{
    (void)state;
    static const char *const says[] = {"weights are q4 (--draft-quant)",
                                       "weights are q8 (--draft-quant)"};
    Pair pair;
    pair_open(&pair, "qwen35-dense", AWQ);
    const char *dir = checkpoint_model(&pair.packed, pair.config, "quantization_config",
                                       "{\"quant_method\": \"awq\"}", 0);
    assert_int_equal(symlink("../../../" GOLDEN "qwen35-dense/tokenizer.json",
                             scratch_path(dir, "tokenizer.json")),
                     0);
    for (int none = 0; none < 2; none++)
        expect_run(RUN("chat", "--model", dir, "--device", "cpu", "--max-tokens", "1",
                       "--log-level", "debug", "--quant", none ? "none" : "auto", "hi"),
                   0, says[none]);
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),        cmocka_unit_test(test_ones),
        cmocka_unit_test(test_lm_head),       cmocka_unit_test(test_kept),
        cmocka_unit_test(test_by_bits),       cmocka_unit_test(test_saved),
        cmocka_unit_test(test_fp8_scales),    cmocka_unit_test(test_lies),
        cmocka_unit_test(test_unsaid_format), cmocka_unit_test(test_auto),
    };
    return cmocka_run_group_tests_name("packed_models", tests, NULL, NULL);
}
