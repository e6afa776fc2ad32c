/*
 * linear_amx.h: y = x W' for bf16 and FP8 weights in the tiles of AMX, for linear_cpu.c.
 *
 * x is packed once for all of W, as two terms (linear_amx_bf16.h). An element of a tile depends on
 * its own row of W and its own row of x, so how rows are grouped never shows.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_AMX_H
#define OFFSHOOT_KERNELS_LINEAR_AMX_H

#include "kernels/linear_amx_bf16.h"

/* The sums of a group's tile to y: n_rows of n rows of x, n_outs outputs of each. */
INLINE void emit_tile(TileSum *sum, int n_rows, int n, int n_outs, float *const *y, int y_at)
{
    __m512i r[TILE];
    UNROLL
    for (int o = 0; o < TILE; o++)
        r[o] = _mm512_load_si512((*sum)[o]);
    transpose(r);
    UNROLL
    for (int i = 0; i < TILE; i++)
        if (i < n_rows) amx_emit(_mm512_castsi512_ps(r[i]), n_outs, n, y[i] + y_at);
}

/* The same of few_outputs, n_tiles of them: output o of tile t is o * n_tiles + t. */
INLINE void emit_few(TileSum *sum, int n_tiles, int n, float *const *y, int y_at)
{
    for (int o = 0; o < TILE; o++) {
        __m512i r[TILE];
        UNROLL
        for (int t = 0; t < TILE; t++)
            r[t] = t < n_tiles ? _mm512_load_si512(sum[t][o]) : _mm512_setzero_si512();
        transpose(r);
        UNROLL
        for (int i = 0; i < TILE; i++)
            if (i < n) v_store_some(y[i] + y_at + o * n_tiles, _mm512_castsi512_ps(r[i]), n_tiles);
        for (int t = TILE; t < n_tiles; t++)
            for (int i = 0; i < n; i++)
                y[i][y_at + o * n_tiles + t] = sum[t][o][i];
    }
}

/* What one call computes. */
typedef struct {
    const Weight *w;
    int n;
    const uint32_t *terms;
    float *const *y;
} AmxProduct;

/* Makes b the block of k's from k0 on for some outputs. */
INLINE void open_block(WeightType type, const AmxProduct *p, const Outputs *o, int k0, KBlock *b,
                       WeightCopy copy)
{
    const Weight *w = p->w;
    int64_t at = (int64_t)k0 * weight_element_bytes(type), row = weight_row_bytes(w);
    b->k0 = k0;
    b->k1 = w->cols - k0 < AMX_K_BLOCK ? w->cols : k0 + AMX_K_BLOCK;
    b->ahead = bytes_ahead(w, p->n, o, at);
    b->w = (WeightBlock){(const char *)w->data + o->first * row + at, o->apart * row};
    bf16_open(type, w, o, b, copy);
}

/* The sums of some outputs and of groups g0 .. g_end. */
INLINE void sum_outputs(WeightType type, const AmxProduct *p, Outputs o, int g0, int g_end,
                        TileSum (*sum)[2])
{
    _Alignas(64) WeightCopy copy;
    KBlock b;
    int cols = p->w->cols, two = o.n > TILE;
    for (int k0 = 0; k0 < cols; k0 += AMX_K_BLOCK) {
        open_block(type, p, &o, k0, &b, copy);
        bf16_products(type, two, &b, p->terms, p->n, cols, g0, g_end, sum);
    }
}

/* Outputs begin .. end of one group. */
INLINE void product_of_few(WeightType type, const AmxProduct *p, int begin, int end)
{
    const int is_near = (end - begin) * weight_row_bytes(p->w) <= AMX_NEAR;
    _Alignas(64) TileSum sum[AMX_TILES + 1]; /* each is the first of two, as sum_outputs has them */
    for (int r = begin, tiles; r < end; r += tiles * TILE) {
        tiles = is_near ? 1 : few_tiles(r, end);
        for (int t = 0; t < tiles; t++)
            sum_outputs(type, p, few_outputs(r, end, tiles, t), 0, 1, (TileSum(*)[2]) & sum[t]);
        if (tiles > 1)
            emit_few(sum, tiles, p->n, p->y, r - begin);
        else
            emit_tile(sum, p->n, p->n, end - r < TILE ? end - r : TILE, p->y, r - begin);
    }
}

/* The same of n_groups. */
INLINE void product_of_many(WeightType type, const AmxProduct *p, int n_groups, int begin, int end)
{
    _Alignas(64) TileSum sum[AMX_GROUPS][2];
    int together = groups_at_once(bf16_terms_bytes(TILE, p->w->cols));
    for (int g0 = 0; g0 < n_groups; g0 += together)
        for (int r = begin; r < end; r += AMX_OUTS) {
            int g_end = n_groups - g0 < together ? n_groups : g0 + together;
            Outputs o = {r, end - r < AMX_OUTS ? end - r : AMX_OUTS, 1, AMX_OUTS};
            sum_outputs(type, p, o, g0, g_end, sum);
            for (int g = g0; g < g_end; g++)
                for (int t = 0; t * TILE < o.n; t++) {
                    int n_rows = p->n - g * TILE, left = o.n - t * TILE;
                    emit_tile(&sum[g - g0][t], n_rows < TILE ? n_rows : TILE, p->n,
                              left < TILE ? left : TILE, p->y + g * TILE, r - begin + t * TILE);
                }
        }
}

INLINE void product_of_type(WeightType type, const AmxProduct *p, int begin, int end)
{
    int n_groups = (p->n + TILE - 1) / TILE;
    amx_begin(TILE, group_columns(p->n) * 4);
    if (n_groups == 1)
        product_of_few(type, p, begin, end);
    else
        product_of_many(type, p, n_groups, begin, end);
    amx_end(p->n);
}

/* y[i][r - begin] for n rows packed and begin <= r < end, begin a multiple of TILE. */
static void panel_tiles(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                        float *const *y)
{
    AmxProduct p = {w, n, terms, y};
    if (w->type == WEIGHT_BF16)
        product_of_type(WEIGHT_BF16, &p, begin, end);
    else if (w->type == WEIGHT_BF16_BOTH)
        product_of_type(WEIGHT_BF16_BOTH, &p, begin, end);
    else
        product_of_type(WEIGHT_FP8, &p, begin, end);
}

#endif
