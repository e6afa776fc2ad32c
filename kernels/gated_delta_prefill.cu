/*
 * gated_delta_prefill.cu: the gated delta rule over the rows of a prompt, in blocks of 64.
 *
 * In one block, with S the state [d_k][d_v] before it, c_tj the product of the decays of rows j + 1
 * .. t, c_t that of rows 0 .. t:
 *     M_tj = beta_t c_tj k_t.k_j for j < t, else 0         P_tj = c_tj q_t.k_j for j <= t, else 0
 *     (I + M) [U0, W] = [diag(beta) V, diag(beta c) K]
 *     U = U0 - W S      out = diag(c) Q S + P U      S <- c_63 S + (diag(c_63,t) K)' U
 * Source: Gated Delta Networks, arXiv 2412.06464, section 3.3.
 *
 * The c are made by multiplication, row after row as the serial rule decays its state: no logarithm
 * of a decay of 0, nothing that overflows, no difference of large sums. The triangular system is
 * solved in f32. Products take both operands in two terms (mma_terms.h). Sums and state are f32.
 *
 * Blocks lie on multiples of 64 from the first row, whose position is one too. The last block may
 * have fewer rows; the others count as k = q = v = 0, beta 0, decay 1. Of a block, row t takes from
 * the rows after it zeros alone: products with 0, so that a number that is none reaches the rows of
 * its block before it, too. Where passes end only decides when a state goes through memory.
 *
 * Three launches for a group of blocks and heads whose tiles fit the scratch, 4 MiB a block for 16
 * and 32 heads of 128. What the first two leave may have left L2 by then: 2,048 rows' 132 MB are 63
 * us of an H200's memory, hidden behind the scan; groups that stay in L2 gave those two launches
 * too few blocks to fill the machine, 80 us a group of 448 rows.
 *     pack     for each block and key head: K and Q in two terms, as tiles of B
 *     prepare  for each block and value head: U0, -W, P and the c
 *     scan     for each value head and 64 columns: block after block
 * 2,048 rows of 16 and 32 heads on an H200 (2026-11-27): 35, 138 and 239 us.
 * State of a GPU: [n_v_heads][d_v][d_k].
 */
#include "kernels/mma_terms.h"

#include "kernels/backend.h"
#include "kernels/delta_slots.h"
#include "kernels/simt_copy.h"

enum {
    BLOCK = PREFILL_BLOCK,
    THREADS = 128,
    WARPS = THREADS / WARP,
    ROW_TILES = BLOCK / 8,
    STEP_TILES = ROW_TILES * WARP, /* BTerms of a block's rows, 16 columns */
    MAX_STEPS = MAX_D_K / 16,
    AT_ONCE = 4, /* loads of a thread that are on their way together, in twos or fours */
};

static_assert(BLOCK == 64 && WARPS * 16 == BLOCK && 2 * BLOCK == THREADS,
              "a warp has 16 rows of a block");
static_assert(4 * STEP_TILES % (AT_ONCE * THREADS) == 0, "all of a round's loads exist");

/*
 * A group. Tiles of B: of rows, tile (s, r) has rows 8 r .. 8 r + 7 and the columns 16 s .. 16 s +
 * 15 along k, in QUAD order; k_cols, tile (s, i) has the rows 16 s .. along k, in PAIR order, and 8
 * columns of those that a lane's QUADs are, see column_of.
 */
typedef struct {
    GatedDelta a;
    int steps;                 /* of 16 columns: d_k, rounded up to what scan is made for */
    int v_groups;              /* of 16 columns of V */
    int key_head, n_key_heads; /* of the group */
    int block, n_blocks;       /* of the group */
    int aligned;               /* rows of q and k lie on 16 bytes */
    BTerms *k_rows, *q_rows;   /* [n_blocks][n_key_heads][steps][ROW_TILES][WARP] */
    BTerms *k_cols;            /* [n_blocks][n_key_heads][4][2 steps][WARP] */
    BTerms *w_rows;            /* [n_blocks][value heads][steps][ROW_TILES][WARP], of -W */
    BTerms *p_rows;            /* [n_blocks][value heads][4][ROW_TILES][WARP], k in PAIR order */
    float4 *u0;                /* [n_blocks][value heads][v_groups][ROW_TILES][WARP] */
    float *decays;             /* [n_blocks][value heads][2][BLOCK]: c_t, c_63,t */
    uint32_t q_at, k_at, w_at, p_at; /* q_rows, k_cols, w_rows, p_rows, from k_rows on */
} Plan;

/* The column of K that is column n of tile i of k_cols, and of a warp's state. */
static __device__ __forceinline__ int column_of(int i, int n)
{
    return 16 * (i / 2) + 4 * (n / 2) + 2 * (i % 2) + n % 2;
}

/* Four floats from p on, of which n exist, the others 0. */
static __device__ __forceinline__ float4 load_quad(const float *p, int n, int aligned)
{
    if (aligned && n >= 4) return *(const float4 *)(const void *)p;
    float4 x;
    x.x = n > 0 ? p[0] : 0;
    x.y = n > 1 ? p[1] : 0;
    x.z = n > 2 ? p[2] : 0;
    x.w = n > 3 ? p[3] : 0;
    return x;
}

static __device__ __forceinline__ BTerms split(const float4 &x)
{
    return split_four(x.x, x.y, x.z, x.w);
}

/* ---- pack ---- */

/* Row t of the block's rows of x, one head's part from column c on; zeros where there is none. */
static __device__ __forceinline__ float4 row_quad(const Plan &p, const float *x, int block,
                                                  int key_head, int t, int c)
{
    int row = block * BLOCK + t, n = row < p.a.n ? p.a.d_k - c : 0;
    int64_t at = ((int64_t)row * p.a.n_k_heads + key_head) * p.a.d_k + c;
    return load_quad(x + (n > 0 ? at : 0), n, p.aligned);
}

static __device__ __forceinline__ float key_at(const Plan &p, int block, int key_head, int t, int c)
{
    int row = block * BLOCK + t;
    if (row >= p.a.n || c >= p.a.d_k) return 0;
    return p.a.k[((int64_t)row * p.a.n_k_heads + key_head) * p.a.d_k + c];
}

/* Entry i of k_rows or q_rows as numbers, x being k or q. */
static __device__ __forceinline__ float4 row_entry(const Plan &p, const float *x, int block,
                                                   int key_head, int i)
{
    int tile = i / WARP, t = tile % ROW_TILES * 8 + i % WARP / 4;
    return row_quad(p, x, block, key_head, t, tile / ROW_TILES * 16 + 4 * (i % 4));
}

/* Entry i of k_cols. */
static __device__ __forceinline__ float4 column_entry(const Plan &p, int block, int key_head, int i)
{
    int tile = i / WARP, t = tile / (2 * p.steps) * 16 + 2 * (i % 4);
    int c = column_of(tile % (2 * p.steps), i % WARP / 4);
    return float4{key_at(p, block, key_head, t, c), key_at(p, block, key_head, t + 1, c),
                  key_at(p, block, key_head, t + 8, c), key_at(p, block, key_head, t + 9, c)};
}

/*
 * grid: blocks x key heads. A thread makes every 128th BTerms of the three, AT_ONCE at a time: no
 * load waits for what was loaded before it. Bytes: q and k read (k twice, the second time from L1),
 * 1.5 times as much written.
 */
static __global__ void __launch_bounds__(THREADS) pack_kernel(Plan p)
{
    grid_wait();
    int item = (int)blockIdx.x, key_head = p.key_head + item % p.n_key_heads;
    int block = p.block + item / p.n_key_heads, n = p.steps * STEP_TILES;
    int64_t first = (int64_t)item * n;
    for (int i0 = (int)threadIdx.x; i0 < n; i0 += AT_ONCE * THREADS) {
        float4 k[AT_ONCE], q[AT_ONCE];
        UNROLL for (int j = 0; j < AT_ONCE; j++)
        {
            k[j] = row_entry(p, p.a.k, block, key_head, i0 + j * THREADS);
            q[j] = row_entry(p, p.a.q, block, key_head, i0 + j * THREADS);
        }
        UNROLL for (int j = 0; j < AT_ONCE; j++)
        {
            p.k_rows[first + i0 + j * THREADS] = split(k[j]);
            p.q_rows[first + i0 + j * THREADS] = split(q[j]);
        }
    }
    for (int i0 = (int)threadIdx.x; i0 < n; i0 += AT_ONCE * THREADS) {
        float4 k[AT_ONCE];
        UNROLL for (int j = 0; j < AT_ONCE; j++) k[j] =
            column_entry(p, block, key_head, i0 + j * THREADS);
        UNROLL for (int j = 0; j < AT_ONCE; j++) p.k_cols[first + i0 + j * THREADS] = split(k[j]);
    }
}

/* ---- prepare ---- */

/* Strides of shared rows: 16-byte steps, and the banks of a warp's reads differ. */
enum { M_STRIDE = BLOCK + 4, X_STRIDE = THREADS + 8 };

typedef struct {
    float m[BLOCK][M_STRIDE]; /* [j][t]: M_tj, for t > j alone */
    union {
        float x[BLOCK][X_STRIDE]; /* the columns of a system, then its solutions */
        struct {
            float kk[BLOCK][M_STRIDE], qk[BLOCK][M_STRIDE]; /* [t][j], for j <= t alone */
        };
    };
    float beta[BLOCK], decay[BLOCK], from_start[BLOCK];
} Prepared;

/* k_t.k_j and q_t.k_j for the 16 rows t of a warp and all j that they need. */
static __device__ void multiply_keys(const Plan &p, Prepared *s, const BTerms *k, const BTerms *q)
{
    int warp = (int)threadIdx.x / WARP, lane = warp_lane(), g = lane / 4, l = lane % 4;
    float kk[ROW_TILES][4] = {}, qk[ROW_TILES][4] = {};
    for (int step = 0; step < p.steps; step++) {
        int own = (step * ROW_TILES + 2 * warp) * WARP + lane;
        ATerms of_k = rows_as_a(k[own], k[own + WARP]), of_q = rows_as_a(q[own], q[own + WARP]);
        BTerms b[ROW_TILES]; /* all on their way before the first is multiplied */
        UNROLL for (int r = 0; r < ROW_TILES; r++) b[r] =
            k[(step * ROW_TILES + (r > 2 * warp + 1 ? 0 : r)) * WARP + lane];
        UNROLL for (int r = 0; r < ROW_TILES; r++)
        {
            if (r > 2 * warp + 1) continue;
            mma_terms(kk[r], of_k, b[r]);
            mma_terms(qk[r], of_q, b[r]);
        }
    }
    UNROLL for (int r = 0; r < ROW_TILES; r++)
    {
        if (r > 2 * warp + 1) continue;
        UNROLL for (int e = 0; e < 4; e++)
        {
            int t = 16 * warp + g + e / 2 * 8, j = 8 * r + 2 * l + e % 2;
            s->kk[t][j] = kk[r][e];
            s->qk[t][j] = qk[r][e];
        }
    }
}

/* c_tj for AT_ONCE rows from t on; c is that of the row before, and becomes that of the last. */
static __device__ __forceinline__ void decays_to(const Prepared *s, int t, int j, float *c,
                                                 float (&to)[AT_ONCE])
{
    float by[AT_ONCE];
    load4<true>(by, &s->decay[t], AT_ONCE);
    UNROLL for (int i = 0; i < AT_ONCE; i++)
    {
        if (t + i > j) *c *= by[i];
        to[i] = *c;
    }
}

/* Column j of M. */
static __device__ void column_of_m(Prepared *s, int j, float *to_end)
{
    float c = 1;
    for (int t = 0; t < BLOCK; t += AT_ONCE) {
        float by[AT_ONCE], beta[AT_ONCE], x[AT_ONCE];
        UNROLL for (int i = 0; i < AT_ONCE; i++) x[i] = s->kk[t + i][j];
        load4<true>(beta, &s->beta[t], AT_ONCE);
        decays_to(s, t, j, &c, by);
        UNROLL for (int i = 0; i < AT_ONCE; i++) if (t + i > j) s->m[j][t + i] =
            beta[i] * (by[i] * x[i]);
    }
    to_end[j] = c;
}

/* Column j of P in place of that of Q K'. */
static __device__ void column_of_p(Prepared *s, int j)
{
    float c = 1, first = s->decay[0];
    for (int t = 0; t < BLOCK; t += AT_ONCE) {
        float by[AT_ONCE], x[AT_ONCE];
        UNROLL for (int i = 0; i < AT_ONCE; i++) x[i] = s->qk[t + i][j];
        decays_to(s, t, j, &c, by);
        UNROLL for (int i = 0; i < AT_ONCE; i++)
        {
            s->qk[t + i][j] = t + i < j ? 0 : by[i] * x[i];
            if (j == 0) s->from_start[t + i] = first * by[i];
        }
    }
}

/* Both by a thread a column; the products c_tj along it. */
static __device__ void decay_columns(Prepared *s, float *to_end)
{
    int j = (int)threadIdx.x % BLOCK;
    if ((int)threadIdx.x < BLOCK)
        column_of_m(s, j, to_end);
    else
        column_of_p(s, j);
}

/*
 * Solves (I + M) x = r for the thread's own column of s->x, where r is and x comes: 16 rows at a
 * time, first less what the rows before make, j ascending.
 */
static __device__ void solve_column(Prepared *s)
{
    int column = (int)threadIdx.x;
    for (int from = 0; from < BLOCK; from += 16) {
        float x[16];
        UNROLL for (int r = 0; r < 16; r++) x[r] = s->x[from + r][column];
        for (int j = 0; j < from; j++) {
            float known = s->x[j][column];
            UNROLL for (int r = 0; r < 16; r++) x[r] = fmaf(-s->m[j][from + r], known, x[r]);
        }
        UNROLL for (int i = 0; i < 16; i++)
        {
            s->x[from + i][column] = x[i];
            UNROLL for (int r = i + 1; r < 16; r++) x[r] =
                fmaf(-s->m[from + i][from + r], x[i], x[r]);
        }
    }
}

/* s->x = scale[t] x[t], or -scale[t] scale2[t] x[t], for the thread's column: x is its first row.
 */
static __device__ void load_column(const Plan &p, Prepared *s, const float *x, int64_t stride,
                                   int block, int exists, const float *scale, const float *scale2)
{
    enum { LOADS = 4 * AT_ONCE };
    int n = p.a.n - block * BLOCK;
    if (!exists) n = 0;
    for (int t0 = 0; t0 < BLOCK; t0 += LOADS) {
        float of[LOADS];
        UNROLL for (int i = 0; i < LOADS; i++) of[i] = t0 + i < n ? x[(t0 + i) * stride] : 0;
        UNROLL for (int i = 0; i < LOADS; i++)
        {
            int t = t0 + i;
            float by = scale2 ? -scale[t] * scale2[t] : scale[t];
            s->x[t][threadIdx.x] = t < n ? by * of[i] : 0;
        }
    }
}

/* -W, up to 128 columns at a time. */
static __device__ void prepare_w(const Plan &p, Prepared *s, int block, int key_head, BTerms *out)
{
    int tid = (int)threadIdx.x;
    int64_t stride = (int64_t)p.a.n_k_heads * p.a.d_k;
    const float *k = p.a.k + block * BLOCK * stride + (int64_t)key_head * p.a.d_k;
    for (int c = 0; c < p.steps * 16; c += THREADS) {
        int steps = p.steps - c / 16 < THREADS / 16 ? p.steps - c / 16 : THREADS / 16;
        load_column(p, s, k + c + tid, stride, block, c + tid < p.a.d_k, s->beta, s->from_start);
        if (c + tid < p.a.d_k) solve_column(s);
        __syncthreads();
        for (int i = tid; i < steps * STEP_TILES; i += THREADS) {
            int tile = i / WARP, t = tile % ROW_TILES * 8 + i % WARP / 4;
            int column = tile / ROW_TILES * 16 + 4 * (i % 4);
            out[c / 16 * STEP_TILES + i] = split(*(const float4 *)(const void *)&s->x[t][column]);
        }
        __syncthreads();
    }
}

/* U0, up to 128 columns at a time, as scan's warps hold the transpose. */
static __device__ void prepare_u(const Plan &p, Prepared *s, int block, int head, float4 *out)
{
    int tid = (int)threadIdx.x;
    int64_t stride = (int64_t)p.a.n_v_heads * p.a.d_v;
    const float *v = p.a.v + block * BLOCK * stride + (int64_t)head * p.a.d_v;
    for (int c = 0; c < p.v_groups * 16; c += THREADS) {
        int left = p.v_groups - c / 16, groups = left < THREADS / 16 ? left : THREADS / 16;
        load_column(p, s, v + c + tid, stride, block, c + tid < p.a.d_v, s->beta, NULL);
        if (c + tid < p.a.d_v) solve_column(s);
        __syncthreads();
        for (int i = tid; i < groups * STEP_TILES; i += THREADS) {
            int tile = i / WARP, t = tile % ROW_TILES * 8 + i % 4 * 2;
            int column = tile / ROW_TILES * 16 + i % WARP / 4;
            float4 u;
            u.x = s->x[t][column], u.y = s->x[t + 1][column];
            u.z = s->x[t][column + 8], u.w = s->x[t + 1][column + 8];
            out[c / 16 * STEP_TILES + i] = u;
        }
        __syncthreads();
    }
}

/*
 * grid: blocks x value heads of the group; 52 KiB of shared memory. Four warps: 16 rows each of the
 * products, then a thread a column of each system: 2,016 fmaf of which four share one 16-byte read
 * of M. Value heads of one key head repeat its products, an eighth of the work, so that a short
 * prompt has blocks for all SMs. 516,000 fmaf a block of 128 + 128 columns are 4,000 cycles of an
 * SM.
 */
static __global__ void __launch_bounds__(THREADS, 3) prepare_kernel(Plan p)
{
    grid_wait();
    DYNAMIC_SHARED(Prepared, s);
    int tid = (int)threadIdx.x, per_key = p.a.n_v_heads / p.a.n_k_heads;
    int n_heads = p.n_key_heads * per_key, item = (int)blockIdx.x;
    int in_group = item % n_heads, in_block = item / n_heads;
    int head = p.key_head * per_key + in_group, block = p.block + in_block;
    int64_t key_item = (int64_t)in_block * p.n_key_heads + in_group / per_key;
    int64_t n = (int64_t)p.steps * STEP_TILES;

    if (tid < BLOCK) {
        int row = block * BLOCK + tid;
        int64_t at = (int64_t)row * p.a.n_v_heads + head;
        s->beta[tid] = row < p.a.n ? p.a.beta[at] : 0;
        s->decay[tid] = row < p.a.n ? p.a.decay[at] : 1;
    }
    multiply_keys(p, s, p.k_rows + key_item * n, p.q_rows + key_item * n);
    __syncthreads();
    decay_columns(s, p.decays + (int64_t)item * 2 * BLOCK + BLOCK);
    __syncthreads();
    if (tid < BLOCK) p.decays[(int64_t)item * 2 * BLOCK + tid] = s->from_start[tid];
    for (int i = tid; i < 4 * STEP_TILES; i += THREADS) {
        int tile = i / WARP, t = tile % ROW_TILES * 8 + i % WARP / 4;
        const float *row = s->qk[t] + tile / ROW_TILES * 16 + i % 4 * 2;
        p.p_rows[(int64_t)item * 4 * STEP_TILES + i] = split_four(row[0], row[1], row[8], row[9]);
    }
    __syncthreads();
    prepare_w(p, s, block, p.key_head + in_group / per_key, p.w_rows + item * n);
    prepare_u(p, s, block, head, p.u0 + (int64_t)item * p.v_groups * STEP_TILES);
}

/* ---- scan ---- */

/*
 * A warp owns 16 columns of a head's state for all blocks, transposed: rows of A and of results are
 * columns of S. Results become A where they are, in registers, so that warps meet for nothing but
 * tiles of B, which a thread block brings to shared memory, 8 at a time.
 *
 * grid: value heads of the group x parts of 64 columns. Per block a warp has 3 (24 steps + 20)
 * products of 16 x 8 x 16: 636 for d_k = 128, at an estimated 13 cycles of a quarter of an SM 4.4
 * us; a prompt of 2,048 rows is 32 blocks in sequence, 0.14 ms. Tiles: 112 KiB a block, 0.7 us of
 * an SM's share of L2. With one stage asked ahead 2,048 rows took 0.35 ms, half of it waiting for
 * tiles, decays and U0 (H200, 2026-11-27), hence the ring.
 */
enum {
    STAGE_TILES = ROW_TILES,
    STAGE = STAGE_TILES * WARP,
    PIECES = STAGE / THREADS, /* that a thread copies of a stage */
    RING = 4,                 /* stages on their way or in use */
};

/*
 * Stages of a block, 8 tiles each: for each of STEPS steps W's, then Q's; four of P's; STEPS of
 * k_cols'. Returns where they begin, from p.k_rows on.
 */
template <int STEPS>
static __device__ __forceinline__ uint32_t stage_at(const Plan &p, int block, int in_group,
                                                    int stage)
{
    uint32_t per_key = (uint32_t)(p.a.n_v_heads / p.a.n_k_heads), n = STEPS * STAGE;
    uint32_t key_item = (uint32_t)(block * p.n_key_heads) + (uint32_t)in_group / per_key;
    uint32_t item = (uint32_t)(block * p.n_key_heads) * per_key + (uint32_t)in_group;
    if (stage < 2 * STEPS && stage % 2) return p.q_at + key_item * n + (uint32_t)stage / 2 * STAGE;
    if (stage < 2 * STEPS) return p.w_at + item * n + (uint32_t)stage / 2 * STAGE;
    uint32_t at = (uint32_t)(stage - 2 * STEPS) * STAGE;
    if (stage < 2 * STEPS + 4) return p.p_at + item * 4 * STAGE + at;
    return p.k_at + key_item * n + at - 4 * STAGE;
}

/* What is copied beside the warps' work. */
typedef struct {
    BTerms b[RING][STAGE];
    float4 u0[WARPS][STEP_TILES]; /* of the block that comes next, each lane's for itself */
    float decays[2][2 * BLOCK];   /* of even and odd blocks */
} Stages;

template <int STEPS> struct Feed {
    enum { N_STAGES = 3 * STEPS + 4 };
    static_assert(N_STAGES % RING == 0, "all blocks begin with the same stage of the ring");
    Stages *s;
    int in_group, block, v_group, is_active;
};

/* Begins to copy a stage of this block or the next. */
template <int STEPS>
static __device__ __forceinline__ void copy_stage(const Plan &p, const Feed<STEPS> &f, int stage)
{
    enum { N = Feed<STEPS>::N_STAGES };
    int next = stage >= N && f.block + 1 < p.n_blocks;
    /* after the last block the last one's come again: nobody looks at them */
    uint32_t from = stage_at<STEPS>(p, f.block + next, f.in_group, stage % N) + threadIdx.x;
    UNROLL for (int i = 0; i < PIECES; i++)
        copy_16(&f.s->b[stage % RING][i * THREADS + (int)threadIdx.x],
                p.k_rows + from + (uint32_t)(i * THREADS));
    copies_commit();
}

/* Begins to copy what else block `block` of the group takes, if there is one; the next stage's
 * commit closes the group. */
template <int STEPS>
static __device__ __forceinline__ void copy_block(const Plan &p, const Feed<STEPS> &f, int block)
{
    int n_heads = p.n_key_heads * (p.a.n_v_heads / p.a.n_k_heads), lane = warp_lane();
    int64_t item = (int64_t)block * n_heads + f.in_group;
    if (block >= p.n_blocks) return;
    copy_4(&f.s->decays[block % 2][threadIdx.x], p.decays + item * 2 * BLOCK + threadIdx.x);
    if (!f.is_active) return;
    UNROLL for (int r = 0; r < ROW_TILES; r++)
        copy_16(&f.s->u0[threadIdx.x / WARP][r * WARP + lane],
                p.u0 + (item * p.v_groups + f.v_group) * STEP_TILES + r * WARP + lane);
}

/* Done with a stage: waits for the next one, and has its place filled. */
template <int STEPS>
static __device__ __forceinline__ void turn(const Plan &p, const Feed<STEPS> &f, int stage)
{
    copies_wait<RING - 2>();
    __syncthreads();
    copy_stage(p, f, stage + RING);
}

/* The warp's state: element (g + 8 (e / 2), column_of(i, 2 l + e % 2)) of tile i. */
template <int STEPS>
static __device__ void move_state(const Plan &p, int head, int column, int32_t slot,
                                  float s[2 * STEPS][4], int is_store)
{
    int lane = warp_lane(), d_k = p.a.d_k;
    float *state = slot_at(p.a.slots, slot, p.a.slots.state_offset);
    UNROLL for (int i = 0; i < 2 * STEPS; i++)
    {
        UNROLL for (int e = 0; e < 4; e++)
        {
            int c = column + lane / 4 + e / 2 * 8, k = column_of(i, lane % 4 * 2 + e % 2);
            int exists = c < p.a.d_v && k < d_k;
            float *at = state + ((int64_t)head * p.a.d_v + c) * d_k + k;
            if (is_store) {
                if (exists) *at = s[i][e];
            } else {
                s[i][e] = exists ? *at : 0;
            }
        }
    }
}

/* A warp's results of one block. */
static __device__ __forceinline__ void store_out(const Plan &p, int block, int head, int column,
                                                 const float out[ROW_TILES][4])
{
    UNROLL for (int r = 0; r < ROW_TILES; r++)
    {
        UNROLL for (int e = 0; e < 4; e++)
        {
            int row = (p.block + block) * BLOCK + 8 * r + warp_lane() % 4 * 2 + e % 2;
            int c = column + warp_lane() / 4 + e / 2 * 8;
            if (row < p.a.n && c < p.a.d_v)
                p.a.out[((int64_t)row * p.a.n_v_heads + head) * p.a.d_v + c] = out[r][e];
        }
    }
}

/* A warp's part of one block; s is the state. */
template <int STEPS>
static __device__ __forceinline__ void scan_block(const Plan &p, const Feed<STEPS> &f,
                                                  float s[2 * STEPS][4], int head, int column)
{
    int lane = warp_lane(), l = lane % 4;
    const float4 *u0 = f.s->u0[threadIdx.x / WARP];
    const float *decays = f.s->decays[f.block % 2];
    float u[ROW_TILES][4], out[ROW_TILES][4];
    UNROLL for (int r = 0; r < ROW_TILES; r++)
    {
        float4 x = f.is_active ? u0[r * WARP + lane] : float4{0, 0, 0, 0};
        u[r][0] = x.x, u[r][1] = x.y, u[r][2] = x.z, u[r][3] = x.w;
        UNROLL for (int e = 0; e < 4; e++) out[r][e] = 0;
    }
    copy_block(p, f, f.block + 1);
    UNROLL for (int step = 0; step < STEPS; step++)
    {
        ATerms a = result_as_a(s[2 * step], s[2 * step + 1]);
        UNROLL for (int r = 0; r < ROW_TILES; r++)
            mma_terms(u[r], a, f.s->b[2 * step % RING][r * WARP + lane]);
        turn(p, f, 2 * step);
        UNROLL for (int r = 0; r < ROW_TILES; r++)
            mma_terms(out[r], a, f.s->b[(2 * step + 1) % RING][r * WARP + lane]);
        turn(p, f, 2 * step + 1);
    }
    UNROLL for (int r = 0; r < ROW_TILES; r++)
    {
        UNROLL for (int e = 0; e < 4; e++) out[r][e] *= decays[8 * r + 2 * l + e % 2];
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        ATerms a = result_as_a(u[2 * i], u[2 * i + 1]);
        UNROLL for (int r = 2 * i; r < ROW_TILES; r++)
            mma_terms(out[r], a, f.s->b[(2 * STEPS + i) % RING][r * WARP + lane]);
        turn(p, f, 2 * STEPS + i);
    }
    float all = decays[BLOCK - 1];
    UNROLL for (int r = 0; r < ROW_TILES; r++)
    {
        UNROLL for (int e = 0; e < 4; e++) u[r][e] *= decays[BLOCK + 8 * r + 2 * l + e % 2];
    }
    UNROLL for (int i = 0; i < 2 * STEPS; i++)
    {
        UNROLL for (int e = 0; e < 4; e++) s[i][e] *= all;
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        ATerms a = result_as_a(u[2 * i], u[2 * i + 1]);
        UNROLL for (int c = 0; c < 2 * STEPS; c++)
        {
            int tile = i * 2 * STEPS + c, stage = 2 * STEPS + 4 + tile / STAGE_TILES;
            const BTerms *b = f.s->b[stage % RING] + tile % STAGE_TILES * WARP + lane;
            mma_terms(s[c], a, *b);
            if (tile % STAGE_TILES == STAGE_TILES - 1) turn(p, f, stage);
        }
    }
    store_out(p, f.block, head, column, out);
}

template <int STEPS> static __global__ void __launch_bounds__(THREADS, 2) scan_kernel(Plan p)
{
    grid_wait();
    __shared__ Stages stages;
    int per_key = p.a.n_v_heads / p.a.n_k_heads, n_heads = p.n_key_heads * per_key;
    int in_group = (int)blockIdx.x % n_heads;
    int head = p.key_head * per_key + in_group;
    int v_group = (int)blockIdx.x / n_heads * WARPS + (int)threadIdx.x / WARP;
    int column = v_group * 16, is_active = v_group < p.v_groups;
    float s[2 * STEPS][4];
    move_state<STEPS>(p, head, column, p.block == 0 ? p.a.src[0] : p.a.dst[p.a.n - 1], s, 0);

    Feed<STEPS> f = {&stages, in_group, 0, v_group, is_active};
    copy_block(p, f, 0);
    UNROLL for (int stage = 0; stage < RING; stage++) copy_stage(p, f, stage);
    copies_wait<RING - 1>();
    __syncthreads();
    for (; f.block < p.n_blocks; f.block++)
        scan_block(p, f, s, head, column);
    copies_wait<0>();
    move_state<STEPS>(p, head, column, p.a.dst[p.a.n - 1], s, 1);
}

/* ---- launching ---- */

/* Takes n elements from the scratch at *at. */
template <typename T> static T *take(unsigned char **at, size_t n)
{
    T *taken = (T *)(void *)*at;
    *at += n * sizeof(T);
    return taken;
}

static void run_group(const CudaContext *c, Plan *p)
{
    int per_key = p->a.n_v_heads / p->a.n_k_heads, n_heads = p->n_key_heads * per_key;
    size_t key_items = (size_t)p->n_blocks * (size_t)p->n_key_heads;
    size_t items = key_items * (size_t)per_key, n = (size_t)p->steps * STEP_TILES;
    unsigned char *at = c->scratch;
    p->k_rows = take<BTerms>(&at, key_items * n);
    p->q_rows = take<BTerms>(&at, key_items * n);
    p->k_cols = take<BTerms>(&at, key_items * n);
    p->w_rows = take<BTerms>(&at, items * n);
    p->p_rows = take<BTerms>(&at, items * 4 * STEP_TILES);
    p->u0 = take<float4>(&at, items * (size_t)p->v_groups * STEP_TILES);
    p->decays = take<float>(&at, items * 2 * BLOCK);
    p->q_at = (uint32_t)(p->q_rows - p->k_rows), p->k_at = (uint32_t)(p->k_cols - p->k_rows);
    p->w_at = (uint32_t)(p->w_rows - p->k_rows), p->p_at = (uint32_t)(p->p_rows - p->k_rows);
    assert(at <= c->scratch + c->scratch_bytes);

    int parts = (p->v_groups + WARPS - 1) / WARPS;
    void (*scan)(Plan) = scan_kernel<MAX_STEPS>;
    if (p->steps == 4) scan = scan_kernel<4>;
    if (p->steps == 8) scan = scan_kernel<8>;
    launch(c, dim3((unsigned)key_items), THREADS, 0, pack_kernel, *p);
    launch(c, dim3((unsigned)items), THREADS, sizeof(Prepared), prepare_kernel, *p);
    launch(c, dim3((unsigned)(n_heads * parts)), THREADS, 0, scan, *p);
}

extern "C" void CUDA_NAME(gated_delta_prefill)(const CudaContext *c, const GatedDelta *a)
{
    Plan p = {};
    p.a = *a;
    p.steps = a->d_k <= 64 ? 4 : a->d_k <= 128 ? 8 : +MAX_STEPS;
    p.v_groups = (a->d_v + 15) / 16;
    p.aligned = ((uintptr_t)a->q | (uintptr_t)a->k) % 16 == 0 && a->d_k % 4 == 0;
    size_t step = (size_t)p.steps * STEP_TILES * sizeof(BTerms); /* K of a block and key head */
    size_t value =
        step + (size_t)(4 + p.v_groups) * STEP_TILES * sizeof(BTerms) + 2 * BLOCK * sizeof(float);
    size_t unit = 3 * step + value * (size_t)(a->n_v_heads / a->n_k_heads);
    size_t room = c->scratch_bytes;
    assert(a->d_k >= 1 && a->d_k <= MAX_D_K && a->n_v_heads % a->n_k_heads == 0);
    assert(unit <= room);
    int n_blocks = (a->n + BLOCK - 1) / BLOCK;
    int heads = room / unit < (size_t)a->n_k_heads ? (int)(room / unit) : a->n_k_heads;
    int blocks = (int)(room / (unit * (size_t)heads));
    for (p.key_head = 0; p.key_head < a->n_k_heads; p.key_head += heads)
        for (p.block = 0; p.block < n_blocks; p.block += blocks) {
            int left = a->n_k_heads - p.key_head;
            p.n_key_heads = left < heads ? left : heads;
            p.n_blocks = n_blocks - p.block < blocks ? n_blocks - p.block : blocks;
            run_group(c, &p);
        }
}
