/*
 * linear_vec_int8.h: linear_int8.h's products in vectors, for linear_cpu.c.
 *
 * A line of W, 4 columns of a panel's 16 outputs, is multiplied by 4 columns of up to 8 rows of x
 * and summed up. With VNNI these are bytes: the high ones of x, and behind them the low ones of
 * fine rows, alone where few are: at 1 of 20 fine, as behind random SwiGLUs, 8 rows of such a
 * matrix take 0.65 of the time that they take together. Else W is widened to 16 bits once for all
 * rows, whose pairs of neighbours it is multiplied by. One row is read at the memory's rate; more
 * would let the hardware look too little ahead, hence the prefetch.
 *
 * With VNNI the codes of INT4 are made of their bits in registers, as one tile of rows needs them;
 * for more rows, and without VNNI, in the cache (unpack_int4.h).
 *
 * 3584 x 1024 on two cores of Zen 5: 0.12 ms for 1 row, 0.13 for 8, 0.15 for 16; 48 rows reach 600
 * G multiply-adds/s (pairs of 16 bits, all of them fine: 250) of the 900 that nothing but
 * multiplications do. 131,072 x 1024 on two cores of Zen 4, 38 GB/s: INT8 3.5 ms for 1 row, 3.7 for
 * 4, 4.4 for 8, 7.2 for 16; INT4, 75 MB for 134, 2.0, 2.3, 3.5 and 7.2. 65,536 x 1024 on
 * two of Cascade Lake, 22 GB/s: INT8 3.0 ms for 1 row, 3.2 for 8, 4.0 for 16, 9.4 for 48.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_VEC_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_VEC_INT8_H

#include "kernels/linear_int8.h"

enum {
    INT8_VECS = INT8_ROWS / VEC_N, /* vectors that hold the outputs of a panel */
    INT8_TILE_ROWS = INT8_BYTES       ? 8
                     : VEC_ISA == 512 ? 6
                     : VEC_ISA == 2   ? 4
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

/*
 * ---- x: [tile][block] of q [4 columns][row of the tile][4 columns' q], and of each row an Int8X
 *
 * Or, for bytes, the high ones [4 columns][row][4], then the low ones [row][256]: fine q are
 * 256 high + low, coarse ones high. High ones row by row are packed faster, but read in so many
 * streams beside W's that 4 and 8 rows took 1.1 and 1.2 times as long.
 */
typedef struct {
    float scale;
    int32_t offset; /* -128 times the sum of the high bytes */
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

INLINE int int8_n_tiles(int n)
{
    return n <= INT8_ONE_TILE ? 1 : (n + INT8_TILE_ROWS - 1) / INT8_TILE_ROWS;
}

/* Block b of a row of x, as row i of a tile's block, whose terms begin at `to`. */
INLINE void int8_pack_row(const float *x, int cols, int b, int n_rows, int i, uint32_t *to)
{
    Int8X *of = int8_x(to, n_rows) + i;
#if INT8_BYTES
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
#else
    Int8Words q;
    int8_round(x, cols, b * INT8_BLOCK, &q);
    for (int g = 0; g < INT8_BLOCK / 4; g++)
        memcpy(to + 2 * (g * n_rows + i), q.q + 4 * g, 4 * sizeof *q.q);
    *of = (Int8X){q.scale, 0, 0};
#endif
}

/* Part `part` of the packing of n rows. */
INLINE void vec_int8_pack(const float *const *x, int n, int cols, int part, int n_parts,
                          uint32_t *terms)
{
    int64_t begin, end;
    int blocks = int8_blocks(cols), n_tiles = int8_n_tiles(n);
    cpu_split((int64_t)n * blocks, part, n_parts, &begin, &end);
    int i = (int)(begin / blocks), b = (int)(begin % blocks);
    for (int64_t left = end - begin; left > 0; i++, b = 0) {
        int tile = tile_of(n, n_tiles, i), first = tile_begin(n, n_tiles, tile);
        int rows = tile_begin(n, n_tiles, tile + 1) - first;
        uint32_t *to = terms + first * int8_row_words(cols);
        to += b * rows * INT8_TERM_WORDS;
        for (; b < blocks && left > 0; b++, left--, to += rows * INT8_TERM_WORDS)
            int8_pack_row(x[i], cols, b, rows, i - first, to);
    }
}

/* ---- products ---- */

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

#if INT8_BYTES
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
#else
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

/* Outputs of some panels from row r of W on, which begin at y_at of y. */
typedef struct {
    const Int8Product *p;
    int r, y_at, n_tiles;
    int first[INT8_MOST_TILES + 1]; /* row of each tile, then n */
    float (*sum)[INT8_OUTS];        /* [row], of the blocks before */
    int is_whole;                   /* all outputs of the panels are wanted: y takes them */
    int8_t *room;                   /* for the codes of a block */
} Int8Strip;

/* Before the first block. */
static const float no_sums[INT8_OUTS];

/* Block b of n_rows from row i on; its codes are w. */
INLINE void int8_tile(Int8Turn turn, int n_panels, int n_rows, const Int8Strip *s, int i, int b,
                      Int8Codes w, Ahead ahead)
{
    const Int8Product *p = s->p;
    const int blocks = int8_blocks(p->w->cols),
              lines = int8_steps(p->w, b * INT8_BLOCK) * (INT8_STEP / 4);
    const uint32_t *x = p->terms + i * int8_row_words(p->w->cols);
    const float *w_scale = weight_scales(p->w, s->r) + (int64_t)b * INT8_ROWS;
    IntVec q[INT8_SUMS][INT8_ONE_TILE];
    x += (int64_t)b * n_rows * INT8_TERM_WORDS;
    int8_block(turn, n_panels, n_rows, lines, x, w, s->room, ahead, q);
    UNROLL
    for (int k = 0; k < n_rows; k++) {
        const Vec x_scale = v_set(int8_x(x, n_rows)[k].scale);
        const float *before = b ? s->sum[i + k] : no_sums;
        float *after = s->is_whole && b + 1 == blocks ? p->y[i + k] + s->y_at : s->sum[i + k];
        UNROLL
        for (int o = 0; o < n_panels * INT8_VECS; o++) {
            int64_t panel = (int64_t)(o / INT8_VECS) * blocks * INT8_ROWS;
            Vec scale = v_mul(x_scale, v_load(w_scale + panel + o % INT8_VECS * VEC_N));
            v_store(after + o * VEC_N, v_fma(iv_float(q[o][k]), scale, v_load(before + o * VEC_N)));
        }
    }
}

/* Of one tile there may be any rows that fit; of several none has less than half of them. */
INLINE void int8_tile_of(Int8Turn turn, int n_panels, int n_rows, const Int8Strip *s, int i, int b,
                         Int8Codes w, Ahead ahead)
{
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        if (is_alone(turn) || 2 * (n) >= INT8_TILE_ROWS)                                           \
            int8_tile(turn, n_panels, n, s, i, b, w, ahead);                                       \
        break
    switch (n_rows) {
        ROWS(1);
        ROWS(2);
#if VEC_ISA != 0
        ROWS(3);
#endif
#if VEC_ISA != 0 && !VEC_TILES
        ROWS(4);
#endif
#if VEC_ISA == 512 && !VEC_TILES
        ROWS(5);
        ROWS(6);
        ROWS(7);
        ROWS(8);
#endif
    default:
        assert(!"a tile has at most INT8_ONE_TILE rows");
    }
#undef ROWS
}

/* Block b's codes, INT8's as they lie in memory, INT4's unpacked. */
INLINE Int8Codes int8_unpacked(Int8Codes codes, int n_panels, const Int8Strip *s, int b)
{
    const Weight *w = s->p->w;
    if (w->type == WEIGHT_INT8) return codes;
    return int4_codes(codes, n_panels, int8_steps(w, b * INT8_BLOCK), s->room);
}

/* All blocks of one tile, the next of which is asked for with each. */
INLINE void int8_alone(Int8Turn turn, int n_panels, const Int8Strip *s)
{
    const Weight *w = s->p->w;
    const int64_t step = int8_block_bytes(w) / (INT8_BLOCK / 4);
    for (int b = 0; b < int8_blocks(w->cols); b++) {
        Int8Codes codes = int8_codes_at(w, s->r, b);
        Ahead ahead = {codes.at + int8_ahead(w, n_panels, b), step, codes.panel_bytes};
        if (turn != INT4_ALONE) codes = int8_unpacked(codes, n_panels, s, b);
        int8_tile_of(turn, n_panels, s->p->n, s, 0, b, codes, ahead);
    }
}

/* All blocks of several tiles, each of which asks for its share of the next panels. */
INLINE void int8_in_turn(int n_panels, const Int8Strip *s)
{
    const Weight *w = s->p->w;
    const int64_t bytes = n_panels * INT8_ROWS * weight_row_bytes(w);
    Ahead ahead = {.at = int8_panel(w, s->r)};
    ahead.step = n_panels * int8_block_bytes(w) / (INT8_BLOCK / 4) / s->n_tiles;
    if (s->r + n_panels * INT8_ROWS < s->p->end) ahead.at += bytes;
    for (int b = 0; b < int8_blocks(w->cols); b++) {
        Int8Codes codes = int8_unpacked(int8_codes_at(w, s->r, b), n_panels, s, b);
        for (int t = 0; t < s->n_tiles; t++, ahead.at += ahead.step * (INT8_BLOCK / 4)) {
            int i = s->first[t], n_rows = s->first[t + 1] - i;
            if (t == 0)
                int8_tile_of(INT8_FIRST, n_panels, n_rows, s, i, b, codes, ahead);
            else
                int8_tile_of(INT8_NEXT, n_panels, n_rows, s, i, b, codes, ahead);
        }
    }
}

/* n_panels from row r on, for all rows. */
INLINE void int8_outputs(int n_panels, Int8Strip *s, int r, int y_at)
{
    const Int8Product *p = s->p;
    const int n_outs = p->end - r;
    s->r = r, s->y_at = y_at, s->is_whole = n_outs >= n_panels * INT8_ROWS;
    if (s->n_tiles > 1)
        int8_in_turn(n_panels, s);
    else if (INT8_BYTES && p->w->type == WEIGHT_INT4)
        int8_alone(INT4_ALONE, n_panels, s);
    else
        int8_alone(INT8_ALONE, n_panels, s);
    for (int i = 0; i < p->n && !s->is_whole; i++)
        memcpy(p->y[i] + y_at, s->sum[i], (size_t)n_outs * sizeof(float));
}

static void int8_outputs_of_two(Int8Strip *s, int r, int y_at)
{
    int8_outputs(INT8_PANELS, s, r, y_at);
}

static void int8_outputs_of_one(Int8Strip *s, int r, int y_at)
{
    int8_outputs(1, s, r, y_at);
}

/* y[i][r - begin] for n packed rows and begin <= r < end, begin a multiple of INT8_ROWS. */
static void vec_int8(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                     float *const *y)
{
    float sum[INT8_VEC_ROWS][INT8_OUTS];
    _Alignas(64) int8_t room[INT8_PANELS * INT8_BLOCK_BYTES];
    Int8Product p = {w, end, n, terms, y};
    Int8Strip s = {.p = &p, .n_tiles = int8_n_tiles(n), .sum = sum, .room = room};
    int r = begin;
    for (int t = 0; t <= s.n_tiles; t++)
        s.first[t] = tile_begin(n, s.n_tiles, t);
    for (; INT8_PANELS == 2 && r + INT8_ROWS < end; r += 2 * INT8_ROWS)
        int8_outputs_of_two(&s, r, r - begin);
    for (; r < end; r += INT8_ROWS)
        int8_outputs_of_one(&s, r, r - begin);
}

#endif
