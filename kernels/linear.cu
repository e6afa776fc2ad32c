/*
 * linear.cu: y = x W' for a few or many rows.
 *
 * Where nobody has left x as two 16-bit terms (terms.h), first a small kernel makes them, once for
 * all matrices of a type. Then one of three schedules of the same sum. Up to 64 rows of x at a
 * time, with the blocks of all matrices of the type in one grid, one matrix after the other:
 * - a block takes 16 rows of W at a time, each of its 8 warps one slice of k; partial sums meet in
 *   shared memory (2 KB for each 4 rows of x). Up to 8 rows of x at most two blocks for each SM
 *   walk through all tiles, and while one tile's sums meet the next one's weights are on their way.
 *   Before they wait for x they ask L2 for the first 25 MB of W: so the memory is busy while
 *   launches before this one, a few microseconds each, move next to nothing.
 * - a block owns 128 rows of W, each warp 16 of them and all of k, so that what it reads of x
 *   serves all its warps from L1. For many rows, when that still makes blocks for all SMs.
 * For more rows than 64 both go through shared memory (gemm_tile.h), still the same sum, a launch
 * for each matrix.
 * In the first two a thread keeps 128 bytes (bf16, FP8 up to 4 rows) or 64 (FP8) of W in flight
 * while the block before them is multiplied: 32 or 16 KB per block of 256 threads. 4.3 TB/s over
 * 132 SMs and a microsecond of latency are 33 KB an SM.
 *
 * Floor: bytes of W over the memory's rate, up to some 32 rows; then two mma per 8 products of 4
 * rows. Groups of 64 rows run side by side on the same rows of W, which so come from L2.
 *
 * f32 matrices are small (routers, gates): a launch for each, a warp per row of W and 8 rows of x,
 * lanes along k.
 */
#include "kernels/gemm_library.h"
#include "kernels/gemm_tile.h"

#include <assert.h>

enum {
    GROUP_ROWS = 64,      /* of x, that share a pass over W */
    BOTH_ROWS = 8,        /* of x, for which matrices of both types share a launch */
    WALK_BLOCKS = 264,    /* two for each of a Hopper's SMs; how many shows in no bit */
    ASK_BYTES = 96 << 10, /* of W, that a block asks for ahead: 25 MB in all, half of L2 */
    ASK_PIECE = 16 << 10,
    WIDE_MIN_BLOCKS = 128, /* SMs of a large GPU, more or less: a schedule, not a result */
    F32_ROWS = 8,
    GEMM_MIN_ROWS = 48, /* of W: below this most of a block would have nothing to do */
};

typedef struct {
    Weight w;
    float *y;
    int64_t y_stride;
    unsigned end; /* of its tiles or blocks; they begin where the matrix before it ends */
} Matrix;

/* The matrices of one type, or of both 16-bit ones, those in bf16 last, and what they multiply. */
typedef struct {
    int n_matrices;
    Matrix matrix[MAX_PRODUCTS];
    unsigned end_fp8, end; /* of the tiles of FP8, of all: of linear_kernel */
    int aligned;           /* rows of all can be loaded 16 bytes at once */
    Terms x;               /* of the type; of bf16 */
    Terms x_fp8;           /* of both */
    int n;
    int n_groups; /* of 4 T rows */
    int prefill;  /* backend.h */
} LinearTerms;

/* The matrix that a tile or block of the launch belongs to; *own: which of that matrix's it is. */
static __device__ __forceinline__ const Matrix &matrix_of(const LinearTerms &a, unsigned tile,
                                                          unsigned *own)
{
    int i = 0;
    while (i + 1 < a.n_matrices && tile >= a.matrix[i].end)
        i++;
    *own = tile - (i ? a.matrix[i - 1].end : 0);
    return a.matrix[i];
}

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

/* Blocks of k that a warp has on their way; as registers allow. */
template <WeightType TYPE, int T, int ALIGNED>
static constexpr int WALK_AHEAD = (TYPE == WEIGHT_FP8) && (ALIGNED) && (T == 1) ? 2 : 1;

/* Partial sums of a tile; there are two sets, for the next tile's are stored while these are added,
 * where a block has more than one tile. */
template <int T> struct TileParts {
    enum { FLOATS = T * TILE_COLUMN_ROWS * TILE_ROWS, SETS = T <= 2 ? 2 : 1 };
    float sum[SETS][K_SLICES][FLOATS];
};

/* y of a tile, from the sums of this warp's slice and the others'. */
template <int T>
static __device__ __forceinline__ void finish_tile(const LinearTerms &a, unsigned tile,
                                                   const float (&sum)[T][2],
                                                   float (*part)[TileParts<T>::FLOATS])
{
    unsigned own;
    const Matrix &mat = matrix_of(a, tile, &own);
    int first_row = (int)(own / (unsigned)a.n_groups) * TILE_ROWS;
    int first = (int)(own % (unsigned)a.n_groups) * T * TILE_COLUMN_ROWS;
    int n = group_rows<T>(a, first), n_tiles = (n + TILE_COLUMN_ROWS - 1) / TILE_COLUMN_ROWS;
    store_tile<T>(sum, n_tiles, part[threadIdx.x / WARP]);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n * TILE_ROWS; i += TILE_THREADS) {
        int row = first_row + i % TILE_ROWS, m = first + i / TILE_ROWS;
        if (row < mat.w.rows)
            mat.y[m * mat.y_stride + row] = sum_slices(part[0] + i, TileParts<T>::FLOATS);
    }
}

/* Where this lane finds its columns of a tile's rows of x; returns how many column tiles. */
template <int T>
static __device__ __forceinline__ int tile_columns(const LinearTerms &a, const Terms &x,
                                                   unsigned tile, uint32_t (&at)[T])
{
    unsigned own;
    matrix_of(a, tile, &own);
    int first = (int)(own % (unsigned)a.n_groups) * T * TILE_COLUMN_ROWS;
    int n = group_rows<T>(a, first);
    group_offsets<T>(x, first, n, at);
    return (n + TILE_COLUMN_ROWS - 1) / TILE_COLUMN_ROWS;
}

/* What a warp loads next: block `block` of its slice, of tile `tile`. */
typedef struct {
    TileWeight w;
    unsigned tile;
    int block;
} Cursor;

/* Where a warp is on its way through tiles up to end_tile, gridDim.x apart, along its slice. */
template <int T> struct TileWalk {
    Cursor ahead;
    unsigned tile, end_tile;
    unsigned n_asked;  /* tiles, from the one at hand on, that L2 was asked for */
    int begin, end, b; /* k-blocks of the slice, and the next to be multiplied */
    int n_tiles, set;
    uint32_t at[T];
    float acc[T][4];
};

/* Asks L2 for a tile; for the begin of each slice alone where all of it is more than ASK_BYTES. */
template <int T>
static __device__ __forceinline__ void ask_tile(const LinearTerms &a, const TileWalk<T> &w,
                                                unsigned tile)
{
    enum { RUN = ASK_BYTES / (TILE_ROWS * K_SLICES) };
    if (tile >= w.end_tile) return;
    unsigned own;
    const Weight &m = matrix_of(a, tile, &own).w;
    int first_row = (int)(own / (unsigned)a.n_groups) * TILE_ROWS, rows = m.rows - first_row;
    int row_bytes = (int)weight_row_bytes(&m), element = row_bytes / m.cols;
    const unsigned char *data = (const unsigned char *)m.data + (int64_t)first_row * row_bytes;
    if (rows > TILE_ROWS) rows = TILE_ROWS;
    if (w.n_asked) {
        /* the last warp, which has work where any has */
        int at = ((int)threadIdx.x - TILE_THREADS + WARP) * ASK_PIECE;
        int left = rows * row_bytes - at;
        if (at >= 0 && left > 0)
            prefetch_l2(data + at, (uint32_t)(left < ASK_PIECE ? left : ASK_PIECE));
        return;
    }
    int from = w.begin * K_BLOCK * element, end = w.end * K_BLOCK * element;
    if (end > row_bytes) end = row_bytes;
    if (end > from + RUN) end = from + RUN;
    if (warp_lane() < rows && from < end)
        prefetch_l2(data + (int64_t)warp_lane() * row_bytes + from, (uint32_t)(end - from));
}

/* The first tiles, as many as fit ASK_BYTES. */
template <int T>
static __device__ __forceinline__ void ask_first(const LinearTerms &a, TileWalk<T> *w)
{
    unsigned own;
    const Weight &m = matrix_of(a, w->tile, &own).w;
    w->n_asked = ASK_BYTES / (TILE_ROWS * (unsigned)weight_row_bytes(&m));
    for (unsigned i = 0; i < (w->n_asked ? w->n_asked : 1); i++)
        ask_tile<T>(a, *w, w->tile + i * gridDim.x);
}

template <int T>
static __device__ __forceinline__ void begin_tile(const LinearTerms &a, const Terms &x,
                                                  TileWalk<T> *w)
{
    w->n_tiles = tile_columns<T>(a, x, w->tile, w->at);
    w->b = w->begin;
    UNROLL
    for (int j = 0; j < T; j++)
        w->acc[j][0] = w->acc[j][1] = w->acc[j][2] = w->acc[j][3] = 0;
}

static __device__ __forceinline__ void aim(const LinearTerms &a, Cursor *c)
{
    unsigned own;
    const Matrix &mat = matrix_of(a, c->tile, &own);
    c->w = tile_weight(mat.w, (int)(own / (unsigned)a.n_groups) * TILE_ROWS);
}

/* Loads what comes next; nothing past the last tile. */
template <WeightType TYPE, int T, int ALIGNED>
static __device__ __forceinline__ void load_next(const LinearTerms &a, TileWalk<T> *w,
                                                 WeightBlock<TYPE> *out, float *scale)
{
    Cursor *c = &w->ahead;
    if (c->tile >= w->end_tile) return;
    load_block<TYPE, ALIGNED>(c->w, c->block, out);
    *scale = TYPE == WEIGHT_FP8 ? c->w.scale[c->block] : 1;
    if (++c->block < w->end) return;
    c->block = w->begin;
    c->tile += gridDim.x;
    if (c->tile < w->end_tile) aim(a, c);
}

/* A warp whose slice is empty passes the tiles with sums of 0: 1 when it has done so. */
template <int T>
static __device__ __forceinline__ int pass_tiles(const LinearTerms &a, const Terms &x,
                                                 TileWalk<T> *w, TileParts<T> *parts)
{
    const float none[T][2] = {};
    begin_tile<T>(a, x, w);
    if (w->begin < w->end) return 0;
    for (; w->tile < w->end_tile; w->tile += gridDim.x) {
        finish_tile<T>(a, w->tile, none, parts->sum[w->set]);
        w->set = (w->set + 1) % TileParts<T>::SETS;
    }
    return 1;
}

/* Multiplies a k-block that has come, whose registers the next one is loaded to. 1 when that was
 * the last tile's last. */
template <WeightType TYPE, int T, int ALIGNED>
static __device__ __forceinline__ int walk_step(const LinearTerms &a, const Terms &x,
                                                TileWalk<T> *w, WeightBlock<TYPE> *next,
                                                float *next_scale, TileParts<T> *parts)
{
    uint32_t weights[K_STEPS][4];
    float scale = *next_scale, sum[T][2];
    fragments<TYPE>(*next, weights);
    load_next<TYPE, T, ALIGNED>(a, w, next, next_scale);
    UNROLL
    for (int j = 0; j < T; j++)
        if (T <= 2 || j < w->n_tiles) {
            float unit = block_unit<TYPE>(x, w->at[j], w->b);
            const unsigned char *terms =
                x.data + (size_t)w->at[j] * 16 + (size_t)w->b * TERM_BLOCK_BYTES;
            block_product<TYPE>(weights, load_terms(terms), scale * unit, w->acc[j]);
        }
    if (++w->b < w->end) return 0;
    UNROLL
    for (int j = 0; j < T; j++) {
        sum[j][0] = w->acc[j][0] + w->acc[j][1];
        sum[j][1] = w->acc[j][2] + w->acc[j][3];
    }
    finish_tile<T>(a, w->tile, sum, parts->sum[w->set]);
    w->set = (w->set + 1) % TileParts<T>::SETS;
    w->tile += gridDim.x;
    if (w->tile >= w->end_tile) return 1;
    if (ALIGNED) ask_tile<T>(a, *w, w->tile + (w->n_asked ? w->n_asked - 1 : 0) * gridDim.x);
    begin_tile<T>(a, x, w);
    return 0;
}

/* Tiles of one type from `tile` to end_tile; the block has one at least. WAIT: nobody has called
 * grid_wait. */
template <WeightType TYPE, int T, int ALIGNED>
static __device__ __forceinline__ void walk_tiles(const LinearTerms &a, const Terms &x,
                                                  unsigned tile, unsigned end_tile, int wait,
                                                  TileParts<T> *parts)
{
    int slice = (int)threadIdx.x / WARP;
    TileWalk<T> w = {};
    w.begin = slice_begin(x.n_blocks, slice), w.end = slice_begin(x.n_blocks, slice + 1);
    w.tile = tile, w.end_tile = end_tile;
    w.ahead.tile = w.begin < w.end ? tile : end_tile;
    w.ahead.block = w.begin;
    aim(a, &w.ahead);
    if constexpr (WALK_AHEAD<TYPE, T, ALIGNED> == 2) {
        WeightBlock<TYPE> even, odd;
        float even_scale = 1, odd_scale = 1;
        load_next<TYPE, T, ALIGNED>(a, &w, &even, &even_scale);
        load_next<TYPE, T, ALIGNED>(a, &w, &odd, &odd_scale);
        ask_first<T>(a, &w);
        if (wait) grid_wait();
        if (pass_tiles<T>(a, x, &w, parts)) return;
        while (!walk_step<TYPE, T, ALIGNED>(a, x, &w, &even, &even_scale, parts) &&
               !walk_step<TYPE, T, ALIGNED>(a, x, &w, &odd, &odd_scale, parts)) {
        }
    } else {
        WeightBlock<TYPE> next;
        float next_scale = 1;
        load_next<TYPE, T, ALIGNED>(a, &w, &next, &next_scale);
        if (ALIGNED) ask_first<T>(a, &w);
        if (wait) grid_wait();
        if (pass_tiles<T>(a, x, &w, parts)) return;
        while (!walk_step<TYPE, T, ALIGNED>(a, x, &w, &next, &next_scale, parts)) {
        }
    }
}

/* WEIGHT_NONE: of FP8, then of bf16. */
template <WeightType TYPE, int T, int ALIGNED>
static __device__ __forceinline__ void walk_types(const LinearTerms &a, TileParts<T> *parts)
{
    if (TYPE != WEIGHT_NONE) {
        walk_tiles<TYPE == WEIGHT_FP8 ? WEIGHT_FP8 : WEIGHT_BF16, T, ALIGNED>(a, a.x, blockIdx.x,
                                                                              a.end, 1, parts);
        return;
    }
    unsigned tile = blockIdx.x;
    int is_first = tile >= a.end_fp8;
    if (!is_first) {
        walk_tiles<WEIGHT_FP8, T, ALIGNED>(a, a.x_fp8, tile, a.end_fp8, 1, parts);
        tile += (a.end_fp8 - tile + gridDim.x - 1) / gridDim.x * gridDim.x;
        if (tile >= a.end) return;
        __syncthreads(); /* the last tile's sums are added */
    }
    walk_tiles<WEIGHT_BF16, T, ALIGNED>(a, a.x, tile, a.end, is_first, parts);
}

template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS<T>) linear_kernel(LinearTerms a)
{
    __shared__ TileParts<T> parts;
    if (a.aligned)
        walk_types<TYPE, T, 1>(a, &parts);
    else
        walk_types<TYPE, T, 0>(a, &parts);
}

/* ---- 128 rows of W ---- */

/* A block per 128 rows of W and group, a warp per 16 of them. */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS<T>)
    linear_wide_kernel(LinearTerms a)
{
    unsigned block;
    const Matrix &mat = matrix_of(a, blockIdx.x, &block);
    int tile = (int)(block / (unsigned)a.n_groups) * TILE_WARPS + (int)threadIdx.x / WARP;
    int first_row = tile * TILE_ROWS,
        first = (int)(block % (unsigned)a.n_groups) * T * TILE_COLUMN_ROWS;
    if (first_row >= mat.w.rows) {
        grid_wait();
        return;
    }
    int n = group_rows<T>(a, first), n_tiles = (n + TILE_COLUMN_ROWS - 1) / TILE_COLUMN_ROWS;
    uint32_t at[T];
    float sum[T][2] = {};
    group_offsets<T>(a.x, first, n, at);
    tile_sum<TYPE, T, 1>(tile_weight(mat.w, first_row), a.x, at, n_tiles, 0, K_SLICES, sum);

    int row = first_row + warp_lane() / 4;
    UNROLL
    for (int j = 0; j < T; j++) {
        int m = first + j * TILE_COLUMN_ROWS + warp_lane() % 4;
        if (m >= a.n) continue;
        if (row < mat.w.rows) mat.y[m * mat.y_stride + row] = sum[j][0];
        if (row + 8 < mat.w.rows) mat.y[m * mat.y_stride + row + 8] = sum[j][1];
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
    if ((a.matrix[0].w.rows + 127) / 128 * ((a.n + GEMM_X - 1) / GEMM_X) < WIDE_MIN_BLOCKS)
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

/* Tiles or blocks of w_rows rows of W, and a group of x, for all matrices; returns how many. */
static unsigned place_tiles(LinearTerms *a, int w_rows)
{
    a->end = a->end_fp8 = 0;
    for (int i = 0; i < a->n_matrices; i++) {
        const Weight &w = a->matrix[i].w;
        a->end += (unsigned)((w.rows + w_rows - 1) / w_rows) * (unsigned)a->n_groups;
        a->matrix[i].end = a->end;
        if (w.type == WEIGHT_FP8) a->end_fp8 = a->end;
    }
    return a->end;
}

static int all_aligned(const LinearTerms &a)
{
    for (int i = 0; i < a.n_matrices; i++)
        if (!weight_is_aligned(a.matrix[i].w)) return 0;
    return 1;
}

/* Blocks that share n tiles out evenly: all end together, and none runs alone at the end. */
static unsigned walk_blocks(unsigned n)
{
    unsigned each = (n + WALK_BLOCKS - 1) / WALK_BLOCKS;
    return (n + each - 1) / each;
}

template <WeightType TYPE, int T> static void launch_tiles(const CudaContext *c, LinearTerms a)
{
    a.n_groups = (a.n + T * TILE_COLUMN_ROWS - 1) / (T * TILE_COLUMN_ROWS);
    if constexpr (T >= 4) {
        unsigned wide = place_tiles(&a, TILE_WARPS * TILE_ROWS);
        if (wide >= WIDE_MIN_BLOCKS) {
            launch(c, dim3(wide), TILE_THREADS, 0, linear_wide_kernel<TYPE, T>, a);
            return;
        }
    }
    unsigned blocks = place_tiles(&a, TILE_ROWS);
    a.aligned = all_aligned(a);
    if (TileParts<T>::SETS > 1) blocks = walk_blocks(blocks);
    launch(c, dim3(blocks), TILE_THREADS, 0, linear_kernel<TYPE, T>, a);
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

template <WeightType TYPE> static void launch_more(const CudaContext *c, const LinearTerms &a)
{
    if (a.n > GROUP_ROWS)
        launch_many<TYPE>(c, a);
    else if (a.n <= 16)
        launch_tiles<TYPE, 4>(c, a);
    else if (a.n <= 32)
        launch_tiles<TYPE, 8>(c, a);
    else
        launch_tiles<TYPE, 16>(c, a);
}

template <WeightType TYPE> static void launch_type(const CudaContext *c, const LinearTerms &a)
{
    if (a.n <= 4) {
        launch_tiles<TYPE, 1>(c, a);
    } else if (a.n <= 8) {
        launch_tiles<TYPE, 2>(c, a);
    } else if constexpr (TYPE != WEIGHT_NONE) {
        launch_more<TYPE>(c, a);
    }
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
    int is_split = !is_fp8 && find_terms(c, TYPE, a->x, a->n, cols, a->x_stride, &t.x);
    t.prefill = a->prefill;
    if (is_split) chunk = a->n;
    for (int i = 0; i < a->n; i += chunk) {
        t.n = a->n - i < chunk ? a->n - i : chunk;
        if (!is_split) {
            t.x = terms_in(c->scratch, t.n, cols);
            split_rows(
                c, TYPE,
                Split{a->x + (int64_t)i * a->x_stride, a->x_stride, t.n, cols, t.x, a->prefill});
        }
        launch_type<TYPE>(c, t);
        for (int m = 0; m < t.n_matrices; m++)
            t.matrix[m].y += t.n * t.matrix[m].y_stride;
    }
}

/*
 * Matrices of both 16-bit types in one launch, where both terms of a few rows are there: small ones
 * in bf16 then run beside large ones in FP8. 0 where they are not.
 */
static int linear_both(const CudaContext *c, const Linear *a)
{
    LinearTerms t = of_type(a, WEIGHT_FP8), bf16 = of_type(a, WEIGHT_BF16);
    if (!t.n_matrices || !bf16.n_matrices || a->n > BOTH_ROWS) return 0;
    if (a->prefill == PREFILL_FP8) return 0;
    int cols = t.matrix[0].w.cols;
    int has_bf16 = find_terms(c, WEIGHT_BF16, a->x, a->n, cols, a->x_stride, &t.x);
    if (!find_terms(c, WEIGHT_FP8, a->x, a->n, cols, a->x_stride, &t.x_fp8) || !has_bf16) return 0;
    for (int i = 0; i < bf16.n_matrices; i++)
        t.matrix[t.n_matrices++] = bf16.matrix[i];
    t.n = a->n;
    launch_type<WEIGHT_NONE>(c, t);
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
