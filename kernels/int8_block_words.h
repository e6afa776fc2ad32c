/*
 * int8_block_words.h: a block of linear_vec_int8.h in products of 16 bits: W is widened once for
 * all rows, whose pairs of neighbours it is multiplied by.
 */
#ifndef OFFSHOOT_KERNELS_INT8_BLOCK_WORDS_H
#define OFFSHOOT_KERNELS_INT8_BLOCK_WORDS_H

#include "kernels/int8_tile.h"

/*
 * Block b of a row of x, as row i of a tile's block, whose terms begin at `to`:
 * q [4 columns][row of the tile][4].
 */
INLINE void int8_pack_row(const float *x, int cols, int b, int n_rows, int i, uint32_t *to)
{
    Int8Words q;
    int8_round(x, cols, b * INT8_BLOCK, &q);
    for (int g = 0; g < INT8_BLOCK / 4; g++)
        memcpy(to + 2 * (g * n_rows + i), q.q + 4 * g, 4 * sizeof *q.q);
    int8_x(to, n_rows)[i] = (Int8X){q.scale, 0, 0};
}

/* q[outputs][row] = the sums of one block of so many lines, whose x and w begin here. */
INLINE void int8_block(Int8Turn turn, int n_panels, int n_rows, int lines, const uint32_t *x,
                       Int8Codes w, int8_t *room, Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    (void)room;
    UNROLL
    for (int o = 0; o < n_panels * INT8_VECS; o++) {
        UNROLL
        for (int i = 0; i < n_rows; i++)
            q[o][i] = (IntVec){0};
    }
    for (int g = 0; g < lines; g++, x += 2 * n_rows) {
        ask(turn, n_panels, ahead, g * ahead.step);
        UNROLL
        for (int o = 0; o < n_panels * INT8_VECS; o++) {
            const int8_t *at =
                w.at + g * INT8_LINE + o / INT8_VECS * w.panel_bytes + o % INT8_VECS * 4 * VEC_N;
            IntVec line = iv_load(at), even = iv_even(line), odd = iv_odd(line);
            UNROLL
            for (int i = 0; i < n_rows; i++) {
                q[o][i] = iv_dot(q[o][i], even, x[2 * i]);
                q[o][i] = iv_dot(q[o][i], odd, x[2 * i + 1]);
            }
        }
    }
}

#endif
