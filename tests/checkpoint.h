/*
 * checkpoint.h: checkpoints written by tests, most of them wrong in one way.
 *
 * A test takes a golden model, changes one thing, writes it to a scratch folder and looks at the
 * message.
 */
#ifndef OFFSHOOT_TESTS_CHECKPOINT_H
#define OFFSHOOT_TESTS_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *name;
    char dtype[16];
    int n_dims;
    int64_t dim[8];
    unsigned char *data;
    size_t bytes;
} CheckpointTensor;

typedef struct {
    CheckpointTensor *tensor;
    int n;
} Checkpoint;

/* A clean folder build/tests/NAME below the current one; its path, in a static buffer. */
const char *scratch_dir(const char *name);

/* "dir/name" in one of a few static buffers. */
const char *scratch_path(const char *dir, const char *name);
void scratch_write(const char *path, const void *data, size_t n);

/* A safetensors file of this header text and n zero bytes of data. */
void scratch_safetensors(const char *path, const char *header, size_t n);

/*
 * Writes dir/NAME from the JSON file `from` (NULL: an empty object), with the values of changes[]:
 * pairs of a dotted path and a JSON text ("text_config.head_dim", "7"); "" removes the key. A NULL
 * ends the list.
 */
void config_write(const char *dir, const char *name, const char *from, const char *const *changes);

/* All tensors of a model folder. */
void checkpoint_read(Checkpoint *c, const char *dir);
CheckpointTensor *checkpoint_get(const Checkpoint *c, const char *name);
void checkpoint_drop(Checkpoint *c, const char *name);

/* Adds a tensor of zeros, [d0][d1][d2] as far as they are not -1, or replaces the one there. */
CheckpointTensor *checkpoint_put(Checkpoint *c, const char *name, const char *dtype, int64_t d0,
                                 int64_t d1, int64_t d2);

/* Renames every tensor that starts with `from`. */
void checkpoint_rename(Checkpoint *c, const char *from, const char *to);

/* Writes tensors part, part + n_parts, ...; shift: bytes of padding tensor in front of them. */
void checkpoint_write(const Checkpoint *c, const char *path, int part, int n_parts, int shift);

/*
 * All of it with a config, changed at one place or not (NULL), as a model's folder; its path, one
 * for each test program.
 */
const char *checkpoint_model(const Checkpoint *c, const char *config, const char *key,
                             const char *text, int shift);
void checkpoint_free(Checkpoint *c);

#endif
