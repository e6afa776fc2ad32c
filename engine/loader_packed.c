/*
 * loader_packed.c: matrices that other tools have quantised, found by their tensors:
 *
 *     compressed-tensors  X.weight_packed    I32 [rows][cols / per]    _scale [rows][groups]
 *                         X.weight           I8 or F8_E4M3 as it is    _scale [rows][groups]
 *                         X.weight_packed    U8 [rows][cols / 2], FP4  _scale [rows][groups],
 *                                            _global_scale, its divisor
 *     ModelOpt            X.weight           U8, the same              _scale_2, its factor
 *     GPTQ                X.qweight          I32 [cols / per][rows]    scales [groups][rows]
 *     AWQ                 X.qweight          I32 [cols][rows / 8]      scales [groups][rows]
 *
 * per: as many as a word has room for. Zero points, where there are any: X.weight_zero_point, I8 as
 * the scales or I32 [rows / per][groups], or X.qzeros, I32 [groups][rows / per]; the groups of
 * columns, where they are not one after the other: X.weight_g_idx or X.g_idx. A scale may be of all
 * rows. What becomes of the matrix is loader_matrix.c's.
 *
 * Sources: compressed-tensors 0.17 (compressors), GPTQModel 7.7 (nn_modules/qlinear, utils/model),
 * AutoAWQ 0.2.9 (modules/linear/gemm, utils/packing_utils), ModelOpt 0.47 (export/quant_utils).
 */
#include "engine/loader_parts.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/unpack.h"

enum { WORD_BITS = 32, AWQ_CODES = 8 };

typedef struct {
    Loader *l;
    const char *leaf;
    Packed *p;
    int by_cols; /* GPTQ, AWQ: scales are [groups][rows] */
} Opening;

static int is_type(const Tensor *t, TensorType type)
{
    return t && t->type == type;
}

/* FP8 with scales for each row: others lie as kernels read them. */
static int is_fp8_by_row(const Tensor *weight, const Tensor *scale)
{
    return is_type(weight, TENSOR_FP8_E4M3) && scale && scale->n_dims > 0 &&
           scale->dim[0] == weight->dim[0];
}

int loader_is_packed(const Loader *l, const char *leaf)
{
    if (loader_find(l, leaf, ".qweight") || loader_find(l, leaf, ".weight_packed")) return 1;
    const Tensor *t = loader_find(l, leaf, ".weight"),
                 *scale = loader_find(l, leaf, ".weight_scale");
    if (!t || !scale) return 0;
    return t->type == TENSOR_I8 || t->type == TENSOR_U8 || is_fp8_by_row(t, scale);
}

static int unfit(const Opening *o, const Tensor *t, const char *what)
{
    return error_set(o->l->err, ERR_FILE, "cannot load '%.60s': tensor '%s' %s", t->file, t->name,
                     what);
}

/* A tensor of the matrix that must be there, of that shape and type. */
static const Tensor *need(const Opening *o, const char *suffix, TensorType type, int64_t rows,
                          int64_t cols)
{
    const Tensor *t = loader_find_shape(o->l, o->leaf, suffix, 2, (int64_t[]){rows, cols});
    if (!t || t->type == type) return t;
    loader_bad_type(o->l, t, tensor_type_name(type));
    return NULL;
}

static int64_t words_for(int64_t n, int per)
{
    return (n + per - 1) / per;
}

/*
 * How many codes are in each of a row's words; 0 where some lie in two words, as compressed-tensors
 * has them from 0.19 on, and GPTQ where they have 3 bits; 8, where no number is right.
 */
static int codes_per(const Packed *p, const Tensor *t)
{
    static const int per[] = {8, 4, 16, 10, 6, 5, 32};
    int64_t n = p->cols, words = (int64_t)(t->bytes / sizeof(uint32_t)) / p->rows;
    for (size_t i = 0; i < sizeof per / sizeof *per; i++)
        if (words_for(n, per[i]) == words) return per[i];
    for (int bits = 3; bits < 8; bits++)
        if (words_for(n * bits, WORD_BITS) == words) return 0;
    return 8;
}

/* Codes of so many columns that lie one after the other in words of a row. */
static PackedCodes codes_in_rows(const Tensor *t, int cols, int word_bytes, int bits, int per)
{
    return (PackedCodes){.data = t->data,
                         .word_bytes = word_bytes,
                         .bits = bits,
                         .rows_per = 1,
                         .cols_per = per,
                         .row_at = (size_t)words_for(cols, per),
                         .col_at = 1,
                         .place = packed_in_order};
}

/* NULL, which is no tensor. */
static const Tensor *in_two_words(const Opening *o, const Tensor *t)
{
    unfit(o, t, "has codes that lie in two words, which is not supported");
    return NULL;
}

/* X.weight_packed of words. */
static const Tensor *open_words(const Opening *o, const Tensor *t)
{
    Packed *p = o->p;
    int per = codes_per(p, t);
    if (!per) return in_two_words(o, t);
    t = need(o, ".weight_packed", TENSOR_I32, p->rows, words_for(p->cols, per));
    if (!t) return NULL;
    p->code = codes_in_rows(t, p->cols, 4, WORD_BITS / per, per);
    p->kind = PACKED_OFFSET;
    return t;
}

static const Tensor *open_fp4(const Opening *o, const char *suffix)
{
    Packed *p = o->p;
    const Tensor *t = need(o, suffix, TENSOR_U8, p->rows, words_for(p->cols, 2));
    if (!t) return NULL;
    p->code = codes_in_rows(t, p->cols, 1, 4, 2);
    p->kind = PACKED_E2M1;
    return t;
}

static const Tensor *open_bytes(const Opening *o, TensorType type)
{
    Packed *p = o->p;
    const Tensor *t = need(o, ".weight", type, p->rows, p->cols);
    if (!t) return NULL;
    p->code = codes_in_rows(t, p->cols, 1, 8, 1);
    p->kind = type == TENSOR_I8 ? PACKED_SIGNED : PACKED_E4M3;
    return t;
}

/* X.qweight: AWQ has words of eight rows, GPTQ of several columns. */
static const Tensor *open_columns(Opening *o, const Tensor *t)
{
    Packed *p = o->p;
    int is_awq = t->dim[0] == p->cols;
    int per = is_awq ? AWQ_CODES : codes_per(p, t);
    if (!per || WORD_BITS % per) return in_two_words(o, t);
    t = is_awq ? need(o, ".qweight", TENSOR_I32, p->cols, words_for(p->rows, per))
               : need(o, ".qweight", TENSOR_I32, words_for(p->cols, per), p->rows);
    if (!t) return NULL;
    p->code = (PackedCodes){.data = t->data,
                            .word_bytes = 4,
                            .bits = WORD_BITS / per,
                            .rows_per = is_awq ? per : 1,
                            .cols_per = is_awq ? 1 : per,
                            .row_at = 1,
                            .col_at = (size_t)(is_awq ? words_for(p->rows, per) : p->rows),
                            .place = is_awq ? packed_awq : packed_in_order};
    p->kind = PACKED_UNSIGNED;
    o->by_cols = 1;
    return t;
}

/* The tensor of codes; NULL and an Error. */
static const Tensor *open_codes(Opening *o)
{
    const Tensor *columns = loader_find(o->l, o->leaf, ".qweight"),
                 *packed = loader_find(o->l, o->leaf, ".weight_packed");
    if (columns) return open_columns(o, columns);
    if (packed)
        return packed->type == TENSOR_U8 ? open_fp4(o, ".weight_packed") : open_words(o, packed);
    const Tensor *t = loader_find(o->l, o->leaf, ".weight");
    return t->type == TENSOR_U8 ? open_fp4(o, ".weight") : open_bytes(o, t->type);
}

/* What scales are multiplied with, and divided by, where there is such a tensor. */
static int global_scale(const Opening *o, float *factor, float *divisor)
{
    static const char *const suffix[] = {".weight_scale_2", ".weight_global_scale"};
    float *out[] = {factor, divisor};
    for (int i = 0; i < 2; i++) {
        const Tensor *t = loader_find(o->l, o->leaf, suffix[i]);
        if (!t) continue;
        if (t->type != TENSOR_F32) return loader_bad_type(o->l, t, "F32");
        if (t->bytes != sizeof(float)) return unfit(o, t, "is not one number");
        unpack_floats(t, out[i]);
    }
    return 0;
}

/* All of a tensor of scales; its U8 are what F8_E8M0 is. */
static int read_scale(const Opening *o, const Tensor *t, float *out)
{
    Tensor as = *t;
    if (as.type == TENSOR_U8) as.type = TENSOR_FP8_E8M0;
    if (!loader_is_float(&as) && as.type != TENSOR_FP8_E8M0 && as.type != TENSOR_FP8_E4M3)
        return loader_bad_type(o->l, t, "F32, BF16, F16, F8_E8M0 or F8_E4M3");
    unpack_floats(&as, out);
    return 0;
}

/* [n][m] as [m][n]; of mem_alloc both. */
static float *transposed(float *from, int n, int m)
{
    float *to = mem_alloc((size_t)n * (size_t)m, sizeof *to);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            to[(size_t)j * (size_t)n + (size_t)i] = from[(size_t)i * (size_t)m + (size_t)j];
    mem_free(from);
    return to;
}

static int open_scales(const Opening *o)
{
    Packed *p = o->p;
    const char *suffix = o->by_cols ? ".scales" : ".weight_scale";
    const Tensor *t = loader_find(o->l, o->leaf, suffix);
    int64_t rows = p->rows, groups = 1;
    if (t && t->n_dims == 2) groups = t->dim[o->by_cols ? 0 : 1];
    if (t && !o->by_cols && t->n_dims < 2 && (t->n_dims == 0 || t->dim[0] == 1)) rows = 1;
    t = loader_find_shape(o->l, o->leaf, suffix, 2,
                          o->by_cols ? (int64_t[]){groups, rows} : (int64_t[]){rows, groups});
    if (!t) return -1;
    if (groups < 1 || p->cols < groups) return unfit(o, t, "has more groups than columns, or none");
    float factor = 1, divisor = 1;
    size_t n = (size_t)(rows * groups);
    p->one_row = rows == 1;
    p->n_groups = (int)groups;
    p->scale = mem_alloc(n, sizeof *p->scale);
    if (read_scale(o, t, p->scale) || global_scale(o, &factor, &divisor)) return -1;
    for (size_t i = 0; i < n; i++)
        p->scale[i] = p->scale[i] * factor / divisor;
    if (o->by_cols) p->scale = transposed(p->scale, p->n_groups, p->rows);
    o->l->own->file_bytes += (int64_t)t->bytes;
    return 0;
}

/* X.qzeros; GPTQ's first format has them less one, and all of a word in one subtraction. */
static const Tensor *open_qzeros(const Opening *o, PackedCodes *zero)
{
    const Packed *p = o->p;
    int per = WORD_BITS / p->code.bits, is_gptq = p->code.rows_per == 1;
    const Tensor *t = need(o, ".qzeros", TENSOR_I32, p->n_groups, words_for(p->rows, per));
    if (!t) return NULL;
    if (is_gptq && o->l->zeros == ZEROS_UNSAID) {
        unfit(o, t, "is GPTQ's, of which format config.json's quantization_config has to say");
        return NULL;
    }
    *zero = (PackedCodes){.data = t->data,
                          .word_bytes = 4,
                          .bits = p->code.bits,
                          .rows_per = per,
                          .cols_per = 1,
                          .row_at = 1,
                          .col_at = (size_t)words_for(p->rows, per),
                          .place = p->code.place};
    if (is_gptq && o->l->zeros == ZEROS_LOWER) zero->plus = UINT32_MAX / ((1u << p->code.bits) - 1);
    return t;
}

/* X.weight_zero_point: bytes, or words of several rows' codes. */
static const Tensor *open_zero_points(const Opening *o, const Tensor *t, PackedCodes *zero)
{
    const Packed *p = o->p;
    int per = WORD_BITS / p->code.bits, is_bytes = t->type == TENSOR_I8;
    int64_t rows = p->one_row ? 1 : p->rows;
    t = need(o, ".weight_zero_point", is_bytes ? TENSOR_I8 : TENSOR_I32,
             is_bytes ? rows : words_for(rows, per), p->n_groups);
    if (!t) return NULL;
    *zero = (PackedCodes){.data = t->data,
                          .word_bytes = is_bytes ? 1 : 4,
                          .bits = is_bytes ? 8 : p->code.bits,
                          .rows_per = is_bytes ? 1 : per,
                          .cols_per = 1,
                          .row_at = (size_t)p->n_groups,
                          .col_at = 1,
                          .place = packed_in_order};
    return t;
}

/* They are coded as the matrix is, or are bytes with a sign. */
static int open_zeros(const Opening *o)
{
    Packed *p = o->p;
    PackedCodes zero;
    const Tensor *t = loader_find(o->l, o->leaf, ".weight_zero_point");
    if (!t && !o->by_cols) return 0;
    t = o->by_cols ? open_qzeros(o, &zero) : open_zero_points(o, t, &zero);
    if (!t) return -1;
    int rows = p->one_row ? 1 : p->rows, n = p->n_groups;
    PackedKind kind = zero.word_bytes == 1 ? PACKED_SIGNED : p->kind;
    p->zero = mem_alloc((size_t)rows * (size_t)n, sizeof *p->zero);
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < n; g++)
            p->zero[(size_t)r * (size_t)n + (size_t)g] =
                packed_value(kind, zero.bits, packed_code(&zero, r, g));
    o->l->own->file_bytes += (int64_t)t->bytes;
    return 0;
}

/* Columns of equal groups, one after the other. */
static int group_evenly(const Opening *o)
{
    Packed *p = o->p;
    if (p->cols % p->n_groups)
        return error_set(o->l->err, ERR_FILE,
                         "cannot load '%.60s': '%s%s' has %d columns in %d groups, which is not "
                         "supported",
                         o->l->dir, o->l->scope, o->leaf, p->cols, p->n_groups);
    for (int c = 0; c < p->cols; c++)
        p->group[c] = c / (p->cols / p->n_groups);
    return 0;
}

static int open_groups(const Opening *o)
{
    Packed *p = o->p;
    const char *suffix = o->by_cols ? ".g_idx" : ".weight_g_idx";
    const Tensor *t = loader_find(o->l, o->leaf, suffix);
    p->group = mem_alloc((size_t)p->cols, sizeof *p->group);
    if (!t) return group_evenly(o);
    t = need(o, suffix, TENSOR_I32, p->cols, 1);
    if (!t) return -1;
    o->l->own->file_bytes += (int64_t)t->bytes;
    memcpy(p->group, t->data, t->bytes);
    if (p->group[0] == -1) return group_evenly(o); /* nobody has set them */
    for (int c = 0; c < p->cols; c++)
        if (p->group[c] < 0 || p->group[c] >= p->n_groups)
            return unfit(o, t, "names a group that is not there");
    return 0;
}

int loader_open_packed(Loader *l, const char *leaf, int rows, int cols, Packed *p, Tensor *as)
{
    *p = (Packed){.rows = rows, .cols = cols};
    Opening o = {l, leaf, p, 0};
    const Tensor *before = loader_find(l, leaf, ".pre_quant_scale");
    if (before) return unfit(&o, before, "is a factor of activations, which is not supported");
    const Tensor *code = open_codes(&o);
    if (!code || open_scales(&o) || open_zeros(&o) || open_groups(&o)) return -1;
    loader_fetch(l, code);
    l->n_few_bits += packed_has_few_bits(p);
    l->own->n_params += (int64_t)rows * cols;
    l->own->file_bytes += (int64_t)code->bytes;
    *as = *code;
    as->type = TENSOR_BF16;
    return 0;
}

int loader_has_few_bits(Loader *l, const char *leaf, int rows, int cols)
{
    Packed p = {.rows = rows, .cols = cols};
    Opening o = {l, leaf, &p, 0};
    return loader_is_packed(l, leaf) && open_codes(&o) && packed_has_few_bits(&p);
}

int loader_save_unpacked(Loader *l, const char *leaf, const Packed *p)
{
    SavedTensor t = {
        .dtype = tensor_type_name(TENSOR_BF16), .n_dims = 2, .dim = {p->rows, p->cols}};
    size_t n = (size_t)p->rows * (size_t)p->cols;
    uint16_t *rows = mem_alloc(n, sizeof *rows);
    snprintf(t.name, sizeof t.name, "%s%s.weight", l->scope, leaf);
    packed_rows(p, NULL, p->rows, rows);
    int failed = saver_add(l->saver, &t, (const void *[]){rows}, 1, n * sizeof *rows, l->err);
    mem_free(rows);
    return failed;
}
