/*
 * flops.h: what tokens of a prompt cost to compute, by formula.
 *
 * A product with a matrix counts two operations a weight. Norms, activations and rotations are left
 * out, so are the LM head and the draft head: the one runs for a prompt's last token alone, the
 * other costs the same share whatever is cached.
 */
#ifndef OFFSHOOT_ENGINE_FLOPS_H
#define OFFSHOOT_ENGINE_FLOPS_H

#include "engine/cache.h"
#include "engine/config.h"

/* Of the model: all layers. */
FlopCost model_flops(const ModelConfig *c);

/* FLOPs of tokens [from, to) behind those before them. */
double flops_between(const FlopCost *cost, double from, double to);

#endif
