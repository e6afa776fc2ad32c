/*
 * test_device_round.c: steps that a device does as a whole (engine/round.h) against steps with the
 * host in between: the same tokens, whatever ends, is forced, penalised or cancelled, and when; and
 * the pools are whole afterwards.
 *
 * On the GPU's kernels; log-probabilities are what makes the engine go the other way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "drafts/mtp.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "engine/state.h"
#include "tests/backend_simt.h"
#include "tests/tree_log.h"

enum { MAX_ASKED = 5, MOST = 40 };

typedef struct {
    Backend *be;
    Model *model;
    Drafter drafter;
} Machine;

static Machine machine[MAX_GPU_BACKENDS];
static int n_machines;

static int open_machines(void **state)
{
    Error err = {0};
    Backend *gpu[MAX_GPU_BACKENDS];
    ModelOptions options = {.dummy = DUMMY_BF16};
    (void)state;
    n_machines = open_gpu_backends(gpu);
    for (int i = 0; i < n_machines; i++) {
        machine[i].be = gpu[i];
        machine[i].model = model_open("tests/data/gpu/tiny", &options, gpu[i], &err);
        if (!machine[i].model) fail_msg("%s", err.msg);
    }
    return 0;
}

static int close_machines(void **state)
{
    (void)state;
    for (int i = 0; i < n_machines; i++) {
        model_close(machine[i].model);
        machine[i].be->close(machine[i].be);
    }
    return 0;
}

/* Trees of this shape, or plain decoding without a drafter. */
typedef struct {
    int nodes, depth, topk, n_slots;
    float synthetic;
    StateMode mode;
    int is_chosen; /* chains, whose depth the engine chooses, here another one each round */
} Trees;

static Engine *try_engine(Machine *m, const Trees *t, int cache, Error *err)
{
    EngineOptions o = engine_defaults();
    o.ctx_size = 1280;
    o.memory = 16 << 20;
    o.max_seqs = 3;
    o.tree_nodes = t->nodes;
    o.draft_depth = t->depth;
    o.draft_topk = t->topk;
    o.n_slots = t->n_slots;
    o.reserve = 8;
    o.synthetic = t->synthetic;
    o.state_mode = t->mode;
    o.draft_auto = t->is_chosen;
    o.chunk_rows = 512;
    o.cache = (CacheOptions){.on = cache, .policy = POLICY_LRU, .keep_answers = 1};
    if (t->nodes > 1) {
        assert_int_equal(mtp_drafter_open(m->model, &m->drafter, err), 0);
        o.drafter = &m->drafter;
    }
    return engine_open(m->model, &o, err);
}

static Engine *open_engine(Machine *m, const Trees *t, int cache)
{
    Error err = {0};
    Engine *e = try_engine(m, t, cache, &err);
    if (!e) fail_msg("%s", err.msg);
    return e;
}

static void close_engine(Machine *m, Engine *e, const Trees *t)
{
    EngineStatus s;
    engine_status(e, &s);
    assert_int_equal(s.running + s.waiting, 0);
    assert_int_equal(s.slots - s.slots_free, s.cache.states);
    assert_true(s.pages - s.pages_free <= s.cache.pages);
    engine_close(e);
    if (t->nodes > 1) m->drafter.close(m->drafter.self);
}

/* Ends an answer, or forces tokens into it, at its n-th token. */
typedef struct {
    int n, stop_at, force_at;
} Guard;

static WatchVerdict guard_token(void *self, int32_t token)
{
    Guard *g = self;
    (void)token;
    g->n++;
    return g->n == g->stop_at ? WATCH_STOP : g->n == g->force_at ? WATCH_FORCE : WATCH_GO;
}

typedef struct {
    int32_t token[MOST + 16];
    int n, n_done, n_accepted, n_cached;
    FinishReason finish;
    TreeLog log;
} Answer;

/* What a request of the tests is, and what is done to it. */
typedef struct {
    EngineRequest r;
    Guard guard;
    int cancel_at, pause_at; /* steps, -1: never */
} Asked;

static const int32_t forced[] = {5, 9, 11};
static const int32_t liked[] = {3, 40, 77, 120};
static const float liking[] = {90, 90, 90, 89}; /* so that head and target often agree */
static const int32_t ends[] = {120};

static Asked ask(int i, int max_tokens, int32_t *prompt)
{
    int n = 4 + 5 * i;
    for (int k = 0; k < n; k++)
        prompt[k] = (k * 31 + i * 77 + 5) % 250;
    return (Asked){.r = {.id = (uint64_t)i + 1,
                         .prompt = prompt,
                         .n_prompt = n,
                         .max_tokens = max_tokens,
                         .params = {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 7},
                         .ignore_eos = 1,
                         .n_logprobs = -1,
                         .trees = 1,
                         .draft_max = -1,
                         .bias_id = liked,
                         .bias = liking,
                         .n_bias = 4},
                   .cancel_at = -1,
                   .pause_at = -1};
}

static void take_events(Engine *e, Answer *a)
{
    for (const Event *ev; (ev = engine_next_event(e));) {
        Answer *to = &a[ev->id - 1];
        tree_log_take(&to->log, ev);
        if (ev->type == EVENT_TOKEN) {
            assert_true(to->n < MOST + 16);
            to->token[to->n++] = ev->token;
        } else if (ev->type == EVENT_DONE) {
            to->n_done++;
            to->finish = ev->finish;
            to->n_accepted = ev->stats.n_accepted;
            to->n_cached = ev->stats.n_cached;
            assert_int_equal(ev->stats.n_generated, to->n);
        }
    }
}

/* Of engines that choose: depths of their rounds, a bit each, and rounds that taught their time. */
static unsigned depths;
static long n_learnt;

static int step_engine(Engine *e, const Trees *t, Error *err)
{
    if (t->is_chosen) e->growth.n_unprobed = 100 * PROBE_STEPS; /* it is time for another one */
    int ran = engine_step(e, err);
    for (int k = 0; k < e->rounds.n_flying && t->is_chosen; k++)
        depths |= 1u << e->rounds.flight[(e->rounds.first + k) % BACKEND_MARKS].depth;
    return ran;
}

/* Asks all at once; returns the totals. */
static StepTotals run(Machine *m, const Trees *t, const Asked *asked, int n, int hosted, Answer *a)
{
    Error err = {0};
    Engine *e = open_engine(m, t, 0);
    Guard guard[MAX_ASKED];
    EngineStatus s;
    for (int i = 0; i < n; i++) {
        EngineRequest r = asked[i].r;
        guard[i] = asked[i].guard;
        r.watcher = (Watcher){&guard[i], guard_token};
        if (hosted) r.n_logprobs = 0;
        if (engine_submit(e, &r, &err)) fail_msg("%s", err.msg);
    }
    for (int step = 0;; step++) {
        for (int i = 0; i < n; i++) {
            if (step == asked[i].cancel_at) engine_cancel(e, asked[i].r.id);
            take_events(e, a);
            if (step == asked[i].pause_at) engine_pause(e, asked[i].r.id, 1);
            if (step == asked[i].pause_at + 4 && asked[i].pause_at >= 0)
                engine_pause(e, asked[i].r.id, 0);
        }
        int ran = step_engine(e, t, &err);
        if (ran < 0) fail_msg("%s", err.msg);
        take_events(e, a);
        engine_status(e, &s);
        if (!ran && !s.running && !s.waiting) break;
        assert_true(step < 1000);
    }
    n_learnt += e->growth.cost.curve[COST_ROUND].n_learnt;
    close_engine(m, e, t);
    return s.totals;
}

static void same_answers(const Asked *asked, int n, const Trees *t, Machine *m, long *rounds,
                         long *ahead, int *accepted)
{
    Answer want[MAX_ASKED] = {0}, got[MAX_ASKED] = {0};
    StepTotals hosted = run(m, t, asked, n, 1, want), device = run(m, t, asked, n, 0, got);
    assert_int_equal(hosted.rounds, 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(want[i].n_done, 1);
        assert_int_equal(got[i].n_done, 1);
        if (asked[i].cancel_at >= 0 || t->synthetic > 0) {
            /* how far it came is another matter; tokens drawn by lot depend on the trees, which are
             * cut at the answer's end when the host makes them */
            int both = got[i].n < want[i].n ? got[i].n : want[i].n;
            if (t->synthetic > 0) both -= t->depth + 1;
            if (both > 0)
                assert_memory_equal(got[i].token, want[i].token, (size_t)both * sizeof(int32_t));
            *accepted += got[i].n_accepted;
            continue;
        }
        assert_int_equal(got[i].finish, want[i].finish);
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].token, want[i].token, (size_t)want[i].n * sizeof(int32_t));
        if (!asked[i].r.min_tokens && !asked[i].r.n_forced && asked[i].pause_at < 0 &&
            !t->is_chosen)
            assert_int_equal(got[i].n_accepted, want[i].n_accepted); /* the same drafts */
        *accepted += got[i].n_accepted;
    }
    *rounds += device.rounds;
    *ahead += device.rounds_ahead;
}

static const Trees trees[] = {
    {4, 3, 1, 0, 0, STATE_SLOTS, 0},    {7, 3, 3, 0, 0, STATE_SLOTS, 0},
    {1, 0, 1, 0, 0, STATE_SLOTS, 0},    {4, 3, 1, 9, 0, STATE_SLOTS, 0},
    {6, 3, 2, 0, 0.7f, STATE_SLOTS, 0}, {2, 1, 1, 0, 0, STATE_SLOTS, 0},
    {4, 3, 1, 0, 0, STATE_REPLAY, 0},   {9, 3, 3, 0, 0.6f, STATE_REPLAY, 0},
};
enum { N_TREES = sizeof trees / sizeof *trees };

/* Alone and in company, sampled, greedy, penalised, with end tokens, a ban on them, few slots. */
static void test_same_tokens(void **state)
{
    (void)state;
    int32_t prompt[MAX_ASKED][64];
    for (int b = 0; b < n_machines; b++)
        for (int k = 0; k < N_TREES; k++) {
            long rounds = 0, ahead = 0;
            int accepted = 0;
            for (int n = k ? 3 : 1; n <= 3; n += 2) {
                Asked asked[MAX_ASKED];
                for (int i = 0; i < n; i++) {
                    asked[i] = ask(i, 24 - 5 * i, prompt[i]);
                    if (i == 1) asked[i].r.params.frequency = 20;
                    if (i == 1) asked[i].r.params.repetition = 1.3f;
                    if (i == 2) asked[i].r.params.temperature = 0;
                    asked[i].r.stop_ids = ends;
                    asked[i].r.n_stop_ids = 1;
                    asked[i].r.min_tokens = 12;
                }
                same_answers(asked, n, &trees[k], &machine[b], &rounds, &ahead, &accepted);
            }
            assert_true(rounds > 5);
            assert_true(ahead > 2);
            assert_true(accepted > 0 || trees[k].nodes == 1);
        }
}

/* The depth changes from round to round, also of those that are queued ahead. */
static void test_chosen_depths(void **state)
{
    (void)state;
    static const StateMode modes[] = {STATE_SLOTS, STATE_REPLAY};
    int32_t prompt[MAX_ASKED][64];
    for (int b = 0; b < n_machines; b++)
        for (int k = 0; k < 4; k++) {
            const Trees t = {4, 3, 1, 0, 0, modes[k % 2], 1};
            long rounds = 0, ahead = 0;
            int accepted = 0, n = k < 2 ? 1 : 3;
            Asked asked[MAX_ASKED];
            depths = 0;
            n_learnt = 0;
            for (int i = 0; i < n; i++) {
                asked[i] = ask(i, 40 - 3 * i, prompt[i]);
                asked[i].guard.stop_at = i == 1 ? 30 : 0;
            }
            same_answers(asked, n, &t, &machine[b], &rounds, &ahead, &accepted);
            assert_true(ahead > 5);
            assert_true(accepted > 0);
            assert_true(n_learnt > 0);
            assert_true(__builtin_popcount(depths) >= 3);
            assert_true(depths & 1);
        }
}

/* Two that run for long, and beside them one without cuts, then one with some, then one without:
 * rounds of one shape, recorded with and without the search for cuts. */
static void test_cuts_come_and_go(void **state)
{
    (void)state;
    static const int lengths[MAX_ASKED] = {40, 40, 12, 12, 12}, shapes[] = {0, 2, 6};
    int32_t prompt[MAX_ASKED][64];
    for (int b = 0; b < n_machines; b++)
        for (int k = 0; k < 3; k++) {
            long rounds = 0, ahead = 0;
            int accepted = 0;
            Asked asked[MAX_ASKED];
            for (int i = 0; i < MAX_ASKED; i++) {
                asked[i] = ask(i % 3, lengths[i], prompt[i]);
                asked[i].r.id = (uint64_t)i + 1;
                asked[i].r.params.seed = (uint64_t)i;
            }
            asked[1].r.params.temperature = 0;
            asked[1].r.params.top_k = 5; /* of a greedy row it is none */
            if (k % 2)
                asked[3].r.params.top_k = 2;
            else
                asked[3].r.params.top_p = 0.6f;
            same_answers(asked, MAX_ASKED, &trees[shapes[k]], &machine[b], &rounds, &ahead,
                         &accepted);
            assert_true(rounds > 12);
        }
}

/* A watcher's stop or forced tokens at each place of accepted runs. */
static void test_stops_and_forced(void **state)
{
    (void)state;
    int32_t prompt[64];
    for (int b = 0; b < n_machines; b++) {
        long rounds = 0, ahead = 0;
        int accepted = 0;
        for (int i = 0; i < 12; i++) {
            Asked a = ask(1, 18, prompt);
            a.r.id = 1;
            a.r.params.frequency = 20;
            *(i % 2 ? &a.guard.force_at : &a.guard.stop_at) = 3 + i / 2;
            a.r.forced = forced;
            a.r.n_forced = i % 2 ? 3 : 0;
            same_answers(&a, 1, &trees[i / 2 % 2 + (i % 2 ? 0 : 6 * (i / 4 % 2))], &machine[b],
                         &rounds, &ahead, &accepted);
        }
        assert_true(ahead > 5);
        assert_true(accepted > 0);
    }
}

/* Cancelled or held back while rounds are in flight; the others go on, and others come after. */
static void test_cancel_and_pause(void **state)
{
    (void)state;
    int32_t prompt[MAX_ASKED][64];
    for (int b = 0; b < n_machines; b++) {
        long rounds = 0, ahead = 0;
        int accepted = 0;
        for (int at = 3; at < 8; at += 2) {
            Asked asked[MAX_ASKED];
            for (int i = 0; i < 4; i++)
                asked[i] = ask(i, 20, prompt[i]);
            asked[0].cancel_at = at;
            asked[1].pause_at = at + 1;
            same_answers(asked, 4, &trees[at % 4 == 1 ? 0 : 6], &machine[b], &rounds, &ahead,
                         &accepted);
            asked[0] = ask(0, 40, prompt[0]); /* alone: what is in flight is all there is */
            asked[0].cancel_at = at;
            same_answers(asked, 1, &trees[0], &machine[b], &rounds, &ahead, &accepted);
        }
        assert_true(ahead > 5);
    }
}

/* Keys are read as far as the sequence goes, also where that takes another recording. */
static void test_long_context(void **state)
{
    (void)state;
    static int32_t prompt[1100];
    for (int b = 0; b < n_machines; b++) {
        long rounds = 0, ahead = 0;
        int accepted = 0;
        Asked a = ask(0, 16, prompt);
        for (int i = 0; i < 1100; i++)
            prompt[i] = (i * 31 + i / 7) % 250;
        a.r.n_prompt = 1016;
        same_answers(&a, 1, &trees[0], &machine[b], &rounds, &ahead, &accepted);
        assert_true(ahead > 2);
    }
}

/* One request, to its end. */
static Answer one(Engine *e, const EngineRequest *r)
{
    Answer a = {0};
    Error err = {0};
    if (engine_submit(e, r, &err)) fail_msg("%s", err.msg);
    while (!a.n_done) {
        assert_true(engine_step(e, &err) >= 0);
        take_events(e, &a);
    }
    return a;
}

/*
 * Prompts' states are found at whole blocks and change no token. The state at the end of an answer
 * is what decoding left, so what follows may differ in last bits.
 */
static void test_cache(void **state)
{
    (void)state;
    enum { N = 150, LONGEST = 12 };
    static int32_t prompt[N + MOST + 50];
    static const int shapes[] = {0, 2, 6, 6, 6, 6};
    int n_stopped = 0;
    for (int b = 0; b < n_machines; b++)
        for (int k = 0; k < (int)(sizeof shapes / sizeof *shapes); k++) {
            const Trees *t = &trees[shapes[k]];
            Asked a = ask(0, LONGEST - k % 4, prompt);
            Answer want = {0};
            a.r.stop_ids = ends;
            a.r.n_stop_ids = k % 2; /* else it ends with its length */
            a.r.min_tokens = 5;
            for (int i = 0; i < N; i++)
                prompt[i] = (i * 31 + i / 7) % 250;
            a.r.n_prompt = N;
            run(&machine[b], t, &a, 1, 0, &want);
            n_stopped += want.finish == FINISH_STOP;
            Engine *e = open_engine(&machine[b], t, 1);
            for (int again = 0; again < 2; again++) {
                Answer got = one(e, &a.r);
                assert_int_equal(got.n_cached, again ? N / 64 * 64 : 0);
                assert_int_equal(got.n, want.n);
                assert_memory_equal(got.token, want.token, (size_t)want.n * sizeof(int32_t));
            }
            memcpy(prompt + N, want.token, (size_t)want.n * sizeof *prompt);
            for (int i = 0; i < 40; i++)
                prompt[N + want.n + i] = (i * 7 + 3) % 250;
            a.r.n_prompt = N + want.n + 40;
            assert_int_equal(one(e, &a.r).n_cached, N + want.n - 1);
            close_engine(&machine[b], e, t);
        }
    assert_true(n_stopped > 0);
}

static void (*mtp_observe)(void *self, const Round *r);
static int n_observed;

static void count_observed(void *self, const Round *r)
{
    n_observed++;
    mtp_observe(self, r);
}

/* The head runs behind no round of sequences that get no drafts, unless the cache keeps its rows;
 * one without it does not teach what others take. */
static void test_shown_for_nothing(void **state)
{
    (void)state;
    static const struct {
        int draft_max, cache, is_shown;
    } cases[] = {{-1, 0, 1}, {0, 0, 0}, {0, 1, 1}};
    static const Trees t = {4, 3, 1, 0, 0, STATE_SLOTS, 1};
    static int32_t prompt[MOST];
    for (int b = 0; b < n_machines; b++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            Asked a = ask(0, MOST, prompt);
            Engine *e = open_engine(&machine[b], &t, cases[i].cache);
            EngineStatus s;
            mtp_observe = machine[b].drafter.queue_observe;
            machine[b].drafter.queue_observe = count_observed;
            n_observed = 0;
            a.r.draft_max = cases[i].draft_max;
            one(e, &a.r);
            engine_status(e, &s);
            assert_true(s.totals.rounds > 2);
            assert_int_equal(n_observed > 0, cases[i].is_shown);
            assert_int_equal(e->growth.cost.curve[COST_ROUND].n_learnt > 0, cases[i].is_shown);
            close_engine(&machine[b], e, &t);
        }
}

/* A backend that has memory for so many arrays more, and how many it has given. */
static Backend memory_of;
static int n_left, n_taken;

static void *give(Backend *be, size_t bytes, Error *err,
                  void *(*alloc)(Backend *be, size_t bytes, Error *err))
{
    if (!n_left) {
        error_set(err, ERR_DEVICE, "no memory left");
        return NULL;
    }
    n_left--;
    n_taken++;
    return alloc(be, bytes, err);
}

static void *few_alloc(Backend *be, size_t bytes, Error *err)
{
    return give(be, bytes, err, memory_of.alloc);
}

static void *few_host_alloc(Backend *be, size_t bytes, Error *err)
{
    return give(be, bytes, err, memory_of.host_alloc);
}

static void few_free(Backend *be, void *mem)
{
    n_taken -= mem != NULL;
    memory_of.free(be, mem);
}

static void few_host_free(Backend *be, void *mem)
{
    n_taken -= mem != NULL;
    memory_of.host_free(be, mem);
}

/* Wherever memory ends while an engine opens, what was taken is given back. */
static void test_memory_ends(void **state)
{
    (void)state;
    static const Trees t = {4, 3, 1, 0, 0, STATE_REPLAY, 0};
    Machine *m = &machine[0];
    int n = 0;
    memory_of = *m->be;
    m->be->alloc = few_alloc;
    m->be->free = few_free;
    m->be->host_alloc = few_host_alloc;
    m->be->host_free = few_host_free;
    for (Engine *e = NULL; !e; n++) {
        Error err = {0};
        n_left = n;
        e = try_engine(m, &t, 1, &err);
        if (!e) assert_string_equal(err.msg, "no memory left");
        engine_close(e);
        m->drafter.close(m->drafter.self);
        assert_int_equal(n_taken, 0);
    }
    assert_true(n > 50);
    m->be->alloc = memory_of.alloc;
    m->be->free = memory_of.free;
    m->be->host_alloc = memory_of.host_alloc;
    m->be->host_free = memory_of.host_free;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_tokens),
        cmocka_unit_test(test_chosen_depths),
        cmocka_unit_test(test_cuts_come_and_go),
        cmocka_unit_test(test_stops_and_forced),
        cmocka_unit_test(test_cancel_and_pause),
        cmocka_unit_test(test_long_context),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_shown_for_nothing),
        cmocka_unit_test(test_memory_ends),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_machines, close_machines);
}
