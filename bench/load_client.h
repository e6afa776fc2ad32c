/*
 * load_client.h: one connection of the load generator: requests out, replies in, never waiting.
 *
 * Reads replies as our server frames them (a length, or chunks) and is strict: anything else is a
 * failure with a reason, and so is a reply of more than 64 MiB. A connection has one request on its
 * way at a time and is kept for the next one; after a failure, a drop or "Connection: close" the
 * next request opens a new one. Many of them share one event loop and one thread.
 */
#ifndef OFFSHOOT_BENCH_LOAD_CLIENT_H
#define OFFSHOOT_BENCH_LOAD_CLIENT_H

#include <sys/socket.h>

#include <event2/event.h>

#include "base/error.h"
#include "base/strbuf.h"

typedef struct LoadConn LoadConn;

/* Where to; text goes into the Host header. */
typedef struct {
    struct sockaddr_storage address;
    socklen_t n_address;
    char host[128];
    const char *key; /* sent as a bearer's, or NULL */
} LoadTarget;

/* From "http://HOST:PORT", a trailing slash allowed. The key is left alone. */
int load_target_parse(LoadTarget *t, const char *url, Error *err);

typedef struct {
    int status;
    int retry_after_s;  /* 0: the reply does not say */
    const StrBuf *body; /* without chunk framing; until the next request */
} LoadReply;

/* What becomes of a request. Each may call load_conn_send or load_conn_drop. */
typedef struct {
    /* The request is wholly with the kernel. */
    void (*sent)(void *ctx);
    /* n_events events of a stream came, comments aside; reply follows if they were the last. */
    void (*events)(void *ctx, int n_events);
    /*
     * The end: one of these two, unless the connection is dropped before. stale: the connection was
     * kept from an earlier request, and ended before it brought a byte of this one's reply: some
     * servers close without a word, and the request can be sent again.
     */
    void (*reply)(void *ctx, const LoadReply *reply);
    void (*failed)(void *ctx, const char *why, int stale);
} LoadCallbacks;

/* base and target must stay. A connection that is silent for timeout_s has failed. */
LoadConn *load_conn_open(struct event_base *base, const LoadTarget *target, int timeout_s,
                         const LoadCallbacks *callbacks, void *ctx);

/* POSTs a JSON body. */
void load_conn_send(LoadConn *c, const char *path, const char *body, size_t len);

/* Vanishes: closes without waiting for the reply. No callback follows. */
void load_conn_drop(LoadConn *c);

/* Not from a callback. */
void load_conn_close(LoadConn *c);

#endif
