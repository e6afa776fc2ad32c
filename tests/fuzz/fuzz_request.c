/*
 * fuzz_request.c: the body of a completion or chat request, up to the rendered prompt.
 *
 * Input: the body, read as both kinds.
 */
#include "tests/fuzz/fuzz.h"

#include "server/api_request.h"
#include "text/chat.h"

/* What the routes rely on once a request was read. */
static void check_request(const ApiRequest *r, int n_vocab)
{
    Error err = {0};
    FUZZ_CHECK(r->n >= 1 && r->n <= r->best_of && r->best_of <= MAX_N);
    FUZZ_CHECK(r->n_prompt_logprobs >= -1 && r->n_prompt_logprobs <= MAX_LOGPROBS);
    FUZZ_CHECK(!r->parse_calls || json_array_size(r->tools));
    FUZZ_CHECK(r->n_logprobs >= -1 && r->n_logprobs <= MAX_LOGPROBS);
    FUZZ_CHECK(r->params.temperature >= 0 && r->params.top_p > 0);
    StopMatcher *m = stop_matcher_open(NULL, r->stop, r->n_stop, &err);
    FUZZ_CHECK(m);
    stop_matcher_close(m);
    for (int i = 0; i < r->n_stop_ids; i++)
        FUZZ_CHECK(r->stop_id[i] >= 0 && r->stop_id[i] < n_vocab);
    for (int i = 0; i < r->n_bias; i++)
        FUZZ_CHECK(r->bias_id[i] >= 0 && r->bias_id[i] < n_vocab);
    for (int i = 0; i < r->n_prompts; i++) {
        const ApiPrompt *p = &r->prompts[i];
        FUZZ_CHECK(p->text ? p->len > 0 : p->ids.n > 0);
        for (int k = 0; k < p->ids.n; k++)
            FUZZ_CHECK(p->ids.id[k] >= 0 && p->ids.id[k] < n_vocab);
    }
}

static void render(const ApiRequest *r)
{
    for (int family = CHAT_QWEN35; family <= CHAT_QWEN3_NEXT_THINKING; family++) {
        ChatTemplate t = {.family = (ChatFamily)family, .thinking_default = 1};
        ChatOptions o = {r->add_generation_prompt, r->enable_thinking, 0, r->continue_final};
        StrBuf out = {0};
        Error err = {0};
        ChatMarks marks = {0};
        int rc = chat_render(&t, r->messages, r->tools, &o, &out, &marks, &err);
        FUZZ_CHECK(rc ? *err.msg : marks.n_stable <= out.len);
        chat_marks_free(&marks);
        strbuf_free(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ApiDefaults defaults = {
        .sampling = {.temperature = 0.7F, .top_p = 0.8F, .top_k = 20, .repetition = 1, .seed = 77},
        .max_tokens = 16,
        .enable_thinking = -1,
        .n_vocab = 100,
    };
    for (int kind = API_COMPLETION; kind <= API_CHAT; kind++) {
        ApiRequest r = {0};
        ApiError err = {0};
        json_t *body = api_parse_body((const char *)data, size, &err);
        int rc = body ? api_request_read(&r, (ApiKind)kind, body, &defaults, &err) : -1;
        FUZZ_CHECK(!rc || (*err.error.msg && err.error.code));
        if (!rc) check_request(&r, defaults.n_vocab);
        if (!rc && kind == API_CHAT) render(&r);
        api_request_free(&r);
    }
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
