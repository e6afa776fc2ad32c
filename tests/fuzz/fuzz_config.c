/*
 * fuzz_config.c: config.json and generation_config.json, and the memory sizes that follow.
 *
 * Input: {"config": ..., "generation": ...}; anything else is a config.json as it is.
 */
#include "tests/fuzz/fuzz.h"

#include <limits.h>

#include "engine/config.h"
#include "engine/memory.h"
#include "kernels/attention.h"

static int fits(double a, double b)
{
    return a >= 1 && b >= 1 && a * b <= INT_MAX;
}

/* What config.h promises, in numbers that cannot overflow. */
static void check_config(const ModelConfig *c)
{
    FUZZ_CHECK(fits(c->n_vocab, c->dim));
    FUZZ_CHECK(fits(c->n_heads, 2.0 * c->head_dim));
    FUZZ_CHECK(fits(c->n_kv_heads, 2.0 * c->head_dim));
    FUZZ_CHECK(fits(c->n_channels, c->conv_width));
    FUZZ_CHECK(c->n_channels == 2 * c->n_k_heads * c->d_k + c->n_v_heads * c->d_v);
    FUZZ_CHECK(c->n_heads % c->n_kv_heads == 0);
    FUZZ_CHECK(c->n_v_heads % c->n_k_heads == 0);
    FUZZ_CHECK(c->ctx_limit >= 1 && c->ctx_limit <= MAX_CTX_LIMIT);
    FUZZ_CHECK(c->n_layers >= 1 && c->n_layers <= MAX_LAYERS);
    FUZZ_CHECK(c->n_full + c->n_recurrent == c->n_layers);
    FUZZ_CHECK(c->n_experts_used <= c->n_experts);
    FUZZ_CHECK(c->n_eos >= 0 && c->n_eos <= MAX_EOS);
    for (int i = 0; i < c->n_eos; i++)
        FUZZ_CHECK(c->eos[i] >= 0 && c->eos[i] < c->n_vocab);
    for (int i = 0; i < c->n_layers; i++)
        FUZZ_CHECK(c->moe[i] ? c->n_experts > 0 : c->ffn_dim > 0);
}

static void check_rope(const Rope *r, int head_dim)
{
    float inv_freq[MAX_HEAD_DIM / 2];
    FUZZ_CHECK(r->n_rot >= 2 && r->n_rot % 2 == 0 && r->n_rot <= head_dim);
    FUZZ_CHECK(r->scale > 0 && r->scale < 1e6);
    rope_frequencies(r, inv_freq);
    for (int i = 0; i < r->n_rot / 2; i++)
        FUZZ_CHECK(inv_freq[i] >= 0 && inv_freq[i] <= 1);
}

/* One slot and one page must be sizes that a budget of 63 bits can be divided by. */
static void check_sizes(const ModelConfig *c)
{
    Model model = {.config = *c, .has_mtp = 1};
    double slot = (double)c->n_recurrent *
                  ((double)c->n_v_heads * c->d_k * c->d_v + (c->conv_width - 1.0) * c->n_channels);
    double page = 2.0 * PAGE_TOKENS * (c->n_full + 1.0) * c->n_kv_heads * c->head_dim;
    FUZZ_CHECK((double)memory_slot_bytes(c) >= 4 * slot);
    FUZZ_CHECK((double)memory_page_bytes(&model, KV_F32) >= 4 * page);
    FUZZ_CHECK((double)memory_page_bytes(&model, KV_BF16) >= 2 * page);
    FUZZ_CHECK(memory_slot_bytes(c) < (size_t)1 << 62);
    FUZZ_CHECK(memory_page_bytes(&model, KV_F32) < (size_t)1 << 62);
    FUZZ_CHECK(pages_for(c->ctx_limit) >= c->ctx_limit / PAGE_TOKENS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ModelConfig c;
    GenerationDefaults g;
    Error err = {0};
    json_t *both = json_loadb((const char *)data, size, 0, NULL);
    const json_t *config = json_object_get(both, "config");
    const json_t *generation = json_object_get(both, "generation");
    if (config)
        fuzz_file_json("config.json", config);
    else
        fuzz_file("config.json", data, size);
    if (config && generation) fuzz_file_json("generation_config.json", generation);
    int rc = config_load(&c, &g, FUZZ_DIR, &err);
    FUZZ_CHECK(!rc || *err.msg);
    if (!rc) {
        check_config(&c);
        check_rope(&c.rope, c.head_dim);
        check_sizes(&c);
    }
    json_decref(both);
    fuzz_files_clear();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
