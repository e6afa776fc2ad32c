/*
 * test_mirror.c: what a device gets from a mirror, and what a mirror does not let pass.
 *
 * The device here looks at its arguments and writes where a case says. The kernel tests show that
 * the sizes are right: they run simt behind a mirror.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/host_memory.h"
#include "tests/mirror.h"

enum { DIM = 6 };

static GatedNorm norm_seen;
static int out_at, in_at; /* the floats of out and z that gated_norm writes */
static uint32_t beyond;   /* the bits of the float after out */

static void fake_gated_norm(Backend *be, const GatedNorm *a)
{
    (void)be;
    norm_seen = *a;
    memcpy(&beyond, a->out + DIM, sizeof beyond);
    if (out_at >= 0) a->out[out_at] = 5;
    if (in_at >= 0) ((float *)(uintptr_t)a->z)[in_at] = 5;
}

/* The first of two rows' floats, and one more. */
static void fake_add_norm(Backend *be, const AddNorm *a)
{
    (void)be;
    a->out[0] = a->out[a->out_stride] = 5;
    if (out_at >= 0) a->out[out_at] = 5;
}

static Sample sample_seen;
static SampleRow rows_seen[2];
static int32_t path_seen;

static void fake_sample(Backend *be, const Sample *a)
{
    (void)be;
    sample_seen = *a;
    memcpy(rows_seen, a->row, sizeof rows_seen);
    path_seen = a->row[1].path[1];
    a->id[1] = 7;
}

static int fake_sync(Backend *be, Error *err)
{
    (void)be;
    return error_set(err, ERR_DEVICE, "lost");
}

static void fake_close(Backend *be)
{
    (void)be;
}

static Backend fake;

static Backend *open_fake(void)
{
    fake = (Backend){.name = "fake", .isa = "none", .n_threads = 1};
    host_memory_fill(&fake);
    fake.gated_norm = fake_gated_norm;
    fake.add_norm = fake_add_norm;
    fake.sample = fake_sample;
    fake.close = fake_close;
    out_at = in_at = -1;
    return mirror_open(&fake);
}

static size_t low(const void *p)
{
    return (uintptr_t)p % 256;
}

static void test_arrays(void **state)
{
    (void)state;
    static const float w[DIM] = {1, 2, 3, 4, 5, 6}; /* memory that cannot be written */
    float x[DIM + 1] = {0, 1}, z[DIM] = {0};
    Backend *be = open_fake();
    out_at = 3;
    be->gated_norm(be, &(GatedNorm){1, 1, DIM, 0, x + 1, z, w, x + 1});
    assert_true(norm_seen.x == norm_seen.out); /* in place here, in place there */
    assert_true(norm_seen.x != x + 1 && norm_seen.z != z && norm_seen.w != w);
    assert_int_equal(low(norm_seen.x), low(x + 1));
    assert_int_equal(low(norm_seen.z), low(z));
    assert_int_equal(low(norm_seen.w), low(w));
    assert_int_equal(beyond, 0xffffffff);
    assert_true(x[1] == 1 && x[4] == 5);
    be->close(be);
}

/* Pointers in structs; an array with no elements; one that two rows share. */
static void test_structs(void **state)
{
    (void)state;
    static const int32_t path[] = {3, 4};
    uint32_t counts[DIM] = {1};
    float logits[2 * DIM] = {0};
    int32_t id[2] = {0};
    uint8_t bad[2];
    SampleRow row[2] = {{.counts = counts, .ban = path},
                        {.counts = counts, .path = path, .n_path = 2, .pos = 9}};
    Backend *be = open_fake();
    be->sample(be, &(Sample){2, DIM, 1, logits, NULL, row, id, NULL, bad, 0});
    assert_true(sample_seen.row != row && !sample_seen.allowed && !sample_seen.logp);
    assert_true(rows_seen[0].counts == rows_seen[1].counts && rows_seen[0].counts != counts);
    assert_true(!rows_seen[0].ban && !rows_seen[0].path && rows_seen[1].path != path);
    assert_true(row[1].path == path); /* the caller's structs stay */
    assert_int_equal(path_seen, 4);
    assert_int_equal(rows_seen[1].pos, 9);
    assert_int_equal(id[1], 7);
    be->close(be);
}

/* 1 if an operation that writes there ends a child of ours by abort. */
static int aborts(void (*run)(Backend *be), int out, int in, int lost)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        Backend *be = open_fake();
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        out_at = out, in_at = in;
        if (lost) fake.sync = fake_sync;
        run(be);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status)) assert_int_equal(status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void run_norm(Backend *be)
{
    float x[DIM] = {0}, z[DIM] = {0}, w[DIM] = {0}, y[DIM] = {0};
    be->gated_norm(be, &(GatedNorm){1, 1, DIM, 0, x, z, w, y});
}

static int norm_aborts(int out, int in, int lost)
{
    return aborts(run_norm, out, in, lost);
}

static void run_rows(Backend *be)
{
    float x[2 * DIM] = {0}, w[DIM] = {0}, y[2 * DIM + 3] = {0};
    be->add_norm(be,
                 &(AddNorm){.n = 2, .dim = DIM, .x = x, .w = w, .out = y, .out_stride = DIM + 3});
    assert_true(y[0] == 5 && y[1] == 0 && y[DIM + 3] == 5);
}

static void test_rows_apart(void **state)
{
    (void)state;
    assert_false(aborts(run_rows, DIM - 1, -1, 0));
    assert_true(aborts(run_rows, DIM, -1, 0)); /* between two rows */
    assert_true(aborts(run_rows, DIM + 2, -1, 0));
    assert_false(aborts(run_rows, 2 * DIM + 2, -1, 0));
    assert_true(aborts(run_rows, 2 * DIM + 3, -1, 0));
}

static void test_faults(void **state)
{
    (void)state;
    assert_false(norm_aborts(0, -1, 0));
    assert_false(norm_aborts(DIM - 1, -1, 0));
    assert_true(norm_aborts(DIM, -1, 0)); /* beyond an output */
    assert_true(norm_aborts(0, 0, 0));    /* into an input */
    assert_true(norm_aborts(0, DIM + 63, 0));
    assert_true(norm_aborts(0, -1, 1)); /* a lost device */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_structs),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_rows_apart),
    };
    return cmocka_run_group_tests_name("mirror", tests, NULL, NULL);
}
