/*
 * thread.h: threads that leave signals to the one that started the program.
 */
#ifndef OFFSHOOT_BASE_THREAD_H
#define OFFSHOOT_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Runs run(arg) on a new thread, which takes no signals but SIGBUS and has 8 MiB of stack; name has
 * up to 15 bytes. 0, or -1 and an Error that names it.
 */
int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name, Error *err);

/*
 * What takes long, at load, in parts: thread_parts says into how many n elements are cut that take
 * some nanoseconds each, 1 to THREAD_PARTS and no more than there are processors. thread_each calls
 * run(arg, part, n_parts) for each part, on a thread of its own as far as the system has them, and
 * returns when all have ended.
 */
enum { THREAD_PARTS = 8 };
int thread_parts(int64_t n_elements);
void thread_each(int n_parts, void (*run)(void *arg, int part, int n_parts), void *arg,
                 const char *name);

/*
 * The same stack for the first thread, which has what the system gives it (ulimit -s), where it
 * runs the model, too: as much of it as may be had, or an Error where that is less than 2 MiB.
 */
int thread_widen_first(Error *err);

#endif
