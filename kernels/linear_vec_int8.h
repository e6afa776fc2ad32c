/*
 * linear_vec_int8.h: linear_int8.h's products in vectors, for linear_cpu.c.
 *
 * A line of W, 4 columns of a panel's 16 outputs, is widened to 16 bits once for up to 8 rows of x
 * (AVX-512), whose pairs of neighbours it is multiplied by and summed up. One row is read at the
 * memory's rate; more would let the hardware look too little ahead, hence the prefetch. Many rows
 * reach 205 of the 236 G multiply-adds/s that two cores of Zen 4 have.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_VEC_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_VEC_INT8_H

#include "kernels/linear_int8.h"

enum {
    INT8_VECS = INT8_ROWS / VEC_N, /* vectors that hold the outputs of a panel */
    INT8_TILE_ROWS = VEC_ISA == 512 ? 6
                     : VEC_ISA == 2 ? 4
                                    : 2,
    /* rows that go into one tile all the same: 8 take 0.85 of the time of two tiles of 4 */
    INT8_ONE_TILE = VEC_ISA == 512 ? 8 : INT8_TILE_ROWS,
    INT8_PANELS = VEC_ISA == 512 ? 2 : 1,
    INT8_SUMS = INT8_PANELS * INT8_VECS,
};

/* ---- x: q [tile][4 columns][row of the tile][4 columns' q], then scales [row][block] ---- */

INLINE int64_t int8_row_words(int cols)
{
    return (int64_t)int8_blocks(cols) * (INT8_BLOCK / 2);
}

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
    float *scale = (float *)(terms + n * int8_row_words(cols));
    cpu_split((int64_t)n * blocks, part, n_parts, &begin, &end);
    for (int64_t at = begin; at < end; at++) {
        float v[INT8_BLOCK];
        int16_t q[INT8_BLOCK];
        int i = (int)(at / blocks), b = (int)(at % blocks), tile = tile_of(n, n_tiles, i);
        int8_load_x(x[i], cols, b * INT8_BLOCK, v);
        scale[at] = int8_round(v, q);
        int first = tile_begin(n, n_tiles, tile), rows = tile_begin(n, n_tiles, tile + 1) - first;
        uint32_t *to = terms + first * int8_row_words(cols) + b * rows * (INT8_BLOCK / 2);
        for (int g = 0; g < INT8_BLOCK / 4; g++)
            memcpy(to + 2 * (g * rows + i - first), q + 4 * g, 4 * sizeof *q);
    }
}

/* ---- exact sums of VEC_N outputs ---- */

#if VEC_ISA == 512
typedef __m512i IntVec;

INLINE IntVec iv_load(const int8_t *p)
{
    return _mm512_loadu_si512(p);
}
/* The even bytes, as 16 bits each. */
INLINE IntVec iv_even(IntVec w)
{
    return _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
}
INLINE IntVec iv_odd(IntVec w)
{
    return _mm512_srai_epi16(w, 8);
}
/* sum + the products of pairs of 16 bits, the same pair of x for all. */
INLINE IntVec iv_dot(IntVec sum, IntVec w, uint32_t pair)
{
#ifdef __AVX512VNNI__
    return _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32((int)pair));
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, _mm512_set1_epi32((int)pair)));
#endif
}
INLINE Vec iv_float(IntVec a)
{
    return _mm512_cvtepi32_ps(a);
}
#elif VEC_ISA == 2
typedef __m256i IntVec;

INLINE IntVec iv_load(const int8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE IntVec iv_even(IntVec w)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
}
INLINE IntVec iv_odd(IntVec w)
{
    return _mm256_srai_epi16(w, 8);
}
INLINE IntVec iv_dot(IntVec sum, IntVec w, uint32_t pair)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(w, _mm256_set1_epi32((int)pair)));
}
INLINE Vec iv_float(IntVec a)
{
    return _mm256_cvtepi32_ps(a);
}
#else
typedef int32_t IntVec __attribute__((vector_size(16)));
typedef int16_t ShortVec __attribute__((vector_size(16)));

INLINE IntVec iv_load(const int8_t *p)
{
    IntVec w;
    memcpy(&w, p, sizeof w);
    return w;
}
INLINE IntVec iv_even(IntVec w)
{
    return (IntVec)((ShortVec)((ShortVec)w << 8) >> 8);
}
INLINE IntVec iv_odd(IntVec w)
{
    return (IntVec)((ShortVec)w >> 8);
}
INLINE IntVec iv_dot(IntVec sum, IntVec w, uint32_t pair)
{
    int16_t x[2];
    memcpy(x, &pair, sizeof x);
    return sum + (w << 16 >> 16) * x[0] + (w >> 16) * x[1];
}
INLINE Vec iv_float(IntVec a)
{
    return __builtin_convertvector(a, Vec);
}
#endif

/* ---- products ---- */

/*
 * q[outputs][row] = the sums of one block of so many lines, whose x and w begin here. Lines `ahead`
 * bytes further on are asked for (0: none).
 */
INLINE void int8_block(int n_panels, int n_rows, int lines, const uint32_t *x, const int8_t *w,
                       int64_t panel_bytes, int64_t ahead, IntVec q[INT8_SUMS][INT8_ONE_TILE])
{
    UNROLL
    for (int o = 0; o < n_panels * INT8_VECS; o++) {
        UNROLL
        for (int i = 0; i < n_rows; i++)
            q[o][i] = (IntVec){0};
    }
    for (int g = 0; g < lines; g++, x += 2 * n_rows, w += INT8_LINE) {
        UNROLL
        for (int o = 0; o < n_panels * INT8_VECS; o++) {
            const int8_t *at = w + o / INT8_VECS * panel_bytes + o % INT8_VECS * 4 * VEC_N;
            IntVec line = iv_load(at), even = iv_even(line), odd = iv_odd(line);
            if (ahead && o % INT8_VECS == 0) prefetch_l2(at, ahead);
            UNROLL
            for (int i = 0; i < n_rows; i++) {
                q[o][i] = iv_dot(q[o][i], even, x[2 * i]);
                q[o][i] = iv_dot(q[o][i], odd, x[2 * i + 1]);
            }
        }
    }
}

/* Rows x0 .. x0 + n_rows, n_panels of outputs from row r of W on, which begin at y_at of y. */
INLINE void int8_tile(int n_panels, int n_rows, const Int8Product *p, int x0, int r, int y_at)
{
    const int64_t row_words = int8_row_words(p->w->cols), blocks = int8_blocks(p->w->cols);
    const int64_t panel_bytes = INT8_ROWS * weight_row_bytes(p->w);
    const uint32_t *x = p->terms + x0 * row_words;
    const float *x_scale = (const float *)(p->terms + p->n * row_words) + x0 * blocks;
    const int8_t *w = int8_panel(p->w, r);
    const float *w_scale = weight_scales(p->w, r);
    IntVec q[INT8_SUMS][INT8_ONE_TILE];
    float sum[INT8_ONE_TILE][INT8_PANELS * INT8_ROWS];
    memset(sum, 0, sizeof sum);
    for (int64_t b = 0; b < blocks; b++) {
        int64_t ahead = int8_ahead(p->w, n_panels, b);
        int lines = int8_steps(p->w, (int)b * INT8_BLOCK) * (INT8_STEP / 4);
        int8_block(n_panels, n_rows, lines, x + b * n_rows * (INT8_BLOCK / 2),
                   w + b * INT8_BLOCK_BYTES, panel_bytes, x0 ? 0 : ahead, q);
        UNROLL
        for (int o = 0; o < n_panels * INT8_VECS; o++) {
            int64_t panel = o / INT8_VECS * blocks + b;
            Vec ws = v_load(w_scale + panel * INT8_ROWS + o % INT8_VECS * VEC_N);
            UNROLL
            for (int i = 0; i < n_rows; i++) {
                Vec scale = v_mul(v_set(x_scale[i * blocks + b]), ws);
                float *at = &sum[i][o * VEC_N];
                v_store(at, v_fma(iv_float(q[o][i]), scale, v_load(at)));
            }
        }
    }
    int n_outs = p->end - r < n_panels * INT8_ROWS ? p->end - r : n_panels * INT8_ROWS;
    for (int i = 0; i < n_rows; i++)
        memcpy(p->y[x0 + i] + y_at, sum[i], (size_t)n_outs * sizeof(float));
}

/* All rows. */
INLINE void int8_tiles(int n_panels, const Int8Product *p, int r, int y_at)
{
    int n_tiles = int8_n_tiles(p->n);
    for (int t = 0; t < n_tiles; t++) {
        int i = tile_begin(p->n, n_tiles, t), rows = tile_begin(p->n, n_tiles, t + 1) - i;
        if (rows == 1) int8_tile(n_panels, 1, p, i, r, y_at);
        if (rows == 2) int8_tile(n_panels, 2, p, i, r, y_at);
#if VEC_ISA != 0
        if (rows == 3) int8_tile(n_panels, 3, p, i, r, y_at);
        if (rows == 4) int8_tile(n_panels, 4, p, i, r, y_at);
#endif
#if VEC_ISA == 512
        if (rows == 5) int8_tile(n_panels, 5, p, i, r, y_at);
        if (rows == 6) int8_tile(n_panels, 6, p, i, r, y_at);
        if (rows == 7) int8_tile(n_panels, 7, p, i, r, y_at);
        if (rows == 8) int8_tile(n_panels, 8, p, i, r, y_at);
#endif
    }
}

/* y[i][r - begin] for n packed rows and begin <= r < end, begin a multiple of INT8_ROWS. */
static void vec_int8(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                     float *const *y)
{
    Int8Product p = {w, end, n, terms, y};
    int r = begin;
    for (; INT8_PANELS == 2 && r + INT8_ROWS < end; r += 2 * INT8_ROWS)
        int8_tiles(INT8_PANELS, &p, r, r - begin);
    for (; r < end; r += INT8_ROWS)
        int8_tiles(1, &p, r, r - begin);
}

#endif
