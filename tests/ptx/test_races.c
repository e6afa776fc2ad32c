/*
 * Small kernels, written as translate.py would write them, that have a race or just none: each runs
 * in a process of its own, which must end as it should.
 *
 * Run by run.sh, with OFFSHOOT_PTX_RACES=forward.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/apart.h"
#include "tests/ptx/ptx_run.h"

enum { N_THREADS = 64, SHARED = 1024, GLOBAL = 4 * 4 * N_THREADS };

/* What a kernel is given: device memory. */
typedef struct {
    uint64_t at;
} Given;

static unsigned self(void)
{
    return simt_thread_idx.x;
}

static uint64_t given(const PtxThread *t)
{
    return ((const Given *)(const void *)t->param)->at;
}

static void shared_store(const PtxThread *t, unsigned i)
{
    *(uint32_t *)ptx_shared(t, i * 4, 4, __LINE__, PTX_STORE) = self();
}

static uint32_t shared_load(const PtxThread *t, unsigned i)
{
    return *(uint32_t *)ptx_shared(t, i * 4, 4, __LINE__, PTX_LOAD);
}

static void shared_add(const PtxThread *t, unsigned i)
{
    ++*(uint32_t *)ptx_shared(t, i * 4, 4, __LINE__, PTX_ATOMIC);
}

static void global_store(const PtxThread *t, unsigned i)
{
    *(uint32_t *)ptx_global(t, given(t) + i * 4, 4, __LINE__, PTX_STORE) = self();
}

static void global_load(const PtxThread *t, unsigned i)
{
    (void)ptx_global(t, given(t) + i * 4, 4, __LINE__, PTX_LOAD);
}

static void block_sync(const PtxThread *t)
{
    ptx_block_sync(t, __LINE__, 0);
}

static void warp_sync(const PtxThread *t)
{
    ptx_warp_sync(t, __LINE__, 0xffffffffu);
}

static unsigned in_next_warp(void)
{
    return (self() + SIMT_WARP) % N_THREADS;
}

static unsigned in_next_lane(void)
{
    return self() / SIMT_WARP * SIMT_WARP + (self() + 1) % SIMT_WARP;
}

/* ---- kernels: the barrier that a race lacks is in the one behind it ---- */

static void barriers_alone(const PtxThread *t)
{
    ptx_grid_wait(t);
    block_sync(t);
    warp_sync(t);
}

static void loads_others(const PtxThread *t)
{
    ptx_grid_wait(t);
    shared_store(t, self());
    shared_load(t, in_next_warp());
}

static void loads_others_behind_barrier(const PtxThread *t)
{
    ptx_grid_wait(t);
    shared_store(t, self());
    block_sync(t);
    shared_load(t, in_next_warp());
}

static void barrier_too_few(const PtxThread *t)
{
    loads_others_behind_barrier(t);
    shared_store(t, self()); /* another may not have loaded it yet */
}

static void barrier_enough(const PtxThread *t)
{
    loads_others_behind_barrier(t);
    block_sync(t);
    shared_store(t, self());
}

static void loads_lanes(const PtxThread *t)
{
    int in_range;
    ptx_grid_wait(t);
    shared_store(t, self());
    ptx_shfl(t, __LINE__, 'b', 0, 1, 0x1f, 0xffffffffu, &in_range); /* orders nothing */
    shared_load(t, in_next_lane());
}

static void loads_lanes_behind_barrier(const PtxThread *t)
{
    ptx_grid_wait(t);
    shared_store(t, self());
    warp_sync(t);
    shared_load(t, in_next_lane());
}

static void warp_barrier_for_a_block(const PtxThread *t)
{
    ptx_grid_wait(t);
    shared_store(t, self());
    warp_sync(t);
    shared_load(t, in_next_warp());
}

static void all_load(const PtxThread *t)
{
    ptx_grid_wait(t);
    if (self() == 0) shared_store(t, 0);
    block_sync(t);
    shared_load(t, 0);
}

/* Here all others have loaded it; on a GPU the other warp may not have. */
static void last_of_all_stores(const PtxThread *t)
{
    static int n;
    all_load(t);
    warp_sync(t);
    if (++n % N_THREADS == 0) shared_store(t, 0);
}

static void last_lane_stores(const PtxThread *t)
{
    ptx_grid_wait(t);
    if (self() >= SIMT_WARP) return;
    shared_load(t, 0);
    if (self() == SIMT_WARP - 1) shared_store(t, 0);
}

static void all_store(const PtxThread *t)
{
    ptx_grid_wait(t);
    shared_store(t, 0);
}

static void bytes_side_by_side(const PtxThread *t)
{
    ptx_grid_wait(t);
    *(uint8_t *)ptx_shared(t, self(), 1, __LINE__, PTX_STORE) = 0;
}

static void all_add(const PtxThread *t)
{
    ptx_grid_wait(t);
    if (self() == 0) shared_store(t, 0);
    block_sync(t);
    shared_add(t, 0);
}

static void adds_and_loads(const PtxThread *t)
{
    all_add(t);
    shared_load(t, 0);
}

static void adds_and_loads_behind_barrier(const PtxThread *t)
{
    all_add(t);
    block_sync(t);
    shared_load(t, 0);
}

static void copy_in(const PtxThread *t)
{
    ptx_grid_wait(t);
    ptx_copy(t, __LINE__, self() * 16, given(t) + self() * 16, 16, 16);
    ptx_copies_commit();
    block_sync(t);
    ptx_copies_wait(t, __LINE__, 0);
}

/* Who waits for copies waits for its own. */
static void copies(const PtxThread *t)
{
    copy_in(t);
    shared_load(t, in_next_warp() * 4);
}

static void copies_behind_barrier(const PtxThread *t)
{
    copy_in(t);
    block_sync(t);
    shared_load(t, in_next_warp() * 4);
}

static void blocks_meet(const PtxThread *t)
{
    ptx_grid_wait(t);
    block_sync(t);
    global_store(t, self());
}

static void blocks_apart(const PtxThread *t)
{
    ptx_grid_wait(t);
    global_store(t, simt_block_idx.x * N_THREADS + self());
    block_sync(t);
    global_load(t, simt_block_idx.x * N_THREADS + in_next_warp());
}

static void draw(const PtxThread *t)
{
    ++*(uint32_t *)ptx_global(t, given(t) + 3 * N_THREADS * 4, 4, __LINE__, PTX_TICKET);
}

/* What both blocks store the one that is second loads. */
static void ticket(const PtxThread *t, int barrier_before, int barrier_behind)
{
    static unsigned n;
    ptx_grid_wait(t);
    global_store(t, simt_block_idx.x * N_THREADS + self());
    if (barrier_before) block_sync(t);
    if (self() == 0) draw(t), n++;
    if (barrier_behind) block_sync(t);
    if (n % 2 == 0) global_load(t, (1 - simt_block_idx.x) * N_THREADS + self());
}

static void behind_tickets(const PtxThread *t)
{
    ticket(t, 1, 1);
}

static void stores_behind_ticket(const PtxThread *t)
{
    ticket(t, 0, 1);
}

static void loads_beside_ticket(const PtxThread *t)
{
    ticket(t, 1, 0);
}

static void global_without_barrier(const PtxThread *t)
{
    ptx_grid_wait(t);
    global_store(t, simt_block_idx.x * N_THREADS + self());
    global_load(t, simt_block_idx.x * N_THREADS + in_next_warp());
}

static void loads_too_early(const PtxThread *t)
{
    global_load(t, self());
    ptx_grid_wait(t);
}

static void loads_weights_early(const PtxThread *t)
{
    global_load(t, 2 * N_THREADS + self()); /* nobody stores there */
    ptx_grid_wait(t);
    global_load(t, self());
}

static void stores_too_early(const PtxThread *t)
{
    global_store(t, (2 + simt_block_idx.x) * N_THREADS + self());
    ptx_grid_wait(t);
}

static void waits_in_time(const PtxThread *t)
{
    ptx_grid_wait(t);
    global_load(t, self());
}

static void waits_first(const PtxThread *t)
{
    ptx_grid_wait(t);
    ptx_launch_dependents();
}

static void lets_begin_first(const PtxThread *t)
{
    ptx_launch_dependents();
    ptx_grid_wait(t);
}

static void loads_trusting(const PtxThread *t)
{
    (void)ptx_global(t, given(t) + self() * 4, 4, __LINE__, PTX_FRESH);
    ptx_grid_wait(t);
}

/* ---- running them ---- */

typedef struct {
    const char *name;
    void (*body)(const PtxThread *t), (*before)(const PtxThread *t); /* NULL: no launch before it */
    int is_race, settles;                                            /* in between */
    void (*between)(const PtxThread *t);                             /* a launch */
} Case;

static const Case cases[] = {
    {"loads what others store", loads_others, NULL, 1, 0, NULL},
    {"behind a barrier", loads_others_behind_barrier, NULL, 0, 0, NULL},
    {"stores what others load", barrier_too_few, NULL, 1, 0, NULL},
    {"behind a second barrier", barrier_enough, NULL, 0, 0, NULL},
    {"lanes behind a shuffle", loads_lanes, NULL, 1, 0, NULL},
    {"lanes behind a barrier", loads_lanes_behind_barrier, NULL, 0, 0, NULL},
    {"a warp's barrier between warps", warp_barrier_for_a_block, NULL, 1, 0, NULL},
    {"all load, the last stores", last_of_all_stores, NULL, 1, 0, NULL},
    {"lanes load, the last stores", last_lane_stores, NULL, 1, 0, NULL},
    {"all store", all_store, NULL, 1, 0, NULL},
    {"bytes side by side", bytes_side_by_side, NULL, 0, 0, NULL},
    {"all add", all_add, NULL, 0, 0, NULL},
    {"loads what others add", adds_and_loads, NULL, 1, 0, NULL},
    {"adds, a barrier, loads", adds_and_loads_behind_barrier, NULL, 0, 0, NULL},
    {"copies of others", copies, NULL, 1, 0, NULL},
    {"copies behind a barrier", copies_behind_barrier, NULL, 0, 0, NULL},
    {"blocks store to one place", blocks_meet, NULL, 1, 0, NULL},
    {"blocks apart", blocks_apart, NULL, 0, 0, NULL},
    {"blocks behind tickets", behind_tickets, NULL, 0, 0, NULL},
    {"stores behind a ticket", stores_behind_ticket, NULL, 1, 0, NULL},
    {"loads beside a ticket", loads_beside_ticket, NULL, 1, 0, NULL},
    {"global memory, no barrier", global_without_barrier, NULL, 1, 0, NULL},
    {"loads before grid_wait", loads_too_early, blocks_apart, 1, 0, NULL},
    {"what has long been stored", loads_too_early, blocks_apart, 0, 1, NULL},
    {"weights before grid_wait", loads_weights_early, blocks_apart, 0, 0, NULL},
    {"stores before grid_wait", stores_too_early, blocks_apart, 1, 0, NULL},
    {"waits", waits_in_time, blocks_apart, 0, 0, NULL},
    {"the last but one, which is trusted", loads_trusting, blocks_apart, 0, 0, waits_first},
    {"the last but one, by an old line", loads_too_early, blocks_apart, 1, 0, waits_first},
    {"the last but one, which is hasty", loads_trusting, blocks_apart, 1, 0, lets_begin_first},
    {"the last one", loads_trusting, blocks_apart, 1, 0, NULL},
};

static void launch(const char *name, void (*body)(const PtxThread *t), unsigned n_threads, Given of)
{
    static const PtxParam param = {sizeof(Given), 8};
    PtxEntry *entry = calloc(1, sizeof *entry); /* kept: what was noted names it */
    *entry = (PtxEntry){.module = "test_races",
                        .name = name,
                        .file = __FILE__,
                        .body = body,
                        .param = &param,
                        .n_params = 1,
                        .shared_bytes = SHARED,
                        .max_threads = N_THREADS};
    ptx_launch(entry, (SimtDim){2, 1, 1}, n_threads, 0, &of, 1);
}

static void run(const void *arg)
{
    const Case *c = arg;
    Given of = {(uintptr_t)device_memory_take(GLOBAL)};
    for (int i = 0; i < 2; i++) /* two launches overlap; other threads pass no barrier */
        launch("small", barriers_alone, SIMT_WARP, of);
    if (c->before) launch("before", c->before, N_THREADS, of);
    if (c->between) launch("between", c->between, N_THREADS, of);
    if (c->settles) {
        simt_flush();
        races_settle();
    }
    launch(c->name, c->body, N_THREADS, of);
    simt_flush();
}

static void test_races(void **state)
{
    (void)state;
    assert_true(races_watched);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char said[APART_SAID];
        int status = run_apart(run, &cases[i], said);
        int found = WIFSIGNALED(status) && (!strncmp(said, "ptx: race for", 13) ||
                                            !strncmp(said, "a launch reads before grid_wait", 31));
        if (found != cases[i].is_race || (!found && status))
            fail_msg("%s: status %#x, %s", cases[i].name, (unsigned)status, said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_races)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
