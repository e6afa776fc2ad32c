/*
 * Tests of engine/budget.c: what --memory is spent on, to the byte, and what a small one leaves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/state.h"
#include "tests/analyzer.h"
#include "tests/asked.h"

/* What a backend was asked for since it was last looked at. */
static void *(*real_alloc)(Backend *be, size_t bytes, Error *err);
static size_t taken;

static void *counting_alloc(Backend *be, size_t bytes, Error *err)
{
    taken += bytes;
    return real_alloc(be, bytes, err);
}

static void count_allocs(int on)
{
    if (on) {
        real_alloc = asked_backend->alloc;
        asked_backend->alloc = counting_alloc;
    } else {
        asked_backend->alloc = real_alloc;
    }
}

static size_t taken_since(void)
{
    size_t n = taken;
    taken = 0;
    return n;
}

/* Written out: of each layer n_rows rows, of the last max_rows; and what a fold reads. */
static int64_t expected_records(int n_rows, int max_rows)
{
    const ModelConfig *c = &asked_model->config;
    int64_t row = c->n_channels + (int64_t)c->n_k_heads * c->d_k + (int64_t)c->n_v_heads * c->d_v +
                  c->n_v_heads;
    int64_t n = n_rows, rows = n * (c->n_recurrent - 1) + max_rows;
    return 4 * (rows * row + 3 * n + n * n);
}

/* Both say beforehand what they take. */
static void test_bytes(void **state)
{
    (void)state;
    static const int shape[][3] = {{64, 321, 32}, {2, 67, 32}, {8, 8, 8}, {64, 64, 500}};
    Error err = {0};
    Memory mem;
    assert_int_equal(memory_open_plain(&mem, asked_model, KV_F32, 1, 1, 1, 16, &err), 0);
    count_allocs(1);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        Records r;
        Forward f;
        int n = shape[i][0], rows = shape[i][1], logits = shape[i][2];
        taken_since();
        assert_int_equal(records_open(&r, asked_model, n, rows, &err), 0);
        assert_int_equal(taken_since(), expected_records(n, rows));
        assert_int_equal(records_bytes(asked_model, n, rows), expected_records(n, rows));
        assert_int_equal(r.bytes, expected_records(n, rows));
        assert_int_equal(forward_open(&f, asked_model, &mem, rows, logits, &err), 0);
        assert_int_equal(taken_since(), forward_bytes(asked_model, rows, logits));
        forward_close(&f);
        records_close(&r);
    }
    count_allocs(0);
    memory_close(&mem);
}

/* Logits lie over the layers' scratch: the block has room for the larger alone. */
static void test_logits_share(void **state)
{
    (void)state;
    enum { ROWS = 321, FEW = 16, MANY = 4000 };
    size_t row = (size_t)asked_model->config.n_vocab * sizeof(float), where = sizeof(int32_t);
    size_t few = forward_bytes(asked_model, ROWS, FEW);
    size_t many = forward_bytes(asked_model, ROWS, MANY);
    assert_int_equal(forward_bytes(asked_model, ROWS, 2 * FEW) - few, FEW * where);
    assert_int_equal(forward_bytes(asked_model, ROWS, 2 * MANY) - many, MANY * (row + where));
    assert_true(many < few + MANY * (row + where));
}

typedef struct {
    int n_rows, n_frames;
    StateMode mode;
    char table[1024];
} Spent;

static EngineOptions options(int64_t memory)
{
    EngineOptions o = asked_options(4, 3, 1);
    o.chunk_rows = 64;
    o.ctx_size = 0;
    o.memory = memory;
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
    return o;
}

enum { TREE_ROWS = 4 * 4, PASS_ROWS = 64 + TREE_ROWS + 1 };

/* Opens an engine, asks it the same as ever, and checks what must hold of any. */
static Spent spend(EngineOptions o, AskedAnswer *a)
{
    AskedEngine s;
    Spent got = {0};
    int32_t prompt[20];
    int64_t frame = (int64_t)memory_frame_bytes(asked_model, KV_F32);
    for (int i = 0; i < 20; i++)
        prompt[i] = 100 + 7 * i;
    asked_open(&s, o);
    Engine *e = s.engine;
    got.n_rows = e->records.n_rows;
    got.n_frames = e->mem.n_frames;
    got.mode = e->options.state_mode;
    int64_t records = got.n_rows ? expected_records(got.n_rows, PASS_ROWS) : 0;
    assert_int_equal(e->records.bytes, records);
    if (o.cache.on) assert_int_equal(got.n_frames, (o.memory - records) / frame);
    FILE *out = fmemopen(got.table, sizeof got.table - 1, "w");
    engine_print_memory(e, out);
    fclose(out);
    memset(a, 0, sizeof *a);
    EngineRequest r = asked_greedy(1, prompt, 20, 24);
    asked_submit(e, &r);
    asked_run(e, a, 1);
    asked_close(&s);
    return got;
}

/*
 * The most rows whose records fit a quarter of memory and leave a frame for a state and one for
 * keys; 0 when these are no tree's.
 */
static int most_rows(int64_t memory)
{
    int n = TREE_ROWS;
    int64_t left = memory - 2 * (int64_t)memory_frame_bytes(asked_model, KV_F32);
    while (n > 1 && expected_records(n, PASS_ROWS) > (left < memory / 4 ? left : memory / 4))
        n--;
    return n > 1 ? n : 0;
}

/* Records are of the budget, a quarter at most; the answer is the same. */
static void test_spent(void **state)
{
    (void)state;
    int64_t frame = (int64_t)memory_frame_bytes(asked_model, KV_F32);
    int n_less = 0, n_none = 0;
    AskedAnswer want, a;
    Spent whole = spend(options(16 << 20), &want);
    assert_int_equal(whole.n_rows, TREE_ROWS);
    assert_int_equal(whole.mode, STATE_REPLAY);
    for (int64_t memory = 2 * frame; memory < 8 * frame; memory += frame / 4) {
        Spent got = spend(options(memory), &a);
        assert_int_equal(got.n_rows, most_rows(memory));
        assert_int_equal(got.mode, got.n_rows ? STATE_REPLAY : STATE_SLOTS);
        assert_int_equal(a.n, want.n);
        assert_memory_equal(a.token, want.token, (size_t)a.n * sizeof *a.token);
        n_less += got.n_rows > 0 && got.n_rows < TREE_ROWS;
        n_none += !got.n_rows;
    }
    assert_true(n_less > 0 && n_none > 0);
}

/* A context that is asked for goes before records. */
static void test_context_first(void **state)
{
    (void)state;
    enum { CTX = 2000 };
    int64_t frame = (int64_t)memory_frame_bytes(asked_model, KV_F32);
    int per_frame = (int)(frame / (int64_t)memory_page_bytes(asked_model, KV_F32)) * PAGE_TOKENS;
    int64_t one = frame * (1 + (CTX + MAX_TREE_NODES + 1 + per_frame - 1) / per_frame);
    static const int rows[] = {0, 2, 7, TREE_ROWS};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        AskedAnswer a;
        EngineOptions o = options(one + (rows[i] ? expected_records(rows[i], PASS_ROWS) : 0));
        o.ctx_size = CTX;
        Spent got = spend(o, &a);
        assert_int_equal(got.n_rows, rows[i]);
        assert_int_equal(got.n_frames, one / frame);
    }
}

/* The table at start, to the letter where it counts bytes. */
static void test_table(void **state)
{
    (void)state;
    char line[256];
    AskedAnswer a;
    double mib = 1 << 20, frame = (double)memory_frame_bytes(asked_model, KV_F32);
    Spent got = spend(options(16 << 20), &a);
    double records = (double)expected_records(TREE_ROWS, PASS_ROWS);
    snprintf(line, sizeof line, "%-10s %10.1f MiB\n", "weights",
             (double)(asked_model->weight_bytes + asked_model->head_weight_bytes) / mib);
    assert_true(asked_model->head_weight_bytes > 0);
    assert_non_null(strstr(got.table, line));
    snprintf(line, sizeof line, "%-10s %10.1f MiB  %d of %.1f KiB, each a state", "frames",
             frame * got.n_frames / mib, got.n_frames, frame / 1024);
    assert_non_null(strstr(got.table, line));
    snprintf(line, sizeof line,
             "%-10s %10.1f MiB  16 rows of draft trees; of --memory, as the frames are\n",
             "records", records / mib);
    assert_non_null(strstr(got.table, line));
    snprintf(line, sizeof line, "%-10s %10.1f MiB\n", "scratch",
             (double)(asked_backend->scratch_bytes +
                      forward_bytes(asked_model, PASS_ROWS, LOGIT_ROWS) +
                      head_bytes(asked_model, PASS_ROWS, PASS_ROWS + MAX_TREE_ROWS * MAX_SEQS,
                                 &(DraftVocab){0})) /
                 mib);
    assert_true(asked_backend->scratch_bytes > 0);
    assert_non_null(strstr(got.table, line));
}

static size_t few_bytes(Backend *be)
{
    (void)be;
    return 40 << 20;
}

/* What the system has not is said at start: it would end the process later. */
static void test_scarce(void **state)
{
    (void)state;
    static const char *const says = "the system has 40.0 MiB left for these %.1f MiB";
    char line[128];
    AskedAnswer a;
    double mib = 1 << 20, frame = (double)memory_frame_bytes(asked_model, KV_F32);
    size_t (*free_bytes)(Backend * be) = asked_backend->free_bytes;
    asked_backend->free_bytes = few_bytes;
    EngineOptions o = options(16 << 20);
    o.host_cache = 24 << 20;
    assert_null(strstr(spend(o, &a).table, "the system has"));
    o.host_cache = 25 << 20;
    assert_non_null(strstr(spend(o, &a).table, "the system has 40.0 MiB left"));
    o.memory = 42 << 20;
    o.host_cache = 0;
    Spent got = spend(o, &a);
    double records = (double)expected_records(got.n_rows, PASS_ROWS);
    snprintf(line, sizeof line, says, (frame * got.n_frames + records) / mib);
    assert_non_null(strstr(got.table, line));
    o.cache.on = 0; /* what is not taken does not fill */
    o.ctx_size = 100;
    o.host_cache = 25 << 20;
    assert_null(strstr(spend(o, &a).table, "the system has"));
    asked_backend->free_bytes = free_bytes;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_logits_share),
        cmocka_unit_test(test_spent), cmocka_unit_test(test_context_first),
        cmocka_unit_test(test_table), cmocka_unit_test(test_scarce),
    };
    return cmocka_run_group_tests(tests, asked_open_demo, asked_close_demo);
}
