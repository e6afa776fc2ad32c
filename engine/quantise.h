/*
 * quantise.h: weights of one byte out of wider matrices, at load.
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
 * [rows][cols] elements of type F32 or BF16 at any alignment become codes and scales, W = code *
 * scale. Works on several threads where that pays; the result is the same. -1 if there is a NaN or
 * an infinity.
 *
 * FP8: a scale for each block of 128 x 128, its largest magnitude / 448.
 * INT8: one for each 128 neighbours in a row, their largest magnitude / 127; codes are rounded to
 * the nearest, ties to even. code and scale are as weight.h has them, and hold zeros before.
 */
int quantise(WeightType to, const unsigned char *data, WeightType type, int rows, int cols,
             uint8_t *code, float *scale);

#endif
