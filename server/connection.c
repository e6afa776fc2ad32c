/*
 * connection.c: see connection.h.
 *
 * evhttp (2.1) parses heads and writes replies. It has no place where a request can be judged
 * between its head and its body, no total time for a request, and answers what it cannot read with
 * pages of its own. So we stand between it and the socket, by its bufferevent's callbacks:
 *
 * - evhttp gets a head when it is whole and has passed head_scan, and never a body: the headers
 *   that announce one are hidden from it (head_mark). It hands us the request at once, and we read
 *   the body. So its own rules of framing, which differ between versions, never run.
 * - What it writes itself (400 for a request line that it cannot parse) is taken out of the output
 *   again, and our own 400 is sent.
 * - It sets its own callbacks when it sends and when it begins to read: connection_own takes them
 *   back. Its write callback is called only when all is written, as evhttp takes it for that.
 * - evhttp ends a connection when its event callback hears of an error, and tells us by the close
 *   callback, which needs a request to be set; before the first one we know by ourselves.
 */
#include "server/connection.h"

#include <string.h>
#include <sys/socket.h>

#include <event2/http_struct.h>
#include <event2/listener.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    PIPELINED_BYTES = 64 << 10, /* of further requests, read while one is answered */
    SMALL_BODY = 64 << 10,      /* read before anything is checked, to keep the connection */
    LINGER_S = 2,
};

static void read_head(Connection *c);
static void read_body(Connection *c);

static void set_timer(Connection *c, int seconds)
{
    event_add(c->timer, &(struct timeval){.tv_sec = seconds});
}

static size_t n_unsent(const Connection *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* ---- beginning and end ---- */

static void accept_more(Http *http, int on)
{
    if (!http->bound) return;
    struct evconnlistener *listener = evhttp_bound_socket_get_listener(http->bound);
    if (on)
        evconnlistener_enable(listener);
    else
        evconnlistener_disable(listener);
    log_debug("accepting on=%d connections=%d", on, http->n_connections);
}

static void free_connection(Connection *c)
{
    Http *http = c->http;
    if (c->gone) *c->gone = 1;
    if (c->prev) c->prev->next = c->next;
    if (c->next) c->next->prev = c->prev;
    if (http->connections == c) http->connections = c->next;
    if (http->n_connections-- == http->limits.max_connections) accept_more(http, 1);
    event_free(c->timer);
    evbuffer_free(c->in);
    mem_free(c);
}

void connection_free_all(Http *http)
{
    while (http->connections)
        free_connection(http->connections);
}

/* evhttp ends the connection, for whatever reason. */
static void on_closed(struct evhttp_connection *evcon, void *arg)
{
    Connection *c = arg;
    Exchange *ex = c->ex;
    (void)evcon;
    c->ex = NULL;
    if (ex) {
        if (ex->gone) ex->gone(ex->owner);
        /* A request whose connection failed is left to us; one whose connection is freed is not. */
        if (!ex->ended && !evhttp_request_get_connection(ex->req)) evhttp_request_free(ex->req);
        exchange_free(ex);
    }
    free_connection(c);
}

static void close_now(Connection *c)
{
    int gone = 0;
    c->gone = &gone;
    c->evhttp_event(c->bev, BEV_EVENT_READING | BEV_EVENT_ERROR, c->evhttp_arg);
    if (!gone) free_connection(c);
}

/*
 * A connection that is closed over unread bytes is reset, and the reset takes our last words along.
 */
static void linger(Connection *c)
{
    c->phase = PHASE_LINGER;
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    bufferevent_setwatermark(c->bev, EV_READ, 0, 0);
    bufferevent_enable(c->bev, EV_READ);
    struct evbuffer *in = bufferevent_get_input(c->bev);
    evbuffer_drain(in, evbuffer_get_length(in));
    set_timer(c, LINGER_S);
}

/* ---- refusing what never became a request ---- */

static void refuse(Connection *c, int status, const char *message)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    evbuffer_unfreeze(out, 1); /* bufferevents freeze it, lest anyone takes what they are to send */
    evbuffer_drain(out, evbuffer_get_length(out));
    evbuffer_freeze(out, 1);
    event_del(c->timer);
    c->phase = PHASE_REFUSED;
    connection_own(c);
    http_write_refusal(out, status, message);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}

/* ---- between two requests ---- */

static void wait_for_head(Connection *c)
{
    c->phase = PHASE_HEAD;
    c->scan = (HeadScan){0};
    connection_own(c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, 0);
    set_timer(c, c->http->limits.idle_timeout_s);
    if (evbuffer_get_length(c->in)) read_head(c);
}

/* The reply was wholly sent; evhttp takes the request away and waits for the next one. */
static void on_sent(struct evhttp_request *req, void *arg)
{
    Exchange *ex = arg;
    Connection *c = ex->connection;
    (void)req;
    c->ex = NULL;
    c->phase = PHASE_NEW;
    /* Of bytes that it finds here evhttp would tell our callback, with an argument of its own. */
    evbuffer_add_buffer(c->in, bufferevent_get_input(c->bev));
    exchange_free(ex);
}

/* ---- head ---- */

/* evhttp reads exactly this head, and calls connection_request before it returns if it likes it. */
static void pass_head(Connection *c, char *head, size_t len)
{
    head_mark(head, len);
    evbuffer_prepend(bufferevent_get_input(c->bev), head, len);
    evbuffer_drain(c->in, len);
    c->http->reading = c;
    c->evhttp_read(c->bev, c->evhttp_arg);
    if (!c->ex) {
        refuse(c, 400, "the request line cannot be read");
        return;
    }
    connection_own(c);
    read_body(c);
}

/*
 * Blank lines before a request: RFC 9112 section 2.2 asks to skip them. Bytes of the head, or 0.
 */
static size_t skip_blank_lines(Connection *c)
{
    char start[2] = {0};
    while (evbuffer_copyout(c->in, start, 2) == 2 && !memcmp(start, "\r\n", 2))
        evbuffer_drain(c->in, 2);
    size_t len = evbuffer_get_length(c->in);
    return len == 1 && start[0] == '\r' ? 0 : len;
}

static void read_head(Connection *c)
{
    const HttpLimits *limits = &c->http->limits;
    size_t len = c->scan.n_seen ? evbuffer_get_length(c->in) : skip_blank_lines(c);
    if (!len) return;
    if (!c->scan.n_seen) set_timer(c, limits->request_timeout_s);
    char *data = (char *)evbuffer_pullup(c->in, -1);
    switch (
        head_scan(&c->scan, data, len, (size_t)limits->line_bytes, (size_t)limits->header_bytes)) {
    case HEAD_MORE:
        break;
    case HEAD_WHOLE:
        pass_head(c, data, c->scan.n_seen);
        break;
    case HEAD_BAD:
        refuse(c, 400, "the head of the request is malformed");
        break;
    case HEAD_LONG_LINE:
        refuse(c, 414, "the request line is too long");
        break;
    case HEAD_TOO_LARGE:
        refuse(c, 431, "the headers are too large");
        break;
    }
}

void connection_request(struct evhttp_request *req, void *arg)
{
    Http *http = arg;
    Connection *c = http->reading;
    struct evhttp_connection *evcon = evhttp_request_get_connection(req);
    struct evkeyvalq *headers = evhttp_request_get_input_headers(req);
    Exchange *ex = mem_alloc(1, sizeof *ex);
    *ex = (Exchange){.http = http, .connection = c, .req = req, .unread = 1};
    c->ex = ex;
    c->phase = PHASE_BODY;
    req->flags &= ~EVHTTP_PROXY_REQUEST; /* a full URL in the request line changes nothing */
    /* Behind CONNECT evhttp would never end a connection. To us it is a method like any other. */
    if (req->type == EVHTTP_REQ_CONNECT) req->type = EVHTTP_REQ_TRACE;
    head_unmark(headers);
    if (head_closes(headers)) { /* evhttp looks at the first header as a whole */
        while (!evhttp_remove_header(headers, "Connection")) {
        }
        evhttp_add_header(headers, "Connection", "close");
    }
    evhttp_connection_set_closecb(evcon, on_closed, c);
    evhttp_request_set_on_complete_cb(req, on_sent, ex);
    exchange_begin(ex);
}

/* ---- body ---- */

static int admit(Connection *c)
{
    const HttpHandler *handler = &c->http->handler;
    if (!c->ex->admitted && handler->admit(handler->ctx, c->ex)) c->ex->admitted = 1;
    return c->ex->admitted;
}

/* Further requests are read as far as PIPELINED_BYTES; those that wait already count. */
static void read_ahead(Connection *c)
{
    size_t held = evbuffer_get_length(c->in);
    if (held >= PIPELINED_BYTES) {
        bufferevent_disable(c->bev, EV_READ);
        return;
    }
    bufferevent_setwatermark(c->bev, EV_READ, 0, PIPELINED_BYTES - held);
    bufferevent_enable(c->bev, EV_READ);
}

static void deliver(Connection *c)
{
    Exchange *ex = c->ex;
    const HttpHandler *handler = &c->http->handler;
    ex->unread = 0;
    ex->handed = 1;
    c->http->n_open++;
    c->phase = PHASE_ANSWER;
    event_del(c->timer);
    /*
     * The socket is still read, or a client that is gone would go unnoticed; but not told of: at
     * the high watermark libevent calls a read callback again and again until it takes something.
     */
    connection_own(c);
    read_ahead(c);
    if (admit(c)) handler->handle(handler->ctx, ex);
}

static int expects_continue(const Exchange *ex)
{
    const char *expect = exchange_header(ex, "Expect");
    return expect && ex->req->minor && !strcasecmp(expect, "100-continue");
}

/* Whether to go on with the body; what must be said before it is sent, is said. */
static int admit_body(Connection *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    Exchange *ex = c->ex;
    int expected = expects_continue(ex);
    uint64_t limit = (uint64_t)c->http->limits.body_bytes;
    if (head_framing(evhttp_request_get_input_headers(ex->req), !ex->req->minor, &c->framing)) {
        if (admit(c))
            exchange_error(ex, 400, NULL, NULL,
                           "the headers do not say clearly how long the body is");
        return 0;
    }
    if (c->framing.kind == BODY_NONE) return 1;
    int is_sized = c->framing.kind == BODY_LENGTH;
    int is_large = is_sized && c->framing.length > limit;
    int is_small = is_sized && !is_large && c->framing.length <= SMALL_BODY;
    if ((expected || !is_small) && !admit(c)) return 0;
    if (is_large) {
        exchange_error(ex, 413, "request_too_large", NULL, "the body is too large");
        return 0;
    }
    if (expected && !evbuffer_get_length(c->in)) {
        evbuffer_add(bufferevent_get_output(c->bev), go_on, sizeof go_on - 1);
        bufferevent_enable(c->bev, EV_WRITE);
    }
    return 1;
}

static ChunkedResult take_body(Connection *c)
{
    struct evbuffer *body = evhttp_request_get_input_buffer(c->ex->req);
    uint64_t limit = (uint64_t)c->http->limits.body_bytes;
    if (c->framing.kind == BODY_CHUNKED) return chunked_read(&c->chunks, c->in, body, limit);
    size_t left = (size_t)c->framing.length - evbuffer_get_length(body);
    size_t n = evbuffer_get_length(c->in);
    evbuffer_remove_buffer(c->in, body, n < left ? n : left);
    return n < left ? CHUNKED_MORE : CHUNKED_WHOLE;
}

static void go_on_with_body(Connection *c)
{
    ChunkedResult result = take_body(c);
    exchange_count_body(c->ex);
    if (c->http->n_body_bytes > (size_t)c->http->limits.all_bodies_bytes) {
        exchange_forget_body(c->ex);
        exchange_error(c->ex, 503, NULL, NULL, "too much is being sent at once; try again");
        return;
    }
    switch (result) {
    case CHUNKED_MORE:
        bufferevent_enable(c->bev, EV_READ);
        break;
    case CHUNKED_WHOLE:
        deliver(c);
        break;
    case CHUNKED_BAD:
        exchange_error(c->ex, 400, NULL, NULL, "the chunks of the body are malformed");
        break;
    case CHUNKED_TOO_LARGE:
        exchange_error(c->ex, 413, "request_too_large", NULL, "the body is too large");
        break;
    }
}

static void read_body(Connection *c)
{
    c->chunks = (ChunkedReader){0};
    if (admit_body(c)) go_on_with_body(c);
}

/* ---- callbacks ---- */

static void on_read(struct bufferevent *bev, void *arg)
{
    Connection *c = arg;
    struct evbuffer *input = bufferevent_get_input(bev);
    switch (c->phase) {
    case PHASE_HEAD:
        evbuffer_add_buffer(c->in, input);
        read_head(c);
        break;
    case PHASE_BODY:
        /* A reply that came before the body: it is on its way, and the body is not wanted. */
        evbuffer_add_buffer(c->in, input);
        if (c->ex->ended)
            evbuffer_drain(c->in, evbuffer_get_length(c->in));
        else
            go_on_with_body(c);
        break;
    case PHASE_REFUSED:
    case PHASE_LINGER:
        evbuffer_drain(input, evbuffer_get_length(input));
        break;
    default:
        break;
    }
}

/* The reader has caught up to half the limit: room enough to go on for a while. */
static void tell_flow(Connection *c)
{
    Exchange *ex = c->ex;
    if (!ex->behind || n_unsent(c) > (size_t)c->http->limits.unsent_bytes / 2) return;
    ex->behind = 0;
    ex->flow(ex->owner, 0);
}

/* All is written. */
static void end_reply(Connection *c)
{
    Exchange *ex = c->ex;
    if (ex->ended && ex->unread) {
        c->ex = NULL;
        exchange_free(ex);
        linger(c);
        return;
    }
    if (!ex->sending) return; /* it was the 100 Continue: evhttp knows nothing of it */
    int gone = 0;
    c->gone = &gone;
    c->evhttp_write(c->bev, c->evhttp_arg);
    if (gone) return;
    c->gone = NULL;
    if (!c->ex) wait_for_head(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    Connection *c = arg;
    (void)bev;
    if (c->phase == PHASE_REFUSED && !n_unsent(c)) linger(c);
    if (!c->ex) return;
    tell_flow(c);
    if (!n_unsent(c)) end_reply(c);
}

/* The client has closed its side, or the connection is broken, or nothing could be written. */
static void on_event(struct bufferevent *bev, short what, void *arg)
{
    Connection *c = arg;
    int last_words = c->phase == PHASE_REFUSED || (c->ex && c->ex->ended);
    if ((what & BEV_EVENT_EOF) && last_words && n_unsent(c)) {
        bufferevent_disable(bev, EV_READ); /* it may still listen */
        return;
    }
    close_now(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    Connection *c = arg;
    (void)fd;
    (void)what;
    switch (c->phase) {
    case PHASE_NEW:
        wait_for_head(c);
        break;
    case PHASE_HEAD:
        if (evbuffer_get_length(c->in))
            refuse(c, 408, "the request did not come in time");
        else
            close_now(c);
        break;
    case PHASE_BODY:
        if (!c->ex->ended) exchange_error(c->ex, 408, NULL, NULL, "the body did not come in time");
        break;
    default:
        close_now(c);
    }
}

void connection_own(Connection *c)
{
    bufferevent_data_cb read, write;
    bufferevent_event_cb event;
    void *arg;
    bufferevent_getcb(c->bev, &read, &write, &event, &arg);
    if (event != on_event) {
        if (read) c->evhttp_read = read;
        c->evhttp_write = write;
        c->evhttp_event = event;
        c->evhttp_arg = arg;
    }
    bufferevent_setcb(c->bev, c->phase == PHASE_ANSWER ? NULL : on_read, on_write, on_event, c);
}

/* A failed write is met again, and told, by libevent; on_write comes from the loop, as ever. */
void connection_write_now(Connection *c)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    evbuffer_unfreeze(out, 1);
    evbuffer_write(out, bufferevent_getfd(c->bev));
    evbuffer_freeze(out, 1);
    if (evbuffer_get_length(out)) return;
    bufferevent_disable(c->bev, EV_WRITE); /* evhttp enables it for every reply */
    bufferevent_trigger(c->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

/* Without chunks evhttp ends the connection here and now when all was written before. */
void connection_end_stream(Connection *c)
{
    int gone = 0;
    c->gone = &gone;
    evhttp_send_reply_end(c->ex->req);
    if (gone) return;
    c->gone = NULL;
    connection_own(c);
    connection_write_now(c);
}

struct bufferevent *connection_new(struct event_base *base, void *arg)
{
    Http *http = arg;
    struct bufferevent *bev = bufferevent_socket_new(base, -1, 0);
    if (!bev) return NULL;
    Connection *c = mem_alloc(1, sizeof *c);
    *c = (Connection){.http = http, .bev = bev, .next = http->connections};
    if (c->next) c->next->prev = c;
    http->connections = c;
    bufferevent_set_timeouts(bev, NULL, &(struct timeval){.tv_sec = http->limits.write_timeout_s});
    bufferevent_setwatermark(bev, EV_WRITE, (size_t)http->limits.unsent_bytes / 2, 0);
    c->in = evbuffer_new();
    /* evhttp is not done with it: its callbacks come next, and we after them, before any byte. */
    c->timer = evtimer_new(base, on_timer, c);
    event_active(c->timer, EV_TIMEOUT, 0);
    if (++http->n_connections == http->limits.max_connections) accept_more(http, 0);
    return bev;
}
