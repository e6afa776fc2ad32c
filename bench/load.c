/*
 * load.c: `bench load`: many connections against our server, every answer checked. See bench.h.
 *
 * The server runs in this process on its own thread, so that its CPU time can be read, unless --url
 * names another one. The phases are run twice: what the second half needs in memory beyond the
 * first is what leaks. For that the KV pool is filled once before: its pages become resident when
 * they are first used, so that a peak in the second half would look like a leak.
 */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "bench/bench.h"
#include "bench/json_lines.h"
#include "bench/json_report.h"
#include "bench/load_cpu.h"
#include "bench/load_phase.h"
#include "bench/local_server.h"

enum {
    HALVES = 2,
    MAX_PHASES = 16,
    MAX_CONNECTIONS = 4096,
    DEFAULT_REQUESTS = 500,
    EACH_CONNECTION = 2, /* requests of a connection at least, by default */
    STREAMED_PERCENT = 75,
    DROPPED_PERCENT = 3,
    IDLE_PATIENCE_S = 30,
    FILL_TOKENS = 400,   /* of each answer that fills the pool; their prompts leave room for half */
    SAMPLE_BYTES = 4000, /* of text, whose tokens such a prompt repeats */
    OTHER_FILES = 64,    /* beside those of the connections */
};

typedef struct {
    int n_conns;
    LoadResult result;
    int n_left;               /* answers that lived on without a client */
    double rss_mib, heap_mib; /* after it: resident, and in use on the heap; 0: unknown */
} PhaseRow;

typedef struct {
    const Service *s;
    LocalServer own; /* .server is NULL: elsewhere */
    LoadTarget target;
    LoadCases cases;
    int n_mixed; /* cases that fit; the one that fills the pool comes after them */
    int n_fill;  /* answers that fill the pool; 0: it is not filled */
    PhaseRow fill;
    int n_conns[MAX_PHASES], n_phases;
    PhaseRow *rows; /* [HALVES * n_phases] */
    LoadCpu cpu;
} Load;

/* ---- the server ---- */

static int reach_server(Load *l, Error *err)
{
    char url[64];
    const Settings *set = l->s->settings;
    signal(SIGPIPE, SIG_IGN);
    l->target.key = set->api_key;
    if (set->url) return load_target_parse(&l->target, set->url, err);
    if (local_server_start(&l->own, l->s, err)) return -1;
    local_server_url(&l->own, url, sizeof url);
    return load_target_parse(&l->target, url, err);
}

/*
 * Answers without a client must end soon. Their number after a while that is long enough. The
 * server sees the end of the connections meanwhile, and frees what belongs to them.
 */
static int wait_idle(const Server *server)
{
    const struct timespec pause = {.tv_nsec = 10000000}, settle = {.tv_nsec = 500000000};
    for (int i = 0; i < IDLE_PATIENCE_S * 100 && server_n_live(server); i++)
        nanosleep(&pause, NULL);
    nanosleep(&settle, NULL);
    return server_n_live(server);
}

/* ---- what is asked for ---- */

static int read_connections(Load *l, const char *text, Error *err)
{
    for (const char *at = text;; at++) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 1 || n > MAX_CONNECTIONS || (*end && *end != ',') ||
            l->n_phases == MAX_PHASES)
            return error_set(err, ERR_INPUT,
                             "--connections is '%.60s', expected up to %d numbers of 1 to %d, "
                             "such as 1,8,64",
                             text, MAX_PHASES, MAX_CONNECTIONS);
        l->n_conns[l->n_phases++] = (int)n;
        if (!*end) return 0;
        at = end;
    }
}

/* Both ends of each connection, when the server is in this process. */
static int raise_file_limit(const Load *l, Error *err)
{
    struct rlimit limit;
    rlim_t most = (rlim_t)l->n_fill;
    for (int i = 0; i < l->n_phases; i++)
        if ((rlim_t)l->n_conns[i] > most) most = (rlim_t)l->n_conns[i];
    rlim_t need = most * (l->s->settings->url ? 1 : 2) + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need) return 0;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= need) return 0;
    return error_set(err, ERR_LIMIT, "%d connections need %d open files, the limit is %d",
                     (int)most, (int)need, (int)limit.rlim_cur);
}

/* ---- phases ---- */

static double rss_mib(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* Without the engine's pools, which become resident page by page as they are used first. */
static double heap_mib(void)
{
    struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd) / (1 << 20);
}

/*
 * A prompt that, sent as often as there are sequences, fills the KV pool: all are let in, and the
 * pages run out when their answers grow. Elsewhere nobody could see what becomes resident.
 */
static int add_filler(Load *l, Error *err)
{
    EngineStatus st;
    TokenList sample = {0};
    if (l->s->settings->url || strcmp(l->s->device, "cpu") != 0) return 0;
    engine_status(l->s->engine, &st);
    int n = st.pages / st.max_seqs * PAGE_TOKENS - FILL_TOKENS / 2;
    if (n > st.ctx_size - FILL_TOKENS) n = st.ctx_size - FILL_TOKENS;
    if (n < 1) return 0;
    char *text = load_cases_text(SAMPLE_BYTES), fields[96];
    int failed = tokenizer_encode(l->s->tok, text, SAMPLE_BYTES, &sample, err);
    if (!failed) {
        snprintf(fields, sizeof fields,
                 "{\"temperature\": 0, \"max_tokens\": %d, \"ignore_eos\": true}", FILL_TOKENS);
        load_cases_add_ids(&l->cases, "the one that fills the pool", sample.id, sample.n, n,
                           fields);
        l->n_fill = st.max_seqs;
    }
    mem_free(text);
    token_list_free(&sample);
    return failed;
}

/* The lone answers. What does not fit the context is dropped from the list. */
static int collect(Load *l, Error *err)
{
    LoadCases *c = &l->cases;
    LoadPlan plan = {.n_conns = 1, .n_requests = 2 * c->n, .n_cases = c->n, .order = CASES_COLLECT};
    LoadResult *r = mem_alloc(1, sizeof *r);
    load_phase_run(&l->target, c, &plan, r);
    long n_bad = load_result_bad(r);
    mem_free(r);
    if (n_bad)
        return error_set(err, ERR_DEVICE,
                         "%ld of %d requests sent alone, whole and streamed, got no answer or two "
                         "different ones",
                         n_bad, 2 * c->n);
    int n = 0, n_mixed = c->n - (l->n_fill > 0);
    for (int i = 0; i < n_mixed; i++) {
        LoadCase one = c->list[i];
        if (one.left_out) log_warn("load_left_out case='%s' why='too long'", one.name);
        c->list[i] = c->list[n];
        c->list[n] = one;
        n += !one.left_out;
    }
    if (!n) return load_cases_none_fits(c, err);
    l->n_mixed = n;
    return 0;
}

/* What the server needs after a phase. */
static void look_at_memory(const Load *l, PhaseRow *row)
{
    row->n_left = wait_idle(l->own.server);
    row->rss_mib = rss_mib();
    row->heap_mib = heap_mib();
}

static void fill_pool(Load *l)
{
    PhaseRow *row = &l->fill;
    row->n_conns = l->n_fill;
    LoadPlan plan = {.n_conns = l->n_fill,
                     .n_requests = l->n_fill,
                     .first = l->cases.n - 1,
                     .n_cases = 1,
                     .streamed_percent = STREAMED_PERCENT};
    load_phase_run(&l->target, &l->cases, &plan, &row->result);
    look_at_memory(l, row);
}

static int n_requests(const Load *l, int n_conns)
{
    if (l->s->settings->requests) return l->s->settings->requests;
    int n = EACH_CONNECTION * n_conns;
    return n > DEFAULT_REQUESTS ? n : DEFAULT_REQUESTS;
}

static void run_phase(Load *l, int i)
{
    PhaseRow *row = &l->rows[i];
    row->n_conns = l->n_conns[i % l->n_phases];
    LoadPlan plan = {.n_conns = row->n_conns,
                     .n_requests = n_requests(l, row->n_conns),
                     .n_cases = l->n_mixed,
                     .streamed_percent = STREAMED_PERCENT,
                     .dropped_percent = DROPPED_PERCENT,
                     .seed = (uint64_t)i};
    load_phase_run(&l->target, &l->cases, &plan, &row->result);
    if (l->own.server) look_at_memory(l, row);
}

/* ---- the report ---- */

static double per_second(double n, const LoadResult *r)
{
    return r->seconds > 0 ? n / r->seconds : 0;
}

static void print_head(const Load *l)
{
    const LoadResult *r = &l->fill.result;
    if (l->s->model_name) printf("model: %s\n", l->s->model_name); /* none with --url */
    if (l->n_fill)
        printf("the KV pool is filled: %d prompts of %d tokens at once, %ld answered as alone in "
               "%.1f s, %.1f MiB\n",
               l->n_fill, l->cases.list[l->cases.n - 1].alone.n_prompt, r->n_answered, r->seconds,
               l->fill.rss_mib);
    printf("%38s %14s %17s %17s\n", "", "per second", "first token, ms", "between, ms");
    printf("%5s %8s %6s %7s %8s %6s %7s %8s %8s %8s %8s %8s %7s\n", "conns", "requests", "429s",
           "dropped", "wrong", "reqs", "tokens", "p50", "p99", "p50", "p99", "MiB", "heap");
}

static void print_row(const PhaseRow *row)
{
    const LoadResult *r = &row->result;
    printf("%5d %8ld %6ld %7ld %8ld %6.1f %7.0f %8.1f %8.1f %8.2f %8.2f %8.1f %7.2f\n",
           row->n_conns, r->n_answered + r->n_dropped + load_result_bad(r), r->n_retried,
           r->n_dropped, load_result_bad(r), per_second((double)r->n_answered, r),
           per_second((double)r->n_tokens, r), times_quantile(&r->first_token, 0.5),
           times_quantile(&r->first_token, 0.99), times_quantile(&r->between, 0.5),
           times_quantile(&r->between, 0.99), row->rss_mib, row->heap_mib);
    fflush(stdout);
}

/* What the second half took beyond the first. */
static void growth(const Load *l, double *rss, double *heap)
{
    const PhaseRow *first = &l->rows[l->n_phases - 1], *last = &l->rows[HALVES * l->n_phases - 1];
    *rss = last->rss_mib - first->rss_mib;
    *heap = last->heap_mib - first->heap_mib;
}

static void print_rest(const Load *l)
{
    long n = 0, n_dropped = 0;
    double rss, heap;
    for (int i = 0; i < HALVES * l->n_phases; i++) {
        n += l->rows[i].result.n_answered;
        n_dropped += l->rows[i].result.n_dropped;
    }
    printf("%d different requests; %ld answers as they are alone, %ld clients vanished\n",
           l->n_mixed, n, n_dropped);
    if (!l->own.server) return;
    growth(l, &rss, &heap);
    printf("memory: the second half took %+.1f MiB beyond the first, on the heap %+.3f MiB\n\n",
           rss, heap);
    printf("the server's thread, in us of CPU time      all  kernel   added    goal\n");
    for (int i = 0; i < N_LOAD_COSTS; i++) {
        double us = l->cpu.us[i], kernel = l->cpu.kernel[i];
        printf("  %-36s %8.2f %7.2f %7.2f %7.0f\n", load_costs[i].name, us, kernel, us - kernel,
               load_costs[i].goal);
    }
}

static json_t *row_json(const PhaseRow *row)
{
    const LoadResult *r = &row->result;
    return json_pack(
        "{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f}",
        "connections", row->n_conns, "answered", (json_int_t)r->n_answered, "retried",
        (json_int_t)r->n_retried, "dropped", (json_int_t)r->n_dropped, "wrong",
        (json_int_t)r->n_wrong, "lost", (json_int_t)r->n_lost, "refused", (json_int_t)r->n_refused,
        "left", row->n_left, "seconds", r->seconds, "tokens", (json_int_t)r->n_tokens,
        "first_token_ms_p50", times_quantile(&r->first_token, 0.5), "first_token_ms_p99",
        times_quantile(&r->first_token, 0.99), "between_ms_p50", times_quantile(&r->between, 0.5),
        "between_ms_p99", times_quantile(&r->between, 0.99), "memory_mib", row->rss_mib, "heap_mib",
        row->heap_mib);
}

static void print_json(const Load *l)
{
    json_t *rows = json_array(), *report;
    for (int i = 0; i < HALVES * l->n_phases; i++)
        json_array_append_new(rows, row_json(&l->rows[i]));
    report = json_pack("{s:s*, s:i, s:o}", "model", l->s->model_name, "cases", l->n_mixed, "phases",
                       rows);
    if (l->n_fill) json_object_set_new(report, "filling", row_json(&l->fill));
    if (l->own.server) {
        json_t *cpu = json_object(), *kernel = json_object();
        for (int i = 0; i < N_LOAD_COSTS; i++) {
            json_object_set_new(cpu, load_costs[i].key, json_real(l->cpu.us[i]));
            json_object_set_new(kernel, load_costs[i].key, json_real(l->cpu.kernel[i]));
        }
        double rss, heap;
        growth(l, &rss, &heap);
        json_object_set_new(report, "memory_growth_mib", json_real(rss));
        json_object_set_new(report, "heap_growth_mib", json_real(heap));
        json_object_set_new(report, "server_thread_us", cpu);
        json_object_set_new(report, "kernel_us", kernel);
    }
    json_report_print(report);
}

/* ---- the whole ---- */

static void add_up(LoadResult *all, const LoadResult *r)
{
    all->n_answered += r->n_answered;
    all->n_dropped += r->n_dropped;
    all->n_wrong += r->n_wrong;
    all->n_lost += r->n_lost;
    all->n_refused += r->n_refused;
}

static int judge(const Load *l, Error *err)
{
    LoadResult all = {0};
    int n_left = l->fill.n_left;
    long n_sent = l->n_fill;
    add_up(&all, &l->fill.result);
    for (int i = 0; i < HALVES * l->n_phases; i++) {
        add_up(&all, &l->rows[i].result);
        n_left += l->rows[i].n_left;
        n_sent += n_requests(l, l->rows[i].n_conns);
    }
    long n = all.n_answered + all.n_dropped + load_result_bad(&all);
    if (n != n_sent)
        return error_set(err, ERR_DEVICE, "%ld of %ld requests are accounted for", n, n_sent);
    if (load_result_bad(&all))
        return error_set(err, ERR_DEVICE,
                         "of %ld requests %ld were answered wrong, %ld lost, %ld "
                         "refused",
                         n, all.n_wrong, all.n_lost, all.n_refused);
    if (n_left) return error_set(err, ERR_DEVICE, "%d answers lived on without a client", n_left);
    return 0;
}

static int run_all(Load *l, Error *err)
{
    const Settings *set = l->s->settings;
    const char *path = json_lines_path(set->prompts, "bench/prompts/small.jsonl", err);
    if (!path || load_cases_add_mix(&l->cases, path, set->limit, err)) return -1;
    if (add_filler(l, err) || raise_file_limit(l, err)) return -1;
    if (reach_server(l, err) || collect(l, err)) return -1;
    if (l->n_fill) fill_pool(l);
    if (!set->json) print_head(l);
    for (int i = 0; i < HALVES * l->n_phases; i++) {
        run_phase(l, i);
        if (!set->json) print_row(&l->rows[i]);
    }
    if (judge(l, err)) return -1;
    if (l->own.server && load_cpu_measure(&l->cpu, &l->target, l->own.thread, err)) return -1;
    if (set->json)
        print_json(l);
    else
        print_rest(l);
    return 0;
}

int bench_load_run(const Service *s, Error *err)
{
    const Settings *set = s->settings;
    Load *l = mem_alloc(1, sizeof *l);
    Error other = {0};
    l->s = s;
    /* A line a request would be the whole output, and its cost is the log's. */
    if (set->log_level == LOG_LEVEL_INFO) log_set_level(LOG_LEVEL_WARN);
    int failed = read_connections(l, set->connections ? set->connections : "1,8,64,512", err);
    if (!failed) {
        l->rows = mem_alloc((size_t)(HALVES * l->n_phases), sizeof *l->rows);
        failed = run_all(l, err);
    }
    if (local_server_stop(&l->own, failed ? &other : err)) failed = 1;
    load_cases_free(&l->cases);
    mem_free(l->rows);
    mem_free(l);
    return failed ? -1 : 0;
}
