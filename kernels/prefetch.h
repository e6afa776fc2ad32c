/*
 * prefetch.h: asking for memory before it is read. Only for sources compiled with -DISA=...
 */
#ifndef OFFSHOOT_KERNELS_PREFETCH_H
#define OFFSHOOT_KERNELS_PREFETCH_H

#include "kernels/vec.h"

enum { CACHE_LINE = 64 };

/* Asks for the line `ahead` bytes further on; where no memory is, that is a hint like any other. */
INLINE void prefetch_line(const void *at, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)ahead));
}

/*
 * The same into L2 alone. L1 has few places for lines that are on their way: a stream of W came at
 * 23 GB/s into L1 and at 29 into L2, of 31 that a plain loop reads (two cores of Zen 4).
 */
INLINE void prefetch_l2(const void *at, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)ahead), 0, 2);
}

#endif
