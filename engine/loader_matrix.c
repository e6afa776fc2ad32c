/*
 * loader_matrix.c: matrices, stacks and split ones: see loader.h.
 *
 * They stay in the mapping, or go to the memory of a backend that has its own (loader_memory.c);
 * dummies are made where they will be read. F16 matrices become F32, for no kernel reads them.
 */
#include "engine/loader_parts.h"

#include <assert.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/quantise.h"
#include "engine/unpack.h"

/* Scales of FP8; NULL and an Error. */
static const Tensor *need_scale(const Loader *l, const char *leaf, const char *suffix, int n_dims,
                                const int64_t *dim)
{
    const Tensor *t = loader_need(l, leaf, suffix, n_dims, dim);
    if (!t || loader_is_float(t) || t->type == TENSOR_FP8_E8M0) return t;
    loader_bad_type(l, t, "F32, BF16, F16 or F8_E8M0");
    return NULL;
}

/* A scale for each block of n matrices; t has all, or one for each of them. */
static void read_scales(Loader *l, const Tensor *t, size_t n, size_t n_blocks, float *out)
{
    loader_read_floats(l, t, out);
    if (loader_n_elements(t) == (int64_t)(n * n_blocks)) return;
    for (size_t i = n * n_blocks; i-- > 0;)
        out[i] = out[i / n_blocks];
}

/* X.weight and, if that is FP8, X.weight_scale_inv or X.weight_scale. */
static int find_matrix(const Loader *l, const char *leaf, int rows, int cols, const Tensor **weight,
                       const Tensor **scale)
{
    const Tensor *t = loader_need(l, leaf, ".weight", 2, (int64_t[]){rows, cols});
    *weight = t;
    *scale = NULL;
    if (!t) return -1;
    if (loader_is_float(t)) return 0;
    if (t->type != TENSOR_FP8_E4M3) return loader_bad_type(l, t, "BF16, F16, F32 or F8_E4M3");
    const char *suffix = ".weight_scale";
    const Tensor *s = loader_find(l, leaf, suffix);
    if (!s) s = loader_find(l, leaf, suffix = ".weight_scale_inv");
    int64_t dims[2] = {weight_blocks(rows), weight_blocks(cols)};
    if (s && loader_n_elements(s) == 1) dims[0] = dims[1] = 1;
    *scale = need_scale(l, leaf, suffix, 2, dims);
    return *scale ? 0 : -1;
}

/* Random elements, made where they will be read. */
static const void *place_dummy(Loader *l, const Tensor *t)
{
    void *at = loader_room(l, t->bytes);
    l->bytes += t->bytes;
    return at && !dummy_matrix(l->dummy, t, at, l->err) ? at : NULL;
}

/* What the matrix or stack of them becomes, WEIGHT_NONE: it stays as it is. */
static WeightType new_type(const Loader *l, const char *leaf, const Tensor *t)
{
    return t->type == TENSOR_FP8_E4M3 ? WEIGHT_NONE : quantise_to(l->quant, leaf);
}

/* A matrix that has been taken as it is: what it is multiplied with. */
static void choose_x(const Loader *l, const char *leaf, Weight *w)
{
    if (l->rounds_x && w->type == WEIGHT_BF16 && quantise_to(QUANT_Q8, leaf) != WEIGHT_NONE)
        w->type = WEIGHT_BF16_BOTH;
}

/* Rows and cols of w as that type, made of data, which are some or all elements of t. */
static int place_quantised(Loader *l, const Tensor *t, const unsigned char *data, WeightType to,
                           Weight *w)
{
    *w = (Weight){.type = to, .rows = w->rows, .cols = w->cols};
    if (weight_is_int(to)) return loader_make_int(l, t, data, w);
    size_t n = (size_t)weight_data_bytes(w), n_scales = (size_t)weight_n_scales(w);
    int stays = l->own->backend->is_host;
    uint8_t *code = stays ? loader_block(l, n, 1) : mem_alloc(n, 1);
    float *scale = loader_floats(l, n_scales);
    if (quantise_fp8(data, loader_weight_type(t), w->rows, w->cols, code, scale)) {
        loader_not_finite(l, t, "FP8");
    } else {
        w->data = loader_place_matrix(l, code, n, 1);
        w->scale = loader_place_floats(l, scale, n_scales);
        l->bytes += n_scales * sizeof *scale;
    }
    if (!stays) mem_free(code);
    return w->data && w->scale ? 0 : -1;
}

/* Random elements as t would have them in a file, to be freed; NULL and an Error. Host only. */
static unsigned char *random_elements(Loader *l, const Tensor *t)
{
    assert(l->own->backend->is_host);
    unsigned char *at = mem_alloc(t->bytes, 1);
    if (!dummy_matrix(l->dummy, t, at, l->err)) return at;
    mem_free(at);
    return NULL;
}

/* All of t that is needed has been copied: it is not to be in memory twice, nor saved as it is. */
static void forget(const Loader *l, const Tensor *t, int quantised)
{
    if (!l->dummy) mapped_file_forget(t->data, t->bytes);
    if (l->saver && quantised) saver_drop(l->saver, t);
}

/* A matrix, or one of a stack, that is not read as it lies in the file. */
typedef struct {
    const Tensor *t;
    const unsigned char *data;
    const float *scale;   /* of FP8, in host memory */
    const Packed *packed; /* of what t has the codes, or NULL */
    int cols;
    WeightType to; /* WEIGHT_NONE: as it is */
} Source;

/*
 * Rows map[0..n) of s as a matrix of their own; map NULL: the first n. F16 is widened, what is
 * packed unpacked. FP8 scales belong to blocks of 128 rows: if the map tears blocks apart (in no
 * published size), the rows are dequantised.
 */
static int take_rows(Loader *l, const Source *s, const int *map, int n, Weight *w)
{
    int is_half = s->t->type == TENSOR_F16, cols = s->cols;
    int torn = s->scale && !unpack_keeps_blocks(map, n);
    if (s->to == WEIGHT_INT4 && s->packed && packed_is_int4(s->packed)) {
        *w = (Weight){.type = WEIGHT_INT4, .rows = n, .cols = cols};
        return loader_keep_int4(l, s->packed, map, w);
    }
    *w = (Weight){.type = torn ? WEIGHT_F32 : loader_weight_type(s->t), .rows = n, .cols = cols};
    size_t row_bytes = (size_t)weight_row_bytes(w);
    int stays = l->own->backend->is_host && !s->to, failed = 0;
    void *rows = stays ? loader_block(l, (size_t)n, row_bytes) : mem_alloc((size_t)n, row_bytes);
    if (torn)
        unpack_fp8_rows(s->data, s->scale, cols, map, n, rows);
    else if (s->packed)
        packed_rows(s->packed, map, n, rows);
    else if (is_half)
        unpack_half_rows(s->data, cols, map, n, rows);
    else
        unpack_rows(s->data, row_bytes, map, n, rows);
    if (is_half && !s->to) l->widened += (size_t)n * row_bytes;
    if (s->packed && !s->to) l->unpacked += (size_t)n * row_bytes;
    if (s->to)
        failed = place_quantised(l, s->t, rows, s->to, w);
    else
        w->data = loader_place_matrix(l, rows, (size_t)n * row_bytes,
                                      (size_t)weight_element_bytes(w->type));
    if (!stays) mem_free(rows);
    if (failed || !w->data) return -1;
    if (!s->scale || torn) return 0;

    size_t n_rows = (size_t)weight_blocks(n), n_cols = (size_t)weight_blocks(cols);
    float *scale = loader_floats(l, n_rows * n_cols);
    for (size_t b = 0; b < n_rows; b++) {
        size_t from = (size_t)(map[b * FP8_BLOCK] / FP8_BLOCK);
        memcpy(scale + b * n_cols, s->scale + from * n_cols, n_cols * sizeof *scale);
    }
    w->scale = loader_place_floats(l, scale, n_rows * n_cols);
    l->bytes += n_rows * n_cols * sizeof *scale;
    return w->scale ? 0 : -1;
}

/* Rows of s as a matrix of their own, kept or saved. */
static int take_part(Loader *l, const char *leaf, const Source *s, const SplitPart *part)
{
    if (take_rows(l, s, part->map, part->n, part->w)) return -1;
    choose_x(l, leaf, part->w);
    return l->saver && s->to ? loader_save_int(l, part->leaf, ".weight", part->w, 1) : 0;
}

/* Of few bits or of others, where the loader may choose. */
static QuantType packed_quant(const Loader *l, const Packed *p)
{
    if (l->quant != QUANT_INT) return l->quant;
    return packed_has_few_bits(p) ? QUANT_Q4 : QUANT_Q8;
}

/* Parts of leaf, which is packed. */
static int take_packed(Loader *l, const char *leaf, int rows, int cols, const SplitPart *part,
                       int n_parts)
{
    Packed p;
    Tensor as;
    int failed = loader_open_packed(l, leaf, rows, cols, &p, &as);
    WeightType to = quantise_to(failed ? QUANT_NONE : packed_quant(l, &p), leaf);
    for (int i = 0; i < n_parts && !failed; i++)
        failed = take_part(l, leaf, &(Source){&as, as.data, NULL, &p, cols, to}, &part[i]);
    if (l->saver && !to && !failed) failed = loader_save_unpacked(l, leaf, &p);
    if (!failed) forget(l, &as, 0);
    packed_free(&p);
    return failed;
}

int loader_matrix(Loader *l, const char *leaf, int rows, int cols, Weight *w)
{
    const Tensor *t, *scale;
    if (loader_is_int(l, leaf, ".weight"))
        return loader_take_int(l, leaf, ".weight", 1, rows, cols, w);
    if (loader_is_packed(l, leaf))
        return take_packed(l, leaf, rows, cols, &(SplitPart){leaf, NULL, rows, w}, 1);
    if (find_matrix(l, leaf, rows, cols, &t, &scale)) return -1;
    WeightType to = new_type(l, leaf, t);
    *w = (Weight){.type = loader_weight_type(t), .rows = rows, .cols = cols};
    if (to || t->type == TENSOR_F16) {
        int failed;
        unsigned char *random = l->dummy ? random_elements(l, t) : NULL;
        if (l->dummy && !random) return -1;
        if (t->type == TENSOR_F16)
            failed = take_rows(l, &(Source){t, t->data, NULL, NULL, cols, to}, NULL, rows, w);
        else
            failed = place_quantised(l, t, random ? random : t->data, to, w);
        mem_free(random);
        forget(l, t, to != WEIGHT_NONE);
        if (l->saver && to && !failed) failed = loader_save_int(l, leaf, ".weight", w, 1);
        return failed;
    }
    w->data = l->dummy ? place_dummy(l, t)
                       : loader_place_tensor(l, t, (size_t)weight_element_bytes(w->type));
    if (scale) {
        size_t n = (size_t)weight_blocks(rows) * (size_t)weight_blocks(cols);
        float *s = loader_floats(l, n);
        read_scales(l, scale, 1, n, s);
        w->scale = loader_place_floats(l, s, n);
        l->bytes += n * sizeof *s;
    }
    choose_x(l, leaf, w);
    return w->data && (!scale || w->scale) ? 0 : -1;
}

/* An FP8 stack, [n][parts * rows][cols], and its scales in host memory, a block each. */
typedef struct {
    const Tensor *t;
    const float *scale; /* [n][row_blocks][col_blocks] */
    int n, parts, rows, cols, row_blocks, col_blocks;
} Fp8Stack;

/* Each part has blocks of its own: all stays as it lies in the file. */
static int place_fp8_stack(Loader *l, const Fp8Stack *s, Weight *out)
{
    size_t bytes = (size_t)s->rows * (size_t)s->cols, n_scales = (size_t)s->col_blocks,
           all = (size_t)s->n * (size_t)s->row_blocks * n_scales;
    const unsigned char *data = loader_place_tensor(l, s->t, 1);
    const float *scale = loader_place_floats(l, s->scale, all);
    if (!data || !scale) return -1;
    l->bytes += all * sizeof *scale;
    n_scales *= (size_t)s->row_blocks / (size_t)s->parts;
    for (int i = 0; i < s->n; i++)
        for (int p = 0; p < s->parts; p++, data += bytes, scale += n_scales)
            out[p * s->n + i] = (Weight){
                .type = WEIGHT_FP8, .rows = s->rows, .cols = s->cols, .data = data, .scale = scale};
    return 0;
}

static int dequantise_fp8_stack(Loader *l, const Fp8Stack *s, Weight *out)
{
    int n_rows = s->parts * s->rows, stays = l->own->backend->is_host, failed = 0;
    size_t n = (size_t)s->rows * (size_t)s->cols;
    int *map = mem_alloc((size_t)n_rows, sizeof *map);
    for (int r = 0; r < n_rows; r++)
        map[r] = r;
    for (int i = 0; i < s->n * s->parts; i++) {
        int matrix = i / s->parts, part = i % s->parts;
        Weight *w = &out[part * s->n + matrix];
        float *rows = stays ? loader_block(l, n, sizeof *rows) : mem_alloc(n, sizeof *rows);
        unpack_fp8_rows(s->t->data + (size_t)(matrix * s->parts) * n,
                        s->scale + (size_t)matrix * (size_t)(s->row_blocks * s->col_blocks),
                        s->cols, map + part * s->rows, s->rows, rows);
        *w = (Weight){.type = WEIGHT_F32, .rows = s->rows, .cols = s->cols};
        w->data =
            loader_place_matrix(l, (const unsigned char *)rows, n * sizeof *rows, sizeof *rows);
        failed = failed || !w->data;
        if (!stays) mem_free(rows);
    }
    mem_free(map);
    forget(l, s->t, 0);
    return failed ? -1 : 0;
}

/*
 * The experts' width must be a multiple of 128 for their matrices to have blocks of their own: it
 * is the rows of a part of two, and the columns of what has one. If it is not (in no published
 * size), all of them are dequantised, for experts are of one type.
 */
static int take_fp8_stack(Loader *l, const char *leaf, Fp8Stack *s, Weight *out)
{
    s->row_blocks = weight_blocks(s->parts * s->rows), s->col_blocks = weight_blocks(s->cols);
    const Tensor *t = loader_find(l, leaf, "_scale_inv");
    size_t n = (size_t)s->n, each = (size_t)(s->row_blocks * s->col_blocks);
    int64_t dim[3] = {s->n, s->row_blocks, s->col_blocks};
    if (t && loader_n_elements(t) == s->n) dim[1] = dim[2] = 1;
    const Tensor *scale = need_scale(l, leaf, "_scale_inv", 3, dim);
    if (!scale) return -1;
    float *host = loader_floats(l, n * each);
    read_scales(l, scale, n, each, host);
    s->scale = host;
    int torn = (s->parts > 1 ? s->rows : s->cols) % FP8_BLOCK != 0;
    return torn ? dequantise_fp8_stack(l, s, out) : place_fp8_stack(l, s, out);
}

int loader_stack(Loader *l, const char *leaf, int n, int parts, int rows, int cols, Weight *out)
{
    if (loader_is_int(l, leaf, "")) return loader_take_int(l, leaf, "", n * parts, rows, cols, out);
    const Tensor *t = loader_need(l, leaf, "", 3, (int64_t[]){n, parts * rows, cols});
    if (!t) return -1;
    if (t->type == TENSOR_FP8_E4M3) {
        Fp8Stack stack = {.t = t, .n = n, .parts = parts, .rows = rows, .cols = cols};
        return take_fp8_stack(l, leaf, &stack, out);
    }
    if (!loader_is_float(t)) return loader_bad_type(l, t, "BF16, F16, F32 or F8_E4M3");
    WeightType to = new_type(l, leaf, t);
    int halves = t->type == TENSOR_F16;
    size_t element = t->bytes / ((size_t)n * (size_t)(parts * rows) * (size_t)cols),
           bytes = (size_t)rows * (size_t)cols * element;
    const unsigned char *data = to || halves ? t->data : loader_place_tensor(l, t, element);
    if (!data) return -1;
    for (int i = 0; i < n; i++)
        for (int p = 0; p < parts; p++, data += bytes) {
            Weight *w = &out[p * n + i];
            *w = (Weight){.type = loader_weight_type(t), .rows = rows, .cols = cols, .data = data};
            if (halves ? take_rows(l, &(Source){t, data, NULL, NULL, cols, to}, NULL, rows, w)
                       : to && place_quantised(l, t, data, to, w))
                return -1;
            choose_x(l, leaf, w);
        }
    if (to || halves) forget(l, t, to != WEIGHT_NONE);
    return l->saver && to ? loader_save_int(l, leaf, "", out, n * parts) : 0;
}

int loader_split(Loader *l, const char *leaf, int cols, const SplitPart part[2])
{
    const Tensor *t, *scale;
    float *s = NULL;
    int rows = part[0].n + part[1].n, failed = 0;
    int apart = l->dummy || loader_is_int(l, part[0].leaf, ".weight");
    for (int i = 0; i < 2 && apart && !failed; i++) /* dummies' rows are as random in any order */
        failed = loader_matrix(l, l->dummy ? leaf : part[i].leaf, part[i].n, cols, part[i].w);
    if (apart) return failed;
    if (loader_is_packed(l, leaf)) return take_packed(l, leaf, rows, cols, part, 2);
    if (find_matrix(l, leaf, rows, cols, &t, &scale)) return -1;
    if (scale) {
        size_t n = (size_t)weight_blocks(rows) * (size_t)weight_blocks(cols);
        s = mem_alloc(n, sizeof *s);
        read_scales(l, scale, 1, n, s);
    }
    Source from = {t, t->data, s, NULL, cols, new_type(l, leaf, t)};
    for (int i = 0; i < 2 && !failed; i++)
        failed = take_part(l, leaf, &from, &part[i]);
    mem_free(s);
    forget(l, t, from.to != WEIGHT_NONE);
    return failed;
}
