/*
 * linear_amx_int8.h: linear_int8.h's products in int8 tiles, for linear_cpu.c: the same bits.
 *
 * Fine q = 256 high + low, both signed bytes, coarse ones are high. Low bytes are multiplied for
 * the fine rows alone, which lie together. A tile takes 16 rows of x ("a group") times 64 columns
 * of a panel, which lies in memory as the unit wants it. Low bytes of a few rows are in the same
 * group as the high ones or in one beside it, so that W passes once (8 rows by 1024 x 3584 behind a
 * SwiGLU: 0.91 of the time that two passes take).
 *
 * The unit ends a product 52 cycles after it began and begins one every 16, so four sums grow side
 * by side: two panels of two groups, or four panels of one. After each block sums leave the unit to
 * be scaled and added; they are taken between the tile instructions of the next products, which
 * otherwise want other instructions between them anyway (amx.h).
 *
 * INT4's panels are unpacked a block at a time, to where the unit reads them.
 *
 * 7168 x 1024 on two cores of Granite Rapids: 0.25 ms for 1 row, 0.27 for 16 (30 GB/s is the
 * memory's rate), 1.19 for 256: 1.6 T multiply-adds/s of the 6.3 that nothing but tile products do.
 * Of a product's 20 ns storing y takes 5, scaling and adding 4, its loads 2.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_AMX_INT8_H
#define OFFSHOOT_KERNELS_LINEAR_AMX_INT8_H

#include "kernels/amx.h"
#include "kernels/linear_int8.h"

enum {
    INT8_STEPS = INT8_BLOCK / INT8_STEP, /* products of a whole block */
    INT8_STEP_BYTES = INT8_STEP * INT8_ROWS,
    INT8_SUMS_HELD = 4,                /* tile registers of sums: [group][panel], or [panel] */
    INT8_CHUNK_ROWS = 8 * TILE,        /* whose sums stay in L1 */
    INT8_X_AHEAD = 4,                  /* rows of x from being asked for to being packed */
    INT8_CHUNKS = 4,                   /* at most that all of W passes before the next */
    INT8_ONE_GROUP = LINEAR_GROUP / 2, /* rows whose low bytes fit in a group with the high ones */
};

/*
 * ---- x: chunks of rows, each [block][row][256]: high bytes, then the low ones of fine rows, which
 * are rows like others to the unit; behind the blocks, those of Int8ChunkX ----
 */

/* Of a block, for each of a chunk's rows. */
typedef struct {
    float *scale;
    int32_t *fine;   /* the fine rows */
    int32_t *n_fine; /* of the rows up to this one */
} Int8ChunkX;

/* Rows whose products with some panels are computed together: whole groups, or the few there are.
 */
typedef struct {
    int rows, blocks;
    uint32_t *terms;
} Int8Chunk;

/* The chunk of n rows that begins with row i0. */
INLINE Int8Chunk int8_chunk(const uint32_t *terms, int n, int cols, int i0)
{
    int rows = n - i0 < INT8_CHUNK_ROWS ? n - i0 : INT8_CHUNK_ROWS;
    int64_t row_words = (int64_t)int8_blocks(cols) * INT8_TERM_WORDS;
    if (n > INT8_ONE_GROUP) rows = (rows + TILE - 1) / TILE * TILE;
    return (Int8Chunk){rows, int8_blocks(cols), (uint32_t *)(uintptr_t)terms + i0 * row_words};
}

/* Row i of block b: the high bytes of row i of x, behind them all the low ones of a fine row. */
INLINE int8_t *int8_x_row(Int8Chunk c, int b, int i)
{
    return (int8_t *)c.terms + ((int64_t)b * 2 * c.rows + i) * INT8_BLOCK;
}

INLINE Int8ChunkX int8_chunk_x(Int8Chunk c, int b)
{
    uint32_t *at = c.terms + (int64_t)c.blocks * c.rows * (INT8_BLOCK / 2);
    at += (int64_t)b * 3 * c.rows;
    return (Int8ChunkX){(float *)(void *)at, (int32_t *)at + c.rows, (int32_t *)at + 2 * c.rows};
}

INLINE void int8_put_row(const __m512i part[INT8_STEPS], int8_t *row)
{
    for (int s = 0; s < INT8_STEPS; s++)
        _mm512_storeu_si512(row + s * INT8_STEP, part[s]);
}

/* Makes the low bytes signed: 256 high + low stays what it is. */
INLINE void int8_sign_low(Int8Bytes *q)
{
    for (int s = 0; s < INT8_STEPS; s++) {
        __mmask64 is_upper = _mm512_movepi8_mask(q->low[s]);
        q->high[s] = _mm512_mask_add_epi8(q->high[s], is_upper, q->high[s], _mm512_set1_epi8(1));
    }
}

/* Block b of a chunk, of which n rows are there: zeros behind them. */
INLINE void tiles_int8_pack_block(const float *const *x, int n, int cols, Int8Chunk c, int b)
{
    Int8ChunkX of = int8_chunk_x(c, b);
    int n_fine = 0;
    for (int i = 0; i < c.rows; i++) {
        Int8Bytes q = {0};
        if (i < n) q = int8_round(x[i], cols, b * INT8_BLOCK);
        for (int k = 0; i + INT8_X_AHEAD < n && k < INT8_BLOCK; k += CACHE_LINE / 4)
            prefetch_line(x[i + INT8_X_AHEAD] + b * INT8_BLOCK + k, 0);
        if (q.is_fine) {
            int8_sign_low(&q);
            int8_put_row(q.low, int8_x_row(c, b, c.rows + n_fine));
            of.fine[n_fine++] = i;
        }
        int8_put_row(q.high, int8_x_row(c, b, i));
        of.n_fine[i] = n_fine;
        of.scale[i] = q.scale;
    }
}

/* Part `part` of the packing of n rows. */
INLINE void tiles_int8_pack(const float *const *x, int n, int cols, int part, int n_parts,
                            uint32_t *terms)
{
    int64_t begin, end;
    int blocks = int8_blocks(cols), n_chunks = (n + INT8_CHUNK_ROWS - 1) / INT8_CHUNK_ROWS;
    cpu_split((int64_t)n_chunks * blocks, part, n_parts, &begin, &end);
    for (int64_t at = begin; at < end; at++) {
        int i0 = (int)(at / blocks) * INT8_CHUNK_ROWS;
        tiles_int8_pack_block(x + i0, n - i0, cols, int8_chunk(terms, n, cols, i0),
                              (int)(at % blocks));
    }
}

/* ---- sums that have left the unit ---- */

typedef int32_t Int8Tile[TILE][TILE]; /* [row of x][output] */

/*
 * Sums of high bytes and what becomes of them: of group t / 2 and panel t % 2, or, with few rows,
 * of panel t.
 */
typedef struct {
    Int8Tile *high;
    int apart;   /* tiles from one of these to the next */
    int waiting; /* bit t: t waits */
    int rows;    /* of x in each */
    const float *x_scale, *w_scale;
    int64_t w_scale_panel;      /* from a panel's scales to the next one's */
    int n_fine, first;          /* fine rows among these, the number of the first row of all */
    const int32_t *fine;        /* their numbers */
    const int32_t (*low)[TILE]; /* their low sums */
    int64_t low_panel;          /* from a panel's to the next one's */
    float (*sum)[TILE][TILE];   /* [t], of the blocks before */
    int is_first;               /* there are none */
    float *const *y;            /* of the first row, after the last block; else NULL */
    int64_t y_at;
    int y_rows, y_outs, y_all; /* rows and outputs there are from here on, rows in all */
} Int8Waiting;

INLINE int int8_group(int is_few, int t)
{
    return is_few ? 0 : t / 2;
}

INLINE int int8_panel_of(int is_few, int t)
{
    return is_few ? t : t % 2;
}

/* The fine rows: 256 high + low. */
INLINE void int8_add_lows(int is_few, const Int8Waiting *w)
{
    for (int k = 0; k < w->n_fine; k++) {
        int i = w->fine[k] - w->first;
        for (int t = 0; t < INT8_SUMS_HELD; t++) {
            if (!(w->waiting >> t & 1) || int8_group(is_few, t) != i / TILE) continue;
            int32_t *high = w->high[t * w->apart][i % TILE];
            const int32_t *low = w->low[int8_panel_of(is_few, t) * w->low_panel + k];
            __m512i q = _mm512_slli_epi32(_mm512_load_si512(high), 8);
            _mm512_store_si512(high, _mm512_add_epi32(q, _mm512_load_si512(low)));
        }
    }
}

/* What taking the rows of one of them needs. */
typedef struct {
    int rows, is_first, y_rows, y_outs, y_all;
    int32_t (*high)[TILE];
    const float *x_scale;
    Vec w_scale;
    float (*sum)[TILE];
    float *const *y;
    int64_t y_at;
} Int8Take;

INLINE Int8Take int8_take_begin(int is_few, const Int8Waiting *w, int t)
{
    int i = int8_group(is_few, t) * TILE, panel = int8_panel_of(is_few, t);
    if (!(w->waiting >> t & 1)) return (Int8Take){0};
    return (Int8Take){.rows = is_few ? w->rows : TILE,
                      .is_first = w->is_first,
                      .y_rows = w->y_rows - i,
                      .y_outs = w->y_outs - panel * TILE,
                      .y_all = w->y_all,
                      .high = w->high[t * w->apart],
                      .x_scale = w->x_scale + i,
                      .w_scale = v_load(w->w_scale + panel * w->w_scale_panel),
                      .sum = w->sum[t],
                      .y = w->y ? w->y + i : NULL,
                      .y_at = w->y_at + panel * TILE};
}

/* Row i: sum += scales * q. */
INLINE void int8_take(const Int8Take *w, int i)
{
    if (i >= w->rows) return;
    Vec before = w->is_first ? v_set(0) : v_load(w->sum[i]);
    Vec q = _mm512_cvtepi32_ps(_mm512_load_si512(w->high[i]));
    Vec sum = v_fma(q, v_mul(v_set(w->x_scale[i]), w->w_scale), before);
    if (!w->y)
        v_store(w->sum[i], sum);
    else if (i < w->y_rows)
        amx_emit(sum, w->y_outs, w->y_all, w->y[i] + w->y_at);
}

/* All from t on; then nothing waits. */
INLINE void int8_take_rest(int is_few, Int8Waiting *w, int t)
{
    for (; t < INT8_SUMS_HELD; t++) {
        Int8Take take = int8_take_begin(is_few, w, t);
        for (int i = 0; i < take.rows; i++)
            int8_take(&take, i);
    }
    w->waiting = w->n_fine = 0;
}

/* ---- products ---- */

/* What one product of tiles reads: the first step's, 64 columns of each. */
typedef struct {
    const int8_t *x[2]; /* of each group; of one, twice */
    Int8Codes w;
    int64_t ahead;              /* of W, from a line to what is asked for with it */
    int ahead_begin, ahead_end; /* of the lines of a step */
} Int8Tiles;

INLINE void int8_ask(const Int8Tiles *a, const int8_t *w)
{
    for (int i = a->ahead_begin; i < a->ahead_end; i++)
        prefetch_line(w + i * INT8_LINE, a->ahead);
}

/*
 * One step: sums to registers 0 .. 3, x in 6 and 7, W in 4 and 5. Between two tile instructions two
 * rows are taken.
 */
INLINE void int8_step(int n_groups, int n_panels, const Int8Tiles *a, int s, const Int8Take *take)
{
    const int8_t *x0 = a->x[0] + s * INT8_STEP, *x1 = a->x[1] + s * INT8_STEP;
    const int8_t *w = a->w.at + s * INT8_STEP_BYTES;
    const int64_t panel_bytes = a->w.panel_bytes;
#define THEN(i) int8_take(take, 2 * (i)), int8_take(take, 2 * (i) + 1)
    _tile_loadd(6, x0, INT8_BLOCK);
    THEN(0);
    _tile_loadd(4, w, 64);
    THEN(1);
    _tile_dpbssd(0, 6, 4);
    int8_ask(a, w);
    THEN(2);
    if (n_panels > 1) {
        _tile_loadd(5, w + panel_bytes, 64);
        THEN(3);
        _tile_dpbssd(1, 6, 5);
        int8_ask(a, w + panel_bytes);
    } else {
        THEN(3);
    }
    THEN(4);
    if (n_groups == 2) {
        _tile_loadd(7, x1, INT8_BLOCK);
        THEN(5);
        _tile_dpbssd(2, 7, 4);
        THEN(6);
        if (n_panels > 1) _tile_dpbssd(3, 7, 5);
    } else {
        if (n_panels > 2) {
            _tile_loadd(4, w + 2 * panel_bytes, 64);
            _tile_dpbssd(2, 6, 4);
            int8_ask(a, w + 2 * panel_bytes);
        }
        THEN(5);
        if (n_panels > 3) {
            _tile_loadd(5, w + 3 * panel_bytes, 64);
            _tile_dpbssd(3, 6, 5);
            int8_ask(a, w + 3 * panel_bytes);
        }
        THEN(6);
    }
    THEN(7);
#undef THEN
}

/* So many steps; what waits is taken meanwhile. */
INLINE void int8_multiply(int is_few, int n_groups, int n_panels, const Int8Tiles *a, int steps,
                          Int8Waiting *waiting)
{
    int8_add_lows(is_few, waiting);
    clear_sums();
    for (int s = 0; s < steps; s++) {
        Int8Take take = int8_take_begin(is_few, waiting, s);
        int8_step(n_groups, n_panels, a, s, &take);
    }
    int8_take_rest(is_few, waiting, steps);
}

/* What n_panels of W from row r on and a chunk are computed with. */
typedef struct {
    const Int8Product *p;
    Int8Chunk chunk;
    int i0, r, y_at;
    int which_chunk, n_chunks;                /* of those that these panels are for */
    int which;                                /* of high */
    Int8Tile (*high)[INT8_SUMS_HELD];         /* [2] */
    int32_t (*low)[TILE];                     /* [panel][fine row] */
    float (*sum)[INT8_SUMS_HELD][TILE][TILE]; /* [pair of groups] */
    int8_t *room;                             /* for INT4's block of all panels, unpacked */
    Int8Waiting waiting;
} Int8Panels;

/* Block b of n_panels; INT4's is unpacked, and what lies `ahead` asked for with the first chunk. */
INLINE Int8Codes int8_panels_codes(const Int8Panels *a, int n_panels, int b, int64_t ahead)
{
    const Weight *w = a->p->w;
    Int8Codes codes = int8_codes_at(w, a->r, b);
    if (w->type == WEIGHT_INT8) return codes;
    for (int i = 0; i < n_panels && !a->which_chunk; i++)
        for (int k = 0; k < INT4_BLOCK_BYTES; k += CACHE_LINE)
            prefetch_line(codes.at + i * codes.panel_bytes + k, ahead);
    codes = int4_codes(codes, n_panels, int8_steps(w, b * INT8_BLOCK), a->room);
    amx_see_stores(a->room);
    return codes;
}

/* The products of a block's low bytes, two panels'. */
INLINE void int8_multiply_lows(int n_panels, Int8Panels *a, int b, Int8Tiles tiles, int steps)
{
    const int rows = a->chunk.rows, n_fine = int8_chunk_x(a->chunk, b).n_fine[rows - 1];
    tiles.ahead_end = 0;
    for (int i = 0; i < n_fine; i += TILE) {
        int32_t(*low)[TILE] = a->low + i; /* what waited has taken its own */
        tiles.x[0] = tiles.x[1] = int8_x_row(a->chunk, b, rows + i);
        int8_multiply(0, 1, n_panels, &tiles, steps, &a->waiting);
        _tile_stored(0, low, 64);
        if (n_panels > 1) _tile_stored(1, low + rows, 64);
    }
}

/* What waits of a block: n_panels from that one on, n_groups of rows from i on. */
INLINE Int8Waiting int8_waiting(const Int8Panels *a, int b, int panel, int n_panels, int i,
                                int n_groups)
{
    const Int8Product *p = a->p;
    const Int8ChunkX x = int8_chunk_x(a->chunk, b);
    const int rows = group_columns(a->chunk.rows), fine = i ? x.n_fine[i - 1] : 0,
              is_last = b + 1 == a->chunk.blocks, r = a->r + panel * INT8_ROWS;
    return (Int8Waiting){
        .high = a->high[a->which],
        .apart = 1,
        .waiting = ((1 << n_panels) - 1) * (n_groups == 2 ? 5 : 1),
        .rows = rows,
        .x_scale = x.scale + i,
        .w_scale = weight_scales(p->w, r) + (int64_t)b * INT8_ROWS,
        .w_scale_panel = (int64_t)a->chunk.blocks * INT8_ROWS,
        .n_fine = x.n_fine[i + n_groups * rows - 1] - fine,
        .first = i,
        .fine = x.fine + fine,
        .low = (const int32_t(*)[TILE])a->low + fine,
        .low_panel = a->chunk.rows,
        .sum = a->sum[i / (2 * TILE)] + panel,
        .is_first = b == 0,
        .y = is_last ? p->y + a->i0 + i : NULL,
        .y_at = a->y_at + panel * INT8_ROWS,
        .y_rows = p->n - a->i0 - i,
        .y_outs = p->end - r,
        .y_all = p->n,
    };
}

/* The products of high bytes of groups g and, of two, g + 1, which are left waiting. */
INLINE void int8_multiply_highs(int n_groups, int n_panels, Int8Panels *a, int b, Int8Tiles tiles,
                                int steps, int g)
{
    Int8Tile *high = a->high[a->which ^= 1];
    tiles.x[0] = int8_x_row(a->chunk, b, g * TILE);
    tiles.x[1] = tiles.x[0] + (n_groups - 1) * TILE * INT8_BLOCK;
    int8_multiply(0, n_groups, n_panels, &tiles, steps, &a->waiting);
    _tile_stored(0, high[0], 64);
    if (n_panels > 1) _tile_stored(1, high[1], 64);
    if (n_groups == 2) _tile_stored(2, high[2], 64);
    if (n_groups * n_panels == 4) _tile_stored(3, high[3], 64);
    a->waiting = int8_waiting(a, b, 0, n_panels, g * TILE, n_groups);
}

/*
 * A block of few rows and n_panels from that one on, high and low bytes at once, whose sums are
 * left waiting: those of a panel lie together, [row of x, then fine row].
 */
INLINE void int8_multiply_few(int n_groups, int panel, int n_panels, Int8Panels *a, int b,
                              Int8Tiles tiles, int steps)
{
    Int8Tile *sum = a->high[a->which ^= 1];
    tiles.w.at += panel * tiles.w.panel_bytes;
    tiles.x[0] = int8_x_row(a->chunk, b, 0);
    tiles.x[1] = tiles.x[0] + (n_groups - 1) * TILE * INT8_BLOCK;
    int8_multiply(1, n_groups, n_panels, &tiles, steps, &a->waiting);
    _tile_stored(0, sum[0], 64);
    if (n_panels > 1) _tile_stored(1, sum[n_groups], 64);
    if (n_groups == 2) _tile_stored(2, sum[1], 64);
    if (n_groups == 1 && n_panels > 2) _tile_stored(2, sum[2], 64);
    if (n_groups * n_panels == 4) _tile_stored(3, sum[3], 64);
    a->waiting = int8_waiting(a, b, panel, n_panels, 0, 1);
    a->waiting.apart = n_groups;
    a->waiting.low = (const int32_t(*)[TILE])sum[0] + a->chunk.rows;
    a->waiting.low_panel = n_groups * TILE;
}

/* All blocks of n_panels and a few rows. */
INLINE void int8_panels_of_few(int n_panels, Int8Panels *a)
{
    const Weight *w = a->p->w;
    const int rows = a->chunk.rows;
    Int8Tiles tiles = {.ahead_end = w->type == WEIGHT_INT8 ? TILE : 0};
    for (int b = 0; b < a->chunk.blocks; b++) {
        int steps = int8_steps(w, b * INT8_BLOCK);
        tiles.ahead = int8_ahead(w, n_panels, b);
        tiles.w = int8_panels_codes(a, n_panels, b, tiles.ahead);
        if (rows < TILE || !int8_chunk_x(a->chunk, b).n_fine[rows - 1]) {
            int8_multiply_few(1, 0, n_panels, a, b, tiles, steps);
            continue;
        }
        int8_multiply_few(2, 0, n_panels < 2 ? n_panels : 2, a, b, tiles, steps);
        if (n_panels > 2) int8_multiply_few(2, 2, n_panels - 2, a, b, tiles, steps);
    }
}

/* All blocks of n_panels and a chunk of more. */
INLINE void int8_panels_of_many(int n_panels, Int8Panels *a)
{
    const Weight *w = a->p->w;
    const int n_groups = a->chunk.rows / TILE, n_pairs = (n_groups + 1) / 2,
              shares = n_pairs * a->n_chunks;
    Int8Tiles tiles = {.ahead = n_panels * INT8_ROWS * weight_row_bytes(w)};
    for (int b = 0; b < a->chunk.blocks; b++) {
        int steps = int8_steps(w, b * INT8_BLOCK);
        tiles.w = int8_panels_codes(a, n_panels, b, tiles.ahead);
        int8_multiply_lows(n_panels, a, b, tiles, steps);
        for (int g = 0; g < n_groups; g += 2) {
            int share = a->which_chunk * n_pairs + g / 2;
            tiles.ahead_begin = TILE * share / shares;
            tiles.ahead_end = TILE * (share + 1) / shares;
            if (w->type == WEIGHT_INT4) tiles.ahead_end = 0;
            if (g + 1 < n_groups)
                int8_multiply_highs(2, n_panels, a, b, tiles, steps, g);
            else
                int8_multiply_highs(1, n_panels, a, b, tiles, steps, g);
        }
    }
}

/* Chunks that all of W passes before the next. */
INLINE int int8_chunks_at_once(int cols)
{
    int64_t n = AMX_X_BYTES / ((int64_t)INT8_CHUNK_ROWS * cols);
    return n < 1 ? 1 : n > INT8_CHUNKS ? INT8_CHUNKS : (int)n;
}

/* The next n_panels of a chunk. */
INLINE void int8_panels(int is_few, int n_panels, Int8Panels *a)
{
    if (is_few)
        int8_panels_of_few(n_panels, a);
    else
        int8_panels_of_many(n_panels, a);
}

/* Outputs begin .. end of rows i0 .. i_end. */
INLINE void int8_rows(int is_few, Int8Panels *a, int begin, int end, int i0, int i_end)
{
    const int most = is_few ? INT8_SUMS_HELD : INT8_SUMS_HELD / 2, cols = a->p->w->cols;
    for (int r = begin, n_panels; r < end; r += n_panels * TILE) {
        n_panels = (end - r + TILE - 1) / TILE;
        if (n_panels > most) n_panels = most;
        a->r = r, a->y_at = r - begin;
        a->n_chunks = (i_end - i0 + INT8_CHUNK_ROWS - 1) / INT8_CHUNK_ROWS;
        for (a->which_chunk = 0; a->which_chunk < a->n_chunks; a->which_chunk++) {
            a->i0 = i0 + a->which_chunk * INT8_CHUNK_ROWS;
            a->chunk = int8_chunk(a->p->terms, a->p->n, cols, a->i0);
            if (n_panels == 1) int8_panels(is_few, 1, a);
            if (n_panels == 2) int8_panels(is_few, 2, a);
            if (is_few && n_panels == 3) int8_panels(is_few, 3, a);
            if (is_few && n_panels == 4) int8_panels(is_few, 4, a);
        }
    }
    int8_add_lows(is_few, &a->waiting);
    int8_take_rest(is_few, &a->waiting, 0);
}

/* y[i][r - begin] for n packed rows and begin <= r < end, begin a multiple of TILE. */
static void tiles_int8(const Weight *w, int begin, int end, int n, const uint32_t *terms,
                       float *const *y)
{
    _Alignas(64) Int8Tile high[2][INT8_SUMS_HELD];
    _Alignas(64) int32_t low[2 * INT8_CHUNK_ROWS][TILE];
    _Alignas(64) float sum[INT8_CHUNK_ROWS / (2 * TILE)][INT8_SUMS_HELD][TILE][TILE];
    _Alignas(64) int8_t room[INT8_SUMS_HELD * INT8_BLOCK_BYTES];
    const int together = int8_chunks_at_once(w->cols) * INT8_CHUNK_ROWS;
    Int8Product p = {w, end, n, terms, y};
    Int8Panels a = {.p = &p, .high = high, .low = low, .sum = sum, .room = room};
    amx_begin(n <= INT8_ONE_GROUP ? 2 * n : TILE, 64);
    if (n <= TILE)
        int8_rows(1, &a, begin, end, 0, n);
    else
        for (int i0 = 0; i0 < n; i0 += together)
            int8_rows(0, &a, begin, end, i0, n - i0 < together ? n : i0 + together);
    amx_end(n);
}

#endif
