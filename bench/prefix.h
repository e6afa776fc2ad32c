/*
 * prefix.h: what `bench prefix` ran and found, simulated or real, and what both have in common:
 * reading lists, tables, JSON, the plot.
 */
#ifndef OFFSHOOT_BENCH_PREFIX_H
#define OFFSHOOT_BENCH_PREFIX_H

#include <stdio.h>

#include <jansson.h>

#include "bench/policy.h"

enum { MAX_CAPACITIES = 24, MAX_POLICIES = 32 };

/* What a real run has beside a PolicyResult. */
typedef struct {
    int n_conns;
    int most, n_left_out; /* tokens of a request at most; requests that have more */
    double simulated_hits[MAX_CAPACITIES][MAX_POLICIES]; /* tokens, of the same requests */
    int n_differ[MAX_CAPACITIES][MAX_POLICIES];          /* answers, from those without a cache */
    int n_different;                                     /* of all rows */
} PrefixReal;

typedef struct {
    const char *source; /* of the trace */
    const char *alphas;
    Trace trace;
    Shape shape;
    PolicyRun run;
    Policy policy[MAX_POLICIES];
    int n_policies;
    double capacity[MAX_CAPACITIES]; /* bytes */
    int n_capacities;
    PolicyResult result[MAX_CAPACITIES][MAX_POLICIES];
    PrefixReal *real; /* NULL: simulated */
} PrefixBench;

/* ---- prefix_lists.c ---- */

/* Adds the policies of a list, with the alphas of another; blocks are refused with real. */
int prefix_read_policies(PrefixBench *b, const char *policies, const char *alphas, Error *err);
int prefix_read_capacities(PrefixBench *b, const char *capacities, Error *err);

/* Sets the capacities to these shares of all that the trace would take. */
void prefix_default_capacities(PrefixBench *b, const double *shares, int n);

/* ---- prefix_print.c ---- */

/* What is given if it is UTF-8, as names in JSON and SVG must be; those of files need not be. */
const char *prefix_name(const char *given, const char *instead);
void prefix_print_head(const PrefixBench *b, FILE *out);
void prefix_print_row(const PrefixBench *b, int capacity, int policy, FILE *out);
json_t *prefix_row_json(const PrefixBench *b, int capacity, int policy);
void prefix_print_json(const PrefixBench *b, json_t *rows, FILE *out);

/* ---- prefix_plot.c ---- */

/* Writes token hit rates over capacities as an SVG, a line a policy. */
int prefix_plot(const PrefixBench *b, const char *path, Error *err);

#endif
