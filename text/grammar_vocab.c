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

static GrammarVocabToken describe(const Entry *e, size_t first)
{
    return (GrammarVocabToken){.id = e->id,
                               .first = (uint32_t)first,
                               .len = (uint8_t)e->len,
                               .unplain = (uint8_t)last_unplain(e->bytes, e->len),
                               .bracket = (uint8_t)last_bracket(e->bytes, e->len)};
}

/* All tokens with their bytes, of entries in order. */
static GrammarTokens describe_all(GrammarVocab *v, const Entry *entry, int n)
{
    GrammarTokens all = {mem_alloc((size_t)n + 1, sizeof *all.token), n};
    size_t n_bytes = 0;
    for (int i = 0; i < n; i++)
        n_bytes += entry[i].len;
    v->bytes = mem_alloc(n_bytes + 1, 1);
    n_bytes = 0;
    for (int i = 0; i < n; i++) {
        all.token[i] = describe(&entry[i], n_bytes);
        memcpy(v->bytes + n_bytes, entry[i].bytes, entry[i].len);
        n_bytes += entry[i].len;
    }
    return all;
}

/* ---- the lists ---- */

static int is_known_as(const GrammarVocabToken *t, GrammarKnown what)
{
    switch (what) {
    case KNOWN_PLAIN:
        return !t->unplain;
    case KNOWN_PLAIN_16:
        return !t->unplain && t->len <= 16;
    case KNOWN_PLAIN_8:
        return !t->unplain && t->len <= 8;
    case KNOWN_PLAIN_TEXT:
        return !t->unplain && !t->bracket;
    case KNOWN_TEXT:
        return !t->bracket;
    case KNOWN_NONE:
    case N_KNOWN:
        break;
    }
    return 0;
}

static int count_shared(const GrammarVocab *v, const GrammarVocabToken *a,
                        const GrammarVocabToken *b)
{
    int n = 0;
    while (n < a->len && n < b->len && v->bytes[a->first + n] == v->bytes[b->first + n])
        n++;
    return n;
}

/* What tokens of a list have in common with the ones before and behind them. */
static void join_list(const GrammarVocab *v, GrammarTokens *list)
{
    GrammarVocabToken *token = list->token;
    for (int i = 1; i < list->n; i++)
        token[i].shared = (uint8_t)count_shared(v, &token[i - 1], &token[i]);
    for (int i = list->n - 1; i >= 0; i--) {
        int after = i + 1;
        while (after < list->n && token[after].shared >= token[i].shared)
            after = token[after].after;
        token[i].after = after;
    }
}

static int is_in_list(const GrammarVocabToken *t, int are_far, GrammarKnown what)
{
    return (t->len > NEAR_BYTES) == are_far && !is_known_as(t, what);
}

/* The far tokens of all, or the near ones that are not known as `what`. */
static GrammarTokens list_of(const GrammarVocab *v, const GrammarTokens *all, int are_far,
                             GrammarKnown what)
{
    GrammarTokens list = {0};
    for (int i = 0; i < all->n; i++)
        list.n += is_in_list(&all->token[i], are_far, what);
    list.token = mem_alloc((size_t)list.n + 1, sizeof *list.token);
    list.n = 0;
    for (int i = 0; i < all->n; i++)
        if (is_in_list(&all->token[i], are_far, what)) list.token[list.n++] = all->token[i];
    join_list(v, &list);
    return list;
}

static uint64_t *known_of(const GrammarVocab *v, const GrammarTokens *all, GrammarKnown what)
{
    uint64_t *known = mem_alloc(v->n_words, sizeof *known);
    for (int i = 0; i < all->n; i++)
        if (all->token[i].len <= NEAR_BYTES && is_known_as(&all->token[i], what))
            set_bit(known, all->token[i].id);
    return known;
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
    if (n_end) memcpy(v->end, end, (size_t)n_end * sizeof *end);
    v->n_end = n_end;
    for (int32_t id = 0; id < n_vocab; id++) {
        size_t len;
        tokenizer_bytes(tok, id, &len);
        if (tokenizer_has(tok, id)) set_bit(v->all, id);
        if (tokenizer_has(tok, id) && len && len <= MAX_GRAMMAR_TOKEN) set_bit(v->text, id);
    }
    forget_added(v);
    int n = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (!grammar_vocab_is_text(v, id)) continue;
        Entry *e = &entry[n++];
        e->bytes = tokenizer_bytes(tok, id, &e->len);
        e->id = id;
    }
    qsort(entry, (size_t)n, sizeof *entry, compare);
    GrammarTokens all = describe_all(v, entry, n);
    for (int i = 0; i < N_KNOWN; i++) {
        v->known[i] = known_of(v, &all, (GrammarKnown)i);
        v->other[i] = list_of(v, &all, 0, (GrammarKnown)i);
    }
    v->far = list_of(v, &all, 1, KNOWN_NONE);
    mem_free(all.token);
    mem_free(entry);
    return v;
}

void grammar_vocab_close(GrammarVocab *v)
{
    if (!v) return;
    for (int i = 0; i < N_KNOWN; i++) {
        mem_free(v->known[i]);
        mem_free(v->other[i].token);
    }
    mem_free(v->far.token);
    mem_free(v->bytes);
    mem_free(v->text);
    mem_free(v->all);
    mem_free(v->end);
    mem_free(v);
}
