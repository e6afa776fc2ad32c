/*
 * weight.h: a matrix of the checkpoint, as the kernels read it.
 *
 * Row-major [rows][cols], y = x W', in the type of the file; FP8 is e4m3 with one f32 scale per
 * 128 x 128 block (blocks at the edges may be cut), W = fp8 * scale.
 *
 * INT8, made at load, for the CPU alone: -127 .. 127 with one f32 scale for 256 neighbours in a
 * row. 16 rows are a panel that lies in memory as products read it:
 *
 *     [panel][block of 256 columns][64 times 4 columns][16 rows][columns 0, 2, 1, 3 of the 4]
 *
 * with scales [panel][block][16 rows], and zeros up to whole panels and 64 columns, where the last
 * block ends. Even bytes are two neighbours, and odd ones: what 16-bit units multiply by pairs of x
 * as they are.
 */
#ifndef OFFSHOOT_KERNELS_WEIGHT_H
#define OFFSHOOT_KERNELS_WEIGHT_H

#include <stdint.h>

#include "kernels/inline.h"

enum {
    FP8_BLOCK = 128,
    INT8_BLOCK = 256,
    INT8_STEP = 64,                            /* columns: no block ends within */
    INT8_ROWS = 16,                            /* of a panel */
    INT8_LINE = 4 * INT8_ROWS,                 /* bytes of 4 columns */
    INT8_BLOCK_BYTES = INT8_BLOCK * INT8_ROWS, /* of a panel */
};

/* BF16_BOTH, for the CPU alone: in memory as BF16, and x is rounded to bf16 before a product. */
typedef enum {
    WEIGHT_NONE,
    WEIGHT_F32,
    WEIGHT_BF16,
    WEIGHT_FP8,
    WEIGHT_INT8,
    WEIGHT_BF16_BOTH,
    N_WEIGHT_TYPES
} WeightType;

/* What operations' prefill may be (backend.h). */
enum { PREFILL_EXACT = 1, PREFILL_FP8 = 2 };

typedef struct {
    WeightType type; /* WEIGHT_NONE: the model has no such matrix */
    int rows, cols;
    const void *data;   /* backend memory, aligned to its element */
    const float *scale; /* FP8: [ceil(rows / 128)][ceil(cols / 128)]; INT8: above; else NULL */
} Weight;

/* FP8's blocks in n rows or columns. */
SHARED_INLINE int weight_blocks(int n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

/* INT8's blocks in n columns. */
SHARED_INLINE int int8_blocks(int n)
{
    return (n + INT8_BLOCK - 1) / INT8_BLOCK;
}

/* Rows that lie together, or share their scales: views of some rows begin at multiples of it. */
SHARED_INLINE int weight_row_step(WeightType type)
{
    return type == WEIGHT_FP8 ? FP8_BLOCK : type == WEIGHT_INT8 ? INT8_ROWS : 1;
}

SHARED_INLINE int weight_is_bf16(WeightType type)
{
    return type == WEIGHT_BF16 || type == WEIGHT_BF16_BOTH;
}

SHARED_INLINE int weight_element_bytes(WeightType type)
{
    return type == WEIGHT_F32 ? 4 : weight_is_bf16(type) ? 2 : 1;
}

/* Bytes of one row of w's data; of a sixteenth of a panel. */
SHARED_INLINE int64_t weight_row_bytes(const Weight *w)
{
    if (w->type == WEIGHT_INT8) return (w->cols + INT8_STEP - 1) / INT8_STEP * INT8_STEP;
    return (int64_t)w->cols * weight_element_bytes(w->type);
}

/* Rows that w's data has room for. */
SHARED_INLINE int64_t weight_stored_rows(const Weight *w)
{
    return w->type == WEIGHT_INT8 ? ((int64_t)w->rows + INT8_ROWS - 1) / INT8_ROWS * INT8_ROWS
                                  : w->rows;
}

SHARED_INLINE int64_t weight_data_bytes(const Weight *w)
{
    return weight_stored_rows(w) * weight_row_bytes(w);
}

/* Of all scales; 0 where the type has none. */
SHARED_INLINE int64_t weight_n_scales(const Weight *w)
{
    int64_t rows = w->type == WEIGHT_FP8    ? weight_blocks(w->rows)
                   : w->type == WEIGHT_INT8 ? weight_stored_rows(w)
                                            : 0;
    return rows * (w->type == WEIGHT_INT8 ? int8_blocks(w->cols) : weight_blocks(w->cols));
}

/* The scales of row r: FP8, one for 128 columns; INT8, of the panel that begins with it. */
SHARED_INLINE const float *weight_scales(const Weight *w, int r)
{
    if (w->type == WEIGHT_INT8) return w->scale + (int64_t)r * int8_blocks(w->cols);
    return w->scale + (int64_t)(r / FP8_BLOCK) * weight_blocks(w->cols);
}

/* Steps of INT8's block that begins with column c: 4, fewer in the last. */
SHARED_INLINE int int8_steps(const Weight *w, int c)
{
    int left = w->cols - c < INT8_BLOCK ? w->cols - c : INT8_BLOCK;
    return (left + INT8_STEP - 1) / INT8_STEP;
}

/* Where INT8's panel of row r begins. */
SHARED_INLINE const int8_t *int8_panel(const Weight *w, int r)
{
    return (const int8_t *)w->data + r / INT8_ROWS * INT8_ROWS * weight_row_bytes(w);
}

/* Which of INT8's codes column c of row r is. */
SHARED_INLINE int64_t weight_int8_code(const Weight *w, int r, int c)
{
    int in_four = (c & 1) << 1 | (c & 2) >> 1;
    return r / INT8_ROWS * INT8_ROWS * weight_row_bytes(w) + (int64_t)(c / 4) * INT8_LINE +
           r % INT8_ROWS * 4 + in_four;
}

/* And which of the scales it has. */
SHARED_INLINE int64_t weight_int8_scale(const Weight *w, int r, int c)
{
    int64_t panel = r / INT8_ROWS;
    return (panel * int8_blocks(w->cols) + c / INT8_BLOCK) * INT8_ROWS + r % INT8_ROWS;
}

SHARED_INLINE float weight_int8_at(const Weight *w, int r, int c)
{
    return (float)((const int8_t *)w->data)[weight_int8_code(w, r, c)] *
           w->scale[weight_int8_scale(w, r, c)];
}

/* Bytes of all of w, scales included; 0 where there is no such matrix. */
SHARED_INLINE double weight_bytes(const Weight *w)
{
    if (w->type == WEIGHT_NONE) return 0;
    return (double)(weight_data_bytes(w) + weight_n_scales(w) * 4);
}

#endif
