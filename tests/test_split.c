/* test_split.c: expressions that split a text, as Oniguruma reads them. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/strbuf.h"
#include "text/split.h"
#include "text/utf8.h"

static Error err;

/* The pieces of "x", a character and "y": two where x and the character are a match. */
static size_t count_pieces(SplitRun *run, uint32_t c)
{
    char text[6] = "x";
    size_t len = 1 + (size_t)utf8_put(c, text + 1), budget = SIZE_MAX, n = 0, piece_len;
    const char *piece;
    text[len++] = 'y';
    split_begin(run, text, len);
    while (split_next(run, &budget, &piece, &piece_len, &err) == SPLIT_PIECE)
        n++;
    return n;
}

/* Each of n characters is, or is not, taken behind an x. */
static void check_taken(SplitRun *run, const char *regex, const uint32_t *c, size_t n, int want)
{
    for (size_t i = 0; i < n; i++)
        if (count_pieces(run, c[i]) != 1 + (size_t)want) fail_msg("%s, U+%04X", regex, c[i]);
}

/* \s and \S are Unicode's White_Space wherever they stand. */
static void knows_white_space(void **state)
{
    static const uint32_t spaces[] = {9,      13,     0x20,   0x85,   0xa0,   0x1680, 0x2000,
                                      0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000},
                          others[] = {0,      8,      0xe,    0x1f,   0x21,   0x84,    0x86,
                                      0x9f,   0xa1,   0x167f, 0x1681, 0x180e, 0x1fff,  0x200b,
                                      0x2027, 0x202a, 0x202e, 0x2030, 0x205e, 0x2060,  0x2fff,
                                      0x3001, 0xd7ff, 0xe000, '5',    '[',    0x10ffff};
    static const struct {
        const char *regex;
        int takes_space, takes_other;
    } rows[] = {
        {"x\\s", 1, 0},
        {"x\\S", 0, 1},
        {"x[\\s]", 1, 0},
        {"x[^\\s]", 0, 1},
        {"x[\\S]", 0, 1},
        {"x[^\\S]", 1, 0},
        {"x[]\\s]", 1, 0},
        {"x[^]\\S]", 1, 0},
        {"x[\\]\\s]", 1, 0},
        {"x[\\s\\S]", 1, 1},
        {"x[k\\s-]", 1, 0},
        {"x[-\\s]", 1, 0},
        {"x[[:upper:]\\s]", 1, 0},
        {"x[[:^space:]\\S]\\s?", 0, 1},
        {"[x]\\s", 1, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Splitter *s = splitter_open(&rows[i].regex, 1, &err);
        if (!s) fail_msg("%s: %s", rows[i].regex, err.msg);
        SplitRun *run = split_open(s);
        check_taken(run, rows[i].regex, spaces, sizeof spaces / sizeof *spaces,
                    rows[i].takes_space);
        check_taken(run, rows[i].regex, others, sizeof others / sizeof *others,
                    rows[i].takes_other);
        split_close(run);
        splitter_close(s);
    }
}

/* An expression, a text, and its pieces with a | between them. */
static void check_pieces(const char *const row[3])
{
    Splitter *s = splitter_open(row, 1, &err);
    if (!s) fail_msg("%s: %s", row[0], err.msg);
    SplitRun *run = split_open(s);
    StrBuf all = {0};
    size_t budget = SIZE_MAX, len;
    const char *piece;
    split_begin(run, row[1], strlen(row[1]));
    while (split_next(run, &budget, &piece, &len, &err) == SPLIT_PIECE) {
        if (all.len) strbuf_puts(&all, "|");
        strbuf_add(&all, piece, len);
    }
    if (strcmp(strbuf_str(&all), row[2]) != 0)
        fail_msg("%s: '%s', not '%s'", row[0], strbuf_str(&all), row[2]);
    strbuf_free(&all);
    split_close(run);
    splitter_close(s);
}

/*
 * What Oniguruma and PCRE2 read otherwise. The pieces are those of the Split of the Python package
 * `tokenizers`.
 */
static void reads_oniguruma(void **state)
{
    static const char *const rows[][3] = {
        {"\\s+$|\\S+|\\s+", "a  \n b \n", "a|  |\n |b| \n"},
        {"$\\n|.", "a\n\nb", "a|\n|\n|b"},
        {"(?<=^)b+|.|\\n", "bb\nbb\n", "bb|\n|bb|\n"},
        {"^\\n|.|\\n+", "\n\na\n\n", "\n|\n|a|\n\n"},
        {"(?m:a.)|.|\\n", "a\nab", "a\n|ab"},
        {"(?i-m:A.)|.|\\n", "a\nab", "a|\n|ab"},
        {"[$^]+|[^$^]+", "a$^b", "a|$^|b"},
        {"\\$|\\^|\\w+|\\s", "a$ ^b", "a|$| |^|b"},
        {"\\h+|\\H+", "fg 0G\tA", "f|g |0|G\t|A"},
        {"[\\hg]+|[^\\hg]+", "fgh-A", "fg|h-|A"},
        {"[x\\H]+|.", "xyab", "xy|a|b"},
        {"\\v|[^\\v]+", "a\n\x0b\r", "a\n|\x0b|\r"},
        {"\\w+|\\W", "a\u0301\u00b2 \u0661_\u2460", "a\u0301\u00b2| |\u0661_|\u2460"},
        {"[\\w]+|[^\\w]", "a\u0301\u00b2 \u24b6", "a\u0301|\u00b2| |\u24b6"},
        {".\\b.|.", "a b\u0301c-", "a |b|\u0301|c-"},
        {"\\B.|.\\b", "ab\u0301", "a|b|\u0301"},
        {"a{,2}b|.", "aaab", "a|aab"},
        {"b|(?i)(?m)b.|c", "bB\nC", "b|B\n|C"},
        {"a(?:(?i)b|c)|.", "aCac", "aC|ac"},
        {"\\x41{2}|\\x{e9}|.", "AA\u00e9A", "AA|\u00e9|A"},
        {"[\\x{e8}-\\x{ea}\\x42\\b]+|.", "A\u00e9B", "A|\u00e9B"},
        {"\\Aa|a\\z|\\p{^Lu}|.", "aba", "a|b|a"},
        {"\\p{N}{1,3}+|.", "1234a", "1234|a"},
        {"a{2}?b|.", "aab-b-ab", "aab|-|b|-|a|b"},
        {"a{1,2}?b|a{2}+|.", "aabaaaa", "aab|aaaa"},
        {"a{2}{2}|\\w{2,}+|.", "aaaaabc-a", "aaaa|abc|-|a"},
        {"\u00e9{2}?e|[ab]{2}?c|.", "\u00e9\u00e9eabcec", "\u00e9\u00e9e|abc|e|c"},
        {"a{,3}+b|\\x61{2}?-|.", "aaaabaa-", "aaaab|aa-"},
        {"a++a|b?+b|.", "aabbb", "a|a|bb|b"},
        {"a{ 1,2 }|a{,}|.", "aa{ 1,2 }a{,}", "a|a{ 1,2 }|a{,}"},
        {"[[:punct:]]+|.", "a$\u20ac!\u2190a", "a|$\u20ac!\u2190|a"},
        {"[[:^punct:]]+|.", "a1 \u0301$\u20ac", "a1 \u0301|$|\u20ac"},
        {"[[:word:]-]+|.", "a\u0301-\u00b2", "a\u0301-|\u00b2"},
        {"[[:upper:]]+|.", "A\u2160\u24b6a\u01c5", "A\u2160\u24b6|a|\u01c5"},
        {"[^[:blank:]]+|.", "a\u180e\u3000\n\ta", "a\u180e|\u3000|\n|\t|a"},
        {"[[:space:]]+|.", "a\u180e\u3000\n\ta", "a|\u180e|\u3000\n\t|a"},
        {"[[:graph:]]+|.", "a\ue000\u061c \u3000", "a\ue000\u061c| |\u3000"},
        {"[[:^graph:]]+|.", "a\ue000\u061c \u3000", "a|\ue000|\u061c| \u3000"},
        {"[[:print:]]+|.", "\ue000\u061c\u3000\u2028\t", "\ue000\u061c\u3000|\u2028|\t"},
        {"[[:^print:]]+|.", "\ue000\u061c\u3000\u2028\t", "\ue000|\u061c|\u3000|\u2028\t"},
        {"[[:digit:][:^ascii:]]+|.", "a1\u0661\u00e9-", "a|1\u0661\u00e9|-"},
        {"[[:xdigit:]]+|[^[:cntrl:]]+|\\s", "afg\n", "af|g|\n"},
        {"\\p{Han}+|.", "\u4e00\u3001\u3007", "\u4e00|\u3001|\u3007"},
        {"\\P{Han}+|.", "\u4e00\u3001a", "\u4e00|\u3001a"},
        {"\\p{^Han}+|.", "\u4e00\u3001a", "\u4e00|\u3001a"},
        {"[\\p{Katakana}\\p{Hiragana}]+|.", "\u30a2\u3042\u30fc", "\u30a2\u3042|\u30fc"},
        {"[^\\p{Latin}]+|.", "a\u0363\u00b7", "a|\u0363\u00b7"},
        {"\\P{^Han}+|.", "\u4e00\u3001\u3007", "\u4e00|\u3001|\u3007"},
        {"(?i:'s|'t|[^a]\\p{Lu})|ss|[\\p{Lu}]+|.", "'\u017fssABa", "'\u017f|ss|AB|a"},
        {"((?i)a(b)c)[\\p{Lu}]|.", "aBCDabcd", "aBCD|a|b|c|d"},
        {"(?-i:[\\p{Lu}]|st)|.", "Ast\ufb06", "A|st|\ufb06"},
        {"(i-a[\\p{Lu}])|(?=i[\\p{L}]st).|.", "i-aAisti", "i-aA|i|s|t|i"},
        {"(?=ia[\\p{L}]).|..", "iaaia", "i|aa|ia"},
        {"(?>a|ab)(?=b)(?<!b)|.", "aba", "a|b|a"},
        {"a*", "bcaad", "b|c|aa|d"},
    };
    static const char *const refused[][2] = {
        {"[a-z&&[^b]]", "&& in a class"},
        {"[a[bc]]", "[ in a class is not supported (byte 2)"},
        {"[\\W]", "\\W in a class"},
        {"\\Qa\\E", "\\Q is not supported (byte 0)"},
        {"a\\E", "\\E is not supported (byte 1)"},
        {"\\G.", "\\G"},
        {"\\X", "\\X"},
        {"\\R", "\\R"},
        {"\\V", "\\V"},
        {"a\\Kb", "\\K"},
        {"\\cA", "\\c"},
        {"(a)\\1", "\\1"},
        {"\\012", "\\0"},
        {"(a)\\g1", "\\g"},
        {"a\\p", "\\p is not"},
        {"[\\P", "\\P in a class"},
        {"(?", "(? is not supported"},
        {"\\pL", "\\p is not supported"},
        {"[\\PL]", "\\P in a class"},
        {"\\p{L&}", "\\p"},
        {"\\xe9", "\\x is not supported"},
        {"[\\x80-\\xff]", "\\x in a class is not supported (byte 1)"},
        {"\\x", "\\x is not supported"},
        {"a(?i)b|c", "(?i) amid a branch is not supported (byte 1)"},
        {"(?i)a(?-i)b", "(?-i) amid a branch"},
        {"(ab){2}?", "? behind the {} of a group"},
        {"(?:ab){1,2}+", "+ behind the {} of a group is not supported (byte 11)"},
        {"[a[:alpha:]]", "[:alpha:] is not supported (byte 2)"},
        {"[[:^alnum:]]", "[:^alnum:]"},
        {"[[:lower:]]", "[:lower:]"},
        {"[[:^upper:]]", "[:^upper:]"},
        {"\\p{Alphabetic}", "unknown property"},
        {"(?i)[\\p{Lu}]", "\\p{Lu} in a class under (?i) is not supported (byte 5)"},
        {"(?i:(?:a)[^\\P{L}])", "\\P{L} in a class under (?i)"},
        {"(?m-i:a)(?:(?mi)[[:upper:]])", "[:upper:] in a class under (?i)"},
        {"(?i)[\\H]", "\\H in a class under (?i)"},
        {"(?i:(a)'Ss)", "Ss under (?i)"},
        {"(?i)fire", "fi under (?i)"},
        {"(?x)a b", "(?x is not supported"},
        {"(?#a)b", "(?# is not supported"},
        {"(?<n>a)", "(?< is not supported"},
        {"(?\u00e9)", "(? is not supported"},
        {"(?~a)", "(?~ is not supported"},
        {"(a)(?(1)b|c)", "(?( is not supported"},
        {"(a(?1)?b)", "(?1 is not supported"},
        {"a(*SKIP)b", "(*S is not supported"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_pieces(rows[i]);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_null(splitter_open(&refused[i][0], 1, &err));
        if (!strstr(err.msg, refused[i][1])) fail_msg("%s: %s", refused[i][0], err.msg);
    }
}

/* Those of vocabularies that are published, likewise. */
static void reads_published_expressions(void **state)
{
    static const char *const rows[][3] = {
        {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++"
         "[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
         "I'LL 12345 \u00e9t\u00e9!\n\n  x ", "I|'LL| |12345| \u00e9t\u00e9|!\n\n| | x| "},
        {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
         "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
         "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|"
         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         "aBC'S heLLo 12345 ://\n  x ", "a|BC'S| he|LLo| |123|45| ://\n| | x| "},
        {"[!\"#$%&'()*+,\\-./"
         ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
         " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         "_ab \u00e9\u0301 1\u20ac\n  x", "_ab| \u00e9\u0301| |1|\u20ac\n| | x"},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         "we'RE 1234 a\u0301!\n \n b", "we|'RE| |123|4| a|\u0301!\n| \n| b"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_pieces(rows[i]);
}

/* What an expression may try is bounded for all of a text: no match of this one takes too long. */
static void ends_what_takes_long(void **state)
{
    static const char *const regex = "(?:a|a)*b|.", *const few = "aaaaac";
    enum { N = 8, EACH = 17 };
    char many[N * EACH + 1] = "";
    (void)state;
    for (int i = 0; i < N; i++)
        memcpy(many + i * EACH, "aaaaaaaaaaaaaaaac", EACH);
    Splitter *s = splitter_open(&regex, 1, &err);
    SplitRun *run = split_open(s);
    for (int is_long = 0; is_long < 2; is_long++) {
        const char *text = is_long ? many : few, *piece;
        size_t budget = SIZE_MAX, len;
        SplitResult rc;
        split_begin(run, text, strlen(text));
        while ((rc = split_next(run, &budget, &piece, &len, &err)) == SPLIT_PIECE)
            ;
        assert_int_equal(rc, is_long ? SPLIT_FAILED : SPLIT_END);
    }
    assert_int_equal(err.code, ERR_LIMIT);
    split_close(run);
    splitter_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_white_space),
        cmocka_unit_test(reads_oniguruma),
        cmocka_unit_test(reads_published_expressions),
        cmocka_unit_test(ends_what_takes_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
