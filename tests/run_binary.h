/*
 * run_binary.h: runs build/offshoot as a user would and keeps what it wrote.
 */
#ifndef OFFSHOOT_TESTS_RUN_BINARY_H
#define OFFSHOOT_TESTS_RUN_BINARY_H

#include <sys/types.h>

#include "base/strbuf.h"

typedef struct {
    int status;      /* exit status; 128 + signal when it was killed */
    StrBuf out, err; /* stdout and stderr */
} RunResult;

/*
 * Runs the program with words (NULL ends them) and input as its stdin. The result is freed by
 * run_result_free; the test fails when the program cannot be started.
 */
RunResult run_binary(const char *const *words, const char *input);
#define RUN(...)        run_binary((const char *const[]){__VA_ARGS__, NULL}, "")
#define RUN_ON(in, ...) run_binary((const char *const[]){__VA_ARGS__, NULL}, in)

/* Starts it on these three descriptors; then waits for its end and returns its status. */
pid_t start_binary(const char *const *words, int in, int out, int err);
int end_of_binary(pid_t pid);

/*
 * run_binary at a terminal that echoes nothing, where input, n bytes of it, is typed; out is all
 * that appears there.
 */
RunResult run_at_terminal(const char *const *words, const char *input, size_t n);

void run_result_free(RunResult *r);

/* Fails unless the program ended with status, and wrote text to stdout or stderr. */
void assert_run(const RunResult *r, int status, const char *text);

/* The same of a result that nobody looks at again: it is freed. */
void expect_run(RunResult r, int status, const char *text);

#endif
