/* samplers.c: see samplers.h. */
#include "tests/samplers.h"

#include "tests/mirror.h"

Backend *sampler[MAX_SAMPLERS], *best_sampler;
int n_samplers;

int open_samplers(void **state)
{
    (void)state;
    sampler[n_samplers++] = backend_ref_open(MAX_VOCAB);
    for (int i = 0; i < N_CPU_ISAS && !gpu_only(); i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            Backend *be = backend_cpu_open(threads, cpu_isas[i], MAX_VOCAB, NULL);
            if (be) sampler[n_samplers++] = be;
        }
    best_sampler = sampler[n_samplers - 1];
    n_samplers += mirror_open_gpus(sampler + n_samplers);
    if (gpu_only()) best_sampler = sampler[n_samplers - 1];
    return n_samplers > 1 ? 0 : -1; /* nothing to test is no success */
}

int close_samplers(void **state)
{
    (void)state;
    for (int b = 0; b < n_samplers; b++)
        sampler[b]->close(sampler[b]);
    return 0;
}
