/*
 * linear.cu: y = x W' for a few or many rows.
 *
 * Where nobody has left x as two 16-bit terms (terms.h), first a small kernel makes them, once for
 * all matrices of a type. Then one of four schedules of the same sum:
 * - up to 8 rows of x, what decoding does: linear_few.h;
 * - more, beside FP8 weights on Hopper: by warpgroups (linear_wgmma.h);
 * - up to 64 where that cannot be, what a batch decodes, 8 at a time. Each time reads all of W, and
 *   is faster for it: 27B on an H200, milliseconds a pass of 16, 32, 64 rows: 19.0, 35.9, 69.4;
 *   with W once by the next schedule, or by mma in blocks of 128 of its rows, 34.1, 57.8, 103.7
 *   (bench/reports/2026-11-27-h200-rows.md);
 * - for matrices whose rows are not whole k-blocks that can be copied, and small ones of a batch, a
 *   block takes 16 rows of W, each of its 8 warps one slice of k, and up to 64 rows of x; partial
 *   sums meet in shared memory (2 KB for each 4 rows of x). A thread keeps 128 (bf16) or 64 bytes
 *   of W in flight while the k-block before them is multiplied. The blocks of all matrices of the
 *   type are one grid;
 * - more rows go through shared memory, W and x (gemm_tile.h), a launch for each matrix.
 *
 * Floor: bytes of W over the memory's rate, up to some 32 rows; then two mma per 8 products of 4
 * rows.
 *
 * f32 matrices are small (routers, gates): a launch for each, a warp per row of W and 8 rows of x,
 * lanes along k.
 */
#include "kernels/gemm_library.h"
#include "kernels/linear_few.h"
#include "kernels/linear_wgmma.h"

#include <assert.h>

enum {
    GROUP_ROWS = 64,       /* of x: beyond them they are a prompt's */
    GEMM_MIN_BLOCKS = 128, /* SMs of a large GPU, more or less: a schedule, not a result */
    F32_ROWS = 8,
    GEMM_MIN_ROWS = 48, /* of W: below this most of a block would have nothing to do */
};

/* Rows of x that this block's group has, from first on. */
template <int T> static __device__ __forceinline__ int group_rows(const LinearTerms &a, int first)
{
    int left = a.n - first;
    return left < T * TILE_COLUMN_ROWS ? left : T * TILE_COLUMN_ROWS;
}

/* A lane's columns of each tile; what lies past the last row reads as the last row. */
template <int T>
static __device__ __forceinline__ void group_offsets(const Terms &x, int first, int n,
                                                     uint32_t (&at)[T])
{
    UNROLL
    for (int j = 0; j < T; j++) {
        int row = j * TILE_COLUMN_ROWS + warp_lane() / 8;
        at[j] = term_offset(x, first + (row < n ? row : n - 1));
    }
}

/* ---- tiles of 16 rows of W, a warp per slice of k ---- */

template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS<T>) linear_kernel(LinearTerms a)
{
    enum { FLOATS = T * TILE_COLUMN_ROWS * TILE_ROWS };
    __shared__ float part[K_SLICES][FLOATS];
    unsigned own;
    const Matrix &mat = matrix_of(a, blockIdx.x, &own);
    int first_row = (int)(own / (unsigned)a.n_groups) * TILE_ROWS, slice = (int)threadIdx.x / WARP;
    int first = (int)(own % (unsigned)a.n_groups) * T * TILE_COLUMN_ROWS;
    int n = group_rows<T>(a, first), n_tiles = (n + TILE_COLUMN_ROWS - 1) / TILE_COLUMN_ROWS;
    uint32_t at[T];
    float sum[T][2] = {};
    group_offsets<T>(a.x, first, n, at);
    tile_sum<TYPE, T, 1>(tile_weight(mat.w, first_row), a.x, at, n_tiles, slice, slice + 1, sum);
    store_tile<T>(sum, n_tiles, part[slice]);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n * TILE_ROWS; i += TILE_THREADS) {
        int row = first_row + i % TILE_ROWS, m = first + i / TILE_ROWS;
        if (row < mat.w.rows) mat.y[m * mat.y_stride + row] = sum_slices(part[0] + i, FLOATS);
    }
}

/* ---- many rows ---- */

/* A block per 64 M rows of the one matrix and 64 of x. */
template <WeightType TYPE, int M, int TERMS>
static __global__ void __launch_bounds__(TILE_THREADS, 1) gemm_kernel(LinearTerms a)
{
    grid_wait();
    enum { W_ROWS = GemmStage<TYPE, M, TERMS>::W_ROWS, WARP_ROWS = M * TILE_ROWS };
    DYNAMIC_SHARED(unsigned char, stages);
    const Matrix &mat = a.matrix[0];
    int first_row = (int)(blockIdx.x / (unsigned)a.n_groups) * W_ROWS;
    int first = (int)(blockIdx.x % (unsigned)a.n_groups) * GEMM_X;
    int n = a.n - first < GEMM_X ? a.n - first : GEMM_X, x_row[GemmX<TERMS>::PIECES];
    GemmRows<M> rows;
    UNROLL
    for (int m = 0; m < M; m++)
        rows.w[m] = mat.w, rows.first[m] = first_row + m * TILE_ROWS;
    rows.step = WARP_ROWS;
    UNROLL
    for (int i = 0; i < GemmX<TERMS>::PIECES; i++)
        x_row[i] = first + (gemm_x_row<TERMS>(i) < n ? gemm_x_row<TERMS>(i) : n - 1);
    float sum[M][GEMM_OWN][2] = {};
    gemm_sum<TYPE, M, TERMS>(rows, a.x, x_row, n, stages, sum);

    int row = first_row + (int)threadIdx.x / WARP / GEMM_X_WARPS * WARP_ROWS + warp_lane() / 4;
    UNROLL
    for (int j = 0; j < GEMM_OWN; j++) {
        int m = first + gemm_own_row<TERMS>(j);
        if (m >= a.n) continue;
        float *y = mat.y + m * mat.y_stride;
        UNROLL
        for (int i = 0; i < M * 2; i++)
            if (row + i * 8 < mat.w.rows) y[row + i * 8] = sum[i / 2][j][i % 2];
    }
}

template <WeightType TYPE, int M, int TERMS>
static void launch_gemm_rows(const CudaContext *c, LinearTerms a)
{
    typedef GemmStage<TYPE, M, TERMS> S;
    a.n_groups = (a.n + GEMM_X - 1) / GEMM_X;
    int blocks = (a.matrix[0].w.rows + S::W_ROWS - 1) / S::W_ROWS * a.n_groups;
    launch(c, dim3((unsigned)blocks), TILE_THREADS, S::ALL_BYTES, gemm_kernel<TYPE, M, TERMS>, a);
}

/* One matrix; half as many of its rows a block where there would be fewer blocks than SMs. */
template <WeightType TYPE, int TERMS>
static void launch_gemm(const CudaContext *c, const LinearTerms &a)
{
    assert(a.n_matrices == 1);
    if ((a.matrix[0].w.rows + 127) / 128 * ((a.n + GEMM_X - 1) / GEMM_X) < GEMM_MIN_BLOCKS)
        launch_gemm_rows<TYPE, 1, TERMS>(c, a);
    else
        launch_gemm_rows<TYPE, 2, TERMS>(c, a);
}

/* ---- f32 ---- */

/* A warp per row of W and 8 rows of x. A lane adds k = 128 b + 4 lane + i, b then i ascending. */
static __global__ void linear_f32_kernel(Linear a, Matrix mat, int n_groups)
{
    grid_wait();
    int64_t unit = (int64_t)blockIdx.x * TILE_WARPS + threadIdx.x / WARP;
    int row = (int)(unit / n_groups), first = (int)(unit % n_groups) * F32_ROWS;
    const Weight &w = mat.w;
    if (row >= w.rows) return;
    int n = a.n - first < F32_ROWS ? a.n - first : F32_ROWS;
    const float *wr = (const float *)w.data + (int64_t)row * w.cols;
    const float *x = a.x + (int64_t)first * a.x_stride;
    float sum[F32_ROWS] = {};
    for (int b = 0; b < w.cols; b += K_BLOCK) {
        int k = b + warp_lane() * 4;
        UNROLL
        for (int i = 0; i < 4; i++) {
            if (k + i >= w.cols) continue;
            float wk = wr[k + i];
            UNROLL
            for (int m = 0; m < F32_ROWS; m++)
                if (m < n) sum[m] = fmaf(x[(int64_t)m * a.x_stride + k + i], wk, sum[m]);
        }
    }
    UNROLL
    for (int m = 0; m < F32_ROWS; m++) {
        if (m >= n) continue;
        float y = warp_sum(sum[m], WARP);
        if (warp_lane() == 0) mat.y[(first + m) * mat.y_stride + row] = y;
    }
}

static void linear_f32(const CudaContext *c, const Linear *a, const Matrix &mat)
{
    int n_groups = (a->n + F32_ROWS - 1) / F32_ROWS;
    int64_t blocks = ((int64_t)mat.w.rows * n_groups + TILE_WARPS - 1) / TILE_WARPS;
    launch(c, dim3((unsigned)blocks), TILE_THREADS, 0, linear_f32_kernel, *a, mat, n_groups);
}

/* ---- launching ---- */

template <WeightType TYPE, int T> static void launch_tiles(const CudaContext *c, LinearTerms a)
{
    a.n_groups = (a.n + T * TILE_COLUMN_ROWS - 1) / (T * TILE_COLUMN_ROWS);
    launch(c, dim3(place_tiles(&a)), TILE_THREADS, 0, linear_kernel<TYPE, T>, a);
}

/* More rows than a group: each matrix alone. */
template <WeightType TYPE> static void launch_many(const CudaContext *c, const LinearTerms &a)
{
    for (int i = 0; i < a.n_matrices; i++) {
        LinearTerms one = a;
        one.n_matrices = 1;
        one.matrix[0] = a.matrix[i];
        if (one.matrix[0].w.rows < GEMM_MIN_ROWS)
            launch_tiles<TYPE, 16>(c, one);
        else if (TYPE == WEIGHT_FP8 && a.prefill == PREFILL_FP8)
            launch_gemm<WEIGHT_FP8, 1>(c, one);
        else
            launch_gemm<TYPE, 2>(c, one);
    }
}

/* Tiles of all rows of x, a group's at most. */
template <WeightType TYPE> static void launch_group(const CudaContext *c, const LinearTerms &a)
{
    if (a.n <= 4)
        launch_tiles<TYPE, 1>(c, a);
    else if (a.n <= 8)
        launch_tiles<TYPE, 2>(c, a);
    else if (a.n <= 16)
        launch_tiles<TYPE, 4>(c, a);
    else if (a.n <= 32)
        launch_tiles<TYPE, 8>(c, a);
    else
        launch_tiles<TYPE, 16>(c, a);
}

/* More rows of x than linear_few.h takes at a time, and of W so few that a launch of tiles, 8 rows
 * of x each, has all its blocks on a GPU at once: one launch is faster than one for each 8. */
static int is_small(LinearTerms a)
{
    a.n_groups = (a.n + FEW_ROWS - 1) / FEW_ROWS;
    return a.n_groups > 1 && place_tiles(&a) <= TILE_BLOCKS<2> * FEW_SMS;
}

template <WeightType TYPE> static void launch_type(const CudaContext *c, const LinearTerms &a)
{
    if (a.order == TERMS_BY_ROW)
        launch_wgmma(c, a);
    else if (a.n > GROUP_ROWS)
        launch_many<TYPE>(c, a);
    else if (is_small(a))
        launch_tiles<TYPE, 2>(c, a);
    else if (can_few(a))
        launch_few_groups<TYPE>(c, a);
    else
        launch_group<TYPE>(c, a);
}

/* ---- for a library: terms as plain rows ---- */

/* A thread per value. */
static __global__ void split_plain_kernel(const float *x, int x_stride, int cols, int64_t n_values,
                                          uint16_t *high, uint16_t *low)
{
    grid_wait();
    int64_t i = (int64_t)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (i >= n_values) return;
    float v = x[i / cols * x_stride + i % cols];
    uint32_t h = bf16_pair(v, 0.0f);
    high[i] = (uint16_t)h;
    low[i] = (uint16_t)bf16_pair(v - bf16_low(h), 0.0f);
}

extern "C" void CUDA_NAME(split_bf16)(const CudaContext *c, int n, int cols, const float *x,
                                      int x_stride, uint16_t *high, uint16_t *low)
{
    int64_t n_values = (int64_t)n * cols, blocks = (n_values + TILE_THREADS - 1) / TILE_THREADS;
    launch(c, dim3((unsigned)blocks), TILE_THREADS, 0, split_plain_kernel, x, x_stride, cols,
           n_values, high, low);
}

/* A warp per 128 of a row, four neighbours a lane. */
static __global__ void round_fp8_kernel(int n, int n_all, int cols, const float *x, int x_stride,
                                        uint8_t *code, float *scale)
{
    grid_wait();
    int n_blocks = cols / K_BLOCK;
    int64_t unit = (int64_t)blockIdx.x * TILE_WARPS + threadIdx.x / WARP, row = unit / n_blocks;
    if (row >= n_all) return;
    int block = (int)(unit % n_blocks), k = block * K_BLOCK + warp_lane() * 4;
    float v[2][2];
    UNROLL
    for (int i = 0; i < 4; i++)
        v[i / 2][i % 2] = row < n ? x[row * x_stride + k + i] : 0.0f;
    float of_block = fp8_warp_scale(v), inverse = 1.0f / of_block;
    uint32_t low = fp8_codes(v[0][0] * inverse, v[0][1] * inverse),
             high = fp8_codes(v[1][0] * inverse, v[1][1] * inverse);
    *(uint32_t *)(void *)(code + row * cols + k) = low | high << 16;
    if (warp_lane() == 0) scale[(int64_t)block * n_all + row] = of_block;
}

extern "C" void CUDA_NAME(round_fp8)(const CudaContext *c, int n, int n_all, int cols,
                                     const float *x, int x_stride, uint8_t *code, float *scale)
{
    assert(cols % K_BLOCK == 0 && n <= n_all);
    int64_t units = (int64_t)n_all * (cols / K_BLOCK);
    launch(c, dim3((unsigned)((units + TILE_WARPS - 1) / TILE_WARPS)), TILE_THREADS, 0,
           round_fp8_kernel, n, n_all, cols, x, x_stride, code, scale);
}

/* Rows whose terms fit the scratch, whole groups when not all do. */
static int chunk_rows(const CudaContext *c, int n, int cols)
{
    if (terms_bytes(n, cols) <= c->scratch_bytes) return n;
    int rows = (int)((c->scratch_bytes - 16) / terms_bytes(4, cols)) * 4;
    assert(rows > 0);
    return rows < GROUP_ROWS ? rows : rows / GROUP_ROWS * GROUP_ROWS;
}

/* The matrices of one type. */
static LinearTerms of_type(const Linear *a, WeightType type)
{
    LinearTerms t = {};
    for (const LinearProduct *p = a->product; p < a->product + a->n_products; p++)
        if (p->w->type == type) t.matrix[t.n_matrices++] = Matrix{*p->w, p->y, p->y_stride, 0};
    return t;
}

/* One type's, which then is done with the scratch. */
template <WeightType TYPE> static void linear_terms(const CudaContext *c, const Linear *a)
{
    LinearTerms t = of_type(a, TYPE);
    if (!t.n_matrices) return;
    int cols = t.matrix[0].w.cols, chunk = chunk_rows(c, a->n, cols);
    int is_fp8 = TYPE == WEIGHT_FP8 && a->prefill == PREFILL_FP8;
    t.order = order_of(c, TYPE, t, a->n);
    t.prefill = a->prefill;
    int kind = term_kind(TYPE, t.order);
    int is_split = !is_fp8 && find_terms(c, kind, a->x, a->n, cols, a->x_stride, &t.x);
    if (is_split) chunk = a->n;
    for (int i = 0; i < a->n; i += chunk) {
        t.n = a->n - i < chunk ? a->n - i : chunk;
        if (!is_split) {
            t.x = terms_in(c->scratch, t.n, cols);
            split_rows(c, TYPE,
                       Split{a->x + (int64_t)i * a->x_stride, a->x_stride, t.n, cols, t.x,
                             a->prefill, t.order});
        }
        launch_type<TYPE>(c, t);
        for (int m = 0; m < t.n_matrices; m++)
            t.matrix[m].y += t.n * t.matrix[m].y_stride;
    }
}

/*
 * Matrices of both 16-bit types in one launch, where both terms of a group are there: small ones
 * in bf16 then run beside large ones in FP8. 0 where they are not.
 */
static int linear_both(const CudaContext *c, const Linear *a)
{
    LinearTerms t = of_type(a, WEIGHT_FP8), bf16 = of_type(a, WEIGHT_BF16);
    if (!t.n_matrices || !bf16.n_matrices) return 0;
    if (a->n > GROUP_ROWS || !can_few(t) || !can_few(bf16)) return 0;
    if (a->prefill == PREFILL_FP8 || order_of(c, WEIGHT_FP8, t, a->n) == TERMS_BY_ROW) return 0;
    int cols = t.matrix[0].w.cols;
    int has_bf16 = find_terms(c, KIND_BF16, a->x, a->n, cols, a->x_stride, &t.x);
    if (!find_terms(c, KIND_FP8, a->x, a->n, cols, a->x_stride, &t.x_fp8) || !has_bf16) return 0;
    for (int i = 0; i < bf16.n_matrices; i++)
        t.matrix[t.n_matrices++] = bf16.matrix[i];
    t.n = a->n;
    launch_few_groups<WEIGHT_NONE>(c, t);
    return 1;
}

extern "C" void CUDA_NAME(linear)(const CudaContext *c, const Linear *a)
{
    assert(a->n_products >= 1 && a->n_products <= MAX_PRODUCTS);
    for (int i = 0; i < a->n_products; i++) {
        assert(a->product[i].w->type >= WEIGHT_F32 && a->product[i].w->type <= WEIGHT_FP8);
        assert(a->product[i].w->cols == a->product[0].w->cols);
    }
    for (int i = 0; i < a->n_products; i++)
        terms_overwritten(c, a->product[i].y, a->n, a->product[i].y_stride);
    LinearTerms f32 = of_type(a, WEIGHT_F32);
    for (int i = 0; i < f32.n_matrices; i++)
        linear_f32(c, a, f32.matrix[i]);
    if (linear_both(c, a)) return;
    linear_terms<WEIGHT_BF16>(c, a);
    linear_terms<WEIGHT_FP8>(c, a);
}
