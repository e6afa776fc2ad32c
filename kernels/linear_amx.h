/*
 * linear_amx.h: y = x W' in the tiles of AMX, for linear_cpu.c.
 *
 * A tile product takes 16 rows of W, as they lie in memory, times 16 rows of x ("a group"), 32 k's
 * at a time. x comes as the sum of two bf16 terms, packed once for all of W; weights of one byte
 * are widened to bf16, which is exact. The sum of one output, whatever surrounds it:
 *     c      = for each 32 k's, ascending: the products of the high terms, then of the low ones;
 *              the tile unit adds each 32 in its own fixed order
 *     y      = c for bf16; for weights with scales c restarts at each 128 k's and
 *              y = sum of scale * c, ascending, fused
 * An element of a tile depends on its own row of W and its own row of x, so how rows are grouped
 * never shows. C waits in memory, unrounded, while other blocks of k are in cache.
 *
 * Against the definition: |x - high - low| <= 2^-17 |x|, then f32 sums of at most
 * (16 + cols / 16) * 2^-24 * sum |x w|. Subnormal numbers count as zero, x = infinity gives NaN.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_AMX_H
#define OFFSHOOT_KERNELS_LINEAR_AMX_H

#include <assert.h>
#include <immintrin.h>

#include "kernels/linear_cpu.h"

enum {
    TILE = 16,                /* rows of W, rows of x */
    STEP_K = 32,              /* k's of a tile product */
    TERM_WORDS = TILE * TILE, /* pairs of one term of a group's step */
    AMX_OUTS = 2 * TILE,      /* outputs computed together, by pairs of groups */
    AMX_AHEAD = 512,          /* bytes of a row of W between the prefetch and the product */
    AMX_K_BLOCK = 512,        /* k's of AMX_OUTS rows of W, and their sums, stay in L1 */
    AMX_GROUPS = 8,           /* groups whose sums wait together */
    SCALE_STEPS = FP8_BLOCK / STEP_K,
};

/* ---- tile registers: 0..3 sums of 2 tiles of outputs x 2 groups, 4 and 5 W, 6 and 7 x ---- */

/* Rows of x in a group: all there are, or 16 with zeros in the last group. */
INLINE int group_columns(int n)
{
    return n < TILE ? n : TILE;
}

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

INLINE void amx_begin(int n)
{
    TileConfig config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.rows[i] = TILE;
        config.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? 64 : group_columns(n) * 4);
    }
    _tile_loadconfig(&config);
}

/* What has been stored is in memory: the compiler does not know that tiles read it. */
INLINE void amx_see_stores(void)
{
    __asm__ volatile("" ::: "memory");
}

/* ---- x as terms ---- */

/* 16 x 16 words, rows to columns. */
INLINE void transpose(__m512i r[TILE])
{
    __m512i t[TILE];
    UNROLL
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

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
INLINE int64_t terms_bytes(int n, int cols)
{
    int64_t rows = n < TILE ? n : (n + TILE - 1) / TILE * TILE;
    return rows * ((cols + STEP_K - 1) / STEP_K) * (STEP_K * 4);
}

/* Part `part` of the packing of n rows. */
INLINE void pack_terms(const float *const *x, int n, int cols, int part, int n_parts,
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

/* ---- W as tiles ---- */

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
    if (type == WEIGHT_BF16) return _mm512_maskz_loadu_epi16(there, p);
    return widen_fp8(_mm256_maskz_loadu_epi8(there, p));
}

/*
 * Outputs that are computed together. One group of x is over in little time, so that W's rows come
 * from memory, and 16 at a time came faster: rows 2 KiB apart share two sets of L1.
 */
INLINE int outputs_at_once(int n)
{
    return n <= TILE ? TILE : AMX_OUTS;
}

/*
 * From a place in a row of W to the one that is read AMX_AHEAD bytes later: in the same row, or in
 * a row of the next outputs. The hardware sees 16 streams that end before it has caught up.
 */
INLINE int64_t bytes_ahead(const Weight *w, int outs_at_once, int64_t at)
{
    int64_t row = weight_row_bytes(w);
    return at + AMX_AHEAD < row ? AMX_AHEAD : AMX_AHEAD - row + outs_at_once * row;
}

/* An address past the end of W is a hint like any other. */
INLINE void prefetch_line(const char *at, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)ahead));
}

/* Where some rows of W lie as bf16 for a block of k: in W itself, or in a copy. */
typedef struct {
    const char *at;
    int64_t stride;
} WeightBlock;

/* Weights k0 .. k1 of rows r .. r + n_outs, widened; zeros up to whole tiles and steps. */
INLINE WeightBlock copy_weights(WeightType type, const Weight *w, int r, int n_outs, int k0, int k1,
                                int64_t ahead, uint16_t (*copy)[AMX_K_BLOCK])
{
    const int step_bytes = STEP_K * (type == WEIGHT_BF16 ? 2 : 1);
    int n = k1 - k0, whole = n / STEP_K * STEP_K, padded = (n_outs + TILE - 1) / TILE * TILE;
    const char *row = (const char *)w->data + r * weight_row_bytes(w) + k0 / STEP_K * step_bytes;
    for (int o = 0; o < n_outs; o++, row += weight_row_bytes(w)) {
        const char *p = row;
        for (int k = 0; k < whole; k += STEP_K, p += step_bytes) {
            prefetch_line(p, ahead);
            _mm512_store_si512(&copy[o][k], widen_weights(type, p, STEP_K));
        }
        if (whole < n) _mm512_store_si512(&copy[o][whole], widen_weights(type, p, n - whole));
    }
    for (int o = n_outs; o < padded; o++)
        memset(copy[o], 0, sizeof *copy);
    return (WeightBlock){(const char *)copy, sizeof *copy};
}

/* ---- products ---- */

typedef float TileSum[TILE][TILE]; /* [output][row of x] */

/* One step of one or two tiles of outputs and one or two groups. */
INLINE void amx_step(int n_tiles, int n_groups, WeightBlock w, int k, const uint32_t *x0,
                     const uint32_t *x1, int columns)
{
    size_t x_stride = (size_t)columns * 4, w_stride = (size_t)w.stride;
    const char *at = w.at + 2 * k;
    _tile_loadd(4, at, w_stride);
    _tile_loadd(6, x0, x_stride);
    _tile_loadd(7, x0 + TILE * columns, x_stride);
    if (n_tiles == 2) _tile_loadd(5, at + TILE * w.stride, w_stride);
    _tile_dpbf16ps(0, 4, 6);
    if (n_tiles == 2) _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(0, 4, 7);
    if (n_tiles == 2) _tile_dpbf16ps(1, 5, 7);
    if (n_groups == 1) return;
    _tile_loadd(6, x1, x_stride);
    _tile_loadd(7, x1 + TILE * columns, x_stride);
    _tile_dpbf16ps(2, 4, 6);
    if (n_tiles == 2) _tile_dpbf16ps(3, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    if (n_tiles == 2) _tile_dpbf16ps(3, 5, 7);
}

INLINE void clear_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* [group][tile of outputs] */
INLINE void load_sums(int n_tiles, int n_groups, TileSum (*sum)[2])
{
    _tile_loadd(0, sum[0][0], 64);
    if (n_tiles == 2) _tile_loadd(1, sum[0][1], 64);
    if (n_groups == 2) _tile_loadd(2, sum[1][0], 64);
    if (n_tiles == 2 && n_groups == 2) _tile_loadd(3, sum[1][1], 64);
}

INLINE void store_sums(int n_tiles, int n_groups, TileSum (*sum)[2])
{
    _tile_stored(0, sum[0][0], 64);
    if (n_tiles == 2) _tile_stored(1, sum[0][1], 64);
    if (n_groups == 2) _tile_stored(2, sum[1][0], 64);
    if (n_tiles == 2 && n_groups == 2) _tile_stored(3, sum[1][1], 64);
}

/* The scales of two tiles of outputs for one block of 128 k's. */
INLINE void load_scales(const Weight *w, int r, int n_outs, int block, float scale[2][TILE])
{
    int n_blocks = (w->cols + FP8_BLOCK - 1) / FP8_BLOCK;
    for (int o = 0; o < AMX_OUTS; o++)
        scale[o / TILE][o % TILE] =
            o < n_outs ? w->scale[(int64_t)((r + o) / FP8_BLOCK) * n_blocks + block] : 0;
}

/* sum += scale * part, or = at the first block. */
INLINE void add_scaled(int n_tiles, int n_groups, float scale[2][TILE], int first,
                       TileSum (*part)[2], TileSum (*sum)[2])
{
    for (int g = 0; g < n_groups; g++)
        for (int t = 0; t < n_tiles; t++)
            UNROLL
    for (int o = 0; o < TILE; o++) {
        Vec s = first ? v_set(0) : v_load(sum[g][t][o]);
        v_store(sum[g][t][o], v_fma(v_set(scale[t][o]), v_load(part[g][t][o]), s));
    }
}

/* A block of k. */
typedef struct {
    int k0, k1;
    WeightBlock w;
    int64_t ahead;                                 /* 0: W is not read, or was prefetched */
    float scale[AMX_K_BLOCK / FP8_BLOCK][2][TILE]; /* where weights have scales */
} KBlock;

/* One step of one tile and one group, into the sum of tile register c. */
#define AMX_STEP_INTO(c, w, k, x, columns)                                                         \
    do {                                                                                           \
        _tile_loadd(4, (w).at + 2 * (k), (size_t)(w).stride);                                      \
        _tile_loadd(6, (x), (size_t)(columns)*4);                                                  \
        _tile_loadd(7, (x) + TILE * (columns), (size_t)(columns)*4);                               \
        _tile_dpbf16ps(c, 4, 6);                                                                   \
        _tile_dpbf16ps(c, 4, 7);                                                                   \
    } while (0)

/*
 * block_product of one tile of outputs and one group, where weights have scales: their four sums
 * side by side, since each product waits for the last one of its sum.
 */
INLINE void scaled_block_product(KBlock *b, const uint32_t *x, int columns, TileSum *sum)
{
    _Alignas(64) TileSum part[AMX_K_BLOCK / FP8_BLOCK];
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
    for (int o = 0; o < TILE; o++) {
        Vec total = b->k0 ? v_load((*sum)[o]) : v_set(0);
        for (int i = 0; i * SCALE_STEPS < n_steps; i++)
            total = v_fma(v_set(b->scale[i][0][o]), v_load(part[i][o]), total);
        v_store((*sum)[o], total);
    }
}

/* The block of one or two groups, whose terms begin at x0 and x1: adds to sum; sets it at k 0. */
INLINE void block_product(WeightType type, int n_tiles, int n_groups, KBlock *b, const uint32_t *x0,
                          const uint32_t *x1, int columns, TileSum (*sum)[2])
{
    _Alignas(64) TileSum part[2][2];
    const int words = 2 * TILE * columns;
    int n_steps = (b->k1 - b->k0 + STEP_K - 1) / STEP_K;
    if (type != WEIGHT_BF16 && n_tiles * n_groups == 1) {
        scaled_block_product(b, x0, columns, &sum[0][0]);
        return;
    }
    const int together = type == WEIGHT_BF16 ? AMX_K_BLOCK / STEP_K : SCALE_STEPS;
    for (int s0 = 0; s0 < n_steps; s0 += together) {
        clear_sums();
        if (type == WEIGHT_BF16 && b->k0) load_sums(n_tiles, n_groups, sum);
        for (int s = s0; s < s0 + together && s < n_steps; s++) {
            for (int o = 0; b->ahead && o < n_tiles * TILE; o++)
                prefetch_line(b->w.at + o * b->w.stride + 2 * s * STEP_K, b->ahead);
            amx_step(n_tiles, n_groups, b->w, s * STEP_K, x0 + s * words, x1 + s * words, columns);
        }
        store_sums(n_tiles, n_groups, type == WEIGHT_BF16 ? sum : part);
        if (type != WEIGHT_BF16)
            add_scaled(n_tiles, n_groups, b->scale[s0 / SCALE_STEPS], b->k0 + s0 == 0, part, sum);
    }
}

/* The sums of a group's tile to y: rows of x, n_outs outputs of each. */
INLINE void emit_tile(TileSum *sum, int n_rows, int n_outs, float *const *y, int y_at)
{
    __m512i r[TILE];
    UNROLL
    for (int o = 0; o < TILE; o++)
        r[o] = _mm512_load_si512((*sum)[o]);
    transpose(r);
    for (int i = 0; i < n_rows; i++)
        _mm512_mask_storeu_epi32(y[i] + y_at, v_mask(n_outs), r[i]);
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
                       uint16_t (*copy)[AMX_K_BLOCK])
{
    const Weight *w = p->w;
    b->k0 = k0;
    b->k1 = w->cols - k0 < AMX_K_BLOCK ? w->cols : k0 + AMX_K_BLOCK;
    int64_t at = (int64_t)k0 * (type == WEIGHT_BF16 ? 2 : 1);
    b->ahead = bytes_ahead(w, outputs_at_once(p->n), at);
    if (type == WEIGHT_BF16 && n_outs % TILE == 0 && (b->k1 - k0) % STEP_K == 0) {
        b->w = (WeightBlock){(const char *)w->data + r * weight_row_bytes(w) + at,
                             weight_row_bytes(w)};
        return;
    }
    b->w = copy_weights(type, w, r, n_outs, k0, b->k1, b->ahead, copy);
    b->ahead = 0;
    for (int k = k0; type != WEIGHT_BF16 && k < b->k1; k += FP8_BLOCK)
        load_scales(w, r, n_outs, k / FP8_BLOCK, b->scale[(k - k0) / FP8_BLOCK]);
    amx_see_stores();
}

/* Outputs r .. r + n_outs, at y_at of y, of groups g0 .. g_end. */
INLINE void outputs(WeightType type, const AmxProduct *p, int r, int n_outs, int y_at, int g0,
                    int g_end)
{
    _Alignas(64) TileSum sum[AMX_GROUPS][2];
    _Alignas(64) uint16_t copy[AMX_OUTS][AMX_K_BLOCK];
    KBlock b;
    int cols = p->w->cols, columns = group_columns(p->n), two = n_outs > TILE;
    for (int k0 = 0; k0 < cols; k0 += AMX_K_BLOCK) {
        open_block(type, p, r, n_outs, k0, &b, copy);
        for (int g = g0; g < g_end; g += 2, b.ahead = 0) {
            int pair = g + 1 < g_end;
            const uint32_t *x0 = p->terms + step_offset(p->n, cols, g, k0 / STEP_K);
            const uint32_t *x1 = pair ? p->terms + step_offset(p->n, cols, g + 1, k0 / STEP_K) : x0;
            TileSum(*s)[2] = sum + (g - g0);
            if (two && pair)
                block_product(type, 2, 2, &b, x0, x1, columns, s);
            else if (two)
                block_product(type, 2, 1, &b, x0, x1, columns, s);
            else if (pair)
                block_product(type, 1, 2, &b, x0, x1, columns, s);
            else
                block_product(type, 1, 1, &b, x0, x1, columns, s);
        }
    }
    for (int g = g0; g < g_end; g++)
        for (int t = 0; t * TILE < n_outs; t++) {
            int n_rows = p->n - g * TILE, left = n_outs - t * TILE;
            emit_tile(&sum[g - g0][t], n_rows < TILE ? n_rows : TILE, left < TILE ? left : TILE,
                      p->y + g * TILE, y_at + t * TILE);
        }
}

INLINE void product_of_type(WeightType type, const AmxProduct *p, int begin, int end)
{
    int n_groups = (p->n + TILE - 1) / TILE, n_outs = outputs_at_once(p->n);
    amx_begin(p->n);
    for (int r = begin; r < end; r += n_outs)
        for (int g = 0; g < n_groups; g += AMX_GROUPS)
            outputs(type, p, r, end - r < n_outs ? end - r : n_outs, r - begin, g,
                    n_groups - g < AMX_GROUPS ? n_groups : g + AMX_GROUPS);
    _tile_release();
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
