/*
 * whole_model.h: all matrices of a model, an element of one, and a pass over some tokens.
 */
#ifndef OFFSHOOT_TESTS_WHOLE_MODEL_H
#define OFFSHOOT_TESTS_WHOLE_MODEL_H

#include "engine/model.h"

enum { MAX_MATRICES = 512, PASS_TOKENS = 40 };

typedef struct {
    const Weight *w;
    int fp8; /* 1 if FP8 checkpoints have it in FP8 */
} Matrix;

typedef struct {
    Matrix list[MAX_MATRICES];
    int n;
} Matrices;

/* The same matrix of two models of one config has the same index. */
void list_matrices(const Model *m, Matrices *all);

/* One element of a matrix in F32, BF16 or FP8, from its bytes. */
float weight_value(const Weight *w, int r, int c);

/* Fails unless w is of that type and size, has scales if that is FP8, and is aligned. */
void is_matrix(const Weight *w, WeightType type, int rows, int cols);

typedef struct {
    float *logits;      /* [PASS_TOKENS][n_vocab], to be freed with mem_free */
    double largest_rms; /* of the residual stream after any layer; all was finite */
    int n_layers_seen;
    int dim;
} Pass;

/* Runs the trunk over PASS_TOKENS tokens; for a backend in host memory. */
void run_pass(Pass *p, Model *m);

#endif
