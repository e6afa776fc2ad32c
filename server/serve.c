/*
 * serve.c: the server's loop: opening, loading, stopping; see server.h and server_state.h.
 *
 * One thread runs libevent's loop and what its events call. Others are behind dispatch (the
 * engine's), worker (large bodies and replies, grammars) and loading; what may be called from them,
 * or from anywhere, says so in its header.
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "server/call.h"
#include "server/orders.h"

/*
 * Answers in the engine beside those that run: the next ones, so that it need not wait for us when
 * one ends. More would be out of reach of the fair line.
 */
enum { PLACES_AHEAD = 2 };

/* ---- what routes ask of the server ---- */

int server_run_task(Server *s, Exchange *ex, const Task *task, char **body, const char **text,
                    size_t *len)
{
    *text = exchange_body(ex, len);
    if (*len <= INLINE_BODY_BYTES) {
        int rc;
        while ((rc = task->run(task->owner)) == TASK_MORE) {
        }
        if (rc == TASK_DONE) task->done(task->owner);
        if (rc == TASK_DONE || !worker_add(s->compiler, task)) return 0;
        exchange_error(ex, 429, "queue_full", NULL, "too many schemas are waiting; try again");
        return -1;
    }
    *body = mem_alloc(1, *len);
    memcpy(*body, *text, *len);
    *text = *body;
    if (!worker_add(s->worker, task)) return 0;
    exchange_error(ex, 429, "queue_full", NULL, "too many large requests are waiting; try again");
    return -1;
}

json_t *server_parse_body(Server *s, const char *text, size_t len, size_t *held, ApiError *err)
{
    size_t bytes;
    json_t *body = api_parse_body(text, len, &bytes, err);
    if (!server_hold_json(s, bytes, held, err)) return body;
    json_decref(body);
    return NULL;
}

int server_hold_json(Server *s, size_t bytes, size_t *held, ApiError *err)
{
    size_t others = atomic_fetch_add(&s->json_bytes, bytes) - *held;
    *held += bytes;
    if (!bytes || !others || others + *held <= (size_t)s->limits.all_json_bytes) return 0;
    err->code = "queue_full";
    return api_error(err, ERR_BUSY, NULL, "the requests that are open hold too much; try again");
}

void server_forget_json(Server *s, size_t held)
{
    atomic_fetch_sub(&s->json_bytes, held);
}

ApiDefaults server_defaults(const Server *s, int max_tokens)
{
    const Settings *settings = s->service->settings;
    int chosen = settings->default_max_tokens >= 0 ? settings->default_max_tokens : max_tokens;
    return (ApiDefaults){
        .sampling = service_sampling(s->service),
        .max_tokens = service_max_tokens(s->service, chosen),
        .family = s->service->tmpl.family,
        .chat = service_chat_options(settings),
        .n_vocab = s->n_vocab,
    };
}

const char *server_fingerprint(const Server *s)
{
    return s->fingerprint;
}

int server_check_model(const Server *s, const char *asked, ApiError *err)
{
    if (!s->settings->strict_model || !asked || !strcmp(asked, s->service->model_name)) return 0;
    err->code = "model_not_found";
    return api_error(err, ERR_INPUT, "model", "The model '%.80s' does not exist.", asked);
}

void server_refuse(Exchange *ex, const ApiError *err)
{
    int status = http_status(err->error.code);
    if (err->code && !strcmp(err->code, "model_not_found")) status = 404;
    exchange_error(ex, status, err->code, err->param[0] ? err->param : NULL, err->error.msg);
}

static void on_exchange_ended(void *ctx, const char *route, int status)
{
    const Server *s = ctx;
    if (s->metrics) metrics_http(s->metrics, route, status);
}

/* ---- running ---- */

static void quit(Server *s)
{
    event_base_loopbreak(s->base);
}

static void on_idle(void *ctx)
{
    Server *s = ctx;
    if (s->draining) quit(s);
}

/*
 * Takes no new work, and says so to who asks; ends when the running answers have, or after seconds.
 */
static void drain(Server *s, int seconds)
{
    struct timeval patience = {.tv_sec = seconds};
    s->draining = 1;
    event_add(s->on_drained, &patience);
    if (!http_n_open(s->http)) quit(s);
}

static void on_drained(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    log_warn("drain_ended open=%d: these answers are cut", http_n_open(((Server *)ctx)->http));
    quit(ctx);
}

static void on_stop(evutil_socket_t fd, short what, void *ctx)
{
    Server *s = ctx;
    uint64_t times = 0;
    (void)what;
    ssize_t n = read((int)fd, &times, sizeof times);
    (void)n;
    if (s->draining || times > 1 || !s->service) {
        quit(s);
        return;
    }
    log_info("stopping open=%d", http_n_open(s->http));
    drain(s, s->limits.drain_s);
}

/* A terminal that closes hangs up more than once; that is not yet impatience. */
static void on_signal(evutil_socket_t signal_number, short what, void *ctx)
{
    Server *s = ctx;
    int again = signal_number == SIGHUP && (s->hung_up || s->draining);
    (void)what;
    if (signal_number == SIGHUP) s->hung_up = 1;
    if (!again) server_stop(s);
}

/* Clients still get their 500, if they take it soon. */
static void on_lost(Server *s)
{
    enum { FAREWELL_S = 2 };
    s->lost = 1;
    log_error("engine_lost reason='%s'", s->failure.msg);
    if (!s->draining) drain(s, FAREWELL_S);
}

static void on_worked(evutil_socket_t fd, short what, void *ctx)
{
    Server *s = ctx;
    (void)fd;
    (void)what;
    worker_read(s->worker);
    worker_read(s->compiler);
    call_flush_all(s);
}

static void on_second(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    call_drop_slow(ctx);
}

static void on_reports(evutil_socket_t fd, short what, void *ctx)
{
    Server *s = ctx;
    (void)fd;
    (void)what;
    int rc = dispatch_read(s->dispatch, &s->failure);
    if (rc != 1) call_flush_all(s);
    if (rc < 0) on_lost(s);
    orders_reply(s);
}

int server_is_ending(const Server *s)
{
    return (s->draining && !s->handed_over) || s->lost;
}

int server_refuse_unwell(const Server *s, Exchange *ex)
{
    if (server_is_ending(s))
        exchange_error(ex, 503, "draining", NULL, "the server is shutting down");
    else if (dispatch_silent_ms(s->dispatch) > (int64_t)s->limits.stall_s * 1000)
        exchange_error(ex, 503, "stalled", NULL, "the engine has work and makes no step");
    else
        return 0;
    return 1;
}

/* ---- our place, and who has it ---- */

/* Those of our clients who have sent a request by now still get their reply here. */
static void on_left(evutil_socket_t fd, short what, void *ctx)
{
    Server *s = ctx;
    (void)fd;
    (void)what;
    http_close_listener(s->http);
    handover_close(s->handover);
    s->handover = NULL;
    if (!s->draining) drain(s, s->limits.drain_s);
}

static void on_given(void *ctx)
{
    static const struct timeval grace = {.tv_sec = 1};
    Server *s = ctx;
    s->handed_over = 1;
    http_stop_listening(s->http);
    log_info("handed_over open=%d connections=%d", http_n_open(s->http),
             http_n_connections(s->http));
    if (!s->service) {
        quit(s);
        return;
    }
    event_add(s->on_left, &grace);
}

/* fd: what the place is offered at, or -1. */
static void offer_place(Server *s, int fd)
{
    s->handover = handover_offer(s->base, s->settings->host, http_port(s->http),
                                 http_listener(s->http), fd, on_given, s);
}

static int listen_here(Server *s, Error *err)
{
    if (http_listen(s->http, s->settings->host, s->settings->port, err)) return -1;
    offer_place(s, -1);
    return 0;
}

enum { ADDRESS_BYTES = 320 };

/* Ours as a URL has it, where an IPv6 address stands in brackets. */
static const char *address(const Server *s, int port, char text[ADDRESS_BYTES])
{
    const char *host = s->settings->host;
    snprintf(text, ADDRESS_BYTES, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
    return text;
}

/* The place of who has it: whom we know, another by now, or nobody. */
static int take_place(Server *s, Error *err)
{
    enum { TRIES = 3 };
    const Settings *set = s->settings;
    char text[ADDRESS_BYTES];
    int offered = -1, fd = -1;
    for (int i = 0; i < TRIES && fd < 0 && s->predecessor >= 0; i++) {
        fd = handover_take(s->predecessor, set->port, &offered);
        close(s->predecessor);
        s->predecessor = fd < 0 ? handover_find(set->host, set->port) : -1;
    }
    if (fd < 0) return listen_here(s, err);
    if (http_adopt(s->http, fd)) {
        close(fd);
        close(offered);
        return error_set(err, ERR_FILE, "cannot listen at the socket that was handed over");
    }
    offer_place(s, offered);
    log_info("taken_over address=%s", address(s, server_port(s), text));
    return 0;
}

int server_run(Server *s, Error *err)
{
    char text[ADDRESS_BYTES];
    if (s->predecessor >= 0)
        log_info("loading address=%s: its server goes on until this one is ready",
                 address(s, s->settings->port, text));
    else
        log_info("listening address=%s", address(s, server_port(s), text));
    event_base_dispatch(s->base);
    log_info("stopped");
    return s->lost ? error_set(err, s->failure.code, "%s", s->failure.msg) : 0;
}

void server_stop(Server *s)
{
    uint64_t one = 1;
    ssize_t n = write(s->stop_fd, &one, sizeof one);
    (void)n;
}

int server_is_ready(const Server *s)
{
    return atomic_load(&s->is_ready);
}

int server_n_live(const Server *s)
{
    return atomic_load(&s->n_live);
}

int server_port(const Server *s)
{
    return http_port(s->http);
}

/* ---- opening and closing ---- */

static struct event *watch(Server *s, int fd, void (*callback)(evutil_socket_t, short, void *))
{
    struct event *e = event_new(s->base, fd, EV_READ | EV_PERSIST, callback, s);
    event_add(e, NULL);
    return e;
}

static void open_metrics(Server *s)
{
    const Service *service = s->service;
    s->metrics = metrics_open(&(MetricsInfo){.model_name = service->model_name,
                                             .device = service->device,
                                             .quant = quant_name(s->config->quant),
                                             .weights_s = service->weights_s,
                                             .prefix_cache = s->settings->prefix_cache == ON});
}

/* What the loader has made is there: from here on the engine is its thread's. */
static int begin_service(Server *s)
{
    EngineStatus status;
    if (loading_result(s->loading, &s->loaded, &s->failure)) return -1;
    engine_status(s->loaded.engine, &status);
    s->ctx_size = status.ctx_size;
    s->n_vocab = status.n_vocab;
    s->draft_depth = status.draft_depth;
    s->config = engine_config(s->loaded.engine);
    static const char end_of_thinking[] = "\n</think>\n\n";
    if (tokenizer_encode(s->loaded.tok, end_of_thinking, strlen(end_of_thinking),
                         &s->end_of_thinking, &s->failure))
        return -1;
    s->dispatch =
        dispatch_open(s->loaded.engine, status.max_seqs + PLACES_AHEAD,
                      status.max_seqs + s->settings->max_waiting, call_progress, s, &s->failure);
    if (!s->dispatch) return -1;
    s->on_reports = watch(s, dispatch_fd(s->dispatch), on_reports);
    s->service = &s->loaded;
    snprintf(s->fingerprint, sizeof s->fingerprint, "offshoot-%s-%s", OFFSHOOT_VERSION,
             s->loaded.device);
    open_metrics(s);
    s->structures = structures_open(&s->loaded, s->config, status.max_seqs);
    if (s->settings->prefix_cache == ON) s->returned = returned_open(s->loaded.tok);
    return 0;
}

static void on_loaded(evutil_socket_t fd, short what, void *ctx)
{
    Server *s = ctx;
    (void)fd;
    (void)what;
    event_del(s->on_loaded);
    if (begin_service(s) || (s->predecessor >= 0 && take_place(s, &s->failure))) {
        s->lost = 1;
        quit(s);
        return;
    }
    atomic_store(&s->is_ready, 1);
    log_info("ready seconds=%.2f model=%s context=%d", (clock_ms() - s->opened_ms) / 1e3,
             s->service->model_name, s->ctx_size);
}

/*
 * Changes to what epoll watches are gathered and made before it waits: most cancel out, as evhttp
 * stops reading for every request and we go on. It asks that no descriptor is a copy (dup): those
 * of our place become copies when they are handed over, and are closed a turn later.
 */
static struct event_base *open_base(void)
{
    struct event_config *config = event_config_new();
    event_config_set_flag(config, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

static int open_loop(Server *s, const ServiceLoader *loader, Error *err)
{
    const Settings *set = s->settings;
    HttpHandler handler = {server_admit, server_route, s};
    if (http_fit_files(&s->limits.http, err)) return -1;
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->base = open_base();
    if (!s->base || s->stop_fd < 0)
        return error_set(err, ERR_FILE, "cannot make an event loop: %s", strerror(errno));
    s->http = http_open(s->base, &s->limits.http, &handler, err);
    if (!s->http) return -1;
    if (set->takeover) s->predecessor = handover_find(set->host, set->port);
    if (s->predecessor < 0 && listen_here(s, err)) return -1;
    http_set_idle(s->http, on_idle);
    http_set_ended(s->http, on_exchange_ended);
    s->pulse = stream_pulse_open(s->base, s->limits.keepalive_s);
    s->on_stop = watch(s, s->stop_fd, on_stop);
    s->on_drained = evtimer_new(s->base, on_drained, s);
    s->on_left = evtimer_new(s->base, on_left, s);
    s->on_second = event_new(s->base, -1, EV_PERSIST, on_second, s);
    event_add(s->on_second, &(struct timeval){.tv_sec = 1});
    s->worker = worker_open(MAX_LARGE_BODIES, err);
    s->compiler = s->worker ? worker_open(MAX_COMPILING, err) : NULL;
    if (!s->compiler) return -1;
    s->on_worked = watch(s, worker_fd(s->worker), on_worked);
    s->on_compiled = watch(s, worker_fd(s->compiler), on_worked);
    s->loading = loading_start(loader, err);
    if (!s->loading) return -1;
    s->on_loaded = watch(s, loading_fd(s->loading), on_loaded);
    return 0;
}

Server *server_open(const Settings *settings, const ServiceLoader *loader, Error *err)
{
    Server *s = mem_alloc(1, sizeof *s);
    s->settings = settings;
    s->limits = settings->limits;
    s->started = time(NULL);
    s->opened_ms = clock_ms();
    s->stop_fd = s->predecessor = -1;
    if (open_loop(s, loader, err)) {
        server_close(s);
        return NULL;
    }
    return s;
}

static void event_release(struct event *e)
{
    if (e) event_free(e);
}

/* Connections first: vanished clients cancel; then the engine's thread; then what it was lent. */
void server_close(Server *s)
{
    if (!s) return;
    event_release(s->on_loaded);
    event_release(s->on_reports);
    event_release(s->on_worked);
    event_release(s->on_compiled);
    event_release(s->on_second);
    event_release(s->on_stop);
    event_release(s->on_drained);
    event_release(s->on_left);
    for (int i = 0; i < N_SIGNALS; i++)
        event_release(s->on_signal[i]);
    handover_close(s->handover);
    http_close(s->http);
    if (s->predecessor >= 0) close(s->predecessor);
    loading_close(s->loading);
    worker_close(s->worker);
    s->worker = NULL; /* calls that are freed below have nobody else to do it */
    worker_close(s->compiler);
    dispatch_close(s->dispatch);
    orders_close(s);
    while (s->calls) {
        s->calls->is_dirty = 0;
        call_free(s->calls);
    }
    token_list_free(&s->end_of_thinking);
    stream_pulse_close(s->pulse);
    returned_close(s->returned);
    structures_close(s->structures);
    metrics_close(s->metrics);
    if (s->base) event_base_free(s->base);
    if (s->stop_fd >= 0) close(s->stop_fd);
    mem_free(s);
}

/* Who started us with nohup wants no hanging up. */
static int is_ignored(int signal_number)
{
    struct sigaction now;
    return !sigaction(signal_number, NULL, &now) && now.sa_handler == SIG_IGN;
}

static void watch_signals(Server *s)
{
    static const int signals[N_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < N_SIGNALS; i++) {
        if (signals[i] == SIGHUP && is_ignored(SIGHUP)) continue;
        s->on_signal[i] = evsignal_new(s->base, signals[i], on_signal, s);
        event_add(s->on_signal[i], NULL);
    }
}

int serve_run(const Settings *settings, const ServiceLoader *loader, Error *err)
{
    signal(SIGUSR1, SIG_IGN); /* others reopen logs on these: no reason to end */
    signal(SIGUSR2, SIG_IGN);
    Server *s = server_open(settings, loader, err);
    if (!s) return -1;
    watch_signals(s);
    int rc = server_run(s, err);
    if (!rc && !s->service) return SERVE_LEFT_LOADING; /* to close it would be to wait */
    server_close(s);
    return rc;
}
