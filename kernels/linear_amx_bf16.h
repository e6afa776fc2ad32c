/*
 * linear_amx_bf16.h: products in bf16 tiles, for linear_amx.h: of bf16 weights, and of FP8 ones,
 * which bf16 holds exactly.
 *
 * x comes as the sum of two bf16 terms, of which BF16_BOTH takes the high one alone. The sum of one
 * output, whatever surrounds it:
 *
 *     c = for each 32 k's, ascending: the high terms' products, then the low ones'
 *     y = c for bf16
 *     y = sum of scale * c for FP8, ascending, fused; c restarts at each 128 k's
 *
 * The tile unit adds each 32 in its own fixed order. A c of bf16 waits in memory, unrounded, while
 * other blocks of k are in cache.
 *
 * Against the definition: |x - high - low| <= 2^-17 |x|, then f32 sums of at most
 * (16 + cols / 16) * 2^-24 * sum |x w|. Subnormal numbers count as zero; of two terms infinity
 * gives NaN.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_AMX_BF16_H
#define OFFSHOOT_KERNELS_LINEAR_AMX_BF16_H

#include "kernels/amx.h"

enum { STEP_K = 32, SCALE_STEPS = FP8_BLOCK / STEP_K }; /* k's of a product; products of a scale */

/* ---- x ---- */

/* 32 floats as pairs of their high and of their low terms. */
INLINE void split_terms(Vec a, Vec b, __m512i *high, __m512i *low)
{
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    Vec ra = v_sub(a, v_widen_bf16(_mm512_castsi512_si256(h)));
    Vec rb = v_sub(b, v_widen_bf16(_mm512_extracti64x4_epi64(h, 1)));
    *high = h;
    *low = (__m512i)_mm512_cvtne2ps_pbh(rb, ra);
}

/* Where a step's terms begin in [groups][steps][high, low][16 pairs][columns] words. */
INLINE int64_t step_offset(int n, int cols, int group, int step)
{
    int steps = (cols + STEP_K - 1) / STEP_K;
    return ((int64_t)group * steps + step) * (2 * TILE * group_columns(n));
}

/* Packs steps begin .. end of a group. */
INLINE void pack_group(const float *const *x, int n, int cols, int group, int begin, int end,
                       uint32_t *terms)
{
    int columns = group_columns(n), rows = n - group * TILE < TILE ? n - group * TILE : TILE;
    __mmask16 stored = v_mask(columns);
    for (int s = begin; s < end; s++) {
        __m512i high[TILE], low[TILE];
        uint32_t *out = terms + step_offset(n, cols, group, s);
        int k = s * STEP_K, left = cols - k;
        for (int i = 0; i < TILE; i++) {
            high[i] = low[i] = _mm512_setzero_si512();
            if (i >= rows) continue;
            const float *at = x[group * TILE + i] + k;
            Vec b = left > VEC_N ? v_load_some(at + VEC_N, left - VEC_N) : v_set(0);
            split_terms(v_load_some(at, left), b, &high[i], &low[i]);
        }
        if (n == 1) {
            _mm512_storeu_si512(out, high[0]);
            _mm512_storeu_si512(out + TILE, low[0]);
            continue;
        }
        transpose(high), transpose(low);
        UNROLL
        for (int p = 0; p < TILE; p++) {
            _mm512_mask_storeu_epi32(out + p * columns, stored, high[p]);
            _mm512_mask_storeu_epi32(out + (TILE + p) * columns, stored, low[p]);
        }
    }
}

/* For n rows, the zeros of the last group included. */
INLINE int64_t bf16_terms_bytes(int n, int cols)
{
    int64_t rows = n < TILE ? n : (n + TILE - 1) / TILE * TILE;
    return rows * ((cols + STEP_K - 1) / STEP_K) * (STEP_K * 4);
}

/* Part `part` of the packing of n rows. */
INLINE void bf16_pack(const float *const *x, int n, int cols, int part, int n_parts,
                      uint32_t *terms)
{
    int64_t begin, end;
    int steps = (cols + STEP_K - 1) / STEP_K, groups = (n + TILE - 1) / TILE;
    cpu_split((int64_t)groups * steps, part, n_parts, &begin, &end);
    for (int64_t i = begin, next; i < end; i = next) {
        int group = (int)(i / steps), first = (int)(i % steps);
        next = i + (steps - first) < end ? i + (steps - first) : end;
        pack_group(x, n, cols, group, first, first + (int)(next - i), terms);
    }
}

/* ---- W ---- */

/*
 * 32 e4m3 weights as bf16: exponent and mantissa move up to where bf16 has them and the exponent
 * grows by 120, the difference of the biases; subnormals, m 2^-9, come from a table.
 */
INLINE __m512i widen_fp8(__m256i b)
{
    const uint64_t m0123 = 0x3bc03b803b000000, m4567 = 0x3c603c403c203c00;
    const __m512i subnormal =
        _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)m4567, (int64_t)m0123));
    __m512i w = _mm512_cvtepi8_epi16(b), shifted = _mm512_slli_epi16(w, 4);
    __mmask32 small = _mm512_testn_epi16_mask(shifted, _mm512_set1_epi16(0x0780));
    __m512i size = _mm512_and_si512(shifted, _mm512_set1_epi16(0x07f0));
    size = _mm512_add_epi16(size, _mm512_set1_epi16(120 << 7));
    size = _mm512_mask_permutexvar_epi16(size, small, w, subnormal);
    return _mm512_ternarylogic_epi64(size, w, _mm512_set1_epi16((short)0x8000), 0xf8);
}

/* n <= 32 weights as bf16, zeros after them. */
INLINE __m512i widen_weights(WeightType type, const char *p, int n)
{
    __mmask32 there = (__mmask32)((UINT64_C(1) << n) - 1);
    if (weight_is_bf16(type)) return _mm512_maskz_loadu_epi16(there, p);
    return widen_fp8(_mm256_maskz_loadu_epi8(there, p));
}

/* The scales of some outputs in b's block of k's; 0 up to a whole tile. */
INLINE void load_scales(const Weight *w, const Outputs *outs, KBlock *b)
{
    int n = weight_blocks(b->k1 - b->k0);
    for (int o = 0; o < outs->n || o % TILE; o++) {
        int r = outs->first + (o < outs->n ? o * outs->apart : 0);
        const float *scale = weight_scales(w, r) + b->k0 / FP8_BLOCK;
        for (int i = 0; i < n; i++)
            b->scale[i][o / TILE][o % TILE] = o < outs->n ? scale[i] : 0;
    }
}

/* Weights k0 .. k1 of some outputs, widened; zeros up to whole tiles and steps. */
INLINE void copy_weights(WeightType type, const Weight *w, const Outputs *outs, KBlock *b,
                         WeightCopy copy)
{
    const int step_bytes = STEP_K * weight_element_bytes(type);
    int n = b->k1 - b->k0, whole = n / STEP_K * STEP_K;
    const char *row = b->w.at;
    for (int o = 0; o < outs->n; o++, row += b->w.stride) {
        const char *p = row;
        for (int k = 0; k < whole; k += STEP_K, p += step_bytes) {
            prefetch_line(p, b->ahead);
            _mm512_store_si512(copy[o] + 2 * k, widen_weights(type, p, STEP_K));
        }
        if (whole < n) _mm512_store_si512(copy[o] + 2 * whole, widen_weights(type, p, n - whole));
    }
    for (int o = outs->n; o % TILE; o++)
        memset(copy[o], 0, sizeof copy[o]);
    b->w = (WeightBlock){(const char *)copy, sizeof *copy};
    b->ahead = 0;
    if (type == WEIGHT_FP8) load_scales(w, outs, b);
    amx_see_stores(copy);
}

/* W as tiles take it, for the block of k's that b->w shows in W. */
INLINE void bf16_open(WeightType type, const Weight *w, const Outputs *outs, KBlock *b,
                      WeightCopy copy)
{
    if (type == WEIGHT_FP8 || outs->n % TILE || (b->k1 - b->k0) % STEP_K)
        copy_weights(type, w, outs, b, copy);
}

/* ---- products ---- */

/* One step of one or two tiles of outputs and one or two groups. BF16_BOTH: high terms alone. */
INLINE void amx_step(WeightType type, int n_tiles, int n_groups, WeightBlock w, int k,
                     const uint32_t *x0, const uint32_t *x1, int columns)
{
    const int has_low = type != WEIGHT_BF16_BOTH;
    size_t x_stride = (size_t)columns * 4, w_stride = (size_t)w.stride;
    const char *at = w.at + 2 * k;
    TILE_LOAD(4, at, w_stride);
    TILE_LOAD(6, x0, x_stride);
    if (has_low) TILE_LOAD(7, x0 + TILE * columns, x_stride);
    if (n_tiles == 2) TILE_LOAD(5, at + TILE * w.stride, w_stride);
    TILE_BF16(0, 4, 6);
    if (n_tiles == 2) TILE_BF16(1, 5, 6);
    if (has_low) TILE_BF16(0, 4, 7);
    if (has_low && n_tiles == 2) TILE_BF16(1, 5, 7);
    if (n_groups == 1) return;
    TILE_LOAD(6, x1, x_stride);
    if (has_low) TILE_LOAD(7, x1 + TILE * columns, x_stride);
    TILE_BF16(2, 4, 6);
    if (n_tiles == 2) TILE_BF16(3, 5, 6);
    if (has_low) TILE_BF16(2, 4, 7);
    if (has_low && n_tiles == 2) TILE_BF16(3, 5, 7);
}

/* [group][tile of outputs] */
INLINE void load_sums(int n_tiles, int n_groups, TileSum (*sum)[2])
{
    TILE_LOAD(0, sum[0][0], 64);
    if (n_tiles == 2) TILE_LOAD(1, sum[0][1], 64);
    if (n_groups == 2) TILE_LOAD(2, sum[1][0], 64);
    if (n_tiles == 2 && n_groups == 2) TILE_LOAD(3, sum[1][1], 64);
}

INLINE void store_sums(int n_tiles, int n_groups, TileSum (*sum)[2])
{
    _tile_stored(0, sum[0][0], 64);
    if (n_tiles == 2) _tile_stored(1, sum[0][1], 64);
    if (n_groups == 2) _tile_stored(2, sum[1][0], 64);
    if (n_tiles == 2 && n_groups == 2) _tile_stored(3, sum[1][1], 64);
}

/* sum += scale * part, or = at the first block. */
INLINE void add_scaled(const float *scale, TileSum part, int first, TileSum sum)
{
    UNROLL
    for (int o = 0; o < TILE; o++) {
        Vec before = first ? v_set(0) : v_load(sum[o]);
        v_store(sum[o], v_fma(v_set(scale[o]), v_load(part[o]), before));
    }
}

/* One step of one tile and one group, into the sum of tile register c. */
#define AMX_STEP_INTO(c, w, k, x, columns)                                                         \
    do {                                                                                           \
        TILE_LOAD(4, (w).at + 2 * (k), (size_t)(w).stride);                                        \
        TILE_LOAD(6, (x), (size_t)(columns)*4);                                                    \
        TILE_LOAD(7, (x) + TILE * (columns), (size_t)(columns)*4);                                 \
        TILE_BF16(c, 4, 6);                                                                        \
        TILE_BF16(c, 4, 7);                                                                        \
    } while (0)

/*
 * block_product of one tile of outputs and one group, where weights have scales: their four sums
 * side by side, since each product waits for the last one of its sum.
 */
INLINE void scaled_block_product(KBlock *b, const uint32_t *x, int columns, TileSum *sum)
{
    _Alignas(64) TileSum part[AMX_K_SCALES];
    const int words = 2 * TILE * columns;
    int n_steps = (b->k1 - b->k0 + STEP_K - 1) / STEP_K;
    clear_sums();
    for (int i = 0; i < SCALE_STEPS; i++) {
        int s1 = i + SCALE_STEPS, s2 = i + 2 * SCALE_STEPS, s3 = i + 3 * SCALE_STEPS;
        if (i < n_steps) AMX_STEP_INTO(0, b->w, i * STEP_K, x + i * words, columns);
        if (s1 < n_steps) AMX_STEP_INTO(1, b->w, s1 * STEP_K, x + s1 * words, columns);
        if (s2 < n_steps) AMX_STEP_INTO(2, b->w, s2 * STEP_K, x + s2 * words, columns);
        if (s3 < n_steps) AMX_STEP_INTO(3, b->w, s3 * STEP_K, x + s3 * words, columns);
    }
    _tile_stored(0, part[0], 64);
    _tile_stored(1, part[1], 64);
    _tile_stored(2, part[2], 64);
    _tile_stored(3, part[3], 64);
    for (int i = 0; i * SCALE_STEPS < n_steps; i++)
        add_scaled(b->scale[i][0], part[i], b->k0 + i == 0, *sum);
}

/* The block of one or two groups, whose terms begin at x0 and x1: adds to sum; sets it at k 0. */
INLINE void block_product(WeightType type, int n_tiles, int n_groups, KBlock *b, const uint32_t *x0,
                          const uint32_t *x1, int columns, TileSum (*sum)[2])
{
    _Alignas(64) TileSum part[2][2];
    const int words = 2 * TILE * columns;
    int n_steps = (b->k1 - b->k0 + STEP_K - 1) / STEP_K;
    if (type == WEIGHT_FP8 && n_tiles * n_groups == 1) {
        scaled_block_product(b, x0, columns, &sum[0][0]);
        return;
    }
    const int together = type == WEIGHT_FP8 ? SCALE_STEPS : AMX_K_BLOCK / STEP_K;
    for (int s0 = 0; s0 < n_steps; s0 += together) {
        clear_sums();
        if (type != WEIGHT_FP8 && b->k0) load_sums(n_tiles, n_groups, sum);
        for (int s = s0; s < s0 + together && s < n_steps; s++) {
            for (int o = b->ahead_begin; b->ahead && o < b->ahead_end; o++)
                prefetch_line(b->w.at + o * b->w.stride + 2 * s * STEP_K, b->ahead);
            amx_step(type, n_tiles, n_groups, b->w, s * STEP_K, x0 + s * words, x1 + s * words,
                     columns);
        }
        store_sums(n_tiles, n_groups, type == WEIGHT_FP8 ? part : sum);
        for (int g = 0; type == WEIGHT_FP8 && g < n_groups; g++)
            for (int t = 0; t < n_tiles; t++)
                add_scaled(b->scale[s0 / SCALE_STEPS][t], part[g][t], b->k0 + s0 == 0, sum[g][t]);
    }
}

/* Groups g0 .. g_end, by pairs; terms of n rows. */
INLINE void bf16_products(WeightType type, int two, KBlock *b, const uint32_t *terms, int n,
                          int cols, int g0, int g_end, TileSum (*sum)[2])
{
    int columns = group_columns(n), n_outs = two ? 2 * TILE : TILE, n_pairs = (g_end - g0 + 1) / 2;
    for (int g = g0; g < g_end; g += 2, sum += 2) {
        int pair = g + 1 < g_end, done = (g - g0) / 2;
        b->ahead_begin = n_outs * done / n_pairs;
        b->ahead_end = n_outs * (done + 1) / n_pairs;
        const uint32_t *x0 = terms + step_offset(n, cols, g, b->k0 / STEP_K);
        const uint32_t *x1 = terms + step_offset(n, cols, pair ? g + 1 : g, b->k0 / STEP_K);
        if (two && pair)
            block_product(type, 2, 2, b, x0, x1, columns, sum);
        else if (two)
            block_product(type, 2, 1, b, x0, x1, columns, sum);
        else if (pair)
            block_product(type, 1, 2, b, x0, x1, columns, sum);
        else
            block_product(type, 1, 1, b, x0, x1, columns, sum);
    }
}

#endif
