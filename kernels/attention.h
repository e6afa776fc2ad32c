/*
 * attention.h: gated attention over a token tree and paged K, V.
 *
 * K and V of a sequence live in rows of pages. Row r of sequence s is row r % page_tokens of page
 * table[s * table_stride + r / page_tokens]. The key of position t sits in row t while t is
 * committed; rows of a draft tree sit wherever kv_row says. A query gathers the keys of its own
 * ancestors into their positions, so the order of operations is that of plain decoding, whatever
 * the tree looks like.
 */
#ifndef OFFSHOOT_KERNELS_ATTENTION_H
#define OFFSHOOT_KERNELS_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/inline.h"

enum {
    ATTENTION_TILE = 64, /* keys per tile; tiles lie on absolute positions */
    MAX_HEAD_DIM = 512,  /* every backend can do this much */
};

/* What K and V are stored as. A value is rounded to it before its first use. */
typedef enum { KV_F32, KV_BF16 } KvType;

SHARED_INLINE size_t kv_type_bytes(KvType type)
{
    return type == KV_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* K and V rows of one layer. */
typedef struct {
    KvType type;
    unsigned char *pages; /* page p is at pages + p * page_bytes */
    size_t page_bytes;
    size_t k_offset, v_offset; /* of this layer's [page_tokens][n_kv_heads][head_dim], in a page */
    int page_tokens, n_kv_heads, head_dim;
    const int32_t *table; /* [n_seqs][table_stride] page indices */
    int table_stride;
} KvLayer;

/*
 * Splits q_proj's output into q and gate, norms q and k per head, rotates the first n_rot dims,
 * writes K (normed, rotated) and V to row kv_row[i] of sequence seq[i].
 *     x = x * rsqrt(mean(x^2) + eps) * w
 *     angle = rope_pos * inv_freq[f];  c, s = rope_scale * (cos, sin)(angle);  h = f + n_rot / 2
 *     x[f], x[h] = x[f] c - x[h] s, x[h] c + x[f] s      (rotate-half pairs)
 */
typedef struct {
    int n, n_heads, n_rot;
    float eps, rope_scale;
    const float *qg;                        /* [n][n_heads][2 * head_dim]: per head q, then gate */
    const float *k, *v;                     /* [n][n_kv_heads][head_dim] */
    const float *q_norm, *k_norm;           /* [head_dim] */
    const float *inv_freq;                  /* [n_rot / 2] */
    const int32_t *rope_pos, *seq, *kv_row; /* [n] */
    KvLayer kv;
    float *q; /* [n][n_heads][head_dim] */
} AttentionPrepare;

/*
 * out_i = sigmoid(gate_i) * sum_t softmax_t(scale q_i k_t) v_t over positions t = first..pos[i].
 * Position t < base[i] is row t; position t >= base[i] is the row kv_row[j] of the ancestor-or-self
 * j of row i with pos[j] == t, found by walking parent[] (parent[j] is a row of this batch, and
 * pos[parent[j]] == pos[j] - 1 as far as base[i]).
 * The n rows are rows row0, row0 + 1, ... of the tables, whose earlier rows may have run in earlier
 * calls; parent[] holds row numbers of the tables, "row i" above too.
 * Softmax runs over tiles [64 m, 64 m + 64) of absolute positions, in order, one form: tile
 * maximum, rescale, add. Head h reads KV head h / (n_heads / n_kv_heads).
 */
typedef struct {
    int n, n_heads, first, row0;
    int n_keys; /* every pos[] of the n rows is below this; it bounds a GPU's grid, no result */
    float scale;
    const float *q;                                    /* [n][n_heads][head_dim] */
    const float *qg;                                   /* as above: the gates */
    const int32_t *seq, *pos, *base, *parent, *kv_row; /* [row0 + n] */
    /*
     * NULL, or of each sequence its first position where that lies behind `first`; no row's pos[]
     * lies before it. For backends whose memory is the host's.
     */
    const int32_t *from;
    KvLayer kv;
    float *out;  /* [n][n_heads][head_dim] */
    int prefill; /* see backend.h; base[] are then pos[] + 1: no ancestors to look for */
} TreeAttention;

/* The first position of row i of the tables. */
SHARED_INLINE int attention_first(const TreeAttention *a, int i)
{
    return a->from && a->from[a->seq[i]] > a->first ? a->from[a->seq[i]] : a->first;
}

#endif
