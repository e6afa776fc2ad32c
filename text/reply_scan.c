/*
 * reply_scan.c: see reply_scan.h.
 *
 * Text waits in held[from..end). In each state one function looks at its beginning and either takes
 * some of it away or asks for more (reply_match.c knows what the markup looks like). It decides by
 * a bounded stretch of text, so it decides alike whether that came at once or byte by byte.
 */
#include "text/reply_scan.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "text/reply_match.h"
#include "text/utf8.h"

/* Bytes of text taken in at once, beyond what is held. */
enum { SCAN_CHUNK = 4096 };

typedef enum { IN_THINK, IN_TEXT, IN_CALL, IN_JSON, IN_ARGS, IN_VALUE, IN_AFTER, AT_END } ScanState;

struct ReplyScan {
    ScanOptions opt;
    ScanSink sink;
    int32_t tag_id[N_SCAN_TAGS];
    ScanState state;

    char *held; /* [cap], not zeroed */
    size_t cap, from, end;
    unsigned char half[4]; /* an unfinished character */
    int n_half;

    char last;        /* IN_TEXT, IN_VALUE: the last byte given out; a newline at the start */
    int empty_line;   /* so was the one before */
    int drop_newline; /* if one is next: IN_TEXT all of them, else the first */
    int visible;      /* content or a call was there */
    int thought;      /* reasoning was there */
    int shows_think;  /* a <think> is text, and so is the </think> that ends it */
    int tool;         /* of the call: index, -1: undeclared */
    uint8_t *seen;    /* its parameters, one bit each */
    CallJson json;
    size_t json_at; /* IN_JSON: bytes of held text that json has seen */
    int named;      /* IN_JSON: SCAN_CALL_JSON was said, nothing is held any more */

    int n_repairs, n_fallbacks[N_SCAN_FALLBACKS];
};

const char *scan_tag_text(ScanTag tag)
{
    static const char *const texts[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    return texts[tag];
}

ReplyScan *reply_scan_open(const ScanOptions *options, ScanSink sink)
{
    ReplyScan *s = mem_alloc(1, sizeof *s);
    s->opt = *options;
    s->sink = sink;
    for (int i = 0; i < N_SCAN_TAGS; i++)
        s->tag_id[i] = s->opt.tok ? tokenizer_added_id(s->opt.tok, scan_tag_text((ScanTag)i)) : -1;
    s->cap = MAX_SCAN_HELD + SCAN_CHUNK;
    if (s->opt.tools) {
        s->cap += MAX_CALL_JSON;
        s->seen = mem_alloc((size_t)reply_tools_max_params(s->opt.tools) / 8 + 1, 1);
    }
    s->held = mem_realloc(NULL, s->cap, 1); /* not touched before a JSON call needs so much */
    s->state = options->starts_in_think ? IN_THINK : IN_TEXT;
    s->last = '\n';
    s->empty_line = 1;
    s->tool = -1;
    return s;
}

void reply_scan_close(ReplyScan *s)
{
    if (!s) return;
    mem_free(s->seen);
    mem_free(s->held);
    mem_free(s);
}

int reply_scan_in_think(const ReplyScan *s)
{
    return s->state == IN_THINK;
}

int reply_scan_held(const ReplyScan *s)
{
    return s->end > s->from;
}

int reply_scan_repairs(const ReplyScan *s)
{
    return s->n_repairs;
}

int reply_scan_fallbacks(const ReplyScan *s, ScanFallback reason)
{
    return s->n_fallbacks[reason];
}

/* ---- saying what was found ---- */

static void say(ReplyScan *s, ScanEvent event, const char *text, size_t len)
{
    if (s->sink.event) s->sink.event(s->sink.self, event, text, len);
}

static void say_text(ReplyScan *s, ScanEvent event, const char *text, size_t len)
{
    if (!len) return;
    s->empty_line = (len > 1 ? text[len - 2] : s->last) == '\n' && text[len - 1] == '\n';
    s->last = text[len - 1];
    say(s, event, text, len);
}

/* Sets *is_there when there is more than blanks. */
static void note(int *is_there, const char *text, size_t len)
{
    for (size_t i = 0; i < len && !*is_there; i++)
        *is_there = !is_blank(text[i]);
}

static void say_content(ReplyScan *s, const char *text, size_t len)
{
    note(&s->visible, text, len);
    say_text(s, SCAN_CONTENT, text, len);
}

static void say_thought(ReplyScan *s, const char *text, size_t len)
{
    note(&s->thought, text, len);
    say_text(s, s->opt.parse_reasoning ? SCAN_REASONING : SCAN_CONTENT, text, len);
}

static void begin_text(ReplyScan *s)
{
    s->state = IN_TEXT;
    s->last = '\n';
    s->empty_line = 1;
}

static void begin_args(ReplyScan *s, const char *name, size_t len)
{
    s->state = IN_ARGS;
    s->visible = 1;
    s->tool = reply_tools_find(s->opt.tools, name, len);
    memset(s->seen, 0, (size_t)reply_tools_max_params(s->opt.tools) / 8 + 1);
    say(s, SCAN_CALL, name, len);
}

static void end_call(ReplyScan *s, ScanState next)
{
    s->state = next;
    say(s, SCAN_CALL_END, "", 0);
}

static void close_block(ReplyScan *s)
{
    begin_text(s);
    say(s, SCAN_CALL_CLOSED, "", 0);
}

/* ---- one look at the held text, by state; 0: more of it is needed ---- */

static Look look_at_held(const ReplyScan *s, int more_may_come)
{
    size_t n = s->end - s->from;
    if (n > MAX_SCAN_HELD) return (Look){s->held + s->from, MAX_SCAN_HELD, 0, LOOK_CUT};
    return (Look){s->held + s->from, n, 0, more_may_come ? LOOK_GROWS : LOOK_ENDS};
}

static int advance_think(ReplyScan *s)
{
    const char *p = s->held + s->from;
    size_t n = s->end - s->from;
    int drop = s->drop_newline && *p == '\n';
    s->drop_newline = 0;
    s->from = s->end;
    say_thought(s, p + drop, n - (size_t)drop);
    return 1;
}

/* The beginning of a call. Returns MATCH_MORE, or takes it or its first byte away. */
static Match take_call(ReplyScan *s, Look look, int spelled)
{
    Look name;
    int bare = spelled && s->empty_line && look.n > 1 && look.text[1] == 'f';
    Match m = bare ? match_bare_call(&look, &name) : match_call(&look, spelled, &name);
    if (m == MATCH_JSON && !spelled) {
        s->state = IN_JSON;
        s->json_at = s->from + look.at;
        s->named = 0;
        call_json_init(&s->json, 0);
    } else if (m == MATCH_FUNCTION &&
               (!spelled || reply_tools_find(s->opt.tools, name.text, name.n) >= 0)) {
        s->n_repairs += bare;
        s->from += look.at;
        begin_args(s, name.text, name.n);
    } else if (m != MATCH_MORE) {
        m = MATCH_NOT;
    }
    return m;
}

static int advance_text(ReplyScan *s, int more_may_come)
{
    const char *p = s->held + s->from;
    size_t n = s->end - s->from, k = 1;
    if (s->drop_newline && *p == '\n') {
        s->from++;
        return 1;
    }
    s->drop_newline = 0;
    if (s->opt.tools && *p == '<' && s->last == '\n') {
        Match m = take_call(s, look_at_held(s, more_may_come), 1);
        if (m != MATCH_NOT) return m != MATCH_MORE;
    }
    while (k < n && !(s->opt.tools && p[k] == '<' && p[k - 1] == '\n'))
        k++;
    s->from += k;
    say_content(s, p, k);
    return 1;
}

static int advance_call(ReplyScan *s, int more_may_come)
{
    Match m = take_call(s, look_at_held(s, more_may_come), 0);
    if (m != MATCH_NOT) return m != MATCH_MORE;
    s->n_fallbacks[FALLBACK_NO_FUNCTION]++;
    begin_text(s);
    say_content(s, s->held + s->from++, 1);
    return 1;
}

static int advance_args(ReplyScan *s, int more_may_come)
{
    Look name;
    Look look = look_at_held(s, more_may_come);
    switch (match_in_args(&look, &name)) {
    case MATCH_MORE:
        return 0;
    case MATCH_BLANKS:
        break;
    case MATCH_PARAMETER: {
        int param = reply_tools_param(s->opt.tools, s->tool, name.text, name.n);
        if (param >= 0) s->seen[param / 8] |= (uint8_t)(1 << param % 8);
        s->state = IN_VALUE;
        s->last = '\n';
        s->drop_newline = 1;
        say(s, SCAN_PARAMETER, name.text, name.n);
        break;
    }
    case MATCH_END_FUNCTION:
        end_call(s, IN_AFTER);
        break;
    case MATCH_END_CALL:
        s->n_repairs++;
        end_call(s, IN_AFTER);
        close_block(s);
        break;
    case MATCH_FUNCTION: /* stays where it is */
        s->n_repairs++;
        end_call(s, IN_CALL);
        return 1;
    default:
        s->n_repairs++;
        look.at = 1; /* of no use to anyone */
        break;
    }
    s->from += look.at;
    return 1;
}

static int is_unseen(const ReplyScan *s, Look name)
{
    int param = reply_tools_param(s->opt.tools, s->tool, name.text, name.n);
    return param >= 0 && !(s->seen[param / 8] >> param % 8 & 1);
}

/* The value ends before the n-th held byte; take is where the next state goes on. */
static int end_value(ReplyScan *s, size_t n, size_t take)
{
    const char *p = s->held + s->from;
    if (n && p[n - 1] == '\n') n--;
    s->from += take;
    s->state = IN_ARGS;
    say_text(s, SCAN_VALUE, p, n);
    say(s, SCAN_VALUE_END, "", 0);
    return 1;
}

static int advance_value(ReplyScan *s, int more_may_come)
{
    const char *p = s->held + s->from;
    size_t n = s->end - s->from, k = 0;
    if (s->drop_newline && *p == '\n') {
        s->drop_newline = 0;
        s->from++;
        return 1;
    }
    s->drop_newline = 0;
    while (k < n && p[k] != '<' && !is_blank(p[k]))
        k++;
    if (!k) {
        Look name, look = look_at_held(s, more_may_come);
        size_t n_blanks;
        Match m = match_in_value(&look, s->last == '\n', &n_blanks, &name);
        if (m == MATCH_MORE) return 0;
        if (m == MATCH_END_VALUE) return end_value(s, n_blanks, look.at);
        if (m == MATCH_TAIL) {
            s->n_repairs++;
            return end_value(s, 0, n);
        }
        if (m == MATCH_PARAMETER && is_unseen(s, name)) {
            s->n_repairs++;
            return end_value(s, n_blanks, n_blanks);
        }
        /* A run of blanks too long to see all of what follows it loses its first one only. */
        k = n_blanks && look.end == LOOK_CUT ? 1 : n_blanks + (p[n_blanks] == '<');
    }
    s->from += k;
    say_text(s, SCAN_VALUE, p, k);
    return 1;
}

static int advance_after(ReplyScan *s, int more_may_come)
{
    Look look = look_at_held(s, more_may_come);
    Match m = match_after_call(&look);
    if (m == MATCH_MORE) return 0;
    if (m == MATCH_NOT) {
        begin_text(s);
        return 1;
    }
    s->from += look.at;
    if (m == MATCH_END_CALL) close_block(s);
    if (m == MATCH_FUNCTION) s->state = IN_CALL;
    s->n_repairs += m == MATCH_FUNCTION;
    return 1;
}

/* ---- calls in JSON ---- */

/* What was held is content after all, or the call that was begun ends here. */
static void break_json(ReplyScan *s)
{
    s->n_fallbacks[FALLBACK_BAD_JSON]++;
    if (s->named) {
        s->state = IN_AFTER;
        say(s, SCAN_CALL_CUT, "", 0);
        return;
    }
    begin_text(s);
    say_content(s, s->held + s->from++, 1);
}

static void say_arguments(ReplyScan *s, const char *text, size_t len)
{
    if (len) say(s, SCAN_ARGUMENTS, text, len);
}

/* Length of the character that is held there. */
static size_t character_at(const ReplyScan *s, size_t at)
{
    int len = utf8_step((const unsigned char *)s->held + at, s->end - at);
    assert(len > 0);
    return (size_t)len;
}

/* The name is known: all that was held is read once more, now to be passed on. */
static void begin_json_call(ReplyScan *s)
{
    const char *brace = memchr(s->held + s->from, '{', s->json_at - s->from);
    assert(brace);
    s->named = s->visible = 1;
    say(s, SCAN_CALL_JSON, s->json.name, s->json.name_len);
    call_json_init(&s->json, 1);
    for (s->from = (size_t)(brace - s->held); s->from < s->json_at;) {
        char out[16];
        size_t n_out, len = character_at(s, s->from);
        call_json_push(&s->json, s->held + s->from, len, out, &n_out);
        say_arguments(s, out, n_out);
        s->from += len;
    }
}

static int advance_json(ReplyScan *s)
{
    char out[16];
    size_t n_out;
    const char *p = s->held + s->json_at;
    if (s->json_at == s->end) return 0;
    size_t len = character_at(s, s->json_at);
    JsonState state = call_json_push(&s->json, p, len, out, &n_out);
    if (state == JS_BAD || (!s->named && s->json_at - s->from >= MAX_CALL_JSON)) {
        break_json(s);
        return 1;
    }
    s->json_at += len;
    if (s->named) {
        s->from = s->json_at;
        say_arguments(s, out, n_out);
    } else if (s->json.has_name) {
        begin_json_call(s);
    }
    if (state == JS_DONE) end_call(s, IN_AFTER);
    return 1;
}

/* ---- text and tags ---- */

static int advance(ReplyScan *s, int more_may_come)
{
    switch (s->state) {
    case IN_THINK:
        return advance_think(s);
    case IN_TEXT:
        return advance_text(s, more_may_come);
    case IN_CALL:
        return advance_call(s, more_may_come);
    case IN_JSON:
        return advance_json(s);
    case IN_ARGS:
        return advance_args(s, more_may_come);
    case IN_VALUE:
        return advance_value(s, more_may_come);
    case IN_AFTER:
        return advance_after(s, more_may_come);
    case AT_END:
        break;
    }
    s->from = s->end;
    return 0;
}

static void run(ReplyScan *s, int more_may_come)
{
    while (s->from < s->end && advance(s, more_may_come))
        continue;
}

/* Adds text that is whole characters, at most SCAN_CHUNK bytes. */
static void hold(ReplyScan *s, const char *text, size_t len)
{
    if (s->end + len > s->cap) {
        run(s, 1);
        s->end -= s->from;
        s->json_at -= s->state == IN_JSON ? s->from : 0;
        memmove(s->held, s->held + s->from, s->end);
        s->from = 0;
    }
    if (s->from == s->end) {
        s->json_at -= s->state == IN_JSON ? s->from : 0;
        s->from = s->end = 0;
    }
    assert(s->end + len <= s->cap);
    memcpy(s->held + s->end, text, len);
    s->end += len;
}

void reply_scan_bytes(ReplyScan *s, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char text[8];
        int n = utf8_push(s->half, &s->n_half, (unsigned char)bytes[i], text);
        hold(s, text, (size_t)n);
    }
    run(s, 1);
}

static void end_character(ReplyScan *s)
{
    if (s->n_half) hold(s, "\xEF\xBF\xBD", 3);
    s->n_half = 0;
    run(s, 1);
}

static void open_call(ReplyScan *s, ScanTag tag)
{
    const char *text = scan_tag_text(tag);
    s->state = IN_CALL;
    hold(s, text, strlen(text));
}

static void tag_in_think(ReplyScan *s, ScanTag tag)
{
    const char *text = scan_tag_text(tag);
    int end = tag == TAG_THINK_CLOSE, parse = s->opt.parse_reasoning;
    s->drop_newline = tag == TAG_THINK_OPEN && parse && !s->thought;
    if (s->drop_newline) return; /* it begins as the prompt has begun it already */
    if (!end || !parse) say_thought(s, text, strlen(text));
    if (!end) return;
    begin_text(s);
    s->drop_newline = parse;
    say(s, SCAN_REASONING_END, "", 0);
}

static void tag_in_text(ReplyScan *s, ScanTag tag)
{
    const char *text = scan_tag_text(tag);
    int parse = s->opt.parse_reasoning;
    if (tag == TAG_THINK_CLOSE && parse && !s->shows_think) return; /* a second one */
    if (tag == TAG_CALL_OPEN && s->opt.tools) {
        open_call(s, tag);
    } else if (tag == TAG_THINK_OPEN && !s->visible) {
        s->state = IN_THINK;
        s->drop_newline = parse;
        if (!parse) say_thought(s, text, strlen(text));
    } else {
        s->drop_newline = 0;
        if (tag == TAG_THINK_OPEN || tag == TAG_THINK_CLOSE) s->shows_think = tag == TAG_THINK_OPEN;
        say_content(s, text, strlen(text));
    }
}

static void tag_in_args(ReplyScan *s, ScanTag tag)
{
    s->n_repairs++;
    if (tag != TAG_CALL_OPEN && tag != TAG_CALL_CLOSE) return;
    end_call(s, IN_AFTER);
    if (tag == TAG_CALL_CLOSE)
        close_block(s);
    else
        open_call(s, tag);
}

static void tag_after_call(ReplyScan *s, ScanTag tag)
{
    if (tag == TAG_CALL_CLOSE) {
        close_block(s);
    } else if (tag == TAG_CALL_OPEN) {
        s->n_repairs++;
        open_call(s, tag);
    } else {
        begin_text(s);
        tag_in_text(s, tag);
    }
}

/* In a value, and in a string of a JSON call, a tag is text like any other. */
static int tag_is_text(const ReplyScan *s)
{
    return s->state == IN_VALUE || (s->state == IN_JSON && json_scan_in_string(&s->json.outer));
}

void reply_scan_tag(ReplyScan *s, ScanTag tag)
{
    end_character(s);
    if (!tag_is_text(s)) {
        if (s->state == IN_JSON) break_json(s);
        run(s, 0);
    }
    if (tag_is_text(s)) {
        reply_scan_bytes(s, scan_tag_text(tag), strlen(scan_tag_text(tag)));
        return;
    }
    assert(s->from == s->end);
    if (s->state == IN_THINK)
        tag_in_think(s, tag);
    else if (s->state == IN_TEXT)
        tag_in_text(s, tag);
    else if (s->state == IN_ARGS)
        tag_in_args(s, tag);
    else if (s->state == IN_AFTER)
        tag_after_call(s, tag);
    run(s, 1);
}

int reply_scan_tag_of(const ReplyScan *s, int32_t token)
{
    int parses = s->opt.tools || s->opt.parse_reasoning || s->opt.starts_in_think;
    for (int i = 0; i < N_SCAN_TAGS && parses; i++)
        if (token >= 0 && s->tag_id[i] == token) return i;
    return -1;
}

void reply_scan_token(ReplyScan *s, int32_t token)
{
    int tag = reply_scan_tag_of(s, token);
    if (tag >= 0) {
        reply_scan_tag(s, (ScanTag)tag);
        return;
    }
    size_t len;
    if (!s->opt.keep_special && tokenizer_is_special(s->opt.tok, token)) return;
    const char *bytes = tokenizer_bytes(s->opt.tok, token, &len);
    reply_scan_bytes(s, bytes, len);
}

void reply_scan_end(ReplyScan *s, int stopped)
{
    end_character(s);
    if (s->state == IN_JSON) break_json(s);
    if (s->state == IN_VALUE && !stopped) s->from = s->end;
    run(s, 0);
    if (s->state == IN_VALUE && stopped) {
        s->n_repairs++;
        end_value(s, 0, 0);
    }
    if (s->state == IN_ARGS && stopped) {
        s->n_repairs++;
        end_call(s, AT_END);
    } else if (s->state == IN_ARGS || s->state == IN_VALUE) {
        say(s, SCAN_CALL_CUT, "", 0);
    }
    s->state = AT_END;
}
