/* answer.c: see answer.h. */
#include "server/answer.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* ---- log-probabilities ---- */

static void probs_add(TokenProbs *p, const Event *e, int offset)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 16;
        size_t cap = (size_t)p->cap, tops = cap * (size_t)p->k;
        p->token = mem_realloc(p->token, cap, sizeof *p->token);
        p->logprob = mem_realloc(p->logprob, cap, sizeof *p->logprob);
        p->offset = mem_realloc(p->offset, cap, sizeof *p->offset);
        p->top_id = mem_realloc(p->top_id, tops, sizeof *p->top_id);
        p->top_logprob = mem_realloc(p->top_logprob, tops, sizeof *p->top_logprob);
    }
    p->token[p->n] = e->token;
    p->logprob[p->n] = e->logprob;
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
    mem_free(p->offset);
    mem_free(p->top_id);
    mem_free(p->top_logprob);
}

/* ---- opening ---- */

static WatchVerdict gate_token(void *self, int32_t token)
{
    StopGate *g = self;
    if (g->n_unwatched) {
        g->n_unwatched--;
        return WATCH_GO;
    }
    Watcher w = stop_matcher_watcher(g->matcher);
    return w.token(w.self, token);
}

static int open_stops(Answer *a, Error *err)
{
    const ApiRequest *api = a->api;
    if (!api->n_stop) return 0;
    a->gate.matcher = stop_matcher_open(a->model.tok, api->stop, api->n_stop, err);
    if (!a->gate.matcher) return -1;
    a->gate.n_unwatched = a->n_uncut = api->min_tokens;
    a->cutter = stop_cutter_open(api->stop, api->n_stop);
    a->request.watcher = (Watcher){&a->gate, gate_token};
    return 0;
}

int answer_open(Answer *a, const AnswerModel *model, const ApiRequest *api, const int32_t *prompt,
                int n_prompt, int choice, Error *err)
{
    *a = (Answer){.model = *model, .api = api, .stop_id = -1};
    a->request = (EngineRequest){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = api->max_tokens,
        .min_tokens = api->min_tokens,
        .params = api->params,
        .n_logprobs = api->n_logprobs,
        .prompt_logprobs = api->echo && api->n_logprobs >= 0,
        .ignore_eos = api->ignore_eos,
        .draft_max = api->draft_max,
        .stop_ids = api->stop_id,
        .n_stop_ids = api->n_stop_ids,
        .bias_id = api->bias_id,
        .bias = api->bias,
        .n_bias = api->n_bias,
    };
    a->request.params.choice = (uint32_t)choice;
    a->probs.k = api->n_logprobs > 0 ? api->n_logprobs : 0;
    detokenizer_init(&a->detok, model->tok, !api->skip_special);
    detokenizer_init(&a->prompt_detok, model->tok, 1);
    return open_stops(a, err);
}

void answer_close(Answer *a)
{
    stop_matcher_close(a->gate.matcher);
    stop_cutter_close(a->cutter);
    strbuf_free(&a->text);
    strbuf_free(&a->piece);
    strbuf_free(&a->raw);
    probs_free(&a->probs);
}

/* ---- text ---- */

static int count_chars(const char *text, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++)
        n += (text[i] & 0xC0) != 0x80;
    return n;
}

void answer_echo(Answer *a, const char *text, size_t len)
{
    strbuf_add(&a->text, text, len);
    a->n_chars = count_chars(text, len);
    a->prompt_detok.n_held = 0;
}

/* Which stop string the cutter met: it begins where the text was cut, or ends where it ends. */
static void find_stop_string(Answer *a)
{
    size_t best = 0;
    for (int i = 0; i < a->api->n_stop; i++) {
        const char *s = a->api->stop[i];
        size_t n = strlen(s), out = a->n_cut_out;
        if (a->api->include_stop) {
            if (n > out || memcmp(a->raw.data + out - n, s, n) != 0 || n < best) continue;
        } else {
            if (out + n > a->raw.len || memcmp(a->raw.data + out, s, n) != 0) continue;
            if (best && n > best) continue;
        }
        best = n;
        a->stop_string = s;
    }
}

/* Lets out what the stop strings allow of text. */
static void cut(Answer *a, const char *text, size_t len)
{
    size_t before = a->text.len;
    if (a->stop_string) return;
    strbuf_add(&a->raw, text, len);
    int stopped = stop_cutter_push(a->cutter, text, len, a->api->include_stop, &a->text);
    a->n_cut_out += a->text.len - before;
    if (stopped) find_stop_string(a);
}

static void let_out(Answer *a)
{
    const char *text = strbuf_str(&a->piece);
    size_t len = a->piece.len;
    a->n_chars += count_chars(text, len);
    if (a->cutter && !a->n_uncut)
        cut(a, text, len);
    else
        strbuf_add(&a->text, text, len);
    strbuf_clear(&a->piece);
}

int answer_is_end(const Answer *a, int32_t token)
{
    for (int i = 0; i < a->api->n_stop_ids; i++)
        if (a->api->stop_id[i] == token) return 1;
    for (int i = 0; !a->api->ignore_eos && i < a->model.n_eos; i++)
        if (a->model.eos[i] == token) return 1;
    return 0;
}

static void add_token(Answer *a, const Event *e)
{
    a->n_tokens++;
    if (a->api->n_logprobs >= 0) probs_add(&a->probs, e, a->n_chars);
    if (!answer_is_end(a, e->token)) {
        detokenizer_push(&a->detok, e->token, &a->piece);
        let_out(a);
    }
    if (a->n_uncut) a->n_uncut--;
}

/* A prompt token's offset: characters that the tokens before it complete. */
static void add_prompt_token(Answer *a, const Event *e)
{
    if (!e->pos) a->n_chars = 0;
    probs_add(&a->probs, e, a->n_chars);
    detokenizer_push(&a->prompt_detok, e->token, &a->piece);
    a->n_chars += count_chars(strbuf_str(&a->piece), a->piece.len);
    strbuf_clear(&a->piece);
}

static void finish(Answer *a, const Event *e)
{
    a->state = ANSWER_DONE;
    a->finish = e->finish;
    a->stats = e->stats;
    if (e->finish == FINISH_STOP)
        for (int i = 0; i < a->api->n_stop_ids; i++)
            if (a->api->stop_id[i] == e->stop_token) a->stop_id = e->stop_token;
    detokenizer_finish(&a->detok, &a->piece);
    let_out(a);
    if (a->cutter && !a->stop_string) stop_cutter_finish(a->cutter, &a->text);
}

void answer_event(Answer *a, const Event *e)
{
    if (e->type == EVENT_PROMPT)
        add_prompt_token(a, e);
    else if (e->type == EVENT_TOKEN)
        add_token(a, e);
    else
        finish(a, e);
}

const char *answer_finish_reason(const Answer *a)
{
    if (a->state != ANSWER_DONE || a->refused.code) return NULL;
    if (a->finish == FINISH_STOP) return "stop";
    return a->finish == FINISH_LENGTH ? "length" : NULL;
}
