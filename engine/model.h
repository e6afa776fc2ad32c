/*
 * model.h: a model's weights, found in the checkpoint, checked against the config, in one layout.
 *
 * All three families end in the same structs: Qwen3-Next's interleaved projections are taken apart
 * at load, fused experts are split into views, zero-centred norm weights get their "1 +". Large
 * matrices stay in the mapping (or go to the device once); small vectors are f32.
 */
#ifndef OFFSHOOT_ENGINE_MODEL_H
#define OFFSHOOT_ENGINE_MODEL_H

#include <stdint.h>

#include "base/error.h"
#include "engine/config.h"
#include "engine/dummy.h"
#include "kernels/backend.h"

typedef struct {
    const float *norm;            /* [dim] */
    Weight q, k, v, o;            /* q: per head 2 * head_dim rows, query then gate */
    const float *q_norm, *k_norm; /* [head_dim] */
} AttentionWeights;

typedef struct {
    const float *norm; /* [dim] */
    Weight qkv, z, b, a, out;
    const float *conv_w;   /* [n_channels][conv_width] */
    const float *a_coef;   /* [n_v_heads], -exp(A_log) */
    const float *dt_bias;  /* [n_v_heads] */
    const float *out_norm; /* [d_v], plain weight */
} DeltaWeights;

typedef struct {
    const float *norm; /* [dim], the post-attention norm */
    int moe;
    Weight gate, up, down; /* the dense FFN, or the shared expert */
    Weight router, shared_gate;
    WeightType expert_type;
    const Weight *expert_gate, *expert_up, *expert_down; /* [n_experts], backend memory */
} FfnWeights;

typedef struct {
    AttentionWeights attention; /* where config.full_attention */
    DeltaWeights delta;         /* elsewhere */
    FfnWeights ffn;
} LayerWeights;

typedef struct {
    const float *embed_norm, *hidden_norm, *final_norm; /* [dim] */
    Weight fc; /* [dim][2 dim]: embedding first, hidden row second */
    AttentionWeights attention;
    FfnWeights ffn;
} HeadWeights;

typedef enum { ACT_F32, ACT_BF16, ACT_FP8 } ActType;

typedef struct {
    QuantType quant; /* what wide matrices become, without those that quantise.h keeps so */
    /* The same of the draft head's layer, and of the rows of the LM head that it scores (scored.h),
     * NONE: as the rest. No token depends on it. */
    QuantType draft_quant;
    /* What matrices are multiplied with. BF16, on a CPU: bf16 ones, without those that q8 keeps
     * wide; FP8, on a GPU: FP8 ones, by a prompt's rows. */
    ActType act;
    DummyType dummy; /* other than DUMMY_NONE: dir needs no weights, they are random */
} ModelOptions;

typedef struct Model {
    ModelConfig config;
    GenerationDefaults generation;
    Weight embed, lm_head;
    const float *final_norm; /* [dim] */
    const float *inv_freq;   /* [n_rot / 2] */
    LayerWeights *layer;     /* [n_layers] */
    int has_mtp;
    HeadWeights head;         /* valid when has_mtp */
    int64_t n_params;         /* of the trunk and the head */
    int64_t file_bytes;       /* the tensors with these in the checkpoint, or in one of dummies */
    size_t weight_bytes;      /* what one pass over the trunk reads, experts counted once each */
    size_t head_weight_bytes; /* the draft head's beside them */
    int prefill;              /* PREFILL_EXACT or _FP8: of prompts, where they run apart */
    Backend *backend;         /* borrowed */
    ModelOptions options;     /* as it was opened */
    void *owned;              /* mapping and copies; for model_close */
} Model;

/*
 * Opens the checkpoint in dir for a backend, which must outlive the model; options NULL: as the
 * files are. Errors name the tensor, its shape and what was expected. Missing MTP tensors are no
 * error: has_mtp is 0.
 */
Model *model_open(const char *dir, const ModelOptions *options, Backend *backend, Error *err);
void model_close(Model *m);

/*
 * Writes the checkpoint in dir to the folder `to` with matrices made INT8 or INT4, as QUANT_Q8 or
 * QUANT_Q4 make them: a model that is opened from there is the same, to the bit. Vision and other
 * tensors that the model does not consist of stay behind. No more than one tensor, or one layer's
 * experts, is in memory. *bytes: of the weights written. A folder that holds weights is an error.
 */
int model_save_quantised(const char *dir, const char *to, QuantType quant, Backend *cpu,
                         int64_t *bytes, Error *err);

/*
 * Bytes of weights that a pass over n rows of the trunk and the LM head reads. Of n_experts those
 * that n rows choose on average, if they choose independently: n_experts (1 - (1 - n_experts_used /
 * n_experts)^n).
 */
double model_pass_bytes(const Model *m, int n);

/* The same of the draft head's layer and one row, without its LM head (scored.h); 0: no head. */
double model_head_bytes(const Model *m);

#endif
