/*
 * safetensors.h: the tensors of a checkpoint folder, mapped, never copied.
 *
 * One model.safetensors, or the shards named by model.safetensors.index.json (of which one may be
 * model.safetensors; else that file is all there is, whatever index lies beside it), and the MTP
 * head, where these have none, in mtp.safetensors (model_mtp, model-mtp). Headers are
 * checked whole before anyone reads a tensor: known types, offsets inside the file and equal to the
 * shape's bytes, no overlap and no gap, no duplicate names (also across shards), bounded sizes.
 */
#ifndef OFFSHOOT_ENGINE_SAFETENSORS_H
#define OFFSHOOT_ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { MAX_TENSOR_DIMS = 8 };

/* All that the format has; most of them we know by their size and name alone. */
typedef enum {
    TENSOR_F32,
    TENSOR_BF16,
    TENSOR_F16,
    TENSOR_FP8_E4M3,
    TENSOR_FP8_E5M2,
    TENSOR_FP8_E8M0, /* a power of two: 2^(byte - 127), 255 is NaN */
    TENSOR_F64,
    TENSOR_C64,
    TENSOR_I64,
    TENSOR_I32,
    TENSOR_I16,
    TENSOR_I8,
    TENSOR_U64,
    TENSOR_U32,
    TENSOR_U16,
    TENSOR_U8,
    TENSOR_BOOL
} TensorType;

typedef struct {
    const char *name;
    const char *file;   /* the shard's name, without its folder */
    int64_t written_ns; /* when that was written last, since 1970 */
    TensorType type;
    int n_dims;
    int64_t dim[MAX_TENSOR_DIMS];
    const unsigned char *data; /* in the mapping; alignment is whatever the file has */
    size_t bytes;
} Tensor;

typedef struct Safetensors Safetensors;

/* dir: a folder with model.safetensors or an index. */
Safetensors *safetensors_open(const char *dir, Error *err);

/* One file by path. */
Safetensors *safetensors_open_file(const char *path, Error *err);
void safetensors_close(Safetensors *st);

/* The tensor of that name, or NULL. Lives as long as st. */
const Tensor *safetensors_find(const Safetensors *st, const char *name);

int safetensors_count(const Safetensors *st);
const Tensor *safetensors_at(const Safetensors *st, int i); /* in order of name */

/* The files: how many, the path of each, which one holds a tensor of st and at which byte of it. */
int safetensors_shards(const Safetensors *st);
const char *safetensors_path(const Safetensors *st, int shard);
int safetensors_place(const Safetensors *st, const Tensor *t, size_t *offset);

/* What follows "mtp." in the name of a tensor of an MTP head; NULL: it is of none. */
const char *tensor_of_head(const char *name);

/* As a file writes it: "F8_E4M3". */
const char *tensor_type_name(TensorType type);

#endif
