/*
 * metrics_state.h: the counters behind metrics.h; for metrics.c, which counts, and metrics_print.c.
 */
#ifndef OFFSHOOT_SERVER_METRICS_STATE_H
#define OFFSHOOT_SERVER_METRICS_STATE_H

#include "server/metrics.h"
#include "text/reply.h"

enum { MAX_BOUNDS = 25 };

/* Histograms that the server's thread fills. */
typedef enum {
    H_PROMPT_TOKENS,
    H_GENERATION_TOKENS,
    H_MAX_TOKENS,
    H_N,
    H_LONGEST,
    H_FIRST_TOKEN,
    H_INTER_TOKEN,
    H_PER_TOKEN,
    H_WHOLE,
    H_QUEUE,
    H_PREFILL,
    H_DECODE,
    H_INFERENCE,
    H_GRAMMAR,
    H_ACCEPTANCE,
    H_DRAFT_NODES,
    H_DRAFT_DEPTH,
    N_HISTOGRAMS
} HistogramId;

/* Upper bounds, rising. */
typedef struct {
    int n;
    double bound[MAX_BOUNDS];
} Buckets;

typedef struct {
    const char *name, *help;
    const Buckets *buckets;
} HistogramFamily;

extern const HistogramFamily histogram_family[N_HISTOGRAMS];

typedef struct {
    long
        count[MAX_BOUNDS + 1]; /* values above bound i - 1 and up to bound i; the last: above all */
    double sum;
} Histogram;

typedef enum { REASON_STOP, REASON_LENGTH, REASON_ABORT, REASON_ERROR, N_REASONS } EndReason;

typedef struct {
    const char *route;
    int status;
    long n;
} HttpCount;

struct Metrics {
    char *labels;                /* model_name="...",engine="0" */
    char *build;                 /* the labels of build_info */
    double weights_s, startup_s; /* 0: not known */
    double process_started_s;    /* Unix time */
    int prefix_cache;
    long prompt_tokens, cached_tokens, generation_tokens;
    long ended[N_REASONS];
    long returned[N_RETURNED];
    long fallbacks[N_REPLY_FALLBACKS];
    long drafts, draft_nodes, accepted;
    long accepted_at[MAX_TREE_NODES]; /* steps whose accepted path reached depth i + 1 */
    Histogram histogram[N_HISTOGRAMS];
    HttpCount *http; /* [n_http], in order of their first exchange */
    int n_http;
};

#endif
