/*
 * test_host_tier.c: the host memory's tier: what is kept comes back, and where it lies never
 * matters to what is kept.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/host_tier.h"
#include "tests/prefixes.h"

/* A frame has the four pages that a state needs. */
enum { FRAME_PAGES = (PREFIX_STATE_BYTES + PREFIX_PAGE_BYTES - 1) / PREFIX_PAGE_BYTES };

static const HostShape shape = {
    .page_bytes = PREFIX_PAGE_BYTES, .state_bytes = PREFIX_STATE_BYTES, .max_tokens = PREFIX_MAX};

static void copy_bytes(void *ctx, void *to, const void *from, size_t bytes)
{
    *(long *)ctx += 1;
    assert_true(bytes == PREFIX_PAGE_BYTES || bytes == PREFIX_STATE_BYTES);
    memcpy(to, from, bytes);
}

static int save(HostTier *t, const Prefix *p, long *n_copies, TierRefused *why)
{
    PrefixBytes b;
    HostCopy copy = {.run = copy_bytes, .ctx = n_copies};
    int first = host_tier_first_new(t, p->salt, p->token, p->n);
    prefix_fill(p, p->n, &b);
    return host_tier_save(t, p->salt, p->token, p->n, first, (const void *const *)b.page + first,
                          b.state, &copy, why);
}

static void load(HostTier *t, const Prefix *p, int n, int first)
{
    PrefixBytes b;
    long n_copies = 0;
    HostCopy copy = {.run = copy_bytes, .ctx = &n_copies};
    int n_pages = (n + 15) / 16;
    prefix_clear(&b);
    assert_int_equal(host_tier_load(t, p->salt, p->token, n, first, b.page + first, b.state, &copy),
                     0);
    prefix_check(p, n, first, &b);
    assert_int_equal(n_copies, 1 + (first < n_pages ? n_pages - first : 0));
}

/* What the index alone would do with the same budget: it knows nothing of frames. */
static int plain_save(Store *s, const Prefix *p)
{
    int32_t last;
    int n_full = p->n / 16, rest = p->n % 16, page = PREFIX_PAGE_BYTES;
    int n_known = store_match(s, p->salt, p->token, p->n, &last);
    if (n_known == n_full) {
        int32_t there = store_state(s, last, p->token + n_full * 16, rest);
        if (there >= 0) store_use(s, there);
        if (there >= 0) return -1;
    }
    int run = page * (n_full - n_known), of_state = page * (FRAME_PAGES + (rest > 0));
    if (store_make_room(s, last, n_full - n_known, run + of_state, NULL, NULL)) return -1;
    if (n_known < n_full) {
        store_add_run(s, p->salt, last, p->token + n_known * 16, n_full - n_known, run);
        store_match(s, p->salt, p->token, p->n, &last);
    }
    store_set_ready(s, store_add_state(s, last, p->token + n_full * 16, rest, of_state));
    return 0;
}

/*
 * Random saves and loads in memory of n frames and a bit: the same is found as by the index alone,
 * so no gap is ever in the way, and all bytes are right wherever they were moved.
 */
static void use_at_random(int n_frames, unsigned seed)
{
    enum { ROUNDS = 8000 };
    size_t bytes = (size_t)n_frames * FRAME_PAGES * PREFIX_PAGE_BYTES;
    unsigned char *memory = mem_alloc(1, bytes + 100 + 64);
    memset(memory + bytes, 0x77, 100 + 64); /* what is left over is not touched */
    HostTier *t = host_tier_open(memory, bytes + 100, &shape, NULL);
    assert_non_null(t);
    int units = n_frames * FRAME_PAGES;
    Store *plain = store_open((int64_t)bytes, units, units, NULL);
    long n_found = 0, n_copies = 0;
    unsigned long n_allocs = mem_count();
    for (int round = 0; round < ROUNDS; round++) {
        Prefix p = prefix_random(&seed, 16);
        TierRefused why;
        if (rand_r(&seed) % 2) {
            int refused = save(t, &p, &n_copies, &why);
            assert_int_equal(refused, plain_save(plain, &p));
            if (!refused) assert_int_equal(host_tier_find(t, p.salt, p.token, p.n), p.n);
        }
        int most = rand_r(&seed) % (PREFIX_MAX + 1);
        if (most > p.n) most = p.n;
        int n = host_tier_find(t, p.salt, p.token, most);
        StoreHit hit = store_find(plain, p.salt, p.token, most);
        assert_int_equal(n, hit.n);
        if (n) {
            load(t, &p, n, rand_r(&seed) % (prefix_pages(&p) + 1));
            store_use(plain, hit.item);
            n_found++;
        }
        if (rand_r(&seed) % 500 == 0) {
            host_tier_clear(t);
            assert_int_equal(host_tier_stats(t).bytes, 0);
            for (int32_t item; (item = store_oldest(plain)) >= 0;)
                store_drop(plain, item, NULL, NULL);
        }
        assert_int_equal(host_tier_stats(t).bytes, store_bytes(plain));
    }
    assert_int_equal(mem_count(), n_allocs);
    assert_true(n_found > ROUNDS / 50);
    assert_true(host_tier_stats(t).evicted > 100);
    for (int i = 0; i < 100 + 64; i++)
        assert_int_equal(memory[bytes + (size_t)i], 0x77);
    store_close(plain);
    host_tier_close(t);
    mem_free(memory);
}

static void test_random_use(void **state)
{
    (void)state;
    static const int n_frames[] = {3, 4, 7, 16, 40};
    for (unsigned i = 0; i < sizeof n_frames / sizeof *n_frames; i++)
        use_at_random(n_frames[i], i + 1);
}

static void test_sizes(void **state)
{
    (void)state;
    static unsigned char memory[6 * FRAME_PAGES * PREFIX_PAGE_BYTES];
    size_t frame = (size_t)FRAME_PAGES * PREFIX_PAGE_BYTES;
    Error err = {0};
    assert_null(host_tier_open(memory, 2 * frame - 1, &shape, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    char least[64]; /* what the message says is enough is enough */
    snprintf(least, sizeof least, "too small: a state and its tokens take %zu;", 2 * frame);
    assert_non_null(strstr(err.msg, least));
    HostTier *t = host_tier_open(memory, 2 * frame, &shape, &err);
    assert_non_null(t);
    Prefix p = {.salt = 1, .n = 64};
    TierRefused why;
    long n_copies = 0;
    assert_int_equal(save(t, &p, &n_copies, &why), 0); /* four pages and a state: all there is */
    assert_int_equal(n_copies, 5);
    assert_int_equal(host_tier_stats(t).bytes, host_tier_stats(t).max_bytes);
    assert_int_equal(save(t, &p, &n_copies, &why), -1);
    assert_int_equal(why, TIER_KNOWN);
    p.n = 65; /* a page more */
    assert_int_equal(save(t, &p, &n_copies, &why), -1);
    assert_int_equal(why, TIER_LARGE);
    load(t, &p, 64, 0);
    p.n = 48; /* its state takes the other's place; the run stays whole */
    assert_int_equal(save(t, &p, &n_copies, &why), 0);
    assert_int_equal(n_copies, 6);
    assert_int_equal(host_tier_find(t, 1, p.token, 64), 48);
    load(t, &p, 48, 2);
    p.n = 15;
    assert_int_equal(save(t, &p, &n_copies, &why), -1);
    assert_int_equal(why, TIER_SHORT);
    PrefixBytes b;
    HostCopy copy = {.run = copy_bytes, .ctx = &n_copies};
    prefix_fill(&p, 64, &b);
    p.token[40] = 3;
    assert_int_equal(
        host_tier_save(t, 1, p.token, 64, 3, (const void *const *)b.page, b.state, &copy, &why),
        -1);
    assert_int_equal(why, TIER_MISSING);
    assert_int_equal(host_tier_save(t, 1, p.token, PREFIX_MAX + 1, 0, NULL, NULL, &copy, &why), -1);
    assert_int_equal(why, TIER_LARGE);
    assert_int_equal(host_tier_load(t, 1, p.token, 64, 0, NULL, NULL, &copy), -1);
    host_tier_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
