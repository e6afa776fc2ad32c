/*
 * weight.h: a matrix of the checkpoint, as the kernels read it.
 *
 * Row-major [rows][cols], y = x W', in the type of the file; FP8 is e4m3 with one f32 scale per
 * 128 x 128 block (blocks at the edges may be cut), W = fp8 * scale.
 */
#ifndef OFFSHOOT_KERNELS_WEIGHT_H
#define OFFSHOOT_KERNELS_WEIGHT_H

#include <stdint.h>

#include "kernels/inline.h"

enum { FP8_BLOCK = 128 };

typedef enum { WEIGHT_NONE, WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8 } WeightType;

typedef struct {
    WeightType type; /* WEIGHT_NONE: the model has no such matrix */
    int rows, cols;
    const void *data;   /* backend memory, aligned to its element */
    const float *scale; /* FP8: [ceil(rows / 128)][ceil(cols / 128)], else NULL */
} Weight;

/* Bytes of one row of w's data. */
SHARED_INLINE int64_t weight_row_bytes(const Weight *w)
{
    return (int64_t)w->cols * (w->type == WEIGHT_F32 ? 4 : w->type == WEIGHT_BF16 ? 2 : 1);
}

/* Bytes of all of w, scales included; 0 where there is no such matrix. */
SHARED_INLINE double weight_bytes(const Weight *w)
{
    int64_t blocks = 0;
    if (w->type == WEIGHT_NONE) return 0;
    if (w->type == WEIGHT_FP8)
        blocks = (int64_t)((w->rows + FP8_BLOCK - 1) / FP8_BLOCK) *
                 ((w->cols + FP8_BLOCK - 1) / FP8_BLOCK);
    return (double)(w->rows * weight_row_bytes(w) + blocks * 4);
}

#endif
