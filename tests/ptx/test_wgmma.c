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
    ROWS = 64,
    MOST_COLUMNS = 256,
    K = 64, /* a row of A, a column of B: four products */
    B_BYTES = MOST_COLUMNS * K * 2,
    A_BYTES = ROWS * K * 2,
    PRODUCT = B_BYTES + A_BYTES, /* in this order */
    SHARED = PRODUCT + 1024,
    STEPS = K / 16,
};

#define SWIZZLE (UINT64_C(1) << 62)
#define EIGHT   (UINT64_C(64) << 32) /* from 8 rows to the next 8, in units of 16 bytes */
#define B_HERE  (SWIZZLE | EIGHT | UINT64_C(1) << 16)
#define A_HERE  (B_HERE + B_BYTES / 16)

typedef struct {
    uint64_t shared; /* device memory: what is to lie in shared memory */
} Given;

typedef struct {
    PtxHalf kind;
    int columns, a_shared, transposed;
} Form;

typedef enum { NOTHING, OF_A, OF_B, ELSEWHERE } Part;
typedef enum { ONCE, TWICE, NEVER, TOO_EARLY } Showing;
typedef enum { WHOLE, HALF, ZEROS } Copies;

typedef struct {
    const char *name, *said; /* NULL: it ends well */
    const Form *form;
    uint64_t b, a;
    Part changes, stores; /* before the wait; what it has shown before */
    Showing shows;        /* what it has copied; again, behind the barrier; before it is there */
    Copies copies;        /* how much of each it reads */
    int stays;            /* does not wait */
    Part differs;         /* for the last thread; ELSEWHERE: whether it adds */
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

static int b_value_across(int k, int column)
{
    return b_value(column, k);
}

static uint16_t code(PtxHalf kind, int x)
{
    return kind == PTX_F16 ? cvt_rn_f16_f32((float)x) : cvt_rn_bf16_f32((float)x);
}

/* Row by row, pieces of 16 bytes exchanged by the row's number. */
static void lay_out(uint16_t *to, PtxHalf kind, int rows, int (*of)(int row, int i))
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 64; i++)
            to[r * 64 + (i / 8 ^ r % 8) * 8 + i % 8] = code(kind, of(r, i));
}

static uint32_t a_pair(int row, int k)
{
    PtxHalf kind = now->form->kind;
    return code(kind, a_value(row, k)) | (uint32_t)code(kind, a_value(row, k + 1)) << 16;
}

static void check_sums(const float *d)
{
    int thread = (int)simt_thread_idx.x, row = thread / 32 * 16 + thread % 32 / 4;
    for (int i = 0; i < now->form->columns / 2; i++) {
        int r = row + i / 2 % 2 * 8, c = i / 4 * 8 + thread % 4 * 2 + i % 2, want = 0;
        for (int k = 0; k < K; k++)
            want += a_value(r, k) * b_value(c, k);
        if (d[i] == (float)want) continue;
        fprintf(stderr, "row %d, column %d: %g for %d\n", r, c, (double)d[i], want);
        abort();
    }
}

static void store(const PtxThread *t, Part part, int bits)
{
    uint64_t at = part == OF_A ? B_BYTES : part == OF_B ? 0 : PRODUCT;
    if (part && simt_thread_idx.x == 0)
        *(uint16_t *)ptx_shared(t, at, 2, __LINE__, PTX_STORE) ^= (uint16_t)bits;
}

/* Of k's [16 step, 16 step + 16). */
static void product(const PtxThread *t, int step, float *d)
{
    const Form *f = now->form;
    int thread = (int)simt_thread_idx.x, row = thread / 32 * 16 + thread % 32 / 4;
    int k = step * 16 + thread % 4 * 2;
    Part differs = thread == N_THREADS - 1 ? now->differs : NOTHING;
    int adds = step > 0 || differs == ELSEWHERE;
    uint64_t a_rows = now->a + (uint64_t)step * 2 + (differs == OF_A ? 1024 / 16 : 0);
    uint64_t b = now->b + (differs == OF_B ? 1024 / 16 : 0) +
                 (uint64_t)step * (f->transposed ? 16 * 128 / 16 : 2);
    uint32_t a[4] = {a_pair(row, k), a_pair(row + 8, k), a_pair(row, k + 8),
                     a_pair(row + 8, k + 8)};
    if (f->a_shared)
        ptx_wgmma_shared(t, __LINE__, f->kind, f->columns, d, a_rows, b, adds);
    else
        ptx_wgmma_registers(t, __LINE__, f->kind, f->columns, d, a, b, f->transposed, adds);
}

static void kernel(const PtxThread *t)
{
    uint64_t from = ((const Given *)(const void *)t->param)->shared;
    float d[MOST_COLUMNS / 2];
    uint32_t read = now->copies == WHOLE ? 16 : now->copies == HALF ? 8 : 0;
    ptx_grid_wait(t);
    for (uint64_t at = simt_thread_idx.x * 16; at < PRODUCT; at += N_THREADS * 16)
        ptx_copy(t, __LINE__, at, from + at, 16, read);
    ptx_copies_commit();
    if (now->shows == TOO_EARLY) ptx_show_shared();
    ptx_copies_wait(t, __LINE__, 0);
    if (now->shows <= TWICE) ptx_show_shared();
    store(t, now->stores, 0);
    ptx_block_sync(t, __LINE__, 0);
    if (now->shows == TWICE) ptx_show_shared();
    for (int i = 0; i < MOST_COLUMNS / 2; i++)
        d[i] = 1e9f; /* the first product does not add */
    ptx_wgmma_fence(t, __LINE__);
    for (int s = 0; s < STEPS; s++)
        product(t, s, d);
    ptx_wgmma_commit(t, __LINE__);
    if (now->changes) {
        ptx_block_sync(t, __LINE__, 0);
        store(t, now->changes, 1);
        ptx_block_sync(t, __LINE__, 0);
    }
    if (now->stays) return;
    ptx_wgmma_wait(t, __LINE__, 0);
    check_sums(d);
}

static const Form fp16 = {PTX_F16, 32, 0, 0};
static const Form bf16 = {PTX_BF16, 8, 0, 0};
static const Form widest = {PTX_F16, 256, 1, 0};
static const Form a_shared = {PTX_BF16, 64, 1, 0};
static const Form transposed = {PTX_BF16, 64, 0, 1};

#define NOT_SHOWN  "ptx: wgmma of shared memory that a thread has not shown"
#define CHANGED    "ptx: wgmma: its shared memory has changed before the wait"
#define NOT_SAME   "ptx: wgmma: not the same for all of a warpgroup"
#define NO_WAIT    "ptx: wgmma: nobody waits for it"
#define NO_SWIZZLE "ptx: wgmma: not the swizzle of 128 bytes"
#define OVERLAP    "ptx: wgmma: eight rows do not follow eight"
#define OFF_PLACE  "ptx: wgmma: rows do not begin at a multiple of 1,024 bytes"
#define BITS       "ptx: wgmma: bits of a descriptor that must be 0"
#define BEYOND     "ptx: no shared memory at"
#define WRONG      "row " /* whichever thread comes first */

static const Case cases[] = {
    {"fp16", NULL, &fp16, .b = B_HERE},
    {"bf16", NULL, &bf16, .b = B_HERE},
    {"fp16, A shared, 256 columns", NULL, &widest, .b = B_HERE, .a = A_HERE},
    {"bf16, A shared", NULL, &a_shared, .b = B_HERE, .a = A_HERE},
    {"bf16, B transposed", NULL, &transposed, .b = B_HERE},
    {"copies of nothing", WRONG, &fp16, .b = B_HERE, .copies = ZEROS},
    {"copies of halves", "ptx: a copy of neither all bytes nor none", &fp16, .b = B_HERE,
     .copies = HALF},
    {"copies not shown", NOT_SHOWN, &fp16, .b = B_HERE, .shows = NEVER},
    {"copies not shown, A shared", NOT_SHOWN, &a_shared, .b = B_HERE, .a = A_HERE, .shows = NEVER},
    {"copies not shown, B transposed", NOT_SHOWN, &transposed, .b = B_HERE, .shows = NEVER},
    {"shown before they come", NOT_SHOWN, &fp16, .b = B_HERE, .shows = TOO_EARLY},
    {"a store not shown", NOT_SHOWN, &fp16, .b = B_HERE, .stores = OF_B},
    {"a store shown behind the barrier", NOT_SHOWN, &fp16, .b = B_HERE, .stores = OF_B,
     .shows = TWICE},
    {"a store to A not shown", NOT_SHOWN, &a_shared, .b = B_HERE, .a = A_HERE, .stores = OF_A},
    {"a store elsewhere not shown", NULL, &a_shared, .b = B_HERE, .a = A_HERE, .stores = ELSEWHERE},
    {"B changes", CHANGED, &fp16, .b = B_HERE, .changes = OF_B},
    {"A changes", CHANGED, &a_shared, .b = B_HERE, .a = A_HERE, .changes = OF_A},
    {"B changes, A shared", CHANGED, &a_shared, .b = B_HERE, .a = A_HERE, .changes = OF_B},
    {"B changes, transposed", CHANGED, &transposed, .b = B_HERE, .changes = OF_B},
    {"not the same B", NOT_SAME, &transposed, .b = B_HERE, .differs = OF_B},
    {"not the same A", NOT_SAME, &a_shared, .b = B_HERE, .a = A_HERE, .differs = OF_A},
    {"not all add", NOT_SAME, &fp16, .b = B_HERE, .differs = ELSEWHERE},
    {"nobody waits", NO_WAIT, &fp16, .b = B_HERE, .stays = 1},
    {"nobody waits, A shared", NO_WAIT, &a_shared, .b = B_HERE, .a = A_HERE, .stays = 1},
    {"no swizzle", NO_SWIZZLE, &fp16, .b = EIGHT},
    {"no swizzle of A", NO_SWIZZLE, &a_shared, .b = B_HERE, .a = EIGHT},
    {"no descriptor of A", NO_SWIZZLE, &a_shared, .b = B_HERE, .a = 0},
    {"rows that overlap", OVERLAP, &fp16, .b = SWIZZLE | EIGHT / 2},
    {"rows of A that overlap", OVERLAP, &a_shared, .b = B_HERE, .a = A_HERE - EIGHT / 2},
    {"k's that overlap", OVERLAP, &transposed, .b = B_HERE - EIGHT / 2},
    {"rows off their place", OFF_PLACE, &fp16, .b = B_HERE + 8},
    {"rows of A off their place", OFF_PLACE, &a_shared, .b = B_HERE, .a = A_HERE + 8},
    {"k's off their place", OFF_PLACE, &transposed, .b = B_HERE + 2},
    {"an offset of the base", BITS, &fp16, .b = B_HERE | UINT64_C(1) << 49},
    {"an offset of A's base", BITS, &a_shared, .b = B_HERE, .a = A_HERE | UINT64_C(1) << 49},
    {"beyond the block's memory", BEYOND, &fp16, .b = B_HERE + SHARED / 16},
    {"A beyond the block's memory", BEYOND, &a_shared, .b = B_HERE, .a = A_HERE + SHARED / 16},
    {"k's beyond the block's memory", BEYOND, &transposed, .b = B_HERE + SHARED / 16},
    {"other columns", WRONG, &fp16, .b = B_HERE + 1024 / 16},
    {"other rows", WRONG, &a_shared, .b = B_HERE, .a = B_HERE},
    {"other k's", WRONG, &transposed, .b = B_HERE + 1024 / 16},
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
                                   .max_threads = N_THREADS,
                                   .wgmma = 1};
    Given of = {(uintptr_t)device_memory_take(PRODUCT)};
    uint16_t *b = (uint16_t *)(of.shared + (DEVICE_BYTES_AT - DEVICE_MEMORY_AT));
    now = arg;
    const Form *f = now->form;
    lay_out(b, f->kind, f->transposed ? K : f->columns, f->transposed ? b_value_across : b_value);
    lay_out(b + B_BYTES / 2, f->kind, ROWS, a_value);
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
