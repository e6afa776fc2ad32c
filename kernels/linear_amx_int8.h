/*
 * linear_amx_int8.h: products in int8 tiles, for linear_amx.h.
 *
 * 128 neighbours of a row of x become integers q of 16 bits, x = scale * q, |q| <= 32,512, and
 * these two terms of 8 bits, q = 256 high + low, 0 <= low < 256. Sums of 128 products are exact, so
 * that the order within them is nobody's concern; blocks are added ascending, fused:
 *
 *     y = sum over blocks of 128 k's of (scale of x * scale of w) * (q w)
 *
 * Against the definition: |x - scale * q| <= 2^-16 of the block's largest |x|, and some
 * (cols / 128 + 3) * 2^-24 * sum |x w|. Blocks whose |x| stay below 2^-110 count as zero; one with
 * a NaN or an infinity gives NaN.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_AMX_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_AMX_INT8_H

#include "kernels/amx.h"

enum {
    INT8_STEP = 64,                      /* k's of a product */
    INT8_STEPS = INT8_BLOCK / INT8_STEP, /* products of a scale */
    INT8_LARGEST = 127 * 256,            /* |q| */
};

INLINE int int8_blocks(int cols)
{
    return (cols + INT8_BLOCK - 1) / INT8_BLOCK;
}

/* ---- x: words [groups][blocks][2 steps][high, low][16 times 4 k's][columns], then scales ---- */

INLINE int64_t int8_block_words(int n)
{
    return (int64_t)INT8_STEPS * 2 * TILE * group_columns(n);
}

/* Where the terms of a block begin. */
INLINE int64_t int8_offset(int n, int cols, int group, int block)
{
    return ((int64_t)group * int8_blocks(cols) + block) * int8_block_words(n);
}

/* Where the 16 scales of a block begin, one for each row of x. */
INLINE int64_t int8_scale_offset(int n, int cols, int group, int block)
{
    return int8_offset(n, cols, (n + TILE - 1) / TILE, 0) +
           ((int64_t)group * int8_blocks(cols) + block) * TILE;
}

INLINE int64_t int8_terms_bytes(int n, int cols)
{
    return int8_scale_offset(n, cols, (n + TILE - 1) / TILE, 0) * 4;
}

/* The scale of 128 numbers of x, and what they are multiplied by. */
INLINE float int8_scale(const Vec *x, float *inverse)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();
    UNROLL
    for (int i = 0; i < INT8_BLOCK / VEC_N; i++)
        most = _mm512_max_epi32(most, _mm512_and_si512((__m512i)x[i], magnitude));
    int32_t bits = _mm512_reduce_max_epi32(most); /* magnitudes are in the order of their bits */
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    *inverse = 0;
    if (bits >= 0x7f800000) return NAN;
    if (largest < 0x1p-110f) return 0;
    *inverse = INT8_LARGEST / largest;
    return largest / INT8_LARGEST;
}

/* 64 numbers times inverse, rounded: the high and the low bytes of each. */
INLINE void int8_terms(const Vec *x, float inverse, __m512i *high, __m512i *low)
{
    __m128i h[4], l[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512i q = _mm512_cvtps_epi32(v_mul(x[i], v_set(inverse)));
        l[i] = _mm512_cvtepi32_epi8(q);
        h[i] = _mm512_cvtepi32_epi8(_mm512_srai_epi32(q, 8));
    }
    *high = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(h[1], h[0])),
                               _mm256_set_m128i(h[3], h[2]), 1);
    *low = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(l[1], l[0])),
                              _mm256_set_m128i(l[3], l[2]), 1);
}

/* Packs a block of a group. */
INLINE void int8_pack_block(const float *const *x, int n, int cols, int group, int block,
                            uint32_t *terms)
{
    int columns = group_columns(n), rows = n - group * TILE < TILE ? n - group * TILE : TILE;
    uint32_t *out = terms + int8_offset(n, cols, group, block);
    float scale[TILE] = {0};
    __m512i word[2 * INT8_STEPS][TILE]; /* high and low of each step */
    for (int i = 0; i < TILE; i++) {
        Vec v[INT8_BLOCK / VEC_N];
        float inverse;
        for (int j = 0; j < 2 * INT8_STEPS; j++)
            word[j][i] = _mm512_setzero_si512();
        if (i >= rows) continue;
        for (int k = 0; k < INT8_BLOCK / VEC_N; k++) {
            int at = block * INT8_BLOCK + k * VEC_N, left = cols - at;
            v[k] = left > 0 ? v_load_some(x[group * TILE + i] + at, left) : v_set(0);
        }
        scale[i] = int8_scale(v, &inverse);
        for (int s = 0; s < INT8_STEPS; s++)
            int8_terms(v + 4 * s, inverse, &word[2 * s][i], &word[2 * s + 1][i]);
    }
    for (int j = 0; j < 2 * INT8_STEPS; j++, out += TILE * columns) {
        if (n == 1) {
            _mm512_storeu_si512(out, word[j][0]);
            continue;
        }
        transpose(word[j]);
        UNROLL
        for (int p = 0; p < TILE; p++)
            _mm512_mask_storeu_epi32(out + p * columns, v_mask(columns), word[j][p]);
    }
    memcpy(terms + int8_scale_offset(n, cols, group, block), scale, sizeof scale);
}

/* Part `part` of the packing of n rows. */
INLINE void int8_pack(const float *const *x, int n, int cols, int part, int n_parts,
                      uint32_t *terms)
{
    int64_t begin, end;
    int blocks = int8_blocks(cols), groups = (n + TILE - 1) / TILE;
    cpu_split((int64_t)groups * blocks, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        int8_pack_block(x, n, cols, (int)(i / blocks), (int)(i % blocks), terms);
}

/* ---- W ---- */

/* W as tiles take it: as it lies in W where b->w shows it, or a copy with zeros at its edges. */
INLINE void int8_open(const Weight *w, int r, int n_outs, KBlock *b, WeightCopy copy)
{
    int n = b->k1 - b->k0;
    load_scales(w, r, n_outs, b);
    if (n_outs % TILE == 0 && n % INT8_BLOCK == 0) return;
    memset(copy, 0, sizeof(WeightCopy));
    for (int o = 0; o < n_outs; o++)
        memcpy(copy[o], b->w.at + o * b->w.stride, (size_t)n);
    b->w = (WeightBlock){(const char *)copy, sizeof *copy};
    b->ahead = 0;
    amx_see_stores(copy);
}

/* ---- products ---- */

typedef int32_t IntSum[TILE][TILE];

/* sum += scales * (256 high + low), or = at the first block. */
INLINE void int8_add(IntSum high, IntSum low, const float *w_scale, const float *x_scale, int first,
                     TileSum sum)
{
    Vec xs = v_load(x_scale);
    UNROLL
    for (int o = 0; o < TILE; o++) {
        __m512i q = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(high[o]), 8),
                                     _mm512_load_si512(low[o]));
        Vec before = first ? v_set(0) : v_load(sum[o]);
        v_store(sum[o], v_fma(_mm512_cvtepi32_ps(q), v_mul(xs, v_set(w_scale[o])), before));
    }
}

/* One step of a tile of W at `at` into the sums of tile registers h and l. */
#define INT8_STEP_INTO(a, at, stride, h, l)                                                        \
    do {                                                                                           \
        _tile_loadd(a, at, (size_t)(stride));                                                      \
        _tile_dpbssd(h, a, 6);                                                                     \
        _tile_dpbsud(l, a, 7);                                                                     \
    } while (0)

INLINE void int8_load_x(const uint32_t *x, int step, int columns)
{
    x += (int64_t)step * 2 * TILE * columns;
    _tile_loadd(6, x, (size_t)columns * 4);
    _tile_loadd(7, x + TILE * columns, (size_t)columns * 4);
}

INLINE void int8_prefetch(const KBlock *b, int n_outs, int k)
{
    for (int o = 0; b->ahead && o < n_outs; o++)
        prefetch_line(b->w.at + o * b->w.stride + k, b->ahead);
}

INLINE void int8_store(IntSum part[4])
{
    _tile_stored(0, part[0], 64);
    _tile_stored(1, part[1], 64);
    _tile_stored(2, part[2], 64);
    _tile_stored(3, part[3], 64);
}

/* Two tiles of outputs, one group, whose terms and scales begin at x and x_scale. */
INLINE void int8_two_tiles(const KBlock *b, const uint32_t *x, const float *x_scale, int columns,
                           TileSum *sum)
{
    _Alignas(64) IntSum part[4];
    for (int k = 0, i = 0; k < b->k1 - b->k0; k += INT8_BLOCK, i++) {
        clear_sums();
        for (int s = 0; s < INT8_STEPS; s++) {
            const char *at = b->w.at + k + s * INT8_STEP;
            int8_prefetch(b, AMX_OUTS, k + s * INT8_STEP);
            int8_load_x(x, i * INT8_STEPS + s, columns);
            INT8_STEP_INTO(4, at, b->w.stride, 0, 1);
            INT8_STEP_INTO(5, at + TILE * b->w.stride, b->w.stride, 2, 3);
        }
        int8_store(part);
        for (int t = 0; t < 2; t++)
            int8_add(part[2 * t], part[2 * t + 1], b->scale[i][t], x_scale + i * TILE,
                     b->k0 + k == 0, sum[t]);
    }
}

/* One tile of outputs, one group; two blocks side by side. */
INLINE void int8_one_tile(const KBlock *b, const uint32_t *x, const float *x_scale, int columns,
                          TileSum *sum)
{
    _Alignas(64) IntSum part[4];
    int n_blocks = int8_blocks(b->k1 - b->k0);
    for (int i = 0; i < n_blocks; i += 2) {
        int last = i + 1 < n_blocks;
        clear_sums();
        for (int s = 0; s < INT8_STEPS; s++) {
            int k = i * INT8_BLOCK + s * INT8_STEP;
            int8_prefetch(b, TILE, k);
            int8_load_x(x, i * INT8_STEPS + s, columns);
            INT8_STEP_INTO(4, b->w.at + k, b->w.stride, 0, 1);
            if (!last) continue;
            int8_prefetch(b, TILE, k + INT8_BLOCK);
            int8_load_x(x, (i + 1) * INT8_STEPS + s, columns);
            INT8_STEP_INTO(5, b->w.at + k + INT8_BLOCK, b->w.stride, 2, 3);
        }
        int8_store(part);
        for (int j = 0; j <= last; j++)
            int8_add(part[2 * j], part[2 * j + 1], b->scale[i + j][0], x_scale + (i + j) * TILE,
                     b->k0 + i + j == 0, sum[0]);
    }
}

/* Groups g0 .. g_end; terms of n rows. */
INLINE void int8_products(int two, KBlock *b, const uint32_t *terms, int n, int cols, int g0,
                          int g_end, TileSum (*sum)[2])
{
    int columns = group_columns(n), block = b->k0 / INT8_BLOCK;
    for (int g = g0; g < g_end; g++, b->ahead = 0, sum++) {
        const uint32_t *x = terms + int8_offset(n, cols, g, block);
        const float *x_scale = (const float *)(terms + int8_scale_offset(n, cols, g, block));
        if (two)
            int8_two_tiles(b, x, x_scale, columns, *sum);
        else
            int8_one_tile(b, x, x_scale, columns, *sum);
    }
}

#endif
