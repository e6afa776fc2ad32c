/*
 * counting_backend.h: a machine that has all the memory that is asked for and computes nothing, to
 * open models and engines that no machine here could hold and see what they take.
 *
 * Addresses are real and their bytes zero, but pages that nobody touches are none.
 */
#ifndef OFFSHOOT_TESTS_COUNTING_BACKEND_H
#define OFFSHOOT_TESTS_COUNTING_BACKEND_H

#include "kernels/backend.h"

/* Opens models; be->close gives all memory back, whatever was freed. */
Backend *counting_backend_open(void);

/* What engines that are opened from now on take it for: a CPU's backend or a GPU's. */
void counting_backend_set_host(Backend *be, int is_host);

#endif
