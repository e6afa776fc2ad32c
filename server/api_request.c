/* api_request.c: see api_request.h. Messages and tools are read in api_messages.c. */
#include "server/api_request.h"

#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

int api_error(ApiError *e, ErrorCode code, const char *param, const char *fmt, ...)
{
    char msg[sizeof e->error.msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    error_set(&e->error, code, "%s", msg);
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    return -1;
}

int api_in_field(ApiError *e, const char *key)
{
    snprintf(e->param, sizeof e->param, "%s", key);
    return -1;
}

const json_t *api_field(const json_t *body, const char *key)
{
    const json_t *v = json_object_get(body, key);
    return v && !json_is_null(v) ? v : NULL;
}

int api_read_bool(const json_t *body, const char *key, int *out, ApiError *err)
{
    if (json_get_bool(body, "request", key, *out, out, &err->error)) return api_in_field(err, key);
    return 0;
}

static int read_int(const json_t *body, const char *key, long lo, long hi, int *out, ApiError *err)
{
    if (!api_field(body, key)) return 0;
    if (json_get_int(body, "request", key, lo, hi, lo, out, &err->error))
        return api_in_field(err, key);
    return 0;
}

static int read_float(const json_t *body, const char *key, double lo, double hi, float *out,
                      ApiError *err)
{
    double value;
    if (json_get_num(body, "request", key, lo, hi, *out, &value, &err->error))
        return api_in_field(err, key);
    *out = (float)value;
    return 0;
}

/* ---- the body ---- */

static int too_deep(const json_t *v, int levels)
{
    size_t i;
    const char *key;
    json_t *child;
    if (!json_is_array(v) && !json_is_object(v)) return 0;
    if (!levels) return 1;
    json_array_foreach(v, i, child)
    {
        if (too_deep(child, levels - 1)) return 1;
    }
    json_object_foreach((json_t *)v, key, child)
    {
        if (too_deep(child, levels - 1)) return 1;
    }
    return 0;
}

json_t *api_parse_body(const char *text, size_t len, ApiError *err)
{
    json_error_t je;
    json_t *body = json_loadb(text, len, JSON_ALLOW_NUL, &je);
    if (!body) {
        api_error(err, ERR_INPUT, NULL, "the body is not JSON: line %d, column %d: %.100s", je.line,
                  je.column, len ? je.text : "it is empty");
    } else if (!json_is_object(body)) {
        api_error(err, ERR_INPUT, NULL, "the body is not a JSON object");
    } else if (too_deep(body, MAX_JSON_DEPTH)) {
        api_error(err, ERR_INPUT, NULL, "the body is nested deeper than %d levels", MAX_JSON_DEPTH);
    } else {
        return body;
    }
    json_decref(body);
    return NULL;
}

/* ---- prompts ---- */

int api_read_ids(const json_t *list, const char *param, int n_vocab, TokenList *ids, ApiError *err)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        if (!json_is_integer(item))
            return api_error(err, ERR_INPUT, param, "%s[%zu] must be a token id", param, i);
        json_int_t id = json_integer_value(item);
        if (id < 0 || id >= n_vocab)
            return api_error(err, ERR_INPUT, param, "%s[%zu] is %lld, token ids are 0 to %d", param,
                             i, (long long)id, n_vocab - 1);
        token_list_add(ids, (int32_t)id);
    }
    return 0;
}

static int read_prompt(ApiPrompt *p, const json_t *v, const char *param, int n_vocab, ApiError *err)
{
    if (json_is_string(v)) {
        p->text = json_string_value(v);
        p->len = json_string_length(v);
        return p->len ? 0 : api_error(err, ERR_INPUT, param, "%s is empty", param);
    }
    if (!json_is_array(v))
        return api_error(err, ERR_INPUT, param, "%s must be a string or a list of token ids",
                         param);
    if (!json_array_size(v)) return api_error(err, ERR_INPUT, param, "%s is empty", param);
    return api_read_ids(v, param, n_vocab, &p->ids, err);
}

/* A string, a list of ids, or a list of such prompts (of one kind). */
static int read_prompts(ApiRequest *r, const json_t *body, int n_vocab, ApiError *err)
{
    const json_t *v = api_field(body, "prompt"), *first = json_array_get(v, 0);
    if (!v) return api_error(err, ERR_INPUT, "prompt", "prompt is missing");
    int many = json_is_string(first) || json_is_array(first);
    size_t n = many ? json_array_size(v) : 1;
    if (n > MAX_PROMPTS)
        return api_error(err, ERR_LIMIT, "prompt", "prompt has %zu entries, the limit is %d", n,
                         MAX_PROMPTS);
    r->prompts = mem_alloc(n, sizeof *r->prompts);
    r->n_prompts = (int)n;
    if (!many) return read_prompt(&r->prompts[0], v, "prompt", n_vocab, err);
    for (size_t i = 0; i < n; i++) {
        char param[32];
        const json_t *one = json_array_get(v, i);
        snprintf(param, sizeof param, "prompt[%zu]", i);
        if (json_typeof(one) != json_typeof(first))
            return api_error(err, ERR_INPUT, param, "prompt mixes strings and lists of ids");
        if (read_prompt(&r->prompts[i], one, param, n_vocab, err)) return -1;
    }
    return 0;
}

/* ---- plain fields ---- */

typedef struct {
    const char *key;
    long lo, hi;
    size_t at; /* of an int in ApiRequest */
} IntField;

typedef struct {
    const char *key;
    double lo, hi;
    size_t at; /* of a float in ApiRequest */
} FloatField;

typedef struct {
    const char *key;
    size_t at; /* of an int in ApiRequest */
} BoolField;

#define AT(member) offsetof(ApiRequest, member)

static const IntField int_fields[] = {
    {"n", 1, MAX_N, AT(n)},
    {"max_tokens", -1, INT_MAX, AT(max_tokens)},
    {"min_tokens", 0, INT_MAX, AT(min_tokens)},
    {"top_k", -1, INT_MAX, AT(params.top_k)},
    {"speculative.n_max", 0, INT_MAX, AT(draft_max)},
};

static const FloatField float_fields[] = {
    {"temperature", 0, 100, AT(params.temperature)},
    {"top_p", 0, 1, AT(params.top_p)},
    {"min_p", 0, 1, AT(params.min_p)},
    {"presence_penalty", -2, 2, AT(params.presence)},
    {"frequency_penalty", -2, 2, AT(params.frequency)},
    {"repeat_penalty", 1e-3, 10, AT(params.repetition)}, /* llama.cpp's name */
    {"repetition_penalty", 1e-3, 10, AT(params.repetition)},
};

static const BoolField bool_fields[] = {
    {"ignore_eos", AT(ignore_eos)},
    {"stream", AT(stream)},
    {"include_stop_str_in_output", AT(include_stop)},
    {"skip_special_tokens", AT(skip_special)},
};

static int read_plain(ApiRequest *r, const json_t *body, ApiError *err)
{
    char *base = (char *)r;
    for (size_t i = 0; i < sizeof int_fields / sizeof *int_fields; i++) {
        const IntField *f = &int_fields[i];
        if (read_int(body, f->key, f->lo, f->hi, (int *)(void *)(base + f->at), err)) return -1;
    }
    for (size_t i = 0; i < sizeof float_fields / sizeof *float_fields; i++) {
        const FloatField *f = &float_fields[i];
        if (read_float(body, f->key, f->lo, f->hi, (float *)(void *)(base + f->at), err)) return -1;
    }
    for (size_t i = 0; i < sizeof bool_fields / sizeof *bool_fields; i++) {
        const BoolField *f = &bool_fields[i];
        if (api_read_bool(body, f->key, (int *)(void *)(base + f->at), err)) return -1;
    }
    if (r->params.top_k < 0) r->params.top_k = 0;
    if (r->params.top_p <= 0) { /* the nucleus of nothing: the best token alone */
        r->params.top_p = 1;
        r->params.temperature = 0;
    }
    return 0;
}

/*
 * What we cannot do yet and would change the answer. Neglecting it silently would be worse than
 * saying so; values that ask for nothing (false, "", {}) pass.
 */
static int refuse_unsupported(const json_t *body, ApiError *err)
{
    static const char *const keys[] = {
        "suffix",       "use_beam_search",    "prompt_embeds", "prompt_logprobs", "chat_template",
        "audio",        "structured_outputs", "json_schema",   "grammar",         "guided_json",
        "guided_regex", "guided_choice",      "guided_grammar"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = api_field(body, keys[i]);
        int asks = v && !json_is_false(v) && !(json_is_string(v) && !json_string_length(v)) &&
                   !(json_is_array(v) && !json_array_size(v)) &&
                   !(json_is_object(v) && !json_object_size(v));
        if (asks) return api_error(err, ERR_INPUT, keys[i], "%s is not supported", keys[i]);
    }
    const json_t *format = api_field(body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text") != 0))
        return api_error(err, ERR_INPUT, "response_format",
                         "response_format of this type is not supported");
    return 0;
}

static int read_seed(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *v = api_field(body, "seed");
    if (!v) return 0;
    if (!json_is_integer(v))
        return api_error(err, ERR_INPUT, "seed", "seed must be a 64-bit integer");
    /* -1 is llama.cpp's word for random, which the default is already. */
    if (json_integer_value(v) != -1) r->params.seed = (uint64_t)json_integer_value(v);
    return 0;
}

static int read_stop(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *v = api_field(body, "stop");
    if (!v) return 0;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        size_t len = json_string_length(s);
        if (!json_is_string(s))
            return api_error(err, ERR_INPUT, "stop", "stop must be a string or a list of strings");
        if (!len) continue;
        if (r->n_stop == MAX_STOP_STRINGS || len > MAX_STOP_BYTES)
            return api_error(err, ERR_LIMIT, "stop",
                             "stop takes at most %d strings of at most %d bytes", MAX_STOP_STRINGS,
                             MAX_STOP_BYTES);
        if (strlen(json_string_value(s)) != len)
            return api_error(err, ERR_INPUT, "stop", "stop strings cannot hold a NUL");
        r->stop[r->n_stop++] = json_string_value(s);
    }
    return 0;
}

static int read_stop_ids(ApiRequest *r, const json_t *body, int n_vocab, ApiError *err)
{
    const json_t *v = api_field(body, "stop_token_ids");
    TokenList ids = {0};
    if (!v) return 0;
    if (!json_is_array(v) || json_array_size(v) > MAX_STOP_IDS)
        return api_error(err, ERR_INPUT, "stop_token_ids",
                         "stop_token_ids must be a list of at most %d token ids", MAX_STOP_IDS);
    int rc = api_read_ids(v, "stop_token_ids", n_vocab, &ids, err);
    if (!rc) {
        r->n_stop_ids = ids.n;
        for (int i = 0; i < ids.n; i++)
            r->stop_id[i] = ids.id[i];
    }
    token_list_free(&ids);
    return rc;
}

static int add_bias(ApiRequest *r, long long id, const json_t *value, int n_vocab, ApiError *err)
{
    double bias = json_number_value(value);
    if (id < 0 || id >= n_vocab)
        return api_error(err, ERR_INPUT, "logit_bias", "logit_bias names token %lld of 0 to %d", id,
                         n_vocab - 1);
    if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
        return api_error(err, ERR_INPUT, "logit_bias", "logit_bias must be numbers, -100 to 100");
    r->bias_id[r->n_bias] = (int32_t)id;
    r->bias[r->n_bias++] = (float)bias;
    return 0;
}

/* {"id": bias, ...}, or llama.cpp's [[id, bias], ...]. */
static int read_bias(ApiRequest *r, const json_t *body, int n_vocab, ApiError *err)
{
    const json_t *v = api_field(body, "logit_bias");
    if (!v) return 0;
    size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v), i;
    if ((!json_is_array(v) && !json_is_object(v)) || n > MAX_LOGIT_BIAS)
        return api_error(err, ERR_INPUT, "logit_bias",
                         "logit_bias must be an object of at most %d entries", MAX_LOGIT_BIAS);
    r->bias_id = mem_alloc(n + 1, sizeof *r->bias_id);
    r->bias = mem_alloc(n + 1, sizeof *r->bias);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (end == key || *end) id = -1;
        if (add_bias(r, id, value, n_vocab, err)) return -1;
    }
    json_array_foreach(v, i, value)
    {
        const json_t *id = json_array_get(value, 0);
        if (add_bias(r, json_is_integer(id) ? json_integer_value(id) : -1, json_array_get(value, 1),
                     n_vocab, err))
            return -1;
    }
    return 0;
}

static int read_stream_options(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *v = api_field(body, "stream_options");
    if (!v) return 0;
    if (!json_is_object(v))
        return api_error(err, ERR_INPUT, "stream_options", "stream_options must be an object");
    if (api_read_bool(v, "include_usage", &r->include_usage, err)) return -1;
    return api_read_bool(v, "continuous_usage_stats", &r->continuous_usage, err);
}

/* ---- the two kinds ---- */

static int read_completion(ApiRequest *r, const json_t *body, const ApiDefaults *defaults,
                           ApiError *err)
{
    const json_t *logprobs = api_field(body, "logprobs");
    if (json_is_boolean(logprobs))
        r->n_logprobs = json_is_true(logprobs) ? 1 : -1;
    else if (read_int(body, "logprobs", 0, MAX_LOGPROBS, &r->n_logprobs, err))
        return -1;
    if (api_read_bool(body, "echo", &r->echo, err)) return -1;
    return read_prompts(r, body, defaults->n_vocab, err);
}

static int read_chat(ApiRequest *r, const json_t *body, const ApiDefaults *defaults, ApiError *err)
{
    int logprobs = 0, n_top = 0;
    if (read_int(body, "max_completion_tokens", -1, INT_MAX, &r->max_tokens, err)) return -1;
    if (!r->max_tokens)
        return api_error(err, ERR_INPUT, "max_tokens", "max_tokens must be at least 1, got 0");
    if (api_read_bool(body, "logprobs", &logprobs, err) ||
        read_int(body, "top_logprobs", 0, MAX_LOGPROBS, &n_top, err))
        return -1;
    if (n_top && !logprobs)
        return api_error(err, ERR_INPUT, "top_logprobs", "top_logprobs needs logprobs: true");
    if (logprobs) r->n_logprobs = n_top;
    return api_read_chat(r, body, defaults, err);
}

/* What only makes sense together. */
static int check_whole(const ApiRequest *r, ApiError *err)
{
    int n_prompts = r->kind == API_CHAT ? 1 : r->n_prompts;
    if (n_prompts * r->n > MAX_ANSWERS)
        return api_error(err, ERR_LIMIT, "n", "%d prompts times n = %d is over the limit of %d",
                         n_prompts, r->n, MAX_ANSWERS);
    if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
        return api_error(err, ERR_INPUT, "min_tokens", "min_tokens is %d, max_tokens is %d",
                         r->min_tokens, r->max_tokens);
    int best_of = r->n;
    if (read_int(r->body, "best_of", 1, MAX_N, &best_of, err)) return -1;
    if (best_of != r->n)
        return api_error(err, ERR_INPUT, "best_of", "best_of other than n is not supported");
    return 0;
}

int api_request_read(ApiRequest *r, ApiKind kind, json_t *body, const ApiDefaults *defaults,
                     ApiError *err)
{
    int n_vocab = defaults->n_vocab;
    *r = (ApiRequest){.kind = kind,
                      .body = body,
                      .n = 1,
                      .max_tokens = defaults->max_tokens,
                      .params = defaults->sampling,
                      .n_logprobs = -1,
                      .draft_max = -1,
                      .skip_special = 1};
    const json_t *model = api_field(body, "model");
    if (model && !json_is_string(model))
        return api_error(err, ERR_INPUT, "model", "model must be a string");
    if (json_string_length(model) > MAX_MODEL_NAME)
        return api_error(err, ERR_LIMIT, "model", "model is longer than %d bytes", MAX_MODEL_NAME);
    r->model = json_string_value(model);
    if (refuse_unsupported(body, err) || read_plain(r, body, err) || read_seed(r, body, err) ||
        read_stop(r, body, err) || read_stop_ids(r, body, n_vocab, err) ||
        read_bias(r, body, n_vocab, err) || read_stream_options(r, body, err))
        return -1;
    if (kind == API_CHAT ? read_chat(r, body, defaults, err)
                         : read_completion(r, body, defaults, err))
        return -1;
    return check_whole(r, err);
}

void api_request_free(ApiRequest *r)
{
    for (int i = 0; i < r->n_prompts; i++)
        token_list_free(&r->prompts[i].ids);
    mem_free(r->prompts);
    mem_free(r->bias_id);
    mem_free(r->bias);
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->body);
    *r = (ApiRequest){0};
}
