/*
 * delta_slots.h: slots and vectors of four, for the kernels of the recurrences.
 *
 * A slot keeps a head's state as [d_v][d_k]: a column, of which all is one dot product with k, lies
 * in one piece. The convolution's rows are as gated_delta.h says.
 */
#ifndef OFFSHOOT_KERNELS_DELTA_SLOTS_H
#define OFFSHOOT_KERNELS_DELTA_SLOTS_H

#include "kernels/simt.h"

static __device__ __forceinline__ float *slot_at(const SlotLayer &s, int32_t slot, size_t offset)
{
    return (float *)(void *)(s.base + (size_t)slot * s.slot_bytes + offset);
}

/* Four floats from p on; n of them count, the others are 0. FAST: p is aligned, all count. */
template <bool FAST> static __device__ __forceinline__ void load4(float x[4], const float *p, int n)
{
    if (FAST) {
        float4 all = *(const float4 *)(const void *)p;
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    } else {
        for (int j = 0; j < 4; j++)
            x[j] = j < n ? p[j] : 0;
    }
}

template <bool FAST>
static __device__ __forceinline__ void store4(float *p, const float x[4], int n)
{
    if (FAST) {
        *(float4 *)(void *)p = float4{x[0], x[1], x[2], x[3]};
    } else {
        for (int j = 0; j < 4; j++)
            if (j < n) p[j] = x[j];
    }
}

static inline int is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static inline int slots_aligned(const SlotLayer *s, size_t offset)
{
    return is_aligned(s->base + offset) && s->slot_bytes % 16 == 0;
}

#endif
