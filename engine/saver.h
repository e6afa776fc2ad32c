/*
 * saver.h: a checkpoint folder that is written while a model is loaded (model_save_quantised).
 *
 * One model.safetensors, tensors in the order in which they come, so that no more than one of them
 * is in memory: room for the header is kept in front, and what it does not need is blanks. Beside
 * it are config.json, which says what was done, and the other files of the folder that the model
 * comes from, but for its weights. The file has its name when all of it is on the disk.
 */
#ifndef OFFSHOOT_ENGINE_SAVER_H
#define OFFSHOOT_ENGINE_SAVER_H

#include "base/error.h"
#include "engine/config.h"
#include "engine/safetensors.h"

typedef struct Saver Saver;

/* What a safetensors file is told of a tensor. Its bytes come in pieces, all of one size. */
typedef struct {
    char name[192];
    const char *dtype; /* "I8" */
    int n_dims;
    int64_t dim[MAX_TENSOR_DIMS];
} SavedTensor;

/*
 * dir: made if it is not there; it must hold no weights, and none of the files that come along from
 * the folder `from`.
 */
Saver *saver_open(const char *dir, const char *from, Error *err);

/* The checkpoint that is saved, before any tensor is: it bounds the header. */
void saver_begin(Saver *s, const Safetensors *from);

/* Writes n_pieces pieces, each of bytes. -1 and an Error when the disk does not take them. */
int saver_add(Saver *s, const SavedTensor *t, const void *const *piece, int n_pieces, size_t bytes,
              Error *err);

/* t, which lives until saver_finish, is to be in the file as it is; or it is not, after all. */
void saver_keep(Saver *s, const Tensor *t);
void saver_drop(Saver *s, const Tensor *t);

/* Kept tensors, header, config, which says what was made, and the other files. *bytes: the
 * weights'.
 */
int saver_finish(Saver *s, QuantType made, int64_t *bytes, Error *err);

/* Removes what is not finished. NULL is fine. */
void saver_close(Saver *s);

#endif
