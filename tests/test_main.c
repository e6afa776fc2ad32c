/* test_main.c: commands, help, and what a user sees when something is wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/version.h"
#include "tests/run_binary.h"

static void test_version_and_help(void **state)
{
    (void)state;
    RunResult r = RUN("version");
    assert_run(&r, 0, "offshoot " OFFSHOOT_VERSION "\n");
    run_result_free(&r);

    static const char *const commands[] = {"serve", "chat", "bench", "check"};
    RunResult all = RUN("help");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char usage[64];
        snprintf(usage, sizeof usage, "usage: offshoot %s ", commands[i]);
        assert_run(&all, 0, commands[i]);
        RunResult long_way = RUN("help", commands[i]), option = RUN(commands[i], "--help");
        assert_run(&long_way, 0, usage);
        assert_run(&option, 0, usage);
        assert_string_equal(strbuf_str(&long_way.out), strbuf_str(&option.out));
        run_result_free(&long_way);
        run_result_free(&option);
    }
    run_result_free(&all);
}

/* One line on stderr that starts with the program's name, nothing on stdout. */
static void assert_complains(RunResult r, int status, const char *text)
{
    const char *err = strbuf_str(&r.err);
    assert_run(&r, status, text);
    assert_int_equal(r.out.len, 0);
    assert_int_equal(strncmp(err, "offshoot: ", 10), 0);
    assert_ptr_equal(strchr(err, '\n'), err + r.err.len - 1);
    run_result_free(&r);
}

static void test_wrong_usage(void **state)
{
    (void)state;
    assert_complains(run_binary((const char *const[]){NULL}, ""), 2, "which command?");
    assert_complains(RUN("serv"), 2, "unknown command 'serv'");
    assert_complains(RUN("help", "me"), 2, "no command 'me'");
    assert_complains(RUN("chat"), 2, "--model DIR");
    assert_complains(RUN("chat", "--modle", "x"), 2, "did you mean '--model'?");
    assert_complains(RUN("chat", "--model", "x", "two", "words"), 2, "'words'");
    assert_complains(RUN("serve", "--model", "models/demo", "word"), 2, "'word'");
    assert_complains(RUN("serve", "--port", "65536"), 2, "--port is '65536'");
    assert_complains(RUN("bench", "--model", "models/demo"), 2, "which bench?");
    assert_complains(RUN("chat", "--model", "models/demo", "--isa", "mmx", "hi"), 2, "mmx");
}

static void test_missing_files(void **state)
{
    (void)state;
    assert_complains(RUN("chat", "--model", "/nowhere", "hi"), 5, "/nowhere");
    assert_complains(RUN("chat", "--model", "tests", "hi"), 5, "tests/config.json");
    assert_complains(RUN("chat", "--config", "/nowhere.conf", "hi"), 5, "/nowhere.conf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_and_help),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_missing_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
