/*
 * trace_live.h: a trace's requests as a running model is asked them.
 *
 * Token ids become ids of plain text that the model has: its own stay, larger ones are counted
 * round, so that equal ones stay equal and few others become so. And answers are the model's own:
 * where a prompt begins with the prompt and the answer of an earlier request of its session, the
 * model's answer stands in the answer's place, as a client would send it back.
 */
#ifndef OFFSHOOT_BENCH_TRACE_LIVE_H
#define OFFSHOOT_BENCH_TRACE_LIVE_H

#include "bench/trace.h"

typedef struct {
    int previous;   /* the session's request before, or -1: its answer is heard before this one */
    int goes_on;    /* the request whose prompt and answer this prompt begins with, or -1 */
    int32_t *token; /* [n_prompt + n_answer] */
    int n_prompt, n_answer;
} LiveRequest;

typedef struct {
    LiveRequest *request; /* as in the trace */
    int n;
} LiveTrace;

/* ERR_INPUT: tok has no plain text. The trace may be closed afterwards. */
int live_open(LiveTrace *l, const Trace *t, const Tokenizer *tok, Error *err);
void live_close(LiveTrace *l);

/* A server gives one token at least, of which a trace without an answer has nothing. */
int live_max_tokens(const LiveRequest *r);

/* Request i was answered so: live_max_tokens tokens, or it is an error. */
int live_answered(LiveTrace *l, int i, const int32_t *id, int n, Error *err);

/* Writes into request i's prompt what was answered to the one that it goes on from. */
void live_follow(LiveTrace *l, int i);

/*
 * The requests as they are now as a trace of their own, with the times and sessions of t. A server
 * of completions is not told which prompts and answers will change, so this says of none.
 */
void live_to_trace(const LiveTrace *l, const Trace *t, Trace *out);

#endif
