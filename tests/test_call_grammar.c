/*
 * test_call_grammar.c: which texts are calls of tools, in the XML and the JSON form: what is right,
 * what is wrong, and which tools are refused.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "tests/grammar_case.h"
#include "tests/instance.h"
#include "text/call_grammar.h"

typedef struct {
    const char *tools; /* ' for " */
    ChatFamily family;
    int parallel, forced, follow;
} Ask;

static Grammar *grammar_of_calls(const Ask *ask, Error *err)
{
    json_t *tools = schema_json(ask->tools);
    CallGrammar o = {.tools = tools,
                     .parallel = ask->parallel,
                     .forced = ask->forced,
                     .follow = ask->follow,
                     .family = ask->family,
                     .tok = grammar_case->tok};
    GrammarBuilder b;
    Grammar *g = NULL;
    grammar_build_begin(&b);
    SchemaCompiler *c = schema_begin(&b);
    uint32_t part = call_grammar(c, &b, &o, err);
    schema_end(c);
    if (part && !err->code)
        g = grammar_build_end(&b, part, err);
    else
        grammar_build_drop(&b);
    json_decref(tools);
    return g;
}

/* The token at the text's beginning: a marker, or a byte; *at moves behind it. */
static int32_t next_token(const char **at)
{
    static const char *const markers[] = {"<tool_call>", "</tool_call>"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(markers[i]);
        if (strncmp(*at, markers[i], n) != 0) continue;
        *at += n;
        return tokenizer_added_id(grammar_case->tok, markers[i]);
    }
    return grammar_case->byte[(unsigned char)*(*at)++];
}

/* 1 if text is a whole answer. */
static int takes(const Grammar *g, const char *text)
{
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    while (*text)
        if (c.step(&a, 0, next_token(&text), 0)) return 0;
    return !c.step(&a, 0, grammar_case->end, 1);
}

typedef struct {
    Ask ask;
    const char *good[8], *bad[14]; /* as they are */
} Row;

#define FUNCTION(name, more) "{'type':'function','function':{'name':'" name "'" more "}}"
#define BOOK                                                                                       \
    FUNCTION("book", ",'parameters':{'type':'object','properties':{'place':{'enum':['Bella',"      \
                     "'Bella Roma']},'people':{'type':'integer','minimum':1,'maximum':20},"        \
                     "'out':{'type':'boolean'},'dishes':{'type':'array','items':{'type':"          \
                     "'string'}},'note':{'type':'string'},'any':{'anyOf':[{'type':'null'},{"       \
                     "'type':'string'}]}},'required':['place','people']}")
#define PING            FUNCTION("ping", ",'parameters':{'type':'object','properties':{}}")
#define PINGS           FUNCTION("pings", ",'parameters':{'type':'object','properties':{}}")
#define CALL(rest)      "<tool_call>\n<function=" rest "</function>\n</tool_call>"
#define IS(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define HERE            IS("place", "Bella") IS("people", "2")
#define JSON(rest)      "<tool_call>\n{\"name\": \"" rest "}\n</tool_call>"

static const Row rows[] = {
    /* one call, its parameters in the schema's order */
    {{"[" BOOK "]", CHAT_QWEN35, 0, 1, 1},
     {CALL("book>\n" HERE), CALL("book>\n" IS("place", "Bella Roma") IS("people", "20")),
      CALL("book>\n" HERE IS("out", "true")), CALL("book>\n" HERE IS("out", "False")),
      CALL("book>\n" HERE IS("dishes", "[\"a\", \"b\"]") IS("note", "a\n<b>\n")),
      CALL("book>\n" HERE IS("note", "")), CALL("book>\n" HERE IS("any", "null"))},
     {"", "Hello", CALL("book>\n"), CALL("book>\n" IS("place", "Bella")),
      CALL("book>\n" IS("place", "Rom") IS("people", "2")),
      CALL("book>\n" IS("place", "Bella") IS("people", "21")),
      CALL("book>\n" IS("people", "2") IS("place", "Bella")), CALL("book>\n" HERE IS("out", "yes")),
      CALL("book>\n" HERE IS("dishes", "[1]")), CALL("book>\n" HERE IS("people", "2")),
      CALL("book>\n" HERE IS("tip", "2")), CALL("book>\n" HERE IS("note", "a") IS("out", "true")),
      CALL("book>\n" HERE) "\n" CALL("book>\n" HERE), CALL("books>\n" HERE)}},
    /* a text's value ends where it is read to end */
    {{"[" FUNCTION("f",
                   ",'parameters':{'properties':{'s':{'type':'string'}},'required':['s']}") "]",
      CHAT_QWEN35, 0, 1, 1},
     {CALL("f>\n" IS("s", "a <parameter=s> </parameters>\n<param\n")),
      CALL("f>\n<parameter=s>\n</parameter>\n"), CALL("f>\n<parameter=s>\na</parameter>\n"),
      CALL("f>\n" IS("s", "\n\n</function>\n <parameter=b>"))},
     {CALL("f>\n" IS("s", "</parameter>\n</function>\n")), CALL("f>\n" IS("s", "a</parameter> b")),
      CALL("f>\n" IS("s", "<parameter=s>\nb")), CALL("f>\n" IS("s", "a\n<parameter=s>\nb"))}},
    /* more calls; names of which one begins the other */
    {{"[" PING "," PINGS "]", CHAT_QWEN35, 1, 1, 1},
     {CALL("ping>\n"), CALL("pings>\n"), CALL("ping>\n") "\n" CALL("pings>\n"),
      CALL("ping>\n") "\n" CALL("ping>\n") "\n" CALL("ping>\n")},
     {CALL("pin>\n"), CALL("pingss>\n"), CALL("ping>\n") CALL("ping>\n"), CALL("ping>\n") "\n",
      CALL("ping>\n" IS("a", "b")), CALL("ping>\n") "\nBye"}},
    /* required ones that are not described come last; an enum of others than strings is JSON */
    {{"[" FUNCTION(
          "f",
          ",'parameters':{'properties':{'n':{'type':'integer','enum':[1,12]},'c':{'const':'x'}},"
          "'required':['z','n']}") "]",
      CHAT_QWEN35, 0, 1, 1},
     {CALL("f>\n" IS("n", "12") IS("z", "anything")),
      CALL("f>\n" IS("n", "1") IS("c", "x") IS("z", ""))},
     {CALL("f>\n" IS("n", "1")), CALL("f>\n" IS("n", "2") IS("z", "")),
      CALL("f>\n" IS("n", "1") IS("c", "y") IS("z", "")), CALL("f>\n" IS("z", ""))}},
    /* not forced: text with calls in it, strict tools by their schemas, others freely */
    {{"[" FUNCTION("s", ",'strict':true,'parameters':{'type':'object','properties':{'n':{'type':"
                        "'integer'}},'required':['n'],'additionalProperties':false}") "," PING "]",
      CHAT_QWEN35, 1, 0, 0},
     {"Hello", CALL("s>\n" IS("n", "3")), "Well: " CALL("ping>\n" IS("what", "ever")) " and more",
      CALL("ping>\n") "\n" CALL("s>\n" IS("n", "-7")), "a </tool_call> b"},
     {CALL("s>\n"), CALL("s>\n" IS("n", "x")), CALL("t>\n"), "Well: <tool_call>",
      "<tool_call>\n<function=ping>\n"}},
    /* the JSON form */
    {{"[" BOOK "," PING "]", CHAT_QWEN3_NEXT, 1, 1, 1},
     {JSON("book\", \"arguments\": {\"place\": \"Bella\", \"people\": 2}"),
      JSON("book\", \"arguments\": {\"place\": \"Bella Roma\", \"people\": 2, \"out\": false, "
           "\"dishes\": [\"a\"], \"any\": null}"),
      JSON("ping\", \"arguments\": {}"),
      JSON("ping\", \"arguments\": {}") "\n" JSON("ping\", \"arguments\": {\"x\": 1}")},
     {JSON("book\", \"arguments\": {}"), JSON("book\", \"arguments\": {\"place\": \"Bella\"}"),
      JSON("book\", \"arguments\": {\"place\": \"Rom\", \"people\": 2}"),
      JSON("ping\", \"arguments\": []"), JSON("ping\""), JSON("pong\", \"arguments\": {}"), "x",
      CALL("ping>\n")}},
    {{"[" BOOK "," FUNCTION("s", ",'strict':true,'parameters':{'type':'object','properties':{},"
                                 "'additionalProperties':false}") "]",
      CHAT_QWEN3_NEXT, 0, 0, 0},
     {"Hello", JSON("book\", \"arguments\": {\"x\": [1]}"), JSON("s\", \"arguments\": {}")},
     {JSON("s\", \"arguments\": {\"x\": 1}"), JSON("book\", \"arguments\": 1")}},
};

static int expect(const Grammar *g, const char *text, int is_good)
{
    int is_taken = takes(g, text);
    if (is_taken != is_good) print_error("%s: %s\n", is_good ? "refused" : "taken", text);
    return is_taken != is_good;
}

static void test_rows(void **state)
{
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Error err = {0};
        Grammar *g = grammar_of_calls(&rows[i].ask, &err);
        if (!g) fail_msg("%s: %s", rows[i].ask.tools, err.msg);
        for (int j = 0; j < 8 && rows[i].good[j]; j++)
            n_wrong += expect(g, rows[i].good[j], 1);
        for (int j = 0; j < 14 && rows[i].bad[j]; j++)
            n_wrong += expect(g, rows[i].bad[j], 0);
        grammar_free(g);
    }
    assert_int_equal(n_wrong, 0);
}

/* On the way through each right text masks say what steps do. */
static void test_masks(void **state)
{
    Error err = {0};
    const Row *row = &rows[1];
    (void)state;
    Grammar *g = grammar_of_calls(&row->ask, &err);
    assert_non_null(g);
    for (const char *const *text = row->good; *text; text++) {
        GrammarAnswer a = answer_of(grammar_case, g, 0);
        Constraint c = grammar_constraint(&a);
        const char *at = *text;
        while (*at) {
            c.allowed(&a, 0, grammar_case->mask);
            for (int32_t id = 0; id < grammar_case->n_vocab; id++) {
                int is_taken = tokenizer_has(grammar_case->tok, id) && !c.step(&a, 0, id, 1);
                if (is_taken != mask_has(grammar_case->mask, id))
                    fail_msg("token %d at %s", (int)id, at);
            }
            assert_int_equal(c.step(&a, 0, next_token(&at), 0), 0);
        }
    }
    grammar_free(g);
}

static const struct {
    Ask ask;
    const char *error;
} refused[] = {
    {{"[" FUNCTION("f", ",'parameters':{'properties':{'a>b':{}}}") "]", CHAT_QWEN35, 0, 1, 1},
     "the parameters of tool f: \"a>b\" cannot be the name of a parameter"},
    {{"[" FUNCTION("f", ",'parameters':{'properties':{'':{}}}") "]", CHAT_QWEN35, 0, 1, 1},
     "the parameters of tool f: \"\" cannot be the name of a parameter"},
    {{"[" FUNCTION("f", ",'parameters':{'required':['a\\n']}") "]", CHAT_QWEN35, 0, 1, 1},
     "the parameters of tool f: \"a?\" cannot be the name of a parameter"},
    {{"[" PING "," FUNCTION("f", ",'strict':true,'parameters':{'properties':{'a':{'type':"
                                 "'integer','not':{}}}}") "]",
      CHAT_QWEN35, 0, 1, 1},
     "the parameters of tool f.properties.a: keyword \"not\" is not supported in strict mode"},
    {{"[" FUNCTION("f", ",'strict':true,'parameters':{'properties':{'a':{'not':{}}}}") "]",
      CHAT_QWEN3_NEXT, 0, 0, 0},
     "the parameters of tool f.properties.a: keyword \"not\" is not supported in strict mode"},
    {{"[" FUNCTION("f", ",'parameters':{'properties':{'a':{'type':'array','items':{'type':"
                        "'text'}}}}") "]",
      CHAT_QWEN35, 0, 1, 1},
     "the parameters of tool f.properties.a.items: type \"text\" is none of JSON's"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Error err = {0};
        assert_null(grammar_of_calls(&refused[i].ask, &err));
        assert_string_equal(err.msg, refused[i].error);
    }
}

/* What a tool that nobody must call says of its parameters is nobody's business. */
static void test_not_followed(void **state)
{
    Error err = {0};
    Ask ask = {"[" FUNCTION("f", ",'parameters':{'properties':{'a>b':{'type':'text'}}}") "]",
               CHAT_QWEN35, 1, 0, 0};
    (void)state;
    Grammar *g = grammar_of_calls(&ask, &err);
    assert_non_null(g);
    assert_true(takes(g, CALL("f>\n" IS("c", "d"))));
    grammar_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_not_followed),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
