/*
 * test_mtp.c: what the MTP drafter proposes is what the head of an independent implementation says.
 *
 * A wrong row, position or hidden state in the drafter changes no token, only acceptance: so it has
 * to be looked for. For a prompt x_0..x_t whose next token is made to be x_{t+1}, the first draft
 * must be the largest of the golden mtp_logits.1[t]; and a step later, with the rows of a tree
 * behind it, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "drafts/mtp.h"
#include "engine/engine.h"
#include "engine/head.h"
#include "engine/model.h"
#include "engine/safetensors.h"
#include "tests/golden.h"

enum { MAX_T = 256, COMPANY = 3 };

/*
 * Passes everything on to mtp, but drafts greedily and without bias, and keeps what was proposed.
 */
typedef struct {
    Drafter mtp;
    /* By sequence and the position of the root; n is 0 where none was asked for. */
    Tree tree[COMPANY][MAX_T];
} Spy;

static int spy_bind(void *self, struct Engine *engine, Error *err)
{
    Spy *s = self;
    return s->mtp.bind(s->mtp.self, engine, err);
}

static void spy_observe(void *self, const DraftObserved *rows)
{
    Spy *s = self;
    s->mtp.observe(s->mtp.self, rows);
}

/* As in a fixed shape: the topk best of a level get children. */
static int expand_best(void *self, int level, uint64_t *nodes)
{
    const DraftRequest *r = self;
    const Tree *t = r->tree;
    nodes[0] = !level;
    for (int k = 0; level && k < r->topk && level < r->max_depth; k++) {
        int best = -1;
        for (int i = 1; i < t->n; i++)
            if (t->depth[i] == level && !(nodes[0] >> i & 1) &&
                (best < 0 || t->value[i] > t->value[best]))
                best = i;
        if (best >= 0) nodes[0] |= (uint64_t)1 << best;
    }
    return nodes[0] != 0;
}

static void expect_same_tree(const Tree *a, const Tree *b)
{
    size_t bytes = (size_t)a->n * sizeof *a->token;
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->token, b->token, bytes);
    assert_memory_equal(a->parent, b->parent, bytes);
    assert_memory_equal(a->value, b->value, bytes);
}

/* A guide that wants the fixed shape gets it: its best nodes are those that stay of it. */
static void expect_same_guided(Spy *s, DraftRequest r)
{
    Tree tree;
    const Tree *fixed = r.tree;
    DraftGuide guide = {.self = &r, .expand = expand_best};
    if (1 + r.topk + (r.max_depth - 1) * r.topk * r.topk > MAX_TREE_NODES) return;
    tree_init(&tree, fixed->token[0]);
    r.tree = &tree;
    s->mtp.propose(s->mtp.self, &r, 1, &guide);
    tree_order(&tree, r.max_nodes);
    expect_same_tree(&tree, fixed);
}

static void spy_propose(void *self, const DraftRequest *request, int n, const DraftGuide *guide)
{
    Spy *s = self;
    DraftRequest r[COMPANY];
    SampleRow row[COMPANY];
    assert_true(n <= COMPANY);
    assert_null(guide);
    for (int i = 0; i < n; i++) {
        r[i] = request[i];
        row[i] = (SampleRow){.params = {.top_p = 1, .repetition = 1}, .pos = r[i].root_pos + 1};
        r[i].row = &row[i];
    }
    s->mtp.propose(s->mtp.self, r, n, NULL);
    for (int i = 0; i < n; i++) {
        assert_true(r[i].tree->n > 1);
        s->tree[r[i].seq][r[i].root_pos] = *r[i].tree;
    }
    if (n == 1) expect_same_guided(s, r[0]);
}

typedef struct {
    Backend *be;
    Model *model;
    Safetensors *golden;
    Spy spy;
    Engine *engine;
    int32_t token[MAX_T];
    int n_tokens;
} Case;

static void case_open(Case *c, const char *dir, int max_seqs, int topk, DraftVocab vocab)
{
    Error err = {0};
    memset(c, 0, sizeof *c);
    c->be = backend_cpu_open(1, NULL, 4096, &err);
    c->model = model_open(dir, NULL, c->be, &err);
    if (!c->model) fail_msg("%s", err.msg);
    assert_int_equal(mtp_drafter_open(c->model, &c->spy.mtp, &err), 0);
    static Drafter drafter;
    drafter = (Drafter){.name = "spy",
                        .uses_head = 1,
                        .self = &c->spy,
                        .bind = spy_bind,
                        .observe = spy_observe,
                        .propose = spy_propose};
    EngineOptions o = engine_defaults();
    o.max_seqs = max_seqs;
    o.ctx_size = MAX_T;
    o.chunk_rows = 7;
    o.tree_nodes = vocab.n_always ? 40 : 9; /* few ids: room for children of all of them */
    o.draft_depth = 4;
    o.draft_topk = topk;
    o.draft_vocab = vocab;
    o.drafter = &drafter;
    c->engine = engine_open(c->model, &o, &err);
    if (!c->engine) fail_msg("%s", err.msg);
}

static void case_close(Case *c)
{
    engine_close(c->engine);
    c->spy.mtp.close(c->spy.mtp.self);
    if (c->golden) safetensors_close(c->golden);
    model_close(c->model);
    c->be->close(c->be);
}

/* 1 if the head may draft this id. */
static int scored(const Case *c, int id)
{
    const Scored *s = &engine_head(c->engine)->scored;
    for (int i = 0; i < s->n_ranges; i++)
        if (id >= s->range[i].first && id < s->range[i].end) return 1;
    return 0;
}

/*
 * The head's best id after the pair (hidden at t, token at t + 1), of those it may draft, unless
 * two are too close to call.
 */
static int32_t golden_best(const Case *c, int t)
{
    const Tensor *logits = safetensors_find(c->golden, "mtp_logits.1");
    int vocab = c->model->config.n_vocab, best = 0;
    float top = -1e30f, second = -1e30f;
    for (int v = 0; v < vocab; v++) {
        float x;
        if (!scored(c, v)) continue;
        memcpy(&x, logits->data + 4 * ((size_t)t * (size_t)vocab + (size_t)v), 4);
        if (x > top) {
            second = top;
            top = x;
            best = v;
        } else if (x > second) {
            second = x;
        }
    }
    return top - second < 1e-3f ? -1 : best;
}

/* The next prompt, then n tokens: greedy, or all of them forced by bias (forced >= 0). */
static void submit(Case *c, const int32_t *prompt, int n_prompt, const int32_t *forced, int n)
{
    static const float bias = 1e4f;
    Error err;
    EngineRequest r = {.id = 1,
                       .prompt = prompt,
                       .n_prompt = n_prompt,
                       .max_tokens = n,
                       .params = {.top_p = 1, .repetition = 1},
                       .n_logprobs = -1,
                       .ignore_eos = 1,
                       .draft_max = -1,
                       .bias_id = forced,
                       .bias = &bias,
                       .n_bias = *forced >= 0};
    if (engine_submit(c->engine, &r, &err)) fail_msg("%s", err.msg);
}

/* Until n requests are done; the tokens to out, unless NULL. */
static void run(Case *c, int n, int32_t *out)
{
    Error err;
    while (n > 0) {
        assert_true(engine_step(c->engine, &err) >= 0);
        for (const Event *ev; (ev = engine_next_event(c->engine));) {
            if (ev->type == EVENT_TOKEN && out) *out++ = ev->token;
            n -= ev->type == EVENT_DONE;
        }
    }
}

static void run_prompt(Case *c, const int32_t *prompt, int n_prompt, int32_t forced, int n,
                       int32_t *out)
{
    submit(c, prompt, n_prompt, &forced, n);
    run(c, 1, out);
}

static void check_model(const char *name, int topk, DraftVocab vocab)
{
    Case c;
    char dir[64];
    int n_checked = 0;
    snprintf(dir, sizeof dir, "tests/data/golden/%s", name);
    case_open(&c, dir, 1, topk, vocab);
    c.golden = golden_open(dir, c.token, MAX_T, &c.n_tokens);
    for (int n = 1; n + 1 < c.n_tokens; n += 5) {
        const Tree *draft = &c.spy.tree[0][n];
        run_prompt(&c, c.token, n, c.token[n], vocab.n_always ? 5 : 3, NULL); /* of two levels */
        int32_t want = golden_best(&c, n - 1);
        assert_true(draft->n > 1);
        for (int i = 1; i < draft->n; i++)
            assert_true(scored(&c, draft->token[i]));
        if (want < 0) continue;
        if (draft->token[1] != want)
            fail_msg("%s: after %d tokens the draft is %d, the head says %d", name, n,
                     draft->token[1], want);
        n_checked++;
    }
    assert_true(n_checked > 20);
    case_close(&c);
}

static const char *const models[] = {"qwen35-dense", "qwen35-dense-odd", "qwen35-dense-fp8",
                                     "qwen35-moe", "qwen3-next"};

static void test_first_draft(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check_model(models[i], 1, (DraftVocab){0});
        check_model(models[i], 3, (DraftVocab){0});
    }
}

/* With few ids the drafts are the best of these, and trees have no other. */
static void test_few_ids(void **state)
{
    (void)state;
    static const int32_t always[] = {290, 291, 289, 200};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check_model(models[i], 1, (DraftVocab){75, always, 4});
        check_model(models[i], 8, (DraftVocab){2, always, 4});
    }
}

/*
 * Rows that the head made after tree passes are those that it makes of a prompt, bit for bit: on
 * the demonstration model, whose greedy answers take many a second and third child.
 */
static void test_draft_after_steps(void **state)
{
    (void)state;
    enum { N_PROMPT = 10, N_ANSWER = 120 };
    static Tree after_steps[MAX_T];
    Case c;
    int32_t tokens[N_PROMPT + N_ANSWER];
    case_open(&c, "models/demo", 1, 3, (DraftVocab){0});
    for (int i = 0; i < N_PROMPT; i++)
        tokens[i] = 300 + 41 * i;
    run_prompt(&c, tokens, N_PROMPT, -1, N_ANSWER, tokens + N_PROMPT);
    memcpy(after_steps, c.spy.tree[0], sizeof after_steps);
    int n_checked = 0;
    for (int pos = N_PROMPT + 1; pos < N_PROMPT + N_ANSWER - 6; pos++) {
        if (!after_steps[pos].n) continue; /* a step jumped over this position */
        run_prompt(&c, tokens, pos, -1, 6, NULL);
        expect_same_tree(&c.spy.tree[0][pos], &after_steps[pos]);
        n_checked++;
    }
    assert_true(n_checked > 20);
    case_close(&c);
}

/* Several sequences at a time have the drafts that each has alone. */
static void test_in_company(void **state)
{
    (void)state;
    enum { N_ANSWER = 40 };
    static Tree in_company[COMPANY][MAX_T];
    static const int32_t none = -1;
    Case c;
    int32_t prompt[COMPANY][10 * COMPANY];
    case_open(&c, "models/demo", COMPANY, 3, (DraftVocab){0});
    for (int q = 0; q < COMPANY; q++) {
        for (int i = 0; i < 10 * (q + 1); i++)
            prompt[q][i] = 300 + 41 * i + 7 * q;
        submit(&c, prompt[q], 10 * (q + 1), &none, N_ANSWER);
    }
    run(&c, COMPANY, NULL);
    memcpy(in_company, c.spy.tree, sizeof in_company);
    for (int q = 0; q < COMPANY; q++) {
        int n_prompt = 10 * (q + 1), n_checked = 0;
        memset(c.spy.tree, 0, sizeof c.spy.tree);
        run_prompt(&c, prompt[q], n_prompt, -1, N_ANSWER, NULL);
        for (int pos = n_prompt; pos < n_prompt + N_ANSWER; pos++) {
            const Tree *alone = &c.spy.tree[0][pos];
            if (alone->n) expect_same_tree(&in_company[q][pos], alone), n_checked++;
        }
        assert_true(n_checked > 5);
    }
    case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_draft),
        cmocka_unit_test(test_few_ids),
        cmocka_unit_test(test_draft_after_steps),
        cmocka_unit_test(test_in_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
