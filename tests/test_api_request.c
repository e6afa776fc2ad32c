/* test_api_request.c: bodies of requests: what is read. What is not is in test_api_refused.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/analyzer.h"
#include "tests/api_case.h"
#include "tests/textdata.h"
#include "text/pyjson.h"

#define P API_CASE_PROMPT
#define M API_CASE_CHAT

static void test_defaults(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(API_COMPLETION, "{\"prompt\": \"hello\"}");
    assert_int_equal(r.n_prompts, 1);
    assert_string_equal(r.prompts[0].text, "hello");
    assert_int_equal(r.n, 1);
    assert_int_equal(r.max_tokens, 16);
    assert_int_equal(r.n_logprobs, -1);
    assert_int_equal(r.draft_max, -1);
    assert_true(r.skip_special);
    assert_false(r.stream);
    assert_null(r.model);
    assert_memory_equal(&r.params, &api_case_defaults.sampling, sizeof r.params);
    api_request_free(&r);
}

/* As curl sends a file from a Windows editor. One mark, at the beginning, and no body by itself. */
static void test_byte_order_mark(void **state)
{
    (void)state;
    static const char *const refused[] = {"\xef\xbb\xbf", "\xef\xbb{\"prompt\": \"a\"}",
                                          "\xef\xbb\xbf\xef\xbb\xbf{\"prompt\": \"a\"}"};
    ApiRequest r = api_case_ok(API_COMPLETION, "\xef\xbb\xbf{\"prompt\": \"\xef\xbb\xbf\"}");
    assert_string_equal(r.prompts[0].text, "\xef\xbb\xbf");
    api_request_free(&r);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ApiError err;
        assert_int_equal(api_case_read(&r, API_COMPLETION, refused[i], strlen(refused[i]), &err),
                         -1);
        api_request_free(&r);
    }
}

/* null is absent, for every field there is; and fields nobody knows are nobody's business. */
static void test_nulls_and_unknown_fields(void **state)
{
    (void)state;
    static const char *const fields =
        "\"model\": null, \"max_tokens\": null, \"max_completion_tokens\": null, \"n\": null, "
        "\"temperature\": null, \"top_p\": null, \"top_k\": null, \"min_p\": null, \"seed\": null, "
        "\"presence_penalty\": null, \"frequency_penalty\": null, \"repetition_penalty\": null, "
        "\"logit_bias\": null, \"logprobs\": null, \"top_logprobs\": null, \"stop\": null, "
        "\"stop_token_ids\": null, \"ignore_eos\": null, \"min_tokens\": null, \"echo\": null, "
        "\"stream\": null, \"stream_options\": null, \"speculative.n_max\": null, "
        "\"best_of\": null, \"suffix\": null, \"response_format\": null, \"grammar\": null, "
        "\"tools\": null, \"tool_choice\": null, \"chat_template_kwargs\": null, "
        "\"enable_thinking\": null, \"reasoning_effort\": null, \"user\": null, "
        "\"no_such_field\": [1, {}], \"metadata\": {\"a\": \"b\"}, \"use_beam_search\": false, "
        "\"allowed_token_ids\": [], \"bad_words\": [], \"logits_processors\": null, \"lora\": [], "
        "\"lora_path\": null, \"stop_regex\": \"\", \"custom_logit_processor\": null, "
        "\"no_stop_trim\": null, \"n_indent\": 0, \"t_max_predict_ms\": -1, \"n_probs\": 0, "
        "\"return_hidden_states\": false}";
    char text[2048];
    snprintf(text, sizeof text, "%s%s", P, fields);
    ApiRequest r = api_case_ok(API_COMPLETION, text);
    assert_memory_equal(&r.params, &api_case_defaults.sampling, sizeof r.params);
    assert_int_equal(r.max_tokens, 16);
    api_request_free(&r);
    snprintf(text, sizeof text, "%s%s", M, fields);
    r = api_case_ok(API_CHAT, text);
    assert_int_equal(r.chat.enable_thinking, -1);
    assert_null(r.tools);
    api_request_free(&r);
}

static void test_fields(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(
        API_COMPLETION,
        P "\"temperature\": 0, \"top_p\": 0.5, \"top_k\": -1, \"min_p\": 0.25, \"seed\": -5, "
          "\"presence_penalty\": 1, \"frequency_penalty\": -2, \"repeat_penalty\": 1.5, \"n\": 3, "
          "\"max_tokens\": 0, \"logprobs\": 0, \"echo\": true, \"stream\": true, \"model\": \"m\", "
          "\"stop\": [\"\", \"a\", \"b\"], \"stop_token_ids\": [7, 8], \"ignore_eos\": true, "
          "\"logit_bias\": {\"5\": -100, \"6\": 1.5}, \"allowed_token_ids\": [9, 8], "
          "\"speculative.n_max\": 0, "
          "\"stream_options\": {\"include_usage\": true}}");
    assert_true(r.params.temperature == 0 && r.params.top_p == 0.5F && r.params.min_p == 0.25F);
    assert_true(r.params.presence == 1 && r.params.frequency == -2 && r.params.repetition == 1.5F);
    assert_int_equal(r.params.top_k, 0);
    assert_true(r.params.seed == (uint64_t)-5);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.max_tokens, 0);
    assert_int_equal(r.n_logprobs, 0);
    assert_int_equal(r.draft_max, 0);
    assert_true(r.echo && r.stream && r.ignore_eos && r.include_usage && !r.continuous_usage);
    assert_string_equal(r.model, "m");
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[1], "b");
    assert_int_equal(r.n_stop_ids, 2);
    assert_int_equal(r.stop_id[1], 8);
    assert_int_equal(r.n_bias, 2);
    assert_int_equal(r.bias_id[1], 6);
    assert_true(r.bias[0] == -100 && r.bias[1] == 1.5F);
    assert_true(r.allowed_ids.n == 2 && r.allowed_ids.id[1] == 8);
    api_request_free(&r);

    r = api_case_ok(API_COMPLETION, P "\"n_cmpl\": 2}"); /* llama.cpp's name */
    assert_int_equal(r.n, 2);
    api_request_free(&r);

    /* Without a bound of ours, more than an int holds is as much as one holds. */
    r = api_case_ok(API_COMPLETION, P "\"max_tokens\": 9007199254740991, \"top_k\": 1e30, "
                                      "\"min_tokens\": 3000000000.0}");
    assert_int_equal(r.max_tokens, INT_MAX);
    assert_int_equal(r.params.top_k, INT_MAX);
    assert_int_equal(r.min_tokens, INT_MAX);
    api_request_free(&r);

    /* Whole numbers, however they are written. */
    r = api_case_ok(API_COMPLETION,
                    "{\"prompt\": [[3.0, 4], [5e0]], \"max_tokens\": 16.0, \"seed\": 1e2, "
                    "\"stop_token_ids\": [7.0], \"logit_bias\": [[6.0, 1]]}");
    assert_int_equal(r.prompts[0].ids.id[0], 3);
    assert_int_equal(r.prompts[1].ids.id[0], 5);
    assert_int_equal(r.max_tokens, 16);
    assert_true(r.params.seed == 100);
    assert_int_equal(r.stop_id[0], 7);
    assert_int_equal(r.bias_id[0], 6);
    api_request_free(&r);

    r = api_case_ok(API_COMPLETION,
                    P "\"top_p\": 0, \"logit_bias\": [[5, 2]], \"seed\": -1, "
                      "\"logprobs\": true, \"stop\": \"x\", \"no_stop_trim\": true}");
    assert_true(r.params.temperature == 0 && r.params.top_p == 1);
    assert_true(r.params.seed == 77);
    assert_int_equal(r.bias_id[0], 5);
    assert_int_equal(r.n_logprobs, 1);
    assert_int_equal(r.n_stop, 1);
    assert_int_equal(r.include_stop, 1);
    api_request_free(&r);
}

/* Which of the names for a length counts. */
static void test_max_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        int max_tokens;
    } rows[] = {
        {"\"x\": 1}", 16},
        {"\"n_predict\": 3}", 3}, /* llama.cpp's */
        {"\"n_predict\": -1}", -1},
        {"\"n_predict\": 3, \"max_tokens\": null}", 3},
        {"\"n_predict\": 3, \"max_tokens\": 4}", 4},
        {"\"max_completion_tokens\": 5}", 5}, /* llama.cpp has it of completions, too */
        {"\"n_predict\": 3, \"max_tokens\": 4, \"max_completion_tokens\": 5}", 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (ApiKind kind = API_COMPLETION; kind <= API_CHAT; kind++) {
            char text[512];
            snprintf(text, sizeof text, "%s%s", kind == API_CHAT ? M : P, rows[i].fields);
            ApiRequest r = api_case_ok(kind, text);
            assert_int_equal(r.max_tokens, rows[i].max_tokens);
            api_request_free(&r);
        }
    }
}

static void test_prompts(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(API_COMPLETION, "{\"prompt\": [5, 99, 0]}");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].ids.n, 3);
    assert_int_equal(r.prompts[0].ids.id[1], 99);
    api_request_free(&r);
    r = api_case_ok(API_COMPLETION, "{\"prompt\": [[5], [6, 7]]}");
    assert_int_equal(r.n_prompts, 2);
    assert_int_equal(r.prompts[1].ids.id[1], 7);
    api_request_free(&r);
    r = api_case_ok(API_COMPLETION, "{\"prompt\": [\"a\", \"b\\u0000c\"]}");
    assert_int_equal(r.n_prompts, 2);
    assert_int_equal(r.prompts[1].len, 3);
    api_request_free(&r);
}

/* What is no token id is said as it came. */
static void test_bias_errors(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {P "\"logit_bias\": {\"5.0\": 5}}", "logit_bias has the key '5.0', which is no token id"},
        {P "\"logit_bias\": {\"105\": 5}}", "logit_bias names token 105 of 0 to 99"},
        {P "\"logit_bias\": [[5, 1], [\"6\", 1]]}", "logit_bias[1] must be a token id and a bias"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ApiRequest r;
        ApiError err;
        assert_int_equal(api_case_read(&r, API_COMPLETION, rows[i][0], strlen(rows[i][0]), &err),
                         -1);
        assert_string_equal(err.error.msg, rows[i][1]);
        api_request_free(&r);
    }
}

static void test_chat_fields(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(API_CHAT, M "\"max_tokens\": 5, \"max_completion_tokens\": 9, "
                                           "\"logprobs\": true, \"top_logprobs\": 2}");
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.n_logprobs, 2);
    api_request_free(&r);
    r = api_case_ok(API_CHAT, M "\"logprobs\": true, \"tool_choice\": \"auto\"}");
    assert_int_equal(r.n_logprobs, 0);
    api_request_free(&r);
}

#define KWARGS(fields) "\"chat_template_kwargs\": {" fields "}"

static void test_thinking(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int on, keeps;
        const char *effort;
    } rows[] = {
        {M "\"x\": 1}", -1, -1, NULL},
        {M "\"enable_thinking\": false}", 0, -1, NULL},
        {M "\"enable_thinking\": true}", 1, -1, NULL},
        {M KWARGS("\"enable_thinking\": false") ", \"enable_thinking\": true}", 0, -1, NULL},
        {M KWARGS("\"thinking\": true") "}", 1, -1, NULL},
        {M KWARGS("\"preserve_thinking\": true") "}", -1, 1, NULL},
        {M KWARGS("\"preserve_thinking\": false") "}", -1, 0, NULL},
        {M KWARGS("\"reasoning_effort\": \"medium\"") "}", 1, -1, "medium"},
        {M KWARGS("\"reasoning_effort\": \"low\", \"enable_thinking\": false") "}", 0, -1, "low"},
        {M KWARGS("\"reasoning_effort\": \"low\"") ", \"reasoning_effort\": \"high\"}", 1, -1,
         "low"},
        {M "\"reasoning_effort\": \"none\"}", 0, -1, NULL},
        {M "\"reasoning_effort\": \"low\"}", 1, -1, "low"},
        {M "\"reasoning\": {\"effort\": \"none\"}}", 0, -1, NULL},
        {M "\"reasoning\": {\"effort\": \"high\"}}", 1, -1, "high"},
        {M "\"reasoning\": {\"enabled\": true}}", 1, -1, NULL},
        {M "\"reasoning\": {\"max_tokens\": 9}}", 1, -1, NULL},
        {M "\"reasoning\": {\"max_tokens\": 9, \"enabled\": false}}", 0, -1, NULL},
        {M "\"reasoning\": {\"max_tokens\": 0}}", 0, -1, NULL},
        {M "\"thinking\": {\"type\": \"disabled\", \"budget_tokens\": -3}}", 0, -1, NULL},
        {M "\"output_config\": {\"effort\": \"low\"}}", -1, -1, "low"},
        {M "\"output_config\": {\"effort\": 1}}", -1, -1, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ApiRequest r = api_case_ok(API_CHAT, rows[i].text);
        const char *effort = r.chat.effort ? r.chat.effort : "", *want = rows[i].effort;
        if (r.chat.enable_thinking != rows[i].on || r.chat.preserve_thinking != rows[i].keeps ||
            strcmp(effort, want ? want : "") != 0)
            fail_msg("%s: %d, %d, %s", rows[i].text, r.chat.enable_thinking,
                     r.chat.preserve_thinking, effort);
        api_request_free(&r);
    }
}

/* Messages come out in the one form that templates take. */
#define BILLING "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"

static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},"
         "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"system\",\"content\":\"d\"}]",
         "[{\"role\":\"system\",\"content\":\"a\\n\\nb\"},{\"role\":\"user\",\"content\":\"c\"},"
         "{\"role\":\"user\",\"content\":\"d\"}]"},
        {"[{\"role\":\"user\",\"content\":[\"a\",{\"type\":\"text\",\"text\":\"b\"},"
         "{\"type\":\"input_text\",\"text\":\"c\"}],\"name\":\"x\"}]",
         "[{\"role\":\"user\",\"content\":\"abc\"}]"},
        {"[{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":["
         "{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},"
         "{\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"a\\\": \"}},"
         "{\"function\":{\"name\":\"h\",\"arguments\":\"\"}},"
         "{\"function\":{\"name\":\"i\",\"arguments\":{\"b\":2}}}]},"
         "{\"role\":\"function\",\"content\":\"t\"}]",
         "[{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\",\"tool_calls\":["
         "{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},"
         "{\"function\":{\"name\":\"g\",\"arguments\":{\"arguments\":\"{\\\"a\\\": \"}}},"
         "{\"function\":{\"name\":\"h\",\"arguments\":{}}},"
         "{\"function\":{\"name\":\"i\",\"arguments\":{\"b\":2}}}]},"
         "{\"role\":\"tool\",\"content\":\"t\"}]"},
        /* results in the order of their calls; those that answer none before them stay */
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"x\",\"func"
         "tion\":{\"name\":\"f\",\"arguments\":{}}},{\"id\":\"y\",\"function\":{\"name\""
         ":\"g\",\"arguments\":{}}},{\"id\":\"z\",\"function\":{\"name\":\"h\",\"argumen"
         "ts\":{}}}]},{\"role\":\"tool\",\"content\":\"3\",\"tool_call_id\":\"z\"},{\"ro"
         "le\":\"tool\",\"content\":\"?\",\"tool_call_id\":\"w\"},{\"role\":\"tool\",\"c"
         "ontent\":\"2\",\"tool_call_id\":\"y\"},{\"role\":\"tool\",\"content\":\"-\"},{"
         "\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":\"x\"},{\"role\":\"user\""
         ",\"content\":\"u\"},{\"role\":\"tool\",\"content\":\"b\",\"tool_call_id\":\"y"
         "\"},{\"role\":\"tool\",\"content\":\"a\",\"tool_call_id\":\"x\"}]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"nam"
         "e\":\"f\",\"arguments\":{}}},{\"function\":{\"name\":\"g\",\"arguments\":{}}},"
         "{\"function\":{\"name\":\"h\",\"arguments\":{}}}]},{\"role\":\"tool\",\"conten"
         "t\":\"1\"},{\"role\":\"tool\",\"content\":\"?\"},{\"role\":\"tool\",\"content"
         "\":\"2\"},{\"role\":\"tool\",\"content\":\"-\"},{\"role\":\"tool\",\"content\""
         ":\"3\"},{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"tool\",\"content\":"
         "\"b\"},{\"role\":\"tool\",\"content\":\"a\"}]"},
        {"[{\"role\":\"system\",\"content\":null},{\"role\":\"user\",\"content\":\"\"},"
         "{\"role\":\"assistant\",\"tool_calls\":[]}]",
         "[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"},"
         "{\"role\":\"assistant\",\"content\":null}]"},
        /* before tool_calls there was function_call, which counts where there are none */
        {"[{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\": "
         "1}\"}},{\"role\":\"function\",\"name\":\"f\",\"content\":\"t\"},"
         "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"g\"}}],"
         "\"function_call\":{\"name\":\"g\"}},{\"role\":\"assistant\",\"content\":\"b\","
         "\"tool_calls\":[],\"function_call\":null}]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
         "{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},"
         "{\"role\":\"tool\",\"content\":\"t\"},"
         "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
         "{\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
         "{\"role\":\"assistant\",\"content\":\"b\"}]"},
        /* the line that changes with every request: a text of its own, or the beginning of one */
        {"[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"" BILLING
         "\"},{\"type\":\"text\",\"text\":\"Be brief.\",\"cache_control\":{\"type\":"
         "\"ephemeral\"}}]},{\"role\":\"user\",\"content\":\"c\"}]",
         "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
         "{\"role\":\"user\",\"content\":\"c\"}]"},
        {"[{\"role\":\"system\",\"content\":\"" BILLING "\"},"
         "{\"role\":\"developer\",\"content\":\"" BILLING "\\n\\nBe brief.\"},"
         "{\"role\":\"user\",\"content\":\"" BILLING "\"},"
         "{\"role\":\"system\",\"content\":\"" BILLING "\"},"
         "{\"role\":\"system\",\"content\":[\"" BILLING "\",\"d\"]}]",
         "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
         "{\"role\":\"user\",\"content\":\"" BILLING "\"},"
         "{\"role\":\"user\",\"content\":\"d\"}]"},
        {"[{\"role\":\"system\",\"content\":\"" BILLING "\"},"
         "{\"role\":\"user\",\"content\":[\"" BILLING "\"]}]",
         "[{\"role\":\"user\",\"content\":\"" BILLING "\"}]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[2048];
        snprintf(text, sizeof text, "{\"messages\": %s}", rows[i].in);
        ApiRequest r = api_case_ok(API_CHAT, text);
        char *out = json_dumps(r.messages, JSON_COMPACT);
        assert_string_equal(out, rows[i].out);
        free(out);
        api_request_free(&r);
    }
}

/* Templates other than Qwen3.5's have a turn for each system message, and take strings alone. */
static void test_messages_as_they_are(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},"
         "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"system\",\"content\":null}]",
         "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},"
         "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"system\",\"content\":null}]"},
        {"[{\"role\":\"user\",\"content\":[\"\",\"a\",\"\",{\"type\":\"text\",\"text\":\"b\"}]},"
         "{\"role\":\"system\",\"content\":[\"" BILLING "\",\"d\",\"e\"]},"
         "{\"role\":\"system\",\"content\":\"" BILLING "\"}]",
         "[{\"role\":\"user\",\"content\":\"a\\nb\"},"
         "{\"role\":\"system\",\"content\":\"d\\ne\"}]"},
    };
    static const ChatFamily families[] = {CHAT_QWEN3_NEXT, CHAT_QWEN3_NEXT_THINKING,
                                          CHAT_QWEN3_CODER};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < sizeof families / sizeof *families; k++) {
            char text[1024];
            snprintf(text, sizeof text, "{\"messages\": %s}", rows[i].in);
            ApiRequest r = api_case_chat_of(families[k], text);
            char *out = json_dumps(r.messages, JSON_COMPACT);
            assert_string_equal(out, rows[i].out);
            free(out);
            api_request_free(&r);
        }
    }
}

/* The limits hold for the texts of calls together: of two that are large the second stays text. */
static void test_costly_arguments(void **state)
{
    (void)state;
    enum { N = MAX_JSON_LISTS / 2 };
    StrBuf call = {0}, text = {0};
    strbuf_puts(&call, "{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [");
    for (int i = 0; i < N; i++)
        strbuf_puts(&call, "[],");
    strbuf_puts(&call, "0]}\"}}");
    strbuf_printf(&text,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                  "\"assistant\", \"tool_calls\": [%s, %s]}]}",
                  call.data, call.data);
    ApiRequest r = api_case_ok(API_CHAT, text.data);
    const json_t *calls = json_object_get(json_array_get(r.messages, 1), "tool_calls");
    for (size_t i = 0; i < 2; i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        const json_t *arguments = json_object_get(f, "arguments");
        assert_int_equal(json_is_array(json_object_get(arguments, "a")), i == 0);
        assert_int_equal(json_is_string(json_object_get(arguments, "arguments")), i == 1);
    }
    api_request_free(&r);
    strbuf_free(&call);
    strbuf_free(&text);
}

/* JSON bounds no integer: one beyond 64 bits is a value like any other, where we need none. */
static void test_long_integers(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(
        API_CHAT,
        M "\"seed\": 9223372036854775807, \"x\": \"\\\"99999999999999999999\", \"tools\": "
          "[{\"function\": "
          "{\"name\": \"f\", \"parameters\": {\"maximum\": 18446744073709551615, \"minimum\": "
          "-99999999999999999999, \"default\": 0.12345678901234567890123}}}]}");
    const json_t *f = json_object_get(json_array_get(r.tools, 0), "function");
    const json_t *parameters = json_object_get(f, "parameters");
    assert_true(json_real_value(json_object_get(parameters, "maximum")) == 18446744073709551615.0);
    assert_true(json_real_value(json_object_get(parameters, "minimum")) == -1e20);
    assert_true(json_real_value(json_object_get(parameters, "default")) ==
                0.12345678901234567890123);
    assert_string_equal(json_string_value(json_object_get(r.body, "x")), "\"99999999999999999999");
    assert_true(r.params.seed == INT64_MAX);
    api_request_free(&r);
}

/* The prompt shows all digits, of arguments and of parameters; a grammar reads reals. */
static void test_digits(void **state)
{
    (void)state;
    static const char shown[] =
        "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "
        "\"f\", \"arguments\": {\"n\": 12345678901234567890}}}, {\"function\": {\"name\": \"f\", "
        "\"arguments\": {\"n\": [-12345678901234567890, 1e+20, 0, \"12345678901234567890\"]}}}]}]"
        "[{\"function\": {\"name\": \"f\", \"x\": 1.8446744073709552e+19, \"parameters\": "
        "{\"maximum\": "
        "18446744073709551615}}}]";
    ApiRequest r = api_case_ok(
        API_CHAT,
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": "
        "\"f\", \"arguments\": {\"n\": 12345678901234567890}}}, {\"function\": {\"name\": "
        "\"f\", \"arguments\": \"{\\\"n\\\": [-12345678901234567890, 1e20, -0, "
        "\\\"12345678901234567890\\\"]}\"}}]}], \"tools\": [{\"function\": {\"name\": \"f\", "
        "\"x\": 18446744073709551615, \"parameters\": {\"maximum\": "
        "18446744073709551615}}}], \"response_format\": {\"type\": \"json_object\", "
        "\"schema\": {\"properties\": {\"input\": {\"maximum\": 18446744073709551615}}}}}");
    StrBuf text = {0};
    pyjson_dump(r.messages, &text);
    pyjson_dump(r.prompt_tools, &text);
    assert_string_equal(strbuf_str(&text), shown);
    strbuf_free(&text);
    const json_t *f = json_object_get(json_array_get(r.tools, 0), "function");
    const json_t *input =
        json_object_get(json_object_get(r.structure.value, "properties"), "input");
    assert_true(json_is_real(json_object_get(json_object_get(f, "parameters"), "maximum")));
    assert_true(json_is_real(json_object_get(input, "maximum")));
    api_request_free(&r);
}

static void test_tools(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(
        API_CHAT,
        M "\"tools\": [{\"type\": \"web_search\"}, {\"type\": \"function\", \"function\": "
          "{\"name\": \"a.b-c\", \"x\": 1}}, {\"function\": {\"parameters\": {\"z\": 1, "
          "\"y\": 2}, \"name\": \"d\"}}]}");
    char *out = json_dumps(r.tools, JSON_COMPACT);
    assert_string_equal(out, "[{\"type\":\"function\",\"function\":{\"name\":\"a.b-c\",\"x\":1,"
                             "\"parameters\":{\"type\":\"object\",\"properties\":{}}}},"
                             "{\"function\":{\"parameters\":{\"z\":1,\"y\":2},\"name\":\"d\"}}]");
    free(out);
    api_request_free(&r);
}

/* ---- anything at all ---- */

static const char *const seeds[] = {
    P "\"max_tokens\": 5, \"stop\": [\"a\", \"b\"], \"logit_bias\": {\"5\": 1}, \"seed\": 3, "
      "\"stop_token_ids\": [1, 2], \"logprobs\": 2, \"n\": 2, \"temperature\": 0.5}",
    "{\"prompt\": [[1, 2], [3]], \"stream\": true, \"stream_options\": {\"include_usage\": true}}",
    M "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}], "
      "\"chat_template_kwargs\": {\"enable_thinking\": false}, \"reasoning\": {\"effort\": \"x\"}}",
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"assistant\", "
    "\"content\": [{\"type\": \"text\", \"text\": \"t\"}], \"tool_calls\": [{\"function\": "
    "{\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"content\": null}]}",
};

static uint64_t salt_of(const char *value)
{
    char text[2400];
    snprintf(text, sizeof text, M "\"cache_salt\": %s}", value);
    ApiRequest r = api_case_ok(API_CHAT, text);
    uint64_t salt = r.cache_salt;
    api_request_free(&r);
    return salt;
}

/* Salts that differ anywhere have other hashes, and none of them that of no salt. */
static void test_cache_fields(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(API_CHAT, M "\"cache_prompt\": false, \"cache_salt\": \"s\"}");
    assert_false(r.cache_prompt);
    assert_true(r.cache_salt);
    api_request_free(&r);
    r = api_case_ok(API_COMPLETION, P "\"cache_prompt\": null}");
    assert_true(r.cache_prompt);
    assert_true(!r.cache_salt);
    api_request_free(&r);

    char longest[MAX_CACHE_SALT + 4];
    snprintf(longest, sizeof longest, "\"%0*d\"", MAX_CACHE_SALT, 0);
    const char *const salts[] = {"null",
                                 "\"a\"",
                                 "\"b\"",
                                 "\"ab\"",
                                 "\"ba\"",
                                 "\"a\\u0000\"",
                                 "\"\\u0000a\"",
                                 "\"a\\u0000b\"",
                                 "\"A\"",
                                 "\"\\u00e9\"",
                                 "\"tenant-1\"",
                                 "\"tenant-2\"",
                                 longest,
                                 "null, \"extra_key\": \"a\"",
                                 "\"a\", \"extra_key\": \"b\"",
                                 "\"b\", \"extra_key\": \"a\""};
    enum { N = sizeof salts / sizeof *salts };
    for (int i = 0; i < N; i++) {
        assert_true(salt_of(salts[i]) == salt_of(salts[i]));
        for (int k = 0; k < i; k++)
            if (salt_of(salts[i]) == salt_of(salts[k])) fail_msg("%s, %s", salts[i], salts[k]);
    }
    assert_true(!salt_of("\"\""));
    /* It stays: what lies on a disk is found by it. */
    assert_true(salt_of("\"tenant-1\"") == UINT64_C(0x62011DDF6CEC20C3));
    ApiError err;
    char text[2400];
    snprintf(text, sizeof text, M "\"cache_salt\": \"%0*d\"}", MAX_CACHE_SALT + 1, 0);
    assert_int_equal(api_case_read(&r, API_CHAT, text, strlen(text), &err), -1);
    assert_string_equal(err.param, "cache_salt");
    api_request_free(&r);
}

/* How much of a system text is dropped; and nothing of a text that only looks alike. */
static void test_billing_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *left;
    } rows[] = {
        {BILLING, ""},
        {BILLING "\n", ""},
        {BILLING "\n\nYou are Claude.", "You are Claude."},
        {BILLING " You", " You"},
        {BILLING "\ncch=36ee5;", "cch=36ee5;"},
        {BILLING " cch=36\nee5;", " cch=36\nee5;"},
        {BILLING " =1;", " =1;"},
        {BILLING " Cch=1;", " Cch=1;"},
        {BILLING " cch", " cch"},
        {BILLING " cch=1", " cch=1"},
        {BILLING "  _=;;", ";"},
        {"x-anthropic-billing-header:\nhi", "hi"},
        {"x-anthropic-billing-header:", ""},
        {"x-anthropic-billing-header", "x-anthropic-billing-header"},
        {"x-anthropic-billing-headers: a=b;", "x-anthropic-billing-headers: a=b;"},
        {" " BILLING, " " BILLING},
        {"X-Anthropic-Billing-Header: a=b;", "X-Anthropic-Billing-Header: a=b;"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *text = rows[i].text;
        assert_string_equal(text + api_billing_line(text, strlen(text)), rows[i].left);
        /* Nothing behind its end is looked at. */
        for (size_t n = 0; n < strlen(text); n++) {
            char *copy = mem_realloc(NULL, n + !n, 1);
            memcpy(copy, text, n);
            assert_true(api_billing_line(copy, n) <= n);
            mem_free(copy);
        }
    }
}

/* Fields with more than one name, and those that only say what the reply holds. */
static void test_reply_fields(void **state)
{
    (void)state;
    ApiRequest r = api_case_ok(
        API_COMPLETION,
        P "\"n\": 2, \"best_of\": 4, \"prompt_logprobs\": 3, \"return_token_ids\": true, "
          "\"return_tokens\": true, \"return_tokens_as_token_ids\": true, \"cache_salt\": \"s\", "
          "\"timings_per_token\": true, \"return_trees\": true, \"cache_prompt\": false, "
          "\"service_tier\": \"auto\"}");
    assert_int_equal(r.n, 2);
    assert_int_equal(r.best_of, 4);
    assert_int_equal(r.n_prompt_logprobs, 3);
    assert_true(r.return_token_ids && r.return_tokens && r.tokens_as_ids && r.timings_per_token);
    assert_true(r.return_trees && r.service_tier);
    api_request_free(&r);
    r = api_case_ok(API_COMPLETION, P "\"n\": 2}");
    assert_int_equal(r.best_of, 2);
    assert_int_equal(r.n_prompt_logprobs, -1);
    assert_int_equal(r.thinking_budget, -1);
    api_request_free(&r);
    static const char *const budgets[] = {
        "\"reasoning_budget\": 7",
        "\"reasoning_budget_tokens\": 7",
        "\"thinking_budget\": 7",
        "\"thinking_budget_tokens\": 7",
        "\"thinking_token_budget\": 7",
        "\"reasoning\": {\"max_tokens\": 7}, \"thinking_budget\": 9",
        "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 7}"};
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        char text[128];
        snprintf(text, sizeof text, M "%s}", budgets[i]);
        r = api_case_ok(API_CHAT, text);
        assert_int_equal(r.thinking_budget, 7);
        api_request_free(&r);
    }
}

typedef struct {
    const char *fields;
    int parse_calls, parallel_calls, n_tools;
} ToolRow;

static void test_tool_choice(void **state)
{
    (void)state;
    static const ToolRow rows[] = {
        {"\"x\": 1}", 0, 1, 0},
        {"\"tools\": []}", 0, 1, 0},
        {"\"tool_choice\": \"auto\"}", 0, 1, 0},
        {"\"tools\": [{\"function\": {\"name\": \"f\"}}]}", 1, 1, 1},
        {"\"tools\": [{\"function\": {\"name\": \"f\"}}], \"tool_choice\": \"none\"}", 0, 1, 1},
        {"\"tools\": [{\"function\": {\"name\": \"f\"}}], \"tool_choice\": \"auto\", "
         "\"parallel_tool_calls\": false}",
         1, 0, 1},
        {"\"tools\": [{\"function\": {\"name\": \"f\"}}], \"tool_choice\": {\"type\": "
         "\"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\", \"tools\": []}}}",
         0, 1, 1},
        {"\"tools\": [{\"function\": {\"name\": \"f\"}}], \"tool_choice\": {\"type\": "
         "\"allowed_tools\", \"mode\": \"auto\", \"tools\": [{\"name\": \"f\"}]}}",
         1, 1, 1},
        {"\"functions\": [{\"name\": \"f\"}, {\"name\": \"g\"}]}", 1, 0, 2},
        {"\"functions\": [{\"name\": \"f\"}], \"function_call\": \"none\"}", 0, 0, 1},
        {"\"functions\": [{\"name\": \"f\"}], \"function_call\": null}", 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%s%s", M, rows[i].fields);
        ApiRequest r = api_case_ok(API_CHAT, text);
        if (r.parse_calls != rows[i].parse_calls || r.parallel_calls != rows[i].parallel_calls ||
            (int)json_array_size(r.tools) != rows[i].n_tools)
            fail_msg("%s: %d %d %zu", text, r.parse_calls, r.parallel_calls,
                     json_array_size(r.tools));
        api_request_free(&r);
    }
}

static void test_reasoning_and_prompt_end(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        ReasoningMode mode;
    } rows[] = {
        {"\"x\": 1}", REASONING_SEPARATE},
        {"\"include_reasoning\": true, \"separate_reasoning\": true}", REASONING_SEPARATE},
        {"\"separate_reasoning\": false}", REASONING_IN_CONTENT},
        {"\"reasoning_format\": \"none\"}", REASONING_IN_CONTENT},
        {"\"reasoning_format\": \"deepseek\"}", REASONING_SEPARATE},
        {"\"include_reasoning\": false}", REASONING_HIDDEN},
        {"\"reasoning\": {\"exclude\": true}}", REASONING_HIDDEN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", M, rows[i].fields);
        ApiRequest r = api_case_ok(API_CHAT, text);
        if (r.reasoning != rows[i].mode) fail_msg("%s: %d", text, r.reasoning);
        api_request_free(&r);
    }
    static const struct {
        const char *role, *fields;
        int add, go_on;
    } ends[] = {
        {"user", "", 1, 0},
        {"assistant", "", 1, 0}, /* a finished turn, then a new one */
        {"user", ", \"add_generation_prompt\": false", 0, 0},
        {"assistant", ", \"add_generation_prompt\": false", 0, 1},
        {"assistant", ", \"continue_final_message\": true", 0, 1},
        {"assistant", ", \"continue_final_message\": false, \"add_generation_prompt\": true", 1, 0},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char text[512];
        snprintf(text, sizeof text, "{\"messages\": [{\"role\": \"%s\", \"content\": \"a\"}]%s}",
                 ends[i].role, ends[i].fields);
        ApiRequest r = api_case_ok(API_CHAT, text);
        assert_int_equal(r.chat.add_generation_prompt, ends[i].add);
        assert_int_equal(r.chat.continue_final, ends[i].go_on);
        api_request_free(&r);
    }
}

/* Pieces that turn a valid body into one of another type, or into no JSON. */
static const char *const pieces[] = {"null", "{}",  "[]", "\"\"", "-1", "1e308", "99999999999",
                                     "true", "[5]", "{",  "]",    ",",  "\"",    "\xff"};

/* Replaces a random run of a body by a random piece; it may be read or refused, not more. */
static void test_mutations(void **state)
{
    (void)state;
    uint64_t x = 20261121;
    int n_read = 0;
    for (int round = 0; round < 20000; round++) {
        const char *seed = seeds[random_next(&x) % 4];
        const char *piece = pieces[random_next(&x) % 14];
        size_t n = strlen(seed), from = random_next(&x) % n;
        size_t drop = random_next(&x) % 12, to = from + drop < n ? from + drop : n;
        char text[1024];
        int len = snprintf(text, sizeof text, "%.*s%s%s", (int)from, seed, piece, seed + to);
        ApiRequest r;
        ApiError err;
        for (ApiKind kind = API_COMPLETION; kind <= API_CHAT; kind++) {
            if (!api_case_read(&r, kind, text, (size_t)len, &err))
                n_read++;
            else
                assert_true(err.error.msg[0]);
            api_request_free(&r);
        }
    }
    assert_true(n_read > 100); /* or the pieces were too rough to test anything */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_byte_order_mark),
        cmocka_unit_test(test_nulls_and_unknown_fields),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_max_tokens),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_bias_errors),
        cmocka_unit_test(test_chat_fields),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_messages_as_they_are),
        cmocka_unit_test(test_costly_arguments),
        cmocka_unit_test(test_long_integers),
        cmocka_unit_test(test_digits),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_cache_fields),
        cmocka_unit_test(test_billing_line),
        cmocka_unit_test(test_reply_fields),
        cmocka_unit_test(test_tool_choice),
        cmocka_unit_test(test_reasoning_and_prompt_end),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
