/*
 * orders.h: exchanges that wait until the engine's thread has done what they ask for.
 */
#ifndef OFFSHOOT_SERVER_ORDERS_H
#define OFFSHOOT_SERVER_ORDERS_H

#include "server/server_state.h"

/*
 * Replies with 200 once the order is obeyed, with 503 after patience_s (0: it waits), or at once
 * when the server cannot serve.
 */
void orders_give(Server *s, Exchange *ex, EngineOrder order, int patience_s);

/* After dispatch_read: replies to those that are obeyed; to all, with the failure, on s->lost. */
void orders_reply(Server *s);

/* No exchange is left. */
void orders_close(Server *s);

#endif
