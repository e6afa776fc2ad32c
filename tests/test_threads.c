/*
 * test_threads.c: fork and join; run it with SAN=thread too.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/thread.h"
#include "kernels/threads.h"

enum { MAX_PARTS = 8 };

typedef struct {
    int n_parts, *runs, *value;
} Task;

/* Plain, unlocked writes: a missing happens-before shows under the thread sanitizer. */
static void count_part(const void *arg, int part, int n_parts)
{
    const Task *task = arg;
    if (n_parts == task->n_parts)
        task->runs[part]++; /* cmocka's asserts belong to the main thread */
    task->value[part] += part;
}

static void test_every_part_runs_once(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_PARTS; n++) {
        Threads *t = threads_open(n);
        int runs[MAX_PARTS] = {0}, value[MAX_PARTS] = {0};
        Task task = {n, runs, value};
        assert_int_equal(threads_count(t), n);
        for (int round = 1; round <= 500; round++) {
            threads_run(t, threads_count(t), count_part, &task);
            for (int part = 0; part < n; part++)
                assert_int_equal(runs[part], round);
        }
        threads_close(t);
    }
}

typedef struct {
    const int *in;
    int *out;
} Shift;

static void shift_part(const void *arg, int part, int n_parts)
{
    const Shift *s = arg;
    s->out[part] = s->in[(part + 1) % n_parts] + 1;
}

/* Each round reads what other threads wrote in the round before. */
static void test_rounds_see_each_other(void **state)
{
    (void)state;
    enum { PARTS = 3, ROUNDS = 4000 };
    Threads *t = threads_open(PARTS);
    int a[PARTS] = {0, 1000000, 2000000}, b[PARTS];
    for (int round = 0; round < ROUNDS; round += 2) {
        threads_run(t, PARTS, shift_part, &(Shift){a, b});
        threads_run(t, PARTS, shift_part, &(Shift){b, a});
    }
    for (int i = 0; i < PARTS; i++)
        assert_int_equal(a[i], ROUNDS + 1000000 * ((i + ROUNDS) % PARTS));
    threads_close(t);
}

static void rest(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void test_any_number_of_parts(void **state)
{
    (void)state;
    Threads *t = threads_open(3);
    for (int n_parts = 1; n_parts <= MAX_PARTS; n_parts++) {
        int runs[MAX_PARTS] = {0}, value[MAX_PARTS] = {0};
        Task task = {n_parts, runs, value};
        for (int round = 1; round <= 500; round++) {
            threads_run(t, n_parts, count_part, &task);
            for (int part = 0; part < MAX_PARTS; part++)
                assert_int_equal(runs[part], part < n_parts ? round : 0);
        }
    }
    threads_close(t);
}

typedef struct {
    atomic_int *n_done;
    int held_up;
} Crowd;

/* Ends when all other parts have. */
static void held_up_part(const void *arg, int part, int n_parts)
{
    const Crowd *c = arg;
    while (part == c->held_up && atomic_load(c->n_done) < n_parts - 1)
        rest(1);
    atomic_fetch_add(c->n_done, 1);
}

/* Whoever is held up, the parts that it has not begun are others'. */
static void test_a_thread_is_held_up(void **state)
{
    (void)state;
    Threads *t = threads_open(2);
    for (int held_up = 0; held_up < MAX_PARTS; held_up++) {
        atomic_int n_done = 0;
        threads_run(t, MAX_PARTS, held_up_part, &(Crowd){&n_done, held_up});
        assert_int_equal(n_done, MAX_PARTS);
    }
    threads_close(t);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Helpers asleep wake up, and while idle cost nothing (all of three would burn 0.6 s). */
static void test_sleepers(void **state)
{
    (void)state;
    Threads *t = threads_open(4);
    int runs[MAX_PARTS] = {0}, value[MAX_PARTS] = {0};
    Task task = {4, runs, value};
    for (int round = 1; round <= 10; round++) {
        rest(2);
        threads_run(t, threads_count(t), count_part, &task);
        assert_int_equal(runs[3], round);
    }
    rest(50); /* past the spinning */
    double before = cpu_seconds();
    rest(200);
    assert_true(cpu_seconds() - before < 0.1);
    threads_close(t);
}

static void slow_part(const void *arg, int part, int n_parts)
{
    const Task *task = arg;
    if (part == n_parts - 1) rest(20); /* past the caller's spinning */
    task->runs[part]++;
}

static void test_caller_sleeps_too(void **state)
{
    (void)state;
    Threads *t = threads_open(3);
    int runs[MAX_PARTS] = {0};
    Task task = {3, runs, NULL};
    for (int round = 1; round <= 5; round++) {
        threads_run(t, threads_count(t), slow_part, &task);
        assert_int_equal(runs[2], round);
    }
    threads_close(t);
}

static void test_close_without_a_run(void **state)
{
    (void)state;
    threads_close(threads_open(3));
    threads_close(threads_open(1));
    threads_close(NULL);
}

static void *find_stack(void *bytes)
{
    pthread_attr_t own;
    if (pthread_getattr_np(pthread_self(), &own)) return NULL;
    pthread_attr_getstacksize(&own, bytes);
    pthread_attr_destroy(&own);
    return NULL;
}

/* What the system gives to threads may be little. */
static void test_stack(void **state)
{
    pthread_attr_t before, little;
    pthread_t thread;
    size_t bytes = 0;
    (void)state;
    pthread_getattr_default_np(&before);
    pthread_attr_init(&little);
    pthread_attr_setstacksize(&little, 1 << 18);
    pthread_setattr_default_np(&little);
    int failed = thread_start(&thread, find_stack, &bytes, "stack", NULL);
    pthread_setattr_default_np(&before);
    pthread_attr_destroy(&little);
    pthread_attr_destroy(&before);
    assert_int_equal(failed, 0);
    pthread_join(thread, NULL);
    assert_in_range(bytes, 8 << 20, SIZE_MAX);
}

static void *find_mask(void *mask)
{
    pthread_sigmask(SIG_SETMASK, NULL, mask);
    return NULL;
}

/* Signals are for who starts it, but its own fault; that one's stay as they were. */
static void test_signals(void **state)
{
    (void)state;
    sigset_t before, after, of_thread;
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(thread_start(&thread, find_mask, &of_thread, "signals", NULL), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    pthread_join(thread, NULL);
    static const int others[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(sigismember(&of_thread, others[i]), 1);
        assert_int_equal(sigismember(&after, others[i]), sigismember(&before, others[i]));
    }
    assert_int_equal(sigismember(&of_thread, SIGBUS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals), /* first: of the masks that the program began with */
        cmocka_unit_test(test_every_part_runs_once),
        cmocka_unit_test(test_rounds_see_each_other),
        cmocka_unit_test(test_any_number_of_parts),
        cmocka_unit_test(test_a_thread_is_held_up),
        cmocka_unit_test(test_sleepers),
        cmocka_unit_test(test_caller_sleeps_too),
        cmocka_unit_test(test_close_without_a_run),
        cmocka_unit_test(test_stack),
    };
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
