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
 *
 * INT4, for the CPU alone as well, is INT8 in 4.6 bits a weight: 32 neighbours in a row ("a run")
 * have a step and an offset, with which each one's 4 bits say its code of INT8,
 *
 *     code = step * bits + offset - 128, step 1 .. 16, offset 1 .. 255 - 15 step
 *
 * so that what is a product with INT8 is one with INT4, to the bit, once codes are unpacked. 64
 * columns of a panel are a step of 9 lines: step and offset of each row in the first run, then in
 * the second; then 8 columns a line, 4 low and 4 high halves of bytes, each in INT8's order:
 *
 *     [panel][64 columns][2 runs][16 rows][step, offset]
 *                        [8 times 8 columns][16 rows][columns 0, 2, 1, 3; 4, 6, 5, 7 above them]
 *
 * What pads its columns may be any code: x has zeros there.
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
    INT4_RUN = 32,                             /* columns that share step and offset */
    INT4_LINES = 9,                            /* of INT8_LINE bytes: INT8_STEP columns */
    INT4_STEP_BYTES = INT4_LINES * INT8_LINE,
    INT4_BLOCK_BYTES = INT8_BLOCK / INT8_STEP * INT4_STEP_BYTES,
};

/* BF16_BOTH, for the CPU alone: in memory as BF16, and x is rounded to bf16 before a product. */
typedef enum {
    WEIGHT_NONE,
    WEIGHT_F32,
    WEIGHT_BF16,
    WEIGHT_FP8,
    WEIGHT_INT8,
    WEIGHT_INT4,
    WEIGHT_BF16_BOTH,
    N_WEIGHT_TYPES
} WeightType;

/* What operations' prefill may be (backend.h). */
enum { PREFILL_EXACT = 1, PREFILL_FP8 = 2 };

typedef struct {
    WeightType type; /* WEIGHT_NONE: the model has no such matrix */
    int rows, cols;
    const void *data; /* backend memory, aligned to its element */
    /* FP8: [ceil(rows / 128)][ceil(cols / 128)]; INT8 and INT4: as above; else NULL */
    const float *scale;
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

/* INT8, and INT4, which becomes that. */
SHARED_INLINE int weight_is_int(WeightType type)
{
    return type == WEIGHT_INT8 || type == WEIGHT_INT4;
}

/* Rows that lie together, or share their scales: views of some rows begin at multiples of it. */
SHARED_INLINE int weight_row_step(WeightType type)
{
    return type == WEIGHT_FP8 ? FP8_BLOCK : weight_is_int(type) ? INT8_ROWS : 1;
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
    if (weight_is_int(w->type))
        return (w->cols + INT8_STEP - 1) / INT8_STEP *
               (w->type == WEIGHT_INT4 ? INT4_STEP_BYTES / INT8_ROWS : INT8_STEP);
    return (int64_t)w->cols * weight_element_bytes(w->type);
}

/* Rows that w's data has room for. */
SHARED_INLINE int64_t weight_stored_rows(const Weight *w)
{
    return weight_is_int(w->type) ? ((int64_t)w->rows + INT8_ROWS - 1) / INT8_ROWS * INT8_ROWS
                                  : w->rows;
}

SHARED_INLINE int64_t weight_data_bytes(const Weight *w)
{
    return weight_stored_rows(w) * weight_row_bytes(w);
}

/* Of all scales; 0 where the type has none. */
SHARED_INLINE int64_t weight_n_scales(const Weight *w)
{
    if (weight_is_int(w->type)) return weight_stored_rows(w) * int8_blocks(w->cols);
    return w->type == WEIGHT_FP8 ? (int64_t)weight_blocks(w->rows) * weight_blocks(w->cols) : 0;
}

/* The scales of row r: FP8, one for 128 columns; INT8, INT4, of the panel that begins with it. */
SHARED_INLINE const float *weight_scales(const Weight *w, int r)
{
    if (weight_is_int(w->type)) return w->scale + (int64_t)r * int8_blocks(w->cols);
    return w->scale + (int64_t)(r / FP8_BLOCK) * weight_blocks(w->cols);
}

/* Steps of INT8's block that begins with column c: 4, fewer in the last. */
SHARED_INLINE int int8_steps(const Weight *w, int c)
{
    int left = w->cols - c < INT8_BLOCK ? w->cols - c : INT8_BLOCK;
    return (left + INT8_STEP - 1) / INT8_STEP;
}

/* From the data's begin to that of row r's panel, INT8's or INT4's. */
SHARED_INLINE int64_t int_panel_at(const Weight *w, int r)
{
    return r / INT8_ROWS * INT8_ROWS * weight_row_bytes(w);
}

SHARED_INLINE const int8_t *int8_panel(const Weight *w, int r)
{
    return (const int8_t *)w->data + int_panel_at(w, r);
}

/* Which byte of a line belongs to row r and column c: of 4, 0, 2, 1, 3. */
SHARED_INLINE int int_in_line(int r, int c)
{
    return r % INT8_ROWS * 4 + ((c & 1) << 1 | (c & 2) >> 1);
}

/* Which of INT8's codes column c of row r is. */
SHARED_INLINE int64_t weight_int8_code(const Weight *w, int r, int c)
{
    return int_panel_at(w, r) + (int64_t)(c / 4) * INT8_LINE + int_in_line(r, c);
}

/* And which of the scales it has. */
SHARED_INLINE int64_t weight_int8_scale(const Weight *w, int r, int c)
{
    int64_t panel = r / INT8_ROWS;
    return (panel * int8_blocks(w->cols) + c / INT8_BLOCK) * INT8_ROWS + r % INT8_ROWS;
}

/* Where INT4's step that column c of row r is in begins. */
SHARED_INLINE int64_t weight_int4_step(const Weight *w, int r, int c)
{
    return int_panel_at(w, r) + (int64_t)(c / INT8_STEP) * INT4_STEP_BYTES;
}

/* Where, in its step, the step size and then the offset of the run of column c of row r are. */
SHARED_INLINE int int4_run(int r, int c)
{
    return c % INT8_STEP / INT4_RUN * 2 * INT8_ROWS + r % INT8_ROWS * 2;
}

/* And the byte with the column's bits: the upper ones for 4 of 8 columns. */
SHARED_INLINE int int4_bits(int r, int c)
{
    return (1 + c % INT8_STEP / 8) * INT8_LINE + int_in_line(r, c);
}

/* The code of INT8 that column c of row r has, of either type. */
SHARED_INLINE int weight_int_code(const Weight *w, int r, int c)
{
    if (w->type == WEIGHT_INT8) return ((const int8_t *)w->data)[weight_int8_code(w, r, c)];
    const uint8_t *step = (const uint8_t *)w->data + weight_int4_step(w, r, c),
                  *run = step + int4_run(r, c);
    return run[0] * (step[int4_bits(r, c)] >> (c & 4) & 15) + run[1] - 128;
}

SHARED_INLINE float weight_int_at(const Weight *w, int r, int c)
{
    return (float)weight_int_code(w, r, c) * w->scale[weight_int8_scale(w, r, c)];
}

/* Bytes of all of w, scales included; 0 where there is no such matrix. */
SHARED_INLINE double weight_bytes(const Weight *w)
{
    if (w->type == WEIGHT_NONE) return 0;
    return (double)(weight_data_bytes(w) + weight_n_scales(w) * 4);
}

#endif
