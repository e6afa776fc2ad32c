/*
 * stub_server.h: a server that is a few lines of a test, for the benches that ask one by HTTP.
 *
 * It listens on a thread of its own and takes one connection at a time.
 */
#ifndef OFFSHOOT_TESTS_STUB_SERVER_H
#define OFFSHOOT_TESTS_STUB_SERVER_H

#include <pthread.h>

#include "base/strbuf.h"

typedef struct {
    char url[64]; /* with its port, no slash behind */
    void (*serve)(void *ctx, int fd);
    void *ctx;
    int fd;
    pthread_t thread;
} StubServer;

/* serve answers what comes on one connection; who calls it closes fd. */
void stub_server_start(StubServer *s, void (*serve)(void *ctx, int fd), void *ctx);
void stub_server_stop(StubServer *s);

/* Reads a connection's next request, head and body, into *in. 0: there is none. */
int stub_server_read(int fd, StrBuf *in);

void stub_server_send(int fd, const char *text);

#endif
