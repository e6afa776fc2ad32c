/*
 * dummy.h: random weights in place of a checkpoint's, to measure speed without the files.
 *
 * Every tensor that is asked for exists, in the shape asked for and the type that published
 * checkpoints have. Values are the same in every run and on every backend: uniform with a standard
 * deviation of 1 / sqrt(columns), so that what goes through the layers stays about as large as it
 * was. Matrices are copied, in backend memory, out of one small pool per number of columns, each
 * from a place of its own: tens of gigabytes are filled in seconds and never pass through the host.
 */
#ifndef OFFSHOOT_ENGINE_DUMMY_H
#define OFFSHOOT_ENGINE_DUMMY_H

#include "engine/safetensors.h"
#include "kernels/backend.h"

typedef enum { DUMMY_NONE, DUMMY_BF16, DUMMY_FP8 } DummyType;

typedef struct Dummy Dummy;

/* type: of the matrices that FP8 checkpoints hold in FP8; the others are BF16. */
Dummy *dummy_open(DummyType type, Backend *backend);

/* Frees the pools; what was filled must have been waited for (sync). NULL is fine. */
void dummy_close(Dummy *d);

/*
 * The tensor scope + leaf + suffix, without data. It lasts until the second call after this one.
 * The scales of a matrix are asked for right after it.
 */
const Tensor *dummy_tensor(Dummy *d, const char *scope, const char *leaf, const char *suffix,
                           int n_dims, const int64_t *dim);

/* A vector's, a convolution's or the scales' values, as f32 in host memory. */
void dummy_floats(Dummy *d, const Tensor *t, float *out);

/* Queues the filling of matrix t in backend memory, aligned to 16. 0, or -1: no memory. */
int dummy_matrix(Dummy *d, const Tensor *t, void *out, Error *err);

#endif
