/* test_json_out.c: JSON that survives clients which read line by line, whatever the bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/json_out.h"
#include "tests/analyzer.h"
#include "tests/textdata.h"

static void test_line_ends_are_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"a\nb\r\x01\"\\", "\"a\\nb\\r\\u0001\\\"\\\\\""},
        {"\xC2\x85", "\"\\u0085\""},
        {"x\xE2\x80\xA8\xE2\x80\xA9y\xE2\x80\xA8", "\"x\\u2028\\u2029y\\u2028\""},
        {"\xC2\x86\xE2\x80\xA7\xE2\x81\xA8\xC3\xA9",
         "\"\xC2\x86\xE2\x80\xA7\xE2\x81\xA8\xC3\xA9\""},
        {"", "\"\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *s = json_text(rows[i].in);
        StrBuf out = {0};
        json_print(s, &out);
        assert_string_equal(strbuf_str(&out), rows[i].out);
        json_t *back = json_loadb(out.data, out.len, JSON_DECODE_ANY, NULL);
        assert_true(json_equal(back, s));
        json_decref(back);
        json_decref(s);
        strbuf_free(&out);
    }
}

/* An integer that kept its digits is one. */
static void test_digits(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[18446744073709551615,-99999999999999999999]}";
    json_error_t je;
    json_t *v = json_load_digits(text, sizeof text - 1, 0, &je);
    StrBuf out = {0};
    json_print(v, &out);
    assert_string_equal(strbuf_str(&out), text);
    json_decref(v);
    strbuf_free(&out);
}

/* Nine digits bring a float back, so a log-probability printed twice is the same text and value. */
static void test_floats_come_back(void **state)
{
    (void)state;
    uint64_t x = 7;
    for (int i = 0; i < 10000; i++) {
        float f = -(float)(random_next(&x) % 1000003) / (float)(1 + random_next(&x) % 65537);
        json_t *v = json_real((double)f);
        StrBuf out = {0};
        json_print(v, &out);
        assert_true(strtof(out.data, NULL) == f);
        json_decref(v);
        strbuf_free(&out);
    }
}

/* A setting is said as it was given, not as the float nearest to it. */
static void test_settings_are_short(void **state)
{
    (void)state;
    static const struct {
        float f;
        const char *out;
    } rows[] = {{0.7F, "0.7"},
                {0.95F, "0.95"},
                {0, "0.0"},
                {1, "1.0"},
                {1e-6F, "1e-6"},
                {0.123456F, "0.123456"},
                {100, "100.0"},
                {0.1F + 0.2F, "0.3"},
                {16777216.0F, "16777216.0"},
                {1 / 3.0F, "0.33333334"},
                {0.69999999F, "0.7"},
                {0.70000005F, "0.70000005"}};
    uint64_t x = 9;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StrBuf out = {0};
        json_write(&out, "f", json_shortest(rows[i].f));
        assert_string_equal(strbuf_str(&out), rows[i].out);
        strbuf_free(&out);
    }
    for (int i = 0; i < 10000; i++) {
        float f = (float)(random_next(&x) % 1000003) / (float)(1 + random_next(&x) % 65537);
        assert_true((float)json_shortest(f) == f);
    }
}

/* As many digits as it takes to bring a client's own number back, and no more. */
static void test_doubles_come_back(void **state)
{
    (void)state;
    static const char *const rows[] = {"123456.7891234",
                                       "0.1",
                                       "3.141592653589793",
                                       "-0.30000000000000004",
                                       "1.2345678901e-7",
                                       "1e22",
                                       "1.7976931348623157e308",
                                       "4.94065646e-324",
                                       "-0.0"};
    uint64_t x = 17;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *v = json_loadb(rows[i], strlen(rows[i]), JSON_DECODE_ANY, NULL);
        StrBuf out = {0};
        json_print(v, &out);
        assert_string_equal(strbuf_str(&out), rows[i]);
        json_decref(v);
        strbuf_free(&out);
    }
    for (int i = 0; i < 10000; i++) {
        double value =
            (double)(int64_t)random_next(&x) * pow(10, (double)(random_next(&x) % 600) - 310);
        json_t *v = json_real(value);
        StrBuf out = {0};
        json_print(v, &out);
        assert_true(strtod(out.data, NULL) == value);
        json_decref(v);
        strbuf_free(&out);
    }
}

static void check_real(double value)
{
    json_t *v = json_real(value);
    StrBuf out = {0};
    json_write(&out, "f", value);
    char *theirs = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    assert_string_equal(out.data, theirs);
    free(theirs);
    strbuf_free(&out);
    json_decref(v);
}

/* Of all sizes that are printed without an exponent, and some beyond; and where nine digits end. */
static void test_reals_as_jansson_prints(void **state)
{
    (void)state;
    static const double edges[] = {
        0,           -0.0,         1,           -1,          1e-4,        9.9999999949e-5,
        1e8,         1e9,          999999999.4, 999999999.5, 99999999.95, 99999999.949999999,
        100000000.5, 100000001.5,  1234567.125, 12345678.25, 0.5,         0.1,
        1.5e-4,      123456789.49, 1e-300,      1e300,       12500,       0.000123456789};
    uint64_t x = 5;
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        check_real(edges[i]);
    for (int i = 0; i < 100000; i++) {
        double part = (double)(random_next(&x) >> 11) * 0x1p-53;
        check_real((i % 2 ? 1 : -1) * pow(10, 16 * part - 6));
        check_real((double)(random_next(&x) % 20000000000) / 16); /* many ties */
    }
}

/* json_write makes of its format what json_pack and json_print make of the same. */
static void test_written_as_packed(void **state)
{
    (void)state;
    static const char bytes[] = "x\xFFy\xC2\x85";
    const json_int_t large = -4000000000000000000;
    StrBuf out = {0}, packed = {0};
    json_write(&out, "{s:i, s:I, s:f, s:n, s:s?, s:s?, s:o, s:t, s:{}", "i", -7, "I", large, "f",
               0.25, "n", "none", NULL, "some", "a\"b", "o", json_pack("[i]", 3), "t", bytes,
               sizeof bytes - 1, "empty");
    json_write(&out, ",s:[", "more");
    for (int i = 0; i < 3; i++)
        json_write(&out, i ? ",i" : "i", i);
    json_write(&out, "]}");
    json_t *v =
        json_pack("{s:i, s:I, s:f, s:n, s:s?, s:s?, s:o, s:o, s:{}, s:[i,i,i]}", "i", -7, "I",
                  large, "f", 0.25, "n", "none", NULL, "some", "a\"b", "o", json_pack("[i]", 3),
                  "t", json_text_n(bytes, sizeof bytes - 1), "empty", "more", 0, 1, 2);
    assert_non_null(v);
    json_print(v, &packed);
    assert_string_equal(out.data, packed.data);
    json_decref(v);
    strbuf_free(&packed);
    strbuf_free(&out);
}

static json_t *random_text(uint64_t *x)
{
    char bytes[16];
    size_t n = random_next(x) % sizeof bytes;
    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)(random_next(x) % 131); /* three of them are no ASCII */
    return json_text_n(bytes, n);
}

static json_t *random_value(uint64_t *x, int levels)
{
    json_t *v;
    switch (random_next(x) % (levels ? 9 : 7)) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(random_next(x) & 1);
    case 2:
        return json_integer((json_int_t)random_next(x) >> (random_next(x) % 63));
    case 3:
        return json_real((double)(int64_t)random_next(x) * 1e-18);
    case 4:
        return json_real((double)(random_next(x) % 1000) *
                         pow(10, (double)(random_next(x) % 600) - 300));
    case 5:
    case 6:
        return random_text(x);
    case 7:
        v = json_array();
        for (uint64_t n = random_next(x) % 4; n; n--)
            json_array_append_new(v, random_value(x, levels - 1));
        return v;
    default:
        v = json_object();
        for (uint64_t n = random_next(x) % 4; n; n--) {
            json_t *key = random_text(x);
            json_object_set_new(v, json_string_value(key), random_value(x, levels - 1));
            json_decref(key);
        }
        return v;
    }
}

/* jansson reads back what we print, and prints the same. */
static void test_printed_as_jansson_prints(void **state)
{
    (void)state;
    uint64_t x = 11;
    for (int i = 0; i < 20000; i++) {
        json_t *v = random_value(&x, 4);
        StrBuf out = {0};
        json_print(v, &out);
        json_t *back = json_loadb(out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        char *theirs = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        assert_non_null(back);
        assert_true(json_equal(back, v));
        char *again = json_dumps(back, JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(theirs, again);
        json_decref(back);
        free(theirs);
        free(again);
        strbuf_free(&out);
        json_decref(v);
    }
}

/* Any bytes become a string; what is not UTF-8 becomes U+FFFD, one for each maximal subpart. */
static void test_bytes_become_text(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"\xff", "\xEF\xBF\xBD"},
        {"a\xE2\x80", "a\xEF\xBF\xBD"},
        {"\xE2\x80z\xC3", "\xEF\xBF\xBDz\xEF\xBF\xBD"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *s = json_text(rows[i].in);
        assert_string_equal(json_string_value(s), rows[i].out);
        json_decref(s);
    }
    uint64_t x = 3;
    for (int i = 0; i < 20000; i++) {
        char bytes[12];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (char)random_next(&x);
        json_t *s = json_text_n(bytes, (size_t)i % sizeof bytes);
        assert_non_null(s);
        json_decref(s);
    }
    json_t *nul = json_text_n("a\0b", 3);
    assert_int_equal(json_string_length(nul), 3);
    json_decref(nul);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_ends_are_escaped),
        cmocka_unit_test(test_floats_come_back),
        cmocka_unit_test(test_digits),
        cmocka_unit_test(test_doubles_come_back),
        cmocka_unit_test(test_settings_are_short),
        cmocka_unit_test(test_reals_as_jansson_prints),
        cmocka_unit_test(test_written_as_packed),
        cmocka_unit_test(test_printed_as_jansson_prints),
        cmocka_unit_test(test_bytes_become_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
