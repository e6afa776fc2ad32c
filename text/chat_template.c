/*
 * chat_template.c: the published templates, line by line, in C.
 *
 * Source: the chat_template.jinja of Qwen3.5 (Apache-2.0) and the template that Qwen3-Next shares
 * with Qwen3-2507; the texts said to the model are theirs, byte for byte. Spans point into messages
 * or into Message.content; nothing is copied that is only looked at.
 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "text/chat.h"
#include "text/pyjson.h"
#include "text/utf8.h"

static const char QWEN35_TOOLS[] =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>";

static const char QWEN35_TOOLS_END[] =
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

static const char NEXT_TOOLS[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";

static const char NEXT_TOOLS_END[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

typedef struct {
    const char *s;
    size_t n;
} Span;

typedef enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL } Role;

typedef struct {
    const json_t *json;
    Role role;
    StrBuf content; /* parts joined; trimmed for Qwen3.5 */
} Message;

typedef struct {
    const ChatTemplate *t;
    Message *message;
    size_t n;
    long last_query; /* index of the last message that a person wrote, -1 if none */
    int add_vision_id, continue_final, n_images, n_videos;
    size_t answer_thinks; /* where the <think> begins that the answer goes on from; 0: nowhere */
    StrBuf *out;
    ChatMarks *marks; /* or NULL */
    Error *err;
} Render;

static int is_qwen35(const Render *r)
{
    return r->t->family == CHAT_QWEN35;
}

/* What was put since `from` is the client's. */
static void mark_client(const Render *r, size_t from)
{
    ChatMarks *m = r->marks;
    size_t len = r->out->len - from;
    if (!m || !len) return;
    TextSpan *last = m->n_client ? &m->client[m->n_client - 1] : NULL;
    if (last && last->from + last->len == from) {
        last->len += len;
        return;
    }
    if (m->n_client == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 16;
        m->client = mem_realloc(m->client, (size_t)m->cap, sizeof *m->client);
    }
    assert(m->client);
    m->client[m->n_client++] = (TextSpan){from, len};
}

void chat_marks_free(ChatMarks *marks)
{
    mem_free(marks->client);
    *marks = (ChatMarks){0};
}

static void put(const Render *r, Span text)
{
    size_t from = r->out->len;
    strbuf_add(r->out, text.s, text.n);
    mark_client(r, from);
}

static void put_json(const Render *r, const json_t *value)
{
    size_t from = r->out->len;
    pyjson_dump(value, r->out);
    mark_client(r, from);
}

static Span span_of(const json_t *string)
{
    return (Span){json_string_value(string), json_string_length(string)};
}

static int starts_with(Span text, const char *head)
{
    size_t n = strlen(head);
    return text.n >= n && !memcmp(text.s, head, n);
}

static int ends_with(Span text, const char *tail)
{
    size_t n = strlen(tail);
    return text.n >= n && !memcmp(text.s + text.n - n, tail, n);
}

/* What Python's str.strip takes for white space. */
static int is_space(int c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static Span trim(Span text)
{
    int k;
    while (text.n && is_space(utf8_decode(text.s, &k)))
        text = (Span){text.s + k, text.n - (size_t)k};
    while (text.n) {
        size_t at = text.n - 1;
        while (at && ((unsigned char)text.s[at] & 0xC0) == 0x80)
            at--;
        if (!is_space(utf8_decode(text.s + at, &k))) break;
        text.n = at;
    }
    return text;
}

static Span strip_newlines(Span text, int left, int right)
{
    while (left && text.n && text.s[0] == '\n')
        text = (Span){text.s + 1, text.n - 1};
    while (right && text.n && text.s[text.n - 1] == '\n')
        text.n--;
    return text;
}

/* Text before the first mark (all of it when there is none). */
static Span before_first(Span text, const char *mark)
{
    const char *at = memmem(text.s, text.n, mark, strlen(mark));
    return at ? (Span){text.s, (size_t)(at - text.s)} : text;
}

/* Text after the last mark (all of it when there is none). */
static Span after_last(Span text, const char *mark)
{
    size_t n_mark = strlen(mark);
    const char *at;
    while ((at = memmem(text.s, text.n, mark, n_mark)) != NULL) {
        const char *rest = at + n_mark;
        text = (Span){rest, text.n - (size_t)(rest - text.s)};
    }
    return text;
}

static int has(const json_t *object, const char *key)
{
    return json_object_get(object, key) != NULL;
}

static int is_type(const json_t *part, const char *type)
{
    const char *s = json_string_value(json_object_get(part, "type"));
    return s && !strcmp(s, type);
}

static int add_vision(Render *r, size_t i, Message *m, int is_image)
{
    const char *kind = is_image ? "image" : "video";
    if (!is_qwen35(r))
        return error_set(r->err, ERR_INPUT, "messages[%zu]: this model takes text only", i);
    if (m->role == ROLE_SYSTEM)
        return error_set(r->err, ERR_INPUT, "messages[%zu]: system message cannot contain %ss", i,
                         kind);
    int *count = is_image ? &r->n_images : &r->n_videos;
    ++*count;
    if (r->add_vision_id)
        strbuf_printf(&m->content, "%s %d: ", is_image ? "Picture" : "Video", *count);
    strbuf_printf(&m->content, "<|vision_start|><|%s_pad|><|vision_end|>", kind);
    return 0;
}

static int add_part(Render *r, size_t i, Message *m, const json_t *part)
{
    if (has(part, "image") || has(part, "image_url") || is_type(part, "image"))
        return add_vision(r, i, m, 1);
    if (has(part, "video") || is_type(part, "video")) return add_vision(r, i, m, 0);
    const json_t *text = json_object_get(part, "text");
    if (!json_is_string(text))
        return error_set(r->err, ERR_INPUT, "messages[%zu]: unexpected item type in content", i);
    strbuf_add(&m->content, json_string_value(text), json_string_length(text));
    return 0;
}

static int read_content(Render *r, size_t i, Message *m)
{
    const json_t *content = json_object_get(m->json, "content");
    const json_t *part;
    size_t k;
    if (json_is_string(content)) {
        Span text = span_of(content);
        strbuf_add(&m->content, text.s, text.n);
    } else if (content && !json_is_null(content) && !json_is_array(content)) {
        return error_set(r->err, ERR_INPUT, "messages[%zu]: unexpected content type", i);
    }
    json_array_foreach(content, k, part)
    {
        if (add_part(r, i, m, part)) return -1;
    }
    return 0;
}

static Span content_of(const Render *r, const Message *m)
{
    Span text = {strbuf_str(&m->content), m->content.len};
    return is_qwen35(r) ? trim(text) : text;
}

static int read_role(const Render *r, size_t i, Message *m)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *name = json_string_value(json_object_get(m->json, "role"));
    for (int k = 0; name && k < 4; k++) {
        if (strcmp(name, roles[k]) != 0) continue;
        m->role = (Role)k;
        if (m->role == ROLE_SYSTEM && i && is_qwen35(r))
            return error_set(r->err, ERR_INPUT,
                             "messages[%zu]: system message must be at the beginning", i);
        return 0;
    }
    return error_set(r->err, ERR_INPUT, "messages[%zu]: unexpected message role '%.40s'", i,
                     name ? name : "");
}

/* Reads roles and contents, and finds the last question. */
static int read_messages(Render *r, const json_t *messages)
{
    for (size_t i = 0; i < r->n; i++) {
        Message *m = &r->message[i];
        m->json = json_array_get(messages, i);
        if (read_role(r, i, m) || read_content(r, i, m)) return -1;
        Span text = content_of(r, m);
        if (m->role == ROLE_USER &&
            !(starts_with(text, "<tool_response>") && ends_with(text, "</tool_response>")))
            r->last_query = (long)i;
    }
    if (r->last_query < 0 && is_qwen35(r))
        return error_set(r->err, ERR_INPUT, "no user query found in messages");
    /* The other templates then take every message as part of what came before the question. */
    if (r->last_query < 0) r->last_query = (long)r->n - 1;
    return 0;
}

static void put_tools(const Render *r, const json_t *tools, const char *head, const char *end)
{
    size_t i;
    json_t *tool;
    strbuf_puts(r->out, head);
    json_array_foreach(tools, i, tool)
    {
        strbuf_puts(r->out, "\n");
        put_json(r, tool);
    }
    strbuf_puts(r->out, end);
}

/* The system turn: Qwen3.5 puts its own text after the tools, Qwen3-Next before them. */
static void put_system(const Render *r, const json_t *tools)
{
    int has_system = r->message[0].role == ROLE_SYSTEM, has_tools = json_array_size(tools) > 0;
    if (!has_system && !has_tools) return;
    Span text = {"", 0};
    if (has_system) text = content_of(r, &r->message[0]);
    strbuf_puts(r->out, "<|im_start|>system\n");
    if (!has_tools) {
        put(r, text);
    } else if (is_qwen35(r)) {
        put_tools(r, tools, QWEN35_TOOLS, QWEN35_TOOLS_END);
        if (text.n) strbuf_puts(r->out, "\n\n");
        put(r, text);
    } else {
        put(r, text);
        if (has_system) strbuf_puts(r->out, "\n\n");
        put_tools(r, tools, NEXT_TOOLS, NEXT_TOOLS_END);
    }
    strbuf_puts(r->out, "<|im_end|>\n");
}

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
        Span text = trim(span_of(value));
        if (!text.n) return json_object();
        object = json_loadb(text.s, text.n, JSON_ALLOW_NUL, &je);
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
    size_t n_name;
    json_t *value;
    json_object_keylen_foreach(arguments, name, n_name, value)
    {
        strbuf_puts(r->out, "<parameter=");
        put(r, (Span){name, n_name});
        strbuf_puts(r->out, ">\n");
        size_t from = r->out->len;
        if (json_is_object(value) || json_is_array(value) ||
            (r->t->scalars_as_json && !json_is_string(value)))
            pyjson_dump(value, r->out);
        else
            pyjson_str(value, r->out);
        mark_client(r, from);
        strbuf_puts(r->out, "\n</parameter>\n");
    }
}

static int put_call(const Render *r, size_t i, const json_t *call)
{
    if (has(call, "function")) call = json_object_get(call, "function");
    const json_t *name = json_object_get(call, "name");
    if (!json_is_string(name))
        return error_set(r->err, ERR_INPUT, "messages[%zu]: a tool call has no name", i);
    json_t *arguments = read_arguments(r, i, call);
    if (!arguments) return -1;
    if (is_qwen35(r)) {
        strbuf_puts(r->out, "<tool_call>\n<function=");
        put(r, span_of(name));
        strbuf_puts(r->out, ">\n");
        put_arguments(r, arguments);
        strbuf_puts(r->out, "</function>\n</tool_call>");
    } else {
        strbuf_puts(r->out, "<tool_call>\n{\"name\": \"");
        put(r, span_of(name));
        strbuf_puts(r->out, "\", \"arguments\": ");
        put_json(r, arguments);
        strbuf_puts(r->out, "}\n</tool_call>");
    }
    json_decref(arguments);
    return 0;
}

static int put_calls(const Render *r, size_t i, Span content)
{
    const json_t *calls = json_object_get(r->message[i].json, "tool_calls"), *call;
    size_t k;
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return error_set(r->err, ERR_INPUT, "messages[%zu]: tool_calls must be an array", i);
    json_array_foreach(calls, k, call)
    {
        if (k || content.n) strbuf_puts(r->out, !k && is_qwen35(r) ? "\n\n" : "\n");
        if (put_call(r, i, call)) return -1;
    }
    return 0;
}

/* Whether the thinking of an assistant message is shown: only after the last question. */
static int shows_thinking(const Render *r, size_t i, Span reasoning)
{
    if ((long)i <= r->last_query || r->t->family == CHAT_QWEN3_NEXT) return 0;
    return is_qwen35(r) || i + 1 == r->n || reasoning.n;
}

static int put_assistant(Render *r, size_t i)
{
    const Message *m = &r->message[i];
    const json_t *given = json_object_get(m->json, "reasoning_content");
    Span content = content_of(r, m), reasoning = {"", 0};
    int is_open = r->continue_final && i + 1 == r->n;
    if (r->t->family == CHAT_QWEN3_NEXT) {
        /* Its template knows no thinking: the content is the answer, whatever it holds. */
    } else if (json_is_string(given)) {
        reasoning = span_of(given);
    } else if (memmem(content.s, content.n, "</think>", 8)) {
        reasoning = strip_newlines(before_first(content, "</think>"), 0, 1);
        reasoning = strip_newlines(after_last(reasoning, "<think>"), 1, 0);
        content = strip_newlines(after_last(content, "</think>"), 1, 0);
    }
    strbuf_puts(r->out, "<|im_start|>assistant\n");
    if (shows_thinking(r, i, reasoning)) {
        if (is_open) r->answer_thinks = r->out->len;
        strbuf_puts(r->out, "<think>\n");
        put(r, is_qwen35(r) ? trim(reasoning) : strip_newlines(reasoning, 1, 1));
        strbuf_puts(r->out, "\n</think>\n\n");
        put(r, is_qwen35(r) ? content : strip_newlines(content, 1, 0));
    } else {
        put(r, content);
    }
    if (put_calls(r, i, content)) return -1;
    if (!is_open) strbuf_puts(r->out, "<|im_end|>\n");
    return 0;
}

/*
 * A run of tool messages is one user turn. Qwen3.5's does not open one for the very first message.
 */
static void put_tool(const Render *r, size_t i)
{
    if (i ? r->message[i - 1].role != ROLE_TOOL : !is_qwen35(r))
        strbuf_puts(r->out, "<|im_start|>user");
    strbuf_puts(r->out, "\n<tool_response>\n");
    put(r, content_of(r, &r->message[i]));
    strbuf_puts(r->out, "\n</tool_response>");
    if (i + 1 == r->n || r->message[i + 1].role != ROLE_TOOL) strbuf_puts(r->out, "<|im_end|>\n");
}

static int put_messages(Render *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const Message *m = &r->message[i];
        if (m->role == ROLE_ASSISTANT) {
            if (put_assistant(r, i)) return -1;
        } else if (m->role == ROLE_TOOL) {
            put_tool(r, i);
        } else if (m->role == ROLE_USER || i) {
            strbuf_printf(r->out, "<|im_start|>%s\n", m->role == ROLE_USER ? "user" : "system");
            put(r, content_of(r, m));
            strbuf_puts(r->out, "<|im_end|>\n");
        }
    }
    return 0;
}

static int is_thinking_on(const Render *r, const ChatOptions *options)
{
    if (!is_qwen35(r)) return r->t->family == CHAT_QWEN3_NEXT_THINKING;
    return options->enable_thinking < 0 ? r->t->thinking_default : options->enable_thinking;
}

static void put_generation_prompt(Render *r, const ChatOptions *options)
{
    strbuf_puts(r->out, "<|im_start|>assistant\n");
    size_t from = r->out->len;
    if (is_thinking_on(r, options))
        strbuf_puts(r->out, "<think>\n");
    else if (is_qwen35(r))
        strbuf_puts(r->out, "<think>\n\n</think>\n\n");
    if (r->out->len > from) r->answer_thinks = from;
}

/* Whether the last answer that the client knows came with its reasoning; 1 where there is none. */
static int sends_reasoning(const Render *r)
{
    for (size_t i = r->n; i-- > 0;) {
        const Message *m = &r->message[i];
        if (m->role != ROLE_ASSISTANT) continue;
        Span given = span_of(json_object_get(m->json, "reasoning_content"));
        return given.n || memmem(strbuf_str(&m->content), m->content.len, "</think>", 8);
    }
    return 1;
}

/* See chat.h. */
static void mark_answer(const Render *r, const json_t *tools, const ChatOptions *options)
{
    if (!r->marks) return;
    r->marks->n_stable = r->answer_thinks ? r->answer_thinks : r->out->len;
    int is_kept = json_array_size(tools) && (!is_thinking_on(r, options) || sends_reasoning(r));
    r->marks->answer_changes = r->answer_thinks && !is_kept;
    /* A picture's marks stand in the midst of contents, and are control tokens. */
    if (r->n_images || r->n_videos) r->marks->n_client = 0;
}

int chat_render(const ChatTemplate *t, const json_t *messages, const json_t *tools,
                const ChatOptions *options, StrBuf *out, ChatMarks *marks, Error *err)
{
    Render r = {.t = t,
                .n = json_array_size(messages),
                .last_query = -1,
                .add_vision_id = options->add_vision_id,
                .continue_final = options->continue_final,
                .out = out,
                .marks = marks,
                .err = err};
    if (!r.n) return error_set(err, ERR_INPUT, "no messages provided");
    r.message = mem_alloc(r.n, sizeof *r.message);
    int rc = read_messages(&r, messages);
    if (!rc && r.continue_final && r.message[r.n - 1].role != ROLE_ASSISTANT)
        rc = error_set(err, ERR_INPUT, "the last message is not an assistant's");
    if (!rc) {
        put_system(&r, tools);
        rc = put_messages(&r);
    }
    if (!rc && options->add_generation_prompt) put_generation_prompt(&r, options);
    if (!rc) mark_answer(&r, tools, options);
    for (size_t i = 0; i < r.n; i++)
        strbuf_free(&r.message[i].content);
    mem_free(r.message);
    return rc;
}
