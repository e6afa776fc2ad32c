/* echo_server.c: see echo_server.h. */
#include "tests/echo_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/json_out.h"
#include "tests/analyzer.h"

enum { BIG = 8 << 20 };

/* Byte i of it: so that what is lost, doubled or swapped shows. 251 is prime. */
static char big_byte(int i)
{
    return (char)('a' + i % 251 % 26);
}

static void on_gone(void *owner)
{
    Echo *e = owner;
    e->kept = NULL;
    e->n_gone++;
}

static int on_admit(void *ctx, Exchange *ex)
{
    (void)ctx;
    if (strncmp(exchange_path(ex), "/locked", 7) != 0 || exchange_header(ex, "x-key")) return 1;
    exchange_error(ex, 401, NULL, NULL, "no key");
    return 0;
}

static void on_exchange(void *ctx, Exchange *ex)
{
    Echo *e = ctx;
    size_t len;
    const char *body = exchange_body(ex, &len);
    if (!strcmp(exchange_path(ex), "/quit")) event_base_loopbreak(e->base);
    if (!strcmp(exchange_path(ex), "/kept")) {
        e->kept = ex;
        exchange_watch(ex, on_gone, e);
        return;
    }
    if (strstr(exchange_path(ex), "/busy")) {
        exchange_error(ex, 503, "loading", NULL, "come again");
        return;
    }
    if (!strcmp(exchange_path(ex), "/big")) {
        char *big = mem_alloc(BIG + 1, 1);
        for (int i = 0; i < BIG; i++)
            big[i] = big_byte(i);
        exchange_json(ex, json_pack("{s:s}", "body", big));
        mem_free(big);
        return;
    }
    exchange_json(ex, json_pack("{s:o, s:I, s:o}", "path", json_text(exchange_path(ex)), "length",
                                (json_int_t)len, "body", json_text_n(body, len < 100 ? len : 100)));
}

static void *run(void *arg)
{
    event_base_dispatch(((Echo *)arg)->base);
    return NULL;
}

HttpLimits echo_limits(void)
{
    ServerLimits limits = DEFAULT_SERVER_LIMITS;
    return limits.http;
}

void echo_open(Echo *e, const HttpLimits *limits, int with_thread)
{
    Error err = {0};
    HttpLimits usual = echo_limits();
    HttpHandler handler = {on_admit, on_exchange, e};
    *e = (Echo){.base = event_base_new()};
    e->http = http_open(e->base, limits ? limits : &usual, &handler, &err);
    if (!e->http || http_listen(e->http, "127.0.0.1", 0, &err)) fail_msg("%s", err.msg);
    e->port = http_port(e->http);
    if (with_thread) assert_int_equal(pthread_create(&e->thread, NULL, run, e), 0);
}

void echo_free(Echo *e)
{
    http_close(e->http);
    event_base_loop(e->base, EVLOOP_NONBLOCK); /* what libevent put off still holds connections */
    event_base_free(e->base);
}

void echo_close(Echo *e)
{
    HttpReply r = http_exchange(e->port, "GET", "/echo", "", "");
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    int fd = http_connect(e->port);
    http_send(fd, "GET", "/quit", "", "");
    pthread_join(e->thread, NULL);
    close(fd);
    echo_free(e);
}

void echo_check(const HttpReply *r, const char *asked)
{
    json_t *json = json_loadb(strbuf_str(&r->body), r->body.len, 0, NULL);
    if (!json) fail_msg("%s: no JSON: %s", asked, strbuf_str(&r->body));
    if (r->status >= 400) {
        const json_t *error = json_object_get(json, "error");
        assert_true(json_string_length(json_object_get(error, "message")) > 0);
        assert_non_null(json_object_get(error, "type"));
        assert_non_null(json_object_get(error, "param"));
        assert_non_null(json_object_get(error, "code"));
    }
    json_decref(json);
    assert_string_equal(http_header(r, "Content-Type"), "application/json");
    assert_non_null(strstr(http_header(r, "Server"), "offshoot/"));
    assert_int_equal(strlen(http_header(r, "X-Request-Id")), 32);
}

void echo_check_big(const HttpReply *r)
{
    static const char start[] = "{\"body\":\"";
    size_t n = strlen(start);
    assert_int_equal(r->body.len, n + BIG + 2);
    assert_memory_equal(r->body.data, start, n);
    for (int i = 0; i < BIG; i++)
        if (r->body.data[n + (size_t)i] != big_byte(i))
            fail_msg("byte %d of the reply is wrong", i);
}

int echo_quiet(void **state)
{
    (void)state;
    log_set_level(getenv("TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    return 0;
}
