/* api_info.c: the routes that tell of the server and its model: metrics, props, tokenizer_info. */
#include "server/call.h"

#include "base/version.h"
#include "server/json_out.h"

void api_metrics(Server *s, Exchange *ex)
{
    StrBuf text = {0};
    MetricsNow now = {.n_live = dispatch_n_live(s->dispatch),
                      .n_connections = http_n_connections(s->http)};
    dispatch_status(s->dispatch, &now.engine);
    for (const Call *call = s->calls; call; call = call->next)
        if (call->stream.ex) now.n_unsent += exchange_unsent(call->stream.ex);
    metrics_print(s->metrics, &now, &text);
    exchange_text(ex, "text/plain; version=0.0.4; charset=utf-8", &text);
    strbuf_free(&text);
}

static json_t *text_or_null(const char *text)
{
    return text ? json_text(text) : json_null();
}

/* The end token by its text, from the tokenizer where its config does not say. */
static json_t *eos_token(const Server *s)
{
    size_t len;
    if (s->service->tok_config.eos) return json_text(s->service->tok_config.eos);
    if (!s->config->n_eos) return json_null();
    const char *bytes = tokenizer_bytes(s->service->tok, s->config->eos[0], &len);
    return json_text_n(bytes, len);
}

/* For lm-eval, which renders the template itself. */
void api_tokenizer_info(Server *s, Exchange *ex)
{
    const TokenizerConfig *c = &s->service->tok_config;
    exchange_json(ex,
                  json_pack("{s:o, s:o, s:o, s:o, s:o, s:i}", "eos_token", eos_token(s),
                            "bos_token", text_or_null(c->bos), "pad_token", text_or_null(c->pad),
                            "chat_template", text_or_null(c->chat_template), "tokenizer_class",
                            json_text(c->class_name ? c->class_name : "Qwen2Tokenizer"),
                            "model_max_length", s->ctx_size));
}

/* llama.cpp's; its clients look for the size of the context. */
void api_props(Server *s, Exchange *ex)
{
    const Service *service = s->service;
    const TokenizerConfig *c = &service->tok_config;
    EngineStatus status;
    dispatch_status(s->dispatch, &status);
    SampleParams p = service_sampling(service);
    json_t *params = json_pack(
        "{s:f, s:i, s:f, s:f, s:i, s:i}", "temperature", json_shortest(p.temperature), "top_k",
        p.top_k, "top_p", json_shortest(p.top_p), "min_p", json_shortest(p.min_p), "n_predict",
        server_defaults(s, -1).max_tokens, "speculative.n_max", status.draft_depth);
    json_t *body = json_pack(
        "{s:{s:i, s:o}, s:i, s:o, s:o, s:{s:b, s:b, s:b}, s:o, s:o, s:o, s:s, s:b}",
        "default_generation_settings", "n_ctx", s->ctx_size, "params", params, "total_slots",
        status.max_seqs, "model_alias", json_text(service->model_name), "model_path",
        json_text(service->model_name), "modalities", "vision", 0, "audio", 0, "video", 0,
        "chat_template", json_text(c->chat_template ? c->chat_template : ""), "bos_token",
        json_text(c->bos ? c->bos : ""), "eos_token", eos_token(s), "build_info",
        "offshoot " OFFSHOOT_VERSION, "is_sleeping", 0);
    exchange_json(ex, body);
}
