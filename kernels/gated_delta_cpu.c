/*
 * gated_delta_cpu.c: the recurrences of a gated DeltaNet layer.
 *
 * Both walk all rows in order for a part of the channels or columns, which never meet: conv_gates
 * takes one head of q, k or v at a time (so convolution and norm need one fork), gated_delta one
 * block of DELTA_COLS columns of one value head. A block of the state lives in a local array while
 * a chain runs: rows of S are d_v floats apart, which would fall on a few sets of L1. What a row
 * reads and writes lies far from what the last one did, so it is asked for ahead: the convolution
 * of a prompt takes 0.4 of the time, the recurrence 0.7. So is the block of S that is taken next
 * while this one is computed, by all passes over it, so that memory is busy all along: 0.7 of the
 * time for one row, 0.8 for 4, 0.9 for 16, 0.7 for 8 sequences of one row.
 *
 * Slots that rows of a tree leave would push all else out of the caches, each line read before it
 * is written: those that no row of the call reads are written past them. 16 rows that each leave a
 * slot take 0.4 of the time, the convolution too.
 *
 * The pass that makes S of row i already adds up S'k and S'q of row i + 1, as a pass that takes a
 * block does for its row, and out = decay P'q + (k'q) u. So a chain reads its block once per row,
 * and a leaf that leaves no state needs no pass but its parent's.
 * delta_fold has each row's u and needs no sum: S passes through registers once for all rows of a
 * path, at the memory's rate for a few (18 layers of 16 heads of 128 x 128 on two cores: 0.6 ms for
 * 4 rows, 1.8 for 16).
 *
 * Against the definition: f32 lanes over channels, so a dot over d_k rounds d_k times, relative to
 * sum |p k|, and S'q is two sums of its size; states pass that on scaled by decay and beta, both at
 * most 1.
 *
 * Zen 4, AVX-512, one core, 32 heads of 128 x 128: 50 us a row of a prompt (36 us is the floor of
 * its multiply-adds).
 */
#include "kernels/isa_ops.h"

#include <assert.h>
#include <math.h>

enum {
    DELTA_VECS = VEC_ISA == 512 ? 2 : 4,
    DELTA_COLS = DELTA_VECS * VEC_N,
    CONV_VECS = 2,  /* of channels that are convolved together */
    CONV_AHEAD = 8, /* rows from asking for one to its turn */
    DELTA_AHEAD = 2,
    DELTA_ROWS = VEC_ISA == 512 ? 8 : 2, /* of a block, unrolled */
    ASK_ROWS = 8,                        /* of a block, from asking ahead to asking again */
    ASK_PASSES = 8,                      /* over a block, at most, that ask for the next one */
    STREAMED_FLOATS = 1 << 18, /* of states that a call writes: from here on not into caches */
    FEW_ROWS = 16,             /* whose inputs are near: of the rows to come nothing is asked for */
    FOLD_VECS = 8,
    FOLD_COLS = FOLD_VECS * VEC_N,
};

static float *slot_at(const SlotLayer *s, int slot, size_t offset)
{
    return (float *)(void *)(s->base + (size_t)slot * s->slot_bytes + offset);
}

/* 1 if row i starts from the state that the row before it has made. */
INLINE int follows_row(const int32_t *src, const int32_t *dst, const int32_t *parent, int n, int i)
{
    if (i == 0 || i == n) return 0;
    return dst[i] < 0 ? parent[i] == i - 1 : src[i] == dst[i - 1];
}

/* 1 if what row i leaves may pass by the caches: a slot it has not read, nor a row soon after. */
static int is_left_alone(const int32_t *src, const int32_t *dst, int n, int i)
{
    int end = n - i > MAX_DRAFT_ROWS ? i + MAX_DRAFT_ROWS : n;
    if (dst[i] == src[i]) return 0;
    for (int j = i + 2; j < end; j++)
        if (src[j] == dst[i]) return 0;
    return 1;
}

/* 1 if a call leaves states that caches would not hold, and slots are aligned at `offset`. */
static int streams_slots(const SlotLayer *s, size_t offset, int64_t n_floats)
{
    size_t align = VEC_N * sizeof(float);
    return n_floats >= STREAMED_FLOATS && (uintptr_t)(s->base + offset) % align == 0 &&
           s->slot_bytes % align == 0;
}

/* Taps and inputs of CONV_VECS vectors of channels, oldest first. */
typedef Vec ConvVecs[MAX_CONV_WIDTH][CONV_VECS];

/* Taps of n channels, transposed. */
INLINE void load_taps(const float *conv_w, int width, int n, ConvVecs tap)
{
    UNROLL
    for (int v = 0; v < CONV_VECS; v++) {
        const float *w = conv_w + v * VEC_N * width;
        int left = n - v * VEC_N;
        Vec four[4];
        if (width == 4 && left >= VEC_N) {
            v_load4(w, four);
            UNROLL
            for (int m = 0; m < 4; m++)
                tap[m][v] = four[m];
            continue;
        }
        for (int m = 0; m < width; m++) {
            float some[VEC_N] = {0};
            for (int c = 0; c < VEC_N && c < left; c++)
                some[c] = w[c * width + m];
            tap[m][v] = v_load(some);
        }
    }
}

INLINE void load_channels(const float *x, int n, Vec *p)
{
    UNROLL
    for (int v = 0; v < CONV_VECS; v++) {
        int left = n - v * VEC_N;
        p[v] = left > 0 ? v_load_some(x + v * VEC_N, left) : v_set(0);
    }
}

INLINE void store_channels(float *x, int n, const Vec *p)
{
    UNROLL
    for (int v = 0; v < CONV_VECS; v++)
        if (n > v * VEC_N) v_store_some(x + v * VEC_N, p[v], n - v * VEC_N);
}

/* The same, all of them, aligned, past the caches. */
INLINE void stream_channels(float *x, const Vec *p)
{
    UNROLL
    for (int v = 0; v < CONV_VECS; v++)
        v_stream(x + v * VEC_N, p[v]);
}

/* The inputs before row i: of a draft its ancestors' of the call, then, as all others', its slot's.
 */
INLINE void load_inputs(const ConvGates *a, int n_channels, int width, int i, int c, int n,
                        ConvVecs p)
{
    const float *old = slot_at(&a->slots, a->src[i], a->slots.conv_offset) + c;
    int at = width - 1, row = i;
    while (a->dst[i] < 0 && at > 0 && (row = a->parent[row]) >= 0)
        load_channels(a->qkv + (int64_t)row * n_channels + c, n, p[--at]);
    for (int m = width - 2; at > 0; m--)
        load_channels(old + (int64_t)m * n_channels, n, p[--at]);
}

/* Asks for what n channels from c on of few rows are computed from. */
INLINE void fetch_channels(const ConvGates *a, int n_channels, int width, int c, int n)
{
    if (c + n > n_channels || a->n > FEW_ROWS) return;
    const float *old = slot_at(&a->slots, a->src[0], a->slots.conv_offset) + c;
    prefetch_floats(a->conv_w + (int64_t)c * width, n * width);
    for (int m = 0; m < width - 1; m++)
        prefetch_floats(old + (int64_t)m * n_channels, n);
    for (int i = 0; i < a->n; i++)
        prefetch_floats(a->qkv + (int64_t)i * n_channels + c, n);
}

/*
 * Channels c .. c + n of all rows; row i's output goes to out + i * out_stride. The inputs of a
 * chain stay in registers: a slot is written by the last of its rows.
 */
INLINE void convolve(const ConvGates *a, int n_channels, int width, int c, int n, int streams,
                     float *out, int out_stride)
{
    ConvVecs tap, p;
    const int older = width - 1;
    fetch_channels(a, n_channels, width, c + n, n);
    load_taps(a->conv_w + (int64_t)c * width, width, n, tap);
    for (int i = 0; i < a->n; i++) {
        Vec y[CONV_VECS];
        if (!follows_row(a->src, a->dst, a->parent, a->n, i))
            load_inputs(a, n_channels, width, i, c, n, p);
        const float *x = a->qkv + (int64_t)i * n_channels + c;
        load_channels(x, n, p[older]);
        if (i + CONV_AHEAD < a->n) {
            prefetch_floats(x + (int64_t)CONV_AHEAD * n_channels, n);
            prefetch_floats(out + (int64_t)(i + CONV_AHEAD) * out_stride, n);
        }
        UNROLL
        for (int v = 0; v < CONV_VECS; v++) {
            y[v] = v_mul(tap[0][v], p[0][v]);
            UNROLL
            for (int m = 1; m < width; m++)
                y[v] = v_fma(tap[m][v], p[m][v], y[v]);
            y[v] = v_silu(y[v]);
            UNROLL
            for (int m = 0; m < older; m++)
                p[m][v] = p[m + 1][v];
        }
        store_channels(out + (int64_t)i * out_stride, n, y);
        int goes_on = follows_row(a->src, a->dst, a->parent, a->n, i + 1);
        if (a->dst[i] < 0 || (goes_on && a->dst[i + 1] == a->dst[i])) continue;
        float *now = slot_at(&a->slots, a->dst[i], a->slots.conv_offset) + c;
        int is_streamed = streams && is_left_alone(a->src, a->dst, a->n, i);
        for (int m = 0; m < older; m++, now += n_channels) {
            if (is_streamed)
                stream_channels(now, p[m]);
            else
                store_channels(now, n, p[m]);
        }
    }
}

/* x = x / sqrt(sum x^2 + 1e-6) * scale */
static void l2_norm(float *x, int dim, float scale)
{
    Vec sum = v_set(0);
    for (int k = 0; k < dim; k += VEC_N) {
        Vec xk = v_load_some(x + k, dim - k);
        sum = v_fma(xk, xk, sum);
    }
    Vec factor = v_set(scale / sqrtf(v_sum(sum) + 1e-6f));
    for (int k = 0; k < dim; k += VEC_N)
        v_store_some(x + k, v_mul(v_load_some(x + k, dim - k), factor), dim - k);
}

/* A head of q, k or v: dim channels from c. */
static void conv_head(const ConvGates *a, int n_channels, int c, int dim, int streams, float *out,
                      int out_stride)
{
    enum { STEP = CONV_VECS * VEC_N, USUAL = 4 };
    for (int d = 0; d < dim; d += STEP) {
        int n = dim - d < STEP ? dim - d : STEP;
        if (a->width == USUAL && n == STEP)
            convolve(a, n_channels, USUAL, c + d, STEP, streams, out + d, out_stride);
        else
            convolve(a, n_channels, a->width, c + d, n, 0, out + d, out_stride);
    }
}

static void gates(const ConvGates *a, int h)
{
    for (int i = 0; i < a->n; i++) {
        int64_t g = (int64_t)i * a->n_v_heads + h;
        float u = a->a[g] + a->dt_bias[h];
        a->beta[g] = 1 / (1 + expf(-a->b[g]));
        a->decay[g] = expf(a->a_coef[h] * (u > 20 ? u : log1pf(expf(u))));
    }
}

static void conv_gates_part(const void *arg, int part, int n_parts)
{
    const ConvGates *a = arg;
    int n_k = a->n_k_heads, d_qk = n_k * a->d_k, d_vs = a->n_v_heads * a->d_v;
    int n_channels = 2 * d_qk + d_vs;
    float q_scale = 1 / sqrtf((float)a->d_k);
    int64_t n_floats = (int64_t)a->n * a->n_v_heads * a->d_k * a->d_v;
    int streams = a->d_k % VEC_N == 0 && a->d_v % VEC_N == 0 &&
                  streams_slots(&a->slots, a->slots.conv_offset, n_floats);
    int64_t begin, end;
    cpu_split(2 * n_k + a->n_v_heads, part, n_parts, &begin, &end);
    for (int u = (int)begin; u < (int)end; u++) {
        if (u >= 2 * n_k) {
            int h = u - 2 * n_k;
            conv_head(a, n_channels, 2 * d_qk + h * a->d_v, a->d_v, streams, a->v + h * a->d_v,
                      d_vs);
            gates(a, h);
            continue;
        }
        float *out = u < n_k ? a->q + u * a->d_k : a->k + (u - n_k) * a->d_k;
        conv_head(a, n_channels, u * a->d_k, a->d_k, streams, out, d_qk);
        for (int i = 0; i < a->n; i++)
            l2_norm(out + (int64_t)i * d_qk, a->d_k, u < n_k ? q_scale : 1);
    }
    if (streams) v_stream_end();
}

void ISA_NAME(conv_gates)(Threads *t, const ConvGates *a)
{
    int n_channels = 2 * a->n_k_heads * a->d_k + a->n_v_heads * a->d_v;
    assert(a->width >= 1 && a->width <= MAX_CONV_WIDTH);
    cpu_share(t, (int64_t)(a->n + 2) * n_channels * 4, conv_gates_part, a);
}

/* One block of columns of one head: the state and what it needs of each row. */
typedef struct {
    const GatedDelta *a;
    int head, key_head, col, n_cols, streams;
    const float *after;   /* the block of the next unit, NULL: none */
    const float *ahead;   /* what is left of the block that is taken next: so many rows, */
    int left_ahead, asks; /* of which each ASK_ROWS rows ask for a few */
    _Alignas(64) float s[MAX_D_K][DELTA_COLS];
    float seen_k[DELTA_COLS], seen_q[DELTA_COLS]; /* P'k and P'q of the row to come */
    float kq[MAX_DRAFT_ROWS]; /* k'q of the rows, where there are no more of them */
} Block;

static float *block_in_slot(const Block *b, int slot)
{
    const GatedDelta *a = b->a;
    return slot_at(&a->slots, slot, a->slots.state_offset) + (int64_t)b->head * a->d_k * a->d_v +
           b->col;
}

static const float *key_row(const Block *b, const float *of, int i)
{
    const GatedDelta *a = b->a;
    return of + ((int64_t)i * a->n_k_heads + b->key_head) * a->d_k;
}

static int follows(const GatedDelta *a, int i)
{
    return follows_row(a->src, a->dst, a->parent, a->n, i);
}

/* A row of the block in the layout of the slot; lanes past n_cols read as zero, are not written. */
INLINE Vec load_cols(const float *row, int j, int n_cols)
{
    int n = n_cols - j * VEC_N;
    return n >= VEC_N ? v_load(row + j * VEC_N) : n > 0 ? v_load_n(row + j * VEC_N, n) : v_set(0);
}

INLINE void store_cols(float *row, int j, int n_cols, Vec x)
{
    int n = n_cols - j * VEC_N;
    if (n > 0) v_store_some(row + j * VEC_N, x, n);
}

/* P'k and P'q of a row as they add up. */
typedef struct {
    Vec k[DELTA_VECS], q[DELTA_VECS];
} Sums;

INLINE void clear_sums(Sums *sum)
{
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++)
        sum->k[j] = sum->q[j] = v_set(0);
}

INLINE void keep_sums(Block *b, const Sums *sum)
{
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++) {
        v_store(b->seen_k + j * VEC_N, sum->k[j]);
        v_store(b->seen_q + j * VEC_N, sum->q[j]);
    }
}

/* Asks for the next rows of the block that is to come. */
INLINE void ask_ahead(Block *b)
{
    for (int m = 0; m < b->asks && b->left_ahead > 0; m++, b->left_ahead--) {
        for (int c = 0; c < DELTA_COLS; c += 16)
            __builtin_prefetch(b->ahead + c, 0, 2);
        b->ahead += b->a->d_v;
    }
}

/* Where a state goes beside the block. */
typedef enum { NOWHERE, CACHED, STREAMED } Place;

/* A pass over the block: P is taken, or becomes S. */
typedef struct {
    const float *from; /* rows of P, from_stride apart */
    int from_stride;
    float *to; /* rows of S, to_stride apart */
    int to_stride;
    const float *k, *next_k, *next_q; /* this row's, and those of the row to come */
    Vec decay, u[DELTA_VECS];
} Pass;

INLINE void load_row(Block *b, const Pass *p, int r, int is_kept, int n_cols, Sums *sum)
{
    const float *from = p->from + (int64_t)r * p->from_stride;
    Vec kr = v_set(p->next_k[r]), qr = v_set(p->next_q[r]);
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++) {
        Vec x = load_cols(from, j, n_cols);
        if (is_kept) v_store(b->s[r] + j * VEC_N, x);
        sum->k[j] = v_fma(x, kr, sum->k[j]);
        sum->q[j] = v_fma(x, qr, sum->q[j]);
    }
}

/* goes_on: the next row starts from S. It, is_kept and place are constants where they are given. */
INLINE void step_row(Block *b, const Pass *p, int r, int goes_on, Place place, int n_cols,
                     Sums *sum)
{
    Vec kr = v_set(p->k[r]), nk = v_set(0), nq = v_set(0);
    float *to = place != NOWHERE ? p->to + (int64_t)r * p->to_stride : NULL;
    if (goes_on) nk = v_set(p->next_k[r]), nq = v_set(p->next_q[r]);
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++) {
        Vec x = v_fma(kr, p->u[j], v_mul(p->decay, v_load(b->s[r] + j * VEC_N)));
        if (goes_on) {
            sum->k[j] = v_fma(x, nk, sum->k[j]);
            sum->q[j] = v_fma(x, nq, sum->q[j]);
            v_store(b->s[r] + j * VEC_N, x);
        }
        if (place == CACHED) store_cols(to, j, n_cols, x);
        if (place == STREAMED) v_stream(to + j * VEC_N, x);
    }
}

INLINE void load_pass(Block *b, const Pass *p, int is_kept, int n_cols)
{
    int d_k = b->a->d_k, r = 0;
    Sums sum;
    clear_sums(&sum);
    for (; r + DELTA_ROWS <= d_k; r += DELTA_ROWS) {
        if (!(r % ASK_ROWS)) ask_ahead(b);
        UNROLL
        for (int m = 0; m < DELTA_ROWS; m++)
            load_row(b, p, r + m, is_kept, n_cols, &sum);
    }
    for (; r < d_k; r++)
        load_row(b, p, r, is_kept, n_cols, &sum);
    keep_sums(b, &sum);
}

INLINE void step_pass(Block *b, const Pass *p, int goes_on, Place place, int n_cols)
{
    int d_k = b->a->d_k, r = 0;
    Sums sum;
    clear_sums(&sum);
    for (; r + DELTA_ROWS <= d_k; r += DELTA_ROWS) {
        if (!(r % ASK_ROWS)) ask_ahead(b);
        UNROLL
        for (int m = 0; m < DELTA_ROWS; m++)
            step_row(b, p, r + m, goes_on, place, n_cols, &sum);
    }
    for (; r < d_k; r++)
        step_row(b, p, r, goes_on, place, n_cols, &sum);
    if (goes_on) keep_sums(b, &sum);
}

/*
 * Blocks of rows that left no state and have a child to come that is not the next row, the deepest
 * last. Such a row has a child more than the path below it holds rows: so half the rows at most.
 */
typedef struct {
    int n;
    _Alignas(64) float s[MAX_DRAFT_ROWS / 2][MAX_D_K * DELTA_COLS];
} SavedBlocks;

/* 1 if row i, which leaves no state, has a child after row `last`. */
static int has_child_after(const GatedDelta *a, int i, int last)
{
    for (int j = last + 1; j < a->n && a->dst[j] < 0 && a->parent[j] >= i; j++)
        if (a->parent[j] == i) return 1;
    return 0;
}

static int is_from_saved(const GatedDelta *a, int i)
{
    return a->dst[i] < 0 && a->parent[i] >= 0;
}

/* 1 if the state of row i is wanted, in the block or elsewhere. */
static int is_wanted(const GatedDelta *a, int i)
{
    return a->dst[i] >= 0 || follows(a, i + 1) || has_child_after(a, i, i + 1);
}

/* Row i takes a block from a slot: until the next one is taken, passes share the asking for it. */
static void aim_ahead(Block *b, int i)
{
    const GatedDelta *a = b->a;
    int next = i + 1, passes = 1;
    while (next < a->n && (follows(a, next) || is_from_saved(a, next)))
        next++;
    for (int m = i; m < next && passes < ASK_PASSES; m++)
        passes += is_wanted(a, m);
    b->ahead = next < a->n ? block_in_slot(b, a->src[next]) : b->after;
    b->left_ahead = b->ahead ? a->d_k : 0;
    b->asks = (ASK_ROWS + passes - 1) / passes;
}

/* The block that row i, which follows none, starts from. */
INLINE void fetch_block(Block *b, SavedBlocks *saved, int i, int n_cols)
{
    const GatedDelta *a = b->a;
    int is_saved = is_from_saved(a, i);
    assert(!is_saved || saved->n > 0);
    Pass p = {.next_k = key_row(b, a->k, i), .next_q = key_row(b, a->q, i)};
    p.from = is_saved ? saved->s[saved->n - 1] : block_in_slot(b, a->src[i]);
    p.from_stride = is_saved ? DELTA_COLS : a->d_v;
    if (!is_saved) aim_ahead(b, i);
    if (is_wanted(a, i))
        load_pass(b, &p, 1, n_cols);
    else
        load_pass(b, &p, 0, n_cols);
    if (is_saved && !has_child_after(a, a->parent[i], i)) saved->n--;
}

/* Where the state of row i goes beside the block. */
static Place place_for_block(const Block *b, SavedBlocks *saved, int i, Pass *p)
{
    const GatedDelta *a = b->a;
    p->to_stride = a->dst[i] < 0 ? DELTA_COLS : a->d_v;
    p->to = NULL;
    if (a->dst[i] < 0) {
        if (!has_child_after(a, i, i + 1)) return NOWHERE;
        assert(saved->n < MAX_DRAFT_ROWS / 2);
        p->to = saved->s[saved->n++];
        return CACHED;
    }
    /* in place: the slot is only read again by the rows of this chain, from the block */
    int stays = follows(a, i + 1) && a->dst[i + 1] == a->dst[i];
    if (stays) return NOWHERE;
    p->to = block_in_slot(b, a->dst[i]);
    if (!b->streams || b->n_cols < DELTA_COLS) return CACHED;
    return is_left_alone(a->src, a->dst, a->n, i) ? STREAMED : CACHED;
}

/* Asks for what a later row reads and writes. */
INLINE void fetch_row(const Block *b, int i, int n_cols)
{
    const GatedDelta *a = b->a;
    int64_t at = ((int64_t)i * a->n_v_heads + b->head) * a->d_v + b->col;
    prefetch_floats(a->v + at, n_cols);
    prefetch_floats(key_row(b, a->k, i), a->d_k);
    prefetch_floats(a->out + at, n_cols);
    prefetch_floats(key_row(b, a->q, i), a->d_k);
}

/* k'q of row i. */
static float key_dot(const Block *b, int i)
{
    const float *k = key_row(b, b->a->k, i), *q = key_row(b, b->a->q, i);
    Vec sum = v_set(0);
    for (int r = 0, left = b->a->d_k; left > 0; r += VEC_N, left -= VEC_N)
        sum = v_fma(v_load_some(k + r, left), v_load_some(q + r, left), sum);
    return v_sum(sum);
}

/* u and the output of row i: S'q = a P'q + (k'q) u. */
INLINE void answer_row(Block *b, int i, Pass *p, int n_cols)
{
    const GatedDelta *a = b->a;
    int64_t of_head = (int64_t)i * a->n_v_heads + b->head;
    float *v = a->v + of_head * a->d_v + b->col, *out = a->out + of_head * a->d_v + b->col;
    p->k = key_row(b, a->k, i);
    p->decay = v_set(a->decay[of_head]);
    Vec beta = v_set(a->beta[of_head]);
    Vec kq = v_set(a->n <= MAX_DRAFT_ROWS ? b->kq[i] : key_dot(b, i));
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++) {
        Vec m = v_mul(p->decay, v_load(b->seen_k + j * VEC_N));
        p->u[j] = v_mul(beta, v_sub(load_cols(v, j, n_cols), m));
        Vec old = v_mul(p->decay, v_load(b->seen_q + j * VEC_N));
        if (a->dst[i] < 0) store_cols(v, j, n_cols, p->u[j]);
        store_cols(out, j, n_cols, v_fma(kq, p->u[j], old));
    }
}

INLINE void walk_rows(Block *b, SavedBlocks *saved, int n_cols)
{
    const GatedDelta *a = b->a;
    saved->n = 0;
    for (int i = 0; i < a->n; i++) {
        Pass p;
        int goes_on = follows(a, i + 1);
        if (!follows(a, i)) fetch_block(b, saved, i, n_cols);
        if (a->n > FEW_ROWS && i + DELTA_AHEAD < a->n) fetch_row(b, i + DELTA_AHEAD, n_cols);
        answer_row(b, i, &p, n_cols);
        Place place = place_for_block(b, saved, i, &p);
        p.next_k = key_row(b, a->k, i + goes_on);
        p.next_q = key_row(b, a->q, i + goes_on);
        if (goes_on && place == NOWHERE) step_pass(b, &p, 1, NOWHERE, n_cols);
        if (goes_on && place == CACHED) step_pass(b, &p, 1, CACHED, n_cols);
        if (goes_on && place == STREAMED) step_pass(b, &p, 1, STREAMED, n_cols);
        if (!goes_on && place == CACHED) step_pass(b, &p, 0, CACHED, n_cols);
        if (!goes_on && place == STREAMED) step_pass(b, &p, 0, STREAMED, n_cols);
    }
}

static void place_block(Block *b, const GatedDelta *a, int unit)
{
    int n_blocks = (a->d_v + DELTA_COLS - 1) / DELTA_COLS;
    b->a = a;
    b->head = unit / n_blocks;
    b->key_head = b->head / (a->n_v_heads / a->n_k_heads);
    b->col = unit % n_blocks * DELTA_COLS;
    b->n_cols = a->d_v - b->col;
}

/* The products of a head's keys and queries, for all its blocks. */
static void multiply_keys(Block *b)
{
    for (int i = 0; i < b->a->n && b->a->n <= MAX_DRAFT_ROWS; i++)
        b->kq[i] = key_dot(b, i);
}

static int blocks_of_layer(int n_v_heads, int d_v)
{
    return n_v_heads * ((d_v + DELTA_COLS - 1) / DELTA_COLS);
}

static void gated_delta_part(const void *arg, int part, int n_parts)
{
    const GatedDelta *a = arg;
    int64_t begin, end;
    Block b;
    SavedBlocks saved;
    int64_t n_floats = (int64_t)a->n * a->n_v_heads * a->d_k * a->d_v;
    b.streams = a->d_v % VEC_N == 0 && streams_slots(&a->slots, a->slots.state_offset, n_floats);
    cpu_split(blocks_of_layer(a->n_v_heads, a->d_v), part, n_parts, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        place_block(&b, a, (int)unit + 1);
        b.after = unit + 1 < end ? block_in_slot(&b, a->src[0]) : NULL;
        place_block(&b, a, (int)unit);
        if (unit == begin || b.col == 0) multiply_keys(&b);
        if (b.n_cols >= DELTA_COLS)
            walk_rows(&b, &saved, DELTA_COLS); /* a constant: no masks in the loops */
        else
            walk_rows(&b, &saved, b.n_cols);
    }
    if (b.streams) v_stream_end();
}

void ISA_NAME(gated_delta)(Threads *t, const GatedDelta *a)
{
    assert(a->d_k <= MAX_D_K);
    cpu_share(t, (int64_t)a->n * a->n_v_heads * a->d_k * a->d_v, gated_delta_part, a);
}

/* ---- delta_fold ---- */

/* One layer of a path. */
typedef struct {
    const DeltaFold *a;
    int length;
    const int32_t *row; /* [length] of this layer's records */
    const float *qkv, *k, *u, *decay;
    int from, slot;
    SlotLayer slots;
} LayerPath;

static LayerPath layer_path(const DeltaFold *a, int p, int layer)
{
    int64_t row = (int64_t)layer * a->layer_rows;
    int n_channels = 2 * a->n_k_heads * a->d_k + a->n_v_heads * a->d_v;
    LayerPath l = {.a = a,
                   .length = a->length[p],
                   .row = a->path + (int64_t)p * a->stride,
                   .qkv = a->qkv + row * n_channels,
                   .k = a->k + row * a->n_k_heads * a->d_k,
                   .u = a->u + row * a->n_v_heads * a->d_v,
                   .decay = a->decay + row * a->n_v_heads,
                   .from = a->from[p],
                   .slot = a->slot[p],
                   .slots = a->slots};
    l.slots.state_offset += (size_t)layer * a->layer_bytes;
    l.slots.conv_offset += (size_t)layer * a->layer_bytes;
    return l;
}

/*
 * What the rows of a path bring to one head, side by side: where they are rows of a pass they lie
 * some KiB apart, so that more than eight of them fall on the same sets of L1 (2.2 times the time).
 */
typedef struct {
    int length, d_k;
    float decay[MAX_DRAFT_ROWS], k[MAX_DRAFT_ROWS * MAX_D_K];
    _Alignas(64) float u[MAX_DRAFT_ROWS][FOLD_COLS];
} HeadPath;

/* n_cols columns of a head, whose rows pass through registers once; d_v floats from row to row. */
INLINE void fold_columns(const HeadPath *p, int n_cols, const float *from, float *to, int d_v)
{
    for (int r = 0; r < p->d_k; r++, from += d_v, to += d_v) {
        Vec s[FOLD_VECS];
        UNROLL
        for (int j = 0; j < FOLD_VECS; j++)
            s[j] = load_cols(from, j, n_cols);
        for (int i = 0; i < p->length; i++) {
            Vec decay = v_set(p->decay[i]), kr = v_set(p->k[i * p->d_k + r]);
            UNROLL
            for (int j = 0; j < FOLD_VECS; j++)
                s[j] = v_fma(kr, load_cols(p->u[i], j, n_cols), v_mul(decay, s[j]));
        }
        UNROLL
        for (int j = 0; j < FOLD_VECS; j++)
            store_cols(to, j, n_cols, s[j]);
    }
}

static void fold_head(const LayerPath *l, int head)
{
    const DeltaFold *a = l->a;
    int key_head = head / (a->n_v_heads / a->n_k_heads), d_v = a->d_v;
    size_t at = l->slots.state_offset + (size_t)head * (size_t)a->d_k * (size_t)d_v * sizeof(float);
    const float *from = slot_at(&l->slots, l->from, at);
    float *to = slot_at(&l->slots, l->slot, at);
    HeadPath p;
    p.length = l->length, p.d_k = a->d_k;
    assert(l->length <= MAX_DRAFT_ROWS && a->d_k <= MAX_D_K);
    for (int i = 0; i < l->length; i++) {
        const float *k = l->k + ((int64_t)l->row[i] * a->n_k_heads + key_head) * a->d_k;
        memcpy(p.k + i * a->d_k, k, (size_t)a->d_k * sizeof *k);
        p.decay[i] = l->decay[(int64_t)l->row[i] * a->n_v_heads + head];
    }
    for (int col = 0; col < d_v; col += FOLD_COLS) {
        int n_cols = d_v - col < FOLD_COLS ? d_v - col : FOLD_COLS;
        for (int i = 0; i < l->length; i++) {
            const float *u = l->u + ((int64_t)l->row[i] * a->n_v_heads + head) * d_v + col;
            memcpy(p.u[i], u, (size_t)n_cols * sizeof *u);
        }
        if (n_cols == FOLD_COLS)
            fold_columns(&p, FOLD_COLS, from + col, to + col, d_v); /* no masks in the loops */
        else
            fold_columns(&p, n_cols, from + col, to + col, d_v);
    }
}

/* The last inputs of both become the slot's; in place, ascending m reads a row before it goes. */
static void fold_inputs(const LayerPath *l)
{
    const DeltaFold *a = l->a;
    int n_channels = 2 * a->n_k_heads * a->d_k + a->n_v_heads * a->d_v, older = a->width - 1;
    const float *old = slot_at(&l->slots, l->from, l->slots.conv_offset);
    float *now = slot_at(&l->slots, l->slot, l->slots.conv_offset);
    for (int m = 0; m < older; m++) {
        int from = m + l->length;
        const float *x = from < older ? old + (int64_t)from * n_channels
                                      : l->qkv + (int64_t)l->row[from - older] * n_channels;
        memcpy(now + (int64_t)m * n_channels, x, (size_t)n_channels * sizeof *x);
    }
}

static void delta_fold_part(const void *arg, int part, int n_parts)
{
    const DeltaFold *a = arg;
    int units = a->n_v_heads + 1;
    int64_t begin, end;
    cpu_split((int64_t)a->n * a->n_layers * units, part, n_parts, &begin, &end);
    for (int64_t at = begin; at < end; at++) {
        int unit = (int)(at % units), layer = (int)(at / units % a->n_layers);
        LayerPath l = layer_path(a, (int)(at / units / a->n_layers), layer);
        if (!l.length) continue;
        if (unit < a->n_v_heads)
            fold_head(&l, unit);
        else
            fold_inputs(&l);
    }
}

void ISA_NAME(delta_fold)(Threads *t, const DeltaFold *a)
{
    cpu_share(t, (int64_t)a->n * a->n_layers * a->n_v_heads * a->d_k * a->d_v, delta_fold_part, a);
}
