/* loading.c: see loading.h. */
#include "server/loading.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"

struct Loading {
    ServiceLoader loader;
    pthread_t thread;
    int joined;
    int fd; /* an eventfd, written once */
    /* The thread's until then. */
    Service service;
    Error err;
    int rc;
};

static void *load(void *arg)
{
    Loading *l = arg;
    uint64_t one = 1;
    l->rc = l->loader.load(l->loader.ctx, &l->service, &l->err);
    ssize_t n = write(l->fd, &one, sizeof one);
    (void)n;
    return NULL;
}

Loading *loading_start(const ServiceLoader *loader, Error *err)
{
    Loading *l = mem_alloc(1, sizeof *l);
    l->loader = *loader;
    l->fd = eventfd(0, EFD_CLOEXEC);
    if (l->fd < 0)
        error_set(err, ERR_FILE, "cannot make an eventfd: %s", strerror(errno));
    else if (!thread_start(&l->thread, load, l, "loading", err))
        return l;
    if (l->fd >= 0) close(l->fd);
    mem_free(l);
    return NULL;
}

int loading_fd(const Loading *l)
{
    return l->fd;
}

static void join(Loading *l)
{
    if (!l->joined) pthread_join(l->thread, NULL);
    l->joined = 1;
}

int loading_result(Loading *l, Service *service, Error *err)
{
    join(l);
    *service = l->service;
    if (l->rc) *err = l->err;
    return l->rc;
}

void loading_close(Loading *l)
{
    if (!l) return;
    join(l);
    close(l->fd);
    mem_free(l);
}
