/* reply.c: what replies share, whatever their format; see call.h. */
#include "server/call.h"

#include <limits.h>
#include <math.h>

#include "base/strbuf.h"
#include "server/json_out.h"
#include "text/utf8.h"

const char *call_model(const Call *call)
{
    return call->api.model ? call->api.model : call->server->service->model_name;
}

int call_n_prompt(const Call *call)
{
    int n = 0;
    for (int i = 0; i < call->n_prompts; i++)
        n += call->prompt[i].n;
    return n;
}

/* Of the answers to a prompt that have begun; what the others find is not known yet. */
static int least_cached(const Answer *answers, int n)
{
    int least = INT_MAX;
    for (int i = 0; i < n; i++) {
        const RequestStats *st = &answers[i].stats;
        if (st->n_prompt && st->n_cached < least) least = st->n_cached;
    }
    return least == INT_MAX ? 0 : least;
}

int call_n_cached(const Call *call)
{
    int n_cached = 0, n_each = call->api.best_of;
    for (int i = 0; i < call->n_answers; i += n_each)
        n_cached += least_cached(call->answers + i, n_each);
    return n_cached;
}

int call_n_generated(const Call *call)
{
    int n = 0;
    for (int i = 0; i < call->n_answers; i++)
        n += call->answers[i].n_tokens;
    return n;
}

void call_usage(const Call *call, StrBuf *out)
{
    int n_prompt = call_n_prompt(call), n = call_n_generated(call), n_reasoning = 0;
    json_write(out, "{s:i, s:i, s:i, s:{s:i}", "prompt_tokens", n_prompt, "completion_tokens", n,
               "total_tokens", n_prompt + n, "prompt_tokens_details", "cached_tokens",
               call_n_cached(call));
    for (int i = 0; i < call->n_answers; i++)
        n_reasoning += reply_n_reasoning_tokens(call->answers[i].reply);
    if (call->format->kind == API_CHAT)
        json_write(out, ",s:{s:i}", "completion_tokens_details", "reasoning_tokens", n_reasoning);
    strbuf_puts(out, "}");
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0.0;
}

/*
 * llama.cpp's object, whose prompt_n are the tokens that were computed. Answers of one call run
 * side by side, so times are those of the slowest and counts are sums.
 */
void call_timings(const Call *call, StrBuf *out)
{
    double prompt_ms = 0, decode_ms = 0;
    int n_cached = call_n_cached(call), n_prompt = call_n_prompt(call) - n_cached;
    int n = call_n_generated(call), n_drafted = 0, n_accepted = 0;
    for (int i = 0; i < call->n_answers; i++) {
        const RequestStats *st = &call->answers[i].stats;
        if (st->prompt_ms > prompt_ms) prompt_ms = st->prompt_ms;
        if (st->decode_ms > decode_ms) decode_ms = st->decode_ms;
        n_drafted += st->n_drafted;
        n_accepted += st->n_accepted;
    }
    json_write(out, "{s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:f", "cache_n", n_cached, "prompt_n",
               n_prompt, "prompt_ms", prompt_ms, "prompt_per_token_ms", ratio(prompt_ms, n_prompt),
               "prompt_per_second", ratio(n_prompt * 1e3, prompt_ms), "predicted_n", n,
               "predicted_ms", decode_ms, "predicted_per_token_ms", ratio(decode_ms, n),
               "predicted_per_second", ratio(n * 1e3, decode_ms));
    if (n_drafted) /* as llama.cpp: only where drafts ran */
        json_write(out, ",s:i, s:i", "draft_n", n_drafted, "draft_n_accepted", n_accepted);
    strbuf_puts(out, "}");
}

/*
 * vLLM's object, for one answer whose steps had drafts: steps by the drafts they accepted, from
 * none to as many as a step may accept (num_spec_tokens), and what follows from it. Steps without
 * drafts are not in it. Else null.
 */
static void speculation(const Call *call, StrBuf *out)
{
    const RequestStats *st = &call->answers[0].stats;
    int n = st->n_steps_drafted, most = call->server->draft_depth;
    if (call->n_answers != 1 || !n) {
        strbuf_puts(out, "null");
        return;
    }
    json_write(out, "{s:f, s:f, s:[", "mean_acceptance_length", 1 + ratio(st->n_accepted, n),
               "draft_acceptance_rate", ratio(st->n_accepted, st->n_drafted),
               "acceptance_histogram");
    for (int i = 0; i <= most; i++)
        json_write(out, i ? ",i" : "i",
                   st->accepted_hist[i] - (i ? 0 : st->n_steps - st->n_steps_drafted));
    json_write(out, "], s:i, s:i, s:i, s:i}", "num_spec_steps", n, "num_accepted_draft_tokens",
               st->n_accepted, "num_draft_tokens", st->n_drafted, "num_spec_tokens", most);
}

/*
 * vLLM's object; as with timings, of several answers the slowest counts. Its first token is counted
 * from where the wait ends, its rate is of all tokens in all the time behind that; the mean is of
 * tokens, however many a step gave.
 */
void call_metrics(const Call *call, StrBuf *out)
{
    double wait_ms = 0, prompt_ms = 0, decode_ms = 0, ran_ms = 0, itl_ms = 0;
    for (int i = 0; i < call->n_answers; i++) {
        const RequestStats *st = &call->answers[i].stats;
        wait_ms = fmax(wait_ms, st->wait_ms);
        prompt_ms = fmax(prompt_ms, st->prompt_ms);
        decode_ms = fmax(decode_ms, st->decode_ms);
        ran_ms = fmax(ran_ms, st->prompt_ms + st->decode_ms);
        itl_ms = fmax(itl_ms, ratio(st->decode_ms, call->answers[i].n_tokens - 1));
    }
    json_write(out, "{s:f, s:f, s:f, s:f, s:f, s:", "time_to_first_token_ms", prompt_ms,
               "queue_time_ms", wait_ms, "generation_time_ms", decode_ms, "mean_itl_ms", itl_ms,
               "tokens_per_second", ratio(call_n_generated(call) * 1e3, ran_ms),
               "speculative_decoding");
    speculation(call, out);
    strbuf_puts(out, "}");
}

static void add_id_list(const char *key, const TokenList *ids, int from, StrBuf *out)
{
    json_write(out, ",s:[", key);
    for (int i = from; i < ids->n; i++)
        json_write(out, i > from ? ",i" : "i", (int)ids->id[i]);
    strbuf_puts(out, "]");
}

void call_add_ids(const Call *call, const Answer *a, int from_id, StrBuf *out)
{
    if (call->api.return_token_ids) add_id_list("token_ids", &a->tokens, from_id, out);
    if (call->api.return_tokens) add_id_list("tokens", &a->tokens, from_id, out);
}

void call_add_prompt_ids(const Call *call, const Answer *a, StrBuf *out)
{
    const TokenList *prompt = &call->prompt[a->index / call->api.best_of];
    if (call->api.return_token_ids) add_id_list("prompt_token_ids", prompt, 0, out);
}

static json_t *node_text(const void *call, int32_t token)
{
    return call_token_text(call, token);
}

void call_add_trees(const Call *call, const Answer *a, StrBuf *out)
{
    if (!call->api.return_trees) return;
    json_write(out, ",s:", "trees");
    tree_list_write(&a->trees, node_text, call, out);
}

/* Text (or token_id:N), log-probability and bytes of a token, up to the brace that closes it. */
static void write_token(const Call *call, int32_t token, float logprob, StrBuf *out)
{
    size_t len;
    const char *text = tokenizer_bytes(call->server->service->tok, token, &len);
    json_write(out, "{s:", "token");
    if (call->api.tokens_as_ids)
        json_write(out, "o", call_token_text(call, token));
    else
        json_write(out, "t", text, len);
    json_write(out, ",s:f, s:[", "logprob", call_logprob(logprob), "bytes");
    for (size_t i = 0; i < len; i++)
        json_write(out, i ? ",i" : "i", (unsigned char)text[i]);
    strbuf_puts(out, "]");
}

void call_write_logprob(const Call *call, const TokenProbs *p, int i, StrBuf *out)
{
    write_token(call, p->token[i], p->logprob[i], out);
    json_write(out, ",s:[", "top_logprobs");
    for (int j = 0; j < p->k; j++) {
        size_t at = (size_t)i * (size_t)p->k + (size_t)j;
        if (p->top_id[at] < 0) break;
        if (j) strbuf_puts(out, ",");
        write_token(call, p->top_id[at], p->top_logprob[at], out);
        strbuf_puts(out, "}");
    }
    strbuf_puts(out, "]}");
}

/* before: the sign in front of it. */
static void write_ranked(const Call *call, const char *before, int32_t token, float logprob,
                         int rank, StrBuf *out)
{
    size_t len;
    const char *text = tokenizer_bytes(call->server->service->tok, token, &len);
    strbuf_printf(out, "%s\"%d\":", before, token);
    json_write(out, "{s:f, s:i, s:t}", "logprob", call_logprob(logprob), "rank", rank + 1,
               "decoded_token", text, len);
}

/* The k likeliest tokens and always the one that came; null where nothing predicts it. */
static void write_prompt_entry(const Call *call, const TokenProbs *p, int i, StrBuf *out)
{
    const char *before = "{";
    int is_among = 0;
    if (isnan(p->logprob[i])) {
        strbuf_puts(out, "null");
        return;
    }
    for (int j = 0; j < p->k; j++) {
        size_t at = (size_t)i * (size_t)p->k + (size_t)j;
        if (p->top_id[at] < 0) continue;
        int is_it = p->top_id[at] == p->token[i];
        write_ranked(call, before, p->top_id[at], p->top_logprob[at], is_it ? p->rank[i] : j, out);
        is_among |= is_it;
        before = ",";
    }
    if (!is_among) write_ranked(call, before, p->token[i], p->logprob[i], p->rank[i], out);
    strbuf_puts(out, "}");
}

void call_add_prompt_logprobs(const Call *call, const Answer *a, StrBuf *out)
{
    if (call->api.n_prompt_logprobs < 0) return;
    json_write(out, ",s:[", "prompt_logprobs");
    for (int i = 0; i < a->prompt_probs.n; i++) {
        if (i) strbuf_puts(out, ",");
        write_prompt_entry(call, &a->prompt_probs, i, out);
    }
    strbuf_puts(out, "]");
}

json_t *call_stop_reason(const Answer *a)
{
    if (a->stop_string) return json_text(a->stop_string);
    return a->stop_id >= 0 ? json_integer(a->stop_id) : json_null();
}

double call_logprob(float logprob)
{
    return logprob > -9999 ? (double)logprob : -9999.0; /* NaN fails the test too */
}

json_t *call_token_text(const Call *call, int32_t token)
{
    size_t len;
    const char *bytes = tokenizer_bytes(call->server->service->tok, token, &len);
    if (call->api.tokens_as_ids) return json_sprintf("token_id:%d", token);
    if (utf8_check(bytes, len) == len) return json_stringn(bytes, len);
    StrBuf text = {0};
    strbuf_puts(&text, "bytes:");
    for (size_t i = 0; i < len; i++)
        strbuf_printf(&text, "\\x%02x", (unsigned char)bytes[i]);
    json_t *s = json_stringn(text.data, text.len);
    strbuf_free(&text);
    return s;
}
