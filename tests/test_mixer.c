/*
 * test_mixer.c: the three operations between a gated DeltaNet layer's matrices, one after the other
 * and as one, on every backend: the same bits, whatever order a GPU's blocks run in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/simt_host.h"
#include "tests/delta_trees.h"

/* Up to 16 rows of heads of 128 are one launch on a GPU; then what is not. */
static const DeltaShape mixer_shapes[] = {
    {1, 2, 128, 128, 4, 8, 0}, {2, 6, 128, 128, 4, 5, 0}, {3, 3, 128, 128, 4, 3, 0},
    {1, 1, 128, 128, 4, 9, 0}, {1, 1, 128, 128, 4, 4, 1}, {1, 1, 128, 128, 3, 4, 0},
    {1, 2, 128, 64, 4, 4, 0},  {1, 2, 64, 128, 4, 4, 0},  {2, 4, 64, 200, 4, 3, 0},
};

/* What a layer's norm takes beside the rows. */
typedef struct {
    float *z, *w;
} MixerNorm;

static DeltaMixer mixer_of(Layer *l, const MixerNorm *norm, int first, int n)
{
    DeltaMixer a = rows_of(l, first, n, l->src + first, l->dst + first);
    float *out = a.delta.out;
    a.norm = (GatedNorm){
        n, l->s.n_v_heads, l->s.d_v, 1e-6f, out, norm->z + (size_t)first * l->v_row, norm->w, out};
    return a;
}

static void check_same_mix(const Layer *got, const Layer *want, const char *what, uint64_t seed)
{
    size_t heads = (size_t)want->s.n_v_heads, rows = (size_t)want->rows;
    assert_true(same_bits(what, got->out, want->out, rows * want->v_row, seed));
    assert_true(
        same_bits(what, got->slots, want->slots, (size_t)want->n_slots * want->slot_floats, seed));
    for (size_t i = 0; i < rows; i++) { /* records */
        size_t qk = i * want->qk_row, v = i * want->v_row, gate = i * heads;
        if (want->dst[i] >= 0) continue;
        assert_true(same_bits(what, got->k + qk, want->k + qk, want->qk_row, seed));
        assert_true(same_bits(what, got->v + v, want->v + v, want->v_row, seed));
        assert_true(same_bits(what, got->decay + gate, want->decay + gate, heads, seed));
    }
}

/* All rows at once, blocks in both orders; where no tree is cut in two, in several calls, too. */
static void check_mixer(Rng *r, int b, const Layer *start, const MixerNorm *norm)
{
    const char *what = about("mixer", b);
    Backend *be = backend[b];
    Layer want = layer_copy(start);
    DeltaMixer a = mixer_of(&want, norm, 0, want.rows);
    backend_mix_in_turn(be, &a);
    for (int reverse = 0; reverse < 2; reverse++) {
        Layer got = layer_copy(start);
        a = mixer_of(&got, norm, 0, got.rows);
        simt_reverse(reverse);
        be->delta_mixer(be, &a);
        simt_reverse(0);
        check_same_mix(&got, &want, what, r->seed);
        layer_free_results(&got);
    }
    Layer split = layer_copy(start);
    for (int at = 0, n; at < split.rows && !split.parent; at += n) {
        n = 1 + rng_int(r, split.rows - at);
        while (!is_allowed(split.src + at, split.dst + at, n))
            n--;
        a = mixer_of(&split, norm, at, n);
        be->delta_mixer(be, &a);
    }
    if (!split.parent) check_same_mix(&split, &want, what, r->seed);
    layer_free_results(&split);
    layer_free_results(&want);
}

static void test_mixer(void **state)
{
    (void)state;
    enum { TRIES = 4 };
    for (size_t s = 0; s < sizeof mixer_shapes / sizeof *mixer_shapes; s++)
        for (int try = 0; try < TRIES; try++) {
            Rng r = rng_new(900 + TRIES * s + (uint64_t)try);
            const DeltaShape *shape = &mixer_shapes[s];
            Layer states = layer_new(&r, shape);
            Twins t = {.slots = layer_new(&r, shape), .drafts = layer_new(&r, shape)};
            size_t all = (size_t)states.rows * states.v_row;
            MixerNorm norm = {random_floats(&r, all, 4), random_floats(&r, (size_t)shape->d_v, 1)};
            plant_batch(&r, &states, 1 + rng_int(&r, N_MAIN), try % 2);
            plant_twins(&r, &t);
            for (int b = 0; b < n_backends; b++) {
                if (b != leader(b)) continue;
                check_mixer(&r, b, &states, &norm);
                check_mixer(&r, b, &t.drafts, &norm);
            }
            plant_one_tree(&r, &t.drafts);
            for (int b = 0; b < n_backends; b++)
                if (b == leader(b)) check_mixer(&r, b, &t.drafts, &norm);
            layer_free(&states), layer_free(&t.slots), layer_free(&t.drafts);
            free(norm.z), free(norm.w);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mixer)};
    return cmocka_run_group_tests_name("mixer", tests, open_backends, close_backends);
}
