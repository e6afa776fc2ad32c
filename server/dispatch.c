/*
 * dispatch.c: see dispatch.h.
 *
 * An answer in the engine holds a place; its id there is the place and a running number, so that a
 * late report can never meet the wrong answer.
 */
#include "server/dispatch.h"

#include <assert.h>

#include "base/clock.h"
#include "base/mem.h"

enum { PLACE_BITS = 20 };

struct Dispatch {
    EngineThread *thread;
    DispatchProgress progress;
    void *ctx;
    Answer **place;  /* [n_places] */
    int *free_place; /* [n_free] */
    int n_places, n_free, max_live;
    Answer *first; /* the waiting line, by ticket; those with the same one by arrival */
    int n_waiting;
    uint64_t n_ids, n_arrived;
    long n_orders, n_obeyed;
    uint64_t served;    /* the ticket that was called last */
    int64_t busy_ms;    /* since when something runs */
    int64_t wanted_ms;  /* since when somebody wants a step */
    int64_t ended_ms;   /* when the last answer did; 0: none yet */
    double interval_ms; /* between two ends, lately, idle time left out */
    int blocked;        /* the engine was full: nothing more until it made a step */
    int more;           /* the last report was not the last of its step */
    int lost;
};

Dispatch *dispatch_open(Engine *engine, int n_places, int max_live, DispatchProgress progress,
                        void *ctx, Error *err)
{
    assert(n_places > 0 && n_places < 1 << PLACE_BITS);
    EngineThread *thread = engine_thread_start(engine, n_places, err);
    if (!thread) return NULL;
    Dispatch *d = mem_alloc(1, sizeof *d);
    *d = (Dispatch){.thread = thread,
                    .progress = progress,
                    .ctx = ctx,
                    .n_places = n_places,
                    .n_free = n_places,
                    .max_live = max_live};
    d->place = mem_alloc((size_t)n_places, sizeof(Answer *));
    d->free_place = mem_alloc((size_t)n_places, sizeof *d->free_place);
    for (int i = 0; i < n_places; i++)
        d->free_place[i] = i;
    return d;
}

/* Once; the DONE of an answer that was cancelled before is on its way. */
static void cancel_running(Dispatch *d, Answer *a)
{
    if (!a->cancelled) engine_thread_cancel(d->thread, a->request.id);
    a->cancelled = 1;
}

void dispatch_close(Dispatch *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_places; i++)
        if (d->place[i]) cancel_running(d, d->place[i]);
    engine_thread_stop(d->thread);
    mem_free((void *)d->place);
    mem_free(d->free_place);
    mem_free(d);
}

int dispatch_fd(const Dispatch *d)
{
    return engine_thread_fd(d->thread);
}

void dispatch_status(const Dispatch *d, EngineStatus *status)
{
    engine_thread_status(d->thread, status);
}

static int n_running(const Dispatch *d)
{
    return d->n_places - d->n_free;
}

int dispatch_n_live(const Dispatch *d)
{
    return n_running(d) + d->n_waiting;
}

static int wants_step(const Dispatch *d)
{
    for (int i = 0; i < d->n_places; i++)
        if (d->place[i] && !d->place[i]->pause_wanted) return 1;
    return 0;
}

/* Before something begins, or goes on after a pause. */
static void note_wanted(Dispatch *d)
{
    if (!wants_step(d)) d->wanted_ms = (int64_t)clock_ms();
}

int64_t dispatch_silent_ms(const Dispatch *d)
{
    if (!wants_step(d)) return 0;
    int64_t stepped = engine_thread_stepped_ms(d->thread);
    return (int64_t)clock_ms() - (stepped > d->wanted_ms ? stepped : d->wanted_ms);
}

int dispatch_has_room(const Dispatch *d)
{
    return dispatch_n_live(d) < d->max_live;
}

int dispatch_n_waiting(const Dispatch *d)
{
    return d->n_waiting;
}

static int goes_before(const Answer *a, const Answer *b)
{
    return a->ticket != b->ticket ? a->ticket < b->ticket : a->arrival < b->arrival;
}

/* Where it was before, when it comes back from a full engine. */
static void enqueue(Dispatch *d, Answer *a)
{
    Answer **at = &d->first;
    while (*at && goes_before(*at, a))
        at = &(*at)->next;
    a->next = *at;
    *at = a;
    a->state = ANSWER_WAITING;
    d->n_waiting++;
}

static void unqueue(Dispatch *d, Answer *a)
{
    Answer **at = &d->first;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    d->n_waiting--;
}

/* Moves answers from the line into the engine while there are places. */
static void feed(Dispatch *d)
{
    while (d->first && d->n_free && !d->blocked && !d->lost) {
        Answer *a = d->first;
        unqueue(d, a);
        if (!n_running(d)) d->busy_ms = (int64_t)clock_ms();
        note_wanted(d);
        int place = d->free_place[--d->n_free];
        d->place[place] = a;
        a->request.id = ++d->n_ids << PLACE_BITS | (uint64_t)place;
        a->state = ANSWER_RUNNING;
        if (a->ticket > d->served) d->served = a->ticket;
        a->request.paused = a->pause_sent = a->pause_acked = a->pause_wanted;
        engine_thread_submit(d->thread, &a->request);
    }
}

static void leave_place(Dispatch *d, const Answer *a)
{
    int place = (int)(a->request.id & ((1 << PLACE_BITS) - 1));
    d->place[place] = NULL;
    d->free_place[d->n_free++] = place;
}

/* A full engine is no error as long as it has something to do. */
static void refused(Dispatch *d, Answer *a, const Error *why)
{
    leave_place(d, a);
    if (why->code == ERR_BUSY && n_running(d) && !a->cancelled) {
        d->blocked = 1;
        enqueue(d, a);
        return;
    }
    a->state = ANSWER_DONE;
    a->finish = FINISH_CANCELLED;
    if (!a->cancelled) a->refused = *why;
    d->progress(d->ctx, a);
}

/* One message at a time; what was wanted meanwhile follows it. */
static void send_pause(Dispatch *d, Answer *a)
{
    if (a->pause_sent != a->pause_acked || a->pause_wanted == a->pause_sent) return;
    a->pause_sent = a->pause_wanted;
    engine_thread_pause(d->thread, a->request.id, a->pause_sent);
}

/* a has the place now, and is perhaps another than the one that was paused there. */
static void paused(Dispatch *d, Answer *a, uint64_t id)
{
    if (!a || a->request.id != id) return;
    a->pause_acked = a->pause_sent;
    send_pause(d, a);
}

void dispatch_pause(Dispatch *d, Answer *a, int pause)
{
    note_wanted(d);
    a->pause_wanted = pause;
    if (a->state == ANSWER_RUNNING && !a->cancelled && !d->lost) send_pause(d, a);
}

static void note_end(Dispatch *d)
{
    int64_t now = (int64_t)clock_ms();
    double interval = (double)(now - (d->ended_ms > d->busy_ms ? d->ended_ms : d->busy_ms));
    d->interval_ms += (interval - d->interval_ms) / (d->ended_ms ? 8 : 1);
    d->ended_ms = now;
}

int dispatch_retry_after(const Dispatch *d)
{
    double seconds = d->n_waiting * d->interval_ms / 1e3;
    return seconds < 1 ? 1 : seconds > 30 ? 30 : (int)seconds;
}

static void happened(Dispatch *d, Answer *a, const Event *event)
{
    if (event->type == EVENT_DONE) {
        leave_place(d, a);
        note_end(d);
    }
    d->blocked = 0;
    answer_event(a, event);
    d->progress(d->ctx, a);
}

/* Nothing comes from the engine any more: what it had ends here. */
static void lose_all(Dispatch *d, const Error *why)
{
    d->lost = 1;
    for (int i = 0; i < d->n_places; i++) {
        Answer *a = d->place[i];
        if (!a) continue;
        leave_place(d, a);
        a->state = ANSWER_DONE;
        a->refused = *why;
        d->progress(d->ctx, a);
    }
    while (d->first) {
        Answer *a = d->first;
        unqueue(d, a);
        a->state = ANSWER_DONE;
        a->refused = *why;
        d->progress(d->ctx, a);
    }
}

int dispatch_read(Dispatch *d, Error *err)
{
    EngineReport report;
    engine_thread_woken(d->thread);
    while (engine_thread_next(d->thread, &report)) {
        d->more = report.more;
        if (report.type == REPORT_OBEYED) {
            d->n_obeyed++;
            continue;
        }
        if (report.type == REPORT_LOST) {
            *err = report.error;
            lose_all(d, &report.error);
            return -1;
        }
        Answer *a = d->place[report.id & ((1 << PLACE_BITS) - 1)];
        if (report.type == REPORT_PAUSED) {
            paused(d, a, report.id);
            continue;
        }
        assert(a && a->request.id == report.id);
        if (report.type == REPORT_REFUSED)
            refused(d, a, &report.error);
        else
            happened(d, a, &report.event);
    }
    feed(d);
    return d->more;
}

/* Behind the ticket that is called now: those of a later one would wait as long as some come. */
void dispatch_add(Dispatch *d, Answer *a)
{
    a->ticket = d->served + 1 + (uint64_t)a->index;
    a->arrival = ++d->n_arrived;
    enqueue(d, a);
    feed(d);
}

void dispatch_cancel(Dispatch *d, Answer *a)
{
    if (a->state == ANSWER_RUNNING) {
        cancel_running(d, a);
    } else if (a->state == ANSWER_WAITING) {
        unqueue(d, a);
        a->state = ANSWER_DONE;
        a->finish = FINISH_CANCELLED;
        a->cancelled = 1;
        d->progress(d->ctx, a);
    }
}

long dispatch_order(Dispatch *d, EngineOrder order)
{
    if (d->n_orders - d->n_obeyed == MAX_ORDERS) return -1;
    engine_thread_order(d->thread, order);
    return ++d->n_orders;
}

long dispatch_n_obeyed(const Dispatch *d)
{
    return d->n_obeyed;
}
