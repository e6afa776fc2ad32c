/*
 * test_rows.c: operations on rows, and a backend's memory, on every backend.
 *
 * Near "ref" within the error that is argued for here, or the same bits; within one instruction set
 * the same bits for any number of threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/backends.h"

static void test_embed_and_gather(void **state)
{
    (void)state;
    enum { N = 300, DIM = 2101, VOCAB = 301 };
    static const WeightType types[] = {WEIGHT_F32, WEIGHT_BF16, WEIGHT_INT8, WEIGHT_INT4,
                                       WEIGHT_BF16_BOTH};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        Rng r = rng_new(t);
        Weight w = random_weight(&r, types[t], VOCAB, DIM);
        int32_t *token = ints(N), *index = ints(N), *to = ints(N);
        float *out = floats(N * (DIM + 2)), *want = floats(N * (DIM + 2));
        float *rows = floats(N * DIM), *want_rows = floats(N * DIM),
              *x = random_floats(&r, N * DIM, 1);
        for (int i = 0; i < N; i++)
            token[i] = rng_int(&r, VOCAB), index[i] = rng_int(&r, N), to[i] = (i * 7 + 3) % N;
        ref->embed(ref, &(Embed){N, &w, token, want, DIM + 2});
        ref->gather_rows(ref, &(GatherRows){N, DIM, index, NULL, x, want_rows});
        assert_memory_equal(want_rows, x + index[0] * DIM, DIM * sizeof *x);
        for (int b = 0; b < n_backends; b++) {
            if (!has_type(b, w.type)) continue;
            memset(out, 0, N * (DIM + 2) * sizeof *out); /* not what the one before has left */
            memset(rows, 0, N * DIM * sizeof *rows);
            backend[b]->embed(backend[b], &(Embed){N, &w, token, out, DIM + 2});
            assert_true(same_bits(about("embed", b), out, want, N * (DIM + 2), r.seed));
            backend[b]->gather_rows(backend[b], &(GatherRows){N, DIM, index, NULL, x, rows});
            assert_true(same_bits(about("gather", b), rows, want_rows, N * DIM, r.seed));
            backend[b]->gather_rows(backend[b], &(GatherRows){N, DIM, index, to, x, rows});
            for (int i = 0; i < N; i++)
                assert_memory_equal(rows + to[i] * DIM, want_rows + i * DIM, DIM * sizeof *x);
        }
        free_weight(&w);
        free(token), free(index), free(to), free(out), free(want), free(rows), free(want_rows),
            free(x);
    }
}

/* Norms: sum of squares in lanes of up to dim / 4 terms, all positive, halved by the root. */
static double norm_error(int dim)
{
    return (dim / 4.0 / 2 + 8) * 0x1p-24;
}

static void test_add_norm(void **state)
{
    (void)state;
    static const int dims[] = {1, 24, 48, 200, 1030, 3000, 8321};
    enum { N = 37 };
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        Rng r = rng_new(200 + s);
        size_t dim = (size_t)dims[s], all = N * dim;
        float *x = random_floats(&r, all, 3), *delta = random_floats(&r, all, 1);
        float *w = random_floats(&r, dim, 2), *sum = floats(all), *want = floats(all);
        float *got_sum = floats(all), *got = floats(all), *first = floats(all);
        AddNorm a = {N, (int)dim, 1e-6f, sum, delta, w, want, (int)dim};
        memcpy(sum, x, all * sizeof *x);
        ref->add_norm(ref, &a);
        for (int b = 0; b < n_backends; b++) {
            float *out = b == leader(b) ? first : got;
            AddNorm c = a;
            c.x = got_sum, c.out = out;
            memcpy(got_sum, x, all * sizeof *x);
            backend[b]->add_norm(backend[b], &c);
            assert_true(same_bits(about("add", b), got_sum, sum, all, r.seed));
            assert_true(near_all(about("add_norm", b), out, want, all, norm_error((int)dim), 1e-30,
                                 r.seed));
            assert_true(same_bits(about("add_norm", b), out, first, all, r.seed));
            /* one row at a time, out over delta, then the norm alone */
            memcpy(got_sum, x, all * sizeof *x);
            memcpy(got, delta, all * sizeof *x);
            for (size_t i = 0; i < N; i++) {
                AddNorm one = c;
                one.n = 1, one.x = got_sum + i * dim, one.delta = one.out = got + i * dim;
                backend[b]->add_norm(backend[b], &one);
            }
            assert_true(same_bits(about("add_norm, one row", b), got, first, all, r.seed));
            c.delta = NULL, c.out = got;
            backend[b]->add_norm(backend[b], &c);
            assert_true(same_bits(about("norm", b), got, first, all, r.seed));
            assert_true(same_bits(about("norm leaves x", b), got_sum, sum, all, r.seed));
        }
        free(x), free(delta), free(w), free(sum), free(want);
        free(got_sum), free(got), free(first);
    }
}

/* Two norms side by side, of rows of a table and of others: the bits of three operations. */
static void check_head_input(WeightType type, int dim, uint64_t seed)
{
    enum { N = 13, VOCAB = 37 };
    Rng r = rng_new(seed);
    size_t cols = (size_t)dim, all = N * cols;
    Weight table = random_weight(&r, type, VOCAB, dim);
    float *hidden = random_floats(&r, all, 3), *before = floats(all), *scratch = floats(all);
    float *embed_norm = random_floats(&r, cols, 2), *hidden_norm = random_floats(&r, cols, 2);
    float *want = floats(2 * all), *got = floats(2 * all), *turn = floats(2 * all);
    int32_t token[N];
    for (int i = 0; i < N; i++)
        token[i] = rng_int(&r, VOCAB);
    memcpy(before, hidden, all * sizeof *before);
    HeadInput a = {N, 1e-6f, &table, token, hidden, embed_norm, hidden_norm, scratch, want};
    ref->head_input(ref, &a);
    for (int b = 0; b < n_backends; b++) {
        Backend *be = backend[b];
        HeadInput c = a;
        if (!has_type(b, type)) continue;
        c.out = got;
        be->head_input(be, &c);
        assert_true(
            near_all(about("head_input", b), got, want, 2 * all, norm_error(dim), 1e-30, seed));
        c.out = turn;
        backend_head_input_in_turn(be, &c);
        assert_true(same_bits(about("head_input, in turn", b), got, turn, 2 * all, seed));
        c.n = 1, c.token += N / 2, c.hidden += N / 2 * cols;
        be->head_input(be, &c);
        assert_true(same_bits(about("head_input, one row", b), turn, got + N / 2 * 2 * cols,
                              2 * cols, seed));
        assert_memory_equal(hidden, before, all * sizeof *before);
    }
    free_weight(&table);
    free(hidden), free(before), free(scratch), free(embed_norm), free(hidden_norm);
    free(want), free(got), free(turn);
}

static void test_head_input(void **state)
{
    (void)state;
    static const WeightType types[] = {WEIGHT_F32, WEIGHT_BF16, WEIGHT_INT8, WEIGHT_INT4};
    static const int dims[] = {1, 48, 200, 1030, 2048, 3000, 8321};
    for (int t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof dims / sizeof *dims; s++)
            check_head_input(types[t], dims[s], 320 + 10 * (uint64_t)t + s);
}

static void test_gated_norm_and_swiglu(void **state)
{
    (void)state;
    static const int dims[] = {1, 24, 48, 128, 200, 300};
    enum { N = 19, HEADS = 3 };
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        Rng r = rng_new(300 + s);
        size_t dim = (size_t)dims[s], row = HEADS * dim, all = N * row;
        float *x = random_floats(&r, all, 3), *z = random_floats(&r, all, 100);
        float *w = random_floats(&r, dim, 2), *want = floats(all), *got = floats(all);
        float *first = floats(all), *glu = floats(all), *glu_first = floats(all);
        float *glu_want = floats(all);
        ref->gated_norm(ref, &(GatedNorm){N, HEADS, (int)dim, 1e-6f, x, z, w, want});
        memcpy(glu_want, z, all * sizeof *z);
        ref->swiglu(ref, &(SwiGlu){N, (int)row, glu_want, x});
        for (int b = 0; b < n_backends; b++) {
            Backend *be = backend[b];
            float *out = b == leader(b) ? first : got, *g = b == leader(b) ? glu_first : glu;
            memset(out, 0, all * sizeof *out);
            be->gated_norm(be, &(GatedNorm){N, HEADS, (int)dim, 1e-6f, x, z, w, out});
            assert_true(near_all(about("gated_norm", b), out, want, all,
                                 norm_error((int)dim) + 6 * 0x1p-24, 1e-30, r.seed));
            assert_true(same_bits(about("gated_norm", b), out, first, all, r.seed));
            memcpy(g, z, all * sizeof *z);
            be->swiglu(be, &(SwiGlu){N, (int)row, g, x});
            assert_true(near_all(about("swiglu", b), g, glu_want, all, 8 * 0x1p-24, 1e-30, r.seed));
            assert_true(same_bits(about("swiglu", b), g, glu_first, all, r.seed));
            /* one row at a time; the norm in place */
            memcpy(got, x, all * sizeof *x);
            memcpy(glu, z, all * sizeof *z);
            for (size_t i = 0; i < N; i++) {
                float *xi = got + i * row;
                be->gated_norm(be, &(GatedNorm){1, HEADS, (int)dim, 1e-6f, xi, z + i * row, w, xi});
                be->swiglu(be, &(SwiGlu){1, (int)row, glu + i * row, x + i * row});
            }
            assert_true(same_bits(about("gated_norm, one row", b), got, first, all, r.seed));
            assert_true(same_bits(about("swiglu, one row", b), glu, glu_first, all, r.seed));
        }
        free(x), free(z), free(w), free(want), free(got), free(first);
        free(glu), free(glu_first), free(glu_want);
    }
}

static void check_move_rows(size_t row_bytes)
{
    enum { PAGES = 9, PAGE_TOKENS = 5, LAYERS = 3, EXTRA = 16, STRIDE = 4 };
    static const int32_t table[2 * STRIDE] = {3, 1, 7, 0, 2, 8, 4, 5};
    static const int32_t seq[] = {0, 0, 0, 1, 1}, from[] = {4, 7, 9, 12, 19};
    static const int32_t to[] = {4, 5, 6, 11, 12};
    Rng r = rng_new(1);
    size_t page = LAYERS * 2 * PAGE_TOKENS * row_bytes + EXTRA, all = PAGES * page;
    unsigned char *start = mem_alloc(all, 1), *want = mem_alloc(all, 1), *got = mem_alloc(all, 1);
    for (size_t i = 0; i < all; i++)
        start[i] = (unsigned char)rng_next(&r);
    memcpy(want, start, all);
    MoveRows a = {5, LAYERS, PAGE_TOKENS, row_bytes, page, want, table, STRIDE, seq, from, to};
    ref->move_rows(ref, &a);
    /* V of layer 1, sequence 1: row 12 of page 4 (third of its table) came from row 19 of page 5 */
    size_t plane = (size_t)(2 * 1 + 1) * PAGE_TOKENS * row_bytes;
    assert_memory_equal(want + 4 * page + plane + 2 * row_bytes,
                        start + 5 * page + plane + 4 * row_bytes, row_bytes);
    for (int b = 0; b < n_backends; b++) {
        a.pages = got;
        memcpy(got, start, all);
        backend[b]->move_rows(backend[b], &a);
        assert_memory_equal(got, want, all);
    }
    mem_free(start), mem_free(want), mem_free(got);
}

/* Rows of f32, of an odd number of bf16, and so large that threads share them. */
static void test_move_rows(void **state)
{
    (void)state;
    check_move_rows(28);
    check_move_rows(26);
    check_move_rows(6000);
}

/* ---- backends ---- */

static void test_open_refuses_unknown_isa(void **state)
{
    (void)state;
    Error err;
    assert_null(backend_cpu_open(1, "mmx", MAX_VOCAB, &err));
    assert_int_equal(err.code, ERR_INPUT);
    static const char begin[] = "isa is 'mmx', this machine has ";
    assert_memory_equal(err.msg, begin, sizeof begin - 1);
    assert_true(text_ends_with(err.msg, "plain"));
}

static void test_memory(void **state)
{
    (void)state;
    Backend *be = backend[0];
    char *mem = be->alloc(be, 100, NULL), back[100];
    for (int i = 0; i < 100; i++)
        assert_int_equal(mem[i], 0);
    be->upload(be, mem, "abcdef", 7);
    be->copy(be, mem + 2, mem, 7); /* overlapping */
    be->download(be, back, mem, 100);
    assert_string_equal(back, "ababcdef");
    be->zero(be, mem, 3);
    assert_int_equal(mem[2], 0);
    assert_int_equal(mem[3], 'b');
    assert_int_equal(be->sync(be, NULL), 0);
    be->free(be, mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed_and_gather), cmocka_unit_test(test_add_norm),
        cmocka_unit_test(test_head_input),       cmocka_unit_test(test_gated_norm_and_swiglu),
        cmocka_unit_test(test_move_rows),        cmocka_unit_test(test_open_refuses_unknown_isa),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("rows", tests, open_backends, close_backends);
}
