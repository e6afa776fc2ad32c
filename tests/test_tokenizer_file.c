/*
 * test_tokenizer_file.c: tokenizer.json in all layouts that we read, with every kind of damage, and
 * with expressions that backtrack for ever.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/textdata.h"
#include "tests/tokenized.h"
#include "text/encoder.h"

static Error err;

static void small_file_is_fine(void **state)
{
    static const int32_t abc[] = {301}, twelve[] = {16, 17};
    (void)state;
    json_t *root = small_json();
    Tokenizer *tok = small_open(root, &err);
    if (!tok) fail_msg("%s", err.msg);
    expect_ids(tok, "abc", 3, abc, 1);
    expect_ids(tok, "12", 2, twelve, 2); /* each digit is a piece */
    assert_int_equal(tokenizer_size(tok), 303);
    assert_false(tokenizer_has(tok, 270)); /* a gap */
    tokenizer_close(tok);
    json_decref(root);
}

/*
 * U+180E is white space for PCRE2, but not for Oniguruma, with which the vocabularies were made:
 * the mark and it are one piece, in which 303 is merged. Checked with the Python package
 * `tokenizers`.
 */
static void splits_like_oniguruma(void **state)
{
    static const int32_t together[] = {303, 254, 236};
    (void)state;
    json_t *root = small_json();
    small_set(root, "model/vocab/!\u00e1", "303");
    small_set(root, "model/merges/2", "[\"!\", \"\u00e1\"]");
    Tokenizer *tok = small_open(root, &err);
    assert_non_null(tok);
    expect_ids(tok, "!\xE1\xA0\x8E", 4, together, 3);
    tokenizer_close(tok);
    json_decref(root);
}

/* What add_tokens of transformers made. */
static void finds_a_normalized_token(void **state)
{
    (void)state;
    json_t *root = small_json();
    small_set(root, "added_tokens/1/normalized", "true");
    Tokenizer *tok = small_open(root, &err);
    assert_non_null(tok);
    expect_ids(tok, "<|im_start|>", 12, (int32_t[]){257}, 1);
    tokenizer_close(tok);
    json_decref(root);
}

/* Python writes more than JSON; what we do not read may hold it. */
static void reads_what_python_writes(void **state)
{
    (void)state;
    json_t *root = small_json();
    small_set(root, "truncation", "\"_\"");
    char *text = json_dumps(root, 0), *path = temp_path("python.json");
    StrBuf all = {0};
    char *at = strstr(text, "\"_\"");
    assert_non_null(at);
    strbuf_printf(&all, "%.*s[NaN, 1000000000000000019884624838656]%s", (int)(at - text), text,
                  at + 3);
    write_file(path, all.data, all.len);
    Tokenizer *tok = tokenizer_open(path, &err);
    if (!tok) fail_msg("%s", err.msg);
    tokenizer_close(tok);
    unlink(path);
    mem_free(path);
    strbuf_free(&all);
    free(text);
    json_decref(root);
}

static void takes_the_longest_added_token(void **state)
{
    static const int32_t longer[] = {257}, shorter[] = {258, 62}, twice[] = {258, 257};
    (void)state;
    json_t *root = small_json();
    small_set(root, "added_tokens/2/content", "\"<|im\"");
    Tokenizer *tok = small_open(root, &err);
    assert_non_null(tok);
    expect_ids(tok, "<|im_start|>", 12, longer, 1);
    expect_ids(tok, "<|im_", 5, shorter, 2);
    expect_ids(tok, "<|im<|im_start|>", 16, twice, 2);
    assert_int_equal(tokenizer_added_id(tok, "<|im"), 258);
    assert_int_equal(tokenizer_added_id(tok, "<|im_"), -1);
    tokenizer_close(tok);
    json_decref(root);
}

/* As with expect_ids, in slices of one byte and in one. */
static void expect_prompt(const Tokenizer *tok, const char *text, const TextSpan *plain,
                          int n_plain, const int32_t *id, int n)
{
    for (size_t slice = 1; slice; slice = slice == 1 ? 1000 : 0) {
        TokenList list = {0};
        Encoder *e = encoder_open(tok, text, strlen(text), plain, n_plain, &list, &err);
        assert_non_null(e);
        int rc = 1;
        while (rc > 0) {
            size_t budget = slice;
            rc = encoder_some(e, &budget, &err);
        }
        encoder_close(e);
        assert_int_equal(rc, 0);
        if (list.n != n || memcmp(list.id, id, (size_t)n * sizeof *id) != 0)
            fail_msg("'%s' in slices of %zu: %d tokens, %d, %d, ...", text, slice, list.n,
                     list.n > 0 ? list.id[0] : -1, list.n > 1 ? list.id[1] : -1);
        token_list_free(&list);
    }
}

#define ADDED(id, content, normalized)                                                             \
    "{\"id\": " #id ", \"content\": \"" content "\", \"normalized\": " normalized "}"

/* A text whose bytes are an entry of the vocabulary, which writes them otherwise, is a new token.
 */
static void knows_two_tokens_of_one_text(void **state)
{
    (void)state;
    json_t *root = small_json();
    small_set(root, "model/vocab/\u0120a", "303");
    small_set(root, "model/merges/2", "[\"\u0120\", \"a\"]");
    small_set(root, "added_tokens/1", ADDED(257, " a", "false"));
    Tokenizer *tok = small_open(root, &err);
    if (!tok) fail_msg("%s", err.msg);
    expect_prompt(tok, "c ab", NULL, 0, (int32_t[]){66, 257, 65}, 3);
    expect_prompt(tok, "c a", &(TextSpan){0, 3}, 1, (int32_t[]){66, 303}, 2);
    for (int32_t id = 257; id <= 303; id += 303 - 257) {
        size_t len;
        assert_memory_equal(tokenizer_bytes(tok, id, &len), " a", 2);
        assert_int_equal(len, 2);
    }
    assert_int_equal(tokenizer_added_id(tok, " a"), 257);
    tokenizer_close(tok);
    small_set(root, "added_tokens/2", ADDED(258, " a", "true"));
    assert_null(small_open(root, &err));
    assert_non_null(strstr(err.msg, "' a' is given twice"));
    json_decref(root);
}

/* Literal tokens come first, however long the others are. All checked with `tokenizers`. */
static void finds_normalized_tokens_second(void **state)
{
    (void)state;
    json_t *root = small_json();
    small_set(root, "added_tokens/1", ADDED(257, "<t>", "false"));
    small_set(root, "added_tokens/2", ADDED(258, "<t>\\n", "true"));
    Tokenizer *tok = small_open(root, &err);
    if (!tok) fail_msg("%s", err.msg);
    expect_prompt(tok, "<t>\n", NULL, 0, (int32_t[]){257, 198}, 2);
    tokenizer_close(tok);

    /* In the normalised text, by the form C of what was given. */
    small_set(root, "added_tokens/1", ADDED(257, "xe\u0301", "true"));
    small_set(root, "added_tokens/2", ADDED(258, "x>", "true"));
    tok = small_open(root, &err);
    if (!tok) fail_msg("%s", err.msg);
    expect_prompt(tok, "xe\u0301x\u00e9x>1", NULL, 0, (int32_t[]){257, 257, 258, 16}, 4);
    expect_prompt(tok, "x>x>\u0338", NULL, 0, (int32_t[]){258, 87, 158, 231, 107}, 5);
    assert_int_equal(tokenizer_added_id(tok, "xe\u0301"), 257);
    assert_int_equal(tokenizer_added_id(tok, "x\u00e9"), -1);

    /* What a client wrote makes none, and hides none behind it, whatever form C makes of it. */
    expect_prompt(tok, "x>1x>1x>", &(TextSpan){3, 2}, 1, (int32_t[]){258, 16, 87, 29, 16, 258}, 6);
    expect_prompt(tok, "x>xe\u03011x>", (TextSpan[]){{2, 3}, {5, 1}}, 2,
                  (int32_t[]){258, 87, 127, 102, 16, 258}, 6);
    expect_prompt(tok, "x>e\u0301x>", &(TextSpan){1, 1}, 1, (int32_t[]){87, 29, 127, 102, 258}, 5);
    expect_prompt(tok, "x>\u0338x>", &(TextSpan){2, 2}, 1, (int32_t[]){87, 158, 231, 107, 258}, 5);
    expect_prompt(tok, "<|endoftext|>x>x>", &(TextSpan){15, 2}, 1, (int32_t[]){256, 258, 87, 29},
                  4);
    tokenizer_close(tok);
    json_decref(root);
}

/* Nor does it hide a token before it, where both together would be a longer one. */
static void finds_a_shorter_token_before_a_client(void **state)
{
    (void)state;
    for (int normalised = 0; normalised < 2; normalised++) {
        json_t *root = small_json();
        small_set(root, "added_tokens/1",
                  normalised ? ADDED(257, "<t>", "true") : ADDED(257, "<t>", "false"));
        small_set(root, "added_tokens/2",
                  normalised ? ADDED(258, "<t>1", "true") : ADDED(258, "<t>1", "false"));
        Tokenizer *tok = small_open(root, &err);
        if (!tok) fail_msg("%s", err.msg);
        expect_prompt(tok, "<t>1", NULL, 0, (int32_t[]){258}, 1);
        expect_prompt(tok, "<t>1<t>1", &(TextSpan){3, 1}, 1, (int32_t[]){257, 16, 258}, 3);
        tokenizer_close(tok);
        json_decref(root);
    }
}

#define SPLIT "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x\"}, \"behavior\": \"Isolated\"},"

/* Every kind of damage: what is set where, and what the error must name. */
static void names_what_is_wrong(void **state)
{
    static const char *const damage[][3] = {
        {"model", NULL, "'model' must be an object"},
        {"model", "[]", "'model' must be an object"},
        {"model/type", "\"WordPiece\"", "model.type"},
        {"model/type", "1", "model.type"},
        {"model/ignore_merges", "true", "model.ignore_merges"},
        {"model/byte_fallback", "true", "model.byte_fallback"},
        {"model/dropout", "0.1", "model.dropout"},
        {"model/unk_token", "\"<unk>\"", "model.unk_token"},
        {"model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
        {"model/fuse_unk", "[]", "model.fuse_unk"},
        {"model/new_feature", "false", "model.new_feature"},
        {"model/vocab", NULL, "model.vocab must be an object"},
        {"model/vocab", "[]", "model.vocab must be an object"},
        {"model/vocab", "{}", "no symbol for byte 0x00"},
        {"model/vocab/ab", "\"300\"", "'ab' must be an integer"},
        {"model/vocab/ab", "300.0", "'ab' must be an integer"},
        {"model/vocab/ab", "null", "'ab' must be an integer"},
        {"model/vocab/ab", "-1", "'ab' is -1"},
        {"model/vocab/ab", "16777216", "'ab' is 16777216"},
        {"model/vocab/ab", "9223372036854775807", "'ab' is 9223372036854775807"},
        {"model/vocab/ab", "301", "id 301 is given twice"},
        {"model/vocab/ab", "3", "id 3 is given twice"},
        {"model/vocab/a b", "310", "'a b' (id 310) is not written in the byte alphabet"},
        {"model/vocab/\u4f60", "310", "is not written in the byte alphabet"},
        {"model/vocab/\n", "310", "'?' (id 310) is not written in the byte alphabet"},
        {"model/vocab/", "310", NULL}, /* the empty key: see below */
        {"model/vocab/Q", NULL, "no symbol for byte 0x51"},
        {"model/merges", NULL, "model.merges must be an array"},
        {"model/merges", "{}", "model.merges must be an array"},
        {"model/merges/1", "\"ab\"", "model.merges[1]"},
        {"model/merges/1", "\"a b c\"", "model.merges[1]"},
        {"model/merges/1", "7", "model.merges[1]"},
        {"model/merges/1", "[\"ab\"]", "model.merges[1]"},
        {"model/merges/1", "[\"ab\", \"c\", \"d\"]", "model.merges[1]"},
        {"model/merges/1", "[\"ab\", 3]", "model.merges[1]"},
        {"model/merges/1", "[\"\", \"c\"]", "model.merges[1] names a symbol"},
        {"model/merges/1", "\"xy c\"", "'xy'"},
        {"model/merges/1", "[\"xy\", \"c\"]", "'xy'"},
        {"model/merges/1", "[\"c\", \"xy\"]", "'xy'"},
        {"model/merges/1", "[\"c\", \"abcabcabcabcabcabc\"]", "'abcabcabcabcabcabc'"},
        {"model/merges/1", "[\"c\", \"c\"]", "model.merges[1] makes a symbol"},
        {"model/merges/1", "\"c c\"", "of 'c' and 'c'"},
        {"model/merges/1", "[]", "model.merges[1] must be"},
        {"model/merges/1", "[[\"ab\", \"c\"]]", "model.merges[1] must be"},
        {"added_tokens", "{}", "added_tokens must be an array"},
        {"added_tokens/1", "7", "added_tokens[1]"},
        {"added_tokens/1/content", NULL, "added_tokens[1]"},
        {"added_tokens/1/content", "\"\"", "added_tokens[1]"},
        {"added_tokens/1/id", NULL, "id of '<|im_start|>' must be an integer"},
        {"added_tokens/1/id", "-7", "id of '<|im_start|>' is -7"},
        {"added_tokens/1/id", "300", "id 300 or text '<|im_start|>' is given twice"},
        {"added_tokens/1/content", "\"<|endoftext|>\"", "text '<|endoftext|>' is given twice"},
        {"added_tokens/1/content", "\"ab\"", "text 'ab' is given twice"},
        {"added_tokens/1/lstrip", "true", "'lstrip' of '<|im_start|>'"},
        {"added_tokens/1/rstrip", "true", "'rstrip' of '<|im_start|>'"},
        {"added_tokens/1/single_word", "true", "'single_word' of '<|im_start|>'"},
        {"added_tokens/1/special", "1", "'special' of '<|im_start|>'"},
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer 'NFKC'"},
        {"normalizer", "7", "normalizer ''"},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}", "post_processor"},
        {"post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}, "
         "{\"SpecialToken\": {\"id\": \"<|endoftext|>\"}}]}",
         "post_processor"},
        {"decoder", "{\"type\": \"Metaspace\"}", "decoder 'Metaspace'"},
        {"pre_tokenizer", "null", "pre_tokenizer ''"},
        {"pre_tokenizer", "{\"type\": \"Whitespace\"}", "pre_tokenizer 'Whitespace'"},
        {"pre_tokenizer", "{\"type\": \"Sequence\"}", "pre_tokenizer.pretokenizers"},
        {"pre_tokenizer/pretokenizers", "[]", "no regex"},
        {"pre_tokenizer/pretokenizers/1", "{\"type\": \"Digits\"}", "pre_tokenizer 'Digits'"},
        {"pre_tokenizer/pretokenizers/0", "{\"type\": \"ByteLevel\"}", "place 1 of 2"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "'Removed'"},
        {"pre_tokenizer/pretokenizers/0/invert", "true", "'invert'"},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", "kind 'Regex'"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(a\"", "split regex"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\C\"", "split regex"},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "'add_prefix_space'"},
        {"pre_tokenizer/pretokenizers",
         "[" SPLIT SPLIT SPLIT SPLIT SPLIT "{\"type\": \"ByteLevel\", \"use_regex\": false}]",
         "splits more than 4 times"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        json_t *root = small_json();
        if (damage[i][2])
            small_set(root, damage[i][0], damage[i][1]);
        else
            json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), "",
                                json_integer(310));
        const char *named = damage[i][2] ? damage[i][2] : "'' (id 310)";
        Tokenizer *tok = small_open(root, &err);
        if (tok || !strstr(err.msg, named))
            fail_msg("%s = %s: %s", damage[i][0], damage[i][1], tok ? "accepted" : err.msg);
        json_decref(root);
    }
}

/* The small tokenizer, beside a tokenizer_config.json; NULL and err. */
static Tokenizer *open_configured(const json_t *root, const char *config)
{
    char *dir = temp_path("configured"), path[2][160];
    char *text = json_dumps(root, 0);
    mkdir(dir, 0777);
    snprintf(path[0], sizeof *path, "%s/tokenizer.json", dir);
    snprintf(path[1], sizeof *path, "%s/tokenizer_config.json", dir);
    write_file(path[0], text, strlen(text));
    write_file(path[1], config, strlen(config));
    err = (Error){0};
    Tokenizer *tok = tokenizer_open(path[0], &err);
    unlink(path[0]);
    unlink(path[1]);
    rmdir(dir);
    mem_free(dir);
    free(text);
    return tok;
}

/* What tokenizer_config.json alone lists is added; of the rest it says what is special. */
static void takes_configured_tokens(void **state)
{
    static const char *const wrong[][2] = {
        {"{\"added_tokens_decoder\": {\"x\": {\"content\": \"<a>\"}}}", "'x' must be an id"},
        {"{\"added_tokens_decoder\": {\"\": {\"content\": \"<a>\"}}}", "'' must be an id"},
        {"{\"added_tokens_decoder\": {\"310\": {}}}", "'content' must be a string"},
        {"{\"added_tokens_decoder\": {\"310\": 5}}", "'310' must be an id, and an object"},
        {"{\"added_tokens_decoder\": {\"310\": \"<a>\"}}", "'310' must be an id, and an object"},
        {"{\"additional_special_tokens\": [5]}", "'content' must be a string"},
        {"{\"added_tokens_decoder\": {\"310\": {\"content\": \"<a>\", \"lstrip\": true}}}",
         "'lstrip' of"},
        {"{", "tokenizer_config.json"}};
    static const char both[] =
        "{\"added_tokens_decoder\": {\"310\": {\"content\": \"<a>\", \"special\": true},"
        " \"999\": {\"content\": \"<b>\", \"special\": true}}}";
    static const int32_t ids[] = {301, 312, 311};
    (void)state;
    json_t *root = small_json();
    small_set(root, "added_tokens", "[{\"id\": 311, \"content\": \"<b>\"}]");
    Tokenizer *tok = open_configured(root, both);
    if (!tok) fail_msg("%s", err.msg);
    expect_ids(tok, "abc<a><b>", 9, ids, 3);
    assert_true(tokenizer_is_special(tok, 312));
    assert_true(tokenizer_is_special(tok, 311));
    tokenizer_close(tok);
    tok = open_configured(root, "{\"added_tokens_decoder\": {\"311\": {\"content\": \"<b>\"}}}");
    assert_true(tok && !tokenizer_is_special(tok, 311));
    tokenizer_close(tok);
    /* A token with a name is special. */
    tok = open_configured(root, "{\"added_tokens_decoder\": {\"310\": {\"content\": \"<a>\"}}, "
                                "\"bos_token\": \"<a>\", \"eos_token\": \"<b>\"}");
    assert_true(tok && tokenizer_is_special(tok, 312) && tokenizer_is_special(tok, 311));
    tokenizer_close(tok);
    tok = open_configured(root, "{\"added_tokens_decoder\": {\"311\": {\"content\": \"<b>\", "
                                "\"special\": false}}, \"pad_token\": {\"content\": \"<b>\"}}");
    assert_true(tok && tokenizer_is_special(tok, 311));
    tokenizer_close(tok);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (open_configured(root, wrong[i][0]) || !strstr(err.msg, wrong[i][1]))
            fail_msg("%s: %s", wrong[i][0], err.msg);
    tok = open_configured(root, "[]");
    assert_non_null(tok);
    tokenizer_close(tok);
    json_object_del(root, "added_tokens");
    tok = open_configured(root, both);
    assert_true(tok && tokenizer_added_id(tok, "<a>") == 259); /* the vocabulary has 259 */
    assert_int_equal(tokenizer_added_id(tok, "<b>"), 260);
    tokenizer_close(tok);
    json_decref(root);
}

/* The next free ids, in transformers' order: by the decoder's numbers, named ones, the others. */
static void numbers_configured_tokens(void **state)
{
    static const struct {
        const char *config;
        int32_t a, b, c; /* -1: there is no such token */
        int special;     /* a, b, c as bits */
    } cases[] = {
        {"{\"added_tokens_decoder\": {\"1000\": {\"content\": \"<a>\"}, \"999\": {\"content\": "
         "\"<b>\", \"special\": true}}, \"additional_special_tokens\": [\"<c>\", \"<a>\"]}",
         313, 312, 314, 6},
        {"{\"added_tokens_decoder\": {\"-1\": {\"content\": \"<a>\"}, \"311\": {\"content\": "
         "\"<c>\"}}}",
         312, -1, 313, 0},
        {"{\"pad_token\": \"<b>\", \"eos_token\": {\"content\": \"<c>\"}, \"unk_token\": \"\", "
         "\"image_token\": \"<a>\", \"add_token\": 1, \"bos_token\": null}",
         314, 313, 312, 7},
        {"{\"extra_special_tokens\": {\"x\": \"<a>\", \"y\": \"<b>\"}, "
         "\"additional_special_tokens\": [\"<c>\"]}",
         312, 313, 314, 7},
        {"{\"extra_special_tokens\": {}, \"additional_special_tokens\": [\"<c>\"]}", -1, -1, 312,
         4},
        {"{\"extra_special_tokens\": [], \"additional_special_tokens\": [\"<c>\"]}", -1, -1, 312,
         4},
        {"{\"extra_special_tokens\": [\"<b>\"], \"additional_special_tokens\": [\"<c>\"]}", -1, 312,
         -1, 2},
        {"{\"extra_special_tokens\": {\"x\": \"<b>\"}, \"model_specific_special_tokens\": "
         "{\"y\": \"<c>\"}}",
         -1, 312, -1, 2},
        {"{\"extra_special_tokens\": {}, \"model_specific_special_tokens\": {\"y\": \"<c>\"}}", -1,
         -1, 312, 4},
        {"{\"extra_special_tokens\": [\"<b>\", \"\", {\"content\": \"<c>\"}]}", -1, 312, 313, 2},
        /* Those of the vocabulary keep theirs. */
        {"{\"pad_token\": \"abc\", \"additional_special_tokens\": [\"<a>\", \"12\", \"<c>\"]}", 312,
         -1, 313, 5},
    };
    (void)state;
    json_t *root = small_json();
    small_set(root, "added_tokens", "[{\"id\": 311, \"content\": \"<d>\"}]");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Tokenizer *tok = open_configured(root, cases[i].config);
        if (!tok) fail_msg("case %zu: %s", i, err.msg);
        const int32_t got[] = {tokenizer_added_id(tok, "<a>"), tokenizer_added_id(tok, "<b>"),
                               tokenizer_added_id(tok, "<c>")};
        if (got[0] != cases[i].a || got[1] != cases[i].b || got[2] != cases[i].c)
            fail_msg("case %zu: %d %d %d", i, got[0], got[1], got[2]);
        for (int k = 0; k < 3; k++)
            assert_int_equal(tokenizer_is_special(tok, got[k]), cases[i].special >> k & 1);
        int is_last = i + 1 == sizeof cases / sizeof *cases;
        assert_int_equal(tokenizer_added_id(tok, "abc"), is_last ? 301 : -1);
        assert_int_equal(tokenizer_is_special(tok, 302), is_last);
        tokenizer_close(tok);
    }
    json_decref(root);
}

static void expect_bad_file(const char *data, size_t len)
{
    char *path = temp_path("bad.json");
    write_file(path, data, len);
    err = (Error){0};
    assert_null(tokenizer_open(path, &err));
    assert_int_equal(err.code, ERR_FILE);
    assert_non_null(strstr(err.msg, path));
    unlink(path);
    mem_free(path);
}

static void refuses_damaged_files(void **state)
{
    (void)state;
    json_t *root = small_json();
    char *text = json_dumps(root, 0);
    size_t len = strlen(text);
    for (size_t cut = 0; cut < len; cut += 1 + cut / 7)
        expect_bad_file(text, cut);
    expect_bad_file(text, len - 1);
    memcpy(strstr(text, "\"ab\": 300"), "\"c\" : 300", 9);
    expect_bad_file(text, len);
    assert_non_null(strstr(err.msg, "model.vocab: 'c' is given twice"));
    free(text);
    json_decref(root);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n";
    expect_bad_file(pointer, sizeof pointer - 1);
    assert_non_null(strstr(err.msg, "is a pointer of Git LFS: 'git lfs pull' gets the file"));
    expect_bad_file("7", 1);
    expect_bad_file("[]", 2);
    expect_bad_file("{\"a\": \"\xFF\"}", 10);
    expect_bad_file("{\"model\": 1, \"model\": 2}", 24);

    char *deep = mem_alloc(100000, 1);
    memset(deep, '[', 100000);
    expect_bad_file(deep, 100000);
    mem_free(deep);
    assert_null(tokenizer_open("build/tests/no such file", &err));
    assert_non_null(strstr(err.msg, "no such file"));
    assert_null(tokenizer_open("tests", &err));
}

/*
 * A byte of the file is another: where it is no JSON any more, in the tables or around them, it is
 * refused.
 */
static void accepts_json_alone(void **state)
{
    static const char bytes[] = {'"', '\\', ',', ':', '{', ']', ' ', '1', '-', 'x', '\n', 0};
    (void)state;
    json_t *root = small_json();
    char *text = json_dumps(root, 0);
    size_t len = strlen(text);
    const char *end_of_vocab = strstr(text, "\"abc\": 301");
    assert_non_null(end_of_vocab);
    int n_refused = 0;
    for (size_t at = (size_t)(end_of_vocab - text) - 20; at < len; at++) {
        char was = text[at];
        for (size_t i = 0; i < sizeof bytes; i++) {
            text[at] = bytes[i];
            json_t *other = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
            if (!other) expect_bad_file(text, len);
            n_refused += !other;
            json_decref(other);
        }
        text[at] = was;
    }
    if (n_refused < 500) fail_msg("%d refused", n_refused);
    free(text);
    json_decref(root);
}

/* Tables in any order, keys and symbols written with escapes, and blanks and lines between all. */
static void reads_odd_spellings(void **state)
{
    static const int32_t abc[] = {301};
    (void)state;
    json_t *root = small_json();
    json_t *model = json_object_get(root, "model");
    char *vocab = json_dumps(json_object_get(model, "vocab"), JSON_INDENT(1) | JSON_ENSURE_ASCII);
    char *added = json_dumps(json_object_get(root, "added_tokens"), 0);
    char *pre = json_dumps(json_object_get(root, "pre_tokenizer"), 0);
    StrBuf text = {0};
    strbuf_printf(&text,
                  "\n{\"vocab\": {}, \"\\u006dodel\" : {\"merges\": [ [\"a\" , \"\\u0062\"],\n"
                  "\"ab\\u0020c\" ] ,\"voc\\u0061b\":%s\n}, \"pre_tokenizer\": %s,"
                  "\"added_tokens\": %s}",
                  vocab, pre, added);
    char *path = temp_path("odd.json");
    write_file(path, text.data, text.len);
    Tokenizer *tok = tokenizer_open(path, &err);
    if (!tok) fail_msg("%s", err.msg);
    expect_ids(tok, "abc", 3, abc, 1);
    tokenizer_close(tok);
    text.data[text.len - 1] = ' '; /* the line is that of the file */
    write_file(path, text.data, text.len);
    assert_null(tokenizer_open(path, &err));
    int n_lines = 1;
    for (const char *at = text.data; (at = strchr(at, '\n')); at++)
        n_lines++;
    char line[32];
    snprintf(line, sizeof line, "line %d:", n_lines);
    if (!strstr(err.msg, line)) fail_msg("%s, not %s", err.msg, line);
    text.data[text.len - 1] = '}';
    *strstr(text.data, "u0020") = 'x'; /* in a table */
    write_file(path, text.data, text.len);
    assert_null(tokenizer_open(path, &err));
    assert_non_null(strstr(err.msg, "line 3: model.merges is not valid JSON"));
    unlink(path);
    mem_free(path);
    strbuf_free(&text);
    free(vocab), free(added), free(pre);
    json_decref(root);
}

static void reads_all_layouts(void **state)
{
    static const int32_t abc[] = {301}, one_two[] = {16, 17}, twelve[] = {302};
    static const char e_acute[] = "e\xCC\x81";
    (void)state;
    /* Merges as strings, as older files have them; no type; a switch that is off in another way. */
    json_t *root = small_json();
    small_set(root, "model/merges", "[\"a b\", \"ab c\", \"1 2\"]");
    small_set(root, "model/type", NULL);
    small_set(root, "model/dropout", "0.0");
    small_set(root, "model/unk_token", "\"\"");
    Tokenizer *tok = small_open(root, &err);
    assert_non_null(tok);
    expect_ids(tok, "abc", 3, abc, 1);
    expect_ids(tok, "12", 2, one_two, 2);
    TokenList list = encode_text(tok, e_acute, 3);
    assert_int_equal(list.n, 2); /* form C */
    token_list_free(&list);
    tokenizer_close(tok);

    /* ByteLevel alone: GPT-2's regex, in which digits stay together. No normalizer. */
    small_set(root, "normalizer", "null");
    small_set(root, "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}");
    tok = small_open(root, &err);
    assert_non_null(tok);
    expect_ids(tok, "12", 2, twelve, 1);
    list = encode_text(tok, e_acute, 3);
    assert_int_equal(list.n, 3);
    token_list_free(&list);
    tokenizer_close(tok);

    /* Two splits and a ByteLevel with its own: each cuts the pieces of the one before. */
    small_set(
        root, "pre_tokenizer",
        "{\"type\": \"Sequence\", \"pretokenizers\": ["
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?=2)\"}, \"behavior\": \"Isolated\"},"
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"c\"}, \"behavior\": \"Isolated\"},"
        "{\"type\": \"ByteLevel\", \"use_regex\": true}]}");
    tok = small_open(root, &err);
    assert_non_null(tok);
    expect_ids(tok, "1212", 4, (int32_t[]){16, 17, 16, 17}, 4);
    expect_ids(tok, "ab", 2, (int32_t[]){300}, 1);
    expect_ids(tok, "abc", 3, (int32_t[]){300, 66}, 2);
    tokenizer_close(tok);

    /* A template that adds nothing, as transformers 5 writes it. */
    small_set(root, "post_processor",
              "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\", "
              "\"type_id\": 0}}], \"special_tokens\": {}}");
    tok = small_open(root, &err);
    assert_non_null(tok);
    expect_ids(tok, "abc", 3, (int32_t[]){300, 66}, 2);
    tokenizer_close(tok);

    /* An added token that is also in the vocabulary, as some files have it. */
    small_set(root, "added_tokens/1/content", "\"abc\"");
    small_set(root, "added_tokens/1/id", "301");
    tok = small_open(root, &err);
    assert_non_null(tok);
    assert_true(tokenizer_is_special(tok, 301));
    tokenizer_close(tok);
    json_decref(root);
}

/* Expressions that backtrack for ever end with an error, not with a crash or an endless loop. */
static void bounds_the_regex(void **state)
{
    static const char *const regexes[] = {"\"(?:a|ab|b)+c\"", "\"(a|b|ab)*(a|b|ba)*d\"",
                                          "\"(?:(a)|(b))+\""};
    int n_limited = 0;
    const int32_t want = 64;
    (void)state;
    size_t len = 1 << 19;
    char *text = mem_alloc(len, 1);
    for (size_t i = 0; i < len; i++)
        text[i] = i < len / 2 ? 'a' : 'b';
    for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++) {
        json_t *root = small_json();
        small_set(root, "pre_tokenizer/pretokenizers/0/pattern/Regex", regexes[i]);
        Tokenizer *tok = small_open(root, &err);
        assert_non_null(tok);
        TokenList list = {0};
        if (tokenizer_encode(tok, text, len, &list, &err)) {
            assert_int_equal(err.code, ERR_LIMIT);
            n_limited++;
        }
        token_list_free(&list);
        /*
         * A tenth needs more than the stack of compiled code, but not more than the heap's limit.
         */
        if (i == 2) {
            list = encode_text(tok, text, len / 10);
            assert_int_equal(list.n, len / 10);
            assert_int_equal(list.id[list.n - 1], want);
            token_list_free(&list);
        }
        tokenizer_close(tok);
        json_decref(root);
    }
    assert_true(n_limited >= 2);
    mem_free(text);
}

/*
 * Forty letters, 2^40 ways to group them. And fewer ways, but for each of many letters, whether the
 * letter is matched in the end or passed over.
 */
static void stops_endless_backtracking(void **state)
{
    static const struct {
        const char *regex;
        size_t n_letters;
    } cases[] = {
        {"\"(?:a+)+[xy]\"", 40}, {"\"(?:a|a){20}[xy]|a\"", 100}, {"\"(?:a|a){12}[xy]\"", 10000}};
    static char text[10000];
    (void)state;
    memset(text, 'a', sizeof text);
    for (int i = 0; i < 3; i++) {
        TokenList list = {0};
        json_t *root = small_json();
        small_set(root, "pre_tokenizer/pretokenizers/0/pattern/Regex", cases[i].regex);
        Tokenizer *tok = small_open(root, &err);
        assert_non_null(tok);
        assert_int_equal(tokenizer_encode(tok, text, cases[i].n_letters, &list, &err), -1);
        assert_int_equal(err.code, ERR_LIMIT);
        token_list_free(&list);
        tokenizer_close(tok);
        json_decref(root);
    }
}

static void opens_golden_tokenizers(void **state)
{
    static const char *const names[] = {"qwen3-next", "qwen35-dense", "qwen35-dense-fp8",
                                        "qwen35-dense-odd", "qwen35-moe"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[100];
        snprintf(path, sizeof path, "tests/data/golden/%s/tokenizer.json", names[i]);
        Tokenizer *tok = tokenizer_open(path, &err);
        if (!tok) fail_msg("%s", err.msg);
        assert_int_equal(tokenizer_size(tok), 259);
        assert_int_equal(tokenizer_added_id(tok, "<|im_end|>"), 258);
        for (int b = 0; b < 256; b++)
            assert_true(byte_token(tok, (unsigned char)b) >= 0);
        tokenizer_close(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_file_is_fine),
        cmocka_unit_test(splits_like_oniguruma),
        cmocka_unit_test(finds_a_normalized_token),
        cmocka_unit_test(reads_what_python_writes),
        cmocka_unit_test(knows_two_tokens_of_one_text),
        cmocka_unit_test(finds_normalized_tokens_second),
        cmocka_unit_test(finds_a_shorter_token_before_a_client),
        cmocka_unit_test(takes_the_longest_added_token),
        cmocka_unit_test(names_what_is_wrong),
        cmocka_unit_test(refuses_damaged_files),
        cmocka_unit_test(takes_configured_tokens),
        cmocka_unit_test(numbers_configured_tokens),
        cmocka_unit_test(accepts_json_alone),
        cmocka_unit_test(reads_odd_spellings),
        cmocka_unit_test(reads_all_layouts),
        cmocka_unit_test(bounds_the_regex),
        cmocka_unit_test(stops_endless_backtracking),
        cmocka_unit_test(opens_golden_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
