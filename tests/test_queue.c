/* test_queue.c: order, bounds, wake-ups and shutting of base/queue. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/queue.h"

static int readable(const Queue *q)
{
    struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void test_order_and_bound(void **state)
{
    (void)state;
    Queue *q = queue_open(3, sizeof(int), NULL);
    assert_non_null(q);
    int next_in = 0, next_out = 0, item;
    /* Uneven bursts move the ring's start over every index. */
    for (int round = 0; round < 20; round++) {
        while (!queue_try_push(q, &next_in))
            next_in++;
        assert_int_equal(next_in - next_out, 3);
        for (int i = 0; i < 1 + round % 3; i++) {
            assert_int_equal(queue_pop(q, &item), 1);
            assert_int_equal(item, next_out++);
        }
    }
    while (queue_pop(q, &item))
        assert_int_equal(item, next_out++);
    assert_int_equal(next_out, next_in);
    queue_close(q);
}

static void test_wakes_once_per_burst(void **state)
{
    (void)state;
    Queue *q = queue_open(8, sizeof(int), NULL);
    int item = 7;
    assert_false(readable(q));
    assert_int_equal(queue_try_push(q, &item), 0);
    assert_true(readable(q));
    queue_clear(q);
    assert_int_equal(queue_try_push(q, &item), 0);
    assert_false(readable(q)); /* it was not empty: the reader is on its way already */
    while (queue_pop(q, &item))
        ;
    assert_int_equal(queue_try_push(q, &item), 0);
    assert_true(readable(q));
    queue_close(q);
}

static void *pop_all(void *arg)
{
    int item, shut = 0;
    while (!shut) {
        queue_wait(arg);
        shut = queue_is_shut(arg);
        while (queue_pop(arg, &item))
            continue;
    }
    return NULL;
}

/* Items that are put are not told of before they are announced, or before there is no room. */
static void test_quiet_items(void **state)
{
    (void)state;
    Queue *q = queue_open(3, sizeof(int), NULL);
    pthread_t reader;
    int item = 1;
    queue_announce(q);
    assert_false(readable(q));
    assert_int_equal(queue_put(q, &item), 0);
    assert_int_equal(queue_put(q, &item), 0);
    assert_false(readable(q));
    queue_announce(q);
    assert_true(readable(q));
    queue_clear(q);
    queue_announce(q); /* there is nothing new to tell */
    assert_false(readable(q));
    while (queue_pop(q, &item))
        continue;
    for (int i = 0; i < 3; i++)
        assert_int_equal(queue_put(q, &item), 0);
    assert_false(readable(q));
    assert_int_equal(pthread_create(&reader, NULL, pop_all, q), 0);
    for (int i = 0; i < 100; i++) /* the reader hears of it by itself, or this would not end */
        assert_int_equal(queue_put(q, &item), 0);
    queue_shut(q);
    pthread_join(reader, NULL);
    assert_int_equal(queue_put(q, &item), -1);
    queue_close(q);
}

static void test_shut(void **state)
{
    (void)state;
    Queue *q = queue_open(2, sizeof(int), NULL);
    int item = 1;
    assert_int_equal(queue_try_push(q, &item), 0);
    assert_false(queue_is_shut(q));
    queue_shut(q);
    assert_true(queue_is_shut(q));
    assert_int_equal(queue_try_push(q, &item), -1);
    assert_int_equal(queue_push(q, &item), -1);
    queue_wait(q);       /* must not sleep */
    queue_wait_ms(q, 1); /* nor for ever, though nothing comes */
    assert_int_equal(queue_pop(q, &item), 1);
    assert_int_equal(queue_pop(q, &item), 0);
    queue_close(q);
}

static void *push_when_full(void *arg)
{
    int item = 2;
    return queue_push(arg, &item) ? arg : NULL;
}

static void test_shut_frees_waiting_writers(void **state)
{
    (void)state;
    Queue *q = queue_open(1, sizeof(int), NULL);
    int item = 1;
    pthread_t writer[2];
    assert_int_equal(queue_try_push(q, &item), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&writer[i], NULL, push_when_full, q), 0);
    usleep(20000); /* they should sleep by now; if not, the test is easier */
    queue_shut(q);
    alarm(60);
    for (int i = 0; i < 2; i++) {
        void *failed = NULL;
        pthread_join(writer[i], &failed);
        assert_ptr_equal(failed, q);
    }
    alarm(0);
    queue_close(q);
}

/* Whoever waits for room gets it, how many there are. */
static void test_several_waiting_writers(void **state)
{
    (void)state;
    enum { WRITERS = 3 };
    Queue *q = queue_open(1, sizeof(int), NULL);
    int item = 1, n = 0;
    pthread_t writer[WRITERS];
    assert_int_equal(queue_try_push(q, &item), 0);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writer[i], NULL, push_when_full, q), 0);
    usleep(20000); /* they should sleep by now */
    for (int i = 0; i <= WRITERS; i++) {
        queue_wait_ms(q, 10000);
        n += queue_pop(q, &item);
    }
    assert_int_equal(n, 1 + WRITERS);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writer[i], NULL);
    queue_close(q);
}

enum { N_ITEMS = 20000 };

/* Large enough that a torn copy would show. */
typedef struct {
    long n, again[8];
} Item;

static void *push_all(void *arg)
{
    for (long i = 0; i < N_ITEMS; i++) {
        Item item = {.n = i};
        for (int k = 0; k < 8; k++)
            item.again[k] = i;
        if (queue_push(arg, &item)) return arg;
    }
    queue_shut(arg);
    return NULL;
}

/* The writer waits for room all the time; the reader sleeps whenever the queue is empty. */
static void test_two_threads(void **state)
{
    (void)state;
    Queue *q = queue_open(5, sizeof(Item), NULL);
    pthread_t writer;
    long expected = 0;
    unsigned long n_allocs = mem_count();
    assert_int_equal(pthread_create(&writer, NULL, push_all, q), 0);
    for (int shut = 0; !shut;) {
        queue_wait(q);
        shut = queue_is_shut(q);
        Item item;
        while (queue_pop(q, &item)) {
            assert_int_equal(item.n, expected);
            assert_int_equal(item.again[expected % 8], expected);
            expected++;
        }
    }
    assert_int_equal(expected, N_ITEMS);
    assert_int_equal(mem_count(), n_allocs);
    void *failed;
    pthread_join(writer, &failed);
    assert_null(failed);
    queue_close(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_bound),
        cmocka_unit_test(test_wakes_once_per_burst),
        cmocka_unit_test(test_quiet_items),
        cmocka_unit_test(test_shut),
        cmocka_unit_test(test_shut_frees_waiting_writers),
        cmocka_unit_test(test_several_waiting_writers),
        cmocka_unit_test(test_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
