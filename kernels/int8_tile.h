/*
 * int8_tile.h: what linear_vec_int8.h and its blocks (int8_block_*.h) agree on: how many rows and
 * outputs are multiplied together, where x lies, how blocks of W are read.
 */
#ifndef OFFSHOOT_KERNELS_INT8_TILE_H
#define OFFSHOOT_KERNELS_INT8_TILE_H

#include "kernels/linear_int8.h"

enum {
    INT8_VECS = INT8_ROWS / VEC_N, /* vectors that hold the outputs of a panel */
    INT8_TILE_ROWS = INT8_BYTES                    ? 8
                     : VEC_ISA == 512              ? 6
                     : VEC_ISA == 2 || INT8_SIGNED ? 4
                                                   : 2,
    /* rows that go into one tile all the same: 8 take 0.85 of the time of two tiles of 4 */
    INT8_ONE_TILE = VEC_ISA == 512 ? 8 : INT8_TILE_ROWS,
    INT8_PANELS = VEC_ISA == 512 ? 2 : 1,
    INT8_SUMS = INT8_PANELS * INT8_VECS,
    INT8_OUTS = INT8_PANELS * INT8_ROWS,
    /* Up to here rows are for vectors even where there are tiles, which give the same bits. The
     * products of a pass of 2 rows take 0.99 of the time that they take in tiles; of 4 the same,
     * but their x is packed in 1.2 times the time (two cores of Granite Rapids). */
    INT8_VEC_ROWS = VEC_TILES ? 3 : LINEAR_PANEL,
    INT8_MOST_TILES = (INT8_VEC_ROWS + INT8_TILE_ROWS - 1) / INT8_TILE_ROWS,
};

/*
 * How tiles of rows read a block of W. Several take turns in each block, so that its codes come
 * from L1 for all but the first, which leaves them there + 128, as products of bytes want them.
 * Where each tile passed all of the columns, and sums were copied to y, 16 rows took 1.08 of the
 * time, 24 1.3 and 48 1.4 (two cores of Cascade Lake).
 */
typedef enum {
    INT8_ALONE, /* one tile: codes as they lie in memory */
    INT4_ALONE, /* one tile: bits as they lie in memory */
    INT8_FIRST,
    INT8_NEXT,
} Int8Turn;

/* x is [tile][block] of q, in an order that the blocks have, and behind them of each row: */
typedef struct {
    float scale;
    int32_t offset; /* where codes are multiplied as codes + 128: what that adds, negative */
    int32_t is_fine;
} Int8X;

/* Those of a block that begins at x. */
INLINE Int8X *int8_x(const uint32_t *x, int n_rows)
{
    return (Int8X *)(uintptr_t)(x + n_rows * (INT8_BLOCK / 2));
}

INLINE int64_t int8_row_words(int cols)
{
    return (int64_t)int8_blocks(cols) * INT8_TERM_WORDS;
}

/*
 * What is asked for while a block is multiplied, a line with each of the block's: alone in each
 * panel what lies `step` bytes after the line before, panel_bytes between panels; else one for all.
 */
typedef struct {
    const int8_t *at;
    int64_t step, panel_bytes;
} Ahead;

INLINE int is_alone(Int8Turn turn)
{
    return turn <= INT4_ALONE;
}

/* So many bytes behind `at`. */
INLINE void ask(Int8Turn turn, int n_panels, Ahead ahead, int64_t bytes)
{
    prefetch_l2(ahead.at, bytes);
    if (is_alone(turn) && n_panels > 1) prefetch_l2(ahead.at, ahead.panel_bytes + bytes);
}

#endif
