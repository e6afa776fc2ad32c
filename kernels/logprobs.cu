/*
 * logprobs.cu: log-probabilities of tokens, from the raw logits.
 *
 * Three launches for a group of rows: the best of each tile; then, with the row's best known, sums
 * of exp, ranks, and a list of what may be among the n_top best (select.h); then a block per row
 * finishes. Each logit is read twice, the second time from the L2 cache for a few rows.
 */
#include "kernels/select.h"

#include <assert.h>

typedef struct {
    uint64_t *list;      /* [SELECT_LIST] */
    uint64_t *tile_best; /* [n_tiles] */
    double *tile_sum;    /* [n_tiles] */
    uint32_t *tile_rank; /* [n_tiles], how many are before the token */
    uint32_t *n_list;
} RowScratch;

typedef struct {
    unsigned char *base;
    size_t row_bytes;
    int n_tiles, first_row;
} Scratch;

static size_t row_scratch_bytes(int n_tiles)
{
    size_t bytes = SELECT_LIST * sizeof(uint64_t) + sizeof(uint32_t);
    bytes += (size_t)n_tiles * (sizeof(uint64_t) + sizeof(double) + sizeof(uint32_t));
    return (bytes + 15) / 16 * 16;
}

static __device__ RowScratch row_scratch(const Scratch &s, int row)
{
    RowScratch r;
    r.list = (uint64_t *)(void *)(s.base + (size_t)row * s.row_bytes);
    r.tile_best = r.list + SELECT_LIST;
    r.tile_sum = (double *)(void *)(r.tile_best + s.n_tiles);
    r.tile_rank = (uint32_t *)(void *)(r.tile_sum + s.n_tiles);
    r.n_list = r.tile_rank + s.n_tiles;
    return r;
}

/* The keys of this thread's logits of a tile; NaN and what is beyond the vocabulary have none. */
static __device__ void tile_keys(const TokenLogprobs &a, const float *row, float *x, uint64_t *key)
{
    int t = (int)blockIdx.x;
    load_tile(row, a.n_vocab, t, x);
    for (int j = 0; j < SELECT_EACH; j++) {
        int id = tile_id(t, j);
        key[j] = id < a.n_vocab && x[j] == x[j] ? key_of(x[j], id) : KEY_NONE;
    }
}

/* Block: a tile of a row. */
static __global__ void best_kernel(TokenLogprobs a, Scratch s)
{
    grid_wait();
    RowScratch r = row_scratch(s, (int)blockIdx.y);
    uint64_t key[SELECT_EACH], best = KEY_NONE;
    float x[SELECT_EACH];
    tile_keys(a, a.logits + ((int64_t)s.first_row + blockIdx.y) * a.n_vocab, x, key);
    for (int j = 0; j < SELECT_EACH; j++)
        best = key[j] > best ? key[j] : best;
    best = block_max(best);
    if (threadIdx.x == 0) r.tile_best[blockIdx.x] = best;
    if (blockIdx.x == 0 && threadIdx.x == 0) *r.n_list = 0;
}

/* Block: a tile of a row. */
static __global__ void sum_kernel(TokenLogprobs a, Scratch s)
{
    grid_wait();
    int i = s.first_row + (int)blockIdx.y, t = (int)blockIdx.x;
    const float *row = a.logits + (int64_t)i * a.n_vocab;
    RowScratch r = row_scratch(s, (int)blockIdx.y);
    float x[SELECT_EACH], of_token = row[a.token[i]];
    uint64_t key[SELECT_EACH], before = 0, token = key_of(of_token, a.token[i]);
    float max = key_value(block_max((int)threadIdx.x < s.n_tiles ? r.tile_best[threadIdx.x] : 0));
    uint64_t bound = bound_of_tiles(r.tile_best, s.n_tiles, a.n_top, KEY_NONE + 1);
    double sum = 0;
    tile_keys(a, row, x, key);
    for (int j = 0; j < SELECT_EACH; j++) {
        sum += (double)expf(x[j] - max);
        before += key[j] > token;
        if (a.n_top == 0 || key[j] < bound) key[j] = KEY_NONE;
    }
    list_append(r.list, r.n_list, key);
    sum = block_total(sum);
    before = block_total(before);
    if (threadIdx.x) return;
    r.tile_sum[t] = sum;
    r.tile_rank[t] = (uint32_t)before;
}

/* Block: a row. */
static __global__ void logprobs_kernel(TokenLogprobs a, Scratch s)
{
    grid_wait();
    __shared__ uint64_t best[MAX_TOP];
    int i = s.first_row + (int)blockIdx.x, t = (int)threadIdx.x, n = 0;
    const float *row = a.logits + (int64_t)i * a.n_vocab;
    RowScratch r = row_scratch(s, (int)blockIdx.x);
    uint64_t rank = block_total(t < s.n_tiles ? (uint64_t)r.tile_rank[t] : 0);
    double sum = block_total(t < s.n_tiles ? r.tile_sum[t] : 0.0);
    float max = key_value(block_max(t < s.n_tiles ? r.tile_best[t] : KEY_NONE));
    double log_total = (double)max + log(sum);
    Keys k = keys_of_list(r.list, *r.n_list, row, a.n_vocab, KEY_NONE + 1);
    if (a.n_top > 0) n = find_best(&k, a.n_top, best);
    if (t == 0) {
        a.chosen[i] = (float)((double)row[a.token[i]] - log_total);
        a.rank[i] = (int32_t)rank;
    }
    for (int j = t; j < a.n_top; j += SELECT_THREADS) {
        int64_t at = (int64_t)i * a.n_top + j;
        a.top_id[at] = j < n ? key_id(best[j]) : -1;
        a.top_logp[at] = j < n ? (float)((double)key_value(best[j]) - log_total) : -INFINITY;
    }
}

extern "C" void CUDA_NAME(token_logprobs)(const CudaContext *c, const TokenLogprobs *a)
{
    Scratch s = {c->scratch, 0, (a->n_vocab + SELECT_TILE - 1) / SELECT_TILE, 0};
    s.row_bytes = row_scratch_bytes(s.n_tiles);
    size_t fit = c->scratch_bytes / s.row_bytes;
    int group = fit < 4096 ? (int)fit : 4096;
    assert(a->n_top >= 0 && a->n_top <= MAX_TOP);
    assert(s.n_tiles <= SELECT_THREADS);
    assert(group > 0);
    for (; s.first_row < a->n; s.first_row += group) {
        unsigned n = (unsigned)(a->n - s.first_row < group ? a->n - s.first_row : group);
        dim3 tiles((unsigned)s.n_tiles, n), rows(n);
        launch(c, tiles, SELECT_THREADS, 0, best_kernel, *a, s);
        launch(c, tiles, SELECT_THREADS, 0, sum_kernel, *a, s);
        launch(c, rows, SELECT_THREADS, 0, logprobs_kernel, *a, s);
    }
}
