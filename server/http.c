/*
 * http.c: see http.h.
 *
 * What evhttp (2.1) needs to be told, and where it is told:
 * - While an answer is made nobody reads the socket, so a vanished client goes unnoticed: reading
 * is turned on again, without a read callback (bytes of a pipelined request wait in the buffer) and
 *   without a read timeout. take_over and give_back are this pair.
 * - A request whose connection failed is left to us to free; one whose connection we drop is not.
 *   The request knows: it has no connection in the first case.
 * - Bodies and headers beyond their limits are answered by evhttp itself: 413, 400 and a page.
 */
#include "server/http.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "base/version.h"
#include "server/json_out.h"

enum { MAX_ID = 128, PIPELINED_BYTES = 64 << 10 };

struct Http {
    struct evhttp *evhttp;
    struct evhttp_bound_socket *bound; /* NULL once we stopped listening */
    int port;
    HttpLimits limits;
    HttpHandler handler;
    void *ctx;
    void (*idle)(void *ctx);
    int n_open;
};

struct Exchange {
    Http *http;
    struct evhttp_request *req;
    struct evhttp_connection *conn;
    void (*gone)(void *owner);
    void *owner;
    char *path;
    char id[MAX_ID + 1];
    int ended;      /* the whole reply was handed to evhttp */
    size_t largest; /* piece of its stream */
    int dropped;    /* the reader was too slow: what is still sent goes nowhere */
};

HttpLimits http_limits(void)
{
    return (HttpLimits){
        .header_bytes = 32 << 10,
        .body_bytes = 32 << 20,
        .read_timeout_s = 75,
        .write_timeout_s = 60,
        .unsent_bytes = 1 << 20,
    };
}

/* The connection under an answer: reading only to notice its end, in its own time. */
static void take_over(Exchange *ex)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(ex->conn);
    struct timeval write_timeout = {.tv_sec = ex->http->limits.write_timeout_s};
    bufferevent_event_cb on_event;
    bufferevent_data_cb on_write;
    void *arg;
    bufferevent_getcb(bev, NULL, &on_write, &on_event, &arg);
    bufferevent_setcb(bev, NULL, on_write, on_event, arg);
    bufferevent_set_timeouts(bev, NULL, &write_timeout);
    bufferevent_setwatermark(bev, EV_READ, 0, PIPELINED_BYTES);
    bufferevent_enable(bev, EV_READ);
}

/* The connection between two requests; evhttp sets the callbacks itself. */
static void give_back(Exchange *ex)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(ex->conn);
    struct timeval read_timeout = {.tv_sec = ex->http->limits.read_timeout_s};
    struct timeval write_timeout = {.tv_sec = ex->http->limits.write_timeout_s};
    bufferevent_set_timeouts(bev, &read_timeout, &write_timeout);
    bufferevent_setwatermark(bev, EV_READ, 0, 0);
    evhttp_connection_set_closecb(ex->conn, NULL, NULL);
}

static void exchange_free(Exchange *ex)
{
    Http *http = ex->http;
    mem_free(ex->path);
    mem_free(ex);
    if (!--http->n_open && http->idle) http->idle(http->ctx);
}

/* The connection ends before the reply was wholly sent. */
static void on_closed(struct evhttp_connection *conn, void *arg)
{
    Exchange *ex = arg;
    (void)conn;
    if (ex->gone) ex->gone(ex->owner);
    if (!ex->ended && !evhttp_request_get_connection(ex->req)) evhttp_request_free(ex->req);
    exchange_free(ex);
}

static void on_sent(struct evhttp_request *req, void *arg)
{
    Exchange *ex = arg;
    (void)req;
    give_back(ex);
    exchange_free(ex);
}

static void make_id(char *id)
{
    unsigned char bytes[16] = {0};
    ssize_t n = getrandom(bytes, sizeof bytes, 0); /* this few bytes never come short */
    (void)n;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
}

/* The client's own id if it is fit for a log line. */
static void set_id(Exchange *ex)
{
    const char *given = exchange_header(ex, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    int fit = n > 0 && n <= MAX_ID;
    for (size_t i = 0; fit && i < n; i++)
        fit = given[i] > ' ' && given[i] < 0x7f;
    if (fit)
        memcpy(ex->id, given, n + 1);
    else
        make_id(ex->id);
}

static void set_path(Exchange *ex)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ex->req);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    char *decoded = evhttp_uridecode(path ? path : "", 0, NULL);
    ex->path = mem_strdup(decoded ? decoded : "");
    free(decoded);
    size_t n = strlen(ex->path);
    if (n > 1 && ex->path[n - 1] == '/') ex->path[n - 1] = 0;
}

/*
 * Two opinions about where a body ends are how requests get smuggled past a proxy. Of two lengths
 * evhttp takes the first; a length beside chunks only patched versions (Debian's deb12u1) refuse.
 */
static int framing_is_unclear(Exchange *ex)
{
    struct evkeyvalq *headers = evhttp_request_get_input_headers(ex->req);
    const char *length = NULL;
    for (struct evkeyval *h = headers->tqh_first; h; h = h->next.tqe_next) {
        if (strcasecmp(h->key, "Content-Length")) continue;
        if (length && strcmp(length, h->value)) return 1;
        length = h->value;
    }
    return length && evhttp_find_header(headers, "Transfer-Encoding");
}

static void on_request(struct evhttp_request *req, void *arg)
{
    Http *http = arg;
    Exchange *ex = mem_alloc(1, sizeof *ex);
    ex->http = http;
    ex->req = req;
    ex->conn = evhttp_request_get_connection(req);
    http->n_open++;
    take_over(ex);
    evhttp_connection_set_closecb(ex->conn, on_closed, ex);
    evhttp_request_set_on_complete_cb(req, on_sent, ex);
    set_id(ex);
    set_path(ex);
    exchange_add_header(ex, "X-Request-Id", ex->id);
    exchange_add_header(ex, "Server", "offshoot/" OFFSHOOT_VERSION);
    if (framing_is_unclear(ex)) {
        exchange_add_header(ex, "Connection", "close");
        exchange_error(ex, 400, NULL, NULL, "the request states the length of its body twice");
        return;
    }
    http->handler(http->ctx, ex);
}

/* Out of file descriptors: a pause, so that waiting for one does not take a whole core. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    (void)listener;
    (void)arg;
    log_warn("accept-failed reason='%s'", strerror(errno));
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static void on_libevent_log(int severity, const char *msg)
{
    if (severity == EVENT_LOG_ERR)
        log_error("libevent msg='%s'", msg);
    else
        log_debug("libevent msg='%s'", msg);
}

/*
 * Connections inherit these. Without the first a token waits 40 ms for the last one's ACK; without
 * the second the kernel takes megabytes for a reader that does not read, and we would not notice.
 */
static void set_socket_options(int fd)
{
    int on = 1, kernel_bytes = 128 << 10;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kernel_bytes, sizeof kernel_bytes);
}

static int port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, &a.any, &n)) return -1;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

static void configure(Http *http)
{
    struct evhttp *h = http->evhttp;
    evhttp_set_max_headers_size(h, http->limits.header_bytes);
    evhttp_set_max_body_size(h, http->limits.body_bytes);
    evhttp_set_timeout(h, http->limits.read_timeout_s);
    /* Every method reaches our handler, which says 405 in our own words. */
    evhttp_set_allowed_methods(h, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
                                      EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS |
                                      EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
    evhttp_set_gencb(h, on_request, http);
}

Http *http_open(struct event_base *base, const char *host, int port, const HttpLimits *limits,
                HttpHandler handler, void *ctx, Error *err)
{
    Http *http = mem_alloc(1, sizeof *http);
    *http = (Http){.limits = *limits, .handler = handler, .ctx = ctx, .port = port};
    event_set_log_callback(on_libevent_log);
    signal(SIGPIPE, SIG_IGN); /* a client that is gone is an error value, not a signal */
    http->evhttp = evhttp_new(base);
    if (!http->evhttp) {
        error_set(err, ERR_FILE, "cannot start the HTTP server");
        mem_free(http);
        return NULL;
    }
    configure(http);
    errno = 0;
    http->bound = evhttp_bind_socket_with_handle(http->evhttp, host, (ev_uint16_t)port);
    if (!http->bound) {
        error_set(err, ERR_INPUT, "cannot listen on '%s:%d': %s", host, port,
                  errno ? strerror(errno) : "no such address");
        http_close(http);
        return NULL;
    }
    int fd = evhttp_bound_socket_get_fd(http->bound);
    set_socket_options(fd);
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(http->bound), on_accept_error);
    http->port = port_of(fd);
    return http;
}

int http_port(const Http *http)
{
    return http->port;
}

void http_stop_listening(Http *http)
{
    if (http->bound) evhttp_del_accept_socket(http->evhttp, http->bound);
    http->bound = NULL;
}

int http_n_open(const Http *http)
{
    return http->n_open;
}

void http_set_idle(Http *http, void (*idle)(void *ctx))
{
    http->idle = idle;
}

void http_close(Http *http)
{
    if (!http) return;
    http->idle = NULL;
    evhttp_free(http->evhttp);
    assert(!http->n_open);
    mem_free(http);
}

Method exchange_method(const Exchange *ex)
{
    switch (evhttp_request_get_command(ex->req)) {
    case EVHTTP_REQ_GET:
        return METHOD_GET;
    case EVHTTP_REQ_HEAD:
        return METHOD_HEAD;
    case EVHTTP_REQ_POST:
        return METHOD_POST;
    case EVHTTP_REQ_OPTIONS:
        return METHOD_OPTIONS;
    default:
        return METHOD_OTHER;
    }
}

const char *exchange_path(const Exchange *ex)
{
    return ex->path;
}

const char *exchange_header(const Exchange *ex, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(ex->req), name);
}

const char *exchange_id(const Exchange *ex)
{
    return ex->id;
}

const char *exchange_body(Exchange *ex, size_t *len)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(ex->req);
    *len = evbuffer_get_length(in);
    return *len ? (const char *)evbuffer_pullup(in, -1) : "";
}

void exchange_watch(Exchange *ex, void (*gone)(void *owner), void *owner)
{
    ex->gone = gone;
    ex->owner = owner;
}

void exchange_add_header(Exchange *ex, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(ex->req), name, value);
}

static void send_whole(Exchange *ex, int status, const char *data, size_t len)
{
    struct evbuffer *out = evbuffer_new();
    if (exchange_method(ex) == METHOD_HEAD) {
        char length[32];
        snprintf(length, sizeof length, "%zu", len);
        exchange_add_header(ex, "Content-Length", length);
    } else {
        evbuffer_add(out, data, len);
    }
    ex->gone = NULL;
    ex->ended = 1;
    evhttp_send_reply(ex->req, status, NULL, out);
    evbuffer_free(out);
}

void exchange_empty(Exchange *ex, int status)
{
    send_whole(ex, status, "", 0);
}

void exchange_json(Exchange *ex, int status, json_t *body)
{
    StrBuf text = {0};
    json_print(body, &text);
    json_decref(body);
    exchange_add_header(ex, "Content-Type", "application/json");
    send_whole(ex, status, strbuf_str(&text), text.len);
    strbuf_free(&text);
}

void exchange_stream_start(Exchange *ex, const char *content_type)
{
    exchange_add_header(ex, "Content-Type", content_type);
    exchange_add_header(ex, "Cache-Control", "no-cache");
    exchange_add_header(ex, "X-Accel-Buffering", "no");
    /* Without chunks only the end of the connection ends the body. */
    if (ex->req->major == 1 && ex->req->minor == 0) exchange_add_header(ex, "Connection", "close");
    evhttp_send_reply_start(ex->req, 200, NULL);
}

/*
 * Shuts the socket down instead of freeing the connection: the caller is in the middle of its work
 * and hears of it by the usual way, from the event loop.
 */
static void drop(Exchange *ex)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(ex->conn);
    log_info("dropped id=%s reason=slow-reader", ex->id);
    ex->dropped = 1;
    shutdown(bufferevent_getfd(bev), SHUT_RDWR);
}

/* A piece larger than the limit makes no reader slow: the largest one comes on top. */
void exchange_stream_send(Exchange *ex, const char *data, size_t len)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(ex->conn);
    size_t unsent = evbuffer_get_length(bufferevent_get_output(bev));
    if (len > ex->largest) ex->largest = len;
    if (!ex->dropped && unsent > (size_t)ex->http->limits.unsent_bytes + ex->largest) drop(ex);
    if (ex->dropped) return;
    struct evbuffer *out = evbuffer_new();
    evbuffer_add(out, data, len);
    evhttp_send_reply_chunk(ex->req, out);
    evbuffer_free(out);
}

void exchange_stream_end(Exchange *ex)
{
    ex->gone = NULL;
    ex->ended = 1;
    evhttp_send_reply_end(ex->req);
}

int http_status(ErrorCode code)
{
    static const int status[] = {
        [ERR_NONE] = 200, [ERR_INPUT] = 400, [ERR_LIMIT] = 400,
        [ERR_BUSY] = 429, [ERR_FILE] = 500,  [ERR_DEVICE] = 500,
    };
    return status[code];
}

static const char *error_type(int status)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {
        {401, "authentication_error"}, {404, "not_found_error"},  {429, "rate_limit_error"},
        {500, "server_error"},         {503, "overloaded_error"},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) return types[i].type;
    return "invalid_request_error";
}

json_t *http_error_body(int status, const char *code, const char *param, const char *message)
{
    return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", json_text(message), "type",
                     error_type(status), "param", param, "code", code);
}

void exchange_error(Exchange *ex, int status, const char *code, const char *param,
                    const char *message)
{
    if (status == 401) exchange_add_header(ex, "WWW-Authenticate", "Bearer");
    if (status == 429) exchange_add_header(ex, "Retry-After", "1");
    if (status == 503) exchange_add_header(ex, "Retry-After", "5");
    if (status == 500) exchange_add_header(ex, "x-should-retry", "false");
    log_debug("refused id=%s status=%d", ex->id, status);
    exchange_json(ex, status, http_error_body(status, code, param, message));
}
