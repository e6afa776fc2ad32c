/*
 * gated_delta_cpu.c: the recurrences of a gated DeltaNet layer.
 *
 * Both walk all rows in order for a part of the channels or columns, which never meet: conv_gates
 * takes one head of q, k or v at a time (so convolution and norm need one fork), gated_delta one
 * block of DELTA_COLS columns of one value head. A block of the state lives in a local array while
 * a chain runs: rows of S are d_v floats apart, which would fall on a few sets of L1. What a row
 * reads and writes lies far from what the last one did, so it is asked for ahead: the convolution
 * of a prompt takes 0.4 of the time, the recurrence 0.7. So is the next block of S while this one
 * is computed: 0.7 of the time for one row; of more, each of the first asks for its share, so that
 * memory is busy all along: 0.8 of the time for 4 rows, 0.9 for 16.
 *
 * The step of row i already adds up S'k for row i + 1, so a chain reads its block once per row.
 * delta_fold has each row's u and needs no sum: S passes through registers once for all rows of a
 * path, at the memory's rate for a few (18 layers of 16 heads of 128 x 128 on two cores: 0.6 ms for
 * 4 rows, 1.8 for 16).
 *
 * Against the definition: f32 lanes over channels, so a dot over d_k rounds d_k times, relative to
 * sum |p k|; states pass that on scaled by decay and beta, both at most 1.
 *
 * Zen 4, AVX-512, one core, 32 heads of 128 x 128: 50 us a row of a prompt (36 us is the floor of
 * its multiply-adds), 160 us a row of a tree whose rows all leave their 2 MiB, which is memory's
 * rate.
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
    DELTA_SHARES = 8, /* rows that ask for a share of the next block */
    FEW_ROWS = 16,    /* whose inputs are near: of the rows to come nothing is asked for */
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
INLINE void convolve(const ConvGates *a, int n_channels, int width, int c, int n, float *out,
                     int out_stride)
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
        for (int m = 0; m < older; m++)
            store_channels(now + (int64_t)m * n_channels, n, p[m]);
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
static void conv_head(const ConvGates *a, int n_channels, int c, int dim, float *out,
                      int out_stride)
{
    enum { STEP = CONV_VECS * VEC_N, USUAL = 4 };
    for (int d = 0; d < dim; d += STEP) {
        int n = dim - d < STEP ? dim - d : STEP;
        if (a->width == USUAL && n == STEP)
            convolve(a, n_channels, USUAL, c + d, STEP, out + d, out_stride);
        else
            convolve(a, n_channels, a->width, c + d, n, out + d, out_stride);
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
    int64_t begin, end;
    cpu_split(2 * n_k + a->n_v_heads, part, n_parts, &begin, &end);
    for (int u = (int)begin; u < (int)end; u++) {
        if (u >= 2 * n_k) {
            int h = u - 2 * n_k;
            conv_head(a, n_channels, 2 * d_qk + h * a->d_v, a->d_v, a->v + h * a->d_v, d_vs);
            gates(a, h);
            continue;
        }
        float *out = u < n_k ? a->q + u * a->d_k : a->k + (u - n_k) * a->d_k;
        conv_head(a, n_channels, u * a->d_k, a->d_k, out, d_qk);
        for (int i = 0; i < a->n; i++)
            l2_norm(out + (int64_t)i * d_qk, a->d_k, u < n_k ? q_scale : 1);
    }
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
    int head, col, n_cols;
    const float *ahead; /* the block to come */
    int n_asking;       /* rows that ask for it, a power of two; 0: none comes */
    _Alignas(64) float s[MAX_D_K][DELTA_COLS];
    float seen[DELTA_COLS]; /* S'k of the row to come */
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
    int key_head = b->head / (a->n_v_heads / a->n_k_heads);
    return of + ((int64_t)i * a->n_k_heads + key_head) * a->d_k;
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

/* Takes the block from where its rows are `stride` apart, and adds up S'k for the row of k. */
INLINE void load_block(Block *b, const float *from, int stride, const float *k, int n_cols)
{
    int d_k = b->a->d_k;
    Vec seen[DELTA_VECS];
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++)
        seen[j] = v_set(0);
    for (int r = 0; r < d_k; r++) {
        Vec kr = v_set(k[r]);
        UNROLL
        for (int j = 0; j < DELTA_VECS; j++) {
            Vec x = load_cols(from + (int64_t)r * stride, j, n_cols);
            v_store(b->s[r] + j * VEC_N, x);
            seen[j] = v_fma(x, kr, seen[j]);
        }
    }
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++)
        v_store(b->seen + j * VEC_N, seen[j]);
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

/* Asks for one row of a block that is to come. */
INLINE void prefetch_block_row(const float *at)
{
    for (int c = 0; c < DELTA_COLS; c += 16)
        __builtin_prefetch(at + c, 0, 2);
}

/*
 * Row i: new state, output, and S'k for the row whose key is next_k. The state goes to `to`, rows
 * `stride` apart; NULL: it is not wanted.
 */
INLINE void step_block(Block *b, int i, const float *next_k, float *to, int stride, int n_cols)
{
    const GatedDelta *a = b->a;
    int64_t of_head = (int64_t)i * a->n_v_heads + b->head;
    const float *q = key_row(b, a->q, i), *k = key_row(b, a->k, i);
    float *v = a->v + of_head * a->d_v + b->col;
    if (a->n > FEW_ROWS && i + DELTA_AHEAD < a->n) fetch_row(b, i + DELTA_AHEAD, n_cols);
    Vec decay = v_set(a->decay[of_head]), beta = v_set(a->beta[of_head]);
    Vec u[DELTA_VECS], sum[DELTA_VECS], seen[DELTA_VECS];
    const int asks = i < b->n_asking, between = b->n_asking - 1;
    const float *ahead = asks ? b->ahead + (int64_t)i * a->d_v : NULL;
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++) {
        Vec m = v_mul(decay, v_load(b->seen + j * VEC_N));
        u[j] = v_mul(beta, v_sub(load_cols(v, j, n_cols), m));
        if (a->dst[i] < 0) store_cols(v, j, n_cols, u[j]);
        sum[j] = seen[j] = v_set(0);
    }
    for (int r = 0; r < a->d_k; r++) {
        Vec kr = v_set(k[r]), qr = v_set(q[r]), nr = v_set(next_k[r]);
        if (asks && !(r & between)) prefetch_block_row(ahead + (int64_t)r * a->d_v);
        UNROLL
        for (int j = 0; j < DELTA_VECS; j++) {
            Vec x = v_fma(kr, u[j], v_mul(decay, v_load(b->s[r] + j * VEC_N)));
            sum[j] = v_fma(x, qr, sum[j]);
            seen[j] = v_fma(x, nr, seen[j]);
            v_store(b->s[r] + j * VEC_N, x);
            if (to) store_cols(to + (int64_t)r * stride, j, n_cols, x);
        }
    }
    UNROLL
    for (int j = 0; j < DELTA_VECS; j++) {
        v_store(b->seen + j * VEC_N, seen[j]);
        store_cols(a->out + of_head * a->d_v + b->col, j, n_cols, sum[j]);
    }
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

static int follows(const GatedDelta *a, int i)
{
    return follows_row(a->src, a->dst, a->parent, a->n, i);
}

/* The block that row i, which follows none, starts from. */
INLINE void fetch_block(Block *b, SavedBlocks *saved, int i, int n_cols)
{
    const GatedDelta *a = b->a;
    int is_saved = a->dst[i] < 0 && a->parent[i] >= 0;
    assert(!is_saved || saved->n > 0);
    const float *from = is_saved ? saved->s[saved->n - 1] : block_in_slot(b, a->src[i]);
    load_block(b, from, is_saved ? DELTA_COLS : a->d_v, key_row(b, a->k, i), n_cols);
    if (is_saved && !has_child_after(a, a->parent[i], i)) saved->n--;
}

/* Where the state of row i goes, NULL: nowhere but into the block. */
static float *place_for_block(const Block *b, SavedBlocks *saved, int i, int *stride)
{
    const GatedDelta *a = b->a;
    *stride = a->dst[i] < 0 ? DELTA_COLS : a->d_v;
    if (a->dst[i] < 0) {
        if (!has_child_after(a, i, i + 1)) return NULL;
        assert(saved->n < MAX_DRAFT_ROWS / 2);
        return saved->s[saved->n++];
    }
    /* in place: the slot is only read again by the rows of this chain, from the block */
    int stays = follows(a, i + 1) && a->dst[i + 1] == a->dst[i];
    return stays ? NULL : block_in_slot(b, a->dst[i]);
}

INLINE void walk_rows(Block *b, SavedBlocks *saved, int n_cols)
{
    const GatedDelta *a = b->a;
    saved->n = 0;
    for (int i = 0; i < a->n; i++) {
        if (!follows(a, i)) fetch_block(b, saved, i, n_cols);
        const float *next_k = key_row(b, a->k, follows(a, i + 1) ? i + 1 : i);
        int stride;
        float *to = place_for_block(b, saved, i, &stride);
        if (!to)
            step_block(b, i, next_k, NULL, 0, n_cols);
        else
            step_block(b, i, next_k, to, stride, n_cols);
    }
}

static void place_block(Block *b, const GatedDelta *a, int unit)
{
    int n_blocks = (a->d_v + DELTA_COLS - 1) / DELTA_COLS;
    b->a = a;
    b->head = unit / n_blocks;
    b->col = unit % n_blocks * DELTA_COLS;
    b->n_cols = a->d_v - b->col;
}

static int blocks_of_layer(int n_v_heads, int d_v)
{
    return n_v_heads * ((d_v + DELTA_COLS - 1) / DELTA_COLS);
}

/* Of n rows, how many share the asking for the next block. */
static int n_asking(int n)
{
    int rows = 1;
    while (rows < DELTA_SHARES && 2 * rows <= n)
        rows *= 2;
    return rows;
}

static void gated_delta_part(const void *arg, int part, int n_parts)
{
    const GatedDelta *a = arg;
    const int asking = n_asking(a->n);
    int64_t begin, end;
    Block b;
    SavedBlocks saved;
    cpu_split(blocks_of_layer(a->n_v_heads, a->d_v), part, n_parts, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        place_block(&b, a, (int)unit + 1);
        const float *ahead = unit + 1 < end ? block_in_slot(&b, a->src[0]) : NULL;
        place_block(&b, a, (int)unit);
        b.ahead = ahead;
        b.n_asking = ahead ? asking : 0;
        if (b.n_cols >= DELTA_COLS)
            walk_rows(&b, &saved, DELTA_COLS); /* a constant: no masks in the loops */
        else
            walk_rows(&b, &saved, b.n_cols);
    }
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
