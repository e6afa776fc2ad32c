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
 * KB. A block may have many tiles, one after the other; the ring of stages knows no end of a tile,
 * so that the next one's first k-blocks come while this one's last are multiplied.
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
    WG_BLOCKS = 132,                /* of an H200, which has room for one on an SM */
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
 * of w[1]. Both matrices have the same shape, and weight_is_aligned; first and step are multiples
 * of 8. */
typedef struct {
    Weight w[2];
    int first[2], step;
} WgmmaWeights;

/* What a thread copies: pieces of 16 bytes of rows of W and of x. */
typedef struct {
    const unsigned char *w;    /* its first row */
    int32_t w_at[WG_W_PIECES]; /* the others, from there */
    uint32_t x_at[WG_X_ROWS];  /* pieces of their high terms, from those of all rows on */
    int cols, n_x;
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

/* What a tile multiplies. */
typedef struct {
    WgmmaWeights rows;
    int x_row[WG_X_ROWS]; /* of x, that which is wgmma_x_row(i) here */
    int n_x;
} WgmmaSource;

/* Rows of W past the last read as the last; rows of x from n_x on are not read. */
static __device__ __forceinline__ WgmmaCopies wgmma_copies(const WgmmaSource &of, const Terms &x)
{
    const WgmmaWeights &rows = of.rows;
    const int(&x_row)[WG_X_ROWS] = of.x_row;
    WgmmaCopies c;
    c.n_x = of.n_x;
    int last = rows.w[0].rows - 1, piece = (int)threadIdx.x % (WGMMA_ROW / 16);
    int r = (int)threadIdx.x / (HALF_K / 16), second = r % TILE_ROWS / 8; /* of all its rows */
    int first = (second ? rows.first[1] : rows.first[0]) + r / TILE_ROWS * rows.step + r % 8;
    int64_t row_bytes = weight_row_bytes(&rows.w[0]);
    static_assert(WG_W_STEP % TILE_ROWS == 0, "a thread copies rows of one of the two");
    first = first < last ? first : last;
    c.cols = rows.w[0].cols;
    c.w = (const unsigned char *)(second ? rows.w[1].data : rows.w[0].data) + first * row_bytes;
    UNROLL
    for (int i = 0; i < WG_W_PIECES; i++) {
        int further = i * (WG_W_STEP / TILE_ROWS) * rows.step, most = last - first;
        c.w_at[i] = (int32_t)((further < most ? further : most) * row_bytes);
    }
    UNROLL
    for (int i = 0; i < WG_X_ROWS; i++)
        c.x_at[i] =
            (uint32_t)x_row[i] * (uint32_t)(x.n_blocks * TERM_BLOCK_BYTES) + (uint32_t)piece * 16;
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

/* Begins the copies of W's k's [64 half, 64 half + 64) to stage `at` of the ring. */
template <int TERMS>
static __device__ __forceinline__ void wgmma_issue_w(const WgmmaCopies &c, int half, int at,
                                                     unsigned char *shared)
{
    unsigned char *stage = shared + at * WgmmaStage<TERMS>::BYTES;
    int k = half * HALF_K + (int)threadIdx.x % (HALF_K / 16) * 16;
    UNROLL
    for (int i = 0; i < WG_W_PIECES; i++)
        copy_16_or_zeros(k < c.cols, wgmma_w_place<TERMS>(stage, i), c.w + c.w_at[i] + k);
}

/* The same of x. */
template <int TERMS>
static __device__ __forceinline__ void wgmma_issue_x(const WgmmaCopies &c, const Terms &x, int half,
                                                     int at, unsigned char *shared)
{
    typedef WgmmaStage<TERMS> S;
    unsigned char *stage = shared + at * S::BYTES;
    int piece = (int)threadIdx.x % (WGMMA_ROW / 16);
    UNROLL
    for (int i = 0; i < WG_X_ROWS * TERMS; i++)
        copy_16_if(wgmma_x_row(i / TERMS) < c.n_x,
                   stage + wgmma_piece_at(wgmma_x_row(i / TERMS) * TERMS + i % TERMS, piece),
                   x.data + c.x_at[i / TERMS] + (int64_t)half * X_STEP_BYTES +
                       i % TERMS * WGMMA_ROW);
    if (half % 2 == 0) return;
    UNROLL
    for (int i = 0; i < WG_X_ROWS; i++) /* one thread brings a row's unit */
        copy_4_if(piece == i && wgmma_x_row(i) < c.n_x,
                  shared + S::UNITS_AT + (at * GEMM_X + wgmma_x_row(i)) * 4,
                  x.unit + c.x_at[i] / TERM_BLOCK_BYTES + half / 2);
}

enum { COPY_W = 1, COPY_X = 2 };

/* Begins the copies of a tile's k-block b, if `is`, to where the ring has k-block `at`: of W, of x,
 * or of both. x's end a group. */
template <int TERMS, int PARTS = COPY_W | COPY_X>
static __device__ __forceinline__ void wgmma_issue(const WgmmaCopies &c, const Terms &x, int is,
                                                   int b, int at, unsigned char *shared)
{
    UNROLL
    for (int i = 0; i < 2 && is; i++) {
        int half = 2 * b + i, stage = 2 * at % WG_STAGES + i;
        if (PARTS & COPY_W) wgmma_issue_w<TERMS>(c, half, stage, shared);
        if (PARTS & COPY_X) wgmma_issue_x<TERMS>(c, x, half, stage, shared);
    }
    if (PARTS & COPY_X) copies_commit();
}

/* What the sums of a tile need to know of it. */
typedef struct {
    int first[2], step; /* of WgmmaWeights */
    int w_rows, n_x;
    const float *scale[2]; /* of both matrices */
    int own;               /* the kernel's */
} WgmmaTile;

/* A block's tiles, in turn: the first is its own number, the others are drawn. */
enum { WG_TILES = 4 }; /* that are on their way at most: a k-block each */
typedef struct {
    int id[WG_TILES];
    WgmmaTile tile[WG_TILES];
} WgmmaTurns;

/* The k-blocks of all of a block's tiles on their way to the stages. */
typedef struct {
    WgmmaCopies copies;   /* of the tile that it is at */
    int turn, b, is_tile; /* which of the block's that is, its next k-block; 0: there are no more */
    int n_issued;         /* k-blocks in all */
} WgmmaStream;

/* Draws the block's tile number `turn`: one thread does, a barrier before all know. */
static __device__ __forceinline__ void wgmma_draw(WgmmaTurns *turns, int turn, uint32_t *ticket)
{
    if (threadIdx.x) return;
    turns->id[turn % WG_TILES] = (int)(turn ? gridDim.x + atomic_add(ticket, 1) : blockIdx.x);
}

/* Begins the copies of the next k-block, if there is one. */
template <int TERMS, typename Tiles>
static __device__ __forceinline__ void wgmma_next(const Tiles &tiles, const Terms &x,
                                                  WgmmaTurns *turns, WgmmaStream *s,
                                                  unsigned char *shared)
{
    if (s->b == 0) {
        int id = turns->id[s->turn % WG_TILES];
        s->is_tile = id < tiles.n;
        if (s->is_tile) {
            WgmmaSource source;
            WgmmaTile tile = tiles.open(id, &source);
            s->copies = wgmma_copies(source, x);
            if (threadIdx.x == 0) turns->tile[s->turn % WG_TILES] = tile;
        }
    }
    wgmma_issue<TERMS>(s->copies, x, s->is_tile, s->b, s->n_issued, shared);
    s->n_issued++;
    if (++s->b == x.n_blocks) s->b = 0, s->turn++;
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

/* What a tile's k-blocks have in common. */
typedef struct {
    const float *scale[2]; /* of this warp's rows */
    int n_blocks;          /* of W */
    int begin, end;        /* those that are multiplied: whole slices, at least one k-block */
    int at;                /* k-block b is the (at + b)-th that comes through the ring */
} WgmmaRun;

/*
 * k-block b, whose first stage's products are on their way; MORE: begins those of the next one,
 * side by side as each side's sums have been added, and, by `next`, more copies, WG_AHEAD k-blocks
 * from here. So tensor cores have work queued at all times: two groups of products at the barrier
 * and while this warp gets a stage ready, one while it adds.
 */
template <int TERMS, int SIDES, int MORE, typename Next>
static __device__ __forceinline__ void
wgmma_k_block(const WgmmaRun &run, int b, const Next &next, unsigned char *shared,
              WgmmaPart<TERMS, SIDES> &part, float (&sum)[WG_OWN][2])
{
    typedef WgmmaStage<TERMS> S;
    int h = 2 * (run.at + b), odd_at = (h + 1) % WG_STAGES;
    const unsigned char *odd = shared + odd_at * S::BYTES;
    const unsigned char *even = shared + (h + 2) % WG_STAGES * S::BYTES; /* of b + 1 */
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
        wgmma_weights<TERMS>(even, part.a[0]);
    }
    UNROLL
    for (int i = 0; i < 2; i++)
        scale[i] = run.scale[i][b];
    while (slice_begin(run.n_blocks, part.slice + 1) <= b)
        part.slice++;
    int slice_ends = slice_begin(run.n_blocks, part.slice + 1) == b + 1;
    UNROLL
    for (int i = 0; i < SIDES; i++) {
        if (MORE || i < SIDES - 1)
            wgmma_wait<SIDES - 1>();
        else
            wgmma_wait<0>();
        wgmma_end_block<TERMS>(scale, unit + odd_at * GEMM_X, i, part.t[i], part.acc[i]);
        if (slice_ends) wgmma_end_slice<TERMS>(i, part.acc[i], sum);
        if constexpr (MORE) {
            wgmma_begin();
            wgmma_products(even + i * S::HALF_BYTES, part.a[0], 0, part.t[i]);
            if (i == 0) next(b + WG_AHEAD);
        }
    }
}

/* A tile's sums of the first SIDES halves of the columns; its first k-block is there. */
template <int TERMS, int SIDES, typename Next>
static __device__ __forceinline__ void wgmma_sum_of(const WgmmaRun &run, const Next &next,
                                                    unsigned char *shared, float (&sum)[WG_OWN][2])
{
    typedef WgmmaStage<TERMS> S;
    const unsigned char *first = shared + 2 * (run.at + run.begin) % WG_STAGES * S::BYTES;
    WgmmaPart<TERMS, SIDES> part = {};
    wgmma_weights<TERMS>(first, part.a[0]);
    wgmma_begin();
    UNROLL
    for (int i = 0; i < SIDES; i++)
        wgmma_products(first + i * S::HALF_BYTES, part.a[0], 0, part.t[i]);
    int b = run.begin;
    for (; b + 1 < run.end; b++)
        wgmma_k_block<TERMS, SIDES, 1>(run, b, next, shared, part, sum);
    wgmma_k_block<TERMS, SIDES, 0>(run, b, next, shared, part, sum);
}

/* All of a tile, with this warp's scales. */
static __device__ __forceinline__ WgmmaRun wgmma_run(const WgmmaTile &tile, int n_blocks, int at)
{
    int v = (int)threadIdx.x / WARP, last_group = (tile.w_rows - 1) / FP8_BLOCK;
    WgmmaRun run = {{}, n_blocks, 0, n_blocks, at};
    UNROLL
    for (int i = 0; i < 2; i++) {
        int group = (tile.first[i] + v * tile.step) / FP8_BLOCK;
        run.scale[i] =
            tile.scale[i] + (int64_t)(group < last_group ? group : last_group) * n_blocks;
    }
    return run;
}

/* sum += a tile's sums. */
template <int TERMS, typename Next>
static __device__ __forceinline__ void wgmma_sum(const WgmmaTile &tile, const WgmmaRun &run,
                                                 const Next &next, unsigned char *shared,
                                                 float (&sum)[WG_OWN][2])
{
    if (tile.n_x > GEMM_X / 2)
        wgmma_sum_of<TERMS, 2>(run, next, shared, sum);
    else
        wgmma_sum_of<TERMS, 1>(run, next, shared, sum);
}

/*
 * A block's only tile, number id of `tiles` as they are below, k-blocks [begin, end) of it, which
 * are whole slices and at least one: finish gets their part of the sums. It takes fewer registers
 * than many tiles do. The first weights come while the launch before this one still runs: it calls
 * grid_wait.
 */
template <int TERMS, typename Tiles>
static __device__ __forceinline__ void wgmma_one_tile(const Tiles &tiles, int id, int begin,
                                                      int end, const Terms &x,
                                                      unsigned char *shared)
{
    WgmmaSource source;
    const WgmmaTile tile = tiles.open(id, &source);
    const WgmmaCopies copies = wgmma_copies(source, x);
    WgmmaRun run = wgmma_run(tile, x.n_blocks, -begin);
    run.begin = begin, run.end = end;
    const auto next = [&](int b) { wgmma_issue<TERMS>(copies, x, b < end, b, b - begin, shared); };
    float sum[WG_OWN][2] = {};
    for (int i = 0; i < WG_AHEAD; i++)
        wgmma_issue<TERMS, COPY_W>(copies, x, begin + i < end, begin + i, i, shared);
    grid_wait();
    for (int i = 0; i < WG_AHEAD; i++)
        wgmma_issue<TERMS, COPY_X>(copies, x, begin + i < end, begin + i, i, shared);
    wgmma_ready<WG_AHEAD - 1>();
    wgmma_sum<TERMS>(tile, run, next, shared, sum);
    tiles.finish(tile, sum);
}

/*
 * A block's tiles of rows of W times rows of x, which lies TERMS_BY_ROW. tiles has
 *     n                   how many there are for all blocks (not for a block's only one)
 *     open(id, &source)   what tile id < n multiplies; returns what its sums need to know
 *     finish(tile, sum)   takes them: with g = lane / 4 and v the warp, sum[i][0] is row first[0]
 *                         + v step + g of the first matrix, sum[i][1] row first[1] + v step + g of
 *                         the second, for row wgmma_own_row(i) of x; of rows from n_x on anything
 * ticket: [1], 0 when the kernel begins. shared: WgmmaStage::ALL_BYTES, WGMMA_SHARED.
 */
template <int TERMS, typename Tiles>
static __device__ __forceinline__ void wgmma_tiles(const Tiles &tiles, const Terms &x,
                                                   uint32_t *ticket, unsigned char *shared)
{
    __shared__ WgmmaTurns turns;
    WgmmaStream stream = {};
    for (int turn = 0; turn < WG_TILES - 1; turn++)
        wgmma_draw(&turns, turn, ticket);
    __syncthreads();
    const auto next = [&](int) { wgmma_next<TERMS>(tiles, x, &turns, &stream, shared); };
    for (int i = 0; i < WG_AHEAD - 1; i++)
        next(i);
    for (int turn = 0;; turn++) {
        wgmma_ready<WG_AHEAD - 2>(); /* the first k-block; nobody is at the tile before any more */
        if (turns.id[turn % WG_TILES] >= tiles.n) break;
        wgmma_draw(&turns, turn + WG_TILES - 1, ticket);
        const WgmmaTile tile = turns.tile[turn % WG_TILES];
        const WgmmaRun run = wgmma_run(tile, x.n_blocks, turn * x.n_blocks);
        float sum[WG_OWN][2] = {};
        next(WG_AHEAD - 1);
        wgmma_sum<TERMS>(tile, run, next, shared, sum);
        tiles.finish(tile, sum);
    }
}

/* For `finish`: y[i] = the sums of row i of a tile's x, whose rows of W are 16 a warp. */
template <int TERMS>
static __device__ __forceinline__ void
wgmma_store(const WgmmaTile &tile, const float (&sum)[WG_OWN][2], float *y, int64_t y_stride)
{
    int row = tile.first[0] + (int)threadIdx.x / WARP * TILE_ROWS + warp_lane() / 4;
    UNROLL
    for (int j = 0; j < WG_OWN; j++) {
        int i = wgmma_own_row<TERMS>(j);
        if (i >= tile.n_x) continue;
        UNROLL
        for (int k = 0; k < 2; k++)
            if (row + k * 8 < tile.w_rows) y[i * y_stride + row + k * 8] = sum[j][k];
    }
}

/* For `open`: rows of W from first_row on, 16 a warp, times n_x rows of x from `first` on. */
static __device__ __forceinline__ WgmmaTile wgmma_open(const Weight &w, int first_row, int first,
                                                       int n_x, WgmmaSource *of)
{
    of->rows = WgmmaWeights{{w, w}, {first_row, first_row + 8}, TILE_ROWS};
    of->n_x = n_x;
    UNROLL
    for (int i = 0; i < WG_X_ROWS; i++)
        of->x_row[i] = first + wgmma_x_row(i);
    return WgmmaTile{{first_row, first_row + 8}, TILE_ROWS, w.rows, n_x, {w.scale, w.scale}, 0};
}

#endif
