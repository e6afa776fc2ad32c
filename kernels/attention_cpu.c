/*
 * attention_cpu.c: gated attention over a token tree and paged K, V.
 *
 * A unit of work is rows of one sequence and heads that read one KV head, as many as fit: it walks
 * the tiles in order, so K and V come from memory once for all of them. What a unit does with a
 * tile is attention_vec.h's.
 *
 * Bytes are those of K and V, operations 2 head_dim multiply-adds a key and query. Two cores of
 * Zen 4 (AVX-512, 118 G multiply-adds/s; memory 31 GB/s), 8 heads on 2 of K and V, of 256, f32,
 * behind 16,384 tokens: one row 29 GB/s (17 where no tile is asked for ahead), 4 rows 75 G
 * multiply-adds/s (46), 8 rows 85 (62), 64 rows of a prompt 92 (61: units of 8 rows, row by row).
 */
#include "kernels/isa_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/attention_vec.h"

enum {
    SEGMENT_KEYS = 512,
    SEGMENTS = 8,   /* from a power of two to the next */
    PER_THREAD = 4, /* units of one segment each, for all threads to end together */
};

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

/* Finds the keys of the tile for row j of the tables: committed rows, then ancestors. */
static void find_keys(Unit *u, int j)
{
    const TreeAttention *a = u->a;
    int first = u->tile + u->begin, last = u->tile + u->end - 1, base = a->base[j], seq = a->seq[j];
    for (int t = first; t <= last && t < base; t++)
        u->k[t - u->tile] = kv_row_at(&a->kv, seq, t, u->kv_head);
    if (last < base) return;
    while (a->pos[j] > last)
        j = a->parent[j];
    for (int t = last; t >= first && t >= base; t--) {
        assert(a->pos[j] == t);
        u->k[t - u->tile] = kv_row_at(&a->kv, seq, a->kv_row[j], u->kv_head);
        if (t > base) j = a->parent[j];
    }
}

/* Finds the committed keys of the tile behind, as far as position `last`; the last one stands for
 * those that are not. */
static void look_ahead(Unit *u, int last)
{
    int row = u->a->row0 + u->row, base = u->a->base[row], begin = u->tile + ATTENTION_TILE;
    int n = (base <= last ? base : last + 1) - begin;
    u->n_ahead = n > 0 ? ATTENTION_TILE : 0;
    for (int t = 0; t < u->n_ahead; t++)
        u->ahead[t] = kv_row_at(&u->a->kv, u->a->seq[row], begin + (t < n ? t : n - 1), u->kv_head);
}

/* 1 if row i and the next have all of the tile and the same keys: committed, or i's ancestors. */
static int shares_keys(const Unit *u, int i)
{
    const TreeAttention *a = u->a;
    int j = a->row0 + i, behind = u->tile + ATTENTION_TILE;
    if (a->pos[j] + 1 < behind || a->pos[j + 1] + 1 < behind) return 0;
    if (behind <= a->base[j] && behind <= a->base[j + 1]) return 1;
    return a->base[j] == a->base[j + 1] && a->parent[j + 1] == j;
}

/* The tile, for rows with the same keys together; `last`: the last position of all. */
static void attend_tile(Unit *u, int last)
{
    const int32_t *pos = u->a->pos + u->a->row0;
    int end_row = u->row + u->n_rows;
    look_ahead(u, last);
    for (int i = u->row, next; i < end_row; i = next) {
        int n_keys = pos[i] + 1 - u->tile;
        next = i + 1;
        if (n_keys <= u->begin) continue;
        u->end = n_keys < ATTENTION_TILE ? n_keys : ATTENTION_TILE;
        find_keys(u, u->a->row0 + i);
        while (next < end_row && shares_keys(u, next - 1))
            next++;
        attend(u, (i - u->row) * u->n_heads, (next - u->row) * u->n_heads);
        u->n_ahead = 0;
    }
}

/*
 * Keys are walked in segments that end at 512, 1024, .. 8192, 9216, .. 16384, 18432, .., eight from
 * there to each next power of two: where there are few queries, threads share their keys. Where the
 * segment of position t ends.
 */
static int segment_end(int t)
{
    int keys = SEGMENT_KEYS;
    while (t / keys >= 2 * SEGMENTS)
        keys *= 2;
    return (t / keys + 1) * keys;
}

static void clear_sums(Sums *s, int n_queries, int stride)
{
    for (int x = 0; x < n_queries; x++)
        s->max[x] = -INFINITY, s->total[x] = 0;
    memset(s->acc, 0, (size_t)(n_queries * stride) * sizeof *s->acc);
}

/* Tiles of the segment with position t, from t on; the sums of queries that have none are empty. */
static void attend_segment(Unit *u, int t, int last)
{
    int end = segment_end(t);
    clear_sums(&u->sums, u->n_rows * u->n_heads, u->stride);
    for (u->tile = t / ATTENTION_TILE * ATTENTION_TILE; u->tile < end && u->tile <= last;
         u->tile += ATTENTION_TILE) {
        u->begin = t > u->tile ? t - u->tile : 0;
        attend_tile(u, last);
    }
}

/* out = acc / total * sigmoid(gate) of row and head `at`. */
static void finish(const TreeAttention *a, int64_t at, float total, const float *acc)
{
    int dim = a->kv.head_dim;
    const float *gate = a->qg + (at * 2 + 1) * dim;
    for (int d = 0; d < dim; d += VEC_N) {
        Vec y = v_div(v_load(acc + d), v_set(total));
        y = v_mul(y, v_sigmoid(v_load_some(gate + d, dim - d)));
        v_store_some(a->out + at * dim + d, y, dim - d);
    }
}

/* The position of query x. */
static int query_pos(const Unit *u, int x)
{
    return u->a->pos[u->a->row0 + u->row + x / u->n_heads];
}

/* The last position of n rows. */
static int last_pos(const TreeAttention *a, int row, int n)
{
    const int32_t *pos = a->pos + a->row0 + row;
    int last = 0;
    for (int i = 0; i < n; i++)
        if (pos[i] > last) last = pos[i];
    return last;
}

/* All segments of a unit, one after the other. */
static void attend_all(Unit *u)
{
    int n_queries = u->n_rows * u->n_heads, last = last_pos(u->a, u->row, u->n_rows);
    Sums *all = &u->all;
    clear_sums(all, n_queries, u->stride);
    for (int t = attention_first(u->a, u->a->row0 + u->row); t <= last; t = segment_end(t)) {
        attend_segment(u, t, last);
        for (int x = 0; x < n_queries; x++)
            if (query_pos(u, x) >= t)
                add_sums(&all->max[x], &all->total[x], all->acc + x * u->stride, u->sums.max[x],
                         u->sums.total[x], u->sums.acc + x * u->stride, u->stride);
    }
    for (int x = 0; x < n_queries; x++)
        finish(u->a, query_head(u, x), all->total[x], all->acc + x * u->stride);
}

/* How the work is cut: units of so many rows and heads at most, of all segments or of one. */
typedef struct {
    const TreeAttention *a;
    int rows, heads;
    int n_segments; /* from a->first on; 1: a unit has them all */
    float *sums;    /* else [n][n_heads][n_segments][SUM + head_dim in whole vectors] */
} Plan;

/* Places of a query's sums. */
enum { SUM_MAX, SUM_TOTAL, SUM = VEC_N > 2 ? VEC_N : 2 };

static float *sums_at(const Plan *p, int64_t query, int segment)
{
    return p->sums + (query * p->n_segments + segment) * (SUM + whole_vecs(p->a->kv.head_dim));
}

/* Segment `segment`, which begins at position t, of a unit. */
static void attend_one(Unit *u, const Plan *p, int segment, int t)
{
    int first = attention_first(u->a, u->a->row0 + u->row);
    int last = last_pos(u->a, u->row, u->n_rows);
    if (first >= segment_end(t) || last < t) return;
    attend_segment(u, first > t ? first : t, last);
    for (int x = 0; x < u->n_rows * u->n_heads; x++) {
        float *to = sums_at(p, query_head(u, x), segment);
        to[SUM_MAX] = u->sums.max[x], to[SUM_TOTAL] = u->sums.total[x];
        memcpy(to + SUM, u->sums.acc + x * u->stride, (size_t)u->stride * sizeof *to);
    }
}

/* Adds up segments where each was a unit. */
static void add_part(const void *arg, int part, int n_parts)
{
    const Plan *p = arg;
    const TreeAttention *a = p->a;
    int dim = whole_vecs(a->kv.head_dim);
    int64_t begin, end;
    cpu_split((int64_t)a->n * a->n_heads, part, n_parts, &begin, &end);
    for (int64_t at = begin; at < end; at++) {
        int row = a->row0 + (int)(at / a->n_heads), first = attention_first(a, row);
        float max = -INFINITY, total = 0, acc[MAX_HEAD_DIM] = {0};
        for (int s = 0, t = a->first; s < p->n_segments; s++, t = segment_end(t)) {
            const float *more = sums_at(p, at, s);
            if (first < segment_end(t) && t <= a->pos[row])
                add_sums(&max, &total, acc, more[SUM_MAX], more[SUM_TOTAL], more + SUM, dim);
        }
        finish(a, at, total, acc);
    }
}

/* Rows from row i on that are of its sequence. */
static int rows_together(const TreeAttention *a, int i)
{
    const int32_t *seq = a->seq + a->row0 + i;
    int n = 1;
    while (i + n < a->n && seq[n] == seq[0])
        n++;
    return n;
}

static int parts_of(int n, int most)
{
    return (n + most - 1) / most;
}

static int n_units(const Plan *p)
{
    const TreeAttention *a = p->a;
    int n = 0;
    for (int i = 0, rows; i < a->n; i += rows) {
        rows = rows_together(a, i);
        n += parts_of(rows, p->rows);
    }
    return n * a->kv.n_kv_heads * parts_of(a->n_heads / a->kv.n_kv_heads, p->heads);
}

/* Segments that the rows have. */
static int count_segments(const TreeAttention *a)
{
    int last = last_pos(a, 0, a->n), n = 0;
    for (int t = a->first; t <= last; t = segment_end(t))
        n++;
    return n;
}

static int sums_fit(const Plan *p, int n_segments, Scratch scratch)
{
    size_t floats = (size_t)(SUM + whole_vecs(p->a->kv.head_dim));
    return floats * (size_t)(p->a->n * p->a->n_heads) * (size_t)n_segments * sizeof(float) <=
           scratch.bytes;
}

/*
 * Large units, for each reads K and V; of fewer rows while there is not one for every thread. Then
 * each segment is a unit, if that makes so many that all threads have as much to do; else heads are
 * shared out, which reads K and V again, and segments last.
 */
static Plan plan_units(const TreeAttention *a, int n_threads, Scratch scratch)
{
    int per_kv = a->n_heads / a->kv.n_kv_heads, most = UNIT_FLOATS / whole_vecs(a->kv.head_dim);
    if (most > UNIT_QUERIES) most = UNIT_QUERIES;
    Plan p = {.a = a, .n_segments = 1, .sums = scratch.data};
    p.heads = per_kv < most ? per_kv : most;
    p.rows = most / p.heads;
    while (p.rows > FEW_ROWS && n_units(&p) < n_threads)
        p.rows = parts_of(p.rows, 2);
    int n_segments = n_units(&p) < n_threads ? count_segments(a) : 1;
    if (!sums_fit(&p, n_segments, scratch)) n_segments = 1;
    if (n_units(&p) * n_segments < PER_THREAD * n_threads)
        while (p.heads > 1 && n_units(&p) < n_threads)
            p.heads = parts_of(p.heads, 2);
    if (n_units(&p) < n_threads) p.n_segments = n_segments;
    return p;
}

/* Units are dealt out in turn: in a prompt later rows have more keys. */
static void attention_part(const void *arg, int part, int n_parts)
{
    const Plan *p = arg;
    const TreeAttention *a = p->a;
    int per_kv = a->n_heads / a->kv.n_kv_heads, head_parts = parts_of(per_kv, p->heads), unit = 0;
    Unit u;
    u.a = a;
    u.stride = whole_vecs(a->kv.head_dim);
    for (int i = 0, rows; i < a->n; i += rows) {
        rows = rows_together(a, i);
        int row_parts = parts_of(rows, p->rows), n = row_parts * a->kv.n_kv_heads * head_parts;
        for (int k = 0; k < n; k++) {
            int g = k / (a->kv.n_kv_heads * head_parts), h = k % head_parts;
            u.kv_head = k / head_parts % a->kv.n_kv_heads;
            u.row = i + rows * g / row_parts;
            u.n_rows = i + rows * (g + 1) / row_parts - u.row;
            u.head = u.kv_head * per_kv + per_kv * h / head_parts;
            u.n_heads = u.kv_head * per_kv + per_kv * (h + 1) / head_parts - u.head;
            for (int s = 0, t = a->first; s < p->n_segments; s++, t = segment_end(t)) {
                if (unit++ % n_parts != part) continue;
                if (p->n_segments > 1)
                    attend_one(&u, p, s, t);
                else
                    attend_all(&u);
            }
        }
    }
}

void ISA_NAME(tree_attention)(Threads *t, const TreeAttention *a, Scratch scratch)
{
    int64_t work = 0;
    assert(a->kv.head_dim <= MAX_HEAD_DIM);
    for (int i = 0; i < a->n; i++)
        work += (int64_t)(a->pos[a->row0 + i] - attention_first(a, a->row0 + i) + 1) * a->n_heads *
                a->kv.head_dim * 2;
    Plan plan = plan_units(a, threads_count(t), scratch);
    cpu_run(t, work, attention_part, &plan);
    if (plan.n_segments > 1)
        cpu_run(t, (int64_t)a->n * a->n_heads * plan.n_segments * a->kv.head_dim, add_part, &plan);
}
