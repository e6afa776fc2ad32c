/*
 * loader_parts.h: what the files of the loader share: loader.c, which finds tensors and reads
 * vectors, loader_memory.c, where they are put, loader_matrix.c, loader_int.c and loader_packed.c.
 * Nobody else includes this.
 */
#ifndef OFFSHOOT_ENGINE_LOADER_PARTS_H
#define OFFSHOOT_ENGINE_LOADER_PARTS_H

#include "engine/loader.h"
#include "engine/packed.h"

/* ---- loader.c ---- */

/* The tensor scope + leaf + suffix in this shape, dimensions of 1 aside, or NULL. */
const Tensor *loader_find_shape(const Loader *l, const char *leaf, const char *suffix, int n_dims,
                                const int64_t *dim);

/* The same; the model consists of it: it is counted, kept by a saver, and read. */
const Tensor *loader_need(const Loader *l, const char *leaf, const char *suffix, int n_dims,
                          const int64_t *dim);

int64_t loader_n_elements(const Tensor *t);

/* Has its pages read, where all tensors are. */
void loader_fetch(const Loader *l, const Tensor *t);

int loader_is_float(const Tensor *t);

/* What its elements are to the kernels; F16 ones, once they are widened. */
WeightType loader_weight_type(const Tensor *t);

/* All elements, as f32. */
void loader_read_floats(Loader *l, const Tensor *t, float *out);

/* Says that a tensor holds what `lacks`, a kind of weights, cannot say; returns -1. */
int loader_not_finite(const Loader *l, const Tensor *t, const char *lacks);

/* ---- loader_memory.c ---- */

/* Room in backend memory, aligned to 256 bytes. NULL where there is none. */
void *loader_room(Loader *l, size_t bytes);

/* loader_place for a matrix whose elements may be misaligned where they are. */
const void *loader_place_matrix(Loader *l, const unsigned char *data, size_t bytes, size_t align);

/* A matrix of the file as it is; a device gets its bytes in loader_finish. */
const void *loader_place_tensor(Loader *l, const Tensor *t, size_t align);

/* ---- loader_packed.c ---- */

/*
 * A packed matrix, all of it checked. *as: the tensor of its codes, but of type BF16, as its rows
 * will be. packed_free is the caller's, also where this fails.
 */
int loader_open_packed(Loader *l, const char *leaf, int rows, int cols, Packed *p, Tensor *as);

/* All of it goes to the saver, as leaf.weight of type BF16. */
int loader_save_unpacked(Loader *l, const char *leaf, const Packed *p);

/* ---- loader_int.c ---- */

/*
 * w, of which type, rows and cols are set, as INT8 or INT4 made of data: some or all elements of t.
 * It lies where it is read, or in two blocks until it is saved.
 */
int loader_make_int(Loader *l, const Tensor *t, const unsigned char *data, Weight *w);

/* Rows map[0 .. w->rows) of p, whose codes INT4 can keep; map NULL: the first. */
int loader_keep_int4(Loader *l, const Packed *p, const int *map, Weight *w);

/* The n matrices w, which came last, go to the saver and leave memory. */
int loader_save_int(Loader *l, const char *leaf, const char *suffix, Weight *w, int n);

/* Whether the file holds leaf + suffix as loader_save_int left it. */
int loader_is_int(const Loader *l, const char *leaf, const char *suffix);

/* n such matrices, where they lie. */
int loader_take_int(Loader *l, const char *leaf, const char *suffix, int n, int rows, int cols,
                    Weight *out);

#endif
