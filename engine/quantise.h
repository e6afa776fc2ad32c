/*
 * quantise.h: FP8 out of wider matrices, at load, as published FP8 checkpoints have it.
 */
#ifndef OFFSHOOT_ENGINE_QUANTISE_H
#define OFFSHOOT_ENGINE_QUANTISE_H

#include <stdint.h>

#include "kernels/weight.h"

/*
 * 1 if published FP8 checkpoints keep leaf.weight wide: embedding, head, router, gates, the
 * convolution, the MTP head's fc. leaf: without the prefix of its layer. Vectors are not asked for.
 */
int quantise_keeps_wide(const char *leaf);

/*
 * [rows][cols] elements of type F32 or BF16 at any alignment become codes and, for each block of
 * 128 x 128, a scale: its largest magnitude / 448, so that W = code * scale and none is beyond the
 * codes. Works on several threads where that pays; the result is the same. -1 if there is a NaN or
 * an infinity.
 */
int quantise_fp8(const unsigned char *data, WeightType type, int rows, int cols, uint8_t *code,
                 float *scale);

#endif
