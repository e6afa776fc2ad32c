/*
 * config.h: the shape of a model, read from config.json and checked once, here.
 *
 * After config_load every count is positive and bounded (those of a kind of FFN that the model
 * lacks are 0), every product of two widths fits an int, n_vocab * dim too, and the identities
 * between them hold (heads divide evenly, rotary dims are even and fit the head).
 */
#ifndef OFFSHOOT_ENGINE_CONFIG_H
#define OFFSHOOT_ENGINE_CONFIG_H

#include "base/error.h"
#include "engine/quant_config.h"
#include "engine/rope.h"

enum { MAX_LAYERS = 512, MAX_EOS = 8, MAX_CONFIG_BYTES = 16 << 20 /* of config.json */ };

typedef enum { MODEL_QWEN35, MODEL_QWEN35_MOE, MODEL_QWEN3_NEXT } ModelFamily;

typedef struct {
    ModelFamily family;
    char model_type[32]; /* of the family: "qwen3_5", "qwen3_5_moe" or "qwen3_next" */
    int n_vocab, dim, n_layers;
    int ctx_limit; /* the longest context; with a rope that is stretched, longer than trained on */
    unsigned char full_attention[MAX_LAYERS]; /* 1: gated attention, 0: gated DeltaNet */
    int n_full, n_recurrent;                  /* layers of each kind */

    int n_heads, n_kv_heads, head_dim; /* gated attention */
    Rope rope;

    int n_k_heads, n_v_heads, d_k, d_v, conv_width; /* gated DeltaNet */
    int n_channels;                                 /* 2 n_k_heads d_k + n_v_heads d_v */

    int ffn_dim; /* dense layers; 0 where all are mixtures */
    int n_experts, n_experts_used, expert_dim, shared_dim; /* mixtures; 0 where there are none */
    int norm_topk;
    unsigned char moe[MAX_LAYERS]; /* 1: the layer's FFN is a mixture of experts */
    int head_moe;                  /* the same for the MTP layer */

    float norm_eps;
    int tied;                /* lm_head is the embedding, unless the file has one */
    QuantType quant;         /* quantization_config's, or what --quant asked for */
    QuantConfig file;        /* the file's own */
    int n_mtp;               /* what the config claims, or Qwen3-Next's has although it does not;
                                the tensors decide (Model.has_mtp) */
    int eos[MAX_EOS], n_eos; /* config.json's, generation_config.json's and the tokenizer's */
    int n_eos_outside; /* end tokens in these files that the vocabulary lacks: none ever ends */
} ModelConfig;

/* Defaults of generation_config.json; NaN or -1 where it says nothing. */
typedef struct {
    float temperature, top_p, min_p, repetition;
    int top_k;
    int do_sample;  /* 0, 1, or -1 */
    int max_tokens; /* of an answer; its max_new_tokens */
} GenerationDefaults;

/*
 * Reads dir/config.json and, where present, dir/generation_config.json. Errors name file and key.
 */
int config_load(ModelConfig *c, GenerationDefaults *g, const char *dir, Error *err);

/* One more token that ends an answer, unless it is one already. */
int config_add_eos(ModelConfig *c, int id, const char *where, Error *err);

#endif
