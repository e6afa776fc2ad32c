/* test_stop.c: where answers end: the matcher in its watch, the cutter, and that they agree. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/textdata.h"
#include "text/detokenizer.h"
#include "text/reply_watch.h"
#include "text/stop.h"
#include "text/utf8.h"

static Tokenizer *demo;
static int32_t token_of[256];
static Error err;

static int open_demo(void **state)
{
    (void)state;
    demo = open_demo_tokenizer(token_of);
    return demo ? 0 : -1;
}

static int close_demo(void **state)
{
    (void)state;
    tokenizer_close(demo);
    return 0;
}

/* The watch over an answer that is all content. */
static ReplyWatch *open_watch(const char *const *stops, int n)
{
    ReplyOptions o = {.scan = {.tok = demo}, .stop = stops, .n_stop = n};
    ReplyWatch *watch = reply_watch_open(&o, &err);
    assert_non_null(watch);
    return watch;
}

/* Verdicts over the bytes of text, each its own token: '.' go, 'h' held, 'S' stop. */
static void expect_verdicts(const char *const *stops, int n, const char *text, const char *want)
{
    ReplyWatch *watch = open_watch(stops, n);
    Watcher w = reply_watch_watcher(watch);
    for (size_t i = 0; text[i]; i++) {
        WatchVerdict v = w.token(w.self, token_of[(unsigned char)text[i]]);
        char got = ".hS"[v == WATCH_STOP ? 2 : v == WATCH_HELD];
        if (got != want[i]) fail_msg("byte %zu of '%s' gives %c, not %c", i, text, got, want[i]);
    }
    reply_watch_close(watch);
}

static void sees_stops_across_tokens(void **state)
{
    static const char *const end[] = {"END"}, *const aab[] = {"aab"}, *const two[] = {"abcd", "bc"};
    static const char *const smile[] = {"\xF0\x9F\x98\x80!"}, *const abac[] = {"abac"};
    static const char *const aabaaac[] = {"aabaaac"};
    (void)state;
    expect_verdicts(end, 1, "the EN END", "....hh.hhS");
    expect_verdicts(end, 1, "EENDx", "hhhSS"); /* after a stop it stays stopped */
    expect_verdicts(aab, 1, "aaaab", "hhhhS");
    expect_verdicts(abac, 1, "ababac", "hhhhhS");
    expect_verdicts(aabaaac, 1, "aabaaabaaac", "hhhhhhhhhhS"); /* falls back by two borders */
    expect_verdicts(two, 2, "abcd", "hhSS");                   /* the first to be complete */
    /* A character counts once it is whole; half of one is not held on our account. */
    expect_verdicts(smile, 1, "\xF0\x9F\x98\x80!", "...hS");
    expect_verdicts(smile, 1, "\xF0\x9F\x98!", "....");
    expect_verdicts(end, 0, "anything", "........");
}

static void sees_stops_inside_tokens(void **state)
{
    static const char *const stops[] = {"ssist"};
    (void)state;
    TokenList list = {0};
    assert_int_equal(tokenizer_encode(demo, "a<|im_end|>ssistant", 19, &list, &err), 0);
    assert_true(list.n < 9); /* larger than letters */
    ReplyWatch *watch = open_watch(stops, 1);
    Watcher w = reply_watch_watcher(watch);
    int stopped = 0;
    for (int i = 0; i < list.n; i++)
        stopped |= w.token(w.self, list.id[i]) == WATCH_STOP;
    assert_true(stopped);
    reply_watch_close(watch);

    /* Special tokens have no text, and neither have ids that are not there. */
    static const char *const special[] = {"<|im_end|>"};
    watch = open_watch(special, 1);
    w = reply_watch_watcher(watch);
    assert_int_equal(w.token(w.self, tokenizer_added_id(demo, "<|im_end|>")), WATCH_GO);
    assert_int_equal(w.token(w.self, -3), WATCH_GO);
    assert_int_equal(w.token(w.self, 1 << 30), WATCH_GO);
    reply_watch_close(watch);
    token_list_free(&list);
}

static void refuses_bad_stops(void **state)
{
    char longest[MAX_STOP_BYTES + 2];
    const char *many[MAX_STOP_STRINGS + 1], *one = longest;
    (void)state;
    for (int i = 0; i <= MAX_STOP_STRINGS; i++)
        many[i] = "x";
    assert_null(stop_matcher_open(many, MAX_STOP_STRINGS + 1, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    assert_null(stop_matcher_open(many, -1, &err));
    StopMatcher *m = stop_matcher_open(many, MAX_STOP_STRINGS, &err);
    assert_non_null(m);
    stop_matcher_close(m);

    memset(longest, 'y', sizeof longest);
    longest[MAX_STOP_BYTES + 1] = 0;
    assert_null(stop_matcher_open(&one, 1, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    longest[MAX_STOP_BYTES] = 0;
    ReplyWatch *watch = open_watch(&one, 1);
    Watcher w = reply_watch_watcher(watch);
    for (int i = 1; i < MAX_STOP_BYTES; i++)
        assert_int_equal(w.token(w.self, token_of['y']), WATCH_HELD);
    assert_int_equal(w.token(w.self, token_of['y']), WATCH_STOP);
    reply_watch_close(watch);

    one = "";
    assert_null(stop_matcher_open(&one, 1, &err));
    assert_int_equal(err.code, ERR_INPUT);
    one = "a\xC3";
    assert_null(stop_matcher_open(&one, 1, &err));
    assert_int_equal(err.code, ERR_INPUT);
    stop_matcher_close(NULL);
    stop_cutter_close(NULL);
}

/* Pushes text in pieces of `step` bytes; returns whether it stopped. */
static int cut(const char *const *stops, int n, const char *text, size_t step, int include_stop,
               StrBuf *out)
{
    StopCutter *c = stop_cutter_open(stops, n);
    size_t len = strlen(text);
    int stopped = 0;
    for (size_t i = 0; i < len; i += step) {
        size_t k = len - i < step ? len - i : step;
        int now = stop_cutter_push(c, text + i, k, include_stop, out);
        assert_true(now >= stopped);
        stopped = now;
    }
    stop_cutter_break(c, out);
    stop_cutter_break(c, out);
    stop_cutter_close(c);
    return stopped;
}

static void breaks_between_texts(void **state)
{
    static const char *const stops[] = {"b", "END"};
    StrBuf out = {0};
    (void)state;
    StopMatcher *m = stop_matcher_open(stops, 2, &err);
    assert_int_equal(stop_matcher_text(m, "xEN", 3), 0);
    assert_int_equal(stop_matcher_held(m), 1);
    stop_matcher_break(m);
    assert_int_equal(stop_matcher_held(m), 0);
    assert_int_equal(stop_matcher_text(m, "D E", 3), 0);
    assert_int_equal(stop_matcher_text(m, "ND", 2), 1);
    assert_int_equal(stop_matcher_text(m, "x", 1), 1);
    stop_matcher_close(m);

    StopCutter *c = stop_cutter_open(stops, 2);
    stop_cutter_push(c, "xEN", 3, 0, &out);
    assert_string_equal(out.data, "x");
    stop_cutter_break(c, &out);
    assert_string_equal(out.data, "xEN");
    assert_int_equal(stop_cutter_push(c, "D EN", 4, 0, &out), 0);
    assert_int_equal(stop_cutter_met(c), -1);
    assert_int_equal(stop_cutter_push(c, "DE", 2, 0, &out), 1);
    stop_cutter_break(c, &out);
    assert_string_equal(out.data, "xEND ");
    assert_int_equal(stop_cutter_met(c), 1);
    stop_cutter_close(c);
    strbuf_free(&out);
}

/* Of those that end together the longest counts. */
static void says_which_was_met(void **state)
{
    static const char *const stops[] = {"b", "ab", "abc", "b"};
    StrBuf out = {0};
    (void)state;
    for (int n = 1; n <= 4; n++) {
        StopCutter *c = stop_cutter_open(stops, n);
        stop_cutter_push(c, "xabc", 4, n & 1, &out);
        assert_int_equal(stop_cutter_met(c), n > 1);
        stop_cutter_close(c);
    }
    strbuf_free(&out);
}

static void cuts_before_the_stop(void **state)
{
    static const struct {
        const char *stops[3];
        const char *text, *without, *with;
    } rows[] = {
        {{"END"}, "the END.", "the ", "the END"},
        {{"END"}, "the EN", "the EN", NULL},
        {{"END"}, "EEEND", "EE", "EEEND"},
        {{"aab"}, "aaaab", "aa", "aaaab"},
        {{"b", "abc"}, "xabc", "xa", "xab"},  /* the first to be complete wins */
        {{"b", "ab"}, "xab", "x", "xab"},     /* of those that end together the longest */
        {{"abcd", "bc"}, "abcd", "a", "abc"}, /* held for one, cut by the other */
        {{"abcx", "bcd"}, "zabcd", "za", "zabcd"},
        {{"\n\n", "###"}, "a\n#\n##\n\n", "a\n#\n##", "a\n#\n##\n\n"},
        {{"\xE4\xBD\xA0"}, "\xE4\xBD\xA1\xE4\xBD\xA0", "\xE4\xBD\xA1", "\xE4\xBD\xA1\xE4\xBD\xA0"},
        {{NULL}, "anything", "anything", NULL},
        {{"x"}, "", "", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int n = 0;
        while (n < 3 && rows[i].stops[n])
            n++;
        for (size_t step = 1; step < 12; step++) {
            for (int include = 0; include < 2; include++) {
                const char *want = include && rows[i].with ? rows[i].with : rows[i].without;
                StrBuf out = {0};
                int stopped = cut(rows[i].stops, n, rows[i].text, step, include, &out);
                assert_int_equal(stopped, rows[i].with != NULL);
                if (strcmp(strbuf_str(&out), want) != 0)
                    fail_msg("row %zu by %zu gives '%s'", i, step, strbuf_str(&out));
                strbuf_free(&out);
            }
        }
    }
}

/*
 * Offset of the first stop string to be complete in text and where it ends, by looking everywhere.
 */
static int find_stop(const char *const *stops, int n, const char *text, size_t len, size_t *start,
                     size_t *end)
{
    for (*end = 1; *end <= len; ++*end) {
        *start = len + 1;
        for (int k = 0; k < n; k++) {
            size_t m = strlen(stops[k]);
            if (m <= *end && !memcmp(text + *end - m, stops[k], m) && *end - m < *start)
                *start = *end - m;
        }
        if (*start <= len) return 1;
    }
    return 0;
}

/* Random characters of a small alphabet, some of several bytes, one that stands for bad bytes. */
static void random_text(uint64_t *seed, int max, StrBuf *out)
{
    static const char *const alphabet[] = {"a",
                                           "a",
                                           "b",
                                           "b",
                                           "\xC3\xA9",
                                           "\xC3\xA8",
                                           "\xE4\xBD\xA0",
                                           "\xEF\xBF\xBD",
                                           "\xF0\x9F\x98\x80"};
    int n = 1 + (int)(random_next(seed) % (uint64_t)max);
    strbuf_clear(out);
    for (int i = 0; i < n; i++)
        strbuf_puts(out, alphabet[random_next(seed) % 9]);
}

/* Bytes that make up such characters, mostly in order, so that some are bad. */
static int random_tokens(uint64_t *seed, int32_t *token, int max)
{
    int n = 0;
    StrBuf text = {0};
    while (n < max - 16) {
        random_text(seed, 4, &text);
        TokenList list = {0};
        if (random_next(seed) % 3) tokenizer_encode(demo, text.data, text.len, &list, &err);
        for (size_t i = 0; !list.n && i < text.len; i++)
            if (random_next(seed) % 12) token[n++] = token_of[(unsigned char)text.data[i]];
        for (int i = 0; i < list.n; i++)
            token[n++] = list.id[i];
        if (random_next(seed) % 8 == 0) token[n++] = tokenizer_added_id(demo, "<|im_end|>");
        token_list_free(&list);
    }
    strbuf_free(&text);
    return n;
}

typedef struct {
    StrBuf all, sent; /* the text so far, and what the cutter let out */
    int stopped;      /* by the cutter */
} Answer;

static void push_token(Answer *a, Detokenizer *d, StopCutter *c, int32_t token, int include_stop)
{
    StrBuf piece = {0};
    detokenizer_push(d, token, &piece);
    strbuf_add(&a->all, strbuf_str(&piece), piece.len);
    a->stopped = stop_cutter_push(c, strbuf_str(&piece), piece.len, include_stop, &a->sent);
    strbuf_free(&piece);
}

/* One random answer through watch and cutter, and what plain searching says. */
static int check_agreement(uint64_t *seed, const char *const *stops, int n)
{
    int32_t token[96];
    int n_tokens = random_tokens(seed, token, 96), include_stop = random_next(seed) % 2 == 0;
    Detokenizer d;
    Answer a = {{0}, {0}, 0};
    size_t start = 0, end = 0;
    detokenizer_init(&d, demo, 0);
    ReplyWatch *watch = open_watch(stops, n);
    StopCutter *c = stop_cutter_open(stops, n);
    Watcher w = reply_watch_watcher(watch);
    for (int i = 0; i < n_tokens && !a.stopped; i++) {
        unsigned long before = mem_count();
        WatchVerdict v = w.token(w.self, token[i]);
        assert_int_equal(mem_count(), before);
        push_token(&a, &d, c, token[i], include_stop);
        assert_int_equal(v == WATCH_STOP, a.stopped);
        assert_int_equal(find_stop(stops, n, strbuf_str(&a.all), a.all.len, &start, &end),
                         a.stopped);
        if (!a.stopped) assert_int_equal(v == WATCH_GO, a.sent.len == a.all.len);
    }
    stop_cutter_break(c, &a.sent);
    size_t want = !a.stopped ? a.all.len : include_stop ? end : start;
    assert_int_equal(a.sent.len, want);
    if (want) assert_memory_equal(a.sent.data, a.all.data, want);
    assert_int_equal(utf8_check(strbuf_str(&a.sent), a.sent.len), a.sent.len);
    strbuf_free(&a.all);
    strbuf_free(&a.sent);
    reply_watch_close(watch);
    stop_cutter_close(c);
    return a.stopped;
}

static void watch_and_cutter_agree(void **state)
{
    uint64_t seed = 20240607;
    int n_stopped = 0;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        StrBuf text[3] = {{0}, {0}, {0}};
        const char *stops[3];
        int n = 1 + (int)(random_next(&seed) % 3);
        for (int i = 0; i < n; i++) {
            random_text(&seed, 6, &text[i]);
            stops[i] = text[i].data;
        }
        n_stopped += check_agreement(&seed, stops, n);
        for (int i = 0; i < 3; i++)
            strbuf_free(&text[i]);
    }
    assert_in_range(n_stopped, 500, 2900); /* both ends are met often */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sees_stops_across_tokens), cmocka_unit_test(sees_stops_inside_tokens),
        cmocka_unit_test(refuses_bad_stops),        cmocka_unit_test(cuts_before_the_stop),
        cmocka_unit_test(watch_and_cutter_agree),   cmocka_unit_test(breaks_between_texts),
        cmocka_unit_test(says_which_was_met),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
