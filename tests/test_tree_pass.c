/*
 * test_tree_pass.c: a tree pass is each of its paths, decoded one token at a time, bit for bit.
 *
 * For every golden model, with K and V in f32 and in bf16, several context lengths (also across
 * attention tiles) and random trees: each node's logits, its whole state slot and its K and V rows
 * equal those of a sequence that was fed the prompt and the path token by token; also with another
 * sequence's rows in the same batch, and when rows of the accepted path have moved to their places
 * and decoding goes on from there. In state mode replay, where nodes leave records, the folded path
 * is compared in place of their slots.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/forward.h"
#include "spec/tree.h"
#include "tests/backend_simt.h"
#include "tests/isas.h"

enum {
    SEQ_TREE,  /* holds the prompt, then the tree */
    SEQ_PLAIN, /* the same prompt, then one path, token by token */
    SEQ_OTHER, /* company in the batch */
    N_SEQS,
    MAX_CTX = 400,
    N_SLOTS = N_SEQS + 1 + MAX_TREE_NODES, /* main slots, a spare, one per node */
    SPARE = N_SEQS,
    FIRST_NODE_SLOT,
};

typedef struct {
    Model *model;
    Memory mem;
    Forward f;
    Records records;
    int replay; /* 1: nodes leave records */
    Batch batch;
    int32_t prompt[MAX_CTX];
    Tree tree;
    float *logits; /* of the tree's nodes */
    float *plain;  /* of one row */
    unsigned char *bytes[2];
    uint64_t random;
} Case;

static int pick(Case *c, int n)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((c->random >> 33) % (uint64_t)n);
}

static void case_open(Case *c, const char *folder, DummyType dummy, Backend *be, KvType type)
{
    Error err = {0};
    ModelOptions options = {.dummy = dummy};
    memset(c, 0, sizeof *c);
    c->model = model_open(folder, &options, be, &err);
    if (!c->model) fail_msg("%s", err.msg);
    int pages = N_SEQS * pages_for(MAX_CTX);
    assert_int_equal(
        memory_open_plain(&c->mem, c->model, type, N_SLOTS, pages, N_SEQS, MAX_CTX, &err), 0);
    assert_int_equal(forward_open(&c->f, c->model, &c->mem, MAX_CTX, 2 * MAX_TREE_NODES, &err), 0);
    assert_int_equal(records_open(&c->records, c->model, MAX_TREE_NODES, MAX_CTX, &err), 0);
    batch_open(&c->batch, MAX_CTX);
    c->logits = mem_alloc((size_t)MAX_TREE_NODES * c->model->config.n_vocab, sizeof(float));
    c->plain = mem_alloc((size_t)c->model->config.n_vocab, sizeof(float));
    size_t most = c->mem.slot_bytes > c->mem.kv_row_bytes ? c->mem.slot_bytes : c->mem.kv_row_bytes;
    for (int i = 0; i < 2; i++)
        c->bytes[i] = mem_alloc(1, most);
    c->random = 2026;
}

static void fetch(const Case *c, void *host, const void *src, size_t bytes)
{
    c->model->backend->download(c->model->backend, host, src, bytes);
}

/* 1 if two places in backend memory hold the same bytes. */
static int same(const Case *c, const void *a, const void *b, size_t bytes)
{
    fetch(c, c->bytes[0], a, bytes);
    fetch(c, c->bytes[1], b, bytes);
    return !memcmp(c->bytes[0], c->bytes[1], bytes);
}

static void case_close(Case *c)
{
    mem_free(c->logits);
    mem_free(c->plain);
    mem_free(c->bytes[0]);
    mem_free(c->bytes[1]);
    batch_close(&c->batch);
    records_close(&c->records);
    forward_close(&c->f);
    memory_close(&c->mem);
    model_close(c->model);
}

static void prefill(Case *c, int seq, int n)
{
    memory_release(&c->mem, seq);
    assert_int_equal(memory_reserve(&c->mem, seq, MAX_CTX), 0);
    memory_clear_slot(&c->mem, seq);
    batch_clear(&c->batch);
    for (int i = 0; i < n; i++)
        batch_add(&c->batch, c->prompt[i], i, seq, i - 1, seq, seq, i, i + 1);
    forward_pass(&c->f, &c->batch);
}

static void random_tree(Case *c, int n)
{
    int vocab = c->model->config.n_vocab;
    tree_init(&c->tree, pick(c, vocab));
    while (c->tree.n < n) {
        int parent = pick(c, c->tree.n);
        if (pick(c, 3)) parent = c->tree.n - 1; /* long paths as well as bushes */
        tree_add(&c->tree, parent, pick(c, vocab), (float)pick(c, 1000) / 1000);
    }
    tree_order(&c->tree, n);
}

static int32_t node_slot(int node)
{
    return node ? FIRST_NODE_SLOT + node : SPARE;
}

static void add_company(Case *c, int company)
{
    int first = c->batch.n;
    for (int i = 0; i < company; i++)
        batch_add(&c->batch, c->prompt[i], i, SEQ_OTHER, i ? first + i - 1 : -1, SEQ_OTHER,
                  SEQ_OTHER, i, i + 1);
}

/*
 * The tree after n tokens of SEQ_TREE; the root does not write in place here, so that main stays.
 * Records are those of a pass's first rows, so then company comes behind.
 */
static void tree_pass(Case *c, int n, int company)
{
    Batch *b = &c->batch;
    const Tree *t = &c->tree;
    batch_clear(b);
    if (!c->replay) add_company(c, company);
    for (int i = 0, first = b->n; i < t->n; i++) {
        int p = t->parent[i];
        int32_t src = p < 0 || c->replay ? SEQ_TREE : node_slot(p);
        int row = batch_add(b, t->token[i], n + t->depth[i], SEQ_TREE, p < 0 ? -1 : first + p, src,
                            c->replay ? -1 : node_slot(i), n + i, n);
        b->logit_row[b->n_logits++] = row;
    }
    if (c->replay) add_company(c, company);
    c->f.records = c->replay ? &c->records : NULL;
    forward_pass(&c->f, b);
    c->f.records = NULL; /* plain passes after this one leave the records alone */
    fetch(c, c->logits, c->f.logits, (size_t)t->n * c->model->config.n_vocab * sizeof *c->logits);
}

static void decode_one(Case *c, int seq, int32_t token, int pos)
{
    batch_clear(&c->batch);
    int row = batch_add(&c->batch, token, pos, seq, -1, seq, seq, pos, pos);
    c->batch.logit_row[c->batch.n_logits++] = row;
    forward_pass(&c->f, &c->batch);
}

static const unsigned char *kv_row(const Case *c, int layer, int part, int seq, int row)
{
    KvLayer kv = memory_kv_layer(&c->mem, layer);
    int32_t page = pages_place(c->mem.frames, memory_pages(&c->mem, seq)[row / PAGE_TOKENS]);
    return kv.pages + (size_t)page * kv.page_bytes + (part ? kv.v_offset : kv.k_offset) +
           (size_t)(row % PAGE_TOKENS) * c->mem.kv_row_bytes;
}

static void expect_same_rows(const Case *c, int tree_row, int plain_row)
{
    for (int layer = 0; layer < c->model->config.n_full; layer++)
        for (int part = 0; part < 2; part++)
            if (!same(c, kv_row(c, layer, part, SEQ_TREE, tree_row),
                      kv_row(c, layer, part, SEQ_PLAIN, plain_row), c->mem.kv_row_bytes))
                fail_msg("layer %d: %c row %d differs", layer, part ? 'V' : 'K', plain_row);
}

static void expect_same_slot(const Case *c, int32_t a, int32_t b, int node)
{
    if (!same(c, c->mem.base + (size_t)a * c->mem.frame_bytes,
              c->mem.base + (size_t)b * c->mem.frame_bytes, c->mem.slot_bytes))
        fail_msg("state of node %d differs", node);
}

static int path_to(const Tree *t, int node, int *path)
{
    int n = t->depth[node] + 1;
    for (int i = node; i >= 0; i = t->parent[i])
        path[t->depth[i]] = i;
    return n;
}

static void copy_slot(Case *c, int32_t to, int32_t from)
{
    memory_copy_slot(&c->mem, to, from);
}

/* The slot with the state after the last of n rows of a path. */
static int32_t slot_after(Case *c, const int *path, int n)
{
    int32_t row[MAX_TREE_NODES];
    if (!c->replay) return node_slot(path[n - 1]);
    for (int i = 0; i < n; i++)
        row[i] = path[i];
    copy_slot(c, SPARE, SEQ_TREE);
    records_fold(&c->records, &c->mem, &(KeptPath){SPARE, n, row}, 1);
    return SPARE;
}

/* The path to leaf, token by token in SEQ_PLAIN: every node on it must agree. */
static void check_path(Case *c, int n, int leaf)
{
    int path[MAX_TREE_NODES], len = path_to(&c->tree, leaf, path);
    size_t vocab = (size_t)c->model->config.n_vocab;
    /* Back to the prompt's end: rows below n were never touched, the state is that of SEQ_TREE. */
    copy_slot(c, SEQ_PLAIN, SEQ_TREE);
    for (int d = 0; d < len; d++) {
        decode_one(c, SEQ_PLAIN, c->tree.token[path[d]], n + d);
        fetch(c, c->plain, c->f.logits, vocab * sizeof(float));
        if (memcmp(c->logits + (size_t)path[d] * vocab, c->plain, vocab * sizeof(float)))
            fail_msg("context %d: logits of node %d (depth %d) differ", n, path[d], d);
        expect_same_slot(c, slot_after(c, path, d + 1), SEQ_PLAIN, path[d]);
        expect_same_rows(c, n + path[d], n + d);
    }
}

static int is_leaf(const Tree *t, int node)
{
    for (int i = node + 1; i < t->n; i++)
        if (t->parent[i] == node) return 0;
    return 1;
}

/* Accepts the path to leaf: rows move, the leaf's slot goes on, and the next token agrees too. */
static void check_promotion(Case *c, int n, int leaf)
{
    Backend *be = c->model->backend;
    int path[MAX_TREE_NODES] = {0}, len = path_to(&c->tree, leaf, path);
    int32_t move[3][MAX_TREE_NODES], *to_device;
    for (int d = 0; d < len; d++) {
        move[0][d] = SEQ_TREE;
        move[1][d] = n + path[d];
        move[2][d] = n + d;
    }
    to_device = be->alloc(be, sizeof move, NULL);
    assert_non_null(to_device);
    be->upload(be, to_device, move, sizeof move);
    be->move_rows(be, &(MoveRows){.n = len,
                                  .n_layers = c->model->config.n_full,
                                  .page_tokens = PAGE_TOKENS,
                                  .row_bytes = c->mem.kv_row_bytes,
                                  .page_bytes = c->mem.page_bytes,
                                  .pages = c->mem.base,
                                  .table = c->mem.table,
                                  .table_stride = c->mem.table_stride,
                                  .seq = to_device,
                                  .from = to_device + MAX_TREE_NODES,
                                  .to = to_device + 2 * MAX_TREE_NODES});
    assert_int_equal(be->sync(be, NULL), 0);
    be->free(be, to_device);
    int pos = n + len;
    int32_t slot = slot_after(c, path, len);
    size_t bytes = (size_t)c->model->config.n_vocab * sizeof(float);
    decode_one(c, SEQ_PLAIN, 5, pos);
    fetch(c, c->plain, c->f.logits, bytes);
    batch_clear(&c->batch);
    c->batch.logit_row[c->batch.n_logits++] =
        batch_add(&c->batch, 5, pos, SEQ_TREE, -1, slot, slot, pos, pos);
    forward_pass(&c->f, &c->batch);
    fetch(c, c->logits, c->f.logits, bytes);
    if (memcmp(c->logits, c->plain, bytes)) fail_msg("context %d: the step after differs", n);
    expect_same_slot(c, slot, SEQ_PLAIN, leaf);
}

static void check_context(Case *c, int n, int nodes, int company)
{
    int last = 0;
    for (int i = 0; i < n; i++)
        c->prompt[i] = pick(c, c->model->config.n_vocab);
    prefill(c, SEQ_OTHER, 9);
    prefill(c, SEQ_TREE, n);
    prefill(c, SEQ_PLAIN, n);
    expect_same_slot(c, SEQ_TREE, SEQ_PLAIN, -1);
    random_tree(c, nodes);
    tree_pass(c, n, company);
    for (int i = 0; i < c->tree.n; i++) {
        if (!is_leaf(&c->tree, i)) continue;
        check_path(c, n, i);
        last = i;
    }
    check_promotion(c, n, last); /* SEQ_PLAIN holds the path to the last leaf */
}

/* all: large shapes too, which take long where a GPU's blocks run as fibers. */
static void check_model(const char *name, Backend *be, KvType type, int all)
{
    static const struct {
        int n, nodes, company;
    } shape[] = {{1, 2, 0},  {2, 9, 3},    {15, 16, 0}, {61, 12, 5},
                 {64, 7, 0}, {130, 64, 9}, {300, 24, 2}};
    Case c;
    char folder[128];
    snprintf(folder, sizeof folder, "tests/data/golden/%s", name);
    case_open(&c, folder, DUMMY_NONE, be, type);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        if (!all && (shape[i].nodes > 12 || !shape[i].company)) continue;
        for (c.replay = 0; c.replay < 2; c.replay++)
            if (all || c.replay == (shape[i].n > 2)) /* else a shape in each mode */
                check_context(&c, shape[i].n, shape[i].nodes, shape[i].company);
    }
    case_close(&c);
}

static const char *const models[] = {"qwen35-dense", "qwen35-dense-odd", "qwen35-dense-fp8",
                                     "qwen35-moe", "qwen3-next"};

static void test_tree_is_its_paths(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CPU_ISAS; k++) {
        Error err;
        Backend *be = backend_cpu_open(2, cpu_isas[k], 1024, &err);
        if (!be) continue; /* this machine lacks it */
        for (size_t i = 0; i < sizeof models / sizeof *models; i++)
            for (KvType type = KV_F32; type <= KV_BF16; type++)
                check_model(models[i], be, type, 1);
        be->close(be);
    }
}

static void test_reference_backend(void **state)
{
    (void)state;
    Backend *be = backend_ref_open(1024);
    check_model("qwen35-dense-odd", be, KV_F32, 1);
    check_model("qwen35-dense-odd", be, KV_BF16, 0);
    be->close(be);
}

static void test_gpu(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        int all = !is_simt(gpu[b]);
        for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
            check_model(models[i], gpu[b], KV_F32, all);
            if (all || i == 1) check_model(models[i], gpu[b], KV_BF16, all);
        }
        gpu[b]->close(gpu[b]);
    }
}

/*
 * A shared expert as wide as the others is one of them for a few rows, and for more it is not: one
 * row gives what it gives among many.
 */
static void test_gpu_shared_expert(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    for (int b = 0; b < n; b++) {
        for (int type = 0; type < 2; type++) {
            Case c;
            case_open(&c, "tests/data/gpu/tiny", type ? DUMMY_FP8 : DUMMY_BF16, gpu[b], KV_F32);
            assert_true(gpu[b]->moe_shared_rows > 1 && gpu[b]->moe_shared_rows < 24);
            check_context(&c, 5, 24, 0);
            case_close(&c);
        }
        gpu[b]->close(gpu[b]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_is_its_paths),
        cmocka_unit_test(test_reference_backend),
        cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_gpu_shared_expert),
    };
    const struct CMUnitTest gpu[] = {cmocka_unit_test(test_gpu),
                                     cmocka_unit_test(test_gpu_shared_expert)};
    return gpu_only() ? cmocka_run_group_tests(gpu, NULL, NULL)
                      : cmocka_run_group_tests(tests, NULL, NULL);
}
