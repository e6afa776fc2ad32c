/*
 * threads.h: the helper threads of the CPU kernels: fork, join, invisible above.
 *
 * A fixed number of threads and a fixed split of the work, so results never depend on timing;
 * kernels are written so that they do not depend on the number of threads either.
 */
#ifndef OFFSHOOT_KERNELS_THREADS_H
#define OFFSHOOT_KERNELS_THREADS_H

typedef struct Threads Threads;

/* n >= 1 threads, the caller being one of them. */
Threads *threads_open(int n);
void threads_close(Threads *t);
int threads_count(const Threads *t);

/* Runs fn(arg, part, n_parts) for every part, n_parts = threads_count, and waits for all. */
void threads_run(Threads *t, void (*fn)(const void *arg, int part, int n_parts), const void *arg);

#endif
