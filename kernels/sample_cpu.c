/*
 * sample_cpu.c: from logits to the next token, rows over threads.
 *
 * No sort of the vocabulary: top-k and top-p look for the place of the cut in a histogram over the
 * logits, keep what is above it and sort the one bin that the cut falls into. The noise is plain C
 * over blocks of 64 ids that the compiler turns into vectors (philox.h: the same bits everywhere).
 *
 * Against the definition: exp to 2 ulp instead of libm's, E / p in f32, sums in f32 lanes per block
 * and double over blocks. So the order of two candidates can differ where their E / p agree to
 * some 4 * 2^-24, and a top-p cut where a cumulative sum meets top_p to that precision.
 */
#include "kernels/isa_ops.h"

#include <assert.h>
#include <math.h>

#include "kernels/philox.h"

/* Bins of 1/16 in (max - logit) / temperature; exp is 0 beyond 86.6. */
enum { BINS_PER_UNIT = 16, N_BINS = 88 * BINS_PER_UNIT };

/* What is left of the vocabulary: parallel arrays of n, in ascending id unless cut says else. */
typedef struct {
    int n;
    int32_t *id;
    float *logit, *p; /* p = exp((logit - max) / temperature), not normalised */
} Kept;

/* The best few so far, best first: the largest key; ties to the lowest id. */
typedef struct {
    int n, limit;
    float key[MAX_TOP];
    int32_t id[MAX_TOP];
} TopList;

/* Offers ids in any order. */
static void top_offer(TopList *top, float key, int32_t id)
{
    int at = top->n;
    while (at > 0 && (key > top->key[at - 1] || (key == top->key[at - 1] && id < top->id[at - 1])))
        at--;
    if (at == top->limit) return;
    if (top->n < top->limit) top->n++;
    for (int j = top->n - 1; j > at; j--) {
        top->key[j] = top->key[j - 1];
        top->id[j] = top->id[j - 1];
    }
    top->key[at] = key;
    top->id[at] = id;
}

/* Offers x[0..n), ids rising from first; blocks with nothing to offer cost a maximum. */
static void top_offer_all(TopList *top, const float *x, int n)
{
    for (int b = 0; b < n; b += SAMPLE_BLOCK) {
        int end = n - b < SAMPLE_BLOCK ? n : b + SAMPLE_BLOCK;
        if (top->n == top->limit && end - b == SAMPLE_BLOCK) {
            Vec best = v_load(x + b);
            for (int v = b + VEC_N; v < end; v += VEC_N)
                best = v_max(v_load(x + v), best);
            if (v_largest(best) <= top->key[top->n - 1]) continue;
        }
        for (int v = b; v < end; v++)
            if (x[v] > -INFINITY) top_offer(top, x[v], v);
    }
}

/* Copies logits to x, -inf in the padding; 0 when one is NaN or +inf. */
static int copy_logits(const float *logits, int n, float *x)
{
    Vec sum = v_set(0), zero = v_set(0);
    for (int v = 0; v < n; v += VEC_N) {
        Vec l = v_load_some(logits + v, n - v);
        v_store_some(x + v, l, n - v);
        /* max(l, 0) * 0 is NaN for NaN and +inf, 0 for all others */
        sum = v_fma(v_max(zero, l), zero, sum);
    }
    for (int v = n; v < (int)sample_padded_vocab(n); v++)
        x[v] = -INFINITY;
    return v_sum(sum) == 0;
}

static float biased(const Sample *a, const SampleRow *row, float x, int32_t id)
{
    const uint64_t *allowed = row->allowed ? row->allowed : a->allowed;
    if (allowed && !(allowed[id / 64] >> id % 64 & 1)) x = -INFINITY;
    for (int j = 0; j < row->n_bias; j++)
        if (row->bias_id[j] == id) x += row->bias[j];
    for (int j = 0; j < row->n_ban; j++)
        if (row->ban[j] == id) x = -INFINITY;
    return x;
}

static float penalised(const SampleParams *s, float x, uint32_t count, int in_prompt)
{
    if (count || in_prompt) x = x > 0 ? x / s->repetition : x * s->repetition;
    if (count) x -= s->frequency * (float)count + s->presence;
    return x;
}

/* x is padded. */
static void disallow(const uint64_t *allowed, int n_vocab, float *x)
{
    for (int b = 0; b < n_vocab; b += 64) {
        uint64_t closed = ~allowed[b / 64];
        if (closed == UINT64_MAX) {
            for (int v = b; v < b + 64; v += VEC_N)
                v_store(x + v, v_set(-INFINITY));
            continue;
        }
        for (; closed; closed &= closed - 1)
            x[b + __builtin_ctzll(closed)] = -INFINITY;
    }
}

static void penalise(const Sample *a, const SampleRow *row, const float *logits, float *x)
{
    const uint32_t in_prompt = 0x80000000u;
    for (int v = 0; v < a->n_vocab; v++)
        if (row->counts[v])
            x[v] = penalised(&row->params, x[v], row->counts[v] & ~in_prompt,
                             (row->counts[v] & in_prompt) != 0);
    /* ids of the path again, from their logit on: the penalty is one formula of one count */
    for (int j = 0; j < row->n_path; j++) {
        int32_t id = row->path[j];
        uint32_t count = row->counts[id] & ~in_prompt;
        for (int m = 0; m < row->n_path; m++)
            count += row->path[m] == id;
        x[id] = penalised(&row->params, biased(a, row, logits[id], id), count,
                          (row->counts[id] & in_prompt) != 0);
    }
}

/* All processors before the temperature; 0 when the row holds nonsense. */
static int process(const Sample *a, int i, float *x)
{
    const SampleRow *row = &a->row[i];
    const float *logits = a->logits + (int64_t)i * a->n_vocab;
    if (!copy_logits(logits, a->n_vocab, x)) return 0;
    const uint64_t *allowed = row->allowed ? row->allowed : a->allowed;
    if (allowed) disallow(allowed, a->n_vocab, x);
    for (int j = 0; j < row->n_bias; j++)
        x[row->bias_id[j]] += row->bias[j];
    for (int j = 0; j < row->n_ban; j++)
        x[row->ban[j]] = -INFINITY;
    if (row->counts) penalise(a, row, logits, x);
    return 1;
}

/* The largest of x, padded as process leaves it. */
static float largest(const float *x, int n)
{
    Vec best = v_set(-INFINITY);
    for (int v = 0; v < n; v += VEC_N)
        best = v_max(v_load(x + v), best);
    return v_largest(best);
}

/* log of sum exp(x - max); f32 lanes inside a block, double over blocks. */
static float log_sum_exp(const float *x, int n, float max)
{
    double total = 0;
    for (int b = 0; b < n; b += SAMPLE_BLOCK) {
        Vec sum = v_set(0);
        for (int v = b; v < b + SAMPLE_BLOCK && v < n; v += VEC_N) {
            Vec l = n - v < VEC_N ? v_set(-INFINITY) : v_load(x + v);
            if (n - v < VEC_N) {
                float lane[VEC_N];
                v_store(lane, l);
                for (int m = 0; m < n - v; m++)
                    lane[m] = x[v + m];
                l = v_load(lane);
            }
            sum = v_add(sum, v_exp(v_sub(l, v_set(max))));
        }
        total += (double)v_sum(sum);
    }
    return (float)log(total);
}

/* Fills the result of row i from top; logp of a candidate is key (or its log) - log_total. */
static void write_row(const Sample *a, int i, const TopList *top, int log_keys, float log_total)
{
    int32_t *id = a->id + (int64_t)i * a->n_top;
    float *logp = a->logp ? a->logp + (int64_t)i * a->n_top : NULL;
    a->bad[i] = top->n == 0;
    for (int j = 0; j < a->n_top; j++) {
        id[j] = j < top->n ? top->id[j] : -1;
        if (!logp) continue;
        logp[j] = -INFINITY;
        if (j < top->n) logp[j] = (log_keys ? logf(top->key[j]) : top->key[j]) - log_total;
    }
}

static void sample_greedy(const Sample *a, int i, const float *x)
{
    TopList top = {.limit = a->n_top};
    float log_total = 0;
    top_offer_all(&top, x, a->n_vocab);
    if (top.n && top.key[0] == INFINITY) top.n = 0; /* a bias beyond all bounds */
    if (a->logp && top.n) log_total = top.key[0] + log_sum_exp(x, a->n_vocab, top.key[0]);
    write_row(a, i, &top, 0, log_total);
}

/* Sets p in blocks and gathers what has any; k->logit is x itself, which shrinks in place. */
static void gather(float *x, int n_vocab, float max, float temperature, Kept *k)
{
    Vec top = v_set(max), t = v_set(temperature);
    for (int b = 0; b < n_vocab; b += SAMPLE_BLOCK) {
        float p[SAMPLE_BLOCK];
        for (int v = 0; v < SAMPLE_BLOCK; v += VEC_N)
            v_store(p + v, v_exp(v_div(v_sub(v_load(x + b + v), top), t)));
        for (int v = 0; v < SAMPLE_BLOCK; v++) {
            /* without a branch: what has no probability is overwritten by the next */
            k->id[k->n] = b + v;
            k->p[k->n] = p[v];
            k->logit[k->n] = x[b + v];
            k->n += p[v] > 0;
        }
    }
}

static void kept_swap(Kept *k, int i, int j)
{
    int32_t id = k->id[i];
    float logit = k->logit[i], p = k->p[i];
    k->id[i] = k->id[j], k->logit[i] = k->logit[j], k->p[i] = k->p[j];
    k->id[j] = id, k->logit[j] = logit, k->p[j] = p;
}

/* 1 if i comes before j: larger logit, then lower id. */
static int kept_before(const Kept *k, int i, int j)
{
    return k->logit[i] > k->logit[j] || (k->logit[i] == k->logit[j] && k->id[i] < k->id[j]);
}

/* Heapsort of [from, n), best first. */
static void kept_sort(Kept *k, int from)
{
    int n = k->n - from, sorted = 1;
    for (int i = from + 1; i < k->n && sorted; i++)
        sorted = kept_before(k, i - 1, i);
    if (sorted) return; /* equal logits arrive in ascending id */
    for (int size = n, start = n / 2; size > 1;) {
        if (start > 0)
            start--;
        else
            kept_swap(k, from, from + --size);
        for (int parent = start, child; (child = 2 * parent + 1) < size; parent = child) {
            if (child + 1 < size && kept_before(k, from + child, from + child + 1)) child++;
            if (!kept_before(k, from + parent, from + child)) break;
            kept_swap(k, from + parent, from + child);
        }
    }
}

typedef struct {
    int count[N_BINS];
    double mass[N_BINS];
} Histogram;

static int bin_of(float logit, float max, float temperature)
{
    return (int)((max - logit) / temperature * BINS_PER_UNIT);
}

/* Keeps the best until there are k of them, or their p reach mass; the last one counts. */
static void cut(Kept *kept, float max, float temperature, int k, double mass)
{
    Histogram h = {{0}, {0}};
    for (int i = 0; i < kept->n; i++) {
        int bin = bin_of(kept->logit[i], max, temperature);
        h.count[bin]++;
        h.mass[bin] += (double)kept->p[i];
    }
    int last = 0, n_above = 0, n = 0;
    double mass_above = 0;
    while (last < N_BINS - 1 && n_above + h.count[last] < k && mass_above + h.mass[last] < mass) {
        n_above += h.count[last];
        mass_above += h.mass[last++];
    }
    for (int i = 0; i < kept->n; i++)
        if (bin_of(kept->logit[i], max, temperature) <= last) kept_swap(kept, i, n++);
    kept->n = n;
    /* those above the bin of the cut to the front, in their order; only the bin is sorted */
    for (int i = 0, front = 0; i < n && front < n_above; i++)
        if (bin_of(kept->logit[i], max, temperature) < last) kept_swap(kept, i, front++);
    kept_sort(kept, n_above);
    kept->n = n_above;
    while (kept->n < n && kept->n < k && (kept->n == 0 || mass_above < mass))
        mass_above += (double)kept->p[kept->n++];
}

static double kept_mass(const Kept *k)
{
    double total = 0;
    for (int i = 0; i < k->n; i++)
        total += (double)k->p[i];
    return total;
}

/* One block of ids and their noise; loops of constant length, for the compiler to vectorise. */
typedef struct {
    uint32_t c0[SAMPLE_BLOCK], c1[SAMPLE_BLOCK], c2[SAMPLE_BLOCK], c3[SAMPLE_BLOCK];
    float e[SAMPLE_BLOCK];
} Noise;

/* philox_word and philox_exponential for a block. */
static void draw_noise(Noise *z, const int32_t *id, const SampleRow *row)
{
    uint32_t key0 = (uint32_t)row->params.seed, key1 = (uint32_t)(row->params.seed >> 32);
    for (int j = 0; j < SAMPLE_BLOCK; j++) {
        z->c0[j] = (uint32_t)row->pos;
        z->c1[j] = (uint32_t)id[j];
        z->c2[j] = row->params.choice;
        z->c3[j] = 0;
    }
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < SAMPLE_BLOCK; j++) {
            uint32_t ctr[4] = {z->c0[j], z->c1[j], z->c2[j], z->c3[j]};
            philox_round(ctr, key0, key1);
            z->c0[j] = ctr[0], z->c1[j] = ctr[1], z->c2[j] = ctr[2], z->c3[j] = ctr[3];
        }
        key0 += PHILOX_KEY0;
        key1 += PHILOX_KEY1;
    }
    for (int j = 0; j < SAMPLE_BLOCK; j++)
        z->e[j] = philox_exponential(philox_uniform(z->c0[j]));
}

/* Ranks what is kept by p / E; those below min_p are left out. */
static void draw(const Sample *a, int i, const Kept *k)
{
    const SampleRow *row = &a->row[i];
    TopList top = {.limit = a->n_top};
    float min_p = row->params.min_p;
    double total = 0;
    for (int b = 0; b < k->n; b += SAMPLE_BLOCK) {
        int n = k->n - b < SAMPLE_BLOCK ? k->n - b : SAMPLE_BLOCK;
        Noise z;
        int32_t id[SAMPLE_BLOCK] = {0};
        float share[SAMPLE_BLOCK] = {0};
        memcpy(id, k->id + b, (size_t)n * sizeof *id);
        memcpy(share, k->p + b, (size_t)n * sizeof *share);
        draw_noise(&z, id, row);
        Vec best = v_set(0), sum = v_set(0);
        for (int j = 0; j < SAMPLE_BLOCK; j += VEC_N) {
            Vec p = v_load(share + j);
            p = v_div(v_zero_below(p, min_p, p), v_load(z.e + j));
            v_store(share + j, p);
            best = v_max(p, best);
            sum = v_add(sum, p);
        }
        total += (double)v_sum(sum);
        if (top.n == top.limit && v_largest(best) < top.key[top.n - 1]) continue;
        for (int j = 0; j < n; j++)
            if (share[j] > 0) top_offer(&top, share[j], id[j]);
    }
    write_row(a, i, &top, 1, (float)log(total));
}

static void sample_drawn(const Sample *a, int i, float *x, int32_t *ids, float *p)
{
    const SampleParams *s = &a->row[i].params;
    float max = largest(x, a->n_vocab);
    Kept k = {0, ids, x, p};
    if (max > -INFINITY) gather(x, a->n_vocab, max, s->temperature, &k);
    if (s->top_k > 0 && s->top_k < k.n) cut(&k, max, s->temperature, s->top_k, (double)INFINITY);
    if (s->top_p < 1 && k.n) cut(&k, max, s->temperature, k.n, (double)s->top_p * kept_mass(&k));
    draw(a, i, &k);
}

static void sample_row(const Sample *a, int i, float *scratch)
{
    const SampleParams *s = &a->row[i].params;
    int64_t padded = sample_padded_vocab(a->n_vocab);
    float *x = scratch, *p = scratch + padded;
    int32_t *ids = (int32_t *)(void *)(scratch + 2 * padded);
    if (!process(a, i, x)) {
        TopList none = {.n = 0};
        write_row(a, i, &none, 0, 0);
    } else if (sample_is_greedy(s)) {
        sample_greedy(a, i, x);
    } else {
        sample_drawn(a, i, x, ids, p);
    }
}

typedef struct {
    const Sample *a;
    float *scratch; /* of all threads */
} Job;

static void sample_part(const void *arg, int part, int n_parts)
{
    const Job *job = arg;
    int64_t begin, end;
    cpu_split(job->a->n, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        sample_row(job->a, (int)i, job->scratch + part * sample_scratch_floats(job->a->n_vocab));
}

void ISA_NAME(sample)(Threads *t, const Sample *a, Scratch scratch)
{
    Job job = {a, scratch.data};
    cpu_run(t, a->n > 1 ? (int64_t)a->n * a->n_vocab * 4 : 0, sample_part, &job);
}

static int rank_of(const float *x, int n, int32_t t)
{
    int rank = 0;
    for (int v = 0; v < n; v++)
        rank += x[v] > x[t] || (x[v] == x[t] && v < t);
    return rank;
}

static void logprobs_part(const void *arg, int part, int n_parts)
{
    const TokenLogprobs *a = arg;
    int64_t begin, end;
    cpu_split(a->n, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->logits + i * a->n_vocab;
        TopList top = {.limit = a->n_top > 0 ? a->n_top : 1};
        top_offer_all(&top, x, a->n_vocab);
        float max = top.n ? top.key[0] : 0;
        float log_total = max + log_sum_exp(x, a->n_vocab, max);
        a->chosen[i] = x[a->token[i]] - log_total;
        a->rank[i] = rank_of(x, a->n_vocab, a->token[i]);
        for (int j = 0; j < a->n_top; j++) {
            a->top_id[i * a->n_top + j] = j < top.n ? top.id[j] : -1;
            a->top_logp[i * a->n_top + j] = j < top.n ? top.key[j] - log_total : -INFINITY;
        }
    }
}

void ISA_NAME(token_logprobs)(Threads *t, const TokenLogprobs *a)
{
    assert(a->n_top <= MAX_TOP);
    cpu_run(t, (int64_t)a->n * a->n_vocab * 4, logprobs_part, a);
}
