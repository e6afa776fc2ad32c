/*
 * weight.h: a matrix of the checkpoint, as the kernels read it.
 *
 * Row-major [rows][cols], y = x W', in the type of the file; FP8 is e4m3 with one f32 scale per
 * 128 x 128 block (blocks at the edges may be cut), W = fp8 * scale. INT8, made at load, for the
 * CPU alone: -127 .. 127 with one f32 scale for 128 neighbours in a row.
 */
#ifndef OFFSHOOT_KERNELS_WEIGHT_H
#define OFFSHOOT_KERNELS_WEIGHT_H

#include <stdint.h>

#include "kernels/inline.h"

enum { FP8_BLOCK = 128, INT8_BLOCK = 128 };

typedef enum { WEIGHT_NONE, WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8, WEIGHT_INT8 } WeightType;

typedef struct {
    WeightType type; /* WEIGHT_NONE: the model has no such matrix */
    int rows, cols;
    const void *data;   /* backend memory, aligned to its element */
    const float *scale; /* FP8: [ceil(rows / 128)], INT8: [rows]; [ceil(cols / 128)]; else NULL */
} Weight;

/* Bytes of one row of w's data. */
SHARED_INLINE int64_t weight_row_bytes(const Weight *w)
{
    return (int64_t)w->cols * (w->type == WEIGHT_F32 ? 4 : w->type == WEIGHT_BF16 ? 2 : 1);
}

/* Rows of scales: FP8 shares them by the 128 rows. */
SHARED_INLINE int64_t weight_scale_rows(const Weight *w)
{
    return w->type == WEIGHT_FP8    ? (w->rows + FP8_BLOCK - 1) / FP8_BLOCK
           : w->type == WEIGHT_INT8 ? w->rows
                                    : 0;
}

/* The scales of row r, one for 128 columns. */
SHARED_INLINE const float *weight_scales(const Weight *w, int r)
{
    return w->scale + (int64_t)(w->type == WEIGHT_FP8 ? r / FP8_BLOCK : r) *
                          ((w->cols + FP8_BLOCK - 1) / FP8_BLOCK);
}

/* Bytes of all of w, scales included; 0 where there is no such matrix. */
SHARED_INLINE double weight_bytes(const Weight *w)
{
    if (w->type == WEIGHT_NONE) return 0;
    int64_t n_scales = weight_scale_rows(w) * ((w->cols + FP8_BLOCK - 1) / FP8_BLOCK);
    return (double)(w->rows * weight_row_bytes(w) + n_scales * 4);
}

#endif
