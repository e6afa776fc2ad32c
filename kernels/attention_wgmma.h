/*
 * attention_wgmma.h: gated attention of a prompt's rows by warpgroups with wgmma, on Hopper; for
 * attention_prefill.cu. See attention_prompt.h for what is computed.
 *
 * Queries, as two terms, and a tile's K and V lie in shared memory as wgmma takes them: in chunks
 * of 64 dims, each query's or key's a row of 128 bytes. Scores are Q K', A and B from there; their
 * exp2, as two terms in registers, is the A of the product with V, which lies by k: so K and V come
 * alike, as they are in their pages. K and V of a tile have a place each: V comes while scores are
 * multiplied, the next tile's K while values are.
 *
 * bf16: K and V are one term, copied beside the thread's work; two warpgroups of 64 queries. f32:
 * two terms, made on the way; one warpgroup multiplies, the other brings K and V. Heads of 256 dims
 * take 192 KB either way.
 *
 * Floor: 8 n_keys head_dim operations a query in bf16 (each product is two), for 128 queries and 64
 * keys of 256 dims 4,096 cycles at 2,048 a cycle; in f32, for 64 queries, 3,072. Measured on an
 * H200: 9,100 and 12,600; by mma 58,000 for 128 queries.
 */
#ifndef OFFSHOOT_KERNELS_ATTENTION_WGMMA_H
#define OFFSHOOT_KERNELS_ATTENTION_WGMMA_H

#include "kernels/attention_prompt.h"
#include "kernels/simt_copy.h"
#include "kernels/wgmma.h"

enum {
    CHUNK = WGMMA_ROW / 2,    /* dims in a row */
    CHUNK_QUADS = CHUNK / 4,  /* of four dims */
    GROUP_THREADS = 4 * WARP, /* a warpgroup's */
    GROUP_QUERIES = 64,       /* likewise */
    PROMPT_MAX_DIM = 4 * CHUNK,
    COPIES = TILE * WGMMA_ROW / 16 / THREADS, /* of 16 bytes of a chunk of keys, a thread's */
    LOADED = 16,                              /* 16-byte loads of a thread in flight */
};

/* 64 queries or keys, 64 dims of each. */
typedef struct {
    unsigned char row[64][WGMMA_ROW];
} Chunk;

template <typename T, int CHUNKS> struct PromptShared {
    enum {
        TERMS = KvElement<T>::TERMS,
        COPIED = TERMS == 1,
        GROUPS = COPIED ? 2 : 1, /* warpgroups that multiply */
        QUERIES = GROUPS * GROUP_QUERIES,
    };
    Chunk q[GROUPS][2][CHUNKS]; /* high terms, then low ones */
    Chunk k[TERMS][CHUNKS], v[TERMS][CHUNKS];
    size_t at[2][TILE]; /* of a tile's keys, in the K or V of its page; of the next tile's */
};

/*
 * 1 for GPUs that have wgmma and heads of up to PROMPT_MAX_DIM dims, a multiple of 8, that lie on
 * 16 bytes.
 */
template <typename T> static int can_attend_wgmma(const CudaContext *c, const KvLayer &kv)
{
    size_t all = (size_t)(uintptr_t)kv.pages | kv.page_bytes | kv.k_offset | kv.v_offset;
    return c->wgmma && c->shared_bytes >= sizeof(PromptShared<T, PROMPT_MAX_DIM / CHUNK>) &&
           kv.head_dim <= PROMPT_MAX_DIM && kv.head_dim % 8 == 0 && all % 16 == 0;
}

/* ---- queries, keys and values to shared memory ---- */

/* Four dims of a row, of which quad `quad` of the head. */
static __device__ __forceinline__ void put_quad(Chunk *chunks, int row, int quad, uint32_t x,
                                                uint32_t y)
{
    unsigned char *chunk = chunks[quad / CHUNK_QUADS].row[0];
    int piece = quad % CHUNK_QUADS / 2;
    *(uint2 *)(void *)(chunk + wgmma_piece_at(row, piece) + quad % 2 * 8) = uint2{x, y};
}

/* Zeros where there is no query or dim. */
template <typename T, int CHUNKS>
static __device__ void put_queries(const Plan &p, const Block &b, PromptShared<T, CHUNKS> *s)
{
    typedef PromptShared<T, CHUNKS> S;
    enum { QUADS = CHUNKS * CHUNK_QUADS };
    for (int unit = (int)threadIdx.x; unit < S::QUERIES * QUADS; unit += THREADS) {
        int i = unit / QUADS, quad = unit % QUADS, query = b.query + i;
        int left = query < p.a.n * p.per_kv ? p.a.kv.head_dim - 4 * quad : 0;
        int64_t head = query_head(p, b, left > 0 ? query : b.query);
        const float *q = p.a.q + head * p.a.kv.head_dim + (left > 0 ? 4 * quad : 0);
        float4 x = load_elements(q, left, p.q_aligned);
        BTerms t = split_four(x.x, x.y, x.z, x.w);
        put_quad(s->q[i / GROUP_QUERIES][0], i % GROUP_QUERIES, quad, t.x, t.y);
        put_quad(s->q[i / GROUP_QUERIES][1], i % GROUP_QUERIES, quad, t.z, t.w);
    }
}

/* Begins to copy K or V of a tile; four threads a key. */
template <typename T, int CHUNKS>
static __device__ __forceinline__ void copy_rows(const Plan &p, const Block &b, const size_t *at,
                                                 size_t offset, int tile, Chunk *to)
{
    const KvLayer &kv = p.a.kv;
    int key = (int)threadIdx.x / 4, l = (int)threadIdx.x % 4, t = tile + key;
    int dims = t >= b.begin && t < b.end ? kv.head_dim : 0;
    const unsigned char *from = kv.pages + offset + (dims ? at[key] : 0);
    UNROLL for (int i = 0; i < CHUNKS * COPIES; i++)
    {
        int piece = 4 * i + l, is = piece * KvElement<T>::PER_16 < dims;
        copy_16_or_zeros(is, to[i / COPIES].row[0] + wgmma_piece_at(key, piece % 8),
                         from + (is ? piece * 16 : 0));
    }
    copies_commit();
}

/* Brings K or V of a tile in two terms, by the threads of the second warpgroup. */
template <typename T, int CHUNKS>
static __device__ __forceinline__ void load_rows(const Plan &p, const Block &b, const size_t *at,
                                                 size_t offset, int tile, Chunk (*to)[CHUNKS])
{
    enum {
        QUADS = CHUNKS * CHUNK_QUADS,
        EACH = TILE * QUADS / GROUP_THREADS,
        AT_ONCE = EACH < LOADED ? EACH : LOADED,
    };
    const KvLayer &kv = p.a.kv;
    int first_unit = (int)threadIdx.x - GROUP_THREADS;
    UNROLL for (int first = 0; first < EACH; first += AT_ONCE)
    {
        float4 x[AT_ONCE];
        UNROLL for (int i = 0; i < AT_ONCE; i++)
        {
            int unit = (first + i) * GROUP_THREADS + first_unit, quad = unit % QUADS;
            int t = tile + unit / QUADS;
            int is = t >= b.begin && t < b.end && quad * 4 < kv.head_dim;
            const unsigned char *from = kv.pages + offset + (is ? at[unit / QUADS] : 0);
            x[i] =
                is ? load_quad<1>((const T *)(const void *)from + quad * 4, 4) : float4{0, 0, 0, 0};
        }
        UNROLL for (int i = 0; i < AT_ONCE; i++)
        {
            int unit = (first + i) * GROUP_THREADS + first_unit;
            BTerms t = split_four(x[i].x, x[i].y, x[i].z, x[i].w);
            put_quad(to[0], unit / QUADS, unit % QUADS, t.x, t.y);
            put_quad(to[1], unit / QUADS, unit % QUADS, t.z, t.w);
        }
    }
}

/* All that this block's threads brought is there, for wgmma too. */
static __device__ __forceinline__ void brought()
{
    copies_wait<0>();
    wgmma_show_shared();
    __syncthreads();
}

/* ---- products ---- */

/* Begins the scores of this warpgroup's queries: lo hi, hi lo, hi hi as mma_terms. */
template <typename T, int CHUNKS>
static __device__ __forceinline__ void begin_scores(const PromptShared<T, CHUNKS> *s, int group,
                                                    float (&score)[KEY_TILES][4])
{
    enum { TERMS = KvElement<T>::TERMS };
    wgmma_begin();
    UNROLL for (int i = 0; i < CHUNKS * CHUNK / 16; i++)
    {
        int c = i / (CHUNK / 16), at = i % (CHUNK / 16) * WGMMA_STEP;
        WgmmaRows hi = wgmma_at(wgmma_rows(&s->q[group][0][c]), at);
        WgmmaRows lo = wgmma_at(wgmma_rows(&s->q[group][1][c]), at);
        WgmmaRows key = wgmma_at(wgmma_rows(&s->k[0][c]), at);
        wgmma_bf16(score, lo, key, i > 0);
        if (TERMS == 2) wgmma_bf16(score, hi, wgmma_at(wgmma_rows(&s->k[TERMS - 1][c]), at), 1);
        wgmma_bf16(score, hi, key, 1);
    }
    wgmma_commit();
}

/* Begins to add values; a: exp2 of the scores, 16 keys each. */
template <typename T, int CHUNKS>
static __device__ __forceinline__ void begin_values(const PromptShared<T, CHUNKS> *s,
                                                    const ATerms (&a)[TILE / 16],
                                                    float (&sum)[CHUNKS * CHUNK / 8][4])
{
    enum { TERMS = KvElement<T>::TERMS };
    wgmma_begin();
    UNROLL for (int i = 0; i < TILE / 16; i++)
    {
        UNROLL for (int c = 0; c < CHUNKS; c++)
        {
            WgmmaRows value = wgmma_at(wgmma_rows(&s->v[0][c]), i * 16 * WGMMA_ROW);
            float(*to)[4] = &sum[c * CHUNK / 8];
            wgmma_bf16_by_k(to, a[i].lo, value);
            if (TERMS == 2)
                wgmma_bf16_by_k(to, a[i].hi,
                                wgmma_at(wgmma_rows(&s->v[TERMS - 1][c]), i * 16 * WGMMA_ROW));
            wgmma_bf16_by_k(to, a[i].hi, value);
        }
    }
    wgmma_commit();
}

/* ---- a block ---- */

/* MULTIPLIES: this warpgroup has queries. */
template <typename T, int CHUNKS, int MULTIPLIES>
static __device__ __forceinline__ void go_over_keys(const Plan &p, const Block &b,
                                                    PromptShared<T, CHUNKS> *s)
{
    typedef PromptShared<T, CHUNKS> S;
    enum { V_TILES = CHUNKS * CHUNK / 8 };
    const KvLayer &kv = p.a.kv;
    int group = (int)threadIdx.x / GROUP_THREADS, tile = b.begin / TILE * TILE, turn = 0;
    float sum[V_TILES][4] = {}, score[KEY_TILES][4] = {};
    Queries q;
    if (MULTIPLIES) start_queries(p, b, &q);
    if constexpr (S::COPIED)
        copy_rows<T, CHUNKS>(p, b, s->at[0], kv.k_offset, tile, s->k[0]);
    else if (!MULTIPLIES)
        load_rows<T>(p, b, s->at[0], kv.k_offset, tile, s->k);
    for (; tile < b.end; tile += TILE, turn = 1 - turn) {
        const size_t *at = s->at[turn], *next_at = s->at[1 - turn];
        ATerms a[TILE / 16];
        brought(); /* K is there, V no longer read */
        find_keys<T>(p, b, tile + TILE, s->at[1 - turn]);
        if constexpr (MULTIPLIES) begin_scores(s, group, score);
        if constexpr (S::COPIED)
            copy_rows<T, CHUNKS>(p, b, at, kv.v_offset, tile, s->v[0]);
        else if constexpr (!MULTIPLIES)
            load_rows<T>(p, b, at, kv.v_offset, tile, s->v);
        if constexpr (MULTIPLIES) {
            wgmma_wait<0>();
            wgmma_take(score);
            softmax<V_TILES>(p, b, tile, &q, score, sum);
            UNROLL for (int i = 0; i < TILE / 16; i++) a[i] =
                result_as_a(score[2 * i], score[2 * i + 1]);
        }
        brought(); /* V is there, K no longer read */
        if constexpr (MULTIPLIES) begin_values(s, a, sum);
        if constexpr (S::COPIED)
            copy_rows<T, CHUNKS>(p, b, next_at, kv.k_offset, tile + TILE, s->k[0]);
        else if constexpr (!MULTIPLIES)
            load_rows<T>(p, b, next_at, kv.k_offset, tile + TILE, s->k);
        if constexpr (MULTIPLIES) {
            wgmma_wait<0>();
            wgmma_take(sum);
        }
    }
    if constexpr (S::COPIED) copies_wait<0>();
    if constexpr (MULTIPLIES) store_queries<V_TILES>(p, b, q, sum);
}

/* See this_block. */
template <typename T, int CHUNKS>
static __global__ void __launch_bounds__(THREADS, 1) prefill_wgmma_kernel(Plan p)
{
    grid_wait();
    typedef PromptShared<T, CHUNKS> Memory;
    WGMMA_SHARED(Memory, s);
    const Block b = this_block(p, Memory::QUERIES, 0);
    find_keys<T>(p, b, b.begin / TILE * TILE, s->at[0]);
    put_queries(p, b, s);
    __syncthreads();
    if (Memory::GROUPS * GROUP_THREADS == THREADS || threadIdx.x < GROUP_THREADS)
        go_over_keys<T, CHUNKS, 1>(p, b, s);
    else
        go_over_keys<T, CHUNKS, 0>(p, b, s);
}

#endif
