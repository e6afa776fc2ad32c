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
 * 4, 4.4 for 8, 7.2 for 16; INT4, 75 MB for 134, 2.0, 2.3, 3.5 and 7.2.
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
    INT4_BLOCKS = 2, /* that are unpacked together */
    INT4_STEPS = INT4_BLOCKS * INT8_BLOCK / INT8_STEP,
    /* Up to here rows are for vectors even where there are tiles, which give the same bits. The
     * products of a pass of 2 rows take 0.99 of the time that they take in tiles; of 4 the same,
     * but their x is packed in 1.2 times the time (two cores of Granite Rapids). */
    INT8_VEC_ROWS = VEC_TILES ? 3 : LINEAR_PANEL,
};

/*
 * ---- x: [tile][block] of q [4 columns][row of the tile][4 columns' q], and of each row an Int8X
 *
 * Or, for bytes, the high ones [4 columns][row][4], then the low ones [row][256]: q = 256 high +
 * low. High ones row by row are packed faster, but read in so many streams beside W's that 4 and 8
 * rows took 1.1 and 1.2 times as long.
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

/* Line g of a block asks for what lies from + g * step bytes behind `at`, in each panel. */
typedef struct {
    const int8_t *at;
    int64_t from, step, panel_bytes;
} Ahead;

/* The same from what lies so many bytes further on in each panel. */
INLINE void ask(Ahead ahead, int panel, int64_t bytes)
{
    prefetch_l2(ahead.at, panel * ahead.panel_bytes + ahead.from + bytes);
}

#if INT8_BYTES
/* Adds the products of the low bytes of n_rows that begin at x: zeros where a row is coarse. */
INLINE void int8_low_together(int n_panels, int n_rows, int lines, const uint32_t *x, Int8Codes w,
                              IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    for (int g = 0; g < lines; g++) {
        IntVec line[INT8_PANELS];
        UNROLL
        for (int o = 0; o < n_panels; o++)
            line[o] = iv_load(w.at + g * INT8_LINE + o * w.panel_bytes);
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
INLINE void int8_low_alone(int n_panels, int n_rows, int lines, const uint32_t *x, const Int8X *of,
                           Int8Codes w, IntVec q[INT8_SUMS][INT8_ONE_TILE])
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
                q[o][i] = iv_dot_bytes(q[o][i], x0, iv_load(at));
                odd[o] = iv_dot_bytes(odd[o], x1, iv_load(at + INT8_LINE));
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

/* The high bytes of x times INT8's codes. */
INLINE void int8_highs(int n_panels, int n_rows, int lines, const uint32_t *x, Int8Codes w,
                       Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    const IntVec top = _mm512_set1_epi8(-128);
    for (int g = 0; g < lines; g++) { /* (w + 128) high: one of the two is unsigned */
        IntVec line[INT8_PANELS];
        UNROLL
        for (int o = 0; o < n_panels; o++) {
            const int8_t *at = w.at + g * INT8_LINE + o * w.panel_bytes;
            line[o] = _mm512_xor_si512(iv_load(at), top);
            ask(ahead, o, g * ahead.step);
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
            if (!run) ask(ahead, o, at - w.at);
        }
        at += (1 + run * INT4_RUN_LINES) * INT8_LINE;
        for (int i = 0; i < INT4_RUN_LINES; i++, at += INT8_LINE) {
            IntVec low[INT8_PANELS], high[INT8_PANELS];
            UNROLL
            for (int o = 0; o < n_panels; o++) {
                IntVec bits = iv_load(at + o * w.panel_bytes);
                low[o] = int4_low(bits, of[o]);
                high[o] = int4_high(bits, of[o]);
                ask(ahead, o, at - w.at);
            }
            int8_high_line(n_panels, n_rows, x + (g + 2 * i) * n_rows, low, q);
            int8_high_line(n_panels, n_rows, x + (g + 2 * i + 1) * n_rows, high, q);
        }
    }
}

/*
 * q[outputs][row] = the sums of one block of so many lines, whose x and w begin here. Of INT4 it is
 * w as it lies in memory.
 */
INLINE void int8_block(int is_int4, int n_panels, int n_rows, int lines, const uint32_t *x,
                       Int8Codes w, Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    const Int8X *of = int8_x(x, n_rows);
    const uint32_t *low = x + n_rows * (INT8_BLOCK / 4);
    int n_fine = int8_clear(n_panels, n_rows, of, q);
    if (is_int4)
        int4_highs(n_panels, n_rows, lines, x, w, ahead, q);
    else
        int8_highs(n_panels, n_rows, lines, x, w, ahead, q);
    UNROLL
    for (int o = 0; o < n_panels; o++) {
        UNROLL
        for (int i = 0; i < n_rows; i++)
            q[o][i] = _mm512_slli_epi32(q[o][i], 8);
    }
    if (!n_fine) return; /* here: else gcc 12 makes the sums of a fine row 7 % slower */
    _Alignas(64) int8_t room[INT8_PANELS * INT8_BLOCK_BYTES];
    if (is_int4) w = int4_codes(w, n_panels, lines / (INT8_STEP / 4), room);
    if (2 * n_fine > n_rows)
        int8_low_together(n_panels, n_rows, lines, low, w, q);
    else
        int8_low_alone(n_panels, n_rows, lines, low, of, w, q);
}
#else
/*
 * q[outputs][row] = the sums of one block of so many lines, whose x and w begin here: INT4 is
 * unpacked before.
 */
INLINE void int8_block(int is_int4, int n_panels, int n_rows, int lines, const uint32_t *x,
                       Int8Codes w, Ahead ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    assert(!is_int4);
    UNROLL
    for (int o = 0; o < n_panels * INT8_VECS; o++) {
        UNROLL
        for (int i = 0; i < n_rows; i++)
            q[o][i] = (IntVec){0};
    }
    for (int g = 0; g < lines; g++, x += 2 * n_rows) {
        UNROLL
        for (int o = 0; o < n_panels * INT8_VECS; o++) {
            const int8_t *at =
                w.at + g * INT8_LINE + o / INT8_VECS * w.panel_bytes + o % INT8_VECS * 4 * VEC_N;
            IntVec line = iv_load(at), even = iv_even(line), odd = iv_odd(line);
            if (o % INT8_VECS == 0) ask(ahead, o / INT8_VECS, g * ahead.step);
            UNROLL
            for (int i = 0; i < n_rows; i++) {
                q[o][i] = iv_dot(q[o][i], even, x[2 * i]);
                q[o][i] = iv_dot(q[o][i], odd, x[2 * i + 1]);
            }
        }
    }
}
#endif

/* Outputs of n_panels from row r of W on, which begin at y_at of y; of them blocks begin .. end. */
typedef struct {
    const Int8Product *p;
    int r, y_at, n_tiles, begin, end;
    Int8Codes w;                           /* of these blocks */
    float (*sum)[INT8_PANELS * INT8_ROWS]; /* [row], of the blocks before */
} Int8Strip;

/*
 * What tile t asks for in block b: alone the next block; else its share of the next panels, so that
 * memory is busy while all tiles compute.
 */
INLINE Ahead int8_vec_ahead(int n_panels, const Int8Strip *s, int t, int b)
{
    const Weight *w = s->p->w;
    const int64_t bytes = INT8_ROWS * weight_row_bytes(w), block = int8_block_bytes(w);
    Ahead ahead = {int8_panel(w, s->r), b * block + int8_ahead(w, n_panels, b),
                   block / (INT8_BLOCK / 4), bytes};
    if (s->n_tiles == 1) return ahead;
    ahead.from = n_panels * bytes + (t * bytes + b * block) / s->n_tiles;
    ahead.step /= s->n_tiles;
    return ahead;
}

/* Tile t of rows, n_rows of them. */
INLINE void int8_tile(int is_int4, int n_panels, int n_rows, const Int8Strip *s, int t)
{
    const Int8Product *p = s->p;
    const int x0 = tile_begin(p->n, s->n_tiles, t), blocks = int8_blocks(p->w->cols);
    const uint32_t *x =
        p->terms + x0 * int8_row_words(p->w->cols) + (int64_t)s->begin * n_rows * INT8_TERM_WORDS;
    const float *w_scale = weight_scales(p->w, s->r);
    Int8Codes w = s->w;
    IntVec q[INT8_SUMS][INT8_ONE_TILE];
    float sum[INT8_ONE_TILE][INT8_PANELS * INT8_ROWS];
    if (s->begin)
        memcpy(sum, s->sum + x0, (size_t)n_rows * sizeof *sum);
    else
        memset(sum, 0, sizeof sum);
    for (int b = s->begin; b < s->end; b++, x += n_rows * INT8_TERM_WORDS) {
        int lines = int8_steps(p->w, b * INT8_BLOCK) * (INT8_STEP / 4);
        const Int8X *of = int8_x(x, n_rows);
        int8_block(is_int4, n_panels, n_rows, lines, x, w, int8_vec_ahead(n_panels, s, t, b), q);
        w.at += is_int4 ? INT4_BLOCK_BYTES : INT8_BLOCK_BYTES;
        UNROLL
        for (int o = 0; o < n_panels * INT8_VECS; o++) {
            int64_t panel = (int64_t)(o / INT8_VECS) * blocks + b;
            Vec ws = v_load(w_scale + panel * INT8_ROWS + o % INT8_VECS * VEC_N);
            UNROLL
            for (int i = 0; i < n_rows; i++) {
                Vec scale = v_mul(v_set(of[i].scale), ws);
                float *at = &sum[i][o * VEC_N];
                v_store(at, v_fma(iv_float(q[o][i]), scale, v_load(at)));
            }
        }
    }
    if (s->end < blocks) {
        memcpy(s->sum + x0, sum, (size_t)n_rows * sizeof *sum);
        return;
    }
    int n_outs = p->end - s->r < n_panels * INT8_ROWS ? p->end - s->r : n_panels * INT8_ROWS;
    for (int i = 0; i < n_rows; i++)
        memcpy(p->y[x0 + i] + s->y_at, sum[i], (size_t)n_outs * sizeof(float));
}

/* All rows of a strip. */
INLINE void int8_tiles(int is_int4, int n_panels, const Int8Strip *s)
{
    for (int t = 0; t < s->n_tiles; t++) {
        int rows = tile_begin(s->p->n, s->n_tiles, t + 1) - tile_begin(s->p->n, s->n_tiles, t);
        if (rows == 1) int8_tile(is_int4, n_panels, 1, s, t);
        if (rows == 2) int8_tile(is_int4, n_panels, 2, s, t);
#if VEC_ISA != 0
        if (rows == 3) int8_tile(is_int4, n_panels, 3, s, t);
#endif
#if VEC_ISA != 0 && !VEC_TILES
        if (rows == 4) int8_tile(is_int4, n_panels, 4, s, t);
#endif
#if VEC_ISA == 512 && !VEC_TILES
        if (rows == 5) int8_tile(is_int4, n_panels, 5, s, t);
        if (rows == 6) int8_tile(is_int4, n_panels, 6, s, t);
        if (rows == 7) int8_tile(is_int4, n_panels, 7, s, t);
        if (rows == 8) int8_tile(is_int4, n_panels, 8, s, t);
#endif
    }
}

typedef void StripFn(const Int8Strip *s);

#define STRIP_FN(name, is_int4, n_panels)                                                          \
    static void name(const Int8Strip *s)                                                           \
    {                                                                                              \
        int8_tiles(is_int4, n_panels, s);                                                          \
    }

STRIP_FN(int8_strip, 0, INT8_PANELS)
STRIP_FN(int8_strip_single, 0, 1)
#if INT8_BYTES
STRIP_FN(int4_strip, 1, INT8_PANELS)
STRIP_FN(int4_strip_single, 1, 1)
#endif

/* n_panels from row r on, for all rows; INT4 as it lies, or some blocks at a time as INT8. */
static void int8_outputs(int n_panels, const Int8Product *p, int r, int y_at)
{
    float sum[INT8_VEC_ROWS][INT8_PANELS * INT8_ROWS];
    _Alignas(64) int8_t room[INT8_PANELS * INT4_STEPS * INT8_STEP * INT8_ROWS];
    const Weight *w = p->w;
    const int blocks = int8_blocks(w->cols), is_int4 = w->type == WEIGHT_INT4;
    Int8Strip s = {.p = p, .r = r, .y_at = y_at, .n_tiles = int8_n_tiles(p->n), .sum = sum};
    StripFn *strip = n_panels == 1 ? int8_strip_single : int8_strip;
    const Int8Codes all = {int8_panel(w, r), INT8_ROWS * weight_row_bytes(w)};
#if INT8_BYTES
    if (is_int4 && s.n_tiles == 1) {
        s.end = blocks, s.w = all;
        (n_panels == 1 ? int4_strip_single : int4_strip)(&s);
        return;
    }
#endif
    for (; s.begin < blocks; s.begin = s.end) {
        s.end = is_int4 && blocks - s.begin > INT4_BLOCKS ? s.begin + INT4_BLOCKS : blocks;
        s.w = all;
        s.w.at += s.begin * int8_block_bytes(w);
        int steps = (w->cols - s.begin * INT8_BLOCK + INT8_STEP - 1) / INT8_STEP;
        if (is_int4) s.w = int4_codes(s.w, n_panels, steps < INT4_STEPS ? steps : INT4_STEPS, room);
        strip(&s);
    }
}

/* y[i][r - begin] for n packed rows and begin <= r < end, begin a multiple of INT8_ROWS. */
static void vec_int8(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                     float *const *y)
{
    Int8Product p = {w, end, n, terms, y};
    int r = begin;
    for (; INT8_PANELS == 2 && r + INT8_ROWS < end; r += 2 * INT8_ROWS)
        int8_outputs(INT8_PANELS, &p, r, r - begin);
    for (; r < end; r += INT8_ROWS)
        int8_outputs(1, &p, r, r - begin);
}

#endif
