/* request.c: whether a request can be served at all. */
#include <math.h>

#include "engine/state.h"

static const float MAX_BIAS = 1e4f; /* of logit_bias: no sum of it and a logit may overflow */

static int check_params(const SampleParams *p, Error *err)
{
    struct {
        const char *name;
        float value, lo, hi;
    } range[] = {{"temperature", p->temperature, 0, 1e4f},
                 {"top_p", p->top_p, 0, 1},
                 {"min_p", p->min_p, 0, 1},
                 {"presence_penalty", p->presence, -1e4f, 1e4f},
                 {"frequency_penalty", p->frequency, -1e4f, 1e4f},
                 {"repetition_penalty", p->repetition, 1e-4f, 1e4f}};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (!(range[i].value >= range[i].lo && range[i].value <= range[i].hi))
            return error_set(err, ERR_INPUT, "%s is %g, must be %g to %g", range[i].name,
                             (double)range[i].value, (double)range[i].lo, (double)range[i].hi);
    if (p->top_k < 0) return error_set(err, ERR_INPUT, "top_k is %d, must be 0 or more", p->top_k);
    return 0;
}

static int check_ids(const char *what, const int32_t *id, int n, int n_vocab, Error *err)
{
    for (int i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= n_vocab)
            return error_set(err, ERR_INPUT, "%s %d is not in the vocabulary of %d", what, id[i],
                             n_vocab);
    return 0;
}

/* n entries of a list: within [0, most], and there. */
static int check_count(const char *what, const void *list, int n, int most, Error *err)
{
    if (n > most) return error_set(err, ERR_LIMIT, "%d %s, at most %d are allowed", n, what, most);
    if (n < 0 || (n && !list)) return error_set(err, ERR_INPUT, "%s are not a list", what);
    return 0;
}

static int check_lengths(const Engine *e, const EngineRequest *r, Error *err)
{
    int ctx = e->options.ctx_size;
    if (r->n_prompt < 1) return error_set(err, ERR_INPUT, "prompt is empty");
    if (r->max_tokens < -1 || r->min_tokens < 0)
        return error_set(err, ERR_INPUT, "max_tokens and min_tokens must not be negative");
    if (r->n_prompt > ctx || (r->max_tokens && r->n_prompt == ctx))
        return error_set(err, ERR_LIMIT, "prompt has %d tokens, the context holds %d", r->n_prompt,
                         ctx);
    if (r->max_tokens > ctx - r->n_prompt)
        return error_set(err, ERR_LIMIT,
                         "prompt has %d tokens and max_tokens is %d, the context holds %d",
                         r->n_prompt, r->max_tokens, ctx);
    return 0;
}

int request_check(const Engine *e, const EngineRequest *r, Error *err)
{
    int vocab = e->model->config.n_vocab;
    if (check_lengths(e, r, err)) return -1;
    if (r->n_logprobs < -1 || (r->prompt_logprobs && r->n_logprobs < 0))
        return error_set(err, ERR_INPUT, "n_logprobs is %d", r->n_logprobs);
    if (r->n_logprobs > MAX_LOGPROBS)
        return error_set(err, ERR_LIMIT, "%d logprobs asked for, at most %d are given",
                         r->n_logprobs, MAX_LOGPROBS);
    if (check_count("prompt tokens", r->prompt, r->n_prompt, e->options.ctx_size, err) ||
        check_count("stop token ids", r->stop_ids, r->n_stop_ids, MAX_STOP_IDS, err) ||
        check_count("forced tokens", r->forced, r->n_forced, MAX_FORCED, err) ||
        check_count("predicted tokens", r->predicted, r->n_predicted, MAX_PREDICTED, err) ||
        check_count("logit_bias ids", r->bias_id, r->n_bias, MAX_LOGIT_BIAS, err) ||
        check_count("logit_bias values", r->bias, r->n_bias, MAX_LOGIT_BIAS, err))
        return -1;
    for (int i = 0; i < r->n_bias; i++)
        if (!(fabsf(r->bias[i]) <= MAX_BIAS))
            return error_set(err, ERR_INPUT, "logit_bias of %d is %g, must be -%g to %g",
                             r->bias_id[i], (double)r->bias[i], (double)MAX_BIAS, (double)MAX_BIAS);
    if (check_ids("prompt token", r->prompt, r->n_prompt, vocab, err) ||
        check_ids("stop token id", r->stop_ids, r->n_stop_ids, vocab, err) ||
        check_ids("forced token", r->forced, r->n_forced, vocab, err) ||
        check_ids("predicted token", r->predicted, r->n_predicted, vocab, err) ||
        check_ids("logit_bias id", r->bias_id, r->n_bias, vocab, err))
        return -1;
    return check_params(&r->params, err);
}
