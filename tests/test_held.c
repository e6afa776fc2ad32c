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

/* Holds back the text of tokens [from, to) of the answer and stops at the to-th, or sends it. */
typedef struct {
    int n, from, to, stops;
} Guard;

static WatchVerdict guard_token(void *self, int32_t token)
{
    Guard *g = self;
    int i = g->n++;
    (void)token;
    if (i == g->to) return g->stops ? WATCH_STOP : WATCH_GO;
    return i >= g->from && i < g->to ? WATCH_HELD : WATCH_GO;
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
                EngineRequest r = asked_greedy(1, text, N_PROMPT, MOST);
                r.ignore_eos = 1;
                r.watcher = (Watcher){&g, guard_token};
                ask(&s, &r, &a);
                assert_int_equal(a.n, to + 1);
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
        EngineStatus st;
        open_way(&s, &d, &ways[k], 1);
        for (int held = 1; held < 8; held += 3) {
            Guard g = {.from = 5, .to = 5 + held};
            EngineRequest r = asked_greedy(1, text, N_PROMPT, MOST);
            r.ignore_eos = 1;
            r.watcher = (Watcher){&g, guard_token};
            ask(&s, &r, &a);
            assert_int_equal(a.n, MOST);
            assert_memory_equal(a.token, whole.token, sizeof(int32_t) * MOST);
            engine_status(s.engine, &st);
            assert_int_equal(st.slots - st.slots_free, st.cache.states);
            assert_int_equal(st.cache.states, 2); /* the prompt's end and the answer's */
        }
        asked_close(&s);
        if (d.self) d.close(d.self);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_answers),
        cmocka_unit_test(test_sent_after_all),
    };
    return cmocka_run_group_tests(tests, open_all, asked_close_demo);
}
