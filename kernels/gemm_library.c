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
static size_t row_bytes(WeightType type, int cols)
{
    size_t n = (size_t)cols;
    return type == WEIGHT_FP8 ? n + n / FP8_BLOCK * sizeof(float) : 2 * sizeof(uint16_t) * n;
}

/* Some rows of x as matrices of a type are multiplied with. */
typedef struct {
    int n;               /* rows of zeros included */
    const void *term[2]; /* whose products add up; the second may be NULL */
    const float *scale;
} Factors;

/* Of n rows, in the scratch. */
static Factors make_factors(const GemmChoice *g, const CudaContext *c, WeightType type, int n,
                            int cols, const float *x, int x_stride)
{
    if (type == WEIGHT_BF16) {
        uint16_t *high = (uint16_t *)(void *)c->scratch, *low = high + (size_t)n * (size_t)cols;
        g->split(c, n, cols, x, x_stride, high, low);
        return (Factors){n, {high, low}, NULL};
    }
    int n_all = (n + PREFILL_FP8_ROWS - 1) / PREFILL_FP8_ROWS * PREFILL_FP8_ROWS;
    size_t codes = (size_t)n_all * (size_t)cols;
    codes = (codes + SCALES_ALIGNMENT - 1) / SCALES_ALIGNMENT * SCALES_ALIGNMENT;
    float *scale = (float *)(void *)(c->scratch + codes);
    g->round(c, n, n_all, cols, x, x_stride, c->scratch, scale);
    return (Factors){n_all, {c->scratch, NULL}, scale};
}

/* Outputs of a matrix from row `first` on; -1 when the library fails. */
static int multiply(const GemmLibrary *l, const Factors *x, const LinearProduct *to, int first,
                    const GemmShape *s)
{
    for (int t = 0; t < 2 && x->term[t]; t++) {
        GemmProduct p = {.type = s->type,
                         .rows = s->rows,
                         .cols = s->cols,
                         .n = x->n,
                         .add = t,
                         .w = to->w->data,
                         .x = x->term[t],
                         .w_scale = to->w->scale,
                         .x_scale = x->scale,
                         .y = to->y + (int64_t)first * to->y_stride,
                         .y_stride = to->y_stride};
        if (l->multiply(l->self, &p, &s->algorithm)) return -1;
    }
    return 0;
}

/* Rows of x that fit the scratch, of LIBRARY_ROWS. */
static int rows_at_once(const CudaContext *c, WeightType type, int cols)
{
    size_t room = c->scratch_bytes - (type == WEIGHT_FP8 ? SCALES_ALIGNMENT : 0);
    size_t fit = room / row_bytes(type, cols);
    return fit < LIBRARY_ROWS ? (int)fit / row_step(type) * row_step(type) : LIBRARY_ROWS;
}

/* Which of a's products are of that type and the library's: bits, and their shapes. */
static unsigned find_shapes(GemmChoice *g, const Linear *a, WeightType type,
                            GemmShape *shape[MAX_PRODUCTS])
{
    unsigned found = 0;
    for (int i = 0; i < a->n_products; i++) {
        const LinearProduct *p = &a->product[i];
        shape[i] = p->w->type == type && is_aligned(p) ? find_shape(g, p->w) : NULL;
        if (shape[i] && !shape[i]->ours) found |= 1u << i;
    }
    return found;
}

/* What it accepted it must do; a prompt that spans this moment is of two minds. */
static unsigned give_up(GemmShape *const shape[MAX_PRODUCTS], GemmShape *failed, unsigned of)
{
    log_warn("gemm_library rows=%d cols=%d event=failed", failed->rows, failed->cols);
    failed->ours = 1;
    for (int i = 0; i < MAX_PRODUCTS; i++)
        if (of >> i & 1 && shape[i] == failed) of &= ~(1u << i);
    return of;
}

/* Queues a's products of a type; which: bits. */
static unsigned linear_of_type(GemmChoice *g, const CudaContext *c, const Linear *a,
                               WeightType type)
{
    GemmShape *shape[MAX_PRODUCTS];
    unsigned done = find_shapes(g, a, type, shape);
    if (!done) return 0;
    const int cols = a->product[0].w->cols, most = rows_at_once(c, type, cols);
    assert(most > 0);
    for (int first = 0; first < a->n && done; first += most) {
        int n = a->n - first < most ? a->n - first : most;
        Factors x =
            make_factors(g, c, type, n, cols, a->x + (int64_t)first * a->x_stride, a->x_stride);
        for (int i = 0; i < a->n_products; i++)
            if (done >> i & 1 && multiply(&g->library, &x, &a->product[i], first, shape[i]))
                done = give_up(shape, shape[i], done);
    }
    return done;
}

unsigned gemm_library_linear(GemmChoice *g, const CudaContext *c, const Linear *a)
{
    if (!g->library.self || !a->prefill) return 0;
    unsigned done = linear_of_type(g, c, a, WEIGHT_BF16);
    if (a->prefill == PREFILL_FP8) done |= linear_of_type(g, c, a, WEIGHT_FP8);
    return done;
}
