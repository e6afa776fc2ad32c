/*
 * mma_terms.h: matrix products of f32 values by mma_bf16, each value as the sum of two bf16 terms.
 *
 * A B is lo hi + hi lo + hi hi, in this order, added to f32 sums; what is left out is 2^-17 of
 * |a| |b| at most. A row of the product depends on the same row of A alone, a column on the same
 * column of B.
 *
 * Along k, the sixteen of one product may stand in any order if A and B agree. QUAD order: lane l =
 * lane % 4 has 4 l .. 4 l + 3, which lie side by side in memory. PAIR order is mma's own: it has
 * 2 l, 2 l + 1 and 2 l + 8, 2 l + 9, as two tiles of a result give them.
 *
 * Part of B in memory is a BTerms for each lane: a tile of 16 x 8 is 512 bytes in the lanes' order.
 */
#ifndef OFFSHOOT_KERNELS_MMA_TERMS_H
#define OFFSHOOT_KERNELS_MMA_TERMS_H

#include "kernels/simt_mma.h"

/* hi of the first and second pair, then lo of both. */
typedef uint4 BTerms;

typedef struct {
    uint32_t hi[4], lo[4];
} ATerms;

/* Four values along k of one column of B, or of one row of A. */
static __device__ __forceinline__ BTerms split_four(float a, float b, float c, float d)
{
    BTerms t;
    t.x = bf16_pair(a, b);
    t.y = bf16_pair(c, d);
    t.z = bf16_pair(a - bf16_low(t.x), b - bf16_high(t.x));
    t.w = bf16_pair(c - bf16_low(t.y), d - bf16_high(t.y));
    return t;
}

/* A from rows g and g + 8. */
static __device__ __forceinline__ ATerms rows_as_a(const BTerms &row, const BTerms &row8)
{
    return ATerms{{row.x, row8.x, row.y, row8.y}, {row.z, row8.z, row.w, row8.w}};
}

/* A from two tiles of a result: its rows, the tiles' columns along k. */
static __device__ __forceinline__ ATerms result_as_a(const float x[4], const float y[4])
{
    return rows_as_a(split_four(x[0], x[1], y[0], y[1]), split_four(x[2], x[3], y[2], y[3]));
}

static __device__ __forceinline__ void mma_terms(float d[4], const ATerms &a, const BTerms &b)
{
    const uint32_t hi[2] = {b.x, b.y}, lo[2] = {b.z, b.w};
    mma_bf16(d, a.lo, hi);
    mma_bf16(d, a.hi, lo);
    mma_bf16(d, a.hi, hi);
}

#endif
