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
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/check.h"
#include "drafts/scripted.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "tests/asked.h"

/*
 * ThreadSanitizer makes arithmetic twenty times slower; it is here for the threads, not the models.
 */
#ifdef __SANITIZE_THREAD__
enum { N_MATRIX = 1, MATRIX_TOKENS = 3, ALLOCATION_STEPS = 40, N_REFERENCES = 2 };
#else
enum { N_MATRIX = 7, MATRIX_TOKENS = 12, ALLOCATION_STEPS = 1000, N_REFERENCES = 99 };
#endif

/* Greedy answers of an independent implementation, token by token, plain, chain and tree. */
static void test_reference_answers(void **state)
{
    (void)state;
    static const int shape[][4] = {
        {1, 0, 1, 0}, {4, 3, 1, STATE_SLOTS}, {4, 3, 1, STATE_REPLAY}, {16, 4, 4, STATE_REPLAY}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        AskedEngine s;
        int n_steps = 0, n_accepted = 0;
        EngineOptions o = asked_options(shape[k][0], shape[k][1], shape[k][2]);
        o.state_mode = (StateMode)shape[k][3];
        asked_open(&s, o);
        for (size_t i = 0; i < json_array_size(asked_references) && i < N_REFERENCES; i++) {
            const json_t *ref = json_array_get(asked_references, i);
            int32_t prompt[MAX_PROMPT], want[MAX_ANSWER];
            int n = asked_load_ids(json_object_get(ref, "prompt_ids"), prompt, MAX_PROMPT);
            int n_want = asked_load_ids(json_object_get(ref, "greedy_ids"), want, MAX_ANSWER);
            EngineRequest r = asked_greedy(1, prompt, n, n_want);
            AskedAnswer a = {0};
            r.n_logprobs = 2;
            asked_submit(s.engine, &r);
            asked_run(s.engine, &a, 1);
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
        asked_expect_idle(s.engine);
        asked_close(&s);
    }
}

/*
 * The matrix of `offshoot check` on every golden model and the demonstration model; on that one
 * also with K and V in bf16.
 */
static void test_check_matrix(void **state)
{
    (void)state;
    static const char *const dirs[] = {"tests/data/golden/qwen35-dense",
                                       "tests/data/golden/qwen35-dense-odd",
                                       "tests/data/golden/qwen35-dense-fp8",
                                       "tests/data/golden/qwen35-moe",
                                       "tests/data/golden/qwen3-next",
                                       "models/demo",
                                       "models/demo"};
    for (size_t i = 0; i < N_MATRIX; i++) {
        Error err = {0};
        char path[128];
        Model *m = model_open(dirs[i], NULL, asked_backend, &err);
        if (!m) fail_msg("%s", err.msg);
        snprintf(path, sizeof path, "%s/tokenizer.json", dirs[i]);
        Tokenizer *tok = tokenizer_open(path, &err);
        if (!tok) fail_msg("%s", err.msg);
        FILE *out = fopen("/dev/null", "w");
        CheckSetup setup = {.model = m,
                            .tok = tok,
                            .max_tokens = MATRIX_TOKENS,
                            .kv_type = i < 6 ? KV_F32 : KV_BF16};
        if (check_run(&setup, out, &err)) fail_msg("%s: %s", dirs[i], err.msg);
        fclose(out);
        tokenizer_close(tok);
        model_close(m);
    }
}

/* What one budget holds, in pages, and how likely a prompt is. */
static double score_with(KvType type, int *pages)
{
    int32_t prompt[MAX_PROMPT];
    int n = asked_load_ids(json_object_get(json_array_get(asked_references, 1), "prompt_ids"),
                           prompt, MAX_PROMPT);
    AskedEngine s;
    AskedAnswer a = {0};
    EngineStatus status;
    char table[1024] = {0};
    EngineOptions o = asked_options(4, 3, 1);
    o.ctx_size = 0;
    o.memory = 16 << 20;
    o.n_slots = 4;
    o.kv_type = type;
    asked_open(&s, o);
    engine_status(s.engine, &status);
    FILE *out = fmemopen(table, sizeof table - 1, "w");
    engine_print_memory(s.engine, out);
    fclose(out);
    assert_non_null(strstr(table, type == KV_BF16 ? "KV (bf16)\n" : "KV (f32)\n"));
    assert_non_null(
        strstr(table, type == KV_BF16 ? "rows of KV of 3.0 KiB" : "rows of KV of 6.0 KiB"));
    EngineRequest r = asked_greedy(1, prompt, n, 0);
    r.prompt_logprobs = 1;
    r.n_logprobs = 1;
    asked_submit(s.engine, &r);
    asked_run(s.engine, &a, 1);
    asked_close(&s);
    *pages = status.pages;
    return a.prompt_logprob / n;
}

/* bf16 K and V: twice the tokens in the same memory, and nearly the same model. */
static void test_kv_types(void **state)
{
    (void)state;
    int pages[2];
    double f32 = score_with(KV_F32, &pages[0]), bf16 = score_with(KV_BF16, &pages[1]);
    assert_true(pages[1] >= 2 * pages[0]);
    assert_true(f32 != bf16);
    assert_true(fabs(f32 - bf16) < 2e-3);
}

static long n_steps(const EngineStatus *s)
{
    long n = 0;
    for (int kind = 0; kind < N_STEP_KINDS; kind++)
        n += s->totals.steps[kind];
    return n;
}

/* After engine_open nothing is allocated: many steps of trees and prompts, in company. */
static void check_no_allocation(StateMode mode)
{
    AskedEngine s;
    AskedAnswer a[2];
    int32_t prompt[300];
    EngineStatus before, after;
    EngineOptions o = asked_options(6, 3, 2);
    o.state_mode = mode;
    asked_open(&s, o);
    for (int i = 0; i < 300; i++)
        prompt[i] = (i * 37) % 4000;
    engine_status(s.engine, &before);
    assert_int_equal(before.state_mode, mode);
    unsigned long count = mem_count();
    size_t used = mallinfo2().uordblks;
    do {
        memset(a, 0, sizeof a);
        for (int i = 0; i < 2; i++) {
            EngineRequest r = asked_greedy((uint64_t)i + 1, prompt, 40 + 60 * i, 200);
            r.ignore_eos = 1;
            r.params.temperature = i & 1 ? 1.0f : 0.0f;
            r.params.frequency = i & 1 ? 0.5f : 0.0f;
            asked_submit(s.engine, &r);
        }
        asked_run(s.engine, a, 2);
        engine_status(s.engine, &after);
    } while (n_steps(&after) - n_steps(&before) < ALLOCATION_STEPS);
    assert_int_equal(mem_count(), count);
    assert_int_equal(mallinfo2().uordblks, used);
    asked_expect_idle(s.engine);
    asked_close(&s);
}

static void test_no_allocation(void **state)
{
    (void)state;
    check_no_allocation(STATE_SLOTS);
    check_no_allocation(STATE_REPLAY);
}

/* What auto picks, and what each mode takes. */
static void test_state_mode(void **state)
{
    (void)state;
    static const struct {
        int nodes;
        StateMode asked, got;
        const char *states; /* beside the sequence's own */
    } list[] = {{1, STATE_AUTO, STATE_SLOTS, "one state;"},
                {1, STATE_REPLAY, STATE_SLOTS, "one state;"},
                {2, STATE_AUTO, STATE_REPLAY, "one state;"},
                {4, STATE_AUTO, STATE_REPLAY, "one state;"},
                {4, STATE_SLOTS, STATE_SLOTS, "up to 3 more"},
                {4, STATE_REPLAY, STATE_REPLAY, "one state;"},
                {64, STATE_SLOTS, STATE_SLOTS, "up to 63 more"},
                {64, STATE_REPLAY, STATE_REPLAY, "one state;"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        AskedEngine s;
        EngineStatus st;
        char *text = NULL;
        size_t size = 0;
        EngineOptions o = asked_options(list[i].nodes, 3, 1);
        o.state_mode = list[i].asked;
        asked_open(&s, o);
        engine_status(s.engine, &st);
        assert_int_equal(st.state_mode, list[i].got);
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        engine_print_memory(s.engine, out);
        fclose(out);
        assert_non_null(strstr(text, list[i].states));
        assert_int_equal(strstr(text, "records") != NULL, list[i].got == STATE_REPLAY);
        free(text);
        asked_close(&s);
    }
}

/* Stops at the token that makes *left 0. */
static WatchVerdict stop_at(void *left, int32_t token)
{
    (void)token;
    return --*(int *)left ? WATCH_GO : WATCH_STOP;
}

/* A reference's answer, stopped at each of its places. */
static void test_stops(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT], want[MAX_ANSWER];
    const json_t *ref = json_array_get(asked_references, 1);
    int n = asked_load_ids(json_object_get(ref, "prompt_ids"), prompt, MAX_PROMPT);
    int n_want = asked_load_ids(json_object_get(ref, "greedy_ids"), want, MAX_ANSWER);
    int32_t end = want[n_want - 1];
    for (int k = 0; k < 3; k++) { /* plain, slots, replay */
        AskedEngine s;
        EngineOptions o = asked_options(k ? 8 : 1, 7, 1);
        o.state_mode = (StateMode)k;
        asked_open(&s, o);
        for (int at = 1; at <= n_want; at++) { /* max_tokens at every place of accepted runs */
            EngineRequest r = asked_greedy(1, prompt, n, at);
            AskedAnswer a = {0};
            asked_submit(s.engine, &r);
            asked_run(s.engine, &a, 1);
            assert_int_equal(a.n, at);
            assert_int_equal(a.done.stats.n_generated, at);
            assert_memory_equal(a.token, want, (size_t)at * sizeof *want);
            assert_int_equal(a.done.finish, at < n_want ? FINISH_LENGTH : FINISH_STOP);
            int left = at; /* text that ends the answer does so, be it its last token */
            memset(&a, 0, sizeof a);
            r.watcher = (Watcher){&left, stop_at};
            asked_submit(s.engine, &r);
            asked_run(s.engine, &a, 1);
            assert_int_equal(a.n, at);
            assert_int_equal(a.done.finish, FINISH_STOP);
        }
        for (int at = 0; at < n_want; at++) { /* a stop id: at its first place */
            EngineRequest r = asked_greedy(1, prompt, n, 100);
            AskedAnswer a = {0};
            int first = 0;
            while (want[first] != want[at])
                first++;
            r.stop_ids = &want[at];
            r.n_stop_ids = 1;
            asked_submit(s.engine, &r);
            asked_run(s.engine, &a, 1);
            assert_int_equal(a.n, first + 1);
            assert_int_equal(a.done.finish, FINISH_STOP);
            assert_int_equal(a.done.stop_token, want[at]);
        }
        for (int min = 1; min < n_want; min++) { /* the ban ends in the middle of accepted runs */
            EngineRequest r = asked_greedy(1, prompt, n, 60);
            AskedAnswer a = {0};
            r.min_tokens = min;
            asked_submit(s.engine, &r);
            asked_run(s.engine, &a, 1);
            assert_int_equal(a.n, n_want);
            assert_memory_equal(a.token, want, (size_t)n_want * sizeof *want);
        }
        EngineRequest r = asked_greedy(1, prompt, n, 60);
        AskedAnswer a = {0};
        r.min_tokens = n_want + 5; /* the end token is kept out until then */
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
        assert_true(a.n >= n_want + 5);
        for (int i = 0; i < n_want + 4; i++)
            assert_int_not_equal(a.token[i], end);
        asked_expect_idle(s.engine);
        asked_close(&s);
    }
}

/* The last token that a context holds, and what does not fit. */
static void test_limits(void **state)
{
    (void)state;
    Error err = {0};
    AskedEngine s;
    int32_t prompt[300] = {1, 2, 3};
    EngineOptions o = asked_options(8, 7, 1);
    o.ctx_size = 128;
    o.max_waiting = 2;
    asked_open(&s, o);
    EngineRequest r = asked_greedy(1, prompt, 100, -1);
    AskedAnswer a = {0};
    r.ignore_eos = 1;
    asked_submit(s.engine, &r);
    asked_run(s.engine, &a, 1);
    assert_int_equal(a.n, 28);
    assert_int_equal(a.done.finish, FINISH_LENGTH);
    r = asked_greedy(1, prompt, 129, -1);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    r = asked_greedy(1, prompt, 128, -1); /* no room for an answer */
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    r = asked_greedy(1, prompt, 100, 29);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    prompt[2] = 4096;
    r = asked_greedy(1, prompt, 3, 1);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_INPUT);
    r = asked_greedy(1, prompt, 2, 1);
    r.params.temperature = NAN;
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    r = asked_greedy(1, prompt, 2, 1);
    r.bias_id = prompt, r.bias = &(float){NAN}, r.n_bias = 1;
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_INPUT);
    r = asked_greedy(1, prompt, 0, 1);
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    for (int i = 0; i < 2; i++) {
        r = asked_greedy((uint64_t)i + 1, prompt, 2, 1);
        asked_submit(s.engine, &r);
    }
    assert_int_equal(engine_submit(s.engine, &r, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    AskedAnswer two[2] = {0};
    asked_run(s.engine, two, 2);
    asked_expect_idle(s.engine);
    asked_close(&s);
}

/* Cancelled while running and while waiting: one DONE each, everything free, the index usable
 * again. */
static void test_cancel(void **state)
{
    (void)state;
    Error err;
    AskedEngine s;
    int32_t prompt[200];
    for (int i = 0; i < 200; i++)
        prompt[i] = i;
    EngineOptions o = asked_options(8, 3, 2);
    o.max_seqs = 1;
    asked_open(&s, o);
    EngineRequest r = asked_greedy(1, prompt, 200, 50);
    AskedAnswer alone = {0}, a[3] = {0};
    asked_submit(s.engine, &r);
    asked_run(s.engine, &alone, 1);
    r.params.temperature = 1;
    asked_submit(s.engine, &r);
    for (int id = 2; id <= 3; id++) {
        EngineRequest q = asked_greedy((uint64_t)id, prompt, 200, 50);
        asked_submit(s.engine, &q);
    }
    for (int i = 0; i < 5; i++) {
        assert_true(engine_step(s.engine, &err) > 0);
        for (const Event *ev; (ev = engine_next_event(s.engine));)
            asked_take(&a[ev->id - 1], ev);
    }
    engine_cancel(s.engine, 1);
    engine_cancel(s.engine, 2);
    engine_cancel(s.engine, 77);
    asked_run(s.engine, a, 3);
    assert_int_equal(a[0].n_done, 1);
    assert_int_equal(a[0].done.finish, FINISH_CANCELLED);
    assert_int_equal(a[1].n_done, 1);
    assert_int_equal(a[1].done.finish, FINISH_CANCELLED);
    assert_int_equal(a[2].n, alone.n);
    assert_memory_equal(a[2].token, alone.token, (size_t)alone.n * sizeof(int32_t));
    asked_expect_idle(s.engine);
    asked_close(&s);
}

/* Scoring a prompt: one event a token, and the same sum in chunks, alone and in company. */
static void test_prompt_logprobs(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    int n = asked_load_ids(json_object_get(json_array_get(asked_references, 1), "prompt_ids"),
                           prompt, MAX_PROMPT);
    double sum[2];
    for (int k = 0; k < 2; k++) {
        AskedEngine s;
        AskedAnswer a[2] = {0};
        EngineOptions o = asked_options(4, 3, 1);
        o.chunk_rows = k ? 3 : 256;
        asked_open(&s, o);
        EngineRequest r = asked_greedy(1, prompt, n, 0), other = asked_greedy(2, prompt, n, 30);
        r.prompt_logprobs = 1;
        r.n_logprobs = 5;
        if (k) asked_submit(s.engine, &other);
        asked_submit(s.engine, &r);
        asked_run(s.engine, a, 1 + k);
        assert_int_equal(a[0].n, 0);
        assert_int_equal(a[0].n_prompt_events, n);
        assert_int_equal(a[0].done.finish, FINISH_LENGTH);
        sum[k] = a[0].prompt_logprob;
        asked_close(&s);
    }
    assert_true(sum[0] < 0 && sum[0] == sum[1]);
}

/* The prompt of n tokens and the greedy answer behind it. */
static Script third_reference(int32_t all[MAX_PROMPT], int *n)
{
    const json_t *ref = json_array_get(asked_references, 2);
    *n = asked_load_ids(json_object_get(ref, "prompt_ids"), all, MAX_PROMPT - MAX_ANSWER);
    int n_want = asked_load_ids(json_object_get(ref, "greedy_ids"), all + *n, MAX_ANSWER);
    return (Script){.token = all, .n = *n + n_want};
}

/* A perfect drafter is accepted whole, and the counts say so. */
static void test_counts(void **state)
{
    (void)state;
    Error err;
    int32_t all[MAX_PROMPT];
    int n;
    Script script = third_reference(all, &n);
    Drafter d;
    assert_int_equal(scripted_drafter_open(asked_model, SCRIPT_PERFECT, &script, 1, 1, &d, &err),
                     0);
    EngineOptions o = asked_options(5, 4, 1);
    o.drafter = &d;
    AskedEngine s;
    asked_open(&s, o);
    EngineRequest r = asked_greedy(1, all, n, 26);
    AskedAnswer a = {0};
    asked_submit(s.engine, &r);
    asked_run(s.engine, &a, 1);
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
    asked_close(&s);
    d.close(d.self);
}

/* A level is tried where its parent was reached: missed, then; not where the answer ended. */
static void test_counts_of_misses(void **state)
{
    (void)state;
    static const ScriptMode modes[] = {SCRIPT_LIE, SCRIPT_PERFECT};
    enum { N = 11, STOP_AT = 8 };
    Error err;
    int32_t all[MAX_PROMPT];
    int n;
    Script script = third_reference(all, &n);
    const int32_t *want = all + n;
    for (int i = 0; i < STOP_AT; i++)
        assert_int_not_equal(want[i], want[STOP_AT]);
    for (int k = 0; k < 2; k++) {
        Drafter d;
        AskedEngine s;
        AskedAnswer a = {0};
        EngineOptions o = asked_options(5, 4, 1);
        assert_int_equal(scripted_drafter_open(asked_model, modes[k], &script, 1, 1, &d, &err), 0);
        o.drafter = &d;
        asked_open(&s, o);
        EngineRequest r = asked_greedy(1, all, n, N);
        r.stop_ids = &want[STOP_AT];
        r.n_stop_ids = k;
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a, 1);
        const RequestStats *st = &a.done.stats;
        if (k == 0) { /* the last step has no draft: none could come out */
            assert_int_equal(st->n_steps, N - 1);
            assert_int_equal(st->n_steps_drafted, N - 2);
            assert_int_equal(st->depth_tried[1], N - 2);
            assert_int_equal(st->depth_accepted[1] + st->depth_tried[2], 0);
        } else { /* four drafts, then two and the stop, which was drafted, too */
            assert_int_equal(st->n_steps, 2);
            assert_int_equal(st->n_accepted, 6);
            assert_int_equal(st->depth_tried[2], 2);
            assert_int_equal(st->depth_accepted[2], 2);
            assert_int_equal(st->depth_tried[3], 1);
        }
        asked_close(&s);
        d.close(d.self);
    }
}

/* A row that is not a number ends its request, and only with an error. */
static void test_nan_row(void **state)
{
    (void)state;
    Error err;
    int32_t prompt[] = {10, 11, 12};
    Model *m = model_open("models/demo", NULL, asked_backend, &err);
    assert_non_null(m);
    float *norm = (float *)(uintptr_t)m->final_norm, old = norm[3];
    EngineOptions o = asked_options(1, 0, 1);
    Engine *e = engine_open(m, &o, &err);
    assert_non_null(e);
    EngineRequest r = asked_greedy(1, prompt, 3, 10);
    AskedAnswer a = {0}, b = {0};
    norm[3] = NAN;
    asked_submit(e, &r);
    asked_run(e, &a, 1);
    assert_int_equal(a.n, 0);
    assert_int_equal(a.done.finish, FINISH_ERROR);
    norm[3] = old;
    asked_submit(e, &r);
    asked_run(e, &b, 1);
    assert_true(b.n > 0);
    asked_expect_idle(e);
    engine_close(e);
    model_close(m);
}

/* Memory too small says which option to change. */
static void test_memory_too_small(void **state)
{
    (void)state;
    Error err = {0};
    EngineOptions o = asked_options(1, 0, 1);
    o.memory = 1 << 16;
    assert_null(engine_open(asked_model, &o, &err));
    assert_non_null(strstr(err.msg, "--memory"));
    o.memory = 4 << 20;
    o.ctx_size = 8192;
    assert_null(engine_open(asked_model, &o, &err));
    assert_non_null(strstr(err.msg, "--ctx-size"));
    o.ctx_size = 0; /* the context is what fits */
    Engine *e = engine_open(asked_model, &o, &err);
    assert_non_null(e);
    EngineStatus st;
    engine_status(e, &st);
    assert_true(st.ctx_size > 0 && st.ctx_size < 8192);
    engine_close(e);
}

/* How many ids the head scores: those asked for and the two end tokens; without a drafter none. */
static void test_draft_vocab(void **state)
{
    (void)state;
    enum { N_VOCAB = 4096 };
    static const int32_t always[] = {4090, 4091};
    static const struct {
        DraftVocab v;
        int scored;
    } cases[] = {{{0}, N_VOCAB},
                 {{N_VOCAB, NULL, 0}, N_VOCAB},
                 {{32768, NULL, 0}, N_VOCAB},
                 {{1000, NULL, 0}, 1002},
                 {{1000, always, 2}, 1004}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int nodes = 1; nodes <= 4; nodes += 3) {
            AskedEngine s;
            EngineStatus st;
            EngineOptions o = asked_options(nodes, 3, 1);
            o.draft_vocab = cases[i].v;
            asked_open(&s, o);
            engine_status(s.engine, &st);
            assert_int_equal(st.draft_vocab, nodes > 1 ? cases[i].scored : 0);
            asked_close(&s);
        }
    Error err = {0};
    EngineOptions o = asked_options(1, 0, 1);
    o.draft_vocab.n_first = -1;
    assert_null(engine_open(asked_model, &o, &err));
    assert_int_equal(err.code, ERR_INPUT);
    assert_non_null(strstr(err.msg, "draft-vocab is -1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_answers),
        cmocka_unit_test(test_check_matrix),
        cmocka_unit_test(test_kv_types),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_state_mode),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_counts_of_misses),
        cmocka_unit_test(test_nan_row),
        cmocka_unit_test(test_memory_too_small),
        cmocka_unit_test(test_draft_vocab),
    };
    return cmocka_run_group_tests(tests, asked_open_demo, asked_close_demo);
}
