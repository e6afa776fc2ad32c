/*
 * attention_prefill.cu: gated attention of a prompt's rows.
 *
 * See attention_prompt.h for what is computed. On Hopper by wgmma, heads of up to 256 dims
 * (attention_wgmma.h). Else by mma: a block takes 128 queries, K and V of a tile come to shared
 * memory once for all, split into terms on the way, and scores become the first operand of the
 * product with V.
 *
 * Bytes: K and V once per 128 queries, q twice. Floor: 12 n_keys head_dim operations a query (each
 * product is three), 3,700 cycles for 64 keys of 256 dims at 1,024 fmaf a cycle: a prompt of 2,048
 * rows with 24 heads on 132 SMs 3 ms at 1.9 GHz. Measured on an H200: 58,000 cycles.
 */
#include "kernels/attention_wgmma.h"

enum {
    WARPS = THREADS / WARP,
    QUERIES = 16 * WARPS,
    STAGED = 4, /* 16-byte loads of a thread in flight */
};

/*
 * STEPS: of 16 dims of K, a head's and zeros; V_TILES: of 8 dims of V, of a block.
 * K: tile (step, keys 8 r ..) has the dims along k in QUAD order; V: tile (keys 16 i .., dims 8 c
 * ..) the keys along k in PAIR order.
 */
template <int STEPS, int V_TILES> struct Shared {
    BTerms k[STEPS * KEY_TILES * WARP];
    BTerms v[TILE / 16 * V_TILES * WARP];
    size_t at[2][TILE]; /* of a tile's keys, in the K or V of its page; of the next tile's */
};

/* ---- keys and values to shared memory ---- */

/* Entries of K of a tile, STAGED for each thread; part: which. */
template <typename T>
static __device__ __forceinline__ void load_k(const Plan &p, const Block &b, const size_t *at,
                                              int tile, int part, float4 x[STAGED])
{
    UNROLL for (int i = 0; i < STAGED; i++)
    {
        int entry = (part * STAGED + i) * THREADS + (int)threadIdx.x, of = entry / WARP;
        x[i] =
            element_quad<T>(p, b, at, p.a.kv.k_offset, tile, of % KEY_TILES * 8 + entry % WARP / 4,
                            of / KEY_TILES * 16 + 4 * (entry % 4));
    }
}

static __device__ __forceinline__ void put_k(BTerms *k, int part, const float4 x[STAGED])
{
    UNROLL for (int i = 0; i < STAGED; i++) k[(part * STAGED + i) * THREADS + (int)threadIdx.x] =
        split_four(x[i].x, x[i].y, x[i].z, x[i].w);
}

/* Of V a thread brings four dims of the four keys that a lane has of 16. */
typedef struct {
    int keys, quad, l; /* 16 keys, 4 dims, lane % 4 */
} ValueUnit;

template <int V_TILES> static __device__ __forceinline__ ValueUnit value_unit(int part)
{
    int unit = part * THREADS + (int)threadIdx.x, quad = unit / 4 % (2 * V_TILES);
    return ValueUnit{unit / 4 / (2 * V_TILES), quad, unit % 4};
}

template <typename T, int V_TILES>
static __device__ __forceinline__ void load_v(const Plan &p, const Block &b, const size_t *at,
                                              int tile, int part, float4 x[STAGED])
{
    ValueUnit u = value_unit<V_TILES>(part);
    UNROLL for (int i = 0; i < STAGED; i++) x[i] =
        element_quad<T>(p, b, at, p.a.kv.v_offset, tile, 16 * u.keys + 2 * u.l + i % 2 + i / 2 * 8,
                        b.v_dim + 4 * u.quad);
}

template <int V_TILES>
static __device__ __forceinline__ void put_v(BTerms *v, int part, const float4 x[STAGED])
{
    ValueUnit u = value_unit<V_TILES>(part);
    BTerms *to = v + (u.keys * V_TILES + u.quad / 2) * WARP + u.quad % 2 * 16 + u.l;
    to[0] = split_four(x[0].x, x[1].x, x[2].x, x[3].x);
    to[4] = split_four(x[0].y, x[1].y, x[2].y, x[3].y);
    to[8] = split_four(x[0].z, x[1].z, x[2].z, x[3].z);
    to[12] = split_four(x[0].w, x[1].w, x[2].w, x[3].w);
}

/* ---- a block ---- */

/* This lane's four dims of a query, of those of one step. */
static __device__ __forceinline__ BTerms query_quad(const Plan &p, const float *q, int step)
{
    int d = 16 * step + 4 * (warp_lane() % 4);
    float4 x = load_elements(q + d, p.a.kv.head_dim - d, p.q_aligned);
    return split_four(x.x, x.y, x.z, x.w);
}

/* Scores of a tile; meanwhile its V comes to shared memory. */
template <typename T, int STEPS, int V_TILES>
static __device__ __forceinline__ void
multiply_keys(const Plan &p, const Block &b, Shared<STEPS, V_TILES> *s, const size_t *at, int tile,
              const Queries &q, float score[KEY_TILES][4])
{
    enum { PARTS = V_TILES / 8, EACH = STEPS / PARTS };
    UNROLL for (int r = 0; r < KEY_TILES; r++)
    {
        UNROLL for (int e = 0; e < 4; e++) score[r][e] = 0;
    }
    UNROLL for (int part = 0; part < PARTS; part++)
    {
        float4 x[STAGED];
        load_v<T, V_TILES>(p, b, at, tile, part, x);
        UNROLL for (int i = 0; i < EACH; i++)
        {
            int step = part * EACH + i;
            ATerms a = rows_as_a(query_quad(p, q.q[0], step), query_quad(p, q.q[1], step));
            UNROLL for (int r = 0; r < KEY_TILES; r++)
                mma_terms(score[r], a, s->k[(step * KEY_TILES + r) * WARP + warp_lane()]);
        }
        put_v<V_TILES>(s->v, part, x);
    }
}

/* Sums of values of a tile; meanwhile the next one's K comes to shared memory. */
template <typename T, int STEPS, int V_TILES>
static __device__ __forceinline__ void
add_values(const Plan &p, const Block &b, Shared<STEPS, V_TILES> *s, const size_t *next_at,
           int next_tile, float score[KEY_TILES][4], float sum[V_TILES][4])
{
    enum {
        PARTS = STEPS / STAGED,
        PER_STEP = PARTS < 4 ? 1 : PARTS / 4,
        EACH = V_TILES / PER_STEP
    };
    UNROLL for (int i = 0; i < TILE / 16; i++)
    {
        ATerms a = result_as_a(score[2 * i], score[2 * i + 1]);
        UNROLL for (int k = 0; k < PER_STEP; k++)
        {
            int part = i * PER_STEP + k;
            float4 x[STAGED] = {};
            if (part < PARTS) load_k<T>(p, b, next_at, next_tile, part, x);
            UNROLL for (int c = k * EACH; c < (k + 1) * EACH; c++)
                mma_terms(sum[c], a, s->v[(i * V_TILES + c) * WARP + warp_lane()]);
            if (part < PARTS) put_k(s->k, part, x);
        }
    }
}

/* grid.z: parts of V's dims; see this_block. */
template <typename T, int STEPS, int V_TILES>
static __global__ void __launch_bounds__(THREADS, 1) prefill_kernel(Plan p)
{
    grid_wait();
    typedef Shared<STEPS, V_TILES> Memory;
    DYNAMIC_SHARED(Memory, s);
    const Block b = this_block(p, QUERIES, (int)blockIdx.z * 8 * V_TILES);
    float sum[V_TILES][4], score[KEY_TILES][4];
    UNROLL for (int c = 0; c < V_TILES; c++)
    {
        UNROLL for (int e = 0; e < 4; e++) sum[c][e] = 0;
    }
    Queries q;
    start_queries(p, b, &q);
    int tile = b.begin / TILE * TILE, turn = 0;
    find_keys<T>(p, b, tile, s->at[0]);
    __syncthreads();
    for (int part = 0; part < STEPS / STAGED; part++) {
        float4 x[STAGED];
        load_k<T>(p, b, s->at[0], tile, part, x);
        put_k(s->k, part, x);
    }
    for (; tile < b.end; tile += TILE, turn = 1 - turn) {
        __syncthreads(); /* K is there, V no longer read */
        find_keys<T>(p, b, tile + TILE, s->at[1 - turn]);
        multiply_keys<T, STEPS, V_TILES>(p, b, s, s->at[turn], tile, q, score);
        softmax<V_TILES>(p, b, tile, &q, score, sum);
        __syncthreads(); /* V is there, K no longer read */
        add_values<T, STEPS, V_TILES>(p, b, s, s->at[1 - turn], tile + TILE, score, sum);
    }
    store_queries<V_TILES>(p, b, q, sum);
}

/* ---- launching ---- */

static dim3 grid_of(const Plan &p, int n_queries, int v_dims)
{
    int64_t queries = (int64_t)p.a.n * p.per_kv;
    return dim3((unsigned)((queries + n_queries - 1) / n_queries), (unsigned)p.a.kv.n_kv_heads,
                (unsigned)((p.a.kv.head_dim + v_dims - 1) / v_dims));
}

template <typename T, int CHUNKS> static int attend_wgmma(const CudaContext *c, const Plan &p)
{
    typedef PromptShared<T, CHUNKS> S;
    launch(c, grid_of(p, S::QUERIES, CHUNKS * CHUNK), THREADS, sizeof(S),
           prefill_wgmma_kernel<T, CHUNKS>, p);
    return 1;
}

/* 0 where a block cannot have that much shared memory. */
template <typename T, int STEPS, int V_TILES> static int attend(const CudaContext *c, const Plan &p)
{
    size_t shared = sizeof(Shared<STEPS, V_TILES>);
    if (shared > c->shared_bytes) return 0;
    launch(c, grid_of(p, QUERIES, 8 * V_TILES), THREADS, shared, prefill_kernel<T, STEPS, V_TILES>,
           p);
    return 1;
}

/* Of K and V in bf16 the second terms are 0: the sums are those of f32 rows of the same values. */
template <typename T> static int attend_any(const CudaContext *c, Plan p)
{
    const KvLayer &kv = p.a.kv;
    size_t row = (size_t)kv.head_dim * sizeof(T);
    size_t all = (size_t)(uintptr_t)kv.pages | kv.page_bytes | kv.k_offset | kv.v_offset | row;
    p.kv_aligned = all % (4 * sizeof(T)) == 0;
    if (can_attend_wgmma<T>(c, kv)) {
        if (kv.head_dim <= CHUNK) return attend_wgmma<T, 1>(c, p);
        if (kv.head_dim <= 2 * CHUNK) return attend_wgmma<T, 2>(c, p);
        return attend_wgmma<T, 4>(c, p);
    }
    if (kv.head_dim <= 64) return attend<T, 4, 8>(c, p);
    if (kv.head_dim <= 128) return attend<T, 8, 16>(c, p);
    if (kv.head_dim <= 256) return attend<T, 16, 32>(c, p);
    return attend<T, 32, 16>(c, p);
}

extern "C" int CUDA_NAME(tree_attention_prefill)(const CudaContext *c, const TreeAttention *a)
{
    const KvLayer *kv = &a->kv;
    size_t row = (size_t)kv->head_dim * sizeof(float);
    Plan p = {};
    p.a = *a;
    p.scale = a->scale * 1.44269504f;
    p.per_kv = a->n_heads / kv->n_kv_heads;
    p.q_aligned = ((size_t)(uintptr_t)a->q | row) % sizeof(float4) == 0;
    assert(kv->head_dim <= MAX_HEAD_DIM);
    assert(a->n_heads % kv->n_kv_heads == 0);
    return kv->type == KV_BF16 ? attend_any<Bf16>(c, p) : attend_any<float>(c, p);
}
