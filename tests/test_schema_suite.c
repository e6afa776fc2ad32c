/*
 * test_schema_suite.c: grammars against the JSON Schema Test Suite (tests/data/json_schema_suite).
 *
 * With strict, what a schema refuses is never taken, but for what server/README.md says is passed
 * over. What it allows is taken, unless we would not write it so: where a schema names no type we
 * write what its keywords are for, and properties come in the schema's order. Where values stand as
 * texts, none is taken that is read as what a schema refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "tests/grammar_case.h"
#include "text/reply_tools.h"
#include "text/reply_value.h"

#define SUITE "tests/data/json_schema_suite"

/* In a file ("": in any), all tests whose case's or own name holds this. */
typedef struct {
    const char *file, *name;
} Some;

static const Some passed_over[] = {
    {"uniqueItems", ""},
    {"oneOf", ""},                        /* is anyOf */
    {"", "does not look in applicators"}, /* parts of allOf are merged to one */
};

static const Some not_written[] = {
    /* a schema that names no type is of what its keywords are for */
    {"", "ignore"},
    {"", "JavaScript pseudo-array"},
    {"ref", "root pointer ref"},
    {"format", "is only an annotation"}, /* formats are followed */
    /* the order of properties is the schema's; allOf's last part comes first here */
    {"allOf", "allOf: allOf"},
    {"allOf", "allOf with base schema: valid"},
    {"const", "different property order"},
    /* a number is written as the schema has it, an integer without a point */
    {"const", "float"},
    {"enum", "0.0] is valid"},
    {"enum", "1.0] is valid"},
    {"enum", "float"},
    {"type", "float with zero"},
    /* what RFC 3339 and 5321 let readers take, and writers need not */
    {"", "case-insensitive"},
    {"", "leap second"},
    {"format-email", "quoted string"},
    {"format-email", "address-literal"},
    /* nor does a string with a pattern have controls that take six bytes to escape */
    {"optional-ecmascript-regex", "Line tabulation"},
    {"optional-ecmascript-regex", "control matches"},
};

enum { N_OVER = sizeof passed_over / sizeof *passed_over };
enum { N_NOT = sizeof not_written / sizeof *not_written };
static int over_met[N_OVER], not_met[N_NOT];

static int n_refused, n_right, n_taken, n_wrong;

static int is_among(const Some *some, size_t n, int *n_met, const char *file, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (*some[i].file && strcmp(some[i].file, file) != 0) continue;
        if (strstr(name, some[i].name)) return ++n_met[i];
    }
    return 0;
}

static void check_case(const char *file, const json_t *one)
{
    Error err = {0};
    Grammar *g = grammar_of_json(json_object_get(one, "schema"), 1, &err);
    json_t *test;
    size_t i;
    if (!g) {
        n_refused++;
        if (strncmp(err.msg, "schema", 6) != 0 || (err.code != ERR_INPUT && err.code != ERR_LIMIT))
            fail_msg("%s: %s", file, err.msg);
        return;
    }
    json_array_foreach(json_object_get(one, "tests"), i, test)
    {
        char name[512];
        char *text = json_dumps(json_object_get(test, "data"),
                                JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
        int is_valid = json_is_true(json_object_get(test, "valid"));
        int is_taken = grammar_takes(grammar_case, g, text) == 1;
        snprintf(name, sizeof name, "%s: %s",
                 json_string_value(json_object_get(one, "description")),
                 json_string_value(json_object_get(test, "description")));
        n_right += is_taken == is_valid;
        n_taken += is_taken;
        if (is_taken && !is_valid && !is_among(passed_over, N_OVER, over_met, file, name))
            n_wrong++, print_error("%s, %s: %s is taken\n", file, name, text);
        if (!is_taken && is_valid && !is_among(not_written, N_NOT, not_met, file, name))
            n_wrong++, print_error("%s, %s: %s is not taken\n", file, name, text);
        free(text);
    }
    grammar_free(g);
}

/* ---- the same schemas, of parameters whose values are texts ---- */

static int n_texts, n_as_texts;

/* A tool whose parameter a is of this schema; NULL where that would refer to something else. */
static json_t *tools_of(const json_t *schema)
{
    char *text = json_dumps(schema, JSON_ENCODE_ANY);
    int is_same = !strstr(text, "\"#\"") && !strstr(text, "\"#/properties");
    free(text);
    if (!is_same) return NULL;
    json_t *root = json_pack("{s:{s:O}}", "properties", "a", schema);
    const json_t *defs = json_object_get(schema, "$defs");
    const json_t *old = json_object_get(schema, "definitions");
    if (defs) json_object_set(root, "$defs", (json_t *)defs);
    if (old) json_object_set(root, "definitions", (json_t *)old);
    return json_pack("[{s:s, s:{s:s, s:o}}]", "type", "function", "function", "name", "f",
                     "parameters", root);
}

static unsigned types_of(const json_t *tools)
{
    ReplyTools *known = reply_tools_open(tools);
    unsigned types = reply_tools_types(known, 0, reply_tools_param(known, 0, "a", 1));
    reply_tools_close(known);
    return types;
}

static uint32_t any_text(GrammarBuilder *b, Error *err)
{
    Dfa dfa;
    assert_int_equal(pattern_compile(&dfa, "", 0, err), 0);
    return grammar_text(b, grammar_automaton(b, &dfa, err), 0, -1, 0, 0);
}

/* NULL: it is refused. */
static Grammar *grammar_of_texts(const json_t *tools, unsigned types)
{
    const json_t *root =
        json_object_get(json_object_get(json_array_get(tools, 0), "function"), "parameters");
    const json_t *schema = json_object_get(json_object_get(root, "properties"), "a");
    static const char *const never[] = {"</parameter>", "\n<parameter="};
    const SchemaText as = {types, never, 2};
    GrammarBuilder b;
    Error err = {0};
    grammar_build_begin(&b);
    SchemaCompiler *c = schema_begin(&b);
    uint32_t part = schema_text(c, root, schema, 1, &as, "schema", &err);
    schema_end(c);
    if (part == SCHEMA_ANY_TEXT) part = any_text(&b, &err);
    if (part) return grammar_build_end(&b, part, &err);
    grammar_build_drop(&b);
    return NULL;
}

static json_t *read_back(const char *text, unsigned types)
{
    StrBuf out = {0};
    reply_value_json(text, strlen(text), types, &out);
    json_t *value = json_loads(strbuf_str(&out), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    strbuf_free(&out);
    return value;
}

/* A text that is taken may not be read as an instance that the schema refuses. */
static void check_text(const char *file, const json_t *one, const Grammar *g, const char *text,
                       unsigned types)
{
    if (!strcmp(text, "") || grammar_takes(grammar_case, g, text) != 1) return;
    json_t *value = read_back(text, types), *test;
    size_t i;
    n_texts++;
    json_array_foreach(json_object_get(one, "tests"), i, test)
    {
        char name[512];
        snprintf(name, sizeof name, "%s: %s",
                 json_string_value(json_object_get(one, "description")),
                 json_string_value(json_object_get(test, "description")));
        if (json_is_true(json_object_get(test, "valid"))) continue;
        if (!json_equal(json_object_get(test, "data"), value)) continue;
        if (!is_among(passed_over, N_OVER, over_met, file, name))
            n_wrong++, print_error("%s, %s: the text %s is taken\n", file, name, text);
    }
    json_decref(value);
}

static void check_as_text(const char *file, const json_t *one)
{
    static const char *const more[] = {"null", "None",  "true", "False", "0",   "-1",
                                       "1.5",  "1e300", "{}",   "[]",    "[1]", "x"};
    json_t *tools = tools_of(json_object_get(one, "schema")), *test;
    unsigned types = tools ? types_of(tools) : 0;
    Grammar *g = tools ? grammar_of_texts(tools, types) : NULL;
    size_t i;
    n_as_texts += g != NULL;
    json_array_foreach(json_object_get(one, "tests"), i, test)
    {
        const json_t *data = json_object_get(test, "data");
        char *text = json_dumps(data, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
        if (g) check_text(file, one, g, text, types);
        if (g && json_is_string(data)) check_text(file, one, g, json_string_value(data), types);
        free(text);
    }
    for (i = 0; g && i < sizeof more / sizeof *more; i++)
        check_text(file, one, g, more[i], types);
    grammar_free(g);
    json_decref(tools);
}

static void check_file(const char *name)
{
    char path[512], file[256];
    json_error_t e;
    json_t *one;
    size_t i;
    snprintf(path, sizeof path, SUITE "/%s", name);
    snprintf(file, sizeof file, "%.*s", (int)(strlen(name) - strlen(".json")), name);
    json_t *cases = json_load_file(path, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!cases) fail_msg("%s: %s", path, e.text);
    json_array_foreach(cases, i, one)
    {
        check_case(file, one);
        check_as_text(file, one);
    }
    json_decref(cases);
}

static int is_json(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot && !strcmp(dot, ".json");
}

/* No exception is listed that is none. */
static void check_met(const Some *some, size_t n, const int *n_met)
{
    for (size_t i = 0; i < n; i++)
        if (!n_met[i])
            n_wrong++, print_error("nothing is like '%s' '%s'\n", some[i].file, some[i].name);
}

static void test_suite(void **state)
{
    struct dirent **entry;
    int n = scandir(SUITE, &entry, is_json, alphasort);
    (void)state;
    assert_true(n > 40);
    for (int i = 0; i < n; i++) {
        check_file(entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    printf("%d schemas are refused; of the others' instances %d are judged alike, %d taken\n",
           n_refused, n_right, n_taken);
    printf("%d of them are schemas of texts, of which %d are taken\n", n_as_texts, n_texts);
    check_met(passed_over, N_OVER, over_met);
    check_met(not_written, N_NOT, not_met);
    assert_int_equal(n_wrong, 0);
    assert_true(n_refused <= 200 && n_taken > 300);
    assert_true(n_as_texts > 100 && n_texts > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suite),
    };
    return cmocka_run_group_tests_name("schema_suite", tests, grammar_case_open,
                                       grammar_case_close);
}
