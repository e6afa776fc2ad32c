/*
 * api_messages.c: messages as clients send them, made into what chat_render takes.
 *
 * Clients differ more than templates do: content in parts, other names for roles, system messages
 * anywhere, arguments as text. All of that ends here; see api_request.h.
 */
#include "server/api_request.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"

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

/* Matches x-anthropic-billing-header:( *[a-z_]+=[^;\n]*;)*\n*, as far as it goes. */
size_t api_billing_line(const char *text, size_t len)
{
    static const char head[] = "x-anthropic-billing-header:";
    size_t n = sizeof head - 1;
    if (len < n || memcmp(text, head, n) != 0) return 0;
    for (size_t at = n;; n = at) {
        size_t name;
        while (at < len && text[at] == ' ')
            at++;
        for (name = at; at < len && ((text[at] >= 'a' && text[at] <= 'z') || text[at] == '_');)
            at++;
        if (at == name || at == len || text[at] != '=') break;
        while (at < len && text[at] != ';' && text[at] != '\n')
            at++;
        if (at == len || text[at++] != ';') break;
    }
    while (n < len && text[n] == '\n')
        n++;
    return n;
}

/* Where the texts of a content go. */
typedef struct {
    const char *join; /* between two of them */
    size_t *dropped;  /* NULL but for the system's: bytes of billing lines are added to it */
    StrBuf text;
} Content;

static void add_text(const json_t *text, Content *c)
{
    const char *s = json_string_value(text);
    size_t len = json_string_length(text), n = c->dropped ? api_billing_line(s, len) : 0;
    if (len > n && c->text.len) strbuf_puts(&c->text, c->join);
    strbuf_add(&c->text, s + n, len - n);
    if (n) *c->dropped += n;
}

static int add_part(ApiPlace p, const json_t *part, Content *c)
{
    const json_t *text = part;
    if (json_is_object(part)) {
        const char *type = api_word(json_object_get(part, "type"));
        if (!type) return api_refuse(p, "has a part without a type");
        if (!strcmp(type, "refusal")) {
            text = json_object_get(part, "refusal");
        } else if (!strcmp(type, "text") || !strcmp(type, "input_text") ||
                   !strcmp(type, "output_text")) {
            text = json_object_get(part, "text");
        } else {
            p.err->code = "unsupported_content";
            return api_refuse(p, "has a part that is not text: this server takes text only");
        }
    }
    if (!json_is_string(text)) return api_refuse(p, "has a part without text");
    add_text(text, c);
    return 0;
}

/*
 * Content as one string, or JSON null when there is none. NULL and an error for other types. Parts
 * are lines to a template that takes strings alone, as vLLM has it.
 */
static json_t *read_content(const ApiRequest *r, ApiPlace p, const json_t *content, size_t *dropped)
{
    Content c = {.join = chat_is_of_qwen35(r->family) ? "" : "\n", .dropped = dropped};
    if (!content || json_is_null(content)) return json_null();
    if (json_is_string(content) && !dropped) return json_incref((json_t *)content);
    if (!json_is_string(content) && !json_is_array(content)) {
        api_refuse(p, "must be a string or a list of parts");
        return NULL;
    }
    json_t *joined = NULL, *part;
    size_t i;
    if (json_is_string(content)) add_text(content, &c);
    json_array_foreach(content, i, part)
    {
        if (add_part(p, part, &c)) break;
    }
    if (i == json_array_size(content)) joined = json_stringn(strbuf_str(&c.text), c.text.len);
    strbuf_free(&c.text);
    return joined;
}

/*
 * An object from the text of a call's arguments. Text that is none, or too costly, is kept as one
 * parameter: a call that was once cut off must not make its conversation impossible for ever.
 */
static json_t *read_arguments(ApiRequest *r, const json_t *given)
{
    ApiError ignored = {0};
    if (json_is_object(given)) return json_incref((json_t *)given);
    if (!json_string_length(given)) return json_object();
    json_t *parsed =
        api_parse_one(&r->texts, json_string_value(given), json_string_length(given), &ignored);
    return parsed ? parsed : json_pack("{s:O}", "arguments", given);
}

static json_t *read_calls(ApiRequest *r, ApiPlace p, const json_t *calls)
{
    json_t *out = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        const json_t *f = json_field(call, "function");
        const json_t *name = json_object_get(f, "name");
        if (!json_is_string(name)) {
            api_refuse(p, "has a call without a function name");
            json_decref(out);
            return NULL;
        }
        json_t *arguments = read_arguments(r, json_object_get(f, "arguments"));
        json_array_append_new(
            out, json_pack("{s:{s:O, s:o}}", "function", "name", name, "arguments", arguments));
    }
    return out;
}

static int add_calls(ApiRequest *r, ApiPlace p, const json_t *calls, json_t *out)
{
    json_t *read = read_calls(r, p, calls);
    return read ? json_object_set_new(out, "tool_calls", read) : -1;
}

/* The one call that a message had before there were tool_calls. */
static int add_old_call(ApiRequest *r, ApiPlace p, const json_t *function, json_t *out)
{
    json_t *calls = json_pack("[{s:O}]", "function", function);
    int rc = add_calls(r, p, calls, out);
    json_decref(calls);
    return rc;
}

static int read_assistant(ApiRequest *r, size_t i, const json_t *m, json_t *out, ApiError *err)
{
    const json_t *reasoning = json_field(m, "reasoning_content");
    if (!reasoning) reasoning = json_field(m, "reasoning");
    if (json_is_string(reasoning)) json_object_set(out, "reasoning_content", (json_t *)reasoning);

    const json_t *calls = json_field(m, "tool_calls"), *old = json_field(m, "function_call");
    ApiPlace p = api_place("messages", i, ".tool_calls", err);
    if (calls && !json_is_array(calls)) return api_refuse(p, "must be a list");
    if (json_array_size(calls)) return add_calls(r, p, calls, out);
    return old ? add_old_call(r, api_place("messages", i, ".function_call", err), old, out) : 0;
}

static int add_message(ApiRequest *r, size_t i, const char *role, json_t *content, const json_t *m,
                       ApiError *err)
{
    json_t *read = json_pack("{s:s, s:o}", "role", role, "content", content);
    json_array_append_new(r->messages, read);
    return strcmp(role, "assistant") ? 0 : read_assistant(r, i, m, read, err);
}

static void add_system(StrBuf *system, const json_t *content)
{
    size_t len = json_string_length(content);
    if (system->data) strbuf_puts(system, "\n\n");
    strbuf_add(system, len ? json_string_value(content) : "", len); /* null counts as empty */
}

/*
 * Qwen3.5's template takes one system message, at the beginning. Several there are joined in
 * *system; one that comes later (agents send such) is a user turn. The others take all as they are.
 */
static int read_message(ApiRequest *r, size_t i, const json_t *m, StrBuf *system, ApiError *err)
{
    if (!json_is_object(m))
        return api_refuse(api_place("messages", i, "", err), "must be an object");
    const char *role = known_role(api_word(json_object_get(m, "role")));
    if (!role)
        return api_refuse(api_place("messages", i, ".role", err),
                          "must be system, developer, user, assistant or tool");
    size_t dropped = 0;
    int is_system = !strcmp(role, "system");
    json_t *content = read_content(r, api_place("messages", i, ".content", err),
                                   json_object_get(m, "content"), is_system ? &dropped : NULL);
    if (!content) return -1;
    if (!is_system) return add_message(r, i, role, content, m, err);
    if (dropped && !json_string_length(content)) { /* there was nothing else */
        json_decref(content);
        return 0;
    }
    if (!chat_is_of_qwen35(r->family)) return add_message(r, i, role, content, m, err);
    if (json_array_size(r->messages)) return add_message(r, i, "user", content, m, err);
    add_system(system, content);
    json_decref(content);
    return 0;
}

static int read_messages(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *list = json_field(body, "messages");
    StrBuf system = {0};
    int rc = 0;
    if (!json_is_array(list) || !json_array_size(list))
        return api_error(err, ERR_INPUT, "messages", "messages must be a list of at least one");
    r->messages = json_array();
    size_t *order = api_message_order(list);
    for (size_t i = 0; i < json_array_size(list) && !rc; i++)
        rc = read_message(r, order[i], json_array_get(list, order[i]), &system, err);
    mem_free(order);
    if (!rc && system.data)
        json_array_insert_new(r->messages, 0,
                              json_pack("{s:s, s:o}", "role", "system", "content",
                                        json_stringn(system.data, system.len)));
    strbuf_free(&system);
    return rc;
}

/* ---- thinking ---- */

/* A switch within a field of the body. */
static int read_switch(const json_t *body, const char *field, const char *key, int *on,
                       ApiError *err)
{
    const json_t *v = json_field(json_field(body, field), key);
    char name[sizeof err->param];
    snprintf(name, sizeof name, "%s.%s", field, key);
    if (v && !json_is_boolean(v))
        return api_error(err, ERR_INPUT, name, "%s must be true or false", name);
    if (v) *on = json_is_true(v);
    return 0;
}

/* "none" switches thinking off, any other on; what it says beside that is the template's. */
static int read_effort(ApiRequest *r, const json_t *effort, const char *param, ApiError *err)
{
    const char *name = json_string_value(effort);
    if (!effort) return 0;
    if (!name) return api_error(err, ERR_INPUT, param, "%s must be a string", param);
    r->chat.enable_thinking = strcmp(name, "none") != 0;
    if (r->chat.enable_thinking) r->chat.effort = name;
    return 0;
}

/* How many tokens of it, in a field of the body. */
static int read_budget(const json_t *body, const char *field, const char *key, long lo, int *budget,
                       ApiError *err)
{
    char name[sizeof err->param];
    snprintf(name, sizeof name, "%s.%s", field, key);
    if (!api_read_int(json_field(body, field), key, lo, INT_MAX, budget, err)) return 0;
    return api_error(err, ERR_INPUT, name, "%s must be an integer, at least %ld", name, lo);
}

/* OpenRouter's word for a budget asks for thinking, too; Anthropic's counts where that is on. */
static int read_budgets(ApiRequest *r, const json_t *body, ApiError *err)
{
    const char *type = api_word(json_object_get(json_field(body, "thinking"), "type"));
    int most = -1;
    if (read_budget(body, "reasoning", "max_tokens", 0, &most, err)) return -1;
    if (most >= 0) r->thinking_budget = most;
    if (most > 0) r->chat.enable_thinking = 1;
    if (!type || strcmp(type, "enabled") != 0) return 0;
    return read_budget(body, "thinking", "budget_tokens", 1, &r->thinking_budget, err);
}

/* "disabled" switches it off, what else there is on: who says none of these may mean either. */
static int read_thinking_type(const json_t *body, int *on, ApiError *err)
{
    static const char *const types[] = {"disabled", "enabled", "adaptive", "auto"};
    const json_t *thinking = json_field(body, "thinking");
    const char *type = api_word(json_object_get(thinking, "type"));
    if (!thinking) return 0;
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++) {
        if (strcmp(type, types[i]) != 0) continue;
        *on = i > 0;
        return 0;
    }
    return api_error(err, ERR_INPUT, "thinking.type",
                     "thinking.type must be enabled, adaptive, auto or disabled");
}

/* Many dialects say the same; the later ones here win. */
static int read_thinking(ApiRequest *r, const json_t *body, ApiError *err)
{
    int *on = &r->chat.enable_thinking;
    const json_t *kwargs = json_field(body, "chat_template_kwargs");
    const json_t *reasoning = json_field(body, "reasoning");
    const json_t *effort = json_object_get(json_field(body, "output_config"), "effort");
    if (kwargs && (!json_is_object(kwargs) || json_object_size(kwargs) > MAX_TEMPLATE_KWARGS))
        return api_error(err, ERR_INPUT, "chat_template_kwargs",
                         "chat_template_kwargs must be an object of at most %d keys",
                         MAX_TEMPLATE_KWARGS);
    if (reasoning && !json_is_object(reasoning))
        return api_error(err, ERR_INPUT, "reasoning", "reasoning must be an object");
    /* Anthropic's, which does not switch thinking on. */
    if (json_is_string(effort)) r->chat.effort = json_string_value(effort);
    if (read_thinking_type(body, on, err) || read_budgets(r, body, err) ||
        read_effort(r, json_field(reasoning, "effort"), "reasoning.effort", err) ||
        read_switch(body, "reasoning", "enabled", on, err) ||
        read_effort(r, json_field(body, "reasoning_effort"), "reasoning_effort", err) ||
        api_read_bool(body, "enable_thinking", on, err) ||
        read_effort(r, json_field(kwargs, "reasoning_effort"),
                    "chat_template_kwargs.reasoning_effort", err) ||
        read_switch(body, "chat_template_kwargs", "preserve_thinking", &r->chat.preserve_thinking,
                    err) ||
        read_switch(body, "chat_template_kwargs", "thinking", on, err) ||
        read_switch(body, "chat_template_kwargs", "enable_thinking", on, err))
        return -1;
    return 0;
}

/* Reasoning apart from the content (the default), in it, or not sent; again in many dialects. */
static int read_reasoning_mode(ApiRequest *r, const json_t *body, ApiError *err)
{
    const char *format = json_string_value(json_object_get(body, "reasoning_format"));
    int separate = 1, include = 1, exclude = 0;
    if (api_read_bool(body, "separate_reasoning", &separate, err) ||
        api_read_bool(body, "include_reasoning", &include, err) ||
        read_switch(body, "reasoning", "exclude", &exclude, err))
        return -1;
    if (format && !strcmp(format, "none")) separate = 0;
    if (!include || exclude)
        r->reasoning = REASONING_HIDDEN;
    else if (!separate)
        r->reasoning = REASONING_IN_CONTENT;
    return 0;
}

/*
 * How the prompt ends: with a new turn, or with the client's own last turn, which is to be gone on
 * with. Who asks for no new turn after an assistant's message means the latter.
 */
static int read_prompt_end(ApiRequest *r, const json_t *body, ApiError *err)
{
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    int by_assistant = role && !strcmp(role, "assistant");
    int asks_turn = json_is_true(json_field(body, "add_generation_prompt"));
    ChatOptions *o = &r->chat;
    if (api_read_bool(body, "add_generation_prompt", &o->add_generation_prompt, err) ||
        api_read_bool(body, "continue_final_message", &o->continue_final, err))
        return -1;
    if (o->continue_final && asks_turn)
        return api_error(err, ERR_INPUT, "continue_final_message",
                         "continue_final_message and add_generation_prompt exclude each other");
    if (o->continue_final && !by_assistant)
        return api_error(err, ERR_INPUT, "continue_final_message",
                         "continue_final_message needs a last message of role assistant");
    if (!o->add_generation_prompt && by_assistant) o->continue_final = 1;
    if (o->continue_final) o->add_generation_prompt = 0;
    return 0;
}

int api_read_chat(ApiRequest *r, const json_t *body, const ApiDefaults *defaults, ApiError *err)
{
    r->family = defaults->family;
    r->chat = defaults->chat;
    if (read_messages(r, body, err) || read_prompt_end(r, body, err) ||
        api_read_tools(r, body, err) || read_thinking(r, body, err))
        return -1;
    return read_reasoning_mode(r, body, err);
}
