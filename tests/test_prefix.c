/*
 * test_prefix.c: the prefix cache changes no token and no probability, and finds what it should.
 *
 * A list of requests as clients make them is answered once by an engine without a cache and without
 * drafts, then by engines with a cache: every tree, state mode and memory, one after another and in
 * company. Log-probabilities are compared bit for bit: they see a wrong state before a token does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/asked.h"

enum { MAX_ASKED = 40, MOST = 40, FRAME_BYTES = 9 * 98304 };

/* Requests in the order in which they are made, and what is right. */
static struct {
    int n;
    EngineRequest request[MAX_ASKED];
    int32_t prompt[MAX_ASKED][MAX_PROMPT];
    AskedAnswer want[MAX_ASKED];
    int cached[MAX_ASKED]; /* prompt tokens that must come from the cache when nothing goes */
} list;

static AskedEngine reference;

static void ask(AskedEngine *s, const EngineRequest *r, AskedAnswer *a)
{
    EngineRequest one = *r;
    one.id = 1;
    memset(a, 0, sizeof *a);
    asked_submit(s->engine, &one);
    asked_run(s->engine, a, 1);
}

/* Adds a request whose prompt is `from`'s first n tokens, then n_more that start at `first`. */
static EngineRequest *add(const int32_t *from, int n, int first, int n_more, int cached)
{
    int i = list.n++;
    assert_true(i < MAX_ASKED);
    if (n) memmove(list.prompt[i], from, (size_t)n * sizeof *from);
    for (int k = 0; k < n_more; k++)
        list.prompt[i][n + k] = (first + 31 * k) % 4000;
    EngineRequest *r = &list.request[i];
    *r = asked_greedy((uint64_t)i + 1, list.prompt[i], n + n_more, MOST - i % 7);
    r->n_logprobs = 2;
    list.cached[i] = cached;
    return r;
}

/* The right answer to the last request added. */
static int settle(void)
{
    int i = list.n - 1;
    ask(&reference, &list.request[i], &list.want[i]);
    return i;
}

/* Request i's prompt and its answer; returns how many. */
static int with_answer(int i, int32_t *text)
{
    const AskedAnswer *a = &list.want[i];
    int n = list.request[i].n_prompt;
    memcpy(text, list.prompt[i], (size_t)n * sizeof *text);
    memcpy(text + n, a->token, (size_t)a->n * sizeof *text);
    return n + a->n;
}

/* A turn that goes on after request i's answer with n_more tokens. */
static EngineRequest *go_on(int i, int first, int n_more)
{
    static int32_t text[MAX_PROMPT];
    int n = with_answer(i, text);
    return add(text, n, first, n_more, n - 1); /* the last was never processed */
}

/* The end of request i's answer, and no token more: what follows is told by its hidden row. */
static void only_the_answer(int i)
{
    static int32_t text[MAX_PROMPT];
    int n = with_answer(i, text) - 1;
    add(text, n, 0, 0, n);
    settle();
}

/* Conversations with system turns of 45 tokens and, in part the same, of 60. */
static void add_systems(void)
{
    EngineRequest *r = add(NULL, 0, 3307, 90, 0);
    r->n_system = 45;
    int first = settle();
    r = add(list.prompt[first], 45, 1503, 40, 45);
    r->n_system = 45;
    settle();
    r = add(list.prompt[first], 30, 2902, 60, 0);
    r->n_system = 60;
    int second = settle();
    r = add(list.prompt[second], 60, 11, 30, 60);
    r->n_system = 60;
    settle();
    add(list.prompt[first], 30, 1, 20, 30); /* where the two part */
    settle();
    go_on(first, 2, 20);
    settle();
    add(list.prompt[first], 70, 4, 40, 45); /* a branch again, */
    int third = settle();
    add(list.prompt[third], 110, 8, 30, 110); /* and yet its prompt's end is there */
    settle();
}

static void make_list(void)
{
    asked_open(&reference, asked_options(1, 0, 1));
    int a, c, turn;
    EngineRequest *r;
    add(NULL, 0, 5, 60, 0);
    a = settle();
    for (int k = 0; k < 2; k++) {
        add(list.prompt[a], 60, 0, 0, 60); /* the whole prompt */
        settle();
    }
    add(NULL, 0, 977, 45, 0);
    settle();
    add(list.prompt[a], 60, 0, 0, 60); /* A, B, A */
    settle();
    add(NULL, 0, 1234, 50, 0); /* a conversation */
    c = settle();
    go_on(c, 77, 20);
    turn = settle();
    go_on(turn, 501, 23);
    settle();
    go_on(c, 333, 20); /* another second turn */
    settle();
    add(list.prompt[a], 37, 2222, 30, 0); /* parts from A inside a page: its state is not there */
    settle();
    add(list.prompt[a], 37, 3111, 41, 37); /* now it is */
    settle();
    r = add(list.prompt[a], 60, 0, 0, 60);
    r->params = (SampleParams){.temperature = 0.9f, .top_p = 0.95f, .repetition = 1, .seed = 7};
    settle();
    r = go_on(turn, 9, 12);
    r->params.repetition = 1.2f;
    r->params.frequency = 0.3f;
    settle();
    r = add(list.prompt[turn], list.request[turn].n_prompt, 0, 0, list.request[turn].n_prompt);
    r->max_tokens = 1; /* no pass at all but the lm head's */
    settle();
    r = go_on(c, 1777, 90); /* the end of the prompt will not come back, nor the answer */
    r->n_stable = r->n_prompt - 13;
    r->answer_changes = 1;
    turn = settle();
    add(list.prompt[turn], list.request[turn].n_stable, 888, 30, list.request[turn].n_stable);
    settle();
    r = add(NULL, 0, 2711, 70, 0); /* only to be scored: its end has no hidden row to keep */
    r->n_stable = r->n_prompt - 20;
    r->max_tokens = 0;
    turn = settle();
    add(list.prompt[turn], 70, 0, 0, 50);
    settle();
    for (int i = 0; i < 8; i++)
        only_the_answer(i);
    add_systems();
    asked_close(&reference);
}

static void same_answer(int i, const AskedAnswer *a, const char *what)
{
    const AskedAnswer *want = &list.want[i];
    if (a->n != want->n || memcmp(a->token, want->token, (size_t)a->n * sizeof *a->token) ||
        memcmp(a->logprob, want->logprob, (size_t)a->n * sizeof *a->logprob))
        fail_msg("%s: request %d is answered otherwise", what, i);
    assert_int_equal(a->done.finish, want->done.finish);
}

typedef struct {
    const char *name;
    int nodes, depth, topk;
    StateMode mode;
    int frames, slots; /* 0: plenty */
    int chosen;        /* the engine chooses depth */
} Way;

static const Way ways[] = {
    {"plain", 1, 0, 1, STATE_AUTO, 0, 0, 0},
    {"replay 4/3/1", 4, 3, 1, STATE_REPLAY, 0, 0, 0},
    {"replay 12/4/3", 12, 4, 3, STATE_REPLAY, 0, 0, 0},
    {"slots 4/3/1", 4, 3, 1, STATE_SLOTS, 0, 0, 0},
    {"slots 12/4/3", 12, 4, 3, STATE_SLOTS, 0, 0, 0},
    {"plain, little memory", 1, 0, 1, STATE_AUTO, 6, 0, 0},
    {"replay, little memory", 4, 3, 1, STATE_REPLAY, 7, 0, 0},
    {"slots, little memory", 12, 4, 3, STATE_SLOTS, 8, 0, 0},
    {"one slot", 4, 3, 1, STATE_REPLAY, 0, 1, 0},
    {"one slot, plain", 1, 0, 1, STATE_AUTO, 0, 1, 0},
    {"chosen depth", 4, 3, 1, STATE_REPLAY, 0, 0, 1},
    {"chosen depth, little memory", 4, 3, 1, STATE_SLOTS, 8, 0, 1},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

static EngineOptions options_of(const Way *w)
{
    EngineOptions o = asked_options(w->nodes, w->depth, w->topk);
    o.state_mode = w->mode;
    o.draft_auto = w->chosen;
    o.n_slots = w->slots;
    o.max_seqs = w->slots ? w->slots : 4;
    o.memory = (int64_t)(w->frames ? w->frames : 200) * FRAME_BYTES;
    if (w->frames) o.ctx_size = 0;
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
    return o;
}

/* Nothing runs, and the cache's pages and states are all that is in use. */
static void expect_idle(Engine *e)
{
    EngineStatus s;
    engine_status(e, &s);
    assert_int_equal(s.running + s.waiting, 0);
    assert_int_equal(s.slots - s.slots_free, s.cache.states);
    assert_true(s.pages - s.pages_free <= s.cache.pages);
}

/* With the prefix come the head's rows: drafts are what they would be without the cache. */
static void same_drafts(int i, const RequestStats *a, const RequestStats *want, const char *what)
{
    if (a->n_steps != want->n_steps || a->n_drafted != want->n_drafted ||
        memcmp(a->accepted_hist, want->accepted_hist, sizeof a->accepted_hist))
        fail_msg("%s: request %d is drafted otherwise", what, i);
}

static void test_one_after_another(void **state)
{
    (void)state;
    for (int k = 0; k < N_WAYS; k++) {
        const Way *w = &ways[k];
        int plenty = !w->frames && !w->slots;
        AskedEngine s, plain;
        EngineOptions o = options_of(w);
        asked_open(&s, o);
        o.cache.on = 0;
        asked_open(&plain, o);
        for (int i = 0; i < list.n; i++) {
            AskedAnswer a, b;
            ask(&s, &list.request[i], &a);
            same_answer(i, &a, w->name);
            if (plenty && w->nodes > 1 && !w->chosen) {
                ask(&plain, &list.request[i], &b);
                same_drafts(i, &a.done.stats, &b.done.stats, w->name);
            }
            if (plenty && a.done.stats.n_cached != list.cached[i])
                fail_msg("%s: request %d finds %d tokens of %d, not %d", w->name, i,
                         a.done.stats.n_cached, list.request[i].n_prompt, list.cached[i]);
        }
        EngineStatus st;
        engine_status(s.engine, &st);
        assert_true(st.cache.hits > 0);
        if (w->frames) assert_true(st.cache.evicted_nodes > 0);
        expect_idle(s.engine);
        asked_close(&s);
        asked_close(&plain);
    }
}

/* Those that ask for the same prefix wait for the first and share what it made. */
static void test_in_company(void **state)
{
    (void)state;
    for (int k = 0; k < N_WAYS; k++) {
        const Way *w = &ways[k];
        AskedEngine s;
        static AskedAnswer a[MAX_ASKED];
        EngineOptions o = options_of(w);
        EngineStatus st;
        o.chunk_rows = 16;
        asked_open(&s, o);
        memset(a, 0, sizeof a);
        for (int i = 0; i < list.n; i++)
            asked_submit(s.engine, &list.request[i]);
        asked_run(s.engine, a, list.n);
        for (int i = 0; i < list.n; i++)
            same_answer(i, &a[i], w->name);
        engine_status(s.engine, &st);
        assert_true(w->slots || st.cache.waits > 0);
        expect_idle(s.engine);
        asked_close(&s);
    }
}

/*
 * A prompt fills the context but for a token, and the context the memory: the state that is found
 * ends inside of a page, and its own page of these rows is one too many.
 */
static void test_whole_memory(void **state)
{
    (void)state;
    static const Way whole[] = {{"plain", 1, 0, 1, STATE_AUTO, 3, 0, 0},
                                {"replay 4/3/1", 4, 3, 1, STATE_REPLAY, 4, 0, 0},
                                {"slots 4/3/1", 4, 3, 1, STATE_SLOTS, 3, 0, 0}};
    for (size_t k = 0; k < sizeof whole / sizeof *whole; k++) {
        static int32_t prompt[MAX_PROMPT];
        AskedEngine s, plain;
        EngineStatus st;
        AskedAnswer want, a;
        EngineOptions o = options_of(&whole[k]);
        asked_open(&s, o);
        o.cache.on = 0;
        asked_open(&plain, o);
        engine_status(s.engine, &st);
        int n = st.ctx_size - 1;
        for (int i = 0; i < n; i++)
            prompt[i] = (7 + 31 * i) % 4000;
        EngineRequest r = asked_greedy(1, prompt, n, 1);
        r.n_logprobs = 2;
        ask(&plain, &r, &want);
        for (int i = 0; i < 2; i++) {
            ask(&s, &r, &a);
            assert_int_equal(a.n, 1);
            assert_int_equal(a.token[0], want.token[0]);
            assert_memory_equal(a.logprob, want.logprob, sizeof *want.logprob);
        }
        engine_status(s.engine, &st);
        assert_int_equal(st.cache.kept[KEPT_PROMPT] + st.cache.kept[KEPT_ANSWER], 2);
        expect_idle(s.engine);
        asked_close(&s);
        asked_close(&plain);
    }
}

/* The one that computes the prefix goes away in the middle: the others compute it. */
static void test_the_first_is_cancelled(void **state)
{
    (void)state;
    for (int at = 1; at <= 5; at++) {
        AskedEngine s;
        AskedAnswer a[3] = {0};
        EngineOptions o = options_of(&ways[1]);
        o.chunk_rows = 16;
        asked_open(&s, o);
        for (int i = 0; i < 3; i++) /* the same prompt thrice */
            asked_submit(s.engine, &list.request[i]);
        asked_steps(s.engine, a, at);
        engine_cancel(s.engine, 1);
        asked_run(s.engine, a, 3 - a[0].n_done - a[1].n_done - a[2].n_done);
        same_answer(1, &a[1], "cancelled");
        same_answer(2, &a[2], "cancelled");
        assert_int_equal(a[2].done.stats.n_cached, 60);
        expect_idle(s.engine);
        asked_close(&s);
    }
}

/* Salts share nothing; who wants no cache neither takes nor leaves. */
static void test_who_shares_nothing(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a;
    EngineRequest r = list.request[0];
    asked_open(&s, options_of(&ways[0]));
    r.no_cache = 1;
    ask(&s, &r, &a);
    r.no_cache = 0;
    ask(&s, &r, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    r.salt = 5;
    ask(&s, &r, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    ask(&s, &r, &a);
    assert_int_equal(a.done.stats.n_cached, 60);
    r.no_cache = 1;
    ask(&s, &r, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    r.no_cache = 0;
    r.prompt_logprobs = 1;
    ask(&s, &r, &a);
    assert_int_equal(a.done.stats.n_cached, 0);
    assert_int_equal(a.n_prompt_events, 60);
    EngineStatus before, st;
    engine_status(s.engine, &before);
    r.no_cache = r.answer_changes = 1;
    ask(&s, &r, &a);
    engine_status(s.engine, &st); /* of one that would leave nothing none is refused */
    assert_memory_equal(st.cache.refused, before.cache.refused, sizeof st.cache.refused);
    asked_close(&s);
}

/* Nobody waits for what will not be his. */
static void test_who_waits_for_nobody(void **state)
{
    (void)state;
    static const int n_kept[] = {2, 1, 1, 0};
    for (int k = 0; k < 4; k++) {
        AskedEngine s;
        AskedAnswer a[2] = {0};
        EngineOptions o = options_of(&ways[0]);
        EngineStatus st;
        EngineRequest r[2] = {list.request[0], list.request[0]};
        o.chunk_rows = 16;
        o.cache.on = k < 3;
        asked_open(&s, o);
        r[1].id = 2;
        r[k == 2].no_cache = k == 1 || k == 2; /* of the first, of the second; or other salts */
        r[1].salt = k == 0;
        for (int i = 0; i < 2; i++)
            asked_submit(s.engine, &r[i]);
        asked_run(s.engine, a, 2);
        engine_status(s.engine, &st);
        assert_int_equal(st.cache.waits, 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(a[i].done.stats.n_cached, 0);
            same_answer(0, &a[i], "beside a stranger");
        }
        assert_int_equal(st.cache.kept[KEPT_PROMPT], n_kept[k]);
        asked_close(&s);
    }
}

/* Nor for one that stands still, who may do so for long. */
static void test_nobody_waits_for_a_paused_one(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a[2] = {0};
    EngineOptions o = options_of(&ways[0]);
    EngineRequest r[2] = {list.request[0], list.request[0]};
    o.chunk_rows = 16;
    asked_open(&s, o);
    for (int i = 0; i < 2; i++) {
        r[i].id = (uint64_t)i + 1;
        asked_submit(s.engine, &r[i]);
    }
    asked_steps(s.engine, a, 1); /* the second waits for the first */
    engine_pause(s.engine, 1, 1);
    for (int i = 0; i < 100 && !a[1].n_done; i++)
        asked_steps(s.engine, a, 1);
    assert_int_equal(a[1].n_done, 1);
    same_answer(0, &a[1], "beside one that is paused");
    assert_int_equal(a[0].n_done, 0);
    engine_pause(s.engine, 1, 0);
    while (!a[0].n_done)
        asked_steps(s.engine, a, 1);
    same_answer(0, &a[0], "after a pause");
    asked_close(&s);
}

/* Tokens of a prompt that has others than the prompt 0 from `shared` on. */
static EngineRequest sharing(int i, int shared, int n, int32_t *token)
{
    for (int j = 0; j < n; j++)
        token[j] = (31 * j + (j < shared ? 0 : 1000 * i)) % 4000;
    return asked_greedy((uint64_t)i + 1, token, n, 1);
}

/*
 * A prompt of 96 tokens is read, the first n_before of which came before; two more have its first
 * `shared` and others behind. It is made to leave a state where the first of these parts from it,
 * unless it leaves one shortly before anyway. They wait for it if that saves them enough.
 */
static void test_made_to_leave_a_state(void **state)
{
    (void)state;
    static const struct {
        int n_before, n_system, n_stable, shared[2], cached[2], n_branches, waits;
    } cases[] = {
        {0, 0, 96, {60, 60}, {60, 60}, 1, 2},  {0, 50, 96, {60, 60}, {50, 50}, 1, 2},
        {0, 0, 96, {90, 96}, {90, 90}, 1, 2},  {0, 0, 96, {96, 96}, {96, 96}, 0, 2},
        {0, 45, 96, {45, 70}, {45, 70}, 2, 2}, {0, 0, 96, {40, 70}, {40, 40}, 1, 2},
        {0, 0, 96, {15, 15}, {0, 0}, 0, 0},    {0, 0, 96, {16, 16}, {16, 16}, 1, 2},
        {40, 0, 50, {60, 60}, {40, 60}, 1, 1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        AskedEngine s;
        AskedAnswer a[3] = {0};
        EngineStatus st;
        EngineOptions o = options_of(&ways[0]);
        int32_t prompt[3][128];
        o.chunk_rows = 16;
        asked_open(&s, o);
        EngineRequest r = sharing(0, 96, 96, prompt[0]);
        r.n_prompt = cases[k].n_before;
        if (r.n_prompt) ask(&s, &r, a);
        memset(a, 0, sizeof a);
        r.n_prompt = 96;
        r.n_system = cases[k].n_system;
        r.n_stable = cases[k].n_stable;
        asked_submit(s.engine, &r);
        for (int i = 1; i < 3; i++) {
            int shared = cases[k].shared[i - 1];
            r = sharing(i, shared, shared + 30, prompt[i]);
            asked_submit(s.engine, &r);
        }
        asked_run(s.engine, a, 3);
        engine_status(s.engine, &st);
        for (int i = 0; i < 2; i++)
            assert_int_equal(a[i + 1].done.stats.n_cached, cases[k].cached[i]);
        assert_int_equal(st.cache.kept[KEPT_BRANCH], cases[k].n_branches);
        assert_int_equal(st.cache.waits, cases[k].waits);
        expect_idle(s.engine);
        asked_close(&s);
    }
}

/* An answer of one token leaves nothing beside its prompt's end, computed or found. */
static void test_nothing_but_a_prompt(void **state)
{
    (void)state;
    AskedEngine s;
    asked_open(&s, options_of(&ways[0]));
    for (int i = 0; i < 2; i++) {
        AskedAnswer a;
        EngineStatus st;
        EngineRequest r = list.request[0];
        r.max_tokens = 1;
        ask(&s, &r, &a);
        assert_int_equal(a.done.stats.n_cached, i * 60);
        engine_status(s.engine, &st);
        assert_int_equal(st.cache.kept[KEPT_PROMPT], 1);
        assert_int_equal(st.cache.kept[KEPT_ANSWER], 0);
        for (int why = 0; why < N_REFUSED; why++)
            assert_int_equal(st.cache.refused[why], 0);
    }
    asked_close(&s);
}

/* Of an answer that was broken off its prompt stays, and no more. */
static void test_cancelled_answer(void **state)
{
    (void)state;
    for (int k = 0; k < 5; k++) {
        AskedEngine s;
        AskedAnswer a = {0};
        EngineStatus st;
        asked_open(&s, options_of(&ways[k]));
        EngineRequest r = list.request[0];
        asked_submit(s.engine, &r);
        asked_steps(s.engine, &a, 4);
        engine_cancel(s.engine, 1);
        asked_steps(s.engine, &a, 1);
        assert_int_equal(a.done.finish, FINISH_CANCELLED);
        engine_status(s.engine, &st);
        assert_int_equal(st.cache.kept[KEPT_PROMPT], 1);
        assert_int_equal(st.cache.kept[KEPT_ANSWER] + st.cache.refused[REFUSED_LOST], 0);
        expect_idle(s.engine);
        ask(&s, &r, &a);
        same_answer(0, &a, "after a cancelled one");
        assert_int_equal(a.done.stats.n_cached, 60);
        asked_close(&s);
    }
}

/* A row that held NaN leaves nothing: whoever asks again computes it again. */
static void test_nan(void **state)
{
    (void)state;
    float *norm = (float *)(uintptr_t)asked_model->final_norm, whole = norm[3];
    for (int at = 0; at < 4; at++) {
        AskedEngine s;
        AskedAnswer a = {0};
        EngineStatus st;
        EngineRequest r = list.request[0];
        asked_open(&s, options_of(&ways[at % 2]));
        asked_submit(s.engine, &r);
        asked_steps(s.engine, &a, at);
        norm[3] = NAN;
        asked_run(s.engine, &a, 1);
        norm[3] = whole;
        assert_int_equal(a.done.finish, FINISH_ERROR);
        engine_status(s.engine, &st);
        assert_int_equal(st.cache.kept[KEPT_PROMPT], at > 0);
        assert_int_equal(st.cache.kept[KEPT_ANSWER], 0);
        expect_idle(s.engine);
        ask(&s, &r, &a);
        same_answer(0, &a, "after NaN");
        asked_close(&s);
    }
}

/*
 * A prompt that needs a slot, where none is free, takes no state that it goes on from: the next one
 * finds it, too.
 */
static void test_the_hit_stays(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a[2];
    EngineOptions o = asked_options(1, 0, 1);
    int32_t prompt[64];
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU};
    o.n_slots = 4;
    asked_open(&s, o);
    for (int i = 0; i < 64; i++)
        prompt[i] = 31 * i;
    EngineRequest r = asked_greedy(1, prompt, 32, 1);
    ask(&s, &r, &a[0]); /* a state at 32 tokens, one at 64 below it, and a stranger's */
    r.n_prompt = 64;
    ask(&s, &r, &a[0]);
    assert_int_equal(a[0].done.stats.n_cached, 32);
    r.prompt = prompt + 1;
    r.n_prompt = 32;
    ask(&s, &r, &a[0]);
    memset(a, 0, sizeof a);
    EngineRequest other = asked_greedy(2, prompt + 5, 8, 40); /* has the last slot */
    other.no_cache = other.ignore_eos = 1;
    asked_submit(s.engine, &other);
    asked_steps(s.engine, a, 1);
    r = asked_greedy(1, prompt, 48, 1);
    for (int i = 0; i < 2; i++) {
        prompt[32] = i;
        a[0].n = a[0].n_done = 0;
        asked_submit(s.engine, &r);
        while (!a[0].n_done)
            asked_steps(s.engine, a, 1);
        assert_int_equal(a[0].done.stats.n_cached, 32);
    }
    assert_int_equal(a[1].n_done, 0);
    while (!a[1].n_done)
        asked_steps(s.engine, a, 1);
    asked_close(&s);
}

/* What a request has found is as young as what it leaves, whoever left something in between. */
static void test_one_age(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a[2] = {0};
    EngineOptions o = asked_options(1, 0, 1);
    int32_t prompt[300], stranger[32], next[32];
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU};
    o.chunk_rows = 16;
    o.n_slots = 4;
    asked_open(&s, o);
    for (int i = 0; i < 300; i++)
        prompt[i] = 31 * i % 4000;
    for (int i = 0; i < 32; i++)
        stranger[i] = 2000 + i, next[i] = 3000 + i;
    EngineRequest r = asked_greedy(1, prompt, 32, 1), long_one = asked_greedy(2, prompt, 300, 1);
    ask(&s, &r, &a[0]);
    asked_submit(s.engine, &long_one);
    asked_steps(s.engine, a, 1);
    r.prompt = stranger;
    a[0].n = a[0].n_done = 0;
    asked_submit(s.engine, &r);
    while (!a[0].n_done)
        asked_steps(s.engine, a, 1);
    assert_int_equal(a[1].n_done, 0);
    while (!a[1].n_done)
        asked_steps(s.engine, a, 1);
    assert_int_equal(a[1].done.stats.n_cached, 32);
    r.prompt = next; /* its state takes the place of the oldest */
    ask(&s, &r, &a[0]);
    r.prompt = prompt;
    ask(&s, &r, &a[0]);
    assert_int_equal(a[0].done.stats.n_cached, 32);
    r.prompt = stranger;
    ask(&s, &r, &a[0]);
    assert_int_equal(a[0].done.stats.n_cached, 0);
    asked_close(&s);
}

static int open_list(void **state)
{
    if (asked_open_demo(state)) return -1;
    make_list();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_after_another),
        cmocka_unit_test(test_in_company),
        cmocka_unit_test(test_whole_memory),
        cmocka_unit_test(test_the_first_is_cancelled),
        cmocka_unit_test(test_who_shares_nothing),
        cmocka_unit_test(test_who_waits_for_nobody),
        cmocka_unit_test(test_made_to_leave_a_state),
        cmocka_unit_test(test_nothing_but_a_prompt),
        cmocka_unit_test(test_cancelled_answer),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_nobody_waits_for_a_paused_one),
        cmocka_unit_test(test_the_hit_stays),
        cmocka_unit_test(test_one_age),
    };
    return cmocka_run_group_tests(tests, open_list, asked_close_demo);
}
