/* trace_file.c: see trace_file.h. */
#include "tests/trace_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/checkpoint.h"

static void put_runs(TraceFile *f, const char *runs)
{
    int more = 0;
    strbuf_puts(&f->text, "[");
    for (const char *at = runs; *at;) {
        char *end;
        int is_name = *at >= 'a' && *at <= 'z';
        long first = is_name ? 1000L * *at : strtol(at, &end, 10);
        long n = strtol(is_name ? at + 1 : end + 1, &end, 10);
        for (long i = 0; i < n; i++)
            strbuf_printf(&f->text, "%s%ld", more++ ? "," : "", first + i);
        at = end + strspn(end, " ");
    }
    strbuf_puts(&f->text, "]");
}

void trace_file_ask(TraceFile *f, int session, const char *prompt, const char *answer)
{
    strbuf_printf(&f->text,
                  "{\"session_id\": %d, \"turn_id\": 0, \"ts\": %d, \"input_tokens\": ", session,
                  f->n++);
    put_runs(f, prompt);
    strbuf_puts(&f->text, ", \"output_tokens\": ");
    put_runs(f, answer);
    strbuf_puts(&f->text, "}\n");
}

const char *trace_file_write(TraceFile *f, const char *name)
{
    const char *path = scratch_path(scratch_dir(name), "trace.jsonl");
    scratch_write(path, f->text.data, f->text.len);
    strbuf_free(&f->text);
    return path;
}

Trace trace_file_read(TraceFile *f, const char *name)
{
    Trace t;
    Error err = {0};
    if (trace_open(&t, trace_file_write(f, name), NULL, NULL, &err)) fail_msg("%s", err.msg);
    return t;
}
