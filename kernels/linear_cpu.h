/*
 * linear_cpu.h: the inner part of linear, for the experts of moe_cpu.c too.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_CPU_H
#define OFFSHOOT_KERNELS_LINEAR_CPU_H

#include "kernels/ops_cpu.h"
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

/* Asks for the line `ahead` bytes further on; past the end of W it is a hint like any other. */
INLINE void prefetch_line(const void *at, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)ahead));
}

/*
 * The same into L2 alone. L1 has few places for lines that are on their way: a stream of W came at
 * 23 GB/s into L1 and at 29 into L2, of 31 that a plain loop reads (two cores of Zen 4).
 */
INLINE void prefetch_l2(const void *at, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)ahead), 0, 2);
}

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
