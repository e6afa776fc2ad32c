/* orders.c: see orders.h. */
#include "server/orders.h"

#include "base/mem.h"

/* In the order they were given; it stays until it is obeyed, its client or not. */
struct Order {
    Exchange *ex; /* NULL: it has its reply or is gone */
    long number;
    struct event *patience; /* NULL: none */
    Order *next;
};

static void on_gone(void *owner)
{
    ((Order *)owner)->ex = NULL;
}

static void on_patience(evutil_socket_t fd, short what, void *ctx)
{
    Order *o = ctx;
    (void)fd;
    (void)what;
    if (o->ex) exchange_error(o->ex, 503, "stalled", NULL, "the engine does not answer");
    o->ex = NULL;
}

void orders_give(Server *s, Exchange *ex, EngineOrder order, int patience_s)
{
    struct timeval patience = {.tv_sec = patience_s};
    if (server_refuse_unwell(s, ex)) return;
    long number = dispatch_order(s->dispatch, order);
    if (number < 0) {
        exchange_error(ex, 429, "queue_full", NULL, "too many such requests are waiting");
        return;
    }
    Order *o = mem_alloc(1, sizeof *o), **at = &s->orders;
    *o = (Order){.ex = ex, .number = number};
    if (patience_s) {
        o->patience = evtimer_new(s->base, on_patience, o);
        event_add(o->patience, &patience);
    }
    while (*at)
        at = &(*at)->next;
    *at = o;
    exchange_watch(ex, on_gone, o);
}

static void drop_first(Server *s)
{
    Order *o = s->orders;
    s->orders = o->next;
    if (o->patience) event_free(o->patience);
    mem_free(o);
}

void orders_reply(Server *s)
{
    while (s->orders && (s->lost || s->orders->number <= dispatch_n_obeyed(s->dispatch))) {
        Exchange *ex = s->orders->ex;
        drop_first(s);
        if (ex && s->lost)
            exchange_error(ex, http_status(s->failure.code), NULL, NULL, s->failure.msg);
        else if (ex)
            exchange_json(ex, json_pack("{s:s}", "status", "ok"));
    }
}

void orders_close(Server *s)
{
    while (s->orders)
        drop_first(s);
}
