/* stub_server.c: see stub_server.h. */
#include "tests/stub_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void *run(void *arg)
{
    StubServer *s = arg;
    for (int fd; (fd = accept(s->fd, NULL, NULL)) >= 0;) {
        s->serve(s->ctx, fd);
        close(fd);
    }
    return NULL;
}

void stub_server_start(StubServer *s, void (*serve)(void *ctx, int fd), void *ctx)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    *s = (StubServer){.serve = serve, .ctx = ctx};
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->fd >= 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(s->fd, 64), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&at, &n), 0);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, run, s), 0);
}

void stub_server_stop(StubServer *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
}

int stub_server_read(int fd, StrBuf *in)
{
    strbuf_clear(in);
    for (;;) {
        char buf[4096];
        const char *body = strstr(strbuf_str(in), "\r\n\r\n");
        const char *length = strstr(strbuf_str(in), "Content-Length: ");
        if (body && length && strlen(body + 4) >= strtoul(length + 16, NULL, 10)) return 1;
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n <= 0) return 0;
        strbuf_add(in, buf, (size_t)n);
    }
}

void stub_server_send(int fd, const char *text)
{
    send(fd, text, strlen(text), MSG_NOSIGNAL);
}
