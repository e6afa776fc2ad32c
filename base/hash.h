/*
 * hash.h: XXH3 of bytes. Not cryptographic: a match that matters is compared too.
 */
#ifndef OFFSHOOT_BASE_HASH_H
#define OFFSHOOT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t low, high;
} Hash;

/* 128 bits, for names and keys. */
Hash hash_key(const void *data, size_t bytes, uint64_t seed);

/* 64 bits, for checksums. */
uint64_t hash_sum(const void *data, size_t bytes);

int hash_equal(Hash a, Hash b);

#endif
