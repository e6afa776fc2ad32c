/*
 * test_fold.c: trees whose rows leave states, or records of which a fold makes the state of a path,
 * on every backend: the same bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/simt_host.h"
#include "tests/delta_trees.h"

/* Rows of `from` and, `gap` rows after its last, those of `more`. */
static float *two_layers(const float *from, const float *more, size_t rows, size_t gap, size_t row)
{
    float *x = floats((2 * rows + gap) * row);
    memcpy(x, from, rows * row * sizeof *x);
    memcpy(x + (rows + gap) * row, more, rows * row * sizeof *x);
    return x;
}

/* The paths of both layers folded in one call; the layers' slots are the two halves of a slot. */
static void fold_both(Backend *be, const Twins *t, Layer *one, Layer *two)
{
    enum { GAP = 3 };
    const DeltaShape *s = &one->s;
    size_t rows = (size_t)one->rows, heads = (size_t)s->n_v_heads, n = one->slot_floats;
    size_t bytes = n * sizeof(float);
    float *qkv = two_layers(one->qkv, two->qkv, rows, GAP, (size_t)one->n_channels);
    float *k = two_layers(one->k, two->k, rows, GAP, one->qk_row);
    float *u = two_layers(one->v, two->v, rows, GAP, one->v_row);
    float *decay = two_layers(one->decay, two->decay, rows, GAP, heads);
    float *slots = floats(2 * n * (size_t)one->n_slots);
    for (size_t i = 0; i < (size_t)one->n_slots; i++) {
        memcpy(slots + 2 * i * n, one->slots + i * n, bytes);
        memcpy(slots + (2 * i + 1) * n, two->slots + i * n, bytes);
    }
    be->delta_fold(be, &(DeltaFold){.n = t->n_paths,
                                    .n_layers = 2,
                                    .n_k_heads = s->n_k_heads,
                                    .n_v_heads = s->n_v_heads,
                                    .d_k = s->d_k,
                                    .d_v = s->d_v,
                                    .width = s->width,
                                    .stride = MAX_DRAFT_ROWS + 3,
                                    .path = t->path[0],
                                    .length = t->length,
                                    .from = t->from,
                                    .slot = t->slot,
                                    .layer_rows = one->rows + GAP,
                                    .qkv = qkv,
                                    .k = k,
                                    .u = u,
                                    .decay = decay,
                                    .slots = {(unsigned char *)slots, 2 * bytes, 0,
                                              one->conv_at * sizeof(float)},
                                    .layer_bytes = bytes});
    for (size_t i = 0; i < (size_t)one->n_slots; i++) {
        memcpy(one->slots + i * n, slots + 2 * i * n, bytes);
        memcpy(two->slots + i * n, slots + (2 * i + 1) * n, bytes);
    }
    free(slots), free(qkv), free(k), free(u), free(decay);
}

/* Takes what folds should leave to `want`: the slot of each path's last row as its main slot. */
static void promote(const Twins *t, Layer *want)
{
    size_t n = want->slot_floats;
    for (int p = 0; p < t->n_paths; p++)
        if (t->length[p] && t->slot[p] < N_MAIN)
            memcpy(want->slots + (size_t)t->slot[p] * n,
                   want->slots + (size_t)(N_MAIN + t->last[p]) * n, n * sizeof(float));
}

/* Runs both twins of a layer; the drafts' slots are then what they were, but for the prompts'. */
static void run_twins(Rng *r, Backend *be, const Twins *t, Layer *slots, Layer *drafts,
                      const char *what)
{
    size_t rows = (size_t)slots->rows;
    simt_reverse(rng_int(r, 2));
    run_rows(be, slots, 0, slots->rows, t->slots.src, t->slots.dst);
    simt_reverse(rng_int(r, 2));
    run_rows(be, drafts, 0, drafts->rows, t->drafts.src, t->drafts.dst);
    simt_reverse(0);
    assert_true(same_bits(what, drafts->q, slots->q, rows * slots->qk_row, r->seed));
    assert_true(same_bits(what, drafts->k, slots->k, rows * slots->qk_row, r->seed));
    for (size_t i = 0; i < rows; i++) { /* a draft has u there, of which its state is made */
        if (t->drafts.dst[i] < 0) continue;
        size_t at = i * slots->v_row;
        assert_true(same_bits(what, drafts->v + at, slots->v + at, slots->v_row, r->seed));
    }
    assert_true(same_bits(what, drafts->out, slots->out, rows * slots->v_row, r->seed));
}

/* The state and the convolution's inputs; what lies between them is nobody's. */
static void check_slot(Rng *r, const Layer *got, const Layer *want, size_t slot, const char *what)
{
    size_t row = want->slot_floats, conv = want->conv_at, gap = (size_t)want->s.odd;
    const float *x = got->slots + slot * row, *y = want->slots + slot * row;
    assert_true(same_bits(what, x, y, conv - gap, r->seed));
    assert_true(same_bits(what, x + conv, y + conv, row - conv, r->seed));
}

static void check_twins(Rng *r, Backend *be, const Twins *t, const Layer start[2], int transposed,
                        const char *what)
{
    Layer slots[2], drafts[2];
    for (int l = 0; l < 2; l++) {
        slots[l] = layer_copy(&start[l]);
        if (transposed) transpose_states(&slots[l], start[l].s.d_k, start[l].s.d_v);
        drafts[l] = layer_copy(&slots[l]);
        drafts[l].parent = t->drafts.parent;
        Layer before = layer_copy(&slots[l]);
        run_twins(r, be, t, &slots[l], &drafts[l], what);
        for (int p = 0; p < t->n_paths; p++) { /* a tree's own slot stays */
            size_t at = (size_t)t->from[p] * before.slot_floats;
            assert_true(same_bits(what, drafts[l].slots + at, before.slots + at, before.slot_floats,
                                  r->seed));
        }
        layer_free_results(&before);
        promote(t, &slots[l]);
    }
    fold_both(be, t, &drafts[0], &drafts[1]);
    for (int l = 0; l < 2; l++) {
        size_t row = slots[l].slot_floats, own = N_MAIN * row; /* nobody's slots */
        const float *was = start[l].slots + own;
        for (size_t i = 0; i < N_MAIN; i++)
            check_slot(r, &drafts[l], &slots[l], i, what);
        for (int p = 0; p < t->n_paths; p++) {
            size_t i = (size_t)t->slot[p];
            if (i < N_MAIN || !t->length[p]) continue;
            check_slot(r, &drafts[l], &slots[l], i, what);
            memcpy(drafts[l].slots + i * row, start[l].slots + i * row, row * sizeof(float));
        }
        if (!transposed)
            assert_true(
                same_bits(what, drafts[l].slots + own, was, (size_t)start[l].rows * row, r->seed));
        layer_free_results(&slots[l]);
        layer_free_results(&drafts[l]);
    }
}

static void test_drafts(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2 * N_BATCH_SHAPES; k++) {
        const DeltaShape *shape = &batch_shapes[k % N_BATCH_SHAPES];
        Rng r = rng_new(700 + k);
        Layer start[2] = {layer_new(&r, shape), layer_new(&r, shape)};
        Twins t = {.slots = layer_new(&r, shape), .drafts = layer_new(&r, shape)};
        plant_twins(&r, &t);
        check_twins(&r, ref, &t, start, 0, "drafts on ref");
        for (int b = 0; b < n_backends; b++)
            check_twins(&r, backend[b], &t, start, is_gpu(b), about("drafts", b));
        layer_free(&t.slots), layer_free(&t.drafts);
        layer_free(&start[0]), layer_free(&start[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drafts)};
    return cmocka_run_group_tests_name("fold", tests, open_backends, close_backends);
}
