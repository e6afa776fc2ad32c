/*
 * int8_block_dot.h: a block of linear_vec_int8.h in the products of bytes, both signed, of 64-bit
 * Arm's sdot.
 *
 * One of its instructions multiplies 4 columns of 4 outputs by 4 columns of a row of x, a word of a
 * register: 16 columns of a row are one load, and 4 rows have their 16 sums, their x and what is
 * read of W in 32 registers.
 */
#ifndef OFFSHOOT_KERNELS_INT8_BLOCK_DOT_H
#define OFFSHOOT_KERNELS_INT8_BLOCK_DOT_H

#include "kernels/int8_tile.h"

enum { DOT_COLS = 16, DOT_LINES = DOT_COLS / 4 };

/*
 * Block b of a row of x, as row i of a tile's block, whose terms begin at `to`: high bytes
 * [16 columns][row of the tile][16], then low ones. Fine q are 256 high + low, coarse ones high.
 */
INLINE void int8_pack_row(const float *x, int cols, int b, int n_rows, int i, uint32_t *to)
{
    const uint8x16_t order = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    int8_t *high = (int8_t *)to + i * DOT_COLS, *low = high + n_rows * INT8_BLOCK;
    Int8Words q;
    int8_round(x, cols, b * INT8_BLOCK, &q);
    for (int k = 0; k < INT8_BLOCK; k += DOT_COLS) {
        int16x8_t q0 = vld1q_s16(q.q + k), q1 = vld1q_s16(q.q + k + 8);
        int8x16_t below = vcombine_s8(vmovn_s16(q0), vmovn_s16(q1));
        int8x16_t above = vcombine_s8(vrshrn_n_s16(q0, 8), vrshrn_n_s16(q1, 8));
        if (!q.is_fine) above = below, below = vdupq_n_s8(0);
        vst1q_s8(high + k * n_rows, vqtbl1q_s8(above, order));
        vst1q_s8(low + k * n_rows, vqtbl1q_s8(below, order));
    }
    int8_x(to, n_rows)[i] = (Int8X){q.scale, 0, q.is_fine};
}

/* Adds the products of 4 lines and n rows of a tile from row `first` on; x is the first one's. */
INLINE void int8_dot_lines(int first, int n, const int8_t *x, const int8_t *w,
                           IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    int8x16_t xi[INT8_ONE_TILE];
    UNROLL
    for (int i = 0; i < n; i++)
        xi[i] = vld1q_s8(x + i * DOT_COLS);
    UNROLL
    for (int g = 0; g < DOT_LINES; g++) {
        UNROLL
        for (int o = 0; o < INT8_VECS; o++) {
            IntVec line = iv_load(w + g * INT8_LINE + o * 4 * VEC_N);
            UNROLL
            for (int i = 0; i < n; i++)
                q[o][first + i] = iv_dot_signed(q[o][first + i], line, xi[i], g);
        }
    }
}

/* The low bytes of n of a tile's n_rows from row `first` on. */
INLINE void int8_lows(int n_rows, int first, int n, int lines, const int8_t *x, const int8_t *w,
                      IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    x += first * DOT_COLS;
    for (int g = 0; g < lines; g += DOT_LINES)
        int8_dot_lines(first, n, x + g * 4 * n_rows, w + g * INT8_LINE, q);
}

/* q[outputs][row] = the sums of one block of so many lines, whose x and w begin here. */
INLINE void int8_block(Int8Turn turn, int n_panels, int n_rows, int lines, const uint32_t *x,
                       Int8Codes w, int8_t *room, Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    const Int8X *of = int8_x(x, n_rows);
    const int8_t *high = (const int8_t *)x, *low = high + n_rows * INT8_BLOCK;
    int n_fine = 0;
    (void)room;
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        n_fine += of[i].is_fine;
        UNROLL
        for (int o = 0; o < INT8_VECS; o++)
            q[o][i] = (IntVec){0};
    }
    for (int g = 0; g < lines; g += DOT_LINES) {
        UNROLL
        for (int l = 0; l < DOT_LINES; l++)
            ask(turn, n_panels, ahead, (g + l) * ahead.step);
        int8_dot_lines(0, n_rows, high + g * 4 * n_rows, w.at + g * INT8_LINE, q);
    }
    if (!n_fine) return;
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        if (!of[i].is_fine) continue;
        UNROLL
        for (int o = 0; o < INT8_VECS; o++)
            q[o][i] <<= 8;
    }
    if (2 * n_fine > n_rows) {
        int8_lows(n_rows, 0, n_rows, lines, low, w.at, q);
        return;
    }
    UNROLL
    for (int i = 0; i < n_rows; i++)
        if (of[i].is_fine) int8_lows(n_rows, i, 1, lines, low, w.at, q);
}

#endif
