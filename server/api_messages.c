/*
 * api_messages.c: messages and tools as clients send them, made into what chat_render takes.
 *
 * Clients differ more than templates do: content in parts, other names for roles, system messages
 * anywhere, arguments as text. All of that ends here; see api_request.h.
 */
#include "server/api_request.h"

#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"

/* Where in the request we are, for errors. */
typedef struct {
    char name[48]; /* "messages[3].content" */
    ApiError *err;
} Place;

static Place place(const char *list, size_t i, const char *field, ApiError *err)
{
    Place p = {.err = err};
    snprintf(p.name, sizeof p.name, "%s[%zu]%s", list, i, field);
    return p;
}

static int refuse(Place p, const char *what)
{
    return api_error(p.err, ERR_INPUT, p.name, "%s %s", p.name, what);
}

/* ---- messages ---- */

static const char *known_role(const char *role)
{
    static const char *const roles[][2] = {
        {"system", "system"},       {"developer", "system"}, {"user", "user"},
        {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"},
    };
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(role, roles[i][0])) return roles[i][1];
    return NULL;
}

static int add_part(Place p, const json_t *part, StrBuf *out)
{
    const json_t *text = part;
    if (json_is_object(part)) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type) return refuse(p, "has a part without a type");
        if (!strcmp(type, "refusal")) {
            text = json_object_get(part, "refusal");
        } else if (!strcmp(type, "text") || !strcmp(type, "input_text") ||
                   !strcmp(type, "output_text")) {
            text = json_object_get(part, "text");
        } else {
            p.err->code = "unsupported_content";
            return refuse(p, "has a part that is not text: this server takes text only");
        }
    }
    if (!json_is_string(text)) return refuse(p, "has a part without text");
    strbuf_add(out, json_string_value(text), json_string_length(text));
    return 0;
}

/* Content as one string, or JSON null when there is none. NULL and an error for other types. */
static json_t *read_content(Place p, const json_t *content)
{
    if (!content || json_is_null(content)) return json_null();
    if (json_is_string(content)) return json_incref((json_t *)content);
    if (!json_is_array(content)) {
        refuse(p, "must be a string or a list of parts");
        return NULL;
    }
    StrBuf text = {0};
    json_t *joined = NULL, *part;
    size_t i;
    json_array_foreach(content, i, part)
    {
        if (add_part(p, part, &text)) break;
    }
    if (i == json_array_size(content)) joined = json_stringn(strbuf_str(&text), text.len);
    strbuf_free(&text);
    return joined;
}

/*
 * An object from the text of a call's arguments. Text that is none is kept as one parameter: a call
 * that was once cut off must not make its conversation impossible for ever.
 */
static json_t *read_arguments(const json_t *given)
{
    json_error_t je;
    if (json_is_object(given)) return json_incref((json_t *)given);
    if (!json_string_length(given)) return json_object();
    json_t *parsed =
        json_loadb(json_string_value(given), json_string_length(given), JSON_ALLOW_NUL, &je);
    if (json_is_object(parsed)) return parsed;
    json_decref(parsed);
    return json_pack("{s:O}", "arguments", given);
}

static json_t *read_calls(Place p, const json_t *calls)
{
    json_t *out = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        const json_t *f = api_field(call, "function");
        const json_t *name = json_object_get(f, "name");
        if (!json_is_string(name)) {
            refuse(p, "has a call without a function name");
            json_decref(out);
            return NULL;
        }
        json_t *arguments = read_arguments(json_object_get(f, "arguments"));
        json_array_append_new(
            out, json_pack("{s:{s:O, s:o}}", "function", "name", name, "arguments", arguments));
    }
    return out;
}

static int read_assistant(size_t i, const json_t *m, json_t *out, ApiError *err)
{
    const json_t *reasoning = api_field(m, "reasoning_content");
    if (!reasoning) reasoning = api_field(m, "reasoning");
    if (json_is_string(reasoning)) json_object_set(out, "reasoning_content", (json_t *)reasoning);

    const json_t *calls = api_field(m, "tool_calls");
    if (!calls) return 0;
    Place p = place("messages", i, ".tool_calls", err);
    if (!json_is_array(calls)) return refuse(p, "must be a list");
    if (!json_array_size(calls)) return 0;
    json_t *read = read_calls(p, calls);
    if (!read) return -1;
    json_object_set_new(out, "tool_calls", read);
    return 0;
}

static int add_message(json_t *out, size_t i, const char *role, json_t *content, const json_t *m,
                       ApiError *err)
{
    json_t *read = json_pack("{s:s, s:o}", "role", role, "content", content);
    json_array_append_new(out, read);
    return strcmp(role, "assistant") ? 0 : read_assistant(i, m, read, err);
}

static void add_system(StrBuf *system, const json_t *content)
{
    size_t len = json_string_length(content);
    if (system->data) strbuf_puts(system, "\n\n");
    strbuf_add(system, len ? json_string_value(content) : "", len); /* null counts as empty */
}

/*
 * The templates take one system message, at the beginning. Several there are joined in *system; one
 * that comes later (agents send such) is a user turn.
 */
static int read_message(json_t *out, size_t i, const json_t *m, StrBuf *system, ApiError *err)
{
    if (!json_is_object(m)) return refuse(place("messages", i, "", err), "must be an object");
    const char *role = known_role(json_string_value(json_object_get(m, "role")));
    if (!role)
        return refuse(place("messages", i, ".role", err),
                      "must be system, developer, user, assistant or tool");
    json_t *content =
        read_content(place("messages", i, ".content", err), json_object_get(m, "content"));
    if (!content) return -1;
    if (strcmp(role, "system") != 0) return add_message(out, i, role, content, m, err);
    if (json_array_size(out)) return add_message(out, i, "user", content, m, err);
    add_system(system, content);
    json_decref(content);
    return 0;
}

static int read_messages(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *list = api_field(body, "messages");
    StrBuf system = {0};
    int rc = 0;
    size_t i;
    json_t *m;
    if (!json_is_array(list) || !json_array_size(list))
        return api_error(err, ERR_INPUT, "messages", "messages must be a list of at least one");
    r->messages = json_array();
    json_array_foreach(list, i, m)
    {
        rc = read_message(r->messages, i, m, &system, err);
        if (rc) break;
    }
    if (!rc && system.data)
        json_array_insert_new(r->messages, 0,
                              json_pack("{s:s, s:o}", "role", "system", "content",
                                        json_stringn(system.data, system.len)));
    strbuf_free(&system);
    return rc;
}

/* ---- tools ---- */

static int name_is_fit(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 128 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-") == n;
}

static int is_declared(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        if (!strcmp(json_string_value(json_object_get(f, "name")), name)) return 1;
    }
    return 0;
}

/* Templates print a tool as it was sent; only missing parameters are filled in. */
static json_t *with_parameters(json_t *tool)
{
    json_t *f = json_object_get(tool, "function");
    if (api_field(f, "parameters")) return json_incref(tool);
    json_t *copy = json_copy(tool);
    f = json_copy(f);
    json_object_set_new(f, "parameters", json_pack("{s:s, s:{}}", "type", "object", "properties"));
    json_object_set_new(copy, "function", f);
    return copy;
}

static int add_tool(json_t *out, size_t i, json_t *tool, ApiError *err)
{
    Place p = place("tools", i, "", err);
    const json_t *type = api_field(tool, "type"), *f = api_field(tool, "function");
    if (!json_is_object(tool)) return refuse(p, "must be an object");
    /* Tools that run elsewhere (web search and such) are not for the model to call. */
    if (type && json_is_string(type) && strcmp(json_string_value(type), "function") != 0) return 0;
    const char *name = json_string_value(json_object_get(f, "name"));
    if (!name || !name_is_fit(name))
        return refuse(p, "needs function.name, at most 128 of A-Z a-z 0-9 _ . : / -");
    const json_t *parameters = api_field(f, "parameters");
    if (parameters && !json_is_object(parameters))
        return refuse(p, "has function.parameters that are not an object");
    if (is_declared(out, name)) return refuse(p, "repeats a function name");
    return json_array_append_new(out, with_parameters(tool));
}

static int read_tools(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *list = api_field(body, "tools");
    size_t i;
    json_t *tool;
    if (!list) return 0;
    if (!json_is_array(list) || json_array_size(list) > MAX_TOOLS)
        return api_error(err, ERR_INPUT, "tools", "tools must be a list of at most %d", MAX_TOOLS);
    r->tools = json_array();
    json_array_foreach(list, i, tool)
    {
        if (add_tool(r->tools, i, tool, err)) return -1;
    }
    return 0;
}

/* Forcing a call needs a grammar, which we do not have yet. */
static int read_tool_choice(const json_t *body, ApiError *err)
{
    const json_t *v = api_field(body, "tool_choice");
    if (!v) return 0;
    const char *choice = json_string_value(v);
    if (choice && (!strcmp(choice, "auto") || !strcmp(choice, "none"))) return 0;
    return api_error(err, ERR_INPUT, "tool_choice",
                     "tool_choice other than \"auto\" and \"none\" is not supported");
}

/* ---- thinking ---- */

static int read_switch(const json_t *obj, const char *key, int *on, ApiError *err)
{
    return api_field(obj, key) ? api_read_bool(obj, key, on, err) : 0;
}

static void read_effort(const json_t *effort, int *on)
{
    if (json_is_string(effort)) *on = strcmp(json_string_value(effort), "none") != 0;
}

/* Many dialects say the same; the later ones here win. */
static int read_thinking(ApiRequest *r, const json_t *body, ApiError *err)
{
    int *on = &r->enable_thinking;
    const json_t *kwargs = api_field(body, "chat_template_kwargs");
    const json_t *reasoning = api_field(body, "reasoning");
    const json_t *type = json_object_get(api_field(body, "thinking"), "type");
    if (kwargs && !json_is_object(kwargs))
        return api_error(err, ERR_INPUT, "chat_template_kwargs",
                         "chat_template_kwargs must be an object");
    if (json_is_string(type)) *on = strcmp(json_string_value(type), "disabled") != 0;
    read_effort(json_object_get(reasoning, "effort"), on);
    if (read_switch(reasoning, "enabled", on, err)) return -1;
    read_effort(api_field(body, "reasoning_effort"), on);
    if (read_switch(body, "enable_thinking", on, err)) return -1;
    if (read_switch(kwargs, "thinking", on, err)) return -1;
    return read_switch(kwargs, "enable_thinking", on, err);
}

int api_read_chat(ApiRequest *r, const json_t *body, const ApiDefaults *defaults, ApiError *err)
{
    int go_on = 0;
    r->add_generation_prompt = 1;
    r->enable_thinking = defaults->enable_thinking;
    if (api_read_bool(body, "add_generation_prompt", &r->add_generation_prompt, err) ||
        api_read_bool(body, "continue_final_message", &go_on, err))
        return -1;
    if (go_on)
        return api_error(err, ERR_INPUT, "continue_final_message",
                         "continue_final_message is not supported");
    if (read_messages(r, body, err) || read_tools(r, body, err) || read_tool_choice(body, err))
        return -1;
    return read_thinking(r, body, err);
}
