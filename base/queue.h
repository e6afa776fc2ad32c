/*
 * queue.h: a bounded queue between two threads, with an eventfd that wakes its reader.
 *
 * Items are values of one size, copied in and out. The eventfd is written only when the queue goes
 * from empty to non-empty, so a busy queue costs no system calls; a reader that was woken therefore
 * clears the eventfd first and then takes everything there is. One reader; any number of writers.
 */
#ifndef OFFSHOOT_BASE_QUEUE_H
#define OFFSHOOT_BASE_QUEUE_H

#include <stddef.h>

#include "base/error.h"

typedef struct Queue Queue;

/* Takes all its memory here: capacity items of item_bytes. NULL and an Error without an eventfd. */
Queue *queue_open(int capacity, size_t item_bytes, Error *err);
void queue_close(Queue *q);

/* Copies *item to the end. 0, or -1 when the queue is full or shut. Never waits. */
int queue_try_push(Queue *q, const void *item);

/* The same, but waits while the queue is full. 0, or -1 once the queue is shut. */
int queue_push(Queue *q, const void *item);

/*
 * For several items at once: queue_put is queue_push, but the reader is not woken before
 * queue_announce, or before the queue is full. For a queue with one writer.
 */
int queue_put(Queue *q, const void *item);
void queue_announce(Queue *q);

/* Copies the oldest item to *item and drops it. 1, or 0 when the queue is empty. Never waits. */
int queue_pop(Queue *q, void *item);

/* The eventfd, for poll and event loops: readable after the queue became non-empty or was shut. */
int queue_fd(const Queue *q);

/* Makes the eventfd unreadable again; to be called before the queue is emptied, never after. */
void queue_clear(Queue *q);

/*
 * Sleeps until an item may be there or the queue is shut, then clears. The second for at most so
 * many milliseconds.
 */
void queue_wait(Queue *q);
void queue_wait_ms(Queue *q, int ms);

/* Nothing can be pushed any more: waiting writers fail, the reader wakes. Items stay readable. */
void queue_shut(Queue *q);
int queue_is_shut(Queue *q);

#endif
