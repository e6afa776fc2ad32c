/*
 * attention.cu: gated attention over a token tree and paged K, V, for rows that are no prompt's.
 *
 * prepare: a warp per head of a row. attend: a block per group of queries (a query is a row's
 * head), KV head and segment of the keys. merge: a block per head of a row.
 *
 * Segments are a function of a key's position alone. A block goes through its segment in tiles of
 * 64 keys by position and leaves maximum, total and sum of values for each of its queries; merge
 * adds a row's segments in an order that their number alone decides. What is done with a tile, and
 * why a query's bits do not depend on who shares its block, says attention_tile.h.
 *
 * Two kinds of blocks. Below a row's tail the key of a position is the same for all rows of a
 * sequence, and they have all keys of a segment: a block takes several rows and reads K and V once
 * for all. The tail is the segments from the one that holds base, or pos + 1 where base lies
 * behind that: there a row has a block of its own that gathers the row's ancestors into their
 * positions. So every key of a block is a key of each query whose result is stored. No query meets
 * a key that is not its own, not even with a weight of 0, for which NaN is no number; what the
 * other columns hold does not matter.
 *
 * While a tile's scores are made its V is on its way, and during its values the next tile's K.
 *
 * Bytes: K and V once per group of queries, 8 n_keys n_kv_heads head_dim, in bf16 4; partials are
 * 4 (head_dim + 2) a query and segment, written and read. Floor: 2 KiB a key and KV head of 256
 * dims, at 4.3 TB/s 31 us for 32,768 keys and two KV heads, in bf16 half. A tile of 64 bf16 keys
 * of 256 dims is 64 products a warp and scheduler for each 8 queries: at some 8 cycles each, 32
 * queries take 2,000 of the 3,600 cycles in which an SM's share of the bytes comes.
 */
#include "kernels/attention_tile.h"
#include "kernels/terms.h"

#include <assert.h>

enum {
    MAX_GROUP = 4,       /* of 8 queries, a block's */
    PAGED_GROUP = 2,     /* the same, where it reads K and V where they lie */
    TAIL_BLOCKS = 2,     /* a row: a tail of up to 64 keys lies in two segments */
    ENOUGH_BLOCKS = 264, /* two on each of 132 SMs */
    PREPARE_WARPS = 8,
    MERGE_GROUPS = 8,    /* of segments at most, each added by threads of its own */
    MERGE_LOADS = 8,     /* of 16 bytes, in flight per thread */
    MERGE_THREADS = 512, /* of a block at most */
};

/*
 * Widths of segments: 64 keys below position 2,048, 128 below 8,192, 256 below 32,768, 512 beyond.
 * A block works through its segment alone, so a width should stay near n_keys * n_kv_heads / 264
 * (two blocks on each of 132 SMs); it should be wide enough that a query's partial, as large as one
 * key, is little beside the K and V that its KV head's queries share. 1k keys are 16 segments, 8k
 * 80, 32k 176, 128k 368, 256k 624.
 */
enum {
    WIDTH_0 = 64,
    WIDTH_1 = 128,
    WIDTH_2 = 256,
    WIDE = MAX_KEYS,
    FROM_1 = 2048,
    FROM_2 = 8192,
    WIDE_FROM = 32768,
    SEGMENTS_1 = FROM_1 / WIDTH_0, /* before FROM_1, and so on */
    SEGMENTS_2 = SEGMENTS_1 + (FROM_2 - FROM_1) / WIDTH_1,
    SEGMENTS_WIDE = SEGMENTS_2 + (WIDE_FROM - FROM_2) / WIDTH_2,
};

/* The segment that position t lies in, and where a segment begins. */
SHARED_INLINE int segment_of(int t)
{
    if (t < FROM_1) return t / WIDTH_0;
    if (t < FROM_2) return SEGMENTS_1 + (t - FROM_1) / WIDTH_1;
    if (t < WIDE_FROM) return SEGMENTS_2 + (t - FROM_2) / WIDTH_2;
    return SEGMENTS_WIDE + (t - WIDE_FROM) / WIDE;
}
SHARED_INLINE int segment_begin(int s)
{
    if (s < SEGMENTS_1) return s * WIDTH_0;
    if (s < SEGMENTS_2) return FROM_1 + (s - SEGMENTS_1) * WIDTH_1;
    if (s < SEGMENTS_WIDE) return FROM_2 + (s - SEGMENTS_2) * WIDTH_2;
    return WIDE_FROM + (s - SEGMENTS_WIDE) * WIDE;
}

/* ---- prepare ---- */

/* A head in a warp: k = 32 i + lane is held[i], which is 0 beyond its end. */
template <int HELD>
static __device__ __forceinline__ void load_head(const float *x, int dim, float (&held)[HELD])
{
    UNROLL
    for (int i = 0; i < HELD; i++) {
        int k = i * WARP + warp_lane();
        held[i] = k < dim ? x[k] : 0.0f;
    }
}

template <int HELD, typename T>
static __device__ __forceinline__ void store_head(T *out, int dim, const float (&held)[HELD])
{
    UNROLL
    for (int i = 0; i < HELD; i++) {
        int k = i * WARP + warp_lane();
        if (k < dim) kv_store(out + k, held[i]);
    }
}

/* out = rope(norm(x) * w) for one head, by one warp; head: memory of its own for dim floats. */
template <int HELD, typename T>
static __device__ __forceinline__ void norm_rope(const AttentionPrepare &a, float (&x)[HELD],
                                                 const float (&w)[HELD], float first_freq,
                                                 int rope_pos, float *head, T *out)
{
    int dim = a.kv.head_dim, half = a.n_rot / 2;
    float sum = 0;
    UNROLL
    for (int i = 0; i < HELD; i++)
        sum = fmaf(x[i], x[i], sum);
    float scale = 1.0f / sqrtf(warp_sum(sum, WARP) / (float)dim + a.eps);
    UNROLL
    for (int i = 0; i < HELD; i++)
        x[i] = x[i] * scale * w[i];
    store_head(head, dim, x);
    warp_sync();
    for (int f = warp_lane(); f < half; f += WARP) {
        /* positions reach a million: cosf and sinf, which reduce their angle with care */
        float angle = (float)rope_pos * (f < WARP ? first_freq : a.inv_freq[f]);
        float c = cosf(angle) * a.rope_scale, s = sinf(angle) * a.rope_scale;
        kv_store(out + f, head[f] * c - head[f + half] * s);
        kv_store(out + f + half, head[f + half] * c + head[f] * s);
    }
    for (int k = 2 * half + warp_lane(); k < dim; k += WARP)
        kv_store(out + k, head[k]);
}

/* A warp asks for all that it needs at once: a store would hold up the loads behind it. */
template <int HELD, typename T>
static __global__ void __launch_bounds__(PREPARE_WARPS *WARP) prepare_kernel(AttentionPrepare a)
{
    __shared__ float heads[PREPARE_WARPS][HELD * WARP];
    int dim = a.kv.head_dim, n_kv = a.kv.n_kv_heads, per_row = a.n_heads + n_kv;
    int warp = (int)threadIdx.x / WARP;
    int64_t unit = (int64_t)blockIdx.x * PREPARE_WARPS + warp, i = unit / per_row;
    int h = (int)(unit % per_row), is_q = h < a.n_heads;
    float x[HELD], w[HELD], v[HELD];
    load_head(is_q ? a.q_norm : a.k_norm, dim, w);
    float first_freq = warp_lane() < a.n_rot / 2 ? a.inv_freq[warp_lane()] : 0.0f;
    grid_wait();
    if (i >= a.n) return;
    int rope_pos = a.rope_pos[i];
    if (is_q) {
        int64_t head = i * a.n_heads + h;
        load_head(a.qg + head * 2 * dim, dim, x);
        norm_rope(a, x, w, first_freq, rope_pos, heads[warp], a.q + head * dim);
        return;
    }
    h -= a.n_heads;
    int64_t from = (i * n_kv + h) * dim;
    load_head(a.k + from, dim, x);
    load_head(a.v + from, dim, v);
    unsigned char *row = a.kv.pages + kv_row_at<T>(a.kv, a.seq[i], a.kv_row[i], h);
    store_head((T *)(void *)(row + a.kv.v_offset), dim, v);
    norm_rope(a, x, w, first_freq, rope_pos, heads[warp], (T *)(void *)(row + a.kv.k_offset));
}

template <int HELD> static void launch_prepare(const CudaContext *c, const AttentionPrepare &a)
{
    int64_t units = (int64_t)a.n * (a.n_heads + a.kv.n_kv_heads);
    launch(c, dim3((unsigned)((units + PREPARE_WARPS - 1) / PREPARE_WARPS)), PREPARE_WARPS * WARP,
           0, a.kv.type == KV_BF16 ? prepare_kernel<HELD, Bf16> : prepare_kernel<HELD, float>, a);
}

extern "C" void CUDA_NAME(attention_prepare)(const CudaContext *c, const AttentionPrepare *a)
{
    assert(a->kv.head_dim <= MAX_HEAD_DIM && a->n_rot <= a->kv.head_dim);
    if (a->kv.head_dim <= MAX_HEAD_DIM / 2)
        launch_prepare<MAX_HEAD_DIM / 2 / WARP>(c, *a);
    else
        launch_prepare<MAX_HEAD_DIM / WARP>(c, *a);
}

/* ---- attend ---- */

typedef struct {
    TreeAttention a;
    float scale;     /* a.scale * log2(e): scores are powers of two */
    int row, n_rows; /* of this launch, of q and out */
    int n_segments;
    int per_kv;                  /* heads of a KV head */
    int block_rows, block_heads; /* queries of a block: rows x heads of a KV head */
    int head_parts, row_groups;  /* blocks for the heads of a KV head, for the rows */
    uint32_t inverse;            /* query / block_heads = query * inverse >> 16 */
    int q_aligned, kv_aligned;   /* heads lie on 16 bytes */
    float2 *sums;                /* [n_rows][n_heads][n_segments]: maximum and total */
    float *acc;                  /* the same [acc_dim]: sum of p v */
    int acc_dim;                 /* head_dim up to a multiple of 8 */
    int merge_groups;
} Plan;

/* Where a block is. */
typedef struct {
    int row, n_rows;            /* rows of q and out */
    uint32_t stored;            /* those whose keys these are, a bit each */
    int seq;                    /* of these */
    int kv_head, head, n_heads; /* the heads h = head .. of the rows, all on kv_head */
    int segment, from;          /* its first position */
    Keys keys;
    int base; /* below this key t is row t */
} Block;

/* What it does, one part after another: segments of a tail, or sequences of a segment. */
typedef struct {
    int tail;
    int segment, last, pos;            /* of a tail: the next, the last; the row's position */
    uint32_t near_parent, near_kv_row; /* of the row that lies warp_lane() before it */
    uint32_t rows;                     /* of the others: rows that have the segment, left to do */
    int first, seq;                    /* the first of all; the sequence of the lane's row */
} Parts;

/* ---- where the keys are ---- */

/* The tiles that the block's keys lie in. */
static __device__ __forceinline__ int tiles_begin(const Block &b)
{
    return b.keys.begin / TILE * TILE;
}
static __device__ __forceinline__ int tiles_end(const Block &b)
{
    return (b.keys.end + TILE - 1) / TILE * TILE;
}

/*
 * Of a tail, by one warp: kv_row of the ancestors in the segment. The 31 rows before this one are
 * asked for together; a row further back is a load for each step.
 */
static __device__ __forceinline__ void find_ancestors(const Plan &p, const Block &b,
                                                      const Parts &parts, int32_t *kv_row)
{
    const TreeAttention &a = p.a;
    int row = a.row0 + b.row, j = row, last = b.base > b.keys.begin ? b.base : b.keys.begin;
    for (int t = parts.pos; t >= last; t--) {
        int back = row - j, parent = (int)warp_shuffle(parts.near_parent, back % WARP);
        int own = (int)warp_shuffle(parts.near_kv_row, back % WARP);
        if (back >= WARP) {
            own = a.kv_row[j];
            parent = a.parent[j];
        }
        if (t < b.keys.end && warp_lane() == 0) kv_row[t - b.from] = own;
        j = parent;
    }
}

/* ancestor: memory for their rows in between. */
template <typename T>
static __device__ __forceinline__ void find_keys(const Plan &p, const Block &b, const Parts &parts,
                                                 int32_t *ancestor, size_t *at)
{
    __syncthreads(); /* all have left the segment before */
    if (b.base < b.keys.end) {
        if (threadIdx.x < WARP) find_ancestors(p, b, parts, ancestor);
        __syncthreads();
    }
    for (int t = tiles_begin(b) + (int)threadIdx.x; t < tiles_end(b); t += (int)blockDim.x) {
        int key = has_key(b.keys, t) ? t : b.keys.end - 1;
        int row = key < b.base ? key : ancestor[key - b.from];
        at[t - b.from] = kv_row_at<T>(p.a.kv, b.seq, row, b.kv_head);
    }
    __syncthreads();
}

/* ---- queries ---- */

static __device__ __forceinline__ int query_row(const Plan &p, int query)
{
    return (int)((uint32_t)query * p.inverse >> 16);
}

/* Where the head of a query of row `row` is, from the first of row b.row on; < 0: there is none. */
static __device__ __forceinline__ int query_head(const Plan &p, const Block &b, int query, int row)
{
    int head = query - row * p.block_heads;
    if (row >= b.n_rows || head >= b.n_heads) return -1;
    return row * p.a.n_heads + b.head + head;
}

/* This lane's dims of its query of each tile, as they lie in K. */
template <int GROUP, int COPIED>
static __device__ __forceinline__ void load_queries(const Plan &p, const Block &b,
                                                    float4 q[GROUP][DIM_STEPS])
{
    int dim = p.a.kv.head_dim;
    const float *row = p.a.q + (int64_t)b.row * p.a.n_heads * dim;
    UNROLL for (int n = 0; n < GROUP; n++)
    {
        int query = 8 * n + warp_lane() / 4, head = query_head(p, b, query, query_row(p, query));
        const float *from = row + (int64_t)head * dim;
        UNROLL for (int k = 0; k < DIM_STEPS; k++)
        {
            int d = eight_dim<PART_K>(k / 2) + k % 2 * 4;
            q[n][k] = quad(0, 0, 0, 0);
            if (head >= 0 && d < dim) q[n][k] = load_quad<COPIED>(from + d, dim - d);
        }
    }
}

template <int GROUP>
static __device__ __forceinline__ void
store_partials(const Plan &p, const Block &b, const Shared<GROUP> *s, const Sums<GROUP> &sums)
{
    int d = eight_dim<PART_V>(0), l = warp_lane() % 4;
    int64_t first = (int64_t)(b.row - p.row) * p.a.n_heads;
    UNROLL for (int i = 0; i < 2 * GROUP; i++)
    {
        int n = i / 2, e = i % 2, q = 8 * n + 2 * l + e;
        int row = query_row(p, q), head = query_head(p, b, q, row);
        if (head < 0 || !(b.stored >> row & 1)) continue;
        int64_t at = (first + head) * p.n_segments + b.segment;
        if (d == 0) {
            p.sums[at].x = s->max[q];
            p.sums[at].y = s->total[q];
        }
        if (d >= p.acc_dim) continue;
        const float(*x)[4] = sums.x[n];
        float4 *to = (float4 *)(void *)(p.acc + at * p.acc_dim + d);
        to[0] = quad(x[0][e], x[0][e + 2], x[1][e], x[1][e + 2]);
        to[1] = quad(x[2][e], x[2][e + 2], x[3][e], x[3][e + 2]);
    }
}

/* ---- a block ---- */

template <typename T, int GROUP, int COPIED>
static __device__ __forceinline__ void attend_segment(const Plan &p, const Block &b,
                                                      const Parts &parts)
{
    enum { PART_UNITS = EIGHTS * RawEight<T>::UNITS * WARP };
    DYNAMIC_SHARED(Shared<GROUP>, s);
    int warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    float *score = (float *)(void *)(s + 1), *own_score = score + warp * 8 * GROUP * SCORE_STRIDE;
    uint4 *k_part = (uint4 *)(void *)(score + warps * 8 * GROUP * SCORE_STRIDE);
    k_part += 2 * warp * PART_UNITS;
    uint4 *v_part = k_part + PART_UNITS;
    int tile = tiles_begin(b);
    const size_t *at = s->at + (tile - b.from); /* of the tile */
    Source source = {&p.a.kv, p.kv_aligned};
    float4 from[GROUP][DIM_STEPS];
    QueryTerms q[GROUP][DIM_STEPS];
    Sums<GROUP> sums = {};

    load_queries<GROUP, COPIED>(p, b, from);
    find_keys<T>(p, b, parts, (int32_t *)(void *)s->p, s->at);
    if (COPIED) {
        copy_part<T, PART_K>(p.a.kv, at, k_part);
        copies_commit();
        copy_part<T, PART_V>(p.a.kv, at, v_part);
        copies_commit();
    }
    if (threadIdx.x < 8 * GROUP) {
        s->max[threadIdx.x] = -INFINITY;
        s->total[threadIdx.x] = 0;
    }
    UNROLL for (int i = 0; i < GROUP * DIM_STEPS; i++)
    {
        float4 x = from[i / DIM_STEPS][i % DIM_STEPS];
        BTerms t = split_four(x.x, x.y, x.z, x.w);
        q[i / DIM_STEPS][i % DIM_STEPS] = QueryTerms{{t.x, t.z, t.y, t.w}};
    }
    for (; tile < b.keys.end; tile += TILE, at += TILE) {
        int more = tile + TILE < b.keys.end;
        if (COPIED) copies_wait<1>(); /* K is there */
        UNROLL for (int first = 0; first < KEY_TILES; first += KEY_TILES / GROUP)
            multiply_keys<T, GROUP, COPIED>(source, at, k_part, q, first, own_score);
        __syncthreads();
        if (COPIED) {
            if (more) copy_part<T, PART_K>(p.a.kv, at + TILE, k_part);
            copies_commit();
        }
        softmax<GROUP>(b.keys, p.scale, s, score, tile);
        __syncthreads();
        if (COPIED) copies_wait<1>(); /* V is there */
        add_values<T, GROUP, COPIED>(source, at, b.keys.end - tile, s, v_part, &sums);
        if (COPIED) {
            if (more) copy_part<T, PART_V>(p.a.kv, at + TILE, v_part);
            copies_commit();
        }
    }
    store_partials<GROUP>(p, b, s, sums);
}

/* The segment that a row's tail begins with; beyond pos: there is none. */
static __device__ __forceinline__ int tail_of(int pos, int base)
{
    return segment_of(base <= pos ? base : pos + 1);
}

/* Where block x begins; what decides it is asked for at once. */
static __device__ __forceinline__ Parts first_part(const Plan &p, int x, Block *b)
{
    const TreeAttention &a = p.a;
    int n_tails = p.n_rows * TAIL_BLOCKS, lane = warp_lane();
    Parts parts = {};
    parts.tail = x < n_tails;
    if (parts.tail) {
        b->row = p.row + x / TAIL_BLOCKS;
        int row = a.row0 + b->row, near = row < lane ? 0 : row - lane;
        parts.pos = a.pos[row];
        b->base = a.base[row];
        b->seq = a.seq[row];
        parts.near_parent = (uint32_t)a.parent[near];
        parts.near_kv_row = (uint32_t)a.kv_row[near];
        b->n_rows = 1;
        b->stored = 1;
        parts.segment = tail_of(parts.pos, b->base) + x % TAIL_BLOCKS;
        parts.last = segment_of(parts.pos);
        return parts;
    }
    int behind = (x - n_tails) / p.row_groups; /* segments behind this one */
    int has = 0, i = (x - n_tails - behind * p.row_groups) * p.block_rows + lane;
    b->segment = p.n_segments - 1 - behind;
    if (lane < p.block_rows && i < p.n_rows) {
        int row = a.row0 + p.row + i;
        parts.seq = a.seq[row];
        has = b->segment < tail_of(a.pos[row], a.base[row]);
    }
    parts.first = p.row + i - lane;
    parts.rows = warp_ballot(has);
    return parts;
}

/* 0 when there is none left. */
static __device__ __forceinline__ int next_part(const Plan &p, Parts *parts, Block *b)
{
    if (parts->tail) {
        b->segment = parts->segment;
        parts->segment += TAIL_BLOCKS;
        if (b->segment > parts->last) return 0;
    } else {
        if (!parts->rows) return 0;
        int first = __ffs((int)parts->rows) - 1;
        b->seq = (int)warp_shuffle((uint32_t)parts->seq, first);
        uint32_t same = warp_ballot(parts->seq == b->seq) & parts->rows;
        parts->rows &= ~same;
        b->row = parts->first + first;
        b->stored = same >> first;
        for (b->n_rows = 1; b->n_rows < WARP && b->stored >> b->n_rows; b->n_rows++)
            ;
    }
    b->from = segment_begin(b->segment);
    b->keys.begin = b->from > p.a.first ? b->from : p.a.first;
    b->keys.end = segment_begin(b->segment + 1);
    if (!parts->tail) b->base = b->keys.end;
    if (parts->tail && b->keys.end > parts->pos + 1) b->keys.end = parts->pos + 1;
    return 1;
}

/*
 * grid.x: TAIL_BLOCKS for each row, then block_rows rows for each segment, from the last, which is
 * the longest. grid.y: KV heads. grid.z: parts of their heads.
 */
template <typename T, int GROUP, int COPIED>
static __global__ void __launch_bounds__(MAX_WARPS *WARP, 1) attend_kernel(Plan p)
{
    grid_wait();
    Block b = {};
    Parts parts = first_part(p, (int)blockIdx.x, &b);
    int first = (int)blockIdx.z * p.block_heads; /* of the KV head's heads */
    b.kv_head = (int)blockIdx.y;
    b.head = b.kv_head * p.per_kv + first;
    b.n_heads = p.per_kv - first < p.block_heads ? p.per_kv - first : p.block_heads;
    while (next_part(p, &parts, &b))
        if (b.keys.begin < b.keys.end) attend_segment<T, GROUP, COPIED>(p, b, parts);
}

/* ---- merge ---- */

typedef struct {
    float best[MERGE_THREADS / WARP], total[MERGE_THREADS / WARP]; /* of a warp's segments */
    float4 sum[MERGE_THREADS];
} MergeShared;

static __device__ __forceinline__ void add_quad(float w, const float4 &x, float4 *sum)
{
    sum->x = fmaf(w, x.x, sum->x);
    sum->y = fmaf(w, x.y, sum->y);
    sum->z = fmaf(w, x.z, sum->z);
    sum->w = fmaf(w, x.w, sum->w);
}

/* Quads of the partials s, s + merge_groups, .. below n, MERGE_LOADS of them. */
static __device__ __forceinline__ void load_partials(const Plan &p, const float *acc, int s, int n,
                                                     float4 x[MERGE_LOADS])
{
    UNROLL for (int i = 0; i < MERGE_LOADS; i++, s += p.merge_groups)
    {
        x[i] = quad(0, 0, 0, 0);
        if (s < n) x[i] = load_whole_quad(acc + (int64_t)s * p.acc_dim);
    }
}

/*
 * weight[s] = exp2(max_s - max) of the n segments; returns sum_s weight[s] total_s. near: sums of
 * segment threadIdx.x, where there is one.
 */
static __device__ __forceinline__ float weigh(const float2 *sums, int n, float2 near,
                                              MergeShared *m, float *weight)
{
    int tid = (int)threadIdx.x, threads = (int)blockDim.x;
    float best = tid < n ? near.x : -INFINITY, total = 0;
    for (int s = tid + threads; s < n; s += threads)
        best = fmaxf(best, sums[s].x);
    best = warp_max(best, WARP);
    if (tid % WARP == 0) m->best[tid / WARP] = best;
    __syncthreads();
    for (int w = 0; w < threads / WARP; w++)
        best = fmaxf(best, m->best[w]);
    for (int s = tid; s < n; s += threads) {
        float2 of = s == tid ? near : sums[s];
        weight[s] = exp2f(of.x - best);
        total = fmaf(weight[s], of.y, total);
    }
    total = warp_sum(total, WARP);
    if (tid % WARP == 0) m->total[tid / WARP] = total;
    __syncthreads();
    total = 0;
    for (int w = 0; w < threads / WARP; w++)
        total += m->total[w];
    return total;
}

/*
 * out = sum_s w_s acc_s / sum_s w_s total_s * sigmoid(gate), w_s = exp2(max_s - max). A block for
 * each head of the rows, a thread for four dims of every eighth segment (of long heads every
 * fourth): one chain of fmaf each, then those in order. What the row's last position decides is
 * asked for before it is known: sums and partials up to the launch's last segment, which may be
 * nobody's and then count for nothing. So it all comes in one trip to memory, as far as 64 segments
 * go. A warp leaves 128 terms.
 */
static __global__ void __launch_bounds__(MERGE_THREADS, 1) merge_kernel(Plan p, NewTerms terms)
{
    grid_wait();
    __shared__ MergeShared m;
    DYNAMIC_SHARED(float, weight); /* [n_segments] */
    int dim = p.a.kv.head_dim, quads = p.acc_dim / 4, tid = (int)threadIdx.x;
    int group = tid / quads, own = tid % quads;
    int64_t head = (int64_t)p.row * p.a.n_heads + blockIdx.x; /* of q and out */
    int64_t row = head / p.a.n_heads;
    int first = segment_of(p.a.first), n_all = p.n_segments - first;
    int64_t at = (int64_t)blockIdx.x * p.n_segments + first;
    const float *acc = p.acc + at * p.acc_dim + 4 * own;

    float4 x[MERGE_LOADS], sum = quad(0, 0, 0, 0);
    float2 near = {};
    float gate = tid < dim ? p.a.qg[(head * 2 + 1) * dim + tid] : 0;
    if (tid < n_all) near = p.sums[at + tid];
    load_partials(p, acc, group, group < p.merge_groups ? n_all : 0, x);
    int n = segment_of(p.a.pos[p.a.row0 + row]) + 1 - first;
    float total = weigh(p.sums + at, n, near, &m, weight);
    for (int s = group; s < n && group < p.merge_groups; s += p.merge_groups * MERGE_LOADS) {
        if (s > group) load_partials(p, acc, s, n, x);
        UNROLL for (int i = 0; i < MERGE_LOADS; i++)
        {
            int from = s + i * p.merge_groups;
            if (from < n) add_quad(weight[from], x[i], &sum);
        }
    }
    m.sum[tid] = sum;
    __syncthreads();
    if (tid < dim) {
        float value = 0;
        for (int g = 0; g < p.merge_groups; g++)
            value += ((const float *)&m.sum[g * quads])[tid];
        p.a.out[head * dim + tid] = value / total / (1.0f + expf(-gate));
    }
    if (!leaves_terms(terms)) return;
    __syncthreads(); /* the head is written */
    int cols = p.a.n_heads * dim, warp = tid / WARP;
    int block = (int)(head % p.a.n_heads) * (dim / K_BLOCK) + warp;
    if (warp < dim / K_BLOCK) leave_terms(terms, row, block, p.a.out + row * cols, cols);
}

/* ---- launching ---- */

/* Shared memory of a block; element: bytes of a copied K or V element, 0 where none is. */
template <int GROUP> static size_t shared_bytes(int warps, size_t element)
{
    size_t score = 8 * (size_t)GROUP * SCORE_STRIDE * sizeof(float);
    size_t parts = 2 * (size_t)(TILE * WARP_DIMS) * element;
    return sizeof(Shared<GROUP>) + (size_t)warps * (score + parts);
}

static int n_warps(int dim)
{
    return (dim + WARP_DIMS - 1) / WARP_DIMS;
}

/* Blocks of up to 8 group queries; returns how many there are. */
static int64_t split_queries(Plan *p, int group)
{
    int most = 8 * group;
    p->head_parts = (p->per_kv + most - 1) / most;
    p->block_heads = (p->per_kv + p->head_parts - 1) / p->head_parts;
    p->block_rows = most / p->block_heads;
    p->row_groups = (p->n_rows + p->block_rows - 1) / p->block_rows;
    p->inverse = (1u << 16) / (uint32_t)p->block_heads + 1;
    return (int64_t)p->row_groups * p->a.kv.n_kv_heads * p->head_parts * p->n_segments;
}

template <typename T, int GROUP, int COPIED>
static void launch_attend(const CudaContext *c, Plan *p)
{
    split_queries(p, GROUP);
    int warps = n_warps(p->a.kv.head_dim);
    dim3 grid((unsigned)(p->n_rows * TAIL_BLOCKS + p->row_groups * p->n_segments),
              (unsigned)p->a.kv.n_kv_heads, (unsigned)p->head_parts);
    launch(c, grid, warps * WARP, shared_bytes<GROUP>(warps, COPIED ? sizeof(T) : 0),
           attend_kernel<T, GROUP, COPIED>, *p);
}

/*
 * 1 where blocks of GROUP / 2 are enough, or one can have no more. Few keys spread over the chip,
 * of many each is read once for as many queries as a block can take.
 */
template <typename T, int GROUP> static int fewer_do(const CudaContext *c, Plan *p, int warps)
{
    int queries = p->n_rows * p->per_kv;
    return queries <= 4 * GROUP || split_queries(p, GROUP / 2) <= ENOUGH_BLOCKS ||
           shared_bytes<GROUP>(warps, sizeof(T)) > c->shared_bytes;
}

/* All of these leave the same bits. */
template <typename T> static void attend(const CudaContext *c, Plan *p)
{
    int dim = p->a.kv.head_dim, warps = n_warps(dim);
    int whole = dim % WARP_DIMS == 0 && p->q_aligned && p->kv_aligned;
    if (!whole || shared_bytes<1>(warps, sizeof(T)) > c->shared_bytes)
        launch_attend<T, PAGED_GROUP, 0>(c, p);
    else if (fewer_do<T, 2>(c, p, warps))
        launch_attend<T, 1, 1>(c, p);
    else if (fewer_do<T, 4>(c, p, warps))
        launch_attend<T, 2, 1>(c, p);
    else
        launch_attend<T, MAX_GROUP, 1>(c, p);
}

/* 1 if every 16 bytes of a head of K and V lie on their size. */
static int is_aligned(const KvLayer *kv)
{
    size_t head = (size_t)kv->head_dim * kv_type_bytes(kv->type);
    size_t pages = (size_t)(uintptr_t)kv->pages | kv->page_bytes;
    return (pages | kv->k_offset | kv->v_offset | head) % 16 == 0;
}

extern "C" int CUDA_NAME(max_head_dim)(const CudaContext *c)
{
    int dim = MAX_HEAD_DIM;
    while (shared_bytes<PAGED_GROUP>(n_warps(dim), 0) > c->shared_bytes)
        dim -= WARP_DIMS;
    return dim;
}

extern "C" void CUDA_NAME(tree_attention)(const CudaContext *c, const TreeAttention *a)
{
    int dim = a->kv.head_dim;
    if (a->prefill && CUDA_NAME(tree_attention_prefill)(c, a)) return;
    Plan p = {};
    p.a = *a;
    p.scale = a->scale * 1.44269504f;
    p.n_segments = segment_of(a->n_keys - 1) + 1;
    p.per_kv = a->n_heads / a->kv.n_kv_heads;
    p.acc_dim = (dim + 7) / 8 * 8;
    p.q_aligned = ((size_t)(uintptr_t)a->q | (size_t)dim * sizeof(float)) % 16 == 0;
    p.kv_aligned = is_aligned(&a->kv);
    size_t heads = (size_t)a->n_heads * (size_t)p.n_segments; /* partials of a row */
    size_t row_bytes = heads * (sizeof(float2) + (size_t)p.acc_dim * sizeof(float));
    size_t fit = (c->scratch_bytes - sizeof(float4)) / row_bytes;
    assert(dim <= MAX_HEAD_DIM && a->n_keys > 0 && !a->from);
    assert(fit >= 1);
    int quads = p.acc_dim / 4, most = MERGE_THREADS / quads;
    p.merge_groups = most < MERGE_GROUPS ? most : (int)MERGE_GROUPS;
    int threads = (p.merge_groups * quads + WARP - 1) / WARP * WARP;
    int cols = a->n_heads * dim, rows = fit < (size_t)a->n ? (int)fit : a->n;
    NewTerms terms = {};
    if (dim % K_BLOCK == 0) terms = new_terms(c, a->out, a->n, cols, cols);
    if (rows < a->n && rows > WARP) rows -= rows % WARP; /* whole groups */
    size_t sums = ((size_t)rows * heads * sizeof(float2) + 15) / 16 * 16;
    p.sums = (float2 *)(void *)c->scratch;
    p.acc = (float *)(void *)(c->scratch + sums);
    for (p.row = 0; p.row < a->n; p.row += rows) {
        p.n_rows = a->n - p.row < rows ? a->n - p.row : rows;
        if (a->kv.type == KV_BF16)
            attend<Bf16>(c, &p);
        else
            attend<float>(c, &p);
        launch(c, dim3((unsigned)(p.n_rows * a->n_heads)), threads,
               (size_t)p.n_segments * sizeof(float), merge_kernel, p, terms);
    }
}
