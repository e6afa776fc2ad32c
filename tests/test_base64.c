/* test_base64.c: bytes as text and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/base64.h"
#include "tests/analyzer.h"

/* The examples of RFC 4648, and what uses the last letters. */
static void test_both_ways(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
        {"\xff\xef\xbe\xfb", "/+++"
                             "+w=="},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StrBuf text = {0}, bytes = {0};
        base64_encode(rows[i][0], strlen(rows[i][0]), &text);
        assert_string_equal(strbuf_str(&text), rows[i][1]);
        assert_int_equal(base64_decode(rows[i][1], strlen(rows[i][1]), &bytes), 0);
        assert_string_equal(strbuf_str(&bytes), rows[i][0]);
        strbuf_free(&text);
        strbuf_free(&bytes);
    }
}

static void test_other_texts(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "Z", "Zm8", "Zm9v=", "Zm9vYg=", "Zm-v", "Zm v", "Z===", "=m9v"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StrBuf bytes = {0};
        if (!base64_decode(rows[i], strlen(rows[i]), &bytes)) fail_msg("taken: %s", rows[i]);
        strbuf_free(&bytes);
    }
    StrBuf bytes = {0};
    assert_int_equal(base64_decode("Zm\0v", 4, &bytes), -1);
    strbuf_free(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_other_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
