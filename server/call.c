/*
 * call.c: see call.h. What the replies look like is in reply.c, api_completions.c and api_chat.c.
 */
#include "server/call.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/json_out.h"

/* ---- lists of calls ---- */

static void unlink_call(Call *call)
{
    if (call->prev) call->prev->next = call->next;
    if (call->next) call->next->prev = call->prev;
    if (call->server->calls == call) call->server->calls = call->next;
}

void call_free(Call *call)
{
    assert(!call->is_dirty);
    unlink_call(call);
    for (int i = 0; i < call->n_answers; i++)
        answer_close(&call->answers[i]);
    for (int i = 0; i < call->n_prompts; i++)
        token_list_free(&call->prompt[i]);
    encoding_free(&call->encoding);
    stream_close(&call->stream);
    mem_free(call->answers);
    mem_free(call->prompt);
    mem_free(call->n_stable);
    mem_free(call->body);
    strbuf_free(&call->chunk_head);
    reply_tools_close(call->tools);
    api_request_free(&call->api);
    mem_free(call);
}

static void mark_dirty(Call *call)
{
    if (call->is_dirty) return;
    call->is_dirty = 1;
    call->next_dirty = call->server->dirty;
    call->server->dirty = call;
}

/* ---- ends ---- */

/* One line for each request, with figures and without its words. */
static void log_call(const Call *call, int status)
{
    int n_prompt = call_n_prompt(call), n_tokens = 0, n_steps = 0, n_accepted = 0;
    double decode_ms = 0;
    for (int i = 0; i < call->n_answers; i++) {
        const RequestStats *st = &call->answers[i].stats;
        n_tokens += call->answers[i].n_tokens;
        n_steps += st->n_steps;
        n_accepted += st->n_accepted;
        if (st->decode_ms > decode_ms) decode_ms = st->decode_ms;
    }
    log_info("request id=%s status=%d prompt=%d cached=%d tokens=%d first_token_ms=%.1f "
             "tokens_per_s=%.1f acceptance=%.2f",
             call->id, status, n_prompt, call_n_cached(call), n_tokens,
             call->first_token_ms > 0 ? call->first_token_ms - call->started_ms : 0.0,
             decode_ms > 0 ? n_tokens * 1e3 / decode_ms : 0.0,
             n_steps ? 1 + (double)n_accepted / n_steps : 1.0);
}

static void cancel_all(Call *call)
{
    for (int i = 0; i < call->n_answers; i++)
        dispatch_cancel(call->server->dispatch, &call->answers[i]);
}

/* The client is gone. The call goes with the last answer that the engine gives back. */
void call_gone(void *owner)
{
    Call *call = owner;
    call->stream.ex = NULL;
    if (call->is_read) { /* the worker has it */
        atomic_store(&call->is_gone, 1);
        return;
    }
    log_call(call, 499);
    mark_dirty(call);
    cancel_all(call);
    call_flush_all(call->server);
}

/* Ends the reply with an error: by status while that is possible, else as an event. */
static void fail(Call *call, int status, const char *code, const char *message)
{
    Exchange *ex = call->stream.ex;
    log_call(call, status);
    if (call->stream.started) {
        stream_add(&call->stream, http_error_body(status, code, NULL, message));
        stream_end(&call->stream);
    } else {
        exchange_error(ex, status, code, NULL, message);
    }
    call->stream.ex = NULL;
    cancel_all(call);
}

/* An answer that was not made as it should ends the whole call. 1 if there is one. */
static int fail_with(Call *call, const Answer *a)
{
    if (a->state != ANSWER_DONE || answer_finish_reason(a)) return 0;
    ErrorCode code = a->refused.code;
    if (code)
        fail(call, http_status(code), code == ERR_LIMIT ? "context_length_exceeded" : NULL,
             a->refused.msg);
    else
        fail(call, 500, NULL, "the model's output is not a number; the answer cannot go on");
    return 1;
}

/* ---- replies ---- */

/* What every reply and chunk begins with, up to the bracket that opens choices. */
static void write_head(const Call *call, const char *object, StrBuf *out)
{
    const char *asked = call->api.model;
    json_write(out, "{s:s, s:s, s:I, s:s, s:s", "id", call->id, "object", object, "created",
               (json_int_t)call->created, "model",
               asked ? asked : call->server->service->model_name, "system_fingerprint",
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

/* The head is the same in all chunks of a call. */
StrBuf *call_chunk_begin(Call *call)
{
    StrBuf *out = stream_begin_event(&call->stream);
    if (!call->chunk_head.len) write_head(call, call->format->chunk_object, &call->chunk_head);
    strbuf_add(out, call->chunk_head.data, call->chunk_head.len);
    return out;
}

void call_chunk_end(Call *call, int last)
{
    StrBuf *out = &call->stream.pending;
    strbuf_puts(out, "]");
    if (call->api.continuous_usage)
        add_usage(call, out);
    else if (call->api.include_usage)
        json_write(out, ",s:n", "usage");
    if (last && !--call->n_open && !call->api.include_usage)
        add_figures(call, out);
    else if (call->api.timings_per_token)
        add_timings(call, out);
    strbuf_puts(out, "}");
    stream_end_event(&call->stream);
}

static void end_stream(Call *call)
{
    if (call->api.include_usage) {
        StrBuf *out = call_chunk_begin(call);
        strbuf_puts(out, "]");
        add_usage(call, out);
        add_figures(call, out);
        strbuf_puts(out, "}");
        stream_end_event(&call->stream);
    }
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

static void reply(Call *call)
{
    StrBuf body = {0};
    write_head(call, call->format->object, &body);
    for (int i = 0; i < call->n_prompts; i++)
        write_choices(call, call->answers + (size_t)i * (size_t)call->api.best_of, i * call->api.n,
                      &body);
    strbuf_puts(&body, "]");
    add_usage(call, &body);
    add_figures(call, &body);
    strbuf_puts(&body, "}");
    exchange_text(call->stream.ex, 200, "application/json", &body);
    strbuf_free(&body);
}

/* Brings the client up to date. */
static void flush(Call *call)
{
    for (int i = 0; i < call->n_answers && call->stream.ex; i++)
        if (fail_with(call, &call->answers[i])) return;
    for (int i = 0; i < call->n_answers && call->api.stream; i++) {
        Answer *a = &call->answers[i];
        /* With echo the prompt goes out together with the first token. */
        if (!a->closed && (a->n_tokens || a->state == ANSWER_DONE)) call->format->stream(call, a);
    }
    if (call->n_live) {
        stream_flush(&call->stream);
        return;
    }
    log_call(call, 200);
    if (call->api.stream)
        end_stream(call);
    else
        reply(call);
    call->stream.ex = NULL;
}

/* What will not come back as it was generated need not be looked for. */
static void remember(const Call *call, const Answer *a)
{
    const EngineRequest *r = &a->request;
    int n = a->tokens.n, ended = a->finish == FINISH_STOP || a->finish == FINISH_LENGTH;
    if (!call->server->returned || !ended || r->no_cache || r->answer_changes) return;
    if (n && answer_is_end(a, a->tokens.id[n - 1])) n--;
    returned_add(call->server->returned, r->salt, r->prompt, r->n_prompt, a->tokens.id, n);
}

void call_progress(void *server, Answer *a)
{
    (void)server;
    Call *call = a->owner;
    if (a->state == ANSWER_DONE) call->n_live--;
    if (a->state == ANSWER_DONE) metrics_done(a);
    if (a->state == ANSWER_DONE) remember(call, a);
    if (a->n_tokens && call->first_token_ms <= 0) call->first_token_ms = clock_ms();
    mark_dirty(call);
}

void call_flush_all(Server *s)
{
    while (s->dirty) {
        Call *call = s->dirty;
        s->dirty = call->next_dirty;
        call->is_dirty = 0;
        if (call->stream.ex) flush(call);
        /* A failure cancels answers, and those that waited are done at once: the call is dirty. */
        if (!call->stream.ex && !call->n_live && !call->is_dirty && !call->is_read) call_free(call);
    }
    atomic_store(&s->n_live, dispatch_n_live(s->dispatch));
}

/* A reader that was behind too long makes place for those who wait. */
void call_drop_slow(Server *s)
{
    if (!s->dispatch || !dispatch_n_waiting(s->dispatch)) return;
    double limit = clock_ms() - s->limits.behind_s * 1e3;
    for (Call *call = s->calls; call; call = call->next)
        if (call->behind_ms > 0 && call->behind_ms < limit && call->stream.ex)
            exchange_drop(call->stream.ex);
}

void call_flow(void *owner, int behind)
{
    Call *call = owner;
    call->behind_ms = behind ? clock_ms() : 0;
    for (int i = 0; i < call->n_answers; i++)
        dispatch_pause(call->server->dispatch, &call->answers[i], behind);
}
