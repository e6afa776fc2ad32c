/* tokenizer.c: see tokenizer.h. Reading the file is in tokenizer_file.c. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "text/nfc.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

/* Form C at most triples a text, and a token has at least one byte: counts stay below 2^31. */
enum { MAX_TEXT_BYTES = 1 << 28 };

void token_list_add(TokenList *list, int32_t id)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 64;
        list->id = mem_realloc(list->id, (size_t)list->cap, sizeof *list->id);
    }
    list->id[list->n++] = id;
}

void token_list_free(TokenList *list)
{
    mem_free(list->id);
    *list = (TokenList){0};
}

Tokenizer *tokenizer_open(const char *path, Error *err)
{
    Tokenizer *tok = mem_alloc(1, sizeof *tok);
    if (!tokenizer_read(tok, path, err)) return tok;
    tokenizer_close(tok);
    return NULL;
}

void tokenizer_close(Tokenizer *tok)
{
    if (!tok) return;
    vocab_free(&tok->vocab);
    bpe_free(&tok->bpe);
    splitter_close(tok->splitter);
    mem_free(tok->added);
    mem_free(tok);
}

typedef struct {
    const Tokenizer *tok;
    BpeScratch bpe;
    NfcScratch nfc;
    TokenList *out;
    Error *err;
} Encoder;

static int encode_piece(void *arg, const char *piece, size_t len)
{
    Encoder *e = arg;
    bpe_encode(&e->tok->bpe, &e->bpe, piece, len, e->out);
    if (!e->out->limit || e->out->n <= e->out->limit) return 0;
    return error_set(e->err, ERR_LIMIT, "text has more than %d tokens", e->out->limit);
}

/* Text that holds no added token, or whose added tokens do not count. */
static int encode_plain(Encoder *e, const char *text, size_t len, Error *err)
{
    if (!len) return 0;
    if (e->tok->nfc) text = nfc_apply(&e->nfc, text, len, &len);
    return splitter_run(e->tok->splitter, text, len, encode_piece, e, err);
}

static unsigned char added_byte(const Tokenizer *tok, int i, size_t at)
{
    size_t len;
    const char *bytes = vocab_bytes(&tok->vocab, tok->added[i], &len);
    return at < len ? (unsigned char)bytes[at] : 0;
}

/* First of the added tokens [lo, hi), equal up to byte `at`, whose byte there is >= value. */
static int added_bound(const Tokenizer *tok, int lo, int hi, size_t at, int value)
{
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (added_byte(tok, mid, at) < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/*
 * Length of the longest added token at the start of text, 0 if none; *id is the token. Added tokens
 * are sorted, so those that agree with the text so far are a range, narrowed byte by byte.
 */
static size_t match_added(const Tokenizer *tok, const char *text, size_t len, int32_t *id)
{
    int lo = 0, hi = tok->n_added;
    size_t longest = 0;
    for (size_t at = 0; at < len && lo < hi; at++) {
        int c = (unsigned char)text[at];
        if (!c) break; /* added tokens hold no NUL; added_byte uses it for "ended" */
        /* Soon all that are left agree: then there is nothing to search. */
        if (added_byte(tok, lo, at) != c) lo = added_bound(tok, lo, hi, at, c);
        if (lo < hi && added_byte(tok, hi - 1, at) != c) hi = added_bound(tok, lo, hi, at, c + 1);
        if (lo == hi) break;
        size_t n;
        vocab_bytes(&tok->vocab, tok->added[lo], &n);
        if (n != at + 1) continue;
        longest = n;
        *id = tok->added[lo];
    }
    return longest;
}

/* Whether text[at..at + len) lies outside of all plain spans; *next is the first that may matter.
 */
static int is_outside(const TextSpan *plain, int n_plain, int *next, size_t at, size_t len)
{
    while (*next < n_plain && plain[*next].from + plain[*next].len <= at)
        ++*next;
    return *next == n_plain || plain[*next].from >= at + len;
}

static int encode(Encoder *e, const char *text, size_t len, const TextSpan *plain, int n_plain,
                  Error *err)
{
    size_t since = 0; /* where the text since the last added token begins */
    int next = 0;
    for (size_t i = 0; i < len;) {
        int32_t id = -1;
        size_t n = 0;
        if (e->tok->starts_added[(unsigned char)text[i]])
            n = match_added(e->tok, text + i, len - i, &id);
        if (!n || !is_outside(plain, n_plain, &next, i, n)) {
            i++;
            continue;
        }
        if (encode_plain(e, text + since, i - since, err)) return -1;
        token_list_add(e->out, id);
        since = i += n;
    }
    return encode_plain(e, text + since, len - since, err);
}

int tokenizer_encode_prompt(const Tokenizer *tok, const char *text, size_t len,
                            const TextSpan *plain, int n_plain, TokenList *out, Error *err)
{
    if (len > MAX_TEXT_BYTES)
        return error_set(err, ERR_LIMIT, "text has %zu bytes, the limit is %d", len,
                         MAX_TEXT_BYTES);
    size_t n_valid = utf8_check(text, len);
    if (n_valid < len)
        return error_set(err, ERR_INPUT, "text is not valid UTF-8 at byte %zu", n_valid);
    Encoder e = {.tok = tok, .out = out, .err = err};
    int rc = encode(&e, text, len, plain, n_plain, err);
    bpe_scratch_free(&e.bpe);
    nfc_scratch_free(&e.nfc);
    return rc;
}

int tokenizer_encode(const Tokenizer *tok, const char *text, size_t len, int parse_special,
                     TokenList *out, Error *err)
{
    TextSpan all = {0, len};
    return tokenizer_encode_prompt(tok, text, len, &all, !parse_special, out, err);
}

int tokenizer_size(const Tokenizer *tok)
{
    return tok->vocab.n;
}

const char *tokenizer_bytes(const Tokenizer *tok, int32_t id, size_t *len)
{
    return vocab_bytes(&tok->vocab, id, len);
}

int tokenizer_has(const Tokenizer *tok, int32_t id)
{
    size_t len;
    vocab_bytes(&tok->vocab, id, &len);
    return len > 0;
}

int tokenizer_is_special(const Tokenizer *tok, int32_t id)
{
    return tokenizer_has(tok, id) && tok->vocab.token[id].special;
}

int32_t tokenizer_added_id(const Tokenizer *tok, const char *content)
{
    int32_t id = -1;
    size_t len = strlen(content);
    return len && match_added(tok, content, len, &id) == len ? id : -1;
}
