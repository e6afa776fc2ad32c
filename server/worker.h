/*
 * worker.h: a thread for what takes long and needs neither engine nor sockets: reading a large body
 * and making tokens of it, so that the streams of others go on meanwhile. A task does so in slices,
 * so that the next large body does not wait for the end of a huge one.
 *
 * Nothing is shared with it: a task is its own while it runs there, and comes back whole.
 */
#ifndef OFFSHOOT_SERVER_WORKER_H
#define OFFSHOOT_SERVER_WORKER_H

#include "base/error.h"

typedef struct Worker Worker;

/* What a slice leaves. TASK_LONG: more, of which a slice may take a tenth of a second. */
enum { TASK_DONE, TASK_MORE, TASK_LONG };

typedef struct {
    int (*run)(void *owner);   /* a slice, on the worker's thread; not TASK_DONE: there is more */
    void (*done)(void *owner); /* on ours; run has given 0, unless the worker is being closed */
    void *owner;
} Task;

enum { MAX_OWED = 4096 };

/* At most max_tasks are there at a time, and MAX_OWED that are owed. */
Worker *worker_open(int max_tasks, Error *err);

/* To be polled for reading; then worker_read calls done for all tasks that have run. */
int worker_fd(const Worker *w);
void worker_read(Worker *w);

/*
 * Queues a task. Tasks take turns: each runs for a slice, then waits behind the others. 0, or -1:
 * there are max_tasks already.
 */
int worker_add(Worker *w, const Task *task);

/*
 * The same for what cannot be refused any more: work for a request that was let in. It has room of
 * its own. -1: there is none left, or w is NULL.
 */
int worker_add_owed(Worker *w, const Task *task);

/* Waits for the slice that runs now; done is called for all that are left. NULL is fine. */
void worker_close(Worker *w);

#endif
