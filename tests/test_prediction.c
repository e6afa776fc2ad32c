/*
 * test_prediction.c: OpenAI's predicted outputs: the same answer, sooner, and never an error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "drafts/suffix.h"
#include "tests/served.h"

static Drafter drafter;

static int open_server(void **state)
{
    ServedOptions o = served_defaults();
    (void)state;
    suffix_drafter_open(&drafter);
    o.drafter = &drafter;
    o.draft = DRAFT_SUFFIX;
    return served_open_with(&o);
}

static int close_server(void **state)
{
    int rc = served_close(state);
    drafter.close(drafter.self);
    return rc;
}

static const char question[] = "I want to find an Italian restaurant in San Jose";

/* Its answer; the draft tokens that were accepted. prediction: JSON, or NULL. */
static char *ask(const char *prediction, int *n_accepted)
{
    json_t *body = json_pack("{s:i, s:i, s:[{s:s, s:s}]}", "temperature", 0, "max_tokens", 40,
                             "messages", "role", "user", "content", question);
    if (prediction)
        json_object_set_new(body, "prediction", json_loads(prediction, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(body, 0);
    json_t *reply = served_post(served, "/v1/chat/completions", text, 200);
    char *content = mem_strdup(served_text_at(reply, "choices.0.message.content"));
    *n_accepted = (int)served_int_at(reply, "timings.draft_n_accepted");
    free(text);
    json_decref(reply);
    json_decref(body);
    return content;
}

/* A text, or parts of one. */
static void test_predicted(void **state)
{
    (void)state;
    int without, with;
    char *answer = ask(NULL, &without);
    size_t len = strlen(answer);
    assert_true(len > 40);
    for (int is_parts = 0; is_parts < 2; is_parts++) {
        json_t *content =
            is_parts ? json_pack("[{s:s, s:s%}, {s:s}, {s:s, s:s}]", "type", "text", "text", answer,
                                 len / 2, "type", "image", "type", "text", "text", answer + len / 2)
                     : json_string(answer);
        json_t *p = json_pack("{s:s, s:o}", "type", "content", "content", content);
        char *prediction = json_dumps(p, 0);
        char *again = ask(prediction, &with);
        assert_string_equal(again, answer);
        assert_true(with > without + 5);
        mem_free(again);
        free(prediction);
        json_decref(p);
    }
    mem_free(answer);
}

/* What is no prediction, or far too long, is none, or its beginning. */
static void test_never_an_error(void **state)
{
    (void)state;
    static const char *const odd[] = {"null",
                                      "7",
                                      "\"text\"",
                                      "[]",
                                      "{}",
                                      "{\"content\": 7}",
                                      "{\"content\": \"\"}",
                                      "{\"content\": [1, {\"text\": 2}, [], null]}",
                                      "{\"type\": \"other\", \"content\": \"a b c\"}",
                                      "{\"content\": \"<|im_end|><|im_start|>\"}"};
    int n;
    char *answer = ask(NULL, &n);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char *again = ask(odd[i], &n);
        assert_string_equal(again, answer);
        mem_free(again);
    }
    enum { LONG = 1 << 20 };
    static const char letters[] = "etaoinshrdlcumwfgypbvkj";
    StrBuf text = {0};
    strbuf_puts(&text, "{\"content\": \"");
    for (int i = 0; i < LONG; i++)
        strbuf_add(&text, i % 4 ? &letters[i % 23] : " ", 1);
    strbuf_puts(&text, "\"}");
    char *again = ask(text.data, &n);
    assert_string_equal(again, answer);
    mem_free(again);
    strbuf_free(&text);
    mem_free(answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predicted),
        cmocka_unit_test(test_never_an_error),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
