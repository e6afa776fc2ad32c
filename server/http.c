/*
 * http.c: see http.h. Replies; how requests come in is in connection.c.
 */
#include "server/http.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/listener.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/strbuf.h"
#include "base/version.h"
#include "server/connection.h"
#include "server/json_out.h"
#include "server/socket.h"

#define SERVER_NAME "offshoot/" OFFSHOOT_VERSION

void exchange_free(Exchange *ex)
{
    Http *http = ex->http;
    int handed = ex->handed;
    if (http->ended) http->ended(http->handler.ctx, ex->route, ex->ended ? ex->status : 499);
    http->n_body_bytes -= ex->n_body_bytes;
    http->n_reply_bytes -= ex->n_reply_bytes;
    mem_free(ex->path);
    mem_free(ex);
    if (handed && !--http->n_open && http->idle) http->idle(http->handler.ctx);
}

/* Fit for a log line. */
static int id_is_fit(const char *id)
{
    size_t n = id ? strlen(id) : 0;
    int fit = n > 0 && n <= MAX_REQUEST_ID;
    for (size_t i = 0; fit && i < n; i++)
        fit = id[i] > ' ' && id[i] < 0x7f;
    return fit;
}

/* In all replies, under both names that clients know. */
static void tell_id(Exchange *ex)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(ex->req);
    evhttp_remove_header(headers, "X-Request-Id");
    evhttp_remove_header(headers, "request-id");
    exchange_add_header(ex, "X-Request-Id", ex->id);
    if (http_is_anthropic(ex->path)) exchange_add_header(ex, "request-id", ex->id);
}

/* The client's own id, or ours. */
static void set_id(Exchange *ex)
{
    const char *given = exchange_header(ex, "X-Request-Id");
    if (id_is_fit(given))
        snprintf(ex->id, sizeof ex->id, "%s", given);
    else
        random_hex(ex->id, 16);
}

void exchange_offer_id(Exchange *ex, const char *id)
{
    if (!id_is_fit(id) || id_is_fit(exchange_header(ex, "X-Request-Id"))) return;
    snprintf(ex->id, sizeof ex->id, "%s", id);
    tell_id(ex);
}

/*
 * The path as it was sent. Slashes before it are one, as a base URL's last and a route's first make
 * two; to evhttp they begin a host, and the path is what stands behind that.
 */
static char *sent_path(const Exchange *ex)
{
    const char *text = evhttp_request_get_uri(ex->req);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ex->req);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    if (!strncmp(text, "//", 2)) path = text;
    if (!path) path = "";
    size_t n_slashes = strspn(path, "/");
    char *own = mem_strdup(n_slashes ? path + n_slashes - 1 : path);
    own[strcspn(own, "?#")] = 0;
    return own;
}

/* A path that holds a NUL is none of ours, and must not pass for the part before it. */
static void set_path(Exchange *ex)
{
    char *path = sent_path(ex);
    size_t size = 0;
    char *decoded = evhttp_uridecode(path, 0, &size);
    int whole = decoded && strlen(decoded) == size;
    ex->path = mem_strdup(whole ? decoded : "");
    free(decoded);
    mem_free(path);
    size_t n = strlen(ex->path);
    if (n > 1 && ex->path[n - 1] == '/') ex->path[n - 1] = 0;
}

void exchange_begin(Exchange *ex)
{
    ex->route = "other";
    set_id(ex);
    set_path(ex);
    tell_id(ex);
    exchange_add_header(ex, "Server", SERVER_NAME);
}

/* What goes wrong goes wrong again at once: one line a minute. */
static void log_accept_error(const char *reason)
{
    static const double minute_ms = 60000;
    static double logged_ms = -INFINITY;
    static int n_not;
    double now = clock_ms();
    if (now - logged_ms < minute_ms) {
        n_not++;
        return;
    }
    log_warn("accept_failed reason='%s' not_logged=%d", reason, n_not);
    logged_ms = now;
    n_not = 0;
}

/* Out of file descriptors: a pause, so that waiting for one does not take a whole core. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    (void)listener;
    (void)arg;
    log_accept_error(strerror(errno));
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

/* Every connection needs a descriptor; the rest of the program a few. */
int http_fit_files(HttpLimits *limits, Error *err)
{
    enum { OTHERS = 64 };
    struct rlimit files;
    rlim_t wanted = (rlim_t)limits->max_connections + OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &files)) return 0;
    if (files.rlim_cur < wanted) {
        files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
        if (setrlimit(RLIMIT_NOFILE, &files) || getrlimit(RLIMIT_NOFILE, &files)) return 0;
    }
    if (files.rlim_cur >= wanted) return 0;
    if (files.rlim_cur <= OTHERS)
        return error_set(err, ERR_LIMIT,
                         "the system allows %llu open files (ulimit -n), a server needs %d and one "
                         "for each connection",
                         (unsigned long long)files.rlim_cur, OTHERS);
    limits->max_connections = (int)(files.rlim_cur - OTHERS);
    log_warn("fewer_connections max=%d: the system allows %llu open files", limits->max_connections,
             (unsigned long long)files.rlim_cur);
    return 0;
}

static void configure(Http *http)
{
    /* Every method reaches our handler, which says 405 in our own words; unknown ones too. */
    evhttp_set_allowed_methods(http->evhttp, 0xffff);
    evhttp_set_bevcb(http->evhttp, connection_new, http);
    evhttp_set_gencb(http->evhttp, connection_request, http);
}

Http *http_open(struct event_base *base, const HttpLimits *limits, const HttpHandler *handler,
                Error *err)
{
    Http *http = mem_alloc(1, sizeof *http);
    *http = (Http){.limits = *limits, .handler = *handler};
    event_set_log_callback(on_libevent_log);
    signal(SIGPIPE, SIG_IGN); /* a client that is gone is an error value, not a signal */
    http->evhttp = evhttp_new(base);
    if (!http->evhttp) {
        error_set(err, ERR_FILE, "cannot start the HTTP server");
        mem_free(http);
        return NULL;
    }
    configure(http);
    return http;
}

static void begin_listening(Http *http, struct evhttp_bound_socket *bound)
{
    int fd = evhttp_bound_socket_get_fd(bound);
    http->bound = bound;
    set_socket_options(fd);
    listen(fd, SOMAXCONN); /* evhttp's 128 make a burst of clients wait a second for its retry */
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(bound), on_accept_error);
    http->port = socket_port(fd);
}

int http_listen(Http *http, const char *host, int port, Error *err)
{
    errno = 0;
    struct evhttp_bound_socket *bound =
        evhttp_bind_socket_with_handle(http->evhttp, host, (ev_uint16_t)port);
    if (!bound) /* a place that somebody has, or that is not there yet, may be free soon */
        return error_set(err, errno == EADDRINUSE || errno == EADDRNOTAVAIL ? ERR_BUSY : ERR_INPUT,
                         "cannot listen on '%s:%d': %s", host, port,
                         errno ? strerror(errno) : "no such address");
    begin_listening(http, bound);
    return 0;
}

int http_adopt(Http *http, int fd)
{
    struct evhttp_bound_socket *bound = evhttp_accept_socket_with_handle(http->evhttp, fd);
    if (!bound) return -1;
    begin_listening(http, bound);
    return 0;
}

int http_listener(const Http *http)
{
    return http->bound ? (int)evhttp_bound_socket_get_fd(http->bound) : -1;
}

void http_stop_listening(Http *http)
{
    evconnlistener_disable(evhttp_bound_socket_get_listener(http->bound));
    http->stopped = http->bound;
    http->bound = NULL;
}

void http_close_listener(Http *http)
{
    evhttp_del_accept_socket(http->evhttp, http->stopped);
    http->stopped = NULL;
}

int http_port(const Http *http)
{
    return http->port;
}

int http_n_connections(const Http *http)
{
    return http->n_connections;
}

int http_n_open(const Http *http)
{
    return http->n_open;
}

void http_set_idle(Http *http, void (*idle)(void *ctx))
{
    http->idle = idle;
}

void http_set_ended(Http *http, void (*ended)(void *ctx, const char *route, int status))
{
    http->ended = ended;
}

void http_close(Http *http)
{
    if (!http) return;
    http->idle = NULL;
    http->bound = NULL; /* evhttp closes it first */
    evhttp_free(http->evhttp);
    connection_free_all(http);
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

void exchange_set_route(Exchange *ex, const char *route)
{
    ex->route = route;
}

size_t exchange_unsent(const Exchange *ex)
{
    return evbuffer_get_length(bufferevent_get_output(ex->connection->bev));
}

void exchange_count_body(Exchange *ex)
{
    size_t now = evbuffer_get_length(evhttp_request_get_input_buffer(ex->req));
    ex->http->n_body_bytes += now - ex->n_body_bytes;
    ex->n_body_bytes = now;
}

void exchange_forget_body(Exchange *ex)
{
    struct evbuffer *body = evhttp_request_get_input_buffer(ex->req);
    evbuffer_drain(body, evbuffer_get_length(body));
    exchange_count_body(ex);
}

void exchange_watch(Exchange *ex, void (*gone)(void *owner), void *owner)
{
    ex->gone = gone;
    ex->owner = owner;
}

void exchange_watch_flow(Exchange *ex, void (*flow)(void *owner, int behind))
{
    ex->flow = flow;
}

void exchange_add_header(Exchange *ex, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(ex->req), name, value);
}

/* The connection ends with this reply, and says so, whatever the client asked for. */
static void close_after(Exchange *ex)
{
    evhttp_remove_header(evhttp_request_get_input_headers(ex->req), "Connection");
    exchange_add_header(ex, "Connection", "close");
}

/* What statuses are called that evhttp does not know, or not by their present names; NULL: others.
 */
static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{400, "Bad Request"},
                   {408, "Request Timeout"},
                   {414, "URI Too Long"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return NULL;
}

/* 204 and 304 have no body. By RFC 9110 section 8.6 a length there is none, or the missing body's.
 */
static void send_whole(Exchange *ex, int status, const char *data, size_t len)
{
    Connection *c = ex->connection;
    struct evbuffer *out = evbuffer_new();
    char length[32];
    snprintf(length, sizeof length, "%zu", len);
    if (status != 204 && status != 304) exchange_add_header(ex, "Content-Length", length);
    if (exchange_method(ex) != METHOD_HEAD) evbuffer_add(out, data, len);
    if (ex->unread) close_after(ex);
    ex->gone = NULL;
    ex->sending = ex->ended = 1;
    ex->status = status;
    evhttp_send_reply(ex->req, status, reason_of(status), out);
    connection_own(c);
    connection_write_now(c);
    evbuffer_free(out);
}

void exchange_empty(Exchange *ex, int status)
{
    send_whole(ex, status, "", 0);
}

/*
 * A reader who takes nothing of a large reply keeps its memory for as long as it likes: all of them
 * together have a limit. One alone may be as large as it is.
 */
static int has_room(Exchange *ex, size_t len)
{
    Http *http = ex->http;
    size_t limit = (size_t)http->limits.all_replies_bytes, others = http->n_reply_bytes;
    if (len <= (size_t)http->limits.unsent_bytes) return 1;
    if (others && others + len > limit) return 0;
    ex->n_reply_bytes = len;
    http->n_reply_bytes += len;
    return 1;
}

static void send_text(Exchange *ex, int status, const char *content_type, const StrBuf *text)
{
    exchange_add_header(ex, "Content-Type", content_type);
    send_whole(ex, status, strbuf_str(text), text->len);
}

void exchange_text(Exchange *ex, const char *content_type, const StrBuf *text)
{
    if (has_room(ex, text->len))
        send_text(ex, 200, content_type, text);
    else
        exchange_error(ex, 503, NULL, NULL, "too many large replies wait to be read; try again");
}

void exchange_json(Exchange *ex, json_t *body)
{
    StrBuf text = {0};
    json_write(&text, "o", body);
    exchange_text(ex, "application/json", &text);
    strbuf_free(&text);
}

void exchange_stream_start(Exchange *ex, const char *content_type)
{
    exchange_add_header(ex, "Content-Type", content_type);
    exchange_add_header(ex, "Cache-Control", "no-cache");
    exchange_add_header(ex, "X-Accel-Buffering", "no");
    /* Without chunks only the end of the connection ends the body. */
    if (!ex->req->minor) close_after(ex);
    ex->sending = 1;
    ex->status = 200;
    evhttp_send_reply_start(ex->req, 200, NULL);
    connection_own(ex->connection);
}

/*
 * Shuts the socket down instead of freeing the connection: the caller is in the middle of its work
 * and hears of it by the usual way, from the event loop.
 */
void exchange_drop(Exchange *ex)
{
    if (ex->dropped) return;
    log_info("dropped id=%s reason=slow-reader", ex->id);
    ex->dropped = 1;
    shutdown(bufferevent_getfd(ex->connection->bev), SHUT_RDWR);
}

/* What to do about a reader that has so much to take still. */
static void mind_reader(Exchange *ex, size_t unsent)
{
    size_t limit = (size_t)ex->http->limits.unsent_bytes;
    if (unsent <= limit + ex->largest) return;
    if (!ex->flow || unsent > HARD_LIMIT * limit + ex->largest) {
        exchange_drop(ex);
    } else if (!ex->behind) {
        ex->behind = 1;
        ex->flow(ex->owner, 1);
    }
}

/*
 * A piece of the body goes straight to the socket when nothing waits before it; what the socket
 * does not take waits in the output. evhttp's own way costs twice the system calls.
 */
static void write_piece(struct bufferevent *bev, struct iovec *part, int n)
{
    struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)n};
    ssize_t sent = 0;
    if (!evbuffer_get_length(bufferevent_get_output(bev)))
        sent = sendmsg(bufferevent_getfd(bev), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    size_t done = sent > 0 ? (size_t)sent : 0; /* an error is met again, and told, by bev */
    for (int i = 0; i < n; i++) {
        size_t skip = done < part[i].iov_len ? done : part[i].iov_len;
        done -= skip;
        if (skip < part[i].iov_len)
            bufferevent_write(bev, (char *)part[i].iov_base + skip, part[i].iov_len - skip);
    }
}

/* A piece larger than the limit makes no reader slow: the largest one comes on top. */
void exchange_stream_send(Exchange *ex, const char *data, size_t len)
{
    char size[20], end[] = "\r\n";
    struct iovec part[3] = {{.iov_base = size}, {(char *)(uintptr_t)data, len}, {end, 2}};
    if (ex->dropped || !len) return;
    part[0].iov_len = (size_t)snprintf(size, sizeof size, "%zx\r\n", len);
    if (ex->req->chunked)
        write_piece(ex->connection->bev, part, 3);
    else
        write_piece(ex->connection->bev, part + 1, 1);
    size_t unsent = evbuffer_get_length(bufferevent_get_output(ex->connection->bev));
    if (len > ex->largest) ex->largest = len;
    mind_reader(ex, unsent);
}

void exchange_stream_end(Exchange *ex)
{
    ex->gone = NULL;
    ex->flow = NULL;
    ex->behind = 0;
    ex->ended = 1;
    connection_end_stream(ex->connection);
}

void exchange_error(Exchange *ex, int status, const char *code, const char *param,
                    const char *message)
{
    StrBuf text = {0};
    int anthropic = http_is_anthropic(ex->path);
    json_t *body = anthropic ? http_anthropic_error_body(status, code, message, ex->id)
                             : http_error_body(status, code, param, message);
    if (status == 401) exchange_add_header(ex, "WWW-Authenticate", "Bearer");
    if (status == 429 &&
        !evhttp_find_header(evhttp_request_get_output_headers(ex->req), "Retry-After"))
        exchange_add_header(ex, "Retry-After", "1");
    if (status == 503) exchange_add_header(ex, "Retry-After", "5");
    if (status == 500) exchange_add_header(ex, "x-should-retry", "false");
    log_debug("refused id=%s status=%d", ex->id, status);
    json_write(&text, "o", body);
    send_text(ex, status == 503 && anthropic ? 529 : status, "application/json", &text);
    strbuf_free(&text);
}

/* The few bytes that evhttp would write, as there is no request to write them for. */
void http_write_refusal(struct evbuffer *out, int status, const char *message)
{
    char id[MAX_REQUEST_ID + 1], date[64] = "";
    const char *reason = reason_of(status);
    assert(reason); /* evhttp does not know them either */
    StrBuf text = {0};
    json_t *body = http_error_body(status, NULL, NULL, message);
    random_hex(id, 16);
    evutil_date_rfc1123(date, sizeof date, NULL);
    json_write(&text, "o", body);
    log_debug("refused id=%s status=%d", id, status);
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nX-Request-Id: %s\r\nServer: %s\r\n"
                        "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                        "Date: %s\r\nConnection: close\r\n\r\n%s",
                        status, reason, id, SERVER_NAME, text.len, date, strbuf_str(&text));
    strbuf_free(&text);
}
