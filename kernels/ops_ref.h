/*
 * ops_ref.h: the definitions of all operations, in the plainest C, one thread, host memory.
 *
 * Sums run in double and are rounded to f32 once, so that a faster version is compared with
 * something closer to the formula than itself. What a later step reads again (K, V, states,
 * convolution rows, norms) is f32, as everywhere.
 */
#ifndef OFFSHOOT_KERNELS_OPS_REF_H
#define OFFSHOOT_KERNELS_OPS_REF_H

#include "kernels/attention.h"
#include "kernels/gated_delta.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/quantise.h"
#include "kernels/round.h"
#include "kernels/rows.h"
#include "kernels/sample.h"

/* Element [row][col] of w as f32. */
float weight_at(const Weight *w, int row, int col);
/* A row of x as products with w take it. prefill: backend.h. */
void linear_factors(const Weight *w, int prefill, const float *x, float *out);

void linear_ref(const Linear *a);

void embed_ref(const Embed *a);
void gather_rows_ref(const GatherRows *a);
void add_norm_ref(const AddNorm *a);
void gated_norm_ref(const GatedNorm *a);
void swiglu_ref(const SwiGlu *a);
void move_rows_ref(const MoveRows *a);
int quantise_int_ref(const QuantiseInt *a);

void conv_gates_ref(const ConvGates *a);
void gated_delta_ref(const GatedDelta *a);
void delta_fold_ref(const DeltaFold *a);

void attention_prepare_ref(const AttentionPrepare *a);
void tree_attention_ref(const TreeAttention *a);

void moe_ffn_ref(const MoeFfn *a);

/* A candidate of one row while it is sampled. */
typedef struct {
    int32_t id;
    float logit;       /* processed */
    double p, e, rank; /* share before normalising, noise, what the result is sorted by */
} Candidate;

/* scratch: n_vocab candidates. */
void sample_ref(const Sample *a, Candidate *scratch);
void token_logprobs_ref(const TokenLogprobs *a);

void grow_drafts_ref(const GrowDrafts *a);
void plant_trees_ref(const PlantTrees *a);
void accept_trees_ref(const AcceptTrees *a);

#endif
