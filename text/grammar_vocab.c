/*
 * grammar_vocab.c: see grammar_vocab.h.
 */
#include "text/grammar_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

typedef struct {
    const char *bytes;
    size_t len;
    int32_t id;
} Entry;

static int compare(const void *a, const void *b)
{
    const Entry *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->bytes, y->bytes, n);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static void set_bit(uint64_t *set, int32_t id)
{
    set[id / 64] |= UINT64_C(1) << (id % 64);
}

int grammar_vocab_is_text(const GrammarVocab *v, int32_t id)
{
    return id >= 0 && id < v->n_vocab && v->text[id / 64] >> (id % 64) & 1;
}

/*
 * Bytes up to and with the last that is not plain: no whole character, or one that a string has to
 * escape. A run of plain bytes that begins between characters is plain text.
 */
static size_t last_unplain(const char *bytes, size_t len)
{
    size_t last = 0;
    for (size_t i = 0; i < len;) {
        uint8_t first = (uint8_t)bytes[i];
        int n = utf8_step((const unsigned char *)bytes + i, len - i);
        int is_plain = n > 0 && first >= 0x20 && first != '"' && first != '\\';
        i += n > 0 ? (size_t)n : 1;
        if (!is_plain) last = i;
    }
    return last;
}

static size_t last_bracket(const char *bytes, size_t len)
{
    while (len && bytes[len - 1] != '<')
        len--;
    return len;
}

static GrammarVocabToken describe(const Entry *e, const Entry *before)
{
    size_t shared = 0;
    while (before && shared < e->len && shared < before->len &&
           e->bytes[shared] == before->bytes[shared])
        shared++;
    return (GrammarVocabToken){.id = e->id,
                               .len = (uint8_t)e->len,
                               .shared = (uint8_t)shared,
                               .unplain = (uint8_t)last_unplain(e->bytes, e->len),
                               .bracket = (uint8_t)last_bracket(e->bytes, e->len)};
}

/* The tokens with their bytes, of entries in order. */
static void add_tokens(GrammarVocab *v, const Entry *entry)
{
    size_t n_bytes = 0;
    for (int i = 0; i < v->n; i++)
        n_bytes += entry[i].len;
    v->token = mem_alloc((size_t)v->n + 1, sizeof *v->token);
    v->bytes = mem_alloc(n_bytes + 1, 1);
    n_bytes = 0;
    for (int i = 0; i < v->n; i++) {
        v->token[i] = describe(&entry[i], i ? &entry[i - 1] : NULL);
        v->token[i].first = (uint32_t)n_bytes;
        memcpy(v->bytes + n_bytes, entry[i].bytes, entry[i].len);
        n_bytes += entry[i].len;
    }
}

static void forget_added(GrammarVocab *v)
{
    int n;
    const int32_t *added = tokenizer_added(v->tok, &n);
    for (int i = 0; i < n; i++)
        if (added[i] < v->n_vocab) v->text[added[i] / 64] &= ~(UINT64_C(1) << (added[i] % 64));
    for (int i = 0; i < v->n_end; i++)
        if (v->end[i] < v->n_vocab) {
            v->text[v->end[i] / 64] &= ~(UINT64_C(1) << (v->end[i] % 64));
            v->all[v->end[i] / 64] &= ~(UINT64_C(1) << (v->end[i] % 64));
        }
}

GrammarVocab *grammar_vocab_open(const Tokenizer *tok, int n_vocab, const int32_t *end, int n_end)
{
    GrammarVocab *v = mem_alloc(1, sizeof *v);
    Entry *entry = mem_alloc((size_t)n_vocab, sizeof *entry);
    *v = (GrammarVocab){.tok = tok, .n_vocab = n_vocab, .n_words = ((size_t)n_vocab + 63) / 64};
    v->text = mem_alloc(v->n_words, sizeof *v->text);
    v->all = mem_alloc(v->n_words, sizeof *v->all);
    v->end = mem_alloc((size_t)n_end + 1, sizeof *v->end);
    memcpy(v->end, end, (size_t)n_end * sizeof *end);
    v->n_end = n_end;
    for (int32_t id = 0; id < n_vocab; id++) {
        size_t len;
        tokenizer_bytes(tok, id, &len);
        if (tokenizer_has(tok, id)) set_bit(v->all, id);
        if (tokenizer_has(tok, id) && len && len <= MAX_GRAMMAR_TOKEN) set_bit(v->text, id);
    }
    forget_added(v);
    for (int32_t id = 0; id < n_vocab; id++) {
        if (!grammar_vocab_is_text(v, id)) continue;
        Entry *e = &entry[v->n++];
        e->bytes = tokenizer_bytes(tok, id, &e->len);
        e->id = id;
    }
    qsort(entry, (size_t)v->n, sizeof *entry, compare);
    add_tokens(v, entry);
    mem_free(entry);
    return v;
}

void grammar_vocab_close(GrammarVocab *v)
{
    if (!v) return;
    mem_free(v->token);
    mem_free(v->bytes);
    mem_free(v->text);
    mem_free(v->all);
    mem_free(v->end);
    mem_free(v);
}
