/*
 * tokenizer_file.c: reading a tokenizer.json.
 *
 * What is understood is listed here part by part; anything else is an error that names file and
 * part, because a tokenizer that is nearly right gives fluent nonsense. The file is not trusted.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

/* Qwen3.5's has 12 MB. */
static const size_t MAX_FILE_BYTES = 256u << 20;

/* What ByteLevel with use_regex means. Source: GPT-2's encoder. */
static const char GPT2_REGEX[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct {
    Tokenizer *tok;
    const char *path;
    Error *err;
    int16_t byte_of[324]; /* byte that a symbol's code point stands for, or -1 */
    char *left, *right;   /* decoded symbols; as large as the longest symbol and its pair */
    size_t longest;       /* bytes of the longest symbol as written */
    const char *patterns[MAX_SPLITS];
    int n_patterns;
} Reader;

/* An Error of the form: cannot load 'PATH': ... */
__attribute__((format(printf, 2, 3))) static int bad(const Reader *r, const char *fmt, ...)
{
    char why[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return error_set(r->err, ERR_FILE, "cannot load '%s': %s", r->path, why);
}

typedef struct {
    char text[48];
} Shown;

/* A symbol fit for an error message: one line, short, cut between characters. */
static Shown shown(const char *s)
{
    Shown out = {""};
    size_t n = 0;
    while (*s && n < sizeof out.text - 8) {
        int k = utf8_step((const unsigned char *)s, strlen(s));
        if (k < 1) break;
        memcpy(out.text + n, s, (size_t)k);
        if ((unsigned char)*s < 0x20 || *s == 0x7F) out.text[n] = '?';
        n += (size_t)k;
        s += k;
    }
    if (*s) memcpy(out.text + n, "...", 3);
    return out;
}

/*
 * GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up, in order.
 */
static void make_alphabet(Reader *r)
{
    int next = 256;
    memset(r->byte_of, -1, sizeof r->byte_of);
    for (int b = 0; b < 256; b++) {
        int printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        r->byte_of[printable ? b : next++] = (int16_t)b;
    }
    assert(next == 324);
}

/* Decodes a symbol of the byte alphabet to out (len bytes are enough); -1 for another character. */
static long decode_symbol(const Reader *r, const char *symbol, size_t len, char *out)
{
    long n = 0;
    for (size_t i = 0; i < len;) {
        int k;
        int c = utf8_decode(symbol + i, &k);
        if (c >= 324 || r->byte_of[c] < 0) return -1;
        out[n++] = (char)r->byte_of[c];
        i += (size_t)k;
    }
    return n;
}

static int is_off(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_string(v) && !json_string_length(v)) ||
           (json_is_number(v) && !(json_number_value(v) != 0));
}

/* Everything a BPE model may hold beside vocabulary and merges must be off: we do none of it. */
static int check_model(const Reader *r, const json_t *model)
{
    static const char *const off[] = {
        "dropout",
        "unk_token",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "fuse_unk",
        "byte_fallback",
        "ignore_merges",
    };
    if (!json_is_object(model)) return bad(r, "'model' must be an object");
    const json_t *type = json_object_get(model, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return bad(r, "model.type must be 'BPE'");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)model, key, value)
    {
        if (!strcmp(key, "type") || !strcmp(key, "vocab") || !strcmp(key, "merges")) continue;
        size_t i = 0;
        while (i < sizeof off / sizeof *off && strcmp(key, off[i]) != 0)
            i++;
        if (i == sizeof off / sizeof *off)
            return bad(r, "model.%s is not supported", shown(key).text);
        if (!is_off(value)) return bad(r, "model.%s must be off", key);
    }
    return 0;
}

static int check_id(const Reader *r, const json_t *id, const char *where, const char *symbol,
                    int *max_id)
{
    if (!json_is_integer(id))
        return bad(r, "%s: id of '%s' must be an integer", where, shown(symbol).text);
    json_int_t i = json_integer_value(id);
    if (i < 0 || i > MAX_TOKEN_ID)
        return bad(r, "%s: id of '%s' is %lld, must be 0 to %d", where, shown(symbol).text,
                   (long long)i, MAX_TOKEN_ID);
    if (i > *max_id) *max_id = (int)i;
    return 0;
}

/* Checks types and ids of vocabulary and added tokens, and makes room for them. */
static int measure(Reader *r, const json_t *vocab, const json_t *added)
{
    if (!json_is_object(vocab)) return bad(r, "model.vocab must be an object");
    if (added && !json_is_array(added)) return bad(r, "added_tokens must be an array");
    size_t n_tokens = json_object_size(vocab) + json_array_size(added), n_bytes = 0, i;
    int max_id = -1;
    const char *symbol;
    json_t *item;
    json_object_foreach((json_t *)vocab, symbol, item)
    {
        if (check_id(r, item, "model.vocab", symbol, &max_id)) return -1;
        size_t len = strlen(symbol);
        if (len > r->longest) r->longest = len;
        n_bytes += len;
    }
    json_array_foreach(added, i, item)
    {
        const char *content = json_string_value(json_object_get(item, "content"));
        if (!content || !*content)
            return bad(r, "added_tokens[%zu]: 'content' must be a string that is not empty", i);
        if (check_id(r, json_object_get(item, "id"), "added_tokens", content, &max_id)) return -1;
        n_bytes += strlen(content);
    }
    assert(n_bytes <= MAX_FILE_BYTES); /* so offsets fit 32 bits, and ranks too */
    vocab_init(&r->tok->vocab, max_id + 1, n_tokens, n_bytes);
    r->left = mem_alloc(2 * r->longest + 1, 1);
    r->right = mem_alloc(r->longest + 1, 1);
    return 0;
}

static int read_vocab(Reader *r, const json_t *vocab)
{
    Vocab *v = &r->tok->vocab;
    const char *symbol;
    json_t *item;
    json_object_foreach((json_t *)vocab, symbol, item)
    {
        int32_t id = (int32_t)json_integer_value(item);
        long len = decode_symbol(r, symbol, strlen(symbol), r->left);
        if (len < 1)
            return bad(r, "model.vocab: '%s' (id %d) is not written in the byte alphabet",
                       shown(symbol).text, id);
        if (vocab_add(v, id, r->left, (size_t)len))
            return bad(r, "model.vocab: id %d is given twice, once to '%s'", id,
                       shown(symbol).text);
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        r->tok->bpe.byte_id[b] = vocab_find(v, &byte, 1);
        if (r->tok->bpe.byte_id[b] < 0)
            return bad(r, "model.vocab has no symbol for byte 0x%02X", (unsigned)b);
    }
    return 0;
}

typedef struct {
    const char *text;
    size_t len;
} Symbol;

/* Finds the two symbols of a merge, "a b" or ["a", "b"]. */
static int merge_symbols(const Reader *r, const json_t *merge, size_t i, Symbol pair[2])
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' '))
            return bad(r, "model.merges[%zu]: '%s' is not two symbols with a space between them", i,
                       shown(text).text);
        pair[0] = (Symbol){text, (size_t)(space - text)};
        pair[1] = (Symbol){space + 1, strlen(space + 1)};
        return 0;
    }
    if (json_array_size(merge) != 2)
        return bad(r, "model.merges[%zu] must be a string or two strings", i);
    for (size_t k = 0; k < 2; k++) {
        const json_t *symbol = json_array_get(merge, k);
        if (!json_is_string(symbol))
            return bad(r, "model.merges[%zu] must be a string or two strings", i);
        pair[k] = (Symbol){json_string_value(symbol), json_string_length(symbol)};
    }
    return 0;
}

static int32_t find_symbol(const Reader *r, Symbol symbol, char *out, size_t *n_out)
{
    long n = symbol.len <= r->longest ? decode_symbol(r, symbol.text, symbol.len, out) : -1;
    if (n < 1) return -1;
    *n_out = (size_t)n;
    return vocab_find(&r->tok->vocab, out, *n_out);
}

static int read_merge(const Reader *r, const json_t *merge, size_t i)
{
    Symbol pair[2] = {{NULL, 0}, {NULL, 0}};
    size_t n_left = 0, n_right = 0;
    if (merge_symbols(r, merge, i, pair)) return -1;
    int32_t left = find_symbol(r, pair[0], r->left, &n_left);
    int32_t right = find_symbol(r, pair[1], r->right, &n_right);
    if (left < 0 || right < 0)
        return bad(r, "model.merges[%zu] names a symbol that is not in the vocabulary: '%s'", i,
                   shown(pair[left >= 0].text).text);
    memcpy(r->left + n_left, r->right, n_right);
    int32_t merged = vocab_find(&r->tok->vocab, r->left, n_left + n_right);
    if (merged < 0)
        return bad(r, "model.merges[%zu] makes a symbol that is not in the vocabulary: '%s'", i,
                   shown(pair[0].text).text);
    bpe_add_merge(&r->tok->bpe, left, right, (int32_t)i, merged);
    return 0;
}

static int read_merges(const Reader *r, const json_t *merges)
{
    size_t i;
    json_t *merge;
    if (!json_is_array(merges)) return bad(r, "model.merges must be an array");
    bpe_init(&r->tok->bpe, json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        if (read_merge(r, merge, i)) return -1;
    }
    return 0;
}

/* The four ways of matching that we do not do. */
static int check_added_flags(const Reader *r, const json_t *item, const char *content)
{
    static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(item, off[i])))
            return bad(r, "added_tokens: '%s' of '%s' must be false", off[i], shown(content).text);
    const json_t *special = json_object_get(item, "special");
    if (special && !json_is_boolean(special))
        return bad(r, "added_tokens: 'special' of '%s' must be true or false", shown(content).text);
    return 0;
}

/*
 * An added token may repeat an entry of the vocabulary, id and bytes; otherwise both must be new.
 */
static int add_added(const Reader *r, const json_t *item)
{
    Vocab *v = &r->tok->vocab;
    const char *content = json_string_value(json_object_get(item, "content"));
    int32_t id = (int32_t)json_integer_value(json_object_get(item, "id"));
    size_t len = strlen(content);
    if (check_added_flags(r, item, content)) return -1;
    if (vocab_find(v, content, len) == id ? v->token[id].added : vocab_add(v, id, content, len))
        return bad(r, "added_tokens: id %d or text '%s' is given twice", id, shown(content).text);
    v->token[id].added = 1;
    v->token[id].special = (uint8_t)json_is_true(json_object_get(item, "special"));
    r->tok->added[r->tok->n_added++] = id;
    r->tok->starts_added[(unsigned char)content[0]] = 1;
    return 0;
}

static int by_bytes(const void *a, const void *b, void *vocab)
{
    size_t a_len, b_len;
    const char *a_bytes = vocab_bytes(vocab, *(const int32_t *)a, &a_len);
    const char *b_bytes = vocab_bytes(vocab, *(const int32_t *)b, &b_len);
    int order = memcmp(a_bytes, b_bytes, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int read_added(Reader *r, const json_t *added)
{
    Tokenizer *tok = r->tok;
    size_t i;
    json_t *item;
    tok->added = mem_alloc(json_array_size(added), sizeof *tok->added);
    json_array_foreach(added, i, item)
    {
        if (add_added(r, item)) return -1;
    }
    qsort_r(tok->added, (size_t)tok->n_added, sizeof *tok->added, by_bytes, &tok->vocab);
    return 0;
}

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "";
}

/*
 * Normalizer: none or NFC. Post-processor and decoder: none or ByteLevel, which changes no token.
 */
static int read_surroundings(Reader *r, const json_t *root)
{
    static const char *const around[] = {"post_processor", "decoder"};
    const json_t *norm = json_object_get(root, "normalizer");
    if (norm && !json_is_null(norm)) {
        if (strcmp(type_of(norm), "NFC") != 0)
            return bad(r, "normalizer '%s' is not supported", shown(type_of(norm)).text);
        r->tok->nfc = 1;
    }
    for (int i = 0; i < 2; i++) {
        const json_t *part = json_object_get(root, around[i]);
        if (part && !json_is_null(part) && strcmp(type_of(part), "ByteLevel") != 0)
            return bad(r, "%s '%s' is not supported", around[i], shown(type_of(part)).text);
    }
    return 0;
}

static int add_pattern(Reader *r, const char *pattern)
{
    if (r->n_patterns == MAX_SPLITS)
        return bad(r, "pre_tokenizer splits more than %d times", MAX_SPLITS);
    r->patterns[r->n_patterns++] = pattern;
    return 0;
}

static int read_split(Reader *r, const json_t *part)
{
    const char *regex =
        json_string_value(json_object_get(json_object_get(part, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    if (!regex) return bad(r, "pre_tokenizer: Split needs a pattern of kind 'Regex'");
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return bad(r, "pre_tokenizer: Split behavior '%s' is not supported",
                   shown(behavior ? behavior : "").text);
    if (!is_off(json_object_get(part, "invert")))
        return bad(r, "pre_tokenizer: Split 'invert' must be false");
    return add_pattern(r, regex);
}

static int read_byte_level(Reader *r, const json_t *part)
{
    const json_t *use_regex = json_object_get(part, "use_regex");
    if (!is_off(json_object_get(part, "add_prefix_space")))
        return bad(r, "pre_tokenizer: ByteLevel 'add_prefix_space' must be false");
    /* Absent in files older than the option means true. */
    return use_regex && is_off(use_regex) ? 0 : add_pattern(r, GPT2_REGEX);
}

/* A ByteLevel, or a Sequence of Splits that ends with one. */
static int read_pre_tokenizer(Reader *r, const json_t *pre)
{
    const json_t *parts = json_object_get(pre, "pretokenizers");
    int is_list = !strcmp(type_of(pre), "Sequence");
    if (is_list && !json_is_array(parts))
        return bad(r, "pre_tokenizer.pretokenizers must be an array");
    size_t n = is_list ? json_array_size(parts) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *part = is_list ? json_array_get(parts, i) : pre;
        int last = i + 1 == n;
        int rc = -1;
        if (!last && !strcmp(type_of(part), "Split"))
            rc = read_split(r, part);
        else if (last && !strcmp(type_of(part), "ByteLevel"))
            rc = read_byte_level(r, part);
        else
            bad(r, "pre_tokenizer '%s' is not supported in place %zu of %zu",
                shown(type_of(part)).text, i + 1, n);
        if (rc) return -1;
    }
    if (!r->n_patterns) return bad(r, "pre_tokenizer has no regex to split text with");
    Error why;
    r->tok->splitter = splitter_open(r->patterns, r->n_patterns, &why);
    return r->tok->splitter ? 0 : bad(r, "pre_tokenizer: %s", why.msg);
}

int tokenizer_read(Tokenizer *tok, const char *path, Error *err)
{
    Reader r = {.tok = tok, .path = path, .err = err};
    json_t *root = json_read_file(path, MAX_FILE_BYTES, err);
    if (!root) return -1;
    const json_t *model = json_object_get(root, "model");
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *added = json_object_get(root, "added_tokens");
    make_alphabet(&r);
    int rc = -1;
    if (!check_model(&r, model) && !read_surroundings(&r, root) &&
        !read_pre_tokenizer(&r, json_object_get(root, "pre_tokenizer")) &&
        !measure(&r, vocab, added) && !read_vocab(&r, vocab) &&
        !read_merges(&r, json_object_get(model, "merges")) && !read_added(&r, added))
        rc = 0;
    mem_free(r.left);
    mem_free(r.right);
    json_decref(root);
    return rc;
}
