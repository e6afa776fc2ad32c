/*
 * test_dispatch.c: answers between server and engine: order, a full engine, refusals, cancelling.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "server/dispatch.h"
#include "tests/analyzer.h"
#include "tests/served.h"

enum { N = 12 };

typedef struct {
    Served *served;
    Dispatch *dispatch;
    ApiRequest api;
    Answer answer[N];
    int done[N], n_done; /* indices, in order of their end */
} Fixture;

static const int32_t prompt[] = {300, 301, 302};

static void on_progress(void *ctx, Answer *a)
{
    Fixture *f = ctx;
    if (a->state == ANSWER_DONE) f->done[f->n_done++] = a->index;
}

static void open_fixture(Fixture *f, int max_seqs, int max_waiting, int n_places)
{
    Error err = {0};
    ServedOptions o = served_defaults();
    o.max_seqs = max_seqs;
    o.max_waiting = max_waiting;
    *f = (Fixture){.served = served_open_engine(&o)};
    f->dispatch = dispatch_open(f->served->service.engine, n_places, N, on_progress, f, &err);
    if (!f->dispatch) fail_msg("%s", err.msg);
    f->api = (ApiRequest){.max_tokens = 8,
                          .ignore_eos = 1,
                          .n_logprobs = -1,
                          .draft_max = -1,
                          .params = {.top_p = 1, .repetition = 1}};
    AnswerModel model = {.tok = f->served->service.tok};
    for (int i = 0; i < N; i++) {
        if (answer_open(&f->answer[i], &model, &f->api, prompt, 3, 0, &err))
            fail_msg("%s", err.msg);
        f->answer[i].index = i;
    }
}

static void close_fixture(Fixture *f)
{
    assert_int_equal(dispatch_n_live(f->dispatch), 0);
    dispatch_close(f->dispatch);
    for (int i = 0; i < N; i++)
        answer_close(&f->answer[i]);
    served_close_engine(f->served);
}

static void run_until(Fixture *f, int n_done)
{
    Error err = {0};
    struct pollfd p = {.fd = dispatch_fd(f->dispatch), .events = POLLIN};
    while (f->n_done < n_done) {
        if (poll(&p, 1, 30000) != 1) fail_msg("%d of %d are done", f->n_done, n_done);
        assert_true(dispatch_read(f->dispatch, &err) >= 0);
    }
}

/*
 * More than the engine takes, whichever of its bounds comes first: all are made, first come first.
 */
static void test_order(void **state)
{
    (void)state;
    static const int bounds[][2] = {{1, 2}, {1, 8}, {4, 4}};
    for (int k = 0; k < 3; k++) {
        Fixture f;
        open_fixture(&f, 1, bounds[k][0], bounds[k][1]);
        for (int i = 0; i < N; i++) {
            f.answer[i].index = 0; /* each a request of its own */
            dispatch_add(f.dispatch, &f.answer[i]);
            f.answer[i].index = i; /* told apart in done[] */
        }
        assert_int_equal(dispatch_n_live(f.dispatch), N);
        assert_false(dispatch_has_room(f.dispatch));
        run_until(&f, N);
        assert_true(dispatch_has_room(f.dispatch));
        for (int i = 0; i < N; i++) {
            assert_int_equal(f.done[i], i);
            assert_int_equal(f.answer[i].n_tokens, 8);
            assert_string_equal(answer_finish_reason(&f.answer[i]), "length");
        }
        close_fixture(&f);
    }
}

/*
 * Ten answers of one request, then two requests of one answer: these take their turn instead of
 * going behind all ten.
 */
static void test_fair_line(void **state)
{
    (void)state;
    Fixture f;
    open_fixture(&f, 1, 8, 2);
    f.answer[10].index = f.answer[11].index = 0;
    for (int i = 0; i < N; i++)
        dispatch_add(f.dispatch, &f.answer[i]);
    f.answer[10].index = 10; /* told apart in done[] */
    f.answer[11].index = 11;
    run_until(&f, N);
    static const int want[N] = {0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9};
    for (int i = 0; i < N; i++)
        assert_int_equal(f.done[i], want[i]);
    close_fixture(&f);
}

/* Those who came after a request's third answer go before it in turn, not for as long as some come.
 */
static void test_line_moves_on(void **state)
{
    (void)state;
    Fixture f;
    int at = 0;
    open_fixture(&f, 1, 8, 2);
    for (int i = 3; i < N; i++)
        f.answer[i].index = 0;
    for (int i = 0; i < 5; i++)
        dispatch_add(f.dispatch, &f.answer[i]);
    for (int i = 5; i < N; i++) {
        run_until(&f, i - 4);
        dispatch_add(f.dispatch, &f.answer[i]);
    }
    run_until(&f, N);
    while (f.done[at] != 2)
        at++;
    assert_in_range(at, 4, N - 3);
    close_fixture(&f);
}

/* Paused, often and back again: it stands still, whatever was said in between, then ends as ever.
 */
static void test_pause(void **state)
{
    (void)state;
    Fixture f;
    open_fixture(&f, 4, 4, 4);
    for (int i = 0; i < 5; i++)
        f.answer[i].request.max_tokens = i < 3 ? 600 : 120;
    for (int i = 0; i < 4; i++)
        dispatch_add(f.dispatch, &f.answer[i]);
    for (int i = 0; i < 3; i++)
        dispatch_pause(f.dispatch, &f.answer[i], 1);
    run_until(&f, 1);
    assert_int_equal(f.done[0], 3);
    for (int k = 0; k < 1000; k++) /* more often than there is room for messages */
        for (int i = 0; i < 3; i++)
            dispatch_pause(f.dispatch, &f.answer[i], k & 1);
    dispatch_add(f.dispatch, &f.answer[4]);
    run_until(&f, 2);
    assert_int_equal(f.done[1], 4);
    for (int i = 0; i < 3; i++)
        assert_true(f.answer[i].n_tokens < 120);
    for (int i = 0; i < 3; i++)
        dispatch_pause(f.dispatch, &f.answer[i], 0);
    dispatch_cancel(f.dispatch, &f.answer[1]);
    dispatch_pause(f.dispatch, &f.answer[1], 1); /* what is cancelled stays so */
    run_until(&f, 5);
    for (int i = 0; i < 3; i++)
        assert_int_equal(f.answer[i].n_tokens == 600, i != 1);
    close_fixture(&f);
}

/* One that was paused in the line begins so. */
static void test_paused_in_line(void **state)
{
    (void)state;
    Fixture f;
    open_fixture(&f, 2, 4, 2);
    f.answer[0].request.max_tokens = f.answer[1].request.max_tokens = 3000;
    for (int i = 0; i < 3; i++)
        dispatch_add(f.dispatch, &f.answer[i]);
    dispatch_pause(f.dispatch, &f.answer[2], 1);
    dispatch_cancel(f.dispatch, &f.answer[0]);
    dispatch_cancel(f.dispatch, &f.answer[1]);
    run_until(&f, 2);
    dispatch_add(f.dispatch, &f.answer[3]);
    run_until(&f, 3);
    assert_int_equal(f.done[2], 3);
    assert_int_equal(f.answer[2].n_tokens, 0);
    dispatch_pause(f.dispatch, &f.answer[2], 0);
    run_until(&f, 4);
    assert_int_equal(f.answer[2].n_tokens, 8);
    close_fixture(&f);
}

/* What the engine refuses is done, with the reason and without a finish_reason. */
static void test_refused(void **state)
{
    (void)state;
    Fixture f;
    open_fixture(&f, 2, 4, 6);
    f.answer[1].request.max_tokens = 1 << 20;
    f.answer[2].request.n_prompt = 0;
    for (int i = 0; i < 4; i++)
        dispatch_add(f.dispatch, &f.answer[i]);
    run_until(&f, 4);
    static const ErrorCode codes[] = {ERR_NONE, ERR_LIMIT, ERR_INPUT, ERR_NONE};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(f.answer[i].refused.code, codes[i]);
        assert_int_equal(answer_finish_reason(&f.answer[i]) != NULL, !codes[i]);
        assert_int_equal(f.answer[i].n_tokens, codes[i] ? 0 : 8);
    }
    close_fixture(&f);
}

/* Those in the line end at once, those that the engine has or will give back, soon. */
static void test_cancel(void **state)
{
    (void)state;
    static const int bounds[][2] = {{2, 3}, {1, 8}};
    for (int b = 0; b < 2; b++) {
        Fixture f;
        open_fixture(&f, 1, bounds[b][0], bounds[b][1]);
        for (int i = 0; i < N; i++)
            f.answer[i].request.max_tokens = i == N - 1 ? 8 : 8000;
        for (int i = 0; i < N; i++)
            dispatch_add(f.dispatch, &f.answer[i]);
        for (int i = N - 2; i >= 0; i--) {
            dispatch_cancel(f.dispatch, &f.answer[i]);
            for (int k = 0; k < 100; k++) /* again and again changes nothing */
                dispatch_cancel(f.dispatch, &f.answer[i]);
            if (i >= bounds[b][1]) assert_int_equal(f.answer[i].state, ANSWER_DONE);
        }
        run_until(&f, N);
        assert_int_equal(f.n_done, N);
        for (int i = 0; i < N - 1; i++) {
            assert_int_equal(f.answer[i].finish, FINISH_CANCELLED);
            assert_int_equal(f.answer[i].refused.code, ERR_NONE);
            assert_null(answer_finish_reason(&f.answer[i]));
        }
        assert_int_equal(f.answer[N - 1].n_tokens, 8);
        close_fixture(&f);
    }
}

/* Those that a full engine gave back wait in the line again, and are done at once. */
static void test_cancel_given_back(void **state)
{
    (void)state;
    Fixture f;
    Error err = {0};
    open_fixture(&f, 1, 1, 8);
    for (int i = 0; i < N; i++) {
        f.answer[i].request.max_tokens = 8000;
        dispatch_add(f.dispatch, &f.answer[i]);
    }
    struct pollfd p = {.fd = dispatch_fd(f.dispatch), .events = POLLIN};
    while (dispatch_n_waiting(f.dispatch) < N - 2 && poll(&p, 1, 30000) == 1)
        assert_true(dispatch_read(f.dispatch, &err) >= 0);
    assert_true(dispatch_n_waiting(f.dispatch) >= N - 2);
    for (int i = 0; i < N; i++)
        dispatch_cancel(f.dispatch, &f.answer[i]);
    assert_int_equal(dispatch_n_waiting(f.dispatch), 0);
    assert_true(f.n_done >= N - 2);
    run_until(&f, N);
    close_fixture(&f);
}

/* Orders have numbers and are obeyed in turn; no more are taken than may be open. */
static void test_orders(void **state)
{
    (void)state;
    Fixture f;
    Error err = {0};
    open_fixture(&f, 1, 1, 1);
    struct pollfd p = {.fd = dispatch_fd(f.dispatch), .events = POLLIN};
    for (long i = 1; i <= MAX_ORDERS; i++)
        assert_int_equal(dispatch_order(f.dispatch, ORDER_FLUSH_CACHE), i);
    assert_int_equal(dispatch_order(f.dispatch, ORDER_FLUSH_CACHE), -1);
    while (dispatch_n_obeyed(f.dispatch) < MAX_ORDERS && poll(&p, 1, 30000) == 1)
        assert_int_equal(dispatch_read(f.dispatch, &err), 0);
    assert_int_equal(dispatch_n_obeyed(f.dispatch), MAX_ORDERS);
    assert_int_equal(dispatch_order(f.dispatch, ORDER_FLUSH_CACHE), MAX_ORDERS + 1);
    close_fixture(&f);
}

/* Closing in the middle of everything leaves the engine empty. */
static void test_close_while_running(void **state)
{
    (void)state;
    Fixture f;
    open_fixture(&f, 2, 4, 6);
    for (int i = 0; i < N; i++) {
        f.answer[i].request.max_tokens = 8000;
        dispatch_add(f.dispatch, &f.answer[i]);
    }
    Error err = {0};
    EngineStatus status;
    struct pollfd p = {.fd = dispatch_fd(f.dispatch), .events = POLLIN};
    while ((!f.answer[0].n_tokens || !f.answer[1].n_tokens) && poll(&p, 1, 30000) == 1)
        assert_true(dispatch_read(f.dispatch, &err) >= 0);
    dispatch_status(f.dispatch, &status);
    assert_int_equal(status.running, 2);
    assert_int_equal(dispatch_n_live(f.dispatch), N);
    assert_int_equal(dispatch_n_waiting(f.dispatch), N - 6);
    dispatch_close(f.dispatch);
    engine_status(f.served->service.engine, &status);
    assert_int_equal(status.running + status.waiting, 0);
    assert_int_equal(f.n_done, 0);
    for (int i = 0; i < N; i++)
        answer_close(&f.answer[i]);
    served_close_engine(f.served);
}

/* All that run and wait end with the device's error; who comes later waits until it is cancelled.
 */
static void test_lost(void **state)
{
    (void)state;
    Fixture f;
    Error err = {0};
    served_lose_device(0);
    open_fixture(&f, 1, 4, 2 * N); /* places that nobody has, too */
    Answer *late = &f.answer[N - 1];
    for (int i = 0; i < N - 1; i++) {
        f.answer[i].request.max_tokens = 8000;
        dispatch_add(f.dispatch, &f.answer[i]);
    }
    struct pollfd p = {.fd = dispatch_fd(f.dispatch), .events = POLLIN};
    while (!f.answer[0].n_tokens && poll(&p, 1, 30000) == 1)
        assert_true(dispatch_read(f.dispatch, &err) >= 0);
    served_lose_device(1);
    while (poll(&p, 1, 30000) == 1 && dispatch_read(f.dispatch, &err) >= 0)
        assert_int_equal(f.n_done, 0);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_int_equal(dispatch_n_live(f.dispatch), 0);
    assert_int_equal(f.n_done, N - 1);
    for (int i = 0; i < N - 1; i++) {
        assert_int_equal(f.answer[i].state, ANSWER_DONE);
        assert_int_equal(f.answer[i].refused.code, ERR_DEVICE);
    }
    dispatch_add(f.dispatch, late);
    assert_int_equal(late->state, ANSWER_WAITING);
    assert_int_equal(dispatch_silent_ms(f.dispatch), 0);
    dispatch_cancel(f.dispatch, late);
    assert_int_equal(late->state, ANSWER_DONE);
    close_fixture(&f);
    served_lose_device(0);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Silence is counted from the last step, or from when somebody wanted one after nobody did. */
static void test_silence(void **state)
{
    (void)state;
    Fixture f;
    Error err = {0};
    open_fixture(&f, 2, 4, 6);
    usleep(100000);
    assert_int_equal(dispatch_silent_ms(f.dispatch), 0);
    int64_t start = now_ms();
    f.answer[0].request.max_tokens = f.answer[1].request.max_tokens = 8000;
    dispatch_add(f.dispatch, &f.answer[0]);
    assert_true(dispatch_silent_ms(f.dispatch) <= now_ms() - start);
    usleep(100000);
    /* Its first token is of a step that began after this. */
    start = now_ms();
    dispatch_add(f.dispatch, &f.answer[1]);
    struct pollfd p = {.fd = dispatch_fd(f.dispatch), .events = POLLIN};
    while (!f.answer[1].n_tokens && poll(&p, 1, 30000) == 1)
        assert_true(dispatch_read(f.dispatch, &err) >= 0);
    assert_true(f.answer[1].n_tokens > 0);
    assert_true(dispatch_silent_ms(f.dispatch) <= now_ms() - start);
    for (int i = 0; i < 2; i++)
        dispatch_pause(f.dispatch, &f.answer[i], 1);
    usleep(100000); /* nobody wants a step */
    assert_int_equal(dispatch_silent_ms(f.dispatch), 0);
    start = now_ms(); /* one does again, */
    dispatch_pause(f.dispatch, &f.answer[0], 0);
    int64_t silent = dispatch_silent_ms(f.dispatch);
    assert_true(silent <= now_ms() - start);
    dispatch_pause(f.dispatch, &f.answer[0], 1);
    usleep(100000);
    start = now_ms(); /* or one that is new */
    dispatch_add(f.dispatch, &f.answer[2]);
    silent = dispatch_silent_ms(f.dispatch);
    assert_true(silent <= now_ms() - start);
    for (int i = 0; i < 3; i++)
        dispatch_cancel(f.dispatch, &f.answer[i]);
    run_until(&f, 3);
    usleep(10000);
    assert_int_equal(dispatch_silent_ms(f.dispatch), 0);
    close_fixture(&f);
}

/* Seconds that a client is asked to wait while answers from first to N - 1 are in the line. */
static int line_seconds(Fixture *f, int first)
{
    int n_done = f->n_done;
    for (int i = first; i < N; i++)
        dispatch_add(f->dispatch, &f->answer[i]);
    int seconds = dispatch_retry_after(f->dispatch);
    for (int i = first; i < N; i++)
        dispatch_cancel(f->dispatch, &f->answer[i]);
    run_until(f, n_done + N - first);
    return seconds;
}

/* The line goes as fast as answers end; time in which there was none to make counts for nothing. */
static void test_retry_after(void **state)
{
    (void)state;
    Fixture f;
    open_fixture(&f, 1, 1, 1);
    assert_int_equal(dispatch_retry_after(f.dispatch), 1);
    int64_t start = now_ms();
    dispatch_add(f.dispatch, &f.answer[0]);
    run_until(&f, 1);
    int64_t longest_ms = now_ms() - start;
    usleep(1900000); /* an eighth of it for each of nine that wait would be two seconds */
    start = now_ms();
    dispatch_add(f.dispatch, &f.answer[1]);
    run_until(&f, 2);
    if (now_ms() - start > longest_ms) longest_ms = now_ms() - start;
    int bound = (int)(9 * longest_ms / 1000);
    assert_in_range(line_seconds(&f, 2), 1, bound > 1 ? bound : 1);
    close_fixture(&f);

    open_fixture(&f, 1, 1, 2);
    dispatch_add(f.dispatch, &f.answer[0]);
    dispatch_pause(f.dispatch, &f.answer[0], 1);
    usleep(300000);
    dispatch_add(f.dispatch, &f.answer[1]);
    dispatch_pause(f.dispatch, &f.answer[0], 0);
    run_until(&f, 2);                            /* one after 300 ms, one soon after it */
    assert_in_range(line_seconds(&f, 2), 2, 30); /* eight behind two */
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),         cmocka_unit_test(test_fair_line),
        cmocka_unit_test(test_line_moves_on), cmocka_unit_test(test_paused_in_line),
        cmocka_unit_test(test_pause),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cancel),        cmocka_unit_test(test_cancel_given_back),
        cmocka_unit_test(test_orders),        cmocka_unit_test(test_close_while_running),
        cmocka_unit_test(test_lost),          cmocka_unit_test(test_silence),
        cmocka_unit_test(test_retry_after),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
