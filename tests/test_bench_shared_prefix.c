/*
 * test_bench_shared_prefix.c: bench shared-prefix sends prompts of the shape it promises.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/analyzer.h"
#include "tests/run_binary.h"
#include "tests/served.h"

#define DEMO "--model", "models/demo", "--threads", "1", "--memory", "64M"

static void test_shape(void **state)
{
    (void)state;
    RunResult r = RUN("bench", "shared-prefix", DEMO, "--groups", "3", "--group-prompts", "4",
                      "--system-tokens", "70", "--question-tokens", "9", "--max-tokens", "5",
                      "--connections", "1", "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(report, "rows")), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(json_object_get(report, "rows"), i);
        assert_int_equal(json_is_true(json_object_get(row, "prefix_cache")), i);
        assert_string_equal(served_text_at(row, "draft"), "mtp");
        assert_int_equal(served_int_at(row, "turns"), 12);
        assert_int_equal(served_int_at(row, "different"), 0);
        assert_int_equal(served_int_at(row, "prompt_tokens"), 12 * 79);
        assert_int_equal(served_int_at(row, "completion_tokens"), 12 * 5);
        /* The first of a group is computed, the second shows where they part; the rest begins there
         */
        assert_int_equal(served_int_at(row, "cached_tokens"), i ? 3 * 2 * 70 : 0);
    }
    json_decref(report);
    run_result_free(&r);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value, *says;
        int status;
    } runs[] = {
        {"--connections", "1,2", "expected one number", 2},
        {"--connections", "0", "expected one number", 2},
        {"--connections", "257", "expected one number", 2},
        {"--groups", "1000000", "is the most", 3},
        {"--system-tokens", "0", "system-tokens", 2},
        {"--ctx-size", "64",
         "of the shortest request: This model's maximum context length is 64 tokens. However, your "
         "prompt has 356",
         3},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        expect_run(RUN("bench", "shared-prefix", DEMO, "--groups", "1", "--group-prompts", "2",
                       "--system-tokens", "100", "--draft", "none", runs[i].option, runs[i].value),
                   runs[i].status, runs[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
