/*
 * test_structured.c: answers that keep to a form, over real sockets, on the demonstration model:
 * whole and in pieces, with drafts and without, they are the same and instances of what was asked
 * for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "server/structures.h"
#include "tests/analyzer.h"
#include "tests/grammar_case.h"
#include "tests/instance.h"
#include "tests/served.h"
#include "tests/textdata.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

#define FORMAT(schema)                                                                             \
    "'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':true,'schema'"     \
    ":" schema "}}"
#define TABLE                                                                                      \
    "{'type':'object','properties':{'city':{'enum':['San Jose','Oakland']},'people':{'type':"      \
    "'integer','minimum':1,'maximum':12},'name':{'type':'string','maxLength':12}},'required':["    \
    "'city','people','name'],'additionalProperties':false}"
#define LIST                                                                                       \
    "{'type':'object','properties':{'v':{'type':'integer','minimum':0,'maximum':9},'next':{"       \
    "'anyOf':[{'$ref':'#'},{'type':'null'}]}},'required':['v','next'],'additionalProperties':"     \
    "false}"

/* A greedy question without reasoning, with more fields, ' for ". */
static char *question(const char *fields, const char *more)
{
    StrBuf body = {0};
    strbuf_printf(&body,
                  "{'messages':[{'role':'user','content':'I want to find an Italian restaurant in "
                  "San Jose'}],'temperature':0,'max_tokens':160,'enable_thinking':false,%s%s}",
                  fields, more);
    return with_quotes(body.data);
}

static json_t *ask(const char *fields, int status)
{
    char *body = question(fields, "");
    json_t *reply = served_post(served, CHAT, body, status);
    free(body);
    return reply;
}

/* The pieces of one member of the deltas, joined. */
static char *joined(const json_t *events, const char *member)
{
    StrBuf text = {0};
    json_t *event;
    size_t i;
    strbuf_puts(&text, "");
    json_array_foreach((json_t *)events, i, event)
    {
        const json_t *piece = json_object_get(served_at(event, "choices.0.delta"), member);
        if (json_is_string(piece)) strbuf_puts(&text, json_string_value(piece));
    }
    return text.data;
}

static const char *why_ended(const json_t *events)
{
    const json_t *reason = NULL, *event;
    for (size_t i = 0; i < json_array_size(events); i++) {
        event = served_at(json_array_get(events, i), "choices.0.finish_reason");
        if (json_is_string(event)) reason = event;
    }
    return json_string_value(reason);
}

/* The reply; in pieces, and without drafts, the same is said. */
static json_t *ask_all(const char *fields)
{
    static const char *const ways[] = {",'speculative.n_max':0", ",'stream':true",
                                       ",'stream':true,'speculative.n_max':0"};
    json_t *whole = ask(fields, 200);
    const json_t *choice = served_at(whole, "choices.0");
    const char *text = json_string_value(served_at(choice, "message.content"));
    const char *reasoning = json_string_value(served_at(choice, "message.reasoning_content"));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char *body = question(fields, ways[i]);
        if (!i) {
            json_t *plain = served_post(served, CHAT, body, 200);
            assert_true(json_equal(json_object_get(served_at(plain, "choices.0"), "message"),
                                   json_object_get(choice, "message")));
            json_decref(plain);
        } else {
            json_t *events = served_events(served, CHAT, body);
            char *said = joined(events, "content"), *why = joined(events, "reasoning_content");
            assert_string_equal(said, text ? text : "");
            assert_string_equal(why, reasoning ? reasoning : "");
            assert_string_equal(why_ended(events), served_text_at(choice, "finish_reason"));
            free(said);
            free(why);
            json_decref(events);
        }
        free(body);
    }
    return whole;
}

static void expect_instance(const char *schema, const char *text)
{
    json_error_t e;
    json_t *of = schema_json(schema), *value = json_loads(text, JSON_DECODE_ANY, &e);
    const char *wrong = value ? instance_error(of, of, value) : e.text;
    if (wrong) fail_msg("%s: %s: %s", schema, text, wrong);
    json_decref(value);
    json_decref(of);
}

static const char *content_of(const json_t *reply)
{
    return served_text_at(reply, "choices.0.message.content");
}

static const char *reason_of(const json_t *reply)
{
    return served_text_at(reply, "choices.0.finish_reason");
}

/* ---- schemas ---- */

static const struct {
    const char *schema, *fields;
} schemas[] = {
    {TABLE, FORMAT(TABLE)},
    {TABLE, "'json_schema':" TABLE},
    {TABLE, "'structured_outputs':{'json':" TABLE "}"},
    {TABLE, "'response_format':{'type':'json_object','schema':" TABLE "}"},
    {"{'type':'array','items':{'type':'boolean'},'minItems':2,'maxItems':5}",
     FORMAT("{'type':'array','items':{'type':'boolean'},'minItems':2,'maxItems':5}")},
    {"{'enum':[1,null,'x',{'a':[2]}]}", FORMAT("{'enum':[1,null,'x',{'a':[2]}]}")},
    {"{'type':'string','pattern':'^[a-f]{3,5}-[0-9]+$','maxLength':9}",
     FORMAT("{'type':'string','pattern':'^[a-f]{3,5}-[0-9]+$','maxLength':9}")},
    {"{'type':'string','format':'date-time','maxLength':30}",
     FORMAT("{'type':'string','format':'date-time','maxLength':30}")},
};

static void test_schemas(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        json_t *reply = ask_all(schemas[i].fields);
        expect_instance(schemas[i].schema, content_of(reply));
        assert_string_equal(reason_of(reply), "stop");
        json_decref(reply);
    }
}

/* By chance, three at once: each its own, and the same again by the same seed. */
static void test_seeds(void **state)
{
    (void)state;
#define SEEDED FORMAT(TABLE) ",'temperature':1.5,'top_k':0,'top_p':1,'n':3,'seed':"
    json_t *reply = ask(SEEDED "1", 200), *again = ask(SEEDED "1", 200);
    json_t *plain = ask(SEEDED "1,'speculative.n_max':0", 200), *other = ask(SEEDED "2", 200);
    int n_same = 0;
    for (int i = 0; i < 3; i++) {
        char path[40];
        snprintf(path, sizeof path, "choices.%d.message.content", i);
        const char *text = served_text_at(reply, path);
        expect_instance(TABLE, text);
        expect_instance(TABLE, served_text_at(other, path));
        assert_string_equal(served_text_at(again, path), text);
        assert_string_equal(served_text_at(plain, path), text);
        n_same += !strcmp(text, served_text_at(other, path));
        n_same += !strcmp(text, served_text_at(reply, "choices.0.message.content")) && i;
    }
    assert_true(n_same < 2);
    json_decref(reply);
    json_decref(again);
    json_decref(plain);
    json_decref(other);
}

/* At a high temperature anything comes that may: the form holds. */
static void test_chance(void **state)
{
    (void)state;
    for (int seed = 0; seed < 5; seed++) {
        char more[600];
        snprintf(more, sizeof more, FORMAT(TABLE) ",'temperature':4,'top_p':1,'top_k':0,'seed':%d",
                 seed);
        json_t *reply = ask_all(more);
        expect_instance(TABLE, content_of(reply));
        json_decref(reply);
    }
}

/* A schema that refers to itself: the answer ends, or is the beginning of one that would. */
static void test_recursion(void **state)
{
    (void)state;
    json_t *reply = ask_all(FORMAT(LIST) ",'max_tokens':60");
    if (!strcmp(reason_of(reply), "stop"))
        expect_instance(LIST, content_of(reply));
    else
        assert_memory_equal(content_of(reply), "{\"v\":", 5);
    json_decref(reply);
    int n_whole = 0;
    for (int seed = 0; seed < 6; seed++) {
        char more[500];
        snprintf(more, sizeof more, FORMAT(LIST) ",'temperature':3,'top_p':1,'top_k':0,'seed':%d",
                 seed);
        reply = ask(more, 200);
        if (!strcmp(reason_of(reply), "stop")) expect_instance(LIST, content_of(reply));
        n_whole += !strcmp(reason_of(reply), "stop");
        json_decref(reply);
    }
    assert_true(n_whole > 1);
}

static void test_any_object(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "'response_format':{'type':'json_object'}",
        "'response_format':{'type':'json_schema','json_schema':{'name':'n'}}",
        "'structured_outputs':{'json_object':true}"};
    for (size_t i = 0; i < 3; i++) {
        char fields[200];
        snprintf(fields, sizeof fields, "%s,'max_tokens':60", ways[i]);
        json_t *reply = ask_all(fields);
        assert_true(content_of(reply)[0] == '{');
        if (!strcmp(reason_of(reply), "stop"))
            expect_instance("{'type':'object'}", content_of(reply));
        json_decref(reply);
    }
}

static void test_choice_and_pattern(void **state)
{
    (void)state;
    json_t *reply = ask_all("'structured_outputs':{'choice':['maybe','no','nobody','maybe']}");
    const char *text = content_of(reply);
    if (strcmp(text, "maybe") != 0 && strcmp(text, "no") != 0 && strcmp(text, "nobody") != 0)
        fail_msg("%s", text);
    json_decref(reply);
    reply = ask_all("'structured_outputs':{'choice':['']}"); /* nothing is a text, too */
    assert_string_equal(content_of(reply), "");
    assert_string_equal(reason_of(reply), "stop");
    json_decref(reply);
    reply = ask_all("'structured_outputs':{'choice':['','nobody']}");
    if (*content_of(reply)) assert_string_equal(content_of(reply), "nobody");
    json_decref(reply);
    reply = ask_all("'structured_outputs':{'regex':'(Yes|No), [A-Z][a-z]{2,9} [0-9]{3}\\\\.'}");
    StrBuf quoted = {0};
    strbuf_printf(&quoted, "\"%s\"", content_of(reply));
    expect_instance("{'type':'string','pattern':'^(Yes|No), [A-Z][a-z]{2,9} [0-9]{3}[.]$'}",
                    quoted.data);
    strbuf_free(&quoted);
    json_decref(reply);
}

/* ---- together with other fields ---- */

static void test_thinking(void **state)
{
    (void)state;
    json_t *reply = ask_all(FORMAT(TABLE) ",'enable_thinking':true,'thinking_budget':9");
    assert_true(strlen(served_text_at(reply, "choices.0.message.reasoning_content")) > 5);
    expect_instance(TABLE, content_of(reply));
    assert_string_equal(reason_of(reply), "stop");
    json_decref(reply);
    /* reasoning is free, but that the answer may not end in it */
    reply = ask(FORMAT(TABLE) ",'enable_thinking':true,'max_tokens':30", 200);
    json_t *free_one = ask("'enable_thinking':true,'max_tokens':30", 200);
    const char *thought = served_text_at(free_one, "choices.0.message.reasoning_content");
    assert_memory_equal(served_text_at(reply, "choices.0.message.reasoning_content"), thought,
                        strlen(thought));
    assert_string_equal(reason_of(reply), "length");
    json_decref(reply);
    json_decref(free_one);
}

static void test_lengths(void **state)
{
    (void)state;
    json_t *whole = ask(FORMAT(TABLE), 200);
    const char *text = content_of(whole);
    json_t *cut = ask_all(FORMAT(TABLE) ",'max_tokens':7");
    assert_string_equal(reason_of(cut), "length");
    assert_int_equal(served_int_at(cut, "usage.completion_tokens"), 7);
    assert_memory_equal(content_of(cut), text, strlen(content_of(cut)));
    json_decref(cut);
    /* where the grammar is at its end, an answer that must go on has nothing but the end */
    json_t *least = ask_all(FORMAT(TABLE) ",'min_tokens':120");
    assert_string_equal(content_of(least), text);
    assert_string_equal(reason_of(least), "stop");
    json_decref(least);
    json_t *ignores = ask_all(FORMAT(TABLE) ",'ignore_eos':true");
    assert_string_equal(content_of(ignores), text);
    json_decref(ignores);
    json_decref(whole);
}

static void test_stops(void **state)
{
    (void)state;
    json_t *whole = ask(FORMAT(TABLE), 200), *cut = ask_all(FORMAT(TABLE) ",'stop':['people']");
    const char *text = content_of(whole), *at = strstr(text, "people");
    assert_non_null(at);
    assert_int_equal(strlen(content_of(cut)), at - text);
    assert_memory_equal(content_of(cut), text, at - text);
    assert_string_equal(reason_of(cut), "stop");
    assert_string_equal(served_text_at(cut, "choices.0.stop_reason"), "people");
    json_decref(whole);
    json_decref(cut);
}

/* Masks change no log-probability: the first token's are those of an answer without a form. */
static void test_logprobs(void **state)
{
    (void)state;
    json_t *formed = ask_all(FORMAT(TABLE) ",'logprobs':true,'top_logprobs':5");
    json_t *free_one = ask("'logprobs':true,'top_logprobs':5", 200);
    const json_t *list = served_at(formed, "choices.0.logprobs.content");
    assert_true(
        json_equal((json_t *)served_at(list, "0.top_logprobs"),
                   (json_t *)served_at(free_one, "choices.0.logprobs.content.0.top_logprobs")));
    StrBuf text = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i);
        assert_true(json_number_value(json_object_get(token, "logprob")) <= 0);
        strbuf_puts(&text, served_text_at(token, "token"));
    }
    assert_memory_equal(text.data, content_of(formed), strlen(content_of(formed)));
    strbuf_free(&text);
    json_decref(formed);
    json_decref(free_one);
}

/* Two schemas whose texts have one XXH3 as structures.c writes them are two schemas. */
static void test_collision(void **state)
{
    static const char before[] =
        "..............................................................!@@@",
                      between[] = "BBB........................................................hcvs",
                      behind[] = "BBB.........................................................."
                                 "..................................";
    (void)state;
    for (int i = 0; i < 2; i++) {
        char value[256], wanted[260], fields[512];
        snprintf(value, sizeof value, "%s%c%s%c%s", before, "PQ"[i], between, "QP"[i], behind);
        snprintf(fields, sizeof fields, FORMAT("{'enum':['%s']}") ",'max_tokens':256", value);
        json_t *reply = ask(fields, 200);
        snprintf(wanted, sizeof wanted, "\"%s\"", value);
        assert_string_equal(content_of(reply), wanted);
        json_decref(reply);
    }
}

static void test_completions(void **state)
{
    (void)state;
    char *body = question(FORMAT(TABLE), ",'prompt':['A table: ','Another: '],'logprobs':2");
    json_t *reply = served_post(served, COMPLETIONS, body, 200);
    expect_instance(TABLE, served_text_at(reply, "choices.0.text"));
    expect_instance(TABLE, served_text_at(reply, "choices.1.text"));
    json_decref(reply);
    free(body);
}

/* ---- errors ---- */

static const struct {
    const char *fields, *code, *param, *message;
} wrong[] = {
    {FORMAT("{'type':'object','properties':{'a':{'not':{}}}}"), "invalid_schema", "response_format",
     "response_format.json_schema.schema.properties.a: keyword \"not\" is not supported in strict "
     "mode"},
    {FORMAT("{'type':'string','pattern':'a{2}*'}"), "invalid_schema", "response_format",
     "response_format.json_schema.schema.pattern: "},
    {"'json_schema':{'type':'text'}", "invalid_schema", "json_schema",
     "json_schema: type \"text\" is none of JSON's"},
    {"'structured_outputs':{'json':{'enum':[]}}", "invalid_schema", "structured_outputs",
     "structured_outputs.json: enum must be a list"},
    {"'structured_outputs':{'regex':'a(?=b)'}", "invalid_schema", "structured_outputs",
     "structured_outputs.regex: look-around is not supported, at 1"},
    {"'structured_outputs':{'regex':'yes)|(?:no'}", "invalid_schema", "structured_outputs",
     "structured_outputs.regex: unbalanced ')' at 3"},
    {"'structured_outputs':{'regex':'a)(b'}", "invalid_schema", "structured_outputs",
     "structured_outputs.regex: unbalanced ')' at 1"},
    {"'structured_outputs':{'regex':'a)|(b'}", "invalid_schema", "structured_outputs",
     "structured_outputs.regex: unbalanced ')' at 1"},
    {"'json_schema':{'$ref':'#'}", "invalid_schema", "json_schema",
     "it refers to itself without end"},
    {"'json_schema':{'type':'null'},'structured_outputs':{'regex':'a'}", NULL, "json_schema",
     "structured_outputs and json_schema cannot both say what the answer is"},
};

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *reply = ask(wrong[i].fields, 400);
        const json_t *code = served_at(reply, "error.code");
        if (wrong[i].code) assert_string_equal(json_string_value(code), wrong[i].code);
        if (!wrong[i].code) assert_true(json_is_null(code));
        assert_string_equal(served_text_at(reply, "error.param"), wrong[i].param);
        if (strncmp(served_text_at(reply, "error.message"), wrong[i].message,
                    strlen(wrong[i].message)) != 0)
            fail_msg("%s", served_text_at(reply, "error.message"));
        json_decref(reply);
    }
    json_t *reply = ask("'json_schema':{'type':'integer','not':{'const':3},'maximum':9}", 200);
    expect_instance("{'type':'integer'}", content_of(reply)); /* not strict: passed over */
    json_decref(reply);
}

/* Without an end token a form that is whole would leave nothing to choose. */
static void test_no_end_token(void **state)
{
    (void)state;
    ModelConfig config = *engine_config(served->service.engine);
    ApiRequest api = {.structure = {.kind = STRUCTURE_OBJECT, .param = "response_format"}};
    config.n_eos = 0;
    Structures *s = structures_open(&served->service, &config, 1);
    StructureAsk ask = structures_ask(&api, 0);
    ApiError err = {0};
    assert_null(structures_compile(s, &ask, &err));
    assert_int_equal(err.error.code, ERR_INPUT);
    assert_string_equal(err.param, "response_format");
    assert_non_null(strstr(err.error.msg, "no end token"));
    strbuf_free(&ask.text);
    structures_close(s);
}

/* A form whose masks take too long ends its request in words, before its time is anybody's. */
static void test_too_many_ways(void **state)
{
    enum { N_WAYS = 500 };
    StrBuf fields = {0};
    (void)state;
    strbuf_puts(&fields, "'json_schema':");
    add_strings_told_apart(&fields, N_WAYS, "'minLength':3");
    json_t *reply = ask(fields.data, 400);
    assert_string_equal(served_text_at(reply, "error.code"), "invalid_schema");
    if (!strstr(served_text_at(reply, "error.message"), "more ways open at a time"))
        fail_msg("%s", served_text_at(reply, "error.message"));
    json_decref(reply);
    strbuf_free(&fields);
    reply = ask("'json_schema':{'type':'integer','maximum':9}", 200);
    expect_instance("{'type':'integer'}", content_of(reply));
    json_decref(reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas),       cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_chance),        cmocka_unit_test(test_recursion),
        cmocka_unit_test(test_any_object),    cmocka_unit_test(test_choice_and_pattern),
        cmocka_unit_test(test_thinking),      cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_stops),         cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_completions),   cmocka_unit_test(test_errors),
        cmocka_unit_test(test_too_many_ways), cmocka_unit_test(test_collision),
        cmocka_unit_test(test_no_end_token),
    };
    return cmocka_run_group_tests(tests, served_open, served_close);
}
