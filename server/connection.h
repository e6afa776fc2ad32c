/*
 * connection.h: one client's connection, between the socket and evhttp; a part of http.c.
 *
 * A connection is in one phase at a time, and the phase alone says what its next byte means, which
 * clock runs, and what its end means:
 *
 *     HEAD     between two requests, or in a head    idle_timeout_s, then request_timeout_s
 *     BODY     the exchange is there, its body not   request_timeout_s, from the first byte on
 *     ANSWER   the handler has it                    write_timeout_s while there is some to send
 *     REFUSED  our last words are on their way       write_timeout_s
 *     LINGER   said; what still comes is dropped     LINGER_S
 *
 * One request is answered at a time: what comes after it waits in the socket.
 */
#ifndef OFFSHOOT_SERVER_CONNECTION_H
#define OFFSHOOT_SERVER_CONNECTION_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>

#include "server/chunked.h"
#include "server/http.h"
#include "server/request_head.h"

typedef struct Connection Connection;

struct Http {
    struct evhttp *evhttp;
    struct evhttp_bound_socket *bound;   /* NULL: it does not listen */
    struct evhttp_bound_socket *stopped; /* what it listened at, until that is closed */
    int port;
    HttpLimits limits;
    HttpHandler handler;
    void (*idle)(void *ctx);
    void (*ended)(void *ctx, const char *route, int status);
    int n_open;
    size_t n_body_bytes, n_reply_bytes; /* of all exchanges */
    Connection *connections;
    int n_connections;
    Connection *reading; /* whose head evhttp is being given */
};

enum { MAX_REQUEST_ID = 128 };

struct Exchange {
    Http *http;
    Connection *connection;
    struct evhttp_request *req;
    void (*gone)(void *owner);
    void (*flow)(void *owner, int behind);
    void *owner;
    char *path;
    char id[MAX_REQUEST_ID + 1];
    const char *route;
    int status;           /* of the reply; 0: none yet */
    int admitted;         /* the handler's admit said yes */
    int handed;           /* the handler has it */
    int unread;           /* its body was not read: the connection ends with the reply */
    int sending;          /* evhttp has some of the reply */
    int ended;            /* the whole reply was handed to evhttp */
    size_t n_body_bytes;  /* received and not forgotten */
    size_t n_reply_bytes; /* of a large whole reply */
    size_t largest;       /* piece of its stream */
    int behind;           /* the reader is, and flow was told */
    int dropped;          /* the reader was too slow: what is still sent goes nowhere */
};

typedef enum { PHASE_NEW, PHASE_HEAD, PHASE_BODY, PHASE_ANSWER, PHASE_REFUSED, PHASE_LINGER } Phase;

struct Connection {
    Http *http;
    struct bufferevent *bev;
    struct event *timer;
    bufferevent_data_cb evhttp_read, evhttp_write;
    bufferevent_event_cb evhttp_event;
    void *evhttp_arg;
    Phase phase;
    struct evbuffer *in; /* received and not yet used */
    HeadScan scan;
    BodyFraming framing;
    ChunkedReader chunks;
    Exchange *ex;
    int *gone; /* set to 1 when it is freed; or NULL */
    Connection *prev, *next;
};

/* For evhttp_set_bevcb: evhttp is about to serve a new connection. */
struct bufferevent *connection_new(struct event_base *base, void *http);

/* evhttp has read a head, for the connection that gave it to it: makes the exchange. */
void connection_request(struct evhttp_request *req, void *http);

/* Takes the callbacks back; after everything that evhttp was given to send. */
void connection_own(Connection *c);

/*
 * Writes what the socket takes of the output now: libevent would first ask epoll whether it takes
 * anything, three system calls for a reply. What is left waits in the output for epoll's word.
 */
void connection_write_now(Connection *c);

/* For those that end a reply that may be wholly written already: c may be freed by this. */
void connection_end_stream(Connection *c);

/* Frees what evhttp does not know of; after evhttp_free. */
void connection_free_all(Http *http);

/* In http.c: counts what the body of an exchange takes now. */
void exchange_count_body(Exchange *ex);

/* In http.c: fills in what is known of an exchange once its head is; frees it. */
void exchange_begin(Exchange *ex);
void exchange_free(Exchange *ex);

/* In http.c: a whole reply with an error, for what never became an exchange. */
void http_write_refusal(struct evbuffer *out, int status, const char *message);

#endif
