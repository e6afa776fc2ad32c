/* translate.c: what the translations share; see translate.h. */
#include "server/translate.h"

#include <limits.h>
#include <string.h>

#include "base/base64.h"
#include "text/utf8.h"

json_t *translate_copy(const json_t *body, const char *const *without)
{
    /* A reply of these APIs is one answer, has its API's events alone, ends as that says, and has
     * log-probabilities where that asks for them. */
    static const char *const form[] = {"n",
                                       "n_cmpl",
                                       "best_of",
                                       "logprobs",
                                       "top_logprobs",
                                       "prompt_logprobs",
                                       "echo",
                                       "max_tokens",
                                       "n_predict",
                                       "messages",
                                       "max_completion_tokens",
                                       "add_generation_prompt",
                                       "tools",
                                       "functions",
                                       "continue_final_message",
                                       "function_call",
                                       "prompt",
                                       "response_format",
                                       "suffix",
                                       "stream_options",
                                       "tool_choice",
                                       "audio",
                                       "modalities",
                                       "return_progress",
                                       NULL};
    json_t *copy = json_copy((json_t *)body);
    for (int i = 0; form[i]; i++)
        json_object_del(copy, form[i]);
    for (int i = 0; without[i]; i++)
        json_object_del(copy, without[i]);
    return copy;
}

const char *translate_text(const json_t *object, const char *key)
{
    const char *text = api_word(json_object_get(object, key));
    return text ? text : "";
}

int translate_length(const json_t *body, const char *key, long lo, json_t *chat, ApiError *err)
{
    int n = 0;
    if (!json_field(body, key)) return 0;
    if (api_read_int(body, key, lo, INT_MAX, &n, err)) return -1;
    return json_object_set_new(chat, "max_tokens", json_integer(n));
}

const char *translate_type(const json_t *object)
{
    return translate_text(object, "type");
}

void translate_add(StrBuf *out, const json_t *string)
{
    if (json_is_string(string))
        strbuf_add(out, json_string_value(string), json_string_length(string));
}

static const char SIGNED[] = "offshoot", SIGNED_WITH[] = "offshoot:";

void translate_sign(const StrBuf *reasoning, StrBuf *out)
{
    StrBuf plain = {0};
    strbuf_puts(&plain, reasoning ? SIGNED_WITH : SIGNED);
    if (reasoning) strbuf_add(&plain, strbuf_str(reasoning), reasoning->len);
    base64_encode(plain.data, plain.len, out);
    strbuf_free(&plain);
}

void translate_add_signed(StrBuf *out, const json_t *signature)
{
    size_t n = sizeof SIGNED_WITH - 1;
    StrBuf plain = {0};
    if (json_is_string(signature) &&
        !base64_decode(json_string_value(signature), json_string_length(signature), &plain) &&
        plain.len > n && !memcmp(plain.data, SIGNED_WITH, n) &&
        utf8_check(plain.data, plain.len) == plain.len)
        strbuf_add(out, plain.data + n, plain.len - n);
    strbuf_free(&plain);
}

json_t *translate_part(json_t *text)
{
    return json_pack("{s:s, s:o}", "type", "text", "text", text);
}

json_t *translate_call(json_t *id, json_t *name, json_t *arguments)
{
    json_t *call = json_pack("{s:s, s:{s:o, s:o}}", "type", "function", "function", "name", name,
                             "arguments", arguments);
    if (json_is_string(id)) json_object_set(call, "id", id);
    return call;
}

json_t *translate_result(json_t *id, json_t *content)
{
    json_t *m = translate_message("tool", content);
    if (json_is_string(id)) json_object_set(m, "tool_call_id", id);
    return m;
}

json_t *translate_tool(const json_t *name, const json_t *description, const json_t *parameters,
                       const json_t *strict)
{
    json_t *f = json_object();
    if (name) json_object_set(f, "name", (json_t *)name);
    if (description) json_object_set(f, "description", (json_t *)description);
    if (parameters) json_object_set(f, "parameters", (json_t *)parameters);
    if (json_is_true(strict)) json_object_set(f, "strict", (json_t *)strict);
    return json_pack("{s:s, s:o}", "type", "function", "function", f);
}

json_t *translate_message(const char *role, json_t *content)
{
    return json_pack("{s:s, s:o*}", "role", role, "content", content);
}
