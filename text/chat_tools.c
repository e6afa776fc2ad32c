/*
 * chat_tools.c: the tools of a system turn, and the calls of an answer; see chat_parts.h.
 *
 * Source: as chat_template.c; the texts said to the model are the templates', byte for byte.
 */
#include <string.h>

#include "base/json.h"
#include "text/chat_parts.h"
#include "text/pyjson.h"

static const char XML_TOOLS[] = "# Tools\n\nYou have access to the following functions:\n\n<tools>";

static const char XML_TOOLS_END[] =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
    "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block "
    "must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT>";

static const char JSON_TOOLS[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";

static const char JSON_TOOLS_END[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

/* What Qwen3-Coder is told where there are tools and no system message. */
static const char CODER_SYSTEM[] =
    "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks.";

/* ---- tools ---- */

static void put_tools(const Render *r, const json_t *tools, const char *head, const char *end)
{
    size_t i;
    json_t *tool;
    strbuf_puts(r->out, head);
    json_array_foreach(tools, i, tool)
    {
        strbuf_puts(r->out, "\n");
        chat_put_json(r, tool);
    }
    strbuf_puts(r->out, end);
}

/* <name>value</name> on a line of its own: the value as Python's str, trimmed if asked for. */
static void put_element(const Render *r, const char *name, const json_t *value, int is_trimmed)
{
    StrBuf text = {0};
    pyjson_str(value, &text);
    Span span = {strbuf_str(&text), text.len};
    strbuf_printf(r->out, "\n<%s>", name);
    chat_put(r, is_trimmed ? chat_trim(span) : span);
    strbuf_printf(r->out, "</%s>", name);
    strbuf_free(&text);
}

/* The keys of an object that are not in handled[], each as an element of that name. */
static void put_other_keys(const Render *r, const json_t *object, const char *const *handled)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        const char *const *h = handled;
        while (*h && strcmp(*h, key) != 0)
            h++;
        if (*h) continue;
        Span name = {key, strlen(key)};
        strbuf_puts(r->out, "\n<");
        chat_put(r, name);
        strbuf_puts(r->out, ">");
        if (json_is_string(value) && !json_digits(value))
            chat_put(r, span_of(value));
        else
            chat_put_json(r, value);
        strbuf_puts(r->out, "</");
        chat_put(r, name);
        strbuf_puts(r->out, ">");
    }
}

static void put_coder_parameter(const Render *r, Span name, const json_t *fields)
{
    static const char *const handled[] = {"name", "type", "description", NULL};
    const json_t *type = json_object_get(fields, "type"),
                 *description = json_object_get(fields, "description");
    strbuf_puts(r->out, "\n<parameter>\n<name>");
    chat_put(r, name);
    strbuf_puts(r->out, "</name>");
    if (type) put_element(r, "type", type, 0);
    if (description) put_element(r, "description", description, 1);
    put_other_keys(r, fields, handled);
    strbuf_puts(r->out, "\n</parameter>");
}

static void put_coder_tool(const Render *r, const json_t *tool)
{
    static const char *const handled[] = {"type", "name", "description", "parameters", NULL},
                             *const of_parameters[] = {"type", "properties", NULL};
    if (json_object_get(tool, "function")) tool = json_object_get(tool, "function");
    const json_t *name = json_object_get(tool, "name"),
                 *description = json_object_get(tool, "description"),
                 *parameters = json_object_get(tool, "parameters");
    const char *key;
    json_t *fields;
    strbuf_puts(r->out, "\n<function>");
    if (name)
        put_element(r, "name", name, 0);
    else
        strbuf_puts(r->out, "\n<name></name>");
    if (description) put_element(r, "description", description, 1);
    strbuf_puts(r->out, "\n<parameters>");
    json_object_foreach(json_object_get(parameters, "properties"), key, fields)
    {
        put_coder_parameter(r, (Span){key, strlen(key)}, fields);
    }
    put_other_keys(r, parameters, of_parameters);
    strbuf_puts(r->out, "\n</parameters>");
    put_other_keys(r, tool, handled);
    strbuf_puts(r->out, "\n</function>");
}

static void put_coder_tools(const Render *r, const json_t *tools)
{
    size_t i;
    json_t *tool;
    strbuf_puts(r->out, "\n\n");
    strbuf_puts(r->out, XML_TOOLS);
    json_array_foreach(tools, i, tool)
    {
        put_coder_tool(r, tool);
    }
    strbuf_puts(r->out, XML_TOOLS_END);
}

/* Qwen3.5's puts its own text after the tools; before them, how hard to think (Qwen3.8). */
static void put_qwen35_system(const Render *r, const json_t *tools, int has_tools, Span text)
{
    strbuf_puts(r->out, r->instructions);
    if (*r->instructions && (has_tools || text.n)) strbuf_puts(r->out, "\n\n");
    if (has_tools) put_tools(r, tools, XML_TOOLS, XML_TOOLS_END);
    if (has_tools && text.n) strbuf_puts(r->out, "\n\n");
    chat_put(r, text);
}

void chat_put_system(const Render *r, const json_t *tools)
{
    int has_system = r->message[0].role == ROLE_SYSTEM, has_tools = json_array_size(tools) > 0;
    Span text = {"", 0};
    if (has_system) text = chat_content(r, &r->message[0]);
    if (r->t->family == CHAT_QWEN38) has_system = text.n || *r->instructions;
    if (!has_system && !has_tools) return;
    strbuf_puts(r->out, "<|im_start|>system\n");
    if (chat_is_qwen35(r)) {
        put_qwen35_system(r, tools, has_tools, text);
    } else if (r->t->family == CHAT_QWEN3_CODER) {
        if (!has_system) strbuf_puts(r->out, CODER_SYSTEM);
        chat_put(r, text);
        if (has_tools) put_coder_tools(r, tools);
    } else {
        chat_put(r, text);
        if (has_system && has_tools) strbuf_puts(r->out, "\n\n");
        if (has_tools) put_tools(r, tools, JSON_TOOLS, JSON_TOOLS_END);
    }
    strbuf_puts(r->out, "<|im_end|>\n");
}

/* ---- calls ---- */

/*
 * Arguments as an object to be released by the caller, {} when there are none. An OpenAI client
 * sends them as a string that holds JSON; it is parsed for every family, as vLLM does, so that the
 * model reads its own spacing and not the client's.
 */
static json_t *read_arguments(const Render *r, size_t i, const json_t *call)
{
    const json_t *value = json_object_get(call, "arguments");
    if (!value || json_is_null(value)) return json_object();
    if (json_is_object(value)) return json_incref((json_t *)value);
    json_t *object = NULL;
    json_error_t je;
    if (json_is_string(value)) {
        Span text = chat_trim(span_of(value));
        if (!text.n) return json_object();
        object = json_load_digits(text.s, text.n, JSON_ALLOW_NUL, &je);
    }
    if (json_is_object(object)) return object;
    json_decref(object);
    error_set(r->err, ERR_INPUT, "messages[%zu]: arguments of a tool call must be a JSON object",
              i);
    return NULL;
}

static void put_arguments(const Render *r, json_t *arguments)
{
    const char *name;
    json_t *value;
    json_object_foreach(arguments, name, value)
    {
        strbuf_puts(r->out, "<parameter=");
        chat_put(r, (Span){name, strlen(name)});
        strbuf_puts(r->out, ">\n");
        size_t from = r->out->len;
        if (json_is_object(value) || json_is_array(value) ||
            (r->t->scalars_as_json && !json_is_string(value)))
            pyjson_dump(value, r->out);
        else
            pyjson_str(value, r->out);
        chat_mark_client(r, from);
        strbuf_puts(r->out, "\n</parameter>\n");
    }
}

static int put_call(const Render *r, size_t i, const json_t *call)
{
    if (json_object_get(call, "function")) call = json_object_get(call, "function");
    const json_t *name = json_object_get(call, "name");
    if (!json_is_string(name))
        return error_set(r->err, ERR_INPUT, "messages[%zu]: a tool call has no name", i);
    json_t *arguments = read_arguments(r, i, call);
    if (!arguments) return -1;
    if (chat_calls_are_xml(r->t->family)) {
        strbuf_puts(r->out, "<tool_call>\n<function=");
        chat_put(r, span_of(name));
        strbuf_puts(r->out, ">\n");
        put_arguments(r, arguments);
        strbuf_puts(r->out, "</function>\n</tool_call>");
    } else {
        strbuf_puts(r->out, "<tool_call>\n{\"name\": \"");
        chat_put(r, span_of(name));
        strbuf_puts(r->out, "\", \"arguments\": ");
        chat_put_json(r, arguments);
        strbuf_puts(r->out, "}\n</tool_call>");
    }
    json_decref(arguments);
    return 0;
}

int chat_put_calls(const Render *r, size_t i, Span content)
{
    const json_t *calls = json_object_get(r->message[i].json, "tool_calls"), *call;
    size_t k;
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return error_set(r->err, ERR_INPUT, "messages[%zu]: tool_calls must be an array", i);
    json_array_foreach(calls, k, call)
    {
        if (k || content.n || r->t->family == CHAT_QWEN3_CODER)
            strbuf_puts(r->out, !k && chat_is_qwen35(r) ? "\n\n" : "\n");
        if (put_call(r, i, call)) return -1;
    }
    return 0;
}
