/* gemm_library.c: see gemm_library.h. */
#include "kernels/gemm_library.h"

#include <assert.h>

#include "base/log.h"

enum {
    ALIGNMENT = 16,          /* bytes */
    BF16_MULTIPLE = 8,       /* elements of 16 bits in as many */
    FP8_ROW_MULTIPLE = 16,   /* what products of e4m3 ask for */
    FP8_SCALES_MULTIPLE = 4, /* of a row of scales */
    SCALES_ALIGNMENT = 256,
};

static int is_at(const void *p)
{
    return (uintptr_t)p % ALIGNMENT == 0;
}

/* What an algorithm is asked to count on; of a matrix, so that it is the same in every call. */
static int is_aligned(const LinearProduct *p)
{
    const Weight *w = p->w;
    if (!is_at(w->data) || !is_at(p->y) || p->y_stride != w->rows) return 0;
    if (w->type == WEIGHT_BF16) return w->cols % BF16_MULTIPLE == 0 && w->rows % BF16_MULTIPLE == 0;
    return is_at(w->scale) && w->cols % (FP8_BLOCK * FP8_SCALES_MULTIPLE) == 0 &&
           w->rows % FP8_ROW_MULTIPLE == 0;
}

static int row_step(WeightType type)
{
    return type == WEIGHT_FP8 ? PREFILL_FP8_ROWS : 1;
}

/* The algorithm for all numbers of rows; -1 when there is none. */
static int choose(const GemmLibrary *l, GemmShape *s)
{
    const int step = row_step(s->type);
    if (l->choose(l->self, s->type, s->rows, s->cols, LIBRARY_ROWS, &s->algorithm)) return -1;
    for (int n = step; n <= LIBRARY_ROWS; n += step)
        if (l->accepts(l->self, s->type, s->rows, s->cols, n, &s->algorithm)) {
            log_debug("gemm_library rows=%d cols=%d refused=%d", s->rows, s->cols, n);
            return -1;
        }
    return 0;
}

static GemmShape *find_shape(GemmChoice *g, const Weight *w)
{
    for (GemmShape *s = g->shape; s < g->shape + g->n_shapes; s++)
        if (s->type == w->type && s->rows == w->rows && s->cols == w->cols) return s;
    if (g->n_shapes == LIBRARY_SHAPES) return NULL;
    GemmShape *s = &g->shape[g->n_shapes++];
    *s = (GemmShape){.type = w->type, .rows = w->rows, .cols = w->cols};
    s->ours = choose(&g->library, s) != 0;
    return s;
}

/* Bytes of the scratch for a row of x; of e4m3 SCALES_ALIGNMENT beside all of them. */
static size_t row_bytes(const GemmShape *s)
{
    size_t cols = (size_t)s->cols;
    return s->type == WEIGHT_FP8 ? cols + cols / FP8_BLOCK * sizeof(float)
                                 : 2 * sizeof(uint16_t) * cols;
}

/* p, with x as two terms. */
static int multiply_terms(const GemmChoice *g, const CudaContext *c, const float *x, int x_stride,
                          GemmProduct p, const GemmShape *s)
{
    const GemmLibrary *l = &g->library;
    uint16_t *high = (uint16_t *)(void *)c->scratch, *low = high + (size_t)p.n * (size_t)p.cols;
    g->split(c, p.n, p.cols, x, x_stride, high, low);
    p.x = high;
    if (l->multiply(l->self, &p, &s->algorithm)) return -1;
    p.x = low;
    p.add = 1;
    return l->multiply(l->self, &p, &s->algorithm);
}

/* p, with x in e4m3. */
static int multiply_fp8(const GemmChoice *g, const CudaContext *c, const float *x, int x_stride,
                        GemmProduct p, const GemmShape *s)
{
    const int n = p.n;
    p.n = (n + PREFILL_FP8_ROWS - 1) / PREFILL_FP8_ROWS * PREFILL_FP8_ROWS;
    size_t codes = (size_t)p.n * (size_t)p.cols;
    codes = (codes + SCALES_ALIGNMENT - 1) / SCALES_ALIGNMENT * SCALES_ALIGNMENT;
    float *scale = (float *)(void *)(c->scratch + codes);
    g->round(c, n, p.n, p.cols, x, x_stride, c->scratch, scale);
    p.x = c->scratch;
    p.x_scale = scale;
    return g->library.multiply(g->library.self, &p, &s->algorithm);
}

/* Rows of x from `first` on; -1 when the library fails. */
static int multiply_rows(const GemmChoice *g, const CudaContext *c, const Linear *a,
                         const LinearProduct *to, int first, int n, const GemmShape *s)
{
    const float *x = a->x + (int64_t)first * a->x_stride;
    GemmProduct p = {.type = s->type,
                     .rows = s->rows,
                     .cols = s->cols,
                     .n = n,
                     .w = to->w->data,
                     .w_scale = to->w->scale,
                     .y = to->y + (int64_t)first * to->y_stride,
                     .y_stride = to->y_stride};
    return s->type == WEIGHT_FP8 ? multiply_fp8(g, c, x, a->x_stride, p, s)
                                 : multiply_terms(g, c, x, a->x_stride, p, s);
}

int gemm_library_linear(GemmChoice *g, const CudaContext *c, const Linear *a,
                        const LinearProduct *p)
{
    const WeightType type = p->w->type;
    int is_for_it =
        type == WEIGHT_BF16 ? a->prefill != 0 : type == WEIGHT_FP8 && a->prefill == PREFILL_FP8;
    if (!g->library.self || !is_for_it || !is_aligned(p)) return 0;
    GemmShape *s = find_shape(g, p->w);
    if (!s || s->ours) return 0;
    size_t room = c->scratch_bytes - (type == WEIGHT_FP8 ? SCALES_ALIGNMENT : 0);
    size_t fit = room / row_bytes(s);
    int most = fit < LIBRARY_ROWS ? (int)fit / row_step(type) * row_step(type) : LIBRARY_ROWS;
    assert(most > 0);
    for (int i = 0; i < a->n; i += most)
        if (multiply_rows(g, c, a, p, i, a->n - i < most ? a->n - i : most, s)) {
            /* what it accepted it must do; a prompt that spans this moment is of two minds */
            log_warn("gemm_library rows=%d cols=%d event=failed", s->rows, s->cols);
            s->ours = 1;
            return 0;
        }
    return 1;
}
