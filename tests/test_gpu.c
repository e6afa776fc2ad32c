/*
 * test_gpu.c: the whole engine on the GPU's kernels: on the host, where they run as fibers, and on
 * the GPU where there is one.
 *
 * The matrix of `offshoot check` on golden models of all three families: tokens with any drafter,
 * in any company, in any chunks equal those of plain decoding, also with K and V in bf16. And after
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
#include "drafts/mtp.h"
#include "engine/engine.h"
#include "tests/backend_simt.h"

#define GOLDEN "tests/data/golden/"

static const char *const golden[] = {GOLDEN "qwen35-dense-odd", GOLDEN "qwen35-dense-fp8",
                                     GOLDEN "qwen35-moe", GOLDEN "qwen3-next"};
enum { N_GOLDEN = sizeof golden / sizeof *golden };

/* On the host a pass takes long: the smallest of models, with random weights. */
static const char *const tiny = "tests/data/gpu/tiny";

static Model *open_model(Backend *be, const char *dir)
{
    Error err = {0};
    ModelOptions options = {.dummy = is_simt(be) ? DUMMY_BF16 : DUMMY_NONE};
    Model *m = model_open(dir, &options, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

static void check_matrix(Backend *be, const char *dir, KvType type)
{
    Error err = {0};
    Model *m = open_model(be, dir);
    Tokenizer *tok = tokenizer_open(GOLDEN "qwen35-moe/tokenizer.json", &err);
    if (!tok) fail_msg("%s", err.msg);
    FILE *out = fopen("/dev/null", "w");
    CheckSetup setup = {.model = m,
                        .tok = tok,
                        .max_tokens = is_simt(be) ? 4 : 48,
                        .limit = is_simt(be) ? 4 : 0,
                        .memory = 64 << 20,
                        .kv_type = type,
                        .ctx_size = is_simt(be) ? 80 : 1024};
    if (check_run(&setup, out, &err)) fail_msg("%s on %s: %s", dir, be->isa, err.msg);
    fclose(out);
    tokenizer_close(tok);
    model_close(m);
}

static void test_check_matrix(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        if (is_simt(gpu[b])) check_matrix(gpu[b], tiny, KV_F32);
        for (size_t i = 0; i < N_GOLDEN && !is_simt(gpu[b]); i++) {
            check_matrix(gpu[b], golden[i], KV_F32);
            check_matrix(gpu[b], golden[i], KV_BF16);
        }
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
            engine_status(e, &status);
            if (status.steps >= n) return;
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
        Model *m = open_model(be, is_simt(be) ? tiny : golden[0]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_matrix),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
