/* api_case.c: see api_case.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "tests/analyzer.h"
#include "tests/api_case.h"

const ApiDefaults api_case_defaults = {
    .sampling = {.temperature = 0.7F, .top_p = 0.8F, .top_k = 20, .repetition = 1, .seed = 77},
    .max_tokens = 16,
    .chat = {.add_generation_prompt = 1, .enable_thinking = -1, .preserve_thinking = -1},
    .n_vocab = 100,
};

static int read_by(const ApiDefaults *defaults, ApiRequest *r, ApiKind kind, const char *text,
                   size_t len, ApiError *err)
{
    *err = (ApiError){0};
    *r = (ApiRequest){0};
    json_t *body = api_parse_body(text, len, NULL, err);
    return body ? api_request_read(r, kind, body, defaults, err) : -1;
}

int api_case_read(ApiRequest *r, ApiKind kind, const char *text, size_t len, ApiError *err)
{
    return read_by(&api_case_defaults, r, kind, text, len, err);
}

ApiRequest api_case_chat_of(ChatFamily family, const char *text)
{
    ApiDefaults defaults = api_case_defaults;
    ApiRequest r;
    ApiError err;
    defaults.family = family;
    if (read_by(&defaults, &r, API_CHAT, text, strlen(text), &err))
        fail_msg("%s: %s", text, err.error.msg);
    return r;
}

ApiRequest api_case_ok(ApiKind kind, const char *text)
{
    ApiRequest r;
    ApiError err;
    if (api_case_read(&r, kind, text, strlen(text), &err)) fail_msg("%s: %s", text, err.error.msg);
    return r;
}
