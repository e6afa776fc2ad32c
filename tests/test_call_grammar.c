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
#include "base/strbuf.h"
#include "tests/grammar_case.h"
#include "tests/instance.h"
#include "text/call_grammar.h"
#include "text/call_json.h"
#include "text/grammar_build.h"
#include "text/reply_tools.h"
#include "text/reply_value.h"

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
#define PING  FUNCTION("ping", ",'parameters':{'type':'object','properties':{}}")
#define PINGS FUNCTION("pings", ",'parameters':{'type':'object','properties':{}}")
#define ANY   FUNCTION("a", ",'parameters':{}")
#define NULLABLE                                                                                   \
    FUNCTION("b", ",'parameters':{'type':['object','null'],'properties':{'x':{'enum':[1]}}}")
#define CHAIN                                                                                      \
    FUNCTION("c", ",'parameters':{'$ref':'#/$defs/c','$defs':{'c':{'anyOf':[{'type':'null'},"      \
                  "{'properties':{'x':{'$ref':'#/$defs/c'}},'required':['x']}]}}}")
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
    /* one of them at least; one that is not described is as others are, one may not be there */
    {{"[" FUNCTION(
          "f", ",'strict':true,'parameters':{'$ref':'#/$defs/f','$defs':{'f':{'type':"
               "'object','minProperties':1,'properties':{'a':{},'b':{'type':'boolean'},"
               "'c':false}}}}") "," FUNCTION("g", ",'strict':true,'parameters':{'required':['z']"
                                                  ",'additionalProperties':{'maxLength':1}}") "]",
      CHAT_QWEN35, 0, 1, 1},
     {CALL("f>\n" IS("a", "x")), CALL("f>\n" IS("b", "true")), CALL("g>\n" IS("z", "x"))},
     {CALL("f>\n"), CALL("f>\n" IS("c", "x")), CALL("f>\n" IS("b", "x")),
      CALL("g>\n" IS("z", "xy")), CALL("g>\n")}},
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
    /* whose arguments are an object, whatever the schema leaves open */
    {{"[" ANY "," NULLABLE "," CHAIN "]", CHAT_QWEN3_NEXT, 0, 1, 1},
     {JSON("a\", \"arguments\": {}"), JSON("a\", \"arguments\": {\"y\": [true]}"),
      JSON("b\", \"arguments\": {\"x\": 1}"), JSON("c\", \"arguments\": {\"x\": null}"),
      JSON("c\", \"arguments\": {\"x\": {\"x\": null}}")},
     {JSON("a\", \"arguments\": true"), JSON("a\", \"arguments\": \"{}\""),
      JSON("b\", \"arguments\": null"), JSON("b\", \"arguments\": {\"x\": 2}"),
      JSON("c\", \"arguments\": null"), JSON("c\", \"arguments\": {}")}},
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

/* ---- one parameter of a strict tool ---- */

#define TEXT          "{'type':'string'"
#define NULL_OR(more) "{'type':['string','null']" more "}"

/* Texts that may stand for it, each with what is read of it; and others. ' for " in schemas. */
static const struct {
    const char *schema;
    struct {
        const char *text, *json;
    } good[5];
    const char *bad[8];
} one[] = {
    {"{'type':['integer','null']}",
     {{"5", "5"}, {"-12", "-12"}, {"null", "null"}, {"None", "null"}},
     {"True", "x", "", "5.5", "nul", "\"5\"", " 5"}},
    {"{'anyOf':[{'type':'integer'},{'type':'null'}]}", {{"5", "5"}, {"null", "null"}}, {"True"}},
    {"{'type':'integer','nullable':true}", {{"5", "5"}, {"null", "null"}}, {"True", ""}},
    {"{'$ref':'#/$defs/count'}", {{"5", "5"}, {"null", "null"}}, {"True"}},
    {"{'anyOf':[{'$ref':'#/properties/a'},{'type':'string','maxLength':2}]}",
     {{"ab", "\"ab\""}},
     {"True"}},
    {"{'enum':[1,2]}", {{"1", "1"}, {"2", "2"}}, {"True", "3", "12", ""}},
    {"{'type':'number','enum':[1.5,2]}", {{"1.5", "1.5"}, {"2", "2"}}, {"1", "15"}},
    {"{'type':'integer','enum':[3.0]}", {{"3.0", "3"}}, {"3.5"}},
    {"{'type':'boolean','enum':[true]}", {{"true", "true"}, {"True", "true"}}, {"false", "False"}},
    {"{'enum':['x',null]}",
     {{"x", "\"x\""}, {"null", "null"}, {"None", "null"}},
     {"True", "y", "\"x\""}},
    {NULL_OR(",'enum':['x',null]"), {{"x", "\"x\""}, {"null", "null"}}, {"True"}},
    {"{'enum':['null',null]}", {{"null", "null"}}, {"nul"}},
    {"{'enum':[[1],{'k':null},'a']}",
     {{"[1]", "[1]"}, {"{\"k\": null}", "{\"k\": null}"}, {"a", "\"a\""}},
     {"[2]", "{}", "b"}},
    {"{'enum':['a','b</parameter>','<parameter=c']}",
     {{"a", "\"a\""}},
     {"b</parameter>", "<parameter=c"}},
    {"{'oneOf':[{'const':'q'}]}", {{"q", "\"q\""}}, {"True", "qq", "\"q\""}},
    {"{'allOf':[{'enum':['q']}]}", {{"q", "\"q\""}}, {"True"}},
    {"{'const':''}", {{"", "\"\""}}, {"x", "null"}},
    {"{'anyOf':[{'type':'string','enum':['']}]}", {{"", "\"\""}}, {"x"}},
    {"{'anyOf':[{'const':'auto'},{'type':'integer','minimum':1,'maximum':9}]}",
     {{"auto", "\"auto\""}, {"7", "7"}},
     {"0", "manual", "True"}},
    {"{'type':['string','integer']}", {{"5", "\"5\""}, {"x", "\"x\""}}, {NULL}},
    {"{'minimum':3}", {{"3", "3"}, {"4.5", "4.5"}}, {"2", "x"}},
    {"{'properties':{'k':{'type':'integer'}}}",
     {{"{\"k\":1}", "{\"k\": 1}"}},
     {"x", "{\"k\":true}"}},
    {"{}", {{"x", "\"x\""}, {"[1", "\"[1\""}}, {"</parameter>\n"}},
    {"true", {{"x", "\"x\""}}, {NULL}},
    /* strings */
    {TEXT ",'pattern':'^z{3}$'}", {{"zzz", "\"zzz\""}}, {"True", "zz", "zzzz", "zzz\n"}},
    {TEXT ",'pattern':'^[^x]*$'}",
     {{"", "\"\""}, {"a<b\n\n", "\"a<b\\n\\n\""}, {"</parameter", "\"</parameter\""}},
     {"x", "a\n<parameter=b", "a</parameter>", "a</parameter>\n</function>", "<parameter=b"}},
    {TEXT ",'maxLength':3}",
     {{"", "\"\""},
      {"abc", "\"abc\""},
      {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
      {"<\n\"", "\"<\\n\\\"\""}},
     {"abcd", "abc\xc3\xa9", "\xc3", "\xff"}},
    {TEXT ",'minLength':2}", {{"ab", "\"ab\""}, {"a\n", "\"a\\n\""}}, {"", "a", "\xc3\xa9"}},
    {TEXT ",'format':'date'}", {{"2026-11-22", "\"2026-11-22\""}}, {"True", "2026-11-32"}},
    {TEXT ",'format':'date','minLength':2,'maxLength':10}",
     {{"2026-11-22", "\"2026-11-22\""}},
     {"20"}},
    {"{'type':'array','items':{'type':'string','pattern':'^z$'},'maxItems':1}",
     {{"[\"z\"]", "[\"z\"]"}},
     {"[z]", "[\"zz\"]", "z"}},
    {NULL_OR(",'minLength':5"),
     {{"null", "null"}, {"hello", "\"hello\""}},
     {"nul", "None", "Null"}},
    {NULL_OR(""), {{"null", "null"}, {"None", "\"None\""}, {"", "\"\""}}, {NULL}},
    {"{'type':['string','array'],'items':{'type':'integer'}}",
     {{"[1]", "[1]"}, {"x", "\"x\""}, {"{}", "\"{}\""}, {" [x]", "\" [x]\""}, {"", "\"\""}},
     {"[x]", "[\"a\"]", "[", "a</parameter>"}},
    {"{'anyOf':[" TEXT ",'maxLength':3},{'type':'object','required':['k']},{'type':'array'}]}",
     {{"{\"k\":1}", "{\"k\": 1}"}, {"[]", "[]"}, {"a{", "\"a{\""}},
     {"{}", "{", "[[", "abcd"}},
};

#define OF_ONE(schema)                                                                             \
    "[" FUNCTION("f", ",'strict':true,'parameters':{'type':'object','properties':{'a':%s},"        \
                      "'required':['a'],'additionalProperties':false,'$defs':{'count':{'anyOf':"   \
                      "[{'type':'integer'},{'type':'null'}]}}}") "]"

static char *tools_of_one(const char *schema)
{
    StrBuf tools = {0};
    strbuf_printf(&tools, OF_ONE(schema), schema);
    return tools.data;
}

/* What is read of the text of the parameter. */
static char *read_back(const char *tools, const char *text)
{
    json_t *json = schema_json(tools);
    ReplyTools *known = reply_tools_open(json);
    StrBuf out = {0};
    ReplyValue v = {0};
    reply_value_begin(&v, reply_tools_types(known, 0, reply_tools_param(known, 0, "a", 1)));
    reply_value_text(&v, text, strlen(text), &out);
    reply_value_end(&v, &out);
    reply_value_free(&v);
    reply_tools_close(known);
    json_decref(json);
    return out.data;
}

static int takes_one(const Grammar *g, const char *text)
{
    StrBuf call = {0};
    strbuf_printf(&call, CALL("f>\n" IS("a", "%s")), text);
    int is_taken = takes(g, call.data);
    strbuf_free(&call);
    return is_taken;
}

static void test_one_parameter(void **state)
{
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        char *tools = tools_of_one(one[i].schema);
        Ask ask = {tools, CHAT_QWEN35, 0, 1, 1};
        Error err = {0};
        Grammar *g = grammar_of_calls(&ask, &err);
        if (!g) print_error("%s: %s\n", one[i].schema, err.msg), n_wrong++;
        for (int j = 0; g && j < 5 && one[i].good[j].text; j++) {
            char *json = read_back(tools, one[i].good[j].text);
            if (takes_one(g, one[i].good[j].text) && !strcmp(json, one[i].good[j].json)) {
                mem_free(json);
                continue;
            }
            n_wrong++;
            print_error("%s: refused: %s, read: %s\n", one[i].schema, one[i].good[j].text, json);
            mem_free(json);
        }
        for (int j = 0; g && j < 8 && one[i].bad[j]; j++)
            if (takes_one(g, one[i].bad[j]))
                n_wrong++, print_error("%s: taken: %s\n", one[i].schema, one[i].bad[j]);
        grammar_free(g);
        mem_free(tools);
    }
    assert_int_equal(n_wrong, 0);
}

/* On the way through a right text masks say what steps do. */
static void check_masks(const Ask *ask, const char *at)
{
    Error err = {0};
    Grammar *g = grammar_of_calls(ask, &err);
    assert_non_null(g);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    while (*at) {
        c.allowed(&a, 0, grammar_case->mask);
        for (int32_t id = 0; id < grammar_case->n_vocab; id++) {
            int is_taken = tokenizer_has(grammar_case->tok, id) && !c.step(&a, 0, id, 1);
            if (is_taken != mask_has(grammar_case->mask, id))
                fail_msg("token %d at %s", (int)id, at);
        }
        assert_int_equal(c.step(&a, 0, next_token(&at), 0), 0);
    }
    grammar_free(g);
}

static void test_masks(void **state)
{
    static const char *const texts[][2] = {
        {TEXT ",'maxLength':6}", "a\"\n<b\xc3\xa9"},
        {TEXT ",'minLength':3}", "ab<c"},
        {TEXT ",'pattern':'^a.*z$','maxLength':8}", "ab\xc3\xa9z"},
        {"{'type':['string','array'],'items':{'type':'integer'}}", "a[b\nc"},
        {"{'type':['string','array'],'items':{'type':'integer'}}", "[1, 2]"},
    };
    (void)state;
    for (const char *const *text = rows[1].good; *text; text++)
        check_masks(&rows[1].ask, *text);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *tools = tools_of_one(texts[i][0]);
        StrBuf call = {0};
        strbuf_printf(&call, CALL("f>\n" IS("a", "%s")), texts[i][1]);
        check_masks(&(Ask){tools, CHAT_QWEN35, 0, 1, 1}, call.data);
        strbuf_free(&call);
        mem_free(tools);
    }
}

/* ---- what is refused ---- */

#define STRICT(parameters)                                                                         \
    {                                                                                              \
        "[" FUNCTION("f", ",'strict':true,'parameters':{" parameters "}") "]", CHAT_QWEN35, 0, 1,  \
            1                                                                                      \
    }
#define OF_TOOL "the parameters of tool f"

static const struct {
    Ask ask;
    const char *error;
} refused[] = {
    {STRICT("'properties':{'a':{'not':{}}}"),
     OF_TOOL ".properties.a: keyword \"not\" is not supported in strict mode"},
    {STRICT("'properties':{'a':{'type':'string','not':{}}}"),
     OF_TOOL ".properties.a: keyword \"not\" is not supported in strict mode"},
    {STRICT("'properties':{'a':{'$ref':'#/nope'}}"),
     OF_TOOL ".properties.a: $ref \"#/nope\" leads nowhere in this schema"},
    {STRICT("'properties':{'a':{'type':'string','pattern':'a{2}*'}}"),
     OF_TOOL ".properties.a.pattern: dangling quantifier at 4"},
    {STRICT("'properties':{'a':{}},'required':'a'"),
     OF_TOOL ": required must be a list of strings"},
    {STRICT("'properties':['a']"), OF_TOOL ": properties must be an object"},
    {STRICT("'properties':{'a':{'minimum':'1'}}"),
     OF_TOOL ".properties.a: minimum must be a number"},
    {STRICT("'properties':{'a':{'type':'string','minLength':4097}}"),
     OF_TOOL ".properties.a.minLength: it must be a whole number of 0 to 4096"},
    {STRICT("'properties':{'a':{'type':'string','pattern':'^</parameter>$'}}"),
     OF_TOOL ".properties.a.pattern: no string matches the pattern"},
    {STRICT("'properties':{'a':{'type':['string','null'],'anyOf':[{'type':'string'}]}}"),
     OF_TOOL ".properties.a: the text null is not read as a string"},
    {STRICT("'properties':{'a':{'const':'a</parameter>'}}"),
     OF_TOOL ".properties.a: no text is read as a value of it"},
    {STRICT("'properties':{'a':false},'required':['a']"),
     OF_TOOL ": \"a\" is required and may not be there"},
    {STRICT("'required':['a'],'additionalProperties':false"),
     OF_TOOL ": \"a\" is required and may not be there"},
    {STRICT("'required':['a'],'additionalProperties':{'type':'integer'}"),
     OF_TOOL ".properties.a: no text is read as a value of it"},
    {STRICT("'minProperties':2"),
     OF_TOOL ": keyword \"minProperties\" is not supported in strict mode"},
    {STRICT("'minProperties':1"),
     OF_TOOL ": keyword \"minProperties\" is not supported in strict mode"},
    {STRICT("'properties':{'a':{},'b':{}},'maxProperties':1"),
     OF_TOOL ": keyword \"maxProperties\" is not supported in strict mode"},
    {STRICT("'anyOf':[{'required':['a']}]"),
     OF_TOOL ": keyword \"anyOf\" is not supported in strict mode"},
    {STRICT("'not':{}"), OF_TOOL ": keyword \"not\" is not supported in strict mode"},
    {STRICT("'type':'array'"), OF_TOOL ": its type must be object"},
    {STRICT("'$ref':'#/nope'"), OF_TOOL ": its $ref leads nowhere"},
    {STRICT("'$ref':'#/$defs/a','required':['b'],'$defs':{'a':{}}"),
     OF_TOOL ": keyword \"required\" is not supported in strict mode"},
    {STRICT("'$ref':'#/$defs/a','$defs':{'a':{'oneOf':[]}}"),
     OF_TOOL ": keyword \"oneOf\" is not supported in strict mode"},
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

/* No longer than those that are found in replies. */
static void test_long_names(void **state)
{
    char name[MAX_CALL_NAME + 2] = "";
    (void)state;
    memset(name, 'n', MAX_CALL_NAME);
    for (int is_long = 0; is_long < 2; is_long++) {
        StrBuf tools = {0}, call = {0};
        Error err = {0};
        name[MAX_CALL_NAME] = is_long ? 'n' : 0;
        strbuf_printf(&tools, "[" FUNCTION("f", ",'parameters':{'properties':{'%s':{}}}") "]",
                      name);
        strbuf_printf(&call, CALL("f>\n" IS("%s", "1")), name);
        Grammar *g = grammar_of_calls(&(Ask){tools.data, CHAT_QWEN35, 0, 1, 1}, &err);
        assert_int_equal(g == NULL, is_long);
        if (g) assert_true(takes(g, call.data));
        if (!g) assert_non_null(strstr(err.msg, "cannot be the name of a parameter"));
        grammar_free(g);
        strbuf_free(&tools);
        strbuf_free(&call);
    }
}

/* As many as a JSON value's; each object of them is a way of its own. */
static void test_too_many_values(void **state)
{
    StrBuf tools = {0};
    Error err = {0};
    (void)state;
    strbuf_puts(&tools, "[{'type':'function','function':{'name':'f','strict':true,"
                        "'parameters':{'properties':{'a':{'enum':[");
    for (int i = 0; i <= MAX_GRAMMAR_WAYS; i++)
        strbuf_printf(&tools, "%s{'k':%d}", i ? "," : "", i);
    strbuf_puts(&tools, "]}}}}}]");
    Ask ask = {tools.data, CHAT_QWEN35, 0, 1, 1};
    assert_null(grammar_of_calls(&ask, &err));
    assert_string_equal(err.msg, OF_TOOL ".properties.a: there are more than 1024 alternatives");
    strbuf_free(&tools);
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

/* A call that is asked for is one, whatever of its tool's schema cannot be followed. */
static void test_lenient(void **state)
{
    static const char *const schemas[] = {
        "{'anyOf':[{'type':'file'},{'type':'null'}]}",
        "{'type':['file','null']}",
        "{'type':'string','pattern':'(?=x)y'}",
        "{'type':'string','pattern':'^</parameter>$'}",
        "{'type':'string','maxLength':5000}",
        "{'type':'string','minLength':3,'maxLength':2}",
        "{'$ref':'#/nope'}",
        "{'$ref':'#/properties/a'}",
        "{'not':{}}",
        "{'enum':[]}",
        "7",
    };
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        StrBuf tools = {0};
        Error err = {0};
        strbuf_printf(&tools,
                      "[" FUNCTION("f",
                                   ",'parameters':{'type':'array','minProperties':7,"
                                   "'anyOf':[],'properties':{'a':%s,'b':{'type':'integer'}}}") "]",
                      schemas[i]);
        Grammar *g = grammar_of_calls(&(Ask){tools.data, CHAT_QWEN35, 0, 1, 1}, &err);
        if (!g) fail_msg("%s: %s", schemas[i], err.msg);
        if (!takes(g, CALL("f>\n" IS("a", "any <text>") IS("b", "1")))) fail_msg("%s", schemas[i]);
        grammar_free(g);
        strbuf_free(&tools);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_too_many_values),
        cmocka_unit_test(test_not_followed),
        cmocka_unit_test(test_one_parameter),
        cmocka_unit_test(test_lenient),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
