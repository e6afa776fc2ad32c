/*
 * engine_thread.h: the thread that owns the engine, and the two queues to and from it.
 *
 * Commands go in, reports come out; beside them only a copy of the engine's status is shared. The
 * caller's side (one thread, the server's) never waits. The engine's side waits when nobody reads
 * its reports, so none is dropped.
 */
#ifndef OFFSHOOT_SERVER_ENGINE_THREAD_H
#define OFFSHOOT_SERVER_ENGINE_THREAD_H

#include "engine/engine.h"

typedef struct EngineThread EngineThread;

typedef enum {
    REPORT_EVENT,   /* event; EVENT_DONE is the last for its id */
    REPORT_PAUSED,  /* engine_thread_pause was obeyed; for an id that was DONE meanwhile, too */
    REPORT_OBEYED,  /* an order; they are obeyed as they came; no id */
    REPORT_REFUSED, /* error of engine_submit; nothing else follows for this id */
    REPORT_LOST,    /* error of engine_step: the device is gone, the thread has ended; no id */
} ReportType;

/* What the thread does between two steps, for no request. NONE: it lives. */
typedef enum { ORDER_NONE, ORDER_FLUSH_CACHE } EngineOrder;

/* Orders whose REPORT_OBEYED was not read yet, at most. */
enum { MAX_ORDERS = 16 };

typedef struct {
    ReportType type;
    int more; /* another event of the same step is on its way */
    uint64_t id;
    union {
        Event event;
        Error error;
    };
} EngineReport;

/*
 * Starts the thread. From here to engine_thread_stop the engine is its own. max_requests bounds how
 * many requests the caller has in the engine at a time: submitted, and neither DONE nor REFUSED
 * read yet.
 */
EngineThread *engine_thread_start(Engine *engine, int max_requests, Error *err);

/*
 * Readable when reports wait: call engine_thread_woken, then engine_thread_next until it gives 0.
 */
int engine_thread_fd(const EngineThread *t);
void engine_thread_woken(EngineThread *t);
int engine_thread_next(EngineThread *t, EngineReport *report);

/*
 * Lends *request and all it points to until its DONE or REFUSED is read, or the thread is stopped.
 */
void engine_thread_submit(EngineThread *t, const EngineRequest *request);

/* At most once for a request. Its DONE still comes (it may be on its way already). */
void engine_thread_cancel(EngineThread *t, uint64_t id);

/* Not before REPORT_PAUSED has come for the one before. */
void engine_thread_pause(EngineThread *t, uint64_t id, int paused);

void engine_thread_order(EngineThread *t, EngineOrder order);

/* Milliseconds, on the monotonic clock, at the end of the engine's last step. */
int64_t engine_thread_stepped_ms(const EngineThread *t);

/* The engine's status after its last step or command. Never waits. */
void engine_thread_status(const EngineThread *t, EngineStatus *status);

/* Ends the thread after the step that runs now and the commands given so far. */
void engine_thread_stop(EngineThread *t);

#endif
