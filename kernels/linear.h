/*
 * linear.h: y = x W' for a few or many rows, of up to four matrices at once.
 *
 * A row of y depends on its row of x alone, by one order of operations whatever n is: that is what
 * makes verify and decode agree bit for bit (so no special case for n == 1).
 * Traffic: W once for up to some tens of rows; floor = bytes of W over the memory's rate.
 *
 * Matrices that multiply the same x go in together: each y has the bits that its matrix gives
 * alone, but x is prepared once for each type of weights, and a GPU's grid holds all of one type.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_H
#define OFFSHOOT_KERNELS_LINEAR_H

#include "kernels/weight.h"

/* With PREFILL_FP8 each y has room for its rows up to a multiple of PREFILL_FP8_ROWS. */
enum { MAX_PRODUCTS = 4, PREFILL_FP8_ROWS = 16 };

typedef struct {
    const Weight *w; /* as many columns as those beside it */
    float *y;        /* [n] rows of w->rows, y_stride floats apart; neither x nor another's */
    int y_stride;
} LinearProduct;

typedef struct {
    int n;          /* rows of x and of each y */
    const float *x; /* [n] rows of w->cols, x_stride floats apart */
    int x_stride;
    int n_products; /* >= 1 */
    LinearProduct product[MAX_PRODUCTS];
    int prefill; /* see backend.h */
} Linear;

#endif
