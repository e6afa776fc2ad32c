/*
 * test_prefill.c: operations told that their rows are a prompt's (backend.h), on every backend.
 *
 * Near: the definition. Same bits: wherever the prompt is cut into passes, at multiples of
 * PREFILL_BLOCK; whatever rows follow; whatever order a GPU's blocks and lanes run in. A backend
 * that has no other order for prompts gives the bits that it gives without being told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/bf16.h"
#include "kernels/simt_host.h"
#include "tests/backends.h"

static float largest(const float *x, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most;
}

/* ---- the gated delta rule ---- */

/* How the rows' decay and beta are. */
typedef enum {
    USUAL,     /* all of 0 .. 1 */
    REMEMBERS, /* decay within 1e-4 of 1, or 1; beta near 1 or 1 */
    FORGETS,   /* decay down to 0, which no logarithm has */
    EXTREME,   /* any of the ends and between, products far below the least float */
    ONE_KEY,   /* decay and beta 1, all keys nearly the same: the system farthest from I */
} Gates;

typedef struct {
    int n_k_heads, n_v_heads, d_k, d_v, n;
    Gates gates;
    int odd; /* floats after a state, so that slots are not aligned */
} DeltaCase;

static const DeltaCase delta_cases[] = {
    {1, 1, 1, 1, 1, USUAL, 1},           {1, 2, 24, 40, 3, USUAL, 1},
    {2, 2, 8, 4, 64, USUAL, 0},          {1, 1, 16, 16, 65, EXTREME, 3},
    {2, 6, 48, 20, 129, REMEMBERS, 0},   {1, 2, 64, 72, 191, FORGETS, 0},
    {1, 3, 100, 17, 130, EXTREME, 1},    {1, 2, 128, 64, 200, USUAL, 0},
    {1, 1, 128, 128, 330, REMEMBERS, 0}, /* more blocks than the scratch takes here */
    {1, 1, 128, 64, 150, EXTREME, 4},    {1, 1, 128, 64, 100, ONE_KEY, 0},
    {1, 1, 128, 36, 128, FORGETS, 0},    {1, 1, 128, 136, 20, USUAL, 0},
    {1, 1, 256, 64, 70, USUAL, 0},       {1, 1, 200, 33, 129, ONE_KEY, 1},
    {1, 1, 4, 8, 500, REMEMBERS, 0},     {7, 7, 128, 4, 66, USUAL, 0}, /* more key heads */
};

enum { N_SLOTS = 4, FROM = 1, TO = 3 };

/* One layer's arrays for a prompt. */
typedef struct {
    DeltaCase s;
    size_t qk_row, v_row, state, slot_floats;
    float *q, *k, *v, *decay, *beta;
    float *slots, *out; /* results */
} Prompt;

static float random_gate(Rng *r, const float *ends, int n_ends)
{
    int i = rng_int(r, n_ends + 1);
    return i < n_ends ? ends[i] : fabsf(rng_float(r));
}

static void fill_gates(Rng *r, Prompt *p)
{
    static const float decays[] = {0, 1e-42f, 1e-30f, 1e-3f, 1, 1}, betas[] = {0, 1, 1};
    for (size_t i = 0; i < (size_t)(p->s.n * p->s.n_v_heads); i++) {
        float x = fabsf(rng_float(r)), y = fabsf(rng_float(r));
        p->decay[i] = x, p->beta[i] = y;
        if (p->s.gates == REMEMBERS)
            p->decay[i] = rng_int(r, 3) ? 1 - 1e-4f * x : 1, p->beta[i] = 1 - 0.01f * y;
        if (p->s.gates == FORGETS) p->decay[i] = rng_int(r, 4) ? powf(x, 20) : 0;
        if (p->s.gates == EXTREME) {
            p->decay[i] = random_gate(r, decays, 6);
            p->beta[i] = random_gate(r, betas, 3);
        }
        if (p->s.gates == ONE_KEY) p->decay[i] = p->beta[i] = 1;
    }
}

/* Each head to this length; near: all rows point nearly where the first does. */
static void set_lengths(float *x, int rows, int heads, int dim, float length, int near)
{
    for (int i = 0; i < rows * heads; i++) {
        float *head = x + (size_t)i * (size_t)dim, sum = 1e-6f;
        const float *first = x + (size_t)(i % heads) * (size_t)dim;
        for (int c = 0; c < dim && near && i >= heads; c++)
            head[c] = first[c] + 0.05f * length / sqrtf((float)dim) * head[c];
        for (int c = 0; c < dim; c++)
            sum += head[c] * head[c];
        for (int c = 0; c < dim; c++)
            head[c] *= length / sqrtf(sum);
    }
}

static Prompt prompt_new(Rng *r, const DeltaCase *s)
{
    Prompt p = {.s = *s};
    size_t n = (size_t)s->n, heads = (size_t)s->n_v_heads;
    p.qk_row = (size_t)(s->n_k_heads * s->d_k), p.v_row = heads * (size_t)s->d_v;
    p.state = p.v_row * (size_t)s->d_k, p.slot_floats = p.state + (size_t)s->odd;
    p.q = random_floats(r, n * p.qk_row, 1), p.k = random_floats(r, n * p.qk_row, 1);
    p.v = random_floats(r, n * p.v_row, 2);
    p.decay = floats(n * heads), p.beta = floats(n * heads);
    fill_gates(r, &p);
    set_lengths(p.q, s->n, s->n_k_heads, s->d_k, 1 / sqrtf((float)s->d_k), 0);
    set_lengths(p.k, s->n, s->n_k_heads, s->d_k, 1, s->gates == ONE_KEY);
    p.slots = random_floats(r, N_SLOTS * p.slot_floats, 1);
    p.out = floats(n * p.v_row);
    return p;
}

static Prompt prompt_copy(const Prompt *from)
{
    Prompt p = *from;
    p.slots = floats(N_SLOTS * p.slot_floats);
    memcpy(p.slots, from->slots, N_SLOTS * p.slot_floats * sizeof(float));
    p.out = floats((size_t)p.s.n * p.v_row);
    return p;
}

static void prompt_free_results(Prompt *p)
{
    free(p->slots), free(p->out);
}

static void prompt_free(Prompt *p)
{
    prompt_free_results(p);
    free(p->q), free(p->k), free(p->v), free(p->decay), free(p->beta);
}

/* Rows at .. at + n, from slot src to slot dst. */
static void run_delta(Backend *be, Prompt *p, int at, int n, int src, int dst, int prefill)
{
    int32_t *from = ints((size_t)n), *to = ints((size_t)n);
    size_t row = (size_t)at, heads = (size_t)p->s.n_v_heads;
    for (int i = 0; i < n; i++)
        from[i] = i ? dst : src, to[i] = dst;
    SlotLayer slots = {(unsigned char *)p->slots, p->slot_floats * sizeof(float), 0, 0};
    be->gated_delta(be, &(GatedDelta){.n = n,
                                      .n_k_heads = p->s.n_k_heads,
                                      .n_v_heads = p->s.n_v_heads,
                                      .d_k = p->s.d_k,
                                      .d_v = p->s.d_v,
                                      .q = p->q + row * p->qk_row,
                                      .k = p->k + row * p->qk_row,
                                      .v = p->v + row * p->v_row,
                                      .decay = p->decay + row * heads,
                                      .beta = p->beta + row * heads,
                                      .src = from,
                                      .dst = to,
                                      .slots = slots,
                                      .out = p->out + row * p->v_row,
                                      .prefill = prefill});
    free(from), free(to);
}

/* Each head's state of all slots, n_rows x n_cols, n_cols x n_rows. */
static void transpose_states(Prompt *p, int n_rows, int n_cols)
{
    size_t n = (size_t)n_rows * (size_t)n_cols;
    float *old = floats(n);
    for (int i = 0; i < N_SLOTS * p->s.n_v_heads; i++) {
        size_t slot = (size_t)(i / p->s.n_v_heads), head = (size_t)(i % p->s.n_v_heads);
        float *state = p->slots + slot * p->slot_floats + head * n;
        memcpy(old, state, n * sizeof *old);
        for (int r = 0; r < n_rows; r++)
            for (int c = 0; c < n_cols; c++)
                state[c * n_rows + r] = old[r * n_cols + c];
    }
    free(old);
}

static void check_same_delta(const Prompt *got, const Prompt *want, int n, const char *what,
                             uint64_t seed)
{
    assert_true(same_bits(what, got->out, want->out, (size_t)n * want->v_row, seed));
    if (n < want->s.n) return;
    assert_true(same_bits(what, got->slots, want->slots, N_SLOTS * want->slot_floats, seed));
}

/* In passes of `blocks` blocks; the first leaves slot FROM, the others stay in TO. */
static void check_cut(Backend *be, const Prompt *start, const Prompt *want, int blocks,
                      const char *what, uint64_t seed)
{
    Prompt got = prompt_copy(start);
    for (int at = 0, n; at < got.s.n; at += n) {
        n = got.s.n - at < blocks * PREFILL_BLOCK ? got.s.n - at : blocks * PREFILL_BLOCK;
        simt_reverse(at / PREFILL_BLOCK % 2);
        run_delta(be, &got, at, n, at ? TO : FROM, TO, 1);
    }
    simt_reverse(0);
    check_same_delta(&got, want, got.s.n, what, seed);
    prompt_free_results(&got);
}

/* Its first n rows alone give the same; in place, the slot it starts from is the one it leaves. */
static void check_prefix(Backend *be, const Prompt *start, const Prompt *want, int n,
                         const char *what, uint64_t seed)
{
    Prompt got = prompt_copy(start);
    run_delta(be, &got, 0, n, FROM, FROM, 1);
    assert_true(same_bits(what, got.out, want->out, (size_t)n * want->v_row, seed));
    if (n == want->s.n)
        assert_true(same_bits(what, got.slots + FROM * got.slot_floats,
                              want->slots + TO * want->slot_floats, got.state, seed));
    prompt_free_results(&got);
}

/*
 * Against ref. A GPU's products leave out 2^-17 of |a| |b| each, some 1e-5 of the largest value in
 * the end; keys that are far from orthogonal make more of it in the triangular system, and 64 rows
 * of few dimensions, or of one key, are the worst that there is. One term where two are due would
 * be 2^-9. Others compute as they do without being told, within what test_recurrence allows.
 */
static void check_near_delta(int b, const Prompt *got, const Prompt *want, uint64_t seed)
{
    size_t n = (size_t)want->s.n * want->v_row, all = N_SLOTS * want->slot_floats;
    double out = largest(want->out, n), state = largest(want->slots, all);
    double unit = 0x1p-24 * (want->s.d_k + 16) * (want->s.n > 12 ? want->s.n : 12);
    double limit = is_gpu(b) ? 1e-4 : unit;
    assert_true(near_all(about("prompt", b), got->out, want->out, n, limit, limit * out, seed));
    assert_true(
        near_all(about("state", b), got->slots, want->slots, all, limit, limit * state, seed));
}

static void check_delta(int b, const Prompt *start, const Prompt *want, uint64_t seed)
{
    Prompt own = prompt_copy(start), got, plain;
    int n = start->s.n;
    if (is_gpu(b)) transpose_states(&own, own.s.d_k, own.s.d_v);
    got = prompt_copy(&own), plain = prompt_copy(&own);
    run_delta(backend[b], &got, 0, n, FROM, TO, 1);
    for (int blocks = 1; blocks * PREFILL_BLOCK < n; blocks *= 2)
        check_cut(backend[b], &own, &got, blocks, about("cut", b), seed);
    check_prefix(backend[b], &own, &got, n, about("in place", b), seed);
    if (n > 20) check_prefix(backend[b], &own, &got, n - 20, about("shorter", b), seed);
    if (!is_gpu(b)) {
        run_delta(backend[b], &plain, 0, n, FROM, TO, 0);
        check_same_delta(&plain, &got, n, about("without being told", b), seed);
    } else {
        transpose_states(&got, got.s.d_v, got.s.d_k);
    }
    check_near_delta(b, &got, want, seed);
    prompt_free_results(&own);
    prompt_free_results(&got);
    prompt_free_results(&plain);
}

static void test_delta(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof delta_cases / sizeof *delta_cases; i++) {
        Rng r = rng_new(900 + i);
        Prompt start = prompt_new(&r, &delta_cases[i]);
        Prompt want = prompt_copy(&start);
        run_delta(ref, &want, 0, want.s.n, FROM, TO, 1);
        for (int b = 0; b < n_backends; b++)
            if (b == leader(b)) check_delta(b, &start, &want, r.seed);
        prompt_free_results(&want);
        prompt_free(&start);
    }
}

/* ---- attention ---- */

typedef struct {
    int n_heads, n_kv_heads, head_dim, page_tokens;
    int start, n, first; /* positions start .. start + n - 1; the first key */
    int lead; /* elements of a page before K: with 8 rows of either type may lie on 16 bytes */
} AttentionCase;

static const AttentionCase attention_cases[] = {
    {1, 1, 4, 16, 0, 1, 0, 1},       {3, 1, 24, 5, 0, 70, 0, 1},
    {2, 2, 40, 7, 64, 100, 3, 8},    {2, 1, 256, 16, 0, 130, 0, 8},
    {2, 2, 128, 32, 64, 200, 1, 8},  {1, 1, 256, 64, 128, 140, 65, 1},
    {8, 1, 64, 16, 192, 65, 130, 1}, {3, 3, 100, 10, 64, 64, 0, 8},
    {5, 1, 300, 8, 64, 20, 1, 8},    {1, 1, 512, 8, 0, 20, 0, 1},
    {150, 1, 8, 16, 64, 3, 0, 8},    {12, 2, 256, 16, 256, 9, 40, 8},
    {4, 2, 128, 16, 64, 80, 0, 1},   {6, 1, 192, 16, 64, 40, 50, 8},
    {3, 1, 72, 8, 64, 129, 10, 8},
};

/* A prompt's rows, all K and V where they belong. */
typedef struct {
    AttentionCase s;
    int n_pages;
    size_t row, page_floats; /* of K in one position; of a page */
    float *q, *qg, *pages;   /* values that bf16 holds too */
    uint16_t *pages_bf16;    /* the same; NULL: those in f32 are read */
    int32_t *table, *seq, *pos, *base, *parent, *kv_row;
    float *out; /* results */
} Paged;

static float *key_at(const Paged *p, int t)
{
    size_t page = (size_t)p->table[p->n_pages + t / p->s.page_tokens];
    return p->pages + page * p->page_floats + p->s.lead + (size_t)(t % p->s.page_tokens) * p->row;
}

/* NaN in K and V of positions begin .. end - 1. */
static void poison(Paged *p, int begin, int end)
{
    for (int t = begin; t < end; t++)
        for (size_t i = 0; i < p->row; i++)
            key_at(p, t)[i] = key_at(p, t)[(size_t)p->s.page_tokens * p->row + i] = NAN;
}

/* Sequence 1 of two, pages in any order; NaN in what lies before `first` and after the prompt. */
static Paged paged_new(Rng *r, const AttentionCase *s)
{
    Paged p = {.s = *s};
    size_t n = (size_t)s->n, all = n * (size_t)(s->n_heads * s->head_dim);
    p.row = (size_t)(s->n_kv_heads * s->head_dim);
    p.n_pages = (s->start + s->n) / s->page_tokens + 2;
    p.page_floats = (size_t)s->lead + 2 * (size_t)s->page_tokens * p.row;
    p.q = random_floats(r, all, 3);
    p.qg = random_floats(r, 2 * all, 3);
    size_t elements = 2 * (size_t)p.n_pages * p.page_floats;
    p.pages = random_floats(r, elements, 2);
    for (size_t i = 0; i < elements; i++)
        p.pages[i] = bf16_to_float(bf16_from_float(p.pages[i]));
    p.table = ints(2 * (size_t)p.n_pages);
    for (int i = 0; i < 2 * p.n_pages; i++) {
        int j = rng_int(r, i + 1);
        p.table[i] = p.table[j], p.table[j] = i;
    }
    p.seq = ints(n), p.pos = ints(n), p.base = ints(n), p.parent = ints(n), p.kv_row = ints(n);
    for (int i = 0; i < s->n; i++) {
        p.seq[i] = 1;
        p.pos[i] = p.kv_row[i] = s->start + i;
        p.base[i] = p.pos[i] + 1;
        p.parent[i] = i - 1;
    }
    poison(&p, 0, s->first);
    poison(&p, s->start + s->n, p.n_pages * s->page_tokens);
    p.out = floats(all);
    return p;
}

static void paged_free(Paged *p)
{
    free(p->q), free(p->qg), free(p->pages), free(p->table), free(p->seq), free(p->pos);
    free(p->base), free(p->parent), free(p->kv_row), free(p->out);
}

static void run_rows(Backend *be, const Paged *p, int at, int n, int prefill, float *out)
{
    size_t head = (size_t)at * (size_t)(p->s.n_heads * p->s.head_dim);
    size_t plane = (size_t)p->s.page_tokens * p->row;
    size_t element = p->pages_bf16 ? sizeof(uint16_t) : sizeof(float);
    KvLayer kv = {.type = p->pages_bf16 ? KV_BF16 : KV_F32,
                  .pages =
                      p->pages_bf16 ? (unsigned char *)p->pages_bf16 : (unsigned char *)p->pages,
                  .page_bytes = p->page_floats * element,
                  .k_offset = (size_t)p->s.lead * element,
                  .v_offset = ((size_t)p->s.lead + plane) * element,
                  .page_tokens = p->s.page_tokens,
                  .n_kv_heads = p->s.n_kv_heads,
                  .head_dim = p->s.head_dim,
                  .table = p->table,
                  .table_stride = p->n_pages};
    be->tree_attention(be, &(TreeAttention){.n = n,
                                            .n_heads = p->s.n_heads,
                                            .first = p->s.first,
                                            .row0 = at,
                                            .n_keys = p->s.start + at + n,
                                            .scale = 1 / sqrtf((float)p->s.head_dim),
                                            .q = p->q + head,
                                            .qg = p->qg + 2 * head,
                                            .seq = p->seq,
                                            .pos = p->pos,
                                            .base = p->base,
                                            .parent = p->parent,
                                            .kv_row = p->kv_row,
                                            .kv = kv,
                                            .out = out + head,
                                            .prefill = prefill});
}

/* Rows from begin on in passes of step rows, the last of which may have fewer. */
static void check_passes(int b, const Paged *p, int begin, int end, int step, const char *what,
                         uint64_t seed)
{
    size_t row = (size_t)(p->s.n_heads * p->s.head_dim);
    float *out = floats((size_t)p->s.n * row);
    for (int at = begin, n; at < end; at += n) {
        n = end - at < step ? end - at : step;
        simt_reverse(at / PREFILL_BLOCK % 2 == 0);
        run_rows(backend[b], p, at, n, 1, out);
    }
    simt_reverse(0);
    assert_true(same_bits(about(what, b), out + (size_t)begin * row, p->out + (size_t)begin * row,
                          (size_t)(end - begin) * row, seed));
    free(out);
}

/* Rows of bf16 give the bits of f32 rows that hold the same values. */
static void check_bf16(int b, const Paged *p, uint64_t seed)
{
    Paged narrow = *p;
    size_t elements = 2 * (size_t)p->n_pages * p->page_floats;
    narrow.pages_bf16 = mem_alloc(elements, sizeof *narrow.pages_bf16);
    for (size_t i = 0; i < elements; i++)
        narrow.pages_bf16[i] = bf16_from_float(p->pages[i]);
    check_passes(b, &narrow, 0, p->s.n, p->s.n, "bf16 attention", seed);
    mem_free(narrow.pages_bf16);
}

static void check_attention(int b, Paged *p, const float *want, uint64_t seed)
{
    size_t all = (size_t)(p->s.n * p->s.n_heads * p->s.head_dim);
    int n = p->s.n;
    run_rows(backend[b], p, 0, n, 1, p->out);
    /* scores of up to 12 sqrt(dim) are off by 1e-5 of that, so is p; |v| < 2 */
    assert_true(near_all(about("prompt's attention", b), p->out, want, all, 0, 2e-4, seed));
    for (int step = PREFILL_BLOCK; step < n; step += PREFILL_BLOCK)
        check_passes(b, p, 0, n, step, "attention cut", seed);
    check_passes(b, p, 0, n > 3 ? n - 3 : n, n, "shorter attention", seed);
    check_bf16(b, p, seed);
    if (p->s.head_dim > 256) return;
    /* where a block cannot have as much shared memory rows are as decoding makes them */
    simt_limit_shared(SIMT_SHARED_ADA);
    run_rows(backend[b], p, 0, n, 1, p->out);
    simt_limit_shared(SIMT_SHARED_HOPPER);
    assert_true(near_all(about("prompt in small blocks", b), p->out, want, all, 0, 2e-4, seed));
    if (is_gpu(b)) return;
    float *plain = floats(all);
    run_rows(backend[b], p, 0, n, 0, plain);
    assert_true(same_bits(about("attention without being told", b), plain, p->out, all, seed));
    free(plain);
}

/* Rows of f32 that bf16 cannot hold, whose second terms count. */
static void check_fine(Rng *r, Paged *p)
{
    size_t all = (size_t)(p->s.n * p->s.n_heads * p->s.head_dim);
    float *want = floats(all);
    for (size_t i = 0; i < 2 * (size_t)p->n_pages * p->page_floats; i++)
        p->pages[i] += 0x1p-9f * rng_float(r);
    run_rows(ref, p, 0, p->s.n, 1, want);
    for (int b = 0; b < n_backends; b++) {
        if (b != leader(b)) continue;
        run_rows(backend[b], p, 0, p->s.n, 1, p->out);
        assert_true(near_all(about("fine rows", b), p->out, want, all, 0, 2e-4, r->seed));
    }
    free(want);
}

static void test_attention(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++) {
        Rng r = rng_new(950 + i);
        Paged p = paged_new(&r, &attention_cases[i]);
        float *want = floats((size_t)(p.s.n * p.s.n_heads * p.s.head_dim));
        run_rows(ref, &p, 0, p.s.n, 1, want);
        for (int b = 0; b < n_backends; b++)
            if (b == leader(b)) check_attention(b, &p, want, r.seed);
        check_fine(&r, &p);
        free(want);
        paged_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delta),
        cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests_name("prefill", tests, open_backends, close_backends);
}
