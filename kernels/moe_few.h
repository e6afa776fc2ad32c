/*
 * moe_few.h: the experts of up to 16 rows, so that an expert's are one unit; for moe.cu.
 *
 * What a warp multiplies is a walk: the k-blocks of one slice in tile after tile of 16 rows. Its
 * ring always has weights on their way, also while the block waits at a barrier or the walk goes on
 * to another expert. Where a k-block lies takes a chain of loads (unit, scale), so lane i finds
 * that of the i-th of 32 steps; between these the ring runs empty. The shared expert is the first
 * unit: its weights are on their way before the plan is there. (In registers, a k-block or two
 * ahead, as tile_sum has them, the loads would start anew after each unit and barrier, and T = 4
 * would leave no registers for them.) The down matrices' first weights, of any expert, are on their
 * way before the launch of gate and up has ended, which begins no sooner than the plan is there.
 *
 * A load queues behind the weights that were asked for before it, so what they are multiplied with
 * is asked for in time: terms of x a k-block ahead in registers, where these suffice (up to 4 rows
 * of a unit, T <= 2); h of a unit's first 4 pairs through the ring, beside the weights.
 */
#ifndef OFFSHOOT_KERNELS_MOE_FEW_H
#define OFFSHOOT_KERNELS_MOE_FEW_H

#include "kernels/moe_few_router.h"

enum {
    UP_BLOCKS = 264,    /* of a walk: two for each of a Hopper's SMs; how many shows in no bit */
    DOWN_THREADS = 512, /* of a walk, where their rings fit, else half */
};

/* ---- k-blocks on their way through shared memory ---- */

/*
 * A warp's ring of k-blocks, WEIGHT_BYTES of weights, each with the k-block of h of up to H_ROWS
 * pairs. A lane copies the pieces that it reads and reads no other's, so a block has come when its
 * group of copies has: nobody waits for the rest of the warp.
 */
template <WeightType TYPE_OF_W, int WEIGHT_BYTES, int H_ROWS_OF_BLOCK> struct WeightRing {
    static constexpr WeightType TYPE = TYPE_OF_W;
    static constexpr int WEIGHT_PIECES = 2 * WeightBlock<TYPE>::PIECES * WARP;
    static constexpr int H_ROWS = H_ROWS_OF_BLOCK;
    static constexpr int BLOCK_PIECES = WEIGHT_PIECES + H_ROWS * WARP;
    static constexpr int BLOCKS = WEIGHT_BYTES / (WEIGHT_PIECES * 16);
    static constexpr int BYTES = BLOCKS * BLOCK_PIECES * 16;
};

template <WeightType TYPE> using UpRing = WeightRing<TYPE, 8192, 0>;
template <WeightType TYPE> using DownRing = WeightRing<TYPE, 4096, TILE_COLUMN_ROWS>;

/* A piece of which n bytes are there, for rows that are not whole pieces or end within the block.
 * Its loop's length is known at run time alone: unrolled it would cost registers. */
static __device__ __forceinline__ void copy_bytes(const unsigned char *row, int n, uint4 *to)
{
    *to = uint4{0, 0, 0, 0};
    for (int i = 0; i < n && i < 16; i++)
        ((unsigned char *)(void *)to)[i] = row[i];
}

/* The lane's pieces from `at` on, and those of the row 8 below; `to`: see copy_block. */
template <WeightType TYPE>
static __device__ __forceinline__ void copy_whole(const unsigned char *at, int64_t row_8, uint4 *to)
{
    enum { PIECES = WeightBlock<TYPE>::PIECES };
    UNROLL
    for (int i = 0; i < PIECES; i++) {
        copy_16(to + i * WARP, at + i * 64);
        copy_16(to + (PIECES + i) * WARP, at + row_8 + i * 64);
    }
}

/* `to`: of a block's pieces in the ring, the lane's first. */
template <WeightType TYPE>
static __device__ __forceinline__ void copy_block(const TileWeight &w, int block, uint4 *to)
{
    enum { BYTES = TYPE == WEIGHT_FP8 ? 1 : 2, PIECES = WeightBlock<TYPE>::PIECES };
    int first = block * K_BLOCK * BYTES + warp_lane() % 4 * 16, row_bytes = w.cols * BYTES;
    if (w.aligned && (block + 1) * K_BLOCK <= w.cols) {
        copy_whole<TYPE>(w.first + first, w.second - w.first, to);
        return;
    }
    for (int at = first; at < (block + 1) * K_BLOCK * BYTES; at += 64, to += WARP) {
        copy_bytes(w.first + at, row_bytes - at, to);
        copy_bytes(w.second + at, row_bytes - at, to + PIECES * WARP);
    }
}

/* ---- walks ---- */

/* A k-block of a tile of 16 rows of a matrix, and of the unit's pairs. */
typedef struct {
    const unsigned char *from; /* its first byte; NULL: past the walk's end */
    float scale;
    int32_t first_row, block; /* where in the matrix */
    int32_t first, n;         /* pairs of the unit */
} Step;

/* Tiles are numbered through all units: unit * n_row_tiles + its tile. */
typedef struct {
    const FewUnit *unit;
    int matrix, n_matrices; /* of a tile */
    int n_side;             /* matrices whose k-blocks take turns; the others come after them */
    int rows, cols;         /* of each */
    unsigned n_units, max_units, n_row_tiles; /* unsigned ones divide faster */
    unsigned tile, stride;                    /* tiles from `tile` on, stride apart */
    int begin, end;                           /* k-blocks, of one slice; none: no steps */
    int is_whole; /* all tiles and k-blocks are: a lane's bytes begin lane_at behind `from` */
    int lane_at;
    const float *h;    /* [pairs][cols], where the ring has it */
    uint4 *ring;       /* this lane's first piece */
    Step mine;         /* of the 32 steps before `base` */
    uint32_t fast;     /* a bit for each of them: copy_whole can have it */
    unsigned base, at; /* of those 32, the next */
} Walk;

/* Slices that are not empty; of fewer than 8 k-blocks each is a slice. */
SHARED_INLINE int used_slices(int n_blocks)
{
    return n_blocks < K_SLICES ? n_blocks : K_SLICES;
}

/* Where in a matrix a row's k-block begins. */
template <WeightType TYPE>
static __device__ __forceinline__ int64_t block_offset(const Walk &w, int row, int block)
{
    return ((int64_t)row * w.cols + block * K_BLOCK) * (TYPE == WEIGHT_FP8 ? 1 : 2);
}

/* Of step i of a tile: which matrix, and which k-block of the slice. */
static __device__ __forceinline__ int matrix_of(const Walk &w, unsigned i)
{
    unsigned side = (unsigned)w.n_side, pass = side * (unsigned)(w.end - w.begin);
    return (int)(i / pass * side + i % side);
}
static __device__ __forceinline__ int block_of(const Walk &w, unsigned i)
{
    unsigned side = (unsigned)w.n_side, pass = side * (unsigned)(w.end - w.begin);
    return (int)(i % pass / side);
}

template <WeightType TYPE> static __device__ __forceinline__ Step step_at(const Walk &w, unsigned i)
{
    Step s = {NULL, 1, 0, 0, 0, 0};
    unsigned n_k = (unsigned)(w.end - w.begin), per_tile = (unsigned)w.n_matrices * n_k;
    if (!n_k) return s;
    unsigned tile = w.tile + i / per_tile * w.stride, unit = tile / w.n_row_tiles;
    const FewUnit &u = w.unit[unit < w.max_units ? unit : 0]; /* beside n_units, not after it */
    FewMatrix m = fresh_matrix(&u.matrix[w.matrix + matrix_of(w, i % per_tile)]);
    int first = load_fresh(&u.first), n = load_fresh(&u.n);
    if (unit >= w.n_units) return s;
    s.first_row = (int)(tile % w.n_row_tiles) * TILE_ROWS;
    s.block = w.begin + block_of(w, i % per_tile);
    s.from = m.data + block_offset<TYPE>(w, s.first_row, s.block);
    s.first = first, s.n = n;
    if (TYPE == WEIGHT_FP8)
        s.scale = m.scale[s.first_row / FP8_BLOCK * weight_blocks(w.cols) + s.block];
    return s;
}

static __device__ __forceinline__ int of_step(int32_t mine, unsigned i)
{
    return (int)warp_shuffle((uint32_t)mine, (int)i);
}

/* Begins to copy the lane's piece of h of up to H_ROWS pairs of step i of the 32; past the end: of
 * none. */
template <typename Ring>
static __device__ __forceinline__ void copy_h(const Walk &w, unsigned i, uint4 *to)
{
    int first = of_step(w.mine.first, i), n = of_step(w.mine.n, i);
    int k = of_step(w.mine.block, i) * K_BLOCK + warp_lane() * 4, left = w.cols - k;
    const float *from = w.h + (int64_t)first * w.cols + k;
    if (w.cols % 4 == 0 && left >= 4) {
        UNROLL
        for (int r = 0; r < Ring::H_ROWS; r++)
            if (r < n) copy_16(to + r * WARP, from + (int64_t)r * w.cols);
        return;
    }
    for (int r = 0; r < n && r < Ring::H_ROWS; r++, from += w.cols)
        copy_bytes((const unsigned char *)(const void *)from, left * 4, to + r * WARP);
}

/* Begins to copy the lane's pieces of the weights of step i of the 32; past the end: none. */
template <WeightType TYPE>
static __device__ __forceinline__ void copy_weights(const Walk &w, unsigned i, uint4 *to)
{
    uint64_t address = warp_shuffle((uint64_t)(uintptr_t)w.mine.from, (int)i);
    const unsigned char *from = (const unsigned char *)(uintptr_t)address;
    if (w.fast >> i & 1) {
        copy_whole<TYPE>(from + w.lane_at, block_offset<TYPE>(w, 8, 0), to);
    } else if (from) {
        int first_row = of_step(w.mine.first_row, i), block = of_step(w.mine.block, i);
        const void *data = from - block_offset<TYPE>(w, first_row, block);
        Weight m = {TYPE, w.rows, w.cols, data, NULL};
        copy_block<TYPE>(tile_weight(m, first_row), block, to);
    }
}

/* Begins the copies of step i of the 32: a group, empty past the last. With has_weights those have
 * begun. */
template <typename Ring>
static __device__ __forceinline__ void copy_step(const Walk &w, unsigned i, int has_weights = 0)
{
    if (i < WARP) {
        uint4 *to = w.ring + i % Ring::BLOCKS * Ring::BLOCK_PIECES;
        if (!has_weights) copy_weights<Ring::TYPE>(w, i, to);
        if (Ring::H_ROWS > 0) copy_h<Ring>(w, i, to + Ring::WEIGHT_PIECES);
    }
    copies_commit();
}

/* Where the next 32 steps are. */
template <typename Ring> static __device__ __forceinline__ void find_steps(Walk *w)
{
    w->mine = step_at<Ring::TYPE>(*w, w->base + (unsigned)warp_lane());
    w->fast = warp_ballot(w->mine.from && w->is_whole && (uintptr_t)w->mine.from % 16 == 0);
    w->base += WARP;
    w->at = 0;
}

/* Begins the first copies of the 32 steps; of the first n_begun those of weights have begun, and
 * are the first one's. */
template <typename Ring>
static __device__ __forceinline__ void begin_steps(const Walk &w, unsigned n_begun)
{
    for (unsigned i = 0; i < Ring::BLOCKS; i++)
        copy_step<Ring>(w, i, i < n_begun);
}

/* Begins to copy the weights of as many steps as the ring holds, and returns how many. */
template <typename Ring> static __device__ __forceinline__ unsigned begin_weights(const Walk &w)
{
    for (unsigned i = 0; i < Ring::BLOCKS; i++)
        copy_weights<Ring::TYPE>(w, i, w.ring + i * Ring::BLOCK_PIECES);
    return Ring::BLOCKS;
}

/* The next 32 steps, when nothing of the last is on its way. */
template <typename Ring> static __device__ __forceinline__ void next_steps(Walk *w)
{
    find_steps<Ring>(w);
    begin_steps<Ring>(*w, 0);
}

/* Begins to copy the first weights of a walk along gate and up where its first tile is of the
 * shared expert; of how many steps. */
template <WeightType TYPE>
static __device__ __forceinline__ unsigned begin_shared(const Walk &w, const FewPlan &p)
{
    typedef UpRing<TYPE> Ring;
    if (!p.n_shared || w.tile >= w.n_row_tiles) return 0;
    unsigned n = 0, all = (unsigned)(w.n_matrices * (w.end - w.begin));
    for (; n < all && n < Ring::BLOCKS; n++) {
        const MoeExpert &e = p.a.shared_expert;
        const Weight &of = matrix_of(w, n) ? e.up : e.gate;
        copy_block<TYPE>(tile_weight(of, (int)w.tile * TILE_ROWS), w.begin + block_of(w, n),
                         w.ring + n * Ring::BLOCK_PIECES);
    }
    return n;
}

/* The next step's place in the ring, when its copies have come. */
template <typename Ring> static __device__ __forceinline__ const uint4 *wait_step(const Walk &w)
{
    copies_wait<Ring::BLOCKS - 1>();
    return w.ring + w.at % Ring::BLOCKS * Ring::BLOCK_PIECES;
}

/* Sets out on slice `slice` of those used, with tiles from `tile` on; n_units, find_steps and
 * begin_steps are next. */
template <typename Ring>
static __device__ __forceinline__ void begin_walk(Walk *w, const FewPlan &p, int n_blocks,
                                                  int slice, unsigned tile, unsigned stride,
                                                  uint4 *rings)
{
    int n = used_slices(n_blocks);
    w->unit = p.unit;
    w->max_units = (unsigned)few_units(p);
    w->n_row_tiles = (unsigned)row_tiles(w->rows);
    w->tile = tile, w->stride = stride;
    w->begin = slice < n ? n_blocks * slice / n : 0;
    w->end = slice < n ? n_blocks * (slice + 1) / n : 0;
    w->is_whole = w->rows % TILE_ROWS == 0 && w->cols % K_BLOCK == 0;
    w->lane_at = (int)block_offset<Ring::TYPE>(*w, warp_lane() / 4, 0) + warp_lane() % 4 * 16;
    w->h = p.h;
    w->ring = rings + (int)threadIdx.x / WARP * (Ring::BYTES / 16) + warp_lane();
}

/* ---- gate and up ---- */

/* The rows of a tile's unit. */
typedef struct {
    uint64_t rows; /* as in FewUnit */
    int first, n;
} TileRows;
static_assert(sizeof(FewUnit) % 16 == 0 && offsetof(FewUnit, rows) % 16 == 0 &&
                  sizeof(FewUnit) == offsetof(FewUnit, rows) + 16,
              "one load of 16 bytes");

/* Past the walk's end: some row. */
static __device__ __forceinline__ TileRows tile_rows(const Walk &w, unsigned tile)
{
    unsigned unit = tile / w.n_row_tiles;
    uint4 v = load_16(&w.unit[unit < w.max_units ? unit : 0].rows);
    if (unit >= w.n_units) return TileRows{0, 0, 1};
    return TileRows{(uint64_t)v.y << 32 | v.x, (int)v.z, (int)v.w};
}

/* A k-block of a tile of x: terms, and beside FP8 their unit. */
typedef struct {
    TermBlock terms;
    float unit;
} XBlock;

template <WeightType TYPE>
static __device__ __forceinline__ XBlock load_x(const Terms &x, uint32_t at, int block)
{
    const unsigned char *terms = x.data + (size_t)block * TERM_BLOCK_BYTES + (size_t)at * 16;
    return XBlock{load_terms(terms), block_unit<TYPE>(x, at, block)};
}

/* The A fragments of the walk's next k-block, when it has come; its scale. */
template <typename Ring>
static __device__ __forceinline__ float take_block(const Walk &w, uint32_t (&a)[K_STEPS][4])
{
    WeightBlock<Ring::TYPE> block;
    read_block<Ring::TYPE>(wait_step<Ring>(w), &block);
    copy_step<Ring>(w, w.at + Ring::BLOCKS);
    fragments<Ring::TYPE>(block, a);
    return warp_shuffle(w.mine.scale, (int)w.at);
}

/* Matrices that a warp multiplies side by side with what it has of x, as registers allow. */
template <int T> static constexpr int UP_SIDE = T <= 2 ? 2 : 1;

/*
 * M matrices of the walk's next tile: sum[m][j] as tile_sum gives it for the slice. Tiles of x from
 * n_tiles on are left out, but the first. Side by side, *x is what the first k-block is multiplied
 * with of that; then the same of the tile after this one, whose first tile of x begins at next_at.
 */
template <WeightType TYPE, int T, int M>
static __device__ __forceinline__ void
walk_slice(Walk *w, const Terms &terms, const uint32_t (&at)[T], int n_tiles, uint32_t next_at,
           XBlock *x, float (&sum)[M][T][2])
{
    enum { EARLY = TYPE == WEIGHT_FP8 && T == 1 }; /* before this k-block: takes more registers */
    float acc[M][T][4] = {};
    for (int b = w->begin; b < w->end; b++) {
        int is_last = b + 1 == w->end, next = is_last ? w->begin : b + 1;
        XBlock first = M == 1 ? load_x<TYPE>(terms, at[0], b) : *x;
        if (EARLY) *x = load_x<TYPE>(terms, is_last ? next_at : at[0], next);
        UNROLL
        for (int m = 0; m < M; m++, w->at++) {
            uint32_t a[K_STEPS][4];
            float scale = take_block<UpRing<TYPE>>(*w, a);
            block_product<TYPE>(a, first.terms, scale * first.unit, acc[m][0]);
            UNROLL
            for (int j = 1; j < T; j++) {
                if (j >= n_tiles) continue;
                XBlock other = load_x<TYPE>(terms, at[j], b);
                block_product<TYPE>(a, other.terms, scale * other.unit, acc[m][j]);
            }
        }
        if (M > 1 && !EARLY) *x = load_x<TYPE>(terms, is_last ? next_at : at[0], next);
        if (w->at == WARP) next_steps<UpRing<TYPE>>(w); /* of which M is a divisor */
    }
    UNROLL
    for (int m = 0; m < M; m++)
        add_terms<T>(acc[m], sum[m]);
}

/*
 * A block walks through tiles of gate and up, a warp along its slice of k. Two blocks share an SM,
 * each with 64 KiB of weights on their way; 4.3 TB/s over 132 SMs and a microsecond of latency are
 * 33 KiB an SM. Shared: the rings; both matrices' partial sums of each slice, twice, for the next
 * tile's are written while these are added.
 */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(TILE_THREADS, 2) up_few_kernel(FewPlan p)
{
    typedef UpRing<TYPE> Ring;
    enum { M = UP_SIDE<T> };
    enum { TILE_FLOATS = T * TILE_COLUMN_ROWS * TILE_ROWS, MATRIX_FLOATS = K_SLICES * TILE_FLOATS };
    DYNAMIC_SHARED(uint4, rings);
    float *parts = (float *)(void *)(rings + TILE_WARPS * (Ring::BYTES / 16));
    int i = (int)threadIdx.x, slice = i / WARP, n_slices = used_slices(p.x.n_blocks);
    Walk w = {};
    w.matrix = MATRIX_GATE, w.n_matrices = 2, w.n_side = M;
    w.rows = p.a.width, w.cols = p.a.dim;
    begin_walk<Ring>(&w, p, p.x.n_blocks, slice, blockIdx.x, gridDim.x, rings);
    unsigned n_begun = begin_shared<TYPE>(w, p);
    grid_wait_first();
    w.n_units = (unsigned)load_fresh(p.n_units);
    find_steps<Ring>(&w);
    TileRows u = tile_rows(w, w.tile), next = tile_rows(w, w.tile + w.stride);
    uint32_t at[T], next_at[1];
    few_rows<T>(p.x, u.rows, u.n, at);
    XBlock x = load_x<TYPE>(p.x, at[0], w.begin);
    begin_steps<Ring>(w, n_begun);

    for (unsigned tile = w.tile, odd = 0; tile / w.n_row_tiles < w.n_units;
         tile += w.stride, odd ^= 1) {
        TileRows after = tile_rows(w, tile + 2 * w.stride);
        float *part = parts + odd * 2 * MATRIX_FLOATS, sum[M][T][2];
        int is_mine = i < u.n * TILE_ROWS, pair = u.first + i / TILE_ROWS;
        few_rows<T>(p.x, u.rows, u.n, at);
        few_rows<1>(p.x, next.rows, next.n, next_at);
        for (int m0 = 0; m0 < 2; m0 += M) {
            walk_slice<TYPE, T, M>(&w, p.x, at, column_tiles(u.n), next_at[0], &x, sum);
            UNROLL
            for (int m = 0; m < M; m++)
                store_tile<T>(sum[m], column_tiles(u.n),
                              part + (m0 + m) * MATRIX_FLOATS + slice * TILE_FLOATS);
        }
        u = next, next = after;
        __syncthreads();
        if (is_mine) {
            float gate = sum_slices(part + i, TILE_FLOATS, n_slices);
            float up = sum_slices(part + MATRIX_FLOATS + i, TILE_FLOATS, n_slices);
            int row = (int)(tile % w.n_row_tiles) * TILE_ROWS + i % TILE_ROWS;
            if (row < p.a.width) p.h[(int64_t)pair * p.a.width + row] = silu(gate) * up;
        }
    }
}

/* ---- down ---- */

/* Of a k-block of h of 4 pairs, a lane's 4 neighbours of each; and what a warp makes of them in
 * shared memory. */
typedef struct {
    uint4 v[TILE_COLUMN_ROWS]; /* the bits of floats */
} HTile;
enum { H_TERMS_BYTES = TILE_COLUMN_ROWS * (TERM_BLOCK_BYTES + (int)sizeof(float)) };

/* Of n pairs from `first` on, from memory. */
static __device__ __forceinline__ void load_h(const FewPlan &p, int first, int n, int block,
                                              HTile *t)
{
    int k = block * K_BLOCK + warp_lane() * 4, left = p.a.width - k;
    const float *from = p.h + (int64_t)first * p.a.width + k;
    int is_piece = p.a.width % 4 == 0 && left >= 4;
    UNROLL
    for (int i = 0; i < TILE_COLUMN_ROWS; i++, from += p.a.width) {
        if (i >= n) continue;
        if (is_piece)
            t->v[i] = load_16(from);
        else
            t->v[i] =
                uint4{left > 0 ? philox_bits(from[0]) : 0, left > 1 ? philox_bits(from[1]) : 0,
                      left > 2 ? philox_bits(from[2]) : 0, left > 3 ? philox_bits(from[3]) : 0};
    }
}

/* From the ring. */
static __device__ __forceinline__ void read_h(const uint4 *from, int n, HTile *t)
{
    UNROLL
    for (int i = 0; i < TILE_COLUMN_ROWS; i++)
        if (i < n) t->v[i] = from[i * WARP];
}

/*
 * The terms of the n first pairs of t, as put_terms makes them: 4 neighbours of a k-block are
 * neighbours among its terms, too. A block that has NaN gets another unit than there, if any lane's
 * 4 are all NaN: its products are NaN with either.
 */
template <WeightType TYPE>
static __device__ __forceinline__ void put_h_terms(const HTile &t, int n, const Terms &out)
{
    int lane = warp_lane(), place = term_place<TYPE>(lane / 16, lane / 8 % 2, lane % 8 * 4);
    warp_sync(); /* all have read what was there */
    UNROLL
    for (int i = 0; i < TILE_COLUMN_ROWS; i++) {
        if (i >= n) continue;
        uint32_t high[2], low[2];
        float v[4], scale = 1;
        UNROLL
        for (int k = 0; k < 4; k++)
            v[k] = philox_float(word_of(t.v[i], k));
        if (TYPE == WEIGHT_FP8) {
            float max = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
            scale = term_scale(philox_float(warp_largest(philox_bits(max))));
            if (lane == 0) out.unit[i] = philox_float((254u << 23) - philox_bits(scale)); /* 1/ */
        }
        UNROLL
        for (int k = 0; k < 2; k++)
            two_terms<TYPE>(v[2 * k] * scale, v[2 * k + 1] * scale, &high[k], &low[k]);
        unsigned char *to = out.data + i * TERM_BLOCK_BYTES + place * 2;
        *(uint2 *)(void *)to = uint2{high[0], high[1]};
        *(uint2 *)(void *)(to + 64) = uint2{low[0], low[1]};
    }
    warp_sync();
}

/* acc += the k-block of fragments a times the pairs whose terms are there. */
template <WeightType TYPE>
static __device__ __forceinline__ void h_product(const uint32_t (&a)[K_STEPS][4], float scale,
                                                 const Terms &terms, float (&acc)[4])
{
    float unit = TYPE == WEIGHT_FP8 ? terms.unit[warp_lane() % 4] : 1;
    uint32_t at = term_offset(terms, warp_lane() / 8);
    block_product<TYPE>(a, load_terms(terms.data + at * 16), scale * unit, acc);
}

/* The walk's next tile, for the n pairs from `first` on. */
template <WeightType TYPE, int T>
static __device__ __forceinline__ void down_slice(Walk *w, const FewPlan &p, int first, int n,
                                                  const Terms &terms, float (&sum)[T][2])
{
    typedef DownRing<TYPE> Ring;
    float acc[T][4] = {};
    HTile h = {};
    for (int b = w->begin; b < w->end; b++) {
        WeightBlock<TYPE> block;
        uint32_t a[K_STEPS][4];
        const uint4 *from = wait_step<Ring>(*w);
        read_block<TYPE>(from, &block);
        read_h(from + Ring::WEIGHT_PIECES, n, &h);
        copy_step<Ring>(*w, w->at + Ring::BLOCKS);
        put_h_terms<TYPE>(h, n, terms);
        fragments<TYPE>(block, a);
        float scale = warp_shuffle(w->mine.scale, (int)w->at);
        h_product<TYPE>(a, scale, terms, acc[0]);
        UNROLL
        for (int j = 1; j < T; j++) {
            int left = n - j * TILE_COLUMN_ROWS;
            if (left <= 0) continue;
            load_h(p, first + j * TILE_COLUMN_ROWS, left, b, &h);
            put_h_terms<TYPE>(h, left, terms);
            h_product<TYPE>(a, scale, terms, acc[j]);
        }
        if (++w->at == WARP) next_steps<Ring>(w);
    }
    add_terms<T>(acc, sum);
}

/* p(s) of each slice and pair; [used slices][n_pairs][16]. */
template <int T>
static __device__ __forceinline__ void park(const float (&sum)[T][2], int n, float *out)
{
    int g = warp_lane() / 4, l = warp_lane() % 4;
    UNROLL
    for (int j = 0; j < T; j++) {
        int column = j * TILE_COLUMN_ROWS + l;
        if (column >= n) continue;
        out[column * TILE_ROWS + g] = sum[j][0];
        out[column * TILE_ROWS + g + 8] = sum[j][1];
    }
}

/*
 * A block per 16 outputs. A warp takes one slice of each of its units, so that few units keep all
 * warps busy, and parks what it gets, without a barrier up to its last; then threads add up the
 * products of pairs and the outputs of rows. An SM has one block, with 64 KiB of weights on their
 * way, and h of a unit's first 4 pairs beside them. h comes as up left it, in f32, and a warp makes
 * the terms of what it multiplies. Each block does that anew, and it is a launch less.
 * Shared: the rings; a tile of terms a warp; products [used slices][n_pairs][16]; choices [n *
 * n_top].
 */
template <WeightType TYPE, int T>
static __global__ void __launch_bounds__(DOWN_THREADS, 1) down_few_kernel(FewPlan p)
{
    typedef DownRing<TYPE> Ring;
    DYNAMIC_SHARED(uint4, rings);
    int i = (int)threadIdx.x, warp = i / WARP, n_threads = (int)blockDim.x;
    int n_blocks = term_blocks(p.a.width);
    int n_slices = used_slices(n_blocks), n_at_once = n_threads / WARP / n_slices;
    int slice = warp / n_slices < n_at_once ? warp % n_slices : n_slices; /* or idle */
    int first_row = (int)blockIdx.x * TILE_ROWS, n_pairs = few_pairs(p);
    unsigned char *tiles = (unsigned char *)(rings + n_threads / WARP * (Ring::BYTES / 16));
    float *product = (float *)(void *)(tiles + n_threads / WARP * H_TERMS_BYTES);
    Choice *choice = (Choice *)(void *)(product + n_slices * n_pairs * TILE_ROWS);
    Walk w = {};
    w.matrix = MATRIX_DOWN, w.n_matrices = w.n_side = 1;
    w.rows = p.a.dim, w.cols = p.a.width;
    begin_walk<Ring>(&w, p, n_blocks, slice, (unsigned)(warp / n_slices) * gridDim.x + blockIdx.x,
                     (unsigned)n_at_once * gridDim.x, rings);
    grid_trusts();
    w.n_units = (unsigned)load_fresh(p.n_units);
    find_steps<Ring>(&w);
    unsigned n_begun = begin_weights<Ring>(w);
    grid_wait();
    begin_steps<Ring>(w, n_begun);

    /* the last warps, which have no unit more than the others */
    for (int c = n_threads - 1 - i; c < p.a.n * p.a.n_top; c += n_threads)
        choice[c] = p.choice[c];
    unsigned char *tile = tiles + warp * H_TERMS_BYTES;
    Terms terms = {tile, (float *)(void *)(tile + TILE_COLUMN_ROWS * TERM_BLOCK_BYTES), 1};
    int n_units = slice < n_slices ? (int)w.n_units : 0;
    for (int unit = warp / n_slices; unit < n_units; unit += n_at_once) {
        int first = of_step(w.mine.first, w.at), n = of_step(w.mine.n, w.at);
        float sum[T][2];
        down_slice<TYPE, T>(&w, p, first, n, terms, sum);
        park<T>(sum, n, product + (slice * n_pairs + first) * TILE_ROWS);
    }
    int row = i / TILE_ROWS, d = first_row + i % TILE_ROWS;
    int is_mine = row < p.a.n && d < p.a.dim;
    float shared = 0; /* while others come */
    if (is_mine && !p.n_shared) shared = p.a.shared[(int64_t)row * p.a.dim + d];
    float gate = is_mine ? p.a.shared_gate[row] : 0;
    __syncthreads();
    for (int k = i; k < n_pairs * TILE_ROWS; k += n_threads)
        product[k] = sum_slices(product + k, n_pairs * TILE_ROWS, n_slices);
    __syncthreads();
    if (!is_mine) return;
    float sum = 0;
    for (int c = row * p.a.n_top; c < (row + 1) * p.a.n_top; c++) {
        Choice of = choice[c];
        sum = fmaf(of.weight, product[of.pair * TILE_ROWS + i % TILE_ROWS], sum);
    }
    if (p.n_shared) shared = product[(p.a.n * p.a.n_top) * TILE_ROWS + i]; /* row's pair */
    p.a.out[(int64_t)row * p.a.dim + d] = fmaf(sigmoid(gate), shared, sum);
}

#endif
