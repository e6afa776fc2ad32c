/*
 * choices.c: replies as the completion routes give them: choices, usage and figures; in a stream as
 * chunks, each a choice. See call.h.
 */
#include "server/call.h"

#include <assert.h>

#include "server/json_out.h"

static const char DONE[] = "data: [DONE]\n\n";

/* What every reply and chunk begins with, up to the bracket that opens choices. */
static void write_head(const Call *call, const char *object, StrBuf *out)
{
    json_write(out, "{s:s, s:s, s:I, s:s, s:s", "id", call->id, "object", object, "created",
               (json_int_t)call->created, "model", call_model(call), "system_fingerprint",
               server_fingerprint(call->server));
    if (call->api.service_tier) json_write(out, ",s:s", "service_tier", "default");
    json_write(out, ",s:[", "choices");
}

static void add_usage(const Call *call, StrBuf *out)
{
    json_write(out, ",s:", "usage");
    call_usage(call, out);
}

static void add_timings(const Call *call, StrBuf *out)
{
    json_write(out, ",s:", "timings");
    call_timings(call, out);
}

/* What came with it and how fast; with the last chunk of a stream. */
static void add_figures(const Call *call, StrBuf *out)
{
    json_write(out, ",s:", "metrics");
    call_metrics(call, out);
    add_timings(call, out);
}

/* vLLM's reply to a chat has what is said of the prompt beside its choices. */
static void add_prompt(const Call *call, StrBuf *out)
{
    const Answer *a = &call->answers[0];
    call_add_prompt_logprobs(call, a, out);
    call_add_prompt_ids(call, a, out);
}

/* The head is the same in all chunks of a call. */
StrBuf *choices_chunk_begin(Call *call)
{
    StrBuf *out = stream_begin_event(&call->stream);
    if (!call->chunk_head.len) write_head(call, call->format->chunk_object, &call->chunk_head);
    strbuf_add(out, call->chunk_head.data, call->chunk_head.len);
    return out;
}

/* No other chunk has a key for usage that has one of its own: clients take a null for it, too. */
static void end_chunk(Call *call, int last)
{
    StrBuf *out = &call->stream.pending;
    if (call->api.continuous_usage) add_usage(call, out);
    if (last && !--call->n_open && !call->api.include_usage)
        add_figures(call, out);
    else if (call->api.timings_per_token)
        add_timings(call, out);
    strbuf_puts(out, "}");
    stream_end_event(&call->stream);
}

void choices_chunk_end(Call *call, int prompt, int last)
{
    StrBuf *out = &call->stream.pending;
    strbuf_puts(out, "]");
    if (prompt) call_add_prompt_ids(call, &call->answers[0], out);
    end_chunk(call, last);
}

void choices_progress(Call *call, Answer *a)
{
    const RequestStats *st = &a->stats;
    StrBuf *out = choices_chunk_begin(call);
    json_write(out, "{s:i, s:", "index", a->index, call->api.kind == API_CHAT ? "delta" : "text");
    strbuf_puts(out, call->api.kind == API_CHAT ? "{}" : "\"\"");
    json_write(out, ",s:n, s:n}], s:{s:i, s:i, s:i, s:f}", "logprobs", "finish_reason",
               "prompt_progress", "total", st->n_prompt, "cache", st->n_cached, "processed",
               a->n_computed, "time_ms", st->prompt_ms);
    end_chunk(call, 0);
    a->n_computed = 0;
}

void choices_end(Call *call)
{
    if (call->api.include_usage) {
        StrBuf *out = choices_chunk_begin(call);
        strbuf_puts(out, "]");
        add_usage(call, out);
        add_figures(call, out);
        strbuf_puts(out, "}");
        stream_end_event(&call->stream);
    }
    stream_add_text(&call->stream, DONE);
    stream_end(&call->stream);
}

void choices_fail(Call *call, int status, const char *code, const char *message)
{
    stream_add(&call->stream, http_error_body(status, code, NULL, message));
    stream_add_text(&call->stream, DONE);
    stream_end(&call->stream);
}

static double mean_logprob(const Answer *a)
{
    return a->n_tokens ? a->sum_logprob / a->n_tokens : 0;
}

/*
 * The n likeliest of best_of answers, best first; all of them in their order where n are all. The
 * first one's place among all choices is first.
 */
static void write_choices(const Call *call, const Answer *answers, int first, StrBuf *out)
{
    const Answer *best[MAX_N] = {NULL};
    int n = call->api.best_of, chooses = n > call->api.n;
    assert(call->api.n <= n && n <= MAX_N);
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; chooses && at && mean_logprob(best[at - 1]) < mean_logprob(&answers[i]); at--)
            best[at] = best[at - 1];
        best[at] = &answers[i];
    }
    for (int i = 0; i < call->api.n; i++) {
        if (first + i) strbuf_puts(out, ",");
        call->format->choice(call, best[i], first + i, out);
    }
}

void choices_reply(Call *call, StrBuf *body)
{
    write_head(call, call->format->object, body);
    for (int i = 0; i < call->n_prompts; i++)
        write_choices(call, call->answers + (size_t)i * (size_t)call->api.best_of, i * call->api.n,
                      body);
    strbuf_puts(body, "]");
    if (call->api.kind == API_CHAT) add_prompt(call, body);
    add_usage(call, body);
    add_figures(call, body);
    strbuf_puts(body, "}");
}
