/*
 * test_copies.c: the drafters that copy what the sequence said before, alone and beside the head:
 * what they propose, and that answers are the same with them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "drafts/ngram.h"
#include "drafts/suffix.h"
#include "drafts/union.h"
#include "engine/state.h"
#include "tests/asked.h"
#include "tests/near.h"

/* ---- n-grams ---- */

/* The place with the most tokens in common, of such the latest; 0 or what is common. */
static int look_everywhere(const int32_t *text, int n, int *matched)
{
    int best = -1;
    *matched = 0;
    for (int end = 1; end < n; end++) {
        int k = 0;
        while (k < end && k < NGRAM_MAX && text[end - 1 - k] == text[n - 1 - k])
            k++;
        if (k >= NGRAM_MIN && k >= *matched) *matched = k, best = end;
    }
    return best;
}

static void test_ngram_find(void **state)
{
    (void)state;
    Rng rng = rng_new(81);
    int32_t text[300];
    int n_found = 0, n_long = 0;
    for (int round = 0; round < 3000; round++) {
        int n = 1 + rng_int(&rng, 300), alphabet = 1 + rng_int(&rng, 40), want, got;
        for (int i = 0; i < n; i++)
            text[i] = rng_int(&rng, alphabet);
        for (int i = n / 2; round % 3 == 0 && i < n; i++)
            text[i] = text[i - n / 2];
        int at = look_everywhere(text, n, &want);
        assert_int_equal(ngram_find(text, n, text, n, &got), at);
        if (at >= 0) assert_int_equal(got, want);
        n_found += at >= 0;
        n_long += at >= 0 && want == NGRAM_MAX;
    }
    assert_in_range(n_found, 1000, 2900);
    assert_true(n_long > 100);
}

/* ---- what is proposed ---- */

enum { VOCAB = 4096 }; /* of the demonstration model */

static uint64_t few[VOCAB / 64];

/* Drafters as an engine has them, whose requests are made up. */
typedef struct {
    AskedEngine engine;
    Drafter d;
    const int32_t *predicted;
    int n_predicted;
    Tree tree;
} Bench;

static void bench_open(Bench *b, Drafter d, int ctx_size, const uint64_t *allowed)
{
    EngineOptions o = asked_options(16, 15, 4);
    memset(b, 0, sizeof *b);
    b->d = d;
    o.drafter = &b->d;
    o.ctx_size = ctx_size;
    o.allowed = allowed;
    asked_open(&b->engine, o);
}

static void bench_close(Bench *b)
{
    asked_close(&b->engine);
    b->d.close(b->d.self);
}

static void propose(Bench *b, int seq, const int32_t *text, int n, int nodes, int depth, int topk)
{
    DraftRequest r = {.seq = seq,
                      .root_pos = n - 1,
                      .max_nodes = nodes,
                      .max_depth = depth,
                      .topk = topk,
                      .token = text,
                      .predicted = b->predicted,
                      .n_predicted = b->n_predicted,
                      .tree = &b->tree};
    tree_init(&b->tree, text[n - 1]);
    b->d.propose(b->d.self, &r, 1, NULL);
    assert_true(tree_valid(&b->tree, VOCAB));
    assert_true(b->tree.n <= nodes && tree_depth(&b->tree) <= depth);
    for (int i = 1; i < b->tree.n; i++)
        assert_int_equal(b->tree.from[i], GUESS_COPY);
}

static void expect_chain(const Bench *b, const int32_t *token, int n)
{
    assert_int_equal(b->tree.n, n + 1);
    for (int i = 0; i < n; i++) {
        assert_int_equal(b->tree.token[i + 1], token[i]);
        assert_int_equal(b->tree.parent[i + 1], i);
    }
}

static Drafter ngram(void)
{
    Drafter d;
    ngram_drafter_open(&d);
    return d;
}

static Drafter suffix(void)
{
    Drafter d;
    suffix_drafter_open(&d);
    return d;
}

static void test_ngram_drafts(void **state)
{
    (void)state;
    static const int32_t text[] = {1, 2, 3, 4, 5, 6, 2, 3}, twos[] = {9, 7, 8, 7, 8};
    Bench b;
    bench_open(&b, ngram(), 256, NULL);
    propose(&b, 0, text, 8, 4, 8, 1);
    expect_chain(&b, (int32_t[]){4, 5, 6}, 3); /* as many nodes as asked for */
    propose(&b, 0, text, 8, 9, 2, 1);
    expect_chain(&b, (int32_t[]){4, 5}, 2); /* levels */
    propose(&b, 0, text, 8, 9, 8, 1);
    expect_chain(&b, (int32_t[]){4, 5, 6, 2, 3, 4, 5, 6}, 8); /* its own tokens at the end */
    propose(&b, 0, twos, 5, 6, 8, 1);
    expect_chain(&b, (int32_t[]){7, 8, 7, 8, 7}, 5);
    propose(&b, 0, text, 7, 9, 8, 1);
    assert_int_equal(b.tree.n, 1); /* one token in common is too few */
    bench_close(&b);
    few[0] = ~UINT64_C(0) & ~(UINT64_C(1) << 6);
    bench_open(&b, ngram(), 256, few);
    propose(&b, 0, text, 8, 9, 8, 1);
    expect_chain(&b, (int32_t[]){4, 5}, 2); /* 6 may not come */
    bench_close(&b);
}

/* a b was followed by 30 twice and by 40 once, b alone by 50 too. */
static const int32_t counted[] = {10, 20, 30, 1,  10, 20, 40, 2,  10,
                                  20, 30, 3,  11, 20, 50, 4,  10, 20};
enum { N_COUNTED = sizeof counted / sizeof *counted };

static float value_of(const Bench *b, int32_t token)
{
    int i = tree_child(&b->tree, 0, token);
    return i < 0 ? 0 : b->tree.value[i];
}

static void test_suffix_counts(void **state)
{
    (void)state;
    Bench b;
    bench_open(&b, suffix(), 256, NULL);
    b.d.begin(b.d.self, 0, counted, 1);
    propose(&b, 0, counted, N_COUNTED, 16, 4, 4);
    assert_int_equal(b.tree.token[1], 30);
    float twice = value_of(&b, 30), once = value_of(&b, 40), shorter = value_of(&b, 50);
    assert_true(twice > once && once > shorter && shorter > 0);
    /* two tokens in common: 2/3.5 of all, 2 : 1; one, of the rest 1/2.5, 2 : 1 : 1 */
    float two = 2 / 3.5F, one = (1 - two) / 2.5F;
    assert_true(fabsf(twice - (two * 2 / 3 + one / 2)) < 1e-6F);
    assert_true(fabsf(once - (two / 3 + one / 4)) < 1e-6F);
    assert_true(fabsf(shorter - one / 4) < 1e-6F);
    propose(&b, 0, counted, N_COUNTED, 16, 4, 1); /* the likeliest alone: what followed last */
    expect_chain(&b, (int32_t[]){30, 3, 11, 20}, 4);
    propose(&b, 0, counted, N_COUNTED, 3, 4, 4);
    assert_int_equal(b.tree.n, 3);
    bench_close(&b);
    memset(few, 0, sizeof few);
    few[0] = ~UINT64_C(0) & ~(UINT64_C(1) << 30);
    bench_open(&b, suffix(), 256, few);
    b.d.begin(b.d.self, 0, counted, 1);
    propose(&b, 0, counted, N_COUNTED, 16, 4, 4);
    assert_true(value_of(&b, 30) == 0 && value_of(&b, 40) > 0);
    bench_close(&b);
}

/* Of more tokens that followed than there are guesses the best count, not what came but once; what
 * would be behind them is too unlikely. */
static void test_suffix_best(void **state)
{
    (void)state;
    enum { FOLLOWED = 12, GUESSES = 8 };
    int32_t text[6 * FOLLOWED];
    int n = 0;
    for (int i = 0; i < 2 * FOLLOWED - 1; i++) {
        text[n++] = 50;
        text[n++] = 100 + (i + 1) / 2; /* 100 once, the others twice */
        text[n++] = 200 + i;
    }
    text[n++] = 50;
    Bench b;
    bench_open(&b, suffix(), 256, NULL);
    b.d.begin(b.d.self, 0, text, 1);
    propose(&b, 0, text, n, 32, 2, 16);
    assert_int_equal(b.tree.n, 1 + GUESSES);
    assert_true(value_of(&b, 100) == 0);
    bench_close(&b);
}

/* Sequences know nothing of each other, nor of who had their place before; all in their turns. */
static void test_suffix_sequences(void **state)
{
    (void)state;
    static const int32_t other[] = {20, 99, 10, 20, 77, 5, 10, 20};
    Bench b;
    bench_open(&b, suffix(), 256, NULL);
    b.d.begin(b.d.self, 0, counted, 1);
    b.d.begin(b.d.self, 1, other, 1);
    for (int n = 1; n <= N_COUNTED; n++) {
        propose(&b, 0, counted, n, 16, 4, 4);
        propose(&b, 1, other, n < 8 ? n : 8, 16, 4, 4);
    }
    assert_true(value_of(&b, 77) > 0 && value_of(&b, 30) == 0);
    propose(&b, 0, counted, N_COUNTED, 16, 4, 4);
    Tree before = b.tree;
    b.d.begin(b.d.self, 0, other, 1);
    propose(&b, 0, other, 8, 16, 4, 4);
    assert_true(value_of(&b, 77) > 0 && value_of(&b, 30) == 0);
    b.d.begin(b.d.self, 0, counted, 1);
    propose(&b, 0, counted, N_COUNTED, 16, 4, 4); /* all at once: the same */
    assert_memory_equal(b.tree.token, before.token, (size_t)before.n * sizeof *before.token);
    assert_memory_equal(b.tree.value, before.value, (size_t)before.n * sizeof *before.value);
    bench_close(&b);
}

/* Texts longer than what is kept of them: their last tokens are known. */
static void test_suffix_window(void **state)
{
    (void)state;
    enum { CTX = 64, LONG = 20000 };
    Rng rng = rng_new(82);
    static int32_t text[LONG];
    Bench b;
    bench_open(&b, suffix(), CTX, NULL);
    for (int i = 0; i < LONG; i++)
        text[i] = i % 20 == 19 ? 1000 + i / 20 : i % 20; /* every 20 tokens again, but one */
    b.d.begin(b.d.self, 0, text, 1);
    for (int n = 1; n <= LONG; n += 1 + rng_int(&rng, 7)) {
        propose(&b, 0, text, n, 4, 3, 1);
        if (n > 45 && n % 20 && n % 20 < 17) expect_chain(&b, text + n, 3);
    }
    b.d.begin(b.d.self, 0, text, 1);
    propose(&b, 0, text, LONG - 10, 4, 3, 1); /* far more at once than there is room for */
    expect_chain(&b, text + LONG - 10, 3);
    bench_close(&b);
}

static void begin(Bench *b, const int32_t *text)
{
    if (b->d.begin) b->d.begin(b->d.self, 0, text, 1);
}

/* What the client predicts is copied as what was said is. */
static void test_predicted(void **state)
{
    (void)state;
    static const int32_t text[] = {1, 2, 3}, predicted[] = {7, 2, 3, 8, 9, 2, 10};
    static int32_t longest[MAX_PREDICTED]; /* far more than the context has */
    for (int i = 0; i < MAX_PREDICTED; i++)
        longest[i] = 20 + i % 4000;
    memcpy(longest + MAX_PREDICTED - 7, predicted, sizeof predicted);
    for (int kind = 0; kind < 2; kind++) {
        Bench b;
        bench_open(&b, kind ? suffix() : ngram(), 64, NULL);
        begin(&b, text);
        b.predicted = predicted;
        b.n_predicted = 7;
        propose(&b, 0, text, 3, 9, 3, 1);
        expect_chain(&b, (int32_t[]){8, 9, 2}, 3);
        b.n_predicted = 5;
        begin(&b, text);
        propose(&b, 0, text, 3, 9, 3, 1); /* nothing is known of what comes behind it */
        expect_chain(&b, (int32_t[]){8, 9}, 2);
        b.n_predicted = 0;
        begin(&b, text);
        propose(&b, 0, text, 3, 9, 3, 1);
        assert_int_equal(b.tree.n, 1);
        b.predicted = longest;
        b.n_predicted = MAX_PREDICTED;
        begin(&b, text);
        propose(&b, 0, text, 3, 9, 3, 1);
        expect_chain(&b, (int32_t[]){8, 9, 2}, 3);
        bench_close(&b);
    }
}

/* ---- answers ---- */

typedef struct {
    const char *name;
    int has_head;
    Drafter d;
} Kind;

static void open_kind(Kind *k, int i)
{
    static const char *const names[] = {"ngram", "suffix", "union"};
    Error err = {0};
    *k = (Kind){.name = names[i], .has_head = i == 2};
    if (i == 0) ngram_drafter_open(&k->d);
    if (i == 1) suffix_drafter_open(&k->d);
    if (i == 2 && union_drafter_open(asked_model, &k->d, &err)) fail_msg("%s", err.msg);
    assert_string_equal(k->d.name, k->name);
}

/* Prompts with the reference's answers, and twice the same so that there is much to copy. */
static void test_same_answers(void **state)
{
    (void)state;
    static const struct {
        int nodes, depth, topk, is_auto;
        StateMode mode;
    } shapes[] = {{16, 15, 1, 0, STATE_REPLAY},
                  {64, 8, 8, 0, STATE_SLOTS},
                  {4, 3, 1, 1, STATE_REPLAY},
                  {4, 3, 1, 1, STATE_SLOTS}};
    int32_t prompt[4][MAX_PROMPT], want[4][MAX_ANSWER];
    int n[4], n_want[4];
    for (int i = 0; i < 4; i++) {
        const json_t *ref = json_array_get(asked_references, (size_t)i);
        n[i] = asked_load_ids(json_object_get(ref, "prompt_ids"), prompt[i], 1500);
        n_want[i] = asked_load_ids(json_object_get(ref, "greedy_ids"), want[i], MAX_ANSWER);
    }
    for (int k = 0; k < 3; k++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            Kind kind;
            AskedEngine e;
            AskedAnswer a[4];
            open_kind(&kind, k);
            EngineOptions o = asked_options(shapes[s].nodes, shapes[s].depth, shapes[s].topk);
            o.drafter = &kind.d;
            o.draft_auto = shapes[s].is_auto;
            o.state_mode = shapes[s].mode;
            asked_open(&e, o);
            memset(a, 0, sizeof a);
            int n_accepted = 0, n_drafted = 0;
            for (int i = 0; i < 4; i++) {
                EngineRequest r = asked_greedy((uint64_t)i + 1, prompt[i], n[i], n_want[i]);
                r.ignore_eos = 0;
                asked_submit(e.engine, &r);
            }
            asked_run(e.engine, a, 4);
            for (int i = 0; i < 4; i++) {
                assert_int_equal(a[i].n, n_want[i]);
                assert_memory_equal(a[i].token, want[i], (size_t)n_want[i] * sizeof *want[i]);
                n_accepted += a[i].done.stats.n_accepted;
                n_drafted += a[i].done.stats.n_drafted;
            }
            EngineStatus status;
            engine_status(e.engine, &status);
            assert_int_equal(status.draft_vocab > 0, kind.has_head);
            if (!shapes[s].is_auto && !n_accepted)
                fail_msg("%s, shape %zu: none of %d kept", kind.name, s, n_drafted);
            asked_expect_idle(e.engine);
            asked_close(&e);
            kind.d.close(kind.d.self);
        }
}

/* An answer that was predicted is the same, in fewer steps; a prediction that is wrong costs none.
 */
static void test_predicted_answers(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT], want[MAX_ANSWER], other[MAX_ANSWER];
    const json_t *ref = json_array_get(asked_references, 2);
    int n = asked_load_ids(json_object_get(ref, "prompt_ids"), prompt, 1500);
    int n_want = asked_load_ids(json_object_get(ref, "greedy_ids"), want, MAX_ANSWER);
    for (int i = 0; i < n_want; i++)
        other[i] = (want[i] + 1) % VOCAB;
    for (int k = 0; k < 3; k++) {
        Kind kind;
        AskedEngine e;
        Error err;
        int n_steps[3];
        open_kind(&kind, k);
        EngineOptions o = asked_options(8, 7, 1);
        o.drafter = &kind.d;
        asked_open(&e, o);
        EngineRequest r = asked_greedy(1, prompt, n, n_want);
        for (int i = 0; i < 3; i++) {
            AskedAnswer a = {0};
            r.predicted = i == 1 ? want : other;
            r.n_predicted = i ? n_want : 0;
            asked_submit(e.engine, &r);
            asked_run(e.engine, &a, 1);
            assert_int_equal(a.n, n_want);
            assert_memory_equal(a.token, want, (size_t)n_want * sizeof *want);
            n_steps[i] = a.done.stats.n_steps;
        }
        if (k < 2) assert_true(n_steps[1] <= 3 + n_want / 6); /* the head's come between */
        assert_true(n_steps[1] < n_steps[0]);
        assert_true(n_steps[2] <= n_steps[0]);
        r.n_predicted = MAX_PREDICTED + 1;
        assert_int_equal(engine_submit(e.engine, &r, &err), -1);
        assert_int_equal(err.code, ERR_LIMIT);
        other[1] = VOCAB;
        r.n_predicted = 2;
        assert_int_equal(engine_submit(e.engine, &r, &err), -1);
        assert_int_equal(err.code, ERR_INPUT);
        other[1] = 0;
        asked_expect_idle(e.engine);
        asked_close(&e);
        kind.d.close(kind.d.self);
    }
}

static Drafter spied;
static long n_asked, n_by[GUESS_BOTH + 1];
static int deepest; /* level that was asked for or proposed */

/* Passes on, and counts what was asked and who guessed what. */
static void spy_propose(void *self, const DraftRequest *request, int n, const DraftGuide *guide)
{
    spied.propose(self, request, n, guide);
    n_asked += n;
    for (int i = 0; i < n; i++) {
        const Tree *t = request[i].tree;
        if (request[i].max_depth > deepest) deepest = request[i].max_depth;
        if (tree_depth(t) > deepest) deepest = tree_depth(t);
        for (int k = 1; k < t->n; k++)
            n_by[t->from[k]]++;
    }
}

/*
 * An answer of n tokens to a text that repeats itself, drafted by suffixes in shapes that the
 * engine chooses; nothing is thought of drafts where level is 0. Returns its verify steps.
 */
static int answer_spied(int is_free, StateMode mode, double level, int n, EngineStatus *status)
{
    int32_t prompt[64];
    for (int i = 0; i < 64; i++)
        prompt[i] = 100 + i % 8;
    spied = suffix();
    Drafter d = spied;
    d.propose = spy_propose;
    d.is_free = is_free;
    EngineOptions o = asked_options(4, 3, 1);
    o.drafter = &d;
    o.draft_auto = 1;
    o.state_mode = mode;
    AskedEngine e;
    asked_open(&e, o);
    engine_status(e.engine, status);
    for (int i = 1; i <= MAX_LEVELS; i++)
        e.engine->growth.all.level[i] *= level;
    EngineRequest r = asked_greedy(1, prompt, 64, n);
    r.ignore_eos = 1;
    AskedAnswer a = {0};
    n_asked = deepest = 0;
    asked_submit(e.engine, &r);
    asked_run(e.engine, &a, 1);
    asked_close(&e);
    d.close(d.self);
    return a.done.stats.n_steps;
}

/* Drafts that cost nothing may go deeper than those of a head, where the engine chooses shapes. */
static void test_deep_copies(void **state)
{
    (void)state;
    for (int is_free = 0; is_free < 2; is_free++) {
        int most = is_free ? GROWTH_NODES - 1 : MAX_LEVELS;
        EngineStatus status;
        answer_spied(is_free, STATE_AUTO, 1, 100, &status);
        assert_int_equal(status.draft_depth, most);
        assert_int_equal(deepest, most);
    }
}

/* Copies are sought though nothing is thought of drafts: they are weighed when they are there. */
static void test_always_asked(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        EngineStatus status;
        int n_steps = answer_spied(1, mode ? STATE_REPLAY : STATE_SLOTS, 0, 64, &status);
        assert_true(n_asked >= n_steps - 4); /* the last has nothing to gain */
    }
}

/* ---- both in one tree ---- */

static void test_union_has_both(void **state)
{
    (void)state;
    int32_t prompt[MAX_PROMPT];
    const json_t *ref = json_array_get(asked_references, 2);
    int n = asked_load_ids(json_object_get(ref, "prompt_ids"), prompt, 1500);
    for (int is_auto = 0; is_auto < 2; is_auto++) {
        Error err = {0};
        assert_int_equal(union_drafter_open(asked_model, &spied, &err), 0);
        Drafter d = spied;
        d.propose = spy_propose;
        EngineOptions o = asked_options(16, 6, 3);
        o.drafter = &d;
        o.draft_auto = is_auto;
        AskedEngine e;
        asked_open(&e, o);
        memset(n_by, 0, sizeof n_by);
        for (int round = 0; round < 4; round++) {
            AskedAnswer a = {0};
            EngineRequest r = asked_greedy(1, prompt, n, 100);
            r.ignore_eos = 1;
            asked_submit(e.engine, &r);
            asked_run(e.engine, &a, 1);
        }
        assert_int_equal(n_by[0], 0);
        /* what the clock chooses may leave one out */
        assert_true(n_by[GUESS_HEAD] + n_by[GUESS_BOTH] > 0);
        assert_true(n_by[GUESS_COPY] + n_by[GUESS_BOTH] > 0);
        if (!is_auto) assert_true(n_by[GUESS_HEAD] && n_by[GUESS_COPY] && n_by[GUESS_BOTH]);
        asked_close(&e);
        spied.close(spied.self);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ngram_find),        cmocka_unit_test(test_ngram_drafts),
        cmocka_unit_test(test_suffix_counts),     cmocka_unit_test(test_suffix_sequences),
        cmocka_unit_test(test_suffix_best),       cmocka_unit_test(test_suffix_window),
        cmocka_unit_test(test_same_answers),      cmocka_unit_test(test_predicted),
        cmocka_unit_test(test_predicted_answers), cmocka_unit_test(test_deep_copies),
        cmocka_unit_test(test_always_asked),      cmocka_unit_test(test_union_has_both),
    };
    return cmocka_run_group_tests(tests, asked_open_demo, asked_close_demo);
}
