/*
 * test_json_cursor.c: strings, integers and containers, as jansson reads them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "text/json_cursor.h"

/* A copy without a NUL behind it, so that a sanitizer sees who reads on. */
static char *copy_of(const char *text, size_t len)
{
    char *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, text, len);
    return copy;
}

static void check_string(const char *text, size_t len)
{
    json_t *want = json_loadb(text, len, JSON_DECODE_ANY, NULL);
    char *copy = copy_of(text, len);
    JsonCursor c = {copy, copy + len};
    JsonText got = {0};
    StrBuf unescaped = {0};
    strbuf_puts(&unescaped, "of the one before");
    int bad = json_cursor_string(&c, &unescaped, &got) || json_cursor_peek(&c);
    if (bad != !json_is_string(want)) fail_msg("%.*s", (int)len, text);
    if (!bad) {
        assert_int_equal(got.len, json_string_length(want));
        assert_memory_equal(got.text, json_string_value(want), got.len);
    }
    assert_true(c.at <= c.end);
    strbuf_free(&unescaped);
    free(copy);
    json_decref(want);
}

static void test_strings(void **state)
{
    static const char *const texts[] = {
        "\"\"",
        " \t\r\n\"a\"\n",
        "\"a\\\"b\\\\c\\/d\\be\\ff\\ng\\rh\\ti\"",
        "\"\\u0041\\u00e9\\u00E9\\u4f60\\uD83D\\uDE00\\udbff\\udfff\"",
        "\"\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x98\x80 \x7F\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\\ud800\\ud800\"",
        "\"\\ud800x\"",
        "\"\\u12g4\"",
        "\"\\x\"",
        "\"\\\"",
        "\"\n\"",
        "\"\x1F\"",
        "\"a\\n\x1F\"",
        "'a'",
        "7",
        "\"a\" \"b\"",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t len = 0; len <= strlen(texts[i]); len++)
            check_string(texts[i], len);
    JsonCursor c = {"\"a\0b\"", NULL};
    StrBuf unescaped = {0};
    JsonText got;
    c.end = c.at + 5;
    assert_int_equal(json_cursor_string(&c, &unescaped, &got), -1);
}

static void check_integer(const char *text)
{
    json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
    JsonCursor c = {text, text + strlen(text)};
    long long got = 0;
    int bad = json_cursor_integer(&c, &got) || json_cursor_peek(&c);
    if (bad != !json_is_integer(want)) fail_msg("%s", text);
    if (!bad) assert_int_equal(got, json_integer_value(want));
    json_decref(want);
}

static void test_integers(void **state)
{
    static const char *const texts[] = {"0",
                                        " 7 ",
                                        "-12",
                                        "-0",
                                        "1234567890123",
                                        "9223372036854775807",
                                        "-9223372036854775807",
                                        "01",
                                        "-01",
                                        "1.5",
                                        "1.",
                                        "1e3",
                                        "1E3",
                                        "0.0",
                                        "- 5",
                                        "-",
                                        "+1",
                                        "",
                                        "x",
                                        "null",
                                        "\"1\"",
                                        "1 2",
                                        "1x"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_integer(texts[i]);
    static const char *const large[] = {"9223372036854775808", "99999999999999999999999999999"};
    for (size_t i = 0; i < 2; i++) {
        JsonCursor c = {large[i], large[i] + strlen(large[i])};
        long long got = 0;
        assert_int_equal(json_cursor_integer(&c, &got), 0);
        assert_true(got == LLONG_MAX && c.at == c.end);
    }
}

/* The first `len` bytes are a value; no part of it is one, but for numbers and words. */
static void check_skip(const char *text, size_t len)
{
    char *copy = copy_of(text, strlen(text));
    JsonCursor c = {copy, copy + strlen(text)};
    assert_int_equal(json_cursor_skip(&c), 0);
    assert_int_equal(c.at - copy, len);
    for (size_t cut = 0; cut < len && strchr("[{\"", text[0]); cut++) {
        c = (JsonCursor){copy, copy + cut};
        assert_int_equal(json_cursor_skip(&c), -1);
        assert_true(c.at <= c.end);
    }
    free(copy);
}

static void test_skip(void **state)
{
    (void)state;
    check_skip("{\"a\": [1, {\"}]\": \"]}\\\"\\\\\"}, []], \"b\": true}, 7", 43);
    check_skip("[]]", 2);
    check_skip("\"a\\\\\" \"", 5);
    check_skip("-1.5e+7,", 7);
    check_skip("null}", 4);
    check_skip("  7", 3);
    static const char *const none[] = {"", "  ", ",", "]", "}", ":"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        JsonCursor c = {none[i], none[i] + strlen(none[i])};
        assert_int_equal(json_cursor_skip(&c), -1);
    }
}

/* How many integers an array has, or -1. */
static int count(const char *text)
{
    JsonCursor c = {text, text + strlen(text)};
    int n = 0, more = json_cursor_take(&c, '[') ? 1 : -1;
    long long value;
    while (more > 0 && (more = json_cursor_next(&c, ']', (size_t)n)) > 0) {
        if (json_cursor_integer(&c, &value)) return -1;
        n++;
    }
    return more || json_cursor_peek(&c) ? -1 : n;
}

static void test_containers(void **state)
{
    static const char *const texts[] = {"[]",    " [ ] ", "[1]",    "[1, 2 ,3]", "[1,]", "[,1]",
                                        "[1 2]", "[1",    "[1,,2]", "[",         "[}",   "[1}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *want = json_loads(texts[i], 0, NULL);
        assert_int_equal(count(texts[i]), want ? (int)json_array_size(want) : -1);
        json_decref(want);
    }
    JsonCursor c = {"\"a\" :1", NULL};
    StrBuf unescaped = {0};
    JsonText key;
    c.end = c.at + 6;
    assert_int_equal(json_cursor_key(&c, &unescaped, &key), 0);
    assert_int_equal(*c.at, '1');
    c = (JsonCursor){"\"a\", 1", NULL};
    c.end = c.at + 6;
    assert_int_equal(json_cursor_key(&c, &unescaped, &key), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_containers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
