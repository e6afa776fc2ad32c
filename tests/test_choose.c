/*
 * Tests of engine/choose.c: rows of logits that come in turns, which of them come at all, and that
 * nothing else shows it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "drafts/scripted.h"
#include "engine/state.h"
#include "tests/analyzer.h"
#include "tests/asked.h"

enum { N_SEQS = 4, N_PROMPT = 40, N_TOKENS = 48, NODES = 16, N_LONG = 150 };

static int32_t prompt[N_SEQS][N_LONG];

/* Products with the LM head: how many, of how many rows at most and in all. */
static void (*real_linear)(Backend *be, const Linear *a);
static int n_products, most_rows, n_rows;

static void counting_linear(Backend *be, const Linear *a)
{
    if (a->product->w == &asked_model->lm_head) {
        n_products++;
        n_rows += a->n;
        if (a->n > most_rows) most_rows = a->n;
    }
    real_linear(be, a);
}

static EngineRequest request(int i, int n_logprobs)
{
    EngineRequest r = asked_greedy((uint64_t)i + 1, prompt[i], N_PROMPT, N_TOKENS);
    r.ignore_eos = 1;
    r.n_logprobs = n_logprobs;
    return r;
}

/* All of them together. */
static void run_all(EngineOptions o, int n_logprobs, AskedAnswer *a)
{
    AskedEngine s;
    asked_open(&s, o);
    memset(a, 0, N_SEQS * sizeof *a);
    for (int i = 0; i < N_SEQS; i++) {
        EngineRequest r = request(i, n_logprobs);
        asked_submit(s.engine, &r);
    }
    asked_run(s.engine, a, N_SEQS);
    asked_close(&s);
}

static void same_answers(const AskedAnswer *a, const AskedAnswer *b)
{
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(a[i].n, b[i].n);
        assert_memory_equal(a[i].token, b[i].token, (size_t)a[i].n * sizeof *a[i].token);
        assert_memory_equal(a[i].logprob, b[i].logprob, (size_t)a[i].n * sizeof *a[i].logprob);
    }
}

static int open_all(void **state)
{
    for (int i = 0; i < N_SEQS; i++)
        for (int k = 0; k < N_LONG; k++)
            prompt[i][k] = (i * 611 + k * 37 + k * k) % 4000;
    if (asked_open_demo(state)) return -1;
    real_linear = asked_backend->linear;
    asked_backend->linear = counting_linear;
    return 0;
}

static AskedAnswer want[N_SEQS];
static int32_t text[N_SEQS][N_PROMPT + N_TOKENS];
static Script script[N_SEQS];

static void learn_script(void)
{
    run_all(asked_options(1, 0, 1), 3, want);
    for (int i = 0; i < N_SEQS; i++) {
        memcpy(text[i], prompt[i], N_PROMPT * sizeof(int32_t));
        memcpy(text[i] + N_PROMPT, want[i].token, (size_t)want[i].n * sizeof(int32_t));
        script[i] = (Script){text[i], N_PROMPT + want[i].n};
    }
}

static EngineOptions scripted(ScriptMode mode, Drafter *d)
{
    Error err = {0};
    EngineOptions o = asked_options(NODES, NODES - 1, 1);
    assert_int_equal(scripted_drafter_open(asked_model, mode, script, N_SEQS, 5, d, &err), 0);
    o.drafter = d;
    return o;
}

/* Trees that are wholly right, wholly wrong, and in between, of more rows than have room. */
static void test_turns(void **state)
{
    (void)state;
    static const ScriptMode modes[] = {SCRIPT_PERFECT, SCRIPT_LIE, SCRIPT_MIXED};
    static AskedAnswer a[N_SEQS];
    learn_script();
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
        for (int mode = STATE_SLOTS; mode <= STATE_REPLAY; mode++) {
            Drafter d;
            EngineOptions o = scripted(modes[m], &d);
            o.state_mode = (StateMode)mode;
            most_rows = 0;
            run_all(o, 3, a);
            same_answers(a, want);
            assert_int_equal(most_rows, LOGIT_ROWS);
            d.close(d.self);
        }
}

/*
 * Steps whose trees have more rows than there is room for. Where the target agrees, all come in two
 * turns; where it does not, what is behind the first turn's rows never does.
 */
static void check_turns(ScriptMode mode, int n_turns)
{
    static AskedAnswer a[N_SEQS];
    Drafter d;
    AskedEngine s;
    EngineStatus st = {0};
    int n_checked = 0;
    asked_open(&s, scripted(mode, &d));
    memset(a, 0, sizeof a);
    for (int i = 0; i < N_SEQS; i++) {
        EngineRequest r = request(i, -1);
        asked_submit(s.engine, &r);
    }
    do {
        int total = 0;
        n_products = n_rows = 0;
        asked_steps(s.engine, a, 1);
        for (int i = 0; i < s.engine->n_trees; i++)
            total += s.engine->work[i].tree.n;
        if (total > LOGIT_ROWS && s.engine->n_work == s.engine->n_trees) {
            assert_int_equal(n_products, n_turns);
            assert_int_equal(n_rows, n_turns > 1 ? total : LOGIT_ROWS);
            n_checked++;
        }
        engine_status(s.engine, &st);
    } while (st.running + st.waiting);
    assert_true(n_checked > 0);
    asked_close(&s);
    d.close(d.self);
}

static void test_ruled_out(void **state)
{
    (void)state;
    learn_script();
    check_turns(SCRIPT_PERFECT, 2);
    check_turns(SCRIPT_LIE, 1);
}

/* A prompt whose rows are scored: as many as a chunk has, turn by turn, with trees beside it. */
static void test_scored_prompt(void **state)
{
    (void)state;
    static AskedAnswer a[2], alone;
    for (int k = 0; k < 3; k++) {
        AskedEngine s;
        EngineOptions o = asked_options(k == 2 ? NODES : 1, k == 2 ? NODES - 1 : 0, 1);
        o.chunk_rows = k ? 128 : 16; /* in one turn, in several */
        asked_open(&s, o);
        memset(a, 0, sizeof a);
        EngineRequest r = request(0, 2);
        r.id = 2;
        asked_submit(s.engine, &r);
        asked_steps(s.engine, a, 5);
        r = asked_greedy(1, prompt[1], N_LONG, 8);
        r.prompt_logprobs = 1;
        r.n_logprobs = 2;
        most_rows = n_rows = 0;
        asked_submit(s.engine, &r);
        asked_run(s.engine, a, 2);
        if (k) assert_int_equal(most_rows, LOGIT_ROWS);
        assert_int_equal(a[0].n_prompt_events, N_LONG);
        if (!k) alone = a[0];
        assert_true(a[0].prompt_logprob == alone.prompt_logprob);
        assert_memory_equal(a[0].logprob, alone.logprob, sizeof alone.logprob);
        assert_memory_equal(a[0].token, alone.token, sizeof alone.token);
        asked_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_ruled_out),
        cmocka_unit_test(test_scored_prompt),
    };
    return cmocka_run_group_tests(tests, open_all, asked_close_demo);
}
