/*
 * quantise.h: narrow weights out of wider matrices, at load: which, and FP8; INT8 and INT4 are the
 * backend's, kernels/quantise.h.
 */
#ifndef OFFSHOOT_ENGINE_QUANTISE_H
#define OFFSHOOT_ENGINE_QUANTISE_H

#include <stdint.h>

#include "engine/config.h"
#include "kernels/weight.h"

/*
 * What leaf.weight becomes, WEIGHT_NONE if it stays wide: router, gates and the convolution, small
 * ones all; with FP8 also what published FP8 checkpoints keep wide: embedding, LM head, the MTP
 * head's fc. Of Q4 those are INT8 that 4 bits harm the most for their size: embedding and LM head,
 * attention's values, the delta rule's output. The next token's distribution moves by 0.018 nats if
 * none is (the demonstration model, weights alone, KL divergence), by 0.011 with the first two, by
 * 0.009 with all. Int is Q8 here; of packed matrices the loader knows more.
 * leaf: without the prefix of its layer. Vectors are not asked for.
 */
WeightType quantise_to(QuantType quant, const char *leaf);

/*
 * [rows][cols] elements of type F32 or BF16 at any alignment become FP8 codes and scales, W = code
 * * scale: a scale for each block of 128 x 128, its largest magnitude / 448. Works on several
 * threads where that pays; the result is the same. -1 if there is a NaN or an infinity.
 */
int quantise_fp8(const unsigned char *data, WeightType type, int rows, int cols, uint8_t *code,
                 float *scale);

#endif
