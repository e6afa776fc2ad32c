/*
 * tokenizer_file.c: reading a tokenizer.json.
 *
 * What is understood is listed here part by part; anything else is an error that names file and
 * part, because a tokenizer that is nearly right gives fluent nonsense. The file is not trusted.
 * Vocabulary and merges are in tokenizer_tables.c.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/nfc.h"
#include "text/tokenizer_tables.h"

/* Qwen3.5's has 12 MB; of its tokenizer_config.json a few hundred KiB at most. */
static const size_t MAX_FILE_BYTES = 256u << 20, MAX_CONFIG_BYTES = 16u << 20;

/* What ByteLevel with use_regex means. Source: GPT-2's encoder. */
static const char GPT2_REGEX[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct {
    Tokenizer *tok;
    TokenizerFile file;
    const char *patterns[MAX_SPLITS];
    int n_patterns;
    NfcScratch nfc;
    size_t n_own;    /* added tokens of the file itself; those behind are new to it */
    int32_t next_id; /* of a token that is new */
} Reader;

#define bad(r, ...) tokenizer_bad(&(r)->file, __VA_ARGS__)

static ShownSymbol shown(const char *s)
{
    return shown_symbol(s, strlen(s));
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

/* Of an added token of the file, or the largest that a new one may get. */
static int check_id(Reader *r, const json_t *item, int is_new, JsonText content)
{
    TokenizerFile *f = &r->file;
    const json_t *id = json_object_get(item, "id");
    if (is_new) return tokenizer_check_id(f, (long long)f->max_id + 1, "added_tokens", content);
    if (!json_is_integer(id))
        return bad(r, "added_tokens: id of '%s' must be an integer", shown(content.text).text);
    if (tokenizer_check_id(f, json_integer_value(id), "added_tokens", content)) return -1;
    int32_t next = (int32_t)json_integer_value(id) + 1;
    if (next > r->next_id) r->next_id = next;
    return 0;
}

/* Checks types and ids of vocabulary and added tokens, and makes room for them. */
static int measure(Reader *r, const json_t *added)
{
    TokenizerFile *f = &r->file;
    size_t i;
    json_t *item;
    if (tokenizer_tables_measure(f)) return -1;
    if (added && !json_is_array(added)) return bad(r, "added_tokens must be an array");
    size_t n_tokens = f->n_tokens + json_array_size(added), n_bytes = f->n_bytes;
    r->next_id = (int32_t)f->n_tokens;
    json_array_foreach(added, i, item)
    {
        const char *content = json_string_value(json_object_get(item, "content"));
        if (!content || !*content)
            return bad(r, "added_tokens[%zu]: 'content' must be a string that is not empty", i);
        JsonText symbol = {content, strlen(content)};
        if (check_id(r, item, i >= r->n_own, symbol)) return -1;
        n_bytes += symbol.len;
    }
    /* So offsets fit 32 bits, and ranks too. */
    assert(n_bytes <= MAX_FILE_BYTES + MAX_CONFIG_BYTES);
    vocab_init(&r->tok->vocab, f->max_id + 1, n_tokens, n_bytes);
    return 0;
}

/* The ways of matching that we do not do. */
static int check_added_flags(const Reader *r, const json_t *item, const char *content)
{
    static const char *const off[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(item, off[i])))
            return bad(r, "added_tokens: '%s' of '%s' must be false", off[i], shown(content).text);
    const json_t *special = json_object_get(item, "special");
    if (special && !json_is_boolean(special))
        return bad(r, "added_tokens: 'special' of '%s' must be true or false", shown(content).text);
    return 0;
}

static int given_twice(const Reader *r, int32_t id, const char *text, size_t len)
{
    return bad(r, "added_tokens: id %d or text '%s' is given twice", id,
               shown_symbol(text, len).text);
}

/* Whether the vocabulary writes this text as it is: in it a space, for one, is another letter. */
static int is_symbol(const char *text)
{
    while (*text > ' ' && *text < 0x7F)
        text++;
    return !*text;
}

/* To be found by its content, or by the form C of that. */
static void add_matched(Reader *r, AddedTokens *added, int32_t id, const char *content)
{
    size_t start = added->text.len;
    if (added == &r->tok->normalised && r->tok->nfc)
        nfc_append(&r->nfc, content, strlen(content), &added->text);
    else
        strbuf_puts(&added->text, content);
    added->token = mem_realloc(added->token, (size_t)added->n + 1, sizeof *added->token);
    added->token[added->n++] =
        (AddedToken){id, (uint32_t)start, (uint32_t)(added->text.len - start)};
    added->starts[(unsigned char)added->text.data[start]] = 1;
}

/*
 * An added token may repeat an entry of the vocabulary, id and bytes. Otherwise its id must be new.
 * So must its text, where it could stand in the vocabulary as it is: whoever adds that gets the id
 * of the entry. Any other is known to no vocabulary, though its bytes may be ("\n\n", for one), and
 * gets the next id.
 */
static int add_added(Reader *r, const json_t *item, int is_new)
{
    Vocab *v = &r->tok->vocab;
    const char *content = json_string_value(json_object_get(item, "content"));
    int32_t id = (int32_t)json_integer_value(json_object_get(item, "id"));
    size_t len = strlen(content);
    if (check_added_flags(r, item, content)) return -1;
    int32_t found = vocab_find(v, content, len);
    if (is_new) {
        id = found >= 0 && is_symbol(content) ? found : r->next_id;
        if (id >= r->next_id) r->next_id = id + 1;
    }
    if (found == id ? v->token[id].added
                    : (found >= 0 && is_symbol(content)) || vocab_add_apart(v, id, content, len))
        return given_twice(r, id, content, len);
    v->token[id].added = 1;
    v->token[id].special = (uint8_t)json_is_true(json_object_get(item, "special"));
    r->tok->added_id[r->tok->n_added++] = id;
    int is_normalised = !is_off(json_object_get(item, "normalized"));
    add_matched(r, is_normalised ? &r->tok->normalised : &r->tok->literal, id, content);
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

/* Of two with one form C the first in the file comes first. */
static int by_text(const void *a, const void *b, void *text)
{
    const AddedToken *x = a, *y = b;
    const char *base = text;
    int order = memcmp(base + x->start, base + y->start, x->len < y->len ? x->len : y->len);
    if (!order) order = (x->len > y->len) - (x->len < y->len);
    return order ? order : (x->start > y->start) - (x->start < y->start);
}

static void sort_added(AddedTokens *added)
{
    if (added->n)
        qsort_r(added->token, (size_t)added->n, sizeof *added->token, by_text, added->text.data);
}

static int read_added(Reader *r, const json_t *added)
{
    Tokenizer *tok = r->tok;
    size_t i;
    json_t *item;
    tok->added_id = mem_alloc(json_array_size(added), sizeof *tok->added_id);
    json_array_foreach(added, i, item)
    {
        if (add_added(r, item, i >= r->n_own)) return -1;
    }
    qsort_r(tok->added_id, (size_t)tok->n_added, sizeof *tok->added_id, by_bytes, &tok->vocab);
    for (int k = 1; k < tok->n_added; k++)
        if (!by_bytes(&tok->added_id[k - 1], &tok->added_id[k], &tok->vocab)) {
            size_t len;
            const char *text = vocab_bytes(&tok->vocab, tok->added_id[k], &len);
            return given_twice(r, tok->added_id[k], text, len);
        }
    sort_added(&tok->literal);
    sort_added(&tok->normalised);
    return 0;
}

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "";
}

/* A template of the text alone: what transformers 5 saves for a tokenizer without a processor. */
static int adds_nothing(const json_t *part)
{
    const json_t *single = json_object_get(part, "single");
    const json_t *text = json_object_get(json_array_get(single, 0), "Sequence");
    const char *id = json_string_value(json_object_get(text, "id"));
    return !strcmp(type_of(part), "TemplateProcessing") && json_array_size(single) == 1 && id &&
           !strcmp(id, "A");
}

/*
 * Normalizer: none or NFC. Post-processor and decoder: none or ByteLevel, which changes no token,
 * or for the former a template that adds none.
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
        if (!i && adds_nothing(part)) continue;
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

/* A token is given by its text alone, or as {"content": text, ...}. */
static const char *text_of(const json_t *token)
{
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* Tokens of config to a list like added_tokens, but for texts that it has already. */
typedef struct {
    json_t *added, *by_text;
} Configured;

/* Whatever number the token has there: transformers gives it the next id that is free. */
static void append_token(const Configured *c, const json_t *token)
{
    const char *text = text_of(token);
    json_t *item = json_is_object(token) ? json_deep_copy(token)
                                         : json_pack("{s:s?, s:b}", "content", text, "special", 1);
    if (text) json_object_set(c->by_text, text, item);
    json_array_append_new(c->added, item);
}

typedef struct {
    long long id;
    const json_t *token;
} DecoderToken;

static int by_number(const void *a, const void *b)
{
    const DecoderToken *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* {"7": {"content": "<x>", ...}, ...}; of texts that are there it says whether they are special. */
static int append_decoder(const Reader *r, const Configured *c, const json_t *decoder)
{
    size_t n = 0;
    DecoderToken *list = mem_alloc(json_object_size(decoder), sizeof *list);
    const char *key;
    json_t *token;
    int rc = 0;
    json_object_foreach((json_t *)(size_t)decoder, key, token)
    {
        char *end;
        list[n++] = (DecoderToken){strtoll(key, &end, 10), token};
        if (!rc && (!*key || *end || !json_is_object(token)))
            rc = bad(r, "added_tokens_decoder: '%s' must be an id, and an object", shown(key).text);
    }
    if (n) qsort(list, n, sizeof *list, by_number);
    for (size_t i = 0; i < n && !rc; i++) {
        const char *text = text_of(list[i].token);
        json_t *item = text ? json_object_get(c->by_text, text) : NULL;
        if (item)
            json_object_set(item, "special", json_object_get(list[i].token, "special"));
        else
            append_token(c, list[i].token);
    }
    mem_free(list);
    return rc;
}

/* "eos_token" and the like are special, whatever else is said of them. */
static void append_named(const Configured *c, const json_t *token)
{
    const char *text = text_of(token);
    if (!text || !*text) return;
    if (!json_object_get(c->by_text, text)) append_token(c, token);
    json_object_set_new(json_object_get(c->by_text, text), "special", json_true());
}

/* In the order in which transformers adds them. */
static void append_all_named(const Configured *c, const json_t *config)
{
    static const char *const first[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    const char *key;
    json_t *token;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        append_named(c, json_object_get(config, first[i]));
    json_object_foreach((json_t *)(size_t)config, key, token)
    {
        if (text_ends_with(key, "_token")) append_named(c, token);
    }
}

/*
 * By names of the model's own, or without; extra_special_tokens may hold either, where it holds
 * any, in place of an older key.
 */
static void append_extra(const Configured *c, const json_t *config)
{
    const json_t *extra = json_object_get(config, "extra_special_tokens"), *named = extra,
                 *list = extra;
    const char *key;
    json_t *token;
    size_t i;
    if (!json_object_size(named)) named = json_object_get(config, "model_specific_special_tokens");
    if (!json_array_size(list)) list = json_object_get(config, "additional_special_tokens");
    json_object_foreach((json_t *)(size_t)named, key, token)
    {
        append_named(c, token);
    }
    json_array_foreach(list, i, token)
    {
        const char *text = text_of(token);
        if (text && !*text) continue;
        if (!text || !json_object_get(c->by_text, text)) append_token(c, token);
    }
}

static int append_configured(const Reader *r, json_t *added, const json_t *config)
{
    Configured c = {added, json_object()};
    size_t i;
    json_t *item;
    json_array_foreach(added, i, item)
    {
        const char *text = json_string_value(json_object_get(item, "content"));
        if (text) json_object_set(c.by_text, text, item);
    }
    int rc = append_decoder(r, &c, json_object_get(config, "added_tokens_decoder"));
    append_all_named(&c, config);
    append_extra(&c, config);
    json_decref(c.by_text);
    return rc;
}

/*
 * Added tokens that are in the tokenizer_config.json beside the file alone: transformers adds them.
 * Without them a template's marks would be read as the letters they are written in.
 */
static int take_configured(const Reader *r, json_t *root)
{
    static const char name[] = "tokenizer_config.json";
    const char *path = r->file.path, *slash = strrchr(path, '/');
    StrBuf dir = {0};
    int rc = 0;
    strbuf_add(&dir, slash ? path : ".", slash ? (size_t)(slash - path) : 1);
    if (file_is_in(strbuf_str(&dir), name)) {
        char *beside = path_join(strbuf_str(&dir), name);
        json_t *config = json_read_file(beside, MAX_CONFIG_BYTES, r->file.err);
        if (config && !json_object_get(root, "added_tokens"))
            json_object_set_new(root, "added_tokens", json_array());
        rc = config ? append_configured(r, json_object_get(root, "added_tokens"), config) : -1;
        json_decref(config);
        mem_free(beside);
    }
    strbuf_free(&dir);
    return rc;
}

/* All but the two tables, which are empty in root. */
static int read_root(Reader *r, const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens");
    if (check_model(r, json_object_get(root, "model")) || read_surroundings(r, root) ||
        read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer")) || measure(r, added) ||
        tokenizer_tables_read(&r->file, r->tok) || read_added(r, added))
        return -1;
    return 0;
}

int tokenizer_read(Tokenizer *tok, const char *path, Error *err)
{
    Reader r = {.tok = tok, .file = {.path = path, .err = err}};
    MappedFile file;
    StrBuf rest = {0};
    int rc = -1;
    if (mapped_file_open_up_to(&file, path, MAX_FILE_BYTES, err)) return -1;
    tokenizer_tables_find(&r.file, file.size ? (const char *)file.data : "", file.size, &rest);
    /* A second model would not be the one whose tables were found. */
    json_t *root = json_read_text(strbuf_str(&rest), rest.len, JSON_REJECT_DUPLICATES, path, err);
    r.n_own = json_array_size(json_object_get(root, "added_tokens"));
    if (root && !take_configured(&r, root)) rc = read_root(&r, root);
    json_decref(root);
    nfc_scratch_free(&r.nfc);
    tokenizer_tables_free(&r.file);
    strbuf_free(&rest);
    mapped_file_close(&file);
    return rc;
}
