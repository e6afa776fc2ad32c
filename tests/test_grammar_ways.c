/*
 * test_grammar_ways.c: grammars of many ways: all are followed up to the limits, masks take no more
 * steps than they may, and none depends on what else was asked.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/grammar_case.h"
#include "tests/textdata.h"
#include "text/grammar_mask.h"

/* ---- many ways ---- */

/* anyOf of n objects, each with a string k and a number of its own; first is the string's schema.
 */
static Grammar *objects_of(const char *first, int n, Error *err)
{
    StrBuf text = {0};
    for (int i = 0; i < n; i++)
        strbuf_printf(&text,
                      "%s{'type':'object','properties':{'k':%s,'z%d':{'type':'integer'}},"
                      "'required':['k','z%d'],'additionalProperties':false}",
                      i ? "," : "{'anyOf':[", first, i, i);
    strbuf_puts(&text, "]}");
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

static Grammar *strings_told_apart(int n)
{
    StrBuf text = {0};
    Error err = {0};
    add_strings_told_apart(&text, n, "'maxLength':1000");
    Grammar *g = grammar_of(text.data, 1, &err);
    if (!g) fail_msg("%s", err.msg);
    strbuf_free(&text);
    return g;
}

/* Of many alternatives the last is followed as the first. */
static void test_last_way(void **state)
{
    Error err = {0};
    (void)state;
    Grammar *g = objects_of("{'type':'string'}", MAX_GRAMMAR_WAYS, &err);
    assert_non_null(g);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"k\": \"a\", \"z0\": 1}"), 1);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"k\": \"a\", \"z1023\": 1}"), 1);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"k\": \"a\", \"z1024\": 1}"), 0);
    grammar_free(g);
}

static void test_too_many_ways(void **state)
{
    Error err = {0};
    (void)state;
    assert_null(objects_of("{'type':'string'}", MAX_GRAMMAR_WAYS + 1, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "schema: there are more than 1024 alternatives"));
}

/* Schemas of which each is two ways to the next: 2^n in all. */
static Grammar *doubled(int n, Error *err)
{
    StrBuf text = {0};
    strbuf_puts(&text, "{'$ref':'#/$defs/d0','$defs':{");
    for (int i = 0; i < n; i++)
        strbuf_printf(&text, "'d%d':{'anyOf':[{'$ref':'#/$defs/d%d'},{'$ref':'#/$defs/d%d'}]},", i,
                      i + 1, i + 1);
    strbuf_printf(&text, "'d%d':{'type':'null'}}}", n);
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

/* Lists of lists of nulls, which may be of n lengths. */
static Grammar *lists_of(int n, Error *err)
{
    StrBuf text = {0};
    strbuf_puts(&text, "{'type':'array','items':{'anyOf':[{'anyOf':[");
    for (int i = 0; i < n; i++)
        strbuf_printf(&text, "%s{'type':'array','items':{'type':'null'},'minItems':%d}",
                      !i         ? ""
                      : i % 1000 ? ","
                                 : "]},{'anyOf':[",
                      i % 1000);
    strbuf_puts(&text, "]}]}}");
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

/* Ways that cannot all be followed are an error: where the answer begins, or when it gets there. */
static void test_ways_cut(void **state)
{
    Error err = {0};
    (void)state;
    Grammar *g = doubled(8, &err);
    assert_int_equal(grammar_takes(grammar_case, g, "null"), 1);
    grammar_free(g);
    assert_null(doubled(25, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    if (!strstr(err.msg, "more ways than can be followed")) fail_msg("%s", err.msg);
    g = lists_of(MAX_GRAMMAR_THREADS, &err);
    if (!g) fail_msg("%s", err.msg);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    int32_t bracket = grammar_case->byte['['];
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), 0);
    assert_true(mask_has(grammar_case->mask, bracket));
    assert_int_equal(c.step(&a, 0, bracket, 1), CONSTRAINT_FULL);
    assert_int_equal(c.step(&a, 0, bracket, 0), CONSTRAINT_FULL);
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), -1);
    grammar_free(g);
}

/* Lists in lists in three ways each: as many are followed at any depth. */
static void test_ambiguous_nesting(void **state)
{
    enum { DEEP = 60 };
    Error err = {0};
    (void)state;
    Grammar *g = grammar_of("{'anyOf':[{'type':'array','items':{'$ref':'#'}},{'type':'array',"
                            "'items':{'$ref':'#'},'maxItems':2},{'type':'array','items':{'$ref':"
                            "'#'},'maxItems':5},{'type':'null'}]}",
                            1, &err);
    assert_non_null(g);
    StrBuf text = {0};
    for (int i = 0; i < DEEP; i++)
        strbuf_puts(&text, "[null, null, null, ");
    strbuf_puts(&text, "[]");
    for (int i = 0; i < DEEP; i++)
        strbuf_puts(&text, "]");
    assert_int_equal(grammar_takes(grammar_case, g, text.data), 1);
    strbuf_free(&text);
    grammar_free(g);
}

/* ---- steps ---- */

typedef struct {
    GrammarWalk walk;
    GrammarState state, next;
} Walked;

/* Behind text. */
static Walked *walk_to(const Grammar *g, const char *text)
{
    Walked *k = mem_alloc(1, sizeof *k);
    k->walk = (GrammarWalk){.g = g,
                            .frame = mem_alloc(MAX_GRAMMAR_FRAMES, sizeof *k->walk.frame),
                            .n_frames = 1,
                            .finder = grammar_finder_open(),
                            .most_steps = UINT64_MAX};
    k->walk.most = MAX_TOKEN_FRAMES;
    grammar_begin(&k->walk, g->start, &k->state);
    for (; *text; text++) {
        grammar_byte(&k->walk, &k->state, (uint8_t)*text, &k->next);
        grammar_copy(&k->state, &k->next);
    }
    k->walk.most = k->walk.n_frames + MAX_TOKEN_FRAMES;
    k->walk.n_steps = 0;
    return k;
}

static void walk_free(Walked *k)
{
    grammar_finder_close(k->walk.finder);
    mem_free(k->walk.frame);
    mem_free(k);
}

/* Strings alike are one thread, though each goes on in its own way; its mask takes as many steps.
 */
static void test_strings_alike(void **state)
{
    enum { MANY = 500 };
    static const char *const strings[] = {"{'type':'string'}",
                                          "{'type':'string','pattern':'^[^0]*$'}"};
    Error err = {0};
    GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t n_steps[2];
        for (int k = 0; k < 2; k++) {
            Grammar *g = objects_of(strings[i], k ? MANY : 1, &err);
            Walked *in = walk_to(g, "{\"k\": \"ab");
            assert_int_equal(in->state.n, 1);
            assert_int_equal(grammar_mask(m, &in->walk, &in->state, grammar_case->mask), 0);
            n_steps[k] = in->walk.n_steps;
            walk_free(in);
            grammar_free(g);
        }
        assert_true(n_steps[1] < n_steps[0] + 100 * MANY);
    }
    grammar_masks_close(m);
}

/* The mask of a state is kept, however many threads it has. */
static void test_large_masks_are_kept(void **state)
{
    Error err = {0};
    (void)state;
    Grammar *g = objects_of("{'type':'string'}", 1000, &err);
    GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
    Walked *in = walk_to(g, "{");
    assert_true(in->state.n > 1000);
    assert_int_equal(grammar_mask(m, &in->walk, &in->state, grammar_case->mask), 0);
    assert_true(in->walk.n_steps > 1000);
    in->walk.n_steps = 0;
    assert_int_equal(grammar_mask(m, &in->walk, &in->state, grammar_case->allowed), 0);
    assert_int_equal(in->walk.n_steps, 0);
    assert_memory_equal(grammar_case->mask, grammar_case->allowed,
                        grammar_case->n_words * sizeof *grammar_case->mask);
    walk_free(in);
    grammar_masks_close(m);
    grammar_free(g);
}

static int has_mask_in(GrammarMasks *m, Walked *in, uint64_t most_steps)
{
    in->walk.most_steps = most_steps;
    return grammar_mask(m, &in->walk, &in->state, grammar_case->mask) == 0;
}

/* As many steps are enough for a mask beside one of near tokens that is kept as for the first. */
static void test_steps_beside_kept_masks(void **state)
{
    enum { MANY = 1000 };
    StrBuf text = {0};
    Error err = {0};
    uint64_t too_few = 0, enough = 1 << 20;
    (void)state;
    /* behind the string's end only a long token takes many steps */
    for (int i = 0; i < MANY; i++)
        strbuf_printf(&text,
                      "%s{'type':'array','prefixItems':[{'type':'string','maxLength':80},{'enum':["
                      "'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb%d']}],'minItems':2,'items':false}",
                      i ? "," : "{'anyOf':[", i);
    strbuf_puts(&text, "]}");
    Grammar *g = grammar_of(text.data, 1, &err);
    if (!g) fail_msg("%s", err.msg);
    Walked *in = walk_to(g, "[\"");
    while (enough - too_few > 1) {
        GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
        uint64_t most = (too_few + enough) / 2;
        *(has_mask_in(m, in, most) ? &enough : &too_few) = most;
        grammar_masks_close(m);
    }
    GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
    assert_true(has_mask_in(m, in, enough));
    assert_true(has_mask_in(m, in, enough));
    grammar_masks_close(m);
    walk_free(in);
    grammar_free(g);
    strbuf_free(&text);
}

/* A mask that takes too many steps is none, the root's or a draft's; the state is there. */
static void test_too_many_steps(void **state)
{
    (void)state;
    Grammar *g = strings_told_apart(600);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), 0);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 1), 0);
    assert_int_equal(c.allowed(&a, 1, grammar_case->mask), -1);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 0), 0);
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), -1);
    grammar_free(g);
}

/* The other sequence's masks take the place of all that are kept. */
static void forget_masks(void)
{
    enum { MANY = 1500 };
    Error err = {0};
    Grammar *g = grammar_of("{'type':'string','maxLength':4000}", 1, &err);
    GrammarAnswer a = answer_of(grammar_case, g, 1);
    Constraint c = grammar_constraint(&a);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 0), 0);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(c.allowed(&a, 0, grammar_case->allowed), 0);
        assert_int_equal(c.step(&a, 0, grammar_case->byte['a'], 0), 0);
    }
    grammar_free(g);
}

/* The masks of a tree's drafts have together as many steps as one. What was made may be again. */
static void test_steps_of_drafts(void **state)
{
    (void)state;
    Grammar *g = strings_told_apart(120);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    int32_t letter = grammar_case->byte['a'];
    int n = 1;
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 0), 0);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(c.allowed(&a, 0, grammar_case->mask), 0);
        for (n = 1; n < CASE_NODES; n++) {
            assert_int_equal(c.step(&a, n - 1, letter, n), 0);
            if (c.allowed(&a, n, grammar_case->mask)) break;
        }
        assert_in_range(n, 2, 8);
        forget_masks();
        assert_int_equal(c.allowed(&a, 1, grammar_case->mask), 0);
        for (int i = 0; i <= n; i++)
            assert_int_equal(c.step(&a, 0, letter, 0), 0);
    }
    grammar_free(g);
}

/* Objects in 1000 ways, each with a list of strings that may be of other types as well. */
static Grammar *lists_of_many_ways(Error *err)
{
    StrBuf text = {0};
    for (int i = 0; i < 1000; i++)
        strbuf_printf(&text,
                      "%s{'type':'object','properties':{'k':{'type':'array','items':{'$ref':"
                      "'#/$defs/c'}},'z%d':{'type':'integer'}},'required':['k','z%d'],"
                      "'additionalProperties':false}",
                      i ? "," : "{'anyOf':[", i, i);
    strbuf_puts(&text, "],'$defs':{'a':{'anyOf':[{'type':'string'},{'type':'null'}]},"
                       "'b':{'anyOf':[{'$ref':'#/$defs/a'},{'type':'boolean'}]},"
                       "'c':{'anyOf':[{'$ref':'#/$defs/b'},{'type':'integer'}]}}}");
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

/*
 * The root's mask takes no more steps beside drafts that have taken all the room there is: in a
 * vocabulary of the usual size they would be too many.
 */
static void test_root_beside_drafts(void **state)
{
    Error err = {0};
    Tokenizer *tok = open_big_tokenizer();
    assert_non_null(tok);
    int32_t end = tokenizer_added_id(tok, "<|im_end|>");
    int n_vocab = tokenizer_size(tok), n = 1;
    GrammarVocab *vocab = grammar_vocab_open(tok, n_vocab, &end, 1);
    GrammarCase big = {.pool = grammar_pool_open(vocab, 1, CASE_NODES, &err)};
    uint64_t *mask = mem_alloc(((size_t)n_vocab + 63) / 64, sizeof *mask);
    (void)state;
    Grammar *g = lists_of_many_ways(&err);
    assert_non_null(g);
    GrammarAnswer a = answer_of(&big, g, 0);
    Constraint c = grammar_constraint(&a);
    for (const char *at = "{\"k\": [\""; *at; at++)
        assert_int_equal(c.step(&a, 0, byte_token(tok, (unsigned char)*at), 0), 0);
    for (int parent = 0; parent < n; parent++)
        for (const char *at = "\",] a"; *at && n < CASE_NODES; at++)
            n += !c.step(&a, parent, byte_token(tok, (unsigned char)*at), n);
    assert_int_equal(c.allowed(&a, 0, mask), 0);
    grammar_free(g);
    mem_free(mask);
    grammar_pool_close(big.pool);
    grammar_vocab_close(vocab);
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_way),
        cmocka_unit_test(test_too_many_ways),
        cmocka_unit_test(test_ways_cut),
        cmocka_unit_test(test_ambiguous_nesting),
        cmocka_unit_test(test_strings_alike),
        cmocka_unit_test(test_large_masks_are_kept),
        cmocka_unit_test(test_steps_beside_kept_masks),
        cmocka_unit_test(test_too_many_steps),
        cmocka_unit_test(test_steps_of_drafts),
        cmocka_unit_test(test_root_beside_drafts),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
