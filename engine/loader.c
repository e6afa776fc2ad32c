/* loader.c: tensors by name, and vectors of them: see loader.h. */
#include "engine/loader_parts.h"

#include <stdio.h>

#include "base/available.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "engine/unpack.h"

enum { MAX_NAME = 192 };

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

void loader_fetch(const Loader *l, const Tensor *t)
{
    if (l->fetches) mapped_file_fetch(t->data, t->bytes);
}

int loader_finish(Loader *l)
{
    Backend *be = l->own->backend;
    double begun = clock_ms(), gib = (double)l->transfers.bytes / (1 << 30);
    int failed = transfers_run(&l->transfers, l->own->st, be, cpus_available(), l->err) ||
                 be->sync(be, l->err);
    double s = (clock_ms() - begun) / 1e3;
    if (!failed && l->transfers.bytes)
        log_info("weights_uploaded gib=%.2f seconds=%.2f gib_per_second=%.2f", gib, s,
                 s > 0 ? gib / s : 0);
    if (!failed && l->widened)
        log_warn("f16_widened gib=%.2f these matrices are F16 in the file and F32 here",
                 (double)l->widened / (1 << 30));
    if (!failed && l->unpacked)
        log_info("weights_unpacked gib=%.2f these matrices are packed in the file and BF16 here",
                 (double)l->unpacked / (1 << 30));
    return failed ? -1 : 0;
}

void loader_scope(Loader *l, const char *prefix, int layer)
{
    if (layer < 0)
        snprintf(l->scope, sizeof l->scope, "%s", prefix);
    else
        snprintf(l->scope, sizeof l->scope, "%slayers.%d.", prefix, layer);
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

int64_t loader_n_elements(const Tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dim[i];
    return n;
}

/* FP8's scales are bytes, but no parameters. */
static void count_tensor(Owned *own, const Tensor *t)
{
    if (!text_ends_with(t->name, "_scale_inv") && !text_ends_with(t->name, "_scale"))
        own->n_params += loader_n_elements(t);
    own->file_bytes += (int64_t)t->bytes;
}

const Tensor *loader_find_shape(const Loader *l, const char *leaf, const char *suffix, int n_dims,
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

const Tensor *loader_need(const Loader *l, const char *leaf, const char *suffix, int n_dims,
                          const int64_t *dim)
{
    const Tensor *t = loader_find_shape(l, leaf, suffix, n_dims, dim);
    if (!t) return NULL;
    count_tensor(l->own, t);
    if (l->saver) saver_keep(l->saver, t);
    loader_fetch(l, t);
    return t;
}

int loader_bad_type(const Loader *l, const Tensor *t, const char *want)
{
    return error_set(l->err, ERR_FILE,
                     "cannot load '%.60s': tensor '%s' is of type %s, expected %s", t->file,
                     t->name, tensor_type_name(t->type), want);
}

int loader_not_finite(const Loader *l, const Tensor *t, const char *lacks)
{
    return error_set(l->err, ERR_FILE,
                     "cannot load '%.60s': tensor '%s' holds a NaN or an infinity, which %s lacks",
                     t->file, t->name, lacks);
}

int loader_is_float(const Tensor *t)
{
    return t->type == TENSOR_F32 || t->type == TENSOR_BF16 || t->type == TENSOR_F16;
}

WeightType loader_weight_type(const Tensor *t)
{
    return t->type == TENSOR_BF16 ? WEIGHT_BF16 : loader_is_float(t) ? WEIGHT_F32 : WEIGHT_FP8;
}

void loader_read_floats(Loader *l, const Tensor *t, float *out)
{
    if (l->dummy)
        dummy_floats(l->dummy, t, out);
    else
        unpack_floats(t, out);
}

int loader_vector(Loader *l, const char *leaf, const char *suffix, int rows, int cols, float plus,
                  float **out)
{
    const Tensor *t = loader_need(l, leaf, suffix, cols > 1 ? 2 : 1, (int64_t[]){rows, cols});
    if (!t) return -1;
    if (!loader_is_float(t)) return loader_bad_type(l, t, "F32, BF16 or F16");
    size_t n = (size_t)rows * (size_t)cols;
    float *v = loader_floats(l, n);
    loader_read_floats(l, t, v);
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
