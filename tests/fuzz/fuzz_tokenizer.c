/*
 * fuzz_tokenizer.c: a tokenizer.json, then the way of a text to tokens and back.
 *
 * Input: {"tokenizer": ..., "tokenizer_config": the file beside it, "text": "..."}; anything else
 * is a tokenizer.json as it is. A vocabulary needs a symbol for each of the 256 bytes; to keep
 * inputs small and mutations away from that, those that are missing are added here, with the ids
 * from "first".
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>

#include "text/detokenizer.h"
#include "text/encoder.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

enum { MAX_ID_OF_SEEDS = 1 << 16 };

/* In slices of any length the same happens as in one go, and a mark somewhere changes nothing. */
static void check_slices(const Tokenizer *tok, const char *text, size_t len, int special,
                         const TokenList *ids, int rc, size_t slice)
{
    TokenList got = {0};
    Error err = {0};
    TextSpan all = {0, len};
    Encoder *e = encoder_open(tok, text, len, &all, !special, &got, &err);
    int more = e ? 1 : -1;
    if (e) encoder_mark(e, slice % (len + 1));
    while (more > 0) {
        size_t budget = slice;
        more = encoder_some(e, &budget, &err);
    }
    if (e) FUZZ_CHECK(encoder_stable(e) >= 0 && encoder_stable(e) <= got.n);
    encoder_close(e);
    FUZZ_CHECK(more == rc && got.n == ids->n);
    for (int i = 0; i < got.n; i++)
        FUZZ_CHECK(got.id[i] == ids->id[i]);
    token_list_free(&got);
}

/* Every token of text, its bytes joined, is the text again, unless Unicode's form C changed it. */
static void check_round_trip(const Tokenizer *tok, const char *text, size_t len, int special,
                             int exact)
{
    TokenList ids = {0};
    StrBuf out = {0};
    Detokenizer back;
    Error err = {0};
    int rc = tokenizer_encode_prompt(tok, text, len, &(TextSpan){0, len}, !special, &ids, &err);
    FUZZ_CHECK(!rc || *err.msg);
    check_slices(tok, text, len, special, &ids, rc, 1 + len % 5);
    detokenizer_init(&back, tok, 1);
    for (int i = 0; i < ids.n; i++) {
        FUZZ_CHECK(tokenizer_has(tok, ids.id[i]));
        detokenizer_push(&back, ids.id[i], &out);
    }
    detokenizer_finish(&back, &out);
    FUZZ_CHECK(utf8_check(strbuf_str(&out), out.len) == out.len);
    if (!rc && exact) FUZZ_CHECK(out.len == len && (!len || !memcmp(out.data, text, len)));
    strbuf_free(&out);
    token_list_free(&ids);
}

static void check_tokenizer(const Tokenizer *tok, const char *text, size_t len, int exact)
{
    size_t n;
    for (int32_t id = -1; id <= tokenizer_size(tok) && id < MAX_ID_OF_SEEDS; id++) {
        const char *bytes = tokenizer_bytes(tok, id, &n);
        FUZZ_CHECK(tokenizer_has(tok, id) == (n > 0));
        if (tokenizer_is_special(tok, id)) {
            char content[64];
            if (n >= sizeof content) continue;
            memcpy(content, bytes, n);
            content[n] = 0;
            FUZZ_CHECK(tokenizer_added_id(tok, content) == id);
        }
    }
    check_round_trip(tok, text, len, 0, exact);
    check_round_trip(tok, text, len, 1, exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char usual[] = "I don't  know 12 \xC3\xA9\xCC\x81 words\n\n\t<|im_end|>!?";
    Error err = {0};
    json_t *root = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    const json_t *file = json_object_get(root, "tokenizer"), *text = json_object_get(root, "text");
    const json_t *config = json_object_get(root, "tokenizer_config");
    json_t *vocab = json_object_get(json_object_get(file, "model"), "vocab");
    int exact = file && !json_object_get(file, "normalizer");
    if (json_is_object(vocab)) {
        json_int_t first = json_integer_value(json_object_get(root, "first"));
        fuzz_byte_symbols(vocab, first < 0 || first > MAX_ID_OF_SEEDS ? 0 : first);
    }
    if (file)
        fuzz_file_json("tokenizer.json", file);
    else
        fuzz_file("tokenizer.json", data, size);
    if (config) fuzz_file_json("tokenizer_config.json", config);
    Tokenizer *tok = tokenizer_open(FUZZ_DIR "/tokenizer.json", &err);
    FUZZ_CHECK(tok || *err.msg);
    if (tok && json_is_string(text))
        check_tokenizer(tok, json_string_value(text), json_string_length(text), exact);
    else if (tok)
        check_tokenizer(tok, usual, sizeof usual - 1, exact);
    tokenizer_close(tok);
    json_decref(root);
    fuzz_files_clear();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
