/*
 * fuzz_request.c: the body of a request that generates, up to the rendered prompt.
 *
 * Input: the body, read as both kinds, and as those of other APIs that become chats.
 */
#include "tests/fuzz/fuzz.h"

#include "server/responses_tools.h"
#include "server/translate.h"
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
    StopMatcher *m = stop_matcher_open(r->stop, r->n_stop, &err);
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
    for (int family = CHAT_QWEN35; family <= CHAT_QWEN3_CODER; family++) {
        ChatTemplate t = {.family = (ChatFamily)family, .thinking_default = 1};
        StrBuf out = {0};
        Error err = {0};
        ChatMarks marks = {0};
        int rc = chat_render(&t, r->messages, r->tools, &r->chat, &out, &marks, &err);
        FUZZ_CHECK(rc ? *err.msg : marks.n_stable <= out.len);
        chat_marks_free(&marks);
        strbuf_free(&out);
    }
}

typedef json_t *(*Translate)(const json_t *body, ApiError *err);

/* A tool that the model sees is found again, by the name that it has there. */
static void check_tools(const ApiRequest *r, const json_t *asked)
{
    json_t *tool;
    size_t i;
    json_array_foreach(r->tools, i, tool)
    {
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        ResponsesTool found;
        if (responses_find_tool(asked, json_string_value(name), &found)) FUZZ_CHECK(found.name);
    }
}

static void read_body(const uint8_t *data, size_t size, ApiKind kind, Translate translate,
                      const ApiDefaults *defaults)
{
    ApiRequest r = {0};
    ApiError err = {0};
    json_t *asked = NULL, *body = api_parse_body((const char *)data, size, NULL, &err);
    if (body && translate) {
        asked = body;
        body = translate(asked, &err);
    }
    int rc = body ? api_request_read(&r, kind, body, defaults, &err) : -1;
    FUZZ_CHECK(!rc || (*err.error.msg && err.error.code));
    FUZZ_CHECK(rc || !asked || (r.n == 1 && r.n_logprobs < 0));
    if (!rc) check_request(&r, defaults->n_vocab);
    if (!rc && kind == API_CHAT) render(&r);
    if (!rc && translate == responses_to_chat) check_tools(&r, asked);
    api_request_free(&r);
    json_decref(asked);
}

/* A custom tool's input does not depend on how its arguments are cut. */
static void fuzz_input(const uint8_t *data, size_t size)
{
    CustomInput whole = {0}, cut = {0};
    const char *json = (const char *)data;
    custom_input_begin(&whole);
    custom_input_add(&whole, json, size);
    custom_input_begin(&cut);
    for (size_t i = 0; i < size; i++)
        custom_input_add(&cut, json + i, 1);
    FUZZ_CHECK(whole.state == cut.state && whole.text.len == cut.text.len);
    custom_input_free(&whole);
    custom_input_free(&cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ApiDefaults defaults = {
        .sampling = {.temperature = 0.7F, .top_p = 0.8F, .top_k = 20, .repetition = 1, .seed = 77},
        .max_tokens = 16,
        .chat = {.add_generation_prompt = 1, .enable_thinking = -1, .preserve_thinking = -1},
        .n_vocab = 100,
    };
    read_body(data, size, API_COMPLETION, NULL, &defaults);
    read_body(data, size, API_CHAT, NULL, &defaults);
    read_body(data, size, API_CHAT, anthropic_to_chat, &defaults);
    read_body(data, size, API_CHAT, responses_to_chat, &defaults);
    fuzz_input(data, size);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
