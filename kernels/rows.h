/*
 * rows.h: the small row operations: embed, gather, norms, SwiGLU, KV row moves.
 *
 * Norm weights arrive as f32 with the "1 +" of the zero-centred norms already added.
 */
#ifndef OFFSHOOT_KERNELS_ROWS_H
#define OFFSHOOT_KERNELS_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/weight.h"

/* out[i] = table[token[i]], widened to f32. Tokens are in [0, table->rows). */
typedef struct {
    int n;
    const Weight *table; /* [n_vocab][dim], bf16 or f32 */
    const int32_t *token;
    float *out; /* [n] rows, out_stride floats apart */
    int out_stride;
} Embed;

/* out[to[i]] = x[index[i]], dim floats each; out is not x, and to NULL is 0, 1, ... */
typedef struct {
    int n, dim;
    const int32_t *index, *to;
    const float *x;
    float *out;
} GatherRows;

/*
 * x += delta (unless delta is NULL), then out = x * rsqrt(mean(x^2) + eps) * w.
 * out may be delta, not x.
 */
typedef struct {
    int n, dim;
    float eps;
    float *x;           /* [n][dim]; written only when delta is given */
    const float *delta; /* [n][dim] or NULL */
    const float *w;     /* [dim] */
    float *out;         /* [n] rows, out_stride floats apart */
    int out_stride;
} AddNorm;

/*
 * What the first matrix of a draft head multiplies: out[i] is the norm of table[token[i]], beside
 * it the norm of hidden[i]. Norms as AddNorm's.
 */
typedef struct {
    int n;
    float eps;
    const Weight *table; /* as Embed's, [n_vocab][dim] */
    const int32_t *token;
    float *hidden;                         /* [n][dim]; left as it is */
    const float *embed_norm, *hidden_norm; /* [dim] */
    float *embedding;                      /* [n][dim]; scratch */
    float *out;                            /* [n][2 dim]; neither of the two */
} HeadInput;

/* out = (x * rsqrt(mean(x^2) + eps) * w) * silu(z), per head: norm first, gate second. out may be
 * x. */
typedef struct {
    int n, n_heads, dim;
    float eps;
    const float *x, *z; /* [n][n_heads][dim] */
    const float *w;     /* [dim] */
    float *out;         /* [n][n_heads][dim] */
} GatedNorm;

/* gate = silu(gate) * up, in place, silu(x) = x / (1 + exp(-x)). */
typedef struct {
    int n, dim;
    float *gate;     /* [n][dim] */
    const float *up; /* [n][dim] */
} SwiGlu;

/*
 * KV rows of the accepted path move into their places, in all of the first n_layers layers of a
 * page: for i = 0, 1, ...: row to[i] of seq[i] = row from[i]. Per sequence to[] and from[] rise and
 * to[i] <= from[i], so copying in order never overwrites what is still needed.
 * A page holds, per layer, page_tokens K rows then page_tokens V rows of row_bytes each.
 */
typedef struct {
    int n, n_layers, page_tokens;
    size_t row_bytes, page_bytes;
    unsigned char *pages;
    const int32_t *table; /* [n_seqs][table_stride]: page of each run of page_tokens rows */
    int table_stride;
    const int32_t *seq, *from, *to; /* [n] */
} MoveRows;

#endif
