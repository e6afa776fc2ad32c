/*
 * trace.h: requests to replay, in the order of their times, as token ids.
 *
 * A conversation's prompts begin with one another, so a request is a list of parts: runs of tokens
 * that are stored once, or made from a seed where a trace says only which are equal. Memory grows
 * with what is new in a request, not with its length.
 *
 * Forms of a file, one JSON object a line, told apart by their keys:
 *     input_tokens, output_tokens, session_id, turn_id, ts    as Marconi's artifact: ids, seconds
 *     hash_ids, input_length, output_length, timestamp        as Mooncake: an id stands for 512
 *             tokens (the last one for the rest); milliseconds. What follows the last whole block
 *             is told to nobody, so the answer is taken as one that does not come back.
 *     messages                a conversation in text, every assistant message asked for
 *     question, involved_classes      BFCL: user turns; functions and answers are made tokens
 * "chat" and "agent" in place of a file are made loads; see TraceLoad.
 */
#ifndef OFFSHOOT_BENCH_TRACE_H
#define OFFSHOOT_BENCH_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "text/tokenizer.h"

enum { TRACE_MOST = 1 << 20 }; /* tokens of a request, prompt and answer */

typedef struct {
    uint64_t from; /* place in Trace.token, or the seed of made tokens */
    int n;
    int made;
} TracePart;

typedef struct {
    double ts;    /* seconds */
    double end;   /* when its answer was there, 0: not known */
    long session; /* requests of a session come one after another */
    int n_prompt, n_answer;
    int n_stable;       /* tokens of the prompt that later ones begin with; 1..n_prompt */
    int answer_changes; /* the next prompt does not hold the answer as it was generated */
    int n_new;          /* tokens that the session's request before does not have */
    size_t part;        /* of the prompt, then of the answer */
    int n_parts;
} TraceRequest;

typedef struct {
    TraceRequest *request;
    int n, cap;
    TracePart *part;
    size_t n_parts, cap_parts;
    int32_t *token;
    size_t n_tokens, cap_tokens;

    int longest; /* prompt and answer, tokens */
    int n_sessions;
    double prompt_tokens, answer_tokens; /* of all requests */
    double new_tokens;                   /* that are not in the same session's request before */
} Trace;

/*
 * The knobs of made loads, after the evaluation of Marconi. Sessions start by a Poisson process;
 * the next request of a session comes when its answer has been read and thought about. Lengths are
 * log-normal around these means, turns geometric, thinking exponential.
 */
typedef struct {
    double sessions, rate;         /* how many; starts per second */
    double think;                  /* seconds from an answer to the next prompt */
    double turns;                  /* requests of a session */
    double systems, system_tokens; /* different system prompts; 0: none. Their length */
    double question, answer;       /* tokens that a turn adds: by user or tool, by the model */
    double reasoning; /* tokens before an answer that the next prompt does not hold; 0: none */
    double spread;    /* of the lengths' logarithms */
    double most;      /* tokens of a request at most: a session ends there */
    double seed;
} TraceLoad;

/*
 * Reads a file ("-": standard input) or makes a load. knobs is "name=value,..." of TraceLoad's
 * names over the load's defaults, "-" for "_"; of a file of conversations rate, think and seed set
 * the times. tok makes tokens of text; NULL: a stand-in, a token for up to four bytes of a word.
 */
int trace_open(Trace *t, const char *source, const char *knobs, const Tokenizer *tok, Error *err);
void trace_close(Trace *t);

/* Keeps the first n requests by time; of the others nothing counts any more. */
void trace_limit(Trace *t, int n);

/* Leaves out requests of more than `most` tokens, one of them an answer's; returns how many. */
int trace_leave_out(Trace *t, int most);

/* Writes the tokens of request i, prompt and answer: up to t->longest. */
void trace_tokens(const Trace *t, int i, int32_t *token);

#endif
