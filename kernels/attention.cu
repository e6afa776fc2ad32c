/*
 * attention.cu: gated attention over a token tree and paged K, V.
 *
 * prepare: a warp per head of a row. attend: a block per run of rows, KV head and segment of the
 * keys. merge: a block per head of a row.
 *
 * Segments are a function of a key's position alone: SEGMENTS below. A block goes through its
 * segment in tiles of 64 keys and leaves maximum, total and sum of values for each of its queries;
 * merge adds a row's segments in an order that their number alone decides. What is done for one
 * query never depends on who shares its block: a score is a chain of fmaf in each of 32 lanes, then
 * a tree over the lanes; a total is a tree over the tile; a value is one chain of fmaf, keys
 * ascending. Keys that are not the row's are stepped over, never multiplied by 0: they may be NaN.
 *
 * Two kinds of blocks. Below a row's tail (the segments that hold positions from base on) the key
 * of a position is the same for all rows of a sequence, so a block takes up to MAX_ROWS rows and
 * reads K and V once for all. In its tail a row has a block of its own that gathers the row's
 * ancestors into their positions. In a prompt, where base is pos + 1, no row has a tail.
 *
 * Bytes: K and V once per run of rows, 8 n_keys n_kv_heads head_dim, in bf16 4; partials are
 * 4 (head_dim + 2) a query and segment, written and read. Floor: 2 KiB a key and KV head of 256
 * dims, at 4.3 TB/s 31 us for 32,768 keys and two KV heads, in bf16 half. One row of 6 heads needs
 * 3 operations a byte, 8 rows 24, where f32 arithmetic and not memory is the limit; in bf16 twice
 * as many.
 */
#include "kernels/kv_tile.h"
#include "kernels/terms.h"

#include <assert.h>

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    WARP_KEYS = ATTENTION_TILE / WARPS, /* of a tile: whose scores one warp makes */
    MAX_ROWS = 8,                       /* of a block */
    TAIL_BLOCKS = 2,                    /* a row: a tail of up to 64 keys lies in two segments */
    LOADS = 8,                          /* of 16 bytes, in flight per thread, for V and in merge */
    MERGE_GROUPS = 8,                   /* of segments, each added by threads of its own */
    ENOUGH_BLOCKS = 264,                /* two on each of 132 SMs */
    LONG_QUERIES = 4,                   /* a thread's, of heads longer than 256 */
};

enum {
    MERGE_WARPS = (MERGE_GROUPS * MAX_HEAD_DIM / 4 + WARP - 1) / WARP, /* of the longest heads */
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
    WIDE = 512,
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

/* out = rope(norm(x) * w) for one head, by one warp. */
template <typename T>
static __device__ void norm_rope(const AttentionPrepare &a, const float *x, const float *w,
                                 int rope_pos, T *out)
{
    int dim = a.kv.head_dim, half = a.n_rot / 2;
    float sum = 0;
    for (int k = warp_lane(); k < dim; k += WARP)
        sum = fmaf(x[k], x[k], sum);
    float scale = 1.0f / sqrtf(warp_sum(sum, WARP) / (float)dim + a.eps);
    for (int f = warp_lane(); f < half; f += WARP) {
        /* positions reach a million: cosf and sinf, which reduce their angle with care */
        float angle = (float)rope_pos * a.inv_freq[f];
        float c = cosf(angle) * a.rope_scale, s = sinf(angle) * a.rope_scale;
        float x0 = x[f] * scale * w[f], x1 = x[f + half] * scale * w[f + half];
        kv_store(out + f, x0 * c - x1 * s);
        kv_store(out + f + half, x1 * c + x0 * s);
    }
    for (int k = 2 * half + warp_lane(); k < dim; k += WARP)
        kv_store(out + k, x[k] * scale * w[k]);
}

template <typename T> static __global__ void prepare_kernel(AttentionPrepare a)
{
    grid_wait();
    int dim = a.kv.head_dim, n_kv = a.kv.n_kv_heads, per_row = a.n_heads + n_kv;
    int64_t unit = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, i = unit / per_row;
    int h = (int)(unit % per_row);
    if (i >= a.n) return;
    if (h < a.n_heads) {
        int64_t head = i * a.n_heads + h;
        norm_rope(a, a.qg + head * 2 * dim, a.q_norm, a.rope_pos[i], a.q + head * dim);
        return;
    }
    h -= a.n_heads;
    int64_t from = (i * n_kv + h) * dim;
    unsigned char *row = a.kv.pages + kv_row_at<T>(a.kv, a.seq[i], a.kv_row[i], h);
    norm_rope(a, a.k + from, a.k_norm, a.rope_pos[i], (T *)(void *)(row + a.kv.k_offset));
    T *v = (T *)(void *)(row + a.kv.v_offset);
    for (int k = warp_lane(); k < dim; k += WARP)
        kv_store(v + k, a.v[from + k]);
}

extern "C" void CUDA_NAME(attention_prepare)(const CudaContext *c, const AttentionPrepare *a)
{
    int64_t units = (int64_t)a->n * (a->n_heads + a->kv.n_kv_heads);
    assert(a->kv.head_dim <= MAX_HEAD_DIM && a->n_rot <= a->kv.head_dim);
    launch(c, dim3((unsigned)((units + WARPS - 1) / WARPS)), THREADS, 0,
           a->kv.type == KV_BF16 ? prepare_kernel<Bf16> : prepare_kernel<float>, *a);
}

/* ---- attend ---- */

typedef struct {
    TreeAttention a;
    float scale;     /* a.scale * log2(e): scores are powers of two */
    int row, n_rows; /* of this launch, of q and out */
    int n_segments;
    int block_rows, block_heads; /* queries of a block: rows of a sequence x heads of a KV head */
    int head_parts;              /* blocks for the heads of a KV head */
    float2 *sums;                /* [n_rows][n_heads][n_segments]: maximum and total */
    float *acc;                  /* the same [acc_dim]: sum of p v */
    int acc_dim;                 /* head_dim up to a multiple of 4 */
} Plan;

/*
 * QUADS: of 4 dims, those of a head and zeros. The scores: LANES lanes share a key, each with
 * STEPS quads of it; a lane has KEYS keys. The values: a thread owns one quad of the queries
 * q % QUERY_LANES, PER_THREAD of them.
 */
template <int QUADS, int PER_THREAD> struct Shape {
    enum {
        LANES = QUADS < WARP ? QUADS : WARP,
        STEPS = QUADS / LANES,
        KEYS = WARP_KEYS * LANES / WARP,
        HELD = STEPS <= 2, /* a warp's keys of a tile stay in registers for all queries */
        QUERY_LANES = THREADS / QUADS,
        QUERIES = QUERY_LANES * PER_THREAD,
        VALUES = ATTENTION_TILE * QUADS / THREADS, /* quads of V that a thread brings per tile */
        BATCH = VALUES < LOADS ? VALUES : LOADS,
    };
};

/* A block's shared memory. */
template <typename S, int QUADS> struct Shared {
    float4 v[ATTENTION_TILE * QUADS];
    float4 q[S::QUERIES][QUADS];
    float p[S::QUERIES][ATTENTION_TILE]; /* scores, then their exp2; 0 outside */
    size_t at[WIDE];                     /* kv_row_at of the segment's keys */
    float max[S::QUERIES], total[S::QUERIES], rescale[S::QUERIES];
    int end[S::QUERIES]; /* a query's keys lie below this */
};

/* Where a block is. */
typedef struct {
    int row, n_rows;            /* rows of q and out */
    int kv_head, head, n_heads; /* the heads h = head .. of the rows, all on kv_head */
    int segment, from;          /* its first position */
    int begin, end;             /* the positions of its keys */
    int full;                   /* below this every query has the keys */
    int tail;                   /* of one row */
} Block;

/* Where row i's keys in the segment end, 0 when its part of this segment is not this block's. */
static __device__ __forceinline__ int row_end(const Plan &p, int i, int segment, int tail)
{
    int row = p.a.row0 + i, pos = p.a.pos[row], base = p.a.base[row];
    int end = segment_begin(segment + 1), has_tail = base <= pos && segment >= segment_of(base);
    if (tail != has_tail) return 0;
    return pos < end ? pos + 1 : end;
}

/*
 * Looks up the segment's keys. In a tail one thread follows the parents, a load each; the rest of
 * the look-up is done by all.
 */
template <typename T> static __device__ void find_keys(const Plan &p, const Block &b, size_t *at)
{
    const TreeAttention &a = p.a;
    int row = a.row0 + b.row, base = b.tail ? a.base[row] : b.end;
    if (b.tail) {
        if (threadIdx.x == 0) {
            int last = base > b.begin ? base : b.begin, j = row;
            for (int t = a.pos[row]; t >= last; t--) {
                if (t < b.end) at[t - b.from] = (size_t)j;
                if (t > last) j = a.parent[j];
            }
        }
        __syncthreads(); /* here, too, all have left the tail's segment before */
    }
    for (int t = b.begin + (int)threadIdx.x; t < b.end; t += THREADS) {
        int kv_row = t < base ? t : a.kv_row[at[t - b.from]];
        at[t - b.from] = kv_row_at<T>(a.kv, a.seq[row], kv_row, b.kv_head);
    }
}

/* The queries, and nothing seen so far. */
template <typename S, int QUADS, int WHOLE>
static __device__ void start_queries(const Plan &p, const Block &b, Shared<S, QUADS> *s)
{
    int dim = p.a.kv.head_dim, n = b.n_rows * b.n_heads;
    for (int k = (int)threadIdx.x; k < n * QUADS; k += THREADS) {
        int q = k / QUADS, d = k % QUADS * 4;
        int64_t head = (int64_t)(b.row + q / b.n_heads) * p.a.n_heads + b.head + q % b.n_heads;
        s->q[q][k % QUADS] = load_quad<WHOLE>(p.a.q + head * dim + d, dim - d);
    }
    for (int q = (int)threadIdx.x; q < n; q += THREADS) {
        s->max[q] = -INFINITY;
        s->total[q] = 0;
        s->end[q] = row_end(p, b.row + q / b.n_heads, b.segment, b.tail);
    }
}

/* Step j of this lane's part of K of position t; zeros where the block has no such key. */
template <typename T, typename S, int WHOLE>
static __device__ __forceinline__ float4 key_quad(const Plan &p, const Block &b, const size_t *at,
                                                  int t, int j)
{
    const KvLayer &kv = p.a.kv;
    int d = 4 * (warp_lane() % S::LANES + S::LANES * j);
    if (t < b.begin || t >= b.end || d >= kv.head_dim) return quad(0, 0, 0, 0);
    const T *k = (const T *)(const void *)(kv.pages + kv.k_offset + at[t - b.from]);
    return load_quad<WHOLE>(k + d, kv.head_dim - d);
}

/*
 * Sums x[0], x[1], .. over 2 mask lanes by one tree, mask before mask / 2 .. before 1. A lane ends
 * with the sum of x[lane % (2 mask) / (2 mask / N)].
 */
template <int N> static __device__ __forceinline__ float sum_lanes(float *x, int mask)
{
    if constexpr (N == 1) {
        return warp_sum(x[0], 2 * mask);
    } else {
        int upper = warp_lane() & mask;
        for (int i = 0; i < N / 2; i++) {
            float other = warp_xor(upper ? x[i] : x[i + N / 2], mask);
            x[i] = (upper ? x[i + N / 2] : x[i]) + other;
        }
        return sum_lanes<N / 2>(x, mask / 2);
    }
}

/* This lane's keys of one tile, when registers hold them. */
template <typename S> struct Keys {
    float4 x[S::KEYS][S::HELD ? S::STEPS : 1];
};

/* The first of the tile's keys that this lane's group works on. */
template <typename S> static __device__ __forceinline__ int lane_key()
{
    return (int)threadIdx.x / WARP * WARP_KEYS + warp_lane() / S::LANES * S::KEYS;
}

template <typename T, typename S, int WHOLE>
static __device__ __forceinline__ void load_keys(const Plan &p, const Block &b, const size_t *at,
                                                 int tile, Keys<S> *keys)
{
    if constexpr (S::HELD)
        for (int i = 0; i < S::KEYS; i++)
            for (int j = 0; j < S::STEPS; j++)
                keys->x[i][j] = key_quad<T, S, WHOLE>(p, b, at, tile + lane_key<S>() + i, j);
}

static __device__ __forceinline__ float dot_quad(const float4 &x, const float4 &y, float sum)
{
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

/* Scores of the tile's keys, a warp its own keys for all queries. */
template <typename T, typename S, int QUADS, int WHOLE>
static __device__ __forceinline__ void score(const Plan &p, const Block &b, Shared<S, QUADS> *s,
                                             int tile, const Keys<S> &keys)
{
    int lane = warp_lane() % S::LANES, first = lane_key<S>();
    if (tile + (int)threadIdx.x / WARP * WARP_KEYS >= b.end) return;
    for (int q = 0; q < b.n_rows * b.n_heads; q++) {
        if (s->end[q] <= tile) continue;
        float sum[S::KEYS];
        for (int i = 0; i < S::KEYS; i++)
            sum[i] = 0;
        for (int j = 0; j < S::STEPS; j++) {
            if (!WHOLE && 4 * S::LANES * j >= p.a.kv.head_dim) break;
            float4 x = s->q[q][lane + S::LANES * j];
            for (int i = 0; i < S::KEYS; i++) {
                float4 k = S::HELD ? keys.x[i][S::HELD ? j : 0]
                                   : key_quad<T, S, WHOLE>(p, b, s->at, tile + first + i, j);
                sum[i] = dot_quad(x, k, sum[i]);
            }
        }
        float dot = sum_lanes<S::KEYS>(sum, S::LANES / 2);
        int shares = S::LANES / S::KEYS; /* lanes with the same sum */
        if (lane % shares == 0) s->p[q][first + lane / shares] = dot * p.scale;
    }
}

/* Scores to exp2(score - maximum), a warp a query at a time. */
template <typename S, int QUADS>
static __device__ __forceinline__ void softmax(const Block &b, Shared<S, QUADS> *s, int tile)
{
    int lane = warp_lane(), t0 = tile + lane, t1 = t0 + WARP;
    for (int q = (int)threadIdx.x / WARP; q < b.n_rows * b.n_heads; q += WARPS) {
        int end = s->end[q];
        if (end <= tile) continue;
        float x0 = t0 >= b.begin && t0 < end ? s->p[q][lane] : -INFINITY;
        float x1 = t1 >= b.begin && t1 < end ? s->p[q][lane + WARP] : -INFINITY;
        float old = s->max[q], max = fmaxf(old, warp_max(fmaxf(x0, x1), WARP));
        float p0 = exp2f(x0 - max), p1 = exp2f(x1 - max), sum = warp_sum(p0 + p1, WARP);
        s->p[q][lane] = p0;
        s->p[q][lane + WARP] = p1;
        warp_sync(); /* all have read max */
        if (lane == 0) {
            float rescale = exp2f(old - max);
            s->max[q] = max;
            s->total[q] = fmaf(s->total[q], rescale, sum);
            s->rescale[q] = rescale;
        }
    }
}

/* V of the tile, from this thread's quad `from` on, BATCH of them. */
template <typename T, typename S, int QUADS, int WHOLE>
static __device__ __forceinline__ void load_values(const Plan &p, const Block &b, const size_t *at,
                                                   int tile, int from, float4 *v)
{
    const KvLayer &kv = p.a.kv;
    for (int i = 0; i < S::BATCH; i++) {
        int k = (from + i) * THREADS + (int)threadIdx.x, t = tile + k / QUADS, d = k % QUADS * 4;
        v[i] = quad(0, 0, 0, 0);
        if (t < b.begin || t >= b.end || d >= kv.head_dim) continue;
        const T *row = (const T *)(const void *)(kv.pages + kv.v_offset + at[t - b.from]);
        v[i] = load_quad<WHOLE>(row + d, kv.head_dim - d);
    }
}

template <typename S, int QUADS>
static __device__ __forceinline__ void store_values(Shared<S, QUADS> *s, int from, const float4 *v)
{
    for (int i = 0; i < S::BATCH; i++)
        s->v[(from + i) * THREADS + (int)threadIdx.x] = v[i];
}

static __device__ __forceinline__ void add_quad(float p, const float4 &v, float4 *acc)
{
    acc->x = fmaf(p, v.x, acc->x);
    acc->y = fmaf(p, v.y, acc->y);
    acc->z = fmaf(p, v.z, acc->z);
    acc->w = fmaf(p, v.w, acc->w);
}

/* acc += p v for the keys t .. t + 3 of the tile; ALL: every query has all four. */
template <typename S, int QUADS, int PER_THREAD, int ALL>
static __device__ __forceinline__ void add_four(const Block &b, const Shared<S, QUADS> *s, int tile,
                                                int t, float4 *acc)
{
    int own = (int)threadIdx.x % QUADS, first = (int)threadIdx.x / QUADS;
    float4 v[4];
    for (int u = 0; u < 4; u++)
        v[u] = s->v[(t + u) * QUADS + own];
    for (int i = 0; i < PER_THREAD; i++) {
        int q = first + S::QUERY_LANES * i;
        if (q >= b.n_rows * b.n_heads) break;
        float4 p = *(const float4 *)(const void *)&s->p[q][t];
        int begin = ALL ? 0 : b.begin - tile - t, end = ALL ? 4 : s->end[q] - tile - t;
        if (begin <= 0 && end > 0) add_quad(p.x, v[0], acc + i);
        if (begin <= 1 && end > 1) add_quad(p.y, v[1], acc + i);
        if (begin <= 2 && end > 2) add_quad(p.z, v[2], acc + i);
        if (begin <= 3 && end > 3) add_quad(p.w, v[3], acc + i);
    }
}

template <typename S, int QUADS, int PER_THREAD>
static __device__ __forceinline__ void add_values(const Block &b, const Shared<S, QUADS> *s,
                                                  int tile, float4 *acc)
{
    int first = (int)threadIdx.x / QUADS, n = b.end - tile;
    for (int i = 0; i < PER_THREAD; i++) {
        int q = first + S::QUERY_LANES * i;
        if (q >= b.n_rows * b.n_heads || s->end[q] <= tile) continue;
        float rescale = s->rescale[q];
        acc[i] =
            quad(acc[i].x * rescale, acc[i].y * rescale, acc[i].z * rescale, acc[i].w * rescale);
    }
    for (int t = 0; t < ATTENTION_TILE && t < n; t += 4) {
        if (tile + t >= b.begin && tile + t + 4 <= b.full)
            add_four<S, QUADS, PER_THREAD, 1>(b, s, tile, t, acc);
        else
            add_four<S, QUADS, PER_THREAD, 0>(b, s, tile, t, acc);
    }
}

template <typename S, int QUADS, int PER_THREAD>
static __device__ void store_partials(const Plan &p, const Block &b, const Shared<S, QUADS> *s,
                                      const float4 *acc)
{
    int dim = p.a.kv.head_dim, d = (int)threadIdx.x % QUADS * 4;
    for (int i = 0; i < PER_THREAD; i++) {
        int q = (int)threadIdx.x / QUADS + S::QUERY_LANES * i;
        if (q >= b.n_rows * b.n_heads || s->end[q] <= b.begin) continue;
        int64_t row = b.row - p.row + q / b.n_heads, head = b.head + q % b.n_heads;
        int64_t at = (row * p.a.n_heads + head) * p.n_segments + b.segment;
        if (d == 0) {
            p.sums[at].x = s->max[q];
            p.sums[at].y = s->total[q];
        }
        float *out = p.acc + at * p.acc_dim + d;
        if (d < dim) out[0] = acc[i].x;
        if (d + 1 < dim) out[1] = acc[i].y;
        if (d + 2 < dim) out[2] = acc[i].z;
        if (d + 3 < dim) out[3] = acc[i].w;
    }
}

/* One segment of one block's queries. */
template <typename T, int QUADS, int PER_THREAD, int WHOLE>
static __device__ __forceinline__ void attend_segment(const Plan &p, const Block &b)
{
    typedef Shape<QUADS, PER_THREAD> S;
    typedef Shared<S, QUADS> Memory;
    DYNAMIC_SHARED(Memory, s);
    float4 acc[PER_THREAD], v[S::BATCH];
    Keys<S> keys;
    for (int i = 0; i < PER_THREAD; i++)
        acc[i] = quad(0, 0, 0, 0);
    find_keys<T>(p, b, s->at);
    start_queries<S, QUADS, WHOLE>(p, b, s);
    __syncthreads();

    int tile = b.begin / ATTENTION_TILE * ATTENTION_TILE;
    load_keys<T, S, WHOLE>(p, b, s->at, tile, &keys);
    for (; tile < b.end; tile += ATTENTION_TILE) {
        score<T, S, QUADS, WHOLE>(p, b, s, tile, keys);
        load_values<T, S, QUADS, WHOLE>(p, b, s->at, tile, 0, v);
        __syncthreads();
        softmax<S, QUADS>(b, s, tile);
        store_values<S, QUADS>(s, 0, v);
        for (int i = S::BATCH; i < S::VALUES; i += S::BATCH) {
            if (tile + i * THREADS / QUADS >= b.end) break;
            load_values<T, S, QUADS, WHOLE>(p, b, s->at, tile, i, v);
            store_values<S, QUADS>(s, i, v);
        }
        /* the next tile's K is on its way while this tile's V is added */
        load_keys<T, S, WHOLE>(p, b, s->at, tile + ATTENTION_TILE, &keys);
        __syncthreads();
        add_values<S, QUADS, PER_THREAD>(b, s, tile, acc);
        __syncthreads();
    }
    store_partials<S, QUADS, PER_THREAD>(p, b, s, acc);
}

/* Rows of one sequence from row i of the launch on; 0 unless a block begins there. */
static __device__ __forceinline__ int rows_from(const Plan &p, int i)
{
    const int32_t *seq = p.a.seq + p.a.row0 + p.row + i;
    int n = 1;
    if (i % p.block_rows && seq[-1] == seq[0]) return 0;
    while ((i + n) % p.block_rows && i + n < p.n_rows && seq[n] == seq[0])
        n++;
    return n;
}

/*
 * grid.x: TAIL_BLOCKS for each row, then the segments from the last, which are the longest, each
 * with a block for every row that a run begins with. grid.y: parts of KV heads.
 */
template <typename T, int QUADS, int PER_THREAD, int WHOLE, int PER_SM>
static __global__ void __launch_bounds__(THREADS, PER_SM) attend_kernel(Plan p)
{
    grid_wait();
    int x = (int)blockIdx.x, n_tails = p.n_rows * TAIL_BLOCKS, part = (int)blockIdx.y;
    int per_kv = p.a.n_heads / p.a.kv.n_kv_heads, last;
    Block b;
    b.tail = x < n_tails;
    if (b.tail) {
        int i = p.row + x / TAIL_BLOCKS, row = p.a.row0 + i;
        b.row = i;
        b.n_rows = 1;
        b.segment = segment_of(p.a.base[row]) + x % TAIL_BLOCKS;
        last = segment_of(p.a.pos[row]);
    } else {
        x -= n_tails;
        b.n_rows = rows_from(p, x % p.n_rows);
        if (!b.n_rows) return;
        b.row = p.row + x % p.n_rows;
        b.segment = last = p.n_segments - 1 - x / p.n_rows;
    }
    b.kv_head = part / p.head_parts;
    b.head = part % p.head_parts * p.block_heads;
    b.n_heads = per_kv - b.head < p.block_heads ? per_kv - b.head : p.block_heads;
    b.head += b.kv_head * per_kv;
    for (; b.segment <= last; b.segment += TAIL_BLOCKS) {
        b.from = segment_begin(b.segment);
        b.begin = b.from > p.a.first ? b.from : p.a.first;
        b.end = 0;
        b.full = segment_begin(b.segment + 1);
        for (int i = 0; i < b.n_rows; i++) {
            int end = row_end(p, b.row + i, b.segment, b.tail);
            if (end > b.end) b.end = end;
            if (end < b.full) b.full = end;
        }
        if (b.end > b.begin) attend_segment<T, QUADS, PER_THREAD, WHOLE>(p, b);
    }
}

/* ---- merge ---- */

typedef struct {
    float best[MERGE_WARPS], total[MERGE_WARPS]; /* of a warp's segments */
    float4 sum[MERGE_GROUPS][MAX_HEAD_DIM / 4];
} MergeShared;

/* Quads of the partials s, s + MERGE_GROUPS, .. below n, LOADS of them. */
static __device__ __forceinline__ void load_partials(const Plan &p, const float *acc, int s, int n,
                                                     float4 x[LOADS])
{
    UNROLL for (int i = 0; i < LOADS; i++, s += MERGE_GROUPS)
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
 * each head of the rows, a thread for four dims of every eighth segment: one chain of fmaf each,
 * then those in order. What the row's last position decides is asked for before it is known: sums
 * and partials up to the launch's last segment, which may be nobody's and then count for nothing.
 * So it all comes in one trip to memory, as far as 64 segments go. A warp leaves 128 terms.
 */
static __global__ void __launch_bounds__(MERGE_WARPS *WARP) merge_kernel(Plan p, NewTerms terms)
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

    float4 x[LOADS], sum = quad(0, 0, 0, 0);
    float2 near = {};
    float gate = tid < dim ? p.a.qg[(head * 2 + 1) * dim + tid] : 0;
    if (tid < n_all) near = p.sums[at + tid];
    load_partials(p, acc, group, group < MERGE_GROUPS ? n_all : 0, x);
    int n = segment_of(p.a.pos[p.a.row0 + row]) + 1 - first;
    float total = weigh(p.sums + at, n, near, &m, weight);
    for (int s = group; s < n && group < MERGE_GROUPS; s += MERGE_GROUPS * LOADS) {
        if (s > group) load_partials(p, acc, s, n, x);
        UNROLL for (int i = 0; i < LOADS; i++)
        {
            int from = s + i * MERGE_GROUPS;
            if (from < n) add_quad(weight[from], x[i], &sum);
        }
    }
    if (group < MERGE_GROUPS) m.sum[group][own] = sum;
    __syncthreads();
    if (tid < dim) {
        float value = 0;
        for (int g = 0; g < MERGE_GROUPS; g++)
            value += ((const float *)m.sum[g])[tid];
        p.a.out[head * dim + tid] = value / total / (1.0f + expf(-gate));
    }
    if (!terms.bf16.data && !terms.fp8.data) return;
    __syncthreads(); /* the head is written */
    int cols = p.a.n_heads * dim, warp = tid / WARP;
    int block = (int)(head % p.a.n_heads) * (dim / K_BLOCK) + warp;
    if (warp < dim / K_BLOCK) leave_terms(terms, row, block, p.a.out + row * cols, cols);
}

/* ---- launching ---- */

template <typename T, int QUADS, int PER_THREAD, int WHOLE, int PER_SM>
static void attend(const CudaContext *c, Plan *p)
{
    typedef Shape<QUADS, PER_THREAD> S;
    int per_kv = p->a.n_heads / p->a.kv.n_kv_heads, fit;
    p->block_heads = per_kv < S::QUERIES ? per_kv : (int)S::QUERIES;
    p->head_parts = (per_kv + p->block_heads - 1) / p->block_heads;
    fit = S::QUERIES / p->block_heads;
    p->block_rows = fit < MAX_ROWS ? fit : (int)MAX_ROWS;
    dim3 grid((unsigned)(p->n_rows * (TAIL_BLOCKS + p->n_segments)),
              (unsigned)(p->a.kv.n_kv_heads * p->head_parts));
    launch(c, grid, THREADS, sizeof(Shared<S, QUADS>),
           attend_kernel<T, QUADS, PER_THREAD, WHOLE, PER_SM>, *p);
}

/*
 * FEW: queries of a block with 128 registers a thread, so that two blocks share an SM. Few keys
 * spread over the chip in such blocks, of many each is read once for MANY queries.
 */
template <typename T, int QUADS, int FEW, int MANY>
static void attend_whole(const CudaContext *c, Plan *p)
{
    int queries = p->n_rows * (p->a.n_heads / p->a.kv.n_kv_heads), few = Shape<QUADS, FEW>::QUERIES;
    int blocks = p->n_segments * p->a.kv.n_kv_heads * ((queries + few - 1) / few);
    int many_fit = sizeof(Shared<Shape<QUADS, MANY>, QUADS>) <= c->shared_bytes;
    if (queries <= few || blocks <= ENOUGH_BLOCKS || !many_fit)
        attend<T, QUADS, FEW, 1, 2>(c, p);
    else
        attend<T, QUADS, MANY, 1, 1>(c, p);
}

/* 1 if every quad lies on its size: those of q, those of K and V. */
static int is_aligned(const TreeAttention *a)
{
    const KvLayer *kv = &a->kv;
    size_t q = (size_t)(uintptr_t)a->q | (size_t)kv->head_dim * sizeof(float);
    size_t rows = (size_t)(uintptr_t)kv->pages | kv->page_bytes | kv->k_offset | kv->v_offset;
    return q % sizeof(float4) == 0 && rows % (4 * kv_type_bytes(kv->type)) == 0;
}

extern "C" int CUDA_NAME(max_head_dim)(const CudaContext *c)
{
    enum { QUADS = MAX_HEAD_DIM / 4 };
    return sizeof(Shared<Shape<QUADS, LONG_QUERIES>, QUADS>) <= c->shared_bytes ? MAX_HEAD_DIM
                                                                                : 256;
}

/* All of these leave the same bits. */
template <typename T> static void attend_any(const CudaContext *c, Plan *p)
{
    int dim = is_aligned(&p->a) ? p->a.kv.head_dim : 0;
    if (dim == 64)
        attend_whole<T, 16, 1, 3>(c, p);
    else if (dim == 128)
        attend_whole<T, 32, 2, 6>(c, p);
    else if (dim == 256)
        attend_whole<T, 64, 3, 12>(c, p);
    else if (p->a.kv.head_dim <= 256)
        attend<T, 64, 3, 0, 1>(c, p);
    else
        attend<T, MAX_HEAD_DIM / 4, LONG_QUERIES, 0, 1>(c, p);
}

extern "C" void CUDA_NAME(tree_attention)(const CudaContext *c, const TreeAttention *a)
{
    int dim = a->kv.head_dim;
    if (a->prefill && CUDA_NAME(tree_attention_prefill)(c, a)) return;
    Plan p = {};
    p.a = *a;
    p.scale = a->scale * 1.44269504f;
    p.n_segments = segment_of(a->n_keys - 1) + 1;
    p.acc_dim = (dim + 3) / 4 * 4;
    size_t heads = (size_t)a->n_heads * (size_t)p.n_segments; /* partials of a row */
    size_t row_bytes = heads * (sizeof(float2) + (size_t)p.acc_dim * sizeof(float));
    size_t fit = (c->scratch_bytes - sizeof(float4)) / row_bytes;
    assert(dim <= MAX_HEAD_DIM && a->n_keys > 0 && !a->from);
    assert(fit >= 1);
    int threads = (MERGE_GROUPS * p.acc_dim / 4 + WARP - 1) / WARP * WARP;
    int cols = a->n_heads * dim, rows = fit < (size_t)a->n ? (int)fit : a->n;
    NewTerms terms = {};
    if (dim % K_BLOCK == 0) terms = new_terms(c, a->out, a->n, cols, cols);
    if (rows < a->n && rows > MAX_ROWS) rows -= rows % MAX_ROWS;
    size_t sums = ((size_t)rows * heads * sizeof(float2) + 15) / 16 * 16;
    p.sums = (float2 *)(void *)c->scratch;
    p.acc = (float *)(void *)(c->scratch + sums);
    for (p.row = 0; p.row < a->n; p.row += rows) {
        p.n_rows = a->n - p.row < rows ? a->n - p.row : rows;
        if (a->kv.type == KV_BF16)
            attend_any<Bf16>(c, &p);
        else
            attend_any<float>(c, &p);
        launch(c, dim3((unsigned)(p.n_rows * a->n_heads)), threads,
               (size_t)p.n_segments * sizeof(float), merge_kernel, p, terms);
    }
}
