/*
 * backend_simt.h: the GPU's kernels on the host: the same source, blocks run as fibers, in host
 * memory.
 */
#ifndef OFFSHOOT_TESTS_BACKEND_SIMT_H
#define OFFSHOOT_TESTS_BACKEND_SIMT_H

#include "kernels/backend.h"

/* Kernels have one set of fibers: only one thread of a process may use such backends. */
Backend *backend_simt_open(void);

/*
 * From now on attention of prompts is another function (as if its scale were larger), still of each
 * row alone: so that the tests see which rows run as a prompt's.
 */
void simt_mark_prompts(Backend *be);

/* 1 for one of these: a GPU's blocks run as fibers, so large cases take long. */
int is_simt(const Backend *be);

enum { MAX_GPU_BACKENDS = 2 };

/* 1 when only the GPU is to be tested (make gpu-check): then it must be there. */
int gpu_only(void);

/*
 * Opens simt, and the GPU where there is one; with gpu_only the GPU alone, and none at all where
 * the CPU's instructions are what is tested (make amx-check). Returns how many.
 */
int open_gpu_backends(Backend *gpu[MAX_GPU_BACKENDS]);

#endif
