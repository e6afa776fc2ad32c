/* counting_backend.c: see counting_backend.h. */
#include "tests/counting_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/mman.h>

#include "base/mem.h"
#include "tests/analyzer.h"

static const size_t ALL_BYTES = (size_t)16 << 40, ALIGN = 256;

typedef struct {
    Backend be;
    unsigned char *memory;
    size_t used;
} Counting;

static void *count_alloc(Backend *be, size_t bytes, Error *err)
{
    Counting *c = (Counting *)be;
    void *at = c->memory + c->used;
    (void)err;
    c->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    assert_true(c->used <= ALL_BYTES);
    return at;
}

static void no_free(Backend *be, void *mem)
{
    (void)be;
    (void)mem;
}

static void no_upload(Backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    (void)dst;
    (void)src;
    (void)bytes;
}

static void no_zero(Backend *be, void *dst, size_t bytes)
{
    (void)be;
    (void)dst;
    (void)bytes;
}

static int no_sync(Backend *be, Error *err)
{
    (void)be;
    (void)err;
    return 0;
}

static int always_done(Backend *be, int number, int wait)
{
    (void)be;
    (void)number;
    (void)wait;
    return 1;
}

static void count_close(Backend *be)
{
    Counting *c = (Counting *)be;
    munmap(c->memory, ALL_BYTES);
    mem_free(c);
}

Backend *counting_backend_open(void)
{
    Counting *c = mem_alloc(1, sizeof *c);
    c->be = (Backend){.name = "counting",
                      .alloc = count_alloc,
                      .free = no_free,
                      .host_alloc = count_alloc,
                      .host_free = no_free,
                      .upload = no_upload,
                      .copy = no_upload,
                      .zero = no_zero,
                      .sync = no_sync,
                      .aside_done = always_done,
                      .close = count_close};
    c->memory = mmap(NULL, ALL_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->memory == MAP_FAILED) fail_msg("no addresses");
    return &c->be;
}

void counting_backend_set_host(Backend *be, int is_host)
{
    be->is_host = is_host;
    be->prefill_differs = !is_host;
}
