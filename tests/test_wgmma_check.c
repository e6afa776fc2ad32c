/* test_wgmma_check.c: kernels that give the same bits by wgmma as by mma may use it, others not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/simt_host.h"
#include "kernels/wgmma_check.h"
#include "tests/backend_simt.h"

static int by_mma, by_wgmma; /* products, how often */

static void count(const CudaContext *c, const Linear *a)
{
    by_mma += !c->wgmma, by_wgmma += c->wgmma;
    ops_simt.linear(c, a);
}

/* By wgmma, or in e4m3 alone, the last row is not there. */
static void lose_row(const CudaContext *c, const Linear *a)
{
    Linear less = *a;
    less.n -= c->wgmma;
    ops_simt.linear(c, &less);
}

static void lose_row_in_fp8(const CudaContext *c, const Linear *a)
{
    Linear less = *a;
    less.n -= c->wgmma && a->prefill == PREFILL_FP8;
    ops_simt.linear(c, &less);
}

static void lose_all(const CudaContext *c, const Linear *a)
{
    (void)c, (void)a;
}

static int check(void (*linear)(const CudaContext *c, const Linear *a))
{
    Backend *be = backend_simt_open();
    CudaBackend *b = (CudaBackend *)be;
    CudaOps ops = *b->ops;
    ops.linear = linear;
    b->ops = &ops;
    b->context.shared_bytes = simt_shared_limit();
    b->context.wgmma = 0;
    int same = wgmma_check(b);
    assert_int_equal(b->context.wgmma, same);
    be->close(be);
    return same;
}

static void test_same_bits(void **state)
{
    (void)state;
    assert_true(check(count));
    assert_int_equal(by_mma, 2); /* x as two terms, and as one */
    assert_int_equal(by_wgmma, 2);
}

static void test_other_bits(void **state)
{
    (void)state;
    assert_false(check(lose_row));
    assert_false(check(lose_row_in_fp8));
    assert_false(check(lose_all)); /* as code for other GPUs would */
}

static void *no_memory(Backend *be, size_t bytes, Error *err)
{
    (void)be, (void)bytes;
    error_set(err, ERR_DEVICE, "full");
    return NULL;
}

static void test_no_memory(void **state)
{
    (void)state;
    Backend *be = backend_simt_open();
    be->alloc = no_memory;
    assert_false(wgmma_check((CudaBackend *)be));
    be->close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_other_bits),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("wgmma_check", tests, NULL, NULL);
}
