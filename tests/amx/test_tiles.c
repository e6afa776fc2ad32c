/*
 * test_tiles.c: tiles.h adds up as Intel's manual says, and refuses what a CPU would.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/amx/tiles.h"
#include "tests/apart.h"

enum { ALLOW = 0x1023, TILE_DATA = 18 };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Config;

/* c in 0: 3 x 2 words, a in 1: 3 x 4, b in 2: 4 x 2; 3 is not in use. */
static Config shapes(void)
{
    return (Config){.palette = 1, .row_bytes = {8, 16, 8}, .rows = {3, 3, 4}};
}

static void configure(void)
{
    Config c = shapes();
    syscall(SYS_arch_prctl, ALLOW, TILE_DATA);
    _tile_loadconfig(&c);
}

/* ---- products ---- */

static uint32_t a[3][4], b[4][2], c[3][2];

static void load(void)
{
    configure();
    _tile_loadd(0, c, sizeof *c);
    _tile_loadd(1, a, sizeof *a);
    _tile_loadd(2, b, sizeof *b);
}

static int byte_of(uint32_t word, int i, int is_signed)
{
    int byte = (int)(word >> 8 * i & 0xff);
    return is_signed && byte > 127 ? byte - 256 : byte;
}

static uint32_t sum_of_bytes(int m, int n, int a_signed, int b_signed)
{
    uint32_t sum = c[m][n];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++)
            sum += (uint32_t)(byte_of(a[m][k], i, a_signed) * byte_of(b[k][n], i, b_signed));
    return sum;
}

static void test_bytes(void **state)
{
    (void)state;
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof a / 4 + sizeof b / 4 + sizeof c / 4; i++) {
        uint32_t *to = i < 12 ? &a[0][0] + i : i < 20 ? &b[0][0] + i - 12 : &c[0][0] + i - 20;
        *to = x = x * 1664525 + 1013904223;
    }
    for (int i = 0; i < 4; i++) {
        uint32_t got[3][2];
        load();
        if (i == 0) _tile_dpbssd(0, 1, 2);
        if (i == 1) _tile_dpbsud(0, 1, 2);
        if (i == 2) _tile_dpbusd(0, 1, 2);
        if (i == 3) _tile_dpbuud(0, 1, 2);
        _tile_stored(0, got, sizeof *got);
        for (int m = 0; m < 3; m++)
            for (int n = 0; n < 2; n++)
                assert_int_equal(got[m][n], sum_of_bytes(m, n, i < 2, i % 2 == 0));
    }
}

/* Two numbers that bf16 holds, the even element first. */
static uint32_t pair(float even, float odd)
{
    uint32_t word[2];
    memcpy(&word[0], &even, 4);
    memcpy(&word[1], &odd, 4);
    return word[0] >> 16 | word[1];
}

static float bf16_product(float begin)
{
    float got[3][2];
    memcpy(&c[2][1], &begin, 4);
    load();
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, got, sizeof *got);
    assert_true(got[0][0] == 0 && got[2][0] == 0);
    return got[2][1];
}

/* Row 2 by column 1. Each expectation is another where the order or a rounding is. */
static void test_bf16(void **state)
{
    (void)state;
    const float tiny = 0x1p-24f;
    volatile float least = 0x1p-126f;
    memset(a, 0, sizeof a), memset(b, 0, sizeof b), memset(c, 0, sizeof c);
    for (int k = 0; k < 4; k++)
        b[k][1] = pair(1, 1);
    a[2][0] = pair(1, tiny), a[2][1] = pair(0, tiny);
    assert_true(bf16_product(0) == 1 + 2 * tiny); /* odd ones have a sum of their own */
    assert_true(bf16_product(2 * tiny) == 1 + 4 * tiny);
    a[2][0] = pair(1, 0), a[2][1] = pair(tiny, 0), a[2][2] = pair(tiny, 0);
    assert_true(bf16_product(0) == 1); /* to the even one, at each step */
    a[2][0] = pair(tiny, 0), a[2][1] = pair(tiny, 0), a[2][2] = pair(1, 0);
    assert_true(bf16_product(0) == 1 + 2 * tiny); /* ascending */
    assert_true(bf16_product(-1) == 2 * tiny);    /* what is there comes last */
    a[2][0] = pair(tiny, tiny), a[2][1] = a[2][2] = 0;
    assert_true(bf16_product(1) == 1 + 2 * tiny); /* both sums as one */
    b[0][1] = pair(3, 5);
    assert_true(bf16_product(0) == 8 * tiny); /* even by even, odd by odd */
    a[2][0] = pair(tiny, -tiny);
    assert_true(bf16_product(0) == -2 * tiny);
    a[2][0] = pair(0x1p-130f, 0);
    b[0][1] = pair(0x1p100f, 1);
    assert_true(bf16_product(0) == 0); /* denormals are zeros as operands, */
    assert_true(bf16_product(0x1p-130f) == 0);
    a[2][0] = pair(0x1p-100f, 0), b[0][1] = pair(0x1p-30f, 1);
    assert_true(bf16_product(0) == 0); /* and as results, */
    a[2][0] = pair(0x1p-100f, 0), a[2][1] = pair(0x1p-126f, 0);
    b[0][1] = pair(-0x1p-28f, 1);
    assert_true(bf16_product(0) == least); /* those on the way too; */
    assert_true(least / 2 != 0);           /* ours are what they were */
}

/* ---- faults ---- */

static void without_asking(void)
{
    Config of = shapes();
    _tile_loadconfig(&of);
}

static void other_call(void)
{
    syscall(SYS_arch_prctl, ALLOW, TILE_DATA - 1);
}

#define WITH(name, change)                                                                         \
    static void name(void)                                                                         \
    {                                                                                              \
        Config of = shapes();                                                                      \
        configure();                                                                               \
        of.change;                                                                                 \
        _tile_loadconfig(&of);                                                                     \
        _tile_zero(0);                                                                             \
        _tile_dpbf16ps(0, 1, 2);                                                                   \
    }

WITH(no_palette, palette = 0)
WITH(start_row, start_row = 1)
WITH(reserved, reserved[13] = 1)
WITH(many_rows, rows[1] = 17)
WITH(long_rows, row_bytes[1] = 68)
WITH(no_rows, rows[1] = 0)
WITH(ninth, rows[8] = 1)
WITH(not_in_use, rows[0] = of.row_bytes[0] = 0)
WITH(part_of_a_word, row_bytes[1] = 18)
WITH(rows_differ, rows[0] = 4)
WITH(columns_differ, row_bytes[0] = 12)
WITH(depths_differ, rows[2] = 5)

static void released(void)
{
    configure();
    _tile_release();
    _tile_zero(0);
}

static void same_registers(void)
{
    configure();
    _tile_dpbssd(0, 1, 1);
}

static void eighth(void)
{
    configure();
    _tile_stored(8, c, 8);
}

static void unused(void)
{
    configure();
    _tile_loadd(3, c, 8);
}

typedef struct {
    void (*run)(void);
    const char *said;
} Fault;

static const Fault faults[] = {
    {without_asking, "loadconfig: the system has not been asked"},
    {other_call, "syscall: "},
    {no_palette, "loadconfig: palette 0"},
    {start_row, "loadconfig: start row 1"},
    {reserved, "loadconfig: reserved byte 15"},
    {many_rows, "loadconfig: register 1 has 17 rows"},
    {long_rows, "loadconfig: register 1 has rows of 68 bytes"},
    {no_rows, "loadconfig: register 1 has 0 rows of 16 bytes"},
    {ninth, "loadconfig: there is no register 8"},
    {not_in_use, "zero: register 0 has no shape"},
    {part_of_a_word, "dpbf16ps: rows of 8, 18 and 8 bytes"},
    {rows_differ, "dpbf16ps: 4 x 2 words += 3 x 4 by 4 x 2"},
    {columns_differ, "dpbf16ps: 3 x 3 words += 3 x 4 by 4 x 2"},
    {depths_differ, "dpbf16ps: 3 x 2 words += 3 x 4 by 5 x 2"},
    {released, "zero: without a configuration"},
    {same_registers, "dpbssd: registers 0, 1 and 1"},
    {eighth, "stored: there is no register 8"},
    {unused, "loadd: register 3 has no shape"},
};

static void run(const void *fault)
{
    ((const Fault *)fault)->run();
}

/* First of all: the system has not been asked yet. */
static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char said[APART_SAID];
        int status = run_apart(run, &faults[i], said);
        size_t n = strlen(faults[i].said);
        if (!WIFSIGNALED(status) || strncmp(said, "tiles: ", 7) ||
            strncmp(said + 7, faults[i].said, n) != 0)
            fail_msg("expected '%s': status %#x, %s", faults[i].said, (unsigned)status, said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
