/*
 * linear_cpu.h: the inner part of linear, for the experts of moe_cpu.c too.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_CPU_H
#define OFFSHOOT_KERNELS_LINEAR_CPU_H

#include "kernels/ops_cpu.h"
#include "kernels/prefetch.h"
#include "kernels/vec.h"

/*
 * LINEAR_OUTS outputs are computed together, and start on a multiple of that, so that they share
 * their FP8 scales and are a panel of INT8; LINEAR_PANEL rows at most, by LINEAR_GROUP.
 */
enum {
    LINEAR_OUTS = 16,
    LINEAR_PANEL = VEC_TILES ? 512 : 48,
    LINEAR_GROUP = VEC_TILES ? 16 : 1,
};

/* Rows are cut into n_tiles tiles as even as they get: where one begins. */
INLINE int tile_begin(int n_rows, int n_tiles, int tile)
{
    return n_rows * tile / n_tiles;
}

/* And the tile that row i is in. */
INLINE int tile_of(int n_rows, int n_tiles, int i)
{
    return ((i + 1) * n_tiles - 1) / n_rows;
}

/* Rows of x as the products take them: as they are, or packed for all outputs. */
typedef struct {
    int n; /* <= LINEAR_PANEL */
    const float *const *x;
    const uint32_t *terms; /* NULL: as they are */
} LinearRows;

/* How many rows of x, LINEAR_PANEL at most, can be prepared in scratch, which must hold one. */
int ISA_NAME(linear_max_rows)(WeightType type, int cols, Scratch scratch);

/* Prepares n rows of x for weights of that type. They stay where they are until the last use. */
LinearRows ISA_NAME(linear_rows)(WeightType type, int cols, int n, const float *const *x,
                                 Scratch scratch);

/* y[i][r - begin] = sum_k x[i][k] w[r][k] for all rows and begin <= r < end. */
void ISA_NAME(linear_panel)(const Weight *w, int begin, int end, LinearRows rows, float *const *y);

#endif
