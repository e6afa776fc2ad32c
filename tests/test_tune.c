/*
 * test_tune.c: alpha is found where it gains, stays 0 where it would lose, falls back when the
 * requests change; in the call and on a thread.
 *
 * Three documents are asked about again and again, each after so many prompts that never come back
 * that LRU has let it go; then conversations that need all the memory that the documents hold.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/frames.h"
#include "engine/tune.h"
#include "tests/asked.h"

enum {
    N_FRAMES = 200, /* of a page or a state */
    MAX_TOKENS = 2048,
    DOCUMENT = 640,
    EVERY = 12, /* requests, one of which is about a document */
    N_TALKS = 24,
};

static const TuneSetup setup = {.cache = {.on = 1, .policy = POLICY_FLOP, .keep_answers = 1},
                                .cost = {.per_token = 1, .per_pair = 0.01},
                                .n_frames = N_FRAMES,
                                .pages_per_frame = 1,
                                .max_slots = N_FRAMES,
                                .max_nodes = N_FRAMES,
                                .rules = {.keep_answers = 1, .keep_prompts = 1},
                                .max_requests = 400,
                                .max_tokens = 400 * 256};

typedef struct {
    Frames *frames;
    Cache *cache;
    Tuner *tuner; /* NULL: alpha stays what it is */
    int32_t token[MAX_TOKENS], page[MAX_TOKENS / PAGE_TOKENS + 1];
    int n; /* requests so far */
    long hits;
} World;

static World *world_open_of(const TuneSetup *s, int tuned, int threaded)
{
    World *w = mem_alloc(1, sizeof *w);
    w->frames = frames_open(s->n_frames, s->pages_per_frame, s->max_slots);
    w->cache = cache_open(&s->cache, w->frames, s->max_nodes, &s->cost);
    w->tuner = tuned ? tune_open(s, threaded, NULL) : NULL;
    return w;
}

static World *world_open(int tuned, int threaded)
{
    return world_open_of(&setup, tuned, threaded);
}

static void world_close(World *w)
{
    tune_close(w->tuner);
    cache_close(w->cache);
    frames_close(w->frames);
    mem_free(w);
}

/* Tokens of a text by its name, then of one that never comes again, then an answer. */
static void serve(World *w, int name, int n_text, int n_own, int n_answer)
{
    int fits, n = n_text + n_own;
    for (int i = 0; i < n + n_answer; i++)
        w->token[i] = i < n_text ? name * 1000 + i : (1000 + w->n) * 1000 + i;
    CachedRequest r = {
        .token = w->token, .n_prompt = n, .n_answer = n_answer, .n_stable = n, .now = w->n++};
    int hit = cache_replay(w->cache, w->frames, &setup.rules, &r, w->page, &fits);
    assert_int_equal(fits, 1);
    w->hits += hit;
    if (w->tuner) tune_served(w->tuner, w->cache, &r, hit);
}

static void serve_documents(World *w, int n)
{
    for (int i = 0; i < n; i++) {
        if (w->n % EVERY)
            serve(w, 0, 0, 64, 16);
        else
            serve(w, 1 + w->n / EVERY % 3, DOCUMENT, 16, 16);
    }
}

/* Every conversation grows by 16 tokens a turn for six turns, then another begins. */
static void serve_talks(World *w, int n)
{
    for (int i = 0; i < n; i++) {
        int turn = i / N_TALKS, name = 10 + i % N_TALKS + N_TALKS * (turn / 6);
        serve(w, name, 48 + 16 * (turn % 6), 0, 0);
    }
}

static void test_gains(void **state)
{
    (void)state;
    World *tuned = world_open(1, 0), *lru = world_open(0, 0);
    serve_documents(tuned, 600);
    serve_documents(lru, 600);
    TuneStats s = tune_stats(tuned->tuner);
    assert_true(s.alpha > 0);
    assert_int_equal(s.searches, 1);
    assert_int_equal(s.fallbacks, 0);
    assert_true(cache_stats(tuned->cache).alpha == s.alpha);
    assert_true(lru->hits < 5 * DOCUMENT);
    assert_true(tuned->hits > lru->hits + 20 * DOCUMENT);
    assert_true(s.windows >= 5 && s.hit_tokens > s.lru_tokens);
    world_close(tuned);
    world_close(lru);
}

/* Of the alphas, each of which always served, the smallest that has the most hits. */
static int best_tenths(const TuneSetup *s)
{
    int best = 0;
    long most = 0;
    for (int i = 0; i <= 20; i++) {
        World *w = world_open_of(s, 0, 0);
        cache_set_alpha(w->cache, i / 10.0);
        serve_documents(w, 600);
        if (w->hits > most) best = i;
        most = w->hits > most ? w->hits : most;
        world_close(w);
    }
    return best;
}

/* The less memory is left beside the documents, the more must they count. */
static void test_smallest_of_the_best(void **state)
{
    (void)state;
    static const int n_frames[] = {N_FRAMES, 140, 138}, want[] = {1, 5, 14};
    for (int i = 0; i < 3; i++) {
        TuneSetup small = setup;
        small.n_frames = small.max_slots = small.max_nodes = n_frames[i];
        World *w = world_open_of(&small, 1, 0);
        serve_documents(w, 1200);
        assert_int_equal(best_tenths(&small), want[i]);
        assert_true(tune_stats(w->tuner).alpha == want[i] / 10.0);
        world_close(w);
    }
}

/* Here every alpha above 0 loses. */
static void test_stays_lru(void **state)
{
    (void)state;
    World *tuned = world_open(1, 0), *lru = world_open(0, 0), *fixed = world_open(0, 0);
    cache_set_alpha(fixed->cache, 1);
    serve_talks(tuned, 1500);
    serve_talks(lru, 1500);
    serve_talks(fixed, 1500);
    TuneStats s = tune_stats(tuned->tuner);
    assert_true(s.searches >= 1);
    assert_true(s.alpha == 0);
    assert_true(tuned->hits >= lru->hits);
    assert_true(fixed->hits < lru->hits);
    assert_true(s.hit_tokens == s.lru_tokens);
    world_close(tuned);
    world_close(lru);
    world_close(fixed);
}

/* What gained on documents loses on conversations, and is given up. */
static void test_falls_back(void **state)
{
    (void)state;
    World *tuned = world_open(1, 0), *lru = world_open(0, 0), *stuck = world_open(1, 0);
    serve_documents(tuned, 600);
    serve_documents(lru, 600);
    serve_documents(stuck, 600);
    tune_close(stuck->tuner);
    stuck->tuner = NULL;
    assert_true(tune_stats(tuned->tuner).alpha > 0);
    tuned->hits = lru->hits = stuck->hits = 0;
    serve_talks(tuned, 3000);
    serve_talks(lru, 3000);
    serve_talks(stuck, 3000);
    TuneStats s = tune_stats(tuned->tuner);
    assert_true(s.fallbacks >= 1);
    assert_true(s.alpha == 0);
    long asked = s.asked_tokens;
    assert_true(asked > 0);
    assert_true(tuned->hits > lru->hits - lru->hits / 20);
    assert_true(stuck->hits < lru->hits - lru->hits / 10);
    world_close(tuned);
    world_close(lru);
    world_close(stuck);
}

/* The thread finds an alpha too; the owner takes no memory. */
static void test_thread(void **state)
{
    (void)state;
    World *w = world_open(1, 1);
    unsigned long before = mem_count();
    for (int i = 0; i < 20000 && !tune_stats(w->tuner).searches; i++) {
        usleep(1000);
        serve_documents(w, 1);
    }
    assert_int_equal(mem_count(), before);
    TuneStats s = tune_stats(w->tuner);
    assert_int_equal(s.searches, 1);
    assert_true(s.alpha > 0);
    assert_true(cache_stats(w->cache).alpha == s.alpha);
    serve_documents(w, 500); /* faster than it can follow */
    world_close(w);          /* with a window under way */
}

/* A window ends early when its tokens do not fit, and a request longer than all is passed over. */
static void test_long_requests(void **state)
{
    (void)state;
    TuneSetup small = setup;
    small.max_tokens = 1200;
    World *w = world_open(0, 0);
    w->tuner = tune_open(&small, 0, NULL);
    serve_documents(w, 200);
    long windows = tune_stats(w->tuner).windows;
    assert_true(windows > 10);
    serve(w, 9, 1300, 0, 0);
    serve(w, 9, 1300, 0, 0);
    serve_documents(w, 100);
    assert_true(tune_stats(w->tuner).windows > windows + 5);
    world_close(w);
}

/* An engine whose alpha is left to it finds one by what it serves. */
static void test_engine_tunes(void **state)
{
    (void)state;
    enum { FRAME_BYTES = 9 * 98304, MOST = 600, PAPER = 220, SHORT = 40 };
    AskedEngine s;
    AskedAnswer a;
    int32_t prompt[PAPER + SHORT];
    EngineStatus status = {0};
    EngineOptions o = asked_options(1, 0, 1);
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_FLOP, .alpha = -1, .keep_answers = 1};
    o.ctx_size = 512;
    o.memory = 14 * FRAME_BYTES;
    asked_open(&s, o);
    unsigned long before = mem_count();
    for (int i = 0; i < MOST && !(status.cache.alpha > 0); i++) {
        int text = i % 8 ? 0 : PAPER, n = text + SHORT;
        for (int k = 0; k < n; k++)
            prompt[k] = k < text ? k * 7 : (i * 41 + k * 13) % 4000;
        EngineRequest r = asked_greedy(1, prompt, n, 1);
        memset(&a, 0, sizeof a);
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
        engine_status(s.engine, &status);
    }
    assert_true(status.cache.alpha > 0);
    assert_int_equal(mem_count(), before);
    asked_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gains),        cmocka_unit_test(test_smallest_of_the_best),
        cmocka_unit_test(test_stays_lru),    cmocka_unit_test(test_falls_back),
        cmocka_unit_test(test_thread),       cmocka_unit_test(test_long_requests),
        cmocka_unit_test(test_engine_tunes),
    };
    return cmocka_run_group_tests(tests, asked_open_demo, asked_close_demo);
}
