/*
 * echo_server.h: the HTTP layer with a handler that answers what it was asked, on a free port.
 */
#ifndef OFFSHOOT_TESTS_ECHO_SERVER_H
#define OFFSHOOT_TESTS_ECHO_SERVER_H

#include <event2/event.h>
#include <pthread.h>

#include "server/http.h"
#include "tests/http_client.h"

/*
 * /echo: {path, length, body} of the request; /kept: its exchange is left to the test; /big: more
 * than a socket takes at once; .../busy: 503; /quit ends the loop. Who has no x-key is not admitted
 * to anything below /locked.
 */
typedef struct {
    struct event_base *base;
    Http *http;
    pthread_t thread;
    int port;
    Exchange *kept;
    int n_gone, n_behind, n_caught_up;
} Echo;

/* A cmocka group function: log lines only where TEST_LOG is set. */
int echo_quiet(void **state);

HttpLimits echo_limits(void); /* the usual ones */

/* limits NULL: the usual ones. Without a thread the test runs the loop itself. */
void echo_open(Echo *e, const HttpLimits *limits, int with_thread);
void echo_free(Echo *e);

/* A plain request works, and then all is freed. */
void echo_close(Echo *e);

/* Every reply is JSON (of an error: with our four keys) with the headers that each reply has. */
void echo_check(const HttpReply *r, const char *asked);

/* The reply of /big is whole: the socket took a part of it at once, the rest later. */
void echo_check_big(const HttpReply *r);

/* Heads without their end, a request that may follow, and a head before chunks. */
#define GET     "GET /echo HTTP/1.1\r\nHost: x\r\n"
#define POST    "POST /echo HTTP/1.1\r\nHost: x\r\n"
#define NEXT    "GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

#endif
