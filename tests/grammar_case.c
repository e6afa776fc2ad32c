/*
 * grammar_case.c: see grammar_case.h.
 */
#include "tests/grammar_case.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tests/textdata.h"

GrammarCase *grammar_case;

int grammar_case_open(void **state)
{
    GrammarCase *k = grammar_case = mem_alloc(1, sizeof *k);
    Error err = {0};
    k->tok = tokenizer_open("models/demo/tokenizer.json", &err);
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
