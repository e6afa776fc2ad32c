/*
 * linear_amx_int8.h: linear_int8.h's products in int8 tiles, for linear_cpu.c: the same bits.
 *
 * q = 256 high + low, 0 <= low < 256: two terms of 8 bits, of which the low one is taken where a
 * row of the group is fine. A tile takes 16 rows of x ("a group") times 64 columns of a panel,
 * which lies in memory as the unit wants it.
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

/* ---- x: bytes [group][block][high, low][step][row][64]; then, [group][block][row], scales and
 * whether rows are fine ---- */

/* Words of a block of a group. */
INLINE int64_t int8_block_words(int n)
{
    return (int64_t)group_columns(n) * INT8_BLOCK / 2;
}

/* Scales of the first group's first block, those of all others behind them. */
INLINE float *int8_scales(const uint32_t *terms, int n, int cols)
{
    int64_t n_blocks = (int64_t)((n + TILE - 1) / TILE) * int8_blocks(cols);
    return (float *)(uintptr_t)(terms + n_blocks * int8_block_words(n));
}

INLINE int32_t *int8_fine(const uint32_t *terms, int n, int cols)
{
    int64_t n_blocks = (int64_t)((n + TILE - 1) / TILE) * int8_blocks(cols);
    return (int32_t *)(void *)(int8_scales(terms, n, cols) + n_blocks * group_columns(n));
}

/* Row i of n in a block; zeros where n ends within a group. */
INLINE void tiles_int8_pack_row(const float *const *x, int n, int cols, int block, int i,
                                uint32_t *terms)
{
    const int rows = group_columns(n);
    int64_t at = (int64_t)(i / TILE) * int8_blocks(cols) + block;
    char *out = (char *)(terms + at * int8_block_words(n)) + i % TILE * 64;
    float v[INT8_BLOCK], scale = 0;
    int16_t q[INT8_BLOCK] = {0};
    int is_fine = 0;
    if (i < n) {
        int8_load_x(x[i], cols, block * INT8_BLOCK, v);
        scale = int8_round(v, q, &is_fine);
    }
    int8_scales(terms, n, cols)[at * rows + i % TILE] = scale;
    int8_fine(terms, n, cols)[at * rows + i % TILE] = is_fine;
    for (int s = 0; s < INT8_STEPS; s++, out += rows * 64) {
        __m512i high, low;
        int8_bytes(q + 64 * s, &high, &low);
        _mm512_storeu_si512(out, high);
        _mm512_storeu_si512(out + INT8_STEPS * rows * 64, low);
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

/* The high bytes of one step of n_panels, x in register 6, W in 4 and 5: sums to 0 and 2. */
INLINE void int8_high(int n_panels, const uint32_t *x, const int8_t *w, int64_t panel_bytes,
                      int64_t ahead)
{
    TILE_LOAD(6, x, 64);
    TILE_LOAD(4, w, 64);
    int8_prefetch(w, ahead);
    TILE_S8(0, 6, 4);
    if (n_panels == 1) return;
    TILE_LOAD(5, w + panel_bytes, 64);
    int8_prefetch(w + panel_bytes, ahead);
    TILE_S8(2, 6, 5);
}

/* The low ones: x in register 7, sums to 1 and 3. */
INLINE void int8_low(int n_panels, const uint32_t *x, const int8_t *w, int64_t panel_bytes)
{
    TILE_LOAD(7, x, 64);
    TILE_LOAD(4, w, 64);
    TILE_U8(1, 7, 4);
    if (n_panels == 1) return;
    TILE_LOAD(5, w + panel_bytes, 64);
    TILE_U8(3, 7, 5);
}

typedef int32_t Int8Tile[TILE][TILE];

/* sum += scales * (256 high + low), low NULL: 0. */
INLINE void int8_add(Int8Tile high, Int8Tile low, int rows, const float *x_scale,
                     const float *w_scale, float sum[TILE][TILE])
{
    Vec ws = v_load(w_scale);
    for (int i = 0; i < rows; i++) {
        __m512i q = _mm512_slli_epi32(_mm512_load_si512(high[i]), 8);
        if (low) q = _mm512_add_epi32(q, _mm512_load_si512(low[i]));
        Vec scale = v_mul(v_set(x_scale[i]), ws);
        v_store(sum[i], v_fma(_mm512_cvtepi32_ps(q), scale, v_load(sum[i])));
    }
}

/* 1 if one of so many rows is. */
INLINE int int8_any_fine(const int32_t *fine, int rows)
{
    __m512i all = _mm512_maskz_loadu_epi32(v_mask(rows), fine);
    return _mm512_test_epi32_mask(all, all) != 0;
}

/* Adds blocks b0 .. b_end of a group to its sums. fetch: W is read for the first time. */
INLINE void int8_group(int n_panels, const Int8Product *p, int r, int group, int b0, int b_end,
                       int fetch, Int8Sums sum)
{
    _Alignas(64) Int8Tile q[4];
    const int rows = group_columns(p->n), step_words = rows * 16;
    const int64_t blocks = int8_blocks(p->w->cols),
                  panel_bytes = INT8_ROWS * weight_row_bytes(p->w);
    const float *x_scale = int8_scales(p->terms, p->n, p->w->cols);
    const int32_t *fine = int8_fine(p->terms, p->n, p->w->cols);
    const float *w_scale = weight_scales(p->w, r);
    for (int b = b0; b < b_end; b++) {
        int64_t at = group * blocks + b;
        const uint32_t *x = p->terms + at * int8_block_words(p->n);
        const int8_t *w = int8_panel(p->w, r) + (int64_t)b * INT8_BLOCK_BYTES;
        int64_t ahead = fetch ? int8_ahead(p->w, n_panels, b) : 0;
        int steps = int8_steps(p->w, b * INT8_BLOCK), low = int8_any_fine(fine + at * rows, rows);
        clear_sums();
        for (int s = 0; s < steps; s++)
            int8_high(n_panels, x + s * step_words, w + s * INT8_STEP_BYTES, panel_bytes, ahead);
        for (int s = 0; s < steps && low; s++)
            int8_low(n_panels, x + (INT8_STEPS + s) * step_words, w + s * INT8_STEP_BYTES,
                     panel_bytes);
        _tile_stored(0, q[0], 64);
        if (low) _tile_stored(1, q[1], 64);
        if (n_panels == 2) _tile_stored(2, q[2], 64);
        if (n_panels == 2 && low) _tile_stored(3, q[3], 64);
        for (int t = 0; t < n_panels; t++)
            int8_add(q[2 * t], low ? q[2 * t + 1] : NULL, rows, x_scale + at * rows,
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
