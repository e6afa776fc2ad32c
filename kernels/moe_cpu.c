/*
 * moe_cpu.c: routing and the routed experts.
 *
 * The (row, expert) pairs of all rows are sorted by expert, then row, so that the rows of an expert
 * share one pass over its weights. Two forks: h = silu(gate x) * (up x) for all pairs, split over
 * the experts' width; then down, split over dim, each output adding its pairs in ascending expert.
 * The scratch holds the pairs' h; when it cannot hold all (many experts of a small dim per row),
 * the pairs are taken in several turns, in the same order.
 *
 * Against the definition: that of linear_cpu.c twice, and of silu.
 */
#include "kernels/isa_ops.h"

#include <assert.h>
#include <math.h>

#include "kernels/linear_cpu.h"

enum {
    MOE_CHUNK = 32, /* outputs computed at a time, a multiple of LINEAR_OUTS */
    MOE_PANEL = 48, /* pairs */
};

/* Exp of logit - max into p, and its sum. */
static float exp_logits(const float *logit, int n, float max, float *p)
{
    Vec sum = v_set(0);
    for (int e = 0; e < n; e += VEC_N) {
        Vec x = v_exp(v_sub(v_load_some(logit + e, n - e), v_set(max)));
        float lane[VEC_N] = {0};
        v_store(lane, x);
        for (int l = 0; l < VEC_N; l++)
            lane[l] = e + l < n ? lane[l] : 0;
        sum = v_add(sum, v_load(lane));
        v_store_some(p + e, x, n - e);
    }
    return v_sum(sum);
}

/* The n_top largest, ties to the lowest id, in ascending id; where one is NaN any distinct ones, as
 * all weights are NaN then. */
static void pick_experts(const float *logit, int n_experts, int n_top, int32_t *id)
{
    int n = 0;
    for (int e = 0; e < n_experts; e++) {
        if (n == n_top && !(logit[e] > logit[id[n - 1]])) continue;
        int at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logit[e] > logit[id[at - 1]]; at--)
            id[at] = id[at - 1];
        id[at] = e;
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && id[j] < id[j - 1]; j--) {
            int32_t swap = id[j];
            id[j] = id[j - 1], id[j - 1] = swap;
        }
}

static void route_part(const void *arg, int part, int n_parts)
{
    const MoeFfn *a = arg;
    float p[MOE_MAX_EXPERTS];
    int64_t begin, end;
    assert(a->n_experts <= MOE_MAX_EXPERTS && a->n_top <= a->n_experts);
    cpu_split(a->n, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *logit = a->logits + i * a->n_experts;
        int32_t *id = a->id + i * a->n_top;
        float *weight = a->weight + i * a->n_top, max = logit[0], kept = 0;
        for (int e = 1; e < a->n_experts; e++)
            max = logit[e] > max ? logit[e] : max;
        float total = exp_logits(logit, a->n_experts, max, p);
        pick_experts(logit, a->n_experts, a->n_top, id);
        for (int j = 0; j < a->n_top; j++) {
            weight[j] = p[id[j]] / total;
            kept += weight[j];
        }
        for (int j = 0; a->normalise && j < a->n_top; j++)
            weight[j] /= kept;
    }
}

/* A turn: pairs begin .. end in the order of their expert. */
typedef struct {
    const MoeFfn *a;
    const int32_t *pair; /* [n * n_top], row * n_top + j, sorted by expert, then row */
    float *h;            /* [end - begin][width] */
    int begin, end, n_pairs;
    Scratch scratch; /* of all threads */
} Turn;

/* What thread `part` of n_parts has of the scratch. */
static Scratch scratch_part(Scratch s, int part, int n_parts)
{
    size_t bytes = s.bytes / (size_t)n_parts / 64 * 64;
    return (Scratch){(char *)s.data + (size_t)part * bytes, bytes};
}

/* Pairs that a thread takes at a time, whose x has cols columns. */
static int max_pairs(WeightType type, int cols, Scratch scratch)
{
    int n = ISA_NAME(linear_max_rows)(type, cols, scratch);
    return n < MOE_PANEL ? n : MOE_PANEL;
}

/* The run of pairs from p on with one expert, at most max. */
static int same_expert(const Turn *t, int p, int max)
{
    const int32_t *id = t->a->id;
    int n = 1;
    while (n < max && p + n < t->end && id[t->pair[p + n]] == id[t->pair[p]])
        n++;
    return n;
}

/* Rows of one part in whole groups of LINEAR_OUTS. */
static void split_outputs(int n, int part, int n_parts, int *begin, int *end)
{
    int64_t b, e;
    cpu_split((n + LINEAR_OUTS - 1) / LINEAR_OUTS, part, n_parts, &b, &e);
    *begin = (int)b * LINEAR_OUTS;
    *end = (int)e * LINEAR_OUTS < n ? (int)e * LINEAR_OUTS : n;
}

/* h of the n pairs from p on, outputs o .. o + n_outs. */
static void gate_up(const Turn *t, int p, LinearRows rows, int o, int n_outs)
{
    const MoeFfn *a = t->a;
    float up[MOE_PANEL][MOE_CHUNK], *h_at[MOE_PANEL], *up_at[MOE_PANEL];
    int e = a->id[t->pair[p]];
    assert(rows.n >= 1 && rows.n <= MOE_PANEL);
    for (int i = 0; i < rows.n; i++) {
        h_at[i] = t->h + (int64_t)(p - t->begin + i) * a->width + o;
        up_at[i] = up[i];
    }
    ISA_NAME(linear_panel)(&a->gate[e], o, o + n_outs, rows, h_at);
    ISA_NAME(linear_panel)(&a->up[e], o, o + n_outs, rows, up_at);
    for (int i = 0; i < rows.n; i++)
        for (int k = 0; k < n_outs; k += VEC_N) {
            Vec y = v_silu(v_load_some(h_at[i] + k, n_outs - k));
            y = v_mul(y, v_load_some(up_at[i] + k, n_outs - k));
            v_store_some(h_at[i] + k, y, n_outs - k);
        }
}

static void gate_up_part(const void *arg, int part, int n_parts)
{
    const Turn *t = arg;
    const MoeFfn *a = t->a;
    Scratch scratch = scratch_part(t->scratch, part, n_parts);
    int begin, end, max = max_pairs(a->type, a->dim, scratch);
    const float *x[MOE_PANEL];
    split_outputs(a->width, part, n_parts, &begin, &end);
    for (int p = t->begin, n; p < t->end && begin < end; p += n) {
        n = same_expert(t, p, max);
        for (int i = 0; i < n; i++)
            x[i] = a->x + (int64_t)(t->pair[p + i] / a->n_top) * a->dim;
        LinearRows rows = ISA_NAME(linear_rows)(a->type, a->dim, n, x, scratch);
        for (int o = begin; o < end; o += MOE_CHUNK)
            gate_up(t, p, rows, o, end - o < MOE_CHUNK ? end - o : MOE_CHUNK);
    }
}

/* Adds weight * down h of the n pairs from p on to outputs o .. o + n_outs. */
static void down(const Turn *t, int p, LinearRows rows, int o, int n_outs)
{
    const MoeFfn *a = t->a;
    float y[MOE_PANEL][MOE_CHUNK], *y_at[MOE_PANEL];
    assert(rows.n >= 1 && rows.n <= MOE_PANEL);
    for (int i = 0; i < rows.n; i++)
        y_at[i] = y[i];
    ISA_NAME(linear_panel)(&a->down[a->id[t->pair[p]]], o, o + n_outs, rows, y_at);
    for (int i = 0; i < rows.n; i++) {
        float *out = a->out + (int64_t)(t->pair[p + i] / a->n_top) * a->dim + o;
        Vec weight = v_set(a->weight[t->pair[p + i]]);
        for (int k = 0; k < n_outs; k += VEC_N) {
            Vec sum = v_load_some(out + k, n_outs - k);
            sum = v_fma(weight, v_load_some(y[i] + k, n_outs - k), sum);
            v_store_some(out + k, sum, n_outs - k);
        }
    }
}

/* Outputs begin .. end of all rows: 0 before the first turn. */
static void clear(const MoeFfn *a, int begin, int end)
{
    for (int i = 0; i < a->n; i++)
        for (int d = begin; d < end; d++)
            a->out[(int64_t)i * a->dim + d] = 0;
}

/* The shared expert comes after the last turn. */
static void add_shared(const MoeFfn *a, int begin, int end)
{
    for (int i = 0; i < a->n; i++) {
        Vec share = v_set(1 / (1 + expf(-a->shared_gate[i])));
        float *out = a->out + (int64_t)i * a->dim;
        const float *shared = a->shared + (int64_t)i * a->dim;
        for (int d = begin; d < end; d += VEC_N) {
            Vec sum = v_load_some(out + d, end - d);
            sum = v_fma(share, v_load_some(shared + d, end - d), sum);
            v_store_some(out + d, sum, end - d);
        }
    }
}

static void down_part(const void *arg, int part, int n_parts)
{
    const Turn *t = arg;
    const MoeFfn *a = t->a;
    Scratch scratch = scratch_part(t->scratch, part, n_parts);
    int begin, end, max = max_pairs(a->type, a->width, scratch);
    const float *x[MOE_PANEL];
    split_outputs(a->dim, part, n_parts, &begin, &end);
    if (!t->begin) clear(a, begin, end);
    for (int p = t->begin, n; p < t->end && begin < end; p += n) {
        n = same_expert(t, p, max);
        for (int i = 0; i < n; i++)
            x[i] = t->h + (int64_t)(p - t->begin + i) * a->width;
        LinearRows rows = ISA_NAME(linear_rows)(a->type, a->width, n, x, scratch);
        for (int o = begin; o < end; o += MOE_CHUNK)
            down(t, p, rows, o, end - o < MOE_CHUNK ? end - o : MOE_CHUNK);
    }
    if (t->end == t->n_pairs) add_shared(t->a, begin, end);
}

/* Merges the rows' ascending ids: pairs by expert, then row. cursor: [n]. */
static void sort_pairs(const MoeFfn *a, int32_t *pair, int32_t *cursor)
{
    int n_pairs = a->n * a->n_top;
    for (int i = 0; i < a->n; i++)
        cursor[i] = i * a->n_top;
    for (int p = 0, e = 0; p < n_pairs;) {
        int next = a->n_experts;
        for (int i = 0; i < a->n; i++) {
            int row_end = (i + 1) * a->n_top;
            while (cursor[i] < row_end && a->id[cursor[i]] <= e)
                pair[p++] = cursor[i]++;
            if (cursor[i] < row_end && a->id[cursor[i]] < next) next = a->id[cursor[i]];
        }
        e = next;
        assert(p == n_pairs || e < a->n_experts);
    }
}

void ISA_NAME(moe_ffn)(Threads *t, const MoeFfn *a, Scratch scratch)
{
    assert(a->n_top >= 1 && a->n_top <= MOE_MAX_TOP);
    assert(a->shared);
    int n_pairs = a->n * a->n_top;
    int32_t *pair = (int32_t *)(void *)a->scratch, *cursor = pair + n_pairs;
    int64_t used = n_pairs + a->n;
    int64_t room = (moe_scratch_floats(a->n, a->dim, a->width) - used) / a->width;
    cpu_run(t, (int64_t)a->n * a->n_experts * 4, route_part, a);
    sort_pairs(a, pair, cursor);

    Turn turn = {
        .a = a, .pair = pair, .h = a->scratch + used, .n_pairs = n_pairs, .scratch = scratch};
    while (turn.begin < n_pairs) {
        turn.end = n_pairs - turn.begin > room ? turn.begin + (int)room : n_pairs;
        int64_t work = (int64_t)(turn.end - turn.begin) * a->dim * a->width;
        cpu_run(t, 2 * work, gate_up_part, &turn);
        cpu_run(t, work, down_part, &turn);
        turn.begin = turn.end;
    }
}
