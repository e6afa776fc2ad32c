/*
 * latency.c: one request at a time, plain and with drafts, in turns. See bench.h.
 *
 * The prompt is random tokens, so that any model will do, one with dummy weights too. What a step
 * costs at least is the bytes that it must read, over the memory's rate, which is measured in the
 * same run: weights of the pass (of experts those that so many rows choose on average), the states
 * read and written, K and V of the context; for drafts the head's layer and its LM head, level by
 * level. Activations and what the head reads of the context are left out.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/bandwidth.h"
#include "bench/bench.h"
#include "bench/contexts.h"
#include "bench/json_report.h"
#include "bench/quantiles.h"
#include "engine/memory.h"

enum { DEFAULT_TRIES = 5, DEFAULT_ANSWER = 128, DEFAULT_CONTEXT = 512 };

/* Plain decoding and decoding with drafts. */
enum { PLAIN, DRAFTED, N_WAYS };

typedef struct {
    double prompt[MAX_TRIES], decode[MAX_TRIES]; /* tokens per second */
    double step[MAX_TRIES];                      /* milliseconds */
    long n_steps, n_drafted, n_accepted;         /* of all tries */
} Way;

typedef struct {
    const Service *s;
    const Model *model;
    EngineStatus status;
    double rate; /* bytes per second; 0: not known */
    Contexts contexts;
    int n_tries, max_tokens;
    int32_t *prompt;
    Way way[N_WAYS];
} Bench;

static int ask(Bench *b, int context, int way, RequestStats *stats, Error *err)
{
    Engine *e = b->s->engine;
    EngineRequest r = {.id = 1,
                       .prompt = b->prompt,
                       .n_prompt = context,
                       .max_tokens = b->max_tokens,
                       .params = service_sampling(b->s),
                       .ignore_eos = 1,
                       .n_logprobs = -1,
                       .draft_max = way == PLAIN ? 0 : -1};
    r.params.seed = 1;
    if (engine_submit(e, &r, err)) return -1;
    for (int done = 0; !done;) {
        if (engine_step(e, err) < 0) return -1;
        for (const Event *ev; (ev = engine_next_event(e));) {
            if (ev->type != EVENT_DONE) continue;
            done = 1;
            *stats = ev->stats;
        }
    }
    if (stats->n_generated == b->max_tokens) return 0;
    return error_set(err, ERR_INPUT, "an answer ended after %d tokens: its logits hold NaN",
                     stats->n_generated);
}

static int measure(Bench *b, int context, Error *err)
{
    int n_ways = b->status.drafter ? N_WAYS : 1;
    RequestStats stats;
    memset(b->way, 0, sizeof b->way);
    for (int i = -1; i < b->n_tries; i++) /* the first time warms up */
        for (int way = 0; way < n_ways; way++) {
            Way *w = &b->way[way];
            if (ask(b, context, way, &stats, err)) return -1;
            if (i < 0) continue;
            w->prompt[i] = (context - stats.n_cached) / stats.prompt_ms * 1e3;
            w->decode[i] = (stats.n_generated - 1) / stats.decode_ms * 1e3;
            w->step[i] = stats.decode_ms / stats.n_steps;
            w->n_steps += stats.n_steps;
            w->n_drafted += stats.n_drafted;
            w->n_accepted += stats.n_accepted;
        }
    return 0;
}

static double acceptance_length(const Way *w)
{
    return 1 + (double)w->n_accepted / (double)w->n_steps;
}

/* Of a step's tree, the root included. */
static double mean_nodes(const Way *w)
{
    return 1 + (double)w->n_drafted / (double)w->n_steps;
}

/* ---- floors ---- */

static double state_bytes(const Bench *b)
{
    return (double)memory_slot_bytes(&b->model->config);
}

/* K and V of a context in all layers of the trunk. */
static double kv_bytes(const Bench *b, int context)
{
    const ModelConfig *c = &b->model->config;
    int layers = c->n_full + b->model->has_mtp;
    double row =
        (double)memory_page_bytes(b->model, (KvType)b->s->settings->kv_dtype) / PAGE_TOKENS;
    return row * context * c->n_full / layers;
}

/* What is read and written: each row's own, or one that is read by the pass and once more to be
 * taken along the kept rows. */
static double states_moved(const Bench *b, double rows)
{
    return b->status.state_mode == STATE_REPLAY && rows > 1 ? 3 : 1 + rows;
}

/*
 * Tokens per second when a step takes what its bytes take, with as many rows as the mean. Where
 * shapes are chosen step by step, the head's levels are those of a chain of so many.
 */
static double floor_rate(const Bench *b, int context, int way)
{
    double rows = mean_nodes(&b->way[way]);
    double levels = b->status.draft_auto ? rows - 1 : b->status.draft_depth;
    int answer = context + b->max_tokens / 2;
    double bytes = model_pass_bytes(b->model, (int)(rows + 0.5)) +
                   states_moved(b, rows) * state_bytes(b) + kv_bytes(b, answer);
    if (way == DRAFTED) {
        if (b->status.draft_vocab) bytes += levels * model_head_bytes(b->model);
        bytes += levels * b->status.draft_vocab_bytes;
    }
    return acceptance_length(&b->way[way]) * b->rate / bytes;
}

/* ---- the report ---- */

static double smallest(const double *sorted)
{
    return sorted[0];
}

static void print_way(Bench *b, int context, int way)
{
    static const char *const name[] = {"plain", "drafts"};
    Way *w = &b->way[way];
    int n = b->n_tries;
    double prompt = median(w->prompt, n), decode = median(w->decode, n), step = median(w->step, n);
    printf("%7d  %-7s %10.1f %10.2f [%.2f..%.2f] %10.3f %6.2f %7.3f", context, name[way], prompt,
           decode, smallest(w->decode), w->decode[n - 1], step, mean_nodes(w),
           acceptance_length(w));
    if (b->rate > 0) {
        double most = floor_rate(b, context, way);
        printf(" %10.2f %5.1f %%", most, decode / most * 100);
    }
    printf("\n");
}

static json_t *way_json(Bench *b, int context, int way)
{
    Way *w = &b->way[way];
    int n = b->n_tries;
    double prompt = median(w->prompt, n), decode = median(w->decode, n), step = median(w->step, n);
    return json_pack("{s:i, s:b, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:f}", "context",
                     context, "drafts", way == DRAFTED, "prompt_tokens_per_second", prompt,
                     "tokens_per_second", decode, "tokens_per_second_min", smallest(w->decode),
                     "tokens_per_second_max", w->decode[n - 1], "step_ms", step, "steps",
                     (json_int_t)w->n_steps, "drafted", (json_int_t)w->n_drafted, "accepted",
                     (json_int_t)w->n_accepted, "nodes", mean_nodes(w), "acceptance_length",
                     acceptance_length(w), "floor_tokens_per_second",
                     b->rate > 0 ? floor_rate(b, context, way) : 0);
}

static void print_head(const Bench *b)
{
    const Backend *be = b->model->backend;
    const Settings *set = b->s->settings;
    printf("model: %s; %s %s, %d threads; memory %.1f GB/s (%s)\n", b->s->model_name, be->name,
           be->isa, be->n_threads, b->rate / 1e9, bandwidth_way(be));
    const char *lot = set->synthetic_acceptance > 0
                          ? "; ACCEPTANCE IS SYNTHETIC: drafts are kept by lot, tokens are noise"
                          : "";
    if (b->status.drafter && b->status.draft_auto)
        printf("drafts: %s, %s of up to %d levels as it pays%s\n", b->status.drafter,
               be->is_host ? "trees" : "chains", b->status.draft_depth, lot);
    else if (b->status.drafter)
        printf("drafts: %s, %d levels, top-k %d, %d nodes%s\n", b->status.drafter,
               b->status.draft_depth, set->draft_topk, set->tree_nodes, lot);
    printf("%d tokens, one request at a time, median of %d [min..max]\n", b->max_tokens,
           b->n_tries);
    printf("%7s  %-7s %10s %10s %18s %9s %6s %7s %10s %7s\n", "context", "way", "prompt/s",
           "tokens/s", "", "ms/step", "nodes", "accept", "bytes say", "share");
}

static int report(Bench *b, Error *err)
{
    int n_ways = b->status.drafter ? N_WAYS : 1;
    json_t *rows = json_array();
    int failed = 0;
    if (!b->s->settings->json) print_head(b);
    for (int i = 0; i < b->contexts.n && !failed; i++) {
        failed = measure(b, b->contexts.list[i], err);
        for (int way = 0; way < n_ways && !failed; way++) {
            if (b->s->settings->json)
                json_array_append_new(rows, way_json(b, b->contexts.list[i], way));
            else
                print_way(b, b->contexts.list[i], way);
        }
        fflush(stdout);
    }
    if (b->s->settings->json && !failed) {
        json_t *all =
            json_pack("{s:s, s:s, s:f, s:f, s:O}", "model", b->s->model_name, "device",
                      b->model->backend->name, "bytes_per_second", b->rate, "synthetic_acceptance",
                      b->s->settings->synthetic_acceptance, "rows", rows);
        json_report_print(all);
    }
    json_decref(rows);
    return failed;
}

int bench_latency_run(const Service *s, Error *err)
{
    const Settings *set = s->settings;
    Bench *b = mem_alloc(1, sizeof *b);
    b->s = s;
    b->model = engine_model(s->engine);
    engine_status(s->engine, &b->status);
    b->max_tokens = set->max_tokens > 1 ? set->max_tokens : DEFAULT_ANSWER;
    b->n_tries = set->requests ? set->requests : DEFAULT_TRIES;
    int failed = contexts_read(&b->contexts, set->contexts, DEFAULT_CONTEXT,
                               b->status.ctx_size - b->max_tokens, b->max_tokens, err);
    if (!failed) {
        b->prompt = mem_alloc((size_t)b->status.ctx_size, sizeof *b->prompt);
        contexts_fill(s->tok, b->status.n_vocab, 1, b->prompt, b->status.ctx_size);
        b->rate = bandwidth_measure(b->model->backend);
        failed = report(b, err);
    }
    mem_free(b->prompt);
    mem_free(b);
    return failed ? -1 : 0;
}
