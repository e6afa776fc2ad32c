/* test_worker.c: the thread that does what takes long: whose turn it is, and how it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "server/worker.h"
#include "tests/analyzer.h"

typedef struct {
    atomic_int may_run;
    atomic_int n_run;
    int n_done;
} Counted;

static int run_when_allowed(void *owner)
{
    Counted *c = owner;
    while (!atomic_load(&c->may_run))
        usleep(100);
    atomic_fetch_add(&c->n_run, 1);
    return 0;
}

static void count_done(void *owner)
{
    ((Counted *)owner)->n_done++;
}

static void test_bounds(void **state)
{
    (void)state;
    enum { MAX = 3 };
    Error err = {0};
    Counted c = {0};
    Worker *w = worker_open(MAX, &err);
    assert_non_null(w);
    Task task = {run_when_allowed, count_done, &c};
    for (int i = 0; i < MAX; i++)
        assert_int_equal(worker_add(w, &task), 0);
    assert_int_equal(worker_add(w, &task), -1);
    for (int i = 0; i < MAX_OWED; i++)
        assert_int_equal(worker_add_owed(w, &task), 0);
    assert_int_equal(worker_add_owed(w, &task), -1);
    assert_int_equal(worker_add_owed(NULL, &task), -1);
    worker_read(w);
    assert_int_equal(c.n_done, 0);
    atomic_store(&c.may_run, 1);
    struct pollfd p = {.fd = worker_fd(w), .events = POLLIN};
    while (c.n_done < MAX + MAX_OWED) {
        if (poll(&p, 1, 30000) != 1) fail_msg("%d of %d are done", c.n_done, MAX + MAX_OWED);
        worker_read(w);
    }
    assert_int_equal(atomic_load(&c.n_run), MAX + MAX_OWED);
    atomic_store(&c.may_run, 0);
    for (int i = 0; i < MAX; i++) /* there is room again; all but one will never run */
        assert_int_equal(worker_add(w, &task), 0);
    assert_int_equal(worker_add_owed(w, &task), 0);
    usleep(20000); /* the first has begun, or it will not run either */
    atomic_store(&c.may_run, 1);
    worker_close(w);
    assert_int_equal(c.n_done, 2 * MAX + MAX_OWED + 1);
    assert_in_range(atomic_load(&c.n_run), MAX + MAX_OWED, 2 * MAX + MAX_OWED + 1);
    worker_close(NULL);
}

typedef struct {
    Counted *gate;    /* no slice runs before it opens */
    int n_slices, us; /* of which each takes so long */
    char name;
    char *order; /* the names of those that are done */
} Sliced;

static int run_slice(void *owner)
{
    Sliced *s = owner;
    run_when_allowed(s->gate);
    usleep((useconds_t)s->us);
    return --s->n_slices > 0;
}

static void note_order(void *owner)
{
    const Sliced *s = owner;
    s->order[strlen(s->order)] = s->name;
}

/* Tasks take turns by slices: a short one overtakes the rest of a long one. */
static void test_turns(void **state)
{
    (void)state;
    enum { N = 4 };
    Error err = {0};
    Counted gate = {0};
    char order[N + 1] = "";
    Sliced tasks[N] = {{&gate, 50, 0, 'a', order},
                       {&gate, 1, 0, 'b', order},
                       {&gate, 3, 0, 'c', order},
                       {&gate, 2, 0, 'd', order}};
    Worker *w = worker_open(N, &err);
    assert_non_null(w);
    for (int i = 0; i < N; i++)
        assert_int_equal(worker_add(w, &(Task){run_slice, note_order, &tasks[i]}), 0);
    atomic_store(&gate.may_run, 1);
    struct pollfd p = {.fd = worker_fd(w), .events = POLLIN};
    while (strlen(order) < N) {
        if (poll(&p, 1, 30000) != 1) fail_msg("only '%s' are done", order);
        worker_read(w);
    }
    assert_string_equal(order, "bdca");
    assert_int_equal(atomic_load(&gate.n_run), 50 + 1 + 3 + 2);

    /* Closed within a slice of one that would go on for ever: it is given back, unfinished. */
    order[0] = 0;
    tasks[0] = (Sliced){&gate, INT_MAX, 5000, 'e', order};
    assert_int_equal(worker_add(w, &(Task){run_slice, note_order, &tasks[0]}), 0);
    int before = atomic_load(&gate.n_run);
    while (atomic_load(&gate.n_run) < before + 2)
        usleep(100);
    memset(order, 0, sizeof order);
    worker_close(w);
    assert_string_equal(order, "e");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
