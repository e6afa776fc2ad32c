/*
 * test_device_tiers.c: the prefix cache's lower tiers where serving memory is a device's: bytes are
 * copied aside, between the steps of others, and what comes back is what was saved. The tests'
 * backend copies late, and ends the program when either side of a copy is changed meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/memory.h"
#include "engine/model.h"
#include "tests/backend_simt.h"
#include "tests/checkpoint.h"
#include "tests/near.h"

enum { N_PROMPT = 150, BLOCKS = N_PROMPT / PREFILL_BLOCK * PREFILL_BLOCK, ANSWER = 6, N_KINDS = 3 };

static Backend *be;
static Model *model;
static int32_t prompt[N_KINDS][N_PROMPT];

typedef struct {
    int32_t token[ANSWER];
    int n, n_done, n_cached;
    FinishReason finish;
} Answer;

static Answer want[N_KINDS];

static Engine *open_engine(int n_frames, const char *dir, int64_t host_frames)
{
    Error err = {0};
    EngineOptions o = engine_defaults();
    size_t frame = memory_frame_bytes(model, KV_F32);
    o.ctx_size = 256;
    o.memory = (int64_t)frame * n_frames;
    o.max_seqs = 2;
    o.tree_nodes = 1;
    o.reserve = 8;
    o.chunk_rows = 64;
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
    o.cache_dir = dir;
    o.disk_cache = 64 << 20;
    o.host_cache = host_frames * (int64_t)frame;
    Engine *e = engine_open(model, &o, &err);
    if (!e) fail_msg("%s", err.msg);
    return e;
}

static EngineRequest request(int kind, uint64_t id)
{
    return (EngineRequest){.id = id,
                           .prompt = prompt[kind],
                           .n_prompt = N_PROMPT,
                           .max_tokens = ANSWER,
                           .params = {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 7},
                           .ignore_eos = 1,
                           .n_logprobs = -1,
                           .draft_max = -1};
}

static void submit(Engine *e, int kind, uint64_t id)
{
    Error err = {0};
    EngineRequest r = request(kind, id);
    if (engine_submit(e, &r, &err)) fail_msg("%s", err.msg);
}

static void take_events(Engine *e, Answer *a)
{
    for (const Event *ev; (ev = engine_next_event(e));) {
        Answer *to = &a[ev->id - 1];
        if (ev->type == EVENT_TOKEN) to->token[to->n++] = ev->token;
        if (ev->type != EVENT_DONE) continue;
        to->n_done = 1;
        to->n_cached = ev->stats.n_cached;
        to->finish = ev->finish;
    }
}

static void step(Engine *e, Answer *a)
{
    Error err = {0};
    assert_true(engine_step(e, &err) >= 0);
    take_events(e, a);
}

static Answer ask(Engine *e, int kind)
{
    Answer a = {0};
    submit(e, kind, 1);
    while (!a.n_done)
        step(e, &a);
    return a;
}

static void same(const Answer *a, int kind)
{
    assert_int_equal(a->n, want[kind].n);
    assert_memory_equal(a->token, want[kind].token, (size_t)a->n * sizeof *a->token);
}

/* Until the disk has what was kept. */
static void settle(Engine *e)
{
    EngineStatus st;
    Answer none[1];
    for (int i = 0; i < 2000; i++) {
        step(e, none);
        engine_status(e, &st);
        if (!st.disk.saving) return;
        usleep(2000);
    }
    fail_msg("saving does not end");
}

static EngineStatus close_engine(Engine *e)
{
    EngineStatus st;
    settle(e);
    engine_status(e, &st);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.slots - st.slots_free, st.cache.states);
    assert_true(st.pages - st.pages_free <= st.cache.pages);
    engine_close(e);
    return st;
}

static int open_model(void **state)
{
    Error err = {0};
    ModelOptions options = {.dummy = DUMMY_BF16};
    (void)state;
    memset(want, 0, sizeof want);
    model = model_open("tests/data/gpu/tiny", &options, be, &err);
    if (!model) fail_msg("%s", err.msg);
    for (int k = 0; k < N_KINDS; k++)
        for (int i = 0; i < N_PROMPT; i++)
            prompt[k][i] = (i * 31 + i / 7 + 50 * k) % 250;
    Engine *e = open_engine(40, NULL, 0);
    for (int k = 0; k < N_KINDS; k++) {
        want[k] = ask(e, k);
        assert_int_equal(want[k].n_cached, 0);
    }
    engine_close(e);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

/* What is uploaded may change at once: pieces of all sizes, more than is on its way at a time. */
static void test_uploads(void **state)
{
    (void)state;
    enum { BYTES = (5 << 20) + 333, MOST = 3 << 20 };
    Error err = {0};
    Rng r = rng_new(3);
    unsigned char *all = malloc(BYTES), *got = malloc(BYTES), *piece = malloc(MOST);
    unsigned char *device = be->alloc(be, BYTES, &err);
    assert_true(all && got && piece && device);
    for (int i = 0; i < BYTES; i++)
        all[i] = (unsigned char)(i * 13 + i / 509);
    for (int at = 0, n; at < BYTES; at += n) {
        n = rng_int(&r, 8) ? rng_int(&r, 2000) : rng_int(&r, MOST);
        if (n > BYTES - at) n = BYTES - at;
        memcpy(piece, all + at, (size_t)n);
        be->upload(be, device + at, piece, (size_t)n);
        memset(piece, 0x55, (size_t)n);
    }
    be->download(be, got, device, BYTES);
    assert_int_equal(be->sync(be, &err), 0);
    assert_memory_equal(got, all, BYTES);
    be->free(be, device);
    free(all), free(got), free(piece);
}

/* Out, in to another place, and back by an operation that waits. */
static void test_copies_aside(void **state)
{
    (void)state;
    enum { BYTES = (3 << 20) + 17 };
    Error err = {0};
    unsigned char *host = be->host_alloc(be, BYTES, &err), *back = be->host_alloc(be, BYTES, &err);
    unsigned char *one = be->alloc(be, BYTES, &err), *two = be->alloc(be, BYTES, &err);
    assert_true(host && back && one && two);
    for (int i = 0; i < BYTES; i++)
        back[i] = (unsigned char)(i * 7 + i / 251);
    be->upload(be, one, back, BYTES);
    be->aside_begin(be);
    be->aside_copy(be, host, one, BYTES);
    be->aside_end(be, BACKEND_ASIDES - 1);
    while (!be->aside_done(be, BACKEND_ASIDES - 1, 0))
        usleep(100);
    assert_memory_equal(host, back, BYTES);
    memset(back, 0, BYTES);
    be->aside_begin(be);
    be->aside_copy(be, two, host, BYTES);
    be->aside_end(be, 0);
    be->aside_join(be);
    be->download(be, back, two, BYTES);
    assert_int_equal(be->aside_done(be, 0, 1), 1);
    assert_int_equal(be->sync(be, &err), 0);
    assert_memory_equal(host, back, BYTES);
    be->free(be, one), be->free(be, two);
    be->host_free(be, host), be->host_free(be, back);
}

/* What one engine has saved another reads: the whole blocks of a prompt, and the answer's end. */
static void test_restart(void **state)
{
    (void)state;
    int32_t longer[N_PROMPT + ANSWER + 20];
    const char *folder = scratch_dir("device_tiers");
    Engine *e = open_engine(40, folder, 0);
    for (int k = 0; k < 2; k++) {
        Answer a = ask(e, k);
        same(&a, k);
        settle(e);
    }
    assert_true(close_engine(e).disk.saved >= 2);
    e = open_engine(40, folder, 0);
    for (int k = 0; k < N_KINDS; k++) {
        Answer a = ask(e, k);
        same(&a, k);
        assert_int_equal(a.n_cached, k < 2 ? BLOCKS : 0);
    }
    memcpy(longer, prompt[0], sizeof prompt[0]);
    memcpy(longer + N_PROMPT, want[0].token, sizeof want[0].token);
    memset(longer + N_PROMPT + ANSWER, 0, 20 * sizeof *longer);
    engine_close(e);
    e = open_engine(40, folder, 0);
    EngineRequest r = request(0, 1);
    Error err = {0};
    Answer a = {0};
    r.prompt = longer;
    r.n_prompt = N_PROMPT + ANSWER + 20;
    assert_int_equal(engine_submit(e, &r, &err), 0);
    while (!a.n_done)
        step(e, &a);
    assert_int_equal(a.n_cached, N_PROMPT + ANSWER - 1);
    EngineStatus st = close_engine(e);
    assert_int_equal(st.disk.loaded, 1);
    assert_int_equal(st.disk.failed, 0);
}

/* A sequence decodes while another's prefix is read; one that is cancelled meanwhile loses nothing.
 */
static void test_company(void **state)
{
    (void)state;
    const char *folder = scratch_dir("device_tiers");
    Engine *e = open_engine(40, folder, 0);
    Answer a[3] = {0}, first = ask(e, 0);
    same(&first, 0);
    close_engine(e);
    e = open_engine(40, folder, 0);
    submit(e, 1, 1);
    while (!a[0].n)
        step(e, a);
    submit(e, 0, 2);
    while (!a[0].n_done || !a[1].n_done)
        step(e, a);
    same(&a[0], 1);
    same(&a[1], 0);
    assert_int_equal(a[1].n_cached, BLOCKS);
    close_engine(e);
    for (int after = 1; after < 5; after++) { /* read, uploaded, begun */
        e = open_engine(40, folder, 0);
        memset(a, 0, sizeof a);
        submit(e, 2, 1);
        submit(e, 0, 2);
        for (int i = 0; i < after; i++)
            step(e, a);
        engine_cancel(e, 2);
        take_events(e, a);
        assert_int_equal(a[1].finish, FINISH_CANCELLED);
        while (!a[0].n_done)
            step(e, a);
        same(&a[0], 2);
        submit(e, 0, 3);
        while (!a[2].n_done)
            step(e, a);
        same(&a[2], 0);
        close_engine(e);
    }
}

/* What serving memory has lost comes back from the host's. */
static void test_host_memory(void **state)
{
    (void)state;
    Engine *e = open_engine(24, NULL, 80);
    for (int round = 0; round < 3; round++)
        for (int k = 0; k < N_KINDS; k++) {
            Answer a = ask(e, k);
            same(&a, k);
            if (round) assert_int_equal(a.n_cached, BLOCKS);
        }
    for (int round = 0; round < 6; round++) { /* one is read while the other makes room */
        Answer two[2] = {0};
        submit(e, round % N_KINDS, 1);
        submit(e, (round + 1) % N_KINDS, 2);
        while (!two[0].n_done || !two[1].n_done)
            step(e, two);
        same(&two[0], round % N_KINDS);
        same(&two[1], (round + 1) % N_KINDS);
    }
    EngineStatus st = close_engine(e);
    assert_true(st.cache.evicted_states + st.cache.evicted_nodes > 0);
    assert_true(st.host_cache.saved > 0);
    assert_true(st.host_cache.loaded > 2);
}

static int (*real_done)(Backend *be, int number, int wait);

/* Of a device that is lost: the copies are no more under way. */
static int lost_done(Backend *lost, int number, int wait)
{
    (void)wait;
    real_done(lost, number, 1);
    return -1;
}

/* What it has copied nobody keeps, and nobody takes for what was saved. */
static void test_lost_device(void **state)
{
    (void)state;
    for (int saves = 0; saves < 2; saves++) {
        const char *folder = scratch_dir("device_tiers");
        Engine *e = open_engine(40, folder, 80);
        be->aside_done = saves ? real_done : lost_done;
        Answer a = ask(e, 0);
        same(&a, 0);
        assert_int_equal(close_engine(e).disk.saved, saves ? 2 : 0);
        e = open_engine(40, folder, 0);
        be->aside_done = saves ? lost_done : real_done;
        a = ask(e, 0);
        same(&a, 0);
        assert_int_equal(a.n_cached, 0);
        close_engine(e);
    }
    be->aside_done = real_done;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uploads),     cmocka_unit_test(test_copies_aside),
        cmocka_unit_test(test_restart),     cmocka_unit_test(test_company),
        cmocka_unit_test(test_host_memory), cmocka_unit_test(test_lost_device),
    };
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu), failed = 0;
    for (int i = 0; i < n; i++) {
        be = gpu[i];
        real_done = be->aside_done;
        failed += cmocka_run_group_tests_name(be->name, tests, open_model, close_model);
        be->close(be);
    }
    return failed;
}
