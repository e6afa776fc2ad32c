/*
 * amx.h: what the products in the tiles of AMX share: shapes, tile registers, blocks of W.
 *
 * A tile product takes 16 rows of W, as they lie in memory, times 16 rows of x ("a group"). Only
 * for linear_amx.h and its parts, compiled with -DISA=amx.
 */
#ifndef OFFSHOOT_KERNELS_AMX_H
#define OFFSHOOT_KERNELS_AMX_H

#include <assert.h>
#include <immintrin.h>
#include <math.h>

#include "kernels/linear_cpu.h"

enum {
    TILE = 16,            /* rows of W, rows of x */
    AMX_OUTS = 2 * TILE,  /* outputs computed together for many rows of x */
    AMX_TILES = 17,       /* of outputs side by side for few; odd: or rows share a set of L1 */
    AMX_NEAR = 256 << 10, /* bytes of a part of W that may well be in a cache: no streams then */
    AMX_AHEAD = 512,      /* bytes of a row of W from prefetch to product, for one group of x */
    AMX_K_BLOCK = 512,    /* k's whose W and sums stay in L1 */
    AMX_K_SCALES = AMX_K_BLOCK / FP8_BLOCK, /* scales in that */
    AMX_FAR_ROWS = 64,                      /* y of more rows than these is not kept in cache */
    AMX_GROUPS = 16,                        /* groups whose sums wait together, at most */
    AMX_X_BYTES = 1 << 20, /* of x that stay in L2 while W passes; half is left to the rest */
};

/* ---- tile registers: 0..3 sums, 4 and 5 W, 6 and 7 x ---- */

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

/* What has been stored at `at` is in memory: the compiler does not know that tiles read it. */
INLINE void amx_see_stores(const void *at)
{
    __asm__ volatile("" ::"r"(at) : "memory");
}

/* Registers of W have 16 rows of 64 bytes, the others so many rows of so many bytes. */
INLINE void amx_begin(int rows, int row_bytes)
{
    TileConfig config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        int is_w = i == 4 || i == 5;
        config.rows[i] = (uint8_t)(is_w ? TILE : rows);
        config.row_bytes[i] = (uint16_t)(is_w ? 64 : row_bytes);
    }
    amx_see_stores(&config);
    _tile_loadconfig(&config);
}

/*
 * Each tile instruction is followed by a group of others. Where the core's other hyperthread is
 * busy, one tile instruction behind the other takes 30 ns a product with its loads, these 18
 * (Sapphire Rapids, 2.2 GHz; 6 are not enough); with the core to itself 8.4 against 7.5.
 */
#define AMX_GAP __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop")

#define TILE_OP(op, ...)                                                                           \
    do {                                                                                           \
        op(__VA_ARGS__);                                                                           \
        AMX_GAP;                                                                                   \
    } while (0)

/* Registers are literals. Sums c += a b of bf16 pairs, of signed bytes, of unsigned by signed. */
#define TILE_LOAD(t, at, stride) TILE_OP(_tile_loadd, t, at, stride)
#define TILE_BF16(c, a, b)       TILE_OP(_tile_dpbf16ps, c, a, b)
#define TILE_S8(c, a, b)         TILE_OP(_tile_dpbssd, c, a, b)
#define TILE_U8(c, a, b)         TILE_OP(_tile_dpbusd, c, a, b)

INLINE void clear_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

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

/* ---- W ---- */

/* Outputs that are computed together. */
typedef struct {
    int first, n;
    int apart; /* rows of W from an output's to the next one's */
    int next;  /* rows of W from the first one's to the first one's of those computed next */
} Outputs;

/*
 * Outputs from r on, of which `part` of so many tiles is to be computed. Tiles of few rows of x
 * wait for W, so the hardware should see it come: as TILE streams, each AMX_TILES rows of W long,
 * of which a tile has one row. Tiles of TILE neighbours are streams that end with a row, before
 * the hardware has caught up: 0.8 of the rate for rows of 2 KiB, 0.93 for 8 KiB (two cores of
 * Granite Rapids; then 31 of the 32 GB/s that a plain loop reads).
 */
INLINE Outputs few_outputs(int r, int end, int tiles, int part)
{
    int n = end - r < TILE ? end - r : TILE;
    return (Outputs){r + part, n, tiles, part + 1 < tiles ? 1 : (TILE - 1) * tiles + 1};
}

/* Tiles of such outputs; an odd number, or their rows of W share a set of L1. */
INLINE int few_tiles(int r, int end)
{
    int tiles = (end - r) / TILE;
    return tiles < 1 ? 1 : tiles > AMX_TILES ? AMX_TILES : tiles - (tiles % 2 == 0);
}

/* From a place in a row of W to the one to prefetch there: in the same row or in the next. */
INLINE int64_t bytes_ahead(const Weight *w, int n, const Outputs *o, int64_t at)
{
    int64_t row = weight_row_bytes(w);
    int64_t ahead = n <= TILE ? AMX_AHEAD : AMX_K_BLOCK * weight_element_bytes(w->type);
    return at + ahead < row ? ahead : ahead - row + o->next * row;
}

/* Groups of x that all of W passes, one after the other, before the next: an even number. */
INLINE int groups_at_once(int64_t group_bytes)
{
    int64_t n = AMX_X_BYTES / group_bytes / 2 * 2;
    return n < 2 ? 2 : n > AMX_GROUPS ? AMX_GROUPS : (int)n;
}

/* Where some rows of W lie for a block of k: in W itself, or in a copy. */
typedef struct {
    const char *at;
    int64_t stride; /* bytes from an output's to the next one's */
} WeightBlock;

typedef unsigned char WeightCopy[AMX_OUTS][2 * AMX_K_BLOCK];

/* A block of k. */
typedef struct {
    int k0, k1;
    WeightBlock w;
    int64_t ahead;                      /* to what is to be prefetched; 0: nothing is */
    int ahead_begin, ahead_end;         /* of which rows of W, while a pair of groups is computed */
    float scale[AMX_K_SCALES][2][TILE]; /* where weights have scales */
} KBlock;

/* ---- sums ---- */

/*
 * n <= 16 outputs of a row to y. Those of many rows go past the caches, where they would only drive
 * out x and wait for what they overwrite: 18 % of a product of 256 rows.
 */
INLINE void amx_emit(Vec sum, int n, int n_rows, float *y)
{
    if (n_rows > AMX_FAR_ROWS && n >= TILE && (uintptr_t)y % 64 == 0)
        _mm512_stream_ps(y, sum);
    else
        v_store_some(y, sum, n);
}

/* Whoever sees that the product of n_rows has ended sees what went past the caches. */
INLINE void amx_end(int n_rows)
{
    _tile_release();
    if (n_rows > AMX_FAR_ROWS) _mm_sfence();
}

typedef float TileSum[TILE][TILE]; /* [output][row of x] */

#endif
