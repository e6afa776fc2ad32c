/*
 * load_floor.h: what the system's kernel alone takes of a thread that serves.
 *
 * A program with no HTTP, no JSON and no text in it, but with the server's threads, system calls
 * and bytes: a client writes to it over the loopback, an engine (which reads as much memory for a
 * step as a small model has weights, so that caches are as cold as in earnest) wakes it by an
 * eventfd. What a server takes beyond this it adds itself.
 */
#ifndef OFFSHOOT_BENCH_LOAD_FLOOR_H
#define OFFSHOOT_BENCH_LOAD_FLOOR_H

#include "base/error.h"

enum { FLOOR_MAX_CONNS = 8 };

/* CPU microseconds of the serving thread: for a request and its reply of some 1000 bytes. */
int load_floor_request(double *us, Error *err);

/* For a piece of a stream, where every wake-up brings one to each of n_conns. */
int load_floor_piece(int n_conns, double *us, Error *err);

#endif
