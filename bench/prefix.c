/*
 * prefix.c: `bench prefix`: a trace's requests against several ways to cache prefixes. See bench.h.
 *
 * Nothing is computed: token ids, the tree of the engine and a model's formulas say what would be.
 * Requests run one after another, each whole before the next is looked at, in the order of their
 * times; the times matter for the cache's idea of age alone. Time to first token is that of the
 * arithmetic of the tokens that were not cached, at a given rate, without queueing.
 */
#include "bench/prefix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "base/options.h"
#include "bench/bench.h"

static const double DEFAULT_SHARES[] = {1.0 / 64, 1.0 / 32, 1.0 / 16, 1.0 / 8, 1.0 / 4};
static const double MAX_CAPACITY = 1e15, MAX_FIXED_ALPHA = 100;

/* ---- lists ---- */

/* Calls each() with every part of a list with commas, in a buffer that it may keep nothing of. */
static int each_item(const char *option, const char *list,
                     int (*each)(PrefixBench *b, const char *item, Error *err), PrefixBench *b,
                     Error *err)
{
    for (const char *at = list;; at++) {
        char item[32];
        size_t n = strcspn(at, ",");
        if (!n || n >= sizeof item)
            return error_set(err, ERR_INPUT, "%s is '%.60s', which is no list", option, list);
        memcpy(item, at, n);
        item[n] = 0;
        if (each(b, item, err)) return -1;
        at += n;
        if (!*at) return 0;
    }
}

static int add_capacity(PrefixBench *b, const char *item, Error *err)
{
    int64_t bytes;
    if (options_read_bytes(item, &bytes) || bytes < 1 || (double)bytes > MAX_CAPACITY)
        return error_set(err, ERR_INPUT, "--capacity has '%s', expected sizes such as 512M,4G",
                         item);
    if (b->n_capacities == MAX_CAPACITIES)
        return error_set(err, ERR_LIMIT, "--capacity has more than %d sizes", MAX_CAPACITIES);
    b->capacity[b->n_capacities++] = (double)bytes;
    return 0;
}

static int add_policy(PrefixBench *b, Policy policy, Error *err)
{
    if (b->n_policies == MAX_POLICIES)
        return error_set(err, ERR_LIMIT, "more than %d policies", MAX_POLICIES);
    b->policy[b->n_policies++] = policy;
    return 0;
}

static int add_alpha(PrefixBench *b, const char *item, Error *err)
{
    char *end;
    if (!strcmp(item, "tune"))
        return add_policy(b, (Policy){.kind = CACHE_TUNED, .name = "flop tuned"}, err);
    Policy p = {.kind = CACHE_FLOP, .alpha = strtod(item, &end)};
    if (*end || !(p.alpha >= 0 && p.alpha <= MAX_FIXED_ALPHA))
        return error_set(err, ERR_INPUT, "--alpha has '%s', expected tune or 0 to %g", item,
                         MAX_FIXED_ALPHA);
    snprintf(p.name, sizeof p.name, "flop %.4g", p.alpha);
    return add_policy(b, p, err);
}

static int add_blocks(PrefixBench *b, const char *item, Error *err)
{
    enum { MAX_BLOCK = 1 << 20 };
    char *end;
    long n = strtol(item + strlen("block"), &end, 10);
    if (*end || n < 1 || n > MAX_BLOCK)
        return error_set(err, ERR_INPUT, "--policy has '%s', expected block1 to block%d", item,
                         MAX_BLOCK);
    Policy p = {.kind = CACHE_BLOCKS, .block_tokens = (int)n};
    snprintf(p.name, sizeof p.name, "block %ld", n);
    return add_policy(b, p, err);
}

static int add_policies(PrefixBench *b, const char *item, Error *err)
{
    if (!strcmp(item, "none"))
        return add_policy(b, (Policy){.kind = CACHE_NONE, .name = "none"}, err);
    if (!strcmp(item, "lru")) return add_policy(b, (Policy){.kind = CACHE_LRU, .name = "lru"}, err);
    if (!strcmp(item, "flop")) return each_item("--alpha", b->alphas, add_alpha, b, err);
    if (!strncmp(item, "block", strlen("block"))) return add_blocks(b, item, err);
    return error_set(err, ERR_INPUT, "--policy has '%s', expected none, block32, lru or flop",
                     item);
}

/* ---- the report ---- */

static double share(double part, double all)
{
    return all > 0 ? part / all : 0;
}

static void print_head(const PrefixBench *b, FILE *out)
{
    const Trace *t = &b->trace;
    fprintf(out, "%s: %d requests", b->source, t->n);
    if (t->n_sessions) fprintf(out, " of %d sessions", t->n_sessions);
    fprintf(out, ", %.4g M prompt tokens, %.4g M answer tokens, %.4g M of them new\n",
            t->prompt_tokens / 1e6, t->answer_tokens / 1e6, t->new_tokens / 1e6);
    fprintf(out, "%s: %.4g GFLOP a token, %.4g MB a state, %.4g kB of K and V a token\n",
            b->shape.name, b->shape.cost.per_token / 1e9, b->shape.state_bytes / 1e6,
            b->shape.kv_bytes / 1e3);
    fprintf(out, "simulated; time to first token at %.4g FLOP/s, no queueing\n\n",
            b->run.flops_per_second);
    fprintf(out,
            "                       hits, %%       FLOPs    time to first token, ms\n"
            "      GB  policy      tokens  requests  saved      p5      p50      p95  alpha\n");
}

static void print_row(const Policy *p, const PolicyResult *r, FILE *out)
{
    fprintf(out, "%8.4g  %-10s  %6.1f  %8.1f  %5.1f  %6.4g %8.4g %8.4g", r->capacity / 1e9, p->name,
            100 * share(r->hit_tokens, r->prompt_tokens),
            100 * share((double)r->hit_requests, (double)r->requests),
            100 * share(r->flops_saved, r->flops), r->ttft_p5 * 1e3, r->ttft_p50 * 1e3,
            r->ttft_p95 * 1e3);
    if (p->kind == CACHE_FLOP || p->kind == CACHE_TUNED) fprintf(out, "  %.1f", r->tune.alpha);
    if (r->too_large) fprintf(out, "  %ld too large", r->too_large);
    fprintf(out, "\n");
}

static json_t *row_json(const Policy *p, const PolicyResult *r)
{
    json_t *row = json_pack(
        "{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}, s:f}", "policy", p->name,
        "capacity_bytes", r->capacity, "token_hit_rate", share(r->hit_tokens, r->prompt_tokens),
        "request_hit_rate", share((double)r->hit_requests, (double)r->requests), "flops", r->flops,
        "flops_saved", r->flops_saved, "flops_saved_rate", share(r->flops_saved, r->flops),
        "ttft_ms", "p5", r->ttft_p5 * 1e3, "p50", r->ttft_p50 * 1e3, "p95", r->ttft_p95 * 1e3,
        "seconds", r->seconds);
    if (p->kind == CACHE_FLOP || p->kind == CACHE_TUNED)
        json_object_set_new(row, "alpha", json_real(r->tune.alpha));
    if (p->kind == CACHE_TUNED) {
        json_object_set_new(row, "windows", json_integer(r->tune.windows));
        json_object_set_new(row, "searches", json_integer(r->tune.searches));
        json_object_set_new(row, "fallbacks", json_integer(r->tune.fallbacks));
    }
    if (r->too_large) json_object_set_new(row, "too_large", json_integer(r->too_large));
    return row;
}

static void print_json(const PrefixBench *b, json_t *rows, FILE *out)
{
    const Trace *t = &b->trace;
    json_t *report =
        json_pack("{s:s, s:s, s:b, s:i, s:i, s:f, s:f, s:f, s:{s:f, s:f, s:f, s:f}, s:f, s:O}",
                  "trace", b->source, "shape", b->shape.name, "simulated", 1, "requests", t->n,
                  "sessions", t->n_sessions, "prompt_tokens", t->prompt_tokens, "answer_tokens",
                  t->answer_tokens, "new_tokens", t->new_tokens, "shape_costs", "flops_per_token",
                  b->shape.cost.per_token, "flops_per_pair", b->shape.cost.per_pair, "state_bytes",
                  b->shape.state_bytes, "kv_bytes_per_token", b->shape.kv_bytes, "flops_per_second",
                  b->run.flops_per_second, "rows", rows);
    json_dumpf(report, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fprintf(out, "\n");
    json_decref(report);
}

/* ---- the run ---- */

/* Of all that the trace would take, in whole megabytes; the longest request fits all of them. */
static void default_capacities(PrefixBench *b)
{
    enum { STATES = 4 };
    double all = policy_all_bytes(&b->run);
    double least = b->trace.longest * b->shape.kv_bytes + STATES * b->shape.state_bytes;
    for (size_t i = 0; i < sizeof DEFAULT_SHARES / sizeof *DEFAULT_SHARES; i++) {
        double bytes = all * DEFAULT_SHARES[i];
        bytes = ceil((bytes > least ? bytes : least) / 1e6) * 1e6;
        if (b->n_capacities && b->capacity[b->n_capacities - 1] == bytes) continue;
        b->capacity[b->n_capacities++] = bytes;
    }
}

static int run_all(PrefixBench *b, json_t *rows, Error *err)
{
    int json = b->json;
    if (!json) print_head(b, stdout);
    for (int c = 0; c < b->n_capacities; c++) {
        for (int p = 0; p < b->n_policies; p++) {
            PolicyResult *r = &b->result[c][p];
            if (policy_run(&b->run, &b->policy[p], b->capacity[c], r, err)) return -1;
            json_array_append_new(rows, row_json(&b->policy[p], r));
            if (json) continue;
            print_row(&b->policy[p], r, stdout);
            fflush(stdout);
        }
    }
    if (json) print_json(b, rows, stdout);
    return b->svg ? prefix_plot(b, b->svg, err) : 0;
}

static int read_settings(PrefixBench *b, const Service *s, Error *err)
{
    const Settings *set = s->settings;
    const char *shape = set->shape ? set->shape : set->model ? set->model : "7b-hybrid";
    b->source = set->trace;
    b->json = set->json;
    b->svg = set->svg;
    b->alphas = set->alphas;
    if (trace_open(&b->trace, set->trace, set->load, s->tok, err) ||
        shape_open(&b->shape, shape, (KvType)set->kv_dtype, err))
        return -1;
    b->run = (PolicyRun){.trace = &b->trace,
                         .shape = &b->shape,
                         .rules = {.keep_answers = set->cache_answers, .keep_prompts = 1},
                         .flops_per_second = set->flops_per_second};
    if (!(b->shape.kv_bytes > 0 && b->shape.state_bytes > 0))
        return error_set(err, ERR_INPUT, "'%s' has not both attention and recurrent layers", shape);
    if (each_item("--policy", set->policies, add_policies, b, err)) return -1;
    if (set->capacities) return each_item("--capacity", set->capacities, add_capacity, b, err);
    default_capacities(b);
    return 0;
}

int bench_prefix_run(const Service *s, Error *err)
{
    PrefixBench *b = mem_alloc(1, sizeof *b);
    json_t *rows = json_array();
    int bad = read_settings(b, s, err);
    if (!bad) bad = run_all(b, rows, err);
    json_decref(rows);
    trace_close(&b->trace);
    mem_free(b);
    return bad;
}
