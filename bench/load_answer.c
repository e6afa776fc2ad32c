/* load_answer.c: see load_answer.h. */
#include "bench/load_answer.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "base/strbuf.h"

static void join_object(json_t *to, const json_t *from);

/* ---- joining ---- */

static void join_string(json_t *to, const char *key, const json_t *from)
{
    const json_t *before = json_object_get(to, key);
    StrBuf both = {0};
    if (!json_string_length(from)) return;
    if (before) strbuf_add(&both, json_string_value(before), json_string_length(before));
    strbuf_add(&both, json_string_value(from), json_string_length(from));
    json_object_set_new(to, key, json_stringn(both.data, both.len));
    strbuf_free(&both);
}

/* The array at key, made when it is missing or something else. */
static json_t *array_at(json_t *to, const char *key)
{
    if (!json_is_array(json_object_get(to, key))) json_object_set_new(to, key, json_array());
    return json_object_get(to, key);
}

static json_t *object_at(json_t *array, size_t i)
{
    while (json_array_size(array) <= i)
        json_array_append_new(array, json_object());
    return json_array_get(array, i);
}

/* Pieces of a stream say to which call they belong; whole replies list the calls in order. */
static void join_tool_calls(json_t *to, const json_t *calls)
{
    enum { MAX_CALLS = 1024 };
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call)
    {
        const json_t *index = json_object_get(call, "index");
        json_int_t at = index ? json_integer_value(index) : (json_int_t)i;
        if (at < 0 || at >= MAX_CALLS) continue;
        json_t *piece = json_copy(call);
        json_object_del(piece, "index");
        json_object_del(piece, "id"); /* random */
        join_object(object_at(array_at(to, "tool_calls"), (size_t)at), piece);
        json_decref(piece);
    }
}

static void join_value(json_t *to, const char *key, json_t *from)
{
    if (json_is_string(from)) {
        join_string(to, key, from);
    } else if (json_is_array(from)) {
        if (!strcmp(key, "tool_calls"))
            join_tool_calls(to, from);
        else if (json_array_size(from))
            json_array_extend(array_at(to, key), from);
    } else if (json_is_object(from)) {
        if (!json_object_get(to, key)) json_object_set_new(to, key, json_object());
        join_object(json_object_get(to, key), from);
    } else if (!json_is_null(from)) {
        json_object_set(to, key, from);
    }
}

/*
 * Adds what from has to to: text to text, lists to lists. What is null or empty counts as absent,
 * because a stream need not say it.
 */
static void join_object(json_t *to, const json_t *from)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)from, key, value)
    {
        if (strcmp(key, "role") != 0) join_value(to, strcmp(key, "delta") ? key : "message", value);
    }
}

static int join_choices(json_t *form, const json_t *reply, Error *err)
{
    enum { MAX_CHOICES = 4096 };
    const json_t *choices = json_object_get(reply, "choices");
    size_t i;
    json_t *choice;
    if (!json_is_array(choices)) return error_set(err, ERR_INPUT, "a reply has no choices");
    json_array_foreach(choices, i, choice)
    {
        json_int_t index = json_integer_value(json_object_get(choice, "index"));
        if (index < 0 || index >= MAX_CHOICES)
            return error_set(err, ERR_INPUT, "a choice has the index %lld", (long long)index);
        join_object(object_at(array_at(form, "choices"), (size_t)index), choice);
    }
    return 0;
}

static void read_count(const json_t *from, const char *key, int *count)
{
    const json_t *value = json_object_get(from, key);
    if (json_is_integer(value)) *count = (int)json_integer_value(value);
}

/* The last to say something is right: some servers send counts with every event. */
static void read_work(LoadWork *work, const json_t *reply)
{
    const json_t *timings = json_object_get(reply, "timings");
    const json_t *usage = json_object_get(reply, "usage");
    read_count(timings, "cache_n", &work->n_cached);
    read_count(timings, "draft_n", &work->n_drafted);
    read_count(timings, "draft_n_accepted", &work->n_accepted);
    read_count(json_object_get(usage, "prompt_tokens_details"), "cached_tokens", &work->n_cached);
}

/* Only counts: what was found in a cache may differ. */
static void join_usage(json_t *form, const json_t *reply)
{
    static const char *const keys[] = {"prompt_tokens", "completion_tokens", "total_tokens"};
    const json_t *usage = json_object_get(reply, "usage");
    if (!json_is_object(usage)) return;
    json_t *counts = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set(counts, keys[i], json_object_get(usage, keys[i]));
    json_object_set_new(form, "usage", counts);
}

static int join_reply(json_t *form, LoadWork *work, const char *text, size_t len, Error *err)
{
    json_error_t je;
    json_t *reply = json_loadb(text, len, JSON_ALLOW_NUL, &je);
    if (!reply) return error_set(err, ERR_INPUT, "the reply is not JSON: %s", je.text);
    const char *error =
        json_string_value(json_object_get(json_object_get(reply, "error"), "message"));
    int rc = error ? error_set(err, ERR_INPUT, "the server says: %.150s", error)
                   : join_choices(form, reply, err);
    join_usage(form, reply);
    read_work(work, reply);
    json_decref(reply);
    return rc;
}

static int join_events(json_t *form, LoadWork *work, const char *body, size_t len, Error *err)
{
    static const char mark[] = "data: ", done[] = "data: [DONE]\n\n";
    const size_t n_mark = sizeof mark - 1, n_done = sizeof done - 1;
    const char *at = body, *end = body + len;
    while (at < end) {
        size_t left = (size_t)(end - at);
        if (left == n_done && !memcmp(at, done, n_done)) return 0;
        const char *stop = memmem(at, left, "\n\n", 2);
        if (stop && *at == ':') { /* a comment: the server lives and we wait */
            at = stop + 2;
            continue;
        }
        if (!stop || left < n_mark || memcmp(at, mark, n_mark) != 0)
            return error_set(err, ERR_INPUT, "no event at byte %zu of the stream",
                             (size_t)(at - body));
        if (join_reply(form, work, at + n_mark, (size_t)(stop - at) - n_mark, err)) return -1;
        at = stop + 2;
    }
    return error_set(err, ERR_INPUT, "the stream ends without [DONE]");
}

/* ---- the whole ---- */

static int check_whole(const json_t *form, Error *err)
{
    const json_t *choices = json_object_get(form, "choices");
    size_t i;
    json_t *choice;
    if (!json_array_size(choices)) return error_set(err, ERR_INPUT, "the answer has no choice");
    json_array_foreach(choices, i, choice)
    {
        if (!json_object_get(choice, "finish_reason"))
            return error_set(err, ERR_INPUT, "choice %zu has no finish_reason", i);
    }
    if (!json_object_get(form, "usage"))
        return error_set(err, ERR_INPUT, "the answer has no usage");
    return 0;
}

int load_answer_read(LoadAnswer *a, const char *body, size_t len, int streamed, Error *err)
{
    *a = (LoadAnswer){0};
    json_t *form = json_object();
    int rc = streamed ? join_events(form, &a->work, body, len, err)
                      : join_reply(form, &a->work, body, len, err);
    if (!rc) rc = check_whole(form, err);
    if (!rc) {
        const json_t *usage = json_object_get(form, "usage");
        char *text = json_dumps(form, JSON_COMPACT | JSON_SORT_KEYS);
        a->n_prompt = (int)json_integer_value(json_object_get(usage, "prompt_tokens"));
        a->n_tokens = (int)json_integer_value(json_object_get(usage, "completion_tokens"));
        a->form = mem_strdup(text ? text : "");
        free(text);
    }
    json_decref(form);
    return rc;
}

void load_answer_free(LoadAnswer *a)
{
    mem_free(a->form);
    *a = (LoadAnswer){0};
}

int load_answer_differs(const LoadAnswer *alone, const LoadAnswer *got, Error *why)
{
    enum { BEFORE = 20, SHOWN = 60 };
    size_t at = 0;
    while (alone->form[at] && alone->form[at] == got->form[at])
        at++;
    if (!alone->form[at] && !got->form[at]) return 0;
    size_t from = at > BEFORE ? at - BEFORE : 0;
    error_set(why, ERR_DEVICE, "byte %zu: '%.*s', alone '%.*s'", at, SHOWN, got->form + from, SHOWN,
              alone->form + from);
    return 1;
}
