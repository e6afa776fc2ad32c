/*
 * api_fields.c: the fields that completion and chat requests share: sampling, lengths, stops,
 * biases, what the reply holds. See api_request.h.
 */
#include "server/api_request.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

static int read_float(const json_t *body, const char *key, double lo, double hi, float *out,
                      ApiError *err)
{
    double value;
    if (json_get_num(body, "request", key, lo, hi, *out, &value, &err->error))
        return api_in_field(err, key);
    *out = (float)value;
    return 0;
}

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
    {"n_cmpl", 1, MAX_N, AT(n)}, /* llama.cpp's; n goes before it */
    {"n", 1, MAX_N, AT(n)},
    {"best_of", 1, MAX_N, AT(best_of)},
    {"n_predict", -1, INT_MAX, AT(max_tokens)}, /* llama.cpp's; what follows goes before it */
    {"max_tokens", -1, INT_MAX, AT(max_tokens)},
    {"max_completion_tokens", -1, INT_MAX, AT(max_tokens)},
    {"min_tokens", 0, INT_MAX, AT(min_tokens)},
    {"top_k", -1, INT_MAX, AT(params.top_k)},
    {"speculative.n_max", 0, INT_MAX, AT(draft_max)},
    {"prompt_logprobs", 0, MAX_LOGPROBS, AT(n_prompt_logprobs)},
    {"reasoning_budget", -1, INT_MAX, AT(thinking_budget)}, /* five names for one thing */
    {"thinking_budget_tokens", -1, INT_MAX, AT(thinking_budget)},
    {"reasoning_budget_tokens", -1, INT_MAX, AT(thinking_budget)},
    {"thinking_budget", -1, INT_MAX, AT(thinking_budget)},
    {"thinking_token_budget", -1, INT_MAX, AT(thinking_budget)},
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
    {"no_stop_trim", AT(include_stop)}, /* SGLang's name */
    {"include_stop_str_in_output", AT(include_stop)},
    {"skip_special_tokens", AT(skip_special)},
    {"return_token_ids", AT(return_token_ids)},
    {"return_tokens", AT(return_tokens)},
    {"return_tokens_as_token_ids", AT(tokens_as_ids)},
    {"timings_per_token", AT(timings_per_token)},
    {"return_trees", AT(return_trees)},
    {"return_progress", AT(return_progress)},
};

static int read_plain(ApiRequest *r, const json_t *body, ApiError *err)
{
    char *base = (char *)r;
    for (size_t i = 0; i < sizeof int_fields / sizeof *int_fields; i++) {
        const IntField *f = &int_fields[i];
        if (api_read_int(body, f->key, f->lo, f->hi, (int *)(void *)(base + f->at), err)) return -1;
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

/* llama.cpp's: indentation, time, probabilities in its own form. 0 and less ask for nothing. */
static int refuse_numbers(const json_t *body, ApiError *err)
{
    static const char *const keys[] = {"n_indent", "t_max_predict_ms", "n_probs"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_number_value(json_field(body, keys[i])) > 0)
            return api_error(err, ERR_INPUT, keys[i], "%s is not supported", keys[i]);
    return 0;
}

int api_refuse_unsupported(const json_t *body, ApiError *err)
{
    static const char *const keys[] = {"suffix",
                                       "use_beam_search",
                                       "prompt_embeds",
                                       "chat_template",
                                       "audio",
                                       "truncate_prompt_tokens",
                                       "bad_words",
                                       "logits_processors",
                                       "logprob_token_ids",
                                       "post_sampling_probs",
                                       "return_hidden_states",
                                       "return_cached_tokens_details",
                                       "return_routed_experts",
                                       "return_prompt_token_ids",
                                       "return_prompt_text",
                                       "return_meta_info",
                                       "return_input_ids_in_sglext",
                                       "return_output_ids_in_sglext",
                                       "return_spec_tokens_details",
                                       "return_sampling_mask",
                                       "return_weight_versions",
                                       "sampling_logprobs_mode",
                                       "input_ids",
                                       "session_params",
                                       "watermark",
                                       "watermarking",
                                       "reasoning_budget_message",
                                       "repetition_detection",
                                       "stop_regex",
                                       "custom_logit_processor",
                                       "lora",
                                       "lora_path"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (api_asks(json_field(body, keys[i])))
            return api_error(err, ERR_INPUT, keys[i], "%s is not supported", keys[i]);
    size_t i;
    json_t *modality;
    json_array_foreach(json_field(body, "modalities"), i, modality)
    {
        if (json_is_string(modality) && !strcmp(json_string_value(modality), "audio"))
            return api_error(err, ERR_INPUT, "modalities", "this server gives text only");
    }
    return refuse_numbers(body, err);
}

static int read_seed(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *v = json_field(body, "seed");
    if (!v) return 0;
    json_int_t seed;
    if (!json_whole(v, &seed))
        return api_error(err, ERR_INPUT, "seed", "seed must be a 64-bit integer");
    /* -1 is llama.cpp's word for random, which the default is already. */
    if (seed != -1) r->params.seed = (uint64_t)seed;
    return 0;
}

static int read_stop(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *v = json_field(body, "stop");
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
    const json_t *v = json_field(body, "stop_token_ids");
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

/* An empty list asks for nothing. */
static int read_allowed(ApiRequest *r, const json_t *body, int n_vocab, ApiError *err)
{
    const json_t *v = json_field(body, "allowed_token_ids");
    if (v && !json_is_array(v))
        return api_error(err, ERR_INPUT, "allowed_token_ids",
                         "allowed_token_ids must be a list of token ids");
    return api_read_ids(v, "allowed_token_ids", n_vocab, &r->allowed_ids, err);
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

/* The id that a key is in decimal digits and nothing else, -1: it is none. */
static long long key_id(const char *key)
{
    size_t n = strspn(key, "0123456789");
    return n && n <= 18 && !key[n] ? strtoll(key, NULL, 10) : -1;
}

/* {"id": bias, ...}, or llama.cpp's [[id, bias], ...]. */
static int read_bias(ApiRequest *r, const json_t *body, int n_vocab, ApiError *err)
{
    const json_t *v = json_field(body, "logit_bias");
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
        long long id = key_id(key);
        if (id < 0)
            return api_error(err, ERR_INPUT, "logit_bias",
                             "logit_bias has the key '%.40s', which is no token id", key);
        if (add_bias(r, id, value, n_vocab, err)) return -1;
    }
    json_array_foreach(v, i, value)
    {
        json_int_t id;
        if (!json_whole(json_array_get(value, 0), &id))
            return api_error(err, ERR_INPUT, "logit_bias",
                             "logit_bias[%zu] must be a token id and a bias", i);
        if (add_bias(r, id, json_array_get(value, 1), n_vocab, err)) return -1;
    }
    return 0;
}

static int read_stream_options(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *v = json_field(body, "stream_options");
    if (!v) return 0;
    if (!json_is_object(v))
        return api_error(err, ERR_INPUT, "stream_options", "stream_options must be an object");
    if (api_read_bool(v, "include_usage", &r->include_usage, err)) return -1;
    return api_read_bool(v, "continuous_usage_stats", &r->continuous_usage, err);
}

/*
 * An empty salt is none. SGLang's extra_key is one more; of its hash the high half, which is no
 * salt's own. Who does not know one cannot aim at its hash, and two meet by chance once in 2^64
 * times.
 */
static int read_salts(ApiRequest *r, const json_t *body, ApiError *err)
{
    static const char *const keys[] = {"cache_salt", "extra_key"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *salt = json_field(body, keys[i]);
        const char *text = json_string_value(salt);
        size_t len = json_string_length(salt);
        if (salt && (!text || len > MAX_CACHE_SALT))
            return api_error(err, ERR_INPUT, keys[i], "%s must be a string of at most %d bytes",
                             keys[i], MAX_CACHE_SALT);
        if (!len) continue;
        uint64_t h = i ? hash_key(text, len, r->cache_salt).high : hash_sum(text, len);
        r->cache_salt = h ? h : 1;
    }
    return 0;
}

static int read_cache_fields(ApiRequest *r, const json_t *body, ApiError *err)
{
    if (api_read_bool(body, "cache_prompt", &r->cache_prompt, err)) return -1;
    return read_salts(r, body, err);
}

/*
 * OpenAI's predicted outputs: a text, or a list of parts that are. It may only make answers come
 * faster, so what is none of these is as if it were not there.
 */
static void read_prediction(ApiRequest *r, const json_t *body)
{
    const json_t *content = json_field(json_field(body, "prediction"), "content");
    size_t i;
    json_t *part;
    if (json_is_string(content))
        strbuf_add(&r->predicted, json_string_value(content), json_string_length(content));
    json_array_foreach((json_t *)content, i, part)
    {
        const json_t *text = json_field(part, "text");
        if (json_is_string(text))
            strbuf_add(&r->predicted, json_string_value(text), json_string_length(text));
    }
}

int api_read_fields(ApiRequest *r, const json_t *body, int n_vocab, ApiError *err)
{
    if (api_refuse_unsupported(body, err) || read_plain(r, body, err) || read_seed(r, body, err) ||
        read_stop(r, body, err) || read_stop_ids(r, body, n_vocab, err) ||
        read_bias(r, body, n_vocab, err) || read_allowed(r, body, n_vocab, err) ||
        read_stream_options(r, body, err))
        return -1;
    r->service_tier = json_field(body, "service_tier") != NULL;
    read_prediction(r, body);
    return read_cache_fields(r, body, err);
}
