/* tokenizer_tables.c: see tokenizer_tables.h. */
#include "text/tokenizer_tables.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

/* ---- errors ---- */

int tokenizer_bad(const TokenizerFile *f, const char *fmt, ...)
{
    char why[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return error_set(f->err, ERR_FILE, "cannot load '%s': %s", f->path, why);
}

/* The form of what json_read_file says. */
static int bad_syntax(const TokenizerFile *f, const JsonCursor *c, const char *table)
{
    int line = 1;
    for (const char *at = f->text; (at = memchr(at, '\n', (size_t)(c->at - at))); at++)
        line++;
    return error_set(f->err, ERR_FILE, "'%s' line %d: %s is not valid JSON", f->path, line, table);
}

ShownSymbol shown_symbol(const char *text, size_t len)
{
    ShownSymbol out = {""};
    size_t n = 0;
    while (len && n < sizeof out.text - 8) {
        int k = utf8_step((const unsigned char *)text, len);
        if (k < 1) break;
        memcpy(out.text + n, text, (size_t)k);
        if ((unsigned char)*text < 0x20 || *text == 0x7F) out.text[n] = '?';
        n += (size_t)k;
        text += k;
        len -= (size_t)k;
    }
    if (len) memcpy(out.text + n, "...", 3);
    return out;
}

#define SHOWN(symbol) shown_symbol((symbol).text, (symbol).len).text

/* ---- finding the tables ---- */

static int is_key(JsonText key, const char *name)
{
    return key.len == strlen(name) && !memcmp(key.text, name, key.len);
}

/* Skips a value; if it opens with `opens` it is a table. */
static int find_table(JsonCursor *c, char opens, JsonText *table)
{
    if (json_cursor_peek(c) != opens) return json_cursor_skip(c);
    const char *from = c->at;
    if (json_cursor_skip(c)) return -1;
    *table = (JsonText){from, (size_t)(c->at - from)};
    return 0;
}

/* In the model. Who reads the rest finds all that is wrong: here that is only where it ends. */
static void find_in_model(TokenizerFile *f, JsonCursor *c)
{
    JsonText key;
    if (!json_cursor_take(c, '{')) return;
    for (size_t n = 0; json_cursor_next(c, '}', n) > 0; n++) {
        if (json_cursor_key(c, &f->symbol, &key)) return;
        int failed = is_key(key, "vocab")    ? find_table(c, '{', &f->vocab)
                     : is_key(key, "merges") ? find_table(c, '[', &f->merges)
                                             : json_cursor_skip(c);
        if (failed) return;
    }
}

/* Its braces and its lines, so that lines behind it have their numbers. */
static void add_empty(StrBuf *rest, JsonText table)
{
    const char *end = table.text + table.len;
    strbuf_add(rest, table.text, 1);
    for (const char *at = table.text; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        strbuf_add(rest, "\n", 1);
    strbuf_add(rest, end - 1, 1);
}

void tokenizer_tables_find(TokenizerFile *f, const char *text, size_t len, StrBuf *rest)
{
    JsonCursor c = {text, text + len};
    JsonText key = {0};
    f->text = text;
    if (!json_cursor_take(&c, '{')) c.at = c.end;
    for (size_t n = 0; json_cursor_next(&c, '}', n) > 0; n++) {
        if (json_cursor_key(&c, &f->symbol, &key) || is_key(key, "model")) break;
        if (json_cursor_skip(&c)) break;
    }
    if (is_key(key, "model")) find_in_model(f, &c);
    int merges_first = f->merges.text && (!f->vocab.text || f->merges.text < f->vocab.text);
    const JsonText table[] = {merges_first ? f->merges : f->vocab,
                              merges_first ? f->vocab : f->merges};
    const char *from = text;
    for (int i = 0; i < 2; i++) {
        if (!table[i].text) continue;
        strbuf_add(rest, from, (size_t)(table[i].text - from));
        add_empty(rest, table[i]);
        from = table[i].text + table[i].len;
    }
    strbuf_add(rest, from, (size_t)(text + len - from));
}

/* ---- the byte alphabet ---- */

/*
 * GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up, in order.
 */
static void make_alphabet(TokenizerFile *f)
{
    int next = 256;
    memset(f->byte_of, -1, sizeof f->byte_of);
    for (int b = 0; b < 256; b++) {
        int printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        f->byte_of[printable ? b : next++] = (int16_t)b;
    }
    assert(next == 324);
}

/*
 * Decodes a symbol of the byte alphabet to out (symbol.len bytes are enough); -1 for any other
 * character, and for what is none. Those of the alphabet have one byte or two.
 */
static long decode_symbol(const TokenizerFile *f, JsonText symbol, char *out)
{
    const unsigned char *at = (const unsigned char *)symbol.text, *end = at + symbol.len;
    long n = 0;
    while (at < end) {
        int c = *at++;
        if (c >= 0x80) {
            if (c < 0xC2 || c > 0xDF || at == end || !utf8_is_tail(*at)) return -1;
            c = (c & 0x1F) << 6 | (*at++ & 0x3F);
        }
        if (c >= 324 || f->byte_of[c] < 0) return -1;
        out[n++] = (char)f->byte_of[c];
    }
    return n;
}

/* ---- the vocabulary ---- */

/* The next of n entries so far: 1, or 0 at the end, or -1 and an Error. */
static int next_entry(TokenizerFile *f, JsonCursor *c, size_t n, JsonText *symbol, long long *id)
{
    int more = json_cursor_next(c, '}', n);
    if (!more) return 0;
    if (more < 0 || json_cursor_key(c, &f->symbol, symbol)) return bad_syntax(f, c, "model.vocab");
    if (json_cursor_integer(c, id))
        return tokenizer_bad(f, "model.vocab: id of '%s' must be an integer", SHOWN(*symbol));
    return 1;
}

int tokenizer_check_id(TokenizerFile *f, long long id, const char *where, JsonText symbol)
{
    if (id < 0 || id > MAX_TOKEN_ID)
        return tokenizer_bad(f, "%s: id of '%s' is %lld, must be 0 to %d", where, SHOWN(symbol), id,
                             MAX_TOKEN_ID);
    if (id > f->max_id) f->max_id = (int)id;
    return 0;
}

/* Behind the bracket that opens it. */
static JsonCursor inside(JsonText table)
{
    return (JsonCursor){table.text + 1, table.text + table.len};
}

int tokenizer_tables_measure(TokenizerFile *f)
{
    JsonText symbol = {0};
    long long id = 0;
    f->max_id = -1;
    if (!f->vocab.text) return tokenizer_bad(f, "model.vocab must be an object");
    JsonCursor c = inside(f->vocab);
    for (int more; (more = next_entry(f, &c, f->n_tokens, &symbol, &id)); f->n_tokens++) {
        if (more < 0 || tokenizer_check_id(f, id, "model.vocab", symbol)) return -1;
        if (symbol.len > f->longest) f->longest = symbol.len;
        f->n_bytes += symbol.len;
    }
    f->left = mem_alloc(2 * f->longest + 1, 1);
    f->right = mem_alloc(f->longest + 1, 1);
    return 0;
}

static int add_symbol(const TokenizerFile *f, Vocab *v, JsonText symbol, int32_t id)
{
    long len = decode_symbol(f, symbol, f->left);
    if (len < 1)
        return tokenizer_bad(f, "model.vocab: '%s' (id %d) is not written in the byte alphabet",
                             SHOWN(symbol), id);
    if (!vocab_add(v, id, f->left, (size_t)len)) return 0;
    if (vocab_find(v, f->left, (size_t)len) >= 0)
        return tokenizer_bad(f, "model.vocab: '%s' is given twice", SHOWN(symbol));
    return tokenizer_bad(f, "model.vocab: id %d is given twice, once to '%s'", id, SHOWN(symbol));
}

static int read_vocab(TokenizerFile *f, Tokenizer *tok)
{
    JsonText symbol = {0};
    long long id = 0;
    JsonCursor c = inside(f->vocab);
    int more;
    for (size_t n = 0; (more = next_entry(f, &c, n, &symbol, &id)) > 0; n++)
        if (add_symbol(f, &tok->vocab, symbol, (int32_t)id)) return -1;
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        tok->bpe.byte_id[b] = vocab_find(&tok->vocab, &byte, 1);
        if (tok->bpe.byte_id[b] < 0)
            return tokenizer_bad(f, "model.vocab has no symbol for byte 0x%02X", (unsigned)b);
    }
    return more;
}

/* ---- the merges ---- */

static int not_two_strings(const TokenizerFile *f, size_t i)
{
    return tokenizer_bad(f, "model.merges[%zu] must be a string or two strings", i);
}

/* One of the strings that merge i is written in. */
static int merge_string(const TokenizerFile *f, JsonCursor *c, size_t i, StrBuf *unescaped,
                        JsonText *out)
{
    if (json_cursor_peek(c) != '"') return not_two_strings(f, i);
    return json_cursor_string(c, unescaped, out) ? bad_syntax(f, c, "model.merges") : 0;
}

/* "a b" */
static int cut_merge(const TokenizerFile *f, JsonText text, size_t i, JsonText pair[2])
{
    const char *end = text.text + text.len, *space = memchr(text.text, ' ', text.len);
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return tokenizer_bad(f,
                             "model.merges[%zu]: '%s' is not two symbols with a space between them",
                             i, SHOWN(text));
    pair[0] = (JsonText){text.text, (size_t)(space - text.text)};
    pair[1] = (JsonText){space + 1, (size_t)(end - space - 1)};
    return 0;
}

/* The two symbols of merge i, "a b" or ["a", "b"]: 1, or 0 at the end, or -1 and an Error. */
static int next_merge(TokenizerFile *f, JsonCursor *c, size_t i, JsonText pair[2])
{
    JsonText text = {"", 0};
    int more = json_cursor_next(c, ']', i);
    if (more < 0) return bad_syntax(f, c, "model.merges");
    if (!more) return 0;
    if (!json_cursor_take(c, '['))
        return merge_string(f, c, i, &f->symbol, &text) || cut_merge(f, text, i, pair) ? -1 : 1;
    if (merge_string(f, c, i, &f->symbol, &pair[0])) return -1;
    if (!json_cursor_take(c, ',')) return not_two_strings(f, i);
    if (merge_string(f, c, i, &f->other, &pair[1])) return -1;
    return json_cursor_take(c, ']') ? 1 : not_two_strings(f, i);
}

static int32_t find_symbol(const TokenizerFile *f, const Vocab *v, JsonText symbol, char *out,
                           size_t *n_out)
{
    long n = symbol.len <= f->longest ? decode_symbol(f, symbol, out) : -1;
    if (n < 1) return -1;
    *n_out = (size_t)n;
    return vocab_find(v, out, *n_out);
}

/*
 * The token of f->left[0..len). Vocabularies are listed in the order of merging, so it mostly is
 * the one behind the last: that spares a look at a place that no cache has.
 */
static int32_t find_merged(TokenizerFile *f, const Vocab *v, size_t len)
{
    size_t next_len;
    const char *next = vocab_bytes(v, f->last_merged + 1, &next_len);
    if (next_len == len && !memcmp(next, f->left, len))
        f->last_merged++;
    else
        f->last_merged = vocab_find(v, f->left, len);
    return f->last_merged;
}

static int add_merge(TokenizerFile *f, Tokenizer *tok, const JsonText pair[2], size_t i)
{
    size_t n_left = 0, n_right = 0;
    int32_t left = find_symbol(f, &tok->vocab, pair[0], f->left, &n_left);
    int32_t right = find_symbol(f, &tok->vocab, pair[1], f->right, &n_right);
    if (left < 0 || right < 0)
        return tokenizer_bad(f,
                             "model.merges[%zu] names a symbol that is not in the vocabulary: '%s'",
                             i, SHOWN(pair[left >= 0]));
    memcpy(f->left + n_left, f->right, n_right);
    int32_t merged = find_merged(f, &tok->vocab, n_left + n_right);
    if (merged < 0)
        return tokenizer_bad(
            f, "model.merges[%zu] makes a symbol that is not in the vocabulary, of '%s' and '%s'",
            i, SHOWN(pair[0]), SHOWN(pair[1]));
    bpe_add_merge(&tok->bpe, left, right, (int32_t)i, merged);
    return 0;
}

static int read_merges(TokenizerFile *f, Tokenizer *tok)
{
    JsonText pair[2] = {{0}};
    int more;
    size_t n = 0;
    if (!f->merges.text) return tokenizer_bad(f, "model.merges must be an array");
    JsonCursor c = inside(f->merges);
    while (json_cursor_next(&c, ']', n) > 0 && !json_cursor_skip(&c))
        n++;
    bpe_init(&tok->bpe, n); /* as many as there are, or more where something is wrong */
    c = inside(f->merges);
    for (size_t i = 0; (more = next_merge(f, &c, i, pair)) > 0; i++)
        if (add_merge(f, tok, pair, i)) return -1;
    return more;
}

int tokenizer_tables_read(TokenizerFile *f, Tokenizer *tok)
{
    make_alphabet(f);
    return read_vocab(f, tok) || read_merges(f, tok) ? -1 : 0;
}

void tokenizer_tables_free(TokenizerFile *f)
{
    strbuf_free(&f->symbol);
    strbuf_free(&f->other);
    mem_free(f->left);
    mem_free(f->right);
}
