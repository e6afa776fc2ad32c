/*
 * simt_host.c: see kernels/simt_host.h.
 *
 * One fiber per thread of a block, all on one host thread, so a run repeats exactly. A switch saves
 * six registers (x86-64, some 5 ns) or goes through ucontext elsewhere.
 *
 * Where launches overlap there are two sets of fibers: one block of a launch comes as far as
 * grid_wait before the launch before it runs.
 */
#include "kernels/simt_host.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined __x86_64__
#include <ucontext.h>
#endif

/* Stacks are no power of two apart: their tops would share a few lines of the cache. */
enum { STACK_BYTES = 128 << 10, STACK_STRIDE = STACK_BYTES + 5 * 64 };

static size_t shared_limit = SIMT_SHARED_HOPPER;

typedef enum { READY, AT_WARP, AT_BLOCK, AT_GRID, DONE } FiberState;

/* Begun in group number `group` of its thread. */
typedef struct {
    void *to;
    const void *from;
    size_t bytes;
    int group;
} Copy;

typedef struct {
    int kind; /* of the exchange it waits in */
    const char *file;
    int line;
    int parity;     /* of its next exchange: lanes that run ahead write the other half */
    int has_waited; /* for the launch before */
#if defined __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
} Fiber;

typedef struct {
    Copy copy[SIMT_COPIES]; /* not there yet, in order */
    int n_copies, n_groups; /* groups committed */
} Copies;

SimtDim simt_thread_idx, simt_block_idx, simt_block_dim, simt_grid_dim;
unsigned char *simt_shared;
void (*simt_copied)(const void *to, size_t bytes);

typedef struct {
    SimtDim grid;
    unsigned block;
    size_t shared_bytes;
    void (*body)(void *);
    _Alignas(16) unsigned char arg[SIMT_ARG_BYTES];
} Launch;

enum { NO_BLOCK = -1 };

/* A launch, and the fibers of the block of it that runs. */
typedef struct {
    Launch launch;
    SimtDim block_idx;
    int64_t early;  /* a block that has begun before its turn, or NO_BLOCK */
    int is_hasty;   /* a thread has let the next launch begin before it has waited itself */
    int is_trusted; /* by the next one not to be */
    Fiber fiber[SIMT_MAX_THREADS];
    SimtWords words[2][SIMT_MAX_THREADS]; /* what a thread brought to an exchange, by its parity */
    Copies copies[SIMT_MAX_THREADS];
    unsigned char state[SIMT_MAX_THREADS]; /* FiberState; apart, for they are looked at often */
    unsigned char *stacks, *shared;
} Run;

static Run runs[2], *run = &runs[0], *pending; /* run: whose threads run now */
static int self;                               /* the thread of it that runs */
static uint32_t order;                         /* state of the generator that orders warps */
static int reverse;                            /* blocks and lanes run last to first */
static int overlap, is_early;                  /* is_early: grid_wait does not return yet */
static int was_hasty;                          /* the launch that ended last */
static struct {
    void (*what)(const void *);
    const void *arg;
} after[SIMT_MAX_AFTER];
static int n_after;
#if defined __x86_64__
static void *main_sp;
#else
static ucontext_t main_context;
#endif

static int n_threads(void)
{
    return (int)run->launch.block;
}

static unsigned char *stack_of(int i)
{
    return run->stacks + (size_t)i * STACK_STRIDE;
}

/* ---- switching ---- */

/*
 * LEFT_FOR_GOOD: a fiber that is done never returns from these, and what a sanitizer had put around
 * their locals would stay on the stack for the next one.
 */
#if defined __SANITIZE_ADDRESS__
#define LEFT_FOR_GOOD __attribute__((no_sanitize_address, noinline))
static const void *main_stack;
static size_t main_stack_bytes;

static void leave(void **fake, const void *bottom, size_t bytes)
{
    __sanitizer_start_switch_fiber(fake, bottom, bytes);
}
static void arrive(void *fake, const void **bottom, size_t *bytes)
{
    __sanitizer_finish_switch_fiber(fake, bottom, bytes);
}
#else
#define LEFT_FOR_GOOD
static const void *main_stack;
static size_t main_stack_bytes;

static void leave(void **fake, const void *bottom, size_t bytes)
{
    (void)fake, (void)bottom, (void)bytes;
}
static void arrive(void *fake, const void **bottom, size_t *bytes)
{
    (void)fake, (void)bottom, (void)bytes;
}
#endif

static void fiber_main(void);

#if defined __x86_64__
/* Saves what a call must keep, leaves the stack pointer in *from, goes on with the stack `to`. */
void simt_switch(void **from, void *to);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size simt_switch, . - simt_switch\n");

/* A stack that simt_switch can return from, into fiber_main: six registers and the address. */
static void prepare(int i)
{
    void (*entry)(void) = fiber_main;
    unsigned char *sp = stack_of(i) + STACK_BYTES - 16;
    memcpy(sp, &entry, sizeof entry);
    sp -= 6 * sizeof(void *);
    memset(sp, 0, 6 * sizeof(void *));
    run->fiber[i].sp = sp;
}

static void go_to_fiber(int i)
{
    simt_switch(&main_sp, run->fiber[i].sp);
}

static void go_to_main(void)
{
    simt_switch(&run->fiber[self].sp, main_sp);
}
#else
static void prepare(int i)
{
    ucontext_t *c = &run->fiber[i].context;
    getcontext(c);
    c->uc_stack.ss_sp = stack_of(i);
    c->uc_stack.ss_size = STACK_BYTES;
    c->uc_link = NULL;
    makecontext(c, fiber_main, 0);
}

static void go_to_fiber(int i)
{
    swapcontext(&main_context, &run->fiber[i].context);
}

static void go_to_main(void)
{
    swapcontext(&run->fiber[self].context, &main_context);
}
#endif

static void resume(int i)
{
    void *fake = NULL;
    self = i;
    simt_thread_idx = (SimtDim){(unsigned)i, 0, 0};
    leave(&fake, stack_of(i), STACK_BYTES);
    go_to_fiber(i);
    arrive(fake, NULL, NULL);
}

/* Back to the scheduler until this fiber is READY again. */
static LEFT_FOR_GOOD void yield(FiberState state)
{
    void *fake = NULL;
    run->state[self] = (unsigned char)state;
    leave(state == DONE ? NULL : &fake, main_stack, main_stack_bytes);
    go_to_main();
    arrive(fake, &main_stack, &main_stack_bytes);
}

static LEFT_FOR_GOOD void fiber_main(void)
{
    arrive(NULL, &main_stack, &main_stack_bytes);
    run->launch.body(run->launch.arg);
    if (!run->fiber[self].has_waited) {
        fprintf(stderr, "thread %d of block (%u, %u, %u) ends and has not called grid_wait\n", self,
                simt_block_idx.x, simt_block_idx.y, simt_block_idx.z);
        abort();
    }
    yield(DONE);
    abort(); /* a fiber that is done is never resumed */
}

/* ---- barriers ---- */

void simt_grid_wait(void)
{
    run->fiber[self].has_waited = 1;
    if (is_early) yield(AT_GRID);
}

void simt_grid_next(void)
{
    if (!run->fiber[self].has_waited) run->is_hasty = 1;
}

static void check_trust(int is_hasty)
{
    if (!is_hasty) return;
    fprintf(stderr,
            "a launch reads before grid_wait what the launch before the last wrote, which "
            "may still run: the last one does not wait for it before it lets others begin\n");
    abort();
}

void simt_grid_trusts(void)
{
    if (pending && pending != run)
        pending->is_trusted = 1;
    else
        check_trust(was_hasty);
}

void simt_sync_block(const char *file, int line)
{
    Fiber *f = &run->fiber[self];
    f->file = file;
    f->line = line;
    yield(AT_BLOCK);
}

const SimtWords *simt_exchange(const uint32_t *word, int n, int kind, const char *file, int line)
{
    Fiber *f = &run->fiber[self];
    int first = self / SIMT_WARP * SIMT_WARP;
    assert(n <= SIMT_WORDS);
    f->file = file;
    f->line = line;
    f->kind = kind;
    f->parity ^= 1;
    const SimtWords *all = &run->words[f->parity][first];
    if (n) memcpy(run->words[f->parity][self].word, word, (size_t)n * sizeof *word);
    yield(AT_WARP);
    return all;
}

int simt_lane(void)
{
    return self % SIMT_WARP;
}

/* ---- copies ---- */

void simt_begin_copy(void *to, const void *from, size_t bytes)
{
    Copies *c = &run->copies[self];
    /* a GPU would fault */
    assert((uintptr_t)to % bytes == 0);
    assert((uintptr_t)from % bytes == 0);
    assert(c->n_copies < SIMT_COPIES);
    memset(to, 0xff, bytes);
    c->copy[c->n_copies++] = (Copy){to, from, bytes, c->n_groups};
}

void simt_copies_commit(void)
{
    run->copies[self].n_groups++;
}

void simt_copies_wait(int n)
{
    Copies *c = &run->copies[self];
    int done = 0;
    for (; done < c->n_copies && c->copy[done].group < c->n_groups - n; done++) {
        const Copy *one = &c->copy[done];
        memcpy(one->to, one->from, one->bytes);
        if (simt_copied) simt_copied(one->to, one->bytes);
    }
    c->n_copies -= done;
    memmove(c->copy, c->copy + done, (size_t)c->n_copies * sizeof *c->copy);
}

/* ---- the scheduler ---- */

static int count(int from, int n, FiberState state)
{
    int found = 0;
    for (int i = from; i < from + n; i++)
        found += run->state[i] == state;
    return found;
}

/* Says where each run of threads stands and ends the program: the kernel is wrong. */
static void stuck(const char *what)
{
    static const char *const name[] = {"ready", "at a warp barrier", "at a block barrier",
                                       "at grid_wait", "done"};
    fprintf(stderr, "block (%u, %u, %u) can never end: %s\n", simt_block_idx.x, simt_block_idx.y,
            simt_block_idx.z, what);
    for (int i = 0, from = 0; i < n_threads(); i++) {
        const Fiber *f = &run->fiber[i], *next = f + 1;
        int state = run->state[i];
        if (i + 1 < n_threads() && run->state[i + 1] == state &&
            (state == DONE || (next->line == f->line && next->file == f->file)))
            continue;
        fprintf(stderr, "  threads %d to %d: %s", from, i, name[state]);
        if (state != DONE && f->file) fprintf(stderr, ", %s:%d", f->file, f->line);
        fprintf(stderr, "\n");
        from = i + 1;
    }
    abort();
}

/* Runs one warp until no lane of it can go on; 1 if any did. */
static int run_warp(int first)
{
    int progress = 0;
    for (;;) {
        for (int lane = 0; lane < SIMT_WARP; lane++) {
            int i = first + (reverse ? SIMT_WARP - 1 - lane : lane);
            if (run->state[i] != READY) continue;
            resume(i);
            progress = 1;
        }
        int waiting = count(first, SIMT_WARP, AT_WARP);
        if (!waiting) return progress;
        if (waiting < SIMT_WARP) stuck("lanes of one warp wait for others that do not come");
        for (int i = first; i < first + SIMT_WARP; i++)
            if (run->fiber[i].kind != run->fiber[first].kind)
                stuck("lanes of one warp are at barriers of different kinds");
        for (int i = first; i < first + SIMT_WARP; i++)
            run->state[i] = READY;
    }
}

static void enter_block(int64_t at)
{
    const Launch *l = &run->launch;
    unsigned i = (unsigned)at;
    run->block_idx = (SimtDim){i % l->grid.x, i / l->grid.x % l->grid.y, i / l->grid.x / l->grid.y};
    simt_block_idx = run->block_idx;
    memset(run->shared, 0xff, l->shared_bytes);
    for (int t = 0; t < n_threads(); t++) {
        run->state[t] = READY;
        run->fiber[t].parity = 0;
        run->copies[t].n_copies = run->copies[t].n_groups = 0;
        run->fiber[t].file = NULL; /* it has been at no barrier yet */
        run->fiber[t].has_waited = 0;
        prepare(t);
    }
}

/* Until all threads are in the state `end`, or done. */
static void run_block(FiberState end)
{
    int n = n_threads(), n_warps = n / SIMT_WARP;
    while (count(0, n, DONE) + (end == DONE ? 0 : count(0, n, end)) < n) {
        int progress = 0;
        order = order * 1664525u + 1013904223u;
        for (int w = 0; w < n_warps; w++)
            progress |= run_warp((int)((w + order / 65536) % (uint32_t)n_warps) * SIMT_WARP);
        if (!progress) stuck("no thread can go on");
        if (count(0, n, AT_BLOCK) + count(0, n, DONE) < n) continue;
        for (int i = 0; i < n; i++)
            if (run->state[i] == AT_BLOCK) run->state[i] = READY;
    }
}

/* ---- launches ---- */

static int64_t count_blocks(const Launch *l)
{
    return (int64_t)l->grid.x * l->grid.y * l->grid.z;
}

static void turn_to(Run *r)
{
    run = r;
    simt_shared = r->shared;
    simt_grid_dim = r->launch.grid;
    simt_block_dim = (SimtDim){r->launch.block, 1, 1};
    simt_block_idx = r->block_idx;
}

/* One block as far as it can come before the launch before this one has run. */
static void begin_early(Run *r)
{
    turn_to(r);
    order = order * 1664525u + 1013904223u;
    r->early = order / 65536 % count_blocks(&r->launch);
    enter_block(r->early);
    is_early = 1;
    run_block(AT_GRID);
    is_early = 0;
}

static void finish(Run *r)
{
    int64_t n_blocks = count_blocks(&r->launch);
    turn_to(r);
    if (r->early != NO_BLOCK) {
        for (int i = 0; i < n_threads(); i++)
            if (r->state[i] == AT_GRID) r->state[i] = READY;
        run_block(DONE);
    }
    for (int64_t i = 0; i < n_blocks; i++) {
        int64_t at = reverse ? n_blocks - 1 - i : i;
        if (at == r->early) continue;
        enter_block(at);
        run_block(DONE);
    }
    if (r->is_trusted) check_trust(r->is_hasty);
    was_hasty = r->is_hasty;
}

void simt_flush(void)
{
    if (pending) finish(pending);
    pending = NULL;
    for (int i = 0; i < n_after; i++)
        after[i].what(after[i].arg);
    n_after = 0;
}

void simt_after(void (*what)(const void *), const void *arg)
{
    if (!pending) {
        what(arg);
        return;
    }
    if (n_after == SIMT_MAX_AFTER) simt_flush();
    after[n_after].what = what;
    after[n_after++].arg = arg;
}

void simt_overlap(int on)
{
    simt_flush();
    overlap = on;
}

static void launch(const Launch *l)
{
    Run *r = pending == &runs[0] ? &runs[1] : &runs[0];
    assert(l->block > 0 && l->block <= SIMT_MAX_THREADS && l->block % SIMT_WARP == 0);
    /* what a GPU would refuse */
    assert(l->shared_bytes <= shared_limit);
    assert(l->grid.x > 0 && l->grid.y > 0 && l->grid.z > 0);
    assert(l->grid.x <= INT32_MAX && l->grid.y < 65536 && l->grid.z < 65536);
    if (!r->stacks) {
        r->stacks = mem_map((size_t)SIMT_MAX_THREADS * STACK_STRIDE);
        r->shared = mem_map(SIMT_SHARED_HOPPER);
        if (!r->stacks || !r->shared) abort();
    }
    r->launch = *l;
    r->early = NO_BLOCK;
    r->is_hasty = r->is_trusted = 0;
    if (overlap) begin_early(r);
    simt_flush();
    pending = r;
    if (!overlap) simt_flush();
}

void simt_reverse(int on)
{
    simt_flush();
    reverse = on;
}

/* ---- recording ---- */

struct SimtRecord {
    Launch *launch;
    size_t n, cap;
};

static SimtRecord *recording;

SimtRecord *simt_record_begin(void)
{
    assert(!recording);
    return recording = mem_alloc(1, sizeof *recording);
}

void simt_record_end(void)
{
    assert(recording);
    recording = NULL;
}

int simt_is_recording(void)
{
    return recording != NULL;
}

void simt_record_run(SimtRecord *r)
{
    assert(!recording);
    for (const Launch *l = r->launch; l < r->launch + r->n; l++)
        launch(l);
}

void simt_record_free(SimtRecord *r)
{
    if (!r) return;
    mem_free(r->launch);
    mem_free(r);
}

void simt_limit_shared(size_t bytes)
{
    simt_flush();
    assert(bytes <= SIMT_SHARED_HOPPER);
    shared_limit = bytes;
}

size_t simt_shared_limit(void)
{
    return shared_limit;
}

void simt_launch(SimtDim grid, unsigned block, size_t shared_bytes, void (*body)(void *), void *arg,
                 size_t arg_bytes)
{
    SimtRecord *r = recording;
    Launch l = {.grid = grid, .block = block, .shared_bytes = shared_bytes, .body = body};
    assert(arg_bytes <= sizeof l.arg); /* a GPU would refuse more, too */
    memcpy(l.arg, arg, arg_bytes);
    launch(&l);
    if (!r) return;
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 64;
        r->launch = mem_realloc(r->launch, r->cap, sizeof *r->launch);
    }
    r->launch[r->n++] = l;
}
