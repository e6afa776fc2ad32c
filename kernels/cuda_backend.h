/*
 * cuda_backend.h: the operations half of a backend that launches GPU kernels.
 *
 * The memory half is the device's (device_cuda.c), or the host's where the same kernels run as
 * fibers (tests/backend_simt.c).
 */
#ifndef OFFSHOOT_KERNELS_CUDA_BACKEND_H
#define OFFSHOOT_KERNELS_CUDA_BACKEND_H

#include "kernels/backend.h"
#include "kernels/ops_cuda.h"

typedef struct {
    Backend be;
    const CudaOps *ops;
    CudaContext context;
    TermsMemo memo;
    int failed;                   /* the first error of the device, a cudaError_t */
    char place[CUDA_PLACE_BYTES]; /* the launch that gave it, if one did */
} CudaBackend;

/* Fills in the operations; context must be set before the first is called. */
void cuda_backend_fill(CudaBackend *b, const CudaOps *ops);

/* Notes the first error of the device, a cudaError_t. Returns -1 where there is one. */
int cuda_note(CudaBackend *b, int failed);

/* From now on terms are kept, in memory that outlives b. */
void cuda_keep_terms(CudaBackend *b, void *memory, size_t bytes);
/* The memory half calls it before it queues anything that writes memory, and around replays. */
void cuda_forget_terms(CudaBackend *b);

/* 1 when two keys mean the same recorded run. */
int cuda_same_key(const ReplayKey *a, const ReplayKey *b);

#endif
