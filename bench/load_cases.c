/* load_cases.c: see load_cases.h. */
#include "bench/load_cases.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "bench/json_lines.h"

/* What a request asks for beside its prompt. */
typedef struct {
    const char *name, *fields;
} Manner;

static const Manner chat_manners[] = {
    {"greedy", "{\"temperature\": 0, \"max_tokens\": 64}"},
    {"seeded", "{\"temperature\": 0.9, \"seed\": 11, \"max_tokens\": 96}"},
    {"logprobs", "{\"temperature\": 0.7, \"top_p\": 0.8, \"seed\": 5, \"max_tokens\": 24,"
                 " \"logprobs\": true, \"top_logprobs\": 3}"},
    {"two choices", "{\"temperature\": 1, \"seed\": 3, \"n\": 2, \"max_tokens\": 32,"
                    " \"stop\": [\".\", \"\\n\\n\"]}"},
    {"no drafts", "{\"temperature\": 0.6, \"seed\": 8, \"speculative.n_max\": 0,"
                  " \"max_tokens\": 48}"},
};

static const Manner text_manners[] = {
    {"greedy", "{\"temperature\": 0, \"max_tokens\": 40}"},
    {"seeded", "{\"temperature\": 1, \"top_k\": 40, \"seed\": 21, \"max_tokens\": 80,"
               " \"ignore_eos\": true}"},
    {"logprobs", "{\"temperature\": 0, \"logprobs\": 4, \"max_tokens\": 12, \"echo\": true}"},
    {"stops", "{\"temperature\": 0.8, \"seed\": 2, \"max_tokens\": 120,"
              " \"stop\": [\"the\", \"\\n\"], \"include_stop_str_in_output\": true}"},
    {"one token", "{\"temperature\": 0, \"max_tokens\": 1}"},
};

static const char *const texts[] = {
    "The quick brown fox",
    "Q: How many legs do three spiders have?\nA:",
    "Dear Sir or Madam,\n\nI am writing because",
    "1, 2, 3, 5, 8,",
    "for (int i = 0; i < n; i++)\n    ",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"",
    "Gru\xC3\x9F aus K\xC3\xB6ln, \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80: ",
};

/* ---- the list ---- */

/* Takes body. */
static char *streamed_body(json_t *body)
{
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

/* The request as it is, and once more with "stream" and the usage that a whole reply has too. */
static void add(LoadCases *c, const char *name, const char *path, json_t *body)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->list = mem_realloc(c->list, (size_t)c->cap, sizeof *c->list);
    }
    LoadCase *one = &c->list[c->n++];
    *one = (LoadCase){.name = mem_strdup(name), .path = path};
    one->body[0] = json_dumps(body, JSON_COMPACT);
    one->body[1] = streamed_body(body);
}

void load_cases_free(LoadCases *c)
{
    for (int i = 0; i < c->n; i++) {
        mem_free(c->list[i].name);
        mem_free(c->list[i].left_out);
        free(c->list[i].body[0]);
        free(c->list[i].body[1]);
        load_answer_free(&c->list[i].alone);
    }
    mem_free(c->list);
    *c = (LoadCases){0};
}

static void add_completion(LoadCases *c, const char *name, const char *text, const char *fields)
{
    json_t *body = json_loads(fields, 0, NULL);
    json_object_set_new(body, "prompt", json_string(text));
    add(c, name, "/v1/completions", body);
}

void load_cases_add_chat(LoadCases *c, const char *name, json_t *messages, json_t *tools,
                         const char *fields)
{
    json_t *body = json_loads(fields, 0, NULL);
    json_object_set(body, "messages", messages);
    if (tools) json_object_set(body, "tools", tools);
    add(c, name, "/v1/chat/completions", body);
}

static json_t *user_says(const char *text)
{
    return json_pack("[{s:s, s:s}]", "role", "user", "content", text);
}

void load_cases_add_prompt(LoadCases *c, const char *name, int chat, const char *text,
                           const char *fields)
{
    if (!chat) {
        add_completion(c, name, text, fields);
        return;
    }
    json_t *messages = user_says(text);
    load_cases_add_chat(c, name, messages, NULL, fields);
    json_decref(messages);
}

static json_t *ids_body(const int32_t *id, int n_ids, int n, const char *fields)
{
    json_t *body = json_loads(fields, 0, NULL), *prompt = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(prompt, json_integer(id[i % n_ids]));
    json_object_set_new(body, "prompt", prompt);
    return body;
}

void load_cases_add_ids(LoadCases *c, const char *name, const int32_t *id, int n_ids, int n,
                        const char *fields)
{
    add(c, name, "/v1/completions", ids_body(id, n_ids, n, fields));
}

void load_case_set_ids(LoadCase *one, const int32_t *id, int n, const char *fields)
{
    free(one->body[0]);
    free(one->body[1]);
    one->body[0] = NULL;
    one->body[1] = streamed_body(ids_body(id, n, n, fields));
}

static void set_text(char **text, const char *name, const char *value)
{
    json_t *body = json_loads(*text, 0, NULL);
    json_object_set_new(body, name, json_string(value));
    free(*text);
    *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
}

void load_cases_set_text(LoadCases *c, const char *name, const char *value)
{
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < 2; k++)
            set_text(&c->list[i].body[k], name, value);
}

/* ---- the mix ---- */

/* A conversation up to the answer that it ends with or waits for, or its first question. NULL:
 * neither is there. */
static json_t *question(const json_t *line)
{
    const json_t *messages = json_object_get(line, "messages");
    const char *turn = json_string_value(json_array_get(json_object_get(line, "turns"), 0));
    size_t n = json_array_size(messages);
    if (turn) return user_says(turn);
    if (n && json_lines_is_answer(json_array_get(messages, n - 1))) n--;
    if (!n) return NULL;
    json_t *history = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(history, json_array_get(messages, i));
    return history;
}

/*
 * A question in all manners; a conversation with its long list of tools in one of them, or reading
 * prompts would be most of the work.
 */
static int add_line(void *ctx, int number, const json_t *line, Error *err)
{
    LoadCases *c = ctx;
    enum { N_MANNERS = sizeof chat_manners / sizeof *chat_manners };
    json_t *tools, *messages;
    if (json_lines_tools(line, &tools, err)) return -1;
    messages = question(line);
    if (!messages) return error_set(err, ERR_INPUT, "neither 'turns' nor 'messages' has a prompt");
    for (int i = 0; i < N_MANNERS; i++) {
        char name[64];
        if (tools && i != number % N_MANNERS) continue;
        snprintf(name, sizeof name, "chat %d, %s", number, chat_manners[i].name);
        load_cases_add_chat(c, name, messages, tools, chat_manners[i].fields);
    }
    json_decref(messages);
    return 0;
}

int load_cases_none_fits(const LoadCases *c, Error *err)
{
    const LoadCase *shortest = &c->list[0];
    for (int i = 1; i < c->n; i++)
        if (c->list[i].left_out && strlen(c->list[i].body[1]) < strlen(shortest->body[1]))
            shortest = &c->list[i];
    return error_set(err, ERR_LIMIT,
                     "no prompt fits the server's context; of the shortest request: %s",
                     shortest->left_out ? shortest->left_out : "nothing");
}

char *load_cases_text(size_t n_bytes)
{
    static const char *const words[] = {
        "river",   "a",     "of",    "quiet", "seven",  "because", "the",     "station",
        "written", "under", "was",   "light", "engine", "and",     "morning", "42",
        "they",    "in",    "paper", "took",  "answer", "before",  "every",   "stone",
    };
    StrBuf text = {0};
    for (uint32_t state = 1; text.len < n_bytes;) {
        state = state * 1664525u + 1013904223u;
        strbuf_puts(&text, words[(state >> 16) % (sizeof words / sizeof *words)]);
        strbuf_puts(&text, (state >> 24) % 11 ? " " : ".\n");
    }
    char *copy = mem_strdup(strbuf_str(&text));
    strbuf_free(&text);
    return copy;
}

int load_cases_add_mix(LoadCases *c, const char *path, int limit, Error *err)
{
    enum { LONG_BYTES = 8000 };
    if (json_lines_read(path, limit, add_line, c, err)) return -1;
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        for (size_t i = 0; i < sizeof text_manners / sizeof *text_manners; i++) {
            char name[64];
            snprintf(name, sizeof name, "text %zu, %s", t + 1, text_manners[i].name);
            add_completion(c, name, texts[t], text_manners[i].fields);
        }
    }
    char *text = load_cases_text(LONG_BYTES);
    add_completion(c, "long text, greedy", text, text_manners[0].fields);
    mem_free(text);
    return 0;
}
