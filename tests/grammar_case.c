/*
 * grammar_case.c: see grammar_case.h.
 */
#include "tests/grammar_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/textdata.h"

GrammarCase *grammar_case;

#define E_ACUTE_4 "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"

/* Most are longer than any that the model's tokenizer has, some just near (NEAR_BYTES). */
static const char *const more_tokens[] = {
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"",
    "xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxy",
    "aa\", \"a",
    "mm\", \"m\", \"m\"",
    "xx\", \"x\", \"m\"",
    "xx\", \"x\", \"x\"",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
    "the quick brown fox jumps over the lazy dog",
    "thequickbrownfoxjumpsoverthelazydogs, THE",
    "\", \"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\": ",
    "<ccccccccccccccccccccccccccccccccccccccc",
    "ccccccccccccccccccccccccccccccccccccccc<",
    "\n                                        ",
    "xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyz",
    "0000000000000000000000000000000000000000",
    E_ACUTE_4 E_ACUTE_4 E_ACUTE_4 E_ACUTE_4 E_ACUTE_4,
};
enum { N_MORE_TOKENS = sizeof more_tokens / sizeof *more_tokens };

/* A token's bytes as its file has them: GPT-2's letters, those that print are themselves. */
static void add_letters(StrBuf *out, const char *bytes)
{
    for (; *bytes; bytes++) {
        int n_before = 0, byte = (unsigned char)*bytes;
        for (int b = 0; b <= byte; b++) {
            int prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
            if (b == byte && prints)
                n_before = byte - 256;
            else if (b < byte)
                n_before += !prints;
        }
        int letter = 256 + n_before;
        if (letter >= 0x80) strbuf_printf(out, "%c%c", 0xc0 | letter >> 6, 0x80 | (letter & 0x3f));
        if (letter < 0x80) strbuf_printf(out, "%c", letter);
    }
}

static Tokenizer *open_tokenizer(Error *err)
{
    json_t *file = json_load_file("models/demo/tokenizer.json", 0, NULL);
    json_t *vocab = json_object_get(json_object_get(file, "model"), "vocab");
    size_t n = json_object_size(vocab) + json_array_size(json_object_get(file, "added_tokens"));
    for (size_t i = 0; i < N_MORE_TOKENS; i++) {
        StrBuf text = {0};
        add_letters(&text, more_tokens[i]);
        json_object_set_new(vocab, text.data, json_integer((json_int_t)(n + i)));
        strbuf_free(&text);
    }
    char *text = json_dumps(file, JSON_COMPACT), *path = temp_path("grammar_case");
    write_file(path, text, strlen(text));
    Tokenizer *tok = tokenizer_open(path, err);
    unlink(path);
    mem_free(path);
    free(text);
    json_decref(file);
    return tok;
}

int grammar_case_open(void **state)
{
    GrammarCase *k = grammar_case = mem_alloc(1, sizeof *k);
    Error err = {0};
    k->tok = open_tokenizer(&err);
    if (k->tok) {
        k->n_vocab = tokenizer_size(k->tok) + 7; /* the model has ids that the tokenizer lacks */
        k->n_words = ((size_t)k->n_vocab + 63) / 64;
        k->end = tokenizer_added_id(k->tok, "<|im_end|>");
        k->vocab = grammar_vocab_open(k->tok, k->n_vocab, &k->end, 1);
        k->pool = grammar_pool_open(k->vocab, 2, CASE_NODES, &err);
        k->mask = mem_alloc(k->n_words, sizeof *k->mask);
        k->allowed = mem_alloc(k->n_words, sizeof *k->allowed);
        for (int b = 0; b < 256; b++)
            k->byte[b] = byte_token(k->tok, (unsigned char)b);
    }
    (void)state;
    if (k->pool) return 0;
    fprintf(stderr, "%s\n", err.msg);
    return -1;
}

int grammar_case_close(void **state)
{
    GrammarCase *k = grammar_case;
    (void)state;
    grammar_pool_close(k->pool);
    grammar_vocab_close(k->vocab);
    tokenizer_close(k->tok);
    mem_free(k->mask);
    mem_free(k->allowed);
    mem_free(k);
    return 0;
}

Grammar *grammar_of_json(const json_t *schema, int strict, Error *err)
{
    GrammarBuilder b;
    grammar_build_begin(&b);
    SchemaCompiler *c = schema_begin(&b);
    uint32_t part = schema_value(c, schema, schema, strict, "schema", err);
    schema_end(c);
    if (part) return grammar_build_end(&b, part, err);
    grammar_build_drop(&b);
    return NULL;
}

Grammar *grammar_of(const char *schema, int strict, Error *err)
{
    char *text = with_quotes(mem_strdup(schema));
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    Grammar *g = grammar_of_json(json, strict, err);
    mem_free(text);
    json_decref(json);
    return g;
}

void add_strings_told_apart(StrBuf *out, int n, const char *more)
{
    for (int i = 0; i < n; i++) {
        strbuf_printf(out, "%s{'type':'string',%s,'pattern':'^", i ? "," : "{'anyOf':[", more);
        if (i < 26)
            strbuf_printf(out, "([^%c]*%c[^%c]*%c)*[^%c]*", 'a' + i, 'a' + i, 'a' + i, 'a' + i,
                          'a' + i);
        else
            strbuf_printf(out, "[^\\u%04x]*", 0x4e00 + i);
        strbuf_puts(out, "$'}");
    }
    strbuf_puts(out, "]}");
}

GrammarAnswer answer_of(const GrammarCase *k, const Grammar *g, int seq)
{
    GrammarAnswer a = {.grammar = g, .pool = k->pool};
    Constraint c = grammar_constraint(&a);
    c.begin(&a, seq);
    return a;
}

int mask_has(const uint64_t *mask, int32_t id)
{
    return (int)(mask[id / 64] >> (id % 64) & 1);
}

int grammar_takes(const GrammarCase *k, const Grammar *g, const char *text)
{
    GrammarAnswer a = answer_of(k, g, 0);
    Constraint c = grammar_constraint(&a);
    for (const char *at = text; *at; at++)
        if (c.step(&a, 0, k->byte[(unsigned char)*at], 0)) return 0;
    return c.step(&a, 0, k->end, 1) ? -1 : 1;
}
