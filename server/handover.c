/* handover.c: see handover.h. */
#include "server/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/socket.h"

enum { N_GIVEN = 2, BACKLOG = 4, PATIENCE_S = 5, ASKED = 'g' };

/* One that has connected, and may ask some day. */
typedef struct Taker {
    Handover *offer;
    struct event *readable;
    int fd;
    struct Taker *next;
} Taker;

struct Handover {
    struct event_base *base;
    struct event *acceptable;
    int fd, listener;
    void (*given)(void *ctx);
    void *ctx;
    Taker *takers;
};

/* The name of a socket without a file: it begins with a zero and ends where the address does. */
static socklen_t name_of(struct sockaddr_un *a, const char *host, int port)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "offshoot %s:%d", host, port);
    size_t most = sizeof a->sun_path - 1, length = (size_t)n < most ? (size_t)n : most;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* 1 when a process of our user is at the other end. */
static int is_ours(int fd)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) && peer.uid == geteuid();
}

/* ---- who gives ---- */

static void forget(Taker *t)
{
    Taker **at = &t->offer->takers;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    event_free(t->readable);
    close(t->fd);
    mem_free(t);
}

/* Room for the descriptors in a message, as aligned as it must be. */
typedef union {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(N_GIVEN * sizeof(int))];
} Passenger;

static int send_descriptors(int to, const int fd[N_GIVEN])
{
    char word = ASKED;
    Passenger p = {0};
    struct iovec text = {&word, 1};
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = p.bytes,
                       .msg_controllen = sizeof p.bytes};
    struct cmsghdr *head = CMSG_FIRSTHDR(&m);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(N_GIVEN * sizeof(int));
    memcpy(CMSG_DATA(head), fd, N_GIVEN * sizeof(int));
    return sendmsg(to, &m, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static void on_asked(evutil_socket_t fd, short what, void *ctx)
{
    Taker *t = ctx;
    Handover *h = t->offer;
    char word = 0;
    (void)what;
    ssize_t n = read((int)fd, &word, 1);
    if (n < 0 && errno == EAGAIN) return;
    int is_given = n == 1 && word == ASKED &&
                   !send_descriptors((int)fd, (const int[N_GIVEN]){h->listener, h->fd});
    forget(t);
    if (!is_given) return;
    event_del(h->acceptable);
    while (h->takers) /* they ask whoever has it now */
        forget(h->takers);
    h->given(h->ctx);
}

static void on_connected(evutil_socket_t fd, short what, void *ctx)
{
    Handover *h = ctx;
    (void)what;
    int taker = accept4((int)fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (taker < 0) { /* out of file descriptors: as http.c, not a whole core */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        return;
    }
    if (!is_ours(taker)) {
        close(taker);
        return;
    }
    Taker *t = mem_alloc(1, sizeof *t);
    *t = (Taker){.offer = h, .fd = taker, .next = h->takers};
    t->readable = event_new(h->base, taker, EV_READ | EV_PERSIST, on_asked, t);
    event_add(t->readable, NULL);
    h->takers = t;
}

Handover *handover_offer(struct event_base *base, const char *host, int port, int listener, int fd,
                         void (*given)(void *ctx), void *ctx)
{
    struct sockaddr_un name;
    socklen_t n = name_of(&name, host, port);
    if (fd < 0) {
        fd = open_socket();
        if (fd < 0 || bind(fd, (struct sockaddr *)&name, n) || listen(fd, BACKLOG)) {
            log_debug("no_handover host=%s port=%d reason='%s'", host, port, strerror(errno));
            if (fd >= 0) close(fd);
            return NULL;
        }
    }
    Handover *h = mem_alloc(1, sizeof *h);
    *h = (Handover){.base = base, .fd = fd, .listener = listener, .given = given, .ctx = ctx};
    h->acceptable = event_new(base, fd, EV_READ | EV_PERSIST, on_connected, h);
    event_add(h->acceptable, NULL);
    return h;
}

void handover_close(Handover *h)
{
    if (!h) return;
    while (h->takers)
        forget(h->takers);
    event_free(h->acceptable);
    close(h->fd);
    mem_free(h);
}

/* ---- who takes ---- */

int handover_find(const char *host, int port)
{
    struct sockaddr_un name;
    socklen_t n = name_of(&name, host, port);
    int fd = open_socket();
    if (fd < 0) return -1;
    if (!connect(fd, (struct sockaddr *)&name, n) && is_ours(fd)) return fd;
    close(fd);
    return -1;
}

static int listens(int fd)
{
    int yes = 0;
    socklen_t n = sizeof yes;
    return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &n) && yes;
}

/* What came with a message of the other side; -1 where that is not what we asked for. */
static int receive_descriptors(int from, int fd[N_GIVEN])
{
    char word = 0;
    Passenger p;
    struct iovec text = {&word, 1};
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = p.bytes,
                       .msg_controllen = sizeof p.bytes};
    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1) return -1;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&m);
    if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
        head->cmsg_len != CMSG_LEN(N_GIVEN * sizeof(int)))
        return -1;
    memcpy(fd, CMSG_DATA(head), N_GIVEN * sizeof(int));
    return 0;
}

/* Waits where open_socket's would not. */
static void set_patience(int fd)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

int handover_take(int found, int port, int *offered)
{
    const char word = ASKED;
    int fd[N_GIVEN];
    set_patience(found);
    if (send(found, &word, 1, MSG_NOSIGNAL) != 1 || receive_descriptors(found, fd)) return -1;
    if (listens(fd[0]) && socket_port(fd[0]) == port && listens(fd[1])) {
        *offered = fd[1];
        return fd[0];
    }
    close(fd[0]);
    close(fd[1]);
    return -1;
}
