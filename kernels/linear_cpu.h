/*
 * linear_cpu.h: the inner part of linear, for the experts of moe_cpu.c too.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_CPU_H
#define OFFSHOOT_KERNELS_LINEAR_CPU_H

#include "kernels/vec.h"
#include "kernels/weight.h"

/*
 * LINEAR_OUTS outputs are computed together, and start on a multiple of that, so that they share
 * their FP8 scales; LINEAR_PANEL rows at most.
 */
enum { LINEAR_OUTS = 4, LINEAR_PANEL = 48 };

/* y[i][r - begin] = sum_k x[i][k] w[r][k] for n <= LINEAR_PANEL rows and begin <= r < end. */
void ISA_NAME(linear_panel)(const Weight *w, int begin, int end, int n, const float *const *x,
                            float *const *y);

#endif
