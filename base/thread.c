/* thread.c: see thread.h. */
#include "base/thread.h"

#include <signal.h>
#include <string.h>

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name, Error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* its own fault, which comes to nobody else (lost_file.h) */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return error_set(err, ERR_DEVICE, "cannot start the %s thread: %s", name, strerror(failed));
    pthread_setname_np(*thread, name); /* what top -H and perf show */
    return 0;
}
