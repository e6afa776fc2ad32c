/*
 * model.c: see model.h. What a model of each family consists of, under which names.
 */
#include "engine/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "engine/loader.h"
#include "engine/unpack.h"

/* What stands before the names of the family, by who wrote the checkpoint; it ends with a dot. */
typedef struct {
    char trunk[64];       /* "model.language_model.", "model." */
    char lm_head[64];     /* mostly "" */
    char mtp[64];         /* "mtp."; "": there is no tensor of an MTP head */
    const char *mtp_file; /* where one is */
} Prefixes;

static int load_attention(Loader *l, const ModelConfig *c, AttentionWeights *w)
{
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    if (loader_norm(l, "input_layernorm", c->dim, &w->norm) ||
        loader_norm(l, "self_attn.q_norm", c->head_dim, &w->q_norm) ||
        loader_norm(l, "self_attn.k_norm", c->head_dim, &w->k_norm) ||
        loader_matrix(l, "self_attn.q_proj", 2 * q, c->dim, &w->q) ||
        loader_matrix(l, "self_attn.k_proj", kv, c->dim, &w->k) ||
        loader_matrix(l, "self_attn.v_proj", kv, c->dim, &w->v) ||
        loader_matrix(l, "self_attn.o_proj", c->dim, q, &w->o))
        return -1;
    return 0;
}

/* Qwen3-Next: in_proj_qkvz and in_proj_ba, interleaved by key head. */
static int load_fused_projections(Loader *l, const ModelConfig *c, DeltaWeights *w)
{
    int n_z = c->n_v_heads * c->d_v, n_qkv = c->n_channels, n_b = c->n_v_heads;
    size_t n_rows = (size_t)n_qkv + (size_t)n_z + 2 * (size_t)n_b;
    int *rows = mem_alloc(n_rows, sizeof *rows);
    NextRows map = {rows, rows + n_qkv, rows + n_qkv + n_z, rows + n_qkv + n_z + n_b};
    unpack_next_rows(c, &map);
    SplitPart qkvz[2] = {{"linear_attn.in_proj_qkv", map.qkv, n_qkv, &w->qkv},
                         {"linear_attn.in_proj_z", map.z, n_z, &w->z}};
    SplitPart ba[2] = {{"linear_attn.in_proj_b", map.b, n_b, &w->b},
                       {"linear_attn.in_proj_a", map.a, n_b, &w->a}};
    int failed = loader_split(l, "linear_attn.in_proj_qkvz", c->dim, qkvz) ||
                 loader_split(l, "linear_attn.in_proj_ba", c->dim, ba);
    mem_free(rows);
    return failed ? -1 : 0;
}

static int load_projections(Loader *l, const ModelConfig *c, DeltaWeights *w)
{
    if (c->family == MODEL_QWEN3_NEXT) return load_fused_projections(l, c, w);
    if (loader_matrix(l, "linear_attn.in_proj_qkv", c->n_channels, c->dim, &w->qkv) ||
        loader_matrix(l, "linear_attn.in_proj_z", c->n_v_heads * c->d_v, c->dim, &w->z) ||
        loader_matrix(l, "linear_attn.in_proj_b", c->n_v_heads, c->dim, &w->b) ||
        loader_matrix(l, "linear_attn.in_proj_a", c->n_v_heads, c->dim, &w->a))
        return -1;
    return 0;
}

/*
 * MLX lays the convolution out as [channels][width][1], and its norms hold 1 + w: read as what they
 * are not, they would give nonsense without a word.
 */
static int check_layout(const Loader *l, const ModelConfig *c)
{
    const Tensor *t = loader_find(l, "linear_attn.conv1d", ".weight");
    if (!t || t->n_dims != 3 || t->dim[1] != c->conv_width || t->dim[2] != 1) return 0;
    return error_set(l->err, ERR_FILE,
                     "cannot load '%.60s': tensor '%s' has MLX's layout, which is not supported: "
                     "take the checkpoint it was made of",
                     t->file, t->name);
}

static int load_delta(Loader *l, const ModelConfig *c, DeltaWeights *w)
{
    float *conv, *dt, *a, *norm;
    if (check_layout(l, c)) return -1;
    if (loader_norm(l, "input_layernorm", c->dim, &w->norm) || load_projections(l, c, w) ||
        loader_matrix(l, "linear_attn.out_proj", c->dim, c->n_v_heads * c->d_v, &w->out) ||
        loader_vector(l, "linear_attn.conv1d", ".weight", c->n_channels, c->conv_width, 0, &conv) ||
        loader_vector(l, "linear_attn.dt_bias", "", c->n_v_heads, 1, 0, &dt) ||
        loader_vector(l, "linear_attn.norm", ".weight", c->d_v, 1, 0, &norm) ||
        loader_vector(l, "linear_attn.A_log", "", c->n_v_heads, 1, 0, &a))
        return -1;
    for (int h = 0; h < c->n_v_heads; h++)
        a[h] = -expf(a[h]);
    w->conv_w = loader_place_floats(l, conv, (size_t)c->n_channels * (size_t)c->conv_width);
    w->dt_bias = loader_place_floats(l, dt, (size_t)c->n_v_heads);
    w->out_norm = loader_place_floats(l, norm, (size_t)c->d_v);
    w->a_coef = loader_place_floats(l, a, (size_t)c->n_v_heads);
    return w->conv_w && w->dt_bias && w->out_norm && w->a_coef ? 0 : -1;
}

/* The three matrices of a gated FFN under scope. */
static int load_gated(Loader *l, const ModelConfig *c, const char *scope, int width, Weight *gate,
                      Weight *up, Weight *down)
{
    char leaf[64];
    snprintf(leaf, sizeof leaf, "%s.gate_proj", scope);
    if (loader_matrix(l, leaf, width, c->dim, gate)) return -1;
    snprintf(leaf, sizeof leaf, "%s.up_proj", scope);
    if (loader_matrix(l, leaf, width, c->dim, up)) return -1;
    snprintf(leaf, sizeof leaf, "%s.down_proj", scope);
    return loader_matrix(l, leaf, c->dim, width, down);
}

/* One tensor for all experts: [n_experts][gate rows, then up rows][dim]. */
static int load_stacked_experts(Loader *l, const ModelConfig *c, Weight *table)
{
    int n = c->n_experts;
    if (loader_stack(l, "mlp.experts.gate_up_proj", n, 2, c->expert_dim, c->dim, table) ||
        loader_stack(l, "mlp.experts.down_proj", n, 1, c->dim, c->expert_dim, table + 2 * n))
        return -1;
    return 0;
}

/* Whether all experts are packed, in at most four bits. */
static int experts_have_few_bits(Loader *l, const ModelConfig *c)
{
    static const char *const part[] = {"down", "gate", "up"};
    for (int i = 0; i < 3 * c->n_experts; i++) {
        char leaf[64];
        int rows = i % 3 ? c->expert_dim : c->dim, cols = i % 3 ? c->dim : c->expert_dim;
        snprintf(leaf, sizeof leaf, "mlp.experts.%d.%s_proj", i / 3, part[i % 3]);
        if (!loader_has_few_bits(l, leaf, rows, cols)) return 0;
    }
    return 1;
}

static int load_single_experts(Loader *l, const ModelConfig *c, Weight *table)
{
    for (int e = 0; e < c->n_experts; e++) {
        char scope[32];
        snprintf(scope, sizeof scope, "mlp.experts.%d", e);
        if (load_gated(l, c, scope, c->expert_dim, &table[e], &table[c->n_experts + e],
                       &table[2 * c->n_experts + e]))
            return -1;
    }
    return 0;
}

/* The experts' table: gate of each, up of each, down of each; all are of one type. */
static int load_experts(Loader *l, const ModelConfig *c, FfnWeights *w)
{
    size_t n = (size_t)c->n_experts;
    Weight *table = loader_block(l, 3 * n, sizeof *table);
    int stacked = loader_find(l, "mlp.experts.gate_up_proj", "") != NULL;
    QuantType quant = l->quant;
    if (quant == QUANT_INT) l->quant = experts_have_few_bits(l, c) ? QUANT_Q4 : QUANT_Q8;
    if (stacked ? load_stacked_experts(l, c, table) : load_single_experts(l, c, table)) return -1;
    l->quant = quant;
    w->expert_type = table[0].type;
    for (size_t i = 0; i < 3 * n; i++)
        if (table[i].type != w->expert_type)
            return error_set(l->err, ERR_FILE,
                             "cannot load '%.60s': the experts of '%s' are of different types",
                             l->dir, l->scope);
    w->expert_gate = loader_place(l, table, 3 * n * sizeof *table);
    if (!w->expert_gate) return -1;
    w->expert_up = w->expert_gate + n;
    w->expert_down = w->expert_up + n;
    return 0;
}

static int load_ffn(Loader *l, const ModelConfig *c, int moe, FfnWeights *w)
{
    w->moe = moe;
    if (loader_norm(l, "post_attention_layernorm", c->dim, &w->norm)) return -1;
    if (!moe) return load_gated(l, c, "mlp", c->ffn_dim, &w->gate, &w->up, &w->down);
    if (loader_matrix(l, "mlp.gate", c->n_experts, c->dim, &w->router) ||
        loader_matrix(l, "mlp.shared_expert_gate", 1, c->dim, &w->shared_gate) ||
        load_gated(l, c, "mlp.shared_expert", c->shared_dim, &w->gate, &w->up, &w->down))
        return -1;
    return load_experts(l, c, w);
}

static int load_layers(Loader *l, Model *m, const char *prefix)
{
    const ModelConfig *c = &m->config;
    m->layer = loader_block(l, (size_t)c->n_layers, sizeof *m->layer);
    for (int i = 0; i < c->n_layers; i++) {
        LayerWeights *w = &m->layer[i];
        loader_scope(l, prefix, i);
        if (c->full_attention[i] ? load_attention(l, c, &w->attention)
                                 : load_delta(l, c, &w->delta))
            return -1;
        if (load_ffn(l, c, c->moe[i], &w->ffn)) return -1;
    }
    return 0;
}

static int same_bytes(const Tensor *a, const Tensor *b)
{
    return a->type == b->type && a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
}

/*
 * A file's own lm_head is used whatever the config says of ties, as the reference does: where the
 * two say different things, or a model was tuned after it was untied. Of a copy of the embedding
 * one is enough.
 */
static int load_lm_head(Loader *l, Model *m, const char *prefix, const Tensor *embed)
{
    loader_scope(l, prefix, -1);
    const Tensor *own = loader_find(l, "lm_head", ".weight");
    int is_tied = m->config.tied && !loader_is_packed(l, "lm_head");
    if (is_tied && (!own || same_bytes(own, embed))) {
        m->lm_head = m->embed;
        return 0;
    }
    l->bytes = 0; /* a pass reads this matrix, and of the embedding a few rows */
    return loader_matrix(l, "lm_head", m->config.n_vocab, m->config.dim, &m->lm_head);
}

static int load_globals(Loader *l, Model *m, const Prefixes *p)
{
    const ModelConfig *c = &m->config;
    size_t n = (size_t)c->rope.n_rot / 2;
    loader_scope(l, p->trunk, -1);
    if (loader_matrix(l, "embed_tokens", c->n_vocab, c->dim, &m->embed) ||
        loader_norm(l, "norm", c->dim, &m->final_norm))
        return -1;
    const Tensor *embed = loader_find(l, "embed_tokens", ".weight");
    if (m->embed.type == WEIGHT_FP8) return loader_bad_type(l, embed, "BF16, F16 or F32");
    float *f = loader_floats(l, n);
    rope_frequencies(&c->rope, f);
    m->inv_freq = loader_place_floats(l, f, n);
    return m->inv_freq ? load_lm_head(l, m, p->lm_head, embed) : -1;
}

static int load_head(Loader *l, Model *m, const char *prefix)
{
    const ModelConfig *c = &m->config;
    HeadWeights *h = &m->head;
    loader_scope(l, prefix, 1);
    if (c->n_mtp > 1 && loader_find(l, "input_layernorm", ".weight"))
        log_warn("mtp_layers found=%d used=1", c->n_mtp);
    loader_scope(l, prefix, -1);
    if (l->quant == QUANT_INT && l->n_few_bits) l->quant = QUANT_Q4; /* as the model, for speed */
    if (loader_matrix(l, "fc", c->dim, 2 * c->dim, &h->fc) ||
        loader_norm(l, "pre_fc_norm_embedding", c->dim, &h->embed_norm) ||
        loader_norm(l, "pre_fc_norm_hidden", c->dim, &h->hidden_norm) ||
        loader_norm(l, "norm", c->dim, &h->final_norm))
        return -1;
    loader_scope(l, prefix, 0);
    if (load_attention(l, c, &h->attention) || load_ffn(l, c, c->head_moe, &h->ffn)) return -1;
    m->has_mtp = 1;
    return 0;
}

/*
 * All of the head or none of it: a part of one is a broken file. One in a file of its own may be
 * another program's, in a form that only that one reads: the model is whole without it.
 */
static int load_head_if_any(Loader *l, Model *m, const Prefixes *p)
{
    Error why, *err = l->err;
    LoaderMark before = loader_mark(l);
    l->err = &why;
    int failed = *p->mtp && load_head(l, m, p->mtp);
    l->err = err;
    if (!failed) return 0;
    if (why.code != ERR_FILE || l->saver || !text_ends_with(p->mtp_file, "mtp.safetensors"))
        return error_set(err, why.code, "%s", why.msg);
    log_warn("mtp_ignored file=%s reason=\"%s\"", p->mtp_file, why.msg);
    loader_undo(l, &before);
    return 0;
}

/*
 * Keeps what stands in t's name before this part of it, if that is its last. Of several such
 * tensors, which other towers may have, it is the one with a row for each of the model's tokens.
 */
static void take_prefix(const ModelConfig *c, const Tensor *t, const char *part, char out[64],
                        int *found)
{
    int n = (int)(strlen(t->name) - strlen(part));
    int fits = t->n_dims == 2 && t->dim[0] == c->n_vocab && t->dim[1] == c->dim;
    if (!text_ends_with(t->name, part) || (n && t->name[n - 1] != '.') || (*found && !fits)) return;
    snprintf(out, 64, "%.*s", n, t->name);
    *found = 1;
}

/* The trunk is known by its embedding, the head by any tensor; of dummies there are all. */
static int find_prefixes(Loader *l, const ModelConfig *c, Prefixes *p)
{
    static const char *const lm_heads[] = {"lm_head.weight", "lm_head.weight_packed",
                                           "lm_head.qweight"};
    int found = 0, found_lm_head = 0;
    *p = (Prefixes){.trunk = "model.", .mtp_file = ""};
    if (l->dummy) {
        if (c->n_mtp > 0) snprintf(p->mtp, sizeof p->mtp, "mtp.");
        return 0;
    }
    for (int i = 0; i < safetensors_count(l->own->st); i++) {
        const Tensor *t = safetensors_at(l->own->st, i);
        const char *name = t->name, *head = tensor_of_head(name);
        if (strstr(name, ".lora_"))
            return error_set(l->err, ERR_FILE,
                             "cannot load '%.60s': tensor '%s' is an adapter's: merge it first",
                             l->dir, name);
        if (head) {
            snprintf(p->mtp, sizeof p->mtp, "%.*s", (int)(head - name), name);
            p->mtp_file = t->file;
            continue;
        }
        take_prefix(c, t, "embed_tokens.weight", p->trunk, &found);
        for (int k = 0; k < 3; k++)
            take_prefix(c, t, lm_heads[k], p->lm_head, &found_lm_head);
    }
    if (found) return 0;
    return error_set(l->err, ERR_FILE,
                     "cannot load '%.80s': tensor 'embed_tokens.weight' is missing, "
                     "under any prefix",
                     l->dir);
}

static int is_of_integers(QuantType quant)
{
    return quant == QUANT_Q8 || quant == QUANT_Q4 || quant == QUANT_INT;
}

/* That the backend has it. */
static int check_quant(const Loader *l, const Model *m, QuantType to)
{
    if (!is_of_integers(to) || m->backend->quantise_int) return 0;
    return error_set(l->err, ERR_INPUT, "%s is for the CPU: on a GPU quantise to fp8",
                     quant_name(to));
}

/* What wide matrices become; config.quant is what the checkpoint says, and then what they are. */
static int choose_quant(Loader *l, const ModelOptions *options, Model *m)
{
    QuantType to = options->quant, head = options->draft_quant, *is = &m->config.quant;
    if (options->dummy) *is = options->dummy == DUMMY_FP8 ? QUANT_FP8 : QUANT_NONE;
    if (options->dummy && (to == QUANT_FP8 || (head == QUANT_FP8 && *is != QUANT_FP8)))
        return error_set(l->err, ERR_INPUT,
                         "dummy weights are not quantised to fp8: such ones can be had from the "
                         "start");
    if (l->saver && *is)
        return error_set(l->err, ERR_INPUT, "'%.160s' has %s weights already", l->dir,
                         quant_name(*is));
    if (is_of_integers(*is) && to && to != *is)
        return error_set(l->err, ERR_INPUT, "the weights are %s: %s is made of wider ones",
                         quant_name(*is), quant_name(to));
    if (check_quant(l, m, to) || check_quant(l, m, head)) return -1;
    l->takes_int = is_of_integers(*is);
    l->zeros = m->config.file.zeros;
    if (to) *is = to;
    l->quant = to;
    return 0;
}

static int check_act(const Loader *l, ActType act, const Model *m)
{
    if (act == ACT_BF16 && !m->backend->quantise_int)
        return error_set(l->err, ERR_INPUT, "act-dtype bf16 is for the CPU");
    if (act == ACT_FP8 && !m->backend->prefill_differs)
        return error_set(l->err, ERR_INPUT, "act-dtype fp8 is for a GPU");
    if (act == ACT_FP8 && m->config.quant != QUANT_FP8)
        return error_set(l->err, ERR_INPUT,
                         "act-dtype fp8 is for FP8 weights, this model's are wider: --quant fp8");
    return 0;
}

static int load_model(Loader *l, const ModelOptions *options, Model *m)
{
    Prefixes p;
    if (config_load(&m->config, &m->generation, l->dir, l->err) || choose_quant(l, options, m) ||
        check_act(l, options->act, m))
        return -1;
    int longest = m->backend->max_head_dim;
    if (longest && m->config.head_dim > longest)
        return error_set(l->err, ERR_INPUT,
                         "the model's 'head_dim' is %d, this GPU has shared memory for %d: use "
                         "--device cpu",
                         m->config.head_dim, longest);
    l->rounds_x = options->act == ACT_BF16;
    m->options = *options;
    m->prefill = options->act == ACT_FP8 ? PREFILL_FP8 : PREFILL_EXACT;
    if (options->dummy) l->dummy = dummy_open(options->dummy, m->backend);
    if (loader_open(l)) return -1;
    if (l->saver) saver_begin(l->saver, l->own->st);
    if (find_prefixes(l, &m->config, &p) || load_globals(l, m, &p) || load_layers(l, m, p.trunk))
        return -1;
    m->weight_bytes = l->bytes;
    if (options->draft_quant) l->quant = options->draft_quant;
    if (load_head_if_any(l, m, &p) || loader_finish(l)) return -1;
    m->head_weight_bytes = l->bytes - m->weight_bytes;
    return 0;
}

/* With nothing in it yet; for model_close. */
static Model *new_model(Backend *backend)
{
    Model *m = mem_alloc(1, sizeof *m);
    Owned *own = mem_alloc(1, sizeof *own);
    own->backend = backend;
    m->owned = own;
    m->backend = backend;
    return m;
}

Model *model_open(const char *dir, const ModelOptions *options, Backend *backend, Error *err)
{
    static const ModelOptions defaults;
    Model *m = new_model(backend);
    Owned *own = m->owned;
    Loader l = {.own = own, .dir = dir, .err = err};
    int failed = load_model(&l, options ? options : &defaults, m);
    transfers_free(&l.transfers);
    dummy_close(l.dummy);
    if (!failed) {
        m->n_params = own->n_params;
        m->file_bytes = own->file_bytes;
        return m;
    }
    model_close(m);
    return NULL;
}

int model_save_quantised(const char *dir, const char *to, QuantType quant, Backend *cpu,
                         int64_t *bytes, Error *err)
{
    Model *m = new_model(cpu);
    Loader l = {.own = m->owned, .saver = saver_open(to, dir, err), .dir = dir, .err = err};
    int failed = !l.saver || load_model(&l, &(ModelOptions){.quant = quant}, m) ||
                 saver_finish(l.saver, quant, bytes, err);
    saver_close(l.saver);
    model_close(m);
    return failed ? -1 : 0;
}

void model_close(Model *m)
{
    if (!m) return;
    owned_close(m->owned);
    mem_free(m->owned);
    mem_free(m);
}

/* ---- bytes ---- */

static double attention_bytes(const AttentionWeights *w)
{
    return weight_bytes(&w->q) + weight_bytes(&w->k) + weight_bytes(&w->v) + weight_bytes(&w->o);
}

static double delta_bytes(const DeltaWeights *w)
{
    return weight_bytes(&w->qkv) + weight_bytes(&w->z) + weight_bytes(&w->b) + weight_bytes(&w->a) +
           weight_bytes(&w->out);
}

static double ffn_bytes(const ModelConfig *c, const FfnWeights *w, int n)
{
    double dense = weight_bytes(&w->gate) + weight_bytes(&w->up) + weight_bytes(&w->down) +
                   weight_bytes(&w->router) + weight_bytes(&w->shared_gate);
    if (!w->moe) return dense;
    Weight up = {.type = w->expert_type, .rows = c->expert_dim, .cols = c->dim};
    double missed = pow(1 - (double)c->n_experts_used / c->n_experts, n);
    return dense + c->n_experts * (1 - missed) * 3 * weight_bytes(&up);
}

double model_pass_bytes(const Model *m, int n)
{
    double bytes = weight_bytes(&m->lm_head);
    for (int i = 0; i < m->config.n_layers; i++) {
        const LayerWeights *w = &m->layer[i];
        bytes +=
            m->config.full_attention[i] ? attention_bytes(&w->attention) : delta_bytes(&w->delta);
        bytes += ffn_bytes(&m->config, &w->ffn, n);
    }
    return bytes;
}

double model_head_bytes(const Model *m)
{
    if (!m->has_mtp) return 0;
    return weight_bytes(&m->head.fc) + attention_bytes(&m->head.attention) +
           ffn_bytes(&m->config, &m->head.ffn, 1);
}
