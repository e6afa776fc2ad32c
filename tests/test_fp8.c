/*
 * test_fp8.c: rounding to FP8 e4m3 against the list of all values it has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "kernels/fp8.h"

enum { LARGEST = 0x7e }; /* 448; 0x7f is NaN */

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Every code but NaN comes back from its value, the two zeros as well. */
static void test_inverse(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7f) == 0x7f) continue;
        assert_int_equal(fp8_from_float(fp8_to_float((uint8_t)code)), code);
    }
    assert_true(fp8_to_float(1) == 0x1p-9f && fp8_to_float(LARGEST) == 448);
}

/* In the middle of two neighbours the even one; a step of f32 beside it, the nearer one. */
static void test_ties(void **state)
{
    (void)state;
    for (int code = 0; code < LARGEST; code++) {
        float lo = fp8_to_float((uint8_t)code), hi = fp8_to_float((uint8_t)(code + 1));
        float middle = (lo + hi) / 2; /* exact: f32 has room for the bit */
        assert_int_equal(fp8_from_float(middle), code + (code & 1));
        assert_int_equal(fp8_from_float(nextafterf(middle, 0)), code);
        assert_int_equal(fp8_from_float(nextafterf(middle, hi)), code + 1);
        assert_int_equal(fp8_from_float(-middle), 0x80 | (code + (code & 1)));
        assert_int_equal(fp8_from_float(-nextafterf(middle, 0)), 0x80 | code);
        assert_int_equal(fp8_from_float(-nextafterf(middle, hi)), 0x80 | (code + 1));
    }
}

/* A million floats of every size: no code is nearer, none is NaN, beyond 448 is 448. */
static void test_nearest(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 1u << 20; high++) {
        float x = from_bits(high << 12 | high % 4095);
        uint8_t code = fp8_from_float(x);
        assert_true((code & 0x7f) <= LARGEST);
        if (isnan(x)) continue;
        assert_int_equal(code >> 7, signbit(x) != 0);
        int size = code & 0x7f;
        double a = fabs((double)x), error = fabs(a - (double)fp8_to_float((uint8_t)size));
        if (size > 0) assert_true(error <= fabs(a - (double)fp8_to_float((uint8_t)(size - 1))));
        if (size < LARGEST)
            assert_true(error <= fabs(a - (double)fp8_to_float((uint8_t)(size + 1))));
    }
    assert_int_equal(fp8_from_float(INFINITY), LARGEST);
    assert_int_equal(fp8_from_float(-INFINITY), 0x80 | LARGEST);
    assert_int_equal(fp8_from_float(465), LARGEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inverse),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
