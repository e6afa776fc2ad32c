/*
 * test_saver.c: a folder that `offshoot quantize` writes is the model that --quant q8 makes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/safetensors.h"
#include "tests/backend_simt.h"
#include "tests/checkpoint.h"
#include "tests/near.h"
#include "tests/run_binary.h"
#include "tests/whole_model.h"

#define GOLDEN "tests/data/golden/"
#define SAVED  "build/tests/saved"
#define DEMO   "models/demo"

static Model *open_ok(const char *dir, QuantType quant, Backend *be)
{
    Error err = {0};
    Model *m = model_open(dir, &(ModelOptions){.quant = quant}, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

static void open_fails(const char *dir, QuantType quant, Backend *be, const char *message)
{
    Error err = {0};
    assert_null(model_open(dir, &(ModelOptions){.quant = quant}, be, &err));
    assert_string_equal(err.msg, message);
}

/* In the folder SAVED, whose files of a run before are gone. */
static void save(const char *dir, Backend *be)
{
    Error err = {0};
    int64_t bytes = 0;
    scratch_dir("saved");
    if (model_save_q8(dir, SAVED, be, &bytes, &err)) fail_msg("%s", err.msg);
    Safetensors *st = safetensors_open(SAVED, &err);
    if (!st) fail_msg("%s", err.msg);
    for (int i = 0; i < safetensors_count(st); i++)
        bytes -= (int64_t)safetensors_at(st, i)->bytes;
    assert_int_equal(bytes, 0);
    safetensors_close(st);
}

static void save_fails(const char *dir, const char *to, Backend *be, const char *message)
{
    Error err = {0};
    int64_t bytes;
    assert_int_equal(model_save_q8(dir, to, be, &bytes, &err), -1);
    assert_string_equal(err.msg, message);
}

/* Every matrix, every vector through a pass, and what is said of the model. */
static void check_saved(const char *dir, Backend *be)
{
    static Matrices a, b;
    int n_q8 = 0;
    save(dir, be);
    Model *made = open_ok(dir, QUANT_Q8, be), *saved = open_ok(SAVED, QUANT_NONE, be);
    list_matrices(made, &a);
    list_matrices(saved, &b);
    assert_int_equal(a.n, b.n);
    for (int k = 0; k < a.n; k++) {
        const Weight *x = a.list[k].w, *y = b.list[k].w;
        assert_true(x->type == y->type && x->rows == y->rows && x->cols == y->cols);
        assert_memory_equal(x->data, y->data, (size_t)weight_data_bytes(x));
        if (x->type != WEIGHT_INT8) continue;
        assert_memory_equal(x->scale, y->scale, (size_t)weight_n_scales(x) * sizeof(float));
        assert_int_equal((uintptr_t)y->data % 64 + (uintptr_t)y->scale % 64, 0);
        n_q8++;
    }
    assert_true(n_q8 > 1 && saved->config.q8 && made->config.q8);
    assert_true(made->has_mtp == saved->has_mtp && made->n_params == saved->n_params);
    assert_true(made->weight_bytes == saved->weight_bytes);
    assert_true(made->head_weight_bytes == saved->head_weight_bytes);
    Pass one, two;
    run_pass(&one, made);
    run_pass(&two, saved);
    size_t n = (size_t)PASS_TOKENS * (size_t)made->config.n_vocab;
    assert_true(same_bits("logits", one.logits, two.logits, n, 0));
    mem_free(one.logits);
    mem_free(two.logits);
    model_close(made);
    model_close(saved);
}

/* Of bf16 and of f32; experts in one tensor and in many; projections that are taken apart. */
static void test_same_model(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(2, NULL, 4096, NULL);
    check_saved(GOLDEN "qwen35-dense", be);
    check_saved(GOLDEN "qwen35-dense-odd", be);
    check_saved(GOLDEN "qwen35-moe", be);
    check_saved(GOLDEN "qwen3-next", be);
    check_saved(DEMO, be);
    be->close(be);
}

/* F16 is f32 on its way; what stays wide is F16 in the new file. Any bits but for bit 14 are
 * finite. */
static void test_halves(void **state)
{
    (void)state;
    static const char *const from[] = {GOLDEN "qwen35-moe", GOLDEN "qwen3-next"};
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    for (int i = 0; i < 2; i++) {
        Checkpoint c;
        const char *dir = scratch_dir("halves");
        checkpoint_read(&c, from[i]);
        for (CheckpointTensor *t = c.tensor; t < c.tensor + c.n; t++) {
            if (strcmp(t->dtype, "BF16") != 0) continue;
            snprintf(t->dtype, sizeof t->dtype, "F16");
            for (size_t k = 1; k < t->bytes; k += 2)
                t->data[k] &= 0xbf;
        }
        checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
        config_write(dir, "config.json", scratch_path(from[i], "config.json"),
                     (const char *const[]){NULL});
        checkpoint_free(&c);
        check_saved("build/tests/halves", be);
    }
    be->close(be);
}

/* Whether the n bytes lie in the mapping of a file whose path ends so. */
static int lie_in(const char *path, const void *at, size_t n)
{
    char line[512], *end;
    int found = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (!found && fgets(line, sizeof line, f)) {
        uintptr_t first = strtoull(line, &end, 16), last = strtoull(end + 1, NULL, 16);
        found = strstr(line, path) && (uintptr_t)at >= first && (uintptr_t)at + n <= last;
    }
    fclose(f);
    return found;
}

/* Nothing of one byte is copied when it is opened. */
static void test_mapped(void **state)
{
    (void)state;
    static Matrices all;
    int n_mapped = 0;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    save(GOLDEN "qwen35-moe", be);
    Model *m = open_ok(SAVED, QUANT_NONE, be);
    list_matrices(m, &all);
    for (int k = 0; k < all.n; k++) {
        const Weight *w = all.list[k].w;
        if (w->type != WEIGHT_INT8) continue;
        assert_true(lie_in(SAVED "/model.safetensors", w->data, (size_t)weight_data_bytes(w)));
        assert_true(lie_in(SAVED "/model.safetensors", w->scale, (size_t)weight_n_scales(w) * 4));
        n_mapped++;
    }
    assert_true(n_mapped > 20);
    model_close(m);
    be->close(be);
}

/* The path of a folder that is not there. */
static const char *no_folder(void)
{
    rmdir(scratch_dir("again"));
    return "build/tests/again";
}

/* A folder that must not be written, and weights of which nothing can be made. */
static void test_refused(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL), *simt = backend_simt_open();
    save(DEMO, be);
    save_fails(DEMO, SAVED, be, "'" SAVED "' holds weights already");
    save_fails(DEMO, DEMO, be, "'" DEMO "' holds weights already");
    save_fails(SAVED, no_folder(), be, "'" SAVED "' has weights of one byte already");
    save_fails(GOLDEN "qwen35-dense-fp8", no_folder(), be,
               "'" GOLDEN "qwen35-dense-fp8' has weights of one byte already");
    save_fails(DEMO, SAVED "/config.json/x", be,
               "cannot write '" SAVED "/config.json/x': Not a directory");
    assert_int_equal(access("build/tests/again", F_OK), -1);
    open_fails(SAVED, QUANT_FP8, be, "the weights are q8: fp8 is made of wider ones");
    open_fails(
        SAVED, QUANT_NONE, simt,
        "the weights are q8, which is for the CPU: take --device cpu, or what they were made "
        "of");
    model_close(open_ok(SAVED, QUANT_Q8, be));
    simt->close(simt);
    be->close(be);
}

/* What fails half-way leaves nothing: a number that is none, a disk that is full. */
static void test_nothing_left(void **state)
{
    (void)state;
    Checkpoint c;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    const char *dir = scratch_dir("broken");
    checkpoint_read(&c, GOLDEN "qwen35-moe");
    CheckpointTensor *t =
        checkpoint_get(&c, "model.language_model.layers.1.mlp.experts.gate_up_proj");
    memset(t->data + t->bytes - 2, 0xff, 2);
    checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
    config_write(dir, "config.json", GOLDEN "qwen35-moe/config.json", (const char *const[]){NULL});
    checkpoint_free(&c);
    save_fails(
        "build/tests/broken", "build/tests/again", be,
        "cannot load 'model.safetensors': tensor "
        "'model.language_model.layers.1.mlp.experts.gate_up_proj' holds a NaN or an infinity, "
        "which q8 lacks");
    assert_int_equal(access("build/tests/again", F_OK), -1);

    struct rlimit old, small = {1 << 20, 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    Error err = {0};
    int64_t bytes;
    int failed = model_save_q8(DEMO, "build/tests/again", be, &bytes, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(failed, -1);
    assert_string_equal(err.msg,
                        "cannot write 'build/tests/again/model.safetensors.part': File too large");
    assert_int_equal(access("build/tests/again", F_OK), -1);
    be->close(be);
}

static void drop_scales(Checkpoint *c)
{
    checkpoint_drop(c, "mtp.fc.weight_scale");
}

static void short_scales(Checkpoint *c)
{
    checkpoint_put(c, "mtp.fc.weight_scale", "F32", 8, 2, 16);
}

static void narrow_scales(Checkpoint *c)
{
    checkpoint_put(c, "mtp.fc.weight_scale", "BF16", 8, 1, 16);
}

/* As other programs lay 8-bit weights out. */
static void rows_of_codes(Checkpoint *c)
{
    checkpoint_put(c, "mtp.fc.weight", "I8", 128, 256, -1);
}

/* A file that lies about a matrix. */
static void test_broken_files(void **state)
{
    (void)state;
    static const struct {
        void (*spoil)(Checkpoint *c);
        const char *message;
    } cases[] = {
        {drop_scales, "cannot load 'build/tests/broken': tensor 'mtp.fc.weight_scale' is missing, "
                      "expected 8 x 1 x 16"},
        {short_scales, "cannot load 'model.safetensors': tensor 'mtp.fc.weight_scale' is 8 x 2 x "
                       "16, expected 8 x 1 x 16"},
        {narrow_scales, "cannot load 'model.safetensors': tensor 'mtp.fc.weight_scale' is of type "
                        "BF16, expected F32"},
        {rows_of_codes, "cannot load 'model.safetensors': tensor 'mtp.fc.weight' is 128 x 256, "
                        "expected 8 x 64 x 16 x 4"},
    };
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    save(GOLDEN "qwen35-dense", be);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Checkpoint c;
        const char *dir = scratch_dir("broken");
        checkpoint_read(&c, SAVED);
        cases[i].spoil(&c);
        checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
        config_write(dir, "config.json", SAVED "/config.json", (const char *const[]){NULL});
        checkpoint_free(&c);
        open_fails(dir, QUANT_NONE, be, cases[i].message);
    }
    be->close(be);
}

/* The program: the same answer, and what it says. */
static void test_program(void **state)
{
    (void)state;
    static const char question[] = "I want to find an Italian restaurant in San Jose";
    scratch_dir("saved");
    rmdir(SAVED);
    expect_run(RUN("quantize", "--model", DEMO), 2, "where to? give a folder: --out DIR");
    expect_run(RUN("quantize", "--out", SAVED), 2, "which model? give its folder: --model DIR");
    expect_run(RUN("quantize", "--model", DEMO, "--out", SAVED, "x"), 2, "unexpected word 'x'");
    expect_run(RUN("quantize", "--model", DEMO, "--out", SAVED), 0,
               SAVED ": 9.4 MiB of weights in ");
    RunResult made = RUN("chat", "--model", DEMO, "--quant", "q8", "--thinking", "off",
                         "--temperature", "0", question),
              saved = RUN("chat", "--model", SAVED, "--thinking", "off", "--temperature", "0",
                          question);
    assert_int_equal(made.status + saved.status, 0);
    assert_true(made.out.len > 20);
    assert_string_equal(strbuf_str(&made.out), strbuf_str(&saved.out));
    run_result_free(&made);
    run_result_free(&saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_model),   cmocka_unit_test(test_halves),
        cmocka_unit_test(test_mapped),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nothing_left), cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
