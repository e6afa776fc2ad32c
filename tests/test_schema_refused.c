/* test_schema_refused.c: which schemas are refused, in which words, and how large they may be. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/strbuf.h"
#include "tests/grammar_case.h"
#include "text/utf8.h"

static const struct {
    const char *schema, *error;
    int strict;
} refused[] = {
    {"{'type':'object','properties':{'a':{'type':'string','pattern':'a{2}*'}}}",
     "schema.properties.a.pattern: ", 1},
    {"{'not':{}}", "schema: keyword \"not\" is not supported in strict mode", 1},
    {"{'type':'object','properties':{'a':{'items':{'contains':{}}}}}",
     "schema.properties.a.items: keyword \"contains\" is not supported in strict mode", 1},
    {"{'$dynamicRef':'#x'}", "schema: keyword \"$dynamicRef\" is not supported in strict mode", 1},
    {"{'properties':{'a':{'$recursiveRef':'#'}}}",
     "schema.properties.a: keyword \"$recursiveRef\" is not supported in strict mode", 1},
    {"{'$ref':'#/$defs/x'}", "schema: $ref \"#/$defs/x\" leads nowhere in this schema", 1},
    {"{'$ref':'#/$defs/a%00','$defs':{'a':{'type':'null'}}}",
     "schema: $ref \"#/$defs/a%00\" leads nowhere in this schema", 1},
    {"{'$ref':'#/$defs/a%2Fb','$defs':{'a/b':{'type':'null'}}}", /* a separator, too */
     "schema: $ref \"#/$defs/a%2Fb\" leads nowhere in this schema", 1},
    {"{'$ref':'#/oneOf/+0','oneOf':[{'type':'null'}]}",
     "schema: $ref \"#/oneOf/+0\" leads nowhere in this schema", 1},
    {"{'allOf':[{'type':'string'},{'type':'null'}]}", "schema: its parts contradict each other", 1},
    {"{'allOf':[false],'type':'string'}", "schema: nothing can be of schema false", 0},
    {"{'allOf':[{'type':'null'},false]}", "schema: nothing can be of schema false", 0},
    {"{'allOf':[false,true]}", "schema: nothing can be of schema false", 1},
    {"{'allOf':[{'type':'null'},7]}", "schema: a schema must be an object", 0},
    {"{'anyOf':[{'type':'null'},{'type':'string'}],'type':'integer'}",
     "schema: its parts contradict each other", 0},
    {"{'anyOf':[false,{'type':'integer','minimum':2,'maximum':1}]}",
     "schema.anyOf[1]: no integer is within its bounds", 0},
    {"{'type':'object','properties':{'a':{'allOf':[{'$ref':'#/$defs/i'},{'const':true}]}},"
     "'anyOf':[{'type':'string'},{'required':['a']}],'$defs':{'i':{'type':'integer'}}}",
     "schema.anyOf[1].properties.a: what stands beside its values allows none of them", 1},
    {"{'anyOf':[{'type':'null'},{'properties':{'a':{'type':'integer','minimum':2,'maximum':1}}}]}",
     "schema.anyOf[1].properties.a: no integer is within its bounds", 0},
    {"{'allOf':[{'$ref':'#/$defs/x'}]}", "schema: $ref \"#/$defs/x\" leads nowhere", 1},
    {"{'allOf':[{'$ref':'#/$defs/x'}],'$defs':{'x':{'$ref':'#/$defs/x'}}}",
     "schema: $ref \"#/$defs/x\" leads to itself", 0},
    {"{'allOf':[{'type':'string','pattern':'^a'},{'pattern':'b$'}]}",
     "schema: \"pattern\" of several parts is not supported in strict mode", 1},
    {"{'allOf':[{'type':'string','format':'date'},{'format':'time'}]}",
     "schema: \"format\" of several parts is not supported in strict mode", 1},
    {"{'allOf':[{'type':'number','multipleOf':0.2},{'multipleOf':1e-10}]}",
     "schema: \"multipleOf\" of several parts is not supported in strict mode", 1},
    {"{'type':'object','required':['a'],'additionalProperties':false}",
     "schema: \"a\" is required and may not be there", 1},
    {"{'type':'text'}", "schema: type \"text\" is none of JSON's", 0},
    {"{'type':['string',{'type':'object'}]}", "schema: type must be a string or a list of them", 0},
    {"{'type':'object','required':[1]}", "schema: required must be a list of strings", 1},
    {"{'const':{},'type':'object','required':'a'}", "schema: required must be a list of strings",
     1},
    {"{'type':'integer','minimum':3,'maximum':2}", "schema: no integer is within its bounds", 0},
    {"{'properties':{'a':{},'b':false}}",
     "schema: \"b\" may not be there: that needs additionalProperties false", 1},
    {"{'type':'string','minLength':3,'maxLength':2}", "schema: minLength is over maxLength", 0},
    {"{'type':'string','pattern':'^abc$','maxLength':2}",
     "schema: no text within maxLength matches its pattern", 0},
    {"{'type':'string','pattern':'^a?$','minLength':2}",
     "schema: no text of minLength characters matches its pattern", 0},
    {"{'type':'string','format':'date','minLength':11}",
     "schema: no text of minLength characters matches its pattern", 0},
    {"{'type':'string','pattern':'^(abc)+$','minLength':4,'maxLength':5}",
     "schema: no text within maxLength matches its pattern", 0},
    {"{'properties':{'a':{'type':'string','pattern':'^(.{8})*$','minLength':4000}}}",
     "schema.properties.a.minLength: 4000 characters of it are too many to count", 1},
    {"{'type':'string','pattern':'^a\\u0001$'}",
     "schema: no text within maxLength matches its pattern", 0},
    {"{'type':'string','minLength':4097}",
     "schema.minLength: it must be a whole number of 0 to 4096", 1},
    {"{'properties':{'a':{'type':'string','maxLength':-1}}}",
     "schema.properties.a.maxLength: it must be a whole number of 0 to 4096", 1},
    {"{'type':'array','items':{'type':'null'},'minItems':1001}",
     "schema.minItems: it must be a whole number of 0 to 1000", 1},
    {"{'type':'array','maxItems':1001}", "schema.maxItems: it must be a whole number of 0 to 1000",
     1},
    {"{'type':'array','maxItems':'2'}", "schema.maxItems: it must be a whole number of 0 to 1000",
     1},
    {"{'type':'array','minItems':1.5}", "schema.minItems: it must be a whole number of 0 to 1000",
     1},
    {"{'type':'object','minProperties':-1}", "schema.minProperties: it must be a whole number of 0",
     1},
    {"{'type':'integer','multipleOf':1009}",
     "schema.multipleOf: it takes too many remainders to tell", 1},
    {"{'type':'number','multipleOf':'2'}", "schema.multipleOf: it takes too many", 1},
    {"{'type':'integer','multipleOf':0}", "schema: multipleOf must be over 0", 0},
    {"{'type':'number','multipleOf':-0.5}", "schema: multipleOf must be over 0", 0},
    {"{'type':'array','minItems':3,'maxItems':2}", "schema: minItems is more than there may be", 0},
    {"{'anyOf':[]}", "schema: anyOf must be a list of 1 to 4096", 0},
    {"{'anyOf':[{'type':'null'},{'type':7}]}", "schema.anyOf[1]: type must be", 0},
    {"{'enum':[]}", "schema: enum must be a list of 1 to 4096", 0},
    {"{'type':'integer','enum':['a']}", "schema: what stands beside its values allows none of them",
     0},
    {"{'const':10,'maximum':5}", "schema: what stands beside its values allows none of them", 0},
    {"{'allOf':[{'const':10},{'type':'number','exclusiveMaximum':0}]}",
     "schema: what stands beside its values allows none of them", 1},
    {"{'const':1,'enum':[2]}", "schema: what stands beside its values allows none of them", 0},
    {"{'enum':['a'],'pattern':'(?=a)'}", "schema.pattern: ", 1},
    {"{'enum':[1],'multipleOf':1009.5}", "schema.multipleOf: it takes too many remainders", 1},
    {"{'enum':[[1]],'items':{'not':{}}}", "schema: keyword \"not\" is not supported", 1},
    {"{'enum':[[1]],'items':{'$ref':'#/x'}}", "schema: $ref \"#/x\" leads nowhere", 1},
    {"{'enum':[[1]],'items':7}", "schema: a schema must be an object", 0},
    {"{'enum':[[1]],'items':{'$ref':'#/$defs/a'},'$defs':{'a':{'$ref':'#/$defs/a'}}}",
     "schema: the schema is nested deeper than 64", 0},
    {"{'properties':{'a':false},'required':['a'],'additionalProperties':false}",
     "schema: \"a\" is required", 1},
    {"{'minProperties':1,'additionalProperties':false}",
     "schema: minProperties is more than there may be", 0},
    {"{'minProperties':2,'properties':{'a':{},'b':{}},'required':['b']}",
     "schema: keyword \"minProperties\" is not supported", 1},
    {"{'maxProperties':1,'properties':{'a':{},'b':{}},'additionalProperties':false}",
     "schema: keyword \"maxProperties\" is not supported", 1},
    {"{'maxProperties':3,'properties':{'a':{},'b':{}}}",
     "schema: keyword \"maxProperties\" is not supported", 1},
    {"{'propertyNames':{'minLength':1}}", "schema: keyword \"propertyNames\" is not supported", 1},
    {"{'propertyNames':{'pattern':'^a'},'required':['b']}",
     "schema: keyword \"propertyNames\" is not supported", 1},
    {"{'propertyNames':{'$ref':'#/$defs/n'}}",
     "schema: $ref \"#/$defs/n\" leads nowhere in this schema", 1},
    {"{'propertyNames':{'$ref':'#/propertyNames'}}",
     "schema: keyword \"propertyNames\" is not supported", 1},
    {"{'propertyNames':{'const':'a','minLength':1}}",
     "schema: keyword \"propertyNames\" is not supported", 1},
    {"{'propertyNames':{'pattern':'a)'}}", "schema.propertyNames.pattern: ", 1},
    {"{'patternProperties':{'a(':{}},'additionalProperties':false}",
     "schema.patternProperties.pattern: ", 1},
    {"{'patternProperties':{'^a':{},'^b':{}},'additionalProperties':false}",
     "schema: keyword \"patternProperties\" is not supported", 1},
    {"{'patternProperties':{'^a':{}}}", "schema: keyword \"patternProperties\" is not supported",
     1},
    {"{'patternProperties':{'^a':{'type':'nil'}},'additionalProperties':false}",
     "schema.patternProperties: type \"nil\"", 1},
    /* what would say nothing */
    {"{'properties':{'a':{'$ref':7}}}", "schema.properties.a: $ref must be a string", 1},
    {"{'type':'string','pattern':7}", "schema: pattern must be a string", 1},
    {"{'type':'string','format':['date']}", "schema: format must be a string", 1},
    {"{'type':'integer','minimum':'3'}", "schema: minimum must be a number", 1},
    {"{'type':'integer','maximum':true}", "schema: maximum must be a number", 1},
    {"{'type':'integer','exclusiveMinimum':'3'}", "schema: exclusiveMinimum must be a number", 1},
    {"{'type':'number','exclusiveMaximum':[]}", "schema: exclusiveMaximum must be a number", 1},
    {"{'type':'object','properties':[]}", "schema: properties must be an object", 1},
    {"{'patternProperties':true}", "schema: patternProperties must be an object", 1},
    {"{'type':'object','required':'a'}", "schema: required must be a list", 1},
    {"{'prefixItems':{}}", "schema: prefixItems must be a list", 1},
    {"{'type':'array','items':'string'}", "schema: items must be a schema", 1},
    {"{'items':[],'additionalItems':7}", "schema: additionalItems must be a schema", 1},
    {"{'additionalProperties':'no'}", "schema: additionalProperties must be a schema", 1},
    {"{'propertyNames':'a'}", "schema: propertyNames must be a schema", 1},
    {"{'enum':[[1]],'items':{'minimum':'1'}}", "schema: minimum must be a number", 1},
    {"7", "schema: a schema must be an object", 0},
    {"false", "schema: nothing can be of schema false", 0},
    {"{'$ref':'#'}", "it refers to itself without end", 0},
    {"{'properties':{'a':{'$ref':'#'}},'required':['a']}", "nothing that ends is of this form", 0},
    {"{'items':{'$ref':'#'},'minItems':1}", "nothing that ends is of this form", 0},
    {"{'anyOf':[{'$ref':'#/$defs/a'},{'type':'null'}],'$defs':{'a':{'$ref':'#'}}}",
     "it refers to itself without end", 0},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Error err = {0};
        Grammar *g = grammar_of(refused[i].schema, refused[i].strict, &err);
        if (g || strncmp(err.msg, refused[i].error, strlen(refused[i].error)) != 0)
            print_error("%s: %s, not %s\n", refused[i].schema, g ? "no error" : err.msg,
                        refused[i].error);
        assert_null(g);
        assert_memory_equal(err.msg, refused[i].error, strlen(refused[i].error));
    }
}

/* A long way to what is wrong: both of its ends are told, and all of what is wrong. */
static void test_long_path(void **state)
{
    enum { DEPTH = 30 };
    (void)state;
    for (int n = 0; n < 4; n++) { /* the cut is nowhere inside a character */
        StrBuf schema = {0};
        Error err = {0};
        for (int i = 0; i < DEPTH; i++)
            strbuf_printf(&schema, "{'properties':{'%.*s\xc3\xa9\xe2\x82\xac':", n, "abc");
        strbuf_puts(&schema, "{'not':{}}");
        for (int i = 0; i < DEPTH; i++)
            strbuf_puts(&schema, "}}");
        assert_null(grammar_of(schema.data, 1, &err));
        const char *cut = strstr(err.msg, "...");
        assert_memory_equal(err.msg, "schema.properties.", strlen("schema.properties."));
        assert_non_null(cut);
        assert_non_null(
            strstr(cut, "\xe2\x82\xac: keyword \"not\" is not supported in strict mode"));
        for (const char *at = err.msg; *at;) {
            int len = utf8_step((const unsigned char *)at, strlen(at));
            if (len <= 0) fail_msg("no text: %s", err.msg);
            at += len;
        }
        strbuf_free(&schema);
    }
}

/* one[0], a number, one[1]: n times, between first and last. */
static Grammar *repeated(const char *first, const char *const *one, const char *last, int n,
                         Error *err)
{
    StrBuf schema = {0};
    strbuf_puts(&schema, first);
    for (int i = 0; i < n; i++)
        strbuf_printf(&schema, "%s%d%s", one[0], i, one[1]);
    strbuf_puts(&schema, last);
    Grammar *g = grammar_of(schema.data, 0, err);
    strbuf_free(&schema);
    return g;
}

static void expect_limit(const char *first, const char *const *one, const char *last, int n,
                         const char *error)
{
    Error err = {0};
    Grammar *g = repeated(first, one, last, n, &err);
    assert_null(g);
    if (!strstr(err.msg, error)) print_error("%s, not %s\n", err.msg, error);
    assert_non_null(strstr(err.msg, error));
}

/* Two lists of n ways at once: all pairs of them are tried, up to a limit. */
static void expect_pairs(int n, int is_good)
{
    StrBuf list = {0}, schema = {0};
    Error err = {0};
    for (int i = 0; i < n; i++)
        strbuf_printf(&list, "%s{'const':%d}", i ? "," : "", i);
    strbuf_printf(&schema, "{'allOf':[{'anyOf':[%s]},{'anyOf':[%s]}]}", list.data, list.data);
    char *at = strstr(schema.data, "]},{'anyOf'");
    memcpy(strstr(at, "'const':0") - 1, "{'const':1", strlen("{'const':1")); /* they differ */
    Grammar *g = grammar_of(schema.data, 1, &err);
    assert_int_equal(g != NULL, is_good);
    if (g) assert_int_equal(grammar_takes(grammar_case, g, "7"), 1);
    if (g) assert_int_equal(grammar_takes(grammar_case, g, "0"), 0);
    if (!g)
        assert_string_equal(err.msg, "schema: \"anyOf\" of several parts is not supported in "
                                     "strict mode");
    grammar_free(g);
    strbuf_free(&list);
    strbuf_free(&schema);
}

/* A value that is looked at by 2^n ways. */
static void expect_late(void)
{
    enum { N = 28 };
    StrBuf schema = {0};
    Error err = {0};
    strbuf_puts(&schema, "{'enum':[[1]],'items':{'$ref':'#/$defs/a0'},'$defs':{");
    for (int i = 0; i < N; i++)
        strbuf_printf(&schema, "'a%d':{'allOf':[{'$ref':'#/$defs/a%d'},{'$ref':'#/$defs/a%d'}]},",
                      i, i + 1, i + 1);
    strbuf_printf(&schema, "'a%d':{'type':'integer'}}}", N);
    assert_null(grammar_of(schema.data, 1, &err));
    assert_string_equal(err.msg, "schema: compiling the schema takes more than 500 ms");
    strbuf_free(&schema);
}

static void test_limits(void **state)
{
    static const char *const property[] = {",'p", "':{'type':'null'}"};
    static const char *const integer[] = {",'p", "':{'type':'integer'}"};
    static const char *const bounded[] = {",{'type':'integer','maximum':9007199254740", "}"};
    static const char *const titled[] = {",{'type':'string','title':'t", "'}"};
    static const char *const name[] = {",'p", "'"};
    static const char *const value[] = {",'value ", "'"};
    static const char *const pattern[] = {",{'type':'string','pattern':'^[a-z]{250}", "$'}"};
    static const char *const slow[] = {",{'type':'string','pattern':'^.{1,64}@.{1,64}", "$'}"};
    Error err = {0};
    (void)state;
    Grammar *g = repeated("{'type':'object','properties':{'z':{}", property, "}}", 5000, &err);
    assert_non_null(g);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"p17\":null,\"p4999\":null}"), 1);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"p18\":null,\"p17\":null}"), 0);
    grammar_free(g);
    g = repeated("{'enum':[0", value, "]}", 1000, &err);
    assert_non_null(g);
    assert_int_equal(grammar_takes(grammar_case, g, "\"value 999\""), 1);
    assert_int_equal(grammar_takes(grammar_case, g, "\"value 1000\""), 0);
    grammar_free(g);
    static const char *const kind[] = {",{'type':'object','properties':{'kind':{'const':'k",
                                       "'},'v':{'type':'integer'}},"
                                       "'required':['kind'],'additionalProperties':false}"};
    g = repeated("{'anyOf':[{'type':'null'}", kind, "]}", 120, &err);
    assert_non_null(g);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"kind\":\"k119\",\"v\":1}"), 1);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"kind\":\"k120\",\"v\":1}"), 0);
    grammar_free(g);
    g = repeated("{'type':'object','properties':{'z':{}", integer, "}}", 5000, &err);
    assert_non_null(g);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"p17\":12,\"p4999\":-3}"), 1);
    grammar_free(g);
    expect_limit("{'anyOf':[{}", bounded, "]}", 4000, "more than 131072 nodes");
    expect_limit("{'type':'object','properties':{'z':{}", property, "}}", 20000,
                 "an object has more than 20000 properties");
    expect_limit("{'prefixItems':[{}", titled, "]}", 20000, "more than 20000 parts");
    expect_limit("{'type':'object','required':['z'", name, "]}", 70000,
                 "an object has more than 20000 properties");
    expect_limit("{'anyOf':[{}", slow, "]}", 250, "takes more than 500 ms");
    expect_limit("{'allOf':[{'enum':[0]},{'enum':[0", value, "]}]}", 5000, "a list of 1 to 4096");
    expect_limit("{'anyOf':[{}", pattern, "]}", 100, "more than 16384 states");
    expect_late();
    expect_pairs(8, 1);
    expect_pairs(9, 0);
    expect_limit("{'enum':[0", value, "]}", 4096, "a list of 1 to 4096");
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_path),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
