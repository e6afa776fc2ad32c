/*
 * quantise.h: weights of one byte out of wider matrices, at load: which, and FP8; INT8 is the
 * backend's, kernels/quantise.h.
 */
#ifndef OFFSHOOT_ENGINE_QUANTISE_H
#define OFFSHOOT_ENGINE_QUANTISE_H

#include <stdint.h>

#include "kernels/weight.h"

/*
 * 1 if leaf.weight stays wide: router, gates and the convolution, small ones all; with FP8 also
 * what published FP8 checkpoints keep wide: embedding, LM head, the MTP head's fc. leaf: without
 * the prefix of its layer. Vectors are not asked for.
 */
int quantise_keeps_wide(WeightType to, const char *leaf);

/*
 * [rows][cols] elements of type F32 or BF16 at any alignment become FP8 codes and scales, W = code
 * * scale: a scale for each block of 128 x 128, its largest magnitude / 448. Works on several
 * threads where that pays; the result is the same. -1 if there is a NaN or an infinity.
 */
int quantise_fp8(const unsigned char *data, WeightType type, int rows, int cols, uint8_t *code,
                 float *scale);

#endif
