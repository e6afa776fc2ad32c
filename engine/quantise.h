/*
 * quantise.h: which matrices FP8 checkpoints hold in FP8.
 */
#ifndef OFFSHOOT_ENGINE_QUANTISE_H
#define OFFSHOOT_ENGINE_QUANTISE_H

/*
 * 1 if published FP8 checkpoints keep leaf.weight wide: embedding, head, router, gates, the
 * convolution, the MTP head's fc. leaf: without the prefix of its layer. Vectors are not asked for.
 */
int quantise_keeps_wide(const char *leaf);

#endif
