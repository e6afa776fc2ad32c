/*
 * trace_file.h: traces of requests, written by tests as lists of runs.
 */
#ifndef OFFSHOOT_TESTS_TRACE_FILE_H
#define OFFSHOOT_TESTS_TRACE_FILE_H

#include "base/strbuf.h"
#include "bench/trace.h"

typedef struct {
    StrBuf text;
    int n; /* requests so far */
} TraceFile;

/*
 * Adds a request. Both texts are runs of token ids: "300x32 900x16" is 300, 301, .. (32 of them),
 * then 900 and so on; "a32 b16" is 32 of a's own, then 16 of b's.
 */
void trace_file_ask(TraceFile *f, int session, const char *prompt, const char *answer);

/* Writes it to trace.jsonl in scratch_dir(name) and frees it; returns the path (scratch_path's). */
const char *trace_file_write(TraceFile *f, const char *name);

/* The same, opened. */
Trace trace_file_read(TraceFile *f, const char *name);

#endif
