/* mem.c: see mem.h. */
#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

static const size_t LARGE_BLOCK = 4 << 20;

static _Thread_local unsigned long n_allocs;

static void out_of_memory(size_t count, size_t size)
{
    fprintf(stderr, "offshoot: out of memory: %zu x %zu bytes\n", count, size);
    exit(error_exit_status(ERR_DEVICE));
}

void *mem_alloc(size_t count, size_t size)
{
    n_allocs++;
    if (size && count > (SIZE_MAX - 64) / size) out_of_memory(count, size);
    size_t bytes = (count * size + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes ? bytes : 64);
    if (!p) out_of_memory(count, size);
    memset(p, 0, bytes);
    return p;
}

/* In front of every block of mem_map. */
typedef struct {
    _Alignas(64) size_t mapped; /* bytes of the mapping, 0: the block came from mem_alloc */
} MapHeader;

void *mem_map(size_t bytes)
{
    MapHeader *h;
    if (bytes > SIZE_MAX - sizeof *h) return NULL;
    if (bytes < LARGE_BLOCK) {
        h = mem_alloc(1, bytes + sizeof *h);
        return h + 1;
    }
    n_allocs++;
    h = mmap(NULL, bytes + sizeof *h, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (h == MAP_FAILED) return NULL;
    /* Fewer TLB misses; whether the kernel agrees does not matter. */
    madvise(h, bytes + sizeof *h, MADV_HUGEPAGE);
    h->mapped = bytes + sizeof *h;
    return h + 1;
}

void mem_unmap(void *block)
{
    if (!block) return;
    MapHeader *h = (MapHeader *)block - 1;
    if (h->mapped)
        munmap(h, h->mapped);
    else
        mem_free(h);
}

void *mem_realloc(void *old, size_t count, size_t size)
{
    n_allocs++;
    if (size && count > SIZE_MAX / size) out_of_memory(count, size);
    size_t bytes = count * size;
    void *p = realloc(old, bytes ? bytes : 1);
    if (!p) out_of_memory(count, size);
    return p;
}

char *mem_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *p = mem_realloc(NULL, n, 1);
    memcpy(p, text, n);
    return p;
}

void mem_free(void *block)
{
    free(block);
}

unsigned long mem_count(void)
{
    return n_allocs;
}
