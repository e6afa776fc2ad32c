/*
 * shape.h: what a simulation knows of a model: FLOPs of a token and bytes of what is kept.
 */
#ifndef OFFSHOOT_BENCH_SHAPE_H
#define OFFSHOOT_BENCH_SHAPE_H

#include "base/error.h"
#include "engine/cache.h"
#include "kernels/attention.h"

typedef struct {
    char name[64];
    FlopCost cost;
    double state_bytes; /* of all recurrent layers after one token */
    double kv_bytes;    /* of a token in all attention layers */
} Shape;

/*
 * "7b-hybrid": the model of Marconi's evaluation, with its formulas (4 attention, 24 SSM and 28 MLP
 * layers, D 4096, N 128, fp16); or a folder with a config.json, or that file. kv_type: of K and V
 * of the latter.
 */
int shape_open(Shape *s, const char *source, KvType kv_type, Error *err);

#endif
