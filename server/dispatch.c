/*
 * dispatch.c: see dispatch.h.
 *
 * An answer in the engine holds a place; its id there is the place and a running number, so that a
 * late report can never meet the wrong answer.
 */
#include "server/dispatch.h"

#include <assert.h>

#include "base/mem.h"
#include "server/engine_thread.h"

enum { PLACE_BITS = 20 };

struct Dispatch {
    EngineThread *thread;
    DispatchProgress progress;
    void *ctx;
    Answer **place;  /* [max_running] */
    int *free_place; /* [n_free] */
    int max_running, n_free;
    Answer *first; /* the waiting line, by ticket */
    int n_waiting;
    uint64_t n_ids, n_tickets;
    int blocked; /* the engine was full: nothing more until it made a step */
    int more;    /* the last report was not the last of its step */
    int lost;
};

Dispatch *dispatch_open(Engine *engine, int max_running, DispatchProgress progress, void *ctx,
                        Error *err)
{
    assert(max_running > 0 && max_running < 1 << PLACE_BITS);
    EngineThread *thread = engine_thread_start(engine, max_running, err);
    if (!thread) return NULL;
    Dispatch *d = mem_alloc(1, sizeof *d);
    *d = (Dispatch){.thread = thread,
                    .progress = progress,
                    .ctx = ctx,
                    .max_running = max_running,
                    .n_free = max_running};
    d->place = mem_alloc((size_t)max_running, sizeof(Answer *));
    d->free_place = mem_alloc((size_t)max_running, sizeof *d->free_place);
    for (int i = 0; i < max_running; i++)
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
    for (int i = 0; i < d->max_running; i++)
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

static int n_running(const Dispatch *d)
{
    return d->max_running - d->n_free;
}

int dispatch_n_live(const Dispatch *d)
{
    return n_running(d) + d->n_waiting;
}

int dispatch_has_room(const Dispatch *d)
{
    return dispatch_n_live(d) < d->max_running;
}

static void enqueue(Dispatch *d, Answer *a)
{
    Answer **at = &d->first;
    while (*at && (*at)->ticket < a->ticket)
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
        int place = d->free_place[--d->n_free];
        d->place[place] = a;
        a->request.id = ++d->n_ids << PLACE_BITS | (uint64_t)place;
        a->state = ANSWER_RUNNING;
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

static void happened(Dispatch *d, Answer *a, const Event *event)
{
    if (event->type == EVENT_DONE) leave_place(d, a);
    d->blocked = 0;
    answer_event(a, event);
    d->progress(d->ctx, a);
}

/* Nothing comes from the engine any more: what it had ends here. */
static void lose_all(Dispatch *d, const Error *why)
{
    d->lost = 1;
    for (int i = 0; i < d->max_running; i++) {
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
        if (report.type == REPORT_LOST) {
            *err = report.error;
            lose_all(d, &report.error);
            return -1;
        }
        Answer *a = d->place[report.id & ((1 << PLACE_BITS) - 1)];
        assert(a && a->request.id == report.id);
        if (report.type == REPORT_REFUSED)
            refused(d, a, &report.error);
        else
            happened(d, a, &report.event);
    }
    feed(d);
    return d->more;
}

void dispatch_add(Dispatch *d, Answer *a)
{
    a->ticket = ++d->n_tickets;
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
