/* test_schema.c: which texts a schema's grammar takes. */
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
#include "text/dfa.h"

/* Texts with ' for ". */
typedef struct {
    const char *schema;
    const char *good[10], *bad[12];
} Row;

#define LABELS  "abcdef.abcdef.abcdef.abcdef.abcdef.abcdef."
#define LABELS6 LABELS LABELS LABELS LABELS LABELS LABELS /* 252 characters */

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
    {"{'type':'string','format':'hostname'}", {"'" LABELS6 "x'"}, {"'" LABELS6 "xy'"}},
    {"{'type':'string','format':'hostname','maxLength':3}", {"'a.b'"}, {"'abcd'"}},
    {"{'format':'hostname','enum':['" LABELS6 "x','" LABELS6 "xy']}",
     {"'" LABELS6 "x'"},
     {"'" LABELS6 "xy'"}},
    {"{'type':'string','format':'uri'}", {"'x'", "''"}, {"1"}},
    {"{'type':'string','format':'date','pattern':'^2026','minLength':10}",
     {"'2026-11-22'"},
     {"'2025-11-22'", "'2026'", "'2026x"}},
    {"{'type':'string','format':'time','pattern':'^\\\\d\\\\d:\\\\d\\\\d$'}", /* zod's */
     {"'10:00'"},
     {"'10:00:00Z'"}},
    {"{'type':'string','format':'uri','pattern':'^a$'}", {"'a'"}, {"'b'"}},
    {"{'type':'string','format':'date','pattern':'^(?!x)'}", {"'2026-11-22'"}, {"'x'"}},
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
    {"{'propertyNames':{'$ref':'#/$defs/k'},'additionalProperties':{'type':'null'},"
     "'$defs':{'k':{'$ref':'#/$defs/e'},'e':{'title':'E','type':'string','enum':['p','q']}}}",
     {"{}", "{'q':null}", "{'p':null,'q':null}"},
     {"{'r':null}", "{'p':1}"}},
    {"{'propertyNames':{'const':'p'},'additionalProperties':{'type':'null'}}",
     {"{}", "{'p':null}"},
     {"{'q':null}", "{'p':1}"}},
    {"{'propertyNames':{'title':'A','pattern':'^a'},'additionalProperties':{'type':'null'}}",
     {"{}", "{'ab':null}"},
     {"{'b':null}", "{'a':1}"}},
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
    /* null is as good as nothing; draft 4 has booleans beside bounds */
    {"{'type':'object','properties':null,'required':null,'additionalProperties':{'type':'integer',"
     "'minimum':1,'exclusiveMinimum':true,'maximum':null,'format':null}}",
     {"{}", "{'a':2}"},
     {"{'a':1}", "{'a':'x'}"}},
    /* a format is of all strings that it stands beside */
    {"{'$ref':'#/$defs/s','format':'date','$defs':{'s':{'type':'string'}}}",
     {"'2026-11-22'"},
     {"'x'", "1"}},
    {"{'anyOf':[{'type':'string'},{'type':'null'}],'format':'date'}",
     {"'2026-11-22'", "null"},
     {"'x'"}},
    {"{'allOf':[{'type':'string','format':'uri'}],'format':'date'}", {"'2026-11-22'"}, {"'x'"}},
    {"{'allOf':[{'type':'string','format':'date'},{'format':'uri'}]}", {"'2026-11-22'"}, {"'x'"}},
    {"{'enum':['2026-11-22','x',1],'format':'date'}", {"'2026-11-22'", "1"}, {"'x'"}},
    {"{'enum':['x',1],'format':'uri'}", {"'x'", "1"}, {"'y'"}},
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

/* ---- formats ---- */

/* All of them in one schema: each is kept. */
static void test_all_formats(void **state)
{
    static const char *const formats[] = {
        "date-time", "date",  "time",  "uuid",     "uuid1", "uuid3", "uuid4",    "uuid5",
        "uuid6",     "uuid7", "uuid8", "duration", "ipv4",  "ipv6",  "hostname", "email"};
    StrBuf schema = {0};
    Error err = {0};
    (void)state;
    _Static_assert(sizeof formats / sizeof *formats == N_FORMATS, "these are all");
    strbuf_puts(&schema, "{'additionalProperties':false,'properties':{");
    for (int i = 0; i < N_FORMATS; i++)
        strbuf_printf(&schema, "%s'%s':{'type':'string','format':'%s'}", i ? "," : "", formats[i],
                      formats[i]);
    strbuf_puts(&schema, "}}");
    Grammar *g = grammar_of(schema.data, 1, &err);
    if (!g) fail_msg("%s", err.msg);
    int n_wrong = expect(g, schema.data, "{'date':'2026-11-22','ipv4':'127.0.0.1'}", 1) +
                  expect(g, schema.data, "{'date':'2026-11-22','ipv4':'127.0.0'}", 0);
    assert_int_equal(n_wrong, 0);
    grammar_free(g);
    strbuf_free(&schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_merged),
        cmocka_unit_test(test_valued),        cmocka_unit_test(test_dead_ends),
        cmocka_unit_test(test_many_required), cmocka_unit_test(test_all_formats),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
