/*
 * moe.h: the router, routing and the routed experts.
 */
#ifndef OFFSHOOT_KERNELS_MOE_H
#define OFFSHOOT_KERNELS_MOE_H

#include <stdint.h>

#include "kernels/linear.h"

/* One expert's matrices: [width][dim], [width][dim], [dim][width]. */
typedef struct {
    Weight gate, up, down;
} MoeExpert;

/*
 * Routing: p = softmax over all experts; the n_top largest (ties: lowest id); weights renormalised
 * to sum 1 when normalise. id and weight are in ascending id, the order in which they are summed:
 *
 * out = sum_j weight_j down_j(silu(gate_j x) * (up_j x))  +  sigmoid(shared_gate) * shared,
 * the shared one last. A row's sum does not depend on other rows.
 *
 * shared is what linear, swiglu and linear give with the shared expert. Where it is NULL that is
 * done here, to the same bits, by an expert of the others' type and width, in no prompt; a backend
 * says for how many rows it wants it so (moe_shared_rows in backend.h).
 */
typedef struct {
    int n, dim, width, n_experts, n_top, normalise;
    const float *x;                 /* [n][dim] */
    const float *logits;            /* [n][n_experts], the router's */
    int32_t *id;                    /* [n][n_top], what routing gives */
    float *weight;                  /* [n][n_top] */
    WeightType type;                /* of all experts */
    const Weight *gate, *up, *down; /* [n_experts] each; [width][dim], [width][dim], [dim][width];
                                       for a GPU at multiples of 16 bytes, as their data where rows
                                       are multiples of 16 bytes */
    const float *shared;            /* [n][dim], output of the shared expert; or NULL */
    const float *shared_gate;       /* [n], its logit */
    float *scratch;                 /* moe_scratch_floats(...) floats */
    float *out;                     /* [n][dim] */
    int prefill;                    /* see backend.h */
    MoeExpert shared_expert;        /* where shared is NULL */
} MoeFfn;

/*
 * Both in this order, to the bit: router's two products, of x, are ffn.logits and ffn.shared_gate.
 * A pass of the model calls this where a backend wants the shared expert's weights; the two are its
 * definition, and what a GPU runs for many rows.
 */
typedef struct {
    int n;
    Linear router;
    MoeFfn ffn;
} RoutedFfn;

/* What every backend can do. */
enum { MOE_MAX_EXPERTS = 1024, MOE_MAX_TOP = 32 };

/* Rows for which a GPU has kernels of their own, and wants the shared expert among the others. */
enum { MOE_FEW_ROWS = 16 };

/* Floats of scratch that MoeFfn needs for n rows. */
static inline int64_t moe_scratch_floats(int n, int dim, int width)
{
    return (int64_t)n * (2 * dim + 2 * width + 2 * MOE_MAX_TOP + 1);
}

#endif
