/*
 * test_tokenizer.c: ids against the reference implementation, merges and form C against their
 * definitions, hostile texts, and texts in slices.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/textdata.h"
#include "tests/tokenized.h"
#include "text/bpe.h"
#include "text/encoder.h"
#include "text/nfc.h"

static Tokenizer *big, *demo;
static Error err;

static int open_all(void **state)
{
    (void)state;
    big = open_big_tokenizer();
    demo = tokenizer_open("models/demo/tokenizer.json", &err);
    return big && demo ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    tokenizer_close(big);
    tokenizer_close(demo);
    return 0;
}

static StrBuf bytes_of(const Tokenizer *tok, const TokenList *list)
{
    StrBuf text = {0};
    for (int i = 0; i < list->n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(tok, list->id[i], &len);
        assert_true(len > 0);
        strbuf_add(&text, bytes, len);
    }
    return text;
}

static void check_vector(const json_t *line)
{
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const char *s = json_string_value(text);
    TokenList list = encode_text(big, s, json_string_length(text));
    if ((size_t)list.n != json_array_size(ids)) fail_msg("%d tokens for '%s'", list.n, s);
    for (int i = 0; i < list.n; i++)
        if (list.id[i] != json_integer_value(json_array_get(ids, (size_t)i)))
            fail_msg("token %d of '%s' is %d", i, s, list.id[i]);

    StrBuf back = bytes_of(big, &list);
    utf8proc_uint8_t *form_c = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)json_string_length(text),
                     &form_c, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_int_equal(back.len, n);
    assert_memory_equal(strbuf_str(&back), form_c, back.len);
    free(form_c);
    strbuf_free(&back);
    token_list_free(&list);
}

static void matches_reference(void **state)
{
    static const char *const paths[] = {"tests/data/tokenizer/vectors.jsonl",
                                        "tests/data/tokenizer/random_vectors.jsonl"};
    static const size_t n_lines[] = {300, 240};
    (void)state;
    for (int k = 0; k < 2; k++) {
        json_t *lines = read_json_lines(paths[k]), *line;
        size_t i;
        assert_int_equal(json_array_size(lines), n_lines[k]);
        json_array_foreach(lines, i, line)
        {
            check_vector(line);
        }
        json_decref(lines);
    }
}

static void knows_its_tokens(void **state)
{
    size_t len;
    (void)state;
    assert_int_equal(tokenizer_size(big), 248077);
    assert_int_equal(tokenizer_added_id(big, "<|im_end|>"), 248046);
    assert_int_equal(tokenizer_added_id(big, "<|im_end|"), -1);
    assert_int_equal(tokenizer_added_id(big, "<|im_end|>x"), -1);
    assert_int_equal(tokenizer_added_id(big, "user"), -1);
    assert_int_equal(tokenizer_added_id(big, ""), -1);
    int n;
    const int32_t *added = tokenizer_added(big, &n);
    char seen[33] = {0}; /* all ids from 248,044 on, and no other */
    assert_int_equal(n, sizeof seen);
    for (int i = 0; i < n; i++) {
        assert_in_range(added[i], 248044, 248076);
        assert_int_equal(seen[added[i] - 248044]++, 0);
    }
    assert_true(tokenizer_is_special(big, 248046));
    assert_false(tokenizer_is_special(big, tokenizer_added_id(big, "<think>")));
    assert_false(tokenizer_is_special(big, 198));
    assert_false(tokenizer_is_special(big, -1));
    assert_false(tokenizer_is_special(big, 248077));
    assert_true(tokenizer_has(big, 0));
    assert_true(tokenizer_has(big, 248076));
    assert_false(tokenizer_has(big, 248077));
    assert_false(tokenizer_has(big, INT32_MAX));
    assert_false(tokenizer_has(big, INT32_MIN));
    assert_string_equal(tokenizer_bytes(big, -5, &len), "");
    assert_int_equal(len, 0);
    assert_memory_equal(tokenizer_bytes(big, 74455, &len), "assistant", 9);
    assert_int_equal(len, 9);
    assert_memory_equal(tokenizer_bytes(big, 248068, &len), "<think>", 7);
    assert_int_equal(len, 7);
}

static void cuts_out_added_tokens(void **state)
{
    static const char turn[] = "<|im_start|>assistant\n<think>\n";
    static const int32_t ids[] = {248045, 74455, 198, 248068, 198};
    (void)state;
    expect_ids(big, turn, strlen(turn), ids, 5);
    TokenList plain = {0};
    TextSpan all = {0, strlen(turn)};
    assert_int_equal(tokenizer_encode_prompt(big, turn, all.len, &all, 1, &plain, &err), 0);
    assert_true(plain.n > 5);
    for (int i = 0; i < plain.n; i++)
        assert_true(plain.id[i] < 248044);
    StrBuf text = bytes_of(big, &plain);
    assert_string_equal(strbuf_str(&text), turn);
    strbuf_free(&text);
    token_list_free(&plain);
    TokenList list = encode_text(big, "<tts_text_bos><|im_end|><|im_end", 32);
    assert_int_equal(list.id[0], 248073);
    assert_int_equal(list.id[1], 248046);
    assert_true(list.id[2] < 248044);
    token_list_free(&list);
}

static void bounds_the_text(void **state)
{
    TokenList list = {0};
    (void)state;
    assert_int_equal(tokenizer_encode(demo, "x", ((size_t)1 << 28) + 1, &list, &err), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    token_list_free(&list);
}

static void takes_nul_and_nothing(void **state)
{
    (void)state;
    expect_ids(demo, "", 0, NULL, 0);
    TokenList list = encode_text(demo, "a\0b\0", 4);
    StrBuf text = bytes_of(demo, &list);
    assert_int_equal(text.len, 4);
    assert_memory_equal(text.data, "a\0b\0", 4);
    strbuf_free(&text);
    token_list_free(&list);
}

static void refuses_invalid_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t len;
        const char *where;
    } bad[] = {
        {"abc\xFF", 4, "byte 3"},
        {"\x80", 1, "byte 0"},
        {"a\xC3", 2, "byte 1"},
        {"\xED\xA0\x80", 3, "byte 0"},
        {"\xC0\xAF", 2, "byte 0"},
        {"ok\xF4\x90\x80\x80", 6, "byte 2"},
        {"\xF0\x9F\x98\x80\xE2\x82", 6, "byte 4"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        TokenList list = {0};
        assert_int_equal(tokenizer_encode(demo, bad[i].text, bad[i].len, &list, &err), -1);
        assert_int_equal(err.code, ERR_INPUT);
        assert_non_null(strstr(err.msg, bad[i].where));
        token_list_free(&list);
    }
}

/* A megabyte of anything takes a moment; what is quadratic would run into the time limit. */
static void long_runs_are_linear(void **state)
{
    static const char *const units[] = {
        " ",
        "a",
        "<",
        "\n",
        " \n",
        "0",
        "!",
        "ab",
        "'s",
        "<|im_sta",
        "\t x",
        "\xC2\xA0",
        "\xCC\x81\xCC\xA7", /* two marks in the wrong order: a run to be sorted */
        "\xE1\x84\x80\xE1\x85\xA1",
        "\xF0\x9F\x91\x8D",
    };
    (void)state;
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        size_t unit = strlen(units[k]), len = (1 << 20) / unit * unit;
        char *text = mem_alloc(len, 1);
        for (size_t i = 0; i < len; i += unit)
            memcpy(text + i, units[k], unit);
        TokenList list = encode_text(demo, text, len);
        StrBuf back = bytes_of(demo, &list);
        if ((unsigned char)units[k][0] < 0xCC) {
            assert_int_equal(back.len, len);
            assert_memory_equal(back.data, text, len);
        }
        strbuf_free(&back);
        token_list_free(&list);
        mem_free(text);
    }
}

/* The plainest byte pair encoding: look at all pairs, merge the best, start again. */
static int merge_naively(int32_t *id, int n, const int32_t (*merge)[3], int n_merges)
{
    for (;;) {
        int best = n_merges, at = -1;
        for (int i = 0; i + 1 < n; i++)
            for (int m = 0; m < best; m++)
                if (merge[m][0] == id[i] && merge[m][1] == id[i + 1]) {
                    best = m;
                    at = i;
                }
        if (at < 0) return n;
        id[at] = merge[best][2];
        memmove(id + at + 1, id + at + 2, (size_t)(n - at - 2) * sizeof *id);
        n--;
    }
}

/* Random merges over three letters, with all the ways in which pairs can overlap. */
static void merges_like_the_definition(void **state)
{
    enum { N_MERGES = 40, LONGEST = 60 };
    uint64_t seed = 1234567;
    (void)state;
    for (int round = 0; round < 300; round++) {
        int32_t merge[N_MERGES][3], want[LONGEST];
        Bpe bpe = {{0}, NULL, 0};
        BpeScratch scratch = {0};
        bpe_init(&bpe, N_MERGES);
        for (int b = 0; b < 256; b++)
            bpe.byte_id[b] = b % 3;
        int n_merges = 0;
        for (int m = 0; m < N_MERGES; m++) {
            int32_t left = (int32_t)(random_next(&seed) % (uint64_t)(3 + n_merges));
            int32_t right = (int32_t)(random_next(&seed) % (uint64_t)(3 + n_merges));
            int known = 0;
            for (int i = 0; i < n_merges; i++)
                known |= merge[i][0] == left && merge[i][1] == right;
            if (known) continue;
            memcpy(merge[n_merges], (int32_t[]){left, right, 3 + n_merges}, sizeof *merge);
            bpe_add_merge(&bpe, left, right, n_merges, 3 + n_merges);
            n_merges++;
        }
        char text[LONGEST];
        int len = 1 + (int)(random_next(&seed) % LONGEST);
        for (int i = 0; i < len; i++) {
            text[i] = (char)(random_next(&seed) % 3);
            want[i] = (unsigned char)text[i];
        }
        int n = merge_naively(want, len, (const int32_t(*)[3])merge, n_merges);
        TokenList got = {0};
        bpe_encode(&bpe, &scratch, text, (size_t)len, &got);
        if (got.n != n || memcmp(got.id, want, (size_t)n * sizeof *want) != 0)
            fail_msg("round %d differs", round);
        token_list_free(&got);
        bpe_scratch_free(&scratch);
        bpe_free(&bpe);
    }
}

/* Our ordering of marks against utf8proc's, on texts of marks, letters and Hangul parts. */
static void normalises_like_utf8proc(void **state)
{
    static const struct {
        uint32_t first, count;
    } ranges[] = {{0x300, 0x70}, {0x41, 26},     {0x1100, 19},  {0x1161, 21}, {0x11A7, 28},
                  {0xAC00, 60},  {0x1E00, 0xF0}, {0x1F00, 200}, {0x5B0, 20},  {0x1D157, 20}};
    uint64_t seed = 99;
    NfcScratch scratch = {0};
    (void)state;
    for (int round = 0; round < 3000; round++) {
        StrBuf text = {0};
        int n = 1 + (int)(random_next(&seed) % 60);
        for (int i = 0; i < n; i++) {
            /* Half of all characters are marks, so that runs get long. */
            size_t k = random_next(&seed) % 2 ? 0 : random_next(&seed) % 10;
            utf8proc_int32_t c =
                (utf8proc_int32_t)(ranges[k].first + random_next(&seed) % ranges[k].count);
            utf8proc_uint8_t utf8[4];
            utf8proc_ssize_t len = utf8proc_encode_char(c, utf8);
            strbuf_add(&text, (const char *)utf8, (size_t)len);
        }
        utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text.data);
        /* As a whole, and in parts of every length. */
        for (size_t part = text.len; part; part--) {
            StrBuf got = {0};
            for (size_t i = 0; i < text.len;) {
                size_t len = nfc_cut(text.data + i, text.len - i, part);
                nfc_append(&scratch, text.data + i, len, &got);
                i += len;
            }
            assert_int_equal(got.len, strlen((const char *)want));
            assert_memory_equal(got.data, want, got.len);
            strbuf_free(&got);
        }
        free(want);
        strbuf_free(&text);
    }
    nfc_scratch_free(&scratch);
}

/* ---- in slices ---- */

static TokenList encode_in_slices(const Tokenizer *tok, const char *text, size_t len,
                                  const TextSpan *plain, int n_plain, size_t slice, int *n_slices)
{
    TokenList list = {0};
    int more = 1;
    Encoder *e = encoder_open(tok, text, len, plain, n_plain, &list, &err);
    assert_non_null(e);
    for (*n_slices = 0; more; ++*n_slices) {
        size_t budget = slice;
        more = encoder_some(e, &budget, &err);
        if (more < 0) fail_msg("%s", err.msg);
    }
    encoder_close(e);
    return list;
}

/* Every slice from a byte to more than the text gives the tokens of one call. */
static void check_slices(const Tokenizer *tok, const char *text, size_t len, const TextSpan *plain,
                         int n_plain)
{
    TokenList want = {0};
    if (tokenizer_encode_prompt(tok, text, len, plain, n_plain, &want, &err))
        fail_msg("%s", err.msg);
    for (size_t slice = 1; slice <= 3 * len + 1; slice++) {
        int n_slices;
        TokenList got = encode_in_slices(tok, text, len, plain, n_plain, slice, &n_slices);
        if (got.n != want.n) fail_msg("%d tokens of '%s' by %zu", got.n, text, slice);
        assert_memory_equal(got.id, want.id, (size_t)want.n * sizeof *want.id);
        /* Each has its end: the longest unit of the texts below is one of some 40 bytes. */
        assert_true((size_t)n_slices >= len / (slice + 40));
        token_list_free(&got);
    }
    token_list_free(&want);
}

/*
 * Texts where a cut matters: marks that combine over it, blanks and contractions where the split
 * regex looks ahead, added tokens, whole and begun, and parts of them that a client wrote.
 */
static void slices_give_the_same(void **state)
{
    static const char *const texts[] = {
        "Hello, it's 12345 o'clock  \n\n  and   all   is  well!   ",
        "e\xCC\x81\xCC\xA7 x\xCC\xA7\xCC\x81\xCC\xA7\xCC\x81 \xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"
        "\xEA\xB0\x80\xE1\x86\xA8 \xE0\xA7\x87\xE0\xA6\xBE A\xCC\x8A\xE2\x84\xAB",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think><|im_sta",
        "<|im_end|><|im_end|>e\xCC\x81<|im_end|>\xCC\x81 \xCC\x81<|im_en<|im_end|",
        "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C "
        "\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD\r\n\t\xC2\xA0\xE3\x80\x80 'Re'LL 'tis",
        " ",
        "",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t len = strlen(texts[i]);
        TextSpan all = {0, len}, some[] = {{3, 20}, {24, 2}, {30, 12}};
        check_slices(demo, texts[i], len, NULL, 0);
        check_slices(demo, texts[i], len, &all, 1);
        check_slices(demo, texts[i], len, some, 3);
        check_slices(big, texts[i], len, NULL, 0);
    }
}

/* Two expressions one after the other, the second of which passes over most of what it sees. */
static void slices_give_the_same_with_two_splits(void **state)
{
    static const char text[] = "aaxbcaab  xx 12a1bx\xC3\xA9 abcxaaaaaaaaaaaaab";
    (void)state;
    json_t *root = small_json();
    small_set(root, "pre_tokenizer",
              "{\"type\": \"Sequence\", \"pretokenizers\": ["
              "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?=x)|b(?!c)\"}, "
              "\"behavior\": \"Isolated\"},"
              "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"bc|1\"}, "
              "\"behavior\": \"Isolated\"},"
              "{\"type\": \"ByteLevel\", \"use_regex\": false}]}");
    Tokenizer *tok = small_open(root, &err);
    assert_non_null(tok);
    check_slices(tok, text, strlen(text), NULL, 0);
    tokenizer_close(tok);
    json_decref(root);
}

/* The token limit is reached in mid-text, and an encoder can be left at any time. */
static void slices_stop_at_the_limit(void **state)
{
    enum { LEN = 4000, LIMIT = 100, SLICE = 50 };
    static char text[LEN];
    (void)state;
    for (int i = 0; i < LEN; i++)
        text[i] = "1 2\n"[i % 4];
    TokenList list = {.limit = LIMIT};
    Encoder *e = encoder_open(demo, text, LEN, NULL, 0, &list, &err);
    int more = 1, n_slices = 0;
    for (; more > 0; n_slices++) {
        size_t budget = SLICE;
        assert_true(list.n <= LIMIT);
        more = encoder_some(e, &budget, &err);
    }
    assert_int_equal(more, -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_int_equal(list.n, LIMIT + 1);
    assert_true(n_slices > 1);
    encoder_close(e);
    token_list_free(&list);

    size_t budget = LEN + SLICE;
    e = encoder_open(demo, text, LEN, NULL, 0, &list, &err);
    assert_int_equal(encoder_some(e, &budget, &err), 1);
    assert_int_equal(budget, 0);
    assert_in_range(list.n, 1, 2 * SLICE);
    encoder_close(e);
    encoder_close(NULL);
    token_list_free(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_reference),
        cmocka_unit_test(knows_its_tokens),
        cmocka_unit_test(cuts_out_added_tokens),
        cmocka_unit_test(bounds_the_text),
        cmocka_unit_test(takes_nul_and_nothing),
        cmocka_unit_test(refuses_invalid_utf8),
        cmocka_unit_test(long_runs_are_linear),
        cmocka_unit_test(merges_like_the_definition),
        cmocka_unit_test(normalises_like_utf8proc),
        cmocka_unit_test(slices_give_the_same),
        cmocka_unit_test(slices_give_the_same_with_two_splits),
        cmocka_unit_test(slices_stop_at_the_limit),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
