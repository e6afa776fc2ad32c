/*
 * test_memory.c: the pages of sequences against a plain model of who has how many, and where things
 * lie in slots and pages. Who holds a frame is in test_frames.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "engine/memory.h"
#include "tests/near.h"

enum { OPERATIONS = 50000, PAGES = 40, SEQS = 6, SEQ_ROWS = 230 };

static const uint64_t SEED = 23;

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
    Rng rng = rng_new(SEED);
    int want[SEQS] = {0}, refused = 0;
    assert_int_equal(memory_open_plain(&mem, &model, KV_F32, 2, PAGES, SEQS, SEQ_ROWS, NULL), 0);
    for (int i = 0; i < OPERATIONS; i++) {
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
        cmocka_unit_test(test_random_pages),
        cmocka_unit_test(test_reserve_only_appends),
        cmocka_unit_test(test_pages_for),
        cmocka_unit_test(test_parts_do_not_overlap),
        cmocka_unit_test(test_clear_slot_leaves_the_others),
    };
    printf("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
