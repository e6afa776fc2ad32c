/* hash.c: see hash.h. */
#include "base/hash.h"

#include <xxhash.h>

Hash hash_key(const void *data, size_t bytes, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, seed);
    return (Hash){.low = h.low64, .high = h.high64};
}

uint64_t hash_sum(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

int hash_equal(Hash a, Hash b)
{
    return a.low == b.low && a.high == b.high;
}
