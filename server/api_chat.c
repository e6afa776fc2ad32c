/*
 * api_chat.c: POST /v1/chat/completions.
 *
 * A message and its deltas are made of the same pieces (text/reply.h), so that a stream and a whole
 * reply say the same.
 */
#include "server/call.h"

#include "base/random.h"
#include "server/json_out.h"

/*
 * An entry for each token that is there. The end token has one only where ids are sent, too, of
 * which it is one.
 */
static void write_logprobs(const Call *call, const Answer *a, StrBuf *out)
{
    const TokenProbs *p = &a->probs;
    int ends = call->api.return_token_ids || call->api.return_tokens;
    const char *before = "";
    json_write(out, ",s:", "logprobs");
    if (call->api.n_logprobs < 0) {
        strbuf_puts(out, "null");
        return;
    }
    json_write(out, "{s:[", "content");
    for (int i = 0; i < p->n; i++) {
        if (!ends && answer_is_end(a, p->token[i])) continue;
        strbuf_puts(out, before);
        call_write_logprob(call, p, i, out);
        before = ",";
    }
    json_write(out, "], s:n}", "refusal");
}

/* "call_" and 24 hex digits, never the same twice. */
static json_t *new_call_id(void)
{
    char id[32] = "call_";
    random_hex(id + 5, 12);
    return json_string(id);
}

static json_t *new_call(json_t *name, json_t *arguments)
{
    return json_pack("{s:o, s:s, s:{s:o, s:o}}", "id", new_call_id(), "type", "function",
                     "function", "name", name, "arguments", arguments);
}

/* The whole calls of an answer. */
static json_t *tool_calls(const Answer *a)
{
    json_t *calls = json_array();
    StrBuf arguments = {0};
    ReplyPiece name = {0};
    for (int i = 0; i < reply_n_pieces(a->reply); i++) {
        ReplyPiece p = reply_piece(a->reply, i);
        if (p.kind == REPLY_CALL_START) name = p;
        if (p.kind == REPLY_ARGUMENTS) strbuf_add(&arguments, p.text, p.len);
        if (p.kind != REPLY_CALL_END && p.kind != REPLY_CALL_CUT) continue;
        json_array_append_new(calls, new_call(json_text_n(name.text, name.len),
                                              json_text_n(strbuf_str(&arguments), arguments.len)));
        strbuf_clear(&arguments);
    }
    strbuf_free(&arguments);
    return calls;
}

/* Takes calls. */
static void write_calls(const Call *call, json_t *calls, StrBuf *out)
{
    json_t *first = json_array_get(calls, 0);
    if (first && call->api.old_calls)
        json_write(out, ",s:o", "function_call", json_incref(json_object_get(first, "function")));
    else if (first)
        json_write(out, ",s:o", "tool_calls", json_incref(calls));
    json_decref(calls);
}

/*
 * Reasoning goes under both names that clients know: vLLM's and DeepSeek's. No text beside it or
 * calls is null.
 */
static void write_message(const Call *call, const Answer *a, StrBuf *out)
{
    StrBuf content = {0}, reasoning = {0};
    json_t *calls = tool_calls(a);
    size_t n_calls = json_array_size(calls);
    answer_text(a, REPLY_CONTENT, &content);
    answer_text(a, REPLY_REASONING, &reasoning);
    json_write(out, "{s:s, s:", "role", "assistant", "content");
    if (!content.len && (reasoning.len || n_calls))
        strbuf_puts(out, "null");
    else
        json_write(out, "t", strbuf_str(&content), content.len);
    json_write(out, ",s:n", "refusal");
    if (reasoning.len && call->api.reasoning == REASONING_SEPARATE)
        json_write(out, ",s:t, s:t", "reasoning_content", reasoning.data, reasoning.len,
                   "reasoning", reasoning.data, reasoning.len);
    write_calls(call, calls, out);
    strbuf_free(&reasoning);
    strbuf_free(&content);
    strbuf_puts(out, "}");
}

static void choice(const Call *call, const Answer *a, int index, StrBuf *out)
{
    json_write(out, "{s:i, s:", "index", index, "message");
    write_message(call, a, out);
    write_logprobs(call, a, out);
    json_write(out, ",s:s?, s:o", "finish_reason", answer_finish_reason(a), "stop_reason",
               call_stop_reason(a));
    call_add_ids(call, a, 0, out);
    call_add_trees(call, a, out);
    strbuf_puts(out, "}");
}

static StrBuf *begin_delta(Call *call, const Answer *a)
{
    StrBuf *out = choices_chunk_begin(call);
    json_write(out, "{s:i, s:", "index", a->index, "delta");
    return out;
}

/* What was not sent yet of log-probabilities, ids and trees goes with the first delta sent. */
static void end_delta(Call *call, Answer *a, StrBuf *out)
{
    write_logprobs(call, a, out);
    json_write(out, ",s:n", "finish_reason");
    call_add_ids(call, a, a->n_ids_taken, out);
    call_add_trees(call, a, out);
    answer_take_probs(a);
    a->n_ids_taken = a->tokens.n;
    tree_list_clear(&a->trees);
    strbuf_puts(out, "}");
    choices_chunk_end(call, 0, 0);
}

/* A call's name comes once, with its id; a client that joins what it gets would double it. */
static json_t *call_delta(const ReplyPiece *p)
{
    json_t *text = json_text_n(p->text, p->len), *call;
    if (p->kind == REPLY_CALL_START) {
        call = new_call(text, json_string(""));
        json_object_set_new(call, "index", json_integer(p->call));
    } else {
        call = json_pack("{s:i, s:{s:o}}", "index", p->call, "function", "arguments", text);
    }
    return call;
}

static void write_call_delta(const Call *call, const ReplyPiece *p, StrBuf *out)
{
    if (!call->api.old_calls)
        json_write(out, "{s:[o]}", "tool_calls", call_delta(p));
    else if (p->kind == REPLY_CALL_START)
        json_write(out, "{s:{s:t, s:s}}", "function_call", "name", p->text, p->len, "arguments",
                   "");
    else
        json_write(out, "{s:{s:t}}", "function_call", "arguments", p->text, p->len);
}

static void send_piece(Call *call, Answer *a, const ReplyPiece *p)
{
    int is_call = p->kind == REPLY_CALL_START || p->kind == REPLY_ARGUMENTS;
    int is_reasoning = p->kind == REPLY_REASONING && call->api.reasoning == REASONING_SEPARATE;
    if (!is_call && !is_reasoning && p->kind != REPLY_CONTENT) return;
    StrBuf *out = begin_delta(call, a);
    if (is_call)
        write_call_delta(call, p, out);
    else if (is_reasoning)
        json_write(out, "{s:t, s:t}", "reasoning_content", p->text, p->len, "reasoning", p->text,
                   p->len);
    else
        json_write(out, "{s:t}", "content", p->text, p->len);
    end_delta(call, a, out);
}

static void send_role(Call *call, Answer *a)
{
    StrBuf *out = choices_chunk_begin(call);
    json_write(out, "{s:i, s:{s:s, s:s}, s:n, s:n", "index", a->index, "delta", "role", "assistant",
               "content", "", "logprobs", "finish_reason");
    strbuf_puts(out, "}");
    choices_chunk_end(call, 1, 0);
    a->opened = 1;
}

/* The role, then what comes, then an empty delta that says why it ended. */
static void stream(Call *call, Answer *a)
{
    if (!a->opened) send_role(call, a);
    for (int i = 0; i < reply_n_pieces(a->reply); i++) {
        ReplyPiece p = reply_piece(a->reply, i);
        send_piece(call, a, &p);
    }
    answer_take(a);
    if (a->state != ANSWER_DONE) return;
    a->closed = 1;
    StrBuf *out = begin_delta(call, a);
    strbuf_puts(out, "{}");
    write_logprobs(call, a, out);
    json_write(out, ",s:s, s:o", "finish_reason", answer_finish_reason(a), "stop_reason",
               call_stop_reason(a));
    call_add_ids(call, a, a->n_ids_taken, out);
    call_add_trees(call, a, out);
    strbuf_puts(out, "}");
    choices_chunk_end(call, 0, 1);
}

static const ApiFormat format = {
    .kind = API_CHAT,
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .max_tokens = -1,
    .subject = "your messages resulted in",
    .tokenize = call_tokenize_chat,
    .choice = choice,
    .stream = stream,
    .end = choices_end,
    .fail = choices_fail,
    .reply = choices_reply,
};

void api_chat(Server *s, Exchange *ex)
{
    call_begin(s, ex, &format);
}
