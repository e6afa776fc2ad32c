/* races.c: see races.h. */
#include "tests/ptx/races.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/ptx/ptx_run.h"

/* A barrier that threads have passed, of a block or a warp. */
typedef struct {
    const PtxEntry *entry;
    int line;
    int needed; /* two accesses are ordered by it alone */
} Barrier;

/* An access: who, when, where. */
typedef struct {
    const PtxEntry *entry; /* NULL: none */
    uint32_t launch, block;
    uint32_t interval, warp_interval; /* barriers passed before it, of the block, of the warp */
    int line;
    uint16_t thread;
    uint16_t access; /* PtxAccess */
} Touch;

/* Of a byte of shared memory. */
typedef struct {
    Touch store, load;
    Touch other_lane, other_warp; /* loads before `load`, by others */
} Shared;

/* Of a thread of the block that runs. */
typedef struct {
    uint32_t interval, warp_interval;
    Barrier *barrier, *warp_barrier; /* the last it has passed */
    int waited;
} Thread;

/* Two launches overlap, each with shared memory and threads of its own. */
typedef struct {
    const unsigned char *shared;
    Shared *byte;
    Thread thread[SIMT_MAX_THREADS];
} Block;

/* A thread has drawn a ticket. */
typedef struct {
    uint64_t at;
    Touch touch;
} Draw;

enum { MAX_BARRIERS = 1 << 13, MAX_DRAWS = 1 << 16 };

int races_watched;
static Block blocks[2];
static Barrier barriers[MAX_BARRIERS]; /* by hash */
static Touch *global;                  /* of each byte of the device's memory: the last store */
static Draw draws[MAX_DRAWS];          /* of one launch, in their order */
static int n_draws;
static uint32_t settled; /* launches up to this one have ended */
static uint32_t last;    /* of those whose threads have begun */

static void *reserve(uint64_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at != MAP_FAILED) return at;
    perror("races: mmap");
    abort();
}

static Block *block_of(const PtxThread *t)
{
    Block *b = blocks[0].shared && blocks[0].shared != t->shared ? &blocks[1] : &blocks[0];
    b->shared = t->shared;
    return b;
}

static Thread *thread_of(const PtxThread *t)
{
    return &block_of(t)->thread[simt_thread_idx.x];
}

static Touch touch(const PtxThread *t, int line, PtxAccess access)
{
    const Thread *of = thread_of(t);
    SimtDim b = simt_block_idx, n = simt_grid_dim;
    return (Touch){.entry = t->entry,
                   .launch = t->launch,
                   .block = (b.z * n.y + b.y) * n.x + b.x,
                   .interval = of->interval,
                   .warp_interval = of->warp_interval,
                   .line = line,
                   .thread = (uint16_t)simt_thread_idx.x,
                   .access = (uint16_t)access};
}

/* ---- barriers ---- */

static Barrier *barrier_at(const PtxEntry *entry, int line)
{
    static int n;
    uint32_t at = ((uint32_t)((uintptr_t)entry / 16) * 31 + (uint32_t)line) % MAX_BARRIERS;
    while (barriers[at].entry && (barriers[at].entry != entry || barriers[at].line != line))
        at = (at + 1) % MAX_BARRIERS;
    n += !barriers[at].entry;
    assert(n < MAX_BARRIERS);
    barriers[at].entry = entry, barriers[at].line = line;
    return &barriers[at];
}

/*
 * For those who read what the tests of this run reach: a line of source whose barriers ordered
 * nothing, in any kernel made of it.
 */
static void print_unneeded(void)
{
    static char place[MAX_BARRIERS][PTX_SOURCE_BYTES];
    int n = 0, n_lines = 0;
    for (int i = 0; i < MAX_BARRIERS; i++)
        if (barriers[i].entry) ptx_source(barriers[i].entry, barriers[i].line, place[i]);
    for (int i = 0; i < MAX_BARRIERS; i++) {
        int first = 1, needed = 0;
        if (!barriers[i].entry) continue;
        for (int j = 0; j < MAX_BARRIERS; j++) {
            if (!barriers[j].entry || strcmp(place[i], place[j])) continue;
            first &= j >= i;
            needed |= barriers[j].needed;
        }
        n_lines += first;
        if (!first || needed) continue;
        printf("races: nothing needed the barrier at %s\n", place[i]);
        n++;
    }
    printf("\nraces: none; %d lines of source have barriers, %d of them were needed\n", n_lines,
           n_lines - n);
}

static __attribute__((constructor)) void begin(void)
{
    const char *order = getenv("OFFSHOOT_PTX_RACES");
    if (!order || !*order) return;
    assert(!strcmp(order, "forward") || !strcmp(order, "reverse"));
    races_watched = 1;
    simt_reverse(!strcmp(order, "reverse"));
    global = reserve(DEVICE_MEMORY_BYTES * sizeof *global);
    for (int i = 0; i < 2; i++)
        blocks[i].byte = reserve(SIMT_SHARED_HOPPER * sizeof *blocks[i].byte);
    atexit(print_unneeded);
}

/* ---- order ---- */

void races_settle(void)
{
    settled = last;
}

void races_begin(const PtxThread *t)
{
    Thread *of = thread_of(t);
    of->interval = of->warp_interval = 0;
    of->waited = !t->early;
    if (t->launch <= last) return;
    last = t->launch;
    if (!t->early) settled = last - 1;
}

void races_grid_wait(const PtxThread *t)
{
    thread_of(t)->waited = 1;
}

void races_block_sync(const PtxThread *t, int line)
{
    Thread *of = thread_of(t);
    of->interval++;
    of->barrier = barrier_at(t->entry, line);
}

void races_warp_sync(const PtxThread *t, int line)
{
    Thread *of = thread_of(t);
    of->warp_interval++;
    of->warp_barrier = barrier_at(t->entry, line);
}

static int same_block(const Touch *a, const Touch *b)
{
    return a->entry && a->launch == b->launch && a->block == b->block;
}

static int same_warp(const Touch *a, const Touch *b)
{
    return a->thread / SIMT_WARP == b->thread / SIMT_WARP;
}

/* Whether two accesses by threads of one block, the later one by `of`, may come in either order. */
static int unordered(const Touch *a, const Touch *b, Thread *of)
{
    uint32_t barriers_between = b->interval - a->interval;
    uint32_t warp_barriers = same_warp(a, b) ? b->warp_interval - a->warp_interval : 0;
    if (a->thread == b->thread) return 0;
    if (a->access == PTX_ATOMIC && b->access == PTX_ATOMIC) return 0;
    if (barriers_between == 1 && !warp_barriers) of->barrier->needed = 1;
    if (warp_barriers == 1 && !barriers_between) of->warp_barrier->needed = 1;
    return !barriers_between && !warp_barriers;
}

static const char *name_of(int access)
{
    return access == PTX_STORE ? "a store" : access == PTX_ATOMIC ? "an atomic" : "a load";
}

static _Noreturn void race(const PtxThread *t, const char *what, uint64_t at, const Touch *before,
                           const Touch *now)
{
    char place[PTX_SOURCE_BYTES];
    fprintf(stderr, "ptx: race for the byte at %#llx of %s memory: %s, and before it %s\n",
            (unsigned long long)at, what, name_of(now->access), name_of(before->access));
    ptx_print_place(t, now->line);
    fprintf(stderr, "and %s, block %u, thread %u\n", before->entry->name, before->block,
            before->thread);
    fprintf(stderr, "  from %s\n", ptx_source(before->entry, before->line, place));
    abort();
}

/* ---- shared memory ---- */

static void shared_byte(const PtxThread *t, Shared *s, uint64_t at, const Touch *now)
{
    const Touch *before[] = {&s->store, &s->load, &s->other_lane, &s->other_warp};
    Thread *of = thread_of(t);
    int stores = now->access >= PTX_STORE;
    for (int i = 0; i < (stores ? 4 : 1); i++)
        if (same_block(before[i], now) && unordered(before[i], now, of))
            race(t, "shared", at, before[i], now);
    if (stores) {
        *s = (Shared){.store = *now};
        return;
    }
    if (s->load.entry && !same_block(&s->load, now)) *s = (Shared){0};
    if (s->load.entry && !same_warp(&s->load, now))
        s->other_warp = s->load;
    else if (s->load.entry && s->load.thread != now->thread)
        s->other_lane = s->load;
    s->load = *now;
}

void races_shared(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access)
{
    Touch now = touch(t, line, access);
    Block *b = block_of(t);
    for (uint32_t i = 0; i < bytes; i++)
        shared_byte(t, &b->byte[at + i], at + i, &now);
}

/* ---- global memory ---- */

static void draw(uint64_t at, const Touch *now)
{
    if (n_draws && draws[0].touch.launch != now->launch) n_draws = 0;
    assert(n_draws < MAX_DRAWS);
    draws[n_draws++] = (Draw){at, *now};
}

/* Whether one comes before the other, both by one block. */
static int comes_first(const Touch *a, const Touch *b)
{
    return same_block(a, b) && (a->thread == b->thread || a->interval < b->interval);
}

/* Whether tickets order two accesses by blocks of a launch. */
static int by_ticket(const Touch *before, const Touch *now)
{
    for (int later = n_draws - 1; later > 0; later--) {
        if (!comes_first(&draws[later].touch, now)) continue;
        for (int i = 0; i < later; i++)
            if (draws[i].at == draws[later].at && comes_first(before, &draws[i].touch)) return 1;
    }
    return 0;
}

void races_global(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access)
{
    Touch now = touch(t, line, access);
    Thread *of = thread_of(t);
    int stores = access >= PTX_STORE;
    if (access == PTX_TICKET) {
        now.access = access = PTX_ATOMIC;
        draw(at, &now);
    }
    if (!device_memory_reserved(at)) return; /* a module's variable */
    for (uint64_t i = at; i < at + bytes; i++) {
        Touch *store = &global[i - DEVICE_MEMORY_AT];
        int is_early = !of->waited && store->entry && store->launch > settled;
        if (is_early && access == PTX_FRESH && store->launch + 1 < now.launch)
            simt_grid_trusts();
        else if (is_early)
            race(t, "global (before grid_wait)", i, store, &now);
        if (same_block(store, &now) && unordered(store, &now, of))
            race(t, "global", i, store, &now);
        if (store->entry && store->launch == now.launch && store->block != now.block &&
            !(access == PTX_ATOMIC && store->access == PTX_ATOMIC) && !by_ticket(store, &now))
            race(t, "global", i, store, &now);
        if (stores) *store = now;
    }
    if (!of->waited && stores) race(t, "global (before grid_wait)", at, &now, &now);
}
