/*
 * test_scored.c: the ids that a draft head scores, and that their logits are those of the whole
 * matrix, or of what its rows have become; the others' stay -inf. What the head computes before is
 * in test_golden.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/quantise.h"
#include "engine/scored.h"
#include "tests/backends.h"

enum { DIM = 300, N_VOCAB = 451, N = 3 };

/* A model of which only the LM head counts. */
static Model model_of(Backend *be, Weight lm_head, int eos)
{
    Model m = {.backend = be, .lm_head = lm_head};
    m.config.n_vocab = lm_head.rows;
    m.config.n_eos = eos >= 0;
    m.config.eos[0] = eos;
    return m;
}

static int scored(const Scored *s, int id)
{
    int n = 0;
    for (int i = 0; i < s->n_ranges; i++)
        n += id >= s->range[i].first && id < s->range[i].end;
    return n;
}

/* Ranges ascend, are apart and add up. */
static void check_ranges(const Scored *s)
{
    WeightType type = s->model->lm_head.type;
    int total = 0, before = -1, step = type == WEIGHT_FP8 ? 128 : type == WEIGHT_INT8 ? 16 : 1;
    assert_true(s->n_ranges >= 1 && s->n_ranges <= MAX_SCORED_RANGES);
    for (int i = 0; i < s->n_ranges; i++) {
        assert_true(s->range[i].first > before && s->range[i].end > s->range[i].first);
        assert_int_equal(s->range[i].first % step, 0);
        before = s->range[i].end;
        total += s->range[i].end - s->range[i].first;
    }
    assert_true(before <= s->model->config.n_vocab);
    assert_int_equal(s->n_ids, total);
}

static void expect_ranges(const Scored *s, const IdRange *want, int n)
{
    check_ranges(s);
    assert_int_equal(s->n_ranges, n);
    assert_memory_equal(s->range, want, (size_t)n * sizeof *want);
}

#define EXPECT_RANGES(s, ...)                                                                      \
    expect_ranges(s, (const IdRange[]){__VA_ARGS__},                                               \
                  (int)(sizeof((const IdRange[]){__VA_ARGS__}) / sizeof(IdRange)))

static void test_ranges(void **state)
{
    (void)state;
    Scored of, *s = &of;
    const int32_t always[] = {440, 442, 441, -1, N_VOCAB, 7, 1 << 30, 441};
    Model m = model_of(ref, (Weight){.type = WEIGHT_BF16, .rows = N_VOCAB, .cols = DIM}, 450);
    scored_open(s, &m, &(DraftVocab){0});
    EXPECT_RANGES(s, {0, N_VOCAB});
    scored_open(s, &m, &(DraftVocab){.always = always, .n_always = 8});
    EXPECT_RANGES(s, {0, N_VOCAB});
    scored_open(s, &m, &(DraftVocab){.n_first = 100});
    EXPECT_RANGES(s, {0, 100}, {450, 451});
    scored_open(s, &m, &(DraftVocab){100, always, 8});
    EXPECT_RANGES(s, {0, 100}, {440, 443}, {450, 451});
    scored_open(s, &m, &(DraftVocab){1, always, 8});
    EXPECT_RANGES(s, {0, 1}, {7, 8}, {440, 443}, {450, 451});
    scored_open(s, &m, &(DraftVocab){440, always, 8});
    EXPECT_RANGES(s, {0, 443}, {450, 451});
    scored_open(s, &m, &(DraftVocab){N_VOCAB - 1, always, 8});
    EXPECT_RANGES(s, {0, N_VOCAB});
    scored_open(s, &m, &(DraftVocab){N_VOCAB, NULL, 0});
    EXPECT_RANGES(s, {0, N_VOCAB});
    scored_open(s, &m, &(DraftVocab){1 << 30, NULL, 0});
    EXPECT_RANGES(s, {0, N_VOCAB});

    m.lm_head.type = WEIGHT_FP8;
    scored_open(s, &m, &(DraftVocab){100, always, 8});
    EXPECT_RANGES(s, {0, 100}, {384, 451});
    scored_open(s, &m, &(DraftVocab){384, always, 8});
    EXPECT_RANGES(s, {0, 451});
    scored_open(s, &m, &(DraftVocab){385, always, 0});
    EXPECT_RANGES(s, {0, 451});

    m.lm_head.type = WEIGHT_INT8;
    scored_open(s, &m, &(DraftVocab){100, always, 8});
    EXPECT_RANGES(s, {0, 100}, {432, 443}, {448, 451});
}

/* Runs that are too many are joined where little lies between them. */
static void test_many_runs(void **state)
{
    (void)state;
    Scored of, *s = &of;
    const int32_t apart[] = {50, 100, 150, 200, 210, 250, 300, 350, 352, 400, 425};
    Model m = model_of(ref, (Weight){.type = WEIGHT_F32, .rows = N_VOCAB, .cols = DIM}, -1);
    scored_open(s, &m, &(DraftVocab){20, apart, 7});
    EXPECT_RANGES(s, {0, 20}, {50, 51}, {100, 101}, {150, 151}, {200, 201}, {210, 211}, {250, 251},
                  {300, 301});
    scored_open(s, &m, &(DraftVocab){20, apart, 11});
    EXPECT_RANGES(s, {0, 51}, {100, 101}, {150, 151}, {200, 211}, {250, 251}, {300, 301},
                  {350, 353}, {400, 426});
    Rng r = rng_new(8);
    for (int round = 0; round < 2000; round++) {
        int32_t always[40];
        DraftVocab v = {1 + rng_int(&r, N_VOCAB), always, rng_int(&r, 41)};
        static const WeightType types[] = {WEIGHT_BF16, WEIGHT_FP8, WEIGHT_INT8};
        m.lm_head.type = types[rng_int(&r, 3)];
        for (int i = 0; i < v.n_always; i++)
            always[i] = rng_int(&r, N_VOCAB);
        scored_open(s, &m, &v);
        check_ranges(s);
        for (int id = 0; id < v.n_first && id < N_VOCAB; id++)
            assert_int_equal(scored(s, id), 1);
        for (int i = 0; i < v.n_always; i++)
            assert_int_equal(scored(s, always[i]), 1);
    }
}

/* Twice into the same memory, as step after step does it. */
static void check_logits(int b, Rng *r, WeightType type, DraftVocab v)
{
    Weight w = random_weight(r, type, N_VOCAB, DIM);
    Model m = model_of(backend[b], w, 450);
    Scored all, some;
    size_t size = (size_t)N * N_VOCAB;
    float *whole = floats(size), *few = floats(size);
    scored_open(&all, &m, &(DraftVocab){0});
    scored_open(&some, &m, &v);
    assert_true(all.n_ids == N_VOCAB && some.n_ids < N_VOCAB);
    scored_init_logits(&some, N, few);
    for (int round = 0; round < 2; round++) {
        float *x = random_floats(r, (size_t)N * DIM, 1);
        scored_logits(&all, N, x, whole);
        scored_logits(&some, N, x, few);
        for (size_t i = 0; i < size; i++) {
            float want = scored(&some, (int)(i % N_VOCAB)) ? whole[i] : -INFINITY;
            if (!same_bits(about("scored_logits", b), &few[i], &want, 1, r->seed))
                fail_msg("row %zu, id %zu", i / N_VOCAB, i % N_VOCAB);
        }
        free(x);
    }
    free(whole), free(few);
    free_weight(&w);
}

static void test_logits(void **state)
{
    (void)state;
    static const WeightType types[] = {WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8, WEIGHT_INT8};
    const int32_t always[] = {301, 302, 303, 440};
    for (int b = 0; b < n_backends; b++)
        for (int t = 0; t < 4 && has_type(b, types[t]); t++) {
            Rng r = rng_new(60 + (uint64_t)t);
            check_logits(b, &r, types[t], (DraftVocab){128, always, 4});
            check_logits(b, &r, types[t], (DraftVocab){1, always, 1});
        }
}

/* What a range's rows become by the definition. */
static Weight narrow_rows(const Weight *w, WeightType to, IdRange r)
{
    WeightType from = weight_is_bf16(w->type) ? WEIGHT_BF16 : WEIGHT_F32;
    const char *data = (const char *)w->data + r.first * weight_row_bytes(w);
    float *wide = floats((size_t)w->cols * (size_t)(r.end - r.first));
    for (int i = r.first; i < r.end && w->type == WEIGHT_INT8; i++)
        for (int c = 0; c < w->cols; c++)
            wide[(i - r.first) * w->cols + c] = weight_int_at(w, i, c);
    if (w->type == WEIGHT_INT8) data = (const char *)wide;
    Weight made = {.type = to, .rows = r.end - r.first, .cols = w->cols};
    void *code = malloc((size_t)weight_data_bytes(&made));
    float *scale = floats((size_t)weight_n_scales(&made));
    QuantiseInt a = {data, from, to, made.rows, made.cols, code, scale};
    assert_non_null(code);
    if (to == WEIGHT_FP8)
        assert_int_equal(quantise_fp8((const void *)data, from, made.rows, made.cols, code, scale),
                         0);
    else
        assert_int_equal(ref->quantise_int(ref, &a), 0);
    free(wide);
    made.data = code, made.scale = scale;
    return made;
}

/*
 * Logits of copies are products with rows that the definition has made. Every other backend has
 * them made in memory that is not the host's.
 */
static void check_copies(int b, Rng *r, WeightType type, QuantType quant, WeightType to)
{
    const int32_t always[] = {7, 311, 312, 313, 410};
    Error err = {0};
    Weight w = random_weight(r, type, N_VOCAB, DIM);
    Model m = model_of(backend[b], w, 450);
    Scored s;
    size_t size = (size_t)N * N_VOCAB;
    float *got = floats(size), *want = floats(size), *x = random_floats(r, (size_t)N * DIM, 1);
    double bytes = 0;
    m.options.draft_quant = quant;
    scored_open(&s, &m, &(DraftVocab){280, always, 5});
    assert_true(scored_copy_bytes(&s) > 0);
    backend[b]->is_host = b % 2;
    assert_int_equal(scored_copy(&s, &err), 0);
    backend[b]->is_host = 1;
    scored_init_logits(&s, N, got);
    scored_init_logits(&s, N, want);
    scored_logits(&s, N, x, got);
    assert_true(s.n_ranges > 2);
    for (int i = 0; i < s.n_ranges; i++) {
        Weight made = narrow_rows(&w, to, s.range[i]);
        Linear a = {.n = N, .n_products = 1, .x = x, .x_stride = DIM};
        a.product[0] = (LinearProduct){&made, want + s.range[i].first, N_VOCAB};
        assert_int_equal(s.rows[i].type, to);
        backend[b]->linear(backend[b], &a);
        bytes += weight_bytes(&made);
        free_weight(&made);
    }
    assert_true(scored_bytes(&s) == bytes);
    if (!same_bits(about("scored_copy", b), got, want, size, r->seed)) fail();
    scored_close(&s);
    free(got), free(want), free(x);
    free_weight(&w);
}

static void test_copies(void **state)
{
    (void)state;
    static const WeightType wide[] = {WEIGHT_F32, WEIGHT_BF16, WEIGHT_BF16_BOTH};
    Rng r = rng_new(70);
    for (int b = 0; b < n_backends; b++)
        for (int t = 0; t < 3 && has_type(b, wide[t]); t++) {
            check_copies(b, &r, wide[t], QUANT_FP8, WEIGHT_FP8);
            if (!has_type(b, WEIGHT_INT8)) continue;
            check_copies(b, &r, wide[t], QUANT_Q8, WEIGHT_INT8);
            check_copies(b, &r, wide[t], QUANT_Q4, WEIGHT_INT4);
            check_copies(b, &r, WEIGHT_INT8, QUANT_Q4, WEIGHT_INT4);
        }
}

/* Rows stay the matrix's where all ids are scored, or it is narrow, or nobody asks. */
static void test_no_copies(void **state)
{
    (void)state;
    static const struct {
        WeightType type;
        QuantType quant;
        int n_first;
    } cases[] = {{WEIGHT_BF16, QUANT_Q8, 0},   {WEIGHT_BF16, QUANT_NONE, 100},
                 {WEIGHT_INT8, QUANT_Q8, 100}, {WEIGHT_INT8, QUANT_NONE, 100},
                 {WEIGHT_INT4, QUANT_Q8, 100}, {WEIGHT_FP8, QUANT_Q8, 100}};
    Rng r = rng_new(71);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error err = {0};
        Weight w = random_weight(&r, cases[i].type, N_VOCAB, DIM);
        Model m = model_of(ref, w, 450);
        Scored s;
        m.options.draft_quant = cases[i].quant;
        scored_open(&s, &m, &(DraftVocab){.n_first = cases[i].n_first});
        assert_true(scored_copy_bytes(&s) == 0);
        assert_int_equal(scored_copy(&s, &err), 0);
        assert_null(s.copies);
        assert_ptr_equal(s.rows[0].data, w.data);
        scored_close(&s);
        free_weight(&w);
    }
}

static void test_not_finite(void **state)
{
    (void)state;
    static const QuantType quants[] = {QUANT_FP8, QUANT_Q8, QUANT_Q4};
    Rng r = rng_new(72);
    for (int i = 0; i < 3; i++) {
        Error err = {0};
        Weight w = random_weight(&r, WEIGHT_F32, N_VOCAB, DIM);
        Model m = model_of(ref, w, 450);
        Scored s;
        char says[128];
        ((float *)(uintptr_t)w.data)[450 * DIM + 3] = NAN;
        m.options.draft_quant = quants[i];
        scored_open(&s, &m, &(DraftVocab){.n_first = 100});
        ref->is_host = quants[i] != QUANT_FP8;
        assert_int_equal(scored_copy(&s, &err), -1);
        ref->is_host = 1;
        snprintf(says, sizeof says,
                 "cannot make %s of the LM head's rows for drafts: a weight of ids 450 to 450 is "
                 "not finite",
                 quant_name(quants[i]));
        if (!strstr(err.msg, says)) fail_msg("'%s' should say \"%s\"", err.msg, says);
        scored_close(&s);
        free_weight(&w);
    }
}

/* With all ids nobody waits for a -inf: the memory stays as it is. */
static void test_all_ids(void **state)
{
    (void)state;
    float logits[2 * N_VOCAB] = {0};
    Model m = model_of(ref, (Weight){.type = WEIGHT_F32, .rows = N_VOCAB, .cols = DIM}, 3);
    Scored all;
    scored_open(&all, &m, &(DraftVocab){0});
    scored_init_logits(&all, 2, logits);
    for (int i = 0; i < 2 * N_VOCAB; i++)
        assert_true(logits[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),     cmocka_unit_test(test_many_runs),
        cmocka_unit_test(test_logits),     cmocka_unit_test(test_all_ids),
        cmocka_unit_test(test_copies),     cmocka_unit_test(test_no_copies),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
