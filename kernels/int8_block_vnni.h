/*
 * int8_block_vnni.h: a block of linear_vec_int8.h in VNNI's products of bytes, an unsigned one
 * times a signed one: the high ones of x, and behind them the low ones of fine rows, alone where
 * few are. At 1 of 20 fine, as behind random SwiGLUs, 8 rows of such a matrix take 0.65 of the time
 * that they take together.
 *
 * The codes of INT4 are made of their bits in registers, as one tile of rows needs them; for more
 * rows in the cache (unpack_int4.h).
 */
#ifndef OFFSHOOT_KERNELS_INT8_BLOCK_VNNI_H
#define OFFSHOOT_KERNELS_INT8_BLOCK_VNNI_H

#include "kernels/int8_tile.h"

/*
 * Block b of a row of x, as row i of a tile's block, whose terms begin at `to`: high bytes
 * [4 columns][row of the tile][4], then low ones [row][256]. Fine q are 256 high + low, coarse ones
 * high. High ones row by row are packed faster, but read in so many streams beside W's that 4 and 8
 * rows took 1.1 and 1.2 times as long.
 */
INLINE void int8_pack_row(const float *x, int cols, int b, int n_rows, int i, uint32_t *to)
{
    Int8X *of = int8_x(to, n_rows) + i;
    uint32_t word[INT8_BLOCK / 4], *lows = to + (n_rows + i) * (INT8_BLOCK / 4);
    __m512i sum = _mm512_setzero_si512();
    Int8Bytes q = int8_round(x, cols, b * INT8_BLOCK);
    for (int s = 0; s < INT8_BLOCK / 64; s++) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), q.high[s]);
        _mm512_storeu_si512(word + 16 * s, q.high[s]);
        _mm512_storeu_si512(lows + 16 * s, q.low[s]);
    }
    for (int g = 0; g < INT8_BLOCK / 4; g++)
        to[g * n_rows + i] = word[g];
    *of = (Int8X){q.scale, -128 * _mm512_reduce_add_epi32(sum), q.is_fine};
}

/* A line of codes + 128, or of them as codes. */
INLINE IntVec int8_flip(IntVec line)
{
    return _mm512_xor_si512(line, _mm512_set1_epi8(-128));
}

/* A line of codes as a turn finds them when it has multiplied the high bytes. */
INLINE IntVec int8_line(Int8Turn turn, const int8_t *at)
{
    return is_alone(turn) ? iv_load(at) : int8_flip(iv_load(at));
}

/* Adds the products of the low bytes of n_rows that begin at x: zeros where a row is coarse. */
INLINE void int8_low_together(Int8Turn turn, int n_panels, int n_rows, int lines, const uint32_t *x,
                              Int8Codes w, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    for (int g = 0; g < lines; g++) {
        IntVec line[INT8_PANELS];
        UNROLL
        for (int o = 0; o < n_panels; o++)
            line[o] = int8_line(turn, w.at + g * INT8_LINE + o * w.panel_bytes);
        UNROLL
        for (int i = 0; i < n_rows; i++) {
            IntVec xi = _mm512_set1_epi32((int)x[i * (INT8_BLOCK / 4) + g]);
            UNROLL
            for (int o = 0; o < n_panels; o++)
                q[o][i] = iv_dot_bytes(q[o][i], xi, line[o]);
        }
    }
}

/* The same, fine rows alone: each in two sums, so that no product waits for the one before. */
INLINE void int8_low_alone(Int8Turn turn, int n_panels, int n_rows, int lines, const uint32_t *x,
                           const Int8X *of, Int8Codes w, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        const uint32_t *xi = x + i * (INT8_BLOCK / 4);
        IntVec odd[INT8_PANELS] = {0};
        if (!of[i].is_fine) continue;
        for (int g = 0; g < lines; g += 2) {
            IntVec x0 = _mm512_set1_epi32((int)xi[g]), x1 = _mm512_set1_epi32((int)xi[g + 1]);
            UNROLL
            for (int o = 0; o < n_panels; o++) {
                const int8_t *at = w.at + g * INT8_LINE + o * w.panel_bytes;
                q[o][i] = iv_dot_bytes(q[o][i], x0, int8_line(turn, at));
                odd[o] = iv_dot_bytes(odd[o], x1, int8_line(turn, at + INT8_LINE));
            }
        }
        UNROLL
        for (int o = 0; o < n_panels; o++)
            q[o][i] = _mm512_add_epi32(q[o][i], odd[o]);
    }
}

/* Sums begin with what codes + 128 add too much; returns how many rows are fine. */
INLINE int int8_clear(int n_panels, int n_rows, const Int8X *of, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    int n_fine = 0;
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        n_fine += of[i].is_fine;
        UNROLL
        for (int o = 0; o < n_panels; o++)
            q[o][i] = _mm512_set1_epi32(of[i].offset);
    }
    return n_fine;
}

/* Adds a line of each panel, codes + 128, times 4 columns of the rows of x. */
INLINE void int8_high_line(int n_panels, int n_rows, const uint32_t *x,
                           const IntVec line[INT8_PANELS], IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        IntVec xi = _mm512_set1_epi32((int)x[i]);
        UNROLL
        for (int o = 0; o < n_panels; o++)
            q[o][i] = iv_dot_bytes(q[o][i], line[o], xi);
    }
}

/* The high bytes of x times INT8's codes, w's or, in the turns after the first, those in room. */
INLINE void int8_highs(Int8Turn turn, int n_panels, int n_rows, int lines, const uint32_t *x,
                       Int8Codes w, int8_t *room, Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    for (int g = 0; g < lines; g++) { /* (w + 128) high: one of the two is unsigned */
        IntVec line[INT8_PANELS];
        ask(turn, n_panels, ahead, g * ahead.step);
        UNROLL
        for (int o = 0; o < n_panels; o++) {
            int8_t *in_room = room + o * INT8_BLOCK_BYTES + g * INT8_LINE;
            line[o] = turn == INT8_NEXT
                          ? iv_load(in_room)
                          : int8_flip(iv_load(w.at + o * w.panel_bytes + g * INT8_LINE));
            if (turn == INT8_FIRST) _mm512_store_si512(in_room, line[o]);
        }
        int8_high_line(n_panels, n_rows, x + g * n_rows, line, q);
    }
}

/* And INT4's as they lie in memory. */
INLINE void int4_highs(int n_panels, int n_rows, int lines, const uint32_t *x, Int8Codes w,
                       Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    for (int g = 0; g < lines; g += INT4_RUN / 4) {
        const int run = g / (INT4_RUN / 4) % 2;
        const int8_t *at = w.at + g / (INT8_STEP / 4) * INT4_STEP_BYTES;
        Int4Heads of[INT8_PANELS];
        UNROLL
        for (int o = 0; o < n_panels; o++) {
            of[o] = int4_heads((const uint8_t *)at + o * w.panel_bytes + run * 2 * INT8_ROWS);
        }
        if (!run) ask(INT4_ALONE, n_panels, ahead, at - w.at);
        at += (1 + run * INT4_RUN_LINES) * INT8_LINE;
        for (int i = 0; i < INT4_RUN_LINES; i++, at += INT8_LINE) {
            IntVec low[INT8_PANELS], high[INT8_PANELS];
            ask(INT4_ALONE, n_panels, ahead, at - w.at);
            UNROLL
            for (int o = 0; o < n_panels; o++) {
                IntVec bits = iv_load(at + o * w.panel_bytes);
                low[o] = int4_low(bits, of[o]);
                high[o] = int4_high(bits, of[o]);
            }
            int8_high_line(n_panels, n_rows, x + (g + 2 * i) * n_rows, low, q);
            int8_high_line(n_panels, n_rows, x + (g + 2 * i + 1) * n_rows, high, q);
        }
    }
}

/*
 * q[outputs][row] = the sums of one block of so many lines, whose x and w begin here; of room each
 * panel has its part.
 */
INLINE void int8_block(Int8Turn turn, int n_panels, int n_rows, int lines, const uint32_t *x,
                       Int8Codes w, int8_t *room, Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    const Int8X *of = int8_x(x, n_rows);
    const uint32_t *low = x + n_rows * (INT8_BLOCK / 4);
    int n_fine = int8_clear(n_panels, n_rows, of, q);
    if (turn == INT4_ALONE)
        int4_highs(n_panels, n_rows, lines, x, w, ahead, q);
    else
        int8_highs(turn, n_panels, n_rows, lines, x, w, room, ahead, q);
    if (!n_fine) return; /* here: else gcc 12 makes the sums of a fine row 7 % slower */
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        if (!of[i].is_fine) continue;
        UNROLL
        for (int o = 0; o < n_panels; o++)
            q[o][i] = _mm512_slli_epi32(q[o][i], 8);
    }
    if (turn == INT4_ALONE) w = int4_codes(w, n_panels, lines / (INT8_STEP / 4), room);
    if (!is_alone(turn)) w = (Int8Codes){room, INT8_BLOCK_BYTES};
    if (2 * n_fine > n_rows)
        int8_low_together(turn, n_panels, n_rows, lines, low, w, q);
    else
        int8_low_alone(turn, n_panels, n_rows, lines, low, of, w, q);
}

#endif
