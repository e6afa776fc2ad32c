/*
 * loader.c: see loader.h.
 *
 * Matrices stay in the mapping, or go to the memory of a backend that has its own: loader_place and
 * place_copy decide; dummies are made where they will be read. Vectors and scales are f32; F16
 * matrices become f32, too, for no kernel reads them.
 */
#include "engine/loader.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/available.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "engine/quantise.h"
#include "engine/unpack.h"

enum {
    MAX_NAME = 192,
    FLOAT_ALIGN = 16, /* floats: 64 bytes */
    FLOAT_CHUNK = 1 << 16,
    PLACE_ALIGN = 256,
    PLACE_CHUNK = 32 << 20,
    INT8_ALIGN = 64, /* of codes and scales: vectors of them cross no line of the cache */
};

void *loader_block(Loader *l, size_t count, size_t size)
{
    Owned *own = l->own;
    if (own->n_blocks == own->cap_blocks) {
        own->cap_blocks = own->cap_blocks ? 2 * own->cap_blocks : 16;
        own->block = mem_realloc(own->block, (size_t)own->cap_blocks, sizeof *own->block);
    }
    return own->block[own->n_blocks++] = mem_alloc(count, size);
}

/* A block of backend memory that lives as long as the model. */
static void *new_placed(Loader *l, size_t bytes)
{
    Owned *own = l->own;
    void *mem = own->backend->alloc(own->backend, bytes, l->err);
    if (!mem) return NULL;
    if (own->n_placed == own->cap_placed) {
        own->cap_placed = own->cap_placed ? 2 * own->cap_placed : 16;
        own->placed = mem_realloc(own->placed, (size_t)own->cap_placed, sizeof *own->placed);
    }
    return own->placed[own->n_placed++] = mem;
}

/* Room in backend memory, aligned to PLACE_ALIGN. */
static void *room_for(Loader *l, size_t bytes)
{
    PlaceChunk *c = &l->own->chunk;
    size_t rounded = (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
    if (rounded > PLACE_CHUNK / 4) return new_placed(l, rounded);
    if (rounded > c->left) {
        unsigned char *mem = new_placed(l, PLACE_CHUNK);
        if (!mem) return NULL;
        *c = (PlaceChunk){mem, PLACE_CHUNK};
    }
    void *at = c->at;
    c->at += rounded;
    c->left -= rounded;
    return at;
}

/* A copy in backend memory, wherever that is. */
static const void *place_copy(Loader *l, const void *host, size_t bytes)
{
    Backend *be = l->own->backend;
    void *at = room_for(l, bytes);
    if (at) be->upload(be, at, host, bytes);
    return at;
}

const void *loader_place(Loader *l, const void *host, size_t bytes)
{
    return l->own->backend->is_host ? host : place_copy(l, host, bytes);
}

const float *loader_place_floats(Loader *l, const float *host, size_t n)
{
    return loader_place(l, host, n * sizeof *host);
}

float *loader_floats(Loader *l, size_t n)
{
    FloatChunk *c = &l->own->floats;
    size_t rounded = (n + FLOAT_ALIGN - 1) / FLOAT_ALIGN * FLOAT_ALIGN;
    if (rounded > FLOAT_CHUNK / 4) return loader_block(l, rounded, sizeof(float));
    if (rounded > c->left)
        *c = (FloatChunk){loader_block(l, FLOAT_CHUNK, sizeof(float)), FLOAT_CHUNK};
    float *at = c->at;
    c->at += rounded;
    c->left -= rounded;
    return at;
}

/*
 * Whether the tensors are all read now, and not page by page by the first passes, which takes twice
 * as long and comes when somebody waits for an answer. A device's are read by transfers. Where
 * there are several NUMA nodes, each page is to lie near the thread that multiplies by it.
 */
static int may_fetch(const Owned *own)
{
    size_t bytes = 0;
    for (int i = 0; i < safetensors_count(own->st); i++)
        bytes += safetensors_at(own->st, i)->bytes;
    return own->backend->is_host && memory_is_one_node() &&
           bytes < own->backend->free_bytes(own->backend);
}

int loader_open(Loader *l)
{
    if (l->dummy) return 0;
    l->own->st = safetensors_open(l->dir, l->err);
    if (!l->own->st) return -1;
    l->fetches = may_fetch(l->own);
    return 0;
}

static void fetch(const Loader *l, const Tensor *t)
{
    if (l->fetches) mapped_file_fetch(t->data, t->bytes);
}

int loader_finish(Loader *l)
{
    Backend *be = l->own->backend;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double begun = clock_ms(), gib = (double)l->transfers.bytes / (1 << 30);
    int failed = transfers_run(&l->transfers, l->own->st, be, cores > 1 ? (int)cores : 1, l->err) ||
                 be->sync(be, l->err);
    double s = (clock_ms() - begun) / 1e3;
    if (!failed && l->transfers.bytes)
        log_info("weights_uploaded gib=%.2f seconds=%.2f gib_per_second=%.2f", gib, s,
                 s > 0 ? gib / s : 0);
    if (!failed && l->widened)
        log_warn("f16_widened gib=%.2f these matrices are F16 in the file and F32 here",
                 (double)l->widened / (1 << 30));
    return failed ? -1 : 0;
}

void owned_close(Owned *own)
{
    for (int i = 0; i < own->n_blocks; i++)
        mem_free(own->block[i]);
    mem_free(own->block);
    for (int i = 0; i < own->n_placed; i++)
        own->backend->free(own->backend, own->placed[i]);
    mem_free(own->placed);
    safetensors_close(own->st);
}

void loader_scope(Loader *l, const char *prefix, int layer)
{
    if (layer < 0)
        snprintf(l->scope, sizeof l->scope, "%s", prefix);
    else
        snprintf(l->scope, sizeof l->scope, "%slayers.%d.", prefix, layer);
}

/* The same for a matrix, whose elements may be misaligned where they are. */
static const void *place_matrix(Loader *l, const unsigned char *data, size_t bytes, size_t align)
{
    l->bytes += bytes;
    int fits = (uintptr_t)data % align == 0;
    return fits ? loader_place(l, data, bytes) : place_copy(l, data, bytes);
}

/* A matrix of the file as it is. */
static const void *place_tensor(Loader *l, const Tensor *t, size_t align)
{
    if (l->own->backend->is_host) return place_matrix(l, t->data, t->bytes, align);
    void *at = room_for(l, t->bytes);
    l->bytes += t->bytes;
    if (at) transfers_add(&l->transfers, l->own->st, t, at);
    return at;
}

const Tensor *loader_find(const Loader *l, const char *leaf, const char *suffix)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s%s%s", l->scope, leaf, suffix);
    return l->own->st ? safetensors_find(l->own->st, name) : NULL;
}

/* "4096 x 8192" */
static void shape_text(char *out, size_t size, int n_dims, const int64_t *dim)
{
    size_t at = 0;
    snprintf(out, size, "a scalar");
    for (int i = 0; i < n_dims && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", i ? " x " : "", (long long)dim[i]);
}

/* Dimensions of 1 do not count: [c][1][w] is [c][w], [1][d] is [d], the bytes are the same. */
static int same_shape(const Tensor *t, int n_dims, const int64_t *dim)
{
    int i = 0, j = 0;
    for (;;) {
        while (i < t->n_dims && t->dim[i] == 1)
            i++;
        while (j < n_dims && dim[j] == 1)
            j++;
        if (i == t->n_dims || j == n_dims) return i == t->n_dims && j == n_dims;
        if (t->dim[i++] != dim[j++]) return 0;
    }
}

/* FP8's scales are bytes, but no parameters. */
static void count_tensor(Owned *own, const Tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dim[i];
    if (!text_ends_with(t->name, ".weight_scale_inv")) own->n_params += n;
    own->file_bytes += (int64_t)t->bytes;
}

/* The tensor scope + leaf + suffix in this shape, or NULL and an Error that names it. */
static const Tensor *find_shape(const Loader *l, const char *leaf, const char *suffix, int n_dims,
                                const int64_t *dim)
{
    char want[96], have[96];
    const Tensor *t = l->dummy ? dummy_tensor(l->dummy, l->scope, leaf, suffix, n_dims, dim)
                               : loader_find(l, leaf, suffix);
    shape_text(want, sizeof want, n_dims, dim);
    if (!t) {
        error_set(l->err, ERR_FILE, "cannot load '%.60s': tensor '%s%s%s' is missing, expected %s",
                  l->dir, l->scope, leaf, suffix, want);
        return NULL;
    }
    if (same_shape(t, n_dims, dim)) return t;
    shape_text(have, sizeof have, t->n_dims, t->dim);
    error_set(l->err, ERR_FILE, "cannot load '%.60s': tensor '%s' is %.60s, expected %s", t->file,
              t->name, have, want);
    return NULL;
}

/* The same, and the model consists of it. */
static const Tensor *need(const Loader *l, const char *leaf, const char *suffix, int n_dims,
                          const int64_t *dim)
{
    const Tensor *t = find_shape(l, leaf, suffix, n_dims, dim);
    if (!t) return NULL;
    count_tensor(l->own, t);
    if (l->saver) saver_keep(l->saver, t);
    fetch(l, t);
    return t;
}

int loader_bad_type(const Loader *l, const Tensor *t, const char *want)
{
    return error_set(l->err, ERR_FILE,
                     "cannot load '%.60s': tensor '%s' is of type %s, expected %s", t->file,
                     t->name, tensor_type_name(t->type), want);
}

static int is_float(const Tensor *t)
{
    return t->type == TENSOR_F32 || t->type == TENSOR_BF16 || t->type == TENSOR_F16;
}

static void read_floats(Loader *l, const Tensor *t, float *out)
{
    if (l->dummy)
        dummy_floats(l->dummy, t, out);
    else
        unpack_floats(t, out);
}

int loader_vector(Loader *l, const char *leaf, const char *suffix, int rows, int cols, float plus,
                  float **out)
{
    const Tensor *t = need(l, leaf, suffix, cols > 1 ? 2 : 1, (int64_t[]){rows, cols});
    if (!t) return -1;
    if (!is_float(t)) return loader_bad_type(l, t, "F32, BF16 or F16");
    size_t n = (size_t)rows * (size_t)cols;
    float *v = loader_floats(l, n);
    read_floats(l, t, v);
    for (size_t i = 0; i < n; i++)
        v[i] += plus;
    *out = v;
    return 0;
}

int loader_norm(Loader *l, const char *leaf, int n, const float **out)
{
    float *v = NULL;
    if (loader_vector(l, leaf, ".weight", n, 1, 1, &v)) return -1;
    *out = loader_place_floats(l, v, (size_t)n);
    return *out ? 0 : -1;
}

/* X.weight and, if that is FP8, X.weight_scale_inv. */
static int find_matrix(const Loader *l, const char *leaf, int rows, int cols, const Tensor **weight,
                       const Tensor **scale)
{
    const Tensor *t = need(l, leaf, ".weight", 2, (int64_t[]){rows, cols});
    *weight = t;
    *scale = NULL;
    if (!t) return -1;
    if (is_float(t)) return 0;
    if (t->type != TENSOR_FP8_E4M3) return loader_bad_type(l, t, "BF16, F16, F32 or F8_E4M3");
    *scale = need(l, leaf, ".weight_scale_inv", 2,
                  (int64_t[]){weight_blocks(rows), weight_blocks(cols)});
    if (!*scale) return -1;
    if (is_float(*scale) || (*scale)->type == TENSOR_FP8_E8M0) return 0;
    return loader_bad_type(l, *scale, "F32, BF16, F16 or F8_E8M0");
}

static WeightType weight_type(const Tensor *t)
{
    return t->type == TENSOR_BF16 ? WEIGHT_BF16 : is_float(t) ? WEIGHT_F32 : WEIGHT_FP8;
}

/* Random elements, made where they will be read. */
static const void *place_dummy(Loader *l, const Tensor *t)
{
    void *at = room_for(l, t->bytes);
    l->bytes += t->bytes;
    return at && !dummy_matrix(l->dummy, t, at, l->err) ? at : NULL;
}

static int is_quantised(const Loader *l, const char *leaf, const Tensor *t)
{
    return l->quantise_to != WEIGHT_NONE && t->type != TENSOR_FP8_E4M3 &&
           !quantise_keeps_wide(l->quantise_to, leaf);
}

/* A matrix that has been taken as it is: what it is multiplied with. */
static void choose_x(const Loader *l, const char *leaf, Weight *w)
{
    if (l->rounds_x && w->type == WEIGHT_BF16 && !quantise_keeps_wide(WEIGHT_INT8, leaf))
        w->type = WEIGHT_BF16_BOTH;
}

static int not_finite(const Loader *l, const Tensor *t, const char *lacks)
{
    return error_set(l->err, ERR_FILE,
                     "cannot load '%.60s': tensor '%s' holds a NaN or an infinity, which %s lacks",
                     t->file, t->name, lacks);
}

/* INT8, made where it is read, or in two blocks until it is saved. */
static int place_int8(Loader *l, const Tensor *t, const unsigned char *data, Weight *w)
{
    Backend *be = l->own->backend;
    size_t n = (size_t)weight_data_bytes(w), n_scales = (size_t)weight_n_scales(w);
    int8_t *code = l->saver ? loader_block(l, n, 1) : room_for(l, n);
    float *scale = l->saver ? loader_block(l, n_scales, sizeof *scale) : loader_floats(l, n_scales);
    if (!code) return -1;
    if (be->quantise_int8(be, &(QuantiseInt8){data, weight_type(t), w->rows, w->cols, code, scale}))
        return not_finite(l, t, "q8");
    w->data = code;
    w->scale = scale;
    l->bytes += n + n_scales * sizeof *scale;
    return 0;
}

/* How n INT8 matrices like w lie in a checkpoint: codes and scales. */
typedef struct {
    int64_t code[5], scale[4];
} Int8Dims;

static Int8Dims int8_dims(const Weight *w, int n)
{
    int64_t panels = weight_stored_rows(w) / INT8_ROWS;
    return (Int8Dims){{n, panels, weight_row_bytes(w) / 4, INT8_ROWS, 4},
                      {n, panels, int8_blocks(w->cols), INT8_ROWS}};
}

static SavedTensor saved_tensor(const Loader *l, const char *leaf, const char *suffix,
                                const char *end, const char *dtype, int n_dims, const int64_t *dim)
{
    SavedTensor t = {.dtype = dtype, .n_dims = n_dims};
    snprintf(t.name, sizeof t.name, "%s%s%s%s", l->scope, leaf, suffix, end);
    memcpy(t.dim, dim, (size_t)n_dims * sizeof *dim);
    return t;
}

/* The n matrices w, which came last, go to the saver and leave memory. */
static int save_int8(Loader *l, const char *leaf, const char *suffix, Weight *w, int n)
{
    int one = n == 1; /* has no dimension for it */
    Int8Dims dims = int8_dims(w, n);
    SavedTensor code = saved_tensor(l, leaf, suffix, "", "I8", 5 - one, dims.code + one),
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

static int is_int8(const Loader *l, const char *leaf, const char *suffix)
{
    const Tensor *t = loader_find(l, leaf, suffix);
    return t && t->type == TENSOR_I8;
}

/* n matrices as save_int8 left them, where they lie. */
static int take_int8(Loader *l, const char *leaf, const char *suffix, int n, int rows, int cols,
                     Weight *out)
{
    Owned *own = l->own;
    Weight w = {.type = WEIGHT_INT8, .rows = rows, .cols = cols};
    Int8Dims dims = int8_dims(&w, n);
    int one = n == 1;
    char end[32];
    snprintf(end, sizeof end, "%s_scale", suffix);
    const Tensor *code = find_shape(l, leaf, suffix, 5 - one, dims.code + one),
                 *scale = code ? find_shape(l, leaf, end, 4 - one, dims.scale + one) : NULL;
    if (!scale) return -1;
    fetch(l, code), fetch(l, scale);
    if (scale->type != TENSOR_F32) return loader_bad_type(l, scale, "F32");
    if (l->saver) return error_set(l->err, ERR_INPUT, "'%.160s' is q8 already", l->dir);
    if (!own->backend->quantise_int8)
        return error_set(l->err, ERR_INPUT,
                         "the weights are q8, which is for the CPU: take "
                         "--device cpu, or what they were made of");
    const int8_t *codes = place_matrix(l, code->data, code->bytes, INT8_ALIGN);
    const float *scales = place_matrix(l, scale->data, scale->bytes, INT8_ALIGN);
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

/* A matrix quantised from data, which are some or all elements of t. */
static int place_quantised(Loader *l, const Tensor *t, const unsigned char *data, int rows,
                           int cols, Weight *w)
{
    *w = (Weight){.type = l->quantise_to, .rows = rows, .cols = cols};
    if (w->type == WEIGHT_INT8) return place_int8(l, t, data, w);
    size_t n = (size_t)rows * (size_t)cols, n_scales = (size_t)weight_n_scales(w);
    int stays = l->own->backend->is_host;
    uint8_t *code = stays ? loader_block(l, n, 1) : mem_alloc(n, 1);
    float *scale = loader_floats(l, n_scales);
    if (quantise_fp8(data, weight_type(t), rows, cols, code, scale)) {
        not_finite(l, t, "FP8");
    } else {
        w->data = place_matrix(l, code, n, 1);
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
    const float *scale; /* of FP8, in host memory */
    int cols, is_quantised;
} Source;

/*
 * Rows map[0..n) of s as a matrix of their own; map NULL: the first n. F16 is widened. FP8 scales
 * belong to blocks of 128 rows: if the map tears blocks apart (in no published size), the rows are
 * dequantised.
 */
static int take_rows(Loader *l, const Source *s, const int *map, int n, Weight *w)
{
    int is_half = s->t->type == TENSOR_F16, cols = s->cols;
    int torn = s->scale && !unpack_keeps_blocks(map, n);
    *w = (Weight){.type = torn ? WEIGHT_F32 : weight_type(s->t), .rows = n, .cols = cols};
    size_t row_bytes = (size_t)weight_row_bytes(w);
    int stays = l->own->backend->is_host && !s->is_quantised, failed = 0;
    void *rows = stays ? loader_block(l, (size_t)n, row_bytes) : mem_alloc((size_t)n, row_bytes);
    if (torn)
        unpack_fp8_rows(s->data, s->scale, cols, map, n, rows);
    else if (is_half)
        unpack_half_rows(s->data, cols, map, n, rows);
    else
        unpack_rows(s->data, row_bytes, map, n, rows);
    if (is_half && !s->is_quantised) l->widened += (size_t)n * row_bytes;
    if (s->is_quantised)
        failed = place_quantised(l, s->t, rows, n, cols, w);
    else
        w->data =
            place_matrix(l, rows, (size_t)n * row_bytes, (size_t)weight_element_bytes(w->type));
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

int loader_matrix(Loader *l, const char *leaf, int rows, int cols, Weight *w)
{
    const Tensor *t, *scale;
    if (is_int8(l, leaf, ".weight")) return take_int8(l, leaf, ".weight", 1, rows, cols, w);
    if (find_matrix(l, leaf, rows, cols, &t, &scale)) return -1;
    int quantised = is_quantised(l, leaf, t), failed;
    if (quantised || t->type == TENSOR_F16) {
        unsigned char *random = l->dummy ? random_elements(l, t) : NULL;
        if (l->dummy && !random) return -1;
        if (t->type == TENSOR_F16)
            failed = take_rows(l, &(Source){t, t->data, NULL, cols, quantised}, NULL, rows, w);
        else
            failed = place_quantised(l, t, random ? random : t->data, rows, cols, w);
        mem_free(random);
        forget(l, t, quantised);
        if (l->saver && quantised && !failed) failed = save_int8(l, leaf, ".weight", w, 1);
        return failed;
    }
    *w = (Weight){.type = weight_type(t), .rows = rows, .cols = cols};
    w->data =
        l->dummy ? place_dummy(l, t) : place_tensor(l, t, (size_t)weight_element_bytes(w->type));
    if (scale) {
        size_t n = (size_t)weight_blocks(rows) * (size_t)weight_blocks(cols);
        float *s = loader_floats(l, n);
        read_floats(l, scale, s);
        w->scale = loader_place_floats(l, s, n);
        l->bytes += n * sizeof *s;
    }
    choose_x(l, leaf, w);
    return w->data && (!scale || w->scale) ? 0 : -1;
}

int loader_stack(Loader *l, const char *leaf, int n, int parts, int rows, int cols, Weight *out)
{
    if (is_int8(l, leaf, "")) return take_int8(l, leaf, "", n * parts, rows, cols, out);
    const Tensor *t = need(l, leaf, "", 3, (int64_t[]){n, parts * rows, cols});
    if (!t) return -1;
    if (!is_float(t)) return loader_bad_type(l, t, "BF16, F16 or F32");
    int quantised = is_quantised(l, leaf, t), halves = t->type == TENSOR_F16;
    size_t element = t->bytes / ((size_t)n * (size_t)(parts * rows) * (size_t)cols),
           bytes = (size_t)rows * (size_t)cols * element;
    const unsigned char *data = quantised || halves ? t->data : place_tensor(l, t, element);
    if (!data) return -1;
    for (int i = 0; i < n; i++)
        for (int p = 0; p < parts; p++, data += bytes) {
            Weight *w = &out[p * n + i];
            *w = (Weight){.type = weight_type(t), .rows = rows, .cols = cols, .data = data};
            if (halves ? take_rows(l, &(Source){t, data, NULL, cols, quantised}, NULL, rows, w)
                       : quantised && place_quantised(l, t, data, rows, cols, w))
                return -1;
            choose_x(l, leaf, w);
        }
    if (quantised || halves) forget(l, t, quantised);
    return l->saver && quantised ? save_int8(l, leaf, "", out, n * parts) : 0;
}

int loader_split(Loader *l, const char *leaf, int cols, const SplitPart part[2])
{
    const Tensor *t, *scale;
    float *s = NULL;
    int rows = part[0].n + part[1].n, failed = 0;
    int apart = l->dummy || is_int8(l, part[0].leaf, ".weight");
    for (int i = 0; i < 2 && apart && !failed; i++) /* dummies' rows are as random in any order */
        failed = loader_matrix(l, l->dummy ? leaf : part[i].leaf, part[i].n, cols, part[i].w);
    if (apart) return failed;
    if (find_matrix(l, leaf, rows, cols, &t, &scale)) return -1;
    if (scale) {
        s = mem_alloc((size_t)weight_blocks(rows) * (size_t)weight_blocks(cols), sizeof *s);
        unpack_floats(scale, s);
    }
    Source from = {t, t->data, s, cols, is_quantised(l, leaf, t)};
    for (int i = 0; i < 2 && !failed; i++) {
        failed = take_rows(l, &from, part[i].map, part[i].n, part[i].w);
        if (l->saver && from.is_quantised && !failed)
            failed = save_int8(l, part[i].leaf, ".weight", part[i].w, 1);
        choose_x(l, leaf, part[i].w);
    }
    mem_free(s);
    forget(l, t, from.is_quantised);
    return failed;
}
