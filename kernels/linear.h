/*
 * linear.h: y = x W' for a few or many rows.
 *
 * A row of y depends on its row of x alone, by one order of operations whatever n is: that is what
 * makes verify and decode agree bit for bit (so no special case for n == 1).
 * Traffic: W once for up to some tens of rows; floor = bytes of W over the memory's rate.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_H
#define OFFSHOOT_KERNELS_LINEAR_H

#include "kernels/weight.h"

typedef struct {
    const Weight *w;
    int n;          /* rows of x and y */
    const float *x; /* [n] rows of w->cols, x_stride floats apart */
    int x_stride;
    float *y; /* [n] rows of w->rows, y_stride floats apart; not x */
    int y_stride;
    int prefill; /* see backend.h */
} Linear;

#endif
