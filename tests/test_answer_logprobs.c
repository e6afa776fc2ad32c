/* test_answer_logprobs.c: log-probabilities of prompts and answers, and scoring by them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/analyzer.h"
#include "tests/served.h"

#define CHAT "/v1/chat/completions"

/* Characters that are complete before a byte. */
static size_t n_chars(const char *text, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n += (text[i] & 0xC0) != 0x80;
    return n - ((text[n_bytes] & 0xC0) == 0x80);
}

/* Bytes of a token that is written as its text or as bytes:\x.. */
static size_t token_bytes(const char *token)
{
    return strncmp(token, "bytes:", 6) ? strlen(token) : (strlen(token) - 6) / 4;
}

/* Values are those of distributions, the token's is among them, offsets point at its text. */
static void check_logprobs(const json_t *choice, int k)
{
    const json_t *lp = served_at(choice, "logprobs"), *tokens = served_at(lp, "tokens");
    const char *text = served_text_at(choice, "text");
    size_t n = json_array_size(tokens), at = 0;
    for (size_t i = 0; i < n; i++) {
        const char *token = json_string_value(json_array_get(tokens, i));
        long offset = (long)json_integer_value(json_array_get(served_at(lp, "text_offset"), i));
        const json_t *value = json_array_get(served_at(lp, "token_logprobs"), i);
        const json_t *top = json_array_get(served_at(lp, "top_logprobs"), i);
        const char *key;
        json_t *other;
        double sum = 0;
        assert_int_equal(offset, n_chars(text, at));
        int is_text = strncmp(token, "bytes:", 6) != 0 && text[at]; /* else: the end token */
        if (is_text && strncmp(text + at, token, strlen(token)) != 0)
            fail_msg("'%s' is not at %zu of '%s'", token, at, text);
        if (text[at]) at += token_bytes(token);
        if (json_is_null(value)) {
            assert_int_equal(i, 0);
            assert_true(json_is_null(top));
            continue;
        }
        assert_true(json_object_size(top) >= (size_t)k && json_object_size(top) <= (size_t)k + 1);
        assert_true(json_equal((json_t *)value, json_object_get(top, token)));
        json_object_foreach((json_t *)top, key, other)
        {
            assert_true(json_real_value(other) <= 0);
            sum += exp(json_real_value(other));
        }
        assert_true(sum < 1.0001);
    }
}

static void test_scoring(void **state)
{
    (void)state;
    static const char fmt[] = "{\"prompt\": \"%s\", \"echo\": true, \"logprobs\": %d, "
                              "\"max_tokens\": %d, \"temperature\": 0}";
    static const char prompt[] = "I want to find a r\xc3\xa9staurant in San Jose";
    json_t *score = served_complete(served, fmt, prompt, 1, 0),
           *one = served_complete(served, fmt, prompt, 3, 1);
    long n = served_int_at(score, "usage.prompt_tokens");
    assert_string_equal(served_text_at(score, "choices.0.text"), prompt);
    assert_string_equal(served_text_at(score, "choices.0.finish_reason"), "length");
    assert_int_equal(served_int_at(score, "usage.completion_tokens"), 0);
    assert_int_equal(json_array_size(served_at(score, "choices.0.logprobs.tokens")), n);
    assert_int_equal(json_array_size(served_at(one, "choices.0.logprobs.tokens")), n + 1);
    check_logprobs(served_at(score, "choices.0"), 1);
    check_logprobs(served_at(one, "choices.0"), 3);

    /* Token ids instead of text, and each token scored by generating from what is before it. */
    json_t *ids =
        served_post(served, "/tokenize",
                    "{\"prompt\": \"I want to find a r\xc3\xa9staurant in San Jose\"}", 200);
    char *list = json_dumps(json_object_get(ids, "tokens"), 0);
    json_t *same = served_complete(
        served, "{\"prompt\": %s, \"echo\": true, \"logprobs\": 1, \"max_tokens\": 0}", list);
    assert_true(
        json_equal((json_t *)served_at(same, "choices"), (json_t *)served_at(score, "choices")));
    json_array_remove(json_object_get(ids, "tokens"), (size_t)n - 1);
    char *shorter = json_dumps(json_object_get(ids, "tokens"), 0);
    json_t *next = served_complete(served,
                                   "{\"prompt\": %s, \"logprobs\": 20, \"max_tokens\": 1, "
                                   "\"temperature\": 0}",
                                   shorter);
    const json_t *tops = served_at(next, "choices.0.logprobs.top_logprobs.0");
    const json_t *lp = served_at(score, "choices.0.logprobs");
    const char *last = json_string_value(json_array_get(served_at(lp, "tokens"), (size_t)n - 1));
    const json_t *scored = json_array_get(served_at(lp, "token_logprobs"), (size_t)n - 1);
    if (json_object_get(tops, last))
        assert_true(json_equal((json_t *)scored, json_object_get(tops, last)));
    json_decref(next), json_decref(same), json_decref(ids), json_decref(one), json_decref(score);
    free(shorter);
    free(list);
}

/* Sampled answers too, with end tokens and characters in pieces. */
static void test_generated_logprobs(void **state)
{
    (void)state;
    for (int seed = 0; seed < 8; seed++) {
        json_t *r =
            served_complete(served,
                            "{\"prompt\": \"Hello\", \"max_tokens\": 40, \"seed\": %d, "
                            "\"logprobs\": %d, \"temperature\": 2, \"top_p\": 1, \"top_k\": 0}",
                            seed, seed % 4);
        size_t n = json_array_size(served_at(r, "choices.0.logprobs.tokens"));
        assert_int_equal(n, served_int_at(r, "usage.completion_tokens"));
        json_decref(r);
    }
    json_t *r = served_complete(
        served, "{\"prompt\": \"I want to find\", \"max_tokens\": 30, \"logprobs\": 4, "
                "\"temperature\": 0}");
    check_logprobs(served_at(r, "choices.0"), 4);
    json_decref(r);
}

/* A NUL is a token, but no name: jansson, for one, would not read the reply. */
static void test_nul(void **state)
{
    (void)state;
    json_t *r = served_post(served, "/v1/completions",
                            "{\"prompt\": \"a\\u0000b\", \"echo\": true, \"logprobs\": 1, "
                            "\"max_tokens\": 0}",
                            200);
    const json_t *logprobs = served_at(r, "choices.0.logprobs");
    const json_t *nul = json_array_get(json_object_get(logprobs, "tokens"), 1);
    const json_t *top = json_array_get(json_object_get(logprobs, "top_logprobs"), 1);
    assert_int_equal(json_string_length(nul), 1);
    assert_true(json_equal(json_object_get(top, ""),
                           json_array_get(json_object_get(logprobs, "token_logprobs"), 1)));
    json_decref(r);
}

static void test_chat_logprobs(void **state)
{
    (void)state;
    json_t *r =
        served_post(served, CHAT,
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello, who are you?\"}], "
                    "\"temperature\": 0, \"logprobs\": true, \"top_logprobs\": 2}",
                    200);
    const json_t *content = served_at(r, "choices.0.logprobs.content"), *entry;
    StrBuf text = {0};
    for (size_t i = 0; (entry = json_array_get(content, i)) != NULL; i++) {
        assert_int_equal(json_array_size(json_object_get(entry, "top_logprobs")), 2);
        /* Greedy: the token is the likeliest. */
        assert_string_equal(served_text_at(entry, "top_logprobs.0.token"),
                            served_text_at(entry, "token"));
        assert_true(json_real_value(served_at(entry, "top_logprobs.0.logprob")) >=
                    json_real_value(served_at(entry, "top_logprobs.1.logprob")));
        assert_int_equal(json_array_size(json_object_get(entry, "bytes")),
                         json_string_length(json_object_get(entry, "token")));
        strbuf_puts(&text, served_text_at(entry, "token"));
    }
    assert_string_equal(served_text_at(r, "choices.0.message.content"), strbuf_str(&text));
    assert_int_equal(json_array_size(content) + 1, served_int_at(r, "usage.completion_tokens"));
    strbuf_free(&text);
    json_decref(r);
}

/* By ids instead of texts, alternatives too; one for each of the ids, the end token's too. */
static void test_chat_logprobs_by_id(void **state)
{
    (void)state;
    json_t *r =
        served_post(served, CHAT,
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello, who are you?\"}], "
                    "\"temperature\": 0, \"logprobs\": true, \"top_logprobs\": 1, "
                    "\"return_token_ids\": true, \"return_tokens_as_token_ids\": true}",
                    200);
    const json_t *content = served_at(r, "choices.0.logprobs.content"), *entry;
    const json_t *ids = served_at(r, "choices.0.token_ids");
    assert_string_equal(served_text_at(r, "choices.0.finish_reason"), "stop");
    assert_int_equal(json_array_size(content), json_array_size(ids));
    assert_int_equal(json_array_size(ids), served_int_at(r, "usage.completion_tokens"));
    for (size_t i = 0; (entry = json_array_get(content, i)) != NULL; i++) {
        char want[32];
        snprintf(want, sizeof want, "token_id:%d", (int)json_integer_value(json_array_get(ids, i)));
        assert_string_equal(served_text_at(entry, "token"), want);
        assert_string_equal(served_text_at(entry, "top_logprobs.0.token"), want);
    }
    json_decref(r);
}

/* What n prompts of 1,000 tokens each are answered, with what else the request says. */
static json_t *ask_long(int n, const char *rest, int status)
{
    StrBuf body = {0};
    strbuf_puts(&body, "{\"prompt\": [");
    for (int i = 0; i < n; i++) {
        strbuf_puts(&body, i ? ", [5" : "[5");
        for (int k = 1; k < 1000; k++)
            strbuf_puts(&body, ", 5");
        strbuf_puts(&body, "]");
    }
    strbuf_printf(&body, "], %s}", rest);
    json_t *reply = served_post(served, "/v1/completions", strbuf_str(&body), status);
    strbuf_free(&body);
    return reply;
}

/* A reply too large to be held in memory is refused, by what would be in it. */
static void test_too_many(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *param; /* NULL: answered */
    } asked[] = {
        {"\"max_tokens\": 1, \"prompt_logprobs\": 20", "prompt_logprobs"},
        {"\"max_tokens\": 0, \"echo\": true, \"logprobs\": 10, \"n\": 2", "logprobs"},
        {"\"max_tokens\": 1, \"logprobs\": 20", NULL},
        {"\"max_tokens\": 0, \"echo\": true, \"logprobs\": 1", NULL},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        json_t *reply = ask_long(13, asked[i].rest, asked[i].param ? 400 : 200);
        if (asked[i].param)
            assert_string_equal(served_text_at(reply, "error.param"), asked[i].param);
        else
            assert_int_equal(json_array_size(served_at(reply, "choices")), 13);
        json_decref(reply);
    }
}

/* So are answers whose log-probabilities would be too many, but in streams, which go in pieces. */
static void test_too_many_of_answers(void **state)
{
    (void)state;
#define MANY                                                                                       \
    "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"stop\": [\" \", \"e\"], "        \
    "\"logprobs\": true, \"top_logprobs\": 20, \"n\": 32, \"temperature\": 0"
    json_t *reply = served_post(served, CHAT, "{" MANY ", \"max_tokens\": 1600}", 400);
    assert_string_equal(served_text_at(reply, "error.param"), "logprobs");
    assert_non_null(strstr(served_text_at(reply, "error.message"), "1075200 log-probabilities"));
    json_decref(reply);
    json_decref(served_post(served, CHAT, "{" MANY ", \"max_tokens\": 1500}", 200));
    json_decref(served_events(served, CHAT, "{" MANY ", \"max_tokens\": 1600, \"stream\": true}"));
#undef MANY
}

/*
 * Where no length was given the answers have as many tokens as the reply has room for. All but one
 * prompt's end with their first token.
 */
static void test_length_by_logprobs(void **state)
{
    (void)state;
    enum { N_PROMPTS = 512, N = 2, MOST = (1 << 20) / (N_PROMPTS * N * 21) };
    StrBuf body = {0};
    strbuf_puts(&body, "{\"prompt\": [\"Hello\"");
    for (int i = 1; i < N_PROMPTS; i++)
        strbuf_puts(&body, ", \"def f(\"");
    strbuf_puts(&body, "], \"n\": 2, \"temperature\": 0, \"max_tokens\": -1, \"logprobs\": 20,"
                       "\"ignore_eos\": true, \"stop_token_ids\": [82]}");
    json_t *reply = served_post(served, "/v1/completions", body.data, 200);
    assert_int_equal(json_array_size(served_at(reply, "choices.0.logprobs.tokens")), MOST);
    assert_int_equal(json_array_size(served_at(reply, "choices.2.logprobs.tokens")), 1);
    assert_string_equal(served_text_at(reply, "choices.0.finish_reason"), "length");
    json_decref(reply);
    strbuf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scoring),
        cmocka_unit_test(test_generated_logprobs),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_chat_logprobs),
        cmocka_unit_test(test_chat_logprobs_by_id),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_too_many_of_answers),
        cmocka_unit_test(test_length_by_logprobs),
    };
    return cmocka_run_group_tests(tests, served_open, served_close);
}
