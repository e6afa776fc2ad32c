/*
 * fuzz_text.c: any text, any tokens and any stop strings, with the demo model's tokenizer.
 *
 * Input: two bytes (how many stop strings, flags), the stop strings, each ended by a NUL, then the
 * text, which is also taken as a list of token ids.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "text/detokenizer.h"
#include "text/nfc.h"
#include "text/reply_watch.h"
#include "text/stop.h"
#include "text/utf8.h"

static const char TOKENIZER[] = "models/demo/tokenizer.json";

/* Text comes back as its form C, and is refused if and only if it is not UTF-8. */
static void check_encode(const Tokenizer *tok, const char *text, size_t len)
{
    TokenList ids = {0};
    StrBuf out = {0};
    NfcScratch scratch = {0};
    Detokenizer back;
    Error err = {0};
    size_t n_valid = utf8_check(text, len);
    int rc = tokenizer_encode_prompt(tok, text, len, &(TextSpan){0, len}, 1, &ids, &err);
    FUZZ_CHECK((rc != 0) == (n_valid < len));
    detokenizer_init(&back, tok, 1);
    for (int i = 0; i < ids.n; i++)
        detokenizer_push(&back, ids.id[i], &out);
    detokenizer_finish(&back, &out);
    if (!rc) {
        StrBuf expected = {0};
        nfc_append(&scratch, text, len, &expected);
        FUZZ_CHECK(out.len == expected.len &&
                   !memcmp(strbuf_str(&out), strbuf_str(&expected), out.len));
        strbuf_free(&expected);
    }
    ids.n = 0;
    FUZZ_CHECK(tokenizer_encode(tok, text, n_valid, &ids, &err) == 0);
    nfc_scratch_free(&scratch);
    strbuf_free(&out);
    token_list_free(&ids);
}

/*
 * What a cutter lets out of text in which it has stopped, found the slow way: everything before the
 * longest of the stop strings that end first.
 */
static size_t cut_length(const StrBuf *text, const char *const *stop, int n, int include)
{
    size_t len[MAX_STOP_STRINGS];
    for (int i = 0; i < n; i++)
        len[i] = strlen(stop[i]);
    for (size_t end = 1; end <= text->len; end++) {
        size_t longest = 0;
        for (int i = 0; i < n; i++)
            if (len[i] > longest && len[i] <= end &&
                !memcmp(text->data + end - len[i], stop[i], len[i]))
                longest = len[i];
        if (longest) return include ? end : end - longest;
    }
    return text->len;
}

/* Watch and cutter stop at the same token, the cutter at the right byte. */
static void check_stops(const Tokenizer *tok, const char *const *stop, int n, const TokenList *ids,
                        int include)
{
    ReplyOptions o = {.scan = {.tok = tok}, .stop = stop, .n_stop = n};
    ReplyWatch *watch = reply_watch_open(&o, NULL);
    if (!watch) return;
    StopCutter *cutter = stop_cutter_open(stop, n);
    Watcher watcher = reply_watch_watcher(watch);
    Detokenizer d;
    StrBuf text = {0}, out = {0};
    int stopped = 0;
    detokenizer_init(&d, tok, 0);
    for (int i = 0; i < ids->n && !stopped; i++) {
        size_t before = text.len;
        detokenizer_push(&d, ids->id[i], &text);
        stopped =
            stop_cutter_push(cutter, strbuf_str(&text) + before, text.len - before, include, &out);
        FUZZ_CHECK(stopped == (watcher.token(watcher.self, ids->id[i]) == WATCH_STOP));
    }
    stop_cutter_break(cutter, &out);
    FUZZ_CHECK(out.len == cut_length(&text, stop, n, include));
    FUZZ_CHECK(!memcmp(strbuf_str(&out), strbuf_str(&text), out.len));
    stop_cutter_close(cutter);
    reply_watch_close(watch);
    strbuf_free(&text);
    strbuf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static Tokenizer *tok;
    const char *stop[MAX_STOP_STRINGS + 1];
    int n_stop = 0;
    if (!tok) tok = tokenizer_open(TOKENIZER, NULL);
    FUZZ_CHECK(tok);
    if (size < 2) return 0;
    int n = data[0] % (MAX_STOP_STRINGS + 2), flags = data[1];
    size_t len = size - 2;
    char *input = malloc(len), *text = input; /* mem_alloc would round up, and so hide the end */
    FUZZ_CHECK(input);
    memcpy(input, data + 2, len);
    while (n_stop < n) {
        const char *end = memchr(text, 0, len);
        if (!end) break;
        stop[n_stop++] = text;
        len -= (size_t)(end + 1 - text);
        text += end + 1 - text;
    }
    TokenList ids = {0};
    for (size_t i = 0; i + 1 < len; i += 2)
        token_list_add(&ids, (unsigned char)text[i] << 4 | (unsigned char)text[i + 1] >> 4);
    check_stops(tok, stop, n_stop, &ids, flags & 1);
    ids.n = 0;
    check_encode(tok, text, len);
    TextSpan valid = {0, utf8_check(text, len)};
    (void)tokenizer_encode_prompt(tok, text, valid.len, &valid, !(flags >> 1 & 1), &ids, NULL);
    check_stops(tok, stop, n_stop, &ids, flags & 1);
    token_list_free(&ids);
    free(input);
    return 0;
}
