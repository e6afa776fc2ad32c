/* worker.c: see worker.h. */
#include "server/worker.h"

#include "base/mem.h"
#include "base/queue.h"
#include "base/thread.h"

typedef struct {
    Task task;
    int is_owed;
} Job;

struct Worker {
    Queue *todo, *done; /* of Job */
    int n, max, n_owed;
    pthread_t thread;
    int started;
};

static void *work(void *arg)
{
    Worker *w = arg;
    Job job;
    while (!queue_is_shut(w->todo)) {
        if (!queue_pop(w->todo, &job)) {
            queue_wait(w->todo);
            continue;
        }
        int more = job.task.run(job.task.owner);
        /* Both have room for all there can be; but one that is shut takes nothing. */
        if (!more || queue_try_push(w->todo, &job)) queue_push(w->done, &job);
    }
    return NULL;
}

Worker *worker_open(int max_tasks, Error *err)
{
    Worker *w = mem_alloc(1, sizeof *w);
    w->max = max_tasks;
    w->todo = queue_open(max_tasks + MAX_OWED, sizeof(Job), err);
    if (w->todo) w->done = queue_open(max_tasks + MAX_OWED, sizeof(Job), err);
    if (w->done && !thread_start(&w->thread, work, w, "worker", err)) {
        w->started = 1;
        return w;
    }
    worker_close(w);
    return NULL;
}

int worker_fd(const Worker *w)
{
    return queue_fd(w->done);
}

static void give_back(Worker *w, Queue *jobs)
{
    Job job;
    while (queue_pop(jobs, &job)) {
        if (job.is_owed)
            w->n_owed--;
        else
            w->n--;
        job.task.done(job.task.owner);
    }
}

void worker_read(Worker *w)
{
    queue_clear(w->done);
    give_back(w, w->done);
}

int worker_add(Worker *w, const Task *task)
{
    if (w->n == w->max) return -1;
    w->n++;
    return queue_try_push(w->todo, &(Job){*task, 0});
}

int worker_add_owed(Worker *w, const Task *task)
{
    if (!w || w->n_owed == MAX_OWED) return -1;
    w->n_owed++;
    return queue_try_push(w->todo, &(Job){*task, 1});
}

void worker_close(Worker *w)
{
    if (!w) return;
    if (w->started) {
        queue_shut(w->todo);
        pthread_join(w->thread, NULL);
        give_back(w, w->done);
        give_back(w, w->todo);
    }
    queue_close(w->done);
    queue_close(w->todo);
    mem_free(w);
}
