/* thread.c: see thread.h. */
#include "base/thread.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>

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
