/*
 * test_store.c: the index of the lower tiers against lists that are searched from end to end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/store.h"
#include "tests/prefixes.h"

enum { MAX_ITEMS = 40 };

/* What an index is opened with. */
typedef struct {
    int64_t bytes;
    int items, blocks;
} Limits;

/* How much of a hash is left: with few bits all is found by comparing. */
static uint64_t hash_mask;

/* In place of base/hash.c's, for this program. */
Hash hash_key(const void *data, size_t bytes, uint64_t seed)
{
    uint64_t h = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    h = (h ^ h >> 32) & hash_mask;
    return (Hash){.low = h, .high = h};
}

int hash_equal(Hash a, Hash b)
{
    return a.low == b.low && a.high == b.high;
}

/* What an item of the index should be. */
typedef struct {
    int is_there, is_ready;
    StoreKind kind;
    Prefix prefix; /* up to the item's end */
    int first, n_blocks;
    int32_t needs;
    int64_t bytes;
} Known;

typedef struct {
    Store *store;
    Limits max;
    Known item[MAX_ITEMS];
    int32_t order[MAX_ITEMS]; /* the oldest first */
    int n;
    int32_t dropped[MAX_ITEMS];
    int n_dropped;
    int wanted_blocks; /* what room is made for; -1: something else is dropped */
    int64_t wanted_bytes;
    long n_found;
    unsigned seed;
} Model;

/* ---- the model ---- */

static void model_use(Model *m, int32_t item)
{
    for (; item >= 0; item = m->item[item].needs) {
        int at = 0;
        while (m->order[at] != item)
            at++;
        for (; at < m->n - 1; at++)
            m->order[at] = m->order[at + 1];
        m->order[at] = item;
    }
}

static void model_add(Model *m, int32_t item, Known k)
{
    assert_in_range(item, 0, MAX_ITEMS - 1);
    assert_false(m->item[item].is_there);
    m->item[item] = k;
    m->item[item].is_there = 1;
    m->order[m->n++] = item;
    model_use(m, item);
}

static void model_forget(Model *m, int32_t item)
{
    int to = 0;
    for (int i = 0; i < m->n; i++)
        if (m->order[i] != item) m->order[to++] = m->order[i];
    m->n = to;
    m->item[item].is_there = 0;
}

/* The run with the full block that ends after n tokens of p. */
static int32_t model_run(const Model *m, const Prefix *p, int n)
{
    for (int32_t i = 0; i < MAX_ITEMS; i++) {
        const Known *k = &m->item[i];
        if (k->is_there && k->kind == STORE_RUN && n > k->first * 16 &&
            prefix_begins(&k->prefix, p, n))
            return i;
    }
    return -1;
}

static int model_match(const Model *m, const Prefix *p)
{
    int b = 0;
    while ((b + 1) * 16 <= p->n && model_run(m, p, (b + 1) * 16) >= 0)
        b++;
    return b;
}

static int32_t model_find(const Model *m, const Prefix *p)
{
    int32_t best = -1;
    for (int32_t i = 0; i < MAX_ITEMS; i++) {
        const Known *k = &m->item[i];
        if (k->is_there && k->is_ready && prefix_begins(p, &k->prefix, k->prefix.n) &&
            (best < 0 || k->prefix.n > m->item[best].prefix.n))
            best = i;
    }
    return best;
}

static int model_needs(const Model *m, int32_t item, int32_t other)
{
    while (item >= 0 && item != other)
        item = m->item[item].needs;
    return item == other;
}

static int model_has_room(const Model *m)
{
    int64_t bytes = m->wanted_bytes;
    int n_blocks = m->wanted_blocks;
    for (int i = 0; i < m->n; i++) {
        bytes += m->item[m->order[i]].bytes;
        n_blocks += m->item[m->order[i]].n_blocks;
    }
    return bytes <= m->max.bytes && n_blocks <= m->max.blocks && m->n + 2 <= m->max.items;
}

/* Whether what is wanted would fit with `needs` and what that needs alone. */
static int model_can_fit(const Model *m, int32_t needs)
{
    static Model alone;
    alone = *m;
    alone.n = 0;
    for (; needs >= 0; needs = m->item[needs].needs)
        alone.order[alone.n++] = needs;
    return model_has_room(&alone);
}

/* ---- both, side by side ---- */

/* What needs an item must be dropped before it, and everything must be there to be asked. */
static void when_dropped(void *ctx, int32_t item)
{
    Model *m = ctx;
    StoreItem it = store_item(m->store, item);
    assert_true(m->item[item].is_there);
    assert_int_equal(it.kind, m->item[item].kind);
    for (int32_t i = 0; i < MAX_ITEMS; i++)
        if (m->item[i].is_there && i != item) assert_int_not_equal(m->item[i].needs, item);
    if (m->wanted_blocks >= 0) {
        assert_int_equal(item, m->order[0]);
        assert_false(model_has_room(m)); /* nothing goes without need */
    }
    model_forget(m, item);
    m->dropped[m->n_dropped++] = item;
}

static void drop(Model *m, int32_t item)
{
    int n_expected = 0;
    for (int32_t i = 0; i < MAX_ITEMS; i++)
        n_expected += m->item[i].is_there && model_needs(m, i, item);
    m->n_dropped = 0;
    store_drop(m->store, item, when_dropped, m);
    assert_int_equal(m->n_dropped, n_expected);
    assert_int_equal(m->dropped[n_expected - 1], item);
}

static void add_run(Model *m, const Prefix *p, int32_t last, int n_known)
{
    int n_full = p->n / 16, new_blocks = n_full - n_known;
    Known k = {.kind = STORE_RUN,
               .prefix = *p,
               .first = n_known,
               .n_blocks = new_blocks,
               .needs = n_known ? model_run(m, p, n_known * 16) : -1,
               .bytes = 1000 * new_blocks};
    k.prefix.n = n_full * 16;
    int32_t item =
        store_add_run(m->store, p->salt, last, p->token + n_known * 16, new_blocks, k.bytes);
    model_add(m, item, k);
}

static void save(Model *m)
{
    Prefix p = prefix_random(&m->seed, 16);
    int32_t last;
    int n_known = store_match(m->store, p.salt, p.token, p.n, &last), n_full = p.n / 16;
    assert_int_equal(n_known, model_match(m, &p));
    int32_t needs = n_known ? model_run(m, &p, n_known * 16) : -1;
    assert_int_equal(last < 0 ? -1 : store_block_item(m->store, last), needs);
    m->wanted_blocks = n_full - n_known;
    m->wanted_bytes = 1000 * m->wanted_blocks + 7;
    int fits = model_can_fit(m, needs);
    m->n_dropped = 0;
    if (fits) model_use(m, needs);
    int failed =
        store_make_room(m->store, last, m->wanted_blocks, m->wanted_bytes, when_dropped, m);
    assert_int_equal(failed, fits ? 0 : -1);
    if (failed) assert_int_equal(m->n_dropped, 0);
    if (!failed) assert_true(model_has_room(m));
    m->wanted_blocks = -1;
    if (failed) return;
    if (n_known < n_full) {
        add_run(m, &p, last, n_known);
        assert_int_equal(store_match(m->store, p.salt, p.token, p.n, &last), n_full);
    }
    if (store_state(m->store, last, p.token + n_full * 16, p.n % 16) >= 0) return;
    Known k = {.kind = STORE_STATE,
               .prefix = p,
               .first = n_full,
               .needs = model_run(m, &p, n_full * 16),
               .bytes = 7};
    model_add(m, store_add_state(m->store, last, p.token + n_full * 16, p.n % 16, 7), k);
}

static void set_one_ready(Model *m)
{
    int32_t item = m->n ? m->order[rand_r(&m->seed) % m->n] : -1;
    if (item < 0 || m->item[item].kind != STORE_STATE) return;
    store_set_ready(m->store, item);
    m->item[item].is_ready = 1;
}

static void find(Model *m)
{
    Prefix p = prefix_random(&m->seed, 0);
    int most = rand_r(&m->seed) % (PREFIX_MAX + 1);
    if (most < p.n) p.n = most;
    StoreHit hit = store_find(m->store, p.salt, p.token, p.n);
    int32_t want = model_find(m, &p);
    assert_int_equal(hit.item, want);
    assert_int_equal(hit.n, want < 0 ? 0 : m->item[want].prefix.n);
    if (want < 0) return;
    m->n_found++;
    int32_t block[PREFIX_PAGES];
    assert_int_equal(store_chain(m->store, want, block), hit.n / 16);
    for (int b = 0; b < hit.n / 16; b++)
        assert_int_equal(store_block_item(m->store, block[b]), model_run(m, &p, (b + 1) * 16));
    store_use(m->store, want);
    model_use(m, want);
}

static void compare(const Model *m)
{
    int64_t bytes = 0;
    for (int i = 0; i < m->n; i++) {
        const Known *k = &m->item[m->order[i]];
        StoreItem it = store_item(m->store, m->order[i]);
        bytes += k->bytes;
        assert_int_equal(it.bytes, k->bytes);
        assert_int_equal(it.kind, k->kind);
        assert_int_equal(store_needs(m->store, m->order[i]), k->needs);
        if (k->kind == STORE_OTHER) continue;
        assert_int_equal(it.n_tokens, k->prefix.n);
        assert_int_equal(it.first, k->first);
        assert_int_equal(it.n_blocks, k->n_blocks);
        assert_int_equal(it.salt, k->prefix.salt);
    }
    assert_int_equal(store_bytes(m->store), bytes);
    assert_int_equal(store_count(m->store), m->n);
}

static void one_random_step(Model *m)
{
    int what = rand_r(&m->seed) % 100;
    if (what < 30)
        save(m);
    else if (what < 55)
        set_one_ready(m);
    else if (what < 95)
        find(m);
    else if (what < 97 && m->n)
        drop(m, m->order[rand_r(&m->seed) % m->n]);
    else if (what < 98 && store_has_room(m->store, 1, 0))
        model_add(m, store_add_other(m->store, 5),
                  (Known){.kind = STORE_OTHER, .needs = -1, .bytes = 5});
}

static void use_at_random(Limits max, unsigned seed)
{
    enum { ROUNDS = 12000 };
    Model *m = mem_alloc(1, sizeof *m);
    *m = (Model){.max = max, .wanted_blocks = -1, .seed = seed};
    m->store = store_open(max.bytes, max.items, max.blocks, NULL);
    unsigned long n_allocs = mem_count();
    for (int round = 0; round < ROUNDS; round++) {
        one_random_step(m);
        if (m->n) assert_int_equal(store_oldest(m->store), m->order[0]);
        if (round % 16 == 0) compare(m);
    }
    if (m->n_found < ROUNDS / 400) fail_msg("found %ld times: little is tested", m->n_found);
    assert_int_equal(mem_count(), n_allocs);
    while (m->n)
        drop(m, store_oldest(m->store));
    compare(m);
    store_close(m->store);
    mem_free(m);
}

/* Each limit binds in one of them; in the last none does but one has to look at the tokens. */
static void test_random_use(void **state)
{
    (void)state;
    static const Limits max[] = {
        {50000, 40, 60}, {9000, 40, 60}, {50000, 6, 60}, {50000, 40, 12}, {1000000, 40, 1000}};
    for (unsigned i = 0; i < sizeof max / sizeof *max; i++) {
        hash_mask = UINT64_MAX;
        use_at_random(max[i], i);
        hash_mask = 3;
        use_at_random(max[i], i + 10);
    }
}

/* A later use spares what is needed; the oldest is never needed by anything. */
static void test_ages(void **state)
{
    (void)state;
    hash_mask = UINT64_MAX;
    Store *s = store_open(1000, 8, 8, NULL);
    int32_t token[64] = {0}, last, block[4];
    int32_t run = store_add_run(s, 3, -1, token, 2, 10);
    store_match(s, 3, token, 32, &last);
    int32_t first = store_add_state(s, last, token, 0, 1);
    int32_t tail = store_add_run(s, 3, last, token + 32, 2, 10);
    store_match(s, 3, token, 64, &last);
    int32_t second = store_add_state(s, last, token, 0, 1);
    assert_int_equal(store_find(s, 3, token, 64).item, -1); /* none is ready */
    store_set_ready(s, first);
    store_set_ready(s, second);
    assert_int_equal(store_find(s, 3, token, 64).item, second);
    assert_int_equal(store_find(s, 3, token, 63).item, first);
    assert_int_equal(store_find(s, 4, token, 64).item, -1); /* another salt */
    assert_int_equal(store_oldest(s), first);
    store_use(s, first);
    assert_int_equal(store_oldest(s), second);
    store_drop(s, second, NULL, NULL);
    assert_int_equal(store_oldest(s), tail);
    store_drop(s, tail, NULL, NULL);
    assert_int_equal(store_oldest(s), first);
    assert_int_equal(store_match(s, 3, token, 64, &last), 2);
    assert_int_equal(store_chain(s, first, block), 2);
    assert_int_equal(store_block_item(s, block[1]), run);
    store_drop(s, run, NULL, NULL); /* takes the state with it */
    assert_int_equal(store_count(s), 0);
    assert_int_equal(store_bytes(s), 0);
    assert_true(store_has_room(s, 8, 8));
    assert_false(store_has_room(s, 9, 8));
    assert_false(store_has_room(s, 8, 9));
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_ages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
