/*
 * worker.h: a thread for what takes long and needs neither engine nor sockets: reading a large body
 * and making tokens of it, so that the streams of others go on meanwhile.
 *
 * Nothing is shared with it: a task is its own while it runs there, and comes back whole.
 */
#ifndef OFFSHOOT_SERVER_WORKER_H
#define OFFSHOOT_SERVER_WORKER_H

#include "base/error.h"

typedef struct Worker Worker;

typedef struct {
    void (*run)(void *owner);  /* on the worker's thread */
    void (*done)(void *owner); /* on ours; run was called, unless the worker is being closed */
    void *owner;
} Task;

/* At most max_tasks are there at a time. */
Worker *worker_open(int max_tasks, Error *err);

/* To be polled for reading; then worker_read calls done for all tasks that have run. */
int worker_fd(const Worker *w);
void worker_read(Worker *w);

/* Queues a task, first come first served. 0, or -1: there are max_tasks already. */
int worker_add(Worker *w, const Task *task);

/* Waits for the task that runs now; done is called for all that are left. NULL is fine. */
void worker_close(Worker *w);

#endif
