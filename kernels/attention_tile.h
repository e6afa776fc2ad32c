/*
 * attention_tile.h: what attention.cu does with one tile of 64 keys.
 *
 * A block has GROUP times 8 queries, a warp of it 64 dims of the head and all the queries:
 *     scores   Q K', 8 queries x 8 keys a product, whose 16 rows are the queries' first and second
 *              bf16 terms; the two are added, then the warps' parts in order, in shared memory;
 *              then exp2(score - maximum) by eight lanes a query
 *     values   V' P', 16 of its dims x 8 queries, sums in registers from tile to tile
 * exp2 is two bf16 terms too, K and V are one where they are bf16 and two where they are f32; sums
 * are f32. A query's row or column of a product depends on nothing of the others, and products
 * with zeros add nothing: so a query's bits depend neither on GROUP nor on who shares the block.
 *
 * K and V of a tile come as the lanes want them, 16 bytes of a key each: what a lane copies to
 * shared memory (cp.async) it alone reads, so copies need no barrier and lie side by side.
 */
#ifndef OFFSHOOT_KERNELS_ATTENTION_TILE_H
#define OFFSHOOT_KERNELS_ATTENTION_TILE_H

#include "kernels/kv_tile.h"
#include "kernels/mma_terms.h"
#include "kernels/simt_copy.h"

enum {
    TILE = ATTENTION_TILE,
    STEPS = TILE / 16,          /* of a tile's keys, 16 for a product */
    WARP_DIMS = 64,             /* of a head, a warp's */
    DIM_STEPS = WARP_DIMS / 16, /* likewise of dims */
    KEY_TILES = TILE / 8,
    EIGHTS = TILE * WARP_DIMS / 8 / WARP, /* of dims of a tile's keys, a lane's */
    MAX_WARPS = MAX_HEAD_DIM / WARP_DIMS,
    MAX_KEYS = 512,          /* of a block */
    SCORE_STRIDE = TILE + 8, /* of a query: stores of a product meet each bank once */
};

/*
 * A block's shared memory. Behind it for each warp float [8 GROUP][SCORE_STRIDE], its parts of the
 * scores; then, where K and V are copied, for each warp its eights of K and of V of a tile, an
 * eight of every lane together.
 */
template <int GROUP> struct Shared {
    static_assert(MAX_KEYS * sizeof(int32_t) <= STEPS * WARP * sizeof(BTerms), "");
    BTerms p[STEPS][GROUP][WARP]; /* exp2, keys along k in QUAD order; first ancestors' rows */
    size_t at[MAX_KEYS];          /* kv_row_at of its keys, by tiles */
    float max[8 * GROUP], total[8 * GROUP], rescale[8 * GROUP];
};

/* The positions of a block's keys. */
typedef struct {
    int begin, end;
} Keys;

/* 1 if t is one of them; in its place else stands the last one, with an exp2 of 0. */
static __device__ __forceinline__ int has_key(const Keys &keys, int t)
{
    return t >= keys.begin && t < keys.end;
}

/* Eight dims of a key, as pairs, in as many terms as T takes. */
template <typename T> struct Eight {
    uint32_t term[KvElement<T>::TERMS][4];
};
template <typename T> struct RawEight {
    enum { UNITS = 8 / KvElement<T>::PER_16 };
    uint4 unit[UNITS];
};

static __device__ __forceinline__ Eight<Bf16> eight_terms(const RawEight<Bf16> &raw)
{
    const uint4 &x = raw.unit[0];
    return Eight<Bf16>{{{x.x, x.y, x.z, x.w}}};
}
static __device__ __forceinline__ Eight<float> eight_terms(const RawEight<float> &raw)
{
    float x[8];
    Eight<float> e;
    kv_values_16(x, raw.unit[0], x);
    kv_values_16(x, raw.unit[1], x + 4);
    UNROLL for (int i = 0; i < 4; i++)
    {
        uint32_t pair[2];
        kv_pair_terms(x + 2 * i, pair);
        e.term[0][i] = pair[0], e.term[1][i] = pair[1];
    }
    return e;
}

static __device__ __forceinline__ uint32_t element_bits(const Bf16 *p)
{
    return p->bits;
}
static __device__ __forceinline__ uint32_t element_bits(const float *p)
{
    return philox_bits(*p);
}

/* The eight from p on, of which n exist, the others 0. */
template <typename T>
static __device__ __forceinline__ Eight<T> load_eight(const T *p, int n, int aligned)
{
    enum { UNITS = RawEight<T>::UNITS, SPAN = 4 / sizeof(T) };
    RawEight<T> raw;
    if (aligned && n >= 8) {
        for (int u = 0; u < UNITS; u++)
            raw.unit[u] = load_16(p + u * KvElement<T>::PER_16);
        return eight_terms(raw);
    }
    uint32_t word[4 * UNITS];
    UNROLL for (int i = 0; i < 4 * UNITS; i++)
    {
        word[i] = 0;
        for (int j = 0; j < SPAN; j++)
            if (i * SPAN + j < n) word[i] |= element_bits(p + i * SPAN + j) << 16 * j;
    }
    UNROLL for (int u = 0; u < UNITS; u++) raw.unit[u] =
        uint4{word[4 * u], word[4 * u + 1], word[4 * u + 2], word[4 * u + 3]};
    return eight_terms(raw);
}

/* ---- a lane's part of K and V of a tile ---- */

/*
 * Eight i of K: 8 dims of key 8 (i / 2) + lane / 4 of the tile, from 32 (i % 2) + 8 (lane % 4) of
 * the warp's on: operand B of two products, dims along k, four a product.
 * Eight i of V: 8 dims of key 16 (i / 4) + 4 (lane % 4) + i % 4 from 8 (lane / 4) on: keys along k
 * in QUAD order; product m has dims 8 g + 2 m and 8 g + 2 m + 1 in rows g and g + 8.
 */
typedef enum { PART_K, PART_V } Part;

template <Part PART> static __device__ __forceinline__ int eight_key(int i)
{
    int lane = warp_lane();
    return PART == PART_K ? i / 2 * 8 + lane / 4 : i / 4 * 16 + lane % 4 * 4 + i % 4;
}

template <Part PART> static __device__ __forceinline__ int eight_dim(int i)
{
    int lane = warp_lane(), first = (int)threadIdx.x / WARP * WARP_DIMS;
    return first + (PART == PART_K ? i % 2 * 32 + lane % 4 * 8 : lane / 4 * 8);
}

/* Bytes from at[] of the lane's key of eight 0 to that eight. */
template <typename T, Part PART>
static __device__ __forceinline__ const unsigned char *lane_base(const KvLayer &kv)
{
    size_t part = PART == PART_K ? kv.k_offset : kv.v_offset;
    return kv.pages + part + (size_t)eight_dim<PART>(0) * sizeof(T);
}

/* Begins to copy the warp's part; eight eights' places are looked up together. at: of the tile. */
template <typename T, Part PART>
static __device__ __forceinline__ void copy_part(const KvLayer &kv, const size_t *at, uint4 *part)
{
    enum { UNITS = RawEight<T>::UNITS, PER_BATCH = 8, KEYS = PART == PART_K ? 4 : 8 };
    const unsigned char *base = lane_base<T, PART>(kv);
    const size_t *key_at = at + eight_key<PART>(0);
    uint4 *to = part + warp_lane();
    UNROLL for (int i = 0; i < EIGHTS; i += PER_BATCH)
    {
        size_t place[KEYS];
        UNROLL for (int k = 0; k < KEYS; k++) place[k] =
            key_at[PART == PART_K ? i / 2 * 8 + k * 8 : i / 4 * 16 + k / 4 * 16 + k % 4];
        UNROLL for (int k = 0; k < PER_BATCH; k++)
        {
            const unsigned char *from = base + place[PART == PART_K ? k / 2 : k];
            if (PART == PART_K) from += k % 2 * 32 * sizeof(T);
            UNROLL for (int u = 0; u < UNITS; u++)
                copy_16(to + ((i + k) * UNITS + u) * WARP, from + 16 * u);
        }
    }
}

/* Where K and V lie; aligned: all heads on 16 bytes. */
typedef struct {
    const KvLayer *kv;
    int aligned;
} Source;

/* Eight i of the lane, from where it was copied to (COPIED) or from where it lies. */
template <typename T, Part PART, int COPIED>
static __device__ __forceinline__ Eight<T> get_eight(const Source &from, const size_t *at,
                                                     const uint4 *part, int i)
{
    if constexpr (COPIED) {
        RawEight<T> raw;
        for (int u = 0; u < RawEight<T>::UNITS; u++)
            raw.unit[u] = part[(i * RawEight<T>::UNITS + u) * WARP + warp_lane()];
        return eight_terms(raw);
    } else {
        int left = from.kv->head_dim - eight_dim<PART>(i);
        const unsigned char *x = lane_base<T, PART>(*from.kv);
        if (left <= 0) return Eight<T>{};
        x += at[eight_key<PART>(i)];
        x += (size_t)(eight_dim<PART>(i) - eight_dim<PART>(0)) * sizeof(T);
        return load_eight((const T *)(const void *)x, left, from.aligned);
    }
}

/* ---- scores ---- */

/* This lane's terms of its query of 8, of 16 dims: rows g and g + 8 of A. */
typedef struct {
    uint32_t a[4];
} QueryTerms;

/* The warp's part of the scores of AT_ONCE times 8 keys, from key tile `first` on. */
template <typename T, int GROUP, int COPIED>
static __device__ __forceinline__ void
multiply_keys(const Source &from, const size_t *at, const uint4 *part,
              const QueryTerms q[GROUP][DIM_STEPS], int first, float *score)
{
    enum { AT_ONCE = KEY_TILES / GROUP, TERMS = KvElement<T>::TERMS };
    float d[AT_ONCE][GROUP][4] = {};
    UNROLL for (int c = 0; c < DIM_STEPS / 2; c++)
    {
        Eight<T> key[AT_ONCE];
        UNROLL for (int s = 0; s < AT_ONCE; s++) key[s] =
            get_eight<T, PART_K, COPIED>(from, at, part, 2 * (first + s) + c);
        UNROLL for (int k = 0; k < 2 * TERMS; k++) /* a key's second term comes first */
        {
            UNROLL for (int i = 0; i < AT_ONCE * GROUP; i++)
            {
                int s = i / GROUP, n = i % GROUP, half = k / TERMS;
                mma_bf16(d[s][n], q[n][2 * c + half].a,
                         key[s].term[TERMS - 1 - k % TERMS] + 2 * half);
            }
        }
    }
    float *to = score + warp_lane() / 4 * SCORE_STRIDE + 8 * first + warp_lane() % 4 * 2;
    UNROLL for (int i = 0; i < AT_ONCE * GROUP; i++)
    {
        int s = i / GROUP, n = i % GROUP;
        float2 sum;
        sum.x = d[s][n][0] + d[s][n][2], sum.y = d[s][n][1] + d[s][n][3];
        *(float2 *)(void *)(to + 8 * n * SCORE_STRIDE + 8 * s) = sum;
    }
}

static __device__ __forceinline__ void add_to(float x[4], const float4 &y)
{
    x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
}

/* Adds the warps' parts of the scores of 4 keys and of those 32 behind; four are read at once. */
template <int GROUP>
static __device__ __forceinline__ void add_parts(const float *score, int warps, float x[8])
{
    enum { NEXT = 8 * GROUP * SCORE_STRIDE, AT_ONCE = 4 };
    UNROLL for (int first = 0; first < MAX_WARPS; first += AT_ONCE)
    {
        float4 part[AT_ONCE][2];
        if (first >= warps) break;
        UNROLL for (int i = 0; i < AT_ONCE; i++)
        {
            const float *of = score + (first + i < warps ? first + i : first) * NEXT;
            part[i][0] = load_whole_quad(of), part[i][1] = load_whole_quad(of + TILE / 2);
        }
        UNROLL for (int i = 0; i < AT_ONCE; i++)
        {
            if (first + i >= warps) break;
            add_to(x, part[i][0]), add_to(x + 4, part[i][1]);
        }
    }
}

/*
 * Scores to exp2(score - maximum), eight lanes a query, of which lane i has keys 4 i .. and 32 +
 * 4 i .. . score: of the first warp.
 */
template <int GROUP>
static __device__ __forceinline__ void softmax(const Keys &keys, float scale, Shared<GROUP> *s,
                                               const float *score, int tile)
{
    int warps = (int)blockDim.x / WARP, i = warp_lane() % 8, t = tile + 4 * i;
    int first = (int)threadIdx.x / WARP * 4 + warp_lane() / 8;
    for (int q = first; q < 8 * GROUP; q += 4 * warps) {
        float x[8] = {}, old = s->max[q], max = old, sum = 0;
        add_parts<GROUP>(score + q * SCORE_STRIDE + 4 * i, warps, x);
        UNROLL for (int k = 0; k < 8; k++)
        {
            int key = t + k % 4 + k / 4 * (TILE / 2);
            x[k] = has_key(keys, key) ? x[k] * scale : -INFINITY;
            max = fmaxf(max, x[k]);
        }
        max = warp_max(max, 8);
        UNROLL for (int k = 0; k < 8; k++)
        {
            x[k] = exp2f(x[k] - max);
            sum += x[k];
        }
        sum = warp_sum(sum, 8);
        BTerms *to = &s->p[i / 4][q / 8][q % 8 * 4 + i % 4];
        to[0] = split_four(x[0], x[1], x[2], x[3]);
        to[STEPS / 2 * GROUP * WARP] = split_four(x[4], x[5], x[6], x[7]);
        warp_sync(); /* all have read max */
        if (i) continue;
        float rescale = exp2f(old - max);
        s->max[q] = max;
        s->total[q] = fmaf(s->total[q], rescale, sum);
        s->rescale[q] = rescale;
    }
}

/* ---- values ---- */

/* The first or the second value of two pairs. */
static __device__ __forceinline__ uint32_t low_halves(uint32_t x, uint32_t y)
{
    return (x & 0xffff) | y << 16;
}
static __device__ __forceinline__ uint32_t high_halves(uint32_t x, uint32_t y)
{
    return x >> 16 | (y & 0xffff0000);
}

/* Sums: dims 8 g + 2 m and + 1 of queries 8 n + 2 l and + 1, in the order of a product. */
template <int GROUP> struct Sums {
    float x[GROUP][4][4]; /* [n][m] */
};

/* The lane's dims of product m of the 16 keys that four eights are of. */
template <typename T>
static __device__ __forceinline__ void values_as_a(const Eight<T> v[4], int m,
                                                   uint32_t a[KvElement<T>::TERMS][4])
{
    UNROLL for (int i = 0; i < KvElement<T>::TERMS; i++)
    {
        a[i][0] = low_halves(v[0].term[i][m], v[1].term[i][m]);
        a[i][1] = high_halves(v[0].term[i][m], v[1].term[i][m]);
        a[i][2] = low_halves(v[2].term[i][m], v[3].term[i][m]);
        a[i][3] = high_halves(v[2].term[i][m], v[3].term[i][m]);
    }
}

/* Product i of those that make up A B: lo hi where A has a lo, hi lo, hi hi. */
template <int TERMS>
static __device__ __forceinline__ void mma_term(float d[4], const uint32_t a[TERMS][4],
                                                const BTerms &b, int i)
{
    const uint32_t hi[2] = {b.x, b.y}, lo[2] = {b.z, b.w};
    int term = i + 3 - (TERMS + 1); /* of three */
    mma_bf16(d, a[term ? 0 : TERMS - 1], term == 1 ? lo : hi);
}

/* Of the tile's first n_keys. */
template <typename T, int GROUP, int COPIED>
static __device__ __forceinline__ void add_values(const Source &from, const size_t *at, int n_keys,
                                                  const Shared<GROUP> *s, const uint4 *part,
                                                  Sums<GROUP> *sums)
{
    enum { TERMS = KvElement<T>::TERMS };
    UNROLL for (int n = 0; n < GROUP; n++)
    {
        float2 rescale = *(const float2 *)(const void *)&s->rescale[8 * n + warp_lane() % 4 * 2];
        UNROLL for (int m = 0; m < 4; m++)
        {
            float *x = sums->x[n][m];
            x[0] *= rescale.x, x[1] *= rescale.y, x[2] *= rescale.x, x[3] *= rescale.y;
        }
    }
    UNROLL for (int k = 0; k < STEPS; k++)
    {
        if (16 * k >= n_keys) break;
        Eight<T> v[4];
        uint32_t a[4][TERMS][4];
        UNROLL for (int i = 0; i < 4; i++) v[i] =
            get_eight<T, PART_V, COPIED>(from, at, part, 4 * k + i);
        UNROLL for (int m = 0; m < 4; m++) values_as_a<T>(v, m, a[m]);
        UNROLL for (int n = 0; n < GROUP; n++)
        {
            BTerms exps = s->p[k][n][warp_lane()];
            UNROLL for (int i = 0; i <= TERMS; i++)
            {
                UNROLL for (int m = 0; m < 4; m++) mma_term<TERMS>(sums->x[n][m], a[m], exps, i);
            }
        }
    }
}

#endif
