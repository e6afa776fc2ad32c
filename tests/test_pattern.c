/*
 * test_pattern.c: patterns of JSON schemas: what they match, byte by byte, that equal ones give the
 * same automaton, and the patterns of formats. test_pattern_errors.c has what is refused,
 * test_pattern_random.c compares with PCRE2.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/dfa_shape.h"
#include "tests/near.h"
#include "text/utf8.h"

enum { MINIMAL_UP_TO = 300 }; /* states; the check takes n^3 */

static void compile(Dfa *d, const char *pattern)
{
    Error err = {0};
    if (pattern_compile(d, pattern, strlen(pattern), &err)) fail_msg("'%s': %s", pattern, err.msg);
    const char *fault = dfa_fault(d, MINIMAL_UP_TO);
    if (fault) fail_msg("'%s': %s", pattern, fault);
}

typedef struct {
    const char *pattern;
    const char *yes[8], *no[14]; /* NULL ends them */
} Case;

static const Case cases[] = {
    {"", {"", "x", "\n"}, {"\xFF", "\xC3"}},
    {"b", {"b", "abc", "\nb\n"}, {"", "a", "B"}},
    {"^b", {"b", "bc"}, {"ab", "\nb", ""}},
    {"b$", {"b", "ab"}, {"bc", "b\n", ""}},
    {"^b$", {"b"}, {"bb", "b\n", ""}},
    {"^$", {""}, {"a", "\n"}},
    {"^(a|b)$", {"a", "b"}, {"ab", "", "c"}},
    {"^a|b$", {"a", "ax", "xb", "b"}, {"xa", "bx", "x"}},
    {"(^a|b)c", {"ac", "xbc", "bc"}, {"xac", "c"}},
    {"a(b|$)", {"ab", "xa", "abc"}, {"ac", "b"}},
    {"^(?:^a)*b$", {"b", "ab"}, {"aab"}},
    {"$^", {""}, {"a"}},
    {"^a.c$",
     {"abc",
      "a\xC3\xA9"
      "c",
      "a\xF0\x9F\x98\x80"
      "c",
      "a\tc"},
     {"a\nc", "a\rc",
      "a\xE2\x80\xA8"
      "c",
      "a\xE2\x80\xA9"
      "c",
      "ac",
      "a\xE2\x80"
      "c",
      "a\xA9"
      "c"}},
    {"^a*b+c?$", {"b", "abbc", "aab"}, {"a", "c", "bcc"}},
    {"^a*?b+?c??$", {"b", "abbc", "aab"}, {"a", "c", "bcc"}},
    {"^a{2}$", {"aa"}, {"a", "aaa"}},
    {"^a{2,}?$", {"aa", "aaaa"}, {"a", ""}},
    {"^a{0,2}$", {"", "a", "aa"}, {"aaa"}},
    {"^(ab){1,2}$", {"ab", "abab"}, {"", "aba", "ababab"}},
    {"^a{0}$", {""}, {"a"}},
    {"^(|a)b()$", {"b", "ab"}, {"", "aab"}},
    {"^(?:a|(?<n_1>b))+$", {"a", "ba"}, {"", "n"}},
    {"^[a-c-]$", {"a", "c", "-"}, {"d", "", "ab"}},
    {"^[-a]$", {"a", "-"}, {"b"}},
    {"^[^a-c]$", {"d", "\n", "\xC3\xA9", "\xF4\x8F\xBF\xBF"}, {"a", "", "\xED\xA0\x80", "\x80"}},
    {"^[\xC3\xA9-\xE2\x82\xAC]$", {"\xC3\xA9", "\xC4\x80", "\xE2\x82\xAC"}, {"e", "\xE2\x82\xAD"}},
    {"^[^]$", {"a", "\n", "\xE2\x82\xAC"}, {"", "\xE2\x82"}},
    {"^a|[]b$", {"a"}, {"b"}},
    {"^[\\w-.]+$", {"a-b.c"}, {"a b", "/"}}, /* a '-' beside \w is itself */
    {"^[+-\\d]+$", {"+-1"}, {",", "."}},
    {"^[\\b\\]\\\\^]+$", {"\b]\\^"}, {"b"}},
    {"^\\d\\w\\s$",
     {"1_ ", "9z\t", "0A\v", "1a\xC2\xA0", "1a\xEF\xBB\xBF"},
     {"a1 ", "1- ",
      "\xD9\xA1"
      "a ",
      "1a\xC2\x85"}},
    {"^\\D\\W\\S$",
     {"a-z", "\xD9\xA1\xC3\xA9\xC2\x85"},
     {"1-a", "aaa", "a- ", "a-\xC2\xA0", "a-\xE3\x80\x80"}},
    {"^[\\D]\\.[^\\D]$", {"a.1"}, {"1.1", "a.a", "ax1"}},
    {"^\\n\\t\\r\\f\\v$", {"\n\t\r\f\v"}, {"ntrfv"}},
    {"^\\x41\\u00e9\\u{1F600}\\ud83d\\uDE00$",
     {"A\xC3\xA9\xF0\x9F\x98\x80\xF0\x9F\x98\x80"},
     {"A"}},
    {"^\\/\\.\\-\\@\\_\\$\\\"$", {"/.-@_$\""}, {"/x-@_$\""}},
    {"^{a}]{,2}$", {"{a}]{,2}"}, {"a"}}, /* braces that begin no repeat */
    /* Python's and Rust's */
    {"\\A(?P<n_1>a)\\ b\\Z|^[\\ ]\\z", {"a b", " "}, {"a bc", "xa b", "\\ "}},
    {"^a{x{2}$", {"a{xx"}, {"a{x"}},
};

static void expect_case(const char *pattern, const Case *c)
{
    Dfa d;
    compile(&d, pattern);
    for (int k = 0; k < 7 && c->yes[k]; k++)
        if (!dfa_matches(&d, c->yes[k], strlen(c->yes[k])))
            fail_msg("'%s' does not match '%s'", c->pattern, c->yes[k]);
    for (int k = 0; k < 13 && c->no[k]; k++)
        if (dfa_matches(&d, c->no[k], strlen(c->no[k])))
            fail_msg("'%s' matches '%s'", c->pattern, c->no[k]);
    dfa_free(&d);
}

static void matches_what_it_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_case(cases[i].pattern, &cases[i]);
}

static void takes_nul_bytes(void **state)
{
    Dfa d;
    (void)state;
    assert_int_equal(pattern_compile(&d, "^a\0\\0$", 6, NULL), 0);
    assert_true(dfa_matches(&d, "a\0\0", 3));
    assert_false(dfa_matches(&d,
                             "a\0"
                             "0",
                             3));
    dfa_free(&d);
}

/* As a whole: between the pattern's ends, whatever it holds, and with its own offsets. */
static void matches_whole_texts(void **state)
{
    static const Case whole[] = {
        {"", {""}, {"a"}},
        {"a|bc", {"a", "bc"}, {"", "ab", "xa", "abc", "bcx"}},
        {"a*", {"", "aa"}, {"ab", "b"}},
        {"^a$|b", {"a", "b"}, {"ab", "aa"}},
        {"[^\\]a]{0,2}", {"", "b", "xx"}, {"]", "a"}},
        {"a{,x}", {"a{,x}"}, {"a"}},
    };
    static const char *const read_otherwise[][2] = {
        {"[^]]+", "a ']' that begins a class must be escaped, at 2"},
        {"\\[[^]a]*", "a ']' that begins a class must be escaped, at 4"},
        {"[]a]", "a ']' that begins a class must be escaped, at 1"},
        {"\\d{,3}", "a repeat needs its least number, as {0,n}, at 2"},
        {"(a|b){,}c", "a repeat needs its least number, as {0,n}, at 5"},
    };
    Dfa d;
    Error err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        const Case *c = &whole[i];
        assert_int_equal(pattern_compile_whole(&d, c->pattern, strlen(c->pattern), &err), 0);
        assert_null(dfa_fault(&d, MINIMAL_UP_TO));
        for (int k = 0; k < 7 && c->yes[k]; k++)
            assert_true(dfa_matches(&d, c->yes[k], strlen(c->yes[k])));
        for (int k = 0; k < 13 && c->no[k]; k++)
            assert_false(dfa_matches(&d, c->no[k], strlen(c->no[k])));
        dfa_free(&d);
    }
    for (size_t i = 0; i < sizeof read_otherwise / sizeof *read_otherwise; i++) {
        const char *const *p = read_otherwise[i];
        assert_int_equal(pattern_compile_whole(&d, p[0], strlen(p[0]), &err), -1);
        assert_string_equal(err.msg, p[1]);
        assert_int_equal(err.code, ERR_INPUT);
    }
    assert_int_equal(pattern_compile_whole(&d, "a)|(b", 5, &err), -1);
    assert_string_equal(err.msg, "unbalanced ')' at 1");
    assert_int_equal(pattern_compile_whole(&d, "a\\", 2, &err), -1);
    assert_string_equal(err.msg, "nothing follows the '\\' at 1");
}

/* Dead at the first byte after which nothing can match, and not before. */
static void dies_at_once(void **state)
{
    Dfa d;
    (void)state;
    compile(&d, "^(abc|ab\xC3\xA9)$");
    assert_int_not_equal(dfa_run(&d, "ab\xC3", 3), DFA_DEAD);
    assert_int_equal(dfa_run(&d, "ab\xC4", 3), DFA_DEAD);
    assert_int_equal(dfa_run(&d, "abc", 3) == DFA_DEAD, 0);
    assert_int_equal(dfa_run(&d, "abcd", 4), DFA_DEAD);
    assert_int_equal(dfa_step(&d, DFA_DEAD, 'a'), DFA_DEAD);
    dfa_free(&d);
    compile(&d, "x");
    assert_int_equal(dfa_run(&d, "\xC0", 1), DFA_DEAD); /* no UTF-8 begins so */
    assert_int_not_equal(dfa_run(&d, "ab\xF0\x9F", 4), DFA_DEAD);
    dfa_free(&d);
}

/* Each code point there is, against what the class says. */
static void sets_hold_each_code_point(void **state)
{
    static const struct {
        const char *pattern;
        uint32_t lo, hi;
    } ranges[] = {
        {"^[a-z]$", 'a', 'z'},
        {"^[\\x7e-\\u0081]$", 0x7E, 0x81},
        {"^[\\u07ff-\\u0800]$", 0x7FF, 0x800},
        {"^[\\u0700-\\u{10123}]$", 0x700, 0x10123},
        {"^[\\ud7ff-\\ue000]$", 0xD7FF, 0xE000},
        {"^[\\u{ffff}-\\u{10000}]$", 0xFFFF, 0x10000},
        {"^[\\u{12345}-\\u{10ABCD}]$", 0x12345, 0x10ABCD},
        {"^[\\0-\\u{10ffff}]$", 0, 0x10FFFF},
        {"^[^\\0-\\u{10fffe}]$", 0x10FFFF, 0x10FFFF},
        {"^[\\u1001-\\ud000]$", 0x1001, 0xD000},
        {"^[\\u{3ffff}-\\u{100001}]$", 0x3FFFF, 0x100001},
    };
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        Dfa d;
        compile(&d, ranges[i].pattern);
        for (uint32_t code = 0; code <= 0x10FFFF; code++) {
            char s[4];
            int want = code >= ranges[i].lo && code <= ranges[i].hi;
            if (code >= 0xD800 && code <= 0xDFFF) continue;
            if (dfa_matches(&d, s, (size_t)utf8_put(code, s)) != want)
                fail_msg("'%s': U+%04X %s", ranges[i].pattern, (unsigned)code,
                         want ? "is missing" : "matches");
        }
        dfa_free(&d);
    }
}

/* All strings of three bytes, and all starts of four: alive if and only if they may be UTF-8. */
static void takes_utf8_alone(void **state)
{
    Dfa d;
    (void)state;
    compile(&d, "^[^]$");
    for (unsigned n = 0; n < 1u << 24; n++) {
        unsigned char s[4] = {(unsigned char)(n >> 16), (unsigned char)(n >> 8), (unsigned char)n,
                              0x80};
        for (size_t len = 1; len <= 3 && (len == 3 || !s[len]); len++) {
            int step = utf8_step(s, len);
            int want = step == (int)len ? 1 : step == 0 ? 0 : -1;
            uint16_t end = dfa_run(&d, (char *)s, len);
            int got = end == DFA_DEAD ? -1 : d.accepts[end];
            if (got != want) fail_msg("%zu bytes of %06X: %d, not %d", len, n, got, want);
        }
        if (utf8_step(s, 3) == 0 && !dfa_matches(&d, (char *)s, 4)) fail_msg("%06X80", n);
    }
    dfa_free(&d);
}

/* The same strings, so the same automaton, number by number. */
static void equal_patterns_are_equal(void **state)
{
    static const char *const pairs[][2] = {
        {"a|b", "[ab]"},
        {"^(?:a*)*$", "^a*$"},
        {"^a{2,3}$", "^(aaa|aa)$"},
        {"(.*a){3}", "a.*a.*a"},
        {"", "^"},
        {"$", "(a|b|)"},
        {"^(ab|ac)$", "^a[bc]$"},
        {"^(a|aa)+$", "^a+$"},
        {"^[^]*x[^]*$", "x"},
        {"^\\u20ac$", "^\xE2\x82\xAC$"},
        {"^(a|b)?(?:)$", "^(?:|b|a)$"},
        {"^[^\\d]$", "^\\D$"},
        {"^a^b|c$", "c$"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        Dfa a, b;
        compile(&a, pairs[i][0]);
        compile(&b, pairs[i][1]);
        if (!dfa_equal(&a, &b)) fail_msg("'%s' is not '%s'", pairs[i][0], pairs[i][1]);
        dfa_free(&a);
        dfa_free(&b);
    }
}

/* The strings of two patterns both, which a third one has. */
static void keeps_what_both_take(void **state)
{
    static const char *const triples[][3] = {
        {"^[a-m]+$", "^[f-z]*$", "^[f-m]+$"},
        {"", "^a?$", "^a?$"},
        {"^\\d{4}-", "^[^-]{2,4}-\\d$", "^\\d{4}-\\d$"},
        {"^[\xC3\xA0-\xC3\xBF]*$", "^.{2}$", "^[\xC3\xA0-\xC3\xBF]{2}$"},
        {"^(ab|cd)*$", "^(abc|d)*$", "^(abcd)*$"},
        {"b$", "^a[^]*$", "^a[^]*b$"},
    };
    Error err = {0};
    Dfa none, other;
    (void)state;
    for (size_t i = 0; i < 2 * sizeof triples / sizeof *triples; i++) {
        const char *const *t = triples[i / 2];
        Dfa a, b, both;
        compile(&a, t[i % 2]);
        compile(&b, t[!(i % 2)]);
        compile(&both, t[2]);
        if (dfa_both(&a, &b, &err)) fail_msg("'%s' and '%s': %s", t[0], t[1], err.msg);
        if (!dfa_equal(&a, &both)) fail_msg("'%s' and '%s' are not '%s'", t[0], t[1], t[2]);
        dfa_free(&a);
        dfa_free(&b);
        dfa_free(&both);
    }
    compile(&none, "^a$");
    compile(&other, "^b$");
    assert_int_equal(dfa_both(&none, &other, &err), -1);
    assert_int_equal(err.code, ERR_INPUT);
    assert_true(dfa_matches(&none, "a", 1));
    dfa_free(&none);
    dfa_free(&other);
}

/* Of texts that are put together of pieces of the literals: those without one, and no others. */
static void leaves_out_literals(void **state)
{
    static const char *const patterns[] = {"",  "^[^a]*$", "^a?[^]{0,4}$", "<",         "^<[^]{3}$",
                                           "p", "{",       "^\\s",         "^(a|</p)*$"};
    static const char *const literals[] = {"</p>", "\n<p=", "\xff\n{"};
    static const char *const pieces[] = {"<", "/",   "</p", ">",        "\n", "<p",  "=",
                                         "{", "\n{", "a",   "\xc3\xa9", "p",  "<</p"};
    enum { N_PIECES = sizeof pieces / sizeof *pieces };
    static const DfaNever never = {"\xff\n", literals, 3};
    Rng rng = rng_new(7);
    int n_left = 0, n_gone = 0;
    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        Dfa all, some;
        Error err = {0};
        compile(&all, patterns[i]);
        compile(&some, patterns[i]);
        if (dfa_without(&some, &never, &err)) fail_msg("'%s': %s", patterns[i], err.msg);
        const char *fault = dfa_fault(&some, MINIMAL_UP_TO);
        if (fault) fail_msg("'%s': %s", patterns[i], fault);
        for (int k = 0; k < 3000; k++) {
            char text[64] = "\xff\n", *end = text + 2;
            for (int n = rng_int(&rng, 8); n > 0; n--)
                end += snprintf(end, 8, "%s", pieces[rng_int(&rng, N_PIECES)]);
            int is_free = 1, was = dfa_matches(&all, text + 2, strlen(text + 2));
            for (int j = 0; j < 3; j++)
                is_free &= !strstr(text, literals[j]);
            n_left += was && is_free;
            n_gone += was && !is_free;
            if (dfa_matches(&some, text + 2, strlen(text + 2)) != (was && is_free))
                fail_msg("'%s': %s", patterns[i], text + 2);
        }
        dfa_free(&all);
        dfa_free(&some);
    }
    assert_true(n_left > 1000 && n_gone > 1000);
    Dfa none;
    Error err = {0};
    compile(&none, "^x*</p>$");
    assert_int_equal(dfa_without(&none, &never, &err), -1);
    assert_int_equal(err.code, ERR_INPUT);
    assert_true(dfa_matches(&none, "x</p>", 5));
    dfa_free(&none);
}

static void knows_its_size(void **state)
{
    Dfa d;
    (void)state;
    compile(&d, "^abcd$");
    assert_int_equal(d.n_states, 5);
    assert_int_equal(d.n_classes, 5);
    assert_int_equal(dfa_bytes(&d), sizeof d + 5 * 5 * 2 + 5);
    dfa_free(&d);
    assert_int_equal(dfa_bytes(&d), sizeof d);
    dfa_free(&d);
}

static const Case formats[] = {
    {"date-time",
     {"2024-02-29T23:59:60Z", "1970-01-01T00:00:00.123456789+23:59", "2000-12-31T10:20:30-00:00"},
     {"2024-02-29", "2024-02-29T24:00:00Z", "2024-02-29 10:00:00Z", "2024-02-29T10:00:00",
      "2024-02-29T10:00:00.Z", "x2024-02-29T23:59:60Z", "2024-02-29T23:59:60Z\n"}},
    {"date",
     {"2024-02-29", "0000-01-01", "9999-12-31", "2020-10-10", "2000-02-29"},
     {"2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "2024-11-31", "2024-00-10",
      "2024-13-10", "2024-01-00", "2024-01-32", "24-01-01", "2024-1-01", "2024-01-011"}},
    {"time",
     {"00:00:00Z", "23:59:60+00:00", "23:59:60.5Z", "12:34:56.7Z"},
     {"23:59:60+01:00", "22:59:60Z", "23:58:60Z", "24:00:00Z", "12:60:00Z", "12:00:61Z", "12:00:00",
      "12:00Z", "12:00:00+24:00", "12:00:00+01"}},
    {"uuid",
     {"123e4567-e89b-12d3-a456-426614174000", "ABCDEF00-0000-0000-0000-0000000000ff"},
     {"123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000",
      "123e4567-e89b-12d3-a456-4266141740000", "123e4567-e89b-12d3-a456-42661417400", ""}},
    {"uuid4",
     {"123e4567-e89b-42d3-a456-426614174000", "ABCDEF00-0000-4000-B000-0000000000ff"},
     {"123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-42d3-c456-426614174000",
      "123e4567-e89b-42d-a456-426614174000", "123e4567-e89b-42d3-a456-4266141740000"}},
    {"uuid7", {"123e4567-e89b-72d3-8456-426614174000"}, {"123e4567-e89b-42d3-8456-426614174000"}},
    {"ipv4",
     {"0.0.0.0", "255.255.255.255", "1.20.199.249"},
     {"256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.260", "1..2.3", "1.2.3.4\n"}},
    {"duration",
     {"P1D", "P1Y2M3DT4H5M6S", "PT0S", "P4W", "P1Y2M", "P1DT3S", "PT1H2M"},
     {"P", "PT", "P1", "1D", "P1S", "PT1D", "P1DT", "P1W2D", "P2M1Y", "P1Y2D", "PT1.5S", "-P1D",
      "P1D\n"}},
    {"ipv6",
     {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:255.0.1.2", "ffff::ABCD:1.2.3.4",
      "1:2:3:4:5:6:7::"},
     {"", ":", "1", ":::", "1:::2", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9",
      "12345::", "::1.2.3", "g::", "::1%a", "1:2:3:4:5:6:7:8::"}},
    {"hostname",
     {"localhost", "a.b-1.example.COM", "1.2", "x"},
     {"", ".", "a.", ".a", "a..b", "-a", "a-.b", "a_b", "a b", "a/b", "a:80"}},
    {"email",
     {"a@b.c", "first.last+tag@sub.example-1.com", "o'neil@x.org"},
     {"a@b", "@b.c", "a.@b.c", ".a@b.c", "a b@c.d", "a@-b.c", "a@b..c"}},
};

static void knows_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        assert_non_null(format_pattern(formats[i].pattern));
        expect_case(format_pattern(formats[i].pattern), &formats[i]);
    }
    assert_null(format_pattern("uri"));
    assert_null(format_pattern(""));
    assert_null(format_pattern("dates"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_what_it_says),
        cmocka_unit_test(takes_nul_bytes),
        cmocka_unit_test(matches_whole_texts),
        cmocka_unit_test(dies_at_once),
        cmocka_unit_test(sets_hold_each_code_point),
        cmocka_unit_test(takes_utf8_alone),
        cmocka_unit_test(equal_patterns_are_equal),
        cmocka_unit_test(keeps_what_both_take),
        cmocka_unit_test(leaves_out_literals),
        cmocka_unit_test(knows_its_size),
        cmocka_unit_test(knows_formats),
    };
    return cmocka_run_group_tests_name("pattern", tests, NULL, NULL);
}
