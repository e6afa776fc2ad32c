/*
 * test_tiers.c: what an engine leaves on disk another one goes on with, to the same bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/records.h"
#include "tests/asked.h"
#include "tests/checkpoint.h"

enum { N_TURNS = 3, FIRST = 90, MORE = 25, MOST = 30, FRAME_BYTES = 9 * 98304 };
enum { MAX_FILES = 16, MAX_NAME = 64 }; /* of rows in the folder; characters */

static const char *folder;

/* A conversation: each prompt is the one before, its answer, and something new. */
static struct {
    EngineRequest request[N_TURNS];
    int32_t prompt[N_TURNS][MAX_PROMPT];
    AskedAnswer want[N_TURNS];
} turns;

static void ask(AskedEngine *s, int i, AskedAnswer *a)
{
    EngineRequest r = turns.request[i];
    memset(a, 0, sizeof *a);
    r.id = 1;
    asked_submit(s->engine, &r);
    asked_run(s->engine, a, 1);
}

static void make_turns(void)
{
    AskedEngine s;
    int n = 0;
    asked_open(&s, asked_options(1, 0, 1));
    for (int i = 0; i < N_TURNS; i++) {
        int32_t *p = turns.prompt[i];
        if (i) {
            memcpy(p, turns.prompt[i - 1], (size_t)n * sizeof *p);
            memcpy(p + n, turns.want[i - 1].token, (size_t)turns.want[i - 1].n * sizeof *p);
            n += turns.want[i - 1].n;
        }
        for (int end = n + (i ? MORE : FIRST); n < end; n++)
            p[n] = (n * 53 + i * 301) % 4000;
        turns.request[i] = asked_greedy(1, p, n, MOST);
        turns.request[i].n_logprobs = 1;
        ask(&s, i, &turns.want[i]);
    }
    asked_close(&s);
}

static void same_answer(int i, const AskedAnswer *a)
{
    const AskedAnswer *want = &turns.want[i];
    assert_int_equal(a->n, want->n);
    assert_memory_equal(a->token, want->token, (size_t)a->n * sizeof *a->token);
    assert_memory_equal(a->logprob, want->logprob, (size_t)a->n * sizeof *a->logprob);
}

static EngineOptions options(int nodes)
{
    EngineOptions o = asked_options(nodes, 3, 1);
    o.memory = (int64_t)60 * FRAME_BYTES;
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
    o.cache_dir = folder;
    o.disk_cache = 256 << 20;
    return o;
}

static void empty_folder(void)
{
    folder = scratch_dir("tiers");
}

/* Waits until the disk has what was kept: a close drops what is queued. */
static void settle(AskedEngine *s)
{
    EngineStatus st;
    Error err;
    for (int i = 0; i < 2000; i++) {
        assert_true(engine_step(s->engine, &err) >= 0);
        engine_status(s->engine, &st);
        if (!st.disk.saving) return;
        usleep(5000);
    }
    fail_msg("saving does not end");
}

/* The first turns in one engine, the next in another that has only the folder. */
static void test_restart(void **state)
{
    (void)state;
    empty_folder();
    static const int nodes[] = {1, 4};
    for (int k = 0; k < 2; k++) {
        AskedEngine s;
        AskedAnswer a;
        EngineStatus st;
        for (int i = 0; i < N_TURNS; i++) {
            asked_open(&s, options(nodes[k]));
            ask(&s, i, &a);
            same_answer(i, &a);
            engine_status(s.engine, &st);
            int had = i ? turns.request[i - 1].n_prompt + turns.want[i - 1].n - 1 : 0;
            assert_int_equal(a.done.stats.n_cached, had);
            assert_int_equal(st.disk.loaded, i > 0);
            settle(&s);
            asked_close(&s);
        }
        asked_open(&s, options(nodes[k])); /* the whole prompt: no pass */
        ask(&s, 1, &a);
        same_answer(1, &a);
        assert_int_equal(a.done.stats.n_cached, turns.request[1].n_prompt);
        asked_close(&s);
        asked_open(&s, options(nodes[k])); /* of a prompt that is to be scored nothing is skipped */
        EngineRequest r = turns.request[1];
        r.prompt_logprobs = 1;
        r.n_logprobs = 0;
        memset(&a, 0, sizeof a);
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
        same_answer(1, &a);
        assert_int_equal(a.done.stats.n_cached, 0);
        asked_close(&s);
        if (!k) empty_folder(); /* the other has rows of its drafter beside */
    }
}

/* Memory that does not hold the conversation. */
static EngineOptions options_small(void)
{
    EngineOptions o = options(4);
    size_t records = records_bytes(asked_model, 4, o.chunk_rows + 4 + 1);
    o.memory = (int64_t)5 * FRAME_BYTES + (int64_t)records;
    o.ctx_size = 0;
    o.max_seqs = 1;
    return o;
}

/* What memory lost the disk has. */
static void test_evicted(void **state)
{
    (void)state;
    empty_folder();
    AskedEngine s;
    AskedAnswer a;
    EngineStatus st;
    asked_open(&s, options_small());
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N_TURNS; i++) {
            ask(&s, i, &a);
            same_answer(i, &a);
            settle(&s);
        }
    engine_status(s.engine, &st);
    assert_true(st.cache.evicted_nodes + st.cache.evicted_states > 0);
    assert_true(st.disk.loaded > 0);
    asked_close(&s);
}

/* Memory that is on its way to disk comes back to who waits for it. */
static void test_waits_for_saves(void **state)
{
    (void)state;
    enum { LONG = 400 }; /* of the 511 tokens that fit */
    empty_folder();
    AskedEngine s;
    asked_open(&s, options_small());
    for (int i = 0; i < 3; i++) {
        AskedAnswer a = {0};
        int32_t token[LONG];
        for (int k = 0; k < LONG; k++)
            token[k] = (k * 53 + i * 301) % 4000;
        EngineRequest r = asked_greedy(1, token, LONG, 2);
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
    }
    settle(&s);
    asked_close(&s);
}

/* The same with host memory below. */
static void test_host_memory(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a;
    EngineStatus st;
    EngineOptions o = options_small();
    o.cache_dir = NULL;
    o.host_cache = 40 * FRAME_BYTES;
    asked_open(&s, o);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N_TURNS; i++) {
            ask(&s, i, &a);
            same_answer(i, &a);
            if (i || round) assert_true(a.done.stats.n_cached > 0);
        }
    engine_status(s.engine, &st);
    assert_true(st.host_cache.saved > 0 && st.host_cache.loaded > 0);
    asked_close(&s);
}

/* Of a text of its own; returns how many of its tokens were cached. */
static int ask_text(AskedEngine *s, int text, int no_cache)
{
    static AskedAnswer a;
    int32_t token[FIRST];
    for (int i = 0; i < FIRST; i++)
        token[i] = (i * 53 + 7 * text) % 4000;
    EngineRequest r = asked_greedy(1, token, FIRST, no_cache ? MOST : 1);
    r.no_cache = no_cache;
    memset(&a, 0, sizeof a);
    asked_submit(s->engine, &r);
    asked_run(s->engine, &a, 1);
    settle(s);
    return a.done.stats.n_cached;
}

/* The folder holds two texts. The first one, found above it, is the younger when a third comes. */
static void check_young(EngineOptions o, int on_host)
{
    AskedEngine s;
    EngineStatus st;
    o.cache.keep_answers = 0;
    asked_open(&s, o);
    ask_text(&s, 0, 0);
    engine_status(s.engine, &st);
    asked_close(&s);
    empty_folder();
    o.disk_cache = st.disk.bytes * 5 / 2;
    asked_open(&s, o);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ask_text(&s, i, 0), 0);
    if (on_host) ask_text(&s, 3, 1); /* takes memory and leaves nothing */
    assert_int_equal(ask_text(&s, 0, 0), FIRST);
    engine_status(s.engine, &st);
    assert_int_equal(st.host_cache.loaded, on_host);
    assert_int_equal(st.disk.loaded, 0);
    ask_text(&s, 2, 0);
    asked_close(&s);
    o.host_cache = 0;
    asked_open(&s, o);
    assert_int_equal(ask_text(&s, 0, 0), FIRST);
    assert_int_equal(ask_text(&s, 1, 0), 0);
    asked_close(&s);
}

static void test_found_above_is_young(void **state)
{
    (void)state;
    empty_folder();
    check_young(options(1), 0);
    empty_folder();
    EngineOptions o = options(1);
    o.memory = (int64_t)3 * FRAME_BYTES;
    o.ctx_size = 0;
    o.max_seqs = 1;
    o.host_cache = 40 * FRAME_BYTES;
    check_young(o, 1);
}

static void spoil(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -100, SEEK_END);
    fputs("spoilt", f);
    fclose(f);
}

/* Each file of the cache. */
static void spoil_all(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        spoil(scratch_path(folder, e->d_name));
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

/* Leaves the first turn on disk. */
static void keep_first(EngineOptions o)
{
    AskedEngine s;
    AskedAnswer a;
    asked_open(&s, o);
    ask(&s, 0, &a);
    settle(&s);
    asked_close(&s);
}

/* Spoilt files are computed anew, another engine's are not looked at. */
static void test_not_ours(void **state)
{
    (void)state;
    empty_folder();
    AskedEngine s;
    AskedAnswer a;
    EngineOptions o = options(1);
    keep_first(o);
    o.kv_type = KV_BF16;
    asked_open(&s, o);
    ask(&s, 1, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    asked_close(&s);
    empty_folder();
    o.kv_type = KV_F32;
    keep_first(o);
    spoil_all();
    asked_open(&s, o);
    ask(&s, 1, &a);
    same_answer(1, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    asked_close(&s);
}

/* The names of files of rows. */
static int list_rows(char name[][MAX_NAME])
{
    static const char ending[] = ".run";
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        size_t length = strlen(e->d_name), end = sizeof ending - 1;
        if (length < end || length >= MAX_NAME || strcmp(e->d_name + length - end, ending))
            continue;
        assert_true(n < MAX_FILES);
        snprintf(name[n++], MAX_NAME, "%s", e->d_name);
    }
    closedir(d);
    return n;
}

/* Writes over the first page in each file of rows that is not one of `known`. */
static void spoil_rows(char known[][MAX_NAME], int n_known)
{
    long page_bytes = (long)memory_page_bytes(asked_model, KV_F32);
    char name[MAX_FILES][MAX_NAME];
    int n = list_rows(name), n_spoilt = 0;
    for (int i = 0; i < n; i++) {
        int is_known = 0;
        for (int k = 0; k < n_known; k++)
            is_known |= !strcmp(name[i], known[k]);
        if (is_known) continue;
        FILE *f = fopen(scratch_path(folder, name[i]), "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, 0, SEEK_END), 0);
        fseek(f, ftell(f) % page_bytes, SEEK_SET);
        for (int k = 0; k < 1000; k++)
            fputc(k, f);
        fclose(f);
        n_spoilt++;
    }
    assert_true(n_spoilt > 0);
}

/* Leaves the first turn's prefix on disk, and the second's, which goes on from it, spoilt. */
static void spoil_second(void)
{
    AskedEngine s;
    AskedAnswer a;
    char first[MAX_FILES][MAX_NAME];
    empty_folder();
    keep_first(options(1));
    int n_first = list_rows(first);
    asked_open(&s, options(1));
    ask(&s, 1, &a);
    settle(&s);
    asked_close(&s);
    spoil_rows(first, n_first);
}

/*
 * What is read behind a prefix in memory begins in the page in which that ends. If it is spoilt,
 * the rows before it are what they were, now and for those who find them later.
 */
static void test_spoilt_behind(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a;
    EngineStatus st;
    spoil_second();
    asked_open(&s, options(1));
    ask(&s, 0, &a);
    int had = turns.request[0].n_prompt + turns.want[0].n - 1;
    assert_true(had % PAGE_TOKENS > 0);
    for (int round = 0; round < 2; round++) {
        ask(&s, 1, &a);
        same_answer(1, &a);
        assert_int_equal(a.done.stats.n_cached, round ? turns.request[1].n_prompt : had);
    }
    engine_status(s.engine, &st);
    assert_int_equal(st.disk.failed, 1);
    settle(&s);
    asked_close(&s);
}

/* A state that a sequence goes on in itself is not read over, as what is read may be spoilt. */
static void test_spoilt_behind_the_only_slot(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a;
    EngineStatus st;
    EngineOptions o = options(1);
    o.n_slots = 1;
    spoil_second();
    asked_open(&s, o);
    ask(&s, 0, &a);
    settle(&s); /* the disk lets go of its state */
    ask(&s, 1, &a);
    same_answer(1, &a);
    assert_int_equal(a.done.stats.n_cached, turns.request[0].n_prompt + turns.want[0].n - 1);
    engine_status(s.engine, &st);
    assert_int_equal(st.disk.failed, 0);
    settle(&s);
    asked_close(&s);
}

/* No prefix of such a context is worth a place: there are no tiers, and all else goes on. */
static void test_short_context(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a = {0};
    EngineStatus st;
    EngineOptions o = options(1);
    empty_folder();
    o.ctx_size = PAGE_TOKENS - 1;
    o.host_cache = 40 * FRAME_BYTES;
    asked_open(&s, o);
    EngineRequest r = asked_greedy(1, turns.prompt[0], 8, 4);
    asked_submit(s.engine, &r);
    asked_run(s.engine, &a, 1);
    assert_true(a.n > 0);
    engine_status(s.engine, &st);
    assert_true(!st.disk.on && !st.host_cache.max_bytes);
    asked_close(&s);
}

/* Two on one folder: the second goes without. Cancelled while it is read: nothing is lost. */
static void test_company(void **state)
{
    (void)state;
    empty_folder();
    AskedEngine s, other;
    AskedAnswer a;
    Error err;
    asked_open(&s, options(4));
    ask(&s, 0, &a);
    settle(&s);
    asked_open(&other, options(4));
    ask(&other, 1, &a);
    same_answer(1, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    asked_close(&other);
    asked_close(&s);
    asked_open(&s, options(4));
    EngineRequest r[3] = {turns.request[1], turns.request[1], turns.request[2]};
    AskedAnswer three[3] = {0};
    for (int i = 0; i < 3; i++) {
        r[i].id = (uint64_t)i + 1;
        asked_submit(s.engine, &r[i]);
    }
    assert_true(engine_step(s.engine, &err) >= 0);
    for (const Event *ev; (ev = engine_next_event(s.engine));)
        asked_take(&three[ev->id - 1], ev);
    engine_cancel(s.engine, 1);
    asked_run(s.engine, three, 3 - three[0].n_done - three[1].n_done - three[2].n_done);
    same_answer(1, &three[1]);
    same_answer(2, &three[2]);
    asked_close(&s);
}

/* What one reads others of its salt wait for, if it is all of it a beginning of theirs. */
static void test_waits_for_one_that_reads(void **state)
{
    (void)state;
    empty_folder();
    enum { COMMON = 20, N = 4 };
    AskedEngine s;
    AskedAnswer a[N];
    EngineStatus st;
    asked_open(&s, options(1));
    ask(&s, 0, a);
    settle(&s);
    asked_close(&s);
    asked_open(&s, options(1));
    EngineRequest r[N] = {turns.request[1], turns.request[1], turns.request[1], turns.request[1]};
    int had = turns.request[0].n_prompt + turns.want[0].n - 1;
    int32_t other[MAX_PROMPT];
    for (int i = 0; i < r[0].n_prompt; i++)
        other[i] = i < COMMON ? r[0].prompt[i] : 7 * i;
    r[1].n_prompt = had;
    r[2].salt = 5;
    r[3].prompt = other;
    memset(a, 0, sizeof a);
    for (int i = 0; i < N; i++) {
        r[i].id = (uint64_t)i + 1;
        asked_submit(s.engine, &r[i]);
    }
    asked_run(s.engine, a, N);
    engine_status(s.engine, &st);
    assert_int_equal(st.disk.loaded, 1);
    assert_int_equal(st.cache.waits, 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(a[i].done.stats.n_cached, i < 2 ? had : 0);
    same_answer(1, &a[0]);
    same_answer(1, &a[2]);
    settle(&s);
    asked_close(&s);
}

/* Of an engine that runs nothing: no page and no slot is held by nobody. */
static void flush(AskedEngine *s)
{
    EngineStatus st;
    settle(s);
    engine_flush_cache(s->engine);
    engine_status(s->engine, &st);
    assert_int_equal(st.pages_free, st.pages);
    assert_int_equal(st.slots_free, st.slots);
}

/*
 * Nothing is found after it, in no tier and after a restart; what runs goes on, and what it reads
 * from the disk too.
 */
static void test_flush(void **state)
{
    (void)state;
    empty_folder();
    AskedEngine s;
    AskedAnswer a;
    Error err;
    EngineOptions o = options_small();
    o.host_cache = 40 * FRAME_BYTES;
    asked_open(&s, o);
    for (int i = 0; i < N_TURNS; i++) {
        ask(&s, i, &a);
        settle(&s);
    }
    flush(&s);
    asked_close(&s);
    asked_open(&s, o);
    ask(&s, 2, &a);
    same_answer(2, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    flush(&s);
    ask(&s, 2, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    asked_close(&s);

    asked_open(&s, o); /* to be read from the disk, and flushed at every step */
    EngineRequest r = turns.request[2];
    memset(&a, 0, sizeof a);
    r.id = 1;
    asked_submit(s.engine, &r);
    while (!a.n_done) {
        assert_true(engine_step(s.engine, &err) >= 0);
        for (const Event *ev; (ev = engine_next_event(s.engine));)
            asked_take(&a, ev);
        engine_flush_cache(s.engine);
    }
    same_answer(2, &a);
    assert_int_equal(a.done.stats.n_cached, turns.request[2].n_prompt);
    flush(&s);
    asked_close(&s);
}

static int open_turns(void **state)
{
    if (asked_open_demo(state)) return -1;
    make_turns();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_evicted),
        cmocka_unit_test(test_waits_for_saves),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_found_above_is_young),
        cmocka_unit_test(test_not_ours),
        cmocka_unit_test(test_spoilt_behind),
        cmocka_unit_test(test_spoilt_behind_the_only_slot),
        cmocka_unit_test(test_short_context),
        cmocka_unit_test(test_waits_for_one_that_reads),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_flush),
    };
    return cmocka_run_group_tests(tests, open_turns, asked_close_demo);
}
