/*
 * fuzz_model.c: a whole folder through model_open: do the tensors fit the config, and do all views
 * of them stay inside?
 *
 * Input: {"config": ..., "tensors": {name: [dtype, shape], ...}}. The tensors are laid out here,
 * one after the other, each full of one byte that its neighbours do not have; "shift" bytes behind
 * them move all, since a file ends where a page ends. "quant" is what --quant says.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/log.h"
#include "engine/model.h"
#include "kernels/host_memory.h"

enum { MAX_DATA = 1 << 20 };

static int64_t element_bytes(const char *dtype)
{
    if (!dtype) return 1;
    return strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strstr(dtype, "F16") ? 2 : 1;
}

/* Bytes of a tensor, MAX_DATA when that is too many or makes no sense. */
static int64_t tensor_bytes(const json_t *dtype, const json_t *shape)
{
    int64_t n = element_bytes(json_string_value(dtype));
    size_t i;
    json_t *dim;
    json_array_foreach(shape, i, dim)
    {
        json_int_t d = json_integer_value(dim);
        if (d < 0 || (d && n > MAX_DATA / d)) return MAX_DATA;
        n *= d;
    }
    return n;
}

static void write_tensors(json_t *tensors, json_int_t shift)
{
    static unsigned char bytes[MAX_DATA];
    json_t *header = json_object(), *spec;
    json_int_t at = 0, end;
    const char *name;
    unsigned char fill = 0;
    json_object_foreach(tensors, name, spec)
    {
        json_t *dtype = json_array_get(spec, 0), *shape = json_array_get(spec, 1);
        end = at + tensor_bytes(dtype, shape);
        if (!dtype || !shape || end > MAX_DATA - 16) continue;
        json_object_set_new(header, name,
                            json_pack("{s:O, s:O, s:[I, I]}", "dtype", dtype, "shape", shape,
                                      "data_offsets", at, end));
        memset(bytes + at, fill += 37, (size_t)(end - at));
        at = end;
    }
    if (shift > 0 && shift < 16) {
        end = at + shift;
        json_object_set_new(header, "shift",
                            json_pack("{s:s, s:[I], s:[I, I]}", "dtype", "U8", "shape", shift,
                                      "data_offsets", at, end));
        at = end;
    }
    fuzz_file_safetensors("model.safetensors", header, bytes, (size_t)at);
    json_decref(header);
}

/* Some matrix has codes of four bits, of which one byte says two. */
static int is_packed(json_t *tensors)
{
    const char *name;
    json_t *spec;
    json_object_foreach(tensors, name, spec)
    {
        if (strstr(name, "weight_packed") || strstr(name, "qweight") || strstr(name, "_scale_2"))
            return 1;
    }
    return 0;
}

static int may_differ; /* elements of a tensor */

/* All elements are those of one tensor, so they are equal; and every one can be read. */
static void touch(const void *data, size_t n, size_t size)
{
    const unsigned char *p = data;
    FUZZ_CHECK((uintptr_t)data % size == 0);
    for (size_t i = 1; i < n; i++)
        FUZZ_CHECK(!memcmp(p, p + i * size, size) || may_differ);
}

static void touch_floats(const float *v, int n)
{
    touch(v, (size_t)n, sizeof *v);
}

static void touch_matrix(const Weight *w)
{
    FUZZ_CHECK(w->rows > 0 && w->cols > 0 && w->data);
    int n_scales = (int)weight_n_scales(w);
    FUZZ_CHECK((n_scales > 0) == (w->scale != NULL));
    size_t size = (size_t)weight_element_bytes(w->type);
    touch(w->data, (size_t)weight_data_bytes(w) / size, size);
    if (w->scale) touch_floats(w->scale, n_scales);
}

static void touch_attention(const ModelConfig *c, const AttentionWeights *w)
{
    const Weight *const matrix[] = {&w->q, &w->k, &w->v, &w->o};
    for (int i = 0; i < 4; i++)
        touch_matrix(matrix[i]);
    touch_floats(w->norm, c->dim);
    touch_floats(w->q_norm, c->head_dim);
    touch_floats(w->k_norm, c->head_dim);
}

static void touch_delta(const ModelConfig *c, const DeltaWeights *w)
{
    const Weight *const matrix[] = {&w->qkv, &w->z, &w->b, &w->a, &w->out};
    for (int i = 0; i < 5; i++)
        touch_matrix(matrix[i]);
    touch_floats(w->norm, c->dim);
    touch_floats(w->conv_w, c->n_channels * c->conv_width);
    touch_floats(w->a_coef, c->n_v_heads);
    touch_floats(w->dt_bias, c->n_v_heads);
    touch_floats(w->out_norm, c->d_v);
}

static void touch_ffn(const ModelConfig *c, const FfnWeights *w)
{
    const Weight *const matrix[] = {&w->gate, &w->up, &w->down};
    for (int i = 0; i < 3; i++)
        touch_matrix(matrix[i]);
    touch_floats(w->norm, c->dim);
    if (!w->moe) return;
    touch_matrix(&w->router);
    touch_matrix(&w->shared_gate);
    for (int e = 0; e < c->n_experts; e++) {
        touch_matrix(&w->expert_gate[e]);
        touch_matrix(&w->expert_up[e]);
        touch_matrix(&w->expert_down[e]);
    }
}

static void touch_model(const Model *m)
{
    const ModelConfig *c = &m->config;
    touch_matrix(&m->embed);
    touch_matrix(&m->lm_head);
    touch_floats(m->final_norm, c->dim);
    for (int i = 0; i < c->n_layers; i++) {
        if (c->full_attention[i])
            touch_attention(c, &m->layer[i].attention);
        else
            touch_delta(c, &m->layer[i].delta);
        touch_ffn(c, &m->layer[i].ffn);
    }
    if (!m->has_mtp) return;
    touch_matrix(&m->head.fc);
    touch_floats(m->head.embed_norm, c->dim);
    touch_floats(m->head.hidden_norm, c->dim);
    touch_floats(m->head.final_norm, c->dim);
    touch_attention(c, &m->head.attention);
    touch_ffn(c, &m->head.ffn);
}

static ModelOptions options;

/* Who has it takes INT8 and INT4. Of folders that are opened as they are nothing is quantised. */
static int quantise_int(Backend *be, const QuantiseInt *a)
{
    Weight from = {.type = a->from, .rows = a->rows, .cols = a->cols};
    Weight to = {.type = a->to, .rows = a->rows, .cols = a->cols};
    (void)be;
    FUZZ_CHECK(options.quant);
    touch(a->data, (size_t)weight_data_bytes(&from), 1);
    memset(a->code, 1, (size_t)weight_data_bytes(&to));
    memset(a->scale, 0, (size_t)weight_n_scales(&to) * sizeof *a->scale);
    return 0;
}

static QuantType quant_named(const char *name)
{
    for (int quant = QUANT_NONE; name && quant < N_QUANT_TYPES; quant++)
        if (!strcmp(name, quant_name((QuantType)quant))) return (QuantType)quant;
    return QUANT_NONE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Error err = {0};
    json_t *root = json_loadb((const char *)data, size, 0, NULL);
    log_set_level(LOG_LEVEL_ERROR);
    fuzz_file_json("config.json", json_object_get(root, "config"));
    write_tensors(json_object_get(root, "tensors"),
                  json_integer_value(json_object_get(root, "shift")));
    options.quant = quant_named(json_string_value(json_object_get(root, "quant")));
    may_differ = options.quant || is_packed(json_object_get(root, "tensors"));
    static Backend backend;
    host_memory_fill(&backend);
    backend.quantise_int = quantise_int;
    Model *m = model_open(FUZZ_DIR, &options, &backend, &err);
    FUZZ_CHECK(m || *err.msg);
    if (m) touch_model(m);
    model_close(m);
    json_decref(root);
    fuzz_files_clear();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
