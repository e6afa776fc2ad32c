/*
 * test_cache_cases.c: the prefix cache's edges, one by one. test_cache.c has the rest, by lot.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/cache.h"
#include "engine/frames.h"
#include "engine/keep_plan.h"

enum { LEN = 96, PER = 4, PAGES = LEN / PAGE_TOKENS };

static const FlopCost COST = {.per_token = 10, .per_pair = 1};
static const CacheOptions LRU = {.on = 1, .policy = POLICY_LRU};

typedef struct {
    Frames *frames;
    Cache *cache;
    double now;
} Opened;

static Opened open_cache(CacheOptions o, int frames, int max_slots, int max_nodes)
{
    Opened c = {.frames = frames_open(frames, PER, max_slots)};
    c.cache = cache_open(&o, c.frames, max_nodes, &COST);
    return c;
}

/* Plenty of all. */
static Opened open_lru(void)
{
    return open_cache(LRU, 32, 32, 64);
}

static void close_cache(Opened *c)
{
    while (cache_evict(c->cache))
        ;
    assert_int_equal(frames_empty(c->frames), frames_count(c->frames));
    assert_int_equal(cache_stats(c->cache).nodes, 0);
    cache_close(c->cache);
    frames_close(c->frames);
}

/* tokens 100, 101, ..; from `part` on other ones. */
static const int32_t *text(int part, int other)
{
    static int32_t t[4][LEN];
    static int next;
    int32_t *x = t[next++ % 4];
    for (int i = 0; i < LEN; i++)
        x[i] = i < part ? 100 + i : 1000 * other + i;
    return x;
}

static CacheHit find(const Opened *c, const int32_t *token, int n)
{
    return cache_find(c->cache, 0, token, n);
}

static void expect_hit(const Opened *c, const int32_t *token, int n, int hit, int matched)
{
    CacheHit h = find(c, token, n);
    assert_int_equal(h.n, hit);
    assert_int_equal(h.matched, matched);
    assert_int_equal(h.branch, matched - hit >= MIN_BRANCH ? matched : 0);
    assert_int_equal(h.slot >= 0, hit > 0);
}

static void expect_size(const Opened *c, int nodes, int states, int pages)
{
    CacheStats s = cache_stats(c->cache);
    assert_int_equal(s.nodes, nodes);
    assert_int_equal(s.states, states);
    assert_int_equal(s.pages, pages);
}

/*
 * What a sequence with n tokens leaves at its end: it shares the full pages of what it finds, and
 * has others for the rest.
 */
static int32_t put_salted(Opened *c, uint64_t salt, const int32_t *token, int n)
{
    int32_t page[PAGES], slot = -1;
    CacheHit hit = cache_find(c->cache, salt, token, n);
    int shared = hit.n / PAGE_TOKENS, n_pages = (n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    cache_pin(c->cache, hit.node);
    cache_pages(c->cache, hit.node, hit.n, page);
    for (int i = 0; i < shared; i++)
        pages_hold(c->frames, page[i]);
    assert_int_equal(cache_claim_pages(c->cache, n_pages - shared, page + shared), 0);
    assert_int_equal(cache_claim_slots(c->cache, 1, &slot), 1);
    c->now += 1;
    int32_t node = cache_keep(c->cache, salt, hit.node, token, n, page, slot, KEPT_PROMPT, c->now);
    for (int i = 0; i < n_pages; i++)
        pages_release(c->frames, page[i]);
    slots_release(c->frames, slot);
    cache_unpin(c->cache, hit.node);
    return node;
}

static int32_t put(Opened *c, const int32_t *token, int n)
{
    return put_salted(c, 0, token, n);
}

static void use(Opened *c, const int32_t *token, int n)
{
    CacheHit hit = find(c, token, n);
    c->now += 1;
    cache_use(c->cache, &hit, n, c->now);
}

/* ---- the tree ---- */

static void test_empty(void **state)
{
    (void)state;
    Opened c = open_lru();
    int32_t page[PAGES], slot;
    const int32_t *a = text(LEN, 0);
    expect_hit(&c, a, LEN, 0, 0);
    expect_hit(&c, a, 0, 0, 0);
    assert_int_equal(find(&c, a, LEN).node, 0);
    cache_pages(c.cache, 0, 0, page);
    cache_drop_state(c.cache, 0);
    assert_int_equal(cache_evict(c.cache), 0);
    assert_int_equal(cache_claim_slots(c.cache, 1, &slot), 1);
    assert_int_equal(cache_keep(c.cache, 0, 0, a, 0, page, slot, KEPT_PROMPT, 1), -1);
    assert_int_equal(slots_refs(c.frames, slot), 1);
    slots_release(c.frames, slot);
    expect_size(&c, 0, 0, 0);
    close_cache(&c);
}

static void test_split_inside_a_page(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0), *b = text(20, 2);
    int32_t of_a[3], of_b[3];
    int32_t node_a = put(&c, a, 40);
    expect_size(&c, 1, 1, 3);
    expect_hit(&c, b, 40, 0, 20);
    int32_t node_b = put(&c, b, 40);
    expect_size(&c, 3, 2, 2 + 2 + 2);
    expect_hit(&c, a, 40, 40, 40);
    expect_hit(&c, b, 40, 40, 40);
    assert_int_equal(find(&c, a, 40).node, node_a);
    cache_pages(c.cache, node_a, 40, of_a);
    cache_pages(c.cache, node_b, 40, of_b);
    assert_int_equal(of_a[0], of_b[0]); /* the page before is the first one's */
    assert_int_not_equal(of_a[1], of_b[1]);
    assert_int_equal(pages_refs(c.frames, of_a[1]), 2); /* its rows up to 20, and the rest */
    assert_int_equal(pages_refs(c.frames, of_b[1]), 1);
    assert_int_equal(pages_used(c.frames), 5);
    assert_int_equal(cache_evict(c.cache), 1); /* a; the branch is none any more */
    expect_size(&c, 1, 1, 3);
    assert_int_equal(pages_used(c.frames), 3);
    cache_pages(c.cache, node_b, 40, of_a);
    assert_memory_equal(of_a, of_b, sizeof of_a);
    close_cache(&c);
}

static void test_split_at_a_pages_edge(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0), *b = text(32, 2);
    int32_t of_a[3], of_b[3];
    int32_t node_a = put(&c, a, 48), node_b = put(&c, b, 48);
    expect_size(&c, 3, 2, 4);
    cache_pages(c.cache, node_a, 48, of_a);
    cache_pages(c.cache, node_b, 48, of_b);
    assert_memory_equal(of_a, of_b, 2 * sizeof *of_a);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pages_refs(c.frames, of_a[i]), 1);
    assert_int_equal(pages_used(c.frames), 4);
    put(&c, a, 32); /* a state at the branch */
    expect_size(&c, 3, 3, 4);
    expect_hit(&c, text(40, 3), 48, 32, 40);
    close_cache(&c);
}

/* A node without a state that has one child left is joined with it; its tokens are the child's. */
static void test_join(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    int32_t node[3], page[4];
    for (int i = 0; i < 3; i++)
        node[i] = put(&c, a, 10 * i + 10);
    int32_t last = put(&c, a, 64); /* at page edges too */
    int32_t edge = put(&c, a, 48);
    expect_size(&c, 5, 5, 1 + 2 + 1 + 2 + 1);
    cache_drop_state(c.cache, node[1]);
    cache_drop_state(c.cache, node[1]); /* of no effect */
    cache_drop_state(c.cache, edge);
    expect_size(&c, 3, 3, 1 + 2 + 3);
    expect_hit(&c, a, 25, 10, 25);
    expect_hit(&c, a, 63, 30, 63);
    cache_pages(c.cache, last, 64, page);
    for (int i = 0; i < 4; i++)
        assert_true(pages_refs(c.frames, page[i]) > 0);
    cache_drop_state(c.cache, node[0]);
    cache_drop_state(c.cache, node[2]);
    expect_size(&c, 1, 1, 4);
    expect_hit(&c, a, LEN, 64, 64);
    assert_int_equal(find(&c, a, LEN).node, last);
    assert_int_equal(pages_used(c.frames), 4);
    close_cache(&c);
}

static void test_a_branch_loses_a_child(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0), *b = text(20, 2), *d = text(20, 3);
    put(&c, b, 40);
    put(&c, a, 40);
    put(&c, d, 40);
    put(&c, a, 20);
    expect_size(&c, 4, 4, 2 + 3 * 2);
    assert_int_equal(cache_evict(c.cache), 1); /* b: two are left */
    expect_size(&c, 3, 3, 2 + 2 * 2);
    cache_drop_state(c.cache, find(&c, a, 20).node);
    expect_size(&c, 3, 2, 2 + 2 * 2); /* both need it */
    assert_int_equal(cache_evict(c.cache), 1);
    expect_size(&c, 1, 1, 3);
    expect_hit(&c, d, 40, 40, 40);
    expect_hit(&c, a, 40, 0, 20);
    close_cache(&c);
}

static void test_a_node_with_a_child_leaves_its_tokens(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    put(&c, a, 20);
    int32_t node = put(&c, a, 40), before[3], after[3];
    cache_pages(c.cache, node, 40, before);
    assert_int_equal(cache_evict(c.cache), 1);
    assert_int_equal(cache_stats(c.cache).evicted_states, 1);
    assert_int_equal(cache_stats(c.cache).evicted_nodes, 0);
    expect_size(&c, 1, 1, 3);
    expect_hit(&c, a, 30, 0, 30);
    expect_hit(&c, a, 50, 40, 40);
    cache_pages(c.cache, node, 40, after);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(cache_evict(c.cache), 1);
    assert_int_equal(cache_stats(c.cache).evicted_nodes, 1);
    close_cache(&c);
}

static void test_prompts_that_end_inside_an_edge(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    put(&c, a, 60);
    expect_hit(&c, a, MIN_BRANCH - 1, 0, MIN_BRANCH - 1);
    expect_hit(&c, a, MIN_BRANCH, 0, MIN_BRANCH);
    expect_hit(&c, a, 1, 0, 1);
    expect_hit(&c, a, 59, 0, 59);
    for (int n = 59; n > 0; n -= 7) {
        put(&c, a, n);
        expect_hit(&c, a, n, n, n);
        expect_hit(&c, a, 60, 60, 60);
    }
    expect_hit(&c, a, 50, 45, 50); /* 45, 52 and 59 are kept */
    close_cache(&c);
}

static void test_a_longer_prompt(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    put(&c, a, 16);
    put(&c, a, 33);
    expect_size(&c, 2, 2, 1 + 2);
    expect_hit(&c, a, LEN, 33, 33);
    assert_int_equal(cache_find(c.cache, 0, a, 32).n, 16);
    assert_int_equal(cache_find(c.cache, 0, a, 33).n, 33);
    assert_int_equal(cache_find(c.cache, 0, a, 15).n, 0);
    assert_int_equal(cache_find(c.cache, 0, a, 15).matched, 15);
    close_cache(&c);
}

static void test_salts(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    for (uint64_t salt = 1; salt < 9; salt++)
        put_salted(&c, salt << 56, a, 30);
    expect_size(&c, 8, 8, 16);
    expect_hit(&c, a, 30, 0, 0);
    put(&c, a, 20);
    expect_hit(&c, a, 30, 20, 20);
    assert_int_equal(cache_find(c.cache, 3ull << 56, a, 30).n, 30);
    assert_int_equal(cache_find(c.cache, 9ull << 56, a, 30).matched, 0);
    close_cache(&c);
}

static void test_what_is_known(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    int32_t node = put(&c, a, 30), slot = find(&c, a, 30).slot;
    assert_int_equal(put(&c, a, 30), node);
    assert_int_equal(find(&c, a, 30).slot, slot);
    assert_int_equal(cache_stats(c.cache).refused[REFUSED_KNOWN], 1);
    assert_int_equal(cache_stats(c.cache).kept[KEPT_PROMPT], 1);
    assert_int_equal(slots_used(c.frames), 1);
    assert_int_equal(pages_used(c.frames), 2);
    close_cache(&c);
}

/* ---- who goes ---- */

static void test_pinned_nodes_stay(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    put(&c, a, 20);
    int32_t node = put(&c, a, 40), held = find(&c, a, 40).slot;
    cache_pin(c.cache, node);
    assert_int_equal(cache_evict(c.cache), 1); /* the state at 20 */
    assert_int_equal(cache_stats(c.cache).evicted_states, 1);
    slots_hold(c.frames, held);
    assert_int_equal(cache_evict(c.cache), 0); /* to no use: somebody else has it too */
    slots_release(c.frames, held);
    assert_int_equal(cache_evict(c.cache), 1);
    expect_size(&c, 1, 0, 3);
    expect_hit(&c, a, 60, 0, 40);
    assert_int_equal(cache_evict(c.cache), 0);
    cache_unpin(c.cache, node);
    expect_size(&c, 0, 0, 0);
    close_cache(&c);
}

/* What is below a pinned node may go; above it may not. */
static void test_below_a_pinned_node(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    put(&c, a, 70);
    int32_t node = put(&c, a, 50);
    cache_pin(c.cache, node);
    cache_pin(c.cache, node);
    assert_int_equal(cache_evict(c.cache), 1);
    assert_int_equal(cache_stats(c.cache).evicted_nodes, 1);
    expect_size(&c, 1, 1, 4);
    cache_drop_state(c.cache, node);
    cache_unpin(c.cache, node);
    expect_size(&c, 1, 0, 4);
    cache_unpin(c.cache, node);
    close_cache(&c);
}

/* Three texts with a state after 20 tokens, in this order. */
static Opened open_three(const int32_t *a, const int32_t *b, const int32_t *d)
{
    Opened c = open_lru();
    put(&c, a, 20);
    put(&c, b, 20);
    put(&c, d, 20);
    return c;
}

static void test_the_oldest_goes(void **state)
{
    (void)state;
    const int32_t *a = text(0, 1), *b = text(0, 2), *d = text(0, 3);
    Opened c = open_three(a, b, d);
    put(&c, a, 50);
    use(&c, b, 20);
    use(&c, a, 60); /* the node at 50 and no other */
    const int left[][3] = {{0, 20, 20}, {0, 20, 0}, {0, 0, 0}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cache_evict(c.cache), 1);
        expect_hit(&c, a, 49, left[i][0], 49);
        assert_int_equal(find(&c, b, 20).n, left[i][1]);
        assert_int_equal(find(&c, d, 20).n, left[i][2]);
        expect_hit(&c, a, 50, 50, 50);
    }
    close_cache(&c);
}

/* Made young, and nothing counted; never made older. */
static void test_touch(void **state)
{
    (void)state;
    const int32_t *a = text(0, 1), *b = text(0, 2), *d = text(0, 3);
    Opened c = open_three(a, b, d);
    CacheStats before = cache_stats(c.cache);
    cache_touch(c.cache, find(&c, a, 20).node, c.now + 1);
    cache_touch(c.cache, find(&c, d, 20).node, c.now - 1);
    cache_touch(c.cache, find(&c, text(0, 4), 20).node, c.now + 1); /* the root */
    CacheStats after = cache_stats(c.cache);
    assert_memory_equal(&before, &after, sizeof before);
    const int32_t *goes[] = {b, d, a};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(find(&c, goes[i], 20).n, 20);
        assert_int_equal(cache_evict(c.cache), 1);
        assert_int_equal(find(&c, goes[i], 20).n, 0);
    }
    close_cache(&c);
}

/* Of four on one way those used lately, the deepest the youngest; not the others. */
static void test_touch_since(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(0, 1), *b = text(0, 2);
    put(&c, a, 10);
    put(&c, a, 20);
    double since = c.now + 0.5;
    put(&c, a, 40);
    put(&c, a, 60);
    put(&c, b, 30);
    cache_touch_since(c.cache, find(&c, a, 60).node, since, c.now + 1);
    const int depth[] = {10, 20, 0, 40, 60}; /* 0: b's */
    for (int i = 0; i < 5; i++) {
        const int32_t *goes = depth[i] ? a : b;
        int n = depth[i] ? depth[i] : 30;
        assert_int_equal(find(&c, goes, n).n, n);
        assert_int_equal(cache_evict(c.cache), 1);
        assert_int_not_equal(find(&c, goes, n).n, n);
    }
    close_cache(&c);
}

/* The old one saves most by the page; alpha weighs that against its age. */
static void test_flops_against_age(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        CacheOptions o = {.on = 1, .policy = POLICY_FLOP, .alpha = i ? 3 : 0.5};
        Opened c = open_cache(o, 32, 32, 64);
        const int32_t *a = text(0, 1), *b = text(0, 2);
        put(&c, a, 90);
        put(&c, b, 5);
        assert_int_equal(cache_evict(c.cache), 1);
        assert_int_equal(find(&c, a, 90).n, i ? 90 : 0);
        assert_int_equal(find(&c, b, 5).n, i ? 0 : 5);
        close_cache(&c);
    }
}

static void test_none_keeps_what_there_is(void **state)
{
    (void)state;
    CacheOptions o = {.on = 1, .policy = POLICY_NONE};
    Opened c = open_cache(o, 32, 32, 3);
    const int32_t *a = text(LEN, 0), *b = text(10, 2);
    int32_t slot[32], n;
    put(&c, a, 40);
    put(&c, a, 20);
    assert_int_equal(put(&c, b, 40), -1); /* no node */
    assert_int_equal(cache_stats(c.cache).refused[REFUSED_NODES], 1);
    expect_size(&c, 2, 2, 2 + 2);
    expect_hit(&c, a, 40, 40, 40);
    n = cache_claim_slots(c.cache, slots_free_count(c.frames) - 1, slot);
    slots_hold(c.frames, slot[0]);
    assert_int_equal(put(&c, text(0, 3), 1), -1); /* it took the last frame but one for its page */
    assert_int_equal(cache_stats(c.cache).refused[REFUSED_MEMORY], 1);
    assert_int_equal(cache_stats(c.cache).evicted_nodes + cache_stats(c.cache).evicted_states, 0);
    slots_release(c.frames, slot[0]);
    while (n > 0)
        slots_release(c.frames, slot[--n]);
    close_cache(&c);
}

/* What goes for the sake of a node must leave one: states of pinned nodes stay. */
static void test_a_full_table_of_nodes(void **state)
{
    (void)state;
    Opened c = open_cache(LRU, 32, 32, 3);
    const int32_t *a = text(LEN, 0), *b = text(0, 2), *d = text(0, 3);
    int32_t node_a = put(&c, a, 20), node_b;
    put(&c, b, 20);
    cache_pin(c.cache, node_a);
    node_b = put(&c, b, 40); /* the last one */
    cache_pin(c.cache, node_b);
    expect_size(&c, 3, 3, 2 + 2 + 2);
    assert_true(put(&c, b, 20) > 0); /* known: takes none */
    assert_true(put(&c, d, 20) > 0); /* in place of b's first */
    assert_int_equal(find(&c, b, 30).n, 0);
    expect_size(&c, 3, 3, 2 + 3 + 2);
    assert_true(put(&c, a, 10) > 0); /* in place of d */
    expect_size(&c, 3, 3, 1 + 2 + 3);
    assert_int_equal(put(&c, text(5, 3), 20), -1); /* it needs two */
    assert_int_equal(cache_stats(c.cache).refused[REFUSED_NODES], 1);
    expect_size(&c, 2, 2, 2 + 3);
    cache_unpin(c.cache, node_a);
    cache_unpin(c.cache, node_b);
    close_cache(&c);
}

/* ---- claims ---- */

static void test_max_slots(void **state)
{
    (void)state;
    Opened c = open_cache(LRU, 32, 2, 64);
    int32_t slot[3];
    put(&c, text(0, 1), 20);
    put(&c, text(0, 2), 20);
    assert_int_equal(slots_free_count(c.frames), 0);
    assert_int_equal(cache_make_slots(c.cache, 1), 1);
    assert_int_equal(find(&c, text(0, 1), 20).n, 0);
    assert_int_equal(find(&c, text(0, 2), 20).n, 20);
    assert_int_equal(cache_claim_slots(c.cache, 3, slot), 2);
    assert_int_equal(cache_claim_slots(c.cache, 1, slot + 2), 0);
    slots_release(c.frames, slot[0]);
    slots_release(c.frames, slot[1]);
    close_cache(&c);
}

static void count_move(void *ctx, const PageMove *move)
{
    assert_int_not_equal(move->from / PER, move->to / PER);
    ++*(int *)ctx;
}

/* A frame becomes a state's: its pages go where there is room. */
static void test_pages_make_way(void **state)
{
    (void)state;
    Opened c = open_cache(LRU, 3, 3, 64);
    int32_t page[3 * PER], slot;
    int moves = 0;
    cache_on_move(c.cache, count_move, &moves);
    assert_int_equal(cache_claim_pages(c.cache, 3 * PER, page), 0);
    assert_int_equal(cache_claim_slots(c.cache, 1, &slot), 0);
    for (int i = 0; i < 3 * PER; i++)
        if (i % PER >= 2) pages_release(c.frames, page[i]);
    assert_int_equal(cache_claim_slots(c.cache, 1, &slot), 1);
    assert_int_equal(moves, 2);
    slots_release(c.frames, slot);
    for (int i = 0; i < 3 * PER; i++)
        if (i % PER < 2) pages_release(c.frames, page[i]);
    close_cache(&c);
}

static void test_all_pages_or_none(void **state)
{
    (void)state;
    Opened c = open_cache(LRU, 8, 8, 64);
    int32_t page[8 * PER];
    put(&c, text(0, 1), 40);
    put(&c, text(0, 2), 40);
    assert_int_equal(cache_claim_pages(c.cache, 8 * PER + 1, page), -1);
    expect_size(&c, 2, 2, 6); /* nothing went in vain */
    assert_int_equal(cache_claim_pages(c.cache, 5 * PER, page), 0);
    expect_size(&c, 1, 1, 3);
    assert_int_equal(cache_claim_pages(c.cache, 3 * PER, page + 5 * PER), 0);
    expect_size(&c, 0, 0, 0);
    for (int i = 0; i < 8 * PER; i++)
        pages_release(c.frames, page[i]);
    close_cache(&c);
}

/* Where no frame can be emptied, as a sequence has its pages in each, nothing goes for a state. */
static void test_no_state_in_vain(void **state)
{
    (void)state;
    Opened c = open_cache(LRU, 2, 2, 64);
    const int32_t *a = text(0, 1);
    int32_t page[PER - 1], slot;
    put(&c, a, PAGE_TOKENS);
    int32_t kept = find(&c, a, PAGE_TOKENS).slot;
    assert_int_equal(cache_claim_pages(c.cache, PER - 1, page), 0);
    slots_hold(c.frames, kept);
    assert_int_equal(cache_claim_slots(c.cache, 1, &slot), 0);
    expect_size(&c, 1, 1, 1);
    slots_release(c.frames, kept);
    assert_int_equal(cache_claim_slots(c.cache, 1, &slot), 1); /* the state's own frame */
    expect_size(&c, 0, 0, 0);
    slots_release(c.frames, slot);
    for (int i = 0; i < PER - 1; i++)
        pages_release(c.frames, page[i]);
    close_cache(&c);
}

/* ---- the rest ---- */

static void test_a_cache_that_is_off(void **state)
{
    (void)state;
    Opened c = open_cache((CacheOptions){.on = 0}, 8, 8, 64);
    int32_t slot, page;
    const int32_t *a = text(LEN, 0);
    assert_int_equal(put(&c, a, 40), -1);
    use(&c, a, 40);
    cache_refuse(c.cache, REFUSED_LOST);
    CacheStats s = cache_stats(c.cache), zero = {0};
    assert_memory_equal(&s, &zero, sizeof s);
    assert_int_equal(cache_claim_slots(c.cache, 1, &slot), 1);
    assert_int_equal(cache_claim_pages(c.cache, 1, &page), 0);
    slots_release(c.frames, slot);
    pages_release(c.frames, page);
    close_cache(&c);
}

static void test_what_is_counted(void **state)
{
    (void)state;
    Opened c = open_lru();
    const int32_t *a = text(LEN, 0);
    put(&c, a, 40);
    use(&c, text(0, 5), 7);
    use(&c, a, 40);
    use(&c, text(35, 5), 90);
    use(&c, text(60, 5), 90);
    CacheStats s = cache_stats(c.cache);
    assert_int_equal(s.lookups, 4);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.asked_tokens, 7 + 40 + 90 + 90);
    assert_int_equal(s.hit_tokens, 40 + 40);
    assert_int_equal(s.matched_tokens, 40 + 35 + 40);
    assert_true(fabs(s.flops_saved - 2 * (40 * 10 + 40 * 40 / 2.0)) < 1e-9);
    close_cache(&c);
}

/* ---- where a request leaves states ---- */

/* Of a prompt of 90 tokens, 80 of which come again, behind a hit of 10. */
static void same_plan(const KeepRules *rules, int at_branch, int n_system, int answer_changes,
                      const KeepPlan *want)
{
    CacheHit hit = {.n = 10, .matched = at_branch ? at_branch : 10, .branch = at_branch};
    KeepPlan p = keep_plan(rules, &hit, 90, n_system, 80, answer_changes);
    assert_int_equal(p.branch, want->branch);
    assert_int_equal(p.system, want->system);
    assert_int_equal(p.prompt, want->prompt);
    assert_int_equal(p.answer, want->answer);
}

static void expect_plan(KeepRules rules, int at_branch, int answer_changes, KeepPlan want)
{
    same_plan(&rules, at_branch, 0, answer_changes, &want);
}

static void expect_system(KeepRules rules, int at_branch, int n_system, KeepPlan want)
{
    same_plan(&rules, at_branch, n_system, 0, &want);
}

static void test_where_states_are_left(void **state)
{
    (void)state;
    static const KeepRules ours = {.keep_answers = 1, .keep_prompts = 1};
    static const KeepRules prompts = {.keep_prompts = 1}, marconi = {.keep_answers = 1};
    static const KeepRules blocks = {.keep_answers = 1, .keep_prompts = 1, .block = 64};
    expect_plan(ours, 0, 0, (KeepPlan){.prompt = 80, .answer = 1});
    expect_plan(ours, 40, 0, (KeepPlan){.branch = 40, .prompt = 80, .answer = 1});
    expect_plan(ours, 0, 1, (KeepPlan){.prompt = 80});
    expect_plan(ours, 40, 1, (KeepPlan){.branch = 40, .prompt = 80});
    expect_plan(ours, 80, 0, (KeepPlan){.prompt = 80, .answer = 1}); /* one place */
    expect_plan(ours, 90, 0, (KeepPlan){.prompt = 90, .answer = 1}); /* it came before */
    expect_plan(prompts, 40, 0, (KeepPlan){.branch = 40, .prompt = 80});
    expect_plan(marconi, 0, 0, (KeepPlan){.answer = 1});
    expect_plan(marconi, 0, 1, (KeepPlan){.prompt = 80});
    expect_plan(marconi, 40, 0, (KeepPlan){.branch = 40, .answer = 1});
    expect_plan(blocks, 40, 0, (KeepPlan){.prompt = 64, .answer = 1});
}

/* And at a system turn's end, where it is new. */
static void test_a_system_turn(void **state)
{
    (void)state;
    static const KeepRules ours = {.keep_answers = 1, .keep_prompts = 1};
    static const KeepRules marconi = {.keep_answers = 1};
    static const KeepRules blocks = {.keep_answers = 1, .keep_prompts = 1, .block = 16};
    expect_system(ours, 0, 60, (KeepPlan){.system = 60, .prompt = 80, .answer = 1});
    expect_system(ours, 40, 60, (KeepPlan){40, 60, 80, 1});
    expect_system(ours, 60, 60, (KeepPlan){.branch = 60, .prompt = 80, .answer = 1}); /* known */
    expect_system(ours, 0, 25, (KeepPlan){.prompt = 80, .answer = 1}); /* too few tokens */
    expect_system(ours, 0, 26, (KeepPlan){.system = 26, .prompt = 80, .answer = 1});
    expect_system(marconi, 0, 60, (KeepPlan){.answer = 1});
    expect_system(blocks, 0, 60, (KeepPlan){.system = 48, .prompt = 80, .answer = 1});
}

static void test_copy(void **state)
{
    (void)state;
    Opened c = open_lru(), d = open_lru();
    const int32_t *a = text(LEN, 0), *b = text(20, 2), *e = text(30, 3);
    put(&d, e, 90); /* to be overwritten */
    put(&c, a, 40);
    put(&c, b, 50);
    cache_copy(d.cache, c.cache, d.frames);
    d.now = c.now;
    expect_size(&d, 3, 2, 2 + 2 + 3);
    expect_hit(&d, a, 40, 40, 40);
    assert_int_equal(put(&c, e, 60), put(&d, e, 60)); /* both go on alike */
    CacheStats x = cache_stats(c.cache), y = cache_stats(d.cache);
    assert_memory_equal(&x, &y, sizeof x);
    close_cache(&c);
    expect_hit(&d, a, 40, 40, 40);
    expect_hit(&d, b, 50, 50, 50);
    expect_hit(&d, e, 60, 60, 60);
    close_cache(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_split_inside_a_page),
        cmocka_unit_test(test_split_at_a_pages_edge),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_a_branch_loses_a_child),
        cmocka_unit_test(test_a_node_with_a_child_leaves_its_tokens),
        cmocka_unit_test(test_prompts_that_end_inside_an_edge),
        cmocka_unit_test(test_a_longer_prompt),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_what_is_known),
        cmocka_unit_test(test_pinned_nodes_stay),
        cmocka_unit_test(test_below_a_pinned_node),
        cmocka_unit_test(test_the_oldest_goes),
        cmocka_unit_test(test_touch),
        cmocka_unit_test(test_touch_since),
        cmocka_unit_test(test_flops_against_age),
        cmocka_unit_test(test_none_keeps_what_there_is),
        cmocka_unit_test(test_a_full_table_of_nodes),
        cmocka_unit_test(test_max_slots),
        cmocka_unit_test(test_pages_make_way),
        cmocka_unit_test(test_all_pages_or_none),
        cmocka_unit_test(test_no_state_in_vain),
        cmocka_unit_test(test_a_cache_that_is_off),
        cmocka_unit_test(test_what_is_counted),
        cmocka_unit_test(test_where_states_are_left),
        cmocka_unit_test(test_a_system_turn),
        cmocka_unit_test(test_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
