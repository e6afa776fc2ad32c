/*
 * quantise.h: a matrix of the checkpoint as INT8 weights, when it is loaded. CPU only.
 *
 * For 256 neighbours of a row: scale = largest |w| / 127, code = the nearest integer of
 * w * (127 / largest |w|), ties to even; where none reaches 2^-110, scale 1 and zeros.
 * Traffic: the matrix once, its codes once.
 */
#ifndef OFFSHOOT_KERNELS_QUANTISE_H
#define OFFSHOOT_KERNELS_QUANTISE_H

#include "kernels/weight.h"

typedef struct {
    const void *data; /* [rows][cols] of from at any alignment */
    WeightType from;  /* F32 or BF16 */
    int rows, cols;
    int8_t *code; /* weight_data_bytes and weight_n_scales of them, as weight.h lays them out; */
    float *scale; /* all are written, those that pad too */
} QuantiseInt8;

enum { INT8_LARGEST_CODE = 127 };

/* 256 numbers of which none is larger count as zeros, of W and of x. */
static const float INT8_TINY = 0x1p-110f;

#endif
