/*
 * load_cpu.h: what the server's thread takes for a request, in CPU time.
 *
 * The engine works on other threads, so the CPU clock of the server's thread is the cost of HTTP,
 * JSON, text and the system's calls alone. It is read around runs of one kind of request. Streams
 * are measured twice: one stream alone, whose every token wakes the thread and is sent by itself,
 * is the dearest case; eight at once share what a step of the engine costs.
 *
 * What the kernel takes of it (load_floor.h) is measured in the same rounds: no server can do with
 * less, so what the server adds is the rest.
 */
#ifndef OFFSHOOT_BENCH_LOAD_CPU_H
#define OFFSHOOT_BENCH_LOAD_CPU_H

#include <pthread.h>

#include "bench/load_client.h"

/* What is told apart, with the goals in microseconds. */
enum { N_LOAD_COSTS = 7 };
extern const struct LoadCost {
    const char *name, *key;
    double goal;
} load_costs[N_LOAD_COSTS];

/* Microseconds by load_costs, the least of some rounds; 0: it could not be measured. */
typedef struct {
    double us[N_LOAD_COSTS];     /* in all */
    double kernel[N_LOAD_COSTS]; /* of it what the kernel alone takes; 0 for a prompt token */
} LoadCpu;

/* thread is the server's. */
int load_cpu_measure(LoadCpu *cpu, const LoadTarget *target, pthread_t thread, Error *err);

#endif
