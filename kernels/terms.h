/*
 * terms.h: rows of x as two 16-bit terms, as tensor cores multiply them with weights.
 *
 * Beside bf16 weights x = high + low in bf16. Beside FP8 weights, which fp16 holds exactly, x =
 * (high + low) * unit in fp16, where unit is a power of two from the largest |x| of each 128 values
 * of a row. PREFILL_FP8's x is one term, in e4m3, which fp16 holds: high * unit, low = 0, and unit
 * is fp8_scale. So the terms of 128 neighbours depend on them alone, and whoever makes them makes
 * their terms at once; a linear that finds them there (TermsMemo) needs no launch to split x.
 */
#ifndef OFFSHOOT_KERNELS_TERMS_H
#define OFFSHOOT_KERNELS_TERMS_H

#include "kernels/simt_mma.h"

enum {
    K_BLOCK = 128,
    TERM_BLOCK_BYTES = K_BLOCK * 2 * 2,
};

/*
 * How a row's terms lie. BY_LANE: [n_blocks][4] runs of 32 k's, 64 bytes high, then 64 bytes low,
 * as a warp's lanes take them to mma (term_place). BY_ROW, beside FP8 weights: [n_blocks][2] runs
 * of 64 k's, 128 bytes high, then 128 bytes low, as wgmma takes them from shared memory: in the
 * order of k within its products, which are the same.
 */
typedef enum { TERMS_BY_LANE, TERMS_BY_ROW } TermOrder;

SHARED_INLINE int term_kind(WeightType type, TermOrder order)
{
    return type != WEIGHT_FP8 ? KIND_BF16 : order == TERMS_BY_ROW ? KIND_FP8_BY_ROW : KIND_FP8;
}

/* [n] rows */
typedef struct {
    unsigned char *data;
    float *unit; /* [n][n_blocks]; beside FP8 weights alone */
    int n_blocks;
} Terms;

SHARED_INLINE int term_blocks(int cols)
{
    return (cols + K_BLOCK - 1) / K_BLOCK;
}

/* Where block `block` of a row ends. */
SHARED_INLINE int term_block_end(int block, int cols)
{
    int end = (block + 1) * K_BLOCK;
    return end < cols ? end : cols;
}

static inline Terms terms_in(unsigned char *memory, int n, int cols)
{
    size_t bytes = (size_t)n * (size_t)term_blocks(cols) * TERM_BLOCK_BYTES;
    return Terms{memory, (float *)(void *)(memory + bytes), term_blocks(cols)};
}

/* The same rows from `first` on. */
static inline Terms terms_from(Terms t, int first)
{
    t.data += (size_t)first * (size_t)t.n_blocks * TERM_BLOCK_BYTES;
    t.unit += first * t.n_blocks;
    return t;
}

/* Of memory for n rows, a multiple of 16. */
static inline size_t terms_bytes(int n, int cols)
{
    size_t blocks = (size_t)n * (size_t)term_blocks(cols);
    return blocks * TERM_BLOCK_BYTES + (blocks + 3) / 4 * 16;
}

/* ---- making them, a warp a block of 128 ---- */

/* The power of two 2^(13 - e) that takes max, 2^e or a little more, to [2^13, 2^14): fp16 ends at
 * 2^16, and the low term of what is 2^24 times smaller is still a normal number. */
static __device__ __forceinline__ float term_scale(float max)
{
    int e = (int)(philox_bits(max) >> 23) - 127;
    if (e < -100) e = -100;
    return philox_float((uint32_t)(127 + 13 - e) << 23);
}

static __device__ __forceinline__ uint32_t warp_most(uint32_t x)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        uint32_t other = warp_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

/* This lane's values of block `block` of a row: k = 128 block + 64 run + 32 h + lane is v[run][h].
 * Beyond the row's end they are 0. */
static __device__ __forceinline__ void load_block(float (&v)[2][2], const float *x, int block,
                                                  int cols)
{
    UNROLL
    for (int i = 0; i < K_BLOCK / WARP; i++) {
        int k = block * K_BLOCK + i * WARP + warp_lane();
        v[i / 2][i % 2] = k < cols ? x[k] : 0.0f;
    }
}

/* The same of a row in bf16. */
static __device__ __forceinline__ void load_block(float (&v)[2][2], const uint16_t *x, int block,
                                                  int cols)
{
    UNROLL
    for (int i = 0; i < K_BLOCK / WARP; i++) {
        int k = block * K_BLOCK + i * WARP + warp_lane();
        v[i / 2][i % 2] = k < cols ? bf16_to_float(x[k]) : 0.0f;
    }
}

static __device__ __forceinline__ void store_block(float *x, int block, int cols,
                                                   const float (&v)[2][2])
{
    UNROLL
    for (int i = 0; i < K_BLOCK / WARP; i++) {
        int k = block * K_BLOCK + i * WARP + warp_lane();
        if (k < cols) x[k] = v[i / 2][i % 2];
    }
}

/* The scale of a block of which this lane has four values: magnitudes are in the order of their
 * bits, those of NaN the last. */
static __device__ __forceinline__ float fp8_warp_scale(const float (&v)[2][2])
{
    uint32_t most = 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t size = philox_bits(v[i / 2][i % 2]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return fp8_scale(philox_float(warp_most(most)));
}

/*
 * Where the high term of value 32 h + lane of run `run` lies in a block, in units of 2 bytes; the
 * low one LOW_TERM further. A lane of tile_sum reads 8 values at a time: 8 neighbours of W in bf16,
 * in FP8 one half of 16, so that there halves of 8 neighbours take turns.
 */
template <WeightType TYPE>
static __device__ __forceinline__ int term_place_by_lane(int run, int h, int lane)
{
    if (TYPE != WEIGHT_FP8) return run * 128 + h * 64 + lane;
    return run * 128 + lane / 8 % 2 * 64 + (2 * h + lane / 16) * 8 + lane % 8;
}

/*
 * The same by row. Value 16 l + 4 s + 2 w + i of a run goes to product s of mma, where lane l has
 * it in word w as its i-th: along k that is place 8 w + 2 l + i.
 */
static __device__ __forceinline__ int term_place_by_row(int run, int h, int lane)
{
    int l = 2 * h + lane / 16, s = lane % 16 / 4, w = lane % 4 / 2;
    return run * 128 + s * 16 + w * 8 + l * 2 + lane % 2;
}

template <WeightType TYPE, TermOrder ORDER = TERMS_BY_LANE>
static __device__ __forceinline__ int term_place(int run, int h, int lane)
{
    return ORDER == TERMS_BY_ROW ? term_place_by_row(run, h, lane)
                                 : term_place_by_lane<TYPE>(run, h, lane);
}

template <TermOrder ORDER> static constexpr int LOW_TERM = ORDER == TERMS_BY_ROW ? 64 : 32;

/* put_terms for PREFILL_FP8, beside FP8 weights. */
template <TermOrder ORDER>
static __device__ __forceinline__ void put_fp8_terms(const Terms &out, int64_t row, int block,
                                                     const float (&v)[2][2])
{
    int64_t at = row * out.n_blocks + block;
    uint16_t *to = (uint16_t *)(void *)(out.data + at * TERM_BLOCK_BYTES);
    float scale = fp8_warp_scale(v), inverse = 1.0f / scale;
    if (warp_lane() == 0) out.unit[at] = scale;
    UNROLL
    for (int run = 0; run < 2; run++) {
        uint32_t high = fp8_to_fp16_pair(fp8_codes(v[run][0] * inverse, v[run][1] * inverse));
        UNROLL
        for (int h = 0; h < 2; h++) {
            int place = term_place<WEIGHT_FP8, ORDER>(run, h, warp_lane());
            to[place] = (uint16_t)(high >> 16 * h);
            to[place + LOW_TERM<ORDER>] = 0;
        }
    }
}

/* The terms of two values, times the scale of their block: high ones, low ones. */
template <WeightType TYPE>
static __device__ __forceinline__ void two_terms(float x0, float x1, uint32_t *high, uint32_t *low)
{
    if (TYPE == WEIGHT_FP8) {
        *high = fp16_pair(x0, x1);
        *low =
            fp16_pair(x0 - fp16_value((uint16_t)*high), x1 - fp16_value((uint16_t)(*high >> 16)));
    } else {
        *high = bf16_pair(x0, x1);
        *low = bf16_pair(x0 - bf16_low(*high), x1 - bf16_high(*high));
    }
}

/* Writes the terms of v, this lane's values as load_block has them. */
template <WeightType TYPE, TermOrder ORDER = TERMS_BY_LANE>
static __device__ __forceinline__ void put_terms(const Terms &out, int64_t row, int block,
                                                 const float (&v)[2][2])
{
    int64_t at = row * out.n_blocks + block;
    uint16_t *to = (uint16_t *)(void *)(out.data + at * TERM_BLOCK_BYTES);
    float scale = 1.0f;
    if (TYPE == WEIGHT_FP8) {
        float max =
            fmaxf(fmaxf(fabsf(v[0][0]), fabsf(v[0][1])), fmaxf(fabsf(v[1][0]), fabsf(v[1][1])));
        scale = term_scale(warp_max(max, WARP));
        if (warp_lane() == 0) out.unit[at] = 1.0f / scale;
    }
    UNROLL
    for (int run = 0; run < 2; run++) {
        uint32_t high, low;
        two_terms<TYPE>(v[run][0] * scale, v[run][1] * scale, &high, &low);
        UNROLL
        for (int h = 0; h < 2; h++) {
            int place = term_place<TYPE, ORDER>(run, h, warp_lane());
            to[place] = (uint16_t)(high >> 16 * h);
            to[place + LOW_TERM<ORDER>] = (uint16_t)(low >> 16 * h);
        }
    }
}

/* This warp's terms of a block of a row of x, which may lie where they go. */
template <WeightType TYPE, TermOrder ORDER, int PROMPT = PREFILL_EXACT>
static __device__ __forceinline__ void split_block(const Terms &out, int64_t row, int block,
                                                   const float *x, int cols)
{
    float v[2][2];
    load_block(v, x, block, cols);
    warp_sync(); /* all have read */
    if (TYPE == WEIGHT_FP8 && PROMPT == PREFILL_FP8)
        put_fp8_terms<ORDER>(out, row, block, v);
    else
        put_terms<TYPE, ORDER>(out, row, block, v);
}

/* ---- what an operation that makes x leaves of it for the linear that comes next ---- */

/* data is NULL for a kind that nobody takes. */
typedef struct {
    Terms kind[TERM_KINDS];
} NewTerms;

static __device__ __forceinline__ int leaves_terms(const NewTerms &t)
{
    return t.kind[KIND_BF16].data || t.kind[KIND_FP8].data || t.kind[KIND_FP8_BY_ROW].data;
}

/* Of a block of row `row` of x, which this warp holds as load_block has it. */
static __device__ __forceinline__ void leave_terms(const NewTerms &t, int64_t row, int block,
                                                   const float (&v)[2][2])
{
    const Terms &by_row = t.kind[KIND_FP8_BY_ROW];
    if (t.kind[KIND_BF16].data) put_terms<WEIGHT_BF16>(t.kind[KIND_BF16], row, block, v);
    if (t.kind[KIND_FP8].data) put_terms<WEIGHT_FP8>(t.kind[KIND_FP8], row, block, v);
    if (by_row.data) put_terms<WEIGHT_FP8, TERMS_BY_ROW>(by_row, row, block, v);
}

/* The same of what this warp has written. */
static __device__ __forceinline__ void leave_terms(const NewTerms &t, int64_t row, int block,
                                                   const float *x, int cols)
{
    float v[2][2];
    if (!leaves_terms(t)) return;
    warp_sync(); /* the block is written */
    load_block(v, x, block, cols);
    leave_terms(t, row, block, v);
}

/* Terms of entry i of the memo. */
static inline Terms memo_terms(const TermsMemo *m, int i, int kind)
{
    size_t part = (size_t)(TERM_KINDS * i + kind);
    return terms_in(m->memory + part * m->part_bytes, m->entry[i].n, m->entry[i].cols);
}

/* Called before n rows of y, `stride` apart, are written. */
static inline void terms_overwritten(const CudaContext *c, const float *y, int n, int64_t stride)
{
    for (int i = 0; c->memo && i < MEMO_ENTRIES; i++) {
        const float *x = c->memo->entry[i].x;
        int64_t values = (int64_t)c->memo->entry[i].n * c->memo->entry[i].cols;
        if (x && (uintptr_t)y < (uintptr_t)(x + values) &&
            (uintptr_t)x < (uintptr_t)(y + n * stride))
            c->memo->entry[i].x = NULL;
    }
}

/* For an operation that is about to make n rows of x, `stride` apart: where their terms go. */
static inline NewTerms new_terms(const CudaContext *c, const float *x, int n, int cols, int stride)
{
    NewTerms t = {};
    TermsMemo *m = c->memo;
    terms_overwritten(c, x, n, stride);
    if (!m || n > MEMO_ROWS || stride != cols || terms_bytes(n, cols) > m->part_bytes) return t;
    int i = m->last = (m->last + 1) % MEMO_ENTRIES;
    m->entry[i] = {x, n, cols, m->wanted[n >= WG_MIN_ROWS]};
    for (int kind = 0; kind < TERM_KINDS; kind++)
        if (m->entry[i].ready & 1u << kind) t.kind[kind] = memo_terms(m, i, kind);
    return t;
}

/* 1, and *terms, where the terms of these rows are there; else the next ones of the kind will be.
 */
static inline int find_terms(const CudaContext *c, int kind, const float *x, int n, int cols,
                             int64_t stride, Terms *terms)
{
    TermsMemo *m = c->memo;
    if (!m || n > MEMO_ROWS) return 0; /* nobody leaves so many */
    m->wanted[n >= WG_MIN_ROWS] |= 1u << kind;
    for (int i = 0; i < MEMO_ENTRIES; i++) {
        if (m->entry[i].x != x || m->entry[i].n != n || m->entry[i].cols != cols) continue;
        if (stride != cols || !(m->entry[i].ready & 1u << kind)) continue;
        *terms = memo_terms(m, i, kind);
        return 1;
    }
    return 0;
}

#endif
