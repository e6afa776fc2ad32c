/*
 * test_schedule.c: who runs: sequences that take each other's pages, stand still, take turns, and
 * go on with tokens that they did not choose.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/clock.h"
#include "drafts/scripted.h"
#include "tests/asked.h"

/* Says once, after a number of tokens, that forced ones follow; and ends the answer at another. */
typedef struct {
    int n, force_at, stop_at;
} Forcer;

static WatchVerdict forcer_token(void *self, int32_t token)
{
    Forcer *f = self;
    (void)token;
    f->n++;
    return f->n == f->force_at ? WATCH_FORCE : f->n == f->stop_at ? WATCH_STOP : WATCH_GO;
}

/*
 * An answer goes on after forced tokens as it does when they and what came before are the prompt;
 * at every place of accepted runs, and at its ends.
 */
static void test_forced_tokens(void **state)
{
    (void)state;
    static const int32_t forced[] = {198, 1234, 77};
    enum { N = 30 };
    int32_t prompt[100 + N];
    for (int i = 0; i < 100; i++)
        prompt[i] = (i * 31 + 5) % 4000;
    for (int nodes = 1; nodes <= 8; nodes += 7) {
        AskedEngine s;
        asked_open(&s, asked_options(nodes, 5, 2));
        for (int at = 1; at <= 12; at++) {
            Forcer f = {.force_at = at};
            EngineRequest r = asked_greedy(1, prompt, 100, N);
            AskedAnswer plain = {0}, a = {0}, rest = {0};
            r.ignore_eos = 1;
            asked_submit(s.engine, &r);
            asked_run(s.engine, &plain, 1);
            r.watcher = (Watcher){&f, forcer_token};
            r.forced = forced;
            r.n_forced = 3;
            asked_submit(s.engine, &r);
            asked_run(s.engine, &a, 1);
            assert_int_equal(a.n, N);
            assert_int_equal(f.n, N);
            assert_memory_equal(a.token, plain.token, (size_t)at * sizeof *a.token);
            assert_memory_equal(a.token + at, forced, sizeof forced);
            memcpy(prompt + 100, a.token, (size_t)(at + 3) * sizeof *prompt);
            r = asked_greedy(1, prompt, 100 + at + 3, N - at - 3);
            r.ignore_eos = 1;
            asked_submit(s.engine, &r);
            asked_run(s.engine, &rest, 1);
            assert_memory_equal(a.token + at + 3, rest.token, (size_t)rest.n * sizeof *rest.token);
        }
        for (int n_max = 4; n_max <= 7; n_max++) { /* the end before, in and after them */
            Forcer f = {.force_at = 4, .stop_at = n_max == 7 ? 6 : 0};
            EngineRequest r = asked_greedy(1, prompt, 100, n_max);
            AskedAnswer a = {0};
            r.ignore_eos = 1;
            r.watcher = (Watcher){&f, forcer_token};
            r.forced = forced;
            r.n_forced = 3;
            asked_submit(s.engine, &r);
            asked_run(s.engine, &a, 1);
            assert_int_equal(a.n, n_max == 7 ? 6 : n_max);
            assert_int_equal(a.done.finish, n_max == 7 ? FINISH_STOP : FINISH_LENGTH);
        }
        asked_expect_idle(s.engine);
        asked_close(&s);
    }
}

/* Forced tokens that go beyond the pages at hand get their own: nobody's rows are written over. */
static void test_forced_pages(void **state)
{
    (void)state;
    static const int32_t forced[] = {198, 1234, 77};
    enum { N = 40 };
    int32_t prompt[100 + N];
    for (int i = 0; i < 100; i++)
        prompt[i] = (i * 31 + 5) % 4000;
    for (int at = 8; at <= 16; at++) { /* the 112th token ends a page */
        EngineOptions o = asked_options(1, 0, 1);
        AskedEngine s;
        AskedAnswer a = {0}, rest = {0};
        Forcer f = {.force_at = at};
        EngineRequest r = asked_greedy(1, prompt, 100, N);
        o.reserve = 0;
        asked_open(&s, o);
        r.ignore_eos = 1;
        r.watcher = (Watcher){&f, forcer_token};
        r.forced = forced;
        r.n_forced = 3;
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
        memcpy(prompt + 100, a.token, (size_t)(at + 3) * sizeof *prompt);
        r = asked_greedy(1, prompt, 100 + at + 3, N - at - 3);
        r.ignore_eos = 1;
        asked_submit(s.engine, &r);
        asked_run(s.engine, &rest, 1);
        assert_memory_equal(a.token + at + 3, rest.token, (size_t)rest.n * sizeof *rest.token);
        asked_expect_idle(s.engine);
        asked_close(&s);
    }
}

/* Different prompts, greedy and sampled, penalised, scored: answers that a wrong row would change.
 */
static EngineRequest mixed(int i, int32_t *prompt)
{
    int n = 20 + 37 * i;
    for (int k = 0; k < n; k++)
        prompt[k] = (k * 31 + i * 977 + 5) % 4000;
    EngineRequest r = asked_greedy((uint64_t)i + 1, prompt, n, 180 - 10 * i);
    r.ignore_eos = 1;
    r.params.seed = (uint64_t)i;
    r.params.temperature = i & 1 ? 0.9f : 0;
    r.params.frequency = i % 3 == 1 ? 0.3f : 0;
    r.params.repetition = i % 3 == 2 ? 1.1f : 1;
    r.n_logprobs = 3;
    r.prompt_logprobs = i % 2;
    return r;
}

enum { N_MIXED = 5, FRAME_BYTES = 9 * 98304 }; /* models/demo: a state takes 9 pages of 16 rows */

static void assert_same_answer(const AskedAnswer *a, const AskedAnswer *want)
{
    assert_int_equal(a->n_done, 1);
    assert_int_equal(a->done.finish, FINISH_LENGTH);
    assert_int_equal(a->n, want->n);
    assert_memory_equal(a->token, want->token, (size_t)want->n * sizeof *want->token);
    assert_memory_equal(a->logprob, want->logprob, (size_t)want->n * sizeof *want->logprob);
    assert_int_equal(a->n_prompt_events, want->n_prompt_events);
    assert_true(a->prompt_logprob == want->prompt_logprob);
}

/* A pool that holds a part of what runs: the youngest give way, and no answer changes. */
static void test_preemption(void **state)
{
    (void)state;
    static const int shape[][3] = {{1, 0, 1}, {4, 3, 1}, {16, 4, 4}};
    int32_t prompt[N_MIXED][MAX_PROMPT];
    AskedAnswer alone[N_MIXED] = {0};
    AskedEngine s;
    asked_open(&s, asked_options(1, 0, 1));
    for (int i = 0; i < N_MIXED; i++) {
        EngineRequest r = mixed(i, prompt[i]);
        r.id = 1;
        asked_submit(s.engine, &r);
        asked_run(s.engine, &alone[i], 1);
    }
    asked_close(&s);
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        EngineOptions o = asked_options(shape[k][0], shape[k][1], shape[k][2]);
        AskedAnswer a[N_MIXED] = {0};
        EngineStatus st;
        o.max_seqs = N_MIXED;
        o.chunk_rows = 50;
        o.reserve = 8;
        o.ctx_size = 0; /* whatever the memory holds */
        o.n_slots = 6;
        o.memory = (int64_t)(5 + k) * FRAME_BYTES;
        asked_open(&s, o);
        for (int i = 0; i < N_MIXED; i++) {
            EngineRequest r = mixed(i, prompt[i]);
            asked_submit(s.engine, &r);
        }
        asked_run(s.engine, a, N_MIXED);
        engine_status(s.engine, &st);
        long n_preemptions = 0;
        for (int i = 0; i < N_MIXED; i++) {
            assert_same_answer(&a[i], &alone[i]);
            n_preemptions += a[i].done.stats.n_preemptions;
        }
        assert_true(n_preemptions > 0);
        assert_int_equal(st.preemptions, n_preemptions);
        assert_int_equal(a[0].done.stats.n_preemptions, 0); /* it came first */
        asked_expect_idle(s.engine);
        asked_close(&s);
    }
}

/* Of those who gave their memory up the first goes on first. */
static void test_parked_in_order(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a[3] = {0};
    int32_t prompt[3][5];
    EngineOptions o = asked_options(1, 0, 1);
    o.n_slots = 1;
    asked_open(&s, o);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 5; k++)
            prompt[i][k] = 100 * i + k;
        EngineRequest r = asked_greedy((uint64_t)i + 1, prompt[i], 5, 20);
        r.ignore_eos = 1;
        asked_submit(s.engine, &r);
        asked_steps(s.engine, a, 4);
        assert_true(a[i].n > 0 && !a[i].n_done);
        engine_pause(s.engine, r.id, i < 2);
    }
    int second = a[1].n;
    engine_pause(s.engine, 1, 0);
    engine_pause(s.engine, 2, 0);
    while (!a[0].n_done)
        asked_steps(s.engine, a, 1);
    assert_int_equal(a[1].n, second);
    while (!a[1].n_done)
        asked_steps(s.engine, a, 1);
    asked_expect_idle(s.engine);
    asked_close(&s);
}

/* Who gave its memory up is not overtaken by who came later and would find a place now. */
static void test_preempted_before_new(void **state)
{
    (void)state;
    AskedEngine s;
    AskedAnswer a[3] = {0};
    EngineStatus st;
    int32_t prompt[200];
    EngineOptions o = asked_options(1, 0, 1);
    o.ctx_size = 0;
    o.reserve = 8;
    o.memory = (int64_t)5 * FRAME_BYTES;
    asked_open(&s, o);
    for (int i = 0; i < 200; i++)
        prompt[i] = i * 31 % 4000;
    EngineRequest first = asked_greedy(1, prompt, 200, 250);
    EngineRequest second = asked_greedy(2, prompt, 100, 200), small = asked_greedy(3, prompt, 5, 5);
    first.ignore_eos = second.ignore_eos = small.ignore_eos = 1;
    asked_submit(s.engine, &first);
    asked_submit(s.engine, &second);
    do {
        asked_steps(s.engine, a, 1);
        engine_status(s.engine, &st);
    } while (!st.preemptions && !a[0].n_done);
    assert_int_equal(st.preemptions, 1);
    asked_submit(s.engine, &small);
    do {
        asked_steps(s.engine, a, 1);
        engine_status(s.engine, &st);
        assert_true(!st.waiting || !a[2].n);
    } while (st.waiting);
    assert_int_equal(a[0].n_done, 1); /* there was no place before */
    while (!a[1].n_done || !a[2].n_done)
        asked_steps(s.engine, a, 1);
    asked_expect_idle(s.engine);
    asked_close(&s);
}

/* Who is paused stands still and, when memory is short, gives it up; then it goes on. */
static void test_pause(void **state)
{
    (void)state;
    int32_t prompt[2][MAX_PROMPT];
    for (int n_slots = 1; n_slots <= 8; n_slots += 7) {
        AskedAnswer alone[2] = {0}, a[2] = {0};
        AskedEngine s;
        EngineOptions o = asked_options(4, 3, 1);
        EngineStatus st;
        o.n_slots = n_slots; /* 1: the other can run only in the paused one's place */
        asked_open(&s, o);
        EngineRequest r[2] = {mixed(0, prompt[0]), mixed(1, prompt[1])};
        for (int i = 0; i < 2; i++) {
            EngineRequest one = r[i];
            one.id = 1;
            asked_submit(s.engine, &one);
            asked_run(s.engine, &alone[i], 1);
        }
        double begun = clock_ms();
        asked_submit(s.engine, &r[0]);
        asked_steps(s.engine, a, 8);
        double seen = clock_ms() - begun;
        assert_true(a[0].n > 0 && !a[0].n_done);
        engine_pause(s.engine, 1, 1);
        engine_pause(s.engine, 99, 1);
        asked_submit(s.engine, &r[1]);
        int before = a[0].n;
        for (int i = 0; i < 400 && !a[1].n_done; i++)
            asked_steps(s.engine, a, 1);
        assert_int_equal(a[0].n, before);
        assert_same_answer(&a[1], &alone[1]);
        engine_status(s.engine, &st);
        assert_int_equal(st.preemptions, n_slots == 1);
        asked_steps(s.engine, a, 2); /* it takes none back while it stands still */
        engine_status(s.engine, &st);
        assert_int_equal(st.slots - st.slots_free, n_slots != 1);
        engine_pause(s.engine, 1, 0);
        for (int i = 0; i < 400 && !a[0].n_done; i++)
            asked_steps(s.engine, a, 1);
        assert_same_answer(&a[0], &alone[0]);
        assert_true(a[0].done.stats.prompt_ms <= seen); /* its first token was before the pause */
        asked_submit(s.engine, &r[0]);                  /* cancelled while it has no memory */
        memset(a, 0, sizeof a);
        asked_steps(s.engine, a, 8);
        engine_pause(s.engine, 1, 1);
        asked_submit(s.engine, &r[1]);
        asked_steps(s.engine, a, 2);
        engine_cancel(s.engine, 1);
        for (int i = 0; i < 400 && !a[1].n_done; i++)
            asked_steps(s.engine, a, 1);
        assert_int_equal(a[0].done.finish, FINISH_CANCELLED);
        memset(a, 0, sizeof a); /* paused while it waits */
        asked_submit(s.engine, &r[0]);
        engine_pause(s.engine, 1, 1);
        asked_steps(s.engine, a, 4);
        assert_int_equal(a[0].n, 0);
        engine_pause(s.engine, 1, 0);
        asked_run(s.engine, a, 1);
        assert_same_answer(&a[0], &alone[0]);
        asked_expect_idle(s.engine);
        asked_close(&s);
    }
}

/* A prompt of many chunks holds a short one up by one chunk, and is not held up itself. */
static void test_prompts_take_turns(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    AskedAnswer a[8] = {0};
    AskedEngine s;
    EngineOptions o = asked_options(1, 0, 1);
    o.chunk_rows = 10;
    asked_open(&s, o);
    for (int i = 0; i < MAX_PROMPT; i++)
        prompt[i] = i % 4000;
    EngineRequest big = asked_greedy(1, prompt, 300, 1);
    asked_submit(s.engine, &big);
    asked_steps(s.engine, a, 2);
    EngineRequest small = asked_greedy(2, prompt, 5, 1);
    asked_submit(s.engine, &small);
    asked_steps(s.engine, a, 2);
    assert_int_equal(a[1].n_done, 1);
    assert_int_equal(a[0].n_done, 0);
    for (int i = 0; i < 60; i++) { /* one small prompt after the other */
        small.id = 2;
        memset(&a[1], 0, sizeof a[1]);
        asked_submit(s.engine, &small);
        asked_steps(s.engine, a, 2);
        if (a[0].n_done) break;
        assert_int_equal(a[1].n_done, 1);
    }
    assert_int_equal(a[0].n_done, 1);
    memset(a, 0, sizeof a);
    for (uint64_t id = 1; id <= 2; id++) { /* two alike end together */
        big.id = id;
        asked_submit(s.engine, &big);
    }
    for (int i = 0; i < 70 && !a[0].n_done && !a[1].n_done; i++)
        asked_steps(s.engine, a, 1);
    asked_steps(s.engine, a, 2);
    assert_int_equal(a[0].n_done, 1);
    assert_int_equal(a[1].n_done, 1);
    asked_expect_idle(s.engine);
    asked_close(&s);
}

/* A drafter that is never right is not asked for ever; one that is right now and then is. */
static void test_fruitless_drafts(void **state)
{
    (void)state;
    static const ScriptMode modes[] = {SCRIPT_LIE, SCRIPT_MIXED};
    int32_t prompt[MAX_PROMPT];
    AskedAnswer plain = {0};
    AskedEngine s;
    EngineRequest r = mixed(0, prompt);
    asked_open(&s, asked_options(1, 0, 1));
    asked_submit(s.engine, &r);
    asked_run(s.engine, &plain, 1);
    asked_close(&s);
    int32_t script_token[MAX_PROMPT + MAX_ANSWER];
    memcpy(script_token, prompt, (size_t)r.n_prompt * sizeof *prompt);
    memcpy(script_token + r.n_prompt, plain.token, (size_t)plain.n * sizeof *prompt);
    Script script = {.token = script_token, .n = r.n_prompt + plain.n};
    for (int k = 0; k < 2; k++) {
        Error err = {0};
        Drafter d;
        AskedAnswer a = {0};
        EngineOptions o = asked_options(4, 3, 1);
        assert_int_equal(scripted_drafter_open(asked_model, modes[k], &script, 1, 5, &d, &err), 0);
        o.drafter = &d;
        asked_open(&s, o);
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
        assert_same_answer(&a, &plain);
        if (k == 0) {
            assert_int_equal(a.done.stats.n_steps_drafted, 64);
            assert_int_equal(a.done.stats.n_steps, plain.n - 1);
        } else {
            assert_true(a.done.stats.n_accepted > 0);
            assert_true(a.done.stats.n_steps_drafted >= a.done.stats.n_steps - 1);
        }
        asked_close(&s);
        d.close(d.self);
    }
}

/* Guesses nothing, and counts the rows that it is shown. */
static int observer_bind(void *self, struct Engine *engine, Error *err)
{
    (void)self, (void)engine, (void)err;
    return 0;
}

static void observer_observe(void *self, const DraftObserved *rows)
{
    *(int *)self += rows->n;
}

static void observer_propose(void *self, const DraftRequest *request, int n,
                             const DraftGuide *guide)
{
    (void)self, (void)request, (void)n, (void)guide;
}

/* A drafter is shown nothing of a sequence that gets no drafts, unless the cache keeps its rows. */
static void test_shown_for_nothing(void **state)
{
    (void)state;
    static const struct {
        int nodes, draft_max, cache, is_shown;
    } cases[] = {{4, -1, 0, 1}, {4, 1, 0, 1}, {4, 0, 0, 0}, {1, -1, 0, 0}, {4, 0, 1, 1}};
    int32_t prompt[] = {1, 2, 3, 4, 5};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n_rows = 0;
        Drafter d = {.name = "observer",
                     .self = &n_rows,
                     .bind = observer_bind,
                     .observe = observer_observe,
                     .propose = observer_propose};
        AskedEngine s;
        AskedAnswer a = {0};
        EngineOptions o = asked_options(cases[i].nodes, 3, 1);
        o.drafter = &d;
        o.cache.on = cases[i].cache;
        asked_open(&s, o);
        EngineRequest r = asked_greedy(1, prompt, 5, 20);
        r.ignore_eos = 1;
        r.draft_max = cases[i].draft_max;
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
        assert_int_equal(a.n, 20);
        if (cases[i].is_shown)
            assert_true(n_rows >= 5 + 20 - 3); /* the last ones may be of no use */
        else
            assert_int_equal(n_rows, 0);
        asked_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced_tokens),        cmocka_unit_test(test_forced_pages),
        cmocka_unit_test(test_preemption),           cmocka_unit_test(test_pause),
        cmocka_unit_test(test_prompts_take_turns),   cmocka_unit_test(test_fruitless_drafts),
        cmocka_unit_test(test_shown_for_nothing),    cmocka_unit_test(test_parked_in_order),
        cmocka_unit_test(test_preempted_before_new),
    };
    return cmocka_run_group_tests(tests, asked_open_demo, asked_close_demo);
}
