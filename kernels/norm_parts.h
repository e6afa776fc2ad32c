/*
 * norm_parts.h: norms of rows that lanes hold by blocks of 128, as load_block of terms.h has them.
 */
#ifndef OFFSHOOT_KERNELS_NORM_PARTS_H
#define OFFSHOOT_KERNELS_NORM_PARTS_H

#include "kernels/terms.h"

/* x += delta of this lane's part of a block. Returns sum + squares. */
static __device__ __forceinline__ float add_block(float (&x)[2][2], const float (&delta)[2][2],
                                                  int has_delta, float sum)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        float y = x[i / 2][i % 2];
        if (has_delta) x[i / 2][i % 2] = y = y + delta[i / 2][i % 2];
        sum = fmaf(y, y, sum);
    }
    return sum;
}

static __device__ __forceinline__ float add_squares(const float (&x)[2][2], float sum)
{
    UNROLL
    for (int i = 0; i < 4; i++)
        sum = fmaf(x[i / 2][i % 2], x[i / 2][i % 2], sum);
    return sum;
}

static __device__ __forceinline__ float norm_scale(float squares, int dim, float eps)
{
    return 1.0f / sqrtf(squares / (float)dim + eps);
}

/* x = x * scale * w * silu(z) */
static __device__ __forceinline__ void gate_block(float (&x)[2][2], float scale,
                                                  const float (&w)[2][2], const float (&z)[2][2])
{
    UNROLL
    for (int i = 0; i < 4; i++)
        x[i / 2][i % 2] = x[i / 2][i % 2] * scale * w[i / 2][i % 2] * silu(z[i / 2][i % 2]);
}

#endif
