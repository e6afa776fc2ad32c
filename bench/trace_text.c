/*
 * trace_text.c: conversations in text become requests, one an assistant message.
 *
 * Prompts are ChatML: "<|im_start|>role\ntext<|im_end|>\n" a message, then the header of the
 * answer. Made of tokens message by message: what a real template adds is the same in all of them.
 * Such files have no times: sessions start and turns follow as the knobs say.
 */
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "bench/trace_parts.h"

enum {
    STAND_IN_BYTES = 4,  /* of a word, a token */
    CLASS_TOKENS = 2000, /* of a BFCL class's functions: about what their text has */
    BFCL_ANSWER = 150,
    SEED_CLASS = 7, /* what made tokens stand for, by their seeds' highest bits */
    SEED_ANSWER = 8,
};

static uint64_t hash_bytes(const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325); /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001B3);
    return h;
}

static int is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c & 0x80;
}

/* A blank joins the word after it. Every cut depends on a few bytes alone. */
static void stand_in(const char *text, size_t len, TokenList *out)
{
    for (size_t i = 0, n; i < len; i += n) {
        n = 1;
        if (is_word(text[i]) || (text[i] == ' ' && i + 1 < len && is_word(text[i + 1])))
            while (n <= STAND_IN_BYTES && i + n < len && is_word(text[i + n]))
                n++;
        token_list_add(out, (int32_t)(hash_bytes(text + i, n) & INT32_MAX));
    }
}

static int store_text(Trace *t, const TraceText *x, const char *text, TracePart *part, Error *err)
{
    TokenList list = {.limit = TRACE_MOST};
    int rc = 0;
    if (x->tok)
        rc = tokenizer_encode(x->tok, text, strlen(text), &list, err);
    else
        stand_in(text, strlen(text), &list);
    if (!rc) *part = trace_store(t, list.id, list.n);
    token_list_free(&list);
    return rc;
}

/* A session that grows message by message. */
typedef struct {
    Trace *t;
    TraceText *x;
    TraceHistory h;
    TraceClock clock;
    int known; /* tokens of the request before */
} Session;

static Session session_open(Trace *t, TraceText *x)
{
    Session s = {.t = t, .x = x};
    if (x->n_sessions) x->start += trace_next_start(x->load, &x->state);
    x->n_sessions++;
    t->n_sessions = (int)x->n_sessions;
    s.clock = (TraceClock){.load = x->load, .now = x->start};
    s.clock.state = x->state ^ UINT64_C(0x5851F42D4C957F2D);
    return s;
}

static int too_long(Error *err)
{
    return error_set(err, ERR_LIMIT, "the conversation has more than %d tokens", TRACE_MOST);
}

static int add_part(Session *s, TracePart part, Error *err)
{
    if (s->h.n_tokens > TRACE_MOST) return too_long(err);
    trace_history_add(&s->h, part);
    return 0;
}

static int say(Session *s, const char *text, Error *err)
{
    TracePart part;
    if (store_text(s->t, s->x, text, &part, err)) return -1;
    return add_part(s, part, err);
}

/* The prompt ends with the answer's header. */
static int ask(Session *s, TracePart answer, Error *err)
{
    int n = s->h.n_tokens + answer.n;
    if (n > TRACE_MOST) return too_long(err);
    TraceTurn turn = {.ts = s->clock.now, .session = s->x->n_sessions - 1, .n_new = n - s->known};
    trace_add(s->t, &turn, &s->h, answer);
    s->known = n;
    trace_history_add(&s->h, answer);
    trace_clock_answered(&s->clock, answer.n);
    return say(s, "\n", err);
}

/* ---- messages ---- */

/* Text and calls of a message, as one text. -1: its content is something else. */
static int message_text(const json_t *message, StrBuf *out)
{
    const json_t *content = json_object_get(message, "content");
    const json_t *calls = json_object_get(message, "tool_calls");
    if (content && !json_is_null(content) && !json_is_string(content)) return -1;
    if (json_is_string(content)) strbuf_puts(out, json_string_value(content));
    if (json_array_size(calls)) {
        char *text = json_dumps(calls, JSON_COMPACT | JSON_SORT_KEYS);
        strbuf_puts(out, text);
        free(text);
    }
    return 0;
}

static int add_message(Session *s, const json_t *message, Error *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) return error_set(err, ERR_INPUT, "a message has no role");
    StrBuf text = {0};
    int rc = 0, assistant = !strcmp(role, "assistant");
    strbuf_printf(&text, "<|im_start|>%s\n", role);
    if (assistant) {
        rc = say(s, strbuf_str(&text), err);
        strbuf_clear(&text);
    }
    if (!rc && message_text(message, &text))
        rc = error_set(err, ERR_INPUT, "a message's content is no text");
    strbuf_puts(&text, assistant ? "<|im_end|>" : "<|im_end|>\n");
    TracePart answer = {0};
    if (!rc && !assistant) rc = say(s, strbuf_str(&text), err);
    if (!rc && assistant) {
        rc = store_text(s->t, s->x, strbuf_str(&text), &answer, err);
        if (!rc) rc = ask(s, answer, err);
    }
    strbuf_free(&text);
    return rc;
}

int trace_add_messages(Trace *t, TraceText *text, const json_t *line, Error *err)
{
    Session s = session_open(t, text);
    const json_t *list = json_object_get(line, "messages"), *message;
    size_t i;
    int rc = json_is_array(list) ? 0 : error_set(err, ERR_INPUT, "'messages' is no list");
    json_array_foreach(list, i, message)
    {
        if (rc) break;
        rc = add_message(&s, message, err);
    }
    trace_history_free(&s.h);
    return rc;
}

/* ---- BFCL ---- */

/* One turn: the user's messages, then a made answer. */
static int add_turn(Session *s, const json_t *turn, Error *err)
{
    const json_t *message;
    size_t i;
    if (!json_is_array(turn)) return error_set(err, ERR_INPUT, "a turn is no list");
    json_array_foreach(turn, i, message)
    {
        if (add_message(s, message, err)) return -1;
    }
    if (say(s, "<|im_start|>assistant\n", err)) return -1;
    uint64_t seed = ((uint64_t)SEED_ANSWER << 60) + (uint64_t)s->t->n;
    return ask(s, trace_made(seed, BFCL_ANSWER), err);
}

int trace_add_bfcl(Trace *t, TraceText *text, const json_t *line, Error *err)
{
    Session s = session_open(t, text);
    const json_t *v;
    size_t i;
    int rc = say(&s, "<|im_start|>system\n", err);
    json_array_foreach(json_object_get(line, "involved_classes"), i, v)
    {
        if (rc) break;
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        uint64_t seed = ((uint64_t)SEED_CLASS << 60) ^ (hash_bytes(name, strlen(name)) >> 4);
        rc = add_part(&s, trace_made(seed, CLASS_TOKENS), err);
    }
    if (!rc) rc = say(&s, "<|im_end|>\n", err);
    json_array_foreach(json_object_get(line, "question"), i, v)
    {
        if (rc) break;
        rc = add_turn(&s, v, err);
    }
    trace_history_free(&s.h);
    return rc;
}
