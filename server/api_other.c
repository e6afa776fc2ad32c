/* api_other.c: what the server says about itself: models, health, version. */
#include "server/server_state.h"

#include <string.h>

#include "base/version.h"

/* The union of what OpenAI's, Anthropic's, vLLM's and llama.cpp's clients look for. */
static json_t *model_entry(const Server *s)
{
    const char *name = s->service->model_name;
    char created_at[32];
    struct tm utc;
    EngineStatus status;
    dispatch_status(s->dispatch, &status);
    strftime(created_at, sizeof created_at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&s->started, &utc));
    json_t *meta = json_pack("{s:i, s:i, s:i, s:I, s:I}", "n_ctx", s->ctx_size, "n_ctx_train",
                             s->config->ctx_limit, "n_vocab", s->n_vocab, "n_params",
                             (json_int_t)status.n_params, "size", (json_int_t)status.file_bytes);
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:s, s:n, s:i, s:i, s:i, s:i, s:[], s:o}",
                     "id", name, "object", "model", "type", "model", "display_name", name,
                     "created", (json_int_t)s->started, "created_at", created_at, "owned_by",
                     "offshoot", "root", name, "parent", "max_model_len", s->ctx_size,
                     "context_length", s->ctx_size, "max_input_tokens", s->ctx_size, "max_tokens",
                     s->ctx_size, "permission", "meta", meta);
}

/* llama.cpp's copy in the form of Ollama. */
static json_t *ollama_entry(const char *name)
{
    return json_pack("{s:s, s:s, s:s, s:[s], s:{s:s}}", "name", name, "model", name, "type",
                     "model", "capabilities", "completion", "details", "format", "safetensors");
}

/* /v1/models and /models, or {id} below them for the entry alone. */
void api_models(Server *s, Exchange *ex)
{
    static const char list[] = "/models";
    const char *id = strstr(exchange_path(ex), list) + strlen(list);
    const char *name = s->service->model_name;
    if (!*id) {
        exchange_json(ex, json_pack("{s:s, s:[o], s:[o], s:s, s:s, s:b}", "object", "list", "data",
                                    model_entry(s), "models", ollama_entry(name), "first_id", name,
                                    "last_id", name, "has_more", 0));
    } else if (!strcmp(id + 1, name)) {
        exchange_json(ex, model_entry(s));
    } else {
        exchange_error(ex, 404, "model_not_found", NULL, "there is no model of this name");
    }
}

void api_health(Server *s, Exchange *ex)
{
    if (!server_refuse_unwell(s, ex)) exchange_json(ex, json_pack("{s:s}", "status", "ok"));
}

void api_version(Server *s, Exchange *ex)
{
    (void)s;
    exchange_json(ex, json_pack("{s:s}", "version", OFFSHOOT_VERSION));
}
