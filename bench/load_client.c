/* load_client.c: see load_client.h. */
#include "bench/load_client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>

#include "base/mem.h"

enum {
    BODY_MOST = 64 << 20,      /* bytes of a reply */
    HEAD_LINE_MOST = 64 << 10, /* and of a line of its head */
};

/* What is read next. */
typedef enum { READ_STATUS, READ_HEADERS, READ_BODY, READ_SIZE, READ_CHUNK, READ_CHUNK_END } Part;

struct LoadConn {
    struct event_base *base;
    const LoadTarget *target;
    LoadCallbacks callbacks;
    void *ctx;
    int timeout_s;
    struct bufferevent *bev; /* NULL: not connected */
    int busy;                /* a request is on its way */
    int heard;               /* a byte of its reply came */
    int n_earlier;           /* replies that this connection brought before */
    unsigned serial;         /* of the last request */

    Part part;
    int status, retry_after_s;
    int chunked, stream, closes, has_length;
    size_t n_left;    /* bytes of the body or of the chunk that are still to come */
    int last_chunk;   /* the empty one */
    size_t n_scanned; /* bytes of body that were searched for ends of events */
    size_t event_at;  /* where the first event begins that has no end yet */
    StrBuf body;
};

/* ---- where to ---- */

static int split_url(const char *url, char *host, size_t n_host, char *port, size_t n_port)
{
    static const char scheme[] = "http://";
    if (strncmp(url, scheme, sizeof scheme - 1) != 0) return -1;
    const char *from = url + sizeof scheme - 1;
    const char *colon = strrchr(from, ':');
    if (!colon || colon == from) return -1;
    size_t n = (size_t)(colon - from), n_digits = strspn(colon + 1, "0123456789");
    const char *rest = colon + 1 + n_digits;
    if (from[0] == '[' && from[n - 1] == ']') {
        from++;
        n -= 2;
    }
    if (n >= n_host || !n_digits || n_digits >= n_port || (*rest && strcmp(rest, "/") != 0))
        return -1;
    memcpy(host, from, n);
    host[n] = 0;
    memcpy(port, colon + 1, n_digits);
    port[n_digits] = 0;
    return atoi(port) < 1 || atoi(port) > UINT16_MAX ? -1 : 0;
}

int load_target_parse(LoadTarget *t, const char *url, Error *err)
{
    char host[100], port[8];
    if (split_url(url, host, sizeof host, port, sizeof port))
        return error_set(err, ERR_INPUT, "--url is '%.80s', must be http://HOST:PORT", url);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc)
        return error_set(err, ERR_INPUT, "cannot find the host of '%.80s': %s", url,
                         gai_strerror(rc));
    memcpy(&t->address, found->ai_addr, found->ai_addrlen);
    t->n_address = found->ai_addrlen;
    freeaddrinfo(found);
    snprintf(t->host, sizeof t->host, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return 0;
}

/* ---- the connection ---- */

static void disconnect(LoadConn *c)
{
    if (c->bev) bufferevent_free(c->bev);
    c->bev = NULL;
    c->busy = c->n_earlier = 0;
}

static void failed(LoadConn *c, const char *why, int stale)
{
    int was_busy = c->busy;
    disconnect(c);
    if (was_busy) c->callbacks.failed(c->ctx, why, stale);
}

/* An idle connection that the server closes is no failure: the next request opens another. */
static void on_event(struct bufferevent *bev, short what, void *arg)
{
    LoadConn *c = arg;
    char why[160];
    (void)bev;
    if (what & BEV_EVENT_CONNECTED) return;
    const char *said = what & BEV_EVENT_TIMEOUT ? "nothing came in time"
                       : what & BEV_EVENT_EOF   ? "the server closed the connection"
                                                : strerror(errno);
    snprintf(why, sizeof why, "%s, %zu bytes into the reply's body", said, c->body.len);
    failed(c, why, c->n_earlier && !c->heard && !(what & BEV_EVENT_TIMEOUT));
}

static void on_written(struct bufferevent *bev, void *arg)
{
    LoadConn *c = arg;
    (void)bev;
    if (c->busy) c->callbacks.sent(c->ctx);
}

/* ---- reading ---- */

static int same_header(const char *line, const char *name, const char **value)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':') return 0;
    *value = line + n + 1 + strspn(line + n + 1, " ");
    return 1;
}

static void read_header(LoadConn *c, const char *line)
{
    const char *value;
    if (same_header(line, "Content-Length", &value)) {
        c->has_length = 1;
        c->n_left = strtoul(value, NULL, 10);
    } else if (same_header(line, "Transfer-Encoding", &value)) {
        c->chunked = !strcasecmp(value, "chunked");
    } else if (same_header(line, "Content-Type", &value)) {
        c->stream = !strncasecmp(value, "text/event-stream", 17);
    } else if (same_header(line, "Retry-After", &value)) {
        c->retry_after_s = (int)strtol(value, NULL, 10);
    } else if (same_header(line, "Connection", &value)) {
        c->closes = !strcasecmp(value, "close");
    }
}

/* NULL, or what is wrong with a line of the head or between chunks. */
static const char *read_line(LoadConn *c, const char *line)
{
    char *end;
    switch (c->part) {
    case READ_STATUS:
        c->part = READ_HEADERS;
        c->status = strncmp(line, "HTTP/1.1 ", 9) ? 0 : (int)strtol(line + 9, NULL, 10);
        return c->status ? NULL : "the reply has no status line";
    case READ_HEADERS:
        if (*line)
            read_header(c, line);
        else if (c->chunked == c->has_length)
            return "the reply needs a length or chunks, not both";
        else
            c->part = c->chunked ? READ_SIZE : READ_BODY;
        return NULL;
    case READ_SIZE:
        c->part = READ_CHUNK;
        c->n_left = strtoul(line, &end, 16);
        c->last_chunk = !c->n_left;
        return end != line && !*end ? NULL : "a chunk has no size";
    default:
        c->part = READ_SIZE;
        return *line ? "a chunk is longer than it says" : NULL;
    }
}

static void take_body(LoadConn *c, struct evbuffer *in)
{
    char piece[16384];
    while (c->n_left) {
        size_t most = c->n_left < sizeof piece ? c->n_left : sizeof piece;
        int n = evbuffer_remove(in, piece, most);
        if (n <= 0) return;
        strbuf_add(&c->body, piece, (size_t)n);
        c->n_left -= (size_t)n;
    }
}

/* 1 when the reply is whole, 0 when more must come; *why when it is malformed. */
static int read_parts(LoadConn *c, struct evbuffer *in, const char **why)
{
    for (;;) {
        if (c->part == READ_BODY || c->part == READ_CHUNK) {
            take_body(c, in);
            if (c->n_left) return 0;
            if (c->part == READ_BODY) return 1;
            c->part = READ_CHUNK_END;
        }
        char *line = evbuffer_readln(in, NULL, EVBUFFER_EOL_CRLF_STRICT);
        if (!line) return 0;
        int was_last = c->part == READ_CHUNK_END && c->last_chunk;
        *why = read_line(c, line);
        free(line);
        if (*why) return 0;
        if (was_last) return 1;
    }
}

/* NULL, or what is too long. Of a reply that is not whole yet a line without end is left in `in`.
 */
static const char *too_long(const LoadConn *c, int whole, const struct evbuffer *in)
{
    if (c->body.len > BODY_MOST) return "the reply has more than 64 MiB";
    if (!whole && evbuffer_get_length(in) > HEAD_LINE_MOST) return "a line of the reply has no end";
    return NULL;
}

/*
 * Events that ended (with an empty line) and were not counted yet. A comment, which only says that
 * the server lives, is none.
 */
static int count_events(LoadConn *c)
{
    int n = 0;
    while (c->stream && c->n_scanned + 1 < c->body.len) {
        const char *from = c->body.data + c->n_scanned;
        const char *end = memmem(from, c->body.len - c->n_scanned, "\n\n", 2);
        c->n_scanned = end ? (size_t)(end - c->body.data) + 2 : c->body.len - 1;
        if (!end) continue;
        n += c->body.data[c->event_at] != ':';
        c->event_at = c->n_scanned;
    }
    return n;
}

static void on_readable(struct bufferevent *bev, void *arg)
{
    LoadConn *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    const char *why = NULL;
    if (!c->busy) {
        disconnect(c);
        return;
    }
    c->heard = 1;
    int whole = read_parts(c, in, &why);
    if (!why) why = too_long(c, whole, in);
    int n_events = why ? 0 : count_events(c);
    if (!why && whole && evbuffer_get_length(in)) why = "bytes follow the end of the reply";
    if (why) {
        failed(c, why, 0);
        return;
    }
    unsigned serial = c->serial;
    if (n_events) c->callbacks.events(c->ctx, n_events);
    if (!whole || !c->busy || c->serial != serial) return; /* the callback dropped it */
    LoadReply reply = {c->status, c->retry_after_s, &c->body};
    c->busy = 0;
    c->n_earlier++;
    if (c->closes) disconnect(c);
    c->callbacks.reply(c->ctx, &reply);
}

/* ---- the interface ---- */

LoadConn *load_conn_open(struct event_base *base, const LoadTarget *target, int timeout_s,
                         const LoadCallbacks *callbacks, void *ctx)
{
    LoadConn *c = mem_alloc(1, sizeof *c);
    *c = (LoadConn){.base = base,
                    .target = target,
                    .callbacks = *callbacks,
                    .ctx = ctx,
                    .timeout_s = timeout_s};
    return c;
}

/* A refused connection is reported from the event loop, like all that goes wrong later. */
static void connect_to(LoadConn *c)
{
    struct timeval patience = {.tv_sec = c->timeout_s};
    c->bev = bufferevent_socket_new(c->base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    bufferevent_setcb(c->bev, on_readable, on_written, on_event, c);
    bufferevent_set_timeouts(c->bev, &patience, &patience);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    bufferevent_socket_connect(c->bev, (const struct sockaddr *)&c->target->address,
                               (int)c->target->n_address);
}

void load_conn_send(LoadConn *c, const char *path, const char *body, size_t len)
{
    if (!c->bev) connect_to(c);
    c->busy = 1;
    c->heard = 0;
    c->serial++;
    c->part = READ_STATUS;
    c->status = c->retry_after_s = 0;
    c->chunked = c->stream = c->closes = c->has_length = 0;
    c->n_left = c->n_scanned = c->event_at = 0;
    strbuf_clear(&c->body);
    struct evbuffer *out = bufferevent_get_output(c->bev);
    evbuffer_add_printf(out, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n",
                        path, c->target->host);
    if (c->target->key) evbuffer_add_printf(out, "Authorization: Bearer %s\r\n", c->target->key);
    evbuffer_add_printf(out, "Content-Length: %zu\r\n\r\n", len);
    evbuffer_add(out, body, len);
}

void load_conn_drop(LoadConn *c)
{
    disconnect(c);
}

void load_conn_close(LoadConn *c)
{
    disconnect(c);
    strbuf_free(&c->body);
    mem_free(c);
}
