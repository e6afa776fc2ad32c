/*
 * reply.c: see reply.h.
 *
 * The scan says what the text is; here it becomes pieces. Content passes two gates: the stop
 * strings' cutter, then a hold on white space, which is dropped when a call follows it.
 */
#include "text/reply.h"

#include <string.h>

#include "base/mem.h"
#include "text/pyjson.h"
#include "text/reply_drafts.h"
#include "text/reply_value.h"
#include "text/stop.h"

typedef struct {
    ReplyKind kind;
    int call;
    size_t from, to; /* in Reply.text */
} Piece;

struct Reply {
    ReplyOptions opt;
    ReplyScan *scan;
    ReplyDrafts *drafts; /* NULL: no calls */
    StopCutter *cutter;  /* NULL: no stop strings */
    int ended;

    StrBuf text; /* of the pieces */
    Piece *piece;
    int n_pieces, cap;

    StrBuf scratch;
    StrBuf blanks; /* white space at the end of the content so far */
    int newline;   /* the reasoning so far ends with one that is not out */
    int visible;   /* content other than white space, or a call, was let out */
    int answered;  /* such content came outside the think block */
    int spoke;     /* such content since the last call */

    int n_calls;
    int is_json; /* its arguments come verbatim */
    int n_params;
    int skips_value; /* of a parameter that was there already */
    json_t *params;  /* names of its parameters, escaped: keys */
    int tool;
    ReplyValue value;

    int n_tokens, n_reasoning;
    size_t content_len;
    int n_others;
    int n_fallbacks[N_REPLY_FALLBACKS];
};

static void scan_event(void *self, ScanEvent event, const char *text, size_t len);

Reply *reply_open(const ReplyOptions *options)
{
    Reply *r = mem_alloc(1, sizeof *r);
    r->opt = *options;
    r->opt.stop = NULL;
    r->scan = reply_scan_open(&options->scan, (ScanSink){r, scan_event});
    if (options->scan.tools) r->drafts = reply_drafts_open(options->scan.tools);
    if (options->n_stop) r->cutter = stop_cutter_open(options->stop, options->n_stop);
    return r;
}

void reply_close(Reply *r)
{
    if (!r) return;
    reply_scan_close(r->scan);
    reply_drafts_close(r->drafts);
    stop_cutter_close(r->cutter);
    strbuf_free(&r->text);
    strbuf_free(&r->scratch);
    strbuf_free(&r->blanks);
    json_decref(r->params);
    reply_value_free(&r->value);
    mem_free(r->piece);
    mem_free(r);
}

/* ---- pieces ---- */

int reply_n_pieces(const Reply *r)
{
    return r->n_pieces;
}

ReplyPiece reply_piece(const Reply *r, int i)
{
    const Piece *p = &r->piece[i];
    return (ReplyPiece){p->kind, p->call, strbuf_str(&r->text) + p->from, p->to - p->from};
}

void reply_clear(Reply *r)
{
    r->n_pieces = 0;
    strbuf_clear(&r->text);
}

/* The piece that text is appended to: the last one if it is of the same kind. */
static Piece *piece_for(Reply *r, ReplyKind kind, int call)
{
    int joins = kind == REPLY_REASONING || kind == REPLY_CONTENT || kind == REPLY_ARGUMENTS;
    if (r->n_pieces && joins) {
        Piece *last = &r->piece[r->n_pieces - 1];
        if (last->kind == kind && last->call == call) return last;
    }
    if (r->n_pieces == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 8;
        r->piece = mem_realloc(r->piece, (size_t)r->cap, sizeof *r->piece);
    }
    Piece *p = &r->piece[r->n_pieces++];
    *p = (Piece){kind, call, r->text.len, r->text.len};
    return p;
}

static void put(Reply *r, ReplyKind kind, int call, const char *text, size_t len)
{
    if (!len && (kind == REPLY_REASONING || kind == REPLY_CONTENT)) return;
    Piece *p = piece_for(r, kind, call);
    strbuf_add(&r->text, text, len);
    p->to = r->text.len;
    if (kind == REPLY_CONTENT)
        r->content_len += len;
    else
        r->n_others++;
}

/* ---- content ---- */

static size_t count_trailing_blanks(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[len - 1 - n] && strchr(" \t\r\n", text[len - 1 - n]))
        n++;
    return n;
}

/* White space at the end waits where something may follow that makes it part of the markup. */
static int holds_blanks(const Reply *r)
{
    return r->opt.scan.tools || (r->opt.scan.parse_reasoning && !r->visible);
}

static void flush_blanks(Reply *r)
{
    put(r, REPLY_CONTENT, -1, strbuf_str(&r->blanks), r->blanks.len);
    strbuf_clear(&r->blanks);
}

static void let_out(Reply *r, const char *text, size_t len)
{
    size_t n_blank = count_trailing_blanks(text, len);
    if (n_blank < len) {
        r->visible = r->spoke = 1;
        flush_blanks(r);
        put(r, REPLY_CONTENT, -1, text, len - n_blank);
    }
    strbuf_add(&r->blanks, text + len - n_blank, n_blank);
    if (!holds_blanks(r)) flush_blanks(r);
}

static void content(Reply *r, const char *text, size_t len)
{
    if (!reply_scan_in_think(r->scan) && count_trailing_blanks(text, len) < len) r->answered = 1;
    if (!r->cutter || r->opt.n_unwatched) {
        let_out(r, text, len);
        return;
    }
    strbuf_clear(&r->scratch);
    r->ended = stop_cutter_push(r->cutter, text, len, r->opt.include_stop, &r->scratch);
    let_out(r, strbuf_str(&r->scratch), r->scratch.len);
}

/* What follows is no content: no stop string goes on beyond here. */
static void end_content(Reply *r)
{
    if (!r->cutter) return;
    strbuf_clear(&r->scratch);
    stop_cutter_break(r->cutter, &r->scratch);
    let_out(r, strbuf_str(&r->scratch), r->scratch.len);
}

/* ---- reasoning ---- */

static void reasoning(Reply *r, const char *text, size_t len)
{
    if (!r->visible) strbuf_clear(&r->blanks);
    if (r->newline) put(r, REPLY_REASONING, -1, "\n", 1);
    r->newline = text[len - 1] == '\n';
    put(r, REPLY_REASONING, -1, text, len - (size_t)r->newline);
}

/* ---- calls ---- */

static void put_arguments(Reply *r, const char *text, size_t len)
{
    put(r, REPLY_ARGUMENTS, r->n_calls - 1, text, len);
}

static void begin_call(Reply *r, ScanEvent event, const char *name, size_t len)
{
    if (r->opt.single_call && r->n_calls) {
        r->ended = 1;
        return;
    }
    strbuf_clear(&r->blanks);
    r->visible = 1;
    r->spoke = 0;
    r->n_params = 0;
    r->is_json = event == SCAN_CALL_JSON;
    r->tool = reply_tools_find(r->opt.scan.tools, name, len);
    put(r, REPLY_CALL_START, r->n_calls++, name, len);
    if (!r->is_json) put_arguments(r, "{", 1);
}

static void begin_parameter(Reply *r, const char *name, size_t len)
{
    StrBuf *key = &r->scratch;
    if (!r->n_params) {
        json_decref(r->params);
        r->params = json_object();
    }
    strbuf_clear(key);
    strbuf_puts(key, ", \"");
    pyjson_escape(name, len, key); /* leaves no NUL, which no key may hold */
    const char *escaped = strbuf_str(key) + strlen(", \"");
    r->skips_value = json_object_get(r->params, escaped) != NULL;
    r->n_fallbacks[REPLY_DUPLICATE_PARAMETER] += r->skips_value;
    if (r->skips_value) return;
    json_object_set_new(r->params, escaped, json_null());

    size_t from = r->n_params++ ? 0 : strlen(", ");
    strbuf_puts(key, "\": ");
    put_arguments(r, key->data + from, key->len - from);
    const ReplyTools *tools = r->opt.scan.tools;
    int param = reply_tools_param(tools, r->tool, name, len);
    reply_value_begin(&r->value, reply_tools_types(tools, r->tool, param));
}

static void value(Reply *r, const char *text, size_t len, int is_end)
{
    if (r->skips_value) return;
    strbuf_clear(&r->scratch);
    if (is_end)
        reply_value_end(&r->value, &r->scratch);
    else
        reply_value_text(&r->value, text, len, &r->scratch);
    if (r->scratch.len) put_arguments(r, r->scratch.data, r->scratch.len);
}

static void end_call(Reply *r, int whole)
{
    if (whole && !r->is_json) put_arguments(r, "}", 1);
    put(r, whole ? REPLY_CALL_END : REPLY_CALL_CUT, r->n_calls - 1, "", 0);
}

/* ---- what the scan says ---- */

static void scan_event(void *self, ScanEvent event, const char *text, size_t len)
{
    Reply *r = self;
    int thought = event == SCAN_REASONING;
    if (event == SCAN_CONTENT) thought = reply_scan_in_think(r->scan);
    if (r->ended) return;
    if (thought && r->drafts) reply_drafts_text(r->drafts, text, len);
    if (event != SCAN_CONTENT && event != SCAN_REASONING_END) end_content(r);
    switch (event) {
    case SCAN_REASONING:
        reasoning(r, text, len);
        break;
    case SCAN_REASONING_END:
        r->newline = 0;
        break;
    case SCAN_CONTENT:
        content(r, text, len);
        break;
    case SCAN_CALL:
    case SCAN_CALL_JSON:
        begin_call(r, event, text, len);
        break;
    case SCAN_PARAMETER:
        begin_parameter(r, text, len);
        break;
    case SCAN_VALUE:
    case SCAN_VALUE_END:
        value(r, text, len, event == SCAN_VALUE_END);
        break;
    case SCAN_ARGUMENTS:
        put_arguments(r, text, len);
        break;
    case SCAN_CALL_END:
    case SCAN_CALL_CUT:
        end_call(r, event == SCAN_CALL_END);
        break;
    case SCAN_CALL_CLOSED:
        r->n_others++;
        r->ended = r->opt.single_call;
        break;
    }
}

/* ---- tokens ---- */

static void token_done(Reply *r, int was_in_think)
{
    if (r->opt.n_unwatched) r->opt.n_unwatched--;
    r->n_tokens++;
    if (was_in_think || reply_scan_in_think(r->scan)) r->n_reasoning = r->n_tokens;
}

void reply_tag(Reply *r, ScanTag tag)
{
    int in_think = reply_scan_in_think(r->scan);
    if (r->ended) return;
    reply_scan_tag(r->scan, tag);
    if (in_think && r->drafts) reply_drafts_tag(r->drafts, tag);
    token_done(r, in_think);
}

void reply_bytes(Reply *r, const char *bytes, size_t len)
{
    int in_think = reply_scan_in_think(r->scan);
    if (r->ended) return;
    reply_scan_bytes(r->scan, bytes, len);
    token_done(r, in_think);
}

void reply_token(Reply *r, int32_t token)
{
    int in_think = reply_scan_in_think(r->scan), tag = reply_scan_tag_of(r->scan, token);
    if (tag >= 0) {
        reply_tag(r, (ScanTag)tag);
    } else if (!r->ended) {
        reply_scan_token(r->scan, token);
        token_done(r, in_think);
    }
}

/* Nothing was said after the thoughts: the calls among them may have been meant. */
static void take_drafts(Reply *r)
{
    if (!r->drafts || r->answered || r->n_calls || !reply_drafts_count(r->drafts)) return;
    r->n_fallbacks[REPLY_CALL_IN_THINK]++;
    reply_drafts_replay(r->drafts, (ScanSink){r, scan_event});
}

void reply_end(Reply *r, int stopped)
{
    int met = r->cutter && stop_cutter_met(r->cutter) >= 0;
    if (!r->ended) reply_scan_end(r->scan, stopped);
    if (r->newline) put(r, REPLY_REASONING, -1, "\n", 1);
    r->newline = 0;
    if (!r->ended) end_content(r);
    if (stopped && !met) take_drafts(r);
    if (!r->n_calls || r->spoke) flush_blanks(r);
    strbuf_clear(&r->blanks);
    r->ended = 1;
}

int reply_ended(const Reply *r)
{
    return r->ended;
}

int reply_stop_string(const Reply *r)
{
    return r->cutter ? stop_cutter_met(r->cutter) : -1;
}

size_t reply_content_len(const Reply *r)
{
    return r->content_len;
}

int reply_n_others(const Reply *r)
{
    return r->n_others;
}

int reply_n_calls(const Reply *r)
{
    return r->n_calls;
}

int reply_n_reasoning_tokens(const Reply *r)
{
    return r->n_reasoning;
}

int reply_n_fallbacks(const Reply *r, ReplyFallback reason)
{
    if (reason == REPLY_NO_FUNCTION) return reply_scan_fallbacks(r->scan, FALLBACK_NO_FUNCTION);
    if (reason == REPLY_BAD_JSON) return reply_scan_fallbacks(r->scan, FALLBACK_BAD_JSON);
    return r->n_fallbacks[reason];
}
