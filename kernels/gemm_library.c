/* gemm_library.c: see gemm_library.h. */
#include "kernels/gemm_library.h"

#include <assert.h>

#include "base/log.h"

enum { ALIGNMENT = 16, ROW_ELEMENTS = 8 }; /* bytes; elements of 16 bits in as many */

/* What an algorithm is asked to count on; of a matrix, so that it is the same in every call. */
static int is_aligned(const LinearProduct *p)
{
    const Weight *w = p->w;
    return (uintptr_t)w->data % ALIGNMENT == 0 && (uintptr_t)p->y % ALIGNMENT == 0 &&
           w->cols % ROW_ELEMENTS == 0 && w->rows % ROW_ELEMENTS == 0 && p->y_stride == w->rows;
}

/* The algorithm for all numbers of rows; -1 when there is none. */
static int choose(const GemmLibrary *l, GemmShape *s)
{
    if (l->choose(l->self, s->rows, s->cols, LIBRARY_ROWS, &s->algorithm)) return -1;
    for (int n = 1; n <= LIBRARY_ROWS; n++)
        if (l->accepts(l->self, s->rows, s->cols, n, &s->algorithm)) {
            log_debug("gemm_library rows=%d cols=%d refused=%d", s->rows, s->cols, n);
            return -1;
        }
    return 0;
}

static GemmShape *find_shape(GemmChoice *g, const Weight *w)
{
    for (GemmShape *s = g->shape; s < g->shape + g->n_shapes; s++)
        if (s->rows == w->rows && s->cols == w->cols) return s;
    if (g->n_shapes == LIBRARY_SHAPES) return NULL;
    GemmShape *s = &g->shape[g->n_shapes++];
    *s = (GemmShape){.rows = w->rows, .cols = w->cols};
    s->ours = choose(&g->library, s) != 0;
    return s;
}

/* Rows of x from `first` on; -1 when the library fails. */
static int multiply_rows(const GemmChoice *g, const CudaContext *c, const Linear *a,
                         const LinearProduct *to, int first, int n, const GemmShape *s)
{
    const GemmLibrary *l = &g->library;
    uint16_t *high = (uint16_t *)(void *)c->scratch, *low = high + (size_t)n * (size_t)s->cols;
    GemmProduct p = {.rows = s->rows,
                     .cols = s->cols,
                     .n = n,
                     .w = to->w->data,
                     .x = high,
                     .y = to->y + (int64_t)first * to->y_stride,
                     .y_stride = to->y_stride};
    g->split(c, n, s->cols, a->x + (int64_t)first * a->x_stride, a->x_stride, high, low);
    if (l->multiply(l->self, &p, &s->algorithm)) return -1;
    p.x = low;
    p.add = 1;
    return l->multiply(l->self, &p, &s->algorithm);
}

int gemm_library_linear(GemmChoice *g, const CudaContext *c, const Linear *a,
                        const LinearProduct *p)
{
    if (!g->library.self || !a->prefill || p->w->type != WEIGHT_BF16 || !is_aligned(p)) return 0;
    GemmShape *s = find_shape(g, p->w);
    if (!s || s->ours) return 0;
    size_t fit = c->scratch_bytes / (2 * sizeof(uint16_t) * (size_t)s->cols);
    int most = fit < LIBRARY_ROWS ? (int)fit : LIBRARY_ROWS;
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
