/* tokenizer.c: see tokenizer.h. Reading the file is in tokenizer_file.c, encoding in encoder.c. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "text/encoder.h"
#include "text/tokenizer_parts.h"

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

static void free_added(AddedTokens *added)
{
    mem_free(added->token);
    strbuf_free(&added->text);
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
    mem_free(tok->added_id);
    free_added(&tok->literal);
    free_added(&tok->normalised);
    mem_free(tok);
}

static unsigned char added_byte(const AddedTokens *added, int i, size_t at)
{
    const AddedToken *t = &added->token[i];
    return at < t->len ? (unsigned char)added->text.data[t->start + at] : 0;
}

/* First of the tokens [lo, hi), equal up to byte `at`, whose byte there is >= value. */
static int added_bound(const AddedTokens *added, int lo, int hi, size_t at, int value)
{
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (added_byte(added, mid, at) < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

size_t tokenizer_match_added(const AddedTokens *added, const char *text, size_t len, int32_t *id)
{
    int lo = 0, hi = added->n;
    size_t longest = 0;
    for (size_t at = 0; at < len && lo < hi; at++) {
        int c = (unsigned char)text[at];
        if (!c) break; /* added tokens hold no NUL; added_byte uses it for "ended" */
        /* Soon all that are left agree: then there is nothing to search. */
        if (added_byte(added, lo, at) != c) lo = added_bound(added, lo, hi, at, c);
        if (lo < hi && added_byte(added, hi - 1, at) != c)
            hi = added_bound(added, lo, hi, at, c + 1);
        if (lo == hi) break;
        if (added->token[lo].len != at + 1) continue;
        longest = at + 1;
        *id = added->token[lo].id;
    }
    return longest;
}

int tokenizer_encode_prompt(const Tokenizer *tok, const char *text, size_t len,
                            const TextSpan *plain, int n_plain, TokenList *out, Error *err)
{
    int rc = 1;
    Encoder *e = encoder_open(tok, text, len, plain, n_plain, out, err);
    if (!e) return -1;
    while (rc > 0) {
        size_t budget = SIZE_MAX;
        rc = encoder_some(e, &budget, err);
    }
    encoder_close(e);
    return rc;
}

int tokenizer_encode(const Tokenizer *tok, const char *text, size_t len, TokenList *out, Error *err)
{
    return tokenizer_encode_prompt(tok, text, len, NULL, 0, out, err);
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

/* The next byte of a list that is read from *at in its first token on, or -1 at its end. */
static int next_byte(const Tokenizer *tok, const int32_t **id, int *n, size_t *at)
{
    for (; *n; ++*id, --*n, *at = 0) {
        size_t len;
        const char *bytes = vocab_bytes(&tok->vocab, **id, &len);
        if (*at < len) return (unsigned char)bytes[(*at)++];
    }
    return -1;
}

int tokenizer_same_text(const Tokenizer *tok, const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    size_t at_a = 0, at_b = 0;
    for (long n = 0;; n++) {
        int x = next_byte(tok, &a, &n_a, &at_a), y = next_byte(tok, &b, &n_b, &at_b);
        if (x < 0 || y < 0) return n > 0;
        if (x != y) return 0;
    }
}

int tokenizer_is_special(const Tokenizer *tok, int32_t id)
{
    return tokenizer_has(tok, id) && tok->vocab.token[id].special;
}

const int32_t *tokenizer_added(const Tokenizer *tok, int *n)
{
    *n = tok->n_added;
    return tok->added_id;
}

int32_t tokenizer_added_id(const Tokenizer *tok, const char *content)
{
    int lo = 0, hi = tok->n_added;
    while (lo < hi) {
        size_t len;
        int mid = lo + (hi - lo) / 2;
        const char *bytes = vocab_bytes(&tok->vocab, tok->added_id[mid], &len);
        int order = strncmp(content, bytes, len);
        if (!order && !content[len]) return tok->added_id[mid];
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}
