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
    TILE = 16,                              /* rows of W, rows of x */
    AMX_OUTS = 2 * TILE,                    /* outputs computed together */
    AMX_AHEAD = 512,                        /* bytes of a row of W from prefetch to product */
    AMX_K_BLOCK = 512,                      /* k's whose W and sums stay in L1 */
    AMX_K_SCALES = AMX_K_BLOCK / FP8_BLOCK, /* scales in that */
    AMX_FAR_ROWS = 64, /* more rows of x than these come from L2 late: 8 % of a product of 256 */
    AMX_GROUPS = 8,    /* groups whose sums wait together */
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

/* Where some rows of W lie for a block of k: in W itself, or in a copy. */
typedef struct {
    const char *at;
    int64_t stride;
} WeightBlock;

typedef unsigned char WeightCopy[AMX_OUTS][2 * AMX_K_BLOCK];

/* A block of k. */
typedef struct {
    int k0, k1;
    WeightBlock w;
    int fetch_x;                        /* x is more than L1 and the hardware keep at hand */
    int64_t ahead;                      /* 0: W is not read, or was prefetched */
    float scale[AMX_K_SCALES][2][TILE]; /* where weights have scales */
} KBlock;

/* ---- sums ---- */

typedef float TileSum[TILE][TILE]; /* [output][row of x] */

#endif
