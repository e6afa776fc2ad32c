/*
 * fuzz_reply.c: libFuzzer target: any tools, options and tokens through the parser of replies.
 *
 * Input: a byte of options, a byte of stop strings, the tools as JSON up to a newline (none there:
 * a fixed set), then the output: bytes 1 to 4 are the tags, 0 ends a token, the rest is text. The
 * output is read twice, as these tokens and byte by byte, and must become the same; arguments of
 * whole calls must be one JSON object; all text must be UTF-8.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "text/json_scan.h"
#include "text/reply.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char TOOLS[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":[\"string\",\"null\"]},\"o\":{\"type\":[\"object\",\"array\"]},\"i\":{"
    "\"type\":"
    "\"integer\"},\"u\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\"}]}}}}}]";

enum {
    IN_THINK = 1,
    PARSE_THINK = 2,
    ONE_CALL = 4,
    INCLUDE_STOP = 8,
    STOPPED = 16,
    WITH_TOOLS = 32,
};

static void require(int holds)
{
    if (!holds) abort();
}

typedef struct {
    StrBuf all;       /* kinds and text of all pieces, neighbours joined */
    StrBuf arguments; /* of the open call */
    int kind, call;
} Taken;

static void take_piece(Taken *t, ReplyPiece p)
{
    int joins = p.kind == REPLY_REASONING || p.kind == REPLY_CONTENT || p.kind == REPLY_ARGUMENTS;
    require(utf8_check(p.text, p.len) == p.len);
    if (!joins || (int)p.kind != t->kind || p.call != t->call)
        strbuf_printf(&t->all, "\n%d %d:", (int)p.kind, p.call);
    strbuf_add(&t->all, p.text, p.len);
    t->kind = (int)p.kind;
    t->call = p.call;
    if (p.kind == REPLY_CALL_START) strbuf_clear(&t->arguments);
    if (p.kind == REPLY_ARGUMENTS) strbuf_add(&t->arguments, p.text, p.len);
    if (p.kind != REPLY_CALL_END) return;
    JsonScan scan;
    json_scan_init(&scan);
    for (size_t i = 0; i < t->arguments.len; i++)
        json_scan_push(&scan, t->arguments.data[i]);
    require(scan.state == JS_DONE);
}

static void take(Taken *t, Reply *r)
{
    for (int i = 0; i < reply_n_pieces(r); i++)
        take_piece(t, reply_piece(r, i));
    reply_clear(r);
}

static void run(Taken *t, const ReplyOptions *o, const char *text, size_t len, int each,
                int stopped)
{
    Reply *r = reply_open(o);
    for (size_t i = 0, n; i < len; i += n) {
        n = 1;
        if (text[i] >= 1 && text[i] <= 4) {
            reply_tag(r, (ScanTag)(text[i] - 1));
        } else if (text[i]) {
            while (!each && i + n < len && (unsigned char)text[i + n] > 4)
                n++;
            reply_bytes(r, text + i, n);
        }
        take(t, r);
    }
    reply_end(r, stopped);
    take(t, r);
    reply_close(r);
    strbuf_free(&t->arguments);
}

static void run_twice(const ReplyOptions *o, const char *text, size_t len, int stopped)
{
    Taken whole = {.kind = -1}, each = {.kind = -1};
    run(&whole, o, text, len, 0, stopped);
    run(&each, o, text, len, 1, stopped);
    require(whole.all.len == each.all.len);
    require(!memcmp(strbuf_str(&whole.all), strbuf_str(&each.all), each.all.len));
    strbuf_free(&whole.all);
    strbuf_free(&each.all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const stops[] = {"END", "\n\n", "<", "\xC3\xA9"};
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    const char *line = memchr(text, '\n', size - 2);
    size_t n_tools = line ? (size_t)(line - text) : 0, used = line ? n_tools + 1 : 0;
    json_t *json = json_loadb(text, n_tools, JSON_ALLOW_NUL, NULL);
    if (!json) json = json_loads(TOOLS, 0, NULL);
    ReplyTools *tools = reply_tools_open(json);
    json_decref(json);
    int flags = data[0];
    ReplyOptions o = {
        .scan = {.tools = flags & WITH_TOOLS ? tools : NULL,
                 .starts_in_think = flags & IN_THINK,
                 .parse_reasoning = (flags & PARSE_THINK) != 0},
        .single_call = (flags & ONE_CALL) != 0,
        .stop = stops + data[1] % 4,
        .n_stop = data[1] / 4 % (5 - data[1] % 4),
        .include_stop = (flags & INCLUDE_STOP) != 0,
    };
    run_twice(&o, text + used, size - 2 - used, (flags & STOPPED) != 0);
    reply_tools_close(tools);
    return 0;
}
