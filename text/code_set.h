/*
 * code_set.h: sets of Unicode code points, as a character class of a pattern names them.
 *
 * Zero-initialised is the empty set. Ranges may be added in any order and overlap; after
 * code_set_normalise they are sorted, and between any two of them lies a code point.
 */
#ifndef OFFSHOOT_TEXT_CODE_SET_H
#define OFFSHOOT_TEXT_CODE_SET_H

#include <stdint.h>

enum { MAX_CODE = 0x10FFFF };

typedef struct {
    uint32_t lo, hi; /* both in the range */
} CodeRange;

typedef struct {
    CodeRange *range;
    int n, cap;
} CodeSet;

void code_set_add(CodeSet *set, uint32_t lo, uint32_t hi);

/* Adds what \d, \w, \s and . (kind 'd', 'w', 's', '.') stand for; 'D', 'W', 'S': all the others. */
void code_set_add_kind(CodeSet *set, char kind);

void code_set_normalise(CodeSet *set);

/* Normalises set, then makes it hold all other code points. */
void code_set_negate(CodeSet *set);

void code_set_free(CodeSet *set);

#endif
