/*
 * prefix.c: `bench prefix`: a trace's requests against several ways to cache prefixes. See bench.h;
 * prefix_real.c is the other half.
 *
 * Nothing is computed: token ids, the tree of the engine and a model's formulas say what would be.
 * Requests run one after another, each whole before the next is looked at, in the order of their
 * times; the times matter for the cache's idea of age alone. Time to first token is that of the
 * arithmetic of the tokens that were not cached, at a given rate, without queueing.
 */
#include "bench/prefix.h"

#include "base/mem.h"
#include "bench/bench.h"

static const double DEFAULT_SHARES[] = {1.0 / 64, 1.0 / 32, 1.0 / 16, 1.0 / 8, 1.0 / 4};
enum { N_DEFAULT_SHARES = sizeof DEFAULT_SHARES / sizeof *DEFAULT_SHARES };

static int run_all(PrefixBench *b, const Settings *set, json_t *rows, Error *err)
{
    if (!set->json) prefix_print_head(b, stdout);
    for (int c = 0; c < b->n_capacities; c++) {
        for (int p = 0; p < b->n_policies; p++) {
            if (policy_run(&b->run, &b->policy[p], b->capacity[c], &b->result[c][p], err))
                return -1;
            json_array_append_new(rows, prefix_row_json(b, c, p));
            if (!set->json) prefix_print_row(b, c, p, stdout);
        }
    }
    if (set->json) prefix_print_json(b, rows, stdout);
    return set->svg ? prefix_plot(b, set->svg, err) : 0;
}

static int read_settings(PrefixBench *b, const Service *s, Error *err)
{
    const Settings *set = s->settings;
    const char *shape = set->shape ? set->shape : set->model ? set->model : "7b-hybrid";
    const char *policies = set->policies ? set->policies : "none,block32,block528,lru,flop";
    b->source = prefix_name(set->trace, "trace");
    if (trace_open(&b->trace, set->trace, set->load, s->tok, err) ||
        shape_open(&b->shape, shape, (KvType)set->kv_dtype, err))
        return -1;
    if (set->limit) trace_limit(&b->trace, set->limit);
    b->run = (PolicyRun){.trace = &b->trace,
                         .shape = &b->shape,
                         .rules = {.keep_answers = set->cache_answers, .keep_prompts = 1},
                         .flops_per_second = set->flops_per_second};
    if (!(b->shape.kv_bytes > 0 && b->shape.state_bytes > 0))
        return error_set(err, ERR_INPUT, "'%s' has not both attention and recurrent layers", shape);
    if (prefix_read_policies(b, policies, set->alphas ? set->alphas : "0.5,1,2,tune", err))
        return -1;
    if (set->capacities) return prefix_read_capacities(b, set->capacities, err);
    prefix_default_capacities(b, DEFAULT_SHARES, N_DEFAULT_SHARES);
    return 0;
}

int bench_prefix_run(const Service *s, Error *err)
{
    PrefixBench *b = mem_alloc(1, sizeof *b);
    json_t *rows = json_array();
    int bad = read_settings(b, s, err);
    if (!bad) bad = run_all(b, s->settings, rows, err);
    json_decref(rows);
    trace_close(&b->trace);
    mem_free(b);
    return bad;
}
