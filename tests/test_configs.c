/*
 * test_configs.c: the files in configs/: their options are options, and what they say of a model's
 * memory is what the engine takes for it.
 *
 * Models of the published shapes (tests/data/configs) are opened on a machine that only counts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "drafts/mtp.h"
#include "engine/quantise.h"
#include "engine/state.h"
#include "server/settings.h"
#include "tests/analyzer.h"
#include "tests/counting_backend.h"

static const int64_t STEP = 256 << 20; /* of a config's `memory` */
enum { GPU_CHUNK_ROWS = 2048 };        /* main.c's */

static const struct {
    const char *name, *shape;
} configs[] = {
    {"qwen3.5-0.8b", "qwen3.5-0.8b"},
    {"qwen3.5-2b", "qwen3.5-2b"},
    {"qwen3.5-4b", "qwen3.5-4b"},
    {"qwen3.5-9b", "qwen3.5-9b"},
    {"qwen3.5-27b", "qwen3.5-27b"},
    {"qwen3.6-27b", "qwen3.5-27b"},
    {"qwen3.8-27b", "qwen3.5-27b"},
    {"qwen3.5-35b-a3b", "qwen3.5-35b-a3b"},
    {"qwen3.6-35b-a3b", "qwen3.5-35b-a3b"},
    {"qwen3.5-122b-a10b", "qwen3.5-122b-a10b"},
    {"qwen3.5-397b-a17b", "qwen3.5-397b-a17b"},
    {"qwen3.8-2.4t-a95b", "qwen3.8-2.4t-a95b"},
    {"qwen3-next-80b-a3b", "qwen3-next-80b-a3b"},
    {"qwen3-coder-next", "qwen3-coder-next"},
};
enum { N_CONFIGS = sizeof configs / sizeof *configs };

/* ---- what a model's weights take ---- */

static const char *const weight_names[] = {"bf16", "fp8", "q8", "q4"};
enum { BF16, FP8, Q8, Q4, N_WEIGHTS };

/* Bytes of a matrix in memory, as what becomes of it. */
static double bytes_of(const Weight *w, QuantType quant, const char *leaf)
{
    Weight as = *w;
    WeightType to = quantise_to(quant, leaf);
    if (w->type != WEIGHT_NONE && to != WEIGHT_NONE) as.type = to;
    return weight_bytes(&as);
}

static double attention_bytes(const AttentionWeights *w, QuantType quant)
{
    return bytes_of(&w->q, quant, "") + bytes_of(&w->k, quant, "") +
           bytes_of(&w->v, quant, "self_attn.v_proj") + bytes_of(&w->o, quant, "");
}

static double delta_bytes(const DeltaWeights *w, QuantType quant)
{
    return bytes_of(&w->qkv, quant, "") + bytes_of(&w->z, quant, "") +
           bytes_of(&w->out, quant, "linear_attn.out_proj") +
           bytes_of(&w->b, quant, "linear_attn.in_proj_b") +
           bytes_of(&w->a, quant, "linear_attn.in_proj_a");
}

static double ffn_bytes(const ModelConfig *c, const FfnWeights *w, QuantType quant)
{
    double bytes = bytes_of(&w->gate, quant, "") + bytes_of(&w->up, quant, "") +
                   bytes_of(&w->down, quant, "") + bytes_of(&w->router, quant, "mlp.gate") +
                   bytes_of(&w->shared_gate, quant, "mlp.shared_expert_gate");
    Weight up = {.type = w->expert_type, .rows = c->expert_dim, .cols = c->dim};
    Weight down = {.type = w->expert_type, .rows = c->dim, .cols = c->expert_dim};
    if (w->moe) bytes += c->n_experts * (2 * bytes_of(&up, quant, "") + bytes_of(&down, quant, ""));
    return bytes;
}

/* Of all matrices, the draft head's too. */
static double model_bytes(const Model *m, QuantType quant)
{
    const ModelConfig *c = &m->config;
    double bytes = bytes_of(&m->embed, quant, "embed_tokens");
    if (!c->tied) bytes += bytes_of(&m->lm_head, quant, "lm_head");
    for (int i = 0; i < c->n_layers; i++) {
        const LayerWeights *w = &m->layer[i];
        bytes += c->full_attention[i] ? attention_bytes(&w->attention, quant)
                                      : delta_bytes(&w->delta, quant);
        bytes += ffn_bytes(c, &w->ffn, quant);
    }
    if (!m->has_mtp) return bytes;
    return bytes + bytes_of(&m->head.fc, quant, "fc") + attention_bytes(&m->head.attention, quant) +
           ffn_bytes(c, &m->head.ffn, quant);
}

/* The sums above are the loader's, on a model that is there. */
static void test_sums(void **state)
{
    (void)state;
    Error err = {0};
    Backend *be = backend_cpu_open(1, NULL, 4096, &err);
    double as[N_QUANT_TYPES];
    for (QuantType quant = QUANT_NONE; quant < N_QUANT_TYPES; quant++) {
        Model *m = model_open("models/demo", &(ModelOptions){.quant = quant}, be, &err);
        if (!m) fail_msg("%s", err.msg);
        assert_true(m->config.tied && m->has_mtp); /* so that the loader counts all of it */
        double bytes = model_bytes(m, QUANT_NONE);
        assert_true(bytes == (double)(m->weight_bytes + m->head_weight_bytes));
        for (QuantType to = quant; quant == QUANT_NONE && to < N_QUANT_TYPES; to++)
            as[to] = model_bytes(m, to);
        assert_true(bytes == as[quant]);
        model_close(m);
    }
    be->close(be);
}

/* ---- what an engine takes beside them ---- */

/* As main.c opens one for `serve`. */
static EngineOptions served_options(const Settings *set, int64_t memory, int is_host)
{
    EngineOptions o = engine_defaults();
    o.max_seqs = set->max_seqs;
    o.max_waiting = set->max_waiting;
    o.ctx_size = set->ctx_size;
    o.memory = memory;
    o.kv_type = (KvType)set->kv_dtype;
    if (!is_host) o.chunk_rows = GPU_CHUNK_ROWS;
    o.tree_nodes = set->tree_nodes;
    o.draft_depth = set->draft_depth;
    o.draft_topk = set->draft_topk;
    o.draft_auto = set->draft_auto;
    o.cache.on = 1;
    return o;
}

/*
 * How many sequences of the whole context fit, 0 when not even one does; *scratch: bytes beside
 * memory.
 */
static int engine_fits(Model *m, const Settings *set, int64_t memory, int is_host, size_t *scratch)
{
    Error err = {0};
    Drafter drafter = {0};
    EngineOptions o = served_options(set, memory, is_host);
    counting_backend_set_host(m->backend, is_host);
    assert_int_equal(set->draft == DRAFT_MTP, m->has_mtp);
    if (m->has_mtp && mtp_drafter_open(m, &drafter, &err)) fail_msg("%s", err.msg);
    if (m->has_mtp) o.drafter = &drafter;
    Engine *e = engine_open(m, &o, &err);
    int fits = 0;
    if (e) {
        int pages = pages_for(e->options.ctx_size + e->overhang), per = e->mem.pages_per_frame;
        fits = e->mem.n_frames / (1 + (pages + per - 1) / per);
        *scratch = e->scratch_bytes;
        engine_close(e);
    } else {
        assert_int_equal(err.code, ERR_LIMIT);
    }
    if (m->has_mtp) drafter.close(drafter.self);
    return fits;
}

/* The least memory in whole steps with which all sequences have their context, there and here. */
static int64_t least_memory(Model *m, const Settings *set, size_t scratch[2])
{
    int64_t too_few = 0, enough = (int64_t)512 * STEP;
    while (enough - too_few > STEP) {
        int64_t middle = (too_few + enough) / 2 / STEP * STEP;
        int ok = 1;
        for (int is_host = 0; is_host < 2 && ok; is_host++)
            ok = engine_fits(m, set, middle, is_host, &scratch[is_host]) >= set->max_seqs;
        if (ok)
            enough = middle;
        else
            too_few = middle;
    }
    for (int is_host = 0; is_host < 2; is_host++)
        assert_true(engine_fits(m, set, enough, is_host, &scratch[is_host]) >= set->max_seqs);
    return enough;
}

/* ---- the files ---- */

static Model *open_shape(Backend *be, const char *shape, DummyType type)
{
    char dir[128];
    Error err = {0};
    snprintf(dir, sizeof dir, "tests/data/configs/%s", shape);
    counting_backend_set_host(be, 0);
    Model *m = model_open(dir, &(ModelOptions){.dummy = type}, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

static double gib(double bytes)
{
    return bytes / (1 << 30);
}

/* The comment that the file must hold. */
static void describe(const Model *m, const double weights[N_WEIGHTS], const Settings *set,
                     const size_t scratch[2], StrBuf *out)
{
    size_t row = memory_page_bytes(m, (KvType)set->kv_dtype) / PAGE_TOKENS;
    strbuf_printf(out, "# parameters %lld%s\n", (long long)m->n_params,
                  m->has_mtp ? ", with the draft head's" : "; there is no draft head");
    strbuf_printf(out, "# a state of a sequence %zu bytes; K and V of a token %zu (%s)\n",
                  memory_slot_bytes(&m->config), row, set->kv_dtype == KV_BF16 ? "bf16" : "f32");
    strbuf_printf(out, "#\n# weights           bytes    all on a CPU    all on a GPU\n");
    for (int i = 0; i < N_WEIGHTS; i++) {
        double all[2];
        for (int is_host = 0; is_host < 2; is_host++)
            all[is_host] = gib(weights[i] + (double)set->memory + (double)scratch[is_host]);
        strbuf_printf(out, "# %-7s %15.0f %11.1f GiB", weight_names[i], weights[i], all[1]);
        if (i >= Q8)
            strbuf_puts(out, "               -\n");
        else
            strbuf_printf(out, " %11.1f GiB\n", all[0]);
    }
}

static void assert_holds(const char *path, const char *want)
{
    StrBuf have = {0};
    MappedFile f;
    Error err = {0};
    if (mapped_file_open(&f, path, &err)) fail_msg("%s", err.msg);
    strbuf_add(&have, (const char *)f.data, f.size);
    if (!strstr(strbuf_str(&have), want)) fail_msg("%s does not hold\n%s", path, want);
    mapped_file_close(&f);
    strbuf_free(&have);
}

/* Its row in the table of configs/README.md: GiB in all, on a CPU and on a GPU. */
static void check_row(const char *name, const double weights[N_WEIGHTS], const Settings *set,
                      const size_t scratch[2])
{
    char row[200];
    double beside[2];
    for (int is_host = 0; is_host < 2; is_host++)
        beside[is_host] = (double)set->memory + (double)scratch[is_host];
    snprintf(row, sizeof row, "| [%s](%s.conf) | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n",
             name, name, set->max_seqs, gib(weights[BF16] + beside[1]),
             gib(weights[FP8] + beside[1]), gib(weights[Q8] + beside[1]),
             gib(weights[Q4] + beside[1]), gib(weights[BF16] + beside[0]),
             gib(weights[FP8] + beside[0]));
    assert_holds("configs/README.md", row);
}

static void read_settings(Settings *set, const char *path)
{
    Error err = {0};
    const char *rest[4];
    int n_rest;
    char *argv[] = {(char *)(uintptr_t) "--config", (char *)(uintptr_t)path};
    options_free();
    if (settings_parse(set, COMMAND_SERVE, 2, argv, rest, &n_rest, &err)) fail_msg("%s", err.msg);
}

static void check_config(const char *name, Model *m, const double weights[N_WEIGHTS])
{
    char path[128];
    Settings set;
    size_t scratch[2];
    StrBuf want = {0};
    snprintf(path, sizeof path, "configs/%s.conf", name);
    read_settings(&set, path);
    int64_t least = least_memory(m, &set, scratch);
    if (set.memory != least)
        fail_msg("%s: memory = %lldM would do, not %lldM", path, (long long)(least >> 20),
                 (long long)(set.memory >> 20));
    describe(m, weights, &set, scratch, &want);
    assert_holds(path, strbuf_str(&want));
    strbuf_free(&want);
    check_row(name, weights, &set, scratch);
}

static void test_models(void **state)
{
    (void)state;
    for (int i = 0; i < N_CONFIGS; i++) {
        int first = 1; /* of its shape */
        for (int k = 0; k < i; k++)
            first &= strcmp(configs[i].shape, configs[k].shape) != 0;
        if (!first) continue;
        Backend *be = counting_backend_open();
        Model *fp8 = open_shape(be, configs[i].shape, DUMMY_FP8);
        Model *m = open_shape(be, configs[i].shape, DUMMY_BF16);
        double weights[] = {model_bytes(m, QUANT_NONE), model_bytes(fp8, QUANT_NONE),
                            model_bytes(m, QUANT_Q8), model_bytes(m, QUANT_Q4)};
        for (int k = i; k < N_CONFIGS; k++)
            if (!strcmp(configs[i].shape, configs[k].shape))
                check_config(configs[k].name, m, weights);
        model_close(m);
        model_close(fp8);
        be->close(be);
    }
}

/* No file is left out, and each opens: the demonstration model's too. */
static void test_all_are_known(void **state)
{
    (void)state;
    DIR *dir = opendir("configs");
    const struct dirent *entry;
    int n = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        char path[300];
        Settings set;
        size_t len = strlen(entry->d_name);
        if (len < 5 || strcmp(entry->d_name + len - 5, ".conf") != 0) continue;
        snprintf(path, sizeof path, "configs/%s", entry->d_name);
        read_settings(&set, path);
        n++;
    }
    closedir(dir);
    assert_int_equal(n, N_CONFIGS + 1);
    Settings set;
    read_settings(&set, "configs/demo.conf");
    assert_string_equal(set.model, "models/demo");
}

static int quiet(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_ERROR);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    options_free();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_all_are_known),
    };
    return cmocka_run_group_tests(tests, quiet, teardown);
}
