/*
 * attention_vec.h: what attention_cpu.c does with a tile of keys.
 *
 * A unit's queries are its rows, head after head. Those that have the same keys go together,
 * QUERIES at a time; what is done for one of them never depends on the others:
 *     scores: lanes over head_dim, summed; tile maximum; rescale; p = exp(score - max), added up in
 *     lanes that lie on absolute positions; then acc += p_t v_t with t rising. Each segment of the
 *     keys begins anew, and its sums are added to those of the segments before it.
 * Each group of queries asks for its share of the next tile, so that memory is busy all the time.
 * bf16 is widened where it is read, so the order of operations is that of f32.
 *
 * Six queries at a time widen and read less often, and are no faster.
 *
 * Against the definition: a score carries head_dim / VEC_N + 5 roundings of sum |q k|, which exp
 * turns into a relative error of the same size; sums over a segment's T keys add T roundings of
 * positive terms, 64 at a time.
 */
#ifndef OFFSHOOT_KERNELS_ATTENTION_VEC_H
#define OFFSHOOT_KERNELS_ATTENTION_VEC_H

#include <assert.h>
#include <math.h>

#include "kernels/attention.h"
#include "kernels/prefetch.h"

enum {
    UNIT_QUERIES = 64,
    UNIT_FLOATS = 64 * 256, /* of sums: 64 KiB, twice in L2 beside two tiles of K and V */
    FEW_ROWS = 8,           /* a unit has more of them only where threads have enough to do */
    QUERIES = VEC_ISA == 512 ? 4 : 2,
    GROUP_KEYS = 4, /* of scores: what v_sum4 takes */
    ACC_VECS = 4,
};

/* Of queries: the largest score, the sums of exp(score - max) and of exp(score - max) v. */
typedef struct {
    _Alignas(CACHE_LINE) float acc[UNIT_FLOATS]; /* [query][stride] */
    float max[UNIT_QUERIES], total[UNIT_QUERIES];
} Sums;

/* Some rows of a sequence and some heads on one KV head. */
typedef struct {
    const TreeAttention *a;
    int row, n_rows; /* of q and out; + row0: of the tables */
    int kv_head, head, n_heads;
    int stride; /* head_dim in whole vectors */

    Sums sums, all;              /* of the segment, and with those before it */
    float rescale[UNIT_QUERIES]; /* what the tile has multiplied the sums by */

    /* the tile: keys of positions tile + begin .. tile + end - 1 */
    int tile, begin, end;
    /* K of them; V lies v_offset - k_offset bytes further */
    const unsigned char *k[ATTENTION_TILE];
    const unsigned char *ahead[ATTENTION_TILE]; /* of the next tile's, to ask for */
    int n_ahead;                                /* ATTENTION_TILE, or 0: none to ask for */
    /* q k, then exp(scale q k - max); 0 outside. The last scores are stored with some more. */
    float p[UNIT_QUERIES][ATTENTION_TILE + GROUP_KEYS];
} Unit;

/* Queries x .. x + n - 1 of a unit, which ask for share `share` of `shares` of the next tile. */
typedef struct {
    int x, n, share, shares;
} Group;

INLINE int whole_vecs(int dim)
{
    return (dim + VEC_N - 1) / VEC_N * VEC_N;
}

/* K of one row and KV head; V lies v_offset - k_offset bytes further. */
INLINE unsigned char *kv_row_at(const KvLayer *kv, int seq, int row, int kv_head)
{
    int32_t page = kv->table[(int64_t)seq * kv->table_stride + row / kv->page_tokens];
    int64_t head = (int64_t)(row % kv->page_tokens) * kv->n_kv_heads + kv_head;
    return kv->pages + (size_t)page * kv->page_bytes + kv->k_offset +
           (size_t)(head * kv->head_dim) * kv_type_bytes(kv->type);
}

/* Row and head of a query, as q and out have them. */
INLINE int64_t query_head(const Unit *u, int x)
{
    int64_t row = u->row + x / u->n_heads;
    return row * u->a->n_heads + u->head + x % u->n_heads;
}

/* Elements d .. of a head's K or V, of which n_left exist. */
INLINE Vec load_some(KvType type, const unsigned char *head, int d, int n_left)
{
    if (type == KV_BF16) return v_bf16_some((const uint16_t *)(const void *)head + d, n_left);
    return v_load_some((const float *)(const void *)head + d, n_left);
}

/* Elements in a line of memory. */
INLINE int line_of(KvType type)
{
    return CACHE_LINE / (int)kv_type_bytes(type);
}

/* Asks for the line with element d of n keys. */
INLINE void ask_for(KvType type, const unsigned char *const *k, int n, size_t offset, int d)
{
    UNROLL
    for (int g = 0; g < n; g++)
        prefetch_l2(k[g] + offset, (int64_t)((size_t)d * kv_type_bytes(type)));
}

/* acc += q k of n queries and GROUP_KEYS keys, elements d .. of which n_left exist. */
INLINE void score_step(KvType type, int n, const unsigned char *const *k, const float *const *q,
                       int d, int n_left, Vec (*acc)[GROUP_KEYS])
{
    Vec kd[GROUP_KEYS];
    UNROLL
    for (int g = 0; g < GROUP_KEYS; g++)
        kd[g] = load_some(type, k[g], d, n_left);
    UNROLL
    for (int i = 0; i < n; i++) {
        Vec qd = v_load_some(q[i] + d, n_left);
        UNROLL
        for (int g = 0; g < GROUP_KEYS; g++)
            acc[i][g] = v_fma(qd, kd[g], acc[i][g]);
    }
}

/* q k of n queries for the tile's keys. */
INLINE void score(Unit *u, KvType type, int n, const Group *of)
{
    const int dim = u->a->kv.head_dim, line = line_of(type);
    const float *q[QUERIES];
    UNROLL
    for (int i = 0; i < n; i++)
        q[i] = u->a->q + query_head(u, of->x + i) * dim;
    int due = u->begin + of->share * GROUP_KEYS;
    for (int t = u->begin; t < u->end; t += GROUP_KEYS) {
        const unsigned char *const *ahead = NULL;
        if (t == due && t < u->n_ahead) ahead = u->ahead + t, due += of->shares * GROUP_KEYS;
        const unsigned char *k[GROUP_KEYS];
        Vec acc[QUERIES][GROUP_KEYS];
        UNROLL
        for (int g = 0; g < GROUP_KEYS; g++)
            k[g] = u->k[t + g < u->end ? t + g : u->end - 1];
        UNROLL
        for (int i = 0; i < n; i++) {
            UNROLL
            for (int g = 0; g < GROUP_KEYS; g++)
                acc[i][g] = v_set(0);
        }
        int d = 0;
        for (; d + VEC_N <= dim; d += VEC_N) {
            if (ahead && d % line == 0) ask_for(type, ahead, GROUP_KEYS, 0, d);
            score_step(type, n, k, q, d, VEC_N, acc);
        }
        if (d < dim) score_step(type, n, k, q, d, dim - d, acc);
        UNROLL
        for (int i = 0; i < n; i++)
            v_sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3], &u->p[of->x + i][t]);
    }
}

/* Query x: q k to exp(scale q k - max) in place. */
INLINE void softmax_tile(Unit *u, int x)
{
    float *p = u->p[x];
    for (int t = 0; t < u->begin; t++)
        p[t] = -INFINITY;
    for (int t = u->end; t < ATTENTION_TILE; t++)
        p[t] = -INFINITY;
    Vec best = v_set(u->sums.max[x]), sum = v_set(0);
    for (int t = 0; t < ATTENTION_TILE; t += VEC_N) {
        Vec scaled = v_mul(v_load(p + t), v_set(u->a->scale));
        v_store(p + t, scaled);
        best = v_max(scaled, best);
    }
    float max = v_largest(best);
    for (int t = 0; t < ATTENTION_TILE; t += VEC_N) {
        Vec e = v_exp(v_sub(v_load(p + t), v_set(max)));
        v_store(p + t, e);
        sum = v_add(sum, e);
    }
    float lane[VEC_N];
    v_store(lane, v_exp(v_set(u->sums.max[x] - max)));
    u->rescale[x] = lane[0];
    u->sums.total[x] = u->sums.total[x] * lane[0] + v_sum(sum);
    u->sums.max[x] = max;
}

/* acc = acc * rescale + sum_t p_t v_t of n queries, n_vecs vectors of head_dim from d on. */
INLINE void add_values(Unit *u, KvType type, int n, const Group *of, int n_vecs, int d, int n_left)
{
    const int line = line_of(type);
    const size_t offset = u->a->kv.v_offset - u->a->kv.k_offset;
    float *to = u->sums.acc + of->x * u->stride + d;
    Vec acc[QUERIES][ACC_VECS];
    UNROLL
    for (int i = 0; i < n; i++) {
        Vec rescale = v_set(u->rescale[of->x + i]);
        UNROLL
        for (int j = 0; j < n_vecs; j++)
            acc[i][j] = v_mul(v_load(to + i * u->stride + j * VEC_N), rescale);
    }
    int due = u->begin + of->share;
    for (int t = u->begin; t < u->end; t++) {
        Vec vj[ACC_VECS];
        if (t == due && t < u->n_ahead) {
            due += of->shares;
            UNROLL
            for (int j = 0; j < n_vecs; j++)
                if (j * VEC_N % line == 0) ask_for(type, u->ahead + t, 1, offset, d + j * VEC_N);
        }
        UNROLL
        for (int j = 0; j < n_vecs; j++)
            vj[j] = load_some(type, u->k[t] + offset, d + j * VEC_N, n_left - j * VEC_N);
        UNROLL
        for (int i = 0; i < n; i++) {
            Vec p = v_set(u->p[of->x + i][t]);
            UNROLL
            for (int j = 0; j < n_vecs; j++)
                acc[i][j] = v_fma(p, vj[j], acc[i][j]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        UNROLL
        for (int j = 0; j < n_vecs; j++)
            v_store(to + i * u->stride + j * VEC_N, acc[i][j]);
    }
}

/* n is of->n, known where this is compiled. */
INLINE void attend_group(Unit *u, KvType type, int n, const Group *of)
{
    int d = 0;
    score(u, type, n, of);
    for (int i = 0; i < n; i++)
        softmax_tile(u, of->x + i);
    for (; d + ACC_VECS * VEC_N <= u->a->kv.head_dim; d += ACC_VECS * VEC_N)
        add_values(u, type, n, of, ACC_VECS, d, ACC_VECS * VEC_N);
    for (; d < u->a->kv.head_dim; d += VEC_N)
        add_values(u, type, n, of, 1, d, u->a->kv.head_dim - d);
}

INLINE void attend_typed(Unit *u, KvType type, const Group *of)
{
    switch (of->n) {
    case 1:
        attend_group(u, type, 1, of);
        break;
    case 2:
        attend_group(u, type, 2, of);
        break;
#if VEC_ISA == 512
    case 3:
        attend_group(u, type, 3, of);
        break;
    case 4:
        attend_group(u, type, 4, of);
        break;
#endif
    default:
        assert(!"a group has at most QUERIES queries");
    }
}

/* Adds the sums of one more segment; no segment yet is -INFINITY, 0 and zeros. n: whole vectors. */
INLINE void add_sums(float *max, float *total, float *acc, float more_max, float more_total,
                     const float *more, int n)
{
    float high = more_max > *max ? more_max : *max;
    Vec old = v_exp(v_set(*max - high)), new = v_exp(v_set(more_max - high));
    float lane[2][VEC_N];
    v_store(lane[0], old), v_store(lane[1], new);
    for (int d = 0; d < n; d += VEC_N)
        v_store(acc + d, v_fma(v_load(more + d), new, v_mul(v_load(acc + d), old)));
    *total = *total * lane[0][0] + more_total * lane[1][0];
    *max = high;
}

/* The tile's part of queries x .. end - 1, whose keys are the same. */
static void attend(Unit *u, int x, int end)
{
    int n = end - x, shares = (n + QUERIES - 1) / QUERIES;
    for (int i = 0; i < shares; i++) {
        Group of = {.x = x + n * i / shares, .share = i, .shares = shares};
        of.n = x + n * (i + 1) / shares - of.x;
        if (u->a->kv.type == KV_BF16)
            attend_typed(u, KV_BF16, &of);
        else
            attend_typed(u, KV_F32, &of);
    }
}

#endif
