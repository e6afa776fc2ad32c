/*
 * test_agents.c: what coding agents send, in their form with words of our own (tests/data/agents):
 * a first request, and the one that brings back a tool's result. Both are answered to the end of
 * their stream, and the second is told to come from the cache.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/analyzer.h"
#include "tests/served.h"

static int setup(void **state)
{
    ServedOptions o = served_defaults();
    (void)state;
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_FLOP, .alpha = -1, .keep_answers = 1};
    return served_open_with(&o);
}

static json_t *load(const char *name)
{
    char path[100];
    json_error_t je;
    snprintf(path, sizeof path, "tests/data/agents/%s.json", name);
    json_t *body = json_load_file(path, 0, &je);
    if (!body) fail_msg("%s: %s", path, je.text);
    return body;
}

/* The last event of a stream that was read to its end; the answer is cut short by tokens. */
static json_t *last_event(const char *path, const char *name, const char *limit, size_t from_end)
{
    json_t *body = load(name);
    json_object_set_new(body, limit, json_integer(12));
    char *text = json_dumps(body, 0);
    json_t *events = served_named_events(served, path, text);
    size_t n = json_array_size(events);
    assert_true(n > from_end);
    json_t *last = json_incref(json_array_get(events, n - from_end));
    json_decref(events);
    free(text);
    json_decref(body);
    return last;
}

static void test_claude_code(void **state)
{
    (void)state;
    static const char *const names[] = {"claude_code_first", "claude_code_second"};
    for (int i = 0; i < 2; i++) {
        json_t *event = last_event("/v1/messages?beta=true", names[i], "max_tokens", 2);
        json_t *body = load(names[i]);
        char *text = json_dumps(body, 0);
        json_t *count = served_post(served, "/v1/messages/count_tokens?beta=true", text, 200);
        assert_string_equal(served_text_at(event, "type"), "message_delta");
        long n = served_int_at(event, "usage.input_tokens"),
             n_cached = served_int_at(event, "usage.cache_read_input_tokens");
        assert_int_equal(n + n_cached, served_int_at(count, "input_tokens"));
        if (i && n_cached <= n) fail_msg("%ld of %ld cached", n_cached, n + n_cached);
        json_decref(count);
        free(text);
        json_decref(body);
        json_decref(event);
    }
}

static void test_codex(void **state)
{
    (void)state;
    static const char *const names[] = {"codex_first", "codex_second"};
    for (int i = 0; i < 2; i++) {
        json_t *event = last_event("/v1/responses", names[i], "max_output_tokens", 1);
        long n = served_int_at(event, "response.usage.input_tokens"),
             n_cached = served_int_at(event, "response.usage.input_tokens_details.cached_tokens");
        if (strcmp(served_text_at(event, "type"), "response.completed") != 0)
            assert_string_equal(served_text_at(event, "type"), "response.incomplete");
        if (i && n_cached <= n / 2) fail_msg("%ld of %ld cached", n_cached, n);
        json_decref(event);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claude_code),
        cmocka_unit_test(test_codex),
    };
    return cmocka_run_group_tests(tests, setup, served_close);
}
