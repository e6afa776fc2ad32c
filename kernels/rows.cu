/*
 * rows.cu: the small row operations.
 *
 * One block per row (a warp per head for gated_norm, per 128 of a row for swiglu), so a row's sums
 * have one order: a warp takes every NORM_WARPS-th run of 128, a lane every 32nd element of it,
 * then a tree over the warp, then the warps in order. What they make is multiplied next, so they
 * leave its terms as well (terms.h). Bytes: each array read or written once; all are below a
 * microsecond at decode sizes, so what counts is the launch.
 */
#include "kernels/terms.h"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    NORM_THREADS = 512, /* what counts is how soon one row is done */
    NORM_WARPS = NORM_THREADS / WARP,
};

/* The sum of x over the block of N_WARPS warps, in every thread; once a kernel. */
template <int N_WARPS> static __device__ float block_sum(float x)
{
    __shared__ float part[N_WARPS];
    x = warp_sum(x, WARP);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < N_WARPS; w++)
        sum += part[w];
    return sum;
}

/* ---- embed, gather ---- */

static __global__ void embed_kernel(Embed a, Weight table)
{
    grid_wait();
    int64_t row = a.token[blockIdx.x];
    float *out = a.out + (int64_t)blockIdx.x * a.out_stride;
    for (int k = (int)threadIdx.x; k < table.cols; k += THREADS) {
        int64_t at = row * table.cols + k;
        out[k] = table.type == WEIGHT_F32 ? ((const float *)table.data)[at]
                                          : bf16_to_float(((const uint16_t *)table.data)[at]);
    }
}

extern "C" void CUDA_NAME(embed)(const CudaContext *c, const Embed *a)
{
    launch(c, dim3((unsigned)a->n), THREADS, 0, embed_kernel, *a, *a->table);
}

static __global__ void gather_kernel(GatherRows a)
{
    grid_wait();
    const float *x = a.x + (int64_t)a.index[blockIdx.x] * a.dim;
    float *out = a.out + (int64_t)(a.to ? a.to[blockIdx.x] : (int)blockIdx.x) * a.dim;
    for (int k = (int)threadIdx.x; k < a.dim; k += THREADS)
        out[k] = x[k];
}

extern "C" void CUDA_NAME(gather_rows)(const CudaContext *c, const GatherRows *a)
{
    launch(c, dim3((unsigned)a->n), THREADS, 0, gather_kernel, *a);
}

/* ---- norms ---- */

/* x += delta of this lane's part of a block: k = 128 block + lane + 32 i. Returns sum + squares. */
static __device__ __forceinline__ float add_block(float *x, const float *delta, int dim, int block,
                                                  float sum)
{
    UNROLL
    for (int i = 0; i < K_BLOCK / WARP; i++) {
        int k = block * K_BLOCK + i * WARP + warp_lane();
        if (k >= dim) continue;
        float y = x[k];
        if (delta) x[k] = y = y + delta[k];
        sum = fmaf(y, y, sum);
    }
    return sum;
}

/* A block per row, a warp per 128 of it. */
static __global__ void __launch_bounds__(NORM_THREADS) add_norm_kernel(AddNorm a, NewTerms terms)
{
    grid_wait();
    int warp = (int)threadIdx.x / WARP, n_blocks = term_blocks(a.dim);
    float *x = a.x + (int64_t)blockIdx.x * a.dim;
    const float *delta = a.delta ? a.delta + (int64_t)blockIdx.x * a.dim : NULL;
    float sum = 0;
    for (int b = warp; b < n_blocks; b += NORM_WARPS)
        sum = add_block(x, delta, a.dim, b, sum);
    if (!a.out) return;
    float scale = 1.0f / sqrtf(block_sum<NORM_WARPS>(sum) / (float)a.dim + a.eps);
    float *out = a.out + (int64_t)blockIdx.x * a.out_stride;
    for (int b = warp; b < n_blocks; b += NORM_WARPS) {
        int end = term_block_end(b, a.dim);
        for (int k = b * K_BLOCK + warp_lane(); k < end; k += WARP)
            out[k] = x[k] * scale * a.w[k];
        leave_terms(terms, blockIdx.x, b, out, a.dim);
    }
}

extern "C" void CUDA_NAME(add_norm)(const CudaContext *c, const AddNorm *a)
{
    NewTerms terms = {};
    if (a->out) terms = new_terms(c, a->out, a->n, a->dim, a->out_stride);
    launch(c, dim3((unsigned)a->n), NORM_THREADS, 0, add_norm_kernel, *a, terms);
}

/* A warp per head. Terms are left where a head is whole blocks of 128. */
static __global__ void gated_norm_kernel(GatedNorm a, NewTerms terms)
{
    grid_wait();
    int64_t head = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (head >= (int64_t)a.n * a.n_heads) return;
    const float *x = a.x + head * a.dim, *z = a.z + head * a.dim;
    float *out = a.out + head * a.dim;
    float sum = 0;
    for (int k = warp_lane(); k < a.dim; k += WARP)
        sum = fmaf(x[k], x[k], sum);
    float scale = 1.0f / sqrtf(warp_sum(sum, WARP) / (float)a.dim + a.eps);
    for (int k = warp_lane(); k < a.dim; k += WARP)
        out[k] = x[k] * scale * a.w[k] * silu(z[k]);
    int64_t row = head / a.n_heads;
    int cols = a.n_heads * a.dim, first = (int)(head % a.n_heads) * (a.dim / K_BLOCK);
    for (int b = 0; b < a.dim / K_BLOCK; b++)
        leave_terms(terms, row, first + b, a.out + row * cols, cols);
}

extern "C" void CUDA_NAME(gated_norm)(const CudaContext *c, const GatedNorm *a)
{
    int64_t blocks = ((int64_t)a->n * a->n_heads + WARPS - 1) / WARPS;
    int cols = a->n_heads * a->dim;
    NewTerms terms = {};
    if (a->dim % K_BLOCK == 0) terms = new_terms(c, a->out, a->n, cols, cols);
    launch(c, dim3((unsigned)blocks), THREADS, 0, gated_norm_kernel, *a, terms);
}

/* ---- SwiGLU ---- */

/* A warp per 128 of a row. */
static __global__ void swiglu_kernel(SwiGlu a, NewTerms terms)
{
    grid_wait();
    int64_t unit = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int64_t row = unit / term_blocks(a.dim);
    int block = (int)(unit % term_blocks(a.dim));
    if (row >= a.n) return;
    float *gate = a.gate + row * a.dim;
    const float *up = a.up + row * a.dim;
    int end = term_block_end(block, a.dim);
    for (int k = block * K_BLOCK + warp_lane(); k < end; k += WARP)
        gate[k] = silu(gate[k]) * up[k];
    leave_terms(terms, row, block, gate, a.dim);
}

extern "C" void CUDA_NAME(swiglu)(const CudaContext *c, const SwiGlu *a)
{
    int64_t units = (int64_t)a->n * term_blocks(a->dim);
    launch(c, dim3((unsigned)((units + WARPS - 1) / WARPS)), THREADS, 0, swiglu_kernel, *a,
           new_terms(c, a->gate, a->n, a->dim, a->dim));
}

/* ---- moving KV rows ---- */

static __device__ unsigned char *kv_bytes(const MoveRows &a, int layer_part, int seq, int row)
{
    int32_t page = a.table[(int64_t)seq * a.table_stride + row / a.page_tokens];
    size_t in_page = (size_t)layer_part * (size_t)a.page_tokens + (size_t)(row % a.page_tokens);
    return a.pages + (size_t)page * a.page_bytes + in_page * a.row_bytes;
}

/*
 * A block for each layer's K and V. A thread moves the same words of every row, in the order of the
 * moves: what a later move overwrites, the same thread has read.
 */
template <typename Word> static __global__ void move_rows_kernel(MoveRows a)
{
    grid_wait();
    for (int i = 0; i < a.n; i++) {
        if (a.from[i] == a.to[i]) continue;
        const Word *from =
            (const Word *)(const void *)kv_bytes(a, (int)blockIdx.x, a.seq[i], a.from[i]);
        Word *to = (Word *)(void *)kv_bytes(a, (int)blockIdx.x, a.seq[i], a.to[i]);
        for (size_t k = threadIdx.x; k < a.row_bytes / sizeof(Word); k += THREADS)
            to[k] = from[k];
    }
}

extern "C" void CUDA_NAME(move_rows)(const CudaContext *c, const MoveRows *a)
{
    if (!a->n_layers) return; /* a model without full attention */
    /* bf16 rows of an odd number of elements lie on 2 bytes */
    size_t bits = (size_t)(uintptr_t)a->pages | a->page_bytes | a->row_bytes;
    launch(c, dim3((unsigned)(2 * a->n_layers)), THREADS, 0,
           bits % 4 ? move_rows_kernel<unsigned char> : move_rows_kernel<uint32_t>, *a);
}
