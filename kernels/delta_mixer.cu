/*
 * delta_mixer.cu: conv_gates, gated_delta and gated_norm of few rows as one launch.
 *
 * Each of the three is below a microsecond of work behind a launch of three, so one block does what
 * it needs of them, in their order and to the bit:
 * - Grid: BLOCKS_OF_HEAD blocks for each value head, MIX_COLS columns each: for 32 heads 128 blocks
 *   of 8 warps, about one for each SM.
 * - conv: a block makes q, k and the gates of its head for all rows, and v of its columns, in
 *   shared memory. The blocks of a key head make the same q and k, 8 times for 2 value heads: a
 *   warp a row and some 250 instructions, on SMs that would else wait for the one that makes them.
 *   One of the blocks keeps k, and one of each value head the decays, as records.
 * - delta: each warp walks over the rows with its four columns, as gated_delta's do (delta_walk.h).
 * - norm: the block of a head that comes last (a ticket) norms the head's rows, a warp a row, and
 *   leaves their terms. What is added up does not depend on which block that is.
 *
 * The last inputs that rows leave in slots: those of v's channels are read by the block alone that
 * leaves them. Those of q's and k's are read by all blocks of the key head, so the last of these to
 * come leaves them (another ticket).
 *
 * What is waited for, one after the other: what rows bring, src and dst among it; the state, and
 * beside it inputs that lie in slots; a barrier; the rows, some 350 cycles each; out, the ticket,
 * out again. On an H200 (2026-11-27) a launch of one row by itself takes 9.7 us for 48 heads under
 * Nsight Compute, and a pass of 27B 5.9 us more with it than without, of 4 rows 7.6: round trips to
 * memory behind weights that are on their way. Bytes: as gated_delta.h says.
 */
#include "kernels/delta_conv.h"
#include "kernels/delta_walk.h"
#include "kernels/norm_parts.h"
#include "kernels/simt_copy.h"

#include <assert.h>

enum {
    HEAD = 128,
    MIX_COLS = 32,
    BLOCKS_OF_HEAD = HEAD / MIX_COLS,
    MIX_THREADS = MIX_COLS * LANES,
    MIX_WARPS = MIX_THREADS / WARP,
    MIX_ROWS = 16,
    MAX_HEADS = 256,
    K_AT = HEAD, /* of a row's channels in a block: first q's, then k's from here on, then v's */
    V_AT = 2 * HEAD,
    V_FOURS = MIX_COLS / 4,
    V_ROWS = WARP / V_FOURS,       /* whose v a warp makes at once */
    V_WARPS = MIX_ROWS / V_ROWS,   /* from the last warp down */
    GATE_WARP = MIX_WARPS / 2 - 1, /* which has no v to make */
};
static_assert(+HEAD == +TILE && +HEAD == +K_BLOCK, "a warp makes a row of a head, and its terms");
static_assert(V_WARPS <= MIX_WARPS / 2, "a warp makes v once, and not the gates");

typedef DeltaChunk<HEAD / (4 * LANES), MIX_COLS> MixChunk;
static_assert(+MIX_ROWS <= +MixChunk::ROWS, "all rows are one chunk");

/* Of a block. */
typedef struct {
    MixChunk c;
    alignas(16) float raw[MIX_ROWS][V_AT + MIX_COLS]; /* what rows bring: q and k, v of the block */
    alignas(16) const
        float *input[MIX_ROWS][4]; /* a row of raw, or, bit by bit, of a slot's inputs */
    uint32_t in_slot[MIX_ROWS];
    int pass[MIX_ROWS];      /* in which a row leaves its inputs in slot dst; 0: it does not */
    int n_leave;             /* rows that do */
    int ends_head, ends_key; /* this block is the last */
} Mix;

/* Drawn by the blocks of each value head, and by those of each key head. */
static __device__ uint32_t head_tickets[MAX_HEADS], key_tickets[MAX_HEADS];

/* Where in the model's heads a block works. */
typedef struct {
    int head, key_head, per_key; /* value heads of a key head */
    int first_col;
    int k_c, n_channels; /* channels: first those of q's heads, k's from k_c on, then v's */
} MixPlace;

static __device__ __forceinline__ MixPlace place_of_block(const ConvGates &a)
{
    int head = (int)blockIdx.x / BLOCKS_OF_HEAD, per_key = a.n_v_heads / a.n_k_heads;
    int k_c = a.n_k_heads * HEAD;
    return MixPlace{head,    head / per_key,
                    per_key, (int)blockIdx.x % BLOCKS_OF_HEAD * MIX_COLS,
                    k_c,     2 * k_c + a.n_v_heads * HEAD};
}

/* The channel of raw's `at`-th. */
static __device__ __forceinline__ int channel_of(const MixPlace &p, int at)
{
    if (at >= V_AT) return 2 * p.k_c + p.head * HEAD + p.first_col + at - V_AT;
    return p.key_head * HEAD + (at < K_AT ? at : p.k_c + at - K_AT);
}

/* ---- slots ---- */

/* Of row warp_lane(), or -1. */
typedef struct {
    int32_t src, dst, parent;
} RowSlots;

static __device__ __forceinline__ RowSlots load_slots(const ConvGates &a)
{
    int i = warp_lane(), is_row = i < a.n;
    return RowSlots{is_row ? a.src[i] : -1, is_row ? a.dst[i] : -1,
                    is_row && a.parent ? a.parent[i] : -1};
}

static __device__ __forceinline__ int32_t shuffle_int(int32_t x, int lane)
{
    return (int32_t)warp_shuffle((uint32_t)x, lane);
}

/* By one warp, a row a lane: where all rows' inputs lie, and when they leave them. The rules are
 * those of gated_delta.cu's find_inputs and pass_of. */
static __device__ __forceinline__ void look_at_rows(Mix *mix, const ConvGates &a, const MixPlace &p,
                                                    const RowSlots &row)
{
    int i = warp_lane(), is_row = i < a.n;
    int32_t src = row.src, dst = row.dst;
    int first_to = a.n, first_from = a.n, last_to = -1;  /* rows with this dst as dst, as src */
    int before[3] = {dst < 0 ? row.parent : -1, -1, -1}; /* the row that it follows, and so on */
    for (int j = 0; j < a.n; j++) {
        int32_t from = shuffle_int(src, j), to = shuffle_int(dst, j);
        if (dst >= 0 && to == src && j < i) before[0] = j;
        if (to == dst) last_to = j;
        if (to == dst && j < first_to) first_to = j;
        if (from == dst && j < first_from) first_from = j;
    }
    int root = before[0] < 0 ? i : before[0], n_before = before[0] >= 0;
    for (int d = 1; d < 3; d++) {
        int32_t next = shuffle_int(before[0], before[d - 1] < 0 ? 0 : before[d - 1]);
        if (before[d - 1] < 0) continue;
        before[d] = next;
        n_before += next >= 0;
        if (next >= 0) root = next;
    }
    int32_t slot = shuffle_int(src, root);
    int pass = dst < 0 || last_to > i ? 0 : first_from <= first_to ? PASS_FOUND : PASS_OUTPUT;
    uint32_t leave = warp_ballot(is_row && pass);
    if (i == 0) mix->n_leave = __popc(leave);
    if (!is_row) return;
    mix->c.src[i] = src, mix->c.dst[i + 1] = dst, mix->c.parent[i] = row.parent;
    mix->pass[i] = pass;
    const float *window = slot_at(a.slots, slot, a.slots.conv_offset);
    uint32_t in_slot = 0;
    mix->input[i][3] = mix->raw[i];
    for (int m = 0; m < 3; m++) {
        int from = before[2 - m];
        if (from < 0) in_slot |= 1u << m;
        mix->input[i][m] =
            from < 0 ? window + (int64_t)(m + n_before) * p.n_channels : mix->raw[from];
    }
    mix->in_slot[i] = in_slot;
}

/* Where input m of a row lies, from channel c on, the at-th of raw's. */
static __device__ __forceinline__ const float *input_at(const Mix &mix, int row, int m, int at,
                                                        int c)
{
    return mix.input[row][m] + (mix.in_slot[row] >> m & 1 ? c : at);
}

/* Leaves the last inputs of n channels, the at-th of raw's and after: no other block reads them any
 * more. All of a row's are read before one is written: some may come from that very slot. */
static __device__ __forceinline__ void leave_channels(const Mix &mix, const ConvGates &a,
                                                      const MixPlace &p, int at, int n)
{
    int lane_at = at + 4 * warp_lane(), c = channel_of(p, lane_at);
    for (int pass = PASS_OUTPUT; pass <= PASS_FOUND; pass++) {
        for (int row = (int)threadIdx.x / WARP; row < a.n; row += MIX_WARPS) {
            if (mix.pass[row] != pass || 4 * warp_lane() >= n) continue;
            float *to = slot_at(a.slots, mix.c.dst[row + 1], a.slots.conv_offset) + c, x[3][4];
            for (int m = 0; m < 3; m++)
                load4<true>(x[m], input_at(mix, row, m + 1, lane_at, c), 4);
            for (int m = 0; m < 3; m++)
                store4<true>(to + (int64_t)m * p.n_channels, x[m], 4);
        }
        __syncthreads();
    }
}

/* ---- conv ---- */

/* Begins to copy what all rows bring for the block, a warp a row. */
static __device__ __forceinline__ void copy_raw(Mix *mix, const ConvGates &a, const MixPlace &p)
{
    int at = 4 * warp_lane();
    UNROLL
    for (int j = 0; j < MIX_ROWS / MIX_WARPS; j++) {
        int row = (int)threadIdx.x / WARP + j * MIX_WARPS;
        if (row >= a.n) break;
        const float *from = a.qkv + (int64_t)row * p.n_channels;
        copy_16(&mix->raw[row][at], from + channel_of(p, at));
        copy_16(&mix->raw[row][K_AT + at], from + channel_of(p, K_AT + at));
        if (at < MIX_COLS) copy_16(&mix->raw[row][V_AT + at], from + channel_of(p, V_AT + at));
    }
    copies_commit();
}

/* Four channels of the convolution, of which w are the weights. */
static __device__ __forceinline__ void make_four(const Mix &mix, const ConvGates &a,
                                                 const MixPlace &p, const float w[4][4], int row,
                                                 int at, float y[4])
{
    const float *input[4];
    int c = channel_of(p, at);
    for (int m = 0; m < 4; m++)
        input[m] = input_at(mix, row, m, at, c);
    convolve<true>(a, w, input, 0, 4, y);
}

/* What a lane makes: four channels of q or k (by the warp's parity), and of v. */
typedef struct {
    int at, v_at;    /* of raw's */
    int first_v_row; /* the row whose v it makes, or MIX_ROWS */
    float w[4][4], v_w[4][4];
    float a_coef, dt_bias;
} MixLane;

static __device__ __forceinline__ MixLane mix_lane(const ConvGates &a, const MixPlace &p)
{
    int warp = (int)threadIdx.x / WARP, lane = warp_lane();
    MixLane l = {};
    l.at = warp % 2 * K_AT + 4 * lane;
    l.v_at = V_AT + lane % V_FOURS * 4;
    l.first_v_row = MIX_ROWS;
    load_taps<true>(a, channel_of(p, l.at), l.w);
    if (warp >= MIX_WARPS - V_WARPS) {
        l.first_v_row = (MIX_WARPS - 1 - warp) * V_ROWS + lane / V_FOURS;
        load_taps<true>(a, channel_of(p, l.v_at), l.v_w);
    }
    if (warp == GATE_WARP) l.a_coef = a.a_coef[p.head], l.dt_bias = a.dt_bias[p.head];
    return l;
}

/* All rows' q and k, and this block's v. One block of a key head keeps k, where rows leave no
 * state. */
static __device__ __forceinline__ void make_rows(Mix *mix, const ConvGates &a, const MixPlace &p,
                                                 const MixLane &l)
{
    int is_k = l.at >= K_AT, at = 4 * warp_lane();
    int keeps_k = is_k && p.head % p.per_key == 0 && p.first_col == 0;
    float y[4], length = is_k ? 1.0f : 1.0f / sqrtf((float)HEAD);
    for (int unit = (int)threadIdx.x / WARP; unit < 2 * a.n; unit += MIX_WARPS) {
        int row = unit / 2;
        make_four(*mix, a, p, l.w, row, l.at, y);
        float scale = length_scale(activate(y, 0), length);
        for (int j = 0; j < 4; j++)
            y[j] *= scale;
        store4<true>(is_k ? &mix->c.k[row][at] : &mix->c.q[row][at], y, 4);
        if (keeps_k && mix->c.dst[row + 1] < 0)
            store4<true>(a.k + ((int64_t)row * a.n_k_heads + p.key_head) * HEAD + at, y, 4);
    }
    if (l.first_v_row >= a.n) return;
    make_four(*mix, a, p, l.v_w, l.first_v_row, l.v_at, y);
    activate(y, 0);
    for (int j = 0; j < 4; j++)
        mix->c.v[l.first_v_row][l.v_at - V_AT + j] = y[j];
}

/* ---- norm ---- */

/* A head of all rows, a warp a row. */
static __device__ __forceinline__ void norm_rows(const GatedNorm &a, const NewTerms &terms,
                                                 int head)
{
    enum { AT_ONCE = MIX_ROWS / MIX_WARPS };
    float w[2][2], x[AT_ONCE][2][2], z[AT_ONCE][2][2];
    int warp = (int)threadIdx.x / WARP;
    load_block(w, a.w, 0, HEAD);
    UNROLL
    for (int j = 0; j < AT_ONCE; j++) {
        int64_t row = warp + j * MIX_WARPS, at = (row * a.n_heads + head) * HEAD;
        load_block(x[j], a.x + at, 0, row < a.n ? HEAD : 0);
        load_block(z[j], a.z + at, 0, row < a.n ? HEAD : 0);
    }
    UNROLL
    for (int j = 0; j < AT_ONCE; j++) {
        int64_t row = warp + j * MIX_WARPS;
        if (row >= a.n) continue;
        gate_block(x[j], norm_scale(warp_sum(add_squares(x[j], 0), WARP), HEAD, a.eps), w, z[j]);
        store_block(a.out + (row * a.n_heads + head) * HEAD, 0, HEAD, x[j]);
        leave_terms(terms, row, head, x[j]);
    }
}

/* ---- all of it ---- */

static __global__ void __launch_bounds__(MIX_THREADS, 2)
    delta_mixer_kernel(DeltaMixer a, NewTerms terms)
{
    enum { N4 = HEAD / (4 * LANES) };
    __shared__ Mix mix;
    int n = a.n, tid = (int)threadIdx.x, warp = tid / WARP, col = tid / LANES;
    MixPlace p = place_of_block(a.conv);
    MixLane m = mix_lane(a.conv, p);
    DeltaLane l = {p.head, p.key_head, p.first_col + col, 4 * (warp_lane() % LANES), HEAD};
    int gate = warp == GATE_WARP && warp_lane() < n ? warp_lane() * a.conv.n_v_heads + p.head : -1;
    float s[N4][4], beta = 0, decay = 0;
    RowSlots slots = {};
    grid_wait();

    int32_t src = a.delta.src[0];
    if (warp == 0) slots = load_slots(a.conv);
    if (gate >= 0) beta = a.conv.b[gate], decay = a.conv.a[gate];
    copy_raw(&mix, a.conv, p);
    load_part<N4, true>(s, column_at(a.delta, l, src), l);
    if (warp == 0) look_at_rows(&mix, a.conv, p, slots);
    copies_wait<0>();
    __syncthreads();

    make_rows(&mix, a.conv, p, m);
    if (gate >= 0) {
        int row = warp_lane();
        mix.c.beta[row] = sigmoid(beta);
        mix.c.decay[row] = decay = decay_of(m.a_coef, decay, m.dt_bias);
        if (p.first_col == 0 && mix.c.dst[row + 1] < 0) a.conv.decay[gate] = decay;
    }
    __syncthreads();

    int64_t stride = (int64_t)a.conv.n_v_heads * HEAD;
    float *u = a.delta.v + p.head * HEAD;
    WalkArrays to = {a.delta.out + p.head * HEAD, u, stride,
                     DeltaRecords{mix.c.k[0], u, mix.c.decay, MixChunk::KEYS, stride, 1},
                     mix.c.parent};
    walk_chunk<N4, true>(s, a.delta, mix.c, plan_walk(mix.c, 0, n, n), to, l, col, 0, n);
    __syncthreads();

    if (tid == 0) mix.ends_head = draw_ticket(&head_tickets[p.head], BLOCKS_OF_HEAD);
    if (tid == WARP)
        mix.ends_key =
            mix.n_leave && draw_ticket(&key_tickets[p.key_head], p.per_key * BLOCKS_OF_HEAD);
    if (mix.n_leave) leave_channels(mix, a.conv, p, V_AT, MIX_COLS);
    __syncthreads();
    if (mix.ends_head) norm_rows(a.norm, terms, p.head);
    if (!mix.ends_key) return;
    leave_channels(mix, a.conv, p, 0, HEAD);
    leave_channels(mix, a.conv, p, K_AT, HEAD);
}

/* Whether one launch can do it. */
static int is_few(const DeltaMixer *a)
{
    const ConvGates *conv = &a->conv;
    return a->n <= MIX_ROWS && !a->delta.prefill && conv->d_k == HEAD && conv->d_v == HEAD &&
           conv->width == 4 && conv->n_v_heads <= MAX_HEADS && is_aligned(conv->qkv) &&
           is_aligned(conv->conv_w) && is_aligned(conv->k) &&
           slots_aligned(&conv->slots, conv->slots.conv_offset) &&
           slots_aligned(&a->delta.slots, a->delta.slots.state_offset);
}

extern "C" void CUDA_NAME(delta_mixer)(const CudaContext *c, const DeltaMixer *a)
{
    int heads = a->norm.n_heads, cols = heads * a->norm.dim;
    assert(a->conv.n == a->n && a->delta.n == a->n && a->norm.n == a->n);
    assert(a->norm.x == a->delta.out && a->norm.out == a->delta.out);
    if (is_few(a)) {
        launch(c, dim3((unsigned)(heads * BLOCKS_OF_HEAD)), MIX_THREADS, 0, delta_mixer_kernel, *a,
               new_terms(c, a->norm.out, a->n, cols, cols));
        return;
    }
    CUDA_NAME(conv_gates)(c, &a->conv);
    CUDA_NAME(gated_delta)(c, &a->delta);
    CUDA_NAME(gated_norm)(c, &a->norm);
}
