/*
 * delta_layer.h: a gated DeltaNet layer's arrays, for the tests of its recurrences.
 */
#ifndef OFFSHOOT_TESTS_DELTA_LAYER_H
#define OFFSHOOT_TESTS_DELTA_LAYER_H

#include "tests/backends.h"

typedef struct {
    int n_k_heads, n_v_heads, d_k, d_v, width, n; /* 2 n rows */
    int odd; /* floats between states and conv rows, so that slots are not aligned */
} DeltaShape;

enum { N_MAIN = 8 };

/* A layer's arrays for 2 n rows; slots below N_MAIN are main slots, N_MAIN + i is row i's own. */
typedef struct {
    DeltaShape s;
    int rows, n_slots, n_channels;
    size_t qk_row, v_row, slot_floats, conv_at;
    float *qkv, *a, *b, *conv_w, *a_coef, *dt_bias, *slots;
    int32_t *src, *dst, *parent; /* parent is NULL without drafts */
    /* results */
    float *q, *k, *v, *decay, *beta, *out;
} Layer;

/* Inputs and slots at random; src, dst are to be filled in. */
Layer layer_new(Rng *r, const DeltaShape *s);

/* A copy with the same inputs and its own slots and results. */
Layer layer_copy(const Layer *from);
void layer_free_results(Layer *l);
void layer_free(Layer *l);

/* What conv_gates and gated_delta do with rows first .. first + n of the layer, from slots src[] to
 * dst[]; no norm. */
DeltaMixer rows_of(Layer *l, int first, int n, const int32_t *src, const int32_t *dst);

/* Has be do that. */
void run_rows(Backend *be, Layer *l, int first, int n, const int32_t *src, const int32_t *dst);

/* The same; a GPU's kernels run in the reverse order in every other call. */
void run_layer(Backend *be, Layer *l, int first, int n, const int32_t *src, const int32_t *dst);

/* Makes each head's state, n_rows x n_cols, n_cols x n_rows. */
void transpose_states(Layer *l, int n_rows, int n_cols);

/* The definition's slots as backend b keeps them, and back. */
void slots_of_backend(Layer *l, int b);
void slots_of_definition(Layer *l, int b);

#endif
