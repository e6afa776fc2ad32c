/*
 * policy.c: see policy.h.
 *
 * Our tree runs as in the engine, on frames and pages, so memory is rounded: a state to whole
 * pages, the end of every branch to a page. The blocks of vLLM's way are counted to the byte.
 */
#include "bench/policy.h"

#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/blocks.h"
#include "bench/quantiles.h"
#include "engine/flops.h"
#include "engine/frames.h"

enum {
    MAX_PAGES = 1 << 27,
    MAX_BLOCKS = 1 << 27,
    WINDOW_REQUESTS = 2000, /* of the tuning */
    WINDOW_TOKENS = 32 << 20,
};

/* A run in progress. */
typedef struct {
    const PolicyRun *run;
    const Policy *policy;
    Blocks *blocks;
    Frames *frames;
    Cache *cache;
    Tuner *tuner;
    int32_t *token, *page;
    double *ttft;
    PolicyResult *result;
} Sim;

/* ---- memory ---- */

static double page_bytes(const Shape *s)
{
    return s->kv_bytes * PAGE_TOKENS;
}

static int pages_per_frame(const Shape *s)
{
    int n = (int)ceil(s->state_bytes / page_bytes(s));
    return n > 1 ? n : 1;
}

double policy_all_bytes(const PolicyRun *run)
{
    return run->trace->new_tokens * run->shape->kv_bytes + run->trace->n * run->shape->state_bytes;
}

double policy_least_bytes(const Shape *s, const Policy *p)
{
    enum { LEAST_FRAMES = 3 };
    if (p->kind == CACHE_NONE) return 0;
    if (p->kind == CACHE_BLOCKS) return s->state_bytes + p->block_tokens * s->kv_bytes;
    return LEAST_FRAMES * pages_per_frame(s) * page_bytes(s);
}

static int too_small(double capacity, double least, Error *err)
{
    return error_set(err, ERR_LIMIT,
                     "--capacity: %.3g MB hold nothing: a state and its tokens take %.3g MB",
                     capacity / 1e6, least / 1e6);
}

static int open_blocks(Sim *s, double capacity, Error *err)
{
    const Shape *shape = s->run->shape;
    double bytes = policy_least_bytes(shape, s->policy), n = floor(capacity / bytes);
    if (n < 1) return too_small(capacity, bytes, err);
    if (n > MAX_BLOCKS)
        return error_set(err, ERR_LIMIT, "%.3g MB are more than %d blocks", capacity / 1e6,
                         MAX_BLOCKS);
    s->blocks = blocks_open((int)n, s->policy->block_tokens);
    return 0;
}

static int open_tree(Sim *s, double capacity, Error *err)
{
    const Shape *shape = s->run->shape;
    int per_frame = pages_per_frame(shape);
    double frame = per_frame * page_bytes(shape), n = floor(capacity / frame);
    double least = policy_least_bytes(shape, s->policy);
    if (capacity < least) return too_small(capacity, least, err);
    if (n * per_frame > MAX_PAGES)
        return error_set(err, ERR_LIMIT, "%.3g MB are more than %d pages", capacity / 1e6,
                         MAX_PAGES);
    double nodes = 4.0 * s->run->trace->n + 64;
    if (nodes > 3 * n + 64) nodes = 3 * n + 64; /* a state each, and where they part */
    TuneSetup setup = {.cache = {.on = 1,
                                 .policy = s->policy->kind == CACHE_LRU ? POLICY_LRU : POLICY_FLOP,
                                 .alpha = s->policy->kind == CACHE_FLOP ? s->policy->alpha : 0},
                       .cost = shape->cost,
                       .n_frames = (int)n,
                       .pages_per_frame = per_frame,
                       .max_slots = (int)n,
                       .max_nodes = (int)nodes,
                       .rules = s->run->rules,
                       .max_requests = WINDOW_REQUESTS,
                       .max_tokens = WINDOW_TOKENS};
    s->frames = frames_open(setup.n_frames, per_frame, setup.max_slots);
    s->cache = cache_open(&setup.cache, s->frames, setup.max_nodes, &setup.cost);
    s->page = mem_alloc((size_t)pages_for(s->run->trace->longest), sizeof *s->page);
    if (s->policy->kind != CACHE_TUNED) return 0;
    s->tuner = tune_open(&setup, 0, err);
    return s->tuner ? 0 : -1;
}

static void sim_close(Sim *s)
{
    tune_close(s->tuner);
    cache_close(s->cache);
    if (s->frames) frames_close(s->frames);
    blocks_close(s->blocks);
    mem_free(s->token);
    mem_free(s->page);
    mem_free(s->ttft);
}

/* ---- requests ---- */

/* Tokens of request i's prompt that are cached. */
static int serve(Sim *s, int i)
{
    const TraceRequest *t = &s->run->trace->request[i];
    int fits = 1;
    if (s->policy->kind == CACHE_NONE) return 0;
    trace_tokens(s->run->trace, i, s->token);
    if (s->blocks)
        return blocks_request(s->blocks, s->token, t->n_prompt, t->n_prompt + t->n_answer);
    CachedRequest r = {.token = s->token,
                       .n_prompt = t->n_prompt,
                       .n_answer = t->n_answer,
                       .n_stable = t->n_stable,
                       .answer_changes = t->answer_changes,
                       .now = t->ts,
                       .end = t->end};
    int hit = cache_replay(s->cache, s->frames, &s->run->rules, &r, s->page, &fits);
    s->result->too_large += !fits;
    if (s->tuner) tune_served(s->tuner, s->cache, &r, hit);
    return hit;
}

void policy_count(PolicyResult *r, const FlopCost *cost, int n_prompt, int hit)
{
    double saved = flops_between(cost, 0, hit);
    r->hit_requests += hit > 0;
    r->prompt_tokens += n_prompt;
    r->hit_tokens += hit;
    r->flops += saved + flops_between(cost, hit, n_prompt);
    r->flops_saved += saved;
}

static void serve_all(Sim *s)
{
    const Trace *t = s->run->trace;
    const FlopCost *cost = &s->run->shape->cost;
    for (int i = 0; i < t->n; i++) {
        int n = t->request[i].n_prompt, hit = serve(s, i);
        policy_count(s->result, cost, n, hit);
        s->ttft[i] = flops_between(cost, hit, n) / s->run->flops_per_second;
    }
}

void policy_set_ttft(PolicyResult *r, double *ttft, int n)
{
    quantile_sort(ttft, n);
    r->ttft_p5 = quantile(ttft, n, 0.05);
    r->ttft_p50 = quantile(ttft, n, 0.5);
    r->ttft_p95 = quantile(ttft, n, 0.95);
}

static void finish(Sim *s)
{
    PolicyResult *r = s->result;
    policy_set_ttft(r, s->ttft, s->run->trace->n);
    r->tune.alpha = s->policy->kind == CACHE_FLOP ? s->policy->alpha : 0;
    if (s->tuner) r->tune = tune_stats(s->tuner);
}

int policy_run(const PolicyRun *run, const Policy *policy, double capacity, PolicyResult *result,
               Error *err)
{
    Sim s = {.run = run, .policy = policy, .result = result};
    double begun = clock_ms();
    *result = (PolicyResult){.capacity = capacity, .requests = run->trace->n};
    int bad = 0;
    if (policy->kind == CACHE_BLOCKS)
        bad = open_blocks(&s, capacity, err);
    else if (policy->kind != CACHE_NONE)
        bad = open_tree(&s, capacity, err);
    if (!bad) {
        s.token = mem_alloc((size_t)run->trace->longest, sizeof *s.token);
        s.ttft = mem_alloc((size_t)run->trace->n, sizeof *s.ttft);
        serve_all(&s);
        finish(&s);
        result->seconds = (clock_ms() - begun) / 1e3;
    }
    sim_close(&s);
    return bad;
}
