/*
 * kv_tile.h: elements of K and V rows as kernels read and write them.
 *
 * A kernel over a KvLayer is a template over T, the type of its elements: float (KV_F32) or Bf16
 * (KV_BF16). It computes in f32. Widening is exact, so a kernel gives the same bits for bf16 rows
 * as for f32 rows that hold the same values.
 */
#ifndef OFFSHOOT_KERNELS_KV_TILE_H
#define OFFSHOOT_KERNELS_KV_TILE_H

#include "kernels/simt_mma.h"

typedef struct {
    uint16_t bits;
} Bf16;

template <typename T> struct KvElement;
template <> struct KvElement<float> {
    enum {
        PER_16 = 4, /* elements in 16 bytes */
        TERMS = 2,  /* bf16 terms that make up a value: see kv_pair_terms */
    };
};
template <> struct KvElement<Bf16> {
    enum { PER_16 = 8, TERMS = 1 };
};

/* Bytes from a page's k_offset or v_offset, of page 0, to a row of one KV head. */
template <typename T>
static __device__ __forceinline__ size_t kv_row_at(const KvLayer &kv, int seq, int row, int kv_head)
{
    int32_t page = kv.table[(int64_t)seq * kv.table_stride + row / kv.page_tokens];
    int64_t head = (int64_t)(row % kv.page_tokens) * kv.n_kv_heads + kv_head;
    return (size_t)page * kv.page_bytes + (size_t)(head * kv.head_dim) * sizeof(T);
}

/* ---- one element ---- */

static __device__ __forceinline__ float kv_value(const float *p)
{
    return *p;
}
static __device__ __forceinline__ float kv_value(const Bf16 *p)
{
    return bf16_to_float(p->bits);
}

/* Rounds to nearest even where T is narrower; the same bits as on the host, for a NaN too. */
static __device__ __forceinline__ void kv_store(float *p, float x)
{
    *p = x;
}
static __device__ __forceinline__ void kv_store(Bf16 *p, float x)
{
    p->bits = bf16_from_float(x);
}

/* ---- several ---- */

static __device__ __forceinline__ float4 quad(float x, float y, float z, float w)
{
    float4 q;
    q.x = x, q.y = y, q.z = z, q.w = w;
    return q;
}

/* Four elements at an address that is a multiple of their size. */
static __device__ __forceinline__ float4 load_whole_quad(const float *p)
{
    return *(const float4 *)(const void *)p;
}
static __device__ __forceinline__ float4 load_whole_quad(const Bf16 *p)
{
    uint2 pair = *(const uint2 *)(const void *)p;
    return quad(bf16_low(pair.x), bf16_high(pair.x), bf16_low(pair.y), bf16_high(pair.y));
}

/* Four elements from p on, of which n_left exist, the others 0; WHOLE: all do, on their size. */
template <int WHOLE, typename T>
static __device__ __forceinline__ float4 load_quad(const T *p, int n_left)
{
    if (WHOLE) return load_whole_quad(p);
    return quad(n_left > 0 ? kv_value(p) : 0, n_left > 1 ? kv_value(p + 1) : 0,
                n_left > 2 ? kv_value(p + 2) : 0, n_left > 3 ? kv_value(p + 3) : 0);
}

/* The KvElement<T>::PER_16 values of 16 bytes, as load_16 brings them. */
static __device__ __forceinline__ void kv_values_16(const float *, const uint4 &bytes, float *x)
{
    x[0] = philox_float(bytes.x), x[1] = philox_float(bytes.y);
    x[2] = philox_float(bytes.z), x[3] = philox_float(bytes.w);
}
static __device__ __forceinline__ void kv_values_16(const Bf16 *, const uint4 &bytes, float *x)
{
    x[0] = bf16_low(bytes.x), x[1] = bf16_high(bytes.x);
    x[2] = bf16_low(bytes.y), x[3] = bf16_high(bytes.y);
    x[4] = bf16_low(bytes.z), x[5] = bf16_high(bytes.z);
    x[6] = bf16_low(bytes.w), x[7] = bf16_high(bytes.w);
}

/*
 * Two neighbours on their size, as the pairs that mma_bf16 takes: KvElement<T>::TERMS of them,
 * which add up to the values; of an f32 value two terms keep 16 bits.
 */
static __device__ __forceinline__ void kv_pair_terms(const float *p, uint32_t *term)
{
    term[0] = bf16_pair(p[0], p[1]);
    term[1] = bf16_pair(p[0] - bf16_low(term[0]), p[1] - bf16_high(term[0]));
}
static __device__ __forceinline__ void kv_pair_terms(const Bf16 *p, uint32_t *term)
{
    term[0] = *(const uint32_t *)(const void *)p;
}

#endif
