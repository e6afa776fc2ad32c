/*
 * thread.h: threads that leave signals to the one that started the program.
 */
#ifndef OFFSHOOT_BASE_THREAD_H
#define OFFSHOOT_BASE_THREAD_H

#include <pthread.h>

#include "base/error.h"

/*
 * Runs run(arg) on a new thread, which takes no signals but SIGBUS and has 8 MiB of stack; name has
 * up to 15 bytes. 0, or -1 and an Error that names it.
 */
int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name, Error *err);

/*
 * The same stack for the first thread, which has what the system gives it (ulimit -s), where it
 * runs the model, too: as much of it as may be had, or an Error where that is less than 2 MiB.
 */
int thread_widen_first(Error *err);

#endif
