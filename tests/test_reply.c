/* test_reply.c: what an answer's tokens become: reasoning, content, tool calls. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/reply_case.h"
#include "tests/textdata.h"
#include "text/call_json.h"
#include "text/reply_drafts.h"

#define WEATHER(city)                                                                              \
    "<function=get_weather>\n<parameter=city>\n" city "\n</parameter>\n</function>"
#define PARIS "F(get_weather)A({\"city\": \"Paris\"})."
#define LYON  "F(get_weather)A({\"city\": \"Lyon\"})."
#define NOW   CALL "\n<function=now>\n</function>\n" ENDCALL

static ReplyTools *tools;

/* Named by the row of the table of states, or by what went wrong elsewhere. */
static const ReplyCase cases[] = {
    {"think: </think>", IN_THINK, "Four\n" ENDTHINK "\n\n12", "R(Four)C(12)"},
    {"think: other text", IN_THINK, "a\n\nb\n", "R(a\n\nb\n)"},
    {"think: one newline is dropped", IN_THINK, "a\n\n" ENDTHINK "b", "R(a\n)C(b)"},
    {"think: empty", IN_THINK, "\n" ENDTHINK "\n\nhi", "C(hi)"},
    {"think: tags are text", IN_THINK, "a" THINK CALL ENDCALL "b" ENDTHINK "c",
     "R(a<think><tool_call></tool_call>b)C(c)"},
    {"think: begun once more", IN_THINK, "\n" THINK "\na" THINK "b" ENDTHINK "\n\nc",
     "R(\na<think>b)C(c)"},
    {"think: begun once more, as content", IN_THINK | KEEP_THINK, THINK "\na" ENDTHINK "b",
     "C(<think>\na</think>b)"},
    {"think: cut off", IN_THINK | CUT_OFF, "a\n", "R(a\n)"},
    {"text0: white space is held", IN_THINK, "a" ENDTHINK "\n\n \n b", "R(a)C( \n b)"},
    {"text0: white space before a call", IN_THINK, "a" ENDTHINK " \n" NOW, "R(a)F(now)A({})."},
    {"text0: nothing comes", 0, " \n", "C( \n)"},
    {"text: <tool_call> drops white space", 0, "Ok. \n\n" NOW, "C(Ok.)F(now)A({})."},
    {"text: <think> first", 0, THINK "\na\n" ENDTHINK "\n\nb", "R(a)C(b)"},
    {"text: <think> after white space", 0, "\n" THINK "a" ENDTHINK "b", "R(a)C(b)"},
    {"text: <think> later is text", 0, "a" THINK "b", "C(a<think>b)"},
    {"text: and so is what ends it", 0, "a" THINK "b" ENDTHINK "\nc" ENDTHINK "d",
     "C(a<think>b</think>\ncd)"},
    {"text: a second </think>", IN_THINK, "a" ENDTHINK ENDTHINK "\nb" ENDTHINK "c", "R(a)C(bc)"},
    {"text: other text", 0, "a \n b \n", "C(a \n b \n)"},
    {"text: spelled tags are prose", 0, "a</think> <tool_call> b\n<tool_call>\n<function=no>",
     "C(a</think> <tool_call> b\n<tool_call>\n<function=no>)"},
    {"text: spelled call in a line", 0, "use <tool_call>\n" WEATHER("Paris"),
     "C(use <tool_call>\n" WEATHER("Paris") ")"},
    {"text: spelled call at a line start", 0,
     "Ok.\n<tool_call>\n" WEATHER("Paris") "\n</tool_call>\n<tool_call>" WEATHER(
         "Lyon") "</tool_call>",
     "C(Ok.)" PARIS LYON},
    {"text: spelled twice", 0, "<tool_call>\n<tool_call>\n" WEATHER("Paris"),
     "C(<tool_call>)" PARIS},
    {"text: function without tool_call", 0, "Ok.\n\n" WEATHER("Paris") ENDCALL "\n" WEATHER("Lyon"),
     "C(Ok.)" PARIS LYON},
    {"text: without parameters, too", 0, "<function=now>\n</function> then",
     "F(now)A({}).C( then)"},
    {"text: such a function in a line", 0, "use " WEATHER("Paris"), "C(use " WEATHER("Paris") ")"},
    {"text: one that is not declared", 0, "<function=no>\n</function>",
     "C(<function=no>\n</function>)"},
    {"text: one without an end", 0, "<function=now>", "C(<function=now>)"},
    {"text: one that is talked of", 0, "<function=now> tells the time.\n</function>",
     "C(<function=now> tells the time.\n</function>)"},
    {"text: stray </tool_call>", 0, "a" ENDCALL "b", "C(a</tool_call>b)"},
    {"call: function", 0, CALL " \n" WEATHER("Paris") "\n" ENDCALL, PARIS},
    {"call: undeclared", 0,
     CALL "<function=f o>\n<parameter=x.y>\n1\n</parameter></function>" ENDCALL,
     "F(f o)A({\"x.y\": \"1\"})."},
    {"call: json", 0, CALL "\n{\"name\": \"now\", \"arguments\": {}}\n" ENDCALL, "F(now)A({})."},
    {"call: anything else", 0, "a " CALL "\nhello " ENDCALL " b",
     "C(a <tool_call>\nhello </tool_call> b)"},
    {"call: nothing", 0, CALL "\n", "C(<tool_call>\n)"},
    {"call: no name", 0, CALL "<function=>\n", "C(<tool_call><function=>\n)"},
    {"call: after one that was none", 0, CALL CALL "\n" WEATHER("Paris") ENDCALL,
     "C(<tool_call>)" PARIS},
    {"args: two parameters", 0,
     CALL "<function=get_weather> \n <parameter=city>\nA\n</parameter> \n<parameter=days>\n3\n"
          "</parameter>\n</function>" ENDCALL,
     "F(get_weather)A({\"city\": \"A\", \"days\": 3})."},
    {"args: none", 0, NOW, "F(now)A({})."},
    {"args: </tool_call>", 0, CALL "<function=now>\n" ENDCALL "b", "F(now)A({}).C(b)"},
    {"args: <function=", 0, CALL "<function=now>\n" WEATHER("Paris") ENDCALL, "F(now)A({})." PARIS},
    {"args: <tool_call>", 0, CALL "<function=now>\n" CALL WEATHER("Paris") ENDCALL,
     "F(now)A({})." PARIS},
    {"args: end", 0, CALL "<function=now>", "F(now)A({})."},
    {"args: cut off", CUT_OFF, CALL "<function=now>", "F(now)A({)~"},
    {"args: text is dropped", 0, CALL "<function=now>what <b> </parameter></function>" ENDCALL,
     "F(now)A({})."},
    {"after: text", 0, NOW "\n\nDone.\n", "F(now)A({}).C(\n\nDone.\n)"},
    {"after: white space", 0, "a" NOW " \n", "C(a)F(now)A({})."},
    {"after: <tool_call>", 0, CALL "<function=now></function>\n" NOW, "F(now)A({}).F(now)A({})."},
    {"after: <function=", 0, CALL "<function=now></function>\n" WEATHER("Paris") "\n" ENDCALL,
     "F(now)A({})." PARIS},
    {"after: text without </tool_call>", 0, CALL "<function=now></function>\n <b> x",
     "F(now)A({}).C(\n <b> x)"},
    {"after: several", 0, "Both.\n" NOW "\n" CALL WEATHER("Lyon") ENDCALL,
     "C(Both.)F(now)A({})." LYON},
    {"no tools: markup is content", NO_TOOLS, "a\n" CALL "\n<function=now>\n</function>\n" ENDCALL,
     "C(a\n<tool_call>\n<function=now>\n</function>\n</tool_call>)"},
    {"no tools: <think> after white space", NO_TOOLS, "\n" THINK "a" ENDTHINK "b", "R(a)C(b)"},
    {"one call: the end of it", ONE_CALL, "a" NOW "b", "C(a)F(now)A({})."},
    {"one call: another begins", ONE_CALL, CALL "<function=now></function>\n" NOW, "F(now)A({})."},

    {"thoughts as content", IN_THINK | KEEP_THINK, "a\n" ENDTHINK "\n\nb", "C(a\n</think>\n\nb)"},
    {"thoughts as content, <think> too", KEEP_THINK, THINK "\na" NOW ENDTHINK NOW,
     "C(<think>\na<tool_call>\n<function=now>\n</function>\n</tool_call></think>)F(now)A({})."},

    {"value: newlines", 0,
     CALL "<function=write_file><parameter=path>\n\na\n\n</parameter></function>",
     "F(write_file)A({\"path\": \"\\na\\n\"})."},
    {"value: empty", 0,
     CALL "<function=write_file><parameter=path>\n</parameter><parameter=content></parameter>"
          "</function>",
     "F(write_file)A({\"path\": \"\", \"content\": \"\"})."},
    {"value: ends by </tool_call>", 0,
     CALL "<function=write_file><parameter=path>a</parameter>" ENDCALL,
     "F(write_file)A({\"path\": \"a\"})."},
    {"value: ends by the end", 0, CALL "<function=write_file><parameter=path>a</parameter> ",
     "F(write_file)A({\"path\": \"a\"})."},
    {"value: open at the end", 0,
     CALL "<function=write_file><parameter=path>a </function> \n" ENDCALL "\n",
     "F(write_file)A({\"path\": \"a\"})."},
    {"value: open at the end, </function> alone", 0,
     CALL "<function=write_file><parameter=path>a\n</function>",
     "F(write_file)A({\"path\": \"a\"})."},
    {"value: cut off", CUT_OFF, CALL "<function=write_file><parameter=path>\nab\n</para",
     "F(write_file)A({\"path\": \"ab)~"},
    {"value: cut off before it", CUT_OFF, CALL "<function=get_weather><parameter=days>\n1",
     "F(get_weather)A({\"days\": )~"},
    {"value: cut off after a call", CUT_OFF, NOW, "F(now)A({})."},
    {"value: closers in it", 0,
     CALL "<function=write_file><parameter=content>\na</function> b " ENDCALL "c</tool_call>"
          "</function>\n</tool_call>d\n</parameter></function>" ENDCALL,
     "F(write_file)A({\"content\": \"a</function> b </tool_call>c</tool_call></function>"
     "\\n</tool_call>d\"})."},
    {"value: <parameter= that is seen, undeclared, in a line", 0,
     CALL
     "<function=write_file><parameter=path>\n<parameter=path>\n<parameter=no>\n x<parameter=mode>"
     "</parameter></function>",
     "F(write_file)A({\"path\": \"<parameter=path>\\n<parameter=no>\\n x<parameter=mode>\"})."},
    {"value: the same parameter again", 0,
     CALL "<function=write_file><parameter=path>a</parameter><parameter=path>b</parameter>"
          "<parameter=mode>null</parameter></function>",
     "F(write_file)A({\"path\": \"a\", \"mode\": null})."},
    {"value: parameters whose names are alike", 0,
     CALL "<function=write_file><parameter=a\"b>1</parameter><parameter=a\\\"b>2</parameter>"
          "<parameter=a\"b>3</parameter></function>",
     "F(write_file)A({\"a\\\"b\": \"1\", \"a\\\\\\\"b\": \"2\"})."},
    {"value: missing closer in the second of two calls", 0,
     CALL "<function=write_file><parameter=content>x</parameter></function>" ENDCALL CALL
          "<function=write_file>\n<parameter=path>\na.txt\n<parameter=content>\ny\n</parameter>"
          "</function>" ENDCALL,
     "F(write_file)A({\"content\": \"x\"}).F(write_file)A({\"path\": \"a.txt\", \"content\": "
     "\"y\"})."},
    {"value: bytes that are no text", 0,
     "\xFF" CALL "<function=write_file><parameter=path>\xE4\xBD\xC3\xA9</parameter></function>",
     "C(\xEF\xBF\xBD)F(write_file)A({\"path\": \"\xEF\xBF\xBD\xC3\xA9\"})."},

    {"half a character before a tag", IN_THINK, "a\xE4\xBD" ENDTHINK "b", "R(a\xEF\xBF\xBD)C(b)"},
    {"half a character at the end", 0, "a\xE4\xBD", "C(a\xEF\xBF\xBD)"},

    {"Rapid-MLX 1515: agents write files about markup", 0,
     CALL "\n<function=write_file>\n<parameter=content>\nEnd it by </parameter> and </tool_call>,\n"
          "</parameter>\nthen go on\n</parameter>\n</function>\n" ENDCALL,
     "F(write_file)A({\"content\": \"End it by </parameter> and </tool_call>,\\n</parameter>\\n"
     "then go on\"})."},
    {"vllm 37829, 35615, 35421: missing closer", 0,
     CALL
     "\n<function=write_file>\n<parameter=path>\na.txt\n<parameter=content>\nx\n<parameter=mode>"
     "\nnull\n</parameter>\n</function>\n" ENDCALL,
     "F(write_file)A({\"path\": \"a.txt\", \"content\": \"x\", \"mode\": null})."},
    {"vllm 55497: no name", 0,
     CALL
     "<function=write_file><parameter=>\nx</parameter><parameter=path>a</parameter></function>",
     "F(write_file)A({\"path\": \"a\"})."},
    {"vllm 55497: no bracket", 0,
     CALL "<function=write_file>\n<parameter=path\n<parameter=path>a</parameter></function>",
     "F(write_file)A({\"path\": \"a\"})."},
    {"vllm 55497: ends in the name", 0, CALL "<function=write_file><parameter=pa",
     "F(write_file)A({})."},
    {"qwen3_coder_detector: null and bad booleans", 0,
     CALL
     "<function=get_weather><parameter=city>null</parameter><parameter=metric>maybe</parameter>"
     "</function>",
     "F(get_weather)A({\"city\": \"null\", \"metric\": \"maybe\"})."},
    {"mlx-lm 1310: a date for an integer", 0,
     CALL "<function=get_weather><parameter=days>2026-01-15</parameter></function>",
     "F(get_weather)A({\"days\": \"2026-01-15\"})."},
    {"ollama 18563: & and < in code", 0,
     CALL
     "<function=write_file><parameter=content>\nif (a < b && c) <x>&amp;\n</parameter></function>",
     "F(write_file)A({\"content\": \"if (a < b && c) <x>&amp;\"})."},
    {"vllm 58227: <function= never closed", 0,
     CALL "<function=get_weather>\n<parameter=city>Paris</parameter>\n" ENDCALL "\n" NOW,
     PARIS "F(now)A({})."},
    {"lmstudio 1592: a draft must not run", IN_THINK, "I could " NOW "." ENDTHINK "\nNo.",
     "R(I could <tool_call>\n<function=now>\n</function>\n</tool_call>.)C(No.)"},
    {"lmstudio 1592: a draft, then another call", IN_THINK,
     NOW ENDTHINK CALL WEATHER("Paris") ENDCALL,
     "R(<tool_call>\n<function=now>\n</function>\n</tool_call>)" PARIS},
    {"mlx-openai-server 284: a call in an open think block", IN_THINK, "Do it.\n" NOW "\n",
     "R(Do it.\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n)F(now)A({})."},
    {"vllm 55759: </think> after it, and nothing else", IN_THINK, "a" NOW "\n" ENDTHINK "\n\n",
     "R(a<tool_call>\n<function=now>\n</function>\n</tool_call>)F(now)A({})."},
    {"vllm 41967: two calls", 0, CALL WEATHER("Paris") ENDCALL CALL WEATHER("Lyon") ENDCALL,
     PARIS LYON},
    {"vllm 51679: </think>, then a call at once", IN_THINK,
     "a\n" ENDTHINK CALL WEATHER("Paris") ENDCALL, "R(a)" PARIS},

    {"in think: the last run alone", IN_THINK,
     NOW " or\n" CALL WEATHER("Paris") ENDCALL "\n" CALL WEATHER("Lyon") ENDCALL,
     "R(<tool_call>\n<function=now>\n</function>\n</tool_call> or\n<tool_call>" WEATHER(
         "Paris") "</tool_call>\n<tool_call>" WEATHER("Lyon") "</tool_call>)" PARIS LYON},
    {"in think: one call of the run", IN_THINK | ONE_CALL, NOW NOW,
     "R(<tool_call>\n<function=now>\n</function>\n</tool_call><tool_call>\n<function=now>\n"
     "</function>\n</tool_call>)F(now)A({})."},
    {"in think: undeclared, half, no call", IN_THINK,
     CALL "<function=no></function>" ENDCALL CALL "<function=now>" ENDCALL CALL "x" ENDCALL,
     "R(<tool_call><function=no></function></tool_call><tool_call><function=now></tool_call>"
     "<tool_call>x</tool_call>)"},
    {"in think: begun and given up", IN_THINK, CALL "<function=get_weather>\n<parameter=city>" NOW,
     "R(<tool_call><function=get_weather>\n<parameter=city><tool_call>\n<function=now>\n"
     "</function>\n</tool_call>)F(now)A({})."},
    {"in think: text beside it", IN_THINK, CALL "<function=now></function> or so" ENDCALL,
     "R(<tool_call><function=now></function> or so</tool_call>)"},
    {"in think: begun nine times", IN_THINK, CALL CALL CALL CALL CALL CALL CALL CALL NOW,
     "R(<tool_call><tool_call><tool_call><tool_call><tool_call><tool_call><tool_call><tool_call>"
     "<tool_call>\n<function=now>\n</function>\n</tool_call>)F(now)A({})."},
    {"in think: blanks are no answer", IN_THINK, NOW ENDTHINK "\n\n \t",
     "R(<tool_call>\n<function=now>\n</function>\n</tool_call>)F(now)A({})."},
    {"in think: a call in a value", IN_THINK,
     CALL "<function=write_file><parameter=path>" NOW "</parameter></function>" ENDCALL,
     "R(<tool_call><function=write_file><parameter=path><tool_call>\n<function=now>\n</function>\n"
     "</tool_call></parameter></function></tool_call>)F(write_file)A({\"path\": \"<tool_call>\\n"
     "<function=now>\\n</function>\\n</tool_call>\"})."},
    {"in think: cut off", IN_THINK | CUT_OFF, NOW,
     "R(<tool_call>\n<function=now>\n</function>\n</tool_call>)"},
    {"in think: kept as content", IN_THINK | KEEP_THINK, NOW,
     "C(<tool_call>\n<function=now>\n</function>\n</tool_call>)F(now)A({})."},

    {"json: arguments first", 0,
     CALL "{\"arguments\": {\"city\": \"P\xC3\xA9\"}, \"name\": \"get_weather\"}" ENDCALL,
     "F(get_weather)A({\"city\": \"P\xC3\xA9\"})."},
    {"json: verbatim", 0,
     CALL
     "\n{\"name\":\"x\",\"arguments\":{\"a\" : [1,{}], \"b\":\"}\\\"{\"},\"id\":[{}]}\n" ENDCALL
     "c",
     "F(x)A({\"a\" : [1,{}], \"b\":\"}\\\"{\"}).C(c)"},
    {"json: tags in a string", 0,
     CALL "{\"name\": \"x\", \"arguments\": {\"a\": \"" CALL ENDCALL THINK "\"}}" ENDCALL,
     "F(x)A({\"a\": \"<tool_call></tool_call><think>\"})."},
    {"json: arguments as a string", 0,
     CALL "{\"name\": \"x\", \"arguments\": \" {\\\"a\\\": \\\"\\\\n\\u00e9\\ud83d\\ude00\\\"} "
          "\"}" ENDCALL,
     "F(x)A({\"a\": \"\\n\xC3\xA9\xF0\x9F\x98\x80\"})."},
    {"json: halves of surrogate pairs", 0,
     CALL "{\"name\": \"x\", \"arguments\": \"{\\\"a\\\": \\\"\\ud83dx\\ud83d\\ud83d\\\\n\\\"}\"}",
     "F(x)A({\"a\": \"\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD\\n\"})."},
    {"json: such a string first", 0,
     CALL "{\"arguments\": \"{\\\"a\\\": 1}\", \"name\": \"\\u0078\\n\"}", "F(x\n)A({\"a\": 1})."},
    {"json: other fields", 0,
     CALL "{\"type\": \"function\", \"parameter\": {\"a\": 1}, \"name\": \"x\"}" ENDCALL,
     "F(x)A({})."},
    {"json: line feeds in strings", 0,
     CALL "{\"name\": \"x\", \"arguments\": {\"a\": \"b\n\tc\"}}" ENDCALL,
     "F(x)A({\"a\": \"b\\u000a\\u0009c\"})."},
    {"json: line feeds in quoted arguments", 0,
     CALL "{\"name\": \"x\", \"arguments\": \"{\n\\\"a\\\": \\\"b\nc\\nd\\\"}\"}" ENDCALL,
     "F(x)A({\n\"a\": \"b\\u000ac\\u000ad\"})."},
    {"json: text behind quoted arguments", 0,
     CALL "{\"name\": \"x\", \"arguments\": \"{} y\"}" ENDCALL, "F(x)A({})~C(y\"}</tool_call>)"},
    {"json: half a character behind quoted arguments", 0,
     CALL "{\"name\": \"x\", \"arguments\": \"{} \\ud83d\"}" ENDCALL,
     "F(x)A({})~C(\"}</tool_call>)"},
    {"json: a second name", 0, CALL "{\"name\": \"x\", \"name\": 1}" ENDCALL, "F(x)A({})."},
    {"json: no arguments", 0, CALL "{\"name\": \"x\"}" ENDCALL, "F(x)A({})."},
    {"json: null arguments", 0, CALL "{\"arguments\": null, \"name\": \"x\"}" ENDCALL,
     "F(x)A({})."},
    {"json: empty arguments", 0, CALL "{\"name\": \"x\", \"arguments\": \"\"}" ENDCALL,
     "F(x)A({})."},
    {"json: two calls", 0, CALL "{\"name\": \"x\"}" ENDCALL "\n" CALL "{\"name\": \"y\"}",
     "F(x)A({}).F(y)A({})."},
    {"json: no name", 0, CALL "{\"arguments\": {}}" ENDCALL,
     "C(<tool_call>{\"arguments\": {}}</tool_call>)"},
    {"json: name is no string", 0, CALL "{\"name\": 1}", "C(<tool_call>{\"name\": 1})"},
    {"json: broken before the name", 0, "a" CALL "{\"arguments\": {a}, \"name\": \"x\"}" ENDCALL,
     "C(a<tool_call>{\"arguments\": {a}, \"name\": \"x\"}</tool_call>)"},
    {"json: broken by a tag", 0, CALL "{\"name\": " ENDCALL,
     "C(<tool_call>{\"name\": </tool_call>)"},
    {"json: broken after the name", 0,
     CALL "{\"name\": \"x\", \"arguments\": {\"a\": tru}}" ENDCALL "b",
     "F(x)A({\"a\": tru)~C(}}</tool_call>b)"},
    {"json: a list for arguments", 0, CALL "{\"name\": \"x\", \"arguments\": [1]}" ENDCALL,
     "F(x)~C([1]}</tool_call>)"},
    {"json: open at the end", 0, CALL "{\"name\": \"x\", \"arguments\": {\"a\": \"b",
     "F(x)A({\"a\": \"b)~"},
    {"json: cut off", CUT_OFF, CALL "{\"name\": \"x", "C(<tool_call>{\"name\": \"x)"},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static const struct {
    ReplyCase base;
    const char *stop[3];
} stop_cases[] = {
    {{"stop: in content", 0, "a END b", "C(a )"}, {"END"}},
    {{"stop: not in reasoning", IN_THINK, "a END" ENDTHINK "b", "R(a END)C(b)"}, {"END"}},
    {{"stop: not in calls", 0, CALL WEATHER("Paris") ENDCALL "x</y", PARIS "C(x)"},
     {"Paris", "</"}},
    {{"stop: not across a call", 0, "a E" NOW "ND b", "C(a E)F(now)A({}).C(ND b)"}, {"END"}},
    {{"stop: not across reasoning", 0, "\n" THINK "a" ENDTHINK "\n\nb", "R(a)C(b)"}, {"\n\n"}},
    {{"stop: white space before a call", 0, "a\n" NOW, "C(a)F(now)A({})."}, {"\n\n"}},
    {{"stop: in thoughts that are content", IN_THINK | KEEP_THINK, "a" ENDTHINK "b", "C(a)"},
     {"</think>b"}},
};
enum { N_STOP_CASES = sizeof stop_cases / sizeof *stop_cases };

static int open_tools(void **state)
{
    (void)state;
    tools = case_tools();
    return 0;
}

static int close_tools(void **state)
{
    (void)state;
    reply_tools_close(tools);
    return 0;
}

/* All rows, each cut where cut says; how names that in a failure. */
static void check_row(int i, const uint8_t *cut, const char *how)
{
    const ReplyCase *c = i < N_CASES ? &cases[i] : &stop_cases[i - N_CASES].base;
    ReplyOptions o = case_options(c, tools);
    if (i >= N_CASES) o.stop = stop_cases[i - N_CASES].stop;
    while (o.stop && o.n_stop < 3 && o.stop[o.n_stop])
        o.n_stop++;
    StrBuf got = {0};
    reply_close(run_output(&o, c->output, strlen(c->output), cut, !(c->flags & CUT_OFF), &got));
    if (strcmp(strbuf_str(&got), c->want) != 0)
        fail_msg("%s, %s:\n got %s\nwant %s", c->name, how, strbuf_str(&got), c->want);
    strbuf_free(&got);
}

static size_t row_len(int i)
{
    return strlen(i < N_CASES ? cases[i].output : stop_cases[i - N_CASES].base.output);
}

enum { N_ROWS = N_CASES + N_STOP_CASES, MAX_OUTPUT = 4096 };

static void rows_as_one_token(void **state)
{
    static const uint8_t whole[MAX_OUTPUT];
    (void)state;
    for (int i = 0; i < N_ROWS; i++)
        check_row(i, whole, "whole");
}

static void rows_byte_by_byte(void **state)
{
    uint8_t each[MAX_OUTPUT];
    (void)state;
    memset(each, 1, sizeof each);
    for (int i = 0; i < N_ROWS; i++)
        check_row(i, each, "byte by byte");
}

static void rows_split_in_two(void **state)
{
    uint8_t cut[MAX_OUTPUT] = {0};
    char how[40];
    (void)state;
    for (int i = 0; i < N_ROWS; i++) {
        for (size_t at = 1; at < row_len(i); at++) {
            snprintf(how, sizeof how, "split at %zu", at);
            cut[at] = 1;
            check_row(i, cut, how);
            cut[at] = 0;
        }
    }
}

static void rows_split_at_random(void **state)
{
    uint64_t seed = 20250111;
    uint8_t cut[MAX_OUTPUT];
    (void)state;
    for (int round = 0; round < 20; round++) {
        char how[60];
        uint64_t before = seed, every = 2 + random_next(&seed) % 12;
        snprintf(how, sizeof how, "seed %llu", (unsigned long long)before);
        for (int i = 0; i < N_ROWS; i++) {
            for (size_t k = 0; k < row_len(i); k++)
                cut[k] = random_next(&seed) % every == 0;
            check_row(i, cut, how);
        }
    }
}

static void feed(Reply *r, const char *text)
{
    for (; *text; text++)
        if (*text <= 4)
            reply_tag(r, (ScanTag)(*text - 1));
        else
            reply_bytes(r, text, 1);
}

static Reply *open_reply(int flags)
{
    ReplyCase c = {"", flags, "", ""};
    ReplyOptions o = case_options(&c, tools);
    return reply_open(&o);
}

/* What must be out after the beginning of an output, before anything is closed. */
static void expect_out(int flags, const char *output, ReplyKind kind, const char *want)
{
    Reply *r = open_reply(flags);
    StrBuf got = {0};
    feed(r, output);
    for (int i = 0; i < reply_n_pieces(r); i++) {
        ReplyPiece p = reply_piece(r, i);
        if (p.kind == kind) strbuf_add(&got, p.text, p.len);
    }
    if (strcmp(strbuf_str(&got), want) != 0) fail_msg("%s: %s", output, strbuf_str(&got));
    strbuf_free(&got);
    reply_close(r);
}

static void nothing_waits_without_need(void **state)
{
    (void)state;
    expect_out(IN_THINK, "I think", REPLY_REASONING, "I think");
    expect_out(0, "Hello <tool", REPLY_CONTENT, "Hello <tool");
    expect_out(0, "a\n<tool_call>", REPLY_CONTENT, "a");
    expect_out(0, "a b ", REPLY_CONTENT, "a b");
    expect_out(NO_TOOLS, "a b \n<tool_call>", REPLY_CONTENT, "a b \n<tool_call>");
    expect_out(KEEP_THINK | NO_TOOLS, " \n", REPLY_CONTENT, " \n");
    expect_out(0, CALL "\n<function=now>", REPLY_CALL_START, "now");
    expect_out(0, CALL "<function=write_file><parameter=content>\nline one\nline t",
               REPLY_ARGUMENTS, "{\"content\": \"line one\\nline t");
    expect_out(0, CALL "<function=write_file><parameter=mode>nul", REPLY_ARGUMENTS, "{\"mode\": ");
    expect_out(0, CALL "<function=write_file><parameter=path>a</parameter>", REPLY_ARGUMENTS,
               "{\"path\": \"a");
    expect_out(0, CALL "{\"name\": \"x\"", REPLY_CALL_START, "x");
    expect_out(0, CALL "{\"name\": \"x\", \"arguments\": {\"a\": \"b", REPLY_ARGUMENTS,
               "{\"a\": \"b");
}

/* Past the limit, text that may be markup is decided without its rest. */
static void holds_are_bounded(void **state)
{
    static const struct {
        const char *before, *fill, *after;
        int is_call; /* 1: as long as it is short; 2: always */
    } rows[] = {
        {CALL, " ", "<function=now>", 1},
        {CALL "<function=", "n", ">", 0},
        {"<tool_call>", "\n", "<function=now>", 1},
        {CALL "<function=write_file><parameter=path>a", " ", "b", 2},
        {CALL "<function=write_file><parameter=path>a</parameter>", "\n", "b", 2},
        {CALL "<function=write_file><parameter=path>a</function>", "\n", "b", 2},
        {CALL "<function=write_file><parameter=path>a\n<parameter=", "n", ">", 2},
        {CALL "<function=write_file><parameter=", "n", ">", 2},
        {CALL "<function=now></function>", " ", "b", 2},
    };
    static const uint8_t whole[2 * MAX_SCAN_HELD + 4096];
    uint8_t each[sizeof whole];
    (void)state;
    memset(each, 1, sizeof each);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int n = MAX_SCAN_HELD - 60; n < MAX_SCAN_HELD + 60; n++) {
            StrBuf text = {0}, by_byte = {0}, at_once = {0};
            ReplyCase c = {"", 0, "", ""};
            ReplyOptions o = case_options(&c, tools);
            strbuf_puts(&text, rows[i].before);
            for (int k = 0; k < n; k++)
                strbuf_puts(&text, rows[i].fill);
            strbuf_puts(&text, rows[i].after);
            Reply *r = run_output(&o, text.data, text.len, each, 1, &by_byte);
            int is_long = text.len > MAX_SCAN_HELD + 20, is_short = text.len < MAX_SCAN_HELD - 20;
            if (is_long || is_short) assert_int_equal(reply_n_calls(r), rows[i].is_call > is_long);
            reply_close(r);
            reply_close(run_output(&o, text.data, text.len, whole, 1, &at_once));
            assert_string_equal(strbuf_str(&by_byte), strbuf_str(&at_once));
            strbuf_free(&text);
            strbuf_free(&by_byte);
            strbuf_free(&at_once);
        }
    }
}

/* Names, too. */
static void names_are_bounded(void **state)
{
    static const uint8_t whole[MAX_CALL_NAME + 100];
    (void)state;
    for (size_t n = MAX_CALL_NAME; n <= MAX_CALL_NAME + 1; n++) {
        StrBuf text = {0}, got = {0};
        ReplyCase c = {"", 0, "", ""};
        ReplyOptions o = case_options(&c, tools);
        strbuf_puts(&text, CALL "<function=write_file><parameter=");
        while (text.len < n + strlen(CALL "<function=write_file><parameter="))
            strbuf_puts(&text, "n");
        strbuf_puts(&text, ">\n1\n</parameter></function>" ENDCALL);
        reply_close(run_output(&o, text.data, text.len, whole, 1, &got));
        assert_int_equal(!strcmp(got.data, "F(write_file)A({})."), n > MAX_CALL_NAME);
        strbuf_free(&text);
        strbuf_free(&got);
    }
}

/* So is a run of blanks; the newline behind it is the markup's all the same. */
static void a_run_of_blanks_ends(void **state)
{
    uint8_t cut[2 * MAX_SCAN_HELD] = {0};
    (void)state;
    for (int n = MAX_SCAN_HELD - 40; n < MAX_SCAN_HELD + 40; n++) {
        StrBuf text = {0}, want = {0}, got = {0};
        ReplyCase c = {"", 0, "", ""};
        ReplyOptions o = case_options(&c, tools);
        strbuf_puts(&text, CALL "<function=write_file><parameter=path>a");
        strbuf_puts(&want, "F(write_file)A({\"path\": \"a");
        for (int k = 0; k < n; k++) {
            strbuf_puts(&text, " ");
            strbuf_puts(&want, " ");
        }
        strbuf_puts(&text, "\n</parameter></function>" ENDCALL);
        strbuf_puts(&want, "\"}).");
        memset(cut, n % 2, sizeof cut);
        reply_close(run_output(&o, text.data, text.len, cut, 1, &got));
        assert_string_equal(strbuf_str(&got), strbuf_str(&want));
        strbuf_free(&text);
        strbuf_free(&want);
        strbuf_free(&got);
    }
}

/* Of a run of calls in reasoning so many are remembered, of so much text. */
static void calls_in_reasoning_are_bounded(void **state)
{
    (void)state;
    for (int n = MAX_DRAFT_CALLS; n <= MAX_DRAFT_CALLS + 1; n++) {
        Reply *r = open_reply(IN_THINK);
        for (int i = 0; i < n; i++)
            feed(r, NOW);
        reply_end(r, 1);
        assert_int_equal(reply_n_calls(r), n > MAX_DRAFT_CALLS ? 1 : n);
        reply_close(r);
    }
    Reply *r = open_reply(IN_THINK);
    for (int i = 0; i < MAX_DRAFT_BYTES; i += 16)
        feed(r, "0123456789abcde\n");
    feed(r, NOW);
    reply_end(r, 1);
    assert_int_equal(reply_n_calls(r), 0);
    reply_close(r);
}

/* Arguments before the name wait, up to a limit; past it the call is content. */
static void json_waits_for_its_name(void **state)
{
    static uint8_t cut[MAX_CALL_JSON + 8192];
    (void)state;
    for (int over = 0; over < 2; over++) {
        StrBuf text = {0}, got = {0};
        ReplyCase c = {"", 0, "", ""};
        ReplyOptions o = case_options(&c, tools);
        strbuf_puts(&text, "a" CALL "{\"arguments\": {\"a\": \"");
        size_t fill = over ? MAX_CALL_JSON : MAX_CALL_JSON - 200;
        while (text.len < fill)
            strbuf_puts(&text, "0123456789ABC\xC3\xA9");
        strbuf_puts(&text, "\"}, \"name\": \"x\"}" ENDCALL);
        Reply *r = run_output(&o, text.data, text.len, cut, 1, &got);
        assert_int_equal(reply_n_calls(r), !over);
        assert_int_equal(reply_n_fallbacks(r, REPLY_BAD_JSON), over);
        assert_true(got.len > text.len - 60);
        reply_close(r);
        strbuf_free(&text);
        strbuf_free(&got);
    }
}

static void counts_what_it_did(void **state)
{
    static const struct {
        int flags;
        const char *output;
        int n_calls, n_reasoning, fallbacks[N_REPLY_FALLBACKS];
    } rows[] = {
        {0, "a", 0, 0, {0, 0, 0, 0}},
        {IN_THINK, "abc", 0, 3, {0, 0, 0, 0}},
        {IN_THINK, "abc" ENDTHINK "\nd", 0, 4, {0, 0, 0, 0}},
        {IN_THINK | KEEP_THINK, "abc" ENDTHINK "\nd", 0, 4, {0, 0, 0, 0}},
        {0, THINK "a" ENDTHINK "b", 0, 3, {0, 0, 0, 0}},
        {0, CALL "x" CALL, 0, 0, {2, 0, 0, 0}},
        {0, NOW CALL "{", 1, 0, {0, 1, 0, 0}},
        {0, CALL "{\"name\": \"x\", x", 1, 0, {0, 1, 0, 0}},
        {0,
         CALL "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>",
         1,
         0,
         {0, 0, 1, 0}},
        {IN_THINK, ENDTHINK, 0, 1, {0, 0, 0, 0}},
        {IN_THINK | NO_TOOLS, CALL ENDCALL, 0, 2, {0, 0, 0, 0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Reply *r = open_reply(rows[i].flags);
        feed(r, rows[i].output);
        assert_int_equal(reply_ended(r), 0);
        reply_end(r, 1);
        assert_int_equal(reply_ended(r), 1);
        assert_int_equal(reply_n_calls(r), rows[i].n_calls);
        assert_int_equal(reply_n_reasoning_tokens(r), rows[i].n_reasoning);
        for (int k = 0; k < N_REPLY_FALLBACKS; k++)
            if (reply_n_fallbacks(r, (ReplyFallback)k) != rows[i].fallbacks[k])
                fail_msg("row %zu, reason %d", i, k);
        reply_close(r);
    }
    Reply *r = open_reply(IN_THINK);
    feed(r, NOW);
    reply_end(r, 1);
    assert_int_equal(reply_n_fallbacks(r, REPLY_CALL_IN_THINK), 1);
    assert_int_equal(reply_n_calls(r), 1);
    reply_close(r);
    reply_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_as_one_token),
        cmocka_unit_test(rows_byte_by_byte),
        cmocka_unit_test(rows_split_in_two),
        cmocka_unit_test(rows_split_at_random),
        cmocka_unit_test(nothing_waits_without_need),
        cmocka_unit_test(holds_are_bounded),
        cmocka_unit_test(calls_in_reasoning_are_bounded),
        cmocka_unit_test(names_are_bounded),
        cmocka_unit_test(a_run_of_blanks_ends),
        cmocka_unit_test(json_waits_for_its_name),
        cmocka_unit_test(counts_what_it_did),
    };
    return cmocka_run_group_tests(tests, open_tools, close_tools);
}
