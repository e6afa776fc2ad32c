/* reply_drafts.c: see reply_drafts.h. */
#include "text/reply_drafts.h"

#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"

typedef struct {
    size_t from, to; /* of the text between the tags */
} Block;

struct ReplyDrafts {
    const ReplyTools *tools;
    StrBuf text;
    int too_long;
    size_t open[MAX_DRAFT_NESTING]; /* where the text after a <tool_call> begins */
    int n_open;
    Block run[MAX_DRAFT_CALLS];
    int n_run;
};

/* What a block turns out to be. */
typedef struct {
    const ReplyTools *tools;
    int n_calls, n_whole, n_undeclared, n_stray;
} Check;

static const size_t LEN_OPEN = sizeof "<tool_call>" - 1, LEN_CLOSE = sizeof "</tool_call>" - 1;

ReplyDrafts *reply_drafts_open(const ReplyTools *tools)
{
    ReplyDrafts *d = mem_alloc(1, sizeof *d);
    d->tools = tools;
    return d;
}

void reply_drafts_close(ReplyDrafts *d)
{
    if (!d) return;
    strbuf_free(&d->text);
    mem_free(d);
}

void reply_drafts_text(ReplyDrafts *d, const char *text, size_t len)
{
    if (d->text.len + len > MAX_DRAFT_BYTES) d->too_long = 1;
    if (d->too_long)
        d->n_open = d->n_run = 0;
    else
        strbuf_add(&d->text, text, len);
}

static int is_all_blank(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && strchr(" \t\r\n", text[n]) && text[n])
        n++;
    return n == len;
}

static void check_event(void *self, ScanEvent event, const char *text, size_t len)
{
    Check *c = self;
    if (event == SCAN_CALL || event == SCAN_CALL_JSON) {
        c->n_calls++;
        c->n_undeclared += reply_tools_find(c->tools, text, len) < 0;
    }
    if (event == SCAN_CALL_END) c->n_whole++;
    if (event == SCAN_CONTENT && !is_all_blank(text, len)) c->n_stray++;
}

static void scan_block(ReplyScan *s, const ReplyDrafts *d, Block b)
{
    reply_scan_tag(s, TAG_CALL_OPEN);
    reply_scan_bytes(s, d->text.data + b.from, b.to - b.from);
    reply_scan_tag(s, TAG_CALL_CLOSE);
}

/* Exactly one call, to a declared function, with nothing missing and nothing beside it. */
static int is_well_formed(const ReplyDrafts *d, Block b)
{
    Check check = {.tools = d->tools};
    ScanOptions options = {.tools = d->tools};
    ReplyScan *s = reply_scan_open(&options, (ScanSink){&check, check_event});
    scan_block(s, d, b);
    int closed = !reply_scan_held(s);
    reply_scan_end(s, 0);
    int good = closed && check.n_calls == 1 && check.n_whole == 1 && !check.n_undeclared &&
               !check.n_stray && !reply_scan_repairs(s);
    reply_scan_close(s);
    return good;
}

/* A call next to the run's last one joins it; any other begins a new run. */
static void remember(ReplyDrafts *d, Block b)
{
    int joins = 0;
    if (d->n_run && d->n_run < MAX_DRAFT_CALLS) {
        size_t end = d->run[d->n_run - 1].to + LEN_CLOSE;
        joins =
            b.from >= end + LEN_OPEN && is_all_blank(d->text.data + end, b.from - LEN_OPEN - end);
    }
    if (!joins) d->n_run = 0;
    d->run[d->n_run++] = b;
}

/*
 * A closer belongs to the last opener. So a call that was begun and given up does not swallow the
 * next one, and one whose value shows calls is met again, whole, at its own closer.
 */
void reply_drafts_tag(ReplyDrafts *d, ScanTag tag)
{
    if (d->too_long) return;
    if (tag == TAG_CALL_OPEN) {
        if (d->n_open == MAX_DRAFT_NESTING)
            memmove(d->open, d->open + 1, (size_t)--d->n_open * sizeof *d->open);
        d->open[d->n_open++] = d->text.len;
    }
    if (tag != TAG_CALL_CLOSE || !d->n_open) return;
    Block b = {d->open[--d->n_open], d->text.len - LEN_CLOSE};
    if (is_well_formed(d, b)) remember(d, b);
}

int reply_drafts_count(const ReplyDrafts *d)
{
    return d->n_run;
}

void reply_drafts_replay(ReplyDrafts *d, ScanSink sink)
{
    ScanOptions options = {.tools = d->tools};
    ReplyScan *s = reply_scan_open(&options, sink);
    for (int i = 0; i < d->n_run; i++)
        scan_block(s, d, d->run[i]);
    reply_scan_end(s, 1);
    reply_scan_close(s);
}
