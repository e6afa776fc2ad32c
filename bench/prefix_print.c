/* prefix_print.c: the report of `bench prefix`, simulated or real, as a table and as JSON. */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "bench/prefix.h"
#include "text/utf8.h"

const char *prefix_name(const char *given, const char *instead)
{
    size_t n = strlen(given);
    return utf8_check(given, n) == n ? given : instead;
}

static double share(double part, double all)
{
    return all > 0 ? part / all : 0;
}

static void print_trace(const PrefixBench *b, FILE *out)
{
    const Trace *t = &b->trace;
    fprintf(out, "%s: %d requests", b->source, t->n);
    if (t->n_sessions) fprintf(out, " of %d sessions", t->n_sessions);
    fprintf(out, ", %.4g M prompt tokens, %.4g M answer tokens, %.4g M of them new\n",
            t->prompt_tokens / 1e6, t->answer_tokens / 1e6, t->new_tokens / 1e6);
    fprintf(out, "%s: %.4g GFLOP a token, %.4g MB a state, %.4g kB of K and V a token\n",
            b->shape.name, b->shape.cost.per_token / 1e9, b->shape.state_bytes / 1e6,
            b->shape.kv_bytes / 1e3);
}

void prefix_print_head(const PrefixBench *b, FILE *out)
{
    print_trace(b, out);
    if (b->real) {
        fprintf(out, "asked over HTTP, %d at a time, answers as long as the trace's",
                b->real->n_conns);
        if (b->real->n_left_out)
            fprintf(out, "; left out: %d of more than %d tokens", b->real->n_left_out,
                    b->real->most);
        fprintf(out, "\n\n"
                     "                         hits, %%                  FLOPs    time to first "
                     "token, ms           answers\n"
                     "      MB  policy      tokens  simulated  requests  saved      p5      p50   "
                     "   p95  seconds  differ  alpha\n");
        return;
    }
    fprintf(out, "simulated; time to first token at %.4g FLOP/s, no queueing\n\n",
            b->run.flops_per_second);
    fprintf(out,
            "                       hits, %%       FLOPs    time to first token, ms\n"
            "      GB  policy      tokens  requests  saved      p5      p50      p95  alpha\n");
}

void prefix_print_row(const PrefixBench *b, int capacity, int policy, FILE *out)
{
    const Policy *p = &b->policy[policy];
    const PolicyResult *r = &b->result[capacity][policy];
    const PrefixReal *real = b->real;
    fprintf(out, "%8.4g  %-10s  %6.1f  ", r->capacity / (real ? 1e6 : 1e9), p->name,
            100 * share(r->hit_tokens, r->prompt_tokens));
    if (real)
        fprintf(out, "%9.1f  ",
                100 * share(real->simulated_hits[capacity][policy], r->prompt_tokens));
    fprintf(out, "%8.1f  %5.1f  %6.4g %8.4g %8.4g",
            100 * share((double)r->hit_requests, (double)r->requests),
            100 * share(r->flops_saved, r->flops), r->ttft_p5 * 1e3, r->ttft_p50 * 1e3,
            r->ttft_p95 * 1e3);
    if (real) fprintf(out, "  %7.2f  %6d", r->seconds, real->n_differ[capacity][policy]);
    if (p->kind == CACHE_FLOP || p->kind == CACHE_TUNED) fprintf(out, "  %5.1f", r->tune.alpha);
    if (r->too_large) fprintf(out, "  %ld too large", r->too_large);
    fprintf(out, "\n");
    fflush(out);
}

json_t *prefix_row_json(const PrefixBench *b, int capacity, int policy)
{
    const Policy *p = &b->policy[policy];
    const PolicyResult *r = &b->result[capacity][policy];
    json_t *row =
        json_pack("{s:s, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}, s:f}", "policy",
                  p->name, "capacity_bytes", r->capacity, "hit_tokens", (json_int_t)r->hit_tokens,
                  "token_hit_rate", share(r->hit_tokens, r->prompt_tokens), "request_hit_rate",
                  share((double)r->hit_requests, (double)r->requests), "flops", r->flops,
                  "flops_saved", r->flops_saved, "flops_saved_rate",
                  share(r->flops_saved, r->flops), "ttft_ms", "p5", r->ttft_p5 * 1e3, "p50",
                  r->ttft_p50 * 1e3, "p95", r->ttft_p95 * 1e3, "seconds", r->seconds);
    if (p->kind == CACHE_FLOP || p->kind == CACHE_TUNED)
        json_object_set_new(row, "alpha", json_real(r->tune.alpha));
    if (b->real) {
        double hits = b->real->simulated_hits[capacity][policy];
        json_object_set_new(row, "simulated_hit_tokens", json_integer((json_int_t)hits));
        json_object_set_new(row, "simulated_token_hit_rate",
                            json_real(share(hits, r->prompt_tokens)));
        json_object_set_new(row, "different", json_integer(b->real->n_differ[capacity][policy]));
    } else if (p->kind == CACHE_TUNED) {
        json_object_set_new(row, "windows", json_integer(r->tune.windows));
        json_object_set_new(row, "searches", json_integer(r->tune.searches));
        json_object_set_new(row, "fallbacks", json_integer(r->tune.fallbacks));
    }
    if (r->too_large) json_object_set_new(row, "too_large", json_integer(r->too_large));
    return row;
}

void prefix_print_json(const PrefixBench *b, json_t *rows, FILE *out)
{
    const Trace *t = &b->trace;
    json_t *report =
        json_pack("{s:s, s:s, s:b, s:i, s:i, s:f, s:f, s:f, s:{s:f, s:f, s:f, s:f}, s:O}", "trace",
                  b->source, "shape", b->shape.name, "simulated", !b->real, "requests", t->n,
                  "sessions", t->n_sessions, "prompt_tokens", t->prompt_tokens, "answer_tokens",
                  t->answer_tokens, "new_tokens", t->new_tokens, "shape_costs", "flops_per_token",
                  b->shape.cost.per_token, "flops_per_pair", b->shape.cost.per_pair, "state_bytes",
                  b->shape.state_bytes, "kv_bytes_per_token", b->shape.kv_bytes, "rows", rows);
    if (b->real) {
        json_object_set_new(report, "connections", json_integer(b->real->n_conns));
        json_object_set_new(report, "left_out", json_integer(b->real->n_left_out));
        json_object_set_new(report, "different", json_integer(b->real->n_different));
    } else {
        json_object_set_new(report, "flops_per_second", json_real(b->run.flops_per_second));
    }
    json_dumpf(report, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fprintf(out, "\n");
    json_decref(report);
}
