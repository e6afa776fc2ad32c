/*
 * api_request.c: see api_request.h. Messages are read in api_messages.c, tools in api_tools.c, the
 * plain fields in api_fields.c.
 */
#include "server/api_request.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
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

/* Where a text that begins with a field names this one, or this part of it; or NULL. */
static char *find_field(char *text, const char *field)
{
    size_t n = strlen(field);
    char *at = *field == '.' ? strstr(text, field) : strncmp(text, field, n) ? NULL : text;
    if (!at || at > text + strcspn(text, " ")) return NULL;
    return at[n] != '_' && !isalnum((unsigned char)at[n]) ? at : NULL;
}

static void rename_first(char *text, size_t size, const ApiFieldName *names)
{
    char renamed[sizeof((Error *)NULL)->msg];
    for (; names->chat; names++) {
        const char *at = find_field(text, names->chat);
        if (!at) continue;
        snprintf(renamed, sizeof renamed, "%.*s%s%s", (int)(at - text), text, names->theirs,
                 at + strlen(names->chat));
        snprintf(text, size, "%s", renamed);
        return;
    }
}

void api_rename(ApiError *e, const ApiFieldName *names)
{
    rename_first(e->param, sizeof e->param, names);
    rename_first(e->error.msg, sizeof e->error.msg, names);
}

ApiPlace api_place(const char *list, size_t i, const char *field, ApiError *err)
{
    ApiPlace p = {.err = err};
    snprintf(p.name, sizeof p.name, "%s[%zu]%s", list, i, field);
    return p;
}

int api_refuse(ApiPlace p, const char *what)
{
    return api_error(p.err, ERR_INPUT, p.name, "%s %s", p.name, what);
}

const char *api_word(const json_t *v)
{
    const char *word = json_string_value(v);
    return word && strlen(word) == json_string_length(v) ? word : NULL;
}

int api_asks(const json_t *v)
{
    return v && !json_is_false(v) && (!json_is_string(v) || json_string_length(v)) &&
           (!json_is_array(v) || json_array_size(v)) && (!json_is_object(v) || json_object_size(v));
}

int api_read_bool(const json_t *body, const char *key, int *out, ApiError *err)
{
    if (json_get_bool(body, "request", key, *out, out, &err->error)) return api_in_field(err, key);
    return 0;
}

int api_read_int(const json_t *body, const char *key, long lo, long hi, int *out, ApiError *err)
{
    const json_t *v = json_field(body, key);
    double d = json_number_value(v);
    if (!v) return 0;
    if (hi == INT_MAX && d > INT_MAX && !(d > floor(d))) {
        *out = INT_MAX;
        return 0;
    }
    if (hi == INT_MAX && json_is_number(v) && d < (double)lo)
        return api_error(err, ERR_INPUT, key, "%s must be at least %ld", key, lo);
    if (json_get_int(body, "request", key, lo, hi, lo, out, &err->error))
        return api_in_field(err, key);
    return 0;
}

/* ---- the body ---- */

/*
 * What a text costs to parse, told before it is parsed: jansson takes some 150 bytes for a list of
 * two, so 32 MiB of brackets would be gigabytes. Brackets and commas within strings do not count:
 * who parses such a string comes here again.
 */
static JsonCost add_cost(JsonCost cost, const char *text, size_t len)
{
    int depth = 0, in_string = 0;
    cost.n_bytes += len;
    cost.n_values++;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = 0;
        } else if (c == '"') {
            in_string = 1;
            cost.n_strings++;
        } else if (c == ':') {
            cost.n_members++;
        } else if (c == ',') {
            cost.n_values++;
        } else if (c == '[' || c == '{') {
            cost.n_lists++;
            if (++depth > cost.depth) cost.depth = depth;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return cost;
}

static int check_cost(JsonCost cost, ApiError *err)
{
    if (cost.depth > MAX_JSON_DEPTH)
        return api_error(err, ERR_INPUT, NULL, "the body is nested deeper than %d levels",
                         MAX_JSON_DEPTH);
    if (cost.n_lists > MAX_JSON_LISTS)
        return api_error(err, ERR_LIMIT, NULL, "the body has %d lists and objects, the limit is %d",
                         cost.n_lists, MAX_JSON_LISTS);
    if (cost.n_values > MAX_JSON_VALUES)
        return api_error(err, ERR_LIMIT, NULL, "the body has %d values, the limit is %d",
                         cost.n_values, MAX_JSON_VALUES);
    return 0;
}

static int is_for_prompt(const char *key, const json_t *value)
{
    static const char *const keys[] = {"arguments", "input", "parameters", "input_schema"};
    for (size_t i = 0; json_is_object(value) && i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i])) return 1;
    return 0;
}

/* What malloc gives jansson for it. */
size_t api_json_bytes(const JsonCost *cost)
{
    enum { LIST = 256, OTHER = 48 };
    size_t n_others = (size_t)cost->n_values + (size_t)cost->n_strings + (size_t)cost->n_members;
    return cost->n_bytes + LIST * (size_t)cost->n_lists + OTHER * n_others;
}

/* Windows' editors and shells begin a file with it; RFC 8259 section 8.1 lets readers pass it. */
static size_t byte_order_mark(const char *text, size_t len)
{
    static const char mark[] = "\xef\xbb\xbf";
    size_t n = sizeof mark - 1;
    return len >= n && !memcmp(text, mark, n) ? n : 0;
}

json_t *api_parse_body(const char *text, size_t len, size_t *bytes, ApiError *err)
{
    JsonCost cost = {0};
    size_t n_mark = byte_order_mark(text, len);
    json_t *body = api_parse_one(&cost, text + n_mark, len - n_mark, err);
    if (bytes) *bytes = body ? api_json_bytes(&cost) : 0;
    json_round(body, is_for_prompt);
    return body;
}

json_t *api_parse_one(JsonCost *spent, const char *text, size_t len, ApiError *err)
{
    json_error_t je;
    JsonCost cost = add_cost(*spent, text, len);
    if (check_cost(cost, err)) return NULL;
    *spent = cost;
    json_t *body = json_load_digits(text, len, JSON_ALLOW_NUL, &je);
    if (json_is_object(body)) return body;
    if (body)
        api_error(err, ERR_INPUT, NULL, "the body is not a JSON object");
    else
        api_error(err, ERR_INPUT, NULL, "the body is not JSON: line %d, column %d: %.100s", je.line,
                  je.column, len ? je.text : "it is empty");
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
        json_int_t id;
        if (!json_whole(item, &id))
            return api_error(err, ERR_INPUT, param, "%s[%zu] must be a token id", param, i);
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
    const json_t *v = json_field(body, "prompt"), *first = json_array_get(v, 0);
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

/* ---- the two kinds ---- */

static int read_completion(ApiRequest *r, const json_t *body, const ApiDefaults *defaults,
                           ApiError *err)
{
    const json_t *logprobs = json_field(body, "logprobs");
    if (json_is_boolean(logprobs))
        r->n_logprobs = json_is_true(logprobs) ? 1 : -1;
    else if (api_read_int(body, "logprobs", 0, MAX_LOGPROBS, &r->n_logprobs, err))
        return -1;
    if (api_read_bool(body, "echo", &r->echo, err)) return -1;
    return read_prompts(r, body, defaults->n_vocab, err);
}

static int read_chat(ApiRequest *r, const json_t *body, const ApiDefaults *defaults, ApiError *err)
{
    int logprobs = 0, n_top = 0;
    const char *key = "max_tokens";
    if (json_field(body, "max_completion_tokens"))
        key = "max_completion_tokens";
    else if (!json_field(body, key) && json_field(body, "n_predict"))
        key = "n_predict";
    if (!r->max_tokens && !defaults->may_be_empty)
        return api_error(err, ERR_INPUT, key, "%s must be at least 1, got 0", key);
    if (api_read_bool(body, "logprobs", &logprobs, err) ||
        api_read_int(body, "top_logprobs", 0, MAX_LOGPROBS, &n_top, err))
        return -1;
    if (json_is_true(json_field(body, "echo")))
        return api_error(err, ERR_INPUT, "echo", "echo is not supported in a chat");
    if (n_top && !logprobs)
        return api_error(err, ERR_INPUT, "top_logprobs", "top_logprobs needs logprobs: true");
    if (logprobs) r->n_logprobs = n_top;
    if (api_read_chat(r, body, defaults, err)) return -1;
    if (!r->thinking_budget) r->chat.enable_thinking = 0; /* no token of it: it does not begin */
    return 0;
}

/* What only makes sense together. */
static int check_whole(ApiRequest *r, ApiError *err)
{
    int n_prompts = r->kind == API_CHAT ? 1 : r->n_prompts;
    if (!r->best_of) r->best_of = r->n;
    if (r->best_of < r->n)
        return api_error(err, ERR_INPUT, "best_of", "best_of is %d, n is %d", r->best_of, r->n);
    if (r->stream && r->best_of > r->n)
        return api_error(err, ERR_INPUT, "best_of", "best_of greater than n cannot be streamed");
    if (n_prompts * r->best_of > MAX_ANSWERS)
        return api_error(err, ERR_LIMIT, "n", "%d prompts times n = %d is over the limit of %d",
                         n_prompts, r->best_of, MAX_ANSWERS);
    if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
        return api_error(err, ERR_INPUT, "min_tokens", "min_tokens is %d, max_tokens is %d",
                         r->min_tokens, r->max_tokens);
    if (r->stream && r->n_prompt_logprobs >= 0)
        return api_error(err, ERR_INPUT, "prompt_logprobs", "prompt_logprobs cannot be streamed");
    return 0;
}

enum { NOT_ASKED = -2 }; /* no max_tokens can be that */

int api_request_read(ApiRequest *r, ApiKind kind, json_t *body, const ApiDefaults *defaults,
                     ApiError *err)
{
    *r = (ApiRequest){.kind = kind,
                      .body = body,
                      .n = 1,
                      .max_tokens = NOT_ASKED,
                      .params = defaults->sampling,
                      .n_logprobs = -1,
                      .n_prompt_logprobs = -1,
                      .draft_max = -1,
                      .thinking_budget = -1,
                      .parallel_calls = 1,
                      .cache_prompt = 1,
                      .skip_special = 1};
    r->id = api_word(json_field(body, "request_id"));      /* vLLM's name */
    if (!r->id) r->id = api_word(json_field(body, "rid")); /* SGLang's */
    const json_t *model = json_field(body, "model");
    if (model && !json_is_string(model))
        return api_error(err, ERR_INPUT, "model", "model must be a string");
    if (json_string_length(model) > MAX_MODEL_NAME)
        return api_error(err, ERR_LIMIT, "model", "model is longer than %d bytes", MAX_MODEL_NAME);
    r->model = api_word(model);
    if (model && !r->model) return api_error(err, ERR_INPUT, "model", "model cannot hold a NUL");
    if (api_read_fields(r, body, defaults->n_vocab, err)) return -1;
    r->asks_length = r->max_tokens != NOT_ASKED;
    if (!r->asks_length) r->max_tokens = defaults->max_tokens;
    if (kind == API_CHAT ? read_chat(r, body, defaults, err)
                         : read_completion(r, body, defaults, err))
        return -1;
    if (api_read_structure(r, body, err)) return -1;
    if (r->allowed_ids.n && api_has_grammar(r))
        return api_error(err, ERR_INPUT, "allowed_token_ids",
                         "allowed_token_ids cannot be had together with a form of the answer");
    return check_whole(r, err);
}

void api_request_free(ApiRequest *r)
{
    for (int i = 0; i < r->n_prompts; i++)
        token_list_free(&r->prompts[i].ids);
    mem_free(r->prompts);
    mem_free(r->bias_id);
    mem_free(r->bias);
    token_list_free(&r->allowed_ids);
    strbuf_free(&r->predicted);
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->prompt_tools);
    json_decref(r->forced);
    json_decref(r->schema);
    json_decref(r->allowed_tools);
    json_decref(r->body);
    *r = (ApiRequest){0};
}
