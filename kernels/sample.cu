/*
 * sample.cu: from logits to the next token, on the device alone.
 *
 * Five launches for a group of rows, grids fixed by n and n_vocab; the two that look for cuts are
 * left out where the host knows that there are none (Sample.uncut). What else a row asks for is
 * known to its blocks only, and those with nothing to do leave:
 *   process    (tiles, rows)  allowed set, bias, ban, penalties; the row goes to the scratch
 *   histogram  (tiles, rows)  rows with top-k or top-p: counts and masses by distance to the best
 *   find_bins  (rows)         the bins that the cuts fall into
 *   choose     (tiles, rows)  draws what is surely kept, best few of each tile; lists what is in
 *                             those bins; greedy rows: lists the best few logits
 *   finish     (rows)         cuts the list exactly, draws the rest of it, writes the result
 *
 * Masses of the filters are integers (select.h) and so exact in any order; sums of shares are
 * double, in an order that positions fix. Against the definition: expf is the GPU's, a mass is
 * rounded to 2^-44 of the largest, candidates are ordered by p / E in f32. So what a cumulative sum
 * or two shares decide by less than some 2^-22 may be decided otherwise.
 *
 * Bytes: each row is read once, written once and read up to twice more, from the L2 cache for a few
 * rows: 1 MB each for a vocabulary of 248,320. The floor is the launches.
 */
#include "kernels/select.h"

#include <assert.h>

/* Bins of 1/8 in (max - logit) / temperature; exp is 0 in f32 beyond 104. */
enum { BINS_PER_UNIT = 8, N_BINS = 104 * BINS_PER_UNIT, NO_BIN = N_BINS };

/* What find_bins says about a row with filters. */
typedef struct {
    int first, last;      /* bins that are listed, those before are kept; first NO_BIN: all are */
    int by_count;         /* top-k cuts in bin `last` */
    uint64_t count, mass; /* of the bins before `first` */
    uint64_t all_mass;
} Bins;

/* One row's part of the scratch. */
typedef struct {
    float *x;            /* [n_tiles * SELECT_TILE], processed logits, -inf where none */
    uint64_t *list;      /* [SELECT_LIST] */
    uint64_t *bin_mass;  /* [N_BINS] */
    uint64_t *tile_best; /* [n_tiles], KEY_NONE without a candidate, KEY_BAD */
    uint64_t *tile_top;  /* [n_tiles][n_top], what is drawn */
    double *tile_sum;    /* [n_tiles], of exp (greedy) or shares, where logp is wanted */
    Bins *bins;
    uint32_t *bin_count; /* [N_BINS] */
    uint32_t *n_list;
} RowScratch;

typedef struct {
    unsigned char *base;
    size_t row_bytes;
    int n_tiles, n_top, first_row;
} Scratch;

SHARED_INLINE size_t row_scratch_bytes(int n_tiles, int n_top)
{
    size_t tiles = (size_t)n_tiles;
    size_t bytes = tiles * SELECT_TILE * sizeof(float) + SELECT_LIST * sizeof(uint64_t);
    bytes += N_BINS * (sizeof(uint64_t) + sizeof(uint32_t));
    bytes += tiles * (sizeof(uint64_t) + sizeof(double) + (size_t)n_top * sizeof(uint64_t));
    bytes += sizeof(Bins) + 2 * sizeof(uint32_t);
    return (bytes + 15) / 16 * 16;
}

static __device__ RowScratch row_scratch(const Scratch &s, int row)
{
    RowScratch r;
    r.x = (float *)(void *)(s.base + (size_t)row * s.row_bytes);
    r.list = (uint64_t *)(void *)(r.x + (size_t)s.n_tiles * SELECT_TILE);
    r.bin_mass = r.list + SELECT_LIST;
    r.tile_best = r.bin_mass + N_BINS;
    r.tile_top = r.tile_best + s.n_tiles;
    r.tile_sum = (double *)(void *)(r.tile_top + (size_t)s.n_tiles * (size_t)s.n_top);
    r.bins = (Bins *)(void *)(r.tile_sum + s.n_tiles);
    r.bin_count = (uint32_t *)(void *)(r.bins + 1);
    r.n_list = r.bin_count + N_BINS;
    return r;
}

/* The best key of the row, KEY_NONE or KEY_BAD; in every thread. */
static __device__ uint64_t row_best(const RowScratch &r, int n_tiles)
{
    return block_max((int)threadIdx.x < n_tiles ? r.tile_best[threadIdx.x] : KEY_NONE);
}

static __device__ __forceinline__ int bin_of(Law law, float x)
{
    float bin = (law.max - x) / law.temperature * BINS_PER_UNIT;
    return bin < (float)N_BINS ? (int)bin : NO_BIN;
}

/* ---- process ---- */

static __device__ int occurrences(const int32_t *list, int from, int n, int32_t id)
{
    int count = 0;
    for (int j = from; j < n; j++)
        count += list[j] == id;
    return count;
}

/* Bias and ban of a tile that starts at id `first`; the first of equal ids stands for all. */
static __device__ void add_bias(const SampleRow &row, int first, float *tile)
{
    for (int j = (int)threadIdx.x; j < row.n_bias; j += SELECT_THREADS) {
        int32_t id = row.bias_id[j];
        if (id < first || id >= first + SELECT_TILE) continue;
        if (occurrences(row.bias_id, 0, j, id)) continue;
        for (int m = j; m < row.n_bias; m++)
            if (row.bias_id[m] == id) tile[id - first] += row.bias[m];
    }
    __syncthreads();
    for (int j = (int)threadIdx.x; j < row.n_ban; j += SELECT_THREADS) {
        int32_t id = row.ban[j];
        if (id < first || id >= first + SELECT_TILE) continue;
        if (!occurrences(row.ban, 0, j, id)) tile[id - first] = -INFINITY;
    }
}

static __device__ void count_path(const SampleRow &row, int first, uint32_t *on_path)
{
    for (int j = (int)threadIdx.x; j < SELECT_TILE; j += SELECT_THREADS)
        on_path[j] = 0;
    __syncthreads();
    for (int j = (int)threadIdx.x; j < row.n_path; j += SELECT_THREADS) {
        int32_t id = row.path[j];
        if (id >= first && id < first + SELECT_TILE && !occurrences(row.path, 0, j, id))
            on_path[id - first] = (uint32_t)occurrences(row.path, j, row.n_path, id);
    }
}

static __device__ __forceinline__ float penalised(const SampleParams &s, float x, uint32_t counts,
                                                  uint32_t on_path)
{
    uint32_t count = (counts & 0x7fffffffu) + on_path;
    if (count || counts >> 31) x = x > 0 ? x / s.repetition : x * s.repetition;
    if (count) x -= s.frequency * (float)count + s.presence;
    return x;
}

/* Block: a tile of a row. A thread owns SELECT_EACH logits; lists of ids go over shared memory. */
static __global__ void process_kernel(Sample a, Scratch s)
{
    grid_wait();
    __shared__ float tile[SELECT_TILE];
    __shared__ uint32_t on_path[SELECT_TILE];
    int i = s.first_row + (int)blockIdx.y, t = (int)blockIdx.x, first = t * SELECT_TILE, bad = 0;
    SampleRow row = a.row[i];
    const uint64_t *allowed = row.allowed ? row.allowed : a.allowed;
    RowScratch r = row_scratch(s, (int)blockIdx.y);
    float x[SELECT_EACH];
    load_tile(a.logits + (int64_t)i * a.n_vocab, a.n_vocab, t, x);
    for (int j = 0; j < SELECT_EACH; j++) {
        int id = tile_id(t, j);
        bad |= !(x[j] < INFINITY);
        if (allowed && id < a.n_vocab && !(allowed[id / 64] >> id % 64 & 1)) x[j] = -INFINITY;
        tile[id - first] = x[j];
    }
    if (row.counts) count_path(row, first, on_path);
    __syncthreads();
    add_bias(row, first, tile);
    __syncthreads();
    uint64_t best = KEY_NONE;
    for (int j = 0; j < SELECT_EACH; j++) {
        int id = tile_id(t, j);
        float y = id < a.n_vocab ? tile[id - first] : -INFINITY;
        if (row.counts && id < a.n_vocab)
            y = penalised(row.params, y, row.counts[id], on_path[id - first]);
        bad |= !(y < INFINITY);
        uint64_t key = bad ? KEY_BAD : key_of(y, id);
        r.x[id] = y;
        if (key >= KEY_FINITE && key > best) best = key;
    }
    best = block_max(best);
    if (threadIdx.x == 0) r.tile_best[t] = best;
    /* for the kernels that follow */
    for (int b = t * SELECT_THREADS + (int)threadIdx.x; b < N_BINS; b += s.n_tiles * SELECT_THREADS)
        r.bin_mass[b] = r.bin_count[b] = 0;
    if (t == 0 && threadIdx.x == 0) *r.n_list = 0;
}

/* ---- the bins of the cuts ---- */

/* Block: a tile of a row, into the row's histogram. */
static __global__ void histogram_kernel(Sample a, Scratch s)
{
    grid_wait();
    __shared__ uint64_t mass[N_BINS];
    __shared__ uint32_t count[N_BINS];
    SampleParams params = a.row[s.first_row + (int)blockIdx.y].params;
    RowScratch r = row_scratch(s, (int)blockIdx.y);
    if (!sample_is_cut(&params)) return;
    uint64_t best = row_best(r, s.n_tiles);
    if (best == KEY_NONE || best == KEY_BAD) return;
    Law law = {key_value(best), params.temperature};
    for (int b = (int)threadIdx.x; b < N_BINS; b += SELECT_THREADS)
        mass[b] = count[b] = 0;
    __syncthreads();
    float x[SELECT_EACH];
    load_tile(r.x, s.n_tiles * SELECT_TILE, (int)blockIdx.x, x);
    for (int j = 0; j < SELECT_EACH; j++) {
        int bin = bin_of(law, x[j]);
        if (bin == NO_BIN) continue;
        atomic_add(&count[bin], 1u);
        if (params.top_p < 1) atomic_add(&mass[bin], law_mass(law, x[j]));
    }
    __syncthreads();
    for (int b = (int)threadIdx.x; b < N_BINS; b += SELECT_THREADS) {
        if (!count[b]) continue;
        atomic_add(&r.bin_count[b], count[b]);
        if (mass[b]) atomic_add(&r.bin_mass[b], mass[b]);
    }
}

/* The mass at which top-p stops, of a total. */
static __device__ uint64_t mass_wanted(float top_p, uint64_t total)
{
    uint64_t mass = (uint64_t)ceil((double)top_p * (double)total);
    return mass > 0 ? mass : 1;
}

/* What a thread of find_bins holds: BINS_EACH bins and the sums of all before them. */
enum { BINS_EACH = (N_BINS + SELECT_THREADS - 1) / SELECT_THREADS };
typedef struct {
    uint64_t count[BINS_EACH + 1], mass[BINS_EACH + 1];
} BinSums;

static __device__ void sum_bins(const RowScratch &r, BinSums *sums)
{
    uint64_t count = 0, mass = 0;
    int first = (int)threadIdx.x * BINS_EACH;
    for (int j = 0; j <= BINS_EACH; j++) {
        sums->count[j] = count, sums->mass[j] = mass;
        if (j == BINS_EACH || first + j >= N_BINS) continue;
        count += r.bin_count[first + j];
        mass += r.bin_mass[first + j];
    }
    uint64_t count_before = block_sum_below<SELECT_THREADS>(count);
    uint64_t mass_before = block_sum_below<SELECT_THREADS>(mass);
    for (int j = 0; j <= BINS_EACH; j++)
        sums->count[j] += count_before, sums->mass[j] += mass_before;
}

typedef struct {
    int bin; /* NO_BIN: not reached */
    uint64_t count, mass;
} BinCut;

/* The bin in which the running sum reaches `count` or `mass`, and the sums before it. */
static __device__ BinCut cut_bins(const BinSums *sums, uint64_t count, uint64_t mass)
{
    __shared__ BinCut cut;
    if (threadIdx.x == 0) cut = {NO_BIN, 0, 0};
    __syncthreads();
    for (int j = 0; j < BINS_EACH; j++) {
        int before = sums->count[j] < count && sums->mass[j] < mass;
        int after = sums->count[j + 1] < count && sums->mass[j + 1] < mass;
        if (before && !after)
            cut = {(int)threadIdx.x * BINS_EACH + j, sums->count[j], sums->mass[j]};
    }
    __syncthreads();
    BinCut found = cut;
    __syncthreads();
    return found;
}

/*
 * Block: a row. With top-k and top-p, what top-p is a share of is not known before the bin of top-k
 * is cut; but it is no less than the mass before that bin, which says from where to list.
 */
static __global__ void find_bins_kernel(Sample a, Scratch s)
{
    grid_wait();
    SampleParams params = a.row[s.first_row + (int)blockIdx.x].params;
    RowScratch r = row_scratch(s, (int)blockIdx.x);
    if (!sample_is_cut(&params)) return;
    BinSums sums;
    sum_bins(r, &sums);
    uint64_t total = block_total(sums.mass[BINS_EACH] - sums.mass[0]);
    BinCut by_count = {NO_BIN, 0, total}, first;
    if (params.top_k > 0) by_count = cut_bins(&sums, (uint64_t)params.top_k, NO_LIMIT);
    int counted = by_count.bin != NO_BIN;
    first = by_count;
    if (params.top_p < 1)
        first =
            cut_bins(&sums, NO_LIMIT, mass_wanted(params.top_p, counted ? by_count.mass : total));
    if (threadIdx.x == 0)
        *r.bins = {first.bin, counted ? by_count.bin : first.bin, counted, first.count, first.mass,
                   total};
}

/* ---- choose ---- */

/*
 * p / E of a candidate, times 2^60 so that f32 holds the smallest; below 0 where it has no
 * probability or less than min-p.
 */
static __device__ __forceinline__ float share_of(const SampleRow &row, Law law, float x, int id)
{
    float p = law_p(law, x);
    if (p == 0 || (row.params.min_p > 0 && p < row.params.min_p)) return -1;
    uint32_t h = philox_word(row.params.seed, (uint32_t)row.pos, (uint32_t)id, row.params.choice);
    return (float)((double)p * 0x1p60 / (double)philox_exponential(philox_uniform(h)));
}

/* The n best of the block's keys to top[], best first, KEY_NONE after the last; key[] is lost. */
static __device__ void tile_best_few(uint64_t *key, uint64_t *top, int n)
{
    for (int k = 0; k < n; k++) {
        uint64_t best = KEY_NONE;
        for (int j = 0; j < SELECT_EACH; j++)
            best = key[j] > best ? key[j] : best;
        best = block_max(best);
        for (int j = 0; j < SELECT_EACH; j++)
            if (key[j] == best) key[j] = KEY_NONE;
        if (threadIdx.x == 0) top[k] = best;
        if (best != KEY_NONE) continue;
        for (int m = k + 1 + (int)threadIdx.x; m < n; m += SELECT_THREADS)
            top[m] = KEY_NONE;
        return;
    }
}

/* A tile of a greedy row: lists what may be among the n_top best. */
static __device__ void choose_greedy(const Sample &a, const Scratch &s, const RowScratch &r,
                                     float max)
{
    int t = (int)blockIdx.x;
    uint64_t bound = bound_of_tiles(r.tile_best, s.n_tiles, a.n_top, KEY_FINITE);
    uint64_t key[SELECT_EACH];
    float x[SELECT_EACH];
    if (r.tile_best[t] < bound && !a.logp) return;
    load_tile(r.x, s.n_tiles * SELECT_TILE, t, x);
    double sum = 0;
    for (int j = 0; j < SELECT_EACH; j++) {
        key[j] = key_of(x[j], tile_id(t, j));
        if (key[j] < bound) key[j] = KEY_NONE;
        if (a.logp) sum += (double)expf(x[j] - max);
    }
    list_append(r.list, r.n_list, key);
    if (!a.logp) return;
    sum = block_total(sum);
    if (threadIdx.x == 0) r.tile_sum[t] = sum;
}

/* A tile of a drawn row: draws what is in bins before `first`, lists those up to `last`. */
static __device__ void choose_drawn(const Sample &a, const Scratch &s, const RowScratch &r,
                                    const SampleRow &row, Law law)
{
    int t = (int)blockIdx.x, first = NO_BIN, last = NO_BIN;
    uint64_t key[SELECT_EACH], listed[SELECT_EACH];
    float x[SELECT_EACH];
    if (sample_is_cut(&row.params)) first = r.bins->first, last = r.bins->last;
    load_tile(r.x, s.n_tiles * SELECT_TILE, t, x);
    double sum = 0;
    for (int j = 0; j < SELECT_EACH; j++) {
        int id = tile_id(t, j), bin = bin_of(law, x[j]);
        key[j] = listed[j] = KEY_NONE;
        if (bin == NO_BIN || bin > last) continue;
        if (bin >= first) {
            listed[j] = key_of(x[j], id);
            continue;
        }
        float share = share_of(row, law, x[j], id);
        if (share < 0) continue;
        key[j] = key_of(share, id);
        sum += (double)share;
    }
    if (first != NO_BIN) list_append(r.list, r.n_list, listed);
    tile_best_few(key, r.tile_top + (size_t)t * (size_t)a.n_top, a.n_top);
    if (!a.logp) return;
    sum = block_total(sum);
    if (threadIdx.x == 0) r.tile_sum[t] = sum;
}

/* Block: a tile of a row. */
static __global__ void choose_kernel(Sample a, Scratch s)
{
    grid_wait();
    SampleRow row = a.row[s.first_row + (int)blockIdx.y];
    RowScratch r = row_scratch(s, (int)blockIdx.y);
    uint64_t best = row_best(r, s.n_tiles);
    if (best == KEY_NONE || best == KEY_BAD) return;
    if (sample_is_greedy(&row.params))
        choose_greedy(a, s, r, key_value(best));
    else
        choose_drawn(a, s, r, row, {key_value(best), row.params.temperature});
}

/* ---- finish ---- */

/* Cuts the listed bins: sets the floor of list. */
static __device__ void cut_list(const SampleParams &params, const RowScratch &r, Law law,
                                Keys *list)
{
    Bins bins = *r.bins;
    uint64_t total = bins.all_mass;
    if (!list->list) {
        for (int id = (int)threadIdx.x; id < list->n; id += SELECT_THREADS)
            if (bin_of(law, r.x[id]) < bins.first) r.x[id] = -INFINITY; /* drawn already */
        __syncthreads();
    }
    if (bins.by_count) {
        uint64_t limit = (uint64_t)params.top_k - bins.count;
        Cut cut = find_cut(list, law, limit, NO_LIMIT, params.top_p < 1);
        list->floor = cut.lowest;
        total = bins.mass + cut.mass;
    }
    if (params.top_p < 1) {
        uint64_t mass = mass_wanted(params.top_p, total) - bins.mass;
        list->floor = find_cut(list, law, NO_LIMIT, mass, 1).lowest;
    }
}

/* Draws what is left of the list: shares take the place of logits. */
static __device__ void draw_list(const SampleRow &row, const RowScratch &r, Law law, Keys *list)
{
    for (int i = (int)threadIdx.x; i < list->n; i += SELECT_THREADS) {
        uint64_t key = keys_at(list, i);
        float share = -1;
        if (key != KEY_NONE) share = share_of(row, law, key_value(key), key_id(key));
        if (list->list)
            list->list[i] = share < 0 ? KEY_NONE : key_of(share, key_id(key));
        else
            r.x[i] = share < 0 ? -INFINITY : share;
    }
    list->floor = KEY_FINITE;
    __syncthreads();
}

/*
 * The sum of the shares of a drawn row: tiles in their order, and the list, which has none, in
 * integers, relative to the largest share.
 */
static __device__ double sum_shares(const Keys *k, double sum_of_tiles, float largest)
{
    int exponent = (int)(philox_bits(largest) >> 23) - 127;
    uint64_t sum = 0;
    for (int i = k->n_first + (int)threadIdx.x; i < k->n_first + k->n; i += SELECT_THREADS) {
        uint64_t key = keys_at(k, i);
        if (key != KEY_NONE) sum += (uint64_t)ldexp((double)key_value(key), 44 - exponent);
    }
    return sum_of_tiles + ldexp((double)block_total(sum), exponent - 44);
}

/* Block: a row. */
static __global__ void finish_kernel(Sample a, Scratch s)
{
    grid_wait();
    __shared__ uint64_t best[MAX_TOP];
    int i = s.first_row + (int)blockIdx.x, n = 0;
    SampleRow row = a.row[i];
    RowScratch r = row_scratch(s, (int)blockIdx.x);
    uint64_t top = row_best(r, s.n_tiles);
    int bad = top == KEY_NONE || top == KEY_BAD, greedy = sample_is_greedy(&row.params);
    Law law = {key_value(top), row.params.temperature};
    double sum = 0;
    if (!bad) {
        Keys k = keys_of_list(r.list, *r.n_list, r.x, s.n_tiles * SELECT_TILE, KEY_FINITE);
        if (!greedy && k.n > 0) {
            cut_list(row.params, r, law, &k);
            draw_list(row, r, law, &k);
        }
        if (!greedy) k.first = r.tile_top, k.n_first = s.n_tiles * a.n_top;
        n = find_best(&k, a.n_top, best);
        if (a.logp) {
            sum = block_total((int)threadIdx.x < s.n_tiles ? r.tile_sum[threadIdx.x] : 0.0);
            if (!greedy && n > 0) sum = sum_shares(&k, sum, key_value(best[0]));
        }
    }
    if (threadIdx.x == 0) a.bad[i] = (uint8_t)bad;
    for (int j = (int)threadIdx.x; j < a.n_top; j += SELECT_THREADS) {
        int64_t at = (int64_t)i * a.n_top + j;
        float value = j < n ? key_value(best[j]) : 0;
        double log_value = greedy ? (double)value - (double)law.max : log((double)value);
        a.id[at] = j < n ? key_id(best[j]) : -1;
        if (a.logp) a.logp[at] = j < n ? (float)(log_value - log(sum)) : -INFINITY;
    }
}

extern "C" void CUDA_NAME(sample)(const CudaContext *c, const Sample *a)
{
    Scratch s = {c->scratch, 0, (a->n_vocab + SELECT_TILE - 1) / SELECT_TILE, a->n_top, 0};
    s.row_bytes = row_scratch_bytes(s.n_tiles, s.n_top);
    size_t fit = c->scratch_bytes / s.row_bytes;
    int group = fit < 4096 ? (int)fit : 4096;
    assert(a->n_top >= 1 && a->n_top <= MAX_TOP);
    assert(s.n_tiles <= SELECT_THREADS);
    assert(group > 0);
    for (; s.first_row < a->n; s.first_row += group) {
        unsigned n = (unsigned)(a->n - s.first_row < group ? a->n - s.first_row : group);
        dim3 tiles((unsigned)s.n_tiles, n), rows(n);
        launch(c, tiles, SELECT_THREADS, 0, process_kernel, *a, s);
        if (!a->uncut) {
            launch(c, tiles, SELECT_THREADS, 0, histogram_kernel, *a, s);
            launch(c, rows, SELECT_THREADS, 0, find_bins_kernel, *a, s);
        }
        launch(c, tiles, SELECT_THREADS, 0, choose_kernel, *a, s);
        launch(c, rows, SELECT_THREADS, 0, finish_kernel, *a, s);
    }
}
