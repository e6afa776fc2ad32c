/* test_settings.c: defaults, what options set, bounds, sampling parameters. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <math.h>
#include <cmocka.h>

#include "engine/model.h"
#include "server/service.h"
#include "server/settings.h"
#include "tests/checkpoint.h"

static Settings s;
static Error err;
static const char *rest[32];
static int n_rest;

static int parse(unsigned command, const char *const *words)
{
    char *argv[32];
    int argc = 0;
    for (; words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    options_free();
    return settings_parse(&s, command, argc, argv, rest, &n_rest, &err);
}
#define PARSE(command, ...) parse(command, (const char *const[]){__VA_ARGS__, NULL})

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse(COMMAND_SERVE, (const char *const[]){NULL}), 0);
    assert_null(s.model);
    assert_string_equal(s.host, "127.0.0.1");
    assert_int_equal(s.port, 8080);
    assert_int_equal(s.max_seqs, 8);
    assert_int_equal(s.max_waiting, 64);
    assert_int_equal(s.kv_dtype, KV_F32);
    assert_int_equal(s.ubatch_size, 0);
    assert_int_equal(s.draft, DRAFT_MTP);
    assert_int_equal(s.draft_depth, 3);
    assert_int_equal(s.draft_topk, 1);
    assert_int_equal(s.draft_vocab, 32768);
    assert_int_equal(s.tree_nodes, 4);
    assert_int_equal(s.draft_auto, 1);
    assert_true(isnan(s.temperature) && isnan(s.top_p) && isnan(s.min_p));
    assert_int_equal(s.top_k, -1);
    assert_true(s.seed == -1);
    assert_int_equal(s.max_tokens, -1);
    assert_int_equal(s.prefix_cache, AUTO);
    assert_int_equal(s.cache_policy, POLICY_FLOP);
    assert_true(isnan(s.cache_alpha));
    assert_int_equal(s.cache_answers, 1);
}

/*
 * What a server's user may have in a script of another one's: each hint is an option that the
 * command has, and to serve there are all.
 */
static void test_names_of_others(void **state)
{
    (void)state;
    char theirs[] =
        "max-model-len max-num-seqs max-num-batched-tokens gpu-memory-utilization "
        "quantization kv-cache-dtype enable-prefix-caching no-enable-prefix-caching "
        "speculative-config allowed-origins load-format model-path context-length "
        "max-running-requests max-queued-requests chunked-prefill-size "
        "mem-fraction-static disable-radix-cache speculative-algorithm "
        "speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens "
        "hf-repo alias parallel batch-size cache-type-k cache-type-v cache-ram gpu-layers "
        "n-gpu-layers draft-max spec-type spec-draft-n-max temp";
    static const char before[] = "; here it is '";
    for (char *save = NULL, *name = strtok_r(theirs, " ", &save); name;
         name = strtok_r(NULL, " ", &save))
        for (unsigned command = COMMAND_SERVE; command < COMMANDS_END; command *= 2) {
            char option[64];
            snprintf(option, sizeof option, "--%s", name);
            assert_int_equal(PARSE(command, option, "1"), -1);
            const char *at = strstr(err.msg, before);
            if (!at && command == COMMAND_SERVE) fail_msg("%s", err.msg);
            if (!at) continue;
            snprintf(option, sizeof option, "%s", at + strlen(before));
            option[strcspn(option, "'")] = 0;
            if (PARSE(command, option, "a") &&
                (strstr(err.msg, "unknown") || strstr(err.msg, "another command")))
                fail_msg("%s", err.msg);
        }
}

/* One of the three fixes the shape, at its default too. */
static void test_draft_shape(void **state)
{
    (void)state;
    assert_int_equal(PARSE(COMMAND_CHAT, "--draft-depth", "3"), 0);
    assert_true(!s.draft_auto && s.draft_depth == 3 && s.draft_topk == 1 && s.tree_nodes == 4);
    assert_int_equal(PARSE(COMMAND_CHAT, "--draft-topk", "2"), 0);
    assert_true(!s.draft_auto && s.draft_depth == 3 && s.draft_topk == 2 && s.tree_nodes == 4);
    assert_int_equal(PARSE(COMMAND_CHAT, "--tree-nodes", "1"), 0);
    assert_true(!s.draft_auto && s.draft_depth == 3 && s.draft_topk == 1 && s.tree_nodes == 1);
    assert_int_equal(PARSE(COMMAND_CHAT, "--draft-vocab", "0"), 0);
    assert_true(s.draft_auto);
}

/* What is asked for has room: more levels or guesses are more nodes, more nodes more guesses. */
static void test_large_shape(void **state)
{
    (void)state;
    static const struct {
        const char *option[2], *value[2];
        int nodes, depth, topk;
    } rows[] = {
        {{"--draft-depth", "--temperature"}, {"7", "0"}, 8, 7, 1},
        {{"--draft-depth", "--temperature"}, {"63", "0"}, 64, 63, 1},
        {{"--draft-depth", "--temperature"}, {"1", "0"}, 4, 1, 1},
        {{"--draft-depth", "--temperature"}, {"0", "0"}, 4, 0, 1},
        {{"--draft-depth", "--draft-topk"}, {"7", "2"}, 8, 7, 2},
        {{"--draft-topk", "--temperature"}, {"3", "0"}, 4, 3, 3},
        {{"--draft-topk", "--temperature"}, {"8", "0"}, 9, 3, 8},
        {{"--draft-topk", "--temperature"}, {"63", "0"}, 64, 3, 63},
        {{"--tree-nodes", "--temperature"}, {"2", "0"}, 2, 3, 1},
        {{"--tree-nodes", "--temperature"}, {"4", "0"}, 4, 3, 1},
        {{"--tree-nodes", "--temperature"}, {"5", "0"}, 5, 3, 2},
        {{"--tree-nodes", "--temperature"}, {"16", "0"}, 16, 3, 5},
        {{"--tree-nodes", "--draft-depth"}, {"64", "1"}, 64, 1, 63},
        {{"--tree-nodes", "--draft-depth"}, {"8", "7"}, 8, 7, 1},
        {{"--tree-nodes", "--draft-depth"}, {"9", "0"}, 9, 0, 1},
        {{"--tree-nodes", "--draft-topk"}, {"16", "1"}, 16, 3, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(PARSE(COMMAND_CHAT, rows[i].option[0], rows[i].value[0], rows[i].option[1],
                               rows[i].value[1]),
                         0);
        assert_false(s.draft_auto);
        assert_int_equal(s.tree_nodes, rows[i].nodes);
        assert_int_equal(s.draft_depth, rows[i].depth);
        assert_int_equal(s.draft_topk, rows[i].topk);
    }
}

static void test_commands(void **state)
{
    (void)state;
    assert_int_equal(PARSE(COMMAND_SERVE, "--port", "0"), 0);
    assert_int_equal(PARSE(COMMAND_CHAT, "--port", "0"), -1);
    assert_int_equal(PARSE(COMMAND_CHAT, "--show-draft", "on", "--color", "on", "--tools", "f"), 0);
    assert_int_equal(s.show_draft, 1);
    assert_int_equal(s.color, ON);
    assert_string_equal(s.tools, "f");
    assert_int_equal(PARSE(COMMAND_SERVE, "--show-draft"), -1);
    assert_int_equal(PARSE(BENCH_ACCEPT, "word", "--json", "--limit", "3"), 0);
    assert_int_equal(s.json, 1);
    assert_int_equal(n_rest, 1);
    assert_int_equal(PARSE(COMMAND_CHECK, "--model", "m", "--draft", "none"), -1);
    assert_int_equal(PARSE(COMMAND_CHAT, "--model", "m", "--draft", "none"), 0);
    assert_int_equal(s.draft, DRAFT_NONE);
    assert_int_equal(s.dummy_weights, DUMMY_NONE);
    assert_int_equal(s.quant, AUTO);
    assert_int_equal(PARSE(COMMAND_CHAT, "--model", "m", "--quant", "fp8"), 0);
    assert_int_equal(s.quant, 1 + QUANT_FP8);
    for (QuantType quant = QUANT_NONE; quant <= QUANT_Q4; quant++) {
        assert_int_equal(PARSE(COMMAND_CHECK, "--quant", quant_name(quant)), 0);
        assert_int_equal(s.quant, 1 + quant);
        assert_int_equal(PARSE(COMMAND_CHAT, "--draft-quant", quant_name(quant)), 0);
        assert_int_equal(s.draft_quant, 1 + quant);
        int is_saved = !PARSE(COMMAND_QUANTIZE, "--quant", quant_name(quant));
        assert_int_equal(is_saved, quant >= QUANT_Q8);
        assert_true(!is_saved || s.saved_quant == (int)(quant - QUANT_Q8));
    }
    assert_int_equal(PARSE(COMMAND_SERVE, "--draft-quant", "auto"), 0);
    assert_int_equal(s.draft_quant, AUTO);
    assert_int_equal(PARSE(BENCH_KERNELS, "--draft-quant", "q8"), -1);
    assert_int_equal(PARSE(COMMAND_SERVE, "--model", "m", "--dummy-weights", "fp8"), 0);
    assert_int_equal(s.dummy_weights, DUMMY_FP8);
    assert_int_equal(PARSE(BENCH_LOAD, "--model", "m", "--dummy-weights", "bf16"), 0);
    assert_int_equal(s.dummy_weights, DUMMY_BF16);
    for (unsigned command = COMMAND_SERVE; command < COMMAND_QUANTIZE; command *= 2) {
        assert_int_equal(PARSE(command, "--model", "m", "--kv-dtype", "bf16"), 0);
        assert_int_equal(s.kv_dtype, KV_BF16);
    }
    static const char *const policies[] = {"flop", "lru", "none"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(PARSE(BENCH_LOAD, "--cache-policy", policies[i]), 0);
        assert_int_equal(s.cache_policy, i);
    }
    assert_int_equal(PARSE(COMMAND_CHAT, "--prefix-cache", "off", "--cache-answers", "off",
                           "--cache-alpha", "2.5"),
                     0);
    assert_true(s.prefix_cache == OFF && !s.cache_answers && s.cache_alpha == 2.5);
    assert_int_equal(PARSE(COMMAND_CHECK, "--prefix-cache", "on"), -1);
    assert_int_equal(PARSE(COMMAND_SERVE, "--kv-dtype", "f32"), 0);
    assert_int_equal(s.kv_dtype, KV_F32);
}

static void test_bounds(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"--tree-nodes", "0"},   {"--tree-nodes", "65"},  {"--max-seqs", "0"},
        {"--max-seqs", "65"},    {"--temperature", "-1"}, {"--top-p", "1.5"},
        {"--port", "65536"},     {"--ubatch-size", "-1"}, {"--threads", "-1"},
        {"--seed", "-2"},        {"--draft", "eagle"},    {"--log-level", "loud"},
        {"--top-k", "-1"},       {"--draft-depth", "64"}, {"--ctx-size", "9999999999"},
        {"--draft-vocab", "-1"}, {"--kv-dtype", "fp8"},   {"--prefix-cache", "yes"},
        {"--cache-policy", "x"}, {"--cache-alpha", "-1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(PARSE(COMMAND_SERVE, bad[i][0], bad[i][1]), -1);
        assert_int_equal(err.code, ERR_INPUT);
        assert_non_null(strstr(err.msg, bad[i][0]));
    }
}

/* A file for several commands: what is another's is held to the widest bounds that one has. */
static void test_file_for_all(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch_dir("settings"), "all.conf");
    static const char text[] = "port = 0\nrequests = 500\nmax-seqs = 2\n";
    scratch_write(path, text, sizeof text - 1);
    for (unsigned command = COMMAND_SERVE; command < COMMANDS_END; command *= 2) {
        int few = command == BENCH_TURN || command == BENCH_LATENCY;
        assert_int_equal(PARSE(command, "--config", path), few ? -1 : 0);
        if (few) assert_non_null(strstr(err.msg, "requests is '500', must be"));
    }
}

static void test_sampling(void **state)
{
    (void)state;
    Service service = {.settings = &s,
                       .generation = {.temperature = 0.7F,
                                      .top_p = NAN,
                                      .min_p = 0.1F,
                                      .repetition = NAN,
                                      .top_k = 20,
                                      .do_sample = 1}};
    assert_int_equal(PARSE(COMMAND_CHAT, "--seed", "5"), 0);
    SampleParams p = service_sampling(&service);
    assert_true(p.temperature == 0.7F && p.top_p == 1 && p.min_p == 0.1F);
    assert_true(p.repetition == 1 && p.presence == 0 && p.frequency == 0);
    assert_int_equal(p.top_k, 20);
    assert_true(p.seed == 5 && p.choice == 0);

    service.generation.do_sample = 0; /* the model says: greedy */
    assert_true(service_sampling(&service).temperature == 0);
    assert_int_equal(PARSE(COMMAND_CHAT, "--temperature", "0.5", "--top-k", "0", "--top-p", "0.9"),
                     0);
    p = service_sampling(&service);
    assert_true(p.temperature == 0.5F && p.top_p == 0.9F);
    assert_int_equal(p.top_k, 0);
    /* No seed: two requests differ. */
    assert_true(p.seed != service_sampling(&service).seed);

    service.generation = (GenerationDefaults){NAN, NAN, NAN, NAN, -1, -1, -1};
    assert_int_equal(PARSE(COMMAND_CHAT, "hi"), 0);
    p = service_sampling(&service);
    assert_true(p.temperature == 1 && p.top_p == 1 && p.min_p == 0);
    assert_int_equal(p.top_k, 0);
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
        cmocka_unit_test(test_defaults),     cmocka_unit_test(test_names_of_others),
        cmocka_unit_test(test_draft_shape),  cmocka_unit_test(test_commands),
        cmocka_unit_test(test_bounds),       cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_file_for_all), cmocka_unit_test(test_large_shape),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
