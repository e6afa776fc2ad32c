/*
 * test_engine.c: whole answers through engine_step, on the demonstration model and the golden ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/check.h"
#include "drafts/mtp.h"
#include "drafts/scripted.h"
#include "engine/engine.h"
#include "engine/model.h"

enum { MAX_PROMPT = 4096, MAX_ANSWER = 256 };

/*
 * ThreadSanitizer makes arithmetic twenty times slower; it is here for the threads, not the models.
 */
#ifdef __SANITIZE_THREAD__
enum { N_THREADS = 2, N_MATRIX = 1, MATRIX_TOKENS = 3, ALLOCATION_STEPS = 40, N_REFERENCES = 2 };
#else
enum {
    N_THREADS = 1,
    N_MATRIX = 6,
    MATRIX_TOKENS = 12,
    ALLOCATION_STEPS = 1000,
    N_REFERENCES = 99
};
#endif

static Backend *be;
static Model *demo;
static json_t *references; /* of models/demo/reference.jsonl */

/* What came out of one request. */
typedef struct {
    int32_t token[MAX_ANSWER];
    int drafted[MAX_ANSWER];
    float logprob[MAX_ANSWER];
    int n, n_prompt_events, n_done;
    double prompt_logprob; /* sum */
    Event done;
} Answer;

typedef struct {
    Drafter drafter;
    Engine *engine;
} Setup;

static int open_demo(void **state)
{
    (void)state;
    Error err = {0};
    be = backend_cpu_open(N_THREADS, NULL, 4096, &err);
    demo = be ? model_open("models/demo", be, &err) : NULL;
    if (!demo) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    references = json_array();
    static char line[1 << 18];
    FILE *f = fopen("models/demo/reference.jsonl", "r");
    while (f && fgets(line, sizeof line, f))
        json_array_append_new(references, json_loads(line, 0, NULL));
    if (f) fclose(f);
    return json_array_size(references) > 0 ? 0 : -1;
}

static int close_demo(void **state)
{
    (void)state;
    json_decref(references);
    model_close(demo);
    be->close(be);
    return 0;
}

/* An engine with the MTP drafter (nodes > 1) or none. */
static void setup_open(Setup *s, EngineOptions o)
{
    Error err = {0};
    memset(s, 0, sizeof *s);
    if (o.tree_nodes > 1 && !o.drafter) {
        if (mtp_drafter_open(demo, &s->drafter, &err)) fail_msg("%s", err.msg);
        o.drafter = &s->drafter;
    }
    s->engine = engine_open(demo, &o, &err);
    if (!s->engine) fail_msg("%s", err.msg);
}

static void setup_close(Setup *s)
{
    engine_close(s->engine);
    if (s->drafter.self) s->drafter.close(s->drafter.self);
}

static EngineOptions options(int nodes, int depth, int topk)
{
    EngineOptions o = engine_defaults();
    o.ctx_size = 2048;
    o.max_seqs = 4;
    o.tree_nodes = nodes;
    o.draft_depth = depth;
    o.draft_topk = topk;
    return o;
}

static int load_ids(const json_t *list, int32_t *id, int max)
{
    int n = (int)json_array_size(list);
    assert_true(n <= max);
    for (int i = 0; i < n; i++)
        id[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static EngineRequest greedy(uint64_t id, const int32_t *prompt, int n, int max_tokens)
{
    return (EngineRequest){.id = id,
                           .prompt = prompt,
                           .n_prompt = n,
                           .max_tokens = max_tokens,
                           .params = {.top_p = 1, .repetition = 1},
                           .n_logprobs = -1,
                           .draft_max = -1};
}

static void take(Answer *a, const Event *ev)
{
    if (ev->type == EVENT_TOKEN) {
        assert_true(a->n < MAX_ANSWER);
        a->token[a->n] = ev->token;
        a->drafted[a->n] = ev->drafted;
        a->logprob[a->n++] = ev->logprob;
    } else if (ev->type == EVENT_PROMPT) {
        assert_int_equal(ev->pos, a->n_prompt_events);
        if (a->n_prompt_events++) a->prompt_logprob += (double)ev->logprob;
    } else {
        a->done = *ev;
        a->n_done++;
    }
}

/* Steps until n requests with ids 1..n are done; answers by id - 1. */
static void run(Engine *e, Answer *a, int n)
{
    Error err;
    for (int done = 0; done < n;) {
        int ran = engine_step(e, &err);
        if (ran < 0) fail_msg("%s", err.msg);
        int n_events = 0;
        for (const Event *ev; (ev = engine_next_event(e)); n_events++) {
            take(&a[ev->id - 1], ev);
            done += ev->type == EVENT_DONE;
        }
        if (ran == 0 && n_events == 0) fail_msg("nothing runs, %d of %d done", done, n);
    }
}

static void submit(Engine *e, const EngineRequest *r)
{
    Error err;
    if (engine_submit(e, r, &err)) fail_msg("%s", err.msg);
}

static void expect_idle(Engine *e)
{
    EngineStatus s;
    engine_status(e, &s);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.slots_free, s.slots);
    assert_int_equal(s.pages_free, s.pages);
}

/* Greedy answers of an independent implementation, token by token, plain, chain and tree. */
static void test_reference_answers(void **state)
{
    (void)state;
    static const int shape[][3] = {{1, 0, 1}, {4, 3, 1}, {16, 4, 4}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        Setup s;
        int n_steps = 0, n_accepted = 0;
        setup_open(&s, options(shape[k][0], shape[k][1], shape[k][2]));
        for (size_t i = 0; i < json_array_size(references) && i < N_REFERENCES; i++) {
            const json_t *ref = json_array_get(references, i);
            int32_t prompt[MAX_PROMPT], want[MAX_ANSWER];
            int n = load_ids(json_object_get(ref, "prompt_ids"), prompt, MAX_PROMPT);
            int n_want = load_ids(json_object_get(ref, "greedy_ids"), want, MAX_ANSWER);
            EngineRequest r = greedy(1, prompt, n, n_want);
            Answer a = {0};
            r.n_logprobs = 2;
            submit(s.engine, &r);
            run(s.engine, &a, 1);
            assert_int_equal(a.n, n_want);
            assert_memory_equal(a.token, want, (size_t)n_want * sizeof *want);
            const json_t *logprobs = json_object_get(ref, "logprobs");
            for (int t = 0; t < n_want; t++) {
                double ref_logprob = json_number_value(json_array_get(logprobs, (size_t)t));
                assert_true(fabs((double)a.logprob[t] - ref_logprob) < 1e-3);
            }
            n_steps += a.done.stats.n_steps;
            n_accepted += a.done.stats.n_accepted;
        }
        /*
         * A head that reads a wrong row still drafts, badly: only acceptance shows it (3.25 seen).
         */
        if (k) assert_true(n_accepted >= 2 * n_steps);
        expect_idle(s.engine);
        setup_close(&s);
    }
}

/* The matrix of `offshoot check` on every golden model and the demonstration model. */
static void test_check_matrix(void **state)
{
    (void)state;
    static const char *const dirs[] = {
        "tests/data/golden/qwen35-dense",     "tests/data/golden/qwen35-dense-odd",
        "tests/data/golden/qwen35-dense-fp8", "tests/data/golden/qwen35-moe",
        "tests/data/golden/qwen3-next",       "models/demo"};
    for (size_t i = 0; i < N_MATRIX; i++) {
        Error err = {0};
        char path[128];
        Model *m = model_open(dirs[i], be, &err);
        if (!m) fail_msg("%s", err.msg);
        snprintf(path, sizeof path, "%s/tokenizer.json", dirs[i]);
        Tokenizer *tok = tokenizer_open(path, &err);
        if (!tok) fail_msg("%s", err.msg);
        FILE *out = fopen("/dev/null", "w");
        CheckSetup setup = {.model = m, .tok = tok, .max_tokens = MATRIX_TOKENS};
        if (check_run(&setup, out, &err)) fail_msg("%s: %s", dirs[i], err.msg);
        fclose(out);
        tokenizer_close(tok);
        model_close(m);
    }
}

/* After engine_open nothing is allocated: many steps of trees and prompts, in company. */
static void test_no_allocation(void **state)
{
    (void)state;
    Setup s;
    Answer a[2];
    int32_t prompt[300];
    EngineStatus before, after;
    setup_open(&s, options(6, 3, 2));
    for (int i = 0; i < 300; i++)
        prompt[i] = (i * 37) % 4000;
    engine_status(s.engine, &before);
    unsigned long count = mem_count();
    size_t used = mallinfo2().uordblks;
    do {
        memset(a, 0, sizeof a);
        for (int i = 0; i < 2; i++) {
            EngineRequest r = greedy((uint64_t)i + 1, prompt, 40 + 60 * i, 200);
            r.ignore_eos = 1;
            r.params.temperature = i & 1 ? 1.0f : 0.0f;
            r.params.frequency = i & 1 ? 0.5f : 0.0f;
            submit(s.engine, &r);
        }
        run(s.engine, a, 2);
        engine_status(s.engine, &after);
    } while (after.steps - before.steps < ALLOCATION_STEPS);
    assert_int_equal(mem_count(), count);
    assert_int_equal(mallinfo2().uordblks, used);
    expect_idle(s.engine);
    setup_close(&s);
}

/* A reference's answer, stopped at each of its places. */
static void test_stops(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT], want[MAX_ANSWER];
    const json_t *ref = json_array_get(references, 1);
    int n = load_ids(json_object_get(ref, "prompt_ids"), prompt, MAX_PROMPT);
    int n_want = load_ids(json_object_get(ref, "greedy_ids"), want, MAX_ANSWER);
    int32_t end = want[n_want - 1];
    for (int nodes = 1; nodes <= 8; nodes += 7) {
        Setup s;
        setup_open(&s, options(nodes, 7, 1));
        for (int at = 1; at <= n_want; at++) { /* max_tokens at every place of accepted runs */
            EngineRequest r = greedy(1, prompt, n, at);
            Answer a = {0};
            submit(s.engine, &r);
            run(s.engine, &a, 1);
            assert_int_equal(a.n, at);
            assert_int_equal(a.done.stats.n_generated, at);
            assert_memory_equal(a.token, want, (size_t)at * sizeof *want);
            assert_int_equal(a.done.finish, at < n_want ? FINISH_LENGTH : FINISH_STOP);
        }
        for (int at = 0; at < n_want; at++) { /* a stop id: at its first place */
            EngineRequest r = greedy(1, prompt, n, 100);
            Answer a = {0};
            int first = 0;
            while (want[first] != want[at])
                first++;
            r.stop_ids = &want[at];
            r.n_stop_ids = 1;
            submit(s.engine, &r);
            run(s.engine, &a, 1);
            assert_int_equal(a.n, first + 1);
            assert_int_equal(a.done.finish, FINISH_STOP);
            assert_int_equal(a.done.stop_token, want[at]);
        }
        for (int min = 1; min < n_want; min++) { /* the ban ends in the middle of accepted runs */
            EngineRequest r = greedy(1, prompt, n, 60);
            Answer a = {0};
            r.min_tokens = min;
            submit(s.engine, &r);
            run(s.engine, &a, 1);
            assert_int_equal(a.n, n_want);
            assert_memory_equal(a.token, want, (size_t)n_want * sizeof *want);
        }
        EngineRequest r = greedy(1, prompt, n, 60);
        Answer a = {0};
        r.min_tokens = n_want + 5; /* the end token is kept out until then */
        submit(s.engine, &r);
        run(s.engine, &a, 1);
        assert_true(a.n >= n_want + 5);
        for (int i = 0; i < n_want + 4; i++)
            assert_int_not_equal(a.token[i], end);
        expect_idle(s.engine);
        setup_close(&s);
    }
}

/* The last token that a context holds, and what does not fit. */
static void test_limits(void **state)
{
    (void)state;
    Error err = {0};
    Setup s;
    int32_t prompt[300] = {1, 2, 3};
    EngineOptions o = options(8, 7, 1);
    o.ctx_size = 128;
    o.max_waiting = 2;
    setup_open(&s, o);
    EngineRequest r = greedy(1, prompt, 100, -1);
    Answer a = {0};
    r.ignore_eos = 1;
    submit(s.engine, &r);
    run(s.engine, &a, 1);
    assert_int_equal(a.n, 28);
    assert_int_equal(a.done.finish, FINISH_LENGTH);
    r = greedy(1, prompt, 129, -1);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    r = greedy(1, prompt, 100, 29);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    prompt[2] = 4096;
    r = greedy(1, prompt, 3, 1);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_INPUT);
    r = greedy(1, prompt, 2, 1);
    r.params.temperature = NAN;
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    r = greedy(1, prompt, 0, 1);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    for (int i = 0; i < 2; i++) {
        r = greedy((uint64_t)i + 1, prompt, 2, 1);
        submit(s.engine, &r);
    }
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    Answer two[2] = {0};
    run(s.engine, two, 2);
    expect_idle(s.engine);
    setup_close(&s);
}

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
        Setup s;
        setup_open(&s, options(nodes, 5, 2));
        for (int at = 1; at <= 12; at++) {
            Forcer f = {.force_at = at};
            EngineRequest r = greedy(1, prompt, 100, N);
            Answer plain = {0}, a = {0}, rest = {0};
            r.ignore_eos = 1;
            submit(s.engine, &r);
            run(s.engine, &plain, 1);
            r.watcher = (Watcher){&f, forcer_token};
            r.forced = forced;
            r.n_forced = 3;
            submit(s.engine, &r);
            run(s.engine, &a, 1);
            assert_int_equal(a.n, N);
            assert_int_equal(f.n, N);
            assert_memory_equal(a.token, plain.token, (size_t)at * sizeof *a.token);
            assert_memory_equal(a.token + at, forced, sizeof forced);
            memcpy(prompt + 100, a.token, (size_t)(at + 3) * sizeof *prompt);
            r = greedy(1, prompt, 100 + at + 3, N - at - 3);
            r.ignore_eos = 1;
            submit(s.engine, &r);
            run(s.engine, &rest, 1);
            assert_memory_equal(a.token + at + 3, rest.token, (size_t)rest.n * sizeof *rest.token);
        }
        for (int n_max = 4; n_max <= 7; n_max++) { /* the end before, in and after them */
            Forcer f = {.force_at = 4, .stop_at = n_max == 7 ? 6 : 0};
            EngineRequest r = greedy(1, prompt, 100, n_max);
            Answer a = {0};
            r.ignore_eos = 1;
            r.watcher = (Watcher){&f, forcer_token};
            r.forced = forced;
            r.n_forced = 3;
            submit(s.engine, &r);
            run(s.engine, &a, 1);
            assert_int_equal(a.n, n_max == 7 ? 6 : n_max);
            assert_int_equal(a.done.finish, n_max == 7 ? FINISH_STOP : FINISH_LENGTH);
        }
        expect_idle(s.engine);
        setup_close(&s);
    }
}

/* Different prompts, greedy and sampled, penalised, scored: answers that a wrong row would change.
 */
static EngineRequest mixed(int i, int32_t *prompt)
{
    int n = 20 + 37 * i;
    for (int k = 0; k < n; k++)
        prompt[k] = (k * 31 + i * 977 + 5) % 4000;
    EngineRequest r = greedy((uint64_t)i + 1, prompt, n, 180 - 10 * i);
    r.ignore_eos = 1;
    r.params.seed = (uint64_t)i;
    r.params.temperature = i & 1 ? 0.9f : 0;
    r.params.frequency = i % 3 == 1 ? 0.3f : 0;
    r.params.repetition = i % 3 == 2 ? 1.1f : 1;
    r.n_logprobs = 3;
    r.prompt_logprobs = i % 2;
    return r;
}

enum { N_MIXED = 5 };

static void assert_same_answer(const Answer *a, const Answer *want)
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
    Answer alone[N_MIXED] = {0};
    Setup s;
    setup_open(&s, options(1, 0, 1));
    for (int i = 0; i < N_MIXED; i++) {
        EngineRequest r = mixed(i, prompt[i]);
        r.id = 1;
        submit(s.engine, &r);
        run(s.engine, &alone[i], 1);
    }
    setup_close(&s);
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        EngineOptions o = options(shape[k][0], shape[k][1], shape[k][2]);
        Answer a[N_MIXED] = {0};
        EngineStatus st;
        o.max_seqs = N_MIXED;
        o.chunk_rows = 50;
        o.ctx_size = 0; /* whatever the memory holds */
        o.n_slots = 6;
        o.memory = (int64_t)6 * 823296 + (k ? 500 : 420) * (int64_t)6144;
        setup_open(&s, o);
        for (int i = 0; i < N_MIXED; i++) {
            EngineRequest r = mixed(i, prompt[i]);
            submit(s.engine, &r);
        }
        run(s.engine, a, N_MIXED);
        engine_status(s.engine, &st);
        long n_preemptions = 0;
        for (int i = 0; i < N_MIXED; i++) {
            assert_same_answer(&a[i], &alone[i]);
            n_preemptions += a[i].done.stats.n_preemptions;
        }
        assert_true(n_preemptions > 0);
        assert_int_equal(st.preemptions, n_preemptions);
        assert_int_equal(a[0].done.stats.n_preemptions, 0); /* it came first */
        expect_idle(s.engine);
        setup_close(&s);
    }
}

static void steps(Engine *e, Answer *a, int n)
{
    Error err;
    for (int i = 0; i < n; i++) {
        assert_true(engine_step(e, &err) >= 0);
        for (const Event *ev; (ev = engine_next_event(e));)
            take(&a[ev->id - 1], ev);
    }
}

/* Who is paused stands still and, when memory is short, gives it up; then it goes on. */
static void test_pause(void **state)
{
    (void)state;
    int32_t prompt[2][MAX_PROMPT];
    for (int n_slots = 1; n_slots <= 8; n_slots += 7) {
        Answer alone[2] = {0}, a[2] = {0};
        Setup s;
        EngineOptions o = options(4, 3, 1);
        EngineStatus st;
        o.n_slots = n_slots; /* 1: the other can run only in the paused one's place */
        setup_open(&s, o);
        EngineRequest r[2] = {mixed(0, prompt[0]), mixed(1, prompt[1])};
        for (int i = 0; i < 2; i++) {
            EngineRequest one = r[i];
            one.id = 1;
            submit(s.engine, &one);
            run(s.engine, &alone[i], 1);
        }
        submit(s.engine, &r[0]);
        steps(s.engine, a, 8);
        assert_true(a[0].n > 0 && !a[0].n_done);
        engine_pause(s.engine, 1, 1);
        engine_pause(s.engine, 99, 1);
        submit(s.engine, &r[1]);
        int before = a[0].n;
        for (int i = 0; i < 400 && !a[1].n_done; i++)
            steps(s.engine, a, 1);
        assert_int_equal(a[0].n, before);
        assert_same_answer(&a[1], &alone[1]);
        engine_status(s.engine, &st);
        assert_int_equal(st.preemptions, n_slots == 1);
        engine_pause(s.engine, 1, 0);
        for (int i = 0; i < 400 && !a[0].n_done; i++)
            steps(s.engine, a, 1);
        assert_same_answer(&a[0], &alone[0]);
        submit(s.engine, &r[0]); /* cancelled while it has no memory */
        memset(a, 0, sizeof a);
        steps(s.engine, a, 8);
        engine_pause(s.engine, 1, 1);
        submit(s.engine, &r[1]);
        steps(s.engine, a, 2);
        engine_cancel(s.engine, 1);
        for (int i = 0; i < 400 && !a[1].n_done; i++)
            steps(s.engine, a, 1);
        assert_int_equal(a[0].done.finish, FINISH_CANCELLED);
        memset(a, 0, sizeof a); /* paused while it waits */
        submit(s.engine, &r[0]);
        engine_pause(s.engine, 1, 1);
        steps(s.engine, a, 4);
        assert_int_equal(a[0].n, 0);
        engine_pause(s.engine, 1, 0);
        run(s.engine, a, 1);
        assert_same_answer(&a[0], &alone[0]);
        expect_idle(s.engine);
        setup_close(&s);
    }
}

/* A prompt of many chunks holds a short one up by one chunk, and is not held up itself. */
static void test_prompts_take_turns(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    Answer a[8] = {0};
    Setup s;
    EngineOptions o = options(1, 0, 1);
    o.chunk_rows = 10;
    setup_open(&s, o);
    for (int i = 0; i < MAX_PROMPT; i++)
        prompt[i] = i % 4000;
    EngineRequest big = greedy(1, prompt, 300, 1);
    submit(s.engine, &big);
    steps(s.engine, a, 2);
    EngineRequest small = greedy(2, prompt, 5, 1);
    submit(s.engine, &small);
    steps(s.engine, a, 2);
    assert_int_equal(a[1].n_done, 1);
    assert_int_equal(a[0].n_done, 0);
    for (int i = 0; i < 60; i++) { /* one small prompt after the other */
        small.id = 2;
        memset(&a[1], 0, sizeof a[1]);
        submit(s.engine, &small);
        steps(s.engine, a, 2);
        if (a[0].n_done) break;
        assert_int_equal(a[1].n_done, 1);
    }
    assert_int_equal(a[0].n_done, 1);
    memset(a, 0, sizeof a);
    for (uint64_t id = 1; id <= 2; id++) { /* two alike end together */
        big.id = id;
        submit(s.engine, &big);
    }
    for (int i = 0; i < 70 && !a[0].n_done; i++)
        steps(s.engine, a, 1);
    assert_int_equal(a[0].n_done, 1);
    steps(s.engine, a, 2);
    assert_int_equal(a[1].n_done, 1);
    expect_idle(s.engine);
    setup_close(&s);
}

/* Cancelled while running and while waiting: one DONE each, everything free, the index usable
 * again. */
static void test_cancel(void **state)
{
    (void)state;
    Error err;
    Setup s;
    int32_t prompt[200];
    for (int i = 0; i < 200; i++)
        prompt[i] = i;
    EngineOptions o = options(8, 3, 2);
    o.max_seqs = 1;
    setup_open(&s, o);
    EngineRequest r = greedy(1, prompt, 200, 50);
    Answer alone = {0}, a[3] = {0};
    submit(s.engine, &r);
    run(s.engine, &alone, 1);
    r.params.temperature = 1;
    submit(s.engine, &r);
    for (int id = 2; id <= 3; id++) {
        EngineRequest q = greedy((uint64_t)id, prompt, 200, 50);
        submit(s.engine, &q);
    }
    for (int i = 0; i < 5; i++) {
        assert_true(engine_step(s.engine, &err) > 0);
        for (const Event *ev; (ev = engine_next_event(s.engine));)
            take(&a[ev->id - 1], ev);
    }
    engine_cancel(s.engine, 1);
    engine_cancel(s.engine, 2);
    engine_cancel(s.engine, 77);
    run(s.engine, a, 3);
    assert_int_equal(a[0].n_done, 1);
    assert_int_equal(a[0].done.finish, FINISH_CANCELLED);
    assert_int_equal(a[1].n_done, 1);
    assert_int_equal(a[1].done.finish, FINISH_CANCELLED);
    assert_int_equal(a[2].n, alone.n);
    assert_memory_equal(a[2].token, alone.token, (size_t)alone.n * sizeof(int32_t));
    expect_idle(s.engine);
    setup_close(&s);
}

/* Scoring a prompt: one event a token, and the same sum in chunks, alone and in company. */
static void test_prompt_logprobs(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    int n =
        load_ids(json_object_get(json_array_get(references, 1), "prompt_ids"), prompt, MAX_PROMPT);
    double sum[2];
    for (int k = 0; k < 2; k++) {
        Setup s;
        Answer a[2] = {0};
        EngineOptions o = options(4, 3, 1);
        o.chunk_rows = k ? 3 : 256;
        setup_open(&s, o);
        EngineRequest r = greedy(1, prompt, n, 0), other = greedy(2, prompt, n, 30);
        r.prompt_logprobs = 1;
        r.n_logprobs = 5;
        if (k) submit(s.engine, &other);
        submit(s.engine, &r);
        run(s.engine, a, 1 + k);
        assert_int_equal(a[0].n, 0);
        assert_int_equal(a[0].n_prompt_events, n);
        assert_int_equal(a[0].done.finish, FINISH_LENGTH);
        sum[k] = a[0].prompt_logprob;
        setup_close(&s);
    }
    assert_true(sum[0] < 0 && sum[0] == sum[1]);
}

/* A perfect drafter is accepted whole, and the counts say so. */
static void test_counts(void **state)
{
    (void)state;
    Error err;
    int32_t all[MAX_PROMPT], want[MAX_ANSWER];
    const json_t *ref = json_array_get(references, 2);
    int n = load_ids(json_object_get(ref, "prompt_ids"), all, MAX_PROMPT - MAX_ANSWER);
    int n_want = load_ids(json_object_get(ref, "greedy_ids"), want, MAX_ANSWER);
    memcpy(all + n, want, (size_t)n_want * sizeof *want);
    Script script = {.token = all, .n = n + n_want};
    Drafter d;
    assert_int_equal(scripted_drafter_open(demo, SCRIPT_PERFECT, &script, 1, 1, &d, &err), 0);
    EngineOptions o = options(5, 4, 1);
    o.drafter = &d;
    Setup s;
    setup_open(&s, o);
    EngineRequest r = greedy(1, all, n, 26);
    Answer a = {0};
    submit(s.engine, &r);
    run(s.engine, &a, 1);
    const RequestStats *st = &a.done.stats;
    assert_int_equal(st->n_generated, 26); /* one by the prompt, 5 x 5 by steps */
    assert_int_equal(st->n_steps, 5);
    assert_int_equal(st->n_drafted, 20);
    assert_int_equal(st->n_accepted, 20);
    assert_int_equal(st->accepted_hist[4], 5);
    for (int depth = 1; depth <= 4; depth++) {
        assert_int_equal(st->depth_tried[depth], 5);
        assert_int_equal(st->depth_accepted[depth], 5);
    }
    for (int i = 0; i < 26; i++)
        assert_int_equal(a.drafted[i], i > 0 && i % 5 != 0);
    setup_close(&s);
    d.close(d.self);
}

/* A row that is not a number ends its request, and only with an error. */
static void test_nan_row(void **state)
{
    (void)state;
    Error err;
    int32_t prompt[] = {10, 11, 12};
    Model *m = model_open("models/demo", be, &err);
    assert_non_null(m);
    float *norm = (float *)(uintptr_t)m->final_norm, old = norm[3];
    EngineOptions o = options(1, 0, 1);
    Engine *e = engine_open(m, &o, &err);
    assert_non_null(e);
    EngineRequest r = greedy(1, prompt, 3, 10);
    Answer a = {0}, b = {0};
    norm[3] = NAN;
    submit(e, &r);
    run(e, &a, 1);
    assert_int_equal(a.n, 0);
    assert_int_equal(a.done.finish, FINISH_ERROR);
    norm[3] = old;
    submit(e, &r);
    run(e, &b, 1);
    assert_true(b.n > 0);
    expect_idle(e);
    engine_close(e);
    model_close(m);
}

/* Memory too small says which option to change. */
static void test_memory_too_small(void **state)
{
    (void)state;
    Error err = {0};
    EngineOptions o = options(1, 0, 1);
    o.memory = 1 << 16;
    assert_null(engine_open(demo, &o, &err));
    assert_non_null(strstr(err.msg, "--memory"));
    o.memory = 4 << 20;
    o.ctx_size = 8192;
    assert_null(engine_open(demo, &o, &err));
    assert_non_null(strstr(err.msg, "--ctx-size"));
    o.ctx_size = 0; /* the context is what fits */
    Engine *e = engine_open(demo, &o, &err);
    assert_non_null(e);
    EngineStatus st;
    engine_status(e, &st);
    assert_true(st.ctx_size > 0 && st.ctx_size < 8192);
    engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_answers),
        cmocka_unit_test(test_check_matrix),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_forced_tokens),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_prompts_take_turns),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_nan_row),
        cmocka_unit_test(test_memory_too_small),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
