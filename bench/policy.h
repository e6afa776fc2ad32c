/*
 * policy.h: ways to cache prefixes, each run over a trace in a memory of some size.
 */
#ifndef OFFSHOOT_BENCH_POLICY_H
#define OFFSHOOT_BENCH_POLICY_H

#include "bench/shape.h"
#include "bench/trace.h"
#include "engine/tune.h"

typedef enum {
    CACHE_NONE,   /* everything is computed */
    CACHE_BLOCKS, /* as vLLM: a state at the end of every block, LRU */
    CACHE_LRU,    /* our tree and states; alpha 0 */
    CACHE_FLOP,   /* the same with a fixed alpha */
    CACHE_TUNED,  /* the same with the engine's tuning */
} PolicyKind;

typedef struct {
    PolicyKind kind;
    int block_tokens; /* BLOCKS */
    double alpha;     /* FLOP */
    char name[24];
} Policy;

/* What all policies of a run share. */
typedef struct {
    const Trace *trace;
    const Shape *shape;
    KeepRules rules;
    double flops_per_second; /* of the machine that computes prompts */
} PolicyRun;

typedef struct {
    double capacity; /* bytes */
    long requests, hit_requests;
    long too_large; /* that the memory could not hold even alone */
    double prompt_tokens, hit_tokens;
    double flops, flops_saved;
    double ttft_p5, ttft_p50, ttft_p95; /* seconds */
    TuneStats tune;                     /* alpha of FLOP and TUNED; the rest of TUNED */
    double seconds;                     /* that the run took */
} PolicyResult;

/* ERR_LIMIT when the memory is too small for a state, or too large for this machine. */
int policy_run(const PolicyRun *run, const Policy *policy, double capacity, PolicyResult *result,
               Error *err);

/* Adds a request of n_prompt tokens, hit of them cached, to the sums. */
void policy_count(PolicyResult *r, const FlopCost *cost, int n_prompt, int hit);

/* Sets the percentiles of n > 0 times to first token, in seconds, and sorts these. */
void policy_set_ttft(PolicyResult *r, double *ttft, int n);

/* Bytes of which policy_run makes use at all. */
double policy_least_bytes(const Shape *shape, const Policy *policy);

/* Bytes that everything of the trace would take: all its tokens once, a state a request. */
double policy_all_bytes(const PolicyRun *run);

#endif
