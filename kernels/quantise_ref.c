/*
 * quantise_ref.c: INT8 and INT4 weights, by definition.
 */
#include "kernels/ops_ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/bf16.h"

static float element(const QuantiseInt *a, int r, int c)
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

/* What stands for a run of v: code = step * bits + 128 - minus less 128. */
typedef struct {
    int step, minus;
    uint8_t bits[INT4_RUN];
    float error;
} Int4Run;

static float clamp(float x, float lo, float hi)
{
    return fminf(fmaxf(x, lo), hi);
}

/* With that step and d quarters of it from the middle. */
static Int4Run run_with(int step, int d, const float t[INT4_RUN], float lo, float hi)
{
    Int4Run run = {.step = step};
    float s = (float)step, top = INT4_LARGEST * s;
    float m = nearbyintf((INT4_FINER * top - lo - hi + 4 * (float)d * s) / (2 * INT4_FINER));
    m = clamp(m, top - INT8_LARGEST_CODE, INT8_LARGEST_CODE);
    run.minus = (int)m;
    for (int i = 0; i < INT4_RUN; i++) {
        float inverse = 1 / (INT4_FINER * s);
        float bits = clamp(nearbyintf((t[i] + INT4_FINER * m) * inverse), 0, INT4_LARGEST);
        float off = t[i] - INT4_FINER * (s * bits - m);
        run.bits[i] = (uint8_t)bits;
        run.error += off * off;
    }
    return run;
}

static Int4Run best_run(const float t[INT4_RUN])
{
    Int4Run best = {.error = INFINITY};
    float lo = t[0], hi = t[0];
    for (int i = 1; i < INT4_RUN; i++)
        lo = fminf(lo, t[i]), hi = fmaxf(hi, t[i]);
    int widest = (int)ceilf((hi - lo) / (INT4_FINER * INT4_LARGEST));
    widest = widest < 1 ? 1 : widest > INT4_LARGEST_STEP ? INT4_LARGEST_STEP : widest;
    for (int s = widest; s > 0 && s > widest - INT4_TRIED; s--)
        for (int d = -1; d <= 1; d++) {
            Int4Run run = run_with(s, d, t, lo, hi);
            if (run.error < best.error) best = run;
        }
    return best;
}

static void put_run(const Weight *w, uint8_t *data, int r, int c, const Int4Run *run)
{
    uint8_t *step = data + weight_int4_step(w, r, c), *head = step + int4_run(r, c);
    head[0] = (uint8_t)run->step;
    head[1] = (uint8_t)(128 - run->minus);
    for (int i = 0; i < INT4_RUN; i++) {
        uint8_t *at = step + int4_bits(r, c + i);
        *at = (uint8_t)(i & 4 ? *at | run->bits[i] << 4 : run->bits[i]);
    }
}

int quantise_int_ref(const QuantiseInt *a)
{
    assert(a->from == WEIGHT_F32 || a->from == WEIGHT_BF16);
    assert(weight_is_int(a->to));
    Weight w = {a->to, a->rows, a->cols, a->code, a->scale};
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
            int end = c0 + int8_steps(&w, c0) * INT8_STEP;
            for (int c = c0; c < end && a->to == WEIGHT_INT8; c++)
                ((int8_t *)a->code)[weight_int8_code(&w, r, c)] =
                    (int8_t)nearbyintf(element(a, r, c) * inverse);
            for (int c = c0; c < end && a->to == WEIGHT_INT4; c += INT4_RUN) {
                float t[INT4_RUN];
                for (int i = 0; i < INT4_RUN; i++)
                    t[i] = nearbyintf(INT4_FINER * (element(a, r, c + i) * inverse));
                Int4Run run = best_run(t);
                put_run(&w, a->code, r, c, &run);
            }
        }
    return 0;
}
