/*
 * test_slots.c: slots and the KV pages against plain models of who holds what.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "engine/memory.h"
#include "tests/near.h"

enum { SLOTS = 23, OPERATIONS = 200000, MAX_DRAFT = 8 };

static const uint64_t SEED = 22;

/* ---- slots ---- */

/* Who holds what, counted apart from the pool. */
typedef struct {
    Frames *pool;
    Rng rng;
    int refs[SLOTS];
} Holders;

static void check_counts(const Holders *h)
{
    int n_free = 0;
    for (int s = 0; s < SLOTS; s++) {
        assert_int_equal(slots_refs(h->pool, s), h->refs[s]);
        n_free += h->refs[s] == 0;
    }
    assert_int_equal(slots_free_count(h->pool), n_free);
}

/* A slot in use, or -1. */
static int any_held(Holders *h)
{
    int from = rng_int(&h->rng, SLOTS);
    for (int i = 0; i < SLOTS; i++)
        if (h->refs[(from + i) % SLOTS]) return (from + i) % SLOTS;
    return -1;
}

/* Claims up to n: what comes was free, is given once, and nothing is kept back. */
static int claim(Holders *h, int n, int32_t *slot)
{
    int n_free = slots_free_count(h->pool), got = slots_claim(h->pool, n, slot);
    assert_int_equal(got, n < n_free ? n : n_free);
    for (int i = 0; i < got; i++) {
        assert_true(slot[i] >= 0 && slot[i] < SLOTS);
        assert_int_equal(h->refs[slot[i]], 0);
        h->refs[slot[i]] = 1;
    }
    return got;
}

/* As a step does: a main slot, draft slots, one winner (-1: the main slot stays). */
static void claim_and_promote(Holders *h)
{
    int32_t main_slot, slot[MAX_DRAFT];
    if (claim(h, 1, &main_slot) < 1) return;
    int n = claim(h, rng_int(&h->rng, MAX_DRAFT + 1), slot);
    int winner = rng_int(&h->rng, 3) ? rng_int(&h->rng, n + 1) - 1 : n - 1;
    int32_t expected = winner < 0 ? main_slot : slot[winner];
    if (rng_int(&h->rng, 4) == 0) { /* a cache holds the old state */
        slots_hold(h->pool, main_slot);
        h->refs[main_slot]++;
    }
    if (winner >= 0) h->refs[main_slot]--;
    for (int i = 0; i < n; i++)
        if (i != winner) h->refs[slot[i]]--;
    slots_promote(h->pool, &main_slot, slot, n, winner);
    assert_int_equal(main_slot, expected);
}

static void hold_or_release(Holders *h, int hold)
{
    int s = any_held(h);
    if (s < 0) return;
    if (hold)
        slots_hold(h->pool, s);
    else
        slots_release(h->pool, s);
    h->refs[s] += hold ? 1 : -1;
}

static void test_random_operations(void **state)
{
    (void)state;
    Holders h = {.pool = frames_open(SLOTS, 1, SLOTS), .rng = rng_new(SEED)};
    int times_full = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        int32_t slot[MAX_DRAFT];
        int draining = i / 500 % 2; /* from a full pool to an empty one and back */
        switch (rng_int(&h.rng, draining ? 24 : 8)) {
        case 0:
            claim(&h, rng_int(&h.rng, MAX_DRAFT + 1), slot);
            break;
        case 1:
        case 2:
            claim_and_promote(&h);
            break;
        case 3:
            hold_or_release(&h, 1);
            break;
        default:
            hold_or_release(&h, 0);
        }
        times_full += slots_free_count(h.pool) == 0;
        check_counts(&h);
    }
    assert_true(times_full > OPERATIONS / 100); /* the full pool was met */
    for (int s = 0; s < SLOTS; s++)
        while (h.refs[s] > 0) {
            slots_release(h.pool, s);
            h.refs[s]--;
        }
    assert_int_equal(slots_free_count(h.pool), SLOTS);
    frames_close(h.pool);
}

/* The winner at each place, the main slot, and the pool afterwards: exactly one slot is held. */
static void test_promote_each_winner(void **state)
{
    (void)state;
    enum { N = 5 };
    for (int n = 0; n <= N; n++)
        for (int winner = -1; winner < n; winner++) {
            Frames *pool = frames_open(N + 1, 1, N + 1);
            int32_t old, slot[N];
            assert_int_equal(slots_claim(pool, 1, &old), 1);
            assert_int_equal(slots_claim(pool, n, slot), n);
            int32_t main_slot = old;
            slots_promote(pool, &main_slot, slot, n, winner);
            assert_int_equal(main_slot, winner < 0 ? old : slot[winner]);
            for (int s = 0; s <= N; s++)
                assert_int_equal(slots_refs(pool, s), s == main_slot);
            assert_int_equal(slots_free_count(pool), N);
            frames_close(pool);
        }
}

/* A state that a cache or a second sequence holds survives the promotion of another. */
static void test_a_held_main_slot_survives(void **state)
{
    (void)state;
    Frames *pool = frames_open(2, 1, 2);
    int32_t old, next, none;
    assert_int_equal(slots_claim(pool, 1, &old), 1);
    slots_hold(pool, old);
    assert_int_equal(slots_claim(pool, 5, &next), 1);
    assert_int_equal(slots_claim(pool, 1, &none), 0); /* full: no error, no slot */
    int32_t main_slot = old;
    slots_promote(pool, &main_slot, &next, 1, 0);
    assert_int_equal(main_slot, next);
    assert_int_equal(slots_refs(pool, old), 1);
    assert_int_equal(slots_free_count(pool), 0);
    slots_release(pool, old);
    assert_int_equal(slots_free_count(pool), 1);
    frames_close(pool);
}

/* ---- pages ---- */

enum { PAGES = 40, SEQS = 6, SEQ_ROWS = 230 };

static const ModelConfig CONFIG = {.n_full = 2,
                                   .n_recurrent = 3,
                                   .n_kv_heads = 2,
                                   .head_dim = 4,
                                   .n_v_heads = 3,
                                   .d_k = 4,
                                   .d_v = 5,
                                   .conv_width = 4,
                                   .n_channels = 7};

static Backend *backend;

static int open_backend(void **state)
{
    (void)state;
    backend = backend_ref_open(1);
    return 0;
}

static int close_backend(void **state)
{
    (void)state;
    backend->close(backend);
    return 0;
}

/* Every page has one owner at most, and those of all sequences are those in use; the tables say
 * where they are. */
static void check_pages(const Memory *mem, const int *want)
{
    int owners[PAGES * 4] = {0}, used = 0;
    for (int seq = 0; seq < SEQS; seq++) {
        size_t row = (size_t)seq * (size_t)mem->table_stride;
        assert_int_equal(mem->n_seq_pages[seq], want[seq]);
        for (int i = 0; i < want[seq]; i++) {
            int32_t page = memory_pages(mem, seq)[i], place = pages_place(mem->frames, page);
            assert_int_equal(mem->table[row + (size_t)i], place); /* the backend is the host */
            assert_int_equal(pages_refs(mem->frames, page), 1);
            owners[page]++;
        }
        used += want[seq];
    }
    for (int page = 0; page < PAGES * 4; page++)
        assert_true(owners[page] <= 1);
    assert_int_equal(pages_used(mem->frames), used);
}

static void test_random_pages(void **state)
{
    (void)state;
    Model model = {.config = CONFIG, .backend = backend, .has_mtp = 1};
    Memory mem;
    Rng rng = rng_new(SEED + 1);
    int want[SEQS] = {0}, refused = 0;
    assert_int_equal(memory_open_plain(&mem, &model, KV_F32, 2, PAGES, SEQS, SEQ_ROWS, NULL), 0);
    for (int i = 0; i < OPERATIONS / 4; i++) {
        int seq = rng_int(&rng, SEQS);
        if (rng_int(&rng, 3)) {
            int rows = rng_int(&rng, SEQ_ROWS + 1), pages = (rows + 15) / 16;
            int fits = pages - want[seq] <= pages_free_count(mem.frames);
            assert_int_equal(memory_reserve(&mem, seq, rows), fits ? 0 : -1);
            if (fits && pages > want[seq]) want[seq] = pages;
            refused += !fits;
        } else {
            memory_release(&mem, seq);
            want[seq] = 0;
        }
        check_pages(&mem, want);
    }
    assert_true(refused > 100); /* the pool was met empty, and nothing was taken then */
    for (int seq = 0; seq < SEQS; seq++)
        memory_release(&mem, seq);
    assert_int_equal(pages_used(mem.frames), 0);
    memory_close(&mem);
}

/* Growing keeps the pages that are there: their rows hold keys already. */
static void test_reserve_only_appends(void **state)
{
    (void)state;
    Model model = {.config = CONFIG, .backend = backend};
    Memory mem;
    int32_t before[3];
    assert_int_equal(memory_open_plain(&mem, &model, KV_F32, 1, PAGES, 2, SEQ_ROWS, NULL), 0);
    assert_int_equal(memory_reserve(&mem, 1, 2 * PAGE_TOKENS + 1), 0);
    assert_int_equal(mem.n_seq_pages[1], 3);
    memcpy(before, mem.table + mem.table_stride, sizeof before);
    assert_int_equal(memory_reserve(&mem, 0, 1), 0);
    assert_int_equal(memory_reserve(&mem, 1, SEQ_ROWS), 0);
    assert_int_equal(memory_reserve(&mem, 1, 1), 0); /* fewer rows take nothing back */
    assert_int_equal(mem.n_seq_pages[1], (SEQ_ROWS + 15) / 16);
    assert_memory_equal(mem.table + mem.table_stride, before, sizeof before);
    memory_close(&mem);
}

static void test_pages_for(void **state)
{
    (void)state;
    assert_int_equal(pages_for(0), 0);
    assert_int_equal(pages_for(1), 1);
    assert_int_equal(pages_for(PAGE_TOKENS), 1);
    assert_int_equal(pages_for(PAGE_TOKENS + 1), 2);
}

/* Marks [at, at + n) of map; every byte may be marked once. */
static void mark(unsigned char *map, size_t size, size_t at, size_t n)
{
    assert_true(at + n <= size);
    for (size_t i = at; i < at + n; i++) {
        assert_int_equal(map[i], 0);
        map[i] = 1;
    }
}

/* States, conv rows, K and V of all layers lie beside each other inside their slot or page. */
static void check_parts(KvType type)
{
    const ModelConfig *c = &CONFIG;
    Model model = {.config = CONFIG, .backend = backend, .has_mtp = 1};
    Memory mem;
    assert_int_equal(memory_open_plain(&mem, &model, type, 2, PAGES, SEQS, SEQ_ROWS, NULL), 0);
    unsigned char *slot = calloc(1, mem.slot_bytes), *page = calloc(1, mem.page_bytes);
    assert_true(slot && page);
    for (int i = 0; i < c->n_recurrent; i++) {
        SlotLayer l = memory_slot_layer(&mem, i);
        mark(slot, mem.slot_bytes, l.state_offset, sizeof(float) * 3 * 4 * 5);
        mark(slot, mem.slot_bytes, l.conv_offset, sizeof(float) * 3 * 7);
    }
    size_t run = kv_type_bytes(type) * PAGE_TOKENS * 2 * 4;
    assert_int_equal(mem.n_kv_layers, c->n_full + 1);
    for (int i = 0; i < mem.n_kv_layers; i++) {
        KvLayer l = memory_kv_layer(&mem, i);
        assert_int_equal(l.type, type);
        mark(page, mem.page_bytes, l.k_offset, run);
        mark(page, mem.page_bytes, l.v_offset, run);
    }
    free(slot);
    free(page);
    memory_close(&mem);
}

static void test_parts_do_not_overlap(void **state)
{
    (void)state;
    check_parts(KV_F32);
    check_parts(KV_BF16);
}

static void test_clear_slot_leaves_the_others(void **state)
{
    (void)state;
    Model model = {.config = CONFIG, .backend = backend};
    Memory mem;
    assert_int_equal(memory_open_plain(&mem, &model, KV_F32, 3, PAGES, SEQS, SEQ_ROWS, NULL), 0);
    memset(mem.base, 0xab, 3 * mem.frame_bytes);
    memory_clear_slot(&mem, 1);
    for (size_t i = 0; i < 3 * mem.frame_bytes; i++) {
        size_t slot = i / mem.frame_bytes, at = i % mem.frame_bytes;
        assert_int_equal(mem.base[i], slot == 1 && at < mem.slot_bytes ? 0 : 0xab);
    }
    memory_close(&mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_promote_each_winner),
        cmocka_unit_test(test_a_held_main_slot_survives),
        cmocka_unit_test(test_random_pages),
        cmocka_unit_test(test_reserve_only_appends),
        cmocka_unit_test(test_pages_for),
        cmocka_unit_test(test_parts_do_not_overlap),
        cmocka_unit_test(test_clear_slot_leaves_the_others),
    };
    printf("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
