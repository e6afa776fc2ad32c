/*
 * test_transfer.c: tensors of several files reach a device whose uploads take their time: a buffer
 * that is filled again too early, a piece cut wrong or a tensor left out shows in the bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/transfer.h"
#include "kernels/host_memory.h"
#include "tests/checkpoint.h"
#include "tests/near.h"

enum { MAX_PENDING = 4096, N_SHARDS = 3 };

/* A device: what is uploaded arrives at the next sync, as late as it may. */
typedef struct {
    Backend be;
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } pending[MAX_PENDING];
    int n_pending, n_syncs, fail_at; /* fail_at: the sync that fails, 0: none */
    int n_host, no_host_from;        /* buffers lent; none from this one on, 0: always */
} Late;

static void late_upload(Backend *be, void *to, const void *from, size_t bytes)
{
    Late *d = (Late *)be;
    assert_true(d->n_pending < MAX_PENDING);
    d->pending[d->n_pending].to = to;
    d->pending[d->n_pending].from = from;
    d->pending[d->n_pending++].bytes = bytes;
}

static int late_sync(Backend *be, Error *err)
{
    Late *d = (Late *)be;
    if (++d->n_syncs == d->fail_at) return error_set(err, ERR_DEVICE, "the device is gone");
    for (int i = 0; i < d->n_pending; i++)
        memcpy(d->pending[i].to, d->pending[i].from, d->pending[i].bytes);
    d->n_pending = 0;
    return 0;
}

static void *late_host_alloc(Backend *be, size_t bytes, Error *err)
{
    Late *d = (Late *)be;
    if (d->no_host_from && d->n_host + 1 >= d->no_host_from) {
        error_set(err, ERR_DEVICE, "no pinned memory");
        return NULL;
    }
    d->n_host++;
    return mem_alloc(bytes, 1);
}

static void late_host_free(Backend *be, void *mem)
{
    ((Late *)be)->n_host--;
    mem_free(mem);
}

static void late_open(Late *d)
{
    *d = (Late){0};
    host_memory_fill(&d->be);
    d->be.is_host = 0;
    d->be.upload = late_upload;
    d->be.sync = late_sync;
    d->be.host_alloc = late_host_alloc;
    d->be.host_free = late_host_free;
}

/* Shards with a tensor of 35 MiB, some of a few MiB and many small ones. */
static const char *write_files(void)
{
    static char dir[256];
    Checkpoint c = {0};
    Rng rng = rng_new(5);
    char index[16384] = "{\"weight_map\":{";
    snprintf(dir, sizeof dir, "%s", scratch_dir("transfer"));
    for (int i = 0; i < 120; i++) {
        char name[32];
        int bytes = i == 40       ? (35 << 20) + 5
                    : i % 10 == 3 ? rng_int(&rng, 3 << 20) + 1
                                  : rng_int(&rng, 20000) + 1;
        snprintf(name, sizeof name, "t%d", i);
        CheckpointTensor *t = checkpoint_put(&c, name, "F8_E4M3", bytes, -1, -1);
        for (int k = 0; k + 8 <= bytes; k += 8) {
            uint64_t r = rng_next(&rng);
            memcpy(t->data + k, &r, sizeof r);
        }
        snprintf(index + strlen(index), sizeof index - strlen(index), "%s\"%s\":\"%d\"",
                 i ? "," : "", name, i % N_SHARDS);
    }
    snprintf(index + strlen(index), sizeof index - strlen(index), "}}");
    for (int i = 0; i < N_SHARDS; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        checkpoint_write(&c, scratch_path(dir, name), i, N_SHARDS, i == 1); /* one at odd bytes */
    }
    scratch_write(scratch_path(dir, "model.safetensors.index.json"), index, strlen(index));
    checkpoint_free(&c);
    return dir;
}

static const char *dir;
static Safetensors *st;

static int setup(void **state)
{
    Error err = {0};
    (void)state;
    dir = write_files();
    st = safetensors_open(dir, &err);
    if (!st) fail_msg("%s", err.msg);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    safetensors_close(st);
    return 0;
}

/* Asks for two tensors of three, the last first; the others are gaps. */
static void add_all(Transfers *ts, unsigned char **to)
{
    for (int i = safetensors_count(st) - 1; i >= 0; i--) {
        const Tensor *t = safetensors_at(st, i);
        to[i] = mem_alloc(t->bytes, 1);
        if (i % 3) transfers_add(ts, st, t, to[i]);
    }
}

static void free_all(unsigned char **to)
{
    for (int i = 0; i < safetensors_count(st); i++)
        mem_free(to[i]);
}

static void test_all_arrive(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 5, 100};
    static unsigned char *to[256];
    static Late d;
    for (int k = 0; k < 4; k++) {
        Error err = {0};
        Transfers ts = {0};
        size_t bytes = 0;
        late_open(&d);
        add_all(&ts, to);
        if (transfers_run(&ts, st, &d.be, threads[k], &err)) fail_msg("%s", err.msg);
        assert_int_equal(d.n_host, 0);
        for (int i = 0; i < safetensors_count(st); i++) {
            const Tensor *t = safetensors_at(st, i);
            if (i % 3) bytes += t->bytes;
            if (i % 3)
                assert_memory_equal(to[i], t->data, t->bytes);
            else
                for (size_t b = 0; b < t->bytes; b++)
                    assert_int_equal(to[i][b], 0);
        }
        assert_true(ts.bytes == bytes);
        transfers_free(&ts);
        free_all(to);
    }
}

static void expect_error(Late *d, const char *says)
{
    static unsigned char *to[256];
    for (int threads = 1; threads <= 4; threads += 3) {
        Error err = {0};
        Transfers ts = {0};
        add_all(&ts, to);
        d->n_syncs = d->n_pending = 0;
        assert_int_equal(transfers_run(&ts, st, &d->be, threads, &err), -1);
        if (!strstr(err.msg, says)) fail_msg("'%s' should say \"%s\"", err.msg, says);
        assert_int_equal(d->n_host, 0); /* buffers are given back */
        transfers_free(&ts);
        free_all(to);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static Late d;
    Transfers none = {0};
    late_open(&d);
    assert_int_equal(transfers_run(&none, st, &d.be, 3, NULL), 0);
    d.fail_at = 2;
    expect_error(&d, "the device is gone");
    d.fail_at = 0;
    d.no_host_from = 2;
    expect_error(&d, "no pinned memory");
    d.no_host_from = 0;

    const char *path = scratch_path(dir, "1");
    assert_int_equal(truncate(path, 100000), 0);
    expect_error(&d, "transfer/1': it has become shorter");
    assert_int_equal(unlink(path), 0);
    expect_error(&d, "cannot open");
    safetensors_close(st);
    setup(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_arrive),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
