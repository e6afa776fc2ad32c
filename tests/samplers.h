/*
 * samplers.h: every backend that this machine can run, for tests of the sampler.
 */
#ifndef OFFSHOOT_TESTS_SAMPLERS_H
#define OFFSHOOT_TESTS_SAMPLERS_H

#include "kernels/backend.h"
#include "tests/isas.h"

enum { MAX_VOCAB = 248320, MAX_SAMPLERS = 1 + 2 * N_CPU_ISAS + 2 };

/*
 * "ref", then each instruction set with 1 thread and with 3, then the GPU's kernels on the host,
 * last the GPU. With gpu_only() only ref and the GPU.
 */
extern Backend *sampler[MAX_SAMPLERS];
extern int n_samplers;
/* For many draws: the best of the CPU, or the GPU where that is all. */
extern Backend *best_sampler;

/* For cmocka's group set-up and tear-down. */
int open_samplers(void **state);
int close_samplers(void **state);

/* No filter, no penalty. */
static const SampleParams plain_params = {.temperature = 1, .top_p = 1, .repetition = 1};

#endif
