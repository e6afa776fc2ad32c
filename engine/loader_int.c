/* loader_int.c: INT8 and INT4 matrices, made while loading, saved, or taken as they were saved. */
#include "engine/loader_parts.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { ALIGN = 64 /* of codes and scales: vectors of them cross no line of the cache */ };

/* Room for the codes of w, which it will have, and for its scales; NULL where there is none. */
static void *room_for_int(Loader *l, Weight *w, float **scale)
{
    size_t n = (size_t)weight_data_bytes(w), n_scales = (size_t)weight_n_scales(w);
    void *code = l->saver ? loader_block(l, n, 1) : loader_room(l, n);
    *scale = l->saver ? loader_block(l, n_scales, sizeof **scale) : loader_floats(l, n_scales);
    w->data = code;
    w->scale = *scale;
    l->bytes += n + n_scales * sizeof **scale;
    return code;
}

int loader_make_int(Loader *l, const Tensor *t, const unsigned char *data, Weight *w)
{
    Backend *be = l->own->backend;
    float *scale;
    void *code = room_for_int(l, w, &scale);
    if (!code) return -1;
    QuantiseInt made = {data, loader_weight_type(t), w->type, w->rows, w->cols, code, scale};
    return be->quantise_int(be, &made) ? loader_not_finite(l, t, quant_name(l->quant)) : 0;
}

int loader_keep_int4(Loader *l, const Packed *p, const int *map, Weight *w)
{
    float *scale;
    void *code = room_for_int(l, w, &scale);
    if (!code) return -1;
    packed_int4(p, map, w, code, scale);
    return 0;
}

/* How n matrices like w lie in a checkpoint: codes and scales. */
typedef struct {
    int64_t code[5], scale[4];
} IntDims;

static IntDims int_dims(const Weight *w, int n)
{
    int64_t panels = weight_stored_rows(w) / INT8_ROWS;
    IntDims d = {{n, panels, weight_row_bytes(w) / 4, INT8_ROWS, 4},
                 {n, panels, int8_blocks(w->cols), INT8_ROWS}};
    if (w->type == WEIGHT_INT4) {
        d.code[2] = weight_row_bytes(w) * INT8_ROWS / INT4_STEP_BYTES;
        d.code[3] = INT4_LINES;
        d.code[4] = INT8_LINE;
    }
    return d;
}

static SavedTensor saved_tensor(const Loader *l, const char *leaf, const char *suffix,
                                const char *end, const char *dtype, int n_dims, const int64_t *dim)
{
    SavedTensor t = {.dtype = dtype, .n_dims = n_dims};
    snprintf(t.name, sizeof t.name, "%s%s%s%s", l->scope, leaf, suffix, end);
    memcpy(t.dim, dim, (size_t)n_dims * sizeof *dim);
    return t;
}

int loader_save_int(Loader *l, const char *leaf, const char *suffix, Weight *w, int n)
{
    int one = n == 1; /* has no dimension for it */
    IntDims dims = int_dims(w, n);
    const char *dtype = tensor_type_name(w->type == WEIGHT_INT4 ? TENSOR_U8 : TENSOR_I8);
    SavedTensor code = saved_tensor(l, leaf, suffix, "", dtype, 5 - one, dims.code + one),
                scale = saved_tensor(l, leaf, suffix, "_scale", "F32", 4 - one, dims.scale + one);
    const void **codes = mem_alloc((size_t)n, sizeof *codes),
               **scales = mem_alloc((size_t)n, sizeof *scales);
    for (int i = 0; i < n; i++)
        codes[i] = w[i].data, scales[i] = w[i].scale;
    int failed =
        saver_add(l->saver, &code, codes, n, (size_t)weight_data_bytes(w), l->err) ||
        saver_add(l->saver, &scale, scales, n, (size_t)weight_n_scales(w) * sizeof(float), l->err);
    for (int i = 0; i < n; i++) {
        w[i].data = w[i].scale = NULL;
        mem_free(l->own->block[--l->own->n_blocks]);
        mem_free(l->own->block[--l->own->n_blocks]);
    }
    mem_free((void *)codes);
    mem_free((void *)scales);
    return failed ? -1 : 0;
}

int loader_is_int(const Loader *l, const char *leaf, const char *suffix)
{
    const Tensor *t = l->takes_int ? loader_find(l, leaf, suffix) : NULL;
    return t && (t->type == TENSOR_I8 || t->type == TENSOR_U8);
}

int loader_take_int(Loader *l, const char *leaf, const char *suffix, int n, int rows, int cols,
                    Weight *out)
{
    Owned *own = l->own;
    int is_int4 = loader_find(l, leaf, suffix)->type == TENSOR_U8;
    Weight w = {.type = is_int4 ? WEIGHT_INT4 : WEIGHT_INT8, .rows = rows, .cols = cols};
    IntDims dims = int_dims(&w, n);
    int one = n == 1;
    char end[32];
    snprintf(end, sizeof end, "%s_scale", suffix);
    const Tensor *code = loader_find_shape(l, leaf, suffix, 5 - one, dims.code + one),
                 *scale = code ? loader_find_shape(l, leaf, end, 4 - one, dims.scale + one) : NULL;
    if (!scale) return -1;
    loader_fetch(l, code), loader_fetch(l, scale);
    if (scale->type != TENSOR_F32) return loader_bad_type(l, scale, "F32");
    if (l->saver) return error_set(l->err, ERR_INPUT, "'%.160s' is q8 or q4 already", l->dir);
    if (!own->backend->quantise_int)
        return error_set(l->err, ERR_INPUT,
                         "the weights are q8 or q4, which is for the CPU: take "
                         "--device cpu, or what they were made of");
    const unsigned char *codes = loader_place_matrix(l, code->data, code->bytes, ALIGN);
    const float *scales = loader_place_matrix(l, scale->data, scale->bytes, ALIGN);
    if (!codes || !scales) return -1;
    own->n_params += (int64_t)n * rows * cols;
    own->file_bytes += (int64_t)(code->bytes + scale->bytes);
    for (int i = 0; i < n; i++) {
        out[i] = w;
        out[i].data = codes + i * weight_data_bytes(&w);
        out[i].scale = scales + i * weight_n_scales(&w);
    }
    return 0;
}
