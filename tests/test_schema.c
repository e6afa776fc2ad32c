/* test_schema.c: which texts a schema's grammar takes, and which schemas are refused. */
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
#include "tests/textdata.h"
#include "text/utf8.h"

/* Texts with ' for ". */
typedef struct {
    const char *schema;
    const char *good[10], *bad[12];
} Row;

static const Row rows[] = {
    {"{'type':'string'}",
     {"''", "'a'", "'\\n\\u00e9\\ud83d\\ude00'", "'\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80'", "'\\/'"},
     {"", "a", "'", "'\n'", "'\\x'", "'\\ud83d'", "'\\ude00'", "'\xc3'", "'\xed\xa0\x80'", "'a' ",
      "'\xc0\xaf'"}},
    {"{'type':'string','maxLength':0}", {"''"}, {"'a'"}},
    {"{'type':'object','properties':{'a':{'type':'string','maxLength':0},'b':{'type':'string'},"
     "'c':{'type':'string','maxLength':1},'d':{'type':'string'}},'additionalProperties':false}",
     {"{'a':'','b':'xy','c':'x','d':'xyz'}"},
     {"{'a':'x'}", "{'c':'xy'}"}},
    {"{'type':'string','maxLength':1}",
     {"'\xf0\x90\x80\x80'", "'\xf1\x80\x80\x80'", "'\xf3\xbf\xbf\xbf'", "'\xf4\x8f\xbf\xbf'"},
     {"'\xf0\x8f\xbf\xbf'", "'\xf4\x90\x80\x80'", "'\xf5\x80\x80\x80'"}},
    {"{'type':'number','enum':[1,'a',2.5,null]}", {"1", "2.5"}, {"'a'", "null"}},
    {"{'type':['boolean','integer'],'enum':[true,2,2.5,3.0,'x',null]}",
     {"true", "2", "3.0"},
     {"2.5", "'x'", "null", "false"}},
    {"{'type':['array','object'],'enum':[[2],{'a':1},3,null]}",
     {"[2]", "{'a':1}"},
     {"3", "null", "[3]", "{'a':2}"}},
    {"{'type':'string','minLength':2,'maxLength':3}",
     {"'ab'", "'abc'", "'\\n\\t'", "'\xc3\xa9\xe2\x82\xac'", "'\\ud83d\\ude00a'"},
     {"''", "'a'", "'abcd'", "'\\ud83d\\ude00'", "'\xe2\x82\xac'"}},
    {"{'type':'string','pattern':'^(a\\u0001|b\\n)$'}", {"'b\\n'"}, {"'a", "'a\\u0001'"}},
    {"{'type':'string','pattern':'^a*$','minLength':2}", {"'aa'", "'aaaaa'"}, {"''", "'a'", "'b'"}},
    {"{'type':'string','pattern':'^(a\xc3\xa9|\xe2\x82\xac)+$','minLength':2,'maxLength':3}",
     {"'a\xc3\xa9'", "'\xe2\x82\xac\xe2\x82\xac'"},
     {"'\xe2\x82\xac'", "'\xc3\xa9",
      "'a\xc3\xa9"
      "a\xc3\xa9'"}},
    {"{'type':'string','pattern':'^(abc)+$','minLength':4,'maxLength':8}",
     {"'abcabc'"},
     {"'abc'", "'abcabca"}},
    {"{'type':'string','pattern':'^(a|b{4})$','minLength':2}", {"'bbbb'"}, {"'a", "'bbb'"}},
    {"{'type':'string','pattern':'x','minLength':3}",
     {"'axb'", "'abxcd'"},
     {"'x'", "'ax'", "'abc'"}},
    {"{'type':'string','format':'date','minLength':10}", {"'2026-11-22'"}, {"'2026'"}},
    {"{'type':'string','format':'time','minLength':12}", {"'10:00:00.25Z'"}, {"'10:00:00Z'"}},
    {"{'type':'string','pattern':'^[a-c]+$'}", {"'a'", "'abcabc'"}, {"''", "'d'", "'ab d'"}},
    {"{'type':'string','pattern':'^[a-c]+$','maxLength':2}", {"'a'", "'ab'"}, {"'abc'"}},
    {"{'type':'string','pattern':'^(abc)+$','maxLength':5}", {"'abc'"}, {"'abca", "'abcabc'"}},
    {"{'type':'string','pattern':'^\\'\\\\\\\\$'}", {"'\\'\\\\'"}, {"'\\\\'", "''"}},
    {"{'type':'string','format':'date'}", {"'2026-11-22'"}, {"'2026-13-22'", "'2026'"}},
    {"{'type':'string','format':'uri'}", {"'x'", "''"}, {"1"}},
    {"{'type':'integer'}",
     {"0", "-1", "12345678901234567", "7"},
     {"01", "-", "1.0", "1e3", "-0", "1234567890123456789", "+1", "''"}},
    {"{'type':'integer','minimum':3,'maximum':120}",
     {"3", "9", "10", "99", "100", "119", "120"},
     {"0", "2", "-3", "121", "200", "1000", "03"}},
    {"{'type':'integer','exclusiveMinimum':0,'maximum':9007199254740991}",
     {"1", "9007199254740991", "8999999999999999"},
     {"0", "-1", "9007199254740992", "10000000000000000"}},
    {"{'type':'integer','minimum':-15,'exclusiveMaximum':2.5}",
     {"-15", "-9", "-1", "0", "2"},
     {"-16", "3", "-20", "-100", "-0"}},
    {"{'type':'integer','minimum':7,'maximum':7}", {"7"}, {"8", "77", ""}},
    {"{'type':'number'}",
     {"0", "-0.5", "12.25", "1e9", "1.5E-10", "-3"},
     {"01", ".5", "1.", "1e", "1e999", "--1", "NaN"}},
    {"{'type':'boolean'}", {"true", "false"}, {"True", "null", "tru"}},
    {"{'type':['string','null']}", {"null", "'x'"}, {"1", "nul"}},
    {"{'type':'string','nullable':true}", {"null", "'x'"}, {"1"}},
    {"{'enum':['red','rose','blue',1,12,null,1.5]}",
     {"'red'", "'rose'", "'blue'", "1", "12", "null", "1.5"},
     {"'r'", "'redd'", "2", "121", "nul", "'reda'"}},
    {"{'enum':[{'a':[1,'x']},[],{}]}",
     {"{'a':[1,'x']}", "{ 'a': [1, 'x'] }", "[]", "{}"},
     {"{'a':[1]}", "[1]", "{'b':1}"}},
    {"{'const':'x\\ty'}", {"'x\\ty'"}, {"'x'", "'x\\u0009y'"}},
    {"{'type':'integer','enum':[1,'a',2]}", {"1", "2"}, {"'a'"}},
    {"{'type':'object','properties':{'a':{'type':'integer'},'b':{'type':'string'}},"
     "'required':['a'],'additionalProperties':false}",
     {"{'a':1}", "{'a':1,'b':'x'}", "{ 'a': 1, 'b': 'x' }", "{\n  'a': 1\n}"},
     {"{}", "{'b':'x'}", "{'b':'x','a':1}", "{'a':1,'a':1}", "{'a':1,}", "{'a':'x'}",
      "{'a':1,'c':1}", "{'a' :1}", "{  'a':1}", "{'a':1} "}},
    {"{'type':'object','properties':{'a':{'type':'integer'},'ab':{'type':'integer'}}}",
     {"{}", "{'a':1}", "{'ab':1}", "{'a':1,'ab':2}", "{'a':1,'abc':'x'}", "{'x':1,'y':[]}",
      "{'':1}", "{'b':{'a':'x'}}"},
     {"{'ab':1,'a':2}", "{'a':'x'}", "{'x':1,'a':2}", "{'x':1,'ab':2}", "{'\\u0061':'x'}"}},
    {"{'type':'object','properties':{'a':{},'b':{},'c':{}},'required':['b'],"
     "'additionalProperties':{'type':'integer'}}",
     {"{'b':null}", "{'a':1,'b':2}", "{'b':1,'c':'x','d':3}", "{'b':1,'z':3}"},
     {"{'a':1}", "{'a':1,'c':2}", "{'z':1,'b':1}", "{'b':1,'d':'x'}", "{'c':1}"}},
    {"{'type':'object','properties':{'a\\'\\n':{'type':'null'}},'required':['a\\'\\n'],"
     "'additionalProperties':false}",
     {"{'a\\'\\n':null}"},
     {"{'a':null}"}},
    /* names that begin as a declared one go on as texts do */
    {"{'type':'object','properties':{'a\\'b':{},'\xc3\xa9':{},'\\u0001':{}}}",
     {"{'a\\'b':1}", "{'a\\n':1}", "{'a\\\\\\\\':1}", "{'\xc3\xa9':1}", "{'\xc3\xa8':1}",
      "{'\\u0001':1}", "{'a\\'bc':1}"},
     {"{'a\\x':1}", "{'\xc3':1}", "{'\xc3x':1}", "{'\\u0002':1}", "{'\\ux':1}", "{'a\\u0022b':1}"}},
    {"{'type':'object','required':['k'],'additionalProperties':{'type':'boolean'}}",
     {"{'k':true}", "{'k':true,'l':false}"},
     {"{}", "{'k':1}"}},
    {"{'properties':{'a':{'const':1}},'required':['a'],'additionalProperties':false}",
     {"{'a':1}"},
     {"{}", "1"}},
    {"{'type':'array','items':{'type':'integer'}}",
     {"[]", "[1]", "[1,2,3]", "[ 1, 2 ]", "[\n  1,\n  2\n]"},
     {"[,]", "[1,]", "['x']", "[1 ,2]", "[1,,2]"}},
    {"{'type':'array','items':{'type':'boolean'},'minItems':2,'maxItems':3}",
     {"[true,true]", "[true,true,false]"},
     {"[]", "[true]", "[true,true,true,true]"}},
    {"{'type':'array','maxItems':0}", {"[]"}, {"[1]"}},
    {"{'type':'array','prefixItems':[{'type':'string'},{'type':'integer'}],'items':false,"
     "'minItems':1}",
     {"['x']", "['x',1]"},
     {"[]", "[1]", "['x',1,2]"}},
    {"{'type':'array','prefixItems':[{'type':'string'}],'items':{'type':'null'},'minItems':2}",
     {"['x',null]", "['x',null,null]"},
     {"['x']", "[null]", "['x',1]"}},
    {"{'anyOf':[{'type':'integer'},{'type':'object','properties':{'k':{'const':'a'},"
     "'v':{'type':'integer'}},'required':['k','v'],'additionalProperties':false},"
     "{'type':'object','properties':{'k':{'const':'b'},'w':{'type':'string'}},"
     "'required':['k','w'],'additionalProperties':false}]}",
     {"3", "{'k':'a','v':1}", "{'k':'b','w':'x'}"},
     {"{'k':'a','w':'x'}", "{'k':'b','v':1}", "{'k':'c'}"}},
    {"{'oneOf':[{'type':'string','maxLength':1},{'type':'null'}]}", {"'x'", "null"}, {"'xy'"}},
    {"{'type':'object','properties':{'a':{},'b':{}},'additionalProperties':false,"
     "'anyOf':[{'required':['a']},{'required':['b']}]}",
     {"{'a':1}", "{'b':1}", "{'a':1,'b':2}"},
     {"{}"}},
    {"{'allOf':[{'type':'object','properties':{'a':{'type':'integer'}},'required':['a']},"
     "{'properties':{'b':{'type':'null'}},'required':['b']}],'additionalProperties':false}",
     {"{'a':1,'b':null}"},
     {"{'a':1}", "{'b':null}", "{'a':1,'b':null,'c':1}"}},
    {"{'allOf':[{'type':['integer','string','null']},{'type':['number','null']}]}",
     {"1", "null"},
     {"1.5", "'a'"}},
    {"{'allOf':[{'type':['number','null']},{'type':['string','integer']}]}",
     {"1"},
     {"1.5", "null", "'a'"}},
    {"{'allOf':[{'type':'integer','minimum':3,'maximum':9},{'minimum':5,'maximum':7}]}",
     {"5", "7"},
     {"4", "8"}},
    {"{'allOf':[{'minimum':5,'maximum':7},{'type':'integer','minimum':3,'maximum':9}]}",
     {"5", "7"},
     {"4", "8"}},
    {"{'allOf':[{'type':'string','minLength':1,'maxLength':3},{'minLength':2,'maxLength':2}]}",
     {"'ab'"},
     {"'a'", "'abc'"}},
    {"{'allOf':[{'type':'array','items':{'type':'integer'}},{'items':{'minimum':5}}]}",
     {"[5]", "[]", "[6,7]"},
     {"[4]", "['a']"}},
    {"{'allOf':[{'type':'array','items':true},{'items':{'type':'null'}}]}", {"[null]"}, {"[1]"}},
    {"{'allOf':[{'type':'array','items':{'type':'null'}},{'items':true}]}", {"[null]"}, {"[1]"}},
    {"{'allOf':[{'type':'array','items':{'type':'null'}},{'items':false}]}", {"[]"}, {"[null]"}},
    {"{'allOf':[{'enum':['integer','x',1]},{'enum':['number','x',2]}]}",
     {"'x'"},
     {"'integer'", "'number'", "1", "2"}},
    {"{'$ref':'#/$defs/n','$defs':{'n':{'type':'object','properties':{'v':{'type':'integer'},"
     "'next':{'anyOf':[{'$ref':'#/$defs/n'},{'type':'null'}]}},'required':['v','next'],"
     "'additionalProperties':false}}}",
     {"{'v':1,'next':null}", "{'v':1,'next':{'v':2,'next':{'v':3,'next':null}}}"},
     {"{'v':1}", "{'v':1,'next':1}", "{'v':1,'next':{'v':2}}"}},
    {"{'type':'object','properties':{'c':{'type':'array','items':{'$ref':'#'}}},"
     "'additionalProperties':false}",
     {"{}", "{'c':[{},{'c':[]}]}"},
     {"{'c':[1]}"}},
    {"{'type':'object','properties':{'v':{'type':'integer'},'c':{'$ref':'#','required':['v']}},"
     "'additionalProperties':false}",
     {"{}", "{'c':{'v':1}}", "{'v':1,'c':{'v':2,'c':{'v':3}}}"},
     {"{'c':{}}", "{'c':{'v':1,'c':{}}}"}},
    {"{'type':'object','properties':{'v':{'type':'integer'},'c':{'allOf':[{'$ref':'#'},"
     "{'required':['v']}]},'d':{'allOf':[{'$ref':'#'}]}},'additionalProperties':false}",
     {"{}", "{'c':{'v':1},'d':{}}", "{'v':1,'c':{'v':2,'c':{'v':3,'d':{'d':{}}}}}"},
     {"{'c':{}}", "{'c':{'v':1,'c':{}}}", "{'d':{'c':{}}}"}},
    {"{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'null'}},'minProperties':1,"
     "'maxProperties':2,'propertyNames':{'type':'string'},'additionalProperties':false}",
     {"{'a':null}", "{'b':null}", "{'a':null,'b':null}"},
     {"{}", "{ }"}},
    {"{'patternProperties':{'^[a-c]{2}$':{'type':'null'}},'additionalProperties':false}",
     {"{}", "{'ab':null}", "{'ca':null,'cc':null}"},
     {"{'a':null}", "{'ab':1}", "{'abc':null}", "{'ad':null}"}},
    {"{'type':'object','propertyNames':{'type':'string','pattern':'^x'},'minProperties':1,"
     "'additionalProperties':{'type':'null'}}",
     {"{'x':null}", "{'x1':null,'xy':null}"},
     {"{}", "{'y':null}", "{'x':1}"}},
    {"{'propertyNames':{'enum':['p','q','p']},'additionalProperties':{'type':'null'}}",
     {"{}", "{'q':null}", "{'p':null,'q':null}"},
     {"{'r':null}", "{'p':1}", "{'pq':null}"}},
    {"{'minProperties':1,'additionalProperties':{'type':'null'}}",
     {"{'a':null}", "{'x':null,'y':null}"},
     {"{}", "7"}},
    {"{'allOf':[{'type':'object','properties':{'a':{'type':'integer'},'b':{'type':'null'}}},"
     "{'properties':{'b':false}}],'additionalProperties':false}",
     {"{}", "{'a':1}"},
     {"{'b':null}", "{'a':1,'b':null}"}},
    {"{'type':'object','properties':{'c':{'$ref':'#/$defs/n','required':['v']},"
     "'d':{'$ref':'#/$defs/n'},'e':{'$ref':'#/$defs/n','required':['w']}},'$defs':{'n':"
     "{'type':'object','properties':{'v':{'type':'null'},'w':{'type':'null'}},"
     "'additionalProperties':false}}}",
     {"{'c':{'v':null},'d':{},'e':{'w':null}}", "{'e':{'v':null,'w':null}}"},
     {"{'c':{}}", "{'e':{'v':null}}", "{'c':{'w':null}}"}},
    {"{'$ref':'#/$defs/a~1b','$defs':{'a/b':{'type':'null'}}}", {"null"}, {"1"}},
    {"{'$ref':'#/$defs/Box%3Cint%3E','$defs':{'Box<int>':{'type':'null'}}}", {"null"}, {"1"}},
    {"{'$ref':'#/%24defs/%c3%A9%7e1%25','$defs':{'\xc3\xa9/%':{'type':'null'}}}", {"null"}, {"1"}},
    {"{'$ref':'#/$defs/100%/%zz','$defs':{'100%':{'%zz':{'type':'null'}}}}", {"null"}, {"1"}},
    {"{'$ref':'#/$defs/s','minLength':2,'$defs':{'s':{'type':'string'}}}", {"'ab'"}, {"'a'"}},
    {"true", {"1", "'x'", "[{}]", "{'a':[null,true,-1.5]}"}, {"", "[", "nil"}},
    {"{'type':'object'}", {"{}", "{'a':{'b':[1,2,{}]}}"}, {"[]", "1", "'x'"}},
    /* where strictness was not asked for, what cannot be followed is passed over */
    {"{'type':'string','not':{'const':'x'},'pattern':'(?=a)b'}", {"'x'"}, {"1"}},
    {"{'$ref':'https://example.org/x'}", {"1", "{}"}, {"x"}},
};

static int expect(const Grammar *g, const char *schema, const char *text, int is_good)
{
    char *copy = with_quotes(mem_strdup(text));
    int takes = grammar_takes(grammar_case, g, copy) == 1;
    if (takes != is_good) print_error("%s %s %s\n", schema, is_good ? "refuses" : "takes", copy);
    mem_free(copy);
    return takes != is_good;
}

static void check_rows(const Row *row, size_t n, int strict)
{
    int n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        Error err = {0};
        Grammar *g = grammar_of(row[i].schema, strict, &err);
        if (!g) print_error("%s: %s\n", row[i].schema, err.msg);
        assert_non_null(g);
        assert_string_equal(err.msg, "");
        for (int j = 0; j < 10 && row[i].good[j]; j++)
            n_wrong += expect(g, row[i].schema, row[i].good[j], 1);
        for (int j = 0; j < 12 && row[i].bad[j]; j++)
            n_wrong += expect(g, row[i].schema, row[i].bad[j], 0);
        grammar_free(g);
    }
    assert_int_equal(n_wrong, 0);
}

static void test_rows(void **state)
{
    (void)state;
    check_rows(rows, sizeof rows / sizeof *rows, 0);
}

/* ---- several schemas in one ---- */

static const Row merged[] = {
    /* ways that nothing can be of are none */
    {"{'anyOf':[{'type':'string'},{'type':'integer'}],'type':'string'}", {"'a'"}, {"1"}},
    {"{'oneOf':[{'const':1},{'const':2}],'anyOf':[{'const':2},{'const':3}]}",
     {"2"},
     {"1", "3", ""}},
    {"{'anyOf':[false,{'type':'null'}]}", {"null"}, {"", "1"}},
    {"{'anyOf':[{'$ref':'#/$defs/n'},{'$ref':'#/$defs/i'}],'minimum':5,'$defs':{"
     "'n':{'type':'integer','maximum':4},'i':{'type':'integer','maximum':6}}}",
     {"5", "6"},
     {"4", "", "7"}},
    {"{'anyOf':[{'allOf':[{'type':'null'},{'type':'string'}]},{'type':'integer'}]}",
     {"1"},
     {"null", "'a'", ""}},
    {"{'anyOf':[{'type':'string','minLength':2,'maxLength':1},{'type':'null'},{'type':'string',"
     "'pattern':'^a?$','minLength':2},{'minItems':2,'maxItems':1}]}",
     {"null"},
     {"''", "'a'", "'aa'", "[", ""}},
    {"{'type':['integer','string'],'minimum':3,'maximum':2}", {"'a'"}, {"2", "3", ""}},
    /* what is needed inside cannot be */
    {"{'type':'object','properties':{'k':{'enum':['a','b']}},'required':['k'],'anyOf':["
     "{'properties':{'k':{'const':'b'},'v':{'type':'null'}},'required':['v']},"
     "{'properties':{'k':{'type':'integer'}}}],"
     "'additionalProperties':false}",
     {"{'k':'b','v':null}"},
     {"{'k':'b'}", "{'k':1}", "{}", "{'k':'a'}"}},
    {"{'anyOf':[{'type':'array','items':{'type':'integer','minimum':2,'maximum':1},'minItems':1},"
     "{'type':'array','prefixItems':[{'allOf':[true,false]}],'minItems':1},{'type':'null'}]}",
     {"null"},
     {"[]", "[1]", "[", ""}},
    {"{'type':'array','prefixItems':[false]}", {"[]"}, {"[1]"}},
    {"{'type':'array','prefixItems':[{'type':'null'},false,{'type':'null'}],'items':true}",
     {"[]", "[null]"},
     {"[null,null]", "[null,null,null]"}},
    /* each of one with each of the other */
    {"{'type':'object','properties':{'a':{},'b':{},'c':{},'d':{}},'additionalProperties':false,"
     "'allOf':[{'anyOf':[{'required':['a']},{'required':['b']}]},"
     "{'anyOf':[{'required':['c']},{'required':['d']}]}]}",
     {"{'a':1,'c':1}", "{'b':1,'d':1}", "{'a':1,'b':1,'d':1}"},
     {"{}", "{'a':1}", "{'a':1,'b':1}", "{'d':1}", "{'c':1,'d':1}"}},
    {"{'allOf':[{'anyOf':[{'type':'integer'},{'type':'string'}]},"
     "{'anyOf':[{'type':'number','minimum':3},{'type':'null'},{'const':'x'}]}]}",
     {"3", "'x'"},
     {"2", "null", "'y'", ""}},
    /* what stands beside a reference */
    {"{'allOf':[{'$ref':'#/$defs/s','minLength':2},{'maxLength':3}],"
     "'$defs':{'s':{'$ref':'#/$defs/t','pattern':'^a'},'t':{'type':'string'}}}",
     {"'aa'", "'aaa'"},
     {"'a'", "'aaaa'", "'ba'"}},
    {"{'allOf':[{'allOf':[{'type':'integer'}]},{'allOf':[{'minimum':3}]}],'maximum':4}",
     {"3", "4"},
     {"2", "5", "'a'"}},
    /* the same of both is followed once, so that it may hold itself */
    {"{'allOf':[{'$ref':'#/$defs/n'},{'$ref':'#/$defs/m'}],'$defs':{'n':{'type':'object',"
     "'properties':{'next':{'anyOf':[{'$ref':'#'},{'const':1}]}},'additionalProperties':false},"
     "'m':{'properties':{'next':{'anyOf':[{'$ref':'#'},{'const':1}]}},'minProperties':1}}}",
     {"{'next':1}", "{'next':{'next':1}}"},
     {"{}", "1"}},
    /* items of the one are among the first of the other */
    {"{'type':'array','prefixItems':[{'type':'string'},{}],'allOf':[{'items':{'enum':['a',1]}}]}",
     {"[]", "['a']", "['a',1,'a']"},
     {"['b']", "[1]", "['a',2]", "['a',1,2]"}},
    {"{'type':'array','allOf':[{'prefixItems':[{'minimum':1}],'items':{'type':'integer'}},"
     "{'prefixItems':[{'type':'integer'},{'maximum':5},{'const':7}]}]}",
     {"[1,5,7,9]", "[]"},
     {"[0]", "['a']", "[1,6]", "[1,1,8]", "[1,1,7,'a']"}},
    {"{'allOf':[{'const':1},{'const':1.0},{'enum':[2,1.0]}]}", {"1"}, {"2"}},
    {"{'allOf':[{'type':'number','minimum':0,'maximum':2},{'multipleOf':0.2},{'multipleOf':0.3}]}",
     {"0", "0.6", "1.2", "1.8"},
     {"0.2", "0.3", "0.4", "0.9", "1", "2"}},
    {"{'allOf':[{'type':'number','maximum':9},{'multipleOf':1.5},{'multipleOf':2.5}]}",
     {"0", "7.5", "-7.5", "-15"},
     {"1.5", "2.5", "3", "5"}},
    {"{'allOf':[{'type':'integer'},{'multipleOf':4},{'multipleOf':6.0},{'multipleOf':0.5}]}",
     {"0", "12", "-24"},
     {"4", "6", "8", "1"}},
};

static void test_merged(void **state)
{
    (void)state;
    check_rows(merged, sizeof merged / sizeof *merged, 1);
    check_rows(merged, sizeof merged / sizeof *merged, 0);
}

/* ---- fixed values, and what stands beside them ---- */

static const Row valued[] = {
    {"{'enum':['a','abc',1],'minLength':2}", {"'abc'", "1"}, {"'a'"}},
    {"{'enum':['\xc3\xa9\xe2\x82\xac','abc',''],'maxLength':2,'minLength':1}",
     {"'\xc3\xa9\xe2\x82\xac'"},
     {"'abc'", "''"}},
    {"{'type':'integer','enum':[1,5],'minimum':3}", {"5"}, {"1"}},
    {"{'enum':[1,2,3,4,5],'exclusiveMinimum':1,'maximum':4,'exclusiveMaximum':4}",
     {"2", "3"},
     {"1", "4", "5"}},
    {"{'enum':[9007199254740993,9007199254740992],'minimum':9007199254740993}",
     {"9007199254740993"},
     {"9007199254740992"}},
    {"{'enum':[0,6,4,-9,1e30,3.0,0.3,7],'multipleOf':3}",
     {"0", "6", "-9", "3.0"},
     {"4", "0.3", "7"}},
    {"{'enum':[0.2,0.6,3,1e-9,0.61,2e20],'multipleOf':0.2}",
     {"0.2", "0.6", "3", "2e20"},
     {"1e-9", "0.61"}},
    {"{'enum':[[],[1],[1,2],[1,'x'],['x']],'minItems':1,'prefixItems':[{'type':'integer'}],"
     "'items':{'type':'integer'}}",
     {"[1]", "[1,2]"},
     {"[]", "[1,'x']", "['x']"}},
    {"{'enum':[[],['x'],['x',1]],'items':[{'type':'string'}],'additionalItems':false}",
     {"[]", "['x']"},
     {"['x',1]"}},
    {"{'enum':[{},{'a':1}],'required':['a']}", {"{'a':1}"}, {"{}"}},
    {"{'enum':[{},{'a':1},{'a':'x'},{'x1':1},{'x1':null},{'b':2}],'properties':{'a':{'type':"
     "'integer'}},'patternProperties':{'^x':{'type':'null'}},'additionalProperties':false}",
     {"{}", "{'a':1}", "{'x1':null}"},
     {"{'a':'x'}", "{'x1':1}", "{'b':2}"}},
    {"{'enum':[{},{'a':1},{'ab':1},{'ab':1,'ac':1}],'propertyNames':{'minLength':2},"
     "'minProperties':1,'maxProperties':1}",
     {"{'ab':1}"},
     {"{}", "{'a':1}", "{'ab':1,'ac':1}"}},
    {"{'type':'string','enum':['ab','b','2026-01-01','2026-13-01'],'pattern':'^(a|2)',"
     "'format':'date'}",
     {"'2026-01-01'"},
     {"'ab'", "'b'", "'2026-13-01'"}},
    {"{'anyOf':[{'type':'string','minLength':2},{'type':'integer'}],'enum':['a','bb',2]}",
     {"'bb'", "2"},
     {"'a'"}},
    {"{'anyOf':[{'type':'string'},{'type':'integer'}],'enum':['a']}", {"'a'"}, {"1", "''"}},
    {"{'const':2,'enum':[1,2.0],'type':'integer'}", {"2"}, {"1", "2.0"}},
    {"{'enum':['a',null],'type':'string','minLength':1,'nullable':true}", {"'a'", "null"}, {"''"}},
    /* what is inside of them */
    {"{'enum':[{'a':[1]},{'a':[0]},{'a':['x']},{'a':[null]}],'properties':{'a':{'items':{'anyOf':["
     "{'$ref':'#/$defs/n','minimum':1},{'allOf':[{'type':'string'},{'maxLength':0}]},"
     "{'oneOf':[{'const':null}]}]}}},'$defs':{'n':{'type':['integer','number']}}}",
     {"{'a':[1]}", "{'a':[null]}"},
     {"{'a':[0]}", "{'a':['x']}"}},
    {"{'enum':[[[]],[[[1]]],[]],'$ref':'#/$defs/t','$defs':{'t':{'items':{'$ref':'#/$defs/t'},"
     "'type':'array'}}}",
     {"[[]]", "[]"},
     {"[[[1]]]"}},
    {"{'enum':[{'a':1},{'b':1},{'c':{}}],'properties':{'a':false,'b':true,'c':{'enum':[1]}}}",
     {"{'b':1}"},
     {"{'a':1}", "{'c':{}}"}},
};

static void test_valued(void **state)
{
    static const Row passed_over[] = {
        {"{'enum':['a',1],'pattern':'(?=a)','not':{'const':1},'contains':{},'multipleOf':0}",
         {"'a'", "1"},
         {"2"}},
        {"{'enum':[[1]],'items':{'$ref':'#/x','not':{}},'minItems':'x'}", {"[1]"}, {"[]"}},
    };
    (void)state;
    check_rows(valued, sizeof valued / sizeof *valued, 1);
    check_rows(valued, sizeof valued / sizeof *valued, 0);
    check_rows(passed_over, sizeof passed_over / sizeof *passed_over, 0);
}

/* ---- no way on ---- */

/* What could never be ended well is refused where it begins. */
static const char *const dead_ends[][2] = {
    {"{'type':'object','properties':{'a':{'type':'null'}},'additionalProperties':false}",
     "{'a':null,"},
    {"{'type':'object','additionalProperties':false}", "{'"},
    {"{'type':'array','items':{'type':'null'},'maxItems':1}", "[null,"},
    {"{'type':'array','prefixItems':[{'type':'null'}],'items':false}", "[null,"},
    {"{'type':'array','maxItems':0}", "[1"},
    {"{'type':'integer','maximum':12}", "13"},
    {"{'enum':['ab']}", "'b"},
};

static void test_dead_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof dead_ends / sizeof *dead_ends; i++) {
        Error err = {0};
        Grammar *g = grammar_of(dead_ends[i][0], 0, &err);
        char *text = with_quotes(mem_strdup(dead_ends[i][1]));
        assert_non_null(g);
        if (grammar_takes(grammar_case, g, text)) fail_msg("%s begins %s", dead_ends[i][0], text);
        text[strlen(text) - 1] = 0;
        if (!grammar_takes(grammar_case, g, text)) fail_msg("%s: not %s", dead_ends[i][0], text);
        mem_free(text);
        grammar_free(g);
    }
}

/* ---- many required properties ---- */

/* An object whose n properties, all required, have this schema; or this value. */
static void add_schema_of(StrBuf *out, int n, const char *value)
{
    strbuf_puts(out, "{'type':'object','properties':{");
    for (int i = 0; i < n; i++)
        strbuf_printf(out, "%s'p%d':%s", i ? "," : "", i, value);
    strbuf_puts(out, "},'required':[");
    for (int i = 0; i < n; i++)
        strbuf_printf(out, "%s'p%d'", i ? "," : "", i);
    strbuf_puts(out, "],'additionalProperties':false}");
}

static void add_object_of(StrBuf *out, int n, const char *value)
{
    strbuf_puts(out, "{");
    for (int i = 0; i < n; i++)
        strbuf_printf(out, "%s'p%d':%s", i ? "," : "", i, value);
    strbuf_puts(out, "}");
}

/* Objects with n_outer required properties, each an object with n_inner of them. */
typedef struct {
    int n_outer, n_inner;
} Sizes;

static void expect_required(const char *before, const char *behind, Sizes n, const char *const *at)
{
    StrBuf inner = {0}, one = {0}, schema = {0}, text = {0};
    Error err = {0};
    add_schema_of(&inner, n.n_inner, "{'type':'null'}");
    add_object_of(&one, n.n_inner, "null");
    strbuf_puts(&schema, before);
    add_schema_of(&schema, n.n_outer, inner.data);
    strbuf_puts(&schema, behind);
    strbuf_puts(&text, at[0]);
    add_object_of(&text, n.n_outer, one.data);
    strbuf_puts(&text, at[1]);
    Grammar *g = grammar_of(schema.data, 1, &err);
    if (!g) fail_msg("%d, %d: %s", n.n_outer, n.n_inner, err.msg);
    if (expect(g, before, text.data, 1)) fail_msg("%d, %d", n.n_outer, n.n_inner);
    grammar_free(g);
    strbuf_free(&inner);
    strbuf_free(&one);
    strbuf_free(&schema);
    strbuf_free(&text);
}

/* However many names come one after the other, what is behind them ends. */
static void test_many_required(void **state)
{
    static const Sizes sizes[] = {{99, 1},  {100, 1}, {101, 1}, {1000, 1}, {1, 99},
                                  {1, 100}, {1, 101}, {1, 997}, {70, 40},  {40, 70}};
    static const char *const places[][4] = {
        {"", "", "", ""},
        {"{'type':'object','properties':{'o':", "},'additionalProperties':false}", "{'o':", "}"},
        {"{'anyOf':[{'type':'null'},", "]}", "", ""},
        {"{'type':'array','items':", "}", "[", "]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof places / sizeof *places; k++)
            expect_required(places[k][0], places[k][1], sizes[i], &places[k][2]);
}

/* ---- refused ---- */

static const struct {
    const char *schema, *error;
    int strict;
} refused[] = {
    {"{'type':'object','properties':{'a':{'type':'string','pattern':'a{2}*'}}}",
     "schema.properties.a.pattern: ", 1},
    {"{'not':{}}", "schema: keyword \"not\" is not supported in strict mode", 1},
    {"{'type':'object','properties':{'a':{'items':{'contains':{}}}}}",
     "schema.properties.a.items: keyword \"contains\" is not supported in strict mode", 1},
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
    {"{'allOf':[{'type':'number','multipleOf':0.2},{'multipleOf':1e-10}]}",
     "schema: \"multipleOf\" of several parts is not supported in strict mode", 1},
    {"{'type':'object','required':['a'],'additionalProperties':false}",
     "schema: \"a\" is required and may not be there", 1},
    {"{'type':'text'}", "schema: type \"text\" is none of JSON's", 0},
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
    {"{'type':'string','minLength':4097}", "schema.minLength: it must be a number of 0 to 4096", 1},
    {"{'properties':{'a':{'type':'string','maxLength':-1}}}",
     "schema.properties.a.maxLength: it must be a number of 0 to 4096", 1},
    {"{'type':'array','items':{'type':'null'},'minItems':1001}",
     "schema.minItems: it must be a number of 0 to 1000", 1},
    {"{'type':'array','maxItems':1001}", "schema.maxItems: it must be a number of 0 to 1000", 1},
    {"{'type':'array','maxItems':'2'}", "schema.maxItems: it must be a number of 0 to 1000", 1},
    {"{'type':'object','minProperties':-1}", "schema.minProperties: it must be a number of 0", 1},
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
    {"{'propertyNames':{'pattern':'a)'}}", "schema.propertyNames.pattern: ", 1},
    {"{'patternProperties':{'a(':{}},'additionalProperties':false}",
     "schema.patternProperties.pattern: ", 1},
    {"{'patternProperties':{'^a':{},'^b':{}},'additionalProperties':false}",
     "schema: keyword \"patternProperties\" is not supported", 1},
    {"{'patternProperties':{'^a':{}}}", "schema: keyword \"patternProperties\" is not supported",
     1},
    {"{'patternProperties':{'^a':{'type':'nil'}},'additionalProperties':false}",
     "schema.patternProperties: type \"nil\"", 1},
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
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_merged),
        cmocka_unit_test(test_valued),  cmocka_unit_test(test_dead_ends),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_long_path),
        cmocka_unit_test(test_limits),  cmocka_unit_test(test_many_required),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
