/*
 * http.h: requests in, replies out: a thin layer over libevent's evhttp.
 *
 * An Exchange is one request and its reply. It is handed to the handler and lives until its reply
 * was sent or the client is gone, whichever comes first; who works on an answer asks to be told of
 * the latter (exchange_watch). After a function that ends the reply, the exchange is not ours any
 * more. All of this runs on the server's thread.
 */
#ifndef OFFSHOOT_SERVER_HTTP_H
#define OFFSHOOT_SERVER_HTTP_H

#include <event2/event.h>
#include <jansson.h>
#include <stddef.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "server/limits.h"

typedef struct Http Http;
typedef struct Exchange Exchange;

typedef enum {
    METHOD_OTHER = 0,
    METHOD_GET = 1,
    METHOD_HEAD = 2,
    METHOD_POST = 4,
    METHOD_OPTIONS = 8
} Method;

typedef struct {
    /*
     * Asked once for each request: before its body is read if that is large or if the client waits
     * to be told to send it (Expect), else after. 1: go on to handle; 0: it has replied.
     */
    int (*admit)(void *ctx, Exchange *ex);
    /* Has the body. Must reply or keep the exchange for later. */
    void (*handle)(void *ctx, Exchange *ex);
    void *ctx;
} HttpHandler;

/*
 * Where the system lets us open fewer files (ulimit -n) than we would serve connections, we serve
 * fewer: accepting what cannot be served makes a busy loop. -1: not even one. To be asked first,
 * for libevent ends the process where it finds no file for itself.
 */
int http_fit_files(HttpLimits *limits, Error *err);

/* Nobody can connect before one of the next two. */
Http *http_open(struct event_base *base, const HttpLimits *limits, const HttpHandler *handler,
                Error *err);

/* Listens; port 0 takes a free one. */
int http_listen(Http *http, const char *host, int port, Error *err);
/* Takes a socket that listens, which is its own from then on; -1: it is still the caller's. */
int http_adopt(Http *http, int fd);
/* -1: it does not listen. */
int http_listener(const Http *http);
int http_port(const Http *http);

/*
 * Accepts no more connections; those that there are go on. The socket is closed by the second, in a
 * later turn of the loop where it is open elsewhere, too (handover.h).
 */
void http_stop_listening(Http *http);
void http_close_listener(Http *http);

/* Exchanges that the handler has and whose reply is not wholly sent yet. */
int http_n_open(const Http *http);

int http_n_connections(const Http *http);

/* Calls idle(ctx) whenever the last open exchange ends. */
void http_set_idle(Http *http, void (*idle)(void *ctx));

/*
 * Calls ended(ctx, route, status) at the end of each exchange: status is what was sent, or 499 when
 * the client went before the whole reply was made. route: as exchange_set_route said, or "other".
 */
void http_set_ended(Http *http, void (*ended)(void *ctx, const char *route, int status));

/* Drops all connections; watchers are told. */
void http_close(Http *http);

/* The request. Strings and body live as long as the exchange. */
Method exchange_method(const Exchange *ex);
const char *exchange_path(const Exchange *ex); /* no query, no trailing slash, %xx decoded */
const char *exchange_header(const Exchange *ex, const char *name); /* NULL when absent */
const char *exchange_id(const Exchange *ex); /* the client's X-Request-Id, or ours */
const char *exchange_body(Exchange *ex, size_t *len);

/* Another id that the client has given, or NULL: it counts if it is fit and the header's is not. */
void exchange_offer_id(Exchange *ex, const char *id);

/* The body is not needed any more; its memory goes. */
void exchange_forget_body(Exchange *ex);

/* Under which name the exchange is counted; a string that stays. */
void exchange_set_route(Exchange *ex, const char *route);

/* Bytes of the reply that the client has not taken. */
size_t exchange_unsent(const Exchange *ex);

/* From now on, gone(owner) is called if the client vanishes; the exchange ends with that call. */
void exchange_watch(Exchange *ex, void (*gone)(void *owner), void *owner);

/*
 * flow(owner, 1) when the reader of a stream is more than unsent_bytes (and one piece) behind: stop
 * making more. flow(owner, 0) when it has caught up to half of it. Comes from within
 * exchange_stream_send too, and may itself neither send nor end. Beyond HARD_LIMIT times
 * unsent_bytes the connection is dropped, and so it is at once for an exchange that nobody watches.
 * Owner as in exchange_watch.
 */
enum { HARD_LIMIT = 4 };
void exchange_watch_flow(Exchange *ex, void (*flow)(void *owner, int behind));

/* Ends the connection of a reader that is too slow; gone is called soon. */
void exchange_drop(Exchange *ex);

void exchange_add_header(Exchange *ex, const char *name, const char *value);

/*
 * Each of these sends a whole reply and ends the exchange; the first two with status 200.
 * exchange_json takes the reference.
 */
void exchange_json(Exchange *ex, json_t *body);
void exchange_text(Exchange *ex, const char *content_type, const StrBuf *text);
void exchange_empty(Exchange *ex, int status);
void exchange_error(Exchange *ex, int status, const char *code, const char *param,
                    const char *message);

/* A reply in pieces: the headers, then pieces as they come, then the end of the exchange. */
void exchange_stream_start(Exchange *ex, const char *content_type);
void exchange_stream_send(Exchange *ex, const char *data, size_t len);
void exchange_stream_end(Exchange *ex);

/* The status that says what an ErrorCode means to a client. */
int http_status(ErrorCode code);

/*
 * The error object of all routes but Anthropic's: {"error": {message, type, param, code}}. code,
 * param: or NULL.
 */
json_t *http_error_body(int status, const char *code, const char *param, const char *message);

/*
 * /v1/messages and below speak as Anthropic's API does; exchange_error sees to it, and to 529 for
 * 503 there.
 */
int http_is_anthropic(const char *path);
json_t *http_anthropic_error_body(int status, const char *code, const char *message,
                                  const char *request_id);

#endif
