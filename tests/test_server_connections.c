/*
 * test_server_connections.c: the server's connections: several requests on one, bodies in pieces,
 * requests that are too large or never whole, and clients that vanish or do not read. The HTTP
 * layer alone is in test_http.c and test_http_connections.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/analyzer.h"
#include "tests/served.h"

#define COMPLETIONS "/v1/completions"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0}"
#define ENDLESS     "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true}"
#define STREAMED                                                                                   \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"

/* ---- requests in pieces ---- */

/* One connection, several requests: one after another, after a stream, and all at once. */
static void test_keep_alive_and_pipelining(void **state)
{
    (void)state;
    static const char stream[] = "{\"prompt\": \"Hello\", \"max_tokens\": 5, \"stream\": true}";
    Served *s = served_start(NULL);
    int fd = http_connect(s->port);
    StrBuf rest = {0};
    HttpReply r;
    for (int i = 0; i < 6; i++) {
        http_send(fd, "POST", COMPLETIONS, "", i % 2 ? SHORT : stream);
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.chunked, i % 2 == 0);
        http_reply_free(&r);
    }
    for (int i = 0; i < 6; i++)
        http_send(fd, i % 3 ? "POST" : "GET", i % 3 ? COMPLETIONS : "/health", "",
                  i % 3 == 1 ? SHORT
                  : i % 3    ? stream
                             : "");
    for (int i = 0; i < 6; i++) {
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.chunked, i % 3 == 2);
        http_reply_free(&r);
    }
    assert_int_equal(rest.len, 0);
    strbuf_free(&rest);
    close(fd);

    /* The next request comes while the answer is being made. */
    fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "",
              "{\"prompt\": \"Hello\", \"max_tokens\": 100, \"ignore_eos\": true}");
    while (server_n_live(s->server) < 1)
        usleep(1000);
    http_send(fd, "POST", COMPLETIONS, "", SHORT);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
    }
    strbuf_free(&rest);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

static void test_chunked_and_expected_bodies(void **state)
{
    (void)state;
    static const char chunked[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n"
                                  "10\r\n{\"prompt\": \"Hell\r\n"
                                  "13\r\no\", \"max_tokens\": 2\r\n1\r\n}\r\n0\r\n\r\n";
    Served *s = served_start(NULL);
    int fd = http_connect(s->port);
    StrBuf rest = {0};
    HttpReply r;
    http_write(fd, chunked, strlen(chunked));
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);

    char head[200];
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
             "Content-Length: %zu\r\n\r\n",
             strlen(SHORT));
    http_write(fd, head, strlen(head));
    assert_int_equal(http_read(fd, &rest, 1, &r), 0);
    assert_int_equal(r.status, 100);
    http_reply_free(&r);
    http_write(fd, SHORT, strlen(SHORT));
    assert_int_equal(http_read(fd, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

/* Sends bytes as they are and reads the status of the reply; 0 when there is none. */
static int status_of(const Served *s, const char *data, size_t len)
{
    int fd = http_connect(s->port);
    StrBuf rest = {0};
    HttpReply r = {0};
    http_write(fd, data, len);
    int status = http_read(fd, &rest, 0, &r) ? 0 : r.status;
    http_reply_free(&r);
    strbuf_free(&rest);
    close(fd);
    return status;
}

static void test_too_large_or_unclear(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        int status;
    } rows[] = {
        {"POST /tokenize HTTP/1.1\r\nContent-Length: 100001\r\n\r\n", 413},
        {"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413},
        {"POST /tokenize HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400},
        {"GET /health HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
         "2\r\n{}\r\n0\r\n\r\n",
         400},
        {"GET /health\r\n\r\n", 400},
        {"what is this\r\n\r\n", 400},
    };
    ServedOptions o = served_defaults();
    o.limits.http.body_bytes = 100000;
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status = status_of(s, rows[i].data, strlen(rows[i].data));
        if (status != rows[i].status) fail_msg("%s: %d", rows[i].data, status);
    }
    StrBuf big = {0};
    strbuf_puts(&big, "GET /health HTTP/1.1\r\nX-Big: ");
    for (int i = 0; i < 40000; i++)
        strbuf_puts(&big, "a");
    strbuf_puts(&big, "\r\n\r\n");
    assert_int_equal(status_of(s, big.data, big.len), 431);
    strbuf_free(&big);
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Every beginning of a request, then silence or the end of the connection. */
static void test_half_requests(void **state)
{
    (void)state;
    static const char whole[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                "Content-Length: 60\r\n\r\n{\"prompt\": \"Hello\"";
    ServedOptions o = served_defaults();
    o.limits.http.idle_timeout_s = o.limits.http.request_timeout_s = 1;
    Served *s = served_start(&o);
    for (size_t n = 0; n < strlen(whole); n += 3) {
        int fd = http_connect(s->port);
        http_write(fd, whole, n);
        close(fd);
    }
    int fds[4];
    for (size_t i = 0; i < 3; i++) {
        fds[i] = http_connect(s->port);
        http_write(fds[i], whole, i * strlen(whole) / 2);
    }
    /* The fourth is idle after a whole one. */
    StrBuf rest = {0};
    HttpReply r;
    fds[3] = http_connect(s->port);
    http_send(fds[3], "POST", COMPLETIONS, "", SHORT);
    assert_int_equal(http_read(fds[3], &rest, 0, &r), 0);
    http_reply_free(&r);
    /* Nothing is to be said to those that have asked for nothing. */
    for (int i = 0; i < 4; i++) {
        if (i == 1 || i == 2) {
            assert_int_equal(http_read(fds[i], &rest, 0, &r), 0);
            assert_int_equal(r.status, 408);
            served_expect_error(&r, "invalid_request_error");
            assert_string_equal(http_header(&r, "Connection"), "close");
            http_reply_free(&r);
        }
        assert_true(http_closed(fds[i], 10000));
        close(fds[i]);
    }
    strbuf_free(&rest);
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Time-outs are for requests: an answer may take longer than that. */
static void test_long_answers_outlive_the_timeouts(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.http.idle_timeout_s = o.limits.http.request_timeout_s = 1;
    Served *s = served_start(&o);
    double took_ms = 0;
    /* Long enough on any machine, and no longer than it takes on this one. */
    for (int n = 60; took_ms < 1500 && n <= 8000; n *= 2) {
        char body[200];
        snprintf(body, sizeof body,
                 "{\"prompt\": \"Hello\", \"ignore_eos\": true, \"max_tokens\": %d, \"n\": 4}", n);
        double start = clock_ms();
        json_decref(served_post(s, COMPLETIONS, body, 200));
        took_ms = clock_ms() - start;
    }
    assert_int_equal(served_stop(s), 0);
}

/* ---- clients that vanish ---- */

/* Reads a bit of a reply. */
static void read_some(int fd)
{
    char buf[512];
    assert_true(recv(fd, buf, sizeof buf, 0) > 0);
}

static void test_vanished_clients(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.max_seqs = 1;
    Served *s = served_start(&o);
    for (int round = 0; round < 3; round++) {
        /* One in the middle of its stream, one that gets a whole reply, some that still wait. */
        int fd[5];
        for (int i = 0; i < 5; i++) {
            fd[i] = http_connect(s->port);
            http_send(fd[i], "POST", COMPLETIONS, "", i % 2 ? ENDLESS : STREAMED);
            if (!i) read_some(fd[0]);
        }
        while (server_n_live(s->server) < 5)
            usleep(1000);
        /* Who only says no more cannot be told from who is gone. */
        for (int i = 0; i < 5 && round == 2; i++)
            shutdown(fd[i], SHUT_WR);
        if (round == 2) served_wait_idle(s);
        for (int i = 0; i < 5; i++)
            close(fd[round ? i : 4 - i]);
        served_wait_idle(s);
    }
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Resets instead of ends, in the middle of a step or wherever it happens to be. */
static void test_resets(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    struct linger reset = {.l_onoff = 1};
    for (int i = 0; i < 30; i++) {
        int fd = http_connect(s->port);
        http_send(fd, "POST", COMPLETIONS, "", i % 3 ? STREAMED : ENDLESS);
        usleep((useconds_t)i * 300);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
    }
    served_wait_idle(s);
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Somebody who asks for much and reads nothing is dropped; the others do not notice. */
static void test_slow_reader_is_dropped(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.http.unsent_bytes = 1000;
    o.limits.http.write_timeout_s = 1;
    Served *s = served_start(&o);
    static const char body[] =
        "{\"logprobs\": 20, \"stream\": true, \"max_tokens\": 8000, \"ignore_eos\": true, "
        "\"n\": 4, \"prompt\": \"Hello\"}";
    int fd = http_connect(s->port), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    http_send(fd, "POST", COMPLETIONS, "", body);
    read_some(fd);
    served_wait_idle(s);
    served_expect_alive(s);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_alive_and_pipelining),
        cmocka_unit_test(test_chunked_and_expected_bodies),
        cmocka_unit_test(test_too_large_or_unclear),
        cmocka_unit_test(test_half_requests),
        cmocka_unit_test(test_long_answers_outlive_the_timeouts),
        cmocka_unit_test(test_vanished_clients),
        cmocka_unit_test(test_resets),
        cmocka_unit_test(test_slow_reader_is_dropped),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
