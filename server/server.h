/*
 * server.h: the HTTP server as a thing that can be opened, run and stopped; serve_run is made of
 * it.
 */
#ifndef OFFSHOOT_SERVER_SERVER_H
#define OFFSHOOT_SERVER_SERVER_H

#include "server/http.h"
#include "server/service.h"

typedef struct Server Server;

typedef struct {
    HttpLimits http;
    int drain_s; /* what running answers get to finish after server_stop */
} ServerLimits;

ServerLimits server_limits(void);

/*
 * Listens where the settings say (port 0 takes a free one) and starts the engine's thread, which
 * owns the engine until server_close. service must stay. limits NULL: the usual ones.
 */
Server *server_open(const Service *service, const ServerLimits *limits, Error *err);
int server_port(const Server *s);

/* Serves until server_stop and its drain, or until the device is lost. 0, or -1 for the latter. */
int server_run(Server *s, Error *err);

/* Ends server_run; a second call ends it without waiting. From any thread or signal handler. */
void server_stop(Server *s);

/* Answers in the engine or waiting for it. From any thread. */
int server_n_live(const Server *s);

void server_close(Server *s);

#endif
