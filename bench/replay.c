/* replay.c: see replay.h. */
#include "bench/replay.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "bench/local_server.h"
#include "bench/quantiles.h"

int replay_connections(const Settings *set, int own, int *n_conns, Error *err)
{
    enum { MAX_CONNECTIONS = 256 };
    *n_conns = own;
    if (!set->connections) return 0;
    char *end;
    long n = strtol(set->connections, &end, 10);
    if (end == set->connections || *end || n < 1 || n > MAX_CONNECTIONS)
        return error_set(err, ERR_INPUT, "--connections is '%.60s', expected one number, 1 to %d",
                         set->connections, MAX_CONNECTIONS);
    *n_conns = (int)n;
    return 0;
}

/* ---- sums ---- */

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* The token that the prompt's pass gives is in no step; an answer may have none at all. */
static int n_decoded(const LoadTurn *t)
{
    return t->n_tokens > 0 ? t->n_tokens - 1 : 0;
}

static double accepted_length(long decoded, long n_accepted)
{
    return 1 + ratio((double)n_accepted, (double)(decoded - n_accepted));
}

ReplaySum replay_sum(const Replay *r, int row, const char *pick)
{
    static const double shares[3] = {0.5, 0.95, 0.99};
    ReplaySum sum = {0};
    long decoded = 0;
    int n_first = 0; /* an answer without tokens has no first one */
    double *first = mem_alloc((size_t)r->n_turns + 1, sizeof *first);
    for (int k = 0; k < r->n_turns; k++) {
        const LoadTurn *t = &r->row[row].turn[k];
        if (!t->answered || (pick && !pick[k])) continue;
        if (t->n_tokens > 0) first[n_first++] = t->first_ms;
        sum.n_turns++;
        sum.n_differ += t->differs;
        sum.n_prompt += t->n_prompt;
        sum.n_tokens += t->n_tokens;
        decoded += n_decoded(t);
        sum.n_cached += t->work.n_cached;
        sum.n_drafted += t->work.n_drafted;
        sum.n_accepted += t->work.n_accepted;
        sum.decode_ms += t->ms - t->first_ms;
    }
    quantile_sort(first, n_first);
    for (int i = 0; i < 3; i++)
        sum.first_ms_p[i] = quantile(first, n_first, shares[i]);
    sum.tokens_per_second = ratio((double)decoded * 1e3, sum.decode_ms);
    sum.accepted_length = accepted_length(decoded, sum.n_accepted);
    mem_free(first);
    return sum;
}

/* ---- the report ---- */

static json_t *cache_json(const ReplayRow *row)
{
    return row->cache < 0 ? json_null() : json_boolean(row->cache);
}

/* Another server that tells of no drafts may have had some. */
static int knows_length(const ReplayRow *row, const ReplaySum *s)
{
    return row->cache >= 0 || s->n_drafted;
}

json_t *replay_row_json(const Replay *r, int row)
{
    const ReplayRow *w = &r->row[row];
    ReplaySum s = replay_sum(r, row, NULL);
    json_t *length = knows_length(w, &s) ? json_real(s.accepted_length) : json_null();
    return json_pack(
        "{s:o, s:s, s:f, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:f, "
        "s:f}",
        "prefix_cache", cache_json(w), "draft", w->draft, "seconds", w->seconds, "turns", s.n_turns,
        "different", s.n_differ, "prompt_tokens", (json_int_t)s.n_prompt, "cached_tokens",
        (json_int_t)s.n_cached, "completion_tokens", (json_int_t)s.n_tokens, "drafted",
        (json_int_t)s.n_drafted, "accepted", (json_int_t)s.n_accepted, "acceptance_length", length,
        "tokens_per_second_in_all", ratio((double)s.n_tokens, w->seconds), "tokens_per_second",
        s.tokens_per_second, "first_token_ms_p50", s.first_ms_p[0], "first_token_ms_p95",
        s.first_ms_p[1], "first_token_ms_p99", s.first_ms_p[2]);
}

json_t *replay_turn_json(const LoadTurn *t)
{
    double decode_ms = t->ms - t->first_ms;
    return json_pack("{s:b, s:b, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "answered",
                     t->answered, "different", t->differs, "prompt_tokens", t->n_prompt,
                     "cached_tokens", t->work.n_cached, "completion_tokens", t->n_tokens, "drafted",
                     t->work.n_drafted, "accepted", t->work.n_accepted, "acceptance_length",
                     accepted_length(n_decoded(t), t->work.n_accepted), "ms", t->ms,
                     "first_token_ms", t->first_ms, "tokens_per_second",
                     ratio(n_decoded(t) * 1e3, decode_ms));
}

void replay_print_name(const ReplayRow *row)
{
    printf("%-5s %-6s", row->cache < 0 ? "-" : row->cache ? "on" : "off", row->draft);
}

static void print_head(void)
{
    printf("%-12s %8s %26s %6s %15s %23s %6s\n", "", "", "tokens", "", "tokens/s",
           "first token, ms", "");
    printf("%-5s %-6s %8s %8s %8s %8s %6s %7s %7s %7s %7s %7s %6s\n", "cache", "drafts", "seconds",
           "prompt", "cached", "answer", "accept", "all", "decode", "p50", "p95", "p99", "differ");
}

static void print_row(const Replay *r, int row)
{
    const ReplayRow *w = &r->row[row];
    ReplaySum s = replay_sum(r, row, NULL);
    char length[16] = "-";
    if (knows_length(w, &s)) snprintf(length, sizeof length, "%.2f", s.accepted_length);
    replay_print_name(w);
    printf(" %8.2f %8ld %8ld %8ld %6s %7.0f %7.0f %7.1f %7.1f %7.1f %6d\n", w->seconds, s.n_prompt,
           s.n_cached, s.n_tokens, length, ratio((double)s.n_tokens, w->seconds),
           s.tokens_per_second, s.first_ms_p[0], s.first_ms_p[1], s.first_ms_p[2], s.n_differ);
    fflush(stdout);
}

/* ---- one server ---- */

/* Requests that got no answer though they fit. */
static int count_lost(Replay *r, const ReplayRow *row, const LoadCases *cases)
{
    int n_lost = 0;
    r->n_left_out = 0;
    for (int k = 0; k < r->n_turns; k++) {
        r->n_left_out += cases->list[k].left_out != NULL;
        n_lost += !row->turn[k].answered && !cases->list[k].left_out;
    }
    return n_lost;
}

static int ask_all(Replay *r, const ReplayPlan *plan, const char *url, const char *key, Error *err)
{
    LoadTarget target = {.key = key};
    ReplayRow *row = &r->row[r->n_rows++];
    row->turn = mem_alloc((size_t)r->n_turns, sizeof *row->turn);
    if (load_target_parse(&target, url, err)) return -1;
    LoadPlan all = {.n_conns = plan->n_conns,
                    .n_requests = r->n_turns,
                    .n_cases = r->n_turns,
                    .order = CASES_IN_TURN,
                    .turn = row->turn};
    LoadResult *result = mem_alloc(1, sizeof *result);
    load_phase_run(&target, plan->cases, &all, result);
    row->seconds = result->seconds;
    mem_free(result);
    int n_lost = count_lost(r, row, plan->cases);
    if (n_lost)
        return error_set(err, ERR_DEVICE, "%d of %d requests got no answer", n_lost, r->n_turns);
    if (r->n_left_out == r->n_turns) return load_cases_none_fits(plan->cases, err);
    if (!plan->quiet) print_row(r, r->n_rows - 1);
    return 0;
}

/* ---- ours, set one way and another ---- */

/* So that it finds nothing that another row, or another run, has left on disk. */
static void salt_row(LoadCases *cases)
{
    char salt[17];
    random_hex(salt, 8);
    load_cases_set_text(cases, "cache_salt", salt);
}

static int run_one(Replay *r, const ReplayPlan *plan, const Settings *set,
                   const EngineOpener *opener, Error *err)
{
    char url[64];
    Service s;
    EngineStatus status;
    Error other = {0};
    if (opener->open(opener->ctx, set, &s, err)) return -1;
    engine_status(s.engine, &status);
    if (set->draft != DRAFT_NONE && !status.drafter && plan->compare_drafts) return 0;
    ReplayRow *row = &r->row[r->n_rows];
    row->cache = set->prefix_cache == ON;
    row->may_differ = row->cache && set->cache_answers && strcmp(s.device, "cpu") != 0;
    snprintf(row->draft, sizeof row->draft, "%s", status.drafter ? status.drafter : "none");
    if (set->cache_dir) salt_row(plan->cases);
    LocalServer *server = mem_alloc(1, sizeof *server);
    int failed = local_server_start(server, &s, err);
    if (!failed) {
        local_server_url(server, url, sizeof url);
        failed = ask_all(r, plan, url, set->api_key, err);
        if (local_server_stop(server, failed ? &other : err)) failed = -1;
    }
    mem_free(server);
    return failed;
}

static int run_ours(Replay *r, const ReplayPlan *plan, const Settings *set,
                    const EngineOpener *opener, Error *err)
{
    /* What the user has settled is not varied; drafts are only where they are to be compared. */
    int cache_from = set->prefix_cache == ON, cache_to = set->prefix_cache != OFF;
    int drafts_to = set->draft != DRAFT_NONE, drafts_from = drafts_to && !plan->compare_drafts;
    for (int cache = cache_from; cache <= cache_to; cache++) {
        for (int drafts = drafts_from; drafts <= drafts_to; drafts++) {
            Settings one = *set;
            one.prefix_cache = cache ? ON : OFF;
            if (!drafts) one.draft = DRAFT_NONE;
            if (run_one(r, plan, &one, opener, err)) return -1;
        }
    }
    return 0;
}

int replay_run(Replay *r, const ReplayPlan *plan, const Service *s, const EngineOpener *opener,
               Error *err)
{
    Settings own = *s->settings; /* the opener changes what s points to */
    const Settings *set = &own;
    /* A line a request would be the whole output. */
    if (set->log_level == LOG_LEVEL_INFO) log_set_level(LOG_LEVEL_WARN);
    signal(SIGPIPE, SIG_IGN);
    r->n_turns = plan->cases->n;
    if (!plan->quiet) print_head();
    if (!set->url) return run_ours(r, plan, set, opener, err);
    r->row[0].cache = -1;
    snprintf(r->row[0].draft, sizeof r->row[0].draft, "-");
    return ask_all(r, plan, set->url, set->api_key, err);
}

int replay_check(const Replay *r, Error *err)
{
    for (int i = 0; i < r->n_rows; i++) {
        int n_differ = r->row[i].may_differ ? 0 : replay_sum(r, i, NULL).n_differ;
        if (n_differ)
            return error_set(err, ERR_DEVICE, "%d answers of row %d differ from those of the first",
                             n_differ, i + 1);
    }
    return 0;
}

void replay_free(Replay *r)
{
    for (int i = 0; i < r->n_rows; i++)
        mem_free(r->row[i].turn);
    *r = (Replay){0};
}
