/*
 * rows.cu: the small row operations.
 *
 * One block per row (two for head_input, a warp per head for gated_norm, per 128 of a row for
 * swiglu), so a row's sums have one order: a warp takes every NORM_WARPS-th run of 128, a lane
 * every 32nd element of it, then a tree over the warp, then the warps in order. What they make is
 * multiplied next, so they leave its terms as well (terms.h). Bytes: each array read or written
 * once; all are below a microsecond at decode sizes, so what counts is the launch, and in it how
 * often memory is waited for: once, since what a lane has read stays in its registers until its
 * terms are written.
 */
#include "kernels/norm_parts.h"

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

/* out[k] = read(k) for k < n, by the block. A thread reads several values before it writes them: a
 * write would hold up the reads behind it, which the compiler cannot know to be of other memory. */
template <typename Read>
static __device__ __forceinline__ void write_row(float *out, int n, const Read &read)
{
    enum { AT_ONCE = 8 };
    for (int first = (int)threadIdx.x; first < n; first += AT_ONCE * THREADS) {
        float x[AT_ONCE];
        UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            x[i] = first + i * THREADS < n ? read(first + i * THREADS) : 0.0f;
        UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * THREADS < n) out[first + i * THREADS] = x[i];
    }
}

static __global__ void embed_kernel(Embed a, Weight table)
{
    grid_wait();
    int64_t row = (int64_t)a.token[blockIdx.x] * table.cols;
    float *out = a.out + (int64_t)blockIdx.x * a.out_stride;
    const float *f32 = (const float *)table.data + row;
    const uint16_t *bf16 = (const uint16_t *)table.data + row;
    if (table.type == WEIGHT_F32)
        write_row(out, table.cols, [=](int k) { return f32[k]; });
    else
        write_row(out, table.cols, [=](int k) { return bf16_to_float(bf16[k]); });
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
    write_row(out, a.dim, [=](int k) { return x[k]; });
}

extern "C" void CUDA_NAME(gather_rows)(const CudaContext *c, const GatherRows *a)
{
    launch(c, dim3((unsigned)a->n), THREADS, 0, gather_kernel, *a);
}

/* ---- norms ---- */

/* The blocks of a row that this warp holds. */
template <int HELD, typename T>
static __device__ __forceinline__ void load_held(float (&x)[HELD][2][2], const T *row, int dim)
{
    UNROLL
    for (int j = 0; j < HELD; j++)
        load_block(x[j], row, (int)threadIdx.x / WARP + j * NORM_WARPS, dim);
}

/* Where the norm of a row goes: dim floats, whose terms are those of row blockIdx.x from block
 * `first` on. */
typedef struct {
    float *out;
    int dim, first;
    NewTerms terms;
} NormPlace;

/* Writes x * scale * w, by which x is replaced, and leaves its terms. */
static __device__ __forceinline__ void put_norm(const NormPlace &to, int block, float scale,
                                                float (&x)[2][2], const float (&w)[2][2])
{
    UNROLL
    for (int i = 0; i < 4; i++)
        x[i / 2][i % 2] = x[i / 2][i % 2] * scale * w[i / 2][i % 2];
    store_block(to.out, block, to.dim, x);
    leave_terms(to.terms, blockIdx.x, to.first + block, x);
}

/* All blocks of this warp: those that it holds, then the others, which read(x, block) brings. */
template <int HELD, typename Read>
static __device__ __forceinline__ void put_norms(const NormPlace &to, float scale,
                                                 float (&x)[HELD][2][2], float (&w)[HELD][2][2],
                                                 const float *weight, const Read &read)
{
    int warp = (int)threadIdx.x / WARP, n_blocks = term_blocks(to.dim);
    UNROLL
    for (int j = 0; j < HELD; j++)
        if (warp + j * NORM_WARPS < n_blocks)
            put_norm(to, warp + j * NORM_WARPS, scale, x[j], w[j]);
    for (int b = warp + HELD * NORM_WARPS; b < n_blocks; b += NORM_WARPS) {
        read(x[0], b);
        load_block(w[0], weight, b, to.dim);
        put_norm(to, b, scale, x[0], w[0]);
    }
}

/*
 * A block per row, a warp per 128 of it. A warp's first HELD blocks stay in registers, and their
 * weights come before the wait: so a row costs one round trip to memory and a barrier. What a row
 * has beyond those is read again.
 */
template <int HELD>
static __global__ void __launch_bounds__(NORM_THREADS, 1) add_norm_kernel(AddNorm a, NewTerms terms)
{
    int warp = (int)threadIdx.x / WARP, n_blocks = term_blocks(a.dim);
    float w[HELD][2][2], x[HELD][2][2], delta[HELD][2][2] = {}, sum = 0;
    load_held(w, a.w, a.dim);
    grid_wait();
    float *row = a.x + (int64_t)blockIdx.x * a.dim;
    const float *more = a.delta ? a.delta + (int64_t)blockIdx.x * a.dim : NULL;
    load_held(x, row, a.dim);
    if (more) load_held(delta, more, a.dim);
    UNROLL
    for (int j = 0; j < HELD; j++) {
        sum = add_block(x[j], delta[j], more != NULL, sum);
        if (more) store_block(row, warp + j * NORM_WARPS, a.dim, x[j]);
    }
    for (int b = warp + HELD * NORM_WARPS; b < n_blocks; b += NORM_WARPS) {
        float y[2][2], plus[2][2] = {};
        load_block(y, row, b, a.dim);
        if (more) load_block(plus, more, b, a.dim);
        sum = add_block(y, plus, more != NULL, sum);
        if (more) store_block(row, b, a.dim, y);
    }
    float scale = norm_scale(block_sum<NORM_WARPS>(sum), a.dim, a.eps);
    NormPlace to = {a.out + (int64_t)blockIdx.x * a.out_stride, a.dim, 0, terms};
    put_norms(to, scale, x, w, a.w,
              [=](float(&again)[2][2], int b) { load_block(again, row, b, a.dim); });
}

extern "C" void CUDA_NAME(add_norm)(const CudaContext *c, const AddNorm *a)
{
    NewTerms terms = new_terms(c, a->out, a->n, a->dim, a->out_stride);
    launch(c, dim3((unsigned)a->n), NORM_THREADS, 0,
           term_blocks(a->dim) > NORM_WARPS ? add_norm_kernel<4> : add_norm_kernel<1>, *a, terms);
}

/*
 * Blocks (row, half of it): the embedding's, then the hidden row's, each as add_norm_kernel has it.
 * So what four launches would do takes one, in which the embedding's half waits for memory twice:
 * for the token, then for its row of the table.
 */
template <int HELD>
static __global__ void __launch_bounds__(NORM_THREADS, 1)
    head_input_kernel(HeadInput a, Weight table, NewTerms terms)
{
    int half = (int)blockIdx.y, dim = table.cols, n_blocks = term_blocks(dim);
    int warp = (int)threadIdx.x / WARP, is_bf16 = !half && table.type == WEIGHT_BF16;
    const float *weight = half ? a.hidden_norm : a.embed_norm;
    float w[HELD][2][2], x[HELD][2][2], sum = 0;
    load_held(w, weight, dim);
    grid_wait();
    int64_t at = (int64_t)(half ? (int)blockIdx.x : a.token[blockIdx.x]) * dim;
    const float *row = (half ? a.hidden : (const float *)table.data) + at;
    const uint16_t *narrow = (const uint16_t *)table.data + at;
    auto read = [=](float(&v)[2][2], int b) {
        if (is_bf16)
            load_block(v, narrow, b, dim);
        else
            load_block(v, row, b, dim);
    };
    if (is_bf16)
        load_held(x, narrow, dim);
    else
        load_held(x, row, dim);
    UNROLL
    for (int j = 0; j < HELD; j++)
        sum = add_squares(x[j], sum);
    for (int b = warp + HELD * NORM_WARPS; b < n_blocks; b += NORM_WARPS) {
        float y[2][2];
        read(y, b);
        sum = add_squares(y, sum);
    }
    float scale = norm_scale(block_sum<NORM_WARPS>(sum), dim, a.eps);
    NormPlace to = {a.out + (2 * (int64_t)blockIdx.x + half) * dim, dim, half * n_blocks, terms};
    put_norms(to, scale, x, w, weight, read);
}

/* Where a half is not whole blocks of 128, a block has values of both, and nobody leaves terms. */
extern "C" void CUDA_NAME(head_input)(const CudaContext *c, const HeadInput *a)
{
    int dim = a->table->cols;
    NewTerms terms = {};
    assert(a->table->type == WEIGHT_F32 || a->table->type == WEIGHT_BF16);
    if (dim % K_BLOCK == 0) terms = new_terms(c, a->out, a->n, 2 * dim, 2 * dim);
    launch(c, dim3((unsigned)a->n, 2), NORM_THREADS, 0,
           term_blocks(dim) > NORM_WARPS ? head_input_kernel<4> : head_input_kernel<1>, *a,
           *a->table, terms);
}

/* Writes a block of the norm of x, by which x is replaced, and leaves its terms where a head is
 * whole blocks of 128. */
static __device__ __forceinline__ void put_gated(const GatedNorm &a, const NewTerms &terms,
                                                 int64_t head, int block, float scale,
                                                 float (&x)[2][2], const float (&z)[2][2],
                                                 const float (&w)[2][2])
{
    gate_block(x, scale, w, z);
    store_block(a.out + head * a.dim, block, a.dim, x);
    leave_terms(terms, head / a.n_heads, (int)(head % a.n_heads) * (a.dim / K_BLOCK) + block, x);
}

/* A warp per head. What lies beyond its first HELD blocks is read again. */
template <int HELD> static __global__ void gated_norm_kernel(GatedNorm a, NewTerms terms)
{
    float w[HELD][2][2], x[HELD][2][2], z[HELD][2][2], sum = 0;
    UNROLL
    for (int j = 0; j < HELD; j++)
        load_block(w[j], a.w, j, a.dim);
    grid_wait();
    int64_t head = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (head >= (int64_t)a.n * a.n_heads) return;
    const float *of_head = a.x + head * a.dim, *gate = a.z + head * a.dim;
    UNROLL
    for (int j = 0; j < HELD; j++) {
        load_block(x[j], of_head, j, a.dim);
        load_block(z[j], gate, j, a.dim);
    }
    UNROLL
    for (int j = 0; j < HELD; j++)
        sum = add_squares(x[j], sum);
    for (int k = HELD * K_BLOCK + warp_lane(); k < a.dim; k += WARP)
        sum = fmaf(of_head[k], of_head[k], sum);
    float scale = norm_scale(warp_sum(sum, WARP), a.dim, a.eps);
    UNROLL
    for (int j = 0; j < HELD; j++)
        put_gated(a, terms, head, j, scale, x[j], z[j], w[j]);
    for (int b = HELD; b < term_blocks(a.dim); b++) {
        load_block(x[0], of_head, b, a.dim);
        load_block(z[0], gate, b, a.dim);
        load_block(w[0], a.w, b, a.dim);
        put_gated(a, terms, head, b, scale, x[0], z[0], w[0]);
    }
}

extern "C" void CUDA_NAME(gated_norm)(const CudaContext *c, const GatedNorm *a)
{
    int64_t blocks = ((int64_t)a->n * a->n_heads + WARPS - 1) / WARPS;
    int cols = a->n_heads * a->dim;
    NewTerms terms = {};
    if (a->dim % K_BLOCK == 0) terms = new_terms(c, a->out, a->n, cols, cols);
    launch(c, dim3((unsigned)blocks), THREADS, 0,
           a->dim > K_BLOCK ? gated_norm_kernel<2> : gated_norm_kernel<1>, *a, terms);
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
    float gate[2][2], up[2][2];
    load_block(gate, a.gate + row * a.dim, block, a.dim);
    load_block(up, a.up + row * a.dim, block, a.dim);
    UNROLL
    for (int i = 0; i < 4; i++)
        gate[i / 2][i % 2] = silu(gate[i / 2][i % 2]) * up[i / 2][i % 2];
    store_block(a.gate + row * a.dim, block, a.dim, gate);
    leave_terms(terms, row, block, gate);
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
