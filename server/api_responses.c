/*
 * api_responses.c: POST /v1/responses and /v1/responses/input_tokens.
 *
 * The request is a chat's (responses_request.c); the reply is a row of items (items.h). Codex makes
 * its history of the items that a stream ends, and waits for the end of the body after its last
 * event. Events are numbered without gaps; a stream begins as soon as the request is accepted.
 */
#include "server/call.h"

#include <stdio.h>
#include <string.h>

#include "server/json_out.h"
#include "server/translate.h"

/* ---- the response object ---- */

typedef enum { IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED } Status;

static const char *const status_names[] = {"in_progress", "completed", "incomplete", "failed"};

/* A field of the request as it was sent; absent: what text says. */
static void echo(const Call *call, const char *key, const char *otherwise, StrBuf *out)
{
    const json_t *v = json_field(call->asked, key);
    json_write(out, ",s:", key);
    if (v)
        json_print(v, out);
    else
        strbuf_puts(out, otherwise);
}

static void write_usage(const Call *call, StrBuf *out)
{
    int n_prompt = call_n_prompt(call), n = call_n_generated(call);
    json_write(out, "{s:i, s:{s:i, s:i}, s:i, s:{s:i}, s:i}", "input_tokens", n_prompt,
               "input_tokens_details", "cached_tokens", call_n_cached(call), "cache_write_tokens",
               0, "output_tokens", n, "output_tokens_details", "reasoning_tokens",
               reply_n_reasoning_tokens(call->answers[0].reply), "total_tokens", n_prompt + n);
}

/* What is the same in all responses of a call; text and reasoning hold more than we use. */
static void write_settings(const Call *call, StrBuf *out)
{
    const json_t *effort = json_field(json_field(call->asked, "reasoning"), "effort");
    const json_t *format = json_field(json_field(call->asked, "text"), "format");
    echo(call, "instructions", "null", out);
    echo(call, "max_output_tokens", "null", out);
    json_write(out, ",s:s", "model", call_model(call));
    echo(call, "parallel_tool_calls", "true", out);
    json_write(out, ",s:n, s:{s:o, s:n}, s:", "previous_response_id", "reasoning", "effort",
               effort ? json_incref((json_t *)effort) : json_null(), "summary", "store");
    strbuf_puts(out, "false");
    json_write(out, ",s:f, s:{s:o}", "temperature", json_shortest(call->api.params.temperature),
               "text", "format",
               format ? json_incref((json_t *)format) : json_pack("{s:s}", "type", "text"));
    echo(call, "tool_choice", "\"auto\"", out);
    echo(call, "tools", "[]", out);
    echo(call, "top_logprobs", "0", out);
    json_write(out, ",s:f, s:s", "top_p", json_shortest(call->api.params.top_p), "truncation",
               "disabled");
    echo(call, "metadata", "{}", out);
}

/* A stream says all of it three times, on the server's thread. */
static int prepare(Call *call, ApiError *err)
{
    enum { MAX_SETTINGS = 2 << 20 };
    write_settings(call, &call->settings);
    /* who stores no texts of ours asks for it, and sends this back in their place */
    call->wants_encrypted = responses_include(call->asked, "reasoning.encrypted_content");
    if (call->settings.len <= MAX_SETTINGS) return 0;
    return api_error(err, ERR_LIMIT, NULL,
                     "tools, metadata and what else a response repeats are more than %d bytes",
                     MAX_SETTINGS);
}

/* Known when it is done. */
static void write_figures(const Call *call, int is_done, StrBuf *out)
{
    if (!is_done) {
        json_write(out, ",s:n", "usage");
        return;
    }
    json_write(out, ",s:", "usage");
    write_usage(call, out);
    json_write(out, ",s:", "metrics");
    call_metrics(call, out);
    json_write(out, ",s:", "timings");
    call_timings(call, out);
}

/* error: NULL but for FAILED. */
static void write_response(const Call *call, Status status, const json_t *error, StrBuf *out)
{
    json_write(out, "{s:s, s:s, s:I", "id", call->id, "object", "response", "created_at",
               (json_int_t)call->created);
    if (status == COMPLETED) json_write(out, ",s:I", "completed_at", (json_int_t)time(NULL));
    json_write(out, ",s:s, s:", "status", status_names[status], "background");
    strbuf_puts(out, "false,\"error\":");
    json_write(out, "o, s:", error ? json_incref((json_t *)error) : json_null(),
               "incomplete_details");
    if (status == INCOMPLETE)
        json_write(out, "{s:s}", "reason", "max_output_tokens");
    else
        strbuf_puts(out, "null");
    json_write(out, ",s:[", "output");
    strbuf_puts(out, strbuf_str(&call->row.done));
    strbuf_puts(out, "]");
    strbuf_add(out, strbuf_str(&call->settings), call->settings.len);
    write_figures(call, status == COMPLETED || status == INCOMPLETE, out);
    strbuf_puts(out, "}");
}

static Status final_status(const Call *call)
{
    return call->answers[0].finish == FINISH_LENGTH ? INCOMPLETE : COMPLETED;
}

/* ---- items ---- */

/* The parts of an item's id and of its call's, which clients send back. */
typedef struct {
    char id[32], call_id[32];
} ItemIds;

static ItemIds ids_of(const Call *call, const Item *item)
{
    static const char *const prefix[] = {
        [ITEM_REASONING] = "rs", [ITEM_TEXT] = "msg", [ITEM_CALL] = "fc"};
    ItemIds ids;
    int is_custom = item->kind == ITEM_CALL && call->tool.is_custom;
    snprintf(ids.id, sizeof ids.id, "%s_%s", is_custom ? "ctc" : prefix[item->kind], item->id);
    snprintf(ids.call_id, sizeof ids.call_id, "call_%s", item->call_id);
    return ids;
}

/* The text of an item, as the client gets it: of a custom tool's call its input alone. */
static const StrBuf *text_of(const Call *call, const Item *item)
{
    return item->kind == ITEM_CALL && call->tool.is_custom ? &call->input.text : &item->text;
}

/* White space in front of a text that has lost it. */
static int is_lost(const Call *call, const Item *item, int32_t token)
{
    size_t len;
    const char *bytes = tokenizer_bytes(call->server->service->tok, token, &len);
    if (call->logprobs.len || item_is_blank(strbuf_str(&item->text), item->text.len > 0)) return 0;
    return item_is_blank(bytes, len);
}

/* Of tokens that became text which the row has. Returns where in call->logprobs the new begin. */
static size_t take_logprobs(Call *call, const Item *item)
{
    const Answer *a = &call->answers[0];
    const TokenProbs *p = &a->probs;
    StrBuf *out = &call->logprobs;
    size_t before = out->len;
    for (; call->n_scored < p->n_shown; call->n_scored++) {
        size_t shown = p->shown[call->n_scored];
        int32_t token = p->token[call->n_scored];
        if (shown > call->row.n_content) break;
        if (shown <= item->from || answer_is_end(a, token) || is_lost(call, item, token)) continue;
        if (out->len) strbuf_puts(out, ",");
        call_write_logprob(call, p, call->n_scored, out);
    }
    return before && out->len > before ? before + 1 : before;
}

static void write_logprobs(const Call *call, size_t from, StrBuf *out)
{
    json_write(out, ",s:[", "logprobs");
    strbuf_add(out, strbuf_str(&call->logprobs) + from, call->logprobs.len - from);
    strbuf_puts(out, "]");
}

static void write_part(const Call *call, const char *text, size_t len, StrBuf *out)
{
    json_write(out, "{s:s, s:t, s:[]", "type", "output_text", "text", text, len, "annotations");
    write_logprobs(call, 0, out);
    strbuf_puts(out, "}");
}

static void write_call(const Call *call, const Item *item, const ItemIds *ids, Status status,
                       StrBuf *out)
{
    const ResponsesTool *tool = &call->tool;
    const StrBuf *text = text_of(call, item);
    json_write(out, "{s:s, s:s, s:s, s:s, s:s", "id", ids->id, "type",
               tool->is_custom ? "custom_tool_call" : "function_call", "status",
               status_names[status], "call_id", ids->call_id, "name", tool->name);
    if (tool->ns) json_write(out, ",s:s", "namespace", tool->ns);
    json_write(out, ",s:t}", tool->is_custom ? "input" : "arguments", strbuf_str(text), text->len);
}

static void write_encrypted(const Call *call, const Item *item, Status status, StrBuf *out)
{
    StrBuf text = {0};
    if (status == IN_PROGRESS || !call->wants_encrypted) {
        json_write(out, ",s:n", "encrypted_content");
        return;
    }
    translate_sign(&item->text, &text);
    json_write(out, ",s:t", "encrypted_content", text.data, text.len);
    strbuf_free(&text);
}

/* As it begins, without its text, or as it has ended. */
static void write_item(const Call *call, const Item *item, Status status, StrBuf *out)
{
    ItemIds ids = ids_of(call, item);
    const StrBuf *text = &item->text;
    if (item->kind == ITEM_CALL) {
        write_call(call, item, &ids, status, out);
        return;
    }
    json_write(out, "{s:s, s:s", "id", ids.id, "type",
               item->kind == ITEM_TEXT ? "message" : "reasoning");
    if (item->kind == ITEM_TEXT)
        json_write(out, ",s:s, s:s, s:[", "status", status_names[status], "role", "assistant",
                   "content");
    else
        json_write(out, ",s:[], s:[", "summary", "content");
    if (status != IN_PROGRESS && item->kind == ITEM_TEXT)
        write_part(call, strbuf_str(text), text->len, out);
    else if (status != IN_PROGRESS)
        json_write(out, "{s:s, s:t}", "type", "reasoning_text", "text", strbuf_str(text),
                   text->len);
    strbuf_puts(out, "]");
    if (item->kind == ITEM_REASONING) {
        write_encrypted(call, item, status, out);
        json_write(out, ",s:s", "status", status_names[status]);
    }
    strbuf_puts(out, "}");
}

/* What a call is to the client: the tool as it was declared, else a function of the same name. */
static void find_tool(Call *call, const Item *item)
{
    const char *flat = strbuf_str(&item->name);
    call->tool = (ResponsesTool){.name = flat};
    if (item->kind != ITEM_CALL) return;
    responses_find_tool(call->asked, flat, &call->tool);
    custom_input_begin(&call->input);
}

static void list_item(Call *call, const Item *item)
{
    StrBuf *out = &call->row.done;
    if (out->len) strbuf_puts(out, ",");
    write_item(call, item, item->is_cut ? INCOMPLETE : COMPLETED, out);
}

/* ---- whole ---- */

static void end_quietly(void *ctx, const Item *item)
{
    Call *call = ctx;
    find_tool(call, item);
    strbuf_clear(&call->logprobs);
    if (item->kind == ITEM_TEXT) take_logprobs(call, item);
    custom_input_add(&call->input, strbuf_str(&item->text), item->text.len);
    custom_input_end(&call->input, &item->text);
    list_item(call, item);
}

static void reply(Call *call, StrBuf *body)
{
    static const ItemSink sink = {.end = end_quietly};
    item_row_take(&call->row, &call->answers[0], &sink, call);
    write_response(call, final_status(call), NULL, body);
}

/* ---- streams ---- */

static StrBuf *begin_event(Call *call, const char *type)
{
    StrBuf *out = stream_begin_named(&call->stream, type);
    json_write(out, "{s:s, s:i", "type", type, "sequence_number", call->row.n_events++);
    return out;
}

static void end_event(Call *call)
{
    strbuf_puts(&call->stream.pending, "}");
    stream_end_event(&call->stream);
}

static void send_response(Call *call, const char *type, Status status, const json_t *error)
{
    StrBuf *out = begin_event(call, type);
    json_write(out, ",s:", "response");
    write_response(call, status, error, out);
    end_event(call);
}

static void open_stream(Call *call)
{
    send_response(call, "response.created", IN_PROGRESS, NULL);
    send_response(call, "response.in_progress", IN_PROGRESS, NULL);
}

/* An event about an item: which one. Of texts and reasoning also which of its parts: the only one.
 */
static StrBuf *begin_item_event(Call *call, const Item *item, const char *type)
{
    ItemIds ids = ids_of(call, item);
    StrBuf *out = begin_event(call, type);
    json_write(out, ",s:s, s:i", "item_id", ids.id, "output_index", item->index);
    if (item->kind != ITEM_CALL) json_write(out, ",s:i", "content_index", 0);
    return out;
}

static void send_item(Call *call, const Item *item, const char *type, Status status)
{
    StrBuf *out = begin_event(call, type);
    json_write(out, ",s:i, s:", "output_index", item->index, "item");
    write_item(call, item, status, out);
    end_event(call);
}

static void send_part(Call *call, const Item *item, const char *type)
{
    StrBuf *out = begin_item_event(call, item, type);
    json_write(out, ",s:", "part");
    write_part(call, strbuf_str(&item->text), item->text.len, out);
    end_event(call);
}

static void begin_item(void *ctx, const Item *item)
{
    Call *call = ctx;
    find_tool(call, item);
    strbuf_clear(&call->logprobs);
    send_item(call, item, "response.output_item.added", IN_PROGRESS);
    if (item->kind == ITEM_TEXT) send_part(call, item, "response.content_part.added");
}

/* The names of what an item's text is told by: a delta, the whole, and its field there. */
typedef struct {
    const char *delta, *done, *field;
} TextEvents;

static const TextEvents *events_of(const Call *call, const Item *item)
{
    static const TextEvents custom = {"response.custom_tool_call_input.delta",
                                      "response.custom_tool_call_input.done", "input"};
    static const TextEvents others[] = {
        [ITEM_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done",
                            "text"},
        [ITEM_TEXT] = {"response.output_text.delta", "response.output_text.done", "text"},
        [ITEM_CALL] = {"response.function_call_arguments.delta",
                       "response.function_call_arguments.done", "arguments"},
    };
    return item->kind == ITEM_CALL && call->tool.is_custom ? &custom : &others[item->kind];
}

static void send_delta(Call *call, const Item *item, const char *text, size_t len)
{
    if (!len) return;
    StrBuf *out = begin_item_event(call, item, events_of(call, item)->delta);
    json_write(out, ",s:t", "delta", text, len);
    if (item->kind == ITEM_TEXT) write_logprobs(call, take_logprobs(call, item), out);
    end_event(call);
}

/* What the input of a custom tool has grown by since it was this long. */
static void send_input(Call *call, const Item *item, size_t from)
{
    const StrBuf *text = &call->input.text;
    send_delta(call, item, strbuf_str(text) + from, text->len - from);
}

static void more_of_item(void *ctx, const Item *item, const char *text, size_t len)
{
    Call *call = ctx;
    size_t from = call->input.text.len;
    if (item->kind != ITEM_CALL || !call->tool.is_custom) {
        send_delta(call, item, text, len);
        return;
    }
    custom_input_add(&call->input, text, len);
    send_input(call, item, from);
}

static void end_item(void *ctx, const Item *item)
{
    Call *call = ctx;
    const TextEvents *events = events_of(call, item);
    if (item->kind == ITEM_CALL && call->tool.is_custom) {
        size_t from = call->input.text.len;
        custom_input_end(&call->input, &item->text);
        send_input(call, item, from);
    }
    const StrBuf *text = text_of(call, item);
    StrBuf *out = begin_item_event(call, item, events->done);
    if (item->kind == ITEM_CALL && !call->tool.is_custom)
        json_write(out, ",s:s", "name", call->tool.name);
    json_write(out, ",s:t", events->field, strbuf_str(text), text->len);
    if (item->kind == ITEM_TEXT) write_logprobs(call, 0, out);
    end_event(call);
    if (item->kind == ITEM_TEXT) send_part(call, item, "response.content_part.done");
    send_item(call, item, "response.output_item.done", item->is_cut ? INCOMPLETE : COMPLETED);
    list_item(call, item);
}

static void stream(Call *call, Answer *a)
{
    static const ItemSink sink = {begin_item, more_of_item, end_item};
    item_row_take(&call->row, a, &sink, call);
    a->closed = a->state == ANSWER_DONE;
}

static void end_stream(Call *call)
{
    Status status = final_status(call);
    send_response(call, status == COMPLETED ? "response.completed" : "response.incomplete", status,
                  NULL);
    stream_end(&call->stream);
}

static void fail(Call *call, int status, const char *code, const char *message)
{
    const char *why = code ? code : status == 429 ? "rate_limit_exceeded" : "server_error";
    json_t *error = json_pack("{s:s, s:o}", "code", why, "message", json_text(message));
    send_response(call, "response.failed", FAILED, error);
    json_decref(error);
    stream_end(&call->stream);
}

static const ApiFormat format = {
    .kind = API_CHAT,
    .id_prefix = "resp_",
    .max_tokens = -1,
    .stream_probs = MAX_STREAM_PROBS,
    .subject = "your messages resulted in",
    .translate = responses_to_chat,
    .names = responses_names,
    .tokenize = call_tokenize_chat,
    .prepare = prepare,
    .reply = reply,
    .open = open_stream,
    .stream = stream,
    .end = end_stream,
    .fail = fail,
};

/* For Codex: else it adds to usage what it reckons of the encrypted_content of earlier turns. */
void api_responses(Server *s, Exchange *ex)
{
    exchange_add_header(ex, "X-Reasoning-Included", "true");
    call_begin(s, ex, &format);
}

/* ---- counting ---- */

static ApiDefaults defaults(const Server *s)
{
    return server_defaults(s, format.max_tokens);
}

void api_responses_count(Server *s, Exchange *ex)
{
    static const ChatCount count = {responses_to_chat, responses_names, defaults,
                                    "{\"object\":\"response.input_tokens\",\"input_tokens\":"};
    api_count_chat(s, ex, &count);
}
