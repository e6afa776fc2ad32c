/*
 * trace_parts.h: how a trace is put together; for those who make traces alone.
 */
#ifndef OFFSHOOT_BENCH_TRACE_PARTS_H
#define OFFSHOOT_BENCH_TRACE_PARTS_H

#include <jansson.h>

#include "bench/trace.h"

/* Parts of a conversation so far. Zero-initialised is empty. */
typedef struct {
    TracePart *part;
    int n, cap;
    int n_tokens;
} TraceHistory;

void trace_history_add(TraceHistory *h, TracePart part);
void trace_history_free(TraceHistory *h);

/* Stores tokens; the part that stands for them. */
TracePart trace_store(Trace *t, const int32_t *token, int n);

/* The part of n made tokens; equal seeds, equal tokens. */
TracePart trace_made(uint64_t seed, int n);

/* n_new: tokens that the session's request before does not have, of prompt and answer. */
typedef struct {
    double ts;
    long session;
    int n_stable, answer_changes; /* n_stable 0: the whole prompt */
    int n_new;
} TraceTurn;

/* Adds a request with the history as its prompt. */
void trace_add(Trace *t, const TraceTurn *turn, const TraceHistory *prompt, TracePart answer);

/* The times of a session's requests, from its knobs. */
typedef struct {
    const TraceLoad *load;
    uint64_t state; /* of the draws; of one session */
    double now;
} TraceClock;

/* Uniform in (0, 1), and exponential of mean 1. */
double trace_uniform(uint64_t *state);
double trace_exponential(uint64_t *state);

/* Time passes with an answer of n tokens and with thinking. */
void trace_clock_answered(TraceClock *c, int n_answer);

/* Seconds that this many session starts take. */
double trace_next_start(const TraceLoad *load, uint64_t *state);

/* Makes the load. */
int trace_make(Trace *t, const TraceLoad *load, Error *err);

/* Reads a file of any of the forms; load sets the times of conversations. */
int trace_read(Trace *t, const char *path, const TraceLoad *load, const Tokenizer *tok, Error *err);

/* Adds the requests of a conversation in text. */
typedef struct {
    const Tokenizer *tok; /* or NULL */
    const TraceLoad *load;
    uint64_t state;  /* of the draws */
    double start;    /* of the last session */
    long n_sessions; /* so far */
} TraceText;

int trace_add_messages(Trace *t, TraceText *text, const json_t *line, Error *err);
int trace_add_bfcl(Trace *t, TraceText *text, const json_t *line, Error *err);

#endif
