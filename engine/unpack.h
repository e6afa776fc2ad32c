/*
 * unpack.h: tensors as they lie in a checkpoint, turned into what the kernels read.
 *
 * Widening to f32, and taking Qwen3-Next's interleaved projections apart. Input bytes may have any
 * alignment.
 */
#ifndef OFFSHOOT_ENGINE_UNPACK_H
#define OFFSHOOT_ENGINE_UNPACK_H

#include "engine/config.h"
#include "engine/safetensors.h"

/* All elements of an F32, BF16, F16, F8_E8M0 or F8_E4M3 tensor, widened. */
void unpack_floats(const Tensor *t, float *out);

/*
 * Where the rows of in_proj_qkvz and in_proj_ba belong: row i of the separate projection is row
 * map[i] of the fused one. qkv: [n_channels], z: [n_v_heads * d_v], b, a: [n_v_heads].
 */
typedef struct {
    int *qkv, *z, *b, *a;
} NextRows;

void unpack_next_rows(const ModelConfig *c, NextRows *map);

/* 1 if each block of 128 rows of the map lies in one block of the source: scales can move along. */
int unpack_keeps_blocks(const int *map, int n);

/* out row i = row map[i] of a matrix of row_bytes wide rows. */
void unpack_rows(const unsigned char *data, size_t row_bytes, const int *map, int n,
                 unsigned char *out);

/* The same for an F16 matrix, widened; map NULL: rows 0 .. n. */
void unpack_half_rows(const unsigned char *data, int cols, const int *map, int n, float *out);

/* The same for an FP8 matrix, dequantised; scale: [ceil(rows / 128)][ceil(cols / 128)]. */
void unpack_fp8_rows(const unsigned char *data, const float *scale, int cols, const int *map, int n,
                     float *out);

#endif
