/*
 * test_resident.c: what of a model is in the process's memory once it is open: each matrix once,
 * and at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/available.h"
#include "tests/apart.h"
#include "tests/whole_model.h"

static Model *open_demo(QuantType quant, Backend *be)
{
    Error err = {0};
    Model *m = model_open("models/demo", &(ModelOptions){.quant = quant}, be, &err);
    if (!m) fail_msg("%s", err.msg);
    return m;
}

/* Bytes of mapped files with this name that are in this process's memory. */
static size_t resident_bytes(const char *name)
{
    char line[512], *end;
    size_t bytes = 0;
    int ours = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        strtoul(line, &end, 16);
        if (*end == '-') ours = strstr(line, name) != NULL; /* a mapping's first line */
        if (ours && !strncmp(line, "Rss:", 4)) bytes += strtoul(line + 4, NULL, 10) * 1024;
    }
    fclose(f);
    return bytes;
}

/* What was quantised is not in memory as it was, too. */
static void test_once_in_memory(void **state)
{
    (void)state;
    static Matrices all;
    Backend *be = backend_ref_open(4096);
    Model *m = open_demo(QUANT_FP8, be);
    list_matrices(m, &all);
    size_t was = 0;
    for (int k = 0; k < all.n; k++)
        if (all.list[k].fp8) was += 2 * (size_t)weight_data_bytes(all.list[k].w);
    size_t now = resident_bytes("/models/demo/model.safetensors");
    assert_true(was > 4 << 20 && now > 0);
    if (now > was / 2) fail_msg("%zu of %zu bytes are in memory", now, was);
    model_close(m);
    be->close(be);
}

static size_t few_bytes(Backend *be)
{
    (void)be;
    return 1000;
}

static void load_into_few_bytes(const void *arg)
{
    const QuantType *quant = arg;
    Backend *be = backend_cpu_open(1, NULL, 4096, NULL);
    be->free_bytes = few_bytes;
    open_demo(*quant, be);
}

/* Weights that are made are more than a host has left: that is said before the kernel acts. */
static void test_scarce(void **state)
{
    (void)state;
    for (QuantType quant = QUANT_FP8; quant < N_QUANT_TYPES; quant++) {
        char said[APART_SAID];
        int status = run_apart(load_into_few_bytes, &quant, said);
        assert_int_equal(status, 0);
        const char *once = strstr(said, "weights_scarce asked=");
        assert_non_null(once);
        assert_null(strstr(once + 1, "weights_scarce"));
        assert_non_null(strstr(once, " left=1000: "));
    }
}

/* Linux does from 5.14 on, emulators may not. */
static int maps_ahead(void)
{
#ifdef MADV_POPULATE_READ
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char resident = 0;
    void *page = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    int failed = madvise(page, bytes, MADV_POPULATE_READ) || mincore(page, bytes, &resident);
    munmap(page, bytes);
    return !failed && resident & 1;
#else
    return 0;
#endif
}

/* What is not quantised is in memory when the model is open, though nobody has looked at it. */
static void test_fetched(void **state)
{
    (void)state;
    static Matrices all;
    if (!memory_is_one_node()) skip(); /* there each thread fetches its own */
    if (!maps_ahead()) skip();
    Backend *be = backend_ref_open(4096);
    Model *m = open_demo(QUANT_NONE, be);
    list_matrices(m, &all);
    size_t want = 0;
    for (int k = 0; k < all.n; k++)
        if (all.list[k].w != &m->lm_head)
            want += (size_t)weight_data_bytes(all.list[k].w); /* the embedding */
    size_t now = resident_bytes("/models/demo/model.safetensors");
    assert_true(want > 4 << 20);
    if (now < want) fail_msg("%zu of %zu bytes are in memory", now, want);
    model_close(m);
    be->close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once_in_memory),
        cmocka_unit_test(test_fetched),
        cmocka_unit_test(test_scarce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
