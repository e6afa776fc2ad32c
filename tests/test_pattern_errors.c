/*
 * test_pattern_errors.c: patterns that are refused, with what and where, limits, and patterns that
 * grow without end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/strbuf.h"
#include "tests/dfa_shape.h"

static void expect_error(const char *pattern, size_t len, ErrorCode code, const char *msg)
{
    Dfa d;
    Error err = {0};
    memset(&d, 0xAA, sizeof d);
    if (!pattern_compile(&d, pattern, len, &err)) fail_msg("'%.60s' is taken", pattern);
    if (strcmp(err.msg, msg) != 0) fail_msg("'%.60s': '%s', not '%s'", pattern, err.msg, msg);
    assert_int_equal(err.code, code);
    assert_null(d.next);
    assert_int_equal(dfa_bytes(&d), sizeof d);
}

static void says_what_is_wrong_and_where(void **state)
{
    static const char *const wrong[][2] = {
        {"abc|*", "dangling quantifier at 4"},
        {"+", "dangling quantifier at 0"},
        {"a**", "dangling quantifier at 2"},
        {"a{2}{3}", "dangling quantifier at 4"},
        {"(?:{2,})", "dangling quantifier at 3"},
        {"^*", "dangling quantifier at 1"},
        {"a+??", "dangling quantifier at 3"},
        {"a{3,2}", "bad repeat range at 1"},
        {"\xC3\xA9[b-a]", "bad range at 3"},
        {"[ab", "unclosed class at 0"},
        {"a[", "unclosed class at 1"},
        {"x[^", "unclosed class at 1"},
        {"[a-", "unclosed class at 0"},
        {"a(b(c)", "unclosed group at 1"},
        {"a(", "unclosed group at 1"},
        {"(a))b", "unbalanced ')' at 3"},
        {")", "unbalanced ')' at 0"},
        {"a(?=b)", "look-around is not supported, at 1"},
        {"(?!b)", "look-around is not supported, at 0"},
        {"(?<=b)", "look-around is not supported, at 0"},
        {"(?<!b)", "look-around is not supported, at 0"},
        {"(?<>b)", "unknown kind of group at 0"},
        {"(?<n", "unknown kind of group at 0"},
        {"a(?P=n)", "unknown kind of group at 1"},
        {"(?P<n", "unknown kind of group at 0"},
        {"\\Z*", "dangling quantifier at 2"},
        {"[\\A]", "unknown escape at 1"},
        {"(?i)b", "unknown kind of group at 0"},
        {"b(?", "unknown kind of group at 1"},
        {"(a)\\1", "back-references are not supported, at 3"},
        {"(?<n>a)\\k<n>", "back-references are not supported, at 7"},
        {"\\p{L}", "Unicode properties are not supported, at 0"},
        {"[a\\P{L}]", "Unicode properties are not supported, at 2"},
        {"a\\b", "word boundaries are not supported, at 1"},
        {"[\\B]", "word boundaries are not supported, at 1"},
        {"\\a", "unknown escape at 0"},
        {"\\01", "unknown escape at 0"},
        {"a\\\xC3\xA9", "unknown escape at 1"},
        {"a\\", "nothing follows the '\\' at 1"},
        {"[\\", "nothing follows the '\\' at 1"},
        {"\\x4", "bad \\x escape at 0"},
        {"\\xg0", "bad \\x escape at 0"},
        {"\\u12", "bad \\u escape at 0"},
        {"\\u{110000}", "bad \\u escape at 0"},
        {"\\u{}", "bad \\u escape at 0"},
        {"\\u{41", "bad \\u escape at 0"},
        {"\\ud83d", "half a surrogate pair at 0"},
        {"a\\ude00", "half a surrogate pair at 1"},
        {"\\ud83d\\u0041", "bad \\u escape at 0"},
        {"\\ud83d\\ufe00", "bad \\u escape at 0"},
        {"a\xC3", "invalid UTF-8 at 1"},
        {"\xED\xA0\x80", "invalid UTF-8 at 0"},
        {"[]", "no string matches the pattern"},
        {"[^\\0-\\u{10ffff}]", "no string matches the pattern"},
        {"a^b", "no string matches the pattern"},
        {"a$b", "no string matches the pattern"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_error(wrong[i][0], strlen(wrong[i][0]), ERR_INPUT, wrong[i][1]);
    expect_error("a\\\0", 3, ERR_INPUT, "unknown escape at 1");
}

/* part, n times. */
static void times(StrBuf *sb, int n, const char *part)
{
    while (n-- > 0)
        strbuf_puts(sb, part);
}

static void nested(StrBuf *sb, int n)
{
    times(sb, n, "(");
    strbuf_puts(sb, "a");
    times(sb, n, ")");
}

static void expect_states(const char *pattern, int n_states)
{
    Dfa d;
    Error err = {0};
    if (pattern_compile(&d, pattern, strlen(pattern), &err))
        fail_msg("'%.60s': %s", pattern, err.msg);
    assert_null(dfa_fault(&d, 0));
    assert_int_equal(d.n_states, n_states);
    dfa_free(&d);
}

/* Of an unanchored letter: 8 states of UTF-8 before it, 8 behind it. */
static void has_limits(void **state)
{
    StrBuf sb = {0};
    (void)state;
    expect_states("^a{256}$", 257);
    expect_error("ba{257}", 7, ERR_LIMIT, "repeat of more than 256 at 2");
    expect_error("a{1,257}", 8, ERR_LIMIT, "repeat of more than 256 at 1");
    expect_error("a{4294967297}", 13, ERR_LIMIT, "repeat of more than 256 at 1"); /* 2^32 + 1 */

    nested(&sb, PATTERN_MAX_NESTING);
    expect_states(sb.data, 16);
    strbuf_clear(&sb);
    times(&sb, PATTERN_MAX_NESTING + 1, "()"); /* one after the other */
    expect_states(sb.data, 8);
    strbuf_clear(&sb);
    nested(&sb, PATTERN_MAX_NESTING + 1);
    expect_error(sb.data, sb.len, ERR_LIMIT, "more than 64 groups in each other at 64");

    strbuf_clear(&sb);
    strbuf_puts(&sb, "^");
    times(&sb, PATTERN_MAX_BYTES - 2, "a");
    strbuf_puts(&sb, "$");
    expect_states(sb.data, PATTERN_MAX_BYTES - 1);
    strbuf_puts(&sb, "$");
    expect_error(sb.data, sb.len, ERR_LIMIT, "pattern has 4097 bytes, the limit is 4096");

    strbuf_clear(&sb);
    strbuf_puts(&sb, "^a{255}");
    times(&sb, 15, "a{256}");
    strbuf_puts(&sb, "$");
    expect_states(sb.data, DFA_MAX_STATES);
    strbuf_clear(&sb);
    strbuf_puts(&sb, "^");
    times(&sb, 16, "a{256}");
    strbuf_puts(&sb, "$");
    expect_error(sb.data, sb.len, ERR_LIMIT, "pattern needs 4097 states, the limit is 4096");
    strbuf_free(&sb);
}

/* Patterns that grow without end somewhere come back soon, and those that only look so are taken.
 */
static void ends_whatever_comes(void **state)
{
    static const char complex[] = "pattern is too complex: its automaton would be too large";
    static const char large[] = "pattern is too large: its repeats make more than 65536 states";
    static const char *const refused[][2] = {
        {"(a|b)*a(a|b){20}$", complex},
        {"^(?:.?){256}a$", complex},
        {"^(\\w{1,30}\\s?){1,20}$", complex},
        {"((a{256}){256}){256}", large},
        {"(((((){256}){256}){256}){256}){256}", large},
        {"((((^|){256}){256}){256}){256}", large},
        {"((([]{256}){256}){256}){256}", large},
    };
    static const struct {
        const char *pattern;
        int n_states;
    } taken[] = {
        {"(a|a)*", 8},
        {"((a*)*)*", 8},
        {"(.*.*.*.*){64}x", 16},
        {"(?:.?){256}a", 16},
        {"^(a|b)*a(a|b){11}$", 4096}, /* which of the last twelve were a */
        {"^(a|a|aa){256}$", 513},
    };
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        expect_error(refused[i][0], strlen(refused[i][0]), ERR_LIMIT, refused[i][1]);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        expect_states(taken[i].pattern, taken[i].n_states);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_is_wrong_and_where),
        cmocka_unit_test(has_limits),
        cmocka_unit_test(ends_whatever_comes),
    };
    return cmocka_run_group_tests_name("pattern_errors", tests, NULL, NULL);
}
