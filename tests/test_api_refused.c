/* test_api_refused.c: bodies of requests that are refused, and the field that is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/analyzer.h"
#include "tests/api_case.h"

#define P API_CASE_PROMPT
#define M API_CASE_CHAT

typedef struct {
    ApiKind kind;
    const char *text, *param;
} Refused;

static const Refused refused[] = {
    /* bodies */
    {API_COMPLETION, "", ""},
    {API_COMPLETION, "{", ""},
    {API_COMPLETION, "[1]", ""},
    {API_COMPLETION, "{\"prompt\": \"a\"} x", ""},
    {API_COMPLETION, "{\"prompt\": \"\xff\"}", ""},
    {API_COMPLETION, "{\"prompt\": \"\\ud800\"}", ""},
    {API_COMPLETION, "{\"prompt\": NaN}", ""},
    {API_COMPLETION, "{\"prompt\": \"a\", \"x\": 99999999999999999999", ""},
    {API_COMPLETION, P "\"x\": 1e999}", ""},
    {API_COMPLETION, P "\"seed\": 18446744073709551615}", "seed"},
    {API_COMPLETION, "null", ""},
    /* prompts */
    {API_COMPLETION, "{}", "prompt"},
    {API_COMPLETION, "{\"prompt\": null}", "prompt"},
    {API_COMPLETION, "{\"prompt\": 5}", "prompt"},
    {API_COMPLETION, "{\"prompt\": {}}", "prompt"},
    {API_COMPLETION, "{\"prompt\": \"\"}", "prompt"},
    {API_COMPLETION, "{\"prompt\": []}", "prompt"},
    {API_COMPLETION, "{\"prompt\": [[]]}", "prompt[0]"},
    {API_COMPLETION, "{\"prompt\": [[1], []]}", "prompt[1]"},
    {API_COMPLETION, "{\"prompt\": [\"a\", [1]]}", "prompt[1]"},
    {API_COMPLETION, "{\"prompt\": [\"a\", \"\"]}", "prompt[1]"},
    {API_COMPLETION, "{\"prompt\": [1, \"a\"]}", "prompt"},
    {API_COMPLETION, "{\"prompt\": [1, 100]}", "prompt"},
    {API_COMPLETION, "{\"prompt\": [-1]}", "prompt"},
    {API_COMPLETION, "{\"prompt\": [1.5]}", "prompt"},
    {API_COMPLETION, "{\"prompt\": [4294967296]}", "prompt"},
    {API_COMPLETION, "{\"prompt\": [true]}", "prompt"},
    /* ranges */
    {API_COMPLETION, P "\"temperature\": -1}", "temperature"},
    {API_COMPLETION, P "\"temperature\": 1e3}", "temperature"},
    {API_COMPLETION, P "\"temperature\": \"hot\"}", "temperature"},
    {API_COMPLETION, P "\"top_p\": 7}", "top_p"},
    {API_COMPLETION, P "\"top_p\": -0.1}", "top_p"},
    {API_COMPLETION, P "\"top_k\": -2}", "top_k"},
    {API_COMPLETION, P "\"top_k\": 2.5}", "top_k"},
    {API_COMPLETION, P "\"top_k\": -1e30}", "top_k"},
    {API_COMPLETION, P "\"logit_bias\": [[5.5, 2]]}", "logit_bias"},
    {API_COMPLETION, P "\"min_p\": 1.5}", "min_p"},
    {API_COMPLETION, P "\"presence_penalty\": 2.5}", "presence_penalty"},
    {API_COMPLETION, P "\"frequency_penalty\": -2.5}", "frequency_penalty"},
    {API_COMPLETION, P "\"repetition_penalty\": 0}", "repetition_penalty"},
    {API_COMPLETION, P "\"repeat_penalty\": -1}", "repeat_penalty"},
    {API_COMPLETION, P "\"n\": 0}", "n"},
    {API_COMPLETION, P "\"n\": 129}", "n"},
    {API_COMPLETION, P "\"n\": 3, \"best_of\": 2}", "best_of"},
    {API_COMPLETION, P "\"best_of\": 0}", "best_of"},
    {API_COMPLETION, P "\"best_of\": 129}", "best_of"},
    {API_COMPLETION, P "\"best_of\": 2, \"stream\": true}", "best_of"},
    {API_COMPLETION, P "\"prompt_logprobs\": 21}", "prompt_logprobs"},
    {API_COMPLETION, P "\"prompt_logprobs\": 1, \"stream\": true}", "prompt_logprobs"},
    {API_COMPLETION, P "\"return_token_ids\": 1}", "return_token_ids"},
    {API_COMPLETION, P "\"cache_prompt\": 1}", "cache_prompt"},
    {API_COMPLETION, P "\"cache_salt\": 1}", "cache_salt"},
    {API_CHAT, M "\"cache_salt\": {}}", "cache_salt"},
    {API_CHAT, M "\"extra_key\": [\"a\"]}", "extra_key"},
    {API_COMPLETION, P "\"truncate_prompt_tokens\": 5}", "truncate_prompt_tokens"},
    {API_COMPLETION, P "\"guided_json\": {\"type\": \"object\"}}", "guided_json"},
    {API_COMPLETION, P "\"max_tokens\": -4}", "max_tokens"},
    {API_COMPLETION, P "\"max_tokens\": -99999999999}", "max_tokens"},
    {API_COMPLETION, P "\"n_predict\": -2}", "n_predict"},
    {API_COMPLETION, P "\"max_tokens\": \"5\"}", "max_tokens"},
    {API_COMPLETION, P "\"min_tokens\": -1}", "min_tokens"},
    {API_COMPLETION, P "\"min_tokens\": 5, \"max_tokens\": 4}", "min_tokens"},
    {API_COMPLETION, P "\"logprobs\": -3}", "logprobs"},
    {API_COMPLETION, P "\"logprobs\": 21}", "logprobs"},
    {API_COMPLETION, P "\"seed\": 1.5}", "seed"},
    {API_COMPLETION, P "\"seed\": \"x\"}", "seed"},
    {API_COMPLETION, P "\"seed\": 99999999999999999999}", "seed"},
    {API_COMPLETION, P "\"speculative.n_max\": -1}", "speculative.n_max"},
    {API_COMPLETION, P "\"stream\": 1}", "stream"},
    {API_COMPLETION, P "\"echo\": \"yes\"}", "echo"},
    {API_COMPLETION, P "\"ignore_eos\": 0}", "ignore_eos"},
    {API_COMPLETION, P "\"stream_options\": true}", "stream_options"},
    {API_COMPLETION, P "\"stream_options\": {\"include_usage\": 1}}", "include_usage"},
    {API_COMPLETION, P "\"model\": 5}", "model"},
    {API_COMPLETION, P "\"model\": \"m\\u0000x\"}", "model"},
    /* lists */
    {API_COMPLETION, P "\"stop\": 5}", "stop"},
    {API_COMPLETION, P "\"stop\": [\"a\", 5]}", "stop"},
    {API_COMPLETION, P "\"stop\": \"a\\u0000b\"}", "stop"},
    {API_COMPLETION,
     P "\"stop\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\","
       "\"e\",\"f\",\"g\",\"h\"]}",
     "stop"},
    {API_COMPLETION, P "\"stop_token_ids\": 5}", "stop_token_ids"},
    {API_COMPLETION, P "\"stop_token_ids\": [100]}", "stop_token_ids"},
    {API_COMPLETION, P "\"stop_token_ids\": [\"5\"]}", "stop_token_ids"},
    {API_COMPLETION, P "\"allowed_token_ids\": 5}", "allowed_token_ids"},
    {API_COMPLETION, P "\"allowed_token_ids\": [5, 100]}", "allowed_token_ids"},
    {API_CHAT, M "\"allowed_token_ids\": [\"5\"]}", "allowed_token_ids"},
    {API_CHAT, M "\"allowed_token_ids\": [5], \"response_format\": {\"type\": \"json_object\"}}",
     "allowed_token_ids"},
    {API_COMPLETION, P "\"logit_bias\": 5}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"x\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"5x\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\" 5\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"+5\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"5.0\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"-5\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"18446744073709551621\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"100\": 5}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"5\": 101}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": {\"5\": \"1\"}}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": [[5]]}", "logit_bias"},
    {API_COMPLETION, P "\"logit_bias\": [5]}", "logit_bias"},
    /* what we cannot do */
    {API_COMPLETION, P "\"suffix\": \"x\"}", "suffix"},
    {API_COMPLETION, P "\"use_beam_search\": true}", "use_beam_search"},
    {API_COMPLETION, P "\"bad_words\": [\"x\"]}", "bad_words"},
    {API_CHAT, M "\"bad_words\": \"x\"}", "bad_words"},
    {API_COMPLETION, P "\"n_indent\": 4}", "n_indent"},
    {API_CHAT, M "\"t_max_predict_ms\": 500}", "t_max_predict_ms"},
    {API_COMPLETION, P "\"n_probs\": 3}", "n_probs"},
    {API_CHAT, M "\"return_hidden_states\": true}", "return_hidden_states"},
    {API_COMPLETION, P "\"return_routed_experts\": true}", "return_routed_experts"},
    {API_CHAT, M "\"return_prompt_token_ids\": true}", "return_prompt_token_ids"},
    {API_CHAT, M "\"return_prompt_text\": true}", "return_prompt_text"},
    {API_CHAT, M "\"return_meta_info\": true}", "return_meta_info"},
    {API_CHAT, M "\"return_input_ids_in_sglext\": true}", "return_input_ids_in_sglext"},
    {API_CHAT, M "\"return_output_ids_in_sglext\": true}", "return_output_ids_in_sglext"},
    {API_COMPLETION, P "\"return_spec_tokens_details\": true}", "return_spec_tokens_details"},
    {API_CHAT, M "\"return_sampling_mask\": true}", "return_sampling_mask"},
    {API_COMPLETION, P "\"return_weight_versions\": true}", "return_weight_versions"},
    {API_CHAT, M "\"sampling_logprobs_mode\": \"support\"}", "sampling_logprobs_mode"},
    {API_CHAT, M "\"input_ids\": [5, 6]}", "input_ids"},
    {API_CHAT, M "\"session_params\": {\"id\": \"x\"}}", "session_params"},
    {API_COMPLETION, P "\"watermark\": {\"key\": \"x\"}}", "watermark"},
    {API_COMPLETION, P "\"watermarking\": true}", "watermarking"},
    {API_CHAT, M "\"reasoning_budget_message\": \"x\"}", "reasoning_budget_message"},
    {API_COMPLETION, P "\"logits_processors\": [\"x\"]}", "logits_processors"},
    {API_COMPLETION, P "\"logprob_token_ids\": [5]}", "logprob_token_ids"},
    {API_COMPLETION, P "\"logprobs\": 1, \"post_sampling_probs\": true}", "post_sampling_probs"},
    {API_CHAT, M "\"return_cached_tokens_details\": true}", "return_cached_tokens_details"},
    {API_COMPLETION, P "\"repetition_detection\": {\"min_count\": 3}}", "repetition_detection"},
    {API_COMPLETION, P "\"stop_regex\": \"a+\"}", "stop_regex"},
    {API_CHAT, M "\"custom_logit_processor\": \"x\"}", "custom_logit_processor"},
    {API_COMPLETION, P "\"lora_path\": \"x\"}", "lora_path"},
    {API_COMPLETION, P "\"lora\": [{\"id\": 0, \"scale\": 1}]}", "lora"},
    {API_CHAT, M "\"echo\": true}", "echo"},
    {API_CHAT, M "\"no_stop_trim\": 1}", "no_stop_trim"},
    {API_COMPLETION, P "\"grammar\": \"root ::= x\"}", "grammar"},
    {API_COMPLETION, P "\"response_format\": \"text\"}", "response_format"},
    /* chat */
    {API_CHAT, "{}", "messages"},
    {API_CHAT, "{\"messages\": []}", "messages"},
    {API_CHAT, "{\"messages\": \"hi\"}", "messages"},
    {API_CHAT, "{\"messages\": [5]}", "messages[0]"},
    {API_CHAT, "{\"messages\": [{\"role\": \"user\"}, {\"content\": \"\"}]}", "messages[1].role"},
    {API_CHAT, "{\"messages\": [{\"role\": \"wizard\", \"content\": \"\"}]}", "messages[0].role"},
    {API_CHAT, "{\"messages\": [{\"role\": 1, \"content\": \"\"}]}", "messages[0].role"},
    {API_CHAT, "{\"messages\": [{\"role\": \"user\\u0000x\", \"content\": \"\"}]}",
     "messages[0].role"},
    {API_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\\u0000\", \"text\": "
     "\"a\"}]}]}",
     "messages[0].content"},
    {API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", "messages[0].content"},
    {API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": [5]}]}", "messages[0].content"},
    {API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
     "messages[0].content"},
    {API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
     "messages[0].content"},
    {API_CHAT, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": 5}]}",
     "messages[0].tool_calls"},
    {API_CHAT, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{}]}]}",
     "messages[0].tool_calls"},
    {API_CHAT, "{\"messages\": [{\"role\": \"assistant\", \"function_call\": \"f\"}]}",
     "messages[0].function_call"},
    {API_CHAT, "{\"messages\": [{\"role\": \"assistant\", \"function_call\": {}}]}",
     "messages[0].function_call"},
    {API_CHAT, M "\"max_tokens\": 0}", "max_tokens"},
    {API_CHAT, M "\"n_predict\": 0}", "n_predict"},
    {API_CHAT, M "\"max_completion_tokens\": -2}", "max_completion_tokens"},
    {API_CHAT, M "\"logprobs\": 1}", "logprobs"},
    {API_CHAT, M "\"top_logprobs\": 3}", "top_logprobs"},
    {API_CHAT, M "\"logprobs\": true, \"top_logprobs\": 21}", "top_logprobs"},
    {API_CHAT, M "\"tools\": 5}", "tools"},
    {API_CHAT, M "\"tools\": [5]}", "tools[0]"},
    {API_CHAT, M "\"tools\": [{\"type\": \"web_search\"}, {\"type\": \"bash_20250124\"}]}",
     "tools[1].type"},
    {API_CHAT, M "\"tools\": [{\"type\": \"text_editor_20250728\"}]}", "tools[0].type"},
    {API_CHAT, M "\"tools\": [{\"type\": \"apply_patch\"}]}", "tools[0].type"},
    {API_CHAT, M "\"tools\": [{\"type\": \"customer\"}, {\"type\": \"computer-use-preview\"}]}",
     "tools[1].type"},
    {API_CHAT, M "\"tools\": [{\"type\": \"custom\", \"custom\": {}}]}", "tools[0].type"},
    {API_CHAT, M "\"tools\": [{\"type\": \"function\"}]}", "tools[0].function.name"},
    {API_CHAT, M "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a b\"}}]}",
     "tools[0].function.name"},
    {API_CHAT,
     M "\"tools\": [{\"function\": {\"name\": \"a\"}}, {\"function\": {\"name\": \"a\"}}]}",
     "tools[1].function.name"},
    {API_CHAT, M "\"tools\": [{\"function\": {\"name\": \"a\", \"parameters\": 5}}]}",
     "tools[0].function.parameters"},
    {API_CHAT, M "\"tools\": [{\"function\": {\"name\": \"a\", \"strict\": \"yes\"}}]}",
     "tools[0].function.strict"},
    {API_CHAT, M "\"tool_choice\": \"required\"}", "tool_choice"},
    {API_CHAT, M "\"tool_choice\": {\"type\": \"function\"}}", "tool_choice"},
    {API_CHAT, M "\"tool_choice\": \"sometimes\"}", "tool_choice"},
    {API_CHAT, M "\"tool_choice\": 5}", "tool_choice"},
    {API_CHAT, M "\"tool_choice\": {\"type\": \"allowed_tools\"}}", "tool_choice"},
    {API_CHAT,
     M "\"tools\": [{\"function\": {\"name\": \"a\"}}], \"tool_choice\": {\"function\": {\"name\": "
       "\"b\"}}}",
     "tool_choice"},
    {API_CHAT, M "\"functions\": 5}", "functions"},
    {API_CHAT, M "\"functions\": [5]}", "functions[0].name"},
    {API_CHAT, M "\"functions\": [{\"name\": \"f\", \"parameters\": 5}]}",
     "functions[0].parameters"},
    {API_CHAT, M "\"function_call\": {\"name\": \"a\"}}", "function_call"},
    {API_CHAT, M "\"parallel_tool_calls\": \"no\"}", "parallel_tool_calls"},
    {API_CHAT, M "\"modalities\": [\"text\", \"audio\"]}", "modalities"},
    {API_CHAT, M "\"include_reasoning\": 1}", "include_reasoning"},
    {API_CHAT, M "\"reasoning\": {\"exclude\": 1}}", "reasoning.exclude"},
    {API_CHAT, M "\"reasoning\": \"high\"}", "reasoning"},
    {API_CHAT, M "\"reasoning\": {\"effort\": 1}}", "reasoning.effort"},
    {API_CHAT, M "\"reasoning_effort\": false}", "reasoning_effort"},
    {API_CHAT, M "\"thinking_budget\": -2}", "thinking_budget"},
    {API_CHAT, M "\"thinking\": true}", "thinking.type"},
    {API_CHAT, M "\"thinking\": {\"type\": \"none\"}}", "thinking.type"},
    {API_CHAT, M "\"reasoning\": {\"max_tokens\": -2}}", "reasoning.max_tokens"},
    {API_CHAT, M "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 0}}",
     "thinking.budget_tokens"},
    {API_CHAT, M "\"continue_final_message\": true}", "continue_final_message"},
    {API_CHAT,
     "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], "
     "\"continue_final_message\": true, \"add_generation_prompt\": true}",
     "continue_final_message"},
    {API_CHAT, M "\"chat_template\": \"{{ x }}\"}", "chat_template"},
    {API_CHAT, M "\"chat_template_kwargs\": 5}", "chat_template_kwargs"},
    {API_CHAT, M "\"chat_template_kwargs\": {\"enable_thinking\": 5}}",
     "chat_template_kwargs.enable_thinking"},
    {API_CHAT, M "\"chat_template_kwargs\": {\"reasoning_effort\": 5}}",
     "chat_template_kwargs.reasoning_effort"},
    {API_CHAT, M "\"enable_thinking\": \"yes\"}", "enable_thinking"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ApiRequest r;
        ApiError err;
        const Refused *x = &refused[i];
        if (!api_case_read(&r, x->kind, x->text, strlen(x->text), &err))
            fail_msg("was taken: %s", x->text);
        if (strcmp(err.param, x->param) != 0)
            fail_msg("%s: names '%s', not '%s' (%s)", x->text, err.param, x->param, err.error.msg);
        assert_int_equal(err.error.code == ERR_INPUT || err.error.code == ERR_LIMIT, 1);
        assert_true(err.error.msg[0]);
        api_request_free(&r);
    }
}

/* 128 levels are read, 129 and 10,000 are not. */
static void test_depth(void **state)
{
    (void)state;
    static const int depths[] = {127, 128, 10000};
    static char text[20064];
    for (int i = 0; i < 3; i++) {
        int n = depths[i];
        size_t len = (size_t)sprintf(text, P "\"x\": ");
        memset(text + len, '[', (size_t)n);
        memset(text + len + n, ']', (size_t)n);
        memcpy(text + len + 2 * n, "}", 2);
        ApiError err = {0};
        json_t *body = api_parse_body(text, strlen(text), NULL, &err);
        assert_int_equal(body != NULL, n < 128);
        json_decref(body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
