/*
 * transfer.h: matrices from the files of a checkpoint to the memory of a device, all at once.
 *
 * Moves are collected while the model is put together, then run in the order of the files: several
 * threads read pieces into pinned buffers, the calling thread uploads what is there. A mapping
 * would be read page by page, and one thread does not keep a disk or the bus busy.
 */
#ifndef OFFSHOOT_ENGINE_TRANSFER_H
#define OFFSHOOT_ENGINE_TRANSFER_H

#include "engine/safetensors.h"
#include "kernels/backend.h"

typedef struct {
    int shard;
    size_t offset, bytes; /* in that file */
    unsigned char *to;    /* backend memory */
} Move;

typedef struct {
    Move *move;
    size_t n, cap, bytes;
} Transfers;

/* All of t->data is to go to `to`. */
void transfers_add(Transfers *ts, const Safetensors *st, const Tensor *t, void *to);

/*
 * Reads with n_threads and uploads; when it returns 0 all is there. -1 and an Error when a file
 * cannot be read or has become shorter, or the device fails.
 */
int transfers_run(Transfers *ts, const Safetensors *st, Backend *be, int n_threads, Error *err);
void transfers_free(Transfers *ts);

#endif
