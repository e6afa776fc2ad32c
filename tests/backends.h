/*
 * backends.h: every backend that this machine can run, and arrays for them; for the kernel tests.
 */
#ifndef OFFSHOOT_TESTS_BACKENDS_H
#define OFFSHOOT_TESTS_BACKENDS_H

#include "kernels/backend.h"
#include "tests/near.h"

enum { MAX_BACKENDS = 17, MAX_VOCAB = 512 };

/*
 * ref, and in [0, n_backends) for each instruction set backends of 1, 2 and 3 threads, then the
 * GPU's kernels on the host, last the GPU where there is one, both as mirrors (tests/mirror.h).
 * With gpu_only() the GPU is all there is beside ref.
 */
extern Backend *ref, *backend[MAX_BACKENDS];
extern int n_backends;

/* For cmocka's group set-up and tear-down. */
int open_backends(void **state);
int close_backends(void **state);

/* The first backend of b's instruction set: what the bits of b are compared with. */
int leader(int b);

/* 1 for a backend that runs the GPU's kernels. */
int is_gpu(int b);

/* 0 for what b's products do not take: INT8 on a GPU. */
int has_type(int b, WeightType type);

/*
 * How products are added up: in double, in f32, or with x as two 16-bit terms, as linear_amx.h or
 * linear_tile.h. All of the CPU's take INT8 as linear_int8.h does.
 */
typedef enum { SUMS_REF, SUMS_F32, SUMS_AMX, SUMS_GPU, SUMS_FP8_TENSOR } Sums;
Sums sums_of(int b);

/* The next row that is compared with the same row alone; fibers are slow: some of many. */
int next_alone(int i, int n, int gpu);

/* "op on avx2 with 3 threads"; one static buffer. */
const char *about(const char *op, int b);

/* Arrays of exactly their size, so that a sanitizer sees a step over the end; to be freed. */
float *floats(size_t n);
float *random_floats(Rng *r, size_t n, float scale);
int32_t *ints(size_t n);
/* For n rows of a product's outputs, and what PREFILL_FP8 asks for beside them. */
float *outputs(size_t n, size_t rows);

/* A matrix with random content. */
Weight random_weight(Rng *r, WeightType type, int rows, int cols);
void free_weight(const Weight *w);

#endif
