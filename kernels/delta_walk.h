/*
 * delta_walk.h: how a warp takes states of the delta rule over rows.
 *
 * A warp owns COLS columns of one head's state and walks all rows in order: column warp_lane() /
 * LANES, of which a lane keeps k = 32 i + 4 (lane % LANES) + j, j < 4, i < N4, in registers. No
 * other thread touches these words of any slot, and it reads and writes them in the order of its
 * rows: so blocks need nothing of each other, and what the rows before left in a slot is there.
 *
 * One form for prompts, trees and single rows: both sums over the old state S (m = k S, p = q S),
 *     u = beta (v - decay m),  out = decay p + (k q) u,  S = decay S + k u
 * each sum in four parts by j, i ascending, parts as (0 + 1) + (2 + 3), then a tree over the lanes.
 *
 * What rows bring lies in shared memory before the walk comes to them (DeltaChunk), so that a row
 * waits for no other memory. A row that continues the one before it takes S from registers; else S
 * is fetched while the row before is computed. A chain in place stores its last state alone. Rows
 * that leave no state store u: where such a tree branches, its path is run again from the slot on,
 * from k and u, without a sum. That keeps registers and shared memory free for the usual tree, a
 * chain. Not measured: a stack of tiles in shared memory may be better for bushy trees.
 */
#ifndef OFFSHOOT_KERNELS_DELTA_WALK_H
#define OFFSHOOT_KERNELS_DELTA_WALK_H

#include "kernels/delta_slots.h"

enum { COLS = 4, LANES = WARP / COLS };

/* Rows of one head, of which a block has N_COLS columns. Keys beyond d_k are 0. */
template <int N4, int N_COLS> struct DeltaChunk {
    enum { ROWS = N4 > 4 ? 8 : 16, KEYS = 4 * LANES * N4 };
    alignas(16) float k[ROWS][KEYS];
    alignas(16) float q[ROWS][KEYS];
    float v[ROWS][N_COLS], decay[ROWS], beta[ROWS];
    int32_t src[ROWS], parent[ROWS]; /* parent is there where dst < 0 */
    int32_t dst[1 + ROWS + 1];       /* from that of the row before the first on */
};

/* Where a lane works: column col of a head, from k = at on. */
typedef struct {
    int head, key_head, col, at;
    int d_k; /* 0 where there is no such column */
} DeltaLane;

template <int N4, bool FAST>
static __device__ __forceinline__ void load_part(float x[N4][4], const float *from,
                                                 const DeltaLane &l)
{
    for (int i = 0; i < N4; i++)
        load4<FAST>(x[i], from + 4 * LANES * i + l.at, l.d_k - 4 * LANES * i - l.at);
}

template <int N4, bool FAST>
static __device__ __forceinline__ void store_part(float *to, const float s[N4][4],
                                                  const DeltaLane &l)
{
    for (int p = 0; p < N4; p++)
        store4<FAST>(to + 4 * LANES * p + l.at, s[p], l.d_k - 4 * LANES * p - l.at);
}

template <typename Op>
static __device__ __forceinline__ float *column_at(const Op &a, const DeltaLane &l, int32_t slot)
{
    return slot_at(a.slots, slot, a.slots.state_offset) + ((int64_t)l.head * a.d_v + l.col) * a.d_k;
}

/* ---- one row ---- */

/* A lane's part of what a row brings. */
template <int N4> struct DeltaRow {
    float k[N4][4], q[N4][4];
    float v, decay, beta;
};

/* The sum of x over the lanes of a column, from a lane's four parts. */
static __device__ __forceinline__ float column_sum(const float x[4])
{
    return warp_sum((x[0] + x[1]) + (x[2] + x[3]), LANES);
}

/* S = decay S + k u */
template <int N4>
static __device__ __forceinline__ void update_state(float s[N4][4], const float k[N4][4], float u,
                                                    float decay)
{
    for (int i = 0; i < N4; i++)
        for (int j = 0; j < 4; j++)
            s[i][j] = fmaf(k[i][j], u, decay * s[i][j]);
}

/* Takes s one row on; returns the row's output. *u is the same in all lanes of the column. */
template <int N4>
static __device__ __forceinline__ float delta_step(float s[N4][4], const DeltaRow<N4> &r, float *u)
{
    float m4[4] = {0}, p4[4] = {0}, kq4[4] = {0};
    for (int i = 0; i < N4; i++)
        for (int j = 0; j < 4; j++) {
            m4[j] = fmaf(r.k[i][j], s[i][j], m4[j]);
            p4[j] = fmaf(r.q[i][j], s[i][j], p4[j]);
            kq4[j] = fmaf(r.k[i][j], r.q[i][j], kq4[j]);
        }
    float m = column_sum(m4), p = column_sum(p4), kq = column_sum(kq4);
    *u = r.beta * fmaf(-r.decay, m, r.v);
    update_state<N4>(s, r.k, *u, r.decay);
    return fmaf(r.decay, p, kq * *u);
}

/* ---- rows that left no state ---- */

/* What is kept of a head's rows, from the first on: of a call's, or of a layer's. */
typedef struct {
    const float *k, *u, *decay;
    int64_t k_stride, u_stride, decay_stride; /* floats from row to row */
} DeltaRecords;

template <int N4> struct DeltaRecord {
    float k[N4][4];
    float u, decay;
};

/* Of arrays of all heads. */
template <typename Op>
static __device__ __forceinline__ DeltaRecords records_of(const Op &a, const float *k,
                                                          const float *u, const DeltaLane &l)
{
    return DeltaRecords{
        k + (int64_t)l.key_head * a.d_k, u + (int64_t)l.head * a.d_v,  a.decay + l.head,
        (int64_t)a.n_k_heads * a.d_k,    (int64_t)a.n_v_heads * a.d_v, a.n_v_heads};
}

template <int N4, bool FAST>
static __device__ __forceinline__ void load_record(DeltaRecord<N4> *x, const DeltaRecords &r,
                                                   const DeltaLane &l, int row)
{
    load_part<N4, FAST>(x->k, r.k + row * r.k_stride, l);
    x->u = l.d_k ? r.u[row * r.u_stride + l.col] : 0;
    x->decay = r.decay[row * r.decay_stride];
}

/* Takes s from the slot of a tree that leaves no states to its row `last`, by the rows between,
 * whose u this warp has left. */
template <int N4, bool FAST>
static __device__ __forceinline__ void replay_path(float s[N4][4], const DeltaRecords &records,
                                                   const int32_t *parent, const DeltaLane &l,
                                                   int last)
{
    uint64_t path = 0; /* bit d: row last - d */
    for (int row = last; row >= 0; row = parent[row])
        path |= (uint64_t)1 << (last - row);
    warp_sync(); /* all u are there */
    for (int d = MAX_DRAFT_ROWS - 1; d >= 0; d--) {
        if (!(path >> d & 1)) continue;
        DeltaRecord<N4> row;
        load_record<N4, FAST>(&row, records, l, last - d);
        update_state<N4>(s, row.k, row.u, row.decay);
    }
}

/* ---- a chunk ---- */

/* Which rows of a chunk do what: bit i is its i-th row's. */
typedef struct {
    uint32_t fetch;  /* takes its state from slot src, not from the row before */
    uint32_t replay; /* and then to that of its parent */
    uint32_t store;  /* leaves it in slot dst, where the next row does not overwrite it */
    uint32_t draft;  /* leaves u */
} WalkPlan;

/* The plan of n rows; first: the number in the call of the chunk's first, n_all: rows of the call.
 */
template <typename Chunk>
static __device__ __forceinline__ WalkPlan plan_walk(const Chunk &c, int first, int n, int n_all)
{
    int i = warp_lane() < n ? warp_lane() : 0, is_row = warp_lane() < n, row = first + i;
    int32_t before = c.dst[i], dst = c.dst[i + 1], after = c.dst[i + 2];
    int is_draft = dst < 0, parent = is_draft ? c.parent[i] : -1;
    int follows = row > 0 && (is_draft ? parent == row - 1 : c.src[i] == before);
    /* who reads the slot in between is the next row alone, and that from registers */
    int is_overwritten = row + 1 < n_all && after == dst;
    return WalkPlan{warp_ballot(is_row && !follows), warp_ballot(is_row && !follows && parent >= 0),
                    warp_ballot(is_row && !is_draft && !is_overwritten),
                    warp_ballot(is_row && is_draft)};
}

/* Where a walk writes, and finds rows again; of the block's head. */
typedef struct {
    float *out, *u; /* row 0 of the call */
    int64_t stride; /* from row to row of both */
    DeltaRecords records;
    const int32_t *parent; /* [n_all] */
} WalkArrays;

template <int N4, typename Chunk>
static __device__ __forceinline__ DeltaRow<N4> row_of(const Chunk &c, const DeltaLane &l, int col,
                                                      int i)
{
    DeltaRow<N4> row;
    for (int p = 0; p < N4; p++) {
        load4<true>(row.k[p], &c.k[i][4 * LANES * p + l.at], 4);
        load4<true>(row.q[p], &c.q[i][4 * LANES * p + l.at], 4);
    }
    row.v = c.v[i][col], row.decay = c.decay[i], row.beta = c.beta[i];
    return row;
}

/*
 * Takes s, what the chunk's first row fetches or goes on from, over n rows: a chain of rows of
 * which each goes on from the one before it, and after its last one the next chain. first: as for
 * plan_walk; col: the lane's of the chunk's.
 */
template <int N4, bool FAST, typename Op, typename Chunk>
static __device__ __forceinline__ void walk_chunk(float s[N4][4], const Op &a, const Chunk &c,
                                                  const WalkPlan &plan, const WalkArrays &to,
                                                  const DeltaLane &l, int col, int first, int n)
{
    float *out = to.out + first * to.stride + l.col, *u_out = to.u + first * to.stride + l.col;
    int writes = l.at == 0 && l.d_k;
    float fetched[N4][4] = {};
    for (int i = 0, end; i < n; i = end) {
        uint32_t starts = plan.fetch >> i >> 1; /* of chains, from row i + 1 on */
        end = starts ? i + __ffs((int)starts) : n;
        if (plan.replay >> i & 1) replay_path<N4, FAST>(s, to.records, to.parent, l, c.parent[i]);
        for (int r = i; r < end; r++, out += to.stride, u_out += to.stride) {
            if (r + 1 == end && end < n)
                load_part<N4, FAST>(fetched, column_at(a, l, c.src[end]), l);
            float u, result = delta_step<N4>(s, row_of<N4>(c, l, col, r), &u);
            if (writes) *out = result;
            if (writes && plan.draft >> r & 1) *u_out = u;
            if (plan.store >> r & 1) store_part<N4, FAST>(column_at(a, l, c.dst[r + 1]), s, l);
        }
        if (end == n) break;
        for (int p = 0; p < N4; p++)
            for (int j = 0; j < 4; j++)
                s[p][j] = fetched[p][j];
    }
}

#endif
