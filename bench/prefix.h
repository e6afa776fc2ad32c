/*
 * prefix.h: what `bench prefix` ran and found; for prefix.c and its plot.
 */
#ifndef OFFSHOOT_BENCH_PREFIX_H
#define OFFSHOOT_BENCH_PREFIX_H

#include "bench/policy.h"

enum { MAX_CAPACITIES = 24, MAX_POLICIES = 32 };

typedef struct {
    const char *source; /* of the trace */
    const char *alphas, *svg;
    int json;
    Trace trace;
    Shape shape;
    PolicyRun run;
    Policy policy[MAX_POLICIES];
    int n_policies;
    double capacity[MAX_CAPACITIES]; /* bytes */
    int n_capacities;
    PolicyResult result[MAX_CAPACITIES][MAX_POLICIES];
} PrefixBench;

/* Writes token hit rates over capacities as an SVG, a line a policy. */
int prefix_plot(const PrefixBench *b, const char *path, Error *err);

#endif
