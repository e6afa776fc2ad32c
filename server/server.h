/*
 * server.h: the HTTP server as a thing that can be opened, run and stopped; serve_run is made of
 * it.
 */
#ifndef OFFSHOOT_SERVER_SERVER_H
#define OFFSHOOT_SERVER_SERVER_H

#include "server/service.h"

typedef struct Server Server;

/*
 * Listens where the settings say (port 0 takes a free one) and loads what it is to serve on a
 * thread of its own; until that is there, clients are told to come again. Then the engine has a
 * thread that owns it until server_close. settings and what load lends must stay.
 */
Server *server_open(const Settings *settings, const ServiceLoader *loader, Error *err);
int server_port(const Server *s);

/*
 * Serves until server_stop and its drain. -1 when loading failed or the device was lost.
 * server_stop ends it at once while the service is loading.
 */
int server_run(Server *s, Error *err);

/* Ends server_run; a second call ends it without waiting. From any thread or signal handler. */
void server_stop(Server *s);

/* Whether the service is loaded. From any thread. */
int server_is_ready(const Server *s);

/* Answers in the engine or waiting for it. From any thread. */
int server_n_live(const Server *s);

/* Waits for a loader that still runs. */
void server_close(Server *s);

#endif
