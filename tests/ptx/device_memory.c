/* device_memory.c: see device_memory.h. */
#include "tests/ptx/device_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MAX_BLOCKS = 1 << 20,
    ALIGN = 256, /* of cudaMalloc */
};

/* That of a small GPU: tests ask for more than there is. */
static const size_t all_bytes = (size_t)8 << 30;

typedef struct {
    uint64_t at;
    size_t bytes;
    int live;
} Block;

static Block *blocks; /* by address */
static size_t n_blocks, used_bytes;
static uint64_t top = DEVICE_MEMORY_AT;

static void reserve(uint64_t at, uint64_t bytes, int protection)
{
    void *to = (void *)(uintptr_t)at;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap(to, bytes, protection, flags, -1, 0) == to) return;
    perror("device memory: mmap");
    abort();
}

static void begin(void)
{
    if (blocks) return;
    blocks = calloc(MAX_BLOCKS, sizeof *blocks);
    if (!blocks) abort();
    reserve(DEVICE_MEMORY_AT, DEVICE_MEMORY_BYTES, PROT_NONE);
    reserve(DEVICE_USED_AT, DEVICE_MEMORY_BYTES / 16, PROT_READ | PROT_WRITE);
    reserve(DEVICE_WRITER_AT, DEVICE_MEMORY_BYTES / 8, PROT_READ | PROT_WRITE);
    reserve(DEVICE_BYTES_AT, DEVICE_MEMORY_BYTES, PROT_READ | PROT_WRITE);
}

static void mark(uint64_t at, size_t bytes, int live)
{
    unsigned char *grain =
        (unsigned char *)(uintptr_t)DEVICE_USED_AT + (at - DEVICE_MEMORY_AT) / 16;
    memset(grain, live ? 16 : 0, bytes / 16);
    if (bytes % 16) grain[bytes / 16] = live ? (unsigned char)(bytes % 16) : 0;
}

void *device_memory_take(size_t bytes)
{
    begin();
    if (bytes > all_bytes - used_bytes || n_blocks == MAX_BLOCKS) return NULL;
    uint64_t at = top;
    top += (bytes + ALIGN - 1) / ALIGN * ALIGN + ALIGN; /* and a gap */
    if (top > DEVICE_USED_AT) abort();
    blocks[n_blocks++] = (Block){at, bytes, 1};
    used_bytes += bytes;
    mark(at, bytes, 1);
    memset(device_memory_bytes(at), 0xff, bytes);
    return (void *)(uintptr_t)at;
}

/* The last block that begins at or before it. */
static Block *block_of(uint64_t at)
{
    size_t low = 0, high = n_blocks;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &blocks[low - 1] : NULL;
}

int device_memory_give(void *block)
{
    Block *b = block_of((uintptr_t)block);
    if (!b || b->at != (uintptr_t)block || !b->live) return -1;
    uint64_t first = (b->at + 4095) / 4096 * 4096, last = (b->at + b->bytes) / 4096 * 4096;
    b->live = 0;
    used_bytes -= b->bytes;
    mark(b->at, b->bytes, 0);
    if (last > first) madvise(device_memory_bytes(first), last - first, MADV_DONTNEED);
    return 0;
}

int device_memory_has_range(const void *at, size_t bytes)
{
    const Block *b = block_of((uintptr_t)at);
    uint64_t in = b ? (uintptr_t)at - b->at : 0;
    return b && b->live && in <= b->bytes && bytes <= b->bytes - in;
}

void device_memory_count(size_t *left, size_t *all)
{
    *all = all_bytes;
    *left = all_bytes - used_bytes;
}

const char *device_memory_describe(uint64_t at, char text[128])
{
    const Block *b = block_of(at);
    if (!device_memory_reserved(at) || !b)
        snprintf(text, 128, "no device memory");
    else
        snprintf(text, 128, "byte %llu of a block of %zu%s", (unsigned long long)(at - b->at),
                 b->bytes, b->live ? "" : ", freed");
    return text;
}
