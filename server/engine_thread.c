/*
 * engine_thread.c: see engine_thread.h.
 *
 * Why the command queue cannot overflow: a request takes over another's place only after that one's
 * DONE was read, so after its submit had left the queue. What the queue holds for one place is thus
 * at most a left-over cancel and pause, a submit, a cancel and a pause. Orders are counted by who
 * gives them.
 */
#include "server/engine_thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/thread.h"

enum {
    COMMANDS_PER_REQUEST = 5,
    MAX_REPORTS = 1024,
    SAVING_MS = 20, /* between two looks at what an idle engine saves */
    STATUS_WORDS = sizeof(EngineStatus) / sizeof(long),
};
static_assert(sizeof(EngineStatus) % sizeof(long) == 0, "a status is copied by words");

typedef enum {
    COMMAND_SUBMIT,
    COMMAND_CANCEL,
    COMMAND_PAUSE,
    COMMAND_RESUME,
    COMMAND_ORDER
} CommandType;

typedef struct {
    CommandType type;
    uint64_t id;
    const EngineRequest *request; /* SUBMIT */
    EngineOrder order;            /* ORDER */
} EngineCommand;

struct EngineThread {
    Engine *engine;
    Queue *commands, *reports;
    pthread_t thread;
    _Atomic int64_t stepped_ms;
    atomic_long status[STATUS_WORDS]; /* an EngineStatus */
};

/* Every field is whole, as none is wider than a word; two of them may be of different steps. */
static void publish_status(EngineThread *t)
{
    EngineStatus status;
    long word[STATUS_WORDS];
    engine_status(t->engine, &status);
    memcpy(word, &status, sizeof status);
    for (int i = 0; i < STATUS_WORDS; i++)
        atomic_store_explicit(&t->status[i], word[i], memory_order_relaxed);
}

void engine_thread_status(const EngineThread *t, EngineStatus *status)
{
    long word[STATUS_WORDS];
    for (int i = 0; i < STATUS_WORDS; i++)
        word[i] = atomic_load_explicit(&t->status[i], memory_order_relaxed);
    memcpy(status, word, sizeof *status);
}

/*
 * Events live in the engine until its next step: they are copied out before. Who reads them finds a
 * status that knows of them.
 */
static void report_events(EngineThread *t)
{
    publish_status(t);
    const Event *next = engine_next_event(t->engine);
    while (next) {
        EngineReport report = {.type = REPORT_EVENT, .id = next->id, .event = *next};
        next = engine_next_event(t->engine);
        report.more = next != NULL;
        /* Fails only when the queue was shut: then nobody wants to know. */
        queue_put(t->reports, &report);
    }
    queue_announce(t->reports); /* once for all tokens of a step */
}

static void report_error(EngineThread *t, ReportType type, uint64_t id, const Error *err)
{
    EngineReport report = {.type = type, .id = id, .error = *err};
    queue_push(t->reports, &report);
}

static void obey(EngineThread *t, const EngineCommand *c)
{
    Error err = {0};
    EngineReport paused = {.type = REPORT_PAUSED, .id = c->id}, obeyed = {.type = REPORT_OBEYED};
    switch (c->type) {
    case COMMAND_SUBMIT:
        if (engine_submit(t->engine, c->request, &err))
            report_error(t, REPORT_REFUSED, c->id, &err);
        break;
    case COMMAND_CANCEL:
        engine_cancel(t->engine, c->id);
        break;
    case COMMAND_PAUSE:
    case COMMAND_RESUME:
        engine_pause(t->engine, c->id, c->type == COMMAND_PAUSE);
        queue_push(t->reports, &paused);
        break;
    case COMMAND_ORDER:
        if (c->order == ORDER_FLUSH_CACHE) engine_flush_cache(t->engine);
        queue_push(t->reports, &obeyed);
        break;
    }
    report_events(t);
}

static void obey_commands(EngineThread *t)
{
    EngineCommand command;
    while (queue_pop(t->commands, &command))
        obey(t, &command);
}

static void note_step(EngineThread *t)
{
    atomic_store(&t->stepped_ms, (int64_t)clock_ms());
}

static void *engine_main(void *arg)
{
    EngineThread *t = arg;
    Error err = {0};
    for (;;) {
        /* Asked before the commands are read: what came before the shutting is still obeyed. */
        int shut = queue_is_shut(t->commands);
        obey_commands(t);
        if (shut) return NULL;
        int n_ran = engine_step(t->engine, &err);
        note_step(t);
        report_events(t);
        if (n_ran < 0) {
            report_error(t, REPORT_LOST, 0, &err);
            return NULL;
        }
        if (!n_ran) queue_wait_ms(t->commands, engine_is_saving(t->engine) ? SAVING_MS : -1);
    }
}

static void close_queues(EngineThread *t)
{
    queue_close(t->reports);
    queue_close(t->commands);
    mem_free(t);
}

EngineThread *engine_thread_start(Engine *engine, int max_requests, Error *err)
{
    EngineThread *t = mem_alloc(1, sizeof *t);
    t->engine = engine;
    t->commands =
        queue_open(max_requests * COMMANDS_PER_REQUEST + MAX_ORDERS, sizeof(EngineCommand), err);
    if (!t->commands) goto fail;
    t->reports = queue_open(MAX_REPORTS, sizeof(EngineReport), err);
    if (!t->reports) goto fail;
    publish_status(t);
    if (thread_start(&t->thread, engine_main, t, "engine", err)) goto fail;
    return t;
fail:
    close_queues(t);
    return NULL;
}

int engine_thread_fd(const EngineThread *t)
{
    return queue_fd(t->reports);
}

void engine_thread_woken(EngineThread *t)
{
    queue_clear(t->reports);
}

int engine_thread_next(EngineThread *t, EngineReport *report)
{
    return queue_pop(t->reports, report);
}

static void command(EngineThread *t, const EngineCommand *c)
{
    int failed = queue_try_push(t->commands, c);
    assert(!failed);
    (void)failed;
}

void engine_thread_submit(EngineThread *t, const EngineRequest *request)
{
    command(t, &(EngineCommand){.type = COMMAND_SUBMIT, .id = request->id, .request = request});
}

void engine_thread_cancel(EngineThread *t, uint64_t id)
{
    command(t, &(EngineCommand){.type = COMMAND_CANCEL, .id = id});
}

void engine_thread_pause(EngineThread *t, uint64_t id, int paused)
{
    command(t, &(EngineCommand){.type = paused ? COMMAND_PAUSE : COMMAND_RESUME, .id = id});
}

void engine_thread_order(EngineThread *t, EngineOrder order)
{
    command(t, &(EngineCommand){.type = COMMAND_ORDER, .order = order});
}

int64_t engine_thread_stepped_ms(const EngineThread *t)
{
    return atomic_load(&t->stepped_ms);
}

void engine_thread_stop(EngineThread *t)
{
    if (!t) return;
    queue_shut(t->commands);
    queue_shut(t->reports);
    pthread_join(t->thread, NULL);
    close_queues(t);
}
