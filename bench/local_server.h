/*
 * local_server.h: a server in this process, on a thread of its own and a free port, for benches
 * that ask it like any other.
 */
#ifndef OFFSHOOT_BENCH_LOCAL_SERVER_H
#define OFFSHOOT_BENCH_LOCAL_SERVER_H

#include <pthread.h>

#include "server/server.h"

typedef struct {
    Service service; /* the caller's, on a port of its own */
    Settings settings;
    Server *server; /* NULL: it does not run */
    pthread_t thread;
    int rc;
    Error err;
} LocalServer;

/* Serves what s has open; comes back when it answers. The LocalServer must stay where it is. */
int local_server_start(LocalServer *l, const Service *s, Error *err);

/* Ends it, if it runs; -1 with the server's own Error when it had failed. */
int local_server_stop(LocalServer *l, Error *err);

/* Its "http://HOST:PORT". */
void local_server_url(const LocalServer *l, char *url, size_t size);

#endif
