/*
 * device_memory.h: a GPU's memory, on the host: one range of addresses that nobody can touch, and
 * the bytes behind it elsewhere, for kernels and copies.
 *
 * So host code that follows a pointer of the device faults. What is freed is never given again, so
 * whoever uses it later is found. The ranges are fixed, so that a check is a few instructions.
 */
#ifndef OFFSHOOT_TESTS_PTX_DEVICE_MEMORY_H
#define OFFSHOOT_TESTS_PTX_DEVICE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Memory in grains; for each, how many of its bytes are someone's and which launch wrote it last.
 */
#define DEVICE_MEMORY_AT    0x200000000000u
#define DEVICE_MEMORY_BYTES ((uint64_t)256 << 30)
#define DEVICE_USED_AT      (DEVICE_MEMORY_AT + DEVICE_MEMORY_BYTES)
#define DEVICE_WRITER_AT    (DEVICE_USED_AT + DEVICE_MEMORY_BYTES / 16)
#define DEVICE_BYTES_AT     (DEVICE_WRITER_AT + DEVICE_MEMORY_BYTES / 8)

static inline int device_memory_reserved(uint64_t at)
{
    return at - DEVICE_MEMORY_AT < DEVICE_MEMORY_BYTES;
}

/* Where the byte of an address is; of an address of the host, itself. */
static inline void *device_memory_bytes(uint64_t at)
{
    if (device_memory_reserved(at)) at += DEVICE_BYTES_AT - DEVICE_MEMORY_AT;
    return (void *)(uintptr_t)at;
}

/* `at` is reserved. */
static inline uint16_t *device_memory_writer(uint64_t at)
{
    return (uint16_t *)(uintptr_t)DEVICE_WRITER_AT + (at - DEVICE_MEMORY_AT) / 16;
}

/* Of up to 16 bytes that lie within 16, whether all are someone's. */
static inline int device_memory_has(uint64_t at, uint32_t bytes)
{
    uint64_t in = at - DEVICE_MEMORY_AT;
    if (in >= DEVICE_MEMORY_BYTES) return 0;
    return (in & 15) + bytes <= ((const unsigned char *)(uintptr_t)DEVICE_USED_AT)[in / 16];
}

/* Filled with 0xff. NULL: there is no more. */
void *device_memory_take(size_t bytes);
/* -1: no block begins there. */
int device_memory_give(void *block);
/* Whether all of a range lies in one block. */
int device_memory_has_range(const void *at, size_t bytes);
void device_memory_count(size_t *left, size_t *all);
/* Says what an address is, for a message. */
const char *device_memory_describe(uint64_t at, char text[128]);

#endif
