/* test_log.c: lines on stderr, and those that nobody takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "tests/analyzer.h"
#include "text/utf8.h"

static int pipe_out, real_stderr;

static int setup(void **state)
{
    int fd[2];
    (void)state;
    if (pipe(fd)) return -1;
    real_stderr = dup(STDERR_FILENO);
    dup2(fd[1], STDERR_FILENO);
    close(fd[1]);
    pipe_out = fd[0];
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    close(pipe_out);
    return 0;
}

/* What is in the pipe, up to so many bytes. */
static const char *take(void)
{
    static char text[1 << 20];
    ssize_t n = read(pipe_out, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void test_line(void **state)
{
    (void)state;
    log_debug("never");
    log_warn("about a=%d", 5);
    const char *text = take();
    assert_int_equal(strlen(text), strlen("2026-01-01T00:00:00.000Z warn about a=5\n"));
    assert_string_equal(text + strlen("2026-01-01T00:00:00.000Z"), " warn about a=5\n");
}

/* Whatever a name has in it, a line is one. */
static void test_control_characters(void **state)
{
    (void)state;
    log_info("model=%s", "a\nb\033[2J\x7f\xc3\xa4");
    assert_string_equal(take() + strlen("2026-01-01T00:00:00.000Z"),
                        " info model=a?b?[2J?\xc3\xa4\n");
}

/* What is too long for a line is cut. */
static void test_long_line(void **state)
{
    (void)state;
    enum { LONG = 3000, MOST = 1024 };
    char message[LONG + 1];
    memset(message, 'x', LONG);
    message[LONG] = '\0';
    log_warn("%s", message);
    const char *text = take();
    size_t n = strlen(text);
    assert_in_range(n, MOST - 8, MOST);
    assert_string_equal(text + n - 2, "x\n");
}

/* What is too long is cut between two characters, in a line as in an error. */
static void test_cut_characters(void **state)
{
    (void)state;
    static const char *const characters[] = {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x8c\xb1"};
    char message[3000], wide[3100];
    for (size_t k = 0; k < 3; k++) {
        size_t n = strlen(characters[k]);
        for (size_t i = 0; i < sizeof message; i++)
            message[i] = characters[k][i % n];
        message[sizeof message - sizeof message % n - 1] = '\0'; /* it ends inside one */
        for (int pad = 0; pad < 4; pad++) {
            Error err;
            snprintf(wide, sizeof wide, "%.*s%s", pad, "xxx", message);
            error_set(&err, ERR_INPUT, "%s", wide);
            size_t len = strlen(err.msg);
            assert_in_range(len, sizeof err.msg - 4, sizeof err.msg - 1);
            assert_int_equal(utf8_check(err.msg, len), len);
            log_warn("%s", wide);
            const char *text = take();
            assert_int_equal(utf8_check(text, strlen(text)), strlen(text));
            assert_in_range(strlen(text), 1024 - 8, 1024);
            assert_int_equal(text[strlen(text) - 1], '\n');
        }
    }
    log_warn("\x80\x80\x80"); /* no first byte */
    assert_non_null(strstr(take(), "warn \x80"));
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A line says when it was written, in UTC. */
static void test_time(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct tm utc = {0};
        int64_t before = now_ms();
        log_warn("now");
        int64_t after = now_ms();
        const char *behind = strptime(take(), "%Y-%m-%dT%H:%M:%S", &utc);
        int ms = -1;
        assert_non_null(behind);
        assert_int_equal(sscanf(behind, ".%3dZ warn now", &ms), 1);
        assert_in_range((int64_t)timegm(&utc) * 1000 + ms, before, after);
        usleep(7000);
    }
}

/* A pipe that nobody reads holds nobody up; the first line after it says how many were lost. */
static void test_full_pipe(void **state)
{
    enum { N = 5000 };
    int n_told = 0, n_lost = 0;
    char word[8] = "";
    (void)state;
    alarm(60);
    for (int i = 0; i < N; i++)
        log_info("one of many lines, i=%d", i);
    for (const char *at = take(); (at = strchr(at, '\n')); at++)
        n_told++;
    assert_in_range(n_told, 500, N - 500);
    log_info("after");
    alarm(0);
    const char *text = take();
    assert_int_equal(sscanf(text, "%*s %7s log_lost lines=%d", word, &n_lost), 2);
    assert_string_equal(word, "warn");
    assert_int_equal(n_lost, N - n_told);
    assert_non_null(strstr(text, " info after\n"));
    log_info("later");
    assert_null(strstr(take(), "lost")); /* they were told of */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_characters, setup, teardown),
        cmocka_unit_test_setup_teardown(test_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_pipe, setup, teardown),
        cmocka_unit_test_setup_teardown(test_control_characters, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
