/*
 * test_attention.c: attention on every backend, against the definition and against itself, with K
 * and V in f32 and in bf16.
 *
 * Near: each instruction set against "ref", within the error that its source argues for.
 * Same bits, within one instruction set: any number of threads; rows together or one at a time;
 * a tree or each of its paths as a chain; alone or beside other sequences; bf16 rows or f32 rows
 * that hold the same values.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <float.h>

#include "base/mem.h"
#include "kernels/bf16.h"
#include "kernels/ops_cuda.h"
#include "kernels/simt_host.h"
#include "tests/backends.h"

/* ---- attention ---- */

typedef struct {
    int n_heads, n_kv_heads, head_dim, n_rot, page_tokens;
    int n, base, first; /* rows a sequence; committed positions of the first sequence; first key */
    int lead;           /* elements of a page before K: with 8 all lie on 16 bytes, with 4 in f32 */
} AttentionShape;

static const float ROPE_SCALE = 1.14f;

/* A GPU's segments of the keys end at 64, 128, .. 2048, 2176, .. 8192, 8448, .. 32768, 33280, ..:
 * contexts cross these. Its blocks take up to 8 queries of few keys, 16 or 32 of many. */
static const AttentionShape attention_shapes[] = {
    {1, 1, 4, 2, 16, 1, 0, 0, 1},
    {2, 1, 24, 8, 5, 5, 9, 0, 1},
    {4, 4, 40, 16, 7, 6, 63, 1, 1},
    {6, 2, 48, 12, 16, 9, 60, 0, 1},
    {8, 1, 64, 64, 32, 11, 130, 1, 8},
    {5, 1, 256, 64, 3, 10, 201, 0, 1},
    {12, 2, 256, 64, 16, 6, 125, 0, 8},
    {8, 1, 256, 64, 16, 3, 90, 1, 4},
    {6, 3, 128, 32, 16, 9, 127, 1, 8},
    {10, 1, 300, 30, 8, 2, 88, 0, 4},
    {2, 1, 512, 30, 8, 2, 70, 0, 8},
    {60, 1, 64, 16, 16, 2, 30, 0, 8},
    {8, 1, 64, 16, 32, 5, 2045, 1900, 8}, /* blocks of 16 queries */
    {6, 1, 64, 16, 32, 8, 2200, 2050, 8}, /* of 32 */
    {2, 1, 4, 2, 64, 4, 8189, 8001, 4},
    {2, 1, 8, 4, 128, 4, 32766, 32200, 1},
    {1, 1, 4, 4, 512, 3, 131070, 130900, 1},
    {4, 1, 24, 8, 16, 40, 230, 0, 1}, /* more queries than a CPU's unit takes */
    {1, 1, 8, 4, 64, 6, 2046, 70, 1}, /* a CPU's threads share five segments, or some rows' four */
    {1, 1, 8, 4, 64, 4, 2030, 70, 1}, /* five of one sequence, four of the other */
    {8, 1, 42, 4, 8, 3, 8190, 70, 1}, /* seventeen, whose sums are shared as well */
};

/* Two sequences of n rows each; pages in random order. */
typedef struct {
    AttentionShape s;
    KvType type;
    int rows, table_stride, n_pages;
    size_t page_elements;
    unsigned char *pages;
    float *qg, *k, *v, *q_norm, *k_norm, *inv_freq;
    int32_t *table, *rope_pos, *seq, *pos, *base, *parent, *kv_row;
    float *q, *out; /* results */
} Paged;

static const char *const type_name[] = {[KV_F32] = "f32", [KV_BF16] = "bf16"};

static size_t n_elements(const Paged *p)
{
    return (size_t)p->n_pages * p->page_elements;
}

/* Exactly their size, so that a sanitizer sees a step over the end. */
static unsigned char *pages_new(const Paged *p)
{
    unsigned char *pages = malloc(n_elements(p) * kv_type_bytes(p->type));
    assert_non_null(pages);
    return pages;
}

/* Element i of the pages. */
static void put(const Paged *p, size_t i, float x)
{
    uint16_t half = bf16_from_float(x);
    if (p->type == KV_BF16)
        memcpy(p->pages + i * sizeof half, &half, sizeof half);
    else
        memcpy(p->pages + i * sizeof x, &x, sizeof x);
}

static float get(const Paged *p, size_t i)
{
    float x;
    uint16_t half;
    memcpy(&half, p->pages + i * sizeof half, sizeof half);
    if (p->type == KV_BF16) return bf16_to_float(half);
    memcpy(&x, p->pages + i * sizeof x, sizeof x);
    return x;
}

/* All elements; to be freed. */
static float *page_values(const Paged *p)
{
    float *x = floats(n_elements(p));
    for (size_t i = 0; i < n_elements(p); i++)
        x[i] = get(p, i);
    return x;
}

static KvLayer kv_layer(const Paged *p)
{
    size_t offset = (size_t)(p->s.page_tokens * p->s.n_kv_heads * p->s.head_dim);
    size_t each = kv_type_bytes(p->type);
    return (KvLayer){.type = p->type,
                     .pages = p->pages,
                     .page_bytes = p->page_elements * each,
                     .k_offset = (size_t)p->s.lead * each,
                     .v_offset = ((size_t)p->s.lead + offset) * each,
                     .page_tokens = p->s.page_tokens,
                     .n_kv_heads = p->s.n_kv_heads,
                     .head_dim = p->s.head_dim,
                     .table = p->table,
                     .table_stride = p->table_stride};
}

/* The same values with either type, but that bf16 has rounded them. */
static Paged paged_new(Rng *r, const AttentionShape *s, KvType type)
{
    Paged p = {.s = *s, .type = type, .rows = 2 * s->n};
    size_t rows = (size_t)p.rows, dim = (size_t)s->head_dim;
    p.table_stride = (s->base + 40 + s->n) / s->page_tokens + 1;
    p.n_pages = 2 * p.table_stride;
    p.page_elements = (size_t)s->lead + 2 * (size_t)(s->page_tokens * s->n_kv_heads) * dim;
    p.qg = random_floats(r, rows * (size_t)s->n_heads * 2 * dim, 3);
    p.k = random_floats(r, rows * (size_t)s->n_kv_heads * dim, 1);
    p.v = random_floats(r, rows * (size_t)s->n_kv_heads * dim, 1);
    p.q_norm = random_floats(r, dim, 2), p.k_norm = random_floats(r, dim, 2);
    p.inv_freq = floats((size_t)s->n_rot / 2);
    for (int f = 0; f < s->n_rot / 2; f++)
        p.inv_freq[f] = powf(10000, -2.0f * (float)f / (float)s->n_rot);
    p.pages = pages_new(&p);
    for (size_t i = 0; i < n_elements(&p); i++)
        put(&p, i, 2 * rng_float(r));
    p.table = ints((size_t)p.n_pages);
    for (int i = 0; i < p.n_pages; i++) {
        int j = rng_int(r, i + 1);
        p.table[i] = p.table[j], p.table[j] = i;
    }
    p.rope_pos = ints(rows), p.seq = ints(rows), p.pos = ints(rows), p.base = ints(rows);
    p.parent = ints(rows), p.kv_row = ints(rows);
    p.q = floats(rows * (size_t)s->n_heads * dim);
    p.out = floats(rows * (size_t)s->n_heads * dim);
    return p;
}

static Paged paged_copy(const Paged *from)
{
    Paged p = *from;
    size_t all = (size_t)(p.rows * p.s.n_heads * p.s.head_dim);
    p.pages = pages_new(&p);
    memcpy(p.pages, from->pages, n_elements(&p) * kv_type_bytes(p.type));
    p.q = floats(all), p.out = floats(all);
    return p;
}

static void paged_free_results(Paged *p)
{
    free(p->pages), free(p->q), free(p->out);
}

static void paged_free_rows(Paged *p)
{
    free(p->qg), free(p->k), free(p->v), free(p->rope_pos), free(p->seq), free(p->pos);
    free(p->base), free(p->parent), free(p->kv_row);
}

static void paged_free(Paged *p)
{
    paged_free_results(p);
    paged_free_rows(p);
    free(p->q_norm), free(p->k_norm), free(p->inv_freq), free(p->table);
}

static void grow_trees(Rng *r, Paged *p)
{
    for (int i = 0; i < p->rows; i++) {
        int seq = i / p->s.n, first = seq * p->s.n;
        p->seq[i] = seq;
        p->base[i] = p->s.base + 37 * seq + (p->s.base < p->s.first);
        p->parent[i] = i == first ? -1 : first + rng_int(r, i - first);
        p->pos[i] = i == first ? p->base[i] : p->pos[p->parent[i]] + 1;
        p->kv_row[i] = p->base[i] + (i - first);
        p->rope_pos[i] = p->pos[i] + 3;
    }
}

static TreeAttention tree_args(const Paged *p, int first, int n)
{
    size_t head = (size_t)first * (size_t)p->s.n_heads * (size_t)p->s.head_dim;
    int n_keys = 0;
    for (int i = first; i < first + n; i++)
        if (p->pos[i] >= n_keys) n_keys = p->pos[i] + 1;
    return (TreeAttention){.n = n,
                           .n_heads = p->s.n_heads,
                           .first = p->s.first,
                           .row0 = first,
                           .n_keys = n_keys,
                           .scale = 1 / sqrtf((float)p->s.head_dim),
                           .q = p->q + head,
                           .qg = p->qg + 2 * head,
                           .seq = p->seq,
                           .pos = p->pos,
                           .base = p->base,
                           .parent = p->parent,
                           .kv_row = p->kv_row,
                           .kv = kv_layer(p),
                           .out = p->out + head};
}

static void prepare(Backend *be, Paged *p, int first, int n)
{
    size_t dim = (size_t)p->s.head_dim, heads = (size_t)p->s.n_heads;
    size_t kv_at = (size_t)first * (size_t)p->s.n_kv_heads * dim, at = (size_t)first * heads * dim;
    be->attention_prepare(be, &(AttentionPrepare){n, p->s.n_heads, p->s.n_rot, 1e-6f, ROPE_SCALE,
                                                  p->qg + 2 * at, p->k + kv_at, p->v + kv_at,
                                                  p->q_norm, p->k_norm, p->inv_freq,
                                                  p->rope_pos + first, p->seq + first,
                                                  p->kv_row + first, kv_layer(p), p->q + at});
}

static void attend(Backend *be, Paged *p, int first, int n)
{
    TreeAttention a = tree_args(p, first, n);
    be->tree_attention(be, &a);
}

static void run_attention(Backend *be, Paged *p, int first, int n)
{
    prepare(be, p, first, n);
    attend(be, p, first, n);
}

/*
 * Row i's path as a chain whose rows lie in place, in one call or one call a row (row0 > 0);
 * committed: base after the row itself, or far behind it.
 */
static void check_attention_path(Backend *be, const Paged *tree, const Paged *start, int i,
                                 int committed, int at_once, const char *what, uint64_t seed)
{
    int path[64], n = 0;
    size_t dim = (size_t)start->s.head_dim, heads = (size_t)start->s.n_heads;
    size_t q_row = 2 * heads * dim, kv_row = (size_t)start->s.n_kv_heads * dim;
    for (int j = i; j >= 0; j = tree->parent[j])
        path[n++] = j;
    Paged one = paged_copy(start);
    one.qg = floats((size_t)n * q_row);
    one.k = floats((size_t)n * kv_row), one.v = floats((size_t)n * kv_row);
    int32_t rope[64], seq[64], pos[64], base[64], parent[64], kv[64];
    for (int m = 0; m < n; m++) {
        size_t from = (size_t)path[n - 1 - m], to = (size_t)m;
        memcpy(one.qg + to * q_row, start->qg + from * q_row, q_row * sizeof(float));
        memcpy(one.k + to * kv_row, start->k + from * kv_row, kv_row * sizeof(float));
        memcpy(one.v + to * kv_row, start->v + from * kv_row, kv_row * sizeof(float));
        rope[m] = start->rope_pos[from], seq[m] = start->seq[from], pos[m] = start->pos[from];
        kv[m] = pos[m], parent[m] = m - 1;
        base[m] = committed ? pos[m] + 1 + m % 2 * 100 : start->base[from];
    }
    one.rope_pos = rope, one.seq = seq, one.pos = pos, one.base = base;
    one.parent = parent, one.kv_row = kv;
    for (int m = 0; m < n; m += at_once ? n : 1)
        run_attention(be, &one, m, at_once ? n : 1);
    assert_true(same_bits(what, one.out + (size_t)(n - 1) * heads * dim,
                          tree->out + (size_t)i * heads * dim, heads * dim, seed));
    free(one.qg), free(one.k), free(one.v);
    paged_free_results(&one);
}

/* The tree in calls of 1, 2, 3, 1, .. rows. */
static void check_attention_calls(Backend *be, const Paged *tree, const Paged *start,
                                  const char *what, uint64_t seed)
{
    Paged p = paged_copy(start);
    for (int i = 0, n = 1; i < p.rows; i += n, n = n % 3 + 1)
        run_attention(be, &p, i, i + n < p.rows ? n : p.rows - i);
    assert_true(
        same_bits(what, p.out, tree->out, (size_t)(p.rows * p.s.n_heads * p.s.head_dim), seed));
    paged_free_results(&p);
}

static void check_near_attention(const Paged *got, const Paged *want, const char *what,
                                 uint64_t seed)
{
    size_t all = (size_t)(want->rows * want->s.n_heads * want->s.head_dim);
    float *rows = page_values(got), *want_rows = page_values(want);
    /* where the last bits of K decide how it is rounded to bf16, it moves by one step of 2^-7 */
    double step = got->type == KV_BF16 ? 0x1p-7 : 0;
    Paged by_ref = paged_copy(got);
    /* norm, then sine and cosine of one angle: a few roundings of numbers below 8 */
    assert_true(near_all(what, got->q, want->q, all, 16 * 0x1p-24, 64 * 0x1p-24, seed));
    assert_true(
        near_all(what, rows, want_rows, n_elements(got), step + 16 * 0x1p-24, 65 * 0x1p-24, seed));
    /* of the same q and rows: scores of size up to 4 sqrt(dim), off by some 1e-5, move p by as
     * much; |v| < 2 */
    memcpy(by_ref.q, got->q, all * sizeof(float));
    attend(ref, &by_ref, 0, got->rows);
    assert_true(near_all(what, got->out, by_ref.out, all, 0, 1e-4, seed));
    paged_free_results(&by_ref);
    free(rows), free(want_rows);
}

/* A GPU whose blocks have less shared memory gives the same bits. */
static void check_small_blocks(Backend *be, const Paged *want, const Paged *start, uint64_t seed)
{
    Paged p = paged_copy(start);
    simt_limit_shared(SIMT_SHARED_ADA);
    run_attention(be, &p, 0, p.rows);
    simt_limit_shared(SIMT_SHARED_HOPPER);
    size_t all = (size_t)(p.rows * p.s.n_heads * p.s.head_dim);
    assert_true(same_bits("attention in small blocks", p.out, want->out, all, seed));
    paged_free_results(&p);
}

static void check_attention(KvType type)
{
    for (size_t s = 0; s < sizeof attention_shapes / sizeof *attention_shapes; s++) {
        Rng r = rng_new(500 + s);
        Paged start = paged_new(&r, &attention_shapes[s], type);
        grow_trees(&r, &start);
        size_t all = (size_t)(start.rows * start.s.n_heads * start.s.head_dim);
        Paged want = paged_copy(&start), first = paged_copy(&start);
        run_attention(ref, &want, 0, want.rows);
        for (int i = 0; i < want.rows; i++)
            check_attention_path(ref, &want, &start, i, i % 2, i / 2 % 2, "attention path on ref",
                                 r.seed);
        for (int b = 0; b < n_backends; b++) {
            Paged got = paged_copy(&start);
            run_attention(backend[b], &got, 0, got.rows);
            check_near_attention(&got, &want, about(type_name[type], b), r.seed);
            if (b == leader(b)) memcpy(first.out, got.out, all * sizeof(float));
            assert_true(same_bits(about("attention", b), got.out, first.out, all, r.seed));
            check_attention_calls(backend[b], &got, &start, about("attention calls", b), r.seed);
            if (is_gpu(b)) check_small_blocks(backend[b], &got, &start, r.seed);
            /* the GPU's kernels are slow here: a few paths of each kind */
            for (int i = 0; i < got.rows; i += is_gpu(b) && got.rows > 8 ? 3 : 1)
                check_attention_path(backend[b], &got, &start, i, i % 2, i / 2 % 2,
                                     about("attention path", b), r.seed);
            paged_free_results(&got);
        }
        paged_free_results(&first);
        paged_free_results(&want);
        paged_free(&start);
    }
}

static void test_attention(void **state)
{
    (void)state;
    check_attention(KV_F32);
    check_attention(KV_BF16);
}

/* ---- bf16 is f32 rounded once ---- */

/* The rows that the two have written: bf16 holds what f32 holds, rounded. */
static void check_rounded(const Paged *half, const Paged *full, const char *what)
{
    for (size_t i = 0; i < n_elements(full); i++) {
        uint16_t got, want = bf16_from_float(get(full, i));
        memcpy(&got, half->pages + i * sizeof got, sizeof got);
        if (got != want)
            fail_msg("%s: element %zu is %#x, expected %#x of %a", what, i, (unsigned)got,
                     (unsigned)want, (double)get(full, i));
    }
}

/*
 * What is written is what f32 has, rounded to nearest even, also where that is no usual number; and
 * attention reads it as f32 rows of the same values, the current rows too.
 */
static void test_rounded(void **state)
{
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN,       FLT_MAX,       -FLT_MAX,     1e-40f,
                                -0.0f,    0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, 0x1.fffffep0f};
    static const size_t n_odd = sizeof odd / sizeof *odd;
    for (size_t s = 0; s < sizeof attention_shapes / sizeof *attention_shapes; s++) {
        if (attention_shapes[s].base > 8000) continue; /* more of the same */
        Rng r = rng_new(900 + s), again = r;
        Paged full = paged_new(&r, &attention_shapes[s], KV_F32);
        Paged half = paged_new(&again, &attention_shapes[s], KV_BF16);
        Rng trees = rng_new(s), same_trees = trees;
        size_t all = (size_t)(full.rows * full.s.n_heads * full.s.head_dim);
        grow_trees(&trees, &full), grow_trees(&same_trees, &half);
        for (int b = 0; b < n_backends; b++) {
            Paged f = paged_copy(&full), h = paged_copy(&half);
            prepare(backend[b], &f, 0, f.rows), run_attention(backend[b], &h, 0, h.rows);
            check_rounded(&h, &f, about("rows", b));
            for (size_t i = 0; i < n_elements(&f); i++)
                put(&f, i, get(&h, i));
            attend(backend[b], &f, 0, f.rows);
            assert_true(same_bits(about("q", b), h.q, f.q, all, r.seed));
            assert_true(same_bits(about("rounded rows", b), h.out, f.out, all, r.seed));
            paged_free_results(&f), paged_free_results(&h);
        }
        size_t n = (size_t)(full.rows * full.s.n_kv_heads * full.s.head_dim);
        for (size_t i = 0; i < n; i++)
            full.v[i] = half.v[i] = odd[i % n_odd];
        full.k[0] = half.k[0] = NAN;
        for (int b = 0; b < n_backends; b++) {
            Paged f = paged_copy(&full), h = paged_copy(&half);
            prepare(backend[b], &f, 0, f.rows), prepare(backend[b], &h, 0, h.rows);
            check_rounded(&h, &f, about("odd rows", b));
            paged_free_results(&f), paged_free_results(&h);
        }
        paged_free(&full), paged_free(&half);
    }
}

/* ---- prompts, and what a row must not see ---- */

typedef enum { PROMPT, CHAIN, MIXED, ONE_BY_ONE } PromptForm;

/*
 * Two sequences' chains in place: rows with all before them committed, or rows of one deep tree, or
 * some of each.
 */
static void grow_chains(Paged *p, PromptForm form)
{
    for (int i = 0; i < p->rows; i++) {
        int seq = i / p->s.n, first = seq * p->s.n;
        int start = p->s.base + 37 * seq;
        p->seq[i] = seq;
        p->pos[i] = p->kv_row[i] = p->rope_pos[i] = start + i - first;
        p->parent[i] = i == first ? -1 : i - 1;
        p->base[i] = form == CHAIN || (form == MIXED && i % 3) ? start : p->pos[i] + 1;
    }
}

static void run_chains(Backend *be, Paged *p, PromptForm form)
{
    grow_chains(p, form);
    for (int i = 0; i < p->rows; i += form == ONE_BY_ONE ? 1 : p->rows)
        run_attention(be, p, i, form == ONE_BY_ONE ? 1 : p->rows);
}

/* NaN into every row that no call has written yet, and into K and V of each sequence's last row. */
static void poison(Paged *p)
{
    size_t row = (size_t)(p->s.n_kv_heads * p->s.head_dim);
    KvLayer kv = kv_layer(p);
    for (int seq = 0; seq < 2; seq++) {
        for (int r = p->s.base + 37 * seq; r < p->table_stride * p->s.page_tokens; r++) {
            size_t page = (size_t)p->table[seq * p->table_stride + r / p->s.page_tokens];
            size_t k =
                page * p->page_elements + (size_t)p->s.lead + (size_t)(r % p->s.page_tokens) * row;
            size_t v = k + (kv.v_offset - kv.k_offset) / kv_type_bytes(p->type);
            for (size_t d = 0; d < row; d++)
                put(p, k + d, NAN), put(p, v + d, NAN);
        }
        size_t last = (size_t)((seq + 1) * p->s.n - 1) * row;
        for (size_t d = 0; d < row; d++)
            p->k[last + d] = p->v[last + d] = NAN;
    }
}

/* Looks at all rows but the last of each sequence, whose own key is NaN. */
static void check_chains(Backend *be, Paged *start, const char *what, uint64_t seed)
{
    size_t row = (size_t)(start->s.n_heads * start->s.head_dim), n = (size_t)start->s.n;
    PromptForm last = n < 100 ? ONE_BY_ONE : MIXED;
    Paged first = paged_copy(start);
    run_chains(be, &first, PROMPT);
    Paged by_ref = paged_copy(&first);
    memcpy(by_ref.q, first.q, 2 * n * row * sizeof(float));
    attend(ref, &by_ref, 0, by_ref.rows);
    for (size_t at = 0; at < 2 * n * row; at += n * row)
        assert_true(near_all(what, first.out + at, by_ref.out + at, (n - 1) * row, 0, 1e-4, seed));
    paged_free_results(&by_ref);
    for (PromptForm form = CHAIN; form <= last; form++) {
        Paged got = paged_copy(start);
        run_chains(be, &got, form);
        for (size_t at = 0; at < 2 * n * row; at += n * row)
            assert_true(same_bits(what, got.out + at, first.out + at, (n - 1) * row, seed));
        paged_free_results(&got);
    }
    paged_free_results(&first);
}

/*
 * A prompt in one call, as one deep tree, row by row: the same bits. Rows that lie beyond a row, in
 * its tile or in its block, are never multiplied by 0, nor read.
 */
static void test_chains(void **state)
{
    (void)state;
    static const AttentionShape shapes[] = {
        {2, 1, 64, 16, 16, 37, 8150, 8101, 8}, /* more rows than the GPU's scratch takes here */
        {1, 1, 8, 4, 16, 132, 127, 61, 1},     /* a tail in three segments */
        {12, 2, 256, 64, 5, 9, 123, 3, 8},
        {4, 2, 40, 8, 16, 140, 100, 3, 8}, /* whole tiles of a CPU's unit are not committed */
    };
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        Rng r = rng_new(600 + i);
        Paged start = paged_new(&r, &shapes[i / 2], i % 2 ? KV_BF16 : KV_F32);
        poison(&start);
        for (int b = 0; b < n_backends; b++)
            if (b == leader(b)) check_chains(backend[b], &start, about("chain", b), r.seed);
        paged_free(&start);
    }
}

/* Rows of `from` in the order of two sequences in turn: row r is row turn(r) of from. */
static int turn(const Paged *p, int r)
{
    return r % 2 * p->s.n + r / 2;
}

static Paged take_turns(const Paged *from)
{
    Paged p = paged_copy(from);
    size_t q = 2 * (size_t)(p.s.n_heads * p.s.head_dim),
           kv = (size_t)(p.s.n_kv_heads * p.s.head_dim);
    size_t rows = (size_t)p.rows;
    p.qg = floats(rows * q), p.k = floats(rows * kv), p.v = floats(rows * kv);
    p.rope_pos = ints(rows), p.seq = ints(rows), p.pos = ints(rows), p.base = ints(rows);
    p.parent = ints(rows), p.kv_row = ints(rows);
    for (int r = 0; r < p.rows; r++) {
        int i = turn(from, r), up = from->parent[i];
        memcpy(p.qg + (size_t)r * q, from->qg + (size_t)i * q, q * sizeof(float));
        memcpy(p.k + (size_t)r * kv, from->k + (size_t)i * kv, kv * sizeof(float));
        memcpy(p.v + (size_t)r * kv, from->v + (size_t)i * kv, kv * sizeof(float));
        p.rope_pos[r] = from->rope_pos[i], p.seq[r] = from->seq[i], p.pos[r] = from->pos[i];
        p.base[r] = from->base[i], p.kv_row[r] = from->kv_row[i];
        p.parent[r] = up < 0 ? -1 : up % p.s.n * 2 + up / p.s.n;
    }
    return p;
}

/* The order in which two sequences' rows stand in a call changes no bit. */
static void test_turns(void **state)
{
    (void)state;
    static const AttentionShape shapes[] = {{2, 1, 64, 16, 16, 7, 190, 1, 8},
                                            {3, 3, 24, 8, 8, 9, 250, 0, 1}};
    for (size_t s = 0; s < 2 * sizeof shapes / sizeof *shapes; s++) {
        Rng r = rng_new(950 + s);
        Paged start = paged_new(&r, &shapes[s / 2], s % 2 ? KV_BF16 : KV_F32);
        grow_trees(&r, &start);
        size_t row = (size_t)(start.s.n_heads * start.s.head_dim);
        for (int b = 0; b < n_backends; b++) {
            if (b != leader(b)) continue;
            Paged want = paged_copy(&start), got = take_turns(&start);
            run_attention(backend[b], &want, 0, want.rows);
            run_attention(backend[b], &got, 0, got.rows);
            for (int i = 0; i < got.rows; i++)
                assert_true(same_bits(about("turns", b), got.out + (size_t)i * row,
                                      want.out + (size_t)turn(&start, i) * row, row, r.seed));
            paged_free_results(&want);
            paged_free_results(&got), paged_free_rows(&got);
        }
        paged_free(&start);
    }
}

/* Sequences with a first position of their own: the bits of a call that begins there for all. */
static void check_from(Backend *be, const Paged *start, int seq, int32_t from, const char *what,
                       uint64_t seed)
{
    Paged p = paged_copy(start), alone = paged_copy(start);
    int32_t each[2] = {from, 0};
    size_t half = (size_t)(start->s.n * start->s.n_heads * start->s.head_dim);
    if (seq) each[0] = 0, each[1] = from;
    prepare(be, &p, 0, p.rows);
    TreeAttention a = tree_args(&p, 0, p.rows);
    a.from = each;
    be->tree_attention(be, &a);
    prepare(be, &alone, 0, p.rows);
    for (int i = 0; i < 2; i++) {
        a = tree_args(&alone, 0, p.rows);
        if (i == seq && from > a.first) a.first = from;
        be->tree_attention(be, &a);
        assert_true(
            same_bits(what, p.out + (size_t)i * half, alone.out + (size_t)i * half, half, seed));
    }
    paged_free_results(&p);
    paged_free_results(&alone);
}

static void test_from(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof attention_shapes / sizeof *attention_shapes; s++) {
        Rng r = rng_new(700 + s);
        Paged start = paged_new(&r, &attention_shapes[s], s % 2 ? KV_BF16 : KV_F32);
        grow_trees(&r, &start);
        for (int b = -1; b < n_backends; b++) {
            Backend *be = b < 0 ? ref : backend[b];
            if (b >= 0 && is_gpu(b)) continue;
            for (int seq = 0; seq < 2; seq++) {
                int root = start.base[seq * start.s.n];
                int32_t from[] = {0, root / 3, root};
                for (int i = 0; i < 3; i++)
                    check_from(be, &start, seq, from[i], b < 0 ? "ref" : about("from", b), r.seed);
            }
        }
        paged_free(&start);
    }
}

/* One committed key that outweighs all others, many keys after the first. */
static void test_far_key(void **state)
{
    (void)state;
    static const AttentionShape shape = {1, 1, 64, 16, 64, 1, 8300, 0, 4};
    static const int far[2] = {8250, 5200};
    Rng r = rng_new(800);
    Paged start = paged_new(&r, &shape, KV_F32);
    grow_trees(&r, &start);
    Paged want = paged_copy(&start);
    run_attention(ref, &want, 0, want.rows);
    for (int seq = 0; seq < 2; seq++) {
        size_t page = (size_t)start.table[seq * start.table_stride + far[seq] / 64];
        size_t k = page * start.page_elements + 4 + (size_t)(far[seq] % 64) * 64;
        for (size_t d = 0; d < 64; d++)
            put(&start, k + d, 40 * want.q[(size_t)seq * 64 + d]); /* a score of some 400 */
    }
    paged_free_results(&want);
    want = paged_copy(&start);
    run_attention(ref, &want, 0, want.rows);
    for (int b = 0; b < n_backends; b++) {
        if (b != leader(b)) continue;
        Paged got = paged_copy(&start);
        run_attention(backend[b], &got, 0, got.rows);
        assert_true(near_all(about("far key", b), got.out, want.out, 128, 0, 1e-4, r.seed));
        paged_free_results(&got);
    }
    paged_free_results(&want);
    paged_free(&start);
}

/* Where K and V lie within a page changes no bit. */
static void test_alignment(void **state)
{
    (void)state;
    static const AttentionShape shapes[] = {{4, 2, 64, 8, 8, 3, 126, 0, 8},
                                            {4, 2, 128, 8, 8, 3, 61, 0, 8},
                                            {6, 1, 256, 8, 8, 3, 30, 0, 8}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        Rng r = rng_new(700 + i);
        Paged p = paged_new(&r, &shapes[i / 2], i % 2 ? KV_BF16 : KV_F32), odd = p;
        size_t all = (size_t)(p.rows * p.s.n_heads * p.s.head_dim);
        size_t inside = p.page_elements - (size_t)p.s.lead;
        grow_trees(&r, &p);
        odd.s.lead = 3;
        odd.page_elements = inside + 3;
        odd.pages = pages_new(&odd);
        for (size_t page = 0; page < (size_t)p.n_pages; page++) {
            for (size_t d = 0; d < 3; d++)
                put(&odd, page * odd.page_elements + d, 0);
            for (size_t d = 0; d < inside; d++)
                put(&odd, page * odd.page_elements + 3 + d,
                    get(&p, page * p.page_elements + 8 + d));
        }
        odd.q = floats(all), odd.out = floats(all);
        for (int b = 0; b < n_backends; b++) {
            run_attention(backend[b], &p, 0, p.rows);
            run_attention(backend[b], &odd, 0, p.rows);
            assert_true(same_bits(about("odd pages", b), odd.out, p.out, all, r.seed));
        }
        paged_free_results(&odd);
        paged_free(&p);
    }
}

static void test_no_allocation(void **state)
{
    (void)state;
    Rng r = rng_new(1);
    Paged p = paged_new(&r, &attention_shapes[3], KV_BF16);
    grow_trees(&r, &p);
    unsigned long before = mem_count();
    for (int b = 0; b < n_backends; b++)
        run_attention(backend[b], &p, 0, p.rows);
    assert_int_equal(mem_count(), before);
    paged_free(&p);
}

/* Blocks of any GPU in use hold the longest heads. */
static void test_head_dims(void **state)
{
    (void)state;
    CudaContext c = {.shared_bytes = SIMT_SHARED_ADA};
    assert_int_equal(max_head_dim_simt(&c), MAX_HEAD_DIM);
    c.shared_bytes = 32 << 10;
    assert_in_range(max_head_dim_simt(&c), 256, MAX_HEAD_DIM - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),     cmocka_unit_test(test_rounded),
        cmocka_unit_test(test_chains),        cmocka_unit_test(test_far_key),
        cmocka_unit_test(test_turns),         cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_from),          cmocka_unit_test(test_head_dims),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests_name("attention", tests, open_backends, close_backends);
}
