/* responses_tools.c: see responses_tools.h. */
#include "server/responses_tools.h"

#include <string.h>

#include "server/translate.h"
#include "text/utf8.h"

void responses_flat_name(const json_t *ns, const json_t *name, StrBuf *out)
{
    size_t len = json_string_length(ns);
    translate_add(out, ns);
    if (len && json_string_value(ns)[len - 1] != '_') strbuf_puts(out, "__");
    translate_add(out, name);
}

/* ---- walking through a body's tools ---- */

typedef struct {
    const json_t *list;  /* the body's */
    size_t next, within; /* the next one; the next one of its namespace */
    const json_t *tool, *ns;
    StrBuf flat; /* its name */
} ToolWalk;

static int is_namespace(const json_t *tool)
{
    return !strcmp(translate_type(tool), "namespace");
}

static int next_tool(ToolWalk *w)
{
    for (; w->next < json_array_size(w->list); w->next++, w->within = 0) {
        const json_t *tool = json_array_get(w->list, w->next);
        w->ns = is_namespace(tool) ? json_object_get(tool, "name") : NULL;
        w->tool = tool;
        if (is_namespace(tool)) w->tool = json_array_get(json_object_get(tool, "tools"), w->within);
        if (!w->tool) continue;
        strbuf_clear(&w->flat);
        responses_flat_name(w->ns, json_object_get(w->tool, "name"), &w->flat);
        if (is_namespace(tool))
            w->within++;
        else
            w->next++;
        return 1;
    }
    return 0;
}

static int is_custom(const json_t *tool)
{
    return !strcmp(translate_type(tool), "custom");
}

static int is_function(const json_t *tool)
{
    return !strcmp(translate_type(tool), "function");
}

int responses_find_tool(const json_t *body, const char *flat, ResponsesTool *found)
{
    ToolWalk w = {.list = json_field(body, "tools")};
    int is_found = 0;
    while (!is_found && next_tool(&w)) {
        is_found = (is_function(w.tool) || is_custom(w.tool)) && !strcmp(strbuf_str(&w.flat), flat);
        if (is_found)
            *found = (ResponsesTool){.name = translate_text(w.tool, "name"),
                                     .ns = json_string_value(w.ns),
                                     .is_custom = is_custom(w.tool)};
    }
    strbuf_free(&w.flat);
    return is_found;
}

/* ---- for the chat ---- */

/* The one parameter of a custom tool; the form that it must have is told, not enforced. */
static json_t *custom_parameters(const json_t *tool)
{
    const json_t *format = json_field(tool, "format");
    StrBuf what = {0};
    strbuf_puts(&what, "The tool's input, as it is");
    if (!strcmp(translate_type(format), "grammar")) {
        strbuf_puts(&what, ". It has the form of this grammar (");
        translate_add(&what, json_object_get(format, "syntax"));
        strbuf_puts(&what, "):\n");
        translate_add(&what, json_object_get(format, "definition"));
    }
    json_t *parameters =
        json_pack("{s:s, s:{s:{s:s, s:s%}}, s:[s]}", "type", "object", "properties", "input",
                  "type", "string", "description", what.data, what.len, "required", "input");
    strbuf_free(&what);
    return parameters;
}

static json_t *chat_tool(const ToolWalk *w)
{
    json_t *name = json_stringn(strbuf_str(&w->flat), w->flat.len);
    json_t *custom = is_custom(w->tool) ? custom_parameters(w->tool) : NULL;
    json_t *tool = translate_tool(name, json_field(w->tool, "description"),
                                  custom ? custom : json_field(w->tool, "parameters"),
                                  json_field(w->tool, "strict"));
    json_decref(custom);
    json_decref(name);
    return tool;
}

/* Of two with the same name the first counts: a session must not end by what a server declares. */
static json_t *chat_tools(const json_t *list)
{
    ToolWalk w = {.list = list};
    json_t *out = json_array(), *seen = json_object();
    while (next_tool(&w)) {
        const char *flat = strbuf_str(&w.flat);
        int clashes = json_object_get(seen, flat) != NULL;
        int is_ours = is_function(w.tool) || is_custom(w.tool);
        if (!is_ours && !w.ns) json_array_append(out, (json_t *)w.tool); /* the chat skips it */
        if (!is_ours || clashes || (w.ns && w.flat.len > MAX_TOOL_NAME)) continue;
        json_object_set_new(seen, flat, json_true());
        json_array_append_new(out, chat_tool(&w));
    }
    json_decref(seen);
    strbuf_free(&w.flat);
    return out;
}

/*
 * Words stay; a tool by name is one function to the chat. What runs elsewhere cannot be forced: the
 * chat refuses a choice without a name.
 */
static json_t *chat_choice(const json_t *choice)
{
    const char *type = translate_type(choice);
    if (!json_is_object(choice)) return json_incref((json_t *)choice);
    if (!strcmp(type, "allowed_tools"))
        return json_pack("{s:s, s:O}", "type", type, "allowed_tools", choice);
    if (!is_function(choice) && !is_custom(choice)) return json_object();
    StrBuf flat = {0};
    responses_flat_name(json_field(choice, "namespace"), json_object_get(choice, "name"), &flat);
    json_t *out = json_pack("{s:s, s:{s:s%}}", "type", "function", "function", "name",
                            strbuf_str(&flat), flat.len);
    strbuf_free(&flat);
    return out;
}

/* Each call of an answer looks for its tool among all of these. */
static int check_count(const json_t *list, ApiError *err)
{
    enum { MAX_LISTED = 4 * MAX_TOOLS };
    size_t n = json_array_size(list), i;
    const json_t *tool;
    json_array_foreach(list, i, tool)
    {
        if (is_namespace(tool)) n += json_array_size(json_object_get(tool, "tools"));
    }
    if (n <= MAX_LISTED) return 0;
    return api_error(err, ERR_LIMIT, "tools", "tools has %zu entries in all, the limit is %d", n,
                     MAX_LISTED);
}

int responses_add_tools(const json_t *body, json_t *chat, ApiError *err)
{
    const json_t *list = json_field(body, "tools"), *choice = json_field(body, "tool_choice");
    if (list && !json_is_array(list))
        return api_error(err, ERR_INPUT, "tools", "tools must be a list");
    if (check_count(list, err)) return -1;
    if (list) json_object_set_new(chat, "tools", chat_tools(list));
    if (choice) json_object_set_new(chat, "tool_choice", chat_choice(choice));
    return 0;
}

/* ---- a custom tool's input ---- */

void custom_input_begin(CustomInput *c)
{
    StrBuf text = c->text;
    strbuf_clear(&text);
    *c = (CustomInput){.text = text};
}

void custom_input_free(CustomInput *c)
{
    strbuf_free(&c->text);
}

/* What comes before the text; blanks may stand around its signs. */
static void add_before(CustomInput *c, char byte)
{
    static const char before[] = "{\"input\":\"";
    static const char may_wait[] = "11......11";
    if (may_wait[c->n_matched] == '1' && strchr(" \t\r\n", byte)) return;
    if (byte != before[c->n_matched])
        c->state = INPUT_OTHER;
    else if (!before[++c->n_matched])
        c->state = INPUT_TEXT;
}

static void put_char(CustomInput *c, unsigned code)
{
    char utf8[4];
    int n = utf8_put(code, utf8);
    strbuf_add(&c->text, utf8, (size_t)n);
}

/* Half a pair without the other is no character. */
static void drop_half(CustomInput *c)
{
    if (c->high) put_char(c, 0xFFFD);
    c->high = 0;
}

static void add_unit(CustomInput *c)
{
    unsigned unit = c->unit;
    c->state = INPUT_TEXT;
    if (unit >= 0xDC00 && unit < 0xE000 && c->high) {
        put_char(c, 0x10000 + ((c->high - 0xD800) << 10) + (unit - 0xDC00));
        c->high = 0;
        return;
    }
    drop_half(c);
    if (unit >= 0xD800 && unit < 0xDC00)
        c->high = unit;
    else
        put_char(c, unit >= 0xDC00 && unit < 0xE000 ? 0xFFFD : unit);
}

static void add_escape(CustomInput *c, char byte)
{
    static const char names[] = "nrtbf", meant[] = "\n\r\t\b\f";
    if (byte == 'u') {
        c->state = INPUT_UNIT;
        c->unit = 0;
        c->n_digits = 0;
        return;
    }
    const char *at = byte ? strchr(names, byte) : NULL;
    drop_half(c);
    strbuf_add(&c->text, at ? &meant[at - names] : &byte, 1);
    c->state = INPUT_TEXT;
}

static void add_digit(CustomInput *c, char byte)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = byte ? strchr(digits, byte >= 'A' && byte <= 'F' ? byte + 32 : byte) : NULL;
    c->unit = c->unit * 16 + (at ? (unsigned)(at - digits) : 0);
    if (++c->n_digits == 4) add_unit(c);
}

static void add_text(CustomInput *c, char byte)
{
    if (byte == '\\') {
        c->state = INPUT_ESCAPE;
        return;
    }
    drop_half(c);
    if (byte == '"')
        c->state = INPUT_AFTER;
    else
        strbuf_add(&c->text, &byte, 1);
}

void custom_input_add(CustomInput *c, const char *json, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (c->state == INPUT_BEFORE)
            add_before(c, json[i]);
        else if (c->state == INPUT_TEXT)
            add_text(c, json[i]);
        else if (c->state == INPUT_ESCAPE)
            add_escape(c, json[i]);
        else if (c->state == INPUT_UNIT)
            add_digit(c, json[i]);
    }
}

void custom_input_end(CustomInput *c, const StrBuf *arguments)
{
    json_error_t je;
    if (c->state != INPUT_OTHER) return;
    json_t *parsed = json_loadb(strbuf_str(arguments), arguments->len, JSON_ALLOW_NUL, &je);
    const json_t *input = json_object_get(parsed, "input");
    if (json_is_string(input))
        translate_add(&c->text, input);
    else
        strbuf_add(&c->text, strbuf_str(arguments), arguments->len);
    json_decref(parsed);
}
