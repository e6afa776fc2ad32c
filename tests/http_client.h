/*
 * http_client.h: a client of plain sockets, for tests that want to see (and break) every byte.
 *
 * Everything has a time-out of 60 s; a reply that is malformed or late fails the test.
 */
#ifndef OFFSHOOT_TESTS_HTTP_CLIENT_H
#define OFFSHOOT_TESTS_HTTP_CLIENT_H

#include <jansson.h>

#include "base/strbuf.h"

typedef struct {
    int status;
    StrBuf head; /* status line and headers */
    StrBuf body; /* without chunk framing */
    int chunked;
} HttpReply;

/* A connection to 127.0.0.1, or -1 when it is refused. */
int http_connect(int port);
void http_write(int fd, const char *data, size_t len);

/* method and path, extra headers ("" or "Name: value\r\n"), and a body with its length. */
void http_send(int fd, const char *method, const char *path, const char *headers, const char *body);

/*
 * Reads one reply; bytes that came after it stay in *rest (zero-initialised by the caller, kept
 * between the replies of one connection). no_body: the reply to HEAD. -1 when the connection ends
 * before the reply's first byte.
 */
int http_read(int fd, StrBuf *rest, int no_body, HttpReply *reply);
void http_reply_free(HttpReply *reply);

/* Value of a header in a buffer of the calling thread, NULL when it is absent. */
const char *http_header(const HttpReply *reply, const char *name);

/* A whole exchange on a connection of its own. */
HttpReply http_exchange(int port, const char *method, const char *path, const char *headers,
                        const char *body);

/* 1 when there is something to read (or the end) within ms milliseconds. */
int http_readable(int fd, int ms);

/* 1 when the other side has closed, after at most ms milliseconds. */
int http_closed(int fd, int ms);

/*
 * The events of an event stream's body as a JSON array, comments and "[DONE]" left out; fails when
 * the framing is not exactly "data: ...\n\n" or [DONE] is not the last one.
 */
json_t *http_events(const HttpReply *reply);

/*
 * The same for "event: type\ndata: ...\n\n", each with its type within too and none of them [DONE].
 */
json_t *http_named_events(const HttpReply *reply);

#endif
