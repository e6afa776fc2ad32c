/*
 * test_packed.c: matrices that other tools have quantised: as those tools unpack them, and as INT4.
 * Whole models of them: test_packed_models.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/loader_parts.h"
#include "kernels/bf16.h"
#include "tests/checkpoint.h"

#define PACKED "tests/data/packed/"

static unsigned seed;

/* ---- what the tools write and read ---- */

/* X of a file, unpacked, is its tensor `expected`, to the bit. */
static void check_file(const char *name, GptqZeros zeros)
{
    char path[128];
    Error err = {0};
    Packed p;
    Tensor as;
    snprintf(path, sizeof path, PACKED "%s.safetensors", name);
    Safetensors *st = safetensors_open_file(path, &err);
    if (!st) fail_msg("%s", err.msg);
    const Tensor *expected = safetensors_find(st, "expected");
    int rows = (int)expected->dim[0], cols = (int)expected->dim[1];
    Owned own = {.st = st};
    Loader l = {.own = &own, .dir = path, .err = &err, .zeros = zeros};
    assert_true(loader_is_packed(&l, "X"));
    if (loader_open_packed(&l, "X", rows, cols, &p, &as)) fail_msg("%s: %s", name, err.msg);
    assert_int_equal(own.n_params, rows * cols);
    size_t n = (size_t)rows * (size_t)cols;
    uint16_t *row = mem_alloc(n, sizeof *row);
    packed_rows(&p, NULL, rows, row);
    for (size_t i = 0; i < n; i++) {
        uint16_t want;
        memcpy(&want, expected->data + 2 * i, sizeof want);
        if (row[i] != want && (row[i] | want) != 0x8000) /* zeros may have any sign */
            fail_msg("%s: [%zu][%zu] is %g, should be %g", name, i / (size_t)cols, i % (size_t)cols,
                     (double)bf16_to_float(row[i]), (double)bf16_to_float(want));
    }
    int map[] = {3, 0, rows - 1};
    uint16_t *some = mem_alloc(3 * (size_t)cols, sizeof *some);
    packed_rows(&p, map, 3, some);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(some + i * cols, row + map[i] * cols, (size_t)cols * sizeof *row);
    mem_free(row);
    mem_free(some);
    packed_free(&p);
    safetensors_close(st);
}

static void test_files(void **state)
{
    (void)state;
    static const char *const compressed_tensors[] = {
        "ct_w4a16_g128", "ct_w4a16_asym_g32", "ct_w4a16_actorder_g128",
        "ct_w3a16_g128", "ct_w8a16_channel",  "ct_w8a16_asym_channel",
        "ct_int8_w8a8",  "ct_int8_w8a8_asym", "ct_fp8_dynamic",
        "ct_mxfp8a16",   "ct_nvfp4",          "ct_mxfp4a16"};
    static const char *const others[] = {"gptq_4bit_asym_g32_v2", "awq_g128", "modelopt_nvfp4"};
    static const char *const lower[] = {"gptq_4bit_sym_g128", "gptq_4bit_asym_g64",
                                        "gptq_4bit_descact_asym_g32", "gptq_8bit_sym_g128",
                                        "gptq_2bit_asym_g32"};
    for (size_t i = 0; i < sizeof compressed_tensors / sizeof *compressed_tensors; i++)
        check_file(compressed_tensors[i], ZEROS_UNSAID);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check_file(others[i], ZEROS_AS_THEY_ARE);
    for (size_t i = 0; i < sizeof lower / sizeof *lower; i++)
        check_file(lower[i], ZEROS_LOWER);
}

/* compressed-tensors before 0.9 has zero points of words in bytes, with a sign. */
static void test_zeros_in_bytes(void **state)
{
    (void)state;
    static const int8_t zeros[] = {-8, -1, 0, 7}, beyond[] = {-9, 8};
    for (int k = 0; k < 3; k++) {
        Checkpoint c = {0};
        Error err = {0};
        Packed p;
        Tensor as;
        uint16_t row[4][32], one = bf16_from_float(1);
        checkpoint_put(&c, "X.weight_packed", "I32", 4, 4, -1);
        unsigned char *scale = checkpoint_put(&c, "X.weight_scale", "BF16", 4, 1, -1)->data,
                      *zero = checkpoint_put(&c, "X.weight_zero_point", "I8", 4, 1, -1)->data;
        for (size_t r = 0; r < 4; r++)
            memcpy(scale + 2 * r, &one, 2);
        memcpy(zero, zeros, sizeof zeros);
        if (k) memcpy(zero, beyond + k - 1, 1);
        const char *path = scratch_path(scratch_dir("zeros"), "model.safetensors");
        checkpoint_write(&c, path, 0, 1, 0);
        Safetensors *st = safetensors_open_file(path, &err);
        Owned own = {.st = st};
        Loader l = {.own = &own, .dir = path, .err = &err};
        if (loader_open_packed(&l, "X", 4, 32, &p, &as)) fail_msg("%s", err.msg);
        packed_rows(&p, NULL, 4, row[0]);
        for (int r = 0; r < 4; r++)
            assert_int_equal(bf16_to_float(row[r][31]), -8 - (int8_t)zero[r]);
        assert_int_equal(packed_is_int4(&p), k == 0);
        packed_free(&p);
        safetensors_close(st);
        checkpoint_free(&c);
    }
}

/* ---- as INT4 ---- */

enum { ROWS = 40, COLS = 600 /* neither whole panels nor blocks nor runs */ };

/*
 * Rows of random codes, whose groups of `width` columns have scales from 1 to 4. W as INT4 is what
 * it is in f32, but for what a group's scale is off by; the largest of that. Codes are kept: 0 is
 * 0.
 */
static double worst_of_int4(int bits, int width, int has_zeros, const int *map, int n)
{
    int n_groups = (COLS + width - 1) / width, per = 32 / bits, n_words = (COLS + per - 1) / per;
    uint32_t *word = mem_alloc(ROWS * (size_t)n_words, sizeof *word);
    double worst = 0;
    Packed p = {.rows = ROWS, .cols = COLS, .kind = has_zeros ? PACKED_UNSIGNED : PACKED_OFFSET};
    p.n_groups = n_groups;
    p.code = (PackedCodes){(unsigned char *)word, 4, bits, 1, per, (size_t)n_words, 1,
                           packed_in_order,       0};
    p.scale = mem_alloc(ROWS * (size_t)n_groups, sizeof *p.scale);
    p.zero = has_zeros ? mem_alloc(ROWS * (size_t)n_groups, sizeof *p.zero) : NULL;
    p.group = mem_alloc(COLS, sizeof *p.group);
    for (int i = 0; i < ROWS * n_words; i++)
        word[i] = (uint32_t)rand_r(&seed) << 16 ^ (uint32_t)rand_r(&seed);
    for (int i = 0; i < ROWS * n_groups; i++) {
        p.scale[i] = 1 + (float)(rand_r(&seed) % 3000) / 1000;
        if (has_zeros) p.zero[i] = (float)(rand_r(&seed) % (1 << bits));
    }
    for (int c = 0; c < COLS; c++)
        p.group[c] = c / width;
    Weight w = {.type = WEIGHT_INT4, .rows = n, .cols = COLS};
    uint8_t *code = mem_alloc((size_t)weight_data_bytes(&w), 1);
    float *scale = mem_alloc((size_t)weight_n_scales(&w), sizeof *scale);
    memset(code, 0xaa, (size_t)weight_data_bytes(&w));
    memset(scale, 0xaa, (size_t)weight_n_scales(&w) * sizeof *scale);
    assert_true(packed_is_int4(&p));
    packed_int4(&p, map, &w, code, scale);
    w.data = code, w.scale = scale;
    for (int r = 0; r < n; r++)
        for (int c = 0; c < COLS; c++) {
            size_t from = (size_t)(map ? map[r] : r),
                   at = from * (size_t)n_groups + (size_t)(c / width);
            float zero = has_zeros ? p.zero[at] : 0;
            float v = packed_value(p.kind, bits, packed_code(&p.code, (int)from, c)) - zero;
            float x = weight_int_at(&w, r, c);
            assert_true((v == 0) == (x == 0) && weight_int_code(&w, r, c) >= -127);
            double off = v == 0 ? 0 : fabs((double)x / (double)(v * p.scale[at]) - 1);
            worst = off > worst ? off : worst;
        }
    for (int r = n; r < weight_stored_rows(&w); r++) /* and all is written */
        for (int c = 0; c < int8_blocks(COLS) * INT8_BLOCK; c += INT8_BLOCK)
            assert_true(scale[weight_int8_scale(&w, r, c)] == 0);
    for (int r = 0; r < weight_stored_rows(&w); r++)
        for (int c = 0; c < COLS; c += INT4_RUN) {
            const uint8_t *run = code + weight_int4_step(&w, r, c) + int4_run(r, c);
            assert_true(run[0] > 0 && run[0] <= 16 && run[1] > 0 && run[1] + 15 * run[0] <= 255);
        }
    mem_free(word);
    mem_free(code);
    mem_free(scale);
    packed_free(&p);
    return worst;
}

/* What INT4 cannot keep. */
static void test_no_int4(void **state)
{
    (void)state;
    static const float scales[] = {0, -1, INFINITY, NAN};
    float scale[2] = {1, 1};
    int order[64] = {0};
    Packed p = {
        .rows = 1, .cols = 64, .code.bits = 4, .n_groups = 2, .scale = scale, .group = order};
    assert_true(packed_is_int4(&p));
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        scale[1] = scales[i];
        assert_false(packed_is_int4(&p));
    }
    scale[1] = 2;
    order[63] = 1; /* a run of two groups */
    assert_false(packed_is_int4(&p));
    order[63] = 0;
    p.code.bits = 5;
    assert_false(packed_is_int4(&p));
    p.code.bits = 4, p.kind = PACKED_E2M1;
    assert_false(packed_is_int4(&p));
}

static void test_int4(void **state)
{
    (void)state;
    static const int map[] = {39, 0, 7, 8, 8, 20, 21, 3, 1, 2, 30, 31, 32, 33, 34, 35, 36};
    for (int bits = 2; bits <= 4; bits++)
        for (int has_zeros = 0; has_zeros < 2; has_zeros++) {
            assert_true(worst_of_int4(bits, COLS, has_zeros, NULL, ROWS) < 1e-6);
            assert_true(worst_of_int4(bits, 256, has_zeros, map, 17) < 1e-6);
            double two = worst_of_int4(bits, 128, has_zeros, map, 17);
            assert_true(two < (has_zeros ? 0.065 : 0.045));
            assert_true(worst_of_int4(bits, 32, has_zeros, NULL, ROWS) < 0.25);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_zeros_in_bytes),
        cmocka_unit_test(test_no_int4),
        cmocka_unit_test(test_int4),
    };
    return cmocka_run_group_tests_name("packed", tests, NULL, NULL);
}
