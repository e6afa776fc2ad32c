/*
 * api_text.c: the routes between text and tokens, which need no engine: tokenize, detokenize,
 * apply-template, and what counts the tokens of other APIs' requests.
 *
 * /tokenize has no bound but the body's, so both its tokens and its reply are made in slices. A few
 * bytes of a body can name a token of a hundred, so the text of /detokenize has that bound, too.
 */
#include "server/server_state.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "server/encoding.h"
#include "server/json_out.h"
#include "text/detokenizer.h"
#include "text/split.h"
#include "text/utf8.h"

/* What a token of the reply costs, in bytes that are tokenised. */
enum { ENTRY_COST = 8 };

typedef struct TextTask TextTask;

/* A part of making the reply. 0, -1 and t->err, or 1: the budget is spent, to be called again. */
typedef int (*TextStep)(TextTask *t, size_t *budget);

struct TextTask {
    Server *server;
    Exchange *ex; /* NULL: the client is gone */
    atomic_int is_gone;
    char *body; /* a large one */
    const char *text;
    size_t len;
    const TextStep *steps; /* NULL ends them */
    const ChatCount *count;
    int step; /* the next one */
    json_t *request;
    size_t json_bytes; /* for server_forget_json */
    int refused;
    ApiError err;
    StrBuf reply;

    Encoding encoding; /* /tokenize */
    TokenList ids;
    size_t n_parts; /* of a list of texts and ids that are done */
    int n_printed;
};

static int read_body(TextTask *t, size_t *budget)
{
    (void)budget;
    t->request = server_parse_body(t->server, t->text, t->len, &t->json_bytes, &t->err);
    return t->request ? 0 : -1;
}

static int read_chat(TextTask *t, ApiRequest *r)
{
    ApiDefaults defaults =
        t->count ? t->count->defaults(t->server) : server_defaults(t->server, -1);
    if (!t->count && api_refuse_unsupported(t->request, &t->err)) return -1;
    return api_read_chat(r, t->request, &defaults, &t->err);
}

/* ---- /tokenize ---- */

static int begin_text(TextTask *t, const json_t *text, const char *field)
{
    int parse_special = 1;
    if (api_read_bool(t->request, "parse_special", &parse_special, &t->err)) return -1;
    return encoding_text(&t->encoding, t->server->service->tok, json_string_value(text),
                         json_string_length(text), parse_special, &t->ids, field, &t->err);
}

/* llama.cpp's content: a list that mixes strings and ids. */
static int begin_part(TextTask *t, const json_t *part)
{
    json_int_t id;
    if (json_is_string(part)) return begin_text(t, part, "content");
    if (!json_whole(part, &id) || id < 0 || id >= t->server->n_vocab)
        return api_error(&t->err, ERR_INPUT, "content", "content[%zu] is no string and no token id",
                         t->n_parts);
    token_list_add(&t->ids, (int32_t)id);
    return 0;
}

static int encode_parts(TextTask *t, const json_t *content, size_t *budget)
{
    Encoding *e = &t->encoding;
    for (; t->n_parts < json_array_size(content); t->n_parts++) {
        if (!e->encoder && begin_part(t, json_array_get(content, t->n_parts))) return -1;
        int rc = e->encoder ? encoding_some(e, budget, &t->err) : 0;
        if (rc) return rc;
    }
    return 0;
}

static int begin_chat(TextTask *t)
{
    ApiRequest r = {0};
    int rc = read_chat(t, &r);
    if (!rc) rc = encoding_chat(&t->encoding, t->server->service, &r, &t->ids, &t->err);
    api_request_free(&r);
    return rc;
}

/* The keys that are there tell the dialect: vLLM's prompt or messages, llama.cpp's content. */
static int begin_encoding(TextTask *t)
{
    const json_t *prompt = json_field(t->request, "prompt");
    const json_t *content = json_field(t->request, "content");
    if (json_field(t->request, "messages")) return begin_chat(t);
    if (json_is_string(content)) return begin_text(t, content, "content");
    if (content)
        return api_error(&t->err, ERR_INPUT, "content", "content must be a string or a list");
    if (!prompt)
        return api_error(&t->err, ERR_INPUT, "prompt", "prompt, messages or content is missing");
    if (!json_is_string(prompt))
        return api_error(&t->err, ERR_INPUT, "prompt", "prompt must be a string");
    return begin_text(t, prompt, "prompt");
}

static int encode(TextTask *t, size_t *budget)
{
    const json_t *content = json_field(t->request, "content");
    if (json_is_array(content) && !json_field(t->request, "messages"))
        return encode_parts(t, content, budget);
    if (!t->encoding.encoder && begin_encoding(t)) return -1;
    return encoding_some(&t->encoding, budget, &t->err);
}

static int check_options(TextTask *t, size_t *budget)
{
    static const char *const options[] = {"parse_special", "with_pieces", "return_token_strs"};
    (void)budget;
    for (int i = 0, value = 0; i < 3; i++)
        if (api_read_bool(t->request, options[i], &value, &t->err)) return -1;
    return 0;
}

/* Whether an option, which was checked, is set. */
static int wants(const TextTask *t, const char *option)
{
    return json_is_true(json_field(t->request, option));
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

static json_t *id_entry(const Server *s, int32_t id)
{
    (void)s;
    return json_integer(id);
}

static json_t *piece_entry(const Server *s, int32_t id)
{
    return json_pack("{s:i, s:o}", "id", id, "piece", piece(s, id));
}

static json_t *string_entry(const Server *s, int32_t id)
{
    size_t len;
    const char *bytes = tokenizer_bytes(s->service->tok, id, &len);
    return json_text_n(bytes, len);
}

/* Appends the list of all tokens: tens of millions in the reply to the longest text. */
static int print_list(TextTask *t, json_t *(*entry)(const Server *, int32_t), size_t *budget)
{
    for (; t->n_printed < t->ids.n; t->n_printed++) {
        if (!*budget) return 1;
        budget_spend(budget, ENTRY_COST);
        json_t *one = entry(t->server, t->ids.id[t->n_printed]);
        strbuf_puts(&t->reply, t->n_printed ? "," : "[");
        json_write(&t->reply, "o", one);
    }
    strbuf_puts(&t->reply, t->ids.n ? "]" : "[]");
    t->n_printed = 0;
    return 0;
}

static int print_tokens(TextTask *t, size_t *budget)
{
    if (!t->reply.len) strbuf_puts(&t->reply, "{\"tokens\":");
    return print_list(t, wants(t, "with_pieces") ? piece_entry : id_entry, budget);
}

static int print_counts(TextTask *t, size_t *budget)
{
    (void)budget;
    strbuf_printf(&t->reply, ",\"count\":%d,\"max_model_len\":%d,\"token_strs\":", t->ids.n,
                  t->server->ctx_size);
    return 0;
}

static int print_strings(TextTask *t, size_t *budget)
{
    if (!wants(t, "return_token_strs"))
        strbuf_puts(&t->reply, "null");
    else if (print_list(t, string_entry, budget))
        return 1;
    strbuf_puts(&t->reply, "}");
    return 0;
}

/* ---- /detokenize, /apply-template ---- */

static int detokenize(TextTask *t, size_t *budget)
{
    const json_t *list = json_field(t->request, "tokens");
    StrBuf text = {0};
    Detokenizer d;
    (void)budget;
    if (!json_is_array(list))
        return api_error(&t->err, ERR_INPUT, "tokens", "tokens must be a list of token ids");
    if (api_read_ids(list, "tokens", t->server->n_vocab, &t->ids, &t->err)) return -1;
    size_t most = (size_t)t->server->limits.http.body_bytes;
    detokenizer_init(&d, t->server->service->tok, 1);
    for (int i = 0; i < t->ids.n && text.len <= most; i++)
        detokenizer_push(&d, t->ids.id[i], &text);
    detokenizer_finish(&d, &text);
    if (text.len > most) {
        strbuf_free(&text);
        return api_error(&t->err, ERR_LIMIT, "tokens",
                         "tokens are more text than the %zu bytes of the largest body", most);
    }
    json_t *whole = json_text_n(strbuf_str(&text), text.len);
    json_t *out = json_pack("{s:O, s:o}", "prompt", whole, "content", whole);
    json_write(&t->reply, "o", out);
    strbuf_free(&text);
    return 0;
}

static int apply_template(TextTask *t, size_t *budget)
{
    ApiRequest r = {0};
    StrBuf text = {0};
    (void)budget;
    int rc = read_chat(t, &r);
    if (!rc) rc = chat_prompt(t->server->service, &r, &text, NULL, &t->err);
    if (!rc) {
        json_t *out = json_pack("{s:o}", "prompt", json_text_n(strbuf_str(&text), text.len));
        json_write(&t->reply, "o", out);
    }
    strbuf_free(&text);
    api_request_free(&r);
    return rc;
}

/* ---- counting ---- */

static int translate(TextTask *t, size_t *budget)
{
    (void)budget;
    json_t *chat = t->count->translate(t->request, &t->err);
    json_decref(t->request);
    t->request = chat;
    return chat ? 0 : -1;
}

static int check_model(TextTask *t, size_t *budget)
{
    (void)budget;
    return server_check_model(t->server, api_word(json_field(t->request, "model")), &t->err);
}

static int encode_chat(TextTask *t, size_t *budget)
{
    if (!t->encoding.encoder && begin_chat(t)) return -1;
    return encoding_some(&t->encoding, budget, &t->err);
}

static int print_count(TextTask *t, size_t *budget)
{
    (void)budget;
    strbuf_printf(&t->reply, "%s%d}", t->count->before, t->ids.n);
    return 0;
}

/* ---- the task ---- */

static void text_gone(void *owner)
{
    TextTask *t = owner;
    t->ex = NULL;
    atomic_store(&t->is_gone, 1);
}

static int run_steps(TextTask *t)
{
    size_t budget = SLICE_BYTES;
    for (; t->steps[t->step]; t->step++) {
        int rc = t->steps[t->step](t, &budget);
        t->refused = rc < 0;
        if (t->refused && t->count) api_rename(&t->err, t->count->names(NULL));
        if (rc) return rc > 0;
    }
    return 0;
}

/* A large request takes long to free: that is done where it was read. */
static void free_request(TextTask *t)
{
    json_decref(t->request);
    t->request = NULL;
    server_forget_json(t->server, t->json_bytes);
    t->json_bytes = 0;
}

static int text_run(void *owner)
{
    TextTask *t = owner;
    int more = !atomic_load(&t->is_gone) && run_steps(t);
    if (!more) free_request(t);
    return more;
}

static void text_done(void *owner)
{
    TextTask *t = owner;
    if (t->ex && t->refused)
        server_refuse(t->ex, &t->err);
    else if (t->ex)
        exchange_text(t->ex, "application/json", &t->reply);
    encoding_free(&t->encoding);
    token_list_free(&t->ids);
    free_request(t);
    strbuf_free(&t->reply);
    mem_free(t->body);
    mem_free(t);
}

static void answer_with(Server *s, Exchange *ex, const TextStep *steps, const ChatCount *count)
{
    TextTask *t = mem_alloc(1, sizeof *t);
    t->server = s;
    t->ex = ex;
    t->steps = steps;
    t->count = count;
    exchange_watch(ex, text_gone, t);
    Task task = {text_run, text_done, t};
    if (!server_run_task(s, ex, &task, &t->body, &t->text, &t->len)) return;
    t->ex = NULL;
    text_done(t);
}

void api_tokenize(Server *s, Exchange *ex)
{
    static const TextStep steps[] = {read_body,    check_options, encode, print_tokens,
                                     print_counts, print_strings, NULL};
    answer_with(s, ex, steps, NULL);
}

void api_detokenize(Server *s, Exchange *ex)
{
    static const TextStep steps[] = {read_body, detokenize, NULL};
    answer_with(s, ex, steps, NULL);
}

void api_apply_template(Server *s, Exchange *ex)
{
    static const TextStep steps[] = {read_body, apply_template, NULL};
    answer_with(s, ex, steps, NULL);
}

void api_count_chat(Server *s, Exchange *ex, const ChatCount *count)
{
    static const TextStep steps[] = {read_body,   translate,   check_model,
                                     encode_chat, print_count, NULL};
    answer_with(s, ex, steps, count);
}
