/*
 * test_sample.c: the sampler against the law it claims, and against itself.
 *
 * The law: draws over many positions and choices against probabilities enumerated here from the
 * definition, by chi-square. Seeds are fixed, so a p-value below 1e-6 is a fault and not bad luck.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/backend.h"
#include "kernels/philox.h"
#include "tests/isas.h"
#include "tests/mirror.h"
#include "tests/near.h"

enum { MAX_VOCAB = 248320, SMALL = 12, MAX_BACKENDS = 1 + 2 * N_CPU_ISAS + 2 };

/*
 * "ref", then each instruction set with 1 thread and with 3, then the GPU's kernels on the host,
 * last the GPU. With gpu_only() only ref and the GPU.
 */
static Backend *backend[MAX_BACKENDS];
static int n_backends;
static Backend *best; /* for many draws: the best of the CPU, or the GPU where that is all */

static int open_backends(void **state)
{
    (void)state;
    backend[n_backends++] = backend_ref_open(MAX_VOCAB);
    for (int i = 0; i < N_CPU_ISAS && !gpu_only(); i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            Backend *be = backend_cpu_open(threads, cpu_isas[i], MAX_VOCAB, NULL);
            if (be) backend[n_backends++] = be;
        }
    best = backend[n_backends - 1];
    n_backends += mirror_open_gpus(backend + n_backends);
    if (gpu_only()) best = backend[n_backends - 1];
    return n_backends > 1 ? 0 : -1; /* nothing to test is no success */
}

static int close_backends(void **state)
{
    (void)state;
    for (int b = 0; b < n_backends; b++)
        backend[b]->close(backend[b]);
    return 0;
}

static const SampleParams plain_params = {.temperature = 1, .top_p = 1, .repetition = 1};

/* ---- noise ---- */

static void test_philox_known_answers(void **state)
{
    (void)state;
    /* Random123's kat_vectors for philox4x32-10 */
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t ctr[4];
        memcpy(ctr, kat[i], sizeof ctr);
        philox4x32(ctr, kat[i][4], kat[i][5]);
        assert_memory_equal(ctr, kat[i] + 6, sizeof ctr);
    }
    uint64_t seed = (uint64_t)0x299f31d0 << 32 | 0xa4093822;
    uint32_t ctr[4] = {7, 248319, 3, 0};
    philox4x32(ctr, 0xa4093822, 0x299f31d0);
    assert_int_equal(philox_word(seed, 7, 248319, 3), ctr[0]);
}

static void check_exponential(uint32_t h)
{
    float u = philox_uniform(h), e = philox_exponential(u);
    double want = -log1p(-(double)u);
    assert_true(u > 0 && u < 1 && e > 0);
    assert_true(fabs((double)u - ((double)h + 0.5) * 0x1p-32) <= 0x1p-24);
    if (fabs((double)e - want) > 2 * 0x1p-23 * want)
        fail_msg("E of %08x is %.9g, expected %.9g", h, (double)e, want);
}

static void test_exponential(void **state)
{
    (void)state;
    static const uint32_t ends[] = {0,          1,          2,          0x4afb0ccc, 0x4afb0ccd,
                                    0x7fffffff, 0x80000000, 0xffffff00, 0xffffff7f, 0xffffffff};
    Rng r = rng_new(1);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        check_exponential(ends[i]);
    for (int i = 0; i < 300000; i++) {
        uint32_t h = (uint32_t)rng_next(&r);
        check_exponential(h);
        check_exponential(h >> rng_int(&r, 32)); /* small ones: those that win */
    }
}

/* ---- chi-square ---- */

/* The chance of a chi-square above x with n degrees of freedom (upper incomplete gamma). */
static double chi_square_tail(double x, int n)
{
    double a = n / 2.0, y = x / 2, front = exp(a * log(y) - y - lgamma(a));
    if (x <= 0) return 1;
    if (y < a + 1) {
        double term = 1 / a, sum = term;
        for (int k = 1; k < 1000; k++)
            sum += term *= y / (a + k);
        return 1 - sum * front;
    }
    double b = y + 1 - a, c = 1e300, d = 1 / b, h = d; /* Lentz's continued fraction */
    for (int k = 1; k < 1000; k++) {
        double step = -k * (k - a);
        b += 2;
        d = 1 / (step * d + b);
        c = b + step / c;
        h *= d * c;
    }
    return front * h;
}

static void test_chi_square_tail(void **state)
{
    (void)state;
    assert_true(fabs(chi_square_tail(3.841459, 1) - 0.05) < 1e-6);
    assert_true(fabs(chi_square_tail(18.307038, 10) - 0.05) < 1e-6);
    assert_true(fabs(chi_square_tail(2.0, 2) - exp(-1)) < 1e-9);
    assert_true(fabs(chi_square_tail(40.0, 4) / 4.32842e-8 - 1) < 1e-4);
}

/* Counts against probabilities; a cell without any must stay empty. */
static void check_law(const char *what, const int *count, const double *p, int n_cells, int n_draws)
{
    double x = 0;
    int cells = 0;
    for (int i = 0; i < n_cells; i++) {
        double expected = p[i] * n_draws;
        if (p[i] <= 0) {
            if (count[i])
                fail_msg("%s: cell %d has no probability and %d draws", what, i, count[i]);
            continue;
        }
        x += (count[i] - expected) * (count[i] - expected) / expected;
        cells++;
    }
    if (cells < 2) return;
    double tail = chi_square_tail(x, cells - 1);
    if (tail < 1e-6) fail_msg("%s: chi-square %.1f over %d cells, p %.2g", what, x, cells, tail);
}

/* ---- the law on a small vocabulary ---- */

typedef struct {
    const char *what;
    SampleParams params;
    int penalties, bias, allowed;
} LawCase;

static const LawCase law_cases[] = {
    {"plain", {1, 0, 1, 0, 0, 0, 1, 1, 0}, 0, 0, 0},
    {"temperature", {0.6f, 0, 1, 0, 0, 0, 1, 2, 0}, 0, 0, 0},
    {"hot", {3, 0, 1, 0, 0, 0, 1, 3, 5}, 0, 0, 0},
    {"top-k", {1, 4, 1, 0, 0, 0, 1, 4, 0}, 0, 0, 0},
    {"top-p", {1, 0, 0.7f, 0, 0, 0, 1, 5, 0}, 0, 0, 0},
    {"min-p", {1, 0, 1, 0.2f, 0, 0, 1, 6, 0}, 0, 0, 0},
    {"tiny top-p", {1, 0, 0.01f, 0, 0, 0, 1, 7, 0}, 0, 0, 0},
    {"penalties", {1, 0, 1, 0, 0.5f, 0.3f, 1.4f, 8, 0}, 1, 0, 0},
    {"bias and ban", {1, 0, 1, 0, 0, 0, 1, 9, 0}, 0, 1, 0},
    {"allowed", {1, 0, 1, 0, 0, 0, 1, 10, 0}, 0, 0, 1},
    {"everything", {0.8f, 6, 0.9f, 0.05f, 0.4f, 0.2f, 1.2f, 11, 2}, 1, 1, 1},
};

static const float small_logits[SMALL] = {1,    0.5f, -1,   2,     1.5f, 1.5f,
                                          0.2f, -3,   1.8f, -0.4f, 0,    1.5f};
static const uint32_t small_counts[SMALL] = {0, 2, 0, 0x80000001u, 0, 1, 0x80000000u, 0, 0, 3, 0};
static const int32_t small_path[] = {4, 9, 4};
static const int32_t small_bias_id[] = {0, 7, 3}, small_ban[] = {8};
static const float small_bias[] = {0.7f, 4, -1};
static const uint64_t small_allowed[] = {0xb7d}; /* not 1, 7 and 10 */

static SampleRow law_row(const LawCase *c, int pos, uint32_t choice)
{
    SampleRow row = {.params = c->params, .pos = pos};
    row.params.choice += choice;
    if (c->penalties) {
        row.counts = small_counts;
        row.path = small_path;
        row.n_path = 3;
    }
    if (c->bias) {
        row.bias_id = small_bias_id, row.bias = small_bias, row.n_bias = 3;
        row.ban = small_ban, row.n_ban = 1;
    }
    return row;
}

/* 1 if i is one of the best by p, ties to the lowest id, when rank others are before it. */
static int rank_of(const double *p, int i)
{
    int rank = 0;
    for (int j = 0; j < SMALL; j++)
        rank += p[j] > p[i] || (p[j] == p[i] && j < i);
    return rank;
}

static void normalise(double *p)
{
    double total = 0;
    for (int i = 0; i < SMALL; i++)
        total += p[i];
    for (int i = 0; i < SMALL; i++)
        p[i] /= total;
}

static double processed(const LawCase *c, int i)
{
    double x = (double)small_logits[i];
    if (c->allowed && !(small_allowed[0] >> i & 1)) return (double)-INFINITY;
    for (int j = 0; c->bias && j < 3; j++)
        if (small_bias_id[j] == i) x += (double)small_bias[j];
    if (c->bias && small_ban[0] == i) return (double)-INFINITY;
    if (!c->penalties) return x;
    int count = (int)(small_counts[i] & 0x7fffffff);
    for (int j = 0; j < 3; j++)
        count += small_path[j] == i;
    double repetition = (double)c->params.repetition;
    if (count || small_counts[i] >> 31) x = x > 0 ? x / repetition : x * repetition;
    if (count) x -= count * (double)c->params.frequency + (double)c->params.presence;
    return x;
}

/* The probabilities, from the definition and nothing else. */
static void enumerate(const LawCase *c, double *p)
{
    const SampleParams *s = &c->params;
    double kept[SMALL], largest = 0, before = 0;
    for (int i = 0; i < SMALL; i++)
        p[i] = exp(processed(c, i) / (double)s->temperature);
    memcpy(kept, p, sizeof kept);
    for (int i = 0; i < SMALL; i++)
        if (s->top_k && rank_of(p, i) >= s->top_k) kept[i] = 0;
    normalise(kept);
    memcpy(p, kept, sizeof kept);
    for (int rank = 0; rank < SMALL; rank++)
        for (int i = 0; i < SMALL; i++) {
            if (rank_of(kept, i) != rank) continue;
            if (before >= (double)s->top_p) p[i] = 0; /* those before it reach top_p already */
            before += kept[i];
            largest = fmax(largest, kept[i]);
        }
    for (int i = 0; i < SMALL; i++)
        if (p[i] < (double)s->min_p * largest) p[i] = 0;
    normalise(p);
}

/* Draws n rows of one case; ids to id[]: positions rise, choices take turns. */
static void draw_rows(Backend *be, const LawCase *c, int n, int32_t *id)
{
    enum { ROWS = 256 };
    float logits[ROWS][SMALL];
    SampleRow row[ROWS];
    uint8_t bad[ROWS];
    for (int i = 0; i < ROWS; i++)
        memcpy(logits[i], small_logits, sizeof small_logits);
    for (int at = 0; at < n; at += ROWS) {
        int rows = n - at < ROWS ? n - at : ROWS;
        for (int i = 0; i < rows; i++)
            row[i] = law_row(c, (at + i) / 3, (uint32_t)(at + i) % 3);
        be->sample(be, &(Sample){.n = rows,
                                 .n_vocab = SMALL,
                                 .n_top = 1,
                                 .logits = logits[0],
                                 .allowed = c->allowed ? small_allowed : NULL,
                                 .row = row,
                                 .id = id + at,
                                 .bad = bad});
        for (int i = 0; i < rows; i++)
            assert_int_equal(bad[i], 0);
    }
}

static void test_law(void **state)
{
    (void)state;
    enum { DRAWS = 30000, SAME = 200 };
    int32_t *id = calloc(DRAWS, sizeof *id);
    assert_non_null(id);
    for (size_t s = 0; s < sizeof law_cases / sizeof *law_cases; s++)
        for (int b = 0; b < n_backends; b++) {
            int count[SMALL] = {0};
            double p[SMALL];
            enumerate(&law_cases[s], p);
            if (!strcmp(backend[b]->name,
                        "simt")) { /* dear, so only that it draws what the last one drew */
                int32_t same[SAME];
                draw_rows(backend[b], &law_cases[s], SAME, same);
                assert_memory_equal(same, id, sizeof same);
                continue;
            }
            draw_rows(backend[b], &law_cases[s], DRAWS, id);
            for (int i = 0; i < DRAWS; i++)
                count[id[i]]++;
            check_law(law_cases[s].what, count, p, SMALL, DRAWS);
        }
    free(id);
}

/* Pairs of draws, neighbours in position and in choice, against the product of their laws. */
static void test_draws_are_independent(void **state)
{
    (void)state;
    enum { DRAWS = 60000 };
    int32_t *id = calloc(DRAWS, sizeof *id);
    double p[SMALL], pair[SMALL * SMALL];
    assert_non_null(id);
    enumerate(&law_cases[0], p);
    for (int i = 0; i < SMALL * SMALL; i++)
        pair[i] = p[i / SMALL] * p[i % SMALL];
    draw_rows(best, &law_cases[0], DRAWS, id);
    for (int apart = 1; apart <= 3;
         apart += 2) { /* 1: mostly the next choice; 3: the next position */
        int count[SMALL * SMALL] = {0}, n = 0;
        for (int i = 0; i + apart < DRAWS; i += 2 * apart, n++)
            count[id[i] * SMALL + id[i + apart]]++;
        check_law("pairs", count, pair, SMALL * SMALL, n);
    }
    free(id);
}

/* Flat logits over a real vocabulary: 64 best of each row, in buckets that end in a cut one. */
static void test_flat_vocabulary(void **state)
{
    (void)state;
    enum { ROWS = 200, BUCKET = 8000, BUCKETS = (MAX_VOCAB + BUCKET - 1) / BUCKET };
    float *logits = calloc(MAX_VOCAB, sizeof *logits);
    int first[BUCKETS] = {0}, all[BUCKETS] = {0};
    double p[BUCKETS];
    assert_non_null(logits);
    for (int i = 0; i < BUCKETS; i++)
        p[i] = (double)(i < BUCKETS - 1 ? BUCKET : MAX_VOCAB - i * BUCKET) / MAX_VOCAB;
    for (int i = 0; i < ROWS; i++) {
        int32_t id[MAX_TOP];
        uint8_t bad;
        SampleRow row = {.params = plain_params, .pos = i};
        Backend *be = best;
        row.params.seed = 0xfeedfacecafebeefu;
        be->sample(be, &(Sample){1, MAX_VOCAB, MAX_TOP, logits, NULL, &row, id, NULL, &bad});
        first[id[0] / BUCKET]++;
        for (int j = 0; j < MAX_TOP; j++)
            all[id[j] / BUCKET]++;
    }
    check_law("flat, first", first, p, BUCKETS, ROWS);
    check_law("flat, all", all, p, BUCKETS, ROWS * MAX_TOP);
    free(logits);
}

/* ---- against ref, and against itself ---- */

static float *random_logits(Rng *r, size_t n)
{
    float *x = calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = 12 * rng_float(r) * rng_float(r);
    return x;
}

typedef struct {
    int n, n_vocab, n_top;
    float *logits;
    uint64_t *allowed, *row_allowed; /* of all rows; of some */
    SampleRow *row;
    uint32_t *counts;
    int32_t *path, *bias_id, *ban;
    float *bias;
} RandomRows;

enum { PATH = 5, BIAS = 4, BAN = 3 };

static void fill_row(Rng *r, RandomRows *x, int i)
{
    SampleRow *row = &x->row[i];
    uint32_t *counts = x->counts + (size_t)i * (size_t)x->n_vocab;
    row->pos = rng_int(r, 100000);
    row->params = plain_params;
    row->params.seed = rng_next(r);
    row->params.choice = (uint32_t)rng_int(r, 4);
    row->params.temperature = rng_int(r, 4) ? 0.3f + 0.3f * (float)rng_int(r, 5) : 0;
    if (rng_int(r, 2)) row->params.top_k = 1 + rng_int(r, 2 * x->n_vocab);
    if (rng_int(r, 2)) row->params.top_k = 1 + rng_int(r, 40);
    if (rng_int(r, 2)) row->params.top_p = 0.05f + 0.09f * (float)rng_int(r, 11);
    if (rng_int(r, 2)) row->params.min_p = 0.01f * (float)rng_int(r, 20);
    if (rng_int(r, 2)) {
        row->counts = counts;
        row->params.presence = rng_float(r), row->params.frequency = rng_float(r);
        row->params.repetition = 1.2f + 0.5f * rng_float(r);
        for (int v = 0; v < x->n_vocab; v++)
            if (!rng_int(r, 7)) counts[v] = (uint32_t)rng_int(r, 3) | (uint32_t)rng_int(r, 2) << 31;
        row->path = x->path + i * PATH, row->n_path = rng_int(r, PATH + 1);
        for (int j = 0; j < row->n_path; j++)
            x->path[i * PATH + j] = rng_int(r, x->n_vocab);
    }
    row->bias_id = x->bias_id + i * BIAS, row->bias = x->bias + i * BIAS;
    row->n_bias = rng_int(r, BIAS + 1);
    row->ban = x->ban + i * BAN, row->n_ban = rng_int(r, BAN + 1);
    if (!rng_int(r, 3)) row->allowed = x->row_allowed;
    for (int j = 0; j < BIAS; j++)
        x->bias_id[i * BIAS + j] = rng_int(r, x->n_vocab), x->bias[i * BIAS + j] = 3 * rng_float(r);
    for (int j = 0; j < BAN; j++)
        x->ban[i * BAN + j] = rng_int(r, x->n_vocab);
}

static RandomRows random_rows(Rng *r, int n, int n_vocab, int n_top)
{
    RandomRows x = {.n = n, .n_vocab = n_vocab, .n_top = n_top};
    size_t rows = (size_t)n, words = (size_t)(n_vocab + 63) / 64;
    x.logits = random_logits(r, rows * (size_t)n_vocab);
    x.allowed = calloc(words, sizeof *x.allowed);
    x.row_allowed = calloc(words, sizeof *x.row_allowed);
    x.row = calloc(rows, sizeof *x.row);
    x.counts = calloc(rows * (size_t)n_vocab, sizeof *x.counts);
    x.path = calloc(rows * PATH, sizeof *x.path);
    x.bias_id = calloc(rows * BIAS, sizeof *x.bias_id);
    x.bias = calloc(rows * BIAS, sizeof *x.bias);
    x.ban = calloc(rows * BAN, sizeof *x.ban);
    assert_true(x.allowed && x.row_allowed && x.row && x.counts && x.path && x.bias_id && x.bias &&
                x.ban);
    for (size_t w = 0; w < words; w++) {
        x.allowed[w] = rng_next(r) | rng_next(r);
        x.row_allowed[w] = rng_int(r, 3) ? rng_next(r) & rng_next(r) : 0;
    }
    for (int i = 0; i < n; i++)
        fill_row(r, &x, i);
    return x;
}

static void free_rows(RandomRows *x)
{
    free(x->logits), free(x->allowed), free(x->row_allowed), free(x->row), free(x->counts);
    free(x->path), free(x->bias_id), free(x->bias), free(x->ban);
}

typedef struct {
    int32_t *id;
    float *logp;
    uint8_t *bad;
} Result;

static Result run_rows(Backend *be, const RandomRows *x, int one_by_one)
{
    size_t rows = (size_t)x->n, top = (size_t)x->n_top;
    Result res = {calloc(rows * top, sizeof *res.id), calloc(rows * top, sizeof *res.logp),
                  calloc(rows, 1)};
    assert_true(res.id && res.logp && res.bad);
    for (int i = 0; i < x->n; i += one_by_one ? 1 : x->n) {
        size_t at = (size_t)i;
        be->sample(be, &(Sample){.n = one_by_one ? 1 : x->n,
                                 .n_vocab = x->n_vocab,
                                 .n_top = x->n_top,
                                 .logits = x->logits + at * (size_t)x->n_vocab,
                                 .allowed = x->allowed,
                                 .row = x->row + at,
                                 .id = res.id + at * top,
                                 .logp = res.logp + at * top,
                                 .bad = res.bad + at});
    }
    return res;
}

static void free_result(Result *r)
{
    free(r->id), free(r->logp), free(r->bad);
}

static void check_same_result(const Result *got, const Result *want, const RandomRows *x,
                              const char *what, uint64_t seed)
{
    size_t n = (size_t)(x->n * x->n_top);
    assert_memory_equal(got->bad, want->bad, (size_t)x->n);
    assert_memory_equal(got->id, want->id, n * sizeof *got->id);
    assert_true(same_bits(what, got->logp, want->logp, n, seed));
}

/* Every backend gives what ref gives; rows of one and 3 threads change nothing. */
static void check_rows(const RandomRows *x, uint64_t seed)
{
    int n_top = x->n_top;
    size_t all = (size_t)x->n * (size_t)x->n_vocab;
    float *before = calloc(all, sizeof *before);
    assert_non_null(before);
    memcpy(before, x->logits, all * sizeof *before);
    Result want = run_rows(backend[0], x, 0), first = {NULL, NULL, NULL};
    for (int b = 0; b < n_backends; b++) {
        Result got = run_rows(backend[b], x, 0), single = run_rows(backend[b], x, 1);
        check_same_result(&single, &got, x, "one row at a time", seed);
        free_result(&single);
        assert_memory_equal(got.bad, want.bad, (size_t)x->n);
        /* seeds are such that no two candidates are closer than the arithmetic of either */
        for (int j = 0; j < x->n * n_top; j++) {
            if (got.id[j] != want.id[j])
                fail_msg("%s: candidate %d of row %d is %d, expected %d (seed %llu)",
                         backend[b]->isa, j % n_top, j / n_top, got.id[j], want.id[j],
                         (unsigned long long)seed);
            if (got.id[j] >= 0)
                assert_true(
                    near_all(backend[b]->isa, &got.logp[j], &want.logp[j], 1, 1e-6, 4e-6, seed));
        }
        if (b > 0 && backend[b]->n_threads == 1) {
            free_result(&first);
            first = got;
        } else {
            if (b > 0) check_same_result(&got, &first, x, "3 threads", seed);
            free_result(&got);
        }
    }
    assert_memory_equal(x->logits, before, all * sizeof *before);
    free(before);
    free_result(&first);
    free_result(&want);
}

static void check_random_rows(uint64_t seed, int n, int n_vocab, int n_top)
{
    Rng r = rng_new(seed);
    RandomRows x = random_rows(&r, n, n_vocab, n_top);
    check_rows(&x, seed);
    free_rows(&x);
}

static void test_random_rows(void **state)
{
    (void)state;
    check_random_rows(1, 200, 2, 3);
    check_random_rows(2, 200, 64, 1);
    check_random_rows(3, 200, 301, 4);
    check_random_rows(4, 60, 5003, 64);
    check_random_rows(5, 60, 4096, 1);
}

/* An id that a reduced draft vocabulary has: one of the first, or near the end. */
static int in_reach(const RandomRows *x, int id, int n_first)
{
    return id < n_first || (id >= x->n_vocab - 5 && id < x->n_vocab - 2);
}

/* x with -inf for what is out of reach, in arrays of its own where they differ. */
static RandomRows out_of_reach(const RandomRows *x, int n_first)
{
    RandomRows y = *x;
    size_t vocab = (size_t)x->n_vocab, words = (vocab + 63) / 64;
    y.logits = calloc((size_t)x->n * vocab, sizeof *y.logits);
    y.allowed = calloc(words, sizeof *y.allowed);
    assert_non_null(y.logits);
    assert_non_null(y.allowed);
    for (size_t w = 0; w < words; w++)
        y.allowed[w] = x->allowed[w];
    for (size_t i = 0; i < (size_t)x->n * vocab; i++)
        y.logits[i] = in_reach(x, (int)(i % vocab), n_first) ? x->logits[i] : -INFINITY;
    return y;
}

/* A row's own mask counts in place of that of all rows: as if this were that. */
static void test_masks_of_rows(void **state)
{
    Rng r = rng_new(77);
    (void)state;
    RandomRows x = random_rows(&r, 8, 1000, 3), y = x;
    y.row = calloc(8, sizeof *y.row);
    assert_non_null(y.row);
    for (int i = 0; i < 8; i++) {
        x.row[i].allowed = x.row_allowed;
        y.row[i] = x.row[i];
        y.row[i].allowed = NULL;
    }
    y.allowed = x.row_allowed;
    for (int b = 0; b < n_backends; b++) {
        Result got = run_rows(backend[b], &x, 0), want = run_rows(backend[b], &y, 0);
        check_same_result(&got, &want, &x, "a mask of the row's own", 77);
        free_result(&got), free_result(&want);
    }
    free(y.row);
    free_rows(&x);
}

/* Leaves in the allowed set only what is in reach, or only what is not. */
static void allow_only(RandomRows *x, int n_first, int reach)
{
    for (int id = 0; id < x->n_vocab; id++)
        if (in_reach(x, id, n_first) != reach) x->allowed[id / 64] &= ~(UINT64_C(1) << id % 64);
}

/*
 * A logit of -inf is an id that is not allowed, whatever the row asks for: no bias, penalty or cut
 * brings it back or makes a row bad; where nothing else is allowed the row is bad.
 */
static void check_out_of_reach(uint64_t seed, int n, int n_vocab, int n_top, int n_first)
{
    Rng r = rng_new(seed);
    RandomRows x = random_rows(&r, n, n_vocab, n_top);
    for (int i = 0; i < n; i++) {
        x.row[i].allowed = NULL;
        x.row[i].params.repetition = i % 3 ? 1.4f : 0.3f;
        x.row[i].params.presence = 2 * rng_float(&r);
        for (int j = 0; j < BIAS; j++)
            if (!in_reach(&x, x.bias_id[i * BIAS + j], n_first)) x.bias[i * BIAS + j] = 100;
    }
    RandomRows y = out_of_reach(&x, n_first);
    check_rows(&y, seed);
    allow_only(&x, n_first, 1);
    for (int b = 0; b < n_backends; b++) {
        Result got = run_rows(backend[b], &y, 0), want = run_rows(backend[b], &x, 0);
        check_same_result(&got, &want, &x, "-inf against not allowed", seed);
        for (int i = 0; i < n; i++) {
            assert_int_equal(got.bad[i], 0);
            for (int j = 0; j < n_top && got.id[i * n_top + j] >= 0; j++)
                assert_true(in_reach(&x, got.id[i * n_top + j], n_first));
        }
        free_result(&got), free_result(&want);
    }
    allow_only(&y, n_first, 0);
    for (int b = 0; b < n_backends; b++) {
        Result got = run_rows(backend[b], &y, 0);
        for (int i = 0; i < n * n_top; i++) {
            assert_int_equal(got.bad[i / n_top], 1);
            assert_int_equal(got.id[i], -1);
        }
        free_result(&got);
    }
    free(y.logits), free(y.allowed);
    free_rows(&x);
}

static void test_out_of_reach(void **state)
{
    (void)state;
    check_out_of_reach(41, 100, 301, 4, 75);
    check_out_of_reach(42, 100, 301, 64, 20);
    check_out_of_reach(43, 60, 5003, 3, 1250);
    check_out_of_reach(44, 20, 5003, 8, 2);
    check_out_of_reach(45, 40, 4099, 1, 2048);
}

/* A path in counts and a path beside them are one thing, to the bit. */
static void test_path_is_counts(void **state)
{
    (void)state;
    Rng r = rng_new(9);
    RandomRows x = random_rows(&r, 100, 301, 4);
    for (int b = 0; b < n_backends; b++) {
        Result beside = run_rows(backend[b], &x, 0);
        RandomRows merged = x;
        merged.row = calloc(100, sizeof *merged.row);
        merged.counts = calloc((size_t)100 * 301, sizeof *merged.counts);
        assert_true(merged.row && merged.counts);
        for (int i = 0; i < 100; i++) {
            uint32_t *counts = merged.counts + i * 301;
            merged.row[i] = x.row[i];
            if (!x.row[i].counts) continue;
            memcpy(counts, x.row[i].counts, 301 * sizeof *counts);
            for (int j = 0; j < x.row[i].n_path; j++)
                counts[x.row[i].path[j]]++;
            merged.row[i].counts = counts, merged.row[i].n_path = 0;
        }
        Result in_counts = run_rows(backend[b], &merged, 0);
        check_same_result(&in_counts, &beside, &x, "path in counts", 9);
        free_result(&beside), free_result(&in_counts);
        free(merged.row), free(merged.counts);
    }
    free_rows(&x);
}

/* The chances that a drafter gives to all candidates add up to 1, greedy or drawn. */
static void test_logp_sums_to_one(void **state)
{
    (void)state;
    for (int b = 0; b < n_backends; b++)
        for (int greedy = 0; greedy < 2; greedy++) {
            float logits[SMALL], logp[MAX_TOP];
            int32_t id[MAX_TOP];
            uint8_t bad;
            double sum = 0;
            SampleRow row = {.params = plain_params, .pos = 3};
            if (greedy) row.params.temperature = 0;
            memcpy(logits, small_logits, sizeof logits);
            backend[b]->sample(backend[b],
                               &(Sample){1, SMALL, MAX_TOP, logits, NULL, &row, id, logp, &bad});
            for (int j = 0; j < SMALL; j++) {
                sum += exp((double)logp[j]);
                assert_true(id[j] >= 0 && (!j || logp[j] <= logp[j - 1]));
            }
            for (int j = SMALL; j < MAX_TOP; j++)
                assert_int_equal(id[j], -1);
            assert_true(fabs(sum - 1) < 1e-5);
        }
}

/* ---- greedy, ties, nonsense ---- */

static int32_t one_id(Backend *be, float *logits, int n_vocab, SampleRow row, uint8_t *bad)
{
    int32_t id = -2;
    be->sample(be, &(Sample){1, n_vocab, 1, logits, NULL, &row, &id, NULL, bad});
    return id;
}

static void test_greedy_ties(void **state)
{
    (void)state;
    enum { N = 301 };
    for (int b = 0; b < n_backends; b++) {
        float logits[N] = {0};
        uint8_t bad;
        SampleRow row = {.params = plain_params};
        static const int32_t ban[] = {70};
        row.params.temperature = 0;
        assert_int_equal(one_id(backend[b], logits, N, row, &bad), 0);
        logits[70] = logits[200] = logits[300] = 5;
        assert_int_equal(one_id(backend[b], logits, N, row, &bad), 70);
        row.ban = ban, row.n_ban = 1;
        assert_int_equal(one_id(backend[b], logits, N, row, &bad), 200);
        row.params.temperature = 0.7f, row.params.top_k = 1;
        assert_int_equal(one_id(backend[b], logits, N, row, &bad), 200);
        assert_int_equal(bad, 0);

        int32_t id[4];
        Sample a = {1, N, 4, logits, NULL, &row, id, NULL, &bad};
        row.n_ban = 0;
        backend[b]->sample(backend[b], &a);
        assert_true(id[0] == 70 && id[1] == 200 && id[2] == 300 && id[3] == 0);
    }
}

static void test_nonsense(void **state)
{
    (void)state;
    enum { N = 133 };
    static const float wrong[] = {NAN, INFINITY, -NAN};
    for (int b = 0; b < n_backends; b++)
        for (int at = 0; at < N; at += 11) {
            float logits[N] = {0};
            uint8_t bad = 7;
            SampleRow row = {.params = plain_params};
            row.params.temperature = at % 2 ? 0 : 1;
            logits[at] = wrong[at % 3];
            assert_int_equal(one_id(backend[b], logits, N, row, &bad), -1);
            assert_int_equal(bad, 1);
            for (int v = 0; v < N; v++)
                logits[v] = -INFINITY;
            assert_int_equal(one_id(backend[b], logits, N, row, &bad), -1);
            assert_int_equal(bad, 1);
            logits[at] = -1e30f; /* the only candidate, however poor */
            assert_int_equal(one_id(backend[b], logits, N, row, &bad), at);
            assert_int_equal(bad, 0);
        }
}

/* ---- log-probabilities ---- */

static void test_token_logprobs(void **state)
{
    (void)state;
    enum { N = 40, VOCAB = 1003, TOP = 7 };
    Rng r = rng_new(77);
    float *logits = random_logits(&r, (size_t)N * VOCAB);
    int32_t token[N], rank[N], want_rank[N], top[N * TOP], want_top[N * TOP];
    float chosen[N], want[N], logp[N * TOP], want_logp[N * TOP];
    for (int i = 0; i < N * VOCAB; i += 2)
        logits[i] = roundf(logits[i]); /* ties */
    for (int i = 0; i < N; i++)
        token[i] = rng_int(&r, VOCAB);
    TokenLogprobs a = {N, VOCAB, TOP, logits, token, want, want_rank, want_top, want_logp};
    backend[0]->token_logprobs(backend[0], &a);
    for (int b = 1; b < n_backends; b++) {
        TokenLogprobs got = {N, VOCAB, TOP, logits, token, chosen, rank, top, logp};
        backend[b]->token_logprobs(backend[b], &got);
        assert_memory_equal(rank, want_rank, sizeof rank);
        assert_memory_equal(top, want_top, sizeof top);
        assert_true(near_all("chosen", chosen, want, N, 2e-7, 2e-6, r.seed));
        assert_true(near_all("top", logp, want_logp, N * TOP, 2e-7, 2e-6, r.seed));
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < TOP; j++)
            if (want_top[i * TOP + j] == token[i]) {
                assert_int_equal(want_rank[i], j);
                assert_true(want[i] == want_logp[i * TOP + j]);
            }
    free(logits);
}

static void test_no_allocation(void **state)
{
    (void)state;
    Rng r = rng_new(5);
    RandomRows x = random_rows(&r, 20, 301, 4);
    unsigned long before = mem_count();
    for (int b = 0; b < n_backends; b++) {
        Result res = run_rows(backend[b], &x, 0);
        free_result(&res);
    }
    assert_int_equal(mem_count(), before);
    free_rows(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_chi_square_tail),
        cmocka_unit_test(test_law),
        cmocka_unit_test(test_draws_are_independent),
        cmocka_unit_test(test_flat_vocabulary),
        cmocka_unit_test(test_random_rows),
        cmocka_unit_test(test_out_of_reach),
        cmocka_unit_test(test_masks_of_rows),
        cmocka_unit_test(test_path_is_counts),
        cmocka_unit_test(test_logp_sums_to_one),
        cmocka_unit_test(test_greedy_ties),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_token_logprobs),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests_name("sample", tests, open_backends, close_backends);
}
