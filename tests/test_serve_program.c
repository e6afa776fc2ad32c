/*
 * test_serve_program.c: `offshoot serve` as a process: its log, its address, signals, its end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/http_client.h"
#include "tests/run_binary.h"

#define COMPLETIONS "/v1/completions"

typedef struct {
    pid_t pid;
    FILE *log;        /* what it says from now on */
    char address[64]; /* as its log has it */
    int port;
} Program;

/* Starts it, and waits for a line of its log with this text, or for its end. */
static Program start(const char *const *words, const char *text)
{
    Program p = {0};
    int fd[2], is_there = 0;
    char line[2000];
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    p.pid = start_binary(words, STDIN_FILENO, STDOUT_FILENO, fd[1]);
    close(fd[1]);
    p.log = fdopen(fd[0], "r");
    while (!is_there && fgets(line, sizeof line, p.log)) {
        const char *at = strstr(line, "listening address=");
        if (at) sscanf(at, "listening address=%63s", p.address);
        is_there = strstr(line, text) != NULL;
    }
    const char *colon = strrchr(p.address, ':');
    p.port = colon ? atoi(colon + 1) : 0;
    return p;
}

static Program start_ready(const char *host)
{
    const char *const words[] = {"serve",    "--model", "models/demo", "--port", "0",
                                 "--memory", "64M",     "--host",      host,     NULL};
    Program p = start(words, "ready seconds=");
    assert_true(p.port > 0);
    return p;
}

static void expect_end(Program *p, int status)
{
    assert_int_equal(end_of_binary(p->pid), status);
    if (p->log) fclose(p->log);
}

static void test_sigterm(void **state)
{
    (void)state;
    char some[64];
    Program p = start_ready("127.0.0.1");
    int client = http_connect(p.port);
    http_send(client, "POST", COMPLETIONS, "", "{\"prompt\": \"Hello\", \"stream\": true}");
    assert_true(recv(client, some, sizeof some, 0) > 0);
    kill(p.pid, SIGTERM);
    expect_end(&p, 0);
    close(client);
}

/* A terminal that closes says so more than once, and lets answers finish all the same. */
static void test_other_signals(void **state)
{
    (void)state;
    static const int sent[] = {SIGUSR1, SIGUSR2, SIGXFSZ, SIGHUP, SIGHUP};
    Program p = start_ready("127.0.0.1");
    fclose(p.log);
    p.log = NULL; /* the terminal's: nobody reads it any more */
    int client = http_connect(p.port);
    StrBuf rest = {0};
    HttpReply r;
    http_send(
        client, "POST", COMPLETIONS, "",
        "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": 500, \"stream\": true}");
    assert_true(http_readable(client, 10000));
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        kill(p.pid, sent[i]);
        usleep(10000);
    }
    assert_int_equal(http_read(client, &rest, 0, &r), 0);
    json_decref(http_events(&r)); /* to its [DONE] */
    http_reply_free(&r);
    strbuf_free(&rest);
    close(client);
    expect_end(&p, 0);

    signal(SIGHUP, SIG_IGN); /* as nohup starts it */
    p = start_ready("127.0.0.1");
    signal(SIGHUP, SIG_DFL);
    kill(p.pid, SIGHUP);
    usleep(10000);
    r = http_exchange(p.port, "GET", "/health", "", "");
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    kill(p.pid, SIGTERM);
    expect_end(&p, 0);
}

/* The log has the address as a URL has it. */
static void test_ipv6(void **state)
{
    (void)state;
    struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    int has_ipv6 = fd >= 0 && !bind(fd, (struct sockaddr *)&here, sizeof here);
    if (fd >= 0) close(fd);
    if (!has_ipv6) skip();
    Program p = start_ready("::1");
    assert_memory_equal(p.address, "[::1]:", 6);
    kill(p.pid, SIGTERM);
    expect_end(&p, 0);
}

static double number_behind(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

/* The first token comes before the time that the rate is of: one alone has none. */
static void test_logged_rate(void **state)
{
    (void)state;
    static const int n_tokens[] = {1, 20};
    char line[2000];
    Program p = start_ready("127.0.0.1");
    for (int i = 0; i < 2; i++) {
        char body[100];
        double rate, decode_ms;
        snprintf(body, sizeof body,
                 "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": %d}", n_tokens[i]);
        HttpReply r = http_exchange(p.port, "POST", COMPLETIONS, "", body);
        assert_int_equal(r.status, 200);
        decode_ms = number_behind(strbuf_str(&r.body), "\"predicted_ms\":");
        http_reply_free(&r);
        assert_non_null(fgets(line, sizeof line, p.log));
        rate = number_behind(line, " tokens_per_s=");
        assert_true(fabs(rate - (n_tokens[i] - 1) * 1e3 / decode_ms) <= 0.06);
    }
    kill(p.pid, SIGTERM);
    expect_end(&p, 0);
}

/* A folder for random weights of so large a shape that they take many seconds. */
static void link_large_shape(const char *dir, int is_there)
{
    static const char *const files[][2] = {
        {"tests/data/configs/qwen3.5-4b/config.json", "config.json"},
        {"models/demo/tokenizer.json", "tokenizer.json"},
    };
    for (int i = 0; i < 2; i++) {
        char target[PATH_MAX], path[64];
        snprintf(path, sizeof path, "%s/%s", dir, files[i][1]);
        assert_non_null(realpath(files[i][0], target));
        assert_int_equal(is_there ? symlink(target, path) : unlink(path), 0);
    }
}

/* Ended while it makes its weights; and over none at all: its exit status, as other commands' is.
 */
static void test_ends_while_loading(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_serve_XXXXXX";
    const char *const words[] = {"serve", "--model", dir,  "--port",   "0",   "--dummy-weights",
                                 "bf16",  "--quant", "q4", "--memory", "64M", "--device",
                                 "cpu",   NULL};
    /* Who ends while it loads joins no thread: ThreadSanitizer calls that a leak. */
    setenv("TSAN_OPTIONS", "report_thread_leaks=0", 0);
    assert_non_null(mkdtemp(dir));
    link_large_shape(dir, 1);
    Program p = start(words, "listening");
    assert_true(p.port > 0);
    HttpReply r = http_exchange(p.port, "GET", "/health", "", "");
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"loading\""));
    http_reply_free(&r);
    kill(p.pid, SIGTERM);
    expect_end(&p, 0);
    link_large_shape(dir, 0);

    p = start(words, "ready");
    expect_end(&p, 5);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sigterm),
        cmocka_unit_test(test_other_signals),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_logged_rate),
        cmocka_unit_test(test_ends_while_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
