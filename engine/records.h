/*
 * records.h: what the rows of draft trees leave when they leave no states (state mode replay).
 *
 * A record is what a row brought to the recurrence of a layer: convolution input, k, decay, and u
 * where v was. Rows of trees come first in a batch, so row i of a pass is record i of every layer,
 * until the next pass. Kernels write records where they would write scratch: nothing is copied.
 */
#ifndef OFFSHOOT_ENGINE_RECORDS_H
#define OFFSHOOT_ENGINE_RECORDS_H

#include "engine/memory.h"

typedef struct Records {
    const Model *model;
    int n_rows; /* of a pass that are kept */
    size_t bytes;
    float *qkv, *k, *v, *decay; /* backend memory, row after row of layer after layer */

    /* backend memory, what fold reads: [n_rows], path [n_rows][n_rows] */
    int32_t *from, *slot, *length, *path;
} Records;

/* Where a layer's operations write what they make of all rows of a pass. */
typedef struct {
    float *qkv, *k, *v, *decay;
} RecordLayer;

/* One accepted path: rows of the last pass, the root first, and the slot that it takes on. */
typedef struct {
    int32_t slot;
    int length;
    const int32_t *row; /* [length] */
} KeptPath;

/* Bytes that records_open takes. */
size_t records_bytes(const Model *model, int n_rows, int max_rows);

/* Records for passes of up to max_rows rows, of which the first n_rows are trees'. */
int records_open(Records *r, const Model *model, int n_rows, int max_rows, Error *err);
void records_close(Records *r);

RecordLayer records_layer(const Records *r, int i);

/* Queues: each path's slot takes its rows, in place. At most n_rows paths. */
void records_fold(Records *r, const Memory *mem, const KeptPath *kept, int n);

/* The same for n paths that lie in from, slot, length and path already. */
void records_queue_fold(const Records *r, const Memory *mem, int n);

#endif
