/*
 * quantise.h: a matrix of the checkpoint as INT8 or INT4 weights, when it is loaded. CPU only.
 *
 * For 256 neighbours of a row: scale = largest |w| / 127, v = w * (127 / largest |w|); where none
 * reaches 2^-110, scale 1 and zeros. INT8: code = the integer nearest to v, ties to even.
 *
 * INT4, for each run of 32 v: t = the integers nearest to 8 v, lo and hi the least and the largest
 * of them, s0 = ceil((hi - lo) / 120), but 1 .. 16. Of these six, in this order,
 *
 *     s = s0, s0 - 1 (if above 0),   d = -1, 0, 1
 *     m = (120 s - lo - hi + 4 d s) / 16, to an integer, but 15 s - 127 .. 127
 *     bits = (t + 8 m) * (1 / (8 s)), to an integer, but 0 .. 15
 *
 * the first with the least sum of (t - 8 (s bits - m))^2 gives step s, offset 128 - m and the bits.
 * That is 0.87 of the error (root mean square) of the widest range alone, centred, which is s0 and
 * d = 0 (the demonstration model). All of it is exact in f32 but 1 / (8 s) and the product with
 * that.
 *
 * Traffic: the matrix once, its codes once.
 */
#ifndef OFFSHOOT_KERNELS_QUANTISE_H
#define OFFSHOOT_KERNELS_QUANTISE_H

#include "kernels/weight.h"

typedef struct {
    const void *data;    /* [rows][cols] of from at any alignment */
    WeightType from, to; /* F32 or BF16; INT8 or INT4 */
    int rows, cols;
    void *code;   /* weight_data_bytes and weight_n_scales of them, as weight.h lays them out; */
    float *scale; /* all are written, those that pad too */
} QuantiseInt;

enum {
    INT8_LARGEST_CODE = 127,
    INT4_LARGEST_STEP = 16,
    INT4_FINER = 8,   /* t is so many times v */
    INT4_TRIED = 2,   /* of s that are tried */
    INT4_LARGEST = 15 /* bits */
};

/* 256 numbers of which none is larger count as zeros, of W and of x. */
static const float INT8_TINY = 0x1p-110f;

#endif
