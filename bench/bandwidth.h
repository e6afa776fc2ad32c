/*
 * bandwidth.h: what the memory of a backend gives, to compare speeds with.
 */
#ifndef OFFSHOOT_BENCH_BANDWIDTH_H
#define OFFSHOOT_BENCH_BANDWIDTH_H

#include "kernels/backend.h"

/*
 * Bytes per second, the best of a few tries: on a host read by as many threads as the backend has,
 * on a GPU read and written by a copy. 0 where there is no memory to try it with. What a plain loop
 * gets is a mark, no bound: on a CPU a kernel that reads more rows at a time was seen to get a
 * quarter more.
 */
double bandwidth_measure(Backend *be);
/* What was measured, in words. */
const char *bandwidth_way(const Backend *be);

#endif
