/*
 * kernels.c: where the time of a pass goes. See bench.h.
 *
 * A pass over n rows of one sequence, a chain behind a context, as a verify pass has them. In state
 * mode replay the rows leave records and all are folded, as if all drafts were accepted. First the
 * pass as it runs, then again through a backend that waits after each operation and keeps its
 * time. A GPU's operations overlap and are launched at once: there passes are recorded, several in
 * a row, so that neither uploads nor waiting for them counts, and an operation's time is what such
 * a pass takes with it beyond what it takes without.
 *
 * Of the CPU's helper threads it measures what a fork and join takes beyond its parts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/bandwidth.h"
#include "bench/bench.h"
#include "bench/quantiles.h"
#include "engine/forward.h"
#include "kernels/ops_cuda.h"
#include "kernels/philox.h"
#include "kernels/threads.h"

enum {
    MAX_LINES = 64,
    MAX_ROWS = 64,
    MOST_ROWS_BY_OP = 16, /* whose operations are timed one by one */
    TRIES = 9,
    MAX_PASSES = 8, /* in a recording, which lasts RECORDING_MS or is one pass */
    RECORDING_MS = 8,
    WARM_MS = 300, /* of passes before the first: an idle GPU's clocks are low */
    DEFAULT_CONTEXT = 512,
    N_PAGE_SLACK = 8
};

static const int row_counts[] = {1, 2, 4, 8, 16, 32, 64};
enum { N_ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

/* Calls of one operation with one shape. */
typedef struct {
    const char *op;
    int rows, cols; /* of a matrix, or of some together; else 0 */
    int calls;
    double ms, bytes;
} Line;

typedef struct {
    Backend be;
    Backend *real;
    int context, leaves_records;
    Line line[MAX_LINES];
    int n_lines;
    const Line *left_out; /* operations of this line are not called, none is waited for */
} Profile;

/* ---- what an operation must move ---- */

typedef struct {
    int rows, cols;
    double bytes; /* 0: too few to be of interest */
} Cost;

static Cost linear_cost(const Profile *p, const Linear *a)
{
    (void)p;
    int rows = 0, cols = a->product->w->cols;
    double weights = 0;
    for (int i = 0; i < a->n_products; i++) {
        rows += a->product[i].w->rows;
        weights += weight_bytes(a->product[i].w);
    }
    return (Cost){rows, cols, weights + 4.0 * a->n * (rows + cols)};
}

/* One state read, n written or none. */
static Cost delta_cost(const Profile *p, const DeltaMixer *a)
{
    int states = 1 + (p->leaves_records ? 0 : a->n);
    return (Cost){0, 0, 4.0 * states * a->delta.n_v_heads * a->delta.d_k * a->delta.d_v};
}

static Cost attention_cost(const Profile *p, const TreeAttention *a)
{
    size_t element = a->kv.type == KV_F32 ? 4 : 2;
    return (Cost){0, 0,
                  2.0 * (p->context + a->n) * a->kv.n_kv_heads * a->kv.head_dim * (double)element};
}

/* The experts that n rows choose on average, if they choose independently; the shared one where it
 * is inside. */
static Cost moe_cost(const Profile *p, const MoeFfn *a)
{
    (void)p;
    Weight up = {.type = a->type, .rows = a->width, .cols = a->dim};
    double missed = 1;
    for (int i = 0; i < a->n; i++)
        missed *= 1 - (double)a->n_top / a->n_experts;
    double used = a->n_experts * (1 - missed) + (a->shared ? 0 : 1);
    return (Cost){0, 0, used * 3 * weight_bytes(&up)};
}

static Cost routed_cost(const Profile *p, const RoutedFfn *a)
{
    return (Cost){0, 0, linear_cost(p, &a->router).bytes + moe_cost(p, &a->ffn).bytes};
}

static Cost no_cost(const Profile *p, const void *a)
{
    (void)p, (void)a;
    return (Cost){0, 0, 0};
}

#define COST(p, a)                                                                                 \
    _Generic((a), const Linear *                                                                   \
             : linear_cost, const DeltaMixer *                                                     \
             : delta_cost, const TreeAttention *                                                   \
             : attention_cost, const MoeFfn *                                                      \
             : moe_cost, const RoutedFfn *                                                         \
             : routed_cost, default                                                                \
             : no_cost)(p, a)

/* ---- the backend that looks at its watch ---- */

static int is_of(const Line *l, const char *op, Cost cost)
{
    return !strcmp(l->op, op) && l->rows == cost.rows && l->cols == cost.cols;
}

static void add(Profile *p, const char *op, Cost cost, double ms)
{
    Line *l = p->line;
    while (l < p->line + p->n_lines && !is_of(l, op, cost))
        l++;
    if (l == p->line + MAX_LINES) return; /* more shapes than any model has */
    if (l == p->line + p->n_lines) {
        p->n_lines++;
        *l = (Line){.op = op, .rows = cost.rows, .cols = cost.cols};
    }
    l->calls++;
    l->ms += ms;
    l->bytes += cost.bytes;
}

#define PROFILED(name, Args)                                                                       \
    static void profiled_##name(Backend *be, const Args *a)                                        \
    {                                                                                              \
        Profile *p = (Profile *)be;                                                                \
        Error err;                                                                                 \
        if (p->left_out) {                                                                         \
            if (!is_of(p->left_out, #name, COST(p, a))) p->real->name(p->real, a);                 \
            return;                                                                                \
        }                                                                                          \
        double begun = clock_ms();                                                                 \
        p->real->name(p->real, a);                                                                 \
        p->real->sync(p->real, &err);                                                              \
        add(p, #name, COST(p, a), clock_ms() - begun);                                             \
    }
MODEL_OPERATIONS(PROFILED)

#define PROFILED_SET(name, Args) p->be.name = profiled_##name;

static void upload(Backend *be, void *dst, const void *src, size_t bytes)
{
    Profile *p = (Profile *)be;
    p->real->upload(p->real, dst, src, bytes);
}

/* Where each operation is waited for nothing is recorded. */
static int replay(Backend *be, const ReplayKey *key, void (*record)(void *), void *ctx)
{
    Profile *p = (Profile *)be;
    if (p->left_out) return p->real->replay(p->real, key, record, ctx);
    record(ctx);
    return 1;
}

static void profile_open(Profile *p, Backend *real, int context)
{
    *p = (Profile){.be = *real, .real = real, .context = context};
    MODEL_OPERATIONS(PROFILED_SET)
    p->be.upload = upload;
    p->be.replay = replay;
}

/* ---- passes ---- */

typedef struct {
    Model model; /* a copy, whose backend is the profile while that is asked for */
    Profile profile;
    Memory mem;
    Forward forward;
    Records records;
    int replays; /* rows leave records where there are more than one */
    Batch batch;
    int context;
    uint64_t owner; /* of the recording of passes, */
    int n_passes;   /* so many */
    double rate;    /* bytes per second */
} Bench;

/* 1 where passes are launched as a whole. */
static int is_recorded(const Bench *b)
{
    return !b->profile.real->is_host;
}

/* Rows of random tokens, each the child of the one before, each with its own slot or a record. */
static void fill_batch(Bench *b, int n)
{
    int records = b->profile.leaves_records = b->replays && n > 1;
    b->forward.records = records ? &b->records : NULL;
    batch_clear(&b->batch);
    for (int i = 0; i < n; i++) {
        int32_t token =
            (int32_t)(philox_word(2, (uint32_t)i, 0, 0) % (uint32_t)b->model.config.n_vocab);
        int src = i && !records ? i - 1 : 0, dst = records ? -1 : i;
        int row = batch_add(&b->batch, token, b->context + i, 0, i - 1, src, dst, b->context + i,
                            b->context);
        b->batch.logit_row[b->batch.n_logits++] = row;
    }
}

/* The pass with what it needs of the host. */
static void queue_pass(Bench *b)
{
    forward_pass(&b->forward, &b->batch);
    if (!b->profile.leaves_records) return;
    int32_t row[MAX_ROWS];
    for (int i = 0; i < b->batch.n; i++)
        row[i] = i;
    records_fold(&b->records, &b->mem, &(KeptPath){0, b->batch.n, row}, 1);
}

/* n_passes of them, on what the last queue_pass has left on the device. */
static void record_passes(void *ctx)
{
    Bench *b = ctx;
    int n = b->batch.n;
    int n_keys = forward_n_keys(&b->mem, batch_last_pos(&b->batch, 0, n));
    for (int i = 0; i < b->n_passes; i++) {
        forward_queue(&b->forward, n, n_keys);
        if (b->profile.leaves_records) records_queue_fold(&b->records, &b->mem, 1);
    }
}

/* One pass through this backend, or what one of those recorded takes. */
static int run_pass(Bench *b, Backend *be, double *ms, Error *err)
{
    Backend *real = b->profile.real;
    int recorded = is_recorded(b) && (be == real || b->profile.left_out);
    double begun = clock_ms();
    b->model.backend = be;
    if (recorded)
        be->replay(be, &(ReplayKey){.owner = b->owner, .n = b->batch.n}, record_passes, b);
    else
        queue_pass(b);
    b->model.backend = real;
    if (real->sync(real, err)) return -1;
    *ms = (clock_ms() - begun) / (recorded ? b->n_passes : 1);
    return 0;
}

static int by_ms(const void *pa, const void *pb)
{
    const Line *a = pa, *b = pb;
    return a->ms > b->ms ? -1 : a->ms < b->ms;
}

static void print_lines(const Bench *b, int n)
{
    Profile p = b->profile;
    double all = 0;
    qsort(p.line, (size_t)p.n_lines, sizeof *p.line, by_ms);
    for (int i = 0; i < p.n_lines; i++)
        all += p.line[i].ms;
    printf("\n%d rows, by operation (%s):\n", n,
           is_recorded(b) ? "what a pass saves without it" : "each waited for");
    printf("%-18s %14s %6s %10s %7s %10s %8s\n", "operation", "matrix", "calls", "us", "share",
           "MB", "of rate");
    for (int i = 0; i < p.n_lines; i++) {
        const Line *l = &p.line[i];
        char shape[32] = "";
        if (l->rows) snprintf(shape, sizeof shape, "%dx%d", l->rows, l->cols);
        printf("%-18s %14s %6d %10.1f %6.1f%%", l->op, shape, l->calls / TRIES, l->ms * 1e3 / TRIES,
               l->ms / all * 100);
        if (l->bytes > 0 && b->rate > 0)
            printf(" %10.2f %7.0f%%", l->bytes / TRIES / 1e6,
                   l->bytes / (l->ms / 1e3) / b->rate * 100);
        printf("\n");
    }
}

/* The median of the batch's passes. */
static int time_passes(Bench *b, Backend *be, double *mid, Error *err)
{
    double ms[TRIES];
    b->owner = backend_new_owner(b->profile.real);
    for (int k = -2; k < TRIES; k++) /* the first two: warm, and recorded */
        if (run_pass(b, be, &ms[k < 0 ? 0 : k], err)) return -1;
    *mid = median(ms, TRIES);
    return 0;
}

/* Each line's time as what the pass takes beyond one without it. */
static int leave_out(Bench *b, Error *err)
{
    Profile *p = &b->profile;
    double all, without = 0;
    if (time_passes(b, p->real, &all, err)) return -1;
    for (int i = 0; i < p->n_lines; i++) {
        p->left_out = &p->line[i];
        int failed = time_passes(b, &p->be, &without, err);
        p->left_out = NULL;
        if (failed) return -1;
        p->line[i].ms = (all - without) * TRIES;
    }
    return 0;
}

/* Fills the batch; its rows lie on the device then. ms: about what a pass takes, so that of long
 * ones few are recorded together. */
static int begin_batch(Bench *b, int n, double ms, Error *err)
{
    Backend *real = b->profile.real;
    int fit = ms > 0 ? (int)fmin(RECORDING_MS / ms, MAX_PASSES) : MAX_PASSES;
    b->n_passes = fit > 0 ? fit : 1;
    fill_batch(b, n);
    if (!is_recorded(b)) return 0;
    queue_pass(b);
    return real->sync(real, err);
}

/* *ms: what the last pass took, or 0. */
static int warm_up(Bench *b, double *ms, Error *err)
{
    double begun = clock_ms();
    *ms = 0;
    if (begin_batch(b, 1, 0, err)) return -1;
    b->owner = backend_new_owner(b->profile.real);
    while (is_recorded(b) && clock_ms() - begun < WARM_MS)
        if (run_pass(b, b->profile.real, ms, err)) return -1;
    return 0;
}

/* Of a pass over n rows: weights, states, K and V. */
static double pass_bytes(const Bench *b, int n)
{
    const ModelConfig *c = &b->model.config;
    int states = b->profile.leaves_records ? 3 : 1 + n; /* the fold reads one and writes it */
    double keys = 2.0 * (double)b->mem.kv_row_bytes * c->n_full * (b->context + n);
    return model_pass_bytes(&b->model, n) + states * (double)memory_slot_bytes(c) + keys;
}

/* The pass as it runs, by rows; then its operations for a few of these. */
static int measure(Bench *b, Error *err)
{
    double mid[N_ROW_COUNTS], last;
    if (warm_up(b, &last, err)) return -1;
    printf("%5s %10s %7s %10s %8s\n", "rows", "ms", "over 1", "MB", "of rate");
    for (int i = 0; i < N_ROW_COUNTS; i++) {
        int n = row_counts[i];
        if (begin_batch(b, n, last, err)) return -1;
        if (time_passes(b, b->profile.real, &mid[i], err)) return -1;
        last = mid[i];
        double bytes = pass_bytes(b, n);
        printf("%5d %10.3f %7.2f %10.1f", n, last, last / mid[0], bytes / 1e6);
        if (b->rate > 0) printf(" %7.0f%%", bytes / (last / 1e3) / b->rate * 100);
        printf("\n");
    }
    for (int i = 0; i < N_ROW_COUNTS && row_counts[i] <= MOST_ROWS_BY_OP; i++) {
        double ms;
        int n = row_counts[i];
        if (begin_batch(b, n, mid[i], err)) return -1;
        b->profile.n_lines = 0;
        for (int k = 0; k < TRIES; k++)
            if (run_pass(b, &b->profile.be, &ms, err)) return -1;
        if (is_recorded(b) && leave_out(b, err)) return -1;
        print_lines(b, n);
    }
    return 0;
}

static int read_context(Bench *b, const char *text, Error *err)
{
    int most = b->model.config.ctx_limit - MAX_ROWS;
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : DEFAULT_CONTEXT < most ? DEFAULT_CONTEXT : most;
    if (n < 0 || n > most || (text && (end == text || *end)))
        return error_set(err, ERR_INPUT, "--contexts is '%.60s', one number up to %d is taken",
                         text ? text : "", most);
    b->context = (int)n;
    return 0;
}

enum { FORK_TRIES = 101, FORKS = 50 };
static const double PART_MS = 0.003;

static void short_part(const void *arg, int part, int n_parts)
{
    (void)arg, (void)part, (void)n_parts;
    double end = clock_ms() + PART_MS;
    while (clock_ms() < end) {
    }
}

/* Forks in a row, as in a pass. Parts of no length would all be the caller's. */
static void print_fork(int n_threads)
{
    double us[FORK_TRIES];
    Threads *t = threads_open(n_threads);
    for (int i = 0; i < FORK_TRIES; i++) {
        double begun = clock_ms();
        for (int k = 0; k < FORKS; k++)
            threads_run(t, threads_count(t), short_part, NULL);
        us[i] = ((clock_ms() - begun) / FORKS - PART_MS) * 1e3;
    }
    double mid = median(us, FORK_TRIES);
    printf("fork and join: %.2f us beyond its parts [%.2f..%.2f]\n", mid, us[0],
           us[FORK_TRIES - 1]);
    threads_close(t);
}

int bench_kernels_run(const Service *s, Error *err)
{
    Bench *b = mem_alloc(1, sizeof *b);
    b->model = *engine_model(s->engine);
    if (read_context(b, s->settings->contexts, err)) {
        mem_free(b);
        return -1;
    }
    int rows = b->context + MAX_ROWS, pages = pages_for(rows) + N_PAGE_SLACK;
    profile_open(&b->profile, b->model.backend, b->context);
    int failed = memory_open_plain(&b->mem, &b->model, (KvType)s->settings->kv_dtype, MAX_ROWS,
                                   pages, 1, rows, err);
    if (!failed) failed = memory_reserve(&b->mem, 0, rows);
    /* memory that nobody has written to is one page of zeros everywhere, which no cache misses */
    if (!failed)
        b->model.backend->zero(b->model.backend, b->mem.base,
                               (size_t)b->mem.n_frames * b->mem.frame_bytes);
    if (!failed) failed = forward_open(&b->forward, &b->model, &b->mem, MAX_ROWS, MAX_ROWS, err);
    EngineStatus status;
    engine_status(s->engine, &status);
    b->replays = status.state_mode == STATE_REPLAY;
    if (!failed && b->replays)
        failed = records_open(&b->records, &b->model, MAX_ROWS, MAX_ROWS, err);
    if (!failed) {
        batch_open(&b->batch, MAX_ROWS);
        b->rate = bandwidth_measure(b->model.backend);
        printf("model: %s; %s %s, %d threads; memory %.1f GB/s (%s); context %d, "
               "state mode %s\n",
               s->model_name, b->model.backend->name, b->model.backend->isa,
               b->model.backend->n_threads, b->rate / 1e9, bandwidth_way(b->model.backend),
               b->context, b->replays ? "replay" : "slots");
        if (b->model.backend->n_threads > 1) print_fork(b->model.backend->n_threads);
        failed = measure(b, err);
        batch_close(&b->batch);
    }
    records_close(&b->records);
    forward_close(&b->forward);
    memory_close(&b->mem);
    mem_free(b);
    return failed ? -1 : 0;
}
