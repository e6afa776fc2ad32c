/*
 * responses_request.c: a body of /v1/responses, made into a chat request; see translate.h.
 *
 * Its input is a list of items where a chat has messages: reasoning, a message and calls that
 * follow each other are one turn of the assistant. Nothing is stored here, so each request brings
 * all of it: a reference to a stored item is refused, or its turn would be missing without a word.
 * Items that only a hosted tool would understand are left out.
 */
#include "server/responses_tools.h"
#include "server/translate.h"

#include <stdio.h>
#include <string.h>

const ApiFieldName *responses_names(const json_t *body)
{
    static const ApiFieldName names[] = {
        {"response_format.json_schema.schema", "text.format.schema"},
        {"response_format", "text.format"},
        {"messages", "input"},
        {"logprobs", "top_logprobs"},
        {".function", ""},
        {NULL, NULL},
    };
    (void)body;
    return names;
}

/* ---- items ---- */

typedef struct {
    json_t *out;      /* messages so far */
    json_t *turn;     /* the assistant's, which calls may join; NULL: none */
    StrBuf reasoning; /* of the assistant's next turn */
    size_t i;         /* of the item */
    ApiError *err;
} History;

static int is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(word, *list)) return 1;
    return 0;
}

/* Whatever is said next, the assistant's turn is over. */
static void end_turn(History *h)
{
    h->turn = NULL;
    strbuf_clear(&h->reasoning);
}

/* Adds a message; the assistant's takes the reasoning before it. */
static void add_message(History *h, const char *role, json_t *content)
{
    json_t *m = translate_message(role, content);
    json_array_append_new(h->out, m);
    int by_assistant = !strcmp(role, "assistant");
    if (by_assistant && h->reasoning.len)
        json_object_set_new(m, "reasoning_content",
                            json_stringn(h->reasoning.data, h->reasoning.len));
    end_turn(h);
    if (by_assistant) h->turn = m;
}

static int has_text(const json_t *part)
{
    const char *key = strcmp(translate_type(part), "refusal") ? "text" : "refusal";
    return json_is_string(part) || json_is_string(json_object_get(part, key));
}

/* Parts as the chat's reader takes them, without those that it does not know. NULL and an error. */
static json_t *read_parts(const History *h, const json_t *content)
{
    static const char *const texts[] = {"input_text", "output_text", "text", "refusal", NULL};
    static const char *const media[] = {"input_image", "input_file", "input_audio", NULL};
    ApiPlace p = api_place("input", h->i, ".content", h->err);
    json_t *parts = json_array(), *part;
    size_t k;
    json_array_foreach(content, k, part)
    {
        const char *type = translate_type(part);
        int is_text = json_is_string(part) || is_one_of(type, texts);
        if (is_text && !has_text(part)) {
            api_refuse(p, "has a part without text");
            break;
        }
        if (is_text) json_array_append(parts, part);
        if (!is_one_of(type, media)) continue;
        h->err->code = "unsupported_content";
        api_refuse(p, "has a part that is not text: this server takes text only");
        break;
    }
    if (k == json_array_size(content)) return parts;
    json_decref(parts);
    return NULL;
}

static int read_message(History *h, const json_t *item)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    json_t *content = json_object_get(item, "content");
    const char *role = translate_text(item, "role");
    if (!is_one_of(role, roles))
        return api_refuse(api_place("input", h->i, ".role", h->err),
                          "must be user, assistant, system or developer");
    if (!json_is_string(content) && !json_is_array(content))
        return api_refuse(api_place("input", h->i, ".content", h->err),
                          "must be a string or a list of parts");
    content = json_is_string(content) ? json_incref(content) : read_parts(h, content);
    if (!content) return -1;
    add_message(h, role, content);
    return 0;
}

/* Summaries are not the model's own words; in encrypted_content of ours these are once more. */
static void read_reasoning(History *h, const json_t *item)
{
    const json_t *part;
    size_t k;
    end_turn(h);
    json_array_foreach(json_object_get(item, "content"), k, part)
    {
        translate_add(&h->reasoning, json_object_get(part, "text"));
    }
    if (!h->reasoning.len)
        translate_add_signed(&h->reasoning, json_object_get(item, "encrypted_content"));
}

/* Takes arguments; NULL: they were refused. */
static int read_call(History *h, const json_t *item, json_t *arguments)
{
    const json_t *name = json_object_get(item, "name");
    StrBuf flat = {0};
    if (!arguments) return -1;
    if (!json_is_string(name)) {
        json_decref(arguments);
        return api_refuse(api_place("input", h->i, ".name", h->err), "must be a string");
    }
    if (!h->turn) add_message(h, "assistant", NULL);
    json_t *calls = json_object_get(h->turn, "tool_calls");
    if (!calls) json_object_set_new(h->turn, "tool_calls", calls = json_array());
    responses_flat_name(json_field(item, "namespace"), name, &flat);
    json_array_append_new(calls,
                          translate_call(json_object_get(item, "call_id"),
                                         json_stringn(strbuf_str(&flat), flat.len), arguments));
    strbuf_free(&flat);
    return 0;
}

/* A text of an item, "" where there is none. NULL and an error for what is no text. */
static json_t *read_text(const History *h, const json_t *item, const char *key)
{
    char field[16];
    json_t *text = (json_t *)json_field(item, key);
    if (!text) return json_string("");
    if (json_is_string(text)) return json_incref(text);
    snprintf(field, sizeof field, ".%s", key);
    api_refuse(api_place("input", h->i, field, h->err), "must be a string");
    return NULL;
}

/* As text, or as the object that it stands for, which the chat's reader takes as well. */
static json_t *read_arguments(const History *h, const json_t *item)
{
    json_t *arguments = json_object_get(item, "arguments");
    return json_is_object(arguments) ? json_incref(arguments) : read_text(h, item, "arguments");
}

static json_t *read_input(const History *h, const json_t *item)
{
    json_t *input = read_text(h, item, "input");
    return input ? json_pack("{s:o}", "input", input) : NULL;
}

/* What a tool gave back: its texts, and a word for each image. */
static int read_output(History *h, const json_t *item)
{
    const json_t *output = json_field(item, "output"), *part;
    StrBuf text = {0};
    size_t k;
    if (output && !json_is_string(output) && !json_is_array(output))
        return api_refuse(api_place("input", h->i, ".output", h->err),
                          "must be a string or a list of parts");
    translate_add(&text, output);
    json_array_foreach(output, k, part)
    {
        const char *type = translate_type(part);
        if (!strcmp(type, "input_image") || !strcmp(type, "input_file"))
            strbuf_puts(&text, IMAGE_OMITTED);
        translate_add(&text, json_object_get(part, "text"));
    }
    end_turn(h);
    json_array_append_new(h->out, translate_result(json_object_get(item, "call_id"),
                                                   json_stringn(strbuf_str(&text), text.len)));
    strbuf_free(&text);
    return 0;
}

/* Its type may be missing. */
static int is_reference(const json_t *item)
{
    const char *type = translate_type(item);
    return !strcmp(type, "item_reference") ||
           (!*type && !json_field(item, "role") && json_field(item, "id"));
}

static int read_item(History *h, const json_t *item)
{
    const char *type = translate_type(item);
    ApiPlace p = api_place("input", h->i, "", h->err);
    if (!json_is_object(item)) return api_refuse(p, "must be an object");
    if (is_reference(item))
        return api_refuse(p, "refers to a stored item. Responses are not stored; send the item "
                             "itself, as clients do with store: false");
    if (!strcmp(type, "message") || (!*type && json_field(item, "role")))
        return read_message(h, item);
    if (!strcmp(type, "function_call")) return read_call(h, item, read_arguments(h, item));
    if (!strcmp(type, "custom_tool_call")) return read_call(h, item, read_input(h, item));
    if (!strcmp(type, "function_call_output") || !strcmp(type, "custom_tool_call_output"))
        return read_output(h, item);
    if (!strcmp(type, "reasoning")) read_reasoning(h, item);
    return 0;
}

/* ---- the body ---- */

static int add_input(const json_t *body, json_t *chat, ApiError *err)
{
    const json_t *input = json_field(body, "input"), *item;
    json_t *instructions = (json_t *)json_field(body, "instructions");
    History h = {.out = json_array(), .err = err};
    int rc = 0;
    json_object_set_new(chat, "messages", h.out);
    if (instructions && !json_is_string(instructions))
        return api_error(err, ERR_INPUT, "instructions", "instructions must be a string");
    if (!json_is_string(input) && !json_array_size(input))
        return api_error(err, ERR_INPUT, "input", "input must be a string or a list of items");
    if (instructions) add_message(&h, "system", json_incref(instructions));
    if (json_is_string(input)) add_message(&h, "user", json_incref((json_t *)input));
    json_array_foreach(input, h.i, item)
    {
        rc = read_item(&h, item);
        if (rc) break;
    }
    strbuf_free(&h.reasoning);
    if (!rc && !json_array_size(h.out))
        return api_error(err, ERR_INPUT, "input", "input must hold a message, a call or an output");
    return rc;
}

static int add_format(const json_t *body, json_t *chat, ApiError *err)
{
    const json_t *text = json_field(body, "text");
    json_t *format = (json_t *)json_field(text, "format");
    if (text && !json_is_object(text))
        return api_error(err, ERR_INPUT, "text", "text must be an object");
    if (!format) return 0;
    if (strcmp(translate_type(format), "json_schema") != 0)
        return json_object_set(chat, "response_format", format);
    return json_object_set_new(
        chat, "response_format",
        json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", format));
}

static int refuse_stored(const json_t *body, ApiError *err)
{
    static const char *const fields[] = {"previous_response_id", "conversation", "prompt", NULL};
    for (int i = 0; fields[i]; i++)
        if (json_field(body, fields[i]))
            return api_error(err, ERR_INPUT, fields[i],
                             "Responses are not stored; send the whole conversation in input");
    if (json_is_true(json_field(body, "background")))
        return api_error(err, ERR_INPUT, "background",
                         "Responses are not stored; background must be false");
    return 0;
}

int responses_include(const json_t *body, const char *word)
{
    const json_t *one;
    size_t i;
    json_array_foreach(json_field(body, "include"), i, one)
    {
        const char *asked = api_word(one);
        if (asked && !strcmp(asked, word)) return 1;
    }
    return 0;
}

/* A word of include asks for them, top_logprobs for alternatives, which clients say alone, too. */
static int add_logprobs(const json_t *body, json_t *chat, ApiError *err)
{
    int n = 0;
    if (api_read_int(body, "top_logprobs", 0, MAX_LOGPROBS, &n, err)) return -1;
    if (!n && !responses_include(body, "message.output_text.logprobs")) return 0;
    json_object_set_new(chat, "logprobs", json_true());
    return json_object_set_new(chat, "top_logprobs", json_integer(n));
}

/*
 * A conversation that is too long is an error, never shortened, as the reply says by "disabled";
 * clients say "auto" of those that fit as well.
 */
static int check_truncation(const json_t *body, ApiError *err)
{
    const char *word = translate_text(body, "truncation");
    if (!json_field(body, "truncation") || !strcmp(word, "disabled") || !strcmp(word, "auto"))
        return 0;
    return api_error(err, ERR_INPUT, "truncation", "truncation must be auto or disabled");
}

json_t *responses_to_chat(const json_t *body, ApiError *err)
{
    static const char *const own[] = {"input",      "instructions",         "text",
                                      "background", "previous_response_id", "conversation",
                                      "include",    "max_output_tokens",    NULL};
    json_t *chat = translate_copy(body, own);
    if (!refuse_stored(body, err) && !add_logprobs(body, chat, err) &&
        !check_truncation(body, err) && !add_input(body, chat, err) &&
        !translate_length(body, "max_output_tokens", 1, chat, err) &&
        !responses_add_tools(body, chat, err) && !add_format(body, chat, err))
        return chat;
    json_decref(chat);
    return NULL;
}
