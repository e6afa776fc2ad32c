/*
 * backend_simt.h: the GPU's kernels on the host: the same source, blocks run as fibers, in host
 * memory.
 */
#ifndef OFFSHOOT_TESTS_BACKEND_SIMT_H
#define OFFSHOOT_TESTS_BACKEND_SIMT_H

#include "kernels/backend.h"

/* One at a time in a process: kernels have one set of fibers. */
Backend *backend_simt_open(void);

#endif
