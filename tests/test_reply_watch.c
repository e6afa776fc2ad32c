/* test_reply_watch.c: the engine's watcher ends an answer where the reply does, over any tokens. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "tests/reply_case.h"
#include "tests/textdata.h"
#include "text/reply_watch.h"

static Tokenizer *demo;
static ReplyTools *tools;
static int32_t token_of[256];
static Error err;
static unsigned long long round_seed; /* for messages: where a round began */

static int open_demo(void **state)
{
    (void)state;
    tools = case_tools();
    demo = open_demo_tokenizer(token_of);
    return demo ? 0 : -1;
}

static int close_demo(void **state)
{
    (void)state;
    tokenizer_close(demo);
    reply_tools_close(tools);
    return 0;
}

#define WHOLE_CALL "<tool_call>\n<function=now>\n</function>\n</tool_call>"

/* What outputs are made of, good and bad. */
static const char *const fragments[] = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nPa",
    "<function=write_file>\n",
    "<function=",
    "<parameter=path>\n",
    "<parameter=content>",
    "<parameter=",
    ">",
    "\n</parameter>\n",
    "</parameter>",
    "</function>",
    "{\"name\": \"now\", \"arguments\": {\"a\": ",
    "{\"arguments\": {}, ",
    "\"name\": \"x\"",
    "\"a\\\"",
    "\"}",
    "}}\n",
    "\n",
    "\n\n",
    " ",
    "<tool",
    "EN",
    "D",
    "text \xC3\xA9",
    "\xF0\x9F\x98\x80",
    "\xE4\xBD",
    "null",
    "[1, 2]",
};
enum { N_FRAGMENTS = sizeof fragments / sizeof *fragments, MAX_RANDOM = 600 };

/* A fragment as the tokenizer has it, or byte by byte; tags then are spelled, not ids. */
static int add_fragment(uint64_t *seed, const char *text, int32_t *token, int n)
{
    TokenList list = {0};
    size_t len = strlen(text);
    if (random_next(seed) % 4) tokenizer_encode(demo, text, len, &list, &err);
    for (size_t i = 0; !list.n && i < len; i++)
        token[n++] = token_of[(unsigned char)text[i]];
    for (int i = 0; i < list.n; i++)
        token[n++] = list.id[i];
    token_list_free(&list);
    return n;
}

static int random_answer(uint64_t *seed, int32_t *token)
{
    int n = 0, n_parts = 1 + (int)(random_next(seed) % 16);
    for (int i = 0; i < n_parts; i++) {
        const char *text = fragments[random_next(seed) % N_FRAGMENTS];
        if (random_next(seed) % 10 == 0) text = WHOLE_CALL;
        n = add_fragment(seed, text, token, n);
        assert_true(n < MAX_RANDOM);
    }
    return n;
}

static ReplyOptions random_options(uint64_t *seed, const char **stop)
{
    static const char *const stops[] = {
        "END", "\n\n", "</think>", "\xEF\xBF\xBD", "\xC3\xA9", "call", " t", "<", "}"};
    int bits = (int)(random_next(seed) >> 40);
    ReplyOptions o = {
        .scan = {.tok = demo,
                 .tools = bits & 3 ? tools : NULL,
                 .keep_special = bits >> 2 & 1,
                 .starts_in_think = bits >> 3 & 1,
                 .parse_reasoning = (bits >> 4 & 3) > 0},
        .single_call = bits >> 6 & 1,
        .stop = stop,
        .n_stop = bits >> 8 & 3,
        .include_stop = bits >> 10 & 1,
        .n_unwatched = bits >> 11 & 7,
    };
    for (int i = 0; i < o.n_stop; i++)
        stop[i] = stops[random_next(seed) % (sizeof stops / sizeof *stops)];
    return o;
}

/* The tag that a token is, or -1. */
static int token_tag(int32_t token)
{
    for (int i = 0; i < N_SCAN_TAGS; i++)
        if (tokenizer_added_id(demo, scan_tag_text((ScanTag)i)) == token) return i;
    return -1;
}

/* The tokens as one output in the notation of reply_case.h. */
static void join_tokens(const ReplyOptions *o, const int32_t *token, int n, StrBuf *out,
                        uint8_t *cut)
{
    int parses = o->scan.tools || o->scan.parse_reasoning || o->scan.starts_in_think;
    memset(cut, 0, 8 * MAX_RANDOM);
    for (int i = 0; i < n; i++) {
        size_t len;
        int tag = parses ? token_tag(token[i]) : -1;
        char byte = (char)(tag + 1);
        const char *bytes = tag < 0 ? tokenizer_bytes(demo, token[i], &len) : &byte;
        if (tag >= 0) len = 1;
        if (!o->scan.keep_special && tokenizer_is_special(demo, token[i])) len = 0;
        cut[out->len] = 1;
        strbuf_add(out, bytes, len);
    }
}

/* One answer through both. Returns how it ended: by a stop string, by a call, not at all. */
static int check_agreement(const ReplyOptions *o, const int32_t *token, int n)
{
    ReplyWatch *watch = reply_watch_open(o, &err);
    Reply *reply = reply_open(o);
    Watcher w = reply_watch_watcher(watch);
    int ended = 0;
    for (int i = 0; i < n && !ended; i++) {
        unsigned long before = mem_count();
        WatchVerdict v = w.token(w.self, token[i]);
        assert_int_equal(mem_count(), before);
        reply_token(reply, token[i]);
        ended = reply_ended(reply);
        if ((v == WATCH_STOP) != ended)
            fail_msg("seed %llu, token %d: %d and %d", round_seed, i, v, ended);
        if (ended) assert_int_equal(w.token(w.self, token[i]), WATCH_STOP);
    }
    int met = reply_stop_string(reply);
    if (met >= 0) assert_true(ended && met < o->n_stop);
    reply_end(reply, 1);
    reply_close(reply);
    reply_watch_close(watch);
    return met >= 0 ? 1 : ended ? 2 : 0;
}

/* With no stop strings and as many calls as there are: any cut gives the same pieces. */
static void check_splits(uint64_t *seed, ReplyOptions o, const int32_t *token, int n)
{
    static uint8_t cut[8 * MAX_RANDOM];
    StrBuf output = {0}, want = {0};
    int stopped = random_next(seed) % 4 != 0;
    o.n_stop = o.n_unwatched = o.single_call = 0;
    join_tokens(&o, token, n, &output, cut);
    reply_close(run_output(&o, strbuf_str(&output), output.len, cut, stopped, &want));
    for (int how = 0; how < 4; how++) {
        StrBuf got = {0};
        for (size_t i = 0; i < output.len; i++)
            cut[i] = how == 0 || (how > 1 && random_next(seed) % 5 == 0);
        reply_close(run_output(&o, strbuf_str(&output), output.len, cut, stopped, &got));
        if (got.len != want.len || memcmp(strbuf_str(&got), strbuf_str(&want), got.len) != 0)
            fail_msg("seed %llu:\n got %s\nwant %s", round_seed, strbuf_str(&got),
                     strbuf_str(&want));
        strbuf_free(&got);
    }
    strbuf_free(&output);
    strbuf_free(&want);
}

static void ends_where_the_reply_does(void **state)
{
    uint64_t seed = 42;
    int n_by[3] = {0};
    (void)state;
    for (int round = 0; round < 6000; round++) {
        int32_t token[MAX_RANDOM];
        const char *stop[3];
        round_seed = seed;
        ReplyOptions o = random_options(&seed, stop);
        int n = random_answer(&seed, token);
        n_by[check_agreement(&o, token, n)]++;
        check_splits(&seed, o, token, n);
    }
    for (int i = 0; i < 3; i++)
        assert_in_range(n_by[i], 100, 5800); /* every end is met often */
}

/* Verdicts over an output in which each byte is a token: '.' go, 'h' held, 'S' stop. */
static void expect_verdicts(ReplyOptions o, const char *output, const char *want)
{
    ReplyWatch *watch = reply_watch_open(&o, &err);
    Watcher w = reply_watch_watcher(watch);
    for (size_t i = 0; output[i]; i++) {
        int byte = (unsigned char)output[i];
        int32_t token = token_of[byte];
        if (byte <= 4) token = tokenizer_added_id(demo, scan_tag_text((ScanTag)(byte - 1)));
        WatchVerdict v = w.token(w.self, token);
        char got = ".hS"[v == WATCH_STOP ? 2 : v == WATCH_HELD];
        if (got != want[i]) fail_msg("byte %zu of '%s' gives %c", i, output, got);
    }
    reply_watch_close(watch);
}

static void stops_in_visible_content(void **state)
{
    static const char *const end[] = {"END"};
    (void)state;
    ReplyOptions o = {
        .scan = {.tok = demo, .tools = tools, .parse_reasoning = 1}, .stop = end, .n_stop = 1};
    expect_verdicts(o, "an END", "...hhS");
    expect_verdicts(o, THINK "END" ENDTHINK "END", ".....hhS");
    expect_verdicts(o, CALL "<function=END>" ENDCALL "END", "hhhhhhhhhhhhhh..hhS");
    expect_verdicts(o, "E" CALL "<function=f></function>" ENDCALL "ND",
                    "hhhhhhhhhhhhh.hhhhhhhhhh....");
    o.n_unwatched = 4;
    expect_verdicts(o, "aENDEND", "....hhS");
    expect_verdicts(o, "abEND", "....."); /* a string that began too early */
    o.n_unwatched = 0;
    o.single_call = 1;
    expect_verdicts(o, CALL "<function=f></function>" ENDCALL, "hhhhhhhhhhhh.hhhhhhhhhh.S");
}

/* Reasoning that is shown as content, its tag too, ends where it ends. */
static void shown_reasoning_ends(void **state)
{
    (void)state;
    ReplyOptions o = {.scan = {.tok = demo, .starts_in_think = 1}};
    ReplyWatch *watch = reply_watch_open(&o, &err);
    Watcher w = reply_watch_watcher(watch);
    Reply *reply = reply_open(&o);
    const int32_t token[] = {token_of['a'], tokenizer_added_id(demo, "</think>"), token_of['b']};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(reply_watch_in_think(watch), i < 2);
        w.token(w.self, token[i]);
        reply_token(reply, token[i]);
    }
    reply_end(reply, 1);
    assert_int_equal(reply_n_reasoning_tokens(reply), 2);
    assert_int_equal(reply_n_pieces(reply), 1);
    ReplyPiece piece = reply_piece(reply, 0);
    assert_int_equal(piece.kind, REPLY_CONTENT);
    assert_int_equal(piece.len, 10);
    assert_memory_equal(piece.text, "a</think>b", 10);
    reply_close(reply);
    reply_watch_close(watch);
}

/* A stop string may begin in it. */
static void shown_reasoning_is_content(void **state)
{
    static const char *const stop[] = {"k>b"};
    (void)state;
    ReplyOptions o = {.scan = {.tok = demo, .starts_in_think = 1}, .stop = stop, .n_stop = 1};
    expect_verdicts(o, "a" ENDTHINK "b", ".hS");
}

static void refuses_bad_stop_strings(void **state)
{
    static const char *const empty[] = {""};
    (void)state;
    ReplyOptions o = {.scan = {.tok = demo}, .stop = empty, .n_stop = 1};
    assert_null(reply_watch_open(&o, &err));
    assert_int_equal(err.code, ERR_INPUT);
    reply_watch_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_where_the_reply_does), cmocka_unit_test(stops_in_visible_content),
        cmocka_unit_test(shown_reasoning_ends),      cmocka_unit_test(shown_reasoning_is_content),
        cmocka_unit_test(refuses_bad_stop_strings),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
