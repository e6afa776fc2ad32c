/*
 * delta_conv.h: rows of the convolution in front of the delta rule, and what they leave in slots.
 *
 * A lane takes channels 4 lane .. 4 lane + 3 of each TILE of a head of q or k, or of v.
 */
#ifndef OFFSHOOT_KERNELS_DELTA_CONV_H
#define OFFSHOOT_KERNELS_DELTA_CONV_H

#include "kernels/delta_slots.h"

enum { TILE = 4 * WARP };

/*
 * What rows do with the slot that they leave. A slot that some row starts from, as the call finds
 * it, is "found"; by the header's contract only rows that descend from a found slot write it.
 *
 * PASS_OUTPUT reads found slots and writes the results, and the inputs left in all other slots:
 * those are nowhere read, since whoever takes a state written in this call takes the inputs from
 * qkv. PASS_FOUND then writes found slots. Its rows read no slot but the one they write, the same
 * thread its own channels. In both passes only the last row that has a slot as dst writes it. So no
 * two blocks of a pass touch one word that either writes.
 */
enum { PASS_OUTPUT = 1, PASS_FOUND = 2 };

/* The weights of four channels from c on; where not FAST convolve reads them itself. */
template <bool FAST>
static __device__ __forceinline__ void load_taps(const ConvGates &a, int c, float w[4][4])
{
    for (int j = 0; FAST && j < 4; j++)
        load4<true>(w[j], a.conv_w + (int64_t)(c + j) * 4, 4);
}

/* y = sum_m w[m] input[m], oldest first, of four channels from c on; n of them count. */
template <bool FAST>
static __device__ __forceinline__ void convolve(const ConvGates &a, const float w[4][4],
                                                const float *const *input, int c, int n, float y[4])
{
    int width = FAST ? 4 : a.width;
    float x[4];
    for (int j = 0; j < 4; j++)
        y[j] = 0;
    for (int m = 0; m < width; m++) {
        load4<FAST>(x, input[m] + c, n);
        for (int j = 0; j < 4; j++) {
            if (FAST)
                y[j] = fmaf(w[j][m], x[j], y[j]);
            else if (j < n)
                y[j] = fmaf(a.conv_w[(int64_t)(c + j) * width + m], x[j], y[j]);
        }
    }
}

/* y = silu(y). Returns sum + squares. */
static __device__ __forceinline__ float activate(float y[4], float sum)
{
    for (int j = 0; j < 4; j++) {
        y[j] = silu(y[j]);
        sum = fmaf(y[j], y[j], sum);
    }
    return sum;
}

/* By what a head is multiplied so that its length is `length`: a lane's part of its squares. */
static __device__ __forceinline__ float length_scale(float squares, float length)
{
    return length / sqrtf(warp_sum(squares, WARP) + 1e-6f);
}

static __device__ __forceinline__ float decay_of(float a_coef, float a, float dt_bias)
{
    float u = a + dt_bias;
    return expf(a_coef * (u > 20.0f ? u : log1pf(expf(u))));
}

#endif
