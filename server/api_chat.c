/*
 * api_chat.c: POST /v1/chat/completions.
 *
 * What the model writes is the message's content, reasoning and tool calls included. Their parser
 * will split an answer's text before message and delta see it.
 */
#include "server/call.h"

#include "base/mem.h"
#include "server/json_out.h"

static int tokenize(Call *call, ApiError *err)
{
    const ApiRequest *api = &call->api;
    const Service *service = call->server->service;
    ChatOptions options = {.add_generation_prompt = api->add_generation_prompt,
                           .enable_thinking = api->enable_thinking,
                           .continue_final = api->continue_final};
    StrBuf text = {0};
    ChatMarks marks = {0};
    call->prompt = mem_alloc(1, sizeof *call->prompt);
    call->n_prompts = 1;
    int rc =
        chat_render(&service->tmpl, api->messages, api->tools, &options, &text, &marks, &err->error);
    if (!rc)
        rc = tokenizer_encode_prompt(service->tok, strbuf_str(&text), text.len, marks.client,
                                     marks.n_client, &call->prompt[0], &err->error);
    if (rc) api_in_field(err, "messages");
    chat_marks_free(&marks);
    strbuf_free(&text);
    return rc;
}

/* Text, log-probability and bytes of a token. */
static json_t *token_entry(const Call *call, int32_t token, float logprob)
{
    size_t len;
    const char *text = tokenizer_bytes(call->server->service->tok, token, &len);
    json_t *bytes = json_array();
    for (size_t i = 0; i < len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    return json_pack("{s:o, s:o, s:o}", "token", json_text_n(text, len), "logprob",
                     call_logprob(logprob), "bytes", bytes);
}

/* An entry for each token from..n but the end token, each with exactly k alternatives. */
static json_t *logprobs(const Call *call, const Answer *a, int from)
{
    const TokenProbs *p = &a->probs;
    if (call->api.n_logprobs < 0) return json_null();
    json_t *content = json_array();
    for (int i = from; i < p->n; i++) {
        if (answer_is_end(a, p->token[i])) continue;
        json_t *entry = token_entry(call, p->token[i], p->logprob[i]), *tops = json_array();
        for (int j = 0; j < p->k; j++) {
            size_t at = (size_t)i * (size_t)p->k + (size_t)j;
            if (p->top_id[at] < 0) break;
            json_array_append_new(tops, token_entry(call, p->top_id[at], p->top_logprob[at]));
        }
        json_object_set_new(entry, "top_logprobs", tops);
        json_array_append_new(content, entry);
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

static json_t *choice(const Call *call, const Answer *a)
{
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                                json_text_n(strbuf_str(&a->text), a->text.len), "refusal");
    return json_pack("{s:i, s:o, s:o, s:s?, s:o}", "index", a->index, "message", message,
                     "logprobs", logprobs(call, a, 0), "finish_reason", answer_finish_reason(a),
                     "stop_reason", call_stop_reason(a));
}

static void send_delta(Call *call, const Answer *a, json_t *delta, json_t *probs)
{
    call_chunk(call,
               json_pack("{s:i, s:o, s:o, s:n}", "index", a->index, "delta", delta, "logprobs",
                         probs, "finish_reason"),
               0);
}

static void send_text(Call *call, Answer *a)
{
    json_t *delta = json_pack("{s:o}", "content", json_text_n(a->text.data, a->text.len));
    send_delta(call, a, delta, logprobs(call, a, a->n_probs_taken));
    a->n_probs_taken = a->probs.n;
    strbuf_clear(&a->text);
}

/* The role, then text as it comes, then an empty delta that says why it ended. */
static void stream(Call *call, Answer *a)
{
    if (!a->opened)
        send_delta(call, a, json_pack("{s:s, s:s}", "role", "assistant", "content", ""),
                   json_null());
    a->opened = 1;
    if (a->text.len) send_text(call, a);
    if (a->state != ANSWER_DONE) return;
    a->closed = 1;
    call_chunk(call,
               json_pack("{s:i, s:{}, s:o, s:s, s:o}", "index", a->index, "delta", "logprobs",
                         logprobs(call, a, a->n_probs_taken), "finish_reason",
                         answer_finish_reason(a), "stop_reason", call_stop_reason(a)),
               1);
}

static const ApiFormat format = {
    .kind = API_CHAT,
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .max_tokens = -1,
    .subject = "your messages resulted in",
    .tokenize = tokenize,
    .choice = choice,
    .stream = stream,
};

void api_chat(Server *s, Exchange *ex)
{
    call_begin(s, ex, &format);
}
