/*
 * handover.h: one server takes the place of another on the same machine: it gets the listening
 * socket itself, so no client finds the door shut.
 *
 * Each server offers its socket to processes of its own user, at an abstract Unix socket named by
 * host and port (so within one network namespace, as the port). Who is to take over connects when
 * it starts, asks when it is ready, and gets two descriptors: what clients connect to, and what the
 * next one will connect to. Connections that wait to be accepted are in the first, and come along.
 */
#ifndef OFFSHOOT_SERVER_HANDOVER_H
#define OFFSHOOT_SERVER_HANDOVER_H

#include <event2/event.h>

typedef struct Handover Handover;

/*
 * Offers listener, of host and port, to who asks, until somebody has it: then given(ctx) is called.
 * fd: what it is offered at, from handover_take, or -1. NULL where that is not possible: somebody
 * else has the name. listener stays the caller's.
 *
 * Both sockets are open elsewhere from then on, so closing them does not end what epoll watches:
 * they are to be closed in a later turn of the loop than the one in which events were deleted.
 */
Handover *handover_offer(struct event_base *base, const char *host, int port, int listener, int fd,
                         void (*given)(void *ctx), void *ctx);
void handover_close(Handover *h);

/* A connection to the server that has host and port, to be closed; -1: there is none. */
int handover_find(const char *host, int port);

/*
 * Asks it for its place: the listening socket, and in *offered what handover_offer takes, both to
 * be closed. -1 when it is not there any more, or has not answered within seconds.
 */
int handover_take(int found, int port, int *offered);

#endif
