/*
 * call.c: see call.h. What the replies look like is their formats': choices.c and the routes'
 * files.
 */
#include "server/call.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* ---- lists of calls ---- */

static void unlink_call(Call *call)
{
    if (call->prev) call->prev->next = call->next;
    if (call->next) call->next->prev = call->prev;
    if (call->server->calls == call) call->server->calls = call->next;
}

/*
 * What a body has become. A large one takes a second or two to free, so the worker does it, as it
 * has made it; only when the server ends, or thousands wait for that, it is done here.
 */
typedef struct {
    Server *server;
    ApiRequest api;
    json_t *asked;
    ReplyTools *tools;
    size_t json_bytes;
} Remains;

static int free_parts(void *owner)
{
    Remains *r = owner;
    reply_tools_close(r->tools);
    api_request_free(&r->api);
    json_decref(r->asked);
    server_forget_json(r->server, r->json_bytes);
    *r = (Remains){.server = r->server};
    return TASK_DONE;
}

static void free_remains(void *owner)
{
    free_parts(owner);
    mem_free(owner);
}

static void free_request(const Call *call)
{
    Remains *r = mem_alloc(1, sizeof *r);
    Task task = {free_parts, free_remains, r};
    *r = (Remains){call->server, call->api, call->asked, call->tools, call->json_bytes};
    int is_large = call->text_len > INLINE_BODY_BYTES;
    if (!is_large || worker_add_owed(call->server->worker, &task)) free_remains(r);
}

void call_free(Call *call)
{
    assert(!call->is_dirty);
    unlink_call(call);
    for (int i = 0; i < call->n_answers; i++)
        answer_close(&call->answers[i]);
    for (int i = 0; i < call->n_prompts; i++)
        token_list_free(&call->prompt[i]);
    token_list_free(&call->predicted);
    encoding_free(&call->encoding);
    stream_close(&call->stream);
    strbuf_free(&call->whole);
    strbuf_free(&call->settings);
    strbuf_free(&call->logprobs);
    mem_free(call->answers);
    mem_free(call->prompt);
    mem_free(call->n_stable);
    mem_free(call->body);
    strbuf_free(&call->chunk_head);
    structures_release(call->server->structures, call->grammar);
    strbuf_free(&call->ask.text);
    id_set_close(&call->allowed_ids);
    free_request(call);
    item_row_free(&call->row);
    custom_input_free(&call->input);
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
    int n_decoded = 0; /* without the first ones, which came before the time that is counted */
    double decode_ms = 0;
    for (int i = 0; i < call->n_answers; i++) {
        const RequestStats *st = &call->answers[i].stats;
        n_tokens += call->answers[i].n_tokens;
        if (call->answers[i].n_tokens) n_decoded += call->answers[i].n_tokens - 1;
        n_steps += st->n_steps;
        n_accepted += st->n_accepted;
        if (st->decode_ms > decode_ms) decode_ms = st->decode_ms;
    }
    log_info("request id=%s status=%d prompt=%d cached=%d tokens=%d first_token_ms=%.1f "
             "tokens_per_s=%.1f acceptance=%.2f",
             call->id, status, n_prompt, call_n_cached(call), n_tokens,
             call->first_token_ms > 0 ? call->first_token_ms - call->started_ms : 0.0,
             decode_ms > 0 ? n_decoded * 1e3 / decode_ms : 0.0,
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
    if (call->is_lent) { /* the worker has it */
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
        call->format->fail(call, status, code, message);
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
    else if (a->finish == FINISH_FORM)
        fail(call, 400, "invalid_schema",
             "the schema leaves more ways open at a time than can be followed; what may come next "
             "cannot be told");
    else
        fail(call, 500, NULL, "the model's output is not a number; the answer cannot go on");
    return 1;
}

/* ---- replies ---- */

static int write_reply(void *owner)
{
    Call *call = owner;
    if (!atomic_load(&call->is_gone)) call->format->reply(call, &call->whole);
    return TASK_DONE;
}

static void send_reply(Call *call)
{
    if (call->stream.ex) exchange_text(call->stream.ex, "application/json", &call->whole);
    call->stream.ex = NULL;
    strbuf_free(&call->whole);
}

static void reply_written(void *owner)
{
    Call *call = owner;
    call->is_lent = 0;
    send_reply(call);
    call_free(call);
}

/* What a reply costs most to write. */
static int64_t n_probs(const Call *call)
{
    int64_t n = 0;
    for (int i = 0; i < call->n_answers; i++) {
        const TokenProbs *answer = &call->answers[i].probs,
                         *prompt = &call->answers[i].prompt_probs;
        n += (int64_t)answer->n * (answer->k + 1) + (int64_t)prompt->n * (prompt->k + 1);
    }
    return n;
}

/* All answers are done. A large reply takes up to a second to write: the worker does it. */
static void reply(Call *call)
{
    enum { FEW_PROBS = 1 << 13 }; /* some 10 ms */
    Task task = {write_reply, reply_written, call};
    if (n_probs(call) > FEW_PROBS && !worker_add_owed(call->server->worker, &task)) {
        call->is_lent = 1;
        return;
    }
    write_reply(call);
    send_reply(call);
}

/* Brings the client up to date. */
static void flush(Call *call)
{
    for (int i = 0; i < call->n_answers && call->stream.ex; i++)
        if (fail_with(call, &call->answers[i])) return;
    for (int i = 0; i < call->n_answers && call->api.stream; i++) {
        Answer *a = &call->answers[i];
        if (a->n_computed) choices_progress(call, a);
        /* With echo the prompt goes out together with the first token. */
        if (!a->closed && (a->n_tokens || a->state == ANSWER_DONE)) call->format->stream(call, a);
    }
    if (call->n_live) {
        stream_flush(&call->stream);
        return;
    }
    log_call(call, 200);
    if (!call->api.stream) {
        reply(call);
        return;
    }
    call->format->end(call);
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

static int longest_answer(const Call *call)
{
    int n = 0;
    for (int i = 0; i < call->n_answers; i++)
        if (call->answers[i].n_tokens > n) n = call->answers[i].n_tokens;
    return n;
}

static void answer_done(Call *call, const Answer *a)
{
    metrics_done(a);
    remember(call, a);
    if (!--call->n_live) metrics_request_done(call->server->metrics, longest_answer(call));
}

void call_progress(void *server, Answer *a)
{
    (void)server;
    Call *call = a->owner;
    if (a->state == ANSWER_DONE) answer_done(call, a);
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
        if (!call->stream.ex && !call->n_live && !call->is_dirty && !call->is_lent) call_free(call);
    }
    atomic_store(&s->n_live, dispatch_n_live(s->dispatch));
}

/*
 * 1 while an answer has not begun, but one whose reader is behind, which is paused. What the worker
 * has is not in the line yet.
 */
static int anybody_waits(const Server *s)
{
    for (const Call *call = s->calls; call; call = call->next)
        for (int i = 0; !call->is_lent && call->behind_ms <= 0 && i < call->n_answers; i++)
            if (call->answers[i].state != ANSWER_DONE && !call->answers[i].n_tokens) return 1;
    return 0;
}

/* A reader that was behind too long makes place for those who wait, not for answers of its own. */
void call_drop_slow(Server *s)
{
    if (!s->dispatch) return;
    EngineStatus engine;
    dispatch_status(s->dispatch, &engine);
    if (!dispatch_n_waiting(s->dispatch) && !engine.queued) return;
    if (!anybody_waits(s)) return;
    double limit = clock_ms() - s->limits.behind_s * 1e3;
    for (Call *call = s->calls; call; call = call->next)
        if (call->behind_ms > 0 && call->behind_ms < limit && call->stream.ex)
            exchange_drop(call->stream.ex);
}

static int is_called(const Call *call, const char *id)
{
    return !id || !strcmp(id, call->id) || !strcmp(id, exchange_id(call->stream.ex));
}

int call_abort(Server *s, const char *id)
{
    int n = 0;
    for (Call *call = s->calls; call; call = call->next) {
        if (!call->stream.ex || call->is_lent || !is_called(call, id)) continue;
        fail(call, 400, "aborted", "the request was ended by /abort_request");
        mark_dirty(call);
        n++;
    }
    call_flush_all(s);
    return n;
}

void call_flow(void *owner, int behind)
{
    Call *call = owner;
    call->behind_ms = behind ? clock_ms() : 0;
    for (int i = 0; i < call->n_answers; i++)
        dispatch_pause(call->server->dispatch, &call->answers[i], behind);
}
