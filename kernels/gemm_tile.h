/*
 * gemm_tile.h: many rows of x times many rows of a matrix, by one block; for linear.cu and moe.cu.
 *
 * The sum is linear_tile.h's, to the bit: the same k's in each mma, the same blocks, slices and
 * terms; where x is e4m3 (PREFILL_FP8) its low terms are zeros, and are left out: an mma then has
 * eight rows of x for four. So how many rows meet in a call is a schedule, not a result. What
 * differs is who reads what: a block has 64 rows of x and 64 or 128 of W, and both go through
 * shared memory, 64 k's at a time, copied two such steps ahead of the warps, four of them along W
 * and two along x.
 *
 * Shared: three steps of 24 (FP8) or 32 KB (bf16) for 128 rows of W. A warp reads 3 KB of it for 16
 * mma, about what an SM gives in the time that they take. A thread holds 32 outputs of 128 rows of
 * W, each as the sums of a k-block, of a slice and of all: 160 registers. Of one term 16 KB and
 * 1.5 KB, and 96 registers.
 *
 * Floor: 4 operations for each product, for two terms; on an H200 (990 T operations/s in 16 bits)
 * 256 rows of a 17408 x 5120 matrix take 92 us; half of that for one.
 */
#ifndef OFFSHOOT_KERNELS_GEMM_TILE_H
#define OFFSHOOT_KERNELS_GEMM_TILE_H

#include "kernels/linear_tile.h"

enum {
    GEMM_X = 64, /* rows of x, a block */
    GEMM_X_WARPS = 2,
    GEMM_W_WARPS = TILE_WARPS / GEMM_X_WARPS,
    GEMM_X_ROWS = GEMM_X / GEMM_X_WARPS, /* of a warp */
    GEMM_OWN = GEMM_X_ROWS / 4,          /* whose sums a thread has */
    GEMM_STAGES = 3,
    HALF_K = K_BLOCK / 2,         /* k's of a stage */
    RUN_BYTES = 64,               /* one term of 32 k's */
    X_STEP_BYTES = 4 * RUN_BYTES, /* both terms of a stage's k's, in memory */
};

/* x in a stage. TERMS: of x in the 8 columns of an mma; 1: the low ones are zeros and stay away. */
template <int TERMS> struct GemmX {
    enum {
        TILE = 8 / TERMS, /* rows of x in an mma */
        TILES = GEMM_X_ROWS / TILE,
        TILE_OWN = TILE / 4, /* rows of a tile whose sums a thread has */
        ROW_BYTES = 2 * TERMS * RUN_BYTES,
        ROW_PIECES = ROW_BYTES / 16,
        PIECES = GEMM_X * ROW_PIECES / TILE_THREADS, /* a thread copies of a stage */
    };
};

/* M: tiles of 16 rows of W that a warp has. */
template <WeightType TYPE, int M, int TERMS> struct GemmStage {
    enum {
        W_ROWS = M * TILE_ROWS * GEMM_W_WARPS,
        W_HALF_BYTES = TYPE == WEIGHT_FP8 ? HALF_K : 2 * HALF_K,
        W_ROW_PIECES = W_HALF_BYTES / 16,
        W_PIECES = W_ROWS * W_ROW_PIECES / TILE_THREADS,
        W_BYTES = W_ROWS * W_HALF_BYTES,
        UNITS_AT =
            W_BYTES + GEMM_X * GemmX<TERMS>::ROW_BYTES, /* a float each row of x, of odd halves */
        BYTES = UNITS_AT + (TYPE == WEIGHT_FP8 ? GEMM_X * 4 : 0),
        ALL_BYTES = GEMM_STAGES * BYTES,
    };
};

/* Tile m of the v-th warp along W: 16 rows of w[m] from first[m] + v * step on. */
template <int M> struct GemmRows {
    Weight w[M];
    int first[M], step;
};

/* What a thread copies: pieces of 16 bytes of rows of W and of x. */
template <WeightType TYPE, int M, int TERMS> struct GemmCopies {
    const unsigned char *w[GemmStage<TYPE, M, TERMS>::W_PIECES]; /* rows */
    const unsigned char *x[GemmX<TERMS>::PIECES];                /* pieces */
    const float *unit; /* of this thread's row of x; NULL where it brings none */
    int cols, aligned;
};

/* The row of the block's 64 whose terms this thread copies as its i-th piece of x. */
template <int TERMS> static __device__ __forceinline__ int gemm_x_row(int i)
{
    return ((int)threadIdx.x + i * TILE_THREADS) / GemmX<TERMS>::ROW_PIECES;
}

/* The row of the block's 64 of which this thread has the i-th of its GEMM_OWN sums. */
template <int TERMS> static __device__ __forceinline__ int gemm_own_row(int i)
{
    typedef GemmX<TERMS> X;
    int warp = (int)threadIdx.x / WARP % GEMM_X_WARPS, l = warp_lane() % 4;
    return warp * GEMM_X_ROWS + i / X::TILE_OWN * X::TILE + l * X::TILE_OWN + i % X::TILE_OWN;
}

/* x_row[i]: the row of x that is gemm_x_row(i) here. Rows of W past the last read as the last. */
template <WeightType TYPE, int M, int TERMS>
static __device__ __forceinline__ GemmCopies<TYPE, M, TERMS>
gemm_copies(const GemmRows<M> &rows, const Terms &x, const int (&x_row)[GemmX<TERMS>::PIECES])
{
    typedef GemmStage<TYPE, M, TERMS> S;
    typedef GemmX<TERMS> X;
    GemmCopies<TYPE, M, TERMS> c;
    c.cols = rows.w[0].cols;
    c.aligned = weight_row_bytes(&rows.w[0]) % 16 == 0;
    UNROLL
    for (int m = 0; m < M; m++)
        c.aligned &= (uintptr_t)rows.w[m].data % 16 == 0;
    UNROLL
    for (int i = 0; i < S::W_PIECES; i++) {
        int r = ((int)threadIdx.x + i * TILE_THREADS) / S::W_ROW_PIECES;
        int in_tile = r / (M * TILE_ROWS) * rows.step + r % TILE_ROWS, m = r / TILE_ROWS % M;
        int row = (m ? rows.first[M - 1] : rows.first[0]) + in_tile, last = rows.w[0].rows - 1;
        const void *data = m ? rows.w[M - 1].data : rows.w[0].data;
        c.w[i] = (const unsigned char *)data +
                 (int64_t)(row < last ? row : last) * weight_row_bytes(&rows.w[0]);
    }
    int piece = (int)threadIdx.x % X::ROW_PIECES, run = piece / (X::ROW_PIECES / 2);
    int in_row = run * 2 * RUN_BYTES + piece % (X::ROW_PIECES / 2) * 16;
    c.unit = NULL;
    UNROLL
    for (int i = 0; i < X::PIECES; i++) {
        c.x[i] = x.data + (int64_t)x_row[i] * x.n_blocks * TERM_BLOCK_BYTES + in_row;
        if (piece == i) c.unit = x.unit + (int64_t)x_row[i] * x.n_blocks;
    }
    return c;
}

/* Where piece `piece` of a row of W lies: rows of 128 bytes swap halves, so that two do not share
 * banks. */
template <WeightType TYPE> static __device__ __forceinline__ uint32_t w_piece_at(int row, int piece)
{
    if (TYPE == WEIGHT_FP8) return (uint32_t)(row * HALF_K + piece * 16);
    return (uint32_t)(row * HALF_K * 2 + (piece ^ (row & 1) * 4) * 16);
}

/* Where piece `piece` of a row of x lies: one term's rows are 128 bytes, too. */
template <int TERMS> static __device__ __forceinline__ uint32_t x_piece_at(int row, int piece)
{
    if (TERMS == 1) piece ^= (row & 1) * 4;
    return (uint32_t)(row * GemmX<TERMS>::ROW_BYTES + piece * 16);
}

/* Begins the copies of k's [64 half, 64 half + 64) to a stage. */
template <WeightType TYPE, int M, int TERMS>
static __device__ __forceinline__ void gemm_issue(const GemmCopies<TYPE, M, TERMS> &c, int half,
                                                  unsigned char *stage)
{
    typedef GemmStage<TYPE, M, TERMS> S;
    typedef GemmX<TERMS> X;
    int x_piece = (int)threadIdx.x % X::ROW_PIECES;
    int piece = (int)threadIdx.x % S::W_ROW_PIECES;
    int k = half * HALF_K + piece * WeightBlock<TYPE>::PIECE_K;
    UNROLL
    for (int i = 0; i < S::W_PIECES; i++) {
        int row = ((int)threadIdx.x + i * TILE_THREADS) / S::W_ROW_PIECES;
        unsigned char *to = stage + w_piece_at<TYPE>(row, piece);
        if (!c.aligned)
            *(uint4 *)(void *)to = gather_16<TYPE>(c.w[i], k, c.cols);
        else if (k >= c.cols)
            *(uint4 *)(void *)to = uint4{0, 0, 0, 0};
        else
            copy_16(to, c.w[i] + (TYPE == WEIGHT_FP8 ? k : k * 2));
    }
    UNROLL
    for (int i = 0; i < X::PIECES; i++)
        copy_16(stage + S::W_BYTES + x_piece_at<TERMS>(gemm_x_row<TERMS>(i), x_piece),
                c.x[i] + (int64_t)half * X_STEP_BYTES);
    if (TYPE == WEIGHT_FP8 && half % 2 && c.unit)
        copy_4(stage + S::UNITS_AT + gemm_x_row<TERMS>(x_piece) * 4, c.unit + half / 2);
}

/* t += a stage's products; tiles of x from n_tiles on are left out. */
template <WeightType TYPE, int M, int TERMS>
static __device__ __forceinline__ void gemm_products(const unsigned char *stage, int n_tiles,
                                                     float (&t)[M][GemmX<TERMS>::TILES][4])
{
    typedef GemmStage<TYPE, M, TERMS> S;
    typedef GemmX<TERMS> X;
    int g = warp_lane() / 4, l = warp_lane() % 4, warp = (int)threadIdx.x / WARP;
    int w_row = warp / GEMM_X_WARPS * M * TILE_ROWS + g;
    /* column g of a tile: of two terms the (g % 2)-th of row g / 2; a step is half a row */
    int x_row = warp % GEMM_X_WARPS * GEMM_X_ROWS + g / TERMS;
    const unsigned char *x = stage + S::W_BYTES;
    uint4 first[M], second[M];
    UNROLL
    for (int i = 0; i < 2; i++) { /* two mma steps, 32 k's */
        UNROLL
        for (int m = 0; m < M; m++) {
            if (TYPE == WEIGHT_FP8 && i) continue; /* a piece serves all four */
            int row = w_row + m * TILE_ROWS, piece = TYPE == WEIGHT_FP8 ? l : i * 4 + l;
            first[m] = *(const uint4 *)(const void *)(stage + w_piece_at<TYPE>(row, piece));
            second[m] = *(const uint4 *)(const void *)(stage + w_piece_at<TYPE>(row + 8, piece));
        }
        uint32_t a[M][2][4];
        UNROLL
        for (int m = 0; m < M; m++) {
            UNROLL
            for (int s = 0; s < 2; s++) {
                if (TYPE == WEIGHT_FP8) {
                    fp8_to_fp16_pairs(word_of(first[m], i * 2 + s), &a[m][s][0], &a[m][s][2]);
                    fp8_to_fp16_pairs(word_of(second[m], i * 2 + s), &a[m][s][1], &a[m][s][3]);
                } else {
                    a[m][s][0] = word_of(first[m], s * 2);
                    a[m][s][1] = word_of(second[m], s * 2);
                    a[m][s][2] = word_of(first[m], s * 2 + 1);
                    a[m][s][3] = word_of(second[m], s * 2 + 1);
                }
            }
        }
        UNROLL
        for (int j = 0; j < X::TILES; j++) {
            if (j >= n_tiles) continue;
            int piece = i * (X::ROW_PIECES / 2) + g % TERMS * (RUN_BYTES / 16) + l;
            uint4 b =
                *(const uint4 *)(const void *)(x + x_piece_at<TERMS>(x_row + j * X::TILE, piece));
            UNROLL
            for (int s = 0; s < 2; s++) {
                uint32_t bs[2] = {word_of(b, s * 2), word_of(b, s * 2 + 1)};
                UNROLL
                for (int m = 0; m < M; m++) {
                    if (TYPE == WEIGHT_FP8)
                        mma_fp16(t[m][j], a[m][s], bs);
                    else
                        mma_bf16(t[m][j], a[m][s], bs);
                }
            }
        }
    }
}

/* acc += scale unit t, t = 0: a block's end, with what the stage of its odd half has brought. */
template <WeightType TYPE, int M, int TERMS>
static __device__ __forceinline__ void
gemm_end_block(const float (&scale)[M], const unsigned char *stage,
               float (&t)[M][GemmX<TERMS>::TILES][4], float (&acc)[M][GemmX<TERMS>::TILES][4])
{
    typedef GemmX<TERMS> X;
    const float *unit = (const float *)(const void *)(stage + GemmStage<TYPE, M, TERMS>::UNITS_AT);
    UNROLL
    for (int j = 0; j < X::TILES; j++) {
        float of_x[2] = {1, 1}; /* an mma's columns 2 l and 2 l + 1 */
        UNROLL
        for (int i = 0; i < 2 && TYPE == WEIGHT_FP8; i++)
            of_x[i] = unit[gemm_own_row<TERMS>(j * X::TILE_OWN + (TERMS == 1 ? i : 0))];
        UNROLL
        for (int m = 0; m < M; m++)
            UNROLL
        for (int i = 0; i < 4; i++) {
            acc[m][j][i] = TYPE == WEIGHT_FP8
                               ? fmaf(scale[m] * of_x[i % 2], t[m][j][i], acc[m][j][i])
                               : acc[m][j][i] + t[m][j][i];
            t[m][j][i] = 0;
        }
    }
}

/* sum += high and low terms' sums, acc = 0: a slice's end. */
template <int M, int TERMS>
static __device__ __forceinline__ void gemm_end_slice(float (&acc)[M][GemmX<TERMS>::TILES][4],
                                                      float (&sum)[M][GEMM_OWN][2])
{
    typedef GemmX<TERMS> X;
    UNROLL
    for (int m = 0; m < M; m++)
        UNROLL
    for (int j = 0; j < X::TILES; j++) {
        const float *a = acc[m][j];
        UNROLL
        for (int i = 0; i < X::TILE_OWN; i++) {
            sum[m][j * X::TILE_OWN + i][0] += TERMS == 2 ? a[0] + a[1] : a[i];
            sum[m][j * X::TILE_OWN + i][1] += TERMS == 2 ? a[2] + a[3] : a[2 + i];
        }
        acc[m][j][0] = acc[m][j][1] = acc[m][j][2] = acc[m][j][3] = 0;
    }
}

/*
 * sum += what this warp has of rows times the block's n_x rows of x: with g = lane / 4, l = lane %
 * 4 and the warp the v-th along W, sum[m][i][0] is row g of tile m of v, sum[m][i][1] row g + 8,
 * for row gemm_own_row(i) of x. shared: GemmStage::ALL_BYTES of the block.
 */
template <WeightType TYPE, int M, int TERMS>
static __device__ __forceinline__ void gemm_sum(const GemmRows<M> &rows, const Terms &x,
                                                const int (&x_row)[GemmX<TERMS>::PIECES], int n_x,
                                                unsigned char *shared, float (&sum)[M][GEMM_OWN][2])
{
    typedef GemmStage<TYPE, M, TERMS> S;
    typedef GemmX<TERMS> X;
    const GemmCopies<TYPE, M, TERMS> copies = gemm_copies<TYPE, M, TERMS>(rows, x, x_row);
    int warp = (int)threadIdx.x / WARP, v_row = warp / GEMM_X_WARPS * rows.step;
    int left = n_x - warp % GEMM_X_WARPS * GEMM_X_ROWS;
    int n_tiles = left > 0 ? (left + X::TILE - 1) / X::TILE : 0;
    if (rows.first[0] + v_row >= rows.w[0].rows) n_tiles = 0; /* nothing of W here either */
    const float *scale_row[M];
    float t[M][X::TILES][4] = {}, acc[M][X::TILES][4] = {}, scale[M];
    UNROLL
    for (int m = 0; m < M; m++) {
        int row = rows.first[m] + v_row;
        scale[m] = 1;
        if (TYPE == WEIGHT_FP8)
            scale_row[m] = rows.w[m].scale + (int64_t)(row / FP8_BLOCK) * x.n_blocks;
    }

    int n_halves = 2 * x.n_blocks, slice = 0;
    for (int h = 0; h < GEMM_STAGES - 1; h++) {
        gemm_issue<TYPE, M, TERMS>(copies, h, shared + h * S::BYTES);
        copies_commit();
    }
    for (int h = 0; h < n_halves; h++) {
        copies_wait<GEMM_STAGES - 2>();
        __syncthreads(); /* stage h is there, and nobody reads stage h - 1 any more */
        int ahead = h + GEMM_STAGES - 1;
        if (ahead < n_halves)
            gemm_issue<TYPE, M, TERMS>(copies, ahead, shared + ahead % GEMM_STAGES * S::BYTES);
        copies_commit();
        if (!n_tiles) continue;
        int b = h / 2;
        UNROLL
        for (int m = 0; m < M; m++)
            if (TYPE == WEIGHT_FP8 && h % 2 == 0) scale[m] = scale_row[m][b];
        gemm_products<TYPE, M, TERMS>(shared + h % GEMM_STAGES * S::BYTES, n_tiles, t);
        if (h % 2 == 0) continue;
        gemm_end_block<TYPE, M, TERMS>(scale, shared + h % GEMM_STAGES * S::BYTES, t, acc);
        while (slice_begin(x.n_blocks, slice + 1) <= b)
            slice++;
        if (slice_begin(x.n_blocks, slice + 1) == b + 1) gemm_end_slice<M, TERMS>(acc, sum);
    }
}

#endif
