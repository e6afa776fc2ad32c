/* host_memory.c: host memory as backend memory. */
#include "kernels/host_memory.h"

#include <string.h>
#include <unistd.h>

#include "base/available.h"
#include "base/mem.h"

static void *host_alloc(Backend *be, size_t bytes, Error *err)
{
    (void)be;
    void *mem = mem_map(bytes);
    if (!mem) error_set(err, ERR_DEVICE, "no memory for %zu bytes; lower --memory", bytes);
    return mem;
}

/* As for a device that has its own. */
static void *host_alloc_beside(Backend *be, size_t bytes, Error *err)
{
    (void)be;
    void *mem = mem_map(bytes);
    if (!mem) error_set(err, ERR_DEVICE, "no host memory for %zu bytes", bytes);
    return mem;
}

static size_t host_free_bytes(Backend *be)
{
    (void)be;
    int64_t left = memory_available();
    if (left >= 0) return (size_t)left;
    return (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
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

static void host_mark(Backend *be, int mark)
{
    (void)be, (void)mark;
}

static int host_wait(Backend *be, int mark, Error *err)
{
    (void)be, (void)mark, (void)err;
    return 0;
}

static void host_aside_begin(Backend *be)
{
    (void)be;
}

/* It has been done when it was queued. */
static int host_aside_done(Backend *be, int number, int wait)
{
    (void)be, (void)number, (void)wait;
    return 1;
}

static int host_replay(Backend *be, const ReplayKey *key, void (*record)(void *), void *ctx)
{
    (void)be, (void)key;
    record(ctx);
    return 1;
}

void host_memory_fill(Backend *be)
{
    be->is_host = 1;
    be->alloc = host_alloc;
    be->free_bytes = host_free_bytes;
    be->free = host_free;
    be->host_alloc = host_alloc_beside;
    be->host_free = host_free;
    be->upload = host_move;
    be->download = host_move;
    be->download_later = host_move;
    be->mark = host_mark;
    be->wait = host_wait;
    be->aside_begin = be->aside_join = host_aside_begin;
    be->aside_copy = host_move;
    be->aside_end = host_mark;
    be->aside_done = host_aside_done;
    be->copy = host_move;
    be->zero = host_zero;
    be->sync = host_sync;
    be->replay = host_replay;
}
