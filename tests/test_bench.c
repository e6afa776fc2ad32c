/*
 * test_bench.c: what `bench latency`, `kernels` and `masks` print, and what they refuse. Figures
 * are not judged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/contexts.h"
#include "tests/run_binary.h"

#define MODEL "tests/data/golden/qwen35-dense"

static json_t *row(const json_t *report, size_t i)
{
    return json_array_get(json_object_get(report, "rows"), i);
}

static double number(const json_t *row, const char *name)
{
    json_t *value = json_object_get(row, name);
    if (!json_is_number(value)) fail_msg("no number %s", name);
    return json_number_value(value);
}

/* Two contexts, each plain and with drafts; by lot the length that was asked for. */
static void test_latency(void **state)
{
    (void)state;
    RunResult r = RUN("bench", "latency", "--model", MODEL, "--threads", "1", "--contexts", "16,40",
                      "--max-tokens", "80", "--requests", "3", "--ctx-size", "256",
                      "--synthetic-acceptance", "2.5", "--draft-depth", "3", "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(report, "rows")), 4);
    assert_true(number(report, "bytes_per_second") > 0);
    for (size_t i = 0; i < 4; i++) {
        json_t *line = row(report, i);
        int drafts = json_is_true(json_object_get(line, "drafts"));
        assert_int_equal(number(line, "context"), i < 2 ? 16 : 40);
        assert_int_equal(drafts, (int)i % 2);
        assert_true(number(line, "tokens_per_second_min") <= number(line, "tokens_per_second"));
        assert_true(number(line, "tokens_per_second") <= number(line, "tokens_per_second_max"));
        assert_true(number(line, "step_ms") > 0);
        if (drafts)
            assert_true(fabs(number(line, "acceptance_length") - 2.5) < 0.5);
        else
            assert_true(number(line, "acceptance_length") == 1);
        assert_true(drafts ? number(line, "nodes") > 3.5 : number(line, "nodes") == 1);
        assert_true(number(line, "floor_tokens_per_second") > 0);
    }
    json_decref(report);
    run_result_free(&r);

    r = RUN("bench", "latency", "--model", "models/demo", "--threads", "1", "--contexts", "16",
            "--max-tokens", "32", "--requests", "1", "--synthetic-acceptance", "1", "--draft-depth",
            "3", "--json");
    report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_true(number(row(report, 1), "acceptance_length") == 1); /* none is kept */
    json_decref(report);
    run_result_free(&r);

    r = RUN("bench", "latency", "--model", MODEL, "--threads", "1", "--contexts", "16",
            "--max-tokens", "80", "--requests", "1", "--ctx-size", "256");
    assert_run(&r, 0, "drafts: mtp, trees of up to 7 levels as it pays\n");
    run_result_free(&r);

    r = RUN("bench", "latency", "--model", MODEL, "--contexts", "40", "--max-tokens", "8",
            "--requests", "1", "--ctx-size", "64", "--prefix-cache", "on", "--json");
    report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_true(number(row(report, 0), "prompt_tokens_per_second") == 0); /* nothing is computed */
    json_decref(report);
    run_result_free(&r);

    r = RUN("bench", "latency", "--model", MODEL, "--max-tokens", "8", "--requests", "1",
            "--ctx-size", "64", "--draft", "none");
    assert_run(&r, 0, "     56  plain "); /* what the context leaves of 512 */
    assert_null(strstr(strbuf_str(&r.out), "drafts"));
    run_result_free(&r);
}

static RunResult run_shape(const char *mode, const char *nodes)
{
    return RUN("bench", "latency", "--model", MODEL, "--threads", "1", "--contexts", "16",
               "--max-tokens", "60", "--requests", "1", "--ctx-size", "128", "--draft-depth", "2",
               "--draft-topk", "8", "--state-mode", mode, "--tree-nodes", nodes, "--json");
}

/* Bytes of a step with drafts, of which its floor is made. */
static double step_bytes(const char *mode, const char *nodes)
{
    RunResult r = run_shape(mode, nodes);
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    const json_t *drafts = row(report, 1);
    double bytes = number(drafts, "acceptance_length") * number(report, "bytes_per_second") /
                   number(drafts, "floor_tokens_per_second");
    json_decref(report);
    run_result_free(&r);
    return bytes;
}

/* What drafts of four levels keep of answers by weights by chance. */
static double synthetic_length(const char *length, const char *nodes, const char *topk,
                               const char *draft)
{
    RunResult r =
        RUN("bench", "latency", "--model", "models/demo", "--dummy-weights", "bf16", "--threads",
            "1", "--contexts", "16", "--max-tokens", "200", "--requests", "1", "--ctx-size", "256",
            "--synthetic-acceptance", length, "--tree-nodes", nodes, "--draft-depth", "4",
            "--draft-topk", topk, "--draft", draft, "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    double got = number(row(report, 1), "acceptance_length");
    json_decref(report);
    run_result_free(&r);
    return got;
}

/* The length is that of the levels that there are; in trees too, and whatever else is drafted. */
static void test_synthetic(void **state)
{
    (void)state;
    assert_true(fabs(synthetic_length("1.8", "2", "1", "mtp") - 1.8) < 0.1);
    double chain = synthetic_length("4.2", "5", "1", "mtp");
    assert_true(fabs(chain - 4.2) < 0.3);
    assert_true(synthetic_length("4.2", "8", "4", "mtp") == chain);
    assert_true(synthetic_length("4.2", "8", "4", "union") == chain);
}

/* A state a row where each has its own, the leaves of a tree too; three where they leave records.
 */
static void test_floor(void **state)
{
    (void)state;
    double slots = step_bytes("slots", "3"), replay = step_bytes("replay", "3");
    double state_bytes = slots - replay; /* 1 + 3 - 3 */
    double more = step_bytes("slots", "12") - slots, same = step_bytes("replay", "12") - replay;
    assert_true(state_bytes > 0);
    if (fabs(more / state_bytes - 9) > 1 || fabs(same / state_bytes) > 0.1)
        fail_msg("9 rows more take %g states, by replay %g", more / state_bytes,
                 same / state_bytes);
}

/* Lengths are those of all tries, as speeds are. */
static void test_all_tries_count(void **state)
{
    (void)state;
    enum { TRIES = 3, TOKENS = 80 };
    RunResult r = RUN("bench", "latency", "--model", "models/demo", "--threads", "1", "--contexts",
                      "16", "--max-tokens", "80", "--requests", "3", "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    for (size_t i = 0; i < 2; i++) {
        const json_t *line = row(report, i);
        double steps = number(line, "steps"), accepted = number(line, "accepted");
        assert_true(steps + accepted == TRIES * (TOKENS - 1));
        assert_true(fabs(number(line, "acceptance_length") - (1 + accepted / steps)) < 1e-4);
        assert_true(fabs(number(line, "nodes") - (1 + number(line, "drafted") / steps)) < 1e-4);
    }
    json_decref(report);
    run_result_free(&r);
}

static void test_kernels(void **state)
{
    (void)state;
    RunResult r = RUN("bench", "kernels", "--model", MODEL, "--threads", "1", "--contexts", "64");
    static const char *const parts[] = {"\n    1 ",         "\n   64 ",  "\n1 rows, by operation",
                                        "\n16 rows, by",    "\nlinear ", "\ndelta_mixer ",
                                        "\ntree_attention "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_run(&r, 0, parts[i]);
    run_result_free(&r);
}

/* Of the pass over one row; 0: there is no such line. */
static double pass_mb(const char *context)
{
    double ms = 0, over = 0, mb = 0;
    RunResult r = RUN("bench", "kernels", "--model", "models/demo", "--contexts", context);
    const char *line = strstr(strbuf_str(&r.out), "\n    1 ");
    if (!line || sscanf(line, " 1 %lf %lf %lf", &ms, &over, &mb) != 3) mb = 0;
    run_result_free(&r);
    return mb;
}

/* 6,144 bytes of K and V a token in two layers and the draft head, which takes no part. */
static void test_passes_read_their_keys(void **state)
{
    (void)state;
    double few = pass_mb("0"), many = pass_mb("2000");
    assert_true(few > 0 && fabs(many - few - 2000 * 6144 * 2 / 3e6) < 0.2);
}

static void test_refused(void **state)
{
    (void)state;
    expect_run(RUN("bench", "latency", "--model", MODEL, "--contexts", "16,x"), 2, "--contexts");
    expect_run(RUN("bench", "latency", "--model", MODEL, "--contexts", "99999999"), 3, "at most");
    expect_run(RUN("bench", "latency", "--model", MODEL, "--ctx-size", "16"), 3, "leaves no room");
    expect_run(RUN("bench", "kernels", "--model", MODEL, "--contexts", "99999999"), 2,
               "one number");
    expect_run(RUN("bench", "kernels", "--model", MODEL, "--contexts", "8,9"), 2, "one number");
    expect_run(RUN("bench", "latency", "--model", MODEL, "--synthetic-acceptance", "0.5"), 2,
               "--synthetic-acceptance is '0.5', must be a number from 1 to 64");
    expect_run(RUN("bench", "latency", "--model", MODEL, "--synthetic-acceptance", "2", "--draft",
                   "suffix"),
               2, "--synthetic-acceptance needs a draft head's drafts, not copies alone");
    expect_run(RUN("bench", "latency", "--model", MODEL, "--synthetic-acceptance", "4.1"), 2,
               "--synthetic-acceptance is 4.1, drafts of 3 levels give 4 at most");
    expect_run(
        RUN("bench", "latency", "--model", MODEL, "--synthetic-acceptance", "2", "--draft", "none"),
        2, "drafts of 0 levels give 1 at most");
    expect_run(RUN("bench", "latency", "--model", MODEL, "--requests", "102"), 2,
               "--requests is '102'");
    expect_run(RUN("bench", "turn", "--model", MODEL, "--requests", "102"), 2, "from 1 to 101");
    expect_run(RUN("bench", "turn", "--model", MODEL, "--requests", "0"), 2, "'0', must be");
    expect_run(RUN("bench", "load", "--model", MODEL, "--requests", "0"), 2, "'0', must be");
    expect_run(RUN("bench", "accept", "--model", MODEL, "--prompts", "tests"), 5,
               "cannot read 'tests'");
    expect_run(RUN("bench", "load", "--url", "http://127.0.0.1:65536"), 2, "--url is");
    expect_run(RUN("bench", "accept", "--model", MODEL, "--synthetic-acceptance", "2"), 2,
               "'--synthetic-acceptance' is an option of another command");
}

/* Where the model's vocabulary is far larger than the tokenizer's, prompts still have all of its
 * ids, and are there at once. */
static void test_contexts_of_a_small_tokenizer(void **state)
{
    (void)state;
    enum { LENGTH = 1 << 18, VOCABULARY = 248320 };
    Error err = {0};
    Tokenizer *tok = tokenizer_open("models/demo/tokenizer.json", &err);
    assert_non_null(tok);
    int size = tokenizer_size(tok), most = 0;
    int32_t *id = mem_alloc(LENGTH, sizeof *id);
    int *count = mem_alloc((size_t)size, sizeof *count);
    contexts_fill(tok, VOCABULARY, 1, id, LENGTH);
    for (int i = 0; i < LENGTH; i++) {
        assert_true(tokenizer_has(tok, id[i]));
        if (++count[id[i]] > most) most = count[id[i]];
    }
    assert_true(most < 4 * LENGTH / size);
    contexts_fill(tok, 8, 1, id, LENGTH);
    for (int i = 0; i < LENGTH; i++)
        assert_in_range(id[i], 0, 7);
    mem_free(count);
    mem_free(id);
    tokenizer_close(tok);
}

/* Each form's masks are told, and timed; the model's folder needs a tokenizer alone. */
static void test_masks(void **state)
{
    (void)state;
    RunResult r = RUN("bench", "masks", "--model", "models/demo", "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    size_t n = json_array_size(json_object_get(report, "rows"));
    assert_true(n > 10);
    for (size_t i = 0; i < n; i++) {
        json_t *line = row(report, i);
        int is_schema = json_object_get(line, "schema") != NULL;
        assert_int_equal(is_schema, json_object_get(line, "pattern") == NULL);
        assert_true(number(line, "masks") > 8);
        assert_true(number(line, "not_told") == 0);
        assert_true(number(line, "mean_us") > 0);
        assert_true(number(line, "p50_us") <= number(line, "p90_us"));
        assert_true(number(line, "p90_us") <= number(line, "max_us"));
    }
    json_decref(report);
    run_result_free(&r);
    r = RUN("bench", "masks");
    assert_run(&r, 2, "--model");
    run_result_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts_of_a_small_tokenizer),
        cmocka_unit_test(test_latency),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_all_tries_count),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_passes_read_their_keys),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
