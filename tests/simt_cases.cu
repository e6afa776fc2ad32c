/*
 * simt_cases.cu: see simt_cases.h. For the host alone: conversions are called outside kernels.
 */
#include "kernels/kv_tile.h"
#include "kernels/simt_copy.h"
#include "tests/simt_cases.h"

static const CudaContext no_context = {};

static __global__ void warp_kernel(WarpCase *c)
{
    grid_wait();
    int t = (int)threadIdx.x;
    c->shuffled[t] = warp_shuffle(c->x[t], c->from[t]);
    c->words[t] = warp_shuffle(c->word[t], c->from[t]);
    c->flipped[t] = warp_xor(c->x[t], 5);
    c->positive[t] = warp_ballot(c->x[t] > 0);
    c->largest[t] = warp_largest(c->word[t]);
    c->smallest[t] = warp_smallest(c->word[t]);
    for (int i = 0; i < 6; i++) {
        c->sum[i][t] = warp_sum(c->x[t], 1 << i);
        c->max[i][t] = warp_max(c->x[t], 1 << i);
    }
}

extern "C" void case_warp(WarpCase *c)
{
    launch(&no_context, dim3(1), CASE_THREADS, 0, warp_kernel, c);
}

static __global__ void blocks_kernel(int *seen, int *n)
{
    grid_wait();
    unsigned block = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z;
    seen[(*n)++] = (int)(threadIdx.x + 100 * block);
}

extern "C" void case_blocks(unsigned x, unsigned y, unsigned z, int *seen, int *n)
{
    launch(&no_context, dim3(x, y, z), WARP, 0, blocks_kernel, seen, n);
}

static __device__ void look(CopyCase *c, const uint32_t *shared, int left)
{
    for (int g = 0; g < 3; g++)
        memcpy(c->seen[left][g][threadIdx.x], shared + (g * CASE_THREADS + threadIdx.x) * 4, 16);
}

static __global__ void copies_kernel(CopyCase *c)
{
    grid_wait();
    DYNAMIC_SHARED(uint32_t, shared);
    for (int g = 0; g < 3; g++) {
        copy_16(shared + (g * CASE_THREADS + threadIdx.x) * 4, c->from[g][threadIdx.x]);
        copies_commit();
    }
    copies_wait<3>();
    look(c, shared, 3);
    copies_wait<2>();
    look(c, shared, 2);
    copies_wait<1>();
    look(c, shared, 1);
    copies_wait<0>();
    look(c, shared, 0);
}

extern "C" void case_copies(CopyCase *c)
{
    launch(&no_context, dim3(1), CASE_THREADS, 3 * CASE_THREADS * 16, copies_kernel, c);
}

static __global__ void neighbours_kernel(int n_steps, uint32_t *x, uint32_t *poison)
{
    grid_wait();
    DYNAMIC_SHARED(uint32_t, shared);
    unsigned t = threadIdx.x;
    uint32_t own = x[t];
    poison[t] = shared[t];
    for (int i = 0; i < n_steps; i++) {
        __syncthreads();
        shared[t] = own;
        __syncthreads();
        own += shared[(t + 1) % blockDim.x];
    }
    x[t] = own;
}

extern "C" void case_neighbours(int n_steps, uint32_t *x, uint32_t *poison)
{
    launch(&no_context, dim3(1), CASE_THREADS, CASE_THREADS * sizeof *x, neighbours_kernel, n_steps,
           x, poison);
}

static __device__ uint32_t pair_of(uint16_t first, uint16_t second)
{
    return (uint32_t)first | (uint32_t)second << 16;
}

static __global__ void mma_kernel(int is_bf16, const uint16_t *a, const uint16_t *b, float *d)
{
    grid_wait();
    int g = warp_lane() / 4, l = warp_lane() % 4;
    uint32_t fa[4], fb[2];
    for (int i = 0; i < 4; i++) {
        const uint16_t *from = a + (g + i % 2 * 8) * 16 + 2 * l + i / 2 * 8;
        fa[i] = pair_of(from[0], from[1]);
    }
    for (int i = 0; i < 2; i++) {
        const uint16_t *from = b + (2 * l + 8 * i) * 8 + g;
        fb[i] = pair_of(from[0], from[8]);
    }
    float fd[4];
    for (int i = 0; i < 4; i++)
        fd[i] = d[(g + i / 2 * 8) * 8 + 2 * l + i % 2];
    if (is_bf16)
        mma_bf16(fd, fa, fb);
    else
        mma_fp16(fd, fa, fb);
    for (int i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * 8 + 2 * l + i % 2] = fd[i];
}

extern "C" void case_mma(int is_bf16, const uint16_t *a, const uint16_t *b, float *d)
{
    launch(&no_context, dim3(1), WARP, 0, mma_kernel, is_bf16, a, b, d);
}

extern "C" uint32_t case_fp8_pair(uint16_t codes)
{
    return fp8_to_fp16_pair(codes);
}

extern "C" uint32_t case_fp16_pair(float first, float second)
{
    return fp16_pair(first, second);
}

extern "C" uint32_t case_bf16_pair(float first, float second)
{
    return bf16_pair(first, second);
}

extern "C" float case_fp16_value(uint16_t bits)
{
    return fp16_value(bits);
}

/* Sixteen bytes of T as values, and each pair of them as the sum of its terms. */
template <typename T> static int kv_values(const T *p, float *x, float *summed)
{
    enum { N = KvElement<T>::PER_16 };
    kv_values_16(p, load_16(p), x);
    for (int i = 0; i < N; i += 2) {
        uint32_t term[2];
        kv_pair_terms(p + i, term);
        summed[i] = bf16_low(term[0]), summed[i + 1] = bf16_high(term[0]);
        if (KvElement<T>::TERMS == 1) continue;
        summed[i] += bf16_low(term[1]), summed[i + 1] += bf16_high(term[1]);
    }
    return N;
}

extern "C" int case_kv_values(int is_bf16, const void *bytes, float *x, float *summed)
{
    return is_bf16 ? kv_values((const Bf16 *)bytes, x, summed)
                   : kv_values((const float *)bytes, x, summed);
}

static __global__ void overlap_kernel(OverlapCase *c, int launch)
{
    int b = (int)blockIdx.x, before = c->x[b];
    grid_wait();
    if (threadIdx.x) return;
    c->seen[launch][0][b] = before;
    c->seen[launch][1][b] = c->x[b]++;
}

extern "C" void case_overlap(OverlapCase *c)
{
    for (int i = 0; i < OVERLAP_LAUNCHES; i++)
        launch(&no_context, dim3(OVERLAP_LAUNCHES), WARP, 0, overlap_kernel, c, i);
}

/* The last thread alone is hasty. */
static __global__ void trusted_kernel(int which)
{
    if (which == TRUSTS_HASTY && threadIdx.x + 1 == blockDim.x)
        grid_wait();
    else
        grid_wait_first();
}

static __global__ void trusting_kernel(int)
{
    grid_trusts();
    grid_wait();
}

static __global__ void stuck_kernel(int which)
{
    if (which == NO_GRID_WAIT && threadIdx.x + 1 == blockDim.x) return;
    grid_wait();
    if (which == NO_GRID_WAIT) return;
    int is_low = warp_lane() < WARP / 2;
    if (which == STUCK_HALF_A_WARP) {
        if (is_low) warp_sync();
    } else if (which == STUCK_IN_BLOCK) {
        if (is_low)
            warp_sync();
        else
            __syncthreads();
    } else {
        if (is_low)
            warp_shuffle(1.0f, 0);
        else
            warp_ballot(1);
    }
}

extern "C" void case_stuck(StuckCase which)
{
    if (which < TRUSTS_HASTY) {
        launch(&no_context, dim3(1), 2 * WARP, 0, stuck_kernel, (int)which);
        return;
    }
    launch(&no_context, dim3(1), 2 * WARP, 0, trusted_kernel, (int)which);
    launch(&no_context, dim3(1), 2 * WARP, 0, trusting_kernel, 0);
}
