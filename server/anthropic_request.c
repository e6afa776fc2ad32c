/*
 * anthropic_request.c: a body of /v1/messages, made into a chat request; see translate.h.
 *
 * Its messages hold blocks where a chat has messages of several roles: a tool's result is a message
 * of its own there, before what the user says beside it.
 */
#include "server/translate.h"

#include <string.h>

#include "base/strbuf.h"

#define NAMES(format)                                                                              \
    {                                                                                              \
        {"response_format.json_schema.schema", format ".schema"}, {"response_format", format},     \
            {"stop", "stop_sequences"}, {".function.parameters", ".input_schema"},                 \
            {".function", ""},                                                                     \
        {                                                                                          \
            NULL, NULL                                                                             \
        }                                                                                          \
    }

/* The schema of the answer, under its present name and the one before. */
static const json_t *find_format(const json_t *body, int *is_old)
{
    const json_t *format = json_field(json_field(body, "output_config"), "format");
    *is_old = !format;
    return format ? format : json_field(body, "output_format");
}

const ApiFieldName *anthropic_names(const json_t *body)
{
    static const ApiFieldName names[] = NAMES("output_config.format"),
                              old_names[] = NAMES("output_format");
    int is_old = 0;
    return find_format(body, &is_old) && is_old ? old_names : names;
}

/* ---- the user's side ---- */

static int is_text(const json_t *block)
{
    return !strcmp(translate_type(block), "text");
}

/* A list of text blocks, line by line; NULL where one is none. A new reference. */
static json_t *text_lines(const json_t *blocks)
{
    json_t *block, *all = NULL;
    StrBuf text = {0};
    size_t i;
    json_array_foreach(blocks, i, block)
    {
        if (!is_text(block)) break;
        if (i) strbuf_puts(&text, "\n");
        translate_add(&text, json_object_get(block, "text"));
    }
    if (i && i == json_array_size(blocks)) all = json_stringn(strbuf_str(&text), text.len);
    strbuf_free(&text);
    return all;
}

/* The text of a document that came as such or in blocks, or NULL. A new reference. */
static json_t *document_text(const json_t *block)
{
    const json_t *source = json_object_get(block, "source");
    const char *type = translate_type(source);
    json_t *text = NULL;
    if (!strcmp(type, "text")) text = json_object_get(source, "data");
    if (!strcmp(type, "content")) text = json_object_get(source, "content");
    return json_is_string(text) ? json_incref(text) : text_lines(text);
}

/* A result of the client's own search: its title, where it is from, what it says. */
static json_t *search_result_text(const json_t *block)
{
    json_t *part, *all;
    StrBuf text = {0};
    size_t i;
    translate_add(&text, json_object_get(block, "title"));
    strbuf_puts(&text, "\n");
    translate_add(&text, json_object_get(block, "source"));
    json_array_foreach(json_object_get(block, "content"), i, part)
    {
        strbuf_puts(&text, "\n");
        translate_add(&text, json_object_get(part, "text"));
    }
    all = json_stringn(text.data, text.len);
    strbuf_free(&text);
    return all;
}

/* What a block of a tool's result says, in text; NULL: nothing. A new reference. */
static json_t *result_text(const json_t *block)
{
    const char *type = translate_type(block);
    if (!strcmp(type, "search_result")) return search_result_text(block);
    if (!strcmp(type, "text")) return json_incref(json_object_get(block, "text"));
    if (!strcmp(type, "image")) return json_string(IMAGE_OMITTED);
    if (!strcmp(type, "tool_reference")) return json_incref(json_object_get(block, "tool_name"));
    if (strcmp(type, "document") != 0) return NULL;
    json_t *text = document_text(block);
    return text ? text : json_string("[document omitted]");
}

/* A tool's result as a message: its texts line by line, an error named as one. */
static json_t *tool_message(const json_t *block)
{
    const json_t *content = json_object_get(block, "content"), *part;
    StrBuf text = {0};
    size_t i;
    int n = 0;
    if (json_is_true(json_object_get(block, "is_error"))) strbuf_puts(&text, "Error: ");
    translate_add(&text, content);
    json_array_foreach(content, i, part)
    {
        json_t *said = result_text(part);
        if (said && n++) strbuf_puts(&text, "\n");
        translate_add(&text, said);
        json_decref(said);
    }
    json_t *m = translate_result(json_object_get(block, "tool_use_id"),
                                 json_stringn(strbuf_str(&text), text.len));
    strbuf_free(&text);
    return m;
}

static int add_result(ApiPlace p, const json_t *block, json_t *out)
{
    const json_t *content = json_field(block, "content");
    if (content && !json_is_string(content) && !json_is_array(content))
        return api_refuse(p, "has a tool_result whose content is no string and no list of blocks");
    return json_array_append_new(out, tool_message(block));
}

/* Appends a block to parts; of a type that has no place in a chat, nothing. */
static int add_user_block(ApiPlace p, const json_t *block, json_t *parts)
{
    const char *type = translate_type(block);
    json_t *text = NULL;
    if (!strcmp(type, "search_result"))
        return json_array_append_new(parts, translate_part(search_result_text(block)));
    if (is_text(block)) {
        text = json_object_get(block, "text");
        if (!json_is_string(text)) return api_refuse(p, "has a text block without text");
        json_incref(text);
    } else if (!strcmp(type, "document")) {
        text = document_text(block);
    }
    if (text) return json_array_append_new(parts, translate_part(text));
    if (strcmp(type, "image") != 0 && strcmp(type, "document") != 0) return 0;
    p.err->code = "unsupported_content";
    return api_refuse(p, "has a block that is not text: this server takes text only");
}

static int add_user(ApiPlace p, const json_t *blocks, json_t *out)
{
    json_t *parts = json_array(), *block;
    size_t i, n_before = json_array_size(out);
    int rc = 0;
    json_array_foreach(blocks, i, block)
    {
        if (!strcmp(translate_type(block), "tool_result"))
            rc = add_result(p, block, out);
        else
            rc = add_user_block(p, block, parts);
        if (rc) break;
    }
    if (!rc && (json_array_size(parts) || json_array_size(out) == n_before))
        json_array_append_new(out, translate_message("user", json_incref(parts)));
    json_decref(parts);
    return rc;
}

/* ---- the assistant's ---- */

static void add_thinking_block(const json_t *block, StrBuf *reasoning)
{
    const json_t *text = json_object_get(block, "thinking");
    if (json_string_length(text))
        translate_add(reasoning, text);
    else
        translate_add_signed(reasoning, json_object_get(block, "signature"));
}

static int add_assistant_block(ApiPlace p, const json_t *block, json_t *parts, json_t *calls,
                               StrBuf *reasoning)
{
    const char *type = translate_type(block);
    if (is_text(block)) return add_user_block(p, block, parts);
    if (!strcmp(type, "thinking")) add_thinking_block(block, reasoning);
    if (strcmp(type, "tool_use") != 0) return 0;
    json_t *name = json_object_get(block, "name"), *input = json_object_get(block, "input");
    if (!json_is_string(name)) return api_refuse(p, "has a tool_use without a name");
    input = json_is_object(input) ? json_incref(input) : json_object();
    return json_array_append_new(
        calls, translate_call(json_object_get(block, "id"), json_incref(name), input));
}

static int add_assistant(ApiPlace p, const json_t *blocks, json_t *out)
{
    json_t *parts = json_array(), *calls = json_array(), *block;
    StrBuf reasoning = {0};
    size_t i;
    int rc = 0;
    json_array_foreach(blocks, i, block)
    {
        rc = add_assistant_block(p, block, parts, calls, &reasoning);
        if (rc) break;
    }
    json_t *m = translate_message("assistant", parts);
    if (json_array_size(calls)) json_object_set(m, "tool_calls", calls);
    if (reasoning.len)
        json_object_set_new(m, "reasoning_content", json_stringn(reasoning.data, reasoning.len));
    json_array_append_new(out, m);
    json_decref(calls);
    strbuf_free(&reasoning);
    return rc;
}

/* ---- messages ---- */

/*
 * Claude Code tells of its surroundings in a system message behind the user's. It goes before it: a
 * template's last turn is to be what the user asks.
 */
static int add_late_system(json_t *content, json_t *out)
{
    size_t n = json_array_size(out);
    if (n && !strcmp(translate_text(json_array_get(out, n - 1), "role"), "user")) n--;
    return json_array_insert_new(out, n, translate_message("system", json_incref(content)));
}

static int add_message(size_t i, const json_t *m, json_t *out, ApiError *err)
{
    ApiPlace p = api_place("messages", i, ".content", err);
    const char *role = translate_text(m, "role");
    json_t *content = json_object_get(m, "content"), *block;
    size_t k;
    int by_user = !strcmp(role, "user");
    if (!by_user && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0)
        return api_refuse(api_place("messages", i, ".role", err), "must be user or assistant");
    if (!json_is_string(content) && !json_is_array(content))
        return api_refuse(p, "must be a string or a list of blocks");
    if (*role == 's') return add_late_system(content, out);
    if (json_is_string(content))
        return json_array_append_new(out, translate_message(role, json_incref(content)));
    json_array_foreach(content, k, block)
    {
        if (!json_is_object(block)) return api_refuse(p, "has a block that is not an object");
    }
    return by_user ? add_user(p, content, out) : add_assistant(p, content, out);
}

/* Adds a block as a paragraph; one that is a billing line and nothing else is none. */
static void add_paragraph(const json_t *text, int *n, StrBuf *out)
{
    const char *s = json_string_value(text);
    size_t len = json_string_length(text), n_dropped = api_billing_line(s, len);
    if (n_dropped && n_dropped == len) return;
    if (++*n > 1) strbuf_puts(out, "\n\n");
    strbuf_add(out, s + n_dropped, len - n_dropped);
}

/* Blocks of a system text are one message. */
static int add_system_blocks(const json_t *blocks, json_t *out, ApiError *err)
{
    StrBuf all = {0};
    json_t *block;
    size_t i;
    int n = 0, rc = 0;
    json_array_foreach(blocks, i, block)
    {
        const json_t *text = json_object_get(block, "text");
        if (is_text(block) && json_is_string(text))
            add_paragraph(text, &n, &all);
        else
            rc = api_refuse(api_place("system", i, "", err), "must be a text block");
        if (rc) break;
    }
    if (!rc && n)
        json_array_append_new(out,
                              translate_message("system", json_stringn(strbuf_str(&all), all.len)));
    strbuf_free(&all);
    return rc;
}

static int add_system(const json_t *system, json_t *out, ApiError *err)
{
    if (json_is_array(system)) return add_system_blocks(system, out, err);
    if (!system) return 0;
    if (!json_is_string(system))
        return api_error(err, ERR_INPUT, "system", "system must be a string or a list of blocks");
    return json_array_append_new(out, translate_message("system", json_incref((json_t *)system)));
}

/* A last message of the assistant's is the beginning of its answer, unless it calls tools. */
static int is_prefill(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    return !strcmp(translate_text(last, "role"), "assistant") &&
           !json_object_get(last, "tool_calls");
}

/*
 * Conversations are not stored. Anthropic's SDK, whose tool runner asks for a thread, knows this
 * code and sends all messages instead.
 */
static int refuse_thread(const json_t *body, ApiError *err)
{
    if (!json_field(body, "thread")) return 0;
    err->code = "thread_unsupported_request";
    return api_error(err, ERR_INPUT, "thread",
                     "thread: conversations are not stored; send all messages without it");
}

static int add_messages(const json_t *body, json_t *chat, ApiError *err)
{
    const json_t *list = json_field(body, "messages");
    json_t *out = json_array(), *m;
    size_t i;
    json_object_set_new(chat, "messages", out);
    if (!json_is_array(list) || !json_array_size(list))
        return api_error(err, ERR_INPUT, "messages", "messages: at least one message is required");
    if (add_system(json_field(body, "system"), out, err)) return -1;
    json_array_foreach(list, i, m)
    {
        if (add_message(i, m, out, err)) return -1;
    }
    if (is_prefill(out)) json_object_set_new(chat, "continue_final_message", json_true());
    return 0;
}

/* ---- tools ---- */

/* The model's are those with a schema; what runs at Anthropic's stays as it is, to be skipped. */
static json_t *read_tool(json_t *tool)
{
    const json_t *schema = json_field(tool, "input_schema");
    const char *type = translate_type(tool);
    if (!json_is_object(tool) || (!schema && *type && strcmp(type, "custom") != 0))
        return json_incref(tool);
    return translate_tool(json_field(tool, "name"), json_field(tool, "description"), schema,
                          json_field(tool, "strict"));
}

static int add_tools(const json_t *body, json_t *chat, ApiError *err)
{
    json_t *list = (json_t *)json_field(body, "tools"), *tool;
    size_t i;
    if (!list) return 0;
    if (!json_is_array(list)) return api_error(err, ERR_INPUT, "tools", "tools must be a list");
    json_t *out = json_array();
    json_array_foreach(list, i, tool)
    {
        json_array_append_new(out, read_tool(tool));
    }
    return json_object_set_new(chat, "tools", out);
}

static int add_tool_choice(const json_t *body, json_t *chat, ApiError *err)
{
    const json_t *choice = json_field(body, "tool_choice");
    const char *type = translate_type(choice);
    int is_single = 0;
    if (!choice) return 0;
    if (api_read_bool(choice, "disable_parallel_tool_use", &is_single, err)) return -1;
    if (is_single) json_object_set_new(chat, "parallel_tool_calls", json_false());
    if (!strcmp(type, "any"))
        return json_object_set_new(chat, "tool_choice", json_string("required"));
    if (!strcmp(type, "tool"))
        return json_object_set_new(chat, "tool_choice",
                                   json_pack("{s:s, s:{s:O?}}", "type", "function", "function",
                                             "name", json_object_get(choice, "name")));
    if (strcmp(type, "auto") != 0 && strcmp(type, "none") != 0)
        return api_error(err, ERR_INPUT, "tool_choice",
                         "tool_choice.type must be auto, any, tool or none");
    return json_object_set_new(chat, "tool_choice", json_string(type));
}

/* ---- the rest ---- */

static int add_format(const json_t *body, json_t *chat, ApiError *err)
{
    int is_old = 0;
    const json_t *config = json_field(body, "output_config"), *format = find_format(body, &is_old);
    if (config && !json_is_object(config))
        return api_error(err, ERR_INPUT, "output_config", "output_config must be an object");
    if (!format) return 0;
    return json_object_set_new(chat, "response_format",
                               json_pack("{s:O?, s:{s:s, s:O?, s:b}}", "type",
                                         json_object_get(format, "type"), "json_schema", "name",
                                         "output", "schema", json_object_get(format, "schema"),
                                         "strict", 1));
}

static int add_stops(const json_t *body, json_t *chat, ApiError *err)
{
    const json_t *v = json_field(body, "stop_sequences");
    if (!v) return 0;
    if (!json_is_array(v))
        return api_error(err, ERR_INPUT, "stop_sequences", "stop_sequences must be a list");
    return json_object_set(chat, "stop", (json_t *)v);
}

json_t *anthropic_to_chat(const json_t *body, ApiError *err)
{
    static const char *const own[] = {
        "system", "output_format", "stop_sequences", "mcp_servers", "service_tier", "stop", NULL};
    json_t *chat = translate_copy(body, own);
    if (!refuse_thread(body, err) && !add_messages(body, chat, err) &&
        !add_tools(body, chat, err) && !add_tool_choice(body, chat, err) &&
        !translate_length(body, "max_tokens", 0, chat, err) && !add_stops(body, chat, err) &&
        !add_format(body, chat, err))
        return chat;
    json_decref(chat);
    return NULL;
}
