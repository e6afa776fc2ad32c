/*
 * metrics.h: what GET /metrics counts, and its text (Prometheus 0.0.4).
 *
 * All of it belongs to the server's thread: no locks. The engine's own figures come with its
 * status. Nothing that a request says becomes a label, so what is counted stays bounded. Counters
 * only rise; an answer's tokens count when they come, the rest of it when it is done.
 */
#ifndef OFFSHOOT_SERVER_METRICS_H
#define OFFSHOOT_SERVER_METRICS_H

#include "base/strbuf.h"
#include "engine/engine.h"
#include "server/returned.h"

typedef struct Metrics Metrics;
struct Answer; /* server/answer.h */

/* What must be known of an answer from one event to the next. Zeroed: it is not counted. */
typedef struct {
    Metrics *metrics;
    double since_ms; /* when its request had come, on the monotonic clock */
    double last_ms;  /* its last step with output; 0: none yet */
} Meter;

typedef struct {
    const char *model_name;
    const char *device; /* "cpu" */
    const char *quant;  /* "none", "q8" */
    double weights_s;   /* what opening the model took; 0: not known */
    int prefix_cache;   /* 1: there is one */
} MetricsInfo;

/* Keeps no pointer of *info. To be called when serving begins. */
Metrics *metrics_open(const MetricsInfo *info);
void metrics_close(Metrics *m);

/* A request was admitted that asks for n answers to each prompt. */
void metrics_request(Metrics *m, int n);

/* All of its answers are done; the longest has n_tokens. */
void metrics_request_done(Metrics *m, int n_tokens);

/* A grammar was compiled, in this time. */
void metrics_grammar(Metrics *m, double seconds);

/* One of its answers is open. since_ms: when the request had come. */
void metrics_start(Metrics *m, struct Answer *a, double since_ms);

/* Each event of the engine for it. */
void metrics_event(struct Answer *a, const Event *e);

/* It is ANSWER_DONE, whoever ended it. */
void metrics_done(const struct Answer *a);

/* What became of an earlier answer that a prompt holds. */
void metrics_returned(Metrics *m, ReturnedHow how);

/* An HTTP exchange has ended. route: a string that stays; status: 499 when the client went first.
 */
void metrics_http(Metrics *m, const char *route, int status);

/* Tokens that a verify step of a sequence gave on average, since metrics_open; 0: none was made. */
double metrics_acceptance_length(const Metrics *m);

/* What is asked for at the moment of a scrape. */
typedef struct {
    EngineStatus engine;
    int n_live; /* answers that are not done, in the engine or waiting for it */
    int n_connections;
    size_t n_unsent; /* bytes of streams that their readers have not taken */
} MetricsNow;

void metrics_print(const Metrics *m, const MetricsNow *now, StrBuf *out);

#endif
