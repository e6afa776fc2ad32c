/*
 * gemm_wgmma.h: many rows of x times many rows of a matrix in FP8, by a block of two warpgroups
 * with wgmma; for linear.cu and moe.cu, on Hopper.
 *
 * The sum is linear_tile.h's, with the same k's in the same places of each product as gemm_tile.h:
 * a schedule, where wgmma adds up as mma does (wgmma_check.h asks the GPU). A block has 128 rows of
 * W, 16 a warp, and 64 of x. W comes through shared memory 64 k's at a time and is A, converted on
 * its way from there to registers. The terms of x are B, for which they lie row by row in memory
 * (TERMS_BY_ROW): each of a row's terms is a column, two to a row of x, or one where x is e4m3 and
 * its low terms are zeros.
 *
 * A block's columns are halves, whose sums of a k-block are added to a slice's in turn: meanwhile
 * the tensor cores have the other half's products, as at the barrier, each k-block, those of both.
 * A thread holds 32 outputs, for two terms as 64 sums of a k-block, 64 of a slice and 32 of all.
 *
 * Shared: 8 stages of 24 KB (two terms), two a k-block, copied 3 k-blocks ahead; for one term 16
 * KB.
 *
 * Floor: 4 operations a product for two terms, on an H200 (990 T operations/s in 16 bits) 2,048
 * rows of 17408 x 5120 740 us; half of that for one. Measured: 1,620 to 1,780 us. A k-block is
 * 1,024 clocks of the tensor cores and takes some 2,000: without the copies 1,640, though they come
 * in time: 48 KB a k-block are some 400 clocks of the same shared memory that B and W are read
 * from.
 */
#ifndef OFFSHOOT_KERNELS_GEMM_WGMMA_H
#define OFFSHOOT_KERNELS_GEMM_WGMMA_H

#include "kernels/gemm_tile.h"
#include "kernels/wgmma.h"

enum {
    WG_STAGES = 8, /* of 64 k's, two a k-block */
    WG_AHEAD = 3,  /* k-blocks: the one before this one may still be read by products */
    WG_W_ROWS = TILE_WARPS * TILE_ROWS,
    WG_W_STEP = TILE_THREADS / (HALF_K / 16), /* rows that all threads copy at once */
    WG_W_PIECES = WG_W_ROWS / WG_W_STEP,      /* a thread copies of a stage */
    WG_X_STEP = TILE_THREADS / (WGMMA_ROW / 16),
    WG_X_ROWS = GEMM_X / WG_X_STEP, /* of x, of which a thread copies one piece of each term */
    WG_OWN = GEMM_X / 4,            /* rows of x, of which a thread has sums */
    STEPS = HALF_K / 16,
};

template <int TERMS> struct WgmmaStage {
    enum {
        COLUMNS = GEMM_X * TERMS / 2, /* of a half */
        REGISTERS = COLUMNS / 2,
        HALF_BYTES = COLUMNS * WGMMA_ROW,
        X_BYTES = 2 * HALF_BYTES,
        BYTES = X_BYTES + WG_W_ROWS * HALF_K,
        UNITS_AT = WG_STAGES * BYTES, /* a float for each row of x, of odd stages */
        ALL_BYTES = UNITS_AT + WG_STAGES * GEMM_X * 4,
        TILE_OWN = 2 / TERMS, /* rows of x in a thread's two columns of eight */
    };
};

/* The kernels of two terms take more. */
static inline int can_wgmma(const CudaContext *c)
{
    return c->wgmma && c->shared_bytes >= WgmmaStage<2>::ALL_BYTES;
}

/* Rows g of warp v: row first[0] + v * step + g of w[0] for g < 8, then first[1] + v * step + g - 8
 * of w[1]. Both matrices have the same shape; first and step are multiples of 8. */
typedef struct {
    Weight w[2];
    int first[2], step;
} WgmmaWeights;

/* What a thread copies: pieces of 16 bytes of rows of W and of x. */
typedef struct {
    const unsigned char *w[WG_W_PIECES]; /* rows */
    const unsigned char *x[WG_X_ROWS];   /* pieces of their high terms */
    const float *unit;                   /* of this thread's row of x; NULL where it brings none */
    int cols, aligned, n_x;
} WgmmaCopies;

/* The row of the block's 64 whose terms this thread copies as its i-th. */
static __device__ __forceinline__ int wgmma_x_row(int i)
{
    return (int)threadIdx.x / (WGMMA_ROW / 16) + i * WG_X_STEP;
}

/* The row of the block's 64 of which this thread has the i-th of its WG_OWN sums. */
template <int TERMS> static __device__ __forceinline__ int wgmma_own_row(int i)
{
    enum { OWN = WgmmaStage<TERMS>::TILE_OWN };
    return i / OWN * (8 / TERMS) + warp_lane() % 4 * OWN + i % OWN;
}

/* Where warp v's rows begin, those of w[0] for i = 0, of w[1] for 1. */
static __device__ __forceinline__ int wgmma_w_row(const WgmmaWeights &rows, int v, int i)
{
    return rows.first[i] + v * rows.step;
}

/* Rows of W past the last read as the last; rows of x from n_x on are not read. */
static __device__ __forceinline__ WgmmaCopies wgmma_copies(const WgmmaWeights &rows, const Terms &x,
                                                           const int (&x_row)[WG_X_ROWS], int n_x,
                                                           int aligned)
{
    WgmmaCopies c;
    c.n_x = n_x;
    int last = rows.w[0].rows - 1, piece = (int)threadIdx.x % (WGMMA_ROW / 16);
    c.cols = rows.w[0].cols;
    c.aligned = aligned;
    UNROLL
    for (int i = 0; i < WG_W_PIECES; i++) {
        int r = (int)threadIdx.x / (HALF_K / 16) + i * WG_W_STEP, second = r % TILE_ROWS / 8;
        int row = (second ? rows.first[1] : rows.first[0]) + r / TILE_ROWS * rows.step + r % 8;
        const void *data = second ? rows.w[1].data : rows.w[0].data;
        c.w[i] = (const unsigned char *)data +
                 (int64_t)(row < last ? row : last) * weight_row_bytes(&rows.w[0]);
    }
    c.unit = NULL;
    UNROLL
    for (int i = 0; i < WG_X_ROWS; i++) {
        c.x[i] = x.data + (int64_t)x_row[i] * x.n_blocks * TERM_BLOCK_BYTES + piece * 16;
        if (piece == i && wgmma_x_row(i) < n_x) c.unit = x.unit + (int64_t)x_row[i] * x.n_blocks;
    }
    return c;
}

/* Where this thread's piece i of W goes. */
template <int TERMS>
static __device__ __forceinline__ unsigned char *wgmma_w_place(unsigned char *stage, int i)
{
    int row = (int)threadIdx.x / (HALF_K / 16) + i * WG_W_STEP;
    return stage + WgmmaStage<TERMS>::X_BYTES + row * HALF_K +
           (int)threadIdx.x % (HALF_K / 16) * 16;
}

/* Begins the copies of k's [64 half, 64 half + 64). */
template <int TERMS>
static __device__ __forceinline__ void wgmma_issue(const WgmmaCopies &c, int half,
                                                   unsigned char *shared)
{
    typedef WgmmaStage<TERMS> S;
    unsigned char *stage = shared + half % WG_STAGES * S::BYTES;
    int k = half * HALF_K + (int)threadIdx.x % (HALF_K / 16) * 16;
    if (c.aligned) {
        UNROLL
        for (int i = 0; i < WG_W_PIECES; i++)
            copy_16_or_zeros(k < c.cols, wgmma_w_place<TERMS>(stage, i), c.w[i] + k);
    } else {
        UNROLL
        for (int i = 0; i < WG_W_PIECES; i++)
            *(uint4 *)(void *)wgmma_w_place<TERMS>(stage, i) =
                gather_16<WEIGHT_FP8>(c.w[i], k, c.cols);
    }
    int piece = (int)threadIdx.x % (WGMMA_ROW / 16);
    UNROLL
    for (int i = 0; i < WG_X_ROWS * TERMS; i++)
        copy_16_if(wgmma_x_row(i / TERMS) < c.n_x,
                   stage + wgmma_piece_at(wgmma_x_row(i / TERMS) * TERMS + i % TERMS, piece),
                   c.x[i / TERMS] + (int64_t)half * X_STEP_BYTES + i % TERMS * WGMMA_ROW);
    if (half % 2 && c.unit)
        copy_4(shared + S::UNITS_AT + (half % WG_STAGES * GEMM_X + wgmma_x_row(piece)) * 4,
               c.unit + half / 2);
}

/* Begins the copies of k-block b, if there is one. */
template <int TERMS>
static __device__ __forceinline__ void wgmma_issue_block(const WgmmaCopies &c, int b, int n_blocks,
                                                         unsigned char *shared)
{
    if (b < n_blocks) {
        wgmma_issue<TERMS>(c, 2 * b, shared);
        wgmma_issue<TERMS>(c, 2 * b + 1, shared);
    }
    copies_commit();
}

/* Waits until all copies but those of the last N k-blocks are there, for all of the block. */
template <int N> static __device__ __forceinline__ void wgmma_ready()
{
    copies_wait<N>();
    wgmma_show_shared();
    __syncthreads();
}

/* A of the four products of a stage: this warp's rows of W. */
template <int TERMS>
static __device__ __forceinline__ void wgmma_weights(const unsigned char *stage,
                                                     uint32_t (&a)[STEPS][4])
{
    int g = warp_lane() / 4, l = warp_lane() % 4, v = (int)threadIdx.x / WARP;
    const unsigned char *row =
        stage + WgmmaStage<TERMS>::X_BYTES + (v * TILE_ROWS + g) * HALF_K + l * 16;
    uint4 first = load_16(row), second = load_16(row + 8 * HALF_K);
    UNROLL
    for (int s = 0; s < STEPS; s++) {
        fp8_to_fp16_pairs(word_of(first, s), &a[s][0], &a[s][2]);
        fp8_to_fp16_pairs(word_of(second, s), &a[s][1], &a[s][3]);
    }
}

/* Begins t = A B + (adds ? t : 0) over a stage's k's, for the columns that begin at x. */
template <int N>
static __device__ __forceinline__ void
wgmma_products(const unsigned char *x, const uint32_t (&a)[STEPS][4], int adds, float (&t)[N])
{
    WgmmaRows rows = wgmma_rows(x);
    UNROLL
    for (int s = 0; s < STEPS; s++)
        wgmma_fp16(t, a[s], wgmma_at(rows, s * WGMMA_STEP), adds || s > 0);
    wgmma_commit();
}

/* acc += scale unit t: the end of a k-block for half `side` of the columns. unit: of its 64. */
template <int TERMS, int N>
static __device__ __forceinline__ void wgmma_end_block(const float (&scale)[2], const float *unit,
                                                       int side, float (&t)[N], float (&acc)[N])
{
    typedef WgmmaStage<TERMS> S;
    wgmma_take(t);
    UNROLL
    for (int j = 0; j < N / 4; j++) {
        float of_x[2]; /* columns 2 l and 2 l + 1 */
        UNROLL
        for (int i = 0; i < 2; i++)
            of_x[i] = unit[side * GEMM_X / 2 +
                           wgmma_own_row<TERMS>(j * S::TILE_OWN + (TERMS == 1 ? i : 0))];
        UNROLL
        for (int i = 0; i < 4; i++)
            acc[j * 4 + i] = fmaf(scale[i / 2] * of_x[i % 2], t[j * 4 + i], acc[j * 4 + i]);
    }
}

/* sum += high and low terms' sums, acc = 0: the end of a slice for half `side` of the columns. */
template <int TERMS, int N>
static __device__ __forceinline__ void wgmma_end_slice(int side, float (&acc)[N],
                                                       float (&sum)[WG_OWN][2])
{
    enum { OWN = WgmmaStage<TERMS>::TILE_OWN };
    UNROLL
    for (int j = 0; j < N / 4; j++) {
        const float *a = &acc[j * 4];
        UNROLL
        for (int i = 0; i < OWN; i++) {
            float *to = sum[side * WG_OWN / 2 + j * OWN + i];
            to[0] += TERMS == 2 ? a[0] + a[1] : a[i];
            to[1] += TERMS == 2 ? a[2] + a[3] : a[2 + i];
        }
    }
    UNROLL
    for (int i = 0; i < N; i++)
        acc[i] = 0;
}

/* A thread's part of a sum that goes on. */
template <int TERMS, int SIDES> struct WgmmaPart {
    uint32_t a[2][STEPS][4]; /* of a k-block's stages */
    float t[SIDES][WgmmaStage<TERMS>::REGISTERS], acc[SIDES][WgmmaStage<TERMS>::REGISTERS];
    int slice;
};

/*
 * k-block b, whose first stage's products are on their way; MORE: begins those of the next one,
 * side by side as each side's sums have been added. So tensor cores have work queued at all times:
 * two groups of products at the barrier and while this warp gets a stage ready, one while it adds.
 */
template <int TERMS, int SIDES, int MORE>
static __device__ __forceinline__ void
wgmma_k_block(const WgmmaCopies &copies, const float *const (&scale_row)[2], int n_blocks, int b,
              unsigned char *shared, WgmmaPart<TERMS, SIDES> &part, float (&sum)[WG_OWN][2])
{
    typedef WgmmaStage<TERMS> S;
    int h = 2 * b;
    const unsigned char *odd = shared + (h + 1) % WG_STAGES * S::BYTES;
    const unsigned char *next = shared + (h + 2) % WG_STAGES * S::BYTES;
    const float *unit = (const float *)(const void *)(shared + S::UNITS_AT);
    float scale[2];
    wgmma_weights<TERMS>(odd, part.a[1]);
    wgmma_begin();
    UNROLL
    for (int i = 0; i < SIDES; i++)
        wgmma_products(odd + i * S::HALF_BYTES, part.a[1], 1, part.t[i]);
    wgmma_wait<SIDES>(); /* the first stage's: a[0] is free */
    if constexpr (MORE) {
        wgmma_ready<WG_AHEAD - 2>(); /* b + 1 is there, b - 1 no longer read */
        wgmma_weights<TERMS>(next, part.a[0]);
    }
    UNROLL
    for (int i = 0; i < 2; i++)
        scale[i] = scale_row[i][b];
    while (slice_begin(n_blocks, part.slice + 1) <= b)
        part.slice++;
    int slice_ends = slice_begin(n_blocks, part.slice + 1) == b + 1;
    UNROLL
    for (int i = 0; i < SIDES; i++) {
        if (MORE || i < SIDES - 1)
            wgmma_wait<SIDES - 1>();
        else
            wgmma_wait<0>();
        wgmma_end_block<TERMS>(scale, unit + (h + 1) % WG_STAGES * GEMM_X, i, part.t[i],
                               part.acc[i]);
        if (slice_ends) wgmma_end_slice<TERMS>(i, part.acc[i], sum);
        if constexpr (MORE) {
            wgmma_begin();
            wgmma_products(next + i * S::HALF_BYTES, part.a[0], 0, part.t[i]);
            if (i == 0) wgmma_issue_block<TERMS>(copies, b + WG_AHEAD, n_blocks, shared);
        }
    }
}

/* wgmma_sum of the first SIDES halves of the columns. */
template <int TERMS, int SIDES>
static __device__ __forceinline__ void wgmma_sum_of(const WgmmaWeights &rows, const Terms &x,
                                                    const WgmmaCopies &copies,
                                                    unsigned char *shared, float (&sum)[WG_OWN][2])
{
    const float *scale_row[2];
    int v = (int)threadIdx.x / WARP, last_group = (rows.w[0].rows - 1) / FP8_BLOCK;
    UNROLL
    for (int i = 0; i < 2; i++) {
        int group = wgmma_w_row(rows, v, i) / FP8_BLOCK;
        scale_row[i] =
            rows.w[i].scale + (int64_t)(group < last_group ? group : last_group) * x.n_blocks;
    }
    WgmmaPart<TERMS, SIDES> part = {};
    for (int i = 0; i < WG_AHEAD; i++)
        wgmma_issue_block<TERMS>(copies, i, x.n_blocks, shared);
    wgmma_ready<WG_AHEAD - 1>();
    wgmma_weights<TERMS>(shared, part.a[0]);
    wgmma_begin();
    UNROLL
    for (int i = 0; i < SIDES; i++)
        wgmma_products(shared + i * WgmmaStage<TERMS>::HALF_BYTES, part.a[0], 0, part.t[i]);
    int b = 0;
    for (; b + 1 < x.n_blocks; b++)
        wgmma_k_block<TERMS, SIDES, 1>(copies, scale_row, x.n_blocks, b, shared, part, sum);
    wgmma_k_block<TERMS, SIDES, 0>(copies, scale_row, x.n_blocks, b, shared, part, sum);
}

/*
 * sum += what this warp, the v-th, has of rows times the block's n_x rows of x: with g = lane / 4
 * sum[i][0] is row wgmma_w_row(rows, v, 0) + g of w[0], sum[i][1] row wgmma_w_row(rows, v, 1) + g
 * of w[1], for row wgmma_own_row(i) of x; of rows from n_x on anything. x: TERMS_BY_ROW; x_row[i]:
 * the row of x that is wgmma_x_row(i) here. aligned: weight_is_aligned of both matrices. shared:
 * WgmmaStage::ALL_BYTES, WGMMA_SHARED.
 */
template <int TERMS>
static __device__ __forceinline__ void
wgmma_sum(const WgmmaWeights &rows, const Terms &x, const int (&x_row)[WG_X_ROWS], int n_x,
          int aligned, unsigned char *shared, float (&sum)[WG_OWN][2])
{
    const WgmmaCopies copies = wgmma_copies(rows, x, x_row, n_x, aligned);
    if (n_x > GEMM_X / 2)
        wgmma_sum_of<TERMS, 2>(rows, x, copies, shared, sum);
    else
        wgmma_sum_of<TERMS, 1>(rows, x, copies, shared, sum);
}

/*
 * y[i] = w x[first + i] for the block's rows of w from first_row on and its n rows of x. aligned:
 * weight_is_aligned(w). y: row 0 of those, y_stride floats apart.
 */
template <int TERMS>
static __device__ __forceinline__ void
wgmma_block(const Weight &w, int aligned, int first_row, const Terms &x, int first, int n,
            unsigned char *shared, float *y, int64_t y_stride)
{
    WgmmaWeights rows = {{w, w}, {first_row, first_row + 8}, TILE_ROWS};
    int x_row[WG_X_ROWS];
    UNROLL
    for (int i = 0; i < WG_X_ROWS; i++)
        x_row[i] = first + wgmma_x_row(i);
    float sum[WG_OWN][2] = {};
    wgmma_sum<TERMS>(rows, x, x_row, n, aligned, shared, sum);

    int row = first_row + (int)threadIdx.x / WARP * TILE_ROWS + warp_lane() / 4;
    UNROLL
    for (int j = 0; j < WG_OWN; j++) {
        int i = wgmma_own_row<TERMS>(j);
        if (i >= n) continue;
        UNROLL
        for (int k = 0; k < 2; k++)
            if (row + k * 8 < w.rows) y[i * y_stride + row + k * 8] = sum[j][k];
    }
}

#endif
