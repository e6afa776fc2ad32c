/*
 * threads.h: the helper threads of the CPU kernels: fork, join, invisible above.
 *
 * A fixed number of threads. Which of them takes a part of the work is left to chance, and how the
 * work is cut depends on their number: kernels are written so that neither shows in the results.
 */
#ifndef OFFSHOOT_KERNELS_THREADS_H
#define OFFSHOOT_KERNELS_THREADS_H

typedef struct Threads Threads;

/* n >= 1 threads, the caller being one of them. */
Threads *threads_open(int n);
void threads_close(Threads *t);
int threads_count(const Threads *t);

/*
 * Runs fn(arg, part, n_parts) once for every part and waits for all. A thread runs one part after
 * the other; 1 part runs here, for no more than a call.
 */
void threads_run(Threads *t, int n_parts, void (*fn)(const void *arg, int part, int n_parts),
                 const void *arg);

#endif
