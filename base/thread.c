/* thread.c: see thread.h. */
#include "base/thread.h"

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#include "base/available.h"

/*
 * As Linux mostly has it: grammars are compiled and followed by recursion, up to 3 MiB deep, and
 * where the system sets no limit (ulimit -s unlimited) glibc gives a thread 2.
 */
static const size_t STACK_BYTES = (size_t)8 << 20;

static int create(pthread_t *thread, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    int failed = pthread_attr_init(&attr);
    if (failed) return failed;
    failed = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (!failed) failed = pthread_create(thread, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return failed;
}

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name, Error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* its own fault, which comes to nobody else (lost_file.h) */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = create(thread, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return error_set(err, ERR_DEVICE, "cannot start the %s thread: %s", name, strerror(failed));
    pthread_setname_np(*thread, name); /* what top -H and perf show */
    return 0;
}

/* Read from the system once, not for each of thousands of matrices. */
static int processors(void)
{
    static atomic_int known;
    int n = atomic_load(&known);
    if (!n) atomic_store(&known, n = cpus_available());
    return n;
}

int thread_parts(int64_t n_elements)
{
    enum { PART_ELEMENTS = 1 << 18 }; /* fewer are done before a thread has started */
    if (n_elements < 2 * PART_ELEMENTS) return 1;
    int64_t n = n_elements / PART_ELEMENTS, most = processors();
    if (most > THREAD_PARTS) most = THREAD_PARTS;
    return (int)(n < most ? n : most);
}

typedef struct {
    void (*run)(void *arg, int part, int n_parts);
    void *arg;
    int part, n_parts;
} Part;

static void *run_part(void *arg)
{
    const Part *p = arg;
    p->run(p->arg, p->part, p->n_parts);
    return NULL;
}

void thread_each(int n_parts, void (*run)(void *arg, int part, int n_parts), void *arg,
                 const char *name)
{
    Part part[THREAD_PARTS];
    pthread_t thread[THREAD_PARTS] = {0};
    int started[THREAD_PARTS] = {0};
    assert(n_parts <= THREAD_PARTS);
    for (int i = 0; i < n_parts; i++) {
        part[i] = (Part){run, arg, i, n_parts};
        started[i] = i && !thread_start(&thread[i], run_part, &part[i], name, NULL);
    }
    for (int i = 0; i < n_parts; i++)
        if (started[i])
            pthread_join(thread[i], NULL);
        else
            run_part(&part[i]);
}

int thread_widen_first(Error *err)
{
    enum { LEAST_KIB = 2048 }; /* the kernels' own arrays alone take one MiB */
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) || stack.rlim_cur >= STACK_BYTES) return 0;
    stack.rlim_cur = stack.rlim_max < STACK_BYTES ? stack.rlim_max : STACK_BYTES;
    if (!setrlimit(RLIMIT_STACK, &stack) && stack.rlim_cur / 1024 >= LEAST_KIB) return 0;
    return error_set(err, ERR_DEVICE,
                     "the system allows a stack of %llu KiB (ulimit -s), must be %d at least",
                     (unsigned long long)stack.rlim_cur / 1024, LEAST_KIB);
}
