/*
 * linear_amx_int8.h: linear_int8.h's products in int8 tiles, for linear_cpu.c: the same bits.
 *
 * q = 256 high + low, 0 <= low < 256: two terms of 8 bits. A tile takes 16 rows of x ("a group")
 * times 64 columns of a panel, which lies in memory as the unit wants it.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_AMX_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_AMX_INT8_H

#include "kernels/amx.h"
#include "kernels/linear_int8.h"

enum {
    INT8_STEPS = INT8_BLOCK / INT8_STEP, /* products of a whole block */
    INT8_STEP_BYTES = INT8_STEP * INT8_ROWS,
    INT8_K_BLOCKS = AMX_K_BLOCK / INT8_BLOCK,
};

/* ---- x: bytes [group][block][step][high, low][row][64], scales [group][block][row] ---- */

/* Words of a block of a group. */
INLINE int64_t int8_block_words(int n)
{
    return (int64_t)group_columns(n) * INT8_BLOCK / 2;
}

/* 64 of q as their high and their low bytes, in the order of W's columns. */
INLINE void int8_bytes(const int16_t *q, __m512i *high, __m512i *low)
{
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 32);
    __m512i h =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(_mm512_srai_epi16(a, 8))),
                           _mm512_cvtepi16_epi8(_mm512_srai_epi16(b, 8)), 1);
    __m512i l = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                                   _mm512_cvtepi16_epi8(b), 1);
    *high = _mm512_shuffle_epi8(h, order);
    *low = _mm512_shuffle_epi8(l, order);
}

/* Row i of n in a block; zeros where n ends within a group. */
INLINE void tiles_int8_pack_row(const float *const *x, int n, int cols, int block, int i,
                                uint32_t *terms)
{
    const int rows = group_columns(n), blocks = int8_blocks(cols), n_groups = (n + TILE - 1) / TILE;
    int64_t at = (int64_t)(i / TILE) * blocks + block;
    char *out = (char *)(terms + at * int8_block_words(n)) + i % TILE * 64;
    float *scale =
        (float *)(terms + n_groups * blocks * int8_block_words(n)) + at * rows + i % TILE;
    float v[INT8_BLOCK];
    int16_t q[INT8_BLOCK] = {0};
    *scale = 0;
    if (i < n) {
        int8_load_x(x[i], cols, block * INT8_BLOCK, v);
        *scale = int8_round(v, q);
    }
    for (int s = 0; s < INT8_STEPS; s++, out += 2 * rows * 64) {
        __m512i high, low;
        int8_bytes(q + 64 * s, &high, &low);
        _mm512_storeu_si512(out, high);
        _mm512_storeu_si512(out + rows * 64, low);
    }
}

/* Part `part` of the packing of n rows. */
INLINE void tiles_int8_pack(const float *const *x, int n, int cols, int part, int n_parts,
                            uint32_t *terms)
{
    int64_t begin, end;
    int rows = n < TILE ? n : (n + TILE - 1) / TILE * TILE;
    cpu_split(rows, part, n_parts, &begin, &end);
    for (int i = (int)begin; i < end; i++)
        for (int b = 0; b < int8_blocks(cols); b++)
            tiles_int8_pack_row(x, n, cols, b, i, terms);
}

/* ---- products ---- */

typedef float Int8Sums[2][TILE][TILE]; /* [panel][row of x][output] */

/*
 * Asks for 16 lines of W `ahead` bytes further on (0: none). The hardware alone keeps some way
 * behind a unit that has to compute for each line: 1.6 times the time. All at once would wait.
 */
INLINE void int8_prefetch(const int8_t *w, int64_t ahead)
{
    for (int i = 0; ahead && i < INT8_STEP_BYTES; i += INT8_LINE)
        prefetch_line(w + i, ahead);
}

/* One step of n_panels, W in registers 4 and 5: high sums to 0 and 2, low ones to 1 and 3. */
INLINE void int8_step(int n_panels, int rows, const uint32_t *x, const int8_t *w,
                      int64_t panel_bytes, int64_t ahead)
{
    TILE_LOAD(6, x, 64);
    TILE_LOAD(7, x + 16 * rows, 64);
    TILE_LOAD(4, w, 64);
    int8_prefetch(w, ahead);
    TILE_S8(0, 6, 4);
    TILE_U8(1, 7, 4);
    if (n_panels == 1) return;
    TILE_LOAD(5, w + panel_bytes, 64);
    int8_prefetch(w + panel_bytes, ahead);
    TILE_S8(2, 6, 5);
    TILE_U8(3, 7, 5);
}

/* sum += scales * (256 high + low) */
INLINE void int8_add(int32_t high[TILE][TILE], int32_t low[TILE][TILE], int rows,
                     const float *x_scale, const float *w_scale, float sum[TILE][TILE])
{
    Vec ws = v_load(w_scale);
    for (int i = 0; i < rows; i++) {
        __m512i q = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(high[i]), 8),
                                     _mm512_load_si512(low[i]));
        Vec scale = v_mul(v_set(x_scale[i]), ws);
        v_store(sum[i], v_fma(_mm512_cvtepi32_ps(q), scale, v_load(sum[i])));
    }
}

/* Adds blocks b0 .. b_end of a group to its sums. fetch: W is read for the first time. */
INLINE void int8_group(int n_panels, const Int8Product *p, int r, int group, int b0, int b_end,
                       int fetch, Int8Sums sum)
{
    _Alignas(64) int32_t q[4][TILE][TILE];
    const int rows = group_columns(p->n), n_groups = (p->n + TILE - 1) / TILE;
    const int64_t blocks = int8_blocks(p->w->cols),
                  panel_bytes = INT8_ROWS * weight_row_bytes(p->w);
    const float *x_scale = (const float *)(p->terms + n_groups * blocks * int8_block_words(p->n));
    const float *w_scale = weight_scales(p->w, r);
    for (int b = b0; b < b_end; b++) {
        int64_t at = group * blocks + b;
        const uint32_t *x = p->terms + at * int8_block_words(p->n);
        const int8_t *w = int8_panel(p->w, r) + (int64_t)b * INT8_BLOCK_BYTES;
        int64_t ahead = int8_ahead(p->w, n_panels, b);
        clear_sums();
        for (int s = 0; s < int8_steps(p->w, b * INT8_BLOCK); s++)
            int8_step(n_panels, rows, x + s * 32 * rows, w + s * INT8_STEP_BYTES, panel_bytes,
                      fetch ? ahead : 0);
        _tile_stored(0, q[0], 64);
        _tile_stored(1, q[1], 64);
        if (n_panels == 2) _tile_stored(2, q[2], 64);
        if (n_panels == 2) _tile_stored(3, q[3], 64);
        for (int t = 0; t < n_panels; t++)
            int8_add(q[2 * t], q[2 * t + 1], rows, x_scale + at * rows,
                     w_scale + (t * blocks + b) * INT8_ROWS, sum[t]);
    }
}

/* Groups g0 .. g_end, AMX_GROUPS at most, of n_panels from row r on. */
INLINE void int8_groups(int n_panels, const Int8Product *p, int r, int y_at, int g0, int g_end)
{
    _Alignas(64) Int8Sums sum[AMX_GROUPS];
    int blocks = int8_blocks(p->w->cols), left = p->end - r;
    memset(sum, 0, (size_t)(g_end - g0) * sizeof *sum);
    for (int b = 0; b < blocks; b += INT8_K_BLOCKS)
        for (int g = g0; g < g_end; g++)
            int8_group(n_panels, p, r, g, b,
                       b + INT8_K_BLOCKS < blocks ? b + INT8_K_BLOCKS : blocks, g == g0,
                       sum[g - g0]);
    for (int i = g0 * TILE; i < g_end * TILE && i < p->n; i++)
        for (int t = 0; t < n_panels; t++)
            amx_emit(v_load(sum[i / TILE - g0][t][i % TILE]), left - t * TILE, p->n,
                     p->y[i] + y_at + t * TILE);
}

/* y[i][r - begin] for n packed rows and begin <= r < end, begin a multiple of TILE. */
static void tiles_int8(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                       float *const *y)
{
    Int8Product p = {w, end, n, terms, y};
    int n_groups = (n + TILE - 1) / TILE;
    int together = groups_at_once(int8_terms_bytes(TILE, w->cols));
    amx_begin(group_columns(n), 64);
    for (int g = 0; g < n_groups; g += together) {
        int g_end = g + together < n_groups ? g + together : n_groups;
        for (int r = begin; r < end; r += AMX_OUTS)
            if (end - r > TILE)
                int8_groups(2, &p, r, r - begin, g, g_end);
            else
                int8_groups(1, &p, r, r - begin, g, g_end);
    }
    amx_end(n);
}

#endif
