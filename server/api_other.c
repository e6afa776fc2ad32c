/* api_other.c: the routes that need no engine: models, health, version, and the tokenizer's. */
#include "server/server_state.h"

#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "base/version.h"
#include "server/json_out.h"
#include "text/utf8.h"

/* ---- models, health, version ---- */

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
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:s, s:n, s:i, s:i, s:[], s:o}", "id",
                     name, "object", "model", "type", "model", "display_name", name, "created",
                     (json_int_t)s->started, "created_at", created_at, "owned_by", "offshoot",
                     "root", name, "parent", "max_model_len", s->ctx_size, "context_length",
                     s->ctx_size, "permission", "meta", meta);
}

/* llama.cpp's copy in the form of Ollama. */
static json_t *ollama_entry(const char *name)
{
    return json_pack("{s:s, s:s, s:s, s:[s], s:{s:s}}", "name", name, "model", name, "type",
                     "model", "capabilities", "completion", "details", "format", "safetensors");
}

/* /v1/models, or /v1/models/{id} for the entry alone. */
void api_models(Server *s, Exchange *ex)
{
    static const char list[] = "/v1/models";
    const char *path = exchange_path(ex), *name = s->service->model_name;
    if (!strcmp(path, "/models") || !strcmp(path, list)) {
        exchange_json(ex, 200,
                      json_pack("{s:s, s:[o], s:[o], s:s, s:s, s:b}", "object", "list", "data",
                                model_entry(s), "models", ollama_entry(name), "first_id", name,
                                "last_id", name, "has_more", 0));
    } else if (!strcmp(path + strlen(list) + 1, name)) {
        exchange_json(ex, 200, model_entry(s));
    } else {
        exchange_error(ex, 404, "model_not_found", NULL, "there is no model of this name");
    }
}

void api_health(Server *s, Exchange *ex)
{
    if (s->draining || s->lost)
        exchange_error(ex, 503, "draining", NULL, "the server is shutting down");
    else if (server_is_stalled(s))
        exchange_error(ex, 503, "stalled", NULL, "the engine has work and makes no step");
    else
        exchange_json(ex, 200, json_pack("{s:s}", "status", "ok"));
}

void api_version(Server *s, Exchange *ex)
{
    (void)s;
    exchange_json(ex, 200, json_pack("{s:s}", "version", OFFSHOOT_VERSION));
}

/* ---- text and tokens ---- */

static int encode(const Server *s, const json_t *text, int parse_special, const char *field,
                  TokenList *ids, ApiError *err)
{
    if (tokenizer_encode(s->service->tok, json_string_value(text), json_string_length(text),
                         parse_special, ids, &err->error))
        return api_in_field(err, field);
    return 0;
}

static int render(const Server *s, const json_t *body, StrBuf *text, TokenList *ids, ApiError *err)
{
    ApiRequest r = {0};
    ApiDefaults defaults = server_defaults(s, -1);
    int rc = api_read_chat(&r, body, &defaults, err);
    if (!rc) rc = server_render(s, &r, text, ids, err);
    api_request_free(&r);
    return rc;
}

/* llama.cpp's content: a string, or a list that mixes strings and ids. */
static int encode_content(const Server *s, const json_t *content, int parse_special, TokenList *ids,
                          ApiError *err)
{
    size_t i;
    json_t *part;
    if (json_is_string(content)) return encode(s, content, parse_special, "content", ids, err);
    if (!json_is_array(content))
        return api_error(err, ERR_INPUT, "content", "content must be a string or a list");
    json_array_foreach(content, i, part)
    {
        json_int_t id = json_integer_value(part);
        if (json_is_string(part)) {
            if (encode(s, part, parse_special, "content", ids, err)) return -1;
        } else if (json_is_integer(part) && id >= 0 && id < s->n_vocab) {
            token_list_add(ids, (int32_t)id);
        } else {
            return api_error(err, ERR_INPUT, "content", "content[%zu] is no string and no token id",
                             i);
        }
    }
    return 0;
}

/* The keys that are there tell the dialect: vLLM's prompt or messages, llama.cpp's content. */
static int read_text(const Server *s, const json_t *body, TokenList *ids, ApiError *err)
{
    int parse_special = 1;
    const json_t *prompt = api_field(body, "prompt"), *content = api_field(body, "content");
    if (api_read_bool(body, "parse_special", &parse_special, err)) return -1;
    if (api_field(body, "messages")) {
        StrBuf text = {0};
        int rc = render(s, body, &text, ids, err);
        strbuf_free(&text);
        return rc;
    }
    if (content) return encode_content(s, content, parse_special, ids, err);
    if (!prompt)
        return api_error(err, ERR_INPUT, "prompt", "prompt, messages or content is missing");
    if (!json_is_string(prompt))
        return api_error(err, ERR_INPUT, "prompt", "prompt must be a string");
    return encode(s, prompt, parse_special, "prompt", ids, err);
}

/* A token's text, or its bytes where they are no text. */
static json_t *piece(const Server *s, int32_t id)
{
    size_t len;
    const char *bytes = tokenizer_bytes(s->service->tok, id, &len);
    if (utf8_check(bytes, len) == len) return json_stringn(bytes, len);
    json_t *list = json_array();
    for (size_t i = 0; i < len; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

static json_t *token_list(const Server *s, const TokenList *ids, int with_pieces)
{
    json_t *list = json_array();
    for (int i = 0; i < ids->n; i++) {
        json_t *id = json_integer(ids->id[i]);
        if (with_pieces) id = json_pack("{s:o, s:o}", "id", id, "piece", piece(s, ids->id[i]));
        json_array_append_new(list, id);
    }
    return list;
}

static json_t *token_strings(const Server *s, const TokenList *ids)
{
    json_t *list = json_array();
    for (int i = 0; i < ids->n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(s->service->tok, ids->id[i], &len);
        json_array_append_new(list, json_text_n(bytes, len));
    }
    return list;
}

static json_t *tokenize(const Server *s, const json_t *body, ApiError *err)
{
    TokenList ids = {0};
    int with_pieces = 0, with_strings = 0;
    json_t *out = NULL;
    if (!api_read_bool(body, "with_pieces", &with_pieces, err) &&
        !api_read_bool(body, "return_token_strs", &with_strings, err) &&
        !read_text(s, body, &ids, err))
        out = json_pack("{s:o, s:i, s:i, s:o}", "tokens", token_list(s, &ids, with_pieces), "count",
                        ids.n, "max_model_len", s->ctx_size, "token_strs",
                        with_strings ? token_strings(s, &ids) : json_null());
    token_list_free(&ids);
    return out;
}

static json_t *detokenize(const Server *s, const json_t *body, ApiError *err)
{
    const json_t *list = api_field(body, "tokens");
    TokenList ids = {0};
    if (!json_is_array(list)) {
        api_error(err, ERR_INPUT, "tokens", "tokens must be a list of token ids");
        return NULL;
    }
    json_t *out = NULL;
    if (!api_read_ids(list, "tokens", s->n_vocab, &ids, err)) {
        StrBuf text = {0};
        Detokenizer d;
        detokenizer_init(&d, s->service->tok, 1);
        for (int i = 0; i < ids.n; i++)
            detokenizer_push(&d, ids.id[i], &text);
        detokenizer_finish(&d, &text);
        out = json_pack("{s:o, s:o}", "prompt", json_text_n(strbuf_str(&text), text.len), "content",
                        json_text_n(strbuf_str(&text), text.len));
        strbuf_free(&text);
    }
    token_list_free(&ids);
    return out;
}

static json_t *apply_template(const Server *s, const json_t *body, ApiError *err)
{
    StrBuf text = {0};
    json_t *out = NULL;
    if (!render(s, body, &text, NULL, err))
        out = json_pack("{s:o}", "prompt", json_text_n(strbuf_str(&text), text.len));
    strbuf_free(&text);
    return out;
}

/* A route that is a function from body to reply. */
typedef struct {
    Server *server;
    Exchange *ex; /* NULL: the client is gone */
    char *body;   /* a large one */
    const char *text;
    size_t len;
    json_t *(*make)(const Server *, const json_t *, ApiError *);
    int refused;
    ApiError err;
    StrBuf reply;
} TextTask;

static void text_gone(void *owner)
{
    TextTask *t = owner;
    t->ex = NULL;
}

static void text_run(void *owner)
{
    TextTask *t = owner;
    json_t *body = api_parse_body(t->text, t->len, &t->err);
    json_t *out = body ? t->make(t->server, body, &t->err) : NULL;
    t->refused = !out;
    if (out) json_print(out, &t->reply);
    json_decref(out);
    json_decref(body);
}

static void text_done(void *owner)
{
    TextTask *t = owner;
    if (t->ex && t->refused)
        server_refuse(t->ex, &t->err);
    else if (t->ex)
        exchange_text(t->ex, 200, "application/json", &t->reply);
    strbuf_free(&t->reply);
    mem_free(t->body);
    mem_free(t);
}

static void answer_with(Server *s, Exchange *ex,
                        json_t *(*make)(const Server *, const json_t *, ApiError *))
{
    TextTask *t = mem_alloc(1, sizeof *t);
    *t = (TextTask){.server = s, .ex = ex, .make = make};
    exchange_watch(ex, text_gone, t);
    Task task = {text_run, text_done, t};
    if (!server_run_task(s, ex, &task, &t->body, &t->text, &t->len)) return;
    t->ex = NULL;
    text_done(t);
}

void api_tokenize(Server *s, Exchange *ex)
{
    answer_with(s, ex, tokenize);
}

void api_detokenize(Server *s, Exchange *ex)
{
    answer_with(s, ex, detokenize);
}

void api_apply_template(Server *s, Exchange *ex)
{
    answer_with(s, ex, apply_template);
}
