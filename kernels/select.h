/*
 * select.h: the best of many logits, for kernels: keys that order them, and what one block of
 * SELECT_THREADS threads does with keys.
 *
 * A key is 64 bits, the logit's order above the id's, so that no two are equal, the larger logit
 * wins and ties go to the lowest id. Whatever is decided here is decided by comparing keys and by
 * adding integers: the order in which blocks and threads bring them changes nothing.
 */
#ifndef OFFSHOOT_KERNELS_SELECT_H
#define OFFSHOOT_KERNELS_SELECT_H

#include "kernels/block_scan.h"

enum {
    SELECT_THREADS = 256,
    SELECT_WARPS = SELECT_THREADS / WARP,
    SELECT_EACH = 8, /* elements of a tile that a thread owns, in fours */
    SELECT_TILE = SELECT_THREADS * SELECT_EACH,
    SELECT_LIST = 4096, /* keys a list holds; where more want in, the row is read instead */
};

/* ---- keys ---- */

#define KEY_NONE   ((uint64_t)0)
#define KEY_BAD    (~(uint64_t)0)               /* above all keys: a row that holds nonsense */
#define KEY_FINITE ((uint64_t)0x00800000 << 32) /* above the keys of -inf, below all others */
#define NO_LIMIT   (~(uint64_t)0)

/* x is no NaN. */
static __device__ __forceinline__ uint64_t key_of(float x, int id)
{
    uint32_t bits = philox_bits(x + 0.0f); /* -0 becomes 0: they are a tie */
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)id);
}

static __device__ __forceinline__ float key_value(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    return philox_float(bits ^ (bits >> 31 ? 0x80000000u : 0xffffffffu));
}

static __device__ __forceinline__ int key_id(uint64_t key)
{
    return (int)(0xffffffffu - (uint32_t)key);
}

/* ---- the block ---- */

/* The id of element j of this thread in a tile. */
static __device__ __forceinline__ int tile_id(int tile, int j)
{
    return tile * SELECT_TILE + j / 4 * (4 * SELECT_THREADS) + 4 * (int)threadIdx.x + j % 4;
}

/* This thread's elements of a tile of row x, -inf from n on. */
static __device__ __forceinline__ void load_tile(const float *x, int n, int tile, float *value)
{
    /* rows of a length that is no multiple of 4 start anywhere */
    int aligned = (uintptr_t)x % sizeof(float4) == 0;
    for (int j = 0; j < SELECT_EACH; j += 4) {
        int id = tile_id(tile, j);
        if (aligned && id + 4 <= n) {
            float4 four = *(const float4 *)(const void *)(x + id);
            value[j] = four.x, value[j + 1] = four.y, value[j + 2] = four.z, value[j + 3] = four.w;
            continue;
        }
        for (int m = 0; m < 4; m++)
            value[j + m] = id + m < n ? x[id + m] : -INFINITY;
    }
}

/* The largest, in every thread. */
static __device__ uint64_t block_max(uint64_t key)
{
    __shared__ uint64_t part[SELECT_WARPS];
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        uint64_t other = warp_xor(key, mask);
        key = other > key ? other : key;
    }
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = key;
    __syncthreads();
    for (int w = 0; w < SELECT_WARPS; w++)
        key = part[w] > key ? part[w] : key;
    __syncthreads();
    return key;
}

/* The sum in every thread: a tree over each warp, then the warps in order. */
template <typename T> static __device__ T block_total(T x)
{
    __shared__ T part[SELECT_WARPS];
    for (int mask = WARP / 2; mask > 0; mask /= 2)
        x += warp_xor(x, mask);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < SELECT_WARPS; w++)
        x += part[w];
    __syncthreads();
    return x;
}

/*
 * A bound that k keys of the row reach when it has as many: the k-th best of the tiles' best keys,
 * n <= SELECT_THREADS; `lowest` where there are fewer tiles.
 */
static __device__ uint64_t bound_of_tiles(const uint64_t *tile_best, int n, int k, uint64_t lowest)
{
    __shared__ uint64_t best[SELECT_THREADS], bound;
    int t = (int)threadIdx.x, before = 0;
    best[t] = t < n ? tile_best[t] : KEY_NONE;
    if (t == 0) bound = lowest;
    __syncthreads();
    for (int i = 0; i < n; i++)
        before += best[i] > best[t];
    if (before == k - 1 && best[t] > lowest) bound = best[t];
    __syncthreads();
    uint64_t found = bound;
    __syncthreads();
    return found;
}

/*
 * Puts the keys that are not KEY_NONE at places of the list that *n_list counts; it goes on
 * counting beyond SELECT_LIST.
 */
static __device__ void list_append(uint64_t *list, uint32_t *n_list, const uint64_t *key)
{
    uint32_t wants[SELECT_EACH], n = 0, below = (1u << warp_lane()) - 1;
    uint64_t any = KEY_NONE;
    for (int j = 0; j < SELECT_EACH; j++)
        any |= key[j];
    if (!warp_ballot(any != KEY_NONE)) return;
    for (int j = 0; j < SELECT_EACH; j++) {
        wants[j] = warp_ballot(key[j] != KEY_NONE);
        n += (uint32_t)__popc(wants[j]);
    }
    uint32_t at = warp_lane() == 0 ? atomic_add(n_list, n) : 0;
    at = warp_shuffle(at, 0);
    for (int j = 0; j < SELECT_EACH; j++) {
        uint32_t place = at + (uint32_t)__popc(wants[j] & below);
        if (key[j] != KEY_NONE && place < SELECT_LIST) list[place] = key[j];
        at += (uint32_t)__popc(wants[j]);
    }
}

/* ---- selection by one block ---- */

/* Keys to choose from: `first`, then the list, or where it overflowed the row x, ids from 0. */
typedef struct {
    const uint64_t *first;
    int n_first;
    uint64_t *list; /* NULL: x */
    const float *x;
    int n;          /* of list or x */
    uint64_t floor; /* keys below do not count */
} Keys;

static __device__ __forceinline__ uint64_t keys_at(const Keys *k, int i)
{
    uint64_t key;
    if (i < k->n_first)
        key = k->first[i];
    else if (k->list)
        key = k->list[i - k->n_first];
    else if (k->x[i - k->n_first] == k->x[i - k->n_first])
        key = key_of(k->x[i - k->n_first], i - k->n_first);
    else
        key = KEY_NONE; /* NaN */
    return key >= k->floor ? key : KEY_NONE;
}

/* A list, or the row behind it where more than SELECT_LIST keys were counted. */
static __device__ Keys keys_of_list(uint64_t *list, uint32_t n_list, const float *x, int n_x,
                                    uint64_t floor)
{
    if (n_list > SELECT_LIST) return {NULL, 0, NULL, x, n_x, floor};
    return {NULL, 0, list, x, (int)n_list, floor};
}

/* exp((x - max) / temperature): in f32, and in units of MASS_ONE, whose sums are exact. */
typedef struct {
    float max, temperature;
} Law;

/* The most that 2^18 terms of at most 1 can have in 64 bits, with a bit to spare. */
#define MASS_ONE 0x1p44

static __device__ __forceinline__ float law_p(Law law, float x)
{
    return expf((x - law.max) / law.temperature);
}

static __device__ __forceinline__ uint64_t law_mass(Law law, float x)
{
    return (uint64_t)((double)law_p(law, x) * MASS_ONE + 0.5);
}

/* The keys >= lowest: how many, and their mass. */
typedef struct {
    uint64_t lowest, count, mass;
} Cut;

/* find_cut for no more keys than threads: each counts what is before its own. */
static __device__ Cut cut_few(const Keys *k, Law law, uint64_t limit, uint64_t mass, int weigh)
{
    __shared__ uint64_t keys[SELECT_THREADS], masses[SELECT_THREADS];
    __shared__ Cut cut;
    uint32_t t = threadIdx.x, n = (uint32_t)(k->n_first + k->n);
    uint64_t key = t < n ? keys_at(k, (int)t) : KEY_NONE, count = 0;
    keys[t] = key;
    masses[t] = weigh && key != KEY_NONE ? law_mass(law, key_value(key)) : 0;
    if (t == 0) cut = {k->floor, 0, 0};
    __syncthreads();
    Cut with = {key, 1, masses[t]};
    for (uint32_t i = 0; i < n; i++) {
        count += keys[i] != KEY_NONE;
        if (keys[i] <= key) continue;
        with.count++;
        with.mass += masses[i];
    }
    int kept = key != KEY_NONE && with.count <= limit && with.mass - masses[t] < mass;
    if (kept && (with.count == limit || with.mass >= mass || with.count == count)) cut = with;
    __syncthreads();
    Cut found = cut;
    __syncthreads();
    return found;
}

/*
 * Best first, up to and with the key that makes the count `limit` or the mass `mass`, both > 0 and
 * one of them NO_LIMIT; all keys where it is not reached. Masses are added up if weigh.
 *
 * Eight bits of the key at a time: counts and masses of the digits of all keys that agree with what
 * is known; then the digit in which the cut falls is known. Most cuts end before the id's digits.
 */
static __device__ Cut find_cut(const Keys *k, Law law, uint64_t limit, uint64_t mass, int weigh)
{
    const int DIGITS = 256;
    static_assert(DIGITS == SELECT_THREADS, "a thread for each digit");
    __shared__ uint64_t masses[DIGITS];
    __shared__ uint32_t counts[DIGITS];
    __shared__ Cut cut, inside;
    int thread = (int)threadIdx.x, digit = DIGITS - 1 - thread, n = k->n_first + k->n;
    Cut above = {0, 0, 0};
    if (n <= SELECT_THREADS) return cut_few(k, law, limit, mass, weigh);
    for (int shift = 56; shift >= 0; shift -= 8) {
        counts[thread] = 0, masses[thread] = 0;
        if (thread == 0) inside.count = 0;
        __syncthreads();
        for (int i = thread; i < n; i += SELECT_THREADS) {
            uint64_t key = keys_at(k, i);
            if (key == KEY_NONE || (shift < 56 && (key ^ above.lowest) >> (shift + 8))) continue;
            atomic_add(&counts[key >> shift & (DIGITS - 1)], 1u);
            if (weigh)
                atomic_add(&masses[key >> shift & (DIGITS - 1)], law_mass(law, key_value(key)));
        }
        __syncthreads();
        uint64_t here = counts[digit], here_mass = masses[digit];
        uint64_t before = above.count + block_sum_below<SELECT_THREADS>(here);
        uint64_t before_mass = weigh ? above.mass + block_sum_below<SELECT_THREADS>(here_mass) : 0;
        int within = before < limit && before_mass < mass;
        int reached = before + here >= limit || before_mass + here_mass >= mass;
        if (within && reached) {
            cut = {above.lowest | (uint64_t)digit << shift, before, before_mass};
            inside = {0, here, here_mass};
        } else if (digit == 0 && !reached) {
            cut = {k->floor, before + here, before_mass + here_mass};
        }
        __syncthreads();
        above = cut;
        Cut in = inside;
        __syncthreads();
        if (in.count == 0) return above;
        int whole = above.count + in.count == limit;
        if (in.count > 1 && !whole) continue;
        /* keys that do not count may share the digits known so far */
        uint64_t lowest = above.lowest > k->floor ? above.lowest : k->floor;
        return {lowest, above.count + in.count, above.mass + in.mass};
    }
    return above; /* not reached: no two keys are equal, so one is left at the last digit */
}

/* The n <= MAX_TOP best keys to best[], in shared memory, best first; returns how many. */
static __device__ int find_best(const Keys *k, int n, uint64_t *best)
{
    __shared__ uint64_t found[MAX_TOP];
    __shared__ uint32_t n_found;
    Keys kept = *k;
    kept.floor = find_cut(k, {0, 1}, (uint64_t)n, NO_LIMIT, 0).lowest;
    if (threadIdx.x == 0) n_found = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < k->n_first + k->n; i += SELECT_THREADS) {
        uint64_t key = keys_at(&kept, i);
        if (key != KEY_NONE) found[atomic_add(&n_found, 1u)] = key;
    }
    __syncthreads();
    int count = (int)n_found;
    if ((int)threadIdx.x < count) {
        int before = 0;
        for (int i = 0; i < count; i++)
            before += found[i] > found[threadIdx.x];
        best[before] = found[threadIdx.x];
    }
    __syncthreads();
    return count;
}

#endif
