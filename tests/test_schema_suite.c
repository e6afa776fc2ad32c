/*
 * test_schema_suite.c: grammars against the JSON Schema Test Suite (tests/data/json_schema_suite).
 *
 * With strict, what a schema refuses is never taken, but for what server/README.md says is passed
 * over. What it allows is taken, unless we would not write it so: where a schema names no type we
 * write what its keywords are for, and properties come in the schema's order.
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

#include "tests/grammar_case.h"

#define SUITE "tests/data/json_schema_suite"

/* In a file ("": in any), all tests whose case's or own name holds this. */
typedef struct {
    const char *file, *name;
} Some;

static const Some passed_over[] = {
    {"uniqueItems", ""},
    {"oneOf", ""},                        /* is anyOf */
    {"", "does not look in applicators"}, /* parts of allOf are merged to one */
    {"dynamicRef", ""},
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
    check_met(passed_over, N_OVER, over_met);
    check_met(not_written, N_NOT, not_met);
    assert_int_equal(n_wrong, 0);
    assert_true(n_refused <= 200 && n_taken > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suite),
    };
    return cmocka_run_group_tests_name("schema_suite", tests, grammar_case_open,
                                       grammar_case_close);
}
