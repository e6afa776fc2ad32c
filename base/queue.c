/*
 * queue.c: see queue.h.
 *
 * A ring under a mutex. The lock is held for one copy, so the loser of a race waits well under a
 * microsecond; what costs is waking the other thread, and that happens once per burst.
 */
#include "base/queue.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

struct Queue {
    pthread_mutex_t lock;
    pthread_cond_t has_room;
    unsigned char *items;
    size_t item_bytes;
    int capacity, first, n;
    int n_waiting; /* writers in queue_push */
    int is_quiet;  /* items were put that the reader was not told of */
    int shut;
    int fd;
};

Queue *queue_open(int capacity, size_t item_bytes, Error *err)
{
    assert(capacity > 0);
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        error_set(err, ERR_FILE, "cannot make an eventfd: %s", strerror(errno));
        return NULL;
    }
    Queue *q = mem_alloc(1, sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->has_room, NULL);
    q->items = mem_alloc((size_t)capacity, item_bytes);
    q->item_bytes = item_bytes;
    q->capacity = capacity;
    q->fd = fd;
    return q;
}

void queue_close(Queue *q)
{
    if (!q) return;
    assert(!q->n_waiting);
    close(q->fd);
    pthread_cond_destroy(&q->has_room);
    pthread_mutex_destroy(&q->lock);
    mem_free(q->items);
    mem_free(q);
}

static void wake_reader(Queue *q)
{
    uint64_t one = 1;
    /* Fails only when the counter is near 2^64: then the reader is awake anyway. */
    ssize_t n = write(q->fd, &one, sizeof one);
    (void)n;
}

static void append(Queue *q, const void *item)
{
    size_t at = ((size_t)q->first + (size_t)q->n) % (size_t)q->capacity;
    memcpy(q->items + at * q->item_bytes, item, q->item_bytes);
    q->n++;
}

/* Copies in and unlocks. The reader is woken without the lock, so that it does not run into it. */
static int add_and_unlock(Queue *q, const void *item)
{
    int was_empty = !q->n;
    append(q, item);
    pthread_mutex_unlock(&q->lock);
    if (was_empty) wake_reader(q);
    return 0;
}

int queue_try_push(Queue *q, const void *item)
{
    pthread_mutex_lock(&q->lock);
    if (!q->shut && q->n < q->capacity) return add_and_unlock(q, item);
    pthread_mutex_unlock(&q->lock);
    return -1;
}

int queue_push(Queue *q, const void *item)
{
    pthread_mutex_lock(&q->lock);
    q->n_waiting++;
    while (!q->shut && q->n == q->capacity)
        pthread_cond_wait(&q->has_room, &q->lock);
    q->n_waiting--;
    if (!q->shut) return add_and_unlock(q, item);
    pthread_mutex_unlock(&q->lock);
    return -1;
}

int queue_put(Queue *q, const void *item)
{
    pthread_mutex_lock(&q->lock);
    if (q->n == q->capacity) { /* the reader makes room */
        pthread_mutex_unlock(&q->lock);
        queue_announce(q);
        return queue_push(q, item);
    }
    if (q->shut) {
        pthread_mutex_unlock(&q->lock);
        return -1;
    }
    if (!q->n) q->is_quiet = 1;
    append(q, item);
    pthread_mutex_unlock(&q->lock);
    return 0;
}

void queue_announce(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    int was_quiet = q->is_quiet;
    q->is_quiet = 0;
    pthread_mutex_unlock(&q->lock);
    if (was_quiet) wake_reader(q);
}

int queue_pop(Queue *q, void *item)
{
    pthread_mutex_lock(&q->lock);
    int some = q->n > 0;
    if (some) {
        memcpy(item, q->items + (size_t)q->first * q->item_bytes, q->item_bytes);
        q->first = (q->first + 1) % q->capacity;
        q->n--;
        if (q->n_waiting) pthread_cond_signal(&q->has_room);
    }
    pthread_mutex_unlock(&q->lock);
    return some;
}

int queue_fd(const Queue *q)
{
    return q->fd;
}

void queue_clear(Queue *q)
{
    uint64_t count;
    ssize_t n = read(q->fd, &count, sizeof count); /* EAGAIN: it was clear */
    (void)n;
}

void queue_wait_ms(Queue *q, int ms)
{
    struct pollfd p = {.fd = q->fd, .events = POLLIN};
    while (poll(&p, 1, ms) < 0 && errno == EINTR)
        ;
    queue_clear(q);
}

void queue_wait(Queue *q)
{
    queue_wait_ms(q, -1);
}

void queue_shut(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->shut = 1;
    pthread_cond_broadcast(&q->has_room);
    pthread_mutex_unlock(&q->lock);
    wake_reader(q);
}

int queue_is_shut(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    int shut = q->shut;
    pthread_mutex_unlock(&q->lock);
    return shut;
}
