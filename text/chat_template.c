/*
 * chat_template.c: the published templates, line by line, in C.
 *
 * Source: the chat_template.jinja of Qwen3.5, 3.6, 3.8 and of Qwen3-Coder-Next (Apache-2.0), and
 * the template that Qwen3-Next shares with Qwen3-2507. The system turn and calls are
 * chat_tools.c's.
 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "text/chat_parts.h"
#include "text/pyjson.h"
#include "text/utf8.h"

#define TURN "<|im_start|>" /* what each begins with */

void chat_mark_client(const Render *r, size_t from)
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

void chat_put(const Render *r, Span text)
{
    size_t from = r->out->len;
    strbuf_add(r->out, text.s, text.n);
    chat_mark_client(r, from);
}

void chat_put_json(const Render *r, const json_t *value)
{
    size_t from = r->out->len;
    pyjson_dump(value, r->out);
    chat_mark_client(r, from);
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

Span chat_trim(Span text)
{
    int k;
    while (text.n && is_space(utf8_decode(text.s, &k)))
        text = (Span){text.s + k, text.n - (size_t)k};
    while (text.n) {
        size_t at = text.n - 1;
        while (at && utf8_is_tail((unsigned char)text.s[at]))
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
    if (!chat_is_qwen35(r))
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
    size_t len = json_string_length(text);
    if (len && m->content.len && !chat_is_qwen35(r)) strbuf_puts(&m->content, "\n");
    strbuf_add(&m->content, json_string_value(text), len);
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

Span chat_content(const Render *r, const Message *m)
{
    Span text = {strbuf_str(&m->content), m->content.len};
    return chat_is_qwen35(r) ? chat_trim(text) : text;
}

static int read_role(const Render *r, size_t i, Message *m)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *name = json_string_value(json_object_get(m->json, "role"));
    for (int k = 0; name && k < 4; k++) {
        if (strcmp(name, roles[k]) != 0) continue;
        m->role = (Role)k;
        if (m->role == ROLE_SYSTEM && i && chat_is_qwen35(r))
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
        Span text = chat_content(r, m);
        if (m->role == ROLE_USER &&
            !(starts_with(text, "<tool_response>") && ends_with(text, "</tool_response>")))
            r->last_query = (long)i;
    }
    if (r->last_query < 0 && chat_is_qwen35(r))
        return error_set(r->err, ERR_INPUT, "no user query found in messages");
    /* The other templates then take every message as part of what came before the question. */
    if (r->last_query < 0) r->last_query = (long)r->n - 1;
    return 0;
}

/* Whether the template knows reasoning in front of an answer. */
static int knows_thinking(const Render *r)
{
    return chat_is_qwen35(r) || r->t->family == CHAT_QWEN3_NEXT_THINKING;
}

/* Whether the thinking of an assistant message is shown: as a rule only after the last question. */
static int shows_thinking(const Render *r, size_t i, Span reasoning)
{
    if (!knows_thinking(r)) return 0;
    if (chat_is_qwen35(r)) return r->keeps_thinking || (long)i > r->last_query;
    return (long)i > r->last_query && (i + 1 == r->n || reasoning.n);
}

/* Qwen3-Coder's: what it says before calls is trimmed, and stands apart from them. */
static int put_coder_answer(const Render *r, size_t i)
{
    const Message *m = &r->message[i];
    Span content = chat_content(r, m), text = chat_trim(content);
    if (!json_array_size(json_object_get(m->json, "tool_calls"))) {
        strbuf_puts(r->out, "\n");
        chat_put(r, content);
    } else if (text.n) {
        strbuf_puts(r->out, "\n");
        chat_put(r, text);
        strbuf_puts(r->out, "\n");
    }
    return chat_put_calls(r, i, content);
}

static int put_answer(Render *r, size_t i, int is_open)
{
    const Message *m = &r->message[i];
    const json_t *given = json_object_get(m->json, "reasoning_content");
    Span content = chat_content(r, m), reasoning = {"", 0};
    if (!knows_thinking(r)) {
        /* The content is the answer, whatever it holds. */
    } else if (json_is_string(given)) {
        reasoning = span_of(given);
    } else if (r->t->family != CHAT_QWEN38 && memmem(content.s, content.n, "</think>", 8)) {
        reasoning = strip_newlines(before_first(content, "</think>"), 0, 1);
        reasoning = strip_newlines(after_last(reasoning, "<think>"), 1, 0);
        content = strip_newlines(after_last(content, "</think>"), 1, 0);
    }
    strbuf_puts(r->out, "\n");
    if (shows_thinking(r, i, reasoning)) {
        r->answer_thinks = is_open;
        strbuf_puts(r->out, "<think>\n");
        chat_put(r, chat_is_qwen35(r) ? chat_trim(reasoning) : strip_newlines(reasoning, 1, 1));
        strbuf_puts(r->out, "\n</think>\n\n");
        chat_put(r, chat_is_qwen35(r) ? content : strip_newlines(content, 1, 0));
    } else {
        chat_put(r, content);
    }
    return chat_put_calls(r, i, content);
}

static int put_assistant(Render *r, size_t i)
{
    int is_open = r->continue_final && i + 1 == r->n;
    strbuf_puts(r->out, TURN);
    if (is_open) r->answer = r->out->len;
    strbuf_puts(r->out, "assistant");
    if (r->t->family == CHAT_QWEN3_CODER ? put_coder_answer(r, i) : put_answer(r, i, is_open))
        return -1;
    if (!is_open) strbuf_puts(r->out, "<|im_end|>\n");
    return 0;
}

/* Whether the template opens a user turn for the tool message i, the first of a run. */
static int opens_turn(const Render *r, size_t i)
{
    if (r->t->family == CHAT_QWEN3_CODER && i == 1) return r->message[0].role != ROLE_SYSTEM;
    return i || !(chat_is_qwen35(r) || r->t->family == CHAT_QWEN3_CODER);
}

/*
 * A run of tool messages is one user turn. Qwen3.5's does not open one for the very first message;
 * nor does Qwen3-Coder's, which does not count the system message.
 */
static void put_tool(const Render *r, size_t i)
{
    if ((!i || r->message[i - 1].role != ROLE_TOOL) && opens_turn(r, i))
        strbuf_puts(r->out, "<|im_start|>user");
    strbuf_puts(r->out, "\n<tool_response>\n");
    chat_put(r, chat_content(r, &r->message[i]));
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
            chat_put(r, chat_content(r, m));
            strbuf_puts(r->out, "<|im_end|>\n");
        }
    }
    return 0;
}

/*
 * What Qwen3.8 is told of how hard to think. Its template takes xhigh, medium and low; the other
 * names mean what they mean to the service of those who made it.
 */
static int read_effort(Render *r, const char *effort)
{
    static const char xhigh[] =
        "Reasoning effort is set to xhigh. Please think carefully through the task, validate key "
        "assumptions, consider plausible alternatives, and prioritize correctness, consistency, "
        "and clarity in the final answer.";
    static const char low[] = "Reasoning effort is set to low. Keep your thinking brief and "
                              "focused, moving directly to the conclusion without unnecessary "
                              "elaboration.";
    static const struct {
        const char *name, *text;
    } efforts[] = {{"xhigh", xhigh}, {"high", xhigh}, {"max", xhigh},
                   {"medium", ""},   {"low", low},    {"minimal", low}};
    if (r->t->family != CHAT_QWEN38 || !r->thinks) return 0;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        if (!strcmp(effort ? effort : "xhigh", efforts[i].name)) {
            r->instructions = efforts[i].text;
            return 0;
        }
    return error_set(r->err, ERR_INPUT,
                     "unexpected reasoning effort '%.40s': low, medium and xhigh are supported",
                     effort);
}

static int read_options(Render *r, const ChatOptions *o)
{
    const ChatTemplate *t = r->t;
    if (t->always_thinks && !o->enable_thinking)
        return error_set(r->err, ERR_INPUT, "disabling thinking is not supported");
    if (chat_is_qwen35(r))
        r->thinks = o->enable_thinking < 0 ? t->thinking_default : o->enable_thinking;
    else
        r->thinks = t->family == CHAT_QWEN3_NEXT_THINKING;
    if (t->family == CHAT_QWEN38)
        r->keeps_thinking = o->preserve_thinking != 0;
    else
        r->keeps_thinking = t->can_keep_thinking && o->preserve_thinking == 1;
    return read_effort(r, o->effort);
}

static void put_generation_prompt(Render *r)
{
    strbuf_puts(r->out, TURN);
    r->answer = r->out->len;
    strbuf_puts(r->out, "assistant\n");
    if (r->thinks)
        strbuf_puts(r->out, "<think>\n");
    else if (chat_is_qwen35(r))
        strbuf_puts(r->out, "<think>\n\n</think>\n\n");
    r->answer_thinks = r->thinks || chat_is_qwen35(r);
}

/* Whether the last answer that the client knows came with its reasoning; 1 where there is none. */
static int sends_reasoning(const Render *r)
{
    for (size_t i = r->n; i-- > 0;) {
        const Message *m = &r->message[i];
        if (m->role != ROLE_ASSISTANT) continue;
        if (json_string_length(json_object_get(m->json, "reasoning_content"))) return 1;
        return r->t->family != CHAT_QWEN38 &&
               memmem(strbuf_str(&m->content), m->content.len, "</think>", 8);
    }
    return 1;
}

/* See chat.h. */
static void mark_answer(const Render *r, const json_t *tools)
{
    if (!r->marks) return;
    int stays = !r->answer_thinks || (r->keeps_thinking && (!r->thinks || r->continue_final));
    int goes_on = stays && r->continue_final;
    r->marks->n_stable = r->answer && !goes_on ? r->answer : r->out->len;
    r->marks->drops_thinking = !stays;
    int is_kept = stays || ((json_array_size(tools) || r->keeps_thinking) &&
                            (!r->thinks || sends_reasoning(r)));
    r->marks->answer_changes = !is_kept;
    /* A picture's marks stand in the midst of contents, and are control tokens. */
    if (r->n_images || r->n_videos) r->marks->n_client = 0;
}

/* The turn behind it begins alike in each conversation. */
static void put_system(const Render *r, const json_t *tools)
{
    size_t from = r->out->len;
    chat_put_system(r, tools);
    if (r->marks && r->out->len > from) r->marks->n_system = r->out->len + strlen(TURN);
}

int chat_render(const ChatTemplate *t, const json_t *messages, const json_t *tools,
                const ChatOptions *options, StrBuf *out, ChatMarks *marks, Error *err)
{
    Render r = {.t = t,
                .n = json_array_size(messages),
                .last_query = -1,
                .add_vision_id = options->add_vision_id,
                .continue_final = options->continue_final,
                .instructions = "",
                .out = out,
                .marks = marks,
                .err = err};
    if (!r.n) return error_set(err, ERR_INPUT, "no messages provided");
    r.message = mem_alloc(r.n, sizeof *r.message);
    int rc = read_options(&r, options) || read_messages(&r, messages) ? -1 : 0;
    if (!rc && r.continue_final && r.message[r.n - 1].role != ROLE_ASSISTANT)
        rc = error_set(err, ERR_INPUT, "the last message is not an assistant's");
    if (!rc) {
        put_system(&r, tools);
        rc = put_messages(&r);
    }
    if (!rc && options->add_generation_prompt) put_generation_prompt(&r);
    if (!rc) mark_answer(&r, tools);
    for (size_t i = 0; i < r.n; i++)
        strbuf_free(&r.message[i].content);
    mem_free(r.message);
    return rc;
}
