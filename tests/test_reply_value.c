/* test_reply_value.c: types of parameters, and values as the JSON that these ask for. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>

#include "tests/textdata.h"
#include "text/json_scan.h"
#include "text/pyliteral.h"
#include "text/reply_tools.h"
#include "text/reply_value.h"

enum {
    S = TYPE_STRING,
    I = TYPE_INTEGER,
    N = TYPE_NUMBER,
    B = TYPE_BOOLEAN,
    Z = TYPE_NULL,
    O = TYPE_OBJECT,
    A = TYPE_ARRAY,
};

/* ---- types of a schema ---- */

static const struct {
    const char *schema;
    unsigned types;
} schemas[] = {
    {"{\"type\": \"string\"}", S},
    {"{\"type\": [\"integer\", \"null\", \"colour\", 3]}", I | Z},
    {"{\"type\": \"number\"}", N},
    {"{\"type\": \"boolean\"}", B},
    {"{\"type\": \"object\", \"properties\": {}}", O},
    {"{\"type\": \"array\", \"items\": {\"type\": \"string\"}}", A},
    {"{\"type\": \"colour\"}", 0},
    {"{\"type\": 7}", 0},
    {"{}", 0},
    {"true", 0},
    {"null", 0},
    {"{\"enum\": [\"a\", 1, 1.5, null, true, [], {}]}", I | N | Z | B | A | O},
    {"{\"const\": 3}", I},
    {"{\"const\": null}", Z},
    {"{\"enum\": \"a\"}", 0},
    {"{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}", I | Z},
    {"{\"oneOf\": [{\"type\": \"array\"}, {\"$ref\": \"#/$defs/colour\"}]}", A},
    {"{\"enum\": [\"a\"]}", S},
    {"{\"enum\": [\"a\", null]}", Z},
    {"{\"type\": [\"string\", \"null\"], \"enum\": [\"a\", null]}", Z},
    {"{\"type\": \"string\", \"const\": \"a\"}", S},
    {"{\"anyOf\": [{\"const\": \"auto\"}, {\"type\": \"integer\"}]}", I},
    {"{\"anyOf\": [{\"const\": \"auto\"}, {\"type\": [\"integer\", \"string\"]}]}", I | S},
    {"{\"allOf\": [{\"type\": [\"string\", \"null\"]}, {\"enum\": [\"a\", null]}]}", Z},
    {"{\"allOf\": [{\"type\": \"string\"}, {\"enum\": [\"a\"]}]}", S},
    {"{\"type\": \"integer\", \"nullable\": true}", I | Z},
    {"{\"nullable\": true}", 0},
    {"{\"$ref\": \"#/$defs/count\", \"nullable\": true}", I | Z},
    {"{\"properties\": {}}", O},
    {"{\"items\": {}}", A},
    {"{\"minimum\": 1}", N},
    {"{\"format\": \"date\"}", S},
    {"{\"anyOf\": [{}, {\"type\": \"null\"}]}", S | Z},
    {"{\"allOf\": [{\"$ref\": \"#/$defs/count\"}, {\"description\": \"d\"}]}", I},
    {"{\"allOf\": [{\"type\": [\"integer\", \"null\"]}, {\"type\": [\"number\", \"string\"]}]}", I},
    {"{\"allOf\": []}", 0},
    {"{\"$ref\": \"#/$defs/count\", \"description\": \"d\"}", I},
    {"{\"$ref\": \"#/$defs/a~1b~0c\"}", B},
    {"{\"$ref\": \"#/%24defs/Box%3Cint%3e%7E1a~1b\"}", B},
    {"{\"$ref\": \"#/$defs/Box<int>~1a%2Fb\"}", 0},
    {"{\"$ref\": \"#/$defs/Box%3Cint%3e%00\"}", 0},
    {"{\"$ref\": \"#/$defs/list/1\"}", A},
    {"{\"$ref\": \"#/$defs/list/7\"}", 0},
    {"{\"$ref\": \"#/$defs/none\"}", 0},
    {"{\"$ref\": \"http://x/y\"}", 0},
    {"{\"$ref\": \"#no\"}", 0},
    {"{\"$ref\": \"\"}", 0},
    {"{\"$ref\": \"#/$defs/loop\"}", 0},
    {"{\"$ref\": \"#/$defs/ring\"}", 0},
    {"{\"anyOf\": [{\"$ref\": \"#/$defs/tree\"}, {\"type\": \"null\"}]}", S | Z | O},
};

static const char DEFS[] =
    "{\"colour\": {\"enum\": [\"red\"]}, \"count\": {\"type\": \"integer\"}, \"a/b~c\": {\"type\": "
    "\"boolean\"}, \"Box<int>/a/b\": {\"type\": \"boolean\"}, \"Box<int>\": {\"type\": "
    "\"null\"}, \"list\": [{}, {\"type\": \"array\"}], \"loop\": {\"$ref\": \"#/$defs/loop\"}, "
    "\"ring\": {\"$ref\": \"#/$defs/ring2\"}, \"ring2\": {\"$ref\": \"#/$defs/ring\"}, \"tree\": "
    "{\"anyOf\": [{\"type\": \"object\"}, {\"$ref\": \"#/$defs/tree\"}]}}";

static ReplyTools *tools_of(const char *text)
{
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!json) fail_msg("no JSON: %s", text);
    ReplyTools *tools = reply_tools_open(json);
    json_decref(json); /* the table keeps nothing of it */
    return tools;
}

static void finds_types_of_schemas(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        StrBuf text = {0};
        strbuf_printf(&text,
                      "[{\"function\": {\"name\": \"f\", \"parameters\": {\"$defs\": %s, "
                      "\"properties\": {\"b\": {\"type\": \"null\"}, \"a\": %s}}}}]",
                      DEFS, schemas[i].schema);
        ReplyTools *t = tools_of(text.data);
        int tool = reply_tools_find(t, "f", 1), param = reply_tools_param(t, tool, "a", 1);
        unsigned types = reply_tools_types(t, tool, param);
        if (types != schemas[i].types) fail_msg("%s: %#x", schemas[i].schema, types);
        assert_int_equal(reply_tools_types(t, tool, reply_tools_param(t, tool, "b", 1)), Z);
        reply_tools_close(t);
        strbuf_free(&text);
    }
}

static void finds_names(void **state)
{
    (void)state;
    ReplyTools *t =
        tools_of("[{\"function\": {\"name\": \"bb\", \"parameters\": {\"$ref\": \"#/x\", \"x\": "
                 "{\"properties\": {\"p\": {\"type\": \"integer\"}, \"pp\": {}, \"\": {}}}}}}, "
                 "{\"function\": "
                 "{\"name\": \"b\"}}, {\"function\": {\"name\": \"a\", \"parameters\": "
                 "{\"properties\": 3}}}, "
                 "{\"function\": {\"name\": 4}}, {\"function\": 5}, 6, {\"type\": \"x\"}]");
    int bb = reply_tools_find(t, "bb", 2);
    assert_true(bb >= 0);
    assert_true(reply_tools_find(t, "b", 1) >= 0);
    assert_true(reply_tools_find(t, "a", 1) >= 0);
    assert_int_equal(reply_tools_find(t, "c", 1), -1);
    assert_int_equal(reply_tools_find(t, "", 0), -1);
    assert_int_equal(reply_tools_max_params(t), 3);
    assert_int_equal(reply_tools_types(t, bb, reply_tools_param(t, bb, "p", 1)), I);
    assert_true(reply_tools_param(t, bb, "pp", 2) >= 0);
    assert_int_equal(reply_tools_param(t, bb, "ppp", 3), -1);
    assert_int_equal(reply_tools_param(t, reply_tools_find(t, "b", 1), "p", 1), -1);
    assert_int_equal(reply_tools_param(t, -1, "p", 1), -1);
    assert_int_equal(reply_tools_types(t, bb, -1), 0);
    reply_tools_close(t);

    t = tools_of("{\"a\": 1}");
    assert_int_equal(reply_tools_find(t, "a", 1), -1);
    assert_int_equal(reply_tools_max_params(t), 0);
    reply_tools_close(t);
    reply_tools_close(NULL);
}

/* Schemas that would take for ever: each level looks twice at the next, and a reference is long. */
static void survives_hostile_schemas(void **state)
{
    StrBuf text = {0};
    (void)state;
    strbuf_puts(&text, "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {");
    for (int i = 0; i < 60; i++) {
        strbuf_printf(&text, "\"p%d\": {\"anyOf\": [", i);
        for (int k = 0; k < 40; k++)
            strbuf_printf(&text, "{\"$ref\": \"#/properties/p%d\"},", (i + k) % 60);
        strbuf_puts(&text, "{\"type\": \"null\"}]},");
    }
    strbuf_puts(&text, "\"long\": {\"$ref\": \"#");
    for (int i = 0; i < 200000; i++)
        strbuf_puts(&text, "/a");
    strbuf_puts(&text, "\"}}}}}]");
    ReplyTools *t = tools_of(text.data);
    int tool = reply_tools_find(t, "f", 1);
    assert_int_equal(reply_tools_types(t, tool, reply_tools_param(t, tool, "long", 4)), 0);
    assert_int_equal(reply_tools_max_params(t), 61);
    reply_tools_close(t);
    strbuf_free(&text);
}

/* ---- values ---- */

static const struct {
    unsigned types;
    const char *text, *json;
} values[] = {
    /* A string takes anything. */
    {0, "null", "\"null\""},
    {S, "null", "\"null\""},
    {S, "", "\"\""},
    {S, " a\"\\\n\t\x01\x7F/", "\" a\\\"\\\\\\n\\t\\u0001\x7F/\""},
    {S, "\xC3\xA9\xF0\x9F\x98\x80&lt;", "\"\xC3\xA9\xF0\x9F\x98\x80&lt;\""},
    {S | I | N | B, "3", "\"3\""},
    {S | Z, "null", "null"},
    {S | Z, "nul", "\"nul\""},
    {S | Z, "nullx", "\"nullx\""},
    {S | Z, " null", "\" null\""},
    {S | Z, "None", "\"None\""},
    {S | Z, "", "\"\""},
    {S | O, "{\"a\":[1,2]}", "{\"a\": [1, 2]}"},
    {S | O, "{a}", "\"{a}\""},
    {S | O, "{'a': 1}", "\"{'a': 1}\""},
    {S | O, "[1]", "\"[1]\""},
    {S | O, " {}", "\" {}\""},
    {S | A | Z, "[]", "[]"},
    {S | A | Z, "[", "\"[\""},
    {S | A | Z, "null", "null"},
    {S | A | O, "{}", "{}"},
    /* integer */
    {I, "2", "2"},
    {I, " -12\n", "-12"},
    {I, "2.0", "2"},
    {I, "-2.000", "-2"},
    {I, "123456789012345678901234567890", "123456789012345678901234567890"},
    {I, "2.5", "\"2.5\""},
    {I, "2e3", "\"2e3\""},
    {I, "007", "\"007\""},
    {I, "2.", "\"2.\""},
    {I, "+2", "\"+2\""},
    {I, "-", "\"-\""},
    {I, "2026-01-15", "\"2026-01-15\""},
    {I, "", "\"\""},
    /* number */
    {N, "-1.50e+10", "-1.50e+10"},
    {N, "3", "3"},
    {N | I, "2.0", "2.0"},
    {N, "NaN", "\"NaN\""},
    {N, ".5", "\".5\""},
    {N, "1,5", "\"1,5\""},
    /* boolean, null */
    {B, "true", "true"},
    {B, "False", "false"},
    {B, "TRUE", "true"},
    {B, "yes", "\"yes\""},
    {B, "1", "\"1\""},
    {Z, "null", "null"},
    {Z, "None", "null"},
    {Z, "NONE", "\"NONE\""},
    {I | Z, "None", "null"},
    {I | B, "true", "true"},
    {B, "nope", "\"nope\""},
    {B, "trues", "\"trues\""},
    {B, "wrong", "\"wrong\""},
    {B, "falsely", "\"falsely\""},
    {I, "true", "\"true\""},
    /* object, array */
    {O, "{}", "{}"},
    {O, " {\"b\":1,\"a\":{\"c\":[true,null]}} ", "{\"b\": 1, \"a\": {\"c\": [true, null]}}"},
    {O, "{'a': True, 'b': (1, None), \"c\": [1.50,]}",
     "{\"a\": true, \"b\": [1, null], \"c\": [1.50]}"},
    {O, "{1: 'x', None: '\\'\\x41\\u00e9\\d'}", "{\"1\": \"x\", \"null\": \"'A\xC3\xA9\\\\d\"}"},
    {O, "{'\\033[1m': '\\0\\12\\377\\0615\\08\\400\\8'}",
     "{\"\\u001b[1m\": \"\\u0000\\n\xC3\xBF"
     "15\\u00008\xC4\x80\\\\8\"}"},
    {O, "{'a\\/b': \"c\\/d\"}", "{\"a\\\\/b\": \"c/d\"}"},
    {O, "{1None: 2}", "\"{1None: 2}\""},
    {O, "{\"n\": 123456789012345678901234567890}", "{\"n\": 123456789012345678901234567890}"},
    {O, "{\"s\": \"\\ud83d\\ude00 \\ud83d \\u00e9\\/\"}",
     "{\"s\": \"\xF0\x9F\x98\x80 \xEF\xBF\xBD \xC3\xA9/\"}"},
    {O, "{\"s\": \"a\nb\"}", "{\"s\": \"a\\nb\"}"},
    {O, "{'a': 'b\\\nc'}", "{\"a\": \"bc\"}"},
    {O, "{'a': '\\U00110000'}", "\"{'a': '\\\\U00110000'}\""},
    {O | S, "{\"a\": \"b\tc\"}", "\"{\\\"a\\\": \\\"b\\tc\\\"}\""},
    {O, "{\"a\": 1", "\"{\\\"a\\\": 1\""},
    {O, "{'a'}", "\"{'a'}\""},
    {O, "{\"a\": 1} x", "\"{\\\"a\\\": 1} x\""},
    {O, "[1]", "\"[1]\""},
    {O, "{\"a\": 1x}", "\"{\\\"a\\\": 1x}\""},
    {O, "{\"a\": 1 2}", "\"{\\\"a\\\": 1 2}\""},
    {A, "[1,[],{}]", "[1, [], {}]"},
    {A, "('a',)", "[\"a\"]"},
    {A, "()", "[]"},
    {A, "(1)", "\"(1)\""},
    {A, "{}", "\"{}\""},
    {A, "a, b", "\"a, b\""},
    {A | O | I, "7", "7"},
};

static void reads_values_as_asked(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        StrBuf out = {0};
        reply_value_json(values[i].text, strlen(values[i].text), values[i].types, &out);
        if (strcmp(strbuf_str(&out), values[i].json) != 0)
            fail_msg("%#x of '%s' gives %s", values[i].types, values[i].text, out.data);
        strbuf_free(&out);
    }
}

static void streams_the_same_values(void **state)
{
    ReplyValue v = {0};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        size_t len = strlen(values[i].text);
        for (size_t step = 1; step < 5; step++) {
            StrBuf out = {0};
            reply_value_begin(&v, values[i].types);
            for (size_t at = 0; at < len; at += step)
                reply_value_text(&v, values[i].text + at, len - at < step ? len - at : step, &out);
            reply_value_end(&v, &out);
            assert_string_equal(out.data, values[i].json);
            strbuf_free(&out);
        }
    }
    reply_value_free(&v);
}

/* A string is out while it arrives; what waits too long goes out as one. */
static void does_not_wait_without_need(void **state)
{
    ReplyValue v = {0};
    StrBuf out = {0}, big = {0};
    (void)state;
    reply_value_begin(&v, S);
    reply_value_text(&v, "ab", 2, &out);
    assert_string_equal(out.data, "\"ab");
    strbuf_clear(&out);
    reply_value_begin(&v, S | Z | O);
    reply_value_text(&v, "nul", 3, &out);
    assert_string_equal(strbuf_str(&out), "");
    reply_value_text(&v, "e", 1, &out);
    assert_string_equal(out.data, "\"nule");
    strbuf_clear(&out);

    strbuf_puts(&big, "[\"");
    while (big.len < MAX_WAITING_VALUE)
        strbuf_puts(&big, "xxxxxxxxxxxxxxxx");
    reply_value_begin(&v, A);
    reply_value_text(&v, big.data, big.len, &out);
    assert_int_equal(strncmp(out.data, "\"[\\\"xxx", 7), 0);
    reply_value_end(&v, &out);
    assert_int_equal(out.data[out.len - 1], '"');
    size_t streamed = out.len;
    reply_value_json(big.data, big.len, A, &out);
    assert_int_equal(out.len, 2 * streamed);
    strbuf_free(&out);
    strbuf_free(&big);
    reply_value_free(&v);
}

/* ---- JSON told byte by byte ---- */

static void scans_objects(void **state)
{
    static const char *const good[] = {
        "{}",
        " \n{\"a\":1}",
        "{\"a\" : [ ] , \"b\":[1,-0.5e+3,0,0.1,1E5,[{}]] }",
        "{\"\\u00eF\\\"\\\\\\/\\b\\f\\n\\r\\t\": [true,false , null]}",
        "{\"a\":\"\xC3\xA9\x7F\"}",
    };
    static const char *const bad[] = {
        "x",           "[",           "{,",         "{\"a\" 1",    "{\"a\":}",     "{\"a\":1,}",
        "{\"a\":01",   "{\"a\":1.}",  "{\"a\":-}",  "{\"a\":.",    "{\"a\":+",     "{\"a\":1e}",
        "{\"a\":1e+}", "{\"a\":[1,]", "{\"a\":[1}", "{\"a\":tru}", "{\"a\":nulll", "{\"\n",
        "{\"\\x",      "{\"\\u00g",   "{a",         "{\"a\":1]",   "{}}",          "{\"a\":'",
        "{\"a\":1 2",
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        JsonScan s;
        json_scan_init(&s);
        for (const char *p = good[i]; *p; p++)
            if ((json_scan_push(&s, *p) == JS_DONE) != !p[1] || s.state == JS_BAD)
                fail_msg("%s at %s", good[i], p);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        JsonScan s;
        json_scan_init(&s);
        for (const char *p = bad[i]; *p; p++)
            if ((json_scan_push(&s, *p) == JS_BAD) != !p[1]) fail_msg("%s at %s", bad[i], p);
        assert_int_equal(json_scan_push(&s, ' '), JS_BAD);
    }
}

static void bounds_depth(void **state)
{
    JsonScan s;
    (void)state;
    json_scan_init(&s);
    for (int i = 0; i < MAX_SCANNED_DEPTH; i++) {
        const char *open = i ? "[" : "{\"a\":";
        for (; *open; open++)
            assert_int_not_equal(json_scan_push(&s, *open), JS_BAD);
    }
    assert_int_equal(json_scan_push(&s, '['), JS_BAD);

    StrBuf text = {0}, out = {0};
    for (int i = 0; i < 100000; i++)
        strbuf_puts(&text, "[");
    assert_int_equal(pyliteral_to_json(text.data, text.len, 0, &out), -1);
    assert_int_equal(out.len, 0);
    /* As many within each other, and any number side by side. */
    for (int n = MAX_LITERAL_DEPTH; n <= MAX_LITERAL_DEPTH + 1; n++) {
        strbuf_clear(&text);
        for (int i = 0; i < 2 * n; i++)
            strbuf_puts(&text, i < n ? "[" : "]");
        int is_deep = pyliteral_to_json(text.data, text.len, 0, &out) != 0;
        assert_int_equal(is_deep, n > MAX_LITERAL_DEPTH);
    }
    strbuf_clear(&text);
    for (int i = 0; i <= MAX_LITERAL_DEPTH; i++)
        strbuf_puts(&text, i ? ", [1]" : "[[1]");
    strbuf_puts(&text, "]");
    assert_int_equal(pyliteral_to_json(text.data, text.len, 0, &out), 0);
    strbuf_free(&text);
    strbuf_free(&out);
}

/* Random text of a few bytes: the scan and jansson agree on what is an object. */
static void agrees_with_jansson(void **state)
{
    static const char *const parts[] = {"{",     "}",        "[", "]",  ":",  ",",
                                        "\"a\"", "\"b\\n\"", "1", "-0", ".5", "e2 ",
                                        "true",  "null",     " ", "\\", "\"", "0"};
    uint64_t seed = 77, n_objects = 0;
    (void)state;
    for (int round = 0; round < 60000; round++) {
        StrBuf text = {0}, out = {0};
        JsonScan s;
        uint64_t before = seed;
        strbuf_puts(&text, "{\"a\":");
        for (uint64_t n = random_next(&seed) % 7; n; n--)
            strbuf_puts(&text, parts[random_next(&seed) % (sizeof parts / sizeof *parts)]);
        strbuf_puts(&text, "}");
        json_scan_init(&s);
        for (size_t i = 0; i < text.len; i++)
            json_scan_push(&s, text.data[i]);
        json_t *read = json_loads(text.data, 0, NULL);
        int by_literal = !pyliteral_to_json(text.data, text.len, 1, &out);
        if ((s.state == JS_DONE) != (read != NULL) || by_literal != (read != NULL))
            fail_msg("seed %llu: %s", (unsigned long long)before, text.data);
        json_t *again = read ? json_loads(strbuf_str(&out), 0, NULL) : NULL;
        if (read && !json_equal(read, again)) fail_msg("%s became %s", text.data, out.data);
        n_objects += read != NULL;
        json_decref(read);
        json_decref(again);
        strbuf_free(&text);
        strbuf_free(&out);
    }
    assert_in_range(n_objects, 500, 50000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_types_of_schemas),
        cmocka_unit_test(finds_names),
        cmocka_unit_test(survives_hostile_schemas),
        cmocka_unit_test(reads_values_as_asked),
        cmocka_unit_test(streams_the_same_values),
        cmocka_unit_test(does_not_wait_without_need),
        cmocka_unit_test(scans_objects),
        cmocka_unit_test(bounds_depth),
        cmocka_unit_test(agrees_with_jansson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
