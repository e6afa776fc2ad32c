/*
 * A warpgroup's products, as translate.py would write them, that are right or break a rule: each
 * kernel runs in a process of its own, which must end as it should.
 *
 * Run by run.sh.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/apart.h"
#include "tests/ptx/ptx_run.h"

enum {
    N_THREADS = 128,
    COLUMNS = 32,
    K = 64, /* a row of B, four products */
    B_BYTES = COLUMNS * K * 2,
    SHARED = 2 * B_BYTES,
    STEPS = K / 16,
};

#define SWIZZLE   ((uint64_t)1 << 62)
#define EIGHT     ((uint64_t)64 << 32) /* from 8 rows to the next 8, in units of 16 bytes */
#define FROM_HERE (SWIZZLE | EIGHT | (uint64_t)1 << 16)

typedef struct {
    uint64_t b; /* device memory: B as it lies in shared memory */
} Given;

typedef struct {
    const char *name, *said; /* NULL: it ends well */
    uint64_t descriptor;
    int hides, changes, stays; /* does not show its copies; changes B too early; does not wait */
} Case;

static const Case *now;

/* Small integers: all sums are exact. */
static int a_value(int row, int k)
{
    return (row * 7 + k * 3) % 11 - 5;
}

static int b_value(int column, int k)
{
    return (column * 5 + k * k) % 13 - 6;
}

/* The code of an integer up to 8 in fp16. */
static uint16_t fp16_code(int x)
{
    uint16_t sign = x < 0 ? 0x8000 : 0;
    int size = abs(x), e = 0;
    if (!size) return 0;
    while (size >> (e + 1))
        e++;
    return (uint16_t)(sign | (15 + e) << 10 | (size << (10 - e) & 0x3ff));
}

/* Column by column, pieces of 16 bytes exchanged by the row's number. */
static void lay_out_b(uint16_t *to)
{
    for (int c = 0; c < COLUMNS; c++)
        for (int k = 0; k < K; k++)
            to[c * K + (k / 8 ^ c % 8) * 8 + k % 8] = fp16_code(b_value(c, k));
}

static uint32_t a_pair(int row, int k)
{
    return fp16_code(a_value(row, k)) | (uint32_t)fp16_code(a_value(row, k + 1)) << 16;
}

static void check_sums(const float *d)
{
    int thread = (int)simt_thread_idx.x, row = thread / 32 * 16 + thread % 32 / 4;
    for (int i = 0; i < COLUMNS / 2; i++) {
        int r = row + i / 2 % 2 * 8, c = i / 4 * 8 + thread % 4 * 2 + i % 2, want = 0;
        for (int k = 0; k < K; k++)
            want += a_value(r, k) * b_value(c, k);
        if (d[i] == (float)want) continue;
        fprintf(stderr, "row %d, column %d: %g for %d\n", r, c, (double)d[i], want);
        abort();
    }
}

static void kernel(const PtxThread *t)
{
    uint64_t from = ((const Given *)(const void *)t->param)->b;
    int thread = (int)simt_thread_idx.x, row = thread / 32 * 16 + thread % 32 / 4,
        k0 = thread % 4 * 2;
    float d[COLUMNS / 2];
    ptx_grid_wait(t);
    for (uint64_t at = simt_thread_idx.x * 16; at < B_BYTES; at += N_THREADS * 16)
        ptx_copy(t, __LINE__, at, from + at, 16);
    ptx_copies_commit();
    ptx_copies_wait(t, __LINE__, 0);
    if (!now->hides) ptx_show_shared();
    ptx_block_sync(t, __LINE__, 0);
    for (int i = 0; i < COLUMNS / 2; i++)
        d[i] = 1e9f; /* the first product does not add */
    ptx_wgmma_fence(t, __LINE__);
    for (int s = 0; s < STEPS; s++) {
        int k = s * 16 + k0;
        ptx_wgmma_f16(t, __LINE__, COLUMNS, d, a_pair(row, k), a_pair(row + 8, k),
                      a_pair(row, k + 8), a_pair(row + 8, k + 8), now->descriptor + (uint64_t)s * 2,
                      s > 0);
    }
    ptx_wgmma_commit(t, __LINE__);
    if (now->changes) {
        ptx_block_sync(t, __LINE__, 0);
        if (thread == 0) *(uint16_t *)ptx_shared(t, 0, 2, __LINE__, PTX_STORE) ^= 1;
        ptx_block_sync(t, __LINE__, 0);
    }
    if (now->stays) return;
    ptx_wgmma_wait(t, __LINE__, 0);
    check_sums(d);
}

static const Case cases[] = {
    {"a product", NULL, FROM_HERE, 0, 0, 0},
    {"copies not shown", "ptx: wgmma of shared memory that a thread has not shown", FROM_HERE, 1, 0,
     0},
    {"B changes", "ptx: wgmma: its shared memory has changed before the wait", FROM_HERE, 0, 1, 0},
    {"nobody waits", "ptx: wgmma: nobody waits for it", FROM_HERE, 0, 0, 1},
    {"no swizzle", "ptx: wgmma: not the swizzle of 128 bytes", EIGHT, 0, 0, 0},
    {"rows that overlap", "ptx: wgmma: eight rows do not follow eight", SWIZZLE | EIGHT / 2, 0, 0,
     0},
    {"rows off their place", "ptx: wgmma: rows do not begin at a multiple of 1,024 bytes",
     FROM_HERE + 8, 0, 0, 0},
    {"an offset of the base", "ptx: wgmma: bits of a descriptor that must be 0",
     FROM_HERE | (uint64_t)1 << 49, 0, 0, 0},
    {"beyond the block's memory", "ptx: no shared memory at", FROM_HERE + SHARED / 16, 0, 0, 0},
    {"other columns", "row 0, column 0: ", FROM_HERE + B_BYTES / 2 / 16, 0, 0, 0},
};

static void run(const void *arg)
{
    static const PtxParam param = {sizeof(Given), 8};
    static const PtxEntry entry = {.module = "test_wgmma",
                                   .name = "kernel",
                                   .file = __FILE__,
                                   .body = kernel,
                                   .param = &param,
                                   .n_params = 1,
                                   .shared_bytes = SHARED,
                                   .max_threads = N_THREADS};
    Given of = {(uintptr_t)device_memory_take(B_BYTES)};
    now = arg;
    lay_out_b((uint16_t *)(of.b + (DEVICE_BYTES_AT - DEVICE_MEMORY_AT)));
    ptx_launch(&entry, (SimtDim){1, 1, 1}, N_THREADS, 0, &of, 0);
    simt_flush();
}

static void test_wgmma(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        char said[APART_SAID];
        int status = run_apart(run, c, said);
        int is_as_said = c->said && WIFSIGNALED(status) && !strncmp(said, c->said, strlen(c->said));
        if (c->said ? !is_as_said : status)
            fail_msg("%s: status %#x, %s", c->name, (unsigned)status, said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wgmma)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
