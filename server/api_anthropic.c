/*
 * api_anthropic.c: POST /v1/messages and /v1/messages/count_tokens, Anthropic's API.
 *
 * The request is a chat's (anthropic_request.c); the reply is a row of blocks (items.h). Whole, it
 * lists them; a stream begins as soon as the request is accepted, so that the client knows that it
 * is served while it waits, and sends a ping where nothing else is to be said.
 */
#include "server/call.h"

#include <stdio.h>
#include <string.h>

#include "server/json_out.h"
#include "server/translate.h"
#include "text/json_scan.h"

#define PING "event: ping\ndata: {\"type\":\"ping\"}\n\n"

/* ---- requests ---- */

/*
 * Anthropic's clients ask for thinking; agents would wait for what they did not ask for. Some
 * models cannot but think.
 */
static ApiDefaults defaults(const Server *s)
{
    ApiDefaults d = server_defaults(s, -1);
    if (!s->service->tmpl.always_thinks)
        d.chat.enable_thinking = s->settings->messages_thinking == ON;
    d.may_be_empty = 1;
    return d;
}

static json_t *translate(const json_t *body, ApiError *err)
{
    if (json_field(body, "max_tokens")) return anthropic_to_chat(body, err);
    api_error(err, ERR_INPUT, "max_tokens", "max_tokens: field required");
    return NULL;
}

/* ---- replies ---- */

/* Up to the brace that closes it. */
static void write_usage(const Call *call, int n_cached, StrBuf *out)
{
    int n_thinking = reply_n_reasoning_tokens(call->answers[0].reply);
    json_write(out, "{s:i, s:i, s:i, s:i", "input_tokens", call_n_prompt(call) - n_cached,
               "cache_creation_input_tokens", 0, "cache_read_input_tokens", n_cached,
               "output_tokens", call_n_generated(call));
    if (n_thinking)
        json_write(out, ",s:{s:i}", "output_tokens_details", "thinking_tokens", n_thinking);
}

/* The length of the answer was not the client's but the context's. */
static int is_context_full(const Call *call, const Answer *a)
{
    return a->request.max_tokens < call->api.max_tokens;
}

static const char *stop_reason(const Call *call)
{
    const Answer *a = &call->answers[0];
    if (a->finish == FINISH_LENGTH)
        return is_context_full(call, a) ? "model_context_window_exceeded" : "max_tokens";
    if (call->row.n_whole) return "tool_use";
    return a->stop_string ? "stop_sequence" : "end_turn";
}

static void write_stop(const Call *call, StrBuf *out)
{
    const char *reason = stop_reason(call);
    int by_string = !strcmp(reason, "stop_sequence");
    json_write(out, "s:s, s:s?", "stop_reason", reason, "stop_sequence",
               by_string ? call->answers[0].stop_string : NULL);
}

static void write_head(const Call *call, StrBuf *out)
{
    json_write(out, "{s:s, s:s, s:s, s:s, s:[", "id", call->id, "type", "message", "role",
               "assistant", "model", call_model(call), "content");
}

/* Reasoning may be wanted, but not be shown: then it goes to and fro within its signature. */
static int is_omitted(const Call *call)
{
    const json_t *thinking = json_field(call->asked, "thinking");
    return !strcmp(translate_text(thinking, "display"), "omitted");
}

/* ---- whole ---- */

/*
 * A call's arguments as the model wrote them: numbers of ours would have fewer digits. Text that is
 * no object (the call was cut) is left out.
 */
static void write_input(const StrBuf *text, StrBuf *out)
{
    JsonScan scan;
    json_scan_init(&scan);
    for (size_t i = 0; i < text->len; i++)
        json_scan_push(&scan, text->data[i]);
    strbuf_puts(out, scan.state == JS_DONE ? strbuf_str(text) : "{}");
}

static void write_signature(const Call *call, const Item *item, StrBuf *out)
{
    StrBuf text = {0};
    translate_sign(is_omitted(call) ? &item->text : NULL, &text);
    json_write(out, "s:t", "signature", text.data, text.len);
    strbuf_free(&text);
}

static void write_block(const Call *call, const Item *item, StrBuf *out)
{
    char id[sizeof "toolu_" + sizeof item->call_id];
    switch (item->kind) {
    case ITEM_REASONING:
        json_write(out, "{s:s, s:t,", "type", "thinking", "thinking", strbuf_str(&item->text),
                   is_omitted(call) ? 0 : item->text.len);
        write_signature(call, item, out);
        strbuf_puts(out, "}");
        break;
    case ITEM_TEXT:
        json_write(out, "{s:s, s:t}", "type", "text", "text", strbuf_str(&item->text),
                   item->text.len);
        break;
    case ITEM_CALL:
        snprintf(id, sizeof id, "toolu_%s", item->call_id);
        json_write(out, "{s:s, s:s, s:t, s:", "type", "tool_use", "id", id, "name",
                   strbuf_str(&item->name), item->name.len, "input");
        write_input(&item->text, out);
        strbuf_puts(out, "}");
        break;
    }
}

static void list_block(void *ctx, const Item *item)
{
    Call *call = ctx;
    StrBuf *out = &call->row.done;
    if (out->len) strbuf_puts(out, ",");
    write_block(call, item, out);
}

static void reply(Call *call, StrBuf *body)
{
    static const ItemSink sink = {.end = list_block};
    item_row_take(&call->row, &call->answers[0], &sink, call);
    write_head(call, body);
    strbuf_puts(body, strbuf_str(&call->row.done));
    strbuf_puts(body, "],");
    write_stop(call, body);
    json_write(body, ",s:", "usage");
    write_usage(call, call_n_cached(call), body);
    json_write(body, ",s:s}}", "service_tier", "standard");
}

/* ---- streams ---- */

static StrBuf *begin_event(Call *call, const char *type)
{
    StrBuf *out = stream_begin_named(&call->stream, type);
    json_write(out, "{s:s", "type", type);
    return out;
}

static void end_event(Call *call)
{
    strbuf_puts(&call->stream.pending, "}");
    stream_end_event(&call->stream);
}

/* What of the prompt comes from the cache is not known yet. */
static void open_stream(Call *call)
{
    StrBuf *out = begin_event(call, "message_start");
    json_write(out, ",s:", "message");
    write_head(call, out);
    json_write(out, "], s:n, s:n, s:", "stop_reason", "stop_sequence", "usage");
    write_usage(call, 0, out);
    strbuf_puts(out, "}}");
    end_event(call);
    stream_add_text(&call->stream, PING);
    call->stream.silence = PING;
}

static void begin_block(void *ctx, const Item *item)
{
    Call *call = ctx;
    char id[sizeof "toolu_" + sizeof item->call_id];
    StrBuf *out = begin_event(call, "content_block_start");
    json_write(out, ",s:i, s:", "index", item->index, "content_block");
    if (item->kind == ITEM_REASONING) {
        json_write(out, "{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "");
    } else if (item->kind == ITEM_TEXT) {
        json_write(out, "{s:s, s:s}", "type", "text", "text", "");
    } else {
        snprintf(id, sizeof id, "toolu_%s", item->call_id);
        json_write(out, "{s:s, s:s, s:t, s:{}}", "type", "tool_use", "id", id, "name",
                   strbuf_str(&item->name), item->name.len, "input");
    }
    end_event(call);
}

static void send_delta(Call *call, const Item *item, const char *type, const char *key,
                       const char *text, size_t len)
{
    StrBuf *out = begin_event(call, "content_block_delta");
    json_write(out, ",s:i, s:{s:s, s:t}", "index", item->index, "delta", "type", type, key, text,
               len);
    end_event(call);
}

static void more_of_block(void *ctx, const Item *item, const char *text, size_t len)
{
    static const char *const form[][2] = {
        [ITEM_REASONING] = {"thinking_delta", "thinking"},
        [ITEM_TEXT] = {"text_delta", "text"},
        [ITEM_CALL] = {"input_json_delta", "partial_json"},
    };
    Call *call = ctx;
    if (item->kind == ITEM_REASONING && is_omitted(call)) return;
    send_delta(call, item, form[item->kind][0], form[item->kind][1], text, len);
}

static void send_signature(Call *call, const Item *item)
{
    StrBuf *out = begin_event(call, "content_block_delta");
    json_write(out, ",s:i, s:{s:s,", "index", item->index, "delta", "type", "signature_delta");
    write_signature(call, item, out);
    strbuf_puts(out, "}");
    end_event(call);
}

static void end_block(void *ctx, const Item *item)
{
    Call *call = ctx;
    if (item->kind == ITEM_REASONING) send_signature(call, item);
    StrBuf *out = begin_event(call, "content_block_stop");
    json_write(out, ",s:i", "index", item->index);
    end_event(call);
}

static void stream(Call *call, Answer *a)
{
    static const ItemSink sink = {begin_block, more_of_block, end_block};
    item_row_take(&call->row, a, &sink, call);
    a->closed = a->state == ANSWER_DONE;
}

static void end_stream(Call *call)
{
    StrBuf *out = begin_event(call, "message_delta");
    json_write(out, ",s:{", "delta");
    write_stop(call, out);
    json_write(out, "}, s:", "usage");
    write_usage(call, call_n_cached(call), out);
    strbuf_puts(out, "}");
    end_event(call);
    begin_event(call, "message_stop");
    end_event(call);
    stream_end(&call->stream);
}

static void fail(Call *call, int status, const char *code, const char *message)
{
    json_t *error = http_anthropic_error_body(status, code, message, exchange_id(call->stream.ex));
    json_write(stream_begin_named(&call->stream, "error"), "o", error);
    stream_end_event(&call->stream);
    stream_end(&call->stream);
}

static const ApiFormat format = {
    .kind = API_CHAT,
    .id_prefix = "msg_",
    .defaults = defaults,
    .translate = translate,
    .names = anthropic_names,
    .tokenize = call_tokenize_chat,
    .reply = reply,
    .open = open_stream,
    .stream = stream,
    .end = end_stream,
    .fail = fail,
};

void api_anthropic(Server *s, Exchange *ex)
{
    call_begin(s, ex, &format);
}

/* ---- counting ---- */

void api_anthropic_count(Server *s, Exchange *ex)
{
    static const ChatCount count = {anthropic_to_chat, anthropic_names, defaults,
                                    "{\"input_tokens\":"};
    api_count_chat(s, ex, &count);
}

/* What Claude Code asks its maker, or would tell it of itself: heard, and forgotten. */
void api_anthropic_other(Server *s, Exchange *ex)
{
    (void)s;
    exchange_json(ex, json_object());
}
