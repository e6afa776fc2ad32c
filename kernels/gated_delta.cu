/*
 * gated_delta.cu: the recurrences of a gated DeltaNet layer.
 *
 * Blocks run in any order, and rows in place overwrite slots that other rows start from. What keeps
 * the blocks apart is said above each kernel.
 */
#include "kernels/delta_conv.h"
#include "kernels/delta_walk.h"
#include "kernels/simt_copy.h"

#include <assert.h>

/* ---- conv_gates ---- */

/*
 * A unit is a head of q or k, or TILE channels of v, of which a lane takes channels 4 lane .. 4
 * lane + 3 of each TILE; one more, the last, is the gates. A warp takes rows, and of each the units
 * of its block's column: few rows have a column for each unit, a prompt's few columns. So a row's
 * ancestors are found once a column, each a trip to memory or two: a chain's parent is the row
 * before, found in one look at 32 rows.
 *
 * Bytes: q, k, v written and qkv read once, its other reads hit L1 or L2: 4 MiB for 64 rows of
 * 8,192 channels, 1 us at 4.3 TB/s; at decode sizes the launch counts for more. 2,048 rows are 128
 * MiB, 31 us; they take 86, with a column for each of their 65 units 143 (H200, 2026-11-27).
 */
enum { CONV_THREADS = 256, CONV_WARPS = CONV_THREADS / WARP, MAX_TILES = 2 };
static_assert(MAX_TILES * TILE >= MAX_D_K, "a warp holds a head");

/* Blocks that many rows get: two for each place on the SMs of an H200. */
enum { CONV_BLOCKS = 2 * 4 * 132 };

/* Up to this many rows one launch does both passes. */
enum { ROWS_AT_ONCE = 2 * CONV_WARPS };

/* The last row before `end` whose slot is the one asked for, or -1. */
static __device__ int last_with(const int32_t *slots, int end, int32_t slot)
{
    for (int top = end - 1; top >= 0; top -= WARP) {
        int row = top - warp_lane();
        uint32_t hits = warp_ballot(row >= 0 && slots[row] == slot);
        if (hits) return top + 1 - __ffs((int)hits);
    }
    return -1;
}

/* The first such row of begin .. end - 1, or -1. */
static __device__ int first_with(const int32_t *slots, int begin, int end, int32_t slot)
{
    for (int from = begin; from < end; from += WARP) {
        int row = from + warp_lane();
        uint32_t hits = warp_ballot(row < end && slots[row] == slot);
        if (hits) return from - 1 + __ffs((int)hits);
    }
    return -1;
}

/* The pass in which row i leaves its inputs in dst[i], 0 when it leaves none or a later row does.
 */
static __device__ int pass_of(const ConvGates &a, int i)
{
    int32_t slot = a.dst[i];
    if (slot < 0 || first_with(a.dst, i + 1, a.n, slot) >= 0) return 0;
    int written = first_with(a.dst, 0, i + 1, slot);
    return first_with(a.src, 0, written + 1, slot) >= 0 ? PASS_FOUND : PASS_OUTPUT;
}

/*
 * Where row i's inputs lie, oldest first and its own last: in qkv for its ancestors of this call,
 * the others in the slot that the first of them starts from.
 */
static __device__ void find_inputs(const ConvGates &a, int n_channels, int i, const float **input)
{
    int m = a.width - 1, row = i;
    int32_t slot = a.src[i];
    int lane = warp_lane();
    warp_sync(); /* the warp is done with the row before */
    if (lane == 0) input[m] = a.qkv + (int64_t)i * n_channels;
    int is_draft = a.dst[i] < 0; /* its ancestors are in no slot, and its tree has one src */
    while (m > 0 && (row = is_draft ? a.parent[row] : last_with(a.dst, row, slot)) >= 0) {
        m--;
        if (lane == 0) input[m] = a.qkv + (int64_t)row * n_channels;
        slot = a.src[row];
    }
    const float *old = slot_at(a.slots, slot, a.slots.conv_offset);
    for (int k = a.width - 2; m > 0; k--) {
        m--;
        if (lane == 0) input[m] = old + (int64_t)k * n_channels;
    }
    warp_sync();
}

/* What a warp works on: `dim` channels from c on; their results go to out + row * out_stride. */
typedef struct {
    int c, dim;
    int is_head; /* of q or k: scaled to length 1, times scale */
    float scale;
    float *out;
    int out_stride;
} Channels;

static __device__ __forceinline__ Channels channels_of(const ConvGates &a, int unit)
{
    int n_k = a.n_k_heads, d_qk = n_k * a.d_k, d_vs = a.n_v_heads * a.d_v;
    if (unit < n_k)
        return Channels{unit * a.d_k,       a.d_k, 1, 1.0f / sqrtf((float)a.d_k),
                        a.q + unit * a.d_k, d_qk};
    if (unit < 2 * n_k)
        return Channels{unit * a.d_k, a.d_k, 1, 1.0f, a.k + (unit - n_k) * a.d_k, d_qk};
    int at = (unit - 2 * n_k) * TILE, left = d_vs - at;
    return Channels{2 * d_qk + at, left < TILE ? left : TILE, 0, 1.0f, a.v + at, d_vs};
}

template <bool FAST>
static __device__ void conv_row(const ConvGates &a, const float *const *input, const Channels &u,
                                int row)
{
    float y[MAX_TILES][4], sum = 0, scale = 1.0f;
    for (int t = 0; t < MAX_TILES; t++) {
        int at = t * TILE + 4 * warp_lane();
        for (int j = 0; j < 4; j++)
            y[t][j] = 0;
        if (at >= u.dim) continue;
        float w[4][4];
        load_taps<FAST>(a, u.c + at, w);
        convolve<FAST>(a, w, input, u.c + at, u.dim - at, y[t]);
        sum = activate(y[t], sum);
    }
    if (u.is_head) scale = length_scale(sum, u.scale);
    for (int t = 0; t < MAX_TILES; t++) {
        int at = t * TILE + 4 * warp_lane();
        if (at >= u.dim) continue;
        for (int j = 0; j < 4; j++)
            y[t][j] *= scale;
        store4<FAST>(u.out + (int64_t)row * u.out_stride + at, y[t], u.dim - at);
    }
}

/*
 * Leaves row i's last inputs in its slot, oldest first. Some may come from that very slot: row m -
 * 1 of it then gets what row m or a later one holds, so ascending m reads before it writes.
 */
template <bool FAST>
static __device__ void leave_inputs(const ConvGates &a, int n_channels, const float *const *input,
                                    const Channels &u, int i)
{
    float *to = slot_at(a.slots, a.dst[i], a.slots.conv_offset) + u.c;
    for (int at = 4 * warp_lane(); at < u.dim; at += TILE)
        for (int m = 1; m < a.width; m++) {
            float x[4];
            load4<FAST>(x, input[m] + u.c + at, u.dim - at);
            store4<FAST>(to + (int64_t)(m - 1) * n_channels + at, x, u.dim - at);
        }
}

static __device__ void gates_row(const ConvGates &a, int row)
{
    for (int h = warp_lane(); h < a.n_v_heads; h += WARP) {
        int64_t g = (int64_t)row * a.n_v_heads + h;
        a.beta[g] = sigmoid(a.b[g]);
        a.decay[g] = decay_of(a.a_coef[h], a.a[g], a.dt_bias[h]);
    }
}

/* Units without the gates. */
SHARED_INLINE int conv_units(const ConvGates &a)
{
    return 2 * a.n_k_heads + (a.n_v_heads * a.d_v + TILE - 1) / TILE;
}

/* FAST: width 4, everything aligned for load4. With both passes the grid has one row of blocks. */
template <bool FAST>
static __global__ void __launch_bounds__(CONV_THREADS, 4) conv_gates_kernel(ConvGates a, int passes)
{
    grid_wait();
    __shared__ const float *inputs[CONV_WARPS][MAX_CONV_WIDTH];
    int warp = (int)threadIdx.x / WARP, column = (int)blockIdx.x, n_columns = (int)gridDim.x;
    const float **input = inputs[warp];
    int first = (int)blockIdx.y * CONV_WARPS + warp, step = (int)gridDim.y * CONV_WARPS;
    int n_channels = 2 * a.n_k_heads * a.d_k + a.n_v_heads * a.d_v, n_units = conv_units(a);

    for (int row = first; row < a.n && passes & PASS_OUTPUT; row += step) {
        if (n_units % n_columns == column) gates_row(a, row);
        if (column >= n_units) continue;
        find_inputs(a, n_channels, row, input);
        for (int unit = column; unit < n_units; unit += n_columns)
            conv_row<FAST>(a, input, channels_of(a, unit), row);
        if (pass_of(a, row) != PASS_OUTPUT) continue;
        for (int unit = column; unit < n_units; unit += n_columns)
            leave_inputs<FAST>(a, n_channels, input, channels_of(a, unit), row);
    }
    if (passes == (PASS_OUTPUT | PASS_FOUND)) __syncthreads(); /* of this block's channels alone */
    for (int row = first; row < a.n && passes & PASS_FOUND; row += step) {
        if (pass_of(a, row) != PASS_FOUND) continue;
        find_inputs(a, n_channels, row, input);
        for (int unit = column; unit < n_units; unit += n_columns)
            leave_inputs<FAST>(a, n_channels, input, channels_of(a, unit), row);
    }
}

extern "C" void CUDA_NAME(conv_gates)(const CudaContext *c, const ConvGates *a)
{
    int d_vs = a->n_v_heads * a->d_v, columns = conv_units(*a) + 1;
    int aligned = is_aligned(a->qkv) && is_aligned(a->conv_w) && is_aligned(a->q) &&
                  is_aligned(a->k) && is_aligned(a->v) &&
                  slots_aligned(&a->slots, a->slots.conv_offset);
    int fast = aligned && a->width == 4 && a->d_k % 4 == 0 && d_vs % 4 == 0;
    int groups = (a->n + CONV_WARPS - 1) / CONV_WARPS;
    void (*kernel)(ConvGates, int) = fast ? conv_gates_kernel<true> : conv_gates_kernel<false>;
    assert(a->width >= 1 && a->width <= MAX_CONV_WIDTH && a->d_k <= MAX_D_K);
    if (a->n <= ROWS_AT_ONCE) {
        launch(c, dim3((unsigned)columns), CONV_THREADS, 0, kernel, *a, PASS_OUTPUT | PASS_FOUND);
        return;
    }
    int some = (CONV_BLOCKS + groups - 1) / groups;
    dim3 grid((unsigned)(some < columns ? some : columns), (unsigned)groups);
    launch(c, grid, CONV_THREADS, 0, kernel, *a, +PASS_OUTPUT);
    if (a->width > 1) launch(c, grid, CONV_THREADS, 0, kernel, *a, +PASS_FOUND);
}

/* ---- gated_delta ---- */

/*
 * A block has BLOCK_COLS columns of a head, a warp four of them (delta_walk.h). While the warps
 * walk over the rows of one chunk, the block's threads copy those of the next beside them: all that
 * a row brings then takes one trip to memory a chunk, not one a row.
 *
 * Sequences of a batch go one after another. At 32 heads of 128 x 128 a row's states are 1,024
 * warps x 2 KiB, which keeps memory busy by itself: 64 rows that leave 128 MiB need 31 us at
 * 4.3 TB/s; their arithmetic, at an estimated 250 cycles a row of two warps a scheduler, 9 us.
 */
enum { DELTA_THREADS = 128, BLOCK_COLS = DELTA_THREADS / LANES };

/* Where a lane of a layer's `block`-th block works. A warp whose first column is past d_v has
 * nothing to do. */
template <bool FAST, typename Op>
static __device__ __forceinline__ DeltaLane lane_of(const Op &a, int block)
{
    int blocks = (a.d_v + BLOCK_COLS - 1) / BLOCK_COLS, head = block / blocks;
    int col = block % blocks * BLOCK_COLS + (int)threadIdx.x / LANES;
    return DeltaLane{head, head / (a.n_v_heads / a.n_k_heads), col, 4 * (warp_lane() % LANES),
                     FAST || col < a.d_v ? a.d_k : 0};
}

/* Four keys of a row to shared memory. */
template <bool FAST>
static __device__ __forceinline__ void copy_keys(float *to, const float *from, int n)
{
    float x[4];
    if (FAST) {
        copy_16(to, from);
        return;
    }
    load4<false>(x, from, n);
    store4<true>(to, x, 4);
}

/* Begins to copy the rows from `first` on, up to a chunk of them; the block's threads share in it.
 * What is not copied beside their work is there when they pass a barrier. */
template <bool FAST, typename Chunk>
static __device__ __forceinline__ void copy_chunk(Chunk *c, const GatedDelta &a, const DeltaLane &l,
                                                  int first)
{
    enum { FOURS = Chunk::KEYS / 4 };
    int n = a.n - first < Chunk::ROWS ? a.n - first : +Chunk::ROWS;
    int tid = (int)threadIdx.x, first_col = l.col - tid / LANES;
    for (int x = tid; x < n * FOURS; x += DELTA_THREADS) {
        int row = x / FOURS, at = x % FOURS * 4;
        int64_t from = ((int64_t)(first + row) * a.n_k_heads + l.key_head) * a.d_k + at;
        copy_keys<FAST>(&c->k[row][at], a.k + from, a.d_k - at);
        copy_keys<FAST>(&c->q[row][at], a.q + from, a.d_k - at);
    }
    for (int x = tid; x < n * BLOCK_COLS; x += DELTA_THREADS) {
        int row = x / BLOCK_COLS, col = x % BLOCK_COLS;
        if (first_col + col >= a.d_v) continue;
        int64_t of_head = (int64_t)(first + row) * a.n_v_heads + l.head;
        copy_4(&c->v[row][col], a.v + of_head * a.d_v + first_col + col);
    }
    if (tid < n) {
        copy_4(&c->decay[tid], a.decay + (int64_t)(first + tid) * a.n_v_heads + l.head);
        copy_4(&c->beta[tid], a.beta + (int64_t)(first + tid) * a.n_v_heads + l.head);
        copy_4(&c->src[tid], a.src + first + tid);
        if (a.parent) copy_4(&c->parent[tid], a.parent + first + tid);
    }
    if (tid < n + 2 && first + tid > 0 && first + tid <= a.n)
        copy_4(&c->dst[tid], a.dst + first + tid - 1);
    copies_commit();
}

/* FAST: d_k is 32 N4, d_v a multiple of COLS, everything aligned for load4. */
template <int N4, bool FAST>
static __global__ void __launch_bounds__(DELTA_THREADS, N4 > 4 ? 2 : 4)
    gated_delta_kernel(GatedDelta a)
{
    typedef DeltaChunk<N4, BLOCK_COLS> Chunk;
    __shared__ Chunk chunks[2];
    grid_wait();
    DeltaLane l = lane_of<FAST>(a, (int)blockIdx.x);
    int has_columns = l.col - warp_lane() / LANES < a.d_v;
    WalkArrays to = {a.out + (int64_t)l.head * a.d_v, a.v + (int64_t)l.head * a.d_v,
                     (int64_t)a.n_v_heads * a.d_v, records_of(a, a.k, a.v, l), a.parent};
    float s[N4][4];
    copy_chunk<FAST>(&chunks[0], a, l, 0);
    if (has_columns) load_part<N4, FAST>(s, column_at(a, l, a.src[0]), l);
    for (int first = 0; first < a.n; first += Chunk::ROWS) {
        const Chunk &c = chunks[first / Chunk::ROWS % 2];
        int left = a.n - first, n = left < Chunk::ROWS ? left : +Chunk::ROWS;
        if (left > n) {
            copy_chunk<FAST>(&chunks[(first / Chunk::ROWS + 1) % 2], a, l, first + n);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads(); /* the chunk is there */
        WalkPlan plan = plan_walk(c, first, n, a.n);
        if (has_columns) {
            if (first && plan.fetch & 1) load_part<N4, FAST>(s, column_at(a, l, c.src[0]), l);
            walk_chunk<N4, FAST>(s, a, c, plan, to, l, (int)threadIdx.x / LANES, first, n);
        }
        __syncthreads(); /* and may be overwritten */
    }
}

extern "C" void CUDA_NAME(gated_delta)(const CudaContext *c, const GatedDelta *a)
{
    int blocks = (a->d_v + BLOCK_COLS - 1) / BLOCK_COLS;
    int fast = a->d_v % COLS == 0 && is_aligned(a->q) && is_aligned(a->k) &&
               slots_aligned(&a->slots, a->slots.state_offset);
    void (*kernel)(GatedDelta) = gated_delta_kernel<MAX_D_K / 32, false>;
    assert(a->d_k >= 1 && a->d_k <= MAX_D_K);
    if (a->prefill && a->n > 0) {
        CUDA_NAME(gated_delta_prefill)(c, a);
        return;
    }
    if (fast && a->d_k == 64) kernel = gated_delta_kernel<2, true>;
    if (fast && a->d_k == 128) kernel = gated_delta_kernel<4, true>;
    if (fast && a->d_k == 256) kernel = gated_delta_kernel<8, true>;
    launch(c, dim3((unsigned)(a->n_v_heads * blocks)), DELTA_THREADS, 0, kernel, *a);
}

/* ---- delta_fold ---- */

/*
 * Grid: x the blocks of a layer's state as in gated_delta, then those of its channels; y layers, z
 * paths. A lane's columns and what it does to them are gated_delta's, and so are the bits. The last
 * block columns move the convolution's inputs, a channel a thread.
 *
 * Bytes: the state read and written, 126 MB for a path through 30 layers of 32 heads of 128 x 128,
 * 29 us at 4.3 TB/s; the records of a path are a few percent of that.
 */
static __device__ __forceinline__ DeltaFold layer_of(const DeltaFold &f, int layer)
{
    int64_t row = (int64_t)layer * f.layer_rows;
    DeltaFold a = f;
    a.qkv += row * (2 * f.n_k_heads * f.d_k + f.n_v_heads * f.d_v);
    a.k += row * f.n_k_heads * f.d_k;
    a.u += row * f.n_v_heads * f.d_v;
    a.decay += row * f.n_v_heads;
    a.slots.state_offset += (size_t)layer * f.layer_bytes;
    a.slots.conv_offset += (size_t)layer * f.layer_bytes;
    return a;
}

/* Of a layer's channels. Ascending m reads a row of the window before it is overwritten, if in
 * place. */
static __device__ void fold_inputs(const DeltaFold &a, const int32_t *path, int length, int block)
{
    int n_channels = 2 * a.n_k_heads * a.d_k + a.n_v_heads * a.d_v, older = a.width - 1;
    int c = block * DELTA_THREADS + (int)threadIdx.x;
    const float *old = slot_at(a.slots, a.from[blockIdx.z], a.slots.conv_offset);
    float *now = slot_at(a.slots, a.slot[blockIdx.z], a.slots.conv_offset);
    for (int m = 0; m < older && c < n_channels; m++) {
        int from = m + length;
        now[(int64_t)m * n_channels + c] =
            from < older ? old[(int64_t)from * n_channels + c]
                         : a.qkv[(int64_t)path[from - older] * n_channels + c];
    }
}

template <int N4, bool FAST>
static __global__ void __launch_bounds__(DELTA_THREADS) delta_fold_kernel(DeltaFold f, int blocks)
{
    grid_wait();
    DeltaFold a = layer_of(f, (int)blockIdx.y);
    const int32_t *path = a.path + (int64_t)blockIdx.z * a.stride;
    int32_t length = a.length[blockIdx.z];
    if (length == 0) return;
    if ((int)blockIdx.x >= blocks) {
        fold_inputs(a, path, length, (int)blockIdx.x - blocks);
        return;
    }
    DeltaLane l = lane_of<FAST>(a, (int)blockIdx.x);
    if (l.col - warp_lane() / LANES >= a.d_v) return;
    DeltaRecords records = records_of(a, a.k, a.u, l);
    DeltaRecord<N4> row, next;
    float s[N4][4];
    load_record<N4, FAST>(&row, records, l, path[0]);
    load_part<N4, FAST>(s, column_at(a, l, a.from[blockIdx.z]), l);
    for (int i = 0; i < length; i++) {
        if (i + 1 < length) load_record<N4, FAST>(&next, records, l, path[i + 1]);
        update_state<N4>(s, row.k, row.u, row.decay);
        if (i + 1 < length) row = next;
    }
    store_part<N4, FAST>(column_at(a, l, a.slot[blockIdx.z]), s, l);
}

extern "C" void CUDA_NAME(delta_fold)(const CudaContext *c, const DeltaFold *a)
{
    int blocks = a->n_v_heads * ((a->d_v + BLOCK_COLS - 1) / BLOCK_COLS);
    int n_channels = 2 * a->n_k_heads * a->d_k + a->n_v_heads * a->d_v;
    int conv = (n_channels + DELTA_THREADS - 1) / DELTA_THREADS;
    int fast = a->d_v % COLS == 0 && is_aligned(a->k) && a->layer_bytes % 16 == 0 &&
               slots_aligned(&a->slots, a->slots.state_offset);
    void (*kernel)(DeltaFold, int) = delta_fold_kernel<MAX_D_K / 32, false>;
    assert(a->d_k >= 1 && a->d_k <= MAX_D_K);
    if (fast && a->d_k == 64) kernel = delta_fold_kernel<2, true>;
    if (fast && a->d_k == 128) kernel = delta_fold_kernel<4, true>;
    if (fast && a->d_k == 256) kernel = delta_fold_kernel<8, true>;
    dim3 grid((unsigned)(blocks + conv), (unsigned)a->n_layers, (unsigned)a->n);
    launch(c, grid, DELTA_THREADS, 0, kernel, *a, blocks);
}
