/* test_base64.c: bytes as text and back; random ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/base64.h"
#include "base/random.h"
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

/* Each bit comes and does not, and each digit is one of its own. */
static void test_random(void **state)
{
    (void)state;
    enum { N = 200, BYTES = 16 };
    uint64_t some = 0, all = ~UINT64_C(0);
    int n_alike = 0;
    for (int i = 0; i < N; i++) {
        char text[2 * BYTES + 1];
        uint64_t value = random_u64();
        some |= value, all &= value;
        random_hex(text, BYTES);
        assert_int_equal(strspn(text, "0123456789abcdef"), 2 * BYTES);
        for (int k = 0; k < BYTES; k++)
            n_alike += text[2 * k] == text[2 * k + 1];
    }
    assert_true(!~some && !all);
    assert_in_range(n_alike, 1, N * BYTES / 8); /* about a sixteenth */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_other_texts),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
