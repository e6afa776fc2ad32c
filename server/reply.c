/* reply.c: the objects that all completion replies share; see call.h. */
#include "server/call.h"

#include "base/strbuf.h"
#include "server/json_out.h"
#include "text/utf8.h"

static int n_prompt_tokens(const Call *call)
{
    int n = 0;
    for (int i = 0; i < call->n_prompts; i++)
        n += call->prompt[i].n;
    return n;
}

/* Every token that was generated counts: end tokens and cut stop strings too. */
static int n_generated(const Call *call)
{
    int n = 0;
    for (int i = 0; i < call->n_answers; i++)
        n += call->answers[i].n_tokens;
    return n;
}

json_t *call_usage(const Call *call)
{
    int n_prompt = n_prompt_tokens(call), n = n_generated(call);
    return json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens", n_prompt, "completion_tokens", n,
                     "total_tokens", n_prompt + n, "prompt_tokens_details", "cached_tokens", 0);
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0.0;
}

/*
 * llama.cpp's object. Answers of one call run side by side, so times are those of the slowest and
 * counts are sums.
 */
json_t *call_timings(const Call *call)
{
    double prompt_ms = 0, decode_ms = 0;
    int n_prompt = n_prompt_tokens(call), n = n_generated(call), n_drafted = 0, n_accepted = 0;
    for (int i = 0; i < call->n_answers; i++) {
        const RequestStats *st = &call->answers[i].stats;
        if (st->prompt_ms > prompt_ms) prompt_ms = st->prompt_ms;
        if (st->decode_ms > decode_ms) decode_ms = st->decode_ms;
        n_drafted += st->n_drafted;
        n_accepted += st->n_accepted;
    }
    json_t *t =
        json_pack("{s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:f}", "cache_n", 0, "prompt_n",
                  n_prompt, "prompt_ms", prompt_ms, "prompt_per_token_ms",
                  ratio(prompt_ms, n_prompt), "prompt_per_second", ratio(n_prompt * 1e3, prompt_ms),
                  "predicted_n", n, "predicted_ms", decode_ms, "predicted_per_token_ms",
                  ratio(decode_ms, n), "predicted_per_second", ratio(n * 1e3, decode_ms));
    if (n_drafted) { /* as llama.cpp: only where drafts ran */
        json_object_set_new(t, "draft_n", json_integer(n_drafted));
        json_object_set_new(t, "draft_n_accepted", json_integer(n_accepted));
    }
    return t;
}

json_t *call_stop_reason(const Answer *a)
{
    if (a->stop_string) return json_text(a->stop_string);
    return a->stop_id >= 0 ? json_integer(a->stop_id) : json_null();
}

json_t *call_logprob(float logprob)
{
    return json_real(logprob > -9999 ? (double)logprob : -9999.0); /* NaN fails the test too */
}

json_t *call_token_text(const Call *call, int32_t token)
{
    size_t len;
    const char *bytes = tokenizer_bytes(call->server->service->tok, token, &len);
    if (utf8_check(bytes, len) == len) return json_stringn(bytes, len);
    StrBuf text = {0};
    strbuf_puts(&text, "bytes:");
    for (size_t i = 0; i < len; i++)
        strbuf_printf(&text, "\\x%02x", (unsigned char)bytes[i]);
    json_t *s = json_stringn(text.data, text.len);
    strbuf_free(&text);
    return s;
}
