/*
 * moe_few_router.h: the router's logits of up to 16 rows, and what one block makes of them, in one
 * launch; for moe.cu.
 *
 * A block per 16 outputs, of the router and one more for the shared expert's gate: 17 blocks for
 * 256 experts, whose 1 MB is on its way before the launch before it has ended. A warp takes one
 * slice of k, so an output is the sum that linear_tile.h defines. The block that comes last (a
 * ticket) routes the rows and makes the plan (moe_few_plan.h); which one that is shows in nothing.
 * Nobody knows before, so each looks up where the experts' matrices are: 12 KB into shared memory,
 * beside its weights.
 *
 * What is waited for, one after the other: terms of x; a barrier; logits out and the ticket; the
 * logits of all rows; a choice after the other, and the plan: of 256 experts and one row 6.8 us on
 * an H200 (2026-11-27), from the end of the launch before it, 6.9 of 4 rows.
 */
#ifndef OFFSHOOT_KERNELS_MOE_FEW_ROUTER_H
#define OFFSHOOT_KERNELS_MOE_FEW_ROUTER_H

#include "kernels/moe_few_plan.h"

enum { ROUTER_AHEAD = 2 }; /* k-blocks of a slice that are loaded at once: all, of 2,048 columns */

typedef WeightBlock<WEIGHT_BF16> RouterBlock;

/* Both matrices are in bf16, rows aligned. */
typedef struct {
    Weight router, shared_gate; /* [n_experts][dim]; [1][dim] */
    float *logits, *gate;       /* [n][n_experts]; [n] */
    Terms x;                    /* beside bf16 */
} Router;

/* Blocks that make logits: the last one, of the shared expert. */
SHARED_INLINE int router_tiles(const Router &r)
{
    return row_tiles(r.router.rows) + 1;
}

/* Drawn by the blocks that make logits. */
static __device__ uint32_t router_ticket;

/* This warp's slice of 16 rows. */
typedef struct {
    TileWeight w;
    int begin, end; /* k-blocks */
    RouterBlock next[ROUTER_AHEAD];
} RouterSlice;

/* Loads the first k-blocks and asks L2 for the others. */
static __device__ __forceinline__ void begin_slice(RouterSlice *s, int n_blocks)
{
    int slice = (int)threadIdx.x / WARP;
    s->begin = slice_begin(n_blocks, slice), s->end = slice_begin(n_blocks, slice + 1);
    UNROLL
    for (int i = 0; i < ROUTER_AHEAD; i++)
        if (s->begin + i < s->end) load_block<WEIGHT_BF16, 1>(s->w, s->begin + i, &s->next[i]);
    int at = s->begin + ROUTER_AHEAD < s->end ? s->begin + ROUTER_AHEAD : s->end;
    int bytes = (term_block_end(s->end - 1, s->w.cols) - at * K_BLOCK) * 2;
    const unsigned char *row = warp_lane() % 4 ? s->w.second : s->w.first;
    if (warp_lane() % 4 < 2 && bytes > 0) prefetch_l2(row + at * K_BLOCK * 2, (uint32_t)bytes);
}

template <int T>
static __device__ __forceinline__ void load_tiles(const Terms &x, const uint32_t (&at)[T],
                                                  int block, TermBlock (&out)[T])
{
    UNROLL
    for (int j = 0; j < T; j++)
        out[j] = load_terms(x.data + (size_t)at[j] * 16 + (size_t)block * TERM_BLOCK_BYTES);
}

/* sum[j] as tile_sum gives it for the slice. at[j]: see there. */
template <int T>
static __device__ __forceinline__ void router_sum(RouterSlice *s, const Terms &x,
                                                  const uint32_t (&at)[T], float (&sum)[T][2])
{
    enum { AT_ONCE = T <= 2 }; /* the terms of ROUTER_AHEAD k-blocks, as registers allow */
    float acc[T][4] = {};
    for (int b = s->begin; b < s->end; b += ROUTER_AHEAD) {
        TermBlock terms[ROUTER_AHEAD][T] = {};
        UNROLL
        for (int i = 0; AT_ONCE && i < ROUTER_AHEAD; i++)
            if (b + i < s->end) load_tiles<T>(x, at, b + i, terms[i]);
        UNROLL
        for (int i = 0; i < ROUTER_AHEAD; i++) {
            if (b + i >= s->end) continue;
            if (!AT_ONCE) load_tiles<T>(x, at, b + i, terms[i]);
            uint32_t a[K_STEPS][4];
            fragments<WEIGHT_BF16>(s->next[i], a);
            UNROLL
            for (int j = 0; j < T; j++)
                block_product<WEIGHT_BF16>(a, terms[i][j], 1, acc[j]);
            int next = b + i + ROUTER_AHEAD;
            if (next < s->end) load_block<WEIGHT_BF16, 1>(s->w, next, &s->next[i]);
        }
    }
    add_terms<T>(acc, sum);
}

/* The terms of all rows, a lane's columns of each tile; past the last row: as the last. */
template <int T>
static __device__ __forceinline__ void all_rows(const Terms &x, int n, uint32_t (&at)[T])
{
    UNROLL
    for (int j = 0; j < T; j++) {
        int row = j * TILE_COLUMN_ROWS + warp_lane() / 8;
        at[j] = term_offset(x, row < n ? row : n - 1);
    }
}

/* Logits, routing and the plan, beside the terms of x that the experts multiply. */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, T == 1 ? 2 : 1)
    router_few_kernel(FewPlan p, Router r, Split x)
{
    enum { TILE_FLOATS = T * TILE_COLUMN_ROWS * TILE_ROWS };
    static_assert(+TILE_FLOATS <= +TILE_THREADS, "a thread has one output");
    DYNAMIC_SHARED(uint4, memory);
    __shared__ float part[K_SLICES * TILE_FLOATS];
    __shared__ int is_last;
    int tile = (int)blockIdx.x, n_tiles = router_tiles(r), i = (int)threadIdx.x;
    if (tile >= n_tiles) {
        grid_wait();
        split_part<TYPE>(x, blockIdx.x - (unsigned)n_tiles);
        return;
    }
    int is_gate = tile == n_tiles - 1, rows = is_gate ? 1 : r.router.rows;
    FewShared shared = few_shared(p.a, memory);
    RouterSlice s;
    s.w = is_gate ? tile_weight(r.shared_gate, 0) : tile_weight(r.router, tile * TILE_ROWS);
    begin_slice(&s, r.x.n_blocks);
    begin_few_plan(p.a, shared);
    grid_wait();

    uint32_t at[T];
    float sum[T][2];
    all_rows<T>(r.x, p.a.n, at);
    router_sum<T>(&s, r.x, at, sum);
    store_tile<T>(sum, T, part + i / WARP * TILE_FLOATS);
    copies_wait<0>();
    __syncthreads();
    int row = (is_gate ? 0 : tile * TILE_ROWS) + i % TILE_ROWS, m = i / TILE_ROWS;
    if (m < p.a.n && row < rows)
        (is_gate ? r.gate : r.logits)[m * rows + row] = sum_slices(part + i, TILE_FLOATS);
    __syncthreads();
    if (i == 0) is_last = draw_ticket(&router_ticket, n_tiles);
    __syncthreads();
    if (is_last) make_few_plan(p, shared);
}

#endif
