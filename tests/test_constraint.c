/*
 * test_constraint.c: answers that must keep to a rule: the engine asks for each node of a tree, and
 * no token depends on drafts, company or preemption.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "drafts/scripted.h"
#include "tests/analyzer.h"
#include "tests/asked.h"

enum { N_SEQS = 4, N_PROMPT = 40, N_TOKENS = 48, NODES = 16, DEAD = -1, N_STATES = 97 };

/*
 * The rule: a state is a number, which each token moves on; ids may come that leave it as it is in
 * the last bits. What is right is easily told from the whole answer alone.
 */
typedef struct {
    int32_t state[MAX_TREE_NODES];
    int n_begun, n_wrong_drafts, only;   /* only: that id alone may come, or -1 */
    int n_roots, lost_at, has_no_drafts; /* masks of the root; the one that cannot be told */
} Rule;

static int32_t after(int32_t state, int32_t token)
{
    return (state * 31 + token + 7) % N_STATES;
}

static int may_come(const Rule *r, int32_t state, int32_t token)
{
    return r->only >= 0 ? token == r->only : (token + state) % 3 != 0;
}

static void rule_begin(void *self, int seq)
{
    Rule *r = self;
    r->state[0] = 1;
    (void)seq;
    r->n_begun++;
}

static int rule_step(void *self, int from, int32_t token, int to)
{
    Rule *r = self;
    int32_t state = r->state[from];
    assert_int_not_equal(state, DEAD);
    int may = may_come(r, state, token);
    r->n_wrong_drafts += !may && to;
    if (to || may) r->state[to] = may ? after(state, token) : DEAD;
    if (!to && !may) r->state[0] = after(state, token); /* forced */
    return may ? 0 : -1;
}

static int rule_allowed(void *self, int node, uint64_t *mask)
{
    Rule *r = self;
    int n = asked_model->config.n_vocab;
    assert_int_not_equal(r->state[node], DEAD);
    if (node && r->has_no_drafts) return -1;
    if (!node && r->lost_at && ++r->n_roots == r->lost_at) return -1;
    memset(mask, 0, ((size_t)n + 63) / 64 * sizeof *mask);
    for (int32_t id = 0; id < n; id++)
        if (may_come(r, r->state[node], id)) mask[id / 64] |= UINT64_C(1) << id % 64;
    return 0;
}

static Rule rule[N_SEQS];
static int32_t prompt[N_SEQS][N_PROMPT];

static EngineRequest request(int i)
{
    EngineRequest r = asked_greedy((uint64_t)i + 1, prompt[i], N_PROMPT, N_TOKENS);
    rule[i] = (Rule){.only = -1};
    if (i % 2) r.params = (SampleParams){.temperature = 1, .top_p = 0.9f, .seed = 3};
    r.params.repetition = 1.1f;
    r.ignore_eos = 1;
    if (i != 3) r.constraint = (Constraint){&rule[i], rule_begin, rule_step, rule_allowed};
    return r;
}

/* The rule, as it is told from the whole answer. */
static void expect_rule(const AskedAnswer *a)
{
    int32_t state = 1;
    int n_broken = 0;
    for (int k = 0; k < a->n; k++) {
        n_broken += !may_come(&rule[0], state, a->token[k]);
        state = after(state, a->token[k]);
    }
    assert_int_equal(a->n, N_TOKENS);
    assert_int_equal(n_broken, 0);
}

/* All of them together. */
static void run_all(EngineOptions o, AskedAnswer *a)
{
    AskedEngine s;
    asked_open(&s, o);
    memset(a, 0, N_SEQS * sizeof *a);
    for (int i = 0; i < N_SEQS; i++) {
        EngineRequest r = request(i);
        asked_submit(s.engine, &r);
    }
    asked_run(s.engine, a, N_SEQS);
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(rule[i].n_begun, i != 3);
    asked_close(&s);
}

/* Each alone, without drafts. */
static void run_alone(AskedAnswer *a)
{
    memset(a, 0, N_SEQS * sizeof *a);
    for (int i = 0; i < N_SEQS; i++) {
        AskedEngine s;
        asked_open(&s, asked_options(1, 0, 1));
        EngineRequest r = request(i);
        r.id = 1;
        asked_submit(s.engine, &r);
        asked_run(s.engine, &a[i], 1);
        asked_close(&s);
    }
}

static AskedAnswer want[N_SEQS], got[N_SEQS];

static void expect_same(void)
{
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].token, want[i].token, (size_t)want[i].n * sizeof(int32_t));
    }
}

static int open_all(void **state)
{
    for (int i = 0; i < N_SEQS; i++)
        for (int k = 0; k < N_PROMPT; k++)
            prompt[i][k] = (i * 611 + k * 37 + k * k) % 4000;
    return asked_open_demo(state);
}

static void test_rule_is_kept(void **state)
{
    (void)state;
    run_alone(want);
    for (int i = 0; i < 3; i++)
        expect_rule(&want[i]);
    /* without one the answer is another, so that the rule is seen to rule */
    int32_t at = 1;
    int n_broken = 0;
    for (int k = 0; k < want[3].n; k++) {
        n_broken += !may_come(&rule[0], at, want[3].token[k]);
        at = after(at, want[3].token[k]);
    }
    assert_true(n_broken > 0);
}

/* The model's head, drafts that are right, wrong and in between; states of their own or records. */
static void test_drafts(void **state)
{
    static const ScriptMode modes[] = {SCRIPT_PERFECT, SCRIPT_LIE, SCRIPT_MIXED};
    static int32_t text[N_SEQS][N_PROMPT + N_TOKENS];
    Script script[N_SEQS];
    Error err = {0};
    (void)state;
    for (int i = 0; i < N_SEQS; i++) {
        memcpy(text[i], prompt[i], sizeof prompt[i]);
        memcpy(text[i] + N_PROMPT, want[i].token, (size_t)want[i].n * sizeof(int32_t));
        script[i] = (Script){text[i], N_PROMPT + want[i].n};
    }
    run_all(asked_options(8, 3, 3), got);
    expect_same();
    assert_int_equal(rule[0].n_wrong_drafts, 0); /* the head drafts under the rule, too */
    assert_true(got[0].done.stats.n_drafted > 0);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
        for (int mode = STATE_SLOTS; mode <= STATE_REPLAY; mode++) {
            Drafter d;
            EngineOptions o = asked_options(NODES, NODES - 1, 3);
            assert_int_equal(
                scripted_drafter_open(asked_model, modes[m], script, N_SEQS, 5, &d, &err), 0);
            o.drafter = &d;
            o.state_mode = (StateMode)mode;
            run_all(o, got);
            expect_same();
            int n_wrong = rule[0].n_wrong_drafts, n_accepted = got[0].done.stats.n_accepted;
            if (modes[m] == SCRIPT_PERFECT) assert_int_equal(n_wrong, 0);
            if (modes[m] == SCRIPT_PERFECT) assert_true(n_accepted > N_TOKENS / 2);
            if (modes[m] == SCRIPT_LIE) assert_true(n_wrong > 0);
            if (modes[m] == SCRIPT_LIE) assert_int_equal(n_accepted, 0);
            d.close(d.self);
        }
}

/* Memory for fewer tokens than all have in the end: some give theirs up and are computed again. */
static void test_preemption(void **state)
{
    enum { FRAME_BYTES = 864 << 10 };
    int n_preemptions = 0;
    (void)state;
    for (int n_frames = 5; n_frames < 9; n_frames++) {
        EngineOptions o = asked_options(4, 3, 1);
        o.ctx_size = 256;
        o.reserve = 1;
        o.memory = (int64_t)n_frames * FRAME_BYTES;
        run_all(o, got);
        expect_same();
        for (int i = 0; i < N_SEQS; i++)
            n_preemptions += got[i].done.stats.n_preemptions;
    }
    assert_true(n_preemptions > 0);
}

/* Drafts whose masks are not told leave the tree. */
static void test_masks_refused(void **state)
{
    (void)state;
    Drafter d;
    Error err = {0};
    Script script[N_SEQS] = {{0}};
    static int32_t text[N_PROMPT + N_TOKENS];
    memcpy(text, prompt[0], sizeof prompt[0]);
    memcpy(text + N_PROMPT, want[0].token, (size_t)want[0].n * sizeof(int32_t));
    script[0] = (Script){text, N_PROMPT + want[0].n};
    for (int refused = 0; refused < 2; refused++) {
        AskedEngine s;
        EngineOptions o = asked_options(NODES, NODES - 1, 1);
        assert_int_equal(
            scripted_drafter_open(asked_model, SCRIPT_PERFECT, script, N_SEQS, 5, &d, &err), 0);
        o.drafter = &d;
        asked_open(&s, o);
        EngineRequest r = request(0);
        rule[0].has_no_drafts = refused;
        memset(got, 0, sizeof got);
        asked_submit(s.engine, &r);
        asked_run(s.engine, got, 1);
        assert_int_equal(got[0].n, want[0].n);
        assert_memory_equal(got[0].token, want[0].token, (size_t)want[0].n * sizeof(int32_t));
        assert_int_equal(!got[0].done.stats.n_accepted, refused);
        asked_close(&s);
        d.close(d.self);
    }
}

/* Where the root's is not, the answer ends with what there is; the next one is as ever. */
static void test_lost(void **state)
{
    enum { LOST_AT = 6 };
    (void)state;
    AskedEngine s;
    asked_open(&s, asked_options(1, 0, 1));
    for (int i = 0; i < 2; i++) {
        EngineRequest r = request(0);
        r.id = 1;
        rule[0].lost_at = i ? 0 : LOST_AT;
        memset(got, 0, sizeof got);
        asked_submit(s.engine, &r);
        asked_run(s.engine, got, 1);
        assert_int_equal(got[0].n, i ? want[0].n : LOST_AT - 1);
        assert_int_equal(got[0].done.finish == FINISH_FORM, !i);
        assert_memory_equal(got[0].token, want[0].token, (size_t)got[0].n * sizeof(int32_t));
    }
    asked_expect_idle(s.engine);
    asked_close(&s);
}

/* What may end only does, though min_tokens are not there; and a mask of one id is that id. */
static void test_narrow(void **state)
{
    (void)state;
    AskedEngine s;
    asked_open(&s, asked_options(4, 3, 1));
    EngineRequest r = request(0);
    rule[0].only = asked_model->config.eos[0];
    r.ignore_eos = 0;
    r.min_tokens = 20;
    asked_submit(s.engine, &r);
    r = request(1);
    rule[1].only = 17;
    asked_submit(s.engine, &r);
    memset(got, 0, sizeof got);
    asked_run(s.engine, got, 2);
    assert_int_equal(got[0].n, 1);
    assert_int_equal(got[0].done.finish, FINISH_STOP);
    assert_int_equal(got[1].n, N_TOKENS);
    for (int k = 0; k < got[1].n; k++)
        assert_int_equal(got[1].token[k], 17);
    asked_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule_is_kept), cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_preemption),   cmocka_unit_test(test_masks_refused),
        cmocka_unit_test(test_lost),         cmocka_unit_test(test_narrow),
    };
    return cmocka_run_group_tests(tests, open_all, asked_close_demo);
}
