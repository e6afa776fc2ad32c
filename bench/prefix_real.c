/*
 * prefix_real.c: `bench prefix --real`: a trace's requests to a server with the model.
 *
 * First they are asked without a cache. That gives the answers: those that later prompts hold, and
 * those that every other answer is compared with. Then each size of memory and policy has a fresh
 * engine and server, and gets the same requests in the same order. The trace's times order them and
 * are not waited for; nobody asks before the answer to the session's request before is there.
 *
 * Beside each row stands what the simulation (policy.c) says of the same requests, at the times at
 * which they were sent. What may differ:
 *     - the engine keeps an answer's end one token short: its last token was chosen, not computed;
 *     - a running request takes rows of K and V that its drafts may write (65), which the
 *       simulation does not know: where memory is a few states, that is one of them;
 *     - alpha is tuned by other windows, on a thread, so it changes a little later;
 *     - with --connections, requests run beside one another and wait for what another computes.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "bench/local_server.h"
#include "bench/prefix.h"
#include "bench/replay.h"
#include "bench/trace_live.h"

static const double DEFAULT_SHARES[] = {1.0 / 8, 1.0 / 4, 1.0 / 2};
enum { N_DEFAULT_SHARES = sizeof DEFAULT_SHARES / sizeof *DEFAULT_SHARES };

/* Made loads as large as a small model on a few cores answers in seconds. */
static const char CHAT_KNOBS[] = "sessions=16,turns=4,systems=2,system-tokens=120,question=40,"
                                 "answer=16,most=1024",
                  AGENT_KNOBS[] = "sessions=6,turns=8,systems=1,system-tokens=400,question=60,"
                                  "answer=16,most=2048";

typedef struct {
    PrefixBench *b;
    PrefixReal figures;
    Settings set; /* the user's; the opener changes those of the service */
    const EngineOpener *opener;
    LiveTrace live;
    Trace asked; /* the same as a trace, for the simulation */
    LoadCases cases;
    LoadTurn *turn; /* [live.n] of the row */
    int *after;     /* [live.n] */
    int is_first;   /* the row whose answers are kept */
    char salt[17];  /* of the row: it finds nothing that another one has left on disk */
    int n_servers;  /* so far */
    Error wrong;    /* with an answer, in a callback */
} Real;

/* ---- requests ---- */

/* Takes the answer to request i, if there is one, from its reply. */
static int take_answer(Real *r, int i)
{
    const char *form = r->cases.list[i].alone.form;
    json_t *reply = form ? json_loads(form, 0, NULL) : NULL, *ids = NULL, *v;
    int32_t *id = NULL;
    size_t k;
    if (!reply) return 0;
    json_unpack(reply, "{s:[{s:o}]}", "choices", "token_ids", &ids);
    id = mem_alloc(json_array_size(ids) + 1, sizeof *id);
    json_array_foreach(ids, k, v) id[k] = (int32_t)json_integer_value(v);
    int bad = live_answered(&r->live, i, id, (int)json_array_size(ids), &r->wrong);
    mem_free(id);
    json_decref(reply);
    return bad;
}

static void write_body(Real *r, int i)
{
    const LiveRequest *q = &r->live.request[i];
    char fields[200];
    snprintf(fields, sizeof fields,
             "{\"temperature\": 0, \"ignore_eos\": true, \"return_token_ids\": true, "
             "\"max_tokens\": %d, \"cache_salt\": \"%s\"}",
             live_max_tokens(q), r->salt);
    load_case_set_ids(&r->cases.list[i], q->token, q->n_prompt, fields);
}

/* All that it goes on from was answered. */
static void prepare(void *ctx, int i)
{
    Real *r = ctx;
    int before = r->live.request[i].goes_on;
    if (r->is_first && before >= 0 && !r->wrong.code) take_answer(r, before);
    if (r->is_first) live_follow(&r->live, i);
    write_body(r, i);
}

static int add_requests(Real *r, const Tokenizer *tok, Error *err)
{
    if (live_open(&r->live, &r->b->trace, tok, err)) return -1;
    r->turn = mem_alloc((size_t)r->live.n, sizeof *r->turn);
    r->after = mem_alloc((size_t)r->live.n, sizeof *r->after);
    for (int i = 0; i < r->live.n; i++) {
        char name[32];
        snprintf(name, sizeof name, "request %d", i + 1);
        load_cases_add_ids(&r->cases, name, r->live.request[i].token, 1, 1, "{}");
        r->after[i] = r->live.request[i].previous;
    }
    return 0;
}

/* ---- one server ---- */

static int ask_all(Real *r, const char *url, double *seconds, Error *err)
{
    LoadTarget target = {.key = r->set.api_key};
    LoadPlan plan = {.n_conns = r->figures.n_conns,
                     .n_requests = r->live.n,
                     .n_cases = r->live.n,
                     .order = CASES_IN_TURN,
                     .turn = r->turn,
                     .after = r->after,
                     .prepare = prepare,
                     .ctx = r};
    if (load_target_parse(&target, url, err)) return -1;
    memset(r->turn, 0, (size_t)r->live.n * sizeof *r->turn);
    LoadResult *result = mem_alloc(1, sizeof *result);
    load_phase_run(&target, &r->cases, &plan, result);
    *seconds = result->seconds;
    mem_free(result);
    int n_lost = 0;
    for (int i = 0; i < r->live.n; i++)
        n_lost += !r->turn[i].answered;
    if (!n_lost) return 0;
    return error_set(err, ERR_DEVICE, "%d of %d requests got no answer", n_lost, r->live.n);
}

static Settings settings_of(const Real *r, const Policy *p, double capacity)
{
    Settings set = r->set;
    set.memory = (int64_t)capacity;
    set.prefix_cache = p->kind == CACHE_NONE ? OFF : ON;
    set.cache_policy = p->kind == CACHE_LRU ? POLICY_LRU : POLICY_FLOP;
    set.cache_alpha = p->kind == CACHE_TUNED ? NAN : p->alpha;
    return set;
}

/* What the clients saw, and the alpha that the engine ended with. */
static void sum_up(const Real *r, const EngineStatus *status, PolicyResult *result)
{
    double *first = mem_alloc((size_t)r->live.n, sizeof *first);
    for (int i = 0; i < r->live.n; i++) {
        const LoadTurn *t = &r->turn[i];
        policy_count(result, &r->b->shape.cost, t->n_prompt, t->work.n_cached);
        first[i] = t->first_ms / 1e3;
    }
    policy_set_ttft(result, first, r->live.n);
    result->tune.alpha = status->cache.alpha;
    mem_free(first);
}

/* The first: without a cache; the answers are kept, and later prompts made of them. */
static int run_server(Real *r, const Policy *p, double capacity, PolicyResult *result, Error *err)
{
    char url[64];
    Service s;
    EngineStatus status;
    Error other = {0};
    Settings set = settings_of(r, p, capacity);
    *result = (PolicyResult){.capacity = capacity, .requests = r->live.n};
    r->is_first = !r->n_servers++;
    random_hex(r->salt, 8);
    if (r->opener->open(r->opener->ctx, &set, &s, err)) return -1;
    LocalServer *server = mem_alloc(1, sizeof *server);
    int failed = local_server_start(server, &s, err);
    if (!failed) {
        local_server_url(server, url, sizeof url);
        failed = ask_all(r, url, &result->seconds, err);
        if (local_server_stop(server, failed ? &other : err)) failed = -1;
    }
    mem_free(server);
    if (failed) return -1;
    engine_status(s.engine, &status);
    sum_up(r, &status, result);
    return 0;
}

/* ---- rows ---- */

/* The requests with the answers that they got, as the simulation takes them. */
static int run_first(Real *r, PolicyResult *result, Error *err)
{
    double most = 0;
    for (int c = 0; c < r->b->n_capacities; c++)
        if (r->b->capacity[c] > most) most = r->b->capacity[c];
    if (run_server(r, &(Policy){.kind = CACHE_NONE}, most, result, err)) return -1;
    for (int i = 0; i < r->live.n && !r->wrong.code; i++)
        take_answer(r, i);
    if (r->wrong.code) return error_set(err, r->wrong.code, "%s", r->wrong.msg);
    live_to_trace(&r->live, &r->b->trace, &r->asked);
    r->b->run.trace = &r->asked;
    return 0;
}

static int simulate(Real *r, int c, int p, Error *err)
{
    PolicyResult simulated;
    double now = 0; /* never falls: there one request is over when the next begins */
    for (int i = 0; i < r->live.n; i++) {
        if (r->turn[i].sent_ms / 1e3 > now) now = r->turn[i].sent_ms / 1e3;
        r->asked.request[i].ts = now;
        now += r->turn[i].ms / 1e3;
        r->asked.request[i].end = now;
    }
    if (policy_run(&r->b->run, &r->b->policy[p], r->b->capacity[c], &simulated, err)) return -1;
    r->figures.simulated_hits[c][p] = simulated.hit_tokens;
    return 0;
}

static int run_row(Real *r, int c, int p, Error *err)
{
    PrefixBench *b = r->b;
    if (run_server(r, &b->policy[p], b->capacity[c], &b->result[c][p], err)) return -1;
    for (int i = 0; i < r->live.n; i++)
        r->figures.n_differ[c][p] += r->turn[i].differs;
    r->figures.n_different += r->figures.n_differ[c][p];
    return simulate(r, c, p, err);
}

/* Without a cache the memory makes no difference: the first run is the only one. */
static int run_all(Real *r, json_t *rows, Error *err)
{
    PrefixBench *b = r->b;
    PolicyResult plain;
    int json = r->set.json;
    if (!json) prefix_print_head(b, stdout);
    if (run_first(r, &plain, err)) return -1;
    for (int c = 0; c < b->n_capacities; c++) {
        for (int p = 0; p < b->n_policies; p++) {
            int is_plain = b->policy[p].kind == CACHE_NONE;
            if (is_plain) b->result[c][p] = plain;
            if (is_plain && c) continue;
            if (!is_plain && run_row(r, c, p, err)) return -1;
            json_array_append_new(rows, prefix_row_json(b, c, p));
            if (!json) prefix_print_row(b, c, p, stdout);
        }
    }
    if (json) prefix_print_json(b, rows, stdout);
    if (r->set.svg && prefix_plot(b, r->set.svg, err)) return -1;
    if (!r->figures.n_different) return 0;
    return error_set(err, ERR_DEVICE, "%d answers differ from those without a cache",
                     r->figures.n_different);
}

/* ---- settings ---- */

/* The user's knobs come after ours. */
static int open_trace(Real *r, const Tokenizer *tok, Error *err)
{
    const Settings *set = &r->set;
    const char *own = NULL;
    StrBuf knobs = {0};
    if (!strcmp(set->trace, "chat")) own = CHAT_KNOBS;
    if (!strcmp(set->trace, "agent")) own = AGENT_KNOBS;
    if (own) strbuf_puts(&knobs, own);
    if (own && set->load) strbuf_puts(&knobs, ",");
    if (set->load) strbuf_puts(&knobs, set->load);
    int bad = trace_open(&r->b->trace, set->trace, knobs.len ? strbuf_str(&knobs) : NULL, tok, err);
    strbuf_free(&knobs);
    if (!bad && set->limit) trace_limit(&r->b->trace, set->limit);
    return bad;
}

/* Leaves out what has more than `most` tokens. */
static int leave_out(Real *r, int most, Error *err)
{
    r->figures.most = most;
    r->figures.n_left_out += trace_leave_out(&r->b->trace, most);
    if (r->b->trace.n) return 0;
    return error_set(err, ERR_LIMIT, "no request of %s fits a context of %d tokens", r->b->source,
                     most);
}

/* The context that the least memory holds, so that all rows have the same requests. */
static int leave_out_large(Real *r, Error *err)
{
    double least = r->b->capacity[0];
    for (int c = 1; c < r->b->n_capacities; c++)
        if (r->b->capacity[c] < least) least = r->b->capacity[c];
    Settings set = settings_of(r, &(Policy){.kind = CACHE_LRU}, least);
    EngineStatus status;
    Service s;
    if (r->opener->open(r->opener->ctx, &set, &s, err)) return -1;
    engine_status(s.engine, &status);
    return leave_out(r, status.ctx_size, err);
}

static int model_context(const Settings *set, int *most, Error *err)
{
    ModelConfig config;
    GenerationDefaults generation;
    if (config_load(&config, &generation, set->model, err)) return -1;
    *most = config.ctx_limit;
    if (set->ctx_size && set->ctx_size < *most) *most = set->ctx_size;
    return 0;
}

static int read_settings(Real *r, const Service *s, Error *err)
{
    PrefixBench *b = r->b;
    const Settings *set = &r->set;
    int most;
    b->source = prefix_name(set->trace, "trace");
    b->real = &r->figures;
    if (set->shape)
        return error_set(err, ERR_INPUT, "--shape is simulated; with --real it is the model's");
    if (prefix_read_policies(b, set->policies ? set->policies : "none,lru,flop",
                             set->alphas ? set->alphas : "1,tune", err) ||
        replay_connections(set, 1, &r->figures.n_conns, err) ||
        shape_open(&b->shape, set->model, (KvType)set->kv_dtype, err) ||
        model_context(set, &most, err) || open_trace(r, s->tok, err) || leave_out(r, most, err))
        return -1;
    b->run = (PolicyRun){.trace = &b->trace,
                         .shape = &b->shape,
                         .rules = {.keep_answers = set->cache_answers, .keep_prompts = 1},
                         .flops_per_second = set->flops_per_second};
    if (set->capacities) {
        if (prefix_read_capacities(b, set->capacities, err)) return -1;
    } else {
        prefix_default_capacities(b, DEFAULT_SHARES, N_DEFAULT_SHARES);
    }
    return leave_out_large(r, err) || add_requests(r, s->tok, err) ? -1 : 0;
}

static void real_close(Real *r)
{
    trace_close(&r->b->trace);
    trace_close(&r->asked);
    live_close(&r->live);
    load_cases_free(&r->cases);
    mem_free(r->turn);
    mem_free(r->after);
    mem_free(r->b);
    mem_free(r);
}

int bench_prefix_real_run(const Service *s, const EngineOpener *opener, Error *err)
{
    Real *r = mem_alloc(1, sizeof *r);
    json_t *rows = json_array();
    r->b = mem_alloc(1, sizeof *r->b);
    r->set = *s->settings;
    r->opener = opener;
    /* A line a request would be the whole output. */
    if (r->set.log_level == LOG_LEVEL_INFO) log_set_level(LOG_LEVEL_WARN);
    signal(SIGPIPE, SIG_IGN);
    int bad = read_settings(r, s, err);
    if (!bad) bad = run_all(r, rows, err);
    json_decref(rows);
    real_close(r);
    return bad;
}
