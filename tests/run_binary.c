/* run_binary.c: see run_binary.h. Output goes through files, so no pipe can fill up. */
#include "tests/run_binary.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_WORDS = 40 };

/* An open file without a name, holding text, at its start. */
static FILE *file_with(const char *text)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    fputs(text, f);
    rewind(f);
    return f;
}

static void read_back(FILE *f, StrBuf *sb)
{
    char buf[4096];
    size_t n;
    rewind(f);
    while ((n = fread(buf, 1, sizeof buf, f)) > 0)
        strbuf_add(sb, buf, n);
    fclose(f);
}

pid_t start_binary(const char *const *words, int in, int out, int err)
{
    char *argv[MAX_WORDS + 2] = {(char *)(uintptr_t)OFFSHOOT_BINARY};
    for (int i = 0; words[i]; i++) {
        assert_true(i < MAX_WORDS);
        argv[i + 1] = (char *)(uintptr_t)words[i];
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(in, STDIN_FILENO);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        execv(OFFSHOOT_BINARY, argv);
        _exit(127);
    }
    return pid;
}

int end_of_binary(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

RunResult run_binary(const char *const *words, const char *input)
{
    FILE *in = file_with(input), *out = file_with(""), *err = file_with("");
    RunResult r = {.status =
                       end_of_binary(start_binary(words, fileno(in), fileno(out), fileno(err)))};
    fclose(in);
    read_back(out, &r.out);
    read_back(err, &r.err);
    return r;
}

RunResult run_at_terminal(const char *const *words, const char *input, size_t n)
{
    RunResult r = {0};
    struct termios modes = {0};
    char buf[4096];
    int ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(ours >= 0 && !grantpt(ours) && !unlockpt(ours));
    int its = open(ptsname(ours), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(its >= 0 && !tcgetattr(its, &modes));
    modes.c_lflag &= ~(tcflag_t)ECHO;
    assert_int_equal(tcsetattr(its, TCSANOW, &modes), 0);
    assert_int_equal(write(ours, input, n), (ssize_t)n);
    pid_t pid = start_binary(words, its, its, its);
    close(its);
    for (ssize_t got; (got = read(ours, buf, sizeof buf)) > 0;) /* an error ends it: EIO */
        strbuf_add(&r.out, buf, (size_t)got);
    close(ours);
    r.status = end_of_binary(pid);
    return r;
}

void run_result_free(RunResult *r)
{
    strbuf_free(&r->out);
    strbuf_free(&r->err);
}

void assert_run(const RunResult *r, int status, const char *text)
{
    const char *out = strbuf_str(&r->out), *err = strbuf_str(&r->err);
    if (r->status != status)
        fail_msg("exit status %d, expected %d\n%s\n%s", r->status, status, out, err);
    if (!strstr(out, text) && !strstr(err, text))
        fail_msg("'%s' is missing\n%s\n%s", text, out, err);
}

void expect_run(RunResult r, int status, const char *text)
{
    assert_run(&r, status, text);
    run_result_free(&r);
}
