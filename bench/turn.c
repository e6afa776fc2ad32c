/*
 * turn.c: `bench turn`. See bench.h.
 *
 * A prompt's prefix is computed once, with a state kept at its end. What the tokens behind it took
 * then, with the prefix's rows and state just left in memory, is what a hit is measured against.
 * Prompts are random tokens, each try has a salt of its own: nothing is found but what is meant to
 * be.
 */
#include <stdio.h>
#include <time.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "bench/bench.h"
#include "bench/contexts.h"
#include "bench/json_report.h"
#include "bench/quantiles.h"

enum { DEFAULT_TRIES = 5, DEFAULT_CONTEXT = 4096 };

/* WHOLE is all of a prompt that nothing is known of; BEHIND the part of it after the prefix. */
typedef enum { WHOLE, BEHIND, CACHED, RESTORED, N_WAYS } Way;

static const char *const way_name[] = {"computed", "in memory", "cached", "restored"};

typedef struct {
    double ms[N_WAYS][MAX_TRIES]; /* to the first token */
    int n_cached[N_WAYS];         /* at least */
} Row;

typedef struct {
    Service s;
    const EngineOpener *opener;
    EngineStatus status;
    Contexts contexts;
    int n_tries, n_new;
    uint64_t salt; /* of the last try */
    int32_t *prompt;
    Row row;
} Bench;

/* ---- requests ---- */

static int take_events(Engine *e, double now, double *first_ms, RequestStats *stats)
{
    int done = 0;
    for (const Event *ev; (ev = engine_next_event(e));) {
        if (ev->type == EVENT_TOKEN && *first_ms < 0) *first_ms = now;
        if (ev->type != EVENT_DONE) continue;
        *stats = ev->stats;
        done = 1;
    }
    return done;
}

/*
 * One prompt of the context and new tokens that no other try has, to its first token. prefix_ms:
 * when its first `context` tokens were through, or NULL.
 */
static int ask(Bench *b, int context, Way way, int try, uint64_t salt, double *prefix_ms,
               Error *err)
{
    Engine *e = b->s.engine;
    EngineRequest r = {.id = 1,
                       .prompt = b->prompt,
                       .n_prompt = context + b->n_new,
                       .n_stable = context,
                       .max_tokens = 1,
                       .params = service_sampling(&b->s),
                       .ignore_eos = 1,
                       .n_logprobs = -1,
                       .draft_max = -1,
                       .answer_changes = 1,
                       .salt = salt};
    RequestStats stats = {0};
    EngineStatus status;
    double first_ms = -1;
    int n_vocab = b->status.n_vocab;
    uint32_t own = (uint32_t)(2 + N_WAYS * try + (int)way);
    contexts_fill(b->s.tok, n_vocab, 1, b->prompt, context);
    contexts_fill(b->s.tok, n_vocab, own, b->prompt + context, b->n_new);
    engine_status(e, &status);
    long before = status.totals.tokens;
    double start = clock_ms();
    if (engine_submit(e, &r, err)) return -1;
    for (int done = 0; !done;) {
        if (engine_step(e, err) < 0) return -1;
        double now = clock_ms() - start;
        done = take_events(e, now, &first_ms, &stats);
        engine_status(e, &status);
        if (prefix_ms && status.totals.tokens - before == context) *prefix_ms = now;
    }
    if (stats.n_generated != 1) return error_set(err, ERR_INPUT, "no answer: its logits hold NaN");
    b->row.ms[way][try] = first_ms;
    if (!try || stats.n_cached < b->row.n_cached[way]) b->row.n_cached[way] = stats.n_cached;
    return 0;
}

/* Until all that is on its way to disk is there. */
static int wait_saved(Bench *b, Error *err)
{
    EngineStatus status;
    for (engine_status(b->s.engine, &status); status.disk.saving;
         engine_status(b->s.engine, &status)) {
        if (engine_step(b->s.engine, err) < 0) return -1;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (status.disk.on && !status.disk.failed) return 0;
    return error_set(err, ERR_FILE, "the prefix was not saved");
}

static int try_once(Bench *b, int context, int try, Error *err)
{
    const Settings *set = b->s.settings;
    double prefix_ms = -1;
    Row *row = &b->row;
    uint64_t salt = ++b->salt;
    if (ask(b, context, WHOLE, try, salt, &prefix_ms, err)) return -1;
    if (prefix_ms < 0) return error_set(err, ERR_INPUT, "no pass ended after %d tokens", context);
    row->ms[BEHIND][try] = row->ms[WHOLE][try] - prefix_ms;
    if (ask(b, context, CACHED, try, salt, NULL, err)) return -1;
    if (!set->cache_dir) return 0;
    if (wait_saved(b, err) || b->opener->open(b->opener->ctx, set, &b->s, err)) return -1;
    return ask(b, context, RESTORED, try, salt, NULL, err);
}

/* The first try warms up, and is overwritten. */
static int measure(Bench *b, int context, Error *err)
{
    for (int i = -1; i < b->n_tries; i++)
        if (try_once(b, context, i < 0 ? 0 : i, err)) return -1;
    return 0;
}

/* ---- the report ---- */

static int has_way(const Bench *b, int way)
{
    return way != RESTORED || b->s.settings->cache_dir;
}

static void print_rows(Bench *b, int context)
{
    double behind = median(b->row.ms[BEHIND], b->n_tries);
    for (int way = 0; way < N_WAYS; way++) {
        double *ms = b->row.ms[way], middle = median(ms, b->n_tries);
        if (!has_way(b, way)) continue;
        printf("%7d %6d  %-9s %7d %10.2f [%.2f..%.2f] %8.2f\n", context, b->n_new, way_name[way],
               b->row.n_cached[way], middle, ms[0], ms[b->n_tries - 1], middle / behind);
    }
}

static void add_rows(Bench *b, int context, json_t *rows)
{
    for (int way = 0; way < N_WAYS; way++) {
        double *ms = b->row.ms[way], middle = median(ms, b->n_tries);
        if (!has_way(b, way)) continue;
        json_array_append_new(rows,
                              json_pack("{s:i, s:i, s:s, s:i, s:f, s:f, s:f}", "context", context,
                                        "new_tokens", b->n_new, "way", way_name[way],
                                        "cached_tokens", b->row.n_cached[way], "first_token_ms",
                                        middle, "min_ms", ms[0], "max_ms", ms[b->n_tries - 1]));
    }
}

static int report(Bench *b, Error *err)
{
    json_t *rows = json_array();
    int json = b->s.settings->json, failed = 0;
    if (!json)
        printf(
            "model: %s; to the first token, median of %d [min..max]\n%7s %6s  %-9s %7s %10s %s\n",
            b->s.model_name, b->n_tries, "context", "new", "prefix", "cached", "ms",
            "            / in memory");
    for (int i = 0; i < b->contexts.n && !failed; i++) {
        failed = measure(b, b->contexts.list[i], err);
        if (!failed)
            (json ? add_rows(b, b->contexts.list[i], rows) : print_rows(b, b->contexts.list[i]));
        fflush(stdout);
    }
    if (json && !failed) {
        json_t *all = json_pack("{s:s, s:O}", "model", b->s.model_name, "rows", rows);
        json_report_print(all);
    }
    json_decref(rows);
    return failed;
}

int bench_turn_run(const Service *s, const EngineOpener *opener, Error *err)
{
    const Settings *set = s->settings;
    Settings asked = *set;
    Bench *b = mem_alloc(1, sizeof *b);
    asked.prefix_cache = ON;
    b->s = *s;
    b->opener = opener;
    b->salt = random_u64(); /* the folder may have an earlier run's */
    b->n_new = set->question_tokens;
    b->n_tries = set->requests ? set->requests : DEFAULT_TRIES;
    int failed = opener->open(opener->ctx, &asked, &b->s, err);
    if (!failed) {
        engine_status(b->s.engine, &b->status);
        int most = b->status.ctx_size - b->n_new - 1;
        failed = contexts_read(&b->contexts, set->contexts, DEFAULT_CONTEXT, most, b->n_new, err);
        b->prompt = mem_alloc((size_t)b->status.ctx_size, sizeof *b->prompt);
    }
    if (!failed) failed = report(b, err);
    mem_free(b->prompt);
    mem_free(b);
    return failed ? -1 : 0;
}
