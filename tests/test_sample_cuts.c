/*
 * test_sample_cuts.c: the GPU's sampler against the definition, where its structure could show.
 *
 * It works in tiles of 2,048 ids, looks for cuts in bins and lists up to 4,096 ids of a bin. So:
 * vocabularies around those sizes, ties across tiles, rows that fall into one bin, and each
 * combination of filters. Ids must be those of the definition: seeds are such that no sums and no
 * two shares are closer than the arithmetic of either.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "tests/mirror.h"
#include "tests/near.h"

enum { MAX_VOCAB = 248320, TILE = 2048 };

/* All tests run on each of these, which is gpu then. */
static Backend *ref, *gpu, *gpus[MAX_GPU_BACKENDS];

/* temperature, top-k, top-p, min-p, presence, frequency, repetition, seed, choice */
static const SampleParams cases[] = {
    {0, 0, 1, 0, 0, 0, 1, 1, 0},
    {0.9f, 1, 0.5f, 0, 0, 0, 1, 2, 0},
    {1, 0, 1, 0, 0, 0, 1, 3, 0},
    {0.7f, 20, 1, 0, 0, 0, 1, 4, 1},
    {0.7f, 20, 0.8f, 0, 0, 0, 1, 5, 0},
    {1, 20, 0.999f, 0.02f, 0, 0, 1, 6, 0},
    {1, 0, 0.95f, 0, 0, 0, 1, 7, 2},
    {1, 0, 0.5f, 0.01f, 0, 0, 1, 8, 0},
    {1, 0, 1e-6f, 0, 0, 0, 1, 9, 0},
    {1, 0, 0, 0, 0, 0, 1, 10, 0},
    {1, 0, 0.999999f, 0, 0, 0, 1, 11, 0},
    {1, 0, 0.99999994f, 0, 0, 0, 1, 12, 0}, /* the largest below 1 */
    {1, 0, 1, 0.05f, 0, 0, 1, 13, 0},
    {1, 0, 1, 1, 0, 0, 1, 14, 0},
    {1.3f, 1000, 1, 0, 0, 0, 1, 15, 0},
    {1.3f, 1000, 0.9f, 0, 0, 0, 1, 16, 0},
    {2, 5000, 0.7f, 0.001f, 0, 0, 1, 17, 0},
    {1, 1 << 30, 0.9f, 0, 0, 0, 1, 18, 0}, /* top-k beyond any vocabulary */
    {1, 2, 1, 0, 0, 0, 1, 19, 0},
    {0.02f, 0, 0.9f, 0, 0, 0, 1, 20, 0},
    {30, 50, 0.9f, 0, 0, 0, 1, 21, 0},
    {1e30f, 0, 0.3f, 0, 0, 0, 1, 22, 0}, /* all in one bin, masses equal */
};

enum { CASES = sizeof cases / sizeof *cases };

/* What fills a row. */
typedef enum {
    RANDOM,
    EQUAL,
    TWO_VALUES,
    CLOSE,
    ONE,
    FEW,
    SIGNED_ZERO,
    FALLING,
    SHAPES,
    RISING
} Shape;

static float logit_of(Rng *r, Shape shape, int id, int n_vocab)
{
    switch (shape) {
    case EQUAL:
        return -3.25f;
    case TWO_VALUES:
        return rng_int(r, 3) ? 1 : 2;
    case CLOSE: /* all in the first bin */
        return 7 + 0.05f * rng_float(r);
    case ONE:
        return id == n_vocab * 2 / 3 ? -1e30f : -INFINITY;
    case FEW: /* at the ends of tiles, with ties */
        return id % TILE < 2 || id % TILE == TILE - 1 ? (float)(id % 3) : -INFINITY;
    case SIGNED_ZERO:
        return id % 2 ? 0.0f : -0.0f;
    case RISING:
        return 0.01f * (float)id;
    case FALLING:
        return -0.01f * (float)id;
    default:
        return 12 * rng_float(r) * rng_float(r);
    }
}

static float *fill(uint64_t seed, Shape shape, int n, int n_vocab)
{
    Rng r = rng_new(seed);
    float *x = calloc((size_t)n * (size_t)n_vocab, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < n * n_vocab; i++)
        x[i] = logit_of(&r, shape, i % n_vocab, n_vocab);
    return x;
}

typedef struct {
    int32_t id[CASES * MAX_TOP];
    float logp[CASES * MAX_TOP];
    uint8_t bad[CASES];
} Result;

/* Samples n rows of x, row i with params[i]. */
static void run(Backend *be, float *x, int n_vocab, int n_top, const SampleParams *params, int n,
                Result *res)
{
    SampleRow row[CASES] = {0};
    for (int i = 0; i < n; i++) {
        row[i].params = params[i];
        row[i].pos = 1000 + (int)params[i].seed;
    }
    memset(res, 0x55, sizeof *res);
    be->sample(be, &(Sample){n, n_vocab, n_top, x, NULL, row, res->id, res->logp, res->bad, 0});
}

static void check_same(const Result *got, const Result *want, int n, int n_top, const char *what)
{
    assert_memory_equal(got->bad, want->bad, (size_t)n);
    for (int j = 0; j < n * n_top; j++) {
        if (got->id[j] != want->id[j])
            fail_msg("%s: candidate %d of case %d is %d, expected %d", what, j % n_top, j / n_top,
                     got->id[j], want->id[j]);
        if (want->id[j] < 0)
            assert_true(got->logp[j] == -INFINITY);
        else
            assert_true(near_all(what, &got->logp[j], &want->logp[j], 1, 1e-6, 4e-6, (uint64_t)j));
    }
}

static void check_shape(Shape shape, int n_vocab, int n_top)
{
    static Result got, want, alone;
    char what[80];
    float *x = fill((uint64_t)shape, shape, CASES, n_vocab);
    float *before = fill((uint64_t)shape, shape, CASES, n_vocab);
    snprintf(what, sizeof what, "shape %d of %d ids, %d best", (int)shape, n_vocab, n_top);
    run(ref, x, n_vocab, n_top, cases, CASES, &want);
    run(gpu, x, n_vocab, n_top, cases, CASES, &got);
    assert_memory_equal(x, before, (size_t)CASES * (size_t)n_vocab * sizeof *x);
    check_same(&got, &want, CASES, n_top, what);
    for (int i = 0; i < CASES && n_vocab > 2 * TILE; i++) {
        run(gpu, x + (size_t)i * (size_t)n_vocab, n_vocab, n_top, cases + i, 1, &alone);
        size_t at = (size_t)i * (size_t)n_top, bytes = (size_t)n_top * sizeof(float);
        assert_memory_equal(alone.id, got.id + at, bytes);
        assert_memory_equal(alone.logp, got.logp + at, bytes);
    }
    free(x), free(before);
}

static void test_shapes(void **state)
{
    (void)state;
    static const int vocab[] = {1, TILE - 1, TILE, 2 * TILE + 3};
    for (int s = 0; s < SHAPES; s++)
        for (size_t v = 0; v < sizeof vocab / sizeof *vocab; v++)
            check_shape((Shape)s, vocab[v], v % 2 ? 1 : 3);
}

/* Half of the mass to the last bit; one key more than a block has threads, the best one last. */
static void test_short_lists(void **state)
{
    (void)state;
    check_shape(EQUAL, 6, 3);
    check_shape(RISING, 257, 3);
}

/* More ids in one bin than a list holds, and no multiple of a tile. */
static void test_long_lists(void **state)
{
    (void)state;
    check_shape(CLOSE, 5 * TILE + 5, 2);
    check_shape(EQUAL, 5 * TILE + 5, 1);
    check_shape(TWO_VALUES, 5 * TILE + 8, MAX_TOP);
    check_shape(RANDOM, 5 * TILE + 8, MAX_TOP);
}

/* A real vocabulary: more tiles than candidates asked for, and all of the scratch. */
static void test_real_vocabulary(void **state)
{
    (void)state;
    static Result got, want;
    static const int some[] = {0, 2, 4, 6, 16};
    float *x = fill(99, RANDOM, 1, MAX_VOCAB);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        run(ref, x, MAX_VOCAB, 4, cases + some[i], 1, &want);
        run(gpu, x, MAX_VOCAB, 4, cases + some[i], 1, &got);
        check_same(&got, &want, 1, 4, "real vocabulary");
    }
    free(x);
}

/* ---- processors at the borders of tiles ---- */

static void test_borders(void **state)
{
    (void)state;
    enum { VOCAB = 2 * TILE + 70 };
    static const int32_t at[] = {0, TILE - 1, TILE, 2 * TILE - 1, 2 * TILE, VOCAB - 1};
    static const int32_t bias_id[] = {TILE, TILE - 1, TILE, VOCAB - 1, 0, TILE};
    static const float bias[] = {0.3f, 9, 1e7f, 10, 8, -1e7f}; /* in this order, or it rounds */
    static const int32_t path[] = {TILE, VOCAB - 1, TILE, 0, TILE - 1, TILE - 1, TILE};
    static const int32_t ban[] = {VOCAB - 1, TILE - 1};
    static uint32_t counts[VOCAB];
    static Result got, want;
    float *x = fill(5, RANDOM, 1, VOCAB);
    counts[TILE - 1] = 0x80000002u, counts[2 * TILE] = 0x80000000u, counts[TILE] = 1;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        uint64_t allowed[VOCAB / 64 + 1] = {0};
        allowed[at[i] / 64] = (uint64_t)1 << at[i] % 64;
        for (int only = 0; only < 3; only++) /* in the set of all rows, or in this one's own */
            for (int c = 0; c < CASES; c++) {
                SampleRow row = {.params = cases[c],
                                 .pos = 9,
                                 .counts = counts,
                                 .path = path,
                                 .n_path = 7,
                                 .n_bias = 6,
                                 .bias_id = bias_id,
                                 .bias = bias,
                                 .allowed = only == 2 ? allowed : NULL,
                                 .ban = ban};
                row.params.presence = 0.1f, row.params.frequency = 0.7f;
                row.params.repetition = 1.1f;
                row.n_ban = (int)i % 3;
                Sample a = {1,    VOCAB,   8,         x,        only == 1 ? allowed : NULL,
                            &row, want.id, want.logp, want.bad, 0};
                ref->sample(ref, &a);
                a.id = got.id, a.logp = got.logp, a.bad = got.bad;
                gpu->sample(gpu, &a);
                check_same(&got, &want, 1, 8, "borders");
            }
    }
    free(x);
}

/* What makes a row bad, wherever it is and even where it must not be chosen; company is not. */
static void test_bad_rows(void **state)
{
    (void)state;
    enum { VOCAB = TILE + 11, N = 4 }; /* a row ends one float before a multiple of 4 */
    static const float wrong[] = {NAN, INFINITY, -NAN};
    static const int32_t at[] = {0, TILE - 1, TILE, VOCAB - 1};
    static const float big[] = {-1, INFINITY};
    static Result got, want;
    uint64_t allowed[VOCAB / 64 + 1] = {0};
    allowed[0] = 0x70;
    for (int k = 0; k < 24; k++) {
        float *x = fill(6, RANDOM, N, VOCAB);
        SampleRow row[N] = {{.pos = 1}, {.pos = 2}, {.pos = 3}, {.pos = 4}};
        for (int i = 0; i < N; i++)
            row[i].params = cases[(k + i) % CASES];
        int32_t id = at[k % 4];
        x[VOCAB + id] = wrong[k % 3];
        int32_t bias_id[] = {id ? 0 : 1, id};
        row[2].bias_id = bias_id, row[2].bias = big, row[2].n_bias = k % 3;
        row[2].ban = &id, row[2].n_ban = k / 4 % 2;
        row[3].ban = &id, row[3].n_ban = 1;
        if (k % 5 == 0)
            for (int v = 0; v < VOCAB; v++)
                x[3 * VOCAB + v] = v == id ? 1 : -INFINITY;
        Sample a = {N, VOCAB, 2, x, k % 2 ? allowed : NULL, row, want.id, want.logp, want.bad, 0};
        ref->sample(ref, &a);
        a.id = got.id, a.logp = got.logp, a.bad = got.bad;
        gpu->sample(gpu, &a);
        assert_int_equal(want.bad[1], 1);
        check_same(&got, &want, N, 2, "bad rows");
        free(x);
    }
}

/* ---- log-probabilities ---- */

static void check_logprobs(Shape shape, int n, int n_vocab, int n_top)
{
    enum { MAX_N = 40 };
    static float chosen[2][MAX_N], logp[2][MAX_N * MAX_TOP], alone_logp[MAX_TOP];
    static int32_t token[MAX_N], rank[2][MAX_N], id[2][MAX_N * MAX_TOP], alone_id[MAX_TOP];
    Rng r = rng_new(8);
    float *x = fill(7, shape, n, n_vocab), alone;
    int32_t alone_rank;
    for (int i = 0; i < n; i++)
        token[i] = i % 3 ? rng_int(&r, n_vocab) : n_vocab - 1 - i % 2 * (n_vocab - 1);
    for (int b = 0; b < 2; b++)
        (b ? gpu : ref)
            ->token_logprobs(b ? gpu : ref, &(TokenLogprobs){n, n_vocab, n_top, x, token, chosen[b],
                                                             rank[b], id[b], logp[b]});
    assert_memory_equal(rank[1], rank[0], (size_t)n * sizeof rank[0][0]);
    assert_memory_equal(id[1], id[0], (size_t)(n * n_top) * sizeof id[0][0]);
    for (int i = 0; i < n; i++) {
        size_t top = (size_t)n_top * sizeof(float), at = (size_t)i * (size_t)n_top;
        if (chosen[0][i] > -INFINITY || chosen[1][i] > -INFINITY)
            assert_true(near_all("chosen", &chosen[1][i], &chosen[0][i], 1, 2e-7, 2e-6, 0));
        for (size_t j = at; j < at + (size_t)n_top; j++)
            if (logp[0][j] > -INFINITY || logp[1][j] > -INFINITY)
                assert_true(near_all("top", &logp[1][j], &logp[0][j], 1, 2e-7, 2e-6, 0));
        gpu->token_logprobs(gpu,
                            &(TokenLogprobs){1, n_vocab, n_top, x + (size_t)i * (size_t)n_vocab,
                                             token + i, &alone, &alone_rank, alone_id, alone_logp});
        assert_memory_equal(&alone, &chosen[1][i], sizeof alone);
        assert_int_equal(alone_rank, rank[1][i]);
        assert_memory_equal(alone_id, id[1] + at, top);
        assert_memory_equal(alone_logp, logp[1] + at, top);
    }
    free(x);
}

static void test_logprobs(void **state)
{
    (void)state;
    static const int vocab[] = {1, 7, TILE, TILE + 1, 5 * TILE + 5};
    for (int s = 0; s < SHAPES; s++)
        for (size_t v = 0; v < sizeof vocab / sizeof *vocab; v++)
            check_logprobs((Shape)s, 2, vocab[v], v == 2 ? 0 : 20);
    check_logprobs(RANDOM, 40, 5 * TILE + 5, 3); /* more rows than the scratch holds */
    check_logprobs(TWO_VALUES, 1, 70 * TILE, MAX_TOP);
    check_logprobs(RANDOM, 2, 5 * TILE + 4, MAX_TOP);
    check_logprobs(FALLING, 1, 5 * TILE + 4, MAX_TOP); /* more than a list holds */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_short_lists),
        cmocka_unit_test(test_long_lists), cmocka_unit_test(test_real_vocabulary),
        cmocka_unit_test(test_borders),    cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_logprobs),
    };
    int n_gpus = mirror_open_gpus(gpus), failed = !n_gpus; /* nothing to test is no success */
    ref = backend_ref_open(MAX_VOCAB);
    for (int i = 0; i < n_gpus; i++) {
        gpu = gpus[i];
        printf("sample cuts on %s\n", gpu->isa);
        failed |= cmocka_run_group_tests_name("sample cuts", tests, NULL, NULL);
        gpu->close(gpu);
    }
    ref->close(ref);
    return failed;
}
