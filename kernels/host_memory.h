/*
 * host_memory.h: the memory half of a backend whose memory is the host's.
 *
 * Operations run before the call returns, so sync has nothing to wait for and cannot fail.
 */
#ifndef OFFSHOOT_KERNELS_HOST_MEMORY_H
#define OFFSHOOT_KERNELS_HOST_MEMORY_H

#include "kernels/backend.h"

/* Fills is_host and the functions that are no operations. */
void host_memory_fill(Backend *be);

#endif
