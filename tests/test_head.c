/*
 * test_head.c: the ids that a draft head scores, and that their logits are those of the whole
 * matrix; the others' stay -inf. What the head computes before is in test_golden.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/head.h"
#include "tests/backends.h"

enum { DIM = 200, N_VOCAB = 451, N = 3 };

/* A head of which only the ids that it scores and its matrix count. */
typedef struct {
    Model model;
    Forward f;
    Head head;
} Case;

static void case_open(Case *c, Backend *be, Weight lm_head, int eos)
{
    memset(c, 0, sizeof *c);
    c->model.backend = be;
    c->model.config.n_vocab = lm_head.rows;
    c->model.config.n_eos = eos >= 0;
    c->model.config.eos[0] = eos;
    c->model.lm_head = lm_head;
    c->f.model = &c->model;
    c->head.f = &c->f;
}

static int scored(const Head *h, int id)
{
    int n = 0;
    for (int i = 0; i < h->n_ranges; i++)
        n += id >= h->range[i].first && id < h->range[i].end;
    return n;
}

/* Ranges ascend, are apart and add up. */
static void check_ranges(const Head *h)
{
    WeightType type = h->f->model->lm_head.type;
    int total = 0, before = -1, step = type == WEIGHT_FP8 ? 128 : type == WEIGHT_INT8 ? 16 : 1;
    assert_true(h->n_ranges >= 1 && h->n_ranges <= MAX_HEAD_RANGES);
    for (int i = 0; i < h->n_ranges; i++) {
        assert_true(h->range[i].first > before && h->range[i].end > h->range[i].first);
        assert_int_equal(h->range[i].first % step, 0);
        before = h->range[i].end;
        total += h->range[i].end - h->range[i].first;
    }
    assert_true(before <= h->f->model->config.n_vocab);
    assert_int_equal(h->n_scored, total);
}

static void expect_ranges(const Head *h, const IdRange *want, int n)
{
    check_ranges(h);
    assert_int_equal(h->n_ranges, n);
    assert_memory_equal(h->range, want, (size_t)n * sizeof *want);
}

#define EXPECT_RANGES(h, ...)                                                                      \
    expect_ranges(h, (const IdRange[]){__VA_ARGS__},                                               \
                  (int)(sizeof((const IdRange[]){__VA_ARGS__}) / sizeof(IdRange)))

static void test_ranges(void **state)
{
    (void)state;
    Case c;
    const int32_t always[] = {440, 442, 441, -1, N_VOCAB, 7, 1 << 30, 441};
    case_open(&c, ref, (Weight){.type = WEIGHT_BF16, .rows = N_VOCAB, .cols = DIM}, 450);
    Head *h = &c.head;
    head_set_vocab(h, &(DraftVocab){0});
    EXPECT_RANGES(h, {0, N_VOCAB});
    head_set_vocab(h, &(DraftVocab){.always = always, .n_always = 8});
    EXPECT_RANGES(h, {0, N_VOCAB});
    head_set_vocab(h, &(DraftVocab){.n_first = 100});
    EXPECT_RANGES(h, {0, 100}, {450, 451});
    head_set_vocab(h, &(DraftVocab){100, always, 8});
    EXPECT_RANGES(h, {0, 100}, {440, 443}, {450, 451});
    head_set_vocab(h, &(DraftVocab){1, always, 8});
    EXPECT_RANGES(h, {0, 1}, {7, 8}, {440, 443}, {450, 451});
    head_set_vocab(h, &(DraftVocab){440, always, 8});
    EXPECT_RANGES(h, {0, 443}, {450, 451});
    head_set_vocab(h, &(DraftVocab){N_VOCAB - 1, always, 8});
    EXPECT_RANGES(h, {0, N_VOCAB});
    head_set_vocab(h, &(DraftVocab){N_VOCAB, NULL, 0});
    EXPECT_RANGES(h, {0, N_VOCAB});
    head_set_vocab(h, &(DraftVocab){1 << 30, NULL, 0});
    EXPECT_RANGES(h, {0, N_VOCAB});

    c.model.lm_head.type = WEIGHT_FP8;
    head_set_vocab(h, &(DraftVocab){100, always, 8});
    EXPECT_RANGES(h, {0, 100}, {384, 451});
    head_set_vocab(h, &(DraftVocab){384, always, 8});
    EXPECT_RANGES(h, {0, 451});
    head_set_vocab(h, &(DraftVocab){385, always, 0});
    EXPECT_RANGES(h, {0, 451});

    c.model.lm_head.type = WEIGHT_INT8;
    head_set_vocab(h, &(DraftVocab){100, always, 8});
    EXPECT_RANGES(h, {0, 100}, {432, 443}, {448, 451});
}

/* Runs that are too many are joined where little lies between them. */
static void test_many_runs(void **state)
{
    (void)state;
    Case c;
    const int32_t apart[] = {50, 100, 150, 200, 210, 250, 300, 350, 352, 400, 425};
    case_open(&c, ref, (Weight){.type = WEIGHT_F32, .rows = N_VOCAB, .cols = DIM}, -1);
    Head *h = &c.head;
    head_set_vocab(h, &(DraftVocab){20, apart, 7});
    EXPECT_RANGES(h, {0, 20}, {50, 51}, {100, 101}, {150, 151}, {200, 201}, {210, 211}, {250, 251},
                  {300, 301});
    head_set_vocab(h, &(DraftVocab){20, apart, 11});
    EXPECT_RANGES(h, {0, 51}, {100, 101}, {150, 151}, {200, 211}, {250, 251}, {300, 301},
                  {350, 353}, {400, 426});
    Rng r = rng_new(8);
    for (int round = 0; round < 2000; round++) {
        int32_t always[40];
        DraftVocab v = {1 + rng_int(&r, N_VOCAB), always, rng_int(&r, 41)};
        static const WeightType types[] = {WEIGHT_BF16, WEIGHT_FP8, WEIGHT_INT8};
        c.model.lm_head.type = types[rng_int(&r, 3)];
        for (int i = 0; i < v.n_always; i++)
            always[i] = rng_int(&r, N_VOCAB);
        head_set_vocab(h, &v);
        check_ranges(h);
        for (int id = 0; id < v.n_first && id < N_VOCAB; id++)
            assert_int_equal(scored(h, id), 1);
        for (int i = 0; i < v.n_always; i++)
            assert_int_equal(scored(h, always[i]), 1);
    }
}

/* Twice into the same memory, as step after step does it. */
static void check_logits(int b, Rng *r, WeightType type, DraftVocab v)
{
    Case c;
    Weight w = random_weight(r, type, N_VOCAB, DIM);
    size_t size = (size_t)N * N_VOCAB;
    float *whole = floats(size), *few = floats(size);
    case_open(&c, backend[b], w, 450);
    for (int round = 0; round < 2; round++) {
        float *x = random_floats(r, (size_t)N * DIM, 1);
        head_set_vocab(&c.head, &(DraftVocab){0});
        head_logits(&c.head, N, x, whole);
        head_set_vocab(&c.head, &v);
        assert_true(c.head.n_scored < N_VOCAB);
        if (round == 0) head_init_logits(&c.head, N, few);
        head_logits(&c.head, N, x, few);
        for (size_t i = 0; i < size; i++) {
            float want = scored(&c.head, (int)(i % N_VOCAB)) ? whole[i] : -INFINITY;
            if (!same_bits(about("head_logits", b), &few[i], &want, 1, r->seed))
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

/* With all ids nobody waits for a -inf: the memory stays as it is. */
static void test_all_ids(void **state)
{
    (void)state;
    Case c;
    float logits[2 * N_VOCAB] = {0};
    case_open(&c, ref, (Weight){.type = WEIGHT_F32, .rows = N_VOCAB, .cols = DIM}, 3);
    head_set_vocab(&c.head, &(DraftVocab){0});
    head_init_logits(&c.head, 2, logits);
    for (int i = 0; i < 2 * N_VOCAB; i++)
        assert_true(logits[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_many_runs),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_all_ids),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
