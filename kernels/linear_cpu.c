/*
 * linear_cpu.c: y = x W' in register tiles; INT8 weights are linear_vec_int8.h's, and with a
 * tile unit all but f32, and but few rows for INT8, are linear_amx.h's and linear_amx_int8.h's.
 * BF16_BOTH's x is linear_vec_bf16.h's, and bf16 weights are linear_vec_halves.h's with AVX-512.
 *
 * A tile is FMA_OUTS outputs x TILE_ROWS rows, one vector accumulator each, lanes over k. After
 * each K_BLOCK of k the lanes are summed and added to y. That order is the same in every tile shape
 * and loop order, which is all that exactness needs; which tile a row lands in never shows.
 *
 * Few rows: W streams once, FMA_OUTS of its rows at a time, and what comes behind them is asked for
 * in the order of memory: four streams side by side are read at two thirds of the rate of one. The
 * tiles of one K_BLOCK of W run one after the other, W from L1 after the first; each asks for its
 * share of what comes next, so that memory is busy while all of them compute (8 to 24 rows: 0.8 to
 * 0.95 of the time that they take if the first asks for all). Many rows (a prompt): panels of 48
 * rows, k outermost, so that the x of a panel's K_BLOCK (192 KiB) stays in L2 while W passes.
 * Either the x of a tile (24 KiB) stays in L1 for 64 outputs, whose W comes from L2, asked for in
 * shares as well; or, where widening costs more than that saves, W is widened to f32 once for all
 * rows of a panel (AVX2: 0.8 of the time; FP8 with AVX-512: 0.86).
 *
 * Slower: x left L1. No faster: dot products of bf16 pairs (AVX-512 BF16) with x as two terms,
 * which are as many instructions: 0.95 of the time for a prompt, 1.05 for 8 rows (with x as one,
 * BF16_BOTH: 0.55). A strip by value cost 17 and 2 % of the time; sums one row after the other, not
 * four at once, 2 %.
 *
 * Against the definition: a lane adds cols / VEC_N products in f32, so the error is below
 * (K_BLOCK / VEC_N + cols / K_BLOCK + log2 VEC_N + 2) * 2^-24 * sum |x w|.
 */
#include "kernels/linear_cpu.h"

#include <assert.h>

#include "kernels/isa_ops.h"
#include "kernels/linear_vec_bf16.h"
#include "kernels/linear_vec_halves.h"
#include "kernels/linear_vec_int8.h"
#if VEC_TILES
#include "kernels/linear_amx.h"
#include "kernels/linear_amx_int8.h"
#endif

enum {
    FMA_OUTS = 4,
    FMA_ROWS = 48,
    TILE_ROWS = VEC_ISA == 512 ? 6
                : VEC_ISA == 2 ? 3
                               : VEC_REGISTERS / 8,
    K_BLOCK = 1024,
    MANY_ROWS = 18,  /* from which on rows are a panel */
    MANY_PAIRS = 12, /* the same where x is bf16 and one K_BLOCK: 16 rows take 0.85 of the time */
    MANY_OUTS = 64,
    PREFETCH_BYTES = 32768, /* 3 to 12 % less time than 16 KiB where rows have 5 KiB and more */
};

/* Some outputs in a block of k, as W holds them or widened. */
typedef struct {
    WeightType type;
    const char *at;     /* the first output's weights from k0 on */
    int64_t stride;     /* bytes from an output's to the next one's */
    const float *scale; /* FP8: of 128 k's each, from k0 on */
    int k0, n_k;
    /* The address to be asked for with the first line of the first output, and the bytes from there
     * to that for the next line, for the next output. */
    uint64_t ahead;
    int64_t ahead_line, ahead_out;
} Strip;

/* Columns that are summed up on their own: K_BLOCK, twice that where x is half as large. */
INLINE int k_block(WeightType type)
{
    return type == WEIGHT_BF16_BOTH ? 2 * K_BLOCK : K_BLOCK;
}

INLINE int fma_tiles(int n)
{
    return (n + TILE_ROWS - 1) / TILE_ROWS;
}

INLINE Vec load_weight(WeightType type, const char *row, int k, int n)
{
    if (type == WEIGHT_F32) return v_load_some((const float *)(const void *)row + k, n);
    if (type == WEIGHT_BF16) {
        const uint16_t *p = (const uint16_t *)(const void *)row + k;
        return n >= VEC_N ? v_bf16(p) : v_bf16_n(p, n);
    }
    const uint8_t *p = (const uint8_t *)row + k;
    return n >= VEC_N ? v_fp8(p) : v_fp8_n(p, n);
}

/* acc[i][o] += x[i][k..k + n) * w[o][k..k + n) */
INLINE void tile_step(WeightType type, int n_outs, int n_rows, const char *const *w, Vec scale,
                      const float *const *x, int k, int n, Vec (*acc)[FMA_OUTS])
{
    Vec xk[TILE_ROWS];
    UNROLL
    for (int i = 0; i < n_rows; i++)
        xk[i] = v_load_some(x[i] + k, n);
    UNROLL
    for (int o = 0; o < n_outs; o++) {
        Vec wk = load_weight(type, w[o], k, n);
        if (type == WEIGHT_FP8) wk = v_mul(wk, scale);
        UNROLL
        for (int i = 0; i < n_rows; i++)
            acc[i][o] = v_fma(xk[i], wk, acc[i][o]);
    }
}

#if BF16_PAIRS
/* The same of n <= 2 VEC_N bf16 each; x is rows of bf16. */
INLINE void tile_step_pairs(int n_outs, int n_rows, const char *const *w, const float *const *x,
                            int k, int n, Vec (*acc)[FMA_OUTS])
{
    Vec xk[TILE_ROWS];
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        const uint16_t *at = (const uint16_t *)(const void *)x[i] + k;
        xk[i] = n == 2 * VEC_N ? v_pairs(at) : v_pairs_n(at, n);
    }
    UNROLL
    for (int o = 0; o < n_outs; o++) {
        const uint16_t *at = (const uint16_t *)(const void *)w[o] + k;
        Vec wk = n == 2 * VEC_N ? v_pairs(at) : v_pairs_n(at, n);
        UNROLL
        for (int i = 0; i < n_rows; i++)
            acc[i][o] = v_dot_pairs(acc[i][o], xk[i], wk);
    }
}
#endif

/* What a strip asks for with one line of each output. */
INLINE void prefetch(int n_outs, const Strip *s, uint64_t ahead)
{
    UNROLL
    for (int o = 0; o < n_outs; o++)
        prefetch_l2((const void *)(uintptr_t)ahead, o * s->ahead_out);
}

/* n_outs outputs, rows x[0 .. n_rows): sets y, or adds to it behind the first block of k. */
INLINE void tile(WeightType type, int n_outs, int n_rows, const Strip *s, uint64_t ahead,
                 const float *const *x, float *const *y, int y_at)
{
    Vec acc[TILE_ROWS][FMA_OUTS];
    const char *row[FMA_OUTS];
    const float *xi[TILE_ROWS];
    UNROLL
    for (int o = 0; o < n_outs; o++)
        row[o] = s->at + o * s->stride;
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        xi[i] = type == WEIGHT_BF16_BOTH ? x[i] + s->k0 / 2 : x[i] + s->k0;
        UNROLL
        for (int o = 0; o < n_outs; o++)
            acc[i][o] = v_set(0);
    }
    const int step = type == WEIGHT_FP8 ? FP8_BLOCK : k_block(type),
              line = CACHE_LINE / weight_element_bytes(type);
    for (int block = 0; block < s->n_k; block += step) {
        int end = block + step < s->n_k ? block + step : s->n_k, k = block;
        Vec scale = v_set(1);
        if (type == WEIGHT_FP8) scale = v_set(s->scale[block / FP8_BLOCK] * FP8_UNIT);
#if BF16_PAIRS
        for (; type == WEIGHT_BF16_BOTH && k + line <= end;
             k += line, ahead += (uint64_t)s->ahead_line) {
            prefetch(n_outs, s, ahead);
            tile_step_pairs(n_outs, n_rows, row, xi, k, line, acc);
        }
        if (type == WEIGHT_BF16_BOTH) {
            if (k < end) tile_step_pairs(n_outs, n_rows, row, xi, k, end - k, acc);
            continue;
        }
#endif
        for (; k + line <= end; k += line, ahead += (uint64_t)s->ahead_line) {
            if (type != WEIGHT_F32) prefetch(n_outs, s, ahead); /* W that was widened is here */
            /* unrolled, gcc 12 loads more of x ahead than there are registers for */
            _Pragma("GCC unroll 1") for (int i = k; i < k + line; i += VEC_N)
                tile_step(type, n_outs, n_rows, row, scale, xi, i, VEC_N, acc);
        }
        for (; k + VEC_N <= end; k += VEC_N)
            tile_step(type, n_outs, n_rows, row, scale, xi, k, VEC_N, acc);
        if (k < end) tile_step(type, n_outs, n_rows, row, scale, xi, k, end - k, acc);
    }
    if (n_outs == FMA_OUTS) {
        UNROLL
        for (int i = 0; i < n_rows; i += 4)
            v_sum4_rows(n_rows - i < 4 ? n_rows - i : 4, acc + i, y + i, y_at, s->k0 > 0);
        return;
    }
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        float sum = v_sum(acc[i][0]), *yi = y[i] + y_at;
        *yi = s->k0 ? *yi + sum : sum;
    }
}

/* Bytes from what one tile of rows asks for to the next one's. */
INLINE uint64_t strip_ahead(const Strip *s)
{
    int lines = (s->n_k * weight_element_bytes(s->type) + CACHE_LINE - 1) / CACHE_LINE;
    return (uint64_t)(lines * s->ahead_line);
}

/* n rows in tiles of one type and number of outputs, as even as they get. */
INLINE void tiles(WeightType type, int n_outs, const Strip *s, int n, const float *const *x,
                  float *const *y, int y_at)
{
    int n_tiles = fma_tiles(n), each = n / n_tiles, n_larger = n % n_tiles;
    uint64_t ahead = s->ahead;
    for (int t = 0, i = 0, rows; t < n_tiles; t++, i += rows, ahead += strip_ahead(s)) {
        rows = each + (t < n_larger);
        switch (rows) {
        case 1:
            tile(type, n_outs, 1, s, ahead, x + i, y + i, y_at);
            break;
        case 2:
            tile(type, n_outs, 2, s, ahead, x + i, y + i, y_at);
            break;
#if VEC_ISA != 0 || VEC_REGISTERS == 32
        case 3:
            tile(type, n_outs, 3, s, ahead, x + i, y + i, y_at);
            break;
#endif
#if VEC_REGISTERS == 32
        case 4:
            tile(type, n_outs, 4, s, ahead, x + i, y + i, y_at);
            break;
#endif
#if VEC_ISA == 512
        case 5:
            tile(type, n_outs, 5, s, ahead, x + i, y + i, y_at);
            break;
        case 6:
            tile(type, n_outs, 6, s, ahead, x + i, y + i, y_at);
            break;
#endif
        default:
            assert(!"a tile has at most TILE_ROWS rows");
        }
    }
}

typedef void TileFn(const Strip *s, int n, const float *const *x, float *const *y, int y_at);

#define TILE_FN(name, type, n_outs)                                                                \
    static void name(const Strip *s, int n, const float *const *x, float *const *y, int y_at)      \
    {                                                                                              \
        tiles(type, n_outs, s, n, x, y, y_at);                                                     \
    }

TILE_FN(tiles_f32, WEIGHT_F32, FMA_OUTS)
TILE_FN(tiles_f32_single, WEIGHT_F32, 1)
#if VEC_ISA != 512
TILE_FN(tiles_bf16, WEIGHT_BF16, FMA_OUTS)
TILE_FN(tiles_bf16_single, WEIGHT_BF16, 1)
#endif
TILE_FN(tiles_fp8, WEIGHT_FP8, FMA_OUTS)
TILE_FN(tiles_fp8_single, WEIGHT_FP8, 1)
#if BF16_PAIRS
TILE_FN(tiles_pairs, WEIGHT_BF16_BOTH, FMA_OUTS)
TILE_FN(tiles_pairs_single, WEIGHT_BF16_BOTH, 1)
#endif

static TileFn *tile_fn(WeightType type, int is_single)
{
    switch (type) {
    case WEIGHT_F32:
        return is_single ? tiles_f32_single : tiles_f32;
    case WEIGHT_FP8:
        return is_single ? tiles_fp8_single : tiles_fp8;
#if BF16_PAIRS
    case WEIGHT_BF16_BOTH:
        return is_single ? tiles_pairs_single : tiles_pairs;
#endif
#if VEC_ISA != 512
    case WEIGHT_BF16:
        return is_single ? tiles_bf16_single : tiles_bf16;
#endif
    default:
        assert(!"a type that has tiles");
        return NULL;
    }
}

/* Of row r of W. */
static Strip strip_of(const Weight *w, int r, int k0)
{
    Strip s = {.type = w->type, .stride = weight_row_bytes(w), .k0 = k0};
    s.at = (const char *)w->data + r * s.stride + (int64_t)k0 * weight_element_bytes(w->type);
    s.n_k = w->cols - k0 < k_block(w->type) ? w->cols - k0 : k_block(w->type);
    if (w->type == WEIGHT_FP8) s.scale = weight_scales(w, r) + k0 / FP8_BLOCK;
    return s;
}

/* The n_outs outputs of a strip, all rows of an output before the next; *s is behind them then. */
static void run_strip(Strip *s, int n_outs, int n, const float *const *x, float *const *y, int y_at)
{
    int o = 0;
    for (; o + FMA_OUTS <= n_outs; o += FMA_OUTS) {
        tile_fn(s->type, 0)(s, n, x, y, y_at + o);
        s->at += FMA_OUTS * s->stride, s->ahead += (uint64_t)(FMA_OUTS * s->ahead_out);
    }
    for (; o < n_outs; o++, s->at += s->stride, s->ahead += (uint64_t)s->ahead_out)
        tile_fn(s->type, 1)(s, n, x, y, y_at + o);
}

/* W once for n rows: outputs begin .. end, at 0 of y. */
static void few_rows(const Weight *w, int begin, int end, int n, const float *const *x,
                     float *const *y)
{
    int share = CACHE_LINE / fma_tiles(n);
    for (int r = begin, outs; r < end; r += outs) {
        outs = end - r < FMA_OUTS ? 1 : FMA_OUTS;
        for (int k0 = 0; k0 < w->cols; k0 += k_block(w->type)) {
            Strip s = strip_of(w, r, k0);
            int64_t further = (outs - 1) * k0 * weight_element_bytes(w->type) + PREFETCH_BYTES;
            s.ahead = (uintptr_t)s.at + (uint64_t)further;
            s.ahead_line = outs * share, s.ahead_out = share;
            run_strip(&s, outs, n, x, y, r - begin);
        }
    }
}

/* Where a panel of x has W widened for it. */
static int widens(WeightType type)
{
    return type == WEIGHT_FP8 || type == WEIGHT_BF16;
}

/* A row is not in the same sets of L1 as the next. */
typedef float Wide[FMA_OUTS][K_BLOCK + CACHE_LINE / 4];

/* The n_outs <= FMA_OUTS outputs of a strip as f32. */
INLINE Strip widen(WeightType type, Strip s, int n_outs, Wide wide)
{
    const char *at = s.at;
    for (int o = 0; o < n_outs; o++, at += s.stride)
        for (int k = 0; k < s.n_k; k += VEC_N) {
            Vec v = load_weight(type, at, k, s.n_k - k);
            if (type == WEIGHT_FP8) v = v_mul(v, v_set(s.scale[k / FP8_BLOCK] * FP8_UNIT));
            v_store(&wide[o][k], v);
        }
    return (Strip){.type = WEIGHT_F32,
                   .at = (const char *)wide,
                   .stride = sizeof *wide,
                   .k0 = s.k0,
                   .n_k = s.n_k};
}

/* Outputs begin .. end of a block of k for a panel of x, W widened. */
static void panel_wide(const Weight *w, int begin, int end, int k0, int n, const float *const *x,
                       float *const *y)
{
    Wide wide;
    for (int r = begin; r < end; r += FMA_OUTS) {
        int outs = end - r < FMA_OUTS ? end - r : FMA_OUTS;
        Strip s = strip_of(w, r, k0);
        s = w->type == WEIGHT_FP8 ? widen(WEIGHT_FP8, s, outs, wide)
                                  : widen(WEIGHT_BF16, s, outs, wide);
        run_strip(&s, outs, n, x, y, r - begin);
    }
}

/* The same with W as it is: MANY_OUTS outputs of a tile's rows before the next rows. */
static void panel_as_is(const Weight *w, int begin, int end, int k0, int n, const float *const *x,
                        float *const *y)
{
    int n_tiles = fma_tiles(n);
    for (int r = begin; r < end; r += MANY_OUTS)
        for (int t = 0; t < n_tiles; t++) {
            int i = tile_begin(n, n_tiles, t), rows = tile_begin(n, n_tiles, t + 1) - i;
            Strip s = strip_of(w, r, k0);
            s.ahead_line = CACHE_LINE / n_tiles, s.ahead_out = s.stride;
            s.ahead = (uintptr_t)s.at + (uint64_t)(MANY_OUTS * s.stride);
            s.ahead += (uint64_t)t * strip_ahead(&s);
            run_strip(&s, end - r < MANY_OUTS ? end - r : MANY_OUTS, rows, x + i, y + i, r - begin);
        }
}

/* y[i][r - begin] for n <= FMA_ROWS rows. */
static void panel_fma(const Weight *w, int begin, int end, int n, const float *const *x,
                      float *const *y)
{
    int one_block = w->type == WEIGHT_BF16_BOTH && w->cols <= k_block(w->type);
    if (n < (one_block ? MANY_PAIRS : MANY_ROWS)) {
        few_rows(w, begin, end, n, x, y);
        return;
    }
    for (int k0 = 0; k0 < w->cols; k0 += k_block(w->type))
        if (widens(w->type))
            panel_wide(w, begin, end, k0, n, x, y);
        else
            panel_as_is(w, begin, end, k0, n, x, y);
}

#if !VEC_TILES
/* BF16_BOTH. */
static void panel_both(const Weight *w, int begin, int end, int n, const float *terms,
                       float *const *y)
{
    Weight as = *w;
    if (!BF16_PAIRS) as.type = WEIGHT_BF16;
    for (int i = 0; i < n; i += FMA_ROWS) {
        const float *x[FMA_ROWS];
        int rows = n - i < FMA_ROWS ? n - i : FMA_ROWS;
        for (int j = 0; j < rows; j++)
            x[j] = terms + (i + j) * both_stride(w->cols);
        panel_fma(&as, begin, end, rows, x, y + i);
    }
}
#endif

/* ---- all ways ---- */

#if HALVES
INLINE int in_halves(WeightType type)
{
    return type == WEIGHT_BF16 || (type == WEIGHT_BF16_BOTH && !has_pairs());
}
#endif

/* Whether rows of x are packed for weights of that type; the bytes of n rows, or 0. */
static int64_t terms_bytes(WeightType type, int n, int cols)
{
    if (weight_is_int(type)) return int8_terms_bytes(n, cols);
#if VEC_TILES
    if (type != WEIGHT_F32) return bf16_terms_bytes(n, cols);
#else
#if HALVES
    if (in_halves(type)) return n * halves_stride(cols) * 4;
#endif
    if (type == WEIGHT_BF16_BOTH) return n * both_stride(cols) * 4;
#endif
    return 0;
}

/* Whether n rows are packed for vectors; else they are for tiles. */
static int in_vectors(WeightType type, int n)
{
    return weight_is_int(type) && n <= INT8_VEC_ROWS;
}

/* Part `part` of the packing of n rows. */
static void pack_terms(WeightType type, const float *const *x, int n, int cols, int part,
                       int n_parts, uint32_t *terms)
{
    if (in_vectors(type, n)) {
        vec_int8_pack(x, n, cols, part, n_parts, terms);
        return;
    }
#if !VEC_TILES
    float *rows = (float *)(void *)terms;
#if HALVES
    if (in_halves(type)) {
        halves_pack(x, n, cols, type == WEIGHT_BF16_BOTH, part, n_parts, rows);
        return;
    }
#endif
    assert(type == WEIGHT_BF16_BOTH);
    both_pack(x, n, cols, part, n_parts, rows);
#else
    if (weight_is_int(type))
        tiles_int8_pack(x, n, cols, part, n_parts, terms);
    else
        bf16_pack(x, n, cols, part, n_parts, terms);
#endif
}

static void panel_packed(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                         float *const *y)
{
    if (in_vectors(w->type, n)) {
        vec_int8(w, begin, end, n, terms, y);
        return;
    }
#if !VEC_TILES
    const float *rows = (const float *)(const void *)terms;
#if HALVES
    if (in_halves(w->type)) {
        halves_panel(w, begin, end, n, rows, y);
        return;
    }
#endif
    assert(w->type == WEIGHT_BF16_BOTH);
    panel_both(w, begin, end, n, rows, y);
#else
    if (weight_is_int(w->type))
        tiles_int8(w, begin, end, n, terms, y);
    else
        panel_tiles(w, begin, end, n, terms, y);
#endif
}

int ISA_NAME(linear_max_rows)(WeightType type, int cols, Scratch scratch)
{
    int64_t one = terms_bytes(type, 1, cols),
            fit = one ? (int64_t)scratch.bytes / one : LINEAR_PANEL;
    assert(fit > 0);
    if (fit < LINEAR_GROUP) /* more than half a group may be packed as a whole one */
        return fit < LINEAR_GROUP / 2 ? (int)fit : LINEAR_GROUP / 2;
    return fit >= LINEAR_PANEL ? LINEAR_PANEL : (int)fit / LINEAR_GROUP * LINEAR_GROUP;
}

LinearRows ISA_NAME(linear_rows)(WeightType type, int cols, int n, const float *const *x,
                                 Scratch scratch)
{
    LinearRows rows = {n, x, NULL};
    if (terms_bytes(type, n, cols)) {
        pack_terms(type, x, n, cols, 0, 1, scratch.data);
        rows.terms = scratch.data;
    }
    return rows;
}

void ISA_NAME(linear_panel)(const Weight *w, int begin, int end, LinearRows rows, float *const *y)
{
    assert(w->type != WEIGHT_NONE && rows.n > 0 && rows.n <= LINEAR_PANEL);
    assert(begin % LINEAR_OUTS == 0);
    if (rows.terms) {
        panel_packed(w, begin, end, rows.n, rows.terms, y);
        return;
    }
    for (int i = 0; i < rows.n; i += FMA_ROWS)
        panel_fma(w, begin, end, rows.n - i < FMA_ROWS ? rows.n - i : FMA_ROWS, rows.x + i, y + i);
}

/* Some rows of x and matrices that take them alike, for all threads. */
typedef struct {
    const Linear *a;
    int first, end; /* products */
    int i0, n;
    const float *x[LINEAR_PANEL];
    uint32_t *terms; /* NULL: not packed */
} Job;

static void pack_part(const void *arg, int part, int n_parts)
{
    const Job *job = arg;
    const Weight *w = job->a->product[job->first].w;
    pack_terms(w->type, job->x, job->n, w->cols, part, n_parts, job->terms);
}

/* Of LINEAR_OUTS rows each, the last may have fewer. */
static int64_t weight_panels(const Weight *w)
{
    return ((int64_t)w->rows + LINEAR_OUTS - 1) / LINEAR_OUTS;
}

static int64_t all_panels(const Linear *a, int first, int end)
{
    int64_t n = 0;
    for (int i = first; i < end; i++)
        n += weight_panels(a->product[i].w);
    return n;
}

/* Panels begin .. end of one product. */
static void product_part(const Job *job, const LinearProduct *p, int64_t begin, int64_t end)
{
    float *y[LINEAR_PANEL];
    begin *= LINEAR_OUTS, end *= LINEAR_OUTS;
    if (end > p->w->rows) end = p->w->rows;
    for (int i = 0; i < job->n; i++)
        y[i] = p->y + (int64_t)(job->i0 + i) * p->y_stride + begin;
    LinearRows rows = {job->n, job->x, job->terms};
    ISA_NAME(linear_panel)(p->w, (int)begin, (int)end, rows, y);
}

/* A share of all panels, one product behind the other: it may begin in one and end in the next. */
static void linear_part(const void *arg, int part, int n_parts)
{
    const Job *job = arg;
    int64_t begin, end;
    cpu_split(all_panels(job->a, job->first, job->end), part, n_parts, &begin, &end);
    for (int i = job->first; i < job->end; i++) {
        const LinearProduct *p = &job->a->product[i];
        int64_t n = weight_panels(p->w), from = begin < 0 ? 0 : begin, to = end < n ? end : n;
        if (from < to) product_part(job, p, from, to);
        begin -= n, end -= n;
    }
}

/* Whether one packing of x serves both types. */
static int same_terms(WeightType a, WeightType b)
{
    return a == b || (weight_is_int(a) && weight_is_int(b));
}

/* Products first .. end, whose x is packed alike. */
static void products(Threads *t, const Linear *a, int first, int end, Scratch scratch)
{
    const WeightType type = a->product[first].w->type;
    const int cols = a->product[first].w->cols,
              max_rows = ISA_NAME(linear_max_rows)(type, cols, scratch);
    const int64_t row_work = all_panels(a, first, end) * LINEAR_OUTS * cols;
    Job job; /* not cleared: most of it is room for a prompt's rows */
    job.a = a, job.first = first, job.end = end;
    job.terms = NULL;
    for (job.i0 = 0; job.i0 < a->n; job.i0 += job.n) {
        job.n = a->n - job.i0 < max_rows ? a->n - job.i0 : max_rows;
        for (int i = 0; i < job.n; i++)
            job.x[i] = a->x + (int64_t)(job.i0 + i) * a->x_stride;
        if (terms_bytes(type, job.n, cols)) {
            job.terms = scratch.data;
            cpu_run(t, (int64_t)job.n * cols, pack_part, &job);
        }
        cpu_run(t, job.n * row_work, linear_part, &job);
    }
}

void ISA_NAME(linear)(Threads *t, const Linear *a, Scratch scratch)
{
    for (int first = 0, end; first < a->n_products; first = end) {
        for (end = first + 1; end < a->n_products; end++)
            if (!same_terms(a->product[end].w->type, a->product[first].w->type)) break;
        products(t, a, first, end, scratch);
    }
}
