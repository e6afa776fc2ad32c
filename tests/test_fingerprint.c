/* test_fingerprint.c: which models may read each other's states. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/build_id.h"
#include "base/file.h"
#include "base/strbuf.h"
#include "engine/fingerprint.h"
#include "tests/checkpoint.h"

#define GOLDEN "tests/data/golden/qwen35-dense"

typedef struct {
    char text[FINGERPRINT_SIZE];
} Print;

static Print print_with(const char *dir, const ModelOptions *options, KvType kv_type, int has_head)
{
    Print p = {""};
    Error err = {0};
    Backend *be = backend_ref_open(512);
    Model *m = model_open(dir, options, be, &err);
    if (!m) fail_msg("%s", err.msg);
    model_fingerprint(m, kv_type, has_head, p.text);
    model_close(m);
    be->close(be);
    return p;
}

static Print print_of(const char *dir, KvType kv_type, int has_head)
{
    return print_with(dir, NULL, kv_type, has_head);
}

/* Writes c and its config, as if at that second. */
static Print print_at(const Checkpoint *c, long second)
{
    struct timespec times[2] = {{second, 0}, {second, 0}};
    const char *dir = checkpoint_model(c, GOLDEN "/config.json", NULL, NULL, 0);
    assert_int_equal(utimensat(AT_FDCWD, scratch_path(dir, "model.safetensors"), times, 0), 0);
    return print_of(dir, KV_F32, 1);
}

static void test_weights(void **state)
{
    (void)state;
    Checkpoint c;
    checkpoint_read(&c, GOLDEN);
    Print first = print_at(&c, 1000), again = print_at(&c, 1000), later = print_at(&c, 1001);
    assert_string_equal(first.text, again.text);
    assert_string_not_equal(first.text, later.text); /* any row may be another */
    c.tensor[0].data[0] ^= 1;
    Print other = print_at(&c, 1000);
    assert_string_not_equal(first.text, other.text);
    checkpoint_free(&c);
}

static void test_rows(void **state)
{
    (void)state;
    Print p = print_of(GOLDEN, KV_F32, 1), again = print_of(GOLDEN, KV_F32, 1),
          kv = print_of(GOLDEN, KV_BF16, 1), head = print_of(GOLDEN, KV_F32, 0);
    assert_string_equal(p.text, again.text);
    assert_string_not_equal(p.text, kv.text);
    assert_string_not_equal(p.text, head.text);
}

/*
 * What matrices become and are multiplied with; of FP8 checkpoints, too, some of which hold bf16
 * matrices beside.
 */
static void test_options(void **state)
{
    (void)state;
    static const char *const dirs[] = {GOLDEN, GOLDEN "-fp8"};
    static const ModelOptions ways[] = {
        {.quant = QUANT_NONE},    {.quant = QUANT_FP8}, {.quant = QUANT_Q8},
        {.quant = QUANT_Q4},      {.act = ACT_BF16},    {.quant = QUANT_FP8, .act = ACT_BF16},
        {.draft_quant = QUANT_Q8}};
    enum { WAYS = sizeof ways / sizeof *ways, N = 2 * WAYS };
    Print p[N];
    for (int i = 0; i < N; i++) {
        p[i] = print_with(dirs[i / WAYS], &ways[i % WAYS], KV_F32, 1);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(p[i].text, p[k].text);
    }
}

/* By what the operations are computed. */
static void test_machine(void **state)
{
    (void)state;
    Error err = {0};
    Backend *be = backend_ref_open(512);
    Model *m = model_open(GOLDEN, NULL, be, &err);
    Print p[4];
    if (!m) fail_msg("%s", err.msg);
    for (int i = 0; i < 4; i++) {
        *be->chip = i == 1 ? 'x' : 0;
        *be->library = i == 2 ? 'x' : 0;
        *be->wgmma = i == 3 ? 'x' : 0;
        model_fingerprint(m, KV_F32, 1, p[i].text);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(p[i].text, p[k].text);
    }
    model_close(m);
    be->close(be);
}

/* The program's file has the id behind the head of its note: sizes of name and content, type 3. */
static void test_build(void **state)
{
    (void)state;
    char id[BUILD_ID_SIZE];
    Error err = {0};
    StrBuf note = {0};
    MappedFile self;
    build_id(id);
    uint32_t n = (uint32_t)strlen(id) / 2, head[3] = {4, n, 3};
    assert_true(n >= 8);
    strbuf_add(&note, (const char *)head, sizeof head);
    strbuf_add(&note, "GNU", 4);
    for (uint32_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(id + 2 * i, "%2x", &byte), 1);
        strbuf_add(&note, &(char){(char)byte}, 1);
    }
    assert_int_equal(mapped_file_open(&self, "/proc/self/exe", &err), 0);
    assert_non_null(memmem(self.data, self.size, strbuf_str(&note), note.len));
    mapped_file_close(&self);
    strbuf_free(&note);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_options), cmocka_unit_test(test_machine),
        cmocka_unit_test(test_build),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
