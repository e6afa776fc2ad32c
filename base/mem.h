/*
 * mem.h: the one door to the heap.
 *
 * Everything goes through here so that a test can count: after "ready" the engine thread takes no
 * memory. Running out ends the process with one line, as a lost device does; sizes that come from
 * outside are checked before they get here.
 */
#ifndef OFFSHOOT_BASE_MEM_H
#define OFFSHOOT_BASE_MEM_H

#include <stddef.h>

/* count * size bytes, zeroed, aligned to 64 bytes. Never NULL. */
void *mem_alloc(size_t count, size_t size);

/* As realloc, for count * size bytes; the new part is not zeroed. Not for mem_alloc's blocks. */
void *mem_realloc(void *old, size_t count, size_t size);

char *mem_strdup(const char *text);

/* Frees what any function above gave; NULL is fine. */
void mem_free(void *block);

/*
 * bytes of zeroed memory, aligned to 64, for pools: a large block takes a page from the system only
 * when it is touched first. NULL when there is none. To be freed with mem_unmap.
 */
void *mem_map(size_t bytes);
void mem_unmap(void *block);

/* Allocations made by the calling thread so far. */
unsigned long mem_count(void);

#endif
