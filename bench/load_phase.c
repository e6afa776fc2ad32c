/* load_phase.c: see load_phase.h. */
#include "bench/load_phase.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/splitmix.h"
#include "bench/quantiles.h"

enum { SILENCE_S = 120, MAX_COMPLAINTS = 5, MAX_EVENTS_SEEN = 6 };

static const double BUCKET = 1.02, SHORTEST_MS = 1e-3;

struct Worker;

typedef struct {
    struct event_base *base;
    LoadCases *cases;
    const LoadPlan *plan;
    LoadResult *result;
    struct Worker *worker; /* [plan->n_conns] */
    char *sent, *ended;    /* [plan->n_requests] */
    int n_sent;            /* all before this one are sent */
    int n_ended, n_complaints;
    double start_ms, served_ms; /* the server did other than say 429: at first, when it began */
} Phase;

/* A connection and the request it is at. */
typedef struct Worker {
    Phase *phase;
    LoadConn *conn;
    struct event *pause; /* after a 429 */
    LoadCase *one;
    int idle; /* no request could be sent */
    int number, streamed;
    int n_events, drop_after; /* vanish at this event; -1: stay */
    double sent_ms, first_ms, last_ms;
} Worker;

/* ---- times ---- */

static void times_add(Times *t, double ms)
{
    int i = ms > SHORTEST_MS ? (int)(log(ms / SHORTEST_MS) / log(BUCKET)) : 0;
    t->count[i < TIME_BUCKETS ? i : TIME_BUCKETS - 1]++;
    t->n++;
}

double times_quantile(const Times *t, double share)
{
    long before = 0, place = quantile_place(t->n, share);
    int i = 0;
    if (!t->n) return 0;
    while (before + t->count[i] <= place)
        before += t->count[i++];
    return SHORTEST_MS * pow(BUCKET, i + 0.5);
}

/* ---- choosing ---- */

/* Word i of the random numbers that belong to request k. */
static uint64_t draw(const LoadPlan *plan, int k, int i)
{
    return splitmix_mix(plan->seed + SPLITMIX_STEP * ((uint64_t)k * 4 + (uint64_t)i + 1));
}

static int percent(const LoadPlan *plan, int k, int i, int share)
{
    return (int)(draw(plan, k, i) % 100) < share;
}

static void choose(Worker *w, int k)
{
    const LoadPlan *plan = w->phase->plan;
    int at = (int)(draw(plan, k, 0) % (uint64_t)plan->n_cases);
    if (plan->order != CASES_BY_LOT) at = plan->order == CASES_COLLECT ? k / 2 : k;
    w->number = k;
    w->one = &w->phase->cases->list[plan->first + at];
    w->streamed = percent(plan, k, 1, plan->streamed_percent);
    if (plan->order != CASES_BY_LOT) w->streamed = plan->order == CASES_IN_TURN || k % 2;
    w->drop_after = -1;
    if (percent(plan, k, 2, plan->dropped_percent))
        w->drop_after = w->streamed ? (int)(draw(plan, k, 3) % MAX_EVENTS_SEEN) : 0;
}

/* ---- a request's course ---- */

static void send_again(Worker *w)
{
    const char *body = w->one->body[w->streamed];
    load_conn_send(w->conn, w->one->path, body, strlen(body));
}

static void send_request(Worker *w)
{
    w->n_events = 0;
    w->sent_ms = w->first_ms = w->last_ms = clock_ms();
    send_again(w);
}

/* The first request that need not wait for another; -1: there is none now. */
static int next_request(Phase *p)
{
    const LoadPlan *plan = p->plan;
    while (p->n_sent < plan->n_requests && p->sent[p->n_sent])
        p->n_sent++;
    for (int k = p->n_sent; k < plan->n_requests; k++)
        if (!p->sent[k] && (!plan->after || plan->after[k] < 0 || p->ended[plan->after[k]]))
            return k;
    return -1;
}

static void start_next(Worker *w)
{
    Phase *p = w->phase;
    int k = next_request(p);
    w->idle = k < 0;
    if (w->idle) return;
    p->sent[k] = 1;
    if (p->plan->prepare) p->plan->prepare(p->plan->ctx, k);
    choose(w, k);
    send_request(w);
}

/* What waited for this request may be sent by a connection that had nothing to do. */
static void end_request(Worker *w)
{
    Phase *p = w->phase;
    p->ended[w->number] = 1;
    if (++p->n_ended == p->plan->n_requests) {
        event_base_loopbreak(p->base);
        return;
    }
    start_next(w);
    for (int i = 0; i < p->plan->n_conns; i++)
        if (p->worker[i].idle) start_next(&p->worker[i]);
}

static void complain(const Worker *w, const char *what, const char *why)
{
    if (w->phase->n_complaints++ >= MAX_COMPLAINTS) return;
    log_error("load_%s connections=%d request=%d case='%s' streamed=%d why='%s'", what,
              w->phase->plan->n_conns, w->number, w->one->name, w->streamed, why);
}

static void vanish(Worker *w)
{
    w->phase->result->n_dropped++;
    load_conn_drop(w->conn);
    end_request(w);
}

static void on_sent(void *ctx)
{
    Worker *w = ctx;
    if (!w->drop_after) vanish(w);
}

static void on_events(void *ctx, int n_events)
{
    Worker *w = ctx;
    double now = clock_ms();
    LoadResult *r = w->phase->result;
    w->phase->served_ms = now;
    if (w->n_events)
        times_add(&r->between, now - w->last_ms);
    else
        w->first_ms = now;
    w->last_ms = now;
    w->n_events += n_events;
    if (w->drop_after >= 0 && w->n_events >= w->drop_after) vanish(w);
}

static void on_failed(void *ctx, const char *why, int stale)
{
    Worker *w = ctx;
    if (stale && w->phase->plan->order == CASES_IN_TURN) { /* at another server's, as its clients */
        send_again(w);
        return;
    }
    w->phase->result->n_lost++;
    complain(w, "lost", why);
    end_request(w);
}

static void on_pause_over(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    send_request(ctx);
}

/*
 * Between half and one and a half times what the server asks for, so that they do not come back
 * together. 0: it has said nothing but 429 for as long as a connection may be silent, or would
 * have.
 */
static int send_again_later(Worker *w, int seconds)
{
    LoadResult *r = w->phase->result;
    uint64_t part = draw(w->phase->plan, w->number, (int)(r->n_retried % 1000) + 4) % 1000;
    uint64_t us = (uint64_t)(seconds > 0 ? seconds : 1) * (500 + part) * 1000;
    struct timeval pause = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (long)(us % 1000000)};
    if (clock_ms() + (double)us / 1e3 > w->phase->served_ms + SILENCE_S * 1e3) return 0;
    r->n_retried++;
    event_add(w->pause, &pause);
    return 1;
}

static void note_turn(const Worker *w, const LoadAnswer *got, int differs)
{
    const LoadPlan *plan = w->phase->plan;
    if (!plan->turn) return;
    plan->turn[w->number] = (LoadTurn){.answered = 1,
                                       .differs = differs,
                                       .n_prompt = got->n_prompt,
                                       .n_tokens = got->n_tokens,
                                       .work = got->work,
                                       .sent_ms = w->sent_ms - w->phase->start_ms,
                                       .first_ms = w->first_ms - w->sent_ms,
                                       .ms = clock_ms() - w->sent_ms};
}

static void take_answer(Worker *w, const StrBuf *body)
{
    LoadResult *r = w->phase->result;
    LoadAnswer got;
    Error err = {0};
    int bad = load_answer_read(&got, strbuf_str(body), body->len, w->streamed, &err);
    if (!bad && !w->one->alone.form) {
        assert(w->phase->plan->order != CASES_BY_LOT);
        note_turn(w, &got, 0);
        w->one->alone = got;
        got = (LoadAnswer){0};
    } else if (!bad) {
        bad = load_answer_differs(&w->one->alone, &got, &err);
        note_turn(w, &got, bad);
    }
    if (bad) {
        r->n_wrong++;
        complain(w, "wrong", err.msg);
    } else {
        r->n_answered++;
        r->n_prompt += w->one->alone.n_prompt;
        r->n_tokens += w->one->alone.n_tokens;
        if (w->streamed && w->one->alone.n_tokens)
            times_add(&r->first_token, w->first_ms - w->sent_ms);
    }
    load_answer_free(&got);
}

/* What a server says in its error, or all that it sent. */
static char *refusal(const StrBuf *body)
{
    json_t *root = json_loadb(strbuf_str(body), body->len, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    char *copy = mem_strdup(message ? message : strbuf_str(body));
    json_decref(root);
    return copy;
}

/* A prompt that does not fit the server's context is no fault: the case is not asked again. */
static int leave_out(Worker *w, const LoadReply *reply)
{
    const char *says = strbuf_str(reply->body);
    if (w->phase->plan->order == CASES_BY_LOT || reply->status != 400) return 0;
    if (!strstr(says, "context_length_exceeded") && !strstr(says, "exceed_context_size")) return 0;
    if (!w->one->left_out) w->one->left_out = refusal(reply->body);
    w->phase->result->n_answered++;
    return 1;
}

static void on_reply(void *ctx, const LoadReply *reply)
{
    Worker *w = ctx;
    if (reply->status == 429 && send_again_later(w, reply->retry_after_s)) return;
    if (reply->status != 429) w->phase->served_ms = clock_ms();
    if (reply->status == 200) {
        take_answer(w, reply->body);
    } else if (!leave_out(w, reply)) {
        char why[256];
        snprintf(why, sizeof why, "%d %s", reply->status, strbuf_str(reply->body));
        w->phase->result->n_refused++;
        complain(w, "refused", why);
    }
    end_request(w);
}

/* ---- the phase ---- */

void load_phase_run(const LoadTarget *target, LoadCases *cases, const LoadPlan *plan,
                    LoadResult *result)
{
    static const LoadCallbacks callbacks = {on_sent, on_events, on_reply, on_failed};
    Phase p = {.base = event_base_new(), .cases = cases, .plan = plan, .result = result};
    Worker *workers = mem_alloc((size_t)plan->n_conns, sizeof *workers);
    *result = (LoadResult){0};
    p.worker = workers;
    p.sent = mem_alloc((size_t)plan->n_requests + 1, 1);
    p.ended = mem_alloc((size_t)plan->n_requests + 1, 1);
    p.start_ms = p.served_ms = clock_ms();
    for (int i = 0; i < plan->n_conns; i++) {
        Worker *w = &workers[i];
        w->phase = &p;
        w->conn = load_conn_open(p.base, target, SILENCE_S, &callbacks, w);
        w->pause = evtimer_new(p.base, on_pause_over, w);
        start_next(w);
    }
    if (plan->n_requests) event_base_dispatch(p.base);
    result->seconds = (clock_ms() - p.start_ms) / 1e3;
    for (int i = 0; i < plan->n_conns; i++) {
        load_conn_close(workers[i].conn);
        event_free(workers[i].pause);
    }
    mem_free(workers);
    mem_free(p.sent);
    mem_free(p.ended);
    event_base_free(p.base);
}

long load_result_bad(const LoadResult *r)
{
    return r->n_wrong + r->n_lost + r->n_refused;
}
