/*
 * test_held.c: the state at the end of an answer that a watcher cut is that of what the client has,
 * wherever the cut lies in a run of accepted drafts and in whichever way drafts have their states.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "drafts/scripted.h"
#include "tests/asked.h"

enum { N_PROMPT = 50, MOST = 24, MORE = 20 };

/*
 * Holds back the text of tokens [from, to) of the answer and stops at the to-th, or sends it. Text
 * that was held and sent before this: that of token from - 2.
 */
typedef struct {
    int n, from, to, stops;
} Guard;

static WatchVerdict guard_token(void *self, int32_t token)
{
    Guard *g = self;
    int i = g->n++;
    (void)token;
    if (i == g->to) return g->stops ? WATCH_STOP : WATCH_GO;
    return (i >= g->from && i < g->to) || i == g->from - 2 ? WATCH_HELD : WATCH_GO;
}

static int32_t text[N_PROMPT + MOST + MORE];
static AskedAnswer whole; /* the answer without a watcher */

static void ask(AskedEngine *s, const EngineRequest *r, AskedAnswer *a)
{
    memset(a, 0, sizeof *a);
    asked_submit(s->engine, r);
    asked_run(s->engine, a, 1);
}

static int open_all(void **state)
{
    AskedEngine s;
    if (asked_open_demo(state)) return -1;
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = (i * 37 + 11) % 4000;
    asked_open(&s, asked_options(1, 0, 1));
    EngineRequest r = asked_greedy(1, text, N_PROMPT, MOST);
    r.ignore_eos = 1;
    ask(&s, &r, &whole);
    asked_close(&s);
    memcpy(text + N_PROMPT, whole.token, sizeof(int32_t) * MOST);
    return 0;
}

enum { NO_SCRIPT = -1 };

typedef struct {
    int nodes, depth, topk;
    StateMode mode;
    int script; /* NO_SCRIPT, or a ScriptMode: long runs of accepted drafts */
} Way;

static void open_way(AskedEngine *s, Drafter *d, const Way *w, int cache)
{
    static Script script;
    Error err = {0};
    EngineOptions o = asked_options(w->nodes, w->depth, w->topk);
    o.state_mode = w->mode;
    o.cache = (CacheOptions){.on = cache, .policy = POLICY_LRU, .keep_answers = 1};
    script = (Script){.token = text, .n = N_PROMPT + MOST};
    if (w->script != NO_SCRIPT) {
        assert_int_equal(
            scripted_drafter_open(asked_model, (ScriptMode)w->script, &script, 1, 3, d, &err), 0);
        o.drafter = d;
    }
    asked_open(s, o);
}

static EngineRequest guarded(Guard *g)
{
    EngineRequest r = asked_greedy(1, text, N_PROMPT, MOST);
    r.ignore_eos = 1;
    r.watcher = (Watcher){g, guard_token};
    return r;
}

/* No slot is in use but those of the cache's states. */
static EngineStatus idle_status(const AskedEngine *s)
{
    EngineStatus st;
    engine_status(s->engine, &st);
    assert_int_equal(st.slots - st.slots_free, st.cache.states);
    return st;
}

static const Way ways[] = {
    {1, 0, 1, STATE_SLOTS, NO_SCRIPT},        {4, 3, 1, STATE_REPLAY, NO_SCRIPT},
    {8, 7, 1, STATE_REPLAY, SCRIPT_PERFECT},  {8, 7, 1, STATE_SLOTS, SCRIPT_PERFECT},
    {16, 15, 1, STATE_SLOTS, SCRIPT_PERFECT}, {10, 4, 3, STATE_SLOTS, NO_SCRIPT},
    {16, 6, 1, STATE_REPLAY, SCRIPT_MIXED},   {16, 6, 1, STATE_SLOTS, SCRIPT_MIXED}};

static void test_cut_answers(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        AskedEngine off;
        Drafter none = {0};
        open_way(&off, &none, &ways[0], 0);
        for (int to = 1; to < MOST - 1; to += 2)
            for (int held = 0; held <= to && held <= 6; held += 3) {
                AskedEngine s;
                Drafter d = {0};
                AskedAnswer a, want;
                Guard g = {.from = to - held, .to = to, .stops = 1};
                open_way(&s, &d, &ways[k], 1);
                EngineRequest r = guarded(&g);
                ask(&s, &r, &a);
                assert_int_equal(a.n, to + 1);
                idle_status(&s);
                /* the next turn has what was sent, and something else or nothing */
                int n_sent = N_PROMPT + to - held, more = to & 2 ? MORE : 0;
                int32_t next[N_PROMPT + MOST + MORE];
                memcpy(next, text, (size_t)n_sent * sizeof *next);
                for (int i = 0; i < more; i++)
                    next[n_sent + i] = (i * 91 + 3500) % 4000;
                r = asked_greedy(1, next, n_sent + more, 8);
                r.n_logprobs = 1;
                ask(&off, &r, &want);
                ask(&s, &r, &a);
                assert_int_equal(a.done.stats.n_cached, n_sent);
                assert_int_equal(a.n, want.n);
                assert_memory_equal(a.token, want.token, (size_t)a.n * sizeof *a.token);
                assert_memory_equal(a.logprob, want.logprob, (size_t)a.n * sizeof *a.logprob);
                asked_close(&s);
                if (d.self) d.close(d.self);
            }
        asked_close(&off);
    }
}

/* Text that was held back and then sent holds nothing. */
static void test_sent_after_all(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        AskedEngine s;
        Drafter d = {0};
        AskedAnswer a;
        open_way(&s, &d, &ways[k], 1);
        for (int held = 1; held < 8; held += 3) {
            Guard g = {.from = 5, .to = 5 + held};
            EngineRequest r = guarded(&g);
            ask(&s, &r, &a);
            assert_int_equal(a.n, MOST);
            assert_memory_equal(a.token, whole.token, sizeof(int32_t) * MOST);
            assert_int_equal(idle_status(&s).cache.states, 2); /* the prompt's end, the answer's */
        }
        asked_close(&s);
        if (d.self) d.close(d.self);
    }
}

/* Without drafts, and with few slots. */
static void open_plain(AskedEngine *s, int n_slots)
{
    EngineOptions o = asked_options(1, 0, 1);
    o.n_slots = n_slots;
    o.max_seqs = n_slots < 4 ? n_slots : 4;
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
    asked_open(s, o);
}

/* Tokens that a prompt of the first n finds. */
static int n_found(AskedEngine *s, int n)
{
    AskedAnswer a;
    EngineRequest r = asked_greedy(1, text, n, 1);
    ask(s, &r, &a);
    return a.done.stats.n_cached;
}

/* Where the one slot is needed to go on in, the state is lost, unless the answer ends there. */
static void test_no_slot_to_hold(void **state)
{
    (void)state;
    for (int held = 0; held <= 3; held += 3) {
        AskedEngine s;
        AskedAnswer a;
        Guard g = {.from = 9 - held, .to = 9, .stops = 1};
        open_plain(&s, 1);
        EngineRequest r = guarded(&g);
        ask(&s, &r, &a);
        EngineStatus st = idle_status(&s);
        assert_int_equal(st.cache.kept[KEPT_ANSWER], !held);
        assert_int_equal(st.cache.refused[REFUSED_LOST], held > 0);
        assert_int_equal(n_found(&s, N_PROMPT + 9 - held), held ? 0 : N_PROMPT + 9);
        asked_close(&s);
    }
}

/* At its last token, or one that stops it, what is held is sent: the state is that of all. */
static void test_ends_while_held(void **state)
{
    (void)state;
    int at = 6; /* of an answer's token that was not there before */
    for (int i = 0; i < at; i++)
        if (whole.token[i] == whole.token[at]) i = -1, at++;
    for (int k = 0; k < 4; k++) {
        AskedEngine s;
        AskedAnswer a;
        Guard g = {.from = 3, .to = MOST + 1};
        int stops = k & 1, n = N_PROMPT + (stops ? at : MOST - 1);
        open_plain(&s, k & 2 ? 1 : 8); /* the state that is held is there, or lost */
        EngineRequest r = guarded(&g);
        r.stop_ids = &whole.token[at];
        r.n_stop_ids = stops;
        ask(&s, &r, &a);
        assert_int_equal(a.done.finish, stops ? FINISH_STOP : FINISH_LENGTH);
        EngineStatus st = idle_status(&s);
        assert_int_equal(st.cache.kept[KEPT_ANSWER], 1);
        assert_int_equal(st.cache.refused[REFUSED_LOST], 0);
        assert_int_equal(n_found(&s, n), n);
        asked_close(&s);
    }
}

/* An answer whose first token is held, in the place of one that was cut, leaves its prompt alone.
 */
static void test_held_from_the_first(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a;
    Guard cut = {.from = 2, .to = 5, .stops = 1}, at_once = {.from = 0, .to = 3, .stops = 1};
    open_plain(&s, 8);
    EngineRequest r = guarded(&cut);
    ask(&s, &r, &a);
    assert_int_equal(idle_status(&s).cache.kept[KEPT_ANSWER], 1);
    r = guarded(&at_once);
    r.prompt = text + 1;
    ask(&s, &r, &a);
    EngineStatus st = idle_status(&s);
    assert_int_equal(st.cache.kept[KEPT_ANSWER], 1);
    assert_int_equal(st.cache.states, 3);
    assert_int_equal(st.cache.refused[REFUSED_LOST], 0);
    asked_close(&s);
}

/* Nothing is held while a prompt is read, nor of an answer that will not come back. */
static void test_holds_no_more(void **state)
{
    (void)state;
    for (int changes = 0; changes < 2; changes++) {
        AskedEngine s;
        AskedAnswer a = {0};
        EngineStatus st;
        Guard g = {.from = 3, .to = 9};
        EngineOptions o = asked_options(1, 0, 1);
        o.chunk_rows = 16;
        o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
        asked_open(&s, o);
        EngineRequest r = guarded(&g);
        r.answer_changes = changes;
        asked_submit(s.engine, &r);
        while (a.n < (changes ? MOST - 1 : 1)) {
            asked_steps(s.engine, &a, 1);
            engine_status(s.engine, &st);
            assert_int_equal(st.slots - st.slots_free, st.cache.states + 1);
        }
        asked_run(s.engine, &a, 1);
        asked_close(&s);
    }
}

/* Who gives his memory up gives up the state that is held: none after it is taken for it. */
static void test_preempted_while_held(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a[3] = {0};
    EngineStatus st;
    Guard g = {.from = 3, .to = 12, .stops = 1};
    open_plain(&s, 3);
    EngineRequest r = guarded(&g), other = asked_greedy(2, text + 7, 20, 4);
    other.no_cache = 1;
    asked_submit(s.engine, &r);
    while (a[0].n < 6)
        asked_steps(s.engine, a, 1);
    engine_pause(s.engine, 1, 1);
    for (; other.id <= 3; other.id++) /* they need its slots, too */
        asked_submit(s.engine, &other);
    while (!a[1].n_done || !a[2].n_done)
        asked_steps(s.engine, a, 1);
    engine_status(s.engine, &st);
    assert_int_equal(st.preemptions, 1);
    engine_pause(s.engine, 1, 0);
    asked_run(s.engine, a, 1);
    assert_int_equal(a[0].n, 13);
    assert_memory_equal(a[0].token, whole.token, 13 * sizeof(int32_t));
    st = idle_status(&s);
    assert_int_equal(st.cache.kept[KEPT_ANSWER], 0);
    assert_int_equal(st.cache.refused[REFUSED_LOST], 1);
    asked_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_answers),          cmocka_unit_test(test_sent_after_all),
        cmocka_unit_test(test_no_slot_to_hold),      cmocka_unit_test(test_ends_while_held),
        cmocka_unit_test(test_held_from_the_first),  cmocka_unit_test(test_holds_no_more),
        cmocka_unit_test(test_preempted_while_held),
    };
    return cmocka_run_group_tests(tests, open_all, asked_close_demo);
}
