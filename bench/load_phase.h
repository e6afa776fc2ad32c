/*
 * load_phase.h: so many connections send so many requests; every answer is compared.
 *
 * What request k asks for is a function of the plan and k alone, whichever connection sends it.
 * Every request ends in exactly one of the counts answered, wrong, dropped, lost, refused; their
 * sum is the plan's n_requests.
 */
#ifndef OFFSHOOT_BENCH_LOAD_PHASE_H
#define OFFSHOOT_BENCH_LOAD_PHASE_H

#include <stdint.h>

#include "bench/load_cases.h"
#include "bench/load_client.h"

enum { TIME_BUCKETS = 1100 };

/* Times in buckets of 2 %, from a microsecond: takes no more memory however long a run is. */
typedef struct {
    long n, count[TIME_BUCKETS];
} Times;

/* As quantile, of these times, in ms. */
double times_quantile(const Times *t, double share);

/* What one request took. */
typedef struct {
    int answered; /* 0: it got no answer, and nothing below is known */
    int differs;  /* 1: another answer than before */
    int n_prompt, n_tokens;
    LoadWork work;
    double sent_ms;      /* after the phase began */
    double first_ms, ms; /* to the first event of its stream; to the end */
} LoadTurn;

/*
 * Which case request k asks for.
 *     lot:     any of them
 *     collect: case k / 2 as a whole reply, then as a stream; the first answer is kept
 *     in turn: case k as a stream; its answer is kept unless there is one
 */
typedef enum { CASES_BY_LOT, CASES_COLLECT, CASES_IN_TURN } LoadOrder;

typedef struct {
    int n_conns, n_requests;
    int first, n_cases; /* of the cases, these are asked for */
    LoadOrder order;
    int streamed_percent, dropped_percent; /* by lot: the rest wants whole replies */
    LoadTurn *turn;                        /* NULL, or [n_requests], zeroed: filled */
    uint64_t seed;
    /*
     * NULL, or [n_requests]: a request before this one that must have ended, or -1. Others that
     * need not wait go first.
     */
    const int *after;
    void (*prepare)(void *ctx, int k); /* NULL, or called when request k is about to be sent */
    void *ctx;
} LoadPlan;

typedef struct {
    long n_answered;         /* and as they were alone */
    long n_wrong;            /* and otherwise */
    long n_dropped;          /* the client vanished on purpose */
    long n_lost;             /* the connection ended, or nothing came */
    long n_refused;          /* another status than 200 */
    long n_retried;          /* 429s after which the request was sent again */
    long n_prompt, n_tokens; /* of answered */
    double seconds;
    Times first_token, between; /* to the first event of answered streams with tokens; between
                                   events */
} LoadResult;

/*
 * Runs a plan to its end on a loop of its own. cases gets the answers that are collected. The first
 * few complaints are logged.
 */
void load_phase_run(const LoadTarget *target, LoadCases *cases, const LoadPlan *plan,
                    LoadResult *result);

/* Requests that did not end well. */
long load_result_bad(const LoadResult *r);

#endif
