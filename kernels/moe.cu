/*
 * moe.cu: routing, and the routed experts.
 *
 * Up to 512 rows at a time, in five launches whose grids n and the shapes fix, of a prompt up to
 * 8,192, since all experts' weights come once for each, and a unit is the fuller the more rows
 * choose its expert: of 2,048 rows, 8 of 256 experts each, a third of the units' columns is empty.
 * - route: a warp a row (moe_route.h);
 * - begin: one block makes the plan: which rows chose which expert, as bits; then pairs (row,
 *   choice) in ascending expert and row, cut into units of one expert and up to 64 of its rows;
 *   the others make the terms of x where nobody has left them (linear_tile.h defines the sums). Of
 *   a prompt's many rows several blocks count some each, and one launch more puts them in place;
 * - up: of a unit and 16 of the experts' width, a warp per slice of k, gate then up; h = silu(gate)
 *   * up of each pair;
 * - split: the terms of h, where h lies;
 * - down: a block per 16 outputs and all units; it adds weight * (down h) to each row in ascending
 *   expert, the shared expert last. So no atomics, and nothing of what other rows chose shows in a
 *   row.
 *
 * Few rows have few units, each a few KiB for a block, and are all latency: there a block walks
 * through many, whose weights come by a queue that no unit's end interrupts, and the shared expert
 * is one of the units (moe_few.h). There `begin` routes, and where the router's product comes with
 * the rest (routed_ffn) makes that too (moe_few_router.h); `down` makes the terms of h: three
 * launches. With more rows a unit is work enough: `up` has a block for each, of which those beyond
 * the number of units leave at once, and `down` takes 8 at a time, one a warp.
 *
 * Prompts, of which an expert has many rows, have kernels of their own (moe_prompt.h), which also
 * take a batch's rows where they go by warpgroups.
 *
 * Floor: each used expert's weights once, over the memory's rate.
 */
#include "kernels/moe_few.h"
#include "kernels/moe_prompt.h"

#include <assert.h>

enum {
    MOE_GROUP = 512,    /* rows at a time: bounds what a block of `down` keeps in shared memory */
    MOST_FEW_ROWS = 64, /* in groups of MOE_FEW_ROWS, where not by warpgroups */
    MOE_PROMPT_GROUP = 8192, /* by the prompts' kernels */
    GEMM_MEAN_ROWS = 8,      /* of an expert: below, most of a unit of 64 rows would be empty */
};

/* ---- up ---- */

/*
 * A block per unit and 16 rows of gate and up; shared: both partial sums of each slice. Rows past
 * width land in the padding of h, which the split makes zeros.
 */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, 1) up_kernel(Plan p)
{
    grid_wait();
    enum { TILE_FLOATS = T * TILE_COLUMN_ROWS * TILE_ROWS };
    DYNAMIC_SHARED(float, part); /* [2][K_SLICES][TILE_FLOATS] */
    int n_row_tiles = row_tiles(p.a.width);
    int unit = (int)blockIdx.x / n_row_tiles, slice = (int)threadIdx.x / WARP;
    int first_row = (int)blockIdx.x % n_row_tiles * TILE_ROWS;
    if (unit >= *p.n_units) return;
    Unit u = p.unit[unit];
    int n_tiles = column_tiles(u.n);
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
        float gate = sum_slices(part + i, TILE_FLOATS);
        float up = sum_slices(part + K_SLICES * TILE_FLOATS + i, TILE_FLOATS);
        h[(int64_t)at_pair * p.h.n_blocks * K_BLOCK + row] = silu(gate) * up;
    }
}

/* ---- down ---- */

/* Where a column of a unit's product goes, and times what. */
typedef struct {
    int32_t row;
    float weight;
} Column;

static __device__ __forceinline__ void load_columns(const Plan &p, const Unit &u, Column *column)
{
    for (int i = warp_lane(); i < u.n; i += WARP) {
        Pair pair = p.pair[u.first + i];
        column[i] = Column{pair.row, pair.weight};
    }
}

/* sums += weight * product for the rows of a unit; no row is there twice. */
static __device__ void add_unit(const Column *column, int n, const float *product, float *sums)
{
    for (int i = (int)threadIdx.x; i < n * TILE_ROWS; i += TILE_THREADS) {
        Column c = column[i / TILE_ROWS];
        float *sum = sums + c.row * TILE_ROWS + i % TILE_ROWS;
        *sum = fmaf(c.weight, product[i], *sum);
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
static __global__ void __launch_bounds__(TILE_THREADS, 1) down_kernel(Plan p)
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
            int n_tiles = column_tiles(u.n);
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

/* 1 where the prompts' kernels go by warpgroups. */
static int can_many_wgmma(const CudaContext *c, const MoeFfn *a)
{
    return a->type == WEIGHT_FP8 && can_wgmma(c) && (a->dim | a->width) % 16 == 0;
}

/* 1 for so many rows that the prompts' kernels are faster: by warpgroups, where a unit takes the
 * less the fewer rows it has, as soon as there are too many for those of few rows. */
static int many_rows(const CudaContext *c, const MoeFfn *a)
{
    if (can_many_wgmma(c, a)) return a->n > MOE_FEW_ROWS;
    return a->n > GEMM_X && a->n * a->n_top >= GEMM_MEAN_ROWS * a->n_experts;
}

/* Lays the plan of a's rows out in memory, which may be NULL; the bytes it takes. */
static size_t lay_out(Plan *p, const MoeFfn *a, int unit_rows, int n_parts, unsigned char *memory)
{
    int n_pairs = a->n * a->n_top;
    size_t counts = round_16((size_t)n_parts * (size_t)a->n_experts * sizeof(int32_t));
    size_t x = terms_bytes(a->n, a->dim), h = terms_bytes(n_pairs, a->width);
    size_t pairs = round_16((size_t)n_pairs * sizeof(Pair));
    size_t units = round_16((size_t)n_pairs * sizeof(Unit));
    size_t place = round_16((size_t)n_pairs * sizeof(int32_t));
    if (memory)
        *p = Plan{*a,
                  unit_rows,
                  (Pair *)(void *)(memory + x + h),
                  (Unit *)(void *)(memory + x + h + pairs),
                  (int32_t *)(void *)(memory + x + h + pairs + units + place),
                  (uint32_t *)(void *)(memory + x + h + pairs + units + place + 4),
                  terms_in(memory, a->n, a->dim),
                  terms_in(memory + x, n_pairs, a->width),
                  (int32_t *)(void *)(memory + x + h + pairs + units),
                  n_parts,
                  (int32_t *)(void *)(memory + x + h + pairs + units + place + 16),
                  NULL};
    return x + h + pairs + units + place + 16 + counts;
}

static int plan_parts(int n_rows)
{
    return (n_rows + PLAN_ROWS - 1) / PLAN_ROWS;
}

/* What the prompts' kernels need after that. */
static size_t lay_out_many(Plan *p, const MoeFfn *a, unsigned char *memory)
{
    if (memory) p->y = (float *)(void *)memory;
    return (size_t)a->n * (size_t)a->n_top * (size_t)a->dim * sizeof(float);
}

static size_t plan_shared_bytes(const Plan &p)
{
    int rows = p.n_parts > 1 ? +PLAN_ROWS : p.a.n;
    return (size_t)p.a.n_experts * (size_t)(bit_words(rows) + 1) * sizeof(uint32_t);
}

/* Where the terms of x are, or what makes them in *terms, in this order; of how many blocks' work
 * that is. */
template <WeightType TYPE>
static unsigned split_of_x(const CudaContext *c, const MoeFfn &a, Terms *terms, Split *x,
                           TermOrder order = TERMS_BY_LANE)
{
    int is_fp8 = TYPE == WEIGHT_FP8 && a.prefill == PREFILL_FP8;
    int is_split = !is_fp8 && find_terms(c, term_kind(TYPE, order), a.x, a.n, a.dim, a.dim, terms);
    *x = Split{a.x, a.dim, a.n, a.dim, *terms, a.prefill, order};
    return is_split ? 0 : split_parts(*x);
}

/* The plan, and the terms of x where nobody has left them. */
template <WeightType TYPE>
static void begin(const CudaContext *c, Plan *p, TermOrder order = TERMS_BY_LANE)
{
    Split x;
    unsigned of_x = split_of_x<TYPE>(c, p->a, &p->x, &x, order), n = (unsigned)p->n_parts;
    size_t shared = plan_shared_bytes(*p);
    launch(c, dim3(n + of_x), TILE_THREADS, shared, begin_kernel<TYPE>, *p, x);
    if (n > 1) launch(c, dim3(n), TILE_THREADS, shared, place_kernel, *p);
}

/* The terms of h, where h lies. */
static Split split_of_h(const Plan &p, TermOrder order = TERMS_BY_LANE)
{
    return Split{(const float *)(void *)p.h.data,
                 (int64_t)p.h.n_blocks * K_BLOCK,
                 p.a.n * p.a.n_top,
                 p.a.width,
                 p.h,
                 p.a.prefill,
                 order};
}

/* The two products of all units. */
typedef struct {
    void (*up)(Plan), (*down)(Plan);
    size_t shared_bytes;
    TermOrder order; /* of the terms that they take */
    int most_blocks; /* 0: one for each tile */
} UnitKernels;

template <WeightType TYPE, int TERMS>
static UnitKernels unit_kernels(const CudaContext *c, const MoeFfn *a)
{
    if (TYPE == WEIGHT_FP8 && can_many_wgmma(c, a))
        return UnitKernels{up_wgmma_kernel<TERMS>, down_wgmma_kernel<TERMS>,
                           WgmmaStage<TERMS>::ALL_BYTES, TERMS_BY_ROW, WG_BLOCKS};
    return UnitKernels{up_gemm_kernel<TYPE, TERMS>, down_gemm_kernel<TYPE, TERMS>,
                       GemmStage<TYPE, 2, TERMS>::ALL_BYTES, TERMS_BY_LANE, 0};
}

static dim3 unit_grid(const UnitKernels &k, int n_tiles)
{
    return dim3((unsigned)(k.most_blocks && n_tiles > k.most_blocks ? k.most_blocks : n_tiles));
}

template <WeightType TYPE, int TERMS> static void run_many(const CudaContext *c, const MoeFfn *a)
{
    Plan p;
    size_t used = lay_out(&p, a, GEMM_X, plan_parts(a->n), c->scratch);
    used += lay_out_many(&p, a, c->scratch + used);
    assert(used <= c->scratch_bytes);
    int units = max_units(a, GEMM_X), n_parts = (a->dim + TILE_THREADS - 1) / TILE_THREADS;
    const UnitKernels k = unit_kernels<TYPE, TERMS>(c, a);
    int up_tiles = units * ((a->width + 63) / 64), down_tiles = units * ((a->dim + 127) / 128);
    begin<TYPE>(c, &p, k.order);
    launch(c, unit_grid(k, up_tiles), TILE_THREADS, k.shared_bytes, k.up, p);
    split_rows(c, TYPE, split_of_h(p, k.order));
    launch(c, unit_grid(k, down_tiles), TILE_THREADS, k.shared_bytes, k.down, p);
    launch(c, dim3((unsigned)a->n * (unsigned)n_parts), TILE_THREADS, 0, combine_kernel, p,
           n_parts);
}

template <WeightType TYPE, int T> static void run_group(const CudaContext *c, const MoeFfn *a)
{
    enum { TILE_X = T * TILE_COLUMN_ROWS };
    const size_t tile_bytes = TILE_X * TILE_ROWS * sizeof(float);
    Plan p;
    size_t used = lay_out(&p, a, TILE_X, 1, c->scratch);
    assert(used <= c->scratch_bytes);
    begin<TYPE>(c, &p);
    launch(c, dim3((unsigned)(max_units(a, TILE_X) * row_tiles(a->width))), TILE_THREADS,
           2 * K_SLICES * tile_bytes, up_kernel<TYPE, T>, p);
    split_rows(c, TYPE, split_of_h(p));
    launch(c, dim3((unsigned)row_tiles(a->dim)), TILE_THREADS,
           TILE_WARPS * tile_bytes + (size_t)a->n * TILE_ROWS * sizeof(float), down_kernel<TYPE, T>,
           p);
}

static int n_shared(const MoeFfn *a)
{
    return a->shared ? 0 : 1;
}

static size_t down_few_bytes(const MoeFfn *a, int n_threads)
{
    int ring = a->type == WEIGHT_FP8 ? DownRing<WEIGHT_FP8>::BYTES : DownRing<WEIGHT_BF16>::BYTES;
    size_t n_slices = (size_t)used_slices(term_blocks(a->width));
    size_t n_choices = (size_t)(a->n * a->n_top);
    size_t n_pairs = n_choices + (size_t)(a->n * n_shared(a));
    return (size_t)(n_threads / WARP) * (size_t)(ring + H_TERMS_BYTES) +
           n_pairs * n_slices * TILE_ROWS * sizeof(float) + n_choices * sizeof(Choice);
}

/* Threads of down_few_kernel; 0 where it cannot have these rows: too many, or their products, or h
 * in e4m3. */
static int down_few_threads(const CudaContext *c, const MoeFfn *a)
{
    if (a->n > MOE_FEW_ROWS || a->type == WEIGHT_F32 || a->prefill == PREFILL_FP8) return 0;
    if (down_few_bytes(a, DOWN_THREADS) <= c->shared_bytes) return DOWN_THREADS;
    return down_few_bytes(a, DOWN_THREADS / 2) <= c->shared_bytes ? DOWN_THREADS / 2 : 0;
}

/* Lays the plan of few rows out in memory, which may be NULL; the bytes it takes. */
static size_t lay_out_few(FewPlan *p, const MoeFfn *a, unsigned char *memory)
{
    *p = FewPlan{};
    p->a = *a, p->n_shared = n_shared(a);
    size_t x = terms_bytes(a->n, a->dim);
    size_t h = round_16((size_t)few_pairs(*p) * (size_t)a->width * sizeof(float));
    size_t units = round_16((size_t)few_units(*p) * sizeof(FewUnit));
    if (memory) {
        p->x = terms_in(memory, a->n, a->dim);
        p->h = (float *)(void *)(memory + x);
        p->unit = (FewUnit *)(void *)(memory + x + h);
        p->n_units = (int32_t *)(void *)(memory + x + h + units);
        p->choice = (Choice *)(void *)(memory + x + h + units + 16);
    }
    return x + h + units + 16 + (size_t)(a->n * a->n_top) * sizeof(Choice);
}

/* The terms of x beside bf16; in memory, and by a launch, where nobody has left them. */
static Terms router_terms(const CudaContext *c, const MoeFfn *a, unsigned char *memory)
{
    Terms x;
    if (find_terms(c, KIND_BF16, a->x, a->n, a->dim, a->dim, &x)) return x;
    x = terms_in(memory, a->n, a->dim);
    split_rows(c, WEIGHT_BF16, Split{a->x, a->dim, a->n, a->dim, x, 0, TERMS_BY_LANE});
    return x;
}

/* Routing and the plan, and the terms of x where nobody has left them; the logits, too, where there
 * is a router. memory: terms_bytes of x. */
template <WeightType TYPE, int T>
static void begin_few(const CudaContext *c, FewPlan *p, const Linear *router, unsigned char *memory)
{
    Split x;
    size_t shared = few_shared_bytes(&p->a);
    if (!router) {
        unsigned parts = split_of_x<TYPE>(c, p->a, &p->x, &x);
        launch(c, dim3(1 + parts), TILE_THREADS, shared, begin_few_kernel<TYPE>, *p, x);
        return;
    }
    const LinearProduct *product = router->product;
    Router r = {*product[0].w, *product[1].w, product[0].y, product[1].y,
                router_terms(c, &p->a, memory)};
    unsigned parts = split_of_x<TYPE>(c, p->a, &p->x, &x);
    launch(c, dim3((unsigned)router_tiles(r) + parts), TILE_THREADS, shared,
           router_few_kernel<TYPE, T>, *p, r, x);
}

template <WeightType TYPE, int T>
static void run_few(const CudaContext *c, const MoeFfn *a, int down_threads, const Linear *router)
{
    enum { TILE_X = T * TILE_COLUMN_ROWS };
    const size_t tile_bytes = TILE_X * TILE_ROWS * sizeof(float);
    FewPlan p;
    size_t used = lay_out_few(&p, a, c->scratch);
    assert(used <= c->scratch_bytes && a->n <= TILE_X);
    int tiles = few_units(p) * row_tiles(a->width);
    begin_few<TYPE, T>(c, &p, router, c->scratch + round_16(used));
    launch(c, dim3((unsigned)(tiles < UP_BLOCKS ? tiles : UP_BLOCKS)), TILE_THREADS,
           TILE_WARPS * UpRing<TYPE>::BYTES + 2 * 2 * K_SLICES * tile_bytes, up_few_kernel<TYPE, T>,
           p);
    launch(c, dim3((unsigned)row_tiles(a->dim)), down_threads, down_few_bytes(a, down_threads),
           down_few_kernel<TYPE, T>, p);
}

/* router: makes the logits; NULL: they are there. */
template <WeightType TYPE>
static void run_few_rows(const CudaContext *c, const MoeFfn *a, int down_threads,
                         const Linear *router)
{
    if (a->n <= 4)
        run_few<TYPE, 1>(c, a, down_threads, router);
    else if (a->n <= 8)
        run_few<TYPE, 2>(c, a, down_threads, router);
    else
        run_few<TYPE, 4>(c, a, down_threads, router);
}

/* is_many: rows_of_many said so. */
template <WeightType TYPE> static void run_type(const CudaContext *c, const MoeFfn *a, int is_many)
{
    int few = down_few_threads(c, a);
    if (is_many && TYPE == WEIGHT_FP8 && a->prefill == PREFILL_FP8)
        run_many<WEIGHT_FP8, 1>(c, a);
    else if (is_many)
        run_many<TYPE, 2>(c, a);
    else if (few)
        run_few_rows<TYPE>(c, a, few, NULL);
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
static size_t row_bytes(const MoeFfn *a, int is_many)
{
    MoeFfn one = *a;
    FewPlan plan;
    one.n = 1;
    if (a->type == WEIGHT_F32) return (size_t)a->n_top * (size_t)a->width * sizeof(float);
    size_t bytes = lay_out(NULL, &one, 1, 1, NULL), few = lay_out_few(&plan, &one, NULL);
    if (is_many) return bytes + lay_out_many(NULL, &one, NULL);
    return few > bytes ? few : bytes;
}

static int at_most(int n, size_t limit)
{
    return (size_t)n < limit ? n : (int)limit;
}

/* Of a's rows, how many the prompts' kernels take together; 0: the others are faster. */
static int rows_of_many(const CudaContext *c, const MoeFfn *a)
{
    MoeFfn part = *a;
    if (a->type == WEIGHT_F32) return 0;
    int most = at_most(MOE_PROMPT_GROUP, c->scratch_bytes / row_bytes(a, 1));
    if (most < 1) return 0;
    part.n = even_part(a->n, most); /* all groups read the weights */
    return many_rows(c, &part) ? part.n : 0;
}

static void route(const CudaContext *c, const MoeFfn *a)
{
    launch(c, dim3((unsigned)(a->n + ROUTE_WARPS - 1) / ROUTE_WARPS), ROUTE_WARPS * WARP, 0,
           route_kernel, *a);
}

/* How many of a's rows are next where they are no prompt's: as few as have kernels of their own,
 * which are faster, in groups as even as they get; where there are none, what the scratch holds. */
static int rows_of_group(const CudaContext *c, const MoeFfn *a)
{
    MoeFfn few = *a;
    int most = at_most(at_most(a->n, MOE_GROUP), c->scratch_bytes / row_bytes(a, 0));
    few.n = even_part(a->n, MOE_FEW_ROWS);
    if (a->n > MOST_FEW_ROWS || few.n > most || !down_few_threads(c, &few)) return most;
    return few.n;
}

/* All of a's rows, as many at a time as the scratch holds. */
static void run_groups(const CudaContext *c, const MoeFfn *a)
{
    MoeFfn part = *a;
    for (int i = 0; i < a->n; i += part.n) {
        part = *a;
        part.n = a->n - i;
        int many = rows_of_many(c, &part);
        part.n = many ? many : rows_of_group(c, &part);
        assert(part.n > 0);
        part.x += (int64_t)i * a->dim;
        part.logits += (int64_t)i * a->n_experts;
        part.id += (int64_t)i * a->n_top;
        part.weight += (int64_t)i * a->n_top;
        if (a->shared) part.shared += (int64_t)i * a->dim;
        part.shared_gate += i;
        part.out += (int64_t)i * a->dim;
        if (!down_few_threads(c, &part)) route(c, &part);
        if (a->type == WEIGHT_F32)
            run_f32(c, &part);
        else if (a->type == WEIGHT_FP8)
            run_type<WEIGHT_FP8>(c, &part, many);
        else
            run_type<WEIGHT_BF16>(c, &part, many);
    }
}

/*
 * What the kernels that have no unit for the shared expert add: in a's scratch, by the operations
 * that would have made it.
 */
static const float *run_shared(const CudaContext *c, const MoeFfn *a)
{
    const MoeExpert *e = &a->shared_expert;
    int64_t h = (int64_t)a->n * a->width;
    float *gate = a->scratch, *up = gate + h, *out = up + h;
    Linear first = {a->n, a->x, a->dim, 2, {{&e->gate, gate, a->width}, {&e->up, up, a->width}}, 0};
    Linear second = {a->n, gate, a->width, 1, {{&e->down, out, a->dim}}, 0};
    SwiGlu swiglu = {a->n, a->width, gate, up};
    CUDA_NAME(linear)(c, &first);
    CUDA_NAME(swiglu)(c, &swiglu);
    CUDA_NAME(linear)(c, &second);
    return out;
}

static void check_shape(const MoeFfn *a)
{
    assert(a->n_top >= 1 && a->n_top <= MOE_MAX_TOP && a->n_top <= a->n_experts);
    assert(a->n_experts <= MOE_MAX_EXPERTS && a->type != WEIGHT_NONE);
    assert(((uintptr_t)a->gate | (uintptr_t)a->up | (uintptr_t)a->down) % 16 == 0);
}

extern "C" void CUDA_NAME(moe_ffn)(const CudaContext *c, const MoeFfn *a)
{
    check_shape(a);
    assert(a->shared || !a->prefill);
    MoeFfn all = *a;
    if (!a->shared && !down_few_threads(c, a)) all.shared = run_shared(c, a);
    terms_overwritten(c, a->out, a->n, a->dim);
    run_groups(c, &all);
}

/* Threads of down_few_kernel where one launch makes the logits and routes; 0 where it cannot. */
static int routed_few_threads(const CudaContext *c, const RoutedFfn *a)
{
    FewPlan plan;
    size_t bytes = round_16(lay_out_few(&plan, &a->ffn, NULL)) + terms_bytes(a->n, a->ffn.dim);
    if (a->ffn.prefill || bytes > c->scratch_bytes) return 0;
    for (const LinearProduct *p = a->router.product; p < a->router.product + 2; p++)
        if (p->w->type != WEIGHT_BF16 || !weight_is_aligned(*p->w)) return 0;
    return down_few_threads(c, &a->ffn);
}

extern "C" void CUDA_NAME(routed_ffn)(const CudaContext *c, const RoutedFfn *a)
{
    const LinearProduct *product = a->router.product;
    assert(a->router.n == a->n && a->ffn.n == a->n && a->router.n_products == 2);
    assert(a->router.x == a->ffn.x && a->router.x_stride == a->ffn.dim);
    assert(product[0].y == a->ffn.logits && product[0].y_stride == a->ffn.n_experts);
    assert(product[1].y == a->ffn.shared_gate && product[1].y_stride == 1);
    int threads = routed_few_threads(c, a);
    if (!threads) {
        CUDA_NAME(linear)(c, &a->router);
        CUDA_NAME(moe_ffn)(c, &a->ffn);
        return;
    }
    check_shape(&a->ffn);
    terms_overwritten(c, a->ffn.logits, a->n, a->ffn.n_experts);
    terms_overwritten(c, a->ffn.shared_gate, a->n, 1);
    terms_overwritten(c, a->ffn.out, a->n, a->ffn.dim);
    if (a->ffn.type == WEIGHT_FP8)
        run_few_rows<WEIGHT_FP8>(c, &a->ffn, threads, &a->router);
    else
        run_few_rows<WEIGHT_BF16>(c, &a->ffn, threads, &a->router);
}
