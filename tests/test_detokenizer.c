/* test_detokenizer.c: text as it comes, against Python's replacement and against the whole. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/strbuf.h"
#include "tests/textdata.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

static Tokenizer *demo;
static int32_t token_of[256];

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

/* bytes.decode("utf-8", "replace") of Python 3.11. */
static const struct {
    const char *bytes;
    size_t n;
    const char *text;
    size_t n_text;
} replaced[] = {
    {"abc", 3, "abc", 3},
    {"\xC3\xA9", 2, "\xC3\xA9", 2},
    {"\xE2\x82\xAC", 3, "\xE2\x82\xAC", 3},
    {"\xF0\x9F\x98\x80", 4, "\xF0\x9F\x98\x80", 4},
    {"\x80", 1, "\xEF\xBF\xBD", 3},
    {"\xBF\x80", 2, "\xEF\xBF\xBD\xEF\xBF\xBD", 6},
    {"\xC0\xAF", 2, "\xEF\xBF\xBD\xEF\xBF\xBD", 6},
    {"\xC1\xBF", 2, "\xEF\xBF\xBD\xEF\xBF\xBD", 6},
    {"\xC3", 1, "\xEF\xBF\xBD", 3},
    {"\xC3(", 2, "\xEF\xBF\xBD(", 4},
    {"\xE2\x82", 2, "\xEF\xBF\xBD", 3},
    {"\xE2\x82(", 3, "\xEF\xBF\xBD(", 4},
    {"\xE2(\xA1", 3, "\xEF\xBF\xBD(\xEF\xBF\xBD", 7},
    {"\xE2\xE2\x82\xAC", 4, "\xEF\xBF\xBD\xE2\x82\xAC", 6},
    {"\xE0\x80\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9},
    {"\xE0\x9F\xBF", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9},
    {"\xE0\xA0\x80", 3, "\xE0\xA0\x80", 3},
    {"\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9},
    {"\xED\x9F\xBF", 3, "\xED\x9F\xBF", 3},
    {"\xED\xBF\xBF", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9},
    {"\xEE\x80\x80", 3, "\xEE\x80\x80", 3},
    {"\xF0\x80\x80\x80", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 12},
    {"\xF0\x8F\xBF\xBF", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 12},
    {"\xF0\x90\x80\x80", 4, "\xF0\x90\x80\x80", 4},
    {"\xF0\x9F\x98", 3, "\xEF\xBF\xBD", 3},
    {"\xF0\x9F\x98x", 4, "\xEF\xBF\xBDx", 4},
    {"\xF0\x9Fx", 3, "\xEF\xBF\xBDx", 4},
    {"\xF0x", 2, "\xEF\xBF\xBDx", 4},
    {"\xF0\x9F\xC3\xA9", 4, "\xEF\xBF\xBD\xC3\xA9", 5},
    {"\xF4\x8F\xBF\xBF", 4, "\xF4\x8F\xBF\xBF", 4},
    {"\xF4\x90\x80\x80", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 12},
    {"\xF5\x80\x80\x80", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 12},
    {"\xF8\x88\x80\x80\x80", 5, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 15},
    {"\xFE\xFF", 2, "\xEF\xBF\xBD\xEF\xBF\xBD", 6},
    {"\xFF", 1, "\xEF\xBF\xBD", 3},
    {"a\xFF"
     "b\xFE"
     "c",
     5,
     "a\xEF\xBF\xBD"
     "b\xEF\xBF\xBD"
     "c",
     9},
    {"\xE4\xBD\xA0\xE5\xA5", 5, "\xE4\xBD\xA0\xEF\xBF\xBD", 6},
    {"\xF0\x9F\x98\xF0\x9F\x98\x80", 7, "\xEF\xBF\xBD\xF0\x9F\x98\x80", 7},
    {"\xC3\xC3\xC3\xA9", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xC3\xA9", 8},
    {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
     "A",
     9,
     "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
     "A",
     13},
    {"\xF0\x9F\x98\x80\x80", 5, "\xF0\x9F\x98\x80\xEF\xBF\xBD", 7},
    {"a\x00"
     "b\x00",
     4,
     "a\x00"
     "b\x00",
     4},
};

static void push_bytes(Detokenizer *d, const char *bytes, size_t n, StrBuf *out)
{
    for (size_t i = 0; i < n; i++) {
        detokenizer_push(d, token_of[(unsigned char)bytes[i]], out);
        /* What is out is whole characters, at every moment. */
        assert_int_equal(utf8_check(strbuf_str(out), out->len), out->len);
    }
}

static void replaces_like_python(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        Detokenizer d;
        StrBuf out = {0};
        detokenizer_init(&d, demo, 0);
        push_bytes(&d, replaced[i].bytes, replaced[i].n, &out);
        detokenizer_finish(&d, &out);
        if (out.len != replaced[i].n_text || memcmp(out.data, replaced[i].text, out.len) != 0)
            fail_msg("row %zu gives '%s'", i, strbuf_str(&out));
        detokenizer_finish(&d, &out);
        assert_int_equal(out.len, replaced[i].n_text);
        strbuf_free(&out);
    }
}

/* Row after row without an end between: what is held goes into what follows. */
static void replaces_across_rows(void **state)
{
    uint64_t seed = 5;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        size_t a = random_next(&seed) % (sizeof replaced / sizeof *replaced);
        Detokenizer d;
        StrBuf out = {0};
        detokenizer_init(&d, demo, 0);
        push_bytes(&d, replaced[a].bytes, replaced[a].n, &out);
        push_bytes(&d, "|", 1, &out); /* ends whatever was begun */
        assert_int_equal(out.len, replaced[a].n_text + 1);
        assert_memory_equal(out.data, replaced[a].text, replaced[a].n_text);
        assert_int_equal(d.n_held, 0);
        strbuf_free(&out);
    }
}

/* The whole text at once: the bytes of all tokens, then every bad stretch replaced. */
static void decode_whole(const int32_t *token, int n, int keep_special, StrBuf *out)
{
    StrBuf bytes = {0};
    for (int i = 0; i < n; i++) {
        size_t len;
        const char *s = tokenizer_bytes(demo, token[i], &len);
        if (keep_special || !tokenizer_is_special(demo, token[i])) strbuf_add(&bytes, s, len);
    }
    for (size_t i = 0; i < bytes.len;) {
        int k = utf8_step((const unsigned char *)bytes.data + i, bytes.len - i);
        if (k > 0) strbuf_add(out, bytes.data + i, (size_t)k);
        if (k <= 0) strbuf_puts(out, "\xEF\xBF\xBD");
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : bytes.len - i;
    }
    strbuf_free(&bytes);
}

static void equals_the_whole(void **state)
{
    uint64_t seed = 77;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        int32_t token[40];
        int n = (int)(random_next(&seed) % 40), keep_special = round & 1;
        for (int i = 0; i < n; i++) {
            /* Bytes beyond ASCII, any token, ids that are not there. */
            uint64_t kind = random_next(&seed) % 4;
            token[i] = (int32_t)(random_next(&seed) % 4110) - 5;
            if (kind < 2) token[i] = token_of[128 + random_next(&seed) % 128];
            if (kind == 2) token[i] = 4080 + (int32_t)(random_next(&seed) % 16);
        }
        StrBuf want = {0}, out = {0};
        Detokenizer d;
        decode_whole(token, n, keep_special, &want);
        detokenizer_init(&d, demo, keep_special);
        for (int i = 0; i < n; i++) {
            detokenizer_push(&d, token[i], &out);
            assert_int_equal(utf8_check(strbuf_str(&out), out.len), out.len);
        }
        detokenizer_finish(&d, &out);
        assert_string_equal(strbuf_str(&out), strbuf_str(&want));
        assert_int_equal(out.len, want.len);
        strbuf_free(&want);
        strbuf_free(&out);
    }
}

/* Every way to cut a text into byte tokens and one larger piece in between. */
static void every_split_gives_the_text(void **state)
{
    static const char text[] = "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD the end";
    Error err;
    (void)state;
    size_t n = sizeof text - 1;
    for (size_t from = 0; from <= n; from++) {
        for (size_t to = from; to <= n; to++) {
            if (utf8_check(text + from, to - from) < to - from) continue;
            TokenList list = {0};
            StrBuf out = {0};
            Detokenizer d;
            detokenizer_init(&d, demo, 0);
            push_bytes(&d, text, from, &out);
            assert_int_equal(tokenizer_encode(demo, text + from, to - from, &list, &err), 0);
            for (int i = 0; i < list.n; i++)
                detokenizer_push(&d, list.id[i], &out);
            push_bytes(&d, text + to, n - to, &out);
            detokenizer_finish(&d, &out);
            assert_string_equal(strbuf_str(&out), text);
            token_list_free(&list);
            strbuf_free(&out);
        }
    }
}

static void special_tokens_show_on_request(void **state)
{
    int32_t end = tokenizer_added_id(demo, "<|im_end|>"),
            think = tokenizer_added_id(demo, "<think>");
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        Detokenizer d;
        StrBuf out = {0};
        detokenizer_init(&d, demo, keep);
        /* A special token in the middle of a character does not part it when it is not shown. */
        detokenizer_push(&d, think, &out);
        push_bytes(&d, "\xC3", 1, &out);
        detokenizer_push(&d, end, &out);
        push_bytes(&d, "\xA9", 1, &out);
        assert_string_equal(strbuf_str(&out),
                            keep ? "<think>\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD" : "<think>\xC3\xA9");
        strbuf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replaces_like_python),
        cmocka_unit_test(replaces_across_rows),
        cmocka_unit_test(equals_the_whole),
        cmocka_unit_test(every_split_gives_the_text),
        cmocka_unit_test(special_tokens_show_on_request),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
