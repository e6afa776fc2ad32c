/*
 * attention_cpu.c: gated attention over a token tree and paged K, V.
 *
 * A unit of work is up to GROUP_ROWS consecutive rows of one sequence and up to GROUP_HEADS heads
 * that read one KV head. It walks the tiles in order and within a tile row after row, so that K and
 * V of a tile (64 KiB each for heads of 256, in bf16 half) come from memory once for all of them.
 * bf16 is widened where it is read, so the order of operations is that of f32. What is done for one
 * row and head never depends on its group:
 *     scores: lanes over head_dim, summed; tile maximum; rescale; p = exp(score - max), added up in
 *     lanes that lie on absolute positions; then acc += p_t v_t with t rising.
 *
 * Against the definition: a score carries head_dim / VEC_N + 5 roundings of sum |q k|, which exp
 * turns into a relative error of the same size; sums over T keys add T roundings of positive terms,
 * 64 at a time.
 */
#include "kernels/isa_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    GROUP_ROWS = 8,
    GROUP_HEADS = VEC_ISA == 512 ? 4 : 2,
    GROUP_KEYS = 4, /* of a score tile: what v_sum4 takes */
    ACC_VECS = 4,
};

/* K of one row and KV head; V lies v_offset - k_offset bytes further. */
static unsigned char *kv_row_at(const KvLayer *kv, int seq, int row, int kv_head)
{
    int32_t page = kv->table[(int64_t)seq * kv->table_stride + row / kv->page_tokens];
    int64_t head = (int64_t)(row % kv->page_tokens) * kv->n_kv_heads + kv_head;
    return kv->pages + (size_t)page * kv->page_bytes + kv->k_offset +
           (size_t)(head * kv->head_dim) * kv_type_bytes(kv->type);
}

static void store_head(const KvLayer *kv, unsigned char *to, const float *x)
{
    uint16_t half[MAX_HEAD_DIM];
    size_t dim = (size_t)kv->head_dim;
    if (kv->type != KV_BF16) {
        memcpy(to, x, dim * sizeof *x);
        return;
    }
    for (size_t d = 0; d < dim; d++)
        half[d] = bf16_from_float(x[d]);
    memcpy(to, half, dim * sizeof *half);
}

static void norm_rope(const AttentionPrepare *a, const float *x, const float *w, const float *cs,
                      float *out)
{
    int dim = a->kv.head_dim, half = a->n_rot / 2;
    Vec sum = v_set(0);
    for (int k = 0; k < dim; k += VEC_N) {
        Vec xk = v_load_some(x + k, dim - k);
        sum = v_fma(xk, xk, sum);
    }
    Vec scale = v_set(1 / sqrtf(v_sum(sum) / (float)dim + a->eps));
    for (int k = 0; k < dim; k += VEC_N) {
        int n = dim - k;
        Vec y = v_mul(v_mul(v_load_some(x + k, n), scale), v_load_some(w + k, n));
        v_store_some(out + k, y, n);
    }
    const float *sn = cs + half;
    for (int f = 0; f < half; f += VEC_N) {
        int n = half - f;
        Vec x0 = v_load_some(out + f, n), x1 = v_load_some(out + half + f, n);
        Vec c = v_load_some(cs + f, n), s = v_load_some(sn + f, n);
        v_store_some(out + f, v_sub(v_mul(x0, c), v_mul(x1, s)), n);
        v_store_some(out + half + f, v_add(v_mul(x1, c), v_mul(x0, s)), n);
    }
}

/* Units: row i's n_heads q heads, then its n_kv_heads k and v heads. */
static void prepare_part(const void *arg, int part, int n_parts)
{
    const AttentionPrepare *a = arg;
    const KvLayer *kv = &a->kv;
    int dim = kv->head_dim, per_row = a->n_heads + kv->n_kv_heads, half = a->n_rot / 2;
    int64_t begin, end, angles_of = -1;
    float cs[MAX_HEAD_DIM] = {0}; /* cosines, then sines */
    cpu_split((int64_t)a->n * per_row, part, n_parts, &begin, &end);
    for (int64_t u = begin; u < end; u++) {
        int64_t i = u / per_row;
        int h = (int)(u % per_row);
        if (angles_of != i)
            for (int f = 0; f < half; f++) {
                float angle = (float)a->rope_pos[i] * a->inv_freq[f];
                cs[f] = cosf(angle) * a->rope_scale;
                cs[half + f] = sinf(angle) * a->rope_scale;
            }
        angles_of = i;
        if (h < a->n_heads) {
            int64_t head = i * a->n_heads + h;
            norm_rope(a, a->qg + head * 2 * dim, a->q_norm, cs, a->q + head * dim);
            continue;
        }
        h -= a->n_heads;
        int64_t from = (i * kv->n_kv_heads + h) * dim;
        unsigned char *row = kv_row_at(kv, a->seq[i], a->kv_row[i], h);
        float k[MAX_HEAD_DIM] = {0};
        norm_rope(a, a->k + from, a->k_norm, cs, k);
        store_head(kv, row, k);
        store_head(kv, row - kv->k_offset + kv->v_offset, a->v + from);
    }
}

void ISA_NAME(attention_prepare)(Threads *t, const AttentionPrepare *a)
{
    int64_t heads = (int64_t)a->n * (a->n_heads + a->kv.n_kv_heads);
    assert(a->kv.head_dim <= MAX_HEAD_DIM && a->n_rot <= a->kv.head_dim);
    cpu_run(t, heads * a->kv.head_dim * 4, prepare_part, a);
}

/* What one (row, head) carries from tile to tile. */
typedef struct {
    float max, total;
    float acc[MAX_HEAD_DIM];
} Running;

typedef struct {
    const TreeAttention *a;
    int row, n_rows;            /* rows of the unit, of q and out; + row0: of the tables */
    int kv_head, head, n_heads; /* heads of the unit, all on kv_head */
    Running run[GROUP_ROWS][GROUP_HEADS];

    /* the tile: keys of positions tile + begin .. tile + end - 1 */
    int tile, begin, end;
    const unsigned char *k[ATTENTION_TILE], *v[ATTENTION_TILE];
    /* q k, then exp(scale q k - max); 0 outside. The last scores are stored with some more. */
    float p[GROUP_HEADS][ATTENTION_TILE + GROUP_KEYS];
} Unit;

static void point_at(Unit *u, int t, int kv_row)
{
    const KvLayer *kv = &u->a->kv;
    unsigned char *k = kv_row_at(kv, u->a->seq[u->a->row0 + u->row], kv_row, u->kv_head);
    u->k[t - u->tile] = k;
    u->v[t - u->tile] = k - kv->k_offset + kv->v_offset;
}

/* Finds the keys of the tile for row j of the tables: committed rows, then ancestors. */
static void find_keys(Unit *u, int j)
{
    const TreeAttention *a = u->a;
    int first = u->tile + u->begin, last = u->tile + u->end - 1, base = a->base[j];
    for (int t = first; t <= last && t < base; t++)
        point_at(u, t, t);
    if (last < base) return;
    while (a->pos[j] > last)
        j = a->parent[j];
    for (int t = last; t >= first && t >= base; t--) {
        assert(a->pos[j] == t);
        point_at(u, t, a->kv_row[j]);
        if (t > base) j = a->parent[j];
    }
}

/* Elements d .. of a head's K or V, of which n_left exist. */
INLINE Vec load_some(KvType type, const unsigned char *head, int d, int n_left)
{
    if (type == KV_BF16) return v_bf16_some((const uint16_t *)(const void *)head + d, n_left);
    return v_load_some((const float *)(const void *)head + d, n_left);
}

/* q k of n_heads heads for the tile's keys. */
INLINE void score_heads(Unit *u, int n_heads, KvType type, const float *q)
{
    int dim = u->a->kv.head_dim;
    for (int t = u->begin; t < u->end; t += GROUP_KEYS) {
        const unsigned char *k[GROUP_KEYS];
        Vec acc[GROUP_HEADS][GROUP_KEYS];
        UNROLL
        for (int g = 0; g < GROUP_KEYS; g++)
            k[g] = u->k[t + g < u->end ? t + g : u->end - 1];
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            UNROLL
            for (int g = 0; g < GROUP_KEYS; g++)
                acc[h][g] = v_set(0);
        }
        for (int d = 0; d < dim; d += VEC_N) {
            Vec kd[GROUP_KEYS];
            UNROLL
            for (int g = 0; g < GROUP_KEYS; g++)
                kd[g] = load_some(type, k[g], d, dim - d);
            UNROLL
            for (int h = 0; h < n_heads; h++) {
                Vec qd = v_load_some(q + h * dim + d, dim - d);
                UNROLL
                for (int g = 0; g < GROUP_KEYS; g++)
                    acc[h][g] = v_fma(qd, kd[g], acc[h][g]);
            }
        }
        UNROLL
        for (int h = 0; h < n_heads; h++)
            v_sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3], &u->p[h][t]);
    }
}

/* q k to exp(scale q k - max) in place; returns what the sums so far are multiplied by. */
static float softmax_tile(float *p, float scale, int begin, int end, Running *run)
{
    for (int t = 0; t < begin; t++)
        p[t] = -INFINITY;
    for (int t = end; t < ATTENTION_TILE; t++)
        p[t] = -INFINITY;
    Vec best = v_set(run->max), sum = v_set(0);
    for (int t = 0; t < ATTENTION_TILE; t += VEC_N) {
        Vec score = v_mul(v_load(p + t), v_set(scale));
        v_store(p + t, score);
        best = v_max(score, best);
    }
    float max = v_largest(best);
    for (int t = 0; t < ATTENTION_TILE; t += VEC_N) {
        Vec e = v_exp(v_sub(v_load(p + t), v_set(max)));
        v_store(p + t, e);
        sum = v_add(sum, e);
    }
    float lane[VEC_N];
    v_store(lane, v_exp(v_set(run->max - max)));
    run->total = run->total * lane[0] + v_sum(sum);
    run->max = max;
    return lane[0];
}

/* acc = acc * rescale + sum_t p_t v_t for n_vecs vectors of head_dim from d on. */
INLINE void add_values(Unit *u, Running *run, const float *rescale, int n_heads, KvType type,
                       int n_vecs, int d, int n_left)
{
    Vec acc[GROUP_HEADS][ACC_VECS];
    UNROLL
    for (int h = 0; h < n_heads; h++) {
        UNROLL
        for (int j = 0; j < n_vecs; j++)
            acc[h][j] = v_mul(v_load(run[h].acc + d + j * VEC_N), v_set(rescale[h]));
    }
    for (int t = u->begin; t < u->end; t++) {
        Vec vj[ACC_VECS];
        UNROLL
        for (int j = 0; j < n_vecs; j++)
            vj[j] = load_some(type, u->v[t], d + j * VEC_N, n_left - j * VEC_N);
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            Vec p = v_set(u->p[h][t]);
            UNROLL
            for (int j = 0; j < n_vecs; j++)
                acc[h][j] = v_fma(p, vj[j], acc[h][j]);
        }
    }
    UNROLL
    for (int h = 0; h < n_heads; h++) {
        UNROLL
        for (int j = 0; j < n_vecs; j++)
            v_store(run[h].acc + d + j * VEC_N, acc[h][j]);
    }
}

INLINE void attend_typed(Unit *u, int n_heads, KvType type, int i)
{
    const TreeAttention *a = u->a;
    int dim = a->kv.head_dim, d = 0;
    Running *run = u->run[i - u->row];
    float rescale[GROUP_HEADS];
    score_heads(u, n_heads, type, a->q + ((int64_t)i * a->n_heads + u->head) * dim);
    for (int h = 0; h < n_heads; h++)
        rescale[h] = softmax_tile(u->p[h], a->scale, u->begin, u->end, &run[h]);
    for (; d + ACC_VECS * VEC_N <= dim; d += ACC_VECS * VEC_N)
        add_values(u, run, rescale, n_heads, type, ACC_VECS, d, ACC_VECS * VEC_N);
    for (; d < dim; d += VEC_N)
        add_values(u, run, rescale, n_heads, type, 1, d, dim - d);
}

INLINE void attend_heads(Unit *u, int n_heads, int i)
{
    if (u->a->kv.type == KV_BF16)
        attend_typed(u, n_heads, KV_BF16, i);
    else
        attend_typed(u, n_heads, KV_F32, i);
}

/* The tile's part of row i. */
static void attend_row(Unit *u, int i)
{
    switch (u->n_heads) {
    case 1:
        attend_heads(u, 1, i);
        break;
    case 2:
        attend_heads(u, 2, i);
        break;
#if VEC_ISA == 512
    case 3:
        attend_heads(u, 3, i);
        break;
    case 4:
        attend_heads(u, 4, i);
        break;
#endif
    default:
        assert(!"more heads than a unit has");
    }
}

/* out = acc / total * sigmoid(gate) */
static void finish_row(const Unit *u, int i)
{
    const TreeAttention *a = u->a;
    int dim = a->kv.head_dim;
    for (int h = 0; h < u->n_heads; h++) {
        const Running *run = &u->run[i - u->row][h];
        int64_t head = (int64_t)i * a->n_heads + u->head + h;
        const float *gate = a->qg + (head * 2 + 1) * dim;
        Vec total = v_set(run->total);
        for (int d = 0; d < dim; d += VEC_N) {
            Vec y = v_div(v_load(run->acc + d), total);
            y = v_mul(y, v_sigmoid(v_load_some(gate + d, dim - d)));
            v_store_some(a->out + head * dim + d, y, dim - d);
        }
    }
}

static void attend_unit(Unit *u)
{
    const TreeAttention *a = u->a;
    const int32_t *pos = a->pos + a->row0 + u->row, *base = a->base + a->row0 + u->row;
    int first = attention_first(a, a->row0 + u->row), last = pos[0], lowest_base = base[0];
    int padded = (a->kv.head_dim + VEC_N - 1) / VEC_N * VEC_N;
    for (int i = 0; i < u->n_rows; i++) {
        if (pos[i] > last) last = pos[i];
        if (base[i] < lowest_base) lowest_base = base[i];
        for (int h = 0; h < u->n_heads; h++) {
            u->run[i][h].max = -INFINITY;
            u->run[i][h].total = 0;
            memset(u->run[i][h].acc, 0, (size_t)padded * sizeof(float));
        }
    }
    for (u->tile = first / ATTENTION_TILE * ATTENTION_TILE; u->tile <= last;
         u->tile += ATTENTION_TILE) {
        int n_found = 0; /* keys known from the row before, when all of them are committed */
        u->begin = first > u->tile ? first - u->tile : 0;
        for (int i = 0; i < u->n_rows; i++) {
            if (pos[i] < u->tile + u->begin) continue;
            int n = pos[i] + 1 - u->tile;
            u->end = n < ATTENTION_TILE ? n : ATTENTION_TILE;
            if (n_found < u->end) find_keys(u, a->row0 + u->row + i);
            n_found = u->tile + u->end <= lowest_base ? u->end : 0;
            attend_row(u, u->row + i);
        }
    }
    for (int i = u->row; i < u->row + u->n_rows; i++)
        finish_row(u, i);
}

/* Rows from i on that form one group. */
static int group_rows(const TreeAttention *a, int i)
{
    const int32_t *seq = a->seq + a->row0 + i;
    int n = 1;
    while (n < GROUP_ROWS && i + n < a->n && seq[n] == seq[0])
        n++;
    return n;
}

typedef struct {
    const TreeAttention *a;
    int heads; /* of a unit at most */
} Plan;

/* Units are dealt out in turn: in a prompt later rows have more keys. */
static void attention_part(const void *arg, int part, int n_parts)
{
    const Plan *plan = arg;
    const TreeAttention *a = plan->a;
    int per_kv = a->n_heads / a->kv.n_kv_heads, unit = 0;
    Unit u;
    u.a = a;
    for (u.row = 0; u.row < a->n; u.row += u.n_rows) {
        u.n_rows = group_rows(a, u.row);
        for (u.kv_head = 0; u.kv_head < a->kv.n_kv_heads; u.kv_head++)
            for (int h = 0; h < per_kv; h += plan->heads) {
                u.head = u.kv_head * per_kv + h;
                u.n_heads = per_kv - h < plan->heads ? per_kv - h : plan->heads;
                if (unit++ % n_parts == part) attend_unit(&u);
            }
    }
}

void ISA_NAME(tree_attention)(Threads *t, const TreeAttention *a)
{
    int64_t work = 0, units = 0;
    int per_kv = a->n_heads / a->kv.n_kv_heads;
    assert(a->kv.head_dim <= MAX_HEAD_DIM);
    for (int i = 0; i < a->n; i += group_rows(a, i))
        units += (int64_t)a->kv.n_kv_heads * ((per_kv + GROUP_HEADS - 1) / GROUP_HEADS);
    for (int i = 0; i < a->n; i++)
        work += (int64_t)(a->pos[a->row0 + i] - attention_first(a, a->row0 + i) + 1) * a->n_heads *
                a->kv.head_dim * 2;
    /* few units for many threads: K is read more often, but by all of them */
    Plan plan = {a, units < threads_count(t) ? 1 : GROUP_HEADS};
    cpu_run(t, work, attention_part, &plan);
}
