/*
 * quant_config.h: what a checkpoint's quantization_config says of its weights.
 *
 * Which matrices are quantised, and to how many bits, is seen by their tensors (loader_packed.c):
 * lists of patterns, of layers and of those to be left alone need not be followed. From here is
 * what tensors do not tell, and what is refused by name.
 */
#ifndef OFFSHOOT_ENGINE_QUANT_CONFIG_H
#define OFFSHOOT_ENGINE_QUANT_CONFIG_H

#include <jansson.h>

#include "base/error.h"

/*
 * What matrices are in a checkpoint, or become when it is loaded. Int: q8, but packed integers of
 * at most four bits (packed.h) stay as narrow.
 */
typedef enum { QUANT_NONE, QUANT_FP8, QUANT_Q8, QUANT_Q4, QUANT_INT, N_QUANT_TYPES } QuantType;

/* "none", "fp8", "q8", "q4", "int" */
const char *quant_name(QuantType type);

/* quantization_config's quant_method of such a checkpoint, Q8's and Q4's as saver.h writes it. */
const char *quant_method(QuantType type);

/* How GPTQ's zero points are stored: nobody says, less one (its first format), as they are. */
typedef enum { ZEROS_UNSAID, ZEROS_LOWER, ZEROS_AS_THEY_ARE } GptqZeros;

typedef struct {
    QuantType is;  /* as kernels read them they lie in the file */
    int is_packed; /* some are integers or FP4, packed (packed.h) */
    GptqZeros zeros;
} QuantConfig;

/* q, zeros at first, from the value of that key. Errors name `where` and a key. */
int quant_config_read(QuantConfig *q, const json_t *value, const char *where, Error *err);

#endif
