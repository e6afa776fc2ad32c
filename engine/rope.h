/*
 * rope.h: the rotary position embedding of a model, also where it is stretched over contexts longer
 * than those that the model was trained on.
 */
#ifndef OFFSHOOT_ENGINE_ROPE_H
#define OFFSHOOT_ENGINE_ROPE_H

#include <jansson.h>

#include "base/error.h"

enum { MAX_CTX_LIMIT = 1 << 24 };

typedef enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN } RopeType;

typedef struct {
    RopeType type;
    int n_rot;            /* rotated dims of a head: even, from 2 to head_dim */
    double theta, factor; /* factor: contexts become so many times as long; >= 1 */
    double original_ctx;  /* positions that it was trained on; here and below: ROPE_YARN */
    double beta_fast;     /* dims that turn so often within original_ctx, or more, stay */
    double beta_slow;     /* those that turn so often, or less, are stretched by all of factor */
    int truncate;         /* the dims of both are rounded away from each other */
    double scale;         /* of all cosines and sines; 1 but for ROPE_YARN */
} Rope;

/*
 * Reads what text, a model's text config, says of it, and the longest context that there is with
 * it. Newer files have rope_parameters, older ones the numbers in text itself; a rope_scaling that
 * says anything stands in the place of rope_parameters. Defaults are those of the reference
 * implementation, the longest context that of vLLM. Text positions make M-RoPE the same as plain
 * RoPE. Errors begin with `where`: ERR_INPUT, ERR_LIMIT.
 */
int rope_read(Rope *rope, const json_t *text, const char *where, int head_dim, int *ctx_limit,
              Error *err);

/*
 * inv_freq[n_rot / 2]: radians a position, in f32 throughout as the reference implementation has
 * it. YaRN: Peng et al. 2023, section 3.2, "NTK-by-parts".
 */
void rope_frequencies(const Rope *rope, float *inv_freq);

#endif
