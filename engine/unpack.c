/* unpack.c: see unpack.h. */
#include "engine/unpack.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/fp16.h"
#include "kernels/fp8.h"
#include "kernels/weight.h"

static void unpack_halves(const unsigned char *data, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, data + 2 * i, sizeof v);
        out[i] = fp16_to_float(v);
    }
}

void unpack_floats(const Tensor *t, float *out)
{
    if (t->type == TENSOR_F32) {
        memcpy(out, t->data, t->bytes);
        return;
    }
    if (t->type == TENSOR_F16) {
        unpack_halves(t->data, t->bytes / 2, out);
        return;
    }
    if (t->type == TENSOR_FP8_E8M0) {
        for (size_t i = 0; i < t->bytes; i++)
            out[i] = t->data[i] == 255 ? NAN : ldexpf(1, t->data[i] - 127);
        return;
    }
    if (t->type == TENSOR_FP8_E4M3) {
        for (size_t i = 0; i < t->bytes; i++)
            out[i] = fp8_to_float(t->data[i]);
        return;
    }
    assert(t->type == TENSOR_BF16);
    for (size_t i = 0; i < t->bytes / 2; i++) {
        uint16_t v;
        memcpy(&v, t->data + 2 * i, sizeof v);
        out[i] = bf16_to_float(v);
    }
}

/*
 * Per key head the fused rows are q, k, then v and z of its r value heads; b of them, then a.
 * Source: the reshape in Qwen3-Next's reference implementation.
 */
void unpack_next_rows(const ModelConfig *c, NextRows *map)
{
    int r = c->n_v_heads / c->n_k_heads, keys = c->n_k_heads * c->d_k, group = r * c->d_v;
    for (int h = 0; h < c->n_k_heads; h++) {
        int row = h * 2 * (c->d_k + group);
        for (int j = 0; j < c->d_k; j++) {
            map->qkv[h * c->d_k + j] = row + j;
            map->qkv[keys + h * c->d_k + j] = row + c->d_k + j;
        }
        row += 2 * c->d_k;
        for (int j = 0; j < group; j++) {
            map->qkv[2 * keys + h * group + j] = row + j;
            map->z[h * group + j] = row + group + j;
        }
        for (int i = 0; i < r; i++) {
            map->b[h * r + i] = h * 2 * r + i;
            map->a[h * r + i] = h * 2 * r + r + i;
        }
    }
}

int unpack_keeps_blocks(const int *map, int n)
{
    for (int i = 0; i < n; i++)
        if (map[i] / FP8_BLOCK != map[i - i % FP8_BLOCK] / FP8_BLOCK) return 0;
    return 1;
}

void unpack_rows(const unsigned char *data, size_t row_bytes, const int *map, int n,
                 unsigned char *out)
{
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * row_bytes, data + (size_t)map[i] * row_bytes, row_bytes);
}

void unpack_half_rows(const unsigned char *data, int cols, const int *map, int n, float *out)
{
    size_t width = (size_t)cols;
    for (int i = 0; i < n; i++)
        unpack_halves(data + 2 * (size_t)(map ? map[i] : i) * width, width,
                      out + (size_t)i * width);
}

void unpack_fp8_rows(const unsigned char *data, const float *scale, int cols, const int *map, int n,
                     float *out)
{
    size_t blocks = ((size_t)cols + FP8_BLOCK - 1) / FP8_BLOCK;
    for (int i = 0; i < n; i++) {
        const unsigned char *row = data + (size_t)map[i] * (size_t)cols;
        const float *s = scale + (size_t)(map[i] / FP8_BLOCK) * blocks;
        for (int j = 0; j < cols; j++)
            *out++ = fp8_to_float(row[j]) * s[j / FP8_BLOCK];
    }
}
