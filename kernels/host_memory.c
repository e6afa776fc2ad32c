/* host_memory.c: host memory as backend memory. */
#include "kernels/host_memory.h"

#include <string.h>

#include "base/mem.h"

static void *host_alloc(Backend *be, size_t bytes, Error *err)
{
    (void)be;
    void *mem = mem_map(bytes);
    if (!mem) error_set(err, ERR_DEVICE, "no memory for %zu bytes; lower --memory", bytes);
    return mem;
}

static void host_free(Backend *be, void *mem)
{
    (void)be;
    mem_unmap(mem);
}

static void host_move(Backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    if (bytes) memmove(dst, src, bytes);
}

static void host_zero(Backend *be, void *dst, size_t bytes)
{
    (void)be;
    if (bytes) memset(dst, 0, bytes);
}

static int host_sync(Backend *be, Error *err)
{
    (void)be, (void)err;
    return 0;
}

void host_memory_fill(Backend *be)
{
    be->alloc = host_alloc;
    be->free = host_free;
    be->upload = host_move;
    be->download = host_move;
    be->copy = host_move;
    be->zero = host_zero;
    be->sync = host_sync;
}
