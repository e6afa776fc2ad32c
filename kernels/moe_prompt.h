/*
 * moe_prompt.h: the experts' products for a prompt's rows, of which an expert has many; for moe.cu.
 *
 * A block per unit and 64 of the width, gate and up, then a block per unit and 128 outputs, both as
 * gemm_tile.h does it, or gemm_wgmma.h, with one block for each SM, which takes one tile after the
 * other; down h goes to memory, and a last kernel adds up. The sums are those of moe.cu's other
 * kernels, so which of them runs is no matter.
 *
 * Floor: each used expert's weights once, over the memory's rate. Prompts of 2,048 rows, 8 of 256
 * experts of 512 x 2,048 for each, on an H200 (2026-11-27): x in e4m3, as one term, up 390 us, down
 * 242, the plan 23; the weights alone take 190. In two terms, with a block for each tile, 570 and
 * 350.
 */
#ifndef OFFSHOOT_KERNELS_MOE_PROMPT_H
#define OFFSHOOT_KERNELS_MOE_PROMPT_H

#include "kernels/gemm_wgmma.h"
#include "kernels/moe_plan.h"

/* The pair of a unit whose terms this thread copies as its i-th piece; past the last: the last. */
template <int TERMS> static __device__ __forceinline__ int unit_row(const Unit &u, int i)
{
    return gemm_x_row<TERMS>(i) < u.n ? gemm_x_row<TERMS>(i) : u.n - 1;
}

/* A block per unit and 64 of the width; the first tile of a warp is gate's, the second up's. */
template <WeightType TYPE, int TERMS>
static __global__ void __launch_bounds__(TILE_THREADS, 1) up_gemm_kernel(Plan p)
{
    grid_wait();
    enum { BLOCK_ROWS = GEMM_W_WARPS * TILE_ROWS };
    DYNAMIC_SHARED(unsigned char, stages);
    int n_row_tiles = (p.a.width + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int unit = (int)blockIdx.x / n_row_tiles, x_row[GemmX<TERMS>::PIECES];
    if (unit >= *p.n_units) return;
    Unit u = p.unit[unit];
    int first_row = (int)blockIdx.x % n_row_tiles * BLOCK_ROWS;
    GemmRows<2> rows = {{p.a.gate[u.expert], p.a.up[u.expert]}, {first_row, first_row}, TILE_ROWS};
    UNROLL
    for (int i = 0; i < GemmX<TERMS>::PIECES; i++)
        x_row[i] = p.pair[u.first + unit_row<TERMS>(u, i)].row;
    float sum[2][GEMM_OWN][2] = {};
    gemm_sum<TYPE, 2, TERMS>(rows, p.x, x_row, u.n, stages, sum);

    int row = first_row + (int)threadIdx.x / WARP / GEMM_X_WARPS * TILE_ROWS + warp_lane() / 4;
    float *h = (float *)(void *)p.h.data;
    UNROLL
    for (int j = 0; j < GEMM_OWN; j++) {
        int i = gemm_own_row<TERMS>(j);
        if (i >= u.n) continue;
        float *out = h + (int64_t)(u.first + i) * p.h.n_blocks * K_BLOCK;
        UNROLL
        for (int k = 0; k < 2; k++)
            if (row + k * 8 < p.a.width) out[row + k * 8] = silu(sum[0][j][k]) * sum[1][j][k];
    }
}

/* A block per unit and 128 outputs. */
template <WeightType TYPE, int TERMS>
static __global__ void __launch_bounds__(TILE_THREADS, 1) down_gemm_kernel(Plan p)
{
    grid_wait();
    enum { WARP_ROWS = 2 * TILE_ROWS, BLOCK_ROWS = GEMM_W_WARPS * WARP_ROWS };
    DYNAMIC_SHARED(unsigned char, stages);
    int n_row_tiles = (p.a.dim + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int unit = (int)blockIdx.x / n_row_tiles, x_row[GemmX<TERMS>::PIECES];
    if (unit >= *p.n_units) return;
    Unit u = p.unit[unit];
    int first_row = (int)blockIdx.x % n_row_tiles * BLOCK_ROWS;
    Weight w = p.a.down[u.expert];
    GemmRows<2> rows = {{w, w}, {first_row, first_row + TILE_ROWS}, WARP_ROWS};
    UNROLL
    for (int i = 0; i < GemmX<TERMS>::PIECES; i++)
        x_row[i] = u.first + unit_row<TERMS>(u, i);
    float sum[2][GEMM_OWN][2] = {};
    gemm_sum<TYPE, 2, TERMS>(rows, p.h, x_row, u.n, stages, sum);

    int row = first_row + (int)threadIdx.x / WARP / GEMM_X_WARPS * WARP_ROWS + warp_lane() / 4;
    UNROLL
    for (int j = 0; j < GEMM_OWN; j++) {
        int i = gemm_own_row<TERMS>(j);
        if (i >= u.n) continue;
        float *y = p.y + (int64_t)(u.first + i) * p.a.dim;
        UNROLL
        for (int k = 0; k < 4; k++)
            if (row + k * 8 < p.a.dim) y[row + k * 8] = sum[k / 2][j][k % 2];
    }
}

/* Tiles of up_gemm_kernel by warpgroups: of a warp's 16 rows eight are gate's, eight up's. */
template <int TERMS> struct UpTiles {
    enum { WARP_ROWS = TILE_ROWS / 2, BLOCK_ROWS = WG_W_ROWS / 2 };
    const Plan &p;
    int n_row_tiles, n;
    __device__ WgmmaTile open(int id, WgmmaSource *of) const
    {
        Unit u = p.unit[id / n_row_tiles];
        int first = id % n_row_tiles * BLOCK_ROWS;
        Weight gate = p.a.gate[u.expert], up = p.a.up[u.expert];
        of->rows = WgmmaWeights{{gate, up}, {first, first}, WARP_ROWS};
        of->n_x = u.n;
        UNROLL
        for (int i = 0; i < WG_X_ROWS; i++)
            of->x_row[i] = p.pair[u.first + (wgmma_x_row(i) < u.n ? wgmma_x_row(i) : u.n - 1)].row;
        return WgmmaTile{{first, first},         WARP_ROWS, gate.rows, u.n,
                         {gate.scale, up.scale}, u.first};
    }
    __device__ void finish(const WgmmaTile &tile, const float (&sum)[WG_OWN][2]) const
    {
        int row = tile.first[0] + (int)threadIdx.x / WARP * WARP_ROWS + warp_lane() / 4;
        float *h = (float *)(void *)p.h.data + row;
        UNROLL
        for (int j = 0; j < WG_OWN; j++) {
            int i = wgmma_own_row<TERMS>(j);
            if (i < tile.n_x && row < p.a.width)
                h[(int64_t)(tile.own + i) * p.h.n_blocks * K_BLOCK] = silu(sum[j][0]) * sum[j][1];
        }
    }
};

/* Tiles of down_gemm_kernel by warpgroups. */
template <int TERMS> struct DownTiles {
    const Plan &p;
    int n_row_tiles, n;
    __device__ WgmmaTile open(int id, WgmmaSource *of) const
    {
        Unit u = p.unit[id / n_row_tiles];
        Weight w = p.a.down[u.expert];
        int first_row = id % n_row_tiles * WG_W_ROWS;
        WgmmaTile tile = wgmma_open(w, first_row, u.first, u.n, of);
        tile.own = u.first;
        return tile;
    }
    __device__ void finish(const WgmmaTile &tile, const float (&sum)[WG_OWN][2]) const
    {
        wgmma_store<TERMS>(tile, sum, p.y + (int64_t)tile.own * p.a.dim, p.a.dim);
    }
};

/* A block for each SM, which takes tiles as long as there are any: a tile has few k-blocks, as many
 * as it takes to fill the stages. Tickets: up's, down's. */
template <int TERMS>
static __global__ void __launch_bounds__(TILE_THREADS, 1) up_wgmma_kernel(Plan p)
{
    typedef UpTiles<TERMS> Tiles;
    grid_wait();
    WGMMA_SHARED(unsigned char, stages);
    int n_row_tiles = (p.a.width + Tiles::BLOCK_ROWS - 1) / Tiles::BLOCK_ROWS;
    wgmma_tiles<TERMS>(Tiles{p, n_row_tiles, *p.n_units * n_row_tiles}, p.x, p.tickets, stages);
}

template <int TERMS>
static __global__ void __launch_bounds__(TILE_THREADS, 1) down_wgmma_kernel(Plan p)
{
    grid_wait();
    WGMMA_SHARED(unsigned char, stages);
    int n_row_tiles = (p.a.dim + WG_W_ROWS - 1) / WG_W_ROWS;
    wgmma_tiles<TERMS>(DownTiles<TERMS>{p, n_row_tiles, *p.n_units * n_row_tiles}, p.h,
                       p.tickets + 1, stages);
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

#endif
