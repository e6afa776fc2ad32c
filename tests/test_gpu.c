/*
 * test_gpu.c: the whole engine on the GPU's kernels: on the host, where they run as fibers, and on
 * the GPU where there is one.
 *
 * A prompt's rows are what they are in any chunks and company, and what followed it is computed
 * again as it was decoded. The matrix of `offshoot check` on golden models of all three families:
 * tokens with any drafter, in any company, in any chunks equal those of plain decoding, also with K
 * and V in bf16. And after
 * engine_open the engine takes no memory of the backend.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "bench/check.h"
#include "bench/prompt_check.h"
#include "drafts/mtp.h"
#include "engine/engine.h"
#include "engine/memory.h"
#include "kernels/cublaslt.h"
#include "tests/backend_simt.h"

#define GOLDEN "tests/data/golden/"

/* On the host a pass takes long: the smallest of models, with random weights. */
static const char tiny[] = "tests/data/gpu/tiny";

static Model *open_model(Backend *be, const char *dir, ActType act)
{
    Error err = {0};
    ModelOptions options = {.act = act,
                            .dummy = !is_simt(be)     ? DUMMY_NONE
                                     : act == ACT_FP8 ? DUMMY_FP8
                                                      : DUMMY_BF16};
    Model *m = model_open(dir, &options, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

static void check_matrix(Backend *be, const char *dir, KvType type, ActType act)
{
    Error err = {0};
    Model *m = open_model(be, dir, act);
    Tokenizer *tok = tokenizer_open(GOLDEN "qwen35-moe/tokenizer.json", &err);
    if (!tok) fail_msg("%s", err.msg);
    FILE *out = fopen("/dev/null", "w");
    CheckSetup setup = {.model = m,
                        .tok = tok,
                        .max_tokens = is_simt(be) ? 4 : 32,
                        .limit = is_simt(be) && act == ACT_FP8 ? 1 : 4,
                        .memory = 64 << 20,
                        .kv_type = type,
                        .ctx_size = is_simt(be) ? 80 : 1024};
    if (check_run(&setup, out, &err)) fail_msg("%s on %s: %s", dir, be->isa, err.msg);
    fclose(out);
    tokenizer_close(tok);
    model_close(m);
}

/* A model of the matrix; `tiny` is for the host, the golden ones for a GPU. */
typedef struct {
    const char *dir;
    KvType type;
    ActType act;
} MatrixCase;

static void test_check_matrix(void **state)
{
    const MatrixCase *c = *state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu), n_checked = 0;
    for (int b = 0; b < n; b++) {
        if (is_simt(gpu[b]) == (c->dir == tiny)) {
            check_matrix(gpu[b], c->dir, c->type, c->act);
            n_checked++;
        }
        gpu[b]->close(gpu[b]);
    }
    if (!n_checked) skip();
}

/* ---- prompts ---- */

enum { CTX = 192, LONG = 150, SHORT = 70, MOST = 32 };

/* Tokens and the bits of their log-probabilities, the prompt's first. */
typedef struct {
    int32_t token[CTX];
    float logprob[CTX];
    int n, n_done, n_preemptions;
} Heard;

static EngineRequest ask(uint64_t id, int32_t *prompt, int n, int max_tokens, int scored)
{
    for (int i = 0; i < n; i++)
        prompt[i] = (int)(i * (31 + 2 * (int)id)) % 250;
    return (EngineRequest){.id = id,
                           .prompt = prompt,
                           .n_prompt = n,
                           .max_tokens = max_tokens,
                           .params = {.top_p = 1, .repetition = 1},
                           .ignore_eos = 1,
                           .n_logprobs = 0,
                           .prompt_logprobs = scored,
                           .draft_max = -1};
}

static void listen(Engine *e, Heard *h)
{
    Error err = {0};
    if (engine_step(e, &err) < 0) fail_msg("%s", err.msg);
    for (const Event *ev; (ev = engine_next_event(e));) {
        Heard *to = &h[ev->id - 1];
        if (ev->type == EVENT_DONE) {
            to->n_done++;
            to->n_preemptions = ev->stats.n_preemptions;
            continue;
        }
        assert_true(to->n < CTX);
        to->token[to->n] = ev->token;
        to->logprob[to->n++] = ev->pos ? ev->logprob : 0;
    }
}

static Engine *open_for_prompts(Model *m, int chunk, int64_t memory)
{
    Error err = {0};
    EngineOptions o = engine_defaults();
    o.ctx_size = CTX;
    o.max_seqs = 3;
    o.chunk_rows = chunk;
    o.reserve = 0;
    o.memory = memory ? memory : 16 << 20;
    o.n_slots = 3;
    Engine *e = engine_open(m, &o, &err);
    if (!e) fail_msg("%s", err.msg);
    return e;
}

/* r[0] to r[n - 1] together; those before `early` have 3 steps' start. */
static void hear(Model *m, int chunk, int64_t memory, const EngineRequest *r, int n, int early,
                 Heard *h)
{
    Error err = {0};
    Engine *e = open_for_prompts(m, chunk, memory);
    memset(h, 0, (size_t)n * sizeof *h);
    for (int i = 0; i < n; i++) {
        for (int k = 0; i == early && k < 3; k++)
            listen(e, h);
        if (engine_submit(e, &r[i], &err)) fail_msg("%s", err.msg);
    }
    for (int i = 0, done = 0; i < 500 && done < n; i++) {
        listen(e, h);
        done = 0;
        for (int k = 0; k < n; k++)
            done += h[k].n_done;
    }
    for (int k = 0; k < n; k++)
        assert_int_equal(h[k].n_done, 1);
    engine_close(e);
}

static void assert_same_heard(const Heard *a, const Heard *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->token, b->token, (size_t)a->n * sizeof a->token[0]);
    assert_memory_equal(a->logprob, b->logprob, (size_t)a->n * sizeof a->logprob[0]);
}

static Model *open_prompts(Backend *be, DummyType type, ActType act)
{
    Error err = {0};
    ModelOptions options = {.dummy = type, .act = act};
    Model *m = model_open("tests/data/gpu/prompts", &options, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

/* With prompts marked, which bites only where they run as such. */
static Model *open_for_marks(Backend *be)
{
    if (is_simt(be)) simt_mark_prompts(be);
    return open_prompts(be, DUMMY_BF16, ACT_F32);
}

/* One prompt in chunks of all sizes, scored or not, beside two others that decode: the same bits.
 */
static void check_cuts(Model *m)
{
    static const int chunk[] = {64, 128, 200, 1};
    static int32_t prompt[3][CTX];
    static Heard whole[3], cut[3], plain;
    EngineRequest r[3] = {ask(1, prompt[0], 20, 12, 0), ask(2, prompt[1], 5, 12, 0),
                          ask(3, prompt[2], LONG, 3, 0)};
    hear(m, 256, 0, r, 3, 3, whole);
    for (int k = 0; k < 4; k++) {
        hear(m, chunk[k], 0, r, 3, k % 2 ? 2 : 3, cut);
        for (int i = 0; i < 3; i++)
            assert_same_heard(&cut[i], &whole[i]);
    }
    plain = whole[2];
    r[2].prompt_logprobs = 1; /* blocks of 64, for their logits */
    hear(m, 256, 0, r, 3, 2, whole);
    hear(m, 1, 0, r, 3, 3, cut);
    for (int i = 0; i < 3; i++)
        assert_same_heard(&cut[i], &whole[i]);
    assert_int_equal(whole[2].n, LONG + plain.n);
    assert_memory_equal(whole[2].token + LONG, plain.token, sizeof(int32_t) * (size_t)plain.n);
    assert_memory_equal(whole[2].logprob + LONG, plain.logprob, sizeof(float) * (size_t)plain.n);
}

static void test_prompt_cuts(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        Model *m = open_prompts(gpu[b], DUMMY_FP8, ACT_FP8);
        check_cuts(m);
        model_close(m);
        m = open_for_marks(gpu[b]);
        check_cuts(m);
        model_close(m);
        gpu[b]->close(gpu[b]);
    }
}

/* The log-probabilities of a prompt. */
static void score(Model *m, Heard *h)
{
    int32_t prompt[CTX];
    EngineRequest r = ask(1, prompt, LONG, 1, 1);
    hear(m, 256, 0, &r, 1, 1, h);
    model_close(m);
}

/* Marks are seen, and so is that x is rounded; but not while decoding. */
static void test_prompts_differ(void **state)
{
    (void)state;
    static Heard plain, other;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        PromptDifference exact, rounded;
        Error err = {0};
        int32_t token[PREFILL_BLOCK];
        score(open_prompts(gpu[b], DUMMY_FP8, ACT_F32), &plain);
        score(open_prompts(gpu[b], DUMMY_FP8, ACT_FP8), &other);
        assert_memory_not_equal(plain.logprob, other.logprob, LONG * sizeof(float));
        ask(1, token, PREFILL_BLOCK, 1, 0);
        for (int act = 0; act < 2; act++) {
            Model *m = open_prompts(gpu[b], DUMMY_FP8, act ? ACT_FP8 : ACT_F32);
            if (prompt_difference(m, KV_F32, token, PREFILL_BLOCK, act ? &rounded : &exact, &err))
                fail_msg("%s", err.msg);
            model_close(m);
        }
        assert_true(rounded.largest > 100 * exact.largest && rounded.mean_kl < 0.1);
        score(open_prompts(gpu[b], DUMMY_BF16, ACT_F32), &plain);
        if (is_simt(gpu[b])) {
            score(open_for_marks(gpu[b]), &other);
            assert_memory_not_equal(plain.logprob, other.logprob, LONG * sizeof(float));
        }
        gpu[b]->close(gpu[b]);
    }
}

/* What `offshoot check` says of a prompt against decoding: the marks show. */
static void test_prompt_difference(void **state)
{
    (void)state;
    enum { ROWS = PREFILL_BLOCK + 2 };
    Error err = {0};
    int32_t token[ROWS];
    PromptDifference d;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        Model *m = open_for_marks(gpu[b]);
        ask(1, token, ROWS, 1, 0);
        if (prompt_difference(m, KV_F32, token, ROWS, &d, &err)) fail_msg("%s", err.msg);
        assert_int_equal(d.n_rows, ROWS);
        assert_true(!is_simt(gpu[b]) || (d.largest > 1e-3 && d.mean_kl > 1e-9));
        assert_true(d.largest < 10 && d.mean_kl > -1e-9);
        model_close(m);
        gpu[b]->close(gpu[b]);
    }
}

/* Three grow in memory for little more than one: the last give theirs up and are computed again. */
static void test_preemption(void **state)
{
    (void)state;
    static int32_t prompt[3][CTX];
    static Heard alone, together[3];
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        Model *m = open_for_marks(gpu[b]);
        EngineRequest r[3];
        int n_preemptions = 0;
        for (int i = 0; i < 3; i++)
            r[i] = ask((uint64_t)i + 1, prompt[i], SHORT - 3 * i, MOST, 0);
        int64_t memory = memory_frames_for(m, KV_F32, 1, pages_for(CTX + 2)) *
                         (int64_t)memory_frame_bytes(m, KV_F32);
        hear(m, 64, memory, r, 3, 3, together);
        for (int i = 0; i < 3; i++) {
            EngineRequest one = r[i];
            one.id = 1;
            hear(m, 256, 0, &one, 1, 1, &alone);
            assert_same_heard(&together[i], &alone);
            n_preemptions += together[i].n_preemptions;
        }
        assert_true(n_preemptions > 0);
        model_close(m);
        gpu[b]->close(gpu[b]);
    }
}

/* ---- no allocation ---- */

static void *(*real_alloc)(Backend *be, size_t bytes, Error *err);
static int n_allocated;

static void *counted_alloc(Backend *be, size_t bytes, Error *err)
{
    n_allocated++;
    return real_alloc(be, bytes, err);
}

/* Steps of trees and prompts of two sequences, until there were n of them. */
static void run_steps(Engine *e, int n)
{
    Error err = {0};
    EngineStatus status;
    int32_t prompt[40];
    for (int i = 0; i < 40; i++)
        prompt[i] = i * 37 % 250;
    for (uint64_t id = 1;; id++) {
        EngineRequest r = {.id = id,
                           .prompt = prompt,
                           .n_prompt = 5 + (int)(id * 11 % 35),
                           .max_tokens = 20,
                           .params = {.temperature = id & 1 ? 1.0f : 0.0f,
                                      .top_p = 1,
                                      .repetition = 1,
                                      .frequency = id & 1 ? 0.5f : 0.0f},
                           .ignore_eos = 1,
                           .n_logprobs = -1,
                           .draft_max = -1};
        if (engine_submit(e, &r, &err)) fail_msg("%s", err.msg);
        engine_status(e, &status);
        while (status.running + status.waiting > 1) {
            if (engine_step(e, &err) < 0) fail_msg("%s", err.msg);
            for (const Event *ev; (ev = engine_next_event(e));)
                assert_true(ev->type != EVENT_DONE || ev->finish == FINISH_LENGTH);
            if (--n <= 0) return;
            engine_status(e, &status);
        }
    }
}

static void check_no_allocation(StateMode mode)
{
    Error err = {0};
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        Backend *be = gpu[b];
        Model *m = open_model(be, is_simt(be) ? tiny : GOLDEN "qwen35-dense-odd", ACT_F32);
        Drafter drafter;
        assert_int_equal(mtp_drafter_open(m, &drafter, &err), 0);
        EngineOptions o = engine_defaults();
        o.ctx_size = 256;
        o.memory = 64 << 20;
        o.max_seqs = 2;
        o.drafter = &drafter;
        o.state_mode = mode;
        real_alloc = be->alloc;
        be->alloc = counted_alloc;
        Engine *e = engine_open(m, &o, &err);
        if (!e) fail_msg("%s", err.msg);
        assert_true(n_allocated > 0);
        n_allocated = 0;
        run_steps(e, is_simt(be) ? 40 : 2000);
        assert_int_equal(n_allocated, 0);
        engine_close(e);
        drafter.close(drafter.self);
        model_close(m);
        be->close(be);
    }
}

static void test_no_allocation(void **state)
{
    (void)state;
    check_no_allocation(STATE_SLOTS);
    check_no_allocation(STATE_REPLAY);
}

/* What the library works in counts as scratch in the table at the start. */
static void test_library_allocation(void **state)
{
    (void)state;
    Error err = {0};
    Backend *be = backend_cuda_open(0, &err);
    Backend *alone = be ? backend_cuda_open(CUDA_NO_LIBRARY, &err) : NULL;
    if (!be) skip();
    if (!alone) fail_msg("%s", err.msg);
    assert_int_equal(be->scratch_bytes - alone->scratch_bytes, CUBLASLT_WORKSPACE);
    be->close(be), alone->close(alone);
}

#define MATRIX(name, ...)                                                                          \
    {                                                                                              \
        "check " name, test_check_matrix, NULL, NULL, &(MatrixCase)                                \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* With a pattern, the tests of such names alone: a GPU serves several such runs side by side. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        MATRIX("tiny", tiny, KV_F32, ACT_F32),
        MATRIX("tiny, FP8 x", tiny, KV_F32, ACT_FP8),
        MATRIX("dense fp8, FP8 x", GOLDEN "qwen35-dense-fp8", KV_F32, ACT_FP8),
        MATRIX("dense fp8 f32", GOLDEN "qwen35-dense-fp8", KV_F32, ACT_F32),
        MATRIX("dense fp8 bf16", GOLDEN "qwen35-dense-fp8", KV_BF16, ACT_F32),
        MATRIX("dense odd f32", GOLDEN "qwen35-dense-odd", KV_F32, ACT_F32),
        MATRIX("dense odd bf16", GOLDEN "qwen35-dense-odd", KV_BF16, ACT_F32),
        MATRIX("moe f32", GOLDEN "qwen35-moe", KV_F32, ACT_F32),
        MATRIX("moe bf16", GOLDEN "qwen35-moe", KV_BF16, ACT_F32),
        MATRIX("next f32", GOLDEN "qwen3-next", KV_F32, ACT_F32),
        MATRIX("next bf16", GOLDEN "qwen3-next", KV_BF16, ACT_F32),
        cmocka_unit_test(test_prompt_cuts),
        cmocka_unit_test(test_prompts_differ),
        cmocka_unit_test(test_prompt_difference),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_library_allocation),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
