/*
 * gemm_library.h: products of a prompt's rows by a library that is found at run time.
 *
 * It may multiply matrices of bf16 weights where prefill is set; x goes in as two bf16 terms, one
 * product each, into f32. With PREFILL_FP8 it may multiply FP8 matrices, too, by x in e4m3; those
 * take rows by 16, so rows of zeros are added, whose outputs nobody reads. A row's bits must not
 * depend on how many rows are multiplied at once, so each shape of matrix has one algorithm, chosen
 * once for LIBRARY_ROWS rows, and used only when the library accepts it for each smaller number
 * too. Where it does not, or where anything fails, the shape is our own kernels' for ever; never is
 * it one or the other by the number of rows.
 *
 * Here is the decision, in plain C; the library itself is in cublaslt.c.
 */
#ifndef OFFSHOOT_KERNELS_GEMM_LIBRARY_H
#define OFFSHOOT_KERNELS_GEMM_LIBRARY_H

#include <stdint.h>

#include "kernels/linear.h"
#include "kernels/ops_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LIBRARY_ROWS = 2048, LIBRARY_SHAPES = 64 };

/* The library's own words: one way to multiply. */
typedef struct {
    uint64_t data[8];
} GemmAlgorithm;

/*
 * y = x w', or y += x w': x [n][cols] and w [rows][cols] both bf16 or both e4m3, y [n] rows
 * y_stride apart, f32. e4m3: times w_scale [ceil(rows / 128)][cols / 128] of 128 x 128 each, and
 * x_scale [cols / 128][n] of 128 k's of a row each.
 */
typedef struct {
    WeightType type; /* BF16 or FP8 */
    int rows, cols, n, add;
    const void *w, *x;
    const float *w_scale, *x_scale;
    float *y;
    int y_stride;
} GemmProduct;

/* Functions return 0, or -1 when they cannot. */
typedef struct {
    void *self; /* NULL: there is none */
    int (*choose)(void *self, WeightType type, int rows, int cols, int n, GemmAlgorithm *out);
    int (*accepts)(void *self, WeightType type, int rows, int cols, int n,
                   const GemmAlgorithm *algorithm);
    int (*multiply)(void *self, const GemmProduct *p, const GemmAlgorithm *algorithm); /* queues */
    void (*close)(void *self);
} GemmLibrary;

/* n rows of x, x_stride apart, as rows of cols high and low terms: x = high + low, to 2^-17. */
typedef void SplitBf16(const CudaContext *c, int n, int cols, const float *x, int x_stride,
                       uint16_t *high, uint16_t *low);
SplitBf16 split_bf16_cuda, split_bf16_simt;
/* n rows of x, and zeros up to n_all, as e4m3 [n_all][cols] and scales [cols / 128][n_all]; cols is
 * a multiple of 128. */
typedef void RoundFp8(const CudaContext *c, int n, int n_all, int cols, const float *x,
                      int x_stride, uint8_t *code, float *scale);
RoundFp8 round_fp8_cuda, round_fp8_simt;

typedef struct {
    WeightType type;
    int rows, cols, ours; /* 1: the library is out of it */
    GemmAlgorithm algorithm;
} GemmShape;

typedef struct {
    GemmLibrary library;
    SplitBf16 *split;
    RoundFp8 *round;
    GemmShape shape[LIBRARY_SHAPES];
    int n_shapes; /* one that finds no place is ours */
} GemmChoice;

/* Queues those of a's products that are for the library; which: bits. Others are for our kernels.
 */
unsigned gemm_library_linear(GemmChoice *g, const CudaContext *c, const Linear *a);

#ifdef __cplusplus
}
#endif

#endif
