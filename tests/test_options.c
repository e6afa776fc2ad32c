/* test_options.c: the option table: command line, config file, errors, help. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/options.h"

enum { A = 1, B = 2 };

typedef struct {
    int port, color, raw, quiet, often;
    int64_t seed, memory;
    double top_p, alpha;
    const char *model, *config;
} Values;

static Values v;

static const Option table[] = {
    {"port", OPTION_INT, &v.port, 0, 65535, NULL, "N", "where to listen", A},
    {"seed", OPTION_INT64, &v.seed, -1, 9e18, NULL, "N", "-1 is random", A},
    {"memory", OPTION_BYTES, &v.memory, 0, 1e18, NULL, "BYTES", "room (default: a lot)", A},
    {"top-p", OPTION_NUMBER, &v.top_p, 0, 1, NULL, "X", "nucleus", A},
    {"alpha", OPTION_NUMBER, &v.alpha, 0, 9, "auto", "X", "weight", A},
    {"model", OPTION_STRING, &v.model, 0, 0, NULL, "DIR", "folder", A | B},
    {"color", OPTION_CHOICE, &v.color, 0, 0, "auto|on|off", NULL, "when to color", A},
    {"raw", OPTION_SWITCH, &v.raw, 0, 0, NULL, NULL, "no template", A},
    {"config", OPTION_STRING, &v.config, 0, 0, NULL, "FILE", "options from a file", A | B},
    {"quiet", OPTION_INT, &v.quiet, 0, 9, NULL, "N", NULL, A}, /* no line in the help */
    {"shared", OPTION_INT, &v.port, 0, 9, NULL, "N", "as B has it", B},
    {"shared", OPTION_INT, &v.quiet, 0, 9, NULL, "N", "as A has it", A},
    {"only-b", OPTION_INT, &v.port, 0, 9, NULL, "N", "of the other command", B},
    {"a-long-one", OPTION_CHOICE, &v.often, 0, 0, "seldom|often|always", NULL,
     "what needs so many words that a line of 80 columns ends before they do", A},
    OPTION_OF_OTHERS("listen-on", "port"),
    {NULL, OPTION_INT, NULL, 0, 0, NULL, NULL, NULL, 0},
};

static const char *rest[32];
static int n_rest;
static Error err;

/* Parses a NULL-terminated list of words as command A. */
static int parse(const char *const *words)
{
    char *argv[32];
    int argc = 0;
    for (; words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    v = (Values){.port = 8080, .seed = -1, .top_p = 0.5};
    err = (Error){0};
    options_free();
    return options_parse(table, A, argc, argv, rest, &n_rest, &err);
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

static void assert_error(int rc, ErrorCode code, const char *part)
{
    assert_int_equal(rc, -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.msg, part)) fail_msg("'%s' lacks '%s'", err.msg, part);
}

static void test_every_type(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--port", "80", "--seed=9000000000000", "--memory", "4GiB", "--top-p",
                           "0.25", "--model", "m", "--color", "off", "--raw"),
                     0);
    assert_int_equal(v.port, 80);
    assert_true(v.seed == 9000000000000);
    assert_true(v.memory == INT64_C(4) << 30);
    assert_true(v.top_p == 0.25);
    assert_string_equal(v.model, "m");
    assert_int_equal(v.color, 2);
    assert_int_equal(v.raw, 1);
    assert_int_equal(n_rest, 0);
}

static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {{"0", 0},        {"4096", 4096},    {"3K", 3072},
                {"2M", 2 << 20}, {"1MiB", 1 << 20}, {"1KiB", 1024}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(PARSE("--memory", good[i].text), 0);
        assert_true(v.memory == good[i].bytes);
    }
    static const char *const bad[] = {"",
                                      "G",
                                      "-1",
                                      "1T",
                                      "1GB",
                                      "1.5G",
                                      "1 G",
                                      "9999999999G",
                                      "17179869185G", /* 1G beyond 64 bits */
                                      "4iB",
                                      "99999999999999999999",
                                      "1Gi",
                                      "2000000000000000000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_error(PARSE("--memory", bad[i]), ERR_INPUT, "such as 512M or 4G");
}

/* Both limits are allowed, and a choice's first word; a number has nothing behind it. */
static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        int rc;
    } cases[] = {
        {"--port", "0", 0},      {"--port", "65535", 0}, {"--port", "-1", -1},
        {"--top-p", "0", 0},     {"--top-p", "1", 0},    {"--top-p", "-0.1", -1},
        {"--top-p", "0.5x", -1}, {"--top-p", " 1", -1},  {"--memory", "1000000000000000000", 0},
        {"--color", "auto", 0},  {"--seed", "-1", 0},    {"--port", "1K", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (PARSE(cases[i].name, cases[i].value) != cases[i].rc)
            fail_msg("%s '%s'", cases[i].name, cases[i].value);
    int64_t bytes;
    assert_int_equal(options_read_bytes("9223372036854775807", &bytes), 0);
    assert_true(bytes == INT64_MAX);
    assert_int_equal(options_read_bytes("9223372036854775808", &bytes), -1);
    assert_int_equal(options_read_bytes("000000000000000000000001", &bytes), -1); /* too long */
}

static void test_words_and_order(void **state)
{
    (void)state;
    assert_int_equal(PARSE("hello", "--port", "1", "world", "--port", "2", "-", "-5"), 0);
    assert_int_equal(v.port, 2);
    assert_int_equal(n_rest, 4);
    assert_string_equal(rest[0], "hello");
    assert_string_equal(rest[1], "world");
    assert_string_equal(rest[3], "-5");
    assert_int_equal(PARSE("--port", "3", "--", "--port", "4"), 0);
    assert_int_equal(v.port, 3);
    assert_int_equal(n_rest, 2);
    assert_string_equal(rest[0], "--port");
}

static void test_switch(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--raw", "a prompt"), 0);
    assert_int_equal(v.raw, 1);
    assert_int_equal(n_rest, 1);
    assert_int_equal(PARSE("--raw", "off", "a prompt"), 0);
    assert_int_equal(v.raw, 0);
    assert_int_equal(n_rest, 1);
    assert_int_equal(PARSE("--raw=on"), 0);
    assert_int_equal(v.raw, 1);
    assert_error(PARSE("--raw=yes"), ERR_INPUT, "--raw is 'yes', must be on or off");
}

/* A word that others take for on or off is no prompt behind a switch; elsewhere it is. */
static void test_word_behind_switch(void **state)
{
    (void)state;
    static const char *const words[] = {"true", "False", "YES", "no", "1", "0", "auto", "ON"};
    char says[64];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(says, sizeof says, "'--raw' takes on or off, not '%s'", words[i]);
        assert_error(PARSE("--raw", words[i]), ERR_INPUT, says);
        assert_error(PARSE("--raw", words[i], "a prompt"), ERR_INPUT, says);
        assert_int_equal(PARSE("--raw=on", words[i]), 0);
        assert_int_equal(n_rest, 1);
        assert_int_equal(PARSE(words[i], "--raw"), 0);
        assert_int_equal(n_rest, 1);
        assert_int_equal(PARSE("--raw", "on", words[i]), 0);
        assert_int_equal(n_rest, 1);
    }
    assert_int_equal(PARSE("--raw", "yesterday"), 0);
    assert_string_equal(rest[0], "yesterday");
}

static void test_errors(void **state)
{
    (void)state;
    assert_error(PARSE("--prot", "80"), ERR_INPUT,
                 "unknown option '--prot'; did you mean '--port'?");
    assert_error(PARSE("--mmory", "1"), ERR_INPUT, "did you mean '--memory'?");
    assert_error(PARSE("--memmory", "1"), ERR_INPUT, "did you mean '--memory'?");
    assert_error(PARSE("--colorg", "on"), ERR_INPUT, "did you mean '--color'?"); /* not config */
    assert_error(PARSE("--listen-on", "80"), ERR_INPUT,
                 "unknown option '--listen-on'; here it is '--port'");
    assert_error(PARSE("--listen-o", "80"), ERR_INPUT, "unknown option '--listen-o'");
    assert_null(strstr(err.msg, "port"));
    assert_error(PARSE("--zzzzzzz", "80"), ERR_INPUT, "unknown option '--zzzzzzz'");
    /* what a terminal would obey is not said */
    assert_error(PARSE("--zzz\x1b[2J\x7f-"), ERR_INPUT, "unknown option '--zzz?[2J?-'");
    assert_null(strstr(err.msg, "mean"));
    assert_error(PARSE("-p", "80"), ERR_INPUT, "options are spelled --name");
    assert_error(PARSE("--port"), ERR_INPUT, "'--port' needs a value");
    assert_error(PARSE("--port", "--raw"), ERR_INPUT, "'--port' needs a value");
    assert_error(PARSE("--only-b", "1"), ERR_INPUT, "another command");
    assert_error(PARSE("--only-c", "1"), ERR_INPUT, "unknown option '--only-c'");
    assert_null(strstr(err.msg, "mean")); /* nor is that what was meant */
    assert_error(PARSE("--port", "65536"), ERR_INPUT,
                 "--port is '65536', must be a whole number from 0 to 65535");
    assert_error(PARSE("--port="), ERR_INPUT, "--port is ''");
    assert_error(PARSE("--port", "8 "), ERR_INPUT, "--port is '8 '");
    assert_error(PARSE("--port", " 8"), ERR_INPUT, "--port is ' 8'");
    assert_error(PARSE("--port", "99999999999999999999"), ERR_INPUT, "whole number");
    assert_error(PARSE("--top-p", "nan"), ERR_INPUT, "must be a number from 0 to 1");
    assert_error(PARSE("--top-p", "inf"), ERR_INPUT, "must be a number from 0 to 1");
    assert_error(PARSE("--top-p", "1.01"), ERR_INPUT, "must be a number from 0 to 1");
    assert_error(PARSE("--top-p", "auto"), ERR_INPUT, "must be a number from 0 to 1");
    assert_error(PARSE("--alpha", "nan"), ERR_INPUT, "must be a number from 0 to 9, or auto");
    assert_error(PARSE("--alpha", "aut"), ERR_INPUT, "must be a number from 0 to 9, or auto");
    assert_error(PARSE("--color", "o"), ERR_INPUT, "must be auto, on or off");
    assert_error(PARSE("--color", "one"), ERR_INPUT, "must be auto, on or off");
    assert_error(PARSE("--a-name-that-is-longer-than-any-name-we-would-ever-give"), ERR_INPUT,
                 "unknown option");
}

/* ---- the config file ---- */

static char path[64];

static const char *write_config(const char *text, size_t len)
{
    snprintf(path, sizeof path, "/tmp/offshoot-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), (ssize_t)len);
    close(fd);
    return path;
}

static int parse_config(const char *text)
{
    int rc = PARSE("--config", write_config(text, strlen(text)));
    unlink(path);
    return rc;
}

static void test_config_values(void **state)
{
    (void)state;
    assert_int_equal(parse_config("# a comment\n\n  \t\n  port = 81 # why\r\n  # more\ncolor=on\n"
                                  "model = a folder#1\nraw = on\nonly-b = 3\ntop-p = 1"),
                     0);
    assert_int_equal(v.port, 81);
    assert_int_equal(v.color, 1);
    assert_int_equal(v.raw, 1);
    assert_true(v.top_p == 1);
    assert_string_equal(v.model, "a folder#1");
    assert_int_equal(parse_config(""), 0);
    assert_int_equal(v.port, 8080);
    assert_int_equal(parse_config("\xef\xbb\xbfport = 82\r\n"), 0);
    assert_int_equal(v.port, 82);
    assert_int_equal(parse_config("\xef\xbb\xbf"), 0);
    assert_error(parse_config("port = 82\n\xef\xbb\xbfport = 83"), ERR_INPUT, "line 2: unknown");
}

static void test_command_line_wins(void **state)
{
    (void)state;
    const char *file = write_config("port = 1\nseed = 7\n", 18);
    int rc = PARSE("--port", "2", "--config", file, "x");
    unlink(path);
    assert_int_equal(rc, 0);
    assert_int_equal(v.port, 2);
    assert_true(v.seed == 7);
    assert_int_equal(n_rest, 1);
}

static void test_config_errors(void **state)
{
    (void)state;
    assert_error(parse_config("port = 1\nprot = 2\n"), ERR_INPUT,
                 "line 2: unknown option 'prot'; did you mean 'port'?");
    assert_error(parse_config("\nport = x"), ERR_INPUT, "line 2: port is 'x', must be a whole");
    assert_error(parse_config("only-b = 99"), ERR_INPUT, "line 1: only-b is '99'");
    assert_error(parse_config("port"), ERR_INPUT, "line 1: expected 'name = value'");
    assert_error(parse_config("config = other"), ERR_INPUT, "cannot name another");
    assert_error(PARSE("--config", "/nowhere"), ERR_FILE, "/nowhere");
    assert_error(PARSE("--config", "/tmp"), ERR_FILE, "not a regular file");
    int rc = PARSE("--config", write_config("port = 1\0\n", 10));
    unlink(path);
    assert_error(rc, ERR_FILE, "is not a config file");
    static char lines[(1 << 20) + 1];
    memset(lines, '\n', sizeof lines);
    assert_int_equal(PARSE("--config", write_config(lines, sizeof lines - 1)), 0);
    rc = PARSE("--config", write_config(lines, sizeof lines));
    unlink(path);
    assert_error(rc, ERR_FILE, "is not a config file"); /* but a large one */
    unlink(write_config("", 0));
    assert_int_equal(mkfifo(path, 0600), 0);
    rc = PARSE("--config", path);
    unlink(path);
    assert_error(rc, ERR_FILE, "not a regular file");
}

/* A number that may be a word too. */
static void test_word_for_a_number(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--alpha", "0.5"), 0);
    assert_true(v.alpha == 0.5);
    assert_int_equal(PARSE("--alpha", "9", "--top-p", "0"), 0); /* bounds are in */
    assert_true(v.alpha == 9 && v.top_p == 0);
    assert_int_equal(PARSE("--alpha", "0.5", "--alpha", "auto"), 0);
    assert_true(isnan(v.alpha));
}

static void test_help(void **state)
{
    (void)state;
    char text[4096] = {0};
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    v = (Values){.port = 8080,
                 .seed = -1,
                 .top_p = 0.5,
                 .alpha = NAN,
                 .model = "here",
                 .color = 1,
                 .often = 1};
    options_help(table, A, out);
    fclose(out);
    static const char want[] =
        "  --port N                    where to listen (default 8080)\n"
        "  --seed N                    -1 is random (default -1)\n"
        "  --memory BYTES              room (default: a lot)\n"
        "  --top-p X                   nucleus (default 0.5)\n"
        "  --alpha X                   weight (default auto)\n"
        "  --model DIR                 folder (default here)\n"
        "  --color auto|on|off         when to color (default on)\n"
        "  --raw                       no template\n"
        "  --config FILE               options from a file\n"
        "  --shared N                  as A has it (default 0)\n"
        "  --a-long-one seldom|often|always\n"
        "                              what needs so many words that a line of 80 columns\n"
        "                              ends before they do (default often)\n";
    assert_string_equal(text, want);
    assert_int_equal(PARSE("--shared", "4"), 0);
    assert_int_equal(v.quiet, 4);
    assert_int_equal(PARSE("--quiet", "3"), 0);
    assert_int_equal(v.quiet, 3);
}

static int teardown(void **state)
{
    (void)state;
    options_free();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_words_and_order),
        cmocka_unit_test(test_switch),
        cmocka_unit_test(test_word_behind_switch),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_config_values),
        cmocka_unit_test(test_command_line_wins),
        cmocka_unit_test(test_config_errors),
        cmocka_unit_test(test_word_for_a_number),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
