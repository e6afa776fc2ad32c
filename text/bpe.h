/*
 * bpe.h: merging the bytes of one piece of text into tokens.
 *
 * Byte pair encoding: as long as two neighbours have a merge, the merge of lowest rank is done, the
 * leftmost first among equals. A linked list of symbols and a heap of candidate merges make this
 * O(n log n): a piece may be a megabyte of one letter.
 */
#ifndef OFFSHOOT_TEXT_BPE_H
#define OFFSHOOT_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

typedef struct {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    int32_t rank, id;
} BpeMerge;

typedef struct {
    int32_t byte_id[256];
    BpeMerge *merge; /* open addressing, mask + 1 slots, at most half full */
    uint32_t mask;
} Bpe;

void bpe_init(Bpe *bpe, size_t n_merges);
void bpe_free(Bpe *bpe);

/* A pair given twice keeps its last rank, as in the reference implementation. */
void bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);

typedef struct {
    struct BpeSymbol *symbol;
    struct BpeCandidate *heap;
    size_t n_heap, cap;
} BpeScratch; /* zero-initialised; one per caller, reused from piece to piece */

void bpe_scratch_free(BpeScratch *s);

/* Appends the tokens of one piece to *out. */
void bpe_encode(const Bpe *bpe, BpeScratch *s, const char *piece, size_t len, TokenList *out);

#endif
