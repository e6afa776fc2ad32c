/*
 * api_tools.c: tools and which of them the model may call; see api_request.h.
 *
 * OpenAI's first names for them, functions and function_call, are read as the present ones; who
 * uses them gets one call, by its first name.
 */
#include "server/api_request.h"

#include <ctype.h>
#include <string.h>

static int name_is_fit(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= MAX_TOOL_NAME &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-") == n;
}

static json_t *find_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *own =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (name && !strcmp(own, name)) return tool;
    }
    return NULL;
}

/* Templates print a tool as it was sent; only missing parameters are filled in. */
static json_t *with_parameters(json_t *tool)
{
    json_t *f = json_object_get(tool, "function");
    if (json_field(f, "parameters")) return json_incref(tool);
    json_t *copy = json_copy(tool);
    f = json_copy(f);
    json_object_set_new(f, "parameters", json_pack("{s:s, s:{}}", "type", "object", "properties"));
    json_object_set_new(copy, "function", f);
    return copy;
}

static int refuse_field(size_t i, const char *field, const char *what, ApiError *err)
{
    return api_refuse(api_place("tools", i, field, err), what);
}

/*
 * Tools that the client runs, in a form that no schema tells: only their maker's models know it.
 * Behind the words come dates and the like: bash_20250124, computer-use-preview.
 */
static int is_without_schema(const char *type)
{
    static const char *const words[] = {"custom", "shell",  "local_shell", "apply_patch",
                                        "bash",   "memory", "text_editor", "computer"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if (!strncmp(type, words[i], n) && !isalnum((unsigned char)type[n])) return 1;
    }
    return 0;
}

static int add_tool(json_t *out, size_t i, json_t *tool, ApiError *err)
{
    const json_t *f = json_field(tool, "function");
    const char *type = json_string_value(json_field(tool, "type"));
    if (!json_is_object(tool)) return refuse_field(i, "", "must be an object", err);
    if (type && is_without_schema(type))
        return refuse_field(i, ".type", "is not supported; declare the tool as a function", err);
    /* Tools that run elsewhere (web search and such) are not for the model to call. */
    if (type && strcmp(type, "function") != 0) return 0;
    const char *name = api_word(json_object_get(f, "name"));
    if (!name || !name_is_fit(name))
        return refuse_field(i, ".function.name", "must be 1 to 128 of A-Z a-z 0-9 _ . : / -", err);
    const json_t *parameters = json_field(f, "parameters");
    if (parameters && !json_is_object(parameters))
        return refuse_field(i, ".function.parameters", "must be an object", err);
    const json_t *strict = json_field(f, "strict");
    if (strict && !json_is_boolean(strict))
        return refuse_field(i, ".function.strict", "must be true or false", err);
    if (find_tool(out, name))
        return refuse_field(i, ".function.name", "is that of another tool", err);
    return json_array_append_new(out, with_parameters(tool));
}

/* The list of tools: tools, or what functions would be in it. NULL: none. A new reference. */
static json_t *find_tools(const json_t *body, ApiError *err)
{
    const char *key = json_field(body, "tools") ? "tools" : "functions";
    const json_t *list = json_field(body, key);
    json_t *tools, *f;
    size_t i;
    if (!list) return NULL;
    if (!json_is_array(list) || json_array_size(list) > MAX_TOOLS) {
        api_error(err, ERR_INPUT, key, "%s must be a list of at most %d", key, MAX_TOOLS);
        return NULL;
    }
    if (!strcmp(key, "tools")) return json_incref((json_t *)list);
    tools = json_array();
    json_array_foreach(list, i, f)
    {
        json_array_append_new(tools, json_pack("{s:s, s:O}", "type", "function", "function", f));
    }
    return tools;
}

static int refuse_choice(const char *why, ApiError *err)
{
    return api_error(err, ERR_INPUT, "tool_choice", "%s", why);
}

static int read_named_choice(ApiRequest *r, const char *name, ApiError *err)
{
    json_t *tool = find_tool(r->tools, name);
    if (!tool) return refuse_choice("tool_choice names no function that is there", err);
    r->forced = json_pack("[O]", tool);
    r->names_tool = 1;
    return 0;
}

static int read_choice_word(ApiRequest *r, const char *word, ApiError *err)
{
    if (!strcmp(word, "auto")) return 0;
    if (!strcmp(word, "none")) {
        r->parse_calls = 0;
        return 0;
    }
    if (strcmp(word, "required") != 0 && strcmp(word, "any") != 0)
        return refuse_choice("tool_choice must be auto, none, required or name a function", err);
    if (!json_array_size(r->tools)) return refuse_choice("tool_choice needs tools", err);
    r->forced = json_incref(r->tools);
    return 0;
}

/* {"mode", "tools"}: calls are of these alone; where none of them is ours no call may come. */
static int read_allowed_tools(ApiRequest *r, const json_t *allowed, ApiError *err)
{
    const char *mode = json_string_value(json_object_get(allowed, "mode"));
    json_t *one, *some = json_array();
    size_t i;
    int rc = read_choice_word(r, mode ? mode : "", err);
    json_array_foreach(json_object_get(allowed, "tools"), i, one)
    {
        const json_t *f = json_field(one, "function");
        const char *name = json_string_value(json_object_get(f ? f : one, "name"));
        json_t *tool = find_tool(r->tools, name);
        if (tool && !find_tool(some, name)) json_array_append(some, tool); /* each once */
    }
    if (!rc && r->forced && !json_array_size(some))
        rc = refuse_choice("tool_choice names no function that is there", err);
    if (!rc && !json_array_size(some)) r->parse_calls = 0;
    if (!rc && r->forced) {
        json_decref(r->forced);
        r->forced = json_incref(some);
    } else if (!rc && json_array_size(some) < json_array_size(r->tools)) {
        r->allowed_tools = json_incref(some);
    }
    json_decref(some);
    return rc;
}

/* Words, one function by name, or a list of allowed ones. */
static int read_tool_choice(ApiRequest *r, const json_t *v, ApiError *err)
{
    const json_t *allowed = json_field(v, "allowed_tools");
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!v) return 0;
    if (json_is_string(v)) return read_choice_word(r, json_string_value(v), err);
    if (!json_is_object(v)) return refuse_choice("tool_choice must be a string or an object", err);
    if (type && !strcmp(type, "allowed_tools"))
        return read_allowed_tools(r, allowed ? allowed : v, err);
    const json_t *f = json_field(v, "function");
    return read_named_choice(r, json_string_value(json_object_get(f ? f : v, "name")), err);
}

static int has_strict(const json_t *tools)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict"))) return 1;
    }
    return 0;
}

/* Those of the list that the model may call, checked. NULL and an error. */
static json_t *read_list(const json_t *list, ApiError *err)
{
    json_t *tools = json_array(), *tool;
    size_t i;
    json_array_foreach(list, i, tool)
    {
        if (!add_tool(tools, i, tool, err)) continue;
        json_decref(tools);
        return NULL;
    }
    return tools;
}

static int read_tools(ApiRequest *r, const json_t *body, ApiError *err)
{
    json_t *list = find_tools(body, err);
    if (!list) return err->error.code ? -1 : 0;
    r->prompt_tools = read_list(list, err);
    json_decref(list);
    if (!r->prompt_tools) return -1;
    r->tools = json_rounded(r->prompt_tools);
    r->old_calls = !json_field(body, "tools");
    return 0;
}

int api_read_tools(ApiRequest *r, const json_t *body, ApiError *err)
{
    static const ApiFieldName functions[] = {{".function", ""}, {NULL, NULL}},
                              list[] = {{"tools", "functions"}, {NULL, NULL}},
                              old_choice[] = {{"tool_choice", "function_call"}, {NULL, NULL}};
    const json_t *choice = json_field(body, "tool_choice"),
                 *old = choice ? NULL : json_field(body, "function_call");
    if (read_tools(r, body, err)) {
        if (json_field(body, "tools")) return -1;
        api_rename(err, functions);
        api_rename(err, list);
        return -1;
    }
    r->parse_calls = json_array_size(r->tools) > 0;
    r->strict_tools = has_strict(r->tools);
    if (read_tool_choice(r, old ? old : choice, err)) {
        if (old) api_rename(err, old_choice);
        return -1;
    }
    if (api_read_bool(body, "parallel_tool_calls", &r->parallel_calls, err)) return -1;
    if (r->old_calls) r->parallel_calls = 0;
    return 0;
}
