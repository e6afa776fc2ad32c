/*
 * cuda_graphs.h: runs of operations as CUDA graphs: one launch for all of them.
 */
#ifndef OFFSHOOT_KERNELS_CUDA_GRAPHS_H
#define OFFSHOOT_KERNELS_CUDA_GRAPHS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/cuda_backend.h"

/* A megabyte or two each; all row counts of trees and the usual chunks. */
enum { MAX_GRAPHS = 96 };

/* A run of operations; exec is NULL while its key has come only once. */
typedef struct {
    ReplayKey key;
    cudaGraphExec_t exec;
    uint64_t used; /* when, 0: never */
} CudaGraph;

/* Zeros at first. */
typedef struct {
    CudaGraph graph[MAX_GRAPHS];
    uint64_t n_replays;
    int off; /* operations are queued one by one */
    int is_recording;
} CudaGraphs;

/*
 * Backend.replay; the caller forgets terms before and after it. Where there is no memory for a
 * graph, or the device cannot capture (then for good), what it would do is queued instead.
 */
int cuda_graphs_replay(CudaGraphs *s, CudaBackend *b, const ReplayKey *key, void (*record)(void *),
                       void *ctx);

/* When nothing that was queued is under way any more. */
void cuda_graphs_close(CudaGraphs *s);

#endif
