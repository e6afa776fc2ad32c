/*
 * test_sample_law.c: the sampler against the law it claims.
 *
 * Draws over many positions and choices against probabilities enumerated here from the definition,
 * by chi-square. Seeds are fixed, so a p-value below 1e-6 is a fault and not bad luck.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/philox.h"
#include "tests/chi_square.h"
#include "tests/near.h"
#include "tests/samplers.h"

enum { SMALL = 12 };

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
        for (int b = 0; b < n_samplers; b++) {
            int count[SMALL] = {0};
            double p[SMALL];
            enumerate(&law_cases[s], p);
            if (!strcmp(sampler[b]->name,
                        "simt")) { /* dear, so only that it draws what the last one drew */
                int32_t same[SAME];
                draw_rows(sampler[b], &law_cases[s], SAME, same);
                assert_memory_equal(same, id, sizeof same);
                continue;
            }
            draw_rows(sampler[b], &law_cases[s], DRAWS, id);
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
    draw_rows(best_sampler, &law_cases[0], DRAWS, id);
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
        Backend *be = best_sampler;
        row.params.seed = 0xfeedfacecafebeefu;
        be->sample(be, &(Sample){1, MAX_VOCAB, MAX_TOP, logits, NULL, &row, id, NULL, &bad, 0});
        first[id[0] / BUCKET]++;
        for (int j = 0; j < MAX_TOP; j++)
            all[id[j] / BUCKET]++;
    }
    check_law("flat, first", first, p, BUCKETS, ROWS);
    check_law("flat, all", all, p, BUCKETS, ROWS * MAX_TOP);
    free(logits);
}

/* The chances that a drafter gives to all candidates add up to 1, greedy or drawn. */
static void test_logp_sums_to_one(void **state)
{
    (void)state;
    for (int b = 0; b < n_samplers; b++)
        for (int greedy = 0; greedy < 2; greedy++) {
            float logits[SMALL], logp[MAX_TOP];
            int32_t id[MAX_TOP];
            uint8_t bad;
            double sum = 0;
            SampleRow row = {.params = plain_params, .pos = 3};
            if (greedy) row.params.temperature = 0;
            memcpy(logits, small_logits, sizeof logits);
            sampler[b]->sample(sampler[b],
                               &(Sample){1, SMALL, MAX_TOP, logits, NULL, &row, id, logp, &bad, 0});
            for (int j = 0; j < SMALL; j++) {
                sum += exp((double)logp[j]);
                assert_true(id[j] >= 0 && (!j || logp[j] <= logp[j - 1]));
            }
            for (int j = SMALL; j < MAX_TOP; j++)
                assert_int_equal(id[j], -1);
            assert_true(fabs(sum - 1) < 1e-5);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),  cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_chi_square_tail),       cmocka_unit_test(test_law),
        cmocka_unit_test(test_draws_are_independent), cmocka_unit_test(test_flat_vocabulary),
        cmocka_unit_test(test_logp_sums_to_one),
    };
    return cmocka_run_group_tests_name("sample_law", tests, open_samplers, close_samplers);
}
