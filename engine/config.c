/*
 * config.c: see config.h.
 *
 * Text keys live in text_config when there is one, else at top level. Everything that the engine
 * cannot run is refused here by name: a setting silently ignored comes out as fluent noise.
 */
#include "engine/config.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "kernels/attention.h"
#include "kernels/gated_delta.h"
#include "kernels/moe.h"

enum {
    MAX_WIDTH = 1 << 15, /* rows or columns of any matrix but the vocabulary's */
    MAX_VOCAB = 1 << 22,
    MAX_HEADS = 1 << 10,
    MAX_D_V = 1 << 10,
    MAX_GROUP = 64, /* value heads of a key head, which a GPU has room for at once in a prompt */
};

typedef struct {
    const json_t *top, *text;
    const char *where; /* the file's name, for errors */
    ModelConfig *c;
    Error *err;
} Reader;

static int bad(const Reader *r, const char *key, const char *what)
{
    return error_set(r->err, ERR_INPUT, "%s: '%s' %s", r->where, key, what);
}

static int get_int(const Reader *r, const char *key, long lo, long hi, long fallback, int *out)
{
    return json_get_int(r->text, r->where, key, lo, hi, fallback, out, r->err);
}

/* 0 is below every lower limit of these, so it means "required". */
static int need_int(const Reader *r, const char *key, long hi, int *out)
{
    return get_int(r, key, 1, hi, 0, out);
}

/* A key, where present, must be one of the two words. */
static int need_word(const Reader *r, const json_t *obj, const char *key, const char *word,
                     const char *other)
{
    const json_t *v = json_field(obj, key);
    if (!v) return 0;
    if (!json_is_string(v)) return bad(r, key, "must be a string");
    const char *s = json_string_value(v);
    if (!strcmp(s, word) || (other && !strcmp(s, other))) return 0;
    return error_set(r->err, ERR_INPUT, "%s: '%s' is '%.40s', only '%s' is supported", r->where,
                     key, s, word);
}

/* A key, where present, must be this boolean. */
static int need_flag(const Reader *r, const char *key, int value)
{
    int v;
    if (json_get_bool(r->text, r->where, key, value, &v, r->err)) return -1;
    if (v == value) return 0;
    return error_set(r->err, ERR_INPUT, "%s: '%s' is %s, which is not supported", r->where, key,
                     v ? "true" : "false");
}

/* A key, where present, must be an empty object. */
static int need_empty(const Reader *r, const char *key)
{
    const json_t *v = json_field(r->text, key);
    if (!v || (json_is_object(v) && !json_object_size(v))) return 0;
    return bad(r, key, "is not supported");
}

static int family_of(const char *name, ModelFamily *family)
{
    static const struct {
        const char *name;
        ModelFamily family;
    } known[] = {
        {"qwen3_5", MODEL_QWEN35},
        {"qwen3_5_text", MODEL_QWEN35},
        {"Qwen3_5ForConditionalGeneration", MODEL_QWEN35},
        {"Qwen3_5ForCausalLM", MODEL_QWEN35},
        {"qwen3_5_moe", MODEL_QWEN35_MOE},
        {"qwen3_5_moe_text", MODEL_QWEN35_MOE},
        {"Qwen3_5MoeForConditionalGeneration", MODEL_QWEN35_MOE},
        {"Qwen3_5MoeForCausalLM", MODEL_QWEN35_MOE},
        {"qwen3_next", MODEL_QWEN3_NEXT},
        {"Qwen3NextForCausalLM", MODEL_QWEN3_NEXT},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            *family = known[i].family;
            return 0;
        }
    return -1;
}

/* By model_type; a file without one is known by its first architecture. */
static int read_family(const Reader *r)
{
    static const char *const names[] = {"qwen3_5", "qwen3_5_moe", "qwen3_next"};
    const char *key = "model_type";
    const json_t *v = json_field(r->top, key);
    if (!v) v = json_field(r->text, key);
    if (!v) {
        const json_t *list = json_field(r->top, "architectures");
        if (list && json_array_size(list)) {
            key = "architectures";
            v = json_array_get(list, 0);
        }
    }
    if (!v) return bad(r, key, "is missing");
    if (!json_is_string(v)) return bad(r, key, "must be a string");
    if (family_of(json_string_value(v), &r->c->family))
        return error_set(r->err, ERR_INPUT,
                         "%s: '%s' is '%.60s', supported are qwen3_5, qwen3_5_moe and qwen3_next",
                         r->where, key, json_string_value(v));
    snprintf(r->c->model_type, sizeof r->c->model_type, "%s", names[r->c->family]);
    return 0;
}

/* A classifier has the trunk of a language model, and another head. */
static int check_task(const Reader *r)
{
    const json_t *list = json_field(r->top, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name || !(strstr(name, "Classification") || strstr(name, "QuestionAnswering") ||
                   strstr(name, "RewardModel")))
        return 0;
    return error_set(r->err, ERR_INPUT, "%s: 'architectures' is '%.60s', which writes no text",
                     r->where, name);
}

/* a * b <= limit, for positive numbers that came from a file. */
static int check_product(const Reader *r, const char *what, int a, int b, int limit)
{
    if (a <= limit / b) return 0;
    return error_set(r->err, ERR_LIMIT, "%s: %s is %d x %d, the limit is %d", r->where, what, a, b,
                     limit);
}

static int read_sizes(const Reader *r)
{
    ModelConfig *c = r->c;
    double eps;
    long vocab = c->family == MODEL_QWEN3_NEXT ? 151936 : 248320;
    if (get_int(r, "vocab_size", 1, MAX_VOCAB, vocab, &c->n_vocab) ||
        need_int(r, "hidden_size", MAX_WIDTH / 2, &c->dim) ||
        need_int(r, "num_hidden_layers", MAX_LAYERS, &c->n_layers) ||
        get_int(r, "max_position_embeddings", 1, MAX_CTX_LIMIT, 32768, &c->ctx_limit) ||
        get_int(r, "mtp_num_hidden_layers", 0, MAX_LAYERS, c->family == MODEL_QWEN3_NEXT,
                &c->n_mtp) ||
        json_get_num(r->text, r->where, "rms_norm_eps", 1e-12, 1, 1e-6, &eps, r->err))
        return -1;
    c->norm_eps = (float)eps;
    return check_product(r, "'vocab_size' x 'hidden_size'", c->n_vocab, c->dim, INT_MAX);
}

static int read_layer_types(const Reader *r, const json_t *list)
{
    ModelConfig *c = r->c;
    if (!json_is_array(list)) return bad(r, "layer_types", "must be a list");
    if (json_array_size(list) != (size_t)c->n_layers)
        return error_set(r->err, ERR_INPUT, "%s: 'layer_types' has %zu entries, expected %d",
                         r->where, json_array_size(list), c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const char *s = json_string_value(json_array_get(list, (size_t)i));
        int full = s && !strcmp(s, "full_attention");
        if (!full && (!s || strcmp(s, "linear_attention") != 0))
            return error_set(r->err, ERR_INPUT,
                             "%s: 'layer_types' entry %d is '%.40s', expected linear_attention or "
                             "full_attention",
                             r->where, i, s ? s : "not a string");
        c->full_attention[i] = (unsigned char)full;
    }
    return 0;
}

/* layer_types wins over full_attention_interval. */
static int read_layers(const Reader *r)
{
    ModelConfig *c = r->c;
    const json_t *list = json_field(r->text, "layer_types");
    int interval;
    if (get_int(r, "full_attention_interval", 1, MAX_LAYERS, 4, &interval) ||
        need_flag(r, "layer_scale", 0) || need_empty(r, "per_layer_config"))
        return -1;
    if (list && read_layer_types(r, list)) return -1;
    for (int i = 0; i < c->n_layers; i++) {
        if (!list) c->full_attention[i] = (i + 1) % interval == 0;
        c->n_full += c->full_attention[i];
    }
    c->n_recurrent = c->n_layers - c->n_full;
    return 0;
}

static int read_attention(const Reader *r)
{
    ModelConfig *c = r->c;
    if (need_int(r, "num_attention_heads", MAX_HEADS, &c->n_heads) ||
        need_int(r, "num_key_value_heads", MAX_HEADS, &c->n_kv_heads) ||
        get_int(r, "head_dim", 2, MAX_HEAD_DIM, 256, &c->head_dim) ||
        need_flag(r, "attention_bias", 0) || need_flag(r, "qkv_bias", 0) ||
        need_flag(r, "attn_output_gate", 1) || need_flag(r, "is_causal", 1) ||
        need_empty(r, "dual_chunk_attention_config"))
        return -1;
    if (c->n_heads % c->n_kv_heads)
        return error_set(r->err, ERR_INPUT,
                         "%s: 'num_attention_heads' (%d) is no multiple of 'num_key_value_heads' "
                         "(%d)",
                         r->where, c->n_heads, c->n_kv_heads);
    return check_product(r, "'num_attention_heads' x 'head_dim'", c->n_heads, c->head_dim,
                         MAX_WIDTH / 2); /* q_proj has a gate row per query row */
}

static int read_delta(const Reader *r)
{
    ModelConfig *c = r->c;
    if (get_int(r, "linear_num_key_heads", 1, MAX_HEADS, 16, &c->n_k_heads) ||
        get_int(r, "linear_num_value_heads", 1, MAX_HEADS, 32, &c->n_v_heads) ||
        get_int(r, "linear_key_head_dim", 1, MAX_D_K, 128, &c->d_k) ||
        get_int(r, "linear_value_head_dim", 1, MAX_D_V, 128, &c->d_v) ||
        get_int(r, "linear_conv_kernel_dim", 2, MAX_CONV_WIDTH, 4, &c->conv_width) ||
        need_word(r, r->text, "output_gate_type", "swish", "silu"))
        return -1;
    if (c->n_v_heads % c->n_k_heads)
        return error_set(r->err, ERR_INPUT,
                         "%s: 'linear_num_value_heads' (%d) is no multiple of "
                         "'linear_num_key_heads' (%d)",
                         r->where, c->n_v_heads, c->n_k_heads);
    /* Quarters and halves, so that q + k + v channels and Qwen3-Next's fused rows fit too. */
    if (check_product(r, "'linear_num_key_heads' x 'linear_key_head_dim'", c->n_k_heads, c->d_k,
                      MAX_WIDTH / 4) ||
        check_product(r, "'linear_num_value_heads' x 'linear_value_head_dim'", c->n_v_heads, c->d_v,
                      MAX_WIDTH / 2))
        return -1;
    if (c->n_v_heads / c->n_k_heads > MAX_GROUP)
        return error_set(r->err, ERR_LIMIT,
                         "%s: 'linear_num_value_heads' (%d) is more than %d times "
                         "'linear_num_key_heads' (%d)",
                         r->where, c->n_v_heads, MAX_GROUP, c->n_k_heads);
    c->n_channels = 2 * c->n_k_heads * c->d_k + c->n_v_heads * c->d_v;
    return 0;
}

/* Layer i is a mixture iff i is not in mlp_only_layers and step divides i + 1. */
static int read_moe_layers(const Reader *r)
{
    ModelConfig *c = r->c;
    int step;
    if (get_int(r, "decoder_sparse_step", 1, MAX_LAYERS, 1, &step)) return -1;
    for (int i = 0; i < c->n_layers; i++)
        c->moe[i] = (i + 1) % step == 0;
    const json_t *list = json_field(r->text, "mlp_only_layers");
    if (!list) return 0;
    if (!json_is_array(list)) return bad(r, "mlp_only_layers", "must be a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t at;
        if (!json_whole(v, &at) || at < 0 || at >= c->n_layers)
            return bad(r, "mlp_only_layers", "must hold indices of layers");
        c->moe[at] = 0;
    }
    return 0;
}

static int read_ffn(const Reader *r)
{
    ModelConfig *c = r->c;
    int n_dense = c->family == MODEL_QWEN35 ? c->n_layers : 0;
    if (need_word(r, r->text, "hidden_act", "silu", "swish")) return -1;
    if (c->family != MODEL_QWEN35) {
        memset(c->moe, 1, (size_t)c->n_layers);
        c->head_moe = 1;
        c->norm_topk = 1;
        if (need_int(r, "num_experts", MOE_MAX_EXPERTS, &c->n_experts) ||
            need_int(r, "num_experts_per_tok",
                     c->n_experts < MOE_MAX_TOP ? c->n_experts : MOE_MAX_TOP, &c->n_experts_used) ||
            need_int(r, "moe_intermediate_size", MAX_WIDTH / 2, &c->expert_dim) ||
            need_int(r, "shared_expert_intermediate_size", MAX_WIDTH, &c->shared_dim))
            return -1;
    }
    if (c->family == MODEL_QWEN3_NEXT) {
        if (read_moe_layers(r) ||
            json_get_bool(r->text, r->where, "norm_topk_prob", 1, &c->norm_topk, r->err))
            return -1;
        for (int i = 0; i < c->n_layers; i++)
            n_dense += !c->moe[i];
    }
    /* Files of mixtures carry an intermediate_size that nothing uses; it stays 0 here. */
    return n_dense ? need_int(r, "intermediate_size", MAX_WIDTH, &c->ffn_dim) : 0;
}

int config_add_eos(ModelConfig *c, int id, const char *where, Error *err)
{
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return 0;
    if (c->n_eos == MAX_EOS)
        return error_set(err, ERR_LIMIT, "%s: 'eos_token_id': more than %d different ids", where,
                         MAX_EOS);
    c->eos[c->n_eos++] = id;
    return 0;
}

static int add_eos(const Reader *r, const json_t *v)
{
    json_int_t id;
    if (!json_whole(v, &id)) return bad(r, "eos_token_id", "must be an integer or a list of them");
    if (id >= 0 && id < r->c->n_vocab) return config_add_eos(r->c, (int)id, r->where, r->err);
    r->c->n_eos_outside++;
    return 0;
}

static int read_eos(const Reader *r, const json_t *obj)
{
    const json_t *v = json_field(obj, "eos_token_id");
    if (!v) return 0;
    if (!json_is_array(v)) return add_eos(r, v);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (add_eos(r, json_array_get(v, i))) return -1;
    return 0;
}

static int read_quantization(const Reader *r)
{
    const json_t *q = json_field(r->top, "quantization_config");
    if (!q) q = json_field(r->text, "quantization_config");
    if (q && quant_config_read(&r->c->file, q, r->where, r->err)) return -1;
    r->c->quant = r->c->file.is;
    return 0;
}

static int read_config(const Reader *r)
{
    int top, text;
    if (read_family(r) || check_task(r) || read_sizes(r) || read_layers(r) || read_attention(r) ||
        rope_read(&r->c->rope, r->text, r->where, r->c->head_dim, &r->c->ctx_limit, r->err) ||
        read_delta(r) || read_ffn(r) || read_quantization(r) || read_eos(r, r->text) ||
        (r->top != r->text && read_eos(r, r->top)) ||
        need_flag(r, "mtp_use_dedicated_embeddings", 0))
        return -1;
    if (json_get_bool(r->top, r->where, "tie_word_embeddings", 0, &top, r->err) ||
        json_get_bool(r->text, r->where, "tie_word_embeddings", 0, &text, r->err))
        return -1;
    r->c->tied = top || text;
    return 0;
}

static int get_float(const Reader *r, const char *key, double lo, double hi, float *out)
{
    double v;
    if (json_get_num(r->top, r->where, key, lo, hi, NAN, &v, r->err)) return -1;
    *out = (float)v;
    return 0;
}

static int read_generation(const Reader *r, GenerationDefaults *g)
{
    if (get_float(r, "temperature", 0, 100, &g->temperature) ||
        get_float(r, "top_p", 0, 1, &g->top_p) || get_float(r, "min_p", 0, 1, &g->min_p) ||
        get_float(r, "repetition_penalty", 1e-3, 1e3, &g->repetition) ||
        json_get_int(r->top, r->where, "top_k", -1, INT_MAX, -1, &g->top_k, r->err) ||
        json_get_bool(r->top, r->where, "do_sample", -1, &g->do_sample, r->err))
        return -1;
    if (json_field(r->top, "max_new_tokens") &&
        json_get_int(r->top, r->where, "max_new_tokens", 1, INT_MAX, 0, &g->max_tokens, r->err))
        return -1;
    return read_eos(r, r->top);
}

/* A new reference to the object in a file, or NULL and an Error. */
static json_t *read_object(const char *path, const char *name, Error *err)
{
    json_t *root = json_read_file(path, MAX_CONFIG_BYTES, err);
    if (!root || json_is_object(root)) return root;
    json_decref(root);
    error_set(err, ERR_INPUT, "%s: must hold a JSON object", name);
    return NULL;
}

static int load_config(ModelConfig *c, const char *dir, Error *err)
{
    static const char name[] = "config.json";
    char *path = path_join(dir, name);
    json_t *root = read_object(path, name, err);
    mem_free(path);
    if (!root) return -1;
    const json_t *text = json_field(root, "text_config");
    Reader r = {root, text ? text : root, name, c, err};
    int rc = json_is_object(r.text) ? read_config(&r) : bad(&r, "text_config", "must be an object");
    json_decref(root);
    return rc;
}

static int load_generation(ModelConfig *c, GenerationDefaults *g, const char *dir, Error *err)
{
    static const char name[] = "generation_config.json";
    char *path = path_join(dir, name);
    int rc = 0;
    if (file_is_in(dir, name)) {
        json_t *root = read_object(path, name, err);
        Reader r = {root, root, name, c, err};
        rc = root ? read_generation(&r, g) : -1;
        json_decref(root);
    }
    mem_free(path);
    return rc;
}

int config_load(ModelConfig *c, GenerationDefaults *g, const char *dir, Error *err)
{
    *c = (ModelConfig){0};
    *g = (GenerationDefaults){NAN, NAN, NAN, NAN, -1, -1, -1};
    return load_config(c, dir, err) || load_generation(c, g, dir, err) ? -1 : 0;
}
