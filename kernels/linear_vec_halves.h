/*
 * linear_vec_halves.h: bf16 weights times x in f32, by words of two weights (AVX-512).
 *
 * As f32 one weight of a word is the word shifted left, the other the word without its low half:
 * 32 weights take a load and two instructions, where widening 16 at a time takes two loads and
 * four. Where those run on the ports of multiplications, two of any kind in a cycle (Intel), they
 * are what is left to save. x is packed as words want it: of 32 k's the even ones, then the odd
 * ones, for all rows of a tile, which so reads x from one end to the other.
 *
 * A tile is up to HALVES_ROWS rows by 2 outputs, or up to HALVES_FEW by 4. The x of its block of
 * HALVES_K k's, 24 KiB at most, stays in L1 for a group of outputs; lanes are summed at the block's
 * end and added to y. That order is the same in all tiles. While a group is computed the next one
 * is asked for, in the order of memory; where there are many tiles the first two do that.
 *
 * 40000 x 1024 on one core of Cascade Lake with 10 GB/s: 8.0 ms for 1 row, 8.8 for 8, 13.8 for 16;
 * vectors of 16 widened ones, in tiles of 6 rows by 4 outputs, took 7.8, 10.9 and 17.7. With W and
 * x in L1 8 rows reach 58 G multiply-adds/s where 36 instructions for 32 products allow 62, and 51
 * with the sums of lanes; two cores that do nothing but multiply reach 70 each.
 * 4 and 5 rows by 4 outputs take 0.96 and 0.95 of their time by 2: half the sums of lanes (Emerald
 * Rapids). There blocks of 1,024 k's take 0.98 for 8 rows, 0.95 for 16, and 1.3 for 12, whose x
 * is as large as L1, 48 KiB.
 * Slower: groups of 32 KiB, or of 512, which L2 cannot hold twice; asking for every other line; x
 * as the operand of each product, as gcc would have it, which loads it twice (1.1 times the time).
 *
 * Against the definition: a lane adds cols / VEC_N products in f32, so the error is below
 * (HALVES_K / VEC_N + cols / HALVES_K + log2 VEC_N + 2) * 2^-24 * sum |x w|.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_VEC_HALVES_H
#define OFFSHOOT_KERNELS_LINEAR_VEC_HALVES_H

#include <assert.h>

#include "kernels/linear_cpu.h"

#if VEC_ISA == 512 && !VEC_TILES
#define HALVES 1
#else
#define HALVES 0
#endif

#if HALVES

enum {
    HALVES_ROWS = 12,
    HALVES_FEW = 5,
    HALVES_MOST_OUTS = 4,
    HALVES_K = 512,
    HALVES_LINE = 2 * VEC_N,        /* k's of a cache line of W */
    HALVES_GROUP_BYTES = 128 << 10, /* of W */
    HALVES_GROUP_OUTS = 64,
};

/* Several tiles are of more rows. */
_Static_assert(HALVES_FEW < (HALVES_ROWS + 1) / 2, "tiles of many go by 2 outputs");

INLINE int halves_tiles(int n)
{
    return (n + HALVES_ROWS - 1) / HALVES_ROWS;
}

/* Floats of a packed row. */
INLINE int64_t halves_stride(int cols)
{
    return (cols + HALVES_LINE - 1) / HALVES_LINE * HALVES_LINE;
}

/* Packs a row of x as the i-th of a tile of n: [line][even, odd][n][VEC_N], zeros beyond cols.
 * rounds: to bf16 first. */
INLINE void halves_pack_row(const float *x, int cols, int rounds, int i, int n, float *tile)
{
    float *out = tile + i * VEC_N;
    for (int k = 0; k < cols; k += HALVES_LINE, out += n * HALVES_LINE) {
        int left = cols - k;
        Vec low = v_load_some(x + k, left), high = v_set(0), even, odd;
        if (left > VEC_N) high = v_load_some(x + k + VEC_N, left - VEC_N);
        if (rounds) low = v_round_bf16(low), high = v_round_bf16(high);
        v_part_pairs(low, high, &even, &odd);
        v_store(out, even);
        v_store(out + n * VEC_N, odd);
    }
}

/* Part `part` of the packing of n rows: tiles as even as they get, one behind the other. */
INLINE void halves_pack(const float *const *x, int n, int cols, int rounds, int part, int n_parts,
                        float *terms)
{
    int64_t begin, end;
    cpu_split(n, part, n_parts, &begin, &end);
    for (int i = (int)begin; i < end; i++) {
        int t = tile_of(n, halves_tiles(n), i), first = tile_begin(n, halves_tiles(n), t);
        int rows = tile_begin(n, halves_tiles(n), t + 1) - first;
        halves_pack_row(x[i], cols, rounds, i - first, rows, terms + first * halves_stride(cols));
    }
}

/* Some outputs in a block of k. */
typedef struct {
    const char *at;  /* the first output's weights from the block on */
    int64_t stride;  /* bytes from an output's to the next one's */
    int n_k, adds;   /* adds to y: behind the first block */
    uintptr_t ahead; /* what a tile asks for, n_ahead lines with each line of an output */
} Halves;

/* acc[i][o] += x w over a line of each output. */
INLINE void halves_line(int n_outs, int n_rows, const Vec *w, const float *x,
                        Vec (*acc)[HALVES_MOST_OUTS])
{
    UNROLL
    for (int odd = 0; odd < 2; odd++) {
        Vec wk[HALVES_MOST_OUTS];
        UNROLL
        for (int o = 0; o < n_outs; o++)
            wk[o] = odd ? v_pairs_second(w[o]) : v_pairs_first(w[o]);
        UNROLL
        for (int i = 0; i < n_rows; i++) {
            Vec xk = v_in_register(v_load(x + (odd * n_rows + i) * VEC_N));
            UNROLL
            for (int o = 0; o < n_outs; o++)
                acc[i][o] = v_fma(xk, wk[o], acc[i][o]);
        }
    }
}

/* Sets y, or adds to it, from the lanes of 8 rows, or fewer, by 1 or 2 outputs. */
INLINE void halves_sums(int n_outs, int n_rows, Vec (*acc)[HALVES_MOST_OUTS], float *const *y,
                        int y_at, int adds)
{
    Vec four[4][4];
    __m128 sum[4];
    UNROLL
    for (int j = 0; j < 16; j++)
        four[j / 4][j % 4] = acc[j / 2 < n_rows ? j / 2 : n_rows - 1][j % 2 < n_outs ? j % 2 : 0];
    v_sum4x4(four[0], four[1], four[2], four[3], sum);
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        float *to = y[i] + y_at, two[4];
        _mm_storeu_ps(two, sum[i / 2]);
        UNROLL
        for (int o = 0; o < n_outs; o++)
            to[o] = adds ? to[o] + two[i % 2 * 2 + o] : two[i % 2 * 2 + o];
    }
}

/* n_outs outputs of n_rows rows. */
INLINE void halves_tile(int n_outs, int n_rows, int n_ahead, const Halves *h, const float *x,
                        float *const *y, int y_at)
{
    Vec acc[HALVES_ROWS][HALVES_MOST_OUTS];
    Vec line[HALVES_MOST_OUTS];
    const char *w = h->at;
    const int64_t stride = h->stride;
    uintptr_t ahead = h->ahead;
    int k = h->n_k;
    UNROLL
    for (int i = 0; i < n_rows; i++)
        UNROLL
    for (int o = 0; o < n_outs; o++)
        acc[i][o] = v_set(0);
    _Pragma("GCC unroll 2") for (; k >= HALVES_LINE; k -= HALVES_LINE)
    {
        UNROLL
        for (int i = 0; i < n_ahead; i++)
            prefetch_l2((const void *)ahead, i * CACHE_LINE);
        UNROLL
        for (int o = 0; o < n_outs; o++)
            line[o] = v_pairs((const uint16_t *)(const void *)(w + o * stride));
        halves_line(n_outs, n_rows, line, x, acc);
        ahead += (uintptr_t)(n_ahead * CACHE_LINE);
        w += CACHE_LINE, x += n_rows * HALVES_LINE;
    }
    if (k) {
        UNROLL
        for (int o = 0; o < n_outs; o++)
            line[o] = v_pairs_n((const uint16_t *)(const void *)(w + o * stride), k);
        halves_line(n_outs, n_rows, line, x, acc);
    }
    if (n_outs == HALVES_MOST_OUTS) {
        UNROLL
        for (int i = 0; i < n_rows; i += 4)
            v_sum4_rows(n_rows - i < 4 ? n_rows - i : 4, acc + i, y + i, y_at, h->adds);
        return;
    }
    UNROLL
    for (int i = 0; i < n_rows; i += 8)
        halves_sums(n_outs, n_rows - i < 8 ? n_rows - i : 8, acc + i, y + i, y_at, h->adds);
}

#define HALVES_CASE(n)                                                                             \
    case n:                                                                                        \
        if (n <= most) halves_tile(n_outs, n, n_ahead, h, x, y, y_at);                             \
        break;

INLINE void halves_tile_of(int n_outs, int most, int n_ahead, int n, const Halves *h,
                           const float *x, float *const *y, int y_at)
{
    assert(n <= most);
    switch (n) {
        HALVES_CASE(1)
        HALVES_CASE(2)
        HALVES_CASE(3)
        HALVES_CASE(4)
        HALVES_CASE(5)
        HALVES_CASE(6)
        HALVES_CASE(7)
        HALVES_CASE(8)
        HALVES_CASE(9)
        HALVES_CASE(10)
        HALVES_CASE(11)
        HALVES_CASE(12)
    default:
        break;
    }
}

typedef void HalvesFn(int n, const Halves *h, const float *x, float *const *y, int y_at);

#define HALVES_FN(name, n_outs, most, n_ahead)                                                     \
    static void name(int n, const Halves *h, const float *x, float *const *y, int y_at)            \
    {                                                                                              \
        halves_tile_of(n_outs, most, n_ahead, n, h, x, y, y_at);                                   \
    }

HALVES_FN(halves_few, 4, HALVES_FEW, 4)
HALVES_FN(halves_one, 2, HALVES_ROWS, 2)
HALVES_FN(halves_one_of_many, 2, HALVES_ROWS, 1)
HALVES_FN(halves_single, 1, HALVES_ROWS, 0)

/* The n_outs outputs from h.at on, for so many rows: the t-th tile of n_tiles. */
static void halves_outputs(Halves h, int n_outs, int t, int n_tiles, int rows, const float *x,
                           float *const *y, int y_at)
{
    const int each = rows <= HALVES_FEW ? HALVES_MOST_OUTS : 2, n_ahead = n_tiles == 1 ? each : 1;
    const int64_t ahead_each = (int64_t)n_ahead * (h.n_k / HALVES_LINE) * CACHE_LINE;
    HalvesFn *fn = n_tiles > 1 ? halves_one_of_many : each == 2 ? halves_one : halves_few;
    int o = 0;
    h.ahead += (uintptr_t)(t * (n_outs / each) * ahead_each);
    for (; o + each <= n_outs; o += each, h.at += each * h.stride) {
        if (t >= 2) h.ahead = (uintptr_t)h.at; /* two tiles have asked for all */
        fn(rows, &h, x, y, y_at + o);
        h.ahead += (uintptr_t)ahead_each;
    }
    for (; o < n_outs; o++, h.at += h.stride)
        halves_single(rows, &h, x, y, y_at + o);
}

/* y[i][r - begin] of packed rows. */
static void halves_panel(const Weight *w, int begin, int end, int n, const float *terms,
                         float *const *y)
{
    const int64_t stride = weight_row_bytes(w), x_stride = halves_stride(w->cols);
    const int n_tiles = halves_tiles(n);
    int64_t fit = HALVES_GROUP_BYTES / stride / HALVES_MOST_OUTS * HALVES_MOST_OUTS;
    int group = fit < HALVES_MOST_OUTS ? HALVES_MOST_OUTS : (int)fit;
    if (fit > HALVES_GROUP_OUTS) group = HALVES_GROUP_OUTS;
    for (int r = begin, outs; r < end; r += outs) {
        outs = end - r < group ? end - r : group;
        const char *at = (const char *)w->data + r * stride;
        for (int k0 = 0; k0 < w->cols; k0 += HALVES_K) {
            const int n_k = w->cols - k0 < HALVES_K ? w->cols - k0 : HALVES_K;
            const int64_t k_bytes = (int64_t)k0 * weight_element_bytes(w->type);
            Halves h = {at + k_bytes, stride, n_k, k0 > 0, (uintptr_t)at};
            h.ahead += (uintptr_t)(outs * (stride + k_bytes));
            for (int t = 0; t < n_tiles; t++) {
                int i = tile_begin(n, n_tiles, t), rows = tile_begin(n, n_tiles, t + 1) - i;
                const float *x = terms + i * x_stride + (int64_t)k0 * rows;
                halves_outputs(h, outs, t, n_tiles, rows, x, y + i, r - begin);
            }
        }
    }
}
#endif

#endif
