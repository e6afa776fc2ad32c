/* load_floor.c: see load_floor.h. The thread that calls is the serving one. */
#include "bench/load_floor.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

/* As the requests, replies and chunks of load_cpu.c are, a few bytes more or less. */
enum { REQUEST_BYTES = 220, REPLY_BYTES = 1000, PIECE_BYTES = 300 };
enum { N_REQUESTS = 60, N_STEPS = 128, STEP_BYTES = 16 << 20, CACHE_LINE = 64 };

typedef struct {
    int n_conns;
    int server[FLOOR_MAX_CONNS], client[FLOOR_MAX_CONNS];
    int poller;          /* the serving thread's */
    int submitted, done; /* eventfds to and from the engine; submitted -1: it steps on its own */
    int n_steps;
    char *weights;
    volatile char sum; /* or the reading would be left out */
} Floor;

/* ---- the other threads ---- */

static void tell(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n;
}

static uint64_t heard(int fd)
{
    uint64_t count = 0;
    ssize_t n = read(fd, &count, sizeof count);
    return n == sizeof count ? count : 0;
}

static void *engine_main(void *arg)
{
    Floor *f = arg;
    for (int i = 0; i < f->n_steps; i++) {
        char sum = 0;
        if (f->submitted >= 0) heard(f->submitted);
        for (size_t at = 0; at < STEP_BYTES; at += CACHE_LINE)
            sum = (char)(sum ^ f->weights[at]);
        f->sum = sum;
        tell(f->done);
    }
    return NULL;
}

/* Requests one after another, each when the one before is answered. */
static void *asking_main(void *arg)
{
    const Floor *f = arg;
    char bytes[REPLY_BYTES] = {0};
    for (int i = 0; i < N_REQUESTS; i++) {
        if (send(f->client[0], bytes, REQUEST_BYTES, MSG_NOSIGNAL) < 0) break;
        if (recv(f->client[0], bytes, sizeof bytes, MSG_WAITALL) <= 0) break;
    }
    return NULL;
}

/* Takes what comes until the serving side shuts the connections. */
static void *reading_main(void *arg)
{
    const Floor *f = arg;
    struct pollfd fds[FLOOR_MAX_CONNS];
    char bytes[4096];
    int n_open = f->n_conns;
    for (int i = 0; i < f->n_conns; i++)
        fds[i] = (struct pollfd){.fd = f->client[i], .events = POLLIN};
    while (n_open && poll(fds, (nfds_t)f->n_conns, -1) > 0)
        for (int i = 0; i < f->n_conns; i++) {
            if (!fds[i].revents || recv(fds[i].fd, bytes, sizeof bytes, 0) > 0) continue;
            fds[i].fd = -1;
            n_open--;
        }
    return NULL;
}

/* ---- the serving thread ---- */

static double cpu_us(void)
{
    return clock_thread_ms() * 1e3;
}

static int wait_for(const Floor *f)
{
    struct epoll_event e = {.data.fd = -1};
    while (epoll_wait(f->poller, &e, 1, -1) < 0 && errno == EINTR)
        ;
    return e.data.fd;
}

/* 0 when the client is gone: then all has ended. */
static int serve_requests(const Floor *f)
{
    char bytes[4096] = {0};
    int n_served = 0;
    while (n_served < N_REQUESTS) {
        if (wait_for(f) == f->done) {
            heard(f->done);
            if (send(f->server[0], bytes, REPLY_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return 0;
            n_served++;
        } else {
            if (recv(f->server[0], bytes, sizeof bytes, MSG_DONTWAIT) <= 0) return 0;
            tell(f->submitted);
        }
    }
    return n_served;
}

/* Pieces that were sent to each; steps that ended together make one. */
static int serve_pieces(const Floor *f)
{
    static const char piece[PIECE_BYTES];
    int n_sent = 0;
    for (uint64_t n_steps = 0; n_steps < (uint64_t)f->n_steps; n_sent++) {
        wait_for(f);
        n_steps += heard(f->done);
        for (int i = 0; i < f->n_conns; i++)
            if (send(f->server[i], piece, sizeof piece, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return 0;
    }
    return n_sent;
}

/* ---- opening and closing ---- */

static int connect_pair(int *server, int *client)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    *client = socket(AF_INET, SOCK_STREAM, 0);
    int failed = listener < 0 || *client < 0 || bind(listener, (const struct sockaddr *)&at, n) ||
                 listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &n) ||
                 connect(*client, (const struct sockaddr *)&at, n);
    if (!failed) *server = accept(listener, NULL, NULL);
    if (listener >= 0) close(listener);
    if (failed || *server < 0) return -1;
    setsockopt(*server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return 0;
}

static int watch(const Floor *f, int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(f->poller, EPOLL_CTL_ADD, fd, &e);
}

static int open_all(Floor *f, int n_conns, int has_requests, Error *err)
{
    assert(n_conns <= FLOOR_MAX_CONNS);
    *f = (Floor){.n_conns = n_conns, .submitted = -1, .n_steps = N_STEPS};
    for (int i = 0; i < FLOOR_MAX_CONNS; i++)
        f->server[i] = f->client[i] = -1;
    f->weights = mem_alloc(1, STEP_BYTES);
    f->poller = epoll_create1(0);
    f->done = eventfd(0, EFD_NONBLOCK);
    int failed = f->poller < 0 || f->done < 0 || watch(f, f->done);
    for (int i = 0; i < n_conns && !failed; i++)
        failed = connect_pair(&f->server[i], &f->client[i]);
    if (!failed && has_requests) {
        f->n_steps = N_REQUESTS;
        f->submitted = eventfd(0, EFD_SEMAPHORE);
        failed = f->submitted < 0 || watch(f, f->server[0]);
    }
    return failed ? error_set(err, ERR_FILE, "cannot measure the kernel: %s", strerror(errno)) : 0;
}

static void close_one(int fd)
{
    if (fd >= 0) close(fd);
}

static void close_all(Floor *f)
{
    for (int i = 0; i < f->n_conns; i++) {
        close_one(f->server[i]);
        close_one(f->client[i]);
    }
    close_one(f->submitted);
    close_one(f->done);
    close_one(f->poller);
    mem_free(f->weights);
}

/* Ends the other threads, also when the serving one has failed. */
static void release(const Floor *f)
{
    uint64_t steps = (uint64_t)f->n_steps;
    for (int i = 0; i < f->n_conns; i++)
        shutdown(f->server[i], SHUT_RDWR);
    ssize_t n = f->submitted >= 0 ? write(f->submitted, &steps, sizeof steps) : 0;
    (void)n;
}

static int measure(Floor *f, double *us, Error *err)
{
    int has_requests = f->submitted >= 0, n = 0;
    pthread_t engine, client;
    if (thread_start(&engine, engine_main, f, "floor engine", err)) return -1;
    int failed =
        thread_start(&client, has_requests ? asking_main : reading_main, f, "floor client", err);
    if (!failed) {
        double before = cpu_us();
        n = has_requests ? serve_requests(f) : serve_pieces(f) * f->n_conns;
        *us = (cpu_us() - before) / (n ? n : 1);
    }
    release(f);
    if (!failed) pthread_join(client, NULL);
    pthread_join(engine, NULL);
    if (failed) return -1;
    return n ? 0 : error_set(err, ERR_DEVICE, "the connection to measure the kernel with broke");
}

int load_floor_request(double *us, Error *err)
{
    Floor f;
    int failed = open_all(&f, 1, 1, err) || measure(&f, us, err);
    close_all(&f);
    return failed ? -1 : 0;
}

int load_floor_piece(int n_conns, double *us, Error *err)
{
    Floor f;
    int failed = open_all(&f, n_conns, 0, err) || measure(&f, us, err);
    close_all(&f);
    return failed ? -1 : 0;
}
