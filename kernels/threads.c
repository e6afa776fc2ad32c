/*
 * threads.c: fork and join over a fixed set of helper threads.
 *
 * A job is cut into parts, and who is free takes the next one. So the caller waits only for parts
 * that a helper has begun, never for a helper that sleeps or has lost its core to somebody else:
 * at worst the caller does all of it.
 *
 * `open` holds the job's number and the parts that nobody has taken. Taking one is a
 * compare-and-swap, which fails when the job is over: so a helper that comes late may have read any
 * `fn` and `arg`, and does nothing with them. Both sides first spin, since the next kernel of a
 * forward pass follows in microseconds, then sleep on a condition variable, so that an idle engine
 * uses no CPU. Who goes to sleep says so in `asleep` and looks again; who has news changes the
 * counter and looks at `asleep`. In a total order of these four one of the two sees the other.
 *
 * Where others want the cores too, a helper does harm in two ways, and then rests for some
 * milliseconds. Woken on the caller's own core it would take the caller's place. And one that loses
 * its core in the middle of a part holds the caller up for a time slice. On two cores
 * that builds and tests kept busy the demonstration model decoded 62 tokens/s when the caller
 * waited for helpers, 131 so, 132 with one thread (medians of 10, in turns).
 */
#include "kernels/threads.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

enum {
    SPINS = 3000,   /* 30 to 60 us on Zen 4 and Sapphire Rapids */
    LONG_PARTS = 3, /* a part that takes so many times the caller's: its helper has lost its core */
    REST_TIMES = 8, /* what that has cost */
    MAX_REST_MS = 200,
    REST_MS = 4, /* after a meeting on the caller's core */
    CACHE_LINE = 64,
};

typedef void PartFn(const void *arg, int part, int n_parts);

/* Sleepers of one kind, and what wakes them. */
typedef struct {
    pthread_cond_t changed;
    atomic_int asleep;
} Bed;

struct Threads {
    int n;
    pthread_t *helper; /* [n - 1] */

    /* the job */
    _Atomic(PartFn *) fn;
    _Atomic(const void *) arg;
    atomic_int n_parts;
    atomic_int caller_cpu;

    char apart1[CACHE_LINE];
    _Atomic uint64_t open; /* number of the job << 32 | parts not taken */
    char apart2[CACHE_LINE];
    atomic_int left; /* parts not finished, the caller's all at once when it has no more to do */
    char apart3[CACHE_LINE];

    pthread_mutex_t mutex; /* to sleep with */
    Bed helpers, caller, resting;
    atomic_int leaving;
    _Atomic double patience; /* ms on the clock up to which the sleeping caller's wait is its due */
};

static void pause_cpu(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static uint32_t job_of(uint64_t open)
{
    return (uint32_t)(open >> 32);
}

static uint32_t parts_of(uint64_t open)
{
    return (uint32_t)open;
}

static void bed_make(Bed *b)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    atomic_init(&b->asleep, 0);
    pthread_cond_init(&b->changed, &attr);
    pthread_condattr_destroy(&attr);
}

/* After the change that sleepers wait for. */
static void wake(Threads *t, Bed *b)
{
    if (!atomic_load(&b->asleep)) return;
    /* an empty critical section: a sleeper is either before its last look or in its wait */
    pthread_mutex_lock(&t->mutex);
    pthread_mutex_unlock(&t->mutex);
    pthread_cond_broadcast(&b->changed);
}

/* 1 when this helper keeps the caller from its core. */
static int is_in_the_way(const Threads *t)
{
    return sched_getcpu() == atomic_load_explicit(&t->caller_cpu, memory_order_relaxed);
}

/* Waits until there is another job than `seen`. */
static void wait_for_job(Threads *t, uint32_t seen)
{
    for (int i = 0; i < SPINS && !is_in_the_way(t); i++) {
        if (job_of(atomic_load_explicit(&t->open, memory_order_acquire)) != seen) return;
        pause_cpu();
    }
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->helpers.asleep, 1);
    while (job_of(atomic_load(&t->open)) == seen)
        pthread_cond_wait(&t->helpers.changed, &t->mutex);
    atomic_fetch_sub(&t->helpers.asleep, 1);
    pthread_mutex_unlock(&t->mutex);
}

/* The caller has run n_run parts since `begun`. */
static void wait_for_helpers(Threads *t, int n_run, double begun)
{
    for (int i = 0; i < SPINS; i++) {
        if (!atomic_load_explicit(&t->left, memory_order_acquire)) return;
        pause_cpu();
    }
    double now = clock_ms();
    atomic_store(&t->patience, n_run ? now + LONG_PARTS * (now - begun) / n_run : (double)INFINITY);
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->caller.asleep, 1);
    while (atomic_load(&t->left))
        pthread_cond_wait(&t->caller.changed, &t->mutex);
    atomic_fetch_sub(&t->caller.asleep, 1);
    pthread_mutex_unlock(&t->mutex);
}

/* Runs parts of the job until none is open; how many. `open` is what was last seen of it. */
static int run_parts(Threads *t, uint64_t open)
{
    uint32_t job = job_of(open);
    int n_run = 0;
    while (job_of(open) == job && parts_of(open)) {
        PartFn *fn = atomic_load_explicit(&t->fn, memory_order_relaxed);
        const void *arg = atomic_load_explicit(&t->arg, memory_order_relaxed);
        int n_parts = atomic_load_explicit(&t->n_parts, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&t->open, &open, open - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, n_parts - (int)parts_of(open), n_parts);
        n_run++;
        open = atomic_load_explicit(&t->open, memory_order_acquire);
    }
    return n_run;
}

/* 1 when these were the last. */
static int finish_parts(Threads *t, int n)
{
    return atomic_fetch_sub(&t->left, n) == n;
}

/* Sleeps so long, whatever jobs come; not when all helpers are to leave. */
static void rest(Threads *t, double ms)
{
    struct timespec until;
    ms = ms < MAX_REST_MS ? ms : MAX_REST_MS;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long ns = until.tv_nsec + (long)(ms * 1e6);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&t->mutex);
    while (!atomic_load(&t->leaving) &&
           !pthread_cond_timedwait(&t->resting.changed, &t->mutex, &until)) {
    }
    pthread_mutex_unlock(&t->mutex);
}

static void *helper_main(void *arg)
{
    Threads *t = arg;
    for (uint32_t seen = 0, left_alone = 0;;) {
        wait_for_job(t, seen);
        /* first: who closes sets `leaving` before it changes `open`, for no job comes after that */
        uint64_t open = atomic_load_explicit(&t->open, memory_order_acquire);
        if (atomic_load(&t->leaving)) return NULL;
        if (is_in_the_way(t) && job_of(open) != left_alone) { /* a job that long can be shared */
            left_alone = job_of(open);
            rest(t, REST_MS);
            continue;
        }
        seen = job_of(open);
        int n = run_parts(t, open);
        if (!n || !finish_parts(t, n) || !atomic_load(&t->caller.asleep)) continue;
        double lost = clock_ms() - atomic_load(&t->patience);
        wake(t, &t->caller);
        if (lost > 0) rest(t, REST_TIMES * lost);
    }
}

/* Only while no part of the last job is open or at work. Returns what `open` becomes. */
static uint64_t publish(Threads *t, int n_parts, PartFn *fn, const void *arg)
{
    uint64_t open = atomic_load_explicit(&t->open, memory_order_relaxed);
    open = (uint64_t)(job_of(open) + 1) << 32 | (uint32_t)n_parts;
    atomic_store_explicit(&t->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&t->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&t->n_parts, n_parts, memory_order_relaxed);
    atomic_store_explicit(&t->caller_cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&t->left, n_parts, memory_order_relaxed);
    atomic_store(&t->open, open);
    wake(t, &t->helpers);
    return open;
}

Threads *threads_open(int n)
{
    assert(n >= 1);
    Threads *t = mem_alloc(1, sizeof *t);
    t->helper = mem_alloc((size_t)n, sizeof *t->helper);
    pthread_mutex_init(&t->mutex, NULL);
    bed_make(&t->helpers);
    bed_make(&t->caller);
    bed_make(&t->resting);
    atomic_init(&t->open, 0);
    atomic_init(&t->left, 0);
    atomic_init(&t->leaving, 0);
    atomic_init(&t->caller_cpu, -1);
    atomic_init(&t->patience, 0);

    for (t->n = 1; t->n < n; t->n++)
        if (thread_start(&t->helper[t->n - 1], helper_main, t, "compute", NULL)) {
            log_warn("threads asked=%d got=%d", n, t->n);
            break;
        }
    return t;
}

void threads_close(Threads *t)
{
    if (!t) return;
    atomic_store(&t->leaving, 1);
    publish(t, 0, NULL, NULL);
    pthread_mutex_lock(&t->mutex);
    pthread_cond_broadcast(&t->resting.changed);
    pthread_mutex_unlock(&t->mutex);
    for (int i = 0; i < t->n - 1; i++)
        pthread_join(t->helper[i], NULL);
    pthread_cond_destroy(&t->resting.changed);
    pthread_cond_destroy(&t->caller.changed);
    pthread_cond_destroy(&t->helpers.changed);
    pthread_mutex_destroy(&t->mutex);
    mem_free(t->helper);
    mem_free(t);
}

int threads_count(const Threads *t)
{
    return t->n;
}

void threads_run(Threads *t, int n_parts, PartFn *fn, const void *arg)
{
    assert(fn && n_parts >= 1);
    if (t->n == 1 || n_parts == 1) {
        for (int part = 0; part < n_parts; part++)
            fn(arg, part, n_parts);
        return;
    }
    double begun = clock_ms();
    int n = run_parts(t, publish(t, n_parts, fn, arg));
    if (!finish_parts(t, n)) wait_for_helpers(t, n, begun);
}
