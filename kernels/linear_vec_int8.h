/*
 * linear_vec_int8.h: linear_int8.h's products in vectors, for linear_cpu.c.
 *
 * A line of W, 4 columns of a panel's 16 outputs, is multiplied by 4 columns of up to 8 rows of x
 * and summed up: as bytes where there are sums of products of bytes (int8_block_vnni.h,
 * int8_block_dot.h), else as words of 16 bits (int8_block_words.h). One row is read at the memory's
 * rate; more would let the hardware look too little ahead, hence the prefetch.
 *
 * 3584 x 1024 on two cores of Zen 5: 0.12 ms for 1 row, 0.13 for 8, 0.15 for 16; 48 rows reach 600
 * G multiply-adds/s (pairs of 16 bits, all of them fine: 250) of the 900 that nothing but
 * multiplications do. 131,072 x 1024 on two cores of Zen 4, 38 GB/s: INT8 3.5 ms for 1 row, 3.7 for
 * 4, 4.4 for 8, 7.2 for 16; INT4, 75 MB for 134, 2.0, 2.3, 3.5 and 7.2. 65,536 x 1024 on
 * two of Cascade Lake, 22 GB/s: INT8 3.0 ms for 1 row, 3.2 for 8, 4.0 for 16, 9.4 for 48.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_VEC_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_VEC_INT8_H

#include "kernels/vec_int.h"

#if INT8_BYTES
#include "kernels/int8_block_vnni.h"
#elif INT8_SIGNED
#include "kernels/int8_block_dot.h"
#else
#include "kernels/int8_block_words.h"
#endif

INLINE int int8_n_tiles(int n)
{
    return n <= INT8_ONE_TILE ? 1 : (n + INT8_TILE_ROWS - 1) / INT8_TILE_ROWS;
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
#if VEC_ISA != 0 || INT8_SIGNED
        ROWS(3);
#endif
#if (VEC_ISA != 0 && !VEC_TILES) || INT8_SIGNED
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
