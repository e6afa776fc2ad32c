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

/* What one call computes. */
typedef struct {
    const Weight *w;
    int n;
    const uint32_t *terms;
    float *const *y;
} AmxProduct;

/* Makes b the block of k's from k0 on for rows r .. r + n_outs. */
INLINE void open_block(WeightType type, const AmxProduct *p, int r, int n_outs, int k0, KBlock *b,
                       WeightCopy copy)
{
    const Weight *w = p->w;
    int64_t at = (int64_t)k0 * weight_element_bytes(type);
    b->k0 = k0;
    b->k1 = w->cols - k0 < AMX_K_BLOCK ? w->cols : k0 + AMX_K_BLOCK;
    b->ahead = bytes_ahead(w, outputs_at_once(p->n), at);
    b->w = (WeightBlock){(const char *)w->data + r * weight_row_bytes(w) + at, weight_row_bytes(w)};
    bf16_open(type, w, r, n_outs, b, copy);
}

/* Outputs r .. r + n_outs, at y_at of y, of groups g0 .. g_end. */
INLINE void outputs(WeightType type, const AmxProduct *p, int r, int n_outs, int y_at, int g0,
                    int g_end)
{
    _Alignas(64) TileSum sum[AMX_GROUPS][2];
    _Alignas(64) WeightCopy copy;
    KBlock b;
    int cols = p->w->cols, two = n_outs > TILE;
    for (int k0 = 0; k0 < cols; k0 += AMX_K_BLOCK) {
        open_block(type, p, r, n_outs, k0, &b, copy);
        bf16_products(type, two, &b, p->terms, p->n, cols, g0, g_end, sum);
    }
    for (int g = g0; g < g_end; g++)
        for (int t = 0; t * TILE < n_outs; t++) {
            int n_rows = p->n - g * TILE, left = n_outs - t * TILE;
            emit_tile(&sum[g - g0][t], n_rows < TILE ? n_rows : TILE, p->n,
                      left < TILE ? left : TILE, p->y + g * TILE, y_at + t * TILE);
        }
}

INLINE void product_of_type(WeightType type, const AmxProduct *p, int begin, int end)
{
    int n_groups = (p->n + TILE - 1) / TILE, n_outs = outputs_at_once(p->n);
    int together = groups_at_once(bf16_terms_bytes(TILE, p->w->cols));
    amx_begin(TILE, group_columns(p->n) * 4);
    for (int g = 0; g < n_groups; g += together)
        for (int r = begin; r < end; r += n_outs)
            outputs(type, p, r, end - r < n_outs ? end - r : n_outs, r - begin, g,
                    n_groups - g < together ? n_groups : g + together);
    amx_end(p->n);
}

/* y[i][r - begin] for n rows packed and begin <= r < end, begin a multiple of TILE. */
static void panel_tiles(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                        float *const *y)
{
    AmxProduct p = {w, n, terms, y};
    if (w->type == WEIGHT_BF16)
        product_of_type(WEIGHT_BF16, &p, begin, end);
    else
        product_of_type(WEIGHT_FP8, &p, begin, end);
}

#endif
