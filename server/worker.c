/* worker.c: see worker.h. */
#include "server/worker.h"

#include "base/mem.h"
#include "base/queue.h"
#include "base/thread.h"

struct Worker {
    Queue *todo, *done; /* of Task */
    int n, max;
    pthread_t thread;
    int started;
};

static void *work(void *arg)
{
    Worker *w = arg;
    Task task;
    while (!queue_is_shut(w->todo)) {
        if (!queue_pop(w->todo, &task)) {
            queue_wait(w->todo);
            continue;
        }
        int more = task.run(task.owner);
        /* Both have room for all there can be; but one that is shut takes nothing. */
        if (!more || queue_try_push(w->todo, &task)) queue_push(w->done, &task);
    }
    return NULL;
}

Worker *worker_open(int max_tasks, Error *err)
{
    Worker *w = mem_alloc(1, sizeof *w);
    w->max = max_tasks;
    w->todo = queue_open(max_tasks, sizeof(Task), err);
    if (w->todo) w->done = queue_open(max_tasks, sizeof(Task), err);
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

static void give_back(Worker *w, Queue *tasks)
{
    Task task;
    while (queue_pop(tasks, &task)) {
        w->n--;
        task.done(task.owner);
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
    return queue_try_push(w->todo, task);
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
