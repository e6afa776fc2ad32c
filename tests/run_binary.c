/* run_binary.c: see run_binary.h. Output goes through files, so no pipe can fill up. */
#include "tests/run_binary.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <sys/wait.h>
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

RunResult run_binary(const char *const *words, const char *input)
{
    char *argv[MAX_WORDS + 2] = {(char *)(uintptr_t)OFFSHOOT_BINARY};
    for (int i = 0; words[i]; i++) {
        assert_true(i < MAX_WORDS);
        argv[i + 1] = (char *)(uintptr_t)words[i];
    }
    FILE *in = file_with(input), *out = file_with(""), *err = file_with("");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(in), STDIN_FILENO);
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        execv(OFFSHOOT_BINARY, argv);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    fclose(in);
    RunResult r = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    read_back(out, &r.out);
    read_back(err, &r.err);
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
