/*
 * gated_delta.h: the two recurrences of a gated DeltaNet layer over a token tree.
 *
 * A row i takes the state of its parent from slot src[i] and leaves its own in slot dst[i]; rows
 * come parents first. dst[] of rows that are kept apart differ; a row may have dst == src (in
 * place), and a chain of such rows (a prompt) keeps one slot. No other slot is written. A slot from
 * which the first row of a tree starts is written by rows of that tree alone.
 *
 * A row with dst < 0 is a draft that leaves no state: qkv, k, decay and u, which takes v's place,
 * are its record, from which fold makes its state if the row is kept. parent is the row before it
 * that it follows, again one with dst < 0, or -1: it starts from slot src, which no row of the call
 * writes. Rows of such a tree lie side by side, depth first, at most MAX_DRAFT_ROWS of them.
 *
 * A slot holds for each recurrent layer  S f32 [n_v_heads][d_k][d_v]  at state_offset  and the last
 * (width - 1) inputs of the convolution, oldest first,  f32 [width - 1][n_channels]  at
 * conv_offset. This layout is the CPU's (a GPU keeps S as [n_v_heads][d_v][d_k]); nothing outside
 * kernels/ may rely on it.
 */
#ifndef OFFSHOOT_KERNELS_GATED_DELTA_H
#define OFFSHOOT_KERNELS_GATED_DELTA_H

#include <stddef.h>
#include <stdint.h>

/* What every backend can do. */
enum { MAX_D_K = 256, MAX_CONV_WIDTH = 8, MAX_DRAFT_ROWS = 64 };

typedef struct {
    unsigned char *base; /* slot s is at base + s * slot_bytes */
    size_t slot_bytes;
    size_t state_offset, conv_offset; /* of one layer, inside a slot */
} SlotLayer;

/*
 * Causal depthwise convolution, SiLU, split, L2 norm of q and k, gates.
 *     y_t[c] = silu(sum_m w[c][m] p_{t - width + 1 + m}[c]),  p = qkv, older inputs from slot src
 *     q = y / sqrt(sum y^2 + 1e-6) / sqrt(d_k) per key head,  k the same without 1 / sqrt(d_k)
 *     beta = sigmoid(b),  decay = exp(a_coef * softplus(a + dt_bias)),
 *     softplus(u) = u > 20 ? u : log1p(exp(u))
 * Channels are q (n_k_heads * d_k), k (the same), v (n_v_heads * d_v).
 * Source: Qwen3-Next / Qwen3.5 reference implementation.
 */
typedef struct {
    int n, n_k_heads, n_v_heads, d_k, d_v, width;
    const float *qkv;     /* [n][n_channels] */
    const float *a, *b;   /* [n][n_v_heads] */
    const float *conv_w;  /* [n_channels][width], the last tap is the current token */
    const float *a_coef;  /* [n_v_heads], -exp(A_log) */
    const float *dt_bias; /* [n_v_heads] */
    const int32_t *src, *dst;
    SlotLayer slots;
    float *q, *k;          /* [n][n_k_heads][d_k] */
    float *v;              /* [n][n_v_heads][d_v] */
    float *decay, *beta;   /* [n][n_v_heads] */
    const int32_t *parent; /* [n], looked at where dst < 0; NULL when no dst is */
} ConvGates;

/*
 * The gated delta rule. Value head h reads key head h / (n_v_heads / n_k_heads):
 *     m = a_i (P' k_i),  u_i = b_i (v_i - m),  S = a_i P + k_i u_i',  out_i = S' q_i
 * with P the state in slot src[i], S left in slot dst[i], ' the transpose. Where no state is left,
 * u_i is, in place of v_i.
 * Source: Gated Delta Networks, arXiv 2412.06464, section 3, with the state as [d_k][d_v].
 * Columns of S never meet, so any split over columns gives the same bits.
 * Traffic: n states written and at most n read, n_v_heads * d_k * d_v * 4 bytes each.
 */
typedef struct {
    int n, n_k_heads, n_v_heads, d_k, d_v;
    const float *q, *k;        /* [n][n_k_heads][d_k] */
    float *v;                  /* [n][n_v_heads][d_v] */
    const float *decay, *beta; /* [n][n_v_heads] */
    const int32_t *src, *dst;
    SlotLayer slots;
    float *out;  /* [n][n_v_heads][d_v] */
    int prefill; /* see backend.h; src[0] aside, all of src[] and dst[] are then one slot */
    const int32_t *parent; /* as in ConvGates */
} GatedDelta;

/*
 * Takes states along paths of rows that left none: S = decay S + k u' of a path's records, one
 * after the other. slot[p] is then as if path p's rows had been run with src = from[p] at first,
 * then src = dst = slot[p], bit for bit. path[p * stride + i] is the record of path p's i-th row,
 * the root first, at most MAX_DRAFT_ROWS of them. from[p] may be slot[p]; else a slot[p] is no
 * other path's. All layers in one call: records of layer l begin at row l * layer_rows, its part of
 * a slot l * layer_bytes after that of layer 0.
 *
 * Traffic: n_layers states read and written for each path.
 */
typedef struct {
    int n, n_layers, n_k_heads, n_v_heads, d_k, d_v, width;
    int stride;
    const int32_t *path;        /* [n][stride] */
    const int32_t *length;      /* [n] rows of each path, 0: its slot stays as it is */
    const int32_t *from, *slot; /* [n] */
    int layer_rows;
    const float *qkv; /* [rows][n_channels]: what ConvGates took, as k and decay are what it left */
    const float *k;   /* [rows][n_k_heads][d_k] */
    const float *u;   /* [rows][n_v_heads][d_v] */
    const float *decay; /* [rows][n_v_heads] */
    SlotLayer slots;    /* of layer 0 */
    size_t layer_bytes;
} DeltaFold;

#endif
