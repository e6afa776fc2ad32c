/*
 * fuzz_schema.c: any JSON as a schema, and an answer of tokens that its grammar lets through.
 *
 * Input: {"schema": ..., "strict": true or false, "picks": "..."}, or the schema alone. Each byte
 * of picks chooses among the tokens that may come; then the answer is brought to its end. On the
 * way masks must say what steps do, something must be able to follow, and what ends must be JSON.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/strbuf.h"
#include "text/grammar_run.h"
#include "text/schema.h"

enum { END = 300, N_VOCAB = 301, N_WORDS = (N_VOCAB + 63) / 64, MAX_TOKENS = 400 };

static Tokenizer *tok;
static GrammarPool *pool;

/* A small vocabulary: all bytes, and texts that reach over the borders of JSON's parts. */
static void open_tokenizer(void)
{
    static const char *const more[] = {
        "{\"",  "\":",   "\",", "\":Ġ", "Ġ\"", "}}", "]}",   "[{",   "[\"",  "null",
        "true", "false", "tr",  "12",   "0.5", "e1", "-1",   "\\u",  "\\\"", "\\n",
        "\"}",  "\"]",   "ĊĠĠ", "ĠĠ",   ",Ġ",  "ab", "a\"",  "aaaa", "Ã©",   "aÃ",
        "©\"",  "\\\\",  "00",  "D8",   "0\"", "1}", ",\"a", "{}",   "[]",   ",[",
    };
    static const int32_t end = END;
    Error err = {0};
    json_t *vocab = json_object();
    fuzz_byte_symbols(vocab, 0);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        json_object_set_new(vocab, more[i], json_integer(256 + (json_int_t)i));
    json_t *file = json_pack("{s:[{s:i, s:s, s:b}], s:{s:s, s:b}, s:{s:s}, s:{s:s, s:o, s:[]}}",
                             "added_tokens", "id", END, "content", "<|im_end|>", "special", 1,
                             "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "decoder",
                             "type", "ByteLevel", "model", "type", "BPE", "vocab", vocab, "merges");
    fuzz_file_json("tokenizer.json", file);
    tok = tokenizer_open(FUZZ_DIR "/tokenizer.json", &err);
    json_decref(file);
    fuzz_files_clear();
    FUZZ_CHECK(tok);
    pool = grammar_pool_open(grammar_vocab_open(tok, N_VOCAB, &end, 1), 1, 2, &err);
    FUZZ_CHECK(pool);
}

static Grammar *compile(const json_t *schema, int strict)
{
    GrammarBuilder b;
    Error err = {0};
    Grammar *g = NULL;
    grammar_build_begin(&b);
    SchemaCompiler *c = schema_begin(&b);
    uint32_t part = schema_value(c, schema, schema, strict, "schema", &err);
    schema_end(c);
    FUZZ_CHECK(!part == !!*err.msg);
    if (part)
        g = grammar_build_end(&b, part, &err);
    else
        grammar_build_drop(&b);
    FUZZ_CHECK(!g == !!*err.msg);
    FUZZ_CHECK(g || err.code == ERR_INPUT || err.code == ERR_LIMIT);
    return g;
}

static int mask_has(const uint64_t *mask, int32_t id)
{
    return (int)(mask[id / 64] >> (id % 64) & 1);
}

/*
 * The ids that may follow, each in the mask if and only if a step takes it; how many. -1: that
 * cannot be told, as behind a step that finds no room.
 */
static int may_follow(Constraint *c, uint64_t *mask, int32_t *id)
{
    int n = 0;
    if (c->allowed(c->self, 0, mask)) return -1;
    for (int32_t i = 0; i < N_VOCAB; i++) {
        int rc = c->step(c->self, 0, i, 1);
        FUZZ_CHECK(rc == CONSTRAINT_FULL || mask_has(mask, i) == !rc);
        if (mask_has(mask, i)) id[n++] = i;
    }
    FUZZ_CHECK(n);
    return n;
}

/* The first of what closes most that may come, or any. */
static int32_t closing(const uint64_t *mask, const int32_t *id, int n, int turn)
{
    static const char closers[] = "\"]}0:, aAZ-T";
    if (mask_has(mask, END)) return END;
    for (const char *at = closers; *at; at++)
        if (mask_has(mask, *at)) return *at;
    return id[turn % n];
}

static void check_text(const StrBuf *text)
{
    json_t *value = json_loadb(strbuf_str(text), text->len,
                               JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    FUZZ_CHECK(value);
    json_decref(value);
}

static void answer(const Grammar *g, const char *picks, size_t n_picks)
{
    GrammarAnswer a = {.grammar = g, .pool = pool};
    Constraint c = grammar_constraint(&a);
    StrBuf text = {0};
    int is_whole = 0;
    c.begin(&a, 0);
    for (int i = 0; i < MAX_TOKENS && !is_whole; i++) {
        uint64_t mask[N_WORDS];
        int32_t id[N_VOCAB];
        size_t len;
        int n = may_follow(&c, mask, id);
        if (n < 0) break;
        int32_t token =
            (size_t)i < n_picks ? id[(unsigned char)picks[i] % n] : closing(mask, id, n, i);
        const char *bytes = tokenizer_bytes(tok, token, &len);
        int rc = c.step(&a, 0, token, 0);
        FUZZ_CHECK(!rc || rc == CONSTRAINT_FULL);
        if (token != END) strbuf_add(&text, bytes, len);
        is_whole = token == END;
    }
    if (is_whole) check_text(&text);
    strbuf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const json_t *schema = json_object_get(root, "schema");
    const json_t *picks = json_object_get(root, "picks");
    if (!tok) open_tokenizer();
    Grammar *g =
        root ? compile(schema ? schema : root, json_is_true(json_object_get(root, "strict")))
             : NULL;
    if (g) answer(g, json_string_value(picks), json_string_length(picks));
    grammar_free(g);
    json_decref(root);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
