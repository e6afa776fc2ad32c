/*
 * moe.cu: the routed experts.
 *
 * Up to 512 rows at a time, in five launches whose grids n and the shapes fix:
 * - plan, one block: which rows chose which expert, as bits; then pairs (row, choice) in ascending
 *   expert and row, cut into units of one expert and up to 64 of its rows;
 * - split: the terms of x (linear_tile.h, which defines the sums);
 * - up: a block per unit and 16 of the experts' width, a warp per slice of k, gate then up;
 *   h = silu(gate) * up of each pair;
 * - split: the terms of h, where h lies;
 * - down: a block per 16 outputs, which walks through all units, 8 at a time, one a warp, and adds
 *   weight * (down h) to each row in ascending expert; the shared expert last. So no atomics, and
 *   nothing of what other rows chose shows in a row.
 * Blocks of `up` beyond the number of units leave at once.
 *
 * Prompts, of which an expert has many rows: a block per unit and 64 of the width, gate and up,
 * then a block per unit and 128 outputs, both as gemm_tile.h does it; down h goes to memory, and a
 * last kernel adds up as above. The same sums, so which of the two runs is no matter.
 *
 * Floor: each used expert's weights once, over the memory's rate.
 */
#include "kernels/gemm_tile.h"

#include <assert.h>

enum {
    MOE_GROUP = 512,    /* rows at a time: bounds what a block keeps in shared memory */
    GEMM_MEAN_ROWS = 8, /* of an expert: below, most of a unit of 64 rows would be empty */
};

/* ---- the plan ---- */

/* An expert and n of its pairs, from `first` on in the order of pairs. */
typedef struct {
    int32_t expert, first, n;
} Unit;

/* One choice of one row. */
typedef struct {
    int32_t row;
    float weight;
} Pair;

/* What the kernels of a group share. */
typedef struct {
    MoeFfn a;
    int unit_rows;    /* a unit has at most */
    Pair *pair;       /* [n * n_top], ascending in expert, then row */
    Unit *unit;       /* [*n_units] */
    int32_t *n_units; /* [1] */
    Terms x, h;       /* of rows; of pairs, in their order */
    int32_t *place;   /* [n * n_top]: of each choice, its pair; prompts only, else NULL */
    float *y;         /* [n * n_top][dim]: down h of each pair, in their order */
} Plan;

/* The sum of x over lower threads of the block; *total over all. */
static __device__ int block_prefix(int x, int *total)
{
    __shared__ int part[TILE_WARPS];
    int lane = warp_lane(), warp = (int)threadIdx.x / WARP, sum = x;
    for (int d = 1; d < WARP; d *= 2) {
        int below = (int)warp_shuffle((uint32_t)sum, (lane - d) & (WARP - 1));
        if (lane >= d) sum += below;
    }
    if (lane == WARP - 1) part[warp] = sum;
    __syncthreads();
    int before = 0;
    *total = 0;
    for (int w = 0; w < TILE_WARPS; w++) {
        if (w < warp) before += part[w];
        *total += part[w];
    }
    __syncthreads();
    return before + sum - x;
}

/* Bits of n words. */
static __device__ int count_bits(const uint32_t *word, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += __popc(word[i]);
    return count;
}

/* One block. Shared: for each expert a bit per row and the place of its first pair. */
static __global__ void plan_kernel(Plan p)
{
    grid_wait();
    DYNAMIC_SHARED(uint32_t, chosen);
    int n_words = (p.a.n + 31) / 32, n_pairs = p.a.n * p.a.n_top;
    uint32_t *start = chosen + p.a.n_experts * n_words;
    for (int i = (int)threadIdx.x; i < p.a.n_experts * n_words; i += TILE_THREADS)
        chosen[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_pairs; i += TILE_THREADS) {
        int row = i / p.a.n_top;
        atomicOr(&chosen[p.a.id[i] * n_words + row / 32], 1u << row % 32);
    }
    __syncthreads();

    int pairs = 0, units = 0; /* of lower experts */
    for (int e0 = 0; e0 < p.a.n_experts; e0 += TILE_THREADS) {
        int e = e0 + (int)threadIdx.x, n = 0, all_pairs, all_units;
        if (e < p.a.n_experts) n = count_bits(chosen + e * n_words, n_words);
        int first = pairs + block_prefix(n, &all_pairs);
        int unit = units + block_prefix((n + p.unit_rows - 1) / p.unit_rows, &all_units);
        if (e < p.a.n_experts) start[e] = (uint32_t)first;
        for (int i = 0; i < n; i += p.unit_rows)
            p.unit[unit++] = Unit{e, first + i, n - i < p.unit_rows ? n - i : p.unit_rows};
        pairs += all_pairs, units += all_units;
    }
    if (threadIdx.x == 0) *p.n_units = units;
    __syncthreads();

    for (int i = (int)threadIdx.x; i < n_pairs; i += TILE_THREADS) {
        int row = i / p.a.n_top;
        const uint32_t *word = chosen + p.a.id[i] * n_words;
        int rank = count_bits(word, row / 32) + __popc(word[row / 32] & ((1u << row % 32) - 1));
        int at = (int)start[p.a.id[i]] + rank;
        p.pair[at] = Pair{row, p.a.weight[i]};
        if (p.place) p.place[i] = at;
    }
}

/* ---- up ---- */

/* This lane's columns of a unit's tiles, the rows of x; past the last pair: as the last. */
template <int T>
static __device__ __forceinline__ void unit_offsets(const Plan &p, const Unit &u, int of_rows,
                                                    uint32_t (&at)[T])
{
    UNROLL
    for (int j = 0; j < T; j++) {
        int i = j * TILE_COLUMN_ROWS + warp_lane() / 8;
        i = u.first + (i < u.n ? i : u.n - 1);
        at[j] = of_rows ? term_offset(p.x, p.pair[i].row) : term_offset(p.h, i);
    }
}

/*
 * A block per unit and 16 rows of gate and up; shared: both partial sums of each slice. Rows past
 * width land in the padding of h, which the split makes zeros.
 */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, T == 1 ? 2 : 1) up_kernel(Plan p)
{
    grid_wait();
    enum { TILE_FLOATS = T * TILE_COLUMN_ROWS * TILE_ROWS };
    DYNAMIC_SHARED(float, part); /* [2][K_SLICES][TILE_FLOATS] */
    int n_row_tiles = (p.a.width + TILE_ROWS - 1) / TILE_ROWS;
    int unit = (int)blockIdx.x / n_row_tiles, slice = (int)threadIdx.x / WARP;
    int first_row = (int)blockIdx.x % n_row_tiles * TILE_ROWS;
    if (unit >= *p.n_units) return;
    Unit u = p.unit[unit];
    int n_tiles = (u.n + TILE_COLUMN_ROWS - 1) / TILE_COLUMN_ROWS;
    uint32_t at[T];
    unit_offsets<T>(p, u, 1, at);
    for (int m = 0; m < 2; m++) {
        const Weight *w = m ? &p.a.up[u.expert] : &p.a.gate[u.expert];
        float sum[T][2] = {};
        tile_sum<TYPE, T>(tile_weight(*w, first_row), p.x, at, n_tiles, slice, slice + 1, sum);
        store_tile<T>(sum, n_tiles, part + (m * K_SLICES + slice) * TILE_FLOATS);
    }
    __syncthreads();

    float *h = (float *)(void *)p.h.data;
    for (int i = (int)threadIdx.x; i < u.n * TILE_ROWS; i += TILE_THREADS) {
        int row = first_row + i % TILE_ROWS, at_pair = u.first + i / TILE_ROWS;
        float unit_x = p.x.unit[p.pair[at_pair].row];
        float gate = sum_slices(part + i, TILE_FLOATS) * unit_x;
        float up = sum_slices(part + K_SLICES * TILE_FLOATS + i, TILE_FLOATS) * unit_x;
        h[(int64_t)at_pair * p.h.n_blocks * K_BLOCK + row] = silu(gate) * up;
    }
}

/* ---- down ---- */

/* Where a column of a unit's product goes, and times what. */
typedef struct {
    int32_t row;
    float weight, unit;
} Column;

static __device__ __forceinline__ void load_columns(const Plan &p, const Unit &u, Column *column)
{
    for (int i = warp_lane(); i < u.n; i += WARP) {
        Pair pair = p.pair[u.first + i];
        column[i] = Column{pair.row, pair.weight, p.h.unit[u.first + i]};
    }
}

/* sums += weight * product for the rows of a unit; no row is there twice. */
static __device__ void add_unit(const Column *column, int n, const float *product, float *sums)
{
    for (int i = (int)threadIdx.x; i < n * TILE_ROWS; i += TILE_THREADS) {
        Column c = column[i / TILE_ROWS];
        float *sum = sums + c.row * TILE_ROWS + i % TILE_ROWS;
        *sum = fmaf(c.weight, product[i] * c.unit, *sum);
    }
}

/* out = sums + sigmoid(shared_gate) * shared, for 16 outputs of all rows. */
static __device__ void add_shared(const MoeFfn &a, int first_row, const float *sums)
{
    for (int i = (int)threadIdx.x; i < a.n * TILE_ROWS; i += TILE_THREADS) {
        int row = i / TILE_ROWS, d = first_row + i % TILE_ROWS;
        if (d >= a.dim) continue;
        int64_t at = (int64_t)row * a.dim + d;
        a.out[at] = fmaf(sigmoid(a.shared_gate[row]), a.shared[at], sums[i]);
    }
}

/* A block per 16 outputs; shared: the products of 8 units, then the sums of all rows. */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS<T>) down_kernel(Plan p)
{
    grid_wait();
    enum { TILE_X = T * TILE_COLUMN_ROWS, TILE_FLOATS = TILE_X * TILE_ROWS };
    __shared__ Column column[TILE_WARPS][TILE_X];
    __shared__ int n_columns[TILE_WARPS];
    DYNAMIC_SHARED(float, product); /* [TILE_WARPS][TILE_FLOATS], then sums [n][16] */
    float *sums = product + TILE_WARPS * TILE_FLOATS;
    int first_row = (int)blockIdx.x * TILE_ROWS, warp = (int)threadIdx.x / WARP;
    int n_units = *p.n_units;
    for (int i = (int)threadIdx.x; i < p.a.n * TILE_ROWS; i += TILE_THREADS)
        sums[i] = 0;
    for (int u0 = 0; u0 < n_units; u0 += TILE_WARPS) {
        if (u0 + warp < n_units) {
            Unit u = p.unit[u0 + warp];
            int n_tiles = (u.n + TILE_COLUMN_ROWS - 1) / TILE_COLUMN_ROWS;
            uint32_t at[T];
            float sum[T][2] = {};
            load_columns(p, u, column[warp]);
            if (warp_lane() == 0) n_columns[warp] = u.n;
            unit_offsets<T>(p, u, 0, at);
            tile_sum<TYPE, T>(tile_weight(p.a.down[u.expert], first_row), p.h, at, n_tiles, 0,
                              K_SLICES, sum);
            store_tile<T>(sum, n_tiles, product + warp * TILE_FLOATS);
        }
        __syncthreads();
        for (int w = 0; w < TILE_WARPS && u0 + w < n_units; w++) {
            add_unit(column[w], n_columns[w], product + w * TILE_FLOATS, sums);
            __syncthreads();
        }
    }
    add_shared(p.a, first_row, sums);
}

/* ---- prompts ---- */

/* A block per unit and 64 of the width; the first tile of a warp is gate's, the second up's. */
template <WeightType TYPE>
static __global__ void __launch_bounds__(TILE_THREADS, 1) up_gemm_kernel(Plan p)
{
    grid_wait();
    enum { BLOCK_ROWS = GEMM_W_WARPS * TILE_ROWS };
    DYNAMIC_SHARED(unsigned char, stages);
    int n_row_tiles = (p.a.width + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int unit = (int)blockIdx.x / n_row_tiles, x_row[X_PIECES];
    if (unit >= *p.n_units) return;
    Unit u = p.unit[unit];
    int first_row = (int)blockIdx.x % n_row_tiles * BLOCK_ROWS;
    GemmRows<2> rows = {{p.a.gate[u.expert], p.a.up[u.expert]}, {first_row, first_row}, TILE_ROWS};
    UNROLL
    for (int i = 0; i < X_PIECES; i++)
        x_row[i] = p.pair[u.first + (gemm_x_row(i) < u.n ? gemm_x_row(i) : u.n - 1)].row;
    float sum[2][GEMM_TILES][2] = {};
    gemm_sum<TYPE, 2>(rows, p.x, x_row, u.n, stages, sum);

    int warp = (int)threadIdx.x / WARP;
    int row = first_row + warp / GEMM_X_WARPS * TILE_ROWS + warp_lane() / 4;
    int i0 = warp % GEMM_X_WARPS * (GEMM_X / GEMM_X_WARPS) + warp_lane() % 4;
    float *h = (float *)(void *)p.h.data;
    UNROLL
    for (int j = 0; j < GEMM_TILES; j++) {
        int i = i0 + j * TILE_COLUMN_ROWS;
        if (i >= u.n) continue;
        float unit_x = p.x.unit[p.pair[u.first + i].row];
        float *out = h + (int64_t)(u.first + i) * p.h.n_blocks * K_BLOCK;
        UNROLL
        for (int k = 0; k < 2; k++)
            if (row + k * 8 < p.a.width)
                out[row + k * 8] = silu(sum[0][j][k] * unit_x) * (sum[1][j][k] * unit_x);
    }
}

/* A block per unit and 128 outputs. */
template <WeightType TYPE>
static __global__ void __launch_bounds__(TILE_THREADS, 1) down_gemm_kernel(Plan p)
{
    grid_wait();
    enum { WARP_ROWS = 2 * TILE_ROWS, BLOCK_ROWS = GEMM_W_WARPS * WARP_ROWS };
    DYNAMIC_SHARED(unsigned char, stages);
    int n_row_tiles = (p.a.dim + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int unit = (int)blockIdx.x / n_row_tiles, x_row[X_PIECES];
    if (unit >= *p.n_units) return;
    Unit u = p.unit[unit];
    int first_row = (int)blockIdx.x % n_row_tiles * BLOCK_ROWS;
    Weight w = p.a.down[u.expert];
    GemmRows<2> rows = {{w, w}, {first_row, first_row + TILE_ROWS}, WARP_ROWS};
    UNROLL
    for (int i = 0; i < X_PIECES; i++)
        x_row[i] = u.first + (gemm_x_row(i) < u.n ? gemm_x_row(i) : u.n - 1);
    float sum[2][GEMM_TILES][2] = {};
    gemm_sum<TYPE, 2>(rows, p.h, x_row, u.n, stages, sum);

    int warp = (int)threadIdx.x / WARP;
    int row = first_row + warp / GEMM_X_WARPS * WARP_ROWS + warp_lane() / 4;
    int i0 = warp % GEMM_X_WARPS * (GEMM_X / GEMM_X_WARPS) + warp_lane() % 4;
    UNROLL
    for (int j = 0; j < GEMM_TILES; j++) {
        int i = i0 + j * TILE_COLUMN_ROWS;
        if (i >= u.n) continue;
        float *y = p.y + (int64_t)(u.first + i) * p.a.dim, unit_h = p.h.unit[u.first + i];
        UNROLL
        for (int k = 0; k < 4; k++)
            if (row + k * 8 < p.a.dim) y[row + k * 8] = sum[k / 2][j][k % 2] * unit_h;
    }
}

/* A thread per output of a row: its experts' in ascending id, the shared one last. */
static __global__ void combine_kernel(Plan p, int n_parts)
{
    grid_wait();
    int64_t row = blockIdx.x / (unsigned)n_parts;
    int d = (int)(blockIdx.x % (unsigned)n_parts) * TILE_THREADS + (int)threadIdx.x;
    if (d >= p.a.dim) return;
    float sum = 0;
    for (int64_t i = row * p.a.n_top; i < (row + 1) * p.a.n_top; i++)
        sum = fmaf(p.a.weight[i], p.y[(int64_t)p.place[i] * p.a.dim + d], sum);
    int64_t at = row * p.a.dim + d;
    p.a.out[at] = fmaf(sigmoid(p.a.shared_gate[row]), p.a.shared[at], sum);
}

/* ---- f32 experts, without a plan: a warp per pair and output, lanes along k ---- */

static __device__ float warp_dot(const float *x, const float *y, int n)
{
    float sum = 0;
    for (int k = warp_lane(); k < n; k += WARP)
        sum = fmaf(x[k], y[k], sum);
    return warp_sum(sum, WARP);
}

static __device__ __forceinline__ const float *f32_row(const Weight &w, int row)
{
    return (const float *)w.data + (int64_t)row * w.cols;
}

/* h: [n * n_top][width] */
static __global__ void up_f32_kernel(MoeFfn a, float *h)
{
    grid_wait();
    int64_t i = (int64_t)blockIdx.x * TILE_WARPS + threadIdx.x / WARP;
    if (i >= (int64_t)a.n * a.n_top * a.width) return;
    int r = (int)(i % a.width), e = a.id[i / a.width];
    const float *x = a.x + i / a.width / a.n_top * a.dim;
    float gate = warp_dot(x, f32_row(a.gate[e], r), a.dim);
    float up = warp_dot(x, f32_row(a.up[e], r), a.dim);
    if (warp_lane() == 0) h[i] = silu(gate) * up;
}

static __global__ void down_f32_kernel(MoeFfn a, const float *h)
{
    grid_wait();
    int64_t i = (int64_t)blockIdx.x * TILE_WARPS + threadIdx.x / WARP, row = i / a.dim;
    if (row >= a.n) return;
    float sum = 0;
    for (int64_t pair = row * a.n_top; pair < (row + 1) * a.n_top; pair++) {
        const float *w = f32_row(a.down[a.id[pair]], (int)(i % a.dim));
        sum = fmaf(a.weight[pair], warp_dot(h + pair * a.width, w, a.width), sum);
    }
    if (warp_lane() == 0) a.out[i] = fmaf(sigmoid(a.shared_gate[row]), a.shared[i], sum);
}

/* ---- launching ---- */

static size_t round_16(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* A unit for each used expert, and one for each full unit_rows rows of one. */
static int max_units(const MoeFfn *a, int unit_rows)
{
    int n_pairs = a->n * a->n_top;
    int used = n_pairs < a->n_experts ? n_pairs : a->n_experts;
    int units = used + n_pairs / unit_rows;
    return units < n_pairs ? units : n_pairs;
}

/* 1 for so many rows that the prompts' kernels are faster. */
static int many_rows(const MoeFfn *a)
{
    return a->n > GEMM_X && a->n * a->n_top >= GEMM_MEAN_ROWS * a->n_experts;
}

/* Lays the plan of a's rows out in memory, which may be NULL; the bytes it takes. */
static size_t lay_out(Plan *p, const MoeFfn *a, int unit_rows, unsigned char *memory)
{
    int n_pairs = a->n * a->n_top;
    size_t x = terms_bytes(a->n, a->dim), h = terms_bytes(n_pairs, a->width);
    size_t pairs = round_16((size_t)n_pairs * sizeof(Pair));
    size_t units = round_16((size_t)max_units(a, unit_rows) * sizeof(Unit));
    if (memory)
        *p = Plan{*a,
                  unit_rows,
                  (Pair *)(void *)(memory + x + h),
                  (Unit *)(void *)(memory + x + h + pairs),
                  (int32_t *)(void *)(memory + x + h + pairs + units),
                  terms_in(memory, a->n, a->dim),
                  terms_in(memory + x, n_pairs, a->width),
                  NULL,
                  NULL};
    return x + h + pairs + units + 16;
}

/* What the prompts' kernels need after that. */
static size_t lay_out_many(Plan *p, const MoeFfn *a, unsigned char *memory)
{
    size_t n_pairs = (size_t)a->n * (size_t)a->n_top, place = round_16(n_pairs * sizeof(int32_t));
    if (memory) {
        p->place = (int32_t *)(void *)memory;
        p->y = (float *)(void *)(memory + place);
    }
    return place + n_pairs * (size_t)a->dim * sizeof(float);
}

static size_t plan_shared_bytes(const MoeFfn *a)
{
    return (size_t)a->n_experts * (size_t)((a->n + 31) / 32 + 1) * sizeof(uint32_t);
}

/* The terms of h, where h lies. */
static Split split_of_h(const Plan &p)
{
    return Split{(const float *)(void *)p.h.data, (int64_t)p.h.n_blocks * K_BLOCK, p.a.width, 1,
                 p.h};
}

template <WeightType TYPE> static void run_many(const CudaContext *c, const MoeFfn *a)
{
    Plan p;
    size_t used = lay_out(&p, a, GEMM_X, c->scratch);
    used += lay_out_many(&p, a, c->scratch + used);
    assert(used <= c->scratch_bytes);
    int units = max_units(a, GEMM_X), n_parts = (a->dim + TILE_THREADS - 1) / TILE_THREADS;
    launch(c, dim3(1), TILE_THREADS, plan_shared_bytes(a), plan_kernel, p);
    split_rows(c, TYPE, a->n, Split{a->x, a->dim, a->dim, split_parts(a->n, a->dim), p.x});
    launch(c, dim3((unsigned)(units * ((a->width + 63) / 64))), TILE_THREADS,
           GemmStage<TYPE, 2>::ALL_BYTES, up_gemm_kernel<TYPE>, p);
    split_rows(c, TYPE, a->n * a->n_top, split_of_h(p));
    launch(c, dim3((unsigned)(units * ((a->dim + 127) / 128))), TILE_THREADS,
           GemmStage<TYPE, 2>::ALL_BYTES, down_gemm_kernel<TYPE>, p);
    launch(c, dim3((unsigned)a->n * (unsigned)n_parts), TILE_THREADS, 0, combine_kernel, p,
           n_parts);
}

template <WeightType TYPE, int T> static void run_group(const CudaContext *c, const MoeFfn *a)
{
    enum { TILE_X = T * TILE_COLUMN_ROWS };
    const size_t tile_bytes = TILE_X * TILE_ROWS * sizeof(float);
    Plan p;
    size_t used = lay_out(&p, a, TILE_X, c->scratch);
    assert(used <= c->scratch_bytes);
    int width_tiles = (a->width + TILE_ROWS - 1) / TILE_ROWS;
    int dim_tiles = (a->dim + TILE_ROWS - 1) / TILE_ROWS;

    launch(c, dim3(1), TILE_THREADS, plan_shared_bytes(a), plan_kernel, p);
    split_rows(c, TYPE, a->n, Split{a->x, a->dim, a->dim, split_parts(a->n, a->dim), p.x});
    launch(c, dim3((unsigned)(max_units(a, TILE_X) * width_tiles)), TILE_THREADS,
           2 * K_SLICES * tile_bytes, up_kernel<TYPE, T>, p);
    split_rows(c, TYPE, a->n * a->n_top, split_of_h(p));
    launch(c, dim3((unsigned)dim_tiles), TILE_THREADS,
           TILE_WARPS * tile_bytes + (size_t)a->n * TILE_ROWS * sizeof(float), down_kernel<TYPE, T>,
           p);
}

template <WeightType TYPE> static void run_type(const CudaContext *c, const MoeFfn *a)
{
    if (many_rows(a))
        run_many<TYPE>(c, a);
    else if (a->n <= 4)
        run_group<TYPE, 1>(c, a);
    else if (a->n <= 8)
        run_group<TYPE, 2>(c, a);
    else if (a->n <= 16)
        run_group<TYPE, 4>(c, a);
    else if (a->n <= 32)
        run_group<TYPE, 8>(c, a);
    else
        run_group<TYPE, 16>(c, a);
}

static void run_f32(const CudaContext *c, const MoeFfn *a)
{
    float *h = (float *)(void *)c->scratch;
    int64_t up = (int64_t)a->n * a->n_top * a->width, down = (int64_t)a->n * a->dim;
    launch(c, dim3((unsigned)((up + TILE_WARPS - 1) / TILE_WARPS)), TILE_THREADS, 0, up_f32_kernel,
           *a, h);
    launch(c, dim3((unsigned)((down + TILE_WARPS - 1) / TILE_WARPS)), TILE_THREADS, 0,
           down_f32_kernel, *a, h);
}

/* Scratch for one row; n rows take at most n times as much. */
static size_t row_bytes(const MoeFfn *a)
{
    MoeFfn one = *a;
    one.n = 1;
    if (a->type == WEIGHT_F32) return (size_t)a->n_top * (size_t)a->width * sizeof(float);
    return lay_out(NULL, &one, 1, NULL) + (many_rows(a) ? lay_out_many(NULL, &one, NULL) : 0);
}

extern "C" void CUDA_NAME(moe_ffn)(const CudaContext *c, const MoeFfn *a)
{
    assert(a->n_top >= 1 && a->n_top <= MOE_MAX_TOP);
    assert(a->n_experts <= MOE_MAX_EXPERTS && a->type != WEIGHT_NONE);
    size_t fit = c->scratch_bytes / row_bytes(a);
    int group = fit < MOE_GROUP ? (int)fit : MOE_GROUP;
    assert(group > 0);
    for (int i = 0; i < a->n; i += group) {
        MoeFfn part = *a;
        part.n = a->n - i < group ? a->n - i : group;
        part.x += (int64_t)i * a->dim;
        part.id += (int64_t)i * a->n_top;
        part.weight += (int64_t)i * a->n_top;
        part.shared += (int64_t)i * a->dim;
        part.shared_gate += i;
        part.out += (int64_t)i * a->dim;
        if (a->type == WEIGHT_F32)
            run_f32(c, &part);
        else if (a->type == WEIGHT_FP8)
            run_type<WEIGHT_FP8>(c, &part);
        else
            run_type<WEIGHT_BF16>(c, &part);
    }
}
