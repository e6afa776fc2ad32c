/*
 * sample.h: from logits to the next token, the same code for the target and for drafts.
 *
 * Noise is a function of (seed, choice, position, token), never a stream, so a token depends on its
 * logits row and its key alone: not on drafts, not on company. Acceptance is equality with the
 * token chosen here; a drafter that samples its own logits with the same key shares the noise.
 *
 * Processors, in order: allowed ids, bias, ban (min_tokens), penalties, temperature, top-k, top-p,
 * min-p. Ties go to the lowest id everywhere.
 */
#ifndef OFFSHOOT_KERNELS_SAMPLE_H
#define OFFSHOOT_KERNELS_SAMPLE_H

#include <stdint.h>

#include "kernels/inline.h"

enum { MAX_TOP = 64 };

typedef struct {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float presence;    /* subtracted once from ids that were generated */
    float frequency;   /* subtracted per time an id was generated */
    float repetition;  /* 1: off; divides positive, multiplies negative logits of ids seen */
    uint64_t seed;
    uint32_t choice; /* which of n answers to one prompt */
} SampleParams;

/* 1 where the largest logit is chosen. */
SHARED_INLINE int sample_is_greedy(const SampleParams *p)
{
    return p->temperature < 1e-5f || p->top_k == 1;
}

/* 1 where top-k or top-p cut the candidates. */
SHARED_INLINE int sample_is_cut(const SampleParams *p)
{
    return !sample_is_greedy(p) && (p->top_k > 0 || p->top_p < 1);
}

/* One row to sample. Arrays are backend memory. */
typedef struct SampleRow {
    SampleParams params;
    int32_t pos; /* absolute position of the token being chosen */

    /* counts of the whole vocabulary, or NULL when no penalty is on: low 31 bits how often the id
     * was generated, top bit set when it is in the prompt */
    const uint32_t *counts;
    const int32_t *path; /* generated on this row's path but not in counts yet */
    int n_path;

    int n_bias;
    const int32_t *bias_id;
    const float *bias;
    const uint64_t *allowed; /* bit set of ids that may be chosen here; NULL: Sample.allowed */
    int n_ban;               /* ids that must not be chosen here (end tokens before min_tokens) */
    const int32_t *ban;
} SampleRow;

typedef struct {
    int n, n_vocab,
        n_top;     /* n_top: 1 for a target row, the branching for a draft row; <= MAX_TOP */
    float *logits; /* [n][n_vocab]; left as they were */
    const uint64_t
        *allowed;         /* bit set of ids that may be chosen, NULL: all; a row may have its own */
    const SampleRow *row; /* [n] */
    /*
     * Best first, -1 after the last candidate that has any probability.
     * Greedy: by logit. Else by E_v / p_v ascending, E = -log1p(-u), u = (h + 0.5) / 2^32 below 1,
     * h from Philox 4x32-10 (key seed; counter position, token, choice, 0): the first is a draw
     * from p.
     */
    int32_t *id; /* [n][n_top] */
    /*
     * Log of the chance a drafter gives each: greedy, log softmax of the processed logits; sampled,
     * log of the share of p_v / E_v among all candidates, which grows with agreement under shared
     * noise.
     */
    float *logp; /* [n][n_top], or NULL */
    /* 1 where a row holds a NaN or has no candidate: id is -1 there. */
    uint8_t *bad; /* [n] */
    int uncut;    /* 1: no row is cut (sample_is_cut), and nobody need look; 0: some may be */
} Sample;

/* Sample.uncut of n rows that the host can read. */
static inline int sample_rows_uncut(const SampleRow *row, int n)
{
    int i = 0;
    while (i < n && !sample_is_cut(&row[i].params))
        i++;
    return i == n;
}

/*
 * Log-probabilities of the unprocessed row (log softmax in f32): of token[i] to chosen[i], with its
 * rank (0 = largest) to rank[i], and of the n_top best ids, best first.
 */
typedef struct {
    int n, n_vocab, n_top;
    const float *logits;  /* [n][n_vocab] */
    const int32_t *token; /* [n] */
    float *chosen;        /* [n] */
    int32_t *rank;        /* [n] */
    int32_t *top_id;      /* [n][n_top] */
    float *top_logp;      /* [n][n_top] */
} TokenLogprobs;

#endif
