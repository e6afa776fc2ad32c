/* loading.c: see loading.h. */
#include "server/loading.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

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

/* Signals are the server thread's business. */
static int start_thread(Loading *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&l->thread, NULL, load, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

Loading *loading_start(const ServiceLoader *loader, Error *err)
{
    Loading *l = mem_alloc(1, sizeof *l);
    l->loader = *loader;
    l->fd = eventfd(0, EFD_CLOEXEC);
    int failed = l->fd < 0 ? errno : start_thread(l);
    if (!failed) return l;
    error_set(err, ERR_FILE, "cannot start the loading thread: %s", strerror(failed));
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
