/* scored.c: see scored.h. */
#include "engine/scored.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/quantise.h"

enum {
    ALIGN = 64,        /* of codes and scales: vectors of them cross no line of the cache */
    WIDENED_ROWS = 256 /* of INT8 at a time, whole panels */
};
_Static_assert(WIDENED_ROWS % INT8_ROWS == 0, "parts begin with a panel");

/* ---- the ids ---- */

static void join_nearest(Scored *s)
{
    int best = 0;
    IdRange *r = s->range;
    for (int i = 1; i + 1 < s->n_ranges; i++)
        if (r[i + 1].first - r[i].end < r[best + 1].first - r[best].end) best = i;
    r[best].end = r[best + 1].end;
    s->n_ranges--;
    memmove(r + best + 1, r + best + 2, (size_t)(s->n_ranges - best - 1) * sizeof *r);
}

/* Ids come ascending. A range starts where rows of the LM head can be taken apart. */
static void add_id(Scored *s, int id)
{
    int first = id - id % weight_row_step(s->model->lm_head.type);
    if (s->n_ranges && first <= s->range[s->n_ranges - 1].end) {
        s->range[s->n_ranges - 1].end = id + 1;
        return;
    }
    s->range[s->n_ranges++] = (IdRange){first, id + 1};
    if (s->n_ranges > MAX_SCORED_RANGES) join_nearest(s);
}

/* A view of some rows of w. */
static Weight rows_of(const Weight *w, IdRange r)
{
    Weight part = *w;
    part.rows = r.end - r.first;
    part.data = (const char *)w->data + r.first * weight_row_bytes(w);
    if (w->scale) part.scale = weight_scales(w, r.first);
    return part;
}

void scored_open(Scored *s, const Model *m, const DraftVocab *v)
{
    const ModelConfig *c = &m->config;
    unsigned char *always = mem_alloc((size_t)c->n_vocab, 1);
    *s = (Scored){.model = m};
    for (int i = 0; i < v->n_always; i++)
        if (v->always[i] >= 0 && v->always[i] < c->n_vocab) always[v->always[i]] = 1;
    for (int i = 0; i < c->n_eos; i++)
        always[c->eos[i]] = 1;
    for (int id = 0; id < c->n_vocab; id++)
        if (!v->n_first || id < v->n_first || always[id]) add_id(s, id);
    for (int i = 0; i < s->n_ranges; i++) {
        s->n_ids += s->range[i].end - s->range[i].first;
        s->rows[i] = rows_of(&m->lm_head, s->range[i]);
    }
    mem_free(always);
}

/* ---- copies ---- */

/* What rows are to become, WEIGHT_NONE: they stay as they are. */
static WeightType copy_type(const Scored *s)
{
    static const WeightType types[N_QUANT_TYPES] = {WEIGHT_NONE, WEIGHT_FP8, WEIGHT_INT8,
                                                    WEIGHT_INT4};
    WeightType is = s->model->lm_head.type, to = types[s->model->options.draft_quant];
    int is_narrower =
        is == WEIGHT_F32 || weight_is_bf16(is) || (is == WEIGHT_INT8 && to == WEIGHT_INT4);
    return is_narrower && s->n_ids < s->model->config.n_vocab ? to : WEIGHT_NONE;
}

static Weight copy_of(const Scored *s, int i)
{
    return (Weight){.type = copy_type(s), .rows = s->rows[i].rows, .cols = s->rows[i].cols};
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t scale_bytes(const Weight *w)
{
    return (size_t)weight_n_scales(w) * sizeof(float);
}

size_t scored_copy_bytes(const Scored *s)
{
    size_t bytes = 0;
    for (int i = 0; i < s->n_ranges && copy_type(s); i++) {
        Weight w = copy_of(s, i);
        bytes += aligned((size_t)weight_data_bytes(&w)) + aligned(scale_bytes(&w));
    }
    return bytes;
}

/* INT4 of INT8's rows, some at a time. */
static int narrow_int8(Backend *be, const Weight *w, const Weight *to, char *code, float *scale)
{
    int failed = 0, cols = w->cols;
    float *wide = mem_alloc((size_t)WIDENED_ROWS * (size_t)cols, sizeof *wide);
    for (int r = 0; r < w->rows && !failed; r += WIDENED_ROWS) {
        int n = w->rows - r < WIDENED_ROWS ? w->rows - r : WIDENED_ROWS;
        for (int i = 0; i < n; i++)
            for (int c = 0; c < cols; c++)
                wide[(size_t)i * (size_t)cols + (size_t)c] = weight_int_at(w, r + i, c);
        QuantiseInt a = {wide, WEIGHT_F32, to->type, n, cols, code, scale};
        failed = be->quantise_int(be, &a);
        code += WIDENED_ROWS * weight_row_bytes(to);
        scale += WIDENED_ROWS * int8_blocks(cols);
    }
    mem_free(wide);
    return failed;
}

/* w, whose data is that, in fewer bits, in host memory. */
static int make_copy(Backend *be, const Weight *w, const void *data, const Weight *as, void *code,
                     float *scale)
{
    WeightType from = w->type == WEIGHT_F32 ? WEIGHT_F32 : WEIGHT_BF16, to = as->type;
    if (w->type == WEIGHT_INT8) return narrow_int8(be, w, as, code, scale);
    if (to == WEIGHT_FP8) return quantise_fp8(data, from, w->rows, w->cols, code, scale);
    QuantiseInt a = {data, from, to, w->rows, w->cols, code, scale};
    return be->quantise_int(be, &a);
}

/* The same into backend memory that is not the host's. */
static int make_copy_there(Backend *be, const Weight *w, const Weight *to, void *code, void *scale)
{
    size_t bytes = (size_t)weight_data_bytes(w), n_codes = (size_t)weight_data_bytes(to);
    void *data = mem_alloc(bytes, 1), *codes = mem_alloc(n_codes, 1),
         *scales = mem_alloc(scale_bytes(to), 1);
    be->download(be, data, w->data, bytes);
    int failed = make_copy(be, w, data, to, codes, scales);
    if (!failed) {
        be->upload(be, code, codes, n_codes);
        be->upload(be, scale, scales, scale_bytes(to));
    }
    mem_free(data), mem_free(codes), mem_free(scales);
    return failed;
}

int scored_copy(Scored *s, Error *err)
{
    Backend *be = s->model->backend;
    size_t bytes = scored_copy_bytes(s);
    if (!bytes) return 0;
    char *at = s->copies = be->alloc(be, bytes, err);
    if (!at) return -1;
    for (int i = 0; i < s->n_ranges; i++) {
        Weight *w = &s->rows[i], to = copy_of(s, i);
        void *code = at, *scale = at + aligned((size_t)weight_data_bytes(&to));
        to.data = code, to.scale = scale;
        int failed = be->is_host ? make_copy(be, w, w->data, &to, code, scale)
                                 : make_copy_there(be, w, &to, code, scale);
        if (failed)
            return error_set(err, ERR_FILE,
                             "cannot make %s of the LM head's rows for drafts: a weight of ids %d "
                             "to %d is not finite; --draft-quant none leaves them as they are",
                             quant_name(s->model->options.draft_quant), s->range[i].first,
                             s->range[i].end - 1);
        *w = to;
        at = (char *)scale + aligned(scale_bytes(&to));
    }
    return 0;
}

void scored_close(Scored *s)
{
    if (s->copies) s->model->backend->free(s->model->backend, s->copies);
    *s = (Scored){0};
}

/* ---- products ---- */

double scored_bytes(const Scored *s)
{
    double bytes = 0;
    for (int i = 0; i < s->n_ranges; i++)
        bytes += weight_bytes(&s->rows[i]);
    return bytes;
}

void scored_logits(const Scored *s, int n, const float *out, float *logits)
{
    const Weight *all = &s->model->lm_head;
    Backend *be = s->model->backend;
    for (int i = 0; i < s->n_ranges; i += MAX_PRODUCTS) {
        Linear a = {.n = n, .x = out, .x_stride = all->cols};
        for (int r = i; r < s->n_ranges && a.n_products < MAX_PRODUCTS; r++)
            a.product[a.n_products++] =
                (LinearProduct){&s->rows[r], logits + s->range[r].first, all->rows};
        be->linear(be, &a);
    }
}

void scored_init_logits(const Scored *s, int n, float *logits)
{
    int n_vocab = s->model->config.n_vocab;
    Backend *be = s->model->backend;
    if (s->n_ids == n_vocab) return;
    float *row = mem_alloc((size_t)n_vocab, sizeof *row);
    for (int id = 0; id < n_vocab; id++)
        row[id] = -INFINITY;
    for (int i = 0; i < n; i++)
        be->upload(be, logits + (size_t)i * (size_t)n_vocab, row, (size_t)n_vocab * sizeof *row);
    mem_free(row);
}
