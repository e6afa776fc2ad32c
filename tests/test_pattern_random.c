/*
 * test_pattern_random.c: random patterns on random strings, against PCRE2, which backtracks and so
 * shares no idea with our automata. The generator writes each pattern twice, where the two dialects
 * differ: '.', white space and code points by number. Half of the automata are cut to strings of
 * some length.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/strbuf.h"
#include "tests/dfa_shape.h"
#include "tests/near.h"

enum { PATTERNS = 6000, STRINGS = 60, MAX_STRING = 10, MINIMAL_UP_TO = 60, DEPTH = 2 };

static const uint64_t SEED = 47;

/* What both patterns and strings are made of, sorted: ranges take two of them. */
static const char *const letters[] = {"\n",
                                      "\r",
                                      " ",
                                      "-",
                                      "1",
                                      "_",
                                      "a",
                                      "b",
                                      "c",
                                      "\xC3\xA9",
                                      "\xE2\x80\xA8",
                                      "\xE2\x82\xAC",
                                      "\xF0\x9F\x98\x80"};
enum { LETTERS = sizeof letters / sizeof *letters };

typedef struct {
    Rng rng;
    StrBuf ours, theirs;
} Writer;

static void both(Writer *w, const char *text)
{
    strbuf_puts(&w->ours, text);
    strbuf_puts(&w->theirs, text);
}

static void write_letter(Writer *w, int i)
{
    if (!strcmp(letters[i], "-")) both(w, "\\");
    if (i == LETTERS - 1 && rng_int(&w->rng, 2)) {
        strbuf_puts(&w->ours, rng_int(&w->rng, 2) ? "\\ud83d\\ude00" : "\\u{1F600}");
        strbuf_puts(&w->theirs, "\\x{1F600}");
    } else if (!strcmp(letters[i], "a") && rng_int(&w->rng, 2)) {
        strbuf_puts(&w->ours, rng_int(&w->rng, 2) ? "\\x61" : "\\u0061");
        strbuf_puts(&w->theirs, "\\x{61}");
    } else {
        both(w, letters[i]);
    }
}

/* PCRE2's \s is ASCII's: of the letters above, U+2028 is white space beside them. A class there
 * cannot be less than \S. */
static void write_kind(Writer *w, int in_class)
{
    static const char *const kinds[] = {"\\d", "\\w", "\\D", "\\W", "\\s", "\\S"};
    int kind = rng_int(&w->rng, in_class ? 5 : 6);
    strbuf_puts(&w->ours, kinds[kind]);
    if (kind == 5)
        strbuf_puts(&w->theirs, "[^\\s\\x{2028}]");
    else if (kind == 4)
        strbuf_puts(&w->theirs, in_class ? "\\s\\x{2028}" : "[\\s\\x{2028}]");
    else
        strbuf_puts(&w->theirs, kinds[kind]);
}

/* PCRE2 overlooks a quantifier at [], so classes are in groups there. */
static void write_class(Writer *w)
{
    strbuf_puts(&w->theirs, "(?:");
    both(w, rng_int(&w->rng, 3) ? "[" : "[^");
    for (int n = rng_int(&w->rng, 4); n > 0; n--) {
        int from = rng_int(&w->rng, LETTERS), to = from + rng_int(&w->rng, LETTERS - from);
        if (rng_int(&w->rng, 5) == 0) {
            write_kind(w, 1);
            continue;
        }
        write_letter(w, from);
        if (rng_int(&w->rng, 3)) continue;
        both(w, "-");
        write_letter(w, to);
    }
    both(w, "]");
    strbuf_puts(&w->theirs, ")");
}

static void write_choice(Writer *w, int depth);

static void write_term(Writer *w, int depth)
{
    static const char *const quantifiers[] = {"*",   "+",  "?",  "{2}", "{0,2}", "{1,}",
                                              "{0}", "*?", "+?", "??",  "{1,3}?"};
    int kind = rng_int(&w->rng, 16);
    if (kind == 0) {
        both(w, rng_int(&w->rng, 2) ? "^" : "$");
        return;
    }
    if (kind == 1) {
        strbuf_puts(&w->ours, ".");
        strbuf_puts(&w->theirs, "[^\\n\\r\\x{2028}\\x{2029}]");
    } else if (kind == 2) {
        write_kind(w, 0);
    } else if (kind <= 5) {
        write_class(w);
    } else if (kind <= 9 && depth) {
        both(w, rng_int(&w->rng, 2) ? "(" : "(?:");
        write_choice(w, depth - 1);
        both(w, ")");
    } else {
        write_letter(w, rng_int(&w->rng, LETTERS));
    }
    if (rng_int(&w->rng, 3) == 0)
        both(w, quantifiers[rng_int(&w->rng, sizeof quantifiers / sizeof *quantifiers)]);
}

static void write_choice(Writer *w, int depth)
{
    for (int n = rng_int(&w->rng, 3); n >= 0; n--) {
        for (int terms = rng_int(&w->rng, 4); terms > 0; terms--)
            write_term(w, depth);
        if (n) both(w, "|");
    }
}

/* Anchored at both ends more often than not, or nearly all strings would match. */
static void write_pattern(Writer *w)
{
    int anchored = rng_int(&w->rng, 4);
    strbuf_clear(&w->ours);
    strbuf_clear(&w->theirs);
    if (anchored) both(w, "^(?:");
    write_choice(w, DEPTH);
    if (anchored) both(w, ")$");
}

static size_t random_string(Rng *rng, char *out)
{
    size_t len = 0;
    for (int n = rng_int(rng, MAX_STRING); n > 0; n--) {
        const char *c = letters[rng_int(rng, LETTERS)];
        memcpy(out + len, c, strlen(c));
        len += strlen(c);
    }
    return len;
}

static pcre2_code *compile_theirs(const StrBuf *pattern)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)strbuf_str(pattern), pattern->len,
                      PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALLOW_EMPTY_CLASS, &code, &at, NULL);
    if (!re) fail_msg("PCRE2 %d at %zu of '%s'", code, (size_t)at, strbuf_str(pattern));
    return re;
}

static int characters(const char *text, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++)
        n += (text[i] & 0xc0) != 0x80;
    return n;
}

/* Of STRINGS strings how many match and are long enough. d NULL: none may. */
static int compare(Writer *w, const Dfa *d, int least)
{
    pcre2_code *re = compile_theirs(&w->theirs);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    int n_matches = 0;
    for (int i = 0; i < STRINGS; i++) {
        char text[4 * MAX_STRING];
        size_t len = random_string(&w->rng, text);
        int rc = pcre2_match(re, (PCRE2_SPTR)text, len, 0, 0, match, NULL);
        int theirs = rc >= 0 && characters(text, len) >= least,
            ours = d && dfa_matches(d, text, len);
        if (rc == PCRE2_ERROR_MATCHLIMIT) continue;
        assert_true(rc >= 0 || rc == PCRE2_ERROR_NOMATCH);
        if (ours != theirs)
            fail_msg("'%s' of %d (PCRE2 '%s') %s '%.*s', seed %llu", strbuf_str(&w->ours), least,
                     strbuf_str(&w->theirs), ours ? "matches" : "does not match", (int)len, text,
                     (unsigned long long)SEED);
        n_matches += ours;
    }
    pcre2_match_data_free(match);
    pcre2_code_free(re);
    return n_matches;
}

static void matches_as_pcre2_does(void **state)
{
    Writer w = {.rng = rng_new(SEED)};
    int n_none = 0, n_some = 0, n_large = 0, n_short = 0;
    (void)state;
    for (int i = 0; i < PATTERNS; i++) {
        Dfa d;
        Error err = {0};
        write_pattern(&w);
        int least = i % 2 ? rng_int(&w.rng, MAX_STRING - 1) : 0;
        int rc = pattern_compile(&d, strbuf_str(&w.ours), w.ours.len, &err);
        if (!rc && least) {
            rc = dfa_at_least(&d, least, &err);
            n_short += rc != 0;
            if (rc) dfa_free(&d);
        }
        if (err.code == ERR_LIMIT) {
            n_large++;
            continue;
        }
        if (rc && strcmp(err.msg, "no string matches the pattern") != 0)
            fail_msg("'%s': %s", strbuf_str(&w.ours), err.msg);
        int n = compare(&w, rc ? NULL : &d, least);
        n_some += n > 0 && n < STRINGS;
        n_none += rc != 0;
        const char *fault = rc ? NULL : dfa_fault(&d, MINIMAL_UP_TO);
        if (fault) fail_msg("'%s': %s", strbuf_str(&w.ours), fault);
        dfa_free(&d);
    }
    printf("%d patterns: %d match some of their strings, %d nothing at all, %d are too large\n",
           PATTERNS, n_some, n_none, n_large);
    assert_true(n_some > PATTERNS / 4); /* or the comparison says little */
    assert_true(n_none > n_short && n_short > 0);
    assert_true(n_large < PATTERNS / 100);
    strbuf_free(&w.ours);
    strbuf_free(&w.theirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_as_pcre2_does)};
    return cmocka_run_group_tests_name("pattern_random", tests, NULL, NULL);
}
