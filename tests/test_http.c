/*
 * test_http.c: the HTTP layer alone, with a handler that answers what it was asked: heads and
 * bodies in every shape and in no hurry, and their limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/chunked.h"
#include "server/request_head.h"
#include "tests/analyzer.h"
#include "tests/echo_server.h"

/* ---- raw bytes in, replies out ---- */

/*
 * Sends data in pieces of n bytes, reads count replies and leaves their statuses in *status; 0: the
 * connection was closed instead.
 */
static void ask(const Echo *e, const char *data, size_t len, size_t n, int *status, int count)
{
    int fd = http_connect(e->port);
    StrBuf rest = {0};
    for (size_t at = 0; at < len; at += n) {
        http_write(fd, data + at, len - at < n ? len - at : n);
        if (n < len) usleep(200);
    }
    for (int i = 0; i < count; i++) {
        HttpReply r = {0};
        status[i] = http_read(fd, &rest, 0, &r) ? 0 : r.status;
        if (status[i]) echo_check(&r, data);
        http_reply_free(&r);
        if (!status[i]) break;
    }
    strbuf_free(&rest);
    close(fd);
}

typedef struct {
    const char *data;
    size_t len; /* 0: to its NUL */
    int first, second;
} Row;

/* What is said to be one request is one for us too, and then comes the next; or it is refused. */
static const Row rows[] = {
    {GET "\r\n" NEXT, 0, 200, 200},
    {"\r\n\r\n" GET "\r\n" NEXT, 0, 200, 200},
    {"OPTIONS * HTTP/1.1\r\n\r\n" NEXT, 0, 200, 200},
    {"GET http://other/echo HTTP/1.1\r\nHost: x\r\n\r\n" NEXT, 0, 200, 200},
    {"CONNECT other:443 HTTP/1.1\r\nHost: x\r\n\r\n" NEXT, 0, 200, 200},
    {"BREW /pot HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}" NEXT, 0, 200, 200},
    {"GET /echo?q=%zz%00%ff HTTP/1.1\r\n\r\n" NEXT, 0, 200, 200},
    {"GET /%zz%ff%2f%00x HTTP/1.1\r\n\r\n" NEXT, 0, 200, 200},
    {"GET /%c3%a9\xc3\xa9\xff HTTP/1.1\r\n\r\n" NEXT, 0, 200, 200},
    /* HTTP/1.0 says when it wants to go on. */
    {"GET /echo HTTP/1.0\r\n\r\n" NEXT, 0, 200, 0},
    {"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" NEXT, 0, 200, 200},
    {GET "Connection: close\r\n\r\n" NEXT, 0, 200, 0},
    {GET "Connection: keep-alive ,\tClose\r\n\r\n" NEXT, 0, 200, 0},
    {GET "Connection: TE\r\nConnection: close\r\n\r\n" NEXT, 0, 200, 0},
    {GET "Connection: TE, closed\r\n\r\n" NEXT, 0, 200, 200},
    /* Bodies, also where one does not belong. */
    {POST "Content-Length: 4\r\n\r\nGET " NEXT, 0, 200, 200},
    {GET "Content-Length: 4\r\n\r\nGET " NEXT, 0, 200, 200},
    {POST "Content-Length: 4\r\nContent-Length: 4\r\n\r\nGET " NEXT, 0, 200, 200},
    {POST "content-length:4\r\n\r\nGET " NEXT, 0, 200, 200},
    {POST "Content-Length: 0\r\n\r\n" NEXT, 0, 200, 200},
    {CHUNKED "4\r\nGET \r\n0\r\n\r\n" NEXT, 0, 200, 200},
    {CHUNKED "0004;x=\"y\"\r\nGET \r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n" NEXT, 0, 200, 200},
    {CHUNKED "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n" NEXT, 0, 200, 200},
    {GET "Transfer-Encoding: Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n" NEXT, 0, 200, 200},
    /* Two opinions about a body's length, or none. */
    {POST "Content-Length: 4\r\nContent-Length: 5\r\n\r\nGET  " NEXT, 0, 400, 0},
    {POST "Content-Length: 4, 4\r\n\r\nGET " NEXT, 0, 400, 0},
    {POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT, 0, 400, 0},
    {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 400, 0},
    {POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" NEXT, 0, 400, 0},
    {POST "Transfer-Encoding: identity\r\n\r\n" NEXT, 0, 400, 0},
    {POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" NEXT, 0, 400, 0},
    {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT, 0, 400, 0},
    {POST "Content-Length: -4\r\n\r\nGET " NEXT, 0, 400, 0},
    {POST "Content-Length: +4\r\n\r\nGET " NEXT, 0, 400, 0},
    {POST "Content-Length: 0x4\r\n\r\nGET " NEXT, 0, 400, 0},
    {POST "Content-Length:\r\n\r\n" NEXT, 0, 400, 0},
    {POST "Content-Length: 4 4\r\n\r\nGET " NEXT, 0, 400, 0},
    {POST "Content-Length: 99999999999999999999\r\n\r\n", 0, 413, 0},
    {POST "Content-Length: 18446744073709551616\r\n\r\n", 0, 413, 0},
    {POST "Content-Length: 100001\r\n\r\n", 0, 413, 0},
    /* Chunks. */
    {CHUNKED "186a1\r\n", 0, 413, 0},
    {CHUNKED "1\r\nx\r\n186a0\r\n", 0, 413, 0},
    {CHUNKED "fffffffffffffff\r\n", 0, 413, 0},
    {CHUNKED "ffffffffffffffff\r\n", 0, 400, 0},
    {CHUNKED "-1\r\n", 0, 400, 0},
    {CHUNKED "0x1\r\nx\r\n", 0, 400, 0},
    {CHUNKED "g\r\n", 0, 400, 0},
    {CHUNKED "\r\n", 0, 400, 0},
    {CHUNKED "1\nx\n0\n\n", 0, 400, 0},
    {CHUNKED "1\r\nxy\r\n", 0, 400, 0},
    {CHUNKED "1\r\nx\n0\r\n\r\n", 0, 400, 0},
    {CHUNKED "1\r;\r\nx\r\n0\r\n\r\n", 0, 400, 0},
    {CHUNKED "1;\r;\r\nx\r\n0\r\n\r\n", 0, 400, 0},
    {CHUNKED "1\r\nxAB0\r\n\r\n" NEXT, 0, 400, 0},
    /* Lines that another parser might read otherwise. */
    {"GET /echo HTTP/1.1\nHost: x\n\n", 0, 400, 0},
    {GET "X: a\nContent-Length: 4\r\n\r\nGET " NEXT, 0, 400, 0},
    {GET "X: a\rContent-Length: 4\r\n\r\nGET " NEXT, 0, 400, 0},
    {GET "X: a\r\n Content-Length: 4\r\n\r\nGET " NEXT, 0, 400, 0},
    {GET "Content-Length : 4\r\n\r\nGET " NEXT, 0, 400, 0},
    {GET " Content-Length: 4\r\n\r\nGET " NEXT, 0, 400, 0},
    {GET "\tX: 4\r\n\r\n", 0, 400, 0},
    {GET ": 4\r\n\r\n", 0, 400, 0},
    {GET "no colon\r\n\r\n", 0, 400, 0},
    {GET "X\x80: 4\r\n\r\n", 0, 400, 0},
    {GET "X: a\0b\r\n\r\n", sizeof(GET "X: a\0b\r\n\r\n") - 1, 400, 0},
    {"GET /ec\0ho HTTP/1.1\r\n\r\n", 24, 400, 0},
    {GET "X: \x01\r\n\r\n", 0, 400, 0},
    {GET "X: \x7f\r\n\r\n", 0, 400, 0},
    /* No request at all. */
    {"GET /echo\r\n\r\n", 0, 400, 0},
    {"GET /echo HTTP/0.9\r\n\r\n", 0, 400, 0},
    {"GET /echo HTTP/2.0\r\n\r\n", 0, 400, 0},
    {"GET /echo HTTP/1.10\r\n\r\n", 0, 400, 0},
    {"GET /echo http/1.1\r\n\r\n", 0, 400, 0},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 400, 0},
    {"HTTP/1.1\r\n\r\n", 0, 400, 0},
    {" HTTP/1.1\r\n\r\n", 0, 400, 0},
    {"GET HTTP/1.1\r\n\r\n", 0, 400, 0},
    {"GET //[::1 HTTP/1.1\r\n\r\n", 0, 400, 0},
    {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11, 400, 0},
    {"{\"prompt\": 1}\r\n", 0, 400, 0},
};

static void test_requests(void **state)
{
    (void)state;
    HttpLimits limits = echo_limits();
    limits.body_bytes = 100000;
    Echo e;
    echo_open(&e, &limits, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const Row *row = &rows[i];
        size_t len = row->len ? row->len : strlen(row->data);
        /* At once, and with its bytes in small pieces. */
        for (int pass = 0; pass < 2; pass++) {
            int status[2] = {0};
            ask(&e, row->data, len, pass ? 3 : len, status, 2);
            if (status[0] != row->first || status[1] != row->second)
                fail_msg("row %zu, pass %d: %d %d: %s", i, pass, status[0], status[1], row->data);
        }
    }
    echo_close(&e);
}

static json_t *body_of(const HttpReply *r)
{
    json_t *json = json_loadb(strbuf_str(&r->body), r->body.len, 0, NULL);
    if (!json) fail_msg("no JSON: %s", strbuf_str(&r->body));
    return json;
}

/* The body that was meant, whatever it came in. */
static void test_bodies(void **state)
{
    (void)state;
    static const char *const data[] = {
        POST "Content-Length: 11\r\n\r\nhello world",
        CHUNKED "5\r\nhello\r\n1;a\r\n \r\n5\r\nworld\r\n0\r\n\r\n",
        "DELETE /echo/ HTTP/1.1\r\nContent-Length: 11\r\n\r\nhello world",
        "TRACE /echo?x=%2f HTTP/1.1\r\nContent-Length: 11\r\n\r\nhello world",
    };
    Echo e;
    echo_open(&e, NULL, 1);
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        int fd = http_connect(e.port);
        StrBuf rest = {0};
        HttpReply r;
        http_write(fd, data[i], strlen(data[i]));
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        json_t *json = body_of(&r);
        assert_string_equal(json_string_value(json_object_get(json, "path")), "/echo");
        assert_string_equal(json_string_value(json_object_get(json, "body")), "hello world");
        json_decref(json);
        http_reply_free(&r);
        /* HEAD with a body: the body is no request. */
        http_send(fd, "HEAD", "/echo", "", "GET /x HTTP/1.1\r\n\r\n");
        http_send(fd, "GET", "/after", "", "");
        assert_int_equal(http_read(fd, &rest, 1, &r), 0);
        assert_true(strtol(http_header(&r, "Content-Length"), NULL, 10) > 0);
        http_reply_free(&r);
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_non_null(strstr(r.body.data, "/after"));
        http_reply_free(&r);
        strbuf_free(&rest);
        close(fd);
    }
    echo_close(&e);
}

/*
 * What a path is: decoded, without query, last slash and all but one of the first ones, which begin
 * no host here; one with a NUL passes for no other.
 */
static void test_paths(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"/", "/"},           {"/echo/", "/echo"},         {"/echo?a=/b/", "/echo"},
        {"/e%63ho", "/echo"}, {"/a%2fb", "/a/b"},          {"/echo%00", ""},
        {"/echo%00x", ""},    {"/echo%", "/echo%"},        {"/echo%4", "/echo%4"},
        {"/%zz", "/%zz"},     {"/\xff", "/\xef\xbf\xbd"},  {"/..%2f../echo", "/../../echo"},
        {"*", "*"},           {"/a+b%20c", "/a+b c"},      {"//v1/echo", "/v1/echo"},
        {"//", "/"},          {"//a@b:8/?c#d", "/a@b:8"},  {"///echo?a=//b", "/echo"},
        {"//echo", "/echo"},  {"http://a//echo", "/echo"},
    };
    Echo e;
    echo_open(&e, NULL, 1);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        HttpReply r = http_exchange(e.port, "GET", pairs[i][0], "", "");
        json_t *json = body_of(&r);
        assert_string_equal(json_string_value(json_object_get(json, "path")), pairs[i][1]);
        json_decref(json);
        http_reply_free(&r);
    }
    echo_close(&e);
}

/* Both kinds of error object; Anthropic's clients know 529 for this. */
static void test_errors_by_path(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
        int status;
    } cases[] = {
        {"/v1/busy",
         "{\"error\":{\"message\":\"come again\",\"type\":\"overloaded_error\",\"param\":null,"
         "\"code\":\"loading\"}}",
         503},
        {"/v1/messages/busy",
         "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"come again\"},"
         "\"request_id\":\"abc\"}",
         529},
        {"/v1/messagesx/busy", NULL, 503},
    };
    Echo e;
    echo_open(&e, NULL, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        HttpReply r = http_exchange(e.port, "POST", cases[i].path, "X-Request-Id: abc\r\n", "");
        assert_int_equal(r.status, cases[i].status);
        if (cases[i].body) assert_string_equal(r.body.data, cases[i].body);
        assert_string_equal(http_header(&r, "Retry-After"), "5");
        assert_string_equal(http_header(&r, "X-Request-Id"), "abc");
        const char *id = http_header(&r, "request-id"); /* asked for here alone */
        assert_string_equal(id ? id : "none", r.status == 529 ? "abc" : "none");
        http_reply_free(&r);
    }
    echo_close(&e);
}

/* ---- limits ---- */

static void add_times(StrBuf *sb, const char *text, size_t n)
{
    while (n--)
        strbuf_puts(sb, text);
}

static int status_of(const Echo *e, const StrBuf *request)
{
    int status = 0;
    ask(e, request->data, request->len, request->len, &status, 1);
    return status;
}

static void test_limits_of_the_head(void **state)
{
    (void)state;
    enum { LINE = 8 << 10, HEADERS = 32 << 10 };
    Echo e;
    echo_open(&e, NULL, 1);
    for (int over = 0; over < 2; over++) {
        StrBuf line = {0}, headers = {0};
        strbuf_puts(&line, "GET /");
        add_times(&line, "a", LINE - strlen("GET / HTTP/1.1") + (size_t)over);
        strbuf_puts(&line, " HTTP/1.1\r\n\r\n");
        assert_int_equal(status_of(&e, &line), over ? 414 : 200);

        strbuf_puts(&headers, "GET /"); /* the line before them does not count */
        add_times(&headers, "a", LINE / 2);
        strbuf_puts(&headers, " HTTP/1.1\r\n");
        add_times(&headers, "X-A: 0123456789\r\n", HEADERS / 17 - 2);
        add_times(&headers, "Y-B: 0123456789\r\n", (size_t)over * 3);
        strbuf_puts(&headers, "\r\n");
        assert_int_equal(status_of(&e, &headers), over ? 431 : 200);
        strbuf_free(&line);
        strbuf_free(&headers);
    }
    /* Neither has to end before it is refused. */
    StrBuf endless = {0};
    add_times(&endless, "a", LINE + 10);
    assert_int_equal(status_of(&e, &endless), 414);
    strbuf_clear(&endless);
    strbuf_puts(&endless, GET "X: ");
    add_times(&endless, "a", HEADERS + 10);
    assert_int_equal(status_of(&e, &endless), 431);
    strbuf_free(&endless);
    echo_close(&e);
}

/* A refusal arrives although the client is still sending what is not wanted. */
static void test_too_large_while_sending(void **state)
{
    (void)state;
    HttpLimits limits = echo_limits();
    limits.body_bytes = 1 << 20;
    Echo e;
    echo_open(&e, &limits, 1);
    static const char *const heads[] = {POST "Content-Length: 8000000\r\n\r\n", CHUNKED};
    for (int i = 0; i < 2; i++) {
        int fd = http_connect(e.port);
        StrBuf rest = {0}, piece = {0};
        HttpReply r;
        char head[10];
        if (i) strbuf_puts(&piece, "2710\r\n");
        add_times(&piece, "0123456789", 1000);
        if (i) strbuf_puts(&piece, "\r\n");
        http_write(fd, heads[i], strlen(heads[i]));
        for (int n = 0; n < 400; n++) /* all of it is taken: a reset could outrun the reply */
            assert_int_equal(send(fd, piece.data, piece.len, MSG_NOSIGNAL), piece.len);
        assert_int_equal(http_read(fd, &rest, 0, &r), 0);
        assert_int_equal(r.status, 413);
        echo_check(&r, heads[i]);
        assert_non_null(strstr(r.body.data, "request_too_large"));
        assert_string_equal(http_header(&r, "Connection"), "close");
        assert_int_equal(recv(fd, head, sizeof head, 0), 0); /* an end, no reset */
        http_reply_free(&r);
        strbuf_free(&rest);
        strbuf_free(&piece);
        close(fd);
    }
    echo_close(&e);
}

/* Who asks whether to send a body hears no before sending it, or 100. */
static void test_expect(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        int status;
    } cases[] = {
        {POST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", 100},
        {POST "Expect: 100-Continue\r\nTransfer-Encoding: chunked\r\n\r\n", 100},
        {POST "Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", 413},
        {"POST /locked HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 401},
        {"POST /locked HTTP/1.1\r\nx-key: 1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
         100},
        /* Not asked, but it would be much for nothing. */
        {"POST /locked HTTP/1.1\r\nContent-Length: 500000\r\n\r\n", 401},
        {"POST /locked HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 401},
    };
    Echo e;
    echo_open(&e, NULL, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = http_connect(e.port), go_on = cases[i].status == 100;
        const char *body = strstr(cases[i].head, "chunked") ? "5\r\nhello\r\n0\r\n\r\n" : "hello";
        StrBuf rest = {0};
        HttpReply r;
        http_write(fd, cases[i].head, strlen(cases[i].head));
        assert_int_equal(http_read(fd, &rest, go_on, &r), 0);
        assert_int_equal(r.status, cases[i].status);
        if (!go_on) assert_string_equal(http_header(&r, "Connection"), "close");
        http_reply_free(&r);
        for (int again = 0; again < 2 && go_on; again++) {
            http_write(fd, body, strlen(body));
            assert_int_equal(http_read(fd, &rest, 0, &r), 0);
            assert_int_equal(r.status, 200);
            assert_non_null(strstr(r.body.data, "\"hello\""));
            http_reply_free(&r);
            if (again) break;
            http_write(fd, cases[i].head, strlen(cases[i].head));
            assert_int_equal(http_read(fd, &rest, 1, &r), 0);
            assert_int_equal(r.status, 100);
            http_reply_free(&r);
        }
        strbuf_free(&rest);
        close(fd);
    }
    /* A small body that came anyway costs no connection, and no 100 is sent to who did not ask. */
    int status[2] = {0};
    static const char small[] = "POST /locked HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello" NEXT;
    ask(&e, small, strlen(small), 20, status, 2);
    assert_int_equal(status[0], 401);
    assert_int_equal(status[1], 200);
    static const char impatient[] =
        POST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello" NEXT;
    ask(&e, impatient, strlen(impatient), strlen(impatient), status, 2);
    assert_int_equal(status[0], 200);
    assert_int_equal(status[1], 200);
    static const char odd[] = POST "Expect: miracles\r\nContent-Length: 5\r\n\r\nhello" NEXT;
    ask(&e, odd, strlen(odd), strlen(odd), status, 2);
    assert_int_equal(status[0], 200);
    assert_int_equal(status[1], 200);
    echo_close(&e);
}

/* ---- the pure parts ---- */

static void test_head_scan_at_every_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t len = rows[i].len ? rows[i].len : strlen(rows[i].data);
        HeadScan whole = {0};
        HeadResult result = head_scan(&whole, rows[i].data, len, 8192, 32768);
        for (size_t n = 1; n < len; n++) {
            HeadScan scan = {0};
            HeadResult r = head_scan(&scan, rows[i].data, n, 8192, 32768);
            if (r == HEAD_MORE) r = head_scan(&scan, rows[i].data, len, 8192, 32768);
            assert_int_equal(r, result);
            assert_int_equal(scan.n_seen, whole.n_seen);
        }
    }
}

static void test_chunks_at_every_split(void **state)
{
    (void)state;
    static const char body[] = "3\r\nabc\r\n0A;x\r\n0123456789\r\n1\r\nz\r\n0\r\nT: 1\r\n\r\nrest";
    for (size_t n = 0; n < sizeof body; n++) {
        struct evbuffer *in = evbuffer_new(), *out = evbuffer_new();
        ChunkedReader r = {0};
        evbuffer_add(in, body, n);
        ChunkedResult result = chunked_read(&r, in, out, 14);
        assert_int_equal(result, n + 5 < sizeof body ? CHUNKED_MORE : CHUNKED_WHOLE);
        evbuffer_add(in, body + n, sizeof body - 1 - n);
        if (result == CHUNKED_MORE) assert_int_equal(chunked_read(&r, in, out, 14), CHUNKED_WHOLE);
        assert_int_equal(evbuffer_get_length(out), 14);
        assert_memory_equal(evbuffer_pullup(out, -1), "abc0123456789z", 14);
        assert_int_equal(evbuffer_get_length(in), 4);
        evbuffer_free(in);
        evbuffer_free(out);
    }
}

/* What comes behind the last chunk is read over, up to 16 KiB of it. */
static void test_trailers_end(void **state)
{
    (void)state;
    for (int n_lines = 4; n_lines <= 5; n_lines++) {
        struct evbuffer *in = evbuffer_new(), *out = evbuffer_new();
        ChunkedReader r = {0};
        evbuffer_add_printf(in, "0\r\n");
        for (int i = 0; i < n_lines; i++)
            evbuffer_add_printf(in, "T: %04000d\r\n", 0);
        evbuffer_add_printf(in, "\r\n");
        assert_int_equal(chunked_read(&r, in, out, 14), n_lines < 5 ? CHUNKED_WHOLE : CHUNKED_BAD);
        evbuffer_free(in);
        evbuffer_free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_errors_by_path),
        cmocka_unit_test(test_limits_of_the_head),
        cmocka_unit_test(test_too_large_while_sending),
        cmocka_unit_test(test_expect),
        cmocka_unit_test(test_head_scan_at_every_split),
        cmocka_unit_test(test_chunks_at_every_split),
        cmocka_unit_test(test_trailers_end),
    };
    return cmocka_run_group_tests(tests, echo_quiet, NULL);
}
