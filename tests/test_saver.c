/*
 * test_saver.c: a folder that `offshoot quantize` writes is the model that --quant q8 or q4 makes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/safetensors.h"
#include "tests/backend_simt.h"
#include "tests/checkpoint.h"
#include "tests/isas.h"
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
static void save(const char *dir, QuantType quant, Backend *be)
{
    Error err = {0};
    int64_t bytes = 0;
    scratch_dir("saved");
    if (model_save_quantised(dir, SAVED, quant, be, &bytes, &err)) fail_msg("%s", err.msg);
    Safetensors *st = safetensors_open(SAVED, &err);
    if (!st) fail_msg("%s", err.msg);
    for (int i = 0; i < safetensors_count(st); i++)
        bytes -= (int64_t)safetensors_at(st, i)->bytes;
    assert_int_equal(bytes, 0);
    safetensors_close(st);
}

static void save_fails(const char *dir, const char *to, QuantType quant, Backend *be,
                       const char *message)
{
    Error err = {0};
    int64_t bytes;
    assert_int_equal(model_save_quantised(dir, to, quant, be, &bytes, &err), -1);
    assert_string_equal(err.msg, message);
}

/* Every matrix, every vector through a pass, and what is said of the model. */
static void check_saved(const char *dir, QuantType quant, Backend *be)
{
    static Matrices a, b;
    int n_of[N_WEIGHT_TYPES] = {0};
    save(dir, quant, be);
    Model *made = open_ok(dir, quant, be), *saved = open_ok(SAVED, QUANT_NONE, be);
    list_matrices(made, &a);
    list_matrices(saved, &b);
    assert_int_equal(a.n, b.n);
    for (int k = 0; k < a.n; k++) {
        const Weight *x = a.list[k].w, *y = b.list[k].w;
        assert_true(x->type == y->type && x->rows == y->rows && x->cols == y->cols);
        assert_memory_equal(x->data, y->data, (size_t)weight_data_bytes(x));
        n_of[x->type]++;
        if (!weight_is_int(x->type)) continue;
        assert_memory_equal(x->scale, y->scale, (size_t)weight_n_scales(x) * sizeof(float));
        assert_int_equal((uintptr_t)y->data % 64 + (uintptr_t)y->scale % 64, 0);
    }
    assert_true(n_of[quant == QUANT_Q8 ? WEIGHT_INT8 : WEIGHT_INT4] > 1 && n_of[WEIGHT_INT8] > 1);
    assert_true(saved->config.quant == quant && made->config.quant == quant);
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
    for (QuantType quant = QUANT_Q8; quant <= QUANT_Q4; quant++) {
        check_saved(GOLDEN "qwen35-dense", quant, be);
        check_saved(GOLDEN "qwen35-dense-odd", quant, be);
        check_saved(GOLDEN "qwen35-moe", quant, be);
        check_saved(GOLDEN "qwen3-next", quant, be);
        check_saved(DEMO, quant, be);
    }
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
        check_saved("build/tests/halves", QUANT_Q8, be);
        check_saved("build/tests/halves", QUANT_Q4, be);
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

/* Nothing that was made is copied when it is opened. */
static void test_mapped(void **state)
{
    (void)state;
    static Matrices all;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    for (QuantType quant = QUANT_Q8; quant <= QUANT_Q4; quant++) {
        int n_mapped = 0;
        save(GOLDEN "qwen35-moe", quant, be);
        Model *m = open_ok(SAVED, QUANT_NONE, be);
        list_matrices(m, &all);
        for (int k = 0; k < all.n; k++) {
            const Weight *w = all.list[k].w;
            size_t n = (size_t)weight_data_bytes(w), n_scales = (size_t)weight_n_scales(w);
            if (!weight_is_int(w->type)) continue;
            assert_true(lie_in(SAVED "/model.safetensors", w->data, n));
            assert_true(lie_in(SAVED "/model.safetensors", w->scale, n_scales * sizeof(float)));
            n_mapped++;
        }
        assert_true(n_mapped > 20);
        model_close(m);
    }
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
    save_fails(GOLDEN "qwen35-dense-fp8", no_folder(), QUANT_Q8, be,
               "'" GOLDEN "qwen35-dense-fp8' has fp8 weights already");
    for (QuantType quant = QUANT_Q8; quant <= QUANT_Q4; quant++) {
        int is_q8 = quant == QUANT_Q8;
        QuantType other = is_q8 ? QUANT_Q4 : QUANT_Q8;
        save(DEMO, quant, be);
        save_fails(DEMO, SAVED, quant, be, "'" SAVED "' holds weights already");
        save_fails(SAVED, no_folder(), other, be,
                   is_q8 ? "'" SAVED "' has q8 weights already"
                         : "'" SAVED "' has q4 weights already");
        open_fails(SAVED, QUANT_FP8, be,
                   is_q8 ? "the weights are q8: fp8 is made of wider ones"
                         : "the weights are q4: fp8 is made of wider ones");
        open_fails(SAVED, other, be,
                   is_q8 ? "the weights are q8: q4 is made of wider ones"
                         : "the weights are q4: q8 is made of wider ones");
        open_fails(SAVED, QUANT_NONE, simt,
                   "the weights are q8 or q4, which is for the CPU: take --device cpu, or what "
                   "they were made of");
        model_close(open_ok(SAVED, quant, be));
    }
    save_fails(DEMO, DEMO, QUANT_Q8, be, "'" DEMO "' holds weights already");
    scratch_write(scratch_path(scratch_dir("taken"), "tools.json"), "mine", 4);
    save_fails(DEMO, "build/tests/taken", QUANT_Q8, be,
               "'build/tests/taken' holds 'tools.json' already");
    scratch_write(scratch_path(scratch_dir("taken"), "config.json"), "mine", 4);
    save_fails(DEMO, "build/tests/taken", QUANT_Q8, be,
               "'build/tests/taken' holds 'config.json' already");
    save_fails(DEMO, SAVED "/config.json/x", QUANT_Q8, be,
               "cannot write '" SAVED "/config.json/x': Not a directory");
    assert_int_equal(access("build/tests/again", F_OK), -1);
    simt->close(simt);
    be->close(be);
}

/* Where a file of the new folder may have so many bytes. */
static void save_on_full_disk(const char *from, rlim_t bytes, const char *unwritten, Backend *be)
{
    struct rlimit old, small = {.rlim_cur = bytes};
    char expected[128];
    Error err = {0};
    int64_t saved;
    snprintf(expected, sizeof expected, "cannot write 'build/tests/again/%s': File too large",
             unwritten);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int failed = model_save_quantised(from, "build/tests/again", QUANT_Q8, be, &saved, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(failed, -1);
    assert_string_equal(err.msg, expected);
    assert_int_equal(access("build/tests/again", F_OK), -1);
}

/* The demonstration model, and beside it a file that is larger than its weights of 8 bits. */
static const char *with_large_file(void)
{
    const char *dir = scratch_dir("large");
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char target[PATH_MAX];
    for (int i = 0; i < 3; i++) {
        assert_non_null(realpath(scratch_path(DEMO, files[i]), target));
        assert_int_equal(symlink(target, scratch_path(dir, files[i])), 0);
    }
    const char *notes = scratch_path(dir, "notes.txt");
    scratch_write(notes, "", 0);
    assert_int_equal(truncate(notes, 14 << 20), 0);
    return "build/tests/large";
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
        "build/tests/broken", "build/tests/again", QUANT_Q4, be,
        "cannot load 'model.safetensors': tensor "
        "'model.language_model.layers.1.mlp.experts.gate_up_proj' holds a NaN or an infinity, "
        "which q4 lacks");
    assert_int_equal(access("build/tests/again", F_OK), -1);

    save_on_full_disk(DEMO, 1 << 20, "model.safetensors.part", be);
    save_on_full_disk(with_large_file(), 12 << 20, "notes.txt", be);

    assert_int_equal(symlink("/nowhere", scratch_path(with_large_file(), "vocab.json")), 0);
    save_fails("build/tests/large", "build/tests/again", QUANT_Q8, be,
               "cannot open 'build/tests/large/vocab.json': No such file or directory");
    assert_int_equal(access("build/tests/again", F_OK), -1);
    be->close(be);
}

/* Folders do not come along, so one of the same name may lie there. */
static void test_folders(void **state)
{
    (void)state;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    Error err = {0};
    int64_t bytes;
    const char *from = with_large_file();
    scratch_dir("beside");
    mkdir("build/tests/large/assets", 0777);
    mkdir("build/tests/beside/assets", 0777);
    if (model_save_quantised(from, "build/tests/beside", QUANT_Q8, be, &bytes, &err))
        fail_msg("%s", err.msg);
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

static void rows_of_halves(Checkpoint *c)
{
    checkpoint_put(c, "mtp.fc.weight", "U8", 128, 128, -1);
}

static void other_kind(Checkpoint *c)
{
    snprintf(checkpoint_get(c, "mtp.fc.weight")->dtype, sizeof c->tensor->dtype, "I8");
}

/* The folder SAVED with something changed. */
static const char *spoiled(void (*spoil)(Checkpoint *c))
{
    Checkpoint c;
    const char *dir = scratch_dir("broken");
    checkpoint_read(&c, SAVED);
    spoil(&c);
    checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
    config_write(dir, "config.json", SAVED "/config.json", (const char *const[]){NULL});
    checkpoint_free(&c);
    return dir;
}

/* A file that lies about a matrix. */
static void test_broken_files(void **state)
{
    (void)state;
    static const struct {
        QuantType quant;
        void (*spoil)(Checkpoint *c);
        const char *message;
    } cases[] = {
        {QUANT_Q8, drop_scales,
         "cannot load 'build/tests/broken': tensor 'mtp.fc.weight_scale' is missing, "
         "expected 8 x 1 x 16"},
        {QUANT_Q8, short_scales,
         "cannot load 'model.safetensors': tensor 'mtp.fc.weight_scale' is 8 x 2 x "
         "16, expected 8 x 1 x 16"},
        {QUANT_Q8, narrow_scales,
         "cannot load 'model.safetensors': tensor 'mtp.fc.weight_scale' is of type "
         "BF16, expected F32"},
        {QUANT_Q8, rows_of_codes,
         "cannot load 'model.safetensors': tensor 'mtp.fc.weight' is 128 x 256, "
         "expected 8 x 64 x 16 x 4"},
        {QUANT_Q4, drop_scales,
         "cannot load 'build/tests/broken': tensor 'mtp.fc.weight_scale' is missing, expected 8 x "
         "1 x 16"},
        {QUANT_Q4, rows_of_halves,
         "cannot load 'model.safetensors': tensor 'mtp.fc.weight' is 128 x 128, expected 8 x 4 x 9 "
         "x 64"},
        {QUANT_Q4, other_kind,
         "cannot load 'model.safetensors': tensor 'mtp.fc.weight' is 8 x 4 x 9 x 64, expected 8 x "
         "64 x 16 x 4"},
    };
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        save(GOLDEN "qwen35-dense", cases[i].quant, be);
        open_fails(spoiled(cases[i].spoil), QUANT_NONE, be, cases[i].message);
    }
    be->close(be);
}

/* Steps, offsets and bits that nothing was quantised to. */
static void all_ones(Checkpoint *c)
{
    for (CheckpointTensor *t = c->tensor; t < c->tensor + c->n; t++)
        if (!strcmp(t->dtype, "U8")) memset(t->data, 0xff, t->bytes);
}

/* Any bytes are numbers. */
static void test_any_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < N_CPU_ISAS; i++) {
        Backend *be = backend_cpu_open(2, cpu_isas[i], 4096, NULL);
        Pass pass;
        if (!be) continue;
        save(GOLDEN "qwen35-moe", QUANT_Q4, be);
        Model *m = open_ok(spoiled(all_ones), QUANT_NONE, be);
        run_pass(&pass, m);
        for (size_t k = 0; k < (size_t)PASS_TOKENS * (size_t)m->config.n_vocab; k++)
            assert_true(isfinite(pass.logits[k]));
        mem_free(pass.logits);
        model_close(m);
        be->close(be);
    }
}

/* The program: the same answer, and what it says. */
static void check_program(const char *quant, const char *says)
{
    static const char question[] = "I want to find an Italian restaurant in San Jose";
    scratch_dir("saved");
    rmdir(SAVED);
    expect_run(RUN("quantize", "--model", DEMO, "--out", SAVED, "--quant", quant), 0, says);
    RunResult made = RUN("chat", "--model", DEMO, "--quant", quant, "--thinking", "off",
                         "--temperature", "0", question),
              saved = RUN("chat", "--model", SAVED, "--thinking", "off", "--temperature", "0",
                          question);
    assert_int_equal(made.status + saved.status, 0);
    assert_true(made.out.len > 20);
    assert_string_equal(strbuf_str(&made.out), strbuf_str(&saved.out));
    run_result_free(&made);
    run_result_free(&saved);
}

/* A bound of the system for files is no signal that ends the program. */
static RunResult run_bounded(void)
{
    struct rlimit old, small = {.rlim_cur = 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_DFL);
    setrlimit(RLIMIT_FSIZE, &small);
    RunResult r = RUN("quantize", "--model", DEMO, "--out", "build/tests/again");
    setrlimit(RLIMIT_FSIZE, &old);
    return r;
}

static void test_program(void **state)
{
    (void)state;
    expect_run(RUN("quantize", "--model", DEMO), 2, "where to? give a folder: --out DIR");
    expect_run(RUN("quantize", "--out", SAVED), 2, "which model? give its folder: --model DIR");
    expect_run(RUN("quantize", "--model", DEMO, "--out", SAVED, "x"), 2, "unexpected word 'x'");
    expect_run(RUN("quantize", "--model", DEMO, "--out", SAVED, "--quant", "fp8"), 2,
               "--quant is 'fp8', must be q8 or q4");
    check_program("q8", SAVED ": 9.4 MiB of weights in ");
    check_program("q4", SAVED ": 6.0 MiB of weights in ");
    expect_run(run_bounded(), 5, "model.safetensors.part': File too large");
    assert_int_equal(access("build/tests/again", F_OK), -1);
    scratch_dir("saved");
    expect_run(RUN("quantize", "--model", DEMO, "--out", SAVED), 0, ": 9.4 MiB of weights in ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_model),   cmocka_unit_test(test_halves),
        cmocka_unit_test(test_mapped),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nothing_left), cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_any_bytes),    cmocka_unit_test(test_program),
        cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
