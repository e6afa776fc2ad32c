/* mem.c: see mem.h. */
#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t HUGE_PAGE = 2 << 20, LARGE_BLOCK = 8 << 20;

static _Thread_local unsigned long n_allocs;

static void out_of_memory(size_t count, size_t size)
{
    fprintf(stderr, "offshoot: out of memory: %zu x %zu bytes\n", count, size);
    exit(1);
}

void *mem_alloc(size_t count, size_t size)
{
    n_allocs++;
    if (size && count > (SIZE_MAX - 64) / size) out_of_memory(count, size);
    size_t align = count * size < LARGE_BLOCK ? 64 : HUGE_PAGE;
    size_t bytes = (count * size + align - 1) / align * align;
    void *p = aligned_alloc(align, bytes ? bytes : align);
    if (!p) out_of_memory(count, size);
    /* Pools and scratch: fewer TLB misses; whether the kernel agrees does not matter. */
    if (align == HUGE_PAGE) madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
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
