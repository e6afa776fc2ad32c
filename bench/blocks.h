/*
 * blocks.h: a prefix cache as vLLM's, for comparison: tokens in blocks of one size, a state at the
 * end of every block, the block used longest ago goes first.
 *
 * A block is known by a hash over its own tokens and all before it. Whole blocks alone are kept,
 * and the last token of a prompt is always computed. What a request used becomes young from its
 * last block to its first, so that of one request the end goes before the beginning.
 */
#ifndef OFFSHOOT_BENCH_BLOCKS_H
#define OFFSHOOT_BENCH_BLOCKS_H

#include <stdint.h>

typedef struct Blocks Blocks;

Blocks *blocks_open(int n_blocks, int block_tokens);
void blocks_close(Blocks *b);

/*
 * A request of n tokens, the first n_prompt of them its prompt: returns how many of these were
 * there, and keeps all that fits.
 */
int blocks_request(Blocks *b, const int32_t *token, int n_prompt, int n);

#endif
