/*
 * test_takeover.c: a second server takes the place of the first, and no client notices more than
 * another model's name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/handover.h"
#include "server/socket.h"
#include "tests/served.h"

#define COMPLETIONS "/v1/completions"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0}"
#define STREAMED                                                                                   \
    "{\"prompt\": \"Hello\", \"max_tokens\": 400, \"ignore_eos\": true, \"stream\": true}"
#define ENDLESS                                                                                    \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"

static Served *start(const char *name, int port, int not_loaded)
{
    ServedOptions o = served_defaults();
    o.model_name = name, o.takeover = port, o.not_loaded = not_loaded;
    return served_start(&o);
}

/* Whether the reply to GET /v1/models says this name. */
static int is_named(const HttpReply *r, const char *name)
{
    char id[64];
    snprintf(id, sizeof id, "\"id\":\"%s\"", name);
    return r->status == 200 && strstr(r->body.data, id);
}

static void assert_served_by(int port, const char *name)
{
    HttpReply r = http_exchange(port, "GET", "/v1/models", "", "");
    if (!is_named(&r, name)) fail_msg("%d %s", r.status, r.body.data);
    http_reply_free(&r);
}

/* A client that asks over and over, each time on a connection of its own. */
typedef struct {
    int port;
    atomic_int ends;
    int first, second, others; /* replies by whom; what was neither */
    pthread_t thread;
} Asker;

static void *ask(void *arg)
{
    Asker *a = arg;
    while (!atomic_load(&a->ends)) {
        HttpReply r = http_exchange(a->port, "GET", "/v1/models", "", "");
        int first = is_named(&r, "first"), second = is_named(&r, "second");
        a->first += first, a->second += second;
        a->others += (!first && !second) || (first && a->second); /* and never back */
        http_reply_free(&r);
    }
    return NULL;
}

/*
 * While the second loads the first answers; then no new connection is refused, requests on the
 * first one's connections get their replies, a stream its end, and the first ends by itself. A
 * third takes over from the second.
 */
static void test_takeover(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.model_name = "first", o.limits.drain_s = 60; /* the stream ends, on a slow machine too */
    Served *first = served_start(&o);
    int port = first->port, old = http_connect(port), stream = http_connect(port);
    StrBuf rest = {0}, rest_of_stream = {0};
    HttpReply r;
    Asker asker = {.port = port};
    http_send(old, "GET", "/v1/models", "", "");
    assert_int_equal(http_read(old, &rest, 0, &r), 0);
    assert_true(is_named(&r, "first") && !http_header(&r, "Connection"));
    http_reply_free(&r);
    http_send(stream, "POST", COMPLETIONS, "", STREAMED);
    while (server_n_live(first->server) < 1)
        usleep(1000);

    Served *second = start("second", port, 1);
    assert_int_equal(pthread_create(&asker.thread, NULL, ask, &asker), 0);
    usleep(50000);
    assert_served_by(port, "first");
    served_load(second, 1);
    served_wait_ready(second);
    assert_served_by(port, "second");
    http_send(old, "GET", "/v1/models", "", "");
    assert_int_equal(http_read(old, &rest, 0, &r), 0);
    assert_true(is_named(&r, "first"));
    assert_string_equal(http_header(&r, "Connection"), "close");
    http_reply_free(&r);
    assert_true(http_closed(old, 2000));
    assert_int_equal(http_read(stream, &rest_of_stream, 0, &r), 0);
    json_t *events = http_events(&r);
    assert_true(json_array_size(events) > 10);
    json_decref(events);
    http_reply_free(&r);
    served_join(first);
    assert_int_equal(first->rc, 0);
    atomic_store(&asker.ends, 1);
    pthread_join(asker.thread, NULL);
    if (asker.others || !asker.first || !asker.second)
        fail_msg("%d by the first, %d by the second, %d by neither", asker.first, asker.second,
                 asker.others);

    Served *third = start("third", port, 0);
    assert_served_by(port, "third");
    json_decref(served_post(third, COMPLETIONS, SHORT, 200));
    served_join(second);
    assert_int_equal(served_stop(first) | served_stop(second) | served_stop(third), 0);
    assert_int_equal(http_connect(port), -1);
    close(old), close(stream);
    strbuf_free(&rest), strbuf_free(&rest_of_stream);
}

/*
 * What runs longer than the drain's patience is cut, as after a signal; a request on an old
 * connection is answered while that lasts. A third takes over from the second, not from the first,
 * which is still there.
 */
static void test_patience(void **state)
{
    (void)state;
    Served *first = start("first", 0, 0);
    int stream = http_connect(first->port), old = http_connect(first->port);
    StrBuf rest = {0};
    HttpReply r;
    http_send(old, "GET", "/health", "", "");
    assert_int_equal(http_read(old, &rest, 0, &r), 0);
    http_reply_free(&r);
    http_send(stream, "POST", COMPLETIONS, "", ENDLESS);
    while (server_n_live(first->server) < 1)
        usleep(1000);
    Served *second = start("second", first->port, 0), *third = start("third", first->port, 0);
    for (int i = 0; i < 20; i++)
        assert_served_by(first->port, "third");
    usleep(1200000); /* the grace is over */
    assert_int_equal(server_n_live(first->server), 1);
    http_send(old, "POST", COMPLETIONS, "", SHORT);
    assert_int_equal(http_read(old, &rest, 0, &r), 0);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    served_join(first); /* 1 s of grace and 2 s of drain */
    assert_true(http_closed(stream, 1) || http_readable(stream, 1));
    served_join(second);
    assert_int_equal(served_stop(first) | served_stop(second) | served_stop(third), 0);
    close(stream), close(old);
    strbuf_free(&rest);
}

/* The inode of the socket that listens at a port; 0: none does. */
static unsigned long listening_inode(int port)
{
    for (int fd = 3; fd < 256; fd++) {
        struct stat file;
        int listens = 0;
        socklen_t n = sizeof listens;
        if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) && listens &&
            socket_port(fd) == port && !fstat(fd, &file))
            return (unsigned long)file.st_ino;
    }
    return 0;
}

/* How many of this process's epoll sets watch it, by whatever descriptor, closed ones too. */
static int count_watchers(unsigned long inode)
{
    int count = 0;
    for (int fd = 3; fd < 256; fd++) {
        char path[64], line[256];
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f)) {
            const char *ino = strncmp(line, "tfd:", 4) ? NULL : strstr(line, "ino:");
            count += ino && strtoul(ino + 4, NULL, 16) == inode;
        }
        if (f) fclose(f);
    }
    return count;
}

/* Who has handed over is not woken by connections that are no longer its own. */
static void test_watched_once(void **state)
{
    (void)state;
    Served *first = start("first", 0, 0);
    int stream = http_connect(first->port);
    unsigned long inode = listening_inode(first->port);
    assert_true(inode != 0);
    assert_int_equal(count_watchers(inode), 1);
    http_send(stream, "POST", COMPLETIONS, "", ENDLESS);
    while (server_n_live(first->server) < 1)
        usleep(1000);
    Served *second = start("second", first->port, 0);
    usleep(1300000); /* the grace is over, the first closed what it had */
    assert_int_equal(server_n_live(first->server), 1);
    assert_int_equal(listening_inode(first->port), inode);
    assert_int_equal(count_watchers(inode), 1);
    served_join(first);
    assert_int_equal(served_stop(first) | served_stop(second), 0);
    close(stream);
}

/* One that cannot load leaves the first as it was, which later hands over all the same. */
static void test_bad_load(void **state)
{
    (void)state;
    Served *first = start("first", 0, 0), *second = start("second", first->port, 1);
    served_load(second, 0);
    served_join(second);
    assert_int_equal(second->rc, -1);
    assert_non_null(strstr(second->err.msg, "the file is broken"));
    served_stop(second);
    assert_served_by(first->port, "first");
    second = start("second", first->port, 0);
    assert_served_by(first->port, "second");
    assert_int_equal(served_stop(first) | served_stop(second), 0);
}

/* The first ends while the second loads, or there never was one: the port is free. */
static void test_nobody_there(void **state)
{
    (void)state;
    Served *first = start("first", 0, 0);
    int port = first->port;
    Served *second = start("second", port, 1);
    assert_int_equal(served_stop(first), 0);
    assert_int_equal(http_connect(port), -1);
    served_load(second, 1);
    served_wait_ready(second);
    assert_served_by(port, "second");
    assert_int_equal(served_stop(second), 0);
    Served *third = start("third", port, 0);
    assert_served_by(port, "third");
    assert_int_equal(served_stop(third), 0);
}

/* Of two that wait, the one that is ready last takes over from the other. */
static void test_two_wait(void **state)
{
    (void)state;
    Served *first = start("first", 0, 0);
    int port = first->port;
    Served *second = start("second", port, 1), *third = start("third", port, 0);
    served_join(first);
    assert_served_by(port, "third");
    served_load(second, 1); /* whom it would have asked is gone */
    served_wait_ready(second);
    assert_served_by(port, "second");
    served_join(third);
    assert_int_equal(served_stop(first) | served_stop(second) | served_stop(third), 0);
}

/* Another program at the port does not go away by itself. */
static void test_not_ours(void **state)
{
    (void)state;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&any, n) | listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &n), 0);
    ServedOptions o = served_defaults();
    o.takeover = ntohs(any.sin_port);
    Served *s = served_open_engine(&o);
    ServiceLoader loader = {NULL, NULL}; /* is not asked */
    assert_null(server_open(&s->settings, &loader, &s->err));
    assert_non_null(strstr(s->err.msg, "in use"));
    served_close_engine(s);
    close(fd);
}

/* Somebody who connects and says something else, or nothing, gets nothing and harms nobody. */
static void test_strangers(void **state)
{
    (void)state;
    Served *first = start("first", 0, 0);
    for (int says = 0; says < 2; says++) {
        int fd = handover_find("127.0.0.1", first->port);
        char got[8];
        assert_true(fd >= 0);
        if (says) assert_int_equal(send(fd, "x", 1, MSG_NOSIGNAL), 1);
        usleep(20000);
        assert_true(recv(fd, got, sizeof got, MSG_DONTWAIT) <= 0);
        close(fd);
        assert_served_by(first->port, "first");
    }
    /* of another port it is no use, but the place is given */
    int fd = handover_find("127.0.0.1", first->port), offered = -1;
    assert_int_equal(handover_take(fd, first->port + 1, &offered), -1);
    close(fd);
    served_join(first);
    assert_int_equal(served_stop(first), 0);
    assert_int_equal(handover_find("127.0.0.1", 1), -1);
}

/* One for whom there is no file waits, and takes no core for that. */
static void test_no_descriptor(void **state)
{
    (void)state;
    struct rlimit files, none;
    struct event_base *base = event_base_new();
    Handover *h = handover_offer(base, "nowhere", getpid(), -1, -1, NULL, NULL);
    assert_non_null(h);
    int taker = handover_find("nowhere", getpid());
    assert_true(taker >= 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = files;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    double begun = clock_thread_ms();
    event_base_loopexit(base, &(struct timeval){.tv_usec = 300000});
    event_base_dispatch(base);
    double taken = clock_thread_ms() - begun;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (taken > 10) fail_msg("%.0f ms of 300", taken);
    close(taker);
    handover_close(h);
    event_base_free(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takeover),      cmocka_unit_test(test_patience),
        cmocka_unit_test(test_bad_load),      cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_two_wait),      cmocka_unit_test(test_not_ours),
        cmocka_unit_test(test_strangers),     cmocka_unit_test(test_watched_once),
        cmocka_unit_test(test_no_descriptor),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
