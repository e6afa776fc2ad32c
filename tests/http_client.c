/* http_client.c: see http_client.h. */
#include "tests/http_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/analyzer.h"

/* Sanitizers take their time. */
#ifdef __SANITIZE_ADDRESS__
enum { PATIENCE_MS = 600000 };
#else
enum { PATIENCE_MS = 60000 };
#endif

int http_connect(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (!connect(fd, (struct sockaddr *)&to, sizeof to)) return fd;
    close(fd);
    return -1;
}

void http_write(int fd, const char *data, size_t len)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t n = send(fd, data + sent, len - sent, MSG_NOSIGNAL);
        if (n <= 0) return; /* the reply will tell why it was not wanted */
        sent += (size_t)n;
    }
}

void http_send(int fd, const char *method, const char *path, const char *headers, const char *body)
{
    StrBuf text = {0};
    strbuf_printf(&text, "%s %s HTTP/1.1\r\nHost: test\r\nContent-Length: %zu\r\n%s\r\n", method,
                  path, strlen(body), headers);
    strbuf_puts(&text, body);
    http_write(fd, text.data, text.len);
    strbuf_free(&text);
}

/* Appends what has come. Bytes read, 0 at the end of the connection. */
static size_t read_more(int fd, StrBuf *in)
{
    char buf[65536];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) != 1) fail_msg("no reply in time after: %.200s", strbuf_str(in));
    ssize_t n = recv(fd, buf, sizeof buf, 0);
    if (n > 0) strbuf_add(in, buf, (size_t)n);
    return n > 0 ? (size_t)n : 0;
}

static void must_read(int fd, StrBuf *in)
{
    if (!read_more(fd, in)) fail_msg("the reply was cut after: %.200s", strbuf_str(in));
}

static void drop_front(StrBuf *sb, size_t n)
{
    memmove(sb->data, sb->data + n, sb->len - n + 1);
    sb->len -= n;
}

/* Offset behind the first mark at or after from; reads until it is there. */
static size_t read_until(int fd, StrBuf *in, size_t from, const char *mark)
{
    for (;;) {
        const char *at = from <= in->len ? strstr(strbuf_str(in) + from, mark) : NULL;
        if (at) return (size_t)(at - in->data) + strlen(mark);
        must_read(fd, in);
    }
}

static void read_chunks(int fd, StrBuf *in, HttpReply *reply)
{
    for (size_t at = 0;;) {
        size_t data = read_until(fd, in, at, "\r\n");
        size_t n = strtoul(in->data + at, NULL, 16);
        while (in->len < data + n + 2)
            must_read(fd, in);
        strbuf_add(&reply->body, in->data + data, n);
        assert_memory_equal(in->data + data + n, "\r\n", 2);
        at = data + n + 2;
        if (n) continue;
        drop_front(in, at);
        return;
    }
}

int http_read(int fd, StrBuf *rest, int no_body, HttpReply *reply)
{
    *reply = (HttpReply){0};
    if (!rest->len && !read_more(fd, rest)) return -1;
    size_t n_head = read_until(fd, rest, 0, "\r\n\r\n");
    strbuf_add(&reply->head, rest->data, n_head);
    drop_front(rest, n_head);
    if (sscanf(reply->head.data, "HTTP/1.%*[01] %d ", &reply->status) != 1)
        fail_msg("no status line: %.100s", reply->head.data);

    const char *coding = http_header(reply, "Transfer-Encoding");
    reply->chunked = coding != NULL;
    if (no_body || reply->status == 204 || reply->status == 100) return 0;
    if (coding) {
        read_chunks(fd, rest, reply);
        return 0;
    }
    const char *length = http_header(reply, "Content-Length");
    if (!length) fail_msg("no length: %s", reply->head.data);
    size_t n = strtoul(length, NULL, 10);
    while (rest->len < n)
        must_read(fd, rest);
    strbuf_add(&reply->body, strbuf_str(rest), n);
    if (n) drop_front(rest, n);
    return 0;
}

void http_reply_free(HttpReply *reply)
{
    strbuf_free(&reply->head);
    strbuf_free(&reply->body);
}

const char *http_header(const HttpReply *reply, const char *name)
{
    static _Thread_local char value[256];
    const char *line = reply->head.data;
    size_t n = strlen(name);
    while ((line = strstr(line, "\r\n")) != NULL) {
        line += 2;
        if (strncasecmp(line, name, n) != 0 || line[n] != ':') continue;
        snprintf(value, sizeof value, "%.*s", (int)strcspn(line + n + 2, "\r"), line + n + 2);
        return value;
    }
    return NULL;
}

HttpReply http_exchange(int port, const char *method, const char *path, const char *headers,
                        const char *body)
{
    HttpReply reply;
    StrBuf rest = {0};
    int fd = http_connect(port);
    assert_true(fd >= 0);
    http_send(fd, method, path, headers, body);
    if (http_read(fd, &rest, !strcmp(method, "HEAD"), &reply)) fail_msg("%s: no reply", path);
    if (rest.len) fail_msg("%s: after the reply came: %s", path, rest.data);
    strbuf_free(&rest);
    close(fd);
    return reply;
}

int http_readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

int http_closed(int fd, int ms)
{
    char c;
    return http_readable(fd, ms) && recv(fd, &c, 1, 0) <= 0;
}

json_t *http_events(const HttpReply *reply)
{
    json_t *events = json_array();
    const char *at = strbuf_str(&reply->body);
    int done = 0;
    if (strchr(at, '\r')) fail_msg("a \\r in the stream");
    while (*at) {
        static const char comment[] = ": keep-alive\n\n"; /* on a machine that is slow today */
        if (!strncmp(at, comment, sizeof comment - 1)) {
            at += sizeof comment - 1;
            continue;
        }
        const char *end = strstr(at, "\n\n");
        if (done || !end || strncmp(at, "data: ", 6) != 0) fail_msg("bad event: %.200s", at);
        at += 6;
        done = !strncmp(at, "[DONE]", 6) && end == at + 6;
        json_t *event = done ? NULL : json_loadb(at, (size_t)(end - at), 0, NULL);
        if (!done && !event) fail_msg("no JSON: %.200s", at);
        if (event) json_array_append_new(events, event);
        at = end + 2;
    }
    if (!done) fail_msg("no [DONE]: %s", strbuf_str(&reply->body));
    return events;
}

json_t *http_named_events(const HttpReply *reply)
{
    json_t *events = json_array();
    const char *at = strbuf_str(&reply->body);
    if (strchr(at, '\r')) fail_msg("a \\r in the stream");
    while (*at) {
        char name[64];
        int n = 0;
        const char *end = strstr(at, "\n\n");
        if (end && *at == ':') { /* a comment */
            at = end + 2;
            continue;
        }
        if (!end || sscanf(at, "event: %63[a-z_.]\ndata: %n", name, &n) != 1 || !n)
            fail_msg("bad event: %.200s", at);
        at += n;
        json_t *event = json_loadb(at, (size_t)(end - at), 0, NULL);
        if (!event) fail_msg("no JSON: %.200s", at);
        assert_string_equal(json_string_value(json_object_get(event, "type")), name);
        json_array_append_new(events, event);
        at = end + 2;
    }
    return events;
}
