/* local_server.c: see local_server.h. The only place of the benches that opens a server. */
#include "bench/local_server.h"

#include <stdio.h>
#include <unistd.h>

#include "base/thread.h"

static void *run_server(void *arg)
{
    LocalServer *l = arg;
    l->rc = server_run(l->server, &l->err);
    return NULL;
}

/* All is loaded already. */
static int lend_service(void *ctx, Service *service, Error *err)
{
    const LocalServer *l = ctx;
    (void)err;
    *service = l->service;
    return 0;
}

int local_server_start(LocalServer *l, const Service *s, Error *err)
{
    *l = (LocalServer){.service = *s, .settings = *s->settings};
    l->settings.host = "127.0.0.1";
    l->settings.port = 0;
    l->service.settings = &l->settings;
    l->server = server_open(&l->settings, &(ServiceLoader){lend_service, l}, err);
    if (!l->server) return -1;
    if (!thread_start(&l->thread, run_server, l, "server", err)) {
        while (!server_is_ready(l->server))
            usleep(1000);
        return 0;
    }
    server_close(l->server);
    l->server = NULL;
    return -1;
}

int local_server_stop(LocalServer *l, Error *err)
{
    if (!l->server) return 0;
    server_stop(l->server);
    pthread_join(l->thread, NULL);
    server_close(l->server);
    l->server = NULL;
    return l->rc ? error_set(err, l->err.code, "%s", l->err.msg) : 0;
}

void local_server_url(const LocalServer *l, char *url, size_t size)
{
    snprintf(url, size, "http://127.0.0.1:%d", server_port(l->server));
}
