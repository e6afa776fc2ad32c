/*
 * test_forced_calls.c: tools that must be called, and strict ones, over real sockets, on the
 * demonstration model, which speaks the XML form: the arguments are as their schemas say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/analyzer.h"
#include "tests/instance.h"
#include "tests/served.h"
#include "tests/textdata.h"

#define CHAT "/v1/chat/completions"

#define BOOK                                                                                       \
    "{'type':'object','properties':{'place':{'enum':['Bella Roma','Bella','Taj']},'people':{"      \
    "'type':'integer','minimum':1,'maximum':20},'outside':{'type':'boolean'},'dishes':{'type':"    \
    "'array','items':{'enum':['soup','pasta']},'minItems':1,'maxItems':3}},'required':['place',"   \
    "'people','outside','dishes'],'additionalProperties':false}"
#define TOOL(name, strict, schema)                                                                 \
    "{'type':'function','function':{'name':'" name "','strict':" strict ",'parameters':" schema "}}"
#define NONE "{'type':'object','properties':{}}"

static char *question(const char *fields, const char *more)
{
    StrBuf body = {0};
    strbuf_printf(&body,
                  "{'messages':[{'role':'user','content':'Hello'}],'temperature':0,'max_tokens':"
                  "200,'enable_thinking':false,%s%s}",
                  fields, more);
    return with_quotes(body.data);
}

static json_t *ask_more(const char *fields, const char *more)
{
    char *body = question(fields, more);
    json_t *reply = served_post(served, CHAT, body, 200);
    free(body);
    return reply;
}

static const json_t *calls_of(const json_t *reply)
{
    return served_at(reply, "choices.0.message.tool_calls");
}

/* Names and arguments alone: ids differ each time. */
static char *said(const json_t *calls)
{
    StrBuf text = {0};
    strbuf_puts(&text, "");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = served_at(json_array_get(calls, i), "function");
        strbuf_printf(&text, "%s%s;", served_text_at(f, "name"), served_text_at(f, "arguments"));
    }
    return text.data;
}

/* The same, of the pieces of a stream. */
static char *streamed(const json_t *events)
{
    StrBuf text = {0};
    strbuf_puts(&text, "");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *calls = served_at(json_array_get(events, i), "choices.0.delta.tool_calls"),
                     *call;
        for (size_t k = 0; k < json_array_size(calls); k++) {
            call = served_at(json_array_get(calls, k), "function");
            const char *name = json_string_value(json_object_get(call, "name"));
            const char *piece = json_string_value(json_object_get(call, "arguments"));
            if (name && text.len) strbuf_puts(&text, ";");
            if (name) strbuf_puts(&text, name);
            if (piece) strbuf_puts(&text, piece);
        }
    }
    if (text.len) strbuf_puts(&text, ";");
    return text.data;
}

/* The reply: without drafts, and in pieces, the same calls. */
static json_t *ask(const char *fields)
{
    json_t *whole = ask_more(fields, ""), *plain = ask_more(fields, ",'speculative.n_max':0");
    char *text = said(calls_of(whole)), *same = said(calls_of(plain));
    assert_string_equal(same, text);
    char *body = question(fields, ",'stream':true");
    json_t *events = served_events(served, CHAT, body);
    char *pieces = streamed(events);
    assert_string_equal(pieces, text);
    free(text);
    free(same);
    free(pieces);
    free(body);
    json_decref(plain);
    json_decref(events);
    return whole;
}

static void expect_call(const json_t *call, const char *name, const char *schema)
{
    const char *text = served_text_at(call, "function.arguments");
    json_error_t e;
    json_t *of = schema_json(schema), *value = json_loads(text, 0, &e);
    const char *wrong = value ? instance_error(of, of, value) : e.text;
    if (wrong) fail_msg("%s: %s", text, wrong);
    assert_string_equal(served_text_at(call, "function.name"), name);
    json_decref(value);
    json_decref(of);
}

static void expect_one_call(const json_t *reply, const char *name, const char *schema,
                            const char *reason)
{
    assert_int_equal(json_array_size(calls_of(reply)), 1);
    expect_call(json_array_get(calls_of(reply), 0), name, schema);
    assert_string_equal(served_text_at(reply, "choices.0.finish_reason"), reason);
    assert_true(json_is_null(served_at(reply, "choices.0.message.content")));
}

static void test_required(void **state)
{
    (void)state;
    json_t *reply = ask("'tools':[" TOOL("Book", "false", BOOK) "],'tool_choice':'required',"
                                                                "'parallel_tool_calls':false");
    expect_one_call(reply, "Book", BOOK, "tool_calls");
    json_decref(reply);
}

/* One by name, among names that begin alike. */
static void test_named(void **state)
{
    (void)state;
#define THREE                                                                                      \
    "'tools':[" TOOL("Boo", "false", NONE) "," TOOL("Book", "false",                               \
                                                    BOOK) "," TOOL("Booking", "false", NONE) "],"
    json_t *reply = ask(THREE "'tool_choice':{'type':'function','function':{'name':'Book'}}");
    expect_one_call(reply, "Book", BOOK, "stop");
    json_decref(reply);
    reply = ask(THREE "'tool_choice':{'type':'function','function':{'name':'Booking'}}");
    expect_one_call(reply, "Booking", NONE, "stop");
    json_decref(reply);
    reply = ask(THREE "'parallel_tool_calls':false,'tool_choice':{'type':'allowed_tools',"
                      "'allowed_tools':{'mode':'required','tools':[{'type':'function','function':{"
                      "'name':'Boo'}}]}}");
    expect_one_call(reply, "Boo", NONE, "tool_calls");
    json_decref(reply);
}

static size_t count_calls(const char *tool, const char *choice)
{
    char fields[512];
    snprintf(fields, sizeof fields, "'min_tokens':60,'tools':[%s],'tool_choice':%s", tool, choice);
    json_t *reply = ask(fields);
    size_t n = json_array_size(calls_of(reply));
    json_decref(reply);
    return n;
}

/*
 * A function that is named is called once, one that is required as often as min_tokens wants,
 * whichever of the two was asked for first.
 */
static void test_named_and_required(void **state)
{
    (void)state;
    static const char *const first = TOOL("First", "true", NONE);
    static const char *const second = TOOL("Second", "true", NONE);
    assert_int_equal(count_calls(first, "{'type':'function','function':{'name':'First'}}"), 1);
    assert_true(count_calls(first, "'required'") > 1);
    assert_true(count_calls(second, "'required'") > 1);
    assert_int_equal(count_calls(second, "{'type':'function','function':{'name':'Second'}}"), 1);
}

/* By chance: any number of calls, each as its tool's schema says. */
static void test_chance(void **state)
{
    (void)state;
    for (int seed = 0; seed < 6; seed++) {
        char more[80];
        snprintf(more, sizeof more, ",'temperature':2,'top_k':0,'top_p':1,'seed':%d", seed);
        json_t *reply = ask_more(THREE "'tool_choice':'required'", more), *call;
        size_t i, n = json_array_size(calls_of(reply));
        int is_cut = !strcmp(served_text_at(reply, "choices.0.finish_reason"), "length");
        assert_true(n > 0);
        json_array_foreach((json_t *)calls_of(reply), i, call)
        {
            const char *name = served_text_at(call, "function.name");
            if (is_cut && i + 1 == n) break;
            expect_call(call, name, !strcmp(name, "Book") ? BOOK : NONE);
        }
        json_decref(reply);
    }
}

/* A strict tool binds calls to it and leaves the rest of the answer free. */
static void test_strict(void **state)
{
    (void)state;
#define ITALIAN                                                                                    \
    "'messages':[{'role':'user','content':'I want to find an Italian restaurant in San Jose'}],"
#define CITY                                                                                       \
    "{'type':'object','properties':{'city':{'enum':['Oakland','San Rafael']},'stars':{'type':"     \
    "'integer','minimum':1,'maximum':5}},'required':['city','stars'],'additionalProperties':"      \
    "false}"
    json_t *reply = ask(ITALIAN "'tools':[" TOOL("FindRestaurants", "true", CITY) "]");
    expect_one_call(reply, "FindRestaurants", CITY, "tool_calls");
    json_decref(reply);
    reply = ask("'tools':[" TOOL("FindRestaurants", "true", CITY) "]");
    json_t *free_one = ask("'tools':[" TOOL("FindRestaurants", "false", CITY) "]");
    if (!calls_of(free_one))
        assert_string_equal(served_text_at(reply, "choices.0.message.content"),
                            served_text_at(free_one, "choices.0.message.content"));
    json_decref(reply);
    json_decref(free_one);
}

/* Of the tools that the model is told of only some may be called, and none must. */
static void test_allowed(void **state)
{
    (void)state;
#define TWO                                                                                        \
    ITALIAN "'tools':[" TOOL("FindRestaurants", "false", CITY) "," TOOL("Find", "false", NONE) "]" \
                                                                                               ","
#define ALLOWED(name)                                                                              \
    "'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'auto','tools':[{'type':"       \
    "'function','function':{'name':'" name "'}}]}}"
    json_t *any = ask(TWO "'parallel_tool_calls':false"), *call;
    json_t *same = ask(TWO "'parallel_tool_calls':false," ALLOWED("FindRestaurants"));
    char *text = said(calls_of(any)), *again = said(calls_of(same));
    assert_non_null(strstr(text, "FindRestaurants{"));
    assert_string_equal(again, text);
    free(text);
    free(again);
    json_decref(any);
    json_decref(same);
    json_t *other = ask(TWO ALLOWED("Find"));
    size_t i;
    json_array_foreach((json_t *)calls_of(other), i, call)
    {
        assert_string_equal(served_text_at(call, "function.name"), "Find");
    }
    json_decref(other);
    assert_null(calls_of(other = ask(TWO ALLOWED("Other"))));
    json_decref(other);
}

/* A form and tools: the answer is of that form, or a call. */
static void test_form_or_call(void **state)
{
    (void)state;
#define FORM                                                                                       \
    "'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':true,'schema':"    \
    "{'type':'object','properties':{'ok':{'type':'boolean'}},'required':['ok'],"                   \
    "'additionalProperties':false}}},"
    int n_calls = 0, n_texts = 0;
    for (int seed = 0; seed < 6; seed++) {
        char more[100];
        snprintf(more, sizeof more, ",'temperature':9,'top_k':0,'top_p':1,'seed':%d", seed);
        json_t *reply = ask_more(
            FORM "'parallel_tool_calls':false,'tools':[" TOOL("Book", "true", BOOK) "]", more);
        const json_t *calls = calls_of(reply);
        if (json_array_size(calls)) {
            expect_one_call(reply, "Book", BOOK, "tool_calls");
            n_calls++;
        } else {
            const char *text = served_text_at(reply, "choices.0.message.content");
            json_t *value = json_loads(text, 0, NULL);
            assert_true(json_is_boolean(json_object_get(value, "ok")));
            assert_int_equal(json_object_size(value), 1);
            json_decref(value);
            n_texts++;
        }
        json_decref(reply);
    }
    json_t *reply = ask(FORM "'tool_choice':'none','tools':[" TOOL("Book", "true", BOOK) "]");
    assert_null(calls_of(reply));
    json_decref(reply);
    assert_int_equal(n_calls + n_texts, 6);
    assert_true(n_texts > 0);
}

static void test_with_thinking(void **state)
{
    (void)state;
    json_t *reply = ask("'enable_thinking':true,'thinking_budget':8,'tools':[" TOOL(
        "Book", "false", BOOK) "],'tool_choice':{'type':'function','function':{'name':'Book'}}");
    expect_one_call(reply, "Book", BOOK, "stop");
    assert_true(served_text_at(reply, "choices.0.message.reasoning_content")[0]);
    json_decref(reply);
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const fields = "'tools':[" TOOL(
        "Book", "true", "{'type':'object','properties':{'a':{'type':'integer','not':{}}}}") "]";
    char *body = question(fields, "");
    json_t *reply = served_post(served, CHAT, body, 400);
    assert_string_equal(served_text_at(reply, "error.code"), "invalid_schema");
    assert_string_equal(served_text_at(reply, "error.param"), "tools");
    assert_string_equal(
        served_text_at(reply, "error.message"),
        "the parameters of tool Book.properties.a: keyword \"not\" is not supported "
        "in strict mode");
    json_decref(reply);
    free(body);
    /* it is nobody's business where no call may come */
    reply = ask_more(fields, ",'tool_choice':'none'");
    json_decref(reply);
}

/* ---- the other APIs ---- */

static json_t *post(const char *path, const char *text)
{
    char *body = with_quotes(mem_strdup(text));
    json_t *reply = served_post(served, path, body, 200);
    mem_free(body);
    return reply;
}

static void expect_text(const char *schema, const char *text)
{
    json_t *of = schema_json(schema), *value = json_loads(text, 0, NULL);
    const char *wrong = value ? instance_error(of, of, value) : "JSON";
    if (wrong) fail_msg("%s: %s", text, wrong);
    json_decref(of);
    json_decref(value);
}

static void test_responses(void **state)
{
    (void)state;
    json_t *reply =
        post("/v1/responses",
             "{'input':'Hello','temperature':0,'reasoning':{'effort':'none'},'text':{"
             "'format':{'type':'json_schema','name':'n','strict':true,'schema':" BOOK "}}}");
    expect_text(BOOK, served_text_at(reply, "output.0.content.0.text"));
    json_decref(reply);
    reply = post("/v1/responses",
                 "{'input':'Hello','temperature':0,'reasoning':{'effort':'none'},'tool_choice':{"
                 "'type':'function','name':'Book'},'tools':[{'type':'function','name':'Book',"
                 "'parameters':" BOOK "}],'text':{'format':{'type':'json_object'}}}");
    assert_string_equal(served_text_at(reply, "output.0.type"), "function_call");
    expect_text(BOOK, served_text_at(reply, "output.0.arguments"));
    json_decref(reply);
}

static void test_messages(void **state)
{
    (void)state;
#define MESSAGES "{'messages':[{'role':'user','content':'Hello'}],'temperature':0,'max_tokens':200,"
    json_t *reply = post("/v1/messages", MESSAGES
                         "'output_config':{'format':{'type':'json_schema','schema':" BOOK "}}}");
    expect_text(BOOK, served_text_at(reply, "content.0.text"));
    json_decref(reply);
    static const char *const choices[] = {"{'type':'any','disable_parallel_tool_use':true}",
                                          "{'type':'tool','name':'Book'}"};
    for (int i = 0; i < 2; i++) {
        StrBuf body = {0};
        strbuf_printf(
            &body, MESSAGES "'tools':[{'name':'Book','input_schema':" BOOK "}],'tool_choice':%s}",
            choices[i]);
        reply = post("/v1/messages", body.data);
        assert_int_equal(json_array_size(json_object_get(reply, "content")), 1);
        assert_string_equal(served_text_at(reply, "stop_reason"), "tool_use");
        assert_string_equal(served_text_at(reply, "content.0.type"), "tool_use");
        char *input = json_dumps(served_at(reply, "content.0.input"), 0);
        expect_text(BOOK, input);
        free(input);
        strbuf_free(&body);
        json_decref(reply);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_named),
        cmocka_unit_test(test_named_and_required),
        cmocka_unit_test(test_chance),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_form_or_call),
        cmocka_unit_test(test_with_thinking),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, served_open, served_close);
}
