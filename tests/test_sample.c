/*
 * test_sample.c: the sampler against the definition, and against itself; what the law of its draws
 * is, is asked in test_sample_law.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/near.h"
#include "tests/samplers.h"

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
    int uncut; /* what is said of all rows at once; of one alone: what it is */
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
        be->sample(be,
                   &(Sample){.n = one_by_one ? 1 : x->n,
                             .n_vocab = x->n_vocab,
                             .n_top = x->n_top,
                             .logits = x->logits + at * (size_t)x->n_vocab,
                             .allowed = x->allowed,
                             .row = x->row + at,
                             .id = res.id + at * top,
                             .logp = res.logp + at * top,
                             .bad = res.bad + at,
                             .uncut = one_by_one ? sample_rows_uncut(x->row + at, 1) : x->uncut});
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
    Result want = run_rows(sampler[0], x, 0), first = {NULL, NULL, NULL};
    for (int b = 0; b < n_samplers; b++) {
        Result got = run_rows(sampler[b], x, 0), single = run_rows(sampler[b], x, 1);
        check_same_result(&single, &got, x, "one row at a time", seed);
        free_result(&single);
        assert_memory_equal(got.bad, want.bad, (size_t)x->n);
        /* seeds are such that no two candidates are closer than the arithmetic of either */
        for (int j = 0; j < x->n * n_top; j++) {
            if (got.id[j] != want.id[j])
                fail_msg("%s: candidate %d of row %d is %d, expected %d (seed %llu)",
                         sampler[b]->isa, j % n_top, j / n_top, got.id[j], want.id[j],
                         (unsigned long long)seed);
            if (got.id[j] >= 0)
                assert_true(
                    near_all(sampler[b]->isa, &got.logp[j], &want.logp[j], 1, 1e-6, 4e-6, seed));
        }
        if (b > 0 && sampler[b]->n_threads == 1) {
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

/* Rows without cuts, some of them greedy ones whose top-k or top-p does not count, and a cut one.
 */
static void test_uncut_rows(void **state)
{
    (void)state;
    enum { N = 60 };
    Rng r = rng_new(6);
    RandomRows x = random_rows(&r, N, 5003, 4);
    for (int i = 0; i < N; i++)
        if (sample_is_cut(&x.row[i].params)) x.row[i].params.top_k = i % 3 ? 0 : 1;
    for (int i = 0; i < N; i++)
        if (sample_is_cut(&x.row[i].params)) x.row[i].params.top_p = 1;
    x.uncut = sample_rows_uncut(x.row, N);
    assert_int_equal(x.uncut, 1);
    check_rows(&x, 6);
    x.row[N - 1].params = plain_params;
    x.row[N - 1].params.top_p = 0.9f;
    assert_int_equal(sample_rows_uncut(x.row, N), 0);
    assert_int_equal(sample_rows_uncut(x.row, N - 1), 1);
    free_rows(&x);
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
    for (int b = 0; b < n_samplers; b++) {
        Result got = run_rows(sampler[b], &x, 0), want = run_rows(sampler[b], &y, 0);
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
    for (int b = 0; b < n_samplers; b++) {
        Result got = run_rows(sampler[b], &y, 0), want = run_rows(sampler[b], &x, 0);
        check_same_result(&got, &want, &x, "-inf against not allowed", seed);
        for (int i = 0; i < n; i++) {
            assert_int_equal(got.bad[i], 0);
            for (int j = 0; j < n_top && got.id[i * n_top + j] >= 0; j++)
                assert_true(in_reach(&x, got.id[i * n_top + j], n_first));
        }
        free_result(&got), free_result(&want);
    }
    allow_only(&y, n_first, 0);
    for (int b = 0; b < n_samplers; b++) {
        Result got = run_rows(sampler[b], &y, 0);
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
    for (int b = 0; b < n_samplers; b++) {
        Result beside = run_rows(sampler[b], &x, 0);
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
        Result in_counts = run_rows(sampler[b], &merged, 0);
        check_same_result(&in_counts, &beside, &x, "path in counts", 9);
        free_result(&beside), free_result(&in_counts);
        free(merged.row), free(merged.counts);
    }
    free_rows(&x);
}

/* ---- greedy, ties, nonsense ---- */

static int32_t one_id(Backend *be, float *logits, int n_vocab, SampleRow row, uint8_t *bad)
{
    int32_t id = -2;
    be->sample(be, &(Sample){1, n_vocab, 1, logits, NULL, &row, &id, NULL, bad, 0});
    return id;
}

static void test_greedy_ties(void **state)
{
    (void)state;
    enum { N = 301 };
    for (int b = 0; b < n_samplers; b++) {
        float logits[N] = {0};
        uint8_t bad;
        SampleRow row = {.params = plain_params};
        static const int32_t ban[] = {70};
        row.params.temperature = 0;
        assert_int_equal(one_id(sampler[b], logits, N, row, &bad), 0);
        logits[70] = logits[200] = logits[300] = 5;
        assert_int_equal(one_id(sampler[b], logits, N, row, &bad), 70);
        row.ban = ban, row.n_ban = 1;
        assert_int_equal(one_id(sampler[b], logits, N, row, &bad), 200);
        row.params.temperature = 0.7f, row.params.top_p = 0; /* which the best has */
        assert_int_equal(one_id(sampler[b], logits, N, row, &bad), 200);
        row.params.top_p = 1, row.params.top_k = 1;
        assert_int_equal(one_id(sampler[b], logits, N, row, &bad), 200);
        assert_int_equal(bad, 0);

        int32_t id[4];
        Sample a = {1, N, 4, logits, NULL, &row, id, NULL, &bad, 0};
        row.n_ban = 0;
        sampler[b]->sample(sampler[b], &a);
        assert_true(id[0] == 70 && id[1] == 200 && id[2] == 300 && id[3] == 0);
    }
}

static void test_nonsense(void **state)
{
    (void)state;
    enum { N = 133 };
    static const float wrong[] = {NAN, INFINITY, -NAN};
    for (int b = 0; b < n_samplers; b++)
        for (int at = 0; at < N; at += 11) {
            float logits[N] = {0};
            uint8_t bad = 7;
            SampleRow row = {.params = plain_params};
            row.params.temperature = at % 2 ? 0 : 1;
            logits[at] = wrong[at % 3];
            assert_int_equal(one_id(sampler[b], logits, N, row, &bad), -1);
            assert_int_equal(bad, 1);
            for (int v = 0; v < N; v++)
                logits[v] = -INFINITY;
            assert_int_equal(one_id(sampler[b], logits, N, row, &bad), -1);
            assert_int_equal(bad, 1);
            logits[at] = -1e30f; /* the only candidate, however poor */
            assert_int_equal(one_id(sampler[b], logits, N, row, &bad), at);
            assert_int_equal(bad, 0);
            int32_t biased = (at + 1) % N;
            logits[biased] = 3e38f;
            row.bias_id = &biased, row.bias = (const float[]){3e38f}, row.n_bias = 1;
            assert_int_equal(one_id(sampler[b], logits, N, row, &bad), -1); /* beyond all bounds */
            assert_int_equal(bad, 1);
        }
}

/* ---- log-probabilities ---- */

/* Rows of 1003 random logits, each `apart` above the one before in turns of four. */
static void check_token_logprobs(float apart, float limit)
{
    enum { N = 40, VOCAB = 1003, TOP = 7 };
    Rng r = rng_new(77);
    float *logits = random_logits(&r, (size_t)N * VOCAB);
    int32_t token[N], rank[N], want_rank[N], top[N * TOP], want_top[N * TOP];
    float chosen[N], want[N], logp[N * TOP], want_logp[N * TOP];
    for (int i = 0; i < N * VOCAB; i += 2)
        logits[i] = roundf(logits[i]); /* ties */
    for (int i = 0; i < N * VOCAB; i++)
        logits[i] += (float)(i / VOCAB % 4) * apart;
    for (int i = 0; i < N; i++)
        token[i] = rng_int(&r, VOCAB);
    TokenLogprobs a = {N, VOCAB, TOP, logits, token, want, want_rank, want_top, want_logp};
    sampler[0]->token_logprobs(sampler[0], &a);
    for (int b = 1; b < n_samplers; b++) {
        TokenLogprobs got = {N, VOCAB, TOP, logits, token, chosen, rank, top, logp};
        memset(rank, -1, sizeof rank), memset(top, -1, sizeof top); /* no other sampler's */
        memset(chosen, 0, sizeof chosen), memset(logp, 0, sizeof logp);
        sampler[b]->token_logprobs(sampler[b], &got);
        assert_memory_equal(rank, want_rank, sizeof rank);
        assert_memory_equal(top, want_top, sizeof top);
        assert_true(near_all("chosen", chosen, want, N, 2e-7, limit, r.seed));
        assert_true(near_all("top", logp, want_logp, N * TOP, 2e-7, limit, r.seed));
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < TOP; j++)
            if (want_top[i * TOP + j] == token[i]) {
                assert_int_equal(want_rank[i], j);
                assert_true(want[i] == want_logp[i * TOP + j]);
            }
    free(logits);
}

static void test_token_logprobs(void **state)
{
    (void)state;
    check_token_logprobs(0, 2e-6f);
    check_token_logprobs(128, 4e-5f); /* no row's largest does for another's sum */
}

static void test_no_allocation(void **state)
{
    (void)state;
    Rng r = rng_new(5);
    RandomRows x = random_rows(&r, 20, 301, 4);
    unsigned long before = mem_count();
    for (int b = 0; b < n_samplers; b++) {
        Result res = run_rows(sampler[b], &x, 0);
        free_result(&res);
    }
    assert_int_equal(mem_count(), before);
    free_rows(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_rows),    cmocka_unit_test(test_uncut_rows),
        cmocka_unit_test(test_out_of_reach),   cmocka_unit_test(test_masks_of_rows),
        cmocka_unit_test(test_path_is_counts), cmocka_unit_test(test_greedy_ties),
        cmocka_unit_test(test_nonsense),       cmocka_unit_test(test_token_logprobs),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests_name("sample", tests, open_samplers, close_samplers);
}
