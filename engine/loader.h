/*
 * loader.h: single tensors of a checkpoint, found by name, checked for shape and type, placed.
 *
 * For model.c, which says what a model consists of; fingerprint.c looks at the Owned alone. The
 * names that a Loader takes are relative to its scope ("model.layers.3."). Whatever it hands out
 * lives as long as the Owned. Functions that can fail leave an Error in l->err.
 */
#ifndef OFFSHOOT_ENGINE_LOADER_H
#define OFFSHOOT_ENGINE_LOADER_H

#include "base/error.h"
#include "engine/dummy.h"
#include "engine/safetensors.h"
#include "engine/saver.h"
#include "engine/transfer.h"
#include "kernels/backend.h"

/* Where small things follow each other in backend memory; large ones have a block of their own. */
typedef struct {
    unsigned char *at;
    size_t left;
} PlaceChunk;

/* Where vectors and scales follow each other in host memory. */
typedef struct {
    float *at;
    size_t left; /* floats */
} FloatChunk;

typedef struct {
    Safetensors *st; /* NULL with dummy weights */
    Backend *backend;
    int64_t n_params, file_bytes; /* of all tensors that the model has taken */
    void **block;                 /* host memory: layers, tables, rows taken apart, floats */
    int n_blocks, cap_blocks;
    FloatChunk floats;
    void **placed; /* backend memory */
    int n_placed, cap_placed;
    PlaceChunk chunk;
} Owned;

typedef struct {
    Owned *own;
    Dummy *dummy;        /* NULL: tensors come from own->st */
    QuantType quant;     /* what wide matrices become (quantise.h) */
    int n_few_bits;      /* packed matrices so far that are of at most four bits */
    int takes_int;       /* the folder is one of saver.h's: its INT8 and INT4 are ours */
    GptqZeros zeros;     /* QuantConfig's */
    int rounds_x;        /* bf16 matrices become BF16_BOTH, but for those that q8 keeps wide */
    Saver *saver;        /* or NULL: what is made of wider matrices goes there, not into memory */
    size_t placed, left; /* bytes of blocks so far; what a host had left before the first */
    int fetches;         /* tensors are read when they are taken: all of them fit into memory */
    const char *dir;     /* for errors */
    char scope[96];      /* in front of each name looked up */
    size_t bytes;        /* of all matrices so far, with their scales */
    size_t widened;      /* of those, bytes that were F16 in the file and are F32 */
    size_t unpacked;     /* and those that were packed and are BF16 */
    Transfers transfers; /* to a backend that is not the host, for loader_finish */
    Error *err;
} Loader;

/* How much was loaded at a time. */
typedef struct {
    Loader loader;
    Owned own;
} LoaderMark;

/* Opens the folder's tensors, unless they are dummies. */
int loader_open(Loader *l);

/* Whatever came after a mark is given back. No saver may have seen it. */
LoaderMark loader_mark(const Loader *l);
void loader_undo(Loader *l, const LoaderMark *mark);

/* When all is placed: what is still to be read gets to its place. */
int loader_finish(Loader *l);
void owned_close(Owned *own);

/* scope = prefix, or prefix + "layers.N." where layer >= 0. */
void loader_scope(Loader *l, const char *prefix, int layer);

/* The tensor scope + leaf + suffix of the file, or NULL. */
const Tensor *loader_find(const Loader *l, const char *leaf, const char *suffix);

/* Zeroed host memory of the model's. */
void *loader_block(Loader *l, size_t count, size_t size);
float *loader_floats(Loader *l, size_t n);

/*
 * Where a backend's kernels find these bytes of the model's host memory: there, when it is host
 * memory that they read; else in a copy. NULL and an Error when the backend has no room.
 */
const void *loader_place(Loader *l, const void *host, size_t bytes);
const float *loader_place_floats(Loader *l, const float *host, size_t n);

/* leaf + suffix, [rows][cols] (cols 1: a vector), as f32, plus a constant; in host memory. */
int loader_vector(Loader *l, const char *leaf, const char *suffix, int rows, int cols, float plus,
                  float **out);

/* A zero-centred norm's leaf.weight: the checkpoint holds w, the kernels want 1 + w. Placed. */
int loader_norm(Loader *l, const char *leaf, int n, const float **out);

/*
 * leaf.weight [rows][cols], with leaf.weight_scale_inv or leaf.weight_scale if it is FP8: a scale
 * for each 128 x 128, or one. What other tools have packed (loader_packed.c) becomes BF16, if
 * nothing else. Of a checkpoint that saver.h wrote INT8 or INT4 as they lie in memory, [panels][4
 * columns][16][4] or [panels][64 columns] [9][64], with leaf.weight_scale; so the next two.
 */
int loader_matrix(Loader *l, const char *leaf, int rows, int cols, Weight *w);

/*
 * leaf [n][parts * rows][cols] in one tensor (with leaf_scale_inv if it is FP8), as matrices of
 * their own: rows [p * rows, (p + 1) * rows) of its matrix i become out[p * n + i].
 */
int loader_stack(Loader *l, const char *leaf, int n, int parts, int rows, int cols, Weight *out);

/* Whether leaf is a matrix that another tool has quantised. */
int loader_is_packed(const Loader *l, const char *leaf);

/* Whether leaf is packed and has integers of at most four bits. */
int loader_has_few_bits(Loader *l, const char *leaf, int rows, int cols);

/* One of two matrices that lie in each other: row i of *w is row map[i] of them. */
typedef struct {
    const char *leaf; /* its name where it has a tensor of its own, as INT8, INT4 */
    const int *map;
    int n;
    Weight *w;
} SplitPart;

/* Both out of leaf.weight, [part[0].n + part[1].n][cols]. */
int loader_split(Loader *l, const char *leaf, int cols, const SplitPart part[2]);

/* Says that a tensor's type is not one of `want`; returns -1. */
int loader_bad_type(const Loader *l, const Tensor *t, const char *want);

#endif
