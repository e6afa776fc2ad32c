/*
 * linear_launch.h: what a launch of linear.cu multiplies: some matrices, one x. Tiles of a
 * kernel's number of rows are numbered through all of them.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_LAUNCH_H
#define OFFSHOOT_KERNELS_LINEAR_LAUNCH_H

#include "kernels/linear_tile.h"

typedef struct {
    Weight w;
    float *y;
    int64_t y_stride;
    unsigned end; /* of its tiles; they begin where the matrix before it ends */
} Matrix;

/* The matrices of one type, or of both 16-bit ones, those in bf16 last, and what they multiply. */
typedef struct {
    int n_matrices;
    Matrix matrix[MAX_PRODUCTS];
    unsigned end_fp8, end; /* of the tiles of FP8, of all */
    Terms x;               /* of the type; of bf16 */
    Terms x_fp8;           /* of both */
    int n;
    int n_groups;    /* of x's rows; a tile is of one */
    float *part;     /* NULL, or where a kernel of slices leaves them (linear_wgmma.h) */
    int prefill;     /* backend.h */
    TermOrder order; /* of x */
} LinearTerms;

/* The matrix that a tile of the launch belongs to; *own: which of that matrix's it is. */
static __device__ __forceinline__ const Matrix &matrix_of(const LinearTerms &a, unsigned tile,
                                                          unsigned *own)
{
    int i = 0;
    while (i + 1 < a.n_matrices && tile >= a.matrix[i].end)
        i++;
    *own = tile - (i ? a.matrix[i - 1].end : 0);
    return a.matrix[i];
}

/* Tiles of tile_rows rows of W and a group of x, for all matrices; returns how many. */
static unsigned place_tiles(LinearTerms *a, int tile_rows = TILE_ROWS)
{
    a->end = a->end_fp8 = 0;
    for (int i = 0; i < a->n_matrices; i++) {
        const Weight &w = a->matrix[i].w;
        a->end += (unsigned)((w.rows + tile_rows - 1) / tile_rows) * (unsigned)a->n_groups;
        a->matrix[i].end = a->end;
        if (w.type == WEIGHT_FP8) a->end_fp8 = a->end;
    }
    return a->end;
}

#endif
