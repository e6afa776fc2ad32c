/*
 * threads.c: fork and join over a fixed set of helper threads.
 *
 * run() publishes a job by raising `job` and each helper answers by lowering `pending`. Both sides
 * first spin, since the next kernel of a forward pass follows in microseconds, then sleep on a
 * condition variable, so that an idle engine uses no CPU. The counters change under the mutex where
 * somebody may sleep on them, so no wake-up is lost; their release and acquire carry the data.
 */
#include "kernels/threads.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

enum { SPINS = 3000 }; /* 30 to 60 us on Zen 4 and Sapphire Rapids */

typedef struct {
    Threads *owner;
    int part;
    pthread_t thread;
} Helper;

struct Threads {
    int n;
    Helper *helper; /* [n - 1] */

    void (*fn)(const void *arg, int part, int n_parts); /* NULL: leave */
    const void *arg;
    atomic_uint job;    /* number of jobs published so far */
    atomic_int pending; /* helpers still at work on the last one */

    pthread_mutex_t mutex;
    pthread_cond_t job_changed, all_done;
};

static void pause_cpu(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Waits until the job number differs from seen. */
static void wait_for_job(Threads *t, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&t->job, memory_order_acquire) != seen) return;
        pause_cpu();
    }
    pthread_mutex_lock(&t->mutex);
    while (atomic_load_explicit(&t->job, memory_order_acquire) == seen)
        pthread_cond_wait(&t->job_changed, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
}

static void wait_for_helpers(Threads *t)
{
    for (int i = 0; i < SPINS; i++) {
        if (!atomic_load_explicit(&t->pending, memory_order_acquire)) return;
        pause_cpu();
    }
    pthread_mutex_lock(&t->mutex);
    while (atomic_load_explicit(&t->pending, memory_order_acquire))
        pthread_cond_wait(&t->all_done, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
}

static void *helper_main(void *arg)
{
    Helper *helper = arg;
    Threads *t = helper->owner;
    for (unsigned seen = 0;; seen++) {
        wait_for_job(t, seen);
        if (!t->fn) return NULL;
        t->fn(t->arg, helper->part, t->n);
        if (atomic_fetch_sub_explicit(&t->pending, 1, memory_order_acq_rel) == 1) {
            /* an empty critical section: the caller is either before its check or asleep */
            pthread_mutex_lock(&t->mutex);
            pthread_mutex_unlock(&t->mutex);
            pthread_cond_signal(&t->all_done);
        }
    }
}

static void publish(Threads *t, void (*fn)(const void *, int, int), const void *arg)
{
    t->fn = fn;
    t->arg = arg;
    atomic_store_explicit(&t->pending, t->n - 1, memory_order_relaxed);
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add_explicit(&t->job, 1, memory_order_release);
    pthread_mutex_unlock(&t->mutex);
    pthread_cond_broadcast(&t->job_changed);
}

Threads *threads_open(int n)
{
    assert(n >= 1);
    Threads *t = mem_alloc(1, sizeof *t);
    t->helper = mem_alloc((size_t)n, sizeof *t->helper);
    atomic_init(&t->job, 0);
    atomic_init(&t->pending, 0);
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->job_changed, NULL);
    pthread_cond_init(&t->all_done, NULL);

    for (t->n = 1; t->n < n; t->n++) {
        Helper *helper = &t->helper[t->n - 1];
        *helper = (Helper){.owner = t, .part = t->n};
        if (pthread_create(&helper->thread, NULL, helper_main, helper)) {
            log_warn("threads asked=%d got=%d", n, t->n);
            break;
        }
    }
    return t;
}

void threads_close(Threads *t)
{
    if (!t) return;
    publish(t, NULL, NULL);
    for (int i = 0; i < t->n - 1; i++)
        pthread_join(t->helper[i].thread, NULL);
    pthread_cond_destroy(&t->all_done);
    pthread_cond_destroy(&t->job_changed);
    pthread_mutex_destroy(&t->mutex);
    mem_free(t->helper);
    mem_free(t);
}

int threads_count(const Threads *t)
{
    return t->n;
}

void threads_run(Threads *t, void (*fn)(const void *arg, int part, int n_parts), const void *arg)
{
    assert(fn);
    if (t->n > 1) publish(t, fn, arg);
    fn(arg, 0, t->n);
    if (t->n > 1) wait_for_helpers(t);
}
