/*
 * sample_ref.c: from logits to the next token, by definition: every candidate is sorted.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/philox.h"

/* The logit of id after the allowed set, bias and ban; -inf where it must not be chosen. */
static float biased_logit(const Sample *a, int i, int32_t id)
{
    const SampleRow *row = &a->row[i];
    float x = a->logits[(int64_t)i * a->n_vocab + id];
    const uint64_t *allowed = row->allowed ? row->allowed : a->allowed;
    if (allowed && !(allowed[id / 64] >> id % 64 & 1)) x = -INFINITY;
    for (int j = 0; j < row->n_bias; j++)
        if (row->bias_id[j] == id) x += row->bias[j];
    for (int j = 0; j < row->n_ban; j++)
        if (row->ban[j] == id) x = -INFINITY;
    return x;
}

static float penalised(const SampleRow *row, int32_t id, float x)
{
    if (!row->counts) return x;
    uint32_t count = row->counts[id] & 0x7fffffffu;
    for (int j = 0; j < row->n_path; j++)
        count += row->path[j] == id;
    if (count || row->counts[id] >> 31)
        x = x > 0 ? x / row->params.repetition : x * row->params.repetition;
    if (count) x -= row->params.frequency * (float)count + row->params.presence;
    return x;
}

static int by_logit(const void *pa, const void *pb)
{
    const Candidate *a = pa, *b = pb;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int by_rank(const void *pa, const void *pb)
{
    const Candidate *a = pa, *b = pb;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* All candidates, best logit first; 0 when there is none, -1 for a row that holds nonsense. */
static int collect(const Sample *a, int i, Candidate *c)
{
    int n = 0;
    for (int32_t id = 0; id < a->n_vocab; id++) {
        float raw = a->logits[(int64_t)i * a->n_vocab + id];
        if (!(raw < INFINITY)) return -1;
        float x = penalised(&a->row[i], id, biased_logit(a, i, id));
        if (!(x < INFINITY)) return -1;
        if (x > -INFINITY) c[n++] = (Candidate){.id = id, .logit = x};
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    return n;
}

/* Sets p and cuts the n sorted candidates by top-k, top-p and min-p; returns how many stay. */
static int filter(const SampleParams *s, Candidate *c, int n)
{
    if (s->top_k > 0 && s->top_k < n) n = s->top_k;
    double total = 0, sum = 0;
    for (int j = 0; j < n; j++) {
        c[j].p = (double)expf((c[j].logit - c[0].logit) / s->temperature);
        total += c[j].p;
    }
    for (int j = 0; j < n; j++) {
        if (c[j].p == 0 || (s->min_p > 0 && c[j].p < (double)s->min_p)) return j;
        sum += c[j].p;
        if (s->top_p < 1 && sum >= (double)s->top_p * total) return j + 1;
    }
    return n;
}

/* Sets rank, what decides, and returns the log of what the shares p are divided by. */
static double rank_candidates(const Sample *a, int i, Candidate *c, int n, int greedy)
{
    const SampleRow *row = &a->row[i];
    double total = 0;
    for (int j = 0; j < n; j++) {
        if (greedy) {
            c[j].p = exp((double)c[j].logit - (double)c[0].logit);
            c[j].rank = j;
        } else {
            uint32_t h = philox_word(row->params.seed, (uint32_t)row->pos, (uint32_t)c[j].id,
                                     row->params.choice);
            c[j].e = (double)philox_exponential(philox_uniform(h));
            c[j].rank = c[j].e / c[j].p;
            c[j].p /= c[j].e;
        }
        total += c[j].p;
    }
    return log(total);
}

static void sample_row(const Sample *a, int i, Candidate *c)
{
    const SampleParams *s = &a->row[i].params;
    int greedy = sample_is_greedy(s);
    int n = collect(a, i, c);
    a->bad[i] = n <= 0;
    if (n < 0) n = 0;
    if (!greedy) n = filter(s, c, n);
    double log_total = rank_candidates(a, i, c, n, greedy);
    if (!greedy) qsort(c, (size_t)n, sizeof *c, by_rank);
    for (int j = 0; j < a->n_top; j++) {
        a->id[(int64_t)i * a->n_top + j] = j < n ? c[j].id : -1;
        if (a->logp)
            a->logp[(int64_t)i * a->n_top + j] =
                j < n ? (float)(log(c[j].p) - log_total) : -INFINITY;
    }
}

void sample_ref(const Sample *a, Candidate *scratch)
{
    assert(a->n_top >= 1 && a->n_top <= MAX_TOP);
    for (int i = 0; i < a->n; i++)
        sample_row(a, i, scratch);
}

/* The best id after `after` in the order "larger first, then lower id". */
static int32_t next_best(const float *x, int n, int32_t after)
{
    int32_t best = -1;
    for (int32_t v = 0; v < n; v++) {
        int later = after < 0 || x[v] < x[after] || (x[v] == x[after] && v > after);
        if (later && (best < 0 || x[v] > x[best])) best = v;
    }
    return best;
}

void token_logprobs_ref(const TokenLogprobs *a)
{
    for (int i = 0; i < a->n; i++) {
        const float *x = a->logits + (int64_t)i * a->n_vocab;
        int32_t t = a->token[i], best = next_best(x, a->n_vocab, -1), rank = 0;
        double total = 0;
        for (int32_t v = 0; v < a->n_vocab; v++) {
            total += exp((double)x[v] - (double)x[best]);
            rank += x[v] > x[t] || (x[v] == x[t] && v < t);
        }
        double log_total = (double)x[best] + log(total);
        a->chosen[i] = (float)((double)x[t] - log_total);
        a->rank[i] = rank;
        for (int j = 0; j < a->n_top; j++) {
            a->top_id[(int64_t)i * a->n_top + j] = best;
            a->top_logp[(int64_t)i * a->n_top + j] =
                best < 0 ? -INFINITY : (float)((double)x[best] - log_total);
            if (best >= 0) best = next_best(x, a->n_vocab, best);
        }
    }
}
