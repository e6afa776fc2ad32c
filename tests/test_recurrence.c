/*
 * test_recurrence.c: convolution and delta rule on every backend, against the definition and
 * against itself.
 *
 * Near: each instruction set against "ref", within the error that its source argues for.
 * Same bits, within one instruction set: any number of threads; rows together or one at a time;
 * a tree or each of its paths as a chain; many sequences in any mix and any split into calls. A
 * GPU's kernels: whatever order their blocks and lanes run in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/simt_host.h"
#include "tests/delta_trees.h"

/* ---- one tree a sequence ---- */

static const DeltaShape delta_shapes[] = {
    {1, 1, 1, 1, 1, 3, 1},     {1, 1, 24, 40, 4, 6, 1},   {2, 2, 40, 24, 4, 9, 0},
    {2, 6, 48, 48, 4, 7, 1},   {1, 4, 128, 128, 4, 8, 0}, {2, 4, 64, 200, 3, 5, 0},
    {1, 2, 200, 33, 2, 12, 1}, {1, 2, 256, 36, 4, 4, 0},  {1, 4, 64, 33, 4, 2, 0},
    {48, 48, 16, 8, 4, 50, 0}, {50, 50, 17, 9, 3, 50, 1}, /* many heads, rows */
    {2, 2, 64, 48, 4, 22, 0},  {2, 2, 64, 48, 4, 22, 1},  /* states that caches would not hold */
};

/* Random trees: row i of a sequence hangs on its main slot or on an earlier row of its own. */
static void plant_trees(Rng *r, Layer *l)
{
    for (int i = 0; i < l->rows; i++) {
        int seq = i / l->s.n, first = seq * l->s.n;
        l->dst[i] = N_MAIN + i;
        l->src[i] = i == first ? seq : l->dst[first + rng_int(r, i - first)];
    }
}

/* Row i's path run alone as a chain in place, row by row or at once, in a slot of its own. */
static void check_path(Backend *be, const Layer *tree, const Layer *start, int i, int at_once,
                       const char *what, uint64_t seed)
{
    int path[64], n = 0;
    int32_t slot[64];
    for (int j = i; j >= 0; j = tree->src[j] < N_MAIN ? -1 : tree->src[j] - N_MAIN)
        path[n++] = j;
    int32_t root = tree->src[path[n - 1]];
    Layer chain = layer_copy(start);
    Layer rows = layer_copy(start); /* the path's rows side by side */
    size_t width = (size_t)start->n_channels, heads = (size_t)start->s.n_v_heads;
    rows.qkv = floats((size_t)n * width);
    rows.a = floats((size_t)n * heads), rows.b = floats((size_t)n * heads);
    for (int m = 0; m < n; m++) {
        size_t from = (size_t)path[n - 1 - m], to = (size_t)m;
        memcpy(rows.qkv + to * width, start->qkv + from * width, width * sizeof(float));
        memcpy(rows.a + to * heads, start->a + from * heads, heads * sizeof(float));
        memcpy(rows.b + to * heads, start->b + from * heads, heads * sizeof(float));
        slot[m] = root;
    }
    for (int m = 0; m < n; m += at_once ? n : 1)
        run_layer(be, &rows, m, at_once ? n : 1, slot, slot);
    assert_true(same_bits(what, rows.out + (size_t)(n - 1) * rows.v_row,
                          tree->out + (size_t)i * tree->v_row, tree->v_row, seed));
    size_t state = (size_t)tree->dst[i] * tree->slot_floats;
    assert_true(same_bits(what, rows.slots + (size_t)root * rows.slot_floats, tree->slots + state,
                          tree->conv_at - (size_t)tree->s.odd, seed));
    assert_true(same_bits(what, rows.slots + (size_t)root * rows.slot_floats + rows.conv_at,
                          tree->slots + state + tree->conv_at, tree->slot_floats - tree->conv_at,
                          seed));
    free(rows.qkv), free(rows.a), free(rows.b);
    layer_free_results(&rows);
    layer_free_results(&chain);
}

static void check_same_layer(const Layer *got, const Layer *want, const char *what, uint64_t seed)
{
    size_t rows = (size_t)want->rows;
    assert_true(same_bits(what, got->decay, want->decay, rows * (size_t)want->s.n_v_heads, seed));
    assert_true(same_bits(what, got->out, want->out, rows * want->v_row, seed));
    assert_true(
        same_bits(what, got->slots, want->slots, (size_t)want->n_slots * want->slot_floats, seed));
}

/* All rows; a GPU's kernels once more, blocks and lanes in the other order, to the same bits. */
static void run_whole(int b, const Layer *own, Layer *got)
{
    run_rows(backend[b], got, 0, got->rows, got->src, got->dst);
    if (!is_gpu(b)) return;
    Layer twin = layer_copy(own);
    simt_reverse(1);
    run_rows(backend[b], &twin, 0, twin.rows, twin.src, twin.dst);
    simt_reverse(0);
    check_same_layer(&twin, got, "in reverse order", 0);
    layer_free_results(&twin);
}

/*
 * A decay is the exp of a product with log1p(exp(u)): a library's last bits of that, some 4 eps,
 * become as many times |log decay| of the decay.
 */
static int near_decays(const char *what, const float *got, const float *want, size_t n,
                       uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double limit = 4 * 0x1p-24 * (1 - log((double)want[i]));
        if (!near_all(what, &got[i], &want[i], 1, limit, 0, seed)) return 0;
    }
    return 1;
}

/*
 * Against ref: f32 sums of d_k terms, at most n rows deep; inputs and states are of order 1. A row
 * passes its parent's error on by decay (I - beta k k'), which is no larger than 1. The GPU's
 * kernel takes S'q apart into decay P'q + (k q) u, two sums of the same size.
 */
static void check_near_layer(const Layer *got, const Layer *want, const char *what, uint64_t seed)
{
    size_t rows = (size_t)want->rows, heads = (size_t)want->s.n_v_heads;
    double eps = 0x1p-24, unit = (want->s.d_k + 16) * eps;
    double deep = (want->s.n > 12 ? want->s.n : 12) * unit;
    assert_true(near_all(what, got->q, want->q, rows * want->qk_row, 32 * eps, 16 * eps, seed));
    assert_true(near_all(what, got->k, want->k, rows * want->qk_row, 32 * eps, 16 * eps, seed));
    assert_true(near_all(what, got->v, want->v, rows * want->v_row, 8 * eps, 16 * eps, seed));
    assert_true(near_decays(what, got->decay, want->decay, rows * heads, seed));
    assert_true(near_all(what, got->beta, want->beta, rows * heads, 6 * eps, 0, seed));
    assert_true(near_all(what, got->out, want->out, rows * want->v_row, unit, deep, seed));
    assert_true(near_all(what, got->slots, want->slots, (size_t)want->n_slots * want->slot_floats,
                         unit, deep, seed));
}

static void test_recurrence(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof delta_shapes / sizeof *delta_shapes; s++) {
        Rng r = rng_new(400 + s);
        Layer start = layer_new(&r, &delta_shapes[s]);
        plant_trees(&r, &start);
        Layer want = layer_copy(&start), first = {.rows = 0};
        run_layer(ref, &want, 0, want.rows, start.src, start.dst);
        for (int i = 0; i < want.rows; i++)
            check_path(ref, &want, &start, i, 1, "path on ref", r.seed);
        for (int b = 0; b < n_backends; b++) {
            Layer own = layer_copy(&start);
            slots_of_backend(&own, b);
            Layer got = layer_copy(&own);
            run_whole(b, &own, &got);
            if (b == leader(b)) {
                if (first.rows) layer_free_results(&first);
                first = layer_copy(&got);
                run_layer(backend[b], &first, 0, 0, start.src, start.dst); /* no rows: no change */
                memcpy(first.decay, got.decay,
                       (size_t)(got.rows * got.s.n_v_heads) * sizeof(float));
                memcpy(first.out, got.out, (size_t)got.rows * got.v_row * sizeof(float));
            }
            check_same_layer(&got, &first, about("recurrence", b), r.seed);
            for (int i = is_gpu(b) ? 2 : 0; i < got.rows; i += is_gpu(b) ? 3 : 1)
                check_path(backend[b], &got, &own, i, i % 2, about("path", b), r.seed);
            slots_of_definition(&got, b);
            check_near_layer(&got, &want, about("recurrence", b), r.seed);
            layer_free_results(&got);
            layer_free_results(&own);
        }
        layer_free_results(&first);
        layer_free_results(&want);
        layer_free(&start);
    }
}

/* ---- many sequences in a call ---- */

/* All rows in calls of 1 .. max_rows, fewer where the header does not allow them in one. */
static void run_split(Rng *r, Backend *be, Layer *l, int max_rows)
{
    for (int at = 0, n; at < l->rows; at += n) {
        n = 1 + rng_int(r, max_rows);
        if (n > l->rows - at) n = l->rows - at;
        while (!is_allowed(l->src + at, l->dst + at, n))
            n--;
        run_layer(be, l, at, n, l->src + at, l->dst + at);
    }
}

static void check_batch(Rng *r, const Layer *start)
{
    Layer want = layer_copy(start);
    assert_true(is_allowed(start->src, start->dst, start->rows));
    run_layer(ref, &want, 0, want.rows, start->src, start->dst);
    for (int b = 0; b < n_backends; b++) {
        if (b != leader(b)) continue;
        Layer own = layer_copy(start);
        slots_of_backend(&own, b);
        Layer got = layer_copy(&own);
        run_whole(b, &own, &got);
        for (int max_rows = 1; max_rows < 10; max_rows += 8) {
            Layer split = layer_copy(&own);
            run_split(r, backend[b], &split, max_rows);
            check_same_layer(&split, &got, about("split batch", b), r->seed);
            layer_free_results(&split);
        }
        slots_of_definition(&got, b);
        check_near_layer(&got, &want, about("batch", b), r->seed);
        layer_free_results(&got);
        layer_free_results(&own);
    }
    layer_free_results(&want);
}

static void test_batches(void **state)
{
    (void)state;
    static const int n_seqs[] = {1, 2, 5, N_MAIN};
    for (size_t s = 0; s < N_BATCH_SHAPES; s++)
        for (int c = 0; c < 4; c++) {
            const DeltaShape *shape = &batch_shapes[s];
            int is_large = shape->n * shape->n_v_heads * shape->d_k * shape->d_v > 1 << 18;
            if (is_large && c < 3) continue;
            Rng r = rng_new(500 + 10 * s + (uint64_t)c);
            Layer start = layer_new(&r, shape);
            plant_batch(&r, &start, n_seqs[c], c % 2);
            check_batch(&r, &start);
            layer_free(&start);
        }
}

/* ---- by hand ---- */

/* Worked out by hand in double precision: one head, d_k = d_v = 2, three tokens. */
static void test_golden(void **state)
{
    (void)state;
    static const float a[] = {-1, 0, 1}, b[] = {0, 1, -1}, dt_bias[] = {0.25f};
    static const float a_coef[] = {-1.6487212707f}; /* -exp(0.5) */
    static const float q[] = {0.31622773f, 0.63245547f, -0.63245528f,
                              0.31622764f, 0.4999995f,  0.4999995f};
    static const float k[] = {0.44721342f, -0.89442683f, 0.7071066f,
                              0.7071066f,  -0.12403472f, 0.99227775f};
    static const float v[] = {1, -1, 0.5f, 2, -1.5f, 0.25f};
    static const float want_decay[] = {0.52843131f, 0.25621358f, 0.08405681f};
    static const float want_beta[] = {0.5f, 0.73105858f, 0.26894142f};
    static const float want_out[] = {-0.21213193f, 0.21213193f,  -0.16082517f,
                                     -0.24784874f, -0.15524655f, 0.10692323f};
    static const float want_state[] = {0.07868061f, 0.07479328f, -0.38917402f, 0.13905339f};
    static const float norm_w[] = {1.5f, 0.5f}, z[] = {0.5f, -1};
    static const float want_norm[] = {-0.54371901f, -0.10786488f};
    static const int32_t slot[] = {0, 0, 0};
    for (int i = -1; i < n_backends; i++) {
        Backend *be = i < 0 ? ref : backend[i];
        float slots[16] = {0}, decay[3], beta[3], out[6], norm[2], own_v[6];
        float qkv[18] = {0}, conv_w[6] = {0}, cq[6], ck[6], cv[6];
        SlotLayer layer = {(unsigned char *)slots, sizeof slots, 0, 4 * sizeof(float)};
        be->conv_gates(be, &(ConvGates){3,     1,  1,      2,      2,       1,    qkv,
                                        a,     b,  conv_w, a_coef, dt_bias, slot, slot,
                                        layer, cq, ck,     cv,     decay,   beta, NULL});
        assert_true(near_all("decay", decay, want_decay, 3, 0, 1e-7, 0));
        assert_true(near_all("beta", beta, want_beta, 3, 0, 1e-7, 0));
        memcpy(own_v, v, sizeof v);
        be->gated_delta(be, &(GatedDelta){3, 1, 1, 2, 2, q, k, own_v, decay, beta, slot, slot,
                                          layer, out, 0, NULL});
        assert_true(near_all("out", out, want_out, 6, 0, 2e-7, 0));
        Layer l = {.s = {.n_v_heads = 1, .d_k = 2, .d_v = 2}, .n_slots = 1, .slots = slots};
        if (i >= 0) slots_of_definition(&l, i);
        assert_true(near_all("state", slots, want_state, 4, 0, 2e-7, 0));
        be->gated_norm(be, &(GatedNorm){1, 1, 2, 1e-6f, out + 4, z, norm_w, norm});
        assert_true(near_all("norm", norm, want_norm, 2, 0, 1e-5, 0));
    }
}

/* The convolution on ones and powers of two, by hand: width 3, one channel of each kind. */
static void test_convolution_by_hand(void **state)
{
    (void)state;
    static const float qkv[] = {1, 1, 4, 1, 1, 8}, conv_w[] = {0, 0, 1, 0, 0, 1, 1, 10, 100};
    static const float a[] = {0, 0}, a_coef[] = {-1}, dt_bias[] = {0};
    static const float far[] = {200, -200}, small[] = {-0.005f};
    static const int32_t src[] = {0, 1}, dst[] = {1, 2};
    for (int i = -1; i < n_backends; i++) {
        Backend *be = i < 0 ? ref : backend[i];
        float slots[3][8] = {
            {0, 0, 0, 1, 0, 0, 2}}; /* state, then oldest and newer of 3 channels */
        float q[2], k[2], v[2], decay[2], beta[2];
        SlotLayer layer = {(unsigned char *)slots, sizeof slots[0], 0, sizeof(float)};
        be->conv_gates(be, &(ConvGates){2,     1, 1,      1,      1,       3,    qkv,
                                        a,     a, conv_w, a_coef, dt_bias, src,  dst,
                                        layer, q, k,      v,      decay,   beta, NULL});
        /* v: 1 + 2 * 10 + 4 * 100, then 2 + 4 * 10 + 8 * 100; silu changes neither */
        assert_true(v[0] == 421 && v[1] == 842);
        assert_true(slots[2][3] == 4 && slots[2][6] == 8 && slots[0][3] == 1);
        /* log(2) = softplus(0) */
        assert_true(fabsf(decay[0] - 0.5f) < 1e-6f && beta[1] == 0.5f);
        /* softplus(200), whose exp(200) is beyond f32's range, is 200 */
        be->conv_gates(be,
                       &(ConvGates){2,       1,   1,   1,     1, 3, qkv, far,   a,    conv_w, small,
                                    dt_bias, src, dst, layer, q, k, v,   decay, beta, NULL});
        assert_true(fabsf(decay[0] - 0.36787944f) < 1e-6f && decay[1] == 1);
    }
}

static void test_no_allocation(void **state)
{
    (void)state;
    Rng r = rng_new(1);
    Layer l = layer_new(&r, &delta_shapes[3]);
    plant_trees(&r, &l);
    unsigned long before = mem_count();
    for (int b = 0; b < n_backends; b++)
        run_layer(backend[b], &l, 0, l.rows, l.src, l.dst);
    assert_int_equal(mem_count(), before);
    layer_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recurrence),    cmocka_unit_test(test_batches),
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_convolution_by_hand),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests_name("recurrence", tests, open_backends, close_backends);
}
