/*
 * call_begin.c: from a request's body to answers in the line; see call.h.
 *
 * Reading the body is a task (worker.h): of a large one the worker makes JSON, prompt and tokens
 * while the client may vanish. So until it is read the call stays, whoever is gone. The first slice
 * reads the JSON and renders the chat as a whole: at 32 MiB, the largest body by default, 0.7 to
 * 1.8 s on a busy core of an EPYC (Zen 4), nearly all of it jansson's. The others make tokens and
 * take 3 to 4 ms, but for a piece of megabytes without a place to cut it: 32 MiB of one letter take
 * 1.5 s, of blanks 3.3 s.
 */
#include "server/call.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* ---- reading: on either thread ---- */

static int refuse_length(const Call *call, const char *how_many, ApiError *err)
{
    err->code = "context_length_exceeded";
    if (!call->format->subject)
        return api_error(err, ERR_LIMIT, "messages", "prompt is too long: %s tokens > %d maximum",
                         how_many, call->server->ctx_size);
    return api_error(err, ERR_LIMIT, call->api.kind == API_CHAT ? "messages" : "prompt",
                     "This model's maximum context length is %d tokens. However, %s %s tokens.",
                     call->server->ctx_size, call->format->subject, how_many);
}

/* How long an answer may be: asked for or not, the context bounds it. */
static int check_length(const Call *call, int n_prompt, ApiError *err)
{
    char number[16];
    int room = call->server->ctx_size - n_prompt;
    if (room >= (call->api.max_tokens != 0)) return 0;
    snprintf(number, sizeof number, "%d", n_prompt);
    return refuse_length(call, number, err);
}

int call_tokenize_chat(Call *call, int limit, size_t *budget, ApiError *err)
{
    static const char think[] = "<think>\n";
    size_t n = strlen(think);
    Encoding *e = &call->encoding;
    if (!call->prompt) {
        call->prompt = mem_alloc(1, sizeof *call->prompt);
        call->n_prompts = 1;
        call->prompt[0].limit = limit;
        call->n_stable = mem_alloc(1, sizeof *call->n_stable);
        if (encoding_chat(e, call->server->service, &call->api, call->prompt, err)) return -1;
        call->starts_in_think =
            e->chat.len >= n && !memcmp(e->chat.data + e->chat.len - n, think, n);
        /* Nor does reasoning come back that is not sent. */
        int is_hidden = call->starts_in_think && call->api.reasoning == REASONING_HIDDEN;
        call->answer_changes = e->marks.answer_changes || is_hidden;
    }
    int rc = encoding_some(e, budget, err);
    if (rc) return rc;
    call->n_stable[0] = e->n_stable;
    call->n_system = e->n_system;
    encoding_free(e);
    return 0;
}

/* A prompt far beyond the context is not read to its end. */
static int tokenize(Call *call, size_t *budget, ApiError *err)
{
    int limit = call->server->ctx_size + ENCODE_MARGIN;
    char more[32];
    int rc = call->format->tokenize(call, limit, budget, err);
    if (rc >= 0) return rc;
    if (err->error.code != ERR_LIMIT) return -1;
    for (int i = 0; i < call->n_prompts; i++) {
        if (call->prompt[i].n <= limit) continue;
        snprintf(more, sizeof more, "more than %d", limit);
        return refuse_length(call, more, err);
    }
    return -1;
}

/* What the answers may copy, for drafters that do; whatever is wrong with it, it is not needed. */
static int tokenize_predicted(Call *call, size_t *budget)
{
    const Service *service = call->server->service;
    const StrBuf *text = &call->api.predicted;
    Encoding *e = &call->encoding;
    ApiError ignored = {0};
    int rc = 0, draft = service->settings->draft;
    if (!text->len || draft == DRAFT_MTP || draft == DRAFT_NONE) return 0;
    call->predicted.limit = MAX_PREDICTED;
    if (!e->encoder)
        rc = encoding_text(e, service->tok, text->data, text->len, 0, &call->predicted,
                           "prediction", &ignored);
    if (!rc) rc = encoding_some(e, budget, &ignored);
    if (rc > 0) return 1;
    encoding_free(e);
    if (call->predicted.n > MAX_PREDICTED) call->predicted.n = MAX_PREDICTED;
    return 0;
}

/* Log-probabilities of all answers that are kept to be sent at once, at most; 0: none are kept. */
static int most_probs(const Call *call)
{
    return call->api.stream ? call->format->stream_probs : MAX_ANSWER_PROBS;
}

/* Those that each further token of all answers adds. */
static int64_t probs_a_token(const Call *call)
{
    const ApiRequest *api = &call->api;
    if (!most_probs(call)) return 0;
    return (int64_t)call->n_prompts * api->best_of * (api->n_logprobs + 1);
}

static int asks_length(const Call *call)
{
    return call->api.asks_length && call->api.max_tokens >= 0;
}

/* The context bounds it and, where no length was asked for, what a reply may hold beside it. */
static int longest_answer(const Call *call, int n_prompt)
{
    int room = call->server->ctx_size - n_prompt, max = call->api.max_tokens;
    int64_t probs = asks_length(call) ? 0 : probs_a_token(call);
    if (probs && room > most_probs(call) / probs) room = (int)(most_probs(call) / probs);
    return max < 0 || max > room ? room : max;
}

static int open_answers(Call *call, ApiError *err)
{
    const Server *s = call->server;
    int n = call->api.best_of;
    const json_t *tools = call->api.allowed_tools ? call->api.allowed_tools : call->api.tools;
    if (call->api.parse_calls) call->tools = reply_tools_open(tools);
    AnswerModel model = {.tok = s->service->tok,
                         .eos = s->config->eos,
                         .n_eos = s->config->n_eos,
                         .tools = call->tools,
                         .starts_in_think = call->starts_in_think,
                         .forced = s->end_of_thinking.id,
                         .n_forced = s->end_of_thinking.n};
    call->answers = mem_alloc((size_t)call->n_prompts * (size_t)n, sizeof *call->answers);
    for (int i = 0; i < call->n_prompts * n; i++) {
        const TokenList *prompt = &call->prompt[i / n];
        Answer *a = &call->answers[call->n_answers++];
        if (answer_open(a, &model, &call->api, prompt->id, prompt->n, i % n, &err->error))
            return -1;
        a->owner = call;
        a->index = i;
        a->request.n_stable = call->n_stable ? call->n_stable[i / n] : 0;
        a->request.n_system = call->n_system;
        a->request.answer_changes = call->answer_changes;
        a->request.predicted = call->predicted.id;
        a->request.n_predicted = call->predicted.n;
        if (call->grammar) {
            a->structure = (GrammarAnswer){call->grammar, structures_pool(s->structures), 0};
            a->request.constraint = grammar_constraint(&a->structure);
        }
        if (call->allowed_ids.word) a->request.constraint = id_set_constraint(&call->allowed_ids);
        if (call->format->begin) call->format->begin(call, a);
        a->request.max_tokens = longest_answer(call, prompt->n);
    }
    return 0;
}

/* Ids that only pad the vocabulary are never to be chosen, and this mask goes before the engine's.
 */
static int read_allowed(Call *call, ApiError *err)
{
    const Server *s = call->server;
    const TokenList *ids = &call->api.allowed_ids;
    for (int i = 0; i < ids->n; i++)
        if (!tokenizer_has(s->service->tok, ids->id[i]))
            return api_error(err, ERR_INPUT, "allowed_token_ids",
                             "allowed_token_ids[%d] is %d, which stands for no token", i,
                             (int)ids->id[i]);
    if (ids->n) id_set_open(&call->allowed_ids, ids->id, ids->n, s->n_vocab);
    return 0;
}

static int read_request(Call *call, ApiError *err)
{
    const ApiFormat *format = call->format;
    ApiDefaults defaults = format->defaults ? format->defaults(call->server)
                                            : server_defaults(call->server, format->max_tokens);
    json_t *body =
        server_parse_body(call->server, call->text, call->text_len, &call->json_bytes, err);
    if (body && format->translate) {
        call->asked = body;
        body = format->translate(body, err);
    }
    if (!body || api_request_read(&call->api, format->kind, body, &defaults, err) ||
        server_hold_json(call->server, api_json_bytes(&call->api.texts), &call->json_bytes, err))
        return -1;
    return server_check_model(call->server, call->api.model, err) ? -1 : read_allowed(call, err);
}

/*
 * The grammar of its answers. To compile one takes long: where it is not there the worker is to
 * call again.
 */
static int find_grammar(Call *call, ApiError *err)
{
    Structures *s = call->server->structures;
    if (!api_has_grammar(&call->api)) return TASK_DONE;
    int is_first = !call->ask.api;
    if (is_first) call->ask = structures_ask(&call->api, call->starts_in_think);
    call->grammar = structures_find(s, &call->ask);
    if (call->grammar) return TASK_DONE;
    if (is_first) return TASK_LONG;
    double from = clock_ms();
    call->grammar = structures_compile(s, &call->ask, err);
    call->grammar_s = (clock_ms() - from) / 1e3;
    return call->grammar ? TASK_DONE : -1;
}

/* Log-probabilities of prompt tokens: about 1 KB of memory each while the reply is written. */
static int check_scores(const Call *call, ApiError *err)
{
    const ApiRequest *api = &call->api;
    int k = api->echo ? api->n_logprobs : -1;
    if (api->n_prompt_logprobs > k) k = api->n_prompt_logprobs;
    int64_t n = 0;
    for (int i = 0; i < call->n_prompts; i++)
        n += call->prompt[i].n;
    n *= (int64_t)api->best_of * (k + 1); /* 0 where none are asked for */
    if (n <= MAX_PROMPT_PROBS) return 0;
    return api_error(err, ERR_LIMIT, api->n_prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs",
                     "%lld log-probabilities of prompt tokens are more than %d: ask for fewer "
                     "alternatives, answers or prompts",
                     (long long)n, MAX_PROMPT_PROBS);
}

/* The same for tokens of the answers: about 80 bytes each in the reply, and a microsecond. */
static int check_answer_scores(const Call *call, ApiError *err)
{
    int64_t n_tokens = 0;
    if (!asks_length(call)) return 0; /* longest_answer sees to it */
    for (int i = 0; i < call->n_prompts; i++)
        n_tokens += longest_answer(call, call->prompt[i].n);
    int64_t n = n_tokens * probs_a_token(call) / call->n_prompts;
    if (n <= most_probs(call)) return 0;
    return api_error(err, ERR_LIMIT, "logprobs",
                     "%lld log-probabilities of answers are more than %d: ask for fewer "
                     "alternatives, answers or tokens%s",
                     (long long)n, most_probs(call),
                     call->format->stream_probs ? "" : ", or for a stream");
}

static int end_reading(Call *call, ApiError *err)
{
    for (int i = 0; i < call->n_prompts; i++)
        if (check_length(call, call->prompt[i].n, err)) return -1;
    if (check_scores(call, err) || check_answer_scores(call, err)) return -1;
    if (call->format->prepare && call->format->prepare(call, err)) return -1;
    return open_answers(call, err);
}

static int run(void *owner)
{
    Call *call = owner;
    ApiError *err = &call->error;
    size_t budget = SLICE_BYTES;
    if (atomic_load(&call->is_gone)) return TASK_DONE;
    int rc = call->api.body ? 0 : read_request(call, err);
    if (!rc && !call->is_encoded) rc = tokenize(call, &budget, err);
    if (!rc) call->is_encoded = 1;
    if (!rc && !call->is_predicted) rc = tokenize_predicted(call, &budget);
    if (!rc) call->is_predicted = 1;
    if (!rc) rc = find_grammar(call, err);
    if (!rc) rc = end_reading(call, err);
    call->refused = rc < 0;
    if (call->refused && call->format->names) api_rename(err, call->format->names(call->asked));
    return rc < 0 ? TASK_DONE : rc;
}

/* ---- beginning: on the server's thread ---- */

/* Whether answers have come back in its prompts. */
static void look_back(const Call *call)
{
    const Server *s = call->server;
    if (!s->returned || !call->api.cache_prompt) return;
    for (int i = 0; i < call->n_prompts; i++)
        metrics_returned(s->metrics, returned_look(s->returned, call->api.cache_salt,
                                                   call->prompt[i].id, call->prompt[i].n));
}

static void start(Call *call)
{
    Server *s = call->server;
    call->n_live = call->n_open = call->n_answers;
    for (int i = 0; i < call->n_answers; i++)
        metrics_start(s->metrics, &call->answers[i], call->started_ms);
    metrics_request(s->metrics, call->api.n);
    look_back(call);
    exchange_watch_flow(call->stream.ex, call_flow);
    if (call->api.stream) stream_keep_alive(&call->stream, s->pulse);
    for (int i = 0; i < call->n_answers; i++)
        dispatch_add(s->dispatch, &call->answers[i]);
    if (call->api.stream && call->format->open) {
        call->format->open(call);
        stream_flush(&call->stream);
    }
    atomic_store(&s->n_live, dispatch_n_live(s->dispatch));
}

static void set_id(Call *call)
{
    const char *id = exchange_id(call->stream.ex);
    snprintf(call->id, sizeof call->id, "%s%s", call->format->id_prefix, id);
}

static void done(void *owner)
{
    Call *call = owner;
    Exchange *ex = call->stream.ex;
    call->is_lent = 0;
    if (call->grammar_s > 0) metrics_grammar(call->server->metrics, call->grammar_s);
    mem_free(call->body);
    call->body = NULL;
    if (ex) exchange_forget_body(ex);
    if (ex) exchange_offer_id(ex, call->api.id);
    if (ex) set_id(call);
    if (ex && !call->refused && !call->server->lost) {
        start(call);
        return;
    }
    call->stream.ex = NULL;
    if (ex && call->refused) server_refuse(ex, &call->error);
    if (ex && !call->refused) exchange_error(ex, 500, NULL, NULL, call->server->failure.msg);
    if (!call->is_dirty) call_free(call);
}

static Call *new_call(Server *s, Exchange *ex, const ApiFormat *format)
{
    Call *call = mem_alloc(1, sizeof *call);
    *call = (Call){.server = s,
                   .format = format,
                   .stream = {.ex = ex},
                   .created = time(NULL),
                   .started_ms = clock_ms(),
                   .is_lent = 1};
    set_id(call);
    call->next = s->calls;
    if (s->calls) s->calls->prev = call;
    s->calls = call;
    return call;
}

void call_begin(Server *s, Exchange *ex, const ApiFormat *format)
{
    if (server_is_ending(s)) {
        exchange_error(ex, 503, s->lost ? NULL : "draining", NULL, "the server is shutting down");
        return;
    }
    if (!dispatch_has_room(s->dispatch)) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", dispatch_retry_after(s->dispatch));
        exchange_add_header(ex, "Retry-After", seconds);
        exchange_error(ex, 429, "queue_full", NULL, "too many requests are waiting; try again");
        return;
    }
    Call *call = new_call(s, ex, format);
    exchange_watch(ex, call_gone, call);
    Task task = {run, done, call};
    if (server_run_task(s, ex, &task, &call->body, &call->text, &call->text_len)) {
        call->stream.ex = NULL;
        call_free(call);
    }
}
