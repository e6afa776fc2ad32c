/*
 * test_http_connections.c: the HTTP layer's connections: clocks, limits, storms of them, and
 * readers that do not read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/analyzer.h"
#include "tests/apart.h"
#include "tests/echo_server.h"

/* ---- clocks ---- */

/* A byte now and then keeps no connection open: the whole request has its time. */
static void test_drip(void **state)
{
    (void)state;
    static const char *const slow[] = {
        "GET /echo HTTP/1.1\r\nX-Very-Long-Header: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        POST
        "Content-Length: 1000\r\n\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        CHUNKED "1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n",
    };
    HttpLimits limits = echo_limits();
    limits.request_timeout_s = 1;
    Echo e;
    echo_open(&e, &limits, 1);
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        int fd = http_connect(e.port);
        size_t at = i ? 30 : 0;
        StrBuf rest = {0};
        HttpReply r;
        http_write(fd, slow[i], at);
        while (at < strlen(slow[i]) && !http_readable(fd, 100))
            http_write(fd, slow[i] + at++, 1);
        if (at == strlen(slow[i])) fail_msg("all of it was waited for: %s", slow[i]);
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 408);
        echo_check(&r, slow[i]);
        assert_true(http_closed(fd, 10000));
        http_reply_free(&r);
        strbuf_free(&rest);
        close(fd);
    }
    echo_close(&e);
}

/* Idle between two requests is another clock, which every request sets back. */
static void test_idle(void **state)
{
    (void)state;
    HttpLimits limits = echo_limits();
    limits.idle_timeout_s = 2;
    Echo e;
    echo_open(&e, &limits, 1);
    int fd = http_connect(e.port), silent = http_connect(e.port);
    StrBuf rest = {0};
    HttpReply r;
    for (int i = 0; i < 3; i++) {
        http_send(fd, "GET", "/echo", "", "");
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        http_reply_free(&r);
        usleep(800000);
    }
    assert_true(http_closed(fd, 10000));
    assert_true(http_closed(silent, 10000));
    assert_int_equal(rest.len, 0);
    strbuf_free(&rest);
    close(fd);
    close(silent);
    echo_close(&e);
}

/* ---- connections ---- */

/* Past the limit a client waits until another one goes; nobody is turned away. */
static void test_max_connections(void **state)
{
    (void)state;
    HttpLimits limits = echo_limits();
    limits.max_connections = 3;
    Echo e;
    echo_open(&e, &limits, 1);
    int fd[5];
    StrBuf rest = {0};
    HttpReply r;
    for (int i = 0; i < 5; i++) {
        fd[i] = http_connect(e.port);
        http_send(fd[i], "GET", "/echo", "", "");
        if (i > 2) continue;
        assert_int_equal(http_read(fd[i], &rest, 0, &r), 0);
        http_reply_free(&r);
    }
    assert_false(http_readable(fd[3], 300));
    for (int i = 0; i < 5; i++) {
        if (i > 2) {
            assert_int_equal(http_read(fd[i], &rest, 0, &r), 0);
            assert_int_equal(r.status, 200);
            http_reply_free(&r);
        }
        close(fd[i]);
    }
    strbuf_free(&rest);
    echo_close(&e);
}

/* Exits with the connections that are served where the system allows so many files. */
static void fit_files(const void *arg)
{
    const int *files = arg;
    struct rlimit low = {(rlim_t)*files, (rlim_t)*files};
    HttpLimits limits = echo_limits();
    Error err = {0};
    limits.max_connections = 10;
    if (setrlimit(RLIMIT_NOFILE, &low)) _exit(200);
    int failed = http_fit_files(&limits, &err);
    if (failed) fprintf(stderr, "%s\n", err.msg);
    _exit(failed ? 0 : limits.max_connections);
}

/* Never more connections than were asked for, or than there are files for; none is no server. */
static void test_few_descriptors(void **state)
{
    (void)state;
    static const int rows[][2] = {{200, 10}, {74, 10}, {70, 6}, {65, 1}, {64, 0}, {20, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char said[APART_SAID];
        int status = run_apart(fit_files, rows[i], said);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), rows[i][1]);
        if (!rows[i][1]) assert_non_null(strstr(said, "open files (ulimit -n)"));
    }
}

/* A server that finds no file for a connection; exits with the lines that it logs. */
static void run_out_of_files(const void *arg)
{
    Echo e;
    int ends[2], n_lines = 0;
    char text[4096];
    struct rlimit none;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)arg;
    if (pipe(ends) || dup2(ends[1], STDERR_FILENO) < 0) _exit(100);
    log_set_level(LOG_LEVEL_WARN);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    echo_open(&e, NULL, 1);
    to.sin_port = htons((uint16_t)e.port);
    if (getrlimit(RLIMIT_NOFILE, &none)) _exit(101);
    none.rlim_cur = 0;
    if (setrlimit(RLIMIT_NOFILE, &none)) _exit(102);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) _exit(103);
    if (read(ends[0], text, 1) != 1) _exit(104); /* the first line begins */
    usleep(200000);
    ssize_t n = read(ends[0], text, sizeof text);
    for (ssize_t i = 0; i < n; i++)
        n_lines += text[i] == '\n';
    _exit(n_lines);
}

/* It is tried again and again, and told of once a minute. */
static void test_no_descriptor(void **state)
{
    (void)state;
    char said[APART_SAID];
    int status = run_apart(run_out_of_files, NULL, said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

/* Who asks for the connection's end gets it, whatever the method. */
static void test_close_after_any_method(void **state)
{
    (void)state;
    static const char *const starts[] = {"GET /echo", "CONNECT x:1", "TRACE /echo", "FETCH /echo"};
    Echo e;
    echo_open(&e, NULL, 1);
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        int fd = http_connect(e.port);
        char request[100];
        StrBuf rest = {0};
        HttpReply r;
        snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                 starts[i]);
        http_write(fd, request, strlen(request));
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        http_reply_free(&r);
        if (!http_closed(fd, 5000)) fail_msg("%s: still open", starts[i]);
        strbuf_free(&rest);
        close(fd);
    }
    echo_close(&e);
}

/* A client that closes its own side after the question may still listen, also to a long answer. */
static void test_half_close(void **state)
{
    (void)state;
    static const char *const requests[] = {"GET /echo HTTP/1.1\r\n\r\n",
                                           "GET /big HTTP/1.1\r\n\r\n"};
    Echo e;
    echo_open(&e, NULL, 1);
    for (int i = 0; i < 10; i++) {
        int fd = http_connect(e.port);
        StrBuf rest = {0};
        HttpReply r;
        http_write(fd, requests[i % 2], strlen(requests[i % 2]));
        shutdown(fd, SHUT_WR);
        if (i % 2) usleep(20000); /* the end is seen while most is unsent */
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 200);
        if (i % 2) echo_check_big(&r);
        assert_true(http_closed(fd, 10000));
        http_reply_free(&r);
        strbuf_free(&rest);
        close(fd);
    }
    echo_close(&e);
}

/* Connections by the hundred: silent ones, and such that close or reset at once, or after a bit. */
static void test_storms(void **state)
{
    (void)state;
    enum { N = 300 };
    struct linger reset = {.l_onoff = 1};
    Echo e;
    echo_open(&e, NULL, 1);
    int fd[N];
    for (int i = 0; i < N; i++)
        assert_true((fd[i] = http_connect(e.port)) >= 0);
    for (int i = 0; i < 1000; i++) {
        int one = http_connect(e.port);
        assert_true(one >= 0);
        http_write(one, POST, (size_t)i % strlen(POST));
        if (i % 2) setsockopt(one, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(one);
    }
    HttpReply r = http_exchange(e.port, "GET", "/echo", "", "");
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    echo_close(&e);
}

/* ---- readers that do not read ---- */

static void on_flow(void *owner, int behind)
{
    Echo *e = owner;
    if (behind)
        e->n_behind++;
    else
        e->n_caught_up++;
}

/* The loop is the test's: it turns while there is something to do, up to n times. */
static void turn(Echo *e, int n)
{
    for (int i = 0; i < n; i++)
        event_base_loop(e->base, EVLOOP_NONBLOCK);
}

/* A client in the same thread whose request the server keeps. */
static int open_stream(Echo *e, int watched)
{
    int fd = http_connect(e->port), small = 32768;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    http_send(fd, "GET", "/kept", "", "");
    for (int i = 0; i < 1000 && !e->kept; i++)
        turn(e, 1);
    assert_non_null(e->kept);
    exchange_stream_start(e->kept, "text/event-stream");
    if (watched) exchange_watch_flow(e->kept, on_flow);
    return fd;
}

/* Reads until *count is n or the connection ends; fails after 20 s of nothing. */
static size_t read_until(Echo *e, int fd, const int *count, int n)
{
    char buf[65536];
    size_t total = 0;
    for (int quiet = 0; *count != n; quiet++) {
        ssize_t got = recv(fd, buf, sizeof buf, 0);
        if (!got) break;
        if (got > 0) total += (size_t)got;
        if (got > 0) quiet = 0;
        if (got < 0) usleep(1000);
        if (quiet > 20000) fail_msg("nothing more after %zu bytes", total);
        turn(e, 1);
    }
    return total;
}

static void send_pieces(Echo *e, int n, int until_behind)
{
    static char piece[1000];
    for (int i = 0; i < n && e->kept && !(until_behind && e->n_behind > e->n_caught_up); i++) {
        exchange_stream_send(e->kept, piece, sizeof piece);
        turn(e, 1);
    }
}

/*
 * Requests that come while one is answered, more than we care to hold and the last one in pieces,
 * wait for their turn.
 */
static void test_pipelining(void **state)
{
    (void)state;
    enum { N = 3000 };
    Echo e;
    echo_open(&e, NULL, 0);
    int fd = open_stream(&e, 0);
    StrBuf all = {0}, replies = {0};
    char buf[65536];
    for (int i = 0; i < N; i++)
        strbuf_printf(&all, "GET /n%d HTTP/1.1\r\nHost: x\r\n\r\n", i);
    size_t sent = 0, last = all.len - 9;
    for (int quiet = 0; sent < last && quiet < 1000; quiet++) {
        ssize_t n = send(fd, all.data + sent, last - sent, MSG_NOSIGNAL);
        if (n > 0) sent += (size_t)n;
        if (n > 0) quiet = 0;
        turn(&e, 1);
    }
    exchange_stream_send(e.kept, "kept", 4);
    exchange_stream_end(e.kept);
    for (int quiet = 0; quiet < 1000; quiet++) {
        ssize_t n = sent < all.len ? send(fd, all.data + sent, 1, MSG_NOSIGNAL) : 0;
        if (sent < last) n = send(fd, all.data + sent, last - sent, MSG_NOSIGNAL);
        if (n > 0) sent += (size_t)n;
        turn(&e, 3);
        n = recv(fd, buf, sizeof buf, 0);
        if (n > 0) strbuf_add(&replies, buf, (size_t)n);
        if (n > 0) quiet = 0;
        if (n <= 0) usleep(200);
    }
    const char *at = strstr(replies.data, "kept");
    for (int i = 0; i < N && at; i++) {
        char path[32];
        snprintf(path, sizeof path, "\"/n%d\"", i);
        at = strstr(at, "\"/n");
        if (!at || strncmp(at, path, strlen(path)) != 0) fail_msg("%s: %.20s", path, at ? at : "");
        at += strlen(path);
    }
    assert_non_null(at);
    strbuf_free(&all);
    strbuf_free(&replies);
    close(fd);
    echo_free(&e);
}

/* A client that sends on and on while each of its requests takes a while is read no further. */
static void test_pipelining_is_bounded(void **state)
{
    (void)state;
    enum { ROUNDS = 300, MOST = 8 << 20 }; /* the kernel's share, on top of the connection's */
    StrBuf all = {0};
    size_t sent = 0;
    Echo e;
    echo_open(&e, NULL, 0);
    int fd = http_connect(e.port);
    for (int i = 0; i < 1000; i++)
        strbuf_puts(&all, "GET /kept HTTP/1.1\r\n\r\n");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < ROUNDS; i++) {
        for (int quiet = 0; quiet < 20; quiet++) {
            size_t at = sent % all.len;
            ssize_t n = send(fd, all.data + at, all.len - at, MSG_NOSIGNAL);
            if (n > 0) sent += (size_t)n;
            if (n > 0) quiet = 0;
            turn(&e, 1);
        }
        Exchange *ex = e.kept;
        assert_non_null(ex);
        e.kept = NULL;
        exchange_empty(ex, 200);
        turn(&e, 3);
    }
    if (sent > MOST) fail_msg("%zu bytes were taken for %d requests", sent, ROUNDS);
    strbuf_free(&all);
    close(fd);
    echo_free(&e);
}

/* Behind and caught up, in turns, and nothing is lost between. */
static void test_flow(void **state)
{
    (void)state;
    HttpLimits limits = echo_limits();
    limits.unsent_bytes = 50000;
    Echo e;
    echo_open(&e, &limits, 0);
    int fd = open_stream(&e, 1);
    for (int round = 1; round <= 3; round++) {
        send_pieces(&e, 100000, 1);
        assert_int_equal(e.n_behind, round);
        assert_int_equal(e.n_caught_up, round - 1);
        send_pieces(&e, 20, 0); /* what was on its way when the owner heard of it */
        assert_int_equal(e.n_behind, round);
        assert_true(read_until(&e, fd, &e.n_caught_up, round) > 25000);
        assert_int_equal(e.n_caught_up, round);
        assert_int_equal(e.n_gone, 0);
    }
    exchange_stream_end(e.kept);
    shutdown(fd, SHUT_WR); /* so that the server closes when all is sent */
    int never = 0;
    read_until(&e, fd, &never, 1);
    assert_int_equal(http_n_open(e.http), 0);
    close(fd);
    echo_free(&e);
}

/* Whoever does not stop when told, or is not told, loses the reader. */
static void test_flow_is_bounded(void **state)
{
    (void)state;
    HttpLimits limits = echo_limits();
    limits.unsent_bytes = 50000;
    for (int watched = 0; watched < 2; watched++) {
        Echo e;
        echo_open(&e, &limits, 0);
        int fd = open_stream(&e, watched);
        send_pieces(&e, 100000, 0);
        turn(&e, 10);
        assert_int_equal(e.n_gone, 1);
        assert_int_equal(e.n_behind, watched);
        size_t most = (size_t)(watched ? HARD_LIMIT : 1) * 50000;
        /* What the reader finds had left us before: the kernel's share, on top of the limit's. */
        int never = 0;
        assert_true(read_until(&e, fd, &never, 1) < most + (4 << 20));
        assert_int_equal(http_n_open(e.http), 0);
        close(fd);
        echo_free(&e);
    }
}

/* Asks for /big and reads nothing yet. */
static int ask_for_big(const Echo *e)
{
    int fd = http_connect(e->port), small = 32768;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    http_send(fd, "GET", "/big", "", "");
    return fd;
}

/* Replies that nobody takes may have only so much in all; then large ones are made again. */
static void test_large_replies_at_once(void **state)
{
    (void)state;
    enum { FIT = 2, N = 4 };
    HttpLimits limits = echo_limits();
    limits.all_replies_bytes = 20 << 20; /* room for two */
    Echo e;
    echo_open(&e, &limits, 1);
    int fd[N];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            fd[i] = ask_for_big(&e);
            assert_true(http_readable(fd[i], 10000));
        }
        HttpReply r = http_exchange(e.port, "GET", "/echo", "", "");
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
        for (int i = N - 1; i >= 0; i--) {
            StrBuf rest = {0};
            assert_int_equal(http_read(fd[i], &rest, 0, &r), 0);
            assert_int_equal(r.status, i < FIT ? 200 : 503);
            if (i < FIT)
                echo_check_big(&r);
            else
                echo_check(&r, "GET /big");
            http_reply_free(&r);
            strbuf_free(&rest);
            close(fd[i]);
        }
    }
    echo_close(&e);
}

/* A reader that is paused and takes nothing more is dropped after its time. */
static void test_write_timeout(void **state)
{
    (void)state;
    HttpLimits limits = echo_limits();
    limits.unsent_bytes = 50000;
    limits.write_timeout_s = 1;
    Echo e;
    echo_open(&e, &limits, 0);
    int fd = open_stream(&e, 1);
    send_pieces(&e, 100000, 1);
    for (int i = 0; i < 5000 && !e.n_gone; i++) {
        usleep(2000);
        turn(&e, 1);
    }
    assert_int_equal(e.n_gone, 1);
    close(fd);
    echo_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drip),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_max_connections),
        cmocka_unit_test(test_few_descriptors),
        cmocka_unit_test(test_no_descriptor),
        cmocka_unit_test(test_close_after_any_method),
        cmocka_unit_test(test_half_close),
        cmocka_unit_test(test_storms),
        cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_pipelining_is_bounded),
        cmocka_unit_test(test_flow),
        cmocka_unit_test(test_flow_is_bounded),
        cmocka_unit_test(test_large_replies_at_once),
        cmocka_unit_test(test_write_timeout),
    };
    return cmocka_run_group_tests(tests, echo_quiet, NULL);
}
