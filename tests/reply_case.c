/* reply_case.c: see reply_case.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "tests/reply_case.h"
#include "text/json_scan.h"
#include "text/utf8.h"

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"metric\":{\"type\":\"boolean\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"write_file\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"path\":{\"type\":\"string\"},\"content\":{\"type\":\"string\"},"
    "\"mode\":{\"type\":[\"string\",\"null\"]},\"tags\":{\"type\":\"array\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

ReplyTools *case_tools(void)
{
    json_t *json = json_loads(TOOLS, 0, NULL);
    assert_non_null(json);
    ReplyTools *tools = reply_tools_open(json);
    json_decref(json);
    return tools;
}

ReplyOptions case_options(const ReplyCase *c, const ReplyTools *tools)
{
    return (ReplyOptions){
        .scan = {.tools = c->flags & NO_TOOLS ? NULL : tools,
                 .starts_in_think = (c->flags & IN_THINK) != 0,
                 .parse_reasoning = !(c->flags & KEEP_THINK)},
        .single_call = (c->flags & ONE_CALL) != 0,
    };
}

typedef struct {
    StrBuf *out;
    StrBuf arguments; /* of the open call */
    int kind, call;   /* of the last piece; -1: none */
    int n_calls;
} Writer;

static void check_object(const StrBuf *text)
{
    JsonScan scan;
    json_scan_init(&scan);
    for (size_t i = 0; i < text->len; i++)
        json_scan_push(&scan, text->data[i]);
    if (scan.state != JS_DONE) fail_msg("no object: %s", strbuf_str(text));
}

static void write_piece(Writer *w, ReplyPiece p)
{
    static const char *const open[] = {"R(", "C(", "F(", "A("};
    int text = p.kind <= REPLY_ARGUMENTS;
    int joins = w->kind == (int)p.kind && w->call == p.call && p.kind != REPLY_CALL_START;
    assert_int_equal(utf8_check(p.text, p.len), p.len);
    assert_int_equal(p.call,
                     p.kind <= REPLY_CONTENT ? -1 : w->n_calls - (p.kind != REPLY_CALL_START));
    w->n_calls += p.kind == REPLY_CALL_START;
    if (w->kind >= 0 && w->kind <= REPLY_ARGUMENTS && !joins) strbuf_puts(w->out, ")");
    if (text && !joins) strbuf_puts(w->out, open[p.kind]);
    if (text) strbuf_add(w->out, p.text, p.len);
    if (p.kind == REPLY_ARGUMENTS) strbuf_add(&w->arguments, p.text, p.len);
    if (p.kind == REPLY_CALL_END) check_object(&w->arguments);
    if (p.kind == REPLY_CALL_END) strbuf_puts(w->out, ".");
    if (p.kind == REPLY_CALL_CUT) strbuf_puts(w->out, "~");
    if (!text) strbuf_clear(&w->arguments);
    w->kind = (int)p.kind;
    w->call = p.call;
}

static void take_pieces(Reply *r, Writer *w)
{
    for (int i = 0; i < reply_n_pieces(r); i++)
        write_piece(w, reply_piece(r, i));
    reply_clear(r);
}

Reply *run_output(const ReplyOptions *o, const char *output, size_t len, const uint8_t *cut,
                  int stopped, StrBuf *got)
{
    Reply *r = reply_open(o);
    Writer w = {got, {0}, -1, -1, 0};
    for (size_t i = 0, n; i < len; i += n) {
        n = 1;
        if (output[i] >= 1 && output[i] <= 4) {
            reply_tag(r, (ScanTag)(output[i] - 1));
        } else {
            while (i + n < len && !(output[i + n] >= 1 && output[i + n] <= 4) && !cut[i + n])
                n++;
            reply_bytes(r, output + i, n);
        }
        take_pieces(r, &w);
    }
    reply_end(r, stopped);
    take_pieces(r, &w);
    if (w.kind >= 0 && w.kind <= REPLY_ARGUMENTS) strbuf_puts(got, ")");
    assert_int_equal(w.n_calls, reply_n_calls(r));
    strbuf_free(&w.arguments);
    return r;
}
