/* packed_int4.c: integers of four bits as our own, code by code: see packed.h. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "engine/packed.h"

enum {
    RUNS = INT8_BLOCK / INT4_RUN, /* that share a scale */
    LARGEST_BITS = 15,
    LARGEST_STEP = 16,
    LARGEST_CODE = 127, /* of INT8, which step * (bits - zero) is */
};

/* The code that is 0 in that row and group. */
static int zero_of(const Packed *p, size_t at)
{
    int middle = p->kind == PACKED_OFFSET ? 1 << (p->code.bits - 1) : 0;
    return (p->zero ? (int)p->zero[at] : 0) + middle;
}

int packed_has_few_bits(const Packed *p)
{
    return p->code.bits <= 4 && (p->kind == PACKED_UNSIGNED || p->kind == PACKED_OFFSET);
}

int packed_is_int4(const Packed *p)
{
    size_t n = (size_t)(p->one_row ? 1 : p->rows) * (size_t)p->n_groups;
    if (!packed_has_few_bits(p)) return 0;
    for (int c = 0; c < p->cols; c++)
        if (p->group[c] != p->group[c - c % INT4_RUN]) return 0;
    for (size_t i = 0; i < n; i++) /* a NaN is not above 0 either */
        if (!(p->scale[i] > 0) || isinf(p->scale[i]) || zero_of(p, i) < 0 ||
            zero_of(p, i) > LARGEST_BITS)
            return 0;
    return 1;
}

/* Runs of a row that share a scale: what theirs are, and what of ours comes next to that. */
typedef struct {
    int n;
    float scale[RUNS], unit; /* unit * step[i] is scale[i], nearly */
    int zero[RUNS], step[RUNS];
} Block;

static int largest_step(int zero)
{
    int most = zero > LARGEST_BITS - zero ? zero : LARGEST_BITS - zero;
    int step = LARGEST_CODE / most;
    return step < LARGEST_STEP ? step : LARGEST_STEP;
}

/* The steps next to scale / unit, and then the best unit for them; what is off, squared. */
static float fit(Block *b, float unit)
{
    static const float magic = 12582912; /* 1.5 * 2^23: a sum with it is rounded to an integer */
    float both = 0, squares = 0, error = 0, inverse = 1 / unit;
    for (int i = 0; i < b->n; i++) {
        float most = (float)largest_step(b->zero[i]);
        float step = b->scale[i] * inverse;
        step = step < most ? step + magic - magic : most;
        step = step > 1 ? step : 1;
        b->step[i] = (int)step;
        both += step * b->scale[i];
        squares += step * step;
    }
    b->unit = both / squares;
    for (int i = 0; i < b->n; i++) {
        float off = b->scale[i] - b->unit * (float)b->step[i];
        error += off * off;
    }
    return error;
}

/* Each step that the largest scale could have is tried, the largest step first. */
static void choose_steps(Block *b)
{
    Block best = {.n = 0};
    float least = INFINITY;
    int at = 0;
    for (int i = 1; i < b->n; i++)
        if (b->scale[i] > b->scale[at]) at = i;
    for (int step = b->n ? largest_step(b->zero[at]) : 0; step > 0; step--) {
        float error = fit(b, b->scale[at] / (float)step);
        if (error < least) least = error, best = *b;
    }
    if (best.n) *b = best;
}

typedef struct {
    const Packed *p;
    const int *map;
    const Weight *w;
    uint8_t *code;
    float *scale;
} Rows;

/* Columns [c, c + 256) of row i, whose codes are at `bits`; i may be beyond the last. */
static void put_block(const Rows *a, int i, int c, const uint8_t *bits)
{
    const Packed *p = a->p;
    const Weight *w = a->w;
    Block b = {.n = 0};
    int is_row = i < w->rows, r = is_row && a->map ? a->map[i] : i;
    size_t of_row = p->one_row ? 0 : (size_t)r * (size_t)p->n_groups;
    int end = c + int8_steps(w, c) * INT8_STEP;
    for (int at = c; is_row && at < end && at < p->cols; at += INT4_RUN, b.n++) {
        b.scale[b.n] = p->scale[of_row + (size_t)p->group[at]];
        b.zero[b.n] = zero_of(p, of_row + (size_t)p->group[at]);
    }
    choose_steps(&b);
    a->scale[weight_int8_scale(w, i, c)] = b.unit;
    for (int k = 0, at = c; at < end; k++, at += INT4_RUN) {
        uint8_t *step = a->code + weight_int4_step(w, i, at), *head = step + int4_run(i, at);
        head[0] = (uint8_t)(k < b.n ? b.step[k] : 1);
        head[1] = (uint8_t)(128 - (k < b.n ? b.step[k] * b.zero[k] : 0));
        for (int j = at; j < at + INT4_RUN; j++) {
            uint8_t *to = step + int4_bits(i, j);
            *to = (uint8_t)(j & 4 ? *to | bits[j] << 4 : bits[j]);
        }
    }
}

/* A part of the panels. */
static void put_panels(void *arg, int part, int n_parts)
{
    const Rows *a = arg;
    const Weight *w = a->w;
    int n_panels = (w->rows + INT8_ROWS - 1) / INT8_ROWS;
    int first = (int)((int64_t)n_panels * part / n_parts) * INT8_ROWS;
    int last = (int)((int64_t)n_panels * (part + 1) / n_parts) * INT8_ROWS;
    size_t n = (size_t)int8_blocks(w->cols) * INT8_BLOCK;
    uint8_t *bits = mem_alloc(n, 1);
    for (int i = first; i < last; i++) {
        if (i < w->rows)
            packed_codes(&a->p->code, a->map ? a->map[i] : i, 0, w->cols, bits);
        else
            memset(bits, 0, n);
        for (int c = 0; c < w->cols; c += INT8_BLOCK)
            put_block(a, i, c, bits);
    }
    mem_free(bits);
}

void packed_int4(const Packed *p, const int *map, const Weight *w, uint8_t *code, float *scale)
{
    Rows a = {p, map, w, code, scale};
    thread_each(thread_parts((int64_t)w->rows * w->cols), put_panels, &a, "unpack");
}
