/*
 * attention_prompt.h: what the kernels of a prompt's attention share: by mma (attention_prefill.cu)
 * and by wgmma (attention_wgmma.h).
 *
 * A query is a row's head. A block takes queries of one KV head, rows by rows their heads side by
 * side, and goes over their keys in tiles of 64 by position. A warp has 16 queries: scores, their
 * exp2 and the sums of values stay in its registers, as a product of tensor cores has them.
 * Products take both operands in two terms (mma_terms.h), sums are f32.
 *
 * One form for every row: tiles ascending from the one that holds `first`; per tile the maximum,
 * rescale, add. A query's row of a product depends on nothing of the other rows, and a tile that
 * holds none of its keys changes no bit of it: maximum and total stay, 0 is added to sums. So it
 * does not matter which rows share its block. Keys before `first` and beyond the block's last row
 * are never read; V counts as 0 there. A key between is a row of this prompt: a number.
 */
#ifndef OFFSHOOT_KERNELS_ATTENTION_PROMPT_H
#define OFFSHOOT_KERNELS_ATTENTION_PROMPT_H

#include "kernels/kv_tile.h"
#include "kernels/mma_terms.h"

enum {
    THREADS = 256,
    TILE = ATTENTION_TILE,
    KEY_TILES = TILE / 8, /* tiles of B and of scores, along the keys */
};

typedef struct {
    TreeAttention a;
    float scale;               /* a.scale * log2(e): scores are powers of two */
    int per_kv;                /* heads of a KV head */
    int q_aligned, kv_aligned; /* four elements of a head lie on their size */
} Plan;

/* Where a block is. */
typedef struct {
    int kv_head, query; /* its first, of n per_kv */
    int v_dim;          /* its first dim of V */
    int begin, end;     /* the positions of its keys */
} Block;

/* Of a grid whose x counts blocks of n_queries, the last first, which have the most keys; y: KV
 * heads. */
static __device__ __forceinline__ Block this_block(const Plan &p, int n_queries, int v_dim)
{
    Block b;
    b.kv_head = (int)blockIdx.y;
    b.query = (int)(gridDim.x - 1 - blockIdx.x) * n_queries;
    b.v_dim = v_dim;
    int last = (b.query + n_queries - 1) / p.per_kv;
    b.begin = p.a.first;
    b.end = p.a.pos[p.a.row0 + (last < p.a.n ? last : p.a.n - 1)] + 1;
    return b;
}

/* Four elements from p on, of which n exist, the others 0. */
template <typename T>
static __device__ __forceinline__ float4 load_elements(const T *p, int n, int aligned)
{
    return aligned && n >= 4 ? load_quad<1>(p, n) : load_quad<0>(p, n);
}

/* ---- keys and values ---- */

/* Looks up the tile's keys; those that the block does not have are given no place. */
template <typename T>
static __device__ void find_keys(const Plan &p, const Block &b, int tile, size_t *at)
{
    const KvLayer &kv = p.a.kv;
    int t = tile + (int)threadIdx.x;
    if (threadIdx.x >= TILE || t < b.begin || t >= b.end) return;
    int64_t entry = (int64_t)p.a.seq[p.a.row0] * kv.table_stride + t / kv.page_tokens;
    int64_t head = (int64_t)(t % kv.page_tokens) * kv.n_kv_heads + b.kv_head;
    at[threadIdx.x] =
        (size_t)kv.table[entry] * kv.page_bytes + (size_t)(head * kv.head_dim) * sizeof(T);
}

/* Four dims of key t from dim d on; zeros where the block has no such key or dim. */
template <typename T>
static __device__ __forceinline__ float4 element_quad(const Plan &p, const Block &b,
                                                      const size_t *at, size_t offset, int tile,
                                                      int key, int d)
{
    const KvLayer &kv = p.a.kv;
    int t = tile + key, n = t >= b.begin && t < b.end ? kv.head_dim - d : 0;
    const unsigned char *from = kv.pages + offset + (n > 0 ? at[key] + (size_t)d * sizeof(T) : 0);
    return load_elements((const T *)(const void *)from, n, p.kv_aligned);
}

/* ---- a warp's queries ---- */

/* The two queries of a lane, g and g + 8. */
typedef struct {
    const float *q[2];
    int pos[2]; /* -1: there is no such query */
    float max[2], total[2];
} Queries;

static __device__ __forceinline__ int64_t query_head(const Plan &p, const Block &b, int query)
{
    return (int64_t)(query / p.per_kv) * p.a.n_heads + b.kv_head * p.per_kv + query % p.per_kv;
}

static __device__ __forceinline__ int lane_query(const Block &b, int i)
{
    return b.query + (int)threadIdx.x / WARP * 16 + warp_lane() / 4 + 8 * i;
}

static __device__ __forceinline__ void start_queries(const Plan &p, const Block &b, Queries *q)
{
    UNROLL for (int i = 0; i < 2; i++)
    {
        int query = lane_query(b, i), exists = query < p.a.n * p.per_kv;
        q->pos[i] = exists ? p.a.pos[p.a.row0 + query / p.per_kv] : -1;
        q->q[i] = p.a.q + query_head(p, b, exists ? query : b.query) * p.a.kv.head_dim;
        q->max[i] = -INFINITY;
        q->total[i] = 0;
    }
}

/* Scores to exp2(score - maximum); sums are rescaled. One lane's 2 x 16 of a tile's scores. */
template <int V_TILES>
static __device__ __forceinline__ void softmax(const Plan &p, const Block &b, int tile, Queries *q,
                                               float score[KEY_TILES][4], float sum[V_TILES][4])
{
    int l = warp_lane() % 4;
    float rescale[2];
    UNROLL for (int i = 0; i < 2; i++)
    {
        float max = q->max[i], total = 0;
        UNROLL for (int k = 0; k < 2 * KEY_TILES; k++)
        {
            float *x = &score[k / 2][2 * i + k % 2];
            int t = tile + k / 2 * 8 + 2 * l + k % 2;
            *x = t >= b.begin && t <= q->pos[i] ? *x * p.scale : -INFINITY;
            max = fmaxf(max, *x);
        }
        max = warp_max(max, 4);
        UNROLL for (int k = 0; k < 2 * KEY_TILES; k++)
        {
            float *x = &score[k / 2][2 * i + k % 2];
            *x = exp2f(*x - max);
            total += *x;
        }
        rescale[i] = exp2f(q->max[i] - max);
        q->total[i] = fmaf(q->total[i], rescale[i], warp_sum(total, 4));
        q->max[i] = max;
    }
    UNROLL for (int c = 0; c < V_TILES; c++)
    {
        UNROLL for (int e = 0; e < 4; e++) sum[c][e] *= rescale[e / 2];
    }
}

template <int V_TILES>
static __device__ __forceinline__ void store_queries(const Plan &p, const Block &b,
                                                     const Queries &q, float sum[V_TILES][4])
{
    int dim = p.a.kv.head_dim;
    UNROLL for (int i = 0; i < 2; i++)
    {
        if (q.pos[i] < 0) continue;
        int64_t head = query_head(p, b, lane_query(b, i));
        const float *gate = p.a.qg + (head * 2 + 1) * dim;
        UNROLL for (int c = 0; c < V_TILES; c++)
        {
            UNROLL for (int e = 0; e < 2; e++)
            {
                int d = b.v_dim + 8 * c + warp_lane() % 4 * 2 + e;
                if (d < dim)
                    p.a.out[head * dim + d] = sum[c][2 * i + e] / q.total[i] * sigmoid(gate[d]);
            }
        }
    }
}

#endif
