/* answer.c: see answer.h. */
#include "server/answer.h"

#include <math.h>

#include "base/mem.h"
#include "text/utf8.h"

/* ---- log-probabilities ---- */

static void probs_add(TokenProbs *p, const Event *e, int offset)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 16;
        size_t cap = (size_t)p->cap, tops = cap * (size_t)p->k;
        p->token = mem_realloc(p->token, cap, sizeof *p->token);
        p->logprob = mem_realloc(p->logprob, cap, sizeof *p->logprob);
        p->rank = mem_realloc(p->rank, cap, sizeof *p->rank);
        p->offset = mem_realloc(p->offset, cap, sizeof *p->offset);
        p->top_id = mem_realloc(p->top_id, tops, sizeof *p->top_id);
        p->top_logprob = mem_realloc(p->top_logprob, tops, sizeof *p->top_logprob);
        p->shown = mem_realloc(p->shown, cap, sizeof *p->shown);
    }
    p->token[p->n] = e->token;
    p->logprob[p->n] = e->logprob;
    p->rank[p->n] = e->rank;
    p->offset[p->n] = offset;
    for (int i = 0; i < p->k; i++) {
        size_t at = (size_t)p->n * (size_t)p->k + (size_t)i;
        p->top_id[at] = i < e->n_top ? e->top_id[i] : -1;
        p->top_logprob[at] = i < e->n_top ? e->top_logprob[i] : 0;
    }
    p->n++;
}

static void probs_free(TokenProbs *p)
{
    mem_free(p->token);
    mem_free(p->logprob);
    mem_free(p->rank);
    mem_free(p->offset);
    mem_free(p->top_id);
    mem_free(p->top_logprob);
    mem_free(p->shown);
}

/* ---- opening ---- */

static WatchVerdict gate_token(void *self, int32_t token)
{
    AnswerGate *g = self;
    WatchVerdict verdict = g->inner.token(g->inner.self, token);
    if (verdict == WATCH_STOP || g->reasoning_left < 0) return verdict;
    if (!reply_watch_in_think(g->watch)) {
        g->reasoning_left = -1; /* it ended by itself */
        return verdict;
    }
    if (--g->reasoning_left > 0) return verdict;
    g->reasoning_left = -1;
    return WATCH_FORCE;
}

/* Only an answer that can end by its text, or whose reasoning is bounded, is watched. */
static int open_gate(Answer *a, const ReplyOptions *options, Error *err)
{
    const ApiRequest *api = a->api;
    int bounded = api->thinking_budget >= 0 && a->model.starts_in_think;
    if (!options->n_stop && !options->single_call && !bounded) return 0;
    a->gate.watch = reply_watch_open(options, err);
    if (!a->gate.watch) return -1;
    a->gate.inner = reply_watch_watcher(a->gate.watch);
    a->gate.reasoning_left = bounded ? api->thinking_budget : -1;
    a->request.watcher = (Watcher){&a->gate, gate_token};
    a->request.forced = a->model.forced;
    a->request.n_forced = a->model.n_forced;
    return 0;
}

static int open_text(Answer *a, Error *err)
{
    const ApiRequest *api = a->api;
    ReplyOptions options = {
        .scan = {.tok = a->model.tok,
                 .tools = api->parse_calls ? a->model.tools : NULL,
                 .keep_special = !api->skip_special,
                 .starts_in_think = a->model.starts_in_think,
                 .parse_reasoning =
                     api->kind == API_CHAT && api->reasoning != REASONING_IN_CONTENT},
        .single_call = api->parse_calls && !api->parallel_calls,
        .stop = api->stop,
        .n_stop = api->n_stop,
        .include_stop = api->include_stop,
        .n_unwatched = api->min_tokens,
    };
    if (open_gate(a, &options, err)) return -1;
    a->reply = reply_open(&options);
    return 0;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

int answer_open(Answer *a, const AnswerModel *model, const ApiRequest *api, const int32_t *prompt,
                int n_prompt, int choice, Error *err)
{
    int chooses = api->best_of > api->n; /* by log-probability */
    *a = (Answer){.model = *model, .api = api, .stop_id = -1};
    a->request = (EngineRequest){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = api->max_tokens,
        .min_tokens = api->min_tokens,
        .params = api->params,
        .n_logprobs = max_int(max_int(api->n_logprobs, api->n_prompt_logprobs), chooses ? 0 : -1),
        .prompt_logprobs = (api->echo && api->n_logprobs >= 0) || api->n_prompt_logprobs >= 0,
        .trees = api->return_trees,
        .progress = api->return_progress && api->stream,
        .ignore_eos = api->ignore_eos,
        .draft_max = api->draft_max,
        .stop_ids = api->stop_id,
        .n_stop_ids = api->n_stop_ids,
        .bias_id = api->bias_id,
        .bias = api->bias,
        .n_bias = api->n_bias,
        .no_cache = !api->cache_prompt,
        .salt = api->cache_salt,
    };
    a->request.params.choice = (uint32_t)choice;
    a->probs.k = max_int(api->n_logprobs, 0);
    a->prompt_probs.k = max_int(api->n_prompt_logprobs, 0);
    detokenizer_init(&a->detok, model->tok, !api->skip_special);
    detokenizer_init(&a->prompt_detok, model->tok, 1);
    return open_text(a, err);
}

void answer_close(Answer *a)
{
    reply_watch_close(a->gate.watch);
    reply_close(a->reply);
    strbuf_free(&a->echo);
    strbuf_free(&a->scratch);
    token_list_free(&a->tokens);
    tree_list_free(&a->trees);
    probs_free(&a->probs);
    probs_free(&a->prompt_probs);
}

/* ---- text ---- */

static int count_chars(const char *text, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++)
        n += !utf8_is_tail((unsigned char)text[i]);
    return n;
}

void answer_echo(Answer *a, const char *text, size_t len)
{
    strbuf_add(&a->echo, text, len);
    a->n_chars = count_chars(text, len);
    a->prompt_detok.n_held = 0;
}

int answer_has_text(const Answer *a)
{
    return a->echo.len || reply_n_pieces(a->reply);
}

void answer_text(const Answer *a, ReplyKind kind, StrBuf *out)
{
    if (kind == REPLY_CONTENT) strbuf_add(out, strbuf_str(&a->echo), a->echo.len);
    for (int i = 0; i < reply_n_pieces(a->reply); i++) {
        ReplyPiece p = reply_piece(a->reply, i);
        if (p.kind == kind) strbuf_add(out, p.text, p.len);
    }
}

void answer_take(Answer *a)
{
    strbuf_clear(&a->echo);
    reply_clear(a->reply);
}

void answer_take_probs(Answer *a)
{
    a->probs.n = a->probs.n_shown = 0;
}

int answer_is_end(const Answer *a, int32_t token)
{
    for (int i = 0; i < a->api->n_stop_ids; i++)
        if (a->api->stop_id[i] == token) return 1;
    for (int i = 0; !a->api->ignore_eos && i < a->model.n_eos; i++)
        if (a->model.eos[i] == token) return 1;
    return 0;
}

/* The characters that a token completes come after its offset. */
static void add_offset(Answer *a, Detokenizer *d, int32_t token)
{
    detokenizer_push(d, token, &a->scratch);
    a->n_chars += count_chars(strbuf_str(&a->scratch), a->scratch.len);
    strbuf_clear(&a->scratch);
}

/* Tokens become what is let out next: content, or what is none, as all that markup is made of. */
static void note_shown(Answer *a)
{
    TokenProbs *p = &a->probs;
    size_t content = reply_content_len(a->reply);
    int others = reply_n_others(a->reply) + reply_n_reasoning_tokens(a->reply);
    if (content == a->content_len && others == a->n_others) return;
    for (; p->n_shown < p->n; p->n_shown++)
        p->shown[p->n_shown] = content > a->content_len ? content : 0;
    a->content_len = content;
    a->n_others = others;
}

static void add_token(Answer *a, const Event *e)
{
    int is_end = answer_is_end(a, e->token);
    a->n_tokens++;
    if (e->n_sampled) a->stats = e->stats;
    token_list_add(&a->tokens, e->token);
    if (!isnan(e->logprob)) a->sum_logprob += (double)e->logprob;
    if (a->api->n_logprobs >= 0) {
        probs_add(&a->probs, e, a->n_chars);
        if (!is_end) add_offset(a, &a->detok, e->token);
    }
    if (!is_end || a->api->include_stop) reply_token(a->reply, e->token);
    note_shown(a);
}

static void add_prompt_token(Answer *a, const Event *e)
{
    if (a->api->n_prompt_logprobs >= 0) probs_add(&a->prompt_probs, e, 0);
    if (!a->api->echo || a->api->n_logprobs < 0) return;
    if (!e->pos) a->n_chars = 0;
    probs_add(&a->probs, e, a->n_chars);
    add_offset(a, &a->prompt_detok, e->token);
}

static void finish(Answer *a, const Event *e)
{
    a->state = ANSWER_DONE;
    a->finish = e->finish;
    a->stats = e->stats;
    if (e->finish == FINISH_STOP)
        for (int i = 0; i < a->api->n_stop_ids; i++)
            if (a->api->stop_id[i] == e->stop_token) a->stop_id = e->stop_token;
    reply_end(a->reply, e->finish == FINISH_STOP);
    note_shown(a);
    int stop = reply_stop_string(a->reply);
    if (stop >= 0) a->stop_string = a->api->stop[stop];
}

static void note_progress(Answer *a, const Event *e)
{
    a->n_computed = e->pos;
    a->stats = e->stats;
}

void answer_event(Answer *a, const Event *e)
{
    metrics_event(a, e);
    if (e->type == EVENT_PROMPT)
        add_prompt_token(a, e);
    else if (e->type == EVENT_PROGRESS)
        note_progress(a, e);
    else if (e->type == EVENT_TREE)
        tree_list_add(&a->trees, &e->tree);
    else if (e->type == EVENT_TOKEN)
        add_token(a, e);
    else
        finish(a, e);
}

const char *answer_finish_reason(const Answer *a)
{
    if (a->state != ANSWER_DONE || a->refused.code) return NULL;
    if (a->finish == FINISH_STOP && reply_n_calls(a->reply) && !a->api->names_tool)
        return a->api->old_calls ? "function_call" : "tool_calls";
    if (a->finish == FINISH_STOP) return "stop";
    return a->finish == FINISH_LENGTH ? "length" : NULL;
}
