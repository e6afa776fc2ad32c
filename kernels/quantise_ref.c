/*
 * quantise_ref.c: INT8 weights, by definition.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/bf16.h"

static float element(const QuantiseInt8 *a, int r, int c)
{
    size_t i = (size_t)r * (size_t)a->cols + (size_t)c;
    float x;
    uint16_t half;
    if (r >= a->rows || c >= a->cols) return 0;
    if (a->from == WEIGHT_F32) {
        memcpy(&x, (const char *)a->data + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, (const char *)a->data + 2 * i, sizeof half);
    return bf16_to_float(half);
}

int quantise_int8_ref(const QuantiseInt8 *a)
{
    assert(a->from == WEIGHT_F32 || a->from == WEIGHT_BF16);
    Weight w = {WEIGHT_INT8, a->rows, a->cols, a->code, a->scale};
    for (int r = 0; r < weight_stored_rows(&w); r++)
        for (int c0 = 0; c0 < a->cols; c0 += INT8_BLOCK) {
            float largest = 0, inverse = 0, scale = r < a->rows ? 1 : 0;
            for (int c = c0; c < c0 + INT8_BLOCK; c++) {
                if (!isfinite(element(a, r, c))) return -1;
                largest = fmaxf(largest, fabsf(element(a, r, c)));
            }
            if (largest >= INT8_TINY) {
                scale = largest / INT8_LARGEST_CODE;
                inverse = INT8_LARGEST_CODE / largest;
            }
            a->scale[weight_int8_scale(&w, r, c0)] = scale;
            for (int c = c0; c < c0 + int8_steps(&w, c0) * INT8_STEP; c++)
                a->code[weight_int8_code(&w, r, c)] =
                    (int8_t)nearbyintf(element(a, r, c) * inverse);
        }
    return 0;
}
