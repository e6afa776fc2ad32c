/*
 * dummy.c: see dummy.h.
 *
 * The length of a pool is a prime number of 16 byte blocks: wherever a matrix begins and however
 * long its rows are, no two of its first million rows are equal, so no two tokens' logits are.
 */
#include "engine/dummy.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/splitmix.h"
#include "base/strbuf.h"
#include "engine/quantise.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"

enum {
    BLOCK = 16,
    POOL_BLOCKS = 1048573, /* the largest prime below 2^20 */
    MAX_POOLS = 8,         /* a model has six or seven different widths */
    MAX_NAME = 192,
};
static const size_t POOL_BYTES = (size_t)POOL_BLOCKS * BLOCK;

typedef struct {
    TensorType type;
    int64_t cols; /* 0 for FP8, whose scales say how large the values are */
    unsigned char *data;
} Pool;

struct Dummy {
    DummyType type;
    Backend *backend;
    uint64_t random;
    Pool pool[MAX_POOLS];
    int n_pools;
    Tensor tensor[2]; /* a matrix and its scales are looked at together */
    char name[2][MAX_NAME];
    int n_tensors;
    int64_t cols; /* of the last matrix */
};

Dummy *dummy_open(DummyType type, Backend *backend)
{
    Dummy *d = mem_alloc(1, sizeof *d);
    d->type = type;
    d->backend = backend;
    return d;
}

void dummy_close(Dummy *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_pools; i++)
        d->backend->free(d->backend, d->pool[i].data);
    mem_free(d);
}

/* Uniform in [-limit, limit). */
static float uniform(uint64_t *state, float limit)
{
    return (float)(int32_t)(splitmix_next(state) >> 32) * 0x1p-31f * limit;
}

/* Uniform up to this has a standard deviation of 1 / sqrt(cols). */
static float limit_of(int64_t cols)
{
    return sqrtf(3.0f / (float)cols);
}

static TensorType type_of(const Dummy *d, const char *leaf, const char *suffix, int n_dims)
{
    if (!strcmp(suffix, ".weight_scale_inv")) return TENSOR_F32;
    int fp8 = d->type == DUMMY_FP8 && n_dims == 2 && quantise_to(QUANT_FP8, leaf) != WEIGHT_NONE;
    return fp8 ? TENSOR_FP8_E4M3 : TENSOR_BF16;
}

const Tensor *dummy_tensor(Dummy *d, const char *scope, const char *leaf, const char *suffix,
                           int n_dims, const int64_t *dim)
{
    int i = d->n_tensors++ % 2;
    Tensor *t = &d->tensor[i];
    *t = (Tensor){.name = d->name[i],
                  .file = "dummy weights",
                  .type = type_of(d, leaf, suffix, n_dims),
                  .n_dims = n_dims};
    snprintf(d->name[i], MAX_NAME, "%s%s%s", scope, leaf, suffix);
    t->bytes = t->type == TENSOR_F32 ? 4 : t->type == TENSOR_BF16 ? 2 : 1;
    for (int k = 0; k < n_dims; k++) {
        t->dim[k] = dim[k];
        t->bytes *= (size_t)dim[k];
    }
    if (n_dims == 2 && t->type != TENSOR_F32) d->cols = dim[1];
    return t;
}

/*
 * Zero-centred norms stay 0. The states of trained models forget within a few to thousands of
 * tokens: decay is exp(-exp(A_log) softplus(a + dt_bias)), a about normal.
 */
void dummy_floats(Dummy *d, const Tensor *t, float *out)
{
    static const struct {
        const char *end;
        float lo, hi;
    } vectors[] = {
        {".linear_attn.norm.weight", 1, 1},
        {".linear_attn.A_log", -4, 2.75f}, /* A up to 16 */
        {".linear_attn.dt_bias", -3, 1},
    };
    float middle = 0, limit = 0;
    size_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= (size_t)t->dim[i];
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (text_ends_with(t->name, vectors[i].end)) {
            middle = (vectors[i].lo + vectors[i].hi) / 2;
            limit = (vectors[i].hi - vectors[i].lo) / 2;
        }
    if (t->type == TENSOR_F32) /* scales */
        middle = limit_of(d->cols) / FP8_LARGEST;
    else if (t->n_dims == 2)
        limit = limit_of(t->dim[1]);
    for (size_t i = 0; i < n; i++)
        out[i] = middle + uniform(&d->random, limit);
}

/* The seeds are fixed: a pool does not depend on what was loaded before. */
static void random_bf16(unsigned char *out, float limit)
{
    uint64_t random = 1;
    for (size_t i = 0; i < POOL_BYTES; i += sizeof(uint64_t)) {
        uint64_t r = splitmix_next(&random);
        for (int k = 0; k < 4; k++) {
            float x = ((float)(int16_t)(r >> 16 * k) + 0.5f) * 0x1p-15f * limit;
            uint16_t half = bf16_from_float(x);
            memcpy(out + i + 2 * k, &half, sizeof half);
        }
    }
}

/* As far as the scales' values reach; no code is NaN. */
static void random_fp8(unsigned char *out)
{
    uint8_t code[256];
    uint64_t random = 2;
    for (int i = 0; i < 256; i++)
        code[i] = fp8_from_float(((float)i - 127.5f) / 127.5f * FP8_LARGEST);
    for (size_t i = 0; i < POOL_BYTES; i += sizeof(uint64_t)) {
        uint64_t r = splitmix_next(&random);
        for (int k = 0; k < 8; k++)
            out[i + (size_t)k] = code[r >> 8 * k & 255];
    }
}

/* What all matrices of this type and width are copied from. NULL and an Error: no memory. */
static const unsigned char *pool_for(Dummy *d, TensorType type, int64_t cols, Error *err)
{
    Pool key = {type, type == TENSOR_BF16 ? cols : 0, NULL};
    for (int i = 0; i < d->n_pools; i++)
        if (d->pool[i].type == key.type && d->pool[i].cols == key.cols) return d->pool[i].data;
    assert(d->n_pools < MAX_POOLS);
    key.data = d->backend->alloc(d->backend, POOL_BYTES, err);
    if (!key.data) return NULL;

    unsigned char *bytes = mem_alloc(POOL_BYTES, 1);
    if (type == TENSOR_BF16)
        random_bf16(bytes, limit_of(cols));
    else
        random_fp8(bytes);
    d->backend->upload(d->backend, key.data, bytes, POOL_BYTES);
    mem_free(bytes);
    d->pool[d->n_pools++] = key;
    return key.data;
}

int dummy_matrix(Dummy *d, const Tensor *t, void *out, Error *err)
{
    const unsigned char *pool = pool_for(d, t->type, t->dim[1], err);
    if (!pool) return -1;
    unsigned char *to = out;
    size_t left = t->bytes;
    size_t at = (size_t)(splitmix_next(&d->random) % POOL_BLOCKS) * BLOCK;
    while (left) {
        size_t run = left < POOL_BYTES - at ? left : POOL_BYTES - at;
        d->backend->copy(d->backend, to, pool + at, run);
        to += run;
        left -= run;
        at = 0;
    }
    return 0;
}
